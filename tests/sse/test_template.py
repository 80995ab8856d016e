"""sse.Template.learn: frames of servers that are not known here, and why one cannot be learned."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode as msgspec_encode

from tailwatch import errors, sse

texts = st.text() | st.text(st.sampled_from([*map(chr, range(0x21)), '"', "\\", "/", "\x7f", "\u2028", "é", "😀"]))
dicts = st.dictionaries(
    st.text(), st.text() | st.integers(-(2**63), 2**63) | st.none() | st.lists(st.text()), max_size=3
)


class Delta(pydantic.BaseModel):
    content: str


def _pydantic(data: dict[str, Any]) -> str:
    return pydantic.create_model("Chunk", delta=(Delta, ...), more=(Any, ...))(**data).model_dump_json()


SERIALISERS: dict[str, Any] = {
    "pydantic": _pydantic,
    "orjson": lambda data: orjson.dumps(data).decode(),
    "msgspec": lambda data: msgspec_encode(data).decode(),
    "json": json.dumps,
    "json-utf8": lambda data: json.dumps(data, ensure_ascii=False),
}
FORMS = [
    "data: {}\n\n",
    "data:{}\n\n",
    "data: {} \n\n",
    "data: {}\r\n\r\n",
    "event: token\ndata: {}\nid: 7\n\n",
    ": comment\r\nevent: token\r\nretry: 5\r\ndata: {}\r\n\r\n",
    "data: {}\r\r",
    "{}\n",
]


def made(form: str, dialect: str, text: str, more: object = None) -> str:
    return form.replace("{}", SERIALISERS[dialect]({"delta": {"content": text}, "more": more}))


@pytest.mark.parametrize("dialect", SERIALISERS)
@given(texts, texts, dicts, st.sampled_from(FORMS), st.booleans())
def test_any_text_in_any_frame(dialect: str, hole: str, text: str, more: Any, form: str, as_bytes: bool) -> None:
    """Learned from one frame of a serialiser, a template gives that serialiser's frame for any text."""
    hole = f"the hole {hole}"
    example = made(form, dialect, hole, more)
    template = sse.Template.learn(example.encode() if as_bytes else example, hole, dialect=dialect)
    assert template.splice(hole) == example.encode()
    assert template.splice(text) == made(form, dialect, text, more).encode()
    assert template.dialect == dialect


@pytest.mark.parametrize("dialect", SERIALISERS)
@given(st.text(), st.integers(0xD800, 0xDFFF), st.text())
def test_half_a_surrogate_pair(dialect: str, before: str, half: int, after: str) -> None:
    """The serialiser's own error with its words; json.dumps has an escape and no error."""
    text = before + chr(half) + after
    template = sse.Template.learn(made("data: {}\n\n", dialect, "hole"), "hole", dialect=dialect)
    if dialect == "json":
        assert template.splice(text) == made("data: {}\n\n", dialect, text).encode()
        return
    with pytest.raises((ValueError, TypeError)) as original:
        if dialect == "pydantic":
            Delta.model_construct(content=text).model_dump_json()
        made("data: {}\n\n", dialect, text).encode()
    with pytest.raises(type(original.value)) as ours:
        template.splice(text)
    assert str(ours.value) == str(original.value)


EXAMPLE = 'data: {"id":"a","delta":{"content":"hole"},"note":"a hole here","hole":1}\n\n'


@pytest.mark.parametrize(
    ("example", "hole", "message"),
    [
        (EXAMPLE, "nothing", "one value .*found none"),
        (EXAMPLE, "note", "as a key only"),
        (EXAMPLE, "here", "only inside 'a hole here'"),
        ('data: {"a":"x","b":["x"]}\n\n', "x", "found 2: give an example"),
        ('data: {"a":"x"}\ndata: {"b":"y"}\n\n', "x", "one data line, found 2"),
        ("event: x\nid: 1\n\n", "x", "data line, found none"),
        ("data: [DONE]\n\n", "x", "expected JSON"),
        ("data\n\n", "x", "expected JSON"),
        ("hello\n", "hello", "expected JSON"),
        ("", "x", "data line, found none"),
        ('data: {"a":"x"', "x", "expected JSON"),
        (b'data: "\xff"\n\n', "x", "expected JSON"),
        ('data: "\ud800"\n\n', "x", "UTF-8 can encode"),
        (7, "x", "bytes or str"),
        (EXAMPLE, b"hole", "hole=b'hole': .*a str"),
        ('data: {"a":"\\u00e9"}\n\n', "é", "dialect='pydantic'.*json would"),
        ('data: {"a":"\\u00E9"}\n\n', "é", "no dialect here would"),
        ('data: {"a":"<\\/b>"}\n\n', "</b>", "no dialect here would"),
    ],
)
def test_what_cannot_be_learned(example: Any, hole: Any, message: str) -> None:
    """The error has what was found instead."""
    with pytest.raises(errors.OptionError, match=message):
        sse.Template.learn(example, hole)


SPACED = ['{"id": 1,"text":"hole"}', '{"id":1, "text":"hole"}', '{"id": 1, "text": "hole"}', '["hole", ": "]']


@pytest.mark.parametrize("data", SPACED)
@pytest.mark.parametrize("form", ["data: {}\n\n", "data:{}\r\n\r\n", "{}\n"])
def test_json_dumps_has_two_dialects(data: str, form: str) -> None:
    """An example of its, with spaces, does not show what becomes of text that is not ASCII: it is asked for."""
    example = form.replace("{}", data)
    with pytest.raises(errors.OptionError, match=r"dialect=None: .*json\.dumps.*'json' or 'json-utf8'"):
        sse.Template.learn(example, "hole")
    for dialect, expected in (("json", "\\u00e9"), ("json-utf8", "é"), ("pydantic", "é")):
        template = sse.Template.learn(example, "hole", dialect=dialect)
        assert template.splice("é") == example.replace("hole", expected).encode()
        assert template.dialect == dialect


@pytest.mark.parametrize("data", ['{"a":", : ","text":"hole"}', '{"a: ":"\\", b: \\"","text":"hole"}', '"hole"'])
def test_spaces_inside_of_strings_do_not_count(data: str) -> None:
    """Without any between the tokens it is taken for Pydantic's, as where nothing is given."""
    assert sse.Template.learn(f"data: {data}\n\n", "hole").dialect == "pydantic"


def test_an_example_with_spaces_that_is_not_ascii() -> None:
    """The hole has which it is."""
    assert sse.Template.learn('data: {"text": "é"}\n\n', "é").splice("ü") == 'data: {"text": "ü"}\n\n'.encode()
    with pytest.raises(errors.OptionError, match="json would"):
        sse.Template.learn('data: {"text": "\\u00e9"}\n\n', "é")


def test_an_unknown_dialect() -> None:
    """It lists the known ones, and the nearest."""
    with pytest.raises(errors.OptionError, match=r"pydantic, orjson, msgspec, json, json-utf8;.*'orjson'"):
        sse.Template.learn(EXAMPLE, "hole", dialect="orjsn")


def test_splice_is_a_method_of_c() -> None:
    """Nothing of Python runs per token; what is no text is refused."""
    template = sse.Template.learn(EXAMPLE, "hole")
    assert type(template.splice).__name__ == "builtin_function_or_method"
    assert template.splice("x") == EXAMPLE.replace('"hole"}', '"x"}').encode()
    assert repr(template) == f"<Template of {len(EXAMPLE) - 4} bytes, pydantic>"
    for bad in (None, b"x", 7):
        with pytest.raises(TypeError, match="expected str"):
            template.splice(bad)  # type: ignore[arg-type]
