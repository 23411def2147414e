"""attach(): the lane of a thread, whose calls take torch tensors in place.

A tensor is in memory of the daemon if it lies in a region of shared memory (shared(), CPU) or in a segment of the
pool (memory.pool(), GPU). The lane keeps for each such piece of memory a Span, which turns an address into the
place that submissions name. A span ends with its memory: an address that was in it may then be in other memory,
so that _refresh() looks for ended memory before an address is looked up.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import math
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import lane as lanes
from ..buffers import dense_strides
from ..client import Client
from ..connection import check_process
from ..dtypes import DType
from ..errors import FailedPrecondition, InvalidArgument, ResourceExhausted, WrongType
from ..lane import Lane, LaneCall, Tensor
from ..signature import INOUT, INPUT, Signature
from . import memory
from .tensors import TORCH, dtype_of, from_array

if TYPE_CHECKING:
    from .operators import BoundOperator
    from .scope import Scope

# Of the library.
AFTER_ALL, QUIET, ORDERED = 1, 4, 8
FULL = -1
_READ, _WRITE, _ELEMENTS = 1, 2, 4
_F32_BYTES = 4
_RECORD_BYTES = 256
# With it the module of lanes reads tensors; torch 2.10 and later have it.
_api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_ACCESS = {INPUT: _READ, INOUT: _READ | _WRITE}
_SLOW_OWN_KERNEL_US = 300.0
MAX_CALLS = 1024
_RELEASED_AT_ONCE = 64
# Allocates without torch's dispatcher, so that the fences of a scope do not see it. torch's compiler uses it, too.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
empty_cuda = getattr(_guards, "_empty_strided_cuda", None)
MAX_STREAMS = 32

_local = threading.local()


class Span:
    """Memory of this process, or of its GPU, that the daemon has as a buffer."""

    __slots__ = ("low", "high", "delta", "buffer", "index", "segment")

    def __init__(self, low: int, high: int, buffer: int, index: int, segment: int) -> None:
        """index: in the lane's table. segment: of the pool; 0: a region of shared memory."""
        self.low, self.high = low, high  # Both 0 after its end.
        self.delta = (index << 48) - low  # From an address to a place.
        self.buffer, self.index, self.segment = buffer, index, segment


class TorchCall(LaneCall):
    """A prepared call with torch tensors; TorchLane.prepare() makes it.

    If one of its tensors is on the CPU, a call waits for its end. Otherwise it is ordered by the scope of
    stream(), or by one of its own, and does not wait. Tensors are kept until others take their places.
    """

    _lane: "TorchLane"

    def __init__(self, lane: "TorchLane", number: int, version: int, signature: Signature,
                 words: List[Tuple[int, Any]], first: Sequence[Any]) -> None:
        super().__init__(lane, number, version, signature, words, first)
        self.operator = signature.operator
        # For each word a tensor: the tensor, and its dtype, shape, and strides.
        self._tensors: List[Any] = [each.value if isinstance(each, Tensor) else None for each in first]
        self._torch_kinds = [None if each is None else kind_of(each) for each in self._tensors]
        self._spans = [None if each is None else lane.find(each) for each in self._tensors]
        self._reach = [0 if each is None else reach_bytes(each) for each in self._tensors]
        # Words that are floating-point numbers are written as such.
        self._f64 = (ctypes.c_double * lanes.MAX_WORDS).from_buffer(self._words)
        self._f32 = (ctypes.c_float * (2 * lanes.MAX_WORDS)).from_buffer(self._words)
        of_word = [parameter for parameter, _ in words]
        self._by_position = [of_word.index(i) if i in of_word else -1 for i in self._positions]
        self._by_name = {signature.parameters[i].keyword: word for word, i in enumerate(of_word)}
        self._note_devices()
        # By which the module recognizes tensors whose words it can set; of the lane's memory of `_generation`.
        self._records = ctypes.create_string_buffer(_RECORD_BYTES * lanes.MAX_WORDS)
        self._records_at = ctypes.addressof(self._records)
        self._generation = lane.generation
        # Tensors by position are the first words, so many.
        self.leading = len(self._by_position) if self._by_position == list(range(len(self._by_position))) else 0
        for word, (parameter, kind) in enumerate(words):
            lane.set_access(number, word, 0 if isinstance(kind, str) else self._reach[word], 0 if isinstance(
                kind, str) else _ACCESS.get(signature.parameters[parameter].kind, _WRITE))

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> None:
        """Runs it. timeout: seconds, for calls that wait; after DeadlineExceeded the task may still run."""
        if args or kwargs:
            self._set(args, kwargs)
        if not self.waits:
            lane = self._lane
            scope = lane._scope
            if scope is None or not scope.begun or scope.barrier or not lane._handle:
                lane.submit(self)
                return
            sequence = lane._library.residentd_lane_submit(lane._handle, self._number, self._words_at, self._count,
                                                           ORDERED | QUIET)
            if sequence < 0:
                lane.make_room(sequence)
                lane.submit(self)
                return
            scope.note(sequence, self)
        elif self._lane._scope is None and not self.mixed:
            super().__call__(timeout=timeout)
        else:  # The wait is for what came before, too.
            lane = self._lane
            lane.wait(lane.submit(self), timeout)

    def submit(self, *args: Any, **kwargs: Any) -> int:
        """Submits it and does not wait; returns the number for TorchLane.wait(). With a tensor of a GPU only in
        a scope of stream()."""
        if args or kwargs:
            self._set(args, kwargs)
        return self._lane.submit(self)

    def submit_range(self, *args: Any, **kwargs: Any) -> int:
        raise InvalidArgument("ranges of torch tensors are made by foreach() and plan()",
                              "use residentd.torch.foreach() or plan()")

    def _set(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        lane = self._lane
        if lane.memory_changed():
            lane.refresh()
        given = len(args)
        if given > len(self._by_position):
            self._match(args, kwargs)  # Raises.
        if given and not (given <= self.leading and self.put_fast(0, args)):
            for i, value in enumerate(args):
                self._set_word(self._by_position[i], i, value)
        for name, value in kwargs.items():
            word = self._by_name.get(name, -1)
            if word < 0 or (given and word in self._by_position[:given]):
                self._match(args, kwargs)
                self._word(self._signature.by_keyword[name])
            if self._torch_kinds[word] is None or not self.put_fast(word, (value,)):
                self._set_word(word, -1, value)
        if self.waits and self._output >= 0:
            span = self._spans[self._output]
            self._addresses[self._output] = 0 if span.segment else self._words[self._output] - span.delta

    def put_fast(self, word: int, tensors: Tuple[Any, ...]) -> bool:
        """Sets the words from `word` on, if all tensors are as those that were set before. REQUIRES: as of
        set_tensor()."""
        if _api is None or lanes.module is None:
            return False
        if self._generation != self._lane.generation:
            self._generation = self._lane.generation
            ctypes.memset(self._records_at, 0, len(self._records))
        try:
            for tensor in tensors:
                if tensor.is_neg():
                    return False
            if not lanes.module.put(_api, self._records_at + _RECORD_BYTES * word, *tensors):
                return False
        except (AttributeError, RuntimeError):  # Something is no tensor.
            return False
        self._tensors[word:word + len(tensors)] = tensors
        return True

    def _set_word(self, word: int, position: int, value: Any) -> None:
        """position: of the argument among the tensors, if the word may be -1."""
        if word < 0:
            self._word(self._positions[position])  # Raises.
        kind = self._torch_kinds[word]
        if kind is None:
            self.set_scalar(word, value)
        elif isinstance(value, torch.Tensor) and kind_of(value) == kind and not value.is_neg():
            self.set_tensor(word, value)
        else:
            parameter = next(i for i, (each, _) in self._of_parameter.items() if each == word)
            name = self._signature.parameters[parameter].name
            self._set_tensor(word, name, self._words_kinds[word], self._lane._tensor(name, value))

    def set_scalar(self, word: int, value: Any) -> None:
        """Sets a word that is a number."""
        kind = self._words_kinds[word]
        if type(value) is float and kind == "f64":
            self._f64[word] = value
        elif type(value) is float and kind == "f32":
            self._f32[2 * word] = value
        else:
            name = next(name for name, each in self._by_name.items() if each == word)
            self._words[word] = lanes.encode(name, kind, value)

    def set_tensor(self, word: int, tensor: torch.Tensor) -> None:
        """Sets a word to the place of a tensor of the call's dtype, shape and strides. REQUIRES: the lane was
        refreshed."""
        address = tensor.data_ptr()
        span = self._spans[word]
        if not (span.low <= address and address + self._reach[word] <= span.high):
            span = self._spans[word] = self._lane.find(tensor)
        self._words[word] = address + span.delta
        self._tensors[word] = tensor
        if _api is not None and lanes.module is not None:
            lanes.module.record(_api, tensor, self._records_at + _RECORD_BYTES * word, span.low, span.high, span.delta,
                                self._reach[word], self._words_at + 8 * word)

    def word_of(self, parameter: int) -> int:
        """The word of a tensor, or of a scalar that varies."""
        return self._of_parameter[parameter][0]

    def drop_tensors(self) -> None:
        """Keeps no tensor any more. Every word is set before the next use."""
        self._tensors = [None] * len(self._tensors)

    def _put(self, word: int, tensor: Tensor) -> None:
        super()._put(word, tensor)
        if hasattr(self, "_tensors"):  # Otherwise __init__ does it.
            self._tensors[word] = tensor.value
            self._torch_kinds[word] = kind_of(tensor.value)
            self._spans[word] = self._lane.find(tensor.value)
            self._note_devices()

    def _note_devices(self) -> None:
        on_gpu = {each.is_cuda for each in self._tensors if each is not None}
        self.waits = False in on_gpu
        self.mixed = len(on_gpu) > 1  # Then it is ordered with the stream, too.

    def _find_cell(self, address: int) -> None:
        if self._output >= 0 and not self._addresses[self._output]:
            raise InvalidArgument("the output of {} is in memory of a GPU".format(self._signature.operator),
                                  "prepare the call with an output of residentd.torch.shared()")
        super()._find_cell(address)


def kind_of(tensor: torch.Tensor) -> Tuple[Any, Any, Any, bool]:
    """What tensors of one call have in common: dtype, shape, strides, and whether they are on a GPU."""
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.is_cuda


def reach_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one."""
    return (sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride())) + 1) * tensor.element_size()


class TorchLane(Lane):
    """A lane that takes torch tensors; attach() opens it.

    client: the residentd.Client.
    own_kernel_us: what a kernel of this process with a synchronization takes beside the daemon, microseconds; None as
        long as this process has used no GPU with this lane.
    """

    _call_class = TorchCall

    def __init__(self, client: Client, device: int, slots: int, data_bytes: int, copy: bool) -> None:
        super().__init__(client, device, slots, data_bytes)
        self.client = client
        self.copy = copy
        self.own_kernel_us: Optional[float] = None
        self._shared = client._operations.memory
        self._shared_changes = self._shared.changes
        self._pool_changes = 0
        self._pool_counter: Optional[ctypes.c_uint64] = None  # Once this lane uses the pool.
        self.generation = 0  # Rises when a span has ended.
        self._spans: List[Span] = []  # Ordered by address, as _lows.
        self._lows: List[int] = []
        # Indices of ended spans, each with the number of the submission before which tasks may use it.
        self._ended: Deque[Tuple[int, int]] = collections.deque()
        self._scope: Optional["Scope"] = None
        self._streams: List[int] = []  # In the order of their words.
        # What was submitted in scopes: the number, and the operator.
        self._sent: Deque[Tuple[int, str]] = collections.deque(maxlen=self.slots)
        self._failed = 0  # Tasks that did not end OK, as of check_failed().
        self._raised = 0  # Of those after them, the tasks whose errors were raised.
        self._operators: Dict[str, "BoundOperator"] = {}
        # Prepared calls of operators by key, the oldest first, and the numbers of those to release.
        self._cache: "collections.OrderedDict[Any, Any]" = collections.OrderedDict()
        self._discarded: Deque[int] = collections.deque()

    # Submissions.

    def submit(self, call: TorchCall, flags: int = 0) -> int:
        """Submits a prepared call, ordered by the scope of this thread, and does not wait; returns its number."""
        scope = self._scope
        if scope is not None:
            return scope.submit(call, flags)
        if call.waits and not call.mixed:
            return self.send(call, flags)
        from .scope import lone_scope  # Here, because it imports this module.

        with lone_scope(self) as scope:
            return scope.submit(call, flags)

    def send(self, call: TorchCall, flags: int) -> int:
        """Submits a prepared call in no order; waits while the lane is full."""
        while True:
            sequence: int = self._library.residentd_lane_submit(self._handle, call._number, call._words_at,
                                                                call._count, flags) if self._handle else 0
            if sequence >= 0 and self._handle:
                return sequence
            self.make_room(sequence)

    def send_all(self, call: TorchCall, words: "np.ndarray[Any, Any]", flags: int) -> List[int]:
        """Submits a task for each row of words; their numbers."""
        numbers: List[int] = []
        left, address = len(words), words.ctypes.data
        while left:
            code = self._submit_some(call._number, address, left, words.shape[1], flags) if self._handle else 0
            if code <= 0:
                self.make_room(code)
                continue
            numbers += range(self.next - code, self.next)
            left -= code
            address += code * words.strides[0]
        return numbers

    def _submit_some(self, number: int, address: int, tasks: int, words: int, flags: int) -> int:
        """Submits tasks; how many, or a code."""
        if lanes.module is not None:
            return int(lanes.module.submit_all(self._handle, number, address, tasks, words, flags))
        code = self._library.residentd_lane_submit(self._handle, number, address, words, flags)
        return min(code, 0) or 1

    def make_room(self, code: int) -> None:
        """After FULL: waits until half of the slots are free. Otherwise raises the error of the code."""
        if not self._handle:
            raise lanes.closed()
        if code != FULL:
            self._raise(code, None)
        code = self._library.residentd_lane_await(self._handle, self.next - self.slots // 2, -1, 0)
        if code:
            self._raise(code, None)

    @property
    def next(self) -> int:
        """The number of the next submission."""
        return int(self._library.residentd_lane_next(self._handle))

    def set_access(self, number: int, word: int, span_bytes: int, mode: int) -> None:
        """Tells the library what a word of a call touches."""
        self._library.residentd_lane_set_access(self._handle, number, word, span_bytes, mode)

    def check_failed(self) -> None:
        """TaskFailed if operators of scopes that have ended did not end OK and no error said so."""
        failed = sum(self._library.residentd_lane_get_failed(self._handle, MAX_STREAMS - 1 - i)
                     for i in range(len(self._streams))) if self._handle else 0
        new = failed - self._failed
        if not new:
            return
        unknown = new - self._raised
        self._failed, self._raised = failed, max(-unknown, 0)
        if unknown > 0:
            from .scope import raise_failed  # Here, because it imports this module.

            raise_failed(self, unknown)

    def _raise(self, code: int, completion: Any) -> None:
        if not code:
            self._raised += 1
        super()._raise(code, completion)

    # Prepared calls of operators.

    def prepare_kept(self, signature: Signature, scalars: Dict[int, Any], tensors: Dict[int, Tensor], vary: Any,
                     elements: int = 0) -> TorchCall:
        """Prepares a call for `_cache`, of which the oldest ones are released when there are too many."""
        if len(self._cache) >= MAX_CALLS:
            self._release_oldest()
        while self._discarded:
            self._release_calls([self._discarded.popleft() for _ in range(len(self._discarded))])
        while True:
            try:
                call = self._prepare(signature, scalars, tensors, vary, 0, elements)
                assert isinstance(call, TorchCall)
                if elements:
                    self.set_access(call._number, call._count - 1, _F32_BYTES, _ELEMENTS)
                return call
            except ResourceExhausted:
                if not self._cache:
                    raise
                self._release_oldest()

    def discard(self, call: TorchCall) -> None:
        """Lets the next prepare_kept() release a call."""
        self._discarded.append(call._number)

    def _release_oldest(self) -> None:
        oldest = [self._cache.popitem(last=False) for _ in range(min(_RELEASED_AT_ONCE, len(self._cache)))]
        for key, _ in oldest:
            key[0].last = None
        self._release_calls([entry.call._number for _, entry in oldest if entry.call is not None])

    def _release_calls(self, numbers: List[int]) -> None:
        """Releases calls once no submission names them."""
        sequence = self.next - 1
        if sequence >= 0:
            code = self._library.residentd_lane_await(self._handle, sequence, -1, 0)
            if code:
                self._raise(code, None)
        if numbers:
            self._release(calls=numbers)

    # Memory.

    def new(self, shape: Tuple[int, ...], dtype: DType, gpu: bool) -> torch.Tensor:
        """A new tensor that is not initialised: of the pool, or in memory that the client shares with the daemon.
        ResourceExhausted: that memory is full."""
        if gpu:
            if self._scope is not None and self._scope.in_pool and empty_cuda is not None:
                return empty_cuda(shape, dense_strides(shape), TORCH[dtype.name])  # type: ignore[no-any-return]
            with memory.pool(), torch._C._DisableTorchDispatch():
                return torch.empty(shape, dtype=TORCH[dtype.name], device="cuda")
        size = math.prod(shape) * dtype.size
        if not size:
            return torch.empty(shape, dtype=TORCH[dtype.name])
        device = self._info.device
        block = self._shared._take(size, device) or self.client._drive(self._shared.allocate(size, device))
        if block is None:
            raise ResourceExhausted("the client has no shared memory for {} bytes".format(size),
                                    "connect with a larger arena_mib, with shared_memory=\"auto\", to a daemon on this "
                                    "machine; or drop tensors that are not needed")
        return from_array(block.array().view(dtype.storage).reshape(shape), dtype)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense copy in memory of the daemon, in the order of this thread's scope."""
        copy = self.new(tuple(tensor.shape), dtype_of(tensor.dtype), tensor.is_cuda)
        if tensor.is_cuda and self._scope is not None:
            self._scope.fence()
        with torch._C._DisableTorchDispatch():
            return copy.copy_(tensor.detach())

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether find() has a span of the tensor, or will find one of the CPU. REQUIRES: as find()."""
        address = tensor.data_ptr() if tensor.numel() else 0
        at = bisect.bisect_right(self._lows, address) - 1
        if at >= 0 and address < self._spans[at].high:
            return True
        if not address:
            return True
        if not tensor.is_cuda:
            return tensor.device.type == "cpu" and self._shared.locate_address(address) is not None
        return not self.copy or memory.is_in_pool(address)

    def memory_changed(self) -> bool:
        """Whether memory has ended since refresh()."""
        shared, counter = self._shared, self._pool_counter
        return shared._forgotten != self._shared_changes or bool(shared._ended) or (
            counter is not None and counter.value != self._pool_changes)

    def refresh(self) -> None:
        """Forgets memory that has ended, and releases what no task uses any more."""
        self._shared_changes = self._shared.changes
        if self._pool_counter is not None:
            self._pool_changes = self._pool_counter.value
            memory.free_ended()
        sequence = self.next
        for span in list(self._spans):
            if span.segment:
                alive = memory.is_imported(self.client, span.segment)
            else:
                found = self._shared.locate_address(span.low)
                alive = found is not None and found[0].buffer_id == span.buffer
            if not alive:
                at = self._lows.index(span.low)
                del self._lows[at], self._spans[at]
                self._bound.pop(span.buffer, None)
                self._ended.append((sequence, span.index))
                span.low = span.high = 0
                self.generation += 1
        if self._ended:
            completed = int(self._library.residentd_lane_completed(self._handle))
            indices = []
            while self._ended and self._ended[0][0] <= completed:
                indices.append(self._ended.popleft()[1])
            if indices:
                self._release(buffers=indices)

    def find(self, tensor: torch.Tensor) -> Span:
        """The span of a tensor. InvalidArgument if it is not in memory of the daemon. REQUIRES: refresh() since
        memory has ended."""
        address = tensor.data_ptr() if tensor.numel() else 0
        at = bisect.bisect_right(self._lows, address) - 1
        if at >= 0 and address < self._spans[at].high:
            return self._spans[at]
        if not address:
            raise InvalidArgument("a tensor of shape {} has no elements".format(list(tensor.shape)),
                                  "leave the call out")
        if tensor.is_cuda:
            self.use_gpu()
            low, size, segment, buffer = memory.import_segment(self.client, self._info.device, tensor)
        else:
            found = self._shared.locate_address(address) if tensor.device.type == "cpu" else None
            if found is None:
                raise InvalidArgument("a tensor of {} is not in memory of the daemon".format(tensor.device),
                                      "make it with residentd.torch.shared(), or copy it to such a tensor")
            low, size, segment, buffer = found[0].address, found[0].size, 0, found[0].buffer_id
        span = Span(low, low + size, buffer, self._bind(buffer), segment)
        at = bisect.bisect_left(self._lows, low)
        self._lows.insert(at, low)
        self._spans.insert(at, span)
        return span

    def _tensor(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, torch.Tensor):
            raise WrongType("'{}' is a {}, not a torch tensor".format(name, type(value).__name__),
                            "pass a tensor of residentd.torch.shared() or of the pool")
        self.refresh()
        if value.layout is not torch.strided or value.is_neg():
            raise InvalidArgument("'{}' has the layout {}{}".format(
                name, value.layout, ", and its negation is pending" if value.is_neg() else ""),
                "pass a strided tensor; resolve_neg() makes one")
        dtype = dtype_of(value.dtype)
        try:
            span = self.find(value)
        except InvalidArgument as error:
            raise InvalidArgument("'{}': {}".format(name, error.message), error.fix) from None
        address = value.data_ptr()
        made = Tensor(span.buffer, address - span.low, dtype, tuple(value.shape), value.stride(),
                      0 if span.segment else address)
        made.value = value
        return made

    # The GPU of this process.

    def use_gpu(self) -> None:
        """When a tensor of a GPU is used for the first time: measures what its kernels cost."""
        if self._pool_counter is not None:
            return
        self._pool_counter = memory.counter()
        self._pool_changes = self._pool_counter.value
        x = torch.zeros(1, device="cuda")
        times = []
        for _ in range(9):
            start = time.perf_counter()
            x.zero_()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        self.own_kernel_us = sorted(times)[len(times) // 2]
        if self.own_kernel_us > _SLOW_OWN_KERNEL_US:
            warnings.warn(
                "a kernel of this process and a synchronization take {:.0f} us beside residentd, because the GPU is "
                "shared in time slices. Fix: run both under MPS, the daemon with --sms_free, or use the GPU from "
                "this process only through residentd (docs/pytorch.md)".format(self.own_kernel_us), RuntimeWarning,
                stacklevel=3)

    def close(self) -> None:
        """Ends the lane: what was submitted and has not begun is dropped."""
        if getattr(_local, "lane", None) is self:
            _local.lane = None
        super().close()


def attach(rd: Client, device: Optional[int] = None, *, slots: int = 4096, data_bytes: int = 4 << 20,
           copy: bool = False) -> TorchLane:
    """Opens a lane, which becomes that of this thread: operators, scopes and shared() use it.

    It does not use CUDA unless this process has done so before. A worker process that does not use CUDA itself needs
    no context for it: spawn it, connect and attach there. A forked process cannot use its parent's client.

    device: index of the daemon's device, as in Client.status(). None: the GPU that torch uses in this process, found by
        its UUID; the first one if this process has not initialised CUDA.
    slots: submissions that can be unanswered, a power of two from 64 to 65536.
    data_bytes: for foreach() and plan(): 8 bytes for each tensor of a list.
    copy: whether operators copy tensors of a GPU that are not in the pool into it; otherwise they are refused.

    FailedPrecondition: in a forked process; the daemon has no lanes, or no device with this process's GPU.
    """
    if not isinstance(rd, Client):
        raise WrongType("{!r} is not a client".format(type(rd).__name__), "pass what residentd.connect() returned")
    check_process(rd._connection._process)
    own = memory.find_device(rd) if device is None and torch.cuda.is_initialized() else None
    lane = TorchLane(rd, own or device or 0, slots, data_bytes, copy)
    _local.lane = lane
    if own is not None:
        lane.use_gpu()
    return lane


def current() -> TorchLane:
    """The lane of this thread. FailedPrecondition if it has none, or belongs to the process from which this one was
    forked."""
    lane: Optional[TorchLane] = getattr(_local, "lane", None)
    if lane is None:
        raise FailedPrecondition("this thread has no lane", "call residentd.torch.attach(rd) in it")
    check_process(lane.client._connection._process)
    return lane


def shared(shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A new tensor of the CPU, of zeros, in memory that operators read and write in place: it, and views of it. Uses
    the client of this thread's lane. FailedPrecondition if it has none, or the daemon accepts no shared memory."""
    lane = current()
    kind = dtype_of(dtype)
    return from_array(lane.client.shared(shape, kind, device=lane._info.device), kind)
