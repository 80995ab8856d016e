"""The page in a real browser: it draws, answers, has no errors, and connects to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailwatch.loadtest.report import bench, document
from tailwatch.loadtest.report.blocks import Axis, Chart, Curve, ReferenceLine, ReportPage, View

from ..support import chromium
from ..support.chromium import Browser, Tab
from . import made_runs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(chromium.found() is None, reason="no Chromium here: apt-get install chromium"),
]

DRAWN = "document.readyState === 'complete' && document.querySelectorAll('.chart canvas').length === CHARTS"
INK = """(n => {
  const canvas = document.querySelector(`[data-chart="${n}"] canvas`);
  const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let inked = 0;
  for (let i = 3; i < bytes.length; i += 4) inked += bytes[i] > 0;
  return inked;
})"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    place = chromium.found()
    assert place is not None
    with chromium.browser(place, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def opened(running: Browser, path: Path, page: ReportPage, **options: object) -> Tab:
    """A page of ours, drawn."""
    document.write(page, path)
    tab = running.open(path.as_uri(), **options)  # type: ignore[arg-type]
    tab.until(DRAWN.replace("CHARTS", str(path.read_text(encoding="utf-8").count('data-chart="'))))
    return tab


def test_it_draws_without_errors(running: Browser, tmp_path: Path) -> None:
    """All charts have ink, the policy refuses nothing, and only the file itself was asked for."""
    path = tmp_path / "run.html"
    tab = opened(running, path, bench.page(made_runs.stalled(cap=3)))
    for number in range(4):
        assert tab.ask(f"{INK}({number})") > 500
    assert tab.complaints() == []
    assert [request["url"] for request in tab.requests() if not request["url"].startswith("data:")] == [path.as_uri()]


def test_hostile_names_stay_text(running: Browser, tmp_path: Path) -> None:
    """A target's name in a title and in a chart runs nothing."""
    run = made_runs.stalled()
    run.name = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    tab = opened(running, tmp_path / "run.html", bench.page(run))
    assert "owned" in tab.ask("document.querySelector('h1').textContent")
    assert tab.ask("document.title").startswith("tailwatch bench")
    assert tab.complaints() == []


def test_tabs_keys_and_the_pointer_answer(running: Browser, tmp_path: Path) -> None:
    """Another latency is drawn, a curve can be taken away, a point shows what it is."""
    tab = opened(running, tmp_path / "run.html", bench.page(made_runs.stalled(cap=3)))
    figure = "document.querySelectorAll('.figure')[0]"
    before = tab.ask(f"{INK}(0)")
    tab.ask(f"{figure}.querySelectorAll('[role=tab]')[2].click()")
    tab.until(f"{figure}.querySelectorAll('[role=tab]')[2].getAttribute('aria-selected') === 'true'")
    assert tab.ask(f"{figure}.querySelectorAll('.keys button').length") == 1
    tab.ask(f"{figure}.querySelectorAll('[role=tab]')[0].click()")
    tab.ask(f"{figure}.querySelectorAll('.keys button')[0].click()")
    assert tab.ask(f"{figure}.querySelectorAll('.keys button')[0].getAttribute('aria-pressed')") == "false"
    assert tab.ask(f"{INK}(0)") != before
    tab.ask(f"{figure}.querySelectorAll('.keys button')[0].click()")
    tab.ask(f"{figure}.scrollIntoView()")
    place = "document.querySelector('.u-over').getBoundingClientRect()"
    box = tab.ask(f"(b => [b.x, b.y, b.width, b.height])({place})")
    for step in range(1, 20):
        tab.mouse("mouseMoved", box[0] + box[2] * 0.9, box[1] + box[3] * step / 20)
        if ": p99" in tab.ask(f"{figure}.querySelector('.pick').textContent"):
            break
    else:
        raise AssertionError("no point was found under the pointer")
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [360, pytest.param(1200, marks=pytest.mark.slow)])
def test_it_fits_a_phone_in_the_dark(running: Browser, tmp_path: Path, width: int) -> None:
    """Nothing sticks out sideways, in both colours, also where there is nothing to draw."""
    for number, run in enumerate((made_runs.stalled(cap=3), made_runs.empty())):
        tab = opened(running, tmp_path / f"{number}.html", bench.page(run), width=width, dark=width == 360)
        assert tab.ask("document.documentElement.scrollWidth") <= width
        tab.click("#theme")
        assert tab.ask("document.documentElement.dataset.theme") == "light"
        assert tab.complaints() == []


def test_every_kind_of_axis_and_curve_is_drawn(running: Browser, tmp_path: Path) -> None:
    """Intervals beside each other, lines with a ribbon, categories, changes, and a view without a point."""
    change = View(
        "change", Axis("change", "change"), Axis("category", names=("a", "b")),
        (Curve("x", "interval", "good", [-0.5, 0.1], [0.0, 1.0], [-0.7, 0.0], [-0.3, 0.2]),
         Curve("y", "interval", "gc2", [0.5, 0.0], [0.0, 1.0], [None, -0.1], [None, 0.1])),
        (ReferenceLine("x", 0.0, "no change"),),
    )  # fmt: skip
    sweep = View(
        "sweep", Axis("number", "offered"), Axis("number", "per second"),
        (Curve("goodput", "line", "good", [1.0, 2.0, 3.0], [1.0, 2.0, None], [0.9, 1.9, None], [1.0, 2.1, None]),),
        (ReferenceLine("x", 2.5, "knee"), ReferenceLine("y", 2.0, "ceiling")),
    )  # fmt: skip
    nothing = View("nothing", Axis("percentile"), Axis("latency"), ())
    charts = tuple(Chart(view.name, (view,)) for view in (change, sweep, nothing))
    tab = opened(running, tmp_path / "kinds.html", ReportPage("kinds", "all", charts))
    for number in range(2):
        assert tab.ask(f"{INK}({number})") > 300
    assert tab.complaints() == []
