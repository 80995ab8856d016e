"""Which format a scrape is answered in, by its Accept header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TEXT = "text"
OPENMETRICS = "openmetrics"
PROTOBUF = "protobuf"

_CONTENT_TYPES = {
    TEXT: "text/plain; version=0.0.4; charset=utf-8",
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
    PROTOBUF: "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
}
_RICHER = {TEXT: 0, OPENMETRICS: 1, PROTOBUF: 2}
_FAMILY = "io.prometheus.client.MetricFamily"


@dataclass(frozen=True, slots=True)
class Format:
    """What a scrape is answered in."""

    name: str = TEXT
    """TEXT, OPENMETRICS or PROTOBUF."""
    utf8: bool = False
    """Whether names may be any UTF-8; else what is not a letter, digit or colon in one becomes an underscore."""

    @property
    def content_type(self) -> str:
        """As the answer has it."""
        if not self.utf8:
            return _CONTENT_TYPES[self.name]
        return _CONTENT_TYPES[self.name].replace("version=0.0.4", "version=1.0.0") + "; escaping=allow-utf-8"


def choose(accept: str, *, protobuf: bool = True) -> Format:
    """The format that an Accept header ranks highest; of equals the richest: protobuf, OpenMetrics 1.0, text.

    Text for a scraper that asks for none of them. protobuf: whether it is to be had.
    """
    best, found = (0.0, -1), Format()
    for media, parameters in _ranges(accept):
        name = _format(media, parameters)
        if name is None or (name == PROTOBUF and not protobuf):
            continue
        rank = (_quality(parameters), _RICHER[name])
        if rank[0] > 0 and rank > best:
            utf8 = parameters.get("escaping") == "allow-utf-8" and (
                name != TEXT or parameters.get("version") == "1.0.0"
            )
            best, found = rank, Format(name, utf8)
    return found


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    offers = {coding: _quality(parameters) for coding, parameters in _ranges(accept_encoding)}
    return offers.get("gzip", offers.get("*", 0.0)) > 0


def _format(media: str, parameters: dict[str, str]) -> str | None:
    if media == "application/vnd.google.protobuf":
        delimited = parameters.get("encoding") == "delimited" and parameters.get("proto") == _FAMILY
        return PROTOBUF if delimited else None
    if media == "application/openmetrics-text":
        return OPENMETRICS if parameters.get("version", "1.0.0") == "1.0.0" else None
    return TEXT if media == "text/plain" else None


def _ranges(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for offer in header.split(","):
        name, *parameters = (part.strip() for part in offer.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        yield name.lower(), {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}


def _quality(parameters: dict[str, str]) -> float:
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
