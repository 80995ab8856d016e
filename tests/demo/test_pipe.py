"""Child processes of the demo: what is reported when one of them fails, and that none is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailwatch.demo import pipe


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that children can import, with a main() that does what its first line asks."""
    source = """
import sys
from tailwatch.demo.pipe import ParentPipe
def main():
    parent = ParentPipe()
    while (line := parent.receive()) is not None:
        if line["do"] == "crash":
            raise RuntimeError("planted failure")
        if line["do"] == "print":
            print("this is no JSON")
        if line["do"] != "hang":
            parent.send({"did": line["do"]})
"""
    (tmp_path / "planted_child.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "planted_child"


def test_questions_are_answered_in_order(module: str) -> None:
    """One line out, one line back; what the child prints does not get in between."""
    with pipe.Child(module) as child:
        assert child.ask({"do": "print"}) == {"did": "print"}
        assert child.ask({"do": "something"}) == {"did": "something"}


def test_a_crash_shows_the_end_of_stderr(module: str) -> None:
    """The error names the process and quotes its traceback."""
    with (
        pipe.Child(module) as child,
        pytest.raises(pipe.ChildError, match=r"(?s)planted_child.*status 1.*planted failure"),
    ):
        child.ask({"do": "crash"})


def test_silence_is_an_error(module: str) -> None:
    """A child without a word in time is given up, with a message."""
    with pipe.Child(module) as child, pytest.raises(pipe.ChildError, match="fell silent"):
        child.ask({"do": "hang"}, patience=0.2)


def test_leaving_the_context_ends_the_process(module: str) -> None:
    """Also when an exception leaves it; afterwards the process is gone."""
    with pytest.raises(KeyboardInterrupt), pipe.Child(module) as child:
        child.ask({"do": "something"})
        pid = child.pid
        raise KeyboardInterrupt

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
