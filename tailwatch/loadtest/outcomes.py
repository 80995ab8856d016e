"""What became of each request: the server side's table (tailwatch.options.slo), and what only a client sees.

good: finished without error within every bound. miss: late, an error, 429, 5xx, a timeout (408 and 504 are some), never
sent, ended by the tester (`abandoned`), an answer of a model API that can be read and has no content. excluded, and
counted: other 4xx and 3xx, and `unmeasured`: an answer of a model API whose body cannot be read. A tester that gives up
has waited: what it ended or never sent is a miss and never one of the "earlier aborts", which exist on the server side
only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailwatch.options import slo as slos

if TYPE_CHECKING:
    from tailwatch.loadtest.exchange import Exchange
    from tailwatch.options.slo import SLO

NEVER_SENT, ABANDONED = "never_sent", "abandoned"
MISSES = (*(name for name in slos.MISSES if name != "abort_late"), ABANDONED, NEVER_SENT)
UNMEASURED = "unmeasured"
EXCLUDED = ("4xx", "3xx", UNMEASURED)
REASONS = ("good", *MISSES, *EXCLUDED)
CODE = {name: code for code, name in enumerate(REASONS)}

# What an `error` was, by name; 0 where nothing was wrong with the exchange itself. In the order of `Ending`.
FAULTS = (
    "", "refused", "reset", "truncated", "timeout", "garbage", "tls", "client_limit", "abandoned",
    "error_event", "no_content",
)  # fmt: skip


_CONTENT = (b'"choices"', b'"content"', b'"output"')  # keys of the answers of `endpoint.PATHS`


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How many requests had which outcome; `scheduled` is their sum.

    by_reason: REASONS → count, all of them, also those that are 0. faults: what went wrong with an exchange, by the
    name of it (FAULTS), only those that happened.
    """

    by_reason: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    faults: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, reasons: array[int], faults: array[int]) -> Outcomes:
        """Counts columns of codes."""
        by_reason = {name: reasons.count(code) for name, code in CODE.items()}
        by_fault = {name: faults.count(code) for code, name in enumerate(FAULTS) if name}
        return cls(by_reason, {name: count for name, count in by_fault.items() if count})

    @property
    def scheduled(self) -> int:
        """All requests of the plan."""
        return sum(self.by_reason.values())

    @property
    def good(self) -> int:
        """Finished without error within every bound."""
        return self.by_reason["good"]

    @property
    def miss(self) -> int:
        """Late, failed, refused, given up, or never sent."""
        return sum(self.by_reason[name] for name in MISSES)

    @property
    def excluded(self) -> int:
        """Neither: 4xx other than 429, 3xx, and what could not be read."""
        return sum(self.by_reason[name] for name in EXCLUDED)

    @property
    def never_sent(self) -> int:
        """Of the misses: those that the tester did not send."""
        return self.by_reason[NEVER_SENT]

    def plus(self, other: Outcomes) -> Outcomes:
        """Both together."""
        reasons = {name: count + other.by_reason[name] for name, count in self.by_reason.items()}
        names = sorted({*self.faults, *other.faults}, key=FAULTS.index)
        return Outcomes(reasons, {name: self.faults.get(name, 0) + other.faults.get(name, 0) for name in names})


def fault_of(exchange: Exchange) -> int:
    """Code of what went wrong with an exchange; 0: nothing (a refusal in HTTP, like 503, is no fault of it)."""
    ending = int(exchange.ending)
    if ending > 1:  # not pending, not finished
        return ending - 1
    if ending == 0 or not 200 <= exchange.status < 300:
        return 0
    return FAULTS.index("error_event" if exchange.failed else "no_content" if _empty(exchange) else "")


def _empty(exchange: Exchange) -> bool:
    """No content in an answer that was read; one JSON document is looked at for the keys that hold it."""
    if not exchange.generates or exchange.unread or exchange.messages or exchange.output_tokens:
        return False
    return exchange.content_type != "application/json" or not any(key in exchange.head for key in _CONTENT)


def reason_of(exchange: Exchange, slo: SLO | None) -> int:
    """Code of its outcome, an index into REASONS. slo: None: every request that finishes without error is good."""
    name = _name_of(exchange)
    if name == "good" and slo is not None and broken(exchange, slo):
        name = "late"
    return CODE[name]


def answered(exchange: Exchange) -> bool:
    """Whether a whole answer came that is none of error: what TPOT and E2E are of."""
    return 200 <= exchange.status < 300 and fault_of(exchange) == 0 and exchange.ending == 1 and not exchange.unread


def _name_of(exchange: Exchange) -> str:
    """Without the bounds, in the order of tw_stream_verdict() (csrc/stamp/stream.c): a status shows more than how the
    connection ended afterwards, but for a wait that was given up."""
    status, fault = exchange.status, FAULTS[fault_of(exchange)]
    if status == 429:
        return "429"
    if status in (408, 504) or fault == "timeout":
        return "timeout"
    if status >= 300:
        return "5xx" if status >= 500 else "4xx" if status >= 400 else "3xx"
    if exchange.unread and exchange.ending == 1:
        return UNMEASURED
    if answered(exchange):
        return "good"
    return "abandoned" if fault == "abandoned" else "error"


def broken(exchange: Exchange, slo: SLO) -> Sequence[str]:
    """Names of the bounds that a whole answer exceeds, from its planned start; TPOT by its slowest choice. The TTFT
    bound of an answer without content that can be seen is judged by its first bytes, or else by its end."""
    tpots = exchange.tpots_ns
    first = exchange.first_content_ns or exchange.first_chunk_ns or exchange.end_ns
    return slo.broken(
        ttft=(first - exchange.planned_ns) / 1e9,
        tpot=max(tpots) / 1e9 if tpots else None,
        itl=exchange.largest_gap_ns / 1e9,
        e2e=(exchange.end_ns - exchange.planned_ns) / 1e9,
    )
