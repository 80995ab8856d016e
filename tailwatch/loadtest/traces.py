"""Recorded traffic: the formats of traces people have, read into times and lengths, and replayed.

azure      CSV  TIMESTAMP,ContextTokens,GeneratedTokens          dates, to the 100 ns (Azure LLM inference, 2023, 2024)
burstgpt   CSV  Timestamp,Model,Request tokens,Response tokens,… seconds
plain      CSV  timestamp,prompt_tokens,output_tokens            seconds or dates
mooncake   JSONL {"timestamp", "input_length", "output_length"}  milliseconds
qwen       JSONL the same and "chat_id"                          seconds

The header or the first row shows the format. An error names the line and the column. Rows without an answer or without
a prompt (BurstGPT keeps its failures so) cannot be asked for again: they are left out, and counted.
"""

from __future__ import annotations

import csv
import json
import math
import random
import re
import statistics
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NoReturn

from tailwatch.errors import OptionError, TailwatchError, nearest
from tailwatch.loadtest.arrivals import checked_duration, checked_requests
from tailwatch.loadtest.replay import apart, cut, repeated, spread_over
from tailwatch.loadtest.schedule import LONGEST, MOST, MOST_TOKENS, Law, Schedule
from tailwatch.options.slo import real

FORMATS = ("azure", "burstgpt", "plain", "mooncake", "qwen")
LEAST_SCALE, MOST_SCALE = 1e-6, 1e6
LONGEST_LINE = 1_000_000  # characters; Mooncake's rows with their hashes stay below a tenth of it
_CSV = {
    "azure": ("timestamp", "contexttokens", "generatedtokens"),
    "burstgpt": ("timestamp", "request tokens", "response tokens"),
    "plain": ("timestamp", "prompt_tokens", "output_tokens"),
}
_JSON = ("timestamp", "input_length", "output_length")
_DATE = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?\s*(Z|[+-]\d{2}:?\d{2})?", re.ASCII | re.IGNORECASE
)
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_FAR = 2**62  # nanoseconds: in the year 2116
Row = tuple[int, int, int]  # nanoseconds, prompt tokens, output tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they were recorded, sorted, the first at 0.

    name: the file. format: of FORMATS, or what made it. times_ns: array('q'). skipped: rows left out because they had
    no prompt or no answer. unsorted: rows that stood before an earlier one.
    """

    name: str
    format: str
    times_ns: array[int]
    prompt_tokens: array[int]
    output_tokens: array[int]
    skipped: int = 0
    unsorted: int = 0

    @classmethod
    def of(cls, name: str, format: str, rows: Iterable[Row], *, skipped: int = 0) -> Trace:
        """Of (nanoseconds, prompt tokens, output tokens); sorted by time, rows of one time in their order."""
        found = list(rows)
        unsorted = sum(later[0] < earlier[0] for earlier, later in pairwise(found))
        if unsorted:
            found.sort(key=lambda row: row[0])
        start = found[0][0] if found else 0
        times = array("q", (row[0] - start for row in found))
        prompt, output = (array("I", (row[i] for row in found)) for i in (1, 2))
        return cls(name, format, times, prompt, output, skipped, unsorted)

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def seconds(self) -> float:
        """From the first arrival until the next one after the last would have come, at the mean rate."""
        n = len(self.times_ns)
        return self.times_ns[-1] / 1e9 * n / (n - 1) if n > 1 else 0.0

    @property
    def rate(self) -> float:
        """Requests per second; 0 for a trace without duration."""
        return len(self) / self.seconds if self.seconds > 0 else 0.0

    def scale_for(self, rate: float, *, duration: float | None = None, requests: int | None = None) -> float:
        """The scale at which what is replayed of it comes at this rate: its own excerpt counts, for no hour is even.

        Raises:
            OptionError: its times do not rise, and no scale gives them a rate.
        """
        ends = [*([requests] if requests is not None else []), *([rate * duration] if duration is not None else [])]
        rows = max(1, round(min(ends, default=len(self))))
        rounds, rest = divmod(rows, max(1, len(self)))
        seconds = rounds * self.seconds + (self.times_ns[rest] / 1e9 if rest else 0.0)
        if seconds <= 0:
            raise OptionError(f"{self.name}: {rows} rows without time between them: no scale gives them a rate")
        return rows / rate / seconds

    def begun_at(self, row: int) -> Trace:
        """The same as a circle, begun at another of its rows: the rows before it follow the last one."""
        if not (row := row % max(1, len(self))):
            return self
        whole, start = round(self.seconds * 1e9), self.times_ns[row]
        times = array("q", (time - start for time in self.times_ns[row:]))
        times.extend(time - start + whole for time in self.times_ns[:row])
        prompt, output = (column[row:] + column[:row] for column in self._lengths)
        return replace(self, times_ns=times, prompt_tokens=prompt, output_tokens=output)

    @property
    def distinct(self) -> int:
        """Different times."""
        return sum(1 for _ in groupby(self.times_ns))

    @property
    def bucket(self) -> float:
        """Seconds that its times seem rounded to: the usual distance of different ones, where more than half of the
        rows share theirs with others; else 0."""
        if len(self) < 2 or self.distinct * 2 > len(self) or self.distinct < 2:
            return 0.0
        times = [time for time, _ in groupby(self.times_ns)]
        return statistics.median(later - earlier for earlier, later in pairwise(times)) / 1e9

    def replay(
        self,
        *,
        scale: float = 1.0,
        spread: float | None = None,
        duration: float | None = None,
        requests: int | None = None,
        seed: int = 0,
    ) -> Schedule:
        """The same requests at their times, multiplied by scale: smaller is heavier.

        spread: seconds (of the trace) over which each time is spread, evenly and seeded, because the recorder rounded
        it down; None takes `bucket`, 0 replays the times as they are. duration, requests: where it ends, whichever
        comes first; beyond the trace's end it is begun again, and the law's words have how often it was needed.

        Raises:
            OptionError: an empty trace, or a value out of its range.
        """
        if not len(self):
            raise OptionError(f"{self.name}: no row of it can be replayed")
        factor = checked_scale(scale)
        width = self.bucket if spread is None else _checked_spread(spread)
        until = math.inf if duration is None else checked_duration(duration)
        most = MOST if requests is None else checked_requests(requests)
        rounds = self._rounds(until / factor, requests)
        times = repeated(self.times_ns, self.seconds, rounds)
        moved, rows = spread_over(times, width, random.Random(f"spread {seed}"))
        kept, seconds = cut([round(time * factor) for time in moved], rounds * self.seconds * factor, until, most)
        if seconds > LONGEST:
            expected = f"expected a replay of at most {LONGEST:.0f} s, this takes {seconds:.0f}"
            raise OptionError.of("scale", scale, expected)
        law = Law.of(kept, seconds, self._words(factor, width, rounds), ks=apart(kept, times, factor))
        prompt, output = (
            array("I", (column[row % len(self)] for row in rows[: len(kept)])) for column in self._lengths
        )
        return Schedule(kept, prompt, output, duration=seconds, law=law, seed=seed)

    @property
    def _lengths(self) -> tuple[array[int], array[int]]:
        return self.prompt_tokens, self.output_tokens

    def _rounds(self, seconds: float, requests: int | None) -> int:
        """How often it is gone through. A trace without time in it has no next round."""
        if self.seconds <= 0 or (requests is None and math.isinf(seconds)):
            return 1
        found = math.ceil(min(seconds / self.seconds, MOST))
        found = max(1, found if requests is None else min(found, -(-requests // len(self))))
        if found * len(self) > MOST + len(self):
            raise OptionError(f"{self.name}: expected at most {MOST} requests, these are {found * len(self)} or more")
        return found

    def _words(self, factor: float, width: float, rounds: int) -> str:
        more = f", times spread over {width:g} s" if width else ""
        more += f", {rounds} times over" if rounds > 1 else ""
        return f"{self.format} trace {Path(self.name).name} at scale {factor:g}{more}"

    def notes(self, spread: float | None = None) -> list[str]:
        """What a reader of the numbers should know of it, a sentence each. spread: as replayed."""
        found = []
        if self.skipped:
            found.append(f"{self.name}: {self.skipped} rows without a prompt or an answer were left out")
        if self.format in ("mooncake", "qwen"):
            found.append(
                f"{self.name}: prompts have its lengths, not what they shared (hash_ids): no prefix is in common"
            )
        if self.unsorted:
            found.append(f"{self.name}: {self.unsorted} rows were out of order; they are replayed by their times")
        if self.bucket and spread is None:
            found.append(
                f"{self.name}: {self.distinct} different times for {len(self)} rows; each is spread evenly over "
                f"{self.bucket:g} s (--jitter-rounded 0 replays them as they are, in bursts)"
            )
        return found


def read(path: str | Path, *, format: str | None = None) -> Trace:
    """Read a trace. format: one of FORMATS, or None to find it by the first line.

    Raises:
        TailwatchError: the file cannot be read, or a row is wrong: the message names its line and column.
        OptionError: there is no such format.
    """
    if format is not None and format not in FORMATS:
        raise OptionError.of("trace_replay_format", format, f"expected one of {', '.join(FORMATS)}", choices=FORMATS)
    name = str(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            return _read(name, iter(lambda: lines.readline(LONGEST_LINE + 1), ""), format)
    except OSError as error:
        raise TailwatchError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TailwatchError(f"{name}: this is no text in UTF-8: {error.reason}") from error


def checked_scale(scale: object) -> float:
    """A factor on times; OptionError for what is none."""
    found = real(scale)
    if not LEAST_SCALE <= found <= MOST_SCALE:
        raise OptionError.of("scale", scale, f"expected a factor on the times, {LEAST_SCALE:g} to {MOST_SCALE:g}")
    return found


def _checked_spread(spread: object) -> float:
    found = real(spread)
    if not 0 <= found <= 3600:
        raise OptionError.of("spread", spread, "expected seconds, 0 to 3600")
    return found


# Reading ---------------------------------------------------------------------------------------------------


class _Wrong(Exception):
    """A field that is not what its column holds: column, what was expected, what was found."""


def _read(name: str, lines: Iterator[str], format: str | None) -> Trace:
    numbered = _numbered(name, lines)
    number, first = next(numbered, (0, ""))
    if not first.strip():
        raise TailwatchError(f"{name}: this file is empty; expected a trace: {', '.join(FORMATS)}")
    is_json = first.lstrip().startswith("{") if format is None else format in ("mooncake", "qwen")
    rows = _json_rows if is_json else _csv_rows
    return rows(name, number, first, numbered, format)


def _numbered(name: str, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise TailwatchError(f"{name}: line {number}: longer than {LONGEST_LINE} characters: this is no trace")
        if line.strip():
            yield number, line


def _csv_rows(name: str, number: int, first: str, lines: Iterator[tuple[int, str]], format: str | None) -> Trace:
    header = [field.strip() for field in _fields(name, number, first)]
    found = format or _format_of(name, number, header)
    places = _places(name, number, header, found)

    def row(line: tuple[int, str]) -> Row:
        fields = _fields(name, *line)
        if len(fields) <= max(places):
            raise _Wrong(header[max(places)], f"{max(places) + 1} columns or more", f"{len(fields)}")
        time, prompt, output = (fields[place].strip() for place in places)
        columns = [header[place] for place in places]
        return _time(columns[0], time), _tokens(columns[1], prompt), _tokens(columns[2], output)

    return _collect(name, found, lines, row)


def _fields(name: str, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise TailwatchError(f"{name}: line {number}: this is no CSV: {error}") from error


def _format_of(name: str, number: int, header: list[str]) -> str:
    """The CSV format all of whose columns the header has."""
    names = [field.lower() for field in header]
    for format, columns in _CSV.items():
        if set(columns) <= set(names):
            return format
    wanted = "; ".join(f"{format}: {','.join(columns)}" for format, columns in _CSV.items())
    raise TailwatchError(
        f"{name}: line {number}: no trace has these columns: {_brief(','.join(header))}; known are {wanted}"
    )


def _places(name: str, number: int, header: list[str], format: str) -> list[int]:
    names = [field.lower() for field in header]
    for column in _CSV[format]:
        if column not in names:
            near = nearest(column, names)
            hint = f"; is it {near!r}?" if near else ""
            raise TailwatchError(f"{name}: line {number}, column {column!r}: missing in this header{hint}")
        if names.count(column) > 1:
            raise TailwatchError(f"{name}: line {number}, column {column!r}: there are {names.count(column)} of it")
    return [names.index(column) for column in _CSV[format]]


def _json_rows(name: str, number: int, first: str, lines: Iterator[tuple[int, str]], format: str | None) -> Trace:
    found = format or ("qwen" if '"chat_id"' in first else "mooncake")
    unit = 10**9 if found == "qwen" else 10**6

    def row(line: tuple[int, str]) -> Row:
        data = _object(line[1])
        time, prompt, output = (_value(data, key) for key in _JSON)
        return _number(_JSON[0], time, unit), _count(_JSON[1], prompt), _count(_JSON[2], output)

    def again() -> Iterator[tuple[int, str]]:
        yield number, first
        yield from lines

    return _collect(name, found, again(), row)


def _object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Wrong("", "a JSON object in each line", f"{error}") from error
    if not isinstance(data, dict):
        raise _Wrong("", "a JSON object in each line", _brief(line.strip()))
    return data


def _value(data: dict[str, Any], key: str) -> object:
    if key not in data:
        raise _Wrong(key, "it in each line", "none")
    return data[key]


def _collect(name: str, format: str, lines: Iterator[tuple[int, str]], row: Callable[[tuple[int, str]], Row]) -> Trace:
    """All rows; those that cannot be asked for again are counted."""
    kept: list[Row] = []
    skipped = 0
    for line in lines:
        try:
            found = row(line)
        except _Wrong as wrong:
            _refuse(name, line[0], wrong)
        if found[1] and found[2]:
            kept.append(found)
        else:
            skipped += 1
        if len(kept) > MOST:
            raise TailwatchError(f"{name}: line {line[0]}: more than {MOST} requests")
    return Trace.of(name, format, kept, skipped=skipped)


def _refuse(name: str, number: int, wrong: _Wrong) -> NoReturn:
    column, expected, found = wrong.args
    where = f"{name}: line {number}" + (f", column {column!r}" if column else "")
    raise TailwatchError(f"{where}: expected {expected}, found {found}") from wrong


def _time(column: str, text: str) -> int:
    """Nanoseconds of a number of seconds or of a date; of an epoch of its own each."""
    if _SECONDS.fullmatch(text):
        return _number(column, text, 10**9)
    if match := _DATE.fullmatch(text):
        day, clock, fraction, zone = match.groups()
        zone = "+0000" if zone in (None, "Z", "z") else zone.replace(":", "")
        try:
            whole = datetime.strptime(f"{day} {clock} {zone}", "%Y-%m-%d %H:%M:%S %z")
        except ValueError:
            raise _Wrong(column, "a date that exists", _brief(text)) from None
        since = whole - datetime(1970, 1, 1, tzinfo=timezone.utc)
        found = (since.days * 86400 + since.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))
        if not 0 <= found < _FAR:
            raise _Wrong(column, "a date from 1970 to 2116", _brief(text))
        return found
    raise _Wrong(column, "seconds, or a date like 2023-11-16 18:15:46.6805900", _brief(text))


def _number(column: str, value: object, unit: int) -> int:
    """Nanoseconds of a number of units; the digits of a text count as they stand."""
    found = Decimal(value) if isinstance(value, str) and _SECONDS.fullmatch(value) else real(value)
    if not 0 <= found < _FAR / unit:
        raise _Wrong(column, "a time, 0 or more", _brief(value))
    return round(found * unit)


def _tokens(column: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(?:\.0{0,9})?", text, re.ASCII):
        raise _Wrong(column, "a whole number of tokens", _brief(text))
    return _count(column, int(text.partition(".")[0]))


def _count(column: str, value: object) -> int:
    found = real(value)
    if not (0 <= found <= MOST_TOKENS and math.floor(found) == found):
        raise _Wrong(column, f"a whole number of tokens up to {MOST_TOKENS}", _brief(value))
    return int(found)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
