"""The cause of an error in a form for programs: the google.rpc.ErrorInfo that the daemon puts into the
trailing metadata of a call, with the key "grpc-status-details-bin"."""

from __future__ import annotations

from typing import Dict, Tuple

from google.protobuf.message import DecodeError

from .descriptors import message

KEY = "grpc-status-details-bin"
_DOMAIN = "residentd"
_INFO_TYPE = "google.rpc.ErrorInfo"


def error_info(serialized: bytes) -> Tuple[str, Dict[str, str]]:
    """reason and metadata of the daemon's ErrorInfo in a serialized google.rpc.Status; "" and {} if
    there is none."""
    try:
        for detail in message("google.rpc.Status").FromString(serialized).details:
            if detail.type_url.rpartition("/")[2] != _INFO_TYPE:
                continue
            info = message(_INFO_TYPE).FromString(detail.value)
            if info.domain == _DOMAIN:
                return info.reason, dict(info.metadata)
    except DecodeError:
        pass
    return "", {}
