"""The load of several processes: which count, whose streams wait for which, and what becomes of the dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot

from ..support.process import Python
from ..support.waiting import until

pytestmark = pytest.mark.integration

MS, SECOND = 1_000_000, 1_000_000_000

MEMBER = """
import json, sys
import tailwatch
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="off")
held = []
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    what, number = line.split()
    if what == "open":
        held += [watch.core.stream("m", "/r", None, "", "") for _ in range(int(number))]
    elif what == "run":
        for stream in held[: int(number)]:
            stream.token()
    elif what == "curve":
        # 50 ms to the first token up to 20 streams, 20 ms more for each above
        from tailwatch import _hot
        base = _hot.now() - 20 * 10**9
        for again in range(8):
            streams = []
            for at in range(1, int(number) + 1):
                arrival = base + again * 2 * 10**9
                stream = watch.core.stream("m", "/r", arrival, "", "")
                stream.token(at=arrival + (50 + 20 * max(0, at - 20)) * 10**6)
                streams.append(stream)
            for stream in streams:
                stream.close()
    watch.membership.renew()
    watch.load.refresh()
    now = watch.load_signal()
    print(json.dumps([now.running, now.waiting, now.processes, now.scope, now.verdict, now.healthy]), flush=True)
"""


class Member(Python):
    """Another process of the group."""

    def do(self, what: str, number: int = 0) -> list[Any]:
        """open, run (first tokens), curve, look; what its load signal is afterwards."""
        answer: list[Any] = self.ask(f"{what} {number}")
        return answer


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Member]]:
    """start(role): a process of the group; all are gone afterwards."""
    started: list[Member] = []

    def begin(role: str) -> Member:
        started.append(Member(MEMBER, tmp_path / "group", role))
        assert started[-1].read() is True
        return started[-1]

    yield begin
    for member in started:
        member.kill()
    tailwatch.uninstall()


def install(tmp_path: Path, role: str = "api") -> tailwatch.Watch:
    """This process, in the group."""
    return tailwatch.install(role=role, dir=tmp_path / "group", gc="off", slo="ttft<=100ms")


def renewed(watch: tailwatch.Watch) -> Any:
    """Its load signal, once it has looked around."""
    watch.membership.renew()
    watch.load.refresh()
    return watch.load_signal()


def test_requests_of_all_processes_count(start: Callable[[str], Member], tmp_path: Path) -> None:
    """Running and waiting are of the whole group; one that was killed has none any more."""
    other = start("api")
    other.do("open", 5)
    other.do("run", 2)
    watch = install(tmp_path)
    with watch.stream() as stream:
        stream.token()
        now = renewed(watch)
        assert (now.running, now.waiting, now.processes) == (3, 3, 2)
        other.do("open", 1)
        assert watch.load_signal().waiting == 4  # without another look
        other.kill()
        until(lambda: (renewed(watch).running, watch.load_signal().waiting) == (1, 0))


def test_with_an_engine_concurrency_is_the_groups(start: Callable[[str], Member], tmp_path: Path) -> None:
    """Its streams wait for one another, whichever process has them: the sample goes to the row of all of them."""
    start("engine")
    other = start("api")
    other.do("open", 6)
    watch = install(tmp_path)
    assert renewed(watch).scope == "group"
    with watch.stream() as stream:
        stream.token()
    assert [round(point.streams) for point in watch.load_signal().curve] == []  # one sample is no point
    for _ in range(4):
        with watch.stream() as stream:
            stream.token()
    assert [round(point.streams) for point in renewed(watch).curve] == [7]


def test_without_an_engine_each_process_is_one_server(start: Callable[[str], Member], tmp_path: Path) -> None:
    """Workers with a model each: healthy is that of one, times how many serve; a new request meets a share of them."""
    other = start("api")
    assert other.do("curve", 50)[3:5] == ["process", "found"]
    watch = install(tmp_path)
    watch.stream().__enter__().close()
    now = renewed(watch)
    assert (now.scope, now.processes, now.verdict) == ("process", 2, "found")
    assert now.healthy == pytest.approx(2 * 20, rel=0.1)
    held = [watch.core.stream("m", "/r", None, "", "") for _ in range(60)]
    assert watch.load_signal().ratio == pytest.approx(60 / now.healthy)
    assert watch.load_signal().predicted_ttft == pytest.approx(0.05 + 0.02 * (31 - 20), rel=0.25)
    for stream in held:
        stream.close()


def test_an_engine_that_serves_the_metrics_gives_the_same(start: Callable[[str], Member], tmp_path: Path) -> None:
    """Whichever process is asked."""
    other = start("api")
    watch = install(tmp_path, role="engine")
    renewed(watch)
    other.do("look")
    other.do("curve", 50)
    assert renewed(watch).scope == "group"
    assert watch.load_signal().healthy == pytest.approx(20, rel=0.1)
    assert watch.load_signal().processes == 1


def test_what_the_dead_measured_stays_known(start: Callable[[str], Member], tmp_path: Path) -> None:
    """A worker that is killed and merged: the next one need not find the inflection anew."""
    other = start("api")
    other.do("curve", 50)
    watch = install(tmp_path)
    watch.stream().__enter__().close()
    other.kill()
    until(lambda: (watch.membership.renew(), list((tmp_path / "group").glob("*.gone")))[1])
    now = renewed(watch)
    assert (now.verdict, now.processes) == ("found", 1)
    assert now.healthy == pytest.approx(20, rel=0.1)


def test_concurrency_of_the_others_is_read_at_each_request(start: Callable[[str], Member], tmp_path: Path) -> None:
    """Not as of the last look: what another opened since counts."""
    start("engine")
    other = start("api")
    other.do("open", 1)
    watch = install(tmp_path)
    renewed(watch)
    other.do("open", 9)
    arrival = _hot.now()
    for _ in range(5):
        stream = watch.core.stream("m", "/r", arrival, "", "")
        stream.token()
        stream.close()
    watch.load.refresh()
    assert [round(point.streams) for point in watch.load_signal().curve] == [11]
