"""Frames of no particular server: any JSON, any text, a comment, the end mark."""

from __future__ import annotations

import re
from typing import Final

import orjson

from tailwatch.sse import validation

DONE: Final = b"data: [DONE]\n\n"
"""The frame that ends a stream of OpenAI's chat and completions."""

_LINE_END = re.compile("\r\n|\n|\r")


def event(obj: object, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """A frame whose data is obj as JSON, by orjson.

    obj: what orjson takes; a str becomes a JSON string (text() sends it as it is), and orjson.Fragment(bytes) stands
    for JSON that is written already: on one line, for a line end would end the data; whether it is JSON is not checked.
    event: its type; id: what a client sends back as seen last; retry: milliseconds a client waits before it
    does.

    Raises:
        OptionError: event, id or a Fragment hold a line end, id a NUL, or retry is not a non-negative int.
        orjson.JSONEncodeError (a TypeError): obj has no JSON.
    """
    return _fields(event, id, retry) + b"data: " + validation.json_line("obj", orjson.dumps(obj)) + b"\n\n"


def text(text: str, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """A frame whose data is the text itself: a data line for each of its lines, joined by LF where it is read.

    Raises:
        OptionError: as for event(), or the text holds half of a surrogate pair.
    """
    lines = _LINE_END.split(validation.text("text", text))
    return _fields(event, id, retry) + "".join(f"data: {line}\n" for line in lines).encode() + b"\n"


def comment(text: str = "") -> bytes:
    """A frame that no client hands on: it keeps a connection open. A comment line for each line of the text."""
    lines = _LINE_END.split(validation.text("text", text))
    return "".join(f": {line}\n" for line in lines).encode() + b"\n"


def _fields(event: str | None, id: str | None, retry: int | None) -> bytes:
    fields = ""
    if event is not None:
        fields += f"event: {validation.one_line('event', event, empty=False)}\n"
    if id is not None:
        fields += f"id: {validation.one_line('id', id, nul=False)}\n"
    if retry is not None:
        fields += f"retry: {validation.count('retry', retry)}\n"
    return fields.encode()
