"""Memory that this process shares with the daemon, and the arena that is made of it.

A region is memory of this process that the daemon has mapped as a buffer. Any array that lies in a
region is passed to tasks in place, wherever it came from: Memory.locate() finds the region by the
array's address. Regions have no name that outlives the call which makes them: they are memory objects
without a name (memfd) whose descriptor is passed to the daemon over its local socket, or, if the daemon
has no such socket, an object in /dev/shm that is unlinked as soon as the daemon has opened it. So nothing
is left behind when a process is killed.

The arena is a list of regions from which arrays of calls are sub-allocated. A block is free again when
the last array that uses it is gone.

Thread safety: all classes may be used from several threads. A garbage collection may release memory in
any thread at any time, also while that thread holds a lock; therefore releases only append to a queue,
which the next allocation empties.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import fcntl
import mmap
import os
import secrets
import socket
import struct
import threading
import weakref
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np

from . import errors
from .calls import Blocking, Session, Steps, Unary
from .descriptors import message

# Arrays of fewer bytes are sent inline: there a copy costs less than the lookup of a block.
MIN_SHARED_BYTES = 64 << 10
_ALIGNMENT = 256
_FIRST_REGION_BYTES = 64 << 20
_LOCAL_SOCKET_TIMEOUT_S = 10.0
_U8 = 7  # DTYPE_U8.
_MAP_FIXED = 0x10  # Python's mmap has no such constant.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]


class Region:
    """Mapped memory that is a buffer of the daemon."""

    def __init__(self, mapping: mmap.mmap, buffer_id: int, device: int) -> None:
        # Not the mapping itself: that ends with the last array of it.
        self.address = int(np.frombuffer(mapping, dtype=np.uint8).ctypes.data)
        self.size = len(mapping)
        self.buffer_id = buffer_id
        self.device = device


class _Span:
    """Keeps a block while an array of it exists: NumPy makes it the base of these arrays."""

    def __init__(self, block: "Block") -> None:
        self._block = block
        self.__array_interface__ = {
            "shape": (block.size,), "typestr": "|u1", "version": 3,
            "data": (block.region.address + block.offset, False),
        }

    def __del__(self) -> None:
        self._block.release()


class Block:
    """A part of a region of the arena."""

    def __init__(self, owner: "_ArenaRegion", offset: int, size: int, reserved: int) -> None:
        self.region = owner.region
        self.offset = offset  # Bytes from the start of the region.
        self.size = size
        self._owner = owner
        self._reserved = reserved

    def array(self) -> "np.ndarray[Any, Any]":
        """The bytes of the block. The block is released when the last view of this array is gone."""
        return np.asarray(_Span(self))

    def release(self) -> None:
        """Makes the memory available again. Only without array()."""
        self._owner.released.append((self.offset, self._reserved))


class _ArenaRegion:
    """A region and its free ranges, ordered by offset."""

    def __init__(self, region: Region, mapping: mmap.mmap) -> None:
        self.region = region
        self.mapping = mapping
        self.free: List[Tuple[int, int]] = [(0, region.size)]
        self.released: Deque[Tuple[int, int]] = collections.deque()

    def allocate(self, size: int) -> Optional[Block]:
        """First fit; None if no range is large enough."""
        while self.released:
            self._insert(*self.released.popleft())
        reserved = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
        for i, (offset, available) in enumerate(self.free):
            if available < reserved:
                continue
            if available == reserved:
                del self.free[i]
            else:
                self.free[i] = (offset + reserved, available - reserved)
            return Block(self, offset, size, reserved)
        return None

    def copy(self) -> "_Copy":
        """What the blocks that are in use contain."""
        while self.released:
            self._insert(*self.released.popleft())
        parts: List[Tuple[int, bytes]] = []
        at = 0
        for offset, size in self.free + [(self.region.size, 0)]:
            if offset > at:
                parts.append((at, ctypes.string_at(self.region.address + at, offset - at)))
            at = offset + size
        return _Copy(self.region.address, self.region.size, parts)

    def _insert(self, offset: int, size: int) -> None:
        i = bisect.bisect_left(self.free, (offset, 0))
        if i < len(self.free) and offset + size == self.free[i][0]:
            size += self.free.pop(i)[1]
        if i > 0 and self.free[i - 1][0] + self.free[i - 1][1] == offset:
            offset, before = self.free.pop(i - 1)
            size += before
            i -= 1
        self.free.insert(i, (offset, size))


class _Copy:
    """The contents of a region at one time."""

    def __init__(self, address: int, size: int, parts: List[Tuple[int, bytes]]) -> None:
        self.address = address
        self.size = size
        self.parts = parts  # Offset and bytes.

    def replace(self) -> None:
        """Maps private memory with these contents in place of the region."""
        mapped = _libc.mmap(self.address, self.size, mmap.PROT_READ | mmap.PROT_WRITE,
                            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0)
        if mapped != self.address:
            raise OSError(ctypes.get_errno(), "mmap")
        for offset, data in self.parts:
            ctypes.memmove(self.address + offset, data, len(data))


class Memory:
    """All regions of a client.

    arena_bytes: the most that the arena may use, all regions together; 0: there is no arena.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._arena_bytes = arena_bytes
        self._lock = threading.Lock()
        self._regions: Dict[int, Region] = {}  # By address.
        self._addresses: List[int] = []  # Sorted.
        self._arena: List[_ArenaRegion] = []
        # Also those that are not allocated from any more, as long as there are arrays in them.
        self._arena_regions: "weakref.WeakSet[_ArenaRegion]" = weakref.WeakSet()
        self._growth = 0  # Bytes of regions that are being imported.
        self._ended: Deque[Region] = collections.deque()  # Their memory is gone.
        # Buffers of the daemon that the next call frees, with the session that owns them.
        self._garbage: Deque[Tuple[int, int]] = collections.deque()
        self._session = 0  # Counts sessions.
        self._forgotten = 0  # Counts regions that locate() does not find any more.
        self.node = ""  # That has the session, if there may be several.
        _memories.add(self)

    @property
    def has_garbage(self) -> bool:
        """Whether collect_garbage() has something to do."""
        return bool(self._garbage or self._ended)

    @property
    def in_use(self) -> bool:
        """Whether locate() may find an array, or there is garbage."""
        return bool(self._addresses or self._garbage)

    def changed(self, since: int) -> bool:
        """Whether a region has gone since `changes` had this value: an address that was in it may now be in
        another one, or in none."""
        return bool(self._ended) or self._forgotten != since

    @property
    def changes(self) -> int:
        """For changed()."""
        with self._lock:
            self._forget_ended()
            return self._forgotten

    @property
    def arena_enabled(self) -> bool:
        return self._arena_bytes > 0

    def disable_arena(self) -> None:
        """From now on arrays are sent inline."""
        self._arena_bytes = 0

    def locate(self, array: "np.ndarray[Any, Any]") -> Optional[Tuple[Region, int]]:
        """The region that contains all elements of the array, and the offset in bytes of its first
        element; None if it is in no region."""
        if not self._addresses or array.size == 0:
            return None
        return self.locate_address(int(array.__array_interface__["data"][0]))

    def locate_address(self, first: int) -> Optional[Tuple[Region, int]]:
        """The same for the address of an array that has elements."""
        with self._lock:
            self._forget_ended()
            i = bisect.bisect_right(self._addresses, first) - 1
            region = self._regions[self._addresses[i]] if i >= 0 else None
        if region is None or first >= region.address + region.size:
            return None
        return region, first - region.address

    def add(self, region: Region, session: int) -> bool:
        """Adds a region. False if its session, whose number `session` was before the import, has ended:
        its buffer is gone."""
        with self._lock:
            if session != self._session:
                return False
            self._forget_ended()
            self._regions[region.address] = region
            bisect.insort(self._addresses, region.address)
            return True

    def remove_with(self, mapping: mmap.mmap, region: Region) -> None:
        """Removes the region when its mapping is garbage collected."""
        finalizer = weakref.finalize(mapping, self._ended.append, region)
        setattr(finalizer, "atexit", False)

    def _forget_ended(self) -> None:
        while self._ended:
            self._forget(self._ended.popleft())

    def _forget(self, region: Region) -> None:
        """Forgets a region, and lets the daemon free its buffer. Tasks that are running then still
        have the memory: the daemon has its own mapping of it."""
        if self._regions.get(region.address) is region:
            del self._regions[region.address]
            self._addresses.remove(region.address)
            self._forgotten += 1
            self.discard(region.buffer_id, self._session)

    @property
    def session(self) -> int:
        """The number of the session, for discard()."""
        return self._session

    def discard(self, buffer_id: int, session: int) -> None:
        """Lets the next call free a buffer, unless its session has ended by then."""
        self._garbage.append((buffer_id, session))

    def collect_garbage(self) -> List[int]:
        """Buffers of the daemon that can be freed. Each is returned once."""
        if self._ended:
            with self._lock:
                self._forget_ended()
        ids = []
        while self._garbage:
            buffer_id, session = self._garbage.popleft()
            if session == self._session:
                ids.append(buffer_id)
        return ids

    def retire(self, region: Region) -> None:
        """Stops allocating from a region, because tasks of a call that ended without an answer may still
        write to it. Arrays in the region remain valid, also for other calls: its buffer is freed when
        the last of them is gone."""
        with self._lock:
            self._arena = [each for each in self._arena if each.region is not region]

    def reset(self) -> None:
        """Forgets all regions: the session of their buffers has ended. Arrays in them remain valid, as
        memory of this process."""
        with self._lock:
            self._session += 1
            self._forgotten += 1
            self._regions.clear()
            self._addresses.clear()
            self._arena.clear()

    def allocate(self, size: int, device: Optional[int]) -> Steps[Optional[Block]]:
        """A block of `size` bytes on a device (None: any). None if the arena is full, or if the daemon
        accepts no shared memory; then it must be sent inline."""
        block = self._take(size, device)
        if block is not None:
            return block
        wanted = max(_FIRST_REGION_BYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        with self._lock:
            used = sum(each.region.size for each in self._arena) + self._growth
            wanted = min(max(wanted, used), self._arena_bytes - used)
            if wanted < size:
                return None
            self._growth += wanted
        try:
            session = self._session
            mapping, region = yield from import_region(wanted, _U8, (wanted,), device)
            if not self.add(region, session):
                return None
            self.remove_with(mapping, region)
            with self._lock:
                if session != self._session:
                    return None
                made = _ArenaRegion(region, mapping)
                self._arena.append(made)
                self._arena_regions.add(made)
        except (errors.ResourceExhausted, errors.NotFound):
            return None
        except errors.Error as error:
            if not isinstance(error, (errors.FailedPrecondition, errors.PermissionDenied,
                                      errors.Unimplemented)):
                raise  # Some are an OSError too, and say nothing about shared memory.
            self._disable_if_unused(used)
            return None
        except OSError:
            self._disable_if_unused(used)
            return None
        finally:
            with self._lock:
                self._growth -= wanted
        return self._take(size, device)

    def _disable_if_unused(self, used: int) -> None:
        """After an error that a daemon without shared memory gives each time."""
        if used == 0:
            self.disable_arena()

    def _take(self, size: int, device: Optional[int]) -> Optional[Block]:
        with self._lock:
            for each in self._arena:
                if device is None or each.region.device == device:
                    block = each.allocate(size)
                    if block is not None:
                        return block
        return None


class _Fork:
    """What a fork does with the arena. Its memory is shared, so that the child would see the parent's
    next results in the arrays of earlier ones, and could change the parent's. So the child gets private
    memory with what these arrays contain at the time of the fork. Arrays of Client.shared remain shared.
    """

    def __init__(self) -> None:
        self._forking = threading.Lock()
        self._locked: List[Memory] = []
        self._copies: List[_Copy] = []

    def before(self) -> None:
        self._forking.acquire()
        # With the locks, the lists of free ranges are complete, and no lock is held in the child.
        for memory in list(_memories):
            memory._lock.acquire()
            self._locked.append(memory)
        self._copies = [each.copy() for memory in self._locked for each in list(memory._arena_regions)]

    def after_in_parent(self) -> None:
        self._copies = []
        self._unlock()

    def after_in_child(self) -> None:
        for copy in self._copies:
            copy.replace()
        for memory in self._locked:
            memory._arena.clear()
            memory._arena_regions = weakref.WeakSet()
        self.after_in_parent()

    def _unlock(self) -> None:
        while self._locked:
            self._locked.pop()._lock.release()
        self._forking.release()


_memories: "weakref.WeakSet[Memory]" = weakref.WeakSet()
_fork = _Fork()
os.register_at_fork(before=_fork.before, after_in_parent=_fork.after_in_parent,
                    after_in_child=_fork.after_in_child)


def import_region(size: int, dtype: int, shape: Tuple[int, ...],
                  device: Optional[int]) -> Steps[Tuple[mmap.mmap, Region]]:
    """Makes memory of `size` bytes and imports it as a buffer of this dtype and shape."""
    session_id, local_address = yield Session()
    request = message("ImportSharedRequest")(size_bytes=size, dtype=dtype, shape=shape)
    if device is not None:
        request.device = device
    name = ""
    if local_address:
        fd = _anonymous_object(size)
    else:
        name, fd = _named_object(size)
    try:
        mapping = mmap.mmap(fd, size)
        if local_address:
            request.descriptor_token = yield Blocking(
                lambda: pass_descriptor(local_address, session_id, fd))
        else:
            request.name = name
        response = yield Unary("Buffers.ImportShared", request)
    finally:
        os.close(fd)
        if name:
            os.unlink("/dev/shm" + name)
    return mapping, Region(mapping, response.buffer.id, response.buffer.device)


def import_device_memory(fd: int, size: int, device_uuid: str) -> Steps[int]:
    """Imports memory of a GPU, of which `fd` is a descriptor, as a buffer of bytes; returns its id. size: that
    of cuMemCreate. device_uuid: as nvidia-smi prints it."""
    session_id, local_address = yield Session()
    if not local_address:
        raise errors.FailedPrecondition("the daemon has no local socket, over which descriptors of memory are passed",
                                        "start it with --local_address")
    token = yield Blocking(lambda: pass_descriptor(local_address, session_id, fd, b"residcu1"))
    response = yield Unary("Buffers.ImportCuda", message("ImportCudaRequest")(
        descriptor_token=token, allocation_bytes=size, dtype=_U8, shape=(size,), device_uuid=device_uuid))
    return int(response.buffer.id)


def pass_descriptor(path: str, session_id: str, fd: int, magic: bytes = b"residfd1") -> str:
    """Passes a descriptor to the daemon's local socket; returns the token for ImportShared, or with the magic
    of device memory, for ImportCuda."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_LOCAL_SOCKET_TIMEOUT_S)
        connection.connect(path)
        socket.send_fds(connection, [magic + session_id.encode()], [fd])
        answer = connection.recv(4096)
    if len(answer) < 4:
        raise errors.Unavailable("the daemon's local socket {} closed the connection".format(path),
                                 "try again; the daemon's log has the reason")
    code, text = struct.unpack("<I", answer[:4])[0], answer[4:].decode("utf-8", "replace")
    if code != 0:
        raise errors.from_status(code, text)
    return text


def _anonymous_object(size: int) -> int:
    """A sealed memory object without a name; its descriptor."""
    fd = os.memfd_create("residentd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _named_object(size: int) -> Tuple[str, int]:
    """A new object in /dev/shm: its name as for shm_open, and its descriptor. The module
    multiprocessing.shared_memory is not used: its tracker would unlink the object once more."""
    name = "/residentd-{}-{}".format(os.getpid(), secrets.token_hex(8))
    fd = os.open("/dev/shm" + name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Not ftruncate: if /dev/shm became full later, the first access would end the process that
        # makes it by SIGBUS, and that may be the engine.
        os.posix_fallocate(fd, 0, size)
    except BaseException:
        os.close(fd)
        os.unlink("/dev/shm" + name)
        raise
    return name, fd
