"""The options of the load tester's commands, and the schedules and requests that they make."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.workload import Workload, add_arguments, from_arguments, seconds_of

HERE = "http://127.0.0.1:8000"
MODEL = ("--model", "m")
NOTHING: dict[str, str] = {}


def workload(*words: str, environment: Mapping[str, str] = NOTHING) -> Workload:
    """Of a command line, to a server that gets no request."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    add_arguments(parser)
    return from_arguments(parser.parse_args([HERE, *words]), environment=environment)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A hundred rows, one a second; row i has 1000 + i and 100 + i tokens."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{i},{1000 + i},{100 + i}\n" for i in range(100))
    path.write_text("timestamp,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    return str(path)


def test_the_first_example() -> None:
    """A rate and a duration give a Poisson schedule with the usual lengths, whose law can be printed."""
    made = workload(*MODEL, "--rate", "40", "--arrivals", "poisson", "--duration", "60")
    schedule = made.schedule()
    assert (schedule.duration, schedule.law.target) == (60, "poisson at 40/s")
    assert schedule.law.n == pytest.approx(2400, abs=250)
    assert set(schedule.prompt_tokens) == set(schedule.output_tokens) == {128}
    body = json.loads(made.make()(schedule[7]).partition(b"\r\n\r\n")[2])
    assert (body["model"], body["max_tokens"], len(body["prompt"].split())) == ("m", 128, 128)


def test_help_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is explained, also in a narrow terminal."""
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        options = [option for action in parser._actions for option in action.option_strings]
        assert all(option in parser.format_help() for option in options)
        assert all(action.help for action in parser._actions)


def test_ends_and_seeds() -> None:
    """A minute unless an end is given; --requests is one; an end that a program gives stands for both; a seed is a
    schedule, and its lengths do not hang on the law of the arrivals."""
    made = workload(*MODEL, "--rate", "5", "--output-tokens", "1..1000")
    assert made.schedule().duration == 60
    assert len(workload(*MODEL, "--rate", "5", "--requests", "7").schedule()) == 7
    both = workload(*MODEL, "--rate", "5", "--requests", "7", "--duration", "1h")
    assert (len(both.schedule()), len(both.schedule(requests=9)), both.schedule(duration=3).duration) == (7, 9, 3)
    assert made.schedule() == made.schedule(seed=0) != made.schedule(seed=1)
    assert (
        made.schedule(seed=1) == workload(*MODEL, "--rate", "5", "--output-tokens", "1..1000", "--seed", "1").schedule()
    )
    even = workload(*MODEL, "--rate", "5", "--output-tokens", "1..1000", "--arrivals", "constant").schedule()
    assert list(even.output_tokens[:50]) == list(made.schedule().output_tokens[:50])


def test_another_seed_has_other_prompts() -> None:
    """The requests of a second run are not those that the server may still have in its cache; a repetition's are."""
    made = workload(*MODEL, "--rate", "5", "--arrivals", "constant")
    request = made.make()
    first, again, other = (request(made.schedule(seed=seed)[0]) for seed in (1, 1, 2))
    assert first == again != other
    assert request(made.schedule(seed=1).part(1, 2)[0]) == request(made.schedule(seed=1)[1])


def test_a_search_asks_for_rates() -> None:
    """A program's rate stands for the command line's, and then none is needed there."""
    assert workload(*MODEL).schedule(rate=20, requests=500).law.rate == pytest.approx(20, rel=0.2)
    assert workload(*MODEL, "--rate", "5").schedule(rate=20).law.target == "poisson at 20/s"
    with pytest.raises(OptionError, match="rate"):
        workload(*MODEL).schedule()
    with pytest.raises(OptionError, match="names its own rates"):
        workload(*MODEL, "--arrivals", "ramp:1..2").schedule(rate=5)
    assert workload(*MODEL, "--arrivals", "ramp:1..20", "--duration", "2m").schedule().duration == 120


def test_a_trace_is_replayed(trace: str) -> None:
    """With its own times and lengths; --scale and --rate make it heavier; --arrivals takes its lengths alone."""
    made = workload(*MODEL, "--trace-replay", trace)
    assert [row.at for row in made.schedule()] == [float(i) for i in range(100)]
    assert list(made.schedule().output_tokens) == [100 + i for i in range(100)]
    assert workload(*MODEL, "--trace-replay", trace, "--scale", "0.5").schedule().duration == 50
    assert workload(*MODEL, "--trace-replay", trace, "--rate", "20").schedule().law.rate == pytest.approx(20)
    assert made.schedule(rate=20, requests=10).law.rate == pytest.approx(20)
    even = workload(
        *MODEL, "--trace-replay", trace, "--arrivals", "constant", "--rate", "20", "--requests", "150"
    ).schedule()
    assert list(even.prompt_tokens) == [1000 + i % 100 for i in range(150)]
    short = workload(*MODEL, "--trace-replay", trace, "--output-tokens", "5").schedule()
    assert (set(short.output_tokens), list(short.prompt_tokens)[:2]) == ({5}, [1000, 1001])


def test_the_trace_that_is_built_in() -> None:
    """Needs no file: an hour of a conversation service."""
    made = workload(*MODEL, "--trace-replay", "builtin:conversation", "--scale", "0.4", "--requests", "600")
    assert len(made.schedule()) == 600
    assert (
        made.schedule()
        == workload(*MODEL, "--trace-replay", "builtin:conversation", "--scale", "0.4", "--requests", "600").schedule()
    )


def test_prompts_of_a_file(tmp_path: Path) -> None:
    """Their own lengths are planned, unless the answers' are asked for; none given is the default."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a b", "prompt_tokens": 2, "output_tokens": 9}\n{"prompt": "c"}\n', encoding="utf-8")
    words = (*MODEL, "--prompts", str(path), "--rate", "5", "--requests", "3")
    made = workload(*words)
    assert [(row.prompt_tokens, row.output_tokens) for row in made.schedule()] == [(2, 9), (0, 0), (2, 9)]
    assert set(workload(*words, "--output-tokens", "5").schedule().output_tokens) == {5}
    assert b'"prompt":"c"' in made.make()(made.schedule()[1])
    path.write_text('{"prompt": "a b"}\n', encoding="utf-8")
    assert set(workload(*words).schedule().output_tokens) == {128}


def test_any_endpoint(tmp_path: Path) -> None:
    """Without a model the same request goes to a URL, with no tokens in the plan; --body makes it a POST."""
    made = workload("--rate", "5", "--requests", "3")
    assert made.make()(made.schedule()[0]).startswith(b"GET / HTTP/1.1\r\n")
    assert set(made.schedule().prompt_tokens) == set(made.schedule().output_tokens) == {0}
    path = tmp_path / "body"
    path.write_bytes(b"{}")
    made = workload("--rate", "5", "--body", str(path), "--endpoint", "/x")
    assert made.make()(made.schedule()[0]).startswith(b"POST /x HTTP/1.1\r\n")


def test_a_closed_loop_has_no_times() -> None:
    """As many requests as asked for, all at once; for a time: more than a client can send in it."""
    made = workload(*MODEL, "--output-tokens", "1..9")
    assert (len(made.closed(requests=50)), made.closed(requests=50).duration) == (50, 0)
    timed = made.closed(duration=2)
    assert (timed.duration, len(timed), set(timed.times_ns)) == (2, 20_000, {0})
    assert (made.closed().duration, timed.law.target) == (60, "closed loop")
    assert made.closed(requests=9) == made.closed(requests=9, seed=0) != made.closed(requests=9, seed=1)
    both = workload(*MODEL, "--requests", "5", "--duration", "9").closed()
    assert (len(both), both.duration) == (5, 9)


def test_a_saved_schedule_is_sent_again(tmp_path: Path) -> None:
    """Exactly, and nothing beside it may set when or how long."""
    path = tmp_path / "plan.json"
    schedule = workload(*MODEL, "--rate", "5", "--requests", "7", "--seed", "3").schedule()
    schedule.save(path)
    made = workload(*MODEL, "--schedule", str(path))
    assert made.schedule() == schedule
    with pytest.raises(OptionError, match="sent unchanged"):
        made.schedule(rate=5)
    with pytest.raises(OptionError, match="has send times"):
        made.closed()
    with pytest.raises(OptionError, match="leave out --rate, --requests"):
        workload(*MODEL, "--schedule", str(path), "--rate", "5", "--requests", "7")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scale", "2"), "requires --trace-replay"),
        (("--jitter-rounded", "2"), "requires --trace-replay"),
        (("--trace-replay", "TRACE", "--scale", "2", "--rate", "5"), "not both"),
        (("--trace-replay", "TRACE", "--scale", "2", "--arrivals", "poisson"), "only the lengths"),
        (("--trace-replay", "TRACE", "--scale", "0"), "scale"),
        (("--trace-replay", "/nowhere"), "No such file"),
        (("--rate", "0"), "rate"),
        (("--rate", "nan"), "rate"),
        (("--requests", "0"), "requests"),
        (("--duration", "soon"), "90s, 2m"),
        (("--duration", "0"), "duration"),
        (("--arrivals", "poison"), "did you mean 'poisson'"),
        (("--prompt-tokens", "0"), "prompt_tokens"),
        (("--output-tokens", "x"), "output_tokens"),
        (("--prompts", "/nowhere"), "No such file"),
        (("--prompts", "/nowhere", "--prompt-tokens", "5"), "set the lengths"),
        (("--extra-body", "[]"), "extra_body"),
        (("--body", "/nowhere"), "No such file"),
        (("--header", "x"), "Name: value"),
        (("--schedule", "/nowhere"), "No such file"),
        (("--api", "http"), "no model"),
        (("--method", "PUT"), "expected POST"),
    ],
)
def test_wrong_calls_teach(words: tuple[str, ...], message: str, trace: str) -> None:
    """What is wrong, or does not go together, is reported before anything is sent."""
    with pytest.raises(TailwatchError, match=message):
        workload(*MODEL, *(trace if word == "TRACE" else word for word in words))


def test_settings_hold_no_secret() -> None:
    """What the result keeps of the call is JSON, has no key and no header's value, and holds what was sent."""
    made = workload(
        *(*MODEL, "--rate", "5", "--api", "chat", "--api-key", "hidden1", "--header", "x-team: hidden2"),
        *("--extra-body", '{"temperature": 0}', "--endpoint", "/v1/chat/completions?key=hidden3"),
        environment={"OPENAI_API_KEY": "hidden4"},
    )
    text = json.dumps(made.settings)
    assert "hidden" not in text and "hidden" not in repr(made)
    assert made.settings == {
        "url": HERE + "/v1/chat/completions?…",
        "api": "chat",
        "method": "POST",
        "model": "m",
        "rate": 5.0,
        "seed": 0,
        "headers": ["x-team"],
        "extra_body": {"temperature": 0},
    }


def test_notes_have_the_sentences_to_print(tmp_path: Path) -> None:
    """A key that was not sent, rows left out and times spread: the caller has the sentences to print."""
    path = tmp_path / "burst.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(head + "5,a,1,0,1,b\n" + "7,a,1,1,2,b\n" * 9 + "9,a,1,1,2,b\n", encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args([*MODEL, "--trace-replay", str(path)])
    notes = from_arguments(parsed, "http://10.0.0.1", {"OPENAI_API_KEY": "hidden"}).notes
    assert [word in " ".join(notes) for word in ("OPENAI_API_KEY", "1 rows without", "2 different times")] == [True] * 3
    assert "hidden" not in " ".join(notes)


def test_a_workload_crosses_processes(trace: str) -> None:
    """The processes of one run are given it whole, and make the same schedules and requests of it."""
    for words in (
        (*MODEL, "--trace-replay", trace),
        (*MODEL, "--rate", "5", "--arrivals", "gamma:2", "--prompt-tokens", "1..9"),
    ):
        made = workload(*words)
        again = pickle.loads(pickle.dumps(made))
        assert again.schedule() == made.schedule()
        assert again.make("x")(made.schedule()[3]) == made.make("x")(made.schedule()[3])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1h", 3600), ("500ms", 0.5), (7, 7)]
)
def test_durations(text: Any, seconds: float) -> None:
    """Seconds, or a number with a unit."""
    assert seconds_of(text) == seconds
    assert seconds_of(None) is None


OPTIONS = [
    "--rate",
    "--arrivals",
    "--duration",
    "--requests",
    "--seed",
    "--scale",
    "--jitter-rounded",
    "--prompt-tokens",
]
OPTIONS += ["--output-tokens", "--extra-body", "--header", "--api-key", "--method", "--endpoint", "--model", "--api"]


@given(
    st.lists(
        st.tuples(st.sampled_from(OPTIONS), st.text(max_size=8) | st.sampled_from(["5", "2.5", "chat"])), max_size=5
    )
)
@settings(max_examples=300, deadline=None)
def test_any_call_is_taken_or_refused(pairs: list[tuple[str, str]]) -> None:
    """Any values of the options give a workload that makes requests, or an error that the command line prints."""
    words = [f"{option}={value}" for option, value in pairs]
    try:
        made = workload(*words)
        schedule = made.schedule(requests=3)
    except (TailwatchError, argparse.ArgumentError):
        return
    request = made.make()
    assert all(request(planned).count(b"\r\n\r\n") >= 1 for planned in schedule)


def test_the_settings_of_a_search_do_not_stick() -> None:
    """A schedule at another rate leaves the workload as it was."""
    made = workload(*MODEL, "--rate", "5")
    first = made.schedule()
    made.schedule(rate=50, requests=10, seed=9)
    assert made.schedule() == first


def test_a_programs_wrong_values_teach() -> None:
    """A program that hands over what is no duration or rate gets the command line's error."""
    with pytest.raises(OptionError, match="duration"):
        seconds_of("1 day")
    with pytest.raises(OptionError, match="rate"):
        workload(*MODEL).schedule(rate=float("inf"), requests=1)
