"""FLUX programs (docs/flux.md): bytecode that the daemon interprets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence

import numpy as np

from . import dtypes, retries
from .buffers import check_device
from .calls import Steps, Unary
from .credentials import check_timeout
from .descriptors import message
from .errors import InvalidArgument, WrongType
from .results import Result, check_tasks

if TYPE_CHECKING:
    from .operations import Operations

_UNKNOWN_OPCODE_NOP = 1
_MAX_REGISTERS = 16


class FluxResult:
    """The results of runs.

    registers: int32, one row for each run, one column for each register that was asked for.
    errors: uint8, the error code of each run; 0: none (docs/flux.md).
    cycles: uint32, the instructions that each run executed.
    device, device_ns: the device that ran them, and their time on it in nanoseconds.
    """

    def __init__(self, message: Any, width: int) -> None:
        flux = message.flux
        self.cycles = np.frombuffer(flux.cycles, "<u4").copy()
        count = len(self.cycles)
        self.registers = np.frombuffer(flux.registers, "<i4").reshape(count, width).copy()
        self.errors = (np.frombuffer(flux.errors, "u1").copy() if flux.errors else
                       np.zeros(count, np.uint8))
        self.device = int(message.device)
        self.device_ns = int(sum(message.device_ns))

    def __repr__(self) -> str:
        return "FluxResult(registers={!r}, errors={!r}, cycles={!r})".format(
            self.registers, self.errors, self.cycles)


def bytes_of(value: Any, what: str) -> bytes:
    """The bytes of an object that consists of bytes; bytes() would make N zeros of a number N.
    InvalidArgument for anything else."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    if isinstance(value, memoryview) and value.itemsize == 1 and value.ndim == 1:
        return value.tobytes()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise WrongType("{} is {}, not bytes".format(what, type(value).__name__),
                    "pass bytes, for instance bytes([0x20, 0, 0, 1]), or one dimension of numpy.uint8")


def _programs(code: Any) -> List[bytes]:
    """The programs of a sequence."""
    if isinstance(code, np.ndarray) or not isinstance(code, (list, tuple)):
        raise WrongType("{} is not FLUX bytecode".format(
            "an array of {} with {} dimensions".format(code.dtype, code.ndim) if isinstance(code, np.ndarray)
            else type(code).__name__), "a program is bytes, or one dimension of numpy.uint8; pass one, a list "
            "of them, or the name of an operator")
    if not code:
        raise InvalidArgument("the list has no programs", "pass at least one")
    if all(isinstance(part, (int, np.integer)) for part in code):
        raise WrongType("a list of {} numbers is not FLUX bytecode".format(len(code)),
                        "a program is bytes, or a sequence of them: pass bytes(code)")
    return [bytes_of(part, "program {}".format(index)) for index, part in enumerate(code)]


def run(code: Any, inputs: Any, registers: Sequence[int], count: int, max_cycles: Optional[int],
        unknown_opcode_nop: bool, device: Optional[int],
        timeout: Optional[float], retry: Any, operations: "Operations") -> Steps[FluxResult]:
    """The steps of Client.flux."""
    retries.check(retry)
    retry = operations.retry_of(retry)
    batch = message("Batch")()
    programs = batch.programs
    many = False
    if isinstance(code, str):
        programs.operator = code
    elif isinstance(code, (bytes, bytearray, memoryview)) or (
            isinstance(code, np.ndarray) and code.dtype == np.uint8 and code.ndim == 1):
        programs.bytecode = bytes_of(code, "the program")
    else:
        many = True
        parts = _programs(code)
        programs.bytecode = b"".join(parts)
        programs.offsets.extend(np.cumsum([0] + [len(part) for part in parts]).tolist())
    if inputs is not None:
        dtypes.refuse_masked(inputs)
        rows = np.atleast_2d(np.asarray(inputs))
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.shape[1] > _MAX_REGISTERS:
            raise InvalidArgument(
                "inputs of shape {} and dtype {} are not initial registers".format(rows.shape, rows.dtype),
                "pass integers: one row for each run, at most 16 columns")
        limits = np.iinfo(np.int32)
        if rows.size and (rows.min() < limits.min or rows.max() > limits.max):
            raise InvalidArgument("an initial register does not fit 32 bits", "use int32")
        programs.initial = rows.astype("<i4").tobytes()
        programs.initial_width = rows.shape[1]
        if not many and not count:
            count = len(rows)
    programs.count = count
    programs.wanted.extend(registers)
    if max_cycles is not None:
        programs.max_cycles = max_cycles
    if unknown_opcode_nop:
        programs.unknown_opcode = _UNKNOWN_OPCODE_NOP
    device = check_device(device)
    if device is not None:
        batch.options.device = device
    if timeout is not None:
        check_timeout(timeout)
        batch.options.timeout_us = max(int(timeout * 1e6), 1)

    def attempt(left: Optional[float]) -> Steps[FluxResult]:
        if left is not None and timeout is not None:
            batch.options.timeout_us = max(int(left * 1e6), 1)
        response = yield Unary("Executor.Run", message("RunRequest")(batch=batch), left, "flux")
        result = FluxResult(response.result, len(registers) or 1)
        check_tasks("flux", response.result, Result((), 0, result.device, result.device_ns),
                    len(result.cycles))
        return result

    if not retry:
        return (yield from attempt(timeout))
    return (yield from retries.repeat(
        attempt, lambda error: retries.may_send_again(error, retry, True),
        operations.timeout if timeout is None else timeout))
