"""Continuous batching: a thread that runs one step after the other; requests join and leave between steps."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailwatch.demo.cache import PrefixCache, Store
from tailwatch.demo.model import BLOCK, DEVICE_SECONDS

if TYPE_CHECKING:
    from tailwatch.demo.heap import Block, Heap
    from tailwatch.demo.model import Floats, LanguageModel, Sampled

MAX_BATCH = 48
PREFILLS_PER_STEP = 4
CYCLIC_EVERY = 16  # one finished request in so many is left as a reference cycle
LONGEST_PROMPT = 1024


@dataclass
class Logprob:
    """One of the likeliest tokens at a position."""

    logprob: float
    rank: int
    decoded: str


@dataclass
class Output:
    """One generated token, on its way to the handler."""

    text: str
    logprobs: dict[int, Logprob]
    finish_reason: str | None = None


class Detokenizer:
    """Text and log-probabilities of one request so far; refers back to its request, as such state often does."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request: GenerationRequest | None = request
        self.pieces: list[str] = []
        self.logprobs: list[dict[int, Logprob]] = []


class GenerationRequest:
    """One request from submission to its last token."""

    def __init__(self, number: int, prompt: list[int], max_tokens: int) -> None:
        self.number = number
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.detokenizer = Detokenizer(self)
        self.outputs: asyncio.Queue[Output] = asyncio.Queue()
        self.blocks: list[Block] = []
        self.aborted = False


@dataclass
class Record:
    """What the response store keeps of a finished request."""

    prompt: list[int]
    text: str
    logprobs: list[dict[int, Logprob]]


class Engine:
    """Owns the batch. `submit` and `abort` belong to the event loop's thread, everything else to the engine's."""

    def __init__(self, model: LanguageModel, heap: Heap, batch: int = MAX_BATCH) -> None:
        self._model = model
        self._most = batch
        self._heap = heap
        self._vocabulary = heap.vocabulary
        self._texts = [token.text for token in heap.vocabulary.tokens]
        self._cache = PrefixCache(model.blank(1)[0])
        self._store: Store[Record] = Store()
        self._waiting: deque[GenerationRequest] = deque()
        self._batch: list[GenerationRequest] = []
        self._state: Floats = model.blank(batch)
        self._last = np.zeros(batch, dtype=np.int64)
        self._numbers = itertools.count()
        self._wake = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to run steps; outputs are handed to this loop."""
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Finish the step in progress and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def submit(self, prompt: str, max_tokens: int) -> GenerationRequest:
        """Queue a request; its tokens arrive in `request.outputs`, the last one with a finish reason."""
        tokens = self._vocabulary.encode(prompt)[-LONGEST_PROMPT:] or [0]
        request = GenerationRequest(next(self._numbers), tokens, max(1, max_tokens))
        self._waiting.append(request)
        self._wake.set()
        return request

    def abort(self, request: GenerationRequest) -> None:
        """The reader of this request is gone; it leaves the batch before the next step."""
        request.aborted = True

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self._admit()
            if self._batch:
                self._step()
            elif not self._waiting:
                self._wake.wait(1.0)

    def _admit(self) -> None:
        for row in reversed(range(len(self._batch))):
            if self._batch[row].aborted:
                self._leave(row)
        for _ in range(PREFILLS_PER_STEP):
            if not self._waiting or len(self._batch) == self._most:
                return
            request = self._waiting.popleft()
            if not request.aborted:
                self._join(request)

    def _join(self, request: GenerationRequest) -> None:
        row = len(self._batch)
        request.blocks = self._heap.pool.take((len(request.prompt) + request.max_tokens) // BLOCK + 1)
        self._state[row] = self._prefill(request.prompt)
        self._last[row] = request.prompt[-1]
        self._batch.append(request)

    def _prefill(self, tokens: list[int]) -> Floats:
        """Fold the prompt into a state, block by block, from the longest prefix in the cache."""
        node, at = self._cache.match(tokens)
        while at + BLOCK <= len(tokens):
            block = tuple(tokens[at : at + BLOCK])
            node = self._cache.add(node, block, self._model.fold(node.state, block))
            at += BLOCK
        return self._model.fold(node.state, tokens[at:]) if at < len(tokens) else node.state

    def _leave(self, row: int) -> None:
        """The last row takes the place of the one that leaves."""
        self._heap.pool.give(self._batch[row].blocks)
        last = len(self._batch) - 1
        self._state[row], self._last[row] = self._state[last], self._last[last]
        self._batch[row] = self._batch[last]
        self._batch.pop()

    def _step(self) -> None:
        rows = len(self._batch)
        time.sleep(DEVICE_SECONDS)
        self._state[:rows], sampled = self._model.decode(self._state[:rows], self._last[:rows])
        self._last[:rows] = sampled.tokens
        outputs = self._outputs(sampled)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, outputs)
        for row in reversed(range(rows)):
            if outputs[row][1].finish_reason is not None:
                self._finish(self._batch[row])
                self._leave(row)

    def _outputs(self, sampled: Sampled) -> list[tuple[GenerationRequest, Output]]:
        tokens, top, logprobs = sampled.tokens.tolist(), sampled.top.tolist(), sampled.logprobs.tolist()
        return [
            (request, self._output(request, tokens[row], top[row], logprobs[row]))
            for row, request in enumerate(self._batch)
        ]

    def _output(self, request: GenerationRequest, token: int, top: list[int], logprobs: list[float]) -> Output:
        texts, detokenizer = self._texts, request.detokenizer
        ranked = {i: Logprob(value, rank, texts[i]) for rank, (i, value) in enumerate(zip(top, logprobs, strict=True))}
        detokenizer.pieces.append(texts[token])
        detokenizer.logprobs.append(ranked)
        done = len(detokenizer.pieces) >= request.max_tokens
        return Output(texts[token], ranked, "length" if done else None)

    def _finish(self, request: GenerationRequest) -> None:
        detokenizer = request.detokenizer
        record = Record(request.prompt, "".join(detokenizer.pieces), detokenizer.logprobs)
        self._store.add(str(request.number), record)
        if request.number % CYCLIC_EVERY:
            detokenizer.request = None


def _deliver(outputs: list[tuple[GenerationRequest, Output]]) -> None:
    for request, output in outputs:
        request.outputs.put_nowait(output)
