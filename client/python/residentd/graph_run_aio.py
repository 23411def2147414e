"""A run of a task graph in progress, for asyncio. graphs.py has that for threads.

    async with loaded.run_stream(x=x) as records:
        async for record in records: ...
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, Mapping, Optional, Union

import grpc

from . import credentials
from .errors import Cancelled
from .graph import Graph
from .graph_calls import Loaded, OpenSession, no_result
from .graph_run import GraphRecord, GraphResult, PreparedRun, RunOptions, not_ended

if TYPE_CHECKING:
    from .graphs_aio import Graphs


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
        self._connection: Any = None
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
            routes = self._graphs._client._connection.begin()
            self._run = await self._graphs._drive(self._graphs._calls.prepare(*self._begin))
            self._connection = await routes.route("Graphs.Run", self._run.request, self._run.node)
            self._call = self._connection.open("Graphs.Run", self._run.request, self._run.timeout)
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
            made = await self._connection.failure(error)
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
