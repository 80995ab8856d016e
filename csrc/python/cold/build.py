"""Writes the C source of tailwatch._cold, with cffi's declarations out of the core's headers.

Run by CMake: python build.py OUTPUT INCLUDE COMPILER [ARGUMENT...]; the arguments are those of every compilation that
change what the preprocessor writes. Functions and constants are of the headers in FOLDERS and of HEADERS, types also
those of the headers that they include. Every call drops the GIL, so a struct that is passed in must not be changed by
another thread meanwhile.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from cffi import FFI

FOLDERS = ("aggregate", "export", "trace")
HEADERS = (
    "attribute/engine_split.h",
    "attribute/host_held.h",
    "attribute/host_split.h",
    "attribute/parts.h",
    "base/buffer.h",
    "base/clock.h",
    "base/deferred_free.h",
    "base/shared_file.h",
    "base/shared_memory.h",
    "gc/slice_pacer.h",
    "group/group.h",
    "group/member_list.h",
    "group/member_lock.h",
    "record/delay_cause.h",
    "record/engine_sums.h",
    "record/enums.h",
    "record/event_ring.h",
    "record/gc_policy_counters.h",
    "record/genai_counters.h",
    "record/histogram.h",
    "record/name_table.h",
    "record/pause_clock.h",
    "record/segment.h",
    "record/step_ring.h",
    "record/step_stats.h",
    "record/trace_trigger.h",
    "record/ttft_by_concurrency.h",
    "stamp/engine_step.h",
)
LINE_MARKER = re.compile(r'#\s*(?:line )?\d+ "(.*)"')
CONSTANT = re.compile(r"^#define (TW_\w+) +[\w()<> +*-]+?(?: */\*.*)?$", re.MULTILINE)


def called(include: Path) -> list[str]:
    """The headers whose functions can be called, by their names below tailwatch/."""
    root = include / "tailwatch"
    found = (header for folder in FOLDERS for header in sorted((root / folder).glob("*.h")))
    return [*(str(header.relative_to(root)) for header in found), *HEADERS]


def source(headers: list[str]) -> str:
    """C that includes the headers."""
    return "".join(f'#include "tailwatch/{header}"\n' for header in headers)


def preprocessed(compiler: list[str], include: Path, text: str) -> list[tuple[str, str]]:
    """What each of our headers adds to C source as it is preprocessed: (name below tailwatch/, text), in order."""
    command = [*compiler, "-E", "-D_GNU_SOURCE", f"-I{include}", "-x", "c", "-"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({ran.returncode}):\n{ran.stderr}")
    lines = groupby(placed(ran.stdout, (include / "tailwatch").resolve()), key=itemgetter(0))
    return [(name, "\n".join(line for _, line in group)) for name, group in lines]


def placed(text: str, root: Path) -> Iterator[tuple[str, str]]:
    """Each line of one of our headers, with the header's name."""
    name = ""
    for line in text.splitlines():
        if marker := LINE_MARKER.match(line):
            path = Path(marker[1]).resolve()
            name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
        elif name and line.strip():
            yield name, line


def statements(text: str) -> Iterator[str]:
    """The declarations of preprocessed C; an inline function is one too."""
    start = depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "{(") - (letter in "})")
        inline = letter == "}" and text[start:].lstrip().startswith("static")
        if depth == 0 and (letter == ";" or inline):
            yield text[start : at + 1].strip()
            start = at + 1


def declarations(compiler: list[str], include: Path, headers: list[str]) -> Iterator[str]:
    """What cffi parses: types, functions, and constants, whose values the compiler gives."""
    texts = preprocessed(compiler, include, source(headers))
    if missing := set(headers) - {name for name, _ in texts}:
        sys.exit(
            f"{' '.join(compiler)} -E: no line is marked as one of {', '.join(sorted(missing))}; is -P among its flags?"
        )
    for name, text in texts:
        for statement in statements(text):
            is_type = statement.startswith(("typedef", "enum", "struct"))
            if is_type or (name in headers and not statement.startswith(("static", "_Static_assert"))):
                yield statement
    for header in headers:
        constants = CONSTANT.findall((include / "tailwatch" / header).read_text(encoding="utf-8"))
        yield from (f"#define {constant} ..." for constant in constants)


def builder(compiler: list[str], include: Path) -> FFI:
    """cffi with the declarations of the headers."""
    headers = called(include)
    ffi = FFI()
    ffi.cdef("\n".join(declarations(compiler, include, headers)))
    ffi.set_source("tailwatch._cold", source(headers), py_limited_api=True)
    return ffi


if __name__ == "__main__":
    builder(sys.argv[3:], Path(sys.argv[2])).emit_c_code(sys.argv[1])
