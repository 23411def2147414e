"""Plain descriptions (lowering.py) of graphs of torch.fx, and of Python functions by tracing them."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import logging
import math
import os
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.fx.traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from ..errors import Error, InvalidArgument

# Names of dtypes in descriptions. Others have torch's.
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "bool"}

_LINE_CHARACTERS = 100
_tracing = threading.Lock()  # torch traces one function at a time.
# Frames of these folders are not of the function that is published.
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def dtype_name(dtype: torch.dtype) -> str:
    return NAMES.get(dtype) or str(dtype).split(".")[-1]


def describe(graph: torch.fx.Graph, name: str, inputs: Mapping[str, str], scalars: Mapping[str, Tuple[str, float]],
             output: torch.fx.Node) -> Dict[str, Any]:
    """The description of what computes `output`.

    inputs: name of each placeholder that is a tensor to that of the parameter; scalars: the same for numbers, with
    the defaults.
    """
    made: Dict[str, Any] = {"name": name, "inputs": [], "scalars": [], "nodes": [], "output": output.name}
    renamed = dict(inputs)
    renamed.update({placeholder: parameter for placeholder, (parameter, _) in scalars.items()})
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op in ("output", "get_attr") or node.op == "placeholder" and node.name not in renamed:
            if node.op == "get_attr":
                made["nodes"].append(_constant(node, name))
            continue
        if node.name in inputs:
            dtype, shape = _kind(value)
            made["inputs"].append({"name": inputs[node.name], "dtype": dtype, "shape": shape})
        elif node.name in scalars:
            made["scalars"].append({"name": scalars[node.name][0], "default": scalars[node.name][1]})
        else:
            dtype, shape = _kind(value)
            described = {"name": node.name, "target": target_of(node), "dtype": dtype, "shape": shape,
                         "args": [_argument(each, renamed) for each in node.args],
                         "kwargs": {key: _argument(each, renamed) for key, each in node.kwargs.items()
                                    if key not in ("layout", "device", "pin_memory", "non_blocking")}}
            if node.stack_trace:
                described["source"] = node.stack_trace
            made["nodes"].append(described)
    made["output"] = renamed.get(output.name, output.name)
    return made


def _kind(value: Any) -> Tuple[str, Optional[List[int]]]:
    """The dtype of a description, and the shape."""
    if isinstance(value, torch.Tensor):
        known = all(isinstance(size, int) for size in value.shape)
        return dtype_name(value.dtype), list(value.shape) if known else None
    if isinstance(value, (torch.SymFloat, float)):
        return "number", []
    return type(value).__name__, []


def target_of(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)  # "aten.mul.Tensor".
    name = getattr(node.target, "__name__", str(node.target))
    return "operator." + name if getattr(node.target, "__module__", "") == "_operator" else name


def _argument(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": renamed.get(value.name, value.name)}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_argument(each, renamed) for each in value]
    return str(value)


def _constant(node: torch.fx.Node, name: str) -> Dict[str, Any]:
    """A tensor that the function makes of Python's numbers, or that it takes from outside."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    held = getattr(owner, "constant", None) if isinstance(owner, torch._subclasses.fake_tensor.FakeTensor) else owner
    if held is None or held.dim() != 0:
        raise InvalidArgument("{} uses a tensor of shape {} that is not an argument".format(name, list(owner.shape)),
                              "make it a parameter of the function: expressions have numbers as constants")
    return {"name": node.name, "target": "constant", "dtype": dtype_name(held.dtype), "shape": [],
            "args": [_argument(held.item(), {})], "kwargs": {}}


class _Lines(TorchFunctionMode):
    """Notes for each node the line of the function that made it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN)):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            fx_traceback.set_stack_trace([_line(frame.f_code.co_filename, frame.f_lineno)])
        return function(*args, **(kwargs or {}))


def _line(path: str, number: int) -> str:
    text = linecache.getline(path, number).strip()[:_LINE_CHARACTERS]
    return "{}:{}{}".format(os.path.basename(path), number, ": " + text if text else "")


def parameters_of(function: Callable[..., Any], name: str) -> List[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InvalidArgument("{} has no signature that Python knows".format(name),
                              "write a Python function that calls it") from None
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument("parameter '{}' of {} is not positional".format(parameter.name, name),
                                  "use plain parameters")
        default = parameter.default
        if default is not parameter.empty and (isinstance(default, bool) or not isinstance(default, (int, float))):
            raise InvalidArgument("the default of '{}' is not a number".format(parameter.name),
                                  "use a number, which makes it a scalar, or no default")
    return parameters


def trace(function: Callable[..., Any], name: str,
          tensors: Sequence[Tuple[Sequence[int], torch.dtype]]) -> Dict[str, Any]:
    """The description of a function for inputs of these shapes and dtypes. Its parameters with a number as their
    default are scalars, whose values are not known: a branch on them is refused."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

    parameters = parameters_of(function, name)
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, static_shapes=True, allow_non_fake_inputs=False)
    given: List[Any] = []
    rest = iter(tensors)
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            with shapes.ignore_fresh_unbacked_symbols():  # No operation of the function makes it.
                given.append(shapes.create_unbacked_symfloat())
            continue
        shape, dtype = next(rest)
        given.append(mode.from_tensor(torch.empty(tuple(shape), dtype=dtype)))

    def flat(*values: Any) -> Any:  # make_fx names placeholders after parameters.
        with _Lines():
            return function(*values)

    try:
        with _tracing, _quiet(), mode, fx_traceback.preserve_node_meta():
            graph = make_fx(flat)(*given)
    except Error:
        raise
    except GuardOnDataDependentSymNode as error:
        raise InvalidArgument(
            "{} needs the value of a scalar when it is published, at {}".format(name, _last_line(error)),
            "torch.where selects elements in place of if; use a scalar where torch takes tensors as "
            "torch.full_like(x, scalar)") from error
    except Exception as error:
        raise InvalidArgument("{} cannot be traced, at {}: {}: {}".format(
            name, _last_line(error), type(error).__name__, str(error).split("\n")[0]),
            "use operations of torch on the arguments only: tensors from outside must be parameters, and elements "
            "have no values when a function is published") from error
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    inputs, scalars = {}, {}
    for node, parameter in zip(placeholders, parameters):
        if parameter.default is parameter.empty:
            inputs[node.name] = parameter.name
        else:
            scalars[node.name] = (parameter.name, float(parameter.default))
    returned = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    if isinstance(returned, (tuple, list)):
        raise InvalidArgument("{} returns {} values, and an expression has one".format(name, len(returned)),
                              "publish a function for each")
    if not isinstance(returned, torch.fx.Node):
        raise InvalidArgument("{} returns {!r}, which does not depend on its arguments".format(name, returned),
                              "return the result")
    return describe(graph.graph, name, inputs, scalars, returned)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log of errors that it raises, too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _last_line(error: BaseException) -> str:
    """The innermost line of an error that is not torch's."""
    found = "an unknown line"
    trace_back = error.__traceback__
    while trace_back is not None:
        path = trace_back.tb_frame.f_code.co_filename
        if not path.startswith((_TORCH, _OWN)):
            found = _line(path, trace_back.tb_lineno)
        trace_back = trace_back.tb_next
    return found
