"""How servers stream: their chunk classes, and the functions that build frames of them, re-created a file per server.

Each has the names, fields, defaults, validators, serialisers and signatures of the version that its file names, and
nothing else of them. Fields that no chunk of text sets may be typed loosely. The benchmarks use them too.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from types import ModuleType
from typing import Any

_count = itertools.count(1)


def anew(server: ModuleType) -> Any:
    """A server's module once more, with classes of its own: to be accelerated beside those that are not."""
    name = f"{server.__name__}_{next(_count)}"
    spec = importlib.util.spec_from_file_location(name, server.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where annotations are resolved
    spec.loader.exec_module(module)
    return module
