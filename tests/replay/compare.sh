#!/usr/bin/env bash
# What this tree changes against a commit: kernels (registers, launch facts, machine code) and selections, as a diff.
#
#     tests/replay/compare.sh COMMIT [PYTHON]
#
# Nothing is printed but what differs, and the exit status is 1 if anything does. Ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
base=${1:?name the commit to compare with}
python=${2:-python}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" "$base"
differs=0
for what in kernels selections; do
    # The same script for both: sources on PYTHONPATH come before an installed gemmill.
    PYTHONPATH="$work/tree/src" "$python" "tests/replay/$what.py" >"$work/$what.base"
    PYTHONPATH="$PWD/src" "$python" "tests/replay/$what.py" >"$work/$what.here"
    diff --unified=0 "$work/$what.base" "$work/$what.here" || differs=1
done
exit "$differs"
