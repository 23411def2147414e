#!/usr/bin/env python3
"""What residentd.torch costs beside eager torch, _foreach, CUDA graphs and torch.compile; results are checked.

    tests/gpu/bench_torch.py --out=bench_torch.json

The baselines run in processes of their own, which end before the daemon starts. Rows are measured without MPS, and again
with it if it can be started on this machine. Needs torch with CUDA, grpcio, protobuf and numpy.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "torch")]

N, ELEMENTS = 1000, 1024
SUMS, SHAPES = 10000, 20
CHAIN = 100
LARGE = 16 << 20
PROCESSES = (1, 2, 4, 8)
CALLS = 1000
SMS_FREE = 32

# Row: (name of ours, its mark in microseconds, name of the baseline, mark of the ratio).
MARKS = [
    ("1 foreach", 0.6, "1 _foreach", 0.2), ("1 plan", 0.15, "1 graph", 0.2), ("2 foreach, new lengths", 0.7, "2 _foreach", 0.25),
    ("3 foreach of sums", 1.0, "3 eager", 0.2), ("4 operators", None, "4 eager", 0.7), ("4 prepared calls", None, "4 eager", 0.6),
    ("5 add, and an element", 6.0, "5 add and item()", 0.4), ("5 value() of argmax", 6.0, "5 argmax and item()", 0.4),
    ("6 lanes, 8 processes", 10.0, "6 contexts, 8 processes", 0.05), ("7 one operator in stream order", None, "7 eager add", None),
    ("7 expression of 4, 1,024", None, "7 compile of 4, 1,024", None), ("7 expression of 4, 16 Mi", None, "7 compile of 4, 16 Mi", None),
    ("8 prepared call", 0.5, None, None), ("8 prepared call, other tensors", 0.5, None, None), ("8 operator, new output", 2.5, None, None),
]


def timed(function, count, rounds=7, warm=2):
    """The median of microseconds for each of `count` things that a call does."""
    for _ in range(warm):
        function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e6 / count)
    return statistics.median(times)


def p50(function, calls=2000, warm=200):
    """The median of microseconds of a call."""
    for _ in range(warm):
        function()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def check(torch, actual, expected, what):
    if not torch.allclose(actual, expected, rtol=1e-5, atol=1e-5):
        sys.exit("{}: the values are wrong".format(what))


class Data:
    """The tensors of all rows."""

    def __init__(self, torch):
        generator = random.Random(1)
        self.xs = list(torch.randn(N, ELEMENTS, device="cuda").unbind(0))
        self.ys = list(torch.randn(N, ELEMENTS, device="cuda").unbind(0))
        self.out = list(torch.empty(N, ELEMENTS, device="cuda").unbind(0))
        block = torch.randn(N * 16384, device="cuda")
        self.block = block
        self.ragged = []
        for _ in range(9):
            lengths = [generator.randrange(256, 16385) for _ in range(N)]
            at = [generator.randrange(N * 16384 - 3 * n) for n in lengths]
            self.ragged.append(tuple([block[a + k * n:a + (k + 1) * n] for a, n in zip(at, lengths)] for k in range(2)))
        self.ragged_out = torch.empty(N * 16384, device="cuda")
        self.ragged_outs = [list(self.ragged_out.split_with_sizes(
            [len(x) for x in xs] + [N * 16384 - sum(map(len, xs))]))[:-1] for xs, _ in self.ragged]
        shapes = [(generator.randrange(2, 33), generator.randrange(16, 257)) for _ in range(SHAPES)]
        self.matrices = []
        for _ in range(SUMS):
            rows, columns = generator.choice(shapes)
            a = generator.randrange(N * 16384 - rows * columns)
            self.matrices.append(block[a:a + rows * columns].view(rows, columns))
        self.order = [generator.choice(("add", "mul")) for _ in range(CHAIN)]
        self.small = torch.full((ELEMENTS,), 0.999, device="cuda")
        torch.cuda.synchronize()


def formula(torch, x):
    return torch.sigmoid(x * 1.5) * x + 2 * x


def baselines(torch):
    """Torch alone."""
    data, rows, sync = Data(torch), {}, torch.cuda.synchronize
    xs, ys, out = data.xs, data.ys, data.out

    def synchronized(function):
        def run():
            function()
            sync()
        return run

    def graph_of(function):
        function()
        sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return synchronized(graph.replay)

    def adds():
        for x, y, z in zip(xs, ys, out):
            torch.add(x, y, out=z)

    rows["1 eager"] = timed(synchronized(adds), N)
    rows["1 _foreach"] = timed(synchronized(lambda: torch._foreach_add(xs, ys)), N)
    rows["1 graph"] = timed(graph_of(adds), N)
    sets = iter(data.ragged * 2)
    rows["2 _foreach"] = timed(synchronized(lambda: torch._foreach_add(*next(sets))), N)
    sets = iter(data.ragged * 2)
    rows["2 eager"] = timed(synchronized(lambda: [x + y for x, y in zip(*next(sets))]), N)
    rows["3 eager"] = timed(synchronized(lambda: [x.sum(-1) for x in data.matrices]), SUMS, rounds=3)
    operations = [getattr(torch, name) for name in data.order]

    def chain():
        x = data.small
        for operation in operations:
            x = operation(x, data.small)
        return x

    rows["4 eager"] = timed(synchronized(chain), CHAIN)
    rows["4 graph"] = timed(graph_of(chain), CHAIN)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(chain, mode=mode)
        rows["4 compile, {}".format(mode)] = timed(synchronized(compiled), CHAIN)
    x, y, z = xs[0], ys[0], out[0]
    rows["5 add and item()"] = p50(lambda: torch.add(x, y, out=z)[0].item())
    rows["5 argmax and item()"] = p50(lambda: x.argmax().item())
    rows["7 eager add"] = timed(synchronized(lambda: [torch.add(x, y, out=z) for _ in range(N)]), N)
    big = torch.randn(LARGE, device="cuda")
    for values, name in ((x, "1,024"), (big, "16 Mi")):
        rows["7 eager of 4, " + name] = p50(synchronized(lambda: formula(torch, values)), 200)
        compiled = torch.compile(lambda v: formula(torch, v))
        rows["7 compile of 4, " + name] = p50(synchronized(lambda: compiled(values)), 200)
    return rows


def ours(torch, address):
    import numpy as np
    import residentd
    import residentd.torch as rt

    rd = residentd.connect(address)
    torch.cuda.init()
    lane = rt.attach(rd, data_bytes=8 << 20)
    with rt.pool():
        data = Data(torch)
    rows, sync = {"0 own kernel and synchronize()": lane.own_kernel_us}, torch.cuda.synchronize
    xs, ys, out = data.xs, data.ys, data.out
    torch.set_grad_enabled(False)

    def scoped(function):
        def run():
            with rt.stream(strict=False):
                function()
            sync()
        return run

    rows["1 foreach"] = timed(scoped(lambda: rt.foreach("add", xs, ys, out=out)), N)
    check(torch, torch.stack(out), torch.stack(xs) + torch.stack(ys), "foreach")
    plan = rt.plan("mul", xs, ys, out=out)
    rows["1 plan"] = timed(scoped(plan), N)
    check(torch, torch.stack(out), torch.stack(xs) * torch.stack(ys), "plan")
    sets = iter(list(zip(data.ragged, data.ragged_outs)) * 2)

    def lengths():
        (x, y), z = next(sets)
        rt.foreach("add", x, y, out=z)

    rows["2 foreach, new lengths"] = timed(scoped(lengths), N)
    (x, y), z = data.ragged[-1], data.ragged_outs[-1]
    scoped(lambda: rt.foreach("add", x, y, out=z))()
    check(torch, torch.cat(z), torch.cat(x) + torch.cat(y), "lengths")
    found = []
    rows["3 foreach of sums"] = timed(scoped(lambda: found.append(rt.foreach("sum", data.matrices, axis=-1))), SUMS, rounds=3)
    check(torch, torch.cat(found[-1]), torch.cat([m.sum(-1) for m in data.matrices]), "sums")
    del found

    reference = data.small
    for name in data.order:
        reference = getattr(torch, name)(reference, data.small)
    operators = [getattr(rt.ops, name) for name in data.order]
    last = [None]

    def chain():
        value = data.small
        for operator in operators:
            value = operator(value, data.small)
        last[0] = value

    rows["4 operators"] = timed(scoped(chain), CHAIN)
    check(torch, last[0], reference, "chain")
    with rt.pool():
        turns = [torch.empty_like(data.small) for _ in range(2)]
    calls = {name: lane.prepare(name, data.small, data.small, out=turns[0]) for name in ("add", "mul")}

    def prepared():
        value = data.small
        for i, name in enumerate(data.order):
            calls[name](value, out=turns[i % 2])
            value = turns[i % 2]
        last[0] = value

    rows["4 prepared calls"] = timed(scoped(prepared), CHAIN)
    check(torch, last[0], reference, "prepared chain")

    a, b, h = rt.shared(ELEMENTS), rt.shared(ELEMENTS), rt.shared(ELEMENTS)
    a.copy_(torch.randn(ELEMENTS))
    best = rt.shared((), torch.int64)
    add, element = lane.prepare("add", a, b, out=h), h.numpy()

    def add_and_element():
        add()
        return element[0]

    rows["5 add, and an element"] = p50(add_and_element)
    argmax = lane.prepare("argmax", a, axis=0, out=best)
    rows["5 value() of argmax"] = p50(argmax.value)
    if argmax.value() != a.argmax().item() or not torch.equal(h, a + b):
        sys.exit("values: wrong")

    x, y, z = xs[0], ys[0], out[0]
    lone = lane.prepare("add", x, y, out=z)
    rows["7 one operator in stream order"] = timed(lambda: ([lone() for _ in range(100)], sync()), 100)
    rd.operators.install("bench_torch_formula", expr="sigmoid(x * 1.5) * x + 2 * x").activate()
    with rt.pool():
        big = torch.randn(LARGE, device="cuda")
        into = torch.empty_like(big)
    for values, name in ((x, "1,024"), (big, "16 Mi")):
        target = into[:len(values)]
        call = lane.prepare("bench_torch_formula", values, out=target)
        rows["7 expression of 4, " + name] = p50(scoped(call), 100, 20)
        check(torch, target, formula(torch, values), "formula")
    rd.operators.remove("bench_torch_formula")

    other = xs[1]
    for name, function in (("8 prepared call", lambda: lone()), ("8 prepared call, other tensors", lambda: lone(other, y, out=z)),
                           ("8 operator, existing output", lambda: rt.ops.add(x, y, out=z)),
                           ("8 operator, new output", lambda: rt.ops.add(x, y))):
        times = []
        for _ in range(7):
            with rt.stream(strict=False):
                function()
                start = time.perf_counter()
                for _ in range(CALLS):
                    function()
                times.append((time.perf_counter() - start) * 1e6 / CALLS)
            sync()
        rows[name] = statistics.median(times)
    rt.register(rd, ["add"])
    op = torch.ops.residentd.add.default
    times = []
    for _ in range(5):
        with rt.stream(strict=False):
            start = time.perf_counter()
            for _ in range(CALLS):
                op(x, y)
            times.append((time.perf_counter() - start) * 1e6 / CALLS)
        sync()
    rows["8 torch.ops.residentd.add"] = statistics.median(times)
    rows["8 data_ptr() of 1,000, each"] = timed(lambda: np.array([t.data_ptr() for t in xs], np.int64), N)
    lane.close()
    rd.close()
    return rows


def worker(kind, address):
    """One of several processes: prints a line when it is ready, and after one on its input its median."""
    import torch

    if kind == "lane":
        import residentd
        import residentd.torch as rt

        rd = residentd.connect(address)
        lane = rt.attach(rd)
        x, best = rt.shared(ELEMENTS), rt.shared((), torch.int64)
        step = lane.prepare("argmax", x, axis=0, out=best).value
        if torch.cuda.is_initialized():
            sys.exit("a worker has a CUDA context")
    else:
        x = torch.randn(ELEMENTS, device="cuda")

        def step():
            return x.argmax().item()

    for _ in range(50):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    print(p50(step, 500 if kind == "context" else 5000, 10), flush=True)
    sys.stdin.readline()


def processes(kind, address, environment):
    """The worst median of so many processes."""
    rows = {}
    for count in PROCESSES:
        started = [subprocess.Popen([sys.executable, __file__, "--worker", kind, "--address", address], text=True,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) for _ in range(count)]
        for each in started:
            if each.stdout.readline() != "ready\n":
                sys.exit("a process of row 6 did not start")
        for each in started:
            each.stdin.write("\n")
            each.stdin.flush()
        medians = [float(each.stdout.readline()) for each in started]
        for each in started:
            each.stdin.write("\n")
            each.stdin.close()
            each.wait()
        rows["6 {}, {} process{}".format("lanes" if kind == "lane" else "contexts", count, "es" if count > 1 else "")] = max(
            medians)
    return rows


def phase(name, address, environment):
    """Runs this program for one phase; its rows."""
    done = subprocess.run([sys.executable, __file__, "--phase", name, "--address", address], env=environment, text=True,
                          stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit("{} failed".format(name))
    return json.loads(done.stdout.splitlines()[-1])


def measure(environment, flags):
    """All rows; torch's own first, then those with a daemon. The environment is that of MPS, or not."""
    rows = phase("baselines", "", environment)
    rows.update(processes("context", "", environment))
    import daemon

    os.environ.update({key: environment[key] for key in environment if key.startswith("CUDA_MPS")})
    with tempfile.TemporaryDirectory(prefix="bench-torch-", dir="/tmp") as folder:
        started = daemon.Daemon("--local_address={}/local".format(folder), *flags)
        try:
            rows.update(phase("ours", started.address, environment))
            rows.update(processes("lane", started.address, environment))
        finally:
            started.stop()
    return rows


def start_mps(folder):
    """The environment of programs that use MPS; None: it cannot be started."""
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=20, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        print("rows with MPS were not run: {}".format(error))
        return None
    return environment


def show(title, rows):
    print("\n{}\n{:44} {:>10}   {:30} {:>10} {:>7}".format(title, "", "us", "beside", "us", "ratio"))
    lost = 0
    for name, mark, beside, ratio in MARKS:
        value, other = rows.get(name), rows.get(beside)
        line = "{:44} {:10.3f}".format(name, value)
        ok = mark is None or value <= mark
        if other:
            line += "   {:30} {:10.3f} {:7.3f}".format(beside, other, value / other)
            ok = ok and (ratio is None or value <= ratio * other)
        print(line + ("" if ok else "   above its mark"))
        lost += not ok
    print("others: " + "; ".join("{} {:.3f}".format(name, value) for name, value in sorted(rows.items())
                                 if not any(name in (each[0], each[2]) for each in MARKS)))
    print("{} of {} rows are above their marks".format(lost, len(MARKS)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--phase", choices=("baselines", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=("lane", "context"), help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    parser.add_argument("--mps", choices=("no", "only", "both"), default="both")
    options = parser.parse_args()
    import torch_support  # noqa: F401  The package, and its C module.

    if options.worker:
        worker(options.worker, options.address)
        return
    if options.phase:
        import torch_baselines

        torch = torch_baselines.import_torch(sys.argv[0])
        rows = baselines(torch) if options.phase == "baselines" else ours(torch, options.address)
        rows["versions"] = torch_baselines.versions(torch)
        print(json.dumps(rows))
        return
    found = {}
    if options.mps != "only":
        found["without MPS"] = measure(dict(os.environ), ())
    folder = tempfile.mkdtemp(prefix="mps-", dir="/tmp")
    environment = start_mps(folder) if options.mps != "no" else None
    if environment is not None:
        try:
            found["with MPS"] = measure(environment, ("--sms_free={}".format(SMS_FREE),))
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, timeout=60)
    for title, rows in found.items():
        print(rows.pop("versions"))
        show(title, rows)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
