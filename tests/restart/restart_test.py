#!/usr/bin/env python3
"""What a daemon with --state_dir knows again after it was killed, at any moment.

The last line is `N passed, N failed`.
"""

import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

# More crash points than a start with an install has: a guard against an endless test.
MOST_CRASH_POINTS = 400


class Restart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = self.folder / "state"

    def start(self, crash_point=None):
        """A daemon on the state folder; None if it was killed while it started."""
        if crash_point is not None:
            os.environ["RESIDENTD_CRASH_POINT"] = str(crash_point)
        try:
            daemon = daemons.Daemon("--state_dir=" + str(self.state))
        except RuntimeError as error:
            # It says nothing when it is killed; anything else is a start that failed.
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
        """The version that serves, and what it multiplies by."""
        said = self.ok(daemon.ctl("run", "times", "x=1", "--json")).json
        return said["version"], said["outputs"]["out"]["values"][0]

    def install(self, daemon, factor):
        return daemon.ctl("ops", "install", "times", "--expr", "x * {}".format(factor),
                          "--wait=active")

    def test_a_killed_daemon_comes_back_with_operators_buffers_and_audit(self):
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
        # The audit log goes on behind what was there.
        before = audit["events"] if isinstance(audit, dict) else audit
        after = daemon.ctl("ops", "audit", "--json").json
        after = after["events"] if isinstance(after, dict) else after
        self.assertEqual(after[-len(before):], before)
        # So do the numbers of generations; the start's own says what it brought back.
        restored, last = [event for event in after if event["kind"] == "generation"][:2]
        self.assertGreater(int(restored["generation"]), int(last["generation"]))
        self.assertEqual(restored["message"], "2 versions restored")
        # The standby is loaded too, and serves at once.
        self.ok(daemon.ctl("ops", "activate", "times"))
        self.assertEqual(self.served(daemon), (2, 3.0))
        # The number of a version that was removed is not used again.
        self.assertIn("version 2",
                      self.ok(daemon.ctl("ops", "install", "gone", "--expr", "x + 2")).out)
        daemon.stop()

    def test_a_second_daemon_is_refused_and_told_who_has_the_folder(self):
        daemon = self.start()
        with self.assertRaisesRegex(RuntimeError, "pid {}".format(daemon.process.pid)):
            self.start()
        daemon.stop()

    def kill_at_each_crash_point(self, serves, install, served):
        """Kills a daemon at each crash point of a start and an install in turn.

        `serves`: (version, what it computes) at first. `install(daemon, n)` makes a version
        serve that computes what it returns beside its result; `served(daemon)` asks.
        """
        kills = 0
        for point in range(1, MOST_CRASH_POINTS):
            with self.subTest(crash_point=point):
                daemon = self.start(crash_point=point)
                if daemon is None:  # Killed while it read the folder.
                    kills += 1
                    continue
                # What served when the daemon before was killed.
                self.assertEqual(served(daemon), serves)
                installed, computes = install(daemon, point)
                # Whoever is killed is dead before the connection ends, but not yet reaped.
                if installed.code != 0:
                    daemon.process.wait(daemons.COMMAND_TIMEOUT_S)
                if daemon.process.poll() is None:
                    self.assertEqual(served(daemon)[1], computes)
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
                    self.fail("an install that was answered is gone")
                serves = now
        else:
            self.fail("the install never came to its end")
        return kills

    def test_killed_at_every_durable_write_of_an_install_of_native_code(self):
        def install(daemon, point):
            # One of two that were compiled before: this is about what is written.
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
            said = self.ok(daemon.ctl("flux", "run", "--operator=rule", "--json")).json
            return said["version"], said["registers"]["R0"]

        daemon = self.start()
        self.ok(install(daemon, 0)[0])
        serves = served(daemon)
        daemon.stop()
        kills = self.kill_at_each_crash_point(serves, install, served)
        self.assertGreater(kills, 10)


if __name__ == "__main__":
    unittest_main.main()
