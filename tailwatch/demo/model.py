"""A small language model with real arithmetic: a gated recurrent unit over a vocabulary of pseudo-words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Tokens = NDArray[np.int64]

HIDDEN = 256
VOCABULARY = 4096
TOP = 16  # log-probabilities kept per token; vLLM and OpenAI allow 20
BLOCK = 16  # prompt tokens folded in at once
DEVICE_SECONDS = 0.008  # the emulated accelerator: what one step waits for beside its arithmetic


class Sampled(NamedTuple):
    """One step for each row of a batch."""

    tokens: Tokens
    top: Tokens
    logprobs: Floats


class LanguageModel:
    """Weights drawn from a seed: the same seed, the same text."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._rng = rng
        self._embedding = _weights(rng, VOCABULARY, HIDDEN, gain=1.0)
        self._input = _weights(rng, HIDDEN, 3 * HIDDEN, gain=HIDDEN**-0.5)
        self._recurrent = _weights(rng, HIDDEN, 3 * HIDDEN, gain=HIDDEN**-0.5)
        self._head = _weights(rng, HIDDEN, VOCABULARY, gain=4 * HIDDEN**-0.5)

    def blank(self, rows: int) -> Floats:
        """The state before any token, one row per request."""
        return np.zeros((rows, HIDDEN), dtype=np.float32)

    def fold(self, state: Floats, block: Sequence[int]) -> Floats:
        """The state of one request after a block of prompt tokens."""
        pooled = self._embedding[list(block)].mean(axis=0, keepdims=True)
        folded: Floats = self._advance(state.reshape(1, HIDDEN), pooled)[0]
        return folded

    def decode(self, state: Floats, last: Tokens) -> tuple[Floats, Sampled]:
        """One token for each row: the new states, and what was sampled."""
        state = self._advance(state, self._embedding[last])
        return state, self._sample(state @ self._head)

    def _advance(self, state: Floats, inputs: Floats) -> Floats:
        given, kept = inputs @ self._input, state @ self._recurrent
        update = _sigmoid(given[:, :HIDDEN] + kept[:, :HIDDEN])
        reset = _sigmoid(given[:, HIDDEN : 2 * HIDDEN] + kept[:, HIDDEN : 2 * HIDDEN])
        candidate = np.tanh(given[:, 2 * HIDDEN :] + reset * kept[:, 2 * HIDDEN :])
        advanced: Floats = (1 - update) * state + update * candidate
        return advanced

    def _sample(self, logits: Floats) -> Sampled:
        """Sample among the TOP most likely tokens (Gumbel's trick), and keep their log-probabilities."""
        rows = np.arange(len(logits))[:, None]
        top = np.argpartition(logits, -TOP, axis=1)[:, -TOP:]
        best = logits[rows, top]
        peak = best.max(axis=1, keepdims=True)
        logprobs = best - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        pick = (best + self._rng.gumbel(size=best.shape)).argmax(axis=1)
        return Sampled(top[rows[:, 0], pick], top, logprobs)


def _weights(rng: np.random.Generator, rows: int, columns: int, *, gain: float) -> Floats:
    return (rng.standard_normal((rows, columns)) * gain).astype(np.float32)


def _sigmoid(x: Floats) -> Floats:
    squashed: Floats = np.float32(1) / (np.float32(1) + np.exp(-x))
    return squashed
