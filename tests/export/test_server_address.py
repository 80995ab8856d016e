"""server.address and server.port, as the GenAI conventions ask for them: in the metrics and in the spans."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch.export.otel.server_address import FILE, LOOPBACK_SECONDS, UNKNOWN, ServerAddress, address_of

from ..support.otlp_collector import HTTPCollector, running
from ..support.process import Python
from ..support.waiting import until
from .test_otel import attributes, points
from .test_otel_spans import ask, make_app

pytestmark = pytest.mark.integration

CONVENTIONS = (
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.time_per_output_token",
    "gen_ai.server.request.duration",
)


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPCollector]:
    """Where the standard variables lead."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "TAILWATCH_"))]:
        monkeypatch.delenv(name)
    for collector in running("http/protobuf"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        yield collector


def test_metrics_and_spans_have_the_same_one(http: HTTPCollector) -> None:
    """Every point of a model and route, and no other, has what the span of the request has; beside it what else the
    conventions ask for. A model that a request names is in no metric."""
    app = make_app()
    tailwatch.install(app, gc="observe", otel=True)
    assert ask(app, x_gateway_model_name="asked").status_code == 200
    assert tailwatch.uninstall() == []
    (span,) = http.spans
    given = attributes(span)
    wanted = {"server.address": "testserver", "server.port": 80}
    assert {key: given[key] for key in wanted} == wanted and given["gen_ai.request.model"] == "asked"
    _, found = http.scopes()[-1]
    for name in CONVENTIONS:
        (point,) = points(found[name])
        same = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.response.model", "http.route", *wanted}
        assert attributes(point) == {key: given[key] for key in same}, name
    for metric in found.values():
        for point in points(metric):
            has = attributes(point)
            assert {key: has[key] for key in wanted if key in has} == (wanted if "http.route" in has else {}), (
                metric.name
            )


WORKER = """
import asyncio, json, sys
import tailwatch

async def app(scope, receive, send):
    kind = b"text/plain" if scope["path"] == "/health" else b"text/event-stream"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\\n\\n'})

async def nothing(*_):
    pass

engine = sys.argv[1] == "engine"  # which exports from its start on; an app begins with its first request
watch = tailwatch.install(role="engine", gc="observe") if engine else tailwatch.install(app, gc="observe")
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    path, server = json.loads(line)
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "server": server, "query_string": b""}
    asyncio.run(watch.app(scope, nothing, nothing))
    print(json.dumps(True), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="groups are files under /dev/shm: run it on Linux")
def test_one_for_a_group_whichever_process_exports(http: HTTPCollector, tmp_path: Path) -> None:
    """That of the first request in any process: another process exports it, and a worker that another address reaches
    changes nothing. A request that is not counted, as of a probe, gives none."""
    environment = {**os.environ, "TAILWATCH_DIR": str(tmp_path / "group"), "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    workers: list[Python] = []

    def begin(role: str) -> Python:
        workers.append(Python(WORKER, role, env=environment))
        assert workers[-1].read() is True
        return workers[-1]

    def series() -> list[dict[str, Any]]:
        found = http.scopes()[-1][1].get("tailwatch.output_tokens") if http.scopes() else None
        return [attributes(point) for point in points(found)] if found else []

    try:
        begin("engine")
        until(http.scopes, "the engine exports")
        first = begin("api")
        for path, server in (("/health", ["10.0.0.9", 9000]), ("/v1/chat/completions", ["10.1.2.3", 8000])):
            assert first.ask(json.dumps([path, server])) is True
        until(lambda: [each.get("server.address") for each in series()] == ["10.1.2.3"], "the exporter has it", 20)
        assert series()[0]["server.port"] == 8000
        first.kill()
        assert begin("api").ask(json.dumps(["/v1/completions", ["fe80::1", 8000]])) is True
        until(lambda: len(series()) == 2, "a second series is exported")
        assert {each["server.address"] for each in series()} == {"10.1.2.3"}
    finally:
        for each in workers:
            each.kill()


@pytest.mark.parametrize(
    ("server", "found"),
    [
        (("127.0.0.1", 8000), ("127.0.0.1", 8000)),
        (["::1", 8000], ("::1", 8000)),
        (("/run/vllm.sock", None), ("/run/vllm.sock", 0)),
        (("a" * 300, 1), ("a" * 255, 1)),
        (("h", 70000), ("h", 0)),
        (("h", True), ("h", 1)),
        *[(none, UNKNOWN) for none in (None, (), ("", 1), (b"h", 1), ("h",), ("h\nx", 1), "h1", 5)],
    ],
)
def test_what_a_scope_may_have(server: Any, found: tuple[str, int]) -> None:
    """A host or a path, and perhaps a port; anything else is none."""
    assert address_of(server) == found


def settled(directory: Path, server: Any = None) -> tuple[str, int]:
    """What a process has that saw a request to there, or none."""
    address = ServerAddress()
    if server:
        address.see({"server": server})
    address.settle(str(directory))
    return address.fixed


def test_the_first_one_stays_in_the_directory(tmp_path: Path) -> None:
    """It is there for those that come later."""
    tmp_path.chmod(0o700)
    assert settled(tmp_path) == UNKNOWN
    assert settled(tmp_path, ("10.0.0.1", 8000)) == ("10.0.0.1", 8000)
    assert settled(tmp_path, ("10.0.0.2", 8000)) == settled(tmp_path) == ("10.0.0.1", 8000)
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize("content", [b"", b"h", b"h\n", b"h\n1\n2\n", b"h\nx\n", b"h\n-1\n", b"\xff" * 600, b"\n1\n"])
def test_a_file_of_something_else_is_none(content: bytes, tmp_path: Path) -> None:
    """Nothing is raised, and nothing strange is exported."""
    tmp_path.chmod(0o700)
    (tmp_path / FILE).write_bytes(content)
    assert settled(tmp_path) == UNKNOWN


def test_a_place_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    """A directory of others, a link, a pipe. What a process has seen itself, another of its group may not have."""
    seen = ("10.0.0.1", 8000)
    assert settled(tmp_path / "missing", seen) == UNKNOWN
    tmp_path.chmod(0o777)
    assert settled(tmp_path, seen) == UNKNOWN
    tmp_path.chmod(0o700)
    (tmp_path / FILE).symlink_to("/etc/hostname")
    assert settled(tmp_path, seen) == UNKNOWN
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert settled(tmp_path, seen) == settled(tmp_path) == UNKNOWN


def test_it_is_there_once_the_place_can_be_written(tmp_path: Path) -> None:
    """And a process without a group has its own."""
    address = ServerAddress()
    address.see({"server": ("10.0.0.1", 8000)})
    address.settle(str(tmp_path / "later"))
    assert address.fixed == UNKNOWN
    (tmp_path / "later").mkdir(0o700)
    address.settle(str(tmp_path / "later"))
    assert address.fixed == ("10.0.0.1", 8000)
    address.move()
    address.settle("")
    assert address.fixed == ("10.0.0.1", 8000)


LOOPBACK = [("127.0.0.1", 8000), ("127.8.0.1", 8000), ("::1", 8000), ("::ffff:127.0.0.1", 8000), ("localhost", 8000)]


@pytest.mark.parametrize("own", LOOPBACK)
def test_requests_of_the_server_to_itself_give_none(own: tuple[str, int]) -> None:
    """SGLang warms itself up by some, perhaps long before the first of a client."""
    now = [5.0]
    address = ServerAddress(lambda: now[0])
    for _ in range(3):
        address.see({"server": own})
        now[0] += LOOPBACK_SECONDS / 4
    now[0] += 3600
    address.settle("")
    assert (address.has_seen, address.fixed) == (False, UNKNOWN)
    address.see({"server": ("10.0.0.1", 8000)})
    address.settle("")
    assert (address.has_seen, address.fixed) == (True, ("10.0.0.1", 8000))


@pytest.mark.parametrize("own", LOOPBACK)
def test_clients_on_the_same_machine_do(own: tuple[str, int], tmp_path: Path) -> None:
    """As a proxy before it: its requests do not end with the warm-up."""
    now = [5.0]
    address = ServerAddress(lambda: now[0])
    address.see({"server": own})
    now[0] += LOOPBACK_SECONDS
    tmp_path.chmod(0o700)
    address.settle(str(tmp_path))
    assert (address.has_seen, address.fixed) == (False, UNKNOWN)
    address.see({"server": own})
    address.settle(str(tmp_path))
    assert address.fixed == settled(tmp_path) == own


@pytest.mark.parametrize("name", ["127.example.com", "localhost.example.com", "::10", "/run/127.sock", "10.0.0.1"])
def test_what_is_no_loopback_address(name: str) -> None:
    """The first is enough."""
    address = ServerAddress()
    address.see({"server": (name, 8000)})
    assert address.has_seen
