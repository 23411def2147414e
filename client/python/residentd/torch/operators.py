"""Operators of the daemon as functions of torch tensors: ops, and torch.ops.residentd.

    y = rt.ops.add(x, w, alpha=0.5)                 # Direct.
    rt.register(rd)
    y = torch.ops.residentd.add(x, w, 0.5)          # Through torch's dispatcher: for torch.compile and torch.export.

Both run the same prepared calls, of which a lane keeps 1,024, by operator and by the dtypes, shapes and strides of the
tensors. Outputs that are not given are new dense tensors: of the pool if an input is on a GPU, otherwise of the memory
that the client shares with the daemon.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .. import buffers, dtypes, results
from ..client import Client
from ..dtypes import DType
from ..errors import FailedPrecondition, InvalidArgument, WrongType
from ..lane import MAX_WORDS
from ..signature import INOUT, INPUT, OUTPUT, REDUCTION_OPTIONS, Shape, Signature
from .lane import TorchCall, TorchLane, attach, current, empty_cuda, kind_of
from .tensors import TORCH, dtype_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

_NAMESPACE = "residentd"


class _Entry:
    """A prepared call of an operator, and what it needs from one use to the next."""

    def __init__(self, call: Optional[TorchCall], words: List[int], new: List[Tuple[int, DType, Shape]],
                 scalars: List[Tuple[int, str, Any]], gpu: bool) -> None:
        self.gpu = gpu  # Whether new outputs are in memory of the GPU.
        self.call = call  # None: no output has an element, so that nothing is to be done.
        self.words = words  # Of the tensors that are given, in the order of the key.
        self.new = new  # Word, dtype and shape of each new output.
        self.layouts = [(shape, buffers.dense_strides(shape), TORCH[dtype.name]) for _, dtype, shape in new]
        self.has_defaults = False  # Whether the words of all scalars are their defaults.
        self.scalars = scalars  # Word, name and default of each one that varies.


class BoundOperator:
    """An operator on a lane."""

    def __init__(self, lane: TorchLane, name: str) -> None:
        self.lane = lane
        self.signature = signature = lane.client._drive(lane.client._operations.describe(name)).signature
        self.inputs = [i for i, p in enumerate(signature.parameters) if p.kind in (INPUT, INOUT)]
        self.outputs = [i for i, p in enumerate(signature.parameters) if p.kind in (OUTPUT, INOUT)]
        self.names = tuple(p.keyword for p in signature.outputs)
        self.elementwise = is_elementwise(signature)
        self.piece: Optional[int] = None  # Of lists.py.
        self.has_inout = any(p.kind == INOUT for p in signature.parameters)
        self.last: Optional[_Entry] = None  # Of the last call, if one like it needs no look into the cache.
        tensors = sum(not p.scalar for p in signature.parameters)
        floating = [i for i, p in enumerate(signature.parameters)
                    if p.scalar and dtypes.BY_NUMBER[p.dtypes[0]].floating]
        self.varying = floating[:max(MAX_WORDS - tensors, 0)]
        self._varying_names = {signature.parameters[i].keyword for i in self.varying}

    def __call__(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        """Runs it on tensors."""
        lane = self.lane
        if lane.memory_changed():
            lane.refresh()
        grad = torch.is_grad_enabled()
        last = self.last
        if (last is not None and len(args) == len(self.inputs) and self._varying_names.issuperset(kwargs) and
                last.call.put_fast(0, tuple(args)) and not (grad and any([each.requires_grad for each in args]))):
            made = self._run(last, kwargs)
            return made[0] if len(made) == 1 else results.named_tuple(self.names, made)
        given: List[Any] = list(args)
        options: Tuple[Any, ...] = ()
        places = self.inputs
        simple = len(args) == len(self.inputs) and self._varying_names.issuperset(kwargs)
        if not simple:
            places, given, kwargs, options = self.arrange(args, kwargs)
        kinds: List[Any] = []
        staged: List[Tuple[Any, Any]] = []
        for i, tensor in enumerate(given):
            if tensor is None:
                kinds.append(None)
                continue
            if not isinstance(tensor, torch.Tensor):
                raise self._wrong_type(places[i], tensor)
            if grad and tensor.requires_grad:
                raise self.needs_grad()
            if not lane.has(tensor) or tensor.is_neg():
                copy = self._stage(tensor, places[i])
                if self.signature.parameters[places[i]].kind != INPUT:
                    staged.append((tensor, copy))
                given[i] = tensor = copy
            kinds.append(kind_of(tensor))
        key = (self, tuple(kinds), tuple(places), options)
        entry = lane._cache.get(key)
        if entry is None:
            entry = self._prepare(key, places, given, kwargs, options)
        else:
            lane._cache.move_to_end(key)
        if entry.call is not None:
            for word, tensor in zip(entry.words, [each for each in given if each is not None]):
                entry.call.set_tensor(word, tensor)
        made = self._run(entry, kwargs)
        for tensor, copy in staged:
            tensor.copy_(copy)
        self.last = entry if (simple and entry.call is not None and not self.has_inout and
                               entry.words == list(range(len(args)))) else None
        return self._result(places, args, given, staged, made)

    def _run(self, entry: _Entry, kwargs: Dict[str, Any]) -> List[torch.Tensor]:
        """Runs a prepared call whose given tensors are set; the new outputs."""
        call = entry.call
        lane = self.lane
        if entry.gpu and empty_cuda is not None and lane._scope is not None and lane._scope.in_pool:
            made = [empty_cuda(*each) for each in entry.layouts]
        else:
            made = [lane.new(shape, dtype, entry.gpu) for _, dtype, shape in entry.new]
        if call is None:
            return made
        for (word, _, _), tensor in zip(entry.new, made):
            if not call.put_fast(word, (tensor,)):
                call.set_tensor(word, tensor)
        if kwargs or not entry.has_defaults:
            for word, name, default in entry.scalars:
                value = kwargs.get(name)
                call.set_scalar(word, default if value is None else value)
            entry.has_defaults = not kwargs
        try:
            call()
        except FailedPrecondition:
            self.forget()  # It may have been replaced: the next call prepares it again.
            raise
        finally:
            call.drop_tensors()
        return made

    def _result(self, places: Sequence[int], args: Sequence[Any], given: Sequence[Any],
                staged: Sequence[Tuple[Any, Any]], made: List[torch.Tensor]) -> Any:
        by_copy = {id(copy): tensor for tensor, copy in staged}
        values, new = [], iter(made)
        for i in self.outputs:
            if i in places:
                tensor = given[list(places).index(i)]
                values.append(by_copy.get(id(tensor), tensor))
            else:
                values.append(next(new))
        return values[0] if len(values) == 1 else results.named_tuple(self.names, values)

    def arrange(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[
            List[int], List[Any], Dict[str, Any], Tuple[Any, ...]]:
        """The parameters that tensors are given for, inputs first; the tensors; scalars that vary; and what the
        shapes of new outputs and scalars that do not vary follow from. InvalidArgument if there is no such parameter."""
        signature = self.signature
        name = signature.operator
        if len(args) > len(self.inputs):
            raise InvalidArgument("{} takes {} tensors by position, not {}".format(name, len(self.inputs), len(args)),
                                  "pass scalars and outputs by keyword", operator=name)
        tensors: Dict[int, Any] = dict(zip(self.inputs, args))
        varying: Dict[str, Any] = {}
        options: Dict[str, Any] = {}
        for keyword, value in kwargs.items():
            index = signature.by_keyword.get(keyword, -1)
            if keyword == "shape" and index < 0:
                options[keyword] = tuple(sorted((key, tuple(buffers.check_shape(each))) for key, each in value.items())
                                         ) if isinstance(value, dict) else None if value is None else tuple(
                                             buffers.check_shape(value))
            elif index < 0 and signature.reduces and keyword in REDUCTION_OPTIONS:
                options[keyword] = tuple(value) if isinstance(value, list) else value
            elif index < 0:
                raise InvalidArgument("{} has no parameter '{}'".format(name, keyword),
                                      "its parameters are: " + ", ".join(signature.by_keyword), operator=name)
            elif signature.parameters[index].scalar:
                (varying if keyword in self._varying_names else options)[keyword] = value
            elif index in tensors:
                raise InvalidArgument("'{}' of {} is given twice".format(keyword, name),
                                      "pass it by position or by keyword", operator=name)
            elif value is not None or index in self.inputs:
                tensors[index] = value
        for i in self.inputs:
            if tensors.setdefault(i, None) is None and not is_optional(signature, i):
                raise signature.mismatch(i, "it is missing", "pass a tensor", reason="ARGUMENT_MISSING")
        places = self.inputs + [i for i in self.outputs if i in tensors and i not in self.inputs]
        try:
            return places, [tensors[i] for i in places], varying, tuple(sorted(options.items()))
        except TypeError:
            raise WrongType("an argument of {} cannot be compared".format(name), "pass numbers for scalars and axes",
                            operator=name) from None

    def infer(self, places: Sequence[int], tensors: Sequence[Any], options: Dict[str, Any]) -> Tuple[
            Dict[int, Any], List[Tuple[int, DType, Any]]]:
        """The values of scalars that are in `options`, and parameter, dtype and shape of each output that is not given.
        tensors: anything with dtype and shape. InvalidArgument if they do not match the signature."""
        signature = self.signature
        shapes: Dict[int, Any] = {}
        sent: List[DType] = []
        for i, tensor in zip(places, tensors):
            if tensor is not None:
                dtype = dtype_of(tensor.dtype)
                signature.check_dtype(i, dtype, "convert it, for instance with to()")
                sent.append(dtype)
                shapes[i] = tuple(tensor.shape)
            else:
                shapes[i] = (0,)
        scalars = {signature.by_keyword[name]: value for name, value in options.items()
                   if name in signature.by_keyword}
        wanted = options.get("shape")
        new = [i for i in self.outputs if i not in places]
        if signature.reduces:
            axes, x, out = (signature.by_keyword[name] for name in ("axes", "x", "out"))
            scalars[axes], shape = signature.reduce(shapes[x], scalars.get(axes), options.get("axis"),
                                                    options.get("keepdims", False))
            if out in new:
                shapes[out] = shape
            elif shapes[out] != shape:
                raise signature.mismatch(out, "shape {} must be {} for these axes".format(
                    list(shapes[out]), list(shape)), "pass a tensor of this shape, or set keepdims")
        elif wanted:
            by_name = dict(wanted) if isinstance(wanted[0], tuple) else None
            shapes.update((i, tuple(wanted if by_name is None else by_name[signature.parameters[i].keyword]))
                          for i in free_outputs(signature) if i in new and (
                              by_name is None or signature.parameters[i].keyword in by_name))
        bound = signature.bind(shapes)
        return scalars, [(i, signature.output_dtype(signature.parameters[i], sent),
                          shapes[i] if i in shapes else signature.shape_of(i, bound)) for i in new]

    def _prepare(self, key: Any, places: Sequence[int], given: Sequence[Any], kwargs: Dict[str, Any],
                 options: Tuple[Any, ...]) -> _Entry:
        """Prepares the call of a key, and keeps it."""
        lane, signature = self.lane, self.signature
        scalars, new = self.infer(places, given, dict(options))
        gpu = any(each is not None and each.is_cuda for each in given)
        if new and all(0 in shape for _, _, shape in new):
            entry = _Entry(None, [], new, [], gpu)
        else:
            values = dict(zip(places, given))
            values.update((i, lane.new(shape, dtype, gpu)) for i, dtype, shape in new)
            tensors = {i: lane._tensor(signature.parameters[i].name, value) for i, value in values.items()
                       if value is not None}
            for i in self.varying:
                scalars[i] = kwargs.get(signature.parameters[i].keyword)
            scalars.update((i, None) for i, value in values.items() if value is None)
            call = lane.prepare_kept(signature, scalars, tensors, self.varying)
            word = call.word_of
            entry = _Entry(call, [word(i) for i, value in zip(places, given) if value is not None],
                           [(word(i), dtype, shape) for i, dtype, shape in new],
                           [(word(i), signature.parameters[i].keyword, signature.parameters[i].default)
                            for i in self.varying], gpu)
        lane._cache[key] = entry
        return entry

    def _stage(self, tensor: torch.Tensor, parameter: int) -> torch.Tensor:
        """A copy of a tensor in memory of the daemon."""
        lane = self.lane
        if tensor.device.type != "cpu" and not (tensor.is_cuda and lane.copy):
            lane.find(tensor)  # Raises.
        if not tensor.numel():
            return tensor
        return lane.copy_of(tensor)

    def forget(self) -> None:
        """Forgets the operator and its prepared calls."""
        lane = self.lane
        lane.client._operations.forget(self.signature.operator)
        lane._operators.pop(self.signature.operator, None)
        for key in [key for key in lane._cache if key[0] is self]:
            entry = lane._cache.pop(key)
            self.last = None
            if entry.call is not None:
                lane.discard(entry.call)

    def needs_grad(self) -> InvalidArgument:
        """The error about a tensor that requires a gradient."""
        name = self.signature.operator
        return InvalidArgument("{} has no gradient, and a tensor requires one".format(name),
                               "call it in torch.no_grad(), pass tensor.detach(), or name the operator that computes "
                               "its gradients with residentd.torch.define({!r}, backward=...)".format(name),
                               operator=name)

    def _wrong_type(self, parameter: int, value: Any) -> WrongType:
        return WrongType("argument '{}' of {} is a {}, not a torch tensor".format(
            self.signature.parameters[parameter].name, self.signature.operator, type(value).__name__),
            "pass a tensor", operator=self.signature.operator)


def is_elementwise(signature: Signature) -> bool:
    """Whether each element of an output follows from those of the inputs at the same place."""
    dims = [p.shape for p in signature.parameters if not p.scalar]
    return all(len(shape) == 1 and shape[0].kind in ("spread", "broadcast") and shape[0].name == dims[0][0].name
               for shape in dims) and not signature.reduces


def is_optional(signature: Signature, index: int) -> bool:
    """Whether an input may be None."""
    return signature.parameters[index] is not signature.inputs[0] and not signature.reduces and (
        signature.may_be_absent(index))


def free_outputs(signature: Signature) -> List[int]:
    """The outputs whose shape does not follow from the inputs; those of reductions do."""
    known = {(dim.kind == "name", dim.name) for p in signature.inputs for dim in p.shape if dim.kind != "size"}
    return [] if signature.reduces else [
        i for i, p in enumerate(signature.parameters) if p.kind == OUTPUT and any(
            dim.kind != "size" and (dim.kind == "name", dim.name) not in known for dim in p.shape)]


def bound_operator(lane: TorchLane, name: str) -> BoundOperator:
    """The operator on the lane. NotFound has the most similar name."""
    found = lane._operators.get(name)
    if found is None:
        found = lane._operators[name] = BoundOperator(lane, name)
    return found


class Operator:
    """An operator of the daemon as a function of torch tensors: ops.NAME.

    Inputs are passed by position or keyword, scalars and outputs (out=) by keyword, `shape` if that of an output does
    not follow from the inputs, `axis` and `keepdims` for reductions. The result is the output, or a named tuple if
    there are several; inout parameters are updated in place, and returned. Tensors of the CPU that are not in memory of
    the daemon are copied; those of a GPU are refused, unless attach() has copy=True.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        lane = current()
        found = lane._operators.get(self.name) or bound_operator(lane, self.name)
        if self.name in _with_gradient and torch.is_grad_enabled():
            return _with_gradient[self.name](*args, **kwargs)
        return found(args, kwargs)

    @property
    def torch_op(self) -> "OpOverload":
        """torch.ops.residentd.NAME, which is defined if it is not."""
        return _define(self.name, current().client).overload

    def __repr__(self) -> str:
        return "<operator {} on torch tensors>".format(self.name)


class _Operators:
    """ops: operators by name, as attributes or ops["name"]."""

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        bound_operator(current(), name)  # NotFound if there is none.
        found = self.__dict__[name] = Operator(name)
        return found

    def __getitem__(self, name: str) -> Operator:
        return getattr(self, name)  # type: ignore[no-any-return]


ops = _Operators()


# torch.ops.residentd.

_library: Any = None
_lock = threading.Lock()
_defined: Dict[str, "_Defined"] = {}
# The function to call instead if gradients are enabled, by operator.
_with_gradient: Dict[str, Callable[..., Any]] = {}


def _quote(value: Any, floating: bool) -> str:
    return repr(float(value)) if floating else repr(int(value))


class _Defined:
    """The overloads of an operator in torch.ops.residentd."""

    def __init__(self, name: str, signature: Signature) -> None:
        self.name, self.signature = name, signature
        self.torch_name = re.sub(r"\W", "_", name)
        self.inputs = [p for p in signature.parameters if p.kind in (INPUT, INOUT)]
        self.outputs = [p for p in signature.parameters if p.kind == OUTPUT]
        free = [signature.parameters[i] for i in free_outputs(signature)]
        # The arguments that are shapes: one for all outputs, if they have one shape.
        self.shapes = ["shape"] if len({p.shape for p in free}) == 1 else [p.keyword + "_shape" for p in free]
        fields: List[str] = []
        # The names of the functional overload's arguments, with their defaults.
        self.defaults: Dict[str, Any] = {}
        for p in self.inputs:
            index = signature.by_keyword[p.keyword]
            fields.append("Tensor{} {}".format("?" if is_optional(signature, index) else "", p.keyword))
            self.defaults[p.keyword] = None
        scalars = [p for p in signature.scalars if not (signature.reduces and p.name == "axes")]
        for p in scalars:
            if p.default is None:
                fields.append("{} {}".format("float" if dtypes.BY_NUMBER[p.dtypes[0]].floating else "int", p.keyword))
                self.defaults[p.keyword] = None
        for name in self.shapes:
            fields.append("SymInt[] " + name)
            self.defaults[name] = None
        for p in scalars:
            if p.default is not None:
                floating = dtypes.BY_NUMBER[p.dtypes[0]].floating
                fields.append("{} {}={}".format("float" if floating else "int", p.keyword, _quote(p.default, floating)))
                self.defaults[p.keyword] = p.default
        if signature.reduces:
            fields += ["int[]? axis=None", "bool keepdims=False"]
            self.defaults.update(axis=None, keepdims=False)
        returned = ["Tensor"] * len(signature.outputs)
        schema = "{}({}) -> {}".format(self.torch_name, ", ".join(fields), returned[0] if len(returned) == 1 else (
            "({})".format(", ".join(returned))))
        # The other one writes to tensors, and returns nothing, as functions of torch.library that write must.
        written = {p.keyword: "Tensor({}!)".format(chr(ord("a") + i)) for i, p in enumerate(signature.outputs)}
        inputs = [field if p.kind == INPUT else "{} {}".format(written[p.keyword], p.keyword)
                  for p, field in zip(self.inputs, fields)]
        rest = [field for field in fields[len(self.inputs):] if not field.startswith("SymInt[] ")]
        out = ["{} {}".format(written[p.keyword], p.keyword) for p in self.outputs]
        out_schema = "{}.out({}) -> ()".format(self.torch_name, ", ".join(inputs + rest + (["*"] if out else []) + out))
        library = _torch_library()
        library.define(schema)
        library.define(out_schema)
        qualified = "{}::{}".format(_NAMESPACE, self.torch_name)
        for overload, run, fake in (("", self._functional, self._fake), (".out", self._out, self._fake_out)):
            for key in ("CPU", "CUDA"):
                library.impl(self.torch_name + overload, run, key)
            torch.library.register_fake(qualified + overload, fake, lib=library)
        packet = getattr(getattr(torch.ops, _NAMESPACE), self.torch_name)
        self.overload: "OpOverload" = packet.default
        self.out: "OpOverload" = packet.out

    def bind(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> Dict[str, Any]:
        """The arguments of ops by name."""
        values = {**self.defaults, **dict(zip(self.defaults, args)), **kwargs}
        if len(self.shapes) > 1:
            shapes = {name[:-len("_shape")]: values.pop(name) for name in self.shapes}
            values["shape"] = {name: shape for name, shape in shapes.items() if shape is not None}
        return values

    def _call(self, values: Dict[str, Any]) -> Any:
        lane = current()
        bound = bound_operator(lane, self.name)
        if self.name not in _differentiable:
            return bound((), values)
        with torch.no_grad():  # The gradient is that of the dispatcher.
            return bound((), values)

    def _functional(self, *args: Any, **kwargs: Any) -> Any:
        values = self.bind(args, kwargs)
        lane = current()
        for p in self.inputs:
            if p.kind == INOUT:
                old = values[p.keyword]
                values[p.keyword] = lane.copy_of(old)
        found = self._call(values)
        return tuple(found) if len(self.signature.outputs) > 1 else found

    def _out(self, *args: Any, **kwargs: Any) -> None:
        self._call(self.bind(args, kwargs))

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        values = self.bind(args, kwargs)
        tensors = [values[p.keyword] for p in self.inputs]
        self._refuse_grad(tensors)
        first = next(each for each in tensors if each is not None)
        infer = _Inference(self.signature)
        places = [self.signature.by_keyword[p.keyword] for p in self.inputs]
        _, new = infer.infer(places, tensors, {
            name: tuple(values[name].items()) if isinstance(values[name], dict) else values[name]
            for name in ("axis", "keepdims", "shape") if name in values})
        made = {i: first.new_empty(shape, dtype=TORCH[dtype.name]) for i, dtype, shape in new}
        found = [made[i] if i in made else torch.empty_like(values[p.keyword], memory_format=torch.contiguous_format)
                 for i, p in ((self.signature.by_keyword[p.keyword], p) for p in self.signature.outputs)]
        return found[0] if len(found) == 1 else tuple(found)

    def _fake_out(self, *args: Any, **kwargs: Any) -> None:
        values = self.bind(args, kwargs)
        self._refuse_grad([values.get(p.keyword) for p in self.inputs])

    def _refuse_grad(self, tensors: Sequence[Any]) -> None:
        if self.name not in _differentiable and torch.is_grad_enabled() and any(
                each is not None and each.requires_grad for each in tensors):
            raise _Inference(self.signature).needs_grad()


class _Inference(BoundOperator):
    """What follows from a signature alone."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.outputs = [i for i, p in enumerate(signature.parameters) if p.kind in (OUTPUT, INOUT)]


_differentiable: Dict[str, str] = {}  # The operator that computes the gradients, by operator.


def _torch_library() -> Any:
    global _library
    if _library is None:
        _library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    return _library


def _define(name: str, client: Client) -> _Defined:
    with _lock:
        found = _defined.get(name)
        if found is None:
            signature = client._drive(client._operations.describe(name)).signature
            if not signature.outputs or not signature.inputs:
                raise InvalidArgument("{} has no {}".format(name, "outputs" if signature.inputs else "input tensors"),
                                      "use it with rt.ops", operator=name)
            taken = re.sub(r"\W", "_", name)
            if any(each.torch_name == taken for each in _defined.values()):
                raise InvalidArgument("another operator is torch.ops.residentd.{} already".format(taken),
                                      "install the operator with another name", operator=name)
            found = _defined[name] = _Defined(name, signature)
        return found


def register(rd: Optional[Client] = None, names: Optional[Sequence[str]] = None) -> List[str]:
    """Defines torch.ops.residentd.NAME for the daemon's operators, or for those of `names`; returns the names that it
    has. Scalars follow the tensors by position, with their defaults; the overload `out` writes to given outputs. In
    a name, what is neither a letter nor a digit becomes _. Calls use the lane of the thread that runs them.

    rd: the client; None: that of this thread's lane.
    """
    client = current().client if rd is None else rd
    if names is None:
        found = [info.name for info in client.operators.list()]
        found = [name for name in found if _is_function(client, name)]
    else:
        found = list(names)
    return [_define(name, client).torch_name for name in found]


def _is_function(client: Client, name: str) -> bool:
    signature = client._drive(client._operations.describe(name)).signature
    return bool(signature.inputs and signature.outputs)


def define(name: str, backward: Optional[str] = None) -> "OpOverload":
    """Defines torch.ops.residentd.NAME, and returns it.

    backward: the operator that computes the gradients. Its inputs are the gradient of each output of `name`, and then
        the inputs of `name`; its scalars have names of scalars of `name`; its outputs are the gradient of each input. A
        gradient is summed over the dimensions that were broadcast. With it, operators take tensors that require
        gradients. Can be set once for each operator.

    InvalidArgument: the signatures do not fit.
    """
    client = current().client
    made = _define(name, client)
    if backward is None or _differentiable.get(name) == backward:
        return made.overload
    if name in _differentiable:
        raise InvalidArgument("{} has the gradient {} already".format(name, _differentiable[name]),
                              "define it once in a process", operator=name)
    forward, other = made.signature, _define(backward, client).signature
    outputs = len(forward.outputs)
    scalars = [p.keyword for p in other.scalars]
    if (len(other.inputs) != outputs + len(forward.inputs) or len(other.outputs) != len(forward.inputs) or
            any(p.kind == INOUT for p in forward.inputs) or
            any(each not in [p.keyword for p in forward.scalars] for each in scalars)):
        raise InvalidArgument(
            "{} has other parameters than the gradient of {}".format(backward, name),
            "give it {} input(s), {} output(s), no scalar that {} does not have, and no inout".format(
                outputs + len(forward.inputs), len(forward.inputs), name), operator=backward)
    gradient = _defined[backward].overload
    names = list(made.defaults)
    count = len(forward.inputs)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        values = dict(zip(names, inputs))
        ctx.save_for_backward(*inputs[:count])
        ctx.scalars = {each: values.get(each, made.defaults[each]) for each in scalars}

    def run_backward(ctx: Any, *gradients: Any) -> Any:
        _attach_thread(client)
        inputs = ctx.saved_tensors
        found = gradient(*[each.contiguous() for each in gradients], *inputs, **ctx.scalars)
        found = (found,) if count == 1 else found
        needed = [each.sum_to_size(x.shape) if ctx.needs_input_grad[i] else None
                  for i, (each, x) in enumerate(zip(found, inputs))]
        return (*needed, *[None] * (len(names) - count))

    torch.library.register_autograd("{}::{}".format(_NAMESPACE, made.torch_name), run_backward, setup_context=setup,
                                    lib=_torch_library())
    _differentiable[name] = backward

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        if any(p.keyword in kwargs for p in made.outputs):
            return bound_operator(current(), name)(args, kwargs)  # As torch, it writes no gradient to an output.
        return made.overload(*args, **kwargs)

    _with_gradient[name] = differentiable
    return made.overload


def _attach_thread(client: Client) -> None:
    """Gives a thread of torch that computes gradients a lane."""
    try:
        current()
    except FailedPrecondition:
        attach(client)
