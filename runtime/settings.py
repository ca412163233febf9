"""Reads environment variables; no other module does. An invalid value raises SettingError, an unknown name warns."""

from __future__ import annotations

import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from gemmill.library.errors import PackError, SettingError, SettingWarning
from gemmill.library.wording import suggest

RemoteMode = Literal["read", "readwrite", "only"]
"""``readwrite`` also uploads the kernels that this process compiles; ``only`` compiles nothing in this process."""
_PREFIX = "GEMMILL_"
_OF_A_SERVICE = re.compile(
    r"GEMMILL_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in every container of a namespace with a service named gemmill or gemmill-..."""
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,4096}=*")
"""Characters of a bearer token in an HTTP header (RFC 6750)."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _path(name: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise SettingError(f"{name}={value!r}: expected an absolute path")
    return path


def _paths(name: str, value: str) -> tuple[Path, ...]:
    return tuple(_path(name, path) for path in value.split(os.pathsep))


def _url(name: str, value: str) -> str:
    from gemmill.runtime.storage.remote.transport import Address  # deferred: most processes use no remote

    return str(Address.of(value, name))


def _mode(name: str, value: str) -> RemoteMode:
    for mode in get_args(RemoteMode):
        if value == mode:
            return mode  # type: ignore[no-any-return]
    raise SettingError(f"{name}={value!r}: expected one of {', '.join(get_args(RemoteMode))}")


def _seconds(name: str, value: str) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", value) or not 0.1 <= float(value) <= 600:
        raise SettingError(f"{name}={value!r}: expected a number of seconds from 0.1 to 600")
    return float(value)


def _token(name: str, value: str) -> str | Path:
    if value.startswith("@"):
        return _path(f"{name}=@", value[1:])
    if not TOKEN.fullmatch(value):
        raise SettingError(
            f"{name} is not a valid token: expected letters, digits and -._~+/, or @ and the path of a file with a "
            "token"
        )
    return value


def checked_oci_token(name: str, value: str) -> str:
    """Return the secret in ``GEMMILL_OCI_TOKEN``, or in its file; SettingError, which does not repeat it, where it is
    invalid."""
    if not (re.fullmatch(r"[\x21-\x39\x3b-\x7e]{1,255}:[\x20-\x7e]{1,4096}", value) or TOKEN.fullmatch(value)):
        raise SettingError(
            f"{name} is neither USER:PASSWORD nor a token of letters, digits and -._~+/, nor @ and the path of a file "
            "with one of these"
        )
    return value


class OciToken(NamedTuple):
    """A secret for one registry."""

    host: str
    """The registry, in lower case, with its port unless it is the default one."""
    secret: str | Path
    """``USER:PASSWORD`` or a bearer token, or the file that has it."""


_HOST = re.compile(r"([\w.-]+|\[[0-9a-f:]+\])(:\d{1,5})?", re.ASCII)


def _oci_token(name: str, value: str) -> OciToken:
    host, _, secret = value.partition("=")
    if not secret or not _HOST.fullmatch(host.lower()):
        raise SettingError(
            f"{name} lacks its registry or the secret: expected HOST=USER:PASSWORD, HOST=TOKEN or HOST=@FILE; HOST is "
            "such as registry.example or localhost:5000"
        )
    read = _path(f"{name}={host}=@", secret[1:]) if secret.startswith("@") else checked_oci_token(name, secret)
    return OciToken(host.lower(), read)


def _hosts(name: str, value: str) -> tuple[str, ...]:
    hosts = tuple(value.lower().split(","))
    if not all(map(_HOST.fullmatch, hosts)):
        raise SettingError(f"{name}={value!r}: expected HOST or HOST:PORT, separated by commas")
    return hosts


def _packs(name: str, value: str) -> tuple[str, ...]:
    return tuple(pack if _is_reference(name, pack) else str(_path(name, pack)) for pack in value.split(","))


def _is_reference(name: str, value: str) -> bool:
    from gemmill.runtime.storage.oci.scheme import is_reference

    if is_reference(value):
        from gemmill.runtime.storage.oci.reference import Reference  # deferred: most processes use none

        try:
            Reference.of(value)
        except PackError as error:
            raise SettingError(f"{name}: {error}") from None
    return is_reference(value)


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise SettingError(f"{name}={value!r}: expected 0 or 1")
    return value == "1"


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", value):
        raise SettingError(f"{name}={value!r}: expected a whole number from 1 to 9999")
    return int(value)


def number_of_bytes(name: str, value: str) -> int:
    """Parse a size such as ``500M`` or ``10G`` into bytes; the suffixes are powers of 1,024. SettingError names an
    invalid value."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)", value)
    if not match:
        raise SettingError(f"{name}={value!r}: expected a number of bytes such as 500M or 10G")
    return int(match[1]) * _UNITS[match[2]]


def _text(_: str, value: str) -> str:
    return value


def _row(variable: str, read: Callable[[str, str], Any]) -> dict[str, Any]:
    """Return the metadata of a field of :class:`Settings`: its variable, and a parser that takes the name and the text
    of it."""
    return {"variable": variable, "read": read}


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the environment variables; None where one is not set."""

    store: Path | None = field(default=None, metadata=_row("GEMMILL_STORE", _path))
    """``GEMMILL_STORE``: folder of compiled kernels (the store), an absolute path. Default: in the user's cache
    folder."""
    store_bytes: int | None = field(default=None, metadata=_row("GEMMILL_STORE_BYTES", number_of_bytes))
    """``GEMMILL_STORE_BYTES``: size limit of the store, such as ``500M`` or ``10G`` (powers of 1,024). Default: 4
    GiB."""
    jobs: int | None = field(default=None, metadata=_row("GEMMILL_JOBS", _count))
    """``GEMMILL_JOBS``: number of processes that compile at the same time. Default: one per core, as memory and cgroups
    allow."""
    include: tuple[Path, ...] | None = field(default=None, metadata=_row("GEMMILL_INCLUDE", _paths))
    """``GEMMILL_INCLUDE``: header folders, separated by ``:``, that replace the CUTLASS, CCCL and CUDA runtime headers
    of the installed packages. Kernels compiled with different headers have different keys in the store."""
    debug: bool = field(default=False, metadata=_row("GEMMILL_DEBUG", _switch))
    """``GEMMILL_DEBUG``: ``1`` prints tracebacks of errors on the command line."""
    model: Path | None = field(default=None, metadata=_row("GEMMILL_MODEL", _path))
    """``GEMMILL_MODEL``: folder of a model from `gemmill train`, which replaces the shipped one."""
    warm_calls: bool = field(default=True, metadata=_row("GEMMILL_WARM_CALLS", _switch))
    """``GEMMILL_WARM_CALLS``: ``0`` turns the fast path off: gemmill reads and checks every call in full."""
    trusted_keys: str | None = field(default=None, metadata=_row("GEMMILL_TRUSTED_KEYS", _text))
    """``GEMMILL_TRUSTED_KEYS``: public keys or files of them, separated by commas; see
    :meth:`gemmill.runtime.storage.trust.signatures.TrustedKeys.read`. gemmill refuses packs and remote kernels without
    a signature by one of these keys."""
    remote: str | None = field(default=None, metadata=_row("GEMMILL_REMOTE", _url))
    """``GEMMILL_REMOTE``: URL of a server or bucket of compiled kernels. gemmill looks there before it compiles a
    kernel."""
    remote_mode: RemoteMode = field(default="read", metadata=_row("GEMMILL_REMOTE_MODE", _mode))
    """``GEMMILL_REMOTE_MODE``: ``read``; ``readwrite``, which also uploads; or ``only``, which compiles nothing
    locally."""
    remote_deadline: float | None = field(default=None, metadata=_row("GEMMILL_REMOTE_DEADLINE", _seconds))
    """``GEMMILL_REMOTE_DEADLINE``: most seconds that gemmill waits for the remote per kernel, from 0.1 to 600. Default:
    10."""
    remote_token: str | Path | None = field(default=None, repr=False, metadata=_row("GEMMILL_REMOTE_TOKEN", _token))
    """``GEMMILL_REMOTE_TOKEN``: token that authenticates this client to the remote, or ``@`` and the path of a file
    with it."""
    remote_certificate: Path | None = field(default=None, metadata=_row("GEMMILL_REMOTE_CERT", _path))
    """``GEMMILL_REMOTE_CERT``: PEM file with a client certificate for the remote and its private key."""
    remote_sign: Path | None = field(default=None, metadata=_row("GEMMILL_REMOTE_SIGN", _path))
    """``GEMMILL_REMOTE_SIGN``: file of the private key (`gemmill key new`) that signs uploads."""

    packs: tuple[str, ...] | None = field(default=None, metadata=_row("GEMMILL_PACKS", _packs))
    """``GEMMILL_PACKS``: packs, separated by commas, that a registry uses where neither packs nor manifests are named:
    absolute paths, or references such as ``oci://HOST/NAME:TAG`` to packs in OCI registries."""
    oci_token: OciToken | None = field(default=None, repr=False, metadata=_row("GEMMILL_OCI_TOKEN", _oci_token))
    """``GEMMILL_OCI_TOKEN``: ``HOST=`` and ``USER:PASSWORD`` or a bearer token for this OCI registry, or ``@`` and the
    path of a file with it. Other registries: what `docker login` stored."""
    oci_http: tuple[str, ...] | None = field(default=None, metadata=_row("GEMMILL_OCI_HTTP", _hosts))
    """``GEMMILL_OCI_HTTP``: OCI registries, separated by commas, that are reached over http without TLS, as those on
    this machine are."""

    def url_of(self, url: str | None) -> str | None:
        """Return the URL of a remote: ``url``, or the one in the environment; None where neither is set.

        Raises:
            SettingError: neither is set, and the mode forbids compiling locally.
        """
        if (named := url or self.remote) is None and self.remote_mode == "only":
            raise SettingError(
                "GEMMILL_REMOTE_MODE=only forbids compiling, but GEMMILL_REMOTE is not set: set it to the URL of a "
                "remote with kernels, or unset GEMMILL_REMOTE_MODE"
            )
        return named

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment.

        Raises:
            SettingError: the value of a variable is invalid.

        Warns:
            SettingWarning: a variable starts with ``GEMMILL_`` but is not a setting; once per name.
        """
        for name in environ:
            if name.startswith(_PREFIX) and name not in _FIELDS and not _OF_A_SERVICE.fullmatch(name):
                _warn_of(name)
        values = {x.name: x.metadata["read"](name, environ[name]) for name, x in _FIELDS.items() if name in environ}
        return cls(**values)


_FIELDS = {x.metadata["variable"]: x for x in fields(Settings)}
"""Fields of :class:`Settings` by variable."""


@cache
def _warn_of(name: str) -> None:
    suggestion = suggest(name.removeprefix(_PREFIX), [x.removeprefix(_PREFIX) for x in _FIELDS], _PREFIX)
    hint = suggestion or f"; the settings are {', '.join(_FIELDS)}"
    try:
        warnings.warn(f"{name} is not a gemmill setting{hint}", SettingWarning, stacklevel=4)
    except SettingWarning as warning:  # under -W error, an unknown variable still stops nothing
        sys.stderr.write(f"warning: {warning}\n")


def default_store() -> Path:
    """Return the default folder of the store, in the user's cache directory; where the user has no home, a private one
    in the temporary directory."""
    with suppress(RuntimeError):  # a user id without a passwd entry and without HOME, as in containers
        path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gemmill"
        if path.is_absolute():
            return path
    import tempfile

    # Another user may own a folder of this name; gemmill must not run what they put there.
    user = Path(tempfile.gettempdir()) / f"gemmill-{os.getuid()}"
    for path in (user, *(user.with_name(f"{user.name}-{i}") for i in range(1, 100))):
        with suppress(OSError):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                return path
    return user  # the first write reports that it cannot be created
