"""How one shape of a Pydantic object becomes JSON, asked of its own serialiser.

For each string and integer in the object's tree a copy is made in which that one differs, and dumped. Where the text
is the same but for that value's JSON in one place, the place is a hole, and the value is written there from then on.
Where it is not (a serialiser drops, changes or repeats it, or it is a Literal), the value belongs to the shape and is
compared. The object itself is never touched, and no validator runs.

A Python function can distinguish texts by anything, which no probing finds out. So what one writes, or is shown, is
compared too, and what one writes as a whole is left to it: unless its author declares that it looks at no text.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from tailwatch._hot import Plan, Template
from tailwatch.sse.pydantic_tree import (
    Functions,
    Leaf,
    Node,
    Path,
    Tree,
    Unsupported,
    functions_of,
    loose,
    name_of,
    node,
    pydantic_base,
    unsupported,
    walk,
)

# What is written depends on values that may be anywhere; text is escaped in a way of Pydantic's own.
_REFUSED = ("exclude_defaults", "ensure_ascii")

Dump: TypeAlias = Callable[[Any], str]

_VARIED_LIMIT = 8  # values of one place that are compared and not written: with more it is no constant
_VARIED_PLACES = 512

# What serialisers treat differently from other text, or change: escapes, spaces at the ends, case, length.
_STRANGE = ' \\"/\b\f\n\r\t\x00\x1f\x7f\xe9\u2028\ufeff\U0001f600<&>'


class Student:
    """Learns the shapes of one class.

    Args:
        model: the class.
        original: its model_dump_json.
        overridden: whether that is not Pydantic's.
        trusted: Python functions that write its objects, or objects within them, look at no text.
    """

    def __init__(self, model: type, original: Callable[..., str], *, overridden: bool, trusted: bool) -> None:
        base: Any = pydantic_base(model)
        self._original = original
        self._overridden, self._trusted = overridden, trusted
        self._slots = (vars(base)["__pydantic_fields_set__"], vars(base)["__pydantic_extra__"])
        self._functions: dict[type, Functions] = {}
        self._varied: dict[Path, set[int]] = {}

    def learn(self, model: Any, kwargs: Mapping[str, Any], text: str) -> Plan:
        """A plan for objects like this one, whose text is given; one without a literal where they are left alone."""
        try:
            if any(kwargs.get(name) for name in _REFUSED):
                raise unsupported((), model)
            if self._overridden and not self._trusted:
                raise unsupported((), model)
            return self._learn(walk(model), model, kwargs, text)
        except Unsupported as error:
            return Plan(name_of(type(model), error.path), error.nodes, self._slots, None, ())

    def _learn(self, tree: Tree, model: Any, kwargs: Mapping[str, Any], text: str) -> Plan:
        name = name_of(type(model), tree.deepest)
        functions = self._runs_functions(tree)
        self._require_no_writer(tree)
        _require_no_secrets(tree, functions)
        strict = {**kwargs, "warnings": "error"}  # what the class warns about is no value to learn from
        prober = _Prober(tree.copy, text, lambda probe: self._original(probe, **strict))
        if not prober.stays_the_same():
            raise Unsupported(tree.deepest, loose(tree))
        self._find_holes(tree, prober)
        keep = functions or bool(kwargs.get("exclude_unset"))
        plan = Plan(name, _nodes(tree, keep), self._slots, *_literal(tree, text))
        if not prober.agrees(plan, tree):
            raise Unsupported(tree.deepest, loose(tree))
        return plan

    def _runs_functions(self, tree: Tree) -> bool:
        for cls in tree.models:
            if cls not in self._functions:
                self._functions[cls] = functions_of(cls)
        return self._overridden or any(self._functions[cls] for cls in tree.models)

    def _require_no_writer(self, tree: Tree) -> None:
        for cls, path in tree.models.items():
            if self._functions[cls].whole and not self._trusted:
                raise Unsupported(path, (*path, node("type", cls)))

    def _is_shown(self, leaf: Leaf) -> bool:
        """Whether a function is given it that may look at its text."""
        steps = [(cls, keys[0]) for kind, cls, keys, *_ in leaf.path if kind in ("field", "extra")]
        return not self._trusted and any(self._functions[cast(type, cls)].take_part_in(key) for cls, key in steps)

    def _find_holes(self, tree: Tree, prober: _Prober) -> None:
        for leaf in tree.leaves:
            with contextlib.suppress(Exception):  # a Literal, for example, takes nothing but this value
                if not self._is_shown(leaf):
                    prober.find(leaf)
            if leaf.start < 0:
                self._note_varied(leaf)

    def _note_varied(self, leaf: Leaf) -> None:
        if len(self._varied) > _VARIED_PLACES:
            self._varied.clear()
        seen = self._varied.setdefault(leaf.path, set())
        seen.add(hash(leaf.value))
        if len(seen) > _VARIED_LIMIT:
            raise unsupported(leaf.path, leaf.value)


def _require_no_secrets(tree: Tree, functions: bool) -> None:
    """Private attributes are never compared: no function may see them that takes part in the writing."""
    for cls, path in tree.models.items():
        if functions and getattr(cls, "__private_attributes__", None):
            raise Unsupported(path, (*path, node("type", cls)))


class _Prober:
    """Dumps a copy of one object in which some values differ."""

    def __init__(self, copy: Any, text: str, dump: Dump) -> None:
        self._copy, self._text, self._dump = copy, text, dump
        self._escaped = Template(b'""', ((1, False),))

    def stays_the_same(self) -> bool:
        """Whether the copy gives the object's text, twice, without a warning."""
        try:
            return all(self._dump(self._copy) == self._text for _ in range(2))
        except Exception:
            return False

    def find(self, leaf: Leaf) -> None:
        """Sets where the leaf's JSON stands, if all others may stand there instead. Raises what the serialiser does."""
        first, *others = _others(leaf.value)
        start = self._place(leaf, first)
        end = start + len(self._json(leaf.value))
        if start >= 0 and all(self._is_at(leaf, other, start, end) for other in others):
            leaf.start, leaf.end = start, end
            leaf.falsy = self._may_be_falsy(leaf)

    def agrees(self, plan: Plan, tree: Tree) -> bool:
        """Whether the plan writes what the serialiser does, also where all holes hold something else at once."""
        holes = [leaf for leaf in tree.leaves if leaf.start >= 0]
        others = [(leaf, _others(leaf.value)[0]) for leaf in holes]
        empty = [(leaf, type(leaf.value)()) for leaf in holes if leaf.falsy]
        return all(self._changed(changes, plan.render) == self._changed(changes) for changes in ([], others, empty))

    def _changed(self, changes: list[tuple[Leaf, str | int]], dump: Callable[[Any], object] | None = None) -> Any:
        """What is dumped while the copy holds other values."""
        try:
            for leaf, value in changes:
                _put(leaf, value)
            return (dump or self._dump)(self._copy)
        finally:
            for leaf, _ in changes:
                _put(leaf, leaf.value)

    def _json(self, value: str | int) -> str:
        return self._escaped.splice(value).decode() if isinstance(value, str) else str(value)

    def _place(self, leaf: Leaf, other: str | int) -> int:
        changed, there = self._changed([(leaf, other)]), self._json(other)
        start = changed.find(there)
        end = start + len(self._json(leaf.value))
        same = changed.count(there) == 1 and self._text[start:end] == self._json(leaf.value)
        return start if same and changed == self._text[:start] + there + self._text[end:] else -1

    def _is_at(self, leaf: Leaf, other: str | int, start: int, end: int) -> bool:
        changed = self._changed([(leaf, other)])
        return bool(changed == self._text[:start] + self._json(other) + self._text[end:])

    def _may_be_falsy(self, leaf: Leaf) -> bool:
        try:
            return self._is_at(leaf, type(leaf.value)(), leaf.start, leaf.end)
        except Exception:
            return False


def _put(leaf: Leaf, value: str | int) -> None:
    owner, key = leaf.slot
    owner[key] = value


def _others(value: str | int) -> tuple[str | int, ...]:
    """Values that stand for any other, the first of which stands nowhere else in a text."""
    number = 10**17 + secrets.randbelow(10**17)
    if isinstance(value, int):
        return number, -number, 1
    return f"{_STRANGE}{number:x}{'Aa' * 150} ", f"{number:x}"


def _nodes(tree: Tree, keep_fields_set: bool) -> tuple[Node, ...]:
    """Holes are numbered as they stand in the text."""
    nodes = [item if keep_fields_set else (*item[:3], None, *item[4:]) for item in tree.nodes]
    for number, leaf in enumerate(_in_order(tree)):
        nodes[leaf.at] = ("text" if isinstance(leaf.value, str) else "number", None, (), None, number, leaf.falsy)
    return tuple(nodes)


def _literal(tree: Tree, text: str) -> tuple[bytes, tuple[int, ...]]:
    """The bytes around the holes, and where those are."""
    pieces, cuts, at = b"", [], 0
    for leaf in _in_order(tree):
        pieces += text[at : leaf.start + isinstance(leaf.value, str)].encode()
        at = leaf.end - isinstance(leaf.value, str)  # the quotes belong to the literal
        cuts.append(len(pieces))
    return pieces + text[at:].encode(), tuple(cuts)


def _in_order(tree: Tree) -> list[Leaf]:
    return sorted((leaf for leaf in tree.leaves if leaf.start >= 0), key=lambda leaf: leaf.start)
