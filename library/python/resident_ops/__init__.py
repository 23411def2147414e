"""libresident_ops from Python: the operators of residentd in this process, without a daemon.

    import array
    import resident_ops

    x = array.array("f", [1, 2, 3])
    out = array.array("f", [0, 0, 0])
    with resident_ops.Operators() as ops:  # On the CPU; Operators(0): on the first GPU.
        ops.run("softmax", x, out)

A tensor is an object with the buffer protocol (array, numpy.ndarray, ctypes array), an object with
`data_ptr()`, `shape`, `stride()` and `dtype` (torch.Tensor), or a `Tensor`; None for an optional tensor
that is left out. Elements of bfloat16 are those of a torch tensor, of an array of ml_dtypes.bfloat16, or of a
`Tensor` with the dtype "bf16". A scalar is an int or a float. On a GPU the addresses must be the GPU's, and a call returns when the operator is launched:
synchronize the stream, then call `check()`.

`abi` has the functions as they are in C.
"""

import ctypes
import numbers
import os
import pathlib
import re

from . import abi

__all__ = ["CPU", "Error", "InvalidValue", "LaunchFailed", "NotAvailable", "Operators", "OutOfMemory",
           "Tensor", "names", "signature"]

CPU = abi.CPU

_DTYPES = {"f32": abi.F32, "f16": abi.F16, "bf16": abi.BF16, "f64": abi.F64, "i32": abi.I32,
           "i64": abi.I64, "u8": abi.U8, "i8": abi.I8, "u32": abi.U32}
# Formats of the buffer protocol, by kind and size: "l" has another size on other systems.
_KINDS = {"f": "f", "d": "f", "e": "f", "b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "n": "i",
          "B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "N": "u"}
_FORMATS = {("f", 4): abi.F32, ("f", 2): abi.F16, ("f", 8): abi.F64, ("i", 4): abi.I32,
            ("i", 8): abi.I64, ("i", 1): abi.I8, ("u", 1): abi.U8, ("u", 4): abi.U32}
_TORCH = {"torch.float32": abi.F32, "torch.float16": abi.F16, "torch.bfloat16": abi.BF16,
          "torch.float64": abi.F64, "torch.int32": abi.I32, "torch.int64": abi.I64,
          "torch.uint8": abi.U8, "torch.int8": abi.I8, "torch.uint32": abi.U32}


class Error(Exception):
    """A call failed. The message has the reason."""


class NotAvailable(Error):
    """There is no CUDA, no such GPU, or no library."""


class InvalidValue(Error):
    """The call was refused, or the operator refused a value."""


class LaunchFailed(Error):
    """The launch failed."""


class OutOfMemory(Error):
    """There is not enough memory."""


_ERRORS = {abi.NOT_AVAILABLE: NotAvailable, abi.INVALID_VALUE: InvalidValue,
           abi.LAUNCH_FAILED: LaunchFailed, abi.OUT_OF_MEMORY: OutOfMemory}


def _open():
    """Opens the library: $RESIDENT_OPS_LIBRARY, that of the same bundle, or that of the system."""
    named = os.environ.get("RESIDENT_OPS_LIBRARY")
    beside = pathlib.Path(__file__).resolve().parents[2] / "lib" / "libresident_ops.so"
    path = named or (str(beside) if beside.exists() else "libresident_ops.so")
    try:
        library = abi.load(path)
    except OSError as error:
        raise NotAvailable("{}. Fix: set RESIDENT_OPS_LIBRARY to the path of "
                           "libresident_ops.so".format(error)) from error
    version = library.resident_ops_version()
    if version != abi.VERSION:
        raise NotAvailable("{} has version {} of the interface, this binding {}. Fix: use both from "
                           "the same bundle".format(path, version, abi.VERSION))
    return library


_library = None


def _lib():
    global _library
    if _library is None:
        _library = _open()
    return _library


def _check(code):
    if code == abi.OK:
        return
    message = _lib().resident_ops_last_error().decode(errors="replace")
    raise _ERRORS.get(code, Error)(message)


def names():
    """The names of all operators."""
    lib = _lib()
    return [lib.resident_ops_name(i).decode() for i in range(lib.resident_ops_count())]


def signature(name):
    """The signature of an operator."""
    text = _lib().resident_ops_signature(name.encode())
    if text is None:
        raise InvalidValue("there is no operator {!r}".format(name))
    return text.decode()


class Tensor:
    """A tensor at an address. Strides are in elements; None: dense."""

    def __init__(self, address, dtype, shape, strides=None, owner=None):
        shape = tuple(shape)
        for number in (*shape, *(strides or ())):
            if not -(2**63) <= number < 2**63:
                raise InvalidValue("{} does not fit 64 bits".format(number))
        if not 0 <= address < 2**64:
            raise InvalidValue("{} is no address".format(address))
        self.address = address
        self.dtype = _DTYPES[dtype] if isinstance(dtype, str) else dtype
        self.shape = shape
        if strides is None:
            strides, stride = [], 1
            for size in reversed(self.shape):
                strides.insert(0, stride)
                stride *= max(size, 1)
        self.strides = tuple(strides)
        self.readonly = False
        self.device = None  # If known: CPU or the number of a GPU.
        self._owner = owner  # Keeps the memory.

    @classmethod
    def of(cls, value, _as=None):
        """The tensor that an object holds. _as: its dtype, if that of the object is another one."""
        if isinstance(value, cls):
            return value
        if hasattr(value, "data_ptr"):
            dtype = _TORCH.get(str(value.dtype))
            if dtype is None:
                raise InvalidValue("dtype {} has no counterpart".format(value.dtype))
            tensor = cls(value.data_ptr(), dtype, value.shape, value.stride(), value)
            tensor.device = CPU if value.device.type == "cpu" else value.device.index
            return tensor
        if str(getattr(value, "dtype", "")) == "bfloat16" and hasattr(value, "view"):  # Of ml_dtypes.
            tensor = cls.of(value.view("uint16"), _as=abi.BF16)
            tensor._owner = value, tensor._owner
            return tensor
        try:
            view = memoryview(value)
        except (TypeError, ValueError) as error:
            raise InvalidValue("{} is not a tensor ({})".format(type(value).__name__, error)) from error
        dtype = _as or _FORMATS.get((_KINDS.get(view.format.lstrip("@=<")), view.itemsize))
        if dtype is None:
            raise InvalidValue("elements of format {!r} have no counterpart".format(view.format))
        if any(stride % view.itemsize for stride in view.strides):
            raise InvalidValue("strides {} are not multiples of the elements".format(view.strides))
        strides = [stride // view.itemsize for stride in view.strides]
        tensor = cls(_address(view), dtype, view.shape, strides, view)
        tensor.readonly = view.readonly
        return tensor


class _PyBuffer(ctypes.Structure):
    """Py_buffer: its first members, and room for the others."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("rest", ctypes.c_char * 128)]


_PYBUF_FULL_RO = 0x011C


def _address(view):
    """The address of the element with all indices 0, also for negative strides."""
    buffer = _PyBuffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = [ctypes.POINTER(_PyBuffer)]
    get(view, ctypes.byref(buffer), _PYBUF_FULL_RO)
    try:
        return buffer.buf or 0
    finally:
        release(ctypes.byref(buffer))


def _parameters(name):
    """The name, the kind ("in", "out", "inout", "scalar"), the first dtype and the dimensions of each
    parameter."""
    text = _lib().resident_ops_signature(name.encode())
    if text is None:
        return []  # The call is refused with the reason.
    return re.findall(r"(\w+): (in|out|inout|scalar) (?:strided )?(\w+)[\w|]*(?:\[([^\]]*)\])?",
                      text.decode())


def _may_be_absent(parameter, parameters):
    """Whether None may be passed: a parameter with a shape of its own, such as a bias, is optional."""
    kind, dims = parameter[1], parameter[3]
    return kind == "in" and re.fullmatch(r"\*\w+", dims) is not None and sum(
        dims in each[3].replace("~", "").split(", ") for each in parameters) == 1


class Operators:
    """A handle: the operators on one device. It is for one thread at a time."""

    def __init__(self, device=CPU, max_blocks=0):
        if not -(2**31) <= device < 2**31:
            raise InvalidValue("there is no device {}".format(device))
        self._device = device
        self._handle = ctypes.POINTER(abi.ResidentOps)()
        _check(_lib().resident_ops_create(device, max_blocks, ctypes.byref(self._handle)))

    def run(self, name, *arguments, stream=None):
        """Runs one operator. Trailing scalars that have a default may be omitted."""
        handle = self._open_handle()
        if not isinstance(name, str):
            raise InvalidValue("the operator's name is {}, not a text".format(type(name).__name__))
        array = (abi.ResidentOpsArgument * max(len(arguments), 1))()
        kept = []
        parameters = _parameters(name)
        for i, (to, argument) in enumerate(zip(array, arguments)):
            parameter = parameters[i] if i < len(parameters) else ("", "in", "f32", "")
            kind, dtype = parameter[1:3]
            if isinstance(argument, numbers.Real):
                if isinstance(argument, numbers.Integral) and "f" not in dtype:
                    if not -(2**63) <= argument < 2**63:
                        raise InvalidValue("{} does not fit 64 bits".format(argument))
                    to.kind, to.integer = abi.INTEGER, int(argument)
                else:
                    to.kind, to.real = abi.REAL, float(argument)
                continue
            tensor = self._tensor(i, argument, parameter, name, parameters)
            if tensor.device not in (None, self._device):
                raise InvalidValue("argument {} of {} is on another device".format(i + 1, name))
            if tensor.readonly and kind in ("out", "inout"):
                raise InvalidValue("argument {} of {} is written, and its object is read-only".format(
                    i + 1, name))
            kept.append(tensor)
            to.kind, to.dtype, to.rank = abi.TENSOR, tensor.dtype, len(tensor.shape)
            to.data = tensor.address
            if to.rank <= abi.MAX_RANK:
                to.shape[:to.rank] = tensor.shape
                to.strides[:to.rank] = tensor.strides
        _check(_lib().resident_ops_run(handle, name.encode(), array, len(arguments), stream))

    def _open_handle(self):
        if not self._handle:
            raise InvalidValue("these Operators are closed. Fix: call them before close(), and inside their "
                               "with block")
        return self._handle

    def _tensor(self, index, argument, parameter, name, parameters):
        """The tensor of an argument, or InvalidValue with its number."""
        where = "argument {}{} of {}".format(index + 1, " '{}'".format(parameter[0]) if parameter[0] else "", name)
        if parameter[1] == "scalar":
            raise InvalidValue("{} is a scalar, and got {}. Fix: pass an int or a float".format(
                where, type(argument).__name__))
        if argument is None and _may_be_absent(parameter, parameters):
            return Tensor(0, parameter[2], (0,))
        try:
            return Tensor.of(argument)
        except InvalidValue as error:
            raise InvalidValue(
                "{}: {}. Fix: pass an array of NumPy or array, another object with the buffer protocol, a "
                "torch tensor, or a Tensor".format(where, error)) from error

    def check(self):
        """Raises the first error of the calls since the last check. Synchronize the stream first."""
        _check(_lib().resident_ops_status(self._open_handle(), None))

    def result(self):
        """The bytes that the last call of an operator without output tensors returned."""
        result = (ctypes.c_char * abi.RESULT_BYTES)()
        _check(_lib().resident_ops_result(self._open_handle(), result))
        return bytes(result)

    def close(self):
        if self._handle:
            handle, self._handle = self._handle, ctypes.POINTER(abi.ResidentOps)()
            _check(_lib().resident_ops_destroy(handle))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            _lib().resident_ops_destroy(self._handle)
