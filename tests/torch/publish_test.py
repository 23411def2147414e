#!/usr/bin/env python3
"""publish(): functions of torch as operators, compared with torch for random, special and denormal inputs, broadcasting
and empty shapes, on the CPU and, with a GPU, on it. What is refused."""

import concurrent.futures
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import functions  # noqa: E402
import torch  # noqa: E402
import torch_support  # noqa: E402
from torch_support import residentd, rt, unittest_main  # noqa: E402

from residentd.torch.publish import by_element, random_inputs  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of the validation.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
INSTALLS = 4  # At a time.
KINDS = ["normal"] * 4 + ["special"] * 8 + ["denormal"] * 3 + ["empty"]


class PublishTest(torch_support.TorchTest):

    def equal(self, got, want, what):
        self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype), what)
        a, b = want.double(), got.to(want.device).double()
        near = a.isfinite() & ((a - b).abs() <= TOLERANCE[want.dtype] * (1 + a.abs()))
        wrong = ~((a == b) | (a.isnan() & b.isnan()) | near)
        if wrong.any():
            at = tuple(torch.nonzero(wrong)[0].tolist())
            self.fail("{}: element {} is {} and must be {}".format(what, at, b[at], a[at]))

    def on_device(self, tensors):
        """Copies that the operators use in place."""
        if DEVICE == "cpu":
            return tensors
        with rt.pool():
            return [each.to(DEVICE) for each in tensors]

    def publish(self, function, name, examples, **options):
        options.setdefault("client", self.rd)
        return rt.publish(function, name, examples, **options)

    def test_functions_are_equal_to_torch(self):
        examples = {case.name: [self.on_device(list(each)) for each in case.examples()] for case in functions.CASES}

        def publish(case):
            return case, self.publish(case.function, "published." + case.name, examples[case.name])

        generator = torch.Generator().manual_seed(11)
        with concurrent.futures.ThreadPoolExecutor(INSTALLS) as pool:
            for case, operator in pool.map(publish, functions.CASES):
                for kind in KINDS:
                    inputs = self.on_device(random_inputs(case.examples()[0], kind, generator))
                    want = by_element(case.function, inputs) if kind == "special" else case.function(*inputs)
                    self.equal(operator(*inputs), want, "{} for {} inputs".format(case.name, kind))
        self.assertGreaterEqual(len(functions.CASES), 30)

    def test_scalars_are_arguments_of_each_call(self):
        operator = self.publish(functions.swish, "swish", [(torch.randn(3), 0.5)], label="first")
        x = self.on_device([torch.linspace(-3, 3, 50)])[0]
        for beta in (0.0, 1.5, -2.0):
            self.equal(operator(x, beta=beta), functions.swish(x, beta), beta)
            self.equal(operator(x, beta), functions.swish(x, beta), beta)
        self.equal(rt.ops.swish(x, beta=3.0), functions.swish(x, 3.0), "by its name")
        self.assertEqual(operator.expression, "x -> (x * (1 / (1 + exp((-(x * beta)))))) where x: in f32, out: out f32, "
                         "beta: scalar f32 = 1")
        self.assertIn("first", self.rd.operators.describe("swish").labels)

    def test_versions(self):
        first = self.publish(lambda x: x + 1.0, "step", [torch.zeros(2)])
        second = self.publish(lambda x: x + 2.0, "step", [torch.zeros(2)], wait="loaded")
        x = self.on_device([torch.zeros(3)])[0]
        self.equal(first(x), x + 1, "the active version")
        self.rd.operators.activate("step", second.version)
        self.equal(second(x), x + 2, "the second version")
        self.rd.operators.rollback("step")
        self.equal(second(x), x + 1, "after the rollback")
        second.remove()
        self.assertNotIn("step", [each.name for each in self.rd.operators.list()])

    def test_the_daemon_compares_with_torch(self):
        """A function that computes something else when it is traced than when it runs."""
        def lies(x):
            return x + (1.0 if isinstance(x, torch._subclasses.FakeTensor) else 2.0)

        error = self.refused(residentd.Error, "differs from what the example expects", self.publish, lies, "lies", [torch.zeros(4)])
        self.assertNotIn("lies", [each.name for each in self.rd.operators.list()], error)

    def test_other_dtypes_are_refused_by_the_operator(self):
        operator = self.publish(lambda x: torch.sin(x) + 1, "for_halves", [torch.randn(4).half()])
        self.refused(residentd.InvalidArgument, "must be f16", operator, self.on_device([torch.randn(4)])[0])

    def refuse(self, function, text, *fix, example=None):
        error = self.refused(residentd.InvalidArgument, text, self.publish, function, "refused",
                             [torch.randn(4, 6) if example is None else example])
        for each in fix:
            self.assertIn(each, error.fix)
        return error

    def test_refusals_name_the_line_and_what_to_do(self):
        weight = torch.ones(6)
        error = self.refuse(lambda x: x * 2 + torch.cumsum(x, 0), "publish_test.py:", "elementwise")
        self.assertEqual(error.details["target"], "aten.cumsum.default")
        self.assertIn("torch.cumsum(x, 0)", error.details["source"])
        self.refuse(lambda x: x @ x.T, "aten.permute", "pass the view")
        self.refuse(lambda x: torch.tan(x), "aten.tan", "torch.sin(x) / torch.cos(x)")
        self.refuse(lambda x: torch.rand_like(x) + x, "rand_like", "random numbers as an input")
        self.refuse(lambda x: x + weight, "cannot be traced, at publish_test.py:", "must be parameters")
        self.refuse(lambda x, a=1.0: x if a > 0 else -x, "needs the value of a scalar", "torch.where")
        self.refuse(lambda x, a=2.0: x**a, "needs the value of a scalar", "torch.full_like(x, scalar)")
        self.refuse(lambda x: x if x.sum() > 0 else -x, "at publish_test.py:")
        self.refuse(lambda x: x.double() * 2, "float64")
        self.refuse(lambda x: (x, x), "returns 2 values", "a function for each")
        self.refuse(lambda x: x > 0, "returns a comparison", "torch.where")
        self.refuse(lambda x: 1.0, "does not depend on its arguments")
        self.refuse(lambda x, y: x, "does not use 'y'", example=(torch.ones(3), torch.ones(3)))
        self.refuse(lambda x, *, y: x, "not positional")
        self.refuse(lambda x, flag=True: x, "default of 'flag' is not a number")
        self.refuse(torch.sigmoid, "no signature", "write a Python function")

    def test_a_function_of_the_shape_is_refused(self):
        self.refuse(lambda x: x / x.shape[-1], "for other shapes", "pass it as a scalar")
        self.refuse(lambda x: x * 2 if x.shape[0] > 3 else x, "for other shapes")
        self.refuse(lambda x: x + torch.ones(4, 6), "other shapes")
        self.refuse(lambda x: x + torch.zeros(5, 4, 6), "returns shape [5, 4, 6], and its inputs broadcast to [4, 6]")

    def test_changes_in_place_are_refused(self):
        def through_a_view(x):
            y = x * 2
            y.view(-1).add_(1)
            return y

        self.refuse(through_a_view, "")
        self.refuse(lambda x: x.add_(1), "add_", "change in place")

    def test_examples_are_checked(self):
        for examples, text in (([], "got no example"), ([(torch.ones(2), 1.0, 2.0)], "has 3 arguments"),
                               ([1.0], "example 0"), ([(1.0,)], "not a tensor"),
                               ([torch.ones(2, dtype=torch.int32)], "int32"),
                               ([torch.ones(2), torch.ones(2).half()], "other dtypes")):
            self.refused(residentd.InvalidArgument, text, self.publish, functions.swish, "wrong", examples)

    def test_too_many_parameters(self):
        names = ["a{}".format(i) for i in range(14)]
        function = eval("lambda {}: {}".format(", ".join(names), " + ".join(names)))
        self.refuse(function, "15 parameters with the output", "publish parts", example=[torch.ones(2)] * 14)


if __name__ == "__main__":
    unittest_main.main()
