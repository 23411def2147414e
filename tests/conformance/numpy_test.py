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


# Operators of which a task has ended OK in a test of this program.
CALLED = set()
# Comparisons of a shadow, copies of uploads and downloads, and FLUX programs: for other tests.
NOT_CALLED = {"compare", "copy_bytes", "flux.run"}


class RecordingClient(daemon_client.Client):
    """Notes the operators that it runs."""

    def run(self, operator, *arguments):
        seconds = super().run(operator, *arguments)
        CALLED.add(operator)
        return seconds


class Conformance(daemons.DaemonTest):
    """All tests share a daemon and a session."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = RecordingClient(cls.daemon.address)
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
        x = self.normal(shape)
        if x.size <= 4:
            # Magnitudes in [0.1, 0.9): all results of so few could be close to 0, or subnormal in
            # f16, where no relative error is bounded.
            x = numpy.copysign(0.1 + 0.8 * abs(x) / (1 + abs(x)), x)
        return self.stored(domain(x), dtype)

    def case(self, case, shapes, dtypes, out):
        name, _, scalars, reference = case[:4]
        domain = case[4] if len(case) > 4 else lambda x: x
        arrays = [self.values(shape, dtype, domain) for shape, dtype in zip(shapes, dtypes)]
        if name in ("add", "sub") and max(array.size for array in arrays) <= 4:
            # Terms of one sign: all sums of so few could be close to 0, which no relative error bounds.
            arrays = [abs(arrays[0]), abs(arrays[1]) if name == "add" else -abs(arrays[1])]
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

    def test_pointwise(self):
        """a * b + 0.5 if a < b, else -a: kernels/ops/pointwise_program.h."""
        neg, add, mul, less, select = 1, 35, 37, 44, 63
        half = int(numpy.float32(0.5).view(numpy.uint32))
        rows = [(1 | 32 << 8 | 2 << 16, 0)]
        for op, to, operands, immediate in ((less, 2, (0, 1), 0), (mul, 3, (0, 1), 0), (add, 3, (3, 255), half),
                                            (neg, 4, (0,), 0), (select, 2, (2, 3, 4), 0)):
            word = op | to << 8
            for i, operand in enumerate(operands):
                word |= operand << 16 + 8 * i
            rows.append((word, immediate))
        for shape in ((1,), (257,), (3, 1025), (2, 3, 5, 7)):
            a, b = self.stored(self.normal(shape), "f32"), self.stored(self.normal(shape[-1:]), "f16")
            out = self.client.output(shape, "f32", self.layout(shape))
            program = self.client.tensor(numpy.array(rows), "i64")
            none = [self.client.tensor(numpy.zeros(0), "f32") for _ in range(4)]
            self.client.run("pointwise", program, self.input(a, "f32"), self.input(b, "f16"), *none, out)
            want = numpy.where(a < b, a * b + 0.5, -a)
            # The sum may be much smaller than its terms, whose rounding it has.
            terms = numpy.linalg.norm(numpy.abs(a * b) + 0.5) / max(numpy.linalg.norm(want), 1e-30)
            self.check(out, want, tolerance=TOLERANCE["f32"] * terms)
        with self.assertRaises(daemon_client.Failed):
            program = self.client.tensor(numpy.array(rows[:1]), "i64")
            self.client.run("pointwise", program, self.input(a, "f32"), self.input(b, "f16"), *none, out)

    def test_gather(self):
        x, ids = self.numbers.integers(0, 99, (3, 6, 5)), self.numbers.integers(-6, 6, (3, 4, 5))
        out = self.client.output(ids.shape, "i32", self.layout(ids.shape))
        self.client.run("gather", self.input(x, "i32"), self.input(ids, "i64"), out, 1)
        numpy.testing.assert_array_equal(self.client.read(out), numpy.take_along_axis(x, ids, 1))
        ids[0, 1, 2] = 6
        with self.assertRaises(daemon_client.Failed):
            self.client.run("gather", self.input(x, "i32"), self.input(ids, "i64"), out, 1)

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
            if name == "add" or name == "sub":  # Multiples of large values would be infinite.
                scalars = [1.0]
                reference = numpy.add if name == "add" else numpy.subtract
            if name == "silu" or name == "silu_mul":  # -infinity * 0 is NaN in the reference.
                base = reference
                finite = x != -math.inf
                reference = lambda *v: numpy.where(finite, base(*v), -0.0 if len(v) == 1 else
                                                   -0.0 * v[1])
            if name.startswith("gelu") or name == "hardswish" or name == "elu" or name == "softplus":
                continue  # At infinity the formulas of the references are NaN.
            arrays = [self.stored(v, "f32") for v in (x, y)[:inputs]]
            out = self.client.output(x.shape, "f32")
            tensors = [self.client.tensor(a, "f32") for a in arrays]
            self.run_and_check(name, tensors, scalars, out, lambda: reference(*arrays), 1e-5)

    def test_fill_and_zero(self):
        for dtype in daemon_client.DTYPES:
            shape = (3, 5, 7)
            for strides in (None, self.layout(shape)):
                with self.subTest(dtype=dtype, strides=strides, seed=self.seed):
                    out = self.client.output(shape, dtype, strides)
                    self.client.run("zero", out)
                    numpy.testing.assert_array_equal(self.client.read(out), numpy.zeros(shape))
                    if dtype not in FLOATS + ("f64", "i32"):
                        continue
                    value = 7.0 if dtype == "i32" else 0.7
                    out = self.client.output(shape, dtype, strides)
                    self.client.run("fill", out, value)
                    numpy.testing.assert_array_equal(
                        self.client.read(out), self.stored(numpy.full(shape, value), dtype))
        for size in SIZES:
            out = self.client.output((size,), "f32")
            self.client.run("fill", out, -2.5)
            numpy.testing.assert_array_equal(self.client.read(out), numpy.full(size, -2.5))

    def test_fractions_for_int32_are_refused(self):
        x = self.client.tensor(numpy.array([1, 2]), "i32")
        out = self.client.output((2,), "i32")
        with self.assertRaisesRegex(daemon_client.Failed, "1"):
            self.client.run("add", x, x, out, 0.5)


class Reductions(Conformance):
    """Family "reduction": all sets of axes, with and without the reduced dimensions."""

    def test_all_sets_of_axes(self):
        functions = {"sum": numpy.sum, "mean": numpy.mean, "max": numpy.max, "min": numpy.min}
        for shape in ((7,), (1025,), (5, 33), (3, 1, 4, 6), (2, 3, 2, 3, 2)):
            for mask in range(1, 1 << len(shape)):
                axes = tuple(d for d in range(len(shape)) if mask >> d & 1)
                dtype = self.random.choice(FLOATS)
                x = self.stored(self.normal(shape), dtype)
                tensor = self.input(x, dtype)
                keep = self.random.random() < 0.5
                for name, function in functions.items():
                    want = function(x, axis=axes, keepdims=keep)
                    out = self.client.output(want.shape, self.random.choice(FLOATS))
                    with self.subTest(operator=name, shape=shape, axes=axes, seed=self.seed):
                        self.client.run(name, tensor, out, mask)
                        if name in ("max", "min"):
                            self.check(out, want)
                        else:  # A sum may cancel: the error is relative to the terms.
                            terms = numpy.linalg.norm(function(abs(x), axis=axes))
                            self.check_terms(out, want, terms)

    def check_terms(self, out, want, terms):
        error = numpy.linalg.norm(self.client.read(out) - want)
        self.assertLessEqual(error, max(TOLERANCE[out.dtype], 1e-5) * terms)

    def test_sum_rows(self):
        for shape in ((1, 1), (3, 257), (257, 3), (2, 65537), (5, 0), (0, 5)):
            x = self.stored(self.normal(shape), "f32")
            out = self.client.output(shape[:1], "f32")
            with self.subTest(shape=shape, seed=self.seed):
                self.client.run("sum_rows", self.client.tensor(x, "f32"), out)
                self.check_terms(out, x.sum(axis=1), numpy.linalg.norm(abs(x).sum(axis=1)))

    def test_argmax(self):
        for shape, axis in (((9, 1025), 1), ((257, 3), 0), ((4, 5, 6), 1), ((262144,), 0)):
            x = self.numbers.integers(-50, 50, shape).astype(float)  # Many ties.
            x[tuple(self.random.randrange(n) for n in shape)] = math.nan
            want = numpy.argmax(x, axis=axis)  # NumPy too takes the first NaN.
            out = self.client.output(want.shape, "i64")
            self.client.run("argmax", self.input(x, "f32"), out, 1 << axis)
            numpy.testing.assert_array_equal(self.client.read(out), want)


def softmax(x):
    e = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Normalizations(Conformance):
    """Family "normalization"."""

    SHAPES = ((1, 1), (3, 31), (2, 3, 257), (4, 1025), (1, 65537))

    def dense(self, values, dtype):
        return self.client.tensor(values, dtype)

    def test_softmax_and_log_softmax(self):
        for shape in self.SHAPES:
            for gap in (0, 88, 89, 200, 1e4):
                dtype = self.random.choice(FLOATS)
                x = self.normal(shape)
                x[..., self.random.randrange(shape[-1])] += gap
                x = self.stored(x, dtype)
                self.run_and_check("softmax", [self.dense(x, dtype)], [],
                                   self.client.output(shape, "f32"), lambda: softmax(x), 1e-5)
                m = x.max(axis=-1, keepdims=True)
                self.run_and_check(
                    "log_softmax", [self.dense(x, dtype)], [], self.client.output(shape, "f32"),
                    lambda: x - m - numpy.log(numpy.exp(x - m).sum(axis=-1, keepdims=True)), 1e-5)

    def test_softmax_topk(self):
        for rows, columns, k in ((3, 8, 2), (2, 257, 257), (1, 4099, 50)):
            x = self.numbers.integers(-30, 30, (rows, columns)) / 4  # Ties.
            order = numpy.argsort(-x, axis=-1, kind="stable")[:, :k]
            want = softmax(numpy.take_along_axis(x, order, -1))
            weights, indices = self.client.output((rows, k), "f32"), self.client.output((rows, k), "i64")
            self.client.run("softmax_topk", self.dense(x, "f32"), weights, indices)
            numpy.testing.assert_array_equal(self.client.read(indices), order)
            self.check(weights, want, 1e-5)

    def test_norms(self):
        for shape in self.SHAPES:
            dtype, columns = self.random.choice(FLOATS), shape[-1:]
            x, r = (self.stored(self.normal(shape), dtype) for _ in range(2))
            w, b = (self.stored(self.normal(columns), dtype) for _ in range(2))

            def rmsnorm(x):
                return x * w / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

            def layernorm(x):
                return (x - x.mean(-1, keepdims=True)) / numpy.sqrt(
                    x.var(axis=-1, keepdims=True) + 1e-5) * w

            inputs = lambda *arrays: [self.dense(a, dtype) for a in arrays]
            self.run_and_check("rmsnorm", inputs(x, w), [1e-5], self.client.output(shape, dtype),
                               lambda: rmsnorm(x), 1e-5)
            self.run_and_check("layernorm", inputs(x, w, b), [1e-5],
                               self.client.output(shape, dtype), lambda: layernorm(x) + b, 1e-5)
            out, h = self.client.output(shape, dtype), self.client.output(shape, dtype)
            self.client.run("rmsnorm_residual", *inputs(x, r, w), out, h, 1e-5)
            self.check(out, rmsnorm(x + r), 1e-5)
            self.check(h, x + r)


class Matrices(Conformance):
    """Family "matrix"."""

    def test_gemm(self):
        for m, n, k in ((1, 1, 1), (3, 5, 7), (33, 65, 127), (128, 96, 1024), (4, 4, 0), (61, 1, 257)):
            for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
                dtype = self.random.choice(FLOATS)
                a, b = self.stored(self.normal((m, k)), dtype), self.stored(self.normal((k, n)), dtype)
                c = self.normal((m, n)) if beta else numpy.full((m, n), math.nan)
                if m * n * k == 1:
                    a, b, c = abs(a), abs(b), -abs(c)  # With a negative alpha: terms of one sign.
                out = self.client.tensor(c, "f32", elements=m * n + 1)
                c = self.client.read(out) if beta else numpy.zeros((m, n))
                with self.subTest(m=m, n=n, k=k, beta=beta, seed=self.seed):
                    self.client.run("gemm", self.input(a, dtype), self.input(b, dtype), out, alpha,
                                    beta)
                    self.check(out, alpha * (a @ b) + beta * c, 1e-5)

    def test_gemm_batched(self):
        a, b = self.stored(self.normal((5, 9, 33)), "f16"), self.stored(self.normal((5, 33, 17)), "bf16")
        out = self.client.output((5, 9, 17), "f32")
        self.client.run("gemm_batched", self.input(a, "f16"), self.input(b, "bf16"), out, 1.0, 0.0)
        self.check(out, a @ b, 1e-5)

    # Sizes K and N of products with vectors, and the shape in front of them; from the third one on
    # those of a model's layers, for one text and for several ones.
    VECTORS = ((1, 1, ()), (127, 33, (3,)), (4096, 65, (1,)), (2048, 131, (4,)), (8192, 17, (16,)),
               (1056, 300, (9,)))

    def test_gemv(self):
        for k, n, leading in self.VECTORS:
            w, x = self.stored(self.normal((n, k)), "bf16"), self.stored(self.normal(leading + (k,)), "f32")
            bias = self.stored(self.normal((n,)), "f32")
            if k * n == 1:
                w, x, bias = abs(w), abs(x), abs(bias)  # Terms of one sign.
            out = self.client.output(leading + (n,), "f32")
            self.client.run("gemv", *(self.client.tensor(*t) for t in
                                      ((x, "f32"), (w, "bf16"), (bias, "f32"))), out)
            self.check(out, x @ w.T + bias, 1e-5)
            # A bias for each vector.
            bias = self.stored(abs(self.normal(leading + (n,))), "f32")
            out = self.client.output(leading + (n,), "f32")
            self.client.run("gemv", *(self.client.tensor(*t) for t in
                                      ((x, "f32"), (w, "bf16"), (bias, "f32"))), out)
            self.check(out, x @ w.T + bias, 1e-5)

    def test_linear(self):
        activations = (lambda v: v, lambda v: numpy.maximum(v, 0), lambda v: v * (1 + ERF(v / numpy.sqrt(2))) / 2,
                       lambda v: v * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (v + 0.044715 * v**3))) / 2,
                       lambda v: v / (1 + numpy.exp(-v)), lambda v: 1 / (1 + numpy.exp(-v)), numpy.tanh)
        for k, n, leading in self.VECTORS:
            for dtype in ("f32", "bf16"):
                for activation, function in enumerate(activations):
                    # Terms of one sign.
                    w = self.stored(abs(self.normal((n, k))) / k, dtype)
                    x = self.stored(abs(self.normal(leading + (k,))), "f32")
                    bias = self.stored(abs(self.normal((n,))), "f32")
                    residual = self.stored(abs(self.normal(leading + (n,))), "f32")
                    out = self.client.output(leading + (n,), "f32")
                    self.client.run("linear", *(self.client.tensor(*t) for t in (
                        (x, "f32"), (w, dtype), (bias, "f32"), (residual, "f32"))), out, activation)
                    self.check(out, function(x @ w.T + bias) + residual, 1e-5)

    def test_gemv_silu_mul(self):
        for k, n, leading in self.VECTORS:
            gate, up = (self.stored(abs(self.normal((n, k))), "bf16") for _ in range(2))
            x = self.stored(abs(self.normal(leading + (k,))), "f32")
            out = self.client.output(leading + (n,), "f32")
            self.client.run("gemv_silu_mul", *(self.client.tensor(*t) for t in
                                               ((x, "f32"), (gate, "bf16"), (up, "bf16"))), out)
            product = x @ gate.T
            self.check(out, product / (1 + numpy.exp(-product)) * (x @ up.T), 1e-5)

    def test_rmsnorm_gemv(self):
        for k, n, leading in self.VECTORS:
            w, up = (self.stored(abs(self.normal((n, k))), "bf16") for _ in range(2))
            x = self.stored(abs(self.normal(leading + (k,))), "f32")
            norm = self.stored(abs(self.normal((k,))), "bf16")
            bias = self.stored(abs(self.normal((n,))), "f32")
            normalized = x * norm / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
            product = normalized @ w.T
            out = self.client.output(leading + (n,), "f32")
            self.client.run("rmsnorm_gemv", *(self.client.tensor(*t) for t in (
                (x, "f32"), (norm, "bf16"), (w, "bf16"), (bias, "f32"))), out, 1e-5)
            self.check(out, product + bias, 1e-5)
            bias = self.stored(abs(self.normal(leading + (n,))), "f32")
            out = self.client.output(leading + (n,), "f32")
            self.client.run("rmsnorm_gemv", *(self.client.tensor(*t) for t in (
                (x, "f32"), (norm, "bf16"), (w, "bf16"), (bias, "f32"))), out, 1e-5)
            self.check(out, product + bias, 1e-5)
            out = self.client.output(leading + (n,), "f32")
            self.client.run("rmsnorm_gemv_silu_mul", *(self.client.tensor(*t) for t in (
                (x, "f32"), (norm, "bf16"), (w, "bf16"), (up, "bf16"))), out, 1e-5)
            self.check(out, product / (1 + numpy.exp(-product)) * (normalized @ up.T), 1e-5)

    def test_rmsnorm_gemv_qkv(self):
        for k, leading in ((1024, ()), (2048, (1,)), (33, (3,))):
            x = self.stored(abs(self.normal(leading + (k,))), "f32")
            norm = self.stored(abs(self.normal((k,))), "bf16")
            weights = [self.stored(abs(self.normal((n, k))), "bf16") for n in (40, 9, 17)]
            biases = [self.stored(abs(self.normal((n,))), "f32") for n in (40, 0, 17)]
            normalized = x * norm / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
            outs = [self.client.output(leading + (n,), "f32") for n in (40, 9, 17)]
            self.client.run("rmsnorm_gemv_qkv", self.client.tensor(x, "f32"), self.client.tensor(norm, "bf16"),
                            *(self.client.tensor(w, "bf16") for w in weights),
                            *(self.client.tensor(b, "f32") for b in biases), *outs, 1e-5)
            for out, w, bias in zip(outs, weights, biases):
                self.check(out, normalized @ w.T + (bias if len(bias) else 0), 1e-5)

    def test_quantized(self):
        for bits, k, group in ((8, 64, 16), (4, 64, 16), (4, 33, 7), (8, 33, 7)):
            n, groups = 19, -(-k // group)
            scales = self.stored(abs(self.normal((n, groups))), "f16")
            zeros = self.numbers.integers(0, 1 << bits, (n, groups)).astype(float)
            q = self.numbers.integers(0, 1 << bits, (n, k))
            column = numpy.arange(k) // group
            weights = (q - zeros[:, column]) * scales[:, column]
            packed = q
            if bits == 4:
                even, odd = q[:, 0::2], q[:, 1::2]
                packed = even.copy()
                packed[:, :odd.shape[1]] |= odd << 4
            x = self.stored(self.normal((2, k)), "f32")
            arguments = [self.client.tensor(*t) for t in ((packed, "u8"), (scales, "f16"), (zeros, "f16"))]
            out = self.client.output((n, k), "f32")
            self.client.run("dequant", *arguments, out, group)
            self.check(out, weights)
            out = self.client.output((2, n), "f32")
            self.client.run("gemv_quant", self.client.tensor(x, "f32"), *arguments, out, group)
            self.check(out, x @ weights.T, 1e-5)
            bias = self.stored(self.normal((n,)), "f32")
            out = self.client.output((2, n), "f32")
            self.client.run("gemv_quant_bias", self.client.tensor(x, "f32"), *arguments,
                            self.client.tensor(bias, "f32"), out, group)
            self.check(out, x @ weights.T + bias, 1e-5)

    def test_rmsnorm_of_quantized(self):
        # The last ones have the form of a model's layers.
        for k, n, group, leading in ((64, 19, 16, (3,)), (96, 33, 32, ()), (2048, 65, 128, (1,))):
            def weights():
                """Arguments, and the weights that they are: of one sign, so that no sum is close to 0."""
                scales = self.stored(abs(self.normal((n, k // group))) / 64, "f16")
                q = self.numbers.integers(1, 128, (n, k))
                arguments = ((q, "i8"), (scales, "f16"), (numpy.zeros(0), "f16"))
                return ([self.client.tensor(*t) for t in arguments],
                        q * scales[:, numpy.arange(k) // group])

            (first, w), (second, up) = weights(), weights()
            x = self.stored(abs(self.normal(leading + (k,))), "f32")
            norm = self.stored(abs(self.normal((k,))), "bf16")
            bias = self.stored(abs(self.normal((n,))), "f32")
            normalized = x * norm / numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
            product = normalized @ w.T
            inputs = [self.client.tensor(x, "f32"), self.client.tensor(norm, "bf16")]
            out = self.client.output(leading + (n,), "f32")
            self.client.run("rmsnorm_gemv_quant", *inputs, *first, self.client.tensor(bias, "f32"),
                            out, group, 1e-5)
            self.check(out, product + bias, 1e-5)
            out = self.client.output(leading + (n,), "f32")
            self.client.run("rmsnorm_gemv_quant_silu_mul", *inputs, *first, *second, out, group, 1e-5)
            self.check(out, product / (1 + numpy.exp(-product)) * (normalized @ up.T), 1e-5)


class Attention(Conformance):
    """Family "attention"."""

    def reference(self, q, k, v, scale, causal, mask, kv_len):
        heads, kv_heads, queries = q.shape[1], k.shape[1], q.shape[2]
        k, v = (numpy.repeat(a, heads // kv_heads, axis=1)[:, :, :kv_len] for a in (k, v))
        scores = scale * numpy.einsum("bnsd,bnld->bnsl", q, k) + mask[..., :kv_len]
        if causal:
            visible = numpy.arange(kv_len) <= kv_len - queries + numpy.arange(queries)[:, None]
            scores = numpy.where(visible, scores, -math.inf)
        largest = scores.max(axis=-1, keepdims=True)
        weights = numpy.exp(scores - numpy.where(numpy.isinf(largest), 0, largest))
        total = weights.sum(axis=-1, keepdims=True)
        weights = numpy.where(total > 0, weights / numpy.where(total > 0, total, 1), 0)
        return numpy.einsum("bnsl,bnle->bnse", weights, v)

    def test_attention(self):
        for head, heads, kv_heads, queries, keys, causal in (
            (16, 4, 4, 1, 1, 0), (64, 8, 2, 63, 63, 1), (80, 6, 1, 1, 1000, 1), (96, 2, 1, 65, 65, 0),
            (128, 4, 2, 64, 100, 1), (256, 2, 2, 1, 64, 0)):
            dtype = self.random.choice(FLOATS)
            q, k, v = (self.stored(self.normal(shape), dtype)
                       for shape in ((2, heads, queries, head), (2, kv_heads, keys, head),
                                     (2, kv_heads, keys, head)))
            mask = numpy.where(self.numbers.random((2, 1, queries, keys)) < 0.2, -math.inf, 0.0)
            mask[0, 0, 0] = -math.inf  # A row without visible keys.
            kv_len, scale = self.random.randrange(1, keys + 1), 1 / math.sqrt(head)
            out = self.client.output(q.shape, "f32")
            with self.subTest(head=head, heads=heads, queries=queries, keys=keys, seed=self.seed):
                self.client.run("attention", *(self.input(a, dtype) for a in (q, k, v)),
                                self.client.tensor(mask, "f32"), out, scale, causal, kv_len)
                with numpy.errstate(all="ignore"):
                    self.check(out, self.reference(q, k, v, numpy.float32(scale), causal, mask, kv_len),
                               1e-5)

    def test_parts_that_are_combined(self):
        for head, heads, kv_heads, queries, keys, causal, parts in (
            (16, 4, 4, 1, 1, 0, 1), (64, 8, 2, 3, 100, 1, 3), (80, 6, 1, 1, 1000, 1, 7),
            (128, 4, 2, 5, 7, 0, 9)):
            dtype = self.random.choice(FLOATS)
            q, k, v = (self.stored(self.normal(shape), dtype)
                       for shape in ((2, heads, queries, head), (2, kv_heads, keys, head),
                                     (2, kv_heads, keys, head)))
            mask = numpy.where(self.numbers.random((2, 1, queries, keys)) < 0.2, -math.inf, 0.0)
            mask[0, 0, 0] = -math.inf  # A row without visible keys.
            kv_len, scale = self.random.randrange(1, keys + 1), 1 / math.sqrt(head)
            acc = self.client.output(q.shape[:3] + (parts, head), "f32")
            largest, total = (self.client.output(q.shape[:3] + (parts,), "f32") for _ in range(2))
            out = self.client.output(q.shape, "f32")
            with self.subTest(head=head, heads=heads, keys=keys, parts=parts, seed=self.seed):
                self.client.run("attention_partial", *(self.input(a, dtype) for a in (q, k, v)),
                                self.client.tensor(mask, "f32"), acc, largest, total, scale, causal,
                                kv_len)
                for part in (acc, largest, total):  # Every element is written, and nothing else.
                    self.client.read(part)
                self.client.run("attention_combine", acc, largest, total, out)
                with numpy.errstate(all="ignore"):
                    self.check(out, self.reference(q, k, v, numpy.float32(scale), causal, mask, kv_len),
                               1e-5)

    def test_combining_parts(self):
        acc, total = self.normal((2, 3, 4, 5, 33)), abs(self.normal((2, 3, 4, 5))) + 0.1
        largest = 4 * self.normal(total.shape)
        largest[0, 0, 0, 1:] = -math.inf  # Parts that are empty, whatever they contain.
        acc[0, 0, 0, 1:] = math.nan
        total[0, 1, 0, 2] = 0
        acc, largest, total = (self.stored(a, "f32") for a in (acc, largest, total))
        out = self.client.output((2, 3, 4, 33), "f32")
        self.client.run("attention_combine", *(self.client.tensor(a, "f32")
                                               for a in (acc, largest, total)), out)
        empty = numpy.isinf(largest) | (total == 0)
        weights = numpy.where(empty, 0, numpy.exp(largest - largest.max(axis=-1, keepdims=True)))
        products = numpy.where(empty[..., None], 0, weights[..., None] * acc)
        self.check(out, products.sum(axis=3) / (weights * total).sum(axis=3)[..., None], 1e-5)

    def test_kv_append(self):
        for new_dtype, dtype, pos in (("f32", "f32", 0), ("f16", "f16", 3), ("f32", "bf16", 6)):
            new = self.stored(self.normal((2, 3, 4, 33)), new_dtype)
            cache = self.stored(self.normal((2, 3, 10, 33)), dtype)
            stored = self.input(cache, dtype)
            with self.subTest(new=new_dtype, cache=dtype, pos=pos, seed=self.seed):
                self.client.run("kv_append", self.input(new, new_dtype), stored, pos)
                cache[:, :, pos:pos + 4] = self.stored(new, dtype)
                numpy.testing.assert_array_equal(self.client.read(stored), cache)
        before = self.client.read(stored)
        for pos in (-1, 7):
            with self.assertRaises(daemon_client.Failed):
                self.client.run("kv_append", self.input(new, new_dtype), stored, pos)
        numpy.testing.assert_array_equal(self.client.read(stored), before)

    def test_rope(self):
        for layout in (0, 1):
            head, length = 64, 50
            freqs = self.client.output((length, head // 2), "f32")
            self.client.run("rope_freqs", freqs, 10000.0, 1.0)
            angles = numpy.arange(length)[:, None] * 10000.0**(-2 * numpy.arange(head // 2) / head)
            self.check(freqs, angles)
            x = self.stored(self.normal((2, 9, 3, head)), "f32")
            t = self.client.read(freqs)[5:14][None, :, None]
            pairs = (x[..., 0::2], x[..., 1::2]) if layout == 0 else (x[..., :head // 2],
                                                                     x[..., head // 2:])
            want = numpy.empty_like(x)
            a = pairs[0] * numpy.cos(t) - pairs[1] * numpy.sin(t)
            b = pairs[0] * numpy.sin(t) + pairs[1] * numpy.cos(t)
            if layout == 0:
                want[..., 0::2], want[..., 1::2] = a, b
            else:
                want[..., :head // 2], want[..., head // 2:] = a, b
            out = self.client.output(x.shape, "f32")
            self.client.run("rope", self.input(x, "f32"), freqs, out, 5, layout)
            self.check(out, want)

    def test_attention_decode(self):
        """Beside rope, kv_append and attention of one position, in float64."""
        for heads, kv_heads, head, length, pos, parts, layout in (
            (8, 2, 64, 300, 0, 4, 1), (8, 2, 64, 300, 31, 4, 1), (6, 3, 64, 300, 299, 4, 0),
            (12, 1, 128, 500, 437, 16, 1), (4, 4, 80, 90, 77, 3, 1), (5, 1, 16, 70, 69, 2, 0),
            (8, 2, 64, 900, 511, 4, 1), (8, 2, 64, 900, 512, 4, 1), (6, 3, 128, 900, 811, 7, 0)):
            dtype = self.random.choice(FLOATS)
            q, k, v = (self.stored(self.normal(shape), "f32")
                       for shape in ((heads, head), (kv_heads, head), (kv_heads, head)))
            angles = self.stored(self.numbers.random(head // 2) * pos, "f32")
            stored = [self.stored(self.normal((kv_heads, length, head)), dtype) for _ in range(2)]
            keys, values = (self.input(a, dtype) for a in stored)
            parted = [self.client.output(shape, "f32")
                      for shape in ((heads, parts, head), (heads, parts), (heads, parts))]
            arrived = self.client.tensor(numpy.zeros(kv_heads), "i32")
            out, scale = self.client.output((heads, head), "f32"), numpy.float32(1 / math.sqrt(head))

            def rotated(x):
                pair = (x[:, 0::2], x[:, 1::2]) if layout == 0 else (x[:, :head // 2], x[:, head // 2:])
                a = pair[0] * numpy.cos(angles) - pair[1] * numpy.sin(angles)
                b = pair[0] * numpy.sin(angles) + pair[1] * numpy.cos(angles)
                if layout == 0:
                    return numpy.stack((a, b), axis=-1).reshape(x.shape)
                return numpy.concatenate((a, b), axis=-1)

            with self.subTest(heads=heads, head=head, pos=pos, dtype=dtype, seed=self.seed):
                self.client.run("attention_decode", self.input(q, "f32"), self.input(k, "f32"),
                                self.input(v, "f32"), self.client.tensor(angles, "f32"), keys, values,
                                *parted, arrived, out, pos, float(scale), layout)
                numpy.testing.assert_array_equal(self.client.read(arrived), 0)
                cache = [self.client.read(tensor) for tensor in (keys, values)]
                for got, before, new in zip(cache, stored, (rotated(k), v)):
                    error = numpy.linalg.norm(got[:, pos] - new) / numpy.linalg.norm(new)
                    self.assertLessEqual(error, max(TOLERANCE[dtype], 1e-5))
                    got = got.copy()
                    got[:, pos] = before[:, pos]
                    numpy.testing.assert_array_equal(got, before)
                want = self.reference(rotated(q)[None, :, None], cache[0][None], cache[1][None], scale,
                                      0, numpy.zeros((1, 1, 1, length)), pos + 1)
                self.check(out, want[0, :, 0], 1e-5)

    def test_embedding(self):
        table, ids = self.stored(self.normal((100, 33)), "bf16"), self.numbers.integers(0, 100, (4, 7))
        out = self.client.output((4, 7, 33), "f16")
        self.client.run("embedding", self.client.tensor(ids, "i64"), self.client.tensor(table, "bf16"),
                        out)
        self.check(out, table[ids])
        ids[1, 2] = 100
        with self.assertRaises(daemon_client.Failed):
            self.client.run("embedding", self.client.tensor(ids, "i64"),
                            self.client.tensor(table, "bf16"), out)


class Training(Conformance):
    """Family "training"."""

    def test_cross_entropy(self):
        for rows, columns in ((1, 2), (33, 257), (8, 4099)):
            x, targets = self.stored(self.normal((rows, columns)), "f32"), self.numbers.integers(0, columns, rows)
            lp = numpy.log(softmax(x))
            loss, out = self.client.output((), "f32"), self.client.output(x.shape, "f32")
            labels = self.client.tensor(targets, "i64")
            self.client.run("cross_entropy", self.client.tensor(x, "f32"), labels, loss, out)
            self.check(out, lp, 1e-5)
            self.check(loss, -lp[numpy.arange(rows), targets].mean(), 1e-5)
            gradient = self.client.output(x.shape, "f32")
            stored = self.client.read(out)
            self.client.run("cross_entropy_backward", self.client.tensor(stored, "f32"), labels,
                            gradient, 0.5)
            onehot = numpy.arange(columns) == targets[:, None]
            self.check(gradient, (numpy.exp(stored) - onehot) * 0.5, 1e-5)

    def test_adamw(self):
        shape, step = (1025,), 3
        p, g, m = (self.stored(self.normal(shape), "f32") for _ in range(3))
        v = self.stored(abs(self.normal(shape)), "f32")
        lr, b1, b2, eps, wd = (float(numpy.float32(x)) for x in (1e-2, 0.9, 0.999, 1e-8, 0.1))
        state = [self.client.tensor(a, "f32", elements=shape[0] + 9) for a in (p, g, m, v)]
        self.client.run("adamw", *state, lr, b1, b2, eps, wd, step)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p * (1 - lr * wd) - lr * (m / (1 - b1**step)) / (numpy.sqrt(v / (1 - b2**step)) + eps)
        for tensor, want in zip((state[0], state[2], state[3]), (p, m, v)):
            self.check(tensor, want, 1e-5)

    def test_aux_loss(self):
        for tokens, experts, k in ((1, 1, 1), (37, 8, 2), (1000, 33, 4)):
            probs = self.stored(softmax(self.normal((tokens, experts))), "f32")
            indices = self.numbers.integers(0, experts, (tokens, k))  # Some tokens name one twice.
            chosen = numpy.zeros((tokens, experts))
            for choice in indices.T:
                chosen[numpy.arange(tokens), choice] = 1
            loss, alpha = self.client.output((), "f32"), 0.25
            self.client.run("aux_loss", self.client.tensor(probs, "f32"),
                            self.client.tensor(indices, "i64"), loss, alpha)
            self.check(loss, alpha * experts * (chosen.mean(axis=0) * probs.mean(axis=0)).sum(), 1e-5)

    def test_the_norm_of_several_gradients_and_their_clipping(self):
        # 7,936 and 8,192 elements: multiples of the threads of a block.
        sizes = (1, 257, 7936, 8192, 65536, 65537, 200001)
        for dtype in FLOATS:
            gradients = [self.stored(self.normal((size,)), dtype) for size in sizes]
            # A single element that is clipped stays normal in f16.
            gradients[0] = self.stored(gradients[0] + numpy.copysign(1, gradients[0]), dtype)
            parts = [-(-size // 65536) for size in sizes]
            partial = self.client.tensor(numpy.zeros(sum(parts)), "f64",
                                         elements=sum(parts) + daemon_client.GUARD)
            tensors = [self.client.tensor(g, dtype, elements=g.size + daemon_client.GUARD)
                       for g in gradients]
            for i, tensor in enumerate(tensors):
                self.client.run("grad_norm_partial", tensor, partial, sum(parts[:i]))
            want = [(g[at:at + 65536]**2).sum() for g in gradients for at in range(0, g.size, 65536)]
            self.check(partial, want, 1e-6)
            norm = self.client.output((), "f32")
            self.client.run("grad_norm", partial, norm)
            self.check(norm, math.sqrt(sum(want)), 1e-6)
            for max_norm in (1.5, 1e9):
                for tensor, gradient in zip(tensors, gradients):
                    self.client.run("grad_clip", tensor, norm, max_norm)
                    factor = min(1, max_norm / (math.sqrt(sum(want)) + 1e-6))
                    gradient *= factor
                    with self.subTest(dtype=dtype, elements=gradient.size, seed=self.seed):
                        self.check(tensor, gradient, 1e-6)
                    gradient[:] = self.client.read(tensor)
                want = [0.0]  # The second time nothing is clipped.

    def test_scatter_add(self):
        index, src = self.numbers.integers(0, 9, 500), self.stored(self.normal((500, 1025)), "f32")
        dst = self.client.tensor(numpy.zeros((9, 1025)), "f32")
        self.client.run("scatter_add", dst, self.client.tensor(index, "i64"),
                        self.client.tensor(src, "f32"))
        want = numpy.zeros((9, 1025))
        numpy.add.at(want, index, src)
        self.check(dst, want, 1e-5)


class Decoding(Conformance):
    """Family "decoding": the frequencies of what is drawn."""

    def draw(self, name, logits, seed, *scalars):
        token = self.client.output((logits.shape[0],), "i64")
        self.client.run(name, self.client.tensor(logits, "f32"), token, 1.0, seed, 0, *scalars)
        return self.client.read(token)

    def test_draws_have_the_softmaxs_frequencies(self):
        # The chi-squared statistic of 4,096 draws in 15 degrees of freedom exceeds 44.3 with a
        # probability of 1e-4.
        logits = self.stored(self.normal((16,)), "f32")
        want = softmax(logits)
        rows = numpy.tile(logits, (4096, 1))
        for name, scalars in (("sample", ()), ("sample_topk", (16,)), ("sample_topp", (1.0,))):
            counts = numpy.bincount(self.draw(name, rows, self.random.getrandbits(62), *scalars),
                                    minlength=16)
            statistic = ((counts - 4096 * want)**2 / (4096 * want)).sum()
            self.assertLess(statistic, 60, name)

    def test_topk_and_topp_draw_only_from_their_prefix(self):
        logits = self.stored(self.normal((64,)), "f32")
        order = numpy.argsort(-logits, kind="stable")
        rows = numpy.tile(logits, (2048, 1))
        seed = self.random.getrandbits(62)
        self.assertLessEqual(set(self.draw("sample_topk", rows, seed, 5)), set(order[:5]))
        p = numpy.cumsum(softmax(logits)[order])
        prefix = int(numpy.searchsorted(p, 0.7)) + 1
        self.assertLessEqual(set(self.draw("sample_topp", rows, seed, 0.7)), set(order[:prefix]))
        numpy.testing.assert_array_equal(self.draw("sample", rows, seed), self.draw("sample", rows, seed))


    def test_the_ends_of_a_decoding_step(self):
        for size, parts in ((1, 1), (1003, 4), (128256, 128)):
            logits = self.numbers.integers(-50, 50, size).astype(float)  # Many ties.
            for pos, length in ((0, 1), (0, 2), (6, 7), (6, 8)):
                scratch, arrived = self.client.output((parts,), "i64"), self.client.tensor(numpy.zeros(1), "i32")
                outs = [self.client.output((1,), "i64") for _ in range(3)]
                self.client.run("choose_token", self.client.tensor(logits, "f32"), scratch, arrived, *outs,
                                pos, length)
                want = int(numpy.argmax(logits))
                shown = -1 if pos + 1 < length else want
                self.assertEqual([int(self.client.read(out)[0]) for out in outs], [want, shown, shown])
                numpy.testing.assert_array_equal(self.client.read(arrived), 0)
        table = self.stored(self.normal((7, 96)), "bf16")
        for pos, length, want in ((0, 2, 3), (1, 2, 6), (2, 2, 5)):
            token, out = self.client.tensor(numpy.array([5.]), "i64"), self.client.output((96,), "f32")
            self.client.run("take_token", self.client.tensor(numpy.array([3., 6., 1.]), "i64"), token,
                            self.client.tensor(table, "bf16"), out, pos, length)
            self.assertEqual(int(self.client.read(token)[0]), want)
            numpy.testing.assert_array_equal(self.client.read(out), table[want])


class Uncalled(Conformance):
    """The last class in the order of the names, in which they run."""

    def test_every_operator_of_the_catalog_was_called(self):
        listed = daemons.ctl("ops", "--json", server=self.daemon.address)
        self.assertEqual(listed.code, daemons.OK, listed)
        catalog = {op["name"] for op in listed.json["operators"]}
        self.assertIn("add", catalog)
        if not CALLED:
            self.skipTest("no other class of this program has run")
        self.assertEqual(sorted(catalog - CALLED - NOT_CALLED), [])


if __name__ == "__main__":
    unittest_main.main()
