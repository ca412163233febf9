"""Files that are whole or not there, and streams that are no files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gemmill.library.files import publish

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
