"""A metrics endpoint on a port of its own, for processes without an app."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tailwatch.serve.page_access import access

if TYPE_CHECKING:
    from tailwatch.export.page import Page, Reply
    from tailwatch.export.prometheus.exposition import Response

Respond = Callable[[str, str], "Response"]
"""Accept and Accept-Encoding in, what to send out."""

_PATHS = ("/", "/metrics")
_PAGE, _DATA = "/tailwatch", "/tailwatch/data"
_IDLE_SECONDS = 10


class MetricsServer:
    """A running endpoint; call it to stop it. `port` is the one it listens on (of use where 0 was asked for)."""

    def __init__(
        self, respond: Respond, port: int, host: str, on_error: Callable[[], object], page: Page | None = None
    ) -> None:
        self._server = _Server((host, port), respond, on_error, page)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="tailwatch-metrics", daemon=True)
        self._thread.start()

    def __call__(self) -> None:
        """Stop listening and end the thread; at most a second. A second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def after_fork(self) -> None:
        """In a fork child: let go of the parent's listening socket. The thread stayed with the parent."""
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], respond: Respond, on_error: Callable[[], object], page: Page | None
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.respond = respond
        self.on_error = on_error
        self.page = page
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of our own name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is no news; what goes wrong inside is counted where it happens."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _IDLE_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path, _, query = self.path.partition("?")
        token = self.server.page.token() if self.server.page and path in (_PAGE, _DATA) else None
        if path not in _PATHS and token is None:
            self.send_error(404)
            return
        try:
            response = self._metrics() if token is None else self._page(path == _DATA, token, query)
        except Exception:
            self.server.on_error()
            self.send_error(500)
            return
        self._send(response, body)

    def _metrics(self) -> Response:
        return self.server.respond(self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", ""))

    def _page(self, data: bool, token: str, query: str) -> Reply:
        assert self.server.page is not None
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        found = access(token, self.client_address[0], self.request_version.partition("/")[2], headers)
        return self.server.page.reply(data, found, query, self.headers.get("Accept-Encoding", ""))

    def _send(self, response: Response | Reply, body: bool) -> None:
        self.send_response(getattr(response, "status", 200))
        for name, value in response.headers:
            self.send_header(name, value)
        self.end_headers()
        for part in response.parts if body else ():
            self.wfile.write(part)

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""
