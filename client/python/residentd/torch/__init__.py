"""PyTorch beside residentd: operators of a daemon on torch tensors, in place, through a local lane.

    import torch, residentd, residentd.torch as rt

    rd = residentd.connect()
    lane = rt.attach(rd)                                    # A lane of this thread.
    h, best = rt.shared((1024,)), rt.shared((), torch.int64)
    argmax = lane.prepare("argmax", h, axis=0, out=best)
    k = argmax.value()                                      # Runs it; the result as a number.
    y = rt.ops.add(h, h, alpha=0.5)

Tensors of the CPU are in memory that this process shares with the daemon; tensors of a GPU are in the pool
(pool()), whose memory the daemon maps. docs/pytorch.md describes it all. Needs torch 2.7 or newer
(pip install 'residentd[torch]').

Importing this package imports neither torch nor the C library of lanes; using one of its names does.

Thread safety: a lane is for one thread, which attach() gives it. Everything else may be used from several
threads.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from .backend import backend
    from .lane import TorchCall, TorchLane, attach, current, shared
    from .lists import Plan, foreach, plan
    from .memory import pool
    from .operators import define, ops, register
    from .publish import Published, publish
    from .scope import Scope, stream

# The module of each name.
_LAZY = {
    "backend": "backend",
    "TorchCall": "lane", "TorchLane": "lane", "attach": "lane", "current": "lane", "shared": "lane",
    "Plan": "lists", "foreach": "lists", "plan": "lists",
    "pool": "memory",
    "define": "operators", "ops": "operators", "register": "operators",
    "Published": "publish", "publish": "publish",
    "Scope": "scope", "stream": "scope",
}


class _Package(types.ModuleType):
    """A module with the name of a function does not replace the function when it is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LAZY or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError("module 'residentd.torch' has no attribute {!r}".format(name))
    found = globals()[name] = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    return found


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(_LAZY))


__all__ = sorted(_LAZY)
