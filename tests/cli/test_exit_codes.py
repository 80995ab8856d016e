"""Exit statuses of wrong calls, and groups that were not named or must not be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailwatch
from tailwatch import cli
from tailwatch.cli import find_group
from tailwatch.cli.parser import COMMANDS
from tailwatch.snapshots.directory_access import disk_of, remedy

CLOSED_PORT = "http://127.0.0.1:9"
UNREACHABLE = [
    ["doctor", CLOSED_PORT],
    ["doctor", "/no/such/file.json"],
    ["why", CLOSED_PORT],
    ["top", CLOSED_PORT],
    ["bench", CLOSED_PORT, "--rate", "1"],
    ["trace", "--dir", "/no/such/group"],
    ["gc", "status", "--dir", "/no/such/group"],
    ["nsys", "/no/such/report.sqlite"],
    ["compare", "/no/a.json", "/no/b.json"],
    ["capacity", "--knee", "/no/such.json", "--expect", "5"],
]


def status_of(arguments: list[str]) -> int | str | None:
    """argparse exits by itself."""
    try:
        return cli.main(arguments)
    except SystemExit as exited:
        return exited.code


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_call_is_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that there is not; its own usage is shown, not that of all commands."""
    assert status_of([command, "--no-such-flag=1"]) == 2
    assert f"usage: tailwatch {command}" in capsys.readouterr().err


def test_json_on_standard_output_is_alone_there(tmp_path: Path) -> None:
    """`--json -`: what else is printed goes to standard error."""
    saved = Path(__file__).parents[2] / "benchmarks" / "results" / "demo.json"
    asked = [sys.executable, "-m", "tailwatch", "doctor", str(saved), "--json"]
    alone = subprocess.run([*asked, "-"], capture_output=True, text=True, timeout=50)
    beside = subprocess.run([*asked, str(tmp_path / "json")], capture_output=True, text=True, timeout=50)
    assert json.loads(alone.stdout) == json.loads((tmp_path / "json").read_text())
    assert (alone.returncode, alone.stderr) == (beside.returncode, beside.stdout)


@pytest.mark.parametrize("arguments", UNREACHABLE, ids=lambda arguments: " ".join(arguments[:2]))
def test_what_cannot_be_reached_or_read_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence."""
    assert status_of(arguments) == 2
    assert capsys.readouterr().err.startswith("tailwatch: ")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[str]:
    """With this process in it, which nothing waits for."""
    directory = str(tmp_path / "group")
    tailwatch.install(dir=directory, gc="observe")
    try:
        yield directory
    finally:
        tailwatch.uninstall()


def test_a_group_that_was_found_is_named(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error; one that --dir names is not. What changes processes needs it named."""
    monkeypatch.setattr(find_group, "find", lambda environment, **how: group)
    for arguments in (["doctor"], ["why"], ["top", "--once"], ["gc", "status"]):
        assert status_of(arguments) in (0, 1)
        assert f"tailwatch: group {group}\n" in capsys.readouterr().err
        assert status_of([*arguments, "--dir", group]) in (0, 1)
        assert "tailwatch: group" not in capsys.readouterr().err
    for verb in ("freeze", "collect"):
        assert status_of(["gc", verb]) == 2
        error = capsys.readouterr().err
        assert f"gc {verb}: expected --dir" in error and group in error


def test_a_directory_that_is_refused_comes_with_its_mode_and_a_remedy(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own mode, or that of the folder above it; what the message names works."""
    assert cli.main(["doctor", "--dir", "/tmp"]) == 2
    error = capsys.readouterr().err
    assert "its mode is 1777" in error and "/tmp/tailwatch" in error
    os.chmod(group, 0o755)
    assert remedy(group) == f": its mode is 0755; chmod 700 {group}"
    os.mkdir(f"{group}/users")  # then it may be /home: no advice to close it
    assert remedy(group).endswith(f"name a directory of your own in it, like {group}/tailwatch")
    os.rmdir(f"{group}/users")
    os.chmod(group, 0o700)
    tmp_path.chmod(0o2777)  # as an emptyDir has it
    assert cli.main(["doctor", "--dir", group]) == 2
    error = capsys.readouterr().err
    assert f"the mode of {tmp_path} is 2777" in error and f"mkdir -m 700 {tmp_path}/own, and name" in error
    (tmp_path / "own").mkdir(mode=0o700)
    tailwatch.uninstall()
    tailwatch.install(dir=f"{tmp_path}/own/group", gc="observe")
    assert cli.main(["doctor", "--dir", f"{tmp_path}/own/group"]) in (0, 1)
    tmp_path.chmod(0o700)
    assert remedy(group) == "" and remedy("/no/such/group") == ""


def test_a_disk_is_one() -> None:
    """/dev/shm is memory; this file lies on a disk, or the system has none."""
    assert disk_of("/dev/shm") == "" and disk_of("/no/such/folder") == ""
    assert disk_of(os.path.dirname(__file__)) not in ("tmpfs", "ramfs")


def test_json_of_the_doctor_is_json(group: str, tmp_path: Path) -> None:
    """As before, into a file."""
    assert cli.main(["doctor", "--dir", group, "--json", str(tmp_path / "out.json")]) in (0, 1)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["headline"]
