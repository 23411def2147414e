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
import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Deque, Dict, Iterable, Iterator, Optional, Tuple

import grpc

from .descriptors import message
from .errors import (Cancelled, Error, FailedPrecondition, Internal, InvalidArgument, Unavailable, from_rpc,
                     from_status)
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


class Stream:
    """Batches that are sent without waiting for the results of earlier ones.

    max_in_flight: the most batches that are sent and not yet answered; submit() waits at the maximum.
        The daemon's own limit is --max_stream_batches.
    in_order: whether map() returns results in the order of its items, instead of the order in which they
        are completed.
    """

    def __init__(self, client: "Client", max_in_flight: int, in_order: bool) -> None:
        if max_in_flight < 1:
            raise InvalidArgument("max_in_flight={} is below 1".format(max_in_flight), "use at least 1")
        self._client = client
        self._process = os.getpid()
        self._in_order = in_order
        self._max_in_flight = max_in_flight
        self._free = threading.Semaphore(max_in_flight)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: Dict[int, Tuple[Prepared, "Future[Any]"]] = {}
        self._ended: Optional[BaseException] = None
        # SimpleQueue, because its put() may interrupt its put() in the same thread.
        self._requests: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._call = client._connection.open("Executor.Submit", iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name="residentd-stream", daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Whether the stream accepts no more batches."""
        return self._ended is not None

    def submit(self, operator: "Operator", *args: Any, **kwargs: Any) -> "Future[Any]":
        """Sends one task; the future's result is what a call of the operator would return. Waits while
        max_in_flight batches are unanswered. InvalidArgument is raised here, other errors by the
        future. Callbacks of the future run on the stream's thread and must not wait for other futures of
        the stream; there FailedPrecondition is raised at the maximum."""
        prepared = self._client._drive(self._client._operations.prepare(
            operator.name, operator.version, args, kwargs))
        # The stream's thread reads the results, so that waiting there would never end.
        if not self._free.acquire(blocking=threading.current_thread() is not self._reader):
            raise FailedPrecondition(
                "a callback of the stream cannot submit: {} batches are unanswered".format(
                    self._max_in_flight),
                "submit in another thread, where submit() can wait, or raise max_in_flight")
        future: "Future[Any]" = Future()
        future.set_running_or_notify_cancel()  # A batch that was sent cannot be taken back.
        with self._lock:
            if self._ended is not None:
                self._free.release()
                raise another(self._ended)
            prepared.batch.id = next(self._ids)
            self._pending[prepared.batch.id] = (prepared, future)
            self._requests.put(message("SubmitRequest")(batch=prepared.batch))
        return future

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
        with self._lock:
            if self._ended is None:
                self._ended = FailedPrecondition("the stream is closed", "open another one")
                self._requests.put(None)
        self._join()

    def cancel(self) -> None:
        """Ends the stream at once. Tasks that are not yet on the device are skipped, and unanswered
        futures get Cancelled. Without effect in a forked process, as close()."""
        if os.getpid() != self._process:
            return
        self._call.cancel()
        self._join()

    def _join(self) -> None:
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()

    # The thread that reads results.

    def _read(self) -> None:
        error: BaseException = Unavailable("the daemon ended the stream", "send the batch again")
        try:
            for response in self._call:
                self._answer(response.result)
        except grpc.RpcError as failure:
            error = from_rpc(failure)
            if isinstance(error, Cancelled):
                error = Cancelled("the stream was cancelled before the batch was answered")
        except BaseException as failure:  # An error of this package; futures must not wait forever.
            error = failure
            self._call.cancel()
        with self._lock:
            self._ended = self._ended or error
            unanswered = list(self._pending.values())
            self._pending.clear()
        self._requests.put(None)
        for prepared, future in unanswered:
            self._client._operations.failed(prepared, error)
            self._free.release()
            future.set_exception(another(error))

    def _answer(self, result: Any) -> None:
        with self._lock:
            prepared, future = self._pending.pop(result.id)
        self._free.release()
        try:
            if result.HasField("refused"):
                error = from_status(result.refused.code, result.refused.message, prepared.operator)
                self._client._operations.failed(prepared, error)
                future.set_exception(error)
            else:
                future.set_result(prepared.decode(result).value)
        except BaseException as error:
            future.set_exception(error)
