"""What an installation consists of, and how a release is made."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

import tailwatch

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or ""
HEADER = Path(sysconfig.get_paths()["include"], "Python.h").is_file()


def test_uninstalling_leaves_nothing() -> None:
    """pip removes what RECORD lists: every file of ours is in it."""
    installed = distribution("tailwatch")
    site = Path(tailwatch.__file__).parents[1]
    if site == ROOT:
        pytest.skip("an editable installation")
    listed = {Path(str(installed.locate_file(file))).resolve() for file in installed.files or ()}
    ours = [path for name in ("tailwatch", "tailwatch_boot") for path in (site / name).rglob("*") if path.is_file()]
    ours += site.glob("tailwatch*.pth")
    assert {str(path) for path in ours if path.resolve() not in listed and path.suffix != ".pyc"} == set()
    assert len(ours) > 200


@pytest.mark.skipif(not COMPILER or not HEADER, reason="needs a C compiler and Python.h (Debian: gcc, python3-dev)")
@pytest.mark.parametrize("name", ["NONE", "TRUE", "FALSE"])
def test_a_wheel_built_by_a_later_python_gives_earlier_ones_their_references(name: str, tmp_path: Path) -> None:
    """From 3.12 on None, True and False are immortal, and the headers of 3.12 and 3.13 count no reference to what is
    returned, although the limited API is that of 3.10: there they would be freed."""
    source = tmp_path / "returns.c"
    source.write_text(f'#include "python/module.h"\nPyObject *returned(void) {{ Py_RETURN_{name}; }}\n')
    command = [COMPILER, "-E", "-P", "-DPy_LIMITED_API=0x030A0000", f"-I{sysconfig.get_paths()['include']}"]
    done = subprocess.run([*command, f"-I{ROOT / 'csrc'}", source], capture_output=True, text=True, check=True)
    assert "NewRef(" in done.stdout[done.stdout.index("*returned(void)") :]


def test_the_version_stands_in_one_place() -> None:
    """tailwatch/platform.py has it, and the metadata take it from there."""
    assert tailwatch.__version__ == distribution("tailwatch").version
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with what a release changes."""
    for name in (".ci/release", "tailwatch/platform.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for command in ("init -q", "config user.name n", "config user.email n@example.org", "add .", "commit -qm all"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


def release(repository: Path, version: str) -> subprocess.CompletedProcess[str]:
    """The script's run."""
    command = [sys.executable, repository / ".ci" / "release", version]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_release_is_a_commit_and_a_tag(repository: Path) -> None:
    """With the version and the changelog's date; it is refused twice, and with changes that are not committed."""
    assert release(repository, "9.9.9rc1").returncode == 0
    assert 'VERSION = "9.9.9rc1"\n' in (repository / "tailwatch/platform.py").read_text(encoding="utf-8")
    assert "## [Unreleased]\n\n## [9.9.9rc1] - 2" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    tagged = subprocess.run(["git", "describe", "--exact"], cwd=repository, capture_output=True, text=True).stdout
    assert tagged == "v9.9.9rc1\n"
    assert "was released already" in release(repository, "9.9.9rc1").stderr
    assert "is no version" in release(repository, "v1").stderr
    (repository / "CHANGELOG.md").write_text("")
    assert "has changes" in release(repository, "9.9.9").stderr
