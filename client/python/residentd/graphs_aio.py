"""Task graphs, for asyncio. It has the names of graphs.py; calls are awaited.

    graph = ...build()      # GraphBuilder("feature", await rd.operators.list())
    async with await rd.graphs.load(graph) as loaded:
        y = (await loaded.run(x=x, eps=1e-5)).outputs["y"]
        async with loaded.run_stream(x=x) as records:
            async for record in records: ...
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, List, Mapping, Optional, TypeVar, Union

import grpc

from . import credentials
from .calls import Steps
from .errors import Cancelled, Error, from_rpc
from .graph import Graph, GraphReport
from .graph_calls import (GraphCalls, GraphInfo, GraphSessionInfo, Loaded, LoadedFacts, OpenSession,
                          SessionFacts, no_result)
from .graph_run import GraphRecord, GraphResult, PreparedRun, RunOptions, merged, not_ended

if TYPE_CHECKING:
    from .aio import Client

T = TypeVar("T")
Values = Optional[Mapping[str, Any]]


class Graphs:
    """The task graphs of a client, see residentd.Graphs."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._calls = GraphCalls(client._operations)

    async def validate(self, graph: Graph, *, dependencies: bool = False) -> GraphReport:
        """Checks a graph against the operators that serve now."""
        return await self._drive(self._calls.validate(graph, dependencies))

    async def render(self, graph: "Union[Graph, LoadedGraph]", form: str = "svg") -> str:
        """A picture of a graph: "svg" or "dot"."""
        return await self._drive(self._calls.render(
            graph._loaded if isinstance(graph, LoadedGraph) else graph, form))

    async def load(self, graph: Graph) -> "LoadedGraph":
        """Checks a graph and keeps it in the daemon."""
        return LoadedGraph(self, await self._drive(self._calls.load(graph)))

    async def find(self, id_or_name: str) -> "LoadedGraph":
        """A graph that was loaded before."""
        return LoadedGraph(self, await self._drive(self._calls.find(id_or_name)))

    async def list(self) -> List[GraphInfo]:
        """All loaded graphs, by name and id."""
        return await self._drive(self._calls.list())

    async def sessions(self) -> List[GraphSessionInfo]:
        """The client's graph sessions."""
        return await self._drive(self._calls.list_sessions())

    async def run(self, graph: Graph, values: Values = None, /, *, max_steps: int = 0,
                  timeout: Optional[float] = None, device: Optional[int] = None, trace: bool = False,
                  **named: Any) -> GraphResult:
        """Checks a graph and runs it, see residentd.Graphs.run."""
        options = RunOptions(max_steps, timeout, device, trace)
        return await self._drive(self._calls.run(graph, merged(values, named), options))

    def run_stream(self, graph: Graph, values: Values = None, /, *, max_steps: int = 0,
                   timeout: Optional[float] = None, device: Optional[int] = None, trace: bool = False,
                   **named: Any) -> "GraphRun":
        """As run(), with an asynchronous iterator of the records as they arrive."""
        return GraphRun(self, graph, merged(values, named), RunOptions(max_steps, timeout, device, trace))

    async def _drive(self, steps: Steps[T]) -> T:
        return await self._client._drive(steps)


class LoadedGraph(LoadedFacts):
    """A graph that the daemon keeps, see residentd.LoadedGraph. It is an async context manager."""

    def __init__(self, graphs: Graphs, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._graphs = graphs

    async def describe(self) -> GraphInfo:
        """What the daemon says of it now."""
        return await self._graphs._drive(self._graphs._calls.describe(self._loaded))

    async def unload(self, *, for_all: bool = False) -> bool:
        """Ends this caller's hold, see residentd.LoadedGraph.unload."""
        return await self._graphs._drive(self._graphs._calls.unload(self._loaded, for_all))

    async def run(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                  device: Optional[int] = None, trace: bool = False, **named: Any) -> GraphResult:
        """Runs the graph, see residentd.Graphs.run."""
        options = RunOptions(max_steps, timeout, device, trace)
        return await self._graphs._drive(
            self._graphs._calls.run(self._loaded, merged(values, named), options))

    def run_stream(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                   device: Optional[int] = None, trace: bool = False, **named: Any) -> "GraphRun":
        """Runs the graph, with an asynchronous iterator of the records."""
        return GraphRun(self._graphs, self._loaded, merged(values, named),
                        RunOptions(max_steps, timeout, device, trace))

    async def open(self, values: Values = None, /, *, device: Optional[int] = None,
                   **named: Any) -> "GraphSession":
        """Opens a graph session, see residentd.LoadedGraph.open."""
        opened = await self._graphs._drive(
            self._graphs._calls.open(self._loaded, merged(values, named), device))
        return GraphSession(self._graphs, opened)

    async def __aenter__(self) -> "LoadedGraph":
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._loaded.already_loaded or self._loaded.unloaded:
            return
        try:
            await self.unload()
        except Error:
            if kind is None:
                raise


class GraphSession(SessionFacts):
    """A graph session, see residentd.GraphSession. It is an async context manager."""

    def __init__(self, graphs: Graphs, session: OpenSession) -> None:
        super().__init__(session)
        self._graphs = graphs

    async def run(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                  trace: bool = False, repeat_interrupted: bool = False, **named: Any) -> GraphResult:
        """Runs the graph from where the run before ended, see residentd.GraphSession.run."""
        options = RunOptions(max_steps, timeout, None, trace, repeat_interrupted)
        return await self._graphs._drive(
            self._graphs._calls.run(self._session, merged(values, named), options))

    def run_stream(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                   trace: bool = False, repeat_interrupted: bool = False, **named: Any) -> "GraphRun":
        """As run(), with an asynchronous iterator of the records."""
        return GraphRun(self._graphs, self._session, merged(values, named),
                        RunOptions(max_steps, timeout, None, trace, repeat_interrupted))

    async def fork(self) -> "GraphSession":
        """Another session that continues from here, with a copy of the states."""
        return GraphSession(self._graphs,
                            await self._graphs._drive(self._graphs._calls.fork(self._session)))

    async def describe(self) -> GraphSessionInfo:
        """Its state and scalars now."""
        return await self._graphs._drive(self._graphs._calls.describe_session(self._session))

    async def close(self) -> None:
        """Ends the session."""
        await self._graphs._drive(self._graphs._calls.close(self._session))

    async def __aenter__(self) -> "GraphSession":
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            await self.close()
        except Error:
            if kind is None:
                raise


class GraphRun:
    """A run in progress, see residentd.GraphRun: an asynchronous iterator of GraphRecord, and an async
    context manager. It begins with the first record that is awaited."""

    def __init__(self, graphs: Graphs, source: Union[Graph, Loaded, OpenSession], values: Mapping[str, Any],
                 options: RunOptions) -> None:
        if options.timeout is not None:
            credentials.check_timeout(options.timeout)
        self._graphs = graphs
        self._begin = (source, values, options)
        self._run: Optional[PreparedRun] = None
        self._call: Any = None
        self._result: Optional[GraphResult] = None
        self._closed = False

    @property
    def result(self) -> GraphResult:
        """The result, without the records. FailedPrecondition unless the iteration has come to its end."""
        if self._result is None:
            raise not_ended()
        return self._result

    def __aiter__(self) -> AsyncIterator[GraphRecord]:
        return self

    async def __anext__(self) -> GraphRecord:
        if self._closed or self._result is not None:
            raise StopAsyncIteration
        if self._run is None:
            self._run = await self._graphs._drive(self._graphs._calls.prepare(*self._begin))
            self._call = self._graphs._client._connection.open("Graphs.Run", self._run.request,
                                                               self._run.timeout)
        last: Any = None
        try:
            async for response in self._call:
                received = self._run.receive(response)
                if isinstance(received, GraphRecord):
                    return received
                last = received if received is not None else last
        except grpc.RpcError as error:
            if self._closed:
                raise StopAsyncIteration from None
            made = from_rpc(error)
            self._graphs._calls.failed(self._run, made)
            raise made from None
        except asyncio.CancelledError:
            if self._closed:  # By another task, which has cancelled the call and not this task.
                raise StopAsyncIteration from None
            await self.close()
            raise
        self._result = self._run.result(last if last is not None else no_result())
        raise StopAsyncIteration

    async def close(self) -> None:
        """Ends the run; without effect if it has ended."""
        if self._result is None and not self._closed:
            self._closed = True
            if self._run is not None:
                self._graphs._calls.failed(self._run, Cancelled("the run was closed"))
                self._call.cancel()

    async def __aenter__(self) -> "GraphRun":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
