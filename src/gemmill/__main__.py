"""``python -m gemmill``: the command line."""

from gemmill.cli import main

main()
