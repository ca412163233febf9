"""Broken environments: what each breaks, and which piece the doctor must name.

Each is a virtual environment of links to the one that runs the tests: it takes no room, and what it breaks are links of
its own. ``python -m tests.runtime.health.environments`` tries all and prints what the doctor says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings
from cuda.pathfinder import load_nvidia_dynamic_lib

import gemmill

MAJOR = cuda.bindings.__version__.partition(".")[0]
NVRTC = Path(str(load_nvidia_dynamic_lib("nvrtc").abs_path))
WHEELS = "nvidia/{}" if MAJOR == "12" else f"nvidia/cu{MAJOR}"


def _link_entries(source: Path, target: Path) -> None:
    """Link what a folder holds, but not ``__pycache__``: Python would write there what two environments compile."""
    for entry in source.iterdir():
        if entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


class Environment:
    """A virtual environment of links."""

    def __init__(self, place: Path) -> None:
        base = Path(sys.prefix)
        site = next(base.glob("lib/python*/site-packages"))
        self.place = place
        self.site = place / site.relative_to(base)
        self.variables: dict[str, str] = {}
        if not (checkout := Path(gemmill.__file__).parents[1]).is_relative_to(base):
            self.variables["PYTHONPATH"] = str(checkout)  # an installed gemmill may be another one
        (place / "bin").mkdir(parents=True)
        self.site.mkdir(parents=True)
        shutil.copy(base / "pyvenv.cfg", place)
        self.python = place / "bin" / "python"
        self.python.symlink_to(os.path.realpath(sys.executable))
        _link_entries(site, self.site)

    def own(self, relative: str) -> Path:
        """A path in site-packages whose folders are this environment's own, so that it can be changed."""
        path = self.site
        for part in Path(relative).parts:
            path = path / part
            if path.is_symlink() and path.is_dir():
                target = path.resolve()
                path.unlink()
                path.mkdir()
                _link_entries(target, path)
        return path

    def remove(self, relative: str) -> None:
        """Take a file or folder away."""
        path = self.own(str(Path(relative).parent)) / Path(relative).name
        path.unlink()

    def write(self, relative: str, text: str) -> None:
        """Put a file in the place of another."""
        path = self.own(str(Path(relative).parent)) / Path(relative).name
        path.unlink(missing_ok=True)
        path.write_text(text)

    def before(self, code: str) -> None:
        """Have every interpreter run some code as it starts."""
        self.write("sitecustomize.py", code)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``gemmill`` here."""
        store = {"GEMMILL_STORE": str(self.place / "store"), "HOME": str(self.place)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMILL_", "PYTHON"))}
        command = [str(self.python), "-m", "gemmill", *arguments]
        return subprocess.run(
            command, env=kept | store | self.variables, capture_output=True, text=True, check=False, cwd=self.place
        )

    def doctor(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code and findings by what they are of."""
        done = self.run("doctor", "--json")
        assert not done.stderr, done.stderr
        return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)["items"]}


@dataclass(frozen=True)
class Broken:
    """A broken environment."""

    id: str
    breaks: Callable[[Environment], None]
    culprit: str
    """What the doctor must call wrong, and nothing else."""
    says: str
    """What its advice must hold."""
    builds: bool = False
    """Whether kernels can be built all the same."""


def _wheel(piece: str) -> str:
    return WHEELS.format({"nvrtc": "cuda_nvrtc", "cccl": "cuda_cccl", "cudart": "cuda_runtime"}[piece])


def _include(piece: str) -> str:
    below = "include/cccl" if piece == "cccl" and MAJOR != "12" else "include"
    return f"{_wheel(piece)}/{below}"


def _patched_nvrtc(patch: str) -> str:
    """NVRTC whose module some code changes: there is one here."""
    return f"""
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "cuda.bindings.nvrtc": return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def patched(module):
            run(module)
            patch(module)
        spec.loader.exec_module = patched
        return spec
sys.meta_path.insert(0, Finder())
{patch}
"""


def _other_nvrtc(version: str) -> str:
    """NVRTC that says another version of itself."""
    return _patched_nvrtc(f"""
def patch(module):
    get = module.nvrtcGetPTX
    def other(program, ptx):
        result = get(program, ptx)
        text = bytes(ptx)
        import ctypes, re
        new = re.sub(rb"V\\d+\\.\\d+\\.\\d+", b"V{version}", text)[: len(text)]
        ctypes.memmove(id(ptx) + bytes.__basicsize__ - 1, new, len(new))
        return result
    module.nvrtcGetPTX = other
""")


LACKS_AN_OPTION = _patched_nvrtc("""
def patch(module):
    compile = module.nvrtcCompileProgram
    def other(program, count, options):
        return compile(program, count, [b"--gone" if option == b"--no-cache" else option for option in options])
    module.nvrtcCompileProgram = other
""")


NO_LOCKS = """
import errno, fcntl
def flock(*_): raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


def _full(folder: str) -> str:
    return f"""
import os
statvfs = os.statvfs
def full(path):
    found = statvfs(path)
    if {folder!r} not in str(path):
        return found
    return os.statvfs_result([*found[:4], (1 << 20) // found.f_frsize, *found[5:], found.f_fsid])
os.statvfs = full
"""


def _no_builtins(env: Environment) -> None:
    site = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    for path in NVRTC.parent.glob("libnvrtc-builtins.so*"):
        env.remove(str(path.relative_to(site)))


def _loaded_before(env: Environment) -> None:
    env.before(f"import ctypes\nctypes.CDLL({str(NVRTC)!r})\n" + _other_nvrtc("12.4.127"))


def _half_of_cccl(env: Environment) -> None:
    for header in ("tuple", "utility"):
        env.remove(f"{_include('cccl')}/cuda/std/{header}")


def _deep_in_cccl(env: Environment) -> None:
    env.write(f"{_include('cccl')}/cuda/std/__type_traits/is_same.h", "")


def _other_headers_first(env: Environment) -> None:
    half = env.place / "half"
    (half / "cuda" / "std").mkdir(parents=True)
    (half / "cuda" / "std" / "tuple").write_text("#error another toolkit\n")
    whole = [env.site / "cutlass_library/source/include", env.site / _include("cccl"), env.site / _include("cudart")]
    env.variables["GEMMILL_INCLUDE"] = os.pathsep.join(map(str, [half, *whole]))


def _temporary_files(env: Environment) -> None:
    (env.place / "tmp").mkdir()
    env.variables["TMPDIR"] = str(env.place / "tmp")
    env.before(_full(str(env.place / "tmp")))


def _store_is_a_file(env: Environment) -> None:
    (env.place / "store").touch()


BROKEN = (
    Broken("no-pathfinder", lambda e: e.remove("cuda/pathfinder"), "cuda-bindings", "cuda-pathfinder"),
    Broken("no-builtins", _no_builtins, "nvrtc", "failed to open libnvrtc-builtins"),
    Broken("old-nvrtc", lambda e: e.before(_other_nvrtc("12.8.93")), "nvrtc", "needs 12.9 or newer"),
    Broken("nvrtc-without-an-option", lambda e: e.before(LACKS_AN_OPTION), "nvrtc", "unrecognized option --gone"),
    Broken("other-major-of-nvrtc", lambda e: e.before(_other_nvrtc("14.0.88")), "nvrtc", "different major versions"),
    Broken("no-nvrtc", lambda e: e.remove(f"{_wheel('nvrtc')}/lib"), "nvrtc", "NVRTC was not found"),
    Broken("another-nvrtc-loaded-before", _loaded_before, "nvrtc", "loaded earlier by another part of this process"),
    Broken("no-cutlass", lambda e: e.remove("cutlass_library"), "cutlass", "CUTLASS"),
    Broken("no-cccl", lambda e: e.remove(f"{_include('cccl')}/cuda"), "cccl", "nvidia-cuda-cccl"),
    Broken("half-of-cccl", _half_of_cccl, "cccl", "is missing, so the installation is incomplete"),
    Broken("deep-in-cccl", _deep_in_cccl, "cccl", "missing or changed"),
    Broken(
        "new-cccl",
        lambda e: e.write(f"{_include('cccl')}/cuda/std/__cccl/version.h", "#define CCCL_VERSION 3002000\n"),
        "cccl",
        "it needs CCCL older than 3.2",
    ),
    Broken("other-headers-first", _other_headers_first, "cccl", "belongs to another installation"),
    Broken(
        "other-major-of-headers",
        lambda e: e.write(f"{_include('cudart')}/cuda_runtime_api.h", "#define CUDART_VERSION 11080\n"),
        "cudart",
        "different major versions",
    ),
    Broken("no-room-for-temporary-files", _temporary_files, "temporary files", "has only 1 MiB free", True),
    Broken("no-room-in-the-store", lambda e: e.before(_full(str(e.place))), "store", "has only 1 MiB free", True),
    Broken("no-locks", lambda e: e.before(NO_LOCKS), "store", "cannot be locked", True),
    Broken("store-is-a-file", _store_is_a_file, "store", "cannot be written", True),
)
"""Environments, and the culprit of each."""


def _print_all() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for broken in BROKEN:
            env = Environment(Path(scratch) / broken.id)
            broken.breaks(env)
            code, found = env.doctor()
            sys.stdout.write(f"{broken.id}: exit code {code}\n")
            for finding in found.values():
                if finding["state"] == "wrong":
                    text = f"{finding['what']}: {finding['advice']}".replace(str(env.place), "ENV")
                    sys.stdout.write(f"    {text}\n")


if __name__ == "__main__":
    _print_all()
