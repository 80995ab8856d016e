"""Runs of several clients that shared one load, as one run: everything is added, and judged anew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailwatch.errors import OptionError
from tailwatch.loadtest.client_health import judge
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.outcomes import Outcomes
from tailwatch.loadtest.recorder import MOST_EXAMPLES, throughput_of
from tailwatch.loadtest.requests import Requests
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.series import Series
from tailwatch.loadtest.validity import VERDICTS, ClientHealth, Validity

APART = 0.1  # share of the run by which its clients' spans may lie apart
_OWN = frozenset(("rate", "requests", "workers", "seed", "max_in_flight", "processes"))  # settings of one client


def merged(results: Sequence[Result], *, schedule: Mapping[str, Any] | None = None) -> Result:
    """One run of several clients that shared one load at the same time.

    Times count from the earliest start, series in whole seconds of it. What the numbers of all together show is the
    verdict; what was wrong with one client alone is a warning. schedule: that of which each sent a part; None: each had
    its own.

    Raises:
        OptionError: none, or not of one load: other targets, bounds or options, or not at the same time.
    """
    if not results:
        raise OptionError("nothing to merge: no run was given")
    parts = sorted(results, key=lambda result: result.started)
    _check(parts)
    first, latencies, outcomes = parts[0], Latencies(), Outcomes()
    for part in parts:
        latencies.add(part.latencies)
        outcomes = outcomes.plus(part.outcomes)
    client, series, rows = _clients(parts), _series(parts), _rows(parts)
    validity = _judged(parts, outcomes, latencies, client)
    if schedule is None and _twins(parts):
        validity.warnings.append(_SAME)
    duration = max(_after(first, part) + part.duration for part in parts)
    elapsed = max(_after(first, part) + part.elapsed for part in parts)
    tokens = sum(part.tokens for part in parts)
    return replace(
        first,
        schedule=dict(schedule) if schedule is not None else _schedules([part.schedule for part in parts]),
        duration=duration,
        elapsed=elapsed,
        goodput=goodput_of(
            outcomes,
            first.slo,
            duration=duration,
            throughput=sum(part.goodput.throughput for part in parts)
            if rows is None
            else throughput_of(rows, duration),
            tokens=tokens / elapsed if elapsed else 0.0,
            broken=_added(part.goodput.broken for part in parts),
            windows=series.windows,
            believed=validity.valid,
        ),
        outcomes=outcomes,
        latencies=latencies,
        tokens=tokens,
        fluidity=_fluidity(parts, rows),
        idle=_idle(parts),
        series=series,
        client=client,
        validity=validity,
        requests=rows,
        interrupted=any(part.interrupted for part in parts),
        examples=_examples(parts),
    )


_SAME = "several clients sent the same schedule, each request at the same moment: give each a --seed of its own"


def _check(parts: Sequence[Result]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if (part.target, part.slo, part.closed) != (first.target, first.slo, first.closed):
            raise OptionError("only runs of one target, one SLO and one kind of loop merge into one run")
        if other := sorted(_options(first).items() ^ _options(part).items()):
            raise OptionError(f"only runs with the same options merge into one run: {other[0][0]} differs")
        if (apart := _apart(first, part)) > APART * max(part.duration, first.duration):
            raise OptionError(
                f"only runs of the same time merge into one run: their spans lie {apart:.3g} s apart (by the clocks of "
                "their machines)"
            )


def _apart(first: Result, part: Result) -> float:
    """Seconds between the starts of two, or between their ends where the plan alone fixes when that is."""
    by_plan = not (first.closed or first.interrupted or part.interrupted)
    return max(_after(first, part), abs(part.duration - first.duration) if by_plan else 0.0)


def _twins(parts: Sequence[Result]) -> bool:
    """Whether two of them sent one schedule, and not parts of it."""
    digests = [digest for part in parts if (digest := part.schedule.get("digest"))]
    return len(set(digests)) < len(digests)


def _options(part: Result) -> dict[str, str]:
    return {name: repr(value) for name, value in part.settings.items() if name not in _OWN}


def _after(first: Result, part: Result) -> float:
    """Seconds from the earliest start to a part's."""
    return part.started - first.started


def _judged(parts: Sequence[Result], outcomes: Outcomes, latencies: Latencies, client: ClientHealth) -> Validity:
    """Anew; and what of the parts' verdicts does not come of their numbers (Ctrl-C, a server that ended)."""
    found = judge(outcomes, latencies, client, closed=parts[0].closed)
    alone = []
    for part in parts:
        own = judge(part.outcomes, part.latencies, part.client, closed=part.closed)
        if part.validity.verdict != own.verdict:
            found.verdict = max(found.verdict, part.validity.verdict, key=VERDICTS.index)
        found.reasons += [reason for reason in part.validity.reasons if reason not in own.reasons]
        found.warnings += [warning for warning in part.validity.warnings if warning not in own.warnings]
        alone += own.reasons if not own.valid else []
    if not found.reasons:
        found.warnings += [f"one client alone: {reason}" for reason in alone]
    return Validity(found.verdict, _once(found.reasons), _once(found.warnings))


def _clients(parts: Sequence[Result]) -> ClientHealth:
    whole = ClientHealth(processes=0, uvloop=True)
    for part in parts:
        shift = round(_after(parts[0], part) * 1e9)
        pauses = [(start + shift, length) for start, length in part.client.pauses]
        whole = whole.plus(replace(part.client, pauses=pauses))
    return whole


def _series(parts: Sequence[Result]) -> Series:
    """On the common start, to the nearest second."""
    whole = Series()
    for part in parts:
        whole = whole.plus(part.series.later(round(_after(parts[0], part))))
    return whole


def _rows(parts: Sequence[Result]) -> Requests | None:
    whole = Requests()
    for part in parts:
        if part.requests is None:
            return None
        whole.extend(part.requests, round(_after(parts[0], part) * 1e9))
    return whole


def _fluidity(parts: Sequence[Result], rows: Requests | None) -> float | None:
    """Of all deadlines; where they are not known one by one, by tokens."""
    known = [(part.fluidity, part.tokens) for part in parts if part.fluidity is not None]
    if rows is not None and known:
        return sum(rows.met) / max(1, sum(rows.due))
    weight = sum(tokens for _, tokens in known)
    return sum(share * tokens for share, tokens in known) / weight if weight else None


def _idle(parts: Sequence[Result]) -> float | None:
    known = [part.idle for part in parts if part.idle is not None]
    return sum(known) if known else None


def _schedules(all_of: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of clients with schedules of their own: what is left to describe, and a digest that is theirs together."""
    digests = sorted(str(one.get("digest", "")) for one in all_of)
    targets = list(dict.fromkeys(str(one.get("target", "")) for one in all_of))
    many = f"{len(all_of)} x {targets[0]}" if len(targets) == 1 and len(all_of) > 1 else " + ".join(targets)
    return {
        **all_of[0],
        "digest": hashlib.sha256("".join(digests).encode()).hexdigest()[:16] if any(digests) else "",
        "target": many,
        "n": sum(int(one.get("n", 0)) for one in all_of),
        "rate": sum(float(one.get("rate", 0.0)) for one in all_of),
        **(dict.fromkeys(("cv", "fano", "ks", "p")) if len(all_of) > 1 else {}),
    }


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            whole[name] = whole.get(name, 0) + count
    return whole


def _examples(parts: Sequence[Result]) -> dict[str, list[str]]:
    whole: dict[str, list[str]] = {}
    for part in parts:
        for name, texts in part.examples.items():
            whole[name] = _once([*whole.get(name, []), *texts])[:MOST_EXAMPLES]
    return whole


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
