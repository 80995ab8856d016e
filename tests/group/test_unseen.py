"""Servers in which no request is seen: that they are recognised, and that connections to them are noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailwatch.cli.run import UnseenTraffic
from tailwatch.group import unseen
from tailwatch.group.membership import GroupMember
from tailwatch_boot import own_notes

from ..support.ports import free_port
from ..support.process import Process, Tailwatch, clean_environment
from ..support.waiting import until

AIOHTTP = """
import sys
from aiohttp import web
async def answer(request):
    return web.Response(text="ok")
app = web.Application()
app.router.add_post("/x", answer)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
"""
FLASK = """
import sys
from flask import Flask
app = Flask(__name__)
app.post("/x")(lambda: "ok")
app.run("127.0.0.1", int(sys.argv[1]))
"""
GTHREAD = """
import sys
from gunicorn.app.base import BaseApplication
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
class Server(BaseApplication):
    def load_config(self):
        self.cfg.set("bind", "127.0.0.1:" + sys.argv[1])
        self.cfg.set("worker_class", "gthread")
        self.cfg.set("control_socket_disable", True) if "control_socket_disable" in self.cfg.settings else None
    def load(self):
        return app
Server().run()
"""
SANIC = """
import sys
from sanic import Sanic, response
app = Sanic("x")
@app.post("/x")
async def answer(request):
    return response.text("ok")
if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), single_process=True)
"""
TORNADO = """
import asyncio, sys
from tornado import web
class Handler(web.RequestHandler):
    def post(self):
        self.write("ok")
async def main():
    web.Application([("/x", Handler)]).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()
asyncio.run(main())
"""
WAITRESS = """
import sys
from waitress import serve
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
serve(app, host="127.0.0.1", port=int(sys.argv[1]))
"""
UNKNOWN = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


DOCTOR = (sys.executable, "-m", "tailwatch", "doctor")


class Refusing:
    """A core whose group has no room."""

    joined = False
    maps_file = False

    def join(self, directory: str, engine: int) -> str:
        """Why not."""
        return "No space left on device"

    def set_serves(self, engine: int) -> None:
        """Nothing."""

    def set_engine(self, engine: int) -> None:
        """Nothing."""


def ask(port: int) -> bytes:
    """One request; b"" where nothing listens yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionError:
        return b""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("package", "code", "name"),
    [
        ("aiohttp", AIOHTTP, "aiohttp.web is loaded"),
        ("flask", FLASK, "werkzeug (Flask's development server) is loaded"),
        ("gunicorn", GTHREAD, "gunicorn's gthread worker is loaded"),
        ("sanic", SANIC, "sanic's own server is loaded"),
        ("tornado", TORNADO, "tornado is loaded"),
        ("waitress", WAITRESS, "waitress is loaded"),
        ("http", UNKNOWN, "No server that tailwatch recognises is loaded"),
    ],
)
def test_a_server_in_which_nothing_is_seen_is_named(package: str, code: str, name: str, tmp_path: Path) -> None:
    """By the doctor while it runs, by its address or directory, and by `tailwatch run` at the end."""
    pytest.importorskip(package, reason=f"pip install {package}")
    file, log, group, port = tmp_path / "server.py", tmp_path / "log", tmp_path / "group", free_port()
    file.write_text(code, encoding="utf-8")
    group.mkdir(mode=0o700)
    command = [sys.executable, "-m", "tailwatch", "run", f"--dir={group}", "--", sys.executable, str(file), str(port)]
    with log.open("wb") as errors, Process(*command, env=clean_environment(), stderr=errors.fileno()) as server:
        until(lambda: b" 200 " in ask(port), "an answer")
        until(lambda: ask(port) and unseen.read(str(group)).ports == (port,), "the connections to be noticed")
        doctor = subprocess.run(
            [sys.executable, "-m", "tailwatch", "doctor", "--dir", str(group)], capture_output=True, text=True
        )
        server.signal(signal.SIGTERM)
        server.finish()
    assert doctor.returncode == 1 and "No request was seen" in doctor.stdout, doctor.stderr
    *_, last = log.read_text(encoding="utf-8").splitlines()
    for text in (" ".join(doctor.stdout.split()), last):
        assert name in text and f"connections came to port {port}" in text and "tailwatch.stream()" in text


@pytest.mark.integration
def test_a_command_without_connections_is_not_reported(tmp_path: Path) -> None:
    """It imports a server and listens, and no connection comes."""
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(1.2)"
    with Tailwatch("run", "--", sys.executable, "-c", code, env=clean_environment(), stderr=subprocess.PIPE) as run:
        _, errors = run.finish()
    assert "No request" not in errors


def test_connections_from_elsewhere_count() -> None:
    """Open ones and those just closed; not those that a process makes to itself."""
    code = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
own = socket.create_connection(listener.getsockname())
first, _ = listener.accept()
listener.settimeout(20)
print(listener.getsockname()[1], flush=True)
second, _ = listener.accept()
second.recv(1)
second.close()
"""
    with Process(sys.executable, "-c", code) as server:
        port = int(server.read_line())
        connections = unseen.Connections()
        assert connections.look([server.pid]) == set() and connections.listening == {port}
        with socket.create_connection(("127.0.0.1", port)):
            assert connections.look([server.pid]) == {port}
        server.finish()
    assert connections.look([server.pid]) == {port}, "what was closed within the last minute"


@pytest.mark.skipif(os.geteuid() != 0, reason="run as root: only root can become another user")
def test_a_server_that_drops_its_rights_is_another_users() -> None:
    """It cannot join a group of root's: nothing is known of its requests."""
    code = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
print(flush=True), input()
os.setuid(65534)
print(flush=True), input()
"""
    with Process(sys.executable, "-c", code) as server:
        connections = unseen.Connections()
        for others in (False, True):
            server.read_line()
            connections.look([server.pid])
            assert connections.listening and connections.others is others
            server.write("")
        server.finish()


def test_a_file_is_read_with_care(tmp_path: Path) -> None:
    """Lines of other kinds, control characters and links give nothing; Flask's own server gives way to another."""
    (tmp_path / own_notes.own_name()).write_bytes(
        b"server werkzeug (x)\nserver aiohttp.web\nroute GET /\x1b[0m\nport x\nwhat\n"
    )
    (tmp_path / "unseen-8-1-1").symlink_to("/etc/passwd")
    assert unseen.read(str(tmp_path)) == unseen.Unseen(servers=("aiohttp.web",), pids=(os.getpid(),))
    assert unseen.read(str(tmp_path / "none")) == unseen.Unseen()


def test_a_file_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    """A pid that is another's by now is none of the group's; the next one that writes removes the file."""
    group, space = tmp_path / "group", own_notes.namespace()
    own_notes.note(str(group), "route", "GET /feed")
    own_notes.note(str(group), "route", "GET /x\nserver evil")
    own_notes.note(str(group), "route", "GET /\udcff")
    ours = group / own_notes.own_name()
    assert ours.read_bytes() == b"route GET /feed\n" and ours.stat().st_mode & 0o777 == 0o600
    own_notes.forget(str(group))
    for name in (f"unseen-{os.getpid()}-1-{space}", f"unseen-{os.getpid()}-1-{space + 1}"):
        (group / name).write_text("server aiohttp.web\n")
    assert unseen.read(str(group)) == unseen.Unseen(servers=("aiohttp.web",))
    own_notes.note(str(group), "server", "sanic")
    assert {path.name for path in group.iterdir()} == {ours.name, f"unseen-{os.getpid()}-1-{space + 1}"}


def test_nothing_is_written_where_others_may(tmp_path: Path) -> None:
    """In a directory that others may write in, or to a pipe that was put there: at once, without waiting."""
    os.mkfifo(tmp_path / own_notes.own_name())
    for mode in (0o700, 0o770, 0o755):
        tmp_path.chmod(mode)
        with pytest.raises(OSError, match=r"."):
            own_notes.note(str(tmp_path), "server", "sanic")
    assert len(os.listdir(tmp_path)) == 1


def test_an_earlier_command_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it stamped in a directory that stays; what this one stamps does, and an app of its that is not watched."""
    group, stamps = tmp_path / "group", "import sys, tailwatch\ntailwatch.install(dir=sys.argv[1], gc='observe')\n"
    stamps += "with tailwatch.stream() as s:\n    s.token()\n"
    before = UnseenTraffic(str(group))
    before.begin(os.getpid())
    subprocess.run([sys.executable, "-c", stamps, group], check=True, env=clean_environment())
    before.turn()
    assert not before.looks, "stamped since"
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
    after = UnseenTraffic(str(group))
    after.begin(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with Process(sys.executable, "-c", code, str(listener.getsockname()[1])) as client:
            listener.accept()[0].close()
            until(lambda: not client.running, "the client's end")
        after.turn()
    after.finish()
    assert "No request was seen" in capsys.readouterr().err
    found = subprocess.run([*DOCTOR, "--dir", str(group)], capture_output=True, text=True)
    assert found.returncode == 1 and "No request was seen" in found.stdout, found.stdout + found.stderr
    subprocess.run([sys.executable, "-c", stamps, group], check=True, env=clean_environment())
    assert "No request" not in subprocess.run([*DOCTOR, "--dir", str(group)], capture_output=True, text=True).stdout
    own_notes.note(str(group), "app", "App")
    after.finish()
    assert not capsys.readouterr().err


def test_a_process_that_could_not_join_may_have_seen_requests(tmp_path: Path) -> None:
    """Nothing is reported of its server: also where there was no room for a line, and its file is empty."""
    group = str(tmp_path / "group")
    own_notes.note(group, "server", "sanic")
    own_notes.note(group, "port", "8080")
    assert unseen.read(group).servers == ("sanic",)
    (tmp_path / "group" / "unseen-1-1-1").touch()
    assert unseen.read(group) == unseen.Unseen(unwatched=True)
    (tmp_path / "group" / "unseen-1-1-1").unlink()
    membership = GroupMember(Refusing(), group, lambda _: None)  # type: ignore[arg-type]
    membership.enter("api")
    assert membership.alone and unseen.read(group).unwatched
