"""Exceptions and warnings of gemmill. Each message states the subject, the value, the rule and what to do."""

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
"""Why a signed file is not trusted. Programs compare these words, and counters are named after them."""


class GemmillError(Exception):
    """Base of every error that gemmill raises."""

    @classmethod
    def code(cls) -> str:
        """A stable code for programs, such as ``unsupported_problem`` for UnsupportedProblemError."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()


class InstallationError(GemmillError):
    """The installation of gemmill lacks files, for example in a zip archive or a frozen program."""


class ManifestError(GemmillError):
    """A manifest is invalid. The message has a ``file:line:column: field: ...`` line for each fault."""


class ConfigError(GemmillError):
    """A config breaks a legality rule, or a kernel name does not parse."""


class ProblemError(GemmillError):
    """The description of a problem has a value of a wrong type, range or count."""


class UnsupportedProblemError(GemmillError):
    """No kernel supports a problem. The message names the constraint and the nearest kernel."""


class OperandError(GemmillError):
    """A tensor argument has a wrong device, dtype, shape, stride or alignment."""


class KeywordError(OperandError, ProblemError, TypeError):
    """An unexpected keyword argument of a function, registry or problem. The message suggests the nearest valid
    keyword.

    It is a TypeError, as in Python. It is also an OperandError and a ProblemError, so that handlers of these classes
    catch every error in a call or a problem.
    """


class ToolchainError(GemmillError):
    """NVRTC or CUDA headers are missing, or their versions are incompatible."""


class CompileError(GemmillError):
    """A kernel did not compile, spills registers, has serialised WGMMAs, or does not match its LaunchSpec."""


class StoreError(GemmillError):
    """An operation of the store failed."""


class PackError(GemmillError):
    """A pack is missing or damaged, or does not contain a requested kernel."""


class TrustError(GemmillError):
    """A file from another place has no valid signature of a trusted key, or a key is invalid. ``reason`` is a code."""

    def __init__(self, message: str, reason: TrustReason = "malformed") -> None:
        super().__init__(message)
        self.reason: TrustReason = reason


class LockError(GemmillError):
    """A lock file is invalid, or a kernel differs from its entry in the lock file."""


class RemoteError(GemmillError):
    """A remote or an OCI registry did not provide what cannot come from elsewhere, or refused an upload."""


class DeviceError(GemmillError):
    """A CUDA driver call failed, or there is no suitable GPU."""


class CaptureError(GemmillError):
    """An operation is not possible while a stream is captured into a CUDA graph."""


class RecordError(GemmillError):
    """A file of records or shapes is invalid."""


class ExpressionError(GemmillError):
    """A ``where`` filter or an epilogue is invalid. ``column`` counts from 0 and points into its text."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class LayoutError(GemmillError):
    """A layout is invalid, or the result of an operation is not a layout. ``column`` counts from 0 and points into the
    text of an expression; None if there is no text."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class SettingError(GemmillError):
    """An environment variable has an invalid value."""


class GemmillWarning(UserWarning):
    """Base of every warning of gemmill. Python's warning filters silence them or turn them into errors."""


class SlowPathWarning(GemmillWarning):
    """A call is much slower than a similar call would be. The message states the cost and what to change. Each process
    warns once per kind of reason."""


class SettingWarning(GemmillWarning):
    """The name of an environment variable starts with ``GEMMILL_``, but is not a setting."""


class RenamedWarning(GemmillWarning, FutureWarning):
    """A former name was used. It is still accepted; the message gives the present name."""


class StoreWarning(GemmillWarning):
    """The store cannot be used, so every process compiles its kernels again."""


class RemoteWarning(GemmillWarning):
    """A remote does not provide a kernel, so gemmill compiles it locally; each process warns at the first miss. Or an
    OCI registry was not reached, so an earlier pack of the same tag is used."""
