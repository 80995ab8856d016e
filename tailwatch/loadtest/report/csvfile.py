"""One row a request, for a spreadsheet: seconds, empty where it did not happen."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.outcomes import FAULTS, REASONS
from tailwatch.loadtest.requests import MARKED, NEVER, RETRIED, REUSED, Requests
from tailwatch.loadtest.results import Result

HEADS = (
    *("run", "index", "planned", "sent", "send_lag", "first_byte", "ttft", "ttft_naive", "e2e", "e2e_naive"),
    *("tpot", "largest_gap", "largest_gap_at", "prompt_tokens", "output_tokens_wanted", "output_tokens"),
    *("status", "outcome", "fault", "reused", "retried", "client_paused", "run_interrupted"),
)
"""planned, sent, largest_gap_at: from the start of the run. first_byte, ttft, e2e: from the planned start; …_naive:
from the actual send. e2e: to the end, however it ended: outcome and fault hold how. client_paused: a pause of this
client overlaps its first token or one of its gaps. run_interrupted: Ctrl-C ended the run."""


def write(results: Sequence[Result], path: str | Path) -> None:
    """The requests of all runs, one after the other.

    Raises:
        TailwatchError: it cannot be written, or the requests of a run were left out of its file.
    """
    if any(result.requests is None for result in results):
        raise TailwatchError(f"--csv {path}: the requests of this run were not kept, only its histograms")
    try:
        with open(path, "w", encoding="utf-8", errors="replace", newline="") as out:
            _write(results, out)
    except OSError as error:
        raise TailwatchError(f"--csv {path}: {error.strerror}") from error


def _write(results: Sequence[Result], out: TextIO) -> None:
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(HEADS)
    for number, result in enumerate(results):
        assert result.requests is not None
        lines.writerows(rows(result.requests, result.name or str(number), result.interrupted))


def rows(requests: Requests, run: str, interrupted: bool = False) -> Iterator[tuple[str | int, ...]]:
    """In the order of HEADS. A run's name that a spreadsheet would take for a formula gets an apostrophe."""
    run = f"'{run}" if run[:1] in ("=", "+", "-", "@", "\t", "\r") else run
    for i, planned in enumerate(requests.planned):
        sent, first, end, flags = requests.sent[i], requests.first[i], requests.end[i], requests.flags[i]
        yield (
            *(run, requests.index[i], _at(planned), _at(sent), _since(sent, planned)),
            *(_since(requests.first_byte[i], planned), _since(first, planned), _since(first, sent)),
            *(_since(end, planned), _since(end, sent)),
            *(_at(requests.tpot[i]), _at(requests.largest_gap[i]), _at(requests.largest_gap_at[i])),
            *(requests.prompt[i], requests.wanted[i], requests.tokens[i], requests.status[i]),
            *(REASONS[requests.reason[i]], FAULTS[requests.fault[i]]),
            *(int(bool(flags & bit)) for bit in (REUSED, RETRIED, MARKED)),
            int(interrupted),
        )


def _at(ns: int) -> str:
    return "" if ns == NEVER else f"{ns / 1e9:.6f}"


def _since(ns: int, start: int) -> str:
    return "" if NEVER in (ns, start) else f"{(ns - start) / 1e9:.6f}"
