"""A language model of the Llama form in NumPy, with its gradients: small enough to be trained in a
demonstration.

    model = TinyLlama(Shape(vocab=512), numpy.random.default_rng(1))
    loss, gradients = model.loss_and_gradients(tokens)      # tokens: [sequences, positions + 1]
    optimizer = AdamW(model)
    optimizer.step(gradients, rate=3e-3)
    model.tensors()                                         # {name as in safetensors: array}

Rotary positions, grouped keys and values, RMS norms and the gated MLP are those of transformers'
LlamaForCausalLM with tied embeddings. Parameters and gradients are one flat array each; the matrices
are views. All matrix products go through a function, so that a faster one than NumPy's can be given.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    vocab: int
    layers: int = 2
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 24
    intermediate: int = 192
    theta: float = 10000.0
    epsilon: float = 1e-5

    def config(self, positions, end_token):
        """config.json for transformers."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "eos_token_id": end_token,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": positions,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "tie_word_embeddings": True,
            "vocab_size": self.vocab,
        }

    def tensors(self):
        """Shapes by name, in the order of the flat array."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            for name, shape in (("input_layernorm", (self.hidden,)),
                                ("self_attn.q_proj", (q, self.hidden)),
                                ("self_attn.k_proj", (kv, self.hidden)),
                                ("self_attn.v_proj", (kv, self.hidden)),
                                ("self_attn.o_proj", (self.hidden, q)),
                                ("post_attention_layernorm", (self.hidden,)),
                                ("mlp.gate_proj", (self.intermediate, self.hidden)),
                                ("mlp.up_proj", (self.intermediate, self.hidden)),
                                ("mlp.down_proj", (self.hidden, self.intermediate))):
                shapes[prefix + name + ".weight"] = shape
        shapes["model.norm.weight"] = (self.hidden,)
        return shapes


def views(flat, shape):
    """The tensors of a flat array, by name."""
    found, at = {}, 0
    for name, size in shape.tensors().items():
        count = math.prod(size)
        found[name] = flat[at:at + count].reshape(size)
        at += count
    return found


class TinyLlama:
    """`multiply`: a function of two matrices, or two stacks of matrices, that returns the product."""

    def __init__(self, shape, rng, dtype=np.float32, multiply=np.matmul):
        self.shape = shape
        self.multiply = multiply
        self.flat = np.zeros(sum(math.prod(size) for size in shape.tensors().values()), dtype)
        self.weights = views(self.flat, shape)
        for name, w in self.weights.items():
            if w.ndim == 1:
                w[:] = 1
                continue
            w[:] = rng.standard_normal(w.shape) / math.sqrt(shape.hidden)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                w *= 0.3  # At first the layers change little.

    def tensors(self):
        return self.weights

    def logits(self, tokens):
        """Of the tokens that follow each position: [sequences * positions, vocab]."""
        x, _ = self._layers(tokens)
        normed, _ = _norm(x, self.weights["model.norm.weight"], self.shape.epsilon)
        return self.multiply(normed, self.weights["model.embed_tokens.weight"].T)

    def loss_and_gradients(self, tokens):
        """The mean negative log-likelihood of each token after those before it, in nats, and its
        gradient as a flat array. `tokens`: integers [sequences, positions + 1]."""
        shape, w = self.shape, self.weights
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        gradients = np.zeros_like(self.flat)
        g = views(gradients, shape)
        table = w["model.embed_tokens.weight"]
        x, layers = self._layers(inputs)
        normed, scale = _norm(x, w["model.norm.weight"], shape.epsilon)
        loss, dlogits = _cross_entropy(self.multiply(normed, table.T), targets.reshape(-1))
        g["model.embed_tokens.weight"] += self.multiply(dlogits.T, normed)
        dx = _norm_backward(self.multiply(dlogits, table), x, w["model.norm.weight"], scale,
                            g["model.norm.weight"])
        for names, attention, mlp in reversed(layers):
            dx = self._mlp_backward(dx, names, mlp, g)
            dx = self._attention_backward(dx, names, attention, g)
        np.add.at(g["model.embed_tokens.weight"], inputs.reshape(-1), dx)
        return loss, gradients

    def _layers(self, inputs):
        x = self.weights["model.embed_tokens.weight"][inputs].reshape(-1, self.shape.hidden)
        kept = []
        for layer in range(self.shape.layers):
            names = _LayerNames(layer)
            x, attention = self._attention(x, inputs.shape, names)
            x, mlp = self._mlp(x, names)
            kept.append((names, attention, mlp))
        return x, kept

    # Each part returns its output and what its gradient needs.

    def _attention(self, x, batch, names):
        shape, w = self.shape, self.weights
        sequences, positions = batch
        normed, scale = _norm(x, w[names.norm], shape.epsilon)
        angles = np.arange(positions)[:, None] * shape.theta ** (
            -np.arange(0, shape.head_dim, 2) / shape.head_dim)
        turn = (np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype))

        def project(name, heads):
            y = self.multiply(normed, w[name].T)
            return y.reshape(sequences, positions, heads, shape.head_dim).transpose(0, 2, 1, 3)

        group = shape.heads // shape.kv_heads
        q = _rotate(project(names.q, shape.heads), *turn)
        k = _rotate(project(names.k, shape.kv_heads), *turn).repeat(group, axis=1)
        v = project(names.v, shape.kv_heads).repeat(group, axis=1)
        stack = (sequences * shape.heads, positions, shape.head_dim)
        q, k, v = (np.ascontiguousarray(each).reshape(stack) for each in (q, k, v))
        scores = self.multiply(q, k.transpose(0, 2, 1)) / math.sqrt(shape.head_dim)
        scores += np.triu(np.full((positions, positions), -np.inf, x.dtype), 1)
        scores -= scores.max(-1, keepdims=True)
        p = np.exp(scores)
        p /= p.sum(-1, keepdims=True)
        mixed = self.multiply(p, v).reshape(sequences, shape.heads, positions, shape.head_dim)
        mixed = mixed.transpose(0, 2, 1, 3).reshape(-1, shape.heads * shape.head_dim)
        out = x + self.multiply(mixed, w[names.o].T)
        return out, (x, normed, scale, turn, q, k, v, p, mixed, batch)

    def _attention_backward(self, dout, names, kept, g):
        shape, w = self.shape, self.weights
        x, normed, scale, turn, q, k, v, p, mixed, (sequences, positions) = kept
        g[names.o] += self.multiply(dout.T, mixed)
        dmixed = self.multiply(dout, w[names.o]).reshape(sequences, positions, shape.heads, -1)
        dmixed = np.ascontiguousarray(dmixed.transpose(0, 2, 1, 3)).reshape(q.shape)
        dv = self.multiply(p.transpose(0, 2, 1), dmixed)
        dp = self.multiply(dmixed, v.transpose(0, 2, 1))
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(shape.head_dim)
        dq, dk = self.multiply(ds, k), self.multiply(ds.transpose(0, 2, 1), q)

        def ungroup(d):
            return d.reshape(sequences, shape.kv_heads, -1, positions, shape.head_dim).sum(2)

        dq = _rotate(dq.reshape(sequences, shape.heads, positions, -1), turn[0], -turn[1])
        dnormed = np.zeros_like(normed)
        for name, d in ((names.q, dq), (names.k, _rotate(ungroup(dk), turn[0], -turn[1])),
                        (names.v, ungroup(dv))):
            d = d.transpose(0, 2, 1, 3).reshape(normed.shape[0], -1)
            g[name] += self.multiply(d.T, normed)
            dnormed += self.multiply(d, w[name])
        return dout + _norm_backward(dnormed, x, w[names.norm], scale, g[names.norm])

    def _mlp(self, x, names):
        w = self.weights
        normed, scale = _norm(x, w[names.mlp_norm], self.shape.epsilon)
        gate = self.multiply(normed, w[names.gate].T)
        up = self.multiply(normed, w[names.up].T)
        sigmoid = 1 / (1 + np.exp(-gate))
        gated = gate * sigmoid * up
        return x + self.multiply(gated, w[names.down].T), (x, normed, scale, gate, up, sigmoid, gated)

    def _mlp_backward(self, dout, names, kept, g):
        w = self.weights
        x, normed, scale, gate, up, sigmoid, gated = kept
        g[names.down] += self.multiply(dout.T, gated)
        dgated = self.multiply(dout, w[names.down])
        dup = dgated * gate * sigmoid
        dgate = dgated * up * sigmoid * (1 + gate * (1 - sigmoid))
        g[names.gate] += self.multiply(dgate.T, normed)
        g[names.up] += self.multiply(dup.T, normed)
        dnormed = self.multiply(dgate, w[names.gate]) + self.multiply(dup, w[names.up])
        return dout + _norm_backward(dnormed, x, w[names.mlp_norm], scale, g[names.mlp_norm])


class _LayerNames:
    def __init__(self, layer):
        prefix = f"model.layers.{layer}."
        self.norm = prefix + "input_layernorm.weight"
        self.q, self.k, self.v, self.o = (f"{prefix}self_attn.{name}_proj.weight" for name in "qkvo")
        self.mlp_norm = prefix + "post_attention_layernorm.weight"
        self.gate, self.up, self.down = (f"{prefix}mlp.{name}_proj.weight"
                                         for name in ("gate", "up", "down"))


def _norm(x, weight, epsilon):
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(epsilon))
    return x * scale * weight, scale


def _norm_backward(dy, x, weight, scale, dweight):
    dweight += (dy * x * scale).sum(0)
    dscaled = dy * weight
    return scale * (dscaled - x * scale * scale * (dscaled * x).mean(-1, keepdims=True))


def _rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], -1)


def _cross_entropy(logits, targets):
    """The mean loss, and its gradient with respect to the logits."""
    rows = np.arange(len(targets))
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    loss = -np.log(p[rows, targets]).mean(dtype=np.float64)
    p[rows, targets] -= 1
    return loss, p / p.dtype.type(len(targets))


class AdamW:
    """Matrices decay, the weights of norms do not. The gradient's norm is limited to 1."""

    def __init__(self, model, beta1=0.9, beta2=0.98, decay=0.05, epsilon=1e-8):
        self.model, self.beta1, self.beta2, self.epsilon = model, beta1, beta2, epsilon
        self.mean = np.zeros_like(model.flat)
        self.square = np.zeros_like(model.flat)
        self.decay = np.zeros_like(model.flat)
        for tensor in views(self.decay, model.shape).values():
            tensor[:] = decay if tensor.ndim == 2 else 0
        self.steps = 0

    def step(self, gradients, rate):
        self.steps += 1
        norm = math.sqrt(float((gradients.astype(np.float64) ** 2).sum()))
        gradients = gradients * min(1.0, 1 / (norm + 1e-6))
        self.mean += (1 - self.beta1) * (gradients - self.mean)
        self.square += (1 - self.beta2) * (gradients * gradients - self.square)
        mean = self.mean / (1 - self.beta1**self.steps)
        square = self.square / (1 - self.beta2**self.steps)
        p = self.model.flat
        p -= rate * (mean / (np.sqrt(square) + self.epsilon) + self.decay * p)
