"""A real browser without a screen: Debian's Chromium, driven over its DevTools protocol.

Strategy: one WebSocket to one tab; a command is sent and its answer waited for, events are passed over. What a page shows is asked
for in its own words, by JavaScript.
Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from websockets.sync.client import ClientConnection, connect

from cdc.devstack.process import start
from tests.waiting import wait_for

STARTED_WITHIN_S = 60.0
"""Its first start on a busy machine."""


class Size(NamedTuple):
    """A window, in CSS pixels; a small one is a phone's, with finer dots and fingers."""

    width: int
    height: int

    @property
    def phone(self) -> bool:
        """Whether it is one."""
        return self.width < 600


PHONE, DESKTOP = Size(390, 844), Size(1280, 900)


class Browser:
    """One tab of one browser, in a folder of its own; dies with us."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._folder = folder
        self._process = start(
            [
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
                *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions"),
                *("--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", "about:blank"),
            ],
            folder / "browser.log",
            dies_with_us=True,
        )
        port = wait_for(self._port, STARTED_WITHIN_S, "the browser listens")
        address = f"http://127.0.0.1:{port}/json/list"
        tab = wait_for(lambda: _tab(address), STARTED_WITHIN_S, "the browser has a tab")
        self._connected = ExitStack()
        self._socket: ClientConnection = self._connected.enter_context(connect(tab, max_size=None, open_timeout=STARTED_WITHIN_S))
        self._number = 0
        self.do("Page.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connected.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _port(self) -> str:
        file = self._folder / "profile" / "DevToolsActivePort"
        assert self._process.poll() is None, (self._folder / "browser.log").read_text()
        return file.read_text().splitlines()[0] if file.exists() and file.read_text() else ""

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
        """Run a command of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(60))
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def look(self, size: Size, scheme: Literal["light", "dark"] = "light", *, scripts: bool = True) -> None:
        """Take on a window's size and a colour scheme; with or without JavaScript."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=size.width,
            height=size.height,
            deviceScaleFactor=2 if size.phone else 1,
            mobile=size.phone,
        )
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.do("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        assert "errorText" not in self.do("Page.navigate", url=url)
        wait_for(lambda: self.ask("document.readyState") == "complete" and self.ask("location.href") == url, 30, f"{url} is there")

    def ask(self, script: str) -> Any:  # noqa: ANN401 - any JSON
        """Return what an expression is worth in the page."""
        answer = self.do("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element as it is shown; empty when there is none."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def picture(self, file: Path, height: int) -> None:
        """Write the page as a PNG, from its top down to `height` CSS pixels, or to its end."""
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height, size["height"]), "scale": 1}
        taken = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(taken["data"]))


def _tab(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
    return str(tabs[0]["webSocketDebuggerUrl"]) if tabs else ""
