"""LMDeploy. A chunk is built by a nested function, dumped to a dict by Pydantic, and written by json.dumps: the last of
the three can be taken over from outside.

Read in 0.18.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailwatch.integrations.fast_sse_targets import FastSSETarget, JsonDumps
from tailwatch.sse.verified_builder import Arguments, GuardedBuilder, GuardedShape, Recall

_HEAD = ("id", "object", "created", "model", "choices")
_HEAD_AND_USAGE = (*_HEAD, "usage")  # null: the request asked for one at the end
_TEXTS = frozenset({"role", "content", "reasoning_content"})

Key = tuple[bool, tuple[str, ...]]  # with a null usage; the names in the delta, () where the choice has a text
Values = tuple[Any, ...]


def _read(frame: Any) -> tuple[Key, Values] | None:
    """What makes the frame's shape, and what its holes hold; None for a frame of another kind."""
    keys = tuple(frame)
    if keys == _HEAD_AND_USAGE and frame["usage"] is None:
        name, kind, created, model, choices, _ = frame.values()
    elif keys == _HEAD:
        name, kind, created, model, choices = frame.values()
    else:
        return None
    if len(choices) != 1:
        return None
    below = tuple(choices[0])
    if below == ("index", "delta"):
        index, delta = choices[0].values()
        if delta and _TEXTS.issuperset(delta):
            return (len(keys) == 6, tuple(delta)), (name, kind, created, model, index, *delta.values())
    elif below == ("index", "text"):
        return (len(keys) == 6, ()), (name, kind, created, model, *choices[0].values())
    return None


def _write(key: Key, values: Values) -> Mapping[str, Any]:
    """What _read() read."""
    usage, names = key
    below = {"delta": dict(zip(names, values[5:], strict=True))} if names else {"text": values[5]}
    frame = dict(zip(_HEAD, (*values[:4], [{"index": values[4], **below}]), strict=True))
    return {**frame, "usage": None} if usage else frame


def _recall(key: Key) -> Recall:
    def recall(values: Any, call: Arguments) -> Arguments:
        return (_write(key, tuple(values)),), {}

    return recall


def _dumps(builder: GuardedBuilder) -> Callable[..., str]:
    shapes: dict[Key, GuardedShape] = {}

    def shape_of(key: Key, values: Values) -> GuardedShape:
        holes = (str, str, int, str, int, *(str for _ in values[5:]))
        shapes[key] = shape = builder.shape(f"LMDeploy {' '.join(key[1]) or 'text'}", holes, _recall(key))
        return shape

    def dumps(obj: Any, **options: Any) -> str:
        try:
            read = None if options else _read(obj)
        except Exception:
            read = None
        if read is None:
            return builder.original(obj, **options)
        shape = shapes.get(read[0]) or shape_of(*read)
        return builder.answer(shape, read[1], obj)

    return dumps


_OPENAI = "lmdeploy.serve.openai"

TARGETS: tuple[FastSSETarget, ...] = (
    JsonDumps(f"{_OPENAI}.chat_completions.serving", _dumps),
    JsonDumps(f"{_OPENAI}.endpoints.completions", _dumps),
)
