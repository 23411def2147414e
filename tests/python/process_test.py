#!/usr/bin/python3
"""Processes that use the package: killed, forked, interrupted, and without a daemon."""

import asyncio
import concurrent.futures
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import grpc  # noqa: E402
import numpy as np  # noqa: E402

import residentd.aio  # noqa: E402
import residentd.credentials  # noqa: E402

X = np.float32([1, 2, 3])
LOOP = asyncio.new_event_loop()  # One for all tests: grpc.aio expects one in a process.

# A shell starts background jobs with SIGINT ignored, which Python then leaves as it is.
CLIENT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {path!r}
import numpy as np, residentd
rd = residentd.connect({address!r}, client_name="victim")
add = rd.op("add")
shared, buffer = rd.shared((1 << 20,)), rd.upload(np.ones(1000))
out = add(np.ones(1 << 18, np.float32), 1)
{then}
"""


# Prints a line when the main thread waits for the answer of a call. An interrupt that arrives while grpcio
# still starts a call leaves the call open until the client ends: grpcio keeps it.
PRINT_WHEN_WAITING = """
import linecache, threading, time
def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code.co_name != "_blocking":
        frame = frame.f_back
    return frame is not None and "next_event" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
def watch():
    while not waits():
        time.sleep(0.01)
    print("waiting", flush=True)
threading.Thread(target=watch, daemon=True).start()
"""


class Processes(support.PackageTest):

    def start(self, then):
        program = CLIENT.format(path=sys.path, address=self.daemon.address, then=then)
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def victims(self):
        return [client for client in self.rd.status().clients if client.name == "victim"]

    def test_a_killed_client_leaves_nothing_behind(self):
        process = self.start('print("ready", flush=True); sys.stdin.readline()')
        self.assertEqual(self.victims()[0].buffers, 3)
        self.assertEqual(support.shared_objects(process.pid), [])
        process.kill()
        self.wait_for(lambda: not self.victims())
        self.wait_for(lambda: not self.rd.status().devices[0].buffers)
        self.assertEqual(support.shared_objects(process.pid), [])

    def test_a_program_may_end_without_closing_its_client(self):
        process = self.start('futures = [add.submit(out, out) for _ in range(9)]\n'
                             'stream = rd.stream(); print("ready", flush=True)')
        code, errors = process.wait(support.WAIT_S), process.stderr.read()
        self.assertEqual(code, 0, errors)
        self.assertEqual(errors, "")
        self.wait_for(lambda: not self.victims())

    def park(self):
        self.rd._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
        self.addCleanup(self.rd._connection._call, "Admin.Resume",
                        support.message("ResumeRequest")(device=0), None, "")

    def test_an_interrupt_cancels_the_call(self):
        process = self.start('print("ready", flush=True); sys.stdin.readline()\n' + PRINT_WHEN_WAITING +
                             'try:\n  add([1], [2])\n'
                             'except KeyboardInterrupt:\n'
                             '  print("interrupted", flush=True); sys.stdin.readline()')
        self.park()
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), "waiting\n")
        self.wait_for(lambda: self.rd.status().devices[0].queued_tasks == 1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "interrupted\n")
        self.wait_for(lambda: self.rd.status().devices[0].queued_tasks == 0)

    def test_a_forked_process_is_refused(self):
        add = self.rd.op("add")
        with self.rd.stream() as stream:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    for use in (lambda: add(X, X), lambda: stream.submit(add, X, X), self.rd.stream,
                                self.rd.status):
                        try:
                            use()
                        except residentd.FailedPrecondition as error:
                            os.write(write, str(error).encode() + b"\n")
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            os.close(write)
            with os.fdopen(read) as answers:
                text = answers.read()
        self.assertEqual(text.count("which was forked from it\nFix: call residentd.connect()"), 4, text)
        np.testing.assert_array_equal(add(X, X), 2 * X)

    def test_a_forked_process_leaves_the_blocks_of_its_parent(self):
        process = self.start('add.submit(out, out).result(); child = 1\n'
                             'for failed in (False, True):\n'
                             '  try:\n'
                             '    with residentd.connect({!r}) as one, one.stream() as stream:\n'
                             '      one.op("add").submit(out, out).result()\n'
                             '      stream.submit(one.op("add"), out, out).result()\n'
                             '      child = os.fork()\n'
                             '      if failed and child == 0: raise KeyError\n'
                             '      if child: assert os.waitpid(child, 0)[1] == 0\n'
                             '  except KeyError: pass\n'
                             '  if child == 0: os._exit(0)\n'
                             'print("ready", flush=True)'.format(self.daemon.address))
        self.assertEqual(process.wait(support.WAIT_S), 0)

    def test_a_client_that_nothing_refers_to_ends(self):
        def use():
            client = self.connect(client_name="victim")
            add, buffer = client.op("add"), client.upload(X)
            np.testing.assert_array_equal(add(buffer, X), 2 * X)
            np.testing.assert_array_equal(add(X, X), 2 * X)
            client.stream()
            return add.submit(X, X), client.op("add")(np.ones(1 << 16), 1)

        future, array = use()
        np.testing.assert_array_equal(future.result(), 2 * X)
        gc.collect()
        self.wait_for(lambda: gc.collect() + 1 and not self.victims())
        np.testing.assert_array_equal(array, 2)  # Remains, as memory of this process.
        self.wait_for(lambda: "residentd-stream" not in [each.name for each in threading.enumerate()])

        async def work():
            client = await residentd.aio.connect(self.daemon.address, client_name="victim")
            np.testing.assert_array_equal(await client.op("add")(X, X), 2 * X)
            del client
            while self.victims():
                gc.collect()
                await asyncio.sleep(0.01)

        LOOP.run_until_complete(asyncio.wait_for(work(), support.WAIT_S))

    def test_a_client_lives_until_its_batches_are_answered(self):
        self.park()
        future = self.connect(client_name="victim").op("add").submit(X, X)
        gc.collect()
        self.assertEqual(len(self.victims()), 1)
        self.doCleanups()
        np.testing.assert_array_equal(future.result(), 2 * X)

    def test_a_daemon_that_is_not_there(self):
        error = self.refused(residentd.Unavailable, "cannot reach 127.0.0.1:1", residentd.connect,
                             "127.0.0.1:1")
        self.assertIsInstance(error, ConnectionError)

    def test_a_daemon_that_ends_the_session_immediately(self):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("resident.v1.Sessions", {
            "Open": grpc.unary_stream_rpc_method_handler(lambda request, context: iter(())),
        }),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        self.refused(residentd.Unavailable, "ended the session", residentd.connect,
                     "127.0.0.1:{}".format(port))

    def test_a_lost_connection_is_noticed(self):
        options = dict(residentd.credentials.target_and_options(self.rd._connection._settings)[1])
        self.assertGreaterEqual(options["grpc.keepalive_time_ms"], 5000)  # What the daemon permits.
        self.assertGreater(options["grpc.keepalive_timeout_ms"], 0)
        self.assertEqual(options["grpc.http2.max_pings_without_data"], 0)
        self.assertLessEqual(options["grpc.initial_reconnect_backoff_ms"],
                             options["grpc.max_reconnect_backoff_ms"])

    def test_settings_that_cannot_work(self):
        self.refused(residentd.FailedPrecondition, "in the clear", residentd.connect, "192.0.2.1:1",
                     token_file="token")
        self.refused(residentd.InvalidArgument, "shared_memory='yes'", residentd.connect, shared_memory="yes")
        self.refused(residentd.InvalidArgument, "needs tls_cert and tls_key", residentd.connect,
                     tls_ca="ca", tls_cert="cert")

    def test_times_that_are_none(self):
        for time in (float("inf"), float("nan"), "5", 1e12, 0, -1, True, None):
            self.refused(residentd.InvalidArgument, "timeout={!r} is not a time".format(time),
                         self.connect, timeout=time)
            self.refused(residentd.InvalidArgument, "connect_timeout={!r} is not".format(time),
                         self.connect, connect_timeout=time)
            if time is not None:
                self.refused(residentd.InvalidArgument, "timeout={!r} is not a time".format(time),
                             self.rd.operators.remove, "none", timeout=time)

    def test_errors_can_be_sent_between_processes(self):
        for error in (residentd.NotFound("no operator 'ad'. Fix: use 'add'", operator="ad"),
                      residentd.DeadlineExceeded("late", "wait")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), copy.operator),
                             (type(error), str(error), error.operator))

    def test_results_can_be_sent_between_processes(self):
        x = np.ones((2, 3), np.float32)
        result = self.rd.op("rmsnorm_residual").run(x, x, x[0])
        made = pickle.loads(pickle.dumps(result))
        self.assertEqual((made.version, made.device, made.device_ns, made.outputs._fields),
                         (result.version, result.device, result.device_ns, result.outputs._fields))
        np.testing.assert_array_equal(made.outputs.out, result.outputs.out)
        self.assertIs(type(made.value), type(result.value))
        with self.assertRaises(residentd.TaskFailed) as caught:
            self.rd.op("embedding").map(np.int64([[1], [7]]), x, shared=("table",))
        error = caught.exception
        made = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(made), str(made), repr(made.errors), made.may_have_run),
                         (type(error), str(error), repr(error.errors), error.may_have_run))
        np.testing.assert_array_equal(made.result.value, error.result.value)


class Restarts(support.PackageTest):
    """A daemon that is replaced by another one at the same address."""

    def connected(self):
        try:
            return self.rd.status()
        except ConnectionError:
            return None

    def test_a_client_continues_with_a_new_session(self):
        add = self.rd.op("add")
        large = np.ones(1 << 16, np.float32)
        np.testing.assert_array_equal(add(large, large), 2 * large)
        buffer = self.rd.upload(X)
        address = self.daemon.address
        self.stop_daemon()
        with self.assertRaises(ConnectionError):
            add(X, X)
        self.start_at(address)
        self.wait_for(self.connected)  # gRPC waits before it connects again.
        np.testing.assert_array_equal(add(large, large), 2 * large)
        np.testing.assert_array_equal(add.submit(X, X).result(), 2 * X)
        self.refused(residentd.NotFound, "belonged to a session that has ended", add, buffer, X)
        buffer.free()
        with self.rd.upload(X) as again:
            np.testing.assert_array_equal(add(again, X), 2 * X)

    def restart(self, *flags):
        address = self.daemon.address
        self.stop_daemon()
        self.start_at(address, *flags)

    def check_durable_buffers(self, flags, check):
        """Calls check(a buffer, one of asyncio's client, that client) after a restart."""

        async def work():
            async with residentd.aio.connect(self.daemon.address) as rd:
                mine = self.rd.upload(X, durable=True, name="mine")
                other = await rd.upload(X, durable=True, name="other")
                if flags:
                    mine.persist()
                    await other.persist()
                self.restart(*flags)
                self.wait_for(self.connected)
                self.wait_for(lambda: mine._memory.uncertain)
                while not other._memory.uncertain:
                    await asyncio.sleep(0.01)
                await check(mine, other, rd)
                mine.free()
                await other.free()

        LOOP.run_until_complete(work())

    def test_a_handle_of_a_durable_buffer_never_names_another_one(self):
        copy = self.rd.op("copy")

        async def check(mine, other, rd):
            # They get the numbers of the buffers before.
            taken = [self.rd.upload(-X, durable=True, name=str(i)) for i in range(other._memory.id)]
            self.assertLessEqual({mine._memory.id, other._memory.id}, {each.id for each in taken})
            for use in (lambda: copy(mine), mine.numpy, lambda: mine.write(X), mine.persist,
                        lambda: copy.submit(mine)):
                self.refused(residentd.NotFound, "restarted without buffer", use)
            for call in (rd.op("copy")(other), other.numpy(), other.write(X), other.persist(),
                         rd.op("copy").submit(other)):
                with self.assertRaises(residentd.NotFound):
                    await call
            mine.free()
            await other.free()
            for each in taken:
                np.testing.assert_array_equal(each.numpy(), -X)
                each.free()

        self.check_durable_buffers((), check)

    def test_a_handle_without_a_name_never_names_another_buffer(self):
        mine = self.rd.upload(X, durable=True)
        foreign = [each for each in self.rd.buffers() if each.id == mine.id][0]
        unnamed = residentd.buffers.BufferMemory(support.message("BufferInfo")(
            id=foreign.id, size_bytes=12, durable=True), self.rd._operations.memory, False)
        self.restart()
        self.wait_for(self.connected)
        self.wait_for(lambda: mine._memory.uncertain)
        taken = [self.rd.upload(-X, durable=True) for _ in range(mine._memory.id)]
        self.assertIn(mine._memory.id, [each.id for each in taken])
        for each in (mine, foreign, self.rd._buffer(unnamed, residentd.dtypes.find("f32"), (3,))):
            self.refused(residentd.NotFound, "restarted without buffer", each.numpy)
        for each in taken:
            np.testing.assert_array_equal(each.numpy(), -X)
            each.free()

    def test_a_handle_of_a_durable_buffer_that_was_restored_remains_valid(self):
        async def check(mine, other, rd):
            np.testing.assert_array_equal(self.rd.op("copy")(mine), X)
            np.testing.assert_array_equal(await rd.op("copy")(other), X)
            mine.write(2 * X)
            await other.write(2 * X)
            np.testing.assert_array_equal(mine.numpy(), await other.numpy())

        flags = ("--state_dir=" + str(support.temporary_folder(type(self))),)
        self.restart(*flags)
        self.wait_for(self.connected)
        self.check_durable_buffers(flags, check)


if __name__ == "__main__":
    support.unittest_main.main()
