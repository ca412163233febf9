"""Measurements that a selector is given and cannot use: said, with counts, since nothing else tells of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gemmill.library.arch import Gpu
from gemmill.library.config.names import formats, parse_name
from gemmill.library.errors import ConfigError
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures


def usable(decisions: Sequence[Decision], gpu: Gpu) -> list[Decision]:
    """The measurements of a GPU and of kernels that this version of gemmill knows; a word in the log on others."""
    here = [decision for decision in decisions if figures(decision.gpu).name == gpu.name]
    others = dict.fromkeys(decision.gpu for decision in decisions if figures(decision.gpu).name != gpu.name)
    _tell(len(decisions) - len(here), len(decisions), f"were taken on other GPUs than {gpu.name}", [*others])
    known = {name: _is_known(name) for name in dict.fromkeys(decision.kernel for decision in here)}
    found = [decision for decision in here if known[decision.kernel]]
    unknown = [name for name, is_known in known.items() if not is_known]
    _tell(len(here) - len(found), len(decisions), "are of kernels unknown to this version of gemmill", unknown)
    return found


def tell_of_absent(decisions: Sequence[Decision], kernels: Collection[str], types: Collection[str]) -> None:
    """A word in the log on those measurements of kernels for some types of A and B whose kernels are not at hand.

    Args:
        decisions: those that are :func:`usable`.
        kernels: names of the kernels that there are for these types.
        types: names of the types.
    """
    asked = [decision for decision in decisions if {*formats(decision.kernel)[1:]} <= {*types}]
    absent = [decision.kernel for decision in asked if decision.kernel not in kernels]
    _tell(len(absent), len(decisions), "are of kernels that are not among those to choose from", absent)


def _is_known(name: str) -> bool:
    try:
        parse_name(name)
    except ConfigError:
        return False
    return True


def _tell(count: int, total: int, what: str, names: Sequence[str]) -> None:
    if count:
        import logging  # a program that has nothing to tell starts faster

        logging.getLogger(__name__).warning(
            "%d of %d measurements are not used: they %s, such as %r", count, total, what, names[0]
        )
