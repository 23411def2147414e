"""The client for asyncio. It has the names of the client for threads; calls are awaited.

    async with residentd.aio.connect("127.0.0.1:50051") as rd:
        z = await rd.op("add")(x, y)
        future = await rd.op("add").submit(x, y)     # Sent on the client's stream.
        z = await future

Everything belongs to the event loop in which the client was opened. Cancelling a task cancels its call.
What differs from the client for threads only in that calls are awaited is in client_aio.py, graphs_aio.py
and operators_aio.py, which tools/async_front makes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import weakref
from typing import (TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Dict, Generator, Iterable, List,
                    Optional, Protocol, Sequence, Set, Tuple, TypeVar)

import grpc

from . import calls, client_aio, credentials, descriptors, operators_aio
from .calls import Steps
from .client import DEFAULT_ADDRESS, arena_bytes, may_share, one_of
from .client_aio import Buffer as Buffer
from .connection import (HEALTH_CHECK, SERVING, SESSION_END_SECONDS, check_process, may_have_left,
                         one_daemon)
from .credentials import Settings
from .descriptors import message
from .errors import (LEAVING, Cancelled, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument,
                     Unavailable, from_python, from_refusal, from_rpc, node_left)
from .operations import Operations
from .operator_call import Prepared, Version, check_version
from .operators import Event
from .results import Result
from .shared_memory import Memory
from .stream import another, check_stream, refuse_buffers, refuse_retry, renewal_time, unanswered_error

if TYPE_CHECKING:
    from .graphs_aio import Graphs
    from .models_aio import Models

T = TypeVar("T")


async def _uninterrupted(work: "asyncio.Future[T]") -> T:
    """The result of work that cannot be stopped, such as a function in another thread: a cancellation is
    raised when the work is done, because until then it uses what its caller would release."""
    cancelled: Optional[asyncio.CancelledError] = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # An exception that nothing asks for would be logged.
    raise cancelled


class Routes(Protocol):
    """Where the calls of one operation go, see connection.py."""

    async def route(self, method: str, request: Any, node: bool = False) -> "Connection":
        ...

    async def session(self) -> Tuple[str, str]:
        ...


class Connection:
    """Runs the steps of operations in an event loop."""

    def __init__(self, settings: Settings, on_session_end: Callable[[], None]) -> None:
        self._settings = settings
        self._process = os.getpid()
        self._metadata = credentials.metadata(settings)
        self._headers = self._metadata  # Of each call.
        self._on_session_end = on_session_end
        self._channel: Any = None
        self._callables: Dict[str, Any] = {}
        self._opening: Optional[asyncio.Lock] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._session: Tuple[str, str] = ("", "")
        self._session_task: Optional["asyncio.Task[None]"] = None
        self._closed = False
        self._left = False

    @property
    def address(self) -> str:
        return self._settings.address

    @property
    def open_session(self) -> Tuple[str, str]:
        """The session, as of session(); empty: there is none."""
        return self._session

    async def reach(self) -> None:
        """Opens the session. A node must serve, too. Unavailable: it cannot be used."""
        if self._settings.pinned:
            await self.check_health()
        await self.session()

    async def check_health(self) -> None:
        """Unavailable unless the daemon is reached, and serves."""
        try:
            answer = await self._open_channel().unary_unary(HEALTH_CHECK)(
                b"", timeout=self._settings.connect_timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        if answer != SERVING:
            raise Unavailable("{} does not serve".format(self.address), "wait until it does, or use another daemon")

    def begin(self) -> Routes:
        """Where the calls of an operation go that begins now: to this connection."""
        return self

    async def route(self, method: str, request: Any, node: bool = False) -> "Connection":
        return self

    async def find_node(self, attempt: Callable[[Settings], Awaitable[T]]) -> T:
        """The result of `attempt` for a node of a client of several."""
        raise one_daemon()

    async def failure(self, error: grpc.RpcError, operator: str = "") -> Error:
        """The package's error for one of grpcio."""
        made = from_rpc(error, operator)
        if self._settings.pinned and (made.reason in LEAVING or may_have_left(made)):
            if made.reason and self._session_task is not None:
                self._session_task.cancel()
            if await self.wait_for_session_end():
                return node_left(self.address, made)
        return node_left(self.address, made) if self._left and made.code == "CANCELLED" else made

    async def wait_for_session_end(self) -> bool:
        """Whether there is no session, or it ends in a moment."""
        if self._session_task is not None:
            await asyncio.wait([self._session_task], timeout=SESSION_END_SECONDS)
        return not self._session[0]

    async def drive(self, steps: Steps[T]) -> T:
        """Runs the steps of an operation; returns its result."""
        check_process(self._process)
        self._check_loop()
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
                value = await self._execute(step, routes)
            except BaseException as error:
                failure = error

    def _check_loop(self) -> None:
        """FailedPrecondition in another event loop than that of the first call."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise FailedPrecondition("the client belongs to another event loop, in which it was used first",
                                     "call residentd.aio.connect() in each asyncio.run(), and use the client "
                                     "only there")

    async def _execute(self, step: calls.Step, routes: Routes) -> Any:
        if isinstance(step, calls.Session):
            return ("", "") if self._settings.balance and step.optional else await routes.session()
        if isinstance(step, calls.Blocking):
            return await _uninterrupted(asyncio.get_running_loop().run_in_executor(None, step.function))
        if isinstance(step, calls.Wait):
            return await asyncio.sleep(step.seconds)
        operator = step.operator if isinstance(step, calls.Unary) else ""
        request = (iter(step.requests) if isinstance(step, (calls.Upload, calls.Exchange)) else
                   step.request)
        node = isinstance(step, (calls.Unary, calls.Collect)) and step.node
        connection = await routes.route(step.method, request, node)
        call = connection.open(step.method, request, credentials.timeout_of(step.timeout, self._settings))
        try:
            if isinstance(step, (calls.Unary, calls.Upload)):
                return await call
            async for response in call:
                step.receive(response)
            return None
        except grpc.RpcError as error:
            raise await connection.failure(error, operator) from None

    def _open_channel(self) -> Any:
        if self._left:
            raise node_left(self.address, "its connection was closed")
        if self._closed:
            raise FailedPrecondition("the client is closed",
                                     "use it before close() and inside its with block")
        self._check_loop()
        if self._channel is None:  # Made here, where an event loop runs.
            target, options = credentials.target_and_options(self._settings)
            secret = credentials.channel_credentials(self._settings)
            self._channel = (grpc.aio.insecure_channel(target, options) if secret is None else
                             grpc.aio.secure_channel(target, secret, options))
        return self._channel

    def open(self, name: str, request: Any, timeout: Optional[float] = None) -> Any:
        """Starts a call."""
        channel = self._open_channel()
        callable_ = self._callables.get(name)
        if callable_ is None:
            method = descriptors.method(name)
            make = {
                (False, False): channel.unary_unary, (True, False): channel.stream_unary,
                (False, True): channel.unary_stream, (True, True): channel.stream_stream,
            }[method.client_streams, method.server_streams]
            callable_ = self._callables[name] = make(
                method.path, request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString)
        return callable_(*([] if request is None else [request]), timeout=timeout, metadata=self._headers)

    def _set_session(self, session: Tuple[str, str]) -> None:
        self._session = session
        if session[0]:
            self._headers = self._metadata + [("resident-session", session[0])]
        elif not self._settings.pinned:  # A node refuses calls with a session that has ended: it has left.
            self._headers = self._metadata

    async def session(self) -> Tuple[str, str]:
        """The session's id and the path of the daemon's local socket."""
        self._check_loop()
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._session[0]:
                return self._session
            request = message("OpenSessionRequest")(client_name=self._settings.client_name)
            call = self.open("Sessions.Open", request)
            try:
                response = await asyncio.wait_for(call.read(), self._settings.connect_timeout)
            except asyncio.TimeoutError:
                call.cancel()
                raise DeadlineExceeded(
                    "no answer from {} within {:g} s".format(self._settings.address,
                                                             self._settings.connect_timeout),
                    "check the address, and that residentd runs there") from None
            except grpc.RpcError as error:
                raise credentials.unreachable(from_rpc(error), self._settings) from None
            if response is grpc.aio.EOF:
                raise Unavailable("the daemon ended the session immediately", "try again")
            session = (response.session_id, response.local_address)
            self._set_session(session)
            # The event loop keeps the task, which must not keep the client.
            connection = weakref.ref(self)

            async def wait_for_the_end() -> None:
                try:
                    await call.code()
                finally:
                    call.cancel()
                    found = connection()
                    if found is not None and found._session is session:
                        found._set_session(("", ""))
                        found._on_session_end()

            loop = asyncio.get_running_loop()
            self._session_task = task = loop.create_task(wait_for_the_end())

            def abandon() -> None:
                """Ends the session of a client that is garbage collected, which may happen in any thread."""
                if not loop.is_closed():
                    loop.call_soon_threadsafe(task.cancel)

            finalizer = weakref.finalize(self, abandon)
            setattr(finalizer, "atexit", False)

            def detach(_: Any) -> None:
                """Otherwise the finalizer would keep the loop after the session has ended."""
                finalizer.detach()

            task.add_done_callback(detach)
            return session

    async def leave(self) -> None:
        """Closes the connection, because its node has left. Calls in progress end with that error."""
        await self.wait_for_session_end()
        self._left = True
        await self.close()

    async def close(self) -> None:
        """Ends the session and the channel."""
        if self._closed:
            return
        self._closed = True
        self._set_session(("", ""))
        if self._session_task is not None:
            self._session_task.cancel()
            await asyncio.gather(self._session_task, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()


class Operator:
    """An operator of the daemon, see residentd.Operator. Its description is read by the first call."""

    def __init__(self, client: "Client", name: str, version: Version) -> None:
        self._client = client
        self.name = name
        self._version = version

    @property
    def version(self) -> int:
        """As residentd.Operator.version."""
        return self._version if isinstance(self._version, int) else 0

    async def signature(self) -> str:
        """The signature in the form of docs/operators.md."""
        description = await self._client._drive(self._client._operations.describe(self.name))
        return str(description.message.signature)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one task; returns the output, or a named tuple of the outputs."""
        return (await self.run(*args, **kwargs)).value

    async def run(self, *args: Any, **kwargs: Any) -> Result:
        """Runs one task; returns the Result."""
        return await self._client._drive(
            self._client._operations.run(self.name, self._version, args, kwargs))

    async def map(self, *args: Any, shared: Sequence[str] = (), **kwargs: Any) -> Any:
        """Runs many tasks as one batch, see residentd.Operator.map."""
        result = await self._client._drive(
            self._client._operations.run(self.name, self._version, args, kwargs, shared))
        return result.value

    async def submit(self, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        """Sends one task on the client's stream. The future that it returns is awaited for the
        output."""
        return await self._client._default_stream().submit(self, *args, **kwargs)


_Pending = Dict[int, Tuple[Prepared, "asyncio.Future[Any]"]]


class Stream:
    """A stream of batches, see residentd.Stream. It is an async context manager."""

    def __init__(self, client: "Client", max_in_flight: int, in_order: bool, max_age: Optional[float] = None) -> None:
        check_stream(max_in_flight, max_age)
        self._client = client
        self._in_order = in_order
        self._max_in_flight = max_in_flight
        self._max_age = max_age
        self._renew_at = math.inf
        self._closed = False
        self._free = asyncio.Semaphore(max_in_flight)
        self._writing = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._writes: Set["asyncio.Task[None]"] = set()  # An event loop itself keeps no tasks.
        self._ids = itertools.count(1)
        self._pending: _Pending = {}
        self._ended: Optional[BaseException] = None
        # The calls, of which the last one takes batches, with the tasks that read their results.
        self._call: Any = None
        self._readers: List[Tuple[Any, "asyncio.Task[None]"]] = []
        if not client._connection._settings.balance:
            self._begin(client._connection)

    def _begin(self, connection: Connection) -> None:
        self._call, self._pending, self._ended = connection.open("Executor.Submit", None), {}, None
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(connection, self._call, self._pending))
        self._readers = [each for each in self._readers if not each[1].done()] + [(self._call, reader)]
        self._renew_at = renewal_time(loop.time(), self._max_age)

    async def _renew(self) -> None:
        """Begins the first call, or hands the stream over to another one if it is time. The caller has
        _renewing, so that no batch is sent meanwhile."""
        old = self._call
        if old is not None and asyncio.get_running_loop().time() < self._renew_at:
            return
        connection = self._client._connection
        if self._max_age is None:
            connection = await connection.route("Executor.Submit", None)
        if self._writes:
            await asyncio.wait(set(self._writes))
        if self._closed:
            return
        self._begin(connection)
        if old is None:
            return
        try:
            async with self._writing:
                await old.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # It has ended.

    @property
    def ended(self) -> bool:
        """Whether the stream accepts no more batches."""
        return self._ended is not None

    async def submit(self, operator: Operator, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        """Sends one task; returns a future of the output. Waits while max_in_flight batches are
        unanswered."""
        prepared = await self._client._drive(self._client._operations.prepare(
            operator.name, operator._version, args, kwargs))
        refuse_retry(prepared)
        if self._max_age is not None and self._client._connection._settings.balance:
            refuse_buffers(prepared)
        await self._free.acquire()
        try:
            async with self._renewing:
                if not self._closed:
                    await self._renew()
                if self._ended is not None:
                    raise another(self._ended)
                future: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()
                prepared.batch.id = next(self._ids)
                self._pending[prepared.batch.id] = (prepared, future)
                request = message("SubmitRequest")(batch=prepared.batch)
                # Cancelling write() would end the stream, and a batch that is pending must be sent, because
                # only its answer ends it. So a task of its own sends it, which goes on if this one is
                # cancelled.
                write = asyncio.get_running_loop().create_task(self._write(request))
                self._writes.add(write)
                write.add_done_callback(self._writes.discard)
        except BaseException:
            self._free.release()
            raise
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future

    async def _write(self, request: Any) -> None:
        try:
            async with self._writing:
                await self._call.write(request)
        except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            pass  # The reader gives the future its error.

    async def map(self, operator: Operator, items: Iterable[Any]) -> AsyncIterator[Any]:
        """Runs one task for each item, see residentd.Stream.map."""
        window: List["asyncio.Future[Any]"] = []

        async def take() -> Any:
            if self._in_order:
                return await window.pop(0)
            await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
            first = next(future for future in window if future.done())
            window.remove(first)
            return first.result()

        for item in items:
            args, kwargs = ((), item) if isinstance(item, dict) else (
                item if isinstance(item, tuple) else (item,), {})
            window.append(await self.submit(operator, *args, **kwargs))
            while len(window) >= self._max_in_flight:
                yield await take()
        while window:
            yield await take()

    async def close(self) -> None:
        """Waits for the results of all batches, then ends the stream."""
        self._closed = True
        if self._ended is None:
            self._ended = FailedPrecondition("the stream is closed", "open another one")
            async with self._writing:
                if self._call is not None:
                    await self._call.done_writing()
        for _, reader in self._readers:
            await reader

    async def cancel(self) -> None:
        """Ends the stream at once; unanswered futures get Cancelled."""
        self._closed = True
        if not self._readers:
            self._ended = self._ended or Cancelled("the stream was cancelled")
        for call, _ in self._readers:
            call.cancel()
        for _, reader in self._readers:
            await reader

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        await (self.close() if kind is None else self.cancel())

    async def _read(self, connection: Connection, call: Any, pending: _Pending) -> None:
        error: BaseException = Unavailable("the daemon ended the stream", "send the batch again")
        try:
            async for response in call:
                self._answer(response.result, pending)
        except grpc.RpcError as failure:
            error = await connection.failure(failure)
        except asyncio.CancelledError:
            error = Cancelled("the stream was cancelled before the batch was answered")
        except BaseException as failure:  # An error of this package; futures must not wait forever.
            error = failure
            call.cancel()
        if call is self._call:
            self._ended = self._ended or error
        for prepared, future in pending.values():
            made = unanswered_error(self._client._operations, prepared, error)
            if not future.done():
                future.set_exception(made)
            self._free.release()
        pending.clear()

    def _answer(self, result: Any, pending: _Pending) -> None:
        prepared, future = pending.pop(result.id)
        self._free.release()
        error: Optional[BaseException] = None
        value: Any = None
        try:
            if result.HasField("refused"):
                error = from_refusal(result.refused, prepared.operator)
                self._client._operations.failed(prepared, error)
            else:
                value = prepared.decode(result).value
        except BaseException as failure:
            error = failure
        if future.done():  # It was cancelled.
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


class Operators(operators_aio.Operators):
    """The operators of a daemon, see residentd.Operators."""

    async def watch(self, name: str = "", after_revision: int = 0) -> AsyncIterator[Event]:
        """The changes of an operator (or of all) as they happen."""
        request = message("WatchRequest")(name=name, after_revision=after_revision)
        connection = await self._client._connection.route("Operators.Watch", request)
        call = connection.open("Operators.Watch", request)
        try:
            async for response in call:
                yield Event(response.event)
        except grpc.RpcError as error:
            raise await connection.failure(error) from None
        finally:
            call.cancel()


class Client(client_aio.ClientCalls):
    """A connection to a daemon, with a session, see residentd.Client. It is opened by `async with`, or
    by `await connect(...)`."""

    def __init__(self, settings: Settings) -> None:
        memory = Memory(arena_bytes(settings))
        self._operations = Operations(memory, may_share(settings), settings)
        if settings.balance:
            from .nodes_aio import BalancedConnection  # Here, because many programs have one daemon.

            self._connection: Connection = BalancedConnection(settings, memory)
        else:
            self._connection = Connection(settings, memory.reset)
            memory.node = settings.address if settings.pinned else ""
        self._stream: Optional[Stream] = None
        self._graphs: Optional["Graphs"] = None
        self._models: Optional["Models"] = None
        self.operators = Operators(self)

    def __repr__(self) -> str:
        return "<residentd client of {} for asyncio{}>".format(
            self._connection._settings.address, ", closed" if self._connection._closed else "")

    def __await__(self) -> Generator[Any, None, "Client"]:
        return self._open().__await__()

    async def _open(self) -> "Client":
        try:
            await self._connection.reach()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aenter__(self) -> "Client":
        return await self._open()

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and self._stream is not None:
            await self._stream.cancel()
        await self.close()

    def op(self, name: str, version: int = 0, *, content_hash: str = "", label: str = "") -> Operator:
        """The operator of this name, see residentd.Client.op; a call of it finds out whether it exists."""
        return Operator(self, name, check_version(version, content_hash, label))

    def stream(self, max_in_flight: int = 32, in_order: bool = False, *, max_age: Optional[float] = None) -> Stream:
        """A stream of batches."""
        return Stream(self, max_in_flight, in_order, max_age)

    @property
    def graphs(self) -> "Graphs":
        """Task graphs, see residentd.graphs.Graphs."""
        if self._graphs is None:
            from .graphs_aio import Graphs

            self._graphs = Graphs(self)
        return self._graphs

    @property
    def models(self) -> "Models":
        """Models, see residentd.models.Models."""
        if self._models is None:
            from .models_aio import Models

            self._models = Models(self)
        return self._models

    async def pin(self) -> "Client":
        """A client of one further node, see residentd.Client.pin."""

        async def opened(settings: Settings) -> "Client":
            return await Client(settings)

        return await self._connection.find_node(opened)

    async def close(self) -> None:
        """Ends the client; waits for results of submit() that are not there yet."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
        await self._connection.close()

    async def _drive(self, steps: Steps[T]) -> T:
        return await self._connection.drive(steps)

    def _default_stream(self) -> Stream:
        if self._stream is None or self._stream.ended:
            self._stream = Stream(self, 32, False)
        return self._stream


def connect(address: str = DEFAULT_ADDRESS, *, targets: Optional[str] = None,
            client_name: str = "residentd Python client",
            token_file: Optional[str] = None, tls_ca: Optional[str] = None,
            tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
            tls_server_name: Optional[str] = None, timeout: float = 60.0,
            connect_timeout: float = 5.0, max_message_mib: int = 64, shared_memory: str = "auto",
            arena_mib: int = 1024, retry: bool = False) -> Client:
    """A client, with the arguments of residentd.connect. It connects when it is opened."""
    return Client(credentials.check(
        Settings(one_of(address, targets), client_name, token_file, tls_ca, tls_cert, tls_key, tls_server_name,
                 timeout, connect_timeout, max_message_mib, shared_memory, arena_mib, retry, targets is not None)))
