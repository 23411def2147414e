"""A stream of batches: calls that are pipelined instead of waited for one by one.

    with rd.stream(max_in_flight=32) as stream:
        for out in stream.map(add, pairs):
            ...

Thread safety: submit() may be called from several threads.
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
import os
import queue
import random
import threading
import time
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

import grpc

from .descriptors import message
from .errors import Cancelled, Error, FailedPrecondition, Internal, InvalidArgument, Unavailable, from_refusal
from .operations import Operations
from .operator_call import Prepared

if TYPE_CHECKING:
    from .client import Client
    from .operator import Operator


def another(error: BaseException) -> Error:
    """A new object of an error that several futures or calls get: where it is raised adds to its
    traceback, which must not be that of another thread."""
    if isinstance(error, Error):
        return copy.copy(error)
    made = Internal("the client could not read a result: {!r}".format(error),
                    "report it; and send the batch again")
    made.__cause__ = error
    return made


def unanswered_error(operations: Operations, prepared: Prepared, error: BaseException) -> Error:
    """The error of a batch that was sent on a stream which has ended, whose tasks may have run."""
    made = another(error)
    made.may_have_run, made.passes = True, False
    operations.failed(prepared, made)
    return made


def refuse_retry(prepared: Prepared) -> None:
    """InvalidArgument if a batch for a stream has the option `retry`."""
    if prepared.retry:
        raise InvalidArgument("retry={!r}: a stream sends no batch again".format(prepared.retry),
                              "call the operator, or submit again when the future has the error",
                              operator=prepared.operator)


def refuse_buffers(prepared: Prepared) -> None:
    """InvalidArgument if a batch for a stream that moves between nodes has a buffer of one of them."""
    if any(column.WhichOneof("kind") == "buffer" for column in prepared.batch.tasks.arguments):
        raise InvalidArgument("a stream with max_age moves between nodes, and a buffer is on one of them",
                              "pass arrays, or leave out max_age", operator=prepared.operator)


def renewal_time(now: float, max_age: Optional[float]) -> float:
    """When a call that begins now is handed over. Not all streams of a program at the same time."""
    return math.inf if max_age is None else now + max_age * random.uniform(0.9, 1.1)


def check_stream(max_in_flight: int, max_age: Optional[float]) -> None:
    if max_in_flight < 1:
        raise InvalidArgument("max_in_flight={} is below 1".format(max_in_flight), "use at least 1")
    if max_age is not None and not max_age > 0:
        raise InvalidArgument("max_age={} is not above 0".format(max_age), "give seconds, such as 300")


class _State:
    """What a call of a stream and the thread that reads its results share. It does not refer to the stream, so that
    a stream, and its client, can be garbage collected while the thread waits for results."""

    def __init__(self, operations: Operations, free: threading.Semaphore) -> None:
        self._operations = operations
        self.free = free  # Of the stream.
        self.lock = threading.Lock()
        # A batch that is unanswered keeps its stream, and so the client.
        self.pending: Dict[int, Tuple[Prepared, "Future[Any]", Any]] = {}
        self.ended: Optional[BaseException] = None
        # SimpleQueue, because its put() may interrupt its put() in the same thread.
        self.requests: "queue.SimpleQueue[Any]" = queue.SimpleQueue()

    def take_requests(self, threads: "weakref.WeakSet[threading.Thread]") -> Iterator[Any]:
        """The requests, for grpcio's thread that sends them, which is added to `threads`."""
        threads.add(threading.current_thread())
        yield from iter(self.requests.get, None)

    def read(self, call: Any, convert: Callable[[grpc.RpcError], Error]) -> None:
        """Reads all results. convert: makes the package's error of one of grpcio."""
        error: BaseException = Unavailable("the daemon ended the stream", "send the batch again")
        try:
            for response in call:
                self._answer(response.result)
        except grpc.RpcError as failure:
            error = convert(failure)
            if isinstance(error, Cancelled):
                error = Cancelled("the stream was cancelled before the batch was answered")
        except BaseException as failure:  # An error of this package; futures must not wait forever.
            error = failure
            call.cancel()
        with self.lock:
            self.ended = self.ended or error
            unanswered = list(self.pending.values())
            self.pending.clear()
        self.requests.put(None)
        for prepared, future, _ in unanswered:
            self.free.release()
            future.set_exception(unanswered_error(self._operations, prepared, error))

    def _answer(self, result: Any) -> None:
        with self.lock:
            prepared, future, _ = self.pending.pop(result.id)
        self.free.release()
        try:
            if result.HasField("refused"):
                error = from_refusal(result.refused, prepared.operator)
                self._operations.failed(prepared, error)
                future.set_exception(error)
            else:
                future.set_result(prepared.decode(result).value)
        except BaseException as error:
            future.set_exception(error)


class Stream:
    """Batches that are sent without waiting for the results of earlier ones.

    max_in_flight: the most batches that are sent and not yet answered; submit() waits at the maximum.
        The daemon's own limit is --max_stream_batches.
    in_order: whether map() returns results in the order of its items, instead of the order in which they
        are completed.
    max_age: seconds (10 % more or less, by chance) after which submit() opens another call and ends the one
        before it, whose results are still delivered. The calls of a client of several nodes then go to any node
        that serves, so that a stream outlives the nodes that drain; its batches have no buffers. None: the
        stream is one call, to one node.
    """

    def __init__(self, client: "Client", max_in_flight: int, in_order: bool, max_age: Optional[float] = None) -> None:
        check_stream(max_in_flight, max_age)
        self._client = client
        self._process = os.getpid()
        self._in_order = in_order
        self._max_in_flight = max_in_flight
        self._max_age = max_age
        self._free = threading.Semaphore(max_in_flight)
        self._ids = itertools.count(1)
        self._renewing = threading.Lock()
        self._readers: List[Tuple[Any, threading.Thread]] = []  # With their calls; some may have ended.
        self._finalizer: Any = None
        self._begin()

    def _begin(self) -> None:
        state = _State(self._client._operations, self._free)
        connection = self._client._connection
        if self._max_age is None:
            connection = connection.route("Executor.Submit", None)
        threads = connection.threads
        call = connection.open("Executor.Submit", state.take_requests(threads))
        reader = threading.Thread(target=state.read, args=(call, connection.failure), name="residentd-stream",
                                  daemon=True)
        reader.start()
        threads.add(reader)
        self._readers = [each for each in self._readers if each[1].is_alive()] + [(call, reader)]
        self._renew_at = renewal_time(time.monotonic(), self._max_age)
        self._state = state
        if self._finalizer is not None:
            self._finalizer.detach()
        # A stream that nothing refers to any more, not even a batch that is unanswered, ends.
        self._finalizer = weakref.finalize(self, state.requests.put, None)
        self._finalizer.atexit = False

    def _renew(self) -> None:
        """Hands the stream over to another call if it is time."""
        if time.monotonic() < self._renew_at:
            return
        with self._renewing:
            if time.monotonic() < self._renew_at:
                return
            old = self._state
            self._begin()
            with old.lock:
                if old.ended is None:
                    old.ended = FailedPrecondition("the call was handed over", "submit the batch again")
                    old.requests.put(None)

    @property
    def ended(self) -> bool:
        """Whether the stream accepts no more batches."""
        return self._state.ended is not None

    def submit(self, operator: "Operator", *args: Any, **kwargs: Any) -> "Future[Any]":
        """Sends one task; the future's result is what a call of the operator would return. Waits while
        max_in_flight batches are unanswered. InvalidArgument is raised here, other errors by the
        future. Callbacks of the future run on the stream's thread and must not wait for other futures of
        the stream; there FailedPrecondition is raised at the maximum."""
        prepared = self._client._drive(self._client._operations.prepare(
            operator.name, operator._version, args, kwargs))
        refuse_retry(prepared)
        if self._max_age is not None and self._client._connection._settings.balance:
            refuse_buffers(prepared)
        # The stream's thread reads the results, so that waiting there would never end.
        if not self._free.acquire(blocking=not self._on_reader()):
            raise FailedPrecondition(
                "a callback of the stream cannot submit: {} batches are unanswered".format(
                    self._max_in_flight),
                "submit in another thread, where submit() can wait, or raise max_in_flight")
        future: "Future[Any]" = Future()
        future.set_running_or_notify_cancel()  # A batch that was sent cannot be taken back.
        try:
            while True:
                self._renew()
                state = self._state
                with state.lock:
                    if state.ended is None:
                        prepared.batch.id = next(self._ids)
                        state.pending[prepared.batch.id] = (prepared, future, self)
                        state.requests.put(message("SubmitRequest")(batch=prepared.batch))
                        return future
                    if state is self._state:
                        raise another(state.ended)
                # Another thread has handed the stream over meanwhile.
        except BaseException:
            self._free.release()
            raise

    def map(self, operator: "Operator", items: Iterable[Any]) -> Iterator[Any]:
        """Runs one task for each item: a tuple of positional arguments, a dict of keyword arguments, or
        one argument. Yields the outputs; the first error ends it."""
        window: Deque["Future[Any]"] = collections.deque()
        completed: "queue.SimpleQueue[Future[Any]]" = queue.SimpleQueue()
        in_flight = 0
        for item in items:
            args, kwargs = ((), item) if isinstance(item, dict) else (
                item if isinstance(item, tuple) else (item,), {})
            future = self.submit(operator, *args, **kwargs)
            in_flight += 1
            if self._in_order:
                window.append(future)
            else:
                future.add_done_callback(completed.put)
            while in_flight >= self._max_in_flight:
                yield (window.popleft() if self._in_order else completed.get()).result()
                in_flight -= 1
        for _ in range(in_flight):
            yield (window.popleft() if self._in_order else completed.get()).result()

    def close(self) -> None:
        """Waits for the results of all batches, then ends the stream. In a callback of a future, it does
        not wait. Without effect in a process that
        was forked from the stream's own, which has neither its thread nor its connection."""
        if os.getpid() != self._process:
            return
        with self._renewing:
            self._renew_at = math.inf
            state = self._state
        with state.lock:
            if state.ended is None:
                state.ended = FailedPrecondition("the stream is closed", "open another one")
                state.requests.put(None)
        self._join()

    def cancel(self) -> None:
        """Ends the stream at once. Tasks that are not yet on the device are skipped, and unanswered
        futures get Cancelled. Without effect in a forked process, as close()."""
        if os.getpid() != self._process:
            return
        with self._renewing:
            self._renew_at = math.inf
        for call, _ in self._readers:
            call.cancel()
        self._join()

    def _on_reader(self) -> bool:
        return any(threading.current_thread() is reader for _, reader in self._readers)

    def _join(self) -> None:
        if not self._on_reader():
            for _, reader in self._readers:
                reader.join()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()
