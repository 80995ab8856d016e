"""Content negotiation, the host's registry beside ours, the Collector and the port of its own."""

from __future__ import annotations

import gzip
import http.client
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector as ClientCollector

from tailwatch import _hot, snapshots
from tailwatch.export.prometheus import app_registry, app_registry_cache
from tailwatch.export.prometheus import exposition as exposition_module
from tailwatch.export.prometheus.exposition import Collector, Exposition, serve_http
from tailwatch.export.prometheus.negotiation import Format

TEXT, OPENMETRICS = Format("text").content_type, Format("openmetrics").content_type
OPENMETRICS_UTF8 = Format("openmetrics", utf8=True).content_type

TTFT = "tailwatch_time_to_first_token_seconds"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.fixture(scope="module")
def core() -> _hot.Core:
    """One writer for the whole file: a segment is never unmapped."""
    core = _hot.Core("api", 4, (0, 0, 0, 0, 990_000), 0, lambda scope: "", lambda waiting, stream: waiting)
    stream = core.stream("llama", "/v1/chat", None, "", "")
    stream.token()
    stream.token()
    stream.close()
    core.count_fallback('chat "a"\\b', "differs")
    core.exemplify(True, None)
    stream = core.stream('x # {y="z"} 1 2', "/v1/chat", None, "", "ab" * 16)
    stream.token()
    stream.token()
    stream.close()
    return core


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """The host's registry, empty."""
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return registry


@pytest.fixture
def errors() -> list[int]:
    return []


@pytest.fixture
def make(core: _hot.Core, errors: list[int]) -> Callable[..., Exposition]:
    def make(take: Callable[[], Any] = lambda: snapshots.take([core.address]), **options: Any) -> Exposition:
        return Exposition(
            take,
            version="1.0",
            python="3.11",
            slo=lambda: "ttft<=2s",
            on_registry_error=lambda: errors.append(1),
            **options,
        )

    return make


def families(kind: str, body: bytes) -> dict[str, Any]:
    parse = parse_openmetrics if "openmetrics" in kind else parse_text
    return {family.name: family for family in parse(body.decode())}


def fill(registry: CollectorRegistry) -> None:
    """One metric of each kind prometheus_client has."""
    Counter("jobs", "Jobs \\ done\nso far", ["kind"], registry=registry).labels('a"b\\c\nd').inc(3)
    Gauge("depth", "Depth", unit="meters", registry=registry).set(1.5e9)
    Histogram("wait", "Wait", ["pool"], registry=registry).labels("x").observe(0.3)
    Summary("size", "Size", registry=registry).observe(12)
    Info("app", "App", registry=registry).info({"build": "é"})
    Enum("state", "State", states=["up", "down"], registry=registry).state("down")


# ---- negotiation ----


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS_UTF8),
        ("application/openmetrics-text", OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"; q=0.1', OPENMETRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.8", TEXT),
        ("application/openmetrics-text;q=high", TEXT),
        (";,;q", TEXT),
    ],
)
def test_accept_decides_the_format(make: Callable[..., Exposition], accept: str, expected: str) -> None:
    """OpenMetrics where it is listed and not ranked below text, else text 0.0.4; the body is of that format."""
    kind, body = make(registry=False).render(accept)
    assert kind == expected
    assert body.endswith(b"# EOF\n") == expected.startswith("application/openmetrics-text")
    assert "tailwatch_build" in {name.removesuffix("_info") for name in families(kind, body)}


def test_gzip_is_used_when_it_is_accepted(make: Callable[..., Exposition]) -> None:
    """The same bytes, compressed, and the headers have it; never when refused."""
    exposition = make(registry=False)
    plain = exposition.respond(PROMETHEUS_2, "identity, gzip;q=0")
    packed = exposition.respond(PROMETHEUS_2, "deflate, gzip;q=0.5")
    assert plain.encoding == "" and packed.encoding == "gzip"
    assert ("Content-Encoding", "gzip") in packed.headers and len(plain.headers) == 2
    unpacked = gzip.decompress(b"".join(packed.parts))
    assert families(OPENMETRICS, unpacked).keys() == families(OPENMETRICS, b"".join(plain.parts)).keys()


def test_parts_are_small_and_few(make: Callable[..., Exposition], registry: CollectorRegistry) -> None:
    """No part exceeds 64 KiB, no two neighbours would fit into one, and Content-Length is their sum."""
    Gauge("big", "x" * 200_000, registry=registry)
    for number in range(300):
        Gauge(f"small_{number}", "y" * 1000, registry=registry)
    response = make().respond()
    sizes = [len(part) for part in response.parts]
    assert max(sizes) <= exposition_module.PART_BYTES
    assert all(first + second > exposition_module.PART_BYTES for first, second in pairwise(sizes))
    assert dict(response.headers)["Content-Length"] == str(sum(sizes))
    assert {"big", "small_0", "small_299"} <= families(response.content_type, b"".join(response.parts)).keys()


def test_a_failing_take_is_the_callers_to_see(make: Callable[..., Exposition]) -> None:
    """An error of ours is raised to the layer that serves, and the next scrape works."""
    results: list[Any] = [RuntimeError("torn")]

    def take() -> Any:
        raise results[0]

    exposition = make(take, registry=False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="torn"):
            exposition.render()


def test_concurrent_scrapes_share_one_render(
    make: Callable[..., Exposition], core: _hot.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes that arrive while one is being rendered take its result; the next one renders anew."""
    entered, go, followers, taken = threading.Event(), threading.Event(), threading.Semaphore(0), []

    class Followed(Future):  # type: ignore[type-arg]
        def result(self, timeout: float | None = None) -> Any:
            followers.release()
            return super().result(timeout)

    def take() -> Any:
        taken.append(1)
        entered.set()
        assert go.wait(30)
        return snapshots.take([core.address])

    monkeypatch.setattr(exposition_module, "Future", Followed)
    exposition = make(take, registry=False)
    threads = [threading.Thread(target=exposition.render) for _ in range(6)]
    threads[0].start()
    assert entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert followers.acquire(timeout=30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(taken) == 1
    exposition.render()
    assert len(taken) == 2


def test_a_fork_child_does_not_wait_for_its_parents_threads(make: Callable[..., Exposition], core: _hot.Core) -> None:
    """A render that was running at the fork has no thread in the child: it must not be waited for there."""
    entered, go = threading.Event(), threading.Event()

    def take() -> Any:
        if not entered.is_set():
            entered.set()
            assert go.wait(30)
        return snapshots.take([core.address])

    exposition = make(take)
    stuck = threading.Thread(target=exposition.render)
    stuck.start()
    assert entered.wait(30)
    exposition.after_fork()
    child = threading.Thread(target=exposition.render)
    child.start()
    child.join(5)
    waited = child.is_alive()
    go.set()
    stuck.join(30)
    assert not waited


# ---- the host's registry ----


def host_text(registry: Any, *, openmetrics: bool, **options: Any) -> bytes:
    settings: dict[str, Any] = {
        "skip_names": (),
        "skip_collector": lambda collector: False,
        "on_clash": lambda name: None,
        "on_error": lambda: pytest.fail("a collector failed"),
    }
    return b"".join(app_registry.write_registry(registry, openmetrics=openmetrics, **settings | options))


def test_every_kind_of_metric_is_written_as_the_client_writes_it(registry: CollectorRegistry) -> None:
    """Byte for byte prometheus_client's own output, for both formats."""
    fill(registry)
    registry.set_target_info({"env": "test"})
    assert host_text(registry, openmetrics=False) == generate_latest(registry)
    assert host_text(registry, openmetrics=True) + b"# EOF\n" == generate_openmetrics(registry)


def test_exemplars_and_timestamps_are_written_as_the_client_writes_them() -> None:
    """Also what only OpenMetrics can carry, and gauge histograms, which text 0.0.4 has to take apart."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeHistogramMetricFamily, HistogramMetricFamily
    from prometheus_client.samples import Exemplar, Timestamp

    class Rich:
        def collect(self) -> Iterator[Any]:
            counter = CounterMetricFamily("c", "C", labels=["a"])
            counter.add_metric(
                ["1"], 1, created=5.5, timestamp=Timestamp(7, 8), exemplar=Exemplar({"t": 'x"'}, 0.5, 3.25)
            )
            yield counter
            histogram = HistogramMetricFamily("h", "H")
            histogram.add_metric([], [("1.0", 1, Exemplar({"t": "y"}, 0.5)), ("+Inf", 2)], 3, timestamp=12.5)
            yield histogram
            gauge = GaugeHistogramMetricFamily("g", "G", unit="")
            gauge.add_metric([], [("1.0", 1), ("+Inf", 2)], 3)
            yield gauge

    registry = CollectorRegistry()
    registry.register(Rich())
    assert host_text(registry, openmetrics=False) == generate_latest(registry)
    assert host_text(registry, openmetrics=True) + b"# EOF\n" == generate_openmetrics(registry)


@settings(max_examples=80, deadline=None)
@given(
    value=st.one_of(st.floats(), st.integers(-(10**18), 10**18)),
    label=st.text(max_size=20),
    name=st.one_of(st.just("plain_name"), st.text(alphabet="aZ9_.é -", min_size=1, max_size=8)),
)
def test_hostile_values_are_written_as_the_client_writes_them(value: float, label: str, name: str) -> None:
    """Numbers, label values and UTF-8 names agree with prometheus_client for anything it accepts."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(name, label, labels=[name])
    family.add_metric([label], value)
    holder = types.SimpleNamespace(collect=lambda: [family])
    assert host_text(holder, openmetrics=False) == generate_latest(holder)  # type: ignore[arg-type]
    assert host_text(holder, openmetrics=True) + b"# EOF\n" == generate_openmetrics(holder)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_colon_in_a_name_is_kept(registry: CollectorRegistry, openmetrics: bool) -> None:
    """vLLM's names have one; prometheus_client 0.26 writes vllm_running under "# TYPE vllm:running" in OpenMetrics."""
    Gauge("vllm:running", "Running", registry=registry).set(2)
    assert b"\nvllm:running 2.0\n" in host_text(registry, openmetrics=openmetrics)


def test_a_large_family_lets_go_of_the_gil(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hand-over for each 50 samples and one for each family."""
    gauge = Gauge("many", "Many", ["i"], registry=registry)
    for number in range(499):
        gauge.labels(str(number)).set(number)
    pauses: list[float] = []
    monkeypatch.setattr(app_registry, "time", types.SimpleNamespace(sleep=pauses.append))
    host_text(registry, openmetrics=False)
    assert len(pauses) == (499 + 2) // app_registry.SLICE + 1


@pytest.mark.parametrize("accept", ["", PROMETHEUS_2])
def test_the_host_follows_our_own_families(
    make: Callable[..., Exposition], registry: CollectorRegistry, accept: str
) -> None:
    """One valid body with both, and the time the host's part took."""
    fill(registry)
    found = families(*make().render(accept))
    assert {"jobs", "depth_meters", "wait", "tailwatch_requests", "tailwatch_registry_render_seconds"} <= found.keys()
    assert 0 < found["tailwatch_registry_render_seconds"].samples[0].value < 60


def test_no_registry_without_the_client(
    make: Callable[..., Exposition], monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry
) -> None:
    """A host that never imported prometheus_client gets our families only, and no render time."""
    fill(registry)
    monkeypatch.delitem(sys.modules, "prometheus_client")
    found = families(*make().render())
    assert "jobs" not in found
    assert not found["tailwatch_registry_render_seconds"].samples


def test_a_collector_that_raises_costs_only_itself(
    make: Callable[..., Exposition], registry: CollectorRegistry, errors: list[int]
) -> None:
    """It is counted, what it gave before stays out if it was half, and every other family is served."""

    class Broken(ClientCollector):
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> Iterator[Any]:
            yield prometheus_client.metrics_core.GaugeMetricFamily("before", "Before", value=1)
            raise RuntimeError("no")

    registry.register(Broken())
    fill(registry)
    found = families(*make().render())
    assert {"before", "jobs", "tailwatch_requests"} <= found.keys()
    assert len(errors) == 1


def test_a_family_that_cannot_be_written_is_left_out_whole(
    make: Callable[..., Exposition], registry: CollectorRegistry, errors: list[int]
) -> None:
    """Half a family would not parse; the rest is served."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    class Odd(ClientCollector):
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> Iterator[Any]:
            odd = GaugeMetricFamily("odd", "Odd", labels=["a"])
            odd.add_metric(["fine"], 1)
            odd.add_metric(["broken"], "seven")  # type: ignore[arg-type]
            yield odd
            yield GaugeMetricFamily("even", "Even", value=2)

    registry.register(Odd())
    found = families(*make().render())
    assert "odd" not in found and "even" in found
    assert len(errors) == 1


def test_a_family_of_our_name_is_skipped_and_counted_once(
    make: Callable[..., Exposition],
    registry: CollectorRegistry,
    errors: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two families of one name would spoil the whole scrape; ours stays."""
    monkeypatch.setattr(app_registry_cache, "CACHE_SECONDS", 0.0)
    Histogram("python_gc_duration_seconds", "Theirs", registry=registry)
    exposition = make()
    for _ in range(3):
        body = exposition.render()[1].decode()
        assert body.count("# TYPE python_gc_duration_seconds ") == 1
        assert "Theirs" not in body
    assert len(errors) == 1


def test_our_own_collector_is_not_rendered_twice(make: Callable[..., Exposition], registry: CollectorRegistry) -> None:
    """A user may register the Collector and serve our endpoint too."""
    exposition = make()
    registry.register(Collector(exposition))
    body = exposition.render()[1].decode()
    assert body.count("# TYPE tailwatch_requests_total ") == 1


def test_the_hosts_part_is_kept_for_a_second(
    make: Callable[..., Exposition], registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes within a second cost the host's collectors once; later ones ask again. Formats are kept apart."""
    asked: list[int] = []

    class Counting(ClientCollector):
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> list[Any]:
            asked.append(1)
            return []

    registry.register(Counting())
    now = [100.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(app_registry_cache, "time", clock)
    exposition = make()
    exposition.render()
    now[0] += 0.9
    exposition.render()
    assert len(asked) == 1
    now[0] += 0.2
    exposition.render()
    assert len(asked) == 2
    exposition.render(PROMETHEUS_2)
    assert len(asked) == 3


def test_multiprocess_mode_reads_the_files(
    make: Callable[..., Exposition],
    registry: CollectorRegistry,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[int],
) -> None:
    """With PROMETHEUS_MULTIPROC_DIR the files of all the host's processes are served, not this one's registry."""
    script = "from prometheus_client import Counter; Counter('worked', 'Worked').inc(4)"
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, timeout=60
    )
    fill(registry)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    found = families(*make().render())
    assert found["worked"].samples[0].value == 4
    assert "jobs" not in found
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "gone"))
    assert "tailwatch_requests" in families(*make().render())
    assert len(errors) == 1


# ---- the collector ----


def test_registering_the_collector_collects_nothing(make: Callable[..., Exposition]) -> None:
    """register() would otherwise render under the registry's lock."""
    exposition = make(lambda: pytest.fail("collected"), registry=False)
    CollectorRegistry(auto_describe=True).register(Collector(exposition))


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_collector_gives_what_c_renders(
    make: Callable[..., Exposition], core: _hot.Core, openmetrics: bool
) -> None:
    """The user's own endpoint shows the same families, types, labels, numbers and exemplars as ours."""
    snapshot = snapshots.take([core.address])
    exposition = make(lambda: snapshot, registry=False)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(exposition))
    text = (generate_openmetrics if openmetrics else generate_latest)(registry)
    kind, body = exposition.render(PROMETHEUS_2 if openmetrics else "")
    theirs, ours = families(kind, text), families(kind, body)
    assert theirs.keys() == ours.keys()
    for name, family in ours.items():
        assert theirs[name].type == family.type
        assert theirs[name].documentation == family.documentation
        assert theirs[name].samples == family.samples
    traced = [sample.exemplar.labels for sample in theirs[TTFT].samples if sample.exemplar]
    assert traced == ([{"trace_id": "ab" * 16}] if openmetrics else [])


def test_the_collector_can_be_asked_by_name(make: Callable[..., Exposition]) -> None:
    """name[] works in a registry made for collectors without names, as in the docstring."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(Collector(make(registry=False)))
    text = generate_latest(registry.restricted_registry(["tailwatch_requests_in_flight"]))  # type: ignore[arg-type]
    assert families(TEXT, text).keys() == {"tailwatch_requests_in_flight"}


# ---- a port of its own ----


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def test_a_port_serves_metrics(make: Callable[..., Exposition]) -> None:
    """Negotiated like the app's endpoint; nothing else is served, and HEAD has no body."""
    server = serve_http(0, make(registry=False))
    try:
        status, headers, body = get(server.port, Accept=PROMETHEUS_2, Accept_Encoding="gzip")
        assert (status, headers["content-type"], headers["content-encoding"]) == (200, OPENMETRICS, "gzip")
        assert "tailwatch_requests" in families(OPENMETRICS, gzip.decompress(body))
        status, headers, body = get(server.port, "/metrics?x=1", "HEAD")
        assert (status, headers["content-type"], body) == (200, TEXT, b"")
        assert get(server.port, "/etc/passwd")[0] == 404
    finally:
        server()


def test_a_failed_render_is_a_500_and_counted(make: Callable[..., Exposition]) -> None:
    """The scraper sees the failure; the process does not."""
    failed: list[int] = []

    def take() -> Any:
        raise MemoryError

    server = serve_http(0, make(take, registry=False), on_error=lambda: failed.append(1))
    try:
        assert get(server.port)[0] == 500
        assert failed == [1]
    finally:
        server()


def test_the_closer_leaves_nothing(make: Callable[..., Exposition]) -> None:
    """The port is free again and the thread gone; closing twice is harmless."""
    server = serve_http(0, make(registry=False))
    server()
    server()
    assert not any(thread.name == "tailwatch-metrics" for thread in threading.enumerate() if thread is server._thread)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", server.port))


def test_a_taken_port_is_an_error(make: Callable[..., Exposition]) -> None:
    """install() fails loudly instead of serving nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError):
            serve_http(taken.getsockname()[1], make(registry=False))


FORKING = """
import os, sys
from tailwatch.serve.http_server import MetricsServer

def respond(accept, encoding):
    raise RuntimeError

server = MetricsServer(respond, 0, "127.0.0.1", lambda: None)
listening = server._server.socket.fileno()
child = os.fork()
if child == 0:
    server.after_fork()
    try:
        os.fstat(listening)
    except OSError:
        server()
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
os.fstat(listening)
server()
"""


def test_a_fork_child_lets_go_of_the_port() -> None:
    """Else the port stays taken, and answers nothing, as long as a worker lives after its parent."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=60)
