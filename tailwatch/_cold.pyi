"""The cold half of the core, through cffi: what csrc/python/cold/build.py finds in the headers."""

from typing import Any

ffi: Any
lib: Any
