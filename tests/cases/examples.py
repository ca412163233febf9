"""How many examples a property gets whose examples take long: few in ``make test``, all in ``make test-heavy``."""

from __future__ import annotations

from hypothesis import settings


def examples(brief: int, full: int = 100) -> settings:
    """Decorates such a property; the others have 25 and 100 (``tests/conftest.py``)."""
    return settings(max_examples=brief if settings.get_current_profile_name() == "brief" else full)
