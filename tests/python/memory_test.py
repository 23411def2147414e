#!/usr/bin/python3
"""Memory of calls that fail: what the caller's arrays have then, and which memory is used again."""

import errno
import gc
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

N = 1 << 16  # Elements of an array that goes through the arena.


class Sharing(support.PackageTest):
    """Whether memory is passed to the daemon."""

    def test_shared_arrays_need_the_setting(self):
        with residentd.connect(self.daemon.address, shared_memory="off") as client:
            with self.assertRaisesRegex(residentd.FailedPrecondition, "on this machine"):
                client.shared((4,))


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

    def test_tasks_behind_the_described_ones_decide_whether_the_call_may_have_run(self):
        from residentd.results import check_tasks
        for last, may_have_run in ((2, False), (3, False), (4, True), (5, True), (6, True)):
            message = support.message("BatchResult")(status=[2] * 16 + [last])
            for i in range(16):
                message.errors.add(index=i, status=2, message="late")
            with self.assertRaises(residentd.TaskFailed) as caught:
                check_tasks("add", message, None, 17)
            self.assertEqual(caught.exception.may_have_run, may_have_run, last)

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


class Retired(support.PackageTest):
    """Regions of the arena that tasks may still write to."""

    def setUp(self):
        self.rd = self.connect()
        self.addCleanup(self.rd.close)
        self.memory = self.rd._operations.memory

    def regions(self):
        return [each.region for each in self.memory._arena]

    def test_a_late_write_does_not_reach_memory_of_another_call(self):
        add, small = self.rd.op("add"), np.ones(4, np.float32)
        out = add(np.ones(N, np.float32), 1)  # In the arena, and passed on in place.
        region = self.memory.locate(out)[0]
        self.assertIn(region, self.regions())
        for index, kwargs in ((0, {"out": out[:4]}), (1, {})):
            operator, args = ("add", (small, small)) if index == 0 else (
                "gemm", (small[:, None], small[None], out[:16].reshape(4, 4)))
            prepared = self.rd._drive(self.rd._operations.prepare(operator, 0, args, kwargs))
            self.assertEqual(prepared.regions, [region])
        self.rd._operations.failed(prepared, residentd.DeadlineExceeded("late"))
        self.assertNotIn(region, self.regions())

    def test_a_retired_region_serves_other_calls_until_its_last_array_is_gone(self):
        add, x = self.rd.op("add"), np.ones(N, np.float32)
        add([1], [1])
        before = self.count_buffers(self.rd)
        out = add(x, 1)
        region = self.memory.locate(out)[0]
        other = self.rd._drive(self.rd._operations.prepare("add", 0, (out, 1), {}))
        self.memory.retire(region)
        add([1], [1])  # Frees what is garbage.
        request = support.message("RunRequest")(batch=other.batch)
        result = other.decode(self.rd._connection._call("Executor.Run", request, None, "add").result)
        np.testing.assert_array_equal(result.value, 3)
        np.testing.assert_array_equal(add(out[:9], 1), [3] * 9)
        del out, other, result
        gc.collect()
        add([1], [1])
        self.assertEqual(self.count_buffers(self.rd), before)

    def test_only_a_refusal_leaves_the_region_in_use(self):
        add = self.rd.op("add")
        for error, kept in ((residentd.InvalidArgument("wrong"), True),
                            (residentd.ResourceExhausted("full"), True),
                            (residentd.errors.Internal("broken"), False),
                            (residentd.Error("unknown"), False), (residentd.Unavailable("gone"), False),
                            (KeyboardInterrupt(), False)):
            prepared = self.rd._drive(self.rd._operations.prepare("add", 0, (np.ones(N), 1), {}))
            self.assertTrue(prepared.regions)
            self.rd._operations.failed(prepared, error)
            self.assertEqual(prepared.regions[0] in self.regions(), kept, repr(error))
        np.testing.assert_array_equal(add(np.ones(N), 1), 2)


class Forks(support.PackageTest):
    """What a forked process sees of memory that is shared with the daemon."""

    def in_child(self, function):
        """Runs the function in a forked process, and returns its text."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, str(function()).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        return text

    def test_results_in_the_arena_do_not_change_in_a_child_nor_by_it(self):
        add, x = self.rd.op("add"), np.ones(N, np.float32)
        kept, freed = add(x, 1), add(x, 2)
        self.assertIsNotNone(self.rd._operations.memory.locate(kept))
        start, forked = os.pipe()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                kept[:5] = 7
                os.write(write, b"x")
                os.read(start, 1)  # Meanwhile the parent uses the memory of `freed` again.
                os.write(write, "{} {} {}".format(kept[:6].tolist(), freed.min(), freed.max()).encode())
            finally:
                os._exit(0)
        os.read(read, 1)
        np.testing.assert_array_equal(kept, 2)
        kept[5] = 9
        del freed
        gc.collect()
        others = [add(x, 100) for _ in range(3)]
        os.write(forked, b"x")
        self.assertEqual(os.read(read, 100).decode(),
                         "[7.0, 7.0, 7.0, 7.0, 7.0, 2.0] 3.0 3.0")
        os.waitpid(child, 0)
        for each in others:
            np.testing.assert_array_equal(each, 101)
        np.testing.assert_array_equal(add(kept, kept)[:6], [4, 4, 4, 4, 4, 18])
        for each in (start, forked, read, write):
            os.close(each)

    def test_arrays_of_a_region_that_was_retired_or_whose_session_ended_are_private_too(self):
        client = self.connect()
        out = client.op("add")(np.ones(N, np.float32), 1)
        memory = client._operations.memory
        memory.retire(memory.locate(out)[0])

        def change():
            out[:] = 5
            return out.sum()

        self.assertEqual(float(self.in_child(change)), 5 * N)
        np.testing.assert_array_equal(out, 2)
        client.close()
        self.assertEqual(float(self.in_child(change)), 5 * N)
        np.testing.assert_array_equal(out, 2)

    def test_arrays_of_shared_remain_shared(self):
        array = self.rd.shared((4,))
        self.in_child(lambda: array.fill(3))
        np.testing.assert_array_equal(array, 3)

    def test_the_client_is_refused_in_a_child_also_for_calls_that_were_made_before(self):
        add, x = self.rd.op("add"), np.ones(4, np.float32)
        for _ in range(3):
            add(x, x)
        process = os.fork()
        if process == 0:
            try:
                add(x, x)
            except residentd.FailedPrecondition:
                os._exit(3)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 3)


class Sessions(support.PackageTest):
    """Memory that is imported while its session ends."""

    def end_session(self, steps, method):
        """Drives the steps; the session ends while `method` is under way."""
        connection, memory = self.rd._connection, self.rd._operations.memory
        value = None
        try:
            while True:
                step = steps.send(value)
                value = connection._execute(step, connection)
                if getattr(step, "method", "") == method:
                    session = memory.session
                    connection._session_call.cancel()
                    self.wait_for(lambda: memory.session != session)
        except StopIteration as end:
            return end.value

    def test_a_region_of_a_session_that_has_ended_is_not_used(self):
        operations = self.rd._operations
        with self.assertRaisesRegex(residentd.Unavailable, "session ended"):
            self.end_session(operations.shared((1 << 20,), "f32", None), "Buffers.ImportShared")
        self.assertEqual(operations.memory._regions, {})
        self.assertIsNone(self.end_session(operations.memory.allocate(1 << 20, None),
                                           "Buffers.ImportShared"))
        self.assertEqual((operations.memory._regions, operations.memory._arena), ({}, []))
        x = np.ones(N, np.float32)
        np.testing.assert_array_equal(self.rd.op("add")(x, 1), 2)

    def test_a_buffer_of_a_session_that_has_ended_is_lost(self):
        memory, _, _ = self.end_session(self.rd._operations.allocate(3, "f32", None, False, ""),
                                        "Buffers.Allocate")
        self.assertTrue(memory.lost)


class Growth(support.PackageTest):
    """How the arena gets its regions."""

    def setUp(self):
        self.rd = self.connect(arena_mib=100)
        self.addCleanup(self.rd.close)
        self.memory = self.rd._operations.memory

    def allocate(self, error):
        """Drives allocate() up to the import, which raises the error."""
        steps = self.memory.allocate(1 << 20, None)
        next(steps)
        return steps.throw(error)

    def test_errors_that_pass_do_not_disable_the_arena(self):
        for kind in (residentd.Unavailable, residentd.DeadlineExceeded, residentd.errors.Cancelled,
                     residentd.errors.Unauthenticated):
            with self.assertRaises(kind):
                self.allocate(kind("not now"))
            self.assertTrue(self.memory.arena_enabled)
        self.assertEqual(self.memory._growth, 0)

    def test_errors_of_a_daemon_without_shared_memory_disable_the_arena(self):
        for error in (residentd.PermissionDenied("no"), residentd.FailedPrecondition("no"),
                      residentd.errors.Unimplemented("no"), OSError(errno.ENOSPC, "full")):
            with self.connect() as rd:
                self.memory = rd._operations.memory
                with self.assertRaises(StopIteration) as ended:
                    self.allocate(error)
                self.assertIsNone(ended.exception.value)
                self.assertFalse(self.memory.arena_enabled)

    def test_regions_that_are_imported_at_once_do_not_exceed_arena_mib(self):
        first, second, third = [self.memory.allocate(1 << 20, None) for _ in range(3)]
        next(first)
        next(second)
        self.assertEqual(self.memory._growth, 100 << 20)
        with self.assertRaises(StopIteration):
            next(third)
        first.close()
        second.close()
        self.assertEqual(self.memory._growth, 0)

    def test_memory_of_a_named_object_exists_before_it_is_used(self):
        from residentd import shared_memory
        name, fd = shared_memory._named_object(1 << 20)
        try:
            self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 1 << 20)
        finally:
            os.close(fd)
            os.unlink("/dev/shm" + name)


class Overlaps(support.PackageTest):
    """Arrays of one call that share memory."""

    def test_an_output_that_overlaps_an_input_is_written_after_it_is_read(self):
        add, n = self.rd.op("add"), 1 << 18
        x = self.rd.shared((n + 1,), np.float32)
        for first, second in ((x[:-1], x[1:]), (x[1:], x[:-1]), (x[:-1], x[-2::-1])):
            x[:] = np.arange(n + 1)
            expected = first + 1
            self.assertIs(add(first, 1, out=second), second)
            np.testing.assert_array_equal(second, expected)
        self.assertEqual(self.regions("copy", (x[:-1],), {"out": x[1:]}, (x,)), 0)

    def test_the_same_array_is_updated_in_place_if_the_operator_is_elementwise(self):
        x = self.rd.shared((64, 64), np.float32)
        x[:] = 2
        self.rd.op("add")(x, x, out=x)
        np.testing.assert_array_equal(x, 4)
        self.assertEqual(self.regions("add", (x, x), {"out": x}, (x,)), 1)
        self.assertEqual(self.regions("softmax", (x,), {"out": x}, (x,)), 0)
        self.assertEqual(self.regions("add", (x, x[0]), {"out": x}, (x,)), 0)
        a, b = np.tri(64, dtype=np.float32), x.copy()
        self.rd.op("gemm")(a, x, x)
        np.testing.assert_allclose(x, a @ b)

    def regions(self, operator, args, kwargs, arrays):
        """How many of the regions of these arrays the call would write in place."""
        prepared = self.rd._drive(self.rd._operations.prepare(operator, 0, args, kwargs))
        locate = self.rd._operations.memory.locate
        return sum(locate(array)[0] in prepared.regions for array in arrays)


class Devices(support.PackageTest):
    """Arrays in shared memory of several devices. The daemon has one; the second is pretended."""

    def buffers(self, args, **kwargs):
        """The buffers that the columns of a call of add name; None: inline or returned."""
        prepared = self.rd._drive(self.rd._operations.prepare("add", 0, args, kwargs))
        return [column.buffer.buffer_ids[0] if column.HasField("buffer") else None
                for column in prepared.batch.tasks.arguments]

    def test_a_call_names_buffers_of_one_device(self):
        locate = self.rd._operations.memory.locate
        x, y = self.rd.shared((100,)), self.rd.shared((100,))
        here, there = locate(x)[0], locate(y)[0]
        there.device = 1
        self.assertEqual(self.buffers((x, y)), [here.buffer_id, None, None])
        self.assertEqual(self.buffers((y, x)), [there.buffer_id, None, None])
        self.assertEqual(self.buffers((x, y), device=1), [None, there.buffer_id, None])
        self.assertEqual(self.buffers((x, x), out=y), [here.buffer_id, here.buffer_id, None])
        with self.rd.upload(np.ones(100, np.float32)) as buffer:
            self.assertEqual(self.buffers((y, buffer)), [None, buffer.id, None])
        np.testing.assert_array_equal(self.rd.op("add")(x, y + 1), 1)


if __name__ == "__main__":
    support.unittest_main.main()
