"""One call of GraphBuilder.call: its arguments are checked, its outputs are made, and the node is added.

Thread safety: none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NoReturn, Sequence, Set, Tuple

import numpy as np

from . import dtypes, results
from .dtypes import DType
from .errors import InvalidArgument
from .graph import KINDS
from .graph_tensor import GraphScalar, GraphTensor, Memory, set_dim
from .signature import INOUT, INPUT, OUTPUT, REDUCTION_OPTIONS, Parameter

if TYPE_CHECKING:
    from .graph_builder import GraphBuilder

# Options of a call, which are not arguments of the operator. A parameter of the same name hides one.
OPTIONS = ("node", "version", "shape", "dtype")
_READ_ONLY = {KINDS["weight"]: "a weight", KINDS["const"]: "a constant", KINDS["input"]: "an input"}
_CONVERT = "convert it with the operator 'copy' and dtype="


class Call:
    """A call while its arguments are assigned to the parameters."""

    def __init__(self, builder: "GraphBuilder", operator: str, settings: Mapping[str, Any]) -> None:
        self._builder = builder
        self._operator = operator
        self._node = str(settings.get("node") or _unused(operator + str(len(builder._nodes)), builder._nodes))
        self._signature = signature = builder._signature(operator, self._node)
        self._options: Dict[str, Any] = dict.fromkeys(OPTIONS)
        self._values: Dict[int, Any] = {}
        for key, value in settings.items():
            if key in signature.by_keyword:
                self._values[signature.by_keyword[key]] = value
            elif key in OPTIONS or (signature.reduces and key in REDUCTION_OPTIONS):
                self._options[key] = value
            else:
                self._refuse("{} has no parameter '{}'".format(operator, key),
                             "its parameters are: {}; options are: {}".format(
                                 ", ".join(signature.by_keyword),
                                 ", ".join((REDUCTION_OPTIONS if signature.reduces else ()) + OPTIONS)))
        if self._node in builder._nodes:
            self._refuse("another node has this name", "give it another name")
        version = self._options["version"]
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            self._refuse("version={!r} is not the number of a version".format(version),
                         "use a number that operators.describe() shows, or 0")

    def add(self, tensors: Sequence[Any]) -> Any:
        """Checks everything, makes the outputs, and adds the node."""
        self._assign(tensors)
        try:
            outputs = self._check()
        except InvalidArgument as error:
            if error.message.startswith("node "):
                raise
            fix = error.fix
            if error.reason == "OUTPUT_SHAPE_UNKNOWN":
                fix = "pass shape=(...), or the tensor that is written"
            raise InvalidArgument("node '{}': {}".format(self._node, error.message), fix,
                                  operator=self._operator, reason=error.reason,
                                  details=error.details) from None
        for index, dtype, dims in outputs:
            name = _unused(self._result_name(index), self._builder._names)
            memory = Memory(name, KINDS["activation"], dtype, dims)
            memory.result = True
            self._builder._names.add(name)
            self._values[index] = self._builder._add_memory(memory)
        self._emit()
        written = [self._values[index] for index, p in enumerate(self._signature.parameters)
                   if p.kind in (OUTPUT, INOUT)]
        if len(written) == 1:
            return written[0]
        return results.named_tuple([p.keyword for p in self._signature.outputs], written)

    def _refuse(self, what: str, fix: str) -> NoReturn:
        raise InvalidArgument("node '{}': {}".format(self._node, what), fix, operator=self._operator)

    def _assign(self, tensors: Sequence[Any]) -> None:
        signature = self._signature
        if len(tensors) > len(signature.inputs):
            self._refuse("{} takes {} tensors by position, not {}".format(self._operator,
                                                                           len(signature.inputs), len(tensors)),
                         "pass scalars and outputs by keyword")
        for parameter, tensor in zip(signature.inputs, tensors):
            index = signature.by_keyword[parameter.keyword]
            if index in self._values:
                self._refuse("'{}' of {} is given twice".format(parameter.keyword, self._operator),
                             "pass it by position or by keyword")
            self._values[index] = tensor

    def _check(self) -> List[Tuple[int, DType, Tuple[int, ...]]]:
        """Checks the arguments; returns index, dtype and dimensions of the outputs to make."""
        signature = self._signature
        shapes: Dict[int, Tuple[int, ...]] = {}
        sent: List[DType] = []
        open_outputs: List[int] = []
        if signature.reduces:
            self._reduce()
        for index, parameter in enumerate(signature.parameters):
            value = self._values.get(index)
            if parameter.scalar:
                self._values[index] = self._scalar(index, parameter, value)
            elif isinstance(value, GraphTensor):
                self._tensor(index, parameter, value)
                shapes[index] = value._dims
                sent.append(value._memory.dtype)
            elif value is not None:
                raise signature.mismatch(
                    index, "it is a tensor, and got {}".format(type(value).__name__),
                    "pass one that this GraphBuilder returned; data is given to runs, by the names of "
                    "inputs and weights", reason="ARGUMENT_KIND")
            elif parameter.kind == OUTPUT:
                open_outputs.append(index)
            elif parameter.kind == INPUT and index in self._values and signature.may_be_absent(index):
                shapes[index] = (0,)
            else:
                raise signature.mismatch(index, "it is missing", "pass a tensor", reason="ARGUMENT_MISSING")
        for index in open_outputs:
            wanted = self._option("shape", index)
            if wanted is not None:
                shapes[index] = self._builder._dims(wanted, self._result_name(index))
        bound = signature.bind(shapes)
        outputs: List[Tuple[int, DType, Tuple[int, ...]]] = []
        for index in open_outputs:
            chosen = self._option("dtype", index)
            dtype = (signature.output_dtype(signature.parameters[index], sent) if chosen is None else
                     dtypes.find(chosen))
            signature.check_dtype(index, dtype, "choose another dtype")
            dims = shapes[index] if index in shapes else signature.shape_of(index, bound)
            outputs.append((index, dtype, dims))
        return outputs

    def _reduce(self) -> None:
        """Turns axis and keepdims into the bits of the scalar `axes`, and the shape of the output."""
        axes, x = self._signature.by_keyword["axes"], self._values.get(self._signature.by_keyword["x"])
        given = self._values.get(axes)
        if not isinstance(x, GraphTensor) or not (given is None or isinstance(given, (int, np.integer))):
            return  # An error of its own, or a scalar of the graph.
        keepdims = self._options.get("keepdims", False)
        self._values[axes], shape = self._signature.reduce(x._dims, given, self._options.get("axis"), keepdims)
        if self._options["shape"] is None:
            self._options["shape"] = shape
        elif "keepdims" in self._options:
            self._refuse("the output's shape is given by shape= and keepdims=", "pass one of them")

    def _option(self, name: str, index: int) -> Any:
        """The value of the option shape or dtype for an output."""
        option = self._options[name]
        return option.get(self._signature.parameters[index].keyword) if isinstance(option, dict) else option

    def _tensor(self, index: int, parameter: Parameter, tensor: GraphTensor) -> None:
        self._builder._check_tensor(tensor, "node '{}', parameter '{}'".format(self._node, parameter.name))
        signature = self._signature
        signature.check_dtype(index, tensor._memory.dtype, _CONVERT)
        if not parameter.strided and not tensor._dense:
            raise signature.mismatch(index, "it accepts only dense tensors, and {!r} is not".format(tensor),
                                     "copy the part into a tensor of its own (operator 'copy')",
                                     reason="NOT_DENSE")
        if parameter.kind == INPUT:
            return
        kind = _READ_ONLY.get(tensor._memory.kind)
        if kind is not None:
            raise signature.mismatch(index, "it is written, and '{}' is {}".format(tensor.name, kind),
                                     "write to an activation, a state or an output", reason="NOT_WRITEABLE")
        if any(stride < 0 for stride in tensor._strides):
            raise signature.mismatch(index, "it is written, and {!r} has a negative stride".format(tensor),
                                     "use positive strides, and reverse the inputs", reason="NOT_WRITEABLE")

    def _scalar(self, index: int, parameter: Parameter, value: Any) -> Any:
        """The value of a scalar as int, float or GraphScalar; None: its default."""
        signature = self._signature
        dtype = dtypes.BY_NUMBER[parameter.dtypes[0]]
        kind = "a number" if dtype.floating else "an integer"
        if value is None:
            if parameter.default is None:
                raise signature.mismatch(index, "it is missing",
                                         "pass {}= with {} or a scalar".format(parameter.keyword, kind),
                                         reason="ARGUMENT_MISSING")
            return None
        if isinstance(value, GraphScalar):
            self._builder._check_scalar(value, "node '{}', parameter '{}'".format(self._node, parameter.name))
            if value._integer == dtype.floating:
                raise signature.mismatch(
                    index, "it is {}, and scalar '{}' is {}".format(dtype.name, value.name,
                                                                    "i64" if value._integer else "f32"),
                    "use a scalar of {}".format("real()" if dtype.floating else "integer()"),
                    reason="DTYPE_MISMATCH")
            if not dtype.floating and not (value._factor.is_integer() and value._addend.is_integer()):
                raise signature.mismatch(index, "it is an integer, and '{}' may be none".format(value),
                                         "use whole numbers", reason="DTYPE_MISMATCH")
            return value
        number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
        if not isinstance(number, (int, float) if dtype.floating else int) or number != number:
            raise signature.mismatch(index, "{!r} is not {}".format(value, kind),
                                     "pass {} or a scalar".format(kind), reason="DTYPE_MISMATCH")
        return float(number) if dtype.floating else int(number)

    def _result_name(self, index: int) -> str:
        """The name of a new tensor: that of the node, unless the node has several."""
        return (self._node if len(self._signature.outputs) == 1 else
                "{}.{}".format(self._node, self._signature.parameters[index].name))

    def _emit(self) -> None:
        self._builder._nodes.add(self._node)
        node = self._builder._graph.nodes.add(name=self._node, operator=self._operator,
                                              version=self._options["version"] or 0)
        named = False
        for index, parameter in enumerate(self._signature.parameters):
            value = self._values.get(index)
            if value is None and parameter.scalar:
                named = True  # Its default; those that follow have names.
                continue
            argument = node.arguments.add()
            if named:
                argument.parameter = parameter.name
            if value is None:
                argument.none = True
            elif isinstance(value, GraphTensor):
                view = argument.tensor
                view.name = value.name
                if not value._whole:
                    view.scalar_shape = not value._dims
                    for dim in value._dims:
                        set_dim(dim, view.shape.add())
                    view.strides.extend(value._strides)
                    view.offset = value._offset
                self._builder._views.append((view, value._memory))
            elif isinstance(value, GraphScalar):
                argument.scalar.name = value.name
                if value._factor != 1:
                    argument.scalar.factor = value._factor
                argument.scalar.addend = value._addend
            elif isinstance(value, int):
                argument.i64 = value
            else:
                argument.f64 = value


def _unused(name: str, used: Set[str]) -> str:
    """The name, or one that begins with it and is not in use."""
    made, at = name, 0
    while made in used:
        at += 1
        made = "{}.{}".format(name, at)
    return made
