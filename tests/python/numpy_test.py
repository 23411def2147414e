#!/usr/bin/python3
"""Operators through the package beside NumPy: dtypes, strides, and broadcasting of random shapes.

$RESIDENT_SEED repeats a run. tests/conformance compares the operators themselves with more care; this
test finds errors of the package: a wrong offset, stride, dtype or shape.
"""

import copy
import os
import pathlib
import pickle
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

SHAPES = 1000
DTYPES = {"f32": 1e-5, "f16": 4e-3, "bf16": 2e-2, "f64": 1e-12, "i32": 0, "i64": 0, "u8": 0, "i8": 0,
          "u32": 0}
FLOATS = ("f32", "f16", "bf16")
ARITHMETIC = FLOATS + ("i32", "f64")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# Name: (inputs, dtypes, reference in float64).
ELEMENTWISE = {
    "add": (2, ARITHMETIC, lambda x, y: x + y),
    "sub": (2, ARITHMETIC, lambda x, y: x - y),
    "mul": (2, ARITHMETIC, lambda x, y: x * y),
    "div": (2, FLOATS, lambda x, y: x / y),
    "maximum": (2, ARITHMETIC, np.maximum),
    "minimum": (2, ARITHMETIC, np.minimum),
    "pow": (2, FLOATS, np.power),
    "copy": (1, tuple(DTYPES), lambda x: x),
    "neg": (1, FLOATS, np.negative),
    "abs": (1, FLOATS, np.abs),
    "exp": (1, FLOATS, np.exp),
    "log": (1, FLOATS, np.log),
    "sqrt": (1, FLOATS, np.sqrt),
    "rsqrt": (1, FLOATS, lambda x: 1 / np.sqrt(x)),
    "sin": (1, FLOATS, np.sin),
    "cos": (1, FLOATS, np.cos),
    "tanh": (1, FLOATS, np.tanh),
    "sigmoid": (1, FLOATS, sigmoid),
    "relu": (1, FLOATS, lambda x: np.maximum(x, 0)),
    "silu": (1, FLOATS, lambda x: x * sigmoid(x)),
    "hardsigmoid": (1, FLOATS, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hardswish": (1, FLOATS, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "softplus": (1, FLOATS, lambda x: np.log1p(np.exp(x))),
    "silu_mul": (2, FLOATS, lambda x, y: x * sigmoid(x) * y),
}
LAYOUTS = {
    "dense": lambda a: a,
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "every second": lambda a: a[1::2, ::2],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], (7,) + a[:, :1].shape, subok=True),
}


def values(array):
    """As float64."""
    return (array.to_float32() if isinstance(array, residentd.BFloat16Array) else array).astype(np.float64)


def stored(array, dtype):
    """The array in a dtype of the daemon."""
    return residentd.bfloat16(array) if dtype == "bf16" else array.astype(residentd.dtypes.find(dtype).storage)


class BFloat16(unittest.TestCase):
    """Its bits must never be taken as numbers."""

    EXACT = np.float32([[1.5, -2, 0.25], [3, 0, float("inf")]])

    def setUp(self):
        self.x = residentd.bfloat16(self.EXACT)

    def equal(self, array, exact):
        self.assertIsInstance(array, residentd.BFloat16Array)
        np.testing.assert_array_equal(array.to_float32(), exact)

    def test_values(self):
        x, exact = self.x, self.EXACT
        self.assertEqual(residentd.bfloat16(1.5).to_float32().shape, ())
        self.assertEqual(residentd.bfloat16(1.5).to_float32(), 1.5)
        self.equal(residentd.bfloat16(x), exact)
        self.equal(residentd.bfloat16([x[0], x[1]]), exact)
        np.testing.assert_array_equal(x.T.to_float32(), exact.T)
        for dtype in (np.float32, "f8", np.float16):
            np.testing.assert_array_equal(x.astype(dtype), exact.astype(dtype))
        self.assertEqual((x[0, 0], float(x[0, 1]), int(x[1, :1]), x.item(2)), (1.5, -2, 3, 0.25))
        self.assertEqual((x.tolist(), list(x[0])), (exact.tolist(), exact[0].tolist()))
        self.assertTrue(x[1, :1] and not x[1, 1:2] and -2 in x)
        x[0, 0], x[1] = 2.5, [1, 2, 3]
        x[0, 1:] = residentd.bfloat16([7, 8])
        self.equal(x, [[2.5, 7, 8], [1, 2, 3]])

    def test_functions_that_move_elements(self):
        x, exact = self.x, self.EXACT
        for function in (np.transpose, np.ravel, np.flip, lambda a: np.concatenate([a, a]),
                         lambda a: np.stack([a, a], axis=1), lambda a: np.take(a, [0, 0], axis=1),
                         lambda a: np.roll(a, 1), lambda a: np.split(a, 2)[1], lambda a: np.tile(a, 2),
                         lambda a: a.reshape(3, 2), lambda a: a.copy(), lambda a: copy.deepcopy(a),
                         lambda a: pickle.loads(pickle.dumps(a)), lambda a: np.repeat(a, 2)):
            self.equal(function(x), function(exact))
        self.assertEqual(np.take(x, 0), 1.5)

    def test_other_functions_are_refused(self):
        x, exact = self.x, self.EXACT
        for function in (np.sort, np.argsort, np.sum, np.mean, np.unique, np.argmax,
                         lambda a: np.dot(a, a.T), lambda a: a.dot(a.T), lambda a: a.sort(),
                         lambda a: a.argmax(), lambda a: a.max(), lambda a: a.sum(),
                         lambda a: np.concatenate([a, exact]), lambda a: np.where(True, a, exact),
                         lambda a: np.einsum("ij->i", a), lambda a: a.fill(1.5),
                         lambda a: a == exact, lambda a: exact != a):
            with self.assertRaisesRegex(residentd.InvalidArgument, r"bits[^\n]*\nFix: "):
                function(x)
        for function in (np.exp, lambda a: a + 1, lambda a: a < 1.5, lambda a: a @ a.T):
            with self.assertRaises(TypeError):
                function(x)
        with self.assertRaises(residentd.InvalidArgument):
            residentd.bfloat16([1j])

    def test_examples(self):
        for given, wanted in (([1, 2], [1, 2]), (residentd.bfloat16([1, 2]), [1, 2])):
            for first in (residentd.bfloat16([3, 4]), np.float32([3, 4])):
                value = residentd.Example(residentd.InOut(first, given)).message().values[0]
                kind = residentd.dtypes.of_array(first)
                array = residentd.dtypes.from_storage(np.frombuffer(value.data, kind.storage), kind)
                np.testing.assert_array_equal(values(array), [3, 4] + wanted)


class Numpy(support.PackageTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.seed = int(os.environ.get("RESIDENT_SEED") or random.SystemRandom().getrandbits(32))
        cls.rng = np.random.default_rng(cls.seed)
        cls.random = random.Random(cls.seed)
        print("RESIDENT_SEED={}".format(cls.seed))

    def some(self, shape, dtype="f32"):
        """Positive values that each dtype represents well."""
        return stored(self.rng.integers(1, 9, shape) / (4 if dtype in FLOATS + ("f64",) else 1), dtype)

    def check(self, out, want, tolerance):
        self.assertEqual(out.shape, np.shape(want))
        np.testing.assert_allclose(values(out), want, rtol=tolerance, atol=tolerance)

    def test_elementwise_operators_of_every_dtype_and_layout(self):
        for name, (inputs, dtypes, reference) in ELEMENTWISE.items():
            operator = self.rd.op(name)
            for dtype in dtypes:
                for layout, view in LAYOUTS.items():
                    with self.subTest(name, dtype=dtype, layout=layout, seed=self.seed):
                        arrays = [view(self.some((6, 8), dtype)) for _ in range(inputs)]
                        out = operator(*arrays)
                        self.assertIs(residentd.dtypes.of_array(out), residentd.dtypes.find(dtype))
                        self.check(out, reference(*map(values, arrays)), DTYPES[dtype])

    def test_the_same_through_buffers_and_shared_memory(self):
        for name, (inputs, dtypes, reference) in ELEMENTWISE.items():
            operator = self.rd.op(name)
            for layout, view in LAYOUTS.items():
                if layout == "broadcast":
                    continue
                with self.subTest(name, layout=layout, seed=self.seed):
                    shared = self.rd.shared((6, 8))
                    shared[:] = self.some((6, 8))
                    with self.rd.upload(self.some((6, 8))) as buffer:
                        arrays = [view(shared), view(buffer) if layout == "transposed" else
                                  {"dense": buffer, "reversed": buffer[::-1, ::-1],
                                   "every second": buffer[1::2, ::2]}[layout]][:inputs]
                        want = reference(*(values(np.asarray(a)) for a in arrays))
                        self.check(operator(*arrays), want, 1e-5)
                        out = self.rd.shared(want.shape)
                        operator(*arrays, out=out)
                        self.check(out, want, 1e-5)

    def test_broadcasting_of_random_shapes(self):
        add = self.rd.op("add")
        for _ in range(SHAPES):
            shape = [self.random.choice((1, 2, 3, 5)) for _ in range(self.random.randrange(0, 6))]
            shapes = []
            for _ in range(2):
                part = [n if self.random.random() < 0.7 else 1 for n in shape]
                shapes.append(tuple(part[self.random.randrange(0, len(part) + 1):]))
            if self.random.random() < 0.2 and shapes[0]:  # Perhaps one that does not broadcast.
                shapes[0] = shapes[0][:-1] + (7,)
            x, y = (self.rng.integers(-9, 9, s).astype(np.float32) for s in shapes)
            with self.subTest(shapes=shapes, seed=self.seed):
                try:
                    want = x + y
                except ValueError:
                    self.refused(residentd.InvalidArgument, "does not broadcast to S", add, x, y)
                else:
                    out = add(x, y)
                    self.assertEqual(out.shape, np.shape(want))
                    np.testing.assert_array_equal(out, want)

    def test_other_families(self):
        x, w, b = self.some((4, 6)), self.some(6), self.some((6, 5))
        rd, exact = self.rd.op, values(x)
        self.check(rd("sum_rows")(x), exact.sum(1), 1e-5)
        self.check(rd("sum")(x.T, axes=1, shape=(4,)), exact.sum(1), 1e-5)
        self.check(rd("mean")(x, axes=3, shape=()), exact.mean(), 1e-5)
        self.check(rd("max")(x, axes=1, shape=(6,)), exact.max(0), 0)
        self.check(rd("argmax")(x, axes=2, shape=(4,)), exact.argmax(1), 0)
        self.check(rd("softmax")(x), softmax(exact), 1e-5)
        self.check(rd("log_softmax")(x), np.log(softmax(exact)), 1e-5)
        norm = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
        self.check(rd("rmsnorm")(x, w), norm * w, 1e-5)
        out, h = rd("rmsnorm_residual")(x, x, w)
        self.check(h, 2 * exact, 1e-6)
        self.check(out, norm * w, 1e-4)
        self.check(rd("gemm")(x, b), exact @ b, 1e-5)
        self.check(rd("gemm")(b.T, x.T, alpha=2), 2 * (b.T @ exact.T), 1e-5)
        self.check(rd("gemm_batched")(np.stack([x, x]), np.stack([b, 2 * b])),
                   np.stack([exact @ b, exact @ (2 * b)]), 1e-5)
        self.check(rd("gemv")(x, b.T.copy(), None), exact @ b, 1e-5)
        self.check(rd("gemv")(x, b.T.copy(), np.ones(5, "f")), exact @ b + 1, 1e-5)
        self.check(rd("embedding")(np.int64([2, 0]), x), exact[[2, 0]], 0)
        self.check(rd("clamp")(x, lo=0.5, hi=1), np.clip(exact, 0.5, 1), 1e-6)
        self.check(rd("fill")(value=3, shape=(2, 3), dtype="i32"), np.full((2, 3), 3), 0)
        self.check(rd("zero")(shape=4, dtype="u8"), np.zeros(4), 0)
        freqs = rd("rope_freqs")(shape=(3, 4))
        self.assertEqual(freqs.shape, (3, 4))
        dst = np.zeros((3, 6), np.float32)
        rd("scatter_add")(dst, np.int64([0, 2, 0, 1]), x)
        self.check(dst, np.stack([exact[0] + exact[2], exact[3], exact[1]]), 1e-5)
        q = self.some((1, 2, 3, 4))
        scores = 0.5 * np.einsum("bnsd,bnld->bnsl", values(q), values(q))
        self.check(rd("attention")(q, q, q, None, scale=0.5),
                   np.einsum("bnsl,bnld->bnsd", softmax(scores), values(q)), 1e-5)

    def test_every_signature_becomes_a_python_signature(self):
        for info in self.rd.operators.list():
            operator = self.rd.op(info.name)
            parameters = [p for p in operator.__signature__.parameters if p not in
                          ("shape", "dtype", "device", "timeout", "retry", "require_isolation")]
            more = ["axis", "keepdims"] if info.name in ("sum", "mean", "max", "min", "argmax") else []
            own = ["axis"] if info.name == "gather" else []  # In its signature.
            self.assertEqual([name for name in parameters if name in ("axis", "keepdims")], more + own, info.name)
            self.assertEqual(len(parameters), len(info.message.parameters) + len(more), info.name)
            self.assertEqual(operator.signature, info.signature)


if __name__ == "__main__":
    support.unittest_main.main()
