#!/usr/bin/env python3
"""Writes tests/python/torch_graphs.json: the graphs of the functions in functions.py as torch traces them, with inputs
and what torch computes of them. tests/python/lowering_test.py needs no torch.

    PYTHONPATH=client/python tests/torch/make_graphs.py >tests/python/torch_graphs.json

Needs torch 2.7 or newer. The same version of torch writes the same bytes.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import functions  # noqa: E402
import torch  # noqa: E402
from residentd.torch.publish import random_inputs  # noqa: E402
from residentd.torch.trace import trace  # noqa: E402

KINDS = ("normal", "special", "denormal")


def bits(tensor):
    """Shape, and the elements as hexadecimal digits in memory order."""
    stored = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)
    return {"shape": list(tensor.shape), "bits": stored.numpy().tobytes().hex()}


def main():
    lines = []
    for case in functions.CASES:
        tensors = case.examples()[0]
        graph = trace(case.function, case.name, [(each.shape, each.dtype) for each in tensors])
        for node in graph["nodes"]:
            node.pop("source", None)
        generator = torch.Generator().manual_seed(0)
        runs = []
        for kind in KINDS:
            inputs = random_inputs(tensors, kind, generator)
            runs.append({"inputs": [bits(each) for each in inputs], "output": bits(case.function(*inputs))})
        lines.append(json.dumps({"graph": graph, "runs": runs}, separators=(",", ":")))
    print("[" + ",\n".join(lines) + "]")


if __name__ == "__main__":
    main()
