"""From exchanges to results: a row, a few histogram samples and the second it belongs to, once an exchange is over."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from tailwatch.loadtest.client_health import SelfWatch
from tailwatch.loadtest.exchange import Exchange
from tailwatch.loadtest.latencies import CENSORED, Latencies
from tailwatch.loadtest.outcomes import (
    CODE,
    EXCLUDED,
    FAULTS,
    NEVER_SENT,
    REASONS,
    Outcomes,
    answered,
    broken,
    fault_of,
    reason_of,
)
from tailwatch.loadtest.requests import COLUMNS, MARKED, NEVER, RETRIED, REUSED, Requests, samples, unanswered
from tailwatch.loadtest.schedule import Planned
from tailwatch.loadtest.series import Series
from tailwatch.loadtest.validity import ClientHealth
from tailwatch.options.slo import SLO

MOST_EXAMPLES = 3  # failures of each kind that are shown
_SECOND = 1_000_000_000
_LONGEST_SERIES = 7 * 24 * 3600
_MISSES = frozenset(CODE[name] for name in REASONS if name != "good" and name not in EXCLUDED)
_GOOD, _LATE = CODE["good"], CODE["late"]
_EXAMPLE = 600  # characters of an error that are kept


class Recorder:
    """Keeps what came back. All of it belongs to the loop's thread; start_ns: the run's start, monotonic."""

    def __init__(self, start_ns: int, slo: SLO | None, watch: SelfWatch) -> None:
        self.start_ns, self.slo, self.watch = start_ns, slo, watch
        self.requests, self.series, self.latencies = Requests(), Series(), Latencies()
        self.broken: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}
        self.tokens = self.due = self.met = self.idle_ns = self.marked_requests = self.marked_gaps = 0
        self._ended: dict[int, int] = {}  # exchanges by the second of their end, however they ended
        self._reasons, self._faults = [0] * len(REASONS), [0] * len(FAULTS)
        self._append = tuple(getattr(self.requests, name).append for name in COLUMNS)

    def note(self, exchange: Exchange, planned: Planned) -> None:
        """An exchange is over, however it ended."""
        self.watch.look()
        tokens, marked = exchange.output_tokens, self._gaps(exchange)
        reason, fault = reason_of(exchange, self.slo), fault_of(exchange)
        flags = (REUSED if exchange.reused else 0) | (RETRIED if exchange.retries else 0) | (MARKED if marked else 0)
        whole = answered(exchange)
        tpots = exchange.tpots_ns if whole else ()  # of an unfinished one a mean gap is none of its
        for tpot in tpots:
            self.latencies.tpot.record(round(tpot))
        if exchange.connect_ns:
            self.latencies.connect.record(exchange.connect_ns)
        start = self.start_ns
        row = (
            exchange.planned_ns - start,
            _since(exchange.sent_ns, start),
            _since(exchange.first_byte_ns, start),
            _since(exchange.first_chunk_ns, start),
            _since(exchange.first_content_ns, start),
            _since(exchange.last_content_ns, start),
            _since(exchange.end_ns, start),
            round(max(tpots)) if tpots else NEVER,
            exchange.largest_gap_ns if exchange.messages > 1 else NEVER,
            _since(exchange.largest_gap_at_ns, start),
            planned.index,
            planned.prompt_tokens,
            planned.output_tokens,
            tokens,
            exchange.messages,
            exchange.due,
            exchange.met,
            min(exchange.status, 65535),
            reason,
            fault,
            flags,
        )
        for append, value in zip(self._append, row, strict=True):
            append(value)
        self._reasons[reason] += 1
        self._faults[fault] += 1
        self._judge(exchange, reason, fault, whole)
        self._second(exchange, reason, tokens)

    def never_sent(self, planned_ns: int, planned: Planned) -> None:
        """A request of the plan that was not sent, and will not be: a miss."""
        values = {**dict.fromkeys(COLUMNS, 0), **dict.fromkeys(_TIMES, NEVER)}
        values |= {"planned": planned_ns - self.start_ns, "index": planned.index, "prompt": planned.prompt_tokens}
        values |= {"end": max(time.monotonic_ns(), planned_ns) - self.start_ns}
        self.requests.add(**values | {"wanted": planned.output_tokens, "reason": CODE[NEVER_SENT]})
        self._reasons[CODE[NEVER_SENT]] += 1
        second = self._at(planned_ns)
        self.series.scheduled[second] += 1
        self.series.miss[second] += 1

    def sent(self, moment_ns: int, in_flight: int) -> None:
        """A request goes out, one of so many in flight."""
        second = self._at(moment_ns)
        self.series.sent[second] += 1
        if in_flight > self.series.in_flight[second]:
            self.series.in_flight[second] = in_flight

    def finish(self, client: ClientHealth) -> Outcomes:
        """All is in: the histograms that the columns give, and the client's part."""
        for name in ("ttft_naive", "first_byte", "first_chunk", "e2e_naive", "largest_gap", "send_lag"):
            getattr(self.latencies, name).record_all(samples(self.requests, name))
        for name, ages in CENSORED.items():
            waited, self.latencies.lost[name] = unanswered(self.requests, name)
            getattr(self.latencies, ages).record_all(waited)
        client.marked_requests, client.marked_gaps = self.marked_requests, self.marked_gaps
        self._carry()
        for start, length in client.pauses:
            self._paused(max(0, start), max(0, start) + length)
        return self.outcomes

    @property
    def outcomes(self) -> Outcomes:
        """Up to now."""
        faults = {name: count for name, count in zip(FAULTS, self._faults, strict=True) if name and count}
        return Outcomes(dict(zip(REASONS, self._reasons, strict=True)), faults)

    def throughput(self, duration: float) -> float:
        """See `throughput_of`."""
        return throughput_of(self.requests, duration)

    def _gaps(self, exchange: Exchange) -> bool:
        """Counts the gaps; whether one of them, or the wait for the first token, overlaps a pause of ours."""
        itl, unmarked = self.latencies.itl, self.latencies.itl_unmarked
        itl.record_gaps(exchange.stamps)
        start, end = exchange.planned_ns, exchange.end_ns
        if not self.watch.overlaps(start, end):
            unmarked.record_gaps(exchange.stamps)
            return False
        stamps = memoryview(exchange.stamps).cast("Q")
        # From the first token on: one that waited for a minute has many pauses behind it, and its gaps none of them.
        marked = self.watch.marked(stamps, stamps[0], end) if len(stamps) > 1 else set()
        gaps = ((i, stamps[i + 1] - stamps[i]) for i in range(len(stamps) - 1))
        unmarked.record_all(array("Q", (gap for i, gap in gaps if i not in marked)))
        self.marked_gaps += len(marked)
        self.marked_requests += 1
        return True

    def _judge(self, exchange: Exchange, reason: int, fault: int, whole: bool) -> None:
        if reason == _LATE and self.slo is not None:
            for name in broken(exchange, self.slo):
                self.broken[name] = self.broken.get(name, 0) + 1
        if exchange.first_content_ns:
            self.latencies.ttft.record(exchange.first_content_ns - exchange.planned_ns)
        if whole:
            self.latencies.e2e.record(exchange.end_ns - exchange.planned_ns)
        self.due += exchange.due
        self.met += exchange.met
        self.idle_ns += exchange.idle_ns
        if reason == _GOOD:
            return
        name = FAULTS[fault] or REASONS[reason]
        if name == "late" or len(kept := self.examples.setdefault(name, [])) == MOST_EXAMPLES:
            return
        if (text := _example(exchange)) not in kept:
            kept.append(text)

    def _second(self, exchange: Exchange, reason: int, tokens: int) -> None:
        series, planned = self.series, self._at(exchange.planned_ns)
        end = self._at(exchange.end_ns)
        series.scheduled[planned] += 1
        series.good[planned] += reason == _GOOD
        series.miss[planned] += reason in _MISSES
        self._ended[end] = self._ended.get(end, 0) + 1
        series.finished[end] += exchange.ending == 1
        if exchange.first_content_ns:
            ttft = exchange.first_content_ns - exchange.planned_ns
            series.ttft_max_ns[planned] = max(series.ttft_max_ns[planned], ttft)
        if exchange.largest_gap_ns:
            at = self._at(exchange.largest_gap_at_ns)
            series.largest_gap_ns[at] = max(series.largest_gap_ns[at], exchange.largest_gap_ns)
        self.tokens += tokens
        self._spread(exchange, tokens, end)

    def _spread(self, exchange: Exchange, tokens: int, end: int) -> None:
        """Tokens belong to the seconds of their messages, each message to an equal share."""
        first, last = exchange.first_content_ns, exchange.last_content_ns
        stamps = memoryview(exchange.stamps).cast("Q")
        if not first or len(stamps) != exchange.messages or self._at(first) == self._at(last):
            self.series.tokens[self._at(last) if last else end] += tokens
            return
        done = given = 0
        for second in range(self._at(first), self._at(last) + 1):
            done = bisect_left(stamps, self.start_ns + (second + 1) * _SECOND)
            share = tokens * done // len(stamps) - given
            self.series.tokens[second] += share
            given += share

    def _carry(self) -> None:
        """What was in flight when a second began was in flight in it, also where nothing was sent."""
        running, series = 0, self.series
        for second in range(len(series)):
            series.in_flight[second] = max(series.in_flight[second], running)
            running += series.sent[second] - self._ended.get(second, 0)

    def _paused(self, start: int, end: int) -> None:
        for second in range(start // _SECOND, min(end // _SECOND, _LONGEST_SERIES) + 1):
            self.series.reach(second)
            inside = min(end, (second + 1) * _SECOND) - max(start, second * _SECOND)
            self.series.client_paused_ns[second] += max(0, inside)

    def _at(self, moment_ns: int) -> int:
        """The second of a moment; the series reaches it."""
        second = min(max(0, moment_ns - self.start_ns) // _SECOND, _LONGEST_SERIES)
        if second >= len(self.series.scheduled):
            self.series.reach(second)
        return second


_TIMES = ("sent", "first_byte", "first_chunk", "first", "last", "end", "tpot", "largest_gap", "largest_gap_at")


def _example(exchange: Exchange) -> str:
    """What came instead of an answer, in one line that no terminal takes for more."""
    parts = [f"HTTP {exchange.status}" if exchange.status else "", exchange.error]
    text = ": ".join(part for part in (*parts, exchange.head.decode("utf-8", "replace")) if part)
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))[:_EXAMPLE]


def _since(moment_ns: int, start_ns: int) -> int:
    return moment_ns - start_ns if moment_ns else NEVER


def throughput_of(requests: Requests, duration: float) -> float:
    """Whole answers per second over a window as long as the plan that opens with the first of them."""
    first = min(_whole_ends(requests), default=None)
    if first is None or duration <= 0:
        return 0.0
    until = first + round(duration * 1e9)
    return sum(end <= until for end in _whole_ends(requests)) / duration


def _whole_ends(requests: Requests) -> Iterator[int]:
    """Not a list: of a million requests it would be what the run takes most memory for."""
    rows = zip(requests.end, requests.status, requests.fault, strict=True)
    return (end for end, status, fault in rows if end != NEVER and 200 <= status < 300 and not fault)
