"""The import arrows, the seam between C and Python, and that importing does nothing.

Python is looked at as installed, C in the source tree.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import tailwatch

PACKAGE = Path(tailwatch.__path__[0])
CSRC = Path(__file__).resolve().parents[2] / "csrc"

# From the bottom to the top, by folder: a module imports from lower rows, its own folder, and nothing else of ours.
# "" is tailwatch itself, its list of public names.
LAYERS = (
    ("errors",),
    ("interrupts",),
    ("platform",),
    ("_hot", "_cold", "pure"),
    ("gc", "sse", "serve", "stall"),
    ("options", "asgi", "integrations"),
    ("snapshots", "loadtest"),
    ("group", "diagnose"),
    ("export", "tracing"),
    ("runtime",),
    ("nvtx",),
    ("",),
    ("demo",),
    ("cli",),
    ("__main__",),
)


def module_name(path: Path) -> str:
    """A file's dotted name below tailwatch; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def folder(module: str) -> str:
    """The stage that a module belongs to."""
    return module.partition(".")[0]


def layer(module: str) -> int:
    """The row of its folder; -1 where it has none."""
    return next((row for row, names in enumerate(LAYERS) if folder(module) in names), -1)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, except what stands under `if TYPE_CHECKING:` (it imports nothing when it runs)."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from nodes(child)


def imported(path: Path) -> set[str]:
    """Our modules that a file imports, at import time or later, by their names below tailwatch."""
    found: set[str] = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.update(resolve(node.module or "", alias.name) for alias in node.names)
    return {name.removeprefix("tailwatch").removeprefix(".") for name in found if name.split(".")[0] == "tailwatch"}


def resolve(package: str, name: str) -> str:
    """`from package import name` means a module of ours, or a name of package."""
    module = f"{package}.{name}"
    below = module.removeprefix("tailwatch.")
    return module if below in MODULES or below in ("_hot", "_cold") else package


IMPORTS = {name: imported(path) for name, path in MODULES.items()}


def importers(target: str) -> set[str]:
    """Modules that import target or anything below it."""
    return {
        name for name, found in IMPORTS.items() if any(fnmatch(f, target) or fnmatch(f, f"{target}.*") for f in found)
    }


def under(package: str, names: set[str]) -> set[str]:
    """Those of names that are package or stand below it."""
    return {name for name in names if name == package or name.startswith(f"{package}.")}


def test_the_walk_sees_the_package() -> None:
    """The modules that the rules below name exist and were read."""
    assert {"", "errors", "options.config", "options.slo", "cli.parser", "runtime.install", "gc.hook"} <= set(MODULES)
    assert "errors" in IMPORTS["options.slo"]
    assert "options.config" in IMPORTS["runtime.session"]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module: str) -> None:
    """Each module has a place, and imports only what stands below it or in its own package."""
    assert layer(module) >= 0, f"tailwatch.{module} has no place in LAYERS"
    wrong = {f for f in IMPORTS[module] if layer(f) >= layer(module) and folder(f) != folder(module)}
    assert wrong == set()


def test_stamping_and_exposition_meet_in_runtime_only() -> None:
    """Neither imports the other; runtime is the one that imports both."""
    stamping, exporting = importers("asgi"), importers("export")
    assert under("export", stamping) == set()
    assert under("asgi", exporting) == set()
    assert {folder(name) for name in stamping} == {"asgi", "runtime"}
    assert "runtime" in {folder(name) for name in exporting}


def test_one_door_to_the_cold_module() -> None:
    """snapshots, their encoders, what reads and writes traces, and the load tester's histograms import _cold; no other
    else does."""
    cold = importers("_cold")
    assert {"snapshots.snapshot", "loadtest.compiled_counts"} <= cold
    assert {folder(name) for name in cold} == {"snapshots", "tracing", "loadtest", "export"}


def test_the_hot_module_is_for_stamping() -> None:
    """_hot is imported by the hooks, the encoders, the load client and what runs beside tokens."""
    beside = {"asgi", "gc", "group", "integrations", "loadtest", "runtime", "sse", "stall", "tracing"}
    assert {folder(name) for name in importers("_hot")} <= beside


def test_load_is_a_leaf() -> None:
    """The load client stands on errors, the meaning of an SLO, the version and the compiled modules: on nothing that
    looks at a process from within."""
    below = {t for name in under("loadtest", set(MODULES)) for t in IMPORTS[name] if not under("loadtest", {t})}
    assert below <= {"errors", "interrupts", "options.slo", "platform", "_hot", "_cold", "pure.histogram"}


def test_errors_and_bounds_are_at_the_bottom() -> None:
    """errors imports nothing of ours; what an SLO is, and when a trace is written, need errors only."""
    assert IMPORTS["errors"] == set()
    assert IMPORTS["options.slo"] == IMPORTS["options.trace_triggers"] == {"errors"}


def test_modules_have_no_circle() -> None:
    """The modules can be sorted: none needs itself, also not by an import inside a function."""
    TopologicalSorter(IMPORTS).prepare()


def test_public_classes_have_one_name_each() -> None:
    """No name has two meanings. Those of C in _hot.pyi count apart."""
    found = [
        (node.name, module)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    modules: dict[str, set[str]] = {}
    for name, module in found:
        modules.setdefault(name, set()).add(module)
    assert {name: sorted(where) for name, where in modules.items() if len(where) > 1} == {}


def test_nothing_below_imports_the_top() -> None:
    """The demo and the command line are imported by nothing below them."""
    assert {folder(name) for name in importers("demo")} <= {"demo", "cli"}
    assert {folder(name) for name in importers("cli")} == {"cli", "__main__"}


def test_init_is_a_list_of_names() -> None:
    """Everything in __all__ is there, and nothing is defined in __init__ itself."""
    tree = ast.parse(MODULES[""].read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert all(hasattr(tailwatch, name) for name in tailwatch.__all__)


def undocumented(path: Path) -> list[str]:
    """Public functions, classes and methods of a file that have no docstring."""
    return [
        name
        for name, node in public(ast.parse(path.read_text(encoding="utf-8")), "")
        if ast.get_docstring(node) is None
    ]


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Definitions without a leading underscore, and those inside such classes, except where a base class named
    Protocol (of typing or asyncio) already documents its members."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from public(node, f"{node.name}.")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_public_names_are_documented(module: str) -> None:
    """Every module, public class, function and method has a docstring."""
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    assert undocumented(MODULES[module]) == []


STATE = """
import gc, json, logging, signal, sys, threading
def state():
    return {
        "callbacks": [repr(c) for c in gc.callbacks], "threads": threading.active_count(), "enabled": gc.isenabled(),
        "thresholds": gc.get_threshold(), "debug": gc.get_debug(), "frozen": gc.get_freeze_count(),
        "functions": [repr(f) for f in (gc.freeze, gc.unfreeze, gc.collect, threading.excepthook, sys.excepthook)],
        "handlers": [len(logging.getLogger(name).handlers) for name in (None, "tailwatch")],
        "signals": [repr(signal.getsignal(s)) for s in sorted(signal.valid_signals())],
        "finders": [repr(f) for f in (*sys.meta_path, *sys.path_hooks)],
    }
before = state()
import tailwatch, tailwatch.cli, tailwatch.diagnose.rules
print(json.dumps([before, state()]))
"""


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No thread, no callback, no handler, no freeze: everything happens in install()."""
    done = subprocess.run([sys.executable, "-c", STATE], cwd=tmp_path, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert before == after


# C ---------------------------------------------------------------------------------------------------------

C_FILES = sorted(path for path in CSRC.rglob("*.[ch]") if "third_party" not in path.parts)
# From the bottom to the top: a file calls, and includes, what stands in its own folder or in a lower row.
C_LAYERS = (
    ("base",),
    ("wire",),
    ("gc",),
    ("record",),
    ("stall",),
    ("attribute",),
    ("stamp",),
    ("aggregate", "group", "trace"),
    ("export",),
    ("python",),
)
STAGES = tuple(stage for row in C_LAYERS[:-1] for stage in row)
CORE = sorted(path for stage in STAGES for path in (CSRC / stage).glob("*.c"))
SOURCES = (*CORE, *sorted((CSRC / "python").rglob("*.c")))
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(tailwatch/[^>]+)>)', re.MULTILINE)


def included(path: Path) -> set[Path]:
    """Our files that a C file includes."""
    names = [quoted or angled for quoted, angled in INCLUDE.findall(path.read_text(encoding="utf-8"))]
    places = (path.parent, CSRC / "include", CSRC)
    return {(place / name).resolve() for name in names for place in places if (place / name).is_file()}


def test_the_c_sources_are_here() -> None:
    """The rules below have something to look at."""
    assert {"pause_clock.c", "stream.c", "histogram.c", "snapshot.c"} <= {path.name for path in CORE}
    assert {path.parent.name for path in CORE} == set(STAGES)
    assert (CSRC / "include/tailwatch/record/pause_clock.h").resolve() in included(CSRC / "record/pause_clock.c")


def test_includes_have_no_cycle() -> None:
    """The include graph can be sorted: no header needs itself."""
    order = list(TopologicalSorter({path.resolve(): included(path) for path in C_FILES}).static_order())
    assert len(order) >= len(C_FILES)


def test_the_core_includes_no_python() -> None:
    """Python.h is included below csrc/python only, and nothing of the core includes what is there."""
    users = {path for path in C_FILES if "Python.h" in path.read_text(encoding="utf-8")}
    python = {path for path in C_FILES if path.is_relative_to(CSRC / "python")}
    assert users and users <= python
    core = {found for path in C_FILES if path not in python for found in included(path)}
    assert [path for path in core if path.is_relative_to(CSRC / "python")] == []


def stage(path: Path) -> str:
    """The folder of a source or of a public header."""
    parts = path.relative_to(CSRC).parts
    return parts[2] if parts[:2] == ("include", "tailwatch") else parts[0]


def points_up(source: Path, target: Path) -> bool:
    """Whether the target's folder is another one that is not below the source's."""
    row = {name: number for number, names in enumerate(C_LAYERS) for name in names}
    return stage(source) != stage(target) and row[stage(target)] >= row[stage(source)]


def arrow(source: Path, target: Path, why: str = "") -> str:
    """How a test names what it found."""
    return f"{source.relative_to(CSRC)} -> {target.relative_to(CSRC)} {why}".rstrip()


def test_includes_follow_the_stages() -> None:
    """No file includes a header of a later stage, or of one beside its own."""
    places = [path for path in C_FILES if stage(path) in (*STAGES, "python")]
    assert [arrow(path, found) for path in places for found in included(path) if points_up(path, found)] == []


class Symbols(NamedTuple):
    """What an object file defines for others, needs of others, and may write to."""

    defined: set[str]
    needed: set[str]
    writable: set[str]


def symbols(source: Path, directory: Path) -> Symbols:
    """Of a source, compiled as it stands."""
    target = directory / "_".join(source.relative_to(CSRC).with_suffix(".o").parts)
    # Without position independence tables of string constants stay in read-only sections, where nm lists them.
    options = ["-std=gnu11", "-D_GNU_SOURCE", "-O0", "-fno-pic", "-w", f"-I{CSRC / 'include'}", f"-I{CSRC}"]
    if stage(source) == "python":
        options += ["-DPy_LIMITED_API=0x030A0000", f"-I{sysconfig.get_path('include')}", f"-I{CSRC / 'third_party'}"]
    subprocess.run([COMPILER, *options, "-c", str(source), "-o", str(target)], check=True)
    listing = subprocess.run(["nm", "-P", str(target)], capture_output=True, text=True, check=True).stdout
    found = [line.split()[:2] for line in listing.splitlines()]
    return Symbols(
        defined={name for name, kind in found if kind in "TDBRC"},
        needed={name for name, kind in found if kind == "U"},
        writable={name for name, kind in found if kind in "bBdDCsSgGuV"},
    )


COMPILER = shutil.which("cc") or shutil.which("gcc") or ""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Symbols]:
    """Each source's symbols; those of csrc/python only where Python.h is."""
    if not COMPILER or shutil.which("nm") is None:
        pytest.skip("no C compiler or nm: apt-get install gcc binutils")
    directory = tmp_path_factory.mktemp("objects")
    python = Path(sysconfig.get_path("include"), "Python.h").is_file()
    wanted = [path for path in SOURCES if python or stage(path) != "python"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(wanted, pool.map(lambda path: symbols(path, directory), wanted), strict=True))


@pytest.fixture(scope="module")
def calls(objects: dict[Path, Symbols]) -> dict[Path, dict[Path, set[str]]]:
    """Which files a file needs, and which of their symbols."""
    owner = {name: path for path, found in objects.items() for name in found.defined}
    assert len(owner) == sum(len(found.defined) for found in objects.values()), "two files define the same symbol"
    needs: dict[Path, dict[Path, set[str]]] = {path: {} for path in objects}
    for path, found in objects.items():
        for name in found.needed & owner.keys():
            needs[path].setdefault(owner[name], set()).add(name)
    return needs


@pytest.mark.slow  # compiles each file
def test_calls_follow_the_stages(calls: dict[Path, dict[Path, set[str]]]) -> None:
    """No file calls one of a later stage, or of one beside its own."""
    assert sum(len(targets) for targets in calls.values()) > 100
    wrong = [
        arrow(path, target, " ".join(sorted(names)))
        for path, targets in calls.items()
        for target, names in targets.items()
        if points_up(path, target)
    ]
    assert wrong == []


@pytest.mark.slow  # compiles each file
def test_calls_have_no_circle(calls: dict[Path, dict[Path, set[str]]]) -> None:
    """The files can be sorted so that each calls only those before it."""
    names = {str(path.relative_to(CSRC)): [str(to.relative_to(CSRC)) for to in found] for path, found in calls.items()}
    assert len(list(TopologicalSorter(names).static_order())) == len(calls)


@pytest.mark.slow  # compiles each file
def test_the_core_has_no_mutable_globals(objects: dict[Path, Symbols]) -> None:
    """No writable symbol in any object file: the core is linked twice, so a global would exist twice."""
    assert all(objects[path].defined for path in CORE)
    assert {str(path): objects[path].writable for path in CORE if objects[path].writable} == {}
