#!/usr/bin/python3
"""Measures how long a model reads a prompt, in one step and token by token, in one run:

    bazel build //server:residentd //client:residentctl //client/python:wheel
    RESIDENTD=bazel-bin/server/residentd RESIDENTCTL=bazel-bin/client/residentctl \\
        tests/graph/bench_prompt.py [FILE]

The model has random weights: 4 layers, 512 hidden values, 8 heads of 64. `graph llama --prompt` makes the
graph with one step, `graph llama` the one that decodes, whose steps read one token each. Both end with the
token that follows the prompt, which must be the same. The two alternate; figures are medians of whole calls,
in which the graph is sent and checked. Writes the figures to FILE, as JSON.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import numpy as np  # noqa: E402

import daemon as daemons  # noqa: E402
import llama_client  # noqa: E402
import llama_model  # noqa: E402

MODEL = {"hidden": 512, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 64, "intermediate": 1536,
         "vocab": 1000}
CONTEXT, REPETITIONS = 512, 5


def milliseconds(function):
    start = time.perf_counter()
    result = function()
    return (time.perf_counter() - start) * 1e3, result


def measure(daemon, client, dtype, length):
    rng = np.random.default_rng(length)
    model = llama_model.random_model(rng, dtype=dtype, **MODEL)
    prompt = rng.integers(0, MODEL["vocab"], length).tolist()
    prefix = "{}.{}.".format(dtype, length)
    graphs = []
    with tempfile.TemporaryDirectory() as folder:
        for file in model.write(folder, 1):
            daemon.ctl("buffers", "load", "{}/{}".format(folder, file), "--prefix=" + prefix)
        for flags in (["--prompt={}".format(length)], []):
            made = daemon.ctl("graph", "llama", folder, "--prefix=" + prefix,
                              "--max_context={}".format(CONTEXT), *flags)
            if made.code != daemons.OK:
                sys.exit(str(made))
            graphs.append(llama_client.parse_graph(made.out))
    times = [[], []]
    for _ in range(REPETITIONS):
        last = []
        for graph, of_graph, steps in zip(graphs, times, (1, length)):
            took, run = milliseconds(lambda: client.run(graph, prompt, steps=steps))
            of_graph.append(took)
            last.append(run.tokens[-1])
        if last[0] != last[1]:
            sys.exit("the next token is {} and {}".format(*last))
    value, baseline = map(statistics.median, times)
    return {"what": "a prompt of {} tokens, weights of {}: in one step".format(length, dtype),
            "value": value, "unit": "ms", "baseline": "a step for each token", "baseline_value": baseline,
            "ratio": value / baseline}


def main():
    daemon = daemons.Daemon()
    figures = []
    try:
        with llama_client.LlamaClient(daemon.address) as client:
            for dtype in ("f32", "bf16"):
                for length in (32, 256):
                    figures.append(measure(daemon, client, dtype, length))
                    print("{what}: {value:.1f} ms; {baseline}: {baseline_value:.1f} ms; "
                          "ratio {ratio:.2f}".format(**figures[-1]), flush=True)
    finally:
        daemon.stop()
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
