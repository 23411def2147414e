#!/usr/bin/env python3
"""Compares the built-in operators of a running daemon with PyTorch on the CPU, in float64: a reference
that this project did not write, beside that of numpy_test.py. Gradients are those of autograd, steps of AdamW
those of torch.optim.

Needs torch 2.4 or newer. $RESIDENT_SEED repeats a run; each failure names the seed. The last line is
`N passed, N failed`.
"""

import math
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    sys.exit("torch_test: {}. Fix: run this with a Python that has PyTorch 2.4 or newer".format(missing))
import numpy  # noqa: E402

from numpy_test import FLOATS, Conformance, unittest_main  # noqa: E402

# Name, number of inputs, scalars, reference, and which inputs are valid.
ELEMENTWISE = [
    ("add", 2, [0.75], lambda x, y: torch.add(x, y, alpha=0.75)),
    ("sub", 2, [1.25], lambda x, y: torch.sub(x, y, alpha=1.25)),
    ("mul", 2, [], torch.mul),
    ("div", 2, [], torch.div),
    ("maximum", 2, [], torch.maximum),
    ("minimum", 2, [], torch.minimum),
    ("pow", 2, [], torch.pow, abs),
    ("neg", 1, [], torch.neg),
    ("abs", 1, [], torch.abs),
    ("exp", 1, [], torch.exp),
    ("log", 1, [], torch.log, lambda x: abs(x) + 0.01),
    ("sqrt", 1, [], torch.sqrt, abs),
    ("rsqrt", 1, [], torch.rsqrt, lambda x: abs(x) + 0.01),
    ("sin", 1, [], torch.sin),
    ("cos", 1, [], torch.cos),
    ("tanh", 1, [], torch.tanh),
    ("sigmoid", 1, [], torch.sigmoid),
    ("relu", 1, [], F.relu),
    ("silu", 1, [], F.silu),
    ("gelu", 1, [0], F.gelu),
    ("gelu", 1, [1], lambda x: F.gelu(x, approximate="tanh")),
    ("hardsigmoid", 1, [], F.hardsigmoid),
    ("hardswish", 1, [], F.hardswish),
    ("leaky_relu", 1, [0.125], lambda x: F.leaky_relu(x, 0.125)),
    ("hardtanh", 1, [-0.5, 1.5], lambda x: F.hardtanh(x, -0.5, 1.5)),
    ("elu", 1, [0.5, 1.0, 1.0], lambda x: F.elu(x, 0.5)),
    ("elu", 1, [0.5, 2.0, 0.25], lambda x: torch.ops.aten.elu(x, 0.5, 2.0, 0.25)),
    ("softplus", 1, [2.0, 20.0], lambda x: F.softplus(x, 2.0, 20.0)),
    ("clamp", 1, [-1.0, 0.5], lambda x: torch.clamp(x, -1.0, 0.5)),
    ("silu_mul", 2, [], lambda x, y: F.silu(x) * y),
]
# In these, and in the formulas of torch, NaN and infinity have the same results.
SPECIAL = ("div", "maximum", "minimum", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu",
           "leaky_relu", "hardtanh", "hardsigmoid", "softplus", "clamp")


def tensor(values):
    return torch.from_numpy(numpy.array(values))


class Reference(Conformance):
    """Inputs, and checks of outputs against tensors of torch."""

    def some(self, shape, dtype, domain=lambda x: x):
        """Random values of a dtype, as NumPy's float64."""
        return self.stored(domain(self.normal(shape)), dtype)

    def dense(self, values, dtype):
        return self.client.tensor(values, dtype)

    def equal(self, out, want, tolerance=None):
        self.check(out, want.detach().double().numpy(), tolerance)


class Elementwise(Reference):

    def test_random_dtypes_shapes_and_layouts(self):
        for case in ELEMENTWISE:
            name, count, scalars, reference = case[:4]
            domain = case[4] if len(case) > 4 else lambda x: x
            for _ in range(6):
                shape = tuple(self.random.randrange(1, 40) for _ in range(self.random.randrange(1, 4)))
                dtypes = [self.random.choice(FLOATS) for _ in range(count)]
                arrays = [self.some(shape, dtype, domain) for dtype in dtypes]
                inputs = [self.input(array, dtype) for array, dtype in zip(arrays, dtypes)]
                out = self.client.output(shape, self.random.choice(FLOATS), self.layout(shape))
                self.run_and_check(name, inputs, scalars, out,
                                   lambda: reference(*map(tensor, arrays)).numpy())

    def test_special_values(self):
        special = numpy.array([0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, 100, -100])
        x, y = (a.ravel() for a in numpy.meshgrid(special, special))
        for name, count, scalars, reference, *_ in ELEMENTWISE:
            if name in SPECIAL:
                arrays = (x, y)[:count]
                self.run_and_check(name, [self.dense(array, "f32") for array in arrays], scalars,
                                   self.client.output(x.shape, "f32"),
                                   lambda: reference(*map(tensor, arrays)).numpy(), 1e-5)


class Reductions(Reference):

    def test_sets_of_axes(self):
        functions = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
        for shape in ((1025,), (5, 33), (3, 4, 70), (2, 3, 2, 3)):
            for mask in range(1, 1 << len(shape)):
                axes = [d for d in range(len(shape)) if mask >> d & 1]
                dtype, keep = self.random.choice(FLOATS), self.random.random() < 0.5
                # Positive, so that a sum does not cancel.
                x = self.some(shape, dtype, lambda x: abs(x) + 0.1)
                for name, function in functions.items():
                    want = function(tensor(x), dim=axes, keepdim=keep)
                    out = self.client.output(tuple(want.shape), "f32")
                    with self.subTest(operator=name, shape=shape, axes=axes, seed=self.seed):
                        self.client.run(name, self.input(x, dtype), out, mask)
                        self.equal(out, want, 1e-5)

    def test_argmax(self):
        for shape, axis in (((9, 1025), 1), ((257, 3), 0), ((4, 5, 6), 1)):
            x = self.numbers.permutation(math.prod(shape)).reshape(shape).astype(float)  # No ties.
            want = torch.argmax(tensor(x), dim=axis)
            out = self.client.output(tuple(want.shape), "i64")
            self.client.run("argmax", self.input(x, "f32"), out, 1 << axis)
            numpy.testing.assert_array_equal(self.client.read(out), want.numpy())


class Normalizations(Reference):
    SHAPES = ((1, 1), (3, 31), (2, 3, 257), (4, 1025), (2, 4096), (1, 65537))

    def test_softmax_and_log_softmax(self):
        for shape in self.SHAPES:
            for gap in (0, 100, 1e4):
                dtype = self.random.choice(FLOATS)
                x = self.normal(shape)
                x[..., self.random.randrange(shape[-1])] += gap
                if shape[-1] > 1:
                    x[..., 0] = -math.inf  # As a mask would set it.
                    x[0, ..., 1] = 0
                x = self.stored(x, dtype)
                for name, reference in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
                    self.run_and_check(name, [self.dense(x, dtype)], [], self.client.output(shape, "f32"),
                                       lambda: reference(tensor(x), dim=-1).numpy(), 1e-5)

    def test_softmax_topk(self):
        for rows, columns, k in ((3, 8, 2), (2, 257, 100), (1, 4099, 50)):
            x = self.some((rows, columns), "f32")
            values, order = torch.topk(tensor(x), k, dim=-1)
            weights, indices = self.client.output((rows, k), "f32"), self.client.output((rows, k), "i64")
            self.client.run("softmax_topk", self.dense(x, "f32"), weights, indices)
            numpy.testing.assert_array_equal(self.client.read(indices), order.numpy())
            self.equal(weights, F.softmax(values, dim=-1), 1e-5)

    def test_norms(self):
        for shape in self.SHAPES:
            dtype, columns = self.random.choice(FLOATS), shape[-1:]
            x, r, w, b = (self.some(s, dtype) for s in (shape, shape, columns, columns))
            inputs = lambda *arrays: [self.dense(array, dtype) for array in arrays]
            tx, tr, tw, tb = map(tensor, (x, r, w, b))
            self.run_and_check("rmsnorm", inputs(x, w), [1e-5], self.client.output(shape, dtype),
                               lambda: F.rms_norm(tx, columns, tw, 1e-5).numpy(), 1e-5)
            self.run_and_check("layernorm", inputs(x, w, b), [1e-5], self.client.output(shape, dtype),
                               lambda: F.layer_norm(tx, columns, tw, tb, 1e-5).numpy(), 1e-5)
            out, h = self.client.output(shape, dtype), self.client.output(shape, dtype)
            with self.subTest(shape=shape, dtype=dtype, seed=self.seed):
                self.client.run("rmsnorm_residual", *inputs(x, r, w), out, h, 1e-5)
                self.equal(h, tx + tr, 1e-5)
                self.equal(out, F.rms_norm(tx + tr, columns, tw, 1e-5), 1e-5)


class Matrices(Reference):

    def test_gemm(self):
        for m, n, k in ((1, 1, 1), (3, 5, 7), (33, 65, 127), (128, 128, 128), (256, 192, 1024),
                        (61, 1, 257), (130, 200, 96)):
            for dtype in FLOATS:
                beta = self.random.choice((0.0, 2.0))
                a, b = self.some((m, k), dtype), self.some((k, n), dtype)
                out_dtype = self.random.choice(("f32", dtype))
                c = self.some((m, n), out_dtype)
                out = self.client.tensor(c, out_dtype, elements=m * n + 1)
                with self.subTest(m=m, n=n, k=k, dtype=dtype, out=out_dtype, beta=beta, seed=self.seed):
                    self.client.run("gemm", self.input(a, dtype), self.input(b, dtype), out, -0.5, beta)
                    self.equal(out, torch.addmm(tensor(c), tensor(a), tensor(b), beta=beta, alpha=-0.5),
                               1e-5)

    def test_gemm_batched(self):
        for dtype in FLOATS:
            a, b, c = (self.some(s, dtype) for s in ((5, 19, 33), (5, 33, 70), (5, 19, 70)))
            out = self.client.tensor(c, dtype, elements=c.size + 1)
            with self.subTest(dtype=dtype, seed=self.seed):
                self.client.run("gemm_batched", self.input(a, dtype), self.input(b, dtype), out, 2.0, 1.5)
                self.equal(out, torch.baddbmm(tensor(c), tensor(a), tensor(b), beta=1.5, alpha=2.0), 1e-5)

    def test_gemv(self):
        for k, n, leading in ((1, 1, ()), (127, 33, (3,)), (4096, 65, (1,)), (1024, 256, (2, 2))):
            for dtype in FLOATS:
                x, w, bias = (self.some(s, dtype) for s in (leading + (k,), (n, k), (n,)))
                out = self.client.output(leading + (n,), "f32")
                self.run_and_check("gemv", [self.dense(each, dtype) for each in (x, w, bias)], [], out,
                                   lambda: F.linear(*map(tensor, (x, w, bias))).numpy(), 1e-5)

    def test_gemv_silu_mul(self):
        for k, n, leading in ((1, 1, ()), (127, 33, (3,)), (4096, 65, (1,)), (1024, 256, (2, 2))):
            for dtype in FLOATS:
                x, gate, up = (abs(self.some(s, dtype)) for s in (leading + (k,), (n, k), (n, k)))
                out = self.client.output(leading + (n,), "f32")
                self.run_and_check(
                    "gemv_silu_mul", [self.dense(each, dtype) for each in (x, gate, up)], [], out,
                    lambda: (F.silu(F.linear(tensor(x), tensor(gate))) *
                             F.linear(tensor(x), tensor(up))).numpy(), 1e-5)

    def test_rmsnorm_gemv(self):
        for k, n, leading in ((1, 1, ()), (127, 33, (3,)), (4096, 65, (1,)), (1024, 256, (2, 2))):
            for dtype in FLOATS:
                x, norm, w, up, bias = (abs(self.some(s, dtype)) for s in (
                    leading + (k,), (k,), (n, k), (n, k), (n,)))
                normalized = F.rms_norm(tensor(x), (k,), tensor(norm), 1e-5)
                out = self.client.output(leading + (n,), "f32")
                self.run_and_check(
                    "rmsnorm_gemv", [self.dense(each, dtype) for each in (x, norm, w, bias)], [1e-5],
                    out, lambda: F.linear(normalized, tensor(w), tensor(bias)).numpy(), 1e-5)
                out = self.client.output(leading + (n,), "f32")
                self.run_and_check(
                    "rmsnorm_gemv_silu_mul", [self.dense(each, dtype) for each in (x, norm, w, up)],
                    [1e-5], out,
                    lambda: (F.silu(F.linear(normalized, tensor(w))) *
                             F.linear(normalized, tensor(up))).numpy(), 1e-5)


class Attention(Reference):

    # Head dimension, query heads, key heads, queries, keys, causal, and whether there is a mask.
    CASES = ((16, 4, 4, 1, 1, False, False), (64, 8, 2, 63, 63, True, False),
             (80, 6, 1, 1, 1000, False, True), (96, 2, 1, 65, 70, False, True),
             (128, 4, 4, 128, 128, True, False), (128, 8, 2, 1, 777, False, False),
             (64, 2, 2, 256, 256, True, False), (256, 2, 2, 3, 64, False, True))

    def cases(self):
        """A description of each case, its inputs, and torch's result. In a part of them fewer keys are used than
        there are."""
        for head, heads, kv_heads, queries, keys, causal, masked in self.CASES:
            dtype = self.random.choice(FLOATS)
            q, k, v = (self.some(s, dtype) for s in ((2, heads, queries, head), (2, kv_heads, keys, head),
                                                     (2, kv_heads, keys, head)))
            kv_len = keys if causal or self.random.random() < 0.5 else self.random.randrange(1, keys + 1)
            mask = None
            if masked:
                mask = self.stored(self.normal((2, 1, queries, keys)), "f32")
                mask[..., 1:][self.numbers.random((2, 1, queries, keys - 1)) < 0.3] = -math.inf
            scale = float(numpy.float32(0.8 / math.sqrt(head)))
            shared = heads // kv_heads
            want = F.scaled_dot_product_attention(
                tensor(q), *(tensor(each[:, :, :kv_len]).repeat_interleave(shared, dim=1)
                             for each in (k, v)),
                attn_mask=None if mask is None else tensor(mask[..., :kv_len]), is_causal=causal,
                scale=scale)
            inputs = [self.input(each, dtype) for each in (q, k, v)]
            inputs.append(self.client.tensor(numpy.zeros(0) if mask is None else mask, "f32"))
            case = dict(head=head, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys,
                        causal=causal, masked=masked, kv_len=kv_len, dtype=dtype, seed=self.seed)
            yield case, inputs, (scale, int(causal), kv_len), q.shape, dtype, want

    def test_attention(self):
        for case, inputs, scalars, shape, dtype, want in self.cases():
            for out_dtype in ("f32", dtype):
                out = self.client.output(shape, out_dtype)
                with self.subTest(**case):
                    self.client.run("attention", *inputs, out, *scalars)
                    self.equal(out, want, 1e-5)

    def test_attention_in_parts(self):
        for case, inputs, scalars, shape, _, want in self.cases():
            parts = self.random.choice((1, 2, 7, 16))
            acc = self.client.output(shape[:3] + (parts,) + shape[3:], "f32")
            largest, total = (self.client.output(shape[:3] + (parts,), "f32") for _ in range(2))
            out = self.client.output(shape, "f32")
            with self.subTest(**case):
                self.client.run("attention_partial", *inputs, acc, largest, total, *scalars)
                self.client.run("attention_combine", acc, largest, total, out)
                self.equal(out, want, 1e-5)

    def test_embedding_and_its_gradient(self):
        table, ids = self.some((100, 33), "f32"), self.numbers.integers(0, 100, (4, 70))
        weights = tensor(table).requires_grad_()
        looked_up = F.embedding(tensor(ids), weights)
        out = self.client.output((4, 70, 33), "f32")
        self.client.run("embedding", self.dense(ids, "i64"), self.dense(table, "f32"), out)
        self.equal(out, looked_up)
        upstream = self.some((4, 70, 33), "f32")
        looked_up.backward(tensor(upstream))
        gradient = self.client.tensor(numpy.zeros((100, 33)), "f32")
        self.client.run("scatter_add", gradient, self.dense(ids.ravel(), "i64"),
                        self.dense(upstream.reshape(-1, 33), "f32"))
        values = self.client._download(gradient).reshape(100, 33)  # Rows of no id remain 0.
        error = numpy.linalg.norm(values - weights.grad.numpy()) / weights.grad.norm().item()
        self.assertLess(error, 1e-6, self.seed)

    def test_kv_append(self):
        for dtype in FLOATS:
            new, cache = self.some((2, 3, 5, 16), dtype), self.some((2, 3, 40, 16), dtype)
            want, position = tensor(cache), self.random.randrange(0, 36)
            want[:, :, position:position + 5] = tensor(new)
            out = self.client.tensor(cache, dtype)
            self.client.run("kv_append", self.input(new, dtype), out, position)
            self.equal(out, want)

    def test_rope_is_a_product_of_complex_numbers(self):
        head, length, offset = 64, 50, 5
        angles = torch.outer(torch.arange(length).double(),
                             10000.0**(-torch.arange(0, head, 2).double() / head))
        freqs = self.client.output((length, head // 2), "f32")
        self.client.run("rope_freqs", freqs, 10000.0, 1.0)
        self.equal(freqs, angles)
        x = self.some((2, 9, 3, head), "f32")
        rotation = torch.polar(torch.ones(9, 1, head // 2).double(),
                               tensor(self.client.read(freqs))[offset:offset + 9, None])
        for layout in (0, 1):
            pairs = tensor(x).reshape(2, 9, 3, head // 2, 2) if layout == 0 else tensor(x).reshape(
                2, 9, 3, 2, head // 2).transpose(-1, -2)
            want = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * rotation)
            want = want.flatten(-2) if layout == 0 else want.transpose(-1, -2).flatten(-2)
            out = self.client.output(x.shape, "f32")
            self.client.run("rope", self.input(x, "f32"), freqs, out, offset, layout)
            self.equal(out, want)


class Training(Reference):

    def test_cross_entropy_and_its_gradient(self):
        for rows, columns in ((1, 2), (33, 257), (8, 4099)):
            for dtype in FLOATS:
                x = self.some((rows, columns), dtype)
                targets = self.numbers.integers(0, columns, rows)
                logits = tensor(x).requires_grad_()
                want = F.cross_entropy(logits, tensor(targets))
                want.backward()
                loss, log_probs = self.client.output((), "f32"), self.client.output(x.shape, "f32")
                labels, gradient = self.dense(targets, "i64"), self.client.output(x.shape, "f32")
                with self.subTest(rows=rows, columns=columns, dtype=dtype, seed=self.seed):
                    self.client.run("cross_entropy", self.dense(x, dtype), labels, loss, log_probs)
                    self.equal(loss, want, 1e-5)
                    self.equal(log_probs, F.log_softmax(logits, dim=-1), 1e-5)
                    self.client.run("cross_entropy_backward",
                                    self.dense(self.client.read(log_probs), "f32"), labels, gradient,
                                    1.0 / rows)
                    self.equal(gradient, logits.grad, 1e-5)

    def test_steps_of_adamw(self):
        lr, b1, b2, eps, wd = (float(numpy.float32(x)) for x in (1e-2, 0.9, 0.999, 1e-8, 0.1))
        start = self.some((4099,), "f32")
        parameter = torch.nn.Parameter(tensor(start))
        optimizer = torch.optim.AdamW([parameter], lr=lr, betas=(b1, b2), eps=eps, weight_decay=wd)
        p, m, v = (self.client.tensor(a, "f32") for a in (start, 0 * start, 0 * start))
        for step in range(1, 8):
            gradient = self.some((4099,), "f32")
            parameter.grad = tensor(gradient)
            optimizer.step()
            self.client.run("adamw", p, self.dense(gradient, "f32"), m, v, lr, b1, b2, eps, wd, step)
            state = optimizer.state[parameter]
            with self.subTest(step=step, seed=self.seed):
                self.equal(p, parameter, 1e-5)
                self.equal(m, state["exp_avg"], 1e-5)
                self.equal(v, state["exp_avg_sq"], 1e-5)

    def test_clipping_the_norm_of_gradients(self):
        for factor, max_norm in ((1.0, 0.5), (1e-4, 5.0), (math.inf, 1.0)):
            gradients = [self.some((n,), "f32") for n in (7, 65536, 100001)]
            gradients = [self.stored(numpy.minimum(factor, 1e30) * g, "f32") for g in gradients]
            if math.isinf(factor):
                gradients[0][3] = math.inf
            parameters = [torch.nn.Parameter(torch.zeros(g.size).double()) for g in gradients]
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = tensor(gradient)
            want = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            partial = self.client.tensor(numpy.zeros(4), "f64")
            tensors = [self.dense(g, "f32") for g in gradients]
            with self.subTest(factor=factor, seed=self.seed):
                for first, each in zip((0, 1, 2), tensors):
                    self.client.run("grad_norm_partial", each, partial, first)
                norm = self.client.output((), "f32")
                self.client.run("grad_norm", partial, norm)
                self.equal(norm, want)
                for each, parameter in zip(tensors, parameters):
                    self.client.run("grad_clip", each, norm, max_norm)
                    self.equal(each, parameter.grad, 1e-5)

    def test_the_loss_that_balances_experts(self):
        tokens, experts = 300, 16
        probs = tensor(self.some((tokens, experts), "f32")).softmax(-1).float().double()
        chosen = torch.topk(probs, 2, dim=-1).indices
        share = F.one_hot(chosen, experts).sum(1).double().mean(0)
        want = 0.01 * experts * (share * probs.mean(0)).sum()
        loss = self.client.output((), "f32")
        self.client.run("aux_loss", self.dense(probs.numpy(), "f32"), self.dense(chosen.numpy(), "i64"),
                        loss, 0.01)
        self.equal(loss, want, 1e-6)


class Decoding(Reference):

    def test_temperature_0_is_argmax(self):
        logits = self.some((64, 1025), "f32")
        want = torch.argmax(tensor(logits), dim=-1).numpy()
        for name, scalars in (("sample", ()), ("sample_topk", (5,)), ("sample_topp", (0.5,))):
            token = self.client.output((64,), "i64")
            self.client.run(name, self.dense(logits, "f32"), token, 0.0, 1, 0, *scalars)
            numpy.testing.assert_array_equal(self.client.read(token), want)

    def test_the_prefix_of_topp(self):
        logits = self.some((64,), "f32")
        probabilities, order = torch.sort(F.softmax(tensor(logits), dim=-1), descending=True)
        allowed = order[torch.cumsum(probabilities, 0) - probabilities < 0.7]
        token = self.client.output((4096,), "i64")
        self.client.run("sample_topp", self.dense(numpy.tile(logits, (4096, 1)), "f32"), token, 1.0,
                        self.random.getrandbits(62), 0, 0.7)
        self.assertLessEqual(set(self.client.read(token).tolist()), set(allowed.tolist()), self.seed)


if __name__ == "__main__":
    unittest_main.main()
