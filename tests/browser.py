"""A headless Chromium, driven over a pipe by its DevTools protocol: as much of it as the tests of the pages need."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Enter": (13, "\r"), " ": (32, " "), "Tab": (9, "")}


def browser_path():
    """Return the path of a browser, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A browser with one page; what the page logs, throws and asks the network for is kept."""

    def __init__(self, profile):
        to_browser, own_out = os.pipe()
        own_in, from_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4
        shell = 'exec "$0" "$@" 3<&"$IN" 4>&"$OUT"'
        command = [
            browser_path(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", shell, *command],
            env={**os.environ, "IN": str(to_browser), "OUT": str(from_browser), "LC_ALL": "C.UTF-8"},
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.inward, self.buffer = own_out, own_in, b""
        self.numbers = itertools.count(1)
        self.events, self.session = [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """Send a command and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(60)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inward], [], [], max(end - time.monotonic(), 0))
            data = os.read(self.inward, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, address, width=1280, height=900):
        """Load a page and wait until its script has run."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.events.clear()
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && 'ready' in document.documentElement.dataset")

    def run(self, expression):
        """Return the value of a JavaScript expression."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def until(self, expression, seconds=20):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def press(self, key):
        """Press and let go of a key."""
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=code,
            )

    def type(self, text):
        """Type text into what has the focus."""
        self.send("Input.insertText", text=text)

    def complaints(self):
        """Return errors and warnings of the console, exceptions and dialogs since the page was opened."""
        self.run("1")  # what was said before has arrived then
        found = []
        for event in self.events:
            told = event["params"]
            if (
                event["method"] in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Network.loadingFailed")
                or (event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"))
                or (event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"))
            ):
                found.append(json.dumps(told))
        return found

    def requests(self):
        """Return the addresses asked for since the page was opened, without pictures inside the page."""
        asked = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith("data:")]

    def pdf(self, path):
        """Print to a file."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", preferCSSPageSize=True)["data"]))

    def close(self):
        """End the browser and all that it has started."""
        for descriptor in (self.out, self.inward):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
