"""What the encoders ask of their arguments, at once and by name, so that no frame fails later for it."""

from __future__ import annotations

from collections.abc import Iterable

from tailwatch.errors import OptionError

_LARGEST = 2**63 - 1
_VERSIONS = {"vllm": "0.33", "sglang": "0.5.23", "transformers": "5.23"}  # whose frames tailwatch.sse.shapes has


def is_str(name: str, found: object) -> str:
    """The str that it is: text of the model's, which the serialiser itself may refuse."""
    if not isinstance(found, str):
        raise TypeError(f"{name}: expected str, found {type(found).__name__}")
    return found


def text(option: str, found: object, *, empty: bool = True) -> str:
    """The str that it is; it can be encoded."""
    if not isinstance(found, str) or not (found or empty):
        raise OptionError.of(option, found, "expected " + ("a str" if empty else "a str that is not empty"))
    try:
        found.encode()
    except UnicodeEncodeError:
        raise OptionError.of(option, found, "expected Unicode text, this holds half of a surrogate pair") from None
    return found


def count(option: str, found: object, *, largest: int = _LARGEST) -> int:
    """The int that it is, from 0 to the largest."""
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= largest:
        raise OptionError.of(option, found, f"expected an int from 0 to {largest}")
    return found


def total(**counts: int) -> int:
    """The sum of counts, itself one."""
    for name, found in counts.items():
        count(name, found)
    return count(" + ".join(counts), sum(counts.values()))


def flag(option: str, found: object) -> bool:
    """The bool that it is."""
    if not isinstance(found, bool):
        raise OptionError.of(option, found, "expected True or False")
    return found


def one_of(option: str, found: object, choices: Iterable[str]) -> str:
    """The one of these names that it is."""
    names = list(choices)
    if not isinstance(found, str) or found not in names:
        raise OptionError.of(option, found, "expected one of " + ", ".join(names), choices=names)
    return found


def server(found: object, choices: Iterable[str]) -> str:
    """The one of these servers that ``like`` is."""
    names = list(choices)
    if not isinstance(found, str) or found not in names:
        known = [f"{name} ({_VERSIONS[name]})" if name in _VERSIONS else name for name in names]
        raise OptionError.of("like", found, "expected one of " + ", ".join(known), choices=names)
    return found


def json_line(option: str, written: bytes) -> bytes:
    """JSON that ends no line of a frame: serialisers write none that does, but what they are handed as JSON may."""
    if b"\n" in written or b"\r" in written:
        raise OptionError.of(option, written, "expected JSON on one line; what is JSON already may hold no CR or LF")
    return written


def one_line(option: str, found: object, *, nul: bool = True, empty: bool = True) -> str:
    """Text without a line end in it (and without NUL): nothing that could begin another field."""
    line = text(option, found, empty=empty)
    if "\r" in line or "\n" in line:
        raise OptionError.of(option, line, "expected one line, this holds a CR or LF")
    if not nul and "\0" in line:
        raise OptionError.of(option, line, "expected no NUL in it: clients drop such an id")
    return line
