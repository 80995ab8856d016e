"""Texts that are hard to bring through, and whole answers with them in every kind of frame."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tailwatch import sse

MODEL = 'a "model"/ü'
CREATED = 1_700_000_000
MORE = 5  # tokens that the usage counts and that had no frame of their own

CONTROLS = [chr(code) for code in (*range(0x20), 0x7F, 0x85, 0x9F)]
NASTY = [
    *CONTROLS,
    "".join(CONTROLS),
    '"',
    "\\",
    '\\"',
    "\\u0041 \\n \\ud800",
    "\r\n\r\n",
    "\n\n",
    "data: x",
    "\n\ndata: [DONE]\n\n",
    "[DONE]",
    "event: error\nid: 1\r\nretry: 1\r\rdata: {}\n\n: comment",
    '"}}]}\n\n',
    "</script><!--",
    "\u2028 and \u2029",
    "\ufeff",
    "\ufffd \ufffe \uffff \U0010ffff",
    "语言模型、言語モデル、언어 모델",
    "e\u0301 \u202e\u200d",
    "👩🏽\u200d💻🏴\U000e0067\U000e007f",
    'def f(x):\n\treturn "\\\\" + x["ключ"]\r\n' * 1000,
    "x" * 65536,
    "é" * 65536,
    "",
]
PIECES = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8)
ARGUMENTS = ['{"text": ', json.dumps("".join(NASTY)), "}"]


def tokens(texts: Sequence[str]) -> int:
    """How many of the pieces are one."""
    return sum(map(bool, texts))


def chat(**options: Any) -> sse.ChatStream:
    """An encoder."""
    return sse.ChatStream("chatcmpl-1", MODEL, CREATED, **options)


def response_frames() -> Iterator[bytes]:
    """Reasoning, text in two messages, and a function call."""
    stream = sse.ResponseStream("resp-1", MODEL, CREATED)
    yield stream.created()
    yield stream.in_progress()
    yield from item(stream, NASTY, id="rs-1", kind="reasoning")
    yield from item(stream, NASTY, id="msg-1")
    yield from item(stream, ["and"], id="msg-2")
    yield from item(stream, ARGUMENTS, id="fc-1", kind="function_call", call_id="call-1", name="tool")
    yield stream.completed(input=9, output=2 * tokens(NASTY) + 4 + MORE, cached=3, reasoning=tokens(NASTY))


def item(stream: sse.ResponseStream, texts: Sequence[str], **begun: Any) -> Iterator[bytes]:
    """One output item."""
    yield stream.item(**begun)
    yield from map(stream.content, texts)
    yield stream.item_done("".join(texts))


def message_frames(like: str) -> Iterator[bytes]:
    """Thinking, text, a ping between, and a tool's input."""
    stream = sse.MessageStream("msg-1", MODEL, like=like)
    yield stream.message_start(input=9, output=1)
    yield stream.block_start("thinking")
    yield from map(stream.content, NASTY)
    yield stream.signature("c2lnbmVk")
    yield stream.block_stop()
    yield stream.ping()
    yield stream.block_start()
    yield from map(stream.content, NASTY)
    yield stream.block_stop()
    yield stream.block_start("tool_use", id="toolu-1", name="tool")
    yield from map(stream.content, ARGUMENTS)
    yield stream.block_stop()
    yield stream.message_delta("tool_use", output=2 * tokens(NASTY) + 3 + MORE)
    yield stream.message_stop()
