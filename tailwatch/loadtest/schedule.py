"""What will be sent and when, fixed before the run: columns of planned requests with their seed, hash and law.

A schedule is data, not a generator: the same arguments and seed give the same one, its digest shows whether two runs
had the same, and a client that falls behind can be seen to, because the plan does not move with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.platform import VERSION

FORMAT = 1
MOST = 10_000_000  # requests in one schedule
LONGEST = 7 * 24 * 3600.0  # seconds
MOST_TOKENS = 10_000_000  # of one request
FEWEST_WINDOWS = 10  # whole seconds below which a Fano factor shows nothing


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a schedule.

    at: seconds from the start of the run, to the nanosecond. prompt_tokens, output_tokens: what it asks for; 0 where
    the endpoint has no tokens, or the prompts' own file decides. index: its place in the whole schedule, kept in the
    parts of it. seed: the schedule's. A synthetic prompt hangs on both.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    index: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Law:
    """What the arrivals of a schedule are really like, beside what they were meant to be.

    target: the law asked for, in words. n: requests. duration: seconds planned. rate: n / duration. cv: standard
    deviation of the gaps over their mean (1 for Poisson); None below 3 requests. fano: variance of the counts per
    second over their mean (1 for Poisson); None below 10 whole seconds. ks: the largest distance between the gaps'
    distribution and the target's, once the target's own rate over time is taken out (for a trace: between the sent
    times and the file's); None where the target has no such law. p: its probability under the target.
    """

    target: str
    n: int
    duration: float
    rate: float
    cv: float | None
    fano: float | None
    ks: float | None = None
    p: float | None = None

    @classmethod
    def of(
        cls, times_ns: array[int], duration: float, target: str, *, ks: float | None = None, p: float | None = None
    ) -> Law:
        """Measures sorted times; the distance to the target comes from the caller, which has it."""
        rate = len(times_ns) / duration if duration > 0 else 0.0
        return cls(target, len(times_ns), duration, rate, _cv(times_ns), _fano(times_ns, duration), ks, p)

    def __str__(self) -> str:
        parts = [f"{self.target}: {self.n} requests in {self.duration:g} s, {self.rate:.4g}/s"]
        parts += [f"CV {self.cv:.3g}"] if self.cv is not None else []
        parts += [f"Fano {self.fano:.3g}"] if self.fano is not None else []
        parts += (
            [f"KS {self.ks:.3g}" + (f" (p {self.p:.2g})" if self.p is not None else "")] if self.ks is not None else []
        )
        return ", ".join(parts)


class Schedule:
    """Planned requests in the order of their times. Immutable; iterating makes one `Planned` at a time.

    16 bytes a request. duration: seconds of the plan, at least the last arrival: rates are per this. seed: what it was
    drawn with. law: see `Law`; a part has that of its whole.
    """

    __slots__ = ("_digest", "_first", "_output", "_prompt", "_step", "_times", "duration", "law", "seed")

    def __init__(
        self,
        times_ns: array[int],
        prompt_tokens: array[int],
        output_tokens: array[int],
        *,
        duration: float,
        law: Law,
        seed: int = 0,
    ) -> None:
        """Columns of equal length: array('q') of nanoseconds, sorted; array('I') of tokens.

        Raises:
            OptionError: they are not that.
        """
        _check(times_ns, prompt_tokens, output_tokens, duration)
        self._times, self._prompt, self._output = times_ns, prompt_tokens, output_tokens
        self._first, self._step, self._digest = 0, 1, ""
        self.duration, self.law, self.seed = duration, law, seed

    @classmethod
    def of(
        cls,
        requests: Iterable[tuple[float, int, int]],
        *,
        duration: float | None = None,
        target: str = "given times",
        seed: int = 0,
    ) -> Schedule:
        """Of (seconds, prompt tokens, output tokens), in any order. duration: by default up to the last one."""
        rows = sorted(requests)
        times = array("q", [round(at * 1e9) for at, _, _ in rows])
        prompt, output = array("I", [row[1] for row in rows]), array("I", [row[2] for row in rows])
        seconds = duration if duration is not None else (times[-1] / 1e9 if times else 0.0)
        return cls(times, prompt, output, duration=seconds, law=Law.of(times, seconds, target), seed=seed)

    @classmethod
    def closed(cls, prompt: array[int], output: array[int], *, duration: float = 0.0, seed: int = 0) -> Schedule:
        """Requests for a closed loop, without times of their own, in this order."""
        law = Law("closed loop", len(prompt), duration, 0.0, None, None)
        return cls(array("q", bytes(8 * len(prompt))), prompt, output, duration=duration, law=law, seed=seed)

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, i: int) -> Planned:
        i = range(len(self._times))[i]
        place = self._first + i * self._step
        return Planned(self._times[i] / 1e9, self._prompt[i], self._output[i], place, self.seed)

    def __iter__(self) -> Iterator[Planned]:
        return map(self.__getitem__, range(len(self._times)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Schedule {self.digest} {self.law}>"

    @property
    def times_ns(self) -> array[int]:
        """array('q'): nanoseconds from the start, sorted. Not to be changed."""
        return self._times

    @property
    def prompt_tokens(self) -> array[int]:
        """array('I'). Not to be changed."""
        return self._prompt

    @property
    def output_tokens(self) -> array[int]:
        """array('I'). Not to be changed."""
        return self._output

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over times, lengths, places and duration: equal for equal schedules, on any machine."""
        if not self._digest:
            head = f"{FORMAT} {len(self)} {self._first} {self._step} {round(self.duration * 1e9)}"
            found = hashlib.sha256(head.encode())
            for column in (self._times, self._prompt, self._output):
                found.update(_little_endian(column))
            self._digest = found.hexdigest()[:16]
        return self._digest

    def part(self, i: int, n: int) -> Schedule:
        """Every n-th request from the i-th: what one of n processes sends. Times and indices are the whole's."""
        if not 0 <= i < n:
            raise OptionError.of("part", (i, n), "expected 0 <= i < n")
        columns = (self._times[i::n], self._prompt[i::n], self._output[i::n])
        found = Schedule(*columns, duration=self.duration, law=self.law, seed=self.seed)
        found._first, found._step = self._first + i * self._step, self._step * n
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` gives an equal schedule."""
        return {
            "tailwatch": VERSION,
            "schedule": FORMAT,
            "digest": self.digest,
            "seed": self.seed,
            "duration": self.duration,
            "first": self._first,
            "step": self._step,
            "law": asdict(self.law),
            "at_ns": self._times.tolist(),
            "prompt_tokens": self._prompt.tolist(),
            "output_tokens": self._output.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, name: str = "schedule") -> Schedule:
        """Of `as_dict`'s numbers. name: the file, for the error.

        Raises:
            TailwatchError: they are none, of another format, or changed since (the digest differs).
        """
        if not isinstance(data, Mapping) or data.get("schedule") != FORMAT:
            raise TailwatchError(f"{name}: this is no schedule of format {FORMAT}, as --save-schedule writes it")
        try:
            found = _of_numbers(data)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise TailwatchError(f"{name}: a damaged schedule: {type(error).__name__} {error}") from error
        if found.digest != data.get("digest"):
            raise TailwatchError(f"{name}: its digest is {found.digest}, not {data.get('digest')}: it was changed")
        return found

    def save(self, path: str | Path) -> None:
        """Write as JSON.

        Raises:
            TailwatchError: the file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(self.as_dict(), separators=(",", ":")) + "\n", encoding="utf-8")
        except OSError as error:
            raise TailwatchError(f"{path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Schedule:
        """Read what `save` wrote.

        Raises:
            TailwatchError: no such file, or no schedule.
        """
        try:
            data = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise TailwatchError(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise TailwatchError(f"{path}: this is no JSON: {error}") from error
        return cls.from_dict(data, name=str(path))


def _of_numbers(data: Mapping[str, Any]) -> Schedule:
    columns = (
        array("q", data["at_ns"]),
        array("I", data["prompt_tokens"]),
        array("I", data["output_tokens"]),
    )
    duration, law, first, step = float(data["duration"]), data["law"], int(data["first"]), int(data["step"])
    saved = {key: None if law[key] is None else float(law[key]) for key in ("cv", "fano", "ks", "p")}
    if step == 1:
        found = Law.of(columns[0], duration, str(law["target"]), ks=saved["ks"], p=saved["p"])
    else:  # a part: its own times do not show the law of the whole
        found = Law(str(law["target"]), int(law["n"]), float(law["duration"]), float(law["rate"]), **saved)
    schedule = Schedule(*columns, duration=duration, law=found, seed=int(data["seed"]))
    schedule._first, schedule._step = first, step
    return schedule


def _check(times: array[int], prompt: array[int], output: array[int], duration: float) -> None:
    if not len(times) == len(prompt) == len(output):
        raise OptionError(f"a schedule has columns of one length, found {len(times)}, {len(prompt)}, {len(output)}")
    if len(times) > MOST:
        raise OptionError.of("requests", len(times), f"expected at most {MOST} in one schedule")
    if not 0 <= duration <= LONGEST:
        raise OptionError.of("duration", duration, f"expected seconds up to {LONGEST:.0f} (a week)")
    if times and (times[0] < 0 or times[-1] > round(duration * 1e9)):
        raise OptionError.of("duration", duration, "expected all arrivals between the start and the duration")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise OptionError("a schedule is sorted by time")
    if times and max(max(prompt), max(output)) > MOST_TOKENS:
        raise OptionError.of("tokens", max(max(prompt), max(output)), f"expected at most {MOST_TOKENS} of one request")


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _cv(times: array[int]) -> float | None:
    """Of the gaps, with the sample variance (n - 1)."""
    gaps = len(times) - 1
    if gaps < 2 or times[-1] == times[0]:
        return None
    mean = (times[-1] - times[0]) / gaps
    squares = math.fsum((later - earlier - mean) ** 2 for earlier, later in pairwise(times))
    return math.sqrt(squares / (gaps - 1)) / mean


def _fano(times: array[int], duration: float) -> float | None:
    """Of the counts in the whole seconds of the plan."""
    if not FEWEST_WINDOWS <= duration <= LONGEST or not times:
        return None
    windows = int(duration)
    counts = array("q", bytes(8 * windows))
    for time in times:
        if (second := time // 1_000_000_000) < windows:
            counts[second] += 1
    mean = sum(counts) / windows
    if mean == 0:
        return None
    return math.fsum((count - mean) ** 2 for count in counts) / (windows - 1) / mean
