"""What both clients can do, as steps (calls.py): descriptions of operators, calls, buffers, shared
arrays, FLUX programs."""

from __future__ import annotations

import math
import mmap
import numbers
import secrets
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import buffers, dtypes, retries, shared_memory
from .buffers import BufferMemory, BufferView
from .calls import Collect, Session, Steps, Unary
from .credentials import Settings
from .descriptors import message
from .dtypes import DType, DTypeLike
from .errors import (NODE_LEFT, AlreadyExists, Error, FailedPrecondition, InvalidArgument, NotFound, OutOfRange,
                     PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable, Unimplemented)
from .lone_call import Template
from .operator_call import CallBuilder, Prepared, Version
from .results import Result
from .shared_memory import Memory
from .signature import Shape, Signature

# Errors of calls of which no task runs any more. After any other error a task may still run.
REFUSALS = (AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied,
             ResourceExhausted, Unauthenticated, Unimplemented)

# The most nodes that are asked for a buffer, each of which leaves meanwhile.
_ALLOCATE_ATTEMPTS = 3

ShapeLike = Union[int, Sequence[int]]


class Description:
    """An operator of the daemon."""

    def __init__(self, operator: Any) -> None:
        self.message = operator
        self.signature = Signature.from_message(operator)

    def text(self, version: Version) -> str:
        """The documentation."""
        operator = self.message
        lines = ["{}: {}".format(operator.name, operator.summary), ""]
        lines += ["    " + str(p) for p in self.signature.parameters]
        if operator.notes:
            lines += ["", operator.notes]
        lines += ["", "Version {}{}.".format(version or operator.active_version,
                                             "" if version else " serves")]
        return "\n".join(lines)


class Operations:
    """The state that calls share: descriptions of operators, and memory.

    Thread safety: may be used from several threads.
    """

    def __init__(self, memory: Memory, may_share: bool, settings: Settings) -> None:
        self.memory = memory
        self._may_share = may_share
        self._retry = settings.retry
        self.timeout = settings.timeout
        self._descriptions: Dict[str, Description] = {}
        self._builders: Dict[Tuple[str, Version], CallBuilder] = {}

    # Operators.

    def describe(self, name: str) -> Steps[Description]:
        """The description of an operator, which is kept: versions of an operator have one signature.
        NotFound has the most similar name."""
        known = self._descriptions.get(name)
        if known is None:
            response = yield Unary("Operators.Describe", message("DescribeOperatorRequest")(name=name),
                                   operator=name)
            known = self._descriptions[name] = Description(response.operator)
        return known

    def forget(self, name: str) -> None:
        """Drops the description of an operator, which may have been removed or replaced."""
        self._descriptions.pop(name, None)
        for key in [key for key in list(self._builders) if key[0] == name]:
            self._builders.pop(key, None)

    def builder(self, name: str, version: Version) -> Steps[CallBuilder]:
        known = self._builders.get((name, version))
        if known is None:
            description = yield from self.describe(name)
            known = CallBuilder(description.signature, version, self.memory)
            self._builders[name, version] = known
        return known

    def prepare(self, name: str, version: Version, args: Sequence[Any], kwargs: Mapping[str, Any],
                shared: Optional[Sequence[str]] = None) -> Steps[Prepared]:
        """A batch for the stream or for run()."""
        yield from self.collect_garbage()
        for value in (*args, *kwargs.values()):
            if isinstance(value, BufferView):
                yield from value._memory.find_again()
        known = self._descriptions.get(name)
        builder = yield from self.builder(name, version)
        try:
            return (yield from builder.prepare(args, kwargs, shared=shared))
        except InvalidArgument:
            # The operator may have been replaced by one with another signature since it was described.
            if known is None or not (yield from self._replaced(name, known)):
                raise
        builder = yield from self.builder(name, version)
        return (yield from builder.prepare(args, kwargs, shared=shared))

    def _replaced(self, name: str, known: Description) -> Steps[bool]:
        """Whether the operator has another signature now; then the new description is kept."""
        self.forget(name)
        description = yield from self.describe(name)
        if description.message.signature != known.message.signature:
            return True
        self._descriptions[name] = known
        return False

    def run(self, name: str, version: Version, args: Sequence[Any], kwargs: Mapping[str, Any],
            shared: Optional[Sequence[str]] = None) -> Steps[Result]:
        """Calls an operator and waits for the result."""
        retry = self.retry_of(kwargs.get("retry"))
        if not retry:
            prepared = yield from self.prepare(name, version, args, kwargs, shared)
            if shared is None:
                self._remember(name, version, args, kwargs, prepared)
            return (yield from self._send(prepared))
        repeatable = False

        def attempt(left: float) -> Steps[Result]:
            nonlocal repeatable
            try:
                prepared = yield from self.prepare(name, version, args, kwargs, shared)
            except Unavailable as error:
                error.passes = error.reason != NODE_LEFT  # Nothing was sent.
                raise
            repeatable = prepared.repeatable
            prepared.limit(left)
            return (yield from self._send(prepared))

        timeout = kwargs.get("timeout")
        return (yield from retries.repeat(
            attempt, lambda error: retries.may_send_again(error, retry, repeatable),
            float(timeout) if isinstance(timeout, numbers.Real) else self.timeout))

    def lone(self, name: str, version: Version, args: Sequence[Any],
             kwargs: Mapping[str, Any]) -> Optional[Tuple[Template, bytes]]:
        """The request of a call of one task that was made before with other values; None: run() makes
        it. This is the fast way, with neither steps nor messages."""
        builder = self._builders.get((name, version))
        if builder is None or (self.memory.in_use and self._uses_memory(args, kwargs)):
            return None
        return builder.lone.request(args, kwargs)

    def _uses_memory(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call uses arrays in place, or has garbage to collect."""
        return self.memory.has_garbage or any(
            isinstance(value, np.ndarray) and self.memory.locate(value) is not None
            for value in (*args, *kwargs.values()))

    def _remember(self, name: str, version: Version, args: Sequence[Any], kwargs: Mapping[str, Any],
                  prepared: Prepared) -> None:
        """Makes the template of the call for lone(), if it can have one."""
        builder = self._builders.get((name, version))
        if builder is not None:
            builder.lone.remember(args, kwargs, prepared)

    def retry_of(self, retry: Any) -> Any:
        """The value of the option `retry` of a call; None is the client's."""
        return self._retry if retry is None else retry

    def _send(self, prepared: Prepared) -> Steps[Result]:
        try:
            response = yield Unary("Executor.Run", message("RunRequest")(batch=prepared.batch),
                                   prepared.timeout, prepared.operator)
        except BaseException as error:
            self.failed(prepared, error)
            raise
        return prepared.decode(response.result)

    def failed(self, prepared: Prepared, error: BaseException) -> None:
        """Keeps memory of the arena from being used again while tasks of a call that ended without an
        answer may still run."""
        if isinstance(error, (NotFound, InvalidArgument)):
            self.forget(prepared.operator)
        if not isinstance(error, REFUSALS) and not getattr(error, "passes", False):
            for region in prepared.regions:
                self.memory.retire(region)

    # Buffers.

    def collect_garbage(self) -> Steps[None]:
        """Frees buffers whose last view is gone."""
        for buffer_id in self.memory.collect_garbage():
            try:
                yield from buffers.free(buffer_id)
            except Error:  # The session that owned it has ended.
                pass

    def allocate(self, shape: ShapeLike, dtype: DTypeLike, device: Optional[int], durable: bool,
                 name: str) -> Steps[Tuple[BufferMemory, DType, Shape]]:
        yield from self.collect_garbage()
        kind = dtypes.find(dtype)
        wanted = shape_of(shape)
        if durable and not name:
            # By which the handle is recognized after a restart of the daemon, when other buffers may
            # have its number.
            name = "unnamed-" + secrets.token_hex(8)
        for attempts_left in reversed(range(_ALLOCATE_ATTEMPTS)):
            yield Session()
            session = self.memory.session
            try:
                info = yield from buffers.allocate(wanted, kind, device, durable, name)
                break
            except Unavailable as error:  # What the node had allocated has left with it.
                if error.reason != NODE_LEFT or not attempts_left:
                    raise
        return BufferMemory(info, self.memory, True, session), kind, wanted

    def upload(self, values: Any, dtype: Optional[DTypeLike], device: Optional[int], durable: bool,
               name: str) -> Steps[Tuple[BufferMemory, DType, Shape]]:
        array, found = dtypes.to_array(buffers.converted(values, dtype))
        if found is None:
            raise InvalidArgument("residentd has no dtype {}".format(array.dtype),
                                  "convert the array, or pass dtype=")
        memory, kind, shape = yield from self.allocate(array.shape, found, device, durable, name)
        if array.size:
            yield from buffers.upload(memory.id, 0, buffers.bytes_of(np.ascontiguousarray(array)))
        return memory, kind, shape

    def free(self, memory: BufferMemory) -> Steps[None]:
        """Frees a buffer once; also if its session has ended."""
        if memory.freed:
            return
        yield from memory.find_again()
        memory.freed = True
        if not memory.lost:
            try:
                yield from buffers.free(memory.id)
            except NotFound:
                pass

    def list_buffers(self) -> Steps[List[Any]]:
        response = yield Unary("Buffers.List", message("ListBuffersRequest")())
        return list(response.buffers)

    def persist(self, view: BufferView) -> Steps[None]:
        yield from view._memory.find_again()
        yield Unary("Buffers.Persist", message("PersistRequest")(buffer_id=view.id))

    def load_file(self, path: str, prefix: str, device: Optional[int],
                  skip_unsupported: bool) -> Steps[List[Any]]:
        """The BufferInfo of each tensor of a file on the daemon's machine."""
        request = message("LoadFileRequest")(path=path, prefix=prefix, skip_unsupported=skip_unsupported)
        if device is not None:
            request.device = device
        found: List[Any] = []
        yield Collect("Buffers.LoadFile", request, lambda response: found.extend(response.buffers))
        return found

    def shared(self, shape: ShapeLike, dtype: DTypeLike,
               device: Optional[int]) -> Steps["np.ndarray[Any, Any]"]:
        """A new array in memory that the daemon shares."""
        if not self._may_share:
            raise FailedPrecondition("memory is passed only to a daemon on this machine",
                                     "connect to a loopback address or a Unix socket, without "
                                     "shared_memory=\"off\"; or use upload()")
        yield from self.collect_garbage()
        kind, dimensions = dtypes.find(dtype), shape_of(shape)
        size = math.prod(dimensions) * kind.size
        if size == 0:
            raise InvalidArgument("a shared array of shape {} has no elements".format(dimensions),
                                  "use numpy.empty")
        rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        session = self.memory.session
        mapping, region = yield from shared_memory.import_region(
            rounded, kind.number, (rounded // kind.size,), device)
        if not self.memory.add(region, session):
            raise Unavailable("the session ended while memory was imported", "try again")
        self.memory.remove_with(mapping, region)
        array = np.frombuffer(mapping, kind.storage, count=size // kind.size).reshape(dimensions)
        return dtypes.from_storage(array, kind)


def shape_of(shape: ShapeLike) -> Shape:
    """A shape from an integer or a sequence of integers."""
    return buffers.check_shape(shape)
