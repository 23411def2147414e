"""Chromium without a window, driven through its debugging protocol over a pipe."""

import base64
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

WAIT_S = 60


def wait_for(what, condition):
    """Calls condition until it returns something true, and returns that."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("not within {} s: {}".format(WAIT_S, what))
        time.sleep(0.05)


class Browser:
    """One browser with one page. `problems` has every error of the page: exceptions, errors on the
    console, answers that could not be loaded, and violations of its Content-Security-Policy."""

    def __init__(self, width=1200, height=900):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="browser-test-"))
        commands_read, self.commands = os.pipe()
        self.answers, answers_write = os.pipe()

        def move_pipes():
            # The browser reads from descriptor 3 and writes to 4. Neither dup2 may overwrite the
            # other's source.
            read, write = os.dup(commands_read), os.dup(answers_write)
            read, write = os.dup2(read, 103), os.dup2(write, 104)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.log = open(self.folder / "log", "wb")
        # Tests may run as root and in containers, where the browser's own sandbox does not work. It
        # loads nothing but the page under test.
        self.process = subprocess.Popen(
            [
                "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
                "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe", "--lang=en",
                "--user-data-dir={}".format(self.folder / "profile"),
                "--window-size={},{}".format(width, height), "about:blank"
            ], stdout=self.log, stderr=self.log, preexec_fn=move_pipes, close_fds=False)
        os.close(commands_read)
        os.close(answers_write)
        self.ids = itertools.count(1)
        self.unread = b""
        self.problems = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(domain + ".enable")

    def read_message(self):
        while b"\0" not in self.unread:
            if not select.select([self.answers], [], [], WAIT_S)[0]:
                raise AssertionError("the browser does not answer")
            data = os.read(self.answers, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended:\n" + self.read_log())
            self.unread += data
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def read_log(self):
        return (self.folder / "log").read_text(errors="replace")

    def call(self, method, **params):
        """Calls a method of the protocol and returns its result."""
        number = next(self.ids)
        message = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read_message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError("{}: {}".format(method, answer["error"]))
                return answer["result"]
            self.note(answer)

    def note(self, event):
        params = event.get("params", {})
        method = event.get("method")
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", {}).get(
                "description", params["exceptionDetails"]["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append("{} {}".format(params["entry"]["text"], params["entry"].get("url")))

    def open(self, url):
        self.call("Page.navigate", url=url)
        wait_for("the page is loaded", lambda: self.run("document.readyState === 'complete'"))

    def run(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError("{}: {}".format(expression, answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self, selector):
        return self.run("document.querySelector({}).textContent".format(json.dumps(selector)))

    def table(self, name):
        """The texts of a table's cells, by row."""
        return self.run("[...document.querySelectorAll('#{} tbody tr')]"
                        ".map(row => [...row.cells].map(cell => cell.textContent))".format(name))

    def press(self, key, **more):
        for kind in ("keyDown" if "text" in more else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def screenshot(self, path, **options):
        data = self.call("Page.captureScreenshot", format="png", **options)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
