"""Options: where they come from, and the error of each for a bad value."""

from __future__ import annotations

import dataclasses
import fractions
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot
from tailwatch.errors import OptionError, TailwatchError, nearest
from tailwatch.options import config as config_module
from tailwatch.options.config import OPTIONS, Config, nearest_variable, variable_of
from tailwatch.options.slo import SLO


def load(environment: dict[str, str] | None = None, **arguments: Any) -> Config:
    """The options from these arguments and this environment only."""
    return Config.read(arguments, environment or {})


def refusal(environment: dict[str, str] | None = None, **arguments: Any) -> OptionError:
    """The error that a bad value must raise."""
    with pytest.raises(OptionError) as caught:
        load(environment, **arguments)
    return caught.value


@pytest.mark.parametrize(("written", "number"), [("9", 9.0), ("9ms", 9.0), ("1e3", 1000.0), ("0.25s", 250.0)])
def test_milliseconds_are_what_is_written(written: str, number: float) -> None:
    """A bare number as float() reads it, a time without the error of its binary fraction."""
    assert load({"TAILWATCH_SLOW_GAP_MS": written}).slow_gap_ms == number


def test_defaults() -> None:
    """With nothing given the defaults of the design hold."""
    config = load()
    assert config.slo == SLO(ttft=2.0, tpot=0.2, itl=1.0, attainment=0.99)
    assert str(config.slo) == "ttft<=2s,tpot<=200ms,itl<=1s@99%"
    assert (config.gc, config.gc_warn_ms, config.gc_log_all, config.slow_gap_ms) == ("auto", 0.0, False, 0.0)
    assert (config.metrics_path, config.metrics_port, config.routes) == ("/metrics", 0, ())
    assert (config.max_label_sets, config.trust_request_start, config.fast_sse) == (32, False, False)
    assert (config.explicit, config.unknown_environment) == (frozenset(), ())


def test_every_field_is_an_option_with_a_parser_and_a_default() -> None:
    """No option can be declared and then forgotten by the reader."""
    assert set(OPTIONS) == set(config_module._PARSERS) == set(config_module._defaults(True))


def test_role_depends_on_the_app() -> None:
    """A process with an app is "api", one without is "worker", and a given role wins."""
    assert load().role == "api"
    assert Config.read({}, {}, app=False).role == "worker"
    assert Config.read({"role": "engine"}, {}, app=False).role == "engine"


def test_argument_beats_environment_beats_default() -> None:
    """The order is argument, TAILWATCH_* variable, default; both kinds count as explicit."""
    environment = {"TAILWATCH_GC": "observe", "TAILWATCH_SLOW_GAP_MS": "250"}
    config = load(environment, gc="off", role="x")
    assert (config.gc, config.slow_gap_ms, config.gc_warn_ms) == ("off", 250.0, 0.0)
    assert config.explicit == {"gc", "slow_gap_ms", "role"}


def test_none_is_not_given() -> None:
    """An argument of None leaves the word to the environment and the default."""
    config = load({"TAILWATCH_GC": "observe"}, gc=None, slow_gap_ms=None)
    assert (config.gc, config.explicit) == ("observe", frozenset({"gc"}))


def test_a_bad_variable_is_hidden_by_an_argument() -> None:
    """A variable that an argument overrides is not read at all."""
    assert load({"TAILWATCH_GC": "nonsense"}, gc="off").gc == "off"


def test_everything_from_the_environment() -> None:
    """Each option can be set by its variable."""
    config = load(
        {
            "TAILWATCH_SLO": "itl<=1s@95%",
            "TAILWATCH_GC": "Observe",
            "TAILWATCH_GC_MEMORY_LIMIT": "objects=5000",
            "TAILWATCH_GC_WARN_MS": "50",
            "TAILWATCH_GC_LOG_ALL": "yes",
            "TAILWATCH_SLOW_GAP_MS": " 0.5 ",
            "TAILWATCH_METRICS_PATH": "/tw",
            "TAILWATCH_METRICS_APPEND": "yes",
            "TAILWATCH_METRICS_PORT": "9100",
            "TAILWATCH_HISTOGRAMS": "Native",
            "TAILWATCH_EXEMPLARS": "off",
            "TAILWATCH_PAGE": "on",
            "TAILWATCH_PAGE_TOKEN": " s3cret ",
            "TAILWATCH_ROLE": "engine-1",
            "TAILWATCH_ENGINE": "01",
            "TAILWATCH_ROUTES": "/a, /b/{c} ,",
            "TAILWATCH_MAX_LABEL_SETS": "4096",
            "TAILWATCH_TRUST_REQUEST_START": "1",
            "TAILWATCH_FAST_SSE": "True",
            "TAILWATCH_ORCA": "Text",
            "TAILWATCH_SERVER_TIMING": "on",
            "TAILWATCH_SSE_TIMING": "yes",
            "TAILWATCH_DIR": "/dev/shm/group",
            "TAILWATCH_NVTX": "ON",
            "TAILWATCH_NVTX_TOKENS": "yes",
            "TAILWATCH_TRACE_EVENTS": "1_000_000",
            "TAILWATCH_TRACE_ON": "gap>100ms,slo",
            "TAILWATCH_TRACE_KEEP": "3,1GB",
            "TAILWATCH_STALLS": "clock",
            "TAILWATCH_QUIET": "on",
            "TAILWATCH_OTEL": "on",
        }
    )
    assert config.explicit == set(OPTIONS)
    assert (config.slo, config.gc, config.gc_warn_ms, config.gc_log_all) == (
        SLO(itl=1.0, attainment=0.95),
        "observe",
        50.0,
        True,
    )
    assert (config.slow_gap_ms, config.metrics_path, config.metrics_port, config.role) == (0.5, "/tw", 9100, "engine-1")
    assert (config.routes, config.max_label_sets, config.trust_request_start) == (("/a", "/b/{c}"), 4096, True)
    assert (config.fast_sse, config.dir, config.engine) == (True, "/dev/shm/group", "1")
    assert (config.page, config.page_token) == (True, "s3cret")
    assert (config.nvtx, config.nvtx_tokens) == ("on", True)
    assert (config.trace_events, str(config.trace_on), str(config.trace_keep)) == (
        1_000_000,
        "gap>100ms,slo",
        "3,1000000000",
    )
    assert (config.orca, config.server_timing, config.sse_timing) == ("text", True, True)
    assert config.otel is True
    assert config.metrics_append == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [(t, True) for t in ("1", "true", "YES", "On")] + [(t, False) for t in ("0", "False", "no", "OFF")],
)
def test_booleans_from_the_environment(text: str, expected: bool) -> None:
    """Eight words are booleans, in any case."""
    assert load({"TAILWATCH_GC_LOG_ALL": text}).gc_log_all is expected


def test_empty_variables_count_as_not_set() -> None:
    """Only two mean something: TAILWATCH_METRICS_PATH, not served, and TAILWATCH_DIR, no group."""
    config = load({variable_of(name): "" for name in OPTIONS})
    assert config.explicit == {"metrics_path", "dir"}
    assert config.metrics_path == config.dir == ""


def test_the_message_teaches() -> None:
    """The message names the option, what was found, what was expected, the nearest choice and the variable."""
    error = refusal({"TAILWATCH_GC": "freez"})
    for part in ("gc='freez': ", "'freeze', 'idle', 'observe', 'off';", "'freeze'?", "from TAILWATCH_GC"):
        assert part in str(error)
    assert (error.option, error.found, error.source, error.hint) == ("gc", "freez", "TAILWATCH_GC", "freeze")
    assert isinstance(error, ValueError) and isinstance(error, TailwatchError)


def test_no_suggestion_where_nothing_is_near() -> None:
    """A value like none of the choices gets no guess."""
    error = refusal(gc="zzz")
    assert error.hint is None and "?" not in str(error)
    assert str(error).startswith("gc='zzz': ") and str(error).endswith("'freeze', 'idle', 'observe', 'off'")


BAD: dict[str, list[object]] = {
    "slo": ["", "ttft", "ttft<=5", "ttft<=1s,ttft<=2s", "mlperf:gpt", 5, True, "tpot<=1ms@0%", "ttft>=1s"],
    "gc_memory_limit": [5, "256MB", "rss", True],
    "gc": ["", 1, True, ["freeze"], b"freeze"],
    "gc_warn_ms": [float("nan"), float("inf"), -1, -0.001, True, "50", 10**400, 3_600_001, 1j, [1]],
    "gc_log_all": [1, 0, "yes", "true", 1.0],
    "slow_gap_ms": [float("nan"), float("-inf"), -5, False, "1", object()],
    "metrics_path": ["metrics", "/a b", "/a?b", "/a#b", "/\n", 5, b"/m", "/\u00e9"],
    "metrics_append": [-1, 1, 49, 100_001, 200.0, "on", "200"],
    "metrics_port": [-1, 65536, True, 80.0, "80", float("nan")],
    "role": ["", "a" * 32, "a b", "-x", 3, "r\u00f4le", "a\n"],
    "engine": ["a" * 32, "a b", "-1", -1, 2**32, "4294967296", True, 1.0, b"1", "\u0661", "1\n", ["1"]],
    "routes": ["generate", ["/a", "b"], [3], 7, {"/a": 1}, ["/a\n"]],
    "max_label_sets": [0, 4097, True, 32.0, "32", -1, 10**30],
    "trust_request_start": [1, "on", []],
    "fast_sse": [1, "on", {}],
    "orca": [1, "BIN", {}, ""],
    "server_timing": [1, "on", {}],
    "sse_timing": [1, "on", {}],
    "dir": ["here", "./x", b"/x", 5, "/a\0b", ["/x"]],
    "nvtx": ["", "1", "yes", 1, b"on", ["auto"]],
    "stalls": ["", "on", True, 1, ["auto"]],
    "quiet": [1, "on", []],
    "nvtx_tokens": [1, "on", []],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in BAD.items() for value in values])
def test_bad_arguments_are_refused_by_name(option: str, value: Any) -> None:
    """Every bad argument raises an error that begins with the option, has what it takes, and quotes what it got."""
    error = refusal(**{option: value})
    assert str(error).startswith(f"{option}=")
    assert error.found is value
    assert "expected" in str(error)
    assert "from TAILWATCH" not in str(error)


BAD_TEXT = {
    "slo": "fast",
    "gc": "on",
    "gc_memory_limit": "256MB",
    "gc_warn_ms": "nan",
    "gc_log_all": "maybe",
    "slow_gap_ms": "-1",
    "metrics_path": "metrics",
    "metrics_append": "some",
    "metrics_port": "http",
    "histograms": "protobuf",
    "exemplars": "some",
    "page": "maybe",
    "page_token": "s3cret with blanks",
    "role": "my role",
    "engine": "my engine",
    "routes": "/a,b",
    "max_label_sets": "1e3",
    "trust_request_start": "2",
    "fast_sse": "fast",
    "orca": "BIN",
    "server_timing": "some",
    "sse_timing": "some",
    "dir": "here",
    "nvtx": "maybe",
    "stalls": "on",
    "quiet": "very",
    "nvtx_tokens": "2",
    "trace_events": "many",
    "trace_on": "gap",
    "trace_keep": "all",
    "otel": "maybe",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_bad_variables_are_refused_by_name(option: str) -> None:
    """Every bad variable is named beside its option."""
    error = refusal({variable_of(option): BAD_TEXT[option]})
    shown = "(not shown)" if option == "page_token" else BAD_TEXT[option]
    assert str(error).startswith(f"{option}='{shown}': ")
    assert str(error).endswith(f"(from {variable_of(option)})")


def test_the_switch_is_no_option() -> None:
    """TAILWATCH itself is known."""
    assert load({"TAILWATCH": "1"}).unknown_environment == ()


@pytest.mark.parametrize("token", ["s3cret token", "s3cret\n", "s3cr\u00e9t", "s3cret" * 50, 5, b"s3cret", True])
def test_a_bad_token_is_refused_and_not_shown(token: Any) -> None:
    """Neither in the message nor in the error, which may be logged with its attributes."""
    error = refusal(page_token=token)
    assert "s3c" not in str(error) + repr(error) + repr(vars(error)) and "visible ASCII" in str(error)


def test_the_token_is_in_no_text_of_the_options() -> None:
    """A log of them does not have it; empty means that there is none."""
    config = load(page=True, page_token="s3cret")
    assert config.page_token == "s3cret" and "s3cret" not in repr(config)
    assert (config.shown("page_token"), config.shown("page")) == ("(not shown)", "True")
    assert load(page_token="").page_token == load().page_token == "" and not load().page


def test_what_is_meant_is_named() -> None:
    """A token without a page; the address of a receiver."""
    assert "page=True" in str(refusal(page_token="s3cret"))
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in str(refusal(otel="http://127.0.0.1:4318"))
    assert load({"TAILWATCH_PAGE_TOKEN": "s3cret"}).page_token == "s3cret"


def test_an_engine_is_a_number_or_a_name() -> None:
    """Numbers count from 0, as data parallel ranks do, however they are written; empty is none."""
    given = (0, "0", "007", 4294967295, "prefill-1", "", None)
    assert [load(engine=engine).engine for engine in given] == ["0", "0", "7", "4294967295", "prefill-1", "", ""]


@given(st.text("0123456789aZ_.- \u0661", max_size=34))
def test_the_option_takes_what_a_stream_takes(text: str) -> None:
    """One grammar, in Python for the option and in C for bind() and headers."""
    try:
        unit = _hot.engine_id(text)
    except ValueError:
        refusal(engine=text)
    else:
        assert _hot.engine_id(load(engine=text).engine) == unit


def test_a_directory_may_be_a_path(tmp_path: Path) -> None:
    """A str or a path, absolute: processes of one group may have different working directories."""
    assert load(dir=tmp_path).dir == load({"TAILWATCH_DIR": str(tmp_path)}).dir == str(tmp_path)
    assert load().dir == load(dir="").dir == ""


def test_unknown_options_name_the_nearest() -> None:
    """A mistyped option is an error with the right name; one like nothing lists them all."""
    assert "did you mean 'gc_warn_ms'?" in str(refusal(gc_warn=5))
    assert "the options are slo, gc," in str(refusal(zzzzz=5))


def test_unknown_variables_are_collected() -> None:
    """A mistyped variable cannot be an error (it may be another program's): it is kept for the doctor."""
    config = load({"TAILWATCH_GC_WARN": "5", "TAILWATCH_A": "1", "tailwatch_gc": "x", "PATH": "/bin"})
    assert config.unknown_environment == ("TAILWATCH_A", "TAILWATCH_GC_WARN")
    assert nearest_variable("TAILWATCH_GC_WARN") == "TAILWATCH_GC_WARN_MS"
    assert nearest_variable("TAILWATCH_A") is None


def test_good_values_of_other_types() -> None:
    """Integers, fractions, ready SLOs, lists and comma lists are taken for what they are."""
    slo = SLO(e2e=3.0)
    config = load(slo=slo, gc_warn_ms=fractions.Fraction(1, 2), slow_gap_ms=7, routes=["/a"], metrics_path="")
    assert config.slo is slo
    assert (config.gc_warn_ms, config.slow_gap_ms, config.routes, config.metrics_path) == (0.5, 7.0, ("/a",), "")
    assert load(routes="/a,/b").routes == ("/a", "/b")
    assert load(routes={"/b", "/a"}).routes == ("/a", "/b")


def test_config_is_frozen() -> None:
    """Nothing changes options behind install()'s back."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().gc = "off"  # type: ignore[misc]


def test_differing_names_the_options() -> None:
    """What a second install must name."""
    assert load(gc="off", slow_gap_ms=3).differing(load(role="x", slow_gap_ms=3.0)) == ("gc", "role")
    assert load().differing(load({"TAILWATCH_GC": "auto"})) == ()


def test_replace_makes_options_explicit() -> None:
    """What replaces an option counts as given."""
    config = load(role="x").replace({"gc": "off"})
    assert (config.gc, config.role, config.explicit) == ("off", "x", frozenset({"gc", "role"}))


def test_huge_values_are_quoted_in_brief() -> None:
    """A megabyte of rubbish does not make a megabyte of message."""
    assert len(str(refusal(gc="x" * 1_000_000))) < 300


def test_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping, os.environ is read."""
    monkeypatch.setenv("TAILWATCH_SLOW_GAP_MS", "123")
    assert Config.load().slow_gap_ms == 123.0
    assert Config.load(slow_gap_ms=5, app=False).slow_gap_ms == 5.0


@given(
    st.sampled_from(OPTIONS),
    st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans(), st.binary(), st.lists(st.text())),
)
def test_any_value_is_taken_or_refused(option: str, value: Any) -> None:
    """No value of any type gets anything but a Config or an OptionError that names the option."""
    try:
        config = load(**{option: value})
    except OptionError as error:
        assert str(error).startswith(f"{option}=")
    else:
        assert (option in config.explicit) is (value is not None)


@given(st.sampled_from(OPTIONS), st.text())
def test_any_text_from_the_environment_is_taken_or_refused(option: str, text: str) -> None:
    """The same for variables, whose name then ends the message."""
    variable = variable_of(option)
    try:
        load({variable: text})
    except OptionError as error:
        assert str(error).endswith(f"(from {variable})")


def test_nearest_ignores_what_is_no_text() -> None:
    """Only text is near anything."""
    assert nearest(5, ("a", "b")) is None
    assert nearest("Freez", ("freeze",)) == "freeze"


def test_a_plain_message_is_enough() -> None:
    """OptionError also takes a ready message."""
    error = OptionError("p=101: expected 0 to 100")
    assert (str(error), error.option, error.source) == ("p=101: expected 0 to 100", "", None)
