"""Loading manifests: YAML -> schema -> kernel set, with every fault of a file reported at its place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gemmill.library import schema
from gemmill.library.document import Document, Location, read_document
from gemmill.library.domains import suggest
from gemmill.library.errors import ExpressionError, ManifestError
from gemmill.library.expression import Expression
from gemmill.library.fields import FIELD_NAMES, Value, config_of
from gemmill.library.grid import Axis, Grid, Predicate
from gemmill.library.kernelset import Candidates, KernelSet, Preset, member
from gemmill.library.rules import verdicts
from gemmill.library.schema import Manifest, OutputSpec, SetSpec, Spec

