#!/usr/bin/python3
"""Memory of calls that fail: what the caller's arrays have then, and which memory is used again."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

N = 1 << 16  # Elements of an array that goes through the arena.


class FailedTasks(support.PackageTest):
    """Batches whose tasks do not end OK, with inline data and through the arena."""

    def park(self):
        self.rd._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
        self.addCleanup(self.rd._connection._call, "Admin.Resume",
                        support.message("ResumeRequest")(device=0), None, "")

    def test_an_inout_of_a_task_that_was_skipped_keeps_its_elements(self):
        gemm = self.rd.op("gemm")
        one = np.ones((2, 2), np.float32)
        gemm(one, one)  # Describes the operator before the device stops.
        self.park()
        for n in (2, 256):
            a, c = np.ones((n, 2), np.float32), np.full((n, 2 * n), 5, np.float32)[:, ::2]
            b = np.ones((2, n), np.float32)
            with self.assertRaises(residentd.DeadlineExceeded):
                gemm(a, b, c, beta=1, timeout=0.05)
            np.testing.assert_array_equal(c, 5)

    def test_an_inout_keeps_the_rows_of_tasks_that_failed(self):
        for shape in ((3, 2), (3, N)):
            array, prepared, result = self.two_of_three(shape)
            with self.assertRaises(residentd.TaskFailed):
                prepared.decode(result)
            np.testing.assert_array_equal(array[[0, 2]], np.full((2, shape[1]), 1))
            np.testing.assert_array_equal(array[1], 5)

    def two_of_three(self, shape):
        """A batch of three gemms that update rows of fives to ones, and its result with task 1 failed."""
        array = np.full(shape, 5, np.float32)
        a = np.zeros((3, 1, 1), np.float32)
        b = np.zeros((3, 1, shape[1]), np.float32)
        prepared = self.rd._drive(self.rd._operations.prepare(
            "gemm", 0, (a, b, array[:, None]), {}, shared=()))
        result = support.message("BatchResult")(status=[0, 1, 0])
        ones = np.ones(shape, np.float32)
        ones[1] = 0
        output, = prepared.outputs
        if output.returned:
            result.outputs.append(ones.tobytes())
        else:
            output._array[:, 0] = ones
        return array, prepared, result


if __name__ == "__main__":
    support.unittest_main.main()
