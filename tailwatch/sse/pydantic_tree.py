"""The tree of a Pydantic object: walked into the nodes of a plan and a copy to change values in, and named."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

_NODES_LIMIT, _LEAVES_LIMIT, _LIST_LIMIT, _DEPTH_LIMIT = 256, 64, 32, 24
_NAME_LIMIT, _KEY_LIMIT = 64, 32
_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")

# (kind, subject, keys, fields_set, number, falsy): see tailwatch._hot.Plan.
Node: TypeAlias = tuple[str, object, tuple[str, ...], frozenset[str] | None, int, bool]
Path: TypeAlias = tuple[Node, ...]


def node(
    kind: str, subject: object = None, *keys: str, fields_set: frozenset[str] | None = None, number: int = 0
) -> Node:
    """One node; what a kind does not use stays empty."""
    return (kind, subject, keys, fields_set, number, False)


class Unsupported(Exception):
    """Objects that fit these nodes are left to their class. path: where in the object the reason is."""

    def __init__(self, path: Path, nodes: tuple[Node, ...]) -> None:
        super().__init__()
        self.path, self.nodes = path, nodes


def unsupported(path: Path, value: object) -> Unsupported:
    """For a value of this type at this place, whatever stands beside it."""
    return Unsupported(path, (*path, node("type", type(value))))


@dataclass
class Leaf:
    """A string or an integer. at: which of the nodes; start, end: where its JSON stands in the text, once found."""

    path: Path
    value: str | int
    at: int
    slot: tuple[Any, Any]  # a dict or list of the copy, and the key there
    start: int = -1
    end: int = -1
    falsy: bool = False


@dataclass
class Tree:
    """An object, walked. models: its classes and where each was met first; deepest: its last innermost leaf."""

    copy: Any = None
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    models: dict[type, Path] = field(default_factory=dict)
    deepest: Path = ()


def walk(model: Any) -> Tree:
    """The object's tree, and a copy of it, made without running code of the class. Private attributes are shared.

    Raises Unsupported where it holds what no plan compares or writes.
    """
    tree = Tree()
    tree.copy = _walk(tree, model, (), (None, None))
    return tree


def _walk(tree: Tree, value: Any, path: Path, slot: tuple[Any, Any]) -> Any:
    kind = type(value)
    if len(tree.nodes) >= _NODES_LIMIT or len(path) > _DEPTH_LIMIT:
        raise unsupported(path, value)
    if kind is list:
        return _walk_list(tree, value, path)
    if kind is dict:
        return _walk_dict(tree, value, path, "key", kind)
    if pydantic_base(kind) is not None:
        return _walk_model(tree, value, path)
    if kind is str or (kind is int and -(2**63) <= value < 2**63):
        _add_leaf(tree, value, path, slot)
    elif value is not None and kind not in (bool, int) and not issubclass(kind, enum.Enum):
        raise unsupported(path, value)
    tree.nodes.append(node("constant", value))
    return value


def _add_leaf(tree: Tree, value: str | int, path: Path, slot: tuple[Any, Any]) -> None:
    if len(tree.leaves) >= _LEAVES_LIMIT:
        raise unsupported(path, value)
    if len(path) >= len(tree.deepest):
        tree.deepest = path
    tree.leaves.append(Leaf(path, value, len(tree.nodes), slot))


def _walk_list(tree: Tree, value: list[Any], path: Path) -> list[Any]:
    if len(value) > _LIST_LIMIT:
        raise Unsupported(path, (*path, node("longer", list, number=_LIST_LIMIT)))
    tree.nodes.append(node("list", number=len(value)))
    copy: list[Any] = []
    for i, item in enumerate(value):
        copy.append(_walk(tree, item, (*path, node("item", list, number=i)), (copy, i)))
    return copy


def _walk_dict(tree: Tree, value: dict[str, Any], path: Path, step: str, owner: type) -> dict[str, Any]:
    if not _are_str(value):
        raise unsupported(path, value)
    tree.nodes.append(node("dict", None, *value))
    return _walk_items(tree, value, path, step, owner)


def _walk_items(tree: Tree, value: dict[str, Any], path: Path, step: str, owner: type) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, item in value.items():
        copy[key] = _walk(tree, item, (*path, node(step, owner, key)), (copy, key))
    return copy


def _walk_model(tree: Tree, value: Any, path: Path) -> Any:
    kind = type(value)
    if not is_plain(kind):
        raise unsupported(path, value)
    fields, fields_set, extra = vars(value), value.__pydantic_fields_set__, value.__pydantic_extra__
    if type(fields_set) is not set or not _are_str((*fields, *fields_set)) or type(extra) not in (dict, type(None)):
        raise unsupported(path, value)
    tree.models.setdefault(kind, path)
    tree.nodes.append(node("model", kind, *fields, fields_set=frozenset(fields_set), number=int(bool(extra))))
    copied_fields = _walk_items(tree, fields, path, "field", kind)
    copied_extra = _walk_dict(tree, extra, path, "extra", kind) if extra else extra
    private = getattr(value, "__pydantic_private__", None)
    return _made(kind, (copied_fields, set(fields_set), copied_extra, private))


def _made(kind: type, state: tuple[Any, ...]) -> Any:
    copy: Any = object.__new__(kind)
    for name, part in zip(_STATE, state, strict=True):
        object.__setattr__(copy, name, part)
    return copy


def _are_str(keys: Iterable[object]) -> bool:
    return all(type(key) is str for key in keys)


def loose(tree: Tree) -> tuple[Node, ...]:
    """The nodes of this shape, whatever its strings and integers are."""
    nodes = list(tree.nodes)
    for leaf in tree.leaves:
        nodes[leaf.at] = node("type", type(leaf.value))
    return tuple(nodes)


def name_of(model: type, path: Path) -> str:
    """What a shape is called: its class and a place in it, at most 64 characters."""
    steps = ".".join(_step_name(step) for step in path)
    cls = model.__name__[:_NAME_LIMIT]
    name = f"{cls}:{steps}" if steps else cls
    return name if len(name) <= _NAME_LIMIT else f"{cls[:28]}..{name[30 - _NAME_LIMIT :]}"


def _step_name(step: Node) -> str:
    kind, _, keys, _, number, _ = step
    if kind == "item":
        return str(number)
    return keys[0] if keys[0].isidentifier() and keys[0].isascii() and len(keys[0]) <= _KEY_LIMIT else "*"


# ---- the classes ----


def pydantic_base(model: type) -> type | None:
    """Pydantic v2's BaseModel, found without importing it; None where the class is no such model."""
    for base in model.__mro__:
        if base.__name__ == "BaseModel" and base.__module__ == "pydantic.main":
            return base if hasattr(base, "__pydantic_decorators__") else None
    return None


def is_plain(model: type) -> bool:
    """Whether what is written of its objects is what they hold: nothing computed, and nothing between us and it."""
    base: Any = pydantic_base(model)
    own = model.__mro__[: model.__mro__.index(base)]
    if any(name in vars(cls) for cls in own for name in _STATE):
        return False
    decorators = getattr(model, "__pydantic_decorators__", base.__pydantic_decorators__)
    untouched = getattr(model, "__getattribute__") is object.__getattribute__  # noqa: B009 - mypy: one of an instance
    return untouched and not decorators.computed_fields


@dataclass
class Functions:
    """Which Python functions take part when objects of a class are written.

    whole: one of them writes the object. shown: one that writes a field is given the object too. fields: those that one
    writes or leaves out, given the value.
    """

    whole: bool = False
    shown: bool = False
    fields: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.whole or self.shown or bool(self.fields)

    def take_part_in(self, name: str) -> bool:
        """Whether a field's text is theirs, or may change what they write elsewhere."""
        return self.whole or self.shown or name in self.fields


def functions_of(model: type) -> Functions:
    """Those of the class, and of the classes below it: in a field of such a one its objects are written in that way."""
    found = Functions()
    for cls in model.__mro__[: model.__mro__.index(cast(type, pydantic_base(model)))]:
        try:
            if "__pydantic_core_schema__" in vars(cls):
                _find_functions(cast(Any, cls).__pydantic_core_schema__, cls, None, found)
        except Exception:  # a base whose schema cannot be made writes nothing
            found.whole = found.whole or cls is model
    return found


def _find_functions(schema: Any, model: type, name: str | None, found: Functions) -> None:
    """name: of the field whose schema it is part of."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _find_functions(part, model, name, found)
    elif isinstance(schema, Mapping):
        of_another = schema.get("type") == "model" and schema.get("cls") is not model
        if name is not None or not of_another:
            _note_function(schema, name, found)
        if not of_another:  # that is asked for itself, where an object of it is met
            _find_in_parts(schema, model, name, found)


def _find_in_parts(schema: Mapping[str, Any], model: type, name: str | None, found: Functions) -> None:
    for key, part in schema.items():
        if key == "fields" and schema.get("type") == "model-fields":
            for own, of_field in part.items():
                _find_functions(of_field, model, own, found)
        elif key != "metadata":
            _find_functions(part, model, name, found)


def _note_function(schema: Mapping[str, Any], name: str | None, found: Functions) -> None:
    serialization = schema.get("serialization")
    by: Mapping[str, Any] = serialization if isinstance(serialization, Mapping) else {}
    writes = str(by.get("type")).startswith(("function", "format"))
    if not (writes or "serialization_exclude_if" in schema or callable(schema.get("discriminator"))):
        return
    if name is None:
        found.whole = True
    else:
        found.fields.add(name)
        found.shown = found.shown or bool(by.get("is_field_serializer"))
