#!/usr/bin/python3
"""Calls that are pipelined: from threads, from asyncio, and what happens when they end early."""

import asyncio
import collections
import concurrent.futures
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import residentd.aio  # noqa: E402
from residentd.calls import Blocking  # noqa: E402

X = np.float32([1, 2, 3])
LOOP = asyncio.new_event_loop()  # One for all tests: grpc.aio expects one in a process.
# Tasks of the test with many threads, and of the one with asyncio.
THREADS, THREAD_TASKS = 8, 11_000
COROUTINES, COROUTINE_TASKS = 4, 3_000


class Streams(support.PackageTest):

    def park(self):
        """Keeps tasks in the queue until the test ends."""
        self.rd._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
        self.addCleanup(self.resume)

    def resume(self):
        self.rd._connection._call("Admin.Resume", support.message("ResumeRequest")(device=0), None, "")

    def test_a_refusal_in_a_stream_has_its_reason_for_programs(self):
        # The daemon refuses it, not the package: the operator's description is not the daemon's.
        prepared = self.rd._drive(self.rd._operations.prepare("add", 0, (X, X), {}))
        prepared.batch.tasks.arguments[1].inline.shape[0] = 2
        prepared.batch.tasks.arguments[1].inline.data = X[:2].tobytes()
        steps = self.rd._operations

        class Changed:
            def prepare(self, *_):
                return prepared
                yield

            def __getattr__(self, name):
                return getattr(steps, name)

        with self.rd.stream() as stream:
            self.rd._operations = Changed()
            try:
                future = stream.submit(self.rd.op("add"), X, X)
            finally:
                self.rd._operations = steps
            with self.assertRaises(residentd.InvalidArgument) as caught:
                future.result()
        error = caught.exception
        self.assertEqual((error.reason, error.details["argument"], error.details["got"], error.may_have_run),
                         ("SHAPE_MISMATCH", "y", "[2]", False))

        async def work():
            async with residentd.aio.connect(self.daemon.address) as rd, rd.stream() as stream:
                await rd.op("add")(X, X)
                rd._operations.prepare = lambda *_: Changed().prepare()
                await (await stream.submit(rd.op("add"), X, X))

        with self.assertRaises(residentd.InvalidArgument) as caught:
            LOOP.run_until_complete(work())
        self.assertEqual((caught.exception.reason, caught.exception.details["got"]), ("SHAPE_MISMATCH", "[2]"))

    def test_each_submit_of_many_threads_has_exactly_one_result(self):
        add = self.rd.op("add")
        answers = collections.Counter()
        wrong = []
        lock = threading.Lock()

        def work(thread):
            def done(future, expected):
                with lock:
                    answers[expected] += 1
                if future.result()[0] != expected:
                    wrong.append((expected, future.result()))

            for i in range(THREAD_TASKS):
                value = thread * THREAD_TASKS + i
                future = add.submit(np.float32([value]), zero)
                future.add_done_callback(lambda future, value=value: done(future, value))

        zero = np.float32([0])
        threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.rd._default_stream().close()
        self.assertEqual(wrong, [])
        self.assertEqual(len(answers), THREADS * THREAD_TASKS)
        self.assertEqual(set(answers.values()), {1})

    def test_each_submit_of_asyncio_tasks_has_exactly_one_result(self):
        async def work(rd, first):
            add = rd.op("add")
            futures = [await add.submit(np.float32([first + i]), 0) for i in range(COROUTINE_TASKS)]
            return [float((await future)[0]) for future in futures]

        async def main():
            async with residentd.aio.connect(self.daemon.address) as rd:
                return await asyncio.gather(*(work(rd, i * COROUTINE_TASKS) for i in range(COROUTINES)))

        results = [value for part in LOOP.run_until_complete(main()) for value in part]
        self.assertEqual(results, list(range(COROUTINES * COROUTINE_TASKS)))

    def test_a_stream_that_is_handed_over_loses_no_batch(self):
        add = self.rd.op("add")
        wrong = []

        def work(stream, first):
            futures = [stream.submit(add, np.float32([first + i]), 0) for i in range(1000)]
            wrong.extend(i for i, future in enumerate(futures) if future.result()[0] != first + i)

        with self.rd.stream(max_age=0.005) as stream:
            first = stream._state
            threads = [threading.Thread(target=work, args=(stream, 1000 * i)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertIsNot(stream._state, first)
            self.assertLess(len(stream._readers), 100, "calls that have ended are not kept")
            # One daemon: buffers stay valid, and what a callback submits is answered too.
            buffer = self.rd.upload(X)
            np.testing.assert_array_equal(stream.submit(add, buffer, X).result(), 2 * X)
            last = stream.submit(add, X, X)
        np.testing.assert_array_equal(last.result(0), 2 * X)
        self.assertEqual(wrong, [])
        self.refused(residentd.FailedPrecondition, "the stream is closed", stream.submit, add, X, X)
        self.refused(residentd.InvalidArgument, "max_age=0 is not above 0", self.rd.stream, max_age=0)

    def test_map_yields_every_result(self):
        add = self.rd.op("add")
        pairs = [(np.float32([i]), np.float32([1])) for i in range(300)]
        with self.rd.stream(max_in_flight=8, in_order=True) as stream:
            self.assertEqual([out[0] for out in stream.map(add, pairs)], [i + 1 for i in range(300)])
        with self.rd.stream() as stream:
            found = sorted(out[0] for out in stream.map(add, ({"x": x, "y": y} for x, y in pairs)))
        self.assertEqual(found, [i + 1 for i in range(300)])

    def test_a_refused_batch_does_not_end_the_stream(self):
        missing, add = self.rd.op("add", version=9), self.rd.op("add")
        with self.rd.stream() as stream:
            refused, good = stream.submit(missing, X, X), stream.submit(add, X, X)
            self.refused(residentd.NotFound, "version 9", refused.result)
            np.testing.assert_array_equal(good.result(), 2 * X)
            self.refused(residentd.InvalidArgument, "is missing", stream.submit, add, X)
        self.refused(residentd.FailedPrecondition, "the stream is closed", stream.submit, add, X, X)

    def in_callback(self, stream, function):
        """What the function returns or raises in a callback of a future of the stream."""
        outcome = concurrent.futures.Future()

        def callback(_):
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        self.park()  # The callback must not run in this thread.
        future = stream.submit(self.rd.op("add"), X, X)
        future.add_done_callback(callback)
        return outcome

    def test_a_callback_submits_without_waiting(self):
        add = self.rd.op("add")
        with self.rd.stream(max_in_flight=1) as stream:
            sent = []
            outcome = self.in_callback(stream, lambda: [sent.append(stream.submit(add, X, X))
                                                        for _ in range(2)])
            self.resume()
            self.refused(residentd.FailedPrecondition, "1 batches are unanswered", outcome.result,
                         support.WAIT_S)
            np.testing.assert_array_equal(sent[0].result(support.WAIT_S), 2 * X)
            outcome = self.in_callback(stream, lambda: stream.submit(add, X, X))
            self.resume()
            np.testing.assert_array_equal(outcome.result(support.WAIT_S).result(support.WAIT_S), 2 * X)

    def test_a_callback_ends_its_stream(self):
        for end in ("close", "cancel"):
            stream = self.rd.stream()
            outcome = self.in_callback(stream, getattr(stream, end))
            self.resume()
            self.assertIsNone(outcome.result(support.WAIT_S))
            self.wait_for(lambda: not stream._readers[-1][1].is_alive())
            self.assertTrue(stream.ended)

    def test_a_failed_task_is_the_futures_error(self):
        with self.assertRaises(residentd.TaskFailed):
            self.rd.op("sum").submit(X, axes=2, shape=(3,)).result()

    def test_submit_updates_an_inout(self):
        gemm, one = self.rd.op("gemm"), np.eye(2, dtype=np.float32)
        c = np.full((2, 2), 5, np.float32)
        np.testing.assert_array_equal(gemm.submit(one, one, c, beta=1).result(), 5 + one)
        with self.connect(shared_memory="off") as rd:
            rd.op("gemm").submit(one, one, c, beta=1).result()
            np.testing.assert_array_equal(c, 5 + 2 * one)
            with rd.upload(c) as buffer:
                rd.op("gemm").submit(one, one, buffer, beta=1).result()
                np.testing.assert_array_equal(buffer.numpy(), 5 + 3 * one)

    def test_a_cancelled_stream_gives_every_future_an_error(self):
        self.park()
        stream = self.rd.stream()
        futures = [stream.submit(self.rd.op("add"), X, X) for _ in range(5)]
        stream.cancel()
        for future in futures:
            self.assertIsInstance(future.exception(), residentd.Cancelled)
        # Each its own, because raising one adds to its traceback.
        self.assertEqual(len({id(future.exception()) for future in futures}), len(futures))

    def test_a_timeout_is_a_timeout_error(self):
        self.park()
        add = self.rd.op("add")
        with self.assertRaises(TimeoutError):
            add(X, X, timeout=0.1)
        with self.assertRaises(TimeoutError):
            add.submit(X, X, timeout=0.1).result()

    def test_close_waits_for_results(self):
        with self.connect() as rd:
            futures = [rd.op("add").submit(X, i) for i in range(100)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(timeout=0), X + i)
        self.refused(residentd.FailedPrecondition, "the client is closed", rd.op("add"), X, X)


class Asyncio(support.PackageTest):

    def run_with_client(self, function, **options):
        async def main():
            async with residentd.aio.connect(self.daemon.address, **options) as rd:
                return await function(rd)

        return LOOP.run_until_complete(main())

    def test_calls_buffers_and_shared_arrays(self):
        async def work(rd):
            add = rd.op("add")
            np.testing.assert_array_equal(await add(X, X, alpha=2), 3 * X)
            self.assertEqual((await add.run(X, X)).version, 1)
            self.assertTrue((await add.signature()).startswith("x: in strided"))
            rows = np.ones((5, 3), np.float32)
            np.testing.assert_array_equal(await add.map(rows, X, shared=("y",)), rows + X)
            large = np.ones((2, 1 << 16), np.float32)
            np.testing.assert_array_equal(await add(large, large), 2 * large)
            async with await rd.upload(rows) as buffer, await rd.empty((5, 3)) as out:
                await add(buffer, X, out=out)
                np.testing.assert_array_equal(await out[1:3].numpy(), rows[1:3] + X)
                await buffer[0].write(X)
                np.testing.assert_array_equal((await buffer.numpy())[0], X)
            shared = await rd.shared((3,))
            await add(X, X, out=shared)
            np.testing.assert_array_equal(shared, 2 * X)
            self.assertIn("DEVICE", str(await rd.status()))
            result = await rd.flux(b"\x20\x00\x00\x01", [[1, 2]])
            self.assertEqual(result.registers.tolist(), [[3]])
            async with rd.stream(in_order=True) as stream:
                self.assertEqual([out[0] async for out in stream.map(add, [(X, i) for i in range(99)])],
                                 [1 + i for i in range(99)])

        self.run_with_client(work)

    def test_errors(self):
        async def work(rd):
            with self.assertRaises(residentd.NotFound):
                await rd.op("ad")(X, X)
            with self.assertRaises(residentd.InvalidArgument):
                await rd.op("add")(X, X[:2])
            future = await rd.op("add", version=9).submit(X, X)
            with self.assertRaises(residentd.NotFound):
                await future

        self.run_with_client(work)
        with self.assertRaises(ConnectionError) as caught:
            LOOP.run_until_complete(self.connect_to_nothing())
        self.assertRegex(str(caught.exception), "cannot reach 127.0.0.1:1:.*\nFix: ")

    async def connect_to_nothing(self):
        await residentd.aio.connect("127.0.0.1:1")

    def test_cancelling_a_task_cancels_the_call(self):
        self.rd._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")

        async def work(rd):
            task = asyncio.get_running_loop().create_task(rd.op("add")(X, X))
            while not self.queued():
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            while self.queued():
                await asyncio.sleep(0.01)

        try:
            self.run_with_client(work)
        finally:
            self.rd._connection._call("Admin.Resume", support.message("ResumeRequest")(device=0), None, "")

    def test_a_cancelled_call_releases_nothing_that_its_thread_still_uses(self):
        started, proceed, order = threading.Event(), threading.Event(), []

        def use():
            started.set()
            proceed.wait(support.WAIT_S)
            order.append("used")

        def steps():
            try:
                yield Blocking(use)
            finally:
                order.append("released")

        async def work(rd):
            task = asyncio.get_running_loop().create_task(rd._drive(steps()))
            while not started.is_set():
                await asyncio.sleep(0.01)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0.01)
            self.assertFalse(task.done())
            proceed.set()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(order, ["used", "released"])

        self.run_with_client(work)

    def test_each_future_of_a_cancelled_stream_has_its_own_error(self):
        async def work(rd):
            stream = rd.stream()
            futures = [await stream.submit(rd.op("add"), X, X) for _ in range(5)]
            await stream.cancel()
            errors = [future.exception() for future in futures]
            self.assertEqual({type(error) for error in errors}, {residentd.Cancelled})
            self.assertEqual(len(set(map(id, errors))), len(errors))

        self.rd._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
        try:
            self.run_with_client(work)
        finally:
            self.rd._connection._call("Admin.Resume", support.message("ResumeRequest")(device=0), None, "")

    def test_a_cancelled_submit_does_not_end_the_stream(self):
        large = np.ones(1 << 21, np.float32)  # Its write is not done at once.

        async def work(rd):
            add = rd.op("add")
            async with rd.stream(max_in_flight=2) as stream:
                await (await stream.submit(add, X, X))
                for _ in range(4):
                    task = asyncio.get_running_loop().create_task(stream.submit(add, large, large))
                    while not stream._pending:
                        await asyncio.sleep(0)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    np.testing.assert_array_equal(await (await stream.submit(add, X, X)), 2 * X)

        self.run_with_client(work, shared_memory="off")

    def test_a_stream_of_asyncio_that_is_handed_over_loses_no_batch(self):
        async def work(rd):
            add = rd.op("add")
            async with rd.stream(max_age=0.001) as stream:
                first = stream._call

                async def submit(first):
                    futures = [await stream.submit(add, np.float32([first + i]), 0) for i in range(500)]
                    return [float((await future)[0]) for future in futures]

                results = await asyncio.gather(*(submit(500 * i) for i in range(4)))
                self.assertEqual([value for part in results for value in part], list(range(2000)))
                self.assertIsNot(stream._call, first)
                self.assertLess(len(stream._readers), 100)
                last = await stream.submit(add, X, X)
            np.testing.assert_array_equal(await last, 2 * X)
            with self.assertRaisesRegex(residentd.FailedPrecondition, "the stream is closed"):
                await stream.submit(add, X, X)

        self.run_with_client(work)

    def test_a_submit_that_is_cancelled_before_its_write_keeps_no_place(self):
        async def work(rd):
            add = rd.op("add")
            async with rd.stream(max_in_flight=2) as stream:
                for _ in range(4):
                    await stream._writing.acquire()
                    task = asyncio.get_running_loop().create_task(stream.submit(add, X, X))
                    while not stream._pending:
                        await asyncio.sleep(0)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    stream._writing.release()
                    while stream._pending:
                        await asyncio.sleep(0.01)
                np.testing.assert_array_equal(await (await stream.submit(add, X, X)), 2 * X)

        self.run_with_client(work)

    def queued(self):
        return self.rd.status().devices[0].queued_tasks


if __name__ == "__main__":
    support.unittest_main.main()
