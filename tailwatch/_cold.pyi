"""The cold half of the core, through cffi: declarations in csrc/python/cold/cold.cdef.h. Imported by snapshots.py
only."""

from typing import Any

ffi: Any
lib: Any
