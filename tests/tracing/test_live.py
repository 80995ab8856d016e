"""Timelines of processes that go on writing, and of one that was killed in the middle of it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch.tracing import ring_files

from ..support.process import Python

pytestmark = pytest.mark.integration

Load = Callable[..., Any]

# Streams, steps and collections as fast as they go, in two threads: the rings wrap many times a second.
BUSY = """
import gc, sys, threading, tailwatch
tailwatch.install(role="engine", dir=sys.argv[1], trace_events=4096, gc="observe")
def run():
    while True:
        with tailwatch.stream(model="m") as stream:
            for _ in range(50):
                with tailwatch.step("decode", batch=1, waiting=1):
                    stream.token()
threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(20): gc.collect()
print("ready", flush=True)
for thread in threads: thread.join()
"""


@pytest.fixture
def busy() -> Iterator[tuple[Python, Path]]:
    """Such a process, and its group."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("a group's directory must be under /dev/shm: run it on Linux, with that mounted")
    with tempfile.TemporaryDirectory(prefix="tailwatch-test-live-", dir="/dev/shm") as directory:
        with Python(BUSY, directory) as process:
            assert process.read_line() == "ready"
            yield process, Path(directory)


def whole(answers: Any, written: Any) -> None:
    """What the file holds is what the writer reports, and each request lies inside its time."""
    counts = dict(answers.rows("select name, count(*) as n from slice group by name"))
    assert counts.get("token", 0) + counts.get("first token", 0) == written.tokens
    assert counts.get("request", 0) == written.requests
    assert counts.get("decode", 0) == written.steps
    outside = """
    select count(*) from slice token join slice parent on token.parent_id = parent.id
    where parent.dur >= 0 and (token.ts < parent.ts or token.ts > parent.ts + parent.dur)
    """
    assert answers.one(outside) == 0
    lost = answers.rows(
        "select sum(int_value) as n from slice join args using (arg_set_id) "
        "where slice.name = 'events lost' and key = 'debug.count'"
    )
    assert lost == [(written.lost,)]


def test_a_ring_that_is_written_while_it_is_read(tmp_path: Path, load: Load, busy: tuple[Python, Path]) -> None:
    """Each timeline is whole and has the number of events that were overwritten before they could be read.

    A reader that loses its processor for a lap of the ring reads no token: it reads until three timelines have some.
    """
    _, directory = busy
    with_tokens = 0
    for turn in itertools.count():
        out = tmp_path / f"{turn}.pftrace"
        _, written = ring_files.write_group(str(directory), str(out))
        assert written.lost > 0
        assert written.unreadable == 0
        whole(load(out), written)
        with_tokens += written.tokens > 0
        if with_tokens == 3:
            break


def test_killed_while_it_wrote(tmp_path: Path, load: Load, busy: tuple[Python, Path]) -> None:
    """kill -9: what it had recorded is there, up to the last event."""
    process, directory = busy
    process.kill()
    out = tmp_path / "out.pftrace"
    (file,), written = ring_files.write_group(str(directory), str(out))
    assert file.over
    assert written.events == file.events
    assert written.lost == file.lost
    assert written.tokens > 0
    whole(load(out), written)
