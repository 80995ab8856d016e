"""What does it cost to make the bytes of one streamed token?

ChatStream.content() against an allocation and memcpy of the same frame, against a bytes template in Python, a dict
through orjson, and what vLLM, SGLang, LMDeploy, TensorRT-LLM, transformers and llama-cpp-python do (families.py).
A server is compared with ours in its own bytes, byte for byte: that is asserted before anything is timed; the same text
again and again, and beside it texts that are new each. Then text that is not plain ASCII, 4 KiB at a time; what is left
for the collector; and what `send` adds to a known frame.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import orjson
import pytest
from bench_send import Flow, bare_send, drive, opened
from families import CREATED, FAMILIES, ID, MODEL, Family, available
from harness import LOOP, REPEATS, Bar, Report, Run, Samples, bar_of, main, measure, native

import tailwatch
from tailwatch import _hot, sse

Encode = Callable[[str], bytes]
TOKEN = " token"
CONTENT, COPY = "ChatStream.content", "allocation and memcpy"
PYTHON, DICT = "Python template, orjson.dumps(text)", "dict to orjson"
VLLM, SGLANG = "vLLM chat", "SGLang chat, msgspec"
TRANSFORMERS = "openai package, transformers serve"
IMITATED = "%s: ours, same bytes"
FRESH = "%s, fresh texts"
BARS = {SGLANG: 10.0, VLLM: 60.0}
PAIRS = 20
TOKENS = 100_000
STREAMS = 256  # of a step
SNIPPETS = {
    "prose": "The quick brown fox jumps over the lazy dog; then it rests. ",
    "code": 'def greet(name):\n\t"""Says \\"hi\\"."""\n\tprint(f"hello, {name}!\\n")\n\n',
    "CJK": "吾輩は猫である。名前はまだ無い。你好，世界！안녕하세요 ",
    "emoji": "🙂🚀👩‍💻🎉✨🇯🇵",
}
SIZE = 4096


def chat() -> sse.ChatStream:
    """The encoder of one answer."""
    return sse.ChatStream(id=ID, model=MODEL, created=CREATED)


def around(frame: bytes, text: str) -> tuple[bytes, bytes]:
    """What stands before and after a text and its quotes."""
    head, found, tail = frame.partition(orjson.dumps(text))
    assert found
    return head, tail


def python_template(example: bytes, text: str) -> Encode:
    """The same frame as fast as Python makes it: everything it needs is a local."""
    head, tail = around(example, text)

    def encode(text: str, head: bytes = head, tail: bytes = tail, dumps: Encode = orjson.dumps) -> bytes:
        return head + dumps(text) + tail

    return encode


def dict_to_orjson(text: str, dumps: Callable[[Any], bytes] = orjson.dumps) -> bytes:
    """The same frame from a dict that is built for each token."""
    chunk = {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
    }
    return b"data: " + dumps(chunk) + b"\n\n"


def same_frame(encoder: sse.ChatStream) -> dict[str, Encode]:
    """Three ways to the frame that ChatStream makes."""
    example = encoder.content(TOKEN)
    ways = {CONTENT: encoder.content, PYTHON: python_template(example, TOKEN), DICT: dict_to_orjson}
    for name, encode in ways.items():
        assert_same(name, encode, encoder.content)
    return ways


def imitation(name: str, family: Family) -> Encode:
    """Ours in that server's bytes: an encoder, or, where there is none, a template learnt from one of its frames."""
    ours: dict[str, Callable[..., sse.ChatStream | sse.CompletionStream]] = {
        VLLM: partial(sse.ChatStream, like="vllm"),
        "vLLM completions": partial(sse.CompletionStream, like="vllm"),
        SGLANG: partial(sse.ChatStream, like="sglang"),
        TRANSFORMERS: partial(sse.ChatStream, like="transformers"),
    }
    encode: Encode
    if name in ours:
        encode = ours[name](id=ID, model=MODEL, created=CREATED).content
    else:
        encode = sse.Template.learn(family.frame("hole"), "hole", dialect=family.dialect).splice
    assert_same(name, encode, family.frame)
    return encode


def assert_same(name: str, encode: Encode, original: Encode) -> None:
    """Byte for byte, for each kind of text."""
    for text in (TOKEN, "", *SNIPPETS.values(), '"\\\x00\x1f\x7f\u2028/'):
        assert encode(text) == original(text), (name, text)


# ---- one short token ----


def feeding(call: Callable[[Any], object], argument: Any) -> Run:
    """A case that calls it with the argument in the shortest loop there is."""

    def run(n: int) -> float:
        arguments = repeat(argument, n)
        start = time.perf_counter_ns()
        for argument_ in arguments:
            call(argument_)
        return (time.perf_counter_ns() - start) / n

    return run


def bare_loop(n: int) -> float:
    """That loop without the call."""
    arguments = repeat(TOKEN, n)
    start = time.perf_counter_ns()
    for _ in arguments:
        pass
    return (time.perf_counter_ns() - start) / n


def _short(made: Report, repeats: int) -> None:
    encoder = chat()
    families = available(made.notes, FAMILIES)
    ours = {IMITATED % name: imitation(name, family) for name, family in families.items()}
    ways = same_frame(encoder) | ours | {name: family.frame for name, family in families.items()}
    cases = {LOOP: bare_loop, COPY: feeding(native("floors").copy, encoder.content(TOKEN))}
    cases |= {name: feeding(encode, TOKEN) for name, encode in ways.items()}
    number = {name: 500 if name in families else 20_000 for name in cases} | {DICT: 2_000}
    samples = measure(cases, number=number, repeats=repeats)
    made.calls |= samples.calls()
    made.bars += _bars_of_short(samples, families)
    _fresh(made, {name: (family.frame, ours[IMITATED % name]) for name, family in families.items()}, repeats)


def _fresh(made: Report, pairs: dict[str, tuple[Encode, Encode]], repeats: int) -> None:
    """The same comparison with texts of which each is a new str: none is in a cache, none is interned."""
    raws = [f" token{number}".encode() for number in range(500)]
    ways = same_frame(chat())
    cases = {FRESH % name: fresh(ways[name], raws) for name in (CONTENT, PYTHON, DICT)}
    for name, (theirs, ours) in pairs.items():
        cases |= {FRESH % name: fresh(theirs, raws), FRESH % (IMITATED % name): fresh(ours, raws)}
    samples = measure(cases, number=1, repeats=repeats)
    made.calls |= samples.calls()
    for name in (PYTHON, DICT):
        made.bars.append(samples.ratio(FRESH % name, FRESH % CONTENT, label=f"{FRESH % name} / content"))
    for name in pairs:
        label = FRESH % f"{name} / ours, same bytes"
        made.bars.append(samples.ratio(FRESH % name, FRESH % (IMITATED % name), label=label))


def _bars_of_short(samples: Samples, families: dict[str, Family]) -> list[Bar]:
    bars = [
        samples.ratio(CONTENT, COPY, bar=1.5, label="content / memcpy"),
        samples.ratio(CONTENT, COPY, less=LOOP, bar=1.5, label="content / memcpy, loop subtracted"),
        samples.difference(CONTENT, LOOP, label="content"),
        samples.ratio(PYTHON, CONTENT, bar=2.5, at_least=True, label="Python template with orjson / content"),
        samples.ratio(DICT, CONTENT, bar=8, at_least=True, label="dict to orjson / content"),
    ]
    for name in families:
        bars.append(samples.difference(name, LOOP, label=name, unit="us"))
        label = f"{name} / ours, same bytes"
        bars.append(samples.ratio(name, IMITATED % name, bar=BARS.get(name), at_least=True, label=label))
    return bars


# ---- text that has to be escaped or transcoded ----


def sized(snippet: str, size: int = SIZE) -> bytes:
    """So many bytes of UTF-8, whole characters."""
    text = snippet * (size // len(snippet.encode()) + 1)
    return text.encode()[:size].decode(errors="ignore").encode()


def mixture() -> list[bytes]:
    """Every kind of text, long and short."""
    longs = [sized(snippet) for snippet in SNIPPETS.values()]
    return [*longs, sized("".join(SNIPPETS.values())), *(snippet.encode() for snippet in SNIPPETS.values())]


def fresh(call: Encode, raws: list[bytes]) -> Run:
    """ns per text; each text is new, as a detokeniser's are: CPython keeps the UTF-8 of a text that is not ASCII once
    it was asked for, and so each is asked for the first time."""

    def run(n: int) -> float:
        spent = 0
        for _ in range(n):
            texts = [raw.decode() for raw in raws]
            start = time.perf_counter_ns()
            for text in texts:
                call(text)
            spent += time.perf_counter_ns() - start
        return spent / (n * len(raws))

    return run


def _mixed(made: Report, pairs: int) -> None:
    encoder = chat()
    ours, theirs = encoder.content, python_template(encoder.content(TOKEN), TOKEN)
    kinds = {f"{kind}, 4 KiB": [sized(snippet)] * 16 for kind, snippet in SNIPPETS.items()}
    kinds |= {f"{kind}, a token": [sized(snippet, 12)] * 500 for kind, snippet in SNIPPETS.items()}
    kinds["mixed text, 4 KiB"] = [sized("".join(SNIPPETS.values()))] * 16
    kinds["long and short"] = mixture() * 4
    for kind, raws in kinds.items():
        cases = {CONTENT: fresh(ours, raws), PYTHON: fresh(theirs, raws)}
        samples = measure(cases, number=max(1, 400 // len(raws)), repeats=pairs)
        made.calls |= {f"{kind}: {case}": times for case, times in samples.calls().items()}
        label = f"{kind}: Python template / content"
        made.bars.append(samples.ratio(PYTHON, CONTENT, bar=1.0, at_least=True, label=label))
        size = sum(map(len, raws)) / len(raws)
        if size > 100:
            speed = [size / ns for ns in samples.by_case[CONTENT]]
            made.bars.append(bar_of(f"{kind}: content", speed, unit="GB/s"))


# ---- what is left for the collector ----


def tracked_per_frame(make: Callable[[str], object], count: int = 1_000) -> float:
    """Objects the collector has to look at while so many chunks are kept, each; less what counting itself makes."""
    return (_tracked(make, count) - _tracked(len, count)) / count


def _tracked(make: Callable[[str], object], count: int) -> int:
    kept: list[object] = [None] * count
    make(TOKEN)
    gc.collect()
    before = len(gc.get_objects())
    for i in range(count):
        kept[i] = make(TOKEN)
    return len(gc.get_objects()) - before


def collections(run: Callable[[], None]) -> int:
    """How many it triggers, of all generations, with the interpreter's own thresholds."""
    gc.collect()
    before = _collections()
    run()
    return _collections() - before


def _collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())


def in_turn(build: Callable[[str], Any], dump: Callable[[Any], bytes], tokens: int) -> None:
    """Each chunk is dropped as soon as its frame is made."""
    for _ in repeat(None, tokens):
        dump(build(TOKEN))


def in_steps(build: Callable[[str], Any], dump: Callable[[Any], bytes], tokens: int) -> None:
    """A step's chunks are all there before the first of them is sent."""
    for _ in range(tokens // STREAMS + 1):
        for chunk in [build(TOKEN) for _ in range(STREAMS)]:
            dump(chunk)


def _collector(made: Report, tokens: int) -> None:
    encoder, families = chat(), available([], FAMILIES)
    made.bars += _triggered(CONTENT, encoder.content, lambda frame: frame, tokens, bar=0)
    if VLLM in families:
        made.bars += _triggered(VLLM, families[VLLM].build, families[VLLM].dump, tokens)
        made.notes.append(
            "Collections: chunks that are dropped before the next is made trigger none, whoever makes them; those of a "
            "step that are alive at once do. What a server collects end to end is not told by it, and not claimed."
        )
    made.bars.append(_exact(f"{CONTENT}: tracked objects per frame", tracked_per_frame(encoder.content), "objects", 0))
    for name, family in families.items():
        made.bars.append(_exact(f"{name}: tracked objects per frame", tracked_per_frame(family.build), "objects"))


def _triggered(
    name: str, build: Callable[[str], Any], dump: Callable[[Any], bytes], tokens: int, bar: float | None = None
) -> list[Bar]:
    """One chunk at a time, and a whole step's chunks at a time."""
    turns = collections(partial(in_turn, build, dump, tokens))
    steps = collections(partial(in_steps, build, dump, tokens))
    return [
        _exact(f"{name}: collections in {tokens} tokens, one chunk at a time", turns, "collections", bar),
        _exact(f"{name}: the same, {STREAMS} streams' chunks alive at once", steps, "collections", bar),
    ]


def _exact(name: str, value: float, unit: str, bar: float | None = None) -> Bar:
    return Bar(name, value, value, value, bar, unit=unit)


# ---- known frames in `send` ----


def sending(frame_of: Callable[[str], bytes], send: Callable[[], Any]) -> Run:
    """Makes a frame and sends it, n times, on one stream."""

    def run(n: int) -> float:
        sender = send()
        texts = repeat(TOKEN, n)
        start = time.perf_counter_ns()
        for text in texts:
            message = {"type": "http.response.body", "body": frame_of(text), "more_body": True}
            try:  # noqa: SIM105 (suppress() costs as much as what is measured)
                sender(message).send(None)
            except StopIteration:
                pass
        return (time.perf_counter_ns() - start) / n

    return run


def _known(made: Report, core: _hot.Core, repeats: int) -> None:
    """A copy of a frame is one that `send` does not know."""
    encoder = chat()
    frame, copy = encoder.content(TOKEN), native("floors").copy

    def scanned(text: str, copy: Callable[[bytes], bytes] = copy) -> bytes:
        return copy(frame)

    ways: dict[str, Encode] = {"known": encoder.content, "scanned": scanned}
    cases = {}
    for name, frame_of in ways.items():
        cases[f"{name}: bare send"] = sending(frame_of, lambda: bare_send)
        cases[f"{name}: our Send"] = sending(frame_of, lambda: opened(core, Flow).send)
    samples = measure(cases, number=3_000, repeats=repeats)
    made.calls |= {f"a frame {case}": times for case, times in samples.calls().items()}
    for name in ways:
        made.bars.append(
            samples.difference(f"{name}: our Send", f"{name}: bare send", label=f"added by Send, frame {name}")
        )


def report(quick: bool = False) -> Report:
    """Runs everything."""
    made = Report(f"The bytes of one streamed token, {len(chat().content(TOKEN))} bytes each")
    watch = tailwatch.install(gc="observe")
    try:
        _known(made, watch.core, 3 if quick else REPEATS)
    finally:
        tailwatch.uninstall()
    sent, made.bars = made.bars, []
    _short(made, 3 if quick else REPEATS)
    _mixed(made, 3 if quick else PAIRS)
    _collector(made, TOKENS // 20 if quick else TOKENS)
    made.bars += sent
    return undecided(made) if quick else made


def undecided(made: Report) -> Report:
    """Without verdicts: so few rounds prove nothing."""
    made.bars = [replace(bar, bar=None) for bar in made.bars]
    made.notes.append("Too few rounds for a verdict.")
    return made


def test_sse(benchmark: Any) -> None:
    """content(), timed by pytest-benchmark; the ratios are in extra_info."""
    made = report(quick=True)
    benchmark.extra_info.update(made.as_dict())
    encoder = chat()
    benchmark.pedantic(encoder.content, args=(TOKEN,), rounds=20, iterations=5_000, warmup_rounds=1)
    assert orjson.loads(encoder.content(TOKEN).removeprefix(b"data: "))["choices"][0]["delta"]["content"] == TOKEN


@pytest.mark.parametrize("name", FAMILIES)
def test_a_peer_makes_what_its_server_sends(name: str) -> None:
    """What is timed is what it claims to be: the frame is the one written out by hand."""
    family = FAMILIES[name]()
    assert_same(name, family.frame, family.expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_ours_makes_what_the_peer_makes(name: str) -> None:
    """Byte for byte, 4 KiB of each kind of text as well."""
    family = FAMILIES[name]()
    ours = imitation(name, family)
    for raw in mixture():
        assert ours(raw.decode()) == family.frame(raw.decode())


def test_a_known_frame_is_one_token_each() -> None:
    """What `send` is timed with is counted: so many frames, so many tokens, known or scanned."""
    core = _hot.Core("api", 2, (0, 0, 0, 0, 990_000), 0, lambda scope: "", lambda awaitable, stream: awaitable)
    sender, encoder = opened(core, Flow), chat()
    for frame in [encoder.content(TOKEN) for _ in range(10)] + [
        native("floors").copy(encoder.content(TOKEN)) for _ in range(10)
    ]:
        drive(sender.send({"type": "http.response.body", "body": frame, "more_body": True}))
    assert sender.stream.tokens == 20


if __name__ == "__main__":
    main(report)
