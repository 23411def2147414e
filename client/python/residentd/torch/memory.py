"""The pool: memory of this process's GPU that the daemon maps, too.

torch allocates in segments. Those of the pool are made by libresidentd_lane.so, as memory of which a descriptor can
be passed to another process. A segment is imported by the daemon when a tensor in it is used for the first time, once
for each client, and its buffer is freed after torch has freed the segment.

Thread safety: everything may be used from several threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
import uuid
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import lane as lanes
from .. import shared_memory
from ..client import Client
from ..errors import FailedPrecondition, InvalidArgument

_FREED = 64


class _Segment(ctypes.Structure):
    """residentd_lane_segment."""
    _fields_ = [("id", ctypes.c_uint64), ("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("device_uuid", ctypes.c_uint8 * 16), ("device", ctypes.c_int32)]


class _Imports:
    """The segments that a client's session has imported."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.buffers: Dict[int, int] = {}  # By segment.


_lock = threading.Lock()
_of_client: "weakref.WeakKeyDictionary[Client, _Imports]" = weakref.WeakKeyDictionary()
_allocator: Any = None
_idle: Dict[int, List[Any]] = {}  # Pools that no thread allocates from, by device.
_local = threading.local()


def counter() -> ctypes.c_uint64:
    """Its value rises when a segment of the pool is freed."""
    return ctypes.c_uint64.from_address(lanes.load().residentd_lane_pool_changes())


def import_segment(client: Client, device: int, tensor: torch.Tensor) -> Tuple[int, int, int, int]:
    """Imports the segment of a tensor, unless that was done: its address, size in bytes, id and buffer.
    InvalidArgument if the tensor is not in the pool."""
    library = lanes.load()
    found = _Segment()
    if library.residentd_lane_pool_find(tensor.data_ptr(), ctypes.byref(found)):
        raise InvalidArgument("a tensor of {} is not in the pool".format(tensor.device),
                              "make it in `with residentd.torch.pool():`, or attach with copy=True, so that operators "
                              "copy it")
    shared = client._operations.memory
    with _lock:
        imports = _of_client.get(client)
        if imports is None or imports.session != shared.session:
            client._connection.session()  # So that it is the one of the import.
            imports = _of_client[client] = _Imports(shared.session)
        buffer = imports.buffers.get(found.id)
        if buffer is None:
            descriptor = library.residentd_lane_pool_export(found.id)
            if descriptor < 0:
                raise FailedPrecondition(library.residentd_lane_last_error().decode())
            try:
                buffer = client._drive(shared_memory.import_device_memory(
                    descriptor, found.bytes, "GPU-" + str(uuid.UUID(bytes=bytes(found.device_uuid)))))
            finally:
                os.close(descriptor)
            imports.buffers[found.id] = buffer
    return found.address, found.bytes, found.id, buffer


def is_in_pool(address: int) -> bool:
    """Whether an address is in a segment of the pool."""
    found = _Segment()
    return lanes.load().residentd_lane_pool_find(address, ctypes.byref(found)) == 0


def is_imported(client: Client, segment: int) -> bool:
    """Whether the client has a buffer of the segment."""
    imports = _of_client.get(client)
    return imports is not None and segment in imports.buffers and (
        imports.session == client._operations.memory.session)


def free_ended() -> None:
    """Frees the buffers of segments that torch has freed. Lanes that have them in their tables keep them until
    their tasks have ended."""
    library = lanes.load()
    freed = (ctypes.c_uint64 * _FREED)()
    with _lock:
        clients = list(_of_client.items())
        count = library.residentd_lane_pool_freed(freed, _FREED)
        while count > 0:
            for client, imports in clients:
                for segment in freed[:count]:
                    buffer = imports.buffers.pop(segment, None)
                    if buffer is not None:
                        client._operations.memory.discard(buffer, imports.session)
            count = library.residentd_lane_pool_freed(freed, _FREED)
    for client, _ in clients:
        if client._operations.memory.has_garbage:
            client._drive(client._operations.collect_garbage())


class pool:
    """A context in which torch makes the tensors of this thread on the current GPU in the pool, so that operators
    can use them in place. Contexts may be nested. Scopes of stream() are such contexts.

    FailedPrecondition: torch has no GPU.
    """

    def __enter__(self) -> None:
        check_gpu()
        device = torch.cuda.current_device()
        depths: Dict[int, List[Any]] = _local.__dict__.setdefault("depths", {})
        state = depths.setdefault(device, [0, None, None])  # How many contexts; the pool; torch's context.
        self._state, self._device = state, device
        if state[0] == 0:
            with _lock:
                idle = _idle.setdefault(device, [])
                state[1] = idle.pop() if idle else _make_pool()
            state[2] = torch.cuda.use_mem_pool(state[1], device)
            state[2].__enter__()
        state[0] += 1

    def __exit__(self, *_: Any) -> None:
        state = self._state
        state[0] -= 1
        if state[0] == 0:
            state[2].__exit__(None, None, None)
            with _lock:
                _idle[self._device].append(state[1])
            state[1] = state[2] = None


def _make_pool() -> Any:
    global _allocator
    if _allocator is None:
        _allocator = torch.cuda.memory.CUDAPluggableAllocator(lanes.load()._name, "residentd_lane_pool_alloc",
                                                              "residentd_lane_pool_free")
    return torch.cuda.MemPool(_allocator.allocator())


def check_gpu() -> None:
    """FailedPrecondition if torch has no GPU."""
    if not torch.cuda.is_initialized() and not torch.cuda.is_available():
        raise FailedPrecondition("torch {} has no GPU".format(torch.__version__),
                                 "use tensors of residentd.torch.shared(), which need none in this process")


def find_device(client: Client) -> Optional[int]:
    """The daemon's index of the current GPU of torch. None: the daemon has no GPU. FailedPrecondition: it has only
    others."""
    own = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    devices = {str(each.uuid).partition("-")[2]: int(each.device) for each in client.status().devices if each.uuid}
    if own in devices:
        return devices[own]
    if devices:
        raise FailedPrecondition("the daemon does not have the GPU {} of this process".format(own),
                                 "choose one of {} with torch.cuda.set_device() or CUDA_VISIBLE_DEVICES, or pass "
                                 "device=".format(", ".join(sorted(devices))))
    return None
