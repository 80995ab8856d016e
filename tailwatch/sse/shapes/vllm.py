"""The frames of vLLM 0.33.0: fields that its serving code sets, null or not, in the order of its classes."""

from __future__ import annotations

from typing import Final

from tailwatch.sse.shape import OUT, Frame, Shape, Slot, Table

_COUNTS: Final[Table] = {
    "prompt_tokens": Slot("prompt"),
    "total_tokens": Slot("total"),
    "completion_tokens": Slot("completion"),
}
_LAST_USAGE: Final[Table] = {
    **_COUNTS,
    "prompt_tokens_details": Slot("cached_details", OUT),
    "completion_tokens_details": Slot("reasoning_details", OUT),
}
_ERROR: Final[Table] = {
    "error": {
        "message": Slot("message"),
        "type": Slot("type", "BadRequestError"),
        "param": Slot("param", None),
        "code": Slot("code", 400),
    }
}
_FINGERPRINT: Final = Slot("system_fingerprint", OUT)


def _chat(choice: Table, **chunk: object) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "chat.completion.chunk",
            "created": Slot("created"),
            "model": Slot("model"),
            "choices": [{"index": Slot("index"), **choice}],
            "usage": Slot("usage", OUT),
            **chunk,
        }
    )


def _delta(delta: Table) -> Frame:
    choice = {"delta": delta, "logprobs": Slot("logprobs", None), "finish_reason": None}
    return _chat({**choice, "token_ids": None}, kv_transfer_params=None)


_TOOL_CALL: Final[Table] = {
    "id": Slot("call_id", OUT),
    "type": Slot("call_type", OUT),
    "index": Slot("call"),
    "function": {"name": Slot("name", OUT), "arguments": Slot("arguments", OUT)},
}

CHAT: Final = Shape(
    {
        "role": _chat(
            {"delta": {"role": Slot("role"), "content": ""}, "logprobs": None, "finish_reason": None},
            prompt_token_ids=None,
            prompt_text=None,
        ),
        "content": _delta({"content": Slot("text")}),
        "reasoning": _delta({"reasoning": Slot("text")}),
        "tool_call": _delta({"tool_calls": [_TOOL_CALL]}),
        "finish": _chat(
            {
                "delta": {"content": Slot("text", "")},
                "logprobs": Slot("logprobs", None),
                "finish_reason": Slot("reason"),
                "stop_reason": Slot("stop", None),
                "token_ids": None,
                "weight_versions": None,
            },
            system_fingerprint=_FINGERPRINT,
            kv_transfer_params=None,
        ),
        "usage": Frame(
            {
                "id": Slot("id"),
                "object": "chat.completion.chunk",
                "created": Slot("created"),
                "model": Slot("model"),
                "choices": [],
                "usage": _LAST_USAGE,
                "system_fingerprint": _FINGERPRINT,
            }
        ),
        "error": Frame(_ERROR),
    },
    usage={**_COUNTS, "completion_tokens_details": Slot("reasoning_details", None)},
    fingerprint_is_last=True,
)


def _completion(choices: list[Table], usage: object, **chunk: object) -> Frame:
    return Frame(
        {
            "id": Slot("id"),
            "object": "text_completion",
            "created": Slot("created"),
            "model": Slot("model"),
            "choices": choices,
            "usage": usage,
            "system_fingerprint": _FINGERPRINT,
            **chunk,
        }
    )


def _text(text: Slot, reason: object, stop: object) -> Frame:
    choice = {
        "index": Slot("index"),
        "text": text,
        "logprobs": Slot("logprobs", None),
        "finish_reason": reason,
        "stop_reason": stop,
        "prompt_token_ids": None,
        "token_ids": None,
        "weight_versions": None,
    }
    return _completion([choice], Slot("usage", OUT), kv_transfer_params=None)


COMPLETION: Final = Shape(
    {
        "content": _text(Slot("text"), None, None),
        "finish": _text(Slot("text", ""), Slot("reason"), Slot("stop", None)),
        "usage": _completion([], {**_COUNTS, "prompt_tokens_details": Slot("cached_details", OUT)}),
        "error": Frame(_ERROR, "json"),
    },
    usage=_COUNTS,
    fingerprint_is_last=True,
)
