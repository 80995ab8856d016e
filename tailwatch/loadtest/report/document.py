"""A page as one file: text as HTML, charts drawn by uPlot from numbers that lie in the file, and nothing is fetched.

The words and tables are there without any script; a policy in the document allows what stands in it and no more, so
that a name that came from a server or a file is text, whatever it holds.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.report.blocks import Block, Chart, Pair, ReportPage, Table, Tiles, Words
from tailwatch.platform import VERSION

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath "
    "d='M1 12h5V9h3v3h1V2h3v10h2' fill='none' stroke='%23d55e00' stroke-width='2'/%3E%3C/svg%3E"
)


def write(page: ReportPage, path: str | Path) -> None:
    """The document into a file.

    Raises:
        TailwatchError: it cannot be written.
    """
    try:
        Path(path).write_text(document(page), encoding="utf-8", errors="replace")
    except OSError as error:
        raise TailwatchError(f"--html {path}: {error.strerror}") from error


def document(page: ReportPage) -> str:
    """All of it, HTML. The same page gives the same bytes."""
    scripts = [_read("uplot", "uPlot.iife.min.js"), _read("common.js") + "\n" + _read("load.js")]
    style = "\n".join((_read("uplot", "uPlot.min.css"), _read("page.css"), _read("load.css")))
    charts: list[Chart] = []
    numbers = count()
    body = "\n".join(_block(block, charts, numbers) for block in page.blocks)
    verdict = "verdict bad" if page.bad else "verdict"
    data = _data([chart.as_dict() for chart in charts])
    return f"""<!doctype html>
<!-- tailwatch {escape(VERSION)}, Apache-2.0. In it: uPlot.
{_read("uplot", "LICENSE")}
-->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, style)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="robots" content="noindex">
<title>{escape(page.title)}</title>
<link rel="icon" href="{_ICON}">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the numbers</a>
<header>
<div class="brand"><h1>{escape(page.title)}</h1><p class="{verdict}">{escape(page.status)}</p></div>
<div class="controls"><button type="button" id="theme" aria-label="Colours: as the system" hidden>Auto</button></div>
</header>
<main id="main" tabindex="-1">
<p id="headline">{_words(page.lead)}</p>
{body}
<noscript><p class="note">The charts are drawn by a script in this file, which this viewer does not run.</p></noscript>
<p class="note foot">{escape(page.foot)}</p>
</main>
<script type="application/json" id="charts">{data}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _read(*names: str) -> str:
    place = files("tailwatch") / "page"
    return place.joinpath(*names).read_text(encoding="utf-8").strip()


def _policy(scripts: list[str], style: str) -> str:
    """Nothing from anywhere, and of what stands in the document only what we put there."""

    def hashed(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(hashed, scripts))}",
            f"style-src {hashed(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _data(charts: list[dict[str, Any]]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(_finite(charts), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """What JSON has: five digits are more than a screen shows, and half the file."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    return [_finite(each) for each in value]


def _words(text: str) -> str:
    """Text; what stands between backticks is code."""
    parts = (f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(text.split("`")))
    return "".join(parts)


def _block(block: Block, charts: list[Chart], numbers: Iterator[int]) -> str:
    if isinstance(block, Words):
        return _sentences(block)
    if isinstance(block, Tiles):
        return _tiles(block)
    if isinstance(block, Table):
        return _table(block, next(numbers))
    if isinstance(block, Pair):
        both = _chart(block.one, charts) + _chart(block.other, charts)
        return f'<div class="pair">{both}</div>'
    return _chart(block, charts)


def _sentences(block: Words) -> str:
    title = f"<h2>{escape(block.title)}</h2>" if block.title else ""
    sentences = "".join(f"<p>{_words(sentence)}</p>" for sentence in block.sentences)
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{_words(meaning)}</dd>" for term, meaning in block.terms)
    kind = "doubts" if block.warn else "words"
    return f'<section class="{kind}">{title}{sentences}{f"<dl>{terms}</dl>" if terms else ""}</section>'


def _tiles(block: Tiles) -> str:
    tiles = "".join(
        f"<div><dt>{escape(tile.name)}</dt><dd{' class=bad' if tile.bad else ''}>{escape(tile.value)}</dd>"
        f'<dd class="sub">{_words(tile.note)}</dd></div>'
        for tile in block.tiles
    )
    return f'<dl class="tiles of-{len(block.tiles)}">{tiles}</dl>'


def _table(block: Table, number: int) -> str:
    def cell(i: int, text: str) -> str:
        kind = " ".join(name for name, on in (("name", 0 < i < block.left), ("strong", i == block.strong)) if on)
        attributes = f' class="{kind}"' if kind else ""
        return f"<td{attributes}>{escape(text)}</td>" if i else f'<th scope="row">{escape(text)}</th>'

    heads = "".join(
        f'<th scope="col"{" class=name" if i < block.left else ""}>{escape(head)}</th>'
        for i, head in enumerate(block.heads)
    )
    rows = "".join(
        f"<tr{'' if row[0] else ' class=more'}>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>"
        for row in block.rows
    )
    name = f'aria-labelledby="table-{number}"'
    return (
        f'<section {name}><div class="head"><h2 id="table-{number}">{escape(block.title)}</h2></div>'
        f'<div class="scroll" tabindex="0" role="region" {name}><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{_note(block.note)}</section>"
    )


def _note(text: str) -> str:
    return f'<p class="note">{_words(text)}</p>' if text else ""


def _chart(block: Chart, charts: list[Chart]) -> str:
    """An empty figure, which the script fills; what it shows is also text, for a reader who sees no figure."""
    number = len(charts)
    charts.append(block)
    title, alt = escape(block.title), escape(block.views[0].alt)
    return (
        f'<section class="figure" aria-labelledby="figure-{number}"><div class="head">'
        f'<h2 id="figure-{number}">{title}</h2>'
        f'<div class="tabs" role="tablist" aria-label="{title}"></div></div><div class="keys"></div>'
        f'<div class="chart" data-chart="{number}" role="img" aria-label="{alt}"></div>'
        f'<p class="pick" aria-live="polite"></p>{_note(block.note)}</section>'
    )
