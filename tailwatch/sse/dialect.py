"""Whose JSON: how a serialiser escapes text, and what it raises where it cannot.

pydantic, orjson, msgspec and json.dumps(ensure_ascii=False) write the same bytes for every Unicode text; json.dumps
writes ASCII. They part where a text holds half of a surrogate pair: json.dumps writes its escape, each of the others
raises an error of its own, and so do we.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from tailwatch.sse import validation


@dataclass(frozen=True, slots=True)
class Dialect:
    """One serialiser: its name, whether it writes ASCII only, and its bytes for an object, or its own error."""

    name: str
    ascii: bool
    dumps: Callable[[object], bytes]


def _pydantic(value: object) -> bytes:
    from pydantic_core import to_json

    return to_json(value, inf_nan_mode="null")


def _msgspec(value: object) -> bytes:
    from msgspec.json import encode

    return encode(value)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _json_utf8(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _by_orjson(original: Callable[[Any], bytes]) -> Callable[[object], bytes]:
    """orjson's bytes; what orjson refuses, the original writes or refuses in its own words."""

    def dumps(value: object) -> bytes:
        try:
            return orjson.dumps(value)
        except TypeError:
            pass
        return original(value)

    return dumps


def _compact(name: str, original: Callable[[Any], bytes]) -> Dialect:
    return Dialect(name, False, _by_orjson(original))


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        _compact("pydantic", _pydantic),
        _compact("orjson", orjson.dumps),
        _compact("msgspec", _msgspec),
        Dialect("json", True, _json),
        Dialect("json-utf8", False, _json_utf8),
    )
}


def named(name: str) -> Dialect:
    """The dialect of that name; an OptionError lists them all."""
    return DIALECTS[validation.one_of("dialect", name, DIALECTS)]
