"""Which clients may see the page."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.serve.page_access import Access, access

TOKEN = "correct-horse-battery"
NAMES = [b"host", b"authorization", b"x-forwarded-for", b"via", b"forwarded", b"sec-fetch-site", b":authority"]
VALUES = st.binary(max_size=20) | st.sampled_from(
    [b"localhost", b"127.0.0.1:80", b"Bearer " + TOKEN.encode(), b"Bearer x", b"same-origin", b"cross-site", b""]
)
HERE = {"host": "127.0.0.1:8000"}


def ask(
    headers: dict[str, str] | None = None, *, token: str = "", peer: str | None = "127.0.0.1", version: str = "1.1"
) -> Access:
    """What a request with these headers may see."""
    sent = HERE if headers is None else headers
    return access(token, peer, version, [(name.encode(), value.encode("latin-1")) for name, value in sent.items()])


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost", "localhost:1", "LOCALHOST:8000", "a.localhost:80", "localhost.", "[::1]:8000"],
)
def test_this_machine_needs_no_token_where_there_is_none(peer: str, host: str) -> None:
    """The peer is on the loopback address, and the browser was sent there."""
    assert ask({"host": host}, peer=peer) is Access.GRANTED


@pytest.mark.parametrize(
    "peer", ["10.0.0.1", "192.168.1.4", "172.17.0.1", "::2", "fe80::1%eth0", "128.0.0.1", "0.0.0.0", "x", "", None]
)
def test_any_other_peer_is_elsewhere(peer: str | None) -> None:
    """Other addresses; those of containers too; a Unix socket, which has none: a proxy is behind it."""
    assert ask(peer=peer) is Access.ELSEWHERE


@pytest.mark.parametrize(
    "name",
    [
        *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-whatever", "via"),
        *(
            "x-real-ip",
            "x-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "x-envoy-external-address",
            "fly-client-ip",
        ),
        *("x-request-start", "x-amzn-trace-id", "x-original-forwarded-for", "x-cluster-client-ip"),
    ],
)
@pytest.mark.parametrize("value", ["127.0.0.1", "", "for=127.0.0.1", "203.0.113.9"])
def test_behind_a_proxy_no_client_is_local(name: str, value: str) -> None:
    """Whatever the header has: it may be the client's own word."""
    assert ask({**HERE, name: value}) is Access.ELSEWHERE


def test_nginx_as_it_is_without_any_setting() -> None:
    """It sends HTTP/1.0, the server's own address as Host, and no other word of itself."""
    assert ask(version="1.0") is Access.ELSEWHERE


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", ""),
        *("127.0.0.1@evil.example", "10.0.0.1", "0.0.0.0:8000", "[::]", "127.0.0.1:8000, evil.example", "127.0.0.1:x"),
    ],
)
def test_a_name_of_the_web_for_this_machine_is_refused(host: str) -> None:
    """DNS rebinding: a page's own name server resolves its name to 127.0.0.1."""
    assert ask({"host": host}) is Access.ELSEWHERE


def test_no_host_at_all_and_two_of_them() -> None:
    """No browser of this machine asks so."""
    assert ask({}) is Access.ELSEWHERE
    both = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert access("", "127.0.0.1", "1.1", both) is Access.ELSEWHERE


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer   {TOKEN} "])
@pytest.mark.parametrize("peer", ["127.0.0.1", "203.0.113.9", None])
def test_the_token_opens_from_anywhere(value: str, peer: str | None) -> None:
    """Through proxies and by any name, too."""
    headers = {"host": "llm.example", "x-forwarded-for": "203.0.113.9", "authorization": value}
    assert ask(headers, token=TOKEN, peer=peer, version="1.0") is Access.GRANTED


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"),
        *(f"Bearer {TOKEN.upper()}", f"Bearer {TOKEN}, Bearer x", "Bearer \xe4\xf6\xfc", f"Bearer {'x' * 100_000}"),
    ],
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "203.0.113.9"])
def test_where_there_is_a_token_every_client_needs_it(value: str | None, peer: str) -> None:
    """On this machine too: behind a proxy that hides itself every client would be on it."""
    headers = HERE if value is None else {**HERE, "authorization": value}
    assert ask(headers, token=TOKEN, peer=peer) is Access.TOKEN


def test_two_authorizations_are_none() -> None:
    """A proxy and the server could read different ones."""
    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"authorization", b"Bearer x")]
    assert access(TOKEN, "127.0.0.1", "1.1", headers) is Access.TOKEN


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("token", ["", TOKEN])
def test_another_sites_page_gets_nothing(site: str, token: str) -> None:
    """Not even that the token would help; a link that a person follows is another matter."""
    headers = {**HERE, "sec-fetch-site": site, "authorization": f"Bearer {TOKEN}"}
    assert ask(headers, token=token) is Access.FOREIGN
    framed = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert ask({**headers, **framed}, token=token) is Access.FOREIGN
    followed = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask({**headers, **followed}, token=token) is Access.GRANTED


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_itself_may_ask(site: str) -> None:
    """And where a person types the address."""
    assert ask({**HERE, "sec-fetch-site": site}) is Access.GRANTED


@settings(max_examples=300)
@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMES) | st.binary(max_size=12), VALUES), max_size=6),
    peer=st.none() | st.sampled_from(["127.0.0.1", "::1", "10.0.0.1"]) | st.text(max_size=20),
    version=st.sampled_from(["1.0", "1.1", "2", "3", ""]),
)
def test_no_request_whatever_opens_a_locked_page(
    headers: list[tuple[bytes, bytes]], peer: str | None, version: str
) -> None:
    """Any bytes: no exception, and without the token in an Authorization header of its own nothing is granted; without
    a token only a client that is plainly on this machine."""
    values = [value for name, value in headers if name == b"authorization"]
    if access(TOKEN, peer, version, headers) is Access.GRANTED:
        assert len(values) == 1 and values[0].strip()[-len(TOKEN) :] == TOKEN.encode()
    if access("", peer, version, headers) is Access.GRANTED:
        assert peer is not None and ("127." in peer or peer.startswith("::")) and version != "1.0"
        assert not [name for name, _ in headers if name in (b"x-forwarded-for", b"via", b"forwarded")]
        assert any(name in (b"host", b":authority") for name, _ in headers)
