"""The page over real sockets: which client gets what, where it stands, and that it is nothing until it is asked for."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import tailwatch
from tailwatch.runtime.install import autoinstall_app

from ..asgi.test_arrival_live import hypercorn_server
from ..support.process import Python, clean_environment
from ..support.waiting import until

pytestmark = pytest.mark.integration

TOKEN = "correct-horse-battery-staple"
FRAME = b'data: {"id":"c","model":"m","choices":[{"index":0,"text":" t","finish_reason":null}]}\n\n'


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Streams ten tokens; anything but /v1/completions is a 404."""
    found = scope["path"] == "/v1/completions"
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    for _ in range(10 if found else 0):
        await send({"type": "http.response.body", "body": FRAME, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if found else b"not here", "more_body": False})


@pytest.fixture
def install() -> Iterator[Callable[..., Any]]:
    """install(**options): what to serve; all is put back after the test."""
    yield lambda what=app, **options: tailwatch.install(what, gc="observe", **options).app
    tailwatch.uninstall()


class Answer:
    """Of one request on a connection of its own."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def numbers(self) -> dict[str, Any]:
        """What the data endpoint answered."""
        page_data: dict[str, Any] = json.loads(self.body)
        return page_data


def get(
    server: Any, path: str = "/tailwatch/data", *headers: str, method: str = "GET", host: str = "127.0.0.1"
) -> Answer:
    """One request, with this Host."""
    lines = "".join(f"{line}\r\n" for line in (f"Host: {host}", "Connection: close", *headers))
    return Answer(server.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")))


def test_off_until_it_is_asked_for(install: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app answers, as it would without us; a token alone, in the environment, asks for nothing."""
    monkeypatch.setenv("TAILWATCH_PAGE_TOKEN", TOKEN)
    server = serve(install())
    for path in ("/tailwatch", "/tailwatch/data"):
        answer = get(server, path, f"Authorization: Bearer {TOKEN}")
        assert (answer.status, answer.body.strip(b"\r\n0123456789")) == (404, b"not here")


def test_the_page_and_its_numbers(install: Any, serve: Any, flavour: dict[str, str]) -> None:
    """A document, and what it asks for; HEAD has the same headers and nothing after them."""
    server = serve(install(page=True), **flavour)
    server.http("/v1/completions")
    document, data = get(server, "/tailwatch"), get(server)
    assert (document.status, data.status) == (200, 200)
    assert document.headers["content-type"] == "text/html; charset=utf-8"
    assert document.body.startswith(b"<!doctype html>") and document.body.rstrip().endswith(b"</html>")
    assert data.headers["content-type"] == "application/json"
    assert data.numbers["tokens"] > 0 and data.numbers["latency"]["itl"]["count"] == 9
    for path, whole in (("/tailwatch", document), ("/tailwatch/data", data)):
        head = get(server, path, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers.items() >= {name: whole.headers[name] for name in ("content-type", "cache-control")}.items()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_get_and_head(method: str, install: Any, serve: Any) -> None:
    """Everything else is the app's business; no answer of ours allows another origin anything."""
    server = serve(install(page=True))
    answer = get(server, "/tailwatch/data", "Origin: http://evil.example", "Content-Length: 0", method=method)
    assert answer.status == 404 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/tailwatch/", "/tailwatch/x", "/tailwatchx", "/x/tailwatch", "/tailwatch/data/", "//"]
)
def test_other_paths_are_the_apps(path: str, install: Any, serve: Any) -> None:
    """The paths are exact."""
    assert get(serve(install(page=True)), path).status == 404


FROM_ELSEWHERE = [
    (("X-Forwarded-For: 127.0.0.1",), "127.0.0.1"),
    (("Forwarded: for=127.0.0.1",), "127.0.0.1"),
    (("X-Real-IP: 127.0.0.1",), "127.0.0.1"),
    (("Via: 1.1 proxy",), "127.0.0.1"),
    ((), "evil.example"),
    ((), "127.0.0.1.evil.example"),
    (("Sec-Fetch-Site: cross-site",), "127.0.0.1"),
]


@pytest.mark.parametrize(("headers", "host"), FROM_ELSEWHERE)
def test_a_client_from_elsewhere_gets_nothing(headers: tuple[str, ...], host: str, install: Any, serve: Any) -> None:
    """Neither the numbers nor the document; nothing of the request comes back."""
    server = serve(install(page=True))
    server.http("/v1/completions")
    for path in ("/tailwatch", "/tailwatch/data?window=<script>"):
        answer = get(server, path, *headers, host=host)
        assert answer.status == 403 and answer.headers["content-type"].startswith("text/plain")
        assert len(answer.body) < 200
        for part in (b"script", host.encode() if "evil" in host else b"\0", b"proxy"):
            assert part not in answer.body


def test_uvicorn_takes_the_proxys_header_and_we_do_not(install: Any, serve: Any) -> None:
    """With proxy headers trusted from everywhere the peer's address is the client's own word."""
    server = serve(install(page=True), proxy_headers=True, forwarded_allow_ips="*")
    assert get(server, "/tailwatch/data", "X-Forwarded-For: 127.0.0.1").status == 403
    assert get(server).status == 200


def test_http_1_0_is_a_proxy_without_settings(install: Any, serve: Any) -> None:
    """nginx without settings: HTTP/1.0, no word of itself."""
    server = serve(install(page=True))
    answer = Answer(server.raw(b"GET /tailwatch/data HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"))
    assert answer.status == 403


def test_on_a_unix_socket_it_takes_a_token(install: Any, tmp_path: Path) -> None:
    """Behind one there is a proxy more often than a person."""
    import asyncio

    import uvicorn

    def answers(**options: Any) -> list[int]:
        served = install(page=True, **options)
        place = str(tmp_path / f"socket-{len(options)}")
        server = uvicorn.Server(uvicorn.Config(served, uds=place, log_config=None, lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        until(lambda: server.started)
        statuses = []
        for more in ("", f"Authorization: Bearer {TOKEN}\r\n"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(place)
                connection.sendall(
                    f"GET /tailwatch/data HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n".encode()
                )
                statuses.append(int(connection.recv(65536).split()[1]))
        server.should_exit = True
        thread.join(30)
        tailwatch.uninstall()
        return statuses

    assert answers() == [403, 403]
    assert answers(page_token=TOKEN) == [401, 200]


def test_the_token_is_asked_for_and_opens(install: Any, serve: Any) -> None:
    """From everywhere, by any name, through any proxy; the document that asks for it has no number."""
    server = serve(install(page=True, page_token=TOKEN))
    server.http("/v1/completions")
    through = ("X-Forwarded-For: 203.0.113.9",)
    for wrong in ((), ("Authorization: Bearer x",), ("Authorization: Basic dTpw",), (f"Authorization: {TOKEN}",)):
        data, document = get(server, "/tailwatch/data", *wrong), get(server, "/tailwatch", *wrong)
        assert (data.status, document.status) == (401, 401)
        assert data.headers["www-authenticate"] == 'Bearer realm="tailwatch"'
        assert b'data-access="locked"' in document.body and TOKEN.encode() not in document.body
    assert get(server, f"/tailwatch/data?token={TOKEN}").status == 401
    right = f"Authorization: Bearer {TOKEN}"
    assert get(server, "/tailwatch/data", right, *through, host="llm.example").numbers["opened"] == 1
    assert get(server, "/tailwatch", right).status == 200


async def theirs(request: Any) -> PlainTextResponse:
    """An app's own page."""
    return PlainTextResponse("theirs")


WITH_OWN: list[Callable[[], Any]] = [
    lambda: Starlette(routes=[Route("/tailwatch", theirs)]),
    lambda: Starlette(routes=[Mount("/tailwatch", PlainTextResponse("theirs"))]),
    lambda: Starlette(
        routes=[Mount("/", Starlette(routes=[Route("/tailwatch", lambda r: PlainTextResponse("theirs"))]))]
    ),
]


@pytest.mark.parametrize("make", WITH_OWN)
def test_an_apps_own_page_stays(make: Any, install: Any, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Ours is at the other path, which one line of the log has at start-up."""
    with caplog.at_level(logging.INFO, "tailwatch"):
        server = serve(install(make(), page=True))
        theirs = get(server, "/tailwatch")
        assert theirs.body == b"theirs" or theirs.headers["location"].endswith("/tailwatch/")
        assert get(server, "/tailwatch/page").body.startswith(b"<!doctype html>")
        assert get(server, "/tailwatch/page/data").numbers["opened"] == 0
    logged = [record.getMessage() for record in caplog.records if "page" in record.getMessage()]
    (line,) = logged
    assert "at /tailwatch: " in line and line.endswith("at /tailwatch/page")


def test_an_apps_own_route_is_no_news_while_the_page_is_off(
    install: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It was not asked for."""
    with caplog.at_level(logging.INFO, "tailwatch"):
        assert get(serve(install(WITH_OWN[0]())), "/tailwatch").body == b"theirs"
    assert not [record for record in caplog.records if "page" in record.getMessage()]


def test_below_a_root_path_and_a_mount(install: Any, serve: Any, ask: Any) -> None:
    """The path counts from where the app stands, with the prefix or without it."""
    inner = install(Starlette(), page=True)
    for path in ("/tailwatch/data", "/api/tailwatch/data"):
        assert ask(inner, path, method="GET", root_path="/api", headers=[(b"host", b"localhost")]).status == 200
    assert get(serve(inner, root_path="/api")).status == 200
    outer = serve(Starlette(routes=[Mount("/in", inner)]))
    assert get(outer, "/in/tailwatch").status == 200 and get(outer, "/tailwatch").status == 404


def test_beside_the_metrics(install: Any, serve: Any) -> None:
    """Each with its own path, and the page without the metrics, too."""
    server = serve(install(page=True))
    assert get(server, "/metrics").status == 200
    tailwatch.uninstall()
    server = serve(install(page=True, metrics_path=""))
    assert (get(server, "/metrics").status, get(server).status) == (404, 200)
    tailwatch.uninstall()
    server = serve(install(page=True, metrics_path="/tailwatch"))
    assert get(server, "/tailwatch").headers["content-type"].startswith("text/plain; version=")
    assert get(server, "/tailwatch/page").body.startswith(b"<!doctype html>")


def test_nothing_is_left_of_it(install: Any, serve: Any) -> None:
    """After uninstall() the path is the app's, in a server that goes on."""
    server = serve(install(Starlette(), page=True))
    assert get(server).status == 200
    tailwatch.uninstall()
    assert get(server).status == get(server, "/tailwatch").status == 404


def test_closed_it_does_nothing(install: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is not asked for no number is taken for it, and no request to another path comes near it."""
    server = serve(install(page=True))
    page = tailwatch.current().page
    calls: list[str] = []
    for name in ("_take", "token", "reply"):
        whole = getattr(page, name)

        def counting(*given: Any, _name: str = name, _whole: Any = whole) -> Any:
            calls.append(_name)
            return _whole(*given)

        monkeypatch.setattr(page, name, counting)
    for _ in range(5):
        server.http("/v1/completions")
        assert get(server, "/health").status == 404
        assert get(server, "/metrics").status == 200
    assert calls == []
    assert get(server).status == 200
    assert sorted(set(calls)) == ["_take", "reply", "token"]


def test_off_the_loop(install: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the numbers are made streams go on."""
    server = serve(install(page=True))
    page = tailwatch.current().page
    began, go_on = threading.Event(), threading.Event()
    whole = page._take

    def slow() -> Any:
        began.set()
        assert go_on.wait(30)
        return whole()

    monkeypatch.setattr(page, "_take", slow)
    answers: list[Answer] = []
    viewer = threading.Thread(target=lambda: answers.append(get(server)))
    viewer.start()
    assert began.wait(30)
    assert server.http("/v1/completions")[0] == 200
    go_on.set()
    viewer.join(30)
    assert answers[0].numbers["opened"] == 1


def test_an_app_of_many_routes_is_searched_once(install: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the document, and not for the numbers that it asks for every other second."""
    from tailwatch.asgi import page_route as own_route

    searched: list[str] = []
    whole = own_route.has_route
    monkeypatch.setattr(own_route, "has_route", lambda app, path: searched.append(path) or whole(app, path))
    server = serve(install(Starlette(), page=True))
    before = len(searched)
    assert get(server, "/tailwatch").status == 200
    opened = len(searched)
    assert opened > before
    for _ in range(5):
        assert get(server).status == 200
    assert len(searched) == opened


def test_what_goes_wrong_is_a_500_and_counted(install: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer sees the failure, without its words."""
    server = serve(install(page=True))

    def broken() -> Any:
        raise ZeroDivisionError("secret words")

    watch = tailwatch.current()
    monkeypatch.setattr(watch.page, "_take", broken)
    answer = get(server)
    assert answer.status == 500 and answer.body.startswith(b"tailwatch ")
    assert b"ZeroDivision" not in answer.body and b"secret" not in answer.body
    assert watch.snapshot().errors["asgi"] == 1


def test_a_door_first_and_the_page_in_code(serve: Any, install: Any) -> None:
    """`tailwatch run` came first; install(app, page=True) in the app turns the page on."""
    autoinstall_app(inner := Starlette())
    server = serve(inner)
    assert get(server).status == 404
    install(inner, page=True)
    assert get(server).status == 200


def test_a_token_for_nothing_and_a_short_one_are_noted(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the doctor, without the token, where they come from the environment."""
    notes = []
    for page, token in (("0", TOKEN), ("1", "s3cret"), ("1", TOKEN)):
        monkeypatch.setenv("TAILWATCH_PAGE", page)
        monkeypatch.setenv("TAILWATCH_PAGE_TOKEN", token)
        install()
        notes.append([note for note in tailwatch.current().notes if "page_token" in note])
        tailwatch.uninstall()
    assert [len(found) for found in notes] == [1, 1, 0]
    assert "page is off" in notes[0][0] and "6 characters" in notes[1][0] and "s3cret" not in notes[1][0]
    autoinstall_app(inner := Starlette())
    install(inner, page=True, page_token="s3cret")
    assert "6 characters" in "".join(tailwatch.current().notes)


def test_the_token_is_in_no_message(install: Any) -> None:
    """Another install() with another token is refused without showing either."""
    install(page=True, page_token=TOKEN)
    with pytest.raises(tailwatch.AlreadyInstalledError) as caught:
        tailwatch.install(gc="observe", page=True, page_token="another-token")
    assert TOKEN not in str(caught.value) and "another-token" not in str(caught.value)
    assert TOKEN not in repr(tailwatch.current()) + repr(tailwatch.current().config)


def test_run_does_not_print_the_token(tmp_path: Path) -> None:
    """It prints the options that it gives to the command, but for this one."""
    command = [sys.executable, "-m", "tailwatch", "run", f"--page-token={TOKEN}", "--page=1", "--", sys.executable]
    code = "import os; assert os.environ['TAILWATCH_PAGE_TOKEN'] and os.environ['TAILWATCH_PAGE'] == '1'"
    done = subprocess.run([*command, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr and "TAILWATCH_PAGE=1" in done.stderr


# Processes -------------------------------------------------------------------------------------------------

MEMBER = """
import sys, tailwatch
watch = tailwatch.install(role=sys.argv[1], gc="observe")
with tailwatch.stream(model=sys.argv[1]) as stream:
    for _ in range(11):
        stream.token()
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def member(role: str, **variables: str) -> Iterator[None]:
    """A process without an app that streamed eleven tokens."""
    with Python(MEMBER, role, env=clean_environment(**variables)) as process:
        assert process.read_line() == "ready"
        yield
        process.finish()


def test_one_page_for_the_whole_group(install: Any, serve: Any, tmp_path: Path) -> None:
    """The app's process has the engine too, as snapshot() does."""
    group = str(tmp_path / "group")
    server = serve(install(page=True, dir=group))
    with member("engine", TAILWATCH_DIR=group):
        server.http("/v1/completions")
        page_data = get(server, "/tailwatch/data?window=all").numbers
        assert {row["name"] for row in page_data["processes"]} == {"api-0", "engine-0"}
        assert page_data["latency"]["itl"]["count"] == 19 == tailwatch.snapshot().itl.count
        assert page_data["models"] == ["engine", "m"]


class Port:
    """What listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def raw(self, request: bytes) -> bytes:
        """Sends bytes, and reads until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def port() -> Iterator[int]:
    """A port that no other is given meanwhile: it is bound, and nothing listens there."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_under_hypercorn(install: Any) -> None:
    """The same rules: its peers have addresses too."""
    with hypercorn_server(install(page=True)) as bound:
        server = Port(bound)
        assert get(server, "/tailwatch").body.startswith(b"<!doctype html>")
        assert get(server).status == 200
        assert get(server, "/tailwatch/data", "X-Forwarded-For: 127.0.0.1").status == 403
        assert get(server, host="evil.example").status == 403


def test_on_the_metrics_port_if_asked_for(port: int) -> None:
    """A process without an app serves it beside the metrics, by the same rules."""
    server = Port(port)
    with member("engine", TAILWATCH_METRICS_PORT=str(port)):
        assert (get(server).status, get(server, "/metrics").status) == (404, 200)
    with member("engine", TAILWATCH_METRICS_PORT=str(port), TAILWATCH_PAGE="1"):
        assert get(server, "/tailwatch").body.startswith(b"<!doctype html>")
        assert get(server, "/tailwatch/data?window=all").numbers["latency"]["itl"]["count"] == 10
        head = get(server, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        for headers, host in FROM_ELSEWHERE:
            assert get(server, "/tailwatch/data", *headers, host=host).status == 403
        assert get(server, "/tailwatch/data?window=x").status == 400
        assert get(server, "/tailwatch/data", method="POST").status == 501
    with member("engine", TAILWATCH_METRICS_PORT=str(port), TAILWATCH_PAGE="1", TAILWATCH_PAGE_TOKEN=TOKEN):
        assert get(server).status == get(server, "/tailwatch").status == 401
        assert get(server, "/tailwatch/data", f"Authorization: Bearer {TOKEN}").status == 200
