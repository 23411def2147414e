#!/usr/bin/env python3
"""residentd.torch: attach, shared memory, prepared calls and their values, processes and threads."""

import multiprocessing
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch_support  # noqa: E402
from torch_support import close, residentd, rt, torch  # noqa: E402


def work(address, number, results):
    """A worker process: attaches itself, without a CUDA context."""
    rd = residentd.connect(address)
    rt.attach(rd)
    x, best = rt.shared((256,)), rt.shared((), torch.int64)
    argmax = rt.current().prepare("argmax", x, axis=0, out=best)
    found = []
    for i in range(100):
        x.zero_()
        x[(i * 7 + number) % 256] = 1
        found.append(argmax.value() == (i * 7 + number) % 256)
    results.put((number, all(found), torch.cuda.is_initialized()))
    rt.current().close()
    rd.close()


def fork(function):
    """The text of what a forked child's function returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = function()
        except BaseException as error:
            text = "{}: {}".format(type(error).__name__, error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


class Calls(torch_support.TorchTest):

    def test_a_prepared_call(self):
        x, y, z = self.shared(torch.randn(64)), self.shared(torch.randn(64)), rt.shared(64)
        add = self.lane.prepare("add", x, y, out=z, alpha=2, varying=["alpha"])
        add()
        close(z, x + 2 * y)
        other = self.shared(torch.randn(2, 64))
        add(other[1], out=x, alpha=3.0)
        close(x, other[1] + 3 * y)
        add(y, other[0], alpha=-1)
        close(x, y - other[0])
        self.assertGreater(add.version, 0)

    def test_values(self):
        x, best = self.shared(torch.randn(8, 32)), rt.shared((), torch.int64)
        argmax = self.lane.prepare("argmax", x, axis=(0, 1), out=best)
        for _ in range(50):
            x.copy_(torch.randn(8, 32))
            self.assertEqual(argmax.value(), x.argmax().item())
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            a, out = self.shared(torch.randn(4).to(dtype)), rt.shared((1,), dtype)
            largest = self.lane.prepare("max", a, axis=0, keepdims=True, out=out)
            self.assertEqual(largest.value(), a.max().item())
            other = rt.shared((1,), dtype)
            a[2] = 100
            self.assertEqual(largest.value(out=other), 100)
            self.assertEqual(other.item(), 100)

    def test_dtypes_strides_and_absent_inputs(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32):
            x, y = self.shared(torch.arange(48).reshape(6, 8).to(dtype)), rt.shared((8, 6), dtype)
            add = self.lane.prepare("add", x.T, x.T, out=y)
            add()
            close(y, (x + x).T.contiguous())
        x, w, out = self.shared(torch.randn(3, 8)), self.shared(torch.randn(5, 8)), rt.shared((3, 5))
        gemv = self.lane.prepare("gemv", x, w, None, out=out)
        gemv()
        close(out, x @ w.T)

    def test_what_is_wrong_is_refused(self):
        x, y = rt.shared(64), rt.shared(64)
        add = self.lane.prepare("add", x, y, out=y)
        self.refused(residentd.InvalidArgument, "is not in memory of the daemon", add, torch.zeros(64))
        self.refused(residentd.InvalidArgument, "was prepared with", add, x[:32])
        self.refused(residentd.InvalidArgument, "was prepared with", add, rt.shared(64, torch.float64))
        self.refused(residentd.WrongType, "not a torch tensor", add, x.numpy())
        self.refused(residentd.InvalidArgument, "takes 3 tensors", add, x, y, y, y)
        self.refused(residentd.InvalidArgument, "given twice", add, x, x=x)
        self.refused(residentd.InvalidArgument, "does not vary", add, alpha=3.0)
        self.refused(residentd.InvalidArgument, "no parameter 'q'", add, q=x)
        self.refused(residentd.InvalidArgument, "no element type", rt.shared, 4, torch.complex64)
        self.refused(residentd.InvalidArgument, "has no elements", self.lane.prepare, "add", x[:0], y, out=y)
        self.refused(residentd.InvalidArgument, "must be [64]", self.lane.prepare, "sum", rt.shared((2, 64)), axis=0,
                     out=rt.shared(2))
        add()

    def test_memory_that_has_gone_is_not_taken_for_new_memory(self):
        # Each new tensor gets the address of the one before.
        x, out = self.shared(torch.ones(64)), rt.shared(64)
        double = self.lane.prepare("add", x, x, out=out)
        addresses = set()
        for i in range(100):
            y = self.shared(torch.full((64,), float(i)))
            addresses.add(y.data_ptr())
            double(y, y)
            close(out, torch.full((64,), 2.0 * i))
            double(x, x)
            del y
        self.assertLess(len(addresses), 100)
        self.assertLess(len(self.lane._spans), 20)
        self.wait_for(lambda: self.lane.refresh() or not self.lane._ended)


class Processes(torch_support.TorchTest):

    def test_workers_without_a_context(self):
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        workers = [context.Process(target=work, args=(self.daemon.address, i, results)) for i in range(3)]
        for worker in workers:
            worker.start()
        found = sorted(results.get(timeout=120) for _ in workers)
        for worker in workers:
            worker.join(60)
        self.assertEqual(found, [(i, True, False) for i in range(3)])

    def test_a_forked_process_is_refused(self):
        x, y = rt.shared(8), rt.shared(8)
        relu = self.lane.prepare("relu", x, out=y)
        self.assertIn("FailedPrecondition: the client was made by process", fork(lambda: str(rt.attach(self.rd))))
        self.assertIn("FailedPrecondition", fork(lambda: str(relu())))
        self.assertIn("FailedPrecondition", fork(lambda: str(rt.ops.relu(x))))
        self.assertIn("FailedPrecondition", fork(lambda: str(rt.shared(4))))
        relu()

    def test_each_thread_has_its_own_lane(self):
        found = []

        def run():
            try:
                rt.current()
            except residentd.FailedPrecondition as error:
                found.append(str(error))
            with rt.attach(self.rd) as lane:
                x = self.shared(torch.randn(16))
                out = rt.shared(())
                found.append(lane.prepare("max", x, axis=0, out=out).value() == x.max().item())
            try:
                rt.shared(4)
            except residentd.FailedPrecondition:
                found.append("closed")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        self.assertIn("Fix: call residentd.torch.attach(rd) in it", found[0])
        self.assertEqual(found[1:], [True, "closed"])
        self.assertIs(rt.current(), self.lane)


class Ends(torch_support.TorchTest):

    def test_a_daemon_that_is_killed(self):
        x = rt.shared(16)
        relu = self.lane.prepare("relu", x, out=x)
        relu()
        self.daemon.process.kill()
        self.daemon.process.wait()
        with self.assertRaises(ConnectionError):
            for _ in range(10):
                relu()


if __name__ == "__main__":
    torch_support.unittest_main.main()
