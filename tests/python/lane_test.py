#!/usr/bin/python3
"""Local lanes from Python, with a real daemon."""

import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

os.environ.setdefault("RESIDENTD_LANE_LIBRARY", str(pathlib.Path("client/lane/libresidentd_lane.so").resolve()))


class Lanes(support.PackageTest):
    folder = tempfile.TemporaryDirectory(prefix="lane-", dir="/tmp")
    FLAGS = ("--local_address={}/local".format(folder.name),)

    def test_a_prepared_call_with_buffers(self):
        x, y = np.arange(64, dtype=np.float32), np.full(64, 3, np.float32)
        with self.rd.lane() as lane:
            bx, by, bz = self.rd.upload(x), self.rd.upload(y), self.rd.empty(64)
            add = lane.prepare("add", bx, by, out=bz, alpha=2)
            add()
            np.testing.assert_array_equal(bz.numpy(), x + 2 * y)
            add(bz, by, out=bx)
            np.testing.assert_array_equal(bx.numpy(), x + 4 * y)
            self.assertGreater(add.version, 0)
            for sequence in [add.submit(bz) for _ in range(100)]:
                lane.wait(sequence)
            np.testing.assert_array_equal(bx.numpy(), x + 4 * y)

    def test_arrays_of_shared_memory_and_scalars_that_vary(self):
        x, y, z = (self.rd.shared((2, 64)) for _ in range(3))
        with self.rd.lane(slots=64) as lane:
            add = lane.prepare("add", x[0], y[0], out=z[0], alpha=1, varying=["alpha"])
            for i in range(300):
                x[i % 2] = i
                y[i % 2] = 0.5
                add(x[i % 2], y[i % 2], out=z[i % 2], alpha=i)
                np.testing.assert_array_equal(z[i % 2], np.float32(1.5 * i))

    def test_values_and_reductions(self):
        with self.rd.lane() as lane:
            x, out = self.rd.shared((4, 16)), self.rd.shared(())
            x[:] = np.arange(64).reshape(4, 16)
            total = lane.prepare("sum", x, axis=(0, 1), out=out)
            self.assertEqual(total.value(), 2016)
            x[0, 0] = 10
            self.assertEqual(total.value(), 2026)
            half = self.rd.shared((1,), "bf16")
            largest = lane.prepare("max", self.rd.upload(x[0], "bf16"), axis=0, keepdims=True, out=half)
            self.assertEqual(largest.value(), 15)
            index = self.rd.shared((), "i64")
            self.assertEqual(lane.prepare("argmax", x[1:], out=index, axis=[0, 1]).value(), 47)
            y = self.rd.shared((4, 4))
            lane.prepare("gemv", x, self.rd.upload(np.ones((4, 16), np.float32)), None, out=y)()
            np.testing.assert_array_equal(y[:, 0], x.sum(1))
            self.refused(residentd.InvalidArgument, "not in memory of this process",
                         lane.prepare("sum", x, axis=(0, 1), out=self.rd.empty(())).value)
            self.refused(residentd.InvalidArgument, "has the shape [4, 16]", lane.prepare("relu", x, out=x).value)
            self.refused(residentd.InvalidArgument, "must be [4]", lane.prepare, "sum", x, axis=1, out=x[0])
            self.refused(residentd.InvalidArgument, "has no axis 2", lane.prepare, "sum", x, axis=2, out=out)

    def test_the_package_for_torch_is_imported_without_torch(self):
        program = ("import sys; sys.modules['torch'] = None; sys.path.insert(0, {!r}); import residentd.torch as rt\n"
                   "assert 'attach' in dir(rt)\n"
                   "try: rt.attach\nexcept ImportError: print('needs torch')").format(str(support.package_path()))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("needs torch\n", ""))

    def test_ranges(self):
        x, y, z = self.rd.shared((300, 64)), self.rd.shared((64,)), self.rd.shared((300, 64))
        x[:] = np.arange(300 * 64, dtype=np.float32).reshape(300, 64) % 1000
        y[:] = np.arange(64)
        alphas = np.arange(300, dtype=np.float32) % 7
        with self.rd.lane(data_bytes=1 << 16) as lane:
            add = lane.prepare("add", x[0], y, out=z[0], alpha=1, varying=["alpha"])
            lane.wait(add.submit_range(x, y, out=z, alpha=alphas))
            np.testing.assert_array_equal(z, x + alphas[:, None] * y)
            # Every other row, backwards; the rest as in the last call.
            lane.wait(add.submit_range(x[::-2], out=z[:150], alpha=3))
            np.testing.assert_array_equal(z[:150], x[::-2] + 3 * y)
            with self.assertRaisesRegex(residentd.InvalidArgument, "150 rows"):
                add.submit_range(x, out=z[:150])
            with self.assertRaisesRegex(residentd.InvalidArgument, "no tensor or array"):
                add.submit_range(alpha=3)
            with self.assertRaisesRegex(residentd.InvalidArgument, "data_bytes"):
                add.submit_range(alpha=np.zeros(10000))

    def test_what_is_wrong_is_refused(self):
        x, y = self.rd.shared((64,)), self.rd.shared((64,))
        with self.rd.lane() as lane:
            add = lane.prepare("add", x, y, out=y)
            for arguments, words in (((x[:32],), "was prepared with"), ((np.zeros(64, np.float32),), "not memory of the daemon"),
                                     ((x, y, y, y), "takes 3 tensors")):
                with self.assertRaisesRegex(residentd.InvalidArgument, words):
                    add(*arguments)
            with self.assertRaisesRegex(residentd.InvalidArgument, "does not vary"):
                add(alpha=3)
            with self.assertRaisesRegex(residentd.InvalidArgument, "no parameter 'z'"):
                add(z=x)
            with self.assertRaisesRegex(residentd.InvalidArgument, "needs 'out'"):
                lane.prepare("add", x, y)
            add()
        with self.assertRaisesRegex(residentd.FailedPrecondition, "closed"):
            add()

    def test_a_daemon_without_lanes_says_so(self):
        daemon = support.daemons.Daemon()
        self.addCleanup(daemon.stop)
        with residentd.connect(daemon.address) as client:
            with self.assertRaisesRegex(residentd.FailedPrecondition, "local_address"):
                client.lane()

    def test_a_daemon_that_is_killed(self):
        folder = tempfile.TemporaryDirectory(prefix="lane-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        daemon = support.daemons.Daemon("--local_address={}/local".format(folder.name))
        self.addCleanup(daemon.stop)
        client = residentd.connect(daemon.address)
        self.addCleanup(client.close)
        x = client.shared((64,))
        lane = client.lane()
        add = lane.prepare("add", x, x, out=x)
        add()
        daemon.process.kill()
        daemon.process.wait()
        with self.assertRaises(residentd.Unavailable) as caught:
            for _ in range(10):
                add()
        self.assertTrue(caught.exception.may_have_run)
        lane.close()


if __name__ == "__main__":
    support.unittest_main.main()
