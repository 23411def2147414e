#!/usr/bin/env python3
"""residentd.torch: foreach() and plan()."""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch_support  # noqa: E402
from torch_support import close, residentd, rt, torch  # noqa: E402


class Lists(torch_support.TorchTest):

    def rows(self, count, *shape):
        return list(self.shared(torch.randn(count, *shape)).unbind(0))

    def compare(self, actual, expected):
        self.assertEqual(len(actual), len(expected))
        for one, other in zip(actual, expected):
            close(one, other)

    def test_one_shape(self):
        for count in (1, 5, 300, 5000):
            xs, ys = self.rows(count, 8), self.rows(count, 8)
            self.compare(rt.foreach("add", xs, ys, alpha=0.5), [x + 0.5 * y for x, y in zip(xs, ys)])
            out = self.rows(count, 8)
            self.assertEqual(rt.foreach("add", xs, ys, out=out), out)
            self.compare(out, [x + y for x, y in zip(xs, ys)])
            weight = self.shared(torch.randn(8))
            alphas = [i % 7 for i in range(count)]
            self.compare(rt.foreach("add", xs, weight, alpha=alphas), [x + a * weight for x, a in zip(xs, alphas)])

    def test_ragged_lengths(self):
        block = self.shared(torch.randn(1 << 16))
        for count in (3, 400):
            for _ in range(2):
                sizes = [random.randrange(1, 128) for _ in range(count)]
                xs, ys = list(block.split_with_sizes(sizes + [block.numel() - sum(sizes)]))[:-1], []
                for size in sizes:
                    at = random.randrange(block.numel() - size)
                    ys.append(block[at:at + size])
                self.compare(rt.foreach("add", xs, ys, alpha=2.0), [x + 2 * y for x, y in zip(xs, ys)])
                self.compare(rt.foreach("relu", xs), [x.relu() for x in xs])

    def test_reductions_over_several_shapes(self):
        shapes = [(random.randrange(1, 9), random.randrange(1, 33)) for _ in range(20)]
        xs = [self.shared(torch.randn(1)).expand(1)] * 0
        pool = self.shared(torch.randn(1 << 14))
        for _ in range(1000):
            rows, columns = random.choice(shapes)
            at = random.randrange(pool.numel() - rows * columns)
            xs.append(pool[at:at + rows * columns].view(rows, columns))
        self.compare(rt.foreach("sum", xs, axis=-1), [x.sum(-1) for x in xs])
        xs = [x.reshape(-1, x.shape[-1]) for x in xs if x.shape[-1] > 1]
        found = rt.foreach("argmax", xs, axis=1, keepdims=True)
        self.compare(found, [x.argmax(1, keepdim=True) for x in xs])

    def test_several_outputs_and_an_inout(self):
        xs = self.rows(40, 3, 8)
        found = rt.foreach("softmax_topk", xs, shape=(3, 2))
        self.compare(found.indices, [x.topk(2).indices for x in xs])
        given = {"weights": self.rows(40, 3, 2), "indices": [each.clone() for each in found.indices]}
        self.refused(residentd.InvalidArgument, "of task 0", rt.foreach, "softmax_topk", xs, out=given)
        a, b, c = self.rows(10, 4, 4), self.rows(10, 4, 4), self.rows(10, 4, 4)
        expected = [x @ y + z for x, y, z in zip(a, b, c)]
        rt.foreach("gemm", a, b, c, beta=1.0)
        self.compare(c, expected)

    def test_a_plan(self):
        xs, ys, out = self.rows(1000, 16), self.rows(1000, 16), self.rows(1000, 16)
        plan = rt.plan("add", xs, ys, out=out, alpha=3.0)
        self.assertEqual(plan.outputs, out)
        for alpha in (3, 0.5, None):
            plan(**({} if alpha in (3, None) else {"alpha": alpha}))
            self.compare(out, [x + (alpha or 3) * y for x, y in zip(xs, ys)])
            xs[5].fill_(7)
        plan(alpha=list(range(1000)))
        self.compare(out, [x + i * y for i, (x, y) in enumerate(zip(xs, ys))])
        self.refused(residentd.InvalidArgument, "is fixed", plan, beta=3)
        with rt.attach(self.rd):
            self.refused(residentd.FailedPrecondition, "another lane", plan)

    def test_plans_are_released(self):
        x = self.rows(1, 4)
        for _ in range(1100):  # More than a lane has calls.
            rt.plan("relu", x)()

    def test_what_is_wrong_is_refused(self):
        xs, ys = self.rows(20, 8), self.rows(20, 8)
        self.refused(residentd.InvalidArgument, "[19, 20]", rt.foreach, "add", xs, ys[1:])
        self.refused(residentd.InvalidArgument, "'y' of task 3: ", rt.foreach, "add", xs,
                     ys[:3] + [torch.zeros(8)] + ys[4:])
        self.refused(residentd.InvalidArgument, "does not broadcast", rt.foreach, "add", xs,
                     ys[:3] + [ys[3][:5]] + ys[4:])
        self.refused(residentd.InvalidArgument, "there is no list", rt.foreach, "add", xs[0], ys[0])
        self.refused(residentd.InvalidArgument, "not a list of 20 tensors", rt.foreach, "add", xs, ys, out=xs[:3])
        self.refused(residentd.InvalidArgument, "for 20 tasks", rt.foreach, "add", xs, ys, alpha=[1, 2])
        self.refused(residentd.InvalidArgument, "no parameter 'beta'", rt.foreach, "add", xs, ys, beta=1)
        self.refused(residentd.WrongType, "a list of add has a float", rt.foreach, "add", xs, [1.0] * 20)
        self.refused(residentd.WrongType, "not a float", rt.foreach, "add", xs, 1.0)
        with torch.enable_grad():
            self.refused(residentd.InvalidArgument, "has no gradient", rt.foreach, "relu",
                         [x.detach().requires_grad_() for x in xs])
        self.assertEqual(rt.foreach("relu", []), [])


if __name__ == "__main__":
    torch_support.unittest_main.main()
