"""From the arguments of a call to a batch, and from the batch's result to arrays.

prepare() checks the arguments against the signature, chooses for each tensor how it is sent, and
returns a Prepared: the message, and what turns the answer into a Result. A tensor is sent

  * in place, if it is a buffer or lies in shared memory and its layout is one that the parameter accepts;
  * through the arena of shared memory, if that is enabled and the array is large (one copy);
  * inline in the message otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

import numpy as np

from . import buffers, dtypes, results, retries
from .buffers import BufferView, dense_strides
from .calls import Steps
from .credentials import check_timeout
from .descriptors import message
from .dtypes import BF16, DType
from .errors import InvalidArgument, WrongType
from .lone_call import LoneCalls
from .results import Result
from .shared_memory import MIN_SHARED_BYTES, Block, Memory, Region
from .signature import (INOUT, INPUT, OUTPUT, REDUCTION_OPTIONS, Parameter, Shape, Signature,
                        shape_text)

# Options of a call, which are not arguments of the operator. A parameter of the same name hides one.
OPTIONS = ("shape", "dtype", "device", "timeout", "retry", "require_isolation")
# By resident.v1.Isolation.
ISOLATION = ("", "trusted", "stoppable", "confined")
# Which version of an operator calls run: a number, the digits of a content hash after "sha256:", or a label
# after "@"; 0: the active one.
Version = Union[int, str]
_BATCH = message("Batch")
_MAX_PLANS = 256


def check_version(version: int, content_hash: str, label: str) -> Version:
    """The version that the arguments of op() name."""
    if isinstance(version, str):
        raise WrongType("the version {!r} is a text".format(version), "pass content_hash= or label=")
    for what, value in (("content_hash", content_hash), ("label", label)):
        if not isinstance(value, str):
            raise WrongType("{} is {}, not a text".format(what, type(value).__name__), "pass a text")
    if sum(1 for name in (version, content_hash, label) if name) > 1:
        raise InvalidArgument("the version is named in several ways",
                              "pass only one of version, content_hash and label")
    if content_hash:
        return "sha256:" + content_hash
    return "@" + label if label else version


@dataclass
class Tensor:
    """One tensor argument. `task_shape` is the shape of one task's tensor."""

    index: int
    parameter: Parameter
    dtype: DType
    task_shape: Shape
    array: Optional["np.ndarray[Any, Any]"] = None  # One of array and view, or neither: returned.
    view: Optional[BufferView] = None
    numbers: Any = None  # What was passed, if it has no dtype of its own.
    shared: bool = False  # All tasks have the same tensor.


@dataclass
class Prepared:
    """A batch that can be sent, and how its result is read."""

    batch: Any
    operator: str
    count: int
    timeout: Optional[float]
    names: Tuple[str, ...] = ()
    # How each output is obtained, in the order of the signature.
    outputs: List[Any] = field(default_factory=list)
    # Regions that must not be allocated from again if the tasks may run after the call has ended: those
    # of its blocks, and of arrays that tasks write in place. And arrays that must exist until then.
    regions: List[Region] = field(default_factory=list)
    keep: List[Any] = field(default_factory=list)
    retry: Any = None  # The option.
    # Whether the outputs are the same if the tasks run twice: no output is also an input.
    repeatable: bool = True
    named: bool = False  # Whether the result has the version's content hash.

    def limit(self, seconds: float) -> None:
        """Sets the time that the call has left."""
        self.timeout = seconds
        if self.batch.options.timeout_us:
            self.batch.options.timeout_us = max(int(seconds * 1e6), 1)

    def decode(self, result: Any) -> Result:
        """The Result of a resident.v1.BatchResult. TaskFailed if a task did not end OK."""
        returned = 0
        values = []
        failed = np.flatnonzero(np.asarray(result.status)) if result.status else None
        for output in self.outputs:
            raw = None
            if output.returned:
                raw = result.outputs[returned] if returned < len(result.outputs) else b""
                returned += 1
            values.append(output.value(raw, failed))
        decoded = Result(results.named_tuple(self.names, values), result.version, result.device,
                         sum(result.device_ns), result.content_hash if self.named else "")
        return results.check_tasks(self.operator, result, decoded, self.count)


class _Given:
    """An output that the caller gave: a buffer, or an array that tasks write in place."""

    returned = False

    def __init__(self, target: Any) -> None:
        self._target = target

    def value(self, raw: Optional[bytes], failed: Optional["np.ndarray[Any, Any]"]) -> Any:
        return self._target


class _Copied:
    """An output that is copied to the caller's array, if there is one. Elements of tasks that failed
    become zeros; those of an inout remain what the caller passed.

    mapped: whether the first dimension counts the tasks; otherwise there is one task.
    """

    def __init__(self, dtype: DType, target: Optional["np.ndarray[Any, Any]"], inout: bool,
                 mapped: bool) -> None:
        self._dtype = dtype
        self._target = target
        self._inout = inout
        self._mapped = mapped

    def _copy(self, array: "np.ndarray[Any, Any]", failed: Optional["np.ndarray[Any, Any]"]) -> Any:
        assert self._target is not None
        into = self._target.view(np.ndarray)
        if not self._inout or failed is None or not failed.size:
            np.copyto(into, array)
        elif self._mapped:
            ended_ok = np.ones(len(into), np.bool_)
            ended_ok[failed] = False
            into[ended_ok] = array[ended_ok]
        return self._target


class _Returned(_Copied):
    """An output that comes with the result, with zeros for the tasks that failed."""

    returned = True

    def __init__(self, dtype: DType, shape: Shape, target: Optional["np.ndarray[Any, Any]"],
                 inout: bool, mapped: bool) -> None:
        super().__init__(dtype, target, inout, mapped)
        self._shape = shape

    def value(self, raw: Optional[bytes], failed: Optional["np.ndarray[Any, Any]"]) -> Any:
        array = np.frombuffer(raw or b"", self._dtype.storage)
        if array.size != math.prod(self._shape):  # No task ran.
            array = np.zeros(self._shape, self._dtype.storage)
        array = array.reshape(self._shape)
        if self._target is not None:
            return self._copy(array, failed)
        return dtypes.from_storage(array.copy(), self._dtype)


class _InBlock(_Copied):
    """An output in a block of the arena."""

    returned = False

    def __init__(self, array: "np.ndarray[Any, Any]", tasks: int, dtype: DType,
                 target: Optional["np.ndarray[Any, Any]"], inout: bool, mapped: bool) -> None:
        super().__init__(dtype, target, inout, mapped)
        self._array = array
        self._tasks = tasks

    def value(self, raw: Optional[bytes], failed: Optional["np.ndarray[Any, Any]"]) -> Any:
        if failed is not None and not self._inout:  # The block has the elements of its previous use.
            self._array.reshape(self._tasks, -1)[failed] = 0
        if self._target is not None:
            return self._copy(self._array, failed)
        return dtypes.from_storage(self._array, self._dtype)


class CallBuilder:
    """Prepares calls of one operator.

    Thread safety: may be used from several threads.
    """

    def __init__(self, signature: Signature, version: Version, memory: Memory) -> None:
        self.signature = signature
        self.version = version
        self.lone = LoneCalls(signature)
        self._memory = memory
        self._output_names = tuple(p.keyword for p in signature.outputs)
        self._has_inout = any(p.kind == INOUT for p in signature.parameters)
        tensors = [p for p in signature.parameters if not p.scalar]
        self._elementwise = all(
            len(p.shape) == 1 and p.shape[0].kind == ("broadcast" if p.kind == INPUT else "spread") and
            p.shape[0].name == tensors[0].shape[0].name for p in tensors)
        # Shapes and dtypes of tensors to those of the outputs.
        self._plans: Dict[Any, List[Tuple[int, DType, Shape]]] = {}

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any], *,
                shared: Optional[Sequence[str]] = None) -> Steps[Prepared]:
        """Checks the arguments and builds the batch.

        shared: None for a call of one task. For map(): the tensors that all tasks share; the others
            have one tensor for each task, along the first dimension.

        InvalidArgument if the arguments do not match the signature.
        """
        values, options = self._assign(args, kwargs)
        tensors = self._tensors(values, shared, options)
        count = 1 if shared is None else self._count(tensors, values)
        batch = _BATCH()
        tasks = batch.tasks
        tasks.operator = self.signature.operator
        if isinstance(self.version, int):
            tasks.version = self.version
        elif self.version.startswith("@"):
            tasks.label = self.version[len("@"):]
        else:
            tasks.content_hash = self.version[len("sha256:"):]
        tasks.count = count
        prepared = Prepared(batch, self.signature.operator, count, options["timeout"],
                            self._output_names, retry=options["retry"],
                            repeatable=not self._has_inout, named=not isinstance(self.version, int))
        options["device"] = buffers.check_device(options["device"])
        device = self._device(tensors, options["device"])
        if options["device"] is not None:
            batch.options.device = options["device"]
        if options["timeout"] is not None:
            batch.options.timeout_us = max(int(options["timeout"] * 1e6), 1)
        if options["require_isolation"] is not None:
            batch.options.require_isolation = ISOLATION.index(options["require_isolation"])
        last = self._last_column(values)
        for index, parameter in enumerate(self.signature.parameters[:last]):
            column = tasks.arguments.add()
            if parameter.scalar:
                self._scalar(index, values.get(index), column.scalar, count if shared is not None else 0)
            else:
                leading = () if shared is None else (count,)
                device = yield from self._column(tensors, index, column, leading, device, prepared)
        return prepared

    # From arguments to values by index.

    def _assign(self, args: Sequence[Any],
                kwargs: Mapping[str, Any]) -> Tuple[Dict[int, Any], Dict[str, Any]]:
        signature = self.signature
        if len(args) > len(signature.inputs):
            raise InvalidArgument(
                "{} takes {} tensors by position, not {}".format(signature.operator,
                                                                 len(signature.inputs), len(args)),
                "pass scalars and outputs by keyword", operator=signature.operator)
        values: Dict[int, Any] = {}
        options: Dict[str, Any] = dict.fromkeys(OPTIONS)
        for parameter, value in zip(signature.inputs, args):
            values[signature.by_keyword[parameter.keyword]] = value
        for name, value in kwargs.items():
            index = signature.by_keyword.get(name)
            if index is None:
                if name not in OPTIONS and not (signature.reduces and name in REDUCTION_OPTIONS):
                    raise InvalidArgument(
                        "{} has no parameter '{}'".format(signature.operator, name),
                        "its parameters are: {}; options are: {}".format(
                            ", ".join(signature.by_keyword),
                            ", ".join((REDUCTION_OPTIONS if signature.reduces else ()) + OPTIONS)),
                        operator=signature.operator)
                options[name] = value
            elif index in values:
                raise InvalidArgument("'{}' of {} is given twice".format(name, signature.operator),
                                      "pass it by position or by keyword",
                                      operator=signature.operator)
            else:
                values[index] = value
        if options["timeout"] is not None:
            check_timeout(options["timeout"])
        if options["require_isolation"] not in (None,) + ISOLATION[1:]:
            raise InvalidArgument(
                "require_isolation={!r} is unknown".format(options["require_isolation"]),
                "pass one of: " + ", ".join(ISOLATION[1:]), operator=signature.operator)
        retries.check(options["retry"])
        if options["retry"] == retries.MAY_RUN_TWICE and self._has_inout:
            raise InvalidArgument(
                "{} updates a parameter in place, so that it must not run twice".format(signature.operator),
                "use retry=True, which sends a call again only if it did not run",
                operator=signature.operator)
        return values, options

    def _tensors(self, values: Dict[int, Any], shared: Optional[Sequence[str]],
                 options: Dict[str, Any]) -> Dict[int, Tensor]:
        """The tensor of each parameter, with its dtype and shape."""
        signature = self.signature
        for name in shared or ():
            index = signature.by_keyword.get(name)
            if index is None or signature.parameters[index].kind != INPUT:
                raise InvalidArgument("shared names '{}', which is no input of {}".format(
                    name, signature.operator), "name inputs", operator=signature.operator)
        tensors: Dict[int, Tensor] = {}
        untyped: List[int] = []
        for index, parameter in enumerate(signature.parameters):
            if parameter.scalar:
                continue
            value = values.get(index)
            if value is None:
                if parameter.kind == INPUT:
                    value = self._absent(index, index in values)
                else:
                    continue
            leading = 0 if shared is None or parameter.keyword in shared else 1
            tensor = self._given(index, parameter, value, leading)
            tensor.shared = shared is not None and not leading
            if tensor.dtype is None:
                untyped.append(index)
            tensors[index] = tensor
        for index in untyped:
            self._choose_dtype(tensors[index], tensors)
        if signature.reduces:
            self._reduce(tensors, values, options)
        for index, tensor in tensors.items():
            signature.check_dtype(index, tensor.dtype)
        self._add_outputs(tensors, options, 0 if shared is None else 1)
        return tensors

    def _reduce(self, tensors: Mapping[int, Tensor], values: Dict[int, Any],
                options: Dict[str, Any]) -> None:
        """Turns axis and keepdims into the bits of the scalar `axes`, and the shape of the output."""
        signature = self.signature
        axes, out = signature.by_keyword["axes"], signature.by_keyword["out"]
        axis, keepdims = options.get("axis"), options.get("keepdims", False)
        if values.get(axes) is not None and not isinstance(values[axes], (int, np.integer)):
            return  # One value for each task of map(), or an error of its own.
        values[axes], shape = signature.reduce(tensors[signature.by_keyword["x"]].task_shape, values.get(axes),
                                               axis, keepdims)
        given = tensors[out].task_shape if out in tensors else None
        if given is None and options["shape"] is None:
            options["shape"] = shape
        elif given is not None and ("axis" in options or "keepdims" in options) and given != shape:
            raise signature.mismatch(out, "shape {} must be {} for these axes".format(
                shape_text(given), shape_text(shape)), "pass an array of this shape, or set keepdims",
                shape_text(shape), shape_text(given))
        elif given is None and "keepdims" in options:
            raise signature.mismatch(out, "its shape is given by shape= and keepdims=", "pass one of them")

    def _absent(self, index: int, is_none: bool) -> "np.ndarray[Any, Any]":
        """The value of an input that is None: a tensor without elements."""
        parameter = self.signature.parameters[index]
        if is_none and self.signature.may_be_absent(index):
            return np.empty((0,), dtypes.BY_NUMBER[parameter.dtypes[0]].storage).view(
                dtypes.BFloat16Array if parameter.dtypes[0] == BF16.number else np.ndarray)
        raise self.signature.mismatch(index, "it is missing", "pass an array or a buffer",
                                      reason="ARGUMENT_MISSING")

    def _given(self, index: int, parameter: Parameter, value: Any, leading: int) -> Tensor:
        if isinstance(value, BufferView):
            array, view, shape = None, value, value.shape
            dtype: Optional[DType] = value._dtype
        else:
            array, dtype = dtypes.to_array(value)
            view, shape = None, array.shape
            if parameter.kind != INPUT and not (isinstance(value, np.ndarray) and
                                                array.flags.writeable):
                raise self.signature.mismatch(
                    index, "it is written, and {} cannot be".format(
                        "this array" if isinstance(value, np.ndarray) else type(value).__name__),
                    "pass a NumPy array that is writeable, or a buffer", reason="NOT_WRITEABLE")
            if dtype is None and isinstance(value, (np.ndarray, np.generic)):
                raise self.signature.mismatch(
                    index, "residentd has no dtype {}".format(array.dtype),
                    "convert it to one of {}, for instance with astype()".format(
                        dtypes.names(parameter.dtypes)), reason="DTYPE_MISMATCH")
        if len(shape) < leading:
            raise self.signature.mismatch(
                index, "map() needs an array with one tensor for each task",
                "add a first dimension, or name it in shared=('{}',)".format(parameter.keyword))
        # _choose_dtype replaces None.
        return Tensor(index, parameter, cast(DType, dtype), tuple(shape[leading:]), array, view,
                      value if dtype is None else None)

    def _choose_dtype(self, tensor: Tensor, tensors: Mapping[int, Tensor]) -> None:
        """The dtype of Python's numbers: that of the first array if the parameter accepts it and it
        represents the values, otherwise the first that does."""
        array, parameter = tensor.array, tensor.parameter
        assert array is not None and tensor.numbers is not None
        preferred = [t.dtype for t in tensors.values() if t.dtype is not None and t is not tensor]
        candidates = [t for t in preferred if t.number in parameter.dtypes]
        candidates += [dtypes.BY_NUMBER[number] for number in parameter.dtypes]
        if array.dtype.kind not in "biuf":
            raise self.signature.mismatch(tensor.index, "it does not consist of numbers",
                                          "pass an array of numbers", reason="DTYPE_MISMATCH")
        for dtype in candidates:
            if not dtype.floating and not np.array_equal(array.astype(dtype.storage), array):
                continue
            try:
                tensor.dtype, tensor.array = dtype, dtypes.from_numbers(tensor.numbers, dtype)
            except InvalidArgument as error:
                raise self.signature.mismatch(tensor.index, error.message, error.fix,
                                              reason="DTYPE_MISMATCH") from None
            return
        raise self.signature.mismatch(
            tensor.index, "its values cannot be represented in {}".format(
                dtypes.names(parameter.dtypes)), "pass whole numbers in the range of the dtype",
            reason="DTYPE_MISMATCH")

    def _add_outputs(self, tensors: Dict[int, Tensor], options: Mapping[str, Any],
                     leading: int) -> None:
        """Adds the outputs that the caller did not give, and checks all shapes."""
        signature = self.signature
        shapes, kinds = options["shape"], options["dtype"]
        key = None
        if shapes is None and kinds is None:
            key = tuple((index, t.dtype.number, t.task_shape) for index, t in tensors.items())
            plan = self._plans.get(key)
            if plan is not None:
                for parameter_index, dtype, shape in plan:
                    tensors[parameter_index] = Tensor(parameter_index,
                                                      signature.parameters[parameter_index], dtype,
                                                      shape)
                return
        known = {index: tensor.task_shape for index, tensor in tensors.items()}
        for index, parameter in enumerate(signature.parameters):
            wanted = self._option(shapes, parameter) if parameter.kind == OUTPUT else None
            if wanted is not None and index not in known:
                known[index] = buffers.check_shape(wanted)
        bound = signature.bind(known)
        sent = [tensor.dtype for tensor in tensors.values()]
        added: List[Tuple[int, DType, Shape]] = []
        for index, parameter in enumerate(signature.parameters):
            if parameter.scalar or index in tensors:
                continue
            chosen = self._option(kinds, parameter)
            dtype = signature.output_dtype(parameter, sent) if chosen is None else dtypes.find(chosen)
            if dtype.number not in parameter.dtypes:
                raise signature.mismatch(
                    index, "it cannot be {}".format(dtype.name),
                    "use one of {}".format(dtypes.names(parameter.dtypes)), reason="DTYPE_MISMATCH")
            shape = known[index] if index in known else signature.shape_of(index, bound)
            added.append((index, dtype, shape))
            tensors[index] = Tensor(index, parameter, dtype, shape)
        if key is not None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = added

    def _option(self, option: Any, parameter: Parameter) -> Any:
        """The value of the option shape or dtype for an output: it is a dict by name, or the value for
        every output."""
        return option.get(parameter.keyword) if isinstance(option, dict) else option

    def _count(self, tensors: Mapping[int, Tensor], values: Mapping[int, Any]) -> int:
        """The number of tasks of map()."""
        first: Optional[Tensor] = None
        count = 0
        for tensor in tensors.values():
            source = tensor.array if tensor.array is not None else tensor.view
            if source is None or tensor.shared:
                continue
            if first is None:
                first, count = tensor, source.shape[0]
            elif source.shape[0] != count:
                raise self.signature.mismatch(
                    tensor.index, "it has tensors for {} tasks, '{}' for {}".format(
                        source.shape[0], first.parameter.name, count),
                    "make their first dimensions equal", str(count), str(source.shape[0]))
        for index, value in values.items():
            parameter = self.signature.parameters[index]
            if first is None and parameter.scalar and np.ndim(value) == 1:
                return len(value)
        if first is None:
            raise InvalidArgument("map() of {} has no argument with one value for each task".format(
                self.signature.operator), "do not name every input in shared",
                operator=self.signature.operator)
        if count == 0:
            raise self.signature.mismatch(first.index, "it has no tasks",
                                          "pass an array whose first dimension is at least 1")
        return count

    def _device(self, tensors: Mapping[int, Tensor], chosen: Optional[int]) -> Optional[int]:
        """The device whose memory is used: the chosen one, or that of the first buffer, or of the first
        array in shared memory. None: any; then the first block of the arena decides."""
        if chosen is not None:
            return chosen
        for tensor in tensors.values():
            if tensor.view is not None:
                return tensor.view.device
        for tensor in tensors.values():
            found = None if tensor.array is None else self._memory.locate(tensor.array)
            if found is not None:
                return found[0].device
        return None

    def _may_write_in_place(self, tensor: Tensor, tensors: Mapping[int, Tensor]) -> bool:
        """Whether no other tensor of the call has memory of this one; or only the same elements at the
        same places, of an operator that reads each element before it writes it."""
        array = tensor.array
        assert array is not None
        for other in tensors.values():
            if other is tensor or other.array is None or not np.may_share_memory(array, other.array):
                continue
            same = (array.__array_interface__["data"][0] == other.array.__array_interface__["data"][0] and
                    array.shape == other.array.shape and array.strides == other.array.strides and
                    tensor.dtype.size == other.dtype.size)
            if not same or other.parameter.kind != INPUT or not self._elementwise:
                return False
        return True

    # Columns.

    def _last_column(self, values: Mapping[int, Any]) -> int:
        """The number of columns to send: trailing scalars that are omitted are left out."""
        last = len(self.signature.parameters)
        while last > 0:
            parameter = self.signature.parameters[last - 1]
            if not parameter.scalar or parameter.default is None or values.get(last - 1) is not None:
                break
            last -= 1
        return last

    def _scalar(self, index: int, value: Any, column: Any, count: int) -> None:
        """count: 0 for a call of one task."""
        parameter = self.signature.parameters[index]
        dtype = dtypes.BY_NUMBER[parameter.dtypes[0]]
        if value is None:
            value = parameter.default
        if value is None:
            raise self.signature.mismatch(index, "it is missing",
                                          "pass {}=".format(parameter.keyword),
                                          reason="ARGUMENT_MISSING")
        dtypes.refuse_masked(value)
        if isinstance(value, dtypes.BFloat16Array):  # np.asarray would take its bits as integers.
            value = value.to_float32()
        array = np.asarray(value)
        many = count > 0 and array.ndim == 1
        if many and len(array) != count:
            raise self.signature.mismatch(index, "it has {} values for {} tasks".format(len(array), count),
                                          "pass one value, or one for each task", str(count),
                                          str(len(array)))
        if array.ndim != (1 if many else 0):
            raise self.signature.mismatch(index, "it is a scalar, not an array of shape {}".format(
                shape_text(array.shape)), "pass one number")
        if array.dtype.kind not in ("biuf" if dtype.floating else "biu"):
            raise self.signature.mismatch(
                index, "{!r} is not {}".format(value, "a number" if dtype.floating else "an integer"),
                "pass {}".format("a number" if dtype.floating else "an int"), reason="DTYPE_MISMATCH")
        items = array.tolist()
        if dtype.floating:
            for item in items if many else [items]:
                if isinstance(item, int) and abs(item) > 1 << 53 and float(item) != item:
                    raise self.signature.mismatch(
                        index, "the integer {} is not a number of {}".format(item, dtype.name),
                        "pass a float", reason="DTYPE_MISMATCH")
        into = column.f64 if dtype.floating else column.i64
        into.extend(items if many else [items])

    def _column(self, tensors: Mapping[int, Tensor], index: int, column: Any, leading: Shape,
                device: Optional[int], prepared: Prepared) -> Steps[Optional[int]]:
        """Fills in the column of a tensor. `leading` is (), or (number of tasks,) for map(). Returns the
        device for the other columns."""
        tensor = tensors[index]
        parameter = tensor.parameter
        if tensor.shared:
            leading = ()
        if tensor.view is not None:
            self._in_place(tensor, column.buffer, tensor.view.id, tensor.view.offset, tensor.view.strides,
                           leading, prepared.count)
            if parameter.kind != INPUT:
                prepared.outputs.append(_Given(tensor.view))
                prepared.repeatable &= not any(
                    other is not tensor and other.view is not None and other.view.id == tensor.view.id
                    for other in tensors.values())
            return device
        shape = leading + tensor.task_shape
        if tensor.array is None and parameter.kind == INOUT:
            tensor.array = dtypes.from_storage(np.zeros(shape, tensor.dtype.storage), tensor.dtype)
        array = tensor.array
        if array is not None and tensor.task_shape:
            found = self._memory.locate(array)
            if (found is not None and device in (None, found[0].device) and
                    self._accepts_layout(tensor, array, found, len(leading)) and
                    (parameter.kind == INPUT or self._may_write_in_place(tensor, tensors))):
                region, offset = found
                size = tensor.dtype.size
                self._in_place(tensor, column.buffer, region.buffer_id, offset // size,
                               tuple(s // size for s in array.strides), leading, prepared.count)
                prepared.keep.append(array)
                if parameter.kind != INPUT:
                    prepared.regions.append(region)
                    prepared.outputs.append(_Given(array))
                    prepared.repeatable &= not any(
                        other is not tensor and other.array is not None and
                        np.may_share_memory(array, other.array) for other in tensors.values())
                return region.device
        size = math.prod(shape) * tensor.dtype.size
        if self._memory.arena_enabled and size >= MIN_SHARED_BYTES and tensor.task_shape:
            block = yield from self._memory.allocate(size, device)
            if block is not None:
                self._through_block(tensor, column.buffer, shape, leading, block, prepared)
                return block.region.device
        if parameter.kind == OUTPUT:
            column.returned.dtype = tensor.dtype.number
            column.returned.shape.extend(tensor.task_shape)
        else:
            assert array is not None
            column.inline.dtype = tensor.dtype.number
            column.inline.shape.extend(tensor.task_shape)
            column.inline.data = array.tobytes()
        if parameter.kind != INPUT:
            prepared.outputs.append(
                _Returned(tensor.dtype, shape, array, parameter.kind == INOUT, bool(leading)))
        return device

    def _through_block(self, tensor: Tensor, column: Any, shape: Shape, leading: Shape, block: Block,
                       prepared: Prepared) -> None:
        memory = block.array().view(tensor.dtype.storage).reshape(shape)
        prepared.regions.append(block.region)
        prepared.keep.append(memory)
        if tensor.array is not None and tensor.parameter.kind != OUTPUT:
            np.copyto(memory, tensor.array.view(np.ndarray))
        self._in_place(tensor, column, block.region.buffer_id, block.offset // tensor.dtype.size,
                       dense_strides(shape), leading, prepared.count)
        if tensor.parameter.kind != INPUT:
            prepared.outputs.append(_InBlock(memory, prepared.count, tensor.dtype, tensor.array,
                                             tensor.parameter.kind == INOUT, bool(leading)))

    def _accepts_layout(self, tensor: Tensor, array: "np.ndarray[Any, Any]", found: Tuple[Region, int],
                        leading: int) -> bool:
        """Whether tasks can use the array where it is."""
        size = tensor.dtype.size
        if found[1] % size or any(s % size for s in array.strides):
            return False
        strides = tuple(s // size for s in array.strides)[leading:]
        if tensor.parameter.kind != INPUT and any(s <= 0 for s, n in zip(strides, tensor.task_shape)
                                                  if n > 1):
            return False
        return tensor.parameter.strided or is_dense(tensor.task_shape, strides)

    def _in_place(self, tensor: Tensor, column: Any, buffer_id: int, offset: int, strides: Shape,
                  leading: Shape, count: int) -> None:
        """offset and strides are elements; the first stride is that of the tasks if there is
        `leading`. Without it, all `count` tasks use the same tensor."""
        size = tensor.dtype.size
        column.buffer_ids.append(buffer_id)
        column.dtype = tensor.dtype.number
        column.shape.extend(tensor.task_shape)
        column.scalar_shape = not tensor.task_shape
        task_strides = strides[len(leading):]
        if not is_dense(tensor.task_shape, task_strides):
            if not tensor.parameter.strided:
                raise self.signature.mismatch(
                    tensor.index, "it accepts only dense tensors, and the buffer's view is not",
                    "copy the view into a dense buffer (operator 'copy')", reason="NOT_DENSE")
            column.strides.extend(task_strides)
        if leading and leading[0] > 1 and strides[0] * size >= 0 and offset == 0:
            column.stride_bytes = strides[0] * size
        elif leading and leading[0] > 1:
            column.offsets.extend((offset + task * strides[0]) * size for task in range(leading[0]))
        elif offset:
            column.offsets.extend([offset * size] * count)


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether these strides, in elements, are those of a dense tensor."""
    if 0 in shape:
        return True
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1:
            if stride != expected:
                return False
            expected *= n
    return True
