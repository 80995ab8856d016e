"""What a run of the load tester found, and its JSON.

Every time counts from the *planned* start unless its name has naive: what a tester reports that forgets its plan
stands beside it. Rates are per second of the plan. A file holds runs: {"tailwatch": version, "format": 1, "layout":
hash of the buckets, "runs": [...]}; runs of several processes or machines that were one load merge into one:
merging.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.censored_percentiles import Quantile, Ranks, Sample
from tailwatch.loadtest.goodput import Goodput
from tailwatch.loadtest.histogram import LAYOUT_HASH, LatencyHistogram
from tailwatch.loadtest.latencies import CENSORED, LATENCIES, Latencies
from tailwatch.loadtest.outcomes import REASONS, Outcomes
from tailwatch.loadtest.requests import Requests, samples, unanswered
from tailwatch.loadtest.series import SERIES, Series
from tailwatch.loadtest.validity import ClientHealth, Validity
from tailwatch.options.slo import SLO
from tailwatch.platform import VERSION

FORMAT = 1
MOST_SAVED = 100_000  # requests whose columns go into a file; of a longer run the histograms do
_SUMMARY = (50, 90, 95, 99, 99.9, 100)


@dataclass(slots=True)
class Result:
    """One run.

    target: its URL, without user and password. name: what the user calls it. settings: what was asked for, without
    secrets.
    schedule: {"digest", "seed", and the fields of `schedule.Law`}. closed: a closed loop: nothing was planned, so
    corrected and naive are the same. started: unix time of the start. duration: seconds of the plan; elapsed: until
    the last answer. interrupted: Ctrl-C ended it, whatever else the verdict is.
    examples: of what came instead of answers, by the name of the fault or outcome; without secrets.
    tokens: output tokens. fluidity: share of token deadlines met, None where the SLO has none; idle: seconds, of all
    answers together, in which a reader at the pace of these deadlines had nothing to read after the first token.
    requests: the columns; None where they were left out of the file.
    """

    target: str
    duration: float
    goodput: Goodput
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    started: float = 0.0
    elapsed: float = 0.0
    slo: SLO | None = None
    outcomes: Outcomes = field(default_factory=Outcomes)
    latencies: Latencies = field(default_factory=Latencies)
    tokens: int = 0
    fluidity: float | None = None
    idle: float | None = None
    series: Series = field(default_factory=Series)
    client: ClientHealth = field(default_factory=ClientHealth)
    validity: Validity = field(default_factory=Validity)
    interrupted: bool = False
    requests: Requests | None = None
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ttft(self) -> LatencyHistogram:
        """Planned start → first content; seconds out of `p()`, `max` …"""
        return self.latencies.ttft

    @property
    def itl(self) -> LatencyHistogram:
        """Gaps between messages with content."""
        return self.latencies.itl

    @property
    def tpot(self) -> LatencyHistogram:
        """(last − first token) / (tokens − 1)."""
        return self.latencies.tpot

    @property
    def e2e(self) -> LatencyHistogram:
        """Planned start → end of whole answers."""
        return self.latencies.e2e

    @property
    def largest_gap(self) -> LatencyHistogram:
        """The worst gap of each request."""
        return self.latencies.largest_gap

    @property
    def valid(self) -> bool:
        """Whether the run may be believed."""
        return self.validity.valid and not self.interrupted

    @property
    def offered(self) -> float:
        """Requests per second of the plan."""
        return self.outcomes.scheduled / self.duration if self.duration > 0 else 0.0

    def percentile(self, metric: str, percent: float) -> float | None:
        """Seconds of a latency (a field of `Latencies`); None where there is no sample. Of TTFT and E2E a lower bound
        where `quantile` marks it."""
        found = self.quantile(metric, percent)
        return None if found is None else found.seconds

    def quantile(self, metric: str, percent: float) -> Quantile | None:
        """The same, with whether it is a lower bound only: requests that this client ended or never sent, and those
        that failed, stand behind those that got their first token (TTFT) or their whole answer (E2E).

        Exact (the sample of rank ceil(percent / 100 * count)) where the latency is one a request and the columns of at
        most MOST_SAVED requests are known, else out of its histogram.

        Raises:
            OptionError: percent is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise OptionError.of("percent", percent, "expected a number from 0 to 100")
        return self.sample(metric).quantile(percent)

    def sample(self, metric: str, most: int = MOST_SAVED) -> Sample:
        """What its percentiles are of: the requests themselves, where they are known and at most so many."""
        rows = self.requests
        if rows is None or len(rows) > most or metric in ("itl", "itl_unmarked", "connect", *CENSORED.values()):
            return self.latencies.sample(metric)
        return Ranks(samples(rows, metric), *(unanswered(rows, metric) if metric in CENSORED else ()))

    def as_dict(self, *, requests: bool = True) -> dict[str, Any]:
        """For JSON; `from_dict` gives an equal one. requests: with their columns, up to MOST_SAVED of them."""
        columns = self.requests if requests and self.requests is not None else None
        if columns is not None and len(columns) > MOST_SAVED:
            columns = None
        return {
            "name": self.name,
            "target": self.target,
            "settings": self.settings,
            "schedule": self.schedule,
            "closed": self.closed,
            "started": self.started,
            "duration": self.duration,
            "elapsed": self.elapsed,
            "slo": None if self.slo is None else self.slo.text,
            "goodput": asdict(self.goodput),
            "outcomes": asdict(self.outcomes),
            "validity": asdict(self.validity),
            "interrupted": self.interrupted,
            "tokens": self.tokens,
            "fluidity": self.fluidity,
            "idle": self.idle,
            "seconds_p": self._summary(),
            "at_least_p": self._bounds(),
            "latencies": self.latencies.as_dict(),
            "series": asdict(self.series),
            "client": self.client.as_dict(),
            "examples": self.examples,
            "requests": None if columns is None else columns.as_dict(),
        }

    def _summary(self) -> dict[str, dict[str, float | None]]:
        """For a reader of the file; not read back. Out of the histograms, so that it takes no memory."""
        found = {name: self.latencies.sample(name) for name in LATENCIES}
        asked = {name: {p: sample.quantile(p) for p in _SUMMARY} for name, sample in found.items()}
        return {
            name: {f"{p:g}": None if q is None else q.seconds for p, q in row.items()} for name, row in asked.items()
        }

    def _bounds(self) -> dict[str, list[str]]:
        """Which of these numbers are lower bounds."""
        found = {name: self.latencies.sample(name) for name in CENSORED}
        asked = {name: [(p, sample.quantile(p)) for p in _SUMMARY] for name, sample in found.items()}
        return {name: [f"{p:g}" for p, q in row if q is not None and q.censored] for name, row in asked.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, name: str = "result") -> Result:
        """Of `as_dict`'s numbers. name: the file, for the error.

        Raises:
            TailwatchError: they are none.
        """
        try:
            return cls._of(data)
        except TailwatchError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise TailwatchError(f"{name}: a damaged run: {type(error).__name__} {error}") from error

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Result:
        columns = data["requests"]
        outcomes = Outcomes(
            {reason: int(data["outcomes"]["by_reason"][reason]) for reason in REASONS},
            {fault: int(count) for fault, count in data["outcomes"]["faults"].items()},
        )
        series = Series(**{key: [int(value) for value in data["series"][key]] for key in SERIES})
        if len({len(getattr(series, key)) for key in SERIES}) != 1:
            raise ValueError("a series of different lengths")
        return cls(
            target=str(data["target"]),
            name=str(data["name"]),
            settings=dict(data["settings"]),
            schedule=dict(data["schedule"]),
            closed=bool(data["closed"]),
            started=float(data["started"]),
            duration=float(data["duration"]),
            elapsed=float(data["elapsed"]),
            tokens=int(data["tokens"]),
            fluidity=None if data["fluidity"] is None else float(data["fluidity"]),
            idle=None if data.get("idle") is None else float(data["idle"]),
            slo=None if data["slo"] is None else SLO.parse(data["slo"]),
            goodput=Goodput(**data["goodput"]),
            outcomes=outcomes,
            latencies=Latencies.from_dict(data["latencies"]),
            series=series,
            client=ClientHealth.from_dict(data["client"]),
            validity=Validity(**data["validity"]),
            interrupted=bool(data.get("interrupted", data["validity"]["verdict"] == "interrupted")),
            requests=None if columns is None else Requests.from_dict(columns),
            examples={name: [text] if isinstance(text, str) else list(text) for name, text in data["examples"].items()},
        )


def save(path: str | Path, runs: Sequence[Result], *, requests: bool = True) -> None:
    """Writes runs as one JSON file.

    Raises:
        TailwatchError: the file cannot be written.
    """
    data = {
        "tailwatch": VERSION,
        "format": FORMAT,
        "layout": LAYOUT_HASH,
        "runs": [run.as_dict(requests=requests) for run in runs],
    }
    try:
        Path(path).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error


def load(path: str | Path) -> list[Result]:
    """Reads what `save` wrote.

    Raises:
        TailwatchError: no such file, no results, of another format, or of other buckets.
    """
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TailwatchError(f"{path}: this is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("runs"), list):
        raise TailwatchError(
            f"{path}: these are no results of format {FORMAT}, as `tailwatch bench --json` writes them"
        )
    if data.get("layout") != LAYOUT_HASH:
        raise TailwatchError(f"{path}: its histograms have other buckets, of tailwatch {data.get('tailwatch')}")
    return [Result.from_dict(run, name=str(path)) for run in data["runs"]]
