"""What finished requests leave behind: a prefix cache and a response store, both bounded, both evicted in batches."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from tailwatch.demo.model import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailwatch.demo.model import Floats

Kept = TypeVar("Kept")


@dataclass(eq=False)
class Node:
    """A block of prompt tokens in the prefix tree, with the model's state after it."""

    tokens: tuple[int, ...]
    state: Floats
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class PrefixCache:
    """A tree of prompt blocks; the least recently used leaves go first, a quarter of the capacity at a time."""

    def __init__(self, blank: Floats, capacity: int = 8192) -> None:
        self._root = Node((), blank, None)
        self._capacity = capacity
        self._by_use: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_use)

    def match(self, tokens: Sequence[int]) -> tuple[Node, int]:
        """The deepest node that holds a prefix of the tokens, and how many tokens that is."""
        node, at = self._root, 0
        while at + BLOCK <= len(tokens):
            following = node.children.get(tuple(tokens[at : at + BLOCK]))
            if following is None:
                break
            node = following
            self._by_use.move_to_end(node)
            at += BLOCK
        return node, at

    def add(self, parent: Node, tokens: tuple[int, ...], state: Floats) -> Node:
        """A new node below parent; may evict others, never the new one."""
        node = Node(tokens, state, parent)
        parent.children[tokens] = node
        self._by_use[node] = None
        if len(self._by_use) > self._capacity:
            self._evict(keep=node)
        return node

    def _evict(self, keep: Node) -> None:
        """Children were used after their parents, so from the newest of the oldest: each leaf bares its parent."""
        for node in reversed(list(islice(self._by_use, self._capacity // 4))):
            if node is keep or node.children or node.parent is None:
                continue
            del node.parent.children[node.tokens]
            del self._by_use[node]


class Store(Generic[Kept]):
    """The last responses, to be asked for again; a third of them goes when it is full."""

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: str, value: Kept) -> None:
        """Keep a value under a key."""
        self._kept[key] = value
        if len(self._kept) > self._capacity:
            for _ in range(self._capacity // 3):
                self._kept.popitem(last=False)
