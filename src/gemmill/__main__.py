"""``python -m gemmill``: the command line."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, whose modules are none of ours

from gemmill.cli import main

main()
