"""The page of a run as a file: what is in it, that it fetches nothing, and what a hostile name cannot do in it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.report import bench, document
from tailwatch.loadtest.report.blocks import (
    Axis,
    Chart,
    Curve,
    Pair,
    ReportPage,
    Table,
    Tile,
    Tiles,
    View,
    Words,
    nines,
)
from tailwatch.loadtest.results import Result

from . import made_runs

pytestmark = pytest.mark.integration

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>'\"&\u2028"


class Reader(HTMLParser):
    """Elements, what they link to, and the texts of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.policy = ""
        self.texts: list[tuple[str, dict[str, str | None], str]] = []
        self.words = ""
        self._open: tuple[str, dict[str, str | None]] | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href", "action", "data")]
        self.handlers += [name for name, _ in attributes if name.startswith("on") or name == "style"]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        self._open = (tag, found) if tag in ("script", "style") else None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.texts.append((*self._open, data))
        else:
            self.words += data

    def handle_endtag(self, tag: str) -> None:
        self._open = None


def read(text: str) -> Reader:
    """A document, taken apart as a browser would."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def charts(text: str) -> list[dict[str, Any]]:
    """The numbers that lie in a document."""
    data = [data for tag, attributes, data in read(text).texts if attributes.get("type") == "application/json"]
    assert len(data) == 1
    found: list[dict[str, Any]] = json.loads(data[0])
    return found


@pytest.fixture(scope="module")
def capped() -> Result:
    """A run with a cap that bound."""
    return made_runs.stalled(cap=3)


def test_the_document_needs_nothing_else(capped: Result) -> None:
    """It links to nothing but itself, and no attribute of it is a script or a style."""
    reader = read(document.document(bench.page(capped)))
    assert {link for link in reader.links if not link.startswith("data:")} == {"#main"}
    assert reader.handlers == []
    assert {"iframe", "object", "embed", "form", "base"} & set(reader.tags) == set()


def test_the_policy_allows_what_stands_in_it_and_no_more(capped: Result) -> None:
    """Each script and style is named by its hash; nothing may be fetched."""
    reader = read(document.document(bench.page(capped)))
    rules = dict(rule.strip().split(" ", 1) for rule in reader.policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "connect-src" not in rules
    for tag, attributes, data in reader.texts:
        if attributes.get("type") != "application/json":
            allowed = rules["script-src" if tag == "script" else "style-src"]
            assert b64encode(sha256(data.encode()).digest()).decode() in allowed


def test_names_are_text(capped: Result) -> None:
    """Whatever a target, a name, a reason or an SLO holds, it opens no element and ends none."""
    plain = document.document(bench.page(capped))
    validity = dataclasses.replace(capped.validity, reasons=[HOSTILE], warnings=[HOSTILE])
    hostile = dataclasses.replace(capped, name=HOSTILE, target=HOSTILE, validity=validity)
    text = document.document(bench.page(hostile))
    assert [tag for tag in read(text).tags if tag != "p"] == [tag for tag in read(plain).tags if tag != "p"]
    assert read(text).handlers == []
    assert HOSTILE in read(text).words


@given(st.text(max_size=60))
def test_a_chart_shows_what_it_was_given(name: str) -> None:
    """Any text goes through the data unchanged, and leaves the document whole."""
    view = View(name, Axis("clock", name), Axis("latency"), (Curve(name, "points", "good", [0.5], [0.1]),), note=name)
    text = document.document(ReportPage("t", "l", (Chart("c", (view,)),)))
    found = charts(text)[0]["views"][0]
    assert (found["name"], found["x"]["label"], found["curves"][0]["name"], found["note"]) == (name,) * 4


def test_numbers_that_json_has_not_are_nothing() -> None:
    """NaN and infinity are null; the others keep five digits."""
    curve = Curve("c", "line", "good", [0.0, 1.0, 2.0], [math.nan, math.inf, 1.23456789])
    text = document.document(ReportPage("t", "l", (Chart("c", (View("v", Axis("clock"), Axis("number"), (curve,)),)),)))
    assert charts(text)[0]["views"][0]["curves"][0]["ys"] == [None, None, 1.2346]


def test_all_kinds_of_blocks_are_rendered() -> None:
    """Words with code, tiles, tables whose later rows belong to the first, two charts side by side."""
    view = View("v", Axis("clock"), Axis("number"), (), alt="what it shows")
    blocks = (
        Words(("a `b` c",), "Title", (("term", "meaning"),), warn=True),
        Tiles((Tile("name", "1", "note", bad=True),)),
        Table("Numbers", ("", "n"), (("x", "1"), ("", "2")), note="see `y`"),
        Pair(Chart("one", (view,)), Chart("two", (view,))),
    )
    text = document.document(ReportPage("t", "the `lead`", blocks, status="fine"))
    for part in (
        "<code>b</code>", "<dt>term</dt>", 'class=bad', "<tr class=more>", "<code>y</code>", "<code>lead</code>",
        'data-chart="0"', 'data-chart="1"', 'aria-label="what it shows"', ">fine</p>",
    ):  # fmt: skip
        assert part in text


def test_the_tail_is_magnified_by_nines() -> None:
    """p90, p99 and p99.9 stand at equal distances; the largest stands somewhere, too."""
    assert [round(nines(share), 9) for share in (0.0, 0.9, 0.99, 0.999)] == [0.0, 1.0, 2.0, 3.0]
    assert nines(1.0) == nines(1 - 1e-12) == 9.0


def test_the_page_leads_with_what_was_found(capped: Result) -> None:
    """Goodput with its bounds, and both clocks where they differ."""
    lead = bench.page(capped).lead
    assert "36.3/s of the 40/s " in lead and "good" in lead
    assert re.search(r"TTFT p99 is 911 ms;.*\bthe send\b.* 6 ms\.", lead)


def test_an_invalid_run_leads_with_that() -> None:
    """No number stands before the reason why none is valid."""
    page = bench.page(made_runs.paused())
    assert page.lead.startswith("This run shows nothing ") and "up to 1 s late" in page.lead
    assert page.bad and page.status.startswith("INVALID")


def views(page: ReportPage, title: str) -> dict[str, View]:
    """Of the chart of that title."""
    pairs = ((block.one, block.other) if isinstance(block, Pair) else (block,) for block in page.blocks)
    flat = [block for both in pairs for block in both]
    found = next(chart for chart in flat if isinstance(chart, Chart) and chart.title == title)
    return {view.name: view for view in found.views}


def test_the_distribution_has_both_clocks_and_the_bound(capped: Result) -> None:
    """The corrected curve never lies below the naive one, and the SLO is drawn."""
    view = views(bench.page(capped), "Latency, the tail magnified")["TTFT"]
    corrected, naive = view.curves
    assert (corrected.name, naive.style) == ("from the planned start", "dashed")
    assert all(
        one is not None and two is not None and one >= two - 1e-9
        for one, two in zip(corrected.ys, naive.ys, strict=True)
    )
    assert view.marks[0].at == 0.2


def test_a_stall_is_a_comb() -> None:
    """A request planned in the second that stood still waited for its end: TTFT falls with slope -1."""
    points = views(bench.page(made_runs.stalled()), "When it was slow")["TTFT"].curves
    late = [(x, y) for curve in points for x, y in zip(curve.xs, curve.ys, strict=True) if 9.0 <= x < 10.0]
    assert len(late) > 20
    assert all(y is not None and y == pytest.approx(10.0 - x + 0.0055, abs=0.001) for x, y in late)
    assert len(views(bench.page(made_runs.stalled()), "When it was slow")["largest gap"].curves) == 2


def test_requests_in_flight_are_counted_from_all_sends_and_ends() -> None:
    """Also in the seconds in which nothing is sent any more."""
    run = made_runs.stalled()
    assert run.requests is not None
    spans = list(zip(run.requests.sent, run.requests.end, strict=True))
    found = bench.in_flight(run)
    for second, most in enumerate(found):
        start, stop = second * made_runs.NS, (second + 1) * made_runs.NS
        moments = [start, *(sent for sent, _ in spans if start <= sent < stop)]
        assert most == max(sum(sent <= at < end for sent, end in spans) for at in moments)
    assert found[9] > 30


def test_pauses_of_the_client_are_shaded() -> None:
    """A reader sees which points the client itself made late."""
    view = views(bench.page(made_runs.paused()), "When it was slow")["TTFT"]
    assert [(band.start, band.stop) for band in view.bands] == [(15.0, 16.0)]
    assert "this client itself stood still" in view.note


def test_of_many_points_the_longest_of_each_moment_are_kept() -> None:
    """A picture of a million requests is small, and shows every stall."""
    points = [(i / 1000, 5.0 if i % 10_000 == 7 else 0.005, i) for i in range(100_000)]
    kept, count = bench.thinned(iter(points), 100.0)
    assert (len(kept), count) == (bench.MOST_POINTS, 100_000)
    assert {point[2] for point in points if point[1] == 5.0} <= {point[2] for point in kept}
    assert kept == sorted(kept)
    assert len({point[2] for point in kept}) == len(kept)
    assert bench.thinned(points, 100.0)[0] == kept
    assert bench.thinned(points[:50], 100.0) == (points[:50], 50)
    assert bench.thinned([], 100.0) == ([], 0)


def test_a_run_without_answers_has_a_page() -> None:
    """Nothing to draw is a sentence, not a chart."""
    text = document.document(bench.page(made_runs.empty()))
    assert "there is no latency" in text
    assert "fault: refused" in text


def test_a_run_without_its_requests_has_a_page(capped: Result) -> None:
    """Out of a file that left them out: the distribution is of the histograms, the scatter is not there."""
    page = bench.page(dataclasses.replace(capped, requests=None))
    assert [block.title for block in page.blocks if isinstance(block, Chart)] == ["Latency, the tail magnified"]


def test_of_several_runs_each_has_a_row(capped: Result) -> None:
    """The page is of one; the others are not lost silently."""
    runs = [made_runs.stalled(), made_runs.paused(), capped]
    rows = {block.title: block.rows for block in bench.page(capped, runs).blocks if isinstance(block, Table)}
    assert [(row[0], row[1], row[-1]) for row in rows["All runs"]] == [
        ("1", "911 ms", "valid"),
        ("2", "911 ms", "invalid"),
        ("3 (this page)", "911 ms", "capped"),
    ]
    assert "All runs" not in [block.title for block in bench.page(capped).blocks if isinstance(block, Table)]


def test_a_page_is_small(capped: Result) -> None:
    """It travels in a mail: the scripts and the numbers of 1200 requests."""
    assert len(document.document(bench.page(capped))) < 400_000


def test_a_page_is_written_or_an_error_names_it(tmp_path: Path, capped: Result) -> None:
    """The file is the document; a directory that is not there is an error that names it."""
    document.write(bench.page(capped), tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == document.document(bench.page(capped))
    with pytest.raises(TailwatchError, match=r"--html .*run\.html: No such file"):
        document.write(bench.page(capped), tmp_path / "no" / "run.html")


def test_the_same_run_gives_the_same_bytes(capped: Result) -> None:
    """Nothing of the moment is in it."""
    text = document.document(bench.page(capped))
    assert text == document.document(bench.page(capped))
    assert not re.search(
        r"https?://(?!127\.0\.0\.1|www\.w3\.org)", re.sub(r"<!--.*?-->|<script.*?</script>", "", text, flags=re.S)
    )
