"""A headless Chromium, driven over its DevTools protocol: enough to open a page, touch it, and read its errors."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import ClientConnection, connect

from .waiting import until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_SECONDS = 30


def found() -> str | None:
    """The browser that is here."""
    return next((place for name in NAMES if (place := shutil.which(name))), None)


@contextmanager
def browser(place: str, profile: Path) -> Iterator[Browser]:
    """One, until the block ends."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"]
    command = [place, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    home = {**os.environ, "HOME": str(profile)}
    process = subprocess.Popen(command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        where = profile / "DevToolsActivePort"

        def address() -> list[str]:
            assert process.poll() is None, "the browser has ended"
            return where.read_text().split("\n")[:2] if where.exists() and "\n" in where.read_text() else []

        port, path = until(address, "the browser's address")
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=DEADLINE_SECONDS) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DEADLINE_SECONDS)
        until(lambda: not _kill(profile), "the browser's end")
        process.wait()


def _kill(home: Path) -> list[int]:
    """The processes that it has killed: those with this home. What handles crashes is no child of the browser."""
    processes = psutil.process_iter(["environ"])
    killed = [one.pid for one in processes if (one.info["environ"] or {}).get("HOME") == str(home)]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return killed


class Browser:
    """What answers on the connection; pages share it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command, and its result; what happens meanwhile is kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self._connection.send(json.dumps(message))
        while True:
            reply = json.loads(self._connection.recv(timeout=DEADLINE_SECONDS))
            if reply.get("id") == number:
                assert "error" not in reply, (method, reply)
                result: dict[str, Any] = reply["result"]
                return result
            self.events.append(reply)

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False, speed: float = 1) -> Tab:
        """A page in a profile of its own, of this size, on a system of these colours; its timers so much faster."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        hastened = f"(original => window.setTimeout = (f, ms) => original(f, ms / {speed}))(window.setTimeout)"
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=hastened)
        tab.go(url)
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to this page."""
        return self._browser.call(method, self._session, **parameters)

    def go(self, url: str) -> None:
        """To an address."""
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of an expression, once it is true; what it throws while the page is being made is not yet true."""

        def look() -> Any:
            if not (found := self.ask(f"(() => {{ try {{ return {expression} }} catch {{ return false }} }})()")):
                time.sleep(0.02)  # the browser has work to do
            return found

        return until(look, expression)

    def click(self, selector: str) -> None:
        """With a mouse, in the middle of what is there."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{place}.scrollIntoView({{block: 'center'}})")
        box = self.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({place}.getBoundingClientRect())")
        self.mouse("mouseMoved", *box)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, *box, button="left", clickCount=1)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name: str, code: int) -> None:
        """A key without a letter, pressed and released."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def write(self, text: str) -> None:
        """Letters, into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self) -> bytes:
        """All of the page, PNG."""
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(reply["data"])

    def happened(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all events of a kind so far."""
        self.ask("0")
        events = [one for one in self._browser.events if one.get("sessionId") == self._session]
        return [one["params"] for one in events if one["method"] == method]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and what a policy has refused."""
        consoles = self.happened("Runtime.consoleAPICalled")
        reply = [str(one["args"]) for one in consoles if one["type"] in ("error", "warning", "assert")]
        reply += [str(one["exceptionDetails"]) for one in self.happened("Runtime.exceptionThrown")]
        entries = (one["entry"] for one in self.happened("Log.entryAdded"))
        return reply + [entry["text"] for entry in entries if entry["level"] in ("error", "warning")]

    def requests(self) -> list[dict[str, Any]]:
        """What was fetched."""
        return [one["request"] for one in self.happened("Network.requestWillBeSent")]
