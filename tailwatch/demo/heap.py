"""The long-lived heap of a model server: vocabulary, operator registry, KV-block pool."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from typing import Any

from tailwatch.demo.model import VOCABULARY
from tailwatch.demo.settings import OBJECTS

OPERATORS = 5_500
FEWEST_BLOCKS = 4_000  # more than a full batch of the longest requests takes
RUN = 8  # KV blocks that stay together in the free queue: what one request gave back
LETTERS = "etaoinshrdlucm"


@dataclass
class VocabularyToken:
    """What a tokenizer holds about one token; `pieces` are the two it was merged from."""

    index: int
    text: str
    pieces: list[VocabularyToken] = field(default_factory=list)
    follows: list[VocabularyToken] = field(default_factory=list)


@dataclass
class TrieNode:
    """Longest-match lookup of a text's next token."""

    children: dict[str, TrieNode] = field(default_factory=dict)
    token: VocabularyToken | None = None


class Vocabulary:
    """VOCABULARY tokens: single characters first, then pseudo-words with a leading space."""

    def __init__(self, rng: random.Random) -> None:
        texts = [chr(i) for i in range(128)]
        seen = set(texts)
        while len(texts) < VOCABULARY:
            word = " " + "".join(rng.choices(LETTERS, k=rng.randint(2, 6)))
            if word not in seen:
                seen.add(word)
                texts.append(word)
        self.tokens = [VocabularyToken(index, text) for index, text in enumerate(texts)]
        self._root = TrieNode()
        for token in rng.sample(self.tokens, len(self.tokens)):
            token.pieces = rng.sample(self.tokens, 2)
            token.follows = rng.sample(self.tokens, 6)
            self._insert(token)

    def _insert(self, token: VocabularyToken) -> None:
        node = self._root
        for letter in token.text:
            node = node.children.setdefault(letter, TrieNode())
        node.token = token

    def encode(self, text: str) -> list[int]:
        """Longest match first; a character that is not in the vocabulary becomes '?'."""
        found = []
        at = 0
        while at < len(text):
            token = self._longest(text, at)
            found.append(token.index)
            at += len(token.text)
        return found

    def _longest(self, text: str, at: int) -> VocabularyToken:
        node, best = self._root, self.tokens[ord("?")]
        for letter in text[at : at + 8]:
            following = node.children.get(letter)
            if following is None:
                break
            node = following
            best = node.token or best
        return best


class Argument:
    """One argument of an operator's schema."""

    def __init__(self, name: str, kinds: list[type], owner: Operator) -> None:
        self.name = name
        self.kinds = kinds
        self.owner = owner
        self.attributes = {"default": None, "aliases": [owner]}


class Operator:
    """One registered operator: its class, its kernels per device, its schema, the operators it decomposes into."""

    def __init__(self, index: int, rng: random.Random) -> None:
        self.index = index
        self.kernel_class = type(f"Kernel{index}", (), {"__slots__": (), "index": index})
        self.arguments = [Argument(f"a{i}", [int, float, self.kernel_class], self) for i in range(rng.randint(4, 9))]
        self.kernels = {device: [_kernel(self), _kernel(self)] for device in ("cpu", "cuda", "meta")}
        self.decomposition: list[Operator] = []


def _kernel(operator: Operator) -> Any:
    def kernel(*arguments: object) -> Operator:
        return operator

    return kernel


class Block:
    """One block of the KV cache, in a doubly linked free queue."""

    __slots__ = ("following", "index", "previous", "references")

    def __init__(self, index: int) -> None:
        self.index = index
        self.references = 0
        self.previous: Block | None = None
        self.following: Block | None = None


class BlockPool:
    """The free queue: requests take blocks from its front and give them back at its end."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.blocks = [Block(index) for index in range(count)]
        runs = [self.blocks[at : at + RUN] for at in range(0, count, RUN)]
        rng.shuffle(runs)  # the order of a queue that has been in use
        self.front = self._end = Block(-1)
        self.give([block for run in runs for block in run])
        self.take(1)

    def take(self, count: int) -> list[Block]:
        """The next blocks; IndexError when there are not so many."""
        return [self._take() for _ in range(count)]

    def give(self, blocks: list[Block]) -> None:
        """Put blocks at the end of the queue."""
        for block in blocks:
            block.references = 0
            block.previous, self._end.following = self._end, block
            self._end = block

    def _take(self) -> Block:
        block, following = self.front, self.front.following
        if following is None:
            raise IndexError("no free KV block")
        self.front = following
        following.previous = block.following = None
        block.references = 1
        return block


@dataclass
class Heap:
    """What the server holds for as long as it lives."""

    vocabulary: Vocabulary
    operators: list[Operator]
    pool: BlockPool


def build(seed: int, objects: int = OBJECTS) -> Heap:
    """Build the heap; afterwards the process tracks about `objects` objects, if it did not track more before."""
    rng = random.Random(seed)
    vocabulary = Vocabulary(rng)
    operators = _operators(rng, max(1, OPERATORS * objects // OBJECTS))
    missing = max(FEWEST_BLOCKS, objects - len(gc.get_objects()))
    return Heap(vocabulary, operators, BlockPool(rng, missing))


def _operators(rng: random.Random, count: int) -> list[Operator]:
    operators = [Operator(index, rng) for index in range(count)]
    for operator in operators:
        operator.decomposition = rng.choices(operators, k=4)
    rng.shuffle(operators)
    return operators
