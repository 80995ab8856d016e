"""The demo server's long-lived heap and what its requests leave behind."""

from __future__ import annotations

import random

import pytest

np = pytest.importorskip("numpy")

from tailwatch.demo import cache, heap, model  # noqa: E402


def test_the_block_pool_loses_no_block() -> None:
    """Blocks taken and given back go round: after many turns each is in the queue exactly once."""
    rng = random.Random(1)
    pool = heap.BlockPool(rng, 100)
    for _ in range(500):
        pool.give(pool.take(rng.randint(1, 30)))

    assert sorted(block.index for block in pool.take(99)) == sorted(
        block.index for block in pool.blocks if block.index != pool.front.index
    )
    with pytest.raises(IndexError):
        pool.take(1)


def test_text_goes_through_the_vocabulary() -> None:
    """Encoding finds the longest tokens, and their texts joined are the text again."""
    vocabulary = heap.Vocabulary(random.Random(2))
    text = "the" + vocabulary.tokens[500].text + vocabulary.tokens[3000].text + " ok"

    tokens = vocabulary.encode(text)

    assert "".join(vocabulary.tokens[i].text for i in tokens) == text
    assert len(tokens) < len(text)


def test_an_unknown_letter_becomes_a_question_mark() -> None:
    """Every text can be encoded."""
    vocabulary = heap.Vocabulary(random.Random(2))

    assert [vocabulary.tokens[i].text for i in vocabulary.encode("aéb")] == ["a", "?", "b"]


def test_the_prefix_cache_finds_the_longest_prefix() -> None:
    """Of a prompt whose first block is known, the first block is matched and no more."""
    blank = np.zeros(4, dtype=np.float32)
    prefixes = cache.PrefixCache(blank)
    block = tuple(range(model.BLOCK))
    node = prefixes.add(prefixes.match([])[0], block, blank + 1)

    found, at = prefixes.match([*block, *range(100, 100 + model.BLOCK)])

    assert found is node and at == model.BLOCK


def test_the_prefix_cache_is_bounded_and_stays_a_tree() -> None:
    """Whatever is added, the size stays at the capacity or below, and a kept node's parent is kept."""
    blank = np.zeros(4, dtype=np.float32)
    prefixes = cache.PrefixCache(blank, capacity=64)
    rng = random.Random(3)
    for _ in range(200):
        prompt = [rng.randrange(4) for _ in range(model.BLOCK * 6)]
        node, at = prefixes.match(prompt)
        for start in range(at, len(prompt), model.BLOCK):
            node = prefixes.add(node, tuple(prompt[start : start + model.BLOCK]), blank)
        assert len(prefixes) <= 64
        assert prefixes.match(prompt)[1] == len(prompt)


def test_the_store_drops_its_oldest() -> None:
    """It is bounded; a third goes at once."""
    store: cache.Store[int] = cache.Store(capacity=9)
    for number in range(10):
        store.add(str(number), number)

    assert len(store) == 7


def test_the_same_seed_gives_the_same_tokens() -> None:
    """Weights and sampling come from the seed alone."""

    def run() -> list[int]:
        small = model.LanguageModel(5)
        state, last, found = small.blank(3), np.zeros(3, dtype=np.int64), []
        for _ in range(4):
            state, sampled = small.decode(state, last)
            last = sampled.tokens
            found += sampled.tokens.tolist()
        return found

    assert run() == run()


def test_logprobs_are_those_of_a_distribution() -> None:
    """The likeliest tokens' probabilities are positive and sum to at most one; the sampled token is among them."""
    small = model.LanguageModel(6)
    _, sampled = small.decode(small.blank(2), np.array([1, 2]))
    shares = np.exp(sampled.logprobs)

    assert (shares > 0).all() and (shares.sum(axis=1) <= 1 + 1e-5).all()
    assert all(token in top for token, top in zip(sampled.tokens, sampled.top, strict=True))
