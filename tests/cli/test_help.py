"""--help of each command: it fits a terminal of 80 columns, and its example is a call that the command takes."""

from __future__ import annotations

import shlex

import pytest

from tailwatch.cli import parser
from tailwatch.cli.parser import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_it_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage, flags, example and exit statuses."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = parser._parser()[1][command].format_help().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert f"Example: tailwatch {command}" in " ".join(lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_its_example_is_taken(command: str) -> None:
    """By the parser: it names that command and no flag that there is not."""
    program, *arguments = shlex.split(COMMANDS[command].EXAMPLE)
    assert program == "tailwatch"
    assert parser._parsed(arguments).subcommand == command
