"""io.prometheus.client.MetricFamily as protobuf's own runtime reads it: the fields by their published numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_PACKAGE = "io.prometheus.client"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "double": _FIELD.TYPE_DOUBLE,
    "uint64": _FIELD.TYPE_UINT64,
    "uint32": _FIELD.TYPE_UINT32,
    "int64": _FIELD.TYPE_INT64,
    "sint32": _FIELD.TYPE_SINT32,
    "sint64": _FIELD.TYPE_SINT64,
    "string": _FIELD.TYPE_STRING,
}
_TYPE_NAMES = ("COUNTER", "GAUGE", "SUMMARY", "UNTYPED", "HISTOGRAM", "GAUGE_HISTOGRAM")

# Message: field, number, type; "*" behind a type means repeated.
_MESSAGES = {
    "LabelPair": "name 1 string, value 2 string",
    "Gauge": "value 1 double",
    "Counter": "value 1 double, exemplar 2 Exemplar, created_timestamp 3 Timestamp",
    "Quantile": "quantile 1 double, value 2 double",
    "Summary": "sample_count 1 uint64, sample_sum 2 double, quantile 3 Quantile*, created_timestamp 4 Timestamp",
    "Untyped": "value 1 double",
    "Histogram": "sample_count 1 uint64, sample_count_float 4 double, sample_sum 2 double, bucket 3 Bucket*, "
    "schema 5 sint32, zero_threshold 6 double, zero_count 7 uint64, zero_count_float 8 double, "
    "negative_span 9 BucketSpan*, negative_delta 10 sint64*, negative_count 11 double*, positive_span 12 BucketSpan*, "
    "positive_delta 13 sint64*, positive_count 14 double*, created_timestamp 15 Timestamp, exemplars 16 Exemplar*",
    "Bucket": "cumulative_count 1 uint64, upper_bound 2 double, exemplar 3 Exemplar, cumulative_count_float 4 double",
    "BucketSpan": "offset 1 sint32, length 2 uint32",
    "Exemplar": "label 1 LabelPair*, value 2 double, timestamp 3 Timestamp",
    "Metric": "label 1 LabelPair*, gauge 2 Gauge, counter 3 Counter, summary 4 Summary, untyped 5 Untyped, "
    "timestamp_ms 6 int64, histogram 7 Histogram",
    "MetricFamily": "name 1 string, help 2 string, type 3 MetricType, metric 4 Metric*, unit 5 string",
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/prometheus_messages.proto",
        package=_PACKAGE,
        syntax="proto2",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    kinds = file.enum_type.add(name="MetricType")
    for number, name in enumerate(_TYPE_NAMES):
        kinds.value.add(name=name, number=number)
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, kind in (field.split() for field in fields.split(", ")):
            label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            field = made.field.add(name=name, number=int(number), label=label)
            _set_type(field, kind.rstrip("*"))
    return file


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _TYPES:
        field.type = _TYPES[kind]
    elif kind == "MetricType":
        field.type, field.type_name = _FIELD.TYPE_ENUM, f".{_PACKAGE}.{kind}"
    else:
        package = "google.protobuf" if kind == "Timestamp" else _PACKAGE
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
_pool.Add(_file())  # type: ignore[no-untyped-call]
MetricFamily: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))
COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = range(6)


def read(body: bytes) -> dict[str, Any]:
    """Delimited families by name. Fails for a name that comes twice, a field that is not known, and cut bytes."""
    families: dict[str, Any] = {}
    at = 0
    while at < len(body):
        length, at = _varint(body, at)
        family = MetricFamily.FromString(body[at : at + length])
        assert at + length <= len(body)
        at += length
        assert family.name not in families, family.name
        _check_known(family)
        families[family.name] = family
    return families


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _check_known(message: Any) -> None:
    from google.protobuf import unknown_fields

    assert not list(unknown_fields.UnknownFieldSet(message)), message.DESCRIPTOR.name
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                _check_known(each)


def labels(metric: Any) -> dict[str, str]:
    """Of a metric or an exemplar."""
    return {pair.name: pair.value for pair in metric.label}


def buckets(histogram: Any) -> dict[int, int]:
    """Of a native histogram: how many are in bucket n, (2^((n-1)/2^schema), 2^(n/2^schema)]; empty ones left out."""
    found: dict[int, int] = {}
    at = count = 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        at += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[at] = count
            at += 1
    assert next(deltas, None) is None
    return {index: number for index, number in found.items() if number}
