"""Write gemmill and a pack as a kernel repository for Hugging Face's ``kernels``.

    gemmill model Llama-3.1-8B --gpu H200 --separate --pack llama.pack
    python integrations/kernels/write.py llama.pack gemmill-kernel

The folder has one build variant, ``torch-cuda``: Python for every version of PyTorch and CUDA, with the machine code in
the pack. It must not exist.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import gemmill
from gemmill.library.errors import GemmillError
from gemmill.runtime.storage.pack import Pack

SOURCES = Path(__file__).with_name("gemmill_kernel")
VERSION = 1
"""Of the repository's interface, as ``kernels`` counts them."""


def main() -> None:
    """Write the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="pack of compiled kernels")
    parser.add_argument("folder", type=Path, help="folder to write; it must not exist")
    arguments = parser.parse_args()
    try:
        write(arguments.pack, arguments.folder)
    except (GemmillError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def write(pack: Path, folder: Path) -> None:
    """Write a kernel repository.

    Args:
        pack: pack of compiled kernels.
        folder: folder to make.

    Raises:
        GemmillError: the pack is damaged.
        FileExistsError: the folder exists.
    """
    Pack.open(pack)
    variant = folder / "build" / "torch-cuda"
    folder.mkdir(parents=True)
    shutil.copytree(SOURCES, variant, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(gemmill.__file__).parent, variant / "gemmill", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pack, variant / "kernels.pack")
    metadata = {
        "name": "gemmill",
        "id": f"gemmill_cuda_{VERSION}",
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ["9.0a"]},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
