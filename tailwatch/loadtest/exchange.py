"""One request and what came back: times on the monotonic clock in nanoseconds, never a judgement.

Whether an exchange was good is decided by outcomes.py, from what stands here. The definitions are the server side's
(csrc/include/tailwatch/stamp/stream.h): a gap lies between two messages that carry generated content, and a message of
several tokens is one message. Here a message is one event of the stream (one line of NDJSON), stamped when the read
that brought its end returned; events that came in one read have a gap of 0 between them.
"""

from __future__ import annotations

import enum
from typing import Any


class Ending(enum.IntEnum):
    """How an exchange ended. Only FINISHED brought a whole answer, of whatever status."""

    PENDING = 0
    """Not yet."""
    FINISHED = 1
    """The answer came whole, by HTTP. An error event inside it is `failed`."""
    REFUSED = 2
    """No connection: refused, unreachable, no such host."""
    RESET = 3
    """The connection was lost before the first byte of an answer, and it was not a stale one."""
    TRUNCATED = 4
    """The connection was lost inside the answer, or its stream ended without the end marker of its protocol."""
    TIMEOUT = 5
    """The tester gave up waiting, as configured."""
    GARBAGE = 6
    """What came back is not HTTP."""
    TLS = 7
    """The TLS handshake failed: certificate, protocol."""
    LIMIT = 8
    """This client could not open a connection: descriptors, ports, memory. Shows nothing about the server."""
    ABANDONED = 9
    """The tester ended it: Pool.close(), the end of the run."""


class Exchange:
    """One request. Fill in planned_ns, hand it to Pool.send(); the rest is filled in when `done` is called.

    Every time is CLOCK_MONOTONIC nanoseconds (time.monotonic_ns()); 0: it did not happen.
    """

    __slots__ = (
        "body_bytes",
        "choices",
        "connect_ns",
        "content_type",
        "done",
        "due",
        "end_ns",
        "ending",
        "error",
        "failed",
        "first_byte_ns",
        "first_chunk_ns",
        "first_content_ns",
        "generates",
        "head",
        "idle_ns",
        "largest_gap_at_ns",
        "largest_gap_ns",
        "last_content_ns",
        "messages",
        "met",
        "planned_ns",
        "retries",
        "reused",
        "sent_ns",
        "stamps",
        "status",
        "tag",
        "tokens",
        "unread",
        "usage_tokens",
        "written_ns",
    )

    planned_ns: int
    """When it was to be sent: what every corrected time counts from. Never changed, also by a retry."""
    tag: Any
    """The caller's own, untouched (an index of the schedule, for example)."""
    sent_ns: int
    """When Pool.send() took it up: sent - planned is this client's own lag, and naive times count from here."""
    written_ns: int
    """When its bytes were written: later than sent_ns by the connecting, or by a retry."""
    connect_ns: int
    """How long connecting took (TLS included), 0 on a connection that was there."""
    first_byte_ns: int
    """The first byte of the answer: of its status line."""
    first_chunk_ns: int
    """The first byte of its body: perhaps a role, a comment, a ping."""
    first_content_ns: int
    """The first message with generated content: what TTFT means. 0 also where none can be seen (one JSON document)."""
    last_content_ns: int
    """The last such message."""
    end_ns: int
    """When it ended, however it did."""
    ending: Ending
    error: str
    """What went wrong, in the words of its finder; "" where nothing did."""
    status: int
    """Of HTTP; 0 where no status line came."""
    failed: bool
    """An error event, or an error object, was in the answer."""
    done: bool
    """The stream's own end marker came ([DONE], message_stop, …)."""
    messages: int
    """Those with generated content."""
    tokens: int
    """Of all choices: a message counts as one, or as its token ids where the server gives them."""
    usage_tokens: int
    """Completion tokens as the server gives them, 0: it does not."""
    choices: tuple[tuple[int, int, int], ...]
    """First and last stamp and tokens of each choice that was seen, in order of its index; at most 8."""
    largest_gap_ns: int
    """Between two messages with content; 0 where there are fewer than two."""
    largest_gap_at_ns: int
    """When that gap began."""
    due: int
    met: int
    """Token deadlines of choice 0, and those met (Etalon's fluidity, counted as in csrc/stamp/stream.c): the first one
    counts from planned_ns. 0 and 0 where the pool was given no deadlines, or no content came."""
    idle_ns: int
    """How long a reader at the pace of the deadlines had nothing to read, after the first token."""
    body_bytes: int
    """Of the body, without its chunk headers and its content encoding."""
    content_type: str
    """Of the answer, in lower case, without its parameters."""
    head: bytes
    """Up to 512 bytes of the body, of an answer that is no success (status, error event, unread, without content) or
    where the pool keeps them: of the event that reported an error, else the first ones."""
    generates: bool
    """It was asked of a model API, with a limit of tokens above 0: an answer has content."""
    unread: str
    """Of a model API's answer: the content type and encoding that kept its body from being read; "" where it was."""
    retries: int
    """1: the connection turned out to have been closed meanwhile, and it was sent again on a new one."""
    reused: bool
    """The connection that it ended on had carried others before."""
    stamps: bytes
    """When the messages with content came: unsigned 64-bit ns in the machine's order, ascending. Of the first 131072
    messages; the numbers above count them all."""

    def __init__(self, planned_ns: int, tag: Any = None) -> None:
        self.planned_ns = planned_ns
        self.tag = tag
        self.sent_ns = self.written_ns = self.connect_ns = 0
        self.first_byte_ns = self.first_chunk_ns = self.first_content_ns = self.last_content_ns = self.end_ns = 0
        self.ending = Ending.PENDING
        self.error = ""
        self.status = 0
        self.failed = self.done = self.reused = self.generates = False
        self.unread = ""
        self.messages = self.tokens = self.usage_tokens = 0
        self.choices = ()
        self.largest_gap_ns = self.largest_gap_at_ns = 0
        self.due = self.met = self.idle_ns = 0
        self.body_bytes = self.retries = 0
        self.content_type = ""
        self.head = self.stamps = b""

    def __repr__(self) -> str:
        return f"<Exchange {self.ending.name.lower()} status={self.status} tokens={self.tokens} {self.error}>"

    @property
    def ttft_ns(self) -> int | None:
        """First content - planned start."""
        return self.first_content_ns - self.planned_ns if self.first_content_ns else None

    @property
    def e2e_ns(self) -> int | None:
        """End - planned start, of a whole answer."""
        return self.end_ns - self.planned_ns if self.ending is Ending.FINISHED else None

    @property
    def output_tokens(self) -> int:
        """The server's own count where it gives a larger one, as on the server side."""
        return max(self.tokens, self.usage_tokens)

    @property
    def tpots_ns(self) -> tuple[float, ...]:
        """(last token - first token) / (tokens - 1) of each choice; none where all came in one message, or where the
        server counts more tokens than were seen and there are several choices."""
        raised = self.usage_tokens > self.tokens
        if raised and len(self.choices) != 1:
            return ()
        counted = ((last - first, self.usage_tokens if raised else tokens) for first, last, tokens in self.choices)
        return tuple(span / (tokens - 1) for span, tokens in counted if span > 0 and tokens > 1)
