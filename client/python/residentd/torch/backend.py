"""torch.compile(f, backend="residentd"): elementwise parts of a graph as operators of the daemon.

The backend compiles the graphs that torch.compile has captured, forward only; gradients run in torch. For each
result of a part with at least _MIN_NODES elementwise operations it makes an expression, installs it with the name
`torch.` and 16 digits of the SHA-256 of its text, and calls it. So every process finds it again, also after a
restart of the daemon. Until the operators of a part are active, and if one is refused, the part runs in torch.

Parts that follow each other run in one scope of the current CUDA stream. No speed is promised: this is for operators
that processes share, and for tests.

Thread safety: compiled functions may run in any thread that has a lane (residentd.torch.attach).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ..errors import Error, InvalidArgument, NotFound, Unavailable
from ..lane import MAX_WORDS
from ..operators import Example
from . import lowering, memory
from .lane import current
from .operators import ops
from .publish import KINDS, random_inputs
from .scope import stream
from .trace import describe, dtype_name, target_of

if TYPE_CHECKING:
    from ..client import Client

_log = logging.getLogger(__name__)
_MIN_NODES = 3
# They have a shape of their own, which an expression does not.
_SHAPED = ("aten.full.default", "aten.zeros.default", "aten.ones.default")
_DIGITS = 16

# Of each client, the states of its operators: "installing", "active", "refused".
_states: "weakref.WeakKeyDictionary[Client, Dict[str, str]]" = weakref.WeakKeyDictionary()
_states_mu = threading.Lock()


class _Support(OperatorSupportBase):
    """Which nodes an expression can compute."""

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        target = target_of(node)
        return (node.op == "call_function" and lowering.supports({"target": target}) and target not in _SHAPED and
                all(self._has_dtype(each) for each in (node, *node.all_input_nodes)))

    def _has_dtype(self, node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and dtype_name(value.dtype) in (*lowering.FLOATS, "bool")


class _Result:
    """One result of a part: an operator, and which of the part's arguments it takes."""

    def __init__(self, graph: torch.fx.Graph, output: torch.fx.Node) -> None:
        """InvalidArgument if no expression computes it."""
        needed = {output}
        for node in reversed(graph.nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.arguments = [i for i, node in enumerate(placeholders) if node in needed]
        names = {placeholders[i].name: "x{}".format(k) for k, i in enumerate(self.arguments)}
        if len(self.arguments) >= MAX_WORDS:
            raise InvalidArgument("a result depends on {} tensors".format(len(self.arguments)),
                                  "a call of a lane has {} with the output".format(MAX_WORDS))
        if not output.meta["val"].is_contiguous():
            raise InvalidArgument("a result is not dense", "make it contiguous")
        self.text = lowering.lower(describe(graph, "a part of a graph", names, {}, output))
        self.name = "torch." + hashlib.sha256(self.text.encode()).hexdigest()[:_DIGITS]


class _Part(torch.nn.Module):
    """A part of a graph, in torch and as operators."""

    def __init__(self, eager: torch.fx.GraphModule, states: Dict[str, str]) -> None:
        super().__init__()
        output = next(node for node in eager.graph.nodes if node.op == "output").args[0]
        self._single = isinstance(output, torch.fx.Node)
        self._states = states
        self.eager = eager
        self.results = [_Result(eager.graph, node) for node in ((output,) if self._single else output)]

    def usable(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether its operators are active, and the daemon has the memory of the tensors."""
        return all(self._states.get(result.name) == "active" for result in self.results) and all(
            not tensor.is_cuda or not tensor.numel() or memory.is_in_pool(tensor.data_ptr()) or current().copy
            for tensor in tensors)

    def forward(self, *tensors: torch.Tensor) -> Any:
        if not self.usable(tensors):
            return self.eager(*tensors)
        given = [tensor.detach() for tensor in tensors]
        made = [ops[result.name](*(given[i] for i in result.arguments)) for result in self.results]
        return made[0] if self._single else tuple(made)

    def examples(self, index: int) -> List[Example]:
        """Inputs of result `index`, and what torch computes of them."""
        result = self.results[index]
        like = [_Like(node.meta["val"]) for node in self.eager.graph.nodes if node.op == "placeholder"]
        generator = torch.Generator().manual_seed(int(result.name.split(".")[1][:15], 16))
        made = []
        for kind in KINDS:
            tensors = random_inputs(like, kind, generator)
            with torch.no_grad():
                expected = self.eager(*tensors)
            made.append(Example(*(tensors[i] for i in result.arguments), expected if self._single else expected[index]))
        return made


class _Like:
    """What random_inputs() needs of a tensor whose sizes may be symbols."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape = [size if isinstance(size, int) else size.node.hint for size in value.shape]
        self.dtype = value.dtype
        self.device = value.device


class _Runner(torch.fx.Interpreter):
    """Runs a graph. On a GPU parts that follow each other run in one scope, and new tensors are in the pool, so that
    the next part can use them."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self._scope = contextlib.ExitStack()
        self._open = False

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as pool, contextlib.ExitStack() as self._scope:
            if any(isinstance(each, torch.Tensor) and each.is_cuda for each in args):
                pool.enter_context(memory.pool())
            self._open = False
            return super().run(*args, **kwargs)

    def run_node(self, node: torch.fx.Node) -> Any:
        part = self.submodules.get(str(node.target)) if node.op == "call_module" else None
        tensors: Any = self.map_nodes_to_values(node.args, node) if isinstance(part, _Part) else ()
        if isinstance(part, _Part) and part.usable(tensors):
            if not self._open and any(tensor.is_cuda for tensor in tensors):
                self._scope.enter_context(stream(strict=False))
                self._open = True
        elif self._open and node.op in ("call_function", "call_module", "call_method", "output"):
            if target_of(node) != "operator.getitem":
                self._scope.close()
                self._open = False
        return super().run_node(node)


def _install(client: "Client", states: Dict[str, str], parts: Sequence[_Part]) -> None:
    """Installs the operators of parts that are not there."""
    for part, i, result in ((part, i, result) for part in parts for i, result in enumerate(part.results)):
        try:
            with _states_mu:
                if states.setdefault(result.name, "installing") != "installing":
                    continue
            if not _found(client, result.name):
                client.operators.install(result.name, expr=result.text, examples=part.examples(i), wait="active",
                                         summary="a part of a graph of torch.compile")
            states[result.name] = "active"
        except Exception as error:  # The thread's end: the part goes on in torch.
            states[result.name] = "refused"
            with contextlib.suppress(Error):
                if _found(client, result.name):  # Another process was faster.
                    states[result.name] = "active"
            if isinstance(error, Unavailable):  # The next graph with this part tries again.
                states.pop(result.name)
            if states.get(result.name) != "active":
                _log.warning("operator %s was not installed, and its part of the graph runs in torch: %s", result.name,
                             error)


def _found(client: "Client", name: str) -> bool:
    try:
        return client.operators.describe(name).active_version > 0
    except NotFound:
        return False


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The compiler of AOTAutograd for a forward graph."""
    client = current().client
    with _states_mu:
        known = _states.setdefault(client, {})
    partitioner = CapabilityBasedPartitioner(graph, _Support(), allows_single_node_partition=False)
    partitions = [each for each in partitioner.propose_partitions() if len(each.nodes) >= _MIN_NODES]
    fused = partitioner.fuse_partitions(partitions)
    parts = []
    for node in fused.graph.nodes:
        eager = fused.get_submodule(node.target) if node.op == "call_module" else None
        if not isinstance(eager, torch.fx.GraphModule):
            continue
        try:
            part = _Part(eager, known)
        except InvalidArgument as error:
            _log.info("a part of a graph with %d operations runs in torch: %s", len(eager.graph.nodes), error)
            continue
        setattr(fused, node.target, part)
        parts.append(part)
    if parts:
        threading.Thread(target=_install, args=(client, known, parts), name="residentd-install", daemon=True).start()
    compiled: Callable[..., Any] = make_boxed_func(_Runner(fused).run if parts else graph.forward)
    return compiled


def _eager(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = make_boxed_func(graph.forward)
    return compiled


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend of torch.compile, also by the name "residentd". The thread that compiles needs a lane."""
    compiled: Callable[..., Any] = aot_autograd(fw_compiler=_compile, bw_compiler=_eager, inference_compiler=_compile)(
        graph, example_inputs)
    return compiled


register_backend(backend, name="residentd")


def states(client: "Client") -> Dict[str, str]:
    """The operators of a client's compiled graphs: "installing", "active" or "refused", by name."""
    with _states_mu:
        return dict(_states.get(client, {}))
