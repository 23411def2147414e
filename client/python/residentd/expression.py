"""Formulas from Python functions: what Operators.publish installs.

trace() calls the function once, with symbols in place of arrays, and writes down the operations as an
expression (docs/operators.md). The function may use arithmetic, comparisons, numpy.where, and the NumPy
functions of the table below. It must not branch on a symbol, as its value is not known.

    def swish(x, beta=1.0):
        return x / (1 + np.exp(-beta * x))

    trace(swish)   # "x / (1 + exp(((-beta) * x))) where beta: scalar f32 = 1"
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable, Dict, List

import numpy as np

from .errors import InvalidArgument

# NumPy's functions to those of expressions.
_FUNCTIONS: Dict[Any, str] = {
    np.absolute: "abs", np.maximum: "maximum", np.minimum: "minimum", np.ceil: "ceil",
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


class Symbol(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of the traced function. Conditions and numbers are different, as in expressions. Python's
    operators call NumPy's functions."""

    def __init__(self, text: str, condition: bool = False) -> None:
        self.text = text
        self.condition = condition

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            raise _unsupported("numpy.{} with these options".format(ufunc.__name__))
        texts = [_text(value) for value in inputs]
        if ufunc in _BINARY:
            sign = _BINARY[ufunc]
            return Symbol("({} {} {})".format(texts[0], sign, texts[1]), sign in _COMPARISONS)
        if ufunc in _FUNCTIONS:
            return Symbol("{}({})".format(_FUNCTIONS[ufunc], ", ".join(texts)))
        if ufunc is np.negative:
            return Symbol("(-{})".format(texts[0]))
        if ufunc is np.positive:
            return Symbol(texts[0])
        if ufunc is np.square:
            return Symbol("({0} * {0})".format(texts[0]))
        if ufunc is np.reciprocal:
            return Symbol("(1 / {})".format(texts[0]))
        if ufunc in (np.logical_not, np.invert):
            return Symbol("(!{})".format(texts[0]), True)
        raise _unsupported("numpy." + ufunc.__name__)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and len(args) == 3 and not kwargs:
            condition = args[0]
            if not isinstance(condition, Symbol) or not condition.condition:
                raise _unsupported("numpy.where with a condition that is not a comparison")
            return Symbol("({} ? {} : {})".format(*map(_text, args)))
        if function is np.clip and len(args) == 3 and not kwargs:
            return Symbol("clamp({})".format(", ".join(map(_text, args))))
        raise _unsupported("numpy." + function.__name__)

    def __bool__(self) -> bool:
        raise InvalidArgument("the function branches on a value that is not known when it is published",
                              "use numpy.where in place of if, and, or")

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 1 <= other <= 4:
            return Symbol("(" + " * ".join([self.text] * other) + ")")
        return self.__array_ufunc__(np.power, "__call__", self, other)


def trace(function: Callable[..., Any]) -> str:
    """The expression that the function computes. InvalidArgument if it does something that an
    expression cannot."""
    symbols: List[Symbol] = []
    inputs: List[str] = []
    declarations: List[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument("parameter '{}' of {} is not positional".format(
                parameter.name, function.__name__), "use plain parameters")
        symbols.append(Symbol(parameter.name))
        if parameter.default is not parameter.empty:
            if not isinstance(parameter.default, (int, float)):
                raise InvalidArgument("the default of '{}' is not a number".format(parameter.name),
                                      "use a number, which makes it a scalar, or no default")
            declarations.append("{}: scalar f32 = {}".format(parameter.name, _text(parameter.default)))
        else:
            inputs.append(parameter.name)
    result = function(*symbols)
    if isinstance(result, Symbol) and result.condition:
        raise InvalidArgument("{} returns a comparison".format(function.__name__),
                              "return numbers, for instance numpy.where(x > 0, 1, 0)")
    text = _text(result)
    for symbol in symbols:
        if _first_use(symbol.text, text) < 0:
            raise InvalidArgument("{} does not use '{}'".format(function.__name__, symbol.text),
                                  "remove the parameter")
    if text.startswith("(") and _closes_at_the_end(text):
        text = text[1:-1]
    used = sorted(inputs, key=lambda name: _first_use(name, text))
    if used != inputs:
        raise InvalidArgument(
            "{} has the parameters {}, and uses them in the order {}; the inputs of an expression are in "
            "the order of their first use".format(function.__name__, ", ".join(inputs), ", ".join(used)),
            "declare them in that order")
    return text + (" where " + ", ".join(declarations) if declarations else "")


def _first_use(name: str, text: str) -> int:
    """The position of a name in an expression; -1 if it does not occur."""
    found = re.search(r"\b{}\b".format(re.escape(name)), text)
    return -1 if found is None else found.start()


def _text(value: Any) -> str:
    if isinstance(value, Symbol):
        return value.text
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise _unsupported("a value of type {}".format(type(value).__name__))
    number = float(value)
    text = repr(number)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if number == int(number) and abs(number) < 1e15:
        text = str(int(number))
    return "({})".format(text) if number < 0 else text


def _closes_at_the_end(text: str) -> bool:
    """Whether the first parenthesis is closed by the last one."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return i == len(text) - 1
    return False


def _unsupported(what: str) -> InvalidArgument:
    return InvalidArgument("{} has no equivalent in an expression".format(what),
                           "use the functions of docs/operators.md, or install C++ source")
