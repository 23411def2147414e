#!/usr/bin/env python3
"""Commands for operating a daemon: status, health, ops, top, admin.

The last line is `N passed, N failed`.
"""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, REFUSED  # noqa: E402


class Admin(daemons.DaemonTest):
    """All tests share one daemon; no test stops it or leaves it parked."""

    def test_status(self):
        out = self.ctl("status").out
        self.assertIn(self.daemon.address, out)
        self.assertIn("DEVICE", out)
        self.assertRegex(out, r"metrics +http://127\.0\.0\.1:\d+/metrics")
        status = self.ctl("status", "--json").json
        self.assertEqual(status["pid"], self.daemon.process.pid)
        self.assertFalse(status["draining"])
        self.assertGreaterEqual(len(status["devices"]), 1)
        device = status["devices"][0]
        self.assertIn(device["state"], ("resident", "idle_parked"))
        self.assertIsInstance(device["completed_tasks"], int)
        self.assertGreater(device["ring"]["slots"], 0)

    def test_a_gpu_has_the_identifier_that_nvidia_smi_prints(self):
        devices = self.ctl("status", "--json").json["devices"]
        if os.environ.get("RESIDENT_TEST_ENGINE") != "cuda":
            self.assertEqual([device["uuid"] for device in devices], [""])
            return
        listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], check=True,
                                capture_output=True, text=True).stdout.split()
        for device in devices:
            self.assertRegex(device["uuid"], r"^GPU(-[0-9a-f]+){5}$")
            self.assertIn(device["uuid"], listed)
        self.assertEqual(len({device["uuid"] for device in devices}), len(devices))

    def test_health(self):
        self.assertEqual(self.ctl("health").out, "SERVING\n")
        self.assertEqual(self.ctl("health", "--json").json, {"service": "", "status": "SERVING"})
        self.assertEqual(self.ctl("health", "resident.v1.Executor").out, "SERVING\n")
        self.assertEqual(self.ctl("health", "resident.device/0").out, "SERVING\n")
        result = self.ctl("health", "resident.v1.Nothing", "--json", code=REFUSED)
        self.assertEqual(result.error["code"], "NOT_FOUND")
        self.assertIn("resident.v1.Executor", result.error["message"])

    def test_the_metrics_address_of_status_is_reachable(self):
        address = self.ctl("status", "--json").json["metrics_address"]
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertIn(b"resident", response.read())
        connection.close()

    def test_ops(self):
        out = self.ctl("ops").out
        for name in ("add", "copy", "sum_rows", "silu"):
            self.assertRegex(out, r"(?m)^{} ".format(name))
        names = [op["name"] for op in self.ctl("ops", "--json").json["operators"]]
        self.assertIn("scale", names)

    def test_ops_of_one_operator(self):
        out = self.ctl("ops", "add").out
        self.assertIn("out = x + alpha * y", out)
        self.assertRegex(out, r"alpha +scalar +f64")
        op = self.ctl("ops", "add", "--json").json
        self.assertEqual([p["name"] for p in op["parameters"]], ["x", "y", "out", "alpha"])
        self.assertEqual([p["kind"] for p in op["parameters"]],
                         ["input", "input", "output", "scalar"])

    def test_an_unknown_operator_is_named_in_the_error(self):
        result = self.ctl("ops", "ad", code=REFUSED)
        self.assertIn("ad", result.err)
        self.assertEqual(self.ctl("ops", "ad", "--json", code=REFUSED).error["code"], "NOT_FOUND")
        self.ctl("run", "ad", "x=1", code=REFUSED)

    def test_version_of_both(self):
        versions = self.ctl("version", "--json").json
        self.assertRegex(versions["residentctl"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(versions["residentd"], versions["residentctl"])  # Both are of one build.
        self.assertIn("residentd   " + versions["residentd"], self.ctl("version").out)

    def test_top_once(self):
        out = self.ctl("top", "--once", "--interval=50ms").out
        self.assertIn("TASKS", out)
        self.assertRegex(out, r"\d/s")
        snapshot = json.loads(self.ctl("top", "--once", "--interval=50ms", "--json").out)
        self.assertGreater(snapshot["interval_s"], 0.04)
        self.assertEqual(len(snapshot["rates"]), len(snapshot["status"]["devices"]))

    def test_top_streams_lines_until_it_is_interrupted(self):
        top = subprocess.Popen(
            [str(daemons.RESIDENTCTL), "top", "--json", "--interval=20ms",
             "--server=" + self.daemon.address], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(3):
                self.assertIn("rates", json.loads(top.stdout.readline()))
        finally:
            top.send_signal(signal.SIGINT)
            top.communicate(timeout=30)

    def test_top_redraws_on_a_terminal(self):
        clear = b"\x1b[H\x1b[2J"
        output = self.daemon.on_a_terminal("top", "--interval=50ms", stream="stdout",
                                  until=rb"(?s)Ctrl-C ends.*\x1b\[H\x1b\[2J.*Ctrl-C ends")
        self.assertTrue(output.startswith(clear), output)
        self.assertGreaterEqual(output.count(clear), 2, output)
        self.assertIn(b"TASKS", output.split(clear)[2])

    def test_park_and_resume(self):
        self.assertIn("is parked", self.ctl("admin", "park", "0").out)
        try:
            self.assertEqual(self.ctl("status", "--json").json["devices"][0]["state"], "parked")
            # A task waits for the kernel until the caller's timeout.
            started = self.ctl("run", "add", "x=1", "y=1", "--device=0", "--timeout=3s",
                               code=REFUSED)
            self.assertIn("--timeout", started.err)
        finally:
            resumed = self.ctl("admin", "resume", "0", "--json").json
        self.assertEqual(resumed, {"device": 0, "state": "resident"})
        self.ctl("run", "add", "x=1", "y=1", "--device=0")

    def test_admin_of_an_unknown_device(self):
        self.assertEqual(self.ctl("admin", "park", "77", "--json", code=REFUSED).error["code"],
                         "NOT_FOUND")


class Draining(unittest.TestCase):
    """A daemon that does not accept more work."""

    def test_drain(self):
        daemon = daemons.Daemon()
        try:
            self.assertEqual(daemon.ctl("run", "add", "x=1", "y=1").code, OK)
            drained = daemon.ctl("admin", "drain", "--drain_timeout=5s", "--json")
            self.assertEqual(drained.code, OK, drained)
            self.assertEqual(drained.json["remaining_tasks"], 0)
            refused = daemon.ctl("run", "add", "x=1", "y=1", "--json")
            self.assertEqual(refused.code, REFUSED, refused)
            self.assertEqual(refused.error["code"], "UNAVAILABLE")
            self.assertTrue(daemon.ctl("status", "--json").json["draining"])
            # It answers, but should not receive more work.
            health = daemon.ctl("health", "--json")
            self.assertEqual(health.code, FAILED, health)
            self.assertEqual(health.json, {"service": "", "status": "NOT_SERVING"})
            self.assertEqual(daemon.ctl("health").out, "NOT_SERVING\n")
        finally:
            daemon.stop()


class WithPolicy(unittest.TestCase):
    """A daemon that requires credentials."""

    def test_health_needs_no_token(self):
        with tempfile.TemporaryDirectory() as folder:
            policy = pathlib.Path(folder, "policy.json")
            policy.write_text('{"identities": {"ranking": {"roles": ["submit"]}}}')
            daemon = daemons.Daemon("--policy={}".format(policy))
            try:
                self.assertEqual(daemon.ctl("status").code, REFUSED)
                health = daemon.ctl("health")
                self.assertEqual((health.code, health.out), (OK, "SERVING\n"), health)
            finally:
                daemon.stop()


if __name__ == "__main__":
    unittest_main.main()
