"""Steps of an operation: what it asks of the connection.

An operation is written once, as a generator that yields steps and is sent their results. The client
of threads (client.py) and that of asyncio (aio.py) each drive these generators, so that both do the same.

    def free(buffer: int) -> Steps[None]:
        yield Unary("Buffers.Free", message("FreeRequest")(buffer_id=buffer))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generator, Iterable, Optional, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Unary:
    """One request, one response, which is the result of the step."""

    method: str  # "Executor.Run".
    request: Any
    timeout: Optional[float] = None  # Seconds; None: the client's default.
    operator: str = ""  # For errors.
    node: bool = False  # Whether only the node of the session can answer, see nodes.py.


@dataclass(frozen=True)
class Upload:
    """Requests of a stream, one response."""

    method: str
    requests: Iterable[Any]
    timeout: Optional[float] = None


@dataclass(frozen=True)
class Collect:
    """One request. `receive` is called with each response; the result of the step is None."""

    method: str
    request: Any
    receive: Callable[[Any], None]
    timeout: Optional[float] = None
    node: bool = False  # As of Unary.


@dataclass(frozen=True)
class Exchange:
    """Requests of a stream, and a stream of responses, each given to `receive`. The requests are all
    sent before the first response is expected."""

    method: str
    requests: Iterable[Any]
    receive: Callable[[Any], None]
    timeout: Optional[float] = None


@dataclass(frozen=True)
class Session:
    """The session, which is opened if there is none: (id, path of the local socket).

    optional: a client of several nodes opens none, because the call that follows may need no node.
    """

    optional: bool = False


@dataclass(frozen=True)
class Blocking:
    """Calls a function that may wait for the operating system; its result is that of the step."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Wait:
    """Waits for this time, in seconds.

    for_connection: the channel connects to the daemon meanwhile, if it can.
    """

    seconds: float
    for_connection: bool = False


Step = Union[Unary, Upload, Collect, Exchange, Session, Blocking, Wait]
Steps = Generator[Step, Any, T]
