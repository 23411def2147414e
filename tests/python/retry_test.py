#!/usr/bin/python3
"""The option `retry`: calls that did not run are sent again, and others are not.

A proxy stands between the client and the daemon. It passes bytes on, and ends calls of Executor.Run as a
test tells it: before they reach the daemon, or after they ran.
"""

import asyncio
import concurrent.futures
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import grpc  # noqa: E402
import numpy as np  # noqa: E402

import residentd.aio  # noqa: E402
from residentd import rpc_status  # noqa: E402

X = np.float32([1, 2, 3])
RUN = "/resident.v1.Executor/Run"
LOOP = asyncio.new_event_loop()  # One for all tests: grpc.aio expects one in a process.


class Refusal:
    """Ends a call before it reaches the daemon."""

    def __init__(self, code, reason="", text="refused by the proxy"):
        self.code, self.reason, self.text = code, reason, text

    def end(self, context):
        if self.reason:
            info = support.message("google.rpc.ErrorInfo")(reason=self.reason, domain="residentd")
            status = support.message("google.rpc.Status")(code=self.code.value[0])
            status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo",
                               value=info.SerializeToString())
            context.set_trailing_metadata(((rpc_status.KEY, status.SerializeToString()),))
        context.abort(self.code, self.text)


LOST = Refusal(grpc.StatusCode.UNAVAILABLE, text="Socket closed")  # Behind the daemon.
DRAINING = Refusal(grpc.StatusCode.UNAVAILABLE, "DRAINING")
QUEUE_FULL = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


class Proxy(grpc.GenericRpcHandler):

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.address = "127.0.0.1:{}".format(self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()
        self.script = []  # What happens to the next calls of Run; then they are passed on.
        self.runs = 0  # That reached the daemon.
        self.calls = 0

    def stop(self):
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, details):
        path = details.method
        if path == "/resident.v1.Sessions/Open":
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._channel.unary_stream(path)(request))
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._pass_on(path, request, context))

    def _pass_on(self, path, request, context):
        event = None
        if path == RUN:
            self.calls += 1
            event = self.script.pop(0) if self.script else None
        if event is not None and event is not LOST:
            event.end(context)
        if path == RUN:
            self.runs += 1
        try:
            answer = self._channel.unary_unary(path)(request, metadata=[
                each for each in context.invocation_metadata() if each[0] == "resident-session"])
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
        if event is LOST:
            event.end(context)
        return answer


class Retries(support.PackageTest):
    FLAGS = ("--max_queued_tasks=4",)

    def setUp(self):
        self.proxy = Proxy(self.daemon.address)
        self.addCleanup(self.proxy.stop)
        self.client = residentd.connect(self.proxy.address)
        self.addCleanup(self.client.close)
        self.add = self.client.op("add")

    def script(self, *events):
        self.proxy.script[:] = events
        self.proxy.calls = self.proxy.runs = 0

    def test_a_call_that_was_refused_before_it_ran_is_sent_again(self):
        for run in (self.add, self.add.run, lambda *args, **options: self.add.map(
                *(np.stack([a, a]) for a in args), **options)):
            self.script(DRAINING, QUEUE_FULL)
            run(X, X, retry=True)
            self.assertEqual((self.proxy.calls, self.proxy.runs), (3, 1))
        self.script(DRAINING)
        self.assertEqual(self.client.flux(bytes([0x20, 0, 0, 1]), [[1, 2]], retry=True).registers, 3)
        self.assertEqual((self.proxy.calls, self.proxy.runs), (2, 1))

    def test_by_default_nothing_is_sent_again(self):
        for refusal in (DRAINING, QUEUE_FULL, LOST):
            self.script(refusal)
            with self.assertRaises((residentd.Unavailable, residentd.ResourceExhausted)) as caught:
                self.add(X, X)
            self.assertEqual(self.proxy.calls, 1)
            self.assertEqual(caught.exception.may_have_run, refusal is LOST)

    def test_a_call_that_may_have_run_is_sent_again_only_if_that_is_permitted(self):
        self.script(LOST)
        with self.assertRaises(residentd.Unavailable):
            self.add(X, X, retry=True)
        self.assertEqual((self.proxy.calls, self.proxy.runs), (1, 1))
        self.script(LOST)
        np.testing.assert_array_equal(self.add(X, X, retry="may_run_twice"), 2 * X)
        self.assertEqual((self.proxy.calls, self.proxy.runs), (2, 2))

    def test_what_does_not_pass_is_not_sent_again(self):
        for code, reason, kind in (
                (grpc.StatusCode.UNAVAILABLE, "", residentd.Unavailable),
                (grpc.StatusCode.RESOURCE_EXHAUSTED, "", residentd.ResourceExhausted),
                (grpc.StatusCode.INVALID_ARGUMENT, "SHAPE_MISMATCH", residentd.InvalidArgument),
                (grpc.StatusCode.DEADLINE_EXCEEDED, "", residentd.DeadlineExceeded)):
            self.script(Refusal(code, reason))
            with self.assertRaises(kind):
                self.add(X, X, retry=True)
            self.assertEqual(self.proxy.calls, 1)

    def test_tasks_that_failed_are_not_sent_again(self):
        self.script()
        with self.assertRaises(residentd.TaskFailed):
            self.client.op("sum")(X, axes=2, shape=(3,), retry="may_run_twice")
        self.assertEqual(self.proxy.calls, 1)

    def test_the_timeout_is_that_of_all_attempts(self):
        self.script(*[QUEUE_FULL] * 1000)
        start = time.monotonic()
        # The last attempt may be refused, or late.
        with self.assertRaises((residentd.ResourceExhausted, residentd.DeadlineExceeded)):
            self.add(X, X, retry=True, timeout=2)
        self.assertLess(time.monotonic() - start, 30)
        self.assertGreater(self.proxy.calls, 1)
        self.assertEqual(self.proxy.runs, 0)

    def test_an_inout_must_not_run_twice(self):
        one = np.ones((2, 2), np.float32)
        gemm = self.client.op("gemm")
        self.refused(residentd.InvalidArgument, "must not run twice", gemm, one, one, one.copy(), beta=1,
                     retry="may_run_twice")
        self.script(DRAINING)
        c = one.copy()
        gemm(one, one, c, beta=1, retry=True)
        np.testing.assert_array_equal(c, 3)
        # An output that is also an input has other elements then.
        shared = self.client.shared(X.shape)
        shared[:] = X
        self.script(LOST)
        with self.assertRaises(residentd.Unavailable):
            self.add(shared, X, out=shared, retry="may_run_twice")
        self.assertEqual(self.proxy.runs, 1)

    def test_values_of_the_option(self):
        self.refused(residentd.InvalidArgument, "retry='yes' is unknown", self.add, X, X, retry="yes")
        self.refused(residentd.InvalidArgument, "retry='may_run_twice' is unknown", self.connect,
                     retry="may_run_twice")
        self.refused(residentd.InvalidArgument, "a stream sends no batch again", self.add.submit, X, X,
                     retry=True)

    def test_the_client_can_have_the_option_for_all_calls(self):
        with residentd.connect(self.proxy.address, retry=True) as client:
            add = client.op("add")
            np.testing.assert_array_equal(add(X, X), 2 * X)
            self.script(DRAINING)
            np.testing.assert_array_equal(add(X, X), 2 * X)
            self.script(DRAINING)
            with self.assertRaises(residentd.Unavailable):
                add(X, X, retry=False)
            np.testing.assert_array_equal(add.submit(X, X).result(), 2 * X)

    def test_asyncio(self):

        async def work():
            async with residentd.aio.connect(self.proxy.address, retry=True) as client:
                add = client.op("add")
                self.script(DRAINING, QUEUE_FULL)
                np.testing.assert_array_equal(await add(X, X), 2 * X)
                self.assertEqual((self.proxy.calls, self.proxy.runs), (3, 1))
                self.script(LOST)
                with self.assertRaises(residentd.Unavailable):
                    await add(X, X)
                self.assertEqual(self.proxy.calls, 1)
                self.script(LOST)
                np.testing.assert_array_equal(await add(X, X, retry="may_run_twice"), 2 * X)

        LOOP.run_until_complete(work())

    def test_a_full_queue_of_the_daemon_passes(self):
        add = self.rd.op("add")
        add(X, X)
        call = self.rd._connection._call
        call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
        resumed = threading.Event()

        def resume():
            call("Admin.Resume", support.message("ResumeRequest")(device=0), None, "")
            resumed.set()

        self.addCleanup(lambda: resumed.is_set() or resume())
        queued = [add.submit(X, X) for _ in range(4)]
        self.wait_for(lambda: self.rd.status().devices[0].queued_tasks == 4)
        error = self.refused(residentd.ResourceExhausted, "4 tasks queued", add, X, X)
        self.assertEqual((error.reason, error.details, error.may_have_run),
                         ("QUEUE_FULL", {"limit": "4"}, False))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(add, X, X, retry=True)
            time.sleep(0.2)  # It makes no difference to the result how often it was refused.
            self.assertFalse(waiting.done())
            resume()
            np.testing.assert_array_equal(waiting.result(), 2 * X)
        for each in queued:
            np.testing.assert_array_equal(each.result(), 2 * X)


class Restarts(support.PackageTest):

    def test_a_call_waits_for_the_next_daemon(self):
        add = self.rd.op("add")
        large = np.ones(1 << 16, np.float32)
        np.testing.assert_array_equal(add(large, large), 2 * large)
        address = self.daemon.address
        self.stop_daemon()
        error = self.refused_without_a_daemon(add)
        self.assertFalse(error.may_have_run)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(add, each, each, retry=True) for each in (X, large)]
            self.start_at(address)
            for call, each in zip(calls, (X, large)):
                np.testing.assert_array_equal(call.result(), 2 * each)

    def refused_without_a_daemon(self, add):
        """The error without a connection. Calls that find it as it breaks have other errors."""
        while True:
            with self.assertRaises(ConnectionError) as caught:
                add(X, X)
            if "failed to connect" in str(caught.exception):
                return caught.exception


if __name__ == "__main__":
    support.unittest_main.main()
