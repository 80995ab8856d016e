"""Our families behind those of an app's own text exposition, in its format and its encoding."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable

from tailwatch.export.prometheus.negotiation import OPENMETRICS, TEXT

LEFT_OUT = "tailwatch_appended_families_left_out"
MOST_BYTES = 16 << 20
"""An app's exposition that is longer, unpacked, stays as it is."""

# What is worth most comes first: the limit of an existing job's samples leaves room for few series.
_FIRST = tuple(
    b"tailwatch_" + name
    for name in (
        b"build",
        b"requests",
        b"requests_good",
        b"requests_in_flight",
        b"goodput_requests_per_second",
        b"slo_attainment_ratio",
        b"output_tokens",
        b"stream_delay_seconds",
        b"time_to_first_token_seconds",
        b"inter_token_latency_seconds",
        b"inter_token_latency_without_gc_seconds",
        b"internal_errors",
        b"dropped_events",
        b"memory_bytes",
    )
)
_SUFFIXES = (b"_total", b"_created", b"_bucket", b"_sum", b"_count", b"_info")
_NAMES = re.compile(rb"\n(?:# (?:HELP|TYPE|UNIT) )?((?:tailwatch|python_gc_duration)\w*)")
_EOF = re.compile(rb"(?:^|\n)(# EOF\n?)\Z")
_VERSIONS = {"text/plain": ("", "0.0.4", "1.0.0"), "application/openmetrics-text": ("", "0.0.1", "1.0.0")}


def format_of(content_type: str, content_encoding: str = "") -> str | None:
    """TEXT or OPENMETRICS, which ours can follow in; None: another format, or one that cannot be unpacked."""
    media, *parameters = (part.strip() for part in content_type.lower().split(";"))
    given = dict(each.partition("=")[::2] for each in parameters)
    known = given.get("version", "").strip('"') in _VERSIONS.get(media, ())
    if not known or given.get("charset", "utf-8").strip('"') not in ("utf-8", "utf8"):
        return None
    if content_encoding.strip().lower() not in ("", "identity", "gzip"):
        return None
    return TEXT if media == "text/plain" else OPENMETRICS


def append(
    host: bytes, content_type: str, content_encoding: str, own: Callable[[str], bytes | memoryview], most: int
) -> list[bytes] | None:
    """A response's body with at most ``most`` series of ours, families that it has already left out; None: it is not
    what its type promises. own: gives all of ours in a format, without the closing # EOF. It blocks.
    """
    form = format_of(content_type, content_encoding)
    gzip = content_encoding.strip().lower() == "gzip"
    text = _unpacked(host) if gzip else host
    if form is None or text is None:
        return None
    end = _EOF.search(text, max(0, len(text) - 8)) if form == OPENMETRICS else None
    if form == OPENMETRICS and end is None:
        return None
    if form == TEXT and "version=" not in content_type.lower() and not text.startswith((b"# HELP ", b"# TYPE ")):
        return None
    body = text[: end.start(1)] if end else text
    pieces = [body, b"" if body.endswith(b"\n") or not body else b"\n"]
    pieces += _chosen(bytes(own(form)), set(_NAMES.findall(b"\n" + body)), most)
    pieces += [b"# EOF\n"] if form == OPENMETRICS else []
    return list(_packed(pieces)) if gzip else pieces


def _unpacked(packed: bytes) -> bytes | None:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        text = decompressor.decompress(packed, MOST_BYTES)
    except zlib.error:
        return None
    return text if decompressor.eof and not decompressor.unused_data else None


def _packed(pieces: Iterable[bytes]) -> Iterable[bytes]:
    compressor = zlib.compressobj(level=1, wbits=31)
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _chosen(own: bytes, theirs: set[bytes], most: int) -> list[bytes]:
    """Whole families in their usual order, chosen in that of _FIRST, and how many were left out."""
    families = [_Family(block) for block in (b"\n" + own).split(b"\n# HELP ")[1:]]
    new = [family for family in families if not family.clashes(theirs)]
    room, chosen = most - 2, set()
    for family in sorted(new, key=lambda family: family.rank):
        if family.series <= room:
            room -= family.series
            chosen.add(family.name)
    left_out = {"clash": len(families) - len(new), "limit": len(new) - len(chosen)}
    summary = "".join(f'{LEFT_OUT}{{reason="{reason}"}} {count}\n' for reason, count in left_out.items())
    head = f"# HELP {LEFT_OUT} {HELP}\n# TYPE {LEFT_OUT} gauge\n"
    return [
        *(b"# HELP %b\n" % family.block.rstrip(b"\n") for family in new if family.name in chosen),
        *([(head + summary).encode()] if LEFT_OUT.encode() not in theirs else []),
    ]


HELP = (
    "Families of tailwatch that are not part of this response and are at /tailwatch/metrics, by reason: the app has "
    "one of that name (clash), or metrics_append allows no more series (limit)."
)


class _Family:
    """block: its lines without the first `# HELP `."""

    __slots__ = ("block", "name", "rank", "series")

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.name = block.split(b" ", 1)[0]
        lines = block.rstrip(b"\n").split(b"\n")[1:]
        self.series = sum(not line.startswith(b"# ") for line in lines)
        plain = self.name.removesuffix(b"_total").removesuffix(b"_info")
        self.rank = _FIRST.index(plain) if plain in _FIRST else len(_FIRST)

    def clashes(self, theirs: set[bytes]) -> bool:
        """Whether a family or a sample of that name is among them."""
        plain = self.name.removesuffix(b"_total").removesuffix(b"_info")
        return bool(theirs) and any(name in theirs for name in (plain, *(plain + suffix for suffix in _SUFFIXES)))
