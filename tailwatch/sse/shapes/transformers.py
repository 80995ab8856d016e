"""The frames of transformers 5.23.0 serve: the openai SDK's chunk classes without what is None."""

from __future__ import annotations

from typing import Final

from tailwatch.sse.shape import OUT, Frame, Shape, Slot, Table

_USAGE: Final[Table] = {
    "completion_tokens": Slot("completion"),
    "prompt_tokens": Slot("prompt"),
    "total_tokens": Slot("total"),
}
_ERROR: Final = Frame({"error": Slot("message")}, "json-utf8")


def _chat(delta: Table, reason: object = OUT) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "choices": [{"delta": delta, "index": Slot("index"), "finish_reason": reason}],
            "created": Slot("created"),
            "model": Slot("model"),
            "object": "chat.completion.chunk",
            "system_fingerprint": Slot("system_fingerprint", ""),
            "usage": Slot("usage", OUT),
        }
    )


_TOOL_CALL: Final[Table] = {
    "index": Slot("call"),
    "id": Slot("call_id", OUT),
    "function": {"arguments": Slot("arguments", OUT), "name": Slot("name", OUT)},
    "type": Slot("call_type", OUT),
}

CHAT: Final = Shape(
    {
        "role": _chat({"role": Slot("role")}),
        "content": _chat({"content": Slot("text")}),
        "reasoning": _chat({"reasoning_content": Slot("text")}),
        "tool_call": _chat({"tool_calls": [_TOOL_CALL]}),
        "finish": _chat({"content": Slot("text", OUT)}, Slot("reason")),
        "error": _ERROR,
    },
    usage=_USAGE,
)


def _completion(text: Slot, reason: object = OUT) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "choices": [{"finish_reason": reason, "index": Slot("index"), "text": text}],
            "created": Slot("created"),
            "model": Slot("model"),
            "object": "text_completion",
            "usage": Slot("usage", OUT),
        }
    )


COMPLETION: Final = Shape(
    {"content": _completion(Slot("text")), "finish": _completion(Slot("text", ""), Slot("reason")), "error": _ERROR},
    usage=_USAGE,
)
