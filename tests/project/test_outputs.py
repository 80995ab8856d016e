"""What the guides show as output is what commands print, and pictures are what docs/outputs.py draws."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("rich", reason="the demo's table and the pictures: pip install '.[demo]'")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
outputs: ModuleType = importlib.import_module("outputs")
sys.path.remove(str(ROOT / "docs"))

TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in outputs.PAGES}
SHOWN = [(name, *found[1:4]) for name, text in TEXTS.items() for found in outputs.BLOCK.findall(text)]
FIXED = [block for block in SHOWN if block[1] == "repository" and "by_hand" not in block[2]]  # of committed runs
LIVE = [block for block in SHOWN if block not in FIXED and block[1] in ("repository", "server")]

TIME = r"[\d.,]+ ?(?:us|µs|ms|s)"
FORMS = {
    "curl -s localhost:8000/metrics": r"[a-z_]+\{[^}]*\} [\d.e+-]+",
    "tailwatch why": rf"[\d:.]+  .+  (?:token \d+|first token): {TIME}.*|  +(?:{TIME}  )?.+",
    "curl -sN": rf"(?:data: .+)?|: tailwatch ttft={TIME} itl_p99={TIME} itl_max={TIME} gc={TIME}",
    "python examples/by_hand.py": rf"\w+: p50 {TIME}, p99 {TIME}|\w+ delayed .+ {TIME} together|slow: .+ {TIME}",
    "tailwatch bench": ".*",  # its heads are compared
}  # fmt: skip


def form_of(command: str) -> re.Pattern[str]:
    """Of every line that the programs of a command print."""
    return re.compile("|".join(["", *(form for program, form in FORMS.items() if program in command)]))


def heads(text: str) -> set[str]:
    """What the rows of a table begin with."""
    return set(re.findall(r"^[A-Za-z]\w+(?=  )", text, re.MULTILINE))


@pytest.mark.parametrize("name", TEXTS)
def test_every_output_names_its_command(name: str) -> None:
    """Just before it: one that the script runs, or where else it was recorded."""
    marked = re.findall(r"^<!-- (?:output of \w+|recorded with [^:]+): .+ -->\n\n```text$", TEXTS[name], re.MULTILINE)
    assert len(marked) == len(re.findall(r"^```text$", TEXTS[name], re.MULTILINE))


def test_the_blocks_are_those_that_the_script_writes() -> None:
    """None is passed over."""
    marks = re.findall(r"^<!-- output of (\w+): ", "\n".join(TEXTS.values()), re.MULTILINE)
    assert len(marks) == len(SHOWN) > 10
    assert {name for _, name, _, _ in SHOWN} == {"repository", "server", "workers", "ended"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("page, scene, command, shown", FIXED, ids=[f"{block[0]}:{i}" for i, block in enumerate(FIXED)])
def test_it_is_printed_today(page: str, scene: str, command: str, shown: str) -> None:
    """Of runs that are committed, to the letter: python docs/outputs.py repository."""
    with outputs.scene(scene) as here:
        assert outputs.folded(here.run(command)) == shown.rstrip("\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """The scene's server, after one request for each reason."""
    with outputs.scene("server", requests=3) as here:
        yield here


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("page, scene, command, shown", LIVE, ids=[f"{block[0]}:{i}" for i, block in enumerate(LIVE)])
def test_its_form_is_that_of_today(page: str, scene: str, command: str, shown: str, request: Any) -> None:
    """The numbers are another run's: python docs/outputs.py server."""
    form = form_of(command)
    where = outputs.Scene(ROOT) if scene == "repository" else request.getfixturevalue("server")
    printed = where.run(command.replace("--duration 10", "--duration 1"))

    assert form.pattern, "this command has no form here"
    for text in (shown, outputs.folded(printed)):
        assert [line for line in text.rstrip("\n").splitlines() if not form.fullmatch(line)] == []
    assert heads(shown) <= heads(printed)


@pytest.mark.parametrize("name", outputs.PICTURES)
def test_a_picture_is_small_and_needs_nothing_else(name: str) -> None:
    """It shows its command, has a page, and asks no other host for a font."""
    file = ROOT / "docs" / "pictures" / f"{name}.svg"
    drawn = file.read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)

    assert len(drawn) < outputs.MOST_BYTES
    assert outputs.PICTURES[name][1].split()[1] in drawn
    assert re.findall(r"url\((?!#)", drawn) == []
    assert any(f"pictures/{name}.svg)" in text for text in TEXTS.values())


def test_every_picture_is_described() -> None:
    """For readers who do not see it."""
    shown = re.findall(r"!\[([^\]]*)\]\(", "\n".join(TEXTS.values()))
    assert len(shown) > 4
    assert [text for text in shown if len(text) < 10] == []
