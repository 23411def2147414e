"""Sending calls again, for the option `retry`.

Without it, and by default, no call is sent twice. With retry=True a call is sent again only if it did not
run: the daemon refused it for a reason that passes (Error.passes: the queue is full, the daemon is being
restarted), no connection was found, or the engine ended before all of its tasks. With
retry="may_run_twice" also if the connection or the engine ended and its tasks may have run.

The time between attempts doubles, with a random part, so that clients which were refused together do not
come back together. The call's timeout is that of all attempts together.
"""

from __future__ import annotations

import random
import time
from typing import Any, Callable, TypeVar

from .calls import Steps, Wait
from .errors import NODE_LEFT, Error, InvalidArgument, TaskFailed, Unavailable

T = TypeVar("T")
MAY_RUN_TWICE = "may_run_twice"
_FIRST_DELAY_S = 0.05
_LAST_DELAY_S = 2.0


def check(retry: Any) -> None:
    """InvalidArgument unless it is a value of the option; None: the client's."""
    if retry is not None and not isinstance(retry, bool) and retry != MAY_RUN_TWICE:
        raise InvalidArgument("retry={!r} is unknown".format(retry),
                              "use True, False or '{}'".format(MAY_RUN_TWICE))


def may_send_again(error: Error, retry: Any, repeatable: bool) -> bool:
    """Whether a call that ended with this error may be sent again. repeatable: whether it has the same
    outputs if it runs twice."""
    if error.passes:
        return True
    if error.reason == NODE_LEFT:
        return False
    lost = isinstance(error, Unavailable) or (isinstance(error, TaskFailed) and
                                              all(e.status == "UNAVAILABLE" for e in error.errors))
    return lost and repeatable and retry == MAY_RUN_TWICE


def repeat(attempt: Callable[[float], Steps[T]], again: Callable[[Error], bool],
           timeout: float) -> Steps[T]:
    """The result of `attempt`, which is given the seconds that are left, and is made again while `again`
    is true of its error."""
    end = time.monotonic() + timeout
    delay = _FIRST_DELAY_S
    while True:
        wait = delay * random.uniform(0.5, 1.0)
        try:
            return (yield from attempt(max(end - time.monotonic(), 1e-3)))
        except Error as error:
            if not again(error) or time.monotonic() + wait >= end:
                raise
            unavailable = isinstance(error, Unavailable)
        yield Wait(wait, for_connection=unavailable)
        delay = min(2 * delay, _LAST_DELAY_S)
