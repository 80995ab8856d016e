"""Any points come back from Perfetto's own protobuf classes as they were given; any texts come back from JSON."""

from __future__ import annotations

import json
import struct
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.tracing.track_writer import BEGIN, COUNTER, END, INSTANT, SLICES, Timeline

pytestmark = pytest.mark.property

U64, ROWS = 2**64, 3
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), U64 - 1), st.floats(allow_nan=False), TEXTS.filter(lambda text: text != "")
)
TIMES = st.one_of(st.integers(0, 2**63 - 1), st.integers(5 * 10**12, 5 * 10**12 + 1000))
POINTS = st.tuples(
    TIMES,
    st.integers(0, ROWS - 1),
    st.sampled_from([BEGIN, END, INSTANT]),
    TEXTS.filter(bool),
    TEXTS,
    st.lists(st.tuples(TEXTS.filter(bool), VALUES), max_size=4),
    st.lists(st.integers(0, U64 - 1), max_size=3),
    st.lists(st.integers(0, U64 - 1), max_size=3),
)
COUNTS = st.tuples(
    TIMES, st.just(ROWS), st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
)


def written(points: list[Any], form: str) -> bytes:
    """The bytes of a timeline with these points, on three rows of two sequences and a counter."""
    with tempfile.TemporaryFile() as file:
        with Timeline(file.fileno(), form) as timeline:
            sequences = [timeline.sequence(), timeline.sequence()]
            rows = [timeline.track(SLICES, f"row {i}", sequence=sequences[i % 2]) for i in range(ROWS)]
            rows.append(timeline.track(COUNTER, "counter", sequence=sequences[0]))
            for point in points:
                if len(point) == 3:
                    timeline.count(point[0], rows[point[1]], point[2])
                    continue
                at, row, kind, name, category, args, starts, ends = point
                numbers = [(timeline.name(key), value) for key, value in args]
                category_number = timeline.name(category) if category else 0
                timeline.point(at, rows[row], kind, timeline.name(name), category_number, numbers, starts, ends)
            timeline.flush()
            assert timeline.refused == 0
        file.seek(0)
        return file.read()


def value_of(annotation: Any, texts: dict[int, str]) -> Any:
    """An argument as Python has it."""
    kind = annotation.WhichOneof("value")
    value = getattr(annotation, kind)
    return texts[value] if kind == "string_value_iid" else value


class Decoder:
    """Reads a file as in the format's documentation: names and the clock are states of a sequence."""

    def __init__(self, content: bytes) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        trace = protos.Trace()
        trace.ParseFromString(content)
        self.tracks: dict[int, Any] = {}
        self.names: dict[tuple[int, str], dict[int, str]] = {}
        self.clock: dict[int, int] = {}
        self.points: list[Any] = []
        for packet in trace.packet:
            self.take(packet)

    def take(self, packet: Any) -> None:
        """One packet."""
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("clock_snapshot"):
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    self.clock[sequence] = clock.timestamp
        for kind in ("event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values"):
            known = self.names.setdefault((sequence, kind), {})
            for entry in getattr(packet.interned_data, kind):
                text = entry.str.decode() if kind == "debug_annotation_string_values" else entry.name
                assert entry.iid not in known, "a name was sent twice"
                known[entry.iid] = text
        if packet.HasField("track_descriptor"):
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            self.event(packet, sequence)

    def time(self, packet: Any, sequence: int) -> int:
        """When it was."""
        if packet.timestamp_clock_id:
            assert packet.timestamp_clock_id == 3
            return int(packet.timestamp)
        self.clock[sequence] += packet.timestamp
        return self.clock[sequence]

    def event(self, packet: Any, sequence: int) -> None:
        """A point."""
        event, at = packet.track_event, self.time(packet, sequence)
        row = list(self.tracks).index(event.track_uuid)
        if event.type == event.TYPE_COUNTER:
            double = event.WhichOneof("counter_value_field") == "double_counter_value"
            self.points.append((at, row, event.double_counter_value if double else event.counter_value))
            return
        names, texts = self.names[sequence, "event_names"], self.names[sequence, "debug_annotation_string_values"]
        keys = self.names[sequence, "debug_annotation_names"]
        args = [(keys[arg.name_iid], value_of(arg, texts)) for arg in event.debug_annotations]
        categories = [self.names[sequence, "event_categories"][iid] for iid in event.category_iids]
        self.points.append(
            (at, row, event.type, names[event.name_iid], "".join(categories), args, list(event.flow_ids),
             list(event.terminating_flow_ids))
        )  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type; 1 is not 1.0 and not True."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float) and struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and bool(one == other)


@given(st.lists(st.one_of(POINTS, COUNTS), max_size=30))
def test_points_come_back(points: list[Any]) -> None:
    """decode(encode(points)) = points, whatever their times, names, arguments and arrows are, in any order."""
    pytest.importorskip("perfetto", reason="pip install perfetto, whose classes read the file")
    assert same(Decoder(written(points, "perfetto")).points, points)


@given(st.lists(st.one_of(POINTS, COUNTS), max_size=30))
def test_json_comes_back(points: list[Any]) -> None:
    """The JSON is JSON, with the same names, times to the ns, arguments and arrows."""
    trace = json.loads(written(points, "json"))
    events = [event for event in trace["traceEvents"] if event["ph"] in "BEiC"]
    assert [
        round(event["ts"] * 1000) if point[0] < 2**50 else 0 for event, point in zip(events, points, strict=True)
    ] == [point[0] if point[0] < 2**50 else 0 for point in points]
    for event, point in zip(events, points, strict=True):
        if len(point) == 3:
            assert event["args"]["value"] == point[2]
            continue
        assert (event["ph"], event["name"]) == ("BEi"[point[2] - 1], point[3])
        finite = {
            key: 0.0 if isinstance(value, float) and abs(value) == float("inf") else value for key, value in point[5]
        }
        assert event.get("args", {}) == finite
    arrows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    expected = [
        ("s" if i < len(p[6]) else "f", flow) for p in points if len(p) > 3 for i, flow in enumerate(p[6] + p[7])
    ]
    assert [(event["ph"], int(event["id"], 16)) for event in arrows] == expected
