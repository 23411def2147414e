"""Runs of task graphs: from values by name to a request, and from the responses to arrays.

A tensor that a run gives is sent inline, or is bound to a buffer. A binding names a whole buffer and no
part of it. So arrays are sent inline, and not through the arena of shared memory; an array of
Client.shared that is dense and begins where its memory begins is a whole buffer, and is bound in place.

Thread safety: a TensorMemory and what a run returns do not change after they were made.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import dtypes
from .buffers import BufferView, bytes_of, check_device, dense_strides
from .calls import Session, Steps
from .descriptors import enum_names, message
from .dtypes import DType
from .errors import FailedPrecondition, InvalidArgument
from .graph import KINDS, Graph
from .operations import Operations
from .shared_memory import Region
from .signature import Shape, shape_text

_ENDS = enum_names("resident.v1.GraphResult.End", "END_")
_NOT_BOUND = {KINDS["activation"]: "an activation", KINDS["stream"]: "a stream"}
# The columns of GraphResult.trace.
_TRACE = [("node", np.uint32), ("step", np.uint64), ("chunk", np.uint32), ("worker", np.uint32),
          ("version", np.uint32), ("wait_ns", np.uint64), ("begin_ns", np.uint64), ("end_ns", np.uint64)]


class TensorMemory:
    """The memory of one tensor of a graph: where its elements are."""

    def __init__(self, tensor: Any, bounds: Mapping[str, int]) -> None:
        """bounds: the largest value of each scalar."""
        self.name = str(tensor.name)
        self.kind = int(tensor.kind)
        self.alias = bool(tensor.alias_of)
        self.dtype: Optional[DType] = dtypes.BY_NUMBER.get(tensor.dtype)
        # A run may give fewer elements in a dimension that is a scalar.
        self.dynamic = tuple(bool(dim.scalar) for dim in tensor.shape)
        self.shape: Shape = tuple(bounds.get(dim.scalar, 1) if dim.scalar else int(dim.size)
                                  for dim in tensor.shape)
        self.strides: Shape = tuple(tensor.strides) or dense_strides(self.shape)
        self.offset = int(tensor.offset)  # Bytes.
        size = self.dtype.size if self.dtype is not None else 1
        self.dense = self.offset == 0 and self.strides == dense_strides(self.shape)
        self.nbytes = self.offset + size * (
            1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s > 0))

    def array(self, value: Any) -> "np.ndarray[Any, Any]":
        """A value as an array of the tensor's dtype; the values of Python's numbers and lists are
        converted. InvalidArgument if it has another dtype or does not fit the shape."""
        if self.dtype is None:
            raise self.error("its dtype is unknown", "correct the graph")
        array, found = dtypes.to_array(value)
        if found is None and not isinstance(value, (np.ndarray, np.generic)):
            try:
                array = dtypes.from_numbers(value, self.dtype)
            except InvalidArgument as error:
                raise self.error(error.message, error.fix) from None
        elif found is not self.dtype:
            raise self.error("it is {}, and must be {}".format(array.dtype if found is None else found.name,
                                                              self.dtype.name),
                             "convert it, for instance with astype()")
        if len(array.shape) != len(self.shape) or any(
                n != bound and not (dynamic and 1 <= n < bound)
                for n, bound, dynamic in zip(array.shape, self.shape, self.dynamic)):
            raise self.error("it has the shape {}, and must have {}{}".format(
                shape_text(array.shape), shape_text(self.shape),
                ", or less where a scalar is the dimension" if any(self.dynamic) else ""), "reshape it")
        return array

    def data(self, array: "np.ndarray[Any, Any]") -> bytes:
        """All bytes of the memory with these elements, for an array that array() returned."""
        assert self.dtype is not None
        if self.dense and array.shape == self.shape:
            return bytes(bytes_of(np.ascontiguousarray(array)))
        memory = np.zeros(self.nbytes, np.uint8)
        elements = np.ndarray(self.shape, self.dtype.storage, memory.data, self.offset,
                              tuple(s * self.dtype.size for s in self.strides))
        elements[tuple(slice(n) for n in array.shape)] = array.view(np.ndarray)
        return memory.tobytes()

    def error(self, what: str, fix: str) -> InvalidArgument:
        return InvalidArgument("tensor '{}': {}".format(self.name, what), fix, details={"tensor": self.name})


class Layout:
    """What a run must know of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.name = graph.name
        self.scalars = {str(each.name) for each in graph.message.scalars}
        bounds = {str(each.name): max(int(each.most), 1) if math.isfinite(each.most) else 1
                  for each in graph.message.scalars}
        self.tensors = {str(each.name): TensorMemory(each, bounds) for each in graph.message.tensors}
        self.streams = [name for name, each in self.tensors.items() if each.kind == KINDS["stream"]]


class GraphVersion(NamedTuple):
    """A version of an operator, and how many nodes of a step it executed."""

    operator: str
    version: int
    tasks: int


class GraphRecord:
    """What the streams of a graph had after a step: record["logits"] is an array.

    step: from 0 on.
    values: the record of each stream, by name.
    versions: the versions that executed the step, by operator and version; several of one operator if its
        nodes were executed by several. Steps with equal versions share one tuple.
    """

    def __init__(self, step: Any, versions: Tuple[GraphVersion, ...] = ()) -> None:
        self.step = int(step.step)
        self.versions = versions
        self.values: Dict[str, Any] = {str(each.tensor): _array(each) for each in step.records}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        return "GraphRecord(step={}, values={!r})".format(self.step, self.values)


class GraphResult:
    """The result of a run.

    outputs: by name, after the last step: arrays, and what the run was given for outputs.
    records: those of each stream, by name: an array whose first dimension counts the steps, or a list of
        arrays if their shapes differ. Empty if the records were iterated over.
    steps, end: how many steps were executed, and why no more: "steps" (all), "stop" (a stop value) or
        "scalar_range" (a scalar would have left its range).
    versions: how many nodes each version executed, counted in each step: {"add": {1: 3}}.
    device, device_ns: the device, and the workers' time on it in nanoseconds.
    next_scalars: of a run in a graph session: the scalars with which the next run begins.
    trace: None, or what the workers did, as a structured array (GraphTraceEvent in graphs.proto).
    dropped_trace_events: events that are missing in it.
    """

    def __init__(self, result: Any, outputs: Dict[str, Any], records: Dict[str, Any],
                 trace: Optional["np.ndarray[Any, Any]"]) -> None:
        self.outputs = outputs
        self.records = records
        self.steps = int(result.steps)
        self.end = _ENDS.get(result.end, "UNKNOWN").lower()
        self.versions: Dict[str, Dict[int, int]] = {}
        for each in result.versions:
            self.versions.setdefault(str(each.operator), {})[int(each.version)] = int(each.tasks)
        self.device = int(result.device)
        self.device_ns = int(result.device_ns)
        self.next_scalars: Dict[str, float] = dict(result.next_scalars)
        self.trace = trace
        self.dropped_trace_events = int(result.dropped_trace_events)

    def __repr__(self) -> str:
        return "GraphResult(outputs={!r}, records={!r}, steps={}, end={!r})".format(
            self.outputs, self.records, self.steps, self.end)


class RunOptions(NamedTuple):
    """The options of a run, see Graphs.run."""

    max_steps: int = 0
    timeout: Optional[float] = None
    device: Optional[int] = None
    trace: bool = False
    repeat_interrupted: bool = False


class PreparedRun:
    """A request, and how its responses are read."""

    def __init__(self, layout: Layout, request: Any, timeout: Optional[float]) -> None:
        self.request = request
        self.timeout = timeout
        self.node = False  # Whether only the node of the session has the graph.
        # What the run was given for outputs: arrays that are copied to, and what is bound.
        self.copied: Dict[str, "np.ndarray[Any, Any]"] = {}
        self.bound: Dict[str, Any] = {}
        # Memory that tasks write, which must not be allocated from again while they may run; and arrays
        # that must exist until then.
        self.regions: List[Region] = []
        self.keep: List[Any] = []
        self._layout = layout
        self._trace: List[Any] = []
        # Of the last step: a step has versions only where they change.
        self._versions: Tuple[GraphVersion, ...] = ()

    def receive(self, response: Any) -> Any:
        """Takes in a response. Returns its record, the resident.v1.GraphResult that is the last one, or
        None."""
        event = response.WhichOneof("event")
        if event == "step":
            if response.step.versions:
                self._versions = tuple(GraphVersion(str(each.operator), int(each.version), int(each.tasks))
                                       for each in response.step.versions)
            return GraphRecord(response.step, self._versions)
        if event == "result":
            return response.result
        if event == "trace":
            self._trace.append(np.array([tuple(getattr(each, name) for name, _ in _TRACE)
                                         for each in response.trace.events], _TRACE))
        return None

    def result(self, result: Any, records: Optional[Sequence[GraphRecord]] = None) -> GraphResult:
        """The GraphResult of a resident.v1.GraphResult."""
        outputs: Dict[str, Any] = {}
        returned = {str(each.tensor): _array(each) for each in result.outputs}
        for name, memory in self._layout.tensors.items():
            if name in self.bound:
                outputs[name] = self.bound[name]
            elif name in self.copied:
                target = self.copied[name]
                part = target[tuple(slice(n) for n in returned[name].shape)] if target.ndim else target
                np.copyto(part.view(np.ndarray), returned[name].view(np.ndarray))
                outputs[name] = target
            elif name in returned:
                outputs[name] = returned[name]
        stacked: Dict[str, Any] = {}
        if records is not None:
            for name in self._layout.streams:
                stacked[name] = self._stack(name, [record.values[name] for record in records])
        trace = None
        if self.request.trace:
            trace = np.concatenate(self._trace) if self._trace else np.array([], _TRACE)
        return GraphResult(result, outputs, stacked, trace)

    def _stack(self, name: str, arrays: List[Any]) -> Any:
        if not arrays:
            memory = self._layout.tensors[name]
            assert memory.dtype is not None
            return dtypes.from_storage(np.empty((0,) + memory.shape[1:], memory.dtype.storage), memory.dtype)
        return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays


def _array(value: Any) -> "np.ndarray[Any, Any]":
    """The array of a resident.v1.GraphValue."""
    dtype = dtypes.BY_NUMBER[value.dtype]
    array = np.frombuffer(value.data, dtype.storage).reshape(tuple(value.shape)).copy()
    return dtypes.from_storage(array, dtype)


# The steps that both clients use.


def prepare(operations: Operations, layout: Layout, request: Any, values: Mapping[str, Any],
            options: RunOptions) -> Steps[PreparedRun]:
    """Fills in the request of a run: a resident.v1.RunGraphRequest with its source."""
    run = PreparedRun(layout, request, options.timeout)
    request.max_steps = _max_steps(options.max_steps)
    request.trace = bool(options.trace)
    request.repeat_interrupted = bool(options.repeat_interrupted)
    yield from bind(operations, run, values, options.device)
    return run


def bind(operations: Operations, run: PreparedRun, values: Mapping[str, Any],
         device: Optional[int]) -> Steps[None]:
    """Adds values by name to the request of a run, or to that which opens a graph session. A name that a
    scalar and a tensor have is the scalar's."""
    request, layout = run.request, run._layout
    yield from operations.collect_garbage()
    yield Session(optional=True)
    device = check_device(device)
    if device is not None:
        request.device = device
    for name, value in values.items():
        memory = layout.tensors.get(name)
        if name in layout.scalars:
            request.scalars[name] = _scalar(name, value)
        elif memory is None:
            raise InvalidArgument("graph '{}' has no tensor or scalar '{}'".format(layout.name, name),
                                  "use its names: {}".format(_names(layout)), details={"tensor": name})
        elif memory.kind in _NOT_BOUND or memory.alias:
            raise memory.error("it is {}, which runs do not give".format(_NOT_BOUND.get(memory.kind, "an alias")),
                               "give inputs, weights, constants, states and outputs")
        elif isinstance(value, BufferView):
            yield from value._memory.find_again()
            request.bindings.add(tensor=name, buffer_id=_whole_buffer(memory, value))
            run.keep.append(value)
            if memory.kind == KINDS["output"]:
                run.bound[name] = value
        else:
            _bind_array(operations, run, memory, value, device)


def _bind_array(operations: Operations, run: PreparedRun, memory: TensorMemory, value: Any,
                device: Optional[int]) -> None:
    array = memory.array(value)
    output = memory.kind == KINDS["output"]
    if output and not (isinstance(value, np.ndarray) and array.flags.writeable and
                       array.shape == memory.shape):
        raise memory.error("it is an output, and {} cannot be written".format(
            "this array" if isinstance(value, np.ndarray) else type(value).__name__),
            "give a NumPy array of its shape that is writeable, or a buffer, or nothing")
    found = operations.memory.locate(array)
    if (found is not None and found[1] == 0 and memory.dense and array.shape == memory.shape and
            array.flags.c_contiguous and device in (None, found[0].device)):
        run.request.bindings.add(tensor=memory.name, buffer_id=found[0].buffer_id)
        run.keep.append(array)
        if output or memory.kind == KINDS["state"]:
            run.regions.append(found[0])
        if output:
            run.bound[memory.name] = array
    elif output:
        run.copied[memory.name] = array
    else:
        run.request.bindings.add(tensor=memory.name, data=memory.data(array))


def _whole_buffer(memory: TensorMemory, view: BufferView) -> int:
    """The id of a buffer that can be the memory of a tensor."""
    if memory.dtype is not None and view.dtype != memory.dtype.name:
        raise memory.error("the buffer is {}, and must be {}".format(view.dtype, memory.dtype.name),
                           "use a buffer of this dtype")
    if view.offset != 0 or not view.dense:
        raise memory.error("it is given a part of a buffer", "give a buffer from its first element on")
    if memory.dense and view.shape != memory.shape:
        raise memory.error("the buffer has the shape {}, and must have {}".format(
            shape_text(view.shape), shape_text(memory.shape)), "reshape it")
    if view.nbytes < memory.nbytes:
        raise memory.error("the buffer has {} bytes, and must have {}".format(view.nbytes, memory.nbytes),
                           "use a larger buffer")
    return view.id


def _scalar(name: str, value: Any) -> float:
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
    if not isinstance(number, (int, float)):
        raise InvalidArgument("scalar '{}' is {!r}".format(name, value), "give a number",
                              details={"scalar": name})
    return float(number)


def _max_steps(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InvalidArgument("max_steps={!r} is not a number of steps".format(value),
                              "use an integer from 1 on; 0: that of the graph")
    return int(value)


def _names(layout: Layout) -> str:
    return ", ".join([name for name, each in layout.tensors.items()
                      if each.kind not in _NOT_BOUND and not each.alias] + sorted(layout.scalars))


def merged(values: Optional[Mapping[str, Any]], named: Mapping[str, Any]) -> Dict[str, Any]:
    """The values of a call, of which some are in a mapping and some are keyword arguments."""
    both = sorted(set(values or ()) & set(named))
    if both:
        raise InvalidArgument("'{}' is given twice".format(both[0]), "give it in the dict or by keyword")
    return {**(values or {}), **named}


def not_ended() -> FailedPrecondition:
    """The error of a result that is not there yet."""
    return FailedPrecondition("the run has not ended", "iterate over its records to the end")
