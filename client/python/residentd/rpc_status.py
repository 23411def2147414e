"""The detail of an error that gRPC carries in its trailing metadata: google.rpc.ErrorInfo.

The key "grpc-status-details-bin" has a google.rpc.Status. The three messages are declared here with
the fields that are read, since the package that contains them is not a dependency.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from . import descriptors

_DOMAIN = "residentd"
_INFO_TYPE = "google.rpc.ErrorInfo"


def _declare() -> Tuple[Any, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="residentd/rpc_status.proto",
                                              package="residentd.rpc_status", syntax="proto3")
    status = file.message_type.add(name="Status")
    status.field.add(name="details", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
                     type_name=".residentd.rpc_status.Any")
    detail = file.message_type.add(name="Any")
    detail.field.add(name="type_url", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    detail.field.add(name="value", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    info = file.message_type.add(name="ErrorInfo")
    info.field.add(name="reason", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    info.field.add(name="domain", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    info.field.add(name="metadata", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED,
                   type_name=".residentd.rpc_status.Entry")
    # A map on the wire is a list of pairs.
    entry = file.message_type.add(name="Entry")
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    make = descriptors.message_factory_of(pool)
    return tuple(make(pool.FindMessageTypeByName("residentd.rpc_status." + name))
                 for name in ("Status", "ErrorInfo"))  # type: ignore[return-value]


_STATUS, _INFO = _declare()


def error_info(serialized: bytes) -> Tuple[str, Dict[str, str]]:
    """reason and metadata of the ErrorInfo of the daemon in a serialized google.rpc.Status; "" and {}
    if there is none."""
    try:
        for detail in _STATUS.FromString(serialized).details:
            if detail.type_url.rpartition("/")[2] != _INFO_TYPE:
                continue
            info = _INFO.FromString(detail.value)
            if info.domain == _DOMAIN:
                return info.reason, {entry.key: entry.value for entry in info.metadata}
    except DecodeError:
        pass
    return "", {}
