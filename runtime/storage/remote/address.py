"""The address of a remote: what its URL says, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from gemmill.library.errors import SettingError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a remote is.

    Made by :meth:`of`.
    """

    scheme: str
    """``http`` or ``https``."""
    host: str
    port: int
    path: str
    """What comes before ``/v1/`` in every request; empty or begins with a slash."""

    @classmethod
    def of(cls, text: str, name: str = "remote") -> Address:
        """The address that a URL says.

        Args:
            text: such as ``https://kernels.example`` or ``http://10.0.0.7:8080/gemmill``.
            name: what errors call it.

        Raises:
            SettingError: it is no URL of this kind.
        """
        said = f"{name}={text!r:.200}"
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise SettingError(f"{said}: {error}; write https://HOST[:PORT]") from None
        if parts.username is not None or parts.password is not None:
            # Not repeated: it may be a password.
            raise SettingError(f"{name} names a user or a password; GEMMILL_REMOTE_TOKEN takes a token")
        is_plain = text.isascii() and text.isprintable() and " " not in text
        if parts.scheme not in _PORTS or not host or not is_plain or parts.query or parts.fragment or port == 0:
            raise SettingError(f"{said}: not a URL such as https://HOST[:PORT], of https or http, without ? and #")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port, as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"
