"""The host's prometheus_client families as io.prometheus.client.MetricFamily messages, each with its length before it.

prometheus_client itself has no protobuf. What has no faithful form there raises Unencodable, and the whole answer is
text then: one response has one format.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Exemplar, NativeHistogram, Sample


class Unencodable(Exception):
    """A family that has no form in protobuf."""


_COUNTER, _GAUGE, _SUMMARY, _UNTYPED, _HISTOGRAM, _GAUGE_HISTOGRAM = range(6)
_double = struct.Struct("<d").pack
_Names = Callable[[str], str]


def encode(family: Metric, metric_name: _Names, label_name: _Names) -> Iterator[bytes]:
    """The pieces of one family, metric by metric; the first one holds nothing but its beginning.

    metric_name, label_name: what names become. Raises Unencodable, at the first sample that has no form.
    """
    kind, suffix, metrics = _shapes(family)
    head = _text(1, metric_name(family.name + suffix)) + _text(2, family.documentation) + _uint(3, kind)
    if family.unit and family.name.endswith("_" + family.unit):
        head += _text(5, family.unit)
    yield head
    for labels, timestamp, value in metrics:
        pairs = b"".join(_pair(1, label_name(name), text) for name, text in sorted(labels))
        when = b"" if timestamp is None else _uint(6, round(float(timestamp) * 1000))
        yield _message(4, pairs + value + when)


def delimited(pieces: Iterable[bytes]) -> bytes:
    """What encode() gave as one message with its length; nothing for a family without metrics, which is an error to
    some readers."""
    head, *metrics = pieces
    if not metrics:
        return b""
    body = head + b"".join(metrics)
    return _varint(len(body)) + body


_Labels = tuple[tuple[str, str], ...]
_Written = tuple[_Labels, Any, bytes]


def _shapes(family: Metric) -> tuple[int, str, Iterator[_Written]]:
    """Its type, what its name ends with, and its metrics."""
    kind = family.type
    if kind == "counter":
        return _COUNTER, "_total", _counters(family)
    if kind in ("gauge", "stateset"):
        return _GAUGE, "", _plain(family, "", 2)
    if kind == "info":
        return _GAUGE, "_info", _plain(family, "_info", 2)
    if kind in ("unknown", "untyped"):
        return _UNTYPED, "", _plain(family, "", 5)
    if kind == "summary":
        return _SUMMARY, "", _summaries(family)
    if kind in ("histogram", "gaugehistogram"):
        return (_HISTOGRAM if kind == "histogram" else _GAUGE_HISTOGRAM), "", _histograms(family)
    raise Unencodable(f"{family.name}: type {kind!r}")


# ---- metrics of one sample --------------------------------------------------------------------------------------


def _plain(family: Metric, suffix: str, number: int) -> Iterator[_Written]:
    name = family.name + suffix
    for sample in family.samples:
        if sample.name != name:
            raise Unencodable(f"{sample.name} in {family.type} {family.name}")
        yield _labels(sample), sample.timestamp, _message(number, _number(1, sample.value))


def _counters(family: Metric) -> Iterator[_Written]:
    created = {_labels(s): s.value for s in family.samples if s.name == family.name + "_created"}
    for sample in family.samples:
        if sample.name == family.name + "_created":
            continue
        if sample.name != family.name + "_total":
            raise Unencodable(f"{sample.name} in counter {family.name}")
        exemplar = _exemplar(2, sample.exemplar) if sample.exemplar else b""
        since = _time(3, created.get(_labels(sample)))
        yield _labels(sample), sample.timestamp, _message(3, _number(1, sample.value) + exemplar + since)


# ---- metrics of several samples ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """The samples of one summary or histogram."""

    labels: _Labels
    timestamp: Any = None
    count: float | None = None
    sum: float | None = None
    created: float | None = None
    parts: list[tuple[float, float, Exemplar | None]] = field(default_factory=list)
    native: NativeHistogram | None = None


_MEMBERS = {"_count": "count", "_gcount": "count", "_sum": "sum", "_gsum": "sum", "_created": "created"}


def _groups(family: Metric, part: str, key: str) -> Iterator[_Group]:
    """By labels, in the order they come; part: the suffix of what has the label key."""
    found: dict[_Labels, _Group] = {}
    for sample in family.samples:
        labels = _labels(sample)
        own = tuple(pair for pair in labels if pair[0] != key)
        group = found.get(own)
        if group is None:
            group = found[own] = _Group(own, sample.timestamp)
        _put(group, family, sample, part, key)
    yield from found.values()


def _put(group: _Group, family: Metric, sample: Sample, part: str, key: str) -> None:
    suffix = sample.name.removeprefix(family.name)
    native = getattr(sample, "native_histogram", None)
    if native is not None:
        group.native = native
    elif suffix == part and key in sample.labels:
        group.parts.append((float(sample.labels[key]), sample.value, sample.exemplar))
    elif suffix in _MEMBERS and sample.name.startswith(family.name):
        setattr(group, _MEMBERS[suffix], sample.value)
    else:
        raise Unencodable(f"{sample.name} in {family.type} {family.name}")


def _summaries(family: Metric) -> Iterator[_Written]:
    for group in _groups(family, "", "quantile"):
        quantiles = b"".join(_message(3, _number(1, q) + _number(2, value)) for q, value, _ in sorted(group.parts))
        count = _uint(1, _whole(group.count or 0.0, family))
        value = count + _number(2, group.sum or 0.0) + quantiles + _time(4, group.created)
        yield group.labels, group.timestamp, _message(4, value)


def _histograms(family: Metric) -> Iterator[_Written]:
    for group in _groups(family, "_bucket", "le"):
        parts = sorted(group.parts, key=lambda part: part[0])
        native = group.native
        total = group.count if group.count is not None else native.count_value if native else _last(parts, family)
        value = _count(1, 4, total, family)
        value += _number(2, group.sum if group.sum is not None else native.sum_value if native else math.nan)
        for bound, below, exemplar in parts:
            bucket = _count(1, 4, below, family) + _number(2, bound)
            value += _message(3, bucket + (_exemplar(3, exemplar) if exemplar else b""))
        if native is not None:
            value += _native(native, family)
        yield group.labels, group.timestamp, _message(7, value + _time(15, group.created))


def _last(parts: list[tuple[float, float, Any]], family: Metric) -> float:
    if not parts:
        raise Unencodable(f"{family.name}: a histogram without buckets")
    return parts[-1][1]


def _native(of: NativeHistogram, family: Metric) -> bytes:
    written = _uint(5, _zigzag(of.schema)) + _number(6, of.zero_threshold) + _count(7, 8, of.zero_count, family)
    for spans, deltas, number in ((of.neg_spans, of.neg_deltas, 9), (of.pos_spans, of.pos_deltas, 12)):
        for span in spans or ():
            written += _message(number, _uint(1, _zigzag(span.offset)) + _uint(2, span.length))
        if deltas:
            written += _message(number + 1, b"".join(_varint(_zigzag(_whole(delta, family))) for delta in deltas))
    if not (of.zero_threshold or of.zero_count or of.pos_spans or of.neg_spans):
        written += _message(12, _uint(1, 0) + _uint(2, 0))  # else it would not read as a native one
    for exemplar in sorted(getattr(of, "nh_exemplars", None) or (), key=lambda e: float(e.timestamp or 0)):
        written += _exemplar(16, exemplar)
    return written


def _exemplar(number: int, exemplar: Exemplar) -> bytes:
    labels = b"".join(_pair(1, name, text) for name, text in exemplar.labels.items())
    return _message(number, labels + _number(2, exemplar.value) + _time(3, exemplar.timestamp))


# ---- fields -----------------------------------------------------------------------------------------------------


def _labels(sample: Sample) -> _Labels:
    return tuple(sample.labels.items())


def _whole(value: float, family: Metric) -> int:
    if value != value or math.isinf(value) or value != int(value):
        raise Unencodable(f"{family.name}: a count of {value}")
    return int(value)


def _count(number: int, number_of_float: int, value: float, family: Metric) -> bytes:
    """A count as a whole number; as a float where it is none, or negative."""
    if value != value or math.isinf(value):
        raise Unencodable(f"{family.name}: a count of {value}")
    if value == int(value) and 0 <= value < 2**64:
        return _uint(number, int(value))
    return _number(number_of_float, value)


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    written = bytearray()
    while value >= 128:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


_SMALL = [bytes([value]) for value in range(128)]


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63


def _uint(number: int, value: int) -> bytes:
    return _SMALL[number << 3] + _varint(value) if number < 16 else _varint(number << 3) + _varint(value)


def _number(number: int, value: float) -> bytes:
    return _SMALL[number << 3 | 1] + _double(value)


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _pair(number: int, name: str, text: str) -> bytes:
    """Labels come back with every scrape."""
    return _message(number, _text(1, name) + _text(2, text))


def _time(number: int, seconds: Any) -> bytes:
    if seconds is None:
        return b""
    ns = round(float(seconds) * 1e9)
    return _message(number, _uint(1, ns // 10**9) + _uint(2, ns % 10**9))
