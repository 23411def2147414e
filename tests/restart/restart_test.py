#!/usr/bin/env python3
"""Tests what a daemon with --state_dir restores after it was killed at any point.

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

# More crash points than a start with an install has. It bounds the loop of the tests.
MAX_CRASH_POINTS = 400


def process_name(pid):
    """Empty: there is no such process, or it has ended."""
    try:
        stat = pathlib.Path("/proc/{}/stat".format(pid)).read_text()
    except OSError:
        return ""
    name, _, state = stat.partition("(")[2].rpartition(") ")
    return "" if state.startswith("Z") else name


def descendants(pid):
    """The names of all processes that the process and its children have started, by pid."""
    found = {}
    for children in pathlib.Path("/proc/{}/task".format(pid)).glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:
            continue
        for child in pids:
            found[int(child)] = process_name(child)
            found.update(descendants(child))
    return found


class Restart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = self.folder / "state"

    def start(self, crash_point=None):
        """Starts a daemon on the state folder. Returns None if it was killed during its start."""
        if crash_point is not None:
            os.environ["RESIDENTD_CRASH_POINT"] = str(crash_point)
        try:
            daemon = daemons.Daemon("--state_dir=" + str(self.state))
        except RuntimeError as error:
            # A killed daemon prints no error. Any error means that the start failed.
            if crash_point is None or "Fix:" in str(error):
                raise
            return None
        finally:
            os.environ.pop("RESIDENTD_CRASH_POINT", None)
        self.addCleanup(daemon.stop)
        return daemon

    def kill(self, daemon):
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        daemon.stop()

    def ok(self, result):
        self.assertEqual(result.code, 0, result)
        return result

    def served(self, daemon):
        """Returns the serving version and the factor by which it multiplies."""
        result = self.ok(daemon.ctl("run", "times", "x=1", "--json")).json
        return result["version"], result["outputs"]["out"]["values"][0]

    def install(self, daemon, factor):
        return daemon.ctl("ops", "install", "times", "--expr", "x * {}".format(factor),
                          "--wait=active")

    def test_a_killed_daemon_restores_operators_buffers_and_audit(self):
        daemon = self.start()
        for factor in (2, 3):
            self.ok(self.install(daemon, factor))
        self.ok(daemon.ctl("ops", "rollback", "times"))
        self.ok(daemon.ctl("ops", "install", "gone", "--expr", "x + 1", "--wait=active"))
        self.ok(daemon.ctl("ops", "remove", "gone"))
        contents = self.folder / "contents"
        contents.write_bytes(bytes(range(64)))
        made = self.ok(daemon.ctl("buffers", "alloc", "16", "--name=weights", "--json")).json
        buffer = made["id"]
        self.ok(daemon.ctl("buffers", "upload", buffer, contents))
        empty = self.ok(daemon.ctl("buffers", "alloc", "4", "--json")).json["id"]
        freed = self.ok(daemon.ctl("buffers", "alloc", "4", "--json")).json["id"]
        self.ok(daemon.ctl("buffers", "free", freed))
        audit = daemon.ctl("ops", "audit", "--json").json
        self.kill(daemon)

        daemon = self.start()
        self.assertEqual(self.served(daemon), (1, 2.0))
        self.assertNotEqual(daemon.ctl("run", "gone", "x=1").code, 0)
        out = self.folder / "out"
        self.ok(daemon.ctl("buffers", "download", buffer, out))
        self.assertEqual(out.read_bytes(), contents.read_bytes())
        self.ok(daemon.ctl("buffers", "download", empty, out))
        self.assertEqual(out.read_bytes(), bytes(16))
        self.assertNotEqual(daemon.ctl("buffers", "download", freed, out).code, 0)
        self.assertIn("weights", self.ok(daemon.ctl("buffers", "list")).out)
        # The audit log continues after the old events.
        before = audit["events"] if isinstance(audit, dict) else audit
        after = daemon.ctl("ops", "audit", "--json").json
        after = after["events"] if isinstance(after, dict) else after
        self.assertEqual(after[-len(before):], before)
        # The numbers of generations continue too. The first event of the new start gives
        # the number of restored versions.
        restored, last = [event for event in after if event["kind"] == "generation"][:2]
        self.assertGreater(int(restored["generation"]), int(last["generation"]))
        self.assertEqual(restored["message"], "2 versions restored")
        # The standby is also loaded, so that it can serve immediately.
        self.ok(daemon.ctl("ops", "activate", "times"))
        self.assertEqual(self.served(daemon), (2, 3.0))
        # The number of a removed version is not used again.
        self.assertIn("version 2",
                      self.ok(daemon.ctl("ops", "install", "gone", "--expr", "x + 2")).out)
        daemon.stop()

    def test_versions_keep_their_isolation(self):
        daemon = self.start()
        levels = ("trusted", "stoppable")
        for level in levels:
            self.ok(daemon.ctl("ops", "install", level, "--expr", "x + 1", "--isolation=" + level))
        self.kill(daemon)
        daemon = self.start()
        for level in levels:
            self.assertIn("{0} version 1 (loaded): {0}\n".format(level),
                          self.ok(daemon.ctl("ops", "explain", level)).out)
        daemon.stop()

    def load(self, daemon, name):
        """Loads a graph of this name that computes relu. Returns the result of the command."""
        shape = [{"size": 3}]
        graph = {
            "name": name,
            "format": 1,
            "tensors": [
                {"name": "x", "kind": "KIND_INPUT", "dtype": "DTYPE_F32", "shape": shape},
                {"name": "y", "kind": "KIND_OUTPUT", "dtype": "DTYPE_F32", "shape": shape}],
            "nodes": [{"operator": "relu", "arguments": [
                {"tensor": {"name": "x"}}, {"tensor": {"name": "y"}}]}]}
        return daemon.ctl("graph", "load", "-", "--json", stdin=json.dumps(graph))

    def loaded(self, daemon):
        """Returns the names of the loaded graphs, each of which runs."""
        names = [graph["name"] for graph in self.ok(daemon.ctl("graph", "list", "--json")).json]
        for name in names:
            out = self.ok(daemon.ctl("graph", "run", name, "x=-1,2,-3", "--json")).json
            self.assertEqual(out["outputs"]["y"]["values"], [0, 2, 0])
        return names

    def test_killed_at_every_durable_write_of_a_load_and_an_unload(self):
        daemon = self.start()
        self.ok(self.load(daemon, "first"))
        daemon.stop()
        kills = 0
        for point in range(1, MAX_CRASH_POINTS):
            with self.subTest(crash_point=point):
                daemon = self.start(crash_point=point)
                if daemon is None:
                    kills += 1
                    continue
                name = "graph{}".format(point)
                load = self.load(daemon, name)
                unload = daemon.ctl("graph", "unload", name) if load.code == 0 else None
                if unload is None or unload.code != 0:
                    daemon.process.wait(daemons.COMMAND_TIMEOUT_S)
                    kills += 1
                    daemon.stop()
                    daemon = self.start()
                elif daemon.process.poll() is None:
                    self.assertEqual(self.loaded(daemon), ["first"])
                    daemon.stop()
                    break
                names = self.loaded(daemon)
                # A change that was answered is on disk; one that was not is whole or absent.
                if unload is not None and unload.code == 0:
                    self.assertEqual(names, ["first"])
                elif load.code == 0:
                    self.assertIn(names, (["first"], ["first", name]))
                if name in names:
                    self.ok(daemon.ctl("graph", "unload", name))
                daemon.stop()
        else:
            self.fail("the daemon was killed at every crash point")
        self.assertGreater(kills, 4)
        daemon = self.start()
        self.assertEqual(self.loaded(daemon), ["first"])

    def test_a_signal_while_the_daemon_starts_ends_it_with_its_children(self):
        daemon = self.start()
        self.ok(daemon.ctl("ops", "install", "times", "--expr", "x * 2", "--wait=active"))
        self.ok(self.load(daemon, "first"))
        serves = self.served(daemon)
        daemon.stop()
        for stage in ("resident-engine", "cc1plus"):
            for number in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(stage=stage, signal=number.name):
                    # The restored version is compiled again.
                    shutil.rmtree(self.state / "cache", ignore_errors=True)
                    started = self.start_until(stage)
                    begun = time.monotonic()
                    started.send_signal(number)
                    status = started.wait(daemons.COMMAND_TIMEOUT_S)
                    took = time.monotonic() - begun
                    print("{} at {}: ended after {:.3f} s".format(number.name, stage, took))
                    self.assertEqual(status, 0)
                    self.assertLess(took, 1)
                    self.await_ended(self.children)
                    self.assertFalse((self.folder / "ports").exists())
        daemon = self.start()
        self.assertEqual(self.served(daemon), serves)
        self.assertEqual(self.loaded(daemon), ["first"])

    def start_until(self, stage):
        """Starts a daemon until it has a child process of this name, directly or not."""
        log = open(self.folder / "log", "ab")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [str(daemons.RESIDENTD), "serve", "--address=127.0.0.1:0", "--metrics_address=",
             "--devices=" + os.environ.get("RESIDENT_TEST_DEVICES", "cpu"),
             "--port_file=" + str(self.folder / "ports"), "--state_dir=" + str(self.state)],
            stdout=log, stderr=log, env=dict(os.environ, TMPDIR=str(self.folder)))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.children = {}
        deadline = time.monotonic() + daemons.START_TIMEOUT_S
        while stage not in self.children.values():
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail("no {}:\n{}".format(stage, (self.folder / "log").read_text()))
            self.children = descendants(process.pid)
        return process

    def await_ended(self, processes):
        """Waits until these processes, {pid: name}, have ended."""
        deadline = time.monotonic() + daemons.COMMAND_TIMEOUT_S
        left = processes
        while left:
            left = {pid: name for pid, name in left.items() if process_name(pid) == name}
            self.assertLess(time.monotonic(), deadline, left)

    def test_a_second_daemon_on_the_folder_is_refused(self):
        daemon = self.start()
        with self.assertRaisesRegex(RuntimeError, "pid {}".format(daemon.process.pid)):
            self.start()
        daemon.stop()

    def unless_killed(self, daemon, function):
        """The result of the function, or None if it fails because the daemon was killed."""
        try:
            return function()
        except AssertionError:
            try:
                code = daemon.process.wait(daemons.COMMAND_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = None
            if code == -signal.SIGKILL:
                return None
            raise

    def kill_at_each_crash_point(self, serves, install, served):
        """Kills a daemon at each crash point of a start and an install in turn.

        `serves` is the (version, result) that serves at first. `install(daemon, n)` installs
        and activates a version, and returns its output and the result that the version
        computes. `served(daemon)` returns the (version, result) that serves.
        """
        kills = 0
        for point in range(1, MAX_CRASH_POINTS):
            with self.subTest(crash_point=point):
                daemon = self.start(crash_point=point)
                if daemon is None:  # Killed while it read the folder.
                    kills += 1
                    continue
                # The daemon restored the version that served when the previous daemon was
                # killed. A write that follows the start may kill it before it answers.
                restored = self.unless_killed(daemon, lambda: served(daemon))
                if restored is None:
                    kills += 1
                    daemon.stop()
                    continue
                self.assertEqual(restored, serves)
                installed, computes = install(daemon, point)
                # A killed daemon is dead before its connections close, but may not be
                # reaped yet.
                if installed.code != 0:
                    daemon.process.wait(daemons.COMMAND_TIMEOUT_S)
                # A write that follows the install may kill it before it answers again.
                after = None
                if daemon.process.poll() is None:
                    after = self.unless_killed(daemon, lambda: served(daemon))
                if after is not None:
                    self.assertEqual(after[1], computes)
                    daemon.stop()
                    break
                kills += 1
                self.assertEqual(daemon.process.returncode, -signal.SIGKILL)
                daemon.stop()
                daemon = self.start()
                now = served(daemon)
                self.kill(daemon)
                if now != serves:
                    self.assertEqual(now[1], computes)
                    self.assertGreater(now[0], serves[0])
                elif installed.code == 0:
                    self.fail("the version of a successful install is missing")
                serves = now
        else:
            self.fail("the install was killed at every crash point")
        return kills

    def test_killed_at_every_durable_write_of_an_install_of_native_code(self):
        def install(daemon, point):
            # Alternates between two versions that are already compiled: this test is about
            # the writes.
            factor = 2 + point % 2
            return self.install(daemon, factor), float(factor)

        daemon = self.start()
        for factor in (2, 3):
            self.ok(self.install(daemon, factor))
        serves = self.served(daemon)
        daemon.stop()
        kills = self.kill_at_each_crash_point(serves, install, self.served)
        self.assertGreater(kills, 10)

    def test_killed_at_every_durable_write_of_an_install_with_new_contents(self):
        program = self.folder / "program"

        def install(daemon, number):
            program.write_text("MOVI R0, {}\nHALT\n".format(number))
            return daemon.ctl("ops", "install", "rule", "--flux", program,
                              "--wait=active"), number

        def served(daemon):
            result = self.ok(daemon.ctl("flux", "run", "--operator=rule", "--json")).json
            return result["version"], result["registers"]["R0"]

        daemon = self.start()
        self.ok(install(daemon, 0)[0])
        serves = served(daemon)
        daemon.stop()
        kills = self.kill_at_each_crash_point(serves, install, served)
        self.assertGreater(kills, 10)


if __name__ == "__main__":
    unittest_main.main()
