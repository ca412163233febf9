"""Exceptions and warnings a user can meet. Each message names the thing, the value, the rule and the way out."""

from __future__ import annotations


class GemmillError(Exception):
    """Base of every error that gemmill raises on purpose."""


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


class ToolchainError(GemmillError):
    """NVRTC or headers are missing, or their versions clash."""


class CompileError(GemmillError):
    """A kernel did not compile, spilled, serialised its WGMMAs, or disagrees with its LaunchSpec."""


class StoreError(GemmillError):
    """The store cannot do what was asked of it."""


class PackError(GemmillError):
    """A pack is missing, damaged, or does not hold what was asked for."""


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


class SettingError(GemmillError):
    """An environment variable has a value that means nothing."""


class SettingWarning(UserWarning):
    """An environment variable is called ``GEMMILL_`` something that is no setting."""


class RenamedWarning(FutureWarning):
    """Something is called by a former name, which is still read. The message says the present one."""
