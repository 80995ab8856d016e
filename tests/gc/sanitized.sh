#!/usr/bin/env bash
# The tests of the slicer and of its policy with the extension under the address and undefined behaviour sanitizers, and every
# object of Python's in a block of malloc's own; or (--debug PYTHON) in a debug build of CPython, where one is found (Debian:
# python3-dbg). Two to five minutes. Usage: bash tests/gc/sanitized.sh [--debug PYTHON]
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${1:-}" = --debug ]; then
  python=${2:?which debug build}
  "$python" -c 'import sys; sys.exit(not hasattr(sys, "gettotalrefcount"))' || { echo "$python is no debug build"; exit 1; }
  options=() left_out=() run=(env PYTHONDEVMODE=1)
else
  python=python3
  options=(-C cmake.define.TAILWATCH_SANITIZE=address,undefined -C cmake.build-type=Debug)
  libraries="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
  left_out=(--deselect "$root/tests/gc/test_idle_stress.py::test_memory_meets_the_memory_limit_though_objects_are_few"
            --deselect "$root/tests/gc/test_idle_stress.py::test_a_child_shares_the_frozen_heap") # freed memory is kept
  run=(env LD_PRELOAD="$libraries" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc)
fi
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" -q install "${options[@]}" "$root[test]"
cd "$work"
"${run[@]}" "$work/venv/bin/python" -m pytest -q -p no:cacheprovider --rootdir="$root" "${left_out[@]}" \
  "$root"/tests/gc/test_idle{,_survival,_order,_cycles,_types,_stress}.py
