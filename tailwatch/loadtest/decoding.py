"""Content encodings of a response's body, undone as it comes, a bounded piece at a time.

gzip and deflate always; br and zstd with the extra `encodings`.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

_PIECE = 1 << 16  # bytes that a decoder may hand out at once: a small body that grows without end takes no more memory
_AUTO = zlib.MAX_WBITS | 32  # the header of gzip or of zlib, whichever is there

Feed = Callable[[bytes], Iterator[bytes]]


class Decoder:
    """Of one body.

    Attributes:
        error: why it could not be read on; "" where it could.
        decoded: bytes that it gave.
    """

    __slots__ = ("_feed", "_over", "decoded", "error")

    def __init__(self, feed: Feed, over: Callable[[], bool]) -> None:
        self._feed, self._over, self.error, self.decoded = feed, over, "", 0

    def __call__(self, data: bytes) -> Iterator[bytes]:
        """The pieces that these bytes give, of at most 128 KiB. Raises nothing; after an error there are none."""
        if self.error:
            return
        try:
            for piece in self._feed(data):
                self.decoded += len(piece)
                yield piece
        except Exception as error:  # each library has its own
            self.error = str(error) or type(error).__name__

    @property
    def whole(self) -> bool:
        """Whether the body's own end has come."""
        return self._over()


def decoder_of(encoding: str) -> Decoder | None:
    """A new one; None for an encoding that is unknown, or whose library is not installed."""
    make = _MAKERS.get(encoding)
    return make() if make is not None else None


class _Zlib:
    """gzip, of one member or several, and deflate, which some servers send without zlib's header."""

    def __init__(self, *, bare: bool) -> None:
        self._bare = bare  # it may lack a header
        self._one: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._one is None or self._one.eof:
                headless = self._bare and data[0] & 0x0F != 8  # the method that every zlib header names
                self._one = zlib.decompressobj(-zlib.MAX_WBITS if headless else _AUTO)
            yield self._one.decompress(data, _PIECE)
            data = self._one.unconsumed_tail or self._one.unused_data
        while self._one is not None and not self._one.eof and (rest := self._one.decompress(b"", _PIECE)):
            yield rest

    def over(self) -> bool:
        return self._one is not None and self._one.eof


def _zlib(*, bare: bool) -> Decoder:
    one = _Zlib(bare=bare)
    return Decoder(one.feed, one.over)


def _brotli() -> Decoder | None:
    if (library := _found("brotli")) is None or not hasattr(library.Decompressor, "can_accept_more_data"):
        return None  # before 1.2 what it hands out has no bound
    one = library.Decompressor()

    def feed(data: bytes) -> Iterator[bytes]:
        yield (piece := one.process(data, output_buffer_limit=_PIECE))
        while len(piece) >= _PIECE or not one.can_accept_more_data():
            yield (piece := one.process(b"", output_buffer_limit=_PIECE))

    return Decoder(feed, one.is_finished)


def _zstd() -> Decoder | None:
    if (library := _found("compression.zstd", "backports.zstd")) is None:
        return None
    one = library.ZstdDecompressor()

    def feed(data: bytes) -> Iterator[bytes]:
        yield one.decompress(data, _PIECE)
        while not one.eof and not one.needs_input:
            yield one.decompress(b"", _PIECE)

    return Decoder(feed, lambda: bool(one.eof))


def _found(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_MAKERS: dict[str, Callable[[], Decoder | None]] = {
    "gzip": lambda: _zlib(bare=False),
    "x-gzip": lambda: _zlib(bare=False),
    "deflate": lambda: _zlib(bare=True),
    "br": _brotli,
    "zstd": _zstd,
}
