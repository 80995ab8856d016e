"""The host's own prometheus_client registry as text or protobuf, beside ours.

It is written here rather than by prometheus_client's generate_latest, because that holds the GIL for a whole
registry (20 us a line). Here a worker thread writes it family by family and stops to let go after each slice, a
collector that raises costs its own families only, and families that tailwatch serves itself are left out.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tailwatch.export.prometheus import app_registry_protobuf

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Exemplar, Sample

SLICE = 50
"""Samples written between two hand-overs of the GIL."""

_TYPES_IN_TEXT = {"info": "gauge", "stateset": "gauge", "gaugehistogram": "histogram", "unknown": "untyped"}
_SUFFIXES_IN_TEXT = {"counter": "_total", "info": "_info"}
_OPENMETRICS_ONLY = ("_created", "_gcount", "_gsum")


def find_registry() -> Any | None:
    """The registry the host exports, or None where it never imported prometheus_client.

    With PROMETHEUS_MULTIPROC_DIR set: a fresh one that reads the files of all its processes.
    """
    client = sys.modules.get("prometheus_client")
    if client is None:
        return None
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ and "prometheus_multiproc_dir" not in os.environ:
        return client.REGISTRY
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def write_registry(
    registry: Any,
    *,
    openmetrics: bool,
    utf8: bool = False,
    skip_names: Collection[str],
    skip_collector: Callable[[object], bool],
    on_clash: Callable[[str], None],
    on_error: Callable[[], object],
) -> Iterator[bytes]:
    """Every family of a registry, a chunk at a time; sleeps between chunks, so never call it on an event loop.

    Families in skip_names are left out and given to on_clash; collectors that skip_collector accepts are not
    asked. A collector that raises, and a family that cannot be written, is given up and counted by on_error.
    utf8: whether names may be any UTF-8, quoted where they need it.
    """
    write = _openmetrics_lines if openmetrics else _text_lines
    for family in _wanted(registry, skip_names, skip_collector, on_clash, on_error):
        try:
            yield _with_pauses(write(family, utf8))
        except Exception:
            on_error()
        time.sleep(0)  # lets go of the GIL: a waiting loop gets it in 0.1 ms, not after a switch interval


def encode_registry(
    registry: Any,
    *,
    utf8: bool,
    skip_names: Collection[str],
    skip_collector: Callable[[object], bool],
    on_clash: Callable[[str], None],
    on_error: Callable[[], object],
    check: Callable[[], None],
) -> Iterator[bytes]:
    """The same as delimited protobuf messages. check: called between slices; what it raises is passed on.

    Raises Unencodable for a family that has no form in protobuf.
    """
    names = (_as_it_is, _as_it_is) if utf8 else (_metric_name, _label_name)
    for family in _wanted(registry, skip_names, skip_collector, on_clash, on_error):
        pieces = []
        for number, piece in enumerate(_or_unencodable(app_registry_protobuf.encode(family, *names)), 1):
            pieces.append(piece)
            if number % SLICE == 0:
                time.sleep(0)
                check()
        check()
        yield app_registry_protobuf.delimited(pieces)
        time.sleep(0)


def _or_unencodable(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whatever is odd about a family is left to the text format: it looks at less."""
    try:
        yield from pieces
    except app_registry_protobuf.Unencodable:
        raise
    except Exception as error:
        raise app_registry_protobuf.Unencodable(str(error)) from None


def _as_it_is(name: str) -> str:
    return name


def _wanted(
    registry: Any,
    skip_names: Collection[str],
    skip_collector: Callable[[object], bool],
    on_clash: Callable[[str], None],
    on_error: Callable[[], object],
) -> Iterator[Metric]:
    for family in _families(registry, skip_collector, on_error):
        if family.name in skip_names:
            on_clash(family.name)
        else:
            yield family


def _families(registry: Any, skip: Callable[[object], bool], on_error: Callable[[], object]) -> Iterator[Metric]:
    for collector in _collectors(registry):
        if skip(collector):
            continue
        try:
            yield from collector.collect()
        except Exception:
            on_error()


def _collectors(registry: Any) -> list[Any]:
    """The registry's collectors one by one, so that one of them can fail alone; else the registry itself."""
    known = getattr(registry, "_collector_to_names", None)
    if known is None:
        return [registry]
    target: dict[str, str] | None = getattr(registry, "get_target_info", dict)()
    return ([_TargetInfo(target)] if target else []) + list(known)


class _TargetInfo:
    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import InfoMetricFamily

        yield InfoMetricFamily("target", "Target metadata", value=self._labels)


def _with_pauses(lines: Iterator[str]) -> bytes:
    written = []
    for number, line in enumerate(lines, 1):
        written.append(line)
        if number % SLICE == 0:
            time.sleep(0)
    return "".join(written).encode()


def _openmetrics_lines(family: Metric, utf8: bool) -> Iterator[str]:
    name = _family_name(family.name, utf8)
    yield f"# HELP {name} {_escape(family.documentation)}\n"
    yield f"# TYPE {name} {family.type}\n"
    if family.unit:
        yield f"# UNIT {name} {family.unit}\n"
    for sample in family.samples:
        if getattr(sample, "native_histogram", None) is not None:
            continue  # OpenMetrics 1.0 has no words for it
        timestamp = "" if sample.timestamp is None else f" {sample.timestamp}"
        exemplar = _exemplar(sample.exemplar) if sample.exemplar else ""
        yield f"{_series(sample, utf8)} {_number(sample.value)}{timestamp}{exemplar}\n"


def _text_lines(family: Metric, utf8: bool) -> Iterator[str]:
    """Text 0.0.4 has no type for what OpenMetrics adds to a family; it follows as gauges of its own."""
    name = _family_name(family.name + _SUFFIXES_IN_TEXT.get(family.type, ""), utf8)
    yield from _text_header(name, family.documentation, _TYPES_IN_TEXT.get(family.type, family.type))
    added: dict[str, list[str]] = {}
    for sample in family.samples:
        suffix = sample.name[len(family.name) :]
        if suffix in _OPENMETRICS_ONLY and sample.name.startswith(family.name):
            added.setdefault(suffix, []).append(_text_line(sample, utf8))
        else:
            yield _text_line(sample, utf8)
    for suffix in sorted(added):
        yield from _text_header(_family_name(family.name + suffix, utf8), family.documentation, "gauge")
        yield from added[suffix]


def _text_header(name: str, documentation: str, kind: str) -> Iterator[str]:
    help_text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {help_text}\n"
    yield f"# TYPE {name} {kind}\n"


def _text_line(sample: Sample, utf8: bool) -> str:
    timestamp = "" if sample.timestamp is None else f" {int(float(sample.timestamp) * 1000):d}"
    return f"{_series(sample, utf8)} {_number(sample.value)}{timestamp}\n"


def _series(sample: Sample, utf8: bool) -> str:
    if utf8 and not _LEGACY_METRIC(sample.name):  # quoted, it stands among the labels
        labels = _labels(sample.labels, utf8)
        return f"{{{_quoted(sample.name)}{',' if labels else ''}{labels}}}"
    name = _metric_name(sample.name)
    return f"{name}{{{_labels(sample.labels, utf8)}}}" if sample.labels else name


def _family_name(name: str, utf8: bool) -> str:
    return _quoted(name) if utf8 and not _LEGACY_METRIC(name) else _metric_name(name)


def _quoted(name: str) -> str:
    return f'"{_escape(name)}"'


def _labels(labels: dict[str, str], utf8: bool = False) -> str:
    def named(key: str) -> str:
        return _quoted(key) if utf8 and not _LEGACY_LABEL(key) else _label_name(key)

    return ",".join(f'{named(key)}="{_escape(value)}"' for key, value in sorted(labels.items()))


def _exemplar(exemplar: Exemplar) -> str:
    timestamp = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {{{_labels(exemplar.labels)}}} {_number(exemplar.value)}{timestamp}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_LEGACY_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_LEGACY_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*").fullmatch


def _metric_name(name: str) -> str:
    return name if _LEGACY_METRIC(name) else _underscores(name, "_:")


def _label_name(name: str) -> str:
    return name if _LEGACY_LABEL(name) else _underscores(name, "_")


def _underscores(name: str, also: str) -> str:
    """A UTF-8 name for a scraper that did not ask for one: every other character becomes an underscore."""
    kept = [c if c.isascii() and (c.isalpha() or c in also or (i and c.isdigit())) else "_" for i, c in enumerate(name)]
    return "".join(kept)


def _number(value: float) -> str:
    """As Go prints it: that is what le and quantile labels are compared with."""
    value = float(value)
    if value != value:
        return "NaN"
    text = repr(value)
    if text in ("inf", "-inf"):
        return "+Inf" if value > 0 else "-Inf"
    point = text.find(".")
    if value <= 0 or point <= 6:
        return text
    mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{point - 1:02d}"
