"""Code is verified before it runs: an artifact against its config, computed anew, and against its own cubin.

The emitters say what a config's kernel is launched with and which facts it exports; the cubin tells what it exports and
uses. Takes milliseconds, and the import of the emitters, so those who read artifacts do it once for each
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
    """Refuse an artifact that is not what the kernel of its config would be.

    Raises:
        ValueError: names the first thing that is wrong.
    """
    from gemmill.emitters.emit import facts  # a process that starts from a known pack does without

    try:
        launch, constants = facts(artifact.config)
        _same("its LaunchSpec", asdict(artifact.launch), asdict(launch))
        cubin = Cubin(artifact.cubin)
        check_facts(cubin, launch.entry, constants)
        _check_uses(artifact, cubin, launch)
        if constants.get("reduction_threads"):
            cubin.code(f"{launch.entry}_reduction")
    except (CompileError, ConfigError) as error:
        raise ValueError(str(error)) from None


def check_facts(cubin: Cubin, entry: str, constants: Mapping[str, int]) -> None:
    """Compare what a kernel exports with what was computed in Python, by name.

    Raises:
        CompileError: a fact is missing, unknown, or another.
    """
    exported = cubin.facts(f"{entry}_spec")
    expected = {zlib.crc32(name.encode()): (name, value) for name, value in constants.items()}
    for crc, (name, value) in expected.items():
        if crc not in exported:
            raise CompileError(f"{entry} exports no {name}, which its LaunchSpec has")
        if exported[crc] != value:
            raise CompileError(f"{entry}: the kernel computes {name} = {exported[crc]}, its LaunchSpec says {value}")
    if unknown := exported.keys() - expected.keys():
        raise CompileError(f"{entry} exports {len(unknown)} facts that its LaunchSpec has not")


def _check_uses(artifact: Artifact, cubin: Cubin, launch: LaunchSpec) -> None:
    """Compare what is said of a cubin with what its own tables say."""
    entry = launch.entry
    cubin.code(entry)
    used = {"threads": cubin.threads(entry), "params_bytes": cubin.params_bytes(entry)}
    _same("its cubin", used, {name: getattr(launch, name) for name in used})
    resources = {
        "registers": cubin.registers(entry),
        "spill_stores": 0,
        "spill_loads": 0,
        "stack_bytes": 0,
        "static_shared_bytes": cubin.static_shared_bytes(entry),
        "dynamic_shared_bytes": launch.shared_bytes,
    }
    _same("its list of resources", asdict(artifact.resources), resources)


def _same(what: str, actual: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """ValueError where a field is not, type included, what it must be."""
    for name, value in expected.items():
        if canonical(actual[name]) != canonical(value):
            raise ValueError(f"{what} says {name} = {actual[name]!r:.80}, its config means {value!r:.80}")
