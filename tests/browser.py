"""A real browser without a window, driven over its debugging pipe: no package, no port, no network.

The protocol is that of https://chromedevtools.github.io/devtools-protocol: JSON messages that end with a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from select import select
from typing import Any

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The program, also where LAMINA_CHROMIUM names it."""
    return os.environ.get("LAMINA_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium that draws in software."""

    def __init__(self, program: str, width: int = 900, height: int = 640):
        self.size = width, height
        self.folder = tempfile.TemporaryDirectory(prefix="lamina-browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Above 4, so that the two numbers that the browser wants are free.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write)]

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = [
            "--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
            "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--force-device-scale-factor=1",
            "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [program, *options, "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (to_read, to_write, *ends):
            os.close(end)
        self._buffer = b""
        self._count = 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, timeout: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """Send a message and wait for its answer; events on the way are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._notice(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._buffer += more
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _notice(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(given["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])

    def open(self, path: Path) -> float:
        """Show a file; the seconds until the viewer in it had drawn."""
        self.requests.clear()
        self.problems.clear()
        start = time.perf_counter()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("window.lamina && window.lamina.frames > 0 && document.readyState === 'complete'")
        self.shot()  # what is drawn has been seen, too
        return time.perf_counter() - start

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def wait(self, condition: str, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not self.js(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never came true: {condition}; {self.problems}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Until what was asked for has been drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def shot(self) -> np.ndarray:
        """The page as pixels (height, width, 3)."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(int)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str, code: str = "") -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)

    def close(self) -> None:
        try:
            self.session = None
            self.call("Browser.close", timeout=5)
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        for end in (self._read, self._write):
            os.close(end)
        self.folder.cleanup()
