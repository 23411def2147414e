"""Expressions (docs/operators.md) from graphs of torch's operations.

lower() takes a plain description of a graph, which trace.py makes of one of torch.fx, and does not need torch:

    {"name": "swish",
     "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}],
     "scalars": [{"name": "beta", "default": 1.0}],
     "nodes": [{"name": "mul", "target": "aten.mul.Tensor", "args": [{"node": "x"}, {"node": "beta"}],
                "kwargs": {}, "dtype": "f32", "shape": [2, 3], "source": "model.py:7: x * beta"}],
     "output": "mul"}

A shape is null if it is not known. An argument is null, a truth value, a number, a text, a list, {"node":
name}, {"dtype": name} or {"number": "inf"} ("-inf", "nan"). dtype of a node is "f32", "f16", "bf16", "bool", or
"number" for a number that Python computes.

Expressions compute in float32, as torch does within each operation. torch rounds what an operation returns to
its dtype. Therefore a value in f16 or bf16 is rounded, with the same bits as by a conversion, before the next
operation uses it; the output is rounded when it is stored. The formulas are those of torch's kernels, so that NaN,
infinities and denormal numbers have torch's results.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .. import dtypes
from ..errors import Error, InvalidArgument
from ..expression import Symbol, _check_name, _node, _Node, _number, call, formula
from ..signature import broadcast, shape_text

FLOATS = ("f32", "f16", "bf16")
_HALVES = ("f16", "bf16")
# An expression has one output, and an operator at most 14 parameters.
MAX_PARAMETERS = 14


class _Value:
    """The value of a node: of one of FLOATS, "bool" (a comparison), or "number" (a scalar of the operator, and
    what Python computes with it)."""

    __slots__ = ("symbol", "dtype", "exact")

    def __init__(self, symbol: Symbol, dtype: str, exact: bool) -> None:
        self.symbol = symbol
        self.dtype = dtype
        self.exact = exact  # Whether it is a number of its dtype.

    def rounded(self) -> Symbol:
        """The value as a number of its dtype, as torch stores it."""
        if not self.exact:
            self.symbol, self.exact = _narrow(self.symbol, self.dtype), True
        return self.symbol


def _narrow(x: Symbol, dtype: str) -> Symbol:
    """The nearest number of f16 or bf16 to a float32 number, ties to even; the same bits as a conversion.

    high is x without the low bits (Veltkamp); fma, because a compiler may contract products and sums, and these
    are not products. Below the smallest normal number the unit is constant: the addition of a number with
    that unit rounds.
    """
    size: Symbol = abs(x)
    half = dtype == "f16"
    if half:
        scaled = x
    else:  # Without overflow.
        large = size >= 2.0**100
        scaled = _if(large, x * 2.0**-64, x)
    split = call("fma", scaled, 2.0**13 if half else 2.0**16, scaled)
    high = split + (scaled - split)
    if not half:
        high = _if(large, high * 2.0**64, high)
    smallest, unit = (2.0**-14, 2.0**-24) if half else (2.0**-126, 2.0**-133)
    shift = 1.5 * unit * 2**23
    low = _if(size <= unit / 2, x * 0, (x + shift) - shift)  # x * 0 keeps the sign.
    result = _if(size < smallest, low, high)
    if half:
        return _if(size >= 65520, x * math.inf, result)
    return _if(size < math.inf, result, x)


def _narrow_number(value: float, dtype: str) -> float:
    with np.errstate(over="ignore"):
        if dtype == "f16":
            return float(np.float16(value))
        return float(dtypes.bfloat16(value).to_float32()) if dtype == "bf16" else value


def _if(condition: Any, a: Any, b: Any) -> Symbol:
    return Symbol(_Node("({} ? {} : {})", (_node(condition), _node(a), _node(b))))


# The formulas of torch's kernels (aten/src/ATen/native, for the CPU and CUDA).

_SQRT_1_2 = 0.70710678118654752440
_GELU_BETA = math.sqrt(2.0) * (2.0 / math.sqrt(math.pi)) * 0.5


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_GELU_BETA * (x + 0.044715 * (x * x * x))))
    return x * 0.5 * (1 + call("erf", x * _SQRT_1_2))


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return _if(x < 0, np.expm1(x * input_scale) * (alpha * scale), x * scale)


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    return _if(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)


def _six(x: Any) -> Any:
    return call("clamp", x + 3, 0, 6)


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + (y if _is(alpha, 1) else alpha * y)


def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - (y if _is(alpha, 1) else alpha * y)


def _div(x: Any, y: Any, rounding_mode: Optional[str] = None) -> Any:
    if rounding_mode == "floor":
        raise InvalidArgument("a division that rounds down has no equivalent in an expression",
                              "write torch.floor(x / y)")
    return np.trunc(x / y) if rounding_mode == "trunc" else x / y


def _pow(x: Any, y: Any) -> Any:
    """torch computes some powers with other functions, whose results differ for -inf."""
    if isinstance(y, Symbol):
        return call("pow", x, y)
    special: Dict[float, Callable[[], Any]] = {
        0: lambda: Symbol(_Node("1", array=True)), 0.5: lambda: np.sqrt(x), 1: lambda: x,
        2: lambda: x * x, 3: lambda: x * x * x,
        -0.5: lambda: call("rsqrt", x), -1: lambda: 1 / x, -2: lambda: 1 / (x * x)}
    return special[y]() if y in special else call("pow", x, y)


def _pow_scalar(x: Any, y: Any) -> Any:
    if isinstance(y, Symbol):
        raise InvalidArgument("torch.pow with a scalar needs the value of a scalar when it is published, because it is "
                              "computed in another way for some values",
                              "use a tensor: torch.pow(x, torch.full_like(x, scalar))")
    return _pow(x, y)


def _is(value: Any, number: float) -> bool:
    return not isinstance(value, Symbol) and value == number


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    if low is None or high is None:
        return np.maximum(x, low) if high is None else np.minimum(x, high)
    return call("clamp", x, low, high)


def _round(x: Any, decimals: int = 0) -> Any:
    if decimals:
        raise InvalidArgument("rounding to decimals has no equivalent in an expression",
                              "write torch.round(x * 10**d) / 10**d")
    return np.rint(x)


def _equal(a: Any, b: Any) -> Any:
    """Of two conditions."""
    return (a & b) | (~a & ~b)


class _Kind:
    """How an operation takes its operands, and what it returns.

    opmath: float32; numbers are not rounded to the dtype of the tensors. Returns a value that must be rounded.
    exact: returns one of its operands, or a number that each dtype has; numbers are rounded first.
    compare: of such operands; returns a condition. logic: of conditions.
    """

    def __init__(self, name: str) -> None:
        self.name = name


_OPMATH, _EXACT, _COMPARE, _LOGIC = map(_Kind, ("opmath", "exact", "compare", "logic"))


def _functions() -> Dict[str, Tuple[_Kind, Callable[..., Any]]]:
    """Of each target. The parameters of a function are those of torch's schema, in its order; only those with
    other names are given by keyword: `alpha`, `rounding_mode`, `approximate`, `decimals`."""
    table: Dict[str, Tuple[_Kind, Callable[..., Any]]] = {}

    def add(kind: _Kind, names: str, function: Callable[..., Any]) -> None:
        for name in names.split():
            table["aten." + name] = (kind, function)

    opmath: Dict[str, Callable[..., Any]] = {
        "add.Tensor add.Scalar": _add, "sub.Tensor sub.Scalar": _sub,
        "rsub.Tensor rsub.Scalar": lambda x, y, alpha=1: _sub(y, x, alpha),
        "mul.Tensor mul.Scalar": lambda x, y: x * y,
        "div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode": _div,
        "reciprocal.default": lambda x: 1 / x,
        "exp.default": np.exp, "expm1.default": np.expm1, "log.default": np.log, "log1p.default": np.log1p,
        "pow.Tensor_Scalar": _pow_scalar, "pow.Tensor_Tensor pow.Scalar": _pow,
        "sqrt.default": np.sqrt, "rsqrt.default": lambda x: call("rsqrt", x),
        "sin.default": np.sin, "cos.default": np.cos, "tanh.default": np.tanh,
        "erf.default": lambda x: call("erf", x),
        "sigmoid.default": _sigmoid, "silu.default": lambda x: x / (1 + np.exp(-x)), "gelu.default": _gelu,
        "leaky_relu.default": lambda x, slope=0.01: _if(x > 0, x, x * slope),
        "elu.default": _elu, "softplus.default": _softplus,
        "hardsigmoid.default": lambda x: _six(x) / 6, "hardswish.default": lambda x: x * _six(x) / 6,
    }
    exact: Dict[str, Callable[..., Any]] = {
        "neg.default": lambda x: -x, "abs.default": abs,
        "minimum.default": np.minimum, "maximum.default": np.maximum,
        "clamp.default clamp.Tensor": _clamp, "clamp_min.default clamp_min.Tensor": _clamp,
        "clamp_max.default clamp_max.Tensor": lambda x, high: _clamp(x, None, high),
        "relu.default": lambda x: call("relu", x), "hardtanh.default": lambda x, low=-1, high=1: _clamp(x, low, high),
        "floor.default": np.floor, "ceil.default": np.ceil, "round.default round.decimals": _round,
        "trunc.default": np.trunc,
        "alias.default clone.default detach.default lift_fresh_copy.default": lambda x, **_: x,
    }
    compare: Dict[str, Callable[..., Any]] = {
        "lt.Tensor lt.Scalar": lambda x, y: x < y, "le.Tensor le.Scalar": lambda x, y: x <= y,
        "gt.Tensor gt.Scalar": lambda x, y: x > y, "ge.Tensor ge.Scalar": lambda x, y: x >= y,
        "eq.Tensor eq.Scalar": lambda x, y: x == y, "ne.Tensor ne.Scalar": lambda x, y: x != y,
        "isnan.default": lambda x: x != x, "isinf.default": lambda x: abs(x) == math.inf,
    }
    logic: Dict[str, Callable[..., Any]] = {
        "logical_and.default bitwise_and.Tensor": lambda a, b: a & b,
        "logical_or.default bitwise_or.Tensor": lambda a, b: a | b,
        "logical_not.default bitwise_not.default": lambda a: ~a,
        "logical_xor.default bitwise_xor.Tensor": lambda a, b: ~_equal(a, b),
    }
    for kind, rows in ((_OPMATH, opmath), (_EXACT, exact), (_COMPARE, compare), (_LOGIC, logic)):
        for names, function in rows.items():
            add(kind, names, function)
    return table


_TABLE = _functions()
# What Python computes with scalars.
_NUMBERS: Dict[str, Callable[..., Any]] = {
    "operator.add": lambda a, b: a + b, "operator.sub": lambda a, b: a - b, "operator.mul": lambda a, b: a * b,
    "operator.truediv": lambda a, b: a / b, "operator.neg": lambda a: -a,
}
# Operations with rules of their own: see _Lowering.
_WHERE = ("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
_MASKED = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_CONVERT = ("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
# Position of the value in the arguments; None: the number in the dict.
_FILL: Dict[str, Any] = {
    "aten.full_like.default": 1, "aten.full.default": 1, "aten.scalar_tensor.default": 0, "aten.fill.Scalar": 1,
    "aten.zeros_like.default": {"number": 0}, "aten.ones_like.default": {"number": 1},
    "aten.zeros.default": {"number": 0}, "aten.ones.default": {"number": 1}, "constant": 0,
}
# What to write in place of an operation that is not in the list, by the beginning of its target.
_INSTEAD = {
    "aten.log_sigmoid": "write -torch.nn.functional.softplus(-x)",
    "aten.mish": "write x * torch.tanh(torch.nn.functional.softplus(x))",
    "aten.tan.": "write torch.sin(x) / torch.cos(x)", "aten.exp2": "write torch.exp(x * 0.6931471805599453)",
    "aten.log2": "write torch.log(x) / 0.6931471805599453", "aten.log10": "write torch.log(x) / 2.302585092994046",
    "aten.sign": "write torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, 0.0))",
    "aten.remainder": "write x - torch.floor(x / y) * y", "aten.fmod": "write x - torch.trunc(x / y) * y",
    "aten.lerp": "write x + weight * (y - x)", "aten.addcmul": "write x + value * a * b",
    "aten.addcdiv": "write x + value * a / b", "aten.sinh": "write (torch.exp(x) - torch.exp(-x)) / 2",
    "aten.cosh": "write (torch.exp(x) + torch.exp(-x)) / 2", "aten.floor_divide": "write torch.floor(x / y)",
    "aten.bernoulli": "pass random numbers as an input", "aten.rand": "pass random numbers as an input",
    "aten.native_dropout": "pass the mask as an input",
    "aten.sym_size": "pass the number as a parameter: an operator runs for tensors of any shape",
}
_REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "_softmax", "_log_softmax", "var",
               "std", "prod", "cumsum", "native_layer_norm", "all", "any")
_PRODUCTS = ("mm", "bmm", "addmm", "matmul", "dot", "convolution", "linear", "einsum", "mv")
_VIEWS = ("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
          "select", "cat", "stack", "split", "index", "gather", "as_strided", "flip", "repeat")


def supports(node: Mapping[str, Any]) -> bool:
    """Whether lower() has a rule for the target of a node."""
    target = node["target"]
    return target in _TABLE or target in _FILL or target in _WHERE + _MASKED + _CONVERT


def lower(graph: Mapping[str, Any]) -> str:
    """The expression that a graph computes. InvalidArgument if there is none with torch's results: it names the
    node, its line, and what to do."""
    return _Lowering(graph).run()


class _Lowering:

    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._graph = graph
        self._name = graph["name"]
        self._values: Dict[str, _Value] = {}
        self._dtypes: Dict[str, str] = {}

    def run(self) -> str:
        inputs: List[_Node] = []
        declarations: List[str] = []
        parameters = len(self._graph["inputs"]) + 1 + len(self._graph["scalars"])
        if parameters > MAX_PARAMETERS:
            raise InvalidArgument(
                "{} has {} parameters with the output, and an operator has at most {}".format(
                    self._name, parameters, MAX_PARAMETERS), "publish parts of it")
        shape: Optional[Tuple[int, ...]] = ()
        for each in self._graph["inputs"]:
            _check_name(each["name"], self._name)
            if each["dtype"] not in FLOATS:
                raise InvalidArgument(
                    "input '{}' of {} is {}, and an expression has float32, float16 and bfloat16".format(
                        each["name"], self._name, each["dtype"]),
                    "convert the input before the call, for example with float()")
            node = _Node(each["name"], array=True)
            inputs.append(node)
            declarations.append("{}: in {}".format(each["name"], each["dtype"]))
            self._values[each["name"]] = _Value(Symbol(node), each["dtype"], True)
            shape = None if shape is None or each["shape"] is None else broadcast(shape, tuple(each["shape"]))
        for each in self._graph["scalars"]:
            _check_name(each["name"], self._name)
            declarations.append("{}: scalar f32 = {}".format(
                each["name"], _number(each["default"], "the default of '{}'".format(each["name"])).strip("()")))
            self._values[each["name"]] = _Value(Symbol(_Node(each["name"])), "number", True)
        nodes = {node["name"]: node for node in self._graph["nodes"]}
        for each in nodes.values():
            if _in_place(each["target"]):  # Also of a view, on which the output does not depend by name.
                raise self._unsupported(each)
        for name in _needed(nodes, self._graph["output"]):
            self._values[name] = self._value(nodes[name])
        result = self._values[self._graph["output"]]
        found = nodes.get(self._graph["output"], {})
        if result.dtype not in FLOATS:
            what = {"bool": "a comparison", "number": "a number of Python"}.get(result.dtype, result.dtype)
            raise InvalidArgument("{} returns {}".format(self._name, what),
                                  "return a tensor of float32, float16 or bfloat16, for example "
                                  "torch.where(x > 0, 1.0, 0.0)")
        if inputs and found.get("shape") is not None and shape is not None and shape != tuple(found["shape"]):
            raise InvalidArgument(
                "{} returns shape {}, and its inputs broadcast to {}".format(
                    self._name, shape_text(found["shape"]), shape_text(shape)),
                "use constants without a shape: an expression computes each element from those at the same place")
        declarations.insert(len(inputs), "out: out {}".format(result.dtype))
        return formula(self._name, result.symbol._node, inputs, declarations,
                       {each["name"] for each in (*self._graph["inputs"], *self._graph["scalars"])})

    def _value(self, node: Mapping[str, Any]) -> _Value:
        try:
            return self._lower(node)
        except TypeError as error:  # Arguments that the function does not take.
            raise self._refusal(node, "it has arguments that are not supported: {}".format(error),
                                "write it with others of the operations that docs/pytorch.md lists") from error
        except InvalidArgument as error:
            if error.details.get("node"):
                raise
            raise self._refusal(node, error.message, error.fix) from error

    def _refusal(self, node: Mapping[str, Any], text: str, fix: str) -> Error:
        error = InvalidArgument(
            "{}: node '{}' ({}){}: {}".format(self._name, node["name"], node["target"],
                                             ", " + node["source"] if node.get("source") else "", text), fix)
        error.details.update(node=node["name"], target=node["target"], source=node.get("source") or "")
        return error

    def _lower(self, node: Mapping[str, Any]) -> _Value:
        target, dtype = node["target"], node["dtype"]
        arguments, kwargs = list(node["args"]), dict(node["kwargs"])
        if dtype == "number":
            if target not in _NUMBERS:
                raise self._refusal(node, "Python computes a number that is not known when the function is published",
                                    "compute it before the call and pass it, or use + - * / only")
            return _Value(_NUMBERS[target](*map(self._number, arguments)), "number", True)
        if not supports(node):
            raise self._unsupported(node)
        if dtype not in FLOATS + ("bool",):
            raise self._refusal(node, "it returns {}, and an expression computes in float32".format(dtype),
                                "use float32, float16 or bfloat16")
        if target in _FILL:
            at = _FILL[target]
            return self._filled(at["number"] if isinstance(at, dict) else self._number(
                arguments[at] if len(arguments) > at else kwargs.pop("fill_value")), dtype)
        if target in _CONVERT:
            return self._convert(node, arguments[0], dtype)
        if target in _WHERE + _MASKED:
            condition, x, y = arguments if target in _WHERE else (arguments[1], arguments[2], arguments[0])
            if dtype == "bool":
                a, b, c = map(self._condition, (condition, x, y))
                return _Value((a & b) | (~a & c), "bool", True)
            made = _if(self._condition(condition), self._operand(x, dtype, True), self._operand(y, dtype, True))
            return _Value(made, dtype, True)
        kind, function = _TABLE[target]
        kwargs = {key: value for key, value in kwargs.items() if value is not None and key not in ("memory_format",)}
        if kind is _COMPARE or kind is _LOGIC or dtype == "bool":
            return self._condition_of(node, kind, function, arguments)
        common = self._common(node, arguments)
        if common not in FLOATS:
            raise self._refusal(node, "it computes with truth values only", "convert them, for example with float()")
        operands = [self._operand(each, common, kind is _EXACT) for each in arguments]
        options = {key: value if isinstance(value, (str, bool)) else self._operand(value, common, kind is _EXACT)
                   for key, value in kwargs.items()}
        made = function(*operands, **options)
        if not isinstance(made, Symbol):
            raise self._refusal(node, "it does not depend on a tensor", "write the number")
        return _Value(made, dtype, dtype == "f32" or kind is _EXACT)

    def _condition_of(self, node: Mapping[str, Any], kind: _Kind, function: Callable[..., Any],
                      arguments: Sequence[Any]) -> _Value:
        common = self._common(node, arguments)
        if kind is _COMPARE and common != "bool":
            return _Value(function(*(self._operand(each, common, True) for each in arguments)), "bool", True)
        conditions = [self._condition(each) for each in arguments]
        if kind is _LOGIC:
            return _Value(function(*conditions), "bool", True)
        name = node["target"].split(".")[1]
        if name in ("alias", "clone", "detach", "lift_fresh_copy"):
            return _Value(conditions[0], "bool", True)
        if name in ("eq", "ne"):
            equal = _equal(*conditions)
            return _Value(equal if name == "eq" else ~equal, "bool", True)
        if name in ("mul", "minimum", "add", "maximum"):
            a, b = conditions
            return _Value(a & b if name in ("mul", "minimum") else a | b, "bool", True)
        raise self._refusal(node, "it orders truth values", "use logical_and, logical_or and logical_not")

    def _common(self, node: Mapping[str, Any], arguments: Sequence[Any]) -> str:
        """The dtype in which an operation computes: that of its tensors; numbers do not count."""
        found = [self._values[each["node"]].dtype for each in arguments if isinstance(each, dict) and "node" in each]
        tensors = [each for each in found if each != "number"]
        floats = [dtypes.BY_NAME[each] for each in tensors if each in FLOATS]
        promoted = dtypes.promote(floats)
        common = promoted.name if promoted is not None else "bool" if tensors else "f32"
        if common == "bool":
            numbers = [each for each in arguments if not isinstance(each, dict) and each is not None]
            if any(not isinstance(each, bool) for each in numbers) or "number" in found:
                common = "f32"
        given = node["dtype"]
        if given in FLOATS and promoted is not None and common != given:
            raise self._refusal(
                node, "it returns {} from {}: a tensor without dimensions has another dtype than the others".format(
                    given, ", ".join(tensors)), "convert it, or make it a parameter with a number as its default")
        return given if given in FLOATS and promoted is None else common

    def _convert(self, node: Mapping[str, Any], argument: Any, dtype: str) -> _Value:
        if dtype == "bool":
            return _Value(self._condition(argument), "bool", True)
        if isinstance(argument, dict) and "node" in argument:
            value = self._values[argument["node"]]
            if value.dtype == dtype or dtype == "f32":
                return _Value(self._operand(argument, value.dtype, True), dtype, True)
            # Not every number of another dtype is one of this dtype.
            return _Value(self._operand(argument, value.dtype, True), dtype, value.dtype == "bool")
        return self._filled(self._number(argument), dtype)

    def _filled(self, value: Any, dtype: str) -> _Value:
        if dtype == "bool":
            return _Value(Symbol(_Node("({} != 0)", (_node(value),), True)), "bool", True)
        if isinstance(value, Symbol):
            return _Value(Symbol(_Node("{}", (value._node,), array=True)), dtype, dtype == "f32")
        text = _number(_narrow_number(float(value), dtype), "the constant")
        return _Value(Symbol(_Node(text, array=True)), dtype, True)

    def _number(self, argument: Any) -> Any:
        """A number, or the symbol of a scalar."""
        if isinstance(argument, dict) and "node" in argument:
            value = self._values[argument["node"]]
            if value.dtype != "number":
                raise InvalidArgument("a number is computed from elements of a tensor", "use torch.where")
            return value.symbol
        if isinstance(argument, dict) and "number" in argument:
            return float(argument["number"])
        if isinstance(argument, bool):
            return int(argument)
        if not isinstance(argument, (int, float)):
            raise InvalidArgument("{!r} is not a number".format(argument), "pass a number")
        return argument

    def _operand(self, argument: Any, dtype: str, narrow: bool) -> Any:
        """An operand as a number in float32: a symbol, or a number. narrow: numbers are rounded to dtype."""
        if argument is None or isinstance(argument, str):
            return argument
        if isinstance(argument, dict) and "node" in argument:
            value = self._values[argument["node"]]
            if value.dtype == "bool":
                return _if(value.symbol, 1, 0)
            if value.dtype == "number":
                return _narrow(value.symbol, dtype) if narrow and dtype in _HALVES else value.symbol
            return value.rounded()
        number = self._number(argument)
        return _narrow_number(number, dtype) if narrow and dtype in _HALVES else number

    def _condition(self, argument: Any) -> Symbol:
        """An operand as a truth value: numbers other than 0, also NaN, are true."""
        if isinstance(argument, dict) and "node" in argument and self._values[argument["node"]].dtype == "bool":
            return self._values[argument["node"]].symbol
        if isinstance(argument, dict) and "node" in argument:
            return Symbol(_Node("({} != 0)", (self._values[argument["node"]].rounded()._node,), True))
        return Symbol(_Node("({} != 0)", (_node(self._number(argument)),), True))

    def _unsupported(self, node: Mapping[str, Any]) -> Error:
        target = node["target"]
        name = target.split(".")[1] if "." in target else target
        fix = next((text for start, text in _INSTEAD.items() if target.startswith(start)), "")
        if fix:
            pass
        elif name in _REDUCTIONS:
            fix = ("an expression is elementwise: publish what is before and behind it, and call the operator for it "
                   "(rt.ops.sum, rt.ops.softmax, ...)")
        elif name in _PRODUCTS:
            fix = "an expression is elementwise: publish what is before and behind it, and call rt.ops.gemm or torch"
        elif name in _VIEWS:
            fix = "an expression is elementwise: pass the view as an input; inputs may be strided and broadcast"
        elif _in_place(target):
            fix = "write it without the change in place"
        else:
            fix = "use the operations that docs/pytorch.md lists, or install C++ source (docs/operators.md)"
        return self._refusal(node, "it has no equivalent in an expression", fix)


def _in_place(target: str) -> bool:
    name = target.split(".")[1] if "." in target else target
    return name.endswith("_") and not name.startswith("_") or name == "copy"


def _needed(nodes: Mapping[str, Mapping[str, Any]], output: str) -> List[str]:
    """The nodes that the output needs, in their order."""
    found = set()
    stack = [output]
    while stack:
        name = stack.pop()
        if name in found or name not in nodes:
            continue
        found.add(name)
        for each in (*nodes[name]["args"], *nodes[name]["kwargs"].values()):
            if isinstance(each, dict) and "node" in each:
                stack.append(each["node"])
    return [name for name in nodes if name in found]
