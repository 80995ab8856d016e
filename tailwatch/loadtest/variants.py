"""The variants of an ablation: what each puts behind the server's command, and into its environment.

    # the first one is what the others are compared with
    default:
    freeze: TAILWATCH_GC=freeze
    batch 32: --max-num-seqs 32

A line each: a name, a colon, NAME=VALUE pairs, then words for the command line, quoted as in a shell. Nothing is
expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tailwatch.errors import TailwatchError

MOST = 20
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True)
class Variant:
    """One way to start the server."""

    name: str
    words: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def read(path: str | Path) -> list[Variant]:
    """The variants of a file, in its order.

    Raises:
        TailwatchError: it cannot be read, or is none; the message names the line.
    """
    try:
        written = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TailwatchError(f"{path}: this is no text in UTF-8") from error
    return parse(written, name=str(path))


def parse(written: str, *, name: str = "variants") -> list[Variant]:
    """Of the lines of such a file. name: of the file, for the error.

    Raises:
        TailwatchError: they are no variants; the message names the line.
    """
    found: list[Variant] = []
    for number, line in enumerate(written.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(_variant(line, f"{name}, line {number}", [variant.name for variant in found]))
    if not 2 <= len(found) <= MOST:
        raise TailwatchError(f"{name}: expected 2 to {MOST} variants, a line each like 'freeze: TAILWATCH_GC=freeze', "
                             f"found {len(found)}")  # fmt: skip
    return found


def _variant(line: str, where: str, names: Sequence[str]) -> Variant:
    name, colon, rest = line.partition(":")
    name = name.strip()
    if not colon or not name:
        raise TailwatchError(f"{where}: expected a name and a colon, found {line.strip()!r}")
    if name in names:
        raise TailwatchError(f"{where}: expected each name once, found {name!r} again")
    try:
        words = shlex.split(rest, comments=True)
    except ValueError as error:
        raise TailwatchError(f"{where}: {error}") from error
    if any("\0" in word for word in words):
        raise TailwatchError(f"{where}: no command takes a word with a NUL")
    settings = 0
    while settings < len(words) and _SETTING.match(words[settings]):
        settings += 1
    pairs = (word.partition("=") for word in words[:settings])
    return Variant(name, tuple(words[settings:]), {key: value for key, _, value in pairs})
