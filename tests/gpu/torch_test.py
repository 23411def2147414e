#!/usr/bin/env python3
"""residentd.torch with tensors of a GPU: the pool, the order of operators with torch's work, and failures.

Needs torch with CUDA. Without MPS each change between torch's kernels and the daemon's waits for a time slice, so that
$RESIDENT_TORCH_ROUNDS (default: 1,000) says how often torch and operators take turns.
"""

import gc
import os
import pathlib
import random
import signal
import sys
import threading
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent / "torch"))
import torch_support  # noqa: E402
from torch_support import close, residentd, rt, torch  # noqa: E402

ROUNDS = int(os.environ.get("RESIDENT_TORCH_ROUNDS", "1000"))


def pooled(*shape, value=None):
    with rt.pool():
        return torch.randn(shape, device="cuda") if value is None else torch.full(shape, float(value), device="cuda")


class GpuTest(torch_support.TorchTest):

    def setUp(self):
        torch.cuda.init()
        warnings.simplefilter("ignore", RuntimeWarning)  # Without MPS, own kernels are slow.
        super().setUp()


class Memory(GpuTest):

    def test_operators_on_tensors_of_the_pool(self):
        x, w = pooled(4, 256), pooled(256)
        with rt.stream() as scope:
            y = rt.ops.add(x, w, alpha=0.5)
            z = rt.ops.mul(y, y)
            s = rt.ops.sum(z, axis=-1)
            scope.check()
        close(y, x + 0.5 * w)
        close(z, y * y)
        close(s, z.sum(-1))
        close(rt.ops.relu(x), x.relu())  # A scope of its own.
        add = self.lane.prepare("add", x, w, out=y, alpha=1, varying=["alpha"])
        add(alpha=2.0)
        close(y, x + 2 * w)
        add(y, out=z, alpha=3)
        close(z, y + 3 * w)
        self.assertIsNotNone(self.lane.own_kernel_us)

    def test_the_host_waits_for_outputs_in_shared_memory(self):
        x, best = pooled(64), rt.shared((), torch.int64)
        argmax = self.lane.prepare("argmax", x, axis=0, out=best)
        for i in range(20):
            x.zero_()
            x[3 * i] = 1
            if i % 2:
                self.assertEqual(argmax.value(), 3 * i)
                continue
            with rt.stream():
                self.assertEqual(argmax.value(), 3 * i)

    def test_lists_and_plans(self):
        xs, ws = list(pooled(600, 64).unbind(0)), list(pooled(600, 64).unbind(0))
        out = list(pooled(600, 64).unbind(0))
        with rt.stream():
            found = rt.foreach("add", xs, ws, alpha=0.5)
            rt.foreach("add", found, ws, out=out)
        close(torch.stack(found), torch.stack(xs) + 0.5 * torch.stack(ws))
        close(torch.stack(out), torch.stack(found) + torch.stack(ws))
        plan = rt.plan("mul", xs, ws, out=out)
        plan()
        close(torch.stack(out), torch.stack(xs) * torch.stack(ws))
        lengths = [random.randrange(1, 40000) for _ in range(500)]
        ragged = [pooled(n) for n in lengths]
        before = [x.clone() for x in ragged]
        with rt.stream():
            found = rt.foreach("add", ragged, ragged, alpha=2.0)
            again = rt.ops.add(found[7], ragged[7])  # Behind the list.
            rt.foreach("add", found, found, out=ragged, alpha=-0.5)  # Behind both.
        close(again, 4 * before[7])
        for one, x, y in zip(found, before, ragged):
            close(one, 3 * x)
            close(y, 1.5 * x)

    def test_what_is_wrong_is_refused(self):
        x, other = pooled(64), torch.randn(64, device="cuda")
        self.refused(residentd.InvalidArgument, "is not in the pool", rt.ops.add, x, other)
        self.refused(residentd.InvalidArgument, "'y' of task 1: ", rt.foreach, "add", [x, x], [x, other])
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.refused(residentd.FailedPrecondition, "captured", rt.stream)
        with rt.stream():
            self.refused(residentd.InvalidArgument, "another stream", rt.stream, torch.cuda.Stream())
        with rt.attach(self.rd, copy=True):
            close(rt.ops.add(x, other), x + other)
        rt.attach(self.rd)

    def test_torch_ops(self):
        rt.register(self.rd, ["add", "mul", "gelu", "sum", "softmax"])
        ops = torch.ops.residentd

        def f(x, y):
            z = ops.add(x.sin(), y, 0.5)
            return ops.softmax(ops.gelu(ops.mul(z, z)).view(-1, 4)) + ops.sum(z, [0], True).mean()

        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        with rt.pool(), torch.no_grad():
            x, y = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
            with rt.stream(strict=False) as scope:
                scope.fence()
            close(compiled(x, y), f(x, y))
            for op, arguments in ((ops.add, (x, y, 2.0)), (ops.sum, (x,)), (ops.gelu, (x,))):
                torch.library.opcheck(op.default, arguments)

    def test_tensors_that_come_and_go(self):
        w = pooled(1 << 12, value=1)
        free = None
        for i in range(200):
            with rt.stream():
                made = [torch.full((1 << 12,), float(j), device="cuda") for j in range(50)]
                found = rt.foreach("add", made, w, alpha=float(i))
                del made
            if i % 10 == 3:
                total = torch.stack(found).double().sum().item()
                self.assertEqual(total, sum(j + i for j in range(50)) * (1 << 12))
                large = [pooled(1 << 20, value=i) for _ in range(4)]
                with rt.stream():
                    doubled = [rt.ops.add(each, each) for each in large]
                self.assertTrue(all(bool((each == 2 * i).all()) for each in doubled))
                del large, doubled, found
                gc.collect()
                torch.cuda.empty_cache()
                rt.ops.add(w, w)
                self.wait_for(lambda: self.lane.refresh() or not self.lane._ended)
                if i == 13:
                    free = torch.cuda.mem_get_info()[0]
        self.assertLess(free - torch.cuda.mem_get_info()[0], 64 << 20)
        self.assertLess(len(self.lane._spans), 32)


class Order(GpuTest):

    def rounds(self, count, bad, stream=None):
        """torch writes, operators read and write, torch reads; bad counts the wrong ones."""
        x, one = pooled(256, value=0), pooled(256, value=1)
        y, z = pooled(256), pooled(256)
        torch.cuda.synchronize()
        add = rt.current().prepare("add", x, one, out=y)
        for i in range(count):
            x.fill_(i % 1000)
            with rt.stream(strict=i % 2 == 0):
                add()
                if i % 10 == 0:
                    rt.ops.add(y, y, out=z, alpha=2.0)
                elif i % 10 == 4:  # Strict: torch's operation waits.
                    bad += (y != i % 1000 + 1).any()
                    y.add_(1)
                    rt.ops.add(y, one, out=z)
            if i % 10 == 0:
                bad += (z != 3 * (i % 1000 + 1)).any()
            elif i % 10 == 4:
                bad += (z != i % 1000 + 3).any()
            else:
                bad += (y != i % 1000 + 1).any()

    def test_no_stale_value(self):
        bad = torch.zeros((), device="cuda", dtype=torch.int64)
        self.rounds(ROUNDS, bad)
        self.assertEqual(bad.item(), 0)

    def test_no_stale_value_with_two_streams_and_two_lanes(self):
        bad = [torch.zeros((), device="cuda", dtype=torch.int64) for _ in range(2)]
        torch.cuda.synchronize()
        errors = []

        def run(i):
            try:
                with torch.cuda.stream(torch.cuda.Stream()), rt.attach(self.rd):
                    self.rounds(ROUNDS // 4, bad[i])
                    torch.cuda.current_stream().synchronize()
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        self.assertEqual(([each.item() for each in bad], errors), ([0, 0], []))

    def test_random_programs_over_overlapping_views(self):
        generator = random.Random(1)
        for program in range(ROUNDS // 5):
            memory = torch.randint(-8, 8, (2048,)).float()
            with rt.pool():
                device = memory.cuda()
            at = [64 * generator.randrange(24) for _ in range(8)]
            views = [memory[i:i + 512] for i in at]
            ours = [device[i:i + 512] for i in at]
            with rt.stream():
                for _ in range(50):
                    x, y, out = (generator.randrange(8) for _ in range(3))
                    if any(0 < abs(at[out] - at[i]) < 512 for i in (x, y)):
                        continue  # It would overlap its own inputs.
                    name, function = generator.choice([
                        ("add", torch.add), ("sub", torch.sub), ("maximum", torch.maximum), ("minimum", torch.minimum)])
                    rt.ops[name](ours[x], ours[y], out=ours[out])
                    function(views[x], views[y], out=views[out])
            self.assertTrue(torch.equal(device.cpu(), memory), program)


class Failures(GpuTest):

    def test_an_engine_that_is_killed(self):
        x, one = pooled(256, value=1), pooled(256, value=1)
        y = pooled(256)
        for i in range(4):  # An engine that ends five times in a minute is not started again.
            os.kill(self.rd.status().devices[0].engine_pid, signal.SIGKILL)

            def works():
                try:
                    with rt.stream() as scope:
                        rt.ops.add(x, one, out=y, alpha=float(i))
                        scope.check(timeout=10)
                    return True
                except residentd.Error as error:
                    print("  {}: {}".format(error.code, error.message), flush=True)
                    self.assertIn(error.code, ("ABORTED", "UNAVAILABLE", "INTERNAL", "REFUSED"), error)
                    return False

            self.wait_for(works)
            self.assertTrue(bool((y == 1 + i).all()), i)
            self.assertTrue(bool((x == 1).all()))  # The memory is this process's.

    def test_the_failure_of_an_operator_is_reported(self):
        self.rd.operators.install("loops", expr="x").activate()
        self.addCleanup(self.rd.operators.remove, "loops")
        x = pooled(16)
        call = self.lane.prepare("loops", x, out=x)
        self.lane._release(calls=[call._number])
        with self.assertRaisesRegex(residentd.TaskFailed, "loops: "):
            with rt.stream() as scope:
                call()
                scope.check()
        with rt.stream():
            call()
        torch.cuda.synchronize()
        with self.assertRaisesRegex(residentd.TaskFailed, "loops: "):
            with rt.stream():
                pass
        with rt.stream() as scope:
            rt.ops.relu(x)
            scope.check()


class Ends(GpuTest):

    def test_a_daemon_that_is_killed(self):
        x, y = pooled(256, value=1), pooled(256)
        scope = rt.stream()
        with self.assertRaises(ConnectionError):
            with scope:
                for i in range(1000):
                    rt.ops.add(x, x, out=y)
                    if i == 100:
                        self.daemon.process.kill()
                        self.daemon.process.wait()
                scope.check(timeout=10)  # The calls may be faster than the news of its end.
        torch.cuda.synchronize()  # The stream goes on.
        self.assertTrue(bool((x + 1 == 2).all()))
        with self.assertRaises(ConnectionError):
            rt.ops.add(x, x, out=y)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("{}: torch {} has no GPU. Fix: use a build of PyTorch with CUDA for this driver".format(
            sys.argv[0], torch.__version__))
    torch_support.unittest_main.main()
