"""Buffers: memory of the daemon's device, and views of it.

    with rd.upload(weights) as w:
        add(x, w[10:20], out=o)

A slice is a view: it describes a part of the buffer (offset, shape, strides) and copies nothing.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Iterator, List, Optional, TypeVar, cast

import numpy as np

from . import dtypes
from .calls import Collect, Session, Steps, Unary, Upload
from .descriptors import message
from .dtypes import DType, DTypeLike
from .errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable, node_left
from .shared_memory import Memory
from .signature import Shape

_UPLOAD_CHUNK_BYTES = 1 << 20
_MAX_SIZE = (1 << 63) - 1  # Of int64 and int32, which the messages have.
_MAX_DEVICE = (1 << 31) - 1
View = TypeVar("View", bound="BufferView")


class BufferMemory:
    """The memory of a buffer, which its views share. It is freed explicitly, or when the last view is
    garbage collected, or with the session."""

    def __init__(self, info: Any, memory: Memory, owned: bool, session: Optional[int] = None) -> None:
        """owned: whether the buffer is freed when the last view of it is gone. session: Memory.session
        before the call that made the buffer, which may have ended since; None: the current one."""
        self.id = int(info.id)
        self.device = int(info.device)
        self.size_bytes = int(info.size_bytes)
        self.durable = bool(info.durable)
        self.name = str(info.name)
        self.freed = False
        self._memory = memory
        self._session = memory.session if session is None else session
        self._owned = owned and not self.durable
        self._gone = False
        self.node = memory.node

    @property
    def lost(self) -> bool:
        """Whether the session that owned the buffer has ended, or find_again() did not find it."""
        return self._gone or (not self.durable and self._session != self._memory.session)

    @property
    def uncertain(self) -> bool:
        """Whether a durable buffer may no longer exist, so that its number may be that of another one:
        the daemon may have been restarted since the handle was made."""
        return self.durable and not self._gone and self._session != self._memory.session

    def find_again(self) -> Steps[None]:
        """Asks the daemon, if it is uncertain, whether it still has the buffer."""
        if not self.uncertain:
            return
        yield Session()  # What uses the buffer next may need one.
        session = self._memory.session
        response = yield Unary("Buffers.List", message("ListBuffersRequest")())
        wanted = (self.id, self.name, self.size_bytes, True)
        # Without a name it cannot be told from another buffer that has its number now.
        if self.name and any((each.id, each.name, each.size_bytes, each.durable) == wanted
                             for each in response.buffers):
            self._session = session
        else:
            self._gone = True

    def __del__(self) -> None:
        if self._owned and not self.freed:
            self._memory.discard(self.id, self._session)


class BufferView:
    """Elements of a buffer: shape, and strides and offset in elements."""

    def __init__(self, memory: BufferMemory, dtype: DType, shape: Shape, strides: Shape,
                 offset: int) -> None:
        self._memory = memory
        self._dtype = dtype
        self._shape = shape
        self._strides = strides
        self._offset = offset

    @property
    def id(self) -> int:
        """The daemon's number of the buffer. FailedPrecondition if it was freed, NotFound if its session
        has ended. A durable buffer is looked up after a session has ended."""
        if self._memory.freed:
            raise FailedPrecondition("buffer {} was freed".format(self._memory.id),
                                     "use it before free() and before the end of its with block")
        if self._memory.uncertain:
            self._find_again()
        if self._memory.lost and self._memory.durable:
            raise NotFound(
                "the daemon was restarted without buffer {} ('{}')".format(self._memory.id,
                                                                           self._memory.name),
                "upload the data again; with --state_dir, a daemon restores what persist() has saved"
                if self._memory.name else
                "find it with Client.buffers(); buffers with a name are found again by themselves")
        if self._memory.lost and self._memory.node:
            raise node_left(self._memory.node, "buffer {} belonged to its session".format(self._memory.id))
        if self._memory.lost:  # The number may be that of another buffer now.
            raise NotFound(
                "buffer {} belonged to a session that has ended".format(self._memory.id),
                "upload the data again, or use a durable buffer")
        return self._memory.id

    @property
    def device(self) -> int:
        """Index of the device, as in Client.status()."""
        return self._memory.device

    @property
    def dtype(self) -> str:
        """The element type, for instance "f32"."""
        return self._dtype.name

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def strides(self) -> Shape:
        """Distance between adjacent elements of each dimension, in elements."""
        return self._strides

    @property
    def offset(self) -> int:
        """Of the first element, in elements."""
        return self._offset

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        return self.size * self._dtype.size

    @property
    def dense(self) -> bool:
        """Whether the elements are adjacent, in row-major order."""
        return self._strides == dense_strides(self._shape) or self.size == 0

    @property
    def T(self: View) -> View:
        """The view with its dimensions in reverse order."""
        return self._view(self._shape[::-1], self._strides[::-1], self._offset)

    def reshape(self: View, *shape: Any) -> View:
        """A view of the same elements with another shape. InvalidArgument if it is not dense."""
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = tuple(shape[0])
        if not self.dense:
            raise InvalidArgument("a view that is not dense cannot be reshaped",
                                  "reshape the buffer before it is sliced")
        try:
            shape = np.broadcast_to(np.zeros((), np.uint8), (self.size,)).reshape(shape).shape
        except ValueError:
            raise InvalidArgument("{} elements cannot have shape {}".format(self.size, shape),
                                  "use a shape with the same number of elements") from None
        return self._view(shape, dense_strides(shape), self._offset)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a view without dimensions has no length")
        return self._shape[0]

    def __iter__(self: View) -> Iterator[View]:
        """The views of the first dimension."""
        return (self[i] for i in range(len(self)))

    def __getitem__(self: View, key: Any) -> View:
        """A view, as NumPy's slices (integers, slices, Ellipsis, None)."""
        keys = key if isinstance(key, tuple) else (key,)
        for each in keys:
            # bool is an int to Python, and a mask to NumPy.
            if isinstance(each, bool) or not (each is None or each is Ellipsis or
                                              isinstance(each, (int, np.integer, slice))):
                raise InvalidArgument("a buffer cannot be indexed by {!r}".format(each),
                                      "use integers and slices, or the operator 'embedding'")
        # NumPy computes shape, strides and offset, with elements of one byte. The memory behind this
        # array is not accessed: with an Ellipsis, the result is always a view.
        if Ellipsis not in keys:
            keys += (Ellipsis,)
        every = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), self._shape, self._strides)
        try:
            part = every[keys]
        except IndexError as error:
            raise InvalidArgument(str(error), "use an index within shape {}".format(self._shape)) from None
        moved = _address(part) - _address(every) if part.size else 0
        return self._view(part.shape, part.strides, self._offset + moved)

    def _view(self: View, shape: Shape, strides: Shape, offset: int) -> View:
        raise NotImplementedError

    def _find_again(self) -> None:
        """Runs find_again() of the memory where a property can wait for an answer. Steps have run it
        before, so that the session has ended since."""
        raise Unavailable("the session ended during the call", "try again")

    def __repr__(self) -> str:
        return "<buffer {}: {}{} on device {}>".format(
            self._memory.id, self._dtype.name, list(self._shape), self._memory.device)


def _address(array: "np.ndarray[Any, Any]") -> int:
    return int(array.__array_interface__["data"][0])


def dense_strides(shape: Shape) -> Shape:
    """Strides of a dense tensor, in elements."""
    strides: List[int] = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def check_shape(shape: Any) -> Shape:
    """A shape from an integer or a sequence of integers. InvalidArgument for anything else."""
    try:
        given = tuple(shape) if np.iterable(shape) else (shape,)
        made = tuple(operator.index(n) for n in given)
    except TypeError:
        made = (-1,)
    if any(n < 0 or n > _MAX_SIZE for n in made):
        raise InvalidArgument("{!r} is not a shape".format(shape),
                              "use an integer that is not negative, or a tuple of them")
    return made


def check_device(device: Optional[int]) -> Optional[int]:
    """The index of a device. InvalidArgument if it cannot be one."""
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, (int, np.integer)) or not (
            0 <= device <= _MAX_DEVICE):
        raise InvalidArgument("device={!r} is not the index of a device".format(device),
                              "use an index that Client.status() shows")
    return int(device)


def converted(values: Any, dtype: Optional[DTypeLike]) -> Any:
    """Values for an upload in this dtype (None: their own; f32 for Python's numbers and lists).
    InvalidArgument if it cannot represent them, see dtypes.convert()."""
    if dtype is None:
        if not isinstance(values, (bool, int, float, complex, list, tuple)):
            return values
        dtype = "f32"
        if not isinstance(values, complex):
            return dtypes.from_numbers(values, dtypes.find(dtype))
    kind = dtypes.find(dtype)
    given = np.asarray(values) if isinstance(values, complex) else values
    return dtypes.convert(dtypes.to_array(given)[0], kind)


# The steps that both clients use.


def allocate(shape: Shape, dtype: DType, device: Optional[int], durable: bool,
             name: str) -> Steps[Any]:
    """Allocates a buffer; its BufferInfo."""
    request = message("AllocateRequest")(dtype=dtype.number, shape=shape, durable=durable, name=name)
    if device is not None:
        request.device = device
    response = yield Unary("Buffers.Allocate", request)
    return response.buffer


def upload(buffer_id: int, offset_bytes: int, data: memoryview) -> Steps[None]:
    """Writes bytes to a buffer."""
    kind = message("UploadRequest")

    def requests() -> Iterator[Any]:
        yield kind(buffer_id=buffer_id, offset=offset_bytes, data=bytes(data[:_UPLOAD_CHUNK_BYTES]))
        for at in range(_UPLOAD_CHUNK_BYTES, len(data), _UPLOAD_CHUNK_BYTES):
            yield kind(data=bytes(data[at:at + _UPLOAD_CHUNK_BYTES]))

    yield Upload("Buffers.Upload", requests())


def download(buffer_id: int, offset_bytes: int, into: memoryview) -> Steps[None]:
    """Reads bytes of a buffer."""
    if len(into) == 0:
        return
    at = 0

    def receive(response: Any) -> None:
        nonlocal at
        into[at:at + len(response.data)] = response.data
        at += len(response.data)

    request = message("DownloadRequest")(buffer_id=buffer_id, offset=offset_bytes, size_bytes=len(into))
    yield Collect("Buffers.Download", request, receive)


def free(buffer_id: int) -> Steps[None]:
    """Frees a buffer."""
    yield Unary("Buffers.Free", message("FreeRequest")(buffer_id=buffer_id))


def bytes_of(array: "np.ndarray[Any, Any]") -> memoryview:
    """The bytes of a dense array."""
    return memoryview(cast(Any, array.view(np.ndarray).reshape(-1).view(np.uint8)))


def read(view: BufferView) -> Steps["np.ndarray[Any, Any]"]:
    """The elements of a view, as a new array."""
    dtype = view._dtype
    if view.size == 0:
        return dtypes.from_storage(np.empty(view.shape, dtype.storage), dtype)
    yield from view._memory.find_again()
    reach = [(n - 1) * s for n, s in zip(view.shape, view.strides)]
    low = view.offset + sum(r for r in reach if r < 0)
    high = view.offset + sum(r for r in reach if r > 0) + 1
    flat = np.empty(high - low, dtype.storage)
    yield from download(view.id, low * dtype.size, bytes_of(flat))
    if view.dense:
        return dtypes.from_storage(flat.reshape(view.shape), dtype)
    strided = np.lib.stride_tricks.as_strided(flat[view.offset - low:], view.shape,
                                              [s * dtype.size for s in view.strides])
    return dtypes.from_storage(np.ascontiguousarray(strided), dtype)


def write(view: BufferView, values: Any) -> Steps[None]:
    """Writes an array to a view. InvalidArgument if the view is not dense, or the array has another
    dtype, values that an integer dtype cannot represent, or a shape that does not broadcast to the
    view's."""
    array, found = dtypes.to_array(values)
    dtype = view._dtype
    if found is None:
        numbers = isinstance(values, (bool, int, float, list, tuple))
        array = dtypes.from_numbers(values, dtype) if numbers else dtypes.convert(array, dtype)
    elif found is not dtype:
        raise InvalidArgument("the buffer has dtype {}, the array {}".format(dtype.name, found.name),
                              "convert the array, for instance with astype()")
    if not view.dense:
        raise InvalidArgument("a view that is not dense cannot be written",
                              "write the whole buffer, or use the operator 'copy'")
    try:
        array = np.broadcast_to(array, view.shape)
    except ValueError:
        raise InvalidArgument("shape {} does not broadcast to {}".format(array.shape, view.shape),
                              "use an array of the view's shape") from None
    if view.size:
        yield from view._memory.find_again()
        yield from upload(view.id, view.offset * dtype.size, bytes_of(np.ascontiguousarray(array)))
