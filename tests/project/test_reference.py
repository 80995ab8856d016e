"""The reference in the guides is what docs/reference.py writes from the code, and each thing has its entry there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tailwatch.cli import run
from tailwatch.options.config import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("reference")


def test_every_page_is_what_the_script_writes() -> None:
    """Mended by `python docs/reference.py`."""
    done = subprocess.run([sys.executable, ROOT / "docs" / "reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_and_command_is_written_somewhere(reference: ModuleType) -> None:
    """Each table has a place; a command's flags stand in its section."""
    parts = {(part, of) for page in PAGES.values() for _, part, of, _ in reference.BLOCK.findall(page)}
    sections = re.split(r"^## ", PAGES["command_line.md"], flags=re.MULTILINE)
    placed = {
        section.split("`")[1] for section in sections if section.startswith("`") and "reference: flags" in section
    }

    assert {part for part, _ in parts} == set(reference.PARTS)
    assert {of for part, of in parts if part == "metrics"} == set(reference.data.METRICS)
    assert {of for part, of in parts if part == "flags"} == {*reference.commands(), "load"} - {"run"}
    assert placed == {f"tailwatch {name}" for name in reference.commands()} - {"tailwatch run"}
    assert set(OPTIONS) - set(run.OFFERED) == {"role"}  # the flags of run are the options


@pytest.mark.parametrize(
    "table, part", [("OPTIONS", "options"), ("METRICS", "metrics"), ("VARIABLES", "variables"), ("LOGS", "logs")]
)
def test_a_thing_without_its_entry_fails(
    reference: ModuleType, table: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is named."""
    entries = getattr(reference.data, table)
    inner = entries["self"] if table == "METRICS" else entries
    name = next(iter(inner))
    monkeypatch.delitem(inner, name)

    with pytest.raises(SystemExit, match=re.escape(name)):
        reference.PARTS[part]("self")
