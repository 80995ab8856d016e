"""Refuses conflicting options and files that cannot be written, before a run starts; writes JSON files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError

WHEN = ("rate", "arrivals", "scale", "jitter_rounded", "schedule", "save_schedule")
"""What fixes when a request is sent: of an open loop."""
SCHEDULES = ("rate", "arrivals", "duration", "requests", "seed", "trace_replay", "scale", "jitter_rounded")
"""What a schedule is made of, beside its lengths."""
LENGTHS = ("prompt_tokens", "output_tokens")


def given(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that were given, as one writes them."""
    values = {name: getattr(arguments, name, None) for name in names}
    return ["--" + name.replace("_", "-") for name, value in values.items() if value is not None and value is not False]


def refuse(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """OptionError where one of them was given."""
    if both := given(arguments, names):
        raise OptionError(f"{why}; leave out {', '.join(both)}")


def check_files(files: Mapping[str, str | Path | None]) -> None:
    """Option → file, None where it was not given. What is there stays as it is, and nothing new is left behind.

    Raises:
        TailwatchError: one of them cannot be written; the message names its option.
        OptionError: two of them are one file.
    """
    found: dict[Path, str] = {}
    for option, name in files.items():
        if name is None:
            continue
        path = Path(name)
        check_file(option, path)
        if path.exists() and not path.is_file():
            continue  # a terminal or a pipe takes as many as it likes
        other = found.setdefault(path.resolve(), option)
        if other != option:
            raise OptionError(
                f"{option} {path}: --{other} is the same file; expected different files".replace("_", "-")
            )


def check_file(option: str, path: Path) -> None:
    """One of them."""
    new = not path.exists()
    if not new and not path.is_file() and not path.is_dir():
        return
    try:
        path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        raise TailwatchError(f"--{option.replace('_', '-')} {path}: {error.strerror}") from error


def check_directory(option: str, path: Path) -> None:
    """One that files are to be written to; it is made.

    Raises:
        TailwatchError: it cannot be.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".tailwatch"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise TailwatchError(f"{option} {path}: {error.strerror}") from error


def write_json(path: str | Path, data: Mapping[str, Any], *, option: str = "json", indent: int | None = None) -> None:
    """What an option asks for, "json" or another of that kind.

    Raises:
        TailwatchError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(data, indent=indent) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--{option} {path}: {error.strerror}") from error
