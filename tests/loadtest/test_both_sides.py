"""One table for both sides: what became of a request is the same word for the server that gave it and the tester."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.asgi.middleware import timed_send
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.outcomes import FAULTS, REASONS, broken, fault_of, reason_of
from tailwatch.options.slo import SLO

pytestmark = pytest.mark.integration

MS = 1_000_000
BOUNDS = SLO.parse("ttft<=2s,tpot<=400ms,itl<=1s,e2e<=10s")
ARRIVAL = 10**9

# The end of a request, as each side sees it.
FINISHED, ERROR, TIMEOUT = "finished", "error", "timeout"
ENDINGS = {FINISHED: Ending.FINISHED, ERROR: Ending.TRUNCATED, TIMEOUT: Ending.TIMEOUT}

# status, end, milliseconds of: first byte of the body, messages with content, the end; the reason on both sides.
TABLE: list[tuple[int, str, int, tuple[int, ...], int, str]] = [
    (200, FINISHED, 100, (200, 400), 500, "good"),
    (200, FINISHED, 100, (3000, 3100), 3200, "late"),
    (200, FINISHED, 100, (200, 1500), 1600, "late"),
    (200, FINISHED, 100, (200, 400), 12000, "late"),
    # nothing was generated: the first bytes are what its TTFT bound is judged by, else its end
    (200, FINISHED, 100, (), 200, "good"),
    (200, FINISHED, 100, (), 4000, "good"),
    (200, FINISHED, 3000, (), 3100, "late"),
    (200, FINISHED, 0, (), 200, "good"),
    (200, FINISHED, 0, (), 3000, "late"),
    (200, ERROR, 100, (200, 400), 500, "error"),
    (200, TIMEOUT, 100, (200, 400), 500, "timeout"),
    (200, TIMEOUT, 0, (), 500, "timeout"),
    (429, FINISHED, 100, (), 100, "429"),
    (429, TIMEOUT, 100, (), 100, "429"),
    (408, FINISHED, 100, (), 100, "timeout"),
    (504, FINISHED, 100, (), 100, "timeout"),
    (504, ERROR, 100, (), 100, "timeout"),
    (500, FINISHED, 100, (), 100, "5xx"),
    (503, FINISHED, 100, (), 100, "5xx"),
    (503, ERROR, 100, (), 100, "5xx"),
    (503, TIMEOUT, 100, (), 100, "timeout"),
    (400, FINISHED, 100, (), 100, "4xx"),
    (404, FINISHED, 100, (), 100, "4xx"),
    (404, TIMEOUT, 100, (), 100, "timeout"),
    (302, FINISHED, 100, (), 100, "3xx"),
    (302, ERROR, 100, (), 100, "3xx"),
]


def of_the_tester(status: int, end: str, body: int, messages: tuple[int, ...], over: int) -> Exchange:
    """As the client's connection fills it in."""
    found = Exchange(ARRIVAL)
    found.sent_ns, found.status, found.ending = ARRIVAL, status, ENDINGS[end]
    found.first_chunk_ns = ARRIVAL + body * MS if body else 0
    found.end_ns = ARRIVAL + over * MS
    if messages:
        first, last = (ARRIVAL + at * MS for at in (messages[0], messages[-1]))
        found.first_content_ns, found.last_content_ns = first, last
        found.messages = found.tokens = len(messages)
        found.choices = ((first, last, len(messages)),)
        found.largest_gap_ns = max((b - a) * MS for a, b in pairwise(messages))
    return found


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_tester_gives_the_reason_of_the_table(row: tuple[Any, ...]) -> None:
    """Statuses before endings, 429 before a timeout, a timeout (408 and 504 are some) before the rest."""
    *seen, reason = row
    assert REASONS[reason_of(of_the_tester(*seen), BOUNDS)] == reason


def of_the_server(status: int, end: str, body: int, messages: tuple[int, ...], over: int) -> list[str]:
    """The reasons that the core's stream gives over the same request."""
    core = _hot.Core("api", 8, BOUNDS.as_core(), 0, lambda scope: "/v1/completions", timed_send)
    arrival = _hot.now() - body * MS
    scope: dict[str, Any] = {"type": "http", "path": "/", "root_path": "", "headers": [], "method": "POST"}
    send = core.request(scope, lambda message: None, True, arrival, arrival, 0, 1, None, False)  # type: ignore[arg-type]
    head = [(b"content-type", b"text/event-stream")]
    send.send({"type": "http.response.start", "status": status, "headers": head})
    if body:
        send.send({"type": "http.response.body", "body": b": a comment\n\n", "more_body": True})
    for at in messages:
        send.stream.token(at=arrival + at * MS)
    ends = {FINISHED: send.stream.close, ERROR: send.stream.fail, TIMEOUT: send.stream.timeout}
    ends[end](at=arrival + over * MS)
    return [reason for reason, n in snapshots.take([core.address]).requests.items() for _ in range(n)]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_server_gives_the_same(row: tuple[Any, ...]) -> None:
    """The control: the table is the core's own."""
    *seen, reason = row
    assert of_the_server(*seen) == [reason]


def test_a_timeout_has_its_side() -> None:
    """A 504 is the server's: no fault of the exchange; the tester's own is one."""
    assert FAULTS[fault_of(of_the_tester(504, FINISHED, 10, (), 10))] == ""
    assert FAULTS[fault_of(of_the_tester(200, TIMEOUT, 10, (), 10))] == "timeout"


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ((200, FINISHED, 3000, (), 3100), ("ttft",)),
        ((200, FINISHED, 100, (), 12000), ("e2e",)),
        ((200, FINISHED, 0, (), 12000), ("ttft", "e2e")),
        ((200, FINISHED, 100, (200, 1400), 1500), ("tpot", "itl")),
    ],
)  # fmt: skip
def test_the_bounds_that_were_exceeded_are_named(row: tuple[Any, ...], names: tuple[str, ...]) -> None:
    """Of a whole answer, as `Goodput.broken` counts them."""
    assert tuple(broken(of_the_tester(*row), BOUNDS)) == names
