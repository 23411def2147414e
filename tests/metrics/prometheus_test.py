#!/usr/bin/env python3
"""A real Prometheus server scrapes a real daemon, and the test reads what it recorded.

Also checks that the files deployed with the daemon (alert rules, dashboard, docs/operations.md)
only use metrics that exist.
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).absolute().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]
import daemon as daemons  # pylint: disable=wrong-import-position
import onnx_file  # pylint: disable=wrong-import-position
import unittest_main  # pylint: disable=wrong-import-position

WAIT_S = 60
RULES = [ROOT / "deploy/prometheus" / name
         for name in ("residentd.rules.yml", "residentd-fleet.rules.yml")]
DASHBOARDS = [ROOT / "deploy/grafana" / name for name in ("residentd.json", "residentd-fleet.json")]
METRIC = re.compile(r"\b(?:resident|process)_[a-z0-9_]+")


def wait_for(what, condition):
    """Calls condition until it returns something true, and returns that."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("not within {} s: {}".format(WAIT_S, what))
        time.sleep(0.1)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    """A Prometheus server that scrapes one target, with the rules of deploy/prometheus."""

    def __init__(self, target):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prometheus-test-"))
        for rules in RULES:
            shutil.copy(rules, self.folder)
        (self.folder / "prometheus.yml").write_text("""
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: ['*.rules.yml']
scrape_configs:
  - job_name: residentd
    static_configs: [{{targets: ["{}"]}}]
""".format(target))
        # Another program may take the port before Prometheus binds it. In that case we try
        # another port.
        for _ in range(5):
            self.url = "http://127.0.0.1:{}".format(free_port())
            self.log = open(self.folder / "log", "ab")
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    "--config.file=" + str(self.folder / "prometheus.yml"),
                    "--storage.tsdb.path=" + str(self.folder / "data"),
                    "--web.listen-address=" + self.url[len("http://"):],
                ], stdout=self.log, stderr=self.log)
            if wait_for("Prometheus is ready", lambda: self.ready() or self.process.poll()) is True:
                return
            self.log.close()
        text = (self.folder / "log").read_text(errors="replace")
        self.stop()
        raise RuntimeError("prometheus did not start:\n" + text)

    def ready(self):
        try:
            get(self.url + "/-/ready")
            return self.process.poll() is None
        except (urllib.error.URLError, OSError):
            return False

    def api(self, path, **arguments):
        """Returns the answer of the HTTP API. Raises AssertionError with its message on an error."""
        try:
            text = get("{}/api/v1/{}?{}".format(self.url, path, urllib.parse.urlencode(arguments)))
        except urllib.error.HTTPError as error:
            raise AssertionError("{}: {}".format(arguments, error.read().decode())) from error
        return json.loads(text)["data"]

    def series(self, expression):
        return self.api("query", query=expression)["result"]

    def value(self, expression):
        """Returns the value of an expression with one series, or None if there is no series."""
        series = self.series(expression)
        return float(series[0]["value"][1]) if series else None

    def await_value(self, expression):
        """Returns the value of an expression once it has one: after a scrape that failed, a series
        has no value until the next scrape."""
        values = []

        def has_value():
            values.append(self.value(expression))
            return values[-1] is not None

        wait_for("a value of " + expression, has_value)
        return values[-1]

    def is_above(self, expression, limit):
        value = self.value(expression)
        return value is not None and value > limit

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def dashboard_expressions():
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield panel["title"], target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield "$" + variable["name"], variable["query"]["query"]


def page_metrics(page):
    """Returns the families of a metrics page, and their names with those of histogram series."""
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    names = set(families)
    for name, kind in families.items():
        if kind == "histogram":
            names |= {name + "_bucket", name + "_sum", name + "_count"}
    return families, names


class MetricsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()
        cls.addClassCleanup(cls.daemon.stop)
        cls.prometheus = Prometheus(cls.daemon.metrics_address)
        cls.addClassCleanup(cls.prometheus.stop)
        wait_for("the daemon is scraped", lambda: cls.prometheus.value("up") == 1)

    def page(self):
        return get("http://{}/metrics".format(self.daemon.metrics_address))

    def device(self):
        return self.daemon.ctl("status", "--json").json["devices"][0]

    def bench(self):
        """Puts load on the daemon; returns its duration in seconds."""
        started = time.monotonic()
        result = self.daemon.ctl("bench", "--quick", "--json")
        self.assertEqual(result.code, 0, result)
        return time.monotonic() - started

    def test_every_task_is_counted(self):
        expression = 'resident_tasks_total{operator="add",status="ok"}'
        # The series exists from the first task on.
        self.assertEqual(self.daemon.ctl("run", "add", "x=1,2", "y=3,4").code, 0)
        before = self.prometheus.await_value(expression)
        for _ in range(7):
            result = self.daemon.ctl("run", "add", "x=1,2", "y=3,4")
            self.assertEqual(result.code, 0, result)
        wait_for("7 more tasks of add", lambda: self.prometheus.value(expression) == before + 7)

    def test_throughput_is_that_of_the_daemon(self):
        total = "sum(resident_tasks_total)"
        self.assertEqual(self.daemon.ctl("run", "add", "x=1,2", "y=3,4").code, 0)
        before = self.prometheus.await_value(total)
        busy_before = self.prometheus.await_value("resident_device_busy_seconds_total")
        elapsed = self.bench()
        # The page and Status both count every task that was sent.
        completed = int(self.device()["completed_tasks"])
        self.assertGreater(completed, before)
        wait_for("{} tasks".format(completed), lambda: self.prometheus.value(total) == completed)
        # The device was busy for some of the time, and never for longer than it lasted.
        wait_for("busy time", lambda: self.prometheus.is_above(
            "resident_device_busy_seconds_total", busy_before))
        busy = self.prometheus.await_value("resident_device_busy_seconds_total") - busy_before
        self.assertLess(busy, elapsed + 2)
        # The peak rate that Prometheus computed must be above half of the average rate. The
        # two extra seconds allow for tasks that fall between two scrapes. Its last step
        # comes up to half a second after the last scrape.
        peak = "max_over_time(sum(rate(resident_tasks_total[2s]))[{}s:500ms])".format(
            int(elapsed) + 5 + WAIT_S)
        min_rate = 0.5 * (completed - before) / (elapsed + 2)
        repeat_at = time.monotonic() + 3

        # Late scrapes can miss the peak: the load is then repeated.
        def is_recorded():
            nonlocal repeat_at
            if self.prometheus.is_above(peak, min_rate):
                return True
            if time.monotonic() > repeat_at:
                self.bench()
                repeat_at = time.monotonic() + 3
            return False

        wait_for("a rate of {}/s".format(min_rate), is_recorded)
        for family in ("resident_batch_seconds", "resident_task_device_seconds"):
            p99 = self.prometheus.await_value(
                "histogram_quantile(0.99, sum by (le) ({}_bucket))".format(family))
            self.assertGreater(p99, 0, family)
            self.assertLess(p99, 60, family)

    def test_network_and_batches_count(self):
        before = self.prometheus.await_value("resident_rpc_received_bytes_total")
        batches = self.prometheus.await_value("resident_batches_total")
        self.assertEqual(self.daemon.ctl("run", "add", "x=1,2", "y=3,4").code, 0)
        wait_for("bytes in", lambda: self.prometheus.is_above("resident_rpc_received_bytes_total", before))
        wait_for("bytes out", lambda: self.prometheus.is_above("resident_rpc_sent_bytes_total", 0))
        wait_for("a batch", lambda: self.prometheus.is_above("resident_batches_total", batches))

    def test_z_killed_engine_is_counted_and_alerted(self):
        """Runs last, because the daemon that the tests share has a new engine afterwards."""
        restarts = 'resident_engine_restarts_total{cause="killed"}'
        self.assertEqual(self.prometheus.await_value(restarts), 0)
        pid = int(self.device()["engine_pid"])
        os.kill(pid, signal.SIGKILL)
        wait_for("a restart", lambda: self.prometheus.value(restarts) == 1)
        wait_for(
            "an alert", lambda: self.prometheus.series(
                'ALERTS{alertname="ResidentdEngineRestarts",alertstate="firing",cause="killed"}'))
        wait_for("a new engine", lambda: int(self.device()["engine_pid"]) not in (0, pid))

    def test_promtool_accepts_the_page(self):
        result = subprocess.run(["promtool", "check", "metrics"], input=self.page(), text=True,
                                capture_output=True, check=False)
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_series_of_an_idle_daemon_and_of_operators_in_use(self):
        """A fleet pays for each series of each daemon, so their number is limited: 250 for an idle
        daemon with one device, and 90 for each operator in use."""
        daemon = daemons.Daemon()
        self.addCleanup(daemon.stop)

        def series():
            page = get("http://{}/metrics".format(daemon.metrics_address))
            return [line for line in page.splitlines() if not line.startswith("#")]

        idle = series()
        self.assertEqual([line for line in idle if "operator=" in line], [])
        self.assertLessEqual(len(idle), 250)
        for name in ("add", "mul"):
            self.assertEqual(daemon.ctl("run", name, "x=1,2", "y=3,4").code, 0)
        used = series()
        self.assertIn('resident_tasks_total{operator="mul",version="1",device="0",status="ok"} 1', used)
        self.assertLessEqual(len(used), len(idle) + 2 * 90)
        print("series: idle {}, with two operators in use {}".format(len(idle), len(used)))

    def test_prometheus_reads_openmetrics_and_gzip(self):
        """The same figures in each format and encoding, read by the parsers of others."""
        url = "http://{}/metrics".format(self.daemon.metrics_address)
        openmetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        request = urllib.request.Request(url, headers={
            "Accept": openmetrics, "Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            self.assertEqual(answer.headers["Content-Encoding"], "gzip")
            self.assertIn("application/openmetrics-text", answer.headers["Content-Type"])
            compressed = answer.read()
        page = gzip.decompress(compressed).decode()
        self.assertLess(3 * len(compressed), len(page))
        self.assertTrue(page.endswith("\n# EOF\n"))
        self.assertEqual(page.count("# EOF"), 1)
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
            self.assertFalse(name.endswith("_total"), name)
            if kind == "counter":
                self.assertNotRegex(page, r"(?m)^{}[{{ ]".format(name))
        # Prometheus itself asks for OpenMetrics and gzip, and reads every counter.
        targets = self.prometheus.api("targets")["activeTargets"]
        self.assertEqual([target["lastError"] for target in targets if target["health"] == "up"],
                         [""])
        self.assertIsNotNone(self.prometheus.await_value("resident_batches_total"))
        self.assertEqual(self.prometheus.api("metadata", metric="resident_batches")
                         ["resident_batches"][0]["type"], "counter")

    def test_rules_are_valid_and_evaluate(self):
        result = subprocess.run(
            ["promtool", "check", "rules", *map(str, RULES)],
            text=True, capture_output=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        wait_for(
            "every rule was evaluated", lambda: all(
                rule["health"] != "unknown" for group in self.prometheus.api("rules")["groups"]
                for rule in group["rules"]))
        for group in self.prometheus.api("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"], "ok", rule)

    def test_alerts_of_a_fleet_fire_when_they_should(self):
        with tempfile.TemporaryDirectory(prefix="rules-test-") as folder:
            for file in [*RULES, ROOT / "tests/metrics/fleet_rules_test.yml"]:
                shutil.copy(file, folder)
            result = subprocess.run(["promtool", "test", "rules", "fleet_rules_test.yml"], cwd=folder,
                                    text=True, capture_output=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_scrape_config_is_valid(self):
        result = subprocess.run(
            ["promtool", "check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")],
            text=True, capture_output=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_rules_and_dashboard_use_existing_metrics(self):
        _, names = page_metrics(self.page())
        expressions = list(dashboard_expressions())
        rules = [rule for group in self.prometheus.api("rules")["groups"] for rule in group["rules"]]
        expressions += [(rule["name"], rule["query"]) for rule in rules]
        self.assertGreater(len(expressions), 30)
        recorded = re.compile(r"\w+:residentd?_\w+(?::\w+)?")
        made = {rule["name"] for rule in rules if rule["type"] == "recording"}
        for where, expression in expressions:
            for name in recorded.findall(expression):
                self.assertIn(name, made, where)
            for name in METRIC.findall(recorded.sub("", expression)):
                self.assertIn(name, names, where)

    def test_dashboard_expressions_are_valid(self):
        values = {"$job": ".*", "$instance": ".*", "$device": ".*", "$__rate_interval": "5s",
                  "$__range": "1m", "$operator": ".*"}
        checked = 0
        for where, expression in dashboard_expressions():
            if where.startswith("$"):
                continue
            for variable, value in values.items():
                expression = expression.replace(variable, value)
            self.assertNotIn("$", expression, where)
            self.prometheus.series(expression)
            checked += 1
        self.assertGreater(checked, 20)

    def test_documented_metrics_match_the_page(self):
        with tempfile.TemporaryDirectory() as folder:  # The metrics of models need one, those of plans one with bounds.
            path = pathlib.Path(folder) / "model.onnx"
            path.write_bytes(onnx_file.tokens([[1, 2]]))
            loaded = self.daemon.ctl("model", "load", path, "--name=metrics", "--max=seq=4")
            self.assertEqual(loaded.code, daemons.OK, loaded)
        families, names = page_metrics(self.page())
        self.assertEqual(self.daemon.ctl("model", "remove", "metrics").code, daemons.OK)
        text = (ROOT / "docs/operations.md").read_text()
        own = {name for name in families if METRIC.fullmatch(name)}
        for name in sorted(own):
            self.assertIn("`" + name, text, "docs/operations.md does not list it")
        for name in re.findall(r"`((?:resident|process)_[a-z0-9_]+)", text):
            self.assertIn(name, names, "docs/operations.md lists it")

    def test_documented_alerts_match_the_rules(self):
        text = (ROOT / "docs/operations.md").read_text()
        alerts = {
            rule["name"] for group in self.prometheus.api("rules")["groups"]
            for rule in group["rules"] if rule["type"] == "alerting"
        }
        self.assertEqual(set(re.findall(r"^\| `(Residentd\w+)`", text, re.MULTILINE)), alerts)

    def test_documented_flags_match_the_daemon(self):
        output = subprocess.run([str(daemons.RESIDENTD), "serve", "--help"], text=True,
                                capture_output=True, check=True).stdout
        flags = set(re.findall(r"^  --(\w+) ", output, re.MULTILINE))
        self.assertIn("metrics_address", flags, output)
        self.assertIn("state_dir", flags, output)
        text = (ROOT / "docs/operations.md").read_text()
        self.assertEqual(set(re.findall(r"^\| `--(\w+)`", text, re.MULTILINE)), flags)


if __name__ == "__main__":
    unittest_main.main()
