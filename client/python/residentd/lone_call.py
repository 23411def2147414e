"""Requests of lone calls, from parts that were serialized before.

A program that calls an operator again and again passes arrays of the same shapes and dtypes. Its requests
then differ only in the elements and in scalars, and these have the same number of bytes each time. A
Template has the other bytes, so that a request is made by joining them, without messages of protobuf.

A call that a Template cannot describe takes the general way (operator_call.py), which also makes the
templates: what that way checks for a combination of shapes and dtypes holds for the template.

Thread safety: may be used from several threads; a Template does not change after it was made.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import dtypes
from .descriptors import message
from .signature import INOUT, INPUT, Signature

_MAX_TEMPLATES = 256
_MAX_INTEGER = 1 << 53  # Larger ones may be rounded; the general way checks them.
_DOUBLE = struct.Struct("<d")
_BYTES = 2  # Wire type of fields with a length.


def _number(kind: str, field: str) -> int:
    return int(message(kind).DESCRIPTOR.fields_by_name[field].number)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _head(field: int, size: int) -> bytes:
    """Key and length of a field of this many bytes."""
    return _varint(field << 3 | _BYTES) + _varint(size)


_BATCH = _number("RunRequest", "batch")
_TASKS = _number("Batch", "tasks")
_ARGUMENTS = _number("OperatorTasks", "arguments")
_INLINE = _number("Column", "inline")
_DATA = _number("InlineColumn", "data")
_SCALAR = _number("Column", "scalar")
_F64 = _number("ScalarColumn", "f64")

# From where a value comes: the position of an argument, or its keyword.
Source = Union[int, str]


class Template:
    """The request of calls with certain shapes and dtypes.

    prepared: how the result is read; its outputs are all returned with the result.
    """

    __slots__ = ("prepared", "output", "_slots", "_tail")

    def __init__(self, prepared: Any, slots: List[Tuple[bytes, Source, bool]], tail: bytes) -> None:
        self.prepared = prepared
        # The only output; None if there are several.
        self.output = prepared.outputs[0] if len(prepared.outputs) == 1 else None
        self._slots = slots  # The bytes before a value, where it is from, whether it is a scalar.
        self._tail = tail

    def value(self, result: Any) -> Any:
        """What the call returns, of a resident.v1.BatchResult."""
        if self.output is None or result.status:
            return self.prepared.decode(result).value
        return self.output.value(result.outputs[0], None)

    def request(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The serialized RunRequest."""
        parts = []
        for before, source, scalar in self._slots:
            value = args[source] if type(source) is int else kwargs[source]  # type: ignore[index]
            parts.append(before)
            parts.append(_DOUBLE.pack(value) if scalar else value.tobytes())
        parts.append(self._tail)
        return b"".join(parts)


class LoneCalls:
    """The templates of one operator."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        # Scalars that have eight bytes in a request, and inputs, by keyword.
        self._scalars = {p.keyword for p in signature.scalars if dtypes.BY_NUMBER[p.dtypes[0]].floating}
        self._inputs = {p.keyword for p in signature.inputs}
        self._templates: Dict[Any, Optional[Template]] = {}

    def request(self, args: Sequence[Any],
                kwargs: Mapping[str, Any]) -> Optional[Tuple[Template, bytes]]:
        """The template of a call and its request; None if there is none."""
        template = self._templates.get(self._key(args, kwargs))
        if template is None:
            return None
        try:
            return template, template.request(args, kwargs)
        except (OverflowError, struct.error):  # An integer that no f64 represents.
            return None

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The key of the template of a call; None if it can have none."""
        key: List[Any] = []
        for value in args:
            if type(value) is not np.ndarray:
                return None
            key.append(value.dtype)
            key.append(value.shape)
        for name, value in kwargs.items():
            key.append(name)
            if type(value) is np.ndarray and name in self._inputs:
                key.append(value.dtype)
                key.append(value.shape)
            elif name not in self._scalars or not (type(value) is float or (
                    type(value) is int and -_MAX_INTEGER <= value <= _MAX_INTEGER)):
                return None
        return tuple(key)

    def remember(self, args: Sequence[Any], kwargs: Mapping[str, Any], prepared: Any) -> None:
        """Makes the template of a call that was prepared in the general way, if it can have one."""
        key = self._key(args, kwargs)
        if key is None or key in self._templates:
            return
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[key] = self._make(args, kwargs, prepared)

    def _make(self, args: Sequence[Any], kwargs: Mapping[str, Any], prepared: Any) -> Optional[Template]:
        signature = self._signature
        sources: Dict[int, Source] = {}
        for position in range(len(args)):
            sources[signature.by_keyword[signature.inputs[position].keyword]] = position
        for name in kwargs:
            sources[signature.by_keyword[name]] = name
        if prepared.regions or prepared.keep:
            return None  # It uses memory that is shared with the daemon.
        batch = prepared.batch
        columns: List[Tuple[List[Tuple[bytes, Source, bool]], bytes, int]] = []
        for index, column in enumerate(batch.tasks.arguments):
            made = self._column(column, self._signature.parameters[index], sources.get(index))
            if made is None:
                return None
            columns.append(made)
        tasks = message("OperatorTasks")(operator=batch.tasks.operator, version=batch.tasks.version,
                                         count=batch.tasks.count, content_hash=batch.tasks.content_hash,
                                         label=batch.tasks.label).SerializeToString()
        size = len(tasks) + sum(len(_head(_ARGUMENTS, n)) + n for _, _, n in columns)
        head = _head(_TASKS, size)
        before = _head(_BATCH, len(head) + size) + head + tasks
        slots: List[Tuple[bytes, Source, bool]] = []
        for parts, tail, size in columns:
            before += _head(_ARGUMENTS, size)
            for first, source, scalar in parts:
                slots.append((before + first, source, scalar))
                before = b""
            before += tail
        template = Template(dataclasses.replace(prepared, batch=None), slots, before)
        # The general way is the reference. Messages with a NaN are equal only as bytes.
        kind = message("RunRequest")
        same = kind.FromString(template.request(args, kwargs)).SerializeToString()
        return template if same == kind(batch=batch).SerializeToString() else None

    def _column(self, column: Any, parameter: Any, source: Optional[Source]
                ) -> Optional[Tuple[List[Tuple[bytes, Source, bool]], bytes, int]]:
        """The parts of a column, what follows them, and the number of all its bytes. None: there is no
        template for it."""
        kind = column.WhichOneof("kind")
        if kind == "inline":
            if parameter.kind == INOUT or source is None:
                return None
            data = len(column.inline.data)
            rest = type(column.inline)(dtype=column.inline.dtype,
                                       shape=column.inline.shape).SerializeToString()
            inner = rest + _head(_DATA, data)
            first = _head(_INLINE, len(inner) + data) + inner
            return [(first, source, False)], b"", len(first) + data
        if kind == "scalar" and source is not None:
            inner = _head(_F64, _DOUBLE.size)
            first = _head(_SCALAR, len(inner) + _DOUBLE.size) + inner
            return [(first, source, True)], b"", len(first) + _DOUBLE.size
        if kind in ("scalar", "returned") and parameter.kind not in (INPUT, INOUT):
            whole = column.SerializeToString()
            return [], whole, len(whole)
        return None

