"""The options of operators that a program calls."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


class OptionTexts(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the options of every call of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), keywords: Any = None) -> Any:
        if function.namespace == "gemmill":
            self.texts.append((keywords or {}).get("options", ""))
        return function(*given, **(keywords or {}))
