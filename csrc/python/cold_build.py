"""Writes the C source of tailwatch._cold. Run by CMake: python cold_build.py OUTPUT."""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

SOURCE = """
#include "tailwatch/aside.h"
#include "tailwatch/exposition.h"
#include "tailwatch/histogram.h"
#include "tailwatch/members.h"
#include "tailwatch/otlp.h"
#include "tailwatch/snapshot.h"
#include "tailwatch/trigger.h"
#include "tailwatch/trace.h"
"""


def builder() -> FFI:
    ffi = FFI()
    for declarations in ("cold.cdef.h", "trace.cdef.h"):
        ffi.cdef(Path(__file__).with_name(declarations).read_text())
    ffi.set_source("tailwatch._cold", SOURCE, py_limited_api=True)
    return ffi


if __name__ == "__main__":
    builder().emit_c_code(sys.argv[1])
