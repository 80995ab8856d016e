"""`tailwatch doctor URL`: a running server shows its numbers to its own machine, and to no other."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import cli
from tailwatch.cli import snapshot_source
from tailwatch.serve import local_auth

pytestmark = pytest.mark.integration

FRAME = b'data: {"id":"c","model":"m","choices":[{"index":0,"text":" t","finish_reason":null}]}\n\n'


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Streams ten tokens, with a slow gap after the sixth; anything but /v1/completions is a 404."""
    found = scope["path"] == "/v1/completions"
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    for i in range(10 if found else 0):
        await send({"type": "http.response.body", "body": FRAME, "more_body": True})
        await asyncio.sleep(0.25 if i == 5 else 0.001)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def greeting(scope: Any, receive: Any, send: Any) -> None:
    """A page at every path."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b"<p>hello"})


@pytest.fixture
def server(serve: Callable[..., Any]) -> Iterator[Any]:
    """A server with tailwatch inside, that has answered one request."""
    watch = tailwatch.install(app, gc="observe", slow_gap_ms=200)
    try:
        served = serve(watch.app)
        served.http("/v1/completions", headers="x-request-id: r-1\r\n")
        yield served
    finally:
        tailwatch.uninstall()


def _get(served: Any, *headers: str) -> bytes:
    lines = "\r\n".join(headers)
    answer: bytes = served.raw(
        f"GET /tailwatch/snapshot HTTP/1.1\r\nhost: x\r\n{lines}\r\nconnection: close\r\n\r\n".encode()
    )
    return answer


def test_doctor_asks_a_running_server(server: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """It prints the headline, the findings, the tail and each slow gap with its request."""
    out = tmp_path / "report.json"
    status = cli.main(["doctor", f"http://127.0.0.1:{server.port}/metrics", "--slow-gaps", "--json", str(out)])
    printed = capsys.readouterr().out

    assert status in (0, 1)
    assert "r-1" in printed
    assert "/v1/completions" in printed
    assert json.loads(out.read_text())["slow"]


def test_doctor_asks_for_a_window(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The last minutes, as the server's own history has them, with the slow gaps that ended in them."""
    url = f"http://127.0.0.1:{server.port}"
    assert cli.main(["doctor", url, "--slow-gaps", "--window", "10m"]) in (0, 1)
    assert "r-1" in capsys.readouterr().out
    with snapshot_source.explained(url):
        assert snapshot_source.read(url, "10m")["snapshot"]["labels"] == [["*", "*"]]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["http://127.0.0.1:9", "--window", "2d"], "1s to 1h"),
        (["numbers.json", "--window", "10m"], "URL of a running server"),
        (["--dir", "/dev/shm", "--window", "10m"], "URL of a running server"),
    ],
)
def test_a_window_that_was_not_kept(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong call, and what is needed."""
    assert cli.main(["doctor", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_a_caller_without_proof_gets_the_apps_own_answer(server: Any, tmp_path: Any) -> None:
    """No proof, a proof that is over, a file that others may read, a link, another place: the app answers."""
    with local_auth.proof() as value:
        name = Path("/tmp") / value.split()[0]
        assert _get(server, f"{local_auth.HEADER}: {value}").startswith(b"HTTP/1.1 200")
        wrong = value[:-1] + ("1" if value[-1] == "0" else "0")
        assert _get(server, f"{local_auth.HEADER}: {wrong}").startswith(b"HTTP/1.1 404")
        assert _get(server, f"{local_auth.HEADER}: ../tmp/{value}").startswith(b"HTTP/1.1 404")
        name.chmod(0o644)
        assert _get(server, f"{local_auth.HEADER}: {value}").startswith(b"HTTP/1.1 404")
        name.chmod(0o600)
        link = Path("/tmp") / f"tailwatch-{secrets.token_hex(4)}"
        link.symlink_to(name)
        try:
            assert _get(server, f"{local_auth.HEADER}: {link.name} {value.split()[1]}").startswith(b"HTTP/1.1 404")
        finally:
            link.unlink()
    assert _get(server, f"{local_auth.HEADER}: {value}").startswith(b"HTTP/1.1 404")
    assert _get(server, "x: y").startswith(b"HTTP/1.1 404")


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and the status of a wrong call."""
    assert cli.main(["doctor", "http://127.0.0.1:9"]) == 2
    assert "cannot connect" in capsys.readouterr().err


def test_a_server_without_tailwatch(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Its own answer is named, and that tailwatch is not there, whether it answers with an error or with a page."""
    found = serve(app)
    greets = serve(greeting)
    for served, answer in ((found, "HTTP 404"), (greets, "it answers text/html")):
        assert cli.main(["doctor", f"127.0.0.1:{served.port}"]) == 2
        assert f"{answer}: tailwatch is not installed there" in capsys.readouterr().err


def test_another_users_server_is_not_one_without_tailwatch(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its metrics are there; without a proof the app answers."""
    monkeypatch.setattr(local_auth, "HEADER", "x-other")
    assert cli.main(["doctor", f"localhost:{server.port}"]) == 2
    assert "only to its own user on the same machine" in capsys.readouterr().err


def test_an_address_needs_no_scheme(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of such a name is a file all the same."""
    name = f"127.0.0.1:{server.port}"
    assert snapshot_source.url_of(name) == f"http://{name}"
    assert cli.main(["doctor", name, "--window", "1m"]) in (0, 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("{}", encoding="utf-8")
    assert snapshot_source.url_of(name) is None and snapshot_source.url_of("numbers.json") is None
