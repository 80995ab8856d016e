"""The import arrows, the seam between C and Python, and that importing does nothing.

Python is looked at as installed, C in the source tree.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tailwatch

PACKAGE = Path(tailwatch.__path__[0])
CSRC = Path(__file__).resolve().parents[2] / "csrc"

# From the bottom to the top: a module imports from lower rows, from its own package, and nothing else of ours.
# "" is tailwatch itself, its list of public names.
LAYERS = (
    ("errors", "grouplock", "heritage", "unnamed"),
    ("goodput", "version", "support", "access", "elsewhere", "proof", "triggers", "collector", "ceiling", "orders"),
    ("config", "_hot", "_cold"),
    ("sse", "sse.*", "load", "load.*"),
    ("hooks", "hooks.*", "servers", "servers.*", "snapshots", "report", "saved", "gcadvice"),
    ("diagnosis", "export", "export.*", "daemon"),
    ("logs", "inert", "company", "port", "traces", "recorded"),
    ("loadsignal", "tracing"),
    ("watch",),
    ("nvtx", "profiling"),
    ("",),
    ("demo", "demo.*", "doors", "doors.*", "run", "gccommand"),
    ("top", "top.*", "nsys", "nsys.*"),
    ("cli",),
    ("__main__",),
)


def module_name(path: Path) -> str:
    """A file's dotted name below tailwatch; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> int:
    """The row that a module stands in; -1 where it has none."""
    matching = [row for row, names in enumerate(LAYERS) if any(fnmatch(module, name) for name in names)]
    return matching[0] if matching else -1


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
    """The modules that the rules below speak of exist and were read."""
    assert {"", "errors", "config", "goodput", "diagnosis", "cli", "watch", "snapshots", "hooks.gc"} <= set(MODULES)
    assert "errors" in IMPORTS["goodput"]
    assert "config" in IMPORTS["watch"]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module: str) -> None:
    """Each module has a place, and imports only what stands below it or in its own package."""
    assert layer(module) >= 0, f"tailwatch.{module} has no place in LAYERS"
    own = module.split(".")[0]
    wrong = {f for f in IMPORTS[module] if layer(f) >= layer(module) and f.split(".")[0] != own}
    assert wrong == set()


def test_the_first_arrow() -> None:
    """errors imports nothing of ours, goodput, triggers and ceiling only errors, config only those and collector."""
    assert IMPORTS["errors"] == set()
    assert IMPORTS["goodput"] == {"errors"}
    assert IMPORTS["triggers"] == {"errors"}
    assert IMPORTS["ceiling"] == {"errors"}
    assert IMPORTS["collector"] == set()
    assert IMPORTS["config"] == {"ceiling", "collector", "errors", "goodput", "triggers"}


def test_hooks_and_exporters_meet_in_watch_only() -> None:
    """Neither imports the other; watch is the one that imports both."""
    hooks, exporters = importers("hooks"), importers("export")
    assert under("export", hooks) == set()
    assert under("hooks", exporters) == set()
    assert hooks - under("hooks", hooks) <= {"", "watch"}
    assert "watch" in hooks & exporters


def test_one_door_to_the_cold_module() -> None:
    """snapshots, what reads and writes traces, and the load tester's histograms import _cold; nobody else does."""
    assert (
        {"snapshots", "traces"}
        <= importers("_cold")
        <= {
            *("snapshots", "traces", "recorded", "load.histogram"),
            *("export.perfetto", "export.timeline", "export.merge"),
        }
    )


def test_the_hot_module_is_for_those_who_stamp() -> None:
    """_hot is imported by the hooks, the encoders, the load client and by watch with its log, the only code that runs
    beside tokens."""
    hot = importers("_hot")
    assert hot - under("hooks", hot) - under("sse", hot) - under("load", hot) <= {
        "watch",
        "logs",
        "company",
        "loadsignal",
        "tracing",
    }


def test_load_is_a_leaf() -> None:
    """The load client stands on errors, the meaning of an SLO, the version and the compiled modules: on nothing that
    looks at a process from within."""
    below = {target for name in under("load", set(MODULES)) for target in IMPORTS[name] if not under("load", {target})}
    assert below <= {"errors", "goodput", "version", "_hot", "_cold", "page"}


def test_nobody_imports_the_top() -> None:
    """The demo and the command line are imported by nobody below them."""
    demo = importers("demo")
    assert demo - under("demo", demo) <= {"cli"}
    assert importers("cli") == {"__main__"}


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
    Protocol (of typing or asyncio) already says what its members mean."""
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
import tailwatch, tailwatch.cli, tailwatch.diagnosis
print(json.dumps([before, state()]))
"""


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No thread, no callback, no handler, no freeze: everything happens in install()."""
    done = subprocess.run([sys.executable, "-c", STATE], cwd=tmp_path, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert before == after


# C ---------------------------------------------------------------------------------------------------------

C_FILES = sorted(path for path in CSRC.rglob("*.[ch]") if "third_party" not in path.parts)
CORE = sorted(CSRC.glob("*.c"))
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(tailwatch/[^>]+)>)', re.MULTILINE)


def included(path: Path) -> set[Path]:
    """Our files that a C file includes."""
    names = [quoted or angled for quoted, angled in INCLUDE.findall(path.read_text(encoding="utf-8"))]
    places = (path.parent, CSRC / "include", CSRC)
    return {(place / name).resolve() for name in names for place in places if (place / name).is_file()}


def test_the_c_sources_are_here() -> None:
    """The rules below have something to look at."""
    assert {"pause.c", "stream.c", "histogram.c", "snapshot.c"} <= {path.name for path in CORE}
    assert (CSRC / "include/tailwatch/pause.h").resolve() in included(CSRC / "pause.c")


def test_includes_have_no_cycle() -> None:
    """The include graph can be sorted: no header needs itself."""
    order = list(TopologicalSorter({path.resolve(): included(path) for path in C_FILES}).static_order())
    assert len(order) >= len(C_FILES)


def test_the_core_knows_no_python() -> None:
    """Python.h is included by the hot module and the sweep only, and nothing of the core includes those."""
    users = {path.relative_to(CSRC).as_posix() for path in C_FILES if "Python.h" in path.read_text(encoding="utf-8")}
    assert users
    assert [user for user in users if not re.fullmatch(r"python/(hot|sweep)[a-z_]*\.[ch]", user)] == []
    core = {found for path in C_FILES if path.parent.name != "python" for found in included(path)}
    assert [path for path in core if path.parent.name == "python"] == []


@pytest.mark.parametrize("source", CORE, ids=lambda path: path.name)
def test_the_core_has_no_mutable_globals(source: Path, tmp_path: Path) -> None:
    """No writable symbol in any object file: the core is linked twice, so a global would exist twice."""
    compiler, nm = shutil.which("cc") or shutil.which("gcc"), shutil.which("nm")
    if compiler is None or nm is None:
        pytest.skip("no C compiler and nm here")
    target = tmp_path / "core.o"
    # Without position independence tables of string constants stay in read-only sections, where nm can tell them.
    options = ["-std=gnu11", "-D_GNU_SOURCE", "-O0", "-fno-pic", f"-I{CSRC / 'include'}", f"-I{CSRC}"]
    subprocess.run([compiler, *options, "-c", str(source), "-o", str(target)], check=True)
    listing = subprocess.run([nm, "-P", str(target)], capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[:2] for line in listing.splitlines()]
    assert any(kind in "Tt" for _, kind in symbols)
    assert [name for name, kind in symbols if kind in "bBdDCsSgGuV"] == []
