#!/usr/bin/env python3
"""`residentctl model`: models in files, on a real daemon.

The last line is `N passed, N failed`.
"""

import json
import pathlib
import struct
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import onnx_file  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, REFUSED, USAGE  # noqa: E402

GRAPH = {
    "name": "scorer",
    "format": 1,
    "scalars": [{"name": "rows", "dtype": "DTYPE_I64", "least": 1, "most": 8},
                {"name": "factor", "dtype": "DTYPE_F32", "least": -8, "most": 8, "initial": 1}],
    "tensors": [
        {"name": "x", "kind": "KIND_INPUT", "dtype": "DTYPE_F32", "shape": [{"scalar": "rows"}, {"size": 3}]},
        {"name": "w", "kind": "KIND_WEIGHT", "dtype": "DTYPE_F32", "shape": [{"size": 2}, {"size": 3}]},
        {"name": "h", "kind": "KIND_ACTIVATION", "dtype": "DTYPE_F32",
         "shape": [{"scalar": "rows"}, {"size": 2}]},
        {"name": "y", "kind": "KIND_OUTPUT", "dtype": "DTYPE_F32", "shape": [{"scalar": "rows"}, {"size": 2}]},
    ],
    "nodes": [
        {"operator": "gemv", "arguments": [
            {"tensor": {"name": "x"}}, {"tensor": {"name": "w"}}, {"none": True}, {"tensor": {"name": "h"}}]},
        {"operator": "scale", "arguments": [
            {"tensor": {"name": "h"}}, {"tensor": {"name": "y"}}, {"scalar": {"name": "factor"}}]},
    ],
}
ROWS = [[1, 0, 2], [0, 3, -1]]


def safetensors(**tensors):
    """name: a list of rows."""
    header, data = {}, b""
    for name, rows in tensors.items():
        values = [value for row in rows for value in row]
        begin = len(data)
        data += struct.pack("<{}f".format(len(values)), *values)
        header[name] = {"dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Models(daemons.DaemonTest):

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.addCleanup(self.remove_all)

    def remove_all(self):
        for model in self.daemon.ctl("model", "list", "--json").json:
            self.ctl("model", "remove", model["name"])

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def load(self, rows, *flags):
        graph = self.write("scorer.json", json.dumps(GRAPH))
        weights = self.write("scorer.safetensors", safetensors(w=rows, other=[[1]]))
        return self.daemon.ctl("model", "load", graph, "--name=scorer", "--weights=%s" % weights, *flags)

    def run_model(self, *words):
        return self.ctl("model", "run", *words, "--json").json

    def states(self, name="scorer"):
        (model,) = self.ctl("model", "list", name, "--json").json
        return {version["version"]: version["state"].rpartition("_")[2].lower() for version in model["versions"]}

    def test_a_model_from_load_to_remove(self):
        self.assertIn("no models", self.ctl("model", "list").out)
        self.assertIn("scorer version 1 is loaded and serves", self.check(self.load(ROWS), OK).out)
        self.assertIn("was loaded already", self.check(self.load(ROWS), OK).out)
        result = self.run_model("scorer", "x=1,2,3,4,5,6")
        self.assertEqual(result["version"], 1)
        self.assertEqual(result["outputs"]["y"]["shape"], [2, 2])
        self.assertEqual(result["outputs"]["y"]["values"], [7, 3, 16, 9])
        self.assertEqual(self.run_model("scorer", "x=1,2,3", "factor=-2")["outputs"]["y"]["values"], [-14, -6])
        text = self.ctl("model", "describe", "scorer").out
        self.assertIn("[1-8, 3]", text)
        self.assertIn("factor", text)
        self.assertIn("requests are combined, up to 8 rows", text)

        doubled = [[2 * value for value in row] for row in ROWS]
        self.check(self.load(doubled, "--activate=false"), OK)
        self.assertEqual(self.states(), {1: "active", 2: "loaded"})
        raw = self.write("x", struct.pack("<3f", 1, 2, 3))
        result = self.run_model("scorer", "x=@%s" % raw, "--version=2")
        self.assertEqual(result["outputs"]["y"]["values"], [14, 6])
        self.assertIn("version 2 serves, in place of version 1",
                      self.ctl("model", "activate", "scorer").out)
        self.assertEqual(self.run_model("scorer", "x=1,2,3")["outputs"]["y"]["values"], [14, 6])
        self.ctl("model", "share", "scorer", "--version=1", "--percent=12.5%")
        self.assertIn("version 1 serves 12.5% of the requests", self.ctl("model", "describe", "scorer").out)
        self.ctl("model", "share", "scorer", "--version=2", "--percent=1", code=REFUSED)
        self.ctl("model", "share", "scorer", "--version=1", "--percent=101", code=USAGE)
        self.ctl("model", "activate", "scorer", "--bake=1h", "--on_regression=roll_back", "--min_tasks=10")
        self.assertNotIn("of the requests", self.ctl("model", "describe", "scorer").out)
        self.ctl("model", "activate", "scorer", "--max_mismatch_rate=1%", code=USAGE)
        self.ctl("model", "rollback", "scorer")
        self.assertEqual(self.states(), {1: "active", 2: "previous"})
        self.ctl("model", "rollback", "scorer", "--revision=1", code=REFUSED)
        self.ctl("model", "remove", "scorer", "--version=1", code=REFUSED)
        self.ctl("model", "remove", "scorer", "--version=2")
        self.assertEqual(self.states(), {1: "active"})

    def test_what_is_wrong(self):
        graph = self.write("scorer.json", json.dumps(GRAPH))
        self.ctl("model", "load", graph, code=USAGE)
        self.assertIn("for models in the form of ONNX",
                      self.ctl("model", "load", graph, "--name=scorer", "--sizes=n=1", code=USAGE).err)
        self.ctl("model", "load", self.folder / "none.json", "--name=scorer", code=USAGE)
        weights = self.write("other.safetensors", safetensors(v=ROWS))
        result = self.daemon.ctl("model", "load", graph, "--name=scorer", "--weights=%s" % weights)
        self.assertIn("has no tensor 'w'", self.check(result, USAGE).err)
        self.assertIn("weight 'w' has 24 bytes, and 0",
                      self.ctl("model", "load", graph, "--name=scorer", code=REFUSED).err)
        wrong = dict(GRAPH, nodes=[dict(GRAPH["nodes"][0], operator="gemw"), GRAPH["nodes"][1]])
        path = self.write("wrong.json", json.dumps(wrong))
        good = self.write("scorer.safetensors", safetensors(w=ROWS))
        result = self.daemon.ctl("model", "load", path, "--name=scorer", "--weights=%s" % good)
        self.assertIn("gemw", self.check(result, FAILED).out)
        self.assertIn("there is no model", self.ctl("model", "run", "scorer", code=REFUSED).err)
        self.check(self.load(ROWS), OK)
        for words, part in ((("x=1,2,3", "z=@none"), "no input 'z'"), (("x=1,2,3", "z=1"), "z"), (("x=1,2",), "shape"), (("x",), "x"),
                            (("x=1,2,3", "--version=7"), "no such version")):
            result = self.daemon.ctl("model", "run", "scorer", *words)
            self.assertIn(result.code, (USAGE, REFUSED), result)
            self.assertIn(part, result.err)

    def test_onnx(self):
        path = self.write("net.onnx", onnx_file.affine(ROWS, [1, -1], location="w.bin"))
        data = self.write("w.bin", struct.pack("<6f", *ROWS[0], *ROWS[1]))
        load = ["model", "load", path, "--name=net"]
        self.assertIn("error MODEL_E107", self.ctl(*load, code=FAILED).out)
        self.ctl(*load, "--data=%s" % data)
        self.assertEqual(self.run_model("net", "x=1,2,3,-1,0,0")["outputs"]["y"]["values"], [8, 2, 0, 0])
        self.assertIn("[1-64, 3]", self.ctl("model", "describe", "net").out)
        for flag, part in (("--sizes=batch", "--sizes needs NAME=VALUE"), ("--sizes=batch=a", "needs numbers"),
                           ("--fixed=x", "--fixed needs NAME=VALUE"), ("--data=%s" % path, "two files"),
                           ("--sizes=a=1,a=2", "'a' twice"), ("--weights=%s" % data, "are for graphs")):
            self.assertIn(part, self.ctl(*load, flag, code=USAGE).err)
        self.ctl(*load, "--data=%s" % data, "--sizes=batch=2", "--activate=false")
        self.assertEqual(self.states("net"), {1: "active", 2: "loaded"})
        result = self.ctl(*load, "--data=%s" % data, "--fixed=a=1;b=2,3", code=FAILED)
        self.assertIn("error MODEL_E108", result.out)
        self.ctl(*load, "--data=%s" % data, "--fixed=x=1,2,3", "--sizes=batch=1", code=FAILED)

    def test_plans(self):
        path = self.write("tokens.onnx", onnx_file.tokens([[1, 0], [0, -1]]))
        load = ["model", "load", path, "--name=tokens"]
        self.assertIn("--max seq=512", self.ctl(*load, code=FAILED).out)
        self.ctl(*load, "--max=seq=8", "--max_batch=4", "--warmup=x=1x2x2,1x5x2")
        text = self.ctl("model", "describe", "tokens").out
        for part in ("[1-4, 1-8, 2]", "size    seq       1-8", "seq=5", "seq=2", "0 requests waited for a plan"):
            self.assertIn(part, text)
        for values in ([3, 4, -5, -6], [1, -1] * 3):
            found = self.run_model("tokens", "x=" + ",".join(map(str, values)))["outputs"]["y"]
            self.assertEqual(found["shape"], [1, len(values) // 2, 2])
            self.assertEqual(found["values"], [max(x * (-1) ** i, 0) for i, x in enumerate(values)])
        self.assertIn("1 requests waited for a plan", self.ctl("model", "describe", "tokens").out)
        self.assertIn("seq is 9, the model was loaded for 8",
                      self.ctl("model", "run", "tokens", "x=" + ",".join("1" * 18), code=REFUSED).err)
        for flag, part in (("--max=seq", "--max needs NAME=VALUE"), ("--max=seq=a", "--max needs numbers"),
                           ("--max=a=1,a=2", "--max has 'a' twice"), ("--warmup=x", "--warmup needs NAME=VALUE"),
                           ("--warmup=x=1x2xa", "--warmup needs shapes"), ("--warmup=x=1x2x2;x=1x3x2", "'x' twice")):
            self.assertIn(part, self.ctl(*load, flag, code=USAGE).err)
        self.assertIn("is 9 and must be 1 to 8",
                      self.ctl(*load, "--max=seq=8", "--warmup=x=1x9x2", code=REFUSED).err)


if __name__ == "__main__":
    unittest_main.main()
