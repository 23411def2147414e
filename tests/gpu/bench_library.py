#!/usr/bin/env python3
"""Times built-in operators of a daemon on a GPU beside baselines of the same run: a copy on the device
for operators that the memory limits, cuBLAS and the attention of torch for the others.

  bench_library.py --out=FILE.json [--only=TEXT[,TEXT]...]        (tests/gpu/run runs it)

  --only    runs the cases whose names contain one of the texts
  --scale   divides the sizes, for a trial on a small machine

Needs torch, numpy, grpcio and protobuf. The daemon's device is $RESIDENT_TEST_DEVICES. The time of an
operator is the time on the device, which the daemon returns with each result; figures are medians. The
baselines are measured in a separate process, which ends before the daemon starts: two processes would
share the time of the GPU. Rates of operators that the memory limits count the bytes of inputs and
outputs, of gemv the bytes of the weights, and of attention with one query the bytes of keys and values.

Inputs are random. Samples of each result are compared with NumPy in float64, and each element must have
been written. Exit status 1 if a result is wrong, never because of speed.
"""

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time

import torch_baselines

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[1] / "python"))
MIB = 1 << 20
MAX_RUNS, MIN_RUNS, SECONDS = 50, 5, 2.0  # Of one case.
COPY, MATMUL, SDPA = ("device-to-device copy", "torch.matmul (cuBLAS)",
                      "torch scaled_dot_product_attention")
BYTES = {"f32": 4, "bf16": 2}
# ||out - reference|| / ||reference||, by the dtype of the output.
TOLERANCE = {"f32": 1e-5, "bf16": 1e-2}


class Wrong(Exception):
    """A result that is not that of the reference."""


# The baselines, in their own process.


def measure_baselines(wanted):
    """Measures baselines with torch. `wanted`: [kind, parameters] of each; returns a rate for each."""
    torch = torch_baselines.import_torch("bench_library")
    torch.backends.cuda.matmul.allow_tf32 = False
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}

    def normal(shape, dtype):
        return torch.randn(shape, device="cuda", dtype=dtypes[dtype])

    def seconds(function, repetitions):
        """Median of one run; several runs between two events, so that launches overlap."""
        times = []
        function()
        for _ in range(MIN_RUNS + 20):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repetitions):
                function()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / repetitions)
        return statistics.median(times[MIN_RUNS:])

    rates = []
    for kind, parameters in wanted:
        if kind == COPY:
            source = normal((parameters["bytes"] // 4,), "f32")
            target = torch.empty_like(source)
            rates.append(2 * parameters["bytes"] / seconds(lambda: target.copy_(source), 4))
            del source, target
        elif kind == MATMUL:
            n = parameters["n"]
            a, b = (normal((n, n), parameters["dtype"]) for _ in range(2))
            out = torch.empty_like(a)
            rates.append(2 * n**3 / seconds(lambda: torch.matmul(a, b, out=out), 10))
        else:
            q, k, v = (normal((1, parameters["heads"], parameters["length"], parameters["head"]), "bf16")
                       for _ in range(3))
            attend = torch.nn.functional.scaled_dot_product_attention
            rates.append(parameters["flop"] / seconds(lambda: attend(q, k, v, is_causal=True), 5))
    return {"rates": rates, "with": torch_baselines.versions(torch)}


def run_baselines(wanted):
    done = subprocess.run([sys.executable, __file__, "--baselines=" + json.dumps(wanted)],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("bench_library: the process of the baselines ended with {}".format(done.returncode))
    return json.loads(done.stdout.splitlines()[-1])


# The operators. A case yields the runs, which take turns, and a check of the last one's result.


class Bench:
    """A client, and random inputs on its device."""

    def __init__(self, rd, numpy):
        self.rd, self.np = rd, numpy
        self.numbers, self.random = numpy.random.default_rng(), random.Random()
        self.block = rd.upload(self.numbers.standard_normal(8 * MIB, dtype=numpy.float32))
        self.bytes = rd.upload(self.numbers.integers(0, 256, 8 * MIB, dtype=numpy.uint8))

    def normal(self, shape, dtype, source=None):
        """A buffer of random numbers: pieces of a random block, each from another offset."""
        source = source or self.block
        made, copy = self.rd.empty(shape, dtype), self.rd.op("copy")
        flat, piece = made.reshape(made.size), source.size // 2
        for at in range(0, made.size, piece):
            size = min(piece, made.size - at)
            start = self.random.randrange(source.size - size + 1)
            copy(source[start:start + size], out=flat[at:at + size])
        return made

    def integers(self, shape, dtype):
        """A buffer of random bytes."""
        return self.normal(shape, dtype, self.bytes)

    def read(self, view):
        array = view.numpy()
        return (array.to_float32() if view.dtype == "bf16" else array).astype(self.np.float64)

    def clear(self, *outputs):
        """Fills outputs with NaN, which no result here contains."""
        for out in outputs:
            self.rd.op("fill")(value=math.nan, out=out)

    def written(self, out):
        """Fails if an element is still NaN. The device adds up the elements of rows."""
        columns = math.gcd(out.size, 4096)
        rows = out.size // columns
        sums = self.rd.op("sum")(out.reshape(rows, columns), axes=2, shape=(rows,), dtype="f32")
        if not self.np.isfinite(sums).all():
            raise Wrong("an element was not written, or is not finite")

    def compare(self, out, reference, dtype):
        error = self.np.linalg.norm(out - reference) / self.np.linalg.norm(reference)
        if not error <= TOLERANCE[dtype]:
            raise Wrong("relative error {:.3g}, more than {:g}".format(error, TOLERANCE[dtype]))

    def windows(self, size, width, count=8):
        """Starts of windows in a range: the first, the last, and random ones."""
        inner = [self.random.randrange(size - width + 1) for _ in range(count - 2)]
        return [0, size - width] + inner


def elementwise(name, scale, function):
    size = 64 * MIB // scale

    def case(bench):
        x, y, out = bench.normal(size, "f32"), bench.normal(size, "f32"), bench.rd.empty(size, "f32")
        operator = bench.rd.op(name)

        def check():
            bench.written(out)
            for at in bench.windows(size, 4096):
                part = slice(at, at + 4096)
                bench.compare(bench.read(out[part]), function(bench.read(x[part]), bench.read(y[part])),
                              "f32")

        return [lambda: operator.run(x, y, out=out).device_ns], [out], check

    return ("{} of 3 x {} MiB f32".format(name, size * 4 // MIB), 3 * 4 * size, "bytes/s", COPY, {}, case)


def chain(name, scale):
    """-(tanh(x / 2 + 1) * sigmoid(x) + |x|): eight functions, as a program or as an installed expression,
    whose rates show what it costs to interpret the program (docs/models.md)."""
    size = MIB // scale

    def case(bench):
        np = bench.np
        x, out = bench.normal(size, "f32"), bench.rd.empty(size, "f32")
        if name == "pointwise":
            # The form is that of kernels/ops/pointwise_program.h.
            neg, absolute, tanh, sigmoid, add, mul, immediate = 1, 2, 18, 23, 35, 37, 255
            half, one = (int(np.float32(value).view(np.uint32)) for value in (0.5, 1))
            rows = [(1 | 32 << 8 | 1 << 16, 0)] + [
                (op | to << 8 | a << 16 | b << 24, number) for op, to, a, b, number in (
                    (mul, 1, 0, immediate, half), (add, 1, 1, immediate, one), (tanh, 1, 1, 0, 0),
                    (sigmoid, 2, 0, 0, 0), (mul, 1, 1, 2, 0), (absolute, 2, 0, 0, 0), (add, 1, 1, 2, 0),
                    (neg, 1, 1, 0, 0))]
            inputs = [bench.rd.upload(np.array(rows, np.int64)), x] + [np.zeros(0, np.float32)] * 5
        else:
            bench.rd.operators.install(name, expr="-(tanh(x * 0.5 + 1) * sigmoid(x) + abs(x))", wait="active")
            inputs = [x]
        operator = bench.rd.op(name)

        def check():
            bench.written(out)
            v = bench.read(x)
            bench.compare(bench.read(out), -(np.tanh(v / 2 + 1) / (1 + np.exp(-v)) + abs(v)), "f32")

        return [lambda: operator.run(*inputs, out=out).device_ns], [out], check

    return ("{} of 8 functions of 2 x {} MiB f32".format(name, size * 4 / MIB), 2 * 4 * size, "bytes/s", COPY,
            {"bytes": 4 * size}, case)


def rows(name, scale, dtype, columns, function):
    count = 256 * MIB // scale // BYTES[dtype] // columns

    def case(bench):
        x, out = bench.normal((count, columns), dtype), bench.rd.empty((count, columns), dtype)
        weights = [bench.normal((columns,), dtype)] if name == "rmsnorm" else []
        operator = bench.rd.op(name)

        def check():
            bench.written(out)
            w = [bench.read(each) for each in weights]
            for row in bench.windows(count, 1):
                bench.compare(bench.read(out[row]), function(bench.read(x[row]), *w), dtype)

        return [lambda: operator.run(x, *weights, out=out).device_ns], [out], check

    return ("{} of {} MiB {}, rows of {:,}".format(name, count * columns * BYTES[dtype] // MIB, dtype,
                                                  columns),
            2 * count * columns * BYTES[dtype], "bytes/s", COPY, {}, case)


def reduction(name, scale, columns, function):
    count = 256 * MIB // scale // 4 // columns

    def case(bench):
        x, out = bench.normal((count, columns), "f32"), bench.rd.empty((count,), "f32")
        operator = bench.rd.op(name)

        def check():
            want = [function(bench.read(x[row])) for row in range(count)]
            bench.compare(bench.read(out), bench.np.array(want), "f32")

        return [lambda: operator.run(x, out=out, axes=2).device_ns], [out], check

    return ("{} of 256 MiB f32, rows of {:,}".format(name, columns) if scale == 1 else name,
            4 * count * columns, "bytes/s", COPY, {}, case)


WEIGHTS = 8  # Different matrices take turns, so that none is in a cache.


def gemv(scale):
    n, k = 8192 // scale, 8192

    def case(bench):
        matrices = [bench.normal((n, k), "bf16") for _ in range(WEIGHTS)]
        x, out = bench.normal((k,), "bf16"), bench.rd.empty((n,), "bf16")
        operator = bench.rd.op("gemv")
        runs = [lambda w=w: operator.run(x, w, None, out=out).device_ns for w in matrices]

        def check(last):
            bench.written(out)
            vector, result = bench.read(x), bench.read(out)
            for at in bench.windows(n, 8):
                bench.compare(result[at:at + 8], bench.read(matrices[last][at:at + 8]) @ vector, "bf16")

        return runs, [out], check

    return "gemv {:,} x {:,} bf16, cold".format(n, k), n * k * 2, "bytes/s", COPY, {}, case


def gemv_quant(scale, bits, group=128):
    n, k = 8192 // scale, 8192
    packed, groups = k * bits // 8, k // group

    def case(bench):
        np = bench.np
        matrices = []
        for _ in range(WEIGHTS if bits == 8 else 2 * WEIGHTS):
            q = bench.integers((n, packed), "i8" if bits == 8 else "u8")
            zeros = bench.normal((n, groups), "f16") if bits == 4 else None
            matrices.append((q, bench.normal((n, groups), "f16"), zeros))
        x, out = bench.normal((k,), "bf16"), bench.rd.empty((n,), "bf16")
        operator = bench.rd.op("gemv_quant")
        runs = [lambda m=m: operator.run(x, *m, out=out, group=group).device_ns for m in matrices]

        def check(last):
            bench.written(out)
            vector, result = bench.read(x), bench.read(out)
            for at in bench.windows(n, 8):
                q, scales, zeros = (None if each is None else each[at:at + 8].numpy()
                                    for each in matrices[last])
                if bits == 4:
                    q = np.stack([q & 15, q >> 4], axis=-1).reshape(8, k)
                q = q.astype(np.float64).reshape(8, groups, group)
                if zeros is not None:
                    q = q - zeros.astype(np.float64)[..., None]
                w = (q * scales.astype(np.float64)[..., None]).reshape(8, k)
                bench.compare(result[at:at + 8], w @ vector, "bf16")

        return runs, [out], check

    weight_bytes = n * (packed + groups * (2 if bits == 8 else 4))
    return ("gemv_quant {:,} x {:,} int{}, group {}, cold".format(n, k, bits, group), weight_bytes,
            "bytes/s", COPY, {}, case)


def attend(np, q, k, v, scale, first=None):
    """Attention of queries [S, D] over keys [L, D]; query s sees keys 0 to first[s]; None: all."""
    scores = scale * (q @ k.T)
    if first is not None:
        scores = np.where(np.arange(len(k)) <= np.asarray(first)[:, None], scores, -math.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def decode(scale, parts):
    batch, heads, kv_heads, keys, head = 8, 32, 8, 8192 // scale, 128
    factor = float(1 / math.sqrt(head))

    def case(bench):
        np, empty = bench.np, bench.rd.empty
        q = bench.normal((batch, heads, 1, head), "bf16")
        k, v = (bench.normal((batch, kv_heads, keys, head), "bf16") for _ in range(2))
        out = empty((batch, heads, 1, head), "bf16")
        if parts:
            acc = empty((batch, heads, 1, parts, head))
            largest, total = (empty((batch, heads, 1, parts)) for _ in range(2))
            partial, combine = bench.rd.op("attention_partial"), bench.rd.op("attention_combine")

            def run():
                first = partial.run(q, k, v, None, acc=acc, largest=largest, sum=total, scale=factor)
                return first.device_ns + combine.run(acc, largest, total, out=out).device_ns
        else:
            whole = bench.rd.op("attention")

            def run():
                return whole.run(q, k, v, None, out=out, scale=factor).device_ns

        def check():
            bench.written(out)
            group = heads // kv_heads
            for b, m in ((0, 0), (batch - 1, kv_heads - 1), (batch // 2, 1)):
                own = slice(group * m, group * (m + 1))
                want = attend(np, bench.read(q[b, own, 0]), bench.read(k[b, m]), bench.read(v[b, m]),
                              factor)
                bench.compare(bench.read(out[b, own, 0]), want, "bf16")

        return [run], [out] + ([acc, largest, total] if parts else []), check

    how = "attention_partial ({} parts) + attention_combine".format(parts) if parts else "attention"
    return ("decode, batch {}, {:,} keys, bf16: {}".format(batch, keys, how),
            2 * batch * kv_heads * keys * head * 2, "bytes/s", COPY, {}, case)


def gemm(scale, dtype, n):
    n //= scale

    def case(bench):
        a, b = bench.normal((n, n), dtype), bench.normal((n, n), dtype)
        c = bench.rd.empty((n, n), dtype)
        operator = bench.rd.op("gemm")

        def check():
            bench.written(c)
            right = bench.read(b)
            for row in bench.windows(n, 1, 16):
                bench.compare(bench.read(c[row]), bench.read(a[row]) @ right, dtype)

        return [lambda: operator.run(a, b, c).device_ns], [c], check

    return ("gemm {0} of {1:,} x {1:,} x {1:,}".format(dtype, n), 2 * n**3, "flop/s", MATMUL,
            {"n": n, "dtype": dtype}, case)


def prefill(scale):
    heads, length, head = 32, 4096 // scale, 128
    factor = float(1 / math.sqrt(head))
    flop = 2 * heads * length * (length + 1) * head  # Only pairs of a query and a key that it sees.

    def case(bench):
        np = bench.np
        q, k, v = (bench.normal((1, heads, length, head), "bf16") for _ in range(3))
        out = bench.rd.empty((1, heads, length, head), "bf16")
        operator = bench.rd.op("attention")

        def check():
            bench.written(out)
            for h in (0, heads - 1, bench.random.randrange(heads)):
                queries = sorted(bench.windows(length, 1, 32))
                want = attend(np, bench.read(q[0, h])[queries], bench.read(k[0, h]),
                              bench.read(v[0, h]), factor, queries)
                bench.compare(bench.read(out[0, h])[queries], want, "bf16")

        return [lambda: operator.run(q, k, v, None, out=out, scale=factor, causal=1).device_ns], [out], check

    return ("prefill, causal, {} heads, {:,} queries, bf16: attention".format(heads, length), flop,
            "flop/s", SDPA, {"heads": heads, "length": length, "head": head, "flop": flop}, case)


def all_cases(scale):
    """Name, work of a run, unit, baseline and its parameters, and the case."""

    def numpy_exp(x):
        import numpy
        return numpy.exp(x)

    def softmax(x):
        weights = numpy_exp(x - x.max())
        return weights / weights.sum()

    def rmsnorm(x, w):
        return x * w / math.sqrt((x * x).mean() + 1e-6)

    yield elementwise("add", scale, lambda x, y: x + y)
    yield elementwise("mul", scale, lambda x, y: x * y)
    yield elementwise("silu_mul", scale, lambda x, y: x / (1 + numpy_exp(-x)) * y)
    yield chain("pointwise", scale)
    yield chain("chain_expression", scale)
    for dtype in BYTES:
        yield rows("rmsnorm", scale, dtype, 4096, rmsnorm)
        yield rows("softmax", scale, dtype, 4096, softmax)
        yield rows("softmax", scale, dtype, 32768, softmax)
    # Few rows, which the chunks of a task share.
    long_row = 16 * MIB // scale
    yield rows("rmsnorm", scale, "f32", long_row, rmsnorm)
    yield rows("softmax", scale, "f32", long_row, softmax)
    yield reduction("sum", scale, long_row, lambda x: x.sum())
    yield reduction("max", scale, long_row, lambda x: x.max())
    yield gemv(scale)
    yield gemv_quant(scale, 8)
    yield gemv_quant(scale, 4)
    for parts in (0, 2, 4, 16, 32):
        yield decode(scale, parts)
    yield gemm(scale, "bf16", 4096)
    yield gemm(scale, "bf16", 2048)
    yield gemm(scale, "f32", 2048)
    yield prefill(scale)


def measure(bench, case):
    """Seconds of a run, and what is wrong with its result; None if nothing is."""
    runs, outputs, check = case(bench)
    for run in runs[:3]:
        run()
    times, begin = [], time.monotonic()
    while len(times) < MIN_RUNS or (len(times) < MAX_RUNS and time.monotonic() - begin < SECONDS):
        times.append(runs[len(times) % len(runs)]() / 1e9)
    bench.clear(*outputs)
    last = bench.random.randrange(len(runs))
    runs[last]()
    try:
        check(*([last] if len(runs) > 1 else []))
        return statistics.median(times), None
    except Wrong as wrong:
        return statistics.median(times), str(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--baselines", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.baselines:
        print(json.dumps(measure_baselines(json.loads(options.baselines))))
        return 0
    cases = [case for case in all_cases(options.scale)
             if any(text in case[0] for text in options.only.split(","))]
    if not cases:
        sys.exit("bench_library: no case contains {!r}".format(options.only))

    # A copy as large as the largest case of two tensors, so that its rate is not limited by its length.
    wanted = [[kind, parameters or {"bytes": 512 * MIB // options.scale}]
              for _, _, _, kind, parameters, _ in cases]
    distinct = [each for at, each in enumerate(wanted) if each not in wanted[:at]]
    begin = time.monotonic()
    baselines = run_baselines(distinct)
    print("baselines: {}, measured in {:.1f} s".format(baselines["with"], time.monotonic() - begin))

    import numpy
    import support
    daemon = support.daemons.Daemon()
    figures, failures = [], []
    try:
        # Tensors are in buffers: shared memory is not needed.
        with support.residentd.connect(daemon.address, shared_memory="off") as rd:
            device = rd.status().devices[0]
            print("device: {}".format(device.name))
            bench = Bench(rd, numpy)
            for (name, work, unit, kind, _, case), each in zip(cases, wanted):
                seconds, wrong = measure(bench, case)
                rate, baseline = work / seconds, baselines["rates"][distinct.index(each)]
                figures.append({"what": name, "value": rate, "unit": unit, "baseline": kind,
                                "baseline_value": baseline, "ratio": rate / baseline})
                print("{:80} {:9,.1f} us {:9,.0f} G{:8} {:35} {:9,.0f}  ratio {:.3f}{}".format(
                    name, seconds * 1e6, rate / 1e9, unit, kind, baseline / 1e9, rate / baseline,
                    "  WRONG: " + wrong if wrong else ""), flush=True)
                if wrong:
                    failures.append("{}: {}".format(name, wrong))
    finally:
        daemon.stop()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(
            {"device": device.name, "baselines": baselines["with"], "figures": figures}, indent=1) + "\n")
    for failure in failures:
        print("wrong result: " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
