"""Daemons as actors of a real Ray: see tests/ray/run."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path.insert(0, str(HERE.parent))
import numpy  # noqa: E402
import ray  # noqa: E402
import residentd  # noqa: E402
import residentd.ray  # noqa: E402
import unittest_main  # noqa: E402

WAIT_S = 60
LOCAL = {"num_cpus": 4, "_node_ip_address": "127.0.0.1", "include_dashboard": False,
         "log_to_driver": False}
CPU = {"num_gpus": 0, "flags": ["--devices=cpu"], "program": os.environ["RESIDENTD"]}


def wait_for(what, holds):
    deadline = time.monotonic() + WAIT_S
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.05)


def exists(pid):
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return pathlib.Path("/proc/{}/stat".format(pid)).read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(fleet):
    return sorted(fleet._ask("pid").values())


class FleetTest(unittest.TestCase):
    def setUp(self):
        ray.init(**LOCAL)
        self.addCleanup(ray.shutdown)
        self.state = tempfile.TemporaryDirectory(prefix="residentd-ray-test-")
        self.addCleanup(self.state.cleanup)

    def start(self, count=2, **options):
        return residentd.ray.start_fleet(count, **{**CPU, **options})

    def test_calls_go_to_each_daemon(self):
        fleet = self.start()
        addresses = fleet.addresses()
        self.assertEqual(len(set(addresses)), 2)
        self.assertEqual(fleet.targets(), "ipv4:" + ",".join(addresses))
        for address in addresses:
            with residentd.connect(address) as rd:
                self.assertEqual(rd.op("add")(numpy.float32([1]), numpy.float32([2])), [3])
        self.assertIn(fleet.nearest(), addresses)
        with residentd.connect(targets=fleet.targets(), retry=True) as rd:
            for _ in range(10):
                self.assertEqual(rd.op("add")(numpy.float32([1]), numpy.float32([2])), [3])
        daemons = pids(fleet)
        ray.shutdown()
        wait_for("no daemon is left", lambda: not any(map(exists, daemons)))

    def test_a_killed_actor_and_a_killed_daemon_come_back(self):
        fleet = self.start(state=self.state.name)
        with residentd.connect(fleet.addresses()[0]) as rd:
            rd.operators.install("twice", expr="2 * x", wait="active")
        for killed in ("actor", "daemon"):
            before = pids(fleet)
            if killed == "actor":
                ray.kill(ray.get_actor(fleet.name + "-0"), no_restart=False)
            else:
                os.kill(before[0], signal.SIGKILL)
            began = time.monotonic()
            wait_for("its daemon is gone", lambda b=before: sum(map(exists, b)) < len(b))
            left = time.monotonic() - began
            wait_for("two daemons", lambda b=before: len(pids(fleet)) == 2 and pids(fleet) != b)
            print("killed {}: daemon gone after {:.1f} s, another one after {:.1f} s".format(
                killed, left, time.monotonic() - began))
        # Its state has the name of its actor, so that the operator is there again.
        with residentd.connect(fleet.addresses()[0]) as rd:
            self.assertEqual(rd.op("twice")(numpy.float32([21])), [42])

    def test_a_dataset_is_mapped_while_a_daemon_is_killed(self):
        import ray.data
        ray.data.DataContext.get_current().enable_progress_bars = False
        fleet = self.start()
        rows = 20000
        data = ray.data.range(rows, override_num_blocks=20).map_batches(
            lambda batch: {"x": batch["id"].astype(numpy.float32)}, batch_format="numpy")
        mapped = data.map_batches(residentd.ray.Map("relu", fleet.name, output="y"),
                                  batch_format="numpy", batch_size=100)
        seen, killed = [], False
        for batch in mapped.iter_batches(batch_size=1000, batch_format="numpy"):
            numpy.testing.assert_array_equal(batch["y"], batch["x"])
            seen += batch["x"].tolist()
            if not killed:
                killed = True
                os.kill(pids(fleet)[0], signal.SIGKILL)
        self.assertEqual(sorted(seen), list(range(rows)))

    def test_errors(self):
        with self.assertRaises(RuntimeError) as failed:
            self.start(1, flags=["--devices=cpu", "--no_such_flag"])
        self.assertIn("no_such_flag", str(failed.exception))
        with self.assertRaises(residentd.errors.Unavailable) as nobody:
            residentd.ray.Fleet("another").targets()
        self.assertIn("no daemon of the fleet 'another'", str(nobody.exception))
        with self.assertRaises(residentd.errors.InvalidArgument):
            self.start(0)


class DriverTest(unittest.TestCase):
    def test_no_daemon_outlives_a_killed_driver(self):
        driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent("""
            import sys, ray, residentd.ray
            ray.init(**{})
            fleet = residentd.ray.start_fleet(2, **{})
            print(*fleet._ask("pid").values(), flush=True)
            sys.stdin.read()
            """).format(LOCAL, CPU)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(driver.stdout.close)
        self.addCleanup(driver.stdin.close)
        self.addCleanup(driver.kill)
        daemons = [int(pid) for pid in driver.stdout.readline().split()]
        self.assertEqual(len(daemons), 2)
        self.assertTrue(all(map(exists, daemons)))
        driver.kill()
        driver.wait()
        wait_for("no daemon is left", lambda: not any(map(exists, daemons)))


if __name__ == "__main__":
    unittest_main.main()
