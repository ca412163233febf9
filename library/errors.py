"""Exceptions and warnings a user can meet. Each message names the thing, the value, the rule and the way out."""

from __future__ import annotations

import re
from typing import Literal

TrustReason = Literal[
    "unsigned",
    "unknown_key",
    "revoked",
    "bad_signature",
    "wrong_kind",
    "malformed",
    "too_large",
    "tampered",
    "expired",
    "replayed",
]
"""Why something is not trusted, in a word that programs compare and counters are named by."""


class GemmillError(Exception):
    """Base of every error that gemmill raises on purpose."""

    @classmethod
    def code(cls) -> str:
        """What programs compare: ``unsupported_problem`` of UnsupportedProblemError."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()


class InstallationError(GemmillError):
    """gemmill is installed, or runs, in a way in which something cannot work: from an archive, in a frozen program."""


class ManifestError(GemmillError):
    """A manifest is wrong. The message holds one ``file:line:column: field: ...`` line for each fault."""


class ConfigError(GemmillError):
    """A config breaks a legality rule, or a kernel name does not parse."""


class ProblemError(GemmillError):
    """What a problem is described with has a wrong type, range or count."""


class UnsupportedProblemError(GemmillError):
    """No kernel serves a problem. The message names the constraint and the nearest kernel."""


class OperandError(GemmillError):
    """A tensor handed to gemmill has a wrong device, dtype, shape, stride or alignment."""


class KeywordError(OperandError, ProblemError, TypeError):
    """A keyword that a function, a registry or a problem does not take; the message names the nearest that it does.

    As Python has it, it is a TypeError; so that whoever catches what else is wrong with a call or a problem catches it
    too, it is an OperandError and a ProblemError as well.
    """


class ToolchainError(GemmillError):
    """NVRTC or headers are missing, or their versions clash."""


class CompileError(GemmillError):
    """A kernel did not compile, spilled, serialised its WGMMAs, or disagrees with its LaunchSpec."""


class StoreError(GemmillError):
    """The store cannot do what was asked of it."""


class PackError(GemmillError):
    """A pack is missing, damaged, or does not hold what was asked for."""


class TrustError(GemmillError):
    """What comes from elsewhere is not what a trusted key signed, or a key is none. ``reason`` says why in a word."""

    def __init__(self, message: str, reason: TrustReason = "malformed") -> None:
        super().__init__(message)
        self.reason: TrustReason = reason


class LockError(GemmillError):
    """A lock file is wrong, or a kernel is not the one that it names."""


class RemoteError(GemmillError):
    """A remote does not serve what only it may serve, or did not take what it was to take."""


class DeviceError(GemmillError):
    """The CUDA driver refused, or no suitable GPU is there."""


class CaptureError(GemmillError):
    """Something that cannot be done while a stream is being captured into a CUDA graph."""


class RecordError(GemmillError):
    """A records or shapes file is wrong."""


class ExpressionError(GemmillError):
    """A ``where`` filter or an epilogue is wrong. ``column`` counts from 0 and points into its text."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class LayoutError(GemmillError):
    """A layout is none, or an operation has no layout for a result. ``column`` counts from 0 and points into the text
    of an expression; None where there is no text."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class SettingError(GemmillError):
    """An environment variable has a value that means nothing."""


class GemmillWarning(UserWarning):
    """Base of every warning that gemmill gives: Python's filters silence them, or make errors of them."""


class SlowPathWarning(GemmillWarning):
    """A call takes a path that is much slower than that of a call like it. The message says what it costs and what to
    change; given once a process for each kind of reason."""


class SettingWarning(GemmillWarning):
    """An environment variable is called ``GEMMILL_`` something that is no setting."""


class RenamedWarning(GemmillWarning, FutureWarning):
    """Something is called by a former name, which is still read. The message says the present one."""


class StoreWarning(GemmillWarning):
    """The store is skipped; kernels are compiled again in every process."""


class RemoteWarning(GemmillWarning):
    """A remote does not serve a kernel, which is compiled here instead; given for the first miss of a process."""
