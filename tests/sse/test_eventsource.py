"""EventSource clients read what the encoders write: httpx-sse, and Chromium (Debian: apt-get install chromium)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tailwatch import sse

from ..support.live_servers import Stage, counted
from .frames import CREATED, MODEL, NASTY, chat, message_frames, response_frames, tokens

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

Seen = tuple[str, str, str]  # type, data, last event id

LINES = [
    "",
    " two spaces  ",
    "data: x",
    ": no comment",
    "a\nb\r\nc\rd",
    "\n\n",
    "\r\n\r\nid: 9\r\n\r\n",
    "\ufeff",
    "x\0y",
]


def generic_frames() -> list[tuple[bytes, Seen | None]]:
    """Frames of no particular server, and what a client makes of each: nothing, of a comment."""
    joined = [text.replace("\r\n", "\n").replace("\r", "\n") for text in LINES]
    dumped = json.dumps(NASTY, ensure_ascii=False, separators=(",", ":"))
    return [
        (sse.comment(), None),
        (sse.comment("hold\r\n\r\ndata: x\n\nevent: y\rid: z"), None),
        *((sse.text(text), ("message", data, "")) for text, data in zip(LINES, joined, strict=True)),
        (sse.event(NASTY), ("message", dumped, "")),
        (sse.event("a\r\nb", event="token"), ("token", '"a\\r\\nb"', "")),
        (sse.event({"n": 1}, event=" token: 語 ", id=" 7: \u2028\t"), (" token: 語 ", '{"n":1}', " 7: \u2028\t")),
        (sse.event(None), ("message", "null", " 7: \u2028\t")),
        (sse.text("a\nb", event="token", id="", retry=0), ("token", "a\nb", "")),
        (sse.text("last", id="8", retry=1), ("message", "last", "8")),
    ]


def test_httpx_sse_reads_every_frame(stage: Stage) -> None:
    """Types, data of several lines, ids and retry; comments are no events."""
    pairs = generic_frames()
    stage.answer = lambda: [frame for frame, _ in pairs]
    with httpx.Client() as client, httpx_sse.connect_sse(client, "GET", f"{stage.url}/events") as source:
        events = list(source.iter_sse())
    assert [(event.event, event.data, event.id) for event in events] == [seen for _, seen in pairs if seen]
    assert [event.retry for event in events if event.retry is not None] == [0, 1]


def test_httpx_sse_reads_the_encoders(stage: Stage) -> None:
    """The data of each frame is one JSON document, in which the text is as it was."""
    stage.answer = lambda: [*map(chat().content, NASTY), sse.comment("\n\n"), sse.DONE]
    with httpx.Client() as client, httpx_sse.connect_sse(client, "GET", f"{stage.url}/events") as source:
        events = list(source.iter_sse())
    assert [json.loads(event.data)["choices"][0]["delta"]["content"] for event in events[:-1]] == NASTY
    assert events[-1].data == "[DONE]"
    assert counted().tokens == tokens(NASTY)


# The image holds the page's load event back, and with it --dump-dom, until what was seen has arrived.
PAGE = """<!doctype html><meta charset="utf-8"><img src="/held"><script>
const seen = [], source = new EventSource("/events");
function parsed(text) { try { return JSON.parse(text) } catch { return null } }
function see(event) { seen.push([event.type, event.data, event.lastEventId, parsed(event.data)]) }
for (const type of %s) source.addEventListener(type, see);
source.addEventListener("close", () => {
  source.close();
  fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
});
</script>"""


class Browser:
    """Chromium, on a page of the test's server that collects events."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self.stage = stage
        self.directory = directory
        self.types: list[str] = []
        self.seen: list[Any] = []
        self._arrived = asyncio.Event()
        handlers = {"/": self._page, "/held": self._held, "/favicon.ico": self._nothing}
        stage.app.router.routes.extend(Route(path, handler) for path, handler in handlers.items())
        stage.app.router.routes.append(Route("/seen", self._seen, methods=["POST"]))

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(PAGE % json.dumps(["message", *self.types]))

    async def _held(self, request: Request) -> Response:
        await self._arrived.wait()
        return Response()

    async def _nothing(self, request: Request) -> Response:
        return Response()

    async def _seen(self, request: Request) -> Response:
        self.seen = await request.json()
        self._arrived.set()
        return Response()

    def watch(self, *types: str) -> list[Any]:
        """[type, data, last event id, the data parsed as JSON by the browser] of each event."""
        self.types = list(types)
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.directory}", "--dump-dom"]
        assert CHROMIUM
        process = subprocess.Popen(
            [CHROMIUM, *options, self.stage.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert self.seen, printed.decode(errors="replace")
        return self.seen


@pytest.fixture
def browser(stage: Stage, tmp_path: Path) -> Iterator[Browser]:
    """Chromium."""
    routes = [*stage.app.router.routes]
    yield Browser(stage, tmp_path)
    stage.app.router.routes[:] = routes


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian package: chromium)")
CLOSE = sse.event(None, event="close")


@pytest.mark.slow
@needs_chromium
def test_chromium_reads_every_frame(stage: Stage, browser: Browser) -> None:
    """Its EventSource sees types, data of several lines and ids, and none of the comments."""
    pairs = generic_frames()
    stage.answer = lambda: [*(frame for frame, _ in pairs), CLOSE]
    events = browser.watch("token", " token: 語 ", "x", "y", "error")
    assert [tuple(event[:3]) for event in events] == [seen for _, seen in pairs if seen]
    assert next(event[3] for event in events if event[1].startswith("[")) == NASTY


@pytest.mark.slow
@needs_chromium
def test_chromium_comes_back_where_it_was(stage: Stage, browser: Browser) -> None:
    """When the server ends the stream, EventSource asks again, with the id that it saw last."""
    answers = iter(
        [
            [sse.text("first", id="a: 1", retry=1)],
            [sse.text("again"), sse.text("second", id="2")],
            [sse.text("third"), CLOSE],
        ]
    )
    stage.answer = lambda: next(answers)
    events = browser.watch()
    assert [event[1:3] for event in events] == [["first", "a: 1"], ["again", "a: 1"], ["second", "2"], ["third", "2"]]
    assert stage.last_ids == [None, "a: 1", "2"]


@pytest.mark.slow
@needs_chromium
def test_chromium_reads_the_encoders(stage: Stage, browser: Browser) -> None:
    """Chats, completions, responses and messages: its own JSON.parse gives each text as it was."""

    def answer() -> Iterator[bytes]:
        yield from map(chat().content, NASTY)
        yield from map(sse.CompletionStream("cmpl-1", MODEL, CREATED).content, NASTY)
        yield from response_frames()
        yield from message_frames("anthropic")
        yield sse.DONE
        yield CLOSE

    stage.answer = answer
    events = browser.watch("response.output_text.delta", "content_block_delta")
    data = [event[3] for event in events if event[3]]
    found = {
        "chat": [value["choices"][0]["delta"]["content"] for value in data if "delta" in value.get("choices", [{}])[0]],
        "completion": [value["choices"][0]["text"] for value in data if "text" in value.get("choices", [{}])[0]],
        "response": [value["delta"] for value in data if value.get("type") == "response.output_text.delta"],
        "message": [value["delta"]["text"] for value in data if "text" in (value.get("delta") or "")],
    }
    assert found == {"chat": NASTY, "completion": NASTY, "response": [*NASTY, "and"], "message": NASTY}
    assert events[-1][1] == "[DONE]"
