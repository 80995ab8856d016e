"""Answers with nothing in them that was measured: none of them is good."""

from __future__ import annotations

import gzip
import http.server
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tailwatch.loadtest.bench import run
from tailwatch.loadtest.decoding import decoder_of
from tailwatch.loadtest.report import table
from tailwatch.loadtest.results import Result

pytestmark = pytest.mark.integration

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
TOOL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"a"}}]}}]}\n\n'
DONE = b"data: [DONE]\n\n"
EXTRA = "of the extra `encodings`, which the extra `test` installs"


@contextmanager
def answering(body: bytes, content_type: str, encoding: str, parts: Sequence[bytes]) -> Iterator[str]:
    """A server that has this one answer, and writes it in these parts."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """The answer."""
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            if encoding:
                self.send_header("content-encoding", encoding)
            self.end_headers()
            for number, part in enumerate(parts):
                if number:
                    time.sleep(0.05)  # of the server's own: so that no read has both
                self.wfile.write(part)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sent(
    body: bytes, content_type: str, encoding: str = "", *, parts: Sequence[bytes] | None = None, **given: Any
) -> Result:
    """A few requests of it."""
    asked: dict[str, Any] = {
        "model": "m",
        "api": "chat",
        "rate": 200.0,
        "requests": 6,
        "slo": "ttft<=20s,tpot<=10s",
    } | given
    with answering(body, content_type, encoding, parts or [body]) as url:
        return run(url if asked["api"] != "http" else f"{url}/v1/embeddings", **asked)


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "named"),
    [
        (b"<html>sign in</html>", "text/html; charset=utf-8", "", "text/html"),
        (b"please sign in", "text/plain", "", "text/plain"),
        (TOKEN + DONE, "text/event-stream", "lzma", "text/event-stream, lzma"),
        (TOKEN + DONE, "text/event-stream", "gzip", "text/event-stream, gzip: "),
        (gzip.compress(TOKEN)[:-9] + b"\xff" * 40, "text/event-stream", "gzip", "text/event-stream, gzip: "),
        *((TOKEN + DONE, "text/event-stream", other, f"text/event-stream, {other}: ") for other in ("br", "zstd")),
        (b"l(~5&bw=cyah;[^`aUuMTOlF", "text/event-stream", "br", "text/event-stream, br: none of it"),
    ],
    ids=[
        "a page",
        "plain text",
        "an unknown encoding",
        "no gzip",
        "a broken one",
        "no br",
        "no zstd",
        "what could begin as br",
    ],
)
def test_a_body_that_cannot_be_read_is_unmeasured(body: bytes, content_type: str, encoding: str, named: str) -> None:
    """Named with its type and encoding; no verdict on the SLO."""
    result = sent(body, content_type, encoding)
    assert result.outcomes.by_reason["unmeasured"] == 6 and result.goodput.held is None and not result.valid
    shown = table.show(result)
    assert "6 unmeasured" in shown and f"cannot be read: {named}" in shown and "no verdict" in shown
    assert result.goodput.attainment is None


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (DONE, "text/event-stream"),
        (ROLE + DONE, "text/event-stream"),
        (b"data: this is not json\n\n" * 8 + DONE, "text/event-stream"),
        (b'{"login": "here"}', "application/json"),
    ],
    ids=["end marker", "role", "not JSON", "another document"],
)
def test_an_answer_without_content_is_a_miss(body: bytes, content_type: str) -> None:
    """It was read, it ended, and no request had a token."""
    result = sent(body, content_type)
    assert result.outcomes.miss == 6 and result.outcomes.faults == {"no_content": 6}
    assert result.goodput.attainment == 0


@pytest.mark.parametrize("body", [TOKEN + DONE, TOOL + DONE], ids=["text", "tool call"])
def test_content_is_good(body: bytes) -> None:
    """The control; a tool call is content."""
    assert sent(body, "text/event-stream").outcomes.good == 6


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_nothing_was_asked_for(name: str) -> None:
    """With a limit of 0 tokens an empty answer is good, and one that cannot be read is not."""
    assert sent(ROLE + DONE, "text/event-stream", extra_body={name: 0}).outcomes.good == 6
    assert sent(b"<html>", "text/html", extra_body={name: 0}).outcomes.by_reason["unmeasured"] == 6


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "text/plain", "text/html"])
def test_a_route_that_does_not_generate(content_type: str) -> None:
    """Its answer is good as it is."""
    assert sent(b"data: 1\n\n", content_type, model=None, api="http").outcomes.good == 6


def raw_deflate(data: bytes) -> bytes:
    """As some servers send it: without the header."""
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


def brotli(data: bytes) -> bytes:
    """Of the extra `encodings`."""
    made: bytes = pytest.importorskip("brotli", reason=EXTRA).compress(data)
    return made


def zstd(data: bytes) -> bytes:
    """Of the extra `encodings`, or of Python 3.14."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    made: bytes = pytest.importorskip(name, reason=EXTRA).compress(data)
    return made


ENCODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "members": ("gzip", lambda data: gzip.compress(data[:70]) + gzip.compress(data[70:])),
    "deflate": ("deflate", zlib.compress),
    "raw": ("deflate", raw_deflate),
    "br": ("br", brotli),
    "zstd": ("zstd", zstd),
}


RARE = ("members", "raw", "zstd")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in ENCODINGS]
)
def test_a_compressed_stream_is_read(name: str) -> None:
    """As if it were not; a body that ends too early is an error."""
    encoding, compress = ENCODINGS[name]
    whole = compress(TOKEN * 3 + DONE)
    result = sent(whole, "text/event-stream", encoding)
    assert result.outcomes.good == 6 and result.tokens == 18, result.examples
    assert sent(whole[:-6], "text/event-stream", encoding).outcomes.faults in ({"truncated": 6}, {})
    document = compress(b'{"choices":[{"text":"abc"}],"usage":{"completion_tokens":3}}')
    assert sent(document, "application/json", encoding).tokens == 18
    assert sent(document[:-6], "application/json", encoding).outcomes.faults == {"truncated": 6}


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_a_small_body_that_grows_is_read_in_pieces(encoding: str) -> None:
    """Memory stays bounded: of 64 MiB no piece is longer than 128 KiB, whatever the reads."""
    name = next(name for name, (own, _) in ENCODINGS.items() if own == encoding)
    body = ENCODINGS[name][1](bytes(64 << 20))
    decoder = decoder_of(encoding)
    assert decoder is not None
    sizes = [len(piece) for at in range(0, len(body), 5000) for piece in decoder(body[at : at + 5000])]
    assert sum(sizes) == 64 << 20 and max(sizes) <= 1 << 17 and decoder.whole and not decoder.error


def test_an_error_in_mid_stream_is_shown() -> None:
    """Its own words, not the first tokens; also where two reads share it."""
    error = b'data: {"error":{"message":"CUDA out of memory"}}\n\n'
    for parts in ([TOKEN * 20 + error], [TOKEN * 20 + error[:30], error[30:]]):
        result = sent(b"".join(parts), "text/event-stream", parts=parts)
        assert result.outcomes.faults == {"error_event": 6}
        assert 'data: {"error":{"message":"CUDA out of memory"}}' in table.show(result)
