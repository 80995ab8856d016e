"""The few errors, which teach: each names the option, what was expected and what was found."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 80


class TailwatchError(Exception):
    """Anything this package raises on purpose."""


class OptionError(TailwatchError, ValueError):
    """A value that an option or argument does not take.

    Attributes:
        option: its name, "" where only a message was given.
        expected: what it takes, in words.
        found: the value itself.
        source: the environment variable it came from, None for an argument.
        hint: the nearest name that would have been taken, None where nothing is near.
    """

    option: str = ""
    expected: str = ""
    found: object = None
    source: str | None = None
    hint: str | None = None

    @classmethod
    def of(
        cls, option: str, found: object, expected: str, *, source: str | None = None, choices: Iterable[str] = ()
    ) -> OptionError:
        """The error whose message is built from its parts; choices: names to suggest the nearest of."""
        hint = nearest(found, choices)
        message = f"{option}={_brief.repr(found)}: {expected}"
        message += f"; did you mean {hint!r}?" if hint else ""
        message += f" (from {source})" if source else ""
        error = cls(message)
        error.option, error.expected, error.found, error.source, error.hint = option, expected, found, source, hint
        return error


class AlreadyInstalledError(TailwatchError, RuntimeError):
    """install() was called again with other options; the message names them."""


class NotInstalledError(TailwatchError, RuntimeError):
    """install() was not called in this process."""


class BusyError(TailwatchError, RuntimeError):
    """Requests are in flight and would stall; the message gives their number and what to do."""


class EmptyGroupError(TailwatchError):
    """The directory of a group has no segment that this version can read."""


class UnsupportedError(TailwatchError, ImportError):
    """This interpreter or system cannot run the package; the message has the reason, and what works."""


def nearest(found: object, choices: Iterable[str]) -> str | None:
    """The choice that looks most like found, None where none does (or found is no text)."""
    if not isinstance(found, str):
        return None
    from difflib import get_close_matches  # here: most processes have no wrong option

    near = get_close_matches(found.lower(), list(choices), n=1, cutoff=0.6)
    return near[0] if near else None


def how_to_install(extra: str) -> str:
    """The command for an optional part of the package, which is built from its repository."""
    return f"pip install '.[{extra}]' in tailwatch's repository"
