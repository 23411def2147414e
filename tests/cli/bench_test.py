#!/usr/bin/env python3
"""The first programs of a new user: `residentctl bench`, the demo, the example program.

The last line is `N passed, N failed`.
"""

import json
import math
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import FAILED, NOT_WRITTEN, REFUSED  # noqa: E402


class Bench(daemons.DaemonTest):
    """Figures of a daemon, compared with those of a plain gRPC server."""

    def test_a_progress_bar_is_drawn_on_a_terminal_and_erased(self):
        output = self.daemon.on_a_terminal("bench", "--seconds=0.8", stream="stderr")
        self.assertRegex(output, rb"lone Run, data on the device  \[[#.]{40}\] +\d+%")
        self.assertTrue(output.endswith(b"\r\x1b[K"), output[-200:])

    def test_bench_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "bench.json")
            result = self.ctl("bench", "--quick", "--json", "--pauses=2", "--out", file).json
            self.assertEqual(result["wrong"], 0)
            self.assertEqual(result["lone_run_paused"]["residentd"]["samples"], 2)
            for name in ("lone_run_device", "lone_run_message", "lone_run_paused"):
                self.assertGreater(result[name]["echo"]["p50_us"], 0)
                self.assertGreater(result[name]["residentd"]["p99_us"], 0)
                self.assertTrue(math.isfinite(result[name]["p50_ratio"]))
            for name in ("submit_single", "submit", "submit_large"):
                self.assertGreater(result[name]["echo_tasks_per_second"], 0)
                self.assertGreater(result[name]["tasks_per_second"], 0)
            self.assertGreater(result["flux"]["instructions_per_second"], 0)
            saved = json.loads(file.read_text())
            self.assertEqual(len(saved["raw"]["lone_run_device"]["echo_us"]),
                             saved["lone_run_device"]["echo"]["samples"])
            self.assertEqual(saved["setup"]["server"], self.daemon.address)

    def test_bench_prints_results_that_it_could_not_save(self):
        result = self.ctl("bench", "--quick", "--json", "--out=/dev/full", code=NOT_WRITTEN)
        self.assertEqual(result.json["wrong"], 0)
        self.assertIn("/dev/full", result.error["message"])

    def test_bench_prints_text(self):
        out = self.ctl("bench", "--quick", "--streams=2").out
        for words in ("bare gRPC echo", "difference", "ratio", "tasks/s", "instructions/s",
                      "every result was checked and is correct"):
            self.assertIn(words, out)

    def test_demo(self):
        out = self.ctl("demo").out
        self.assertEqual(len(re.findall("all correct", out)), 2)
        self.assertIn("No local lane: ", out)
        self.assertEqual(self.ctl("demo", "--json").json["wrong"], 0)

    def test_demo_prints_results_that_it_could_not_save(self):
        result = self.ctl("demo", "--json", "--out=/dev/full", code=NOT_WRITTEN)
        self.assertEqual(result.json["wrong"], 0)
        self.assertIn("/dev/full", result.error["message"])


class Lane(daemons.CommandTest):
    """Figures of a local lane."""

    def test_a_lane(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # A socket's path is short.
            daemon = daemons.Daemon("--local_address={}/local".format(folder))
            self.addCleanup(daemon.stop)
            result = self.check(daemon.ctl("bench", "--lane", "--quick", "--json"), 0).json
            self.assertEqual(result["wrong"], 0)
            self.assertGreater(result["lane"]["lone"]["p50_us"], 0)
            self.assertGreater(result["lane"]["tasks_per_second"], 0)
            self.assertIn("Through a local lane: ", self.check(daemon.ctl("demo"), 0).out)

    def test_a_daemon_without_lanes_says_so(self):
        daemon = daemons.Daemon()
        self.addCleanup(daemon.stop)
        result = self.check(daemon.ctl("bench", "--lane", "--quick"), REFUSED)
        self.assertIn("--local_address", result.err)
        self.assertEqual(result.out, "")


class Shown(unittest.TestCase):
    """Programs shown in the README."""

    def test_the_example(self):
        daemon = daemons.Daemon()
        try:
            done = subprocess.run([str(daemons.EXAMPLE), daemon.address], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout.split()),
                             (0, ["3", "5", "7", "1", "4", "9", "16"]), done)
        finally:
            daemon.stop()
        done = subprocess.run([str(daemons.EXAMPLE), daemon.address], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("UNAVAILABLE", done.stderr)

    def demo(self, folder, **programs):
        environment = dict(os.environ, TMPDIR=folder, RESIDENTD=str(daemons.RESIDENTD),
                           RESIDENTCTL=str(daemons.RESIDENTCTL), TRAINING_STEPS="20")
        environment.update(programs)
        devices = "--devices=" + os.environ.get("RESIDENT_TEST_DEVICES", "cpu")
        done = subprocess.run([str(daemons.DEMO), devices], capture_output=True, text=True,
                              env=environment, timeout=180)
        self.assertEqual(os.listdir(folder), [], "the demo left files behind")
        return done

    def test_the_demo(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.demo(folder)
        self.assertEqual(done.returncode, 0, done)
        for words in ("all correct", "/metrics", "resident_tasks_total", "Summary", "Next",
                      "step   20 of 20: loss", "NumPy disagrees with 0 of them", "decoded tokens"):
            self.assertIn(words, done.stdout)
        # The daemon has ended.
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/metrics", done.stdout)[1])
        with socket.socket() as probe:
            self.assertNotEqual(probe.connect_ex(("127.0.0.1", port)), 0)

    def test_a_failing_demo_reports_the_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            unchecked = self.demo(folder, RESIDENTCTL="/bin/false")
            self.assertEqual(unchecked.returncode, 1, unchecked)
            self.assertIn("FAILED", unchecked.stderr)
            absent = self.demo(folder, RESIDENTD="/bin/false")
            self.assertEqual(absent.returncode, 1, absent)
            self.assertIn("failed to start", absent.stderr)


if __name__ == "__main__":
    unittest_main.main()
