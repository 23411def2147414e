"""Formulas from Python functions: what Operators.publish installs.

trace() calls the function once, with symbols in place of arrays, and writes down the operations as an
expression (docs/operators.md). The function may use arithmetic, comparisons, numpy.where, and the NumPy
functions of the tables below. It must not branch on a symbol, as its value is not known.

    def swish(x, beta=1.0):
        return x / (1 + np.exp(-beta * x))

    trace(swish)   # "x -> (x / (1 + exp(((-beta) * x)))) where beta: scalar f32 = 1"

A value that is used several times becomes a value of `where`, so that the text grows with the number of
operations and each is computed once.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import numpy as np

from .errors import Error, InvalidArgument, NoAttribute

# The limits of one expression (docs/operators.md).
_MAX_BYTES = 4096
_MAX_OPERATIONS = 512
# Deeper formulas are cut into values of `where`; the daemon accepts 64 levels.
_MAX_DEPTH = 24

# NumPy's functions to those of expressions.
_FUNCTIONS: Dict[Any, str] = {
    np.absolute: "abs", np.fabs: "abs", np.maximum: "maximum", np.minimum: "minimum", np.ceil: "ceil",
    np.floor: "floor", np.rint: "round", np.trunc: "trunc", np.exp: "exp", np.expm1: "expm1",
    np.log: "log", np.log1p: "log1p", np.power: "pow", np.float_power: "pow", np.sqrt: "sqrt",
    np.sin: "sin", np.cos: "cos", np.tanh: "tanh",
}
_BINARY: Dict[Any, str] = {
    np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.less: "<",
    np.less_equal: "<=", np.greater: ">", np.greater_equal: ">=", np.equal: "==",
    np.not_equal: "!=", np.logical_and: "&&", np.logical_or: "||", np.bitwise_and: "&&",
    np.bitwise_or: "||",
}
_COMPARISONS = {"<", "<=", ">", ">=", "==", "!=", "&&", "||", "!"}
_CONSTANTS = {"inf": "inf", "-inf": "(-inf)", "nan": "nan"}
# Names that mean something in an expression, so that no parameter can have them.
_CONSTANT_NAMES = {"inf", "nan", "pi"}
_FUNCTION_NAMES = {
    "abs", "ceil", "clamp", "cos", "elu", "erf", "exp", "expm1", "floor", "fma", "gelu", "gelu_tanh",
    "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "log1p", "maximum", "minimum", "neg",
    "pow", "relu", "round", "rsqrt", "select", "sigmoid", "silu", "silu_mul", "sin", "softplus", "sqrt",
    "tanh", "trunc",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# What to write in place of what an expression lacks, by the name of NumPy's function or Python's.
_INSTEAD = {
    "arcsin": "", "cbrt": "", "cosh": "(numpy.exp(x) + numpy.exp(-x)) / 2",
    "clip": "numpy.clip(x, low, high)", "exp2": "numpy.power(2, x)",
    "floor_divide": "numpy.floor(x / y)", "fmod": "x - numpy.trunc(x / y) * y",
    "hypot": "numpy.sqrt(x * x + y * y)", "isnan": "x != x", "log10": "numpy.log(x) / 2.302585",
    "log2": "numpy.log(x) / 0.6931472", "remainder": "x - numpy.floor(x / y) * y",
    "round": "numpy.rint(x)", "around": "numpy.rint(x)",
    "sign": "numpy.where(x > 0, 1, numpy.where(x < 0, -1, 0))",
    "sinh": "(numpy.exp(x) - numpy.exp(-x)) / 2", "tan": "numpy.sin(x) / numpy.cos(x)",
    "divmod": "numpy.floor(x / y) and x - numpy.floor(x / y) * y",
}
# Functions of several elements.
_REDUCTIONS = {"all", "any", "argmax", "argmin", "cumsum", "dot", "matmul", "max", "mean", "min", "prod",
               "std", "sum", "var"}


# Well-known functions that are no misspellings of those of residentd.
OTHER_FUNCTIONS = frozenset(_INSTEAD) | _REDUCTIONS


class _Node:
    """A value of the traced function, and how it is computed: `form` with the texts of `operands`.

    array: whether it depends on an input, so that NumPy's functions would return an array.
    """

    __slots__ = ("form", "operands", "condition", "array")

    def __init__(self, form: str, operands: Tuple["_Node", ...] = (), condition: bool = False,
                 array: bool = False) -> None:
        self.form = form
        self.operands = operands
        self.condition = condition
        self.array = array or any(operand.array for operand in operands)


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of the traced function. Conditions and numbers are different, as in expressions. Python's
    operators call NumPy's functions."""

    def __init__(self, node: _Node) -> None:
        self._node = node

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        into = kwargs.pop("out", None)
        if method != "__call__":
            raise _unsupported("numpy.{}.{}".format(ufunc.__name__, method), ufunc.__name__)
        if kwargs:
            raise InvalidArgument(
                "numpy.{} with {} has no equivalent in an expression".format(
                    ufunc.__name__, ", ".join("{}=".format(name) for name in kwargs)),
                "call it without; numpy.where selects elements")
        made = _ufunc(ufunc, [_node(value) for value in inputs])
        if into is None:
            return Symbol(made)
        # x += y, or out=: an array changes, with all names that it has; a number does not.
        target = into[0]
        if not isinstance(target, Symbol):
            raise InvalidArgument("numpy.{} writes to {}".format(ufunc.__name__, type(target).__name__),
                                  "write to a value of the function, or return the result")
        if not target._node.array:
            return Symbol(made)
        target._node = made
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if function is np.where and len(args) == 3 and not kwargs:
            condition = args[0]
            if not isinstance(condition, Symbol) or not condition._node.condition:
                raise InvalidArgument(
                    "numpy.where with a condition that is not a comparison has no equivalent in an expression",
                    "compare it: numpy.where(x != 0, a, b)")
            return Symbol(_Node("({} ? {} : {})", tuple(map(_node, args))))
        if function is np.clip and len(args) == 3 and not kwargs:
            x, low, high = args
            if low is None or high is None:
                bound, limit = (np.minimum, high) if low is None else (np.maximum, low)
                return Symbol(_node(x)) if limit is None else bound(x, limit)
            return Symbol(_Node("clamp({}, {}, {})", tuple(map(_node, args))))
        if function in (np.round, np.around) and len(args) == 1 and not kwargs:
            return np.rint(args[0])
        if name in ("zeros_like", "ones_like") and len(args) == 1 and not kwargs:
            return Symbol(_Node("0" if name == "zeros_like" else "1", array=True))
        if name == "full_like" and len(args) == 2 and not kwargs:
            return Symbol(_Node("{}", (_node(args[1]),), array=True))
        raise _unsupported("numpy." + name, name)

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and 1 <= other <= 4:
            return Symbol(_Node("(" + " * ".join(["{0}"] * other) + ")", (self._node,)))
        return np.power(self, other)

    def __bool__(self) -> bool:
        raise InvalidArgument("the function branches on a value that is not known when it is published",
                              "use numpy.where in place of if, and, or; numpy.maximum and numpy.minimum in "
                              "place of max and min")

    def __round__(self, digits: Any = None) -> Any:
        raise _unsupported("round()", "round")

    def __getattr__(self, name: str) -> Any:
        # Of NumPy's arrays. hasattr() needs an AttributeError.
        if name.startswith("__"):
            raise NoAttribute("a value of a published function has no attribute '{}'".format(name))
        error = _unsupported("'.{}' of an array".format(name), name)
        raise NoAttribute(error.message, error.fix)

    def __repr__(self) -> str:
        return "<value of a published function>"


def _refuse(name: str, what: str, fix: str) -> None:
    def method(self: Symbol, *args: Any) -> Any:
        raise InvalidArgument("{} needs a value that is not known when the function is published".format(what),
                              fix)

    method.__name__ = name
    setattr(Symbol, name, method)


for _method, _what, _fix in (
        ("__float__", "float(), or a function of the module math,", "use NumPy's function, such as numpy.exp"),
        ("__int__", "int()", "use numpy.trunc"),
        ("__index__", "an index or range()", "use a number that is known"),
        ("__complex__", "complex()", "use real numbers"),
        ("__floor__", "math.floor()", "use numpy.floor"), ("__ceil__", "math.ceil()", "use numpy.ceil"),
        ("__trunc__", "math.trunc()", "use numpy.trunc"),
        ("__len__", "len()", "an expression is elementwise; install C++ source (docs/operators.md)"),
        ("__iter__", "a loop over elements", "an expression is elementwise; compute with whole arrays"),
        ("__getitem__", "x[...]", "an expression is elementwise; pass the part as an input"),
        ("__setitem__", "x[...] = y", "use numpy.where(condition, y, x)"),
        ("__contains__", "'in'", "use comparisons, such as (x == 1) | (x == 2)")):
    _refuse(_method, _what, _fix)


def _ufunc(ufunc: Any, operands: List[_Node]) -> _Node:
    """What one of NumPy's functions computes."""
    given = tuple(operands)
    if ufunc in _BINARY:
        sign = _BINARY[ufunc]
        return _Node("({{}} {} {{}})".format(sign), given, sign in _COMPARISONS)
    if ufunc in _FUNCTIONS:
        return _Node("{}({})".format(_FUNCTIONS[ufunc], ", ".join(["{}"] * len(given))), given)
    if ufunc is np.negative:
        return _Node("(-{})", given)
    if ufunc is np.positive:
        return given[0]
    if ufunc is np.square:
        return _Node("({0} * {0})", given)
    if ufunc is np.reciprocal:
        return _Node("(1 / {})", given)
    if ufunc in (np.logical_not, np.invert):
        return _Node("(!{})", given, True)
    raise _unsupported("numpy." + ufunc.__name__, ufunc.__name__)


def trace(function: Callable[..., Any]) -> str:
    """The expression that the function computes. InvalidArgument if it does something that an
    expression cannot."""
    name = name_of(function)
    inputs: List[_Node] = []
    scalars: List[str] = []
    symbols: List[Symbol] = []
    for parameter in _parameters(function, name):
        _check_name(parameter.name, name)
        is_input = parameter.default is parameter.empty
        node = _Node(parameter.name, array=is_input)
        symbols.append(Symbol(node))
        if is_input:
            inputs.append(node)
        else:
            scalars.append("{}: scalar f32 = {}".format(
                parameter.name, _default(parameter.name, parameter.default)))
    try:
        returned = function(*symbols)
    except Error:
        raise
    except Exception as error:
        raise InvalidArgument(
            "{} cannot be called with values that are not known: {}: {}".format(
                name, type(error).__name__, error),
            "use arithmetic and the NumPy functions of docs/operators.md") from error
    return formula(name, _result(returned, name), inputs, scalars, {each.name for each in _parameters(function, name)})


def formula(name: str, result: _Node, inputs: List[_Node], declarations: List[str], taken: Set[str]) -> str:
    """The expression of a result. name: of the function, for errors. declarations: those of `where` that
    precede its values. taken: the names of parameters."""
    nodes = _reachable(result)
    for node in inputs:
        if node not in nodes:
            raise InvalidArgument("{} does not use '{}'".format(name, node.form), "remove the parameter")
    operations = sum(bool(node.operands) for node in nodes)
    if operations > _MAX_OPERATIONS:
        raise InvalidArgument(
            "{} has {:,} operations, and an expression may have {}".format(name, operations, _MAX_OPERATIONS),
            "install it as C++ source (docs/operators.md)")
    text, values = _write(result, nodes, taken)
    where = declarations + values
    whole = "{} -> {}{}".format(", ".join(node.form for node in inputs), text,
                                " where " + ", ".join(where) if where else "").lstrip()
    if len(whole) > _MAX_BYTES:
        raise InvalidArgument(
            "{} has an expression of {:,} bytes, and at most {:,} are accepted".format(
                name, len(whole), _MAX_BYTES), "install it as C++ source (docs/operators.md)")
    return whole


def call(function: str, *values: Any) -> "Symbol":
    """A function of expressions, such as erf, which NumPy does not have."""
    return Symbol(_Node("{}({})".format(function, ", ".join(["{}"] * len(values))), tuple(map(_node, values))))


def name_of(function: Any) -> str:
    """The name of a function that is published."""
    if not callable(function):
        raise InvalidArgument("publish() got {}, which is not a function".format(type(function).__name__),
                              "pass a Python function of NumPy expressions")
    return str(getattr(function, "__name__", type(function).__name__))


def _parameters(function: Callable[..., Any], name: str) -> List[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InvalidArgument("{} has no signature that Python knows".format(name),
                              "write a Python function that calls it") from None
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument("parameter '{}' of {} is not positional".format(parameter.name, name),
                                  "use plain parameters")
    return parameters


def _check_name(name: str, function: str) -> None:
    what = ("a constant" if name in _CONSTANT_NAMES else "a function" if name in _FUNCTION_NAMES else
            "a word" if name in ("where", "out") else "")
    if what:
        raise InvalidArgument("parameter '{}' of {} has the name of {} of expressions".format(
            name, function, what), "choose another name")
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument("parameter '{}' of {} has a name that a signature cannot have".format(
            name, function), "use at most 64 ASCII letters, digits and '_'")


def _default(name: str, value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not _is_number(value):
        raise InvalidArgument("the default of '{}' is not a number".format(name),
                              "use a number, which makes it a scalar, or no default")
    return _number(value, "the default of '{}'".format(name)).strip("()")


def _result(returned: Any, name: str) -> _Node:
    if returned is None:
        raise InvalidArgument("{} returns nothing".format(name), "return the result")
    if isinstance(returned, (tuple, list)):
        raise InvalidArgument("{} returns {} values, and an expression has one".format(name, len(returned)),
                              "publish a function for each")
    result = _node(returned)
    if result.condition:
        raise InvalidArgument("{} returns a comparison".format(name),
                              "return numbers, for instance numpy.where(x > 0, 1, 0)")
    return result


def _reachable(result: _Node) -> Dict[_Node, int]:
    """The nodes that the result needs, with how often each is used, operands before those that use them."""
    ordered: Dict[_Node, int] = {}
    stack: List[Tuple[_Node, bool]] = [(result, False)]
    while stack:
        node, complete = stack.pop()
        if complete:
            ordered.setdefault(node, 0)
        elif node not in ordered:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.operands))
    for node in ordered:
        for operand in node.operands:
            # A form may name an operand several times.
            ordered[operand] += node.form.count("{0}") or 1
    return ordered


def _write(result: _Node, nodes: Dict[_Node, int], taken: Any) -> Tuple[str, List[str]]:
    """The text of the result, and the values of `where` that it uses."""
    values: List[str] = []
    texts: Dict[_Node, str] = {}
    depths: Dict[_Node, int] = {}
    number = 0
    for node, uses in nodes.items():
        text = node.form.format(*(texts[operand] for operand in node.operands))
        depth = 1 + max((depths[operand] for operand in node.operands), default=0)
        if node.operands and node is not result and (uses > 1 or depth > _MAX_DEPTH):
            number += 1
            while "t{}".format(number) in taken:
                number += 1
            values.append("t{} = {}".format(number, text))
            text, depth = "t{}".format(number), 1
        texts[node], depths[node] = text, depth
    return texts[result], values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _node(value: Any) -> _Node:
    if isinstance(value, Symbol):
        return value._node
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not _is_number(value):
        raise InvalidArgument(
            "a value of type {} has no equivalent in an expression".format(type(value).__name__),
            "pass an array as an input, and use numbers as constants")
    return _Node(_number(value, "the constant"))


def _number(value: Any, what: str) -> str:
    """A number as expressions write it. They compute in float32; a number that float32 would change to
    infinity, or to another integer, is refused."""
    try:
        number = float(value)
    except OverflowError:
        number = np.inf
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    whole = isinstance(value, (int, np.integer))
    if (whole and rounded != value) or (np.isinf(rounded) and (whole or not np.isinf(value))):
        raise InvalidArgument("{} {} is not a float32 number".format(what, value),
                              "use integers up to 2^24 in absolute value, and numbers up to 3.4e38")
    text = repr(number)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if number == int(number) and abs(number) < 1e15:
        text = "-0" if text == "-0.0" else str(int(number))
    return "({})".format(text) if text.startswith("-") else text


def _unsupported(what: str, name: str) -> InvalidArgument:
    if name in _REDUCTIONS:
        fix = "an expression is elementwise; use the operator for it, or install C++ source (docs/operators.md)"
    elif _INSTEAD.get(name):
        fix = "write " + _INSTEAD[name]
    else:
        fix = "use the functions of docs/operators.md, or install C++ source"
    return InvalidArgument("{} has no equivalent in an expression".format(what), fix)
