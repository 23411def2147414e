"""foreach() and plan(): one operator on lists of tensors.

Tasks whose tensors have the same dtypes, shapes and strides are one group, which is submitted as ranges: one
submission for up to 4,096 tasks. Tasks of dense float32 tensors that differ only in their length share prepared calls,
too, and are submitted one by one; so are tasks that a range cannot have.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import dtypes, results
from .. import lane as lanes
from ..errors import Error, FailedPrecondition, InvalidArgument, WrongType
from ..lane import MAX_WORDS, Column, Tensor
from ..signature import INPUT, OUTPUT
from .lane import AFTER_ALL, MAX_CALLS, ORDERED, QUIET, TorchCall, TorchLane, current, kind_of, reach_bytes
from .operators import bound_operator
from .scope import Scope, lone_scope

_MAX_RANGE = 4096  # Larger ranges are read by another thread of the daemon, which takes longer to begin.
_PIECES = (16384, 8192, 4096, 2048, 1024, 0)  # Elements of the pieces of vectors, the first that is possible.
_MIN_RANGE = 8  # For fewer tasks a range costs more than it saves.
_REQUIRES_GRAD = operator.attrgetter("requires_grad")


class _Group:
    """Tasks of one prepared call."""

    def __init__(self, call: TorchCall, tasks: "np.ndarray[Any, Any]", columns: Dict[int, "np.ndarray[Any, Any]"],
                 scalars: Dict[str, int], elements: int = 0) -> None:
        """tasks: their indices. columns: by word, for each task the bits. scalars: the word of each one. elements: of
        each task, if the call's last word is their number and it is not in the columns."""
        self.call = call
        self.tasks = tasks
        self.columns = columns
        self.scalars = scalars
        self.count = len(tasks)
        # The number of elements is the same for all tasks of a range.
        self.as_range = call.joins and self.count >= _MIN_RANGE and (not call.has_elements or elements > 0)
        self._structures = (Column * MAX_WORDS)()
        if elements:
            self._structures[call._count - 1].base = elements
        for word, values in columns.items():
            self._structures[word].values = values.ctypes.data
        self._words = np.zeros((self.count, call._count), np.int64)

    def set_scalars(self, values: Dict[str, Any]) -> None:
        """The values of scalars by name: one for all tasks, or an array of the bits of each one."""
        for name, word in self.scalars.items():
            value = values[name]
            if isinstance(value, np.ndarray):
                self.columns[word] = np.ascontiguousarray(value[self.tasks])
                self._structures[word].values = self.columns[word].ctypes.data
            else:
                self.columns.pop(word, None)
                self._structures[word].values, self._structures[word].base = None, value

    def submit(self, lane: TorchLane, flags: int, first: int) -> Iterator[List[int]]:
        """Submits the tasks; the numbers of the submissions, so many at a time that their completions can be read.
        first: more flags of the first submission."""
        step = lane.slots // 2
        if self.as_range:
            starts = range(0, self.count, _MAX_RANGE)
            for at in range(0, len(starts), step):
                yield [self._submit_range(lane, start, flags if start else flags | first)
                       for start in starts[at:at + step]]
            return
        for word in range(self.call._count):
            self._words[:, word] = self.columns[word] if word in self.columns else np.uint64(
                self._structures[word].base).astype(np.int64)
        yield lane.send_all(self.call, self._words[:1], flags | first)
        for at in range(1, self.count, step):
            yield lane.send_all(self.call, self._words[at:at + step], flags)

    def _submit_range(self, lane: TorchLane, at: int, flags: int) -> int:
        columns = self._structures
        count = min(self.count - at, _MAX_RANGE)
        if self.count > _MAX_RANGE:
            columns = (Column * MAX_WORDS)()
            for word in range(self.call._count):
                columns[word].base = self._structures[word].base
                if word in self.columns:
                    columns[word].values = self.columns[word].ctypes.data + 8 * at
        while True:
            sequence: int = lane._library.residentd_lane_submit_range(
                lane._handle, self.call._number, count, ctypes.addressof(columns), self.call._count,
                flags) if lane._handle else 0
            if sequence >= 0 and lane._handle:
                return sequence
            lane.make_room(sequence)


class _Tasks:
    """The tasks of an operator on lists."""

    def __init__(self, lane: TorchLane, name: str, inputs: Sequence[Any], out: Any, options: Dict[str, Any],
                 keep: bool) -> None:
        """keep: whether the prepared calls are those of the lane's cache; otherwise they are released by release()."""
        self.lane = lane
        self.bound = bound = bound_operator(lane, name)
        self.operator = name
        self.keep = keep
        signature = bound.signature
        # Scalars that vary are given for each run.
        self.scalars = {signature.parameters[i].keyword: i for i in bound.varying}
        self.values = {key: options.pop(key) for key in list(options) if key in self.scalars}
        for each in inputs:
            if each is not None and not isinstance(each, (list, tuple, torch.Tensor)):
                raise WrongType("foreach of {} takes lists of tensors, not a {}".format(name, type(each).__name__),
                                "pass a list, or a tensor for all tasks", operator=name)
        lengths = {len(each) for each in inputs if isinstance(each, (list, tuple))}
        if len(lengths) != 1:
            what = "the lists have {} tensors".format(sorted(lengths)) if lengths else "there is no list"
            raise InvalidArgument(what,
                                  "pass lists of the same length, and at least one", operator=name)
        self.count = lengths.pop()
        self.places, _, _, self.options = bound.arrange(
            [each[0] if isinstance(each, (list, tuple)) and each else each for each in inputs], options)
        # Copies: the caller may change the lists while the tensors are in use.
        self.lists: List[Any] = [list(each) if isinstance(each, (list, tuple)) else each for each in inputs] + (
            [None] * (len(bound.inputs) - len(inputs)))
        self.outputs = self._outputs(out)
        if lane.memory_changed():
            lane.refresh()
        self.groups: List[_Group] = []
        self.addresses: Dict[int, Any] = {}  # By parameter.
        if self.count:
            for tasks in self._group():
                self._add_group(tasks)

    def _outputs(self, out: Any) -> Dict[int, List[Any]]:
        """The list of each output; without `out` they are empty, and filled by _add_group()."""
        bound = self.bound
        own = [i for i in bound.outputs if bound.signature.parameters[i].kind == OUTPUT]
        if out is None:
            return {i: [None] * self.count for i in own}
        lists = [out] if len(own) == 1 and not isinstance(out, dict) else [
            out[bound.signature.parameters[i].keyword] for i in own] if isinstance(out, dict) else list(out)
        if len(lists) != len(own) or any(
                not isinstance(each, (list, tuple)) or len(each) != self.count for each in lists):
            raise InvalidArgument("out= of {} has not a list of {} tensors for each output".format(
                self.operator, self.count), "pass a list, or for several outputs a dict of lists by name",
                operator=self.operator)
        return {i: list(each) for i, each in zip(own, lists)}

    def _group(self) -> List[Any]:
        """The indices of the tasks of each kind. Reads all addresses."""
        given = {i: each for i, each in list(zip(self.bound.inputs, self.lists)) + list(self.outputs.items())
                 if isinstance(each, (list, tuple)) and each[0] is not None}
        grad = torch.is_grad_enabled()
        kinds, lengths = [], []
        first_is_cuda = next(iter(given.values()))[0].is_cuda
        for i, each in given.items():
            kind, length = self._read(i, each)
            kinds.append(kind)
            lengths.append(length)
            length *= each[0].is_cuda == first_is_cuda
            if grad and i in self.bound.inputs and any(map(_REQUIRES_GRAD, each)):
                raise self.bound.needs_grad()
        for each in self.lists:
            if isinstance(each, torch.Tensor) and grad and each.requires_grad:
                raise self.bound.needs_grad()
        if not any(kind.any() for kind in kinds):
            return [np.arange(self.count)]
        if self.bound.elementwise and len(given) >= len(self.bound.inputs) and all(
                isinstance(each, (list, tuple)) for each in self.lists) and lengths[0].all() and all(
                    (each == lengths[0]).all() for each in lengths[1:]) and self._add_vectors(lengths[0]):
            return []
        key = kinds[0]
        for kind in kinds[1:]:
            key = np.unique(key, return_inverse=True)[1] * self.count + kind
        order = np.argsort(key, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)

    def _read(self, parameter: int, tensors: Sequence[Any]) -> Tuple[Any, Any]:
        """Reads the addresses of a list; for each tensor the first one of the same kind, and the length if it is a
        dense vector of float32, otherwise 0."""
        try:
            pending = any(map(torch.Tensor.is_neg, tensors))
        except TypeError:
            wrong = next(each for each in tensors if not isinstance(each, torch.Tensor))
            raise WrongType("a list of {} has a {}".format(self.operator, type(wrong).__name__), "pass tensors",
                            operator=self.operator) from None
        if pending:
            raise InvalidArgument("the negation of a tensor in a list of {} is pending".format(self.operator),
                                  "pass resolve_neg() of it", operator=self.operator)
        addresses = self.addresses[parameter] = np.empty(self.count, np.int64)
        kinds, lengths = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if lanes.module is not None and api is not None:
            lanes.module.addresses(api, tensors, addresses.ctypes.data, kinds.ctypes.data, lengths.ctypes.data)
            return kinds, lengths
        addresses[:] = [each.data_ptr() for each in tensors]
        found: Dict[Any, int] = {}
        kinds[:] = [found.setdefault(kind_of(each), i) for i, each in enumerate(tensors)]
        lengths[:] = [each.numel() if each.dim() == 1 and each.dtype is torch.float32 and each.is_contiguous() and
                      each.is_cuda == tensors[0].is_cuda else 0 for each in tensors]
        return kinds, lengths

    def _add_group(self, tasks: "np.ndarray[Any, Any]") -> None:
        """Makes the outputs of a group, and its columns."""
        lane, bound, signature = self.lane, self.bound, self.bound.signature
        if self.keep and len(self.groups) >= MAX_CALLS // 2:  # The cache must not release their calls before.
            self.run({})
            self.groups = []
        task = int(tasks[0])
        given = [each[task] if isinstance(each, (list, tuple)) else each for each in self.lists]
        places = list(bound.inputs)
        for i, each in self.outputs.items():
            if each[task] is not None:
                places.append(i)
                given.append(each[task])
        fixed, new = bound.infer(places, given, dict(self.options))
        gpu = any(each is not None and each.is_cuda for each in given)
        for i, dtype, shape in new:
            block = lane.new((len(tasks), *shape), dtype, gpu)
            with torch._C._DisableTorchDispatch():
                made = block.unbind(0)
            outputs = self.outputs[i]
            for at, tensor in zip(tasks.tolist(), made):
                outputs[at] = tensor
            self.addresses.setdefault(i, np.zeros(self.count, np.int64))[tasks] = block.data_ptr() + (
                block.stride(0) * block.element_size() * np.arange(len(tasks)))
            places.append(i)
            given.append(made[0])
        if all(each is not None and 0 in each.shape for i, each in zip(places, given)
               if signature.parameters[i].kind != INPUT):
            return
        found: Dict[int, Any] = {}
        for i in places:
            each = self.lists[bound.inputs.index(i)] if i in bound.inputs else self.outputs[i]
            name = signature.parameters[i].name
            if isinstance(each, torch.Tensor):
                place = self._places(name, [each], np.array([each.data_ptr()]), [0], reach_bytes(each))
                found[i] = place.repeat(len(tasks))
            elif each is not None:
                found[i] = self._places(name, each, self.addresses[i][tasks], tasks, reach_bytes(each[task]))
        call = self._call(places, given, fixed, 0)
        columns = {call.word_of(i): each for i, each in found.items()}
        scalars = {name: call.word_of(i) for name, i in self.scalars.items()}
        self.groups.append(_Group(call, tasks, columns, scalars))

    def _add_vectors(self, lengths: "np.ndarray[Any, Any]") -> bool:
        """Adds tasks of dense float32 vectors of any lengths to one prepared call, in pieces that the daemon does not
        divide. False: the operator has no such call."""
        lane, bound, signature = self.lane, self.bound, self.bound.signature
        gpu = self.lists[0][0].is_cuda
        for i, outputs in self.outputs.items():
            if outputs[0] is None:
                block = lane.new((int(lengths.sum()),), dtypes.BY_NAME["f32"], gpu)
                with torch._C._DisableTorchDispatch():
                    outputs[:] = block.split_with_sizes(lengths.tolist())
                self.addresses[i] = block.data_ptr() + 4 * (np.cumsum(lengths) - lengths)
        places = bound.inputs + list(self.outputs)
        given = [each[0] for each in [*self.lists, *self.outputs.values()]]
        fixed, _ = bound.infer(places, given, dict(self.options))
        pieces = [bound.piece] if bound.piece is not None else _PIECES
        call = None
        for bound.piece in pieces:
            try:
                call = self._call(places, given, fixed, bound.piece) if bound.piece else None
                break
            except InvalidArgument:  # It divides tasks of so many elements, or has no compact form.
                bound.piece = 0
        if call is None:
            return False
        words = {call.word_of(i): self._places(signature.parameters[i].name, each, self.addresses[i],
                                               range(self.count), 4 * lengths)
                 for i, each in zip(places, [*self.lists, *self.outputs.values()])}
        scalars = {name: call.word_of(i) for name, i in self.scalars.items()}
        full, rest = np.divmod(lengths, bound.piece)
        tasks = np.repeat(np.arange(self.count), full)
        if len(tasks):
            offsets = 4 * bound.piece * (np.arange(len(tasks)) - np.repeat(np.cumsum(full) - full, full))
            columns = {word: each[tasks] + offsets for word, each in words.items()}
            self.groups.append(_Group(call, tasks, columns, scalars, bound.piece))
        tasks = np.flatnonzero(rest)
        if len(tasks):
            columns = {word: (each + 4 * bound.piece * full)[tasks] for word, each in words.items()}
            columns[call._count - 1] = rest[tasks]
            self.groups.append(_Group(call, tasks, columns, scalars))
        return True

    def _call(self, places: Sequence[int], given: Sequence[Any], fixed: Dict[int, Any], elements: int) -> TorchCall:
        lane, bound, signature = self.lane, self.bound, self.bound.signature
        kinds = elements or tuple(None if each is None else kind_of(each) for each in given)
        key = (bound, "list", kinds, given[0].is_cuda, tuple(places), self.options)
        if self.keep and key in lane._cache:
            lane._cache.move_to_end(key)
            return lane._cache[key].call  # type: ignore[no-any-return]
        tensors = {i: lane._tensor(signature.parameters[i].name, each) for i, each in zip(places, given)
                   if each is not None}
        if elements:
            # Any memory of so many elements: only the shape counts.
            span = lane.find(given[0])
            f32 = dtypes.BY_NAME["f32"]
            for i, tensor in tensors.items():
                tensors[i] = Tensor(span.buffer, 0, f32, (elements,), (1,))
                tensors[i].value = tensor.value
        scalars = dict(fixed)
        scalars.update((i, None) for i, each in zip(places, given) if each is None)
        for name, i in self.scalars.items():
            value = self.values.get(name)
            scalars[i] = value if isinstance(value, (int, float)) else signature.parameters[i].default
            if scalars[i] is None and value is not None:
                scalars[i] = float(np.ravel(np.asarray(value))[0])
        call = lane.prepare_kept(signature, scalars, tensors, bound.varying, elements)
        call.drop_tensors()
        if self.keep:
            lane._cache[key] = _Kept(call)
        return call

    def _places(self, name: str, tensors: Sequence[torch.Tensor], addresses: "np.ndarray[Any, Any]", tasks: Any,
                reach: Any) -> Any:
        """The place of each tensor of the tasks. reach: bytes from its address to its end."""
        lane = self.lane
        low, high = int(addresses.min()), int((addresses + reach).max())
        for span in lane._spans:
            if span.low <= low and high <= span.high:
                return addresses + span.delta
        while True:
            spans = lane._spans
            at = np.searchsorted(np.array(lane._lows, np.int64), addresses, "right") - 1
            highs = np.array([span.high for span in spans], np.int64)
            outside = at < 0
            if len(spans):
                outside |= addresses + reach > highs[at]
            if not outside.any():
                return addresses + np.array([span.delta for span in spans], np.int64)[at]
            task = int(tasks[int(np.argmax(outside))])
            try:
                lane.find(tensors[task])
            except InvalidArgument as error:
                raise InvalidArgument("'{}' of task {}: {}".format(name, task, error.message), error.fix,
                                      operator=self.operator) from None

    def run(self, values: Dict[str, Any]) -> None:
        """Runs the tasks; waits if a tensor is on the CPU."""
        lane = self.lane
        if not self.groups:
            return
        bits = self._bits(values)
        for group in self.groups:
            group.set_scalars(bits)
        scope = lane._scope
        if scope is None and any(group.call.mixed or not group.call.waits for group in self.groups):
            with lone_scope(lane) as scope:
                self._submit(scope)
        else:
            self._submit(scope)

    def _submit(self, scope: Optional[Scope]) -> None:
        lane = self.lane
        if scope is not None and not scope.begun:
            scope.begin()
        waits = any(group.call.waits for group in self.groups)
        failed: Optional[BaseException] = None
        flags, first = 0 if waits else QUIET, 0
        if scope is not None and all(group.as_range for group in self.groups):
            flags |= ORDERED
            first = scope.take_barrier()
        elif scope is not None:
            # Tasks whose tensors are neighbours would be ordered with each other, so that all of them are ordered at
            # once with what is before and behind them.
            first = AFTER_ALL if scope.pending else 0
            scope.barrier = True
        for group in self.groups:
            for numbers in group.submit(lane, flags, 0 if group is not self.groups[0] else first):
                if scope is not None:
                    scope.note_all(numbers, self.operator)
                for number in numbers if waits else ():
                    try:
                        lane.wait(number)
                    except Error as error:  # All end before the memory is used again.
                        failed = failed or error
        if scope is not None:
            scope.keep(self.lists + list(self.outputs.values()))
        if failed is not None:
            raise failed

    def _bits(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """The words of scalars by name."""
        signature = self.bound.signature
        made: Dict[str, Any] = {}
        for name, i in self.scalars.items():
            value = values.get(name, self.values.get(name))
            parameter = signature.parameters[i]
            value = parameter.default if value is None else value
            if value is None:
                raise signature.mismatch(i, "it is missing", "pass {}=".format(name), reason="ARGUMENT_MISSING")
            kind = dtypes.BY_NUMBER[parameter.dtypes[0]]
            try:
                array = np.asarray(value, np.float64).astype(kind.storage)
            except (TypeError, ValueError):
                raise InvalidArgument("'{}' of {} is no number".format(name, self.operator),
                                      "pass a number, or one for each task", operator=self.operator) from None
            if array.ndim and array.shape != (self.count,):
                raise InvalidArgument("'{}' of {} has the shape {} for {} tasks".format(
                    name, self.operator, list(array.shape), self.count), "pass one number, or one for each task",
                    operator=self.operator)
            bits = array.view(np.uint32 if kind.size == 4 else np.uint64).astype(np.int64)
            made[name] = bits if array.ndim else int(bits) % 2**64
        return made

    def result(self) -> Any:
        """The lists of outputs."""
        bound = self.bound
        values = [list(self.outputs[i]) if i in self.outputs else self.lists[bound.inputs.index(i)]
                  for i in bound.outputs]
        return values[0] if len(values) == 1 else results.named_tuple(bound.names, values)

    def release(self) -> None:
        """Lets the calls be released, unless they are kept."""
        if not self.keep:
            for group in self.groups:
                self.lane.discard(group.call)


class _Kept:
    """A prepared call in the lane's cache."""

    def __init__(self, call: TorchCall) -> None:
        self.call = call


def foreach(name: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """Runs an operator on each tensor of lists; returns the list of outputs, or a named tuple of lists.

    The tasks are independent of each other, and run in any order: no output may overlap a tensor of another task.

    name: of the operator.
    inputs: for each of its inputs a list of tensors, all of the same length; or one tensor for all tasks; in
        memory of the daemon.
    out: a list of tensors to write, or for several outputs a dict of lists by name. None: new ones, which are views of
        one block for each shape.
    options: scalars, of which floating-point ones may be one number for each task; shape, axis and keepdims as of ops.

    It waits for the end if a tensor is on the CPU; otherwise it is ordered as an operator.
    InvalidArgument: a tensor is not in memory of the daemon (the first such task is named), or does not fit.
    """
    tasks = _Tasks(current(), name, inputs, out, options, keep=True)
    tasks.run({})
    return tasks.result()


class Plan:
    """What plan() returns: call it to run the tasks again. Scalars that are not given are as in plan().

    outputs: the list of outputs, or a named tuple of lists.
    """

    def __init__(self, tasks: _Tasks) -> None:
        self._tasks = tasks
        self.outputs = tasks.result()

    def __call__(self, **scalars: Any) -> None:
        tasks = self._tasks
        if current() is not tasks.lane:
            raise FailedPrecondition("the plan belongs to another lane", "make a plan in each thread")
        for name in scalars:
            if name not in tasks.scalars:
                raise InvalidArgument("'{}' of {} is fixed in the plan".format(name, tasks.operator),
                                      "make another plan; these can be given: {}".format(", ".join(tasks.scalars)),
                                      operator=tasks.operator)
        tasks.run(scalars)

    def __del__(self) -> None:
        tasks = getattr(self, "_tasks", None)
        if tasks is not None:
            tasks.release()


def plan(name: str, *inputs: Any, out: Any = None, **options: Any) -> Plan:
    """Prepares foreach() with the same arguments, to run it many times: everything is checked, and all addresses are
    looked up, once. The plan keeps the tensors, which are read and written in place."""
    return Plan(_Tasks(current(), name, inputs, out, options, keep=False))
