"""tailwatch._hot.Send by itself: what it reads off ASGI messages, and that nothing an app does upsets it."""

from __future__ import annotations

import asyncio
import builtins
import copy
import gc
import gzip
import json
import pickle
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.asgi.middleware import timed_send
from tailwatch.asgi.routes import Routes

MS = 1_000_000
ROUTE = "/v1/chat/completions"
NO_SLO = (0, 0, 0, 0, 990_000)
SSE, JSON = b"text/event-stream", b"application/json"


def make_core(slo: tuple[int, int, int, int, int] = NO_SLO, route_of: Callable[[Any], str] | None = None) -> _hot.Core:
    return _hot.Core("api", 8, slo, 0, route_of or (lambda scope: ROUTE), timed_send)


class Exchange:
    """One scope with a Send on it; `sent` is what reached the server."""

    def __init__(self, core: _hot.Core, kind: str = "http", *, known: bool = True, **options: Any) -> None:
        self.core = core
        self.sent: list[Any] = []
        self.scope = {"type": kind, "path": "/", "root_path": "", "headers": [], "method": "POST"} | options.get(
            "scope", {}
        )
        now = _hot.now()
        arrival = now - options.get("waited", 0)
        flow = options.get("flow", SimpleNamespace(write_paused=False))
        websocket = kind == "websocket"
        self.send = core.request(self.scope, self._inner, known, arrival, now, 0, 1, flow, websocket)
        self.stream = self.send.stream

    def _inner(self, message: Any) -> Any:
        self.sent.append(message)
        return "handed on"

    def put(self, message: Any) -> None:
        """It goes on unchanged, and what the server's send returned comes back."""
        assert self.send.send(message) == "handed on"  # type: ignore[comparison-overlap]
        assert self.sent[-1] is message

    def start(self, content_type: bytes = SSE, status: int = 200, **headers: bytes) -> Exchange:
        more = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        self.put({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *more]})
        return self

    def body(self, body: Any = b"", more: Any = True) -> None:
        self.put({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def seen(self) -> snapshots.Snapshot:
        return snapshots.take([self.core.address])

    @property
    def verdicts(self) -> list[str]:
        return verdicts(self.core)


def verdicts(core: _hot.Core) -> list[str]:
    """The reasons of all requests that ended, each as often as it was given."""
    return [reason for reason, n in snapshots.take([core.address]).requests.items() for _ in range(n)]


def chunk(text: str = "x", choice: int = 0, model: str = "m", **more: Any) -> bytes:
    frame = {"model": model, "choices": [{"index": choice, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(frame).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


# ---- what a message holds ----


def test_several_choices_in_one_message_make_one_gap() -> None:
    """Events of many choices that are handed over at once: one gap, tokens and TPOT for each choice."""
    http = Exchange(make_core()).start()
    for _ in range(3):
        http.body(chunk(choice=0) + chunk(choice=1) + chunk(choice=2))
        time.sleep(0.001)
    http.body(DONE, more=False)
    seen = http.seen
    assert (seen.ttft.count, seen.itl.count, seen.tpot.count, seen.tokens) == (1, 2, 3, 9)
    assert (seen.itl.min or 0) >= 0.001


def test_tpot_is_unknown_when_all_came_in_one_message() -> None:
    """An answer whose tokens came at once has no time per token, whatever count the server reports."""
    http = Exchange(make_core((0, 1, 0, 0, 990_000))).start()
    http.body(chunk("all of it", usage={"completion_tokens": 50}))
    http.body(DONE, more=False)
    assert (http.seen.tokens, http.seen.e2e.count, http.seen.tpot.count) == (50, 1, 0)
    assert http.verdicts == ["good"]


def test_an_event_longer_than_is_kept_is_counted() -> None:
    """Split over messages and past 4096 bytes it counts by its beginning, as one token; in one message it is whole."""
    http = Exchange(make_core()).start()
    long = chunk("x" * 5000)
    http.body(long)
    assert http.seen.drops["event_truncated"] == 0
    for begin in range(0, len(long), 1000):
        http.body(long[begin : begin + 1000])
    http.body(chunk())
    assert (http.seen.drops["event_truncated"], http.seen.tokens) == (1, 3)


@pytest.mark.parametrize(
    ("content_type", "encoding", "parts"),
    [
        (JSON, b"identity", [b'{"choices":[{"message"', b':{"content":"x"}}]}']),
        (SSE, b"gzip", [gzip.compress(chunk()), gzip.compress(DONE)]),
        (SSE, b"identity", [b": ping\n\n", DONE]),
        (SSE, b"identity", [b"", b""]),
    ],
    ids=["not streamed", "compressed", "no token", "empty"],
)
def test_the_ttft_bound_of_an_answer_without_tokens(content_type: bytes, encoding: bytes, parts: list[bytes]) -> None:
    """Where no token can be seen the first bytes are what the bound is judged by, and where none came the end."""
    core = make_core((50 * MS, 0, 0, 0, 990_000))
    late = Exchange(core, waited=51 * MS).start(content_type, content_encoding=encoding)
    late.body(parts[0])
    late.body(parts[1], more=False)
    assert verdicts(core) == ["late"]
    prompt = Exchange(core).start(content_type, content_encoding=encoding)
    prompt.body(parts[0])
    in_time = prompt.stream.arrival_ns + 50 * MS >= _hot.now()
    time.sleep(0.060)
    prompt.body(parts[1], more=False)
    assert verdicts(core) == (["good", "late"] if parts[0] and in_time else ["late", "late"])
    assert prompt.seen.ttft.count == 0


@pytest.mark.parametrize("status", [300, 302, 307, 399])
def test_a_redirect_is_excluded(status: int) -> None:
    """A client that is sent elsewhere was neither served nor let down: no verdict against the bounds, no E2E."""
    http = Exchange(make_core((1, 0, 0, 1, 990_000))).start(JSON, status)
    http.body(b"elsewhere", more=False)
    assert http.verdicts == ["3xx"]
    assert (http.seen.outcomes, http.seen.e2e.count) == ({"good": 0, "miss": 0, "excluded": 1}, 0)


@pytest.mark.parametrize("how", ["disconnected", "cancelled", "returned"])
def test_a_client_that_leaves_after_the_end_marker_was_served(how: str) -> None:
    """After data: [DONE] nothing is missing: the request is good, and took until then."""
    http = Exchange(make_core()).start()
    http.body(chunk())
    http.body(DONE)
    marked = _hot.now()
    time.sleep(0.010)
    if how == "disconnected":
        http.send.disconnected()
    else:
        http.send.finish(asyncio.CancelledError() if how == "cancelled" else None)
    assert http.verdicts == ["good"]
    assert http.seen.e2e.count == 1
    assert (http.seen.e2e.max or 0) * 1e9 <= marked - http.stream.arrival_ns + 1


@pytest.mark.parametrize(("how", "reason"), [("disconnected", "abort_early"), ("returned", "error")])
def test_a_client_that_leaves_before_it_was_not(how: str, reason: str) -> None:
    """The control: without an end marker a disconnect is an abort, and an app that just returns an error."""
    http = Exchange(make_core()).start()
    http.body(chunk())
    if how == "disconnected":
        http.send.disconnected()
    else:
        http.send.finish(None)
    assert (http.verdicts, http.seen.e2e.count) == ([reason], 0)


class Group(BaseException):
    """What CPython 3.10 has from a backport."""

    def __init__(self, message: str, exceptions: list[BaseException]) -> None:
        super().__init__(message)
        self.exceptions = tuple(exceptions)


GROUPS = [Group, *([builtins.BaseExceptionGroup] if hasattr(builtins, "BaseExceptionGroup") else [])]
CANCELLED, FAILED, TIMED_OUT = asyncio.CancelledError(), RuntimeError(), TimeoutError()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([CANCELLED], "abort_early"),
        ([CANCELLED, [CANCELLED, GeneratorExit()]], "abort_early"),
        ([TIMED_OUT, [TIMED_OUT]], "timeout"),
        ([FAILED], "error"),
        ([CANCELLED, FAILED], "error"),
        ([CANCELLED, [CANCELLED, FAILED]], "error"),
        ([CANCELLED, TIMED_OUT], "error"),
    ],
    ids=["cancelled", "nested", "timeouts", "failed", "mixed", "mixed inside", "timeout and cancelled"],
)
def test_a_group_ends_a_request_as_its_members_do(group: Any, members: list[Any], reason: str) -> None:
    """A task group that was only cancelled is an abort; where its members differ it is an error."""

    def grouped(members: list[Any]) -> BaseException:
        made: BaseException = group("", [grouped(each) if isinstance(each, list) else each for each in members])
        return made

    http = Exchange(make_core()).start()
    http.send.finish(grouped(members))
    assert http.verdicts == [reason]


def test_bounds_that_change_while_a_request_waits() -> None:
    """It is judged by those it opened with, and missed deadlines are counted against no others."""
    core = make_core((MS, MS, 0, 0, 990_000))
    strict = Exchange(core, waited=5 * MS).start()
    core.configure(NO_SLO, 0)
    free = Exchange(core, waited=5 * MS).start()
    core.configure((0, MS, 0, 0, 990_000), 0)
    for http in (strict, free):
        http.body(chunk())
        http.body(DONE, more=False)
    assert strict.verdicts == ["good", "late"]
    assert strict.seen.fluidity == 0


# ---- which scopes count ----


def test_a_get_that_streams_is_no_answer() -> None:
    """An event feed on an unknown route is not counted, and named by its scope; a POST there is, and teaches it."""
    core = make_core()
    named = []
    for method in ("GET", "HEAD", "POST"):
        http = Exchange(core, known=False, scope={"method": method}).start()
        http.body(chunk())
        http.body(more=False)
        named.append((http.scope, core.streamed()))
    assert (core.opened, verdicts(core)) == (1, ["good"])
    (scope, found), (_, nothing), (_, route) = named
    assert found == [scope] and nothing == [] and route == [ROUTE]


def test_no_more_scopes_are_kept_than_can_be_named() -> None:
    """Once the list of those that are not counted is full."""
    core = make_core()
    assert core.streamed(True) == []
    http = Exchange(core, known=False, scope={"method": "GET"}).start()
    http.body(chunk())
    http.body(more=False)
    assert core.streamed() == []


@pytest.mark.parametrize(
    ("content_type", "headers", "pieces", "named"),
    [
        (b"text/plain", {}, 3, True),
        (b"application/octet-stream", {}, 9, False),
        (b"text/plain", {}, 2, False),
        (b"text/plain", {"content_length": b"3"}, 3, False),
        (b"text/html", {}, 3, False),
        (JSON, {}, 3, False),
    ],
)
def test_pieces_of_an_unknown_kind_are_named(
    content_type: bytes, headers: dict[str, bytes], pieces: int, named: bool
) -> None:
    """Once, from the third on; a page, a file of known length and a body in two parts are none."""
    core = make_core()
    http = Exchange(core, known=False).start(content_type, **headers)
    for _ in range(pieces):
        http.body(b"x")
    http.body(more=False)
    assert core.streamed() == ([http.scope] if named else []) and core.opened == 0


def test_a_get_that_routes_names_counts() -> None:
    """routes= asks for it by name: whatever the method."""
    core, routes = make_core(), Routes(["/feed"])
    scope = {"path": "/feed", "method": "GET"}
    known = routes.generates({"type": "http", "root_path": "", **scope})
    http = Exchange(core, known=known, scope=scope).start()
    http.body(chunk())
    http.body(more=False)
    assert (core.opened, verdicts(core), http.seen.tokens) == (1, ["good"], 1)


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_messages_of_the_other_protocol_are_ignored(kind: str) -> None:
    """They go on to the server, which handles them; nothing is read off them."""
    exchange = Exchange(make_core(), kind)
    if kind == "http":
        exchange.put({"type": "websocket.accept"})
        exchange.put({"type": "websocket.send", "text": chunk().decode()})
        exchange.put({"type": "websocket.close"})
    else:
        exchange.start()
        exchange.put({"type": "http.response.start", "status": 200, "headers": []})
        exchange.body(chunk(), more=False)
    assert (exchange.seen.tokens, exchange.verdicts) == (0, [])
    assert exchange.seen.in_flight == (kind == "http")
    exchange.send.finish(None)
    assert exchange.seen.in_flight == 0


# ---- WebSockets ----


def test_a_websocket_turned_away_is_a_request() -> None:
    """Closed before it was accepted the client gets a 403; an HTTP answer instead has its status."""
    core = make_core()
    closed = Exchange(core, "websocket")
    closed.put({"type": "websocket.close", "code": 1000})
    assert verdicts(core) == ["4xx"]
    busy = Exchange(core, "websocket")
    busy.put({"type": "websocket.http.response.start", "status": 429, "headers": []})
    busy.put({"type": "websocket.http.response.body", "body": b""})
    for exchange in (closed, busy):
        exchange.send.disconnected()
        exchange.send.finish(None)
    assert sorted(verdicts(core)) == ["429", "4xx"]
    assert (core.opened, core.in_flight) == (2, 0)


def test_a_websocket_closed_after_it_was_accepted_is_none() -> None:
    """The control: a client that was let in and sent nothing asked for nothing."""
    ws = Exchange(make_core(), "websocket")
    ws.put({"type": "websocket.accept"})
    ws.put({"type": "websocket.close", "code": 1000})
    ws.send.finish(None)
    assert (ws.core.opened, ws.verdicts) == (0, [])


@pytest.mark.parametrize("marker", ["[DONE]", '{"type":"response.completed"}', '{"type":"message_stop"}'])
def test_a_turn_ends_at_its_end_marker(marker: str) -> None:
    """What was sent is sent: the request is over before the client sends again, good, and none is in flight."""
    ws = Exchange(make_core(), "websocket")
    ws.put({"type": "websocket.accept"})
    for turn in range(1, 3):
        ws.send.turn()
        assert ws.seen.in_flight == 1
        for _ in range(3):
            ws.put({"type": "websocket.send", "text": chunk().decode()[6:].strip()})
        ws.put({"type": "websocket.send", "text": marker})
        assert (ws.seen.in_flight, ws.verdicts) == (0, ["good"] * turn)
    ws.send.disconnected()
    ws.send.finish(None)
    assert (ws.verdicts, ws.seen.tokens, ws.seen.e2e.count) == (["good"] * 2, 6, 2)
    assert not any(ws.seen.drops.values())


def test_each_turn_reads_its_own_model() -> None:
    """A client may ask another model each time: the label is the one of its own answer."""
    ws = Exchange(make_core(), "websocket")
    for model in ("a", "b", ""):
        ws.send.turn()
        event = {"choices": [{"index": 0, "delta": {"content": "x"}}]} | ({"model": model} if model else {})
        ws.put({"type": "websocket.send", "bytes": json.dumps(event).encode()})
    ws.send.disconnected()
    assert set(ws.seen.labels) == {("a", ROUTE), ("b", ROUTE), ("unknown", ROUTE)}
    for model in ("a", "b", "unknown"):
        assert ws.seen.where(model_name=model).requests["good"] == 1


# ---- stamped by hand ----


@pytest.mark.parametrize("moment", ["before", "after"], ids=["before the start", "after the start"])
@pytest.mark.parametrize("answer", [JSON, SSE, b"text/plain"])
def test_stamps_by_hand_open_a_request_on_an_unknown_route(moment: str, answer: bytes) -> None:
    """A stamp makes it count: opened, labelled, ended by the answer; only these stamps count."""
    http = Exchange(make_core(), known=False, scope={"method": "GET"})
    if moment == "before":
        http.stream.token(2)
    http.start(answer)
    if moment == "after":
        http.stream.token(2)
    assert http.core.in_flight == 1
    http.body(chunk())
    http.stream.token()
    http.body(more=False)
    assert (http.verdicts, http.seen.tokens, http.seen.labels) == (["good"], 3, [("unknown", ROUTE)])
    assert http.core.in_flight == 0


def test_the_status_of_an_answer_stamped_before_it() -> None:
    """A request that stamps opened is judged by the status that follows."""
    http = Exchange(make_core(), known=False)
    http.stream.token()
    http.start(JSON, 503).body(b"{}", more=False)
    assert http.verdicts == ["5xx"]


def use(stream: _hot.Stream) -> None:
    """Everything an app can do to a stream."""
    stream.token()
    stream.token(3, choice=2)
    stream.usage(7)
    stream.status(200)
    stream.label("m", "/r")
    stream.record_send_wait(0, 5)
    stream.end(None)
    stream.close()
    assert (stream.closed, stream.tokens, stream.ttft_ns, stream.delay_ns) is not None


def test_a_request_that_was_never_opened_takes_anything() -> None:
    """A plain answer on an unknown route that ended, stamped too late or when its Send is gone: nothing happens."""
    core = make_core()
    for moment in ("ended", "finished", "gone"):
        http = Exchange(core, known=False, scope={"method": "GET"})
        http.start(JSON)
        http.body(b"{}", more=False)
        if moment == "finished":
            http.send.finish(None)
        if moment == "ended":
            http.send.disconnected()
        stream = http.stream
        if moment == "gone":
            del http
            gc.collect()
        use(stream)
    assert (core.opened, core.in_flight, verdicts(core)) == (0, 0, [])
    assert snapshots.take([core.address]).tokens == 0


def test_a_request_that_ended_takes_no_stamps() -> None:
    """Late stamps are counted and dropped, with its Send and when that is gone."""
    core = make_core()
    http = Exchange(core).start()
    http.body(chunk())
    http.body(DONE, more=False)
    stream = http.stream
    stream.token()
    del http
    gc.collect()
    stream.token()
    seen = snapshots.take([core.address])
    assert (seen.tokens, seen.drops["out_of_order_stamp"], verdicts(core)) == (1, 2, ["good"])


def test_a_send_that_dies_leaves_its_stream() -> None:
    """An open stream goes on without it, and what is not ended is an abort."""
    core = make_core()
    http = Exchange(core).start()
    stream = http.stream
    del http
    gc.collect()
    stream.token()
    stream.token()
    assert (stream.tokens, core.in_flight) == (2, 1)
    del stream
    assert (verdicts(core), core.in_flight) == (["abort_early"], 0)


def test_stamps_by_hand_on_a_websocket() -> None:
    """Before the first message of the client they open a request; then each turn has its own stamps."""
    ws = Exchange(make_core(), "websocket")
    ws.stream.token()
    assert ws.core.in_flight == 1
    ws.put({"type": "websocket.send", "text": chunk().decode()[6:]})  # theirs count, ours no more
    ws.send.turn()
    assert (ws.verdicts, ws.seen.tokens) == (["good"], 1)
    ws.stream.token()
    ws.stream.token()
    ws.send.disconnected()
    assert (ws.verdicts, ws.seen.tokens, ws.seen.in_flight) == (["good", "good"], 3, 0)
    assert set(ws.seen.labels) == {("unknown", ROUTE)}


def test_copies_of_a_scope() -> None:
    """What an app does with its scope works as without us: a copy has the same stream, a pickle None."""
    http = Exchange(make_core())
    http.scope["tailwatch"] = http.stream
    assert copy.copy(http.scope)["tailwatch"] is http.stream
    assert copy.copy(http.stream) is copy.deepcopy(http.stream) is http.stream
    assert copy.deepcopy(http.scope)["tailwatch"] is http.stream
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(http.scope, protocol)) == {**http.scope, "tailwatch": None}
    http.body(chunk())
    assert http.core.opened == 1


# ---- hostile and unlucky apps ----


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("key", ["type", "body", "more_body", "status", "headers", "text", "bytes"])
def test_a_key_that_empties_its_message(kind: str, key: str) -> None:
    """A key whose comparison drops what is being looked at: the message goes on as it is, nothing breaks."""

    asked = ("type", "body", "more_body", "status", "headers") if kind == "http" else ("type", "text", "bytes")
    dropped, armed = [], False

    class Dropping:
        def __hash__(self) -> int:
            return hash(key)

        def __eq__(self, other: object) -> bool:
            if armed:
                message.clear()
            return False

    def contents() -> list[dict[str, Any]]:
        if kind == "websocket":
            return [{"bytes": b"y" * 999} if key == "bytes" else {"text": "x" * 999}]
        return [
            {"status": 200, "headers": [(b"content-type", SSE)]},
            {"body": bytearray(chunk() * 99), "more_body": True},
        ]

    exchange = Exchange(make_core(), kind)
    for number, name in enumerate(
        ["http.response.start", "http.response.body"] if kind == "http" else ["websocket.send"]
    ):
        armed = False
        message: dict[Any, Any] = {Dropping(): None}
        message |= {**contents()[number], "type": "".join([*name])}  # nothing else holds what it holds
        armed = True
        exchange.put(message)
        dropped.append(not message)
    exchange.send.finish(None)
    assert exchange.core.in_flight == 0
    assert any(dropped) is (key in asked)


def test_a_truth_that_empties_its_message() -> None:
    """more_body may be any object: one whose truth drops the message is asked and survived."""

    class Truth:
        def __bool__(self) -> bool:
            message.clear()
            return True

    http = Exchange(make_core()).start()
    message: dict[str, Any] = {"type": "http.response.body", "body": chunk() * 2, "more_body": Truth()}
    http.put(message)
    http.body(chunk(), more=False)
    assert http.verdicts == ["good"]


@pytest.mark.parametrize(
    "body", ["text", 7, None, [1], memoryview(b"abc")[::2], object()], ids=lambda body: type(body).__name__
)
def test_bodies_of_any_kind_go_on(body: Any) -> None:
    """What no server takes is the server's to refuse."""
    for content_type in (SSE, JSON):
        http = Exchange(make_core()).start(content_type)
        http.body(body)
        http.body(more=False)
        assert http.verdicts == ["good"]


@pytest.mark.parametrize("route", ["\ud800", 7, None])
def test_a_route_that_is_no_label(route: Any) -> None:
    """It counts as unmatched."""
    http = Exchange(make_core(route_of=lambda scope: route)).start()
    http.body(chunk())
    assert http.seen.labels == [("m", "unmatched")]


def test_a_websocket_text_that_cannot_be_encoded() -> None:
    """A lone surrogate: the server raises."""
    ws = Exchange(make_core(), "websocket")
    ws.send.turn()
    ws.put({"type": "websocket.send", "text": "\ud800"})
    assert ws.seen.in_flight == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_inside_our_label_comes_out(error: type[BaseException]) -> None:
    """What a signal handler raised while we looked at the route is the app's; the message was not handed on."""

    def route_of(scope: Any) -> str:
        raise error("now")

    http = Exchange(make_core(route_of=route_of)).start()
    with pytest.raises(error, match="now"):
        http.send.send({"type": "http.response.body", "body": chunk(), "more_body": True})
    assert len(http.sent) == 1
    http.body(chunk())
    http.body(DONE, more=False)
    assert (http.verdicts, http.seen.labels) == (["good"], [("m", "unmatched")])


def test_an_exit_at_the_end_comes_out() -> None:
    """finish() and disconnected() let it out as well, and the request has ended."""

    def route_of(scope: Any) -> str:
        raise SystemExit

    core = make_core(route_of=route_of)
    for end in ("finish", "disconnected"):
        http = Exchange(core).start()
        with pytest.raises(SystemExit):
            http.send.finish(None) if end == "finish" else http.send.disconnected()
    assert (core.in_flight, sorted(verdicts(core))) == (0, ["abort_early", "error"])


def test_an_error_inside_our_label_does_not() -> None:
    """An ordinary exception of ours stays here."""

    def route_of(scope: Any) -> str:
        raise LookupError("no route")

    http = Exchange(make_core(route_of=route_of)).start()
    http.body(chunk())
    http.body(DONE, more=False)
    assert (http.verdicts, http.seen.labels) == (["good"], [("m", "unmatched")])


class Flow:
    """A server's flow control whose property raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    @property
    def write_paused(self) -> bool:
        raise self.error("paused")


def test_an_exit_inside_a_flow_property_comes_out() -> None:
    """The message was handed on by then; an ordinary exception stays inside."""
    http = Exchange(make_core(), flow=Flow(SystemExit))
    with pytest.raises(SystemExit, match="paused"):
        http.send.send({"type": "http.response.start", "status": 200, "headers": []})
    assert len(http.sent) == 1
    Exchange(make_core(), flow=Flow(ValueError)).start().body(chunk(), more=False)


# ---- timed sends ----


def test_a_timed_send_returns_what_the_inner_one_did() -> None:
    """Its result, and its exception; what it waited is booked."""
    core = make_core()
    stream = core.stream("m", "r", None, "", "")

    async def inner(error: Exception | None) -> Any:
        await asyncio.sleep(0.002)
        if error is not None:
            raise error
        return "result"

    assert asyncio.run(timed_send(inner(None), stream)) == "result"
    with pytest.raises(OSError, match="gone"):
        asyncio.run(timed_send(inner(OSError("gone")), stream))
    seen = snapshots.take([core.address])
    assert seen.send_wait.count == 1
    assert (seen.send_wait.min or 0) >= 0.002


def test_sampled_sends_return_what_the_inner_one_did() -> None:
    """Where a server does not show that a send will wait, one in sixteen is timed; the app cannot see which."""
    core, number = make_core(), iter(range(100))

    async def inner(message: Any) -> int:
        return next(number)

    async def app() -> list[Any]:
        now = _hot.now()
        sender = core.request({"type": "http", "headers": []}, inner, True, now, now, 0, 1, None, False)
        message = {"type": "http.response.body", "body": chunk(), "more_body": True}
        send: Any = sender.send
        return [await send(message) for _ in range(33)]

    assert asyncio.run(app()) == list(range(33))
    assert snapshots.take([core.address]).send_wait.count == 2
