#!/usr/bin/python3
"""Times built-in operators of the CPU engine beside NumPy on the same machine: medians of alternating
runs. The time of an operator is that on the device; NumPy writes to an existing array.

  bazel build //server:residentd //client:residentctl //proto:python_messages
  RESIDENT_PYTHON_PROTOS=bazel-bin/proto RESIDENTD=bazel-bin/server/residentd \
    RESIDENTCTL=bazel-bin/client/residentctl tests/conformance/bench_library.py [--rounds=N] [--out=FILE]
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy  # noqa: E402

import daemon as daemons  # noqa: E402
import daemon_client  # noqa: E402


def cases(client, numbers):
    """Name, work in one run, its unit, a run of the operator, and NumPy's."""
    x, y = (numbers.standard_normal(1 << 20).astype(numpy.float32) for _ in range(2))
    out = numpy.empty_like(x)
    tensors = [client.tensor(x, "f32"), client.tensor(y, "f32"), client.output(x.shape, "f32")]
    yield ("add of 1 Mi float32", x.nbytes * 3, "bytes/s", lambda: client.run("add", *tensors, 1.0),
           lambda: numpy.add(x, y, out=out))

    rows = x.reshape(1024, 1024)
    exponentials = numpy.empty_like(rows)
    inputs = [client.tensor(rows, "f32"), client.output(rows.shape, "f32")]

    def softmax():
        numpy.subtract(rows, rows.max(axis=1, keepdims=True), out=exponentials)
        numpy.exp(exponentials, out=exponentials)
        numpy.divide(exponentials, exponentials.sum(axis=1, keepdims=True), out=exponentials)

    yield ("softmax of 1,024 x 1,024", rows.size, "elements/s",
           lambda: client.run("softmax", *inputs), softmax)
    sums = [inputs[0], client.output((1024,), "f32")]
    yield ("sum of 1,024 x 1,024 over the last dimension", rows.size, "elements/s",
           lambda: client.run("sum", *sums, 2), lambda: rows.sum(axis=1))

    a, b = (numbers.standard_normal((512, 512)).astype(numpy.float32) for _ in range(2))
    product = numpy.empty_like(a)
    matrices = [client.tensor(a, "f32"), client.tensor(b, "f32"), client.output(a.shape, "f32")]
    yield ("gemm of 512 x 512 x 512", 2 * 512**3, "flop/s",
           lambda: client.run("gemm", *matrices, 1.0, 0.0), lambda: numpy.dot(a, b, out=product))


def timed(run):
    begin = time.perf_counter()
    seconds = run()
    return seconds if isinstance(seconds, float) else time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--out")
    options = parser.parse_args()
    daemon = daemons.Daemon("--devices=cpu")
    figures = []
    try:
        with daemon_client.Client(daemon.address) as client:
            for name, work, unit, ours, baseline in cases(client, numpy.random.default_rng()):
                times = {"ours": [], "NumPy": []}
                for _ in range(options.rounds):
                    times["ours"].append(timed(ours))
                    times["NumPy"].append(timed(baseline))
                rates = {key: work / statistics.median(values) for key, values in times.items()}
                ratio = rates["ours"] / rates["NumPy"]
                figures.append({"what": name, "value": rates["ours"], "unit": unit,
                                "baseline": "NumPy " + numpy.__version__,
                                "baseline_value": rates["NumPy"], "ratio": ratio})
                print("{:46} {:8.2f} G{:10}  NumPy {:8.2f}  ratio {:.2f}".format(
                    name, rates["ours"] / 1e9, unit, rates["NumPy"] / 1e9, ratio), flush=True)
    finally:
        daemon.stop()
    if options.out:
        pathlib.Path(options.out).write_text(
            json.dumps({"processors": os.cpu_count(), "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
