"""HTTP/1.1 over connections that are kept, none of which waits beyond a deadline, whatever the other side does.

Python's own client waits for each piece of an answer as long as its timeout says, so a side that sends a byte now and
then keeps it for ever. Here each piece is waited for until the deadline of the whole.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmill.runtime.storage.remote.address import Address
from gemmill.runtime.storage.remote.deadline import Deadline
from gemmill.runtime.storage.remote.misses import Miss

CONNECT_SECONDS = 1.0
"""Most that looking up a name and opening a connection take together."""
_MOST_KEPT = 8
"""Most connections that are kept while nothing is asked over them."""


class Connections:
    """Connections to one remote, of one process. Threads share it, and each has a connection of its own while it asks.

    Args:
        address: the remote.
        certificate: a file in PEM with the certificate that this client shows, and its private key.
    """

    def __init__(self, address: Address, certificate: Path | None = None) -> None:
        self._address, self._certificate = address, certificate
        self._tls: ssl.SSLContext | None = None
        self._kept: list[_Connection] = []
        weakref.finalize(self, _close, self._kept)

    @contextmanager
    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and read what the caller reads of its answer.

        Raises:
            Miss: no answer came, or what came is no HTTP.
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
            else:  # not read to its end: what is left must not pass for the next answer
                connection.close()

    def _context(self) -> ssl.SSLContext | None:
        if self._address.scheme == "https" and self._tls is None:
            tls = ssl.create_default_context()
            if self._certificate is not None:
                try:
                    tls.load_cert_chain(self._certificate)
                except OSError as error:  # no such file, or none with a certificate and a key
                    told = error.strerror or error
                    raise Miss("tls", f"the certificate in {self._certificate} cannot be shown: {told}") from error
            self._tls = tls
        return self._tls


@contextmanager
def _misses(address: Address) -> Iterator[None]:
    """Say in one word what went wrong."""
    try:
        yield
    except TimeoutError as error:
        raise Miss("timeout", f"{address} did not answer in time ({error})") from error
    except ssl.SSLCertVerificationError as error:
        says = f"{error.verify_message}; SSL_CERT_FILE names the authorities that are trusted"
        raise Miss("tls", f"the certificate of {address} is not trusted: {says}") from error
    except ssl.SSLError as error:
        plain = "; it may speak http, without TLS" if error.reason == "WRONG_VERSION_NUMBER" else ""
        raise Miss("tls", f"{address}: {error.strerror or error}{plain}") from error
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError) as error:
        if isinstance(error, ConnectionRefusedError):
            raise Miss("unreachable", f"{address} refuses connections") from error
        if isinstance(error, http.client.RemoteDisconnected):
            secure = "; it may speak https" if address.scheme == "http" else ""
            raise Miss("closed", f"{address} closed the connection before it answered{secure}") from error
        raise Miss("closed", f"{address} closed the connection amid an answer") from error
    except (http.client.HTTPException, ValueError) as error:
        raise Miss("garbage", f"{address} does not speak HTTP: {error!r:.200}") from error
    except OSError as error:
        raise Miss("unreachable", f"{address}: {error.strerror or error}") from error


class _Connection(http.client.HTTPConnection):
    """One connection; its deadline is set anew for each request."""

    deadline: Deadline

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        super().__init__(address.host, address.port)
        self._tls = tls
        self.default_port = 443 if tls else 80  # which the Host header leaves out

    def connect(self) -> None:
        """Open it: within :data:`CONNECT_SECONDS`, but for TLS."""
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
    """As much of a socket as :mod:`http.client` needs, bound to the deadline of its connection."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock, self._connection = sock, connection

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._connection.deadline.left())
        self._sock.sendall(data)  # whose timeout is for all of it

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._sock, self._connection))

    def close(self) -> None:
        self._sock.close()


class _Incoming(io.RawIOBase):
    """What a socket receives."""

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
    """A connection to the first address of a host that takes one."""
    places = _places(host, port, deadline)
    error: OSError | None = None
    for tried, (family, kind, protocol, _, place) in enumerate(places):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left() / (len(places) - tried))  # so that a silent one leaves time for the next
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
    """The addresses of a host. The system takes as long as it likes to look a name up, so a thread waits for it."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name
        pass
    found: list[Any] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=look_up, name="gemmill-lookup", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not found:
        raise TimeoutError(f"looking up {host} takes longer")
    if isinstance(found[0], Exception):
        raise OSError(f"{host} cannot be looked up: {found[0]}")
    return list(found[0])
