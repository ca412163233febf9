"""Verifies code before it runs: compares an artifact with its recomputed config, and with its own cubin.

The emitters compute the launch and the exported facts of a config's kernel; the cubin holds what it exports and uses.
Verification takes milliseconds plus the import of the emitters, so readers do it once per artifact
(:mod:`gemmill.runtime.storage.pack`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict

from gemmill.library.errors import CompileError, ConfigError
from gemmill.library.launch import LaunchSpec
from gemmill.runtime.storage.artifact import Artifact, canonical
from gemmill.runtime.storage.cubin import Cubin


def verify(artifact: Artifact) -> None:
    """Check that an artifact is the kernel of its config.

    Raises:
        ValueError: names the first fault.
    """
    from gemmill.emitters.emit import facts  # deferred: processes that use verified packs do not need it

    try:
        launch, constants = facts(artifact.config)
        _check_equal("its LaunchSpec", asdict(artifact.launch), asdict(launch))
        cubin = Cubin(artifact.cubin)
        check_facts(cubin, launch.entry, constants)
        _check_uses(artifact, cubin, launch)
        if constants.get("reduction_threads"):
            cubin.code(f"{launch.entry}_reduction")
    except (CompileError, ConfigError) as error:
        raise ValueError(str(error)) from None


def check_facts(cubin: Cubin, entry: str, constants: Mapping[str, int]) -> None:
    """Compare the facts that a kernel exports with those computed in Python, by name.

    Raises:
        CompileError: a fact is missing, unknown or different.
    """
    exported = cubin.facts(f"{entry}_spec")
    expected = {zlib.crc32(name.encode()): (name, value) for name, value in constants.items()}
    for crc, (name, value) in expected.items():
        if crc not in exported:
            raise CompileError(f"{entry} does not export {name}, which is in its LaunchSpec")
        if exported[crc] != value:
            raise CompileError(f"{entry}: the kernel computes {name} = {exported[crc]}, but its LaunchSpec has {value}")
    if unknown := exported.keys() - expected.keys():
        raise CompileError(f"{entry} exports {len(unknown)} facts that are not in its LaunchSpec")


def _check_uses(artifact: Artifact, cubin: Cubin, launch: LaunchSpec) -> None:
    """Compare the description of a cubin with the tables in it."""
    entry = launch.entry
    cubin.code(entry)
    used = {"threads": cubin.threads(entry), "params_bytes": cubin.params_bytes(entry)}
    _check_equal("its cubin", used, {name: getattr(launch, name) for name in used})
    resources = {
        "registers": cubin.registers(entry),
        "spill_stores": 0,
        "spill_loads": 0,
        "stack_bytes": 0,
        "static_shared_bytes": cubin.static_shared_bytes(entry),
        "dynamic_shared_bytes": launch.shared_bytes,
    }
    _check_equal("its list of resources", asdict(artifact.resources), resources)


def _check_equal(what: str, actual: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Raise ValueError where a field differs in value or type from what it must be."""
    for name, value in expected.items():
        if canonical(actual[name]) != canonical(value):
            raise ValueError(f"{what} has {name} = {actual[name]!r:.80}, but its config gives {value!r:.80}")
