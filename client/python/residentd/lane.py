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
from .signature import OUTPUT, Signature

if TYPE_CHECKING:
    from .client import Client

_VERSION = 1
_MAX_WORDS = 7
_FULL, _TIMEOUT, _LOST, _CLOSED, _INVALID, _FORKED, _NOT_ACCEPTED, _SYSTEM = range(-1, -9, -1)
_REFUSED = 64
_REFUSED_PERMISSION = 10
_REFUSED_LATER = (9, 11, 12)  # A lost buffer, a quarantined version, a call to be prepared again.
_MAY_HAVE_RUN = 2


class _Column(ctypes.Structure):
    """residentd_lane_column."""
    _fields_ = [("base", ctypes.c_uint64), ("stride", ctypes.c_uint64), ("values", ctypes.c_void_p)]


class _Completion(ctypes.Structure):
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

_library: Optional[ctypes.CDLL] = None
# residentd_lane._lane, after _load(). None: it is not installed.
module: Any = None


def _load() -> ctypes.CDLL:
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
            ("cancel_below", None, [pointer, number]), ("explain", ctypes.c_char_p, [pointer, pointer])):
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
                 words: List[Tuple[int, Any]], first: Sequence[int]) -> None:
        """words: for each word the index of its parameter, and (dtype, shape, strides) of a tensor or the
        name of a scalar's dtype. first: the words of the template."""
        self._lane = lane
        self._number = number
        self.version = version  # That was active when the call was prepared, or the pinned one.
        self._signature = signature
        self._of_parameter = {parameter: (word, kind) for word, (parameter, kind) in enumerate(words)}
        self._positions = [i for i, p in enumerate(signature.parameters) if not p.scalar]
        self._words = (ctypes.c_uint64 * _MAX_WORDS)(*first)
        self._count = len(words)
        self._completion = _Completion()
        self._words_at = ctypes.addressof(self._words)
        self._completion_at = ctypes.addressof(self._completion)
        self._run = lane._library.residentd_lane_call

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> None:
        """Runs it. timeout: seconds; after DeadlineExceeded the task may still run."""
        if args or kwargs:
            self._set(args, kwargs)
        handle = self._lane._handle
        if not handle:
            raise _closed()
        code = self._run(handle, self._number, self._words_at, self._count,
                         -1 if timeout is None else int(timeout * 1e9), self._completion_at)
        if code or self._completion.status:
            self._lane._raise(code, self._completion)

    def submit(self, *args: Any, **kwargs: Any) -> int:
        """Submits it and does not wait; returns the number for Lane.wait()."""
        if args or kwargs:
            self._set(args, kwargs)
        if not self._lane._handle:
            raise _closed()
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
        columns = (_Column * _MAX_WORDS)()
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
                arrays.append((ctypes.c_uint64 * rows)(*(_encode(name, kind, number) for number in value)))
                columns[word].values = ctypes.addressof(arrays[-1])
            else:
                self._words[word] = _encode(name, kind, value)
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
            raise _closed()
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

    def _set_tensor(self, word: int, name: str, kind: Any, tensor: "_Tensor") -> None:
        if tensor.kind != kind:
            raise InvalidArgument("'{}' has dtype, shape and strides {}, and the call was prepared with {}".format(
                name, tensor.kind, kind), "pass a tensor of the same kind, or prepare another call")
        self._words[word] = self._lane._place(tensor)

    def _set(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        for parameter, value in self._match(args, kwargs):
            name = self._signature.parameters[parameter].name
            word, kind = self._word(parameter)
            if isinstance(kind, str):
                self._words[word] = _encode(name, kind, value)
            else:
                self._set_tensor(word, name, kind, self._lane._tensor(name, value))


class _Tensor:
    """A tensor of a call: a part of a buffer."""

    def __init__(self, buffer: int, offset_bytes: int, dtype: dtypes.DType, shape: Sequence[int],
                 strides: Sequence[int]) -> None:
        """strides: in elements."""
        self.buffer = buffer
        self.offset_bytes = offset_bytes
        self.dtype = dtype
        self.kind = (dtype.name, tuple(shape), tuple(strides))


def _closed() -> Error:
    return FailedPrecondition("the lane is closed", "open another one")


def _find_parameter(signature: Signature, name: str) -> int:
    if name not in signature.by_keyword:
        raise InvalidArgument("{} has no parameter '{}'".format(signature.operator, name),
                              "its parameters are " + ", ".join(signature.by_keyword))
    return signature.by_keyword[name]


def _encode(name: str, dtype: str, value: Any) -> int:
    """The bits of a scalar."""
    try:
        if dtype[0] != "f" and value != int(value):
            raise ValueError
        bits = struct.pack(_FORMATS[dtype], float(value) if dtype[0] == "f" else int(value))
    except (KeyError, TypeError, ValueError, OverflowError, struct.error):
        raise InvalidArgument("'{}' is {!r}, which is no {}".format(name, value, dtype), "pass a number of that type") from None
    return int.from_bytes(bits, "little")


class Lane:
    """A lane to one device. Close it, or use it in a with block."""

    def __init__(self, client: "Client", device: int, slots: int, data_bytes: int) -> None:
        self._handle = 0
        self._library = _load()
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
        scalars are passed by keyword. Each tensor may be another one in each call; a scalar only if its
        name is in `varying`. At most 7 tensors and scalars vary. Without a version, each call runs the
        version that is active then.
        """
        signature = self._client._drive(self._client._operations.describe(operator)).signature
        given: Dict[int, Any] = {}
        positions = [i for i, p in enumerate(signature.parameters) if not p.scalar]
        if len(args) > len(positions):
            raise InvalidArgument("{} takes {} tensors and got {}".format(operator, len(positions), len(args)),
                                  "pass scalars by keyword")
        for i, value in enumerate(args):
            given[positions[i]] = value
        for name, value in kwargs.items():
            parameter = _find_parameter(signature, name)
            if parameter in given:
                raise InvalidArgument("{} is given twice".format(name), "pass it once")
            given[parameter] = value
        request = message("PrepareLaneRequest")(lane_id=self._info.lane_id)
        request.tasks.operator = operator
        request.tasks.version = version
        request.tasks.count = 1
        vary = {_find_parameter(signature, name) for name in varying}
        words: List[Tuple[int, Any]] = []
        first: List[int] = []
        for i, parameter in enumerate(signature.parameters):
            value = given.get(i, parameter.default)
            if value is None:
                raise InvalidArgument("{} needs '{}'".format(operator, parameter.name), "pass " + (
                    "a buffer for the output" if parameter.kind == OUTPUT else "a value for it"))
            if parameter.scalar:
                dtype = dtypes.BY_NUMBER[parameter.dtypes[0]].name
                bits = _encode(parameter.name, dtype, value)
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
            tensor = self._tensor(parameter.name, value)
            column = request.tasks.arguments.add().buffer
            column.buffer_ids.append(tensor.buffer)
            column.offsets.append(tensor.offset_bytes)
            column.dtype = tensor.dtype.number
            column.shape.extend(tensor.kind[1])
            if tensor.kind[2] != _dense(tensor.kind[1]):
                column.strides.extend(tensor.kind[2])
            request.words.add().place.argument = i
            words.append((i, tensor.kind))
            first.append(self._place(tensor))
        if len(words) > _MAX_WORDS:
            raise InvalidArgument("{} tensors and scalars vary".format(len(words)),
                                  "let at most {} vary; put tensors side by side into one".format(_MAX_WORDS))
        response = self._connection._call("Lanes.Prepare", request, None, operator)
        return LaneCall(self, response.call, response.version, signature, words, first)

    def wait(self, sequence: int, timeout: Optional[float] = None) -> None:
        """Waits until a submission has ended; raises its error. timeout: seconds. Not later than as many
        submissions as the lane has slots."""
        if not self._handle:
            raise _closed()
        completion = _Completion()
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

    def _tensor(self, name: str, value: Any) -> _Tensor:
        if isinstance(value, BufferView):
            return _Tensor(value.id, value._offset * value._dtype.size, value._dtype, value._shape, value._strides)
        located = None
        if isinstance(value, np.ndarray):
            located = self._client._operations.memory.locate(value)
        if located is None:
            raise InvalidArgument("'{}' is not memory of the daemon".format(name),
                                  "pass a buffer of upload() or empty(), or an array of shared()")
        dtype = dtypes.of_array(value)
        if dtype is None:
            raise InvalidArgument("'{}' has the dtype {}, which no operator takes".format(name, value.dtype), "convert it")
        return _Tensor(located[0].buffer_id, located[1], dtype, value.shape,
                       [stride // dtype.size for stride in value.strides])

    def _place(self, tensor: _Tensor) -> int:
        index = self._bound.get(tensor.buffer)
        if index is None:
            request = message("BindLaneRequest")(lane_id=self._info.lane_id, buffer_ids=[tensor.buffer])
            response = self._connection._call("Lanes.Bind", request, None, "")
            index = self._bound[tensor.buffer] = response.indices[0]
        return index << 48 | tensor.offset_bytes

    def _raise(self, code: int, completion: Optional[_Completion]) -> None:
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


def _dense(shape: Sequence[int]) -> Tuple[int, ...]:
    strides: List[int] = []
    size = 1
    for dimension in reversed(shape):
        strides.insert(0, size)
        size *= dimension
    return tuple(strides)
