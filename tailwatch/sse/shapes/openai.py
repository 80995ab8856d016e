"""The frames of the OpenAI API, in the order of its reference's streaming examples."""

from __future__ import annotations

from typing import Final

from tailwatch.sse.shape import OUT, Frame, Shape, Slot, Table

_USAGE: Final[Table] = {
    "prompt_tokens": Slot("prompt"),
    "completion_tokens": Slot("completion"),
    "total_tokens": Slot("total"),
    "prompt_tokens_details": Slot("cached_details", OUT),
    "completion_tokens_details": Slot("reasoning_details", OUT),
}
_ERROR: Final = Frame(
    {
        "error": {
            "message": Slot("message"),
            "type": Slot("type", "server_error"),
            "param": Slot("param", None),
            "code": Slot("code", None),
        }
    }
)


def _chunk(choices: list[Table], usage: object = Slot("usage", OUT)) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "chat.completion.chunk",
            "created": Slot("created"),
            "model": Slot("model"),
            "service_tier": Slot("service_tier", OUT),
            "system_fingerprint": Slot("system_fingerprint", OUT),
            "choices": choices,
            "usage": usage,
        }
    )


def _delta(delta: Table, reason: object = None) -> Frame:
    choice = {"index": Slot("index"), "delta": delta, "logprobs": Slot("logprobs", None), "finish_reason": reason}
    return _chunk([choice])


_TOOL_CALL: Final[Table] = {
    "index": Slot("call"),
    "id": Slot("call_id", OUT),
    "type": Slot("call_type", OUT),
    "function": {"name": Slot("name", OUT), "arguments": Slot("arguments", OUT)},
}

CHAT: Final = Shape(
    {
        "role": _delta({"role": Slot("role"), "content": ""}),
        "content": _delta({"content": Slot("text")}),
        "reasoning": _delta({"reasoning_content": Slot("text")}),
        "tool_call": _delta({"tool_calls": [_TOOL_CALL]}),
        "finish": _delta({"content": Slot("text", OUT)}, Slot("reason")),
        "usage": _chunk([], _USAGE),
        "error": _ERROR,
    },
    usage=_USAGE,
    usage_is_null=True,
)


def _completion(choices: list[Table], usage: object = Slot("usage", OUT)) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "text_completion",
            "created": Slot("created"),
            "choices": choices,
            "model": Slot("model"),
            "system_fingerprint": Slot("system_fingerprint", OUT),
            "usage": usage,
        }
    )


def _text(text: Slot, reason: object = None) -> Frame:
    choice = {"text": text, "index": Slot("index"), "logprobs": Slot("logprobs", None), "finish_reason": reason}
    return _completion([choice])


COMPLETION: Final = Shape(
    {
        "content": _text(Slot("text")),
        "finish": _text(Slot("text", ""), Slot("reason")),
        "usage": _completion([], _USAGE),
        "error": _ERROR,
    },
    usage=_USAGE,
    usage_is_null=True,
)
