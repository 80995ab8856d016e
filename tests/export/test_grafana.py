"""The Grafana example on a real Prometheus: every panel's query, after a planted load, is what snapshot() has.

A server of two processes does what it is asked to, and nothing by itself. One scrape falls before the load and one
after it, with the snapshots on both sides of either equal; each range of a query is made the time between these two,
at which rate() is exactly (last - first) / time. So the expected values are exact, and come from the later snapshot
less the earlier one. A second target that counts all the time must not show: the variables keep it out.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch._cold import lib
from tailwatch.export.prometheus.exposition import Exposition, serve_http
from tailwatch.runtime.load_signal import bands

from ..support.process import Serving
from ..support.prometheus import NATIVE, Prometheus, Release
from ..support.waiting import DEADLINE_SECONDS, until

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
SERVER = Path(__file__).parent / "planted_server.py"
MODELS = ("toy", "org/large-v2")
ZERO_BUCKET_SECONDS = 1e-6  # a native histogram's resolution begins there
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
POLICY_ROW = "What does the collector's policy do?"
ALWAYS_SHOWN = ("gc0", "gc1", "gc2", "gc_own")  # from the first scrape on
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # Prometheus takes five seconds to begin

# ---- the rules, as promtool reads them ----


def test_promtool_accepts_the_rules(release: Release) -> None:
    """`promtool check rules` finds no fault."""
    command = [release.program("promtool"), "check", "rules", str(FOLDER / "tailwatch.rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_every_alert_fires_where_it_should_only(release: Release) -> None:
    """`promtool test rules`: each alert fires on its planted series, and stays silent where it nearly would."""
    command = [release.program("promtool"), "test", "rules", str(FOLDER / "tailwatch.test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def alerts() -> list[str]:
    """Their names."""
    return re.findall(r"- alert: (\w+)", (FOLDER / "tailwatch.rules.yml").read_text())


def test_no_alert_is_untested() -> None:
    """The unit tests name every alert, and expect each to fire at least once."""
    text = (FOLDER / "tailwatch.test.yml").read_text()
    fires = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", text))
    assert fires == set(alerts())


@pytest.mark.parametrize("expression", ["vector(0) > 1", "up"])
def test_the_unit_tests_see_every_alert(release: Release, expression: str, tmp_path: Path) -> None:
    """With alerts that never fire, or fire for anything that is up, the unit tests fail for each."""
    rules = (FOLDER / "tailwatch.rules.yml").read_text()
    rules = re.sub(r" +- record: .*\n +expr: (?:>-\n(?: {10,}.*\n)+|.*\n)", "", rules)  # which these alerts do not read
    broken = re.sub(r"(- alert: \w+\n +expr:) (?:>-\n(?: {10,}.*\n)+|.*\n)", rf"\1 {expression}\n", rules)
    assert broken.count(f"expr: {expression}\n") == len(alerts())
    (tmp_path / "tailwatch.rules.yml").write_text(broken)
    (tmp_path / "tailwatch.test.yml").write_text((FOLDER / "tailwatch.test.yml").read_text())
    command = [release.program("promtool"), "test", "rules", str(tmp_path / "tailwatch.test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr)) == set(alerts())


def test_promtool_accepts_the_configuration(release: Release) -> None:
    """`promtool check config` finds no fault in prometheus.yml, and finds the rules from it."""
    command = [release.program("promtool"), "check", "config", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "1 rule files found" in done.stdout, done.stdout + done.stderr


# ---- the planted load ----


class Planted(Serving):
    """The server, and what is asked of it."""

    def __init__(self, directory: str, log: Path) -> None:
        self.directory = str(Path(directory) / "group")
        self.block = Path(directory) / "block"
        self._held: list[http.client.HTTPConnection] = []
        super().__init__(sys.executable, SERVER, self.directory, log=log)

    def close(self) -> None:
        """It ends with its standard input."""
        for connection in self._held:
            connection.close()
        self.finish()

    def snapshot(self) -> snapshots.Snapshot:
        """As any user of the machine may read it."""
        return snapshots.take_directory(self.directory)

    def get(self, path: str) -> str:
        """A page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def load_signal(self) -> dict[str, Any]:
        """load_signal(), of data that is all there."""
        since = time.monotonic()
        return until(
            lambda: found if (found := json.loads(self.get("/signal")))["age"] < time.monotonic() - since else 0
        )

    def ask(self, path: str, *, wait: float = 0, headers: dict[str, str] | None = None, **query: object) -> None:
        """One request, read to its end after a wait."""
        connection = self._send(path, headers or {}, query)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            time.sleep(wait)
            answer.read()

    def _send(self, path: str, headers: dict[str, str], query: dict[str, object]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        connection.request("POST", f"{path}?{asked}", headers=headers)
        return connection

    def hold(self) -> None:
        """Requests that stay open, one after its tokens and one before."""
        tokens = self.snapshot().tokens
        self._held.append(self._send(COMPLETIONS, {}, {"tokens": 3, "hold": 1, "model": MODELS[0]}))
        self._held.append(self._send(COMPLETIONS, {}, {"first": 10**7, "model": MODELS[0]}))
        until(lambda: self.snapshot().tokens == tokens + 3)

    def abandon(self) -> None:
        """A request whose client goes away before the first token."""
        opened = self.snapshot().opened
        connection = self._send(COMPLETIONS, {}, {"first": 10**7, "model": MODELS[0]})
        until(lambda: self.snapshot().opened > opened)
        connection.close()

    def plant(self, where: str, what: str, **query: object) -> None:
        """One of the server's doings."""
        self.ask("/plant", where=where, what=what, **query)

    def wait_in_the_kernel(self) -> None:
        """A request that is sent while the loop is blocked, and waits a quarter of a second before it is read."""
        until(self.block.exists)
        connection = self._send(COMPLETIONS, {}, {"model": MODELS[0]})
        with contextlib.closing(connection):
            time.sleep(0.25)
            self.block.unlink()
            connection.getresponse().read()

    def together(self, *doings: Callable[[], object]) -> None:
        """At the same time."""
        threads = [threading.Thread(target=doing) for doing in doings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)

    def traced(self, model: str, path: str) -> None:
        """A slow request with the trace that it belongs to."""
        self.ask(path, model=model, slow=1, headers={"traceparent": f"00-{TRACE_ID}-{'5' * 16}-01"})

    def stream_beside(self, doing: Callable[[], object], **query: object) -> None:
        """Streams of both models and routes, and something that happens meanwhile."""
        streams = [
            lambda model=model, path=path: self.ask(path, model=model, **query)
            for model in MODELS
            for path in (COMPLETIONS, CHAT)
        ]

        before = self.snapshot()

        def flow() -> bool:
            gained = self.snapshot() - before
            return gained.opened >= len(streams) and ("first" in query or gained.tokens >= 2 * len(streams))

        def later() -> None:
            until(flow, "streams in flight")
            doing()

        self.together(*streams, later)

    def load(self, size: int) -> None:
        """Everything that a panel shows, at least once."""
        arrived = {"X-Request-Start": f"t={time.time() - 0.05:.6f}"}
        for _ in range(size):
            self.stream_beside(lambda: self.plant("engine", "collect"), tokens=40)
            self.stream_beside(lambda: self.plant("api", "collect"), tokens=40)
            self.stream_beside(lambda: self.plant("engine", "collect"), tokens=3, first=200)
            self.together(lambda: self.plant("api", "block", file=str(self.block)), self.wait_in_the_kernel)
        for where in ("api", "engine"):
            self.plant(where, "freeze")
        self.plant("engine", "steps")
        self.plant("api", "fault")
        self.plant("api", "knee")
        self.plant("api", "unfollowed")
        self.traced(MODELS[1], COMPLETIONS)
        self.ask(COMPLETIONS, bytes=400_000, tokens=24, wait=0.2, model=MODELS[0])
        self.ask(CHAT, headers=arrived, model=MODELS[0])
        self.ask(COMPLETIONS, encoding="br")
        for status in (400, 429, 503):
            self.ask(COMPLETIONS, status=status)
        for i in range(5):
            self.ask(COMPLETIONS, model=f"extra-{i}")
        for _ in range(3):
            self.abandon()
        self.hold()

    def quiet(self) -> snapshots.Snapshot:
        """Once what is open is only what is held, and nothing changes any more."""
        until(lambda: self.snapshot().in_flight == len(self._held))

        def unchanged() -> snapshots.Snapshot | None:
            before = self.snapshot()
            time.sleep(0.1)
            return before if counted(before) == counted(self.snapshot()) else None

        found = until(unchanged)
        assert found
        return found


def counted(snapshot: snapshots.Snapshot) -> str:
    """Everything in it but the time and what follows from it, and the stalls of loops: a scrape can be one."""
    moving = {"taken", "seconds", "windows", "stalls"}
    plain = {name: value for name, value in snapshot.as_dict().items() if name not in moving}
    plain["processes"] = [{k: v for k, v in one.items() if k != "age"} for one in plain["processes"]]
    return json.dumps(plain, sort_keys=True, default=str)


class Other:
    """Another server, which counts at every scrape."""

    def __init__(self) -> None:
        slo = (2_000_000_000, 200_000_000, 0, 0, 990_000)
        self._core = _hot.Core("api", 4, slo, 0, lambda scope: "", lambda waiting, stream: waiting)
        self._open = self._core.stream(MODELS[0], COMPLETIONS, None, "", "")
        exposition = Exposition(self._take, version="9", python="9", slo=lambda: "", registry=False)
        self._server = serve_http(0, exposition)
        self.port = self._server.port
        self.close: Callable[[], object] = self._server

    def _take(self) -> snapshots.Snapshot:
        stream = self._core.stream(MODELS[0], COMPLETIONS, _hot.now() - 2_000_000_000, "", "")
        for age in (1_500_000_000, 1_000_000_000, 0):
            stream.token(at=_hot.now() - age)
        stream.close(at=_hot.now())
        self._core.gc_first("start", {"generation": 2})
        self._core.gc_last("stop", {"generation": 2, "collected": 5, "uncollectable": 1})
        return snapshots.take([self._core.address])


CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
- {{job_name: tailwatch, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}
- {{job_name: other, static_configs: [{{targets: ['127.0.0.1:{other}']}}]}}
"""


@dataclass
class Scene:
    """A server, what it measured between two scrapes, and the Prometheus that scraped it. Times: seconds since 1970."""

    planted: Planted
    prometheus: Prometheus
    native: bool
    first: float
    last: float
    samples: int
    stalls: int
    """Samples of stalls among them: a scrape can be the first of a kind, and is not in itself."""
    earlier: snapshots.Snapshot
    later: tuple[snapshots.Snapshot, snapshots.Snapshot]
    signals: tuple[dict[str, Any], dict[str, Any]]

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.planted.port}"

    @property
    def seconds(self) -> float:
        """Between the scrapes."""
        return round((self.last - self.first) * 1000) / 1000

    @property
    def slack(self) -> float:
        """Relative: what rate() and increase() extrapolate to the beginning of a range."""
        added_ms = self.prometheus.release.range_ms(0)
        return added_ms * 1.01 / (self.seconds * 1000) or 1e-9

    def query(self, expression: str, model: str | None = None, route: str | None = None) -> str:
        """As Grafana would send it for this server, and all models and routes or one."""

        def escaped(value: str | None) -> str:
            return ".+" if value is None else re.escape(value).replace("\\", "\\\\")

        variables = {
            "$job": "tailwatch",
            "$instance": escaped(self.instance),
            "$model_name": escaped(model),
            "$route": escaped(route),
            "$objective": "0.99",
        }
        for name, value in variables.items():
            expression = expression.replace(name, value)
        return re.sub(r"\[[^]]+\]", f"[{self.prometheus.release.range_ms(round(self.seconds * 1000))}ms]", expression)

    def results(self, expression: str, model: str | None = None, route: str | None = None) -> list[dict[str, Any]]:
        """What Prometheus answers, at the last of the two scrapes."""
        query, moment = self.query(expression, model, route), f"{self.last:.3f}"
        found: list[dict[str, Any]] = self.prometheus.ask("query", query=query, time=moment)["result"]
        return found


def scrape_after(prometheus: Prometheus, port: int, moment: float) -> float:
    """When the first scrape began that is later and was answered, once it is stored."""

    def look() -> float | None:
        series = prometheus.ask("query", query=f'up{{instance="127.0.0.1:{port}"}}[1m]')["result"]
        samples = series[0]["values"] if series else []
        found = next((float(began) for began, up in samples if float(began) > moment and up == "1"), None)
        if not found:
            time.sleep(0.05)  # the next scrape is up to a second away
        return found

    found = until(look)
    assert found
    return found


def between_equals(of: Any, prometheus: Prometheus) -> tuple[float, tuple[snapshots.Snapshot, snapshots.Snapshot]]:
    """When a scrape was, with snapshots before and after it that are equal."""

    def at_rest() -> tuple[float, tuple[snapshots.Snapshot, snapshots.Snapshot]] | None:
        before = of.quiet()
        began = scrape_after(prometheus, of.port, time.time())
        after = of.snapshot()
        return (began, (before, after)) if counted(before) == counted(after) else None

    found = until(at_rest)
    assert found
    return found


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, release: Release
) -> Iterator[tuple[Planted, dict[str, Prometheus]]]:
    """A server that has every series there is to be, and two Prometheus servers that scrape it, by the kind of
    histograms."""
    with contextlib.ExitStack() as stack:
        planted = stack.enter_context(
            Planted(stack.enter_context(in_memory()), tmp_path_factory.mktemp("planted") / "log")
        )
        stack.callback(planted.close)
        other = Other()
        stack.callback(other.close)
        text = CONFIGURATION.format(rules=FOLDER / "tailwatch.rules.yml", target=planted.port, other=other.port)
        servers: dict[str, Prometheus] = {}
        for kind, features in {"classic": (), "native": (NATIVE,)}.items():
            directory = tmp_path_factory.mktemp(kind)
            servers[kind] = Prometheus(release, directory, planted.port, ("exemplar-storage", *features), text)
            stack.callback(servers[kind].close)
        for model, path in ((MODELS[0], COMPLETIONS), (MODELS[0], CHAT), (MODELS[1], COMPLETIONS)):
            planted.ask(path, model=model)  # the label sets that are chosen below: those that come later are "other"
        planted.load(1)  # rate() does not see the first sample of a series
        for server in servers.values():
            server.wait_for("up == 1")
        yield planted, servers


def test_prometheus_evaluates_the_rules(started: tuple[Planted, dict[str, Prometheus]]) -> None:
    """Each of them, without an error."""
    for server in started[1].values():
        rules = until(
            lambda server=server: (
                found
                if (found := [rule for group in server.ask("rules")["groups"] for rule in group["rules"]])
                and all(rule["health"] != "unknown" for rule in found)
                else []
            ),
            "every rule was evaluated",
        )
        assert {rule["health"] for rule in rules} == {"ok"}, rules


@pytest.fixture(scope="module")
def scenes(started: tuple[Planted, dict[str, Prometheus]]) -> dict[str, Scene]:
    """By the kind of histograms: what both saw of the same load."""
    planted, servers = started
    begins = {kind: between_equals(planted, server) for kind, server in servers.items()}
    planted.load(1)
    planted.quiet()

    def ended() -> tuple[Any, Any] | None:  # the curve is found anew every few seconds
        before = planted.load_signal()
        ends = {kind: between_equals(planted, server) for kind, server in servers.items()}
        after = planted.load_signal()
        return (ends, (before, after)) if before["curve"] == after["curve"] else None

    ends, signals = until(ended, "scrapes between two equal curves")
    samples = [line for line in planted.get("/metrics").splitlines() if not line.startswith("#")]
    stalls = [line for line in samples if line.startswith("tailwatch_stall_seconds")]
    counts = len(samples), len(stalls)
    found: dict[str, Scene] = {}
    for kind, server in servers.items():
        (first, (earlier, _)), (last, later) = begins[kind], ends[kind]
        found[kind] = Scene(planted, server, kind == "native", first, last, *counts, earlier, later, signals)
    return found


@pytest.fixture(params=["classic", "native"])
def scene(request: pytest.FixtureRequest, scenes: dict[str, Scene]) -> Scene:
    """Each of them."""
    return scenes[request.param]


@contextlib.contextmanager
def in_memory() -> Iterator[str]:
    """A directory that processes may share."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield directory


# ---- what the panels are to show ----


@dataclass
class Range:
    """Any value from low to high."""

    low: float
    high: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and self.low * (1 - 1e-9) <= other <= self.high * (1 + 1e-9)


def largest(n: int, values: dict[str, float | Range]) -> dict[str, float | Range]:
    """The same; those that may not be among the n largest may be missing."""

    def rivals(name: str) -> int:
        least = low(values[name])
        return sum(high(other) >= least for each, other in values.items() if each != name)

    return {name: value if rivals(name) < n else Range(0.0, high(value)) for name, value in values.items()}


def low(value: float | Range) -> float:
    """The least that it may be."""
    return value.low if isinstance(value, Range) else value


def high(value: float | Range) -> float:
    """The most that it may be."""
    return value.high if isinstance(value, Range) else value


@dataclass
class AnyOf:
    """One of several numbers: a rank at the edge of a bucket belongs to either."""

    values: tuple[float, ...]
    relative: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and any(math.isclose(other, one, rel_tol=self.relative) for one in self.values)


def bounds_of(histogram: snapshots.Histogram) -> list[float]:
    """The classic ones, seconds."""
    layout = vars(histogram)["_layout"]
    return [layout.bound_ns[i] / 1e9 for i in range(layout.bounds)]


def below(histogram: snapshots.Histogram, bound: float) -> int:
    """Samples not above a bound."""
    return round((histogram.below(bound) or 0.0) * histogram.count)


def in_classic(histogram: snapshots.Histogram, rank: float) -> float:
    """PromQL's quantile of classic buckets: straight lines between the bounds."""
    lower, under = 0.0, 0
    for bound in bounds_of(histogram):
        upto = below(histogram, bound)
        if upto >= rank:
            return lower + (bound - lower) * (rank - under) / (upto - under)
        lower, under = bound, upto
    return lower


class Oracle:
    """The numbers of a scene, from its snapshots alone: whole what is not kept by model and route, gained the rest."""

    def __init__(self, scene: Scene, model: str | None = None, route: str | None = None) -> None:
        self.scene = scene
        self.now, self._after = scene.later
        self.whole = self.now - scene.earlier
        self.gained = self.whole.where(model_name=model, route=route)
        self._raw = vars(self.gained)["_handle"]

    def rate(self, amount: float) -> float:
        return amount / self.scene.seconds

    def quantile(self, q: float, histogram: snapshots.Histogram) -> Any:
        """What histogram_quantile() is to give: of classic buckets exactly that, of native ones the true one but for
        the width of a bucket."""
        if not histogram.count:
            return math.nan
        if self.scene.native:
            if (histogram.p(100 * q) or 0.0) < ZERO_BUCKET_SECONDS:
                return Range(0.0, ZERO_BUCKET_SECONDS)
            near = [min(100.0, max(0.0, 100 * q + step)) for step in (-1e-9, 0, 1e-9)]
            return AnyOf(tuple(histogram.p(percent) or 0.0 for percent in near), 0.022)
        rank, slack = q * histogram.count, 2 * self.scene.slack
        truth = histogram.p(100 * q) or 0.0
        found = [in_classic(histogram, rank + step) for step in (-1e-9, 0, 1e-9)]
        edges = [0.0, *bounds_of(histogram), math.inf]
        buckets = [(low, high) for low, high in pairwise(edges) if low <= found[1] <= high]
        assert any(low * 0.98 <= truth <= high * 1.02 for low, high in buckets)
        if slack < 1e-6:
            return AnyOf(tuple(found), 1e-6)
        return Range(in_classic(histogram, rank * (1 - slack)), in_classic(histogram, rank * (1 + slack)))

    def ends(self, prefix: str, histogram: snapshots.Histogram) -> dict[str, Any]:
        return {f"{prefix}p50": self.quantile(0.5, histogram), f"{prefix}p99": self.quantile(0.99, histogram)}

    def percentiles(self, histogram: snapshots.Histogram) -> dict[str, Any]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
        return {name: self.quantile(q, histogram) for name, q in shares.items()}

    @property
    def share_good(self) -> float:
        """Excluded requests are in neither."""
        outcomes = self.gained.outcomes
        return outcomes["good"] / (outcomes["good"] + outcomes["miss"])

    def window(self, what: str) -> Range:
        """A number of the rolling minute, which shrinks between the two snapshots around the scrape."""
        values = [getattr(one.window("1m"), what) / one.window("1m").seconds for one in (self.now, self._after)]
        return Range(min(values), max(values))

    def signal(self, *names: str) -> Range:
        """A number of load_signal(), which may be found anew between the two readings around the scrape."""
        values = [float(one[name]) for one in self.scene.signals for name in names]
        return Range(min(values) - 1e-9, max(values) + 1e-9)

    def curve(self) -> dict[str, Any]:
        """Median TTFT by concurrency, in the points that are exported of it."""
        points = [bands([snapshots.Point(*point) for point in one["curve"]]) for one in self.scene.signals]
        return {
            f"{math.floor(one.streams + 0.5)} in flight": Range(
                min(one.ttft, other.ttft) - 1e-9, max(one.ttft, other.ttft) + 1e-9
            )
            for one, other in zip(*points, strict=True)
        }

    def stream_time(self, by_source: str, phase: str, prefix: str = "") -> dict[str, Any]:
        found = getattr(self.gained, by_source)
        return {
            f"{prefix}{role} {cause}": self.rate(seconds)
            for role, phases in found.items()
            for cause, seconds in phases[phase].items()
        }

    def rates(self, amounts: Iterable[tuple[float, float, bool]]) -> float | Range:
        """Of series (before, gained, always shown) together: of one that appears between the two scrapes, rate() sees
        any part of the gain, and that extrapolated."""
        rows = list(amounts)
        seen = self.rate(sum(gained for before, gained, shown in rows if before or shown))
        appeared = self.rate(sum(gained for before, gained, shown in rows if not before and not shown))
        return Range(seen, seen + 2 * appeared) if appeared else seen

    def delay(self, *only: str) -> float | Range:
        """Stream seconds per second that these causes added, or all."""
        earlier = delay_series(self.scene.earlier)
        gained = {**dict.fromkeys(earlier, 0.0), **delay_series(self.gained)}
        return self.rates(
            (earlier.get(series, 0.0), gained[series], series[2] in ALWAYS_SHOWN and series[3] != "sampled")
            for series in gained
            if not only or series[2] in only
        )

    def unexplained(self, *only: str) -> float | Range:
        """Of these reasons, or all."""
        before, now = vars(self.scene.earlier)["_handle"].unexplained_ns, self._raw.unexplained_ns
        return self.rates(
            (row[i] / 1e9, now[phase][i] / 1e9, False)
            for phase, row in enumerate(before[phase] for phase in range(len(snapshots.PHASES)))
            for i, reason in enumerate(self.gained.unexplained)
            if not only or reason in only
        )

    def stalls(self) -> dict[str, Any]:
        """Of all loops, by cause: within bounds, since a scrape is work of a loop too."""
        causes = snapshots.STALLS[len(snapshots.CAUSES) :]
        return {f"{process.name} {cause}": Range(0.0, 1.0) for process in self.gained.processes for cause in causes}

    def by_process(self, value: Callable[[Any, Any, int], Any], legend: str) -> dict[str, Any]:
        """value(process, its raw totals, cause) of each process and generation."""
        return {
            legend.format(instance=self.scene.instance, process=process.name, generation=cause): value(
                process, self._raw.process[i], cause
            )
            for i, process in enumerate(self.gained.processes)
            for cause in range(3)
        }

    def summed_by_process(self, field: str, legend: str) -> dict[str, Any]:
        rows = [(process.name, self._raw.process[i].pause) for i, process in enumerate(self.gained.processes)]
        causes = range(len(snapshots.CAUSES))
        return {
            legend.format(process=name): self.rate(sum(getattr(totals[cause], field) for cause in causes))
            for name, totals in rows
        }

    def pause_lengths(self, process: Any, raw: Any, cause: int) -> Any:
        counts = raw.stalls[cause]
        layout = lib.tw_metric_layout(lib.TW_METRIC_PAUSE + cause)
        return self.quantile(0.99, snapshots.Histogram(counts, layout)) if counts else math.nan

    def step_ends(self, part: str) -> dict[str, Any]:
        return {
            legend: value
            for step in self.gained.steps
            for legend, value in self.ends(f"{step.process} {step.name} ", getattr(step, part).time).items()
        }

    def step_sum(self, value: Callable[[snapshots.Step], float], suffix: str) -> dict[str, Any]:
        found: dict[str, float] = {}
        for step in self.gained.steps:
            legend = f"{step.process} {suffix}"
            found[legend] = found.get(legend, 0.0) + self.rate(value(step))
        return found

    def by_engine(self, values: Callable[[snapshots.EngineSteps], dict[str, float]]) -> dict[str, Any]:
        return {
            f"{engine.process} {name}": self.rate(value)
            for engine in self.gained.engines
            for name, value in values(engine).items()
        }

    def step_causes(self, field: str) -> dict[str, Any]:
        """Seconds of all steps of a process, by phase and cause."""
        found: dict[str, float] = {}
        for step in self.gained.steps:
            for phase, part in {"step": step.steps, "host_gap": step.host_gaps}.items():
                for cause, seconds in getattr(part, field).items():
                    legend = f"{step.process} {phase} {cause}"
                    found[legend] = found.get(legend, 0.0) + self.rate(seconds)
        return found


def expected(o: Oracle) -> dict[str, dict[str, Any]]:
    """Panel, legend, value. What is exported only once it happened may be missing where it is 0."""
    gained, rate, instance = o.gained, o.rate, o.scene.instance
    outcomes, processes = gained.outcomes, o.now.processes
    judged = outcomes["good"] + outcomes["miss"]
    itl_delay = sum(phases["itl"][cause] for phases in gained.delay_by_source.values() for cause in snapshots.CAUSES)
    held = float(o.now.in_flight)
    memory = sum(process.bytes for process in processes)
    burn = (1 - o.share_good) / (1 - 0.99)
    by_outcome = {f"{snapshots.OUTCOME_OF[reason]}: {reason}": rate(count) for reason, count in gained.requests.items()}
    arrivals = {source: rate(count) for source, count in gained.arrivals.items()}
    tokens = {model: rate(gained.where(model_name=model).tokens) for model, _ in gained.labels}
    trust = {
        **{f"dropped: {reason}": rate(count) for reason, count in gained.drops.items()},
        **{f"error: {where}": rate(count) for where, count in gained.errors.items()},
        "labels overflowed": rate(gained.label_overflow),
        **{f"fast SSE: {' '.join(kind)}": rate(count) for kind, count in gained.sse_fallbacks.items()},
    }
    return {
        "Good requests": {"good": o.share_good},
        "Requests per second": {"good": o.window("good"), "completed": o.window("finished")},
        "TTFT p99": {"p99": o.quantile(0.99, gained.ttft)},
        "ITL p99": {"p99": o.quantile(0.99, gained.itl)},
        "ITL p99 without GC": {"p99": o.quantile(0.99, gained.itl_without_gc)},
        "Streaming time lost to pauses": {"delay": itl_delay / o.whole.itl.sum},
        "Open requests": {"open": held},
        "ITL": o.percentiles(gained.itl),
        "TTFT": o.percentiles(gained.ttft),
        "TPOT": o.percentiles(gained.tpot),
        "E2E": o.percentiles(gained.e2e),
        "Goodput beside throughput": {
            "good": rate(outcomes["good"]), "judged": rate(judged), "ended": rate(sum(gained.requests.values())),
        },
        "Attainment": {"attainment": o.share_good, "objective": 0.99},
        "Error budget burn": {"over 1 h": burn, "over 5 min": burn},
        "How requests ended": by_outcome,
        "Fluidity": {"met": gained.fluidity},
        "Output tokens": tokens,
        "ITL with and without GC": {
            "p99": o.quantile(0.99, gained.itl), "p99 without GC": o.quantile(0.99, gained.itl_without_gc),
            "p99.9": o.quantile(0.999, gained.itl), "p99.9 without GC": o.quantile(0.999, gained.itl_without_gc),
        },
        "Delay by cause": {cause: o.delay(cause) for cause in gained.delay},
        "Share of the delay without a cause": {
            "unexplained": ratio(o.unexplained(), o.delay()), "upstream": ratio(o.delay("upstream"), o.delay()),
        },
        "Unexplained, by what is missing": {reason: o.unexplained(reason) for reason in gained.unexplained},
        "Stalls of event loops": o.stalls(),
        "Missed by replica": {f"{instance} ": 1 - o.share_good},
        "Delay by replica and cause": {
            f"{instance}  {cause}": value for cause, value in largest(8, {c: o.delay(c) for c in gained.delay}).items()
        },
        "ITL p99 by replica": {f"{instance} ": o.quantile(0.99, gained.itl)},
        "Delay between tokens": o.stream_time("delay_by_source", "itl"),
        "Overlap between tokens": o.stream_time("overlap_by_source", "itl"),
        "Before the first token": {
            **o.stream_time("delay_by_source", "ttft", "delay: "),
            **o.stream_time("overlap_by_source", "ttft", "overlap: "),
        },
        "Process time in collections": o.by_process(
            lambda process, _, cause: rate(process.paused[snapshots.CAUSES[cause]]),
            "{instance} {process} gc{generation}",
        ),
        "Length of collections, p99": o.by_process(o.pause_lengths, "{process} gc{generation}"),
        "Collections": o.by_process(
            lambda process, _, cause: rate(process.collections[snapshots.CAUSES[cause]]),
            "{instance} {process} gc{generation}",
        ),
        "Pauses that are charged to no gap, and their parts": {
            "short": rate(sum(gained.gc.short_seconds.values())),
            "gc.callbacks of other code": rate(sum(gained.gc.callbacks.values())),
            "CPU": rate(sum(gained.gc.cpu.values())),
            "tailwatch": rate(gained.paused["gc_own"]),
        },
        "What collections found": {
            **o.summed_by_process("collected", "{process} freed"),
            **o.summed_by_process("uncollectable", "{process} uncollectable"),
        },
        "Requests in flight": {instance: held},
        "Arrivals": arrivals,
        "Queue before the app": {
            **o.ends("proxy ", gained.queue["proxy"]), **o.ends("accept ", gained.queue["accept"]),
        },
        "Gave up waiting": o.ends("", gained.abandoned_wait),
        "Requests that gave up": {"abandoned": rate(gained.abandoned_wait.count)},
        "Blocked sends": o.ends("", gained.send_wait),
        "Time in blocked sends": {"blocked": rate(gained.send_wait.sum)},
        "Steps": o.step_ends("steps"),
        "Host gaps": o.step_ends("host_gaps"),
        "Where the engine's time went": {
            **o.step_sum(lambda step: step.steps.time.sum, "steps"),
            **o.step_sum(lambda step: step.host_gaps.time.sum, "host gaps"),
            **o.step_sum(lambda step: step.unknown_gap, "unknown"),
        },
        "Batch": {f"{step.process} {step.name}": step.batch for step in gained.steps},
        "Pauses inside steps and host gaps": o.step_causes("overlap"),
        "The same, times the requests that waited": o.step_causes("requests"),
        "Steps with and without prompts": {
            legend: value
            for engine in gained.engines
            for work, lengths in engine.steps.items()
            for legend, value in o.ends(f"{engine.process} {work} ", lengths).items()
        },
        "Parts of the steps": o.by_engine(lambda engine: engine.parts),
        "Tokens computed": o.by_engine(lambda engine: engine.tokens),
        "Requests in the engine": {
            **{f"{engine.process} running": float(engine.last[-1].running) for engine in gained.engines},
            **{f"{engine.process} waiting": 1.0 for engine in gained.engines},
            **o.by_engine(lambda engine: {"preempted": engine.preempted}),
        },
        "KV cache": {engine.process: Range(0.7499, 0.75) for engine in gained.engines},
        "What a step costs": {
            f"{engine.process} {term}": Range(seconds - 1e-9, seconds + 1e-9)
            for engine in gained.engines
            for term in ("decode_step", "decode_request", "prefill_token")
            if (seconds := getattr(engine.cost, term)) is not None
        },
        "Streams": {
            f"{instance} running": o.signal("running"), f"{instance} waiting": o.signal("waiting"),
            f"{instance} healthy": o.signal("healthy"),
        },
        "Load": {instance: o.signal("ratio"), f"{instance} confidence": o.signal("confidence")},
        "Headroom": {instance: o.signal("headroom")},
        "TTFT by concurrency": o.curve(),
        "TTFT to expect": {instance: o.signal("predicted_ttft")},
        "Servers that would meet the SLO now": {"would meet it": 1.0, "that know": 1.0, "found": 1.0},
        "Scrapes": {instance: 1.0},
        "Length of a scrape": {instance: Range(1e-5, 1.0), f"{instance} its own registry": Range(1e-6, 1.0)},
        "Not kept, not measured, gone wrong": trust,
        "Memory": {instance: Range(memory, memory + 4 * 2**20)},
        "Samples of a scrape": {
            instance: Range(1, o.scene.samples - 1)
            if o.scene.native
            else Range(o.scene.samples - o.scene.stalls, o.scene.samples)
        },
        "Versions": {f"tailwatch {version}, Python {python}": 1.0 for version, python in [versions()]},
    }  # fmt: skip


def delay_series(snapshot: snapshots.Snapshot) -> dict[tuple[str, ...], float]:
    """Seconds by source, phase, cause and certainty."""
    return {
        (source, phase, cause, certainty): seconds
        for source, phases in snapshot.delays.items()
        for phase, causes in phases.items()
        for cause, certainties in causes.items()
        for certainty, seconds in certainties.items()
    }


def ratio(part: float | Range, whole: float | Range) -> float | Range:
    """Of two numbers, of which either may be known within bounds only."""
    low, high = ((one.low, one.high) if isinstance(one, Range) else (one, one) for one in (part, whole))
    return Range(low[0] / high[1], low[1] / high[0])


def versions() -> tuple[str, str]:
    from importlib.metadata import version

    return version("tailwatch"), ".".join(map(str, sys.version_info[:3]))


def panels(kind: str, *, of_policy: bool = False) -> list[dict[str, Any]]:
    """Those of the row about the collector's policy, or of all others: the planted load's processes run no slices."""
    document = json.loads((FOLDER / "dashboards" / f"tailwatch-{kind}.json").read_text())
    found, row = [], ""
    for panel in document["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        if panel["type"] != "row" and (row == POLICY_ROW) == of_policy:
            found.append(panel)
    return found


def legend(text: str, labels: dict[str, str]) -> str:
    """As Grafana writes it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), text)


def shown(scene: Scene, panel: dict[str, Any], model: str | None = None, route: str | None = None) -> dict[str, float]:
    """Legend and value of each line of a panel. No query may come back empty, no two lines with one legend."""
    lines: dict[str, float] = {}
    for target in panel["targets"]:
        results = scene.results(target["expr"], model, route)
        assert results, f"{panel['title']}: nothing for {scene.query(target['expr'], model, route)}"
        for result in results:
            name = legend(target["legendFormat"], result["metric"])
            assert name not in lines, f"{panel['title']}: two lines are called {name}"
            lines[name] = float(result["value"][1])
    return lines


def may_be_missing(want: Any) -> bool:
    """It may be 0, or there is no such number."""
    return isinstance(want, (float, Range)) and (want == 0.0 or (isinstance(want, float) and math.isnan(want)))


def differences(lines: dict[str, float], wanted: dict[str, Any], slack: float) -> list[str]:
    """Lines that are not as wanted, but for so much, relative."""

    def same(found: float, want: Any) -> bool:
        if isinstance(want, (Range, AnyOf)):
            return any(want == found * factor for factor in (1, 1 - slack, 1 + slack))
        return math.isclose(found, want, rel_tol=slack, abs_tol=1e-12) or (math.isnan(found) and math.isnan(want))

    unasked = [f"{name}: {value}, not expected" for name, value in lines.items() if name not in wanted]
    wrong = [
        f"{name}: {value}, not {wanted[name]}"
        for name, value in lines.items()
        if name in wanted and not same(value, wanted[name])
    ]
    missing = [
        f"{name}: missing, not {want}"
        for name, want in wanted.items()
        if name not in lines and not may_be_missing(want)
    ]
    return unasked + wrong + missing


@pytest.mark.parametrize(("model", "route"), [(None, None), (MODELS[1], None), (MODELS[0], CHAT)])
def test_every_panel_shows_what_was_measured(scene: Scene, model: str | None, route: str | None) -> None:
    """Each query of each panel has an answer, and each line of it is the oracle's, from the snapshots alone: of all
    models and routes, and of those that the variables choose."""
    oracle = expected(Oracle(scene, model, route))
    wrong = {}
    for panel in panels("native" if scene.native else "classic"):
        if panel["type"] != "heatmap":
            wrong[panel["title"]] = differences(
                shown(scene, panel, model, route), oracle.pop(panel["title"]), scene.slack
            )
    assert not any(wrong.values()), json.dumps({title: found for title, found in wrong.items() if found}, indent=1)
    assert not oracle, "expected of no panel"


def test_the_load_leaves_no_line_flat(scene: Scene) -> None:
    """The planted load reaches every query: none is right only because it is 0."""
    kind = "native" if scene.native else "classic"
    flat = [
        (panel["title"], target["legendFormat"])
        for panel in panels(kind)
        if panel["type"] != "heatmap"
        for target in panel["targets"]
        if all(float(result["value"][1]) == 0 for result in scene.results(target["expr"]))
    ]
    assert flat == [("What collections found", "{{process}} uncollectable")]


def test_the_heatmap_shows_every_gap_once(scene: Scene) -> None:
    """Its buckets are the snapshot's: cumulative at the classic bounds, or one by one at the native ones."""
    (panel,) = [panel for panel in panels("native" if scene.native else "classic") if panel["type"] == "heatmap"]
    results = scene.results(panel["targets"][0]["expr"])
    itl = Oracle(scene).gained.itl
    if not scene.native:
        found = {float(result["metric"]["le"]): float(result["value"][1]) for result in results}
        wanted = {
            **{bound: below(itl, bound) / scene.seconds for bound in bounds_of(itl)},
            math.inf: itl.count / scene.seconds,
        }
        assert found == pytest.approx(wanted, rel=scene.slack)
        return
    histogram = results[0]["histogram"][1]
    assert float(histogram["count"]) == pytest.approx(itl.count / scene.seconds)
    assert float(histogram["sum"]) == pytest.approx(itl.sum / scene.seconds)
    for _, low, high, count in histogram["buckets"]:
        wanted_count = below(itl, float(high)) - below(itl, float(low))
        assert float(count) * scene.seconds == pytest.approx(wanted_count, abs=1e-6)


def test_latency_panels_have_exemplars(scene: Scene) -> None:
    """Where a panel asks for exemplars, Prometheus has the trace of the slow request for its query."""
    for panel in panels("native" if scene.native else "classic"):
        for target in panel["targets"]:
            if target["exemplar"]:
                span = {"start": f"{scene.first - 60:.3f}", "end": f"{scene.last:.3f}"}
                found = scene.prometheus.ask("query_exemplars", query=scene.query(target["expr"]), **span)
                traces = {one["labels"].get("trace_id") for series in found for one in series["exemplars"]}
                assert traces == {TRACE_ID}, f"{panel['title']}: {found}"


def test_the_rules_are_evaluated(scene: Scene) -> None:
    """The real server evaluates every rule without an error, and the miss ratio it records is the snapshot's."""

    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in scene.prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["lastEvaluation"][:4] != "0001" for rule in rules) else []

    rules = until(evaluated)
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
    assert {rule["name"] for rule in rules} >= set(alerts())


def test_a_long_full_collection_alerts_with_either_histogram(scene: Scene) -> None:
    """The expressions of the pause alerts, without their thresholds, are what the snapshot has of each process."""
    text = (FOLDER / "tailwatch.rules.yml").read_text()
    oracle = Oracle(scene)

    def values(alert: str) -> dict[str, float]:
        found = re.search(rf"- alert: {alert}\n +expr: >-\n((?: {{10,}}.*\n)+)", text)
        assert found
        expression = re.sub(r"> [0-9.]+\s*$", "", found[1].strip())
        return {
            result["metric"].get("process", result["metric"]["job"]): float(result["value"][1])
            for result in scene.results(expression)
            if result["metric"]["job"] == "tailwatch"
        }

    time_in_full = {process.name: oracle.rate(process.paused["gc2"]) for process in oracle.gained.processes}
    assert values("TailwatchFullCollectionsOverBudget") == pytest.approx(time_in_full, rel=scene.slack)
    late = sum(phases["itl"][cause] for phases in oracle.gained.delay_by_source.values() for cause in phases["itl"])
    share = {"tailwatch": late / oracle.gained.itl.sum}
    assert values("TailwatchPausesCostTokens") == pytest.approx(share, rel=scene.slack)
    long_ones = values("TailwatchLongFullCollection")
    assert set(long_ones) == set(time_in_full) and long_ones["api-0"] >= 1
    for i, process in enumerate(oracle.gained.processes):
        counts = vars(oracle.gained)["_handle"].process[i].stalls[2]
        layout = lib.tw_metric_layout(lib.TW_METRIC_PAUSE + 2)
        histogram = snapshots.Histogram(counts, layout)
        assert long_ones[process.name] == pytest.approx(histogram.count - below(histogram, 0.25), abs=0.01)


def test_promtool_accepts_the_live_page(release: Release, scene: Scene) -> None:
    """`promtool check metrics` on what the server of two processes serves finds no fault in what is ours."""
    body = scene.planted.get("/metrics")
    ours = re.split(r"(?=# HELP )", body)
    text = "".join(family for family in ours if re.match(r"# HELP (tailwatch_|python_gc_duration)", family))
    done = subprocess.run(
        [release.program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
