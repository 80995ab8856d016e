"""The page in a real browser: opened, clicked, looked at; it has no errors and connects to no other host."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

import pytest

import tailwatch

from ..support import chromium
from ..support.chromium import Browser, Tab
from ..support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(chromium.found() is None, reason="no Chromium here: apt-get install chromium"),
]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TOKEN = "correct-horse-battery-staple"
SETTLED = 'document.body.dataset.state === "live" && !document.querySelector("#numbers").hidden'


def frame(model: str) -> bytes:
    """One token."""
    return b"data: %s\n\n" % json.dumps({"model": model, "choices": [{"index": 0, "text": " t"}]}).encode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Streams twenty tokens, with a collection and a pause before the last but one; anything else is a 404."""
    found = scope["path"] == "/v1/completions"
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    for number in range(20 if found else 0):
        if number == 18:
            gc.collect()
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": frame(HOSTILE), "more_body": True})
        await asyncio.sleep(0.001)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; each page has a profile of its own."""
    place = chromium.found()
    assert place is not None
    with chromium.browser(place, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def watched(serve: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """watched(requests, **options): a server with the page on that has answered so many."""
    gc.freeze()  # what the tests before this one have left would be collected too
    heap = [[i] for i in range(30_000)]  # what a full collection goes through

    def start(requests: int, **options: Any) -> Any:
        given = {"gc": "observe", "slo": "ttft<=60s,itl<=60s@99%", "slow_gap_ms": 10, "page": True}
        served = serve(tailwatch.install(app, **(given | options)).app)
        for number in range(requests):
            served.http("/v1/completions", headers=f"x-request-id: <b>req</b>-{number}\r\n")
        until(lambda: tailwatch.snapshot().in_flight == 0)
        return served

    try:
        yield start
    finally:
        tailwatch.uninstall()
        heap.clear()
        gc.unfreeze()


def address(served: Any, more: str = "") -> str:
    """Of the page."""
    return f"http://127.0.0.1:{served.port}/tailwatch{more}"


def opened(browser: Browser, served: Any, **options: Any) -> Tab:
    """The page, with numbers on it."""
    tab = browser.open(address(served), **options)
    tab.until(SETTLED)
    return tab


def text(tab: Tab, selector: str) -> str:
    """What a reader sees there."""
    return str(tab.ask(f"document.querySelector({json.dumps(selector)}).innerText"))


def test_it_shows_the_snapshots_numbers(running: Browser, watched: Any) -> None:
    """Each percentile in the table, to the last bit; what a pause cost; which process it was."""
    served = watched(8)
    tab = opened(running, served)
    tab.click("#window input[value=all]")
    tab.until('document.querySelector("#covers").textContent.startsWith("since the start")')
    snap = tailwatch.snapshot()
    for key in ("ttft", "itl", "itl_without_gc", "tpot", "e2e"):
        row = f'[...document.querySelectorAll("#latency tr[data-key={key}] data")].map(d => d.value)'
        samples = getattr(snap, key)
        shown = [float(value) for value in tab.ask(row)]
        assert shown == [*(samples.p(p) for p in (50, 90, 99, 99.9)), samples.max, samples.count]
    late = tab.ask('document.querySelector("#t-delay data").value')
    assert float(late) == pytest.approx(sum(snap.delay[cause] for cause in snap.overlap))
    assert float(tab.ask('document.querySelector("#t-share data").value')) == snap.attainment
    assert "api: generation 2" in text(tab, "#sources") or "full collection" in text(tab, "#sources")
    assert text(tab, "#processes tbody th").split("\n")[0] == "api-0"
    assert float(tab.ask('document.querySelector("#t-flight data").value')) == 0


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (360, True),
        (1200, False),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((360, False), (1200, True))),
    ],
)
def test_clicked_through_it_has_no_errors(running: Browser, watched: Any, dark: bool, width: int) -> None:
    """Every control, in both colours, on a phone and at a desk: no error, no refusal by its policy, no other host, no
    sideways scrolling, and something drawn in each chart."""
    served = watched(12)
    tab = opened(running, served, width=width, dark=dark)
    for control in ("#window input[value='1m']", "#window input[value='1h']", "#window input[value=all]"):
        tab.click(control)
        tab.until(f"document.querySelector({json.dumps(control)}).checked")
    tab.until('document.querySelector("#covers").textContent.startsWith("since")')
    for name in ("ttft", "tpot", "e2e", "itl", "rate", "flight", "time"):
        tab.click(f"#tab-{name}")
        assert tab.ask(f'document.querySelector("#tab-{name}").getAttribute("aria-selected")') == "true"
    for name in ("Light", "Dark", "Auto"):
        tab.click("#theme")
        assert text(tab, "#theme") == name
        assert tab.ask(DARKNESS) is (name == "Dark" or (name == "Auto" and dark))
    tab.click("#slow-chart")
    tab.click("#causes button")
    tab.until('document.querySelector("#causes button").getAttribute("aria-pressed") === "false"')
    tab.click("#causes button")
    for summary in ("#slow-table", ".words dl"):
        tab.ask(f'document.querySelector("{summary}").closest("details").open = true')
    for chart in ("slow", "dist", "load"):
        tab.until(f'Boolean(document.querySelector("#{chart}-chart canvas"))')
    assert tab.ask(DRAWN) > 0
    assert tab.ask(TOO_WIDE) == []
    assert tab.complaints() == []
    asked = [urlsplit(request["url"]) for request in tab.requests()]
    assert {url.netloc for url in asked if url.scheme != "data"} == {f"127.0.0.1:{served.port}"}
    assert {url.path for url in asked if url.scheme != "data"} <= {"/tailwatch", "/tailwatch/data", "/favicon.ico"}
    assert {request["method"] for request in tab.requests()} == {"GET"}
    assert tab.picture().startswith(b"\x89PNG")


TOO_WIDE = """[...document.querySelectorAll("body, body *")]
  .filter((node) => !node.closest(".scroll, .hidden, .skip") && node.getBoundingClientRect().right > innerWidth + 0.5)
  .map((node) => node.outerHTML.slice(0, 80))
  .concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])"""
DARKNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b) < 382"
DRAWN = """(() => {
  const canvas = document.querySelector("#dist-chart canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.filter((value, i) => i % 4 == 3 && value).length;
})()"""


def test_hostile_names_are_text(running: Browser, watched: Any) -> None:
    """A model's and a request's name are read, not run."""
    tab = opened(running, watched(4))
    tab.ask('document.querySelector("#slow-table").closest("details").open = true')
    assert "<img src=x" in text(tab, "#t-tokens-sub")
    assert "<b>req</b>-" in text(tab, "#slow-table tbody")
    tab.ask('document.querySelector("#slow-chart").focus()')
    tab.key("End", 35)
    tab.until('document.querySelector("#slow-pick").textContent.includes("<b>req</b>-")')
    assert tab.ask('document.querySelectorAll("main img, main b b, #slow-table b, main script").length') == 0
    assert str(tab.ask("document.title")).startswith("tailwatch ·") and tab.complaints() == []


def test_the_causes_of_the_selected_gap_are_listed(running: Browser, watched: Any) -> None:
    """Those of the data, the largest first, each with its time; none before a gap is selected."""
    tab = opened(running, watched(4))
    assert tab.ask('document.querySelectorAll("#slow-why li").length') == 0
    tab.ask('document.querySelector("#slow-chart").focus()')
    tab.key("End", 35)
    tab.until('document.querySelector("#slow-why li") !== null')
    gap = tab.ask("state.data.slow.find((gap) => keyOf(gap) === state.picked)")
    shown = "(li) => [li.dataset.cause, +li.querySelector('data').value]"
    listed = tab.ask(f"[...document.querySelectorAll('#slow-why li')].map({shown})")
    assert listed == [[cause, seconds] for seconds, cause, *_ in gap["causes"]]
    assert gap["cause"] == gap["causes"][0][1] and tab.complaints() == []
    bars = tab.ask("[...document.querySelectorAll('#slow-why i')].map((i) => [i.style.marginLeft, i.style.width])")
    places = [(float(left[:-1]), float(width[:-1])) for left, width in bars]
    assert [left for left, _ in places] == pytest.approx([0, *accumulate(width for _, width in places)][:-1], abs=0.01)
    assert 99 < sum(places[-1]) <= 100.01


@pytest.mark.parametrize("width", [360, pytest.param(1200, marks=pytest.mark.slow)])
def test_many_models_have_rows_and_a_filter(running: Browser, watched: Any, width: int) -> None:
    """Three models on two routes: a row for each; a row or a list chooses, and latencies, gaps and totals follow."""
    served = watched(0)
    for model, route in ((m, r) for m in ("llama-3.3-70b", "qwen3-32b", HOSTILE) for r in ("/v1/chat", "/v1/text")):
        for _ in range(2):
            with tailwatch.stream(model=model, route=route) as s:
                for number in range(12):
                    time.sleep(0.012 if number == 10 else 0.001)
                    s.token()
    tab = opened(running, served, width=width)
    assert tab.ask('document.querySelectorAll("#sets-table tbody tr").length') == 6
    assert tab.ask('getComputedStyle(document.querySelector("#h-load .unfiltered")).display') == "none"
    gaps = tab.ask("state.data.slow.length")
    tab.ask(
        '[...document.querySelectorAll("#sets-table button")].find((b) => b.textContent.startsWith("qwen3")).click()'
    )
    tab.until('state.data.filter.model === "qwen3-32b"')
    route = tab.ask("state.data.filter.route")
    snap = tailwatch.snapshot().where(model_name="qwen3-32b", route=route)
    row = '[...document.querySelectorAll("#latency tr[data-key=itl] data")].map(d => d.value)'
    assert [float(value) for value in tab.ask(row)][-2:] == [snap.itl.max, 22]
    assert (
        tab.ask('state.data.slow.every((gap) => gap.model === "qwen3-32b")')
        and tab.ask("state.data.slow.length") < gaps
    )
    assert f"qwen3-32b {route}, the last " in text(tab, "#covers")
    assert text(tab, "#sets-note").startswith("The last ")
    assert tab.ask('document.querySelectorAll("#sets-table button[aria-pressed=true]").length') == 1
    assert tab.ask('document.querySelector("#h-load .unfiltered").checkVisibility()')
    assert tab.ask(f'document.querySelector("#route").value === "=" + {json.dumps(route)}')
    picks = '(list, name) => { list.value = name; list.dispatchEvent(new Event("change", { bubbles: true })); }'
    tab.ask(f'({picks})(document.querySelector("#route"), "")')
    tab.ask(f'({picks})(document.querySelector("#model"), "=" + {json.dumps(HOSTILE)})')
    tab.until(f"state.data.filter.model === {json.dumps(HOSTILE)} && state.data.filter.route === null")
    assert tab.ask("state.data.latency.itl.count") == 44
    assert tab.ask(TOO_WIDE) == [] and tab.complaints() == []


def test_with_the_keyboard_alone(running: Browser, watched: Any) -> None:
    """The arrow keys go through slow gaps and tabs; what is chosen is announced; every control is reached and named."""
    tab = opened(running, watched(6))
    tab.ask('document.querySelector("#slow-chart").focus()')
    seen = set()
    for _ in range(3):
        tab.key("ArrowRight", 39)
        seen.add(text(tab, "#slow-pick"))
    assert len(seen) == 3 and all("request <b>req</b>-" in words for words in seen)
    tab.ask('document.querySelector("#tab-itl").focus()')
    tab.key("ArrowRight", 39)
    assert tab.ask("document.activeElement.id") == "tab-tpot"
    tab.ask('document.querySelector("#window input:checked").focus()')
    tab.key("ArrowRight", 39)
    assert tab.ask('document.querySelector("#window input:checked").value') == "1h"
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "radio", "tab", "textbox", "table", "image", "region", "tabpanel", "main", "heading"}
    unnamed = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in roles - {"main", "table"}
        and not node.get("name", {}).get("value")
    ]
    assert unnamed == []
    assert {"main", "heading", "tab", "radio", "table", "status"} <= {
        node["role"]["value"] for node in nodes if "role" in node
    }


def test_paused_it_asks_no_more(running: Browser, watched: Any) -> None:
    """Until it is resumed; then it asks at once."""
    served = watched(2)
    still, other = (opened(running, served, speed=10) for _ in range(2))
    still.click("#pause")
    assert text(still, "#status-text") == "paused"
    paused, before = len(still.requests()), len(other.requests())
    until(lambda: len(other.requests()) > before + 3)  # one that goes on by itself
    assert len(still.requests()) == paused
    still.click("#pause")
    until(lambda: len(still.requests()) > paused)
    still.until(SETTLED)


def test_before_the_first_request(running: Browser, watched: Any) -> None:
    """It shows that, and how to make one; then the numbers come by themselves."""
    served = watched(0)
    tab = running.open(address(served), speed=10)
    tab.until('document.body.dataset.state === "live" && !document.querySelector("#empty").hidden')
    assert "No request yet" in text(tab, "main") and "curl -N http://127.0.0.1" in text(tab, "#try")
    assert tab.ask('document.querySelector("#numbers").hidden')
    served.http("/v1/completions")
    tab.until(SETTLED)
    assert tab.complaints() == []


def test_a_server_that_goes_away_is_shown_and_found_again(running: Browser, watched: Any, serve: Any) -> None:
    """The last numbers stay; the page tries again."""
    served = watched(2)
    tab = opened(running, served, speed=10)
    tailwatch.uninstall()
    tab.until('document.body.dataset.state === "away"')
    assert "no answer" in text(tab, "#status-text") and not tab.ask('document.querySelector("#numbers").hidden')


def test_the_token_is_typed_and_stays_in_the_tab(running: Browser, watched: Any) -> None:
    """A wrong one is refused; the right one is sent in a header, never in an address, and outlives a reload."""
    served = watched(3, page_token=TOKEN)
    tab = running.open(address(served))
    tab.until('!document.querySelector("#sign-in").hidden')
    assert tab.ask('document.querySelector("#numbers").hidden') and tab.ask("document.activeElement.id") == "token"
    tab.write("wrong")
    tab.click("#sign-in button")
    tab.until('document.querySelector("#sign-in-problem").textContent.includes("rejected")')
    tab.write(TOKEN)
    tab.click("#sign-in button")
    tab.until(SETTLED)
    tab.call("Page.reload")
    tab.until(SETTLED)
    asked = tab.requests()
    assert all(TOKEN not in request["url"] for request in asked)
    assert any(request["headers"].get("Authorization") == f"Bearer {TOKEN}" for request in asked)
    assert [words for words in tab.complaints() if "401" not in words] == []


def test_the_token_in_the_fragment_opens_at_once(running: Browser, watched: Any) -> None:
    """And leaves the address, so that it is not copied with it; no server ever sees a fragment."""
    served = watched(3, page_token=TOKEN)
    tab = running.open(address(served, f"#token={TOKEN}"))
    tab.until(SETTLED)
    assert tab.ask("location.href") == address(served)
    assert all(TOKEN not in request["url"] for request in tab.requests())
    assert tab.ask('document.querySelector("#sign-in").hidden')


def test_another_page_learns_nothing(running: Browser, watched: Any) -> None:
    """Neither in a frame, nor as a script, nor by asking."""
    served = watched(2)
    tab = running.open(f"http://localhost:{served.port}/elsewhere")  # another origin, of another name
    tab.until('document.readyState === "complete"')
    place = address(served)
    assert tab.ask(f'fetch("{place}/data").then(() => "read", () => "refused")') == "refused"
    assert tab.ask(f'fetch("{place}/data", {{mode: "no-cors"}}).then(a => a.type, () => "refused")') in (
        "refused",
        "opaque",
    )
    framed = f"""new Promise((done) => {{
      const frame = document.createElement("iframe");
      const title = () => {{ try {{ return String(frame.contentDocument?.title); }} catch {{ return "other"; }} }};
      frame.onload = () => done(title());
      frame.src = "{place}";
      document.body.append(frame);
    }})"""
    assert tab.ask(framed) in ("undefined", "other", "")
    assert any(
        "frame-ancestors" in words or "X-Frame-Options" in words or "403" in words or "Refused" in words
        for words in tab.complaints()
    )
