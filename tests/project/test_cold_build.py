"""csrc/python/cold/build.py: the compiler is a command of any number of words, and nothing is missed in silence."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

COLD = Path(__file__).parents[2] / "csrc" / "python" / "cold" / "build.py"
INCLUDE = COLD.parents[2] / "include"
HEADERS = ["base/buffer.h", "record/enums.h"]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""
pytestmark = pytest.mark.skipif(not COMPILER, reason="needs a C compiler (Debian: gcc)")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("cold_build", COLD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_compiler_is_a_command_with_arguments(build: ModuleType) -> None:
    """CC="ccache gcc", flags, a sysroot: each word reaches the compiler."""
    launcher = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
    plain = list(build.declarations([COMPILER], INCLUDE, HEADERS))
    assert any("tw_buffer_put" in one for one in plain) and "#define TW_SOURCES ..." in plain
    assert list(build.declarations([*launcher, COMPILER], INCLUDE, HEADERS)) == plain
    renamed = list(build.declarations([COMPILER, "-Dtw_buffer_put=another"], INCLUDE, HEADERS))
    assert renamed == [one.replace("tw_buffer_put", "another") for one in plain]


def test_a_failure_shows_what_the_compiler_reported(build: ModuleType, tmp_path: Path) -> None:
    """Its command, its exit status and its message."""
    (tmp_path / "tailwatch").mkdir()
    (tmp_path / "tailwatch" / "broken.h").write_text("#error the header is broken\n")
    with pytest.raises(SystemExit, match=r"(?s)-E.*failed \(\d+\):.*the header is broken"):
        list(build.declarations([COMPILER], tmp_path, ["broken.h"]))


def test_a_header_that_was_not_recognised_is_an_error(build: ModuleType) -> None:
    """Without line markers nothing is known of where a declaration stands."""
    with pytest.raises(SystemExit, match=r"base/buffer\.h, record/enums\.h"):
        list(build.declarations([COMPILER, "-P"], INCLUDE, HEADERS))


def test_the_include_folder_may_be_a_link(build: ModuleType, tmp_path: Path) -> None:
    """The compiler names headers by one path, the caller by another."""
    link = tmp_path / "link"
    link.symlink_to(INCLUDE)
    assert list(build.declarations([COMPILER], link, HEADERS)) == list(build.declarations([COMPILER], INCLUDE, HEADERS))
