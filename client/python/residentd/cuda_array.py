"""Arrays in the memory of a GPU (objects with __cuda_array_interface__, as of CuPy and Numba): a copy in
the memory of the host.

It uses the driver's C functions, which the program that made the array has loaded already.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Optional

import numpy as np

from .errors import InvalidArgument, WrongType

_FIX = "copy it to the host, for instance with .get(), and pass the copy"
_POINTER_CONTEXT, _POINTER_DEVICE = 1, 9  # CU_POINTER_ATTRIBUTE_CONTEXT, _DEVICE_ORDINAL.

_driver: Optional[Any] = None


def to_host(value: Any) -> "np.ndarray[Any, Any]":
    """A dense copy of the array. The work that its stream has is finished first. The memory between the
    first and the last element of a strided array is copied too.

    WrongType for a masked array, InvalidArgument if the memory cannot be read."""
    interface = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise WrongType("the mask of a masked array would be ignored", "pass an array without a mask")
    shape = tuple(interface["shape"])
    dtype = np.dtype(interface["typestr"])
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    strides = interface.get("strides") or np.empty(shape, np.uint8).strides
    if not interface.get("strides"):
        strides = tuple(stride * dtype.itemsize for stride in strides)
    reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
    first = sum(each for each in reach if each < 0)
    data = np.empty(sum(each for each in reach if each > 0) - first + dtype.itemsize, np.uint8)
    # Without the entry, it is not known what the memory waits for.
    stream = interface.get("stream") if "stream" in interface else -1
    _copy(data, interface["data"][0] + first, stream)
    every: "np.ndarray[Any, Any]" = np.ndarray(shape, dtype, data, -first, strides)
    return np.ascontiguousarray(every).reshape(shape)  # The former gives a scalar a dimension.


def _copy(to: "np.ndarray[Any, Any]", address: int, stream: Optional[int]) -> None:
    """Copies device memory. stream: what to wait for; None: nothing; -1: everything."""
    global _driver
    if _driver is None:
        try:
            _driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise InvalidArgument("an array in GPU memory cannot be copied: {}".format(error), _FIX) from None
    pointer = ctypes.c_uint64(address)
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _call("cuPointerGetAttribute", ctypes.byref(context), _POINTER_CONTEXT, pointer)
    retained = context.value is None  # Memory of a pool belongs to no context.
    if retained:
        _call("cuPointerGetAttribute", ctypes.byref(device), _POINTER_DEVICE, pointer)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            if stream == -1:
                _call("cuCtxSynchronize")
            elif stream is not None:  # 1 and 2 are the handles of the default streams.
                _call("cuStreamSynchronize", ctypes.c_void_p(stream))
            _call("cuMemcpyDtoH_v2", ctypes.c_void_p(to.ctypes.data), pointer, ctypes.c_size_t(to.nbytes))
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        if retained:
            _call("cuDevicePrimaryCtxRelease_v2", device)


def _call(name: str, *arguments: Any) -> None:
    result = int(getattr(_driver, name)(*arguments))
    if result != 0:
        raise InvalidArgument("an array in GPU memory cannot be copied: {} returned error {} of the CUDA "
                              "driver".format(name, result), _FIX)
