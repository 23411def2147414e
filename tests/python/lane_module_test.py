#!/usr/bin/python3
"""The module residentd_lane._lane gives what ctypes gives, with a real daemon: results, errors, and their words.

    lane_module_test.py bench      what a call costs in both ways
"""

import ctypes
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402
from residentd import lane as lanes  # noqa: E402

os.environ.setdefault("RESIDENTD_LANE_LIBRARY", str(pathlib.Path("client/lane/libresidentd_lane.so").resolve()))
SLOTS = 64
FULL, TIMEOUT, LOST, INVALID, FORKED = -1, -2, -3, -5, -6


def by_ctypes():
    """The functions of the library through ctypes."""
    library = ctypes.CDLL(lanes.load()._name)
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
            ("submit", number, [pointer, ctypes.c_uint16, pointer, ctypes.c_int, ctypes.c_int]),
            ("await", ctypes.c_int, [pointer, number, number, pointer]),
            ("call", ctypes.c_int, [pointer, ctypes.c_uint16, pointer, ctypes.c_int, number, pointer]),
            ("last_error", ctypes.c_char_p, []), ("next", number, [pointer]),
            ("submit_await", number, [pointer, ctypes.c_uint32, ctypes.c_uint32]),
            ("set_stream", None, [pointer, ctypes.c_uint32, ctypes.c_uint32])):
        function = getattr(library, "residentd_lane_" + name)
        function.restype, function.argtypes = result, arguments
    return library


class DlTensor(ctypes.Structure):
    """DLTensor of dlpack.h."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class DlExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h."""
    TENSOR_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("functions", ctypes.c_void_p * 4),
                ("tensor_of", TENSOR_OF), ("stream", ctypes.c_void_p)]


class Tensor:
    """A tensor of a framework that the test plays."""

    def __init__(self, address, shape=(4, 8), strides=(8, 1), code=2, bits=32, device=0):
        self.address = address
        self.sizes = [(ctypes.c_int64 * len(each))(*each) for each in (shape, strides)]
        self.dl = DlTensor(address, 1, device, len(shape), code, bits, 1, *map(ctypes.addressof, self.sizes), 0)

    def data_ptr(self):
        return self.address


class Module(support.PackageTest):
    folder = tempfile.TemporaryDirectory(prefix="lane-", dir="/tmp")
    FLAGS = ("--local_address={}/local".format(folder.name),)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.raw = by_ctypes()
        cls.ways = ((lanes.module.submit, lanes.module.wait, lanes.module.call),
                    (cls.raw.residentd_lane_submit, cls.raw.residentd_lane_await, cls.raw.residentd_lane_call))

    def setUp(self):
        self.lane = self.rd.lane(slots=SLOTS)
        self.addCleanup(self.lane.close)
        self.x = self.rd.shared((64,))
        self.add = self.lane.prepare("add", self.x, self.x, out=self.x)
        self.done = lanes.Completion()
        self.call = (self.lane._handle, self.add._number, self.add._words_at, 3)
        self.done_at = ctypes.addressof(self.done)

    def both(self, call):
        """What `call` returns for each way, which must be the same; with the words of an error."""
        results = []
        for submit, wait, run in self.ways:
            code = call(submit, wait, run)
            error = self.raw.residentd_lane_last_error() if isinstance(code, int) and code < 0 else b""
            results.append((code, error))
        self.assertEqual(results[0], results[1])
        return results[0][0]

    def test_the_package_uses_the_module(self):
        self.assertIs(self.lane._library.residentd_lane_call, lanes.module.call)
        self.assertIs(self.add._run, lanes.module.call)

    def test_results(self):
        self.x[:] = 1
        self.assertEqual(self.both(lambda submit, wait, run: run(*self.call, -1, self.done_at)), 0)
        np.testing.assert_array_equal(self.x, np.full(64, 4, np.float32))
        self.assertEqual((self.done.status, self.done.sequence), (0, 1))
        for i, (submit, wait, _) in enumerate(self.ways):
            sequence = submit(*self.call, 0)
            self.assertEqual(sequence, 2 + i)
            self.assertEqual(wait(self.lane._handle, sequence, -1, self.done_at), 0)
            self.assertEqual((self.done.status, self.done.sequence), (0, sequence))
            self.assertEqual(wait(self.lane._handle, sequence, 0, 0), 0)
        np.testing.assert_array_equal(self.x, np.full(64, 16, np.float32))
        # A task that the daemon refuses.
        self.add._words[0] = 99 << 48
        self.assertEqual(self.both(lambda submit, wait, run: (
            run(*self.call, -1, self.done_at), self.done.status, self.done.detail)), (0, 64, 4))

    def test_errors_and_their_words(self):
        lane = self.lane._handle
        self.assertEqual(self.both(lambda submit, *_: submit(*self.call[:3], 8, 0)), INVALID)
        self.assertEqual(self.both(lambda submit, *_: submit(*self.call, 64)), INVALID)
        self.assertEqual(self.both(lambda _, wait, __: wait(lane, 12345, -1, 0)), INVALID)
        self.assertEqual(self.both(lambda _, __, run: run(*self.call[:3], -1, -1, self.done_at)), INVALID)
        # The lane is full of what waits for a stream.
        self.assertGreaterEqual(self.raw.residentd_lane_submit_await(lane, 0, 1), 0)
        words = (ctypes.c_uint64 * (100 * 3))(*(list(self.add._words[:3]) * 100))
        self.assertEqual(lanes.module.submit_all(*self.call[:2], ctypes.addressof(words), 100, 3, 0), SLOTS - 1)
        last = self.raw.residentd_lane_next(lane) - 1
        self.assertEqual(self.both(lambda submit, *_: submit(*self.call, 0)), FULL)
        self.assertEqual(lanes.module.submit_all(*self.call[:3], 1, 3, 0), FULL)
        for timeout_ns in (0, 1000, 10000, 3000000):
            self.assertEqual(self.both(lambda _, wait, __: wait(lane, last, timeout_ns, 0)), TIMEOUT)
            self.assertEqual(self.both(lambda _, __, run: run(*self.call, timeout_ns, self.done_at)), TIMEOUT)
            self.assertEqual(self.done.sequence, -1)
        self.run_beside(lambda: lanes.module.call(*self.call, 60 * 10**9, self.done_at), 0)

    def run_beside(self, wait, stream):
        """Runs a function that waits until this thread, which needs the interpreter's lock, has set a stream word."""
        begun, codes = threading.Event(), []
        waiting = threading.Thread(target=lambda: (begun.set(), codes.append(wait())))
        waiting.start()
        begun.wait()
        self.raw.residentd_lane_set_stream(self.lane._handle, stream, 1)
        waiting.join()
        self.assertEqual((codes, self.done.status), ([0], 0))

    def test_other_threads_run_while_one_waits(self):
        self.raw.residentd_lane_submit_await(self.lane._handle, 1, 1)
        sequence = self.add.submit()
        self.run_beside(lambda: lanes.module.wait(self.lane._handle, sequence, -1, self.done_at), 1)

    def test_many_tasks_of_one_call(self):
        y = self.rd.shared((SLOTS, 64))
        add = self.lane.prepare("add", self.x, self.x, out=y[0])
        self.x[:] = 2
        words = (ctypes.c_uint64 * (3 * SLOTS))()
        for i in range(SLOTS):
            words[3 * i:3 * i + 3] = [add._words[0], add._words[1], add._words[2] + i * 256]
        before = self.raw.residentd_lane_next(self.lane._handle)
        submitted = lanes.module.submit_all(self.lane._handle, add._number, ctypes.addressof(words), SLOTS, 3, 0)
        self.assertEqual(submitted, SLOTS)
        for i in range(SLOTS):
            self.lane.wait(before + i)
        np.testing.assert_array_equal(y, np.full((SLOTS, 64), 4, np.float32))
        self.assertEqual(lanes.module.submit_all(self.lane._handle, add._number, 0, 0, 3, 0), 0)

    def test_wrong_types_are_exceptions(self):
        for arguments in ((), self.call, (*self.call, "0"), (None, *self.call[1:], 0), (*self.call, 1.5)):
            with self.assertRaises(TypeError):
                lanes.module.submit(*arguments)
        for arguments in ((self.call[0], 65536, *self.call[2:], 0), (*self.call, 1 << 40), (self.call[0], -1, *self.call[2:], 0),
                          (1 << 70, *self.call[1:], 0)):
            with self.assertRaises(OverflowError):
                lanes.module.submit(*arguments)
        with self.assertRaises(ImportError):
            lanes.module.load("/nonexistent/libresidentd_lane.so")
        self.add()

    def test_a_forked_child(self):
        def child(way):
            pid = os.fork()
            if pid == 0:
                codes = [way[0](*self.call, 0), way[1](self.lane._handle, 0, -1, 0), way[2](*self.call, -1, self.done_at)]
                os._exit(0 if codes == [FORKED] * 3 else 1)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.add()
        self.assertEqual([child(way) for way in self.ways], [0, 0])

    def test_a_daemon_that_is_killed(self):
        folder = tempfile.TemporaryDirectory(prefix="lane-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        daemon = support.daemons.Daemon("--local_address={}/local".format(folder.name))
        self.addCleanup(daemon.stop)
        client = residentd.connect(daemon.address)
        self.addCleanup(client.close)
        lane = client.lane()
        self.addCleanup(lane.close)
        add = lane.prepare("add", *[client.shared((64,))] * 2, out=client.shared((64,)))
        daemon.process.kill()
        daemon.process.wait()
        for _, __, run in self.ways:
            self.assertEqual(run(lane._handle, add._number, add._words_at, 3, -1, self.done_at), LOST)

    def test_addresses_of_tensors(self):
        tensors = [Tensor(1000 + 64 * i) for i in range(5)]
        out = (ctypes.c_uint64 * 5)()
        self.assertEqual(lanes.module.addresses(None, tensors, ctypes.addressof(out)), 0)
        self.assertEqual(list(out), [each.address for each in tensors])
        with self.assertRaises(AttributeError):
            lanes.module.addresses(None, [tensors[0], 5], ctypes.addressof(out))
        self.assertEqual(lanes.module.addresses(None, (), 0), 0)

        def tensor_of(tensor, to):
            to[0] = tensor.dl
            return 0
        api = DlExchangeApi(1, 2, tensor_of=DlExchangeApi.TENSOR_OF(tensor_of))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule = new(ctypes.addressof(api), b"dlpack_exchange_api", None)
        out[:] = [0] * 5
        self.assertEqual(lanes.module.addresses(capsule, tuple(tensors), ctypes.addressof(out)), 5)
        self.assertEqual(list(out), [each.address for each in tensors])
        for other in (Tensor(5000, shape=(4, 9)), Tensor(5000, strides=(9, 1)), Tensor(5000, code=0), Tensor(5000, bits=16),
                      Tensor(5000, device=1), Tensor(5000, shape=(32,), strides=(1,))):
            tensors[3] = other
            self.assertEqual(lanes.module.addresses(capsule, tensors, ctypes.addressof(out)), 4)
            self.assertEqual(out[3], 5000)
        api.major = 2
        with self.assertRaisesRegex(ValueError, "DLPack 2"):
            lanes.module.addresses(capsule, tensors, ctypes.addressof(out))
        with self.assertRaises(ValueError):
            lanes.module.addresses(new(ctypes.addressof(api), b"another", None), tensors, ctypes.addressof(out))
        with self.assertRaises(TypeError):
            lanes.module.addresses(None, "text", ctypes.addressof(out))


def bench():
    """What one call of each function costs in both ways, in one process, alternately."""
    Module.setUpClass()
    test = Module()
    test.setUp()
    lane, done = test.lane._handle, test.done_at
    last = test.add.submit()
    test.lane.wait(last)
    wait_ns, call_us = {}, {}
    ways = list(zip(("module", "ctypes"), Module.ways))
    for _ in range(5):
        for name, (_, wait, _) in ways:
            start = time.perf_counter_ns()
            for _ in range(20000):
                wait(lane, last, 0, 0)
            wait_ns.setdefault(name, []).append((time.perf_counter_ns() - start) / 20000)
    for _ in range(5):
        for name, (_, _, run) in ways:
            laps = []
            for _ in range(300):
                start = time.perf_counter_ns()
                run(*test.call, -1, done)
                laps.append(time.perf_counter_ns() - start)
            call_us.setdefault(name, []).append(sorted(laps)[150] / 1000)
    for what, figures, unit in (("wait for what has ended", wait_ns, "ns"), ("lone call, p50", call_us, "us")):
        best = {name: min(values) for name, values in figures.items()}
        print("{}: module {:.2f} {}, ctypes {:.2f} {}, ratio {:.2f}".format(
            what, best["module"], unit, best["ctypes"], unit, best["module"] / best["ctypes"]))
    test.doCleanups()
    Module.doClassCleanups()


if __name__ == "__main__":
    if sys.argv[1:] == ["bench"]:
        bench()
    else:
        support.unittest_main.main()
