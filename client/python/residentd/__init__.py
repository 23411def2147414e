"""Runs operators of a residentd daemon on NumPy arrays.

    import residentd, numpy as np

    with residentd.connect("127.0.0.1:50051") as rd:
        add = rd.op("add")
        z = add(np.float32([1, 2, 3]), np.float32([10, 20, 30]), alpha=2)

See docs/python.md. residentd.aio has the same interface for asyncio.
"""

from .client import Buffer, Client, connect
from .dtypes import BFloat16Array, bfloat16
from .errors import (Aborted, AlreadyExists, Cancelled, DeadlineExceeded, Error, FailedPrecondition,
                     Internal, InvalidArgument, NotFound, OutOfRange, PermissionDenied,
                     ResourceExhausted, TaskError, TaskFailed, TaskTimedOut, Unauthenticated, Unavailable,
                     Unimplemented, WrongType)
from .flux import FluxResult
from .operator import Operator
from .operators import Bake, Event, Example, InOut, Installed, OperatorInfo, Operators, Output, Watch
from .results import Result
from .status import Status
from .stream import Stream
from .version import __version__

__all__ = [
    "Aborted", "AlreadyExists", "BFloat16Array", "Bake", "Buffer", "Cancelled", "Client",
    "DeadlineExceeded", "Error", "Event", "Example", "FailedPrecondition", "FluxResult", "InOut",
    "Installed", "Internal", "InvalidArgument", "NotFound", "Operator", "OperatorInfo", "Operators",
    "OutOfRange", "Output", "PermissionDenied", "ResourceExhausted", "Result", "Status", "Stream",
    "TaskError", "TaskFailed", "TaskTimedOut", "Unauthenticated", "Unavailable", "Unimplemented", "Watch",
    "WrongType",
    "__version__", "bfloat16", "connect",
]
