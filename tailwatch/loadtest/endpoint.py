"""Where requests go and with which head: the URL read, the API found, the headers and keys checked and never shown."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tailwatch.errors import OptionError
from tailwatch.platform import VERSION

PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
APIS = (*PATHS, "http")
ANTHROPIC_VERSION = "2023-06-01"
_KEYS = {"messages": "ANTHROPIC_API_KEY", "http": ""}  # the variable that a key is taken from; the others:
_KEY = "OPENAI_API_KEY"
_HOMES = {"OPENAI_API_KEY": "api.openai.com", "ANTHROPIC_API_KEY": "api.anthropic.com"}  # whose it is
_KEY_HEADERS = {"authorization", "x-api-key"}
_OPEN = {"host", "user-agent", "accept", "content-type", "anthropic-version"}  # headers whose values are no secret
_LIKE_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|hf|key)[-_][\w*.-]{8,}|\bBearer\s+\S+", re.IGNORECASE)
_HIDDEN = "[hidden]"
_SHORTEST_SECRET = 4  # characters: shorter ones are in any text
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, 5.6.2
_OURS = {"content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One URL that requests are sent to.

    host: a name, or an address without brackets. path: with its query, as sent. api: of APIS. method: of HTTP.
    headers: (name, value) in the order they are sent, without those that frame the body; values may be secret and are
    not shown. notes: what the user should see, a sentence each.
    """

    secure: bool
    host: str
    port: int
    path: str = field(repr=False)
    api: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Without any secret; a query's values may be one and are left out."""
        path, question, _ = self.path.partition("?")
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{_authority(self.host, self.port, self.secure)}{path}{question and '?…'}"

    @property
    def loopback(self) -> bool:
        """Whether it is on this machine, by its name."""
        return is_loopback(self.host)

    @property
    def marked(self) -> bool:
        """Whether its API ends each stream with a marker of its own, as all but plain HTTP do."""
        return self.api in PATHS

    @property
    def secrets(self) -> tuple[str, ...]:
        """What may not be shown where an answer repeats it: the key, the user's headers, the query; longest first."""
        values = [value for name, value in self.headers if name not in _OPEN]
        values += [value.rpartition(" ")[2] for value in values]
        query = self.path.partition("?")[2]
        values += [value for _, value in parse_qsl(query)] + [part.partition("=")[2] for part in query.split("&")]
        found = {" ".join(value.split()) for value in values}
        return tuple(sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))

    @property
    def head(self) -> bytes:
        """The request up to the headers that frame the body."""
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers)]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: localhost, 127/8, ::1."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hidden(text: str, secrets: Iterable[str]) -> str:
    """A text without these, longest first, and without what looks like a key; it may have been cut inside one."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
        ends = (secret[:length] for length in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1))
        if end := next((end for end in ends if text.endswith(end)), ""):
            text = text.removesuffix(end) + _HIDDEN
    return _LIKE_KEYS.sub(_HIDDEN, text)


def endpoint(
    url: str,
    *,
    api: str | None = None,
    path: str | None = None,
    method: str | None = None,
    model: str | None = None,
    headers: Iterable[str] = (),
    api_key: str | None = None,
    api_key_env: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Endpoint:
    """Of what a user gives.

    api: of APIS; None finds it from the path, else `completions` where there is a model and `http` where there is none.
    path: instead of the URL's and the API's. headers: "Name: value"; they replace ours. api_key, or api_key_env, the
    variable that holds it: instead of the environment's own (OPENAI_API_KEY, ANTHROPIC_API_KEY), which goes to no host
    but the one it belongs to, over https.

    Raises:
        OptionError: one of them is wrong. A key is never in the message.
    """
    split = _split(url)
    if api is not None and api not in APIS:
        raise OptionError.of("api", api, f"expected one of {', '.join(APIS)}", choices=APIS)
    given = path if path is not None else split.path + (f"?{split.query}" if split.query else "")
    found = api or _api_of(given) or ("completions" if model else "http")
    way = _checked_path(path, "endpoint") if path is not None else _checked_path(_joined(given, found), "url")
    host, secure = str(split.hostname), split.scheme == "https"
    port = split.port or (443 if secure else 80)
    own = dict(_header(line) for line in headers)
    asked = _asked(api_key, api_key_env, own, environment or {})
    key, notes = (asked, ()) if asked is not None else _found_key(found, own, environment or {}, host, secure)
    if (asked or own.keys() & _KEY_HEADERS) and not secure and not is_loopback(host):
        notes = (f"the key goes to {host} over http: whoever is on the way can read it",)
    merged = {**_defaults(found, _authority(host, port, secure), key), **own}
    verb = _method(method, found)
    return Endpoint(secure, host, port, way, found, verb, tuple(merged.items()), notes)


def _split(url: str) -> SplitResult:
    expected = "expected an address like http://127.0.0.1:8000"
    if re.match(r"[\w.-]+:[0-9]+(/|$)", url):  # as a person types it
        url = f"http://{url}"
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise OptionError(f"url={_shown(url)}: {expected}: {error}") from error
    if split.scheme not in ("http", "https") or not split.hostname:
        raise OptionError(f"url={_shown(url)}: {expected}")
    if split.username is not None or split.password is not None:
        raise OptionError("url: expected no user or password in it: give --header 'Authorization: …'")
    if split.fragment or port == 0 or re.search(r"[^!-~]", split.netloc):
        raise OptionError(f"url={_shown(url)}: {expected}, without a fragment or blanks")
    return split


def _shown(url: str) -> str:
    """What may be printed of a URL that is none: nothing before an @ or after a question mark."""
    text = str(url).rpartition("@")[2].partition("?")[0]
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _authority(host: str, port: int, secure: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port == (443 if secure else 80) else f"{name}:{port}"


def _api_of(path: str) -> str | None:
    bare = path.partition("?")[0].rstrip("/")
    endings = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
    endings["messages"] = "/v1/messages"
    return next((api for api, ending in endings.items() if bare.endswith(ending)), None)


def _joined(given: str, api: str) -> str:
    """The API's path below the URL's own; a URL may end in /v1, as clients' base addresses do, or name all of it."""
    if api == "http" or _api_of(given) == api:
        return given or "/"
    bare, question, query = given.partition("?")
    return bare.rstrip("/").removesuffix("/v1") + PATHS[api] + question + query


def _checked_path(path: str, option: str) -> str:
    found = path if path.startswith("/") else f"/{path}"
    if re.search(r"[^!-~]", found) or "#" in found:
        raise OptionError.of(
            option, path.partition("?")[0], "expected a path of printable ASCII, others percent-encoded"
        )
    return found


def _method(method: str | None, api: str) -> str:
    if method is None:
        return "GET" if api == "http" else "POST"
    if not _NAME.fullmatch(method) or method.upper() in ("CONNECT", "HEAD"):
        raise OptionError.of("method", method, "expected a method of HTTP whose answer has a body, like GET or POST")
    return method.upper()


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip().lower(), value.strip()
    if not colon or not _NAME.fullmatch(name):
        raise OptionError("header: expected 'Name: value', with a name of letters, digits and dashes")
    if name in _OURS:
        raise OptionError(f"header: expected none of {', '.join(sorted(_OURS))}: {name!r} is the client's own")
    return name, _value(value, f"header {name!r}")


def _value(value: str, what: str) -> str:
    if _UNSAFE.search(value):
        raise OptionError(f"{what}: expected one line of Latin-1 without control characters")
    return value


def _asked(
    given: str | None, variable: str | None, own: Mapping[str, str], environment: Mapping[str, str]
) -> str | None:
    """The key that the user wants sent, "" for none; None where none was given."""
    if given is None and variable is None:
        return None
    if given is not None and variable is not None:
        raise OptionError("api_key: expected it or --api-key-env, not both")
    if named := own.keys() & _KEY_HEADERS:
        raise OptionError(f"api_key: --header {min(named)!r} is one already; leave one of them out")
    if given is None:
        given = environment.get(variable or "", "")
        if not given.strip():
            raise OptionError.of("api_key_env", variable, "expected the name of a variable that is set")
    return _value(given.strip(), "api_key")


def _found_key(
    api: str, own: Mapping[str, str], environment: Mapping[str, str], host: str, secure: bool
) -> tuple[str, tuple[str, ...]]:
    """The environment's key where it belongs to the host, "" elsewhere, and a note about it."""
    name = _KEYS.get(api, _KEY)
    key = environment.get(name, "").strip() if name else ""
    if not key or own.keys() & _KEY_HEADERS:
        return "", ()
    home = _HOMES[name]
    if secure and (host.lower() == home or host.lower().endswith(f".{home}")):
        return _value(key, name), ()
    return "", (f"{name} goes to https://{home} alone, not to {host}; --api-key-env {name} sends it here too",)


def _defaults(api: str, authority: str, key: str) -> dict[str, str]:
    """Our own headers, which the user's replace."""
    found = {"host": authority, "user-agent": f"tailwatch/{VERSION}"}
    if api == "http":
        return found | {"accept": "*/*"} | ({"authorization": f"Bearer {key}"} if key else {})
    found |= {"accept": "text/event-stream", "content-type": "application/json"}
    if api == "messages":
        return found | {"anthropic-version": ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})
    return found | ({"authorization": f"Bearer {key}"} if key else {})
