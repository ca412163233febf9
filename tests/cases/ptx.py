"""Carries out PTX on the host, for kernels that are simple enough: a warp at a time, in memory whose bounds it checks.

It has the instructions that our own PTX has, and nothing more. Lanes that branch forward wait at the label; so does a
warp at a barrier, until all have come. The CTAs of a cluster run one after another between its barriers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LANES = 32
FULL = (1 << 32) - 1
_APART = 1 << 32
_WINDOW = 1 << 24
"""Addresses of a CTA's shared memory as its cluster sees them."""


class Memory:
    """Arrays at addresses, as kernels see them."""

    def __init__(self) -> None:
        self._arrays: dict[int, Any] = {}
        self._next = 1 << 40

    def put(self, array: Any) -> int:
        """Return the address of an array, which kernels read and write in place."""
        address, self._next = self._next, self._next + _APART
        self._arrays[address] = array.reshape(-1).view(np.uint8)
        return address

    def bytes_from(self, address: int) -> Any:
        """The bytes from an address to the end of its array."""
        begin = address & -_APART
        return self._arrays[begin][address - begin :]

    def bytes_at(self, address: int, size: int) -> Any:
        """The bytes of an access, which lies in one array and is aligned."""
        begin = address & -_APART
        data = self._arrays.get(begin)
        assert data is not None, f"{size} bytes at {address:#x} are in no array"
        assert address - begin + size <= len(data), f"{size} bytes at {address:#x} go beyond their array"
        assert address % size == 0, f"{size} bytes at {address:#x} are not aligned"
        return data[address - begin : address - begin + size]


def fused(x: Any, y: Any, z: Any) -> Any:
    """``x * y + z`` in float32, rounded once: the sum in float64, rounded to odd, has enough bits."""
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    odd = np.where((error != 0) & (bits % 2 == 0) & np.isfinite(total), 1, 0)
    outward = np.where((error > 0) == (total > 0), odd, -odd)
    return (bits + outward).view(np.float64).astype(np.float32)


def as_floats(bits: Any) -> Any:
    return np.asarray(bits, np.uint32).view(np.float32)


def as_f32(bits: Any, dtype: str) -> Any:
    """float32 of elements of 16 or 32 bits."""
    if dtype == "bf16":
        return as_floats(np.asarray(bits, np.uint32) << 16)
    return np.asarray(bits, np.uint16).view(np.float16).astype(np.float32) if dtype == "f16" else as_floats(bits)


def rounded(values: Any, dtype: str) -> Any:
    """The bits of float32 values (no NaN) rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    if dtype == "bf16":
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    return bits


class Warp:
    """A warp that runs a kernel."""

    def __init__(self, kernel: Kernel, memory: Memory, job: bytes, shared: list[Any], cta: int, warp: int) -> None:
        self.kernel, self.memory, self.job, self.shared = kernel, memory, job, shared
        self.cluster, self.rank = divmod(cta, len(shared))
        lanes = np.arange(LANES, dtype=np.uint64)
        self.registers: dict[str, Any] = {
            "%ctaid.x": np.full(LANES, cta, np.uint64),
            "%clusterid.x": np.full(LANES, self.cluster, np.uint64),
            "%cluster_ctarank": np.full(LANES, self.rank, np.uint64),
            "%tid.x": lanes + np.uint64(LANES * warp),
            "%lanemask_lt": (np.uint64(1) << lanes) - np.uint64(1),
        }
        self.parked: dict[str, Any] = {}
        self.active = np.ones(LANES, bool)

    def run(self) -> Iterator[str]:
        """Run to the end; yields the instruction of each barrier at which it waits."""
        at = 0
        while at < len(self.kernel.lines):
            guard, name, operands = self.kernel.lines[at]
            at += 1
            if name == "label":
                self.active = self.active | self.parked.pop(operands[0], False)
                continue
            lanes = self.active & self.value(guard).astype(bool) if guard else self.active
            if name == "bra":
                if lanes.any() and (lanes == self.active).all():
                    at = self.kernel.labels[operands[0]]
                elif lanes.any():
                    assert self.kernel.labels[operands[0]] > at, "lanes part only on the way forward"
                    self.parked[operands[0]] = self.parked.get(operands[0], False) | lanes
                    self.active = self.active & ~lanes
            elif name == "bar.sync" or name.startswith("barrier.cluster.wait"):
                assert self.active.all()
                yield name
            elif not name.startswith(("griddepcontrol", "ret", "barrier.cluster.arrive")):
                self.execute(name.split("."), operands, lanes)

    def value(self, operand: str) -> Any:
        if operand.startswith("%"):
            return self.registers.get(operand, np.full(LANES, 0xDEADBEEF, np.uint64))
        number = 0 if operand in ("counts", "largest", "job") else int(operand, 0)
        return np.full(LANES, number % (1 << 64), np.uint64)

    def write(self, operand: str, values: Any, lanes: Any) -> None:
        mask = np.uint64((1 << self.kernel.width(operand)) - 1)
        self.registers[operand] = np.where(lanes, np.asarray(values).astype(np.uint64) & mask, self.value(operand))

    def multiply(self, dtype: str, *groups: list[str]) -> None:
        """The m16n8k16 instruction, whose sums are exact where they are whole numbers."""
        assert self.active.all()
        lane, halves = np.arange(LANES), np.arange(2)
        row, column = lane[:, None] // 4, 2 * (lane[:, None] % 4) + halves
        a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)

        def elements(register: str) -> Any:
            word = self.value(register)
            parts = [word >> np.uint64(16 * half) & np.uint64(0xFFFF) for half in range(2)]
            return np.stack([as_f32(part, dtype) for part in parts], axis=1)

        for i, register in enumerate(groups[1]):
            a[row + 8 * (i % 2), column + 8 * (i // 2)] = elements(register)
        for i, register in enumerate(groups[2]):
            b[column + 8 * i, row] = elements(register)
        products = a.astype(np.float64) @ b.astype(np.float64)
        for i, (register, addend) in enumerate(zip(groups[0], groups[3], strict=True)):
            sums = as_floats(self.value(addend)) + products[row[:, 0] + 8 * (i // 2), column[:, i % 2]]
            self.write(register, sums.astype(np.float32).view(np.uint32), self.active)

    def execute(self, name: list[str], operands: list[str], lanes: Any) -> None:
        what, kind = name[0], name[-1]
        if what == "mma":
            return self.multiply(name[7], *map(split, operands))
        if what in ("ld", "st"):
            return self.move(name, operands, lanes)
        if what == "red":
            return self.reduce(name, operands, lanes)
        bits = int(kind[1:]) if kind[1:].isdigit() else 64
        if what == "mov" and "{" in operands[0]:
            word = self.value(operands[1])
            for half, register in enumerate(split(operands[0])):
                self.write(register, word >> np.uint64(16 * half) & np.uint64(0xFFFF), lanes)
            return None
        if what == "mov" and "{" in operands[1]:
            low, high = map(self.value, split(operands[1]))
            return self.write(operands[0], low | high << np.uint64(16), lanes)
        values = [self.value(x) for x in operands[1:]]
        if what == "shfl":
            return self.shuffle(name[2], operands[0], *values[:2])
        if what == "setp":
            compare: Callable[..., Any] = {"lt": np.less, "ge": np.greater_equal, "eq": np.equal, "gt": np.greater}[
                name[1]
            ]
            mask = np.uint64((1 << bits) - 1)
            holds = compare(values[0] & mask, values[1] & mask)
            return self.write(operands[0], holds & values[2].astype(bool) if name[2] == "and" else holds, lanes)
        return self.write(operands[0], self.computed(name, values, bits), lanes)

    def shuffle(self, how: str, operand: str, values: Any, which: Any) -> None:
        assert self.active.all()
        lanes = np.arange(LANES)
        distance = which.astype(int)
        source = {"idx": distance & 31, "bfly": lanes ^ distance & 31, "up": lanes - distance}[how]
        register, _, predicate = operand.partition("|")
        self.write(register, np.where(source >= 0, values[source], values), self.active)
        if predicate:
            self.write(predicate, source >= 0, self.active)

    def computed(self, name: list[str], values: list[Any], bits: int) -> Any:
        what, x = name[0], values[0]
        if name[:2] == ["mul", "hi"]:
            return x * values[1] >> np.uint64(bits)
        if what == "mapa":
            return (values[1] + np.uint64(1)) * np.uint64(_WINDOW) + x
        if name == ["mul", "rn", "f32"]:
            return (as_floats(x) * as_floats(values[1])).view(np.uint32)
        if name[:2] == ["mul", "wide"] or name[:2] == ["mul", "lo"]:
            return x * values[1]
        if what == "mad":
            return x * values[1] + values[2]
        if what == "fma":
            return fused(*map(as_floats, values)).view(np.uint32)
        if name == ["add", "rn", "f32"]:
            return (as_floats(x) + as_floats(values[1])).view(np.uint32)
        if name == ["sub", "rn", "f32"]:
            return (as_floats(x) - as_floats(values[1])).view(np.uint32)
        if name == ["prmt", "b32"]:
            both, place = int(values[2][0]), x | values[1] << np.uint64(32)
            parts = (place >> np.uint64(8 * (both >> 4 * i & 7)) & np.uint64(0xFF) for i in range(4))
            return sum(part << np.uint64(8 * i) for i, part in enumerate(parts))
        if what == "redux":
            assert self.active.all()
            return np.full(LANES, int(x.sum()) & FULL, np.uint64)
        if what == "vote":
            assert self.active.all()
            return np.full(LANES, sum(1 << lane for lane in range(LANES) if x[lane]), np.uint64)
        if what == "popc":
            return np.array([int(v).bit_count() for v in x], np.uint64)
        if what == "bfind":
            return np.array([(int(v).bit_length() - 1) & FULL for v in x], np.uint64)
        if what == "cvt":
            return self.converted(name, values)
        if what == "selp":
            return np.where(values[2].astype(bool), x, values[1])
        simple: dict[str, Callable[..., Any]] = {
            "mov": lambda x: x,
            "add": lambda x, y: x + y,
            "sub": lambda x, y: x - y,
            "and": lambda x, y: x & y,
            "xor": lambda x, y: x ^ y,
            "shr": lambda x, y: x >> y,
            "shl": lambda x, y: x << y,
            "div": lambda x, y: x // np.maximum(y, 1),
            "min": np.minimum,
            "max": np.maximum,
        }
        return simple[what](*values)

    @staticmethod
    def converted(name: list[str], values: list[Any]) -> Any:
        if name[1][0] == name[2][0] == "u":
            return values[0]
        if name[1] == "f32":
            return as_f32(values[0], name[2]).view(np.uint32)
        if name[2].endswith("x2"):
            high, low = (rounded(as_floats(v), name[2][:-2]) for v in values)
            return low | high << np.uint64(16)
        return rounded(as_floats(values[0]), name[2])

    def bytes_at(self, space: str, address: int, size: int) -> Any:
        if space == "global":
            return self.memory.bytes_at(address, size)
        window, at = divmod(address, _WINDOW)
        assert (window > 0) == (space == "shared::cluster")
        data = self.shared[window - 1 if window else self.rank]
        assert at + size <= len(data), f"{size} bytes at {at} are beyond shared memory"
        return data[at : at + size]

    def move(self, name: list[str], operands: list[str], lanes: Any) -> None:
        what, space = name[0], name[3 if name[1] == "relaxed" else 1]
        address, group = (operands[0], operands[1]) if what == "st" else (operands[1], operands[0])
        registers = split(group) if "{" in group else [group]
        size = int(name[-1][1:]) // 8
        base, _, offset = address.strip("[]").partition("+")
        if space == "param":
            begin = int(self.value(base.strip())[0]) + int(offset or 0)
            assert begin % size == 0, f"{size} bytes at {begin} of the parameters are not aligned"
            number = int.from_bytes(self.job[begin : begin + size], "little")
            return self.write(registers[0], np.full(LANES, number, np.uint64), lanes)
        addresses = self.value(base.strip()) + np.uint64(int(offset or 0))
        found = np.zeros((len(registers), LANES), np.uint64)
        for lane in np.flatnonzero(lanes):
            whole = len(registers) * size
            at = int(addresses[lane])
            data = self.bytes_at(space, at, whole)
            for i, register in enumerate(registers):
                part = data[i * size : (i + 1) * size]
                if what == "st":
                    part[:] = np.frombuffer(struct.pack("<Q", int(self.value(register)[lane]))[:size], np.uint8)
                else:
                    found[i, lane] = int.from_bytes(part.tobytes(), "little")
        if what == "ld":
            for register, values in zip(registers, found, strict=True):
                self.write(register, values, lanes)
        return None

    def reduce(self, name: list[str], operands: list[str], lanes: Any) -> None:
        assert name[2:] == ["max", "u32"]
        addresses, values = self.value(operands[0].strip("[]")), self.value(operands[1])
        for lane in np.flatnonzero(lanes):
            data = self.bytes_at(name[1], int(addresses[lane]), 4).view(np.uint32)
            data[0] = max(data[0], int(values[lane]))


def split(group: str) -> list[str]:
    return [x.strip() for x in group.strip("{} ").split(",")]


class Kernel:
    """A kernel read from PTX."""

    def __init__(self, text: str) -> None:
        body = re.sub(r"//.*", "", text[text.index("{\n") + 2 : text.rindex("}")])
        self.widths: dict[str, int] = {}
        declared_shared = re.search(r"\.shared .* \w+\[(\d+)\]", body)
        self.shared = int(declared_shared[1]) if declared_shared else 0
        declared_cluster = re.search(r"\.reqnctapercluster (\d+)", text)
        self.cluster = int(declared_cluster[1]) if declared_cluster else 1
        self.lines: list[tuple[str, str, list[str]]] = []
        self.labels: dict[str, int] = {}
        for line in filter(None, map(str.strip, body.replace(":\n", ":;\n").split(";"))):
            if declared := re.match(r"\.reg \.(pred|b\d+) (.*)", line, re.DOTALL):
                bits = 1 if declared[1] == "pred" else int(declared[1][1:])
                for name in declared[2].split(","):
                    self.widths[name.strip().partition("<")[0]] = bits
            elif line.endswith(":"):
                self.labels[line[:-1]] = len(self.lines)
                self.lines.append(("", "label", [line[:-1]]))
            elif not line.startswith(".shared"):
                guard = line.split()[0][1:] if line.startswith("@") else ""
                name, _, rest = (line.split(maxsplit=1)[1] if guard else line).partition(" ")
                self.lines.append((guard, name, re.findall(r"\{[^}]*\}|\[[^]]*\]|[^\s,{}\[\]]+", rest)))

    def width(self, register: str) -> int:
        return self.widths.get(register) or self.widths[register.rstrip("0123456789")]

    def launch(self, memory: Memory, job: bytes, ctas: int, threads: int) -> None:
        """Run all clusters, one after another."""
        assert ctas % self.cluster == 0
        for first in range(0, ctas, self.cluster):
            shared = [np.full(self.shared, 0xA5, np.uint8) for _ in range(self.cluster)]
            waiting = [
                [Warp(self, memory, job, shared, first + cta, warp).run() for warp in range(threads // LANES)]
                for cta in range(self.cluster)
            ]
            while any(waiting):
                waiting = [until_the_cluster_waits(warps) for warps in waiting]


def until_the_cluster_waits(warps: list[Iterator[str]]) -> list[Iterator[str]]:
    """Run the warps of a CTA to a barrier of the cluster, or to their ends; returns those that wait."""
    while warps:
        barriers = [next(warp, "end") for warp in warps]
        assert len(set(barriers)) == 1, "warps wait at different barriers"
        if barriers[0] == "end":
            return []
        if barriers[0] != "bar.sync":
            break
    return warps
