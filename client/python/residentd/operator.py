"""Operators as functions of NumPy arrays, for threads. aio.py has the same for asyncio."""

from __future__ import annotations

import inspect
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple

from .errors import Error
from .lone_call import Template
from .operations import Description
from .operator_call import OPTIONS, Version
from .results import Result

if TYPE_CHECKING:
    from .client import Client


class Operator:
    """An operator of the daemon.

    Calling it runs one task: tensors are passed by position or keyword, scalars by keyword. NumPy arrays,
    torch tensors, lists, numbers, and buffers are accepted. An output is returned as a new array, or
    written to the array or buffer that is passed under its name (`out=`). It returns the output, or a
    named tuple if there are several. An `inout` parameter is updated in place and is also an output; one
    that is omitted starts as zeros. None for an optional tensor (a bias) means that there is none.

    Options, by keyword: `shape` (of outputs whose shape does not follow from the inputs: a shape, or a
    dict by name), `dtype` (of outputs, in the same forms), `device` (index), `timeout` (seconds),
    `retry` (True: a call that did not run is sent again; "may_run_twice": also one that may have run),
    `require_isolation` ("stoppable": FailedPrecondition if the version is "trusted", as built-in ones are).

    Errors: InvalidArgument (before anything is sent, or by the daemon), TaskFailed, and those of
    residentd.errors.

    Thread safety: may be used from several threads.
    """

    __signature__: inspect.Signature

    def __init__(self, client: "Client", description: Description, version: Version) -> None:
        self._client = client
        self._description = description
        self._name = str(description.message.name)
        self._version = version
        self.__signature__ = description.signature.python(OPTIONS)
        self.__name__ = self._name
        # help() prints the documentation of the type of an object.
        self.__class__ = type(type(self).__name__, (type(self),), {
            "__doc__": description.text(version), "__module__": __name__})

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int:
        """The version that calls run; 0: the one that is active when the call arrives, or the one that the
        content hash or label names."""
        return self._version if isinstance(self._version, int) else 0

    @property
    def signature(self) -> str:
        """The signature in the form of docs/operators.md."""
        return str(self._description.message.signature)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one task; returns the output, or a named tuple of the outputs."""
        answer = self._lone(args, kwargs)
        if answer is not None:
            return answer[0].value(answer[1])
        return self._run(args, kwargs).value

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """Runs one task; the Result has the outputs, the version that served, and the time."""
        answer = self._lone(args, kwargs)
        if answer is not None:
            result: Result = answer[0].prepared.decode(answer[1])
            return result
        return self._run(args, kwargs)

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
        return self._client._drive(
            self._client._operations.run(self._name, self._version, args, kwargs))

    def _lone(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[Tuple[Template, Any]]:
        """The template and the BatchResult of a call that has a template; None: _run() calls."""
        client = self._client
        operations = client._operations
        found = operations.lone(self._name, self._version, args, kwargs)
        if found is None:
            return None
        try:
            return found[0], client._connection.run(found[1], self._name).result
        except Error as error:
            operations.failed(found[0].prepared, error)
            if error.passes and operations.retry_of(None):
                return None
            raise

    def map(self, *args: Any, shared: Sequence[str] = (), **kwargs: Any) -> Any:
        """Runs many tasks as one batch: the first dimension of the arrays counts the tasks.

        shared: names of inputs that all tasks share, which are sent once.

        A scalar is one value, or a sequence with one for each task. The outputs have the tasks as their
        first dimension. TaskFailed names the tasks that failed, and its `result` has the outputs of the
        others.
        """
        return self._client._drive(
            self._client._operations.run(self.name, self._version, args, kwargs, shared)).value

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Sends one task on the client's stream and returns without waiting for it. The future's result
        is what the call would return. Waits while the stream has its maximum of unanswered batches."""
        return self._client._default_stream().submit(self, *args, **kwargs)

    def __repr__(self) -> str:
        pinned = ", version {}".format(self._version) if self._version else ""
        return "<operator {}({}){}>".format(self.name, self.signature, pinned)
