"""Task graphs, for threads: checked, drawn, loaded and run. graphs_aio.py has the same for asyncio.

    with rd.graphs.load(graph) as loaded:
        y = loaded.run(x=x, eps=1e-5).outputs["y"]
        with loaded.open(pos=0) as session, session.run_stream(max_steps=16) as records:
            for record in records: ...

Thread safety: all classes may be used from several threads; a GraphRun by one at a time, except for
close().
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Optional, TypeVar, Union

import grpc

from . import credentials
from .calls import Steps
from .errors import Cancelled, Error
from .graph import Graph, GraphReport
from .graph_calls import (GraphCalls, GraphInfo, GraphSessionInfo, Loaded, LoadedFacts, OpenSession,
                          SessionFacts, no_result)
from .graph_run import GraphRecord, GraphResult, PreparedRun, RunOptions, merged, not_ended

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
Values = Optional[Mapping[str, Any]]


class Graphs:
    """The task graphs of a client: Client.graphs.

    Values of a run. run() and run_stream() take values by name, as keyword arguments or, for names that
    are no identifiers or those of options, in a dict: arrays or buffers for inputs, weights, constants and
    states, numbers for scalars. A weight or constant that is not given is the buffer with its name, a
    state begins with zeros. An output that is given is written to the array or buffer; the others are
    returned. A buffer is the whole memory of its tensor. Arrays are sent in the request, whose size
    max_message_mib limits, unless they are dense arrays that Client.shared returned: put large ones into
    buffers.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._calls = GraphCalls(client._operations)

    def validate(self, graph: Graph, *, dependencies: bool = False) -> GraphReport:
        """Checks a graph against the operators that serve now. dependencies: whether the report lists the
        order that is derived."""
        return self._drive(self._calls.validate(graph, dependencies))

    def render(self, graph: "Union[Graph, LoadedGraph]", form: str = "svg") -> str:
        """A picture of a graph: "svg", or "dot" for Graphviz. GraphRefused if it has errors."""
        source = graph._loaded if isinstance(graph, LoadedGraph) else graph
        return self._drive(self._calls.render(source, form))

    def load(self, graph: Graph) -> "LoadedGraph":
        """Checks a graph and keeps it in the daemon, so that runs need not send it. GraphRefused if it has
        errors."""
        return LoadedGraph(self, self._drive(self._calls.load(graph)))

    def find(self, id_or_name: str) -> "LoadedGraph":
        """A graph that was loaded before, by any caller. NotFound if there is none, AlreadyExists if
        several have the name."""
        return LoadedGraph(self, self._drive(self._calls.find(id_or_name)))

    def list(self) -> List[GraphInfo]:
        """All loaded graphs, by name and id."""
        return self._drive(self._calls.list())

    def sessions(self) -> List[GraphSessionInfo]:
        """The client's graph sessions, in the order in which they were opened."""
        return self._drive(self._calls.list_sessions())

    def run(self, graph: Graph, values: Values = None, /, *, max_steps: int = 0,
            timeout: Optional[float] = None, device: Optional[int] = None, trace: bool = False,
            **named: Any) -> GraphResult:
        """Checks a graph and runs it, without loading it. values, named: see Graphs.

        max_steps: the most steps, up to those of the loop; 0: all of them.
        timeout: seconds; None: the client's.
        device: the index of the device; None: that of the buffers, or the daemon chooses.
        trace: whether the result has a trace. FailedPrecondition if the run cannot be traced.

        InvalidArgument, before anything is sent or by the daemon; NodeFailed if a node fails.
        """
        options = RunOptions(max_steps, timeout, device, trace)
        return self._drive(self._calls.run(graph, merged(values, named), options))

    def run_stream(self, graph: Graph, values: Values = None, /, *, max_steps: int = 0,
                   timeout: Optional[float] = None, device: Optional[int] = None, trace: bool = False,
                   **named: Any) -> "GraphRun":
        """As run(), with an iterator of the records as they arrive. timeout: None means
        that there is none."""
        return GraphRun(self, graph, merged(values, named), RunOptions(max_steps, timeout, device, trace))

    def _drive(self, steps: Steps[T]) -> T:
        return self._client._drive(steps)


class LoadedGraph(LoadedFacts):
    """A graph that the daemon keeps.

    At the end of a with block it is unloaded, unless this caller had loaded it before.
    """

    def __init__(self, graphs: Graphs, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._graphs = graphs

    # For threads only.
    def _repr_svg_(self) -> Optional[str]:
        """The picture in a notebook; None, which shows the repr, if there is none."""
        try:
            return self._graphs.render(self)
        except Error:
            return None

    def describe(self) -> GraphInfo:
        """What the daemon says of it now."""
        return self._graphs._drive(self._graphs._calls.describe(self._loaded))

    def unload(self, *, for_all: bool = False) -> bool:
        """Ends this caller's hold. for_all: also those of others, with the role admin. Returns whether
        the graph was removed; otherwise others hold it."""
        return self._graphs._drive(self._graphs._calls.unload(self._loaded, for_all))

    def run(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
            device: Optional[int] = None, trace: bool = False, **named: Any) -> GraphResult:
        """Runs the graph, see Graphs.run."""
        options = RunOptions(max_steps, timeout, device, trace)
        return self._graphs._drive(
            self._graphs._calls.run(self._loaded, merged(values, named), options))

    def run_stream(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                   device: Optional[int] = None, trace: bool = False, **named: Any) -> "GraphRun":
        """Runs the graph, with an iterator of the records, see Graphs.run_stream."""
        return GraphRun(self._graphs, self._loaded, merged(values, named),
                        RunOptions(max_steps, timeout, device, trace))

    def open(self, values: Values = None, /, *, device: Optional[int] = None,
             **named: Any) -> "GraphSession":
        """Opens a graph session. values, named: scalars, and memory of states, weights and constants;
        inputs and outputs are given to each run."""
        opened = self._graphs._drive(
            self._graphs._calls.open(self._loaded, merged(values, named), device))
        return GraphSession(self._graphs, opened)

    def __enter__(self) -> "LoadedGraph":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._loaded.already_loaded or self._loaded.unloaded:
            return
        try:
            self.unload()
        except Error:
            if kind is None:  # Otherwise the error of the block is the one to see.
                raise


class GraphSession(SessionFacts):
    """The states and scalars that runs of a loaded graph leave to the next run.

    It ends with close(), at the end of its with block, when it is garbage collected, or with the
    client.
    """

    def __init__(self, graphs: Graphs, session: OpenSession) -> None:
        super().__init__(session)
        self._graphs = graphs

    def run(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
            trace: bool = False, repeat_interrupted: bool = False, **named: Any) -> GraphResult:
        """Runs the graph from where the run before ended, see Graphs.run. repeat_interrupted: whether the
        run may begin with the step in which the run before was interrupted, which is right if the step
        writes the same values again (docs/graphs.md)."""
        options = RunOptions(max_steps, timeout, None, trace, repeat_interrupted)
        return self._graphs._drive(
            self._graphs._calls.run(self._session, merged(values, named), options))

    def run_stream(self, values: Values = None, /, *, max_steps: int = 0, timeout: Optional[float] = None,
                   trace: bool = False, repeat_interrupted: bool = False, **named: Any) -> "GraphRun":
        """As run(), with an iterator of the records, see Graphs.run_stream."""
        return GraphRun(self._graphs, self._session, merged(values, named),
                        RunOptions(max_steps, timeout, None, trace, repeat_interrupted))

    def fork(self) -> "GraphSession":
        """Another session that continues from here, with a copy of the states. FailedPrecondition while a
        run is in progress."""
        return GraphSession(self._graphs, self._graphs._drive(self._graphs._calls.fork(self._session)))

    def describe(self) -> GraphSessionInfo:
        """Its state and scalars now."""
        return self._graphs._drive(self._graphs._calls.describe_session(self._session))

    def close(self) -> None:
        """Ends the session. A run in it continues to its end."""
        self._graphs._drive(self._graphs._calls.close(self._session))

    def __enter__(self) -> "GraphSession":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            self.close()
        except Error:
            if kind is None:
                raise


class GraphRun:
    """A run in progress: an iterator of GraphRecord, one after each step of a graph with streams.

    close(), the end of its with block, or its garbage collection before the last record ends the run:
    nodes that are not yet on the device are not executed. The daemon waits while records are not read.
    """

    def __init__(self, graphs: Graphs, source: Union[Graph, Loaded, OpenSession], values: Mapping[str, Any],
                 options: RunOptions) -> None:
        self._calls = graphs._calls
        routes = graphs._client._connection.begin()
        self._run: PreparedRun = graphs._drive(graphs._calls.prepare(source, values, options))
        self._result: Optional[GraphResult] = None
        self._closed = False
        if options.timeout is not None:
            credentials.check_timeout(options.timeout)
        self._connection = routes.route("Graphs.Run", self._run.request, self._run.node)
        self._call = self._connection.open("Graphs.Run", self._run.request, options.timeout)

    @property
    def result(self) -> GraphResult:
        """The result, without the records. FailedPrecondition unless the iteration has come to its end."""
        if self._result is None:
            raise not_ended()
        return self._result

    def __iter__(self) -> Iterator[GraphRecord]:
        return self

    def __next__(self) -> GraphRecord:
        if self._closed or self._result is not None:
            raise StopIteration
        last: Any = None
        try:
            for response in self._call:
                received = self._run.receive(response)
                if isinstance(received, GraphRecord):
                    return received
                last = received if received is not None else last
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            made = self._connection.failure(error)
            self._calls.failed(self._run, made)
            raise made from None
        self._result = self._run.result(last if last is not None else no_result())
        raise StopIteration

    def close(self) -> None:
        """Ends the run, from any thread; without effect if it has ended."""
        if self._result is None and not self._closed:
            self._closed = True
            self._calls.failed(self._run, Cancelled("the run was closed"))
            self._call.cancel()

    def __enter__(self) -> "GraphRun":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
