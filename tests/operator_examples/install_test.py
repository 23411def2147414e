#!/usr/bin/env python3
"""Installs the examples of docs/operators.md in a real daemon, as a reader would.

Each install includes expected values computed here in float64, and the daemon's validation
compares the operator's results with them. The last line is `N passed, N failed`.
"""

import json
import math
import os
import pathlib
import random
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "cli"), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

SOURCES = HERE.parent.parent / "docs" / "examples"
# docs/operators.md states that these examples need spills.
NEED_SPILLS = {"scaled_gelu", "matmul_bf16"}

# Printed, so that a failing run can be repeated.
SEED = int(os.environ.get("SEED") or random.randrange(2**32))
RANDOM = random.Random(SEED)


def matrix(rows, columns, step=None):
    """Returns normal values; multiples of `step` if given, which 16-bit types can represent."""

    def value():
        x = RANDOM.gauss(0, 1)
        return round(x / step) * step if step else x

    return [[value() for _ in range(columns)] for _ in range(rows)]


def vector(n):
    return matrix(1, n)[0]


def in_bf16(rows):
    return {"shape": [len(rows), len(rows[0])], "dtype": "bf16", "data": sum(rows, [])}


def without_data(value):
    """The shape and type of an output, which is compared with the active version's."""
    if isinstance(value, dict):
        return {key: part for key, part in value.items() if key != "data"}
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0]
    return {"shape": shape}


def hinge():
    x, y, margin = vector(1000), vector(1000), 1.5
    return {"inputs": {"x": x, "y": y, "margin": margin},
            "outputs": {"out": [max(0.0, margin - a * b) for a, b in zip(x, y)]}}


def scaled_gelu():
    x, y, a = matrix(7, 33), matrix(7, 1), 2.0
    gelu = lambda v: v / 2 * math.erfc(-v / math.sqrt(2))  # noqa: E731
    return {"inputs": {"x": x, "y": y, "a": a},
            "outputs": {"out": [[a * gelu(v) + s[0] for v in row] for row, s in zip(x, y)]}}


def softmax_rows():
    x = matrix(9, 700)
    rows = [[math.exp(v) for v in row] for row in x]
    return {"inputs": {"x": x}, "outputs": {"out": [[v / sum(row) for v in row] for row in rows]}}


def outer():
    x, y = vector(70), vector(300)
    return {"inputs": {"x": x, "y": y}, "outputs": {"out": [[a * b for b in y] for a in x]}}


def reverse_rows():
    x = matrix(6, 777)
    return {"inputs": {"x": x}, "outputs": {"x": [row[::-1] for row in x]}}


def normalize_rows():
    x, w, b, eps = matrix(5, 300), vector(300), RANDOM.choice([[], vector(300)]), 1e-5
    out = []
    for row in x:
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / len(row) + eps)
        out.append([(v - mean) / deviation * w[c] + (b[c] if b else 0)
                    for c, v in enumerate(row)])
    return {"inputs": {"x": x, "w": w, "b": b, "eps": eps}, "outputs": {"out": out}}


def add_rows():
    dst, src = matrix(40, 50), matrix(600, 50)
    index = [RANDOM.randrange(39) for _ in src]  # Each many times; never the last row.
    want = [list(row) for row in dst]
    for row, values in zip(index, src):
        want[row] = [a + b for a, b in zip(want[row], values)]
    return {"inputs": {"dst": dst, "index": index, "src": src}, "outputs": {"dst": want}}


def dot():
    x, y = vector(5000), vector(5000)
    return {"inputs": {"x": x, "y": y}, "outputs": {"out": [sum(a * b for a, b in zip(x, y))]}}


def matmul_bf16():
    a, b = matrix(50, 37, step=1 / 16), matrix(37, 91, step=1 / 16)
    out = [[sum(v * b[k][n] for k, v in enumerate(row)) for n in range(91)] for row in a]
    return {"inputs": {"a": in_bf16(a), "b": in_bf16(b)}, "outputs": {"out": out}}


EXAMPLES = [hinge, scaled_gelu, softmax_rows, outer, reverse_rows, normalize_rows, add_rows,
            dot, matmul_bf16]


class ExamplesTest(daemons.DaemonTest):
    """All tests share one daemon."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="residentd-examples-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        super().setUpClass()

    def install(self, name, example, tolerance=1e-4, isolation="default"):
        path = self.folder / (name + ".json")
        path.write_text(json.dumps(dict(example, relative_tolerance=tolerance,
                                        absolute_tolerance=tolerance)))
        spills = ["--allow_spills"] if name in NEED_SPILLS else []
        return self.daemon.ctl("ops", "install", name, str(SOURCES / (name + ".cc")),
                               "--example=%s" % path, "--wait=active", "--isolation=" + isolation,
                               *spills)

    def test_every_example_is_included(self):
        self.assertEqual(sorted(path.stem for path in SOURCES.glob("*.cc")),
                         sorted(example.__name__ for example in EXAMPLES))

    def test_a_wrong_value_is_refused(self):
        example = outer()
        example["outputs"]["out"][69][299] += 1
        self.assertIn("example 1", self.install("outer", example).err)


def make_test(example):
    def test(self):
        values = example()
        result = self.install(example.__name__, values, isolation="trusted")
        self.assertEqual(result.code, 0, result)
        # On a GPU its code is rewritten, and gives the same bits as the active version's.
        values["outputs"] = {name: without_data(value) for name, value in values["outputs"].items()}
        result = self.install(example.__name__, values, tolerance=0, isolation="stoppable")
        self.assertEqual(result.code, 0, result)

    return test


for case in EXAMPLES:
    setattr(ExamplesTest, "test_" + case.__name__, make_test(case))


if __name__ == "__main__":
    print("SEED={}".format(SEED))
    unittest_main.main()
