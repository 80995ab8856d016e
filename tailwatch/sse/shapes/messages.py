"""Anthropic Messages events: of Anthropic's API, in the order of its reference, and of vLLM 0.33.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tailwatch.sse.shape import OUT, Frame, Slot, Table


class Events(NamedTuple):
    """One server's events by name, and the fields of a content block and of its delta by the block's kind."""

    frames: Mapping[str, Frame]
    blocks: Mapping[str, Table]


_BLOCKS: Final[Mapping[str, Table]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": ""},
    "tool_use": {"type": "tool_use", "id": Slot("id"), "name": Slot("name"), "input": {}},
}
DELTAS: Final[Mapping[str, Table]] = {
    "text": {"type": "text_delta", "text": Slot("text")},
    "thinking": {"type": "thinking_delta", "thinking": Slot("text")},
    "tool_use": {"type": "input_json_delta", "partial_json": Slot("text")},
    "signature": {"type": "signature_delta", "signature": Slot("text")},
}
_CACHE: Final[Table] = {
    "cache_creation_input_tokens": Slot("cache_created", OUT),
    "cache_read_input_tokens": Slot("cache_read", OUT),
}
_STOP: Final[Table] = {"stop_reason": Slot("stop_reason"), "stop_sequence": Slot("stop_sequence", None)}
_ERROR: Final[Table] = {"type": Slot("error_type"), "message": Slot("message")}


def _frames(**events: Table) -> Mapping[str, Frame]:
    return {name: Frame({"type": name, **fields}, event=name) for name, fields in events.items()}


def _message(content_first: bool, usage: Table) -> Table:
    model: Table = {"model": Slot("model")}
    content: Table = {"content": []}
    return {
        "id": Slot("id"),
        "type": "message",
        "role": "assistant",
        **(content if content_first else model),
        **(model if content_first else content),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


ANTHROPIC: Final = Events(
    _frames(
        message_start={
            "message": _message(False, {"input_tokens": Slot("input"), **_CACHE, "output_tokens": Slot("output")})
        },
        content_block_start={"index": Slot("index"), "content_block": Slot("block")},
        content_block_delta={"index": Slot("index"), "delta": Slot("delta")},
        content_block_stop={"index": Slot("index")},
        message_delta={
            "delta": _STOP,
            "usage": {"input_tokens": Slot("input", OUT), **_CACHE, "output_tokens": Slot("output")},
        },
        message_stop={},
        ping={},
        error={"error": _ERROR},
    ),
    {**_BLOCKS, "thinking": {"type": "thinking", "thinking": "", "signature": ""}},
)

_VLLM_USAGE: Final[Table] = {"input_tokens": Slot("input", 0), "output_tokens": Slot("output"), **_CACHE}

VLLM: Final = Events(
    _frames(
        message_start={"message": _message(True, _VLLM_USAGE)},
        content_block_start={"content_block": Slot("block"), "index": Slot("index")},
        content_block_delta={"delta": Slot("delta"), "index": Slot("index")},
        content_block_stop={"index": Slot("index")},
        message_delta={"delta": _STOP, "usage": _VLLM_USAGE},
        message_stop={},
        ping={},
        error={"error": _ERROR},
    ),
    _BLOCKS,
)
