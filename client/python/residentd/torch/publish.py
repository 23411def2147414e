"""Python functions of torch as operators of the daemon: versioned, shared by processes, and compared with torch.

    swish = rt.publish(lambda x, beta=1.0: x * torch.sigmoid(beta * x), "swish", examples=[torch.randn(4, 8)])
    y = swish(x, beta=2.0)

publish() traces the function (trace.py), lowers the graph to an expression (lowering.py) and installs it with
examples whose outputs torch computed, so that the daemon compares the new version with torch before it serves.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union, cast

import numpy as np
import torch

from .. import dtypes
from ..dtypes import DType
from ..errors import InvalidArgument
from ..lane import MAX_WORDS
from ..operators import Example
from . import lowering
from .lane import current
from .operators import ops
from .tensors import from_array
from .trace import dtype_name, parameters_of, trace

if TYPE_CHECKING:
    from ..client import Client

# Sizes of the tensors of random examples, in the order in which they replace those of the first example.
_SIZES = (3, 5, 7, 2, 11, 13, 17, 19)
_SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5, -2.5, 88.0, -88.0, 3e4, -3e4)
# The smallest normal number.
_SMALLEST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-14}
# Of random examples.
KINDS = ("normal", "special", "denormal", "empty")


class Published:
    """An operator that publish() has installed. Calling it runs the version that is active, as rt.ops.NAME does:
    tensors by position, in the order of the function's parameters, scalars by position behind them or by keyword. With
    more than 6 tensors the call goes over gRPC, because a call of a lane names at most 7 with the output.
    """

    def __init__(self, client: "Client", name: str, version: int, expression: str, tensors: int,
                 scalars: Sequence[str]) -> None:
        self._client = client
        self._tensors = tensors
        self._scalars = tuple(scalars)
        self.name = name
        self.version = version  # That this publish() installed.
        self.expression = expression

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > self._tensors + len(self._scalars):
            raise InvalidArgument("{} takes {} arguments and got {}".format(
                self.name, self._tensors + len(self._scalars), len(args)), "pass out= by keyword")
        for name, value in zip(self._scalars, args[self._tensors:]):
            if name in kwargs:
                raise InvalidArgument("{} got '{}' twice".format(self.name, name), "pass it once")
            kwargs[name] = value
        if self._tensors < MAX_WORDS:
            return ops[self.name](*args[:self._tensors], **kwargs)
        # More tensors than a call of a lane has.
        made = self._client.op(self.name)(*args[:self._tensors], **kwargs)
        return from_array(made, cast(DType, dtypes.of_array(made))).to(args[0].device)

    def remove(self) -> None:
        """Removes the operator with all its versions."""
        self._client.operators.remove(self.name)

    def __repr__(self) -> str:
        return "<published {}: {}>".format(self.name, self.expression)


def publish(fn: Callable[..., Any], name: str, examples: Sequence[Union[torch.Tensor, Sequence[Any]]], *,
            client: Optional["Client"] = None, wait: str = "active", random_examples: int = len(KINDS),
            relative_tolerance: float = 0.0, absolute_tolerance: float = 0.0, **options: Any) -> Published:
    """Installs a function of torch as an operator, and returns it.

    fn: its parameters are those of the operator, in their order; one with a number as its default is a scalar
        (float32), which each call may change. It returns one tensor. docs/pytorch.md lists the operations.
    examples: arguments for fn, each a tensor or a sequence of tensors and of scalars behind them, all of the same
        dtypes (float32, float16, bfloat16). The operator accepts these dtypes, and any shapes that broadcast. The
        daemon compares its outputs with those of fn.
    client: None: that of this thread's lane.
    wait: "validated", "loaded" or "active".
    random_examples: how many examples with random inputs are added: ordinary numbers, special numbers (NaN,
        infinities, zeros), denormal numbers, and empty tensors, in this order and then again; of other shapes than
        those of the first example. The same function has the same examples.
    relative_tolerance, absolute_tolerance: |out - expected| <= absolute + relative * |expected|. Both 0: those of the
        dtype (docs/validation.md).
    options: of residentd.Operators.install, such as label and summary.

    InvalidArgument: fn does something that an expression cannot do with torch's results (details: node, target,
    source), or the daemon refused the version.
    """
    if client is None:
        client = current().client
    parameters = parameters_of(fn, name)
    inputs = [each.name for each in parameters if each.default is each.empty]
    scalars = {each.name: float(each.default) for each in parameters if each.default is not each.empty}
    given = [_arguments(each, i, name, inputs, scalars) for i, each in enumerate(examples)]
    if not given:
        raise InvalidArgument("publish() of {} got no example".format(name),
                              "pass at least one: its tensors say the dtypes and the numbers of dimensions")
    first = given[0][:len(inputs)]
    for i, each in enumerate(given):
        if [tensor.dtype for tensor in each[:len(inputs)]] != [tensor.dtype for tensor in first]:
            raise InvalidArgument("example {} of {} has other dtypes than example 0".format(i, name),
                                  "publish the function once for each combination of dtypes, with names of their own")
    text = expression_of(fn, name, first)
    generator = torch.Generator().manual_seed(int(hashlib.sha256((name + text).encode()).hexdigest()[:15], 16))
    kinds = [""] * len(given) + [KINDS[i % len(KINDS)] for i in range(random_examples)]
    for i in range(random_examples):
        tensors = random_inputs(first, KINDS[i % len(KINDS)], generator)
        varied = [value * (1 + float(torch.rand((), generator=generator)) if i else 1) for value in scalars.values()]
        given.append([*tensors, *varied])
    made = []
    for kind, each in zip(kinds, given):
        with torch.no_grad():
            expected = by_element(fn, each) if kind == "special" else fn(*each)
        made.append(Example(*each[:len(inputs)], expected, *(np.float32(value) for value in each[len(inputs):]),
                            relative_tolerance=relative_tolerance, absolute_tolerance=absolute_tolerance))
    options.setdefault("summary", (inspect.getdoc(fn) or "").split("\n")[0] if inspect.isfunction(fn) else "")
    installed = client.operators.install(name, expr=text, examples=made, wait=wait, **options)
    return Published(client, name, installed.version, text, len(inputs), list(scalars))


def expression_of(fn: Callable[..., Any], name: str, tensors: Sequence[torch.Tensor]) -> str:
    """The expression of a function for tensors of these dtypes. InvalidArgument if there is none, also if it would
    depend on the shapes: an operator runs for all shapes."""
    text = lowering.lower(trace(fn, name, [(each.shape, each.dtype) for each in tensors]))
    fix = "compute what depends on the shape before the call, and pass it as a scalar or a tensor"
    try:
        shapes = _other_shapes(tensors)
        other = lowering.lower(trace(fn, name, [(shape, each.dtype) for shape, each in zip(shapes, tensors)]))
    except InvalidArgument as error:
        raise InvalidArgument("{} cannot be traced with other shapes than those of the first example: {}".format(
            name, error.message), fix) from error
    if other != text:
        raise InvalidArgument("{} computes something else for other shapes: {} in place of {}".format(
            name, other, text), fix)
    return text


def _other_shapes(tensors: Sequence[Any]) -> List[Tuple[int, ...]]:
    """Small shapes that broadcast as those of the tensors do: equal sizes stay equal, others differ; 1 stays 1."""
    sizes: Dict[int, int] = {1: 1}
    for tensor in tensors:
        for size in tensor.shape:
            if size not in sizes:
                unused = (each for each in (*_SIZES, *range(20, 10000)) if each != size and each not in sizes.values())
                sizes[size] = next(unused)
    return [tuple(sizes[size] for size in tensor.shape) for tensor in tensors]


def random_inputs(like: Sequence[Any], kind: str, generator: torch.Generator) -> List[torch.Tensor]:
    """Tensors of the same dtypes, devices and numbers of dimensions as `like`, and of other shapes. kind: one of
    "normal", "special" (NaN, infinities, zeros), "denormal", "empty"."""
    made = []
    for tensor, shape in zip(like, _other_shapes(like)):
        if kind == "empty" and shape and shape[-1] != 1:
            shape = shape[:-1] + (0,)
        values = torch.randn(shape, generator=generator) * 3
        if kind == "special":
            special = torch.tensor(_SPECIAL)[torch.randint(len(_SPECIAL), shape, generator=generator)]
            values = torch.where(torch.rand(shape, generator=generator) < 0.7, special, values)
        elif kind == "denormal":
            values = values * (_SMALLEST[tensor.dtype] / 16)
        made.append(values.to(tensor.dtype).to(tensor.device))
    return made


def by_element(fn: Callable[..., Any], arguments: Sequence[Any]) -> torch.Tensor:
    """fn of tensors, and scalars behind them, computed for one element after the other, at most 1,000. On a CPU torch
    computes several elements with vector instructions, which give NaN for some infinities: gelu(inf) in torch 2.15."""
    whole: torch.Tensor = fn(*arguments)
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    if whole.device.type != "cpu" or not 1 < whole.numel() <= 1000:
        return whole
    columns = [each.expand(whole.shape).flatten() for each in tensors]
    scalars = arguments[len(tensors):]
    made = [fn(*(column[i].reshape([1] * each.dim()) for column, each in zip(columns, tensors)), *scalars)
            for i in range(whole.numel())]
    return torch.stack([each.flatten()[0] for each in made]).reshape(whole.shape)


def _arguments(example: Any, index: int, name: str, inputs: Sequence[str], scalars: Dict[str, float]) -> List[Any]:
    """All arguments of an example: tensors, then scalars."""
    if not isinstance(example, (torch.Tensor, list, tuple)):
        raise InvalidArgument("example {} of {} is {}".format(index, name, type(example).__name__),
                              "pass a tensor, or a tuple of tensors and of scalars behind them")
    values = [example] if isinstance(example, torch.Tensor) else list(example)
    if not len(inputs) <= len(values) <= len(inputs) + len(scalars):
        raise InvalidArgument("example {} of {} has {} arguments".format(index, name, len(values)),
                              "pass a tensor for each of: {}; then scalars".format(", ".join(inputs) or "(no tensor)"))
    tensors = []
    for parameter, value in zip(inputs, values):
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument("'{}' in example {} of {} is {}, not a tensor".format(
                parameter, index, name, type(value).__name__),
                "pass a tensor, or give the parameter a number as its default")
        if dtype_name(value.dtype) not in lowering.FLOATS:
            raise InvalidArgument("'{}' in example {} of {} is {}".format(parameter, index, name, value.dtype),
                                  "pass float32, float16 or bfloat16")
        tensors.append(value.detach())
    numbers = [float(value) for value in values[len(inputs):]]
    return [*tensors, *numbers, *list(scalars.values())[len(numbers):]]
