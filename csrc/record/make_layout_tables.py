"""Writes csrc/record/layout_tables.h and tests/c/data/layout_golden.txt, or checks that they are fresh.

Everything is integer arithmetic: a threshold T(k) = 10^9 * 2^(k/32) nanoseconds is known through
floor(T(k) * 2^s), an integer 32nd root. For whole numbers v, v > T(k) is v > floor(T(k)), so the tables are
exact and not merely close.

    python csrc/record/make_layout_tables.py            writes both files
    python csrc/record/make_layout_tables.py --check    exit 1 when a file differs from what would be written
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "csrc" / "record" / "layout_tables.h"
GOLDEN = ROOT / "tests" / "c" / "data" / "layout_golden.txt"

SCALE = 5
PER_OCTAVE = 1 << SCALE
BUCKET_MIN = -638
BUCKETS = 957
SLOTS_MAX = 992
BOUNDS_MAX = 26
CELL_BITS = SCALE + 1  # the narrowest bucket is 1/45.7 of an octave's start: at most one threshold in 1/64
SAMPLE = 29  # of the edges one in so many, in the golden table; no part of an octave
UINT64_MAX = (1 << 64) - 1

LAYOUTS = {
    "ttft": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160",
    "e2e": "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84",
    "itl": "0.0005 0.001 0.002 0.003 0.004 0.005 0.0075 0.01 0.015 0.02 0.025 0.03 0.04 0.05 0.075 0.1 0.15 0.2"
    " 0.3 0.4 0.5 0.75 1 2.5 5 10",
    "pause": "0.0001 0.0005 0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 50",
}


def root(number: int, degree: int) -> int:
    """The largest integer whose power of that degree is at most the number (Newton's method, from above)."""
    guess = 1 << -(-number.bit_length() // degree)
    while True:
        better = ((degree - 1) * guess + number // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess
        guess = better


def threshold_ns(k: int, shift: int = 0) -> int:
    """floor(10^9 * 2^(k/32) * 2^shift)."""
    power = k + PER_OCTAVE * shift
    base = 10 ** (9 * PER_OCTAVE)
    return root(base << power if power >= 0 else base >> -power, PER_OCTAVE)


def bound_list(text: str) -> list[int]:
    """Whole nanoseconds of decimal seconds."""
    bounds = [Fraction(word) * 10**9 for word in text.split()]
    assert all(bound.denominator == 1 for bound in bounds), "a bound is not a whole number of nanoseconds"
    result = [int(bound) for bound in bounds]
    assert result == sorted(set(result)) and len(result) <= BOUNDS_MAX
    return result


class Mantissas:
    """The 32 thresholds of one octave as 64-bit mantissas, ascending, and the cells that find them."""

    def __init__(self) -> None:
        self.first = next(k for k in range(PER_OCTAVE) if threshold_ns(k) >= 1 << 30)  # T(first) starts an octave
        self.values = [threshold_ns(self.first + j, 33) for j in range(PER_OCTAVE)]
        assert all(1 << 63 <= value <= UINT64_MAX for value in self.values)
        # A value with its highest bit at e, above n of its octave's thresholds, is in bucket 32 e + n + origin.
        self.origin = self.first - 1 - PER_OCTAVE * 30 - BUCKET_MIN
        self.cell_below: list[int] = []
        self.cell_value: list[int] = []
        for cell in range(1 << CELL_BITS):
            low = (1 << 63) + (cell << (63 - CELL_BITS))
            high = low + (1 << (63 - CELL_BITS))
            inside = [value for value in self.values if low <= value < high]
            assert len(inside) <= 1, "a cell holds two thresholds"
            self.cell_below.append(sum(value < low for value in self.values))
            self.cell_value.append(inside[0] if inside else UINT64_MAX)


class Layout:
    """The slots of one list of classic bounds."""

    def __init__(self, bounds: list[int], uppers: list[int]) -> None:
        """uppers[b + 1] is the largest whole nanosecond in bucket b, uppers[0] that below the range."""
        self.bounds = bounds
        self.splits = [UINT64_MAX] * BUCKETS
        self.bucket_slot: list[int] = []
        self.bound_slot: list[int] = []
        slot = 1
        for bucket, (lower, upper) in enumerate(pairwise(uppers)):
            inside = [bound for bound in bounds if lower < bound <= upper]
            assert len(inside) <= 1, f"bounds {inside} share a bucket"
            self.bucket_slot.append(slot)
            self.bound_slot += [slot] * len(inside)
            if inside and inside[0] != upper:
                self.splits[bucket] = inside[0]
                slot += 1
            slot += 1
        self.slots = slot + 1
        assert len(self.bound_slot) == len(bounds), "a bound lies outside the range"
        assert self.slots <= SLOTS_MAX


def layout_hash(layouts: dict[str, Layout]) -> int:
    """The first eight bytes of SHA-256 over the scale, the range, the bounds and the slots of all layouts."""
    text = f"base2 scale={SCALE} min={BUCKET_MIN} buckets={BUCKETS} room={SLOTS_MAX}\n"
    for name, layout in layouts.items():
        text += f"{name} slots={layout.slots} bounds_ns={layout.bounds}\n"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def wrapped(words: Iterable[str]) -> Iterator[str]:
    """Lines of at most 110 characters, each word followed by a comma."""
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > 110:
            yield line
            line = "   "
        line += f" {word},"
    yield line


def array(kind: str, name: str, values: list[int], word: str) -> str:
    """A C array; the word is a format with {}, used for all but UINT64_MAX."""
    body = "\n".join(wrapped("NONE" if value == UINT64_MAX else word.format(value) for value in values))
    return f"static const {kind} {name}[{len(values)}] = {{\n{body}\n}};\n"


def tables(mantissas: Mantissas, layouts: dict[str, Layout]) -> str:
    """The text of layout_tables.h."""
    parts = [
        "/* Generated by csrc/record/make_layout_tables.py: change that and run it. Included by histogram.c only. */\n"
        "#pragma once\n\n#include <stdint.h>\n\n"
        "#define NONE UINT64_MAX\n"
        f"#define LAYOUT_HASH UINT64_C(0x{layout_hash(layouts):016x})\n"
        f"#define CELL_BITS {CELL_BITS}\n"
        f"#define BUCKET_ORIGIN ({mantissas.origin})\n"
        f"#define FIRST_THRESHOLD {mantissas.first} /* of an octave: the k of mantissa[0] at 2^30 ns */\n",
        "/* The thresholds of one octave, shifted up to 64 bits. */\n"
        + array("uint64_t", "mantissa", mantissas.values, "UINT64_C(0x{:016x})"),
        "/* By the bits after a value's highest: thresholds below the cell, and the one inside it. */\n"
        + array("uint8_t", "cell_below", mantissas.cell_below, "{}")
        + "\n"
        + array("uint64_t", "cell_threshold", mantissas.cell_value, "UINT64_C(0x{:016x})"),
    ]
    for name, layout in layouts.items():
        parts.append(
            f"#define SLOTS_{name.upper()} {layout.slots}\n\n"
            + array("uint64_t", f"bound_ns_{name}", layout.bounds, "UINT64_C({})")
            + "\n"
            + array("uint16_t", f"bound_slot_{name}", layout.bound_slot, "{}")
            + "\n"
            + array("uint16_t", f"bucket_slot_{name}", layout.bucket_slot, "{}")
            + "\n"
            + array("uint64_t", f"bucket_split_{name}", layout.splits, "UINT64_C({})")
        )
    return "\n".join(parts) + "\n#undef NONE\n"


def bucket_of(value: int) -> int:
    """The bucket of a whole number of nanoseconds by the definition alone: a bisection over v^32 > T(k)^32."""

    power: int = value**PER_OCTAVE
    unit: int = 10 ** (9 * PER_OCTAVE)

    def above(k: int) -> bool:
        return power << -k > unit if k < 0 else power > unit << k

    low, high = -1, BUCKETS  # bucket numbers; above(T(low)) holds or low is -1
    while low < high:
        middle = (low + high + 1) // 2
        if above(middle + BUCKET_MIN):
            low = middle
        else:
            high = middle - 1
    return low


def slot_of(value: int, bucket: int, bounds: list[int], buckets: dict[int, int]) -> int:
    """The slot by the definition alone: buckets and inner bounds below the value, and the slot below the range."""
    if bucket < 0:
        return 0
    inner = [bound for bound, is_in in buckets.items() if bucket_of(bound + 1) == is_in]
    assert len(inner) <= len(bounds)
    below = sum(1 for bound in inner if bound < value)
    return 1 + bucket + below


def golden(layouts: dict[str, Layout]) -> str:
    """Values at every classic bound, at a sample of the buckets' edges and next to them, with their bucket and slots,
    computed without the tables: these are exact where --check passes, and what is left to test is the look-up."""
    edges = {threshold_ns(k) for k in range(BUCKET_MIN, BUCKET_MIN + BUCKETS + 1, SAMPLE)}
    bounds = {name: {bound: bucket_of(bound) for bound in layout.bounds} for name, layout in layouts.items()}
    around = {edge + d for edge in edges | {b for of in bounds.values() for b in of} for d in (-1, 0, 1)}
    around |= {0, 1, 2, UINT64_MAX, UINT64_MAX - 1} | {1 << bit for bit in range(0, 64, 4)}
    lines = ["# value_ns bucket " + " ".join(f"slot_{name}" for name in layouts)]
    for value in sorted(around):
        bucket = bucket_of(value)
        slots = (slot_of(value, bucket, layouts[name].bounds, bounds[name]) for name in layouts)
        lines.append(f"{value} {bucket} " + " ".join(map(str, slots)))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the two files, or with --check compares them; 0 when they are fresh."""
    parser = argparse.ArgumentParser(description="Generate the histogram layout tables.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    check = parser.parse_args().check
    uppers = [threshold_ns(k) for k in range(BUCKET_MIN, BUCKET_MIN + BUCKETS + 1)]
    layouts = {name: Layout(bound_list(text), uppers) for name, text in LAYOUTS.items()}
    wanted = {TABLES: tables(Mantissas(), layouts), GOLDEN: golden(layouts)}
    if not check:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.name} is stale: run python csrc/record/make_layout_tables.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
