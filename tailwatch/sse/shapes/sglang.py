"""The frames of SGLang 0.5.23: msgspec structs for text, Pydantic models for tool calls, usage and completions."""

from __future__ import annotations

from typing import Final

from tailwatch.sse.shape import OUT, Frame, Shape, Slot, Table

_USAGE: Final[Table] = {
    "prompt_tokens": Slot("prompt"),
    "total_tokens": Slot("total"),
    "completion_tokens": Slot("completion"),
    "prompt_tokens_details": Slot("cached_details", None),
    "reasoning_tokens": Slot("reasoning", 0),
    "completion_tokens_details": Slot("reasoning_details", None),
}
_ERROR: Final = Frame(
    {
        "error": {
            "object": "error",
            "message": Slot("message"),
            "type": Slot("type", "BadRequestError"),
            "param": Slot("param", None),
            "code": Slot("code", 400),
        }
    },
    "json",
)


def _chunk(choices: list[Table], usage: object, dialect: str) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "chat.completion.chunk",
            "created": Slot("created"),
            "model": Slot("model"),
            "choices": choices,
            "usage": usage,
        },
        dialect,
    )


def _choice(delta: Table, logprobs: object, reason: object = None, stop: object = None) -> Table:
    return {
        "index": Slot("index"),
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": reason,
        "matched_stop": stop,
    }


def _delta(reasoning: object, **delta: object) -> Frame:
    choice = _choice({"reasoning_content": reasoning, **delta}, Slot("logprobs", None))
    return _chunk([choice], Slot("usage", OUT), "msgspec")


_TOOL_CALL: Final[Table] = {
    "id": Slot("call_id", None),
    "index": Slot("call"),
    "type": Slot("call_type", "function"),
    "function": {"name": Slot("name", None), "arguments": Slot("arguments", None)},
}
_TOOL_DELTA: Final[Table] = {"role": None, "content": None, "reasoning_content": None, "tool_calls": [_TOOL_CALL]}

CHAT: Final = Shape(
    {
        "role": _delta(None, role=Slot("role"), content=""),
        "content": _delta(None, content=Slot("text")),
        "reasoning": _delta(Slot("text")),
        "tool_call": _chunk([_choice(_TOOL_DELTA, None)], Slot("usage", None), "pydantic"),
        "finish": _chunk(
            [_choice({"reasoning_content": None}, None, Slot("reason"), Slot("stop", None))], OUT, "msgspec"
        ),
        "usage": _chunk([], _USAGE, "pydantic"),
        "error": _ERROR,
    },
    usage=_USAGE,
    zero_is_detail=False,
)


def _completion(choices: list[Table], usage: object) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "text_completion",
            "created": Slot("created"),
            "model": Slot("model"),
            "choices": choices,
            "usage": usage,
        }
    )


def _text(text: Slot, reason: object, stop: object) -> Frame:
    choice = {
        "index": Slot("index"),
        "text": text,
        "logprobs": Slot("logprobs", None),
        "finish_reason": reason,
        "matched_stop": stop,
    }
    return _completion([choice], Slot("usage", None))


_LAST_USAGE: Final[Table] = {
    **_USAGE,
    "prompt_tokens_details": Slot("cached_details", OUT),
    "completion_tokens_details": Slot("reasoning_details", OUT),
}

COMPLETION: Final = Shape(
    {
        "content": _text(Slot("text"), None, None),
        "finish": _text(Slot("text", ""), Slot("reason"), Slot("stop", None)),
        "usage": _completion([], _LAST_USAGE),
        "error": _ERROR,
    },
    usage=_USAGE,
    zero_is_detail=False,
)
