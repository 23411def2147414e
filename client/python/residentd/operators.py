"""Installing operators, and changing which version serves (docs/operators.md).

    installed = rd.operators.install("swish", expr="x * sigmoid(x)")
    installed.activate()
    rd.operators.rollback("swish")
"""

from __future__ import annotations

import inspect
import os
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple,
                    Union)

import grpc
import numpy as np

from . import dtypes, expression
from .buffers import check_shape
from .calls import Exchange, Steps, Unary
from .descriptors import enum_names, message
from .dtypes import DType, DTypeLike
from .errors import Error, InvalidArgument, WrongType, from_rpc, read_file
from .flux import bytes_of
from .operations import ShapeLike
from .operator_call import ISOLATION

if TYPE_CHECKING:
    from .client import Client

_STATES = enum_names("resident.v1.VersionState", "VERSION_STATE_")
# NativeForm.State.
_NATIVE_STATES = ("unspecified", "off", "compiling", "serving", "refused", "quarantined", "evicted")
# InstallHeader.Native.
_NATIVE = ("follows", "wait", "off")
_STATE_NUMBERS = {name.lower(): number for number, name in _STATES.items()}
_EVENTS = enum_names("resident.v1.OperatorEvent.Kind", "KIND_")
_ACTIONS = {"": 0, "off": 1, "warn": 2, "roll_back": 3}
_FILE_CHUNK_BYTES = 1 << 20
# Longer than the daemon waits for a version that never returns, so that its answer arrives.
_INSTALL_TIMEOUT_S = 300.0


class Output:
    """An output of an example whose value is not given: that of the active version is expected."""

    def __init__(self, shape: ShapeLike, dtype: DTypeLike = "f32") -> None:
        self.shape = check_shape(shape)
        self.dtype: DType = dtypes.find(dtype)


class InOut:
    """An inout of an example: the value before the call, and the expected one (None: the active
    version's)."""

    def __init__(self, initial: Any, expected: Any = None) -> None:
        self.initial = initial
        self.expected = expected


class Example:
    """Inputs of an operator, and the outputs that it must compute.

    values: one for each parameter of the signature, in its order: arrays; numbers (a float means f32, an
        int i64; numpy.int32(3) has its own dtype); for outputs the expected array or an Output; for an
        inout an InOut.
    relative_tolerance, absolute_tolerance: |out - expected| <= absolute + relative * |expected|. Both 0:
        the default of the dtype.
    """

    def __init__(self, *values: Any, relative_tolerance: float = 0.0,
                 absolute_tolerance: float = 0.0) -> None:
        self.values = values
        self.relative_tolerance = relative_tolerance
        self.absolute_tolerance = absolute_tolerance

    def message(self) -> Any:
        """The resident.v1.InstallExample."""
        made = message("InstallExample")(relative_tolerance=self.relative_tolerance,
                                         absolute_tolerance=self.absolute_tolerance)
        for value in self.values:
            into = made.values.add()
            if isinstance(value, Output):
                into.dtype = value.dtype.number
                into.shape.extend(value.shape)
                continue
            initial, expected = (value.initial, value.expected) if isinstance(value, InOut) else (value,
                                                                                                 None)
            array, dtype = _example_array(initial)
            into.dtype = dtype.number
            into.shape.extend(array.shape)
            into.data = array.tobytes()
            if expected is not None:
                into.data += dtypes.convert(dtypes.to_array(expected)[0], dtype).tobytes()
        return made


def _example_array(value: Any) -> Tuple["np.ndarray[Any, Any]", DType]:
    array, dtype = dtypes.to_array(value)
    if dtype is None:
        if array.dtype.kind not in "biuf" or isinstance(value, np.ndarray):
            raise InvalidArgument("residentd has no dtype {}".format(array.dtype), "convert the array")
        dtype = dtypes.BY_NAME["f32" if array.dtype.kind == "f" or array.ndim else "i64"]
        array = dtypes.from_numbers(value, dtype)
    return array, dtype


class OperatorInfo:
    """What the daemon says of an operator. `message` is the resident.v1.Operator."""

    def __init__(self, operator: Any) -> None:
        self.message = operator
        self.name = str(operator.name)
        self.summary = str(operator.summary)
        self.signature = str(operator.signature)
        self.active_version = int(operator.active_version)
        self.revision = int(operator.revision)
        # Number of each version to its state: "active", "loaded", "previous", ...
        self.versions: Dict[int, str] = {v.version: str(v.state) for v in operator.versions}
        # Label to the number of the version that has it.
        self.labels: Dict[str, int] = {str(v.label): v.version for v in operator.versions if v.label}
        # Number of each version that is compiled to "trusted" or "stoppable".
        self.isolation: Dict[int, str] = {
            v.version: ISOLATION[v.isolation] for v in operator.versions if v.isolation
        }
        # Number of each version that is bytecode to the state of its native code: "serving", "compiling", ...
        self.native: Dict[int, str] = {
            v.version: _NATIVE_STATES[v.native.state] for v in operator.versions if v.HasField("native")
        }

    def __repr__(self) -> str:
        return "<operator {}({}): version {} serves>".format(self.name, self.signature,
                                                             self.active_version)


class Event:
    """One change of an operator. kind: "installed", "activated", "rolled_back", ..."""

    def __init__(self, event: Any) -> None:
        self.kind = _EVENTS.get(event.kind, "UNKNOWN").lower()
        self.operator = str(event.operator)
        self.version = int(event.version)
        self.revision = int(event.revision)
        self.time_ms = int(event.time_ms)  # Since 1970.
        self.actor = str(event.actor)
        self.message = str(event.message)

    def __repr__(self) -> str:
        return "<event {}: {} {} version {}>".format(self.revision, self.operator, self.kind, self.version)


class Installed:
    """A version that was installed.

    steps: (state, duration in seconds) in the order in which it reached them.
    log: the output of the compilers.
    resources: registers, stack and so on, by architecture.
    """

    def __init__(self, name: str) -> None:
        self._operators: Optional[Operators] = None
        self.name = name
        self.version = 0
        self.revision = 0
        self.state = ""
        self.log = ""
        self.message = ""
        self.steps: List[Tuple[str, float]] = []
        self.resources: Dict[str, Any] = {}

    def receive(self, response: Any) -> None:
        """Takes in an answer of Install."""
        self.state = _STATES.get(response.state, "UNKNOWN").lower()
        self.steps.append((self.state, response.duration_us / 1e6))
        self.version = response.version or self.version
        self.revision = response.revision or self.revision
        self.log = response.log or self.log
        self.message = response.message or self.message
        self.resources.update(dict(response.resources))

    def activate(self, *, force: bool = False, bake: Optional["Bake"] = None) -> int:
        """Makes this version the active one. (With asyncio, use Operators.activate.)"""
        if self._operators is None:
            raise InvalidArgument("this version was not installed by a client for threads",
                                  "await operators.activate(name)")
        return self._operators.activate(self.name, self.version, force=force, bake=bake)

    def __repr__(self) -> str:
        return "<{} version {}: {}>".format(self.name, self.version, self.state)


class Bake:
    """How a version is monitored after it has begun to serve, and what happens if it is worse.

    action: "warn", "roll_back", "off", or "" for the daemon's --bake_action.
    time_ms: how long; 0: --bake_time. The thresholds are 0 for the daemon's.
    """

    def __init__(self, action: str = "", time_ms: int = 0, max_error_rate: float = 0.0,
                 max_latency_ratio: float = 0.0, max_mismatch_rate: float = 0.0,
                 min_tasks: int = 0) -> None:
        if action not in _ACTIONS:
            raise InvalidArgument("action={!r} is unknown".format(action),
                                  "use 'off', 'warn' or 'roll_back'")
        self.message = message("BakeOptions")(
            action=_ACTIONS[action], time_ms=time_ms, max_error_rate=max_error_rate,
            max_latency_ratio=max_latency_ratio, max_mismatch_rate=max_mismatch_rate,
            min_tasks=min_tasks)


# The steps that both clients use.


def install_steps(name: str, forget: Callable[[str], None], *, expr: Optional[str] = None,
                  source: Optional[str] = None, bytecode: Optional[bytes] = None,
                  object_file: Optional[Union[str, "os.PathLike[str]"]] = None,
                  files: Optional[Mapping[str, Union[str, bytes]]] = None, signature: str = "",
                  split: str = "", summary: str = "", label: str = "", examples: Sequence[Example] = (),
                  wait: str = "loaded", allow_spills: bool = False, task_time_ms: int = 0,
                  scratch_bytes: int = 0, native: str = "follows", isolation: str = "",
                  expected_revision: Optional[int] = None,
                  force: bool = False, timeout: Optional[float] = None) -> Steps[Installed]:
    """The steps of Operators.install."""
    if [expr, source, bytecode, object_file].count(None) != 3:
        raise InvalidArgument("an operator is made of exactly one of expr, source, bytecode, object_file",
                              "give one")
    if wait not in ("validated", "loaded", "active"):
        raise InvalidArgument("wait={!r} is unknown".format(wait),
                              "use 'validated', 'loaded' or 'active'")
    if native not in _NATIVE:
        raise InvalidArgument("native={!r} is unknown".format(native), "use 'follows', 'wait' or 'off'")
    if isolation not in ISOLATION:
        raise InvalidArgument("isolation={!r} is unknown".format(isolation),
                              "use 'trusted' or 'stoppable', or leave it out")
    for what, value in (("name", name), ("expr", expr), ("source", source), ("signature", signature),
                        ("split", split), ("summary", summary), ("label", label)):
        if value is not None and not isinstance(value, str):
            raise WrongType("{} is {}, not a text".format(what, type(value).__name__), "pass a text")
    for example in examples:
        if not isinstance(example, Example):
            raise WrongType("an example is {}".format(type(example).__name__),
                            "pass residentd.Example(values...)")
    header = message("InstallHeader")(name=name, summary=summary, signature=signature, split=split,
                                      allow_spills=allow_spills, wait_for=_STATE_NUMBERS[wait],
                                      native=_NATIVE.index(native), label=label, context=_context(force),
                                      isolation=ISOLATION.index(isolation))
    header.limits.task_time_ms = task_time_ms
    header.limits.scratch_bytes = scratch_bytes
    if expected_revision is not None:
        header.expected_revision = expected_revision
    contents: Dict[str, bytes] = {
        key: value.encode() if isinstance(value, str) else bytes_of(value, "the file '{}'".format(key))
        for key, value in (files or {}).items()
    }
    if expr is not None:
        header.expression = expr
    elif bytecode is not None:
        header.bytecode = bytes_of(bytecode, "bytecode")
    elif source is not None:
        header.main_file = name.replace(".", "_").replace("-", "_") + ".cc"
        contents[header.main_file] = source.encode()
    else:
        assert object_file is not None
        header.object_file = os.path.basename(object_file)
        contents[header.object_file] = read_file(object_file)
    request = message("InstallRequest")
    made = [example.message() for example in examples]  # Here, where an error reaches the caller.

    def requests() -> Iterator[Any]:
        yield request(header=header)
        for key, data in contents.items():
            for at in range(0, max(len(data), 1), _FILE_CHUNK_BYTES):
                yield request(file={"name": key, "data": data[at:at + _FILE_CHUNK_BYTES]})
        for example in made:
            yield request(example=example)

    installed = Installed(name)
    try:
        yield Exchange("Operators.Install", requests(), installed.receive,
                       _INSTALL_TIMEOUT_S if timeout is None else timeout)
    except Error as error:
        error.operator = name
        error.details.setdefault("log", installed.log)
        raise
    finally:
        forget(name)
    return installed


def _context(force: bool) -> Any:
    return message("ChangeContext")(drift=True) if force else None


def activate_steps(name: str, version: int, expected_revision: Optional[int], force: bool,
                   bake: Optional[Bake]) -> Steps[Any]:
    request = message("ActivateRequest")(name=name, version=version, force=force, context=_context(force),
                                         bake=None if bake is None else bake.message)
    if expected_revision is not None:
        request.expected_revision = expected_revision
    response = yield Unary("Operators.Activate", request, operator=name)
    return response


def rollback_steps(name: str, expected_revision: Optional[int]) -> Steps[Any]:
    request = message("RollbackRequest")(name=name)
    if expected_revision is not None:
        request.expected_revision = expected_revision
    response = yield Unary("Operators.Rollback", request, operator=name)
    return response


def promote_steps(name: str, version: int, traffic_percent: float, shadow_percent: float,
                  expected_revision: Optional[int], bake: Optional[Bake]) -> Steps[int]:
    request = message("PromoteRequest")(name=name, version=version, traffic_percent=traffic_percent,
                                        shadow_percent=shadow_percent,
                                        bake=None if bake is None else bake.message)
    if expected_revision is not None:
        request.expected_revision = expected_revision
    response = yield Unary("Operators.Promote", request, operator=name)
    return int(response.revision)


def remove_steps(name: str, forget: Callable[[str], None], expected_revision: Optional[int], force: bool,
                 timeout: Optional[float]) -> Steps[int]:
    request = message("RemoveRequest")(name=name, context=_context(force))
    if expected_revision is not None:
        request.expected_revision = expected_revision
    try:
        response = yield Unary("Operators.Remove", request, timeout, name)
    finally:
        forget(name)
    return int(response.revision)


def list_steps() -> Steps[List[OperatorInfo]]:
    response = yield Unary("Operators.List", message("ListOperatorsRequest")())
    return [OperatorInfo(operator) for operator in response.operators]


def describe_steps(name: str) -> Steps[OperatorInfo]:
    response = yield Unary("Operators.Describe", message("DescribeOperatorRequest")(name=name),
                           operator=name)
    return OperatorInfo(response.operator)


def audit_steps(name: str, count: int, before_revision: int) -> Steps[List[Event]]:
    response = yield Unary("Operators.Audit", message("AuditRequest")(
        name=name, count=count, before_revision=before_revision))
    return [Event(event) for event in response.events]


class Operators:
    """The operators of a daemon, for threads.

    Common errors: NotFound (operator or version), FailedPrecondition (built in, no suitable version,
    quarantined), Aborted (expected_revision is not the current one), PermissionDenied.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    def list(self) -> List[OperatorInfo]:
        """All operators, sorted by name."""
        return self._client._drive(list_steps())

    def describe(self, name: str) -> OperatorInfo:
        """One operator and its versions."""
        return self._client._drive(describe_steps(name))

    def install(self, name: str, **options: Any) -> Installed:
        """Installs a version of an operator.

        expr: a formula; source: C++ (the text), with `files` for further ones by name; bytecode: a FLUX
        program; object_file: the path of PTX or a cubin. Exactly one of them.
        signature, split, summary: see docs/operators.md; an expression needs none.
        label: a name under which calls can run the version, see Client.op; the version that has it loses it.
        examples: Examples on which the version is validated.
        wait: "validated" (nothing is kept), "loaded" (default), "active".
        native: of bytecode: "follows" (native code follows in the background), "wait" (until it
        serves), "off" (the interpreter runs it).
        isolation: "trusted", "stoppable" (InvalidArgument if the operator does not pass); "": the daemon's
        --isolation, see OperatorInfo.isolation.
        allow_spills, task_time_ms, scratch_bytes, expected_revision.
        force: also if the set of --operators_dir lists the operator (otherwise FailedPrecondition).
        timeout: seconds; None: 300, because the validation of a version may take minutes.

        InvalidArgument if the version is refused; details["log"] has the compiler's output.
        """
        installed = self._client._drive(
            install_steps(name, self._client._operations.forget, **options))
        installed._operators = self  # For threads only.
        return installed

    def publish(self, function: Callable[..., Any], name: str = "", **options: Any) -> Installed:
        """Installs a Python function of NumPy expressions as an expression, see expression.py.

        Its parameters are inputs, in their order; one with a number as its default is a scalar. name: the
        function's name if empty. The options are those of install.
        """
        return self.install(**publish_options(function, name, options))

    def activate(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None,
                 force: bool = False, bake: Optional[Bake] = None) -> int:
        """Makes a loaded or previous version the active one; 0: the standby. Returns the version.

        force: also a quarantined version, and an operator that the set of the daemon's --operators_dir lists.
        """
        return int(self._client._drive(
            activate_steps(name, version, expected_revision, force, bake)).version)

    def rollback(self, name: str, *, expected_revision: Optional[int] = None) -> int:
        """Makes the previous version active again. Returns it."""
        return int(self._client._drive(rollback_steps(name, expected_revision)).version)

    def promote(self, name: str, version: int = 0, *, traffic_percent: float = 0.0,
                shadow_percent: float = 0.0, expected_revision: Optional[int] = None,
                bake: Optional[Bake] = None) -> int:
        """Gives the standby version a share of the traffic, or a shadow of it. Returns the revision."""
        return self._client._drive(
            promote_steps(name, version, traffic_percent, shadow_percent, expected_revision, bake))

    def remove(self, name: str, *, expected_revision: Optional[int] = None, force: bool = False,
               timeout: Optional[float] = None) -> int:
        """Removes an installed operator with all versions. Returns the revision.

        force: also one that the set of the daemon's --operators_dir lists.
        """
        return self._client._drive(
            remove_steps(name, self._client._operations.forget, expected_revision, force, timeout))

    def audit(self, name: str = "", count: int = 0, before_revision: int = 0) -> List[Event]:
        """Past changes, the newest first."""
        return self._client._drive(audit_steps(name, count, before_revision))

    # For threads only.
    def watch(self, name: str = "", after_revision: int = 0) -> "Watch":
        """The changes of an operator (or of all) as they happen."""
        request = message("WatchRequest")(name=name, after_revision=after_revision)
        connection = self._client._connection.route("Operators.Watch", request)
        return Watch(connection.open("Operators.Watch", request))


class Watch:
    """An iterator of events. close() ends it, from any thread; so does the end of a with block."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Event]:
        try:
            for response in self._call:
                yield Event(response.event)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise from_rpc(error) from None

    def close(self) -> None:
        self._call.cancel()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def publish_options(function: Callable[..., Any], name: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of install() for a Python function."""
    found = expression.name_of(function)
    if not name and found == "<lambda>":
        raise InvalidArgument("a lambda has no name", "give one: publish(function, name='...')")
    expr = expression.trace(function)
    # The first line of the function's docstring.
    made = {"summary": (inspect.getdoc(function) or "").split("\n")[0] if inspect.isfunction(function) else ""}
    made.update(options)
    made.update(name=name or found, expr=expr)
    return made
