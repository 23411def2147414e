#!/usr/bin/env python3
"""`residentctl graph`: graphs in files, on a real daemon.

The last line is `N passed, N failed`.
"""

import copy
import json
import math
import os
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, REFUSED, USAGE  # noqa: E402

FORMAT = pathlib.Path(os.environ.get("GRAPH_FORMAT") or "docs/graph_format.md").resolve()
# tests/graph/llama_test.py tests the section about decoding, which needs a model.
TUTORIAL = re.sub(r"(?ms)^## A decode\n.*?(?=^## )", "", FORMAT.with_name("graphs.md").read_text())
# The example in the documentation.
EXAMPLE = json.loads(re.search(r"```json\n(.*?)```", FORMAT.read_text(), re.S).group(1))


def changed(change):
    graph = copy.deepcopy(EXAMPLE)
    change(graph)
    return json.dumps(graph)


class Files(daemons.CommandTest):
    """What is found without a daemon."""

    def test_file_that_is_not_json(self):
        result = self.check(daemons.ctl("graph", "validate", "-", stdin="{\"nodes\": [}"), USAGE)
        self.assertIn("GRAPH_E101", result.err)
        self.assertIn("Fix: ", result.err)

    def test_unknown_field_has_its_own_code(self):
        text = changed(lambda graph: graph["nodes"][0].update(opperator="add"))
        result = self.check(daemons.ctl("graph", "validate", "-", stdin=text), USAGE)
        self.assertIn("GRAPH_E108", result.err)
        self.assertIn("opperator", result.err)

    def test_import_needs_a_file(self):
        self.check(daemons.ctl("graph", "import"), USAGE)

    def test_import_of_a_damaged_file(self):
        result = self.check(daemons.ctl("graph", "import", "--amk", "-", stdin="{\"tasks\": [}"), USAGE)
        self.assertIn("byte 12", result.err)
        self.assertIn("Fix: ", result.err)

    def test_unknown_enum_value(self):
        text = changed(lambda graph: graph["tensors"][0].update(kind="KIND_BUFFER"))
        self.check(daemons.ctl("graph", "validate", "-", stdin=text), USAGE)


# Names of the parameters of the operators that imported tasks call below; "=" marks those that are
# written.
PARAMETERS = {
    "attention_combine": "acc largest sum =out",
    "attention_partial": "q k v mask =acc =largest =sum scale",
    "copy": "x =out",
    "gemv_quant": "x q scales zeros =out group",
    "mul": "x y =out",
    "rope": "x freqs =out offset layout",
    "rope_freqs": "=out base",
}


def positions(shape, strides, offset):
    """Returns the positions of a view's elements, in row-major order."""
    found = [offset]
    for size, stride in zip(shape, strides):
        found = [at + i * stride for at in found for i in range(size)]
    return found


def dense(shape):
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


class ImportedTasks(daemons.DaemonTest):
    """The operators of imported tasks compute what AMK's opcodes mean."""

    def compute(self, buffers, tasks):
        """Imports tasks and runs their nodes one after the other. `buffers`: (kind, dtype, shape,
        values). Returns the values of the last buffer."""
        amk = {"buffers": [], "counters": [], "tasks": []}
        for index, (kind, dtype, shape, _) in enumerate(buffers):
            amk["buffers"].append({"id": index, "name": f"b{index}", "kind": kind, "dtype": dtype,
                                   "shape": shape})
        for index, (op, inputs, output, params) in enumerate(tasks):
            waits = [{"counter": index - 1, "threshold": 1}] if index else []
            amk["counters"].append({"id": index, "init": 0})
            amk["tasks"].append({"id": index, "op": op, "inputs": inputs, "outputs": [output],
                                 "out_counter": index, "waits": waits, "params": params})
        text = self.ctl("graph", "import", "--amk", "-", stdin=json.dumps(amk)).out
        self.ctl("graph", "validate", "-", stdin=text)
        graph = json.loads(text)
        memory = {}
        for tensor in graph["tensors"]:
            shape = [int(dim["size"]) for dim in tensor["shape"]]
            memory[tensor["name"]] = (tensor["dtype"][6:].lower(), shape, [0] * math.prod(shape))
        for index, (_, _, _, values) in enumerate(buffers):
            if values:
                memory[f"b{index}"][2][:] = values
        for node in graph["nodes"]:
            self.execute(node, memory)
        return memory[f"b{len(buffers) - 1}"][2]

    def execute(self, node, memory):
        words, results = [], []
        for name, argument in zip(PARAMETERS[node["operator"]].split(), node["arguments"]):
            if "none" in argument:
                words.append(f"{name}:f16=0*0" if name == "zeros" else f"{name}=0*0")
            elif "tensor" in argument:
                view = argument["tensor"]
                dtype, shape, values = memory[view["name"]]
                strides = dense(shape)
                if "shape" in view:
                    shape = [int(dim["size"]) for dim in view["shape"]]
                    strides = [int(stride) for stride in view["strides"]]
                places = positions(shape, strides, int(view.get("offset", 0)))
                spec = f"{dtype}:{'x'.join(map(str, shape))}"
                if name[0] == "=":
                    words.append(f"{name[1:]}:{spec}=")
                    results.append((name[1:], values, places))
                else:
                    words.append(f"{name}:{spec}=" + ",".join(str(values[i]) for i in places))
            else:
                words.append(f"{name}={argument.get('i64', argument.get('f64'))}")
        outputs = self.ctl("run", node["operator"], *words, "--json").json["outputs"]
        for name, values, places in results:
            for place, value in zip(places, outputs[name]["values"]):
                values[place] = value

    def assertNear(self, got, expected):
        self.assertEqual(len(got), len(expected))
        for a, b in zip(got, expected):
            self.assertAlmostEqual(a, b, delta=1e-4 * max(1, abs(b)))

    def test_rope(self):
        x = [1, 2, 3, 4, 5, 6, 7, 8]
        got = self.compute([("IO_INPUT", "F32", [2, 1, 4], x), ("IO_INPUT", "I32", [2], [3, 7]),
                            ("IO_OUTPUT", "F32", [2, 1, 4], None)],
                           [("ROPE", [0, 1], 2, {"head_dim": 4, "theta": 100.0})])
        expected = []
        for row, position in enumerate([3, 7]):
            a, b = x[4 * row:4 * row + 2], x[4 * row + 2:4 * row + 4]
            angles = [position * 100.0 ** (-i / 2) for i in range(2)]
            expected += [p * math.cos(t) - q * math.sin(t) for p, q, t in zip(a, b, angles)]
            expected += [q * math.cos(t) + p * math.sin(t) for p, q, t in zip(a, b, angles)]
        self.assertNear(got, expected)

    def test_int4_tile(self):
        levels = [[-8, 7, 3, -1], [1, 2, -3, 4]]
        packed = [(row[i] + 8) | (row[i + 1] + 8) << 4 for row in levels for i in (0, 2)]
        got = self.compute(
            [("IO_INPUT", "F32", [1, 4], [1, 2, 3, 4]), ("WEIGHT", "I4", [2, 4], packed),
             ("WEIGHT", "F16", [2, 2], [0.5, 2, 1, 0.25]), ("IO_OUTPUT", "F32", [1, 2], None)],
            [("GEMV_TILE", [0, 1, 2], 3, {"K": 4, "N_tile": 1, "n_off": first, "qdtype": 7, "group": 2})
             for first in (0, 1)])
        self.assertNear(got, [0.5 * (-8 + 14) + 2 * (9 - 4), 5 + 0.25 * (-9 + 16)])

    def test_partial_attention_and_combine(self):
        q = [1, 0, 0.5, -1, 2, 1, 0, 1]
        k = [math.sin(i) for i in range(4 * 2 * 2)]
        v = [math.cos(i) for i in range(4 * 2 * 2)]
        params = {"head_dim": 2, "n_heads": 4, "n_kv_heads": 2}
        window = dict(params, kv_len=2, scale=0.7, flags=2)
        got = self.compute(
            [("IO_INPUT", "F32", [4, 2], q), ("IO_INPUT", "F32", [4, 2, 2], k),
             ("IO_INPUT", "F32", [4, 2, 2], v), ("ACTIVATION", "F32", [4, 4], None),
             ("ACTIVATION", "F32", [4, 4], None), ("IO_OUTPUT", "F32", [1, 8], None)],
            [("ATTENTION_TILE", [0, 1, 2], 3, dict(window, kv_start=0)),
             ("ATTENTION_TILE", [0, 1, 2], 4, dict(window, kv_start=2)),
             ("ATTENTION_COMBINE", [3, 4], 5, params)])
        expected = []
        for head in range(4):
            at = [row * 4 + head // 2 * 2 for row in range(4)]
            weights = [math.exp(0.7 * sum(q[2 * head + d] * k[i + d] for d in range(2))) for i in at]
            expected += [sum(w * v[i + d] for w, i in zip(weights, at)) / sum(weights)
                         for d in range(2)]
        self.assertNear(got, expected)


class Graphs(daemons.DaemonTest):
    """Graphs on a daemon."""

    def validate(self, text, code):
        return self.ctl("graph", "validate", "-", stdin=text, code=code)

    def test_example_of_the_documentation_is_accepted(self):
        out = self.validate(json.dumps(EXAMPLE), OK).out
        self.assertIn("graph step accepted: 0 errors, 0 warnings; 3 nodes, 2 dependencies, "
                      "longest chain 3", out)

    def test_all_errors_of_a_graph_are_printed(self):
        def change(graph):
            graph["tensors"][3]["shape"][2]["size"] = 64
            graph["nodes"][2]["operator"] = "ad"

        out = self.validate(changed(change), FAILED).out
        self.assertRegex(out, r"error GRAPH_E203 node append tensor cache: .*rows 0 to 127.*Fix: ")
        self.assertRegex(out, r"error GRAPH_E104 node sum: .*did you mean 'add'")
        self.assertIn("refused", out)

    def test_report_as_json(self):
        text = changed(lambda graph: graph["nodes"].reverse())
        report = self.ctl("graph", "validate", "-", "--json", stdin=text, code=FAILED).json
        self.assertFalse(report["accepted"])
        self.assertIn("GRAPH_E401", [finding["code"] for finding in report["findings"]])
        for finding in report["findings"]:
            self.assertIn("Fix: ", finding["message"])

    def test_show_prints_the_derived_order(self):
        out = self.ctl("graph", "show", "-", stdin=json.dumps(EXAMPLE)).out
        self.assertRegex(out, r"(?m)^ +1 +append +kv_append\(kv, cache, pos\)$")
        self.assertRegex(out, r"(?m)^ +2 +attend +attention\(.*kv_len=pos \+ 1\) +append$")
        self.assertRegex(out, r"(?m)^ +3 +sum +add\(residual, attended, out\) +attend$")
        self.assertIn("loop of up to 128 steps", out)

    def test_fused_nodes(self):
        def tensor(name, kind, *shape, dtype="DTYPE_F32"):
            return {"name": name, "kind": "KIND_" + kind, "dtype": dtype,
                    "shape": [{"size": size} for size in shape]}

        def node(name, operator, *tensors):
            return {"name": name, "operator": operator, "arguments": [
                {"tensor": {"name": each}} if each else {"none": True} for each in tensors]}

        graph = {
            "name": "layer", "format": 1,
            "tensors": [tensor("x", "INPUT", 1, 32), tensor("scale", "INPUT", 32, dtype="DTYPE_F16"),
                        tensor("w", "INPUT", 32, 32, dtype="DTYPE_F16"), tensor("normed", "ACTIVATION", 1, 32),
                        tensor("product", "ACTIVATION", 1, 32), tensor("y", "OUTPUT", 1, 32)],
            "nodes": [node("norm", "rmsnorm", "x", "scale", "normed"),
                      node("times", "gemv", "normed", "w", None, "product"),
                      node("sum", "add", "product", "x", "y")],
        }
        values = ("x=2*32", "scale=1*32", "w=1*1024")
        text = json.dumps(graph)
        table = r"(?m)^EXECUTED BY +NODES\nrmsnorm_gemv +norm, times, sum$"
        self.assertRegex(self.ctl("graph", "show", "-", stdin=text).out, table)
        self.assertNotIn("EXECUTED", self.ctl("graph", "show", "-", "--fuse=false", stdin=text).out)
        self.assertIn("3 nodes, executed as 1, 2 dependencies, longest chain 3",
                      self.validate(text, OK).out)
        self.assertIn("3 nodes, 2 dependencies", self.ctl("graph", "validate", "-", "--fuse=false", stdin=text).out)
        # The same values, of other operators.
        for flags, operators in (((), {"rmsnorm_gemv"}), (("--fuse=false",), {"rmsnorm", "gemv", "add"})):
            out = self.ctl("graph", "run", "-", "--json", *flags, *values, stdin=text).json
            self.assertEqual({each["operator"] for each in out["versions"]}, operators)
            for value in out["outputs"]["y"]["values"]:
                self.assertAlmostEqual(value, 34, delta=0.01)
            traced, slices = self.trace(graph, *flags, *values)
            self.assertEqual({each["operator"] for each in traced["operators"]}, operators)
            self.assertEqual({event["name"] for event in slices},
                             {"norm", "times", "sum"} if flags else {"sum"})
        # Loaded graphs.
        ids = []
        for flags in ((), ("--fuse=false",)):
            loaded = self.ctl("graph", "load", "-", "--json", *flags, stdin=text).json
            ids.append(loaded["graph_id"])
            self.assertEqual(len(loaded["report"].get("fusions", [])), 0 if flags else 1)
            out = self.ctl("graph", "run", ids[-1], "--json", *values).json
            self.assertEqual(len(out["versions"]), 3 if flags else 1)
        self.assertNotEqual(*ids)
        result = self.ctl("graph", "run", ids[0], "--fuse=false", *values, code=USAGE)
        self.assertIn("is loaded", result.err)
        self.assertIn("Fix: ", result.err)
        for each in ids:
            self.ctl("graph", "unload", each)

    def test_show_as_dot(self):
        out = self.ctl("graph", "show", "-", "--dot", stdin=json.dumps(EXAMPLE)).out
        self.assertTrue(out.startswith('digraph "step" {'))
        self.assertIn("n0 -> n1;", out)
        self.assertIn("n1 -> n2;", out)

    def test_show_as_svg(self):
        out = self.ctl("graph", "show", "-", "--svg", stdin=json.dumps(EXAMPLE)).out
        root = xml.etree.ElementTree.fromstring(out)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(len(titles), 3)
        self.assertEqual(titles[0], "append: kv_append(kv, cache, pos = pos)")
        self.assertEqual(out, self.ctl("graph", "show", "-", "--svg", stdin=json.dumps(EXAMPLE)).out)

    def test_svg_of_hostile_names_is_well_formed(self):
        name = "</text><script>\"'&]]>\u202e\u0007"
        text = changed(lambda graph: (graph.update(name=name), graph["nodes"][0].update(name=name)))
        out = self.ctl("graph", "show", "-", "--svg", stdin=text).out
        root = xml.etree.ElementTree.fromstring(out)
        self.assertEqual([e.tag for e in root.iter() if e.tag.endswith("script")], [])

    def test_show_as_two_pictures(self):
        result = self.ctl("graph", "show", "-", "--svg", "--dot", stdin="{}", code=USAGE)
        self.assertIn("exclude", result.err)

    def test_picture_as_json(self):
        drawn = self.ctl("graph", "show", "-", "--svg", "--json", stdin=json.dumps(EXAMPLE)).json
        self.assertTrue(drawn["report"]["accepted"])
        self.assertTrue(drawn["picture"].startswith("<svg "))

    def test_svg_of_a_refused_graph_prints_its_findings(self):
        text = changed(lambda graph: graph["nodes"].clear())
        out = self.ctl("graph", "show", "-", "--svg", stdin=text, code=FAILED).out
        self.assertIn("GRAPH_E107", out)

    def test_show_of_a_refused_graph_prints_its_findings(self):
        text = changed(lambda graph: graph["nodes"].clear())
        self.assertIn("GRAPH_E107", self.ctl("graph", "show", "-", stdin=text, code=FAILED).out)

    def test_imported_graph_of_amk_is_accepted(self):
        def buffer(index, kind):
            return {"id": index, "name": f"b{index}", "kind": kind, "dtype": "F32", "shape": [1, 8],
                    "space": "HBM", "source": None}

        def task(index, op, inputs, output, waits):
            return {"id": index, "op": op, "inputs": inputs, "outputs": [output], "out_counter": index,
                    "waits": [{"counter": wait, "threshold": 1} for wait in waits], "params": {},
                    "sm": None}

        amk = {
            "ir_version": "0.2.0", "abi_version": "0.2", "meta": {"name": "small"}, "target": None,
            "buffers": [buffer(0, "IO_INPUT"), buffer(1, "ACTIVATION"), buffer(2, "IO_OUTPUT")],
            "counters": [{"id": 0, "init": 0, "note": ""}, {"id": 1, "init": 0, "note": ""}],
            "tasks": [task(0, "GELU", [0], 1, []), task(1, "ADD", [0, 1], 2, [0])],
        }
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "amk.json"), pathlib.Path(folder, "graph.json")
            source.write_text(json.dumps(amk))
            self.ctl("graph", "import", "--amk", str(source), "--out", str(target))
            self.assertIn("graph small accepted", self.ctl("graph", "validate", str(target)).out)
            printed = self.ctl("graph", "import", "--amk", str(source)).out
            self.assertEqual(json.loads(printed), json.loads(target.read_text()))

    def test_installed_operator_can_be_called(self):
        self.ctl("ops", "install", "twice", "--expr", "x + x", "--wait=active")
        tensor = {"dtype": "DTYPE_F32", "shape": [{"size": 8}]}
        graph = {
            "format": 1,
            "tensors": [dict(tensor, name="a", kind="KIND_INPUT"),
                        dict(tensor, name="b", kind="KIND_OUTPUT")],
            "nodes": [{"operator": "twice",
                       "arguments": [{"tensor": {"name": "a"}}, {"tensor": {"name": "b"}}]}],
        }
        self.validate(json.dumps(graph), OK)
        graph["nodes"][0]["version"] = 9
        self.assertIn("GRAPH_E104", self.validate(json.dumps(graph), FAILED).out)

    def test_request_without_a_graph_is_served_as_an_empty_one(self):
        self.assertIn("GRAPH_E107", self.validate("{\"format\": 1}", FAILED).out)

    def test_commands_of_the_tutorial(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        for name, text in re.findall(r"```json (\S+)\n(.*?)```", TUTORIAL, re.S):
            (folder / name).write_text(text)
        outs = []
        for block in re.findall(r"```console\n(.*?)```", TUTORIAL, re.S):
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ residentctl "))
                words = [str(folder / word) if word.endswith(".json") else word for word in words]
                outs.append(self.ctl(*words).out)
        self.assertEqual(len(outs), 9)
        self.assertIn("accepted", outs[0])
        self.assertRegex(outs[1], r"y +f32 +2x4 +0\.5806.* 2\.646")
        self.assertRegex(outs[1], r"pooled +f32 +4 +0\.2155.* 2\.646")
        self.assertIn("1 step (all steps), 5 tasks", outs[1])
        self.assertIn("</svg>", outs[3])
        self.assertRegex(outs[2], r"step 0: value 1\nstep 1: value 21\nstep 2: value 41\n")
        self.assertRegex(outs[4], r"loaded: [0-9a-f]{64}\n")
        self.assertRegex(outs[5], r"y +f32 +2x4 +0\.5806.* 2\.646")
        self.assertRegex(outs[6], r"feature +ready +5 ")
        self.assertRegex(outs[7], r"unloaded [0-9a-f]{64}\n")
        self.assertRegex(outs[8], r"(?m)^rmsnorm +1 .*%.*%$")
        self.assertRegex(outs[8], r"(?m)^mean +1 .*%.*%$")
        self.assertRegex(outs[8], r"(?m)^\(all\) +5 ")
        self.assertIn("traceEvents", (folder / "trace.json").read_text())

    def test_program_of_the_tutorial(self):
        """The C++ program in the documentation is the one that is compiled, and it works."""
        shown = re.search(r"```cpp\n(.*?)```", TUTORIAL, re.S).group(1)
        self.assertEqual(shown, pathlib.Path("client/graph_example.cc").read_text())
        example = daemons.program("RESIDENTD_GRAPH_EXAMPLE", "client/graph_example")
        done = subprocess.run([str(example), self.daemon.address], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual((done.returncode, done.stdout),
                         (0, "11 22 33 44\n42 84 126 168\n93 186 279 372\n"), done)

    def test_run_of_a_decoder_step_by_step(self):
        # Attention over equal rows returns the row; the residual is added.
        out = self.ctl("graph", "run", "-", "--json", "--steps=3", "pos=0", "q=0.1*256", "kv=2*256",
                       "residual=0.5*256", stdin=json.dumps(EXAMPLE)).json
        self.assertEqual(out["steps"], 3)
        self.assertEqual(out["end"], "END_STEPS")
        self.assertEqual(out["outputs"]["out"]["values"], [2.5] * 256)
        self.assertEqual({v["operator"]: v["tasks"] for v in out["versions"]},
                         {"kv_append": 3, "attention": 3, "add": 3})

    def test_steps_as_json(self):
        graph = re.search(r"```json loop.json\n(.*?)```", TUTORIAL, re.S).group(1)
        out = self.ctl("graph", "run", "-", "--json", "--steps=3", "pos=0", stdin=graph).out
        decoder, values = json.JSONDecoder(), []
        while out:  # A line for each step, then the result.
            value, end = decoder.raw_decode(out)
            values.append(value)
            out = out[end:].lstrip()
        fill = {"operator": "fill", "version": 1}
        self.assertEqual([(each["step"], each["records"]["value"]["values"], each["versions"])
                          for each in values[:-1]],
                         [(step, [20 * step + 1], [dict(fill, tasks=1)]) for step in range(3)])
        self.assertEqual(values[-1]["versions"], [dict(fill, tasks=3)])

    def trace(self, graph, *words, daemon=None, code=OK):
        """The printed table, and the slices of the file."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        result = (daemon or self.daemon).ctl("graph", "trace", "-", "--json", *words,
                                             f"--out={folder / 'trace.json'}", stdin=json.dumps(graph))
        self.check(result, code)
        if code != OK:
            self.assertFalse((folder / "trace.json").exists())
            return result, []
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        names = {event["tid"] for event in events if event["name"] == "thread_name"}
        slices = [event for event in events if event["ph"] == "X"]
        self.assertEqual(names, {event["tid"] for event in slices})
        for event in slices:
            event["begin_ns"] = round(event["ts"] * 1000)
            event["end_ns"] = event["begin_ns"] + round(event["dur"] * 1000)
        return result.json, slices

    def test_trace(self):
        steps = 5
        table, slices = self.trace(EXAMPLE, f"--steps={steps}", "pos=0", "q=0.1*256", "kv=2*256",
                                   "residual=0.5*256")
        # A worker does one thing at a time.
        ended = {}
        for event in sorted(slices, key=lambda event: event["begin_ns"]):
            self.assertGreaterEqual(event["begin_ns"], ended.get(event["tid"], 0))
            ended[event["tid"]] = event["end_ns"]
        # Each node of each step, after the node before it.
        operators = [node["operator"] for node in EXAMPLE["nodes"]]
        nodes = {}
        for event in slices:
            args = event["args"]
            self.assertEqual(args["operator"], operators[args["node"]])
            self.assertEqual(args["version"], 1)
            self.assertEqual(event["name"], EXAMPLE["nodes"][args["node"]]["name"])
            nodes.setdefault((args["step"], args["node"]), []).append(event)
        self.assertEqual(sorted(nodes), [(step, node) for step in range(steps) for node in range(3)])
        before = 0
        for _, events in sorted(nodes.items()):
            self.assertEqual(sorted(event["args"]["chunk"] for event in events),
                             list(range(len(events))))
            self.assertGreaterEqual(min(event["begin_ns"] for event in events), before)
            before = max(event["end_ns"] for event in events)
        # The sums of the table are those of the slices.
        self.assertEqual((table["steps"], table["dropped_chunks"]), (steps, 0))
        self.assertEqual(table["chunks"], len(slices))
        self.assertEqual(table["workers"], len(ended))
        for row in table["operators"]:
            of_row = [event for event in slices if event["args"]["operator"] == row["operator"]]
            self.assertEqual(row["chunks"], len(of_row))
            self.assertEqual(row["work_ns"], sum(e["end_ns"] - e["begin_ns"] for e in of_row))
            self.assertEqual(row["waiting_ns"], sum(e["args"]["waiting_ns"] for e in of_row))
            self.assertGreaterEqual(row["work_ns"], row["critical_ns"])
        for column in ("work_ns", "waiting_ns"):
            self.assertEqual(table[column], sum(row[column] for row in table["operators"]))
        self.assertEqual(table["critical_path_ns"] - table["critical_gap_ns"],
                         sum(row["critical_ns"] for row in table["operators"]))
        # In a chain, the path is all of the step.
        self.assertEqual(table["critical_path_ns"], sum(
            max(e["end_ns"] for e in slices if e["args"]["step"] == step) -
            min(e["begin_ns"] for e in slices if e["args"]["step"] == step and
                e["args"]["critical_path"]) for step in range(steps)))

    def test_trace_of_a_loaded_graph_with_a_stream(self):
        graph = json.loads(re.search(r"```json loop.json\n(.*?)```", TUTORIAL, re.S).group(1))
        self.ctl("graph", "load", "-", stdin=json.dumps(dict(graph, name="traced")))
        self.addCleanup(self.ctl, "graph", "unload", "traced")
        table = self.ctl("graph", "trace", "traced", "pos=0", "--json").json
        self.assertEqual({row["operator"]: row["chunks"] for row in table["operators"]},
                         {"fill": 8, "copy": 8})
        _, slices = self.trace(graph, "pos=0", "--steps=2")
        self.assertEqual(sorted((e["args"]["step"], e["name"]) for e in slices),
                         [(0, "record of value"), (0, "write"), (1, "record of value"), (1, "write")])

    def test_trace_writes_outputs(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        out = self.ctl("graph", "trace", "-", "--steps=1", "pos=0", "q=0.1*256", "kv=2*256",
                       "residual=0.5*256", f"out=@{folder / 'out.f32'}", stdin=json.dumps(EXAMPLE)).out
        self.assertEqual((folder / "out.f32").read_bytes(), struct.pack("<256f", *[2.5] * 256))
        self.assertRegex(out, r"(?m)^OPERATOR +CHUNKS +WORK +SHARE +WAITING +CRITICAL PATH +SHARE$")
        self.assertRegex(out, r"(?m)^attention +\d+ .*%.*%$")
        self.assertRegex(out, r"(?m)^\(between chunks\) ")
        self.assertRegex(out, r"1 step on device 0, [12] workers?\n$")

    def test_trace_with_missing_chunks(self):
        daemon = daemons.Daemon("--staging_mib=1", "--cpu_workers=1")
        self.addCleanup(daemon.stop)
        tensor = {"dtype": "DTYPE_F32", "shape": [{"size": 1}]}
        node = {"operator": "relu", "arguments": [{"tensor": {"name": "a"}}, {"tensor": {"name": "b"}}]}
        graph = {"format": 1, "tensors": [dict(tensor, name="a", kind="KIND_INPUT"),
                                          dict(tensor, name="b", kind="KIND_OUTPUT")],
                 "nodes": [node] * 4000}
        # On a slow machine the step can be divided into quanta in which there is room.
        for _ in range(100):
            table, _ = self.trace(graph, "a=1", daemon=daemon)
            self.assertEqual(table["chunks"] + table["dropped_chunks"], 4000)
            if table["dropped_chunks"] > 0:
                break
        self.assertGreater(table["dropped_chunks"], 0)
        for _ in range(100):
            out = daemon.ctl("graph", "trace", "-", "a=1", stdin=json.dumps(graph)).out
            if "are missing" in out:
                break
        self.assertRegex(out, r"\d chunks are missing, because")

    def test_trace_needs_a_run_in_the_engine(self):
        daemon = daemons.Daemon("--graphs_in_engine=false")
        self.addCleanup(daemon.stop)
        result, _ = self.trace(EXAMPLE, "pos=0", "q=0.1*256", "kv=2*256", "residual=0.5*256",
                               daemon=daemon, code=REFUSED)
        self.assertIn("the run cannot be traced, because it is executed node by node", result.err)
        self.assertIn("Fix: ", result.err)

    def test_trace_refusals(self):
        text = changed(lambda graph: graph["nodes"].reverse())
        result = self.ctl("graph", "trace", "-", stdin=text, code=FAILED)
        self.assertIn("GRAPH_E4", result.out)
        self.assertIn("no tensor or scalar 'qq'",
                      self.ctl("graph", "trace", "-", "qq=1", stdin=json.dumps(EXAMPLE), code=USAGE).err)
        self.assertIn("cannot write", self.ctl("graph", "trace", "-", "--out=/nonexistent/x",
                                               stdin=json.dumps(EXAMPLE), code=USAGE).err)
        self.assertIn("'q' is an input", self.ctl("graph", "trace", "-", "pos=0",
                                                  stdin=json.dumps(EXAMPLE), code=REFUSED).err)

    def test_run_with_files_and_buffers(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        (folder / "kv.f32").write_bytes(struct.pack("<256f", *[3.0] * 256))
        self.ctl("graph", "run", "-", "--steps=1", "pos=0", "q=0.1*256",
                 f"kv=@{folder / 'kv.f32'}", "residual=1*256", f"out=@{folder / 'out.f32'}",
                 stdin=json.dumps(EXAMPLE))
        self.assertEqual((folder / "out.f32").read_bytes(), struct.pack("<256f", *[4.0] * 256))

    def test_loaded_graphs(self):
        def load(graph):
            return self.ctl("graph", "load", "-", "--json", stdin=json.dumps(graph)).json

        other = dict(EXAMPLE, name="other")
        loaded = load(EXAMPLE)
        graph_id = loaded["graph_id"]
        self.assertTrue(loaded["report"]["accepted"])
        self.assertTrue(load(EXAMPLE)["already_loaded"])
        self.assertIn("was loaded already",
                      self.ctl("graph", "load", "-", stdin=json.dumps(EXAMPLE)).out)
        other_id = load(other)["graph_id"]
        words = ("--json", "--steps=1", "pos=0", "q=0.1*256", "kv=2*256", "residual=0.5*256")
        for name in (graph_id, graph_id[:10], "step"):
            out = self.ctl("graph", "run", name, *words).json
            self.assertEqual(out["outputs"]["out"]["values"], [2.5] * 256)
        listed = {graph["graph_id"]: graph for graph in self.ctl("graph", "list", "--json").json}
        self.assertEqual(listed[graph_id]["state"], "ready")
        self.assertEqual(int(listed[graph_id]["runs"]), 3)
        self.assertEqual(listed[other_id]["name"], "other")
        described = self.ctl("graph", "describe", graph_id[:8]).out
        self.assertIn(graph_id, described)
        self.assertIn("kv_append(kv, cache, pos)", described)
        self.assertEqual(
            self.ctl("graph", "describe", "other", "--json").json["graph"]["name"], "other")
        # Two graphs of one name.
        again = dict(other, scalars=[dict(EXAMPLE["scalars"][0], initial=0)])
        again_id = load(again)["graph_id"]
        self.assertIn("2 loaded graphs", self.ctl("graph", "unload", "other", code=REFUSED).err)
        for name in (again_id, "other", "step"):
            self.assertTrue(self.ctl("graph", "unload", name, "--json").json["removed"])
        for command in ("describe", "unload", "run"):
            error = self.ctl("graph", command, "step", code=REFUSED).err
            self.assertIn("no graph with the id or name 'step'", error)
            self.assertIn("Fix: ", error)

    def test_a_refused_graph_is_not_loaded(self):
        text = changed(lambda graph: graph["nodes"].reverse())
        result = self.ctl("graph", "load", "-", stdin=text, code=FAILED)
        self.assertIn("GRAPH_E4", result.out)
        self.assertNotIn("loaded:", result.out)

    def test_run_refusals(self):
        def run(*words, code):
            return self.ctl("graph", "run", "-", *words, stdin=json.dumps(EXAMPLE), code=code)

        self.assertIn("no tensor or scalar 'qq'", run("qq=1", code=USAGE).err)
        self.assertIn("'pos'", run("pos=abc", code=USAGE).err.replace("for pos", "'pos'"))
        self.assertIn("pos", run("pos=500", code=REFUSED).err)
        self.assertIn("'q' is an input", run("pos=0", code=REFUSED).err)

    def test_file_larger_than_a_message(self):
        daemon = daemons.Daemon("--max_message_mib=1")
        self.addCleanup(daemon.stop)
        node = dict(EXAMPLE["nodes"][2], name="")
        text = changed(lambda graph: graph["nodes"].extend([node] * 40000))
        self.check(daemon.ctl("graph", "validate", "-", stdin=text), REFUSED)


if __name__ == "__main__":
    unittest_main.main()
