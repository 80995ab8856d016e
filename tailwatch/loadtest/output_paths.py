"""The files that a command is to write: whether they can be written is known before the work, and not after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError


def check(files: Mapping[str, str | Path | None]) -> None:
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
            raise OptionError(f"{option} {path}: --{other} is the same file; expected one each".replace("_", "-"))


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


def write_json(option: str, path: str | Path, data: Mapping[str, Any]) -> None:
    """What the option asked for, as one line.

    Raises:
        TailwatchError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"--{option} {path}: {error.strerror}") from error
