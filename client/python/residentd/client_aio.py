"""client.py for asyncio: calls are awaited.

Made of client.py by tools/async_front; change it there.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, TypeVar

import numpy as np

from . import buffers, flux, status
from .buffers import BufferMemory, BufferView
from .calls import Steps
from .dtypes import BY_NUMBER, DType, DTypeLike
from .operations import Operations, ShapeLike
from .signature import Shape

T = TypeVar("T")


class Buffer(BufferView):
    """A buffer of the daemon, or a view of one. Slices are views.

    A buffer is freed by free(), at the end of its async with block, or when the last view of it is garbage
    collected; a durable one only by free().
    """

    def __init__(self, client: "ClientCalls", memory: BufferMemory, dtype: DType, shape: Shape,
                 strides: Shape, offset: int) -> None:
        super().__init__(memory, dtype, shape, strides, offset)
        self._client = client

    async def numpy(self) -> "np.ndarray[Any, Any]":
        """The elements, as a new array."""
        return await self._client._drive(buffers.read(self))

    async def write(self, values: Any) -> None:
        """Writes an array of the same dtype, which broadcasts to the shape, to the buffer."""
        await self._client._drive(buffers.write(self, values))

    async def persist(self) -> None:
        """Saves the contents of a durable buffer, so that an engine restart restores them."""
        await self._client._drive(self._client._operations.persist(self))

    async def free(self) -> None:
        """Frees the buffer, with all views, once the tasks that use it have ended."""
        await self._client._drive(self._client._operations.free(self._memory))

    async def __aenter__(self) -> "Buffer":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.free()

    def _view(self, shape: Shape, strides: Shape, offset: int) -> "Buffer":
        return Buffer(self._client, self._memory, self._dtype, shape, strides, offset)


class ClientCalls:
    """The calls of a client that are no calls of an operator or of a graph."""

    _operations: Operations

    async def _drive(self, steps: Steps[T]) -> T:
        """Runs the steps of an operation; returns its result."""
        raise NotImplementedError

    async def flux(self, code: Any, inputs: Any = None, *, registers: Sequence[int] = (0,), count: int = 0,
                   max_cycles: Optional[int] = None, unknown_opcode_nop: bool = False,
                   device: Optional[int] = None, timeout: Optional[float] = None,
                   retry: Any = None) -> flux.FluxResult:
        """Runs FLUX programs (docs/flux.md).

        code: the bytecode of one program, a list of programs, or the name of an installed one.
        inputs: initial registers R0, R1, ...: one row of int32 for each run; or one row for all.
        registers: the registers (0 to 15) to return.
        count: the number of runs; 0: one for each row of inputs, or for each program.
        max_cycles: instructions that one run may execute.
        unknown_opcode_nop: whether opcodes outside the instruction set are skipped.
        retry: as the option of operators.
        """
        return await self._drive(flux.run(code, inputs, registers, count, max_cycles, unknown_opcode_nop,
                                          device, timeout, retry, self._operations))

    async def empty(self, shape: ShapeLike, dtype: DTypeLike = "f32", *, device: Optional[int] = None,
                    durable: bool = False, name: str = "") -> Buffer:
        """A new buffer, not initialised. A durable one outlives the session and engine restarts."""
        return self._buffer(*await self._drive(
            self._operations.allocate(buffers.check_shape(shape), dtype, buffers.check_device(device),
                                      durable, name)))

    async def upload(self, values: Any, dtype: Optional[DTypeLike] = None, *, device: Optional[int] = None,
                     durable: bool = False, name: str = "") -> Buffer:
        """A new buffer with the elements of an array. dtype: None for the array's own. A floating dtype
        rounds the values; InvalidArgument if an integer dtype cannot represent them."""
        return self._buffer(*await self._drive(
            self._operations.upload(values, dtype, buffers.check_device(device), durable, name)))

    async def shared(self, shape: ShapeLike, dtype: DTypeLike = "f32", *,
                     device: Optional[int] = None) -> "np.ndarray[Any, Any]":
        """A new array, of zeros, in memory that tasks read and write in place: it, and views of it, are
        passed without copies. Needs a daemon on this machine. FailedPrecondition if it accepts no shared
        memory."""
        return await self._drive(self._operations.shared(buffers.check_shape(shape), dtype,
                                                         buffers.check_device(device)))

    async def buffers(self) -> List[Buffer]:
        """The durable buffers, and those of this session."""
        found = []
        for info in await self._drive(self._operations.list_buffers()):
            memory = BufferMemory(info, self._operations.memory, False)
            found.append(self._buffer(memory, BY_NUMBER[info.dtype], tuple(info.shape)))
        return found

    async def load_file(self, path: str, prefix: str = "", *, device: Optional[int] = None,
                        skip_unsupported: bool = False) -> Dict[str, Buffer]:
        """Durable buffers of the tensors of a safetensors file in the daemon's --load_dir, by name.
        skip_unsupported: leaves tensors out whose dtype the daemon does not have."""
        loaded = {}
        for info in await self._drive(self._operations.load_file(path, prefix, buffers.check_device(device),
                                                                 skip_unsupported)):
            memory = BufferMemory(info, self._operations.memory, False)
            loaded[info.name] = self._buffer(memory, BY_NUMBER[info.dtype], tuple(info.shape))
        return loaded

    async def status(self) -> status.Status:
        """The state of the daemon, its devices and its clients; str() of it is a table."""
        return await self._drive(status.get())

    def _buffer(self, memory: BufferMemory, dtype: DType, shape: Shape) -> Buffer:
        return Buffer(self, memory, dtype, shape, buffers.dense_strides(shape), 0)
