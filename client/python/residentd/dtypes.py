"""Element types: the daemon's, and NumPy's.

NumPy has no bfloat16. An array of it is a BFloat16Array here: its elements are the 16 bits. Arrays of
the dtype `bfloat16` of the package ml_dtypes, and torch tensors, are accepted as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, Optional, Tuple, Union

import numpy as np

from .errors import InvalidArgument


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


class BFloat16Array(np.ndarray):
    """An array of bfloat16; its elements are stored as uint16.

    It supports everything that moves elements (slices, reshape, copies) and no arithmetic:
    `to_float32()` gives an array for that, and `residentd.bfloat16(array)` converts back.
    """

    __array_ufunc__ = None  # type: ignore[assignment]  # Arithmetic would use the bits.

    def to_float32(self) -> "np.ndarray[Any, Any]":
        """The values, as float32; exact."""
        bits = np.ascontiguousarray(self).view(np.ndarray).astype(np.uint32)
        return np.left_shift(bits, np.uint32(16)).view(np.float32)

    def __repr__(self) -> str:
        return "bfloat16({})".format(np.array2string(self.to_float32(), separator=", "))

    __str__ = __repr__


def bfloat16(values: Any) -> BFloat16Array:
    """An array of bfloat16 with these values, rounded to nearest, ties to even."""
    exact = np.ascontiguousarray(np.asarray(values, dtype=np.float32))
    bits = exact.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    rounded = np.where(np.isnan(exact), np.uint32(0x7FC0), rounded)
    return rounded.astype(np.uint16).reshape(np.shape(values)).view(BFloat16Array)


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
        return _known(value)
    if type(value).__module__.split(".")[0] == "torch":
        return _torch_array(value)
    if isinstance(value, (bool, int, float, list, tuple)):
        return np.asarray(value), None
    if hasattr(value, "__array__"):
        return _known(np.asarray(value))
    if hasattr(value, "__dlpack__") and hasattr(np, "from_dlpack"):
        return _known(np.from_dlpack(value))
    if hasattr(value, "__cuda_array_interface__"):
        raise InvalidArgument(
            "an array in GPU memory ({}) cannot be sent".format(type(value).__name__),
            "copy it to the host, for instance with .get(), or keep the data in a buffer of the daemon "
            "(Client.upload)")
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
