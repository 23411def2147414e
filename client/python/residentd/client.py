"""The client for threads: connect(), Client and Buffer. residentd.aio has the same for asyncio."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Type, TypeVar

import numpy as np

from . import buffers, credentials, flux, status
from .buffers import BufferMemory, BufferView
from .calls import Steps
from .connection import Connection
from .credentials import Settings
from .dtypes import BY_NUMBER, BFloat16Array, DType, DTypeLike
from .errors import InvalidArgument
from .operations import Operations, ShapeLike
from .operator import Operator
from .operator_call import Version, check_version
from .operators import Operators
from .shared_memory import Memory
from .signature import Shape
from .stream import Stream

if TYPE_CHECKING:
    from .graphs import Graphs
    from .models import Models
    from .lane import Lane

T = TypeVar("T")


DEFAULT_ADDRESS = "127.0.0.1:50051"


def connect(address: str = DEFAULT_ADDRESS, *, targets: Optional[str] = None,
            client_name: str = "residentd Python client",
            token_file: Optional[str] = None, tls_ca: Optional[str] = None,
            tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
            tls_server_name: Optional[str] = None, timeout: float = 60.0,
            connect_timeout: float = 5.0, max_message_mib: int = 64, shared_memory: str = "auto",
            arena_mib: int = 1024, retry: bool = False) -> "Client":
    """Connects to a daemon and opens a session; or to several nodes, of which it opens no session yet.

    address: host:port, or unix:PATH.
    targets: in place of an address: dns:///NAME:PORT, ipv4:HOST:PORT,HOST:PORT or another target of gRPC with
        the addresses of several daemons (docs/python.md).
    client_name: shown in the daemon's status; at most 64 bytes.
    token_file: the file with the token; refused without TLS unless the address is local.
    tls_ca, tls_cert, tls_key, tls_server_name: files in PEM; tls_ca turns on TLS.
    timeout, connect_timeout: seconds, for each call and for this one.
    max_message_mib: the largest message that is sent or accepted.
    shared_memory: "auto": with a local address, arrays of 64 KiB and more go through memory that is
        shared with the daemon, up to arena_mib; "off": they are sent inline.
    retry: the option `retry` of calls that do not have it: whether a call that did not run is sent again.

    Unavailable: no daemon answered. Unauthenticated, PermissionDenied: the credential was refused.
    """
    return _open(credentials.check(
        Settings(one_of(address, targets), client_name, token_file, tls_ca, tls_cert, tls_key, tls_server_name,
                 timeout, connect_timeout, max_message_mib, shared_memory, arena_mib, retry, targets is not None)))


def _open(settings: Settings) -> "Client":
    client = Client(settings)
    try:
        client._connection.reach()
    except BaseException:
        client.close()
        raise
    return client


def one_of(address: str, targets: Optional[str]) -> str:
    """The address or the targets. InvalidArgument if both are given."""
    if targets is None:
        return address
    if address != DEFAULT_ADDRESS:
        raise InvalidArgument("address={!r} and targets={!r} are both given".format(address, targets),
                              "give one of them")
    return targets


def may_share(settings: Settings) -> bool:
    """Whether memory may be passed to the daemon: it is on this machine, and shared_memory is not
    "off"."""
    return settings.shared_memory != "off" and credentials.is_local(settings.address)


def arena_bytes(settings: Settings) -> int:
    """The most that the arena may use; 0: no arena. Calls with memory of one node could not be spread."""
    return settings.arena_mib << 20 if may_share(settings) and not settings.balance else 0


class Buffer(BufferView):
    """A buffer of the daemon, or a view of one. Slices are views.

    A buffer is freed by free(), at the end of its with block, or when the last view of it is garbage
    collected; a durable one only by free().
    """

    def __init__(self, client: "ClientCalls", memory: BufferMemory, dtype: DType, shape: Shape,
                 strides: Shape, offset: int) -> None:
        super().__init__(memory, dtype, shape, strides, offset)
        self._client = client

    def numpy(self) -> "np.ndarray[Any, Any]":
        """The elements, as a new array."""
        return self._client._drive(buffers.read(self))

    def write(self, values: Any) -> None:
        """Writes an array of the same dtype, which broadcasts to the shape, to the buffer."""
        self._client._drive(buffers.write(self, values))

    def persist(self) -> None:
        """Saves the contents of a durable buffer, so that an engine restart restores them."""
        self._client._drive(self._client._operations.persist(self))

    def free(self) -> None:
        """Frees the buffer, with all views, once the tasks that use it have ended."""
        self._client._drive(self._client._operations.free(self._memory))

    # For threads only.
    def __array__(self, dtype: Any = None, copy: Any = None) -> "np.ndarray[Any, Any]":
        array = self.numpy()
        if isinstance(array, BFloat16Array):  # np.asarray would take the bits.
            return array.astype(np.float32 if dtype is None else dtype)
        return array if dtype is None else array.astype(dtype)

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()

    def _view(self, shape: Shape, strides: Shape, offset: int) -> "Buffer":
        return Buffer(self._client, self._memory, self._dtype, shape, strides, offset)

    # For threads only.
    def _find_again(self) -> None:
        if self._memory.uncertain:
            self._client._drive(self._memory.find_again())


class ClientCalls:
    """The calls of a client that are no calls of an operator or of a graph."""

    _operations: Operations

    def _drive(self, steps: Steps[T]) -> T:
        """Runs the steps of an operation; returns its result."""
        raise NotImplementedError

    def flux(self, code: Any, inputs: Any = None, *, registers: Sequence[int] = (0,), count: int = 0,
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
        return self._drive(flux.run(code, inputs, registers, count, max_cycles, unknown_opcode_nop,
                                    device, timeout, retry, self._operations))

    def empty(self, shape: ShapeLike, dtype: DTypeLike = "f32", *, device: Optional[int] = None,
              durable: bool = False, name: str = "") -> Buffer:
        """A new buffer, not initialised. A durable one outlives the session and engine restarts."""
        return self._buffer(*self._drive(
            self._operations.allocate(buffers.check_shape(shape), dtype, buffers.check_device(device),
                                      durable, name)))

    def upload(self, values: Any, dtype: Optional[DTypeLike] = None, *, device: Optional[int] = None,
               durable: bool = False, name: str = "") -> Buffer:
        """A new buffer with the elements of an array. dtype: None for the array's own. A floating dtype
        rounds the values; InvalidArgument if an integer dtype cannot represent them."""
        return self._buffer(*self._drive(
            self._operations.upload(values, dtype, buffers.check_device(device), durable, name)))

    def shared(self, shape: ShapeLike, dtype: DTypeLike = "f32", *,
               device: Optional[int] = None) -> "np.ndarray[Any, Any]":
        """A new array, of zeros, in memory that tasks read and write in place: it, and views of it, are
        passed without copies. Needs a daemon on this machine. FailedPrecondition if it accepts no shared
        memory."""
        return self._drive(self._operations.shared(buffers.check_shape(shape), dtype,
                                                   buffers.check_device(device)))

    def buffers(self) -> List[Buffer]:
        """The durable buffers, and those of this session."""
        found = []
        for info in self._drive(self._operations.list_buffers()):
            memory = BufferMemory(info, self._operations.memory, False)
            found.append(self._buffer(memory, BY_NUMBER[info.dtype], tuple(info.shape)))
        return found

    def load_file(self, path: str, prefix: str = "", *, device: Optional[int] = None,
                  skip_unsupported: bool = False) -> Dict[str, Buffer]:
        """Durable buffers of the tensors of a safetensors file in the daemon's --load_dir, by name.
        skip_unsupported: leaves tensors out whose dtype the daemon does not have."""
        loaded = {}
        for info in self._drive(self._operations.load_file(path, prefix, buffers.check_device(device),
                                                           skip_unsupported)):
            memory = BufferMemory(info, self._operations.memory, False)
            loaded[info.name] = self._buffer(memory, BY_NUMBER[info.dtype], tuple(info.shape))
        return loaded

    def status(self) -> status.Status:
        """The state of the daemon, its devices and its clients; str() of it is a table."""
        return self._drive(status.get())

    def _buffer(self, memory: BufferMemory, dtype: DType, shape: Shape) -> Buffer:
        return Buffer(self, memory, dtype, shape, buffers.dense_strides(shape), 0)


class Client(ClientCalls):
    """A connection to a daemon, with a session that owns the client's buffers.

    Thread safety: all methods may be called from several threads. A client cannot be used in a process
    that was forked from its own.
    """

    def __init__(self, settings: Settings) -> None:
        memory = Memory(arena_bytes(settings))
        self._operations = Operations(memory, may_share(settings), settings)
        if settings.balance:
            from .nodes import BalancedConnection  # Here, because many programs have one daemon.

            self._connection: Connection = BalancedConnection(settings, memory)
        else:
            self._connection = Connection(settings, memory.reset)
            memory.node = settings.address if settings.pinned else ""
        self._operator_cache: Dict[Tuple[str, Version], Operator] = {}
        self._lock = threading.Lock()
        self._stream: Optional[Stream] = None
        self._graphs: Optional["Graphs"] = None
        self._models: Optional["Models"] = None
        self.operators = Operators(self)
        # A client that nothing refers to any more ends without close().
        setattr(weakref.finalize(self, self._connection.abandon), "atexit", False)

    # Operators.

    def op(self, name: str, version: int = 0, *, content_hash: str = "", label: str = "") -> Operator:
        """The operator of this name. version: the one that calls run; 0: the one that is active when a
        call arrives. content_hash: the version whose content hash begins with these 12 to 64 digits; label:
        the one that has this label when a call arrives; both are the same on daemons whose version numbers
        differ. NotFound has the most similar name."""
        named = check_version(version, content_hash, label)
        known = self._operator_cache.get((name, named))
        description = self._drive(self._operations.describe(name))
        if known is None or known._description is not description:
            known = self._operator_cache[name, named] = Operator(self, description, named)
        return known

    def stream(self, max_in_flight: int = 32, in_order: bool = False, *, max_age: Optional[float] = None) -> Stream:
        """A stream of batches, see Stream."""
        return Stream(self, max_in_flight, in_order, max_age)

    def lane(self, device: int = 0, *, slots: int = 4096, data_bytes: int = 0) -> "Lane":
        """A local lane: tasks through memory that this process shares with the daemon, see Lane. Needs a
        daemon on this machine with --local_address. slots: submissions that can be unanswered, a power
        of two from 64 to 65536. data_bytes: for LaneCall.submit_range(), a multiple of 4,096 up to
        64 MiB. FailedPrecondition if the daemon has no lanes."""
        from .lane import Lane  # Here, because it opens a C library.

        return Lane(self, device, slots, data_bytes)

    @property
    def graphs(self) -> "Graphs":
        """Task graphs, see Graphs."""
        if self._graphs is None:
            from .graphs import Graphs  # Here, because many programs have no graphs.

            with self._lock:
                self._graphs = self._graphs or Graphs(self)
        return self._graphs

    @property
    def models(self) -> "Models":
        """Models, see Models."""
        if self._models is None:
            from .models import Models  # As for graphs.

            with self._lock:
                self._models = self._models or Models(self)
        return self._models

    def pin(self) -> "Client":
        """A client of one further node, chosen by chance among those that serve, with which this one was
        connected by connect(targets=...). All calls of that client go to its node."""
        return self._connection.find_node(_open)

    # Lifetime.

    def close(self) -> None:
        """Ends the client: its streams, and its session with all buffers that are not durable. Waits for
        results of submit() that are not there yet. Results that lie in shared memory remain valid.
        Without effect in a process that was forked from the client's own."""
        if os.getpid() != self._connection._process:  # A thread may have held the lock in the parent.
            return
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._connection.close()

    def __repr__(self) -> str:
        return "<residentd client of {}{}>".format(self._connection.address,
                                                   ", closed" if self._connection.closed else "")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Any, trace: Any) -> None:
        if os.getpid() != self._connection._process:
            return
        if kind is not None and self._stream is not None:
            self._stream.cancel()
        self.close()

    # For the other modules of the package.

    def _drive(self, steps: Steps[T]) -> T:
        return self._connection.drive(steps)

    def _default_stream(self) -> Stream:
        """The stream of Operator.submit. A stream that has ended is replaced."""
        stream = self._stream
        if stream is None or stream.ended:
            with self._lock:
                if self._stream is None or self._stream.ended:
                    self._stream = Stream(self, 32, False)
                stream = self._stream
        return stream
