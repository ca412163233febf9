"""Disassembles a cubin to SASS with NVIDIA's disassembler, and counts its instructions by class."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gemmill.library.errors import ToolchainError

WHEEL = "nvidia-cuda-nvdisasm"
"""The wheel with the disassembler."""
_SECONDS = 300
"""Time limit; the largest kernels take a few seconds."""
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+)", re.MULTILINE)
"""Opcode of an instruction, without its modifiers."""
CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "tensor cores": r"[A-Z]G?MMA|WARPGROUP\w*",
        "TMA": r"UTMA\w+|UBLK\w+|STAS",
        "shared memory": r"LDS\w*|STS\w*|ATOMS",
        "global memory": r"LD|LDG(?:STS)?|ST|STG|REDG?|ATOMG?",
        "local memory": r"LDL|STL",
        "constants": r"U?LDC\w*",
        "barriers": r"SYNCS|BAR|MEMBAR|FENCE|ERRBAR|\w*DEPBAR|CCTL\w*|ARRIVES|ACQBULK|PREEXIT|UCGABAR\w*",
        "conversions": r"[FI]2\w+",
        "floating point": r"[FHD](?:ADD|MUL|FMA|SET|SEL|MNMX|CHK|SWZ)\w*|MUFU",
        "moves": r"U?MOV|MOVM|U?PRMT|C?S2U?R|R2UR",
        "warps": r"SHFL|VOTEU?|ELECT|REDUX|MATCH|WARPSYNC|ENDCOLLECTIVE|USETMAXREG",
        "integers": r"U?(?:I\w+|LEA|P?LOP3|SH[FLR]|SEL|FLO|POPC|BREV|BMSK|SGXT|VI\w+|P2U?R|R2P)",
        "control": r"BRA|BRXU?|JM[PX]|CALL|RET|EXIT|BSSY|BSYNC|BREAK|NOP|BPT|KILL|YIELD|NANOSLEEP",
    }
)
"""Classes of instructions by their opcodes; the first class with an opcode counts it."""
OTHERS = "others"
_PATTERNS = {name: re.compile(pattern) for name, pattern in CLASSES.items()}


def disassembler() -> Path:
    """Find the disassembler, ``nvdisasm``, in a wheel, a CUDA toolkit or PATH.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    path = None
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        path = find_nvidia_binary_utility("nvdisasm")
    except ImportError:  # older versions of cuda-bindings do not include it
        pass
    if not (path := path or shutil.which("nvdisasm")):
        raise ToolchainError(f"nvdisasm was not found in a wheel, a CUDA toolkit or PATH; run pip install {WHEEL}")
    return Path(path)


def disassembled(cubin: bytes, lineinfo: bool = False) -> str:
    """Return the SASS of a cubin as text; with ``lineinfo``, with source lines between instructions, if the cubin has
    them.

    Raises:
        ToolchainError: there is no disassembler, or it does not support the cubin's architecture.
    """
    tool = disassembler()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--print-code", *(["--print-line-info"] if lineinfo else []), file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        except subprocess.CalledProcessError as error:
            message = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
            raise ToolchainError(f"{tool} cannot disassemble the cubin: {message}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{tool} failed: {error}") from None
    return done.stdout


def counts(listing: str) -> dict[str, int]:
    """Return the numbers of instructions in a listing by :data:`CLASSES`, and :data:`OTHERS`."""
    by_class = dict.fromkeys((*CLASSES, OTHERS), 0)
    for opcode, count in Counter(_INSTRUCTION.findall(listing)).items():
        by_class[class_of(opcode)] += count
    return by_class


def class_of(opcode: str) -> str:
    """Return the class of an opcode."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(opcode)), OTHERS)
