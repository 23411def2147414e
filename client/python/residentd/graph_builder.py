"""GraphBuilder: describes a task graph by calls of its operators.

    b = residentd.GraphBuilder("feature", rd)
    x, w = b.input("x", (2, 64)), b.weight("w", (64,))
    n = b.call("rmsnorm", x, w, eps=1e-5)
    b.output("y", n + b.call("silu", n))
    graph = b.build()

The order of the calls is the order of the nodes, which is the meaning of the graph
(docs/graph_format.md). What is wrong with a call is refused where it is made, by an InvalidArgument that
names the node. What only the order of the nodes shows (a tensor that is read before it is written), and
which memory overlaps, is checked by the daemon: Graphs.validate().

Thread safety: none.
"""

from __future__ import annotations

import difflib
import math
import operator as operator_module
from typing import (TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple,
                    Union)

import numpy as np

from . import dtypes, expression
from .descriptors import message
from .dtypes import DTypeLike
from .errors import InvalidArgument, NotFound
from .graph import KINDS, Graph
from .graph_call import Call
from .graph_tensor import DimLike, GraphScalar, GraphTensor, Memory, ScalarDim, set_dim
from .operators import OperatorInfo, describe_steps
from .signature import Signature

if TYPE_CHECKING:
    from .client import Client

_MAX_NAME_BYTES = 128
_MAX_STOP_VALUES = 64
_MAX_SIZE = 1 << 60  # More elements than a graph may have bytes.
# For output() and stream() of a builder that was made without a daemon.
_COPY = ("x: in strided f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S~], "
         "out: out strided f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S]")
ShapeLike = Union[DimLike, Sequence[DimLike]]


class GraphBuilder:
    """Makes a Graph, see the module's description.

    name: only for people; may be empty.
    operators: where the signatures come from: a client for threads, which is asked when an operator is
        called for the first time; or what Operators.list() returns, as for asyncio; or, without a daemon,
        a dict with the signature (docs/operators.md) of each operator.
    """

    def __init__(self, name: str = "", operators: Union["Client", Iterable[OperatorInfo],
                                                        Mapping[str, str], None] = None) -> None:
        self._graph = message("Graph")(name=name, format=1)
        self._client: Optional["Client"] = None
        self._signatures: Dict[str, Signature] = {}
        self._tensors: List[Memory] = []
        self._names: Set[str] = set()  # Of tensors and scalars.
        self._nodes: Set[str] = set()
        # The tensor of each view: it may get another name until build().
        self._views: List[Tuple[Any, Memory]] = []
        self._stop: Optional[Memory] = None
        if operators is None:
            operators = {}
        if isinstance(operators, Mapping):
            self._signatures = {key: Signature.parse(key, text) for key, text in operators.items()}
            self._signatures.setdefault("copy", Signature.parse("copy", _COPY))
        elif hasattr(operators, "_drive"):
            from .client import Client

            if not isinstance(operators, Client):
                raise InvalidArgument("a client for asyncio cannot be asked by a builder",
                                      "pass `await client.operators.list()`")
            self._client = operators
        else:
            for each in operators:
                if each.signature:  # FLUX programs have none.
                    self._signatures[each.name] = Signature.from_message(each.message)

    # Tensors.

    def input(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """A tensor that each run gives."""
        return self._add(KINDS["input"], name, shape, dtype)

    def weight(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """A tensor that is never written. A run that does not give it uses the buffer with its name."""
        return self._add(KINDS["weight"], name, shape, dtype)

    def constant(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """As weight()."""
        return self._add(KINDS["const"], name, shape, dtype)

    def state(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """A tensor that is kept from step to step, and by a graph session from run to run. It begins with
        zeros."""
        return self._add(KINDS["state"], name, shape, dtype)

    def activation(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """Memory for several nodes, each of which writes a part. Other activations are made by call()."""
        return self._add(KINDS["activation"], name, shape, dtype)

    def new_output(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32") -> GraphTensor:
        """An output to which nodes write (`out=`), in place of output()."""
        return self._add(KINDS["output"], name, shape, dtype)

    def new_stream(self, name: str, shape: ShapeLike, dtype: DTypeLike = "f32", records: int = 0) -> GraphTensor:
        """A stream to which nodes write, in place of stream(). shape: that of a record."""
        made = self._add(KINDS["stream"], name, shape, dtype)
        made._memory.records = _count(records, 0, "stream '{}' has records={!r}".format(name, records))
        return made

    def output(self, name: str, tensor: GraphTensor) -> GraphTensor:
        """Returns a tensor at the end of a run. The result of a call becomes the output itself, which is
        what its memory contains when the step ends. Another tensor is copied by one more node."""
        return self._return(KINDS["output"], name, tensor, 0)

    def stream(self, name: str, tensor: GraphTensor, records: int = 0) -> GraphTensor:
        """Returns a record of a tensor after each step, as output() does. records: the most that a run
        has; 0: one for each step of the loop."""
        return self._return(KINDS["stream"], name, tensor,
                            _count(records, 0, "stream '{}' has records={!r}".format(name, records)))

    # Scalars.

    def integer(self, name: str, least: int, most: int, initial: Optional[int] = None) -> GraphScalar:
        """A scalar of type i64, with its range. initial: the value of a run that gives none; None: each
        run must give it."""
        return self._add_scalar(name, "i64", least, most, initial)

    def real(self, name: str, least: float, most: float, initial: Optional[float] = None) -> GraphScalar:
        """A scalar of type f32, see integer()."""
        return self._add_scalar(name, "f32", least, most, initial)

    # Nodes.

    def call(self, operator: str, /, *tensors: Optional[GraphTensor], **settings: Any) -> Any:
        """Adds a node that calls an operator; returns the tensor that it writes, or a named tuple if there
        are several.

        tensors: those that the operator reads, in the order of its signature; None: an optional one that
            is left out. They may also be given by keyword.
        settings: scalars, as numbers or graph scalars; for an output the tensor that is written, such as
            out=total. Without it, the output is a new tensor, whose shape and dtype are inferred as for
            calls of operators. An inout works in place: the tensor that is given is also the result.
        shape, dtype: of new tensors, in the forms that calls of operators accept.
        node: the node's name; by default the operator's and a number.
        version: of the operator; 0: the one that is active when the node starts.

        InvalidArgument: the call does not match the signature.
        """
        return Call(self, operator, settings).add(tensors)

    # The loop.

    def loop(self, max_steps: int, updates: Optional[Mapping[GraphScalar, GraphScalar]] = None,
             stop: Optional[Tuple[GraphTensor, Sequence[int]]] = None) -> None:
        """Executes the nodes up to max_steps times.

        updates: new values of scalars after each step: {pos: pos + 1}. A value is factor * scalar + addend
            of the same scalar.
        stop: (tensor, values): ends the loop after a step in which the tensor's only element, an i64 or
            i32, has one of the values.
        """
        if self._graph.HasField("loop"):
            raise InvalidArgument("the graph has a loop already", "call loop() once")
        loop = message("GraphLoop")(max_steps=_count(max_steps, 1, "the loop has max_steps={!r}".format(
            max_steps)))
        for scalar, value in (updates or {}).items():
            self._check_scalar(scalar, "updates")
            if not isinstance(value, GraphScalar) or value._index != scalar._index or not scalar._plain:
                raise InvalidArgument("the update of scalar '{}' is {!r}".format(scalar.name, value),
                                      "give factor * scalar + addend of the scalar itself: "
                                      "{{{0}: {0} + 1}}".format(scalar.name))
            self._check_scalar(value, "updates")
            update = loop.updates.add(scalar=scalar.name, addend=value._addend)
            if value._factor != 1:
                update.factor = value._factor
        if stop is not None:
            tensor, values = stop
            self._check_tensor(tensor, "stop")
            if (not tensor._whole or math.prod(tensor._dims) != 1 or
                    tensor.dtype not in ("i64", "i32")):
                raise InvalidArgument("the loop stops on {!r}".format(tensor),
                                      "use a whole tensor with one element of type i64 or i32")
            if not 1 <= len(values) <= _MAX_STOP_VALUES:
                raise InvalidArgument("the loop stops on {} values".format(len(values)),
                                      "use 1 to {}".format(_MAX_STOP_VALUES))
            loop.stop.values.extend(operator_module.index(value) for value in values)
            self._stop = tensor._memory
        self._graph.loop.CopyFrom(loop)

    def build(self) -> Graph:
        """The graph as it is now; may be called again after further calls. InvalidArgument: a part is
        missing."""
        if not self._graph.nodes:
            raise InvalidArgument("graph '{}' has no nodes".format(self._graph.name), "call an operator")
        for view, memory in self._views:
            view.name = memory.name
        made = message("Graph")()
        made.CopyFrom(self._graph)
        for memory in self._tensors:
            tensor = made.tensors.add(name=memory.name, kind=memory.kind, dtype=memory.dtype.number)
            if memory.kind == KINDS["stream"]:
                records = memory.records or made.loop.max_steps
                if not records:
                    raise InvalidArgument("stream '{}' has no number of records".format(memory.name),
                                          "call loop(), or give records=")
                tensor.shape.add(size=records)
            for dim in memory.dims:
                set_dim(dim, tensor.shape.add())
        if self._stop is not None:
            made.loop.stop.tensor = self._stop.name
        return Graph(made, self._client)

    # For the classes above and below.

    def _add_name(self, kind: str, name: str) -> None:
        """Refuses a name that is in use. Tensors and scalars have different names, because a run gives
        both by name."""
        size = len(name.encode())
        if not 1 <= size <= _MAX_NAME_BYTES:
            raise InvalidArgument("the name '{}' of a {} has {} bytes".format(name, kind, size),
                                  "use 1 to {}".format(_MAX_NAME_BYTES))
        if name in self._names:
            raise InvalidArgument("a tensor or scalar has the name '{}' already".format(name),
                                  "give the {} another name".format(kind))
        self._names.add(name)

    def _add(self, kind: int, name: str, shape: ShapeLike, dtype: DTypeLike) -> GraphTensor:
        memory = Memory(name, kind, dtypes.find(dtype), self._dims(shape, name))
        self._add_name("tensor", name)
        return self._add_memory(memory)

    def _add_memory(self, memory: Memory) -> GraphTensor:
        self._tensors.append(memory)
        return GraphTensor(self, memory, memory.dims, self._dense_strides(memory.dims), 0, True)

    def _add_scalar(self, name: str, dtype: str, least: float, most: float,
                    initial: Optional[float]) -> GraphScalar:
        kinds: Any = (int, np.integer) if dtype == "i64" else (int, float, np.integer, np.floating)
        values = [least, most if initial is None else initial, most]
        if (any(isinstance(value, bool) or not isinstance(value, kinds) for value in values) or
                not values[0] <= values[1] <= values[2]):
            raise InvalidArgument(
                "scalar '{}' has the range {!r} to {!r}{}".format(
                    name, least, most, "" if initial is None else ", and {!r} initially".format(initial)),
                "give {}: the smallest, the largest, and an initial value between them".format(
                    "integers" if dtype == "i64" else "numbers"))
        self._add_name("scalar", name)
        made = self._graph.scalars.add(name=name, dtype=dtypes.BY_NAME[dtype].number, least=least, most=most)
        if initial is not None:
            made.initial = initial
        return GraphScalar(self, len(self._graph.scalars) - 1)

    def _return(self, kind: int, name: str, tensor: GraphTensor, records: int) -> GraphTensor:
        self._check_tensor(tensor, "{} '{}'".format("stream" if kind == KINDS["stream"] else "output", name))
        memory = tensor._memory
        if tensor._whole and memory.result:
            if name != memory.name:
                self._add_name("tensor", name)
                self._names.discard(memory.name)
            memory.name, memory.kind, memory.records, memory.result = name, kind, records, False
            return tensor
        made = self._add(kind, name, tensor.shape, memory.dtype)
        made._memory.records = records
        self.call("copy", tensor, out=made)
        return made

    def _check_tensor(self, tensor: Any, place: str) -> None:
        if not isinstance(tensor, GraphTensor):
            raise InvalidArgument("{}: {} is not a tensor of a graph".format(place, type(tensor).__name__),
                                  "use one that this GraphBuilder returned")
        if tensor._builder is not self:
            raise InvalidArgument("{}: tensor '{}' was not made by this builder".format(place, tensor.name),
                                  "use one that this GraphBuilder returned")

    def _check_scalar(self, scalar: Any, place: str) -> None:
        if not isinstance(scalar, GraphScalar) or scalar._builder is not self:
            raise InvalidArgument("{}: {!r} was not made by this builder".format(place, scalar),
                                  "use a scalar that this GraphBuilder returned")

    def _dims(self, shape: ShapeLike, tensor: str) -> Tuple[int, ...]:
        """The dimensions of a shape: an integer, a scalar, or a sequence of them."""
        dims: List[int] = []
        given: Any = shape if isinstance(shape, Iterable) else (shape,)
        for each in given:
            if isinstance(each, ScalarDim):
                dims.append(each)
            elif isinstance(each, GraphScalar):
                self._check_scalar(each, "a dimension of tensor '{}'".format(tensor))
                if not each._plain or not each._integer:
                    raise InvalidArgument(
                        "tensor '{}' has the dimension {}".format(tensor, each),
                        "use an integer, or a scalar of integer() itself, with a range and an update of its own")
                dims.append(ScalarDim(each))
            elif isinstance(each, bool) or not isinstance(each, (int, np.integer)) or not (
                    1 <= each <= _MAX_SIZE):
                raise InvalidArgument("tensor '{}' has the dimension {!r}".format(tensor, each),
                                      "use integers from 1 on, and scalars of integer()")
            else:
                dims.append(int(each))
        return tuple(dims)

    def _bound(self, dim: int) -> int:
        """The number of elements; of a scalar the largest one."""
        return max(int(dim.scalar._message.most), 1) if isinstance(dim, ScalarDim) else dim

    def _dense_strides(self, dims: Sequence[int]) -> Tuple[int, ...]:
        strides: List[int] = []
        stride = 1
        for dim in reversed(dims):
            strides.append(stride)
            stride *= self._bound(dim)
        return tuple(reversed(strides))

    def _signature(self, operator: str, node: str) -> Signature:
        found = self._signatures.get(operator)
        if found is None:
            fix = "install it, or correct its name"
            if self._client is not None:
                try:
                    info = self._client._drive(describe_steps(operator))
                    if not info.signature:
                        raise InvalidArgument("node '{}': {} is a FLUX program".format(node, operator),
                                              "call an operator with a signature", operator=operator)
                    found = self._signatures[operator] = Signature.from_message(info.message)
                    return found
                except NotFound as error:
                    fix = error.fix or fix
            else:
                # A similar name of a well-known function would compute something else.
                near = [] if operator in expression.OTHER_FUNCTIONS else difflib.get_close_matches(
                    operator, list(self._signatures), 1)
                fix = "did you mean '{}'?".format(near[0]) if near else fix
            raise InvalidArgument("node '{}': there is no operator '{}'".format(node, operator), fix,
                                  operator=operator)
        return found


def _count(value: Any, minimum: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise InvalidArgument(what, "use an integer from {} on".format(minimum))
    return int(value)
