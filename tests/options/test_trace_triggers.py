"""The options trace, trace_on and trace_keep: what they take, and their errors for anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import OptionError
from tailwatch.options.config import Config
from tailwatch.options.trace_triggers import LEAST_EVENTS, MOST_EVENTS, Keep, Triggers
from tailwatch.tracing.ring_files import bytes_of, ring_sizes


def load(environment: dict[str, str] | None = None, **arguments: Any) -> Config:
    """The options from these arguments and this environment only."""
    return Config.read(arguments, environment or {})


def test_nothing_is_recorded_by_default() -> None:
    """A trace is asked for; what would be kept of it is bounded."""
    config = load()
    assert (config.trace_events, bool(config.trace_on), config.trace_keep) == (0, False, Keep(5, 100_000_000))


@pytest.mark.parametrize("value", [256, 1_000_000, 2**28])
def test_room_for_events(value: int) -> None:
    """A number of events, as an argument or as a variable."""
    assert load(trace_events=value).trace_events == load({"TAILWATCH_TRACE_EVENTS": str(value)}).trace_events == value


def test_a_variable_may_be_written_as_in_python() -> None:
    """TAILWATCH_TRACE_EVENTS=1_000_000 reads well."""
    assert load({"TAILWATCH_TRACE_EVENTS": "1_000_000"}).trace_events == 1_000_000


@pytest.mark.parametrize("value", [1, 255, -1, 2**28 + 1, "1000", 1e6, True, None])
def test_no_room_for_events(value: Any) -> None:
    """Anything else is refused, with the range; None is not given."""
    if value is None:
        assert load(trace_events=value).trace_events == 0
        return
    with pytest.raises(OptionError, match=r"^trace_events=.* 256 to 268435456, or 0 "):
        load(trace_events=value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gap>100ms", Triggers(gap_ns=100_000_000)),
        ("ttft > 1s", Triggers(ttft_ns=1_000_000_000)),
        ("slo", Triggers(slo=True)),
        (" gap>=1.5ms , slo,ttft>2m", Triggers(1_500_000, 120_000_000_000, True)),
        ("", Triggers()),
    ],
)
def test_triggers(text: str, expected: Triggers) -> None:
    """A gap, a wait for a first token, a missed SLO, or several of them."""
    assert load(trace_on=text).trace_on == expected
    if text:
        assert load({"TAILWATCH_TRACE_ON": text}).trace_on == expected
    assert Triggers.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["gap", "gap>5", "gap<5ms", "itl>5ms", "slo,slo", "gap>1ms,gap>2ms", "gap>0ms", "gap>2h", ",", 5, None, b"slo"],
)
def test_no_triggers(text: Any) -> None:
    """What is none is refused with what there is."""
    if text is None:
        assert not load(trace_on=None).trace_on
        return
    with pytest.raises(OptionError, match=r"trace_on=.*expected"):
        load(trace_on=text)


@pytest.mark.parametrize(
    ("text", "files", "size"), [("5,100MB", 5, 10**8), ("0,0", 0, 0), ("3, 1.5 GiB", 3, 3 * 2**29), ("7,4096", 7, 4096)]
)
def test_what_is_kept(text: str, files: int, size: int) -> None:
    """Files and bytes."""
    assert load(trace_keep=text).trace_keep == Keep(files, size)
    assert Keep.parse(str(Keep(files, size))) == Keep(files, size)


@pytest.mark.parametrize("text", ["", "5", "5,", "-1,5MB", "5,100TB", "5,100MB,3", 5, b"5,5"])
def test_what_cannot_be_kept(text: Any) -> None:
    """Both numbers are needed."""
    with pytest.raises(OptionError, match=r"trace_keep=.*like '5,100MB'"):
        load(trace_keep=text)


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    """Nothing else than an OptionError comes of a text."""
    for option in ("trace_on", "trace_keep"):
        try:
            load(**{option: text})
        except OptionError as error:
            assert error.option == option


@given(st.integers(LEAST_EVENTS, MOST_EVENTS))
def test_half_is_the_first_threads(events: int) -> None:
    """Half of the room is the first stamping thread's, and the rest is divided equally, none of it wasted."""
    sizes = ring_sizes(events)
    assert sizes[0] == events // 2
    assert set(sizes[1:]) == {events // 16}
    assert len(sizes) == 9
    assert events - 32 < sum(sizes) <= events
    assert bytes_of(events, 32) - events * 32 < 256 * 1024  # the header, and names of stalls
