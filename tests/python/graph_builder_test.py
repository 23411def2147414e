#!/usr/bin/python3
"""GraphBuilder: graphs that the daemon runs, what is refused, and the JSON form."""

import dataclasses
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

import residentd.signature  # noqa: E402
from graph_support import GraphTest  # noqa: E402

ROOT = support.HERE.parent.parent
X = np.float32([[1, 2, 3, 4], [-1, 2, -3, 4]])
SIGNATURES = {
    "add": "x: in strided f32[*S~], y: in strided f32[*S~], out: out f32[*S], alpha: scalar f64 = 1",
    "dense": "x: in f32[N], out: out f32[N]",
    "gemv": "x: in f32[*S, K], w: in f32[N, K], bias: in f32[*B], out: out f32[*S, N]",
    "two": "x: in f32[N], a: out f32[N], b: out f32[N]",
    "grow": "x: in f32[N], out: out f32[M]",
    "scale": "x: in f32[*S], out: out f32[*S], s: scalar f32",
    "sum": "x: in f32[*S], out: out f32[*R], axes: scalar u32",
    "update": "x: inout strided f32[N]",
}


def relu(x):
    return np.maximum(x, 0)


class Builder(GraphTest):
    """Graphs that the daemon runs."""

    def run_one(self, b, values=None, **named):
        graph = b.build()
        report = self.rd.graphs.validate(graph)
        self.assertTrue(report.accepted, str(report))
        return self.rd.graphs.run(graph, values, **named)

    def test_a_pipeline_equals_numpy(self):
        b = self.builder("feature")
        eps = b.real("eps", 0, 1, 1e-5)
        x, w = b.input("x", (2, 4)), b.weight("model.w", 4)
        n = b.call("rmsnorm", x, w, eps=eps, node="norm")
        b.output("y", b.call("add", b.call("silu", n), b.call("relu", n)))
        weights = np.float32([1, 2, 3, 4])
        result = self.run_one(b, {"model.w": weights}, x=X, eps=1e-3)
        normal = X / np.sqrt(np.mean(X * X, axis=1, keepdims=True) + 1e-3) * weights
        np.testing.assert_allclose(result.outputs["y"], normal / (1 + np.exp(-normal)) + relu(normal),
                                   rtol=1e-5)
        self.assertEqual((result.steps, result.end, result.records, result.trace),
                         (1, "steps", {}, None))
        self.assertEqual(result.versions, {name: {1: 1} for name in ("rmsnorm", "silu", "relu", "add")})
        self.assertGreater(result.device_ns, 0)

    def test_shapes_and_dtypes_are_inferred(self):
        b = self.builder()
        x, w, column = b.input("x", (2, 3)), b.weight("w", (4, 3)), b.input("column", (2, 1))
        total = b.call("add", b.call("gemv", x, w, None), column)
        half = b.call("copy", total, dtype="bf16")
        self.assertEqual((total.shape, total.dtype, half.shape, half.dtype), ((2, 4), "f32", (2, 4), "bf16"))
        mixed = b.call("add", half, b.call("copy", total, dtype="f16"))
        self.assertEqual(mixed.dtype, "f32")  # As the operator's own calls.
        b.output("y", b.call("copy", half, dtype=np.float32))
        index = b.call("argmax", total, axes=2, shape={"out": 2}, dtype="i64")
        b.output("index", index)
        values = dict(x=np.float32([[1, 2, 3], [4, 5, 6]]),
                      w=np.float32([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]),
                      column=np.float32([[10], [20]]))
        outputs = self.run_one(b, values).outputs
        np.testing.assert_array_equal(outputs["y"], [[11, 12, 13, 16], [24, 25, 26, 35]])
        np.testing.assert_array_equal(outputs["index"], [3, 3])

    def test_parts_of_tensors(self):
        b = self.builder()
        x = b.input("x", (3, 4))
        data = np.arange(12, dtype=np.float32).reshape(3, 4)
        parts = {
            "slice": lambda t: t[1:][:, 2:4], "index": lambda t: t[2], "last": lambda t: t[-1, ..., 1:],
            "transposed": lambda t: t.T[:2], "permuted": lambda t: t.transpose(1, 0),
            "reshaped": lambda t: t.reshape(2, -1), "backwards": lambda t: t[0, ::-1],
            "new": lambda t: t[:, None, 1], "steps": lambda t: t[::2, 1::2],
        }
        for name, part in parts.items():
            self.assertEqual(part(x).shape, part(data).shape, name)
            b.output(name, b.call("relu", part(x)))
        b.output("view", b.call("relu", x.view((2, 3), offset=1, strides=(4, 1))))
        b.output("copied", x[:, 3:])
        twice = b.call("relu", x[0])
        b.output("first", twice)
        b.output("second", twice)
        whole = b.activation("whole", (2, 2))
        b.call("relu", x[:1, :2], out=whole[1:])
        b.call("fill", value=7, out=whole[0])
        b.output("whole.copy", whole)
        outputs = self.run_one(b, x=data).outputs
        for name, part in parts.items():
            np.testing.assert_array_equal(outputs[name], part(data), name)
        np.testing.assert_array_equal(outputs["view"], data[:2, 1:])
        np.testing.assert_array_equal(outputs["copied"], data[:, 3:])
        np.testing.assert_array_equal(outputs["first"], outputs["second"])
        np.testing.assert_array_equal(outputs["whole.copy"], [[7, 7], [0, 1]])

    def test_dimensions_and_values_that_are_scalars(self):
        b = self.builder()
        rows, scale = b.integer("rows", 1, 4), b.real("scale", -10, 10, 1.5)
        x = b.input("x", (rows, 2))
        part = b.call("scale", x, s=1 - np.float32(2) * -scale)
        self.assertIs(part.shape[0], rows)
        b.output("y", part)
        b.output("flat", b.call("relu", x.reshape(rows, 1, 2)))
        b.output("tail", b.call("relu", b.input("all", (5, 2))[1:rows + 1]))
        data = np.arange(8, dtype=np.float32).reshape(4, 2)
        for count in (4, 2):
            outputs = self.run_one(b, x=data[:count], all=np.concatenate([data, data[:1]]), rows=count).outputs
            np.testing.assert_array_equal(outputs["y"], 4 * data[:count])
            np.testing.assert_array_equal(outputs["flat"], data[:count, None])
            np.testing.assert_array_equal(outputs["tail"], np.concatenate([data, data[:1]])[1:count + 1])

    def test_several_results_versions_and_names(self):
        b = self.builder()
        x, w = b.input("x", (2, 4)), b.input("w", 4)
        both = b.call("rmsnorm_residual", x, x, w, node="norm", version=1)
        self.assertEqual(both._fields, ("out", "h"))
        self.assertEqual([each.name for each in both], ["norm.out", "norm.h"])
        b.output("y", both.h)
        node = b.build().message.nodes[0]
        self.assertEqual((node.name, node.version), ("norm", 1))
        np.testing.assert_array_equal(self.run_one(b, x=X, w=X[0]).outputs["y"], 2 * X)

    def test_a_cache_that_is_appended_to_in_place(self):
        b = self.builder("decode")
        pos = b.integer("pos", 0, 7)
        row, cache = b.input("row", (1, 1, 1, 2)), b.state("cache", (1, 1, 8, 2))
        in_place = b.call("kv_append", row, cache, pos=pos)
        self.assertEqual(in_place.name, "cache")
        attended = b.call("attention", row, in_place, in_place, None, scale=0, kv_len=pos + 1)
        b.stream("attended", attended)
        b.loop(4, updates={pos: pos + 2})
        result = self.run_one(b, row=np.float32([3, 4]).reshape(1, 1, 1, 2), pos=0)
        self.assertEqual((result.end, result.steps, result.records["attended"].shape),
                         ("steps", 4, (4, 1, 1, 1, 2)))
        for k in range(4):  # Rows 0, 2, 4 have a value, the others are zeros.
            np.testing.assert_allclose(result.records["attended"][k].ravel(),
                                       np.float32([3, 4]) * (k + 1) / (2 * k + 1), rtol=1e-5)

    def test_operators_from_a_list_or_a_dict(self):
        graphs = []
        for operators in (self.rd, self.rd.operators.list(), SIGNATURES):
            b = residentd.GraphBuilder("same", operators)
            x = b.input("x", 4)
            b.output("y", b.call("add", x, x, alpha=2))
            b.output("z", x[1:])  # Copied.
            graphs.append(b.build())
        self.assertEqual(graphs[0].message, graphs[1].message)
        self.assertEqual(graphs[0].message, graphs[2].message)
        outputs = self.rd.graphs.run(graphs[2], x=X[0]).outputs
        np.testing.assert_array_equal(outputs["y"], 3 * X[0])
        np.testing.assert_array_equal(outputs["z"], X[0, 1:])


class Refusals(GraphTest):
    """What a builder refuses, where it is made."""

    def setUp(self):
        self.b = residentd.GraphBuilder("errors", SIGNATURES)
        self.x = self.b.input("x", 4)

    def check(self, text, function, *args, **kwargs):
        nodes = len(self.b._graph.nodes)
        error = self.refused(residentd.InvalidArgument, text, function, *args, **kwargs)
        self.assertEqual(len(self.b._graph.nodes), nodes)
        return error

    def test_calls(self):
        b, x = self.b, self.x
        n = b.integer("n", 1, 4)
        real = b.real("real", 0, 1)
        other = residentd.GraphBuilder("other", SIGNATURES)
        error = self.check("node 'n1': there is no operator 'ad'\nFix: did you mean 'add'?", b.call, "ad", x, x,
                           node="n1")
        self.assertEqual(error.operator, "ad")
        self.check("node 'add0': argument 2 'y' of add: it is missing", b.call, "add", x)
        self.check("node 'add0': add takes 2 tensors by position, not 3", b.call, "add", x, x, x)
        self.check("node 'add0': 'x' of add is given twice", b.call, "add", x, x=x)
        self.check("no parameter 'beta'\nFix: its parameters are: x, y, out, alpha; options are: node", b.call,
                   "add", x, x, beta=1)
        self.check("node 'scale0': argument 3 's' of scale: it is missing", b.call, "scale", x)
        self.check("'alpha' of add: <graph tensor 'x': f32[4]> is not a number", b.call, "add", x, x, alpha=x)
        self.check("nan is not a number", b.call, "add", x, x, alpha=float("nan"))
        self.check("0.5 is not an integer", b.call, "sum", x, shape=1, axes=0.5)
        self.check("it is f64, and scalar 'n' is i64\nFix: use a scalar of real()", b.call, "add", x, x, alpha=n)
        self.check("it is u32, and scalar 'real' is f32", b.call, "sum", x, shape=1, axes=real)
        self.check("'0.5 * n' may be none", b.call, "sum", x, shape=1, axes=0.5 * n)
        self.check("it is a tensor, and got ndarray\nFix: pass one that", b.call, "add", x, X[0])
        self.check("it is missing", b.call, "add", x, None)
        self.check("argument 1 'x' of dense: it is i64, and must be f32\nFix: convert it with the operator "
                   "'copy'", b.call, "dense", b.input("whole", 4, "i64"))
        self.check("it is f16, and must be f32\nFix: choose another", b.call, "dense", x, dtype="f16")
        self.check("node 'grow0': argument 2 'out' of grow: its shape [M] does not follow from the inputs\n"
                   "Fix: pass shape=(...), or the tensor that is written", b.call, "grow", x)
        self.check("shape [3] does not broadcast to S = [4]", b.call, "add", x, b.input("three", 3))
        self.check("does not match", b.call, "dense", x, out=b.activation("a3", 3))
        self.check("accepts only dense tensors", b.call, "dense", x[::2])
        self.check("it is written, and 'x' is an input", b.call, "update", x)
        self.check("has a negative stride", b.call, "update", b.state("s", 4)[::-1])
        self.check("node 'add0', parameter 'y': tensor 'z' was not made by this builder", b.call, "add", x,
                   other.input("z", 4))
        self.check("was not made by this builder", b.call, "add", x, x, alpha=other.real("r", 0, 1))
        self.check("version=-1 is not", b.call, "add", x, x, version=-1)
        b.call("add", x, x, node="twice")
        self.check("node 'twice': another node has this name", b.call, "add", x, x, node="twice")
        self.assertEqual(b.call("two", x)._fields, ("a", "b"))

    def test_a_dimension_that_is_a_scalar_equals_only_itself(self):
        b = self.b
        n, m = b.integer("n", 1, 4), b.integer("m", 1, 4)
        first = b.input("first", (n,))
        self.assertEqual(b.call("add", first, first).shape, (n,))
        self.check("shape [m] does not broadcast to S = [n]", b.call, "add", first, b.input("second", (m,)))
        self.check("shape [n] does not broadcast to S = [4]", b.call, "add", self.x, first)
        self.check("accepts only dense", b.call, "gemv", b.input("q", (2, n)), b.input("w", (3, n)), None)

    def test_an_operator_of_the_daemon(self):
        b = self.builder()
        x = b.input("x", 4)
        self.check("node 'rmsnrom0': there is no operator 'rmsnrom'\nFix: did you mean 'rmsnorm'?", b.call,
                   "rmsnrom", x)
        self.rd.operators.install("program", bytecode=bytes([0]), wait="active")
        self.addCleanup(self.rd.operators.remove, "program")
        self.check("program is a FLUX program", b.call, "program", x)

    def test_tensors_and_scalars(self):
        b, x = self.b, self.x
        n = b.integer("n", 1, 4)
        self.check("a tensor or scalar has the name 'x' already", b.input, "x", 4)
        self.check("a tensor or scalar has the name 'x' already", b.integer, "x", 0, 1)
        self.check("a tensor or scalar has the name 'n' already", b.output, "n", x)
        self.check("has 129 bytes", b.input, 129 * "x", 4)
        self.check("has 0 bytes", b.input, "", 4)
        for bad in (0, -1, 1.5, True, "4"):
            self.check("tensor 'z' has the dimension {!r}".format(bad), b.input, "z", (4, bad))
        self.check("tensor 'z' has the dimension n + 1", b.input, "z", (n + 1,))
        self.check("'f128' is not an element type", b.input, "z", 4, "f128")
        self.check("tensor 'x' has 4 elements in dimension 0, and 4 is indexed", lambda: x[4])
        self.check("tensor 'x' has 1 dimensions, and 2 are indexed", lambda: x[0, 0])
        self.check("slice(4, None, None) has none of them", lambda: x[4:])
        self.check("is indexed by [0]", lambda: x[[0]])
        self.check("is sliced by", lambda: x["a":])
        self.check("and 4 from 1 on are sliced", lambda: x[1:n + 1])
        self.check("tensor 'x' has the dimension n - 1".replace("n - 1", "n + -1"), lambda: x[1:n])
        self.check("which depend on the run", lambda: b.input("d", (n,))[1:])
        self.check("has the shape [4], and [3] is asked for", x.reshape, 3)
        self.check("is not dense, and is reshaped", x[::2].reshape, 2, 1)
        self.check("the order (0, 0) is asked for", b.input("m", (2, 2)).transpose, 0, 0)
        self.check("2 dimensions and 1 strides", x.view, (2, 2), 0, (1,))
        for least, most, initial in ((2, 1, None), (0, 1, 2), (0.5, 1, None), (True, 1, None)):
            self.check("scalar 's' has the range", b.integer, "s", least, most, initial)
        self.check("scalar 's' has the range", b.real, "s", float("nan"), 1)
        for wrong in (lambda: n * n, lambda: n + "1", lambda: x[n:], lambda: True * n):
            self.check("", wrong)

    def test_outputs_and_loops(self):
        b, x = self.b, self.x
        k = b.real("k", 0, 10)
        self.check("graph 'errors' has no nodes", b.build)
        self.check("output 'y': int is not a tensor of a graph", b.output, "y", 1)
        other = residentd.GraphBuilder("other", SIGNATURES)
        self.check("stream 's': tensor 'x' was not made", b.stream, "s", other.input("x", 4))
        self.check("has records=-1", b.stream, "s", x, -1)
        b.stream("s", b.call("add", x, x))
        self.check("stream 's' has no number of records\nFix: call loop(), or give records=", b.build)
        for bad in (0, -1, 1.5, True):
            self.check("the loop has max_steps={!r}".format(bad), b.loop, bad)
        self.check("the update of scalar 'k' is 3", b.loop, 3, updates={k: 3})
        self.check("the update of scalar 'k'", b.loop, 3, updates={k: b.real("other", 0, 1) + 1})
        self.check("the update of scalar 'k'", b.loop, 3, updates={k + 1: k})
        self.check("the loop stops on <graph tensor 'x'", b.loop, 3, stop=(x, [1]))
        token = b.new_output("token", 1, "i64")
        self.check("the loop stops on 0 values", b.loop, 3, stop=(token, []))
        b.loop(3, updates={k: k + 1}, stop=(token, [1, -2]))
        self.check("has a loop already", b.loop, 3)
        graph = b.build().message
        self.assertEqual(graph.tensors[1].shape[0].size, 3)
        self.assertEqual((graph.loop.stop.tensor, list(graph.loop.stop.values)), ("token", [1, -2]))

    def test_signatures(self):
        for text in ("x: inn f32[N]", "x: in f33[N]", "x: in f32", "x: in f32[N,]", "x: out f32[*S~]",
                     "x: in f32[*S, *T]", "a: scalar f32|f64", "a: scalar i64 = 0.5", "x: in f32[N], ",
                     "x: in f32[N] = 1", "a: scalar strided f32"):
            self.check("the signature of 'bad' is malformed at", residentd.GraphBuilder, "g", {"bad": text})
        for operator in self.rd.operators.list():  # The text has what the message has.
            if operator.signature:
                parse = residentd.signature.Signature.parse
                read = residentd.signature.Signature.from_message(operator.message)
                # Of f32, the default in the message is rounded.
                self.assertEqual([dataclasses.replace(each, default=each.default is None)
                                  for each in parse(operator.name, operator.signature).parameters],
                                 [dataclasses.replace(each, default=each.default is None)
                                  for each in read.parameters])


class Files(GraphTest):
    """The JSON form, and what residentctl reads."""

    def ctl(self, *words):
        result = self.daemon.ctl(*words)
        self.assertEqual(result.code, 0, result)
        return result

    def test_the_round_trip(self):
        folder = support.temporary_folder(type(self))
        b = self.builder("round trip")
        n, r = b.integer("n", 1, 4, 2), b.real("r", -1, 1)
        x = b.input("x", (4, 2))
        y = b.call("add", x[:n], x[1, 0], alpha=-0.5 * r + 0.25, node="sum")
        b.stream("s", y)
        b.output("t", b.call("sum", x, axes=1 << 1, shape=4))
        b.output("zero", b.call("relu", x[0, 1]))
        token = b.call("argmax", x[:, 0], axes=1, shape=(), dtype="i64")
        b.loop(9, updates={r: 0.5 * r}, stop=(token, [-(1 << 62), (1 << 62) + 1]))
        for graph in (b.build(), self.series()):
            text = graph.to_json()
            self.assertNotRegex(text, r'"size": "')
            path = folder / "graph.json"
            path.write_text(text)
            for read in (residentd.Graph.from_json(text), residentd.Graph.from_json(path),
                         residentd.Graph.from_json(str(path)), residentd.Graph.from_json(graph.to_json(None))):
                self.assertEqual(read.message, graph.message)
            self.ctl("graph", "validate", path)
            # Its id is the hash of what residentctl has read.
            self.ctl("graph", "load", path)
            with self.rd.graphs.find(graph.name) as found, self.rd.graphs.load(graph) as loaded:
                self.assertEqual((loaded.id, loaded.already_loaded), (found.id, True))
                loaded.unload()

    def test_the_files_of_the_tutorial(self):
        files = dict(re.findall(r"^```json (\S+)\n(.*?)^```$", (ROOT / "docs/graphs.md").read_text(),
                                re.DOTALL | re.MULTILINE))
        graph = residentd.Graph.from_json(files["feature.json"])
        normal = X / np.sqrt(np.mean(X * X, axis=1, keepdims=True) + 1e-5)
        outputs = self.rd.graphs.run(graph, x=X, w=np.ones(4, np.float32)).outputs
        y = normal / (1 + np.exp(-normal)) + relu(normal)
        np.testing.assert_allclose(outputs["y"], y, rtol=1e-5)
        np.testing.assert_allclose(outputs["pooled"], np.mean(y, axis=0), rtol=1e-5)
        graph = residentd.Graph.from_json(files["loop.json"])
        result = self.rd.graphs.run(graph, pos=0, max_steps=3)
        np.testing.assert_array_equal(result.records["value"], [[1], [21], [41]])
        example = re.search(r"^```json\n(.*?)^```$", (ROOT / "docs/graph_format.md").read_text(),
                            re.DOTALL | re.MULTILINE).group(1)
        self.assertTrue(self.rd.graphs.validate(residentd.Graph.from_json(example)).accepted)

    def test_texts_that_are_no_graphs(self):
        for text in ('{"nodes": [}', '{"nods": []}', '{"tensors": [{"kind": "KIND_BUFFER"}]}'):
            self.refused(residentd.InvalidArgument, "the text is not a graph", residentd.Graph.from_json, text)
        self.assertRaises(FileNotFoundError, residentd.Graph.from_json, "none.json")


if __name__ == "__main__":
    support.unittest_main.main()
