#!/usr/bin/env python3
"""A node `linear` of float32 in a chain, beside the same chain of gemv (or gemm) and relu, and a CUDA graph of PyTorch's
operators. Results are checked against float64.

    tests/gpu/bench_linear.py --out=bench_linear.json

The chains are models: the time is that of a request on the device, divided by its layers. Needs numpy, grpcio and
protobuf; without torch its rows are left out and the output says so.
"""

import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "python")]
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import daemon as daemons  # noqa: E402

# Layers of a chain, and their weights, which stay in the L2 cache.
LAYERS, MATRICES = 200, 8
# (width, rows, the mark in microseconds)
SHAPES = [(64, 1, None), (128, 1, 4.5), (256, 1, None), (512, 1, 6), (1024, 1, None), (128, 16, None), (512, 4, None),
          (512, 16, 7), (512, 64, 12), (512, 256, None), (1024, 16, None), (1024, 64, None)]
CALLS, WARM = 60, 10

wrong = []


class Chain:
    """x = relu(x w' + b), LAYERS times, with MATRICES different matrices."""

    def __init__(self, width, rows):
        random = np.random.default_rng()
        self.width, self.rows = width, rows
        # Orthogonal matrices, and every output also from the opposite of an input, keep the size of x.
        self.w = [(np.linalg.qr(random.normal(size=(width, width)))[0] * np.sqrt(2)).astype(np.float32)
                  for _ in range(MATRICES)]
        self.b = [(random.normal(size=width) * 0.01).astype(np.float32) for _ in range(MATRICES)]
        self.x = random.normal(size=(rows, width)).astype(np.float32)
        self.expected = self.x.astype(np.float64)
        for i in range(LAYERS):
            w, b = self.w[i % MATRICES].astype(np.float64), self.b[i % MATRICES]
            self.expected = np.maximum(self.expected @ w.T + b, 0)

    def check(self, y, who):
        error = np.linalg.norm(y - self.expected) / np.linalg.norm(self.expected)
        if y.shape != self.expected.shape or not error < 1e-3:
            wrong.append("{} x {}, {} rows, {}: the values are wrong by {}".format(
                self.width, self.width, self.rows, who, error))
            print(wrong[-1])

    def graph(self, rd, operators):
        """`operators`: what each layer is."""
        b = residentd.GraphBuilder("chain", rd)
        x = b.input("x", (self.rows, self.width))
        weights = [b.weight("w{}".format(i), (self.width, self.width)) for i in range(MATRICES)]
        biases = [b.weight("b{}".format(i), (self.width,)) for i in range(MATRICES)]
        for i in range(LAYERS):
            w, bias = weights[i % MATRICES], biases[i % MATRICES]
            if operators == "linear":
                x = b.call("linear", x, w, bias, None, activation=1)
            elif operators == "gemv, relu":
                x = b.call("relu", b.call("gemv", x, w, bias))
            else:
                product = b.activation("p{}".format(i), (self.rows, self.width))
                b.call("gemm", x, w, product)
                x = b.call("relu", b.call("add", product, bias))
        b.output("y", x)
        graph = b.build()
        graph.message.fuse = False
        return graph

    def weights(self, operators):
        transposed = operators == "gemm, add, relu"
        return {**{"w{}".format(i): np.ascontiguousarray(w.T if transposed else w) for i, w in enumerate(self.w)},
                **{"b{}".format(i): b for i, b in enumerate(self.b)}}


def cuda_graph(torch, chain):
    """Microseconds of a layer in a CUDA graph of PyTorch's operators."""
    w = [torch.tensor(each, device="cuda") for each in chain.w]
    b = [torch.tensor(each, device="cuda") for each in chain.b]
    first = torch.tensor(chain.x, device="cuda")

    def forward():
        x = first
        for i in range(LAYERS):
            x = torch.relu(torch.nn.functional.linear(x, w[i % MATRICES], b[i % MATRICES]))
        return x

    forward()  # The first calls allocate, which a graph must not.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward()
    times = []
    for _ in range(WARM + CALLS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    chain.check(y.cpu().numpy(), "CUDA graph")
    return statistics.median(times[WARM:]) / LAYERS


def model(rd, chain, operators):
    """The same of a model."""
    rd.models.load("chain", chain.graph(rd, operators), chain.weights(operators))
    times = []
    for _ in range(WARM + CALLS):
        result = rd.models.run("chain", x=chain.x)
        times.append(result.device_ns / 1e3)
    chain.check(result.outputs["y"], operators)
    rd.models.remove("chain")
    return statistics.median(times[WARM:]) / LAYERS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    options = parser.parse_args()
    chains = [(Chain(width, rows), mark) for width, rows, mark in SHAPES]
    baselines = [None] * len(chains)
    try:
        import torch
        torch.backends.cuda.matmul.allow_tf32 = False
        baselines = [cuda_graph(torch, chain) for chain, _ in chains]
    except ImportError as error:
        print("without torch: {}".format(error))
    daemon = daemons.Daemon()
    figures = []
    try:
        with residentd.connect(daemon.address) as rd:
            for (chain, mark), baseline in zip(chains, baselines):
                what = "a node linear, {} x {}, {} rows".format(chain.width, chain.width, chain.rows)
                value = model(rd, chain, "linear")
                others = [("gemv, relu", model(rd, chain, "gemv, relu"))]
                if chain.rows > 16:
                    others.append(("gemm, add, relu", model(rd, chain, "gemm, add, relu")))
                if baseline is not None:
                    others.append(("CUDA graph of PyTorch's operators", baseline))
                for name, other in others:
                    figures.append({"what": what, "value": value, "unit": "us", "baseline": name, "baseline_value": other,
                                    "ratio": value / other})
                    print("{:36} {:7.2f} us   {:34} {:7.2f} us, ratio {:.2f}{}".format(
                        what, value, name, other, value / other,
                        ", mark {}".format(mark) if mark is not None and name == others[0][0] else ""))
            status = rd.status()
    finally:
        daemon.stop()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(
            {"device": status.devices[0].name, "figures": figures}, indent=1) + "\n")
    if wrong:
        sys.exit("{} results are wrong".format(len(wrong)))


if __name__ == "__main__":
    main()
