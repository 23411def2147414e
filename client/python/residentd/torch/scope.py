"""stream(): the order of operators with the work of a CUDA stream.

    with rt.stream():
        y = rt.ops.add(x, w)    # Behind what the stream did before.
        z = rt.ops.mul(y, y)    # Behind the first, whose output it reads.
    print(z.sum())              # Behind both.

The processor waits for nothing. The first operator of a scope is preceded by an await in the lane for what the stream
has done, and the end of the scope by a signal, for which the stream waits. In between, the library orders operators
that touch the same memory, and others run in any order.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any, List, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import lane as lanes
from ..errors import FailedPrecondition, InvalidArgument, TaskError, task_failed
from . import memory
from .lane import AFTER_ALL, FULL, MAX_STREAMS, ORDERED, QUIET, current

if TYPE_CHECKING:
    from .lane import TorchCall, TorchLane

# Tensors that a scope keeps: then the stream waits for what was submitted, as at the scope's end.
_MAX_KEPT = 1 << 16
_STATUS = {1: "INVALID_ARGUMENT", 2: "DEADLINE_EXCEEDED", 3: "CANCELLED", 4: "ABORTED", 5: "UNAVAILABLE", 6: "INTERNAL",
           64: "REFUSED"}

_log = logging.getLogger("residentd.torch")
_logged = False


class _Fences(TorchDispatchMode):
    """Lets each operation of torch wait for the operators before it, and those after it for the operation."""

    def __init__(self, scope: "Scope") -> None:
        super().__init__()
        self._scope = scope

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(function, "is_view", False) and getattr(function, "namespace", "") != "residentd":
            self._scope.fence()
        return function(*args, **(kwargs or {}))


class Scope:
    """What stream() returns."""

    def __init__(self, lane: "TorchLane", stream: Optional[torch.cuda.Stream], strict: bool, pool: bool) -> None:
        self._lane = lane
        self._stream = torch.cuda.current_stream() if stream is None else stream
        self._chosen = torch.cuda.stream(stream) if stream is not None else None
        self._handle = int(self._stream.cuda_stream)
        self._fences = _Fences(self) if strict else None
        self._pool = memory.pool() if pool else None
        self.in_pool = pool  # Whether torch's tensors of this thread are made in the pool.
        self._depth = 0
        self.begun = False  # Whether the lane has an await behind the stream's last work.
        self.pending = False  # Whether there are submissions for which the stream does not wait yet.
        self.barrier = False  # Whether the next submission begins when all earlier ones have ended.
        self._kept: List[Any] = []  # Tensors of submissions for which the stream does not wait yet.

    def __enter__(self) -> "Scope":
        self._depth += 1
        if self._depth > 1:
            return self
        self._lane.check_failed()
        if self._chosen is not None:
            self._chosen.__enter__()
        if self._pool is not None:
            self._pool.__enter__()
        if self._fences is not None:
            self._fences.__enter__()
        self._lane._scope = self
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._lane._scope = None
        if self._fences is not None:
            self._fences.__exit__(kind, value, trace)
        if self._pool is not None:
            self._pool.__exit__(kind, value, trace)
        if self._chosen is not None:
            self._chosen.__exit__(kind, value, trace)
        self.fence()

    def fence(self) -> None:
        """From here on the stream waits for all operators so far, and operators for what the stream gets to do before
        the next one. A strict scope does it by itself before each operation of torch."""
        self.begun = False
        if not self.pending:
            return
        lane = self._lane
        code = FULL
        while code:
            code = lane._library.residentd_lane_stream_end(lane._handle, self._handle) if lane._handle else 0
            if code or not lane._handle:
                lane.make_room(code)
        self.pending = self.barrier = False
        self._kept.clear()

    def check(self, timeout: Optional[float] = None) -> None:
        """Waits until all operators of the scope so far have ended. TaskFailed if one did not end OK: operations of
        torch that were enqueued behind it have used what it left. timeout: seconds; DeadlineExceeded if it passed."""
        self.fence()
        lane = self._lane
        sequence = lane.next - 1
        if sequence >= 0:
            code = lane._library.residentd_lane_await(lane._handle, sequence,
                                                      -1 if timeout is None else int(timeout * 1e9), 0)
            if code:
                lane._raise(code, None)
        lane.check_failed()

    def submit(self, call: "TorchCall", flags: int) -> int:
        """Submits a prepared call."""
        if not self.begun:
            self.begin()
        sequence = self._lane.send(call, flags | ORDERED | QUIET | self.take_barrier())
        self.note(sequence, call)
        return sequence

    def take_barrier(self) -> int:
        """The flag of the next ordered submission, if there must be one."""
        flag, self.barrier = AFTER_ALL if self.barrier else 0, False
        return flag

    def note(self, sequence: int, call: "TorchCall") -> None:
        """Notes a submission."""
        self.pending = True
        self._lane._sent.append((sequence, call.operator))
        self._kept += call._tensors
        if len(self._kept) > _MAX_KEPT:
            self.fence()

    def note_all(self, sequences: List[int], operator: str) -> None:
        """Notes submissions, whose tensors are kept with keep()."""
        self.pending = True
        self._lane._sent.extend([(sequence, operator) for sequence in sequences])

    def keep(self, tensors: Any) -> None:
        """Keeps tensors until the stream waits for the operators so far."""
        self._kept += tensors
        if len(self._kept) > _MAX_KEPT:
            self.fence()

    def begin(self) -> None:
        """Lets what is submitted next wait for the stream's work so far."""
        lane = self._lane
        if self._handle not in lane._streams:
            if len(lane._streams) == MAX_STREAMS:
                raise InvalidArgument("the lane was used with {} streams".format(MAX_STREAMS),
                                      "use fewer streams in this thread, or attach another lane")
            lane._streams.append(self._handle)
        code = FULL
        while code:
            code = lane._library.residentd_lane_stream_begin(lane._handle, self._handle) if lane._handle else 0
            if code or not lane._handle:
                lane.make_room(code)
        self.begun = True


def stream(stream: Optional[torch.cuda.Stream] = None, *, strict: bool = True) -> Scope:
    """A scope in which operators on tensors of a GPU are ordered with a stream, torch's current one or `stream`, which
    is then the current one inside. Within it, torch makes tensors of this thread in the pool. A scope in a scope is
    the outer one.

    strict: each operation of torch in the scope waits for the operators before it, which costs some microseconds for
        each such operation. False: call fence() of the scope before torch uses a result in it, and before operators
        use what torch has written in it.

    When the scope is entered, TaskFailed of an earlier scope is raised. FailedPrecondition: this thread has no lane,
    torch has no GPU, or the stream is being captured into a graph.
    """
    lane = current()
    memory.check_gpu()
    handle = int((torch.cuda.current_stream() if stream is None else stream).cuda_stream)
    outer = lane._scope
    if outer is not None:
        if handle != outer._handle:
            raise InvalidArgument("a scope of another stream is open in this thread",
                                  "leave it first, or open this one with a lane of another thread")
        return outer
    if torch.cuda.is_current_stream_capturing():
        raise FailedPrecondition("the stream is being captured: a graph would repeat a value that only rises",
                                 "call operators outside of the capture")
    lane.use_gpu()
    return Scope(lane, stream, strict, pool=True)


def lone_scope(lane: "TorchLane") -> Scope:
    """The scope of one operator that is called outside of scopes."""
    global _logged
    if not _logged:
        _logged = True
        _log.warning("an operator on tensors of a GPU was called outside of residentd.torch.stream(), which orders it "
                     "alone, for about 14 us. Fix: put it and its neighbours into `with residentd.torch.stream():`")
    return Scope(lane, None, False, pool=False)


def raise_failed(lane: "TorchLane", count: int) -> None:
    """Raises TaskFailed for `count` operators of scopes, of which the lane still knows the last ones."""
    completion = lanes.Completion()
    failed: List[TaskError] = []
    operator = ""
    for index, (sequence, name) in enumerate(lane._sent):
        code = lane._library.residentd_lane_await(lane._handle, sequence, 0, ctypes.addressof(completion))
        if code == 0 and completion.status:
            operator = operator or name
            failed.append(TaskError(index, _STATUS.get(completion.status, "INTERNAL"), "{}: {}".format(
                name, lane._library.residentd_lane_explain(lane._handle, ctypes.byref(completion)).decode())))
    lane._sent.clear()
    if not failed:
        failed = [TaskError(0, "INTERNAL", "an operator of a scope did not end OK, or the daemon ended before it. Fix: "
                                           "compute the results again")]
    raise task_failed(operator, failed[:16], count, count, None)
