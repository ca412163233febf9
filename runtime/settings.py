"""The one module that reads environment variables: a value that means nothing raises, a name that does warns."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from gemmill.library.errors import SettingError, SettingWarning
from gemmill.library.wording import suggest

RemoteMode = Literal["read", "readwrite", "only"]
"""``readwrite`` uploads what is compiled here; in ``only``, nothing is compiled here."""
_PREFIX = "GEMMILL_"
_OF_A_SERVICE = re.compile(
    r"GEMMILL_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes tells every container of a service called gemmill, or gemmill-..., of the same name space."""
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,4096}=*")
"""What can stand in a header as a token (RFC 6750)."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _path(name: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise SettingError(f"{name}={value!r}: not an absolute path")
    return path


def _paths(name: str, value: str) -> tuple[Path, ...]:
    return tuple(_path(name, path) for path in value.split(os.pathsep))


def _url(name: str, value: str) -> str:
    from gemmill.runtime.storage.remote.transport import Address  # most processes have no remote

    return str(Address.of(value, name))


def _mode(name: str, value: str) -> RemoteMode:
    for mode in get_args(RemoteMode):
        if value == mode:
            return mode  # type: ignore[no-any-return]
    raise SettingError(f"{name}={value!r}: not one of {', '.join(get_args(RemoteMode))}")


def _seconds(name: str, value: str) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", value) or not 0.1 <= float(value) <= 600:
        raise SettingError(f"{name}={value!r}: not a number of seconds from 0.1 to 600")
    return float(value)


def _token(name: str, value: str) -> str | Path:
    if value.startswith("@"):
        return _path(f"{name}=@", value[1:])
    if not TOKEN.fullmatch(value):
        raise SettingError(f"{name} is no token of letters, digits and -._~+/, nor @ and the path of a file with one")
    return value


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise SettingError(f"{name}={value!r}: neither 0 nor 1")
    return value == "1"


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", value):
        raise SettingError(f"{name}={value!r}: not a whole number from 1 to 9999")
    return int(value)


def number_of_bytes(name: str, value: str) -> int:
    """What ``500M`` or ``10G`` means, in powers of 1,024; SettingError names what has another value."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)", value)
    if not match:
        raise SettingError(f"{name}={value!r}: not a number of bytes such as 500M or 10G")
    return int(match[1]) * _UNITS[match[2]]


def _text(_: str, value: str) -> str:
    return value


def _row(variable: str, read: Callable[[str, str], Any]) -> dict[str, Any]:
    """Of a field of :class:`Settings`: its variable, and what makes a value of the variable's name and text."""
    return {"variable": variable, "read": read}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment sets; None where it sets nothing."""

    store: Path | None = field(default=None, metadata=_row("GEMMILL_STORE", _path))
    """``GEMMILL_STORE``: directory of the store."""
    store_bytes: int | None = field(default=None, metadata=_row("GEMMILL_STORE_BYTES", number_of_bytes))
    """``GEMMILL_STORE_BYTES``: size cap of the store in bytes; suffixes K, M, G and T are powers of 1,024."""
    jobs: int | None = field(default=None, metadata=_row("GEMMILL_JOBS", _count))
    """``GEMMILL_JOBS``: processes that compile at the same time."""
    include: tuple[Path, ...] | None = field(default=None, metadata=_row("GEMMILL_INCLUDE", _paths))
    """``GEMMILL_INCLUDE``: header directories, separated by ``:``, instead of the CUTLASS, CCCL and CUDA runtime
    headers that would be found. The store tells headers apart by what they hold."""
    debug: bool = field(default=False, metadata=_row("GEMMILL_DEBUG", _switch))
    """``GEMMILL_DEBUG``: ``1`` shows the traceback of an error on the command line."""
    model: Path | None = field(default=None, metadata=_row("GEMMILL_MODEL", _path))
    """``GEMMILL_MODEL``: folder of a model that `gemmill train` made, instead of the one that ships."""
    warm_calls: bool = field(default=True, metadata=_row("GEMMILL_WARM_CALLS", _switch))
    """``GEMMILL_WARM_CALLS``: ``0`` has each call read and checked in full, also one like a call before it."""
    trusted_keys: str | None = field(default=None, metadata=_row("GEMMILL_TRUSTED_KEYS", _text))
    """``GEMMILL_TRUSTED_KEYS``: public keys, or files of such, separated by commas, as
    :meth:`gemmill.runtime.storage.trust.signatures.TrustedKeys.read` takes them: what they did not sign is refused."""
    remote: str | None = field(default=None, metadata=_row("GEMMILL_REMOTE", _url))
    """``GEMMILL_REMOTE``: URL of who has kernels compiled already, asked before one is compiled here."""
    remote_mode: RemoteMode = field(default="read", metadata=_row("GEMMILL_REMOTE_MODE", _mode))
    """``GEMMILL_REMOTE_MODE``: ``read``, ``readwrite`` or ``only``."""
    remote_deadline: float | None = field(default=None, metadata=_row("GEMMILL_REMOTE_DEADLINE", _seconds))
    """``GEMMILL_REMOTE_DEADLINE``: seconds that the remote may cost one kernel, from 0.1 to 600."""
    remote_token: str | Path | None = field(default=None, repr=False, metadata=_row("GEMMILL_REMOTE_TOKEN", _token))
    """``GEMMILL_REMOTE_TOKEN``: what the remote knows this client by; after an ``@``, the file that holds it."""
    remote_certificate: Path | None = field(default=None, metadata=_row("GEMMILL_REMOTE_CERT", _path))
    """``GEMMILL_REMOTE_CERT``: a file in PEM with the certificate that this client shows the remote, and its key."""
    remote_sign: Path | None = field(default=None, metadata=_row("GEMMILL_REMOTE_SIGN", _path))
    """``GEMMILL_REMOTE_SIGN``: the private key (`gemmill key new`) that signs what is uploaded."""

    def url_of(self, url: str | None) -> str | None:
        """The URL of a remote, or that of the environment; None where neither names one.

        Raises:
            SettingError: neither does, and nothing is to be compiled here.
        """
        if (named := url or self.remote) is None and self.remote_mode == "only":
            raise SettingError(
                "GEMMILL_REMOTE_MODE=only has nothing compiled here, and GEMMILL_REMOTE names no remote that serves "
                "kernels: set it to a URL, or unset the mode"
            )
        return named

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment.

        Raises:
            SettingError: a variable has a value that does not parse.

        Warns:
            SettingWarning: one starts with ``GEMMILL_`` and is no setting; once for each.
        """
        for name in environ:
            if name.startswith(_PREFIX) and name not in _FIELDS and not _OF_A_SERVICE.fullmatch(name):
                _warn_of(name)
        values = {x.name: x.metadata["read"](name, environ[name]) for name, x in _FIELDS.items() if name in environ}
        return cls(**values)


_FIELDS = {x.metadata["variable"]: x for x in fields(Settings)}
"""By variable."""


@cache
def _warn_of(name: str) -> None:
    near = suggest(name.removeprefix(_PREFIX), [x.removeprefix(_PREFIX) for x in _FIELDS], _PREFIX)
    meant = near or f"; there are {', '.join(_FIELDS)}"
    try:
        warnings.warn(f"{name} is no setting of gemmill{meant}", SettingWarning, stacklevel=4)
    except SettingWarning as warning:  # warnings are errors here; what is no setting stops nothing all the same
        sys.stderr.write(f"warning: {warning}\n")
