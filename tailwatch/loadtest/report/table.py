"""The table after a run: what users waited beside what a tester that forgets its plan would report, and the verdict.

Both columns are of the same requests. They part where this client did not send when it should have: a cap that bound, a
pause of its own, a closed loop. The words under the table name it, so that a reader of two of these sees why.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence

from tailwatch.loadtest.censored_percentiles import Quantile
from tailwatch.loadtest.report import text
from tailwatch.loadtest.report.quantiles import Quantiles, at_least
from tailwatch.loadtest.results import Result

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9, 100.0)
HIDDEN = 1.05  # corrected over naive from which the difference is written down
FROZEN = 5.0  # largest gap over the worst mean gap from which a mean hides a freeze
CORRECTED, NAIVE = "from the planned start", "from the send (naive)"
HEADS = ("", "", CORRECTED, NAIVE, "hidden")
FROM_START = (("TTFT", "ttft", "ttft_naive"), ("E2E", "e2e", "e2e_naive"))
BETWEEN = (
    ("gap between tokens", "itl"),
    ("largest gap of a request", "largest_gap"),
    ("TPOT, its mean gap", "tpot"),
    ("first byte", "first_byte"),
    ("connecting", "connect"),
    ("sent late by this client", "send_lag"),
)
SPREAD = (50.0, 90.0, 99.0, 99.9, 100.0)
VERDICTS = {
    "valid": "valid: the plan was kept",
    "capped": "CAPPED: not the load that was planned",
    "invalid": "INVALID: this run shows nothing about the server",
    "interrupted": "interrupted: what was had until then",
}
WIDTH, MARGIN = 100, 12
SEVERAL = ("", "", "median run", "lowest", "highest", "from the send: median run")


def show(result: Result) -> str:
    """All of it, for a terminal or a log, at most 100 columns where names are not longer."""
    parts = [heading(result)]
    if rows := from_start(result):
        parts.append(text.lines(HEADS, rows, left=2))
    parts.append(text.lines(("", *map(_percent, SPREAD), "samples"), between(result)))
    parts += [list(how_to_read(result)), [*verdict(result), *_examples(result)]]
    return "\n".join("\n".join(part) + "\n" for part in parts if part).rstrip() + "\n"


def heading(result: Result) -> list[str]:
    """Where, and by which law."""
    name = f"{result.name}: " if result.name else ""
    lines = [f"{name}{result.target}, {law(result)}"]
    if digest := result.schedule.get("digest"):
        lines.append(f"schedule {digest}, seed {result.schedule.get('seed', 0)}; the same arguments give the same one")
    return lines


def law(result: Result) -> str:
    """What was sent when, in words and with its law."""
    if result.closed:
        workers = result.settings.get("workers")
        return "closed loop" + (f", {workers} workers" if workers else "") + ": each waits for its answer"
    found = result.schedule
    parts = [f"{found.get('target', 'open loop')}: {text.count(result.outcomes.scheduled)} requests"]
    parts[0] += f" in {text.duration(result.duration)}, {text.rate(result.offered)}"
    parts += [
        f"{name} {text.three(value)}"
        for name, key in (("CV", "cv"), ("Fano", "fano"))
        if (value := found.get(key)) is not None
    ]
    if (ks := found.get("ks")) is not None:
        chance = found.get("p")
        parts.append(f"KS {text.three(ks)}" + (f" (p {chance:.2g})" if chance is not None else ""))
    return ", ".join(parts)


def from_start(result: Result) -> list[tuple[str, ...]]:
    """Rows of HEADS: what depends on when the clock starts."""
    rows: list[tuple[str, ...]] = []
    for name, corrected, naive in FROM_START:
        ours, theirs = Quantiles(result, corrected), Quantiles(result, naive)
        for percent in PERCENTS:
            one, two = ours.p(percent), theirs.p(percent)
            if one is not None:
                rows.append((name, _percent(percent), ours.text_at(percent), theirs.text_at(percent), hidden(one, two)))
                name = ""
        if rows and rows[-1]:
            rows.append(())
    return rows[:-1] if rows and not rows[-1] else rows


def hidden(corrected: float | None, naive: float | None) -> str:
    """By how much a plan forgotten makes it look better; "" where both agree."""
    if not corrected or not naive or corrected < naive * HIDDEN:
        return ""
    ratio = corrected / naive
    return f"{text.three(ratio)}x" if ratio >= 2 else f"{ratio - 1:+.0%}"


def between(result: Result) -> list[tuple[str, ...]]:
    """Rows of what does not depend on it: name, SPREAD, samples."""
    rows = []
    for name, key in BETWEEN:
        found = Quantiles(result, key)
        if found.count:
            rows.append((name, *(found.text_at(percent) for percent in SPREAD), text.count(found.count)))
    return rows


def how_to_read(result: Result) -> Iterator[str]:
    """What the columns teach in this run."""
    name = "ttft" if result.latencies.ttft.count else "e2e"
    ours = Quantiles(result, name)
    theirs = Quantiles(result, f"{name}_naive")
    highest = next((p for p in (99.0, 95.0, 90.0, 50.0) if None not in (ours.p(p), theirs.p(p))), None)
    corrected, naive = (None, None) if highest is None else (ours.p(highest), theirs.p(highest))
    if not ours.count:
        yield "No answer came whole and none had content: there is no latency to report."
        return
    if result.closed:
        yield "A closed loop plans nothing: who waits for an answer sends nothing meanwhile, so a stall hides the"
        yield "requests it would have met. Right for a throughput ceiling, not for the tail; both columns are the same."
    elif highest is not None and corrected and naive and corrected >= naive * HIDDEN:
        what = f"{name.upper()} {_percent(highest)} {text.duration(naive)}"
        yield f"A tester that times from the send would have called {what}; who"
        yield f"asked when it was planned waited {text.duration(corrected)}: this client had not sent what was due."
    elif highest is not None:
        yield "Both columns agree: every request left when it was planned to, so none waited unseen to be sent."
    worst, mean = result.latencies.largest_gap.max, result.latencies.tpot.max
    if worst and mean and worst > FROZEN * mean:
        yield f"Means hide freezes: the worst TPOT is {text.duration(mean)}, the longest gap {text.duration(worst)}."


def verdict(result: Result) -> Iterator[str]:
    """Goodput, outcomes, the client itself, and whether to believe it."""
    goodput = result.goodput
    if result.slo is not None:
        spread = f" ({text.share(goodput.low)} to {text.share(goodput.high)})" if goodput.low is not None else ""
        held = {True: "held", False: "NOT held", None: "no verdict"}[goodput.held]
        share = f"{text.share(goodput.attainment)}{spread} within {goodput.slo}: {held}"
        yield f"goodput     {text.rate(goodput.rate)} of {text.rate(result.offered)} planned; {share}"
        if goodput.broken:
            names = sorted(goodput.broken.items(), key=lambda item: -item[1])
            yield f"            bounds exceeded: {', '.join(f'{name} by {text.count(n)}' for name, n in names)}"
    yield f"throughput  {text.rate(goodput.throughput)} finished, {text.rate(goodput.tokens)} tokens"
    if result.fluidity is not None:
        yield f"fluidity    {text.share(result.fluidity)} of the token deadlines were met{_idle(result)}"
    yield f"outcomes    {outcomes(result)}"
    for word, sentence in zip(("client", ""), client(result), strict=True):
        yield f"{word:<11} {sentence}"
    kept = "valid" if result.closed and result.valid else VERDICTS.get(result.validity.verdict, result.validity.verdict)
    yield f"verdict     {kept}"
    for sentence in (*result.validity.reasons, *result.validity.warnings):
        yield from _indented("", sentence)


def _idle(result: Result) -> str:
    """What a reader who reads as the SLO paces it waited for more, beside the first token."""
    answers = result.latencies.ttft.count
    if result.idle is None or not answers:
        return ""
    return f"; a reader at that pace waited {text.duration(result.idle / answers)} an answer for the next token"


def examples(result: Result) -> list[tuple[str, str]]:
    """Of what came instead of answers: the outcome's name at its first one, and the words."""
    return [
        (name.replace("_", " ") if i == 0 else "", words)
        for name, found in result.examples.items()
        for i, words in enumerate(found)
    ]


def _examples(result: Result) -> Iterator[str]:
    label = "like"
    for name, words in examples(result):
        yield from _indented(label, f"{name}: {words}" if name else words)
        label = ""


def _indented(label: str, sentence: str) -> Iterator[str]:
    first, *rest = textwrap.wrap(sentence, WIDTH - MARGIN) or [""]
    yield f"{label:<11} {first}"
    yield from (f"{'':<11} {line}" for line in rest)


def several(found: Sequence[Result]) -> str:
    """All runs together: of each number that a run's table has, the median of the runs, the lowest and the highest."""
    head = f"{len(found)} runs" + (
        f", {sum(not result.valid for result in found)} of them not valid" if not all(r.valid for r in found) else ""
    )
    return "\n".join([head, *text.lines(SEVERAL, several_rows(found), left=2)]) + "\n"


def several_rows(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of SEVERAL."""
    rows: list[tuple[str, ...]] = []
    for name, key, naive in (*FROM_START, *((name, key, "") for name, key in BETWEEN)):
        ours = [Quantiles(result, key) for result in found]
        theirs = [Quantiles(result, naive) for result in found] if naive else []
        for percent in PERCENTS if naive else SPREAD:
            spread = _times([one.quantile(percent) for one in ours])
            if spread != _NOTHING:
                sent = _times([one.quantile(percent) for one in theirs])[0] if naive else ""
                rows.append((name, _percent(percent), *spread, sent))
                name = ""
    rows += [("good", "", *_spread([r.goodput.attainment for r in found], text.share), "")]
    rows += [("goodput", "", *_spread([r.goodput.rate for r in found], text.rate), "")]
    rows += [("throughput", "", *_spread([r.goodput.throughput for r in found], text.rate), "")]
    return [*rows, ("tokens", "", *_spread([r.goodput.tokens for r in found], text.rate), "")]


_NOTHING = (text.NONE,) * 3


def _times(found: Sequence[Quantile | None]) -> tuple[str, str, str]:
    """Median, lowest and highest, each marked where one that is only a lower bound could change it."""
    known = [one for one in found if one is not None]
    bounds = [one.seconds for one in known if one.censored]
    median, low, high = _spread([one.seconds for one in known], text.duration)
    if not bounds:
        return median, low, high
    values = sorted(one.seconds for one in known)
    lowest = min(bounds)
    return (
        at_least(median, lowest <= values[len(values) // 2]),
        at_least(low, lowest == values[0]),
        at_least(high, True),
    )


def _spread(values: Sequence[float | None], shown: Callable[[float], str]) -> tuple[str, str, str]:
    known = [value for value in values if value is not None]
    if not known:
        return _NOTHING
    return shown(statistics.median(known)), shown(min(known)), shown(max(known))


def outcomes(result: Result) -> str:
    """Counts by reason, and what was taken out of the denominator."""
    found = result.outcomes
    line = _counts(found.by_reason) or "none"
    if found.faults:
        line += f" (faults: {_counts(found.faults)})"
    if found.excluded:
        line += f"; {text.count(found.excluded)} excluded from the {text.count(found.scheduled)} scheduled"
    return line


def client(result: Result) -> tuple[str, str]:
    """How the client itself did: what it cost the numbers, and what it had open."""
    own = result.client
    lag = Quantiles(result, "send_lag")
    p99 = f"{text.duration(lag.p(99))} at p99, " if lag.p(99) is not None else ""
    parts = [f"sent late by {p99}{text.duration(lag.p(100))} at most"] if lag.count else []
    if (slow := own.loop_lag.p(99)) is not None:
        parts.append(f"its loop by {text.duration(slow)} at p99")
    if own.paused:
        parts.append(f"stood still {text.duration(own.paused)}: {text.count(own.marked_requests)} requests marked")
    held = [f"{own.cpu:.0%} of a core ({own.cpu_peak:.0%} at its busiest)"]
    held += [f"{text.count(own.in_flight_max)} in flight at most, {text.count(own.opened)} connections opened"]
    if own.retries:
        held.append(f"{text.count(own.retries)} sent again (stale connections)")
    if own.cap:
        held.append(
            f"cap {text.count(own.cap)}, " + (f"which bound {text.count(own.capped)}" if own.capped else "never bound")
        )
    if own.processes > 1:
        held.append(f"{own.processes} processes")
    return ", ".join(parts) or "sent nothing", ", ".join(held)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{text.count(n)} {name.replace('_', ' ')}" for name, n in counts.items() if n)


def _percent(percent: float) -> str:
    return "max" if percent == 100 else f"p{percent:g}"
