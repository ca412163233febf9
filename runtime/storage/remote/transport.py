"""HTTP/1.1 over persistent connections that never wait beyond a deadline, whatever the server does.

Python's own client applies its timeout to each piece of an answer, so a server that sends a byte now and then can keep
it waiting forever. Here, all pieces share one deadline.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from gemmill.library.errors import SettingError
from gemmill.runtime.storage.remote.misses import Miss

CONNECT_SECONDS = 1.0
"""Most seconds for looking up a name and opening a connection together."""
_MOST_KEPT = 8
"""Most idle connections that are kept."""


class Connections:
    """Connections of one process to one remote. Threads may share it; each uses its own connection during a request.

    Args:
        address: the remote.
        certificate: PEM file with the client certificate and its private key.
    """

    def __init__(self, address: Address, certificate: Path | None = None) -> None:
        self._address, self._certificate = address, certificate
        self._tls: ssl.SSLContext | None = None
        self._kept: list[_Connection] = []
        weakref.finalize(self, _close, self._kept)

    @contextmanager
    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | BinaryIO | None, deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its answer. A body that is a file needs a Content-Length among the headers.

        Raises:
            Miss: no answer came, or it is not HTTP.
        """
        with _misses(self._address):
            try:
                connection = self._kept.pop()
            except IndexError:
                connection = _Connection(self._address, self._context())
            try:
                connection.deadline = deadline
                connection.request(method, f"{self._address.path}{path}", body, dict(headers))
                response = connection.getresponse()
                try:
                    yield response
                    is_read = response.isclosed()
                finally:
                    response.close()
            except BaseException:
                connection.close()
                raise
            if is_read and connection.sock is not None and len(self._kept) < _MOST_KEPT:
                self._kept.append(connection)
            else:  # not read completely: the rest must not be taken for the next answer
                connection.close()

    def _context(self) -> ssl.SSLContext | None:
        if self._address.scheme == "https" and self._tls is None:
            tls = ssl.create_default_context()
            if self._certificate is not None:
                try:
                    tls.load_cert_chain(self._certificate)
                except OSError as error:  # no such file, or no certificate and key in it
                    why = error.strerror or error
                    raise Miss("tls", f"the client certificate in {self._certificate} cannot be used: {why}") from error
            self._tls = tls
        return self._tls


@contextmanager
def _misses(address: Address) -> Iterator[None]:
    """Turn errors into misses."""
    try:
        yield
    except TimeoutError as error:
        raise Miss("timeout", f"{address} did not answer in time ({error})") from error
    except ssl.SSLCertVerificationError as error:
        says = f"{error.verify_message}; set SSL_CERT_FILE to a file of trusted authorities"
        raise Miss("tls", f"the certificate of {address} is not trusted: {says}") from error
    except ssl.SSLError as error:
        plain = "; the server may use http, without TLS" if error.reason == "WRONG_VERSION_NUMBER" else ""
        raise Miss("tls", f"{address}: {error.strerror or error}{plain}") from error
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError) as error:
        if isinstance(error, ConnectionRefusedError):
            raise Miss("unreachable", f"{address} refuses connections") from error
        if isinstance(error, http.client.RemoteDisconnected):
            secure = "; the server may use https" if address.scheme == "http" else ""
            raise Miss("closed", f"{address} closed the connection before it answered{secure}") from error
        raise Miss("closed", f"{address} closed the connection during an answer") from error
    except (http.client.HTTPException, ValueError) as error:
        raise Miss("garbage", f"{address} does not answer with HTTP: {error!r:.200}") from error
    except OSError as error:
        raise Miss("unreachable", f"{address}: {error.strerror or error}") from error


class _Connection(http.client.HTTPConnection):
    """One connection; each request sets its deadline."""

    deadline: Deadline

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        super().__init__(address.host, address.port)
        self._tls = tls
        self.default_port = 443 if tls else 80  # the Host header omits it

    def connect(self) -> None:
        """Open the connection within :data:`CONNECT_SECONDS`, not counting TLS."""
        opening = Deadline(self.deadline.left(CONNECT_SECONDS))
        plain = _opened(self.host, self.port, opening)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(self.deadline.left())
            secure = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls else plain
        except BaseException:
            plain.close()
            raise
        self.sock = _Socket(secure, self)


class _Socket:
    """The part of a socket that :mod:`http.client` uses, bound to the deadline of its connection."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock, self._connection = sock, connection

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._connection.deadline.left())
        self._sock.sendall(data)  # the timeout covers all of it

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._sock, self._connection))

    def close(self) -> None:
        self._sock.close()


class _Incoming(io.RawIOBase):
    """Incoming bytes of a socket."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock, self._connection = sock, connection
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open while an answer is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._connection.deadline.left())
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _close(connections: list[_Connection]) -> None:
    for connection in connections:
        connection.close()


def _opened(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Return a connection to the first address of a host that accepts one."""
    places = _places(host, port, deadline)
    error: OSError | None = None
    for tried, (family, kind, protocol, _, place) in enumerate(places):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(
                deadline.left() / (len(places) - tried)
            )  # an address that does not answer leaves time for the next
            sock.connect(place)
        except OSError as failure:
            error = failure
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error or OSError(f"{host} has no address")


def _places(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Return the addresses of a host. The system's lookup has no time limit, so it runs in a thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # it is a name
        pass
    results: list[Any] = []

    def look_up() -> None:
        try:
            results.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            results.append(error)

    thread = threading.Thread(target=look_up, name="gemmill-lookup", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not results:
        raise TimeoutError(f"looking up {host} took too long")
    if isinstance(results[0], Exception):
        raise OSError(f"{host} cannot be looked up: {results[0]}")
    return list(results[0])


_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a remote, from :meth:`of`."""

    scheme: str
    """``http`` or ``https``."""
    host: str
    port: int
    path: str
    """Path before ``/v1/`` in every request; empty, or starts with a slash."""

    @classmethod
    def of(cls, text: str, name: str = "remote") -> Address:
        """Parse the URL of a remote.

        Args:
            text: such as ``https://kernels.example`` or ``http://10.0.0.7:8080/gemmill``.
            name: name of the setting in errors.

        Raises:
            SettingError: the URL is invalid.
        """
        setting = f"{name}={text!r:.200}"
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise SettingError(f"{setting}: {error}; expected https://HOST[:PORT]") from None
        if parts.username is not None or parts.password is not None:
            # The message does not repeat it: it may be a password.
            raise SettingError(f"{name} must not contain a user or a password: use a token in GEMMILL_REMOTE_TOKEN")
        is_plain = text.isascii() and text.isprintable() and " " not in text
        if parts.scheme not in _PORTS or not host or not is_plain or parts.query or parts.fragment or port == 0:
            raise SettingError(f"{setting}: expected an https or http URL such as https://HOST[:PORT], without ? and #")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port, as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


class Deadline:
    """A point in time by which something must end.

    Args:
        seconds: time from now.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float | None = None) -> float:
        """Return the seconds left, above 0 and at most ``most``; TimeoutError where none are left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left if most is None else min(left, most)
