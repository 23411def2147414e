"""A client of several nodes, residentd.connect(targets=...): which calls any of them can answer, and which
node has what the other calls need.

The client's channel spreads calls that need no state of one node: gRPC balances them over the nodes that
serve. Everything else (buffers, streams, graph sessions, changes of operators) belongs to one node, to
which the client connects when it first needs one. It chooses the node itself, at random, and keeps it until
the node leaves. Handles do not move: a call with one whose node has left has the error NODE_LEFT, and the
next upload chooses another node.

Thread safety: Nodes and BalancedConnection may be used from several threads.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import secrets
import socket
import threading
import time
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from . import credentials
from .connection import Connection, Routes
from .credentials import Settings
from .errors import DeadlineExceeded, Error, FailedPrecondition, ResourceExhausted, Unavailable
from .shared_memory import Memory

T = TypeVar("T")
_SPREAD = {"Operators.List", "Operators.Describe", "Graphs.List", "Graphs.Describe"}
# Calls with handles, or with what such a call has returned, in the session that was opened before them.
WITH_HANDLES = {
    "Executor.Run", "Buffers.Allocate", "Buffers.Download", "Buffers.Free", "Buffers.ImportShared",
    "Buffers.Persist", "Buffers.Upload", "Graphs.CloseSession", "Graphs.DescribeSession", "Graphs.ForkSession",
    "Graphs.ListSessions", "Graphs.OpenSession", "Graphs.Run", "Lanes.Open",
}
# With these errors of a node another one is asked.
NEXT_NODE = (DeadlineExceeded, ResourceExhausted, Unavailable)


def is_spread(method: str, request: Any) -> bool:
    """Whether any node can answer a call."""
    if method == "Executor.Run":
        return not any(column.WhichOneof("kind") == "buffer"
                       for column in request.batch.tasks.arguments)
    if method == "Graphs.Run":
        return not request.graph_session and not any(
            binding.WhichOneof("memory") == "buffer_id" for binding in request.bindings)
    return method in _SPREAD


class Nodes:
    """The nodes of a target."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._chosen: "collections.Counter[str]" = collections.Counter()

    def settings(self) -> List[Settings]:
        """Those of a connection to each node, in the order in which to try them: nodes that were chosen less
        often before the others, otherwise by chance. May wait for DNS. Unavailable: the name has no
        address."""
        target = self._settings.address
        addresses, name = _resolve(target)
        with self._lock:
            self._chosen = collections.Counter({each: self._chosen[each] for each in addresses})
            addresses.sort(key=lambda each: (self._chosen[each], random.random()))
        host = name.rpartition(":")[0].strip("[]")
        return [
            dataclasses.replace(
                self._settings, address=each, balance=False, pinned=True, authority=name,
                tls_server_name=self._settings.tls_server_name or (host if self._settings.tls_ca else "") or None,
                # Behind a single address there may be a proxy, which sends all calls with it to one node.
                affinity=secrets.token_hex(16) if len(addresses) == 1 else "") for each in addresses
        ]

    def chosen(self, settings: Settings) -> None:
        """Notes that the node is used."""
        with self._lock:
            self._chosen[settings.address] += 1

    def find(self, attempt: Callable[[Settings], T]) -> T:
        """The result of `attempt` for the first node with which it succeeds."""
        refused: List[Tuple[str, Error]] = []
        end = time.monotonic() + self._settings.timeout
        for settings in self.settings():
            try:
                found = attempt(settings)
            except NEXT_NODE as error:
                refused.append((settings.address, error))
                if time.monotonic() > end:
                    break
            else:
                self.chosen(settings)
                return found
        raise self.none(refused)

    def none(self, refused: List[Tuple[str, Error]]) -> Error:
        """The error if no node could be used."""
        return Unavailable(
            "no node of {} can be used; {}{}".format(
                self._settings.address,
                "; ".join("{}: {}".format(address, error.message) for address, error in refused[:3]),
                "; and {} more".format(len(refused) - 3) if len(refused) > 3 else ""),
            "check that a node serves: residentctl status --targets {}".format(self._settings.address))


def _resolve(target: str) -> Tuple[List[str], str]:
    """The addresses of a target, and the host and port that they have in common; "": none, or only gRPC
    knows it."""
    if target.startswith(credentials.OPAQUE):
        return [target], ""
    hosts = credentials.hosts(target)
    if target.startswith(("ipv4:", "ipv6:")):
        return hosts, ""
    if target.startswith("dns://") and not target.startswith("dns:///"):
        raise FailedPrecondition(
            "{} names a DNS server, which only calls without the state of a node can use".format(target),
            "use dns:///{}, which the system's resolver finds".format(hosts[0]))
    host, _, port = hosts[0].rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable("cannot find the addresses of {}: {}".format(host, error.strerror or error),
                          "check the name, and the machine's DNS") from error
    # Without duplicates, in the order of the resolver.
    addresses = dict.fromkeys("[{}]:{}".format(each[4][0], port) if each[0] is socket.AF_INET6 else
                              "{}:{}".format(each[4][0], port) for each in found)
    return list(addresses), hosts[0]


class _Operation:
    """Where the calls of an operation go. Numbers of buffers are those of one node's session, and the next
    node may have given them to other buffers. So all calls with handles go to the node that was in use when
    the operation began, or that it chose itself; a handle is not older than that."""

    def __init__(self, owner: "BalancedConnection") -> None:
        self._owner = owner
        self._node = owner.current

    def route(self, method: str, request: Any, node: bool = False) -> Connection:
        if not node and is_spread(method, request):
            return self._owner
        if self._node is None or method not in WITH_HANDLES:
            self._node = self._owner.pinned()
        return self._node

    def session(self) -> Tuple[str, str]:
        self._node = self._owner.pinned()
        return self._node.open_session


class BalancedConnection(Connection):
    """The connections of a client of several nodes. Itself, it is the channel that spreads calls."""

    def __init__(self, settings: Settings, memory: Memory) -> None:
        super().__init__(settings, lambda: None)
        self._memory = memory
        self._nodes = Nodes(settings)
        self._choosing = threading.Lock()
        self._pinned: Optional[Connection] = None

    def reach(self) -> None:
        """Waits for a node that serves. Unavailable: there is none."""
        try:
            self.check_health()
        except Error as error:
            raise credentials.unreachable(error, self._settings) from None

    def begin(self) -> Routes:
        return _Operation(self)

    def route(self, method: str, request: Any, node: bool = False) -> Connection:
        return self.begin().route(method, request, node)

    def find_node(self, attempt: Callable[[Settings], T]) -> T:
        return self._nodes.find(attempt)

    def session(self) -> Tuple[str, str]:
        return self.begin().session()

    @property
    def current(self) -> Optional[Connection]:
        """The connection to the node that was chosen last, which may have left."""
        return self._pinned

    def pinned(self) -> Connection:
        """The connection to the node that has the client's state. Chooses one if there is none, or if it has
        left."""
        with self._choosing:
            if self._closed:
                return self  # Its calls raise the error.
            current = self._pinned
            if current is None or not current.open_session[0]:
                if current is not None:
                    current.leave()
                self._pinned = current = self.find_node(self._connect)
                self._memory.node = current.address
            return current

    def _connect(self, settings: Settings) -> Connection:
        connection = Connection(settings, self._memory.reset)
        try:
            connection.reach()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        super().close()
        if self._pinned is not None:
            self._pinned.close()
