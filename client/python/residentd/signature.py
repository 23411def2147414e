"""Signatures of operators: what a call may pass, and which shapes and dtypes its outputs have.

A signature is made from the structured form that the daemon returns (resident.v1.Parameter). The rules
for shapes are those of docs/operators.md: a name has one value in a call; `*S` stands for any number
of dimensions; `*S~` is a shape that broadcasts to S.

Thread safety: a Signature does not change after it was made.
"""

from __future__ import annotations

import inspect
import keyword
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from . import dtypes
from .dtypes import DType
from .errors import InvalidArgument

INPUT, OUTPUT, INOUT, SCALAR = 1, 2, 3, 4  # resident.v1.Parameter.Kind.
_KIND_TEXT = {INPUT: "in", OUTPUT: "out", INOUT: "inout", SCALAR: "scalar"}

# The operators that reduce axes of `x`, which are bits of the scalar `axes`. No other operator can have
# these names, because they are built in.
_REDUCTIONS = {"sum", "mean", "max", "min", "argmax"}
# Options of their calls, as of NumPy's functions.
REDUCTION_OPTIONS = ("axis", "keepdims")

Shape = Tuple[int, ...]
# Values of variables: a dimension for "N", several for "*S".
Bindings = Dict[str, Shape]


@dataclass(frozen=True)
class Dim:
    """One dimension of a parameter, or several. `kind` is "size", "name", "spread" or "broadcast"."""

    kind: str
    size: int
    name: str

    def __str__(self) -> str:
        if self.kind == "size":
            return str(self.size)
        return {"name": "", "spread": "*", "broadcast": "*"}[self.kind] + self.name + (
            "~" if self.kind == "broadcast" else "")


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator."""

    name: str
    kind: int  # INPUT, OUTPUT, INOUT or SCALAR.
    dtypes: Tuple[int, ...]  # Numbers of the accepted types; for a scalar exactly one.
    shape: Tuple[Dim, ...]  # Of a tensor.
    strided: bool  # Whether a tensor need not be dense.
    default: Any  # Of a scalar that may be omitted; otherwise None.

    @property
    def scalar(self) -> bool:
        return self.kind == SCALAR

    @property
    def keyword(self) -> str:
        """The name as Python's keyword argument: `lambda` becomes `lambda_`."""
        return self.name + "_" if keyword.iskeyword(self.name) else self.name

    def __str__(self) -> str:
        text = "{}: {} {}{}".format(self.name, _KIND_TEXT[self.kind], "strided " if self.strided else "",
                                    "|".join(dtypes.BY_NUMBER[number].name for number in self.dtypes))
        if not self.scalar:
            text += "[" + ", ".join(map(str, self.shape)) + "]"
        elif self.default is not None:
            whole = self.default == int(self.default) if abs(self.default) < 1e15 else False
            text += " = {}".format(int(self.default) if whole else self.default)
        return text


def _parameter(message: Any) -> Parameter:
    shape = []
    for dim in message.shape:
        kind = dim.WhichOneof("kind")
        shape.append(Dim("size", dim.size, "") if kind == "size" else Dim(kind, 0, getattr(dim, kind)))
    default = message.WhichOneof("default")
    return Parameter(message.name, message.kind, tuple(message.dtypes), tuple(shape), message.strided,
                     None if default is None else getattr(message, default))


# One parameter of a signature as text: name, kind, "strided", dtypes, shape, default.
_PARAMETER = re.compile(r"\s*(\w+)\s*:\s*(in|out|inout|scalar)\s+(strided\s+)?(\w+(?:\s*\|\s*\w+)*)\s*"
                        r"(\[[^\]]*\])?\s*(?:=\s*([^,\s]+)\s*)?(,|$)")
_DIM = re.compile(r"(?P<size>\d+)|(?P<name>[A-Za-z_]\w*)|\*(?P<spread>\w+)(?P<broadcast>~?)")
_KINDS = {text: kind for kind, text in _KIND_TEXT.items()}


def _parse_parameter(found: "re.Match[str]") -> Parameter:
    """ValueError or KeyError if it is malformed."""
    name, kind, strided, types, shape, default = found.groups()[:6]
    numbers = tuple(dtypes.BY_NAME[each.strip()].number for each in types.split("|"))
    if (kind == "scalar") != (shape is None) or (kind == "scalar" and (strided or len(numbers) > 1)):
        raise ValueError("a tensor has a shape, and a scalar has one dtype")
    if kind != "scalar":
        if default is not None:
            raise ValueError("only a scalar has a default")
        return Parameter(name, _KINDS[kind], numbers, _parse_shape(shape[1:-1], kind), bool(strided), None)
    floating = dtypes.BY_NUMBER[numbers[0]].floating
    value = None if default is None else float(default) if floating else int(default)
    return Parameter(name, SCALAR, numbers, (), False, value)


def _parse_shape(text: str, kind: str) -> Tuple[Dim, ...]:
    dims: List[Dim] = []
    for part in text.split(",") if text.strip() else []:
        found = _DIM.fullmatch(part.strip())
        if found is None or (found["broadcast"] and kind != "in"):
            raise ValueError("malformed dimension")
        if found["size"]:
            dims.append(Dim("size", int(found["size"]), ""))
        elif found["name"]:
            dims.append(Dim("name", 0, found["name"]))
        else:
            dims.append(Dim("broadcast" if found["broadcast"] else "spread", 0, found["spread"]))
    if sum(dim.kind in ("spread", "broadcast") for dim in dims) > 1:
        raise ValueError("a shape has at most one '*'")
    return tuple(dims)


def broadcast(a: Shape, b: Shape) -> Optional[Shape]:
    """The shape to which both shapes broadcast; None if there is none."""
    if len(a) < len(b):
        a, b = b, a
    shape = list(a)
    for at, size in enumerate(b, len(a) - len(b)):
        if shape[at] == 1:
            shape[at] = size
        elif size not in (1, shape[at]):
            return None
    return tuple(shape)


def shape_text(shape: Sequence[int]) -> str:
    """ "[2, 3]"."""
    return "[" + ", ".join(map(str, shape)) + "]"


class Signature:
    """The parameters of an operator."""

    def __init__(self, operator: str, parameters: Sequence[Parameter]) -> None:
        self.operator = operator
        self.parameters = tuple(parameters)
        self.inputs = tuple(p for p in self.parameters if p.kind in (INPUT, INOUT))
        self.outputs = tuple(p for p in self.parameters if p.kind in (OUTPUT, INOUT))
        self.scalars = tuple(p for p in self.parameters if p.kind == SCALAR)
        self.by_keyword = {p.keyword: index for index, p in enumerate(self.parameters)}
        self.reduces = operator in _REDUCTIONS and {"x", "axes"} <= set(self.by_keyword)

    @classmethod
    def from_message(cls, operator: Any) -> "Signature":
        """Of a resident.v1.Operator."""
        return cls(operator.name, [_parameter(p) for p in operator.parameters])

    @classmethod
    def parse(cls, operator: str, text: str) -> "Signature":
        """Of the text form (docs/operators.md). InvalidArgument if it is malformed."""
        parameters: List[Parameter] = []
        at, more = 0, True
        while more:
            found = _PARAMETER.match(text, at)
            try:
                if found is None:
                    raise ValueError("malformed parameter")
                parameters.append(_parse_parameter(found))
            except (KeyError, ValueError):
                raise InvalidArgument(
                    "the signature of '{}' is malformed at '{}'".format(operator, text[at:].strip()),
                    "write it as docs/operators.md describes, such as "
                    "'x: in f32[*S], out: out f32[*S], alpha: scalar f64 = 1'",
                    operator=operator) from None
            at, more = found.end(), found[7] == ","
        return cls(operator, parameters)

    def __str__(self) -> str:
        return ", ".join(map(str, self.parameters))

    def python(self, options: Sequence[str]) -> inspect.Signature:
        """The call's signature: inputs by position or keyword, then scalars, outputs and options by
        keyword."""
        kind = inspect.Parameter
        arguments = []
        optional = len(self.inputs)  # Those after the last input: an inout may be omitted.
        while optional and self.inputs[optional - 1].kind == INOUT:
            optional -= 1
        for i, p in enumerate(self.inputs):
            arguments.append(kind(p.keyword, kind.POSITIONAL_OR_KEYWORD,
                                  default=None if i >= optional else kind.empty))
        for p in self.scalars:
            default = kind.empty if p.default is None and not self.reduces else p.default
            arguments.append(kind(p.keyword, kind.KEYWORD_ONLY, default=default))
        for p in self.outputs:
            if p.kind == OUTPUT:
                arguments.append(kind(p.keyword, kind.KEYWORD_ONLY, default=None))
        if self.reduces:
            arguments.append(kind("axis", kind.KEYWORD_ONLY, default=None))
            arguments.append(kind("keepdims", kind.KEYWORD_ONLY, default=False))
        for name in options:
            if name not in self.by_keyword:
                arguments.append(kind(name, kind.KEYWORD_ONLY, default=None))
        return inspect.Signature(arguments)

    def mismatch(self, index: int, text: str, fix: str, expected: str = "", got: str = "",
                 reason: str = "SHAPE_MISMATCH") -> InvalidArgument:
        """The error about parameter `index`."""
        name = self.parameters[index].name
        details = {key: value for key, value in (("expected", expected), ("got", got)) if value}
        return InvalidArgument(
            "argument {} '{}' of {}: {}".format(index + 1, name, self.operator, text), fix,
            operator=self.operator, reason=reason,
            details=dict(details, operator=self.operator, argument=name, index=str(index)))

    def bind(self, shapes: Mapping[int, Shape]) -> Bindings:
        """The values of the variables for the shapes of some parameters (by index). InvalidArgument:
        the first that does not match."""
        bound: Bindings = {}
        bound_by: Dict[str, str] = {}
        for index in sorted(shapes):
            self._bind_one(index, shapes[index], bound, bound_by)
        self._bind_broadcasts(shapes, bound, bound_by)
        return bound

    def shape_of(self, index: int, bound: Bindings) -> Shape:
        """The shape of a parameter for these values. InvalidArgument if it does not follow from
        them."""
        parameter = self.parameters[index]
        shape: List[int] = []
        for dim in parameter.shape:
            if dim.kind == "size":
                shape.append(dim.size)
            elif _variable(dim) in bound:
                shape.extend(bound[_variable(dim)])
            else:
                raise self.mismatch(
                    index, "its shape [{}] does not follow from the inputs".format(
                        ", ".join(map(str, parameter.shape))),
                    "pass shape={{'{0}': (...)}}, or an array or a buffer as {0}=".format(parameter.keyword),
                    reason="OUTPUT_SHAPE_UNKNOWN")
        return tuple(shape)

    def reduce(self, shape: Shape, axes: Any, axis: Any, keepdims: Any) -> Tuple[int, Shape]:
        """For an operator that reduces: the bits of the axes, and the shape of the output.

        axes: the bits, if the call gives them. axis: None for all axes, an integer, or several; negative
            ones count from the last. keepdims: whether the output keeps the axes, with size 1.
        """
        index, rank = self.by_keyword["axes"], len(shape)
        if not isinstance(keepdims, (bool, np.bool_)):
            raise InvalidArgument("keepdims={!r} of {} is not a truth value".format(keepdims, self.operator),
                                  "pass True or False", operator=self.operator)
        if axes is not None:
            if axis is not None:
                raise self.mismatch(index, "it is given with axis, which says the same",
                                    "pass one of them", reason="ARGUMENT_TWICE")
            bits = axes
        else:
            given = tuple(range(rank)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
            bits = 0
            for each in given:
                if isinstance(each, (bool, np.bool_)) or not isinstance(each, (int, np.integer)):
                    raise InvalidArgument("axis={!r} of {} is not an axis".format(axis, self.operator),
                                          "pass an integer, or a tuple of them", operator=self.operator)
                if not -rank <= each < rank:
                    raise InvalidArgument(
                        "{} has no axis {}: x has {} dimensions".format(self.operator, each, rank),
                        "use axes from {} to {}".format(-rank, rank - 1) if rank else "leave axis out",
                        operator=self.operator)
                bit = 1 << (int(each) % rank)
                if bits & bit:
                    raise InvalidArgument("axis={!r} of {} names an axis twice".format(axis, self.operator),
                                          "name each axis once", operator=self.operator)
                bits |= bit
        reduced: List[int] = []
        for i, size in enumerate(shape):
            if not bits >> i & 1:
                reduced.append(size)
            elif keepdims:
                reduced.append(1)
        return bits, tuple(reduced)

    def may_be_absent(self, index: int) -> bool:
        """Whether None may be passed for an input: a tensor without elements, for a parameter of its own
        shape, which operators use for what is optional."""
        dims = self.parameters[index].shape
        return len(dims) == 1 and dims[0].kind == "spread" and sum(
            dim.name == dims[0].name for p in self.parameters for dim in p.shape) == 1

    def check_dtype(self, index: int, dtype: DType,
                    fix: str = "convert it, for instance with astype()") -> None:
        """InvalidArgument if parameter `index` does not accept tensors of this dtype."""
        accepted = self.parameters[index].dtypes
        if dtype.number not in accepted:
            names = dtypes.names(accepted)
            raise self.mismatch(index, "it is {}, and must be {}".format(dtype.name, names), fix, names,
                                dtype.name, "DTYPE_MISMATCH")

    def output_dtype(self, parameter: Parameter, sent: Sequence[DType]) -> DType:
        """The dtype of an output that the call does not choose: the only one that the parameter
        accepts; otherwise the promotion, as in PyTorch, of the accepted dtypes among the tensors that
        are sent; otherwise the first one that the parameter accepts."""
        accepted = parameter.dtypes
        if len(accepted) > 1:
            promoted = dtypes.promote([dtype for dtype in sent if dtype.number in accepted])
            if promoted is not None and promoted.number in accepted:
                return promoted
        return dtypes.BY_NUMBER[accepted[0]]

    def _bind_one(self, index: int, shape: Shape, bound: Bindings, bound_by: Dict[str, str]) -> None:
        parameter = self.parameters[index]
        dims = parameter.shape
        wild = next((i for i, d in enumerate(dims) if d.kind in ("spread", "broadcast")), None)
        fixed = len(dims) - (0 if wild is None else 1)
        if len(shape) < fixed or (wild is None and len(shape) > fixed):
            wanted = "{}{} dimensions".format("" if wild is None else "at least ", fixed)
            raise self.mismatch(
                index, "shape {} does not have {}, as [{}] has".format(shape_text(shape), wanted,
                                                                       ", ".join(map(str, dims))),
                "give it {}".format(wanted), wanted, shape_text(shape), "RANK_MISMATCH")
        at = 0
        for dim in dims:
            width = len(shape) - fixed if dim.kind in ("spread", "broadcast") else 1
            part = shape[at:at + width]
            at += width
            if dim.kind == "broadcast":
                continue  # Bound after all others.
            if dim.kind == "size":
                if part[0] != dim.size:
                    raise self.mismatch(
                        index, "shape {} must have {} in place of {}".format(
                            shape_text(shape), dim.size, part[0]),
                        "reshape '{}'".format(parameter.name), str(dim.size), str(part[0]))
                continue
            variable = _variable(dim)
            known = bound.setdefault(variable, part)
            if known != part:
                first = bound_by[variable]
                raise self.mismatch(
                    index, "shape {} does not match {} = {} bound by '{}'".format(
                        shape_text(shape), dim.name,
                        shape_text(known) if dim.kind == "spread" else known[0], first),
                    "make '{}' and '{}' agree in {}".format(parameter.name, first, dim.name),
                    shape_text(known), shape_text(part))
            bound_by.setdefault(variable, parameter.name)

    def _bind_broadcasts(self, shapes: Mapping[int, Shape], bound: Bindings,
                         bound_by: Dict[str, str]) -> None:
        """Checks the shapes that broadcast. If nothing else binds their variable, they do together."""
        together: Dict[str, str] = {}  # Variable to the last parameter that broadcasts to it.
        for index in sorted(shapes):
            parameter = self.parameters[index]
            for position, dim in enumerate(parameter.shape):
                if dim.kind != "broadcast":
                    continue
                after = len(parameter.shape) - position - 1
                part = shapes[index][position:len(shapes[index]) - after]
                variable = _variable(dim)
                known = bound.get(variable, ())
                result = broadcast(known, part)
                if result is None or (variable in bound_by and result != known):
                    other = bound_by.get(variable) or together[variable]
                    raise self.mismatch(
                        index, "shape {} does not broadcast to {} = {} of '{}'".format(
                            shape_text(shapes[index]), dim.name, shape_text(known), other),
                        "make each dimension of '{}', counted from the last, 1 or equal to that of "
                        "'{}'".format(parameter.name, other), shape_text(known), shape_text(part))
                bound[variable] = result
                together[variable] = parameter.name


def _variable(dim: Dim) -> str:
    return dim.name if dim.kind == "name" else "*" + dim.name
