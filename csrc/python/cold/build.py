"""Writes the C source of tailwatch._cold, with cffi's declarations out of the core's headers.

Run by CMake: python build.py OUTPUT COMPILER INCLUDE. The functions of HEADERS can be called (every call drops the GIL,
so a struct that is passed in must not be changed by another thread meanwhile); their types and constants, and those of
the headers they include, are declared.
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

HEADERS = (
    "aggregate/concurrency_knee.h",
    "aggregate/snapshot.h",
    "base/buffer.h",
    "base/clock.h",
    "base/clock_sync.h",
    "base/deferred_free.h",
    "export/otlp.h",
    "export/prom_families.h",
    "gc/slice_pacer.h",
    "group/group.h",
    "group/member_list.h",
    "record/enums.h",
    "record/event_ring.h",
    "record/gc_policy_counters.h",
    "record/genai_counters.h",
    "record/histogram.h",
    "record/pause_clock.h",
    "record/segment.h",
    "record/trace_trigger.h",
    "record/ttft_by_concurrency.h",
    "stamp/engine_step.h",
    "trace/trace_export.h",
    "trace/track_writer.h",
)
SOURCE = "".join(f'#include "tailwatch/{header}"\n' for header in HEADERS)
LINE_MARKER = re.compile(r'#\s*(?:line )?\d+ "(.*)"')
CONSTANT = re.compile(r"^#define (TW_\w+) +[\w()<> +*-]+?(?: */\*.*)?$", re.MULTILINE)


def preprocessed(compiler: str, include: Path) -> Iterator[tuple[str, str]]:
    """The text that each of our headers adds to the preprocessed source: (name below tailwatch/, text)."""
    command = [compiler, "-E", "-D_GNU_SOURCE", f"-I{include}", "-x", "c", "-"]
    text = subprocess.run(command, input=SOURCE, capture_output=True, text=True, check=True).stdout
    for name, lines in groupby(placed(text, include / "tailwatch"), key=itemgetter(0)):
        yield name, "\n".join(line for _, line in lines)


def placed(text: str, root: Path) -> Iterator[tuple[str, str]]:
    """Each line with the name of the header that it comes from; "" for another's."""
    name = ""
    for line in text.splitlines():
        if marker := LINE_MARKER.match(line):
            path = Path(marker[1])
            name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
        elif line.strip():
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


def declarations(compiler: str, include: Path) -> Iterator[str]:
    """What cffi parses: constants (the compiler gives the values), types, and the functions of HEADERS."""
    for name, text in preprocessed(compiler, include):
        for statement in statements(text) if name else ():
            is_type = statement.startswith(("typedef", "enum", "struct"))
            if is_type or (name in HEADERS and not statement.startswith(("static", "_Static_assert"))):
                yield statement
    for header in HEADERS:
        constants = CONSTANT.findall((include / "tailwatch" / header).read_text(encoding="utf-8"))
        yield from (f"#define {constant} ..." for constant in constants)


def builder(compiler: str, include: Path) -> FFI:
    """cffi with the declarations of the headers."""
    ffi = FFI()
    ffi.cdef("\n".join(declarations(compiler, include)))
    ffi.set_source("tailwatch._cold", SOURCE, py_limited_api=True)
    return ffi


if __name__ == "__main__":
    builder(sys.argv[2], Path(sys.argv[3])).emit_c_code(sys.argv[1])
