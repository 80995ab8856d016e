"""The bytes of one whole request: a template made once, into which each prompt and its length are put.

Building a request is a few copies, not a JSON serialisation, so that a client at its limit spends no time on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.endpoint import Endpoint
from tailwatch.loadtest.prompts import Prompt, Synthetic, content_of
from tailwatch.loadtest.schedule import Planned

DEFAULT_MAX_TOKENS = 1024  # Anthropic's messages do not go without a limit
REQUEST_ID = b"x-request-id: "
# Private-use characters, which json.dumps writes as six ASCII characters each: no text of a user's gets in their way.
_PROMPT, _LIMIT = "\ue0f1\ue0f2\ue0f3", "\ue0f4\ue0f5\ue0f6"
_NAMES = {json.dumps(_PROMPT): b"P", json.dumps(_LIMIT): b"L"}
_SLOTS = re.compile("(" + "|".join(map(re.escape, _NAMES)) + ")")
_LIMITS = {"responses": "max_output_tokens"}  # the name of the limit; the others:
_LIMIT_NAME = "max_tokens"
LIMIT_NAMES = (_LIMIT_NAME, "max_completion_tokens", *_LIMITS.values())


class RequestEncoder:
    """Makes the bytes of planned requests for one endpoint. Cheap to call, the same bytes for the same request.

    Each request has an `x-request-id` of its own, tag-index, unless the user set that header: it finds a slow one
    again in the server's log.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        model: str | None = None,
        prompts: Sequence[Prompt] | Synthetic | None = None,
        extra: Mapping[str, Any] | None = None,
        body: bytes = b"",
        stream: bool = True,
        tag: str = "tailwatch",
    ) -> None:
        """extra: put over the body's own fields; None as a value takes a field away. body: of `http` requests, sent as
        it is. stream: whether answers are asked for as streams.

        Raises:
            OptionError: these do not go together.
        """
        _check(endpoint, model, body, extra)
        if any(name == "x-request-id" for name, _ in endpoint.headers):
            self._start, self._tag = endpoint.head, b""
        else:
            self._start, self._tag = endpoint.head + REQUEST_ID + tag.encode("ascii") + b"-", b"x"
        self._fixed = body
        self._bodiless = endpoint.method in ("GET", "DELETE", "OPTIONS")
        self._bodies: _Bodies | None = None
        if endpoint.api != "http":
            texts = prompts if prompts is not None else Synthetic()
            self._bodies = _Bodies(endpoint.api, model, texts, extra or {}, stream)

    def __call__(self, planned: Planned) -> bytes:
        """Head and body."""
        start = self._start + b"%d\r\n" % planned.index if self._tag else self._start
        body = self._bodies.make(planned) if self._bodies is not None else self._fixed
        if not body and self._bodiless:
            return start + b"\r\n"
        return b"%scontent-length: %d\r\n\r\n%s" % (start, len(body), body)


class _Bodies:
    """Of one of the APIs of language models."""

    def __init__(
        self, api: str, model: str | None, prompts: Sequence[Prompt] | Synthetic, extra: Mapping[str, Any], stream: bool
    ) -> None:
        self._prompts = prompts
        self._api = api
        self._system = "system" not in extra  # else the user's own stands for those of the file
        self._with, self._without = (_template(api, model, extra, stream, limited) for limited in (True, False))

    def make(self, planned: Planned) -> bytes:
        """The template for a limited or an unlimited answer, filled in."""
        if isinstance(self._prompts, Synthetic):
            text = self._prompts.text(planned.index, planned.prompt_tokens, planned.seed)
            value = b'"' + text + b'"' if self._api in ("completions", "responses") else _USER % text
            before = b""
        else:
            before, value = _of_file(self._api, self._prompts[planned.index % len(self._prompts)])
            before = before if self._system else b""
        parts = self._with if planned.output_tokens else self._without
        filled = b"".join(_filled(part, value, planned.output_tokens) for part in parts)
        return b"{" + before + filled[1:] if before else filled


_USER = b'[{"role":"user","content":"%s"}]'


def _filled(part: bytes, value: bytes, limit: int) -> bytes:
    if part == b"P":
        return value
    return b"%d" % limit if part == b"L" else part


def _template(api: str, model: str | None, extra: Mapping[str, Any], stream: bool, limited: bool) -> list[bytes]:
    """The body in pieces: b"P" stands for the prompt's JSON, b"L" for the limit, the rest for itself."""
    limit: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS} if api == "messages" else {}
    if limited:
        limit = {_LIMITS.get(api, _LIMIT_NAME): _LIMIT}
    field = {"completions": "prompt", "responses": "input"}.get(api, "messages")
    whole: dict[str, Any] = {"model": model, field: _PROMPT, **limit, "stream": stream}
    if stream and api in ("completions", "chat"):
        whole["stream_options"] = {"include_usage": True}
    whole |= extra
    text = json.dumps({key: value for key, value in whole.items() if value is not None}, separators=(",", ":"))
    return [_NAMES.get(part) or part.encode("ascii") for part in _SLOTS.split(text) if part]


def _of_file(api: str, prompt: Prompt) -> tuple[bytes, bytes]:
    """What stands before everything else in the body, and the JSON of the prompt, as this API takes it."""
    if prompt.messages is None:
        text = _json(prompt.text)
        return b"", text if api in ("completions", "responses") else b'[{"role":"user","content":%s}]' % text
    if api == "completions":
        return b"", _json(prompt.text)
    if api != "messages":
        return b"", _json(list(prompt.messages))
    system = "\n".join(content_of(message) for message in prompt.messages if message["role"] in ("system", "developer"))
    rest = [message for message in prompt.messages if message["role"] not in ("system", "developer")]
    return (b'"system":%s,' % _json(system) if system else b""), _json(rest)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # lone surrogates, which JSON can hold escaped
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def _check(endpoint: Endpoint, model: str | None, body: bytes, extra: Mapping[str, Any] | None) -> None:
    if endpoint.api == "http":
        if model is not None or extra:
            raise OptionError("api=http: expected no model and no extra body: --body FILE is what is sent")
        if body and endpoint.method == "GET":
            raise OptionError("method=GET: expected no body with it; give --method POST")
    elif body:
        raise OptionError(
            f"body: expected it with --api http only; {endpoint.api} makes its own (--extra-body adds to it)"
        )
    elif endpoint.method != "POST":
        raise OptionError.of("method", endpoint.method, f"expected POST for {endpoint.api}")


def extra_of(text: str | None) -> dict[str, Any]:
    """`--extra-body`: a JSON object, or @FILE with one; {} for None.

    Raises:
        OptionError: it is none.
        TailwatchError: the file cannot be read.
    """
    if text is None:
        return {}
    try:
        found = json.loads(read_bytes(text[1:]) if text.startswith("@") else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise OptionError.of(
            "extra_body", text, f"expected a JSON object like '{{\"temperature\": 0}}': {error}"
        ) from error
    if not isinstance(found, dict):
        raise OptionError.of("extra_body", text, "expected a JSON object like '{\"temperature\": 0}'")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read_bytes(path: str) -> bytes:
    """A file's content; TailwatchError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror or error}") from error
