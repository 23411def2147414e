#!/usr/bin/env python3
"""Perceptrons as ONNX files: requests to models of residentd, beside calls of ONNX Runtime on the CPU and a CUDA graph of
PyTorch in the process that needs the result. Results are checked against float64.

    tests/gpu/bench_onnx.py --out=bench_onnx.json

A request goes over gRPC to another process on this machine; the baselines make no call. Needs numpy, grpcio and
protobuf; without torch or onnxruntime, their rows are left out and the output says so.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "python")]
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import daemon as daemons  # noqa: E402
import onnx_file  # noqa: E402

# (name, layers, width)
SHAPES = [("small", 3, 64), ("medium", 4, 512), ("large", 8, 1024)]
ROWS = (1, 16, 64)
CALLS, WARM = 1000, 100


def p50(function):
    """The median of microseconds of a call."""
    for _ in range(WARM):
        function()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


class Perceptron:
    """y = relu(... relu(x w0' + b0) ... wn' + bn)."""

    def __init__(self, layers, width):
        random = np.random.default_rng()
        scale = np.sqrt(2 / width)
        self.layers = [((random.normal(size=(width, width)) * scale).astype(np.float32),
                        random.normal(size=width).astype(np.float32)) for _ in range(layers)]
        self.width = width
        weights, nodes, name = [], [], "x"
        for i, (w, b) in enumerate(self.layers):
            weights += [onnx_file.tensor("w%d" % i, w.shape, w.ravel()), onnx_file.tensor("b%d" % i, b.shape, b)]
            last = "y" if i + 1 == layers else "r%d" % i
            nodes += [onnx_file.node("Gemm", "%s w%d b%d" % (name, i, i), "h%d" % i, transB=1),
                      onnx_file.node("Relu", "h%d" % i, last)]
            name = last
        self.onnx = onnx_file.model([onnx_file.value("x", ["batch", width])], weights, nodes, ["y"])
        self.inputs = {rows: random.normal(size=(rows, width)).astype(np.float32) for rows in ROWS}

    def check(self, rows, y, who):
        expected = self.inputs[rows].astype(np.float64)
        for w, b in self.layers:
            expected = np.maximum(expected @ w.astype(np.float64).T + b, 0)
        if y.shape != expected.shape or not np.allclose(y, expected, rtol=1e-3, atol=1e-3):
            sys.exit("{}: the values are wrong by {}".format(who, np.abs(y - expected).max()))


def runtime_calls(perceptron):
    """Microseconds of a call of ONNX Runtime, by the number of rows."""
    import onnxruntime
    session = onnxruntime.InferenceSession(perceptron.onnx, providers=["CPUExecutionProvider"])
    times = {}
    for rows, x in perceptron.inputs.items():
        perceptron.check(rows, session.run(None, {"x": x})[0], "ONNX Runtime")
        times[rows] = p50(lambda x=x: session.run(None, {"x": x}))
    return times


def graph_calls(perceptron):
    """Microseconds of a copy to the device, a CUDA graph and a copy back; and those of the graph alone, on the device."""
    import torch
    layers = [(torch.tensor(w, device="cuda"), torch.tensor(b, device="cuda")) for w, b in perceptron.layers]
    calls, device = {}, {}
    for rows, values in perceptron.inputs.items():
        x = torch.empty(rows, perceptron.width, device="cuda")
        sent = torch.from_numpy(values).pin_memory()
        received = torch.empty(rows, perceptron.width).pin_memory()

        def forward(x=x):
            for w, b in layers:
                x = torch.relu(torch.nn.functional.linear(x, w, b))
            return x

        forward()  # The first calls allocate, which a graph must not.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = forward()

        def call(x=x, y=y, graph=graph, sent=sent, received=received):
            x.copy_(sent, non_blocking=True)
            graph.replay()
            received.copy_(y, non_blocking=True)
            torch.cuda.current_stream().synchronize()

        call()
        perceptron.check(rows, received.numpy(), "CUDA graph")
        calls[rows] = p50(call)
        times = []
        for _ in range(CALLS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        device[rows] = statistics.median(times)
    return calls, device


def requests(rd, name, perceptron):
    """The same of requests to a model."""
    rd.models.load_onnx(name, perceptron.onnx, max_batch=max(ROWS))
    calls, device = {}, {}
    for rows, x in perceptron.inputs.items():
        times = []

        def call(x=x, rows=rows, times=times):
            result = rd.models.run(name, x=x)
            times.append(result.device_ns / 1e3)
            return result

        perceptron.check(rows, call().outputs["y"], "the model")
        calls[rows] = p50(call)
        device[rows] = statistics.median(times[-CALLS:])
    return calls, device


def optional(function, perceptron, name):
    try:
        return function(perceptron)
    except ImportError as error:
        print("without {}: {}".format(name, error))
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    perceptrons = [(name, Perceptron(layers, width)) for name, layers, width in SHAPES]
    baselines = [(optional(runtime_calls, each, "onnxruntime"), optional(graph_calls, each, "torch"))
                 for _, each in perceptrons]
    daemon = daemons.Daemon()
    figures = []

    def add(what, value, baseline=None, other=None):
        figure = {"what": what, "value": value, "unit": "us"}
        if other is not None:
            figure.update(baseline=baseline, baseline_value=other, ratio=value / other)
        figures.append(figure)
        print("{:55} {:9.1f} us".format(what, value) + (
            "   {:32} {:9.1f} us, ratio {:.2f}".format(baseline, other, value / other) if other is not None else ""))

    try:
        with residentd.connect(daemon.address) as rd:
            for (name, perceptron), (runtime, graph) in zip(perceptrons, baselines):
                calls, device = requests(rd, name, perceptron)
                layers, width = len(perceptron.layers), perceptron.width
                for rows in ROWS:
                    what = "{} x {}, {} rows".format(layers, width, rows)
                    if runtime is not None:
                        add(what + ", request", calls[rows], "call of ONNX Runtime (CPU)", runtime[rows])
                    if graph is None:
                        add(what + ", request", calls[rows])
                        add(what + ", on the device", device[rows])
                        continue
                    add(what + ", request", calls[rows], "copies and CUDA graph", graph[0][rows])
                    add(what + ", on the device", device[rows], "CUDA graph", graph[1][rows])
            status = rd.status()
    finally:
        daemon.stop()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(
            {"device": status.devices[0].name, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
