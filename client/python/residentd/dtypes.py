"""Element types: the daemon's, and NumPy's.

NumPy has no bfloat16. An array of it is a BFloat16Array here: its elements are the 16 bits. Arrays of
the dtype `bfloat16` of the package ml_dtypes, and torch tensors, are accepted as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, Optional, Tuple, Union

import numpy as np

from . import cuda_array
from .errors import InvalidArgument, WrongType


@dataclass(frozen=True)
class DType:
    """An element type of the daemon."""

    name: str  # "f32".
    number: int  # Of resident.v1.DType.
    storage: "np.dtype[Any]"
    floating: bool

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return int(self.storage.itemsize)


_ALL = [
    DType("f32", 1, np.dtype("<f4"), True),
    DType("f16", 2, np.dtype("<f2"), True),
    DType("bf16", 3, np.dtype("<u2"), True),
    DType("f64", 4, np.dtype("<f8"), True),
    DType("i32", 5, np.dtype("<i4"), False),
    DType("i64", 6, np.dtype("<i8"), False),
    DType("u8", 7, np.dtype("u1"), False),
    DType("i8", 8, np.dtype("i1"), False),
    DType("u32", 9, np.dtype("<u4"), False),
]
BY_NAME: Dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
BY_NUMBER: Dict[int, DType] = {dtype.number: dtype for dtype in _ALL}
BF16 = BY_NAME["bf16"]
_BY_NUMPY: Dict[Any, DType] = {dtype.storage: dtype for dtype in _ALL if dtype is not BF16}

# What names an element type: "f32", numpy.float32, numpy.dtype("float32").
DTypeLike = Union[str, DType, "np.dtype[Any]", type]


# What moves elements and does not look at them. Other functions of NumPy would use the bits.
_MOVES = {
    np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_arrays, np.broadcast_to, np.copy,
    np.empty_like, np.expand_dims, np.flip, np.fliplr, np.flipud, np.may_share_memory, np.moveaxis,
    np.ndim, np.ravel, np.repeat, np.reshape, np.roll, np.rollaxis, np.rot90, np.shape,
    np.shares_memory, np.size, np.squeeze, np.swapaxes, np.take, np.tile, np.transpose, np.zeros_like,
    np.array_split, np.split, np.hsplit, np.vsplit, np.dsplit,
}
_JOINS = {np.column_stack, np.concatenate, np.dstack, np.hstack, np.stack, np.vstack}


_NOT_REAL = "cOSUMm"  # Kinds of NumPy's dtypes: complex numbers, objects, texts and times.


class BFloat16Array(np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """An array of bfloat16; its elements are stored as uint16.

    It supports everything that moves elements (slices, reshape, copies) and no arithmetic:
    `to_float32()` gives an array for that, and `residentd.bfloat16(array)` converts back. One element,
    and what astype() and tolist() return, are the values. numpy.asarray(array) are the bits.
    """

    __array_ufunc__ = None  # type: ignore[assignment]  # Arithmetic would use the bits.

    def to_float32(self) -> "np.ndarray[Any, Any]":
        """The values, as float32; exact."""
        bits = np.asarray(self.view(np.ndarray).astype(np.uint32, order="C"))
        return np.asarray(np.left_shift(bits, np.uint32(16))).view(np.float32)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> "np.ndarray[Any, Any]":
        """The values in another dtype, as a new array."""
        return self.to_float32().astype(dtype, *args, **kwargs)

    def item(self, *args: Any) -> Any:
        """The value of one element."""
        return self.to_float32().item(*args)

    def tolist(self) -> Any:
        """The values, as Python's floats."""
        return self.to_float32().tolist()

    def __float__(self) -> float:
        return float(self.to_float32().item())

    def __int__(self) -> int:
        return int(self.to_float32().item())

    def __bool__(self) -> bool:
        return bool(self.to_float32())

    def __index__(self) -> int:
        raise TypeError("an array of bfloat16 is not an index")

    def __contains__(self, value: Any) -> bool:
        return value in self.to_float32()

    def __getitem__(self, key: Any) -> Any:
        return _value(super().__getitem__(key))

    def __setitem__(self, key: Any, values: Any) -> None:
        bits = bfloat16(values).view(np.ndarray)
        super().__setitem__(key, bits)  # type: ignore[no-untyped-call,unused-ignore]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        joined = tuple(args[0]) if function in _JOINS and args else None
        if joined is not None and all(isinstance(each, BFloat16Array) for each in joined):
            args = (joined,) + tuple(args[1:])  # It may have been an iterator.
        elif function not in _MOVES:
            raise _no_arithmetic(function.__name__)
        return _value(super().__array_function__(function, types, args, kwargs))

    def __repr__(self) -> str:
        return "bfloat16({})".format(np.array2string(self.to_float32(), separator=", "))

    __str__ = __repr__


def _no_arithmetic(name: str) -> InvalidArgument:
    return InvalidArgument("'{}' would use the bits of an array of bfloat16 as numbers".format(name),
                           "use array.to_float32(), and residentd.bfloat16() for the result")


def _refuse_methods() -> None:
    """Methods of NumPy's arrays that look at the elements and are not ufuncs."""

    def refuse(name: str) -> Any:
        def method(self: BFloat16Array, *args: Any, **kwargs: Any) -> Any:
            raise _no_arithmetic(name)

        method.__name__ = name
        return method

    # Without them, == and != would compare identities.
    for name in ("__eq__", "__ne__", "all", "any", "argmax", "argmin", "argpartition", "argsort", "choose", "clip", "cumprod",
                 "cumsum", "dot", "fill", "max", "mean", "min", "nonzero", "partition", "prod", "ptp",
                 "put", "round", "searchsorted", "sort", "std", "sum", "trace", "var"):
        if hasattr(np.ndarray, name):
            setattr(BFloat16Array, name, refuse(name))


_refuse_methods()


def _value(found: Any) -> Any:
    """What NumPy returns as the bits: the value of one element; an array of bfloat16."""
    if isinstance(found, np.uint16):
        return np.uint32(int(found) << 16).view(np.float32)
    return found.view(BFloat16Array) if isinstance(found, np.ndarray) else found


def refuse_masked(value: Any) -> None:
    """WrongType for a masked array, also with an empty mask: its masked elements would be used."""
    if isinstance(value, np.ma.MaskedArray):
        raise WrongType("the mask of a masked array would be ignored",
                        "pass array.filled(value), or array.data to use all elements")


def _values(given: Any) -> Any:
    """The same with the values instead of the bits of arrays of bfloat16, also those in lists."""
    refuse_masked(given)
    if isinstance(given, BFloat16Array):
        return given.to_float32()
    if isinstance(given, (list, tuple)) and any(
            isinstance(each, (BFloat16Array, np.ma.MaskedArray, list, tuple)) for each in given):
        return [_values(each) for each in given]
    return given


def bfloat16(values: Any) -> BFloat16Array:
    """An array of bfloat16 with these values, rounded to nearest, ties to even."""
    if isinstance(values, BFloat16Array):
        return values.copy()
    given = np.asarray(_values(values))
    if given.dtype.kind in _NOT_REAL:
        raise _not_real(given)
    exact = np.asarray(given.astype(np.float32), order="C")
    bits = exact.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    rounded = np.where(np.isnan(exact), np.uint32(0x7FC0), rounded)
    return rounded.astype(np.uint16).view(BFloat16Array)


def convert(array: "np.ndarray[Any, Any]", dtype: DType) -> "np.ndarray[Any, Any]":
    """The values of an array in another element type, as an array of its storage. A floating type rounds
    them. InvalidArgument if an integer type cannot represent them, or if they are not real numbers."""
    if isinstance(array, BFloat16Array):
        if dtype is BF16:
            return array
        array = array.to_float32()
    if dtype is BF16:
        return bfloat16(array)
    if array.dtype == dtype.storage:
        return array
    if array.dtype.kind in _NOT_REAL:
        raise _not_real(array)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.storage)
    if not dtype.floating and not np.array_equal(converted, array):
        raise InvalidArgument("{} cannot represent all values of the array, which are {}".format(
            dtype.name, array.dtype), "round them or bring them into its range, or use another dtype")
    return converted


# Up to which absolute value a floating type has all integers.
_EXACT_INTEGERS = {"f32": 1 << 24, "f16": 1 << 11, "bf16": 1 << 8, "f64": 1 << 53}


def from_numbers(given: Any, dtype: DType) -> "np.ndarray[Any, Any]":
    """The values of Python's numbers and lists, which have no dtype of their own, in the one that was
    chosen for them. A floating type rounds fractions; InvalidArgument if it would change an integer."""
    array = np.asarray(_values(given))
    made = convert(array, dtype)
    if not dtype.floating or not array.size:
        return made
    if np.any(np.isinf(made.to_float32() if isinstance(made, BFloat16Array) else made) & np.isfinite(
            array.astype(np.float64))):
        raise InvalidArgument("a number is above the range of {}".format(dtype.name),
                              "pass smaller numbers, or numpy.inf, or an array of another dtype")
    if np.abs(array.astype(np.float64)).max() > _EXACT_INTEGERS[dtype.name]:
        values = made.to_float32() if isinstance(made, BFloat16Array) else made
        for number, value in zip(_flat(given), values.ravel().tolist()):
            if isinstance(number, (int, np.integer)) and value != number:
                raise InvalidArgument(
                    "the integer {} is not a number of {}, which would make it {:g}".format(
                        number, dtype.name, value),
                    "pass an array of the dtype that you mean, for instance numpy.int64(...) or "
                    "numpy.float64(...)")
    return made


def _flat(given: Any) -> Iterable[Any]:
    """The numbers of nested lists, in their order."""
    if isinstance(given, np.ndarray):
        yield from _values(given).ravel().tolist()
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _flat(each)
    else:
        yield given


def _not_real(array: "np.ndarray[Any, Any]") -> InvalidArgument:
    return InvalidArgument("values of dtype {} are not numbers that residentd has".format(array.dtype),
                           "pass real numbers, for instance the real and the imaginary part")


def find(dtype: DTypeLike) -> DType:
    """The element type of this name or NumPy dtype. InvalidArgument if the daemon has no such type."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype]
    if dtype is BFloat16Array:
        return BF16
    try:
        known = of_numpy(np.dtype(dtype))
    except TypeError:
        known = None
    if known is None:
        raise InvalidArgument("{!r} is not an element type of residentd".format(dtype),
                              "use one of " + ", ".join(BY_NAME))
    return known


def of_numpy(dtype: "np.dtype[Any]") -> Optional[DType]:
    """The element type that NumPy's dtype represents; None if there is none."""
    known = _BY_NUMPY.get(dtype)
    if known is None and dtype.name == "bfloat16":
        return BF16
    return known


def of_array(array: "np.ndarray[Any, Any]") -> Optional[DType]:
    """The element type of an array; None if the daemon has none for it."""
    return BF16 if isinstance(array, BFloat16Array) else of_numpy(array.dtype)


def promote(given: Iterable[DType]) -> Optional[DType]:
    """The dtype that represents all of them, as in PyTorch; None if there are none."""
    promoted: Optional[DType] = None
    for dtype in given:
        if promoted is None or promoted is dtype:
            promoted = dtype
        elif promoted.floating != dtype.floating:
            promoted = promoted if promoted.floating else dtype
        elif promoted.floating and promoted.size == dtype.size:  # f16 and bf16.
            promoted = BY_NAME["f32"]
        elif dtype.size > promoted.size:
            promoted = dtype
    return promoted


def from_storage(array: "np.ndarray[Any, Any]", dtype: DType) -> "np.ndarray[Any, Any]":
    """An array of the type's storage as the array that users see."""
    return array.view(BFloat16Array) if dtype is BF16 else array


def names(numbers: Iterable[int]) -> str:
    """ "f32, f16"."""
    return ", ".join(BY_NUMBER[number].name for number in numbers)


def to_array(value: Any) -> Tuple["np.ndarray[Any, Any]", Optional[DType]]:
    """The array of anything that has elements, without a copy where possible, and its element type.
    The type is None for Python's numbers and lists, which have none, and for NumPy's dtypes that the
    daemon lacks."""
    if isinstance(value, np.ndarray):
        refuse_masked(value)
        return _known(value)
    if type(value).__module__.split(".")[0] == "torch":
        return _torch_array(value)
    if isinstance(value, (bool, int, float, list, tuple)):
        return np.asarray(_values(value)), None
    # Before the other protocols, which refuse memory of a GPU.
    if hasattr(value, "__cuda_array_interface__"):
        return _known(cuda_array.to_host(value))
    if hasattr(value, "__array__"):
        return _known(np.asarray(value))
    if hasattr(value, "__dlpack__") and hasattr(np, "from_dlpack"):
        return _known(np.from_dlpack(value))
    raise InvalidArgument("{} is not an array".format(type(value).__name__),
                          "pass a NumPy array, a torch tensor, or a list of numbers")


def _known(array: "np.ndarray[Any, Any]") -> Tuple["np.ndarray[Any, Any]", Optional[DType]]:
    dtype = of_array(array)
    if dtype is BF16 and not isinstance(array, BFloat16Array):
        array = array.view(np.uint16).view(BFloat16Array)
    return array, dtype


def _torch_array(tensor: Any) -> Tuple["np.ndarray[Any, Any]", Optional[DType]]:
    """A CPU tensor's memory as an array; a tensor of another device is copied."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        import torch  # type: ignore[import-not-found,unused-ignore]

        return tensor.view(torch.int16).numpy().view(np.uint16).view(BFloat16Array), BF16
    return _known(tensor.numpy())
