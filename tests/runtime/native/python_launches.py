"""Runs the table of products in Python, as run_cases.cpp does in C. Arguments: a pack, and the names of tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.runtime.native import cases
from tests.runtime.native.cases import FAST_FLAG, TF32_FLAG, Case

from gemmill import GemmillError, Registry, grouped_matmul, matmul
from gemmill.library.errors import ConfigError, PackError, UnsupportedProblemError

_STATUSES: tuple[tuple[type[GemmillError], int], ...] = (
    (PackError, 3),
    (UnsupportedProblemError, 2),
    (ConfigError, 2),
    (GemmillError, 1),
)
"""Statuses of gemmill.h by error."""


def write(line: object) -> None:
    with open(os.environ["RECORDING"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run(case: Case, registry: Registry) -> None:
    write({"case": case.id})
    try:
        for addresses in case.launches:
            options: dict[str, Any] = {
                "alpha": case.alpha,
                "beta": case.beta,
                "kernel": case.kernel or None,
                "tf32": bool(case.flags & TF32_FLAG),
                "fast_accumulation": bool(case.flags & FAST_FLAG),
                "epilogue": case.epilogue or None,
                "stream": case.stream,
                "registry": registry,
            }
            call: Callable[..., Any] = matmul
            if case.offsets or case.counts or case.expected_rows:
                call, options = grouped_matmul, options | {"expected_rows": case.expected_rows or None}
            else:
                options |= {"slices": case.slices or None}
            call(**case.views(addresses), **options)
    except GemmillError as error:
        write({"status": next(status for kind, status in _STATUSES if isinstance(error, kind)), "message": str(error)})


if __name__ == "__main__":
    registry = Registry(packs=[sys.argv[1]], manifests=())
    for name in sys.argv[2:]:
        for case in getattr(cases, name):
            run(case, registry)
