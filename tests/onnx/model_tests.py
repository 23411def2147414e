#!/usr/bin/env python3
"""Small whole models on a running daemon: see tests/onnx/run.

The expected results are those of the reference evaluator of the package `onnx`. Each model is run for
several batch sizes: loaded with each of them, and once with a batch that remains dynamic.

The last line is `N passed, N failed`.
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE)]

import node_tests  # noqa: E402  Sets the paths of the other modules.
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

BATCHES = (1, 2, 7, 20)
MAX_BATCH = 20


class Maker:
    """A model whose weights are random numbers with one seed."""

    def __init__(self, opset=18):
        self.random = np.random.default_rng(7)
        self.nodes, self.inputs, self.outputs, self.weights = [], [], [], []
        self.opset = opset

    def input(self, name, shape, kind=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, *shape, scale=0.5):
        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.constant(array)

    def constant(self, array):
        name = "w{}".format(len(self.weights))
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def integers(self, *values):
        return self.constant(np.array(values, np.int64))

    def node(self, op, *inputs, outputs=1, **attributes):
        names = ["v{}".format(len(self.nodes))] + [
            "v{}_{}".format(len(self.nodes), i) for i in range(1, outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def output(self, name):
        self.outputs.append(helper.make_empty_tensor_value_info(name))

    def model(self):
        graph = helper.make_graph(self.nodes, "model", self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def mlp():
    m = Maker()
    x = m.input("x", ["batch", 12])
    for columns in (24, 24, 5):
        shape = {0: 12}.get(len(m.nodes), 24)
        x = m.node("Gemm", x, m.weight(shape, columns), m.weight(columns))
        x = m.node("Relu", x)
    m.output(m.node("Softmax", x))
    return m.model()


def policy():
    m = Maker()
    x = m.input("observation", ["batch", 9])
    mean, deviation = m.weight(9), m.constant(np.full(9, 2, np.float32))
    x = m.node("Div", m.node("Sub", x, mean), deviation)
    x = m.node("Tanh", m.node("Add", m.node("MatMul", x, m.weight(9, 16)), m.weight(16)))
    x = m.node("MatMul", x, m.weight(16, 6))
    first, second = m.node("Split", x, axis=1, outputs=2, num_outputs=2)
    m.output(m.node("Clip", first, m.constant(np.float32(-1)), m.constant(np.float32(1))))
    m.output(m.node("Exp", m.node("Clip", second, "", m.constant(np.float32(2)))))
    return m.model()


def convolutions():
    m = Maker()
    x = m.input("image", ["batch", 3, 11, 9])
    x = m.node("Conv", x, m.weight(8, 3, 3, 3), m.weight(8), pads=[1, 1, 1, 1], strides=[2, 2])
    variance = m.constant(np.linspace(0.5, 2, 8, dtype=np.float32))
    x = m.node("BatchNormalization", x, m.weight(8), m.weight(8), m.weight(8), variance)
    x = m.node("Conv", m.node("Relu", x), m.weight(8, 1, 3, 3), group=8, dilations=[2, 2], pads=[2, 2, 2, 2])
    x = m.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 1, 0, 0])
    x = m.node("Concat", x, m.node("Neg", x), axis=1)
    m.output(m.node("ConvTranspose", x, m.weight(16, 2, 3, 2), m.weight(2), strides=[3, 2]))
    x = m.node("Flatten", m.node("GlobalAveragePool", x))
    m.output(m.node("Gemm", x, m.weight(4, 16), m.weight(4), transB=1))
    return m.model()


def encoder(seq=6, integers=False):
    """A layer of a transformer as exporters write it: heads by Reshape and Transpose. With `integers` the mask has
    integers, of which bools are made, and Gelu is written with Erf."""
    m = Maker(20)
    ids = m.input("ids", ["batch", seq], TensorProto.INT64)
    mask = m.input("mask", ["batch", seq], TensorProto.INT64 if integers else TensorProto.FLOAT)
    x = m.node("Gather", m.weight(31, 16), ids)
    x = m.node("Add", x, m.weight(1, 6 if isinstance(seq, int) else 1, 16))
    x = m.node("LayerNormalization", x, m.weight(16), m.weight(16))
    heads = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = m.node("Add", m.node("MatMul", x, m.weight(16, 16)), m.weight(16))
        y = m.node("Reshape", y, m.integers(0, 0, 4, 4))
        heads.append(m.node("Transpose", y, perm=order))
    scores = m.node("Div", m.node("MatMul", heads[0], heads[1]), m.constant(np.float32(2)))
    if integers:
        hidden = m.node("Sub", m.constant(np.float32(1)), m.node("Cast", mask, to=TensorProto.FLOAT))
        hidden = m.node("Where", m.node("Cast", hidden, to=TensorProto.BOOL), m.constant(np.float32(-1e4)), hidden)
    else:
        hidden = m.node("Mul", m.node("Sub", m.constant(np.float32(1)), mask), m.constant(np.float32(-1e4)))
    scores = m.node("Add", scores, m.node("Unsqueeze", hidden, m.integers(1, 2)))
    y = m.node("MatMul", m.node("Softmax", scores, axis=-1), heads[2])
    y = m.node("Reshape", m.node("Transpose", y, perm=[0, 2, 1, 3]), m.integers(0, 0, 16))
    x = m.node("Add", x, m.node("MatMul", y, m.weight(16, 16)))
    y = m.node("MatMul", x, m.weight(16, 32))
    if integers:
        half = m.node("Mul", y, m.constant(np.float32(0.5)))
        y = m.node("Erf", m.node("Div", y, m.constant(np.float32(2**0.5))))
        y = m.node("Mul", half, m.node("Add", y, m.constant(np.float32(1))))
    else:
        y = m.node("Gelu", y)
    x = m.node("Add", x, m.node("MatMul", y, m.weight(32, 16)))
    m.output(x)
    m.output(m.node("ReduceMean", x, m.integers(1), keepdims=0))
    return m.model()


def make_inputs(model, sizes, seed):
    random = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        if value.name == "mask":
            kind = np.int64 if tensor.elem_type == TensorProto.INT64 else np.float32
            inputs[value.name] = (np.arange(shape[1]) < random.integers(1, shape[1] + 1, [shape[0], 1])).astype(kind)
        elif tensor.elem_type == TensorProto.INT64:
            inputs[value.name] = random.integers(0, 31, shape)
        else:
            inputs[value.name] = random.standard_normal(shape).astype(np.float32)
    return inputs


class Models(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()
        cls.addClassCleanup(cls.daemon.stop)
        cls.client = residentd.connect(cls.daemon.address)
        cls.addClassCleanup(cls.client.close)
        cls.runner = node_tests.Runner(cls.client)

    def check(self, model, sizes):
        inputs = make_inputs(model, sizes, seed=sizes["batch"])
        results = self.client.models.run(node_tests.NAME, inputs).outputs
        expected = ReferenceEvaluator(model).run(None, inputs)
        self.assertEqual(list(results), [value.name for value in model.graph.output])
        for result, array in zip(results.values(), expected):
            np.testing.assert_allclose(result, array, rtol=1e-3, atol=1e-5)

    def run_exact(self, model, sizes):
        self.runner.load(model, sizes)
        self.check(model, sizes)

    def run_dynamic(self, model):
        version = self.runner.load(model, {}, max_batch=MAX_BATCH)
        self.assertTrue(all(tensor.shape[0] == -1 for tensor in version.inputs.values()))
        self.assertEqual(version.max_batch, MAX_BATCH, version.not_batched)
        for batch in BATCHES:
            self.check(model, {"batch": batch})

    def check_model(self, model):
        for batch in BATCHES:
            self.run_exact(model, {"batch": batch})
        self.run_dynamic(model)

    def test_mlp(self):
        self.check_model(mlp())

    def test_policy(self):
        self.check_model(policy())

    def test_convolutions(self):
        self.check_model(convolutions())

    def test_encoder(self):
        self.check_model(encoder())

    def test_encoder_with_a_mask_of_integers(self):
        self.check_model(encoder(integers=True))

    def test_encoder_with_dynamic_length(self):
        model = encoder("seq")
        for batch, seq in ((1, 1), (2, 5), (3, 9)):
            self.run_exact(model, {"batch": batch, "seq": seq})


if __name__ == "__main__":
    unittest_main.main()
