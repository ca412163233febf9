"""SASS of a cubin, by NVIDIA's disassembler, and how many instructions of each class it has."""

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
"""The wheel that holds the disassembler."""
_SECONDS = 300
"""The largest kernels take a few seconds."""
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
"""Classes of instructions by the opcodes that are in them; the first that has an opcode counts it."""
OTHERS = "others"
_PATTERNS = {name: re.compile(pattern) for name, pattern in CLASSES.items()}


def disassembler() -> Path:
    """The disassembler, ``nvdisasm``: of a wheel, a CUDA toolkit or PATH.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    path = None
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        path = find_nvidia_binary_utility("nvdisasm")
    except ImportError:  # an older cuda-bindings comes without
        pass
    if not (path := path or shutil.which("nvdisasm")):
        raise ToolchainError(
            f"there is no disassembler here: nvdisasm is in no wheel, toolkit or folder of PATH; pip install {WHEEL}"
        )
    return Path(path)


def disassembled(cubin: bytes, lineinfo: bool = False) -> str:
    """The SASS of a cubin as text; with ``lineinfo``, where it has that, the source lines between instructions.

    Raises:
        ToolchainError: there is no disassembler, or it does not know the cubin's architecture.
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
            raise ToolchainError(f"{tool} refuses the cubin: {message}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{tool} does not run: {error}") from None
    return done.stdout


def counts(listing: str) -> dict[str, int]:
    """Instructions of a listing by :data:`CLASSES`, and :data:`OTHERS`."""
    by_class = dict.fromkeys((*CLASSES, OTHERS), 0)
    for opcode, count in Counter(_INSTRUCTION.findall(listing)).items():
        by_class[class_of(opcode)] += count
    return by_class


def class_of(opcode: str) -> str:
    """The class of an opcode."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(opcode)), OTHERS)
