"""How a client reaches the daemon: address, TLS, token, sizes and timeouts."""

from __future__ import annotations

import ipaddress
import json
import numbers
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import grpc

from .errors import Error, FailedPrecondition, InvalidArgument, Unavailable, WrongType, read_file

_MIB = 1 << 20
_MAX_MESSAGE_MIB = 2047  # gRPC's sizes have 31 bits.
_MAX_ARENA_MIB = 1 << 24
MAX_TIMEOUT_S = 365 * 86400.0  # Far from where gRPC's clock overflows.
# A daemon that is gone without closing its connection (a lost machine, a firewall) is noticed after the
# sum of both. The daemon permits a ping every 5 s.
_KEEPALIVE_TIME_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 10_000
# How long the channel waits before it connects again, at first and at most.
_FIRST_RECONNECT_MS = 100
_LAST_RECONNECT_MS = 2_000
# A client of several nodes spreads its calls over those that serve, and asks DNS at most this often.
_BALANCED = json.dumps({"loadBalancingConfig": [{"round_robin": {}}],
                        "healthCheckConfig": {"serviceName": ""}})
_RESOLVE_MS = 10_000


@dataclass(frozen=True)
class Settings:
    """The arguments of connect(). Times are seconds.

    balance: whether `address` is the target of several nodes.
    pinned: whether it is one of them. Then `authority` is what TLS and proxies see in place of the address,
        if it is not empty, and `affinity` is sent with each call, if it is not empty (see nodes.py).
    """

    address: str
    client_name: str
    token_file: Optional[str]
    tls_ca: Optional[str]
    tls_cert: Optional[str]
    tls_key: Optional[str]
    tls_server_name: Optional[str]
    timeout: float
    connect_timeout: float
    max_message_mib: int
    shared_memory: str
    arena_mib: int
    retry: bool
    balance: bool = False
    pinned: bool = False
    authority: str = ""
    affinity: str = ""


def check(settings: Settings) -> Settings:
    """InvalidArgument or FailedPrecondition for settings that cannot work."""
    for name in ("address", "client_name", "token_file", "tls_ca", "tls_cert", "tls_key", "tls_server_name"):
        value = getattr(settings, name)
        if not isinstance(value, str) and (value is not None or name in ("address", "client_name")):
            raise WrongType("{}={!r} is not a text".format(name, value), "give {}".format(
                "HOST:PORT, or unix:PATH" if name == "address" else "a text"))
    check_address(settings.address)
    for name, minimum, maximum in (("max_message_mib", 1, _MAX_MESSAGE_MIB), ("arena_mib", 0, _MAX_ARENA_MIB)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= value <= maximum:
            raise InvalidArgument("{}={!r} is not a number of MiB".format(name, value),
                                  "use an integer from {} to {}".format(minimum, maximum))
    check_timeout(settings.timeout)
    check_timeout(settings.connect_timeout, "connect_timeout")
    if settings.shared_memory not in ("auto", "off"):
        raise InvalidArgument("shared_memory={!r} is unknown".format(settings.shared_memory),
                              "use 'auto' or 'off'")
    if not isinstance(settings.retry, bool):
        raise InvalidArgument("retry={!r} is unknown".format(settings.retry),
                              "use True or False; calls have the option retry=\"may_run_twice\" too")
    if len(settings.client_name.encode()) > 64:
        raise InvalidArgument("client_name has more than 64 bytes", "use a shorter name")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidArgument("a client certificate needs tls_cert and tls_key", "give both")
    if (settings.tls_cert or settings.tls_server_name) and not settings.tls_ca:
        raise InvalidArgument("tls_cert and tls_server_name need TLS", "give tls_ca")
    if settings.balance and settings.tls_ca and not settings.tls_server_name and "," in settings.address:
        raise InvalidArgument("the certificates of a list of addresses have no name in common",
                              "give tls_server_name, or a name in place of the list")
    if settings.token_file and not settings.tls_ca and not is_local(settings.address):
        raise FailedPrecondition(
            "a token would be sent in the clear to {}".format(settings.address),
            "use TLS (tls_ca), or connect over the loopback interface or a Unix socket")
    return settings


def check_address(address: str) -> None:
    """InvalidArgument unless it is an address that gRPC would use as it is written: it takes the lower 16
    bits of any port."""
    if address.startswith(OPAQUE):
        return
    for each in hosts(address):
        host, colon, port = each.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]") and len(host) > 2
        if (not colon or not host or (":" in host and not bracketed) or
                not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535)):
            raise InvalidArgument("{!r} is not HOST:PORT".format(address),
                                  "give a port from 1 to 65535, for example 127.0.0.1:50051 or [::1]:50051; "
                                  "or unix:PATH")


# Addresses that only gRPC can take apart.
OPAQUE = ("unix:", "unix-abstract:", "vsock:", "xds:", "google-c2p:")


def hosts(address: str) -> List[str]:
    """HOST:PORT of each part of an address that does not begin with one of OPAQUE."""
    if address.startswith(("ipv4:", "ipv6:")):
        return address[len("ipv4:"):].rpartition("/")[2].split(",")
    return [address[len("dns:"):].rpartition("/")[2] if address.startswith("dns:") else address]


def check_timeout(value: Any, name: str = "timeout") -> None:
    """InvalidArgument unless the value is a time in seconds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (
            0 < float(value) <= MAX_TIMEOUT_S):
        raise InvalidArgument("{}={!r} is not a time in seconds".format(name, value),
                              "use a number above 0, and at most {:g}".format(MAX_TIMEOUT_S))


def timeout_of(timeout: Optional[float], settings: Settings) -> float:
    """The timeout of a call; None is the client's."""
    if timeout is None:
        return settings.timeout
    check_timeout(timeout)
    return timeout


def is_local(address: str) -> bool:
    """Whether the address is on this machine for certain: a Unix socket or the loopback interface."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    return not address.startswith(OPAQUE) and all(_is_loopback(each) for each in hosts(address))


def _is_loopback(host_port: str) -> bool:
    host = host_port.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def metadata(settings: Settings) -> List[Tuple[str, str]]:
    """The headers of each call."""
    headers = [("resident-affinity", settings.affinity)] if settings.affinity else []
    if not settings.token_file:
        return headers
    try:
        token = read_file(settings.token_file).decode().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise InvalidArgument("the token file {} is empty, or not a text".format(settings.token_file),
                              "write the token into it")
    return headers + [("authorization", "Bearer " + token)]


def target_and_options(settings: Settings) -> Tuple[str, List[Tuple[str, Any]]]:
    """The channel's target and options."""
    size = settings.max_message_mib * _MIB
    options: List[Tuple[str, Any]] = [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        # A daemon is in the same network, so a proxy for the web is not used.
        ("grpc.enable_http_proxy", 0),
        # Each client has its own connection, so that clients of one process are served in turn.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # A call that waits for its answer for long sends no data.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _LAST_RECONNECT_MS),
    ]
    if settings.balance:
        options += [("grpc.service_config", _BALANCED),
                    ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_MS)]
    if settings.authority:
        options.append(("grpc.default_authority", settings.authority))
    if settings.tls_server_name:
        options.append(("grpc.ssl_target_name_override", settings.tls_server_name))
    return settings.address, options


def channel_credentials(settings: Settings) -> Optional[grpc.ChannelCredentials]:
    """None: without TLS."""
    if not settings.tls_ca:
        return None

    def read(path: Optional[str]) -> Optional[bytes]:
        if not path:
            return None
        return read_file(path)

    return grpc.ssl_channel_credentials(read(settings.tls_ca), read(settings.tls_key),
                                        read(settings.tls_cert))


def unreachable(error: Error, settings: Settings) -> Error:
    """The error of the first call, with the address if no daemon answered."""
    if isinstance(error, Unavailable) and not error.fix:
        return Unavailable("cannot reach {}: {}".format(settings.address, error.message),
                           "check the address, and that residentd runs there")
    return error
