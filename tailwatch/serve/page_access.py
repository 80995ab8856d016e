"""Who may see the page: a client with the token where there is one, else only clients on this machine.

Without a token the peer must be on the loopback address without sign of a proxy or another site: behind a proxy all are
on the loopback address, and a page of the web may have a browser ask in its name (DNS rebinding). A proxy that adds
no header at all and uses HTTP/1.1 looks like a browser: behind one, a token is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

_PROXY_HEADERS = frozenset(
    {
        *("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "x-cluster-client-ip", "x-proxyuser-ip"),
        *("fastly-client-ip", "x-amzn-trace-id", "x-request-start", "x-original-host", "x-host", "proxy-connection"),
    }
)
_PROXY_PREFIXES = ("x-forwarded", "x-original-", "x-envoy-", "cf-", "fly-", "x-azure-", "x-arr-", "x-appengine-")
_LOCAL_NAME = re.compile(r"(?:(?:[a-z0-9-]+\.)*localhost\.?|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
_BEARER = re.compile(r"Bearer +(\S+) *", re.IGNORECASE)
_OWN_SITE = ("same-origin", "none")

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, as an ASGI scope has them."""


class Access(Enum):
    """What a request may see: everything; nothing until it has the token; nothing, as it does not come from here;
    nothing, as another site's page asks."""

    GRANTED = "granted"
    TOKEN = "token"
    ELSEWHERE = "elsewhere"
    FOREIGN = "foreign"


def access(token: str, peer: str | None, http_version: str, headers: Headers) -> Access:
    """What a request may see of the page.

    Args:
        token: that the page asks for; "": none.
        peer: the address of the client; None or "" where there is none, as on a Unix socket, behind which there
            is a proxy more often than not.
        http_version: "1.0" is what nginx sends to a server behind it by default, and no browser.
        headers: of the request.
    """
    sent = [(name.decode("latin-1"), value.decode("latin-1").strip()) for name, value in headers]
    if any(name == "sec-fetch-site" and value not in _OWN_SITE for name, value in sent) and not _navigates(sent):
        return Access.FOREIGN
    if token:
        return Access.GRANTED if _has_token(token, sent) else Access.TOKEN
    if _is_loopback(peer) and http_version != "1.0" and not _came_by_proxy(sent) and _asks_for_this_machine(sent):
        return Access.GRANTED
    return Access.ELSEWHERE


def _navigates(sent: list[tuple[str, str]]) -> bool:
    """A link that a person has followed, at the top of a window: its page reads nothing of the answer."""
    return ("sec-fetch-mode", "navigate") in sent and ("sec-fetch-dest", "document") in sent


def _has_token(token: str, sent: list[tuple[str, str]]) -> bool:
    from hashlib import sha256
    from hmac import compare_digest

    given = [value for name, value in sent if name == "authorization"]
    match = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    given_token = match[1] if match else ""
    return compare_digest(
        sha256(given_token.encode()).digest(), sha256(token.encode()).digest()
    )  # its time does not show the length either


def _is_loopback(peer: str | None) -> bool:
    from ipaddress import ip_address

    try:
        address = ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _came_by_proxy(sent: list[tuple[str, str]]) -> bool:
    return any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name, _ in sent)


def _asks_for_this_machine(sent: list[tuple[str, str]]) -> bool:
    """A name that a stranger's name server answers with 127.0.0.1 is not one of these."""
    hosts = [value for name, value in sent if name in ("host", ":authority")]
    return bool(hosts) and all(_LOCAL_NAME.fullmatch(host) for host in hosts)
