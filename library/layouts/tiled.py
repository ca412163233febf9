"""Tiled MMAs: an atom repeated over threads and values, with optional permutations of M, N and K."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmill.library.errors import LayoutError
from gemmill.library.layouts.algebra import (
    as_layout,
    complement,
    composition,
    flattened,
    logical_divide,
    logical_product,
    right_inverse,
    tiled,
    zipped,
)
from gemmill.library.layouts.atoms import MmaAtom, Operand, is_whole
from gemmill.library.layouts.layout import Layout, column_major, join

MODES: Mapping[Operand, tuple[int, int]] = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}
"""The indices in (M, N, K) of the rows and of the columns of each operand."""


@dataclass(frozen=True, order=True)
class Owner:
    """The thread and value that hold an element."""

    thread: int
    value: int


@dataclass(frozen=True)
class TiledMma:
    """``make_tiled_mma(atom, layout of atoms, tile)``.

    Raises:
        LayoutError: the layout of atoms does not have three modes, or a tile is not a multiple of the atoms' extent.
    """

    atom: MmaAtom
    atoms: Layout
    """The layout of copies of the atom along M, N and K."""
    tile: tuple[int | Layout | None, int | Layout | None, int | Layout | None]
    """For each of M, N and K an extent or a permutation; None for the extent of the atoms."""

    def __post_init__(self) -> None:
        if self.atoms.rank != 3:
            raise LayoutError(f"atoms is {self.atoms} with {self.atoms.rank} modes; it must have three: (M,N,K)")
        for number, tiler in enumerate(self.tile):
            size = self.core[number] if tiler is None else as_layout(tiler).size
            if size % self.core[number]:
                raise LayoutError(
                    f"the tile's {'MNK'[number]} is {size}; it must be a multiple of {self.core[number]}, the extent "
                    "of its atoms"
                )

    def __str__(self) -> str:
        tile = ",".join("_" if mode is None else str(mode) for mode in self.tile)
        return f"make_tiled_mma({self.atom}, {self.atoms}, ({tile}))"

    @property
    def core(self) -> tuple[int, ...]:
        """M, N and K of the atoms side by side, without repetition."""
        return tuple(extent * mode.size for extent, mode in zip(self.atom.shape_mnk, self.atoms.modes, strict=True))

    @property
    def shape_mnk(self) -> tuple[int, ...]:
        """M, N and K of the tiled MMA."""
        return tuple(
            extent if mode is None else as_layout(mode).size for extent, mode in zip(self.core, self.tile, strict=True)
        )

    @cached_property
    def threads(self) -> Layout:
        """(thread of the atom, m, n, k of the atom) -> thread."""
        return tiled(logical_product, self.atom.thread_ids, self.atoms)

    def _permutation(self, mode: int) -> Layout:
        tiler = self.tile[mode]
        return Layout(self.core[mode], 1) if tiler is None else as_layout(tiler)

    def fragments(self, operand: Operand) -> Layout:
        """((thread of the atom, (row, column of the atom)), (value of the atom, (remaining rows, columns))) ->
        coordinate, which is row + column * rows."""
        rows, columns = MODES[operand]
        whole = column_major((self.shape_mnk[rows], self.shape_mnk[columns]))
        permuted = logical_divide(whole, (self._permutation(rows), self._permutation(columns)))
        in_atom = (self.atom.shape_mnk[rows], self.atom.shape_mnk[columns])
        by_atom = zipped(logical_divide, permuted, in_atom)
        fragment = composition(by_atom[0], {"A": self.atom.a, "B": self.atom.b, "C": self.atom.c}[operand])
        atoms = zipped(logical_divide, by_atom[1], (self.atoms[rows].size, self.atoms[columns].size))
        return join([join([fragment[0], atoms[0]]), join([fragment[1], atoms[1]])])

    def thread_values(self, operand: Operand) -> Layout:
        """(thread, value) -> coordinate, as ``get_layoutC_TV`` etc. return it.

        If the threads of an atom leave gaps, the threads in between map to the elements of the first one.
        """
        rows, columns = MODES[operand]
        fragments = self.fragments(operand)
        of_atoms = {rows: fragments[0][1][0], columns: fragments[0][1][1]}
        by_atom = join([fragments[0][0], *(of_atoms.get(mode, Layout(self.atoms[mode].size, 0)) for mode in range(3))])
        numbered = flattened(right_inverse(join([self.threads, complement(self.threads)])))
        steps = tuple(stride if stride < self.threads.size else 0 for _, stride in numbered.leaves)
        of_thread = Layout(numbered.shape, steps if isinstance(numbered.shape, tuple) else steps[0])
        return join([composition(by_atom, of_thread), fragments[1]])

    def owners(self, operand: Operand) -> dict[int, list[Owner]]:
        """The owners of the element at each coordinate (row + column * rows), lowest thread first. For an operand in
        shared memory, which all threads access, thread 0 of each atom.

        Raises:
            LayoutError: there are too many elements.
        """
        rows, columns = MODES[operand]
        (other,) = {0, 1, 2} - {rows, columns}
        fragments = self.fragments(operand)
        values = [*map(fragments[1], range(fragments[1].size))]
        of_atom, atoms = fragments[0].modes
        extents = (1 if is_whole(of_atom) else of_atom.size, atoms[0].size, atoms[1].size, self.atoms[other].size)
        Layout((*extents, len(values)), (0,) * 5).refuse_many(f"(thread, value) of operand {operand}")
        owners_at: dict[int, list[Owner]] = {}
        for thread, row, column, along in itertools.product(*map(range, extents)):
            place = {rows: row, columns: column, other: along}
            owner = self.threads((thread, place[0], place[1], place[2]))
            start = fragments[0]((thread, (row, column)))
            for value, offset in enumerate(values):
                owners_at.setdefault(start + offset, []).append(Owner(owner, value))
        return {coordinate: sorted(owners) for coordinate, owners in owners_at.items()}
