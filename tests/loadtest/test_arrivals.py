"""Arrivals: the grammar, and that each law gives what it promises."""

from __future__ import annotations

import math
import pickle
import random
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError
from tailwatch.loadtest import interarrival
from tailwatch.loadtest.arrivals import Arrivals
from tailwatch.loadtest.profile import Piece, Profile

FLAT = ("constant", "poisson", "gamma:0.5", "gamma:2", "bursts:20", "bursts:2s/8s")
OWN = ("ramp:10..100", "ramp:100..10", "ramp:0..50", "steps:10,20,40", "steps:10,0,40")


def seconds(text: str, rate: float | None, **ends: float) -> list[float]:
    """The times of a schedule, in seconds."""
    times, _, _ = Arrivals.parse(text).draw(rate, **ends)  # type: ignore[arg-type]
    return [time / 1e9 for time in times]


@pytest.mark.parametrize("text", FLAT)
def test_the_rate_is_the_rate(text: str) -> None:
    """Over a long plan each law without rates of its own realises the rate asked for."""
    _, duration, law = Arrivals.parse(text).draw(50, duration=2000)
    assert duration == 2000
    assert law.rate == pytest.approx(50, rel=0.05)
    assert law.n == law.rate * 2000


def test_constant_is_exact() -> None:
    """Arrivals stand at k / rate from the first moment on, and a whole number of them fits the plan."""
    assert seconds("constant", 40, duration=60) == [k / 40 for k in range(2400)]
    for rate in (3, 7, 49, 0.3, 1000):
        assert len(seconds("constant", rate, duration=10)) == rate * 10
    _, duration, law = Arrivals.parse("constant").draw(49, requests=100)
    assert duration == pytest.approx(100 / 49)
    assert (law.rate, law.cv) == (pytest.approx(49), pytest.approx(0, abs=1e-6))


@pytest.mark.parametrize(("text", "cv"), [("poisson", 1), ("gamma:0.3", 0.3), ("gamma:1", 1), ("gamma:2.5", 2.5)])
def test_gaps_have_their_variation(text: str, cv: float) -> None:
    """The coefficient of variation of the gaps is the one asked for, and the gaps pass the test against their law."""
    _, _, law = Arrivals.parse(text).draw(100, requests=40_000, seed=3)
    assert law.cv == pytest.approx(cv, rel=0.06)
    assert law.ks is not None and law.ks < 0.02
    assert law.p is not None and law.p > 0.001


def test_poisson_counts_are_poisson() -> None:
    """The counts per second vary as much as they amount to, and no gap repeats."""
    times, _, law = Arrivals.parse("poisson").draw(40, duration=2000, seed=1)
    assert law.fano == pytest.approx(1, abs=0.15)
    found = [later - earlier for earlier, later in pairwise(times)]
    assert len(set(found)) > 0.99 * len(found)


def test_clusters_show_in_the_fano_factor() -> None:
    """Gaps of CV 3 and bursts give counts that vary more than Poisson's; even gaps give none of it."""
    fano = {text: Arrivals.parse(text).draw(40, duration=1000)[2].fano for text in ("constant", "gamma:3", "bursts:40")}
    assert fano["constant"] is not None and fano["constant"] < 0.01
    assert fano["gamma:3"] is not None and fano["gamma:3"] > 4
    assert fano["bursts:40"] is not None and fano["bursts:40"] < 0.01  # one burst in each second
    slow = Arrivals.parse("bursts:80").draw(40, duration=1000)[2].fano
    assert slow == pytest.approx(40, rel=0.01)  # 80 or none: the variance is 40 squared


def test_bursts_come_together() -> None:
    """Twenty at one moment, the next twenty 20 / rate seconds later."""
    assert seconds("bursts:20", 10, requests=60) == [0.0] * 20 + [2.0] * 20 + [4.0] * 20


def test_on_and_off() -> None:
    """Nothing arrives in the off times, and the on times carry the whole rate."""
    found = seconds("bursts:2s/8s", 20, duration=100)
    assert all(time % 10 <= 2 + 1e-6 for time in found)
    assert len(found) == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize("text", OWN)
def test_own_rates_are_followed(text: str) -> None:
    """Ramps and steps have the counts of their rates in each third of the plan, and pass the test once rescaled."""
    _, _, law = Arrivals.parse(text).draw(None, duration=600, seed=5)
    profile = Arrivals.parse(text).profile(None, 600)
    found = seconds(text, None, duration=600, seed=5)
    for third in range(3):
        counted = sum(third * 200 <= time < (third + 1) * 200 for time in found)
        expected = profile.mass_at((third + 1) * 200) - profile.mass_at(third * 200)
        assert abs(counted - expected) < 5 * math.sqrt(expected + 1)
    assert law.p is not None and law.p > 0.001


def test_a_cut_ramp_is_still_the_ramp() -> None:
    """Ended by a number of requests the ramp is that of the whole duration, and its law is measured so."""
    cut = seconds("ramp:10..100", None, duration=600, requests=2000)
    assert cut == seconds("ramp:10..100", None, duration=600)[:2000]
    _, duration, law = Arrivals.parse("ramp:10..100").draw(None, duration=600, requests=2000)
    assert duration < 150
    assert law.p is not None and law.p > 0.001


def test_the_wrong_law_is_seen() -> None:
    """The test separates gamma gaps of CV 2 from Poisson: it is one that can fail."""
    times, _, _ = Arrivals.parse("gamma:2").draw(100, requests=2000)
    sample = [(later - earlier) / 1e7 for earlier, later in pairwise(times)]
    cdf = interarrival.poisson().cdf
    assert cdf is not None
    assert interarrival.probability(interarrival.distance(sample, cdf), len(sample)) < 1e-6


def test_repeated_gaps_are_seen() -> None:
    """Ten workers that draw the same gaps, a known fault of a known tool, do not pass as Poisson."""
    rng = random.Random(1)
    one = accumulate(rng.expovariate(4) for _ in range(60))
    sample = [40 * (later - earlier) for earlier, later in pairwise([time for time in one for _ in range(10)])]
    cdf = interarrival.poisson().cdf
    assert cdf is not None
    assert interarrival.probability(interarrival.distance(sample, cdf), len(sample)) < 1e-6


@pytest.mark.parametrize("text", (*FLAT, *OWN))
def test_a_seed_is_a_schedule(text: str) -> None:
    """The same seed gives the same times, another one others (where there is chance in them at all)."""
    rate = None if text in OWN else 30
    first, again, other = (seconds(text, rate, duration=100, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) is (text in ("constant", "bursts:20"))
    assert first == sorted(first)


def test_times_are_the_same_everywhere() -> None:
    """The first arrivals of seed 0, to the nanosecond: they hang on no version of Python."""
    times, _, _ = Arrivals.parse("poisson").draw(10, requests=4)
    assert list(times) == POISSON


POISSON = [198967583, 262616799, 515506919, 530078354]


def test_requests_leave_the_rate_without_bias() -> None:
    """Plans of ten Poisson requests have the rate asked for on average: the end is no arrival of theirs."""
    rates = [Arrivals.parse("poisson").draw(5, requests=10, seed=seed)[2].rate for seed in range(2000)]
    assert sum(rates) / len(rates) == pytest.approx(5, rel=0.04)


def test_a_short_plan_is_a_plan() -> None:
    """Too few arrivals for a law give a schedule all the same, without numbers that mean nothing."""
    times, duration, law = Arrivals.parse("poisson").draw(1, requests=1)
    assert len(times) == 1 and duration >= times[0] / 1e9
    assert (law.cv, law.fano, law.ks, law.p) == (None, None, None, None)
    assert len(Arrivals.parse("poisson").draw(0.001, duration=0.01)[0]) == 0


WRONG = {
    "posson": "did you mean 'poisson'",
    "": "expected constant",
    "poisson:3": "takes no number",
    "constant:": "takes no number",
    "gamma": "coefficient of variation",
    "gamma:0": "0.1 to 10",
    "gamma:nan": "found 'nan'",
    "gamma:1e3": "found '1e3'",
    "bursts:1": "2 to 100000",
    "bursts:2.5": "whole number",
    "bursts:2/8": "times like 2s",
    "bursts:2s/": "found ''",
    "bursts:0s/8s": "found '0s'",
    "ramp:10": "ramp:FROM..TO",
    "ramp:1..2..3": "ramp:FROM..TO",
    "ramp:0..0": "more than nothing",
    "ramp:-1..5": "found '-1'",
    "steps:": "found ''",
    "steps:1,,2": "found ''",
    "steps:0,0": "more than nothing",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_words_teach(text: str) -> None:
    """What is no law is refused with what was expected."""
    with pytest.raises(OptionError) as caught:
        Arrivals.parse(text)
    assert WRONG[text] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rate", "ends", "message"),
    [
        ("poisson", None, {"duration": 1}, "rate"),
        ("poisson", 0, {"duration": 1}, "rate"),
        ("poisson", math.inf, {"duration": 1}, "rate"),
        ("poisson", True, {"duration": 1}, "rate"),
        ("poisson", 1, {}, "needs an end"),
        ("poisson", 1, {"duration": 0}, "duration"),
        ("poisson", 1, {"duration": math.nan}, "duration"),
        ("poisson", 1, {"requests": 0}, "requests"),
        ("poisson", 1, {"requests": 2.5}, "requests"),
        ("poisson", 1e6, {"duration": 60}, "at most 10000000"),
        ("poisson", 0.001, {"requests": 10**6}, "half a week"),
        ("ramp:1..2", 5, {"duration": 1}, "names its own rates"),
        ("steps:1,2", None, {"requests": 1}, "spread over"),
    ],
)
def test_wrong_ends_teach(text: str, rate: float | None, ends: dict[str, float], message: str) -> None:
    """A rate or an end that is missing, superfluous or no number is refused by its name."""
    with pytest.raises(OptionError, match=message):
        Arrivals.parse(text).draw(rate, **ends)  # type: ignore[arg-type]


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text gives anything but arrivals or an OptionError; what is read reads back equal."""
    try:
        found = Arrivals.parse(text)
    except OptionError:
        return
    assert Arrivals.parse(found.text) == found


@pytest.mark.parametrize("text", ["steps:1000000,0.0001", "ramp:0..123456.789"])
def test_the_text_of_a_law_is_its_own(text: str) -> None:
    """It has no exponent, which the grammar lacks, and all digits."""
    assert Arrivals.parse(text).text == text


@given(
    st.sampled_from(_kinds := ["gamma", "bursts", "ramp", "steps"]),
    st.text(alphabet="0123456789.,/sm:- e", max_size=20),
)
@settings(max_examples=500, deadline=None)
def test_near_misses_are_read_or_refused(kind: str, rest: str) -> None:
    """The same for texts that look like the grammar; what is read also draws, within its bounds."""
    try:
        found = Arrivals.parse(f"{kind}:{rest}")
    except OptionError:
        return
    assert Arrivals.parse(found.text) == found
    times, duration, _ = found.draw(None if found.own_rate else 5, duration=10, requests=50)
    assert list(times) == sorted(times) and len(times) <= 50 and duration <= 10
    assert not times or 0 <= times[0] <= times[-1] <= 10e9


def test_arrivals_cross_processes() -> None:
    """A law survives pickling: it is its text."""
    for text in (*FLAT, *OWN):
        assert pickle.loads(pickle.dumps(Arrivals.parse(text))) == Arrivals.parse(text)


@given(
    st.lists(
        st.tuples(st.floats(0.01, 100), st.floats(0, 1000), st.floats(0, 1000)).filter(
            lambda piece: sum(piece[1:]) > 1e-3
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.floats(0, 1),
)
@settings(max_examples=300, deadline=None)
def test_a_profile_is_undone_by_its_inverse(
    pieces: list[tuple[float, float, float]], again: bool, share: float
) -> None:
    """Expected arrivals until the time when so many are expected are so many."""
    profile = Profile([Piece(*piece) for piece in pieces], again=again)
    whole = sum(piece.mass for piece in profile.pieces) * (3 if again else 1)
    at = profile.time_of(share * whole)
    assert profile.mass_at(at) == pytest.approx(share * whole, rel=1e-6, abs=1e-6 * whole)


def test_a_profile_ends() -> None:
    """More arrivals than its pieces hold are expected never."""
    assert Profile([Piece(10, 1, 1)]).time_of(10.1) == math.inf
    assert Profile([Piece(10, 1, 1)], again=True).time_of(10.5) == pytest.approx(10.5)


# P(shape, shape * x) by scipy.special.gammainc, for each x of POINTS.
POINTS = (1e-9, 1e-3, 0.1, 0.5, 0.9, 1, 1.1, 2, 5)
GAMMA = {
    0.01: (0.78067679292, 0.8963367982672, 0.9385706525261, 0.9537608600422, 0.9593455834830, 0.9603474235215,
           0.9612537003548, 0.9669321313764, 0.9755478839930),
    0.11: (0.0847270091116, 0.3872729305194, 0.6420214904432, 0.7630781328427, 0.8106181199070, 0.8192128839177,
           0.8269880088781, 0.8751753587069, 0.9413921604373),
    0.5: (2.5231325215996e-05, 0.0252271206300, 0.2481703659542, 0.5204998778130, 0.6572182888521, 0.6826894921371,
          0.7057338956950, 0.8427007929497, 0.9746526813225),
    1: (9.999999995000e-10, 0.0009995001666, 0.0951625819640, 0.3934693402874, 0.5934303402594, 0.6321205588286,
        0.6671289163019, 0.8646647167634, 0.9932620530009),
    4: (1.0666666632534e-35, 1.0632590157263e-11, 0.0007762513762, 0.1428765395015, 0.4847838895339, 0.5665298796333,
        0.6405522272112, 0.9576198880083, 0.9999967962802),
    100: (0.0, 9.7050348771258e-259, 5.3985897281396e-63, 3.2000653245852e-10, 0.1582209891864, 0.5132987982791,
          0.8417213299399, 0.9999999999999981, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("shape", GAMMA)
def test_the_gamma_function_is_right(shape: float) -> None:
    """The incomplete gamma function agrees with scipy's over its whole range."""
    for x, expected in zip(POINTS, GAMMA[shape], strict=True):
        assert interarrival.gamma_below(shape, shape * x) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (interarrival.gamma_below(shape, 0.0), interarrival.gamma_below(shape, math.inf)) == (0.0, 1.0)


# Distance and exact probability by scipy.stats.kstest of a hundred exponential gaps, stretched by so much.
KOLMOGOROV = {
    1.0: (0.076053956868, 0.5827439757),
    1.1: (0.129246471241, 0.0646123941),
    1.3: (0.163799750662, 0.0082028386),
}


def test_the_distance_and_its_probability_are_kolmogorovs() -> None:
    """Both agree with scipy's, the probability to a tenth: its own is exact, ours the corrected limit."""
    rng = random.Random(4)
    cdf = interarrival.poisson().cdf
    assert cdf is not None
    for stretch, (far, likely) in KOLMOGOROV.items():
        found = interarrival.distance([stretch * rng.expovariate(1) for _ in range(100)], cdf)
        assert found == pytest.approx(far, abs=1e-9)
        assert interarrival.probability(found, 100) == pytest.approx(likely, rel=0.1)


def test_probabilities_are_even_under_the_law_itself() -> None:
    """Of many Poisson schedules one in twenty has a probability below one in twenty."""
    found = [Arrivals.parse("poisson").draw(10, requests=200, seed=seed)[2].p for seed in range(400)]
    low = sum(p is not None and p < 0.05 for p in found)
    assert 5 <= low <= 40
