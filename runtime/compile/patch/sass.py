"""Rewrites machine code of sm_90 where ptxas's choice costs time: chains of multiply-adds that share an operand.

An instruction has 128 bits. Bits 105 to 125 control its issue (Jia et al., "Dissecting the NVIDIA Volta GPU
Architecture via Microbenchmarking", 2018, section 2.1):

- the cycles to stall (4 bits);
- whether the scheduler stays with the warp (1);
- the barriers to set and to wait for (12);
- the operands that stay in the operand collector for the next instruction (4).

The operands that stay and the warp that issues affect when something is computed, not the result, as long as no operand
that stays is overwritten: every instruction still names all of its registers.
"""

from __future__ import annotations

import struct

_INSTRUCTION = struct.Struct("<QQ")
_FFMA = 0x7223
"""Low 16 bits of ``FFMA Rd, Ra, Rb, Rc`` without a predicate."""
_STAY = 1 << 45
"""Bit of the high half: do not yield to another warp."""
_KEEP_B = 1 << 59
"""Bit of the high half: Rb stays in the operand collector."""


def chain_multiply_adds(cubin: bytes, code: range, length: int) -> bytes:
    """Let a warp issue ``length`` multiply-adds by one register before it yields, and read that register once for them.

    After each stage of a block-scaled kernel, a thread multiplies dozens of sums by one scale, while the tensor cores
    read and write the sums of other warps through the same ports. In kernels with MMAs, ptxas yields after every second
    multiply-add, and so reads the scale for every second one; in kernels without MMAs it makes chains of up to 16
    itself. DeepGEMM used to patch the same bits (its README of 2025, "FFMA SASS interleaving").

    Args:
        cubin: a cubin of sm_90.
        code: location of its kernel's instructions (:meth:`~gemmill.runtime.storage.cubin.Cubin.code`).
        length: multiply-adds of one chain; the last one yields.
    """
    patched = bytearray(cubin)
    run: list[int] = []
    multiplier = None
    for offset in code[:: _INSTRUCTION.size]:
        low, _ = _INSTRUCTION.unpack_from(cubin, offset)
        register = (low >> 32) & 0xFF if low & 0xFFFF == _FFMA else None
        if register != multiplier:
            _issue_together(patched, run, length)
            run, multiplier = [], register
        if register is not None:
            run.append(offset)
            if (low >> 16) & 0xFF == register:  # it overwrites the multiplier: the next one multiplies by another value
                multiplier = None
    _issue_together(patched, run, length)
    return bytes(patched)


def _issue_together(code: bytearray, run: list[int], length: int) -> None:
    """Make chains in a run of multiply-adds by one value, at these offsets."""
    for index, offset in enumerate(run[:-1]):
        low, high = _INSTRUCTION.unpack_from(code, offset)
        high &= ~(_STAY | _KEEP_B)
        if index % length != length - 1:
            high |= _STAY | _KEEP_B
        _INSTRUCTION.pack_into(code, offset, low, high)
