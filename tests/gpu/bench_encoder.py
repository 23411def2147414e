#!/usr/bin/env python3
"""A sentence encoder with the shape of all-MiniLM-L6-v2 and random weights, as an ONNX file: requests to a model of
residentd, beside calls of ONNX Runtime on the CPU and a CUDA graph of PyTorch's operators. Results are checked against
ONNX Runtime.

    tests/gpu/bench_encoder.py --out=bench_encoder.json

Needs numpy, grpcio, protobuf, onnx and onnxruntime; without torch its rows are left out and the output says so.
"""

import argparse
import json
import pathlib
import statistics
import struct
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "strangers")]
import bench_onnx  # noqa: E402  Sets the paths of the other modules.
import daemon as daemons  # noqa: E402
import sentence_encoder  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

WIDTH, HIDDEN, LAYERS, HEADS, WORDS, POSITIONS = 384, 1536, 6, 12, 30522, 512
CONFIG = {"num_attention_heads": HEADS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
# (rows, tokens of each)
SHAPES = ((1, 32), (8, 32), (1, 128))
MAX_ROWS = 8


def random_weights():
    """By the names of the package's file."""
    random = np.random.default_rng()
    weights = {"embeddings.position_ids": np.arange(POSITIONS, dtype=np.int64).reshape(1, -1)}

    def add(name, *shape):
        weights[name] = (random.normal(size=shape) * shape[-1]**-0.5).astype(np.float32)

    def add_norm(name):
        weights[name + ".weight"] = random.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        add(name + ".bias", WIDTH)

    for name, rows in (("word", WORDS), ("position", POSITIONS), ("token_type", 2)):
        add("embeddings.{}_embeddings.weight".format(name), rows, WIDTH)
    add_norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = "encoder.layer.{}.".format(i)
        for name, out, width in (("attention.self.query", WIDTH, WIDTH), ("attention.self.key", WIDTH, WIDTH),
                                 ("attention.self.value", WIDTH, WIDTH), ("attention.output.dense", WIDTH, WIDTH),
                                 ("intermediate.dense", HIDDEN, WIDTH), ("output.dense", WIDTH, HIDDEN)):
            add(layer + name + ".weight", out, width)
            add(layer + name + ".bias", out)
        add_norm(layer + "attention.output.LayerNorm")
        add_norm(layer + "output.LayerNorm")
    return weights


def write_safetensors(path, weights):
    header, at = {}, 0
    for name, array in weights.items():
        header[name] = {"dtype": "I64" if array.dtype == np.int64 else "F32", "shape": array.shape,
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in weights.values():
            file.write(array.tobytes())


def make_inputs(rows, tokens):
    random = np.random.default_rng()
    mask = np.ones((rows, tokens), np.int64)
    mask[:, tokens - 5:] = 0
    return {"input_ids": random.integers(0, WORDS, (rows, tokens)), "attention_mask": mask,
            "token_type_ids": np.zeros((rows, tokens), np.int64)}


def check(values, expected, who):
    error = np.abs(values - expected).max() / np.abs(expected).max()
    if not error < 1e-4:  # Also of NaN.
        sys.exit("{}: the values are wrong by {}".format(who, error))


def graph_time(weights, inputs, expected):
    """Microseconds of a CUDA graph of PyTorch's operators, on the device."""
    import torch
    from torch.nn import functional
    torch.backends.cuda.matmul.allow_tf32 = False
    on_device = {name: torch.tensor(array, device="cuda") for name, array in weights.items()}
    ids, mask, types = (torch.tensor(inputs[name], device="cuda")
                        for name in ("input_ids", "attention_mask", "token_type_ids"))
    rows, tokens = ids.shape

    def linear(x, name):
        return functional.linear(x, on_device[name + ".weight"], on_device[name + ".bias"])

    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), on_device[name + ".weight"], on_device[name + ".bias"], 1e-12)

    def forward():
        x = (on_device["embeddings.word_embeddings.weight"][ids] + on_device["embeddings.token_type_embeddings.weight"][types] +
             on_device["embeddings.position_embeddings.weight"][:tokens])
        x = norm(x, "embeddings.LayerNorm")
        bias = ((1 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min).expand(rows, HEADS, tokens, tokens)
        for i in range(LAYERS):
            name = "encoder.layer.{}.".format(i)
            q, k, v = (linear(x, name + "attention.self." + part).view(rows, tokens, HEADS, -1).transpose(1, 2)
                       for part in ("query", "key", "value"))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            y = linear(y.transpose(1, 2).reshape(rows, tokens, WIDTH), name + "attention.output.dense")
            x = norm(x + y, name + "attention.output.LayerNorm")
            y = functional.gelu(linear(x, name + "intermediate.dense"))
            x = norm(x + linear(y, name + "output.dense"), name + "output.LayerNorm")
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(mean, dim=1)

    with torch.no_grad():
        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = forward()
    times = []
    for _ in range(bench_onnx.WARM + bench_onnx.CALLS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    check(y.cpu().numpy(), expected, "CUDA graph")
    return statistics.median(times[bench_onnx.WARM:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--calls", type=int, default=bench_onnx.CALLS)
    options = parser.parse_args()
    bench_onnx.CALLS = options.calls
    bench_onnx.WARM = max(options.calls // 10, 1)
    folder = tempfile.TemporaryDirectory(prefix="residentd-encoder-")
    weights = random_weights()
    path = pathlib.Path(folder.name) / sentence_encoder.WEIGHTS
    write_safetensors(path, weights)
    model = sentence_encoder.make(path, CONFIG)
    (path.parent / "encoder.onnx").write_bytes(model)
    session = onnxruntime.InferenceSession(path.parent / "encoder.onnx", providers=["CPUExecutionProvider"])
    daemon = daemons.Daemon()
    figures = []

    def add(what, value, baseline, other):
        figures.append({"what": what, "value": value, "unit": "us", "baseline": baseline, "baseline_value": other,
                        "ratio": value / other})
        print("{:45} {:9.1f} us   {:32} {:9.1f} us, ratio {:.2f}".format(what, value, baseline, other, value / other))

    try:
        with residentd.connect(daemon.address) as rd:
            # One load: each number of tokens has a plan, which its first request makes.
            rd.models.load_onnx("encoder", model, data={path.name: path.read_bytes()},
                                max_sizes={"sequence": max(tokens for _, tokens in SHAPES)}, max_batch=MAX_ROWS)
            rd.models.run("encoder", make_inputs(1, 8))  # Copies the weights.
            start = time.perf_counter()
            rd.models.run("encoder", make_inputs(1, 16))
            print("the first request of a number of tokens: {:.0f} ms".format((time.perf_counter() - start) * 1e3))
            for rows, tokens in SHAPES:
                inputs = make_inputs(rows, tokens)
                wanted = ["sentence_embedding"]
                expected = session.run(wanted, inputs)[0]
                device = []

                def call(inputs=inputs, device=device, wanted=wanted):
                    result = rd.models.run("encoder", inputs, outputs=wanted)
                    device.append(result.device_ns / 1e3)
                    return result

                check(call().outputs[wanted[0]], expected, "the model")
                request = bench_onnx.p50(call)
                what = "encoder, {} x {} tokens".format(rows, tokens)
                runtime = bench_onnx.p50(lambda inputs=inputs: session.run(wanted, inputs))
                add(what + ", request", request, "call of ONNX Runtime (CPU)", runtime)
                try:
                    add(what + ", on the device", statistics.median(device[-options.calls:]), "CUDA graph of PyTorch's operators",
                        graph_time(weights, inputs, expected))
                except ImportError as error:
                    print("without torch: {}".format(error))
            status = rd.status()
    finally:
        daemon.stop()
        folder.cleanup()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({"device": status.devices[0].name, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
