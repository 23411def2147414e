"""Local lanes: tasks through memory that this process shares with the daemon, in microseconds.

    with residentd.connect() as rd, rd.lane() as lane:
        x, y, z = rd.upload(a), rd.upload(b), rd.empty(a.shape)
        add = lane.prepare("add", x, y, out=z, alpha=2)
        add()             # Runs it and waits.
        add(z, y, out=x)  # With other tensors of the same dtypes and shapes.

The lane needs libresidentd_lane.so: $RESIDENTD_LANE_LIBRARY, the `lib` folder beside the package's folder in a
bundle, the package `residentd-lane`, or a folder of the system. That package also has a module that calls the
library ten times as fast as ctypes, which is used otherwise. docs/local_lane.md describes lanes.

Thread safety: a lane is for one thread at a time.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Type

import grpc
import numpy as np

from . import dtypes, errors
from .buffers import BufferView, check_device
from .descriptors import message
from .errors import (Aborted, Cancelled, DeadlineExceeded, Error, FailedPrecondition, Internal, InvalidArgument,
                     PermissionDenied, ResourceExhausted, Unavailable)
from .operator_call import is_dense
from .signature import INOUT, OUTPUT, REDUCTION_OPTIONS, Signature

if TYPE_CHECKING:
    from .client import Client

_VERSION = 1
MAX_WORDS = 7
_FULL, _TIMEOUT, _LOST, _CLOSED, _INVALID, _FORKED, _NOT_ACCEPTED, _SYSTEM = range(-1, -9, -1)
_REFUSED = 64
_REFUSED_PERMISSION = 10
_REFUSED_LATER = (9, 11, 12)  # A lost buffer, a quarantined version, a call to be prepared again.
_MAY_HAVE_RUN = 2


class Column(ctypes.Structure):
    """residentd_lane_column."""
    _fields_ = [("base", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("values", ctypes.c_void_p)]


class Completion(ctypes.Structure):
    """residentd_lane_completion."""
    _fields_ = [("sequence", ctypes.c_int64), ("device_ns", ctypes.c_uint32), ("version", ctypes.c_uint32),
                ("detail", ctypes.c_uint16), ("status", ctypes.c_uint8), ("flags", ctypes.c_uint8)]


_OF_CODE: Dict[int, Type[Error]] = {
    _FULL: ResourceExhausted, _TIMEOUT: DeadlineExceeded, _LOST: Unavailable, _CLOSED: Unavailable,
    _INVALID: InvalidArgument, _FORKED: FailedPrecondition, _NOT_ACCEPTED: FailedPrecondition,
    _SYSTEM: ResourceExhausted}
_OF_STATUS: Dict[int, Type[Error]] = {1: InvalidArgument, 2: DeadlineExceeded, 3: Cancelled, 4: Aborted,
                                      5: Unavailable, 6: Internal}
# How the bits of a scalar are made.
_FORMATS = {"f64": "<d", "f32": "<f", "i32": "<i", "i64": "<q", "u8": "<B", "i8": "<b", "u32": "<I"}
# How an element in memory of this process is read. Halves are read as their bits.
_CELLS: Dict[str, Any] = {
    "f64": ctypes.c_double, "f32": ctypes.c_float, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "u8": ctypes.c_uint8,
    "i8": ctypes.c_int8, "u32": ctypes.c_uint32, "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16}

_library: Optional[ctypes.CDLL] = None
# residentd_lane._lane, after load(). None: it is not installed.
module: Any = None


def load() -> ctypes.CDLL:
    """The C library. FailedPrecondition if there is none, or another version."""
    global _library, module
    if _library is not None:
        return _library
    fast: Any = None
    try:
        from residentd_lane import _lane as fast
    except ImportError:
        pass
    beside = [pathlib.Path(__file__).resolve().parents[2] / "lib" / "libresidentd_lane.so"]
    if fast is not None:
        beside.append(pathlib.Path(fast.__file__).with_name("libresidentd_lane.so"))
    path = os.environ.get("RESIDENTD_LANE_LIBRARY") or next(
        (str(each) for each in beside if each.exists()), "libresidentd_lane.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise FailedPrecondition(str(error), "set RESIDENTD_LANE_LIBRARY to the path of libresidentd_lane.so, "
                                 "which is in `lib` of the daemon's bundle, or install residentd-lane") from None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
            ("version", ctypes.c_int, []), ("last_error", ctypes.c_char_p, []),
            ("attach", ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(pointer)]),
            ("detach", None, [pointer]), ("slots", ctypes.c_uint32, [pointer]),
            ("submit", number, [pointer, ctypes.c_uint16, pointer, ctypes.c_int, ctypes.c_int]),
            ("submit_range", number, [pointer, ctypes.c_uint16, ctypes.c_uint32, pointer, ctypes.c_int, ctypes.c_int]),
            ("await", ctypes.c_int, [pointer, number, number, pointer]),
            ("call", ctypes.c_int, [pointer, ctypes.c_uint16, pointer, ctypes.c_int, number, pointer]),
            ("cancel_below", None, [pointer, number]), ("explain", ctypes.c_char_p, [pointer, pointer]),
            ("next", number, [pointer]), ("completed", number, [pointer]),
            ("set_access", None, [pointer, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int]),
            ("stream_begin", ctypes.c_int, [pointer, pointer]), ("stream_end", ctypes.c_int, [pointer, pointer]),
            ("get_failed", ctypes.c_uint32, [pointer, ctypes.c_uint32]),
            ("pool_find", ctypes.c_int, [pointer, pointer]), ("pool_export", ctypes.c_int, [ctypes.c_uint64]),
            ("pool_freed", ctypes.c_int, [pointer, ctypes.c_int]), ("pool_changes", pointer, [])):
        function = getattr(library, "residentd_lane_" + name)
        function.restype, function.argtypes = result, arguments
    version = library.residentd_lane_version()
    if version != _VERSION:
        raise FailedPrecondition("{} has version {} of its interface, and this package needs {}".format(
            path, version, _VERSION), "use the package and the library of one bundle")
    if fast is not None:
        fast.load(path)
        library.residentd_lane_submit, library.residentd_lane_await = fast.submit, fast.wait
        library.residentd_lane_call = fast.call
        module = fast
    _library = library
    return library


class LaneCall:
    """A prepared call; Lane.prepare() makes it.

    Calling it runs the operator and waits for its end. Tensors and varying scalars are passed as to the
    operator; those that are left out are the same as in the last call.
    """

    def __init__(self, lane: "Lane", number: int, version: int, signature: Signature,
                 words: List[Tuple[int, Any]], first: Sequence[Any]) -> None:
        """words: for each word the index of its parameter, and (dtype, shape, strides) of a tensor or the
        name of a scalar's dtype. first: of the template, the tensors, and the bits of scalars."""
        self._lane = lane
        self._number = number
        self.joins = False  # Whether its tasks can be one range.
        self.has_elements = False  # Whether its last word is the number of elements.
        self.version = version  # That was active when the call was prepared, or the pinned one.
        self._signature = signature
        self._of_parameter = {parameter: (word, kind) for word, (parameter, kind) in enumerate(words)}
        self._words_kinds = [kind for _, kind in words]
        self._positions = [i for i, p in enumerate(signature.parameters) if not p.scalar]
        self._words = (ctypes.c_uint64 * MAX_WORDS)()
        self._count = len(words)
        self._completion = Completion()
        self._words_at = ctypes.addressof(self._words)
        self._completion_at = ctypes.addressof(self._completion)
        self._run = lane._library.residentd_lane_call
        # Of the output, for value(): its word, and the last place for which `_cell` is the element.
        outputs = [word for word, (i, kind) in enumerate(words)
                   if not isinstance(kind, str) and signature.parameters[i].kind in (OUTPUT, INOUT)]
        self._output = outputs[0] if len(outputs) == 1 else -1
        self._addresses: List[int] = [0] * MAX_WORDS  # Of tensors in memory of this process; otherwise 0.
        self._cell: Any = None
        self._cell_at = 0
        for word, value in enumerate(first):
            if isinstance(value, Tensor):
                self._put(word, value)
            else:
                self._words[word] = value

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> None:
        """Runs it. timeout: seconds; after DeadlineExceeded the task may still run."""
        if args or kwargs:
            self._set(args, kwargs)
        handle = self._lane._handle
        if not handle:
            raise closed()
        code = self._run(handle, self._number, self._words_at, self._count,
                         -1 if timeout is None else int(timeout * 1e9), self._completion_at)
        if code or self._completion.status:
            self._lane._raise(code, self._completion)

    def value(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> Any:
        """Runs it, as a call does, and returns the element of its output as a number of Python. The
        operator has one output, which is an array of shared() with one element."""
        self(*args, timeout=timeout, **kwargs)
        address = self._addresses[self._output]
        if address != self._cell_at or self._cell is None:
            self._find_cell(address)
        bits = self._cell.value
        return bits if self._cell_is_number else self._of_half(bits)

    def _find_cell(self, address: int) -> None:
        """What value() reads."""
        name = self._signature.operator
        if self._output < 0:
            raise InvalidArgument("{} has several outputs".format(name), "call it, and read the arrays")
        dtype, shape, _ = self._words_kinds[self._output]
        if any(size != 1 for size in shape):
            raise InvalidArgument("the output of {} has the shape {}".format(name, list(shape)),
                                  "use value() for outputs of one element; otherwise call it, and read the array")
        if not address:
            raise InvalidArgument("the output of {} is not in memory of this process".format(name),
                                  "pass an array of shared() as the output")
        self._cell, self._cell_at = _CELLS[dtype].from_address(address), address
        self._cell_is_number = dtype not in ("f16", "bf16")

    def _of_half(self, bits: int) -> float:
        if self._words_kinds[self._output][0] == "bf16":
            return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
        return float(struct.unpack("<e", struct.pack("<H", bits))[0])

    def submit(self, *args: Any, **kwargs: Any) -> int:
        """Submits it and does not wait; returns the number for Lane.wait()."""
        if args or kwargs:
            self._set(args, kwargs)
        if not self._lane._handle:
            raise closed()
        sequence: int = self._lane._library.residentd_lane_submit(
            self._lane._handle, self._number, self._words_at, self._count, 0)
        if sequence < 0:
            self._lane._raise(sequence, None)
        return sequence

    def submit_range(self, *args: Any, **kwargs: Any) -> int:
        """Submits many tasks as one submission and does not wait; returns its number for Lane.wait().

        A tensor with one more dimension in front has one tensor of the call in each row: row i is for
        task i, and all such tensors have the same number of rows. A scalar that varies may be an array of
        as many numbers. Others are the same for all tasks; those that are left out are as in the last
        call. The lane needs data_bytes for the columns: 24 bytes for each word, and 8 for each number of
        an array. Lane.wait() raises the error of the first task that failed.
        """
        count = 0
        columns = (Column * MAX_WORDS)()
        arrays: List[Any] = []  # Alive until they are copied.
        for parameter, value in self._match(args, kwargs):
            name = self._signature.parameters[parameter].name
            word, kind = self._word(parameter)
            rows = 0
            if not isinstance(kind, str):
                tensor = self._lane._tensor(name, value)
                if len(tensor.kind[1]) == len(kind[1]) + 1:
                    rows = tensor.kind[1][0]
                    columns[word].stride = (tensor.kind[2][0] * tensor.dtype.size) % 2**64
                    tensor.kind = (tensor.kind[0], tensor.kind[1][1:], tensor.kind[2][1:])
                self._set_tensor(word, name, kind, tensor)
            elif np.ndim(value) == 1:
                rows = len(value)
                arrays.append((ctypes.c_uint64 * rows)(*(encode(name, kind, number) for number in value)))
                columns[word].values = ctypes.addressof(arrays[-1])
            else:
                self._words[word] = encode(name, kind, value)
            if rows:
                if count not in (0, rows):
                    raise InvalidArgument("'{}' has {} rows, and others have {}".format(name, rows, count),
                                          "pass tensors and arrays of the same number of rows")
                count = rows
        if not count:
            raise InvalidArgument("no tensor or array has a row for each task",
                                  "pass at least one with one more dimension in front, or use submit()")
        for word in range(self._count):
            if not columns[word].values:
                columns[word].base = self._words[word]
        if not self._lane._handle:
            raise closed()
        sequence: int = self._lane._library.residentd_lane_submit_range(
            self._lane._handle, self._number, count, ctypes.addressof(columns), self._count, 0)
        if sequence < 0:
            self._lane._raise(sequence, None)
        return sequence

    @property
    def device_ns(self) -> int:
        """Time of the last call on the device, nanoseconds."""
        return int(self._completion.device_ns)

    def _match(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Tuple[int, Any]]:
        """The index of the parameter of each argument."""
        if len(args) > len(self._positions):
            raise InvalidArgument("{} takes {} tensors and got {}".format(
                self._signature.operator, len(self._positions), len(args)), "pass scalars by keyword")
        given = [(self._positions[i], value) for i, value in enumerate(args)]
        for name, value in kwargs.items():
            parameter = _find_parameter(self._signature, name)
            if any(parameter == other for other, _ in given):
                raise InvalidArgument("{} is given twice".format(name), "pass it once")
            given.append((parameter, value))
        return given

    def _word(self, parameter: int) -> Tuple[int, Any]:
        if parameter not in self._of_parameter:
            raise InvalidArgument("{} does not vary in this call".format(self._signature.parameters[parameter].name),
                                  "name it in varying= of prepare()")
        return self._of_parameter[parameter]

    def _set_tensor(self, word: int, name: str, kind: Any, tensor: "Tensor") -> None:
        if tensor.kind != kind:
            raise InvalidArgument("'{}' has dtype, shape and strides {}, and the call was prepared with {}".format(
                name, tensor.kind, kind), "pass a tensor of the same kind, or prepare another call")
        self._put(word, tensor)

    def _put(self, word: int, tensor: "Tensor") -> None:
        self._words[word] = self._lane._place(tensor)
        self._addresses[word] = tensor.address

    def _set(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        for parameter, value in self._match(args, kwargs):
            name = self._signature.parameters[parameter].name
            word, kind = self._word(parameter)
            if isinstance(kind, str):
                self._words[word] = encode(name, kind, value)
            else:
                self._set_tensor(word, name, kind, self._lane._tensor(name, value))


class Tensor:
    """A tensor of a call: a part of a buffer."""

    def __init__(self, buffer: int, offset_bytes: int, dtype: dtypes.DType, shape: Sequence[int],
                 strides: Sequence[int], address: int = 0) -> None:
        """strides: in elements. address: in memory of this process; otherwise 0."""
        self.buffer = buffer
        self.offset_bytes = offset_bytes
        self.dtype = dtype
        self.address = address
        self.value: Any = None  # What it describes, if that must be kept while a call uses it.
        self.kind = (dtype.name, tuple(shape), tuple(strides))


def closed() -> Error:
    return FailedPrecondition("the lane is closed", "open another one")


def _find_parameter(signature: Signature, name: str) -> int:
    if name not in signature.by_keyword:
        raise InvalidArgument("{} has no parameter '{}'".format(signature.operator, name),
                              "its parameters are " + ", ".join(signature.by_keyword))
    return signature.by_keyword[name]


def encode(name: str, dtype: str, value: Any) -> int:
    """The bits of a scalar."""
    try:
        if dtype[0] != "f" and value != int(value):
            raise ValueError
        bits = struct.pack(_FORMATS[dtype], float(value) if dtype[0] == "f" else int(value))
    except (KeyError, TypeError, ValueError, OverflowError, struct.error):
        raise InvalidArgument("'{}' is {!r}, which is no {}".format(name, value, dtype),
                              "pass a number of that type") from None
    return int.from_bytes(bits, "little")


class Lane:
    """A lane to one device. Close it, or use it in a with block."""

    _call_class = LaneCall

    def __init__(self, client: "Client", device: int, slots: int, data_bytes: int) -> None:
        self._handle = 0
        self._library = load()
        self._client = client
        request = message("OpenLaneRequest")(device=check_device(device) or 0, slots=slots,
                                              data_bytes=data_bytes)
        # The call lasts as long as the lane.
        client._connection.session()
        self._connection = client._connection.route("Lanes.Open", request)
        self._stream = self._connection.open("Lanes.Open", request)
        try:
            self._info = next(self._stream)
        except grpc.RpcError as error:
            raise self._connection.failure(error) from None
        self._bound: Dict[int, int] = {}  # Index in the lane, by the buffer's id.
        handle = ctypes.c_void_p()
        code = self._library.residentd_lane_attach(self._info.local_address.encode(), self._info.token.encode(),
                                                   ctypes.byref(handle))
        self._handle = handle.value or 0  # 0: there is no lane.
        if code:
            error = _OF_CODE.get(code, Internal)(self._library.residentd_lane_last_error().decode())
            self._stream.cancel()
            raise error

    def prepare(self, operator: str, *args: Any, varying: Sequence[str] = (), version: int = 0,
                **kwargs: Any) -> LaneCall:
        """Prepares a call of an operator.

        Tensors are buffers of the client (upload(), empty()) on the lane's device, or arrays of shared();
        scalars are passed by keyword, also `axis` and `keepdims` of reductions. An input that may be absent
        can be None. Each other tensor may be another one in each call; a scalar only if its name is in
        `varying`. At most 7 tensors and scalars vary. Without a version, each call runs the version that is
        active then.
        """
        signature = self._client._drive(self._client._operations.describe(operator)).signature
        given: Dict[int, Any] = {}
        positions = [i for i, p in enumerate(signature.parameters) if not p.scalar]
        if len(args) > len(positions):
            raise InvalidArgument("{} takes {} tensors and got {}".format(operator, len(positions), len(args)),
                                  "pass scalars by keyword")
        for i, value in enumerate(args):
            given[positions[i]] = value
        reduction = {name: kwargs.pop(name) for name in REDUCTION_OPTIONS
                     if signature.reduces and name in kwargs}
        for name, value in kwargs.items():
            parameter = _find_parameter(signature, name)
            if parameter in given:
                raise InvalidArgument("{} is given twice".format(name), "pass it once")
            given[parameter] = value
        tensors = {i: self._tensor(signature.parameters[i].name, value) for i, value in given.items()
                   if not signature.parameters[i].scalar and value is not None}
        if signature.reduces and (reduction or signature.by_keyword["axes"] not in given):
            self._reduce(signature, given, tensors, reduction)
        vary = {_find_parameter(signature, name) for name in varying}
        return self._prepare(signature, given, tensors, vary, version)

    def _reduce(self, signature: Signature, given: Dict[int, Any], tensors: "Dict[int, Tensor]",
                options: Dict[str, Any]) -> None:
        """Sets the scalar `axes` of a reduction."""
        axes, x, out = (signature.by_keyword[name] for name in ("axes", "x", "out"))
        if x not in tensors:
            return  # Refused below.
        given[axes], shape = signature.reduce(tensors[x].kind[1], given.get(axes), options.get("axis"),
                                              options.get("keepdims", False))
        if out in tensors and tensors[out].kind[1] != shape:
            raise signature.mismatch(out, "shape {} must be {} for these axes".format(
                list(tensors[out].kind[1]), list(shape)), "pass a tensor of this shape, or set keepdims")

    def _prepare(self, signature: Signature, given: Dict[int, Any], tensors: "Dict[int, Tensor]", vary: Any,
                 version: int, elements: int = 0) -> LaneCall:
        """Prepares a call. given: scalars, and None for absent inputs, by parameter; vary: the scalars that
        vary. elements: if it is not 0, the last word is the number of elements, up to this one."""
        request = message("PrepareLaneRequest")(lane_id=self._info.lane_id)
        request.tasks.operator = signature.operator
        request.tasks.version = version
        request.tasks.count = 1
        words: List[Tuple[int, Any]] = []
        first: List[Any] = []
        for i, parameter in enumerate(signature.parameters):
            if parameter.scalar:
                value = given.get(i)
                value = parameter.default if value is None else value
                if value is None:
                    raise InvalidArgument("{} needs '{}'".format(signature.operator, parameter.name),
                                          "pass a value for it")
                dtype = dtypes.BY_NUMBER[parameter.dtypes[0]].name
                bits = encode(parameter.name, dtype, value)
                scalar = request.tasks.arguments.add().scalar
                if dtype[0] == "f":
                    scalar.f64.append(float(value))
                else:
                    scalar.i64.append(int(value))
                if i in vary:
                    request.words.add().value.argument = i
                    words.append((i, dtype))
                    first.append(bits)
                continue
            tensor = tensors.get(i)
            column = request.tasks.arguments.add().buffer
            if tensor is None:
                if i not in given or not tensors or not signature.may_be_absent(i):
                    raise InvalidArgument("{} needs '{}'".format(signature.operator, parameter.name), "pass " + (
                        "memory for the output" if parameter.kind == OUTPUT else "a tensor for it"))
                # A tensor without elements, in any buffer.
                column.buffer_ids.append(next(iter(tensors.values())).buffer)
                column.dtype = parameter.dtypes[0]
                column.shape.append(0)
                continue
            column.buffer_ids.append(tensor.buffer)
            column.offsets.append(tensor.offset_bytes)
            column.dtype = tensor.dtype.number
            column.shape.extend(tensor.kind[1])
            column.scalar_shape = not tensor.kind[1]
            if not is_dense(tensor.kind[1], tensor.kind[2]):
                column.strides.extend(tensor.kind[2])
            request.words.add().place.argument = i
            words.append((i, tensor.kind))
            first.append(tensor)
        if elements:
            request.words.add().elements.max = elements
        if len(request.words) > MAX_WORDS:
            raise InvalidArgument("{} tensors and scalars vary".format(len(request.words)),
                                  "let at most {} vary; put tensors side by side into one".format(MAX_WORDS))
        response = self._connection._call("Lanes.Prepare", request, None, signature.operator)
        call = self._call_class(self, response.call, response.version, signature, words, first)
        call.joins, call.has_elements = response.joins, bool(elements)
        call._count += call.has_elements
        return call

    def _release(self, calls: Sequence[int] = (), buffers: Sequence[int] = ()) -> None:
        """Releases calls, and indices of buffers, that no unanswered submission names."""
        self._connection._call("Lanes.Release", message("ReleaseLaneRequest")(
            lane_id=self._info.lane_id, calls=calls, buffers=buffers), None, "")

    def wait(self, sequence: int, timeout: Optional[float] = None) -> None:
        """Waits until a submission has ended; raises its error. timeout: seconds. Not later than as many
        submissions as the lane has slots."""
        if not self._handle:
            raise closed()
        completion = Completion()
        code = self._library.residentd_lane_await(self._handle, sequence,
                                                  -1 if timeout is None else int(timeout * 1e9),
                                                  ctypes.addressof(completion))
        if code or completion.status:
            self._raise(code, completion)

    @property
    def slots(self) -> int:
        """Submissions that can be unanswered at a time."""
        return int(self._info.slots)

    def close(self) -> None:
        """Ends the lane: what was submitted and has not begun is dropped."""
        if not self._handle:
            return
        self._library.residentd_lane_detach(self._handle)
        self._handle = 0
        self._stream.cancel()

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _tensor(self, name: str, value: Any) -> Tensor:
        if isinstance(value, BufferView):
            return Tensor(value.id, value._offset * value._dtype.size, value._dtype, value._shape, value._strides)
        located = None
        if isinstance(value, np.ndarray):
            located = self._client._operations.memory.locate(value)
        if located is None:
            raise InvalidArgument("'{}' is not memory of the daemon".format(name),
                                  "pass a buffer of upload() or empty(), or an array of shared()")
        dtype = dtypes.of_array(value)
        if dtype is None:
            raise InvalidArgument("'{}' has the dtype {}, which no operator takes".format(name, value.dtype), "convert it")
        return Tensor(located[0].buffer_id, located[1], dtype, value.shape,
                       [stride // dtype.size for stride in value.strides],
                      int(value.__array_interface__["data"][0]))

    def _place(self, tensor: Tensor) -> int:
        return self._bind(tensor.buffer) << 48 | tensor.offset_bytes

    def _bind(self, buffer: int) -> int:
        """The index of a buffer in the lane's table."""
        index = self._bound.get(buffer)
        if index is None:
            request = message("BindLaneRequest")(lane_id=self._info.lane_id, buffer_ids=[buffer])
            response = self._connection._call("Lanes.Bind", request, None, "")
            index = self._bound[buffer] = int(response.indices[0])
        return index

    def _raise(self, code: int, completion: Optional[Completion]) -> None:
        if code:
            text = self._library.residentd_lane_last_error().decode()
            if code in (_LOST, _CLOSED):
                self._raise_end(text)
            error = _OF_CODE.get(code, Internal)(text)
            error.may_have_run = code == _TIMEOUT
            raise error
        assert completion is not None
        text = self._library.residentd_lane_explain(self._handle, ctypes.byref(completion)).decode()
        if completion.status != _REFUSED:
            error = _OF_STATUS.get(completion.status, Internal)(text)
            error.may_have_run = completion.status in (1, 6) or bool(completion.flags & _MAY_HAVE_RUN)
            raise error
        if completion.detail == _REFUSED_PERMISSION:
            raise PermissionDenied(text)
        raise (FailedPrecondition if completion.detail in _REFUSED_LATER else InvalidArgument)(text)

    def _raise_end(self, text: str) -> None:
        """The status of the stream says why the daemon closed the lane."""
        try:
            for _ in self._stream:
                pass
        except grpc.RpcError as error:
            found = errors.from_rpc(error)
            found.may_have_run = True
            raise found from None
        lost = Unavailable(text)
        lost.may_have_run = True
        raise lost
