"""Files that are whole or not there, and streams that are no files."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gemmill.library.files import make_private, open_regular, publish, read_regular

SPEAKS = """
from pathlib import Path
from gemmill.library.files import publish
print("first")
publish(Path("/dev/stdout"), [b"second", b"\\n"])
publish(Path("/dev/fd/1"), [b"third\\n"])
print("last")
"""


def test_a_stream_goes_on_where_it_is_redirected_to_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as behind:
        subprocess.run([sys.executable, "-c", SPEAKS], stdout=behind, check=True)
    assert log.read_text() == "before\nfirst\nsecond\nthird\nlast\n"


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    publish(path, [b"new"])
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    path.chmod(0o644)
    return path


def test_a_regular_file_is_read_up_to_its_limit(file: Path) -> None:
    assert read_regular(file, 5, private=True) == b"12345"
    with open_regular(file) as opened:
        assert opened.read() == b"12345"
    with pytest.raises(OSError, match=r"has 5 bytes, more than the 4 it may have.*file"):
        read_regular(file, 4)


def test_a_file_that_does_not_tell_its_size_is_read_no_further_than_its_limit() -> None:
    status = Path("/proc/self/status")
    assert b"Name:" in read_regular(status, 1 << 20)
    with pytest.raises(OSError, match="more than the 9 bytes"):
        read_regular(status, 9)


def test_what_is_no_regular_file_is_refused_by_what_it_is_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, says in {
            "folder": "is a folder",
            "pipe": "is a pipe, not a regular file",
            "/dev/zero": "is a device, not a regular file",
            "socket": "No such device",
            "missing": "No such file",
            "a\0b": "null",
        }.items():
            with pytest.raises(OSError, match=says):
                open_regular(tmp_path / name)


def test_a_private_file_is_nobody_elses_to_write(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    with open_regular(tmp_path / "link"):
        pass
    with pytest.raises(OSError, match="is a link"):
        open_regular(tmp_path / "link", private=True)
    for mode in (0o664, 0o646):
        file.chmod(mode)
        with pytest.raises(OSError, match=re.escape(f"may be written to by others (mode {mode:03o})")):
            open_regular(file, private=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_private_file_is_this_users_or_roots(file: Path) -> None:
    os.chown(file, 4242, 4242)
    with pytest.raises(OSError, match="belongs to user 4242"):
        open_regular(file, private=True)


def test_refusing_a_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        with pytest.raises(OSError, match="pipe"):
            open_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_is_private_and_no_file(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        make_private(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    for wrong in (file, file / "folder"):
        with pytest.raises(NotADirectoryError) as error:
            make_private(wrong)
        assert error.value.filename == str(file)
