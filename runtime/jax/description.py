"""What a call asks for, less its arrays: a static argument where JAX traces, and the attribute that its handler reads.

As the text outlives the process, in exported programs and in JAX's compilation cache, it says everything: a handler in
another process needs nothing else.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue

Setting = str | float | int | bool | None


class Description(NamedTuple):
    """A call of ``matmul`` or ``grouped_matmul``."""

    operands: tuple[str, ...]
    """Names of its arrays, in their order: A, B, then others as :func:`gemmill.matmul` and the epilogue call them.
    ``out`` is memory that D is written to, and nothing else."""
    turned: tuple[str, ...] = ()
    """Those of A and B whose last extent but one is contiguous, not the last."""
    settings: tuple[tuple[str, Setting], ...] = ()
    """Keywords that are no arrays, by name, where they differ from the defaults."""
    numbers: tuple[tuple[str, float], ...] = ()
    """Operands of the epilogue that are numbers."""
    into_c: bool = False
    """Whether D is written to where C is."""
    scratch: tuple[int, int] = (0, 0)
    """Bytes for partial sums and for flags that XLA allocates, as one more result."""

    @property
    def keywords(self) -> dict[str, Any]:
        """The settings."""
        return dict(self.settings)

    @property
    def epilogue(self) -> Epilogue:
        """What its expression says, or that of a call without one."""
        text = self.keywords.get("epilogue")
        return PLAIN if text is None else read_epilogue(str(text))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of what it makes: D, then what its expression writes beside it."""
        return ("out", *(x.name for x in self.epilogue.outputs))

    @property
    def groups(self) -> str:
        """What finds its matrices: ``offsets``, ``counts``, or nothing but strides."""
        return next((name for name in ("offsets", "counts") if name in self.operands), "")

    def but(self, **settings: Setting) -> Description:
        """With other settings; None takes one away."""
        changed = {name: x for name, x in {**self.keywords, **settings}.items() if x is not None}
        return self._replace(settings=tuple(sorted(changed.items())))

    def without(self, name: str) -> Description:
        """With one operand less."""
        return self._replace(operands=tuple(x for x in self.operands if x != name))


def written(description: Description) -> str:
    """The text of a description: the same for equal ones."""
    fields = {name: x for name, x in description._asdict().items() if x and x != (0, 0)}
    return json.dumps(fields, separators=(",", ":"), sort_keys=True)


@lru_cache(4096)
def read(text: bytes) -> Description:
    """A description by its text; OperandError where it is none, or a later version's."""
    try:
        fields = json.loads(text)
        return Description(
            operands=tuple(fields.pop("operands")),
            turned=tuple(fields.pop("turned", ())),
            settings=tuple((name, x) for name, x in fields.pop("settings", ())),
            numbers=tuple((name, float(x)) for name, x in fields.pop("numbers", ())),
            scratch=_pair(*fields.pop("scratch", (0, 0))),
            **fields,
        )
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        said = text.decode(errors="replace")
        raise OperandError(f"the call is described as {said:.200}, which this version does not read: {error}") from None


def _pair(first: int, second: int) -> tuple[int, int]:
    return first, second
