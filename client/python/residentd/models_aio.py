"""models.py for asyncio: calls are awaited.

Made of models.py by tools/async_front; change it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence

from .descriptors import message
from .graph import Graph
from .graph_run import merged
from .operators import Bake
from .models import (LoadedModel, ModelInfo, ModelResult, change_steps, list_steps, load_onnx_steps,
                     load_steps, run_steps)

if TYPE_CHECKING:
    from .aio import Client

Values = Optional[Mapping[str, Any]]


class Models:
    """The models of a daemon: Client.models.

    Common errors: NotFound (model or version), InvalidArgument (tensors that do not fit), Aborted
    (expected_revision is not the current one), PermissionDenied.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def load(self, name: str, graph: Graph, weights: Values = None, *, activate: bool = True,
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
        return await self._client._drive(
            load_steps(name, graph, weights, activate, instances, max_combined_rows, device, timeout))

    async def load_onnx(self, name: str, model: Any, *, data: Optional[Mapping[str, Any]] = None,
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
        return await self._client._drive(
            load_onnx_steps(name, model, data or {}, sizes or {}, max_sizes or {}, warmup, max_batch,
                            fixed_inputs or {}, activate, instances, max_combined_rows, device, timeout))

    async def list(self) -> List[ModelInfo]:
        """All models, by name."""
        return await self._client._drive(list_steps(""))

    async def describe(self, name: str) -> ModelInfo:
        """One model and its versions."""
        return await self._client._drive(list_steps(name))[0]

    async def activate(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None,
                       bake: Optional[Bake] = None) -> int:
        """Lets a version serve; 0: the one that was loaded last. Returns the version.

        bake: how it is compared with the version before; None: as the daemon's --bake_* say.
        """
        return await self._client._drive(change_steps(
            "Activate", message("ActivateModelRequest")(
                name=name, version=version, bake=None if bake is None else bake.message),
            expected_revision))

    async def share(self, name: str, version: int, percent: float, *,
                    expected_revision: Optional[int] = None) -> None:
        """Lets a version serve a share of the requests that name none; 0 percent ends it.

        activate() and rollback() end it, too.
        """
        await self._client._drive(change_steps(
            "Share", message("ShareModelRequest")(name=name, version=version, percent=percent),
            expected_revision))

    async def rollback(self, name: str, *, expected_revision: Optional[int] = None) -> int:
        """Lets the previous version serve again. Returns it."""
        return await self._client._drive(
            change_steps("Rollback", message("RollbackModelRequest")(name=name), expected_revision))

    async def remove(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None) -> None:
        """Removes a model, or one of its versions, which must not be the active one."""
        await self._client._drive(change_steps(
            "Remove", message("RemoveModelRequest")(name=name, version=version), expected_revision))

    async def run(self, name: str, values: Values = None, /, *, version: int = 0, outputs: Sequence[str] = (),
                  timeout: Optional[float] = None, **named: Any) -> ModelResult:
        """One request. values, named: the inputs by name, as arrays, and scalars as numbers of Python.

        outputs: the names of the outputs that are wanted; empty: all.
        version: 0: the one that is active. timeout: seconds after which the request ends if it has not begun.

        TaskFailed if a node refused its arguments.
        """
        return await self._client._drive(run_steps(name, merged(values, named), version, outputs, timeout))
