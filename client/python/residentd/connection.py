"""The connection of a client of threads: the channel, the session, and the calls.

Thread safety: may be used from several threads.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import traceback
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Protocol, Tuple, TypeVar

import grpc

from . import calls, credentials, descriptors
from .calls import Steps
from .credentials import Settings
from .errors import (LEAVING, DeadlineExceeded, Error, FailedPrecondition, Unavailable, from_python, from_rpc,
                     node_left)

T = TypeVar("T")


_process = os.getpid()  # A call of the operating system takes longer than all checks of a lone call.


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


def check_process(owner: int) -> None:
    """FailedPrecondition in a process that was forked after the connection was made."""
    if _process != owner:
        raise FailedPrecondition(
            "the client was made by process {} and is used in process {}, which was forked from it".format(
                owner, _process), "call residentd.connect() in each process")


def one_daemon() -> FailedPrecondition:
    """The error of a call that needs several nodes."""
    return FailedPrecondition("the client is one of a single daemon", "use residentd.connect(targets=...)")


def may_have_left(error: Error) -> bool:
    """Whether it is an error of a connection that broke, or of calls that a daemon ended when it stopped. A
    daemon that serves has some of these errors, too."""
    return not error.reason and (error.code == "UNAVAILABLE" or (
        error.code == "CANCELLED" and "ocally cancelled" not in error.message))


# The connections of this process.
_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()
# The longest that the end of the program waits for its calls.
_EXIT_SECONDS = 5.0
HEALTH_CHECK = "/grpc.health.v1.Health/Check"  # Any daemon serves it, and its request may be empty.
SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse.
# When a node has left, its calls and its session end one shortly after the other.
SESSION_END_SECONDS = 1.0


def _copy(items: "weakref.WeakSet[T]") -> List[T]:
    while True:
        try:
            return list(items)
        except RuntimeError:  # Another thread has changed it meanwhile.
            pass


def _end_calls() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for connection in _copy(_connections):
        connection.end_calls(deadline)


atexit.register(_end_calls)


class Routes(Protocol):
    """Where the calls of one operation go."""

    def route(self, method: str, request: Any, node: bool = False) -> "Connection":
        """The connection for a call. node: whether only the node of the session can answer."""

    def session(self) -> Tuple[str, str]:
        """The session, which is opened if there is none: its id and the path of the daemon's local
        socket."""


class Connection:
    """Runs the steps of operations."""

    def __init__(self, settings: Settings, on_session_end: Callable[[], None]) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._metadata = credentials.metadata(settings)
        target, options = credentials.target_and_options(settings)
        secret = credentials.channel_credentials(settings)
        self._channel = (grpc.insecure_channel(target, options) if secret is None else
                         grpc.secure_channel(target, secret, options))
        self._callables: Dict[str, Any] = {}
        self._on_session_end = on_session_end
        self._opening = threading.Lock()
        self._session_call: Any = None
        self._session_ended = threading.Event()  # And _on_session_end has run.
        self._session_ended.set()
        self._session = ("", "")
        self._headers = tuple(self._metadata)  # Of each call.
        self._closed = False
        self._left = False
        self._close_ended = threading.Event()
        # The calls whose responses stream, and threads that handle them.
        self._calls_lock = threading.Lock()
        self._calls: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
        _connections.add(self)
        # Without a serializer: requests of run() are bytes.
        run = descriptors.method("Executor.Run")
        self._run = self._channel.unary_unary(run.path,
                                              response_deserializer=run.response.FromString)

    @property
    def address(self) -> str:
        return self._settings.address

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def open_session(self) -> Tuple[str, str]:
        """The session, as of session(); empty: there is none."""
        return self._session

    def reach(self) -> None:
        """Opens the session. A node must serve, too. Unavailable: it cannot be used."""
        if self._settings.pinned:
            self.check_health()
        self.session()

    def check_health(self) -> None:
        """Unavailable unless the daemon is reached, and serves."""
        try:
            answer = self._channel.unary_unary(HEALTH_CHECK)(b"", timeout=self._settings.connect_timeout,
                                                             metadata=self._headers)
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        except ValueError as error:
            raise self._closed_error(error) from None
        if answer != SERVING:
            raise Unavailable("{} does not serve".format(self.address), "wait until it does, or use another daemon")

    def begin(self) -> Routes:
        """Where the calls of an operation go that begins now: to this connection."""
        return self

    def route(self, method: str, request: Any, node: bool = False) -> "Connection":
        return self

    def find_node(self, attempt: Callable[[Settings], T]) -> T:
        """The result of `attempt` for a node of a client of several."""
        raise one_daemon()

    # Steps.

    def drive(self, steps: Steps[T]) -> T:
        """Runs the steps of an operation; returns its result."""
        check_process(self._process)
        routes = self.begin()
        value: Any = None
        failure: Optional[BaseException] = None
        while True:
            try:
                step = steps.send(value) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except (TypeError, ValueError, OverflowError) as error:
                if isinstance(error, Error):
                    raise
                raise from_python(error) from error
            value, failure = None, None
            try:
                value = self._execute(step, routes)
            except BaseException as error:
                failure = error

    def _execute(self, step: calls.Step, routes: "Routes") -> Any:
        if isinstance(step, calls.Unary):
            return routes.route(step.method, step.request, step.node)._call(
                step.method, step.request, step.timeout, step.operator)
        if isinstance(step, calls.Session):
            return ("", "") if self._settings.balance and step.optional else routes.session()
        if isinstance(step, calls.Blocking):
            return step.function()
        if isinstance(step, calls.Wait):
            return self._wait(step)
        request = step.request if isinstance(step, calls.Collect) else iter(step.requests)
        connection = routes.route(step.method, request, isinstance(step, calls.Collect) and step.node)
        if isinstance(step, calls.Upload):
            return connection._call(step.method, request, step.timeout, "")
        connection.stream(step.method, request, step.receive, step.timeout)
        return None

    def _wait(self, step: calls.Wait) -> None:
        """Waits. grpcio has a thread that makes a connection only while a call waits. Without one it
        continues every 5 s, and the daemon may have closed the connection by then, because it received
        nothing: the next call would be written to it, and would fail as one that may have run."""
        end = time.monotonic() + step.seconds
        if step.for_connection:
            try:
                # Nobody needs a credential for it.
                self._channel.unary_unary(HEALTH_CHECK)(b"", timeout=step.seconds, wait_for_ready=True)
            except (grpc.RpcError, ValueError):  # The next attempt reports what is wrong.
                pass
        time.sleep(max(0.0, end - time.monotonic()))

    def run(self, request: bytes, operator: str) -> Any:
        """Executor.Run with a serialized request and the client's timeout: a call of grpcio, and nothing
        more."""
        if self._process != _process:
            check_process(self._process)
        try:
            return self._run(request, self._settings.timeout, self._headers)
        except (grpc.RpcError, ValueError, KeyboardInterrupt) as error:
            self._raise(error, operator)

    def _call(self, method: str, request: Any, timeout: Optional[float], operator: str) -> Any:
        timeout = credentials.timeout_of(timeout, self._settings)
        try:
            return self._callable(method)(request, timeout=timeout, metadata=self._headers)
        except (grpc.RpcError, ValueError, KeyboardInterrupt) as error:
            self._raise(error, operator)

    def _raise(self, error: BaseException, operator: str) -> NoReturn:
        """Raises the package's error for one of grpcio."""
        if isinstance(error, grpc.RpcError):
            raise self.failure(error, operator) from None
        if isinstance(error, ValueError):  # A closed channel.
            raise self._closed_error(error) from None
        # The frames of grpc own the call, which is cancelled when they let it go.
        traceback.clear_frames(error.__traceback__)
        raise error

    def failure(self, error: grpc.RpcError, operator: str = "") -> Error:
        """The package's error for one of grpcio."""
        made = from_rpc(error, operator)
        if not self._settings.pinned or not self._has_left(made):
            return made
        return node_left(self.address, made)

    def _has_left(self, error: Error) -> bool:
        """Whether the node cannot be used any more; then its session has ended."""
        if error.reason in LEAVING:
            self._session_call.cancel()
        elif self._left and error.code == "CANCELLED":
            return True
        elif not may_have_left(error):
            return False
        return self.wait_for_session_end()

    def wait_for_session_end(self) -> bool:
        """Whether there is no session, or it ends in a moment."""
        return self._session_ended.wait(SESSION_END_SECONDS)

    def stream(self, method: str, request: Any, receive: Callable[[Any], None],
               timeout: Optional[float]) -> None:
        """Gives each response of a call to `receive`."""
        call = self.open(method, request, credentials.timeout_of(timeout, self._settings))
        try:
            for response in call:
                receive(response)
        except grpc.RpcError as error:
            raise self.failure(error) from None
        finally:
            call.cancel()

    def open(self, method: str, request: Any, timeout: Optional[float] = None) -> Any:
        """Starts a call whose responses stream; `request` is a message, or an iterator of messages."""
        check_process(self._process)
        try:
            call = self._callable(method)(request, timeout=timeout, metadata=self._headers)
        except ValueError as error:
            raise self._closed_error(error) from None
        with self._calls_lock:
            self._calls.add(call)
        return call

    def end_calls(self, deadline: float) -> None:
        """Cancels the calls whose responses stream, and waits until no thread handles them. Without this,
        a program may hang at its end: the interpreter then ends daemon threads, as those of grpcio are,
        wherever they are. A lock of a call that one of them holds there stays locked, and the call's
        destructor waits for it."""
        if os.getpid() != self._process:
            return

        def remaining() -> float:
            return max(0.0, deadline - time.monotonic())

        if self._closed:
            self._close_ended.wait(remaining())
        with self._calls_lock:
            open_calls = list(self._calls)
        threads = set(_copy(self.threads))
        for call in open_calls:
            ended = threading.Event()

            def note_thread() -> None:
                threads.add(threading.current_thread())
                ended.set()

            # grpcio's thread calls it when the call has ended.
            if call.add_callback(note_thread):
                call.cancel()
                ended.wait(remaining())
        for thread in threads - {threading.current_thread()}:
            thread.join(remaining())

    def _closed_error(self, error: ValueError) -> Exception:
        if self._left:
            return node_left(self.address, "its connection was closed")
        if not self._closed:
            return error
        return FailedPrecondition("the client is closed", "use it before close() and inside its with block")

    def _set_session(self, session: Tuple[str, str]) -> None:
        self._session = session
        if session[0]:
            self._headers = tuple(self._metadata + [("resident-session", session[0])])
        elif not self._settings.pinned:  # A node refuses calls with a session that has ended: it has left.
            self._headers = tuple(self._metadata)

    def _callable(self, name: str) -> Any:
        found = self._callables.get(name)
        if found is None:
            method = descriptors.method(name)
            channel = self._channel
            make = {
                (False, False): channel.unary_unary, (True, False): channel.stream_unary,
                (False, True): channel.unary_stream, (True, True): channel.stream_stream,
            }[method.client_streams, method.server_streams]
            found = self._callables[name] = make(
                method.path, request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString)
        return found

    # The session: a call that lasts as long as the client's buffers.

    def session(self) -> Tuple[str, str]:
        """The session's id and the path of the daemon's local socket. Opens a session if there is none;
        buffers of a session that has ended no longer exist."""
        with self._opening:
            if self._session[0]:
                return self._session
            request = descriptors.message("OpenSessionRequest")(client_name=self._settings.client_name)
            call = self.open("Sessions.Open", request)
            # The wait for the first response has a deadline; the session has none.
            watchdog = threading.Timer(self._settings.connect_timeout, call.cancel)
            watchdog.daemon = True
            watchdog.start()
            try:
                response = next(iter(call), None)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.CANCELLED:
                    raise DeadlineExceeded(
                        "no answer from {} within {:g} s".format(self._settings.address,
                                                                 self._settings.connect_timeout),
                        "check the address, and that residentd runs there") from None
                raise credentials.unreachable(from_rpc(error), self._settings) from None
            finally:
                watchdog.cancel()
            if response is None:
                raise Unavailable("the daemon ended the session immediately", "try again")
            self._session_call = call
            self._session_ended = session_ended = threading.Event()
            self._set_session((response.session_id, response.local_address))
            session = self._session
            # The channel's thread keeps the callback, which must not keep the client.
            connection = weakref.ref(self)

            def ended() -> None:
                found = connection()
                if found is not None and found._session is session:
                    found._set_session(("", ""))
                    found._on_session_end()
                session_ended.set()

            if not call.add_callback(ended):
                ended()
            return session

    def abandon(self) -> None:
        """Closes the connection in another thread: for a client that is garbage collected, which may
        happen in any thread at any time, also while that thread holds locks."""
        if not self._closed and os.getpid() == self._process:
            _thread.start_new_thread(self.close, ())

    def leave(self) -> None:
        """Closes the connection, because its node has left. Calls in progress end with that error."""
        self.wait_for_session_end()
        self._left = True
        self.close()

    def close(self) -> None:
        """Ends the session and the channel. Calls in progress end CANCELLED."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return  # The channel belongs to the parent.
        try:
            self._set_session(("", ""))
            if self._session_call is not None:
                self._session_call.cancel()
            self._channel.close()
        finally:
            self._close_ended.set()
