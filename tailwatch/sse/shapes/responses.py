"""OpenAI Responses events as vLLM 0.33.0 sends them: the openai SDK's event classes (3.52), nulls included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tailwatch.sse.shape import OUT, Frame, Slot, Table

RESPONSE: Final[Table] = {
    "id": Slot("id"),
    "created_at": Slot("created"),
    "error": Slot("error", OUT),
    "incomplete_details": Slot("incomplete_details", None),
    "instructions": None,
    "metadata": None,
    "model": Slot("model"),
    "object": "response",
    "output": Slot("output", []),
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_options": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "auto",
    "status": Slot("status"),
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "usage": Slot("usage", None),
    "user": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "input_messages": None,
    "output_messages": None,
}

USAGE: Final[Table] = {
    "input_tokens": Slot("input"),
    "input_tokens_details": {
        "cached_tokens": Slot("cached"),
        "cache_write_tokens": 0,
        "input_tokens_per_turn": [],
        "cached_tokens_per_turn": [],
    },
    "output_tokens": Slot("generated"),
    "output_tokens_details": {
        "reasoning_tokens": Slot("reasoning"),
        "tool_output_tokens": 0,
        "output_tokens_per_turn": [],
        "tool_output_tokens_per_turn": [],
    },
    "total_tokens": Slot("total"),
}


def _event(name: str, **fields: object) -> Frame:
    return Frame({**fields, "type": name}, event=name)


def _named_call(frame: Frame) -> Frame:
    """With the name that vLLM adds to the class's own fields."""
    return Frame({**frame.table, "name": Slot("name")}, event=str(frame.table["type"]))


_OUTPUT: Final = Slot("output_index")
_NUMBER: Final = Slot("sequence_number")
_ITEM_ID: Final = Slot("item_id")
_TEXT: Final = Slot("text")

WHOLE: Final[Mapping[str, Frame]] = {
    name: _event(f"response.{name}", response=Slot("response"), sequence_number=_NUMBER)
    for name in ("created", "in_progress", "completed", "incomplete", "failed")
}
ERROR: Final = _event(
    "error", code=Slot("code", None), message=Slot("message"), param=Slot("param", None), sequence_number=_NUMBER
)
ITEM_ADDED: Final = _event(
    "response.output_item.added", item=Slot("item"), output_index=_OUTPUT, sequence_number=_NUMBER
)
ITEM_DONE: Final = _event("response.output_item.done", item=Slot("item"), output_index=_OUTPUT, sequence_number=_NUMBER)
_PART: Final[Table] = {
    "content_index": 0,
    "item_id": _ITEM_ID,
    "output_index": _OUTPUT,
    "part": Slot("part"),
    "sequence_number": _NUMBER,
}
PART_ADDED: Final = _event("response.content_part.added", **_PART)
PART_DONE: Final = _event("response.content_part.done", **_PART)


class Kind(NamedTuple):
    """A kind of output item: itself when it begins and when it is done, its part likewise, its text's two events."""

    begun: Table
    done: Table
    delta: Frame
    text_done: Frame
    part: Table | None = None
    part_done: Table | None = None


def _message(content: object, status: object) -> Table:
    return {
        "id": _ITEM_ID,
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def _output_text(logprobs: object) -> Table:
    return {"annotations": [], "text": _TEXT, "type": "output_text", "logprobs": logprobs}


_MESSAGE: Final = Kind(
    begun=_message([], "in_progress"),
    done=_message([_output_text(None)], Slot("item_status")),
    delta=_event(
        "response.output_text.delta",
        content_index=0,
        delta=_TEXT,
        item_id=_ITEM_ID,
        logprobs=Slot("logprobs", []),
        output_index=_OUTPUT,
        sequence_number=_NUMBER,
    ),
    text_done=_event(
        "response.output_text.done",
        content_index=0,
        item_id=_ITEM_ID,
        logprobs=[],
        output_index=_OUTPUT,
        sequence_number=_NUMBER,
        text=_TEXT,
    ),
    part=_output_text([]),
    part_done=_output_text(None),
)


def _reasoning(content: object, status: object) -> Table:
    return {
        "id": _ITEM_ID,
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


_REASONING_TEXT: Final[Table] = {"text": _TEXT, "type": "reasoning_text"}
_REASONING: Final = Kind(
    begun=_reasoning(None, "in_progress"),
    done=_reasoning([_REASONING_TEXT], Slot("item_status")),
    delta=_event(
        "response.reasoning_text.delta",
        content_index=0,
        delta=_TEXT,
        item_id=_ITEM_ID,
        output_index=_OUTPUT,
        sequence_number=_NUMBER,
    ),
    text_done=_event(
        "response.reasoning_text.done",
        content_index=0,
        item_id=_ITEM_ID,
        output_index=_OUTPUT,
        sequence_number=_NUMBER,
        text=_TEXT,
    ),
    part=_REASONING_TEXT,
    part_done=_REASONING_TEXT,
)


def _call(arguments: object, status: object) -> Table:
    return {
        "arguments": arguments,
        "call_id": Slot("call_id"),
        "name": Slot("name"),
        "type": "function_call",
        "id": _ITEM_ID,
        "async": None,
        "caller": None,
        "namespace": None,
        "status": status,
    }


_FUNCTION_CALL: Final = Kind(
    begun=_call("", "in_progress"),
    done=_call(_TEXT, Slot("item_status")),
    delta=_event(
        "response.function_call_arguments.delta",
        delta=_TEXT,
        item_id=_ITEM_ID,
        output_index=_OUTPUT,
        sequence_number=_NUMBER,
    ),
    text_done=_named_call(
        _event(
            "response.function_call_arguments.done",
            arguments=_TEXT,
            item_id=_ITEM_ID,
            output_index=_OUTPUT,
            sequence_number=_NUMBER,
        )
    ),
)

KINDS: Final[Mapping[str, Kind]] = {
    "message": _MESSAGE,
    "reasoning": _REASONING,
    "function_call": _FUNCTION_CALL,
}
