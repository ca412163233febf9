"""What a build of libgemmill needs."""

from __future__ import annotations

import shutil
import subprocess

_HEADERS = "#include <nlohmann/json_fwd.hpp>\n#include <sodium.h>\n#include <zstd.h>\n"


def missing() -> str:
    """What of it this machine lacks."""
    if tools := [tool for tool in ("cmake", "c++", "make") if shutil.which(tool) is None]:
        return ", ".join(tools)
    found = subprocess.run(["c++", "-xc++", "-fsyntax-only", "-"], input=_HEADERS, text=True, capture_output=True)
    return "headers of nlohmann-json, libsodium or libzstd" if found.returncode else ""
