"""The computation of Llama models in NumPy, written after the published definition and without
knowledge of the graph: all positions of a text at once, teacher-forced.

    exact = logits(model, tokens)                      # float64: [positions, vocab]
    exact = logits(model, tokens, cache="bf16")        # The cache rounds keys and values.
    other = logits_bf16(model, tokens)                 # As PyTorch computes with bfloat16 tensors.
"""

import math

import numpy as np

from llama_model import rounded


def frequencies(config):
    """Radians for each position, by pair of elements of a head."""
    dim = config["head_dim"]
    inverse = config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    scaling = config.get("rope_scaling")
    if not scaling:
        return inverse
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":
        return inverse / factor
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * inverse / factor + smooth * inverse
    return np.where(wavelength > context / low, inverse / factor,
                    np.where(wavelength < context / high, inverse, blended))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def half_turned(x):
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


class Arithmetic:
    """float64; `store` rounds what an operator writes."""

    dtype = np.float64

    def store(self, x):
        return x

    # Weights of attention, which PyTorch rounds between the two products.
    weights = store

    def norm(self, x, w, epsilon):
        return self.store(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * w)

    def rotate(self, x, angles):
        return x * np.cos(angles) + half_turned(x) * np.sin(angles)

    def silu(self, x):
        return self.store(x / (1 + np.exp(-x)))


class PyTorchBf16(Arithmetic):
    """bfloat16 between operators, float32 within them, as PyTorch and transformers compute."""

    dtype = np.float32

    def store(self, x):
        return rounded(x, "bf16").astype(np.float32)

    weights = store

    def norm(self, x, w, epsilon):
        # The normalized values are rounded before they are multiplied by the weight.
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon))
        return self.store(self.store(scaled) * w)

    def rotate(self, x, angles):
        cosine, sine = self.store(np.cos(angles)), self.store(np.sin(angles))
        return self.store(self.store(x * cosine) + self.store(half_turned(x) * sine))


def compute(model, tokens, arithmetic, cache, first=None):
    config = model.config
    positions, first_weights = first or (0, {})
    weights = {name: w.astype(arithmetic.dtype) for name, w in model.weights.items()}
    heads, kv_heads, dim = (config[key] for key in
                            ("num_attention_heads", "num_key_value_heads", "head_dim"))
    epsilon, count = config["rms_norm_eps"], len(tokens)
    angles = np.arange(count)[:, None] * frequencies(config)
    angles = np.concatenate([angles, angles], -1).astype(arithmetic.dtype)[:, None, :]
    hidden_keys = np.where(np.tril(np.ones((count, count), bool)), 0, -np.inf)

    def linear(name, x):
        y = x @ weights[name + ".weight"].T
        if positions and name.startswith("model.layers."):
            y[:positions] = x[:positions] @ first_weights[name + ".weight"].astype(arithmetic.dtype).T
        bias = weights.get(name + ".bias")
        return arithmetic.store(y if bias is None else y + bias)

    x = weights["model.embed_tokens.weight"][np.asarray(tokens)]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = arithmetic.norm(x, weights[prefix + "input_layernorm.weight"], epsilon)
        q, k, v = (linear(f"{prefix}self_attn.{name}_proj", normed).reshape(count, -1, dim)
                   for name in "qkv")
        q, k = arithmetic.rotate(q, angles), arithmetic.rotate(k, angles)
        if cache is not None:
            k, v = (rounded(each, cache).astype(arithmetic.dtype) for each in (k, v))
        attended = np.empty((count, heads, dim), arithmetic.dtype)
        for head in range(heads):
            group = head * kv_heads // heads
            scores = q[:, head] @ k[:, group].T / arithmetic.dtype(math.sqrt(dim))
            attended[:, head] = arithmetic.weights(softmax(scores + hidden_keys)) @ v[:, group]
        attended = arithmetic.store(attended).reshape(count, heads * dim)
        x = arithmetic.store(x + linear(prefix + "self_attn.o_proj", attended))
        normed = arithmetic.norm(x, weights[prefix + "post_attention_layernorm.weight"], epsilon)
        gate = arithmetic.silu(linear(prefix + "mlp.gate_proj", normed))
        gated = arithmetic.store(gate * linear(prefix + "mlp.up_proj", normed))
        x = arithmetic.store(x + linear(prefix + "mlp.down_proj", gated))
    x = arithmetic.norm(x, weights["model.norm.weight"], epsilon)
    tied = config["tie_word_embeddings"]
    return linear("model.embed_tokens" if tied else "lm_head", x).astype(np.float64)


def logits(model, tokens, cache=None, first=None):
    """In float64. `cache`: the dtype in which keys and values are kept; None: float64. `first`: a number of
    positions and the weights, by name, that the products of the layers have for these instead of the model's
    own."""
    return compute(model, tokens, Arithmetic(), cache, first)


def logits_bf16(model, tokens):
    """As PyTorch computes them with bfloat16 tensors on a CPU."""
    return compute(model, tokens, PyTorchBf16(), None)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def entropy(x):
    """In nats, of each row of logits."""
    log_p = log_softmax(x)
    return -(np.exp(log_p) * log_p).sum(-1)


def divergence(exact, other):
    """The Kullback-Leibler divergence of each row of logits from the exact row, in nats."""
    log_p = log_softmax(exact)
    return (np.exp(log_p) * (log_p - log_softmax(other))).sum(-1)
