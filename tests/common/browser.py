"""Drives headless Chromium with the DevTools protocol over a pipe, without a driver, a package or a port."""

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
           "--disable-extensions", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
           "--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND", "--force-color-profile=srgb")


def find():
    """Returns the browser's path, or None. Ubuntu's package of this name installs a snap, which is not used."""
    for name in NAMES:
        path = shutil.which(name)
        if path and b"snap" not in open(path, "rb").read(4096):
            return path
    return None


class Browser:
    """Runs one browser with one tab. `errors` are its messages since the last open(), `requests` its requests."""

    def __init__(self, path):
        self.folder = tempfile.mkdtemp(prefix="tessera-browser-")
        to_read, self.to = os.pipe()
        self.come, to_write = os.pipe()
        log = os.path.join(self.folder, "log")
        self.pid = os.posix_spawn(
            path, [path, *OPTIONS, f"--user-data-dir={self.folder}/profile", "about:blank"], dict(os.environ, HOME=self.folder),
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2),
                          # By way of high numbers: either end may be 3 or 4 itself.
                          (os.POSIX_SPAWN_DUP2, to_read, 103), (os.POSIX_SPAWN_DUP2, to_write, 104),
                          (os.POSIX_SPAWN_DUP2, 103, 3), (os.POSIX_SPAWN_DUP2, 104, 4)], setsid=True)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session = b"", 0, None
        self.errors, self.requests = [], []
        (tab,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self.to)
        os.close(self.come)
        try:
            os.killpg(self.pid, signal.SIGKILL)  # the group that setsid made: the browser's own processes
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the protocol ----

    def receive(self, seconds):
        """Returns the next message, or None."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.come], [], [], left)[0]:
                return None
            more = os.read(self.come, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended: " + open(os.path.join(self.folder, "log")).read()[-2000:])
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(message)
        self.note(message)
        return message

    def note(self, message):
        what, said = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"].get("exception", {}).get("description") or str(said))
        elif what == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(said["entry"]["text"])
        elif what == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(str(said["args"]))
        elif what == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def call(self, method, seconds=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(seconds)
            if answer is None:
                raise TimeoutError(f"{method}: no answer in {seconds} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    # ---- what tests do ----

    def open(self, path, width=1280, height=900, dark=False, scale=1, touch=False):
        """Opens a file, waits until its scripts have run, and returns the seconds."""
        self.errors.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        started = time.monotonic()
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        while not self.js("document.documentElement?.dataset.ready || ''"):
            if self.errors or time.monotonic() - started > 60:
                raise RuntimeError(f"{path} did not become ready: {self.errors}")
            time.sleep(0.02)
        return time.monotonic() - started

    def js(self, expression):
        """Returns the awaited value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def key(self, key, code=None, modifiers=0):
        codes = {"Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "PageDown": 34, "PageUp": 33, "Home": 36, "End": 35, "Tab": 9, "Escape": 27}
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=codes[key], modifiers=modifiers,
                      **({"text": "\r"} if kind == "char" else {}))

    def settle(self):
        """Waits until all drawing has finished."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def screenshot(self, whole=False):
        """Returns a PNG of the visible part of the page, or of the whole page."""
        self.settle()
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
