"""The README and the guides keep their promises: short lines, no dead link, commands that exist, Python that runs."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
from pathlib import Path

import pytest

import tailwatch
from tailwatch import cli, snapshots
from tailwatch.cli import parser, run
from tailwatch.options.config import OPTIONS
from tailwatch.options.slo import PRESETS, SLO

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
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


@pytest.mark.parametrize("name", TEXTS)
def test_lines_are_short(name: str) -> None:
    """At most 120 columns, except a row of a guide's table, which cannot be broken."""
    lines = [line for line in TEXTS[name].splitlines() if name == "README.md" or not line.startswith("|")]
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


def test_every_option_stands_in_the_guide() -> None:
    """The table of options is complete, and has no others."""
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", TEXTS["docs/options.md"], re.MULTILINE)

    assert sorted(re.findall(r"[a-z_]+", " ".join(rows))) == sorted(OPTIONS)


def test_every_preset_stands_in_the_guide() -> None:
    """With its bounds: those on TTFT and TPOT, there are no others."""
    row = re.compile(r"^\| `(mlperf:[^`]+)`[^|]*\| ([0-9.]+) (m?s) \| ([0-9.]+) (m?s) \|$", re.MULTILINE)
    rows = {
        name: f"ttft<={ttft}{a},tpot<={tpot}{b}" for name, ttft, a, tpot, b in row.findall(TEXTS["docs/options.md"])
    }

    assert {name: SLO.parse(bounds) for name, bounds in rows.items()} == {name: SLO.parse(name) for name in PRESETS}


def flags(actions: list[argparse.Action]) -> set[str]:
    """As a guide spells them: with hyphens, without what argparse adds."""
    return {name for each in actions for name in each.option_strings if "_" not in name} - {"-h", "--help"}


def test_every_flag_stands_in_the_guide() -> None:
    """The section of each command has its flags and no others; bench and ablate share a section."""
    (commands,) = [each for each in parser._parser()._actions if isinstance(each, argparse._SubParsersAction)]
    sections = re.split(r"^## ", TEXTS["docs/command_line.md"], flags=re.MULTILINE)[1:]
    shown = {
        part.split("\n", 1)[0].strip("`"): set(re.findall(r"^\| `(--?[a-z-]+)", part, re.MULTILINE))
        for part in sections
    }
    made = {f"tailwatch {name}": flags(command._actions) for name, command in commands.choices.items()}
    load = shown.pop("Load")
    for name in ("tailwatch bench", "tailwatch ablate"):
        shown[name] |= load

    assert made.pop("tailwatch run") == {f"--{name.replace('_', '-')}" for name in run.OFFERED}  # the table of options
    assert shown.pop("tailwatch run") == set()
    assert shown == made
    assert set(OPTIONS) - set(run.OFFERED) == {"role"}


def test_every_finding_stands_in_the_guide() -> None:
    """The table of rules is complete, and has no others."""
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tailwatch" / "diagnose").glob("rules*.py"))
    made = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', source))
    rows = re.findall(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \|", TEXTS["docs/doctor.md"], re.MULTILINE)

    assert len(made) > 20
    assert sorted(re.findall(r"[a-z0-9-]+", " ".join(rows))) == sorted(made)


def test_every_metric_stands_in_the_guide() -> None:
    """The tables of metrics are complete, and have no others; those of OTLP alone are in its guide."""
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "csrc" / "export").glob("*.c"))
    made = set(re.findall(r'"(tailwatch_[a-z0-9_]+)"', source))
    guide = set(re.findall(r"`(tailwatch_[a-z0-9_]+)`", TEXTS["docs/metrics.md"]))

    otlp = set(re.findall(r'\{NULL, "([a-z0-9_.]+)"', source))

    assert len(made) > 50 and len(otlp) > 5
    assert guide == made
    assert otlp <= set(re.findall(r"`([a-z0-9_.]+)`", TEXTS["docs/otel.md"]))


def test_every_drop_reason_stands_in_the_guide() -> None:
    """As the metric has it."""
    assert set(snapshots.DROPS) <= set(re.findall(r"`(\w+)`", TEXTS["docs/metrics.md"]))


def words(text: str) -> str:
    """However it was folded."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["README.md", "docs/doctor.md"])
def test_the_doctor_s_output_is_that_of_today(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every paragraph that is shown, of the demo's committed run."""
    cli.main(["doctor", str(ROOT / "benchmarks" / "results" / "demo.json"), "--slow-gaps"])
    printed = words(capsys.readouterr().out)
    (shown,) = [text for text in SHOWN[name] if "generation 2" in text]

    assert [part for part in shown.split("\n\n") if words(part) not in printed] == []


def test_the_output_of_nsys_is_that_of_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the report that the tests have."""
    packed = ROOT / "tests" / "nvtx" / "data" / "report.sqlite.gz"
    (tmp_path / "report.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    cli.main(["nsys", str(tmp_path / "report.sqlite")])
    printed = words(capsys.readouterr().out)
    (shown,) = SHOWN["docs/nsight.md"]

    assert [part for part in re.split(r"\n(?=GPU)", shown) if words(part) not in printed] == []


@pytest.mark.parametrize("name", ["README.md", "docs/demo.md"])
def test_the_demo_s_table_is_that_of_its_committed_run(name: str) -> None:
    """Every row that is shown, as `tailwatch demo` prints it today."""
    console = pytest.importorskip("rich.console", reason="the demo's table: pip install '.[demo]'")
    from tailwatch.demo.report import WIDTH, show

    report = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))
    out = io.StringIO()
    show(report, console.Console(file=out, width=WIDTH))
    printed = {line.strip() for line in out.getvalue().splitlines()}
    (shown,) = [text for text in SHOWN[name] if "GC left alone" in text]

    assert len(shown.splitlines()) > 8
    assert [line for line in shown.splitlines() if line.strip() not in printed] == []


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


def test_every_guide_is_listed() -> None:
    """From the README and from the folder's own list."""
    guides = [name for name in TEXTS if name.startswith("docs/") and name != "docs/README.md"]

    assert [name for name in guides if f"({name})" not in README] == []
    assert [name for name in guides if f"({name.removeprefix('docs/')})" not in TEXTS["docs/README.md"]] == []


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
