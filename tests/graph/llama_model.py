"""Small models of the Llama form for tests: random weights from a seed, in a folder as Hugging Face's
transformers write it, and as float64 arrays.

    model = random_model(numpy.random.default_rng(1), heads=4, kv_heads=2, head_dim=16)
    model.write(folder)
    logits = llama_reference.logits(model, tokens)
    rounded = quantized(model, "int8.safetensors", group=128)    # What --weights_out has written.
"""

import json
import math
import pathlib
import struct

import numpy as np

NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


def encode(values, dtype):
    """Values as bytes of a dtype; bfloat16 rounds to nearest, ties to even."""
    if dtype == "bf16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        rounded = (bits + (((bits >> 16) & 1) + 0x7fff).astype(np.uint32)) >> 16
        return rounded.astype(np.uint16).tobytes()
    return np.asarray(values, np.float16 if dtype == "f16" else np.float32).tobytes()


def rounded(values, dtype):
    """The values of a dtype that are nearest to the given ones, as float64."""
    if dtype == "bf16":
        stored = np.frombuffer(encode(values, dtype), np.uint16).astype(np.uint32) << 16
        return stored.view(np.float32).astype(np.float64).reshape(np.shape(values))
    return np.asarray(values).astype(np.float16 if dtype == "f16" else np.float32).astype(np.float64)


def write_safetensors(path, tensors):
    """`tensors`: {name: (dtype, shape, bytes)}."""
    header, begin = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join(data for _, _, data in tensors.values())
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + content)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, as write_safetensors takes it."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    return {name: (tensor["dtype"], tuple(tensor["shape"]),
                   content[slice(*(begin + offset for offset in tensor["data_offsets"]))])
            for name, tensor in json.loads(content[8:begin]).items()}


def decode(dtype, shape, data):
    """Elements of a safetensors file as an array: float64, or integers as they are."""
    if dtype == "BF16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16, "I8": np.int8, "U8": np.uint8}[dtype])
    return values.reshape(shape).astype(np.float64 if dtype[-1] != "8" else values.dtype)


class Model:
    """`config`: that of config.json. `weights`: float64 arrays by name, exact in `dtype`."""

    def __init__(self, config, weights, dtype):
        self.config = config
        self.weights = weights
        self.dtype = dtype

    def tensors(self):
        return {name: (NAMES[self.dtype], values.shape, encode(values, self.dtype))
                for name, values in self.weights.items()}

    def write(self, folder, files=1):
        """Writes config.json and the weights; `files`: their number, with an index if it is above 1."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        tensors = self.tensors()
        if files == 1:
            write_safetensors(folder / "model.safetensors", tensors)
            return ["model.safetensors"]
        names, weight_map = sorted(tensors), {}
        listed = [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
        for i, file in enumerate(listed):
            part = {name: tensors[name] for name in names[i::files]}
            weight_map.update(dict.fromkeys(part, file))
            write_safetensors(folder / file, part)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map}))
        return listed


def read_model(folder):
    """The model of a folder with one file of weights."""
    folder = pathlib.Path(folder)
    tensors = read_safetensors(folder / "model.safetensors")
    dtype = next(name for name, stored in NAMES.items() if stored == tensors["model.norm.weight"][0])
    return Model(json.loads((folder / "config.json").read_text()),
                 {name: decode(*tensor) for name, tensor in tensors.items()}, dtype)


def quantized(model, path, group):
    """The model whose weights are those of a file that `residentctl graph llama --weights` wrote for
    `model`: a quantized weight is a whole number times the scale of its group of columns. `scales` of
    the result has these, by name, with the shape of the weight."""
    tensors = {name: decode(*tensor) for name, tensor in read_safetensors(path).items()}
    weights, scales = {}, {}
    for name, values in tensors.items():
        if name.endswith(".scales"):
            continue
        if name + ".scales" in tensors:
            columns = model.weights[name if name in model.weights else "model.embed_tokens.weight"].shape[1]
            if values.dtype == np.uint8:
                halves = np.stack([values & 15, values >> 4], -1).reshape(len(values), -1)
                values = halves[:, :columns].astype(np.float64) - 8
            scales[name] = np.repeat(tensors[name + ".scales"], group, axis=1)[:, :columns]
            values = values * scales[name]
        weights[name] = values
    rounded_model = Model({**model.config, "tie_word_embeddings": "lm_head.weight" not in weights}, weights,
                          model.dtype)
    rounded_model.scales = scales
    return rounded_model


def random_model(rng, architecture="LlamaForCausalLM", dtype="f32", layers=2, hidden=64, heads=4,
                 kv_heads=2, head_dim=16, intermediate=96, vocab=120, tied=False, bias=False,
                 spread=1.2, **config):
    """Weights that keep the norm of hidden states, and logits with about the standard deviation
    `spread`, so that their entropy is about ln(vocab) - spread^2 / 2."""
    weights = {}

    def matrix(name, rows, columns, scale=1.0):
        values = rng.standard_normal((rows, columns)) * scale / math.sqrt(columns)
        weights[name + ".weight"] = rounded(values, dtype)

    def vector(name, size, mean, deviation):
        weights[name] = rounded(mean + deviation * rng.standard_normal(size), dtype)

    matrix("model.embed_tokens", vocab, hidden, spread)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        sizes = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
        for name, size in sizes.items():
            matrix(f"{prefix}self_attn.{name}_proj", size, hidden)
            if bias:
                vector(f"{prefix}self_attn.{name}_proj.bias", size, 0, 0.3)
        matrix(prefix + "self_attn.o_proj", hidden, heads * head_dim)
        if bias and architecture == "LlamaForCausalLM":
            vector(prefix + "self_attn.o_proj.bias", hidden, 0, 0.3)
        for name, rows, columns in (("gate", intermediate, hidden), ("up", intermediate, hidden),
                                    ("down", hidden, intermediate)):
            matrix(f"{prefix}mlp.{name}_proj", rows, columns)
            if config.get("mlp_bias"):
                vector(f"{prefix}mlp.{name}_proj.bias", rows, 0, 0.3)
        for name in ("input_layernorm", "post_attention_layernorm"):
            vector(f"{prefix}{name}.weight", hidden, 1, 0.2)
    vector("model.norm.weight", hidden, 1, 0.1)
    if not tied:
        matrix("lm_head", vocab, hidden, spread)
    values = {
        "architectures": [architecture], "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": tied,
    }
    if bias and architecture == "LlamaForCausalLM":
        values["attention_bias"] = True
    return Model({**values, **config}, weights, dtype)
