"""Histograms against the exact answer: quantiles, counts, sums, and the algebra of merging."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch._cold import ffi, lib

pytestmark = pytest.mark.property

LAYOUTS = [lib.TW_LAYOUT_TTFT, lib.TW_LAYOUT_E2E, lib.TW_LAYOUT_ITL, lib.TW_LAYOUT_PAUSE]
LEAST, MOST = 2_000, 999 * 10**9  # inside the range of the buckets, ns
FIELDS = ("count", "sum_low", "sum_high", "min_ns", "max_ns")

layouts = st.sampled_from(LAYOUTS)
anything = st.lists(st.integers(0, 2**64 - 1), max_size=60)
in_range = st.lists(st.integers(LEAST, MOST), min_size=1, max_size=200)
shares = st.floats(0, 1, exclude_min=True, exclude_max=True)


def counts_of(values: list[int], kind: int) -> Any:
    """A histogram of these nanoseconds, read."""
    histogram, counts, layout = ffi.new("tw_histogram *"), ffi.new("tw_counts *"), lib.tw_layout_of(kind)
    lib.tw_histogram_init(histogram)
    for value in values:
        lib.tw_histogram_record(histogram, layout, value)
    lib.tw_histogram_read(histogram, counts)
    return counts


def copy(counts: Any) -> Any:
    """An independent copy."""
    return ffi.new("tw_counts *", counts[0])


def added(*parts: Any) -> Any:
    """Their sum, from the left."""
    out = copy(parts[0])
    for part in parts[1:]:
        lib.tw_counts_add(out, part)
    return out


def bits(counts: Any) -> bytes:
    """Every bit of it."""
    return bytes(ffi.buffer(counts))


def exact(values: list[int], share: float) -> int:
    """The sample of rank ceil(share * n), at least 1."""
    return sorted(values)[max(1, math.ceil(share * len(values) * (1 - 1e-14))) - 1]


def heavy_tailed(seed: int, n: int) -> list[int]:
    """Pareto, lognormal and two-humped latencies, by turns."""
    draw = random.Random(seed)
    shapes = (
        lambda: 5e6 * draw.paretovariate(0.7 + draw.random()),
        lambda: 20e6 * draw.lognormvariate(0, 1.5),
        lambda: draw.gauss(180e6, 20e6) if draw.random() < 0.01 else draw.gauss(20e6, 1e6),
    )
    shape = shapes[seed % len(shapes)]
    return [min(max(LEAST, int(shape())), MOST) for _ in range(n)]


@pytest.mark.parametrize("seed", range(9))
def test_every_rank_of_heavy_tailed_data_is_within_1_1_percent(seed: int) -> None:
    """No quantile of 3000 heavy-tailed samples is off by more than 1.1 %: all ranks are asked for."""
    kind = LAYOUTS[seed % len(LAYOUTS)]
    values = heavy_tailed(seed, 3000)
    counts, layout = counts_of(values, kind), lib.tw_layout_of(kind)
    for rank, value in enumerate(sorted(values), 1):
        found = lib.tw_counts_quantile(counts, layout, (rank - 0.5) / len(values))
        assert abs(found - value) <= 0.011 * value, f"rank {rank}: {found} for {value}"


@given(in_range, layouts, shares)
def test_any_quantile_of_any_data_is_within_1_1_percent(values: list[int], kind: int, share: float) -> None:
    """However the samples lie, the estimate is at most 1.1 % from the sample of its rank, half a ns of rounding."""
    found = lib.tw_counts_quantile(counts_of(values, kind), lib.tw_layout_of(kind), share)
    value = exact(values, share)
    assert abs(found - value) <= 0.011 * value + 0.5


@given(in_range, layouts)
def test_the_ends_are_exact(values: list[int], kind: int) -> None:
    """Quantile 0 is the least sample, quantile 1 the greatest."""
    counts, layout = counts_of(values, kind), lib.tw_layout_of(kind)
    assert lib.tw_counts_quantile(counts, layout, 0.0) == min(values)
    assert lib.tw_counts_quantile(counts, layout, 1.0) == max(values)


@given(anything, layouts)
def test_counts_and_sums_are_exact(values: list[int], kind: int) -> None:
    """Count, 128-bit sum, extremes and the total of the slots are those of the samples, over all of 64 bits."""
    counts = counts_of(values, kind)
    assert counts.count == len(values) == sum(counts.slot)
    assert counts.sum_high << 64 | counts.sum_low == sum(values)
    assert lib.tw_counts_sum_seconds(counts) == pytest.approx(sum(values) / 10**9, rel=1e-15)
    if values:
        assert (counts.min_ns, counts.max_ns) == (min(values), max(values))


@given(anything, layouts)
def test_classic_buckets_are_exact(values: list[int], kind: int) -> None:
    """The count at or below each classic bound is that of the samples; a sample on a bound belongs below it."""
    layout = lib.tw_layout_of(kind)
    bounds = ffi.unpack(layout.bound_ns, layout.bounds)
    values = values + bounds[::3] + [bound + 1 for bound in bounds[::5]]
    counts = counts_of(values, kind)
    for i, bound in enumerate(bounds):
        below = sum(counts.slot[slot] for slot in range(layout.bound_slot[i] + 1))
        assert below == sum(value <= bound for value in values)


@given(st.integers(0, 2**64 - 1), layouts)
def test_a_value_lies_between_the_edges_of_its_slot(value: int, kind: int) -> None:
    """Edges are exclusive below and inclusive above; slots cover every value."""
    layout, edges = lib.tw_layout_of(kind), ffi.new("uint64_t[2]")
    slot = lib.tw_slot_of(layout, value)
    assert slot < layout.slots
    lib.tw_slot_edges(layout, slot, edges, edges + 1)
    assert edges[0] < value <= edges[1] or (slot == 0 and value <= edges[1])


@given(anything, anything, anything, layouts)
def test_merging_is_associative_and_commutative(a: list[int], b: list[int], c: list[int], kind: int) -> None:
    """Bit for bit, and the same as one histogram of all the samples."""
    x, y, z = (counts_of(values, kind) for values in (a, b, c))
    assert bits(added(x, y)) == bits(added(y, x))
    assert bits(added(added(x, y), z)) == bits(added(x, added(y, z))) == bits(counts_of(a + b + c, kind))


@given(anything, layouts)
def test_nothing_is_neutral(values: list[int], kind: int) -> None:
    """Adding an empty histogram changes no bit."""
    counts, nothing = counts_of(values, kind), ffi.new("tw_counts *")
    lib.tw_counts_init(nothing)
    assert bits(added(counts, nothing)) == bits(counts) == bits(added(nothing, counts))


@given(anything, anything, layouts)
def test_subtracting_gives_back_what_was_added(earlier: list[int], between: list[int], kind: int) -> None:
    """(a + b) - b has a's count, sum and slots, and extremes that hold a's samples, no wider than their slots."""
    a, b, layout = counts_of(between, kind), counts_of(earlier, kind), lib.tw_layout_of(kind)
    rest = added(a, b)
    lib.tw_counts_subtract(rest, b, layout)
    assert [getattr(rest, name) for name in FIELDS[:3]] == [getattr(a, name) for name in FIELDS[:3]]
    assert list(rest.slot) == list(a.slot)
    if between:
        assert rest.min_ns <= min(between) and rest.max_ns >= max(between)
        edges = ffi.new("uint64_t[2]")
        lib.tw_slot_edges(layout, lib.tw_slot_of(layout, min(between)), edges, edges + 1)
        assert rest.min_ns >= edges[0]
        lib.tw_slot_edges(layout, lib.tw_slot_of(layout, max(between)), edges, edges + 1)
        assert rest.max_ns <= edges[1]
