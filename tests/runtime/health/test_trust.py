"""The doctor says whose signatures count."""

from __future__ import annotations

import pytest

from gemmill.runtime.health.examination import trusted_keys
from gemmill.runtime.storage.trust.signatures import SigningKey


def test_the_doctor_says_whose_signatures_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*trusted_keys()]
    key, other = SigningKey.new().public, SigningKey.new().public
    said = {}
    for value in (f"{key},{other},revoked {other.id}", f"{key},revoked {key.id}", "/nowhere"):
        monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", value)
        (finding,) = trusted_keys()
        said[finding.state, finding.detail] = finding.advice
    assert [*said] == [
        ("ok", f"{key.id}; revoked: {other.id}"),
        ("wrong", f"none; revoked: {key.id}"),
        ("wrong", "GEMMILL_TRUSTED_KEYS"),
    ]
    assert "every key is revoked" in said["wrong", f"none; revoked: {key.id}"]
    assert "'/nowhere': No such file" in said["wrong", "GEMMILL_TRUSTED_KEYS"]
