"""Refreshes what the guides print and picture, from real runs: python docs/outputs.py [SCENE or PICTURE ...]

A block of text stands behind `<!-- output of SCENE: COMMAND -->`: what the command prints there. One that only another
machine prints (vLLM, Ray) stands behind `<!-- recorded with WHAT: COMMAND -->`, and is never touched. Scenes:

    repository   the root of this repository, no server
    server       docs/scene.py under `tailwatch run` at 127.0.0.1:8000 (here: a free port), after six requests
    workers      the same with two workers of uvicorn
    ended        the same, stopped; `log` is what `tailwatch run` printed

Pictures in docs/pictures: NAME.svg, a command and what it prints on a terminal; page.webp, by Chromium; way.svg, a
diagram.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tailwatch.group import temp_dirs

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
BLOCK = re.compile(r"(<!-- output of (\w+): (.*?) -->\n\n```text\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8000")
REQUESTS, AT_ONCE = 6, 2

# Name: scene, the command as it is shown, and what cuts its output.
PICTURES = {
    "demo": ("repository", "tailwatch demo", "python docs/outputs.py demo-table | sed '/^look further/,$d'"),
    "doctor": ("repository", "tailwatch doctor benchmarks/results/demo.json", "head -n 19"),
    "why": ("server", "tailwatch why http://127.0.0.1:8000", "head -n 24"),
    "top": ("server", "tailwatch top", "tailwatch top --once --window 1s"),
}
COLUMNS = 110
DEMO_ROWS = re.compile(r"by the client|(TTFT p99|ITL p99.*|ITL max|goodput.*|SLO|pause) .*(er|gone)$")
FRAMES = {"top": 5}  # of what goes on by itself; a second each
MOST_BYTES = 60_000
WIDTH = 118


class Scene:
    """Where commands run: a folder, variables, and the port that stands for 8000."""

    def __init__(self, folder: Path, port: int = 0, **variables: str) -> None:
        self.folder, self.port = folder, port
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILWATCH")}
        self.environment = {**kept, "PATH": path, "COLUMNS": str(COLUMNS), **variables}

    def run(self, command: str) -> str:
        """What the command prints; an exit status of 1 is a finding."""
        here = ADDRESS.sub(f"127.0.0.1:{self.port}", command)
        bash = ["bash", "-o", "pipefail", "-c", here]
        done = subprocess.run(bash, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        if done.returncode not in (0, 1, 141) or not done.stdout.strip():  # 141: into head
            raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        shown = done.stdout.replace(self.environment.get("TAILWATCH_DIR", "/dev/shm/llm"), "/dev/shm/llm")
        return shown.replace(f":{self.port}", ":8000") if self.port else shown


@contextlib.contextmanager
def scene(name: str, requests: int = REQUESTS) -> Iterator[Scene]:
    """One of the scenes, until the block ends."""
    if name == "repository":
        yield Scene(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        port, group = _free_port(), f"/dev/shm/tailwatch-scene-{os.getpid()}"
        stack.callback(temp_dirs.discard, group)
        shutil.copy(DOCS / "scene.py", Path(folder) / "app.py")
        made = Scene(Path(folder), port, TAILWATCH_DIR=group)
        served = (
            ["uvicorn", "app:app", "--port", str(port), "--workers", "2"]
            if name != "server"
            else ["python", "app.py", str(port)]
        )
        with (made.folder / "log").open("wb") as log:
            server = subprocess.Popen(
                ["tailwatch", "run", "--", *served], cwd=folder, env=made.environment, stdout=log, stderr=log
            )
        stack.callback(_stop, server)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda number: _ask(port, number), range(requests)))
        if name == "ended":
            _stop(server)
        yield made


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ask(port: int, number: int) -> bytes:
    """One request, once the server listens; two at once are half a request apart."""
    time.sleep(0.6 * (number == 1))
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", method="POST")
    for _ in range(300):
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return bytes(answer.read())
        except (ConnectionError, urllib.error.URLError):
            time.sleep(0.1)
    raise SystemExit("the server of the scene does not answer")


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def marks() -> dict[str, list[str]]:
    """The commands of each scene that some page shows."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for _, name, command, _, _ in BLOCK.findall(page.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(command)
    return found


def refresh(names: set[str]) -> None:
    """Writes the blocks of these scenes: each command has the scene for itself."""
    printed = {(name, command): _printed(name, command) for name in names for command in dict.fromkeys(marks()[name])}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = BLOCK.sub(lambda m: f"{m[1]}{printed.get((m[2], m[3]), m[4].rstrip())}\n{m[5]}", text)
        page.write_text(made, encoding="utf-8")


def _printed(name: str, command: str) -> str:
    """What a command prints; of a load test, of the first run that is valid."""
    for _ in range(5):
        with scene(name) as here:
            if "INVALID" not in (text := here.run(command)):
                return folded(text)
    raise SystemExit(f"{command}: this machine is too busy")


def folded(text: str) -> str:
    """Lines that fit a page: a longer one goes on further in."""
    lines = (line.rstrip() for line in text.strip("\n").splitlines())
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2), break_on_hyphens=False)
        for line in lines
    )


# ---- pictures ----


def picture(name: str) -> None:
    """Draws one terminal."""
    where, shown, how = PICTURES[name]
    command = how if how.startswith(("tailwatch", "python")) else f"{shown} | {how}"
    with scene(where) as here, ThreadPoolExecutor(AT_ONCE) as pool:
        if name in FRAMES:  # beside a load
            pool.map(lambda number: _ask(here.port, number), range(2 * REQUESTS))
        printed = [here.run(f"export FORCE_COLOR=1; {command}") for _ in range(FRAMES.get(name, 1))]
    file = DOCS / "pictures" / f"{name}.svg"
    file.write_text(svg(shown, printed), encoding="utf-8")
    if file.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{file}: {file.stat().st_size} bytes")


def svg(command: str, printed: list[str]) -> str:
    """A terminal with a command and its output, without a font from elsewhere. Several are shown one after the other,
    the last one where motion is not wanted."""
    from rich.text import Text

    texts = [Text.from_ansi(text.rstrip("\n")) for text in printed]
    lines = [text.plain.splitlines() for text in texts]
    width, height = max(len(line) for text in lines for line in text) + 1, max(map(len, lines))
    drawn = [
        _terminal(command, text + Text("\n" * (height - len(shown))), width, f"t{i}")
        for i, (text, shown) in enumerate(zip(texts, lines, strict=True))
    ]
    if len(drawn) == 1:
        return drawn[0]
    count = len(drawn)
    matrices = [re.search(r'<g class="t\d-matrix">.*?</g>', each, re.DOTALL)[0] for each in drawn]  # type: ignore[index]
    styles = [re.search(r"<style>(.*?)</style>", each, re.DOTALL)[1] for each in drawn]  # type: ignore[index]
    styles += [
        f".t{i}-matrix{{opacity:0;animation:show {count}s step-end {i - count}s infinite}}" for i in range(count)
    ]
    frame = f"0%{{opacity:1}}{100 / count:g}%{{opacity:0}}100%{{opacity:0}}"
    styles += [f"@keyframes show{{{frame}}}.t{count - 1}-matrix{{opacity:1}}"]
    styles += ["@media (prefers-reduced-motion){g{animation:none!important}}"]
    first = re.sub(r"<style>.*?</style>", lambda _: f"<style>{''.join(styles)}</style>", drawn[0], flags=re.DOTALL)
    return first.replace(matrices[0], "\n".join(matrices))


def _terminal(command: str, output: Any, width: int, name: str) -> str:
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ ", style="green") + Text(command, style="bold"))
    console.print(output)
    drawn = console.export_svg(title="", theme=SVG_EXPORT_THEME, unique_id=name)
    for dropped in (
        r"@font-face \{.*?\}\s*",
        rf' clip-path="url\(#{name}-line-\d+\)"',
        rf'<clipPath id="{name}-line-\d+">.*?</clipPath>\s*',
        r"<text [^>]*>\s*</text>",
    ):
        drawn = re.sub(dropped, "", drawn, flags=re.DOTALL)
    return drawn.replace("Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace")


# A row for each way: boxes, each with what stands under it. The last box of a row leads to the last of the first.
WAY = (
    (("request", ""), ("kernel", "arrival"), ("event loop", ""), ("app", "entry"), ("engine", ""), ("send", "stamp")),
    (("collection", "begins"), ("callback in C", "pause clock opens"), ("collection", "ends"), ("ring", "begin, end")),
)


def diagram(rows: tuple[tuple[tuple[str, str], ...], ...], link: str) -> str:
    """Rows of boxes with arrows between them."""
    wide, high, step, down = 124, 34, 158, 120
    parts: list[str] = []
    for j, row in enumerate(rows):
        first = len(rows[0]) - len(row)
        for i, (name, under) in enumerate(row, first):
            x, y = 8 + i * step, 12 + j * down
            parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="6"/>')
            parts.append(f'<text x="{x + wide / 2}" y="{y + 22}">{name}</text>')
            parts.append(f'<text class="under" x="{x + wide / 2}" y="{y + high + 18}">{under}</text>')
            if i > first:
                parts.append(f'<path d="M{x - step + wide} {y + high / 2}H{x - 4}" marker-end="url(#a)"/>')
    x, y = 8 + (len(rows[0]) - 1) * step + wide / 2, 12 + down
    parts.append(f'<path class="link" d="M{x} {y}V{y - down + high + 30}" marker-end="url(#a)"/>')
    parts.append(f'<text class="link" x="{x - 8}" y="{y - 18}">{link}</text>')
    size = f"{len(rows[0]) * step - step + wide + 16} {len(rows) * down - 44}"
    style = (
        "rect{fill:#eef3fb;stroke:#4a6fa5}path{stroke:#555;fill:none}text{font:14px sans-serif;text-anchor:middle}"
        ".under{fill:#555;font-size:12px}path.link{stroke:#c04a00;stroke-dasharray:5 3}"
        "text.link{fill:#a04000;font-size:12px;text-anchor:end}"
    )
    shape = '<path d="M0 0 6 4 0 8"/>'
    arrow = f'<marker id="a" orient="auto" markerWidth="8" markerHeight="8" refX="5" refY="4">{shape}</marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{style}</style><defs>{arrow}</defs>'
    return head + '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>' + "\n".join(parts) + "</svg>\n"


def page_picture() -> None:
    """The live page after more requests, by the tests' Chromium."""
    sys.path.insert(0, str(ROOT))
    from tests.support import chromium

    place = chromium.found() or sys.exit("page: needs chromium")
    with scene("server", requests=24) as here, tempfile.TemporaryDirectory() as profile:
        with chromium.browser(place, Path(profile)) as browser:
            tab = browser.open(f"http://127.0.0.1:{here.port}/tailwatch", width=900, height=600)
            tab.until("document.querySelectorAll('canvas').length > 2")
            time.sleep(6)  # some points of the load over time
            answer = tab.call("Page.captureScreenshot", format="webp", quality=40, captureBeyondViewport=True)
    (DOCS / "pictures" / "page.webp").write_bytes(base64.b64decode(answer["data"]))


def demo_rows() -> None:
    """The rows of the demo's table that the README has."""
    with contextlib.redirect_stdout(io.StringIO()) as table:
        demo_table()
    for line in table.getvalue().splitlines():
        if DEMO_ROWS.search(line):
            print(line)


def demo_table() -> None:
    """The table of the demo's committed run, as `tailwatch demo` prints it."""
    from rich.console import Console

    from tailwatch.demo import report as demo

    report = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))
    console = Console(width=demo.WIDTH, file=io.StringIO())
    demo.show(report, console)
    print(re.sub(r" +$", "", console.file.getvalue(), flags=re.MULTILINE))


def main(names: list[str]) -> None:
    """All, or the scenes and pictures that are named."""
    if names == ["demo-table"]:
        return demo_table()
    if names == ["demo-rows"]:
        return demo_rows()
    refresh(set(marks()) & set(names or marks()))
    for name in set(PICTURES) & set(names or PICTURES):
        picture(name)
    if not names or "page" in names:
        page_picture()
    if not names or "way" in names:
        drawn = diagram(WAY, "a pause since the last stamp? overlap, delay")
        (DOCS / "pictures" / "way.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
