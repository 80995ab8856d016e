"""What the page is given: the document, its guards, and the numbers, which are the snapshot's."""

from __future__ import annotations

import gc
import gzip
import re
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Any
from unittest.mock import ANY

import orjson
import pytest

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch._cold import ffi, lib
from tailwatch.export import page as page_module
from tailwatch.export.page import WINDOWS, Page, Query, Reply
from tailwatch.serve.page_access import Access
from tailwatch.snapshots.model import Cause

from ..support.waiting import until

HOSTILE = "<img src=x onerror=alert(1)>\"'</script>\u2028"


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """A process with the page on, that streamed a little, with one gap made slow by a collection."""
    watch = tailwatch.install(role="api", gc="observe", page=True, slow_gap_ms=20, slo="ttft<=60s,itl<=60s@99%")
    gc.freeze()  # what the tests before this one have left would be collected too
    try:
        heap: list[Any] = [[i] for i in range(30_000)]
        for number in range(3):
            with tailwatch.stream(
                model=HOSTILE, request_id=f"r-{number}", trace_id="0af7651916cd43dd8448eb211c80319c"
            ) as s:
                for _ in range(6):
                    s.token()
                    time.sleep(0.001)
                gc.collect()
                time.sleep(0.02)
                s.token()
        heap.clear()
        yield watch
    finally:
        gc.unfreeze()
        tailwatch.uninstall()


def data(page: Page, query: str = "window=all") -> dict[str, Any]:
    """The numbers as they travel."""
    reply = page.reply(True, Access.GRANTED, query, "")
    assert reply.status == 200
    served: dict[str, Any] = orjson.loads(b"".join(reply.parts))
    return served


def named(reply: Reply) -> dict[str, str]:
    """Headers by name; each stands there once."""
    names = [name.lower() for name, _ in reply.headers]
    assert len(names) == len(set(names))
    return dict(zip(names, (value for _, value in reply.headers), strict=True))


def test_the_numbers_are_the_snapshots(watch: tailwatch.Watch) -> None:
    """Bit for bit, of all the time and of a window."""
    watch.history.push(watch.snapshot())
    for name, seconds in WINDOWS.items():
        served, snap = watch.page.numbers(name), watch.snapshot(seconds)
        for key in ("ttft", "itl", "itl_without_gc", "tpot", "e2e"):
            shown, samples = served["latency"][key], getattr(snap, key)
            assert (shown["count"], shown["sum"]) == (samples.count, samples.sum)
            assert [shown[p] for p in ("p50", "p90", "p99", "p999")] == [samples.p(p) for p in (50, 90, 99, 99.9)]
            assert (shown["min"], shown["max"]) == (samples.min, samples.max)
            assert sum(shown["bins"]["counts"]) == samples.count
        assert (served["reasons"], served["outcomes"]) == (snap.requests, snap.outcomes)
        assert served["in_flight"] == snap.in_flight
        delay: dict[str, float] = dict.fromkeys(snap.overlap, 0.0)
        for _, cause, value, _ in served["sources"]:
            delay[cause] += value
        assert delay == pytest.approx({cause: snap.delay[cause] for cause in delay})
    for name in ("1m", "5m", "1h"):
        now, served, then = watch.snapshot(), watch.page.numbers(name), watch.snapshot()
        assert served["attainment"] == now.window(name).attainment
        assert now.goodput(name) >= served["goodput"] >= then.goodput(name) > 0  # seconds begin in between
    assert [row["name"] for row in served["processes"]] == [process.name for process in now.processes]
    assert {row["request"] for row in served["slow"]} == {slow.request_id for slow in now.slowest}


def test_every_name_of_the_docstring_is_there(watch: tailwatch.Watch) -> None:
    """And none that it does not name."""
    doc = page_module.__doc__ or ""
    served = data(watch.page)
    assert {name for name in served if not re.search(rf"\b{name}\b", doc)} == set()
    for rows in (served["slow"], served["processes"], list(served["latency"].values())):
        assert {name for name in rows[0] if not re.search(rf"\b{name}\b", doc)} == set()
    assert set(served) == {
        *("window", "seconds", "taken", "slo", "headline", "in_flight", "opened", "reasons", "outcomes", "goodput"),
        *("throughput", "tokens", "attainment", "fluidity", "latency", "models", "sources", "processes", "slow"),
        *(
            "load",
            "bin",
            "dropped",
            "version",
            "waiting",
            "healthy",
            "filter",
            "counted",
            "label_window",
            "routes",
            "label_sets",
            "slow_since",
        ),
    }


def test_a_slow_gap_names_its_cause(watch: tailwatch.Watch) -> None:
    """The planted collections are shown with their request, and what they cost."""
    planted = [row for row in data(watch.page)["slow"] if row["phase"] == "itl"]
    assert {row["request"] for row in planted} == {"r-0", "r-1", "r-2"}
    for row in planted:
        assert row["gap"] >= 0.02 and row["model"] == HOSTILE.replace("\u2028", row["model"][-1])
        assert row["delay"] <= row["overlap"] + 1e-9
        assert row["cause"] == row["causes"][0][1]
        assert sum(seconds for seconds, *_ in row["causes"]) == pytest.approx(row["gap"] - row["typical"], rel=0.02)


@pytest.fixture
def models() -> Iterator[tailwatch.Watch]:
    """Three models on two routes, the first on the first with the most requests; each request has a slow gap."""
    watch = tailwatch.install(role="api", gc="off", page=True, slow_gap_ms=5, slo="ttft<=60s,itl<=60s@99%")
    try:
        for number, (model, route) in enumerate((m, r) for m in ("a b&c", "m", "n") for r in ("/v1/x", "/v1/y")):
            for _ in range(1 + (number == 0)):
                with tailwatch.stream(model=model, route=route) as s:
                    for pause in (0.0, 0.0, 0.0, 0.0, 0.02):
                        time.sleep(pause)
                        s.token()
        yield watch
    finally:
        tailwatch.uninstall()


def test_a_row_for_each_model_and_route(models: tailwatch.Watch) -> None:
    """Those with the most requests first; each with its own numbers, whatever the filter."""
    served, snap = data(models.page, "window=1m&model=n"), models.snapshot()
    assert served["models"] == ["a b&c", "m", "n"] and served["routes"] == ["/v1/x", "/v1/y"]
    rows = served["label_sets"]
    assert {(row["model"], row["route"]) for row in rows} == set(snap.labels) and len(rows) == 6
    assert (rows[0]["model"], rows[0]["route"]) == ("a b&c", "/v1/x")
    for row in rows:
        own = snap.where(model_name=row["model"], route=row["route"])
        assert row["itl"] == [own.itl.p(50), own.itl.p(99)] and row["ttft"] == [own.ttft.p(50), own.ttft.p(99)]
        assert row["attainment"] == 1.0
        assert row["tokens"] == pytest.approx(5 * row["requests"])
    assert rows[0]["requests"] == pytest.approx(2 * rows[1]["requests"])


def test_most_rows_and_queries_are_bounded(models: tailwatch.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more label sets the rows are of those with the most requests; of more questions the last answers are kept."""
    monkeypatch.setattr(page_module, "_MOST_ROWS", 1)
    monkeypatch.setattr(page_module, "_MOST_QUERIES", 2)
    for model in ("m", "n", "m", "none"):
        (row,) = data(models.page, f"model={model}")["label_sets"]
        assert (row["model"], row["route"]) == ("a b&c", "/v1/x")
    assert [query.model for query in models.page._kept] == ["m", "none"]


@pytest.mark.parametrize(
    ("query", "where", "gaps"),
    [
        ("model=a+b%26c", {"model_name": "a b&c"}, 3),
        ("route=%2Fv1%2Fy&window=5m", {"route": "/v1/y"}, 3),
        ("window=1m&model=m&route=/v1/x", {"model_name": "m", "route": "/v1/x"}, 1),
        ("model=none", {"model_name": "none"}, 0),
    ],
)
def test_the_filter(models: tailwatch.Watch, query: str, where: dict[str, str], gaps: int) -> None:
    """Requests, tokens, rates and latencies are of the label sets that are chosen; slow gaps too."""
    served, snap = data(models.page, query), models.snapshot().where(**where)
    assert served["filter"] == {"model": where.get("model_name"), "route": where.get("route")}
    assert served["reasons"] == snap.requests and served["outcomes"] == snap.outcomes
    assert served["latency"]["itl"]["count"] == snap.itl.count and served["latency"]["ttft"]["p99"] == snap.ttft.p(99)
    assert served["tokens"] * served["counted"] == pytest.approx(snap.tokens)
    assert served["attainment"] == snap.attainment and served["fluidity"] is None
    slow = [row for row in served["slow"] if row["phase"] == "itl"]
    assert (len(slow) >= gaps > 0) or not (slow or gaps)  # a busy machine adds some
    for row in served["slow"]:
        assert where in [
            {"model_name": row["model"], "route": row["route"]},
            {"model_name": row["model"]},
            {"route": row["route"]},
        ]
    assert served["opened"] == 7 and len(served["label_sets"]) == 6


def test_rows_and_filter_are_of_the_window(models: tailwatch.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came since the mark that is nearest to its begin; without one that has label sets, all since the start."""
    models.history = snapshots.History()
    models.history.push(models.snapshot())
    look = snapshots.History.window_of_labels
    monkeypatch.setattr(snapshots.History, "window_of_labels", lambda history, now, _: look(history, now, 1e-3))
    assert models.page.numbers("1m")["label_window"] is None
    models.history = snapshots.History()
    models.history.keep_labels()
    models.history.push(models.snapshot())
    with tailwatch.stream(model="n", route="/v1/y") as stream:
        stream.token(5)
    served, filtered, all_of_it = models.page.numbers("1m"), models.page.numbers("1m", "m"), models.page.numbers("all")
    seconds, rows = served["label_window"], {(row["model"], row["route"]): row for row in served["label_sets"]}
    assert len(rows) == 6 and seconds < models.snapshot().seconds / 2
    assert rows["n", "/v1/y"]["tokens"] * seconds == pytest.approx(5)
    assert rows["n", "/v1/y"]["requests"] * seconds == pytest.approx(1)
    assert rows["m", "/v1/y"]["tokens"] == rows["m", "/v1/y"]["requests"] == 0
    assert rows["m", "/v1/y"]["attainment"] is None and rows["m", "/v1/y"]["itl"] == [None, None]
    assert filtered["latency"]["itl"]["count"] == filtered["tokens"] == 0 and filtered["counted"] >= seconds
    assert models.page.numbers("1m", "n")["outcomes"]["good"] == 1
    assert all_of_it["label_window"] is None and sum(row["tokens"] for row in all_of_it["label_sets"]) > 0


def test_gaps_fill_the_window() -> None:
    """Beyond the last 256 the longest of each minute is there, and the moment since which all of them are."""
    core = _hot.Core("api", 8, (10**10, 0, 0, 0, 990_000), 10**8, lambda scope: "", lambda waiting, stream: waiting)
    at = _hot.now() // (60 * 10**9) * 60 * 10**9 - 80 * 10**9  # 20 s before a minute ends: its gaps are not the last
    longest: dict[int, float] = {}
    for number in range(440):
        stream = core.stream("m" if number % 2 else "n", "/r", at, "", "")
        for gap in (*[4_000_000] * 9, 110_000_000 + 10_000 * number):
            stream.token(at=(at := at + gap))
        longest[at // (60 * 10**9)] = 0.11 + 1e-5 * number
        stream.close(at=at)
    snap = snapshots.take([core.address])
    found = page_module._slow(snap, 150.0, Query())
    gaps = [row["gap"] for row in found["slow"]]
    assert {round(gap, 6) for gap in longest.values()} <= {round(gap, 6) for gap in gaps} and len(longest) == 2
    assert gaps[:256] == pytest.approx([0.11 + 1e-5 * number for number in range(439, 183, -1)])
    assert found["slow_since"] == found["slow"][255]["t"] and len(gaps) > 256
    of_one = page_module._slow(snap, 150.0, Query(model="m"))
    assert of_one["slow_since"] == found["slow_since"]
    assert [row["gap"] for row in of_one["slow"]] == [row["gap"] for row in found["slow"] if row["model"] == "m"]
    assert page_module._slow(snap, 20.0, Query())["slow_since"] is None


def slow_gap(**changed: Any) -> snapshots.SlowGap:
    """One, with nothing that explains it."""
    none = dict.fromkeys(snapshots.CAUSES, 0.0)
    given: dict[str, Any] = {
        "when": datetime.fromtimestamp(0, timezone.utc),
        "phase": "itl", "gap": 1.0, "typical": 0.01, "overlap": none, "delay": none, "client": 0.0, "accept": 0.0,
        "unexplained": 0.0, "complete": True, "request_id": "", "trace_id": "", "model_name": "m",
        "route": "r", "token": 2,
    }  # fmt: skip
    return snapshots.SlowGap(**(given | changed))


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, "rest"),
        ({"causes": [(0.9, "unexplained")]}, "unexplained"),
        ({"causes": [(0.5, "client"), (0.4, "upstream")]}, "client"),
        ({"causes": [(0.6, "gc_own"), (0.4, "unexplained")]}, "gc_own"),
        ({"complete": False, "causes": [(0.9, "unexplained")]}, "unknown"),
        ({"complete": False}, "unknown"),
        ({"complete": False, "causes": [(0.9, "client")]}, "client"),
    ],
)
def test_the_cause_is_where_most_of_the_time_went(changed: dict[str, Any], cause: str) -> None:
    """A gap whose pauses were overwritten is not charged to the model."""
    causes = tuple(Cause(seconds, name, "measured", "api") for seconds, name in changed.pop("causes", ()))
    row = page_module._gap(slow_gap(**changed, causes=causes))
    assert row["cause"] == cause
    assert row["source"] == ("api" if cause in ("client", "gc_own") else "")
    assert row["causes"] == [[each.seconds, each.cause, "measured", "api", ANY] for each in causes]


def test_nothing_measured_yet_is_shown_too() -> None:
    """Null where there is no number, and a sentence."""
    watch = tailwatch.install(role="api", gc="off", page=True)
    try:
        served = data(watch.page)
        assert served["opened"] == 0 and served["slow"] == [] and served["attainment"] is None
        assert served["latency"]["ttft"]["p99"] is None and served["latency"]["ttft"]["bins"]["counts"] == []
        assert served["headline"] and served["waiting"] == 0
        assert served["healthy"]["streams"] is None and served["healthy"]["verdict"] == "few_data"
    finally:
        tailwatch.uninstall()


def test_ten_viewers_cost_as_much_as_one(watch: tailwatch.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request within two seconds gets what the last one got; each window is made once."""
    taken: list[float] = []
    snapshot = watch.snapshot

    def counting() -> snapshots.Snapshot:
        taken.append(time.monotonic())
        return snapshot()

    monkeypatch.setattr(watch.page, "_take", counting)
    monkeypatch.setattr(page_module, "KEEP_SECONDS", 3600.0)
    bodies: list[bytes] = []
    viewers = [
        threading.Thread(
            target=lambda: bodies.append(b"".join(watch.page.reply(True, Access.GRANTED, "window=1m", "").parts))
        )
        for _ in range(10)
    ]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert len(taken) == 1 and len(bodies) == 10 and len(set(bodies)) == 1
    data(watch.page, "window=5m")
    assert len(taken) == 2
    monkeypatch.setattr(page_module, "KEEP_SECONDS", 0.0)
    data(watch.page, "window=5m")
    assert len(taken) == 3


def test_an_answer_that_fails_is_not_kept(watch: tailwatch.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may come."""

    def broken() -> snapshots.Snapshot:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(watch.page, "_take", broken)
        with pytest.raises(ZeroDivisionError):
            watch.page.reply(True, Access.GRANTED, "window=1m", "")
    assert data(watch.page, "window=1m")["opened"] == 3


@pytest.mark.parametrize(
    "query",
    ["window=2m", "window=<script>", "window=1m&x=1", "x", "window=", "window=1M", "model=a&model=b", "model=%00"],
)
def test_another_query_is_refused_and_not_repeated(watch: tailwatch.Watch, query: str) -> None:
    """400, the same words whatever was asked."""
    reply = watch.page.reply(True, Access.GRANTED, query, "")
    assert reply.status == 400 and b"1m, 5m, 1h, all\n" in b"".join(reply.parts)
    assert reply.parts == watch.page.reply(True, Access.GRANTED, "window=another", "").parts


def test_the_default_window(watch: tailwatch.Watch) -> None:
    """Five minutes, as the page's own control has it."""
    assert data(watch.page, "")["window"] == "5m"


GUARDS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("access", list(Access))
def test_every_answer_is_guarded(watch: tailwatch.Watch, wanted: bool, access: Access) -> None:
    """Whatever it sends; no other origin is let in, and nothing is stored."""
    reply = watch.page.reply(wanted, access, "", "")
    headers = named(reply)
    assert GUARDS.items() <= headers.items()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers and "set-cookie" not in headers
    assert headers["content-length"] == str(sum(map(len, reply.parts)))
    assert all(len(part) <= 65536 for part in reply.parts)
    assert reply.status == {Access.GRANTED: 200, Access.TOKEN: 401}.get(access, 403)
    assert ("www-authenticate" in headers) == (access is Access.TOKEN)


def test_without_access_no_number_is_sent(watch: tailwatch.Watch) -> None:
    """What is shown instead is the same before anything was measured: the document asks for the token."""
    locked = b"".join(watch.page.reply(False, Access.TOKEN, "", "").parts)
    opened = b"".join(watch.page.reply(False, Access.GRANTED, "", "").parts)
    assert locked.replace(b'data-access="locked"', b'data-access="open"') == opened != locked
    assert b"onerror=alert" not in opened
    for access in (Access.TOKEN, Access.ELSEWHERE, Access.FOREIGN):
        assert len(b"".join(watch.page.reply(True, access, "window=all", "").parts)) < 200
        assert access is Access.TOKEN or len(b"".join(watch.page.reply(False, access, "", "").parts)) < 200


def document(watch: tailwatch.Watch) -> tuple[str, str]:
    """The page, and its policy."""
    reply = watch.page.reply(False, Access.GRANTED, "", "")
    return b"".join(reply.parts).decode(), named(reply)["content-security-policy"]


def hashes(texts: list[str]) -> set[str]:
    """As a policy names them."""
    return {f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts}


def test_the_policy_names_what_stands_in_the_document_and_nothing_else(watch: tailwatch.Watch) -> None:
    """Two scripts and one style, by their hashes."""
    text, policy = document(watch)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (len(scripts), len(styles)) == (2, 1) == (text.count("<script"), text.count("<style"))
    assert set(rules["script-src"].split()) == hashes(scripts)
    assert set(rules["style-src"].split()) == hashes(styles)
    assert (rules["connect-src"], rules["img-src"]) == ("'self'", "data:")
    assert {rules[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy and "http" not in policy


def test_the_document_needs_no_other_file(watch: tailwatch.Watch) -> None:
    """No address in it is fetched, no handler or style stands in an attribute; every mark was replaced."""
    text, _ = document(watch)
    markup = re.sub(r"<(script|style)>.*?</\1>|<!--.*?-->", "", text, flags=re.DOTALL)
    assert re.findall(r'(?:src|href|action)="(?!#|data:)', markup) == []
    assert re.findall(r'\s(?:on\w+|style)="', markup) == []
    assert re.findall(r"@@\w+@@", text) == []
    assert "Copyright (c) 2022 Leon Sorokin" in text and "uPlot" in text
    assert re.findall(r"url\((?!data:)|@import", text) == []
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script) == []


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ],
)
def test_uplot_is_as_it_was_published(name: str, digest: str) -> None:
    """Version 1.6.32 of the npm package `uplot` (`npm pack uplot@1.6.32`), bytes untouched, its licence beside it."""
    assert sha256(files("tailwatch").joinpath("page", "uplot", name).read_bytes()).hexdigest() == digest


def luminance(colour: str) -> float:
    """Of #rrggbb, as WCAG has it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_contrast_with_what_is_behind_them() -> None:
    """WCAG: text 4.5 to 1, marks 3 to 1, in both themes; the dark one is the same where the system asks for it."""
    style = files("tailwatch").joinpath("page", "page.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in re.findall(r"\{([^{}]*--bg:[^{}]*)\}", style)
    ]
    light, dark, asked = blocks
    assert dark == asked and light.keys() == dark.keys()
    for theme in (light, dark):
        for names, least in ((("ink", "soft", "accent", "good", "warn"), 4.5), (CAUSES, 3.0)):
            for name in names:
                for behind in ("bg", "card"):
                    high, low = sorted((luminance(theme[name]), luminance(theme[behind])), reverse=True)
                    assert (high + 0.05) / (low + 0.05) >= least, (name, behind, theme[name])


CAUSES = ("gc0", "gc1", "gc2", "policy", "client", "accept", "host", "engine", "rest")


def test_gzip_where_it_is_accepted(watch: tailwatch.Watch) -> None:
    """The same bytes, in a third of the room."""
    for wanted in (False, True):
        plain = watch.page.reply(wanted, Access.GRANTED, "window=1h", "")
        packed = watch.page.reply(wanted, Access.GRANTED, "window=1h", "br, gzip;q=0.5")
        assert named(packed)["content-encoding"] == "gzip" and "content-encoding" not in named(plain)
        assert gzip.decompress(b"".join(packed.parts)) == b"".join(plain.parts)
    assert len(b"".join(watch.page.reply(False, Access.GRANTED, "", "gzip").parts)) < 48_000


def test_a_fork_child_begins_anew(watch: tailwatch.Watch) -> None:
    """Locks and what was kept are the parent's."""
    data(watch.page, "window=1m")
    kept = watch.page._kept
    watch.page.after_fork()
    assert watch.page._kept is not kept and not watch.page._in_flight


# What snapshots give it -----------------------------------------------------------------------------------


def test_bins_hold_every_sample_where_it_belongs(make_histogram: Callable[[list[int]], snapshots.Histogram]) -> None:
    """Bin i is above 2**(i/8) and up to 2**((i+1)/8) seconds, to the width of a bucket; the ends hold the rest."""
    for ns in (
        1,
        999,
        1_000,
        20_500,
        3_333_333,
        4_000_000,
        50_000_000,
        1_000_000_000,
        7_100_000_000,
        999_000_000_000,
        10**13,
    ):
        first, counts = make_histogram([ns]).bins()
        assert counts == [1]
        seconds = ns / 1e9
        if 2**-19.9 < seconds < 2**9.9:
            assert 2 ** (first / 8) / 1.0219 <= seconds <= 2 ** ((first + 1) / 8) * 1.0219
        else:
            assert first in (-160, 79)
    values = [10**6 * k for k in range(1, 300)]
    first, counts = make_histogram(values).bins()
    assert sum(counts) == 299 and counts[0] and counts[-1]
    assert make_histogram([]).bins() == (0, [])


@pytest.fixture
def make_histogram() -> Callable[[list[int]], snapshots.Histogram]:
    """Makes one of these nanoseconds."""

    def make(values: list[int]) -> snapshots.Histogram:
        layout = lib.tw_layout_of(lib.TW_LAYOUT_ITL)
        histogram, counts = ffi.new("tw_histogram *"), ffi.new("tw_counts *")
        lib.tw_histogram_init(histogram)
        for value in values:
            lib.tw_histogram_record(histogram, layout, value)
        lib.tw_histogram_read(histogram, counts)
        return snapshots.Histogram(counts, layout)

    return make


def test_by_second_adds_up_to_the_window(watch: tailwatch.Watch) -> None:
    """Good, missed and finished, each request in one second; none is invented where there is no room."""
    snap = watch.snapshot()
    rows, window = snap.by_second(300), snap.window(300)
    assert [sum(row[i] for row in rows) for i in (1, 2, 3)] == [window.good, window.miss, window.finished] == [3, 0, 3]
    assert [row.at for row in rows] == sorted({row.at for row in rows})
    assert all(snap.monotonic - 300 < row.at <= snap.monotonic for row in rows)
    assert snap.by_second(0) == [] and snap.by_second(10**9) == rows


def test_load_is_given_in_whole_steps(watch: tailwatch.Watch) -> None:
    """Each step once, however often it is asked; what is not over yet is left out."""

    def whole() -> dict[str, Any] | None:
        """All three, once the daemon came by to see what was in flight."""
        served = watch.page.numbers("1m")
        seen = any(row[4] is not None for row in served["load"])
        return served if seen and sum(row[1] for row in served["load"]) * served["bin"] == pytest.approx(3) else None

    served = until(whole)
    assert served
    moments = [row[0] for row in served["load"]]
    assert all(round(b - a, 1) == served["bin"] for a, b in pairwise(moments))
    assert all(row[3] >= row[1] for row in served["load"])


def test_numbers_are_the_same_without_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment that imports the package from its launcher: the same JSON, and null for what is no number."""
    numbers = {"a": [1.5, float("nan"), None], "b": {"c": (float("inf"), "text", 3, True)}}
    made = page_module._encode(numbers)
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert page_module._encode(numbers) == made == b'{"a":[1.5,null,null],"b":{"c":[null,"text",3,true]}}'
