"""What a call returns."""

from __future__ import annotations

import collections
from typing import Any, Dict, List, Sequence, Tuple, TypeVar

import numpy as np

from .descriptors import enum_names
from .errors import NEVER_RAN, TaskError, task_failed

_STATUS = enum_names("resident.v1.TaskStatus", "TASK_STATUS_")
T = TypeVar("T")
_TUPLES: Dict[Tuple[str, ...], Any] = {}


class Result:
    """The result of a call.

    outputs: a named tuple with each output, in the order of the signature.
    version: the version of the operator that served it.
    content_hash: its content hash, if the operator was named with a content hash or a label.
    device: the index of the device that ran it, as in Client.status().
    device_ns: the time on the device in nanoseconds; for map(), the sum over all tasks, at
        most 2**32 - 1 if there are 256 tasks or more.
    """

    __slots__ = ("outputs", "version", "device", "device_ns", "content_hash")

    def __init__(self, outputs: Tuple[Any, ...], version: int, device: int, device_ns: int,
                 content_hash: str = "") -> None:
        self.outputs = outputs
        self.version = version
        self.device = device
        self.device_ns = device_ns
        self.content_hash = content_hash

    @property
    def value(self) -> Any:
        """The output if there is one, otherwise the named tuple: what a call of the operator
        returns."""
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def __repr__(self) -> str:
        return "Result(outputs={!r}, version={}, device={}, device_ns={})".format(
            self.outputs, self.version, self.device, self.device_ns)


def named_tuple(names: Sequence[str], values: Sequence[Any]) -> Tuple[Any, ...]:
    """The values as a named tuple."""
    key = tuple(names)
    kind: Any = _TUPLES.get(key)
    if kind is None:
        make: Any = collections.namedtuple
        kind = make("Outputs", key, rename=True)
        # The module has no class of this name from which pickle could make a copy.
        kind.__reduce__ = lambda self: (named_tuple, (key, tuple(self)))
        _TUPLES[key] = kind
    made: Tuple[Any, ...] = kind(*values)
    return made


def check_tasks(operator: str, message: Any, result: T, count: int) -> T:
    """The result, or TaskFailed if a task of the resident.v1.BatchResult did not end OK."""
    if not message.status:
        return result
    errors: List[TaskError] = [
        TaskError(error.index, _STATUS.get(error.status, "UNKNOWN"), error.message)
        for error in message.errors
    ]
    failed = int(np.count_nonzero(np.asarray(message.status)))
    if failed == 0:
        return result
    if not errors:
        first = int(np.flatnonzero(np.asarray(message.status))[0])
        errors = [TaskError(first, _STATUS.get(message.status[first], "UNKNOWN"), "")]
    error = task_failed(operator, errors, failed, count, result)
    # The daemon describes the first 16; of the others only the status is known.
    described = {each.index for each in errors}
    error.may_have_run |= any(
        _STATUS.get(message.status[i], "UNKNOWN") not in NEVER_RAN
        for i in map(int, np.flatnonzero(np.asarray(message.status))) if i not in described)
    raise error
