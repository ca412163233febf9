"""References: parsed as they print, and nothing else accepted; manifests: read as written, or a PackError."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import PackError
from gemmill.runtime.storage.oci.manifest import ARTIFACT, SIGNATURE, Descriptor, PackManifest
from gemmill.runtime.storage.oci.reference import Reference

DIGEST = "5" * 64


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("oci://registry.example/served:1.0", ("registry.example", "served", "1.0", None)),
        ("oci://localhost:5000/a/b_c/d--e:latest", ("localhost:5000", "a/b_c/d--e", "latest", None)),
        (f"oci://[::1]:5000/served@sha256:{DIGEST}", ("[::1]:5000", "served", None, DIGEST)),
        (f"oci://docker.io/gemmill/served:1@sha256:{DIGEST}", ("docker.io", "gemmill/served", "1", DIGEST)),
    ],
)
def test_references(text: str, parts: tuple[str, str, str | None, str | None]) -> None:
    found = Reference.of(text)
    assert (found.host, found.name, found.tag, found.digest) == parts
    assert str(found) == text


def test_the_name_of_a_host_has_no_case() -> None:
    assert Reference.of("oci://Registry.Example/served:V1") == Reference.of("oci://registry.example/served:V1")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "https://registry/served:1",
            "oci://served:1",
            "oci:///served:1",
            "oci://registry/Served:1",
            "oci://r/a//b:1",
        ),
        *("oci://user:pw@registry/served:1", "oci://registry/served:", "oci://registry/served:1 ", "oci://r/../x:1"),
        *(f"oci://registry/served@sha256:{'F' * 64}", "oci://registry/served@md5:00", f"oci://r/{'a' * 600}:1"),
        *("oci://registry/a-:1", "oci://registry/served:1?x=y", "oci://registry:0/served:1", "oci://registry/é:1"),
    ],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(PackError, match="is not a reference to a pack in a registry"):
        Reference.of(text)


def test_a_reference_needs_a_tag_or_a_digest() -> None:
    with pytest.raises(PackError, match="'oci://registry/served' has neither a tag nor a digest"):
        Reference.of("oci://registry/served")


@given(
    st.text(max_size=40).map("oci://".__add__)
    | st.from_regex(r"oci://[a-z.]{1,5}/[a-z_.-]{1,9}(:\w{1,3})?", fullmatch=True)
)
def test_a_reference_that_is_accepted_prints_as_it_was(text: str) -> None:
    with suppress(PackError):
        assert str(Reference.of(text)) == text


SIZES = st.integers(1, 1 << 20)


@given(SIZES, st.none() | SIZES, st.dictionaries(st.sampled_from("ab"), st.text(max_size=9)))
def test_a_manifest_is_read_as_written(size: int, signed: int | None, annotations: dict[str, str]) -> None:
    signature = None if signed is None else Descriptor(SIGNATURE, DIGEST, signed)
    manifest = PackManifest(Descriptor(ARTIFACT, DIGEST, size), signature, annotations)
    assert PackManifest.from_bytes(manifest.to_bytes()) == manifest


@given(st.data())
def test_any_other_manifest_is_a_pack_error(data: st.DataObject) -> None:
    whole = PackManifest(Descriptor(ARTIFACT, DIGEST, 9), Descriptor(SIGNATURE, DIGEST, 9), {"a": "b"}).to_bytes()
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    changed = whole[:start] + data.draw(st.sampled_from([b"", b"1", b"null", b"[]", b'{"x":0}', b'"'])) + whole[end:]
    with suppress(PackError):
        PackManifest.from_bytes(changed)
