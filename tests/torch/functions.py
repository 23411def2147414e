"""Functions of torch that the tests publish. Together they use every operation that publish() accepts."""

import math

import torch
import torch.nn.functional as F

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


class Case:
    """A function, and the dtypes and shapes of its tensors."""

    def __init__(self, name, function, *shapes, dtypes=(F32,)):
        self.name = name
        self.function = function
        self.shapes = shapes or ((4, 6),)
        self.dtypes = dtypes * len(self.shapes) if len(dtypes) == 1 else dtypes

    def examples(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return [tuple((torch.randn(shape, generator=generator) * 2).to(dtype)
                      for shape, dtype in zip(self.shapes, self.dtypes))]


def swish(x, beta=1.0):
    return x * torch.sigmoid(beta * x)


def axpy(x, y, a=2.0):
    return torch.add(y, x, alpha=a)


def gated(gate, up):
    return F.silu(gate) * up


def mish(x):
    return x * torch.tanh(F.softplus(x))


def huber(x, y, delta=1.0):
    error = torch.abs(x - y)
    return torch.where(error < delta, 0.5 * error * error, delta * (error - 0.5 * delta))


def smooth_clip(x, limit=2.0):
    return torch.where(torch.abs(x) < limit, x, limit * torch.tanh(x / limit))


def normalize(x, mean, variance):
    return (x - mean) * torch.rsqrt(variance * variance + 1e-5)


def logical(x, y):
    inside = (x > -1) & (x <= 1) | ~(y < 0)
    strange = torch.logical_xor(x == y, torch.logical_not(y)) & torch.logical_or(x != 2, y >= 3)
    return torch.where(inside, x, y) + strange * 2.0 + torch.logical_and(x, y).to(x.dtype)


def select_nan(x, fill=0.25):
    return torch.where(torch.isnan(x), torch.full_like(x, fill), x).masked_fill(torch.isinf(x), -1.0)


def powers(x):
    return x**0.5 + x**2 - x**3 + (x**-1 + x**-0.5) * x**-2 + x**1 + torch.abs(x)**1.7


def power_of(x, y):
    return torch.pow(torch.abs(x), y) + torch.pow(2.0, x)


def rounding(x):
    return torch.floor(x) + torch.ceil(x) * 2 + torch.round(x) * 3 + torch.trunc(x) * 4


def fills(x):
    return x * torch.ones_like(x) + torch.zeros_like(x) + torch.full((), 0.1) + torch.tensor(0.2)


def reverse(x, b=3.0):
    return b - x + (1 - x) / b - torch.div(x, b, rounding_mode="trunc") + torch.rsub(x, 2, alpha=3)


def clamps(x, low=-1.5, high=2.5):
    y = torch.clamp(x, low, high) + torch.clamp(x, min=-0.5) + torch.clamp(x, max=0.75)
    return y + F.hardtanh(x, -0.25, 0.5) + F.relu6(x)


def mixed(x, y):
    return (x.half() * 3.3 + y.bfloat16()).float() - x.bfloat16().half().float()


def autocast_gelu(x, bias):
    return F.gelu(x.float() + bias).to(x.dtype)


def chain_of_halves(x, y):
    t = torch.exp(x * 0.5) * y
    return torch.sqrt(torch.abs(t - x)) / (1 + y * y)


def half_compare(x, y):
    return torch.where(x * 1.1 > y, torch.maximum(x, y), torch.minimum(x, y)) + (x == 0.1)


def decay(x, rate=0.5, t=3.0):
    return x * torch.exp(torch.full_like(x, -rate * t)) + rate / t


def eleven(a, b, c, d, e, f, g, h, i, j, k):
    return a + b * c - d / e + f * g - h * i + j * k


def one_operation(name, function, *shapes):
    return [Case("{}_{}".format(name, label), function, *(shapes or ((5, 7),)), dtypes=(dtype,))
            for label, dtype in (("f32", F32), ("f16", F16), ("bf16", BF16))]


CASES = [
    Case("swish", swish), Case("axpy", axpy, (4, 6), (6,)), Case("gated", gated, (4, 6), (4, 6)), Case("mish", mish),
    Case("huber", huber, (3, 5), (3, 5)), Case("smooth_clip", smooth_clip), Case("normalize", normalize, (4, 6), (4, 1), (4, 1)),
    Case("logical", logical, (4, 6), (4, 6)), Case("select_nan", select_nan), Case("powers", powers),
    Case("power_of", power_of, (4, 6), (6,)), Case("rounding", rounding), Case("fills", fills), Case("reverse", reverse),
    Case("clamps", clamps), Case("mixed", mixed, (4, 6), (4, 6)),
    Case("autocast_gelu", autocast_gelu, (4, 6), (6,), dtypes=(BF16, F32)),
    Case("chain_of_halves", chain_of_halves, (4, 6), (1, 6), dtypes=(F16,)),
    Case("chain_of_bfloats", chain_of_halves, (4, 6), (4, 1), dtypes=(BF16,)),
    Case("half_compare", half_compare, (4, 6), (4, 6), dtypes=(F16,)), Case("decay", decay),
    Case("eleven", eleven, *[(4, 6), (6,), (4, 1), ()] * 2, (4, 6), (1, 1), (6,)),
    Case("tanh_gelu", lambda x: F.gelu(x, approximate="tanh")), Case("gelu", lambda x: F.gelu(x)),
    Case("elu_family", lambda x, alpha=0.5: F.elu(x, alpha) + F.selu(x) + F.leaky_relu(x, alpha) + F.relu(x)),
    Case("soft_family", lambda x, beta=2.0: F.softplus(x, beta, 15.0) + F.hardsigmoid(x) + F.hardswish(x)),
    Case("waves", lambda x: torch.sin(x) * torch.cos(2 * x) + torch.tanh(x) - torch.erf(x)),
    Case("logarithms", lambda x: torch.log(torch.abs(x) + 0.5) + torch.log1p(x * x) + torch.expm1(-torch.abs(x))),
    Case("reciprocal", lambda x: torch.reciprocal(x) - torch.neg(x)), Case("scaled", lambda x: x * math.pi - -0.0 / x),
    Case("hard_bfloats", lambda x: F.hardswish(x) * F.sigmoid(x) + F.softplus(x), dtypes=(BF16,)),
    Case("silu_f16", lambda x: F.silu(x), dtypes=(F16,)),
    *one_operation("sigmoid", lambda x: torch.sigmoid(x)), *one_operation("exp", lambda x: torch.exp(x)),
    *one_operation("mul", lambda x, y: x * y, (3, 5), (5,)),
]
