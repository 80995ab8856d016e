"""The text of the requests: words of a wanted number of tokens, or the prompts of a file.

Synthetic prompts are common English words, which the usual vocabularies hold as one token each; a prompt of 512 tokens
is 512 words, and a server's own count differs by its few special tokens. Each begins with words that no other prompt of
the run begins with (nor of runs with other seeds), so that no prefix cache answers in the server's stead.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.schedule import MOST_TOKENS

BYTES_PER_TOKEN = 4  # of English text, about: for the answers of a file that gives no counts
DEFAULT_TOKENS = 128
LARGEST_FILE = 2 << 30  # bytes
_PLENTY = 1 << 17  # words that prompts are cut from
_OWN = 4  # words that distinguish prompts: 128 ** 4
_FAR = 2_654_435_761  # Knuth's multiplier: neighbours land far apart
_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body window "
    "information back parent face others level office door health person art war history party result change reason "
    "morning research girl guy moment air teacher force education foot boy age policy music market sense nation plan "
    "college interest death experience effect use class control field development role effort rate heart drug show "
    "leader light"
)
WORDS = tuple(_COMMON.split())


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a file. messages: as a chat takes them, or None where the file has a text. tokens: of the prompt
    and of its answer, 0 where the file does not give it."""

    text: str
    messages: tuple[dict[str, Any], ...] | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0


class Synthetic:
    """Prompts of wanted lengths, cut from one long text: a copy each, whatever the length."""

    def __init__(self) -> None:
        self._text, self._ends = _long_text()

    def text(self, index: int, tokens: int, seed: int = 0) -> bytes:
        """So many words (at least one) of ASCII, nothing in them that JSON escapes; the same for the same arguments,
        another one for another index or seed: the runs of a search do not warm each other's caches."""
        mixed = index + seed * _FAR
        own = [WORDS[(mixed >> 7 * place) & 127] for place in range(_OWN)][: tokens or 1]
        rest = max(0, tokens - _OWN)
        start = (mixed * _FAR >> 8) % _PLENTY
        return " ".join(own).encode("ascii") + (b" " + self._words(start, rest) if rest else b"")

    def _words(self, start: int, count: int) -> bytes:
        whole, rest = divmod(count, _PLENTY)
        last = start + rest
        if last <= _PLENTY:
            part = self._text[self._ends[start] : self._ends[last]]
        else:
            part = self._text[self._ends[start] :] + self._text[: self._ends[last - _PLENTY]]
        return (self._text * whole + part)[:-1]

    def __reduce__(self) -> tuple[type[Synthetic], tuple[()]]:
        return Synthetic, ()


@cache
def _long_text() -> tuple[bytes, array[int]]:
    """Many words, a space behind each; and where each of them begins, the end of the last one too. Of the process."""
    words = random.Random("prompts").choices(WORDS, k=_PLENTY)
    ends = array("I", accumulate((len(word) + 1 for word in words), initial=0))
    return (" ".join(words) + " ").encode("ascii"), ends


def read(path: str | Path) -> list[Prompt]:
    """The prompts of a file, in its order.

    JSONL: an object a line with `prompt`, `text`, `question` or `input` (a text), `messages` (a chat) or
    `conversations` (ShareGPT), or such a `body` (a batch); `prompt_tokens` and `output_tokens` (or `max_tokens`, …)
    where it has them. Or one JSON array of such objects, as ShareGPT's file is. Of a conversation the first question
    is asked, and its answer's length, four bytes a token, is the one asked for. Entries without one are left out.

    Raises:
        TailwatchError: the file cannot be read, an entry is none (its line or number is named), or none has a question.
    """
    name = str(path)
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise TailwatchError(f"{name}: larger than {LARGEST_FILE >> 30} GiB: take a part of it")
        data = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise TailwatchError(f"{name}: {error.strerror or error}") from error
    found = [prompt for where, entry in _entries(name, data) if (prompt := _prompt(f"{name}: {where}", entry))]
    if not found:
        raise TailwatchError(f"{name}: no prompt in it; expected objects with prompt, messages or conversations")
    return found


def _entries(name: str, data: bytes) -> Iterator[tuple[str, Any]]:
    if data.lstrip().startswith(b"["):
        yield from ((f"entry {i}", entry) for i, entry in enumerate(_parsed(name, data), 1))
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield f"line {number}", _parsed(f"{name}: line {number}", line)


def _parsed(where: str, data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise TailwatchError(f"{where}: this is no JSON: {error}") from error


def _prompt(where: str, entry: Any) -> Prompt | None:
    if isinstance(entry, str):
        return Prompt(entry) if entry else None
    if not isinstance(entry, dict):
        raise TailwatchError(f"{where}: expected an object or a text")
    body = entry.get("body")
    if isinstance(body, dict):
        entry = body
    counts = _counts(where, entry)
    for key in ("prompt", "text", "question", "input"):
        if isinstance(value := entry.get(key), str) and value:
            return Prompt(value, None, *counts)
    for key in ("messages", "input", "prompt"):
        if isinstance(value := entry.get(key), list) and value:
            return _chat(where, key, value, counts)
    if isinstance(turns := entry.get("conversations"), list):
        return _conversation(turns, counts)
    return None


def _chat(where: str, key: str, messages: list[Any], counts: tuple[int, int]) -> Prompt:
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise TailwatchError(f"{where}, {key!r}: expected messages with a role and a content")
    text = "\n".join(f"{message['role']}: {content_of(message)}" for message in messages)
    return Prompt(text, tuple(messages), *counts)


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message whose content is a text or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _conversation(turns: Sequence[Any], counts: tuple[int, int]) -> Prompt | None:
    """The first question, and how long the answer after it is."""
    messages = [(turn.get("from"), turn.get("value")) for turn in turns if isinstance(turn, dict)]
    for i, (who, text) in enumerate(messages):
        if who in ("human", "user") and isinstance(text, str) and text:
            answer = messages[i + 1][1] if i + 1 < len(messages) else None
            length = len(answer.encode("utf-8", "replace")) if isinstance(answer, str) else 0
            estimate = min(MOST_TOKENS, -(-length // BYTES_PER_TOKEN))
            return Prompt(text, None, counts[0], counts[1] or estimate)
    return None


def _counts(where: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    prompt = _count(where, entry, ("prompt_tokens", "input_tokens", "input_length"))
    output = ("output_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "output_length")
    return prompt, _count(where, entry, output)


def _count(where: str, entry: Mapping[str, Any], keys: Sequence[str]) -> int:
    for key in keys:
        if (value := entry.get(key)) is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
                raise TailwatchError(f"{where}, {key!r}: expected a whole number of tokens up to {MOST_TOKENS}")
            return value
    return 0
