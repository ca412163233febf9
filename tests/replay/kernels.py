"""Prints what a fixed sample of kernels is: registers, digests of launch facts and of machine code, a line each.

``python tests/replay/kernels.py > after``, and the same with another commit's sources on ``PYTHONPATH``: what differs
is what a change did to kernels, whatever it renamed or moved. Names of fields are no part of a digest, nor is the text
of a source; of a cubin its instructions alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

import gemmill

SAMPLE = Path(__file__).parent / "kernels.txt"
"""Names of kernels: every family, dtype, schedule, decomposition of K, batching and kind of epilogue."""


def main() -> None:
    """Compile the sample and print what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="names of kernels, instead of the sample")
    parser.add_argument("--jobs", type=int, help="processes that compile")
    parser.add_argument("--cubins", type=Path, metavar="DIR", help="write the cubins there as well, by name")
    arguments = parser.parse_args()
    names = arguments.kernels or SAMPLE.read_text().split()
    with tempfile.TemporaryDirectory() as store:
        artifacts = gemmill.Registry(store=store).warm(names, jobs=arguments.jobs)
    for name, artifact in zip(names, artifacts, strict=True):
        if arguments.cubins:
            arguments.cubins.mkdir(parents=True, exist_ok=True)
            (arguments.cubins / f"{name}.cubin").write_bytes(artifact.cubin)
        registers = artifact.resources.registers
        print(name, registers, launch_digest(artifact.launch), code_digest(artifact.cubin))
    print(f"{len(names)} kernels, {gemmill.__file__}", file=sys.stderr)


def launch_digest(launch: Any) -> str:
    """Of the values of launch facts, in their order."""
    return digest(json.dumps(list(values(dataclasses.asdict(launch)))).encode())


def values(item: Any) -> Any:
    """The leaves of nested mappings and sequences."""
    if isinstance(item, dict):
        for child in item.values():
            yield from values(child)
    elif isinstance(item, list | tuple):
        for child in item:
            yield from values(child)
    else:
        yield item


def code_digest(cubin: bytes) -> str:
    """Of the instructions of every function, in the order of the file."""
    sections = ELFFile(io.BytesIO(cubin)).iter_sections()
    return digest(b"".join(section.data() for section in sections if section.name.startswith(".text.")))


def digest(content: bytes) -> str:
    """Sixteen digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    main()
