#!/usr/bin/python3
"""Task graphs: sessions, a daemon that is killed during runs, and asyncio."""

import asyncio
import gc
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import residentd.aio  # noqa: E402
from graph_support import GraphTest  # noqa: E402

LOOP = asyncio.new_event_loop()  # One for all tests: grpc.aio expects one in a process.


class Sessions(GraphTest):

    def setUp(self):
        self.loaded = self.rd.graphs.load(self.series())
        self.addCleanup(self.loaded.unload)

    def run_steps(self, session, count, **values):
        return session.run(pair=self.PAIR, max_steps=count, **values).records["sum"]

    def test_runs_continue_and_forks_are_independent(self):
        with self.loaded.open(k=0) as session:
            self.assertEqual((session.device, session.state_bytes > 0), (0, True))
            np.testing.assert_array_equal(self.run_steps(session, 2), self.sums(0, 2))
            with session.fork() as fork:
                np.testing.assert_array_equal(self.run_steps(fork, 1), self.sums(2, 1))
                info = fork.describe()
                self.assertEqual((info.state, info.scalars, info.runs, info.steps, info.graph_id),
                                 ("ready", {"k": 3.0}, 1, 1, self.loaded.id))
                self.assertEqual([each.id for each in self.rd.graphs.sessions()], [session.id, fork.id])
                self.assertEqual(self.loaded.describe().sessions, 2)
            result = session.run(pair=-self.PAIR, max_steps=1)
            np.testing.assert_array_equal(result.records["sum"][0], 2 * self.sums(1, 1)[0] - self.sums(2, 1)[0])
            self.assertEqual(result.next_scalars, {"k": 3.0})
            self.run_steps(session, 1, k=7)  # Scalars of a run replace those of the session.
            self.assertEqual(session.describe().scalars, {"k": 8.0})
        self.assertEqual(self.rd.graphs.sessions(), [])
        session.close()
        self.refused(residentd.FailedPrecondition, "was closed", session.fork)
        self.refused(residentd.FailedPrecondition, "was closed", session.run, pair=self.PAIR)

    def test_the_memory_of_a_session(self):
        with self.rd.upload(self.PAIR[0]) as total, self.loaded.open(total=total, k=0) as session:
            self.run_steps(session, 1)
            np.testing.assert_array_equal(total.numpy(), 2 * self.PAIR[0])
            self.refused(residentd.InvalidArgument, "its memory belongs to the graph session", session.run,
                         pair=self.PAIR, total=[0, 0])
        with self.loaded.open({"total": [1, 1]}, k=0, device=0) as session:
            np.testing.assert_array_equal(self.run_steps(session, 1), [self.PAIR[0] + 1])
        self.refused(residentd.InvalidArgument, "it is an input", self.loaded.open, pair=self.PAIR, k=0)

    def test_a_session_that_nothing_refers_to_is_closed(self):
        session = self.loaded.open(k=0)
        forks = [session.fork() for _ in range(3)]
        del session, forks
        gc.collect()
        self.wait_for(lambda: self.rd.graphs.sessions() == [])

    def test_records_of_a_session(self):
        with self.loaded.open(k=0) as session:
            with session.run_stream(pair=self.PAIR, max_steps=2) as records:
                np.testing.assert_array_equal([record["sum"] for record in records], self.sums(0, 2))
            self.assertEqual(records.result.next_scalars, {"k": 2.0})

    def test_a_session_that_is_interrupted(self):
        b = self.builder("interrupted")
        found = b.call("embedding", b.input("index", 1, "i64"), b.input("table", (3, 2)))
        b.call("copy", found, out=b.state("row", (1, 2)))
        b.output("y", found)
        table = np.arange(6, dtype=np.float32).reshape(3, 2)
        with self.rd.graphs.load(b.build()) as loaded, loaded.open() as session:
            self.assertRaises(residentd.NodeFailed, session.run, index=[9], table=table)
            self.assertEqual(session.describe().state, "interrupted")
            self.refused(residentd.FailedPrecondition, "set repeat_interrupted", session.run, index=[1], table=table)
            result = session.run(index=[1], table=table, repeat_interrupted=True)
            np.testing.assert_array_equal(result.outputs["y"], table[1:2])
            self.assertEqual(session.describe().state, "ready")


class Restarts(GraphTest):
    """A daemon that is killed in the middle."""

    def setUp(self):
        self.loaded = self.rd.graphs.load(self.endless())
        self.session = self.loaded.open()

    def restart(self):
        address = self.daemon.address
        self.stop_daemon(kill=True)
        self.start_at(address)

    def connected(self):
        try:
            return self.rd.status()
        except ConnectionError:
            return None

    def test_runs_end_with_an_error(self):
        records = self.loaded.run_stream(x=[1, 1])
        next(records)
        waiting, errors = threading.Event(), []

        def run():
            try:
                with self.session.run_stream(x=[1, 1]) as other:
                    for _ in other:
                        waiting.set()
            except residentd.Unavailable as error:
                errors.append(error)

        async def run_with_asyncio():
            async with residentd.aio.connect(self.daemon.address) as rd:
                async with (await rd.graphs.find("endless")).run_stream(x=[1, 1]) as other:
                    await other.__anext__()
                    self.restart()
                    with self.assertRaises(residentd.Unavailable):
                        async for _ in other:
                            pass

        thread = threading.Thread(target=run)
        thread.start()
        waiting.wait()
        LOOP.run_until_complete(run_with_asyncio())
        thread.join()
        self.assertEqual(len(errors), 1)
        self.assertRaises(residentd.Unavailable, list, records)
        self.wait_for(self.connected)
        self.refused(residentd.NotFound, "belonged to a session that has ended", self.session.run, x=[1, 1])
        self.refused(residentd.NotFound, "belonged to a session that has ended", self.session.fork)
        self.session.close()
        self.refused(residentd.NotFound, "is loaded", self.loaded.run, x=[1, 1], max_steps=1)
        loaded = self.rd.graphs.load(self.loaded.graph)
        self.assertEqual(loaded.id, self.loaded.id)
        with loaded.open() as session:
            self.assertEqual(session.run(x=[1, 1], max_steps=2).steps, 2)
            # Its id is that of the session before.
            self.assertEqual(session.id, self.session.id)


class Asyncio(GraphTest):

    def in_loop(self, work):
        async def connected():
            async with residentd.aio.connect(self.daemon.address) as rd:
                await work(rd)

        LOOP.run_until_complete(asyncio.wait_for(connected(), support.WAIT_S))

    def test_the_same_names(self):
        async def work(rd):
            self.refused(residentd.InvalidArgument, "cannot be asked", residentd.GraphBuilder, "g", rd)
            b = residentd.GraphBuilder("aio", await rd.operators.list())
            b.output("y", b.call("add", b.input("x", 2), b.weight("w", 2)))
            graph = b.build()
            self.assertTrue((await rd.graphs.validate(graph)).accepted)
            self.assertTrue((await rd.graphs.render(graph)).startswith("<svg"))
            w = await rd.upload([1, 2], name="w")
            np.testing.assert_array_equal((await rd.graphs.run(graph, x=[1, 1])).outputs["y"], [2, 3])
            async with await rd.graphs.load(graph) as loaded:
                out = await rd.empty(2)
                results = await asyncio.gather(*(loaded.run(x=[i, i]) for i in range(8)),
                                               loaded.run({"y": out}, x=w))
                for i in range(8):
                    np.testing.assert_array_equal(results[i].outputs["y"], [1 + i, 2 + i])
                self.assertIs(results[8].outputs["y"], out)
                np.testing.assert_array_equal(await out.numpy(), [2, 4])
                found = await rd.graphs.find("aio")
                self.assertEqual((found.id, (await found.describe()).runs), (loaded.id, 9))
                self.assertEqual([each.name for each in await rd.graphs.list()], ["aio"])
            self.assertEqual(await rd.graphs.list(), [])

        self.in_loop(work)

    def test_each_record_has_the_versions_of_its_step(self):
        async def work(rd):
            active, changes = 2, 0
            async with await rd.graphs.load(graph) as loaded, loaded.run_stream(x=np.ones(4096, np.float32)) as records:
                async for record in records:
                    self.check_versions(record)
                    if record["y"][0] != (active + 1)**2:
                        continue
                    if changes == 2:
                        break
                    active, changes = 3 - active, changes + 1
                    await rd.operators.activate("scaled", active)
            self.assertEqual(changes, 2)

        graph = self.scaled_twice()
        self.in_loop(work)

    def test_records_and_sessions(self):
        async def work(rd):
            async with await rd.graphs.load(self.series()) as loaded:
                async with await loaded.open(k=0) as session:
                    async with session.run_stream(pair=self.PAIR, max_steps=2) as records:
                        np.testing.assert_array_equal([record["sum"] async for record in records],
                                                      self.sums(0, 2))
                    self.assertEqual(records.result.steps, 2)
                    async with await session.fork() as fork:
                        result = await fork.run(pair=self.PAIR, max_steps=1)
                        np.testing.assert_array_equal(result.records["sum"], self.sums(2, 1))
                        self.assertEqual((await fork.describe()).scalars, {"k": 3.0})
                    self.assertEqual([each.id for each in await rd.graphs.sessions()], [session.id])

        self.in_loop(work)

    def test_runs_that_are_ended(self):
        async def work(rd):
            async with await rd.graphs.load(self.endless()) as loaded:

                async def check_it_ends(count):
                    while (await loaded.describe()).runs != count:
                        await asyncio.sleep(0.01)

                async with loaded.run_stream(x=[1, 1]) as records:
                    await records.__anext__()
                self.assertEqual([record async for record in records], [])
                await check_it_ends(1)
                # A task that is cancelled cancels its run.
                records, first = loaded.run_stream(x=[1, 1]), asyncio.Event()

                async def read():
                    async for _ in records:
                        first.set()
                    return "closed"

                task = asyncio.ensure_future(read())
                await first.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await check_it_ends(2)
                # A run is closed while another task reads.
                records = loaded.run_stream(x=[1, 1])
                first.clear()
                task = asyncio.ensure_future(read())
                await first.wait()
                await records.close()
                self.assertEqual(await task, "closed")
                await check_it_ends(3)
                with self.assertRaises(residentd.DeadlineExceeded):
                    async for _ in loaded.run_stream(x=[1, 1], timeout=2):
                        pass
                await check_it_ends(4)
                # The run of a task that is cancelled while it waits for the result.
                task = asyncio.ensure_future(loaded.run(x=[1, 1]))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        self.in_loop(work)

    def test_a_failing_node(self):
        async def work(rd):
            b = residentd.GraphBuilder("fails", await rd.operators.list())
            b.output("y", b.call("embedding", b.input("index", 1, "i64"), b.input("table", (3, 2)), node="n"))
            with self.assertRaises(residentd.NodeFailed) as caught:
                await rd.graphs.run(b.build(), index=[7], table=np.zeros((3, 2), np.float32))
            self.assertEqual((caught.exception.node, caught.exception.version), ("n", 1))

        self.in_loop(work)


if __name__ == "__main__":
    support.unittest_main.main()
