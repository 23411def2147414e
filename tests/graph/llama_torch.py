"""Llama models in PyTorch with bfloat16 tensors on the CPU, as transformers compute them.

    other = logits(model, tokens)      # float64: [positions, vocab]

ImportError: there is no PyTorch.
"""

import torch
import torch.nn.functional as F

import llama_reference as reference


def norm(x, weight, epsilon):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


@torch.no_grad()
def logits(model, tokens):
    config = model.config
    w = {name: torch.from_numpy(values).to(torch.bfloat16) for name, values in model.weights.items()}
    epsilon, dim = config["rms_norm_eps"], config["head_dim"]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    frequencies = torch.from_numpy(reference.frequencies(config)).float()
    angles = torch.arange(len(tokens)).float()[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    turn = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    x = F.embedding(torch.tensor(tokens), w["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = norm(x, w[prefix + "input_layernorm.weight"], epsilon)
        q, k, v = (linear(f"{prefix}self_attn.{name}_proj", normed).view(len(tokens), -1, dim)
                   .transpose(0, 1) for name in "qkv")
        q, k = rotate(q, *turn), rotate(k, *turn)
        k, v = (each.repeat_interleave(group, 0) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + linear(prefix + "self_attn.o_proj", mixed.transpose(0, 1).flatten(1))
        normed = norm(x, w[prefix + "post_attention_layernorm.weight"], epsilon)
        gated = F.silu(linear(prefix + "mlp.gate_proj", normed)) * linear(prefix + "mlp.up_proj", normed)
        x = x + linear(prefix + "mlp.down_proj", gated)
    x = norm(x, w["model.norm.weight"], epsilon)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return linear(head, x).double().numpy()
