"""Tokens: who may do what, until when."""

from __future__ import annotations

import base64
import os
from datetime import date
from pathlib import Path

import pytest
from tests.cli.test_cli import gemmill
from tests.service.running import Running

from gemmill.library.errors import SettingError
from gemmill.service.refusal import Refusal
from gemmill.service.tokens import Tokens, new_token, read_line


def status(tokens: Tokens, secret: str | None, today: date | None = None) -> str:
    """Who a secret is, or why it is nobody."""
    try:
        return tokens.caller(None if secret is None else f"Bearer {secret}", today).name
    except Refusal as refusal:
        return f"{refusal.status}: {refusal.message}"


def test_tokens_are_read_again_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first, line = new_token("first", ["read"], date(2027, 1, 31))
    second, other = new_token("second", ["read", "write"])
    path.write_text(f"# of the fleet\n\n{line.line()}\n")
    tokens = Tokens(path)
    assert status(tokens, first, date(2027, 1, 31)) == "first"
    assert "expired on 2027-01-31" in status(tokens, first, date(2027, 2, 1))
    assert "Unknown" in status(tokens, second)
    assert status(tokens, None) == "401: Missing token."
    path.write_text(f"{other.line()}\n")
    assert status(tokens, second) == "second"
    assert "Unknown" in status(tokens, first)
    path.write_text("nonsense\n")
    assert status(tokens, second) == "second", "a file that is wrong locks nobody out"
    assert not tokens.sound
    os.unlink(path)
    assert status(tokens, second) == "second"
    path.write_text(f"{line.line()}\n")
    assert "Unknown" in status(tokens, second)
    assert tokens.sound


def test_browsers_send_a_token_as_a_password(tmp_path: Path) -> None:
    secret, token = new_token("eyes", ["read"])
    (tmp_path / "tokens").write_text(token.line())
    tokens = Tokens(tmp_path / "tokens")
    assert tokens.caller("Basic " + base64.b64encode(f"whoever:{secret}".encode()).decode()).name == "eyes"
    for odd in ("Basic !", "Basic " + base64.b64encode(b"x").decode(), "Bearer", "", f"bearer  {secret}x"):
        with pytest.raises(Refusal):
            tokens.caller(odd)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a read", "expected NAME SCOPES SHA256HEX .YYYY-MM-DD., found 2 words"),
        ("a/b read " + "0" * 64, "invalid name 'a/b'"),
        ("a reed " + "0" * 64, "unknown scope 'reed'; expected read, compile, source, write or admin"),
        ("a read " + "0" * 63, "must be a SHA-256 in hex"),
        ("a read " + "0" * 64 + " tomorrow", "invalid date 'tomorrow'; expected a date such as 2027-01-31"),
    ],
)
def test_lines_that_are_wrong(line: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        read_line(line, "tokens:1")


def test_a_file_that_anybody_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(new_token("a", ["read"])[1].line())
    (tmp_path / "tokens").chmod(0o666)
    with pytest.raises(SettingError, match=r"anybody may add tokens to it \(mode 666\); run chmod o-w "):
        Tokens(tmp_path / "tokens")


def test_names_are_of_one_token_each(tmp_path: Path) -> None:
    lines = [new_token("a", ["read"])[1].line() for _ in range(2)]
    (tmp_path / "tokens").write_text("\n".join(lines))
    with pytest.raises(SettingError, match="two lines have the same name: a"):
        Tokens(tmp_path / "tokens")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "path", "expected"),
    [
        ("", "/v1/kernels/" + "0" * 64, 401),
        ("secret-of-nobody", "/v1/kernels/" + "0" * 64, 401),
        ("secret-of-late", "/v1/kernels/" + "0" * 64, 401),
        ("secret-of-reader", "/v1/kernels/" + "0" * 64, 404),
        ("secret-of-boss", "/v1/kernels/" + "0" * 64, 404),
        ("", "/metrics", 401),
        ("", "/healthz", 200),
        ("", "/readyz", 200),
    ],
)
def test_who_may_read(server: Running, token: str, path: str, expected: int) -> None:
    answer = server.ask("GET", path, token=token)
    assert answer.status == expected
    assert ("www-authenticate" in answer.headers) == (expected == 401)


@pytest.mark.slow
def test_scopes_bound_what_a_token_may(server: Running) -> None:
    assert server.instantiate("x", token="secret-of-reader").code == "scope"
    assert server.ask("PUT", "/v1/blobs/" + "0" * 64, b"x", "secret-of-maker").code == "scope"


def test_a_token_that_the_command_makes_is_let_in(tmp_path: Path) -> None:
    made = gemmill("serve", "token", "new", "pods", "--scopes", "read", "--days", "2")
    secret = made.stderr.split()[-1]
    assert secret not in made.stdout
    (tmp_path / "tokens").write_text(made.stdout)
    assert status(Tokens(tmp_path / "tokens"), secret) == "pods"


def test_a_server_that_others_reach_has_tokens() -> None:
    refused = gemmill("serve", "--host", "0.0.0.0")
    assert refused.exit_code == 2
    assert "--tokens" in refused.stderr
