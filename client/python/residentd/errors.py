"""Errors: one class for each status of a call, and TaskFailed for tasks that did not end OK (NodeFailed
for a node of a task graph).

Each error keeps the daemon's text. What was wrong is `message`; what to do about it is `fix`, which
str() prints on its own line:

    residentd.errors.NotFound: there is no operator 'ad'
    Fix: did you mean 'add'?
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import grpc

_FIX = "Fix: "


class Error(Exception):
    """A call that failed, or that was refused before it was sent.

    code: the name of the status of gRPC, for instance "INVALID_ARGUMENT".
    message: what was wrong.
    fix: what to do; may be empty.
    operator: the operator's name, if the call ran one.
    reason: a short name of the kind of error, for programs, such as "SHAPE_MISMATCH"; may be empty.
    details: values that belong to `reason`.
    may_have_run: whether a task of the call may have run. If not, the call can be sent again.
    """

    default_code = "UNKNOWN"

    def __init__(self, message: str, fix: str = "", *, operator: str = "", code: str = "",
                 reason: str = "", details: Optional[Mapping[str, str]] = None) -> None:
        if not fix:
            message, fix = split_fix(message)
        message, fix = _in_own_words(message), _in_own_words(fix)
        super().__init__(message)  # One argument: OSError would take two as errno and text.
        self.code = code or self.default_code
        self.message = message
        self.fix = fix
        self.operator = operator
        self.reason = reason
        self.details: Dict[str, str] = dict(details or {})
        self.may_have_run = False  # As of errors that are raised before anything is sent.
        self.passes = False  # Whether the same call may succeed in a moment, and did not run.

    def __str__(self) -> str:
        return "{}\n{}{}".format(self.message, _FIX, self.fix) if self.fix else self.message

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


# What only the gRPC API has, in the words of this package.
_WORDS = (
    ("Operators.List", "rd.operators.list()"), ("Operators.Describe", "rd.operators.describe()"),
    ("Operators.Remove", "rd.operators.remove()"), ("Operators.Watch", "rd.operators.watch()"),
    ("Buffers.LoadFile", "rd.load_file()"), ("Buffers.List", "rd.buffers()"),
    ("Graphs.Validate", "rd.graphs.validate()"), ("Admin.Status", "rd.status()"),
    ("send version 0 for the active one", "leave version= out for the active one"),
    ("send one column for each of", "pass one argument for each of"),
    ("send the output's shape in place of infer_shape", "pass shape=(...)"),
    ("raise limits.task_time_ms", "pass task_time_ms="),
    ("set it in `scalars`", "pass it by its name"),
    ("leave BufferColumn.strides empty, and copy", "copy"),
    ("Client.status()", "rd.status()"),
)


def _in_own_words(text: str) -> str:
    for api, here in _WORDS:
        text = text.replace(api, here)
    return text


def _rebuild(kind: Type[Error], message: str, state: Dict[str, Any]) -> Error:
    error = kind.__new__(kind, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class InvalidArgument(Error, ValueError):
    """An argument has the wrong type, shape or value."""

    default_code = "INVALID_ARGUMENT"


class WrongType(InvalidArgument, TypeError):
    """An argument is of a type that is not accepted, such as a masked array."""


class NoAttribute(InvalidArgument, AttributeError):
    """There is no such attribute, such as a method of NumPy's arrays that a published function calls."""


class FileError(InvalidArgument, OSError):
    """A file of this machine cannot be read. The cause (__cause__) is Python's error."""


class FileMissing(FileError, FileNotFoundError):
    """There is no such file on this machine."""


class NotFound(Error, LookupError):
    """There is no such operator, version or buffer."""

    default_code = "NOT_FOUND"


class AlreadyExists(Error):
    """The name is in use."""

    default_code = "ALREADY_EXISTS"


class DeadlineExceeded(Error, TimeoutError):
    """The timeout passed. A task of the call may have run."""

    default_code = "DEADLINE_EXCEEDED"


class Unavailable(Error, ConnectionError):
    """No daemon answered, the daemon is stopping, or the device has no engine."""

    default_code = "UNAVAILABLE"


class PermissionDenied(Error, PermissionError):
    """The caller may not do this."""

    default_code = "PERMISSION_DENIED"


class Unauthenticated(Error, PermissionError):
    """The credential is missing or was not accepted."""

    default_code = "UNAUTHENTICATED"


class ResourceExhausted(Error):
    """A limit was reached: memory, queue, message size, quota."""

    default_code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """The state does not allow the call."""

    default_code = "FAILED_PRECONDITION"


class Aborted(Error):
    """Another change happened before this one."""

    default_code = "ABORTED"


class Cancelled(Error):
    """The call was cancelled."""

    default_code = "CANCELLED"


class OutOfRange(Error, IndexError):
    """A position past the end of a buffer, or events that are no longer kept."""

    default_code = "OUT_OF_RANGE"


class Unimplemented(Error, NotImplementedError):
    """The daemon does not serve this method."""

    default_code = "UNIMPLEMENTED"


class Internal(Error):
    """An error of the daemon itself."""

    default_code = "INTERNAL"


_CLASSES: Dict[str, Type[Error]] = {
    kind.default_code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, DeadlineExceeded, Unavailable,
                 PermissionDenied, Unauthenticated, ResourceExhausted, FailedPrecondition, Aborted,
                 Cancelled, OutOfRange, Unimplemented, Internal)
}
_CODE_NAMES: Dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class TaskError:
    """How one task failed."""

    def __init__(self, index: int, status: str, message: str) -> None:
        self.index = index  # In its batch.
        self.status = status  # "ABORTED", ...
        self.message = message

    def __repr__(self) -> str:
        return "TaskError(index={}, status={!r}, message={!r})".format(self.index, self.status,
                                                                        self.message)


# Errors of calls after which a task may have run, or may still run.
_MAY_HAVE_RUN_CODES = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNAVAILABLE",
                       "DATA_LOSS"}
# Reasons of the daemon's refusals that pass by themselves (runtime/base/errors/reason.h).
_PASSING = {"DRAINING", "NO_DEVICE", "DEVICE_UNAVAILABLE", "QUEUE_FULL", "STAGING_FULL", "MEMORY_FULL",
            "TASK_QUOTA", "UNKNOWN_SESSION", "SESSION_ELSEWHERE"}
# Of calls to a node whose session has ended, or that is about to end it.
LEAVING = {"DRAINING", "UNKNOWN_SESSION", "SESSION_ELSEWHERE"}
NODE_LEFT = "NODE_LEFT"
# With these messages gRPC ends a call for which it found no connection, so that nothing was sent.
_NOT_CONNECTED = ("failed to connect to all addresses", "connections to all backends failing",
                  "DNS resolution failed")
_ANSWER_TOO_LARGE = "Received message larger than max"

# A task that was refused on the device, or that did not reach it, has not changed anything. One that
# was stopped there has, and its message says so; such tasks are the first of their batch.
NEVER_RAN = {"INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "CANCELLED"}
_MAY_HAVE_RUN = "may have run"


class TaskFailed(Error):
    """The call succeeded, and tasks of it did not end OK.

    errors: the first 16 of these tasks, each with index, status and message.
    may_have_run: whether a task succeeded, or a failed one may have run in part. If not, the call can
        be repeated.
    result: the Result; the outputs of the tasks that failed are zeros, and
        an inout keeps the elements that were passed for them, unless it is used in place.
    """

    def __init__(self, operator: str, errors: Sequence[TaskError], failed: int, count: int,
                 result: Any) -> None:
        first = errors[0]
        message = first.message or "task {} ended {}".format(first.index, first.status)
        text, fix = split_fix(message)
        if count > 1:
            text = "{} of {} tasks failed; task {}: {}".format(failed, count, first.index, text)
        super().__init__(text, fix, operator=operator, code=first.status)
        self.errors: List[TaskError] = list(errors)
        self.result = result
        # A task that succeeded has run.
        self.may_have_run = failed < count or any(
            error.status not in NEVER_RAN | {"UNAVAILABLE"} or _MAY_HAVE_RUN in error.message
            for error in errors)
        self.passes = (failed == count == len(errors) and not self.may_have_run and
                       all(error.status == "UNAVAILABLE" for error in errors))


class TaskTimedOut(TaskFailed, DeadlineExceeded):
    """Tasks that did not reach the device before the timeout, or were stopped there."""


_NODE_FAILED = "NODE_FAILED"
# What the task of a node can end with. With other codes no task ran, for example because a queue is full.
_TASK_CODES = {"INVALID_ARGUMENT", "ABORTED", "UNAVAILABLE", "INTERNAL"}


class NodeFailed(TaskFailed):
    """A node of a task graph failed, which ended the run.

    node, operator, version, step: which node, what it called, and when. version is 0 if no version was
        chosen yet.
    errors: one entry, with the daemon's message.
    may_have_run: True, because other nodes may have run.
    result: None.
    """

    def __init__(self, message: str, code: str, details: Mapping[str, str]) -> None:
        self.node = details.get("node", "")
        self.version = int(details.get("version") or 0)
        self.step = int(details.get("step") or 0)
        super().__init__(details.get("operator", ""), [TaskError(0, code, message)], 1, 1, None)
        self.reason, self.details = _NODE_FAILED, dict(details)
        self.may_have_run, self.passes = True, False


def task_failed(operator: str, errors: Sequence[TaskError], failed: int, count: int,
                result: Any) -> TaskFailed:
    """The error about tasks that did not end OK; `errors` has the first of them."""
    kind = TaskTimedOut if errors[0].status == "DEADLINE_EXCEEDED" else TaskFailed
    return kind(operator, errors, failed, count, result)


def node_left(node: str, cause: Union[Error, str]) -> Unavailable:
    """The error of a call with what belonged to a node that has left. cause: the call's own error, or what
    is gone."""
    error = cause if isinstance(cause, Error) else None
    made = Unavailable(
        "node {} has left: {}".format(node, cause if error is None else error.message),
        "make it again, for example with upload(): the client then uses another node, but for one of pin()",
        operator="" if error is None else error.operator, reason=NODE_LEFT, details={"node": node})
    made.may_have_run = error is not None and error.may_have_run
    return made


def split_fix(text: str) -> Tuple[str, str]:
    """Splits "what. Fix: how" into both parts; the second is empty if there is none."""
    message, found, fix = text.rpartition(_FIX)
    if not found:
        return text, ""
    return message.rstrip().rstrip("."), fix.strip()


def from_status(code: int, message: str, operator: str = "", reason: str = "",
                details: Optional[Mapping[str, str]] = None) -> Error:
    """The error of a status of gRPC; `code` is its number."""
    name = _CODE_NAMES.get(code, "UNKNOWN")
    if reason == _NODE_FAILED and name in _TASK_CODES:
        return NodeFailed(message, name, details or {})
    kind = _CLASSES.get(name, Error)
    return kind(message, operator=operator, code=name, reason=reason, details=details)


def from_python(error: Exception) -> InvalidArgument:
    """The package's error for one of Python's that an argument of a wrong type or value caused."""
    kind = WrongType if isinstance(error, TypeError) else InvalidArgument
    return kind("an argument is not accepted: {}".format(error),
                "pass a value of the type and in the range that the documentation of the call names")


def read_file(path: Any) -> bytes:
    """The bytes of a file. FileError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, TypeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        kind = FileMissing if isinstance(error, FileNotFoundError) else FileError
        raise kind("cannot read {}: {}".format(path, why),
                   "give the path of a file that exists and is readable") from error


def from_refusal(refusal: Any, operator: str = "") -> Error:
    """The error of a resident.v1.Refusal: of a batch that a stream refused."""
    error = from_status(refusal.code, refusal.message, operator, refusal.reason, refusal.metadata)
    error.passes = error.reason in _PASSING
    return error


def from_rpc(error: Any, operator: str = "") -> Error:
    """The error of a grpc.RpcError (a call of grpc, or of grpc.aio)."""
    code = error.code()
    message = error.details() or ""
    reason, details = _error_info(error)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in message:
        message += (". Fix: send less at once or put it into buffers; or raise the daemon's "
                    "--max_message_mib, and max_message_mib of connect()")
    made = from_status(code.value[0], message, operator, reason, details)
    made.passes = reason in _PASSING or (code is grpc.StatusCode.UNAVAILABLE and
                                         any(text in message for text in _NOT_CONNECTED))
    made.may_have_run = not made.passes and (isinstance(made, NodeFailed) or
                                             code.name in _MAY_HAVE_RUN_CODES or
                                             _ANSWER_TOO_LARGE in message)
    return made


def _error_info(error: Any) -> Tuple[str, Dict[str, str]]:
    """reason and metadata of the google.rpc.ErrorInfo in the call's trailing metadata, if any."""
    from . import rpc_status

    trailing = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailing or ():
        if key == rpc_status.KEY:
            return rpc_status.error_info(value)
    return "", {}
