"""Traces: each format, errors that name line and column, and replays whose law is known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import conversation, traces
from tailwatch.loadtest.bench import Conditions
from tailwatch.loadtest.endpoint import endpoint
from tailwatch.loadtest.knee_search import KneeSearch
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.search import Limits
from tailwatch.loadtest.traces import Trace, read
from tailwatch.loadtest.workload import Workload

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109

2023-11-16 18:16:51.2224671,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 01:00:01.009930+01:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,230,1317,Conversation log
60,GPT-4,417,0,417,API log
118,ChatGPT,0,276,276,Conversation log
"""
PLAIN = """output_tokens, timestamp, note, prompt_tokens
5,1.25,"a, b",10
6,1.5,,20.0
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}
"""
QWEN = """{"chat_id": 159, "timestamp": 61.114, "input_length": 521, "output_length": 132, "type": "text", "turn": 2}
{"chat_id": 160, "timestamp": 61.5, "input_length": 10, "output_length": 3, "type": "text", "turn": 1}
"""


def saved(directory: Path, text: str | bytes) -> Path:
    """A trace file with that content."""
    path = directory / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


KNOWN = {
    "azure": (AZURE, [(0, 374, 44), (4_314_579_000, 396, 109), (64_541_877_100, 879, 55)]),
    "azure 2024": (AZURE_2024, [(0, 2162, 5), (10**9, 2399, 6)]),
    "burstgpt": (BURSTGPT, [(0, 472, 18), (40_500_000_000, 1087, 230)]),
    "plain": (PLAIN, [(0, 10, 5), (250_000_000, 20, 6)]),
    "mooncake": (MOONCAKE, [(0, 6955, 52), (3_053_000_000, 6472, 26)]),
    "qwen": (QWEN, [(0, 521, 132), (386_000_000, 10, 3)]),
}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", KNOWN)
def test_each_format_is_read(name: str, ending: str, tmp_path: Path) -> None:
    """The first line gives the format; times are kept to the nanosecond, from the first row on; blank lines and a
    byte-order mark are no rows."""
    text, expected = KNOWN[name]
    for start in (b"", b"\xef\xbb\xbf"):
        trace = read(saved(tmp_path, start + text.replace("\n", ending).encode()))
        assert list(zip(trace.times_ns, trace.prompt_tokens, trace.output_tokens, strict=True)) == expected
        assert trace.format == name.split()[0]
        assert trace.skipped == (2 if name == "burstgpt" else 0)
    assert list(read(tmp_path / "trace.csv", format=trace.format).times_ns) == [row[0] for row in expected]


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    """Requests go by their times; how many stood elsewhere is noted."""
    text = "timestamp,prompt_tokens,output_tokens\n3,3,1\n1,1,1\n2,2,1\n"
    trace = read(saved(tmp_path, text))
    assert (list(trace.prompt_tokens), trace.unsorted) == ([1, 2, 3], 1)
    assert "trace.csv: 1 rows " in trace.notes()[0]


def test_what_is_not_replayed_is_noted(tmp_path: Path) -> None:
    """A trace that has which prefixes its prompts shared is replayed without, and that is noted."""
    assert "no prefix is in common" in read(saved(tmp_path, MOONCAKE)).notes()[0]
    assert read(saved(tmp_path, AZURE)).notes() == []


WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "empty"),
    "blank": ("\n \n", "empty"),
    "columns": ("a,b,c\n1,2,3\n", "line 1: no trace has these columns: 'a,b,c'"),
    "tokens": (
        AZURE.replace("109", "x"),
        "line 3, column 'GeneratedTokens': expected a whole number of tokens, found 'x'",
    ),
    "negative": (AZURE.replace("396", "-1"), "line 3, column 'ContextTokens'"),
    "fraction": (PLAIN.replace("20.0", "20.5"), "line 3, column 'prompt_tokens'"),
    "huge": (
        PLAIN.replace("20.0", "99999999"),
        "line 3, column 'prompt_tokens': expected a whole number of tokens up to",
    ),
    "date": (
        AZURE.replace("2023-11-16 18:15:50", "2023-13-16 18:15:50"),
        "line 3, column 'TIMESTAMP': expected a date",
    ),
    "delay": (
        AZURE.replace("2023-11-16 18:15:50", "2123-11-16 18:15:50"),
        "line 3, column 'TIMESTAMP': expected a date",
    ),
    "early": (
        AZURE.replace("2023-11-16 18:15:50", "1923-11-16 18:15:50"),
        "line 3, column 'TIMESTAMP': expected a date",
    ),
    "time": (PLAIN.replace("1.25", "soon"), "line 2, column 'timestamp': expected seconds, or a date"),
    "nan": (PLAIN.replace("1.25", "nan"), "line 2, column 'timestamp'"),
    "far": (PLAIN.replace("1.25", "1e99"), "line 2, column 'timestamp': expected a time"),
    "short": (
        AZURE + "2023-11-16 18:16:51,1\n",
        "line 6, column 'GeneratedTokens': expected 3 columns or more, found 2",
    ),
    "quote": (PLAIN + 'x,"', "line 4: this is no CSV"),
    "doubled": ("timestamp,prompt_tokens,output_tokens,timestamp\n", "column 'timestamp': there are 2"),
    "json": (MOONCAKE + "{oops\n", "line 3: expected a JSON object in each line"),
    "array": (MOONCAKE + "[1]\n", "line 3: expected a JSON object in each line, found '[1]'"),
    "missing": (MOONCAKE + '{"timestamp": 1}\n', "line 3, column 'input_length': expected it in each line, found none"),
    "type": (MOONCAKE.replace("52", '"52"'), "line 1, column 'output_length': expected a whole number"),
    "bool": (MOONCAKE.replace("52", "true"), "line 1, column 'output_length'"),
    "infinite": (
        MOONCAKE.replace("27482", "1e999"),
        "line 1, column 'timestamp': expected a time, 0 or more, found inf",
    ),
    "deep": ('{"a":' * 100_000 + "\n", "line 1"),
    "latin": (AZURE.encode() + b"\xff", "no text in UTF-8"),
    "endless": (b"{" + b"x" * 1_000_100, "line 1: longer than"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_line_and_column(name: str, tmp_path: Path) -> None:
    """What cannot be read is refused with the file, the line, the column, what was expected and what was found."""
    content, message = WRONG[name]
    path = saved(tmp_path, content)
    with pytest.raises(TailwatchError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_format_that_was_named_is_held_to(tmp_path: Path) -> None:
    """The error for a header without a column of the named format has which, and the nearest one that is there."""
    path = saved(tmp_path, "timestamp,prompt_token,output_tokens\n1,2,3\n")
    with pytest.raises(TailwatchError, match=r"'prompt_tokens': missing .*'prompt_token'"):
        read(path, format="plain")
    with pytest.raises(OptionError, match="did you mean 'mooncake'"):
        read(path, format="moncake")
    with pytest.raises(TailwatchError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(TailwatchError, match="directory"):
        read(tmp_path)


PIECES = [
    "0",
    "9",
    ".",
    "-",
    ",",
    '"',
    "\n",
    "e",
    "{",
    "}",
    "[",
    "99999",
    ":",
    "\r",
    "\0",
    " ",
    "é",
    "",
    "true",
    "null",
    "1e9",
]
damage = st.lists(st.tuples(st.integers(0, 300), st.sampled_from(PIECES), st.integers(0, 4)), min_size=1, max_size=5)


def _damaged(text: str, edits: list[tuple[int, str, int]]) -> str:
    for at, piece, removed in edits:
        at %= len(text) + 1
        text = text[:at] + piece + text[at + removed :]
    return text


@given(st.sampled_from([text for text, _ in KNOWN.values()]), damage)
@settings(max_examples=500, deadline=None)
def test_any_damage_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, edits: list[tuple[int, str, int]]
) -> None:
    """A trace with any damage gives a trace that can be replayed, or a sentence; never another error."""
    path = saved(tmp_path_factory.getbasetemp(), _damaged(text, edits))
    try:
        trace = read(path)
        schedule = trace.replay()
    except TailwatchError as error:
        assert 0 < len(str(error)) < 1500
        return
    assert len(schedule) == len(trace) > 0


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """So do any bytes, under any format."""
    path = saved(tmp_path_factory.getbasetemp(), data)
    for format in (None, *traces.FORMATS):
        try:
            read(path, format=format)
        except TailwatchError:
            continue


# Replay ----------------------------------------------------------------------------------------------------


def made(times: list[float], name: str = "made.csv") -> Trace:
    """A trace with these times, seconds; row i has i + 1 tokens."""
    return Trace.of(name, "plain", [(round(time * 1e9), i + 1, i + 1) for i, time in enumerate(times)])


def seconds(schedule: Schedule) -> list[float]:
    """Its times."""
    return [planned.at for planned in schedule]


def test_a_smaller_scale_is_heavier() -> None:
    """At scale 0.4 the same requests come in 0.4 of the time: the law of the gaps is the same, the rate 2.5 times."""
    trace = conversation.generate(1200, seed=1)
    whole, heavy = trace.replay(), trace.replay(scale=0.4)
    assert list(heavy.prompt_tokens) == list(whole.prompt_tokens)
    assert heavy.law.rate == pytest.approx(2.5 * whole.law.rate)
    assert heavy.law.cv == pytest.approx(whole.law.cv)
    assert seconds(heavy) == pytest.approx([0.4 * at for at in seconds(whole)], abs=1e-8)
    assert heavy.law.ks == whole.law.ks == 0
    assert "conversation" in heavy.law.target and heavy.law.target.endswith("scale 0.4")


def test_ends_of_a_replay() -> None:
    """The trace's end, a duration or a number of requests ends it, whichever comes first; the mean gap is kept."""
    trace = made([0, 1, 2, 3, 4])
    assert (len(trace.replay()), trace.replay().duration) == (5, 5.0)
    assert trace.rate == 1
    assert (seconds(trace.replay(requests=3)), trace.replay(requests=3).duration) == ([0, 1, 2], 3)
    assert (seconds(trace.replay(duration=3)), trace.replay(duration=3).duration) == ([0, 1, 2], 3)
    assert (seconds(trace.replay(duration=3.5, scale=2)), trace.replay(duration=3.5, scale=2).duration) == ([0, 2], 3.5)
    assert len(made([7]).replay()) == 1


def test_a_trace_is_begun_again() -> None:
    """An end beyond the trace's own is reached by going through it again, a mean gap later; the law's words have
    that."""
    trace = made([0, 1, 3, 4])
    twice = trace.replay(requests=6)
    assert seconds(twice) == pytest.approx([0, 1, 3, 4, 16 / 3, 19 / 3])
    assert list(twice.output_tokens) == [1, 2, 3, 4, 1, 2]
    assert "made.csv" in twice.law.target and "scale 1, 2 times" in twice.law.target
    assert len(trace.replay(duration=16, scale=0.5)) == 24
    assert trace.replay(requests=4).law.target == trace.replay().law.target
    assert len(made([1, 1]).replay(requests=9)) == 2  # no time in it, no next round
    with pytest.raises(OptionError, match="at most 10000000 requests"):
        trace.replay(scale=1e-6, duration=100)


def test_a_rate_scales_the_excerpt() -> None:
    """The scale for a rate is that of the rows that are replayed, which need not be as fast as the whole."""
    trace = made([0, 1, 2, 3, 4, 4.25, 4.5, 4.75])
    for ends in ({}, {"requests": 4}, {"duration": 0.3}, {"duration": 0.1, "requests": 100}, {"requests": 501}):
        schedule = trace.replay(scale=trace.scale_for(20, **ends), **ends)  # type: ignore[arg-type]
        assert schedule.law.rate == pytest.approx(20, rel=1e-6)
    with pytest.raises(OptionError, match="without time between"):
        made([1, 1, 1, 1]).scale_for(5)


def test_rounded_times_are_spread() -> None:
    """Where most rows share their time each is spread over the usual distance of different times, by the seed: bursts
    of ten become what they were, and no request moves by more than that."""
    rng = random.Random(3)
    recorded = sorted(rng.uniform(0, 3000) for _ in range(10_000))
    rounded = made([at // 3 * 3 for at in recorded])
    assert rounded.bucket == pytest.approx(3)
    schedule, verbatim = rounded.replay(seed=1), rounded.replay(spread=0)
    assert verbatim.law.cv is not None and verbatim.law.cv > 2
    assert verbatim.law.fano is not None and verbatim.law.fano > 5
    assert schedule.law.cv == pytest.approx(1, abs=0.05)
    assert schedule.law.fano == pytest.approx(1, abs=0.15)
    assert schedule.law.ks is not None and 0 < schedule.law.ks < 0.005
    first = min(schedule.times_ns)
    assert all(-0.01 <= row.at + first - rounded.times_ns[row.prompt_tokens - 1] / 1e9 <= 3 for row in schedule)
    assert (rounded.replay(seed=1) == schedule, rounded.replay(seed=2) == schedule) == (True, False)
    assert "1000 different times" in rounded.notes()[0] and "10000 rows" in rounded.notes()[0]
    assert (rounded.notes(0.0), "spread over 3 s" in schedule.law.target) == ([], True)


def test_exact_times_are_left_alone() -> None:
    """A trace whose times are its own is not spread, however even they are; asked for, it is."""
    even = made([k / 10 for k in range(200)])
    assert (even.bucket, even.notes()) == (0, [])
    assert seconds(even.replay()) == pytest.approx([k / 10 for k in range(200)])
    assert even.replay(spread=0.1).law.cv == pytest.approx(0.41, abs=0.1)


@given(
    st.lists(st.floats(0, 1e5), min_size=1, max_size=60),
    st.floats(0.001, 1000),
    st.sampled_from([None, 0.0, 0.5, 100.0]),
    st.none() | st.floats(0.01, 100),
    st.none() | st.integers(1, 200),
)
@settings(max_examples=300, deadline=None)
def test_any_replay_is_a_schedule(
    times: list[float], scale: float, spread: float | None, duration: float | None, requests: int | None
) -> None:
    """Whatever is cut, scaled and spread: sorted, within its duration, each row once, as many as were asked for."""
    trace = made(times)
    try:
        schedule = trace.replay(scale=scale, spread=spread, duration=duration, requests=requests)
    except OptionError as error:
        assert "at most 604800" in str(error) or "at most 10000000" in str(error)
        return
    rounds = -(-len(schedule) // len(times))
    width = trace.bucket if spread is None else spread
    at_the_end = math.ceil(width / trace.seconds) if trace.seconds else 0  # rounds of which the cut takes some rows
    most = rounds + 1 + at_the_end
    assert all(schedule.prompt_tokens.count(row + 1) <= most for row in range(len(times)))
    assert len(schedule) <= (requests or 10**7)
    assert duration is None or schedule.duration <= duration
    assert seconds(schedule) == sorted(seconds(schedule))


def test_wrong_replays_teach() -> None:
    """A scale or a spread that is none, and a trace without rows, are refused by name."""
    trace = made([0, 1])
    for wrong in (0, -1, float("nan"), "x"):
        with pytest.raises(OptionError, match="scale"):
            trace.replay(scale=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="spread"):
        trace.replay(spread=-1)
    with pytest.raises(OptionError, match="no row"):
        made([]).replay()
    with pytest.raises(OptionError, match="at most"):
        made([0, 1e6]).replay()


# The generated one -----------------------------------------------------------------------------------------


def test_the_generated_conversation_has_the_recorded_law() -> None:
    """Six hours of it have the recording's rate, gaps, counts and lengths: rate 5.53/s, CV 1.09, Fano 1.39, prompts
    1020 at the median and 4142 at p99, answers 129 and 601 (the recording's own numbers)."""
    hours = [conversation.generate(3600, seed=seed) for seed in range(6)]
    laws = [hour.replay().law for hour in hours]
    assert sum(law.n for law in laws) / 6 / 3600 == pytest.approx(5.53, rel=0.12)
    assert sum(law.cv or 0 for law in laws) / 6 == pytest.approx(1.09, abs=0.06)
    assert sum(law.fano or 0 for law in laws) / 6 == pytest.approx(1.39, abs=0.2)
    prompt = sorted(count for hour in hours for count in hour.prompt_tokens)
    output = sorted(count for hour in hours for count in hour.output_tokens)
    for values, median, high in ((prompt, 1020, 4142), (output, 129, 601)):
        assert values[len(values) // 2] == pytest.approx(median, rel=0.05)
        assert values[len(values) * 99 // 100] == pytest.approx(high, rel=0.05)


def test_the_generated_conversation_is_its_seed(tmp_path: Path) -> None:
    """The same seed gives the same traffic, and it can be written and read as a plain trace."""
    trace = conversation.generate(60, seed=4)
    assert conversation.generate(60, seed=4) == trace != conversation.generate(60, seed=5)
    assert trace.replay().digest == GENERATED
    rows = zip(trace.times_ns, trace.prompt_tokens, trace.output_tokens, strict=True)
    text = "timestamp,prompt_tokens,output_tokens\n" + "".join(f"{ns / 1e9:.9f},{p},{o}\n" for ns, p, o in rows)
    assert read(saved(tmp_path, text)).replay() == trace.replay()
    with pytest.raises(OptionError, match="duration"):
        conversation.generate(0)


GENERATED = "663866d6e3129c69"


def test_mooncake_rows_may_be_large(tmp_path: Path) -> None:
    """A row with thousands of hashes is a row."""
    row = {"timestamp": 0, "input_length": 120_000, "output_length": 5, "hash_ids": list(range(20_000))}
    assert len(read(saved(tmp_path, json.dumps(row) + "\n"))) == 1


def test_a_trace_begun_at_another_row() -> None:
    """The same rows and gaps, in a circle; of one row or none there is no other."""
    trace = Trace.of("t", "plain", [(0, 1, 10), (1_000_000_000, 2, 20), (5_000_000_000, 3, 30), (6_000_000_000, 4, 40)])
    turned = trace.begun_at(6)
    assert list(turned.prompt_tokens) == [3, 4, 1, 2] and list(turned.output_tokens) == [30, 40, 10, 20]
    assert [time / 1e9 for time in turned.times_ns] == [0, 1, 3, 4] and trace.begun_at(8) is trace
    assert len(Trace.of("t", "plain", []).begun_at(3)) == 0


def test_each_probe_of_a_search_goes_on_in_the_trace() -> None:
    """Where the last one ended."""
    trace = Trace.of("t", "plain", [(i * 10**9, i + 1, 5) for i in range(100)])
    where = endpoint("http://127.0.0.1:1", model="m")
    going = KneeSearch(Workload(endpoint=where, model="m", trace=trace), Conditions(), Limits())
    probes = [going._schedule(10.0, 3.0, number) for number in range(5)]
    prompts = [prompt for probe in probes for prompt in probe.prompt_tokens]
    assert prompts == [1 + i % 100 for i in range(len(prompts))] and len(prompts) > 120
