#!/usr/bin/env python3
"""The console at http://METRICS_ADDRESS/ in a real browser: it shows what the daemon reports, text is
only text, it stays usable with 10,000 operators, by keyboard and with a screen reader, and it shows
nothing that the services hide from a caller without the role admin."""

import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).absolute().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "console")]
import browser as browsers  # pylint: disable=wrong-import-position
import daemon as daemons  # pylint: disable=wrong-import-position
import unittest_main  # pylint: disable=wrong-import-position
from browser import wait_for  # pylint: disable=wrong-import-position

PAGE = ROOT / "server/console/page"
# The example of the documentation, and values for its inputs.
EXAMPLE = re.search(r"```json feature.json\n(.*?)```", (ROOT / "docs/graphs.md").read_text(),
                    re.DOTALL).group(1)
INPUTS = ("x=1,2,3,4,-1,2,-3,4", "w=1,1,1,1")
PATHS = ("status", "history", "operators", "events", "graphs", "traces")


def get(address, path, **headers):
    """Returns the status, the headers and the text of an answer."""
    request = urllib.request.Request("http://{}{}".format(address, path), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def plain(message):
    """A message of /api as `residentctl --json` prints it: numbers, and short names of states."""
    if isinstance(message, dict):
        return {key: plain(value) for key, value in message.items()}
    if isinstance(message, list):
        return [plain(value) for value in message]
    if isinstance(message, str) and message.isdigit():
        return int(message)
    if isinstance(message, str) and message.startswith("STATE_"):
        return message[len("STATE_"):].lower()
    return message


class Stub:
    """Serves the files of the page, and answers to /api that a test gives: with more operators and
    other names than a daemon accepts."""

    def __init__(self, answers):
        files = {"/": ("console.html", "text/html"), "/console.css": ("console.css", "text/css"),
                 "/console.js": ("console.js", "text/javascript"),
                 "/icon.svg": ("icon.svg", "image/svg+xml")}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                name, kind = files.get(self.path, (None, "application/json"))
                body = (PAGE / name).read_bytes() if name else json.dumps(
                    answers[self.path[len("/api/"):]]).encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = "127.0.0.1:{}".format(self.server.server_port)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def answers_with(operators):
    device = {"device": 0, "name": "cpu", "engine": "cpu", "state": "STATE_RESIDENT", "detail": "",
              "queued_tasks": "0", "completed_tasks": "12", "memory_used_bytes": "0",
              "memory_total_bytes": "1024", "buffers": "0", "generation": "1", "restarts": "0",
              "ring": {"slots": 8, "in_flight": 0}}
    return {
        "status": {"version": "1", "pid": "7", "uptime_ms": "1000", "devices": [device],
                   "clients": []},
        "history": {"interval_s": 2, "tasks": [1, 2], "received_bytes": [0, 0],
                    "sent_bytes": [0, 0], "busy": [[0.25, 0.5]]},
        "operators": {"operators": operators},
        "events": {"events": []},
        "graphs": {"graphs": []},
        "traces": {"traces": []},
    }


def operator(name, summary="out = x", **fields):
    return {"name": name, "summary": summary, "active_version": 1, "versions": [
        {"version": 1, "state": "ACTIVE", "tasks": "3", "failed_tasks": "0", **fields}]}


class PageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.browser = browsers.Browser()
        cls.addClassCleanup(cls.browser.stop)

    def setUp(self):
        self.browser.problems.clear()

    def start(self, *flags):
        daemon = daemons.Daemon(*flags)
        self.addCleanup(daemon.stop)
        return daemon

    def stub(self, operators):
        stub = Stub(answers_with(operators))
        self.addCleanup(stub.stop)
        return stub

    def open(self, address):
        # Before the daemon ends, so that the page does not look for it.
        self.addCleanup(self.browser.open, "about:blank")
        self.browser.open("http://{}/".format(address))
        wait_for("the page has read everything",
                 lambda: self.browser.text("#connection") == "Connected")

    def expect_no_problem(self):
        self.browser.run("1")  # Events before this answer have been read.
        self.assertEqual(self.browser.problems, [])

    def test_values_equal_those_of_status(self):
        daemon = self.start()
        self.open(daemon.metrics_address)

        def status():
            return daemon.ctl("status", "--json").json

        def api():
            return json.loads(get(daemon.metrics_address, "/api/status")[2])

        def clients(of):
            return [client["id"] for client in of["clients"]]

        with subprocess.Popen([str(daemons.RESIDENTCTL), "bench", "--server=" + daemon.address],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load:
            try:
                wait_for("a client works", lambda: status()["clients"] and
                         status()["devices"][0]["completed_tasks"] > 1000)
                # An answer is at most half a second old, and never from the future.
                page, after = api(), status()
                self.assertGreater(int(page["devices"][0]["completed_tasks"]), 0)
                self.assertLessEqual(int(page["devices"][0]["completed_tasks"]),
                                     after["devices"][0]["completed_tasks"])
                wait_for("the same clients", lambda: clients(api()) == clients(status()) != [])
                wait_for("the page shows the client", lambda: set(clients(status())) &
                         {row[0] for row in self.browser.table("client-table")})
                wait_for("the page shows that the device is busy", lambda: (
                    self.browser.table("device-table")[0][3] not in ("–", "0.0 %")))
                wait_for("the chart has a peak", lambda: not self.browser.text(
                    "#tasks-text").endswith("at most 0"))
            finally:
                load.terminate()
        wait_for("the tasks have ended", lambda: status()["devices"][0]["queued_tasks"] == 0 and
                 not status()["clients"])
        expected = status()
        wait_for("the page's answer is new", lambda: not api()["clients"])
        read = plain(api())
        for key in ("version", "pid", "draining", "devices", "clients"):
            self.assertEqual(read[key], expected[key], key)
        device = expected["devices"][0]
        shown = wait_for("the page shows it", lambda: next(
            (row for row in self.browser.table("device-table")
             if row[6] == "{:,}".format(device["completed_tasks"])), None))
        self.assertEqual(shown[0], str(device["device"]))
        self.assertEqual(shown[1], "{} ({})".format(device["name"], device["engine"]))
        self.assertEqual(shown[2], device["state"].replace("_", " "))
        self.assertEqual(shown[4], "{:,}".format(device["queued_tasks"]))
        self.assertEqual(shown[8], "{:,}".format(device["buffers"]))
        self.assertEqual(shown[10], "{:,}".format(device["restarts"]))
        self.assertIn("process {}".format(expected["pid"]), self.browser.text("#facts"))
        self.expect_no_problem()

    def test_operators_and_events_are_those_of_the_daemon(self):
        daemon = self.start()
        self.assertEqual(daemon.ctl("ops", "install", "swish", "--expr", "x * sigmoid(x)",
                                    "--wait=active").code, 0)
        for _ in range(3):
            self.assertEqual(daemon.ctl("run", "swish", "x=1,2").code, 0)
        self.open(daemon.metrics_address)
        wait_for("all tasks are shown", lambda: ["swish", "1", "100 %", "3", "0"] in
                 [[row[0], row[2], row[4], row[5], row[6]]
                  for row in self.show_operators("swish")])
        events = wait_for("the events are shown", lambda: [
            row for row in self.browser.table("event-table") if row[2:3] == ["swish"]])
        self.assertEqual([row[1] for row in events], ["activated", "installed"])
        self.expect_no_problem()

    def show_operators(self, name):
        self.browser.run("document.getElementById('filter').value = {}; document.getElementById("
                         "'filter').dispatchEvent(new Event('input'))".format(json.dumps(name)))
        return self.browser.table("operator-table")

    def test_text_of_others_is_only_text(self):
        hostile = "<script>document.title = 'run'</script>"
        image = "<img src=x onerror=\"document.title = 'run'\">"
        stub = self.stub([operator(hostile, summary=image, quarantine_reason=image)])
        self.open(stub.address)
        row = self.browser.table("operator-table")[0]
        self.assertEqual(row[:2], [hostile, image])
        self.assertIn(image, row[3])
        self.assertEqual(self.browser.run("document.title"), "residentd")
        self.assertEqual(self.browser.run("document.querySelectorAll('main script, td img').length"), 0)
        self.expect_no_problem()

    def test_ten_thousand_operators_do_not_freeze_it(self):
        stub = self.stub([operator("operator_{:05}".format(i)) for i in range(10_000)])
        # From the first moment on: the longest time in which the page did nothing else.
        self.browser.call("Page.addScriptToEvaluateOnNewDocument", source="""
            window.longest = 0;
            let last = performance.now();
            setInterval(() => {
              const now = performance.now();
              window.longest = Math.max(window.longest, now - last);
              last = now;
            }, 10);""")
        self.open(stub.address)
        wait_for("the operators are shown",
                 lambda: self.browser.text("#operator-count") == "100 of 10,000 operators")
        self.assertEqual(len(self.browser.table("operator-table")), 100)
        began = time.monotonic()
        self.assertEqual([row[0] for row in self.show_operators("_09999")], ["operator_09999"])
        self.show_operators("operator")
        self.browser.run("document.getElementById('more').click()")
        self.assertEqual(len(self.browser.table("operator-table")), 200)
        self.assertLess(time.monotonic() - began, 5)
        self.assertLess(self.browser.run("window.longest"), 2000)
        self.expect_no_problem()

    def test_keyboard_and_screen_reader(self):
        stub = self.stub([operator("op_{:03}".format(i)) for i in range(150)])
        self.open(stub.address)
        wait_for("the operators are shown", lambda: len(self.browser.table("operator-table")) == 100)
        reached = []
        for _ in range(16):
            self.browser.press("Tab", windowsVirtualKeyCode=9)
            reached.append(self.browser.run(
                "document.activeElement.id || document.activeElement.className || "
                "document.activeElement.getAttribute('aria-labelledby')"))
        for control in ("skip", "filter", "used", "more"):
            self.assertIn(control, reached)
        # The focus survives the next rounds of reading.
        self.browser.run("document.getElementById('more').focus()")
        rounds = self.browser.run("round")
        wait_for("another round", lambda: self.browser.run("round") > rounds)
        self.assertEqual(self.browser.run("document.activeElement.id"), "more")
        self.browser.press("Enter", windowsVirtualKeyCode=13, text="\r")
        wait_for("more operators", lambda: len(self.browser.table("operator-table")) == 150)
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        seen = {(node["role"]["value"], node.get("name", {}).get("value", ""))
                for node in nodes if not node["ignored"] and "role" in node}
        for role, name in (("heading", "Devices"), ("heading", "Operators"), ("region", "Clients"),
                           ("columnheader", "State"), ("rowheader", "op_007"),
                           ("searchbox", "Filter by name"), ("main", "")):
            self.assertIn((role, name), seen)
        self.assertTrue([name for role, name in seen
                         if role in ("image", "img") and name.startswith("Tasks per second: ")], seen)
        for role, name in seen:
            self.assertFalse(role in ("button", "link", "checkbox") and not name, (role, name))
        self.assertEqual(self.browser.run("document.documentElement.lang"), "en")
        self.expect_no_problem()

    def test_dark_and_light(self):
        stub = self.stub([operator("add")])
        self.open(stub.address)
        contrasts = """(() => {
          const light = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
            const c = part / 255;
            return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
          }).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const page = light(getComputedStyle(document.body).backgroundColor);
          return ['body', '#facts', 'a[href="/metrics"]', 'td.good'].map((name) => {
            const text = light(getComputedStyle(document.querySelector(name)).color);
            return (Math.max(page, text) + 0.05) / (Math.min(page, text) + 0.05);
          });
        })()"""
        pages = []
        for scheme in ("light", "dark"):
            self.browser.call("Emulation.setEmulatedMedia",
                              features=[{"name": "prefers-color-scheme", "value": scheme}])
            pages.append(self.browser.run("getComputedStyle(document.body).backgroundColor"))
            for contrast in self.browser.run(contrasts):
                self.assertGreater(contrast, 4.5, scheme)  # WCAG 2.1, AA.
        self.assertNotEqual(*pages)
        self.expect_no_problem()

    def test_a_graph_is_drawn(self):
        daemon = self.start()
        graph = daemon.folder / "graph.json"
        graph.write_text(EXAMPLE)
        loaded = daemon.ctl("graph", "load", str(graph), "--json")
        self.assertEqual(loaded.code, 0, loaded)
        self.open(daemon.metrics_address)
        wait_for("the graph is shown", lambda: self.browser.run(
            "document.querySelector('#graph-table button') !== null"))
        self.browser.run("document.querySelector('#graph-table button').click()")
        wait_for("the drawing is there", lambda: self.browser.run(
            "document.getElementById('drawing-picture').naturalWidth") > 0)
        self.assertEqual(self.browser.run("document.activeElement.id"), "drawing-text")
        # A traced run: the daemon keeps it, and the page shows its nodes.
        traced = daemon.ctl("graph", "trace", str(graph), *INPUTS)
        self.assertEqual(traced.code, 0, traced)
        wait_for("the trace is shown", lambda: self.browser.run(
            "document.querySelector('#trace-table button') !== null"))
        self.browser.run("document.querySelector('#trace-table button').click()")
        self.assertEqual(sorted({row[0] for row in self.browser.table("node-table")}),
                         sorted(node["name"] for node in json.loads(EXAMPLE)["nodes"]))
        self.assertGreaterEqual(self.browser.run(
            "document.querySelectorAll('#trace-picture rect').length"), 5)
        self.assertEqual(self.browser.run("document.activeElement.id"), "trace-text")
        status, headers, _ = get(daemon.metrics_address, "/api/drawing?id=nothing")
        self.assertEqual(status, 404)
        self.assertIn("sandbox", headers["Content-Security-Policy"])
        self.assertEqual(get(daemon.metrics_address, "/api/drawing")[0], 400)
        self.expect_no_problem()

    def test_access(self):
        daemon = self.start()
        status, headers, _ = get(daemon.metrics_address, "/")
        self.assertEqual(status, 200)
        policy = headers["Content-Security-Policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
            self.assertIn(rule, policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        for path in ("/", "/console.js") + tuple("/api/" + name for name in PATHS):
            self.assertEqual(get(daemon.metrics_address, path)[0], 200, path)
            # The same rule as for /metrics: a name that is not served is refused.
            self.assertEqual(get(daemon.metrics_address, path, Host="evil.example")[0], 403, path)
        self.assertEqual(get(daemon.metrics_address, "/nothing")[0], 404)
        off = self.start("--console=false")
        for path in ("/", "/console.js") + tuple("/api/" + name for name in PATHS):
            self.assertEqual(get(off.metrics_address, path)[0], 404, path)
        self.assertEqual(get(off.metrics_address, "/metrics")[0], 200)

    def test_it_hides_what_the_services_hide_where_callers_have_identities(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-console-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        made = subprocess.run(
            [str(daemons.RESIDENTCTL), "token", "new", "alice", "--out", str(folder / "token")],
            check=True, capture_output=True, text=True)
        (folder / "tokens").write_text(made.stdout.rpartition(":")[2].strip() + "\n")
        (folder / "policy").write_text(json.dumps({"identities": {
            "alice": {"roles": ["submit", "install", "admin"]}}}))
        for file in folder.iterdir():
            file.chmod(0o600)
        daemon = self.start("--policy={}".format(folder / "policy"),
                            "--token_file={}".format(folder / "tokens"))
        as_alice = {"RESIDENTD_TOKEN_FILE": str(folder / "token")}
        installed = daemon.ctl("ops", "install", "secret_rule", "--expr", "x * 2", "--wait=active",
                               env=as_alice)
        self.assertEqual(installed.code, 0, installed)
        self.assertEqual(daemon.ctl("run", "secret_rule", "x=1", env=as_alice).code, 0)
        graph = folder / "graph.json"
        graph.write_text(EXAMPLE)
        loaded = daemon.ctl("graph", "load", str(graph), "--json", env=as_alice)
        self.assertEqual(loaded.code, 0, loaded)
        # An admin sees all of it.
        self.assertIn("alice", daemon.ctl("ops", "audit", env=as_alice).out)
        read = {name: json.loads(get(daemon.metrics_address, "/api/" + name)[2]) for name in PATHS}
        self.assertNotIn("alice", json.dumps(read))
        self.assertEqual(read["status"]["clients"], [])
        for event in read["events"]["events"]:
            for key in ("actor", "content_hash", "message"):
                self.assertEqual(event[key], "", event)
        self.assertIn("secret_rule", [event["operator"] for event in read["events"]["events"]])
        rule = next(one for one in read["operators"]["operators"] if one["name"] == "secret_rule")
        for key in ("content_hash", "installed_by", "quarantine_reason"):
            self.assertEqual(rule["versions"][0][key], "")
        self.assertEqual([one["holders"] for one in read["graphs"]["graphs"]], [[]])
        self.assertEqual(daemon.ctl("graph", "trace", str(graph), *INPUTS, env=as_alice).code, 0)
        self.assertEqual(json.loads(get(daemon.metrics_address, "/api/traces")[2]), {"traces": []})
        drawing = get(daemon.metrics_address,
                      "/api/drawing?id=" + read["graphs"]["graphs"][0]["graph_id"])
        self.assertEqual(drawing[0], 403)
        self.assertNotIn("svg", drawing[2])
        self.open(daemon.metrics_address)
        self.assertNotIn("alice", self.browser.text("body"))
        self.expect_no_problem()


if __name__ == "__main__":
    unittest_main.main()
