#!/usr/bin/python3
"""Compares the built-in operators of a running daemon with NumPy in float64: random shapes, strides,
offsets, broadcasting, dtypes, and poisoned outputs.

$RESIDENT_SEED repeats a run; each failure names the seed. The last line is `N passed, N failed`.
"""

import math
import os
import pathlib
import random
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy  # noqa: E402

import daemon as daemons  # noqa: E402
import daemon_client  # noqa: E402
import unittest_main  # noqa: E402

FLOATS = ("f32", "f16", "bf16")
# ||out - reference|| / ||reference||. Products and sums of many terms in float32: 1e-5.
TOLERANCE = {"f32": 1e-6, "f16": 2e-3, "bf16": 1e-2, "f64": 1e-12}
SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 1023, 1025, 4099, (1 << 20) + 7)
ERF = numpy.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return numpy.where(x >= 0, 1 / (1 + numpy.exp(-abs(x))), numpy.exp(-abs(x)) / (1 + numpy.exp(-abs(x))))


def gelu_tanh(x):
    return 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# Name, number of inputs, scalars, reference, and which inputs are valid.
ELEMENTWISE = [
    ("add", 2, [0.75], lambda x, y: x + 0.75 * y),
    ("sub", 2, [1.25], lambda x, y: x - 1.25 * y),
    ("mul", 2, [], lambda x, y: x * y),
    ("div", 2, [], lambda x, y: x / y),
    ("maximum", 2, [], numpy.maximum),
    ("minimum", 2, [], numpy.minimum),
    ("pow", 2, [], lambda x, y: abs(x)**y, abs),
    ("copy", 1, [], lambda x: x),
    ("neg", 1, [], lambda x: -x),
    ("abs", 1, [], abs),
    ("exp", 1, [], numpy.exp),
    ("log", 1, [], numpy.log, lambda x: abs(x) + 0.01),
    ("sqrt", 1, [], numpy.sqrt, abs),
    ("rsqrt", 1, [], lambda x: 1 / numpy.sqrt(x), lambda x: abs(x) + 0.01),
    ("sin", 1, [], numpy.sin),
    ("cos", 1, [], numpy.cos),
    ("tanh", 1, [], numpy.tanh),
    ("sigmoid", 1, [], sigmoid),
    ("relu", 1, [], lambda x: numpy.maximum(x, 0)),
    ("silu", 1, [], lambda x: x * sigmoid(x)),
    ("gelu", 1, [0], lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2)))),
    ("gelu", 1, [1], gelu_tanh),
    ("hardsigmoid", 1, [], lambda x: numpy.clip(x / 6 + 0.5, 0, 1)),
    ("hardswish", 1, [], lambda x: x * numpy.clip(x + 3, 0, 6) / 6),
    ("scale", 1, [-0.5], lambda x: -0.5 * x),
    ("leaky_relu", 1, [0.125], lambda x: numpy.where(x > 0, x, 0.125 * x)),
    ("hardtanh", 1, [-0.5, 1.5], lambda x: numpy.clip(x, -0.5, 1.5)),
    ("elu", 1, [0.5, 2.0, 0.25],
     lambda x: 2 * numpy.where(x > 0, x, 0.5 * numpy.expm1(0.25 * x))),
    ("softplus", 1, [2.0, 20.0], lambda x: numpy.log1p(numpy.exp(2 * x)) / 2),
    ("clamp", 1, [-1.0, 0.5], lambda x: numpy.clip(x, -1, 0.5)),
    ("silu_mul", 2, [], lambda x, y: x * sigmoid(x) * y),
]


class Conformance(daemons.DaemonTest):
    """All tests share a daemon and a session."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = daemon_client.Client(cls.daemon.address)
        cls.addClassCleanup(cls.client.__exit__)
        cls.seed = int(os.environ.get("RESIDENT_SEED") or random.SystemRandom().getrandbits(32))
        cls.numbers = numpy.random.default_rng(cls.seed)
        cls.random = random.Random(cls.seed)
        print("RESIDENT_SEED={}".format(cls.seed))

    def normal(self, shape):
        return self.numbers.standard_normal(shape)

    def layout(self, shape):
        """Strides of a random layout of the shape: an order of its dimensions, with gaps."""
        strides = [0] * len(shape)
        stride = self.random.choice((1, 1, 2, 3))
        order = list(range(len(shape)))
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        for d in reversed(order):
            strides[d] = stride
            stride *= max(shape[d], 1)
            if self.random.random() < 0.2:
                stride += self.random.randrange(1, 5)
        return tuple(strides)

    def input(self, values, dtype):
        """A tensor in a random layout, at a random offset."""
        values = numpy.asarray(values)
        return self.client.tensor(values, dtype, self.layout(values.shape),
                                  self.random.randrange(0, 9))

    def stored(self, values, dtype):
        """The values that the dtype can represent."""
        return daemon_client.decode(daemon_client.encode(values, dtype), dtype)

    def check(self, out, reference, tolerance=None):
        """Compares an output with the reference: NaN and infinity where the output's dtype has
        them for the reference and nowhere else."""
        values = self.client.read(out)
        with numpy.errstate(all="ignore"):
            want = numpy.broadcast_to(numpy.asarray(reference, dtype=float), out.shape)
            rounded = self.stored(want, out.dtype)
        numpy.testing.assert_array_equal(numpy.isnan(values), numpy.isnan(rounded))
        infinite = numpy.isinf(rounded)
        numpy.testing.assert_array_equal(numpy.isinf(values), infinite)
        numpy.testing.assert_array_equal(values[infinite], rounded[infinite])
        finite = numpy.isfinite(rounded)
        error = numpy.linalg.norm(values[finite] - want[finite])
        norm = numpy.linalg.norm(want[finite])
        limit = TOLERANCE[out.dtype] if tolerance is None else max(tolerance, TOLERANCE[out.dtype])
        self.assertLessEqual(error, limit * norm,
                             "relative error {}".format(error / norm if norm else error))

    def run_and_check(self, name, inputs, scalars, out, reference, tolerance=None):
        with self.subTest(operator=name, seed=self.seed,
                          inputs=[(t.dtype, t.shape, t.strides, t.offset) for t in inputs],
                          out=(out.dtype, out.shape, out.strides)):
            self.client.run(name, *inputs, out, *scalars)
            with numpy.errstate(all="ignore"):
                self.check(out, reference(), tolerance)
        self.client.free(*inputs, out)


class Elementwise(Conformance):
    """Family "elementwise"."""

    def values(self, shape, dtype, domain):
        return self.stored(domain(self.normal(shape)), dtype)

    def case(self, case, shapes, dtypes, out):
        name, _, scalars, reference = case[:4]
        domain = case[4] if len(case) > 4 else lambda x: x
        arrays = [self.values(shape, dtype, domain) for shape, dtype in zip(shapes, dtypes)]
        inputs = [self.input(array, dtype) for array, dtype in zip(arrays, dtypes)]
        self.run_and_check(name, inputs, scalars, out, lambda: reference(*arrays))

    def test_random_dtypes_shapes_layouts_and_broadcasting(self):
        for case in ELEMENTWISE:
            for _ in range(8):
                shape = tuple(self.random.randrange(1, 9) for _ in range(self.random.randrange(1, 6)))
                shapes = []
                for _ in range(case[1]):
                    part = shape[self.random.randrange(0, len(shape)):]
                    shapes.append(tuple(1 if self.random.random() < 0.25 else n for n in part))
                dtypes = [self.random.choice(FLOATS) for _ in shapes]
                out = self.client.output(shape, self.random.choice(FLOATS), self.layout(shape))
                self.case(case, shapes, dtypes, out)

    def test_sizes(self):
        for case in ELEMENTWISE:
            for size in SIZES:
                if size > 1 << 20 and case[0] not in ("add", "copy", "exp"):
                    continue
                dtype = self.random.choice(FLOATS)
                self.case(case, [(size,)] * case[1], [dtype] * case[1],
                          self.client.output((size,), dtype))

    def test_float64(self):
        for case in ELEMENTWISE:
            if case[0] in ("add", "sub", "mul", "maximum", "minimum", "clamp", "copy"):
                self.case(case, [(5, 1, 7)] * case[1], ["f64"] * case[1],
                          self.client.output((5, 1, 7), "f64"))

    def test_int32_wraps(self):
        x = self.numbers.integers(-2**31, 2**31, 1000, dtype=numpy.int64)
        y = self.numbers.integers(-2**31, 2**31, 1000, dtype=numpy.int64)
        for name, scalars, result in (("add", [3.0], x + 3 * y), ("sub", [1.0], x - y),
                                      ("mul", [], x.astype(numpy.int32) * y.astype(numpy.int32)),
                                      ("maximum", [], numpy.maximum(x, y)),
                                      ("minimum", [], numpy.minimum(x, y))):
            out = self.client.output((1000,), "i32")
            self.client.run(name, self.input(x, "i32"), self.input(y, "i32"), out, *scalars)
            numpy.testing.assert_array_equal(self.client.read(out), result.astype(numpy.int32), name)

    def test_copy_converts_as_numpy_does(self):
        values = numpy.array([-100.7, -1, -0.0, 0.5, 1.5, 2.5, 99.9, 127])
        for source in daemon_client.DTYPES:
            stored = self.stored(abs(values) if source in ("u8", "u32") else values, source)
            for target in daemon_client.DTYPES:
                if target in ("u8", "u32") and (stored < 0).any():
                    continue
                out = self.client.output(values.shape, target)
                with self.subTest(source=source, target=target):
                    self.client.run("copy", self.input(stored, source), out)
                    numpy.testing.assert_array_equal(self.client.read(out),
                                                     self.stored(stored, target))

    def test_special_values(self):
        special = numpy.array([0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38, 1, -1])
        x, y = (a.ravel() for a in numpy.meshgrid(special, special))
        for case in ELEMENTWISE:
            name, inputs, scalars, reference = case[:4]
            if name == "pow":
                reference = numpy.power
            if name == "silu" or name == "silu_mul":  # -infinity * 0 is NaN in the reference.
                base = reference
                finite = x > -math.inf
                reference = lambda *v: numpy.where(finite, base(*v), -0.0 if len(v) == 1 else
                                                   -0.0 * v[1])
            if name.startswith("gelu") or name == "hardswish" or name == "elu" or name == "softplus":
                continue  # At infinity the formulas of the references are NaN.
            arrays = [self.stored(v, "f32") for v in (x, y)[:inputs]]
            out = self.client.output(x.shape, "f32")
            tensors = [self.client.tensor(a, "f32") for a in arrays]
            self.run_and_check(name, tensors, scalars, out, lambda: reference(*arrays), 1e-5)

    def test_fractions_for_int32_are_refused(self):
        x = self.client.tensor(numpy.array([1, 2]), "i32")
        out = self.client.output((2,), "i32")
        with self.assertRaisesRegex(daemon_client.Failed, "1"):
            self.client.run("add", x, x, out, 0.5)


if __name__ == "__main__":
    unittest_main.main()
