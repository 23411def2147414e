"""What both clients can do with task graphs, as steps (calls.py), and what the daemon says of them.

Thread safety: GraphCalls may be used from several threads. The other classes do not change after they
were made.
"""

from __future__ import annotations

import collections
from typing import Any, Deque, Dict, List, Mapping, NoReturn, Optional, Tuple, Union

from . import graph_run
from .calls import Collect, Session, Steps, Unary
from .descriptors import enum_names, message
from .errors import (AlreadyExists, Error, FailedPrecondition, Internal, InvalidArgument, NotFound,
                     node_left)
from .graph import Graph, GraphRefused, GraphReport
from .graph_run import GraphRecord, GraphResult, Layout, PreparedRun, RunOptions
from .operations import REFUSALS, Operations

_GRAPH_STATES = enum_names("resident.v1.LoadedGraph.State", "STATE_")
_SESSION_STATES = enum_names("resident.v1.GraphSession.State", "STATE_")
_FORMATS = {"dot": 1, "svg": 2}  # RenderGraphRequest.Format.
_ID_DIGITS = 64


class GraphInfo:
    """What the daemon says of a loaded graph.

    id, name: the SHA-256 of its content, and its name.
    state: "ready"; "stale" (its operators have changed, and it is checked again when it is run) or
        "unchecked" (the daemon was restarted, and it is checked when it is run).
    loaded_ms: when it was first loaded, milliseconds since 1970.
    holders: the identities that hold it, or only the caller's own.
    nodes, size_bytes, memory_bytes: of the graph, of its serialized content, and of the daemon's memory.
    runs, steps, sessions: runs that have ended, their steps, and graph sessions that are open.
    """

    def __init__(self, loaded: Any) -> None:
        self.id = str(loaded.graph_id)
        self.name = str(loaded.name)
        self.state = _GRAPH_STATES.get(loaded.state, "UNKNOWN").lower()
        self.loaded_ms = int(loaded.loaded_ms)
        self.holders: List[str] = list(loaded.holders)
        self.nodes = int(loaded.nodes)
        self.size_bytes = int(loaded.size_bytes)
        self.memory_bytes = int(loaded.memory_bytes)
        self.runs = int(loaded.runs)
        self.steps = int(loaded.steps)
        self.sessions = int(loaded.sessions)

    def __repr__(self) -> str:
        return "<loaded graph {:.12} '{}': {}, {} nodes, {} runs, {} sessions>".format(
            self.id, self.name, self.state, self.nodes, self.runs, self.sessions)


class GraphSessionInfo:
    """What the daemon says of a graph session.

    id, graph_id, device, state_bytes: state_bytes is the memory that it has allocated on the device.
    state: "ready", "busy", "interrupted" (a run ended within a step; the next one must set
        repeat_interrupted) or "lost" (with the engine).
    scalars: the values for the next run; those that it must set are missing.
    runs, steps: runs that have ended, and complete steps.
    """

    def __init__(self, session: Any) -> None:
        self.id = str(session.session_id)
        self.graph_id = str(session.graph_id)
        self.state = _SESSION_STATES.get(session.state, "UNKNOWN").lower()
        self.device = int(session.device)
        self.state_bytes = int(session.state_bytes)
        self.scalars: Dict[str, float] = dict(session.scalars)
        self.runs = int(session.runs)
        self.steps = int(session.steps)

    def __repr__(self) -> str:
        return "<graph session {}: {}, {} runs, {} steps, {}>".format(self.id, self.state, self.runs,
                                                                      self.steps, self.scalars)


class Loaded:
    """A loaded graph, as both clients' classes see it."""

    def __init__(self, graph_id: str, graph: Graph, layout: Layout, report: Optional[GraphReport],
                 already_loaded: bool, node: str = "") -> None:
        """node: where it was loaded, if there may be several nodes; "": each is expected to have it."""
        self.id = graph_id
        self.node = node
        self.graph = graph
        self.layout = layout
        self.report = report
        self.already_loaded = already_loaded
        self.unloaded = False


class OpenSession:
    """A graph session, as both clients' classes see it. It is closed explicitly, or by a later call when
    nothing refers to it any more, or with the client's session."""

    def __init__(self, owner: "GraphCalls", loaded: Loaded, session: Any, number: int, keep: List[Any]) -> None:
        """number: Memory.session before the call that opened it. keep: arrays that are its memory."""
        self.id = str(session.session_id)
        self.device = int(session.device)
        self.state_bytes = int(session.state_bytes)
        self.loaded = loaded
        self.number = number
        self.node = owner._operations.memory.node
        self.keep = keep
        self.closed = False
        self._owner = owner

    def __del__(self) -> None:
        if not self.closed:
            self._owner.garbage.append((self.id, self.number))


class LoadedFacts:
    """What a loaded graph says of itself without a call, for both clients."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def id(self) -> str:
        """The SHA-256 of the content."""
        return self._loaded.id

    @property
    def graph(self) -> Graph:
        return self._loaded.graph

    @property
    def report(self) -> Optional[GraphReport]:
        """What load() found; None after find()."""
        return self._loaded.report

    @property
    def already_loaded(self) -> bool:
        """Whether this caller had loaded it before, or it is from find()."""
        return self._loaded.already_loaded

    def __repr__(self) -> str:
        return "<loaded graph {:.12} '{}'>".format(self.id, self.graph.name)


class SessionFacts:
    """What a graph session says of itself without a call, for both clients."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def device(self) -> int:
        return self._session.device

    @property
    def state_bytes(self) -> int:
        """Memory that it has allocated on the device."""
        return self._session.state_bytes

    def __repr__(self) -> str:
        return "<graph session {} of '{}'>".format(self.id, self._session.loaded.graph.name)


class GraphCalls:
    """The calls of one client."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        # Graph sessions that nothing refers to any more; a garbage collection may append.
        self.garbage: Deque[Tuple[str, int]] = collections.deque()

    # Graphs.

    # The daemon closes connections that send much before it has admitted a call. A graph may be large, so
    # a session is opened first, also for calls that need none.

    def validate(self, graph: Graph, dependencies: bool) -> Steps[GraphReport]:
        yield Session()
        response = yield Unary("Graphs.Validate", message("ValidateGraphRequest")(
            graph=content(graph), dependencies=dependencies))
        return GraphReport(response.report)

    def render(self, graph: Union[Graph, Loaded], form: str) -> Steps[str]:
        if form not in _FORMATS:
            raise InvalidArgument("{!r} is not a format of a picture".format(form), "use 'svg' or 'dot'")
        source = graph.graph if isinstance(graph, Loaded) else graph
        yield Session()
        response = yield Unary("Graphs.Render", message("RenderGraphRequest")(graph=content(source),
                                                                              format=_FORMATS[form]))
        report = GraphReport(response.report)
        if not report.accepted:
            raise GraphRefused(source.name, report)
        return str(response.picture)

    def load(self, graph: Graph) -> Steps[Loaded]:
        yield Session()
        response = yield Unary("Graphs.Load", message("LoadGraphRequest")(graph=content(graph)))
        report = GraphReport(response.report)
        if not response.graph_id:
            raise GraphRefused(graph.name, report)
        return Loaded(str(response.graph_id), graph, Layout(graph), report, bool(response.already_loaded),
                      self._operations.memory.node)

    def list(self) -> Steps[List[GraphInfo]]:
        response = yield Unary("Graphs.List", message("ListGraphsRequest")())
        return [GraphInfo(each) for each in response.graphs]

    def find(self, word: str) -> Steps[Loaded]:
        """The loaded graph with this id or name."""
        if len(word) == _ID_DIGITS and not word.strip("0123456789abcdef"):
            graph_id = word
        else:
            found = [each.id for each in (yield from self.list()) if each.name == word]
            if not found:
                raise NotFound("no graph with the id or name '{}' is loaded".format(word),
                               "list the loaded graphs, or load it")
            if len(found) > 1:
                raise AlreadyExists("{} loaded graphs have the name '{}', such as {} and {}".format(
                    len(found), word, found[0], found[1]), "use the id")
            graph_id = found[0]
        response = yield from self._describe(graph_id)
        graph = Graph(response.graph)
        return Loaded(graph_id, graph, Layout(graph), None, True)

    def describe(self, loaded: Loaded) -> Steps[GraphInfo]:
        yield from self._check_node(loaded)
        response = yield from self._describe(loaded.id, bool(loaded.node))
        return GraphInfo(response.loaded)

    def unload(self, loaded: Loaded, for_all: bool) -> Steps[bool]:
        yield from self._check_node(loaded)
        response = yield Unary("Graphs.Unload", message("UnloadGraphRequest")(graph_id=loaded.id,
                                                                             for_all=for_all))
        loaded.unloaded = True
        return bool(response.removed)

    def _describe(self, graph_id: str, node: bool = False) -> Steps[Any]:
        return (yield Unary("Graphs.Describe", message("DescribeGraphRequest")(graph_id=graph_id), node=node))

    def _check_node(self, loaded: Loaded) -> Steps[None]:
        if loaded.node:
            yield Session()
            if loaded.node != self._operations.memory.node:
                raise node_left(loaded.node, "graph {:.12} was loaded there".format(loaded.id))

    # Runs.

    def prepare(self, source: Union[Graph, Loaded, OpenSession], values: Mapping[str, Any],
                options: RunOptions) -> Steps[PreparedRun]:
        """The request of a run, for run() or a stream."""
        yield from self._collect_garbage()
        request = message("RunGraphRequest")()
        if isinstance(source, OpenSession):
            self._check(source)
            request.graph_session = source.id
            layout = source.loaded.layout
        elif isinstance(source, Loaded):
            yield from self._check_node(source)
            request.graph_id = source.id
            layout = source.layout
        else:
            request.graph.CopyFrom(content(source))
            layout = Layout(source)
        run = yield from graph_run.prepare(self._operations, layout, request, values, options)
        run.node = isinstance(source, Loaded) and bool(source.node)
        if isinstance(source, OpenSession):  # The session may have been replaced meanwhile.
            self._check(source)
        return run

    def run(self, source: Union[Graph, Loaded, OpenSession], values: Mapping[str, Any],
            options: RunOptions) -> Steps[GraphResult]:
        """Runs a graph to its end."""
        run = yield from self.prepare(source, values, options)
        records: List[GraphRecord] = []
        results: List[Any] = []

        def receive(response: Any) -> None:
            received = run.receive(response)
            if isinstance(received, GraphRecord):
                records.append(received)
            elif received is not None:
                results.append(received)

        try:
            yield Collect("Graphs.Run", run.request, receive, run.timeout, run.node)
        except BaseException as error:
            self.failed(run, error)
            raise
        return run.result(results[0] if results else no_result(), records)

    def failed(self, run: PreparedRun, error: BaseException) -> None:
        """Keeps memory from being used again while tasks of a run that ended without an answer may still
        write to it."""
        if not isinstance(error, REFUSALS):
            for region in run.regions:
                self._operations.memory.retire(region)

    # Graph sessions.

    def open(self, loaded: Loaded, values: Mapping[str, Any], device: Optional[int]) -> Steps[OpenSession]:
        yield from self._collect_garbage()
        yield from self._check_node(loaded)
        request = message("OpenGraphSessionRequest")(graph_id=loaded.id)
        run = PreparedRun(loaded.layout, request, None)
        yield Session()
        number = self._operations.memory.session
        yield from graph_run.bind(self._operations, run, values, device)
        response = yield Unary("Graphs.OpenSession", request)
        return OpenSession(self, loaded, response.session, number, run.keep)

    def fork(self, session: OpenSession) -> Steps[OpenSession]:
        self._check(session)
        yield from self._collect_garbage()
        response = yield Unary("Graphs.ForkSession",
                               message("ForkGraphSessionRequest")(session_id=session.id))
        return OpenSession(self, session.loaded, response.session, session.number, session.keep)

    def describe_session(self, session: OpenSession) -> Steps[GraphSessionInfo]:
        self._check(session)
        response = yield Unary("Graphs.DescribeSession",
                               message("DescribeGraphSessionRequest")(session_id=session.id))
        return GraphSessionInfo(response.session)

    def list_sessions(self) -> Steps[List[GraphSessionInfo]]:
        yield from self._collect_garbage()
        yield Session()
        response = yield Unary("Graphs.ListSessions", message("ListGraphSessionsRequest")())
        return [GraphSessionInfo(each) for each in response.sessions]

    def close(self, session: OpenSession) -> Steps[None]:
        """Closes a graph session once; also if the client's session has ended."""
        if session.closed:
            return
        session.closed = True
        if session.number == self._operations.memory.session:
            yield from self._close(session.id)

    def _close(self, session_id: str) -> Steps[None]:
        try:
            yield Unary("Graphs.CloseSession", message("CloseGraphSessionRequest")(session_id=session_id))
        except NotFound:
            pass

    def _collect_garbage(self) -> Steps[None]:
        while True:
            try:
                session_id, number = self.garbage.popleft()
            except IndexError:  # Another thread may have taken the last one.
                return
            if number == self._operations.memory.session:
                try:
                    yield from self._close(session_id)
                except Error:  # The session of the client has ended.
                    pass

    def _check(self, session: OpenSession) -> None:
        if session.closed:
            raise FailedPrecondition("graph session {} was closed".format(session.id),
                                     "use it before close() and inside its with block")
        if session.number != self._operations.memory.session:
            # Its id may be that of another graph session now.
            if session.node:
                raise node_left(session.node, "graph session {} belonged to its session".format(session.id))
            raise NotFound("graph session {} belonged to a session that has ended".format(session.id),
                           "open another one")


def no_result() -> NoReturn:
    raise Internal("the daemon ended the run without a result", "report it; and run the graph again")


def content(graph: Graph) -> Any:
    """The resident.v1.Graph of a graph that is given to a call."""
    if not isinstance(graph, Graph):
        raise InvalidArgument("{} is not a graph".format(type(graph).__name__),
                              "pass what GraphBuilder.build() or Graph.from_json() returns")
    return graph.message
