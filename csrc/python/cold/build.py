"""Writes the C source of tailwatch._cold. Run by CMake: python build.py OUTPUT."""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

SOURCE = """
#include "tailwatch/base/deferred_free.h"
#include "tailwatch/export/prom_exposition.h"
#include "tailwatch/record/histogram.h"
#include "tailwatch/group/member_list.h"
#include "tailwatch/export/otlp.h"
#include "tailwatch/aggregate/snapshot.h"
#include "tailwatch/record/trace_trigger.h"
#include "tailwatch/trace/trace_export.h"
"""


def builder() -> FFI:
    ffi = FFI()
    for declarations in ("cold.cdef.h", "trace.cdef.h"):
        ffi.cdef(Path(__file__).with_name(declarations).read_text())
    ffi.set_source("tailwatch._cold", SOURCE, py_limited_api=True)
    return ffi


if __name__ == "__main__":
    builder().emit_c_code(sys.argv[1])
