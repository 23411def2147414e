#!/usr/bin/python3
"""Graphs of torch, without torch: those of torch_graphs.json, which tests/torch/make_graphs.py has written, are lowered
to expressions, installed with torch's outputs as examples, and compared with torch's outputs and with NumPy. What
lowering refuses."""

import concurrent.futures
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402

import numpy as np  # noqa: E402

import residentd  # noqa: E402
from residentd import dtypes  # noqa: E402
from residentd.torch import lowering  # noqa: E402

GRAPHS = json.loads((support.HERE / "torch_graphs.json").read_text())
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
INSTALLS = 4  # At a time.


def stored(values, dtype):
    """The array of a dtype from values in float32."""
    with np.errstate(all="ignore"):
        return dtypes.convert(np.asarray(values, np.float32), dtypes.BY_NAME[dtype])


def wide(array):
    return array.to_float32() if isinstance(array, residentd.BFloat16Array) else np.asarray(array, np.float32)


def read(run, dtype):
    kind = dtypes.BY_NAME[dtype]
    array = np.frombuffer(bytes.fromhex(run["bits"]), kind.storage).reshape(run["shape"])
    return dtypes.from_storage(array, kind)


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def clip(x, low=None, high=None):
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def relu6(x):
    return np.minimum(np.maximum(x + 3, 0), 6)


# In float64; what torch computes in float32 differs less than the tolerance.
NUMPY = {
    "add": lambda x, y, alpha=1: x + alpha * y, "sub": lambda x, y, alpha=1: x - alpha * y,
    "rsub": lambda x, y, alpha=1: y - alpha * x, "mul": lambda x, y: x * y,
    "div": lambda x, y, rounding_mode=None: np.trunc(x / y) if rounding_mode == "trunc" else x / y,
    "neg": lambda x: -x, "abs": abs, "reciprocal": lambda x: 1 / x, "exp": np.exp, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "pow": lambda x, y: np.power(x, y), "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "erf": erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)), "gelu": gelu, "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1, scale=1, rate=1: np.where(x < 0, scale * alpha * np.expm1(rate * x), scale * x),
    "softplus": lambda x, beta=1, threshold=20: np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta),
    "hardsigmoid": lambda x: relu6(x) / 6, "hardswish": lambda x: x * relu6(x) / 6,
    "hardtanh": lambda x, low=-1, high=1: clip(x, low, high), "clamp": clip, "minimum": np.minimum, "maximum": np.maximum,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "alias": lambda x: x, "clone": lambda x: x,
    "lift_fresh_copy": lambda x: x, "detach": lambda x: x,
    "lt": lambda x, y: x < y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "isnan": np.isnan, "isinf": np.isinf,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_not": np.logical_not,
    "logical_xor": np.logical_xor, "bitwise_and": np.logical_and, "bitwise_or": np.logical_or,
    "bitwise_not": np.logical_not, "bitwise_xor": np.logical_xor, "where": np.where,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x), "_to_copy": lambda x: x,
    "full_like": lambda x, value: np.full(np.shape(x), value), "full": lambda shape, value: np.full(shape, value),
    "zeros_like": lambda x: np.zeros(np.shape(x)), "ones_like": lambda x: np.ones(np.shape(x)),
    "scalar_tensor": lambda x: x, "constant": lambda x: x, "truediv": lambda x, y: x / y,
}


def run_numpy(graph, inputs, scalars):
    """What the graph computes: each operation in float64, and its result rounded to its dtype, as torch does."""
    values = {each["name"]: wide(array).astype(np.float64) for each, array in zip(graph["inputs"], inputs)}
    values.update({each["name"]: float(np.float32(scalars.get(each["name"], each["default"]))) for each in graph["scalars"]})
    values_dtype = {each["name"]: each["dtype"] for each in graph["inputs"]}

    def operand(argument):
        if isinstance(argument, dict):
            return values[argument["node"]] if "node" in argument else float(argument.get("number", "nan"))
        return argument

    for node in graph["nodes"]:
        name = node["target"].split(".")[1] if "." in node["target"] else node["target"]
        arguments = [operand(each) for each in node["args"]]
        if name in ("clamp_min", "clamp_max"):
            name, arguments = "clamp", [arguments[0], *((arguments[1], None) if name == "clamp_min" else (None, arguments[1]))]
        # Numbers are rounded to the dtype of the tensors where torch compares or selects.
        if name in ("lt", "le", "gt", "ge", "eq", "ne", "where", "clamp"):
            halves = [values_dtype[each["node"]] for each in node["args"] if isinstance(each, dict) and values_dtype.get(
                each.get("node")) in ("f16", "bf16")]
            arguments = [float(wide(stored(each, halves[0]))) if halves and isinstance(each, float) else each
                         for each in arguments]
        kwargs = {key: operand(value) for key, value in node["kwargs"].items()
                  if key not in ("dtype", "memory_format") and value is not None}
        with np.errstate(all="ignore"):
            arguments = [np.float64(each) if isinstance(each, (int, float)) and not isinstance(each, bool) else each
                         for each in arguments]
            result = NUMPY[name](*arguments, **kwargs)
        if node["dtype"] in TOLERANCE:
            result = wide(stored(result, node["dtype"])).astype(np.float64)
        values[node["name"]], values_dtype[node["name"]] = result, node["dtype"]
    return values[graph["output"]]


def graph_of(*nodes, inputs=(("x", "f32", (3,)),), scalars=(), output=None):
    """A description; a node is (target, arguments, dtype)."""
    made = [{"name": "n{}".format(i), "target": target, "args": list(arguments), "kwargs": {}, "dtype": dtype, "shape": [3],
             "source": "model.py:{}: line".format(i + 1)} for i, (target, arguments, dtype) in enumerate(nodes)]
    return {"name": "f", "inputs": [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in inputs],
            "scalars": [{"name": name, "default": default} for name, default in scalars], "nodes": made,
            "output": output or "n{}".format(len(made) - 1)}


X = {"node": "x"}


class LoweringTest(support.PackageTest):

    def check(self, got, want, dtype, what):
        got, want = wide(got).astype(np.float64), np.asarray(want, np.float64)
        self.assertEqual(got.shape, want.shape, what)
        with np.errstate(all="ignore"):
            near = np.isfinite(want) & (abs(got - want) <= TOLERANCE[dtype] * (1 + abs(want)))
        wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)) | near)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            self.fail("{}: element {} is {} and must be {}".format(what, at, got[at], want[at]))

    def test_stored_graphs(self):
        """Each is validated on torch's outputs, and run on the stored and on random inputs."""

        def install(each):
            graph = each["graph"]
            kinds = [dtypes.BY_NAME[item["dtype"]] for item in graph["inputs"]]
            text = lowering.lower(graph)
            out = text.split("out: out ")[1].split(",")[0].split()[0]
            scalars = [np.float32(item["default"]) for item in graph["scalars"]]
            runs = [([read(item, kind.name) for item, kind in zip(run["inputs"], kinds)], read(run["output"], out))
                    for run in each["runs"]]
            self.rd.operators.install("graph." + graph["name"], expr=text, wait="active", examples=[
                residentd.Example(*inputs, expected, *scalars) for inputs, expected in runs])
            return graph, out, runs

        random = np.random.default_rng(7)
        with concurrent.futures.ThreadPoolExecutor(INSTALLS) as pool:
            for graph, out, runs in pool.map(install, GRAPHS):
                operator = self.rd.op("graph." + graph["name"])
                for inputs, expected in runs:
                    self.check(operator(*inputs), wide(expected), out, graph["name"])
                inputs = [stored(random.normal(0, 2, item["shape"]), item["dtype"]) for item in graph["inputs"]]
                scalars = {item["name"]: item["default"] * 1.25 for item in graph["scalars"]}
                self.check(operator(*inputs, **scalars), run_numpy(graph, inputs, scalars), out, graph["name"] + " with NumPy")

    def test_values_are_rounded_as_a_conversion_rounds_them(self):
        """Every number of f16 and bf16, the middle between each and the next, and its neighbours in f32."""
        for dtype, bits in (("f16", 10), ("bf16", 7)):
            graph = graph_of(("aten._to_copy.default", [X], dtype), ("aten._to_copy.default", [{"node": "n0"}], "f32"))
            self.rd.operators.install("narrow." + dtype, expr=lowering.lower(graph), wait="active")
            kind = dtypes.BY_NAME[dtype]
            numbers = wide(dtypes.from_storage(np.arange(1 << 16, dtype=np.uint16).view(kind.storage), kind))
            numbers = np.sort(numbers[np.isfinite(numbers)])
            middle = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
            x = np.concatenate([numbers, middle, np.nextafter(middle, np.float32(np.inf)),
                                np.nextafter(middle, np.float32(-np.inf)), np.float32([np.inf, -np.inf, np.nan, 3e38, -3.4e38,
                                                                                       65519, 65520, -65520])])
            out, want = self.rd.op("narrow." + dtype)(x), wide(stored(x, dtype))
            same = (out.view(np.uint32) == want.view(np.uint32)) | (np.isnan(out) & np.isnan(want))
            self.assertTrue(same.all(), "{}: {} becomes {} in place of {}".format(
                dtype, x[~same][:3], out[~same][:3], want[~same][:3]))

    def refusal(self, graph, text, *fix):
        error = self.refused(residentd.InvalidArgument, text, lowering.lower, graph)
        for each in fix:
            self.assertIn(each, error.fix)
        return error

    def test_a_refusal_names_the_node_its_line_and_what_to_do(self):
        error = self.refusal(graph_of(("aten.mul.Tensor", [X, 2], "f32"), ("aten.sum.default", [{"node": "n0"}], "f32")),
                             "f: node 'n1' (aten.sum.default), model.py:2: line: it has no equivalent", "rt.ops.sum")
        self.assertEqual(error.details["node"], "n1")
        for target, fix in (("aten.mm.default", "rt.ops.gemm"), ("aten.permute.default", "pass the view as an input"),
                            ("aten.tan.default", "torch.sin(x) / torch.cos(x)"), ("aten.add_.Tensor", "change in place"),
                            ("aten.sort.default", "docs/pytorch.md"), ("aten.rand_like.default", "random numbers")):
            self.refusal(graph_of((target, [X], "f32")), target, fix)

    def test_a_change_in_place_is_refused_where_the_output_does_not_depend_on_it_by_name(self):
        self.refusal(graph_of(("aten.exp.default", [X], "f32"), ("aten.add_.Tensor", [{"node": "n0"}, 1], "f32"), output="n0"),
                     "aten.add_.Tensor", "change in place")

    def test_what_torch_would_compute_otherwise_is_refused(self):
        wide_scalar = (("x", "f16", (3,)), ("y", "f32", ()))
        for graph, text in (
                (graph_of(("aten.maximum.default", [X, {"node": "y"}], "f16"), inputs=wide_scalar), "another dtype"),
                (graph_of(("aten.add.Tensor", [X, 1], "f64"), inputs=(("x", "f64", (3,)),)), "input 'x' of f is f64"),
                (graph_of(("aten.floor.default", [X], "i32")), "it returns i32"),
                (graph_of(("aten.gt.Scalar", [X, 0], "bool")), "returns a comparison"),
                (graph_of(("aten.div.Tensor_mode", [X, 3, "floor"], "f32")), "rounds down has no equivalent"),
                (graph_of(("aten.mul.Tensor", [X, 16777217], "f32")), "not a float32 number"),
                (graph_of(("aten.mul.Tensor", [X, 1e39], "f32")), "not a float32 number"),
                (graph_of(("aten.exp.default", [X], "f32"), inputs=(("x", "f32", (3,)), ("y", "f32", (3,)))), "does not use 'y'"),
                (graph_of(("aten.exp.default", [X], "f32"), inputs=(("x", "f32", (1,)),)), "returns shape [3]"),
                (graph_of(("aten.exp.default", [{"node": "exp"}], "f32"), inputs=(("exp", "f32", (3,)),)), "name of a function"),
                (graph_of(("aten.pow.Tensor_Scalar", [X, {"node": "a"}], "f32"), scalars=(("a", 2.0),)), "needs the value of a scalar"),
                (graph_of(("operator.pow", [{"node": "a"}, 2], "number"), ("aten.mul.Tensor", [X, {"node": "n0"}], "f32"),
                          scalars=(("a", 1.0),)), "Python computes a number")):
            self.refusal(graph, text)

    def test_limits(self):
        names = ["x{}".format(i) for i in range(14)]
        self.refusal(graph_of(("aten.exp.default", [{"node": "x0"}], "f32"), inputs=[(name, "f32", (3,)) for name in names]),
                     "15 parameters with the output, and an operator has at most 14", "publish parts")
        chain = [("aten.exp.default", [X if i == 0 else {"node": "n{}".format(i - 1)}], "f32") for i in range(513)]
        self.refusal(graph_of(*chain), "513 operations, and an expression may have 512")
        halves = [("aten.exp.default", [X if i == 0 else {"node": "n{}".format(i - 1)}], "f16") for i in range(30)]
        self.refusal(graph_of(*halves, inputs=(("x", "f16", (3,)),)), "bytes, and at most 4,096 are accepted")

    def test_constants_are_written_as_they_are(self):
        text = lowering.lower(graph_of(("aten.mul.Tensor", [X, -0.0], "f32")))
        self.assertIn("(x * (-0))", text)
        self.assertIn("(x + (-inf))", lowering.lower(graph_of(("aten.add.Tensor", [X, {"number": "-inf"}], "f32"))))


if __name__ == "__main__":
    support.unittest_main.main()
