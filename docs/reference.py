"""Writes the reference in the guides from the code's own tables: python docs/reference.py [--check]

What stands between `<!-- reference: PART -->` and `<!-- /reference -->` is written; the rest of a page is nobody's but
its author's. Two branches that changed the same table: take either, and run this. --check writes nothing, names the
pages that would change, and ends with 1; a test runs it. It reads the installed package.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import reference_data as data

import tailwatch
from tailwatch.cli import parser as cli
from tailwatch.export.core_metrics import Metric, metrics
from tailwatch.group import temp_dirs
from tailwatch.options.config import OPTIONS, Config, variable_of
from tailwatch.options.signature import Options

DOCS = Path(__file__).resolve().parent
SOURCES = (DOCS.parent / "tailwatch", DOCS.parent / "tailwatch_boot")
BLOCK = re.compile(r"(<!-- reference: ([a-z]+) ?([a-z]*) -->\n).*?(<!-- /reference -->)", re.DOTALL)
WIDTH = 118

Rows = Iterable[tuple[str, ...]]


def complete(what: str, made: Iterable[str], entered: Iterable[str]) -> None:
    """Ends the program where a thing has no entry, or an entry no thing."""
    made, entered = set(made), set(entered)
    if made != entered:
        sys.exit(
            f"docs/reference_data.py: {what}: without an entry: {sorted(made - entered)}; "
            f"an entry without its thing: {sorted(entered - made)}"
        )


# ---- Markdown ----


def table(head: str, rows: Rows) -> str:
    """Of GitHub's kind; | in a cell is escaped."""
    columns = [cell.strip() for cell in head.split("|")]
    lines = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *lines]) + "\n"


def prose(text: str) -> str:
    """A docstring's text or a description: names as code, nothing that Markdown would swallow."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"``(.+?)``", r"`\1`", text))
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


# Names with an underscore, calls of a module's functions, and options with a value.
NAME = re.compile(
    r"""((?<![\w/.-])(?:\w+\.)*\w*_\w+\*?(?:\(\))?(?:=(?:"[^"]*"|\w+))?
    |(?<![\w/.-])(?:\w+\.)+\w+\(\)
    |\bgc="?\w+"?)""",
    re.VERBOSE,
)


def _plain(text: str) -> str:
    """Names are code."""
    return "".join(f"`{part}`" if i % 2 else escaped(part) for i, part in enumerate(NAME.split(text)))


def escaped(text: str) -> str:
    """What Markdown would take for a tag, or as bold."""
    return re.sub(r"(<(?=[\w/!])|\*(?=\*))", r"\\\1", text)


def folded(text: str, indent: str = "") -> str:
    """Within the columns that a page may have."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def code(names: str) -> str:
    """Each a span."""
    return ", ".join(f"`{name}`" for name in names.split())


# ---- options, metrics, flags ----


def options(_: str) -> str:
    """The options of install()."""
    complete("OPTIONS", OPTIONS, data.OPTIONS)
    complete("DEFAULTS", data.DEFAULTS, set(data.DEFAULTS) & set(OPTIONS))
    meanings, defaults = attributes(Config), Config.read({}, {})
    return table(
        "option | default | meaning and example",
        (
            (
                f"`{name}`<br>{_type(Options.__annotations__[name].__forward_arg__)}",
                data.DEFAULTS.get(name) or _default(getattr(defaults, name)),
                f"{prose(meanings[name])}{_more(name)}<br>{_example(name)}",
            )
            for name in OPTIONS
        ),
    )


def _more(name: str) -> str:
    return f" See {data.OPTIONS[name][1]}." if data.OPTIONS[name][1] else ""


def _type(annotation: str) -> str:
    """The kinds of a value: a literal's values each for itself, without None."""
    words = re.sub(r"Literal\[([^\]]*)\]", r"\1", annotation)
    kinds = [kind.strip("'\"") for kind in re.split(r", | \| ", words)]
    return ", ".join(f"`{kind}`" for kind in kinds if kind != "None")


def _default(value: object) -> str:
    if value is None or value == () or (not isinstance(value, (bool, int, float, str)) and not str(value)):
        return "none"
    return f"`{value}`" if isinstance(value, bool) else f"`{value:g}`" if isinstance(value, float) else _text(value)


def _text(value: object) -> str:
    return f"`{value}`" if isinstance(value, int) else f'`"{value}"`' if str(value) else "none"


def _example(name: str) -> str:
    """As an environment variable, which is read here to see that it is one."""
    variable, text = variable_of(name), data.OPTIONS[name][0]
    Config.read({}, {variable: text})
    return f"`{variable}={text}`"


def attributes(kind: type) -> dict[str, str]:
    """Of a class, by name: the section of its docstring."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    items = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in items}


def metric_table(section: str) -> str:
    """One section of docs/metrics.md."""
    entered = {name: entry for each in data.METRICS.values() for name, entry in each.items()}
    made = {each.prometheus: each for each in metrics() if each.prometheus}
    complete("METRICS", made, entered)
    return table(
        "metric | meaning | what to do",
        (
            (f"`{name}`<br>{_kind_of(made[name])}{_by(labels)}", prose(made[name].help), use)
            for name, (labels, use) in data.METRICS[section].items()
        ),
    )


def _kind_of(metric: Metric) -> str:
    """Its type and unit."""
    unit = _unit(metric.unit)
    return metric.kind + (f", {unit}" if unit else "")


def _by(labels: str) -> str:
    return f", by {code(labels)}" if labels else ""


def _unit(unit: str) -> str:
    return {"1": "", "{info}": "", "{state}": "", "By": "bytes"}.get(unit, unit.replace("{", "").replace("}", ""))


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands."""
    (found,) = [each for each in cli._parser()[0]._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found.choices)


def flags(command: str) -> str:
    """The flags of a command; of "load" those that bench and ablate share."""
    groups = commands()["bench" if command == "load" else command]._action_groups
    wanted = [group for group in groups if (group.title or "").startswith(data.LOAD) == (command == "load")]
    actions = [each for group in wanted for each in group._group_actions if "-h" not in each.option_strings]
    return table("flag | meaning", ((_flag(each), escaped(_help(each))) for each in actions))


def _flag(action: argparse.Action) -> str:
    value = action.metavar or (",".join(map(str, action.choices)) if action.choices else "")
    takes = "" if action.nargs == 0 else " " + str(value).replace(",", "|" if action.choices else ",")
    names = [*(name for name in action.option_strings if "_" not in name)]
    return f"`{(', '.join(names) + takes).strip()}`"


def _help(action: argparse.Action) -> str:
    return str(action.help).replace("%%", "%")


def exits(_: str) -> str:
    """The exit statuses of the commands."""
    shown = {"each, if nothing else stands below": cli.EXITS}
    shown |= {f"`tailwatch {name}`": command.EXITS for name, command in cli.COMMANDS.items() if command.EXITS}
    statuses = {name: "; ".join(f"{n}: {text}" for n, text in sorted(exits.items())) for name, exits in shown.items()}
    return table("command | exit status", statuses.items())


# ---- environment, files, log lines ----


def trees() -> Iterator[tuple[str, ast.Module]]:
    """The package's sources, each with its path in the repository."""
    for file in sorted(file for folder in SOURCES for file in folder.rglob("*.py")):
        yield file.relative_to(DOCS.parent).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def variables(_: str) -> str:
    """What is read from the environment, beside options."""
    texts = {node.value for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named = re.compile(r"TAILWATCH(_[A-Z_]*[A-Z])?|OTEL_[A-Z_]*[A-Z]|PROMETHEUS_[A-Z_]+|[A-Z]+_API_KEY")
    found = {text for text in texts if isinstance(text, str) and named.fullmatch(text)}
    complete("VARIABLES", found - set(map(variable_of, OPTIONS)), data.VARIABLES)
    return table("variable | meaning", ((f"`{name}`", text) for name, text in data.VARIABLES.items()))


def files(_: str) -> str:
    """What stands in a group's directory."""
    known = (temp_dirs._SEGMENT, temp_dirs._NOT_MEMBERS)
    if bad := [name for name, _ in data.FILES.values() if not any(each.fullmatch(name) for each in known)]:
        sys.exit(f"docs/reference_data.py: FILES: no such file is made: {bad}")
    return table("file | example | meaning", ((f"`{k}`", f"`{name}`", text) for k, (name, text) in data.FILES.items()))


HOLE = "…"
LOGGERS = {"logger": "tailwatch", "_logger": "tailwatch.sse"}
LEVELS = {"exception": "error", "log": "info, warning", "_warn": "warning"}


def logs(_: str) -> str:
    """Every call that logs a text of its own."""
    found = {
        line: LEVELS.get(level, level)
        for path, tree in trees()
        if not path.startswith(("tailwatch/loadtest", "tailwatch/demo"))
        for node in ast.walk(tree)
        for level, line in _logged(node)
    }
    complete("LOGS", found, data.LOGS)
    return table(
        "line | level | what to do", ((f"`{line}`", level, data.LOGS[line]) for line, level in sorted(found.items()))
    )


def _logged(node: ast.AST) -> Iterator[tuple[str, str]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    owner, name = node.func.value, node.func.attr
    named = isinstance(owner, ast.Name) and owner.id in LOGGERS and name in ("info", "warning", "exception", "log")
    if named or name == "_warn":
        first = node.args[1 if name == "log" else 0]
        line = ("tailwatch: " if name == "_warn" else "") + _shown(first)
        if re.search(r"[a-z]{3}", line.removeprefix("tailwatch: ")):
            yield name, line


def _shown(text: ast.expr) -> str:
    """Of a text with holes: an ellipsis for each."""
    if isinstance(text, ast.Constant):
        return re.sub(r"(%[.\d]*[sdfgr])+", HOLE, str(text.value))
    if isinstance(text, ast.JoinedStr):
        return "".join(_shown(part) for part in text.values)
    if isinstance(text, ast.BinOp):
        return _shown(text.left) + _shown(text.right)
    return HOLE


# ---- Python ----


def api(_: str) -> str:
    """The public names."""
    return "\n".join(_name(name, getattr(tailwatch, name)) for name in tailwatch.__all__ if name[0] != "_")


def _name(name: str, thing: Any) -> str:
    text = f"## {name}\n\n"
    if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)) or name in ("Middleware", "SLO"):
        text += f"```py\n{_signature(name, thing)}\n```\n\n"
    text += _document(inspect.getdoc(thing) or "")
    if dataclasses.is_dataclass(thing) and isinstance(thing, type) and not attributes(thing) and name != "SLO":
        shown = ", ".join(f"`{each.name}: {each.type}`" for each in dataclasses.fields(thing))
        text += f"\n{folded(f'Fields: {shown}')}\n"
    rows = [] if isinstance(thing, type) and issubclass(thing, (Exception, dict)) else list(_members(thing))
    return text + ("\n" + table("member | meaning", rows) if rows else "")


def _members(thing: Any) -> Iterator[tuple[str, str]]:
    """Methods and properties of a class, functions of a module: each with the first paragraph about it."""
    if not isinstance(thing, (type, types.ModuleType)):
        return
    for name, member in sorted(vars(thing).items()):
        made_here = isinstance(thing, type) or getattr(member, "__module__", "") == thing.__name__
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        calls, kinds = callable(member), (property, functools.cached_property, types.GetSetDescriptorType)
        described = inspect.getdoc(member) if calls or isinstance(member, kinds) else ""
        if name[0] != "_" and made_here and described:
            first = " ".join(described.split("\n\n")[0].split())
            yield f"`{_signature(name, member, row=True) if calls else name}`", prose(first)


def _signature(name: str, thing: Any, row: bool = False) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return f"{name}()"
    parts: list[str] = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        if each.name != "self" and each.name != "cls":
            parts.append(_parameter(each))
    made = signature.return_annotation
    result = "" if made in (signature.empty, None, "None") else f" -> {_kind(made)}"
    line = f"{name}({', '.join(parts)}){result}"
    return line if row or len(line) <= WIDTH else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){result}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else f": {_kind(each.annotation)}"
    equals = " = " if kind else "="
    return f"{stars}{each.name}{kind}" + ("" if each.default is each.empty else f"{equals}{each.default!r}")


def _kind(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _document(text: str) -> str:
    """A docstring in Markdown: its sections as lists."""
    made = ""
    for part in text.split("\n\n"):
        head, _, body = part.partition(":\n")
        if re.fullmatch(r"Args|Returns|Raises|Attributes|Yields", head):
            items = re.split(r"\n(?! )", textwrap.dedent(body))
            made += f"{head}:\n\n" + "".join(folded("- " + _item(item), "  ") + "\n" for item in items) + "\n"
        elif part.startswith("    "):
            made += f"```py\n{textwrap.dedent(part)}\n```\n\n"
        else:
            made += folded(prose(" ".join(part.split()))) + "\n\n"
    return made.rstrip("\n") + "\n"


def _item(text: str) -> str:
    """Of a section's list: what it is about, as code."""
    about, colon, rest = " ".join(text.split()).partition(": ")
    return f"`{about}`: {prose(rest)}" if colon and re.fullmatch(r"[\w*.]+", about) else prose(" ".join(text.split()))


PARTS: dict[str, Callable[[str], str]] = {
    "options": options,
    "metrics": metric_table,
    "flags": flags,
    "exits": exits,
    "variables": variables,
    "files": files,
    "logs": logs,
    "api": api,
}


def written(page: str) -> str:
    """A page with its parts as they are today."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{PARTS[found[2]](found[3])}\n{found[4]}", page)


def main() -> int:
    """Writes, or with --check compares."""
    check, stale = "--check" in sys.argv[1:], 0
    done = "not as the code is: python docs/reference.py" if check else "written"
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            stale += 1
            print(f"docs/{page.name}: {done}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
