"""The Grafana dashboards of the examples: what the script writes, and of Grafana's own schema."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
KINDS = ("classic", "native")


def read(kind: str) -> dict[str, Any]:
    """A dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / "dashboards" / f"tailwatch-{kind}.json").read_text())
    return found


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_script_writes() -> None:
    """After a change of the description the dashboards are written again."""
    command = [sys.executable, str(FOLDER / "make_dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_script_lists_what_differs(tmp_path: Path) -> None:
    """--check fails where a file is another, and writing mends it."""
    script = tmp_path / "make_dashboards.py"
    script.write_text((FOLDER / "make_dashboards.py").read_text())

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    names = [f"dashboards/tailwatch-{kind}.json" for kind in KINDS]
    assert run("--check") == (1, "".join(f"{name}: differs\n" for name in names))
    assert run() == (0, "".join(f"{name}: written\n" for name in names))
    (tmp_path / names[1]).write_text("{}")
    assert run("--check") == (1, f"{names[1]}: differs\n")


# ---- Grafana's schema ----


def lost(given: Any, kept: Any, where: str = "") -> Iterator[str]:
    """What of a document did not survive being read and written by Grafana's model: a property it does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for i, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{where}[{i}]")
    elif given != kept:
        yield where


def fits(value: Any, hint: Any) -> bool:
    """Whether a value, as read from JSON, is of a type of the model, however deep."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, arguments[1]) for one in value.values())
    if hint in (object, Any):
        return not problems(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool)) and not problems(value)


def problems(value: Any) -> list[str]:
    """The attributes of one of the model's objects that are not in the model."""
    if not type(value).__module__.startswith("grafana_foundation_sdk"):
        return []
    hints = typing.get_type_hints(type(value))
    return [
        f"{type(value).__name__}.{name} = {getattr(value, name)!r:.80}"
        for name, hint in hints.items()
        if not fits(getattr(value, name), hint)
    ]


class Model:
    """Grafana's own model of a dashboard, as its foundation SDK has it: made from the schema of Grafana 11.6, with
    the options of every panel and the queries of Prometheus."""

    def __init__(self) -> None:
        plugins = pytest.importorskip(
            "grafana_foundation_sdk.cog.plugins", reason="pip install grafana-foundation-sdk (Python 3.11 or later)"
        )
        version = importlib.metadata.version("grafana-foundation-sdk")  # epoch!version of Grafana
        if version.partition("!")[2].partition(".")[0] != "11":
            remedy = "pip install -c tests/constraints.txt '.[test]'"
            pytest.skip(f"the model of Grafana 11 is needed, and {version} is installed: {remedy}")
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models.dashboard import Dashboard

        plugins.register_default_plugins()
        self._dashboard, self._encoder = Dashboard, JSONEncoder

    def check(self, document: dict[str, Any]) -> list[str]:
        """What is wrong with a dashboard."""
        read = self._dashboard.from_json(document)
        written = json.loads(json.dumps(read, cls=self._encoder))
        return [f"unknown: {where}" for where in lost(document, written)] + problems(read)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_is_in_grafanas_model(model: Model, kind: str) -> None:
    """Every property is known to Grafana's model, of dashboard, variables, panels, their options and queries, and
    every value is of the type, or one of the names, that the model has for it."""
    assert model.check(read(kind)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("templating", "list", 1, "definiton"), "x"),
        (("templating", "list", 1, "hide"), 7),
        (("panels", 1, "options", "colorMode"), "colourful"),
        (("panels", 1, "targets", 0, "expression"), "up"),
        (("panels", 1, "targets", 0, "format"), "matrix"),
        (("panels", 9, "fieldConfig", "defaults", "custom", "drawStyle"), "dots"),
        (("panels", 9, "gridPos", "w"), "12"),
        (("graphTooltip",), 3),
        (("title",), 5),
    ],
)
def test_the_check_sees_a_mistake(model: Model, path: tuple[Any, ...], value: Any) -> None:
    """A misspelt property or a value of no meaning to Grafana does not pass."""
    document = read("classic")
    *outer, last = path
    place: Any = document
    for key in outer:
        place = place[key]
    place[last] = value
    assert model.check(document)


# ---- what no schema has ----


def skeleton(dashboard: dict[str, Any]) -> list[Any]:
    """What both variants share."""
    keys = ("type", "title", "description", "gridPos", "fieldConfig")
    legends = ([target["legendFormat"] for target in panel.get("targets", [])] for panel in dashboard["panels"])
    return [
        ({key: panel.get(key) for key in keys}, legend)
        for panel, legend in zip(dashboard["panels"], legends, strict=True)
    ]


def test_the_variants_differ_only_in_how_a_histogram_is_asked() -> None:
    """The same rows, panels and legends; no classic series in the native one, and the other way round."""
    classic, native = read("classic"), read("native")
    assert skeleton(classic) == skeleton(native)
    assert classic["templating"] == native["templating"]
    queries = {kind: [target["expr"] for panel in panels(read(kind)) for target in panel["targets"]] for kind in KINDS}
    assert not [query for query in queries["native"] if re.search(r"_(bucket|sum|count)\{", query)]
    histograms = {name for query in queries["classic"] for name in re.findall(r"(\w+)_bucket\{", query)}
    assert len(histograms) >= 10
    assert not [query for query in queries["classic"] if "histogram_sum" in query or "histogram_count" in query]
    assert not [query for query in queries["classic"] if histograms & set(re.findall(r"(\w+)\{", query))]


@pytest.mark.parametrize("kind", KINDS)
def test_panels_stand_side_by_side(kind: str) -> None:
    """No two overlap, none leaves the 24 columns, and ids and titles are unique."""
    dashboard = read(kind)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and all(x < 24 for x, _ in cells)
    for name in ("id", "title"):
        values = [panel[name] for panel in dashboard["panels"]]
        assert len(values) == len(set(values))


@pytest.mark.parametrize("kind", KINDS)
def test_every_query_uses_the_variables(kind: str) -> None:
    """Each selector names job and instance, those of requests model and route, and latencies ask for exemplars."""
    for panel in panels(read(kind)):
        for target in panel["targets"]:
            selectors = re.findall(r"\w+\{([^}]*)\}", target["expr"])
            assert selectors or target["expr"] == "vector($objective)"
            assert all('job=~"$job", instance=~"$instance"' in selector for selector in selectors), target["expr"]
            latency = panel["title"] in ("ITL", "TTFT", "TPOT", "E2E", "ITL with and without GC")
            assert target["exemplar"] is (latency and "without_gc" not in target["expr"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_metric_is_one_of_ours(kind: str) -> None:
    """A name in a query is a family that we export, or what Prometheus itself records of a scrape."""
    from tailwatch.export.prometheus.exposition import OWN_FAMILIES

    suffix = re.compile(r"_(total|info|bucket|sum|count)$")
    known = OWN_FAMILIES | {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
    queries = [target["expr"] for panel in panels(read(kind)) for target in panel["targets"]]
    names = {name for query in queries for name in re.findall(r"(\w+)\{", query)}
    assert {name for name in names if suffix.sub("", name) not in known and name not in known} == set()
    assert {suffix.sub("", name) for name in names} | {
        # shown as a share of others, or by another panel's numbers
        "tailwatch_requests_good", "tailwatch_slo_attainment_ratio", "tailwatch_load_utilization_ratio",
        "tailwatch_unexplained_seconds", "tailwatch_engine_scheduled_requests", "tailwatch_engine_draft_tokens",
        "tailwatch_engine_graph_steps",
    } >= OWN_FAMILIES  # fmt: skip
