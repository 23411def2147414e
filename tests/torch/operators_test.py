#!/usr/bin/env python3
"""residentd.torch: rt.ops, torch.ops.residentd, gradients, opcheck and torch.compile."""

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch_support  # noqa: E402
from torch_support import close, residentd, rt, torch  # noqa: E402


class Ops(torch_support.TorchTest):

    def test_new_and_given_outputs(self):
        x, y = self.shared(torch.randn(4, 8)), self.shared(torch.randn(8))
        close(rt.ops.add(x, y, alpha=0.5), x + 0.5 * y)
        out = rt.shared((4, 8))
        self.assertIs(rt.ops.add(x, y=y, out=out), out)
        close(out, x + y)
        close(rt.ops["relu"](x.T), x.T.relu())
        close(rt.ops.add(rt.ops.mul(x, x), x), x * x + x)
        close(rt.ops.gelu(x, tanh=1), torch.nn.functional.gelu(x, approximate="tanh"))
        close(rt.ops.add(x.half(), y.half()), (x.half() + y.half()))

    def test_tensors_of_other_memory_are_copied(self):
        x, y = torch.randn(8, 4).T, torch.randn(8)
        close(rt.ops.add(x, y), x + y)
        out = torch.zeros(8, 4).T
        self.assertIs(rt.ops.add(x, y, out=out), out)
        close(out, x + y)

    def test_reductions_and_shapes(self):
        x = self.shared(torch.randn(3, 4, 5))
        close(rt.ops.sum(x, axis=-1), x.sum(-1))
        close(rt.ops.mean(x, axis=[0, 2], keepdims=True), x.mean((0, 2), keepdim=True))
        self.assertEqual(rt.ops.argmax(x).item(), x.argmax().item())
        found = rt.ops.softmax_topk(x.reshape(12, 5), shape=(12, 2))
        values, indices = x.reshape(12, 5).topk(2)
        self.assertTrue(torch.equal(found.indices, indices))
        close(found.weights, values.softmax(-1))
        close(rt.ops.gemv(x, self.shared(torch.ones(2, 5)), None), x @ torch.ones(5, 2))

    def test_an_inout_is_updated(self):
        a, b, c = (self.shared(torch.randn(4, 4)) for _ in range(3))
        expected = a @ b + 2 * c
        self.assertIs(rt.ops.gemm(a, b, c, beta=2.0), c)
        close(c, expected)

    def test_without_elements(self):
        x = torch.zeros(0, 4)
        self.assertEqual(rt.ops.relu(x).shape, (0, 4))
        self.refused(residentd.InvalidArgument, "has no elements", rt.ops.sum, x, axis=0)

    def test_what_is_wrong_is_refused(self):
        x = rt.shared((4, 8))
        self.refused(residentd.NotFound, "ad", lambda: rt.ops.ad)
        self.refused(residentd.InvalidArgument, "no parameter 'beta'", rt.ops.add, x, x, beta=2)
        self.refused(residentd.InvalidArgument, "does not broadcast", rt.ops.add, x, rt.shared(3))
        self.refused(residentd.InvalidArgument, "it is i64", rt.ops.relu, rt.shared(4, torch.int64))
        self.refused(residentd.InvalidArgument, "by position", rt.ops.relu, x, x)
        self.refused(residentd.InvalidArgument, "it is missing", rt.ops.add, x)
        self.refused(residentd.InvalidArgument, "given twice", rt.ops.add, x, x, x=x)
        self.refused(residentd.WrongType, "not a torch tensor", rt.ops.add, x, 3.0)
        self.refused(residentd.InvalidArgument, "does not follow", rt.ops.softmax_topk, x)
        self.refused(residentd.InvalidArgument, "must be [4]", rt.ops.sum, x, axis=1, out=rt.shared(8))
        self.refused(residentd.InvalidArgument, "alpha", rt.ops.add, x, x, alpha="much")
        self.refused(residentd.InvalidArgument, "has no gradient", rt.ops.add, x, torch.ones(8, requires_grad=True))
        with torch.no_grad():
            rt.ops.add(x, torch.ones(8, requires_grad=True))

    def test_many_kinds_of_calls(self):
        # More than a lane has.
        for i in range(1, 1200):
            x = torch.full((i,), 2.0)
            self.assertEqual(rt.ops.sum(x, axis=0).item(), 2 * i)
        self.assertLessEqual(len(self.lane._cache), 1024)
        close(rt.ops.sum(torch.ones(3), axis=0), torch.tensor(3.0))

    def test_an_operator_that_is_replaced(self):
        for expression, factor in (("2 * x", 2), ("3 * x", 3)):
            self.rd.operators.install("torch_scaled", expr=expression).activate()
            close(rt.ops.torch_scaled(torch.ones(4)), torch.full((4,), float(factor)))
        self.rd.operators.remove("torch_scaled")
        self.rd.operators.install("torch_scaled", expr="x - y").activate()
        x = torch.ones(4)
        try:
            rt.ops.torch_scaled(x)
        except residentd.Error:
            pass
        close(rt.ops.torch_scaled(x, x), torch.zeros(4))
        self.rd.operators.remove("torch_scaled")


class TorchOps(torch_support.TorchTest):

    def test_opcheck_of_every_operator_with_float_inputs(self):
        checked = 0
        # Their arguments must fit in ways that signatures do not say, or are more than a lane's call has.
        others = {"attention_decode", "attention_partial", "choose_token", "dequant", "flux_run", "kv_append",
                  "rmsnorm_gemv_qkv", "rope"}
        defined = set(rt.register(self.rd))
        self.assertIn("flux_run", defined)
        names = [info.name for info in self.rd.operators.list() if info.name in defined - others]
        for name, torch_name in zip(names, rt.register(self.rd, names)):
            op = getattr(torch.ops.residentd, torch_name).default
            inputs, keywords = self.arguments(name, op)
            with self.subTest(name=name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.library.opcheck(op, inputs, keywords)
                checked += 1
        self.assertGreater(checked, 40)

    def arguments(self, name, op):
        """Arguments that the operator accepts."""
        special = {
            "gemm": ([torch.randn(4, 4)] * 3, {}), "bmm": ([torch.randn(2, 4, 4)] * 3, {}),
        }
        if name in special:
            return special[name]
        inputs, keywords = [], {}
        signature = self.rd._drive(self.rd._operations.describe(name)).signature
        sizes = {}
        for p in signature.inputs:
            shape = []
            for dim in p.shape:
                if dim.kind == "size":
                    shape.append(dim.size)
                elif dim.kind == "name":
                    shape.append(sizes.setdefault(dim.name, 4))
                else:
                    shape += [2, 4] if dim.kind == "broadcast" or len(p.shape) == 1 else [2]
            if "Optional" in str(op._schema.arguments[len(inputs)].type):
                inputs.append(None)
                continue
            number = p.dtypes[0]
            dtype = rt.tensors.TORCH[residentd.dtypes.BY_NUMBER[number].name]
            inputs.append(torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype))
        for argument in op._schema.arguments[len(inputs):]:
            if argument.name.endswith("shape"):
                keywords[argument.name] = [4, 2]
            elif not argument.has_default_value():
                keywords[argument.name] = 0.5 if str(argument.type) == "float" else 1
        return inputs, keywords

    def test_overloads(self):
        rt.register(self.rd, ["add", "gemm", "sum", "softmax_topk"])
        x, y = torch.randn(4), torch.randn(4)
        close(torch.ops.residentd.add(x, y, 0.5), x + 0.5 * y)
        out = torch.empty(4)
        self.assertIsNone(torch.ops.residentd.add.out(x, y, 2.0, out=out))
        close(out, x + 2 * y)
        a, b, c = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
        before = c.clone()
        close(torch.ops.residentd.gemm(a, b, c, 1.0, 2.0), a @ b + 2 * c)
        self.assertTrue(torch.equal(c, before))
        close(torch.ops.residentd.sum(x, [0], True), x.sum(0, True))
        torch.library.opcheck(torch.ops.residentd.add.out, (x, y), {"out": out})
        self.assertIs(rt.ops.add.torch_op, torch.ops.residentd.add.default)

    def test_gradients_are_refused_or_defined(self):
        rt.register(self.rd, ["relu"])
        x = torch.randn(8, requires_grad=True)
        self.refused(residentd.InvalidArgument, "has no gradient", torch.ops.residentd.relu, x)
        self.rd.operators.install("cube", expr="x * x * x").activate()
        self.rd.operators.publish(lambda g, x: 3 * g * x * x, "cube_gradient", wait="active")
        self.refused(residentd.InvalidArgument, "has other parameters", rt.define, "cube", backward="relu")
        op = rt.define("cube", backward="cube_gradient")
        (rt.ops.cube(x) * 2).sum().backward()
        close(x.grad, 6 * x.detach() ** 2)
        x.grad = None
        op(x).sum().backward()
        close(x.grad, 3 * x.detach() ** 2)
        torch.library.opcheck(op, (x,))
        self.refused(residentd.InvalidArgument, "has the gradient", rt.define, "cube", backward="relu")

    def test_compile(self):
        rt.register(self.rd, ["add", "mul", "sum", "gelu", "softmax"])
        ops = torch.ops.residentd

        def f(x, y):
            z = ops.add(x.sin(), y, 0.5)
            z = ops.gelu(ops.mul(z, z))
            return ops.softmax(z.view(-1, 4)) + ops.sum(z, [0], True).mean()

        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            for n in (8, 16, 32):
                x, y = torch.randn(n), torch.randn(n)
                close(compiled(x, y), f(x, y))
            close(compiled(x, y), torch.softmax(torch.nn.functional.gelu((x.sin() + 0.5 * y) ** 2).view(-1, 4), -1) +
                  torch.nn.functional.gelu((x.sin() + 0.5 * y) ** 2).sum())


if __name__ == "__main__":
    torch_support.unittest_main.main()
