"""Settings: read as documented, values that mean nothing refused, what others set passed over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmill.library.errors import SettingError
from gemmill.runtime.settings import Settings

SERVICES = {
    "GEMMILL_SERVICE_HOST": "10.3.0.7",
    "GEMMILL_SERVICE_PORT": "80",
    "GEMMILL_SERVICE_PORT_HTTP": "80",
    "GEMMILL_PORT": "tcp://10.3.0.7:80",
    "GEMMILL_PORT_80_TCP": "tcp://10.3.0.7:80",
    "GEMMILL_PORT_80_TCP_PROTO": "tcp",
    "GEMMILL_PORT_80_TCP_PORT": "80",
    "GEMMILL_PORT_80_TCP_ADDR": "10.3.0.7",
    "GEMMILL_STORE_SERVICE_HOST": "10.3.0.8",
    "GEMMILL_STORE_PORT_53_UDP": "udp://10.3.0.8:53",
}
"""What Kubernetes sets in every container beside services called gemmill and gemmill-store."""


def test_settings_that_are_not_set() -> None:
    assert Settings.read({"PATH": "/bin"}) == Settings(None, None, None, None)


def test_settings_are_read() -> None:
    environ = {"GEMMILL_STORE": "/a", "GEMMILL_STORE_BYTES": "2G", "GEMMILL_JOBS": "3", "GEMMILL_INCLUDE": "/b:/c"}
    assert Settings.read(environ) == Settings(Path("/a"), 2 << 30, 3, (Path("/b"), Path("/c")))
    assert Settings.read({"GEMMILL_TRUSTED_KEYS": "/a,/b"}).trusted_keys == "/a,/b"


def test_settings_of_a_remote_are_read() -> None:
    environ = {
        "GEMMILL_REMOTE": "https://kernels.example:443/a/",
        "GEMMILL_REMOTE_MODE": "only",
        "GEMMILL_REMOTE_DEADLINE": "2.5",
        "GEMMILL_REMOTE_TOKEN": "@/run/token",
        "GEMMILL_REMOTE_CERT": "/client.pem",
        "GEMMILL_REMOTE_SIGN": "/sign.pem",
    }
    found = Settings.read(environ)
    assert (found.remote, found.remote_mode, found.remote_deadline) == ("https://kernels.example/a", "only", 2.5)
    assert found.remote_token == Path("/run/token")
    assert (found.remote_certificate, found.remote_sign) == (Path("/client.pem"), Path("/sign.pem"))
    assert "secret" not in repr(Settings.read({"GEMMILL_REMOTE_TOKEN": "secret"}))


def test_settings_of_packs_in_registries_are_read() -> None:
    environ = {
        "GEMMILL_PACKS": "/a.pack,oci://registry.example/served:1",
        "GEMMILL_OCI_TOKEN": "Registry.example:5000=user:a=secret",
        "GEMMILL_OCI_HTTP": "Registry,10.0.0.7:5000,[fd00::7]:5000",
    }
    found = Settings.read(environ)
    assert found.packs == ("/a.pack", "oci://registry.example/served:1")
    assert found.oci_token == ("registry.example:5000", "user:a=secret")
    assert found.oci_http == ("registry", "10.0.0.7:5000", "[fd00::7]:5000")
    assert Settings.read({"GEMMILL_OCI_TOKEN": "[::1]:5000=@/run/token"}).oci_token == (
        "[::1]:5000",
        Path("/run/token"),
    )
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("GEMMILL_REMOTE", "", "https or http"),
        ("GEMMILL_REMOTE", "kernels.example", "https or http"),
        ("GEMMILL_REMOTE_MODE", "write", "read, readwrite, only"),
        ("GEMMILL_REMOTE_DEADLINE", "0", "0.1 to 600"),
        ("GEMMILL_REMOTE_DEADLINE", "10s", "0.1 to 600"),
        ("GEMMILL_REMOTE_TOKEN", "two\nlines", "not a valid token"),
        ("GEMMILL_REMOTE_TOKEN", "@token", "absolute path"),
        ("GEMMILL_PACKS", "/a.pack,", "absolute path"),
        ("GEMMILL_PACKS", "/a.pack,oci://registry/served", "neither a tag nor a digest"),
        ("GEMMILL_OCI_TOKEN", "registry=two words", "neither USER:PASSWORD nor a token"),
        ("GEMMILL_OCI_TOKEN", "registry=@token", "absolute path"),
        ("GEMMILL_OCI_TOKEN", "user:password", "lacks its registry or the secret: expected HOST=USER:PASSWORD"),
        ("GEMMILL_OCI_TOKEN", "token==", "neither USER:PASSWORD nor a token"),
        ("GEMMILL_OCI_TOKEN", "https://registry=token", "lacks its registry or the secret"),
        ("GEMMILL_OCI_HTTP", "http://registry", "HOST or HOST:PORT"),
        ("GEMMILL_STORE", "relative", "absolute path"),
        ("GEMMILL_STORE", "", "absolute path"),
        ("GEMMILL_STORE_BYTES", "lots", "500M or 10G"),
        ("GEMMILL_STORE_BYTES", "-1", "500M or 10G"),
        ("GEMMILL_JOBS", "0", "1 to 9999"),
        ("GEMMILL_JOBS", "two", "1 to 9999"),
        ("GEMMILL_DEBUG", "", "expected 0 or 1"),
        ("GEMMILL_WARM_CALLS", "no", "expected 0 or 1"),
    ],
)
def test_settings_that_mean_nothing_raise(name: str, value: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rf"{name}.*{rule}"):
        Settings.read({name: value})


def test_a_machine_on_which_nothing_is_compiled_names_a_remote() -> None:
    found = Settings.read({"GEMMILL_REMOTE_MODE": "only"})
    assert found.url_of("https://kernels.example") == "https://kernels.example"
    with pytest.raises(SettingError, match=r"MODE=only.*GEMMILL_REMOTE is not set"):
        found.url_of(None)


def test_a_service_of_the_same_name_changes_nothing(recwarn: pytest.WarningsRecorder) -> None:
    assert Settings.read(SERVICES) == Settings.read({})
    assert not recwarn.list


@pytest.mark.parametrize("strict", [(), ("-W", "error")])
@pytest.mark.parametrize(
    ("name", "says"),
    [("GEMMILL_STOER", "did you mean GEMMILL_STORE?"), ("GEMMILL_XYZZY", "; the settings are GEMMILL_STORE, ")],
)
def test_an_unknown_setting_is_one_warning(name: str, says: str, strict: tuple[str, ...]) -> None:
    code = "from gemmill.runtime.settings import Settings\nfor _ in range(3): print(Settings.read().jobs)"
    command = [sys.executable, *strict, "-c", code]
    environ = {**os.environ, name: "x", "GEMMILL_JOBS": "3"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3"] * 3
    assert done.stderr.count(f"{name} is not a gemmill setting") == 1
    assert says in done.stderr
