#!/usr/bin/python3
"""Hostile clients beside a soak: attacks.py ADDRESS

Attacks the daemon in all ways at one time until SIGTERM. Then closes its connections and prints for
each attack how often it was made, and the gRPC statuses of its answers.

The attacks: graphs whose check is expensive, messages of empty sub-messages, messages that are never
finished, answers that nobody reads, tasks that repeat elements with strides of 0, tasks and sessions
in large numbers, calls that are cancelled at once.
"""

import collections
import pathlib
import signal
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent.parent / "auth"))
import http2  # noqa: E402
from memory_test import field, varint  # noqa: E402

MIB = 1 << 20
F32, STATE = 1, 3
TIMEOUT_S = 30
# Calls or messages at one time of those attacks that have several.
MANY = 32


def number(field_number, value):
    return varint(field_number << 3) + varint(value)


def packed(field_number, values):
    return field(field_number, b"".join(varint(value) for value in values))


# --- Messages ----------------------------------------------------------------------


def state(elements):
    return field(3, field(1, b"s") + number(2, STATE) + number(3, F32) + field(4, number(1, elements)))


def view(shape, strides=(), offset=0):
    """A part of the state. Strides are not negative."""
    message = field(1, b"s") + b"".join(field(2, number(1, size)) for size in shape)
    message += packed(3, [2 * stride for stride in strides]) + number(4, offset)
    return field(4, field(2, message + (b"" if shape else number(5, 1))))


def node(operator, *arguments):
    return field(5, field(2, operator) + b"".join(arguments))


def sum_node(x, offset):
    return node(b"sum", x, view((), offset=offset), field(4, number(3, 2 * 255)))


GRAPHS = [field(1, number(2, 1) + graph) for graph in (
    # Strides that interleave; one has no divisor in common.
    state(3000) + sum_node(view([100] * 8, [2] * 8), 793),
    state(130_000) + sum_node(view([16] * 8, range(1000, 1008)), 60_500),
    # Parts of memory with many readers.
    state(1 << 23) + node(b"zero", view([1 << 22], [2])) + b"".join(
        sum_node(view([1 << 23]), 2 * i) for i in range(120)),
    # Many nodes, each of which depends on all before it.
    state(4096) + b"".join(
        node(b"zero", view((), offset=i)) + sum_node(view([4096]), i) for i in range(2000)))]
EMPTY_SUB_MESSAGES = field(1, 8 * MIB * field(5, b""))


def batch(operator, count, *columns):
    return field(1, field(2, field(1, operator) + number(3, count) +
                          b"".join(field(4, column) for column in columns)))


def inline(shape, data):
    return field(2, number(1, F32) + packed(2, shape) + field(3, data))


RETURNED = field(3, number(1, F32) + packed(2, [1]))
MANY_TASKS = batch(b"add", 20_000, inline([1], bytes(80_000)), inline([1], bytes(80_000)), RETURNED)


def repeated(buffer):
    """A sum of 2^40 elements, which are one element of the buffer."""
    column = packed(1, [buffer]) + packed(5, [1 << 20, 1 << 20]) + packed(6, [0, 0])
    return batch(b"sum", 1, field(1, column), field(3, number(1, F32) + packed(2, [1, 1])),
                 field(4, packed(2, [2 * 3])))


# --- Attacks -----------------------------------------------------------------------


class Attack(threading.Thread):
    """Repeats `attack` until all end; a connection that the daemon closes is opened again."""

    def __init__(self, address, stop, attack):
        super().__init__()
        self.address, self.stop, self.attack = address, stop, attack
        self.times = 0
        self.statuses = collections.Counter()

    def run(self):
        while not self.stop.is_set():
            try:
                self.attack(self)
            except (http2.ConnectionClosed, OSError):
                self.statuses["closed"] += 1
            self.times += 1

    def connect(self, **options):
        return http2.Connection(self.address, **options)

    def send(self, connection, path, message, headers=(), end_stream=True):
        stream = connection.new_stream()
        connection.send_headers(stream, http2.request_headers(path, headers))
        connection.send_message(stream, message, end_stream=end_stream)
        return stream

    def call(self, connection, path, message, headers=()):
        result = connection.call(path, headers, message, timeout=TIMEOUT_S)
        self.statuses[result.grpc_status] += 1
        return result

    def session(self, connection):
        """Headers of a new session, which ends with the connection."""
        stream = self.send(connection, "/resident.v1.Sessions/Open", b"")
        connection.read_until(lambda: connection.results[stream].messages or
                              connection.results[stream].ended != http2.OPEN)
        if not connection.results[stream].messages:
            raise http2.ConnectionClosed("no session")
        message = connection.results[stream].messages[0]
        return [("resident-session", message[2:2 + message[1]])]


def expensive_graphs(attack):
    with attack.connect() as connection:
        for graph in GRAPHS:
            attack.call(connection, "/resident.v1.Graphs/Validate", graph)


def empty_sub_messages(attack):
    with attack.connect() as connection:
        attack.call(connection, "/resident.v1.Graphs/Validate", EMPTY_SUB_MESSAGES)


def unfinished_messages(attack):
    piece = bytes(16384)
    with attack.connect() as connection:
        streams = []
        for _ in range(MANY):
            streams.append(connection.new_stream())
            connection.send_headers(streams[-1],
                                    http2.request_headers("/resident.v1.Graphs/Validate"))
            connection.send_data(streams[-1], b"\0" + (60 * MIB).to_bytes(4, "big"))
        while not attack.stop.is_set():
            for stream in streams:
                if min(connection.send_window[0], connection.send_window[stream]) >= len(piece):
                    connection.send_data(stream, piece)
            connection.read(0.01)


def unread_answers(attack):
    settings = {http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: 0}
    with attack.connect() as session, attack.connect(settings=settings) as connection:
        headers = attack.session(session)
        for _ in range(4 * MANY):
            attack.send(connection, "/resident.v1.Executor/Run", MANY_TASKS, headers)
            connection.read(0)
        attack.stop.wait(1)


def repeated_elements(attack):
    with attack.connect() as connection:
        headers = attack.session(connection)
        made = attack.call(connection, "/resident.v1.Buffers/Allocate", number(1, F32) + packed(2, [1]),
                           headers)
        if made.grpc_status != 0:
            return
        info = made.messages[0]  # AllocateResponse.buffer.id, in some bytes.
        buffer, shift = 0, 0
        for byte in info[3:]:
            buffer, shift = buffer | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        for _ in range(MANY):
            result = attack.call(connection, "/resident.v1.Executor/Run", repeated(buffer), headers)
            if result.grpc_status == 0:
                raise SystemExit("a task of 2^40 elements was accepted")


def many_tasks(attack):
    with attack.connect() as connection:
        headers = attack.session(connection)
        streams = [attack.send(connection, "/resident.v1.Executor/Run", MANY_TASKS, headers)
                   for _ in range(MANY)]
        for stream in streams:
            attack.statuses[connection.result(stream, TIMEOUT_S).grpc_status] += 1


def many_sessions(attack):
    connections = [attack.connect() for _ in range(MANY)]
    try:
        for connection in connections:
            attack.session(connection)
    finally:
        for connection in connections:
            connection.close(reset=True)


def cancelled_calls(attack):
    with attack.connect() as connection:
        headers = attack.session(connection)
        for _ in range(MANY):
            for path, message in (("/resident.v1.Executor/Run", MANY_TASKS),
                                  ("/resident.v1.Graphs/Validate", GRAPHS[2])):
                connection.send_rst(attack.send(connection, path, message, headers))
            connection.read(0)


ATTACKS = (expensive_graphs, empty_sub_messages, unfinished_messages, unread_answers,
           repeated_elements, many_tasks, many_sessions, cancelled_calls)


def main():
    address = sys.argv[1]
    # Before the threads, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    stop = threading.Event()
    attacks = [Attack(address, stop, attack) for attack in ATTACKS]
    for attack in attacks:
        attack.start()
    signal.sigwait([signal.SIGTERM])
    stop.set()
    for attack in attacks:
        attack.join()
        print("{}: {} times, {}".format(attack.attack.__name__.replace("_", " "), attack.times,
                                        dict(attack.statuses)), flush=True)


if __name__ == "__main__":
    main()
