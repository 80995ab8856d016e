"""What does sse.accelerate() make of a server's own chunk classes?

Two families of the same classes (families.py): one as it is, one accelerated. Both construct the chunk of each
token and dump it as their server does; only the dump differs. Then what tailwatch.integrations replaces: construction
as well, where a server's chunk builder is a function, or json.dumps. Before anything is timed the frames are compared;
after it, nothing may have fallen back.

The bar is for vLLM's chat chunk, of three objects. A chunk of fewer spends less on its dump: "the most there is to win"
is what a dump that takes no time at all would make of it, and "of that, won" our share of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench_sse import SNIPPETS, TOKEN, feeding, undecided
from families import BUILDERS, FAMILIES, Builder, Family, available, vllm_chat
from harness import REPEATS, Report, bar_of, main, measure

from tailwatch import integrations, sse

LEARNING = 64  # frames of a shape, more than are compared with the class's own
PYDANTIC = ("vLLM chat", "vLLM completions", "TensorRT-LLM chat", "openai package, transformers serve")
"""Those that dump with model_dump_json()."""
BARS = {"vLLM chat": 1.3}
REPLACED = {
    "transformers serve": ("construction and dump", 10.0),
    "SGLang": ("construction and dump", None),  # no Pydantic in it
    "LMDeploy": ("json.dumps", None),
}
"""What is replaced of each builder, and what that must make of it."""


def learnt(family: Family) -> sse.Acceleration:
    """The family accelerated, its first frames compared by it and by us."""
    acceleration = sse.accelerate(family.model, trust_serializers=True)
    for number in range(LEARNING):
        for text in (TOKEN, f"{number}", *SNIPPETS.values(), '"\\\x00\x1f\x7f\u2028/', ""):
            assert family.frame(text) == family.expected(text), text
    return acceleration


def _family(made: Report, name: str, repeats: int) -> None:
    plain, fast = FAMILIES[name](), FAMILIES[name]()
    acceleration = learnt(fast)
    chunks = {"original": plain.build(TOKEN), "accelerated": fast.build(TOKEN)}
    cases = {
        "original": feeding(plain.frame, TOKEN),
        "accelerated": feeding(fast.frame, TOKEN),
        "construction alone": feeding(plain.build, TOKEN),
        "dump alone, original": feeding(plain.dump, chunks["original"]),
        "dump alone, accelerated": feeding(fast.dump, chunks["accelerated"]),
    }
    samples = measure(cases, number=500, repeats=repeats)
    assert not acceleration.fallbacks, acceleration.fallbacks
    acceleration.undo()
    made.calls |= {f"{name}: {case}": times for case, times in samples.calls().items()}
    label = f"{name}: original / dump accelerated"
    made.bars.append(samples.ratio("original", "accelerated", bar=BARS.get(name), at_least=True, label=label))
    label = f"{name}: original / construction, the most there is to win"
    made.bars.append(samples.ratio("original", "construction alone", label=label))
    won = [
        (original - fast) / (original - construction)
        for original, fast, construction in zip(
            *(samples.values(case) for case in ("original", "accelerated", "construction alone")), strict=True
        )
    ]
    made.bars.append(bar_of(f"{name}: of that, won", [100 * share for share in won], unit="%"))
    label = f"{name}: original / accelerated, the dump alone"
    made.bars.append(samples.ratio("dump alone, original", "dump alone, accelerated", label=label))


@contextmanager
def construction_replaced(builder: Builder) -> Iterator[list[tuple[str, str]]]:
    """What tailwatch.integrations does to a server's chunk builder, in a module that stands in for the server's."""
    name, fallbacks = builder.module.__name__, list[tuple[str, str]]()
    before, sys.modules[name] = sys.modules.get(name), builder.module
    (target,) = (found for found in integrations.found() if found.name.startswith(name))
    undo = target.accelerate(lambda shape, reason: fallbacks.append((shape, reason)))
    try:
        yield fallbacks
    finally:
        assert undo() is None
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before


def compared(plain: Builder, fast: Builder) -> None:
    """The same frames, the learning included. The clock may move on between two."""
    for number in range(LEARNING):
        for text in (TOKEN, f"{number}", *SNIPPETS.values(), '"\\\x00\x1f\x7f\u2028/'):
            assert any(fast.frame(text) == plain.frame(text) for _ in range(3)), text


def _builder(made: Report, name: str, repeats: int) -> None:
    plain, fast = BUILDERS[name](), BUILDERS[name]()
    with construction_replaced(fast) as fallbacks:
        compared(plain, fast)
        cases = {"original": feeding(plain.frame, TOKEN), "replaced": feeding(fast.frame, TOKEN)}
        samples = measure(cases, number={"original": 500, "replaced": 5_000}, repeats=repeats)
        assert not fallbacks, fallbacks
    made.calls |= {f"{name}, builder: {case}": times for case, times in samples.calls().items()}
    what, bar = REPLACED[name]
    label = f"{name}: original / {what} replaced"
    made.bars.append(samples.ratio("original", "replaced", bar=bar, at_least=True, label=label))


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report("A server's chunk classes, accelerated: construct and dump one token's chunk")
    for name in available(made.notes, FAMILIES):
        if name in PYDANTIC:
            _family(made, name, 3 if quick else REPEATS)
    for name in available(made.notes, BUILDERS):
        _builder(made, name, 3 if quick else REPEATS)
    return undecided(made) if quick else made


def test_accelerate(benchmark: Any) -> None:
    """vLLM's chat classes accelerated, timed by pytest-benchmark; the ratios are in extra_info."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    family = vllm_chat()
    with learnt(family) as acceleration:
        benchmark.pedantic(family.frame, args=(TOKEN,), rounds=20, iterations=500)
        assert not acceleration.fallbacks


@pytest.mark.parametrize("name", PYDANTIC)
def test_an_accelerated_family_is_itself_again(name: str) -> None:
    """Its frames are the same before, while and after it is accelerated."""
    family = FAMILIES[name]()
    assert family.frame(TOKEN) == family.expected(TOKEN)
    learnt(family).undo()
    assert family.frame(TOKEN) == family.expected(TOKEN)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_replaced_builder_is_itself_again(name: str) -> None:
    """Its frames are the same while construction is replaced, and it is the server's own function afterwards."""
    plain, fast = BUILDERS[name](), BUILDERS[name]()
    home = getattr(fast.module, "ChatCompletionHandler", fast.module)
    before = dict(vars(home))
    with construction_replaced(fast) as fallbacks:
        assert dict(vars(home)) != before
        compared(plain, fast)
    assert dict(vars(home)) == before
    assert not fallbacks


if __name__ == "__main__":
    main(report)
