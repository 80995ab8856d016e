"""Which requests generate tokens, and the template under which a request is labelled."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tailwatch.errors import OptionError

UNMATCHED = "unmatched"
_MOST_UNCOUNTED = 8
_NAMEABLE = re.compile(r"[!-~]{1,100}")  # in a log line, and as a value of routes=

# Wherever an app is mounted: OpenAI, Anthropic, vLLM. The longer name comes first, it becomes the label.
_SUFFIXES = (
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
)
# Names too general to be looked for in the middle of a path: SGLang, TGI, TensorRT-LLM, LMDeploy; llama.cpp; Ollama.
_EXACT = (
    "/generate",
    "/generate_stream",
    "/completion",
    "/completions",
    "/infill",
    "/api/generate",
    "/api/chat",
)
# Triton and KServe; Gemini.
_TEMPLATES = (
    "/v2/models/{model}/generate",
    "/v2/models/{model}/generate_stream",
    "/v2/models/{model}/versions/{version}/generate",
    "/v2/models/{model}/versions/{version}/generate_stream",
)

_PARAMETER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")


class Routes:
    """The generation routes of one process: the known ones, those asked for, and those that ever streamed.

    patterns: paths as the app's router sees them, `/chat` or `/chat/{user}`. Raises OptionError for one that
    does not begin with a slash or that is not a template.
    """

    __slots__ = ("_asked", "_exact", "_logged", "_templates", "uncounted")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._exact: set[str] = {*_EXACT, *_SUFFIXES}
        self._templates: dict[str, re.Pattern[str]] = {}
        self._asked: list[re.Pattern[str]] = []
        self._logged = False
        self.uncounted: list[tuple[str, str]] = []
        """Method and template of those that streamed and are not counted, the first few."""
        for template in _TEMPLATES:
            self.learn(template)
        self.add(patterns)

    def add(self, patterns: Iterable[str]) -> None:
        """More patterns. Raises OptionError as the constructor does."""
        for pattern in patterns:
            _check(pattern)
            self.learn(pattern)
            self._asked.append(expression(pattern))

    def learn(self, template: str) -> None:
        """From now on requests on this route count. Does nothing for one that counts already, or is no route."""
        if template == UNMATCHED:
            self._log_unreadable()
            return
        if "{" not in template:
            self._exact.add(template)
        elif template not in self._templates:
            self._templates[template] = expression(template)

    def streamed(self, what: str | Mapping[str, Any]) -> None:
        """Something streamed: learn a route; name the one of a scope whose request was not counted, if it is in a route
        table: a client's path is in no log."""
        if isinstance(what, str):
            self.learn(what)
            return
        route = self.route_of(what)
        found = (str(what["method"]), route)
        if route == UNMATCHED or not _NAMEABLE.fullmatch(route):
            self._log_unreadable()
        elif found not in self.uncounted and not self.full:
            self.uncounted.append(found)

    @property
    def full(self) -> bool:
        """Whether no more of those that are not counted are named."""
        return len(self.uncounted) >= _MOST_UNCOUNTED

    def generates(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request of this http or websocket scope is expected to generate tokens."""
        if scope["path"] in self._exact and scope.get("method") == "POST" and not scope.get("root_path"):
            return True  # the usual case
        if scope["type"] == "http" and scope["method"] != "POST":
            return bool(self._asked) and any(pattern.fullmatch(path_of(scope)) for pattern in self._asked)
        return self._known(path_of(scope)) is not None or (
            "app_root_path" in scope and self._known(path_below(scope, scope["root_path"])) is not None
        )

    def route_of(self, scope: Mapping[str, Any]) -> str:
        """The template a request is labelled with, never a raw path: what a client invents is "unmatched".

        Only complete once the app's router has seen the scope.
        """
        route = scope.get("route")
        template = getattr(route, "path", None)
        if isinstance(template, str) and template == scope["path"]:
            return template  # the usual case: nothing to put together
        path = path_of(scope)
        if isinstance(template, str):
            within = hasattr(route, "endpoint")  # a mount has none: what follows it in the path is the client's
            return _prefixed(template, scope) if within and template != path else template
        if "endpoint" in scope and "app_root_path" not in scope:  # matched by a router that does not give its route
            return _with_names(path, scope.get("path_params") or {}) or UNMATCHED
        return self._known(path) or UNMATCHED

    def _log_unreadable(self) -> None:
        if not self._logged:
            self._logged = True
            logging.getLogger("tailwatch").warning(
                "a route that streams is in no route table that can be read: install(app, routes=[...]) names it"
            )

    def _known(self, path: str) -> str | None:
        path = path.rstrip("/") or path
        if path in self._exact:
            return path
        if path.endswith(_SUFFIXES):
            return next(suffix for suffix in _SUFFIXES if path.endswith(suffix))
        for template, pattern in self._templates.items():
            if pattern.fullmatch(path):
                return template
        return None


def path_of(scope: Mapping[str, Any]) -> str:
    """The path as the whole app's routes see it: without the root path that the server or a proxy put before it."""
    return path_below(scope, scope.get("app_root_path", scope.get("root_path", "")))


def path_below(scope: Mapping[str, Any], root: str) -> str:
    """The path without a root before it, where it begins with that."""
    path: str = scope["path"]
    if root and path.startswith(root):
        rest = path[len(root) :]
        if not rest or rest[0] == "/":
            return rest or "/"
    return path


def expression(template: str) -> re.Pattern[str]:
    """Matches the paths of a template: `{name}` is one segment, or a part of one, `{name:path}` is anything."""
    parts, end = [], 0
    for parameter in _PARAMETER.finditer(template):
        parts.append(re.escape(template[end : parameter.start()]))
        parts.append(".*" if parameter.group(2) == "path" else "[^/]+")
        end = parameter.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts), re.DOTALL)


def _check(pattern: str) -> None:
    rest = _PARAMETER.sub("", pattern)
    if not pattern.startswith("/") or "{" in rest or "}" in rest:
        raise OptionError.of("routes", pattern, 'expected a path such as "/chat" or "/chat/{user}"')


def _prefixed(route: str, scope: Mapping[str, Any]) -> str:
    """A route's path is relative to the mounts and the included routers it stands in: put those before it."""
    params = dict(scope.get("path_params") or {})
    own = _PARAMETER.sub(lambda parameter: str(params.pop(parameter[1], "")), route)
    mounts = scope.get("root_path", "")[len(scope["app_root_path"]) :] if "app_root_path" in scope else ""
    below = path_below(scope, scope.get("root_path", ""))
    routers = below[: -len(own)] if own and below.endswith(own) else ""
    return (_with_names(mounts + routers, params) or "") + route


def _with_names(path: str, params: Mapping[str, Any]) -> str | None:
    """The path with {name} for each parameter's value; None when a value is not found in it."""
    for name, value in params.items():
        before, found, after = f"{path}/".partition(f"/{value}/")
        if not found:
            return None
        path = f"{before}/{{{name}}}/{after}"[:-1]
    return path


_known_routes = Routes()


def route_of(scope: Mapping[str, Any]) -> str:
    """Routes.route_of, by the known generation routes alone."""
    return _known_routes.route_of(scope)
