"""Tensors and scalars of a graph that is being built (graph_builder.py).

Thread safety: none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import dtypes
from .dtypes import DType
from .errors import InvalidArgument

if TYPE_CHECKING:
    from .graph_builder import GraphBuilder


class GraphScalar:
    """The value factor * scalar + addend, which a run computes: 2 * pos + 1. A scalar itself is what
    integer() and real() return."""

    __array_ufunc__ = None  # numpy.float32(2) * pos is left to this class.

    def __init__(self, builder: "GraphBuilder", index: int, factor: float = 1, addend: float = 0) -> None:
        self._builder = builder
        self._index = index
        self._factor = float(factor)
        self._addend = float(addend)

    @property
    def name(self) -> str:
        """Of the scalar."""
        return str(self._message.name)

    def __add__(self, addend: float) -> "GraphScalar":
        return self._made(self._factor, self._addend + self._number(addend))

    def __mul__(self, factor: float) -> "GraphScalar":
        factor = self._number(factor)
        return self._made(factor * self._factor, factor * self._addend)

    def __sub__(self, addend: float) -> "GraphScalar":
        return self + -self._number(addend)

    def __rsub__(self, minuend: float) -> "GraphScalar":
        return -self + minuend

    def __neg__(self) -> "GraphScalar":
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        text = self.name if self._factor == 1 else "{:g} * {}".format(self._factor, self.name)
        return text + (" + {:g}".format(self._addend) if self._addend else "")

    def __repr__(self) -> str:
        return "<graph scalar {}>".format(self)

    @property
    def _message(self) -> Any:
        return self._builder._graph.scalars[self._index]

    @property
    def _plain(self) -> bool:
        return self._factor == 1 and self._addend == 0

    @property
    def _integer(self) -> bool:
        return bool(self._message.dtype == dtypes.BY_NAME["i64"].number)

    def _number(self, value: Any) -> float:
        if isinstance(value, GraphTensor):
            raise InvalidArgument("{!r} with {!r} is not a node".format(self, value),
                                  "call an operator that takes the scalar: b.call('scale', x, s=scalar)")
        if isinstance(value, (bool, GraphScalar)) or not isinstance(value, (int, float, np.number)):
            raise InvalidArgument("{!r} with {!r} is not factor * scalar + addend".format(self, value),
                                  "add and multiply numbers; compute other values with operators")
        return float(value)

    def _made(self, factor: float, addend: float) -> "GraphScalar":
        return GraphScalar(self._builder, self._index, factor, addend)


DimLike = Union[int, GraphScalar]


class ScalarDim(int):
    """A dimension that is a scalar, as a number that is no size. Equal scalars are equal numbers, so that
    shapes are compared and inferred as those of numbers."""

    scalar: GraphScalar

    def __new__(cls, scalar: GraphScalar) -> "ScalarDim":
        made = super().__new__(cls, -1 - scalar._index)
        made.scalar = scalar
        return made

    def __str__(self) -> str:
        return self.scalar.name

    __repr__ = __str__


class Memory:
    """What is known of a tensor before build()."""

    def __init__(self, name: str, kind: int, dtype: DType, dims: Tuple[int, ...]) -> None:
        self.name = name
        self.kind = kind
        self.dtype = dtype
        self.dims = dims
        self.result = False  # Whether a call made it, so that output() may make it its own.
        self.records = 0  # Of a stream.


# NumPy's functions that an operator computes.
_OPERATORS: Dict[Any, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div", np.power: "pow",
    np.maximum: "maximum", np.minimum: "minimum", np.negative: "neg", np.absolute: "abs", np.exp: "exp",
    np.log: "log", np.sqrt: "sqrt", np.sin: "sin", np.cos: "cos", np.tanh: "tanh",
}
_COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}


class GraphTensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of a graph, or a part of it. Indexing gives parts, as NumPy's basic indexing does; they
    name the same memory."""

    def __init__(self, builder: "GraphBuilder", memory: Memory, dims: Tuple[int, ...],
                 strides: Tuple[int, ...], offset: int, whole: bool) -> None:
        self._builder = builder
        self._memory = memory
        self._dims = dims
        self._strides = strides
        self._offset = offset
        self._whole = whole

    @property
    def name(self) -> str:
        """Of the tensor, in the graph."""
        return self._memory.name

    @property
    def dtype(self) -> str:
        """The element type, for instance "f32"."""
        return self._memory.dtype.name

    @property
    def shape(self) -> Tuple[DimLike, ...]:
        """Integers, and the scalars of dimensions that are scalars."""
        return tuple(dim.scalar if isinstance(dim, ScalarDim) else dim for dim in self._dims)

    @property
    def strides(self) -> Tuple[int, ...]:
        """Distance between adjacent elements of each dimension, in elements."""
        return self._strides

    @property
    def ndim(self) -> int:
        return len(self._dims)

    @property
    def T(self) -> "GraphTensor":
        """The dimensions in reverse order. For operators that accept strided tensors."""
        return self.transpose()

    def transpose(self, *axes: int) -> "GraphTensor":
        """The dimensions in another order; without `axes` in reverse order. For operators that accept
        strided tensors."""
        order = axes or tuple(reversed(range(self.ndim)))
        if sorted(order) != list(range(self.ndim)):
            raise self._error("has {} dimensions, and the order {} is asked for".format(self.ndim, order),
                              "name each dimension once, counted from 0")
        return self._part([self._dims[i] for i in order], [self._strides[i] for i in order], 0)

    def reshape(self, *shape: Any) -> "GraphTensor":
        """The same elements with another shape; -1 stands for the size that follows. A dimension that is
        a scalar must stay the first one."""
        given = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], (int, GraphScalar)) else shape
        if not self._dense:
            raise self._error("is not dense, and is reshaped",
                              "reshape the whole tensor, or copy the part with the operator 'copy'")
        elements = math.prod(dim for dim in self._dims if dim > 0)
        known = math.prod(dim for dim in given if isinstance(dim, int) and dim != -1)
        dims = self._builder._dims(
            [elements // known if known > 0 and isinstance(dim, int) and dim == -1 else dim for dim in given],
            self.name)
        scalars = [[(i, dim) for i, dim in enumerate(each) if dim < 0] for each in (self._dims, dims)]
        if (math.prod(dim for dim in dims if dim > 0) != elements or scalars[0] != scalars[1] or
                any(i > 0 for i, _ in scalars[0])):
            raise self._error("has the shape {}, and {} is asked for".format(list(self._dims), list(given)),
                              "use a shape with the same elements; view() takes any part")
        return self._part(dims, self._builder._dense_strides(dims), 0)

    def view(self, shape: Sequence[DimLike], offset: int = 0,
             strides: Optional[Sequence[int]] = None) -> "GraphTensor":
        """Any part. offset and strides count elements, the offset from the first element of this tensor;
        no strides: dense."""
        dims = self._builder._dims(shape, self.name)
        if strides is None:
            strides = self._builder._dense_strides(dims)
        if len(strides) != len(dims):
            raise self._error("has a view with {} dimensions and {} strides".format(len(dims), len(strides)),
                              "give one stride for each dimension, or none")
        return self._part(dims, [int(stride) for stride in strides], int(offset))

    def __len__(self) -> int:
        if not self._dims or self._dims[0] < 0:
            raise TypeError("this tensor has no length that is known")
        return self._dims[0]

    def __getitem__(self, key: Any) -> "GraphTensor":
        """A part, as NumPy's: integers, slices, Ellipsis, None. The end of a slice may be a scalar:
        x[:rows], x[2:rows + 2]."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if not any(each is Ellipsis for each in keys):
            keys.append(Ellipsis)
        at = next(i for i, each in enumerate(keys) if each is Ellipsis)
        given = sum(each is not None for each in keys) - 1
        if given > self.ndim:
            raise self._error("has {} dimensions, and {} are indexed".format(self.ndim, given),
                              "use at most one index for each dimension")
        keys[at:at + 1] = [slice(None)] * (self.ndim - given)
        dims: List[int] = []
        strides: List[int] = []
        offset, dimension = 0, 0
        for each in keys:
            if each is None:
                dims.append(1)
                strides.append(1)
                continue
            stride = self._strides[dimension]
            if isinstance(each, slice):
                first, count, step = self._slice(dimension, each)
                dims.append(count)
                strides.append(stride * step)
            else:
                first = self._index(dimension, each)
            offset += first * stride
            dimension += 1
        return self._part(dims, strides, offset)

    def __iter__(self) -> Iterator["GraphTensor"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return "<graph tensor '{}': {}{}>".format(self.name, self.dtype, list(self._dims))

    # Arithmetic adds nodes. Python's operators call NumPy's functions.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> "GraphTensor":
        """The node of an operator that computes what NumPy's function does."""
        name = ufunc.__name__
        if "out" in kwargs:
            raise InvalidArgument("numpy.{} would write to tensor '{}'".format(name, self.name),
                                  "write x = x + y in place of x += y, or call an operator with out=")
        if method != "__call__" or kwargs:
            raise InvalidArgument("numpy.{} with these options is not an operator".format(name),
                                  "call an operator: b.call('sum', x, axis=0), or with out=")
        if ufunc is np.matmul:
            return self._matmul(*inputs)
        if ufunc in _COMPARISONS:
            raise InvalidArgument("tensor '{}' has no value before the graph runs, and is compared".format(self.name),
                                  "compare names or shapes; there is no operator that compares elements")
        operator = _OPERATORS.get(ufunc)
        if operator is None:
            raise InvalidArgument("numpy.{} is not an operator of graphs".format(name),
                                  "call one of rd.operators.list(): b.call('silu', x)")
        return self._call(operator, *map(self._operand, inputs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise InvalidArgument("numpy.{} is not an operator of graphs".format(function.__name__),
                              "call one of rd.operators.list(): b.call('sum', x, axis=0)")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidArgument("tensor '{}' has no elements before the graph runs".format(self.name),
                              "add a node for the operation: b.call(operator, x)")

    def __bool__(self) -> bool:
        raise InvalidArgument("tensor '{}' has no value before the graph runs, and is used as a truth "
                              "value".format(self.name), "branch on its shape, or compare with None by `is`")

    __hash__ = object.__hash__  # A tensor may be a key; == would compare elements.

    def _call(self, operator: str, *tensors: "GraphTensor", **settings: Any) -> "GraphTensor":
        made: GraphTensor = self._builder.call(operator, *tensors, **settings)
        return made

    def _operand(self, value: Any) -> "GraphTensor":
        """A tensor for an operand; a number becomes one that a node fills."""
        if isinstance(value, GraphTensor):
            return value
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            number = value.item() if isinstance(value, np.generic) else value
            dtypes.from_numbers(number, self._memory.dtype)  # Refuses what would be changed.
            return self._call("fill", value=number, shape=(), dtype=self._memory.dtype)
        raise InvalidArgument("tensor '{}' with a value of type {} is not an operator".format(
            self.name, type(value).__name__), "use numbers, and tensors of this GraphBuilder; data is given to "
            "runs, by the names of inputs and weights")

    def _matmul(self, a: Any, b: Any) -> "GraphTensor":
        """a @ b, as gemv if b is the transpose of a dense matrix, otherwise as gemm."""
        if not isinstance(a, GraphTensor) or not isinstance(b, GraphTensor):
            raise InvalidArgument("tensor '{}' is multiplied by a value of type {}".format(
                self.name, type(b if a is self else a).__name__), "use a tensor of this GraphBuilder")
        transposed = b.T if b.ndim == 2 else b
        if a.ndim >= 1 and b.ndim == 2 and a._dims[-1] == b._dims[0]:
            if transposed._dense and a._dense:
                return self._call("gemv", a, transposed, None)
            if a.ndim == 2:
                c = self._call("zero", shape=(a._dims[0], b._dims[1]), dtype=a._memory.dtype)
                return self._call("gemm", a, b, c)
        if a.ndim == b.ndim == 3 and a._dims[0] == b._dims[0] and a._dims[2] == b._dims[1]:
            c = self._call("zero", shape=(a._dims[0], a._dims[1], b._dims[2]), dtype=a._memory.dtype)
            return self._call("gemm_batched", a, b, c)
        raise InvalidArgument("{!r} @ {!r} is not an operator".format(a, b),
                              "multiply [..., K] by [K, N], or [B, M, K] by [B, K, N]; or call gemm, gemv or "
                              "gemm_batched")

    def _index(self, dimension: int, index: Any) -> int:
        dim = self._dims[dimension]
        size = self._builder._bound(dim)
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise self._error("is indexed by {!r}".format(index),
                              "use integers and slices, or the operator 'embedding'")
        position = int(index) + size if index < 0 and dim >= 0 else int(index)
        if not 0 <= position < size:
            raise self._error("has {} elements in dimension {}, and {} is indexed".format(
                size, dimension, index), "use an index inside of it")
        return position

    def _slice(self, dimension: int, key: slice) -> Tuple[int, int, int]:
        """First element, number of elements, step."""
        dim = self._dims[dimension]
        size = self._builder._bound(dim)
        if key == slice(None):
            return 0, dim, 1
        if isinstance(key.stop, GraphScalar):
            first = 0 if key.start is None else self._index(dimension, key.start)
            scalar = self._builder._dims([key.stop - first if first else key.stop], self.name)[0]
            if key.step not in (None, 1) or first + self._builder._bound(scalar) > size:
                raise self._error(
                    "has {} elements in dimension {}, and {} from {} on are sliced".format(
                        size, dimension, self._builder._bound(scalar), first),
                    "use a slice inside of it, without a step; a scalar counts with its largest value")
            return first, scalar, 1
        try:
            first, stop, step = key.indices(size)
            unknown = dim < 0 and (key.stop is None or key.stop < 0 or (key.start or 0) < 0)
        except (TypeError, ValueError):
            raise self._error("is sliced by {!r}".format(key), "use integers") from None
        if unknown:
            raise self._error("has {} elements in dimension {}, which depend on the run, and {} is sliced".format(
                dim, dimension, key), "use a slice from an integer to an integer, or to a scalar")
        count = len(range(first, stop, step))
        if count == 0:
            raise self._error("has {} elements in dimension {}, and {} has none of them".format(
                size, dimension, key), "use a slice inside of it")
        return first, count, step

    @property
    def _dense(self) -> bool:
        """Whether the elements are adjacent, whatever the scalars are."""
        expected = 1
        outer = [i for i, dim in enumerate(self._dims) if dim != 1]
        for i in reversed(outer):
            if self._strides[i] != expected or (self._dims[i] < 0 and i != outer[0]):
                return False
            expected *= self._builder._bound(self._dims[i])
        return True

    def _part(self, dims: Sequence[int], strides: Sequence[int], offset: int) -> "GraphTensor":
        return GraphTensor(self._builder, self._memory, tuple(dims), tuple(strides), self._offset + offset,
                           False)

    def _error(self, what: str, fix: str) -> InvalidArgument:
        return InvalidArgument("tensor '{}' {}".format(self.name, what), fix)


def set_dim(dim: int, into: Any) -> None:
    """Fills in a resident.v1.GraphDim."""
    if isinstance(dim, ScalarDim):
        into.scalar = dim.scalar.name
    else:
        into.size = dim
