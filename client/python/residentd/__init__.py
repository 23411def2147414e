"""Runs operators of a residentd daemon on NumPy arrays.

    import residentd, numpy as np

    with residentd.connect("127.0.0.1:50051") as rd:
        add = rd.op("add")
        z = add(np.float32([1, 2, 3]), np.float32([10, 20, 30]), alpha=2)

See docs/python.md. residentd.aio has the same interface for asyncio.
"""

from typing import TYPE_CHECKING, Any

from .client import Buffer, Client, connect
from .dtypes import BFloat16Array, bfloat16
from .errors import (Aborted, AlreadyExists, Cancelled, DeadlineExceeded, Error, FailedPrecondition,
                     FileError, FileMissing, Internal, InvalidArgument, NoAttribute, NodeFailed, NotFound, OutOfRange,
                     PermissionDenied, ResourceExhausted, TaskError, TaskFailed, TaskTimedOut, Unauthenticated, Unavailable,
                     Unimplemented, WrongType)
from .flux import FluxResult
from .operator import Operator
from .operators import Bake, Event, Example, InOut, Installed, OperatorInfo, Operators, Output, Watch
from .results import Result
from .status import Status
from .stream import Stream
from .version import __version__

if TYPE_CHECKING:
    from .graph import Graph, GraphDependency, GraphFinding, GraphFusion, GraphRefused, GraphReport
    from .graph_builder import GraphBuilder
    from .graph_calls import GraphInfo, GraphSessionInfo
    from .graph_run import GraphRecord, GraphResult, GraphVersion
    from .graph_tensor import GraphScalar, GraphTensor
    from .graphs import GraphRun, Graphs, GraphSession, LoadedGraph
    from .lane import Lane, LaneCall
    from .models import LoadedModel, ModelInfo, ModelPlan, ModelResult, Models, ModelTensor, ModelVersion
else:
    # Task graphs and lanes are imported when they are used for the first time.
    _LAZY = {
        "Graph": "graph", "GraphBuilder": "graph_builder", "GraphDependency": "graph",
        "GraphFinding": "graph", "GraphFusion": "graph", "GraphInfo": "graph_calls",
        "GraphRecord": "graph_run", "GraphRefused": "graph", "GraphReport": "graph",
        "GraphResult": "graph_run", "GraphRun": "graphs",
        "GraphScalar": "graph_tensor", "GraphSession": "graphs", "GraphSessionInfo": "graph_calls",
        "GraphTensor": "graph_tensor", "GraphVersion": "graph_run", "Graphs": "graphs",
        "Lane": "lane", "LaneCall": "lane", "LoadedGraph": "graphs",
        "LoadedModel": "models", "ModelInfo": "models", "ModelPlan": "models", "ModelResult": "models", "ModelTensor": "models", "ModelVersion": "models",
        "Models": "models",
    }

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError("module 'residentd' has no attribute {!r}".format(name))
        import importlib

        found = globals()[name] = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
        return found


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(__all__))


__all__ = [
    "Aborted", "AlreadyExists", "BFloat16Array", "Bake", "Buffer", "Cancelled", "Client",
    "DeadlineExceeded", "Error", "Event", "Example", "FailedPrecondition", "FileError", "FileMissing", "FluxResult", "Graph",
    "GraphBuilder", "GraphDependency", "GraphFinding", "GraphFusion", "GraphInfo", "GraphRecord",
    "GraphRefused", "GraphReport", "GraphResult", "GraphRun", "GraphScalar", "GraphSession", "GraphSessionInfo",
    "GraphTensor", "GraphVersion", "Graphs", "InOut", "Installed", "Internal", "InvalidArgument",
    "Lane", "LaneCall", "LoadedGraph", "LoadedModel", "ModelInfo", "ModelPlan", "ModelResult", "ModelTensor", "ModelVersion", "Models",
    "NoAttribute", "NodeFailed", "NotFound", "Operator", "OperatorInfo", "Operators",
    "OutOfRange", "Output", "PermissionDenied", "ResourceExhausted", "Result", "Status", "Stream",
    "TaskError", "TaskFailed", "TaskTimedOut", "Unauthenticated", "Unavailable", "Unimplemented", "Watch",
    "WrongType",
    "__version__", "bfloat16", "connect",
]
