"""The README keeps its promises: short, its commands exist, its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tailwatch
from tailwatch import cli
from tailwatch.options.config import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README + GUIDE, re.DOTALL | re.MULTILINE)


def test_it_is_short() -> None:
    """At most 140 lines."""
    assert len(README.splitlines()) <= 140


def test_its_python_runs_in_order() -> None:
    """Pasted one after the other into a process with an app, the blocks run, and leave nothing behind."""

    async def app(scope: object, receive: object, send: object) -> None:
        """An app."""

    names: dict[str, object] = {"app": app}
    try:
        for block in BLOCKS:
            exec(compile(block, "README.md", "exec"), names)
    finally:
        tailwatch.uninstall()

    assert len(BLOCKS) >= 3


def test_every_option_stands_in_it() -> None:
    """The table of options is complete."""
    table = README[README.index("| option") :]

    assert [name for name in OPTIONS if f"`{name}`" not in table] == []


def test_its_files_exist() -> None:
    """What it links to is here."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    files = re.findall(r"^\| `([^`]+)`", GUIDE[: GUIDE.index("##")], re.MULTILINE)

    assert [link for link in links if not (ROOT / link).exists()] == []
    assert [file for file in files if not (ROOT / "examples" / file).exists()] == []


@pytest.mark.parametrize("command", sorted(set(re.findall(r"bin/tailwatch ([a-z]+)|`tailwatch ([a-z]+)", README))))
def test_its_commands_exist(command: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a help text."""
    name = "".join(command)
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])

    assert stopped.value.code == 0
    assert name in capsys.readouterr().out
