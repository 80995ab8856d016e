"""The bytes of a request: parsed back, for every API, with any prompt, header and extra field."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import prompts
from tailwatch.loadtest.bodies import RequestEncoder, extra_of
from tailwatch.loadtest.endpoint import APIS, PATHS, Endpoint, endpoint, hidden, is_loopback
from tailwatch.loadtest.prompts import Prompt, Synthetic
from tailwatch.loadtest.schedule import Planned

HERE = "http://127.0.0.1:8000"
SOME = Planned(0.0, 12, 34, 5)
KEYS = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic"}


def parsed(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Its first line, its headers, each of which is there once, and its body, which is as long as they give."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines)
    assert int(headers.get("content-length", 0)) == len(body)
    return first, headers, body


def body_of(api: str, planned: Planned = SOME, **options: Any) -> dict[str, Any]:
    """The JSON body of a request."""
    where = endpoint(HERE, api=api)
    return dict(json.loads(parsed(RequestEncoder(where, model="m", **options)(planned))[2]))


def words(body: dict[str, Any]) -> str:
    """The prompt's text, wherever the API keeps it."""
    for field in ("prompt", "input"):
        if field in body:
            return str(body[field])
    (message,) = body["messages"]
    assert message["role"] == "user"
    return str(message["content"])


# Endpoints -------------------------------------------------------------------------------------------------

PLACES = {
    (HERE, "m", None): ("completions", "/v1/completions"),
    (HERE, None, None): ("http", "/"),
    (HERE + "/", "m", "chat"): ("chat", "/v1/chat/completions"),
    (HERE + "/v1", "m", "chat"): ("chat", "/v1/chat/completions"),
    (HERE + "/v1/", "m", "messages"): ("messages", "/v1/messages"),
    (HERE + "/proxy/v1", "m", "responses"): ("responses", "/proxy/v1/responses"),
    (HERE + "/v1/chat/completions", "m", None): ("chat", "/v1/chat/completions"),
    (HERE + "/openai/deployments/x/completions?api-version=1", "m", None): (
        "completions",
        "/openai/deployments/x/completions?api-version=1",
    ),
    (HERE + "/ready?x=1", None, None): ("http", "/ready?x=1"),
    (HERE + "?x=1", "m", None): ("completions", "/v1/completions?x=1"),
}


@pytest.mark.parametrize(("url", "model", "api"), PLACES)
def test_the_url_determines_the_api(url: str, model: str | None, api: str | None) -> None:
    """A base address, one that ends in /v1 and a whole path all reach the API's own path; the query is kept."""
    found = endpoint(url, model=model, api=api)
    assert (found.api, found.path) == PLACES[url, model, api]
    assert (found.host, found.port, found.secure, found.loopback) == ("127.0.0.1", 8000, False, True)


def test_ports_hosts_and_paths() -> None:
    """Default ports are the scheme's and are left out of the host header; IPv6 keeps its brackets there; --endpoint
    is the path itself."""
    found = endpoint("https://[2001:db8::1]/", api="chat", path="generate")
    assert (found.host, found.port, found.path, found.loopback) == ("2001:db8::1", 443, "/generate", False)
    assert dict(found.headers)["host"] == "[2001:db8::1]"
    assert found.url == "https://[2001:db8::1]/generate"
    assert dict(endpoint("http://a:81/").headers)["host"] == "a:81"
    assert [
        is_loopback(host) for host in ("localhost", "::1", "127.9.9.9", "a.localhost", "10.0.0.1", "localhost.com")
    ] == [
        *[True] * 4,
        *[False] * 2,
    ]


def test_a_host_with_a_port_is_an_address() -> None:
    """As a person types it."""
    assert endpoint("localhost:8000").url == "http://localhost:8000/"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1", {}, "expected an address like"),
        ("ftp://a/", {}, "expected an address like"),
        ("http://", {}, "expected an address like"),
        ("http://a:99999/", {}, "expected an address like"),
        ("http://a:0/", {}, "expected an address like"),
        ("http://[::1/", {}, "expected an address like"),
        ("http://a b/", {}, "without a fragment or blanks"),
        ("http://a/#x", {}, "without a fragment"),
        ("http://me:secret@a/", {}, "no user or password"),
        ("http://a/ä", {}, "printable ASCII"),
        (HERE, {"path": "/x y"}, "printable ASCII"),
        (HERE, {"api": "chatt"}, "did you mean 'chat'"),
        (HERE, {"method": "HEAD"}, "whose answer has a body"),
        (HERE, {"method": "GE T"}, "method of HTTP"),
        (HERE, {"headers": ["nothing"]}, "Name: value"),
        (HERE, {"headers": ["a b: c"]}, "Name: value"),
        (HERE, {"headers": ["Content-Length: 5"]}, "the client's own"),
        (HERE, {"headers": ["x: secret\r\nhost: b"]}, "one line of Latin-1"),
        (HERE, {"headers": ["x: secret€"]}, "one line of Latin-1"),
        (HERE, {"api_key": "sec\nret"}, "api_key: expected one line"),
    ],
)
def test_wrong_endpoints_teach(url: str, options: dict[str, Any], message: str) -> None:
    """What is no address, path, method or header is refused, and no secret is in the message."""
    with pytest.raises(OptionError) as caught:
        endpoint(url, **options)
    assert message in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("secret", "sec\nret", "sec\\nret"))


def test_secrets_are_sent_and_never_shown() -> None:
    """A key, a header's value and a query are in the request's bytes, and in nothing that is printed."""
    found = endpoint(HERE + "/v1/completions?key=hidden1", headers=["X-Secret: hidden2"], api_key="hidden3", model="m")
    sent = RequestEncoder(found, model="m")(SOME)
    for number in (1, 2, 3):
        assert b"hidden%d" % number in sent
    assert "hidden" not in found.url
    assert "hidden2" not in repr(found) and "hidden3" not in repr(found)


def test_keys_of_the_environment() -> None:
    """Each API takes its own variable, in its own way; a key that was given, or a header, goes first; what has
    no API of a model gets none."""

    def sent(api: str, **options: Any) -> dict[str, str]:
        home = "https://api.anthropic.com" if api == "messages" else "https://api.openai.com"
        headers = dict(endpoint(home, api=api, environment=KEYS, **options).headers)
        return {name: value for name, value in headers.items() if name in ("authorization", "x-api-key")}

    for api in ("completions", "chat", "responses"):
        assert sent(api) == {"authorization": "Bearer sk-openai"}
    assert sent("messages") == {"x-api-key": "sk-anthropic"}
    assert sent("http") == {}
    assert sent("chat", api_key="mine") == {"authorization": "Bearer mine"}
    assert sent("http", api_key="mine") == {"authorization": "Bearer mine"}
    assert sent("chat", headers=["Authorization: Basic x"]) == {"authorization": "Basic x"}
    assert sent("messages", headers=["X-API-Key: y"]) == {"x-api-key": "y"}


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com.example", False),
        ("https://notapi.openai.com.", False),
        ("https://api.anthropic.com", False),
        ("https://10.0.0.1", False),
        ("http://10.0.0.1", False),
        ("http://localhost", False),
    ],
)
def test_a_found_key_goes_to_no_other_host(url: str, there: bool) -> None:
    """The environment's key goes to the host that it belongs to, encrypted, or to none, and the user is told."""
    found = endpoint(url, api="chat", environment=KEYS)
    assert ("authorization" in dict(found.headers)) is there
    assert bool(found.notes) is not there
    assert "sk-" not in "".join(found.notes)


def test_a_key_that_is_asked_for_goes_anywhere() -> None:
    """By its value or by the name of a variable; in the clear to another machine with a word of warning."""
    mine = {**KEYS, "MY_KEY": " sk-mine\n"}
    for options in ({"api_key": "sk-mine"}, {"api_key_env": "MY_KEY"}, {"headers": ["Authorization: Bearer sk-mine"]}):
        for url, clear in (("http://10.0.0.1", True), ("https://10.0.0.1", False), ("http://127.0.0.1", False)):
            found = endpoint(url, api="chat", environment=mine, **options)
            assert dict(found.headers)["authorization"] == "Bearer sk-mine"
            assert any("over http" in note for note in found.notes) is clear and "sk-" not in "".join(found.notes)
    assert "authorization" not in dict(
        endpoint("https://api.openai.com", api="chat", api_key="", environment=KEYS).headers
    )
    for wrong, message in (
        ({"api_key_env": "NONE"}, "NONE.*a variable that is set"),
        ({"api_key_env": "MY_KEY", "api_key": "x"}, "not both"),
        ({"api_key": "x", "headers": ["X-Api-Key: y"]}, "is one already"),
    ):
        with pytest.raises(OptionError, match=message):
            endpoint(HERE, api="chat", environment=mine, **wrong)


def test_what_an_answer_repeats_is_hidden() -> None:
    """The key, the user's headers and the query, also where they were cut; what looks like another's key."""
    where = endpoint(
        HERE + "/v1/completions?token=hush%20now", headers=["x-team: blue  team"], api_key="topsecretkey", model="m"
    )
    secrets = where.secrets
    for text in (
        "no topsecretkey here",
        "Bearer topsecretkey",
        "hush now",
        "hush%20now",
        "for blue team",
        "cut topsec",
    ):
        assert not {"topsec", "hush", "blue"} & set(hidden(text, secrets).replace("[", " ").split()), text
        assert "[hidden]" in hidden(text, secrets)
    assert hidden("Incorrect API key provided: sk-abcd1234***wxyz.", ()).startswith("Incorrect API key provided: [hid")
    assert hidden("model m is not loaded", secrets) == "model m is not loaded"


def test_the_users_headers_replace_ours() -> None:
    """A header that the user names is sent once, with the user's value."""
    where = endpoint(HERE, api="chat", headers=["Host: model", "User-Agent: me", "X-Request-Id: mine", "x: "])
    _, headers, _ = parsed(RequestEncoder(where, model="m")(SOME))
    assert (headers["host"], headers["user-agent"], headers["x-request-id"], headers["x"]) == (
        "model",
        "me",
        "mine",
        "",
    )


# Bodies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", PATHS)
def test_each_api_gets_its_own_body(api: str) -> None:
    """The model, the prompt with its words, the limit under the API's name for it, and a stream."""
    body = body_of(api)
    assert (body["model"], body["stream"]) == ("m", True)
    assert len(words(body).split(" ")) == 12
    assert body["max_output_tokens" if api == "responses" else "max_tokens"] == 34
    assert body.get("stream_options") == ({"include_usage": True} if api in ("completions", "chat") else None)
    assert body_of(api, stream=False)["stream"] is False
    assert "stream_options" not in body_of(api, stream=False)


def test_heads() -> None:
    """The first line, and the headers that each API asks for."""
    for api in APIS:
        first, headers, _ = parsed(RequestEncoder(endpoint(HERE, api=api), model=None if api == "http" else "m")(SOME))
        assert first == ("GET / HTTP/1.1" if api == "http" else f"POST {PATHS[api]} HTTP/1.1")
        assert headers["host"] == "127.0.0.1:8000"
        assert headers["user-agent"].startswith("tailwatch/")
        assert headers["x-request-id"] == "tailwatch-5"
        assert ("anthropic-version" in headers) is (api == "messages")
        assert ("content-type" in headers) is (api != "http")


@pytest.mark.parametrize("api", PATHS)
def test_no_limit_is_no_limit(api: str) -> None:
    """Zero output tokens leave the length to the server, where its API lets one."""
    body = body_of(api, Planned(0.0, 3, 0, 0))
    assert {key: body[key] for key in body if "max" in key} == ({"max_tokens": 1024} if api == "messages" else {})


@pytest.mark.parametrize("api", PATHS)
def test_extra_fields_go_over_ours(api: str) -> None:
    """--extra-body adds, replaces and, with null, takes away; also what would have been filled in."""
    extra = {"temperature": 0, "max_tokens": 7, "stream_options": None, "max_output_tokens": None, "x": {"y": [1, "ü"]}}
    body = body_of(api, extra=extra)
    assert (body["temperature"], body["max_tokens"], body["x"]) == (0, 7, {"y": [1, "ü"]})
    assert "stream_options" not in body and "max_output_tokens" not in body
    field = {"completions": "prompt", "responses": "input"}.get(api, "messages")
    assert body_of(api, extra={field: "mine"})[field] == "mine"
    assert "model" not in body_of(api, extra={"model": None})


def test_extra_of() -> None:
    """A JSON object, or a file of one; else a sentence."""
    assert extra_of(None) == {}
    assert extra_of('{"a": 1}') == {"a": 1}
    for wrong in ("[1]", "{", "1", "", "[" * 100_000, '{"a": NaN}', '{"a": -Infinity}'):
        with pytest.raises(OptionError, match="expected a JSON object"):
            extra_of(wrong)
    with pytest.raises(TailwatchError, match="No such file"):
        extra_of("@/nowhere")


def test_extra_of_a_file(tmp_path: Path) -> None:
    """@FILE reads it from there."""
    path = tmp_path / "extra.json"
    path.write_text('{"a": 1}', encoding="utf-8")
    assert extra_of(f"@{path}") == {"a": 1}


def test_http_requests() -> None:
    """Any endpoint: without a body none is announced by GET, a POST announces that it is empty, a body is sent as it
    is."""
    assert parsed(RequestEncoder(endpoint(HERE + "/x"))(SOME))[1].keys() & {"content-length", "content-type"} == set()
    first, headers, body = parsed(RequestEncoder(endpoint(HERE + "/x", method="post"))(SOME))
    assert (first, headers["content-length"], body) == ("POST /x HTTP/1.1", "0", b"")
    sent = RequestEncoder(endpoint(HERE + "/x", method="PUT"), body=b"\x00\xff")(SOME)
    assert parsed(sent)[2] == b"\x00\xff"


def test_what_does_not_go_together() -> None:
    """A body for an API that makes its own, a model for one that has none, and a GET with a body are refused."""
    for where, options, message in (
        (endpoint(HERE, api="chat"), {"body": b"x"}, "with --api http only"),
        (endpoint(HERE, api="chat", method="GET"), {}, "expected POST"),
        (endpoint(HERE), {"model": "m"}, "no model"),
        (endpoint(HERE), {"extra": {"a": 1}}, "no model and no extra"),
        (endpoint(HERE), {"body": b"x"}, "give --method POST"),
    ):
        with pytest.raises(OptionError, match=message):
            RequestEncoder(where, **options)  # type: ignore[arg-type]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(sorted(PATHS)),
    st.text(),
    st.text(min_size=1),
    st.dictionaries(st.text(min_size=1, max_size=8), json_values, max_size=4),
    st.integers(0, 10**6),
)
@settings(max_examples=300, deadline=None)
def test_any_text_arrives_as_it_is(api: str, text: str, model: str, extra: dict[str, Any], tokens: int) -> None:
    """Any prompt of a file, model and extra fields come out of the request's JSON as they went in."""
    where = endpoint(HERE, api=api)
    own = {"model", "prompt", "messages", "input", "max_tokens", "max_output_tokens", "stream", "stream_options"}
    extra = {key: value for key, value in extra.items() if key not in own}
    request = RequestEncoder(where, model=model, prompts=[Prompt(text)], extra=extra)(Planned(0.0, 1, tokens, 9))
    body = json.loads(parsed(request)[2])
    assert words(body) == text
    assert body["model"] == model
    assert {key: body[key] for key in body if key not in own} == {k: v for k, v in extra.items() if v is not None}
    if tokens:
        assert body["max_output_tokens" if api == "responses" else "max_tokens"] == tokens


def test_half_a_character_is_sent_escaped() -> None:
    """A text that UTF-8 cannot hold, which a program may have, still makes a JSON body."""
    assert words(body_of("chat", prompts=[Prompt("a\ud800")])) == "a\ud800"


def test_requests_cross_processes() -> None:
    """What makes requests survives pickling, and makes the same ones there."""
    for api in APIS:
        made = RequestEncoder(endpoint(HERE, api=api), model=None if api == "http" else "m")
        assert pickle.loads(pickle.dumps(made))(SOME) == made(SOME)


# Prompts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 100, 4096, 131_072, 300_001])
def test_synthetic_prompts_have_their_length(tokens: int) -> None:
    """So many words, wherever they are cut from; the same for the same place and seed."""
    made = Synthetic()
    for index in (0, 1, 12_345, 10**6, 2**31):
        text = made.text(index, tokens, 3).decode("ascii")
        assert len(text.split(" ")) == tokens
        assert set(text.split(" ")) <= set(prompts.WORDS)
        assert text.encode() == Synthetic().text(index, tokens, 3)
        assert json.loads(f'"{text}"') == text


def test_no_two_prompts_begin_alike() -> None:
    """The first sixteen words, which is what a prefix cache keeps at the least, separate the prompts of ten runs with
    other seeds apart, ten thousand each."""
    made = Synthetic()
    beginnings = {made.text(index, 16, seed) for index in range(10_000) for seed in (*range(9), -1)}
    assert len(beginnings) == 100_000


def test_there_is_always_a_prompt() -> None:
    """A length of zero is still a word."""
    assert Synthetic().text(0, 0) == b"time"


def saved(directory: Path, *lines: Any) -> Path:
    """A JSONL file."""
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because" * 4}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "Hello"}]},
    {"id": "c", "conversations": [{"from": "system", "value": "x"}, {"from": "human", "value": "And?"}]},
]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


def test_each_form_of_prompt_is_read(tmp_path: Path) -> None:
    """Texts and chats under the names that people give them, with lengths where the file has them."""
    path = saved(
        tmp_path,
        {"prompt": "a", "output_tokens": 5, "prompt_tokens": 1},
        {"text": "b", "max_tokens": 6},
        {"question": "c"},
        {"body": {"input": "d", "max_output_tokens": 7}, "custom_id": "x"},
        {"messages": CHAT, "max_completion_tokens": 8},
        SHAREGPT[0],
        "plain",
    )
    found = prompts.read(path)
    assert [prompt.text for prompt in found] == ["a", "b", "c", "d", "system: Be brief.\nuser: Hi", "Why?", "plain"]
    assert [prompt.output_tokens for prompt in found] == [5, 6, 0, 7, 8, 7, 0]
    assert found[0].prompt_tokens == 1


def test_sharegpt_is_read(tmp_path: Path) -> None:
    """The first question of each conversation, and its answer's length at four bytes a token; without a question it
    is left out."""
    path = tmp_path / "ShareGPT.json"
    path.write_text(json.dumps(SHAREGPT), encoding="utf-8-sig")
    assert prompts.read(path) == [Prompt("Why?", None, 0, 7), Prompt("And?", None, 0, 0)]


def test_a_chat_is_put_as_each_api_takes_it() -> None:
    """As messages where there are such; as one text for completions; the system's words where Anthropic's API has
    them."""
    chat = [Prompt("system: Be brief.\nuser: Hi", tuple(CHAT))]
    assert body_of("chat", prompts=chat)["messages"] == CHAT
    assert body_of("responses", prompts=chat)["input"] == CHAT
    assert body_of("completions", prompts=chat)["prompt"] == "system: Be brief.\nuser: Hi"
    messages = body_of("messages", prompts=chat)
    assert (messages["system"], messages["messages"]) == ("Be brief.", CHAT[1:])
    assert body_of("messages", prompts=chat, extra={"system": "mine"})["system"] == "mine"
    assert "system" not in body_of("messages", prompts=[Prompt("x")])


def test_prompts_of_a_file_come_in_turn() -> None:
    """In the file's order by the request's place, and over again."""
    made = RequestEncoder(endpoint(HERE, api="completions"), model="m", prompts=[Prompt("a"), Prompt("b")])
    found = [json.loads(parsed(made(Planned(0.0, 1, 1, index)))[2])["prompt"] for index in range(3)]
    assert found == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no prompt in it"),
        (b"{}\n", "no prompt in it"),
        (b'{"prompt": "a"}\n{oops\n', "line 2: this is no JSON"),
        (b"[1]", "entry 1: expected an object"),
        (b"[", "this is no JSON"),
        (b'{"prompt": "a", "max_tokens": -1}\n', "line 1, 'max_tokens': "),
        (b'{"prompt": "a", "max_tokens": true}\n', "line 1, 'max_tokens'"),
        (b'{"messages": [1]}\n', "line 1, 'messages': expected messages with a role"),
        (b"\xff\n", "line 1: this is no JSON"),
        (b"[" * 5000, "this is no JSON"),
    ],
)
def test_an_error_names_the_line(content: bytes, message: str, tmp_path: Path) -> None:
    """A prompt file that cannot be read is refused with the line or the entry."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(TailwatchError) as caught:
        prompts.read(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(TailwatchError, match="No such file"):
        prompts.read(tmp_path / "none")


@given(st.lists(json_values, max_size=4), st.binary(max_size=20), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Any], junk: bytes, lines: bool
) -> None:
    """Any JSON, and any bytes after it, give prompts that make requests, or a sentence."""
    keys = ("prompt", "messages", "conversations", "body", "max_tokens", "input")
    dressed = [{keys[i % len(keys)]: entry, "prompt": "x"} if i % 2 else entry for i, entry in enumerate(entries)]
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    text = "\n".join(json.dumps(entry) for entry in dressed) if lines else json.dumps(dressed)
    path.write_bytes(text.encode() + junk)
    try:
        found = prompts.read(path)
    except TailwatchError as error:
        assert len(str(error)) < 500
        return
    for api in PATHS:
        made = RequestEncoder(Endpoint(False, "a", 1, "/", api), model="m", prompts=found)
        for index in range(len(found)):
            json.loads(parsed(made(Planned(0.0, 1, 1, index)))[2])
