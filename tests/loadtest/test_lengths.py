"""Lengths of prompts and answers: the grammar and what it draws."""

from __future__ import annotations

import pickle
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError
from tailwatch.loadtest.lengths import Lengths
from tailwatch.loadtest.schedule import MOST_TOKENS


def test_each_form_draws_its_distribution() -> None:
    """A number, an even range with both ends, and a log-normal with its median; the same for the same seed."""
    assert set(Lengths.parse("128").column(100, "s")) == {128}
    assert Lengths.parse(5).text == "5"
    even = Lengths.parse("3..5").column(3000, "s")
    assert {count: even.count(count) // 100 for count in sorted(set(even))}.keys() == {3, 4, 5}
    assert all(800 < even.count(count) < 1200 for count in (3, 4, 5))
    wide = Lengths.parse("lognormal:200,0.8").column(5000, "s")
    assert statistics.median(wide) == pytest.approx(200, rel=0.05)
    assert statistics.quantiles(wide, n=100)[83] == pytest.approx(200 * 2.718281828**0.8, rel=0.1)
    assert (
        wide
        == Lengths.parse("lognormal:200,0.8").column(5000, "s")
        != Lengths.parse("lognormal:200,0.8").column(5000, "t")
    )


def test_they_are_the_same_everywhere() -> None:
    """The first draws of a seed hang on no version of Python."""
    assert list(Lengths.parse("lognormal:200,0.8").column(5, "s")) == LOGNORMAL
    assert list(Lengths.parse("1..1000").column(5, "s")) == EVEN


LOGNORMAL = [179, 564, 89, 259, 172]
EVEN = [478, 716, 760, 657, 121]


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "5..3", "1..", "10000001", "lognormal:200", "lognormal:1,9", "x"]
)
def test_wrong_lengths_teach(text: str) -> None:
    """What is no length is refused by the option's name."""
    with pytest.raises(OptionError, match=r"prompt_tokens=.*expected"):
        Lengths.parse(text, option="prompt_tokens")


@given(st.text(alphabet="0123456789.,:lognrma ", max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """What is read draws lengths that can be, and reads back equal, also in another process."""
    try:
        found = Lengths.parse(text)
    except OptionError:
        return
    assert all(1 <= count <= MOST_TOKENS for count in found.column(20, "s"))
    assert pickle.loads(pickle.dumps(found)) == Lengths.parse(found.text) == found
