"""The SLO grammar, the presets, and windows."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import OptionError
from tailwatch.options.slo import BOUNDS, EXCLUDED, MISSES, PRESETS, REASONS, SLO, parse_duration, parse_window, real

nanoseconds = st.integers(1_000, 24 * 3600 * 10**9)
slos = st.builds(
    lambda bounds, ppm: SLO(**{name: ns / 1e9 for name, ns in bounds.items()}, attainment=ppm / 1e6),
    st.dictionaries(st.sampled_from(BOUNDS), nanoseconds, min_size=1),
    st.integers(1, 1_000_000),
)


def test_the_documented_example() -> None:
    """All four bounds and the attainment, as the design writes them."""
    slo = SLO.parse("ttft<=500ms,tpot<=40ms,itl<=200ms,e2e<=10s@99%")
    assert (slo.ttft, slo.tpot, slo.itl, slo.e2e, slo.attainment) == (0.5, 0.04, 0.2, 10.0, 0.99)
    assert slo.as_core() == (500_000_000, 40_000_000, 200_000_000, 10_000_000_000, 990_000)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" TTFT <= 1500 ms , itl<= 0.25s ", "ttft<=1.5s,itl<=250ms@99%"),
        ("e2e<=2m", "e2e<=120s@99%"),
        ("itl<=1us@100%", "itl<=1us@100%"),
        ("tpot<=.5ms @ 99.99 %", "tpot<=500us@99.99%"),
        ("e2e<=10s,ttft<=2s@0.0001%", "ttft<=2s,e2e<=10s@0.0001%"),
        ("ttft<=1.000000001s", "ttft<=1.000000001s@99%"),
    ],
)
def test_one_spelling_for_each(text: str, canonical: str) -> None:
    """Blanks, case, order and units do not matter; str() is the one spelling."""
    assert str(SLO.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected bounds like"),
        ("ttft", "found 'ttft'"),
        ("ttft<=500", "the unit is missing"),
        ("ttft>=500ms", "upper bounds"),
        ("ttft<500ms", "write '<='"),
        ("ttft=500ms", "found 'ttft=500ms'"),
        ("ttfb<=500ms", "found 'ttfb'"),
        ("ttft<=1s,ttft<=2s", "found 'ttft' twice"),
        ("ttft<=0s", "from 1us to 24 hours"),
        ("ttft<=0.5us", "expected times from 1us"),
        ("ttft<=1441m", "to 24 hours"),
        ("ttft<=-1s", "found 'ttft<=-1s'"),
        ("ttft<=nans", "found"),
        ("ttft<=infs", "found"),
        ("ttft<=1s,", "found ''"),
        ("@99%", "expected bounds like"),
        ("ttft<=1s@99", "found '99'"),
        ("ttft<=1s@0.99", "like '@99%'"),
        ("ttft<=1s@", "found ''"),
        ("ttft<=1s@0%", "found '0%'"),
        ("ttft<=1s@101%", "found '101%'"),
        ("ttft<=1s@99%@99%", "found '99%@99%'"),
        ("mlperf:llama2-70", "did you mean 'mlperf:llama2-70b'?"),
        ("mlperf:llama2-70b,itl<=1s", "expected one of the presets"),
    ],
)
def test_bad_text_is_explained(text: str, part: str) -> None:
    """The message quotes the whole text and has what is wrong with it."""
    with pytest.raises(OptionError) as caught:
        SLO.parse(text)
    assert str(caught.value).startswith(f"slo={text!r}: ")
    assert part in str(caught.value)


def test_the_source_is_named() -> None:
    """A text from the environment names its variable."""
    with pytest.raises(OptionError, match=r"\(from TAILWATCH_SLO\)$"):
        SLO.parse("x", source="TAILWATCH_SLO")


# TTFT and TPOT in ms as the MLPerf Inference rules state them, written out apart from the table under test.
RULES = """
llama2-70b 2000 200 | llama2-70b-interactive 450 40 | llama3.1-8b 2000 100 | llama3.1-8b-interactive 500 30
llama3.1-405b 6000 175 | llama3.1-405b-interactive 4500 80 | mixtral-8x7b 2000 200 | deepseek-r1 2000 80
deepseek-r1-interactive 1500 15 | gpt-oss-120b 3000 80 | gpt-oss-120b-interactive 2000 20
"""


def test_presets_are_the_published_bounds() -> None:
    """Each preset has the TTFT and TPOT of the rules at 99 %, under its own name."""
    rules = {f"mlperf:{row[0]}": row[1:] for row in (r.split() for r in RULES.replace("\n", "|").split("|")) if row}
    assert set(rules) == set(PRESETS)
    for name, (ttft, tpot) in rules.items():
        slo = SLO.parse(name.upper())
        assert slo == SLO(ttft=int(ttft) / 1000, tpot=int(tpot) / 1000, attainment=0.99)
        assert str(slo) == name


def test_a_preset_with_its_own_attainment() -> None:
    """`@` after a preset replaces the share."""
    slo = SLO.parse("mlperf:mixtral-8x7b@95%")
    assert (slo.ttft, slo.attainment, str(slo)) == (2.0, 0.95, "mlperf:mixtral-8x7b@95%")


@given(slos)
def test_text_round_trip(slo: SLO) -> None:
    """str(SLO) parses to an equal SLO with the same text and the same integers."""
    again = SLO.parse(str(slo))
    assert again == slo
    assert (str(again), again.as_core()) == (str(slo), slo.as_core())


@given(
    st.integers(1, 10**6),
    st.integers(0, 3),
    st.sampled_from([("us", 10**3), ("ms", 10**6), ("s", 10**9), ("m", 6 * 10**10)]),
    st.sampled_from(["<=", " <= ", "<= "]),
)
def test_units_are_exact(digits: int, decimals: int, unit: tuple[str, int], sign: str) -> None:
    """A bound is the decimal number times its unit, rounded to the nanosecond, whatever the spelling."""
    number = Decimal(digits).scaleb(-decimals)
    ns = round(number * unit[1])
    text = f"tpot{sign}{number:f}{unit[0]}"
    if 1_000 <= ns <= 24 * 3600 * 10**9:
        assert SLO.parse(text).as_core()[1] == ns
    else:
        with pytest.raises(OptionError):
            SLO.parse(text)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """No text gets anything but an SLO or an OptionError."""
    try:
        SLO.parse(text)
    except OptionError as error:
        assert error.option == "slo"


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"ttft": 0},
        {"ttft": -1.0},
        {"itl": math.nan},
        {"itl": math.inf},
        {"e2e": True},
        {"e2e": "1s"},
        {"tpot": 1e-7},
        {"tpot": 10**400},
        {"ttft": 1.0, "attainment": 0},
        {"ttft": 1.0, "attainment": 1.01},
        {"ttft": 1.0, "attainment": math.nan},
        {"ttft": 1.0, "attainment": True},
    ],
)
def test_an_slo_from_numbers_is_checked_too(bounds: dict[str, Any]) -> None:
    """The constructor refuses what the grammar cannot express."""
    with pytest.raises(OptionError, match="expected"):
        SLO(**bounds)


def test_equality_is_of_bounds_not_of_spelling() -> None:
    """A preset equals its bounds; the text is only how it was asked for."""
    assert SLO.parse("mlperf:llama2-70b") == SLO.parse("tpot<=0.2s,ttft<=2000ms")
    assert hash(SLO.parse("mlperf:llama2-70b")) == hash(SLO.parse("tpot<=0.2s,ttft<=2000ms"))


def test_deadlines_for_the_fluidity() -> None:
    """First token: ttft; next: tpot, else itl."""
    assert SLO.parse("ttft<=1s,tpot<=40ms,itl<=2s").deadlines == (1.0, 0.04)
    assert SLO.parse("itl<=2s").deadlines == (None, 2.0)
    assert SLO.parse("e2e<=2s").deadlines == (None, None)


def test_broken_bounds() -> None:
    """A time above its bound breaks it; equal keeps it; unknown never breaks it."""
    slo = SLO.parse("ttft<=1s,itl<=100ms")
    assert slo.broken(ttft=1.0, itl=0.1, tpot=99.0) == ()
    assert slo.broken(ttft=1.001, itl=0.2, e2e=5.0) == ("ttft", "itl")
    assert slo.broken() == ()


def test_reasons_are_good_miss_or_excluded() -> None:
    """The nine reasons of the design, each in one class."""
    assert REASONS == ("good", "late", "error", "429", "5xx", "timeout", "abort_late", "4xx", "abort_early", "3xx")
    assert not set(MISSES) & set(EXCLUDED)


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("1m", 60), ("90s", 90), ("1h", 3600), (" 5 M ", 300), (90, 90), (60.0, 60), ("1s", 1), ("90", 90)],
)
def test_windows(window: str | float, seconds: int) -> None:
    """Text with a unit, or seconds, as the message has it and other flags take it."""
    assert parse_window(window) == seconds


@pytest.mark.parametrize(
    "window", ["", "1d", "0", "0s", "2h", "61m", "-1m", "1.5m", 0, -5, 3601, 1.5, math.nan, math.inf, True, None, [1]]
)
def test_bad_windows(window: Any) -> None:
    """Anything outside 1 s to 1 h, or not whole, is refused by name."""
    with pytest.raises(OptionError, match=r"^window=.*\b1s to 1h\b"):
        parse_window(window)


@given(st.integers(1, 3600))
def test_every_second_of_the_hour_is_a_window(seconds: int) -> None:
    """A number and its text mean the same."""
    assert parse_window(seconds) == parse_window(f"{seconds}s") == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), (" 2 M ", 120), ("1h", 3600), ("10", 10), (".5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    """With a unit, or bare; the unit of a bare one is the caller's."""
    assert parse_duration(text) == seconds
    assert parse_duration("7", "ms") == 0.007


@pytest.mark.parametrize("text", ["", "s", "1d", "-1s", "1e3", "nan", "inf", "1 000", "10 s s"])
def test_other_texts_are_no_durations(text: str) -> None:
    """NaN, which no range contains."""
    assert math.isnan(parse_duration(text))


def test_real_numbers_only() -> None:
    """Booleans, text and what a float cannot hold are no numbers."""
    assert real(3) == 3.0
    assert all(math.isnan(real(value)) for value in (True, "3", None, 10**400, 1j, math.nan))
