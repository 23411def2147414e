"""The messages and methods of the daemon's API, made at run time from one set of descriptors.

There are no generated modules: code that protoc generates is tied to a range of protobuf versions,
and this package must work with the version that the rest of the program needs. The set of descriptors
(descriptors.bin, made by `protoc --include_imports --descriptor_set_out`) is loaded into a pool of
its own, so that other modules with the same protos are not affected.

    batch = message("resident.v1.Batch")(id=7)
    method("Executor.Run").path          # "/resident.v1.Executor/Run"

Thread safety: everything here is immutable after the import.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from typing import Any, Callable, Dict

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "resident.v1"


def _load() -> bytes:
    try:
        return importlib.resources.files(__package__).joinpath("descriptors.bin").read_bytes()
    except FileNotFoundError:
        raise ImportError(
            "residentd/descriptors.bin is missing, which is made of proto/ when the package is built. Fix: "
            "install the wheel that `make bundle` (or bazel build //client/python:wheel) makes, or run "
            "`pip install client/python`") from None


def message_factory_of(pool: descriptor_pool.DescriptorPool) -> Callable[[Any], Any]:
    """Makes message classes. GetMessageClass exists since protobuf 4.22; the older form was removed
    in 5.27."""
    make = getattr(message_factory, "GetMessageClass", None)
    if make is not None:
        return make  # type: ignore[no-any-return]
    return message_factory.MessageFactory(pool).GetPrototype  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Method:
    """One method of a service."""

    name: str  # "Executor.Run".
    path: str  # "/resident.v1.Executor/Run".
    request: Any
    response: Any
    client_streams: bool
    server_streams: bool


SERIALIZED = _load()
_FILES = descriptor_pb2.FileDescriptorSet.FromString(SERIALIZED)
_POOL = descriptor_pool.DescriptorPool()
_CLASSES: Dict[str, Any] = {}
_METHODS: Dict[str, Method] = {}


def _build() -> None:
    for file in _FILES.file:
        _POOL.AddSerializedFile(file.SerializeToString())
    make = message_factory_of(_POOL)
    for file in _FILES.file:
        for kind in file.message_type:
            name = file.package + "." + kind.name
            _CLASSES[name] = make(_POOL.FindMessageTypeByName(name))
    for file in _FILES.file:
        for service in file.service:
            for entry in service.method:
                name = service.name + "." + entry.name
                # The fields client_streaming and server_streaming are read from the proto, because
                # MethodDescriptor has them only in newer versions.
                _METHODS[name] = Method(name, "/{}.{}/{}".format(file.package, service.name, entry.name),
                                        _CLASSES[entry.input_type[1:]],
                                        _CLASSES[entry.output_type[1:]],
                                        entry.client_streaming, entry.server_streaming)


_build()


def message(name: str) -> Any:
    """The class of a message: message("resident.v1.Batch"), or short, message("Batch")."""
    return _CLASSES[name if "." in name else _PACKAGE + "." + name]


def method(name: str) -> Method:
    """The method of this name, for instance "Executor.Run"."""
    return _METHODS[name]


def enum_names(name: str, prefix: str) -> Dict[int, str]:
    """The values of an enum, for instance enum_names("resident.v1.TaskStatus", "TASK_STATUS_")
    is {0: "OK", ...}."""
    values = _POOL.FindEnumTypeByName(name).values
    return {value.number: value.name[len(prefix):] for value in values}
