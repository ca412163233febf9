"""Cases are legal kernels, each once, with ids and reasons."""

from __future__ import annotations

import pytest
from tests.cases.kernels import KERNELS

from gemmill.library.legality.rules import verdicts


@pytest.mark.parametrize("group", KERNELS)
def test_kernels_are_legal_and_each_is_there_once(group: str) -> None:
    cases = KERNELS[group]
    assert len({case.id for case in cases}) == len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.reason
        assert not verdicts(case.config), case.id
