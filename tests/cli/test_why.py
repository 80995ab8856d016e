"""``tailwatch why``: the late tokens of a group, running or exited, with causes that add up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailwatch import snapshots
from tailwatch.cli import parser
from tailwatch.diagnose.text import format_causes
from tailwatch.diagnose.why import events_of, format_why
from tailwatch.snapshots.model import Cause, SlowGap

SCRIPT = """
import json, sys, time, tailwatch
tailwatch.install(role="engine", dir=sys.argv[1], page=True, page_token="t")
with tailwatch.stream(model="m", request_id="late-1") as s:
    now = time.monotonic_ns()
    for i in range(20):
        s.token(at=(now := now + 5_000_000))
    s.token(at=now + 300_000_000)
late = tailwatch.why(request="late-1")
assert [gap.token for gap in late if gap.phase == "itl"] == [21], late
snap = tailwatch.snapshot()
assert snap.explained is not None and snap.unexplained["no_loop_clock"] == snap.delay["unexplained"] > 0
print(json.dumps([snap.delay["unexplained"], [[c.seconds, c.cause] for c in late[0].causes]]))
"""

ON_TIME = """
import time, tailwatch
tailwatch.install(role="engine", slow_gap_ms=4)
with tailwatch.stream(model="m") as s:
    now = time.monotonic_ns()
    for _ in range(40):
        s.token(at=(now := now + 5_000_000))
    s.token(at=(now := now + 4_500_000))
    s.token(at=now + 6_000_000)
snap = tailwatch.snapshot()
assert len([gap for gap in snap.recent if gap.phase == "itl"]) == 41, snap.recent
assert [gap.token for gap in tailwatch.why() if gap.phase == "itl"] == [42], tailwatch.why()
assert snap.delay.get("unexplained", 0) == 0, snap.delay
"""


def test_what_is_kept_for_the_log_is_not_late() -> None:
    """Where slow_gap_ms is below the usual gap, only what is later than that is listed, and nothing counts as delay."""
    subprocess.run([sys.executable, "-c", ON_TIME], timeout=60, check=True)


def test_the_causes_of_an_exited_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after its processes have gone, from its directory alone."""
    directory = tmp_path / "group"
    directory.mkdir(mode=0o700)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(directory)], capture_output=True, text=True, timeout=60, check=True
    )
    delay, causes = json.loads(ran.stdout.splitlines()[-1])
    assert delay == pytest.approx(0.295) and causes == [[pytest.approx(0.295), "unexplained"]]

    found = tmp_path / "why.json"
    assert parser.main(["why", "--dir", str(directory), "--json", str(found)]) == 0
    text = capsys.readouterr().out
    assert "late-1  token 21: 300 ms, typically 5 ms: 295 ms late" in text.splitlines()[0]
    assert text.splitlines()[1].split() == ["295", "ms", "engine", "unexplained"]
    (late,) = json.loads(found.read_text())["late"]
    saved = tmp_path / "snapshot.json"
    saved.write_text(json.dumps(snapshots.take_directory(str(directory)).as_dict()))
    assert parser.main(["why", str(saved), "--json", str(found)]) == 0
    assert json.loads(found.read_text())["late"] == [late]
    capsys.readouterr()
    assert sum(cause["seconds"] for cause in late["causes"]) == pytest.approx(late["gap"] - late["typical"])
    assert parser.main(["why", "--dir", str(directory), "--request", "other"]) == 0
    assert capsys.readouterr().out == "no late token is kept\n"


def test_tokens_of_one_event_stand_together() -> None:
    """Eight streams that one collection delayed do not hide the token that a function delayed."""
    from datetime import datetime, timedelta, timezone

    none: dict[str, float] = {}
    noon = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)

    def late(ms: int, seconds: float, name: str, cause: str, what: str = "") -> SlowGap:
        causes = (Cause(seconds, cause, "measured", "api", what),)
        when = noon + timedelta(milliseconds=ms)
        return SlowGap(when, "itl", seconds, 0.0, none, none, 0, 0, 0.0, True, name, "", "m", "/", 9, (), causes)

    collected = [late(i, 0.3 - i / 1000, f"c{i}", "gc2") for i in range(8)]
    again = late(5000, 0.25, "later", "gc2")
    encoded, other = late(3, 0.1, "e", "callback", "encode  a.py:1"), late(4, 0.09, "o", "callback", "parse  b.py:2")
    events = events_of([*collected, again, encoded, other])
    assert [(gap.request_id, others) for gap, others in events] == [("c0", 7), ("later", 0), ("e", 0), ("o", 0)]
    last = format_why(*events[0]).splitlines()[-1]
    assert last.strip() == "and 7 more tokens at that time, late by the same"


def test_causes_as_text() -> None:
    """What is known of a cause stands behind its name, and how certain it is."""
    from datetime import datetime, timezone

    causes = (
        Cause(0.268, "prefill", "estimated", "engine", "chatcmpl-9f5", "tokens", 8192),
        Cause(0.121, "callback", "measured", "api", "encode  serving_chat.py:312"),
        Cause(0.015, "gil", "sampled", "api", "", "holder", 0, "compile_schema  compiler.py:88"),
        Cause(0.008, "unexplained", "measured", "api"),
    )
    none: dict[str, float] = {}
    when = datetime(2026, 11, 25, 14, 2, 11, 482_000, tzinfo=timezone.utc)
    gap = SlowGap(
        when, "itl", 0.426, 0.014, none, none, 0, 0, 0.008, True, "chatcmpl-9f2", "", "m", "/", 87, (), causes
    )

    lines = format_why(gap).splitlines()
    assert lines[0].endswith("chatcmpl-9f2  token 87: 426 ms, typically 14 ms: 412 ms late")
    assert " ".join(lines[1].split()) == "268 ms engine prefill chatcmpl-9f5: 8 192 tokens in this step estimated"
    assert " ".join(lines[3].split()) == "15 ms api gil held by compile_schema compiler.py:88 sampled"
    assert " ".join(lines[4].split()) == "8 ms api unexplained"
    assert format_causes(causes[2:]) == (
        "15 ms gil (api, held by compile_schema  compiler.py:88, sampled), 8 ms unexplained"
    )


BURNING = """
import asyncio, json, time, tailwatch
tailwatch.install(role="api")
def burn():
    end = time.thread_time() + 0.06
    while time.thread_time() < end: sum(range(100))
async def source(queue):
    for i in range(60):
        await asyncio.sleep(0.01)
        if i == 40: asyncio.get_running_loop().call_soon(burn)
        queue.put_nowait(i)
    queue.put_nowait(None)
async def main():
    queue = asyncio.Queue()
    task = asyncio.create_task(source(queue))
    with tailwatch.stream(model="m", request_id="r") as s:
        while await queue.get() is not None: s.token()
    await task
asyncio.run(main())
snap = tailwatch.snapshot()
text = tailwatch.current().exposition.render("")[1].decode()
difference = sum(snap.delay_by_certainty.values()) - sum(snap.delay.values())
longest = max(c.seconds for gap in tailwatch.why() for c in gap.causes if c.cause == "callback")
print(json.dumps([longest, snap.explained, difference, 'cause="callback"' in text, "burn" in text]))
"""


def test_what_blocked_the_loop_is_a_cause() -> None:
    """In a real event loop: CPU time of another callback is its delay, and no name stands in /metrics. Others delay
    other tokens, where the machine is busy."""
    ran = subprocess.run([sys.executable, "-c", BURNING], capture_output=True, text=True, timeout=60, check=True)
    callback, explained, difference, exported, named = json.loads(ran.stdout.splitlines()[-1])

    assert 0.9 * 0.05 < callback < 1.5 * 0.06
    assert explained > 0.8
    assert abs(difference) < 1e-9
    assert exported and not named
