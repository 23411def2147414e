"""The interface of libresident_ops for ctypes.

Written by tools/ops_binding from library/resident_ops.h, which describes it; do not edit.
"""

import ctypes

VERSION = 1
OK = 0
NOT_AVAILABLE = -1
INVALID_VALUE = -2
LAUNCH_FAILED = -3
OUT_OF_MEMORY = -4
F32 = 1
F16 = 2
BF16 = 3
F64 = 4
I32 = 5
I64 = 6
U8 = 7
I8 = 8
U32 = 9
TENSOR = 1
REAL = 2
INTEGER = 3
CPU = -1
MAX_RANK = 8
MAX_ARGUMENTS = 14
RESULT_BYTES = 32


class ResidentOps(ctypes.Structure):
    """A handle."""


class ResidentOpsArgument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
        ("real", ctypes.c_double),
        ("integer", ctypes.c_int64),
    ]


class ResidentOpsOutcome(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("detail", ctypes.c_uint32),
        ("call", ctypes.c_uint64),
    ]


# Functions: the type of the result, and of the parameters.
FUNCTIONS = {
    "resident_ops_version": (ctypes.c_int32, [
    ]),
    "resident_ops_create": (ctypes.c_int32, [
        ctypes.c_int32,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.POINTER(ResidentOps)),
    ]),
    "resident_ops_destroy": (ctypes.c_int32, [
        ctypes.POINTER(ResidentOps),
    ]),
    "resident_ops_run": (ctypes.c_int32, [
        ctypes.POINTER(ResidentOps),
        ctypes.c_char_p,
        ctypes.POINTER(ResidentOpsArgument),
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]),
    "resident_ops_status": (ctypes.c_int32, [
        ctypes.POINTER(ResidentOps),
        ctypes.POINTER(ResidentOpsOutcome),
    ]),
    "resident_ops_result": (ctypes.c_int32, [
        ctypes.POINTER(ResidentOps),
        ctypes.c_void_p,
    ]),
    "resident_ops_last_error": (ctypes.c_char_p, [
    ]),
    "resident_ops_count": (ctypes.c_size_t, [
    ]),
    "resident_ops_name": (ctypes.c_char_p, [
        ctypes.c_size_t,
    ]),
    "resident_ops_signature": (ctypes.c_char_p, [
        ctypes.c_char_p,
    ]),
}


def load(path):
    """Opens the library and declares its functions."""
    library = ctypes.CDLL(path)
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = parameters
    return library
