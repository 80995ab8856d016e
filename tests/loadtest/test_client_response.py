"""_hot.Answer from Python, and the client where its parser is missing."""

from __future__ import annotations

import gc
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from tailwatch._hot import Answer, now
from tailwatch.loadtest.exchange import Ending, Exchange

TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'


def test_one_answer_after_the_other() -> None:
    """begin() forgets the last one; times are those of stamp(), not of feed()."""
    answer = Answer()
    for tokens in (3, 1):
        answer.begin(now(), 10**9, 10**6)
        assert answer.byte_ns == 0
        answer.framing(0, False)
        answer.stamp()
        before = answer.now_ns
        for _ in range(tokens):
            answer.feed(TOKEN)
        answer.finish()
        result = answer.result()
        assert result[:4] == (before,) * 4
        assert result[4:7] == (tokens, tokens, 0)
        assert result[-2] == ((before, before, tokens),)
        assert array("Q", result[-1]) == array("Q", [before] * tokens)
        assert answer.head == TOKEN * tokens


def test_bad_calls_are_refused() -> None:
    """A wrong call raises, and leaves the answer as it was."""
    answer = Answer()
    answer.begin(1, 0, 0)
    for framing in (-1, 5, 10**12):
        with pytest.raises(ValueError):
            answer.framing(framing, False)
    with pytest.raises(TypeError):
        answer.framing("sse", False)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        answer.feed("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        answer.begin(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Answer(1)  # type: ignore[call-arg]
    assert answer.result()[12] == 0


def test_it_refers_to_nothing() -> None:
    """The collector has nothing to do with it."""
    assert not gc.is_tracked(Answer())


def test_an_exchange_before_it_is_sent() -> None:
    """Nothing has happened: no times, no gaps."""
    exchange = Exchange(5, tag="mine")
    assert (exchange.ending, exchange.tag, exchange.planned_ns) == (Ending.PENDING, "mine", 5)
    assert (exchange.ttft_ns, exchange.e2e_ns) == (None, None)
    assert (exchange.stamps, exchange.tpots_ns, exchange.output_tokens) == (b"", (), 0)
    assert "pending" in repr(exchange)


def test_tpot_as_on_the_server_side() -> None:
    """(last - first) / (tokens - 1) of each choice; the server's larger count belongs to a choice only if it is alone;
    none where all came at once."""
    exchange = Exchange(1)
    exchange.tokens, exchange.choices = 5, ((100, 500, 5),)
    assert exchange.tpots_ns == (100.0,)
    exchange.usage_tokens = 9
    assert exchange.tpots_ns == (50.0,)
    exchange.tokens, exchange.choices = 8, ((100, 500, 5), (100, 300, 3))
    assert exchange.tpots_ns == ()
    exchange.usage_tokens = 8
    assert exchange.tpots_ns == (100.0, 100.0)
    exchange.choices = ((100, 100, 8),)
    assert exchange.tpots_ns == ()


def test_without_the_parser(tmp_path: Path) -> None:
    """The error has what to install."""
    code = "import sys; sys.modules['httptools'] = None; import tailwatch.loadtest.pool"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install '.[load]'" in done.stderr.splitlines()[-1]
