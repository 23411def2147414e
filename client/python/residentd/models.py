"""Models, for threads: task graphs under a name, with versions. models_aio.py has the same for asyncio.

    rd.models.load("scorer", graph, {"w": w})          # Serves from now on.
    rd.models.load_onnx("encoder", open("encoder.onnx", "rb").read(), max_sizes={"sequence": 512})
    y = rd.models.run("scorer", x=x).outputs["y"]
    rd.models.rollback("scorer")

Thread safety: all members may be used from several threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import dtypes
from .buffers import bytes_of, check_device
from .calls import Exchange, Steps, Unary
from .descriptors import enum_names, message
from .errors import InvalidArgument
from .graph import Graph, GraphRefused, GraphReport
from .graph_run import merged
from .operators import Bake
from .results import check_tasks

if TYPE_CHECKING:
    from .client import Client

_STATES = enum_names("resident.v1.ModelVersion.State", "STATE_")
_PIECE_BYTES = 1 << 20
_LOAD_SECONDS = 300.0
# The daemon's name of the model among its files; those with external data have other names.
_ONNX_FILE = ".onnx"

Values = Optional[Mapping[str, Any]]


class ModelTensor(NamedTuple):
    """An input or output. A dimension of -1 is dynamic.

    max: the largest size of the outermost dimension, if it is dynamic and no plan fixes it; 0: it is not.
    most: the largest size of each dimension.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    max: int
    most: Tuple[int, ...] = ()


class ModelPlan(NamedTuple):
    """A graph for one set of sizes.

    sizes: by dimension. nodes, instances, memory_bytes, executions: as in resident.v1.ModelPlan.
    """

    sizes: Dict[str, int]
    nodes: int
    instances: int
    memory_bytes: int
    executions: int


class ModelVersion:
    """A version of a model.

    version, state ("loaded", "active", "previous"), content_hash, device, nodes, weight_bytes, instances,
        max_instances, requests, failed, rows, executions, max_batch, not_batched: as in
        resident.v1.ModelVersion.
    inputs, outputs: ModelTensors by name.
    dimensions: the largest size of each dimension that has a size of its own in each plan, by name. Empty:
        the version has one graph, and no plans are listed.
    plans: the ModelPlans that exist, the one that was used last first. plan_misses: requests that waited.
    """

    def __init__(self, info: Any) -> None:
        self.version = int(info.version)
        self.state = _STATES[info.state].lower()
        self.content_hash = str(info.content_hash)
        self.device = int(info.device)
        self.nodes = int(info.nodes)
        self.weight_bytes = int(info.weight_bytes)
        self.instances = int(info.instances)
        self.max_instances = int(info.max_instances)
        self.requests = int(info.requests)
        self.failed = int(info.failed)
        self.rows = int(info.rows)
        self.executions = int(info.executions)
        self.max_batch = int(info.max_batch)
        self.not_batched = str(info.not_batched)
        self.inputs = {each.name: _tensor(each) for each in info.inputs}
        self.outputs = {each.name: _tensor(each) for each in info.outputs}
        self.dimensions = {str(each.name): int(each.most) for each in info.dimensions}
        self.plans = [ModelPlan(dict(zip(self.dimensions, map(int, each.sizes))), int(each.nodes),
                                int(each.instances), int(each.memory_bytes), int(each.executions))
                      for each in info.plans]
        self.plan_misses = int(info.plan_misses)

    def __repr__(self) -> str:
        return "ModelVersion(version={}, state={!r})".format(self.version, self.state)


class ModelInfo:
    """A model: its name, its revision, and its versions by number.

    share_version, share_percent: the version that serves a share of the requests; 0: none.
    """

    def __init__(self, info: Any) -> None:
        self.name = str(info.name)
        self.revision = int(info.revision)
        self.share_version = int(info.share_version)
        self.share_percent = float(info.share_percent)
        self.versions = {int(each.version): ModelVersion(each) for each in info.versions}

    @property
    def active(self) -> Optional[ModelVersion]:
        """The version that serves; None: there is none."""
        for version in self.versions.values():
            if version.state == "active":
                return version
        return None

    def __repr__(self) -> str:
        return "ModelInfo(name={!r}, versions={})".format(self.name, list(self.versions))


class LoadedModel(NamedTuple):
    """What load() made. already_loaded: whether the model had a version of this content."""

    version: int
    revision: int
    already_loaded: bool


class ModelResult:
    """The result of a request.

    outputs: the arrays by name, in the order of the request or of the model.
    version: the version of the model that served it. device: the index of its device.
    device_ns: the time on the device in nanoseconds.
    """

    __slots__ = ("outputs", "version", "device", "device_ns")

    def __init__(self, outputs: Dict[str, "np.ndarray[Any, Any]"], version: int, device: int,
                 device_ns: int) -> None:
        self.outputs = outputs
        self.version = version
        self.device = device
        self.device_ns = device_ns

    def __repr__(self) -> str:
        return "ModelResult(outputs={!r}, version={}, device={}, device_ns={})".format(
            self.outputs, self.version, self.device, self.device_ns)


def _tensor(info: Any) -> ModelTensor:
    return ModelTensor(str(info.name), dtypes.BY_NUMBER[info.dtype].name, tuple(info.shape), int(info.max),
                       tuple(info.most))


# The steps that both clients use.


def _load_steps(refused: str, header: Any, device: Optional[int], kind: str, key: str,
                contents: Dict[str, Any], timeout: Optional[float]) -> Steps[LoadedModel]:
    """kind, key: the field of LoadModelRequest for a part, and that of the part's name."""
    chosen = check_device(device)
    if chosen is not None:
        header.device = chosen
    request = message("LoadModelRequest")

    def requests() -> Iterator[Any]:
        yield request(header=header)
        for name, data in contents.items():
            for at in range(0, len(data), _PIECE_BYTES):
                yield request(**{kind: {key: name, "data": bytes(data[at:at + _PIECE_BYTES])}})

    answers: List[Any] = []
    yield Exchange("Models.Load", requests(), answers.append, _LOAD_SECONDS if timeout is None else timeout)
    for answer in answers:
        if answer.HasField("report") and not answer.report.accepted:
            raise GraphRefused(refused, GraphReport(answer.report))
    last = answers[-1]
    return LoadedModel(int(last.version), int(last.revision), bool(last.already_loaded))


def load_steps(name: str, graph: Graph, weights: Values, activate: bool, instances: int,
               max_combined_rows: int, device: Optional[int],
               timeout: Optional[float]) -> Steps[LoadedModel]:
    header = message("LoadModelHeader")(name=name, activate=activate, instances=instances,
                                        max_combined_rows=max_combined_rows)
    header.graph.CopyFrom(graph.message)
    kinds = {each.name: dtypes.BY_NUMBER.get(each.dtype) for each in graph.message.tensors}
    contents: Dict[str, Any] = {}
    for tensor, value in (weights or {}).items():
        array, found = dtypes.to_array(value)
        if tensor in kinds and found is not kinds[tensor]:
            raise InvalidArgument("weight '{}' has the dtype {}, and the graph has another".format(
                tensor, array.dtype), "convert it")
        contents[tensor] = bytes_of(np.ascontiguousarray(array))
    return _load_steps(graph.name, header, device, "weight", "tensor", contents, timeout)


def load_onnx_steps(name: str, model: Any, data: Mapping[str, Any], sizes: Mapping[str, int],
                    max_sizes: Mapping[str, int], warmup: Sequence[Mapping[str, Sequence[int]]],
                    max_batch: int, fixed_inputs: Mapping[str, str], activate: bool, instances: int,
                    max_combined_rows: int, device: Optional[int],
                    timeout: Optional[float]) -> Steps[LoadedModel]:
    contents = {_ONNX_FILE: model, **data}
    for file, content in contents.items():
        contents[file] = memoryview(content).cast("B")
    header = message("LoadModelHeader")(name=name, activate=activate, instances=instances,
                                        max_combined_rows=max_combined_rows)
    header.onnx.CopyFrom(message("OnnxModel")(
        file=_ONNX_FILE, file_bytes=sum(map(len, contents.values())), sizes=sizes, max_batch=max_batch,
        fixed_inputs=fixed_inputs, max_sizes=max_sizes))
    for shapes in warmup:
        added = header.onnx.warmup.add()
        for each, shape in shapes.items():
            added.inputs[each].sizes.extend(shape)
    return _load_steps(name, header, device, "file", "name", contents, timeout)


def list_steps(name: str) -> Steps[List[ModelInfo]]:
    response = yield Unary("Models.List", message("ListModelsRequest")(name=name))
    return [ModelInfo(each) for each in response.models]


def change_steps(method: str, request: Any, expected_revision: Optional[int]) -> Steps[int]:
    if expected_revision is not None:
        request.expected_revision = expected_revision
    response = yield Unary("Models." + method, request)
    return int(response.version)


def run_steps(name: str, values: Mapping[str, Any], version: int, outputs: Sequence[str],
              timeout: Optional[float]) -> Steps[ModelResult]:
    """values: arrays are inputs, numbers of Python are scalars."""
    call = message("ModelCall")(model=name, version=version, outputs=outputs)
    for key, value in values.items():
        if isinstance(value, (int, float)):
            call.scalars[key] = value
            continue
        array, dtype = dtypes.to_array(value)
        if dtype is None:
            raise InvalidArgument("input '{}' has the dtype {}, which residentd does not have".format(
                key, array.dtype), "convert it, for instance with astype()")
        tensor = call.inputs.add(name=key, dtype=dtype.number, shape=array.shape)
        tensor.data = bytes(bytes_of(np.ascontiguousarray(array)))
    batch = message("Batch")(model=call)
    if timeout is not None:
        batch.options.timeout_us = max(int(timeout * 1e6), 1)
    answer = yield Unary("Executor.Run", message("RunRequest")(batch=batch), timeout, name)
    found = answer.result
    arrays = {}
    for data, kind in zip(found.outputs, found.output_types):
        dtype = dtypes.BY_NUMBER[kind.dtype]
        array = np.frombuffer(data, dtype.storage).reshape(tuple(kind.shape))
        arrays[str(kind.name)] = dtypes.from_storage(array, dtype)
    check_tasks(name, found, None, 1)
    return ModelResult(arrays, int(found.version), int(found.device), int(found.device_ns[0]))


class Models:
    """The models of a daemon: Client.models.

    Common errors: NotFound (model or version), InvalidArgument (tensors that do not fit), Aborted
    (expected_revision is not the current one), PermissionDenied.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    def load(self, name: str, graph: Graph, weights: Values = None, *, activate: bool = True,
             instances: int = 0, max_combined_rows: int = 0, device: Optional[int] = None,
             timeout: Optional[float] = None) -> LoadedModel:
        """Loads a version of a model: a graph without loop, streams and states.

        weights: the contents of its weights and constants, by name of the tensor: dense arrays.
        activate: whether the version serves from now on.
        instances: executions at the same time at most; 0: 2.
        max_combined_rows: rows of several requests that are executed together at most. 0: as many as one
            request may have. 1: requests are not combined.
        timeout: seconds; None: 300.

        GraphRefused if the graph has errors. AlreadyExists if an operator has the name.
        """
        return self._client._drive(
            load_steps(name, graph, weights, activate, instances, max_combined_rows, device, timeout))

    def load_onnx(self, name: str, model: Any, *, data: Optional[Mapping[str, Any]] = None,
                  sizes: Optional[Mapping[str, int]] = None,
                  max_sizes: Optional[Mapping[str, int]] = None,
                  warmup: Sequence[Mapping[str, Sequence[int]]] = (), max_batch: int = 0,
                  fixed_inputs: Optional[Mapping[str, str]] = None, activate: bool = True,
                  instances: int = 0, max_combined_rows: int = 0, device: Optional[int] = None,
                  timeout: Optional[float] = None) -> LoadedModel:
        """Loads a version of a model in the form of ONNX, which the daemon imports.

        model: the bytes of the file. data: the bytes of the files with its external data, by the names
        that the model uses.
        sizes: sizes of dynamic dimensions, by their names in the model. One that only inputs have, as
            their outermost dimension, needs none: it is 1 to max_batch (0: 64) in each request.
        max_sizes: the largest sizes of dimensions that have another size in each request: the model then
            has a plan for each set of sizes, which the first request that has them makes.
        warmup: shapes of inputs by name, whose plans the load makes: [{"ids": (1, 32)}, {"ids": (1, 128)}].
        fixed_inputs: inputs that become constants: numbers separated by commas.
        activate, instances, max_combined_rows, device, timeout: as in load().

        GraphRefused if the model cannot be imported: its report has codes MODEL_Ennn (docs/models.md).
        """
        return self._client._drive(
            load_onnx_steps(name, model, data or {}, sizes or {}, max_sizes or {}, warmup, max_batch,
                            fixed_inputs or {}, activate, instances, max_combined_rows, device, timeout))

    def list(self) -> List[ModelInfo]:
        """All models, by name."""
        return self._client._drive(list_steps(""))

    def describe(self, name: str) -> ModelInfo:
        """One model and its versions."""
        return self._client._drive(list_steps(name))[0]

    def activate(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None,
                 bake: Optional[Bake] = None) -> int:
        """Lets a version serve; 0: the one that was loaded last. Returns the version.

        bake: how it is compared with the version before; None: as the daemon's --bake_* say.
        """
        return self._client._drive(change_steps(
            "Activate", message("ActivateModelRequest")(
                name=name, version=version, bake=None if bake is None else bake.message),
            expected_revision))

    def share(self, name: str, version: int, percent: float, *,
              expected_revision: Optional[int] = None) -> None:
        """Lets a version serve a share of the requests that name none; 0 percent ends it.

        activate() and rollback() end it, too.
        """
        self._client._drive(change_steps(
            "Share", message("ShareModelRequest")(name=name, version=version, percent=percent),
            expected_revision))

    def rollback(self, name: str, *, expected_revision: Optional[int] = None) -> int:
        """Lets the previous version serve again. Returns it."""
        return self._client._drive(
            change_steps("Rollback", message("RollbackModelRequest")(name=name), expected_revision))

    def remove(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None) -> None:
        """Removes a model, or one of its versions, which must not be the active one."""
        self._client._drive(change_steps(
            "Remove", message("RemoveModelRequest")(name=name, version=version), expected_revision))

    def run(self, name: str, values: Values = None, /, *, version: int = 0, outputs: Sequence[str] = (),
            timeout: Optional[float] = None, **named: Any) -> ModelResult:
        """One request. values, named: the inputs by name, as arrays, and scalars as numbers of Python.

        outputs: the names of the outputs that are wanted; empty: all.
        version: 0: the one that is active. timeout: seconds after which the request ends if it has not begun.

        TaskFailed if a node refused its arguments.
        """
        return self._client._drive(run_steps(name, merged(values, named), version, outputs, timeout))
