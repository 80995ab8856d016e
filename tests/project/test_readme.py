"""The README and the guides keep their promises: short lines, no dead link, commands that exist, Python that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tailwatch
from tailwatch import cli, snapshots
from tailwatch._cold import ffi, lib
from tailwatch.export.core_metrics import metrics
from tailwatch.options.slo import PRESETS, SLO

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
TEXTS = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}
README = TEXTS["README.md"]
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for name, text in TEXTS.items()}
NEED_MORE = {"docs/load_testing.md", "docs/nsight.md"}  # a server, the package nvtx
RUNS = [name for name, blocks in BLOCKS.items() if blocks and name not in NEED_MORE]
SHOWN = {name: re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for name, text in TEXTS.items()}
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
MARKS = {"clock"}  # `tailwatch clock` is what NVTX tools show
EVERYTHING = re.sub(r"^```retired\n.*?^```$", "", "\n".join(TEXTS.values()), flags=re.DOTALL | re.MULTILINE)
COMMANDS = {
    *re.findall(r"(?:bin/|`)tailwatch ([a-z]+)\b", EVERYTHING),
    *re.findall(r"^tailwatch ([a-z]+)\b", "".join(FENCED.findall(EVERYTHING)), re.MULTILINE),
} - MARKS
FOLDERS = (ROOT, ROOT / "tailwatch", ROOT / "csrc", *(ROOT / "csrc").iterdir(), ROOT / "tailwatch" / "runtime")


def test_the_readme_is_short() -> None:
    """At most 170 lines, and no paragraph or list item of more than five."""
    prose = FENCED.sub("", re.sub(r"^(\||#).*$", "", README, flags=re.MULTILINE))
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", prose)

    assert len(README.splitlines()) <= 170
    assert [each for each in paragraphs if len(each.strip().splitlines()) > 5] == []


def test_a_quick_start_fits_a_screen() -> None:
    """At most 40 lines each."""
    starts = {name: len(text.splitlines()) for name, text in TEXTS.items() if name.startswith("docs/quickstarts/")}
    assert len(starts) > 9 and max(starts.values()) <= 40, starts


@pytest.mark.parametrize("name", TEXTS)
def test_lines_are_short(name: str) -> None:
    """At most 120 columns, except a row of a guide's table, and a comment: they cannot be broken."""
    unbroken = "<!-- " if name == "README.md" else ("|", "<!-- ")
    lines = [line for line in TEXTS[name].splitlines() if not line.startswith(unbroken)]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("name", RUNS)
def test_its_python_runs_in_order(name: str) -> None:
    """Pasted one after the other into a process with an app, the blocks run, and leave nothing behind."""

    async def app(scope: object, receive: object, send: object) -> None:
        """An app."""

    names: dict[str, object] = {"app": app, "tailwatch": tailwatch}
    try:
        for block in BLOCKS[name]:
            exec(compile(block, name, "exec"), names)
    finally:
        tailwatch.uninstall()


def test_every_preset_stands_in_the_guide() -> None:
    """With its bounds: those on TTFT and TPOT, there are no others."""
    row = re.compile(r"^\| `(mlperf:[^`]+)`[^|]*\| ([0-9.]+) (m?s) \| ([0-9.]+) (m?s) \|$", re.MULTILINE)
    rows = {
        name: f"ttft<={ttft}{a},tpot<={tpot}{b}" for name, ttft, a, tpot, b in row.findall(TEXTS["docs/options.md"])
    }

    assert {name: SLO.parse(bounds) for name, bounds in rows.items()} == {name: SLO.parse(name) for name in PRESETS}


def test_every_finding_stands_in_the_guide() -> None:
    """The table of rules is complete, and has no others."""
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tailwatch" / "diagnose").glob("rules*.py"))
    made = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', source))
    rows = re.findall(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \|", TEXTS["docs/doctor.md"], re.MULTILINE)

    assert len(made) > 20
    assert sorted(re.findall(r"[a-z0-9-]+", " ".join(rows))) == sorted(made)


def test_every_metric_of_otlp_alone_stands_in_its_guide() -> None:
    """Those of Prometheus stand in the reference: test_reference.py."""
    otlp = {metric.otlp for metric in metrics() if metric.prometheus is None}

    assert len(otlp) > 5
    assert otlp <= set(re.findall(r"`([a-z0-9_.]+)`", TEXTS["docs/otel.md"]))


def test_every_drop_reason_stands_in_the_guide() -> None:
    """As the metric has it."""
    assert set(snapshots.DROPS) <= set(re.findall(r"`(\w+)`", TEXTS["docs/metrics.md"]))


@pytest.mark.parametrize("name", TEXTS)
def test_its_files_exist(name: str) -> None:
    """What it links to is here, and so is each file that a table of examples lists."""
    folder = (ROOT / name).parent
    links = re.findall(r"\]\(([^)#:]+)\)", FENCED.sub("", TEXTS[name]))
    listed = [] if name == "CONTRIBUTING.md" else re.findall(r"^\| `([\w/]+(?:\.py|/))` \|", TEXTS[name], re.MULTILINE)

    assert [link for link in [*links, *listed] if not (folder / link).exists()] == []


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", TEXTS)
def test_its_anchors_exist(name: str) -> None:
    """A link to a section finds its heading."""
    folder = Path(name).parent
    links = re.findall(r"\]\(([^)#:]*\.md|)#([^)]+)\)", FENCED.sub("", TEXTS[name]))
    pages = {page: (ROOT / folder / page).read_text(encoding="utf-8") if page else TEXTS[name] for page, _ in links}

    assert [(page, anchor) for page, anchor in links if anchor not in anchors(pages[page])] == []


def test_the_map_shows_files_that_exist() -> None:
    """Every file and folder of CONTRIBUTING's map."""
    text = FENCED.sub("", TEXTS["CONTRIBUTING.md"])
    chart = text[text.index("## Map") : text.index("## Tests")]
    named = re.findall(r"`([\w./]+(?:/|\.py|\.c|\.h|\.sh|\.pth))`", chart)

    assert len(named) > 30
    assert [name for name in named if not any((folder / name).exists() for folder in FOLDERS)] == []


@pytest.mark.parametrize("root", ["csrc", "tailwatch"])
def test_the_map_has_every_folder(root: str) -> None:
    """In the first column of CONTRIBUTING's tables: each folder that is compiled or imported."""
    table = TEXTS["CONTRIBUTING.md"].partition(f"| `{root}/` | |\n")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)/`", row.split("|")[1])}
    found = {place.name for place in (ROOT / root).iterdir() if place.is_dir() and place.name[0] not in "._"}

    assert found - {"include", "third_party"} - named == set()


def test_every_guide_is_listed() -> None:
    """In its folder's own list and in the site's navigation; from the README, all but those in a folder of docs."""
    guides = [name for name in TEXTS if name.startswith("docs/") and name != "docs/README.md"]
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    lists = {name: Path(name).parent / "README.md" for name in guides if not name.endswith("/README.md")}

    assert [name for name in guides if f"- {name.removeprefix('docs/')}\n" not in nav] == []
    assert [name for name, page in lists.items() if f"({Path(name).name})" not in TEXTS[page.as_posix()]] == []
    assert [
        name for name in guides if f"({name})" not in README and (name.count("/") == 1 or name.endswith("README.md"))
    ] == []


def test_every_cause_stands_in_the_guide() -> None:
    """A page each (two causes that nothing reports yet share one), and no others."""
    made = {ffi.string(lib.tw_delay_cause_name(cause)).decode() for cause in range(lib.TW_DELAYS)}
    pages = [text for name, text in TEXTS.items() if name.startswith("docs/causes/") and "README" not in name]
    heads = [text.partition("\n")[0] for text in pages]

    assert sorted(re.findall(r"`([a-z_0-9]+)`", " ".join(heads))) == sorted(made)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_its_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a help text."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])

    assert stopped.value.code == 0
    assert command in capsys.readouterr().out


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    """One line, which makes an environment and runs the tests in it."""
    assert len(re.findall(r"^python3 -m venv \.venv && \.venv/bin/pip install .*pytest.*$", README, re.MULTILINE)) == 1
