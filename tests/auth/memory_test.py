#!/usr/bin/python3
"""Messages and answers that would take much of a real daemon's memory: every front is limited.

Limits are --max_client_host_mib=128 and --max_host_mib=256. Peaks are of the front end's resident
memory. The last line is `N passed, N failed`.
"""

import importlib.machinery
import importlib.util
import pathlib
import re
import struct
import sys
import threading
import time
import unittest
import urllib.request
import zlib

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import daemon as daemons  # noqa: E402
import http2  # noqa: E402
import unittest_main  # noqa: E402

MIB = 1 << 20
CLIENT_MIB, ALL_MIB = 128, 256
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 5, 8, 12
WAIT_S = 60
STATUS = "/resident.v1.Admin/Status"
SUBMIT = "/resident.v1.Executor/Submit"
VALIDATE = "/resident.v1.Graphs/Validate"
# What the daemon takes beside the limit: what the kernel and gRPC read between two checks, and what
# malloc keeps.
MARGIN_MIB = 128


def varint(value):
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes(encoded) + bytes([value])


def field(number, value):
    """A field of bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def wait_for(what, condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within {} s: {}".format(WAIT_S, what))
        time.sleep(0.02)


class Peak(threading.Thread):
    """The largest resident memory of a process while it runs."""

    def __init__(self, pid, before):
        super().__init__(daemon=True)
        self.pid, self.stopped = pid, threading.Event()
        self.before = self.peak = before

    def run(self):
        while not self.stopped.is_set():
            self.peak = max(self.peak, http2.resident_bytes(self.pid))
            time.sleep(0.002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join()

    @property
    def mib(self):
        return (self.peak - self.before) / MIB


class MemoryTest(unittest.TestCase):

    FLAGS = ("--max_client_host_mib={}".format(CLIENT_MIB), "--max_host_mib={}".format(ALL_MIB))

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon(*cls.FLAGS)
        cls.addClassCleanup(cls.daemon.stop)
        cls.pid = cls.daemon.process.pid
        http2.call(cls.daemon.address, STATUS)
        cls.before = http2.resident_bytes(cls.pid)

    def peak(self):
        """In addition to what the daemon took before the first test."""
        return Peak(self.pid, self.before)

    def connect(self, **options):
        connection = http2.Connection(self.daemon.address, **options)
        self.addCleanup(connection.close)
        return connection

    def metric(self, name):
        page = urllib.request.urlopen("http://{}/metrics".format(self.daemon.metrics_address),
                                      timeout=30).read().decode()
        return float(re.search(r"^%s (\S+)$" % re.escape(name), page, re.MULTILINE).group(1))

    def check_served(self):
        self.assertEqual(http2.call(self.daemon.address, STATUS).grpc_status, 0)

    def check_peak(self, what, peak, limit_mib):
        print("{}: {:.0f} MiB more at the most".format(what, peak.mib), flush=True)
        self.assertLess(peak.mib, limit_mib + MARGIN_MIB)
        self.check_served()

    def check_nothing_charged(self):
        wait_for("nothing is charged", lambda: all(
            self.metric('resident_host_memory_used_bytes{purpose="%s"}' % purpose) == 0
            for purpose in ("requests", "answers")))


class ObjectsTest(MemoryTest):
    COUNT = 8 * MIB  # Empty sub-messages in one message, of two bytes each.

    def check_refused(self, path, message, status):
        result = self.connect().call(path, message=message, timeout=WAIT_S)
        self.assertEqual(result.grpc_status, status, result)
        self.assertIn("Fix:", result.grpc_message)
        return result.grpc_message

    def test_messages_of_empty_sub_messages(self):
        graph = field(1, self.COUNT * field(5, b""))
        batches = self.COUNT * field(2, b"")
        with self.peak() as peak:
            for method in ("Validate", "Load", "Run"):
                text = self.check_refused("/resident.v1.Graphs/" + method, graph,
                                          RESOURCE_EXHAUSTED)
                self.assertIn("more than {} MiB".format(CLIENT_MIB), text)
            for method, message in (("Graphs/Render", graph), ("Executor/Run", batches),
                                    ("Executor/Submit", batches), ("Operators/Install", batches),
                                    ("Sessions/Open", batches)):
                text = self.check_refused("/resident.v1." + method, message, INVALID_ARGUMENT)
                self.assertIn("sub-messages", text)
        self.check_peak("messages of empty sub-messages", peak, 0)
        self.check_nothing_charged()

    def test_packed_numbers(self):
        # Each takes one byte on the wire and eight in memory. An argument of a batch.
        numbers = field(1, field(2, field(4, field(1, field(1, 16 * MIB * b"\0")))))
        with self.peak() as peak:
            text = self.check_refused("/resident.v1.Executor/Run", numbers, RESOURCE_EXHAUSTED)
            self.assertIn("more than {} MiB".format(CLIENT_MIB), text)
        self.check_peak("a message of packed numbers", peak, 0)


class EveryMethodTest(MemoryTest):
    # Two bytes: an unknown number.
    UNKNOWN = b"\x78\x00"

    def methods(self):
        loader = importlib.machinery.SourceFileLoader("method_table",
                                                      str(HERE.parent.parent / "tools/method_table"))
        spec = importlib.util.spec_from_loader("method_table", loader)
        table = importlib.util.module_from_spec(spec)
        loader.exec_module(table)
        return table.read_methods()

    def session(self):
        """Headers of a session."""
        connection = self.connect()
        stream = connection.new_stream()
        connection.send_headers(stream, http2.request_headers("/resident.v1.Sessions/Open"))
        connection.send_message(stream, b"")
        connection.read_until(lambda: connection.results[stream].messages)
        message = connection.results[stream].messages[0]
        return [("resident-session", message[2:2 + message[1]])]

    def test_one_object_more_than_the_limit(self):
        headers = self.session()
        methods = self.methods()
        self.assertGreater(len(methods), 60)
        # An object counts as 128 bytes of memory.
        max_share = CLIENT_MIB * MIB // 128
        with self.peak() as peak:
            for method in methods:
                limit = method.objects
                with self.subTest(method.name):
                    message = (min(limit, max_share) + 1) * self.UNKNOWN
                    result = self.connect().call(method.name, headers, message, timeout=WAIT_S)
                    if limit <= max_share:
                        self.assertEqual(result.grpc_status, INVALID_ARGUMENT, result)
                        self.assertIn("more than {} sub-messages".format(limit),
                                      result.grpc_message)
                    else:
                        self.assertEqual(result.grpc_status, RESOURCE_EXHAUSTED, result)
                        self.assertIn("more than {} MiB".format(CLIENT_MIB), result.grpc_message)
                    self.assertIn("Fix:", result.grpc_message)
        self.check_peak("one object more than the limit of each of {} methods".format(
            len(methods)), peak, 0)
        self.check_nothing_charged()


class CompressedTest(MemoryTest):
    EXPANDED_MIB = 1024

    def compress(self, window):
        """About 1 MiB that expands to 1 GiB."""
        compressor = zlib.compressobj(9, zlib.DEFLATED, window)
        pieces = [compressor.compress(bytes(MIB)) for _ in range(self.EXPANDED_MIB)]
        return b"".join(pieces) + compressor.flush()

    def call(self, path, headers, message):
        connection = self.connect()
        stream = connection.new_stream()
        connection.send_headers(stream, http2.request_headers(path, headers))
        try:
            connection.send_message(stream, message, timeout=WAIT_S, compressed=True)
        except http2.ConnectionClosed:
            pass
        return connection.result(stream, WAIT_S)

    def test_messages_that_expand_to_a_gigabyte(self):
        methods = ("/grpc.health.v1.Health/Check", VALIDATE, "/resident.v1.Executor/Submit",
                   "/resident.v1.Operators/Watch")
        for encoding, window in (("gzip", 31), ("deflate", 15)):
            message = self.compress(window)
            with self.peak() as peak:
                for path in methods:
                    result = self.call(path, [("grpc-encoding", encoding)], message)
                    self.assertEqual(result.grpc_status, UNIMPLEMENTED, result)
                    self.assertIn("'{}' is disabled".format(encoding), result.grpc_message)
                    # Only the header says how a message is compressed.
                    result = self.call(path, [], message)
                    self.assertEqual(result.grpc_status, INVALID_ARGUMENT, result)
            self.check_peak("{} messages of {:.1f} MiB that expand to {} MiB".format(
                encoding, len(message) / MIB, self.EXPANDED_MIB), peak, 0)
        self.check_nothing_charged()


class HonestTest(MemoryTest):
    FLAGS = ()
    ELEMENTS = 4096
    ROUNDS = 50

    @staticmethod
    def first_field(message, number):
        """The first field of this number, which is a number or bytes. Larger numbers follow."""
        at = 0

        def read_varint():
            nonlocal at
            value, shift = 0, 0
            while True:
                value |= (message[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if message[at - 1] < 128:
                    return value

        while at < len(message):
            tag = read_varint()
            value = read_varint()
            if tag & 7 == 2:
                value, at = message[at:at + value], at + value
            if tag >> 3 == number:
                return value
        raise AssertionError("no field {} in {}".format(number, message))

    def open_session(self):
        """Returns the connection, the stream of its session, and the headers for its calls."""
        session = self.connect()
        opened = session.new_stream()
        session.send_headers(opened, http2.request_headers("/resident.v1.Sessions/Open"))
        session.send_message(opened, b"")
        session.read_until(lambda: session.results[opened].messages)
        session_id = self.first_field(session.results[opened].messages[0], 1)
        return session, opened, [("resident-session", session_id)]

    def run_rounds(self, session, headers, more):
        """Tasks with buffers whose values are checked, while `more(rounds)`. Returns the number of
        rounds and the slowest call in seconds."""
        slowest = 0

        def call(method, message):
            nonlocal slowest
            started = time.monotonic()
            result = session.call("/resident.v1." + method, headers, message, timeout=WAIT_S)
            slowest = max(slowest, time.monotonic() - started)
            self.assertEqual(result.grpc_status, 0, result)
            return result.messages

        shape = varint(self.ELEMENTS)
        allocate = b"\x08\x01" + field(2, shape)
        x, out = (
            b"\x08" + varint(self.first_field(self.first_field(
                call("Buffers/Allocate", allocate)[0], 1), 1)) for _ in range(2))
        y = struct.pack("<{}f".format(self.ELEMENTS), *range(self.ELEMENTS))
        columns = (field(1, field(1, x[1:])), field(2, b"\x08\x01" + field(2, shape) + field(3, y)),
                   field(1, field(1, out[1:])))
        add = field(1, field(2, field(1, b"add") + b"\x18\x01" +
                             b"".join(field(4, column) for column in columns)))
        rounds = 0
        while more(rounds):
            rounds += 1
            values = [float(rounds + i) for i in range(self.ELEMENTS)]
            data = struct.pack("<{}f".format(self.ELEMENTS), *values)
            call("Buffers/Upload", x + field(3, data))
            call("Executor/Run", add)
            got = b"".join(self.first_field(message, 1)
                           for message in call("Buffers/Download", out))
            self.assertEqual(struct.unpack("<{}f".format(self.ELEMENTS), got),
                             tuple(value + i for i, value in enumerate(values)))
        for buffer in (x, out):
            call("Buffers/Free", buffer)
        return rounds, slowest

    def test_clients_beside_large_messages(self):
        # They are parsed on threads of their own: the session and the calls beside them do not wait.
        graph = field(1, 8 * MIB * field(5, b""))
        session, opened, headers = self.open_session()
        _, alone = self.run_rounds(session, headers, lambda rounds: rounds < self.ROUNDS)
        others = [self.connect() for _ in range(6)]
        streams = [(other, other.new_stream()) for other in others]

        def send(other, stream):
            other.send_headers(stream, http2.request_headers(VALIDATE))
            other.send_message(stream, graph)
            other.result(stream, WAIT_S)

        senders = [threading.Thread(target=send, args=both) for both in streams]
        for sender in senders:
            sender.start()
        rounds, slowest = self.run_rounds(
            session, headers, lambda rounds: rounds < self.ROUNDS or any(
                sender.is_alive() for sender in senders))
        for sender in senders:
            sender.join()
        statuses = [other.results[stream].grpc_status for other, stream in streams]
        print("{} uploads, tasks and downloads beside six messages of {:.0f} MiB: the slowest took "
              "{:.3f} s, alone {:.3f} s; statuses of the six: {}".format(
                  rounds, len(graph) / MIB, slowest, alone, statuses), flush=True)
        self.assertLessEqual(set(statuses), {0, RESOURCE_EXHAUSTED})
        self.assertIn(0, statuses)
        self.assertEqual(session.results[opened].ended, http2.OPEN)
        self.assertLess(slowest, 5)
        self.check_nothing_charged()


class UnreadTest(MemoryTest):
    # Streams on one connection, whose answers are not read.
    CALLS = 500

    def load_graph(self):
        """A graph whose description has about 3 MiB."""
        tensors = b"".join(
            field(3, field(1, b"state_%020d_%0100d" % (i, i)) + b"\x10\x03\x18\x01" +
                  field(4, b"\x08\x01")) for i in range(18_000))
        node = field(5, field(1, b"node") + field(2, b"zero") + field(
            4, field(1, b"out") + field(2, field(1, b"state_%020d_%0100d" % (0, 0)))))
        graph = field(1, b"large") + b"\x10\x01" + tensors + node
        result = self.connect().call("/resident.v1.Graphs/Load", message=field(1, graph))
        self.assertEqual(result.grpc_status, 0, result)
        # The answer ends with the id and, in two bytes, whether the graph was loaded before.
        found = re.search(rb"\x12(.)([0-9a-z]+)(?:\x18\x01)?$", result.messages[0])
        self.assertEqual(len(found.group(2)), found.group(1)[0])
        return found.group(2)

    def test_answers_that_nobody_reads(self):
        graph_id = self.load_graph()
        connection = self.connect(settings={http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: 0})
        with self.peak() as peak:
            for _ in range(self.CALLS):
                stream = connection.new_stream()
                connection.send_headers(stream, http2.request_headers("/resident.v1.Graphs/Describe"))
                connection.send_message(stream, field(1, graph_id))
            connection.send_ping()
            connection.read_until(lambda: connection.pongs == 1)
            wait_for("a call is refused", lambda: connection.read(0.1) is not None and any(
                result.grpc_status == RESOURCE_EXHAUSTED for result in connection.results.values()))
            wait_for("all are answered", lambda: not connection.read(1))
        refused = [result for result in connection.results.values()
                   if result.grpc_status == RESOURCE_EXHAUSTED]
        self.assertIn("Fix:", refused[0].grpc_message)
        self.check_peak("{} answers of 3 MiB that nobody reads, {} refused".format(
            self.CALLS, len(refused)), peak, 0)
        # Another client is answered meanwhile, and everything is released at the end.
        other = self.connect().call("/resident.v1.Graphs/Describe", message=field(1, graph_id))
        self.assertIn(other.grpc_status, (0, RESOURCE_EXHAUSTED))
        connection.close(reset=True)
        self.check_nothing_charged()


class UnfinishedTest(MemoryTest):
    STREAMS = 60
    EACH = 60 * MIB

    def hold(self, connection, stop):
        """Sends messages that are never finished, round-robin over the streams."""
        streams = [connection.new_stream() for _ in range(self.STREAMS)]
        prefix = b"\0" + (self.EACH + 1).to_bytes(4, "big")
        piece = b"\0" * 16384
        sent = 0
        try:
            for stream in streams:
                connection.send_headers(stream, http2.request_headers(VALIDATE))
                connection.send_data(stream, prefix)
            while sent < self.STREAMS * self.EACH and not stop.is_set():
                some = False
                for stream in streams:
                    if (connection.results[stream].ended == http2.OPEN and
                            min(connection.send_window[0],
                                connection.send_window[stream]) >= len(piece)):
                        connection.send_data(stream, piece)
                        sent, some = sent + len(piece), True
                    connection.read(0)
                if not some:
                    connection.read(0.05)
        except (http2.ConnectionClosed, OSError):
            pass
        return sent

    def check_unfinished(self, connections, limit_mib):
        closed = self.metric('resident_connections_closed_total{reason="unfinished"}')
        stop = threading.Event()
        attackers = [self.connect() for _ in range(connections)]
        threads = [threading.Thread(target=self.hold, args=(attacker, stop))
                   for attacker in attackers]
        with self.peak() as peak:
            for thread in threads:
                thread.start()
            wait_for("a connection is closed", lambda: self.metric(
                'resident_connections_closed_total{reason="unfinished"}') > closed)
            stop.set()
            for thread in threads:
                thread.join()
        self.check_peak("unfinished messages on {} connections".format(connections), peak, limit_mib)
        for attacker in attackers:
            attacker.close(reset=True)
        self.check_nothing_charged()

    def test_unfinished_messages_of_one_connection(self):
        self.check_unfinished(1, CLIENT_MIB)

    def test_unfinished_messages_of_eight_connections(self):
        self.check_unfinished(8, ALL_MIB)


class OpenCallsTest(MemoryTest):
    """Calls that take memory although only their headers were sent."""
    CONNECTIONS = 16
    STREAMS = 1000
    # See CallMemory: the first calls of all, and the places, of which one caller gets half.
    FREE, PLACES, CALL_KIB = 1024, 4096, 24
    HEALTH = "/grpc.health.v1.Health/Check"

    def open(self, connection, path, count):
        block = http2.encode_headers(http2.request_headers(path))
        connection.send(b"".join(
            http2.encode_frame(http2.HEADERS, http2.END_HEADERS, connection.new_stream(), block)
            for _ in range(count)))
        connection.send_ping()
        pongs = connection.pongs
        connection.read_until(lambda: connection.pongs > pongs, WAIT_S)

    def check_open_calls(self, path, max_calls):
        """`max_calls`: calls that are not refused."""
        with self.peak() as peak:
            attackers = [self.connect() for _ in range(self.CONNECTIONS)]
            for attacker in attackers:
                self.open(attacker, path, self.STREAMS)
                for other in attackers:  # The daemon closes connections that answer no ping.
                    other.read(0)
            for attacker in attackers:
                while attacker.read(0.2):
                    pass
            refused = [result for attacker in attackers for result in attacker.results.values()
                       if result.grpc_status == RESOURCE_EXHAUSTED]
            self.check_others()
        # Another call of this address is refused, too.
        print("{} calls without a message, {} refused: {:.0f} MiB more at the most".format(
            self.CONNECTIONS * self.STREAMS, len(refused), peak.mib), flush=True)
        self.assertLess(peak.mib, max_calls * self.CALL_KIB // 1024 + MARGIN_MIB)
        self.assertGreaterEqual(len(refused), self.CONNECTIONS * self.STREAMS - max_calls)
        self.assertIn("open calls", refused[0].grpc_message)
        self.assertIn("Fix:", refused[0].grpc_message)
        for attacker in attackers:
            attacker.close(reset=True)

        def all_are_free():
            with self.connect() as again:
                self.open(again, path, self.STREAMS)
                while again.read(0.2):
                    pass
                return all(result.grpc_status is None for result in again.results.values())

        wait_for("the places are free again", all_are_free)

    def check_others(self):
        """Callers from another address are served meanwhile."""
        with self.connect(source="127.0.0.2") as other:
            self.open(other, SUBMIT, 100)
            while other.read(0.2):
                pass
            self.assertEqual({result.grpc_status for result in other.results.values()}, {None})
            self.assertEqual(other.call(STATUS, timeout=WAIT_S).grpc_status, 0)
            self.assertEqual(other.call(self.HEALTH, timeout=WAIT_S).grpc_status, 0)

    def test_streams_without_a_message(self):
        self.check_open_calls(SUBMIT, self.FREE + self.PLACES // 2)

    def test_calls_without_a_message(self):
        self.check_open_calls(VALIDATE, self.FREE + self.PLACES // 2)

    def test_calls_that_need_no_credential(self):
        # These end after five seconds, so that more are served, but not at one time.
        with self.peak() as peak:
            attackers = [self.connect() for _ in range(self.CONNECTIONS)]
            for attacker in attackers:
                self.open(attacker, self.HEALTH, self.STREAMS)
            self.check_others()
            for attacker in attackers:
                while attacker.read(0.2):
                    pass
        refused = sum(result.grpc_status == RESOURCE_EXHAUSTED
                      for attacker in attackers for result in attacker.results.values())
        self.check_peak("{} health checks without a message, {} refused".format(
            self.CONNECTIONS * self.STREAMS, refused), peak,
            (self.FREE + self.PLACES // 8) * self.CALL_KIB // 1024)
        self.assertGreater(refused, 0)


if __name__ == "__main__":
    unittest_main.main()
