"""The state of the daemon, as a table."""

from __future__ import annotations

from typing import Any, List, Sequence

from .calls import Steps, Unary
from .descriptors import enum_names, message

_STATES = enum_names("resident.v1.DeviceStatus.State", "STATE_")


class Status:
    """The state of the daemon. `message` is the resident.v1.StatusResponse; str() is a table."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.version = str(message.version)
        self.node_id = str(message.node_id)
        self.node_name = str(message.node_name)
        self.uptime_s = message.uptime_ms / 1000
        self.draining = bool(message.draining)
        self.devices: List[Any] = list(message.devices)
        self.clients: List[Any] = list(message.clients)

    def __str__(self) -> str:
        devices = [["DEVICE", "NAME", "ENGINE", "STATE", "GENERATION", "IN FLIGHT", "QUEUED", "COMPLETED",
                    "BUFFERS", "MEMORY"]]
        for d in self.devices:
            devices.append([
                str(d.device), d.name, d.engine, _STATES.get(d.state, "?").lower().replace("_", " "),
                str(d.generation), str(d.ring.in_flight), str(d.queued_tasks), str(d.completed_tasks),
                str(d.buffers), "{} of {}".format(_bytes(d.memory_used_bytes),
                                                  _bytes(d.memory_total_bytes))
            ])
        clients = [["CLIENT", "NAME", "PEER", "QUEUED", "COMPLETED", "BUFFERS", "MEMORY"]]
        for c in self.clients:
            clients.append([c.id, c.name, c.peer, str(c.queued_tasks), str(c.completed_tasks),
                            str(c.buffers), _bytes(c.buffer_bytes)])
        head = "residentd {}, up {:.0f} s{}".format(self.version, self.uptime_s,
                                                    ", draining" if self.draining else "")
        return "\n\n".join([head, table(devices), table(clients) if self.clients else "no clients"])

    __repr__ = __str__


def get() -> Steps[Status]:
    """The steps of Client.status."""
    response = yield Unary("Admin.Status", message("StatusRequest")())
    return Status(response)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with aligned columns; the first row is the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows)


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return "{:.3g} {}".format(value, unit)
        value /= 1024
    return "{:.3g} GiB".format(value)
