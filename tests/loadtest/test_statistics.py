"""What runs show about a difference: t, exact exchanges, Holm, the floor, the smallest effect; against known values."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.loadtest.statistics import FEWEST, flip_p, floor, floor_of_runs, holm, paired, sign_p, split_p, unpaired
from tailwatch.loadtest.t_test import detectable_errors, t_p, t_quantile

# scipy 1.17.1: stats.t.ppf((1 + level) / 2, dof)
QUANTILES = [
    (0.95, 1, 12.706204736174694),
    (0.95, 2, 4.302652729749462),
    (0.95, 5, 2.5705818356363146),
    (0.99, 5, 4.032142983555228),
    (0.999, 5, 6.868826625881276),
    (0.95, 7, 2.364624251592784),
    (0.95, 30, 2.0422724563012378),
    (0.999, 1000, 3.300282648423944),
]
LOG_VALUES = st.lists(
    st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)),
    min_size=FEWEST,
    max_size=9,
)


@pytest.mark.parametrize(("level", "dof", "reach"), QUANTILES)
def test_quantiles_of_t(level: float, dof: int, reach: float) -> None:
    """They are those of the tables, and p undoes them."""
    assert t_quantile(level, dof) == pytest.approx(reach, rel=1e-11)
    assert t_p(reach, dof) == pytest.approx(1 - level, rel=1e-9)


def test_p_of_t_in_closed_form() -> None:
    """With one and two degrees of freedom the distribution is elementary."""
    for t in (0.0, 0.01, 0.5, 1.0, 3.0, 40.0, 1e6):
        assert t_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-6, abs=1e-12)
        assert t_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6, abs=1e-12)
    assert t_p(math.inf, 3) == 0.0


def test_power_is_that_of_simulated_tests() -> None:
    """An effect of so many standard errors is shown by t-tests on normal numbers in four of five."""
    draw, dof = random.Random(3), 5
    effect, reach, shown = detectable_errors(dof, 0.05), t_quantile(0.95, dof), 0
    for _ in range(4000):
        values = [draw.gauss(effect / math.sqrt(dof + 1), 1) for _ in range(dof + 1)]
        mean = sum(values) / (dof + 1)
        error = math.sqrt(sum((value - mean) ** 2 for value in values) / dof / (dof + 1))
        shown += abs(mean / error) > reach
    assert 0.77 <= shown / 4000 <= 0.83
    # scipy 1.17.1: stats.nct, solved for a power of 0.8
    assert effect == pytest.approx(3.513902729170782, rel=1e-5)
    assert detectable_errors(dof, 0.05 / 20) > effect
    assert detectable_errors(1e6, 0.05) == pytest.approx(1.959964 + 0.841621, abs=1e-3)


def test_a_known_pair_of_samples() -> None:
    """The estimate, interval and p of six pairs, worked by hand with logarithms."""
    a, b = [10.0, 11, 12, 9, 10, 11], [9.0, 9.5, 11, 8.7, 9, 10]
    logs = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    mean = sum(logs) / 6
    error = math.sqrt(sum((value - mean) ** 2 for value in logs) / 5 / 6)
    made = paired(a, b)
    assert (made.runs, made.paired, made.ratio) == ((6, 6), True, True)
    assert made.estimate == pytest.approx(math.exp(mean) - 1)
    assert made.low == pytest.approx(math.exp(mean - 2.5705818366 * error) - 1)
    assert made.high == pytest.approx(math.exp(mean + 2.5705818366 * error) - 1)
    assert made.p == pytest.approx(t_p(mean / error, 5))
    assert (made.exact, made.sampled, made.sign) == (2 / 64, False, 2 / 64)
    assert made.a == pytest.approx(math.prod(a) ** (1 / 6))
    assert made.holds(made.estimate) and not made.holds(0.0)


def test_fewer_than_six_runs_have_no_interval() -> None:
    """Five pairs give an estimate, and neither interval nor p of t: even their least exact p is above 0.05."""
    made = paired([10.0] * 5, [5.0, 5.1, 5.2, 5.3, 5.4])
    assert (made.low, made.high, made.p, made.detectable) == (None, None, None, None)
    assert made.estimate < -0.4 and made.exact == 2 / 32 and not made.holds(made.estimate)
    assert unpaired([1.0] * 20, [2.0] * 5).low is None
    assert paired([2.0], [1.0]).estimate == -0.5


def test_runs_that_are_no_pairs() -> None:
    """Welch's t on logarithms, with degrees of freedom between the fewer's and all."""
    a, b = [10.0, 11, 12, 9, 10, 11], [9.0, 9.5, 11, 8.7, 9, 10, 9.2]
    made = unpaired(a, b)
    assert made.p == pytest.approx(_welch_p(a, b), rel=1e-9)
    assert made.sign is None and not made.paired and made.runs == (6, 7)
    assert made.exact == split_p([math.log(v) for v in a], [math.log(v) for v in b])[0]


def _welch_p(a: list[float], b: list[float]) -> float:
    sides = [[math.log(v) for v in values] for values in (a, b)]
    means = [sum(side) / len(side) for side in sides]
    parts = [sum((v - m) ** 2 for v in s) / (len(s) - 1) / len(s) for s, m in zip(sides, means, strict=True)]
    dof = sum(parts) ** 2 / sum(p * p / (len(s) - 1) for p, s in zip(parts, sides, strict=True))
    return t_p((means[1] - means[0]) / math.sqrt(sum(parts)), dof)


def test_zeros_have_no_ratio() -> None:
    """A run whose goodput was 0 turns the row into plain differences, and is not left out."""
    made = paired([40.0, 41, 40, 39, 40, 40], [0.0, 1, 0, 0, 2, 0])
    assert not made.ratio and made.estimate == pytest.approx(-39.5)
    assert made.high is not None and made.high < 0


def test_equal_numbers_show_nothing() -> None:
    """The same in every run: p is 1; always the same factor: p is 0 unless that is what the rounding makes."""
    assert paired([5.0] * 6, [5.0] * 6).p == 1.0
    assert paired([5.0] * 6, [5.1] * 6).p == 0.0
    rounded = paired([5.0] * 6, [5.1] * 6, resolution=0.1)
    assert rounded.p is not None and rounded.p > 0.2


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_exchanges_are_counted_exactly(differences: list[float]) -> None:
    """The two halves give what going through all signs gives."""
    observed = abs(math.fsum(differences)) - 1e-12 * math.fsum(map(abs, differences))
    signed = product(*[(d, -d) for d in differences])
    wanted = sum(abs(math.fsum(values)) >= observed for values in signed) / 2 ** len(differences)
    assert flip_p(differences) == (wanted, False)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.lists(st.floats(-100, 100), min_size=1, max_size=5))
def test_deals_are_counted_exactly(a: list[float], b: list[float]) -> None:
    """p is the share of the ways to deal the runs whose means differ as much; at least the observed one's."""
    p, sampled = split_p(a, b)
    assert not sampled and 1 / math.comb(len(a) + len(b), len(a)) <= p <= 1
    values, means = [*a, *b], []
    for chosen in combinations(range(len(values)), len(a)):
        one = math.fsum(values[i] for i in chosen)
        means.append(abs(one / len(a) - (math.fsum(values) - one) / len(b)))
    seen, slack = abs(math.fsum(a) / len(a) - math.fsum(b) / len(b)), 1e-9 * (1 + sum(map(abs, values)))
    assert sum(m >= seen + slack for m in means) / len(means) <= p <= sum(m >= seen - slack for m in means) / len(means)


def test_many_runs_are_sampled() -> None:
    """Where there are too many exchanges, seeded ones are drawn: twice the same p, near that of t, never 0."""
    draw = random.Random(5)
    differences = [draw.gauss(0.3, 1) for _ in range(30)]
    p, sampled = flip_p(differences)
    by_t = paired([math.exp(-d) for d in differences], [1.0] * 30).p
    assert sampled and by_t is not None and flip_p(differences) == (p, True)
    assert p == pytest.approx(by_t, abs=0.03)
    far, sampled = split_p([float(i) for i in range(12)], [100.0 + i for i in range(12)])
    assert sampled and 0 < far < 0.001


def test_signs() -> None:
    """The binomial of ups and downs; ties do not count."""
    assert sign_p([1, 1, 1, 1, 1, 1]) == 2 / 64
    assert sign_p([-1, 1, 1, 1, 1, 1, 0]) == 2 * 7 / 64
    assert sign_p([0, 0]) == 1.0 and sign_p([1, -1]) == 1.0


def test_holm_counts_the_rows() -> None:
    """The least p pays for all rows, the next for one less, never below one before it."""
    assert holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@given(LOG_VALUES)
def test_exchanging_a_and_b_turns_the_sign(pairs: list[tuple[float, float]]) -> None:
    """B against A is A against B upside down: same p, the ratio inverted."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other = paired(a, b), paired(b, a)
    assert math.log1p(one.estimate) == pytest.approx(-math.log1p(other.estimate), rel=1e-3, abs=1e-3)
    assert one.p == pytest.approx(other.p) and one.exact == other.exact and one.sign == other.sign
    assert one.low is not None and one.high is not None and one.low <= one.estimate <= one.high


@given(LOG_VALUES, st.floats(1e-3, 1e3))
def test_units_do_not_matter(pairs: list[tuple[float, float]], unit: float) -> None:
    """Milliseconds or seconds: a ratio and its p stay."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other = paired(a, b), paired([x * unit for x in a], [y * unit for y in b])
    assert other.estimate == pytest.approx(one.estimate, rel=1e-6, abs=1e-9)
    assert other.p == pytest.approx(one.p, rel=1e-3, abs=1e-6)


def test_the_floor_of_equal_arms_holds_its_share() -> None:
    """Means of equal arms stay below the floor that another such experiment gives in about 95 of 100."""
    draw, below = random.Random(11), 0
    for _ in range(2000):
        arms = [[math.exp(draw.gauss(0, 0.1)) for _ in range(6)] for _ in range(4)]
        bound = floor(arms[0], arms[1])
        assert bound is not None
        below += abs(math.log(1 + paired(arms[2], arms[3]).estimate)) <= math.log1p(bound)
    assert 0.93 <= below / 2000 <= 0.97
    assert floor([1.0], [1.0]) is None and floor_of_runs([1.0], 6) is None


def test_the_floor_of_one_side_holds_its_share() -> None:
    """The same from one side's own runs, where the sides are no pairs."""
    draw, below = random.Random(12), 0
    for _ in range(2000):
        arms = [[math.exp(draw.gauss(0, 0.1)) for _ in range(6)] for _ in range(3)]
        bound = floor_of_runs(arms[0], 6)
        assert bound is not None
        means = [math.fsum(map(math.log, arm)) / 6 for arm in arms]
        below += abs(means[1] - means[2]) <= math.log1p(bound)
    assert 0.93 <= below / 2000 <= 0.97


def test_what_is_called_detectable_is_detected() -> None:
    """An effect of the size that six pairs call detectable is shown by about four of five such experiments."""
    draw, shown = random.Random(13), 0
    effect = detectable_errors(5, 0.05) * 0.1 / math.sqrt(6)
    for _ in range(2000):
        before = [math.exp(draw.gauss(0, 1)) for _ in range(6)]
        made = paired(before, [x * math.exp(draw.gauss(-effect, 0.1)) for x in before])
        shown += not made.holds(0.0)
    assert 0.77 <= shown / 2000 <= 0.83


def test_the_widest_differences_stay_numbers() -> None:
    """What no float holds is a very large one: nothing overflows, and JSON has no infinity."""
    made = paired([1e-300, 1e300] * 3, [1e300, 1e-300] * 3, alpha=1e-6)
    assert made.low == -1.0 and made.high is not None and math.isfinite(made.high)
    assert made.detectable is not None and math.isfinite(made.detectable)


def test_sides_without_runs_are_refused() -> None:
    """Pairs need two of each."""
    with pytest.raises(ValueError, match="pairs need"):
        paired([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="needs a run"):
        unpaired([], [1.0])
