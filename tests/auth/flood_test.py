#!/usr/bin/env python3
"""Peers without a credential flood a real daemon: endless headers, connections that stay open.

Memory limits are several times the measured values. The last line is `N passed, N failed`.
"""

import hashlib
import pathlib
import re
import ssl
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import certificates  # noqa: E402
import daemon as daemons  # noqa: E402
import http2  # noqa: E402
import unittest_main  # noqa: E402

STATUS = "/resident.v1.Admin/Status"
OK = 0
TOKEN = "a-token-of-the-tests"
AUTHORIZATION = ("authorization", "Bearer " + TOKEN)
POLICY = """{"identities": {"tester": {"roles": ["submit", "install", "admin"]}}}"""
MIB = 1 << 20
WAIT_S = 60

FLOOD_BYTES = 256 * MIB
# --max_unadmitted_kib, and the bytes that a peer can send until its connection is closed:
# the kernel's buffers and 32 KiB a second come on top. Socket buffers may hold 6 MiB on
# each side.
UNADMITTED_KIB = 1024
MAX_SENT = 32 * MIB
# gRPC uses as much memory for a header of one byte as for one of 100 bytes: the bytes that
# a peer can send until then can use about 200 MiB.
MAX_GROWTH = 400 * MIB
MAX_CPU_S = 20
# Many concurrent connections, and how much memory may remain after they are closed: the
# daemon returns memory once it has grown by 64 MiB.
FLOODERS = 16
MAX_GROWTH_OF_MANY = 1536 * MIB
MAX_REMAINING = 112 * MIB

CONNECTIONS = 64
HONEST_CONNECTIONS = 198
DEFAULT_WINDOW = 65535  # Of HTTP/2.

# Contents of a flood's frames, in the order of memory per byte: long values, short headers,
# and headers of one byte each: an index into the table, where the first frame has added a
# header.
LONG = http2.encode_headers([("x-{}".format(i), "y" * 1000) for i in range(15)])
SHORT = http2.encode_headers([("x", "")] * 4000)
TABLE_ENTRY = b"\x40" + http2.encode_string("x") + http2.encode_string("y")
NUMBERS = b"\xbe" * 16000
FLOODS = (("long headers", LONG), ("short headers", SHORT), ("numbers of headers", NUMBERS))


def wait_for(what, condition):
    """Calls condition until it returns something true, and returns that."""
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("not within {} s: {}".format(WAIT_S, what))
        time.sleep(0.05)


class Flooder:
    """Sends endless headers on one connection."""

    def __init__(self, address, tls=None, piece=SHORT):
        self.piece = piece
        self.sent = 0
        self.ended = False
        self.connection = http2.Connection(address, tls=tls)
        self.stream = self.connection.new_stream()
        scheme = "http" if tls is None else "https"
        self.try_to(lambda: self.connection.send_headers(
            self.stream, end_headers=False,
            block=http2.encode_headers(http2.request_headers(STATUS, scheme=scheme)) +
            TABLE_ENTRY))

    def try_to(self, action):
        try:
            action()
        except (http2.ConnectionClosed, ssl.SSLError, OSError):
            self.ended = True
        self.ended = self.ended or self.connection.closed

    def send(self):
        """Sends one frame. False: the connection is closed."""

        def action():
            self.connection.send_continuation(self.stream, self.piece)
            self.sent += len(self.piece)
            self.connection.read(0)

        if not self.ended:
            self.try_to(action)
        return not self.ended

    def close(self):
        self.connection.close()


class FloodTest(unittest.TestCase):
    FLAGS = ()
    WITH_TLS = False

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="residentd-flood-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "policy.json").write_text(POLICY)
        (cls.folder / "tokens").write_text(
            "tester " + hashlib.sha256(TOKEN.encode()).hexdigest() + "\n")
        flags = ["--policy=" + str(cls.folder / "policy.json"),
                 "--token_file=" + str(cls.folder / "tokens"),
                 "--max_unadmitted_kib={}".format(UNADMITTED_KIB)]
        cls.tls = None
        if cls.WITH_TLS:
            ca = certificates.Authority(cls.folder)
            server = ca.issue("server", "DNS:localhost,IP:127.0.0.1")
            flags += ["--tls_cert=" + server.certificate, "--tls_key=" + server.key]
            cls.tls = http2.tls_context(ca.certificate)
        cls.daemon = daemons.Daemon(*flags, *cls.FLAGS)
        cls.addClassCleanup(cls.daemon.stop)
        cls.pid = cls.daemon.process.pid

    def setUp(self):
        # The first call makes the daemon allocate permanent memory.
        self.check_served()
        self.bytes_before = http2.resident_bytes(self.pid)
        self.cpu_before = http2.cpu_seconds(self.pid)

    def served(self):
        """Whether a client with a token is served over a new connection."""
        try:
            result = http2.call(self.daemon.address, STATUS, [AUTHORIZATION], tls=self.tls)
        except (http2.ConnectionClosed, ssl.SSLError, OSError):
            return False
        return result.grpc_status == OK

    def check_served(self):
        wait_for("a client with a token is served", self.served)

    def metric(self, name):
        """The value of a metric, with its labels if it has some."""
        page = urllib.request.urlopen("http://{}/metrics".format(self.daemon.metrics_address),
                                      timeout=30).read().decode()
        found = re.search(r"^%s (\S+)$" % re.escape(name), page, re.MULTILINE)
        return float(found.group(1))

    def closed(self, reason):
        return self.metric('resident_connections_closed_total{reason="%s"}' % reason)

    def await_connections(self, count):
        wait_for("the daemon has {} connections".format(count),
                 lambda: self.metric("resident_connections") == count)

    def growth(self):
        return http2.resident_bytes(self.pid) - self.bytes_before

    def report(self, what, max_growth):
        cpu = http2.cpu_seconds(self.pid) - self.cpu_before
        print("{}: {:.1f} MiB more, {:.2f} s of processor time".format(
            what, max_growth / MIB, cpu), flush=True)
        return cpu

    def check_endless_headers(self):
        for what, piece in FLOODS:
            with self.subTest(what):
                self.check_flood(what, piece)

    def check_flood(self, what, piece):
        closed = self.closed("bytes")
        cpu_before = http2.cpu_seconds(self.pid)
        flooder = Flooder(self.daemon.address, self.tls, piece)
        self.addCleanup(flooder.close)
        max_growth = 0
        while flooder.sent < FLOOD_BYTES and flooder.send():
            max_growth = max(max_growth, self.growth())
        wait_for("the connection is counted", lambda: self.closed("bytes") == closed + 1)
        max_growth = max(max_growth, self.growth())
        self.report("endless {}, cut after {:.1f} MiB".format(what, flooder.sent / MIB), max_growth)
        cpu = http2.cpu_seconds(self.pid) - cpu_before
        self.assertTrue(flooder.ended, "256 MiB of headers were accepted")
        self.assertLess(flooder.sent, MAX_SENT)
        self.assertLess(max_growth, MAX_GROWTH)
        self.assertLess(cpu, MAX_CPU_S)
        self.check_served()


class WithoutTls(FloodTest):

    def test_endless_headers(self):
        self.check_endless_headers()

    def test_the_window_of_a_stream_does_not_grow(self):
        # A client's first message then stays below --max_unadmitted_kib, however long the
        # daemon takes to admit the call.
        with http2.Connection(self.daemon.address) as connection:
            for _ in range(4):
                connection.call(STATUS, [AUTHORIZATION], b"\xff" * MIB)
            connection.send_ping()
            self.assertTrue(connection.read_until(lambda: connection.pongs == 1))
            self.assertLessEqual(
                connection.server_settings.get(http2.INITIAL_WINDOW_SIZE, DEFAULT_WINDOW),
                DEFAULT_WINDOW)

    def test_endless_headers_on_many_connections_and_remaining_memory(self):
        flooders = [Flooder(self.daemon.address, piece=SHORT) for _ in range(FLOODERS)]
        for flooder in flooders:
            self.addCleanup(flooder.close)
        max_growth, served = 0, 0
        while any(not flooder.ended and flooder.sent < FLOOD_BYTES for flooder in flooders):
            for flooder in flooders:
                for _ in range(8):
                    flooder.send()
            max_growth = max(max_growth, self.growth())
            served += self.served()
        sent = sum(flooder.sent for flooder in flooders)
        cpu = self.report("endless headers on {} connections, {:.1f} MiB in all, {} calls served "
                          "meanwhile".format(FLOODERS, sent / MIB, served), max_growth)
        self.assertTrue(all(flooder.ended for flooder in flooders))
        self.assertGreater(served, 0)
        self.assertLess(max_growth, MAX_GROWTH_OF_MANY)
        self.assertLess(cpu, 3 * MAX_CPU_S)
        self.check_served()
        wait_for("the memory is released", lambda: self.growth() < MAX_REMAINING)
        print("after the connections were closed: {:.1f} MiB more".format(self.growth() / MIB),
              flush=True)


class WithTls(FloodTest):
    WITH_TLS = True

    def test_endless_headers(self):
        self.check_endless_headers()


class Held:
    """Connections that stay open without a call."""
    FLAGS = ("--max_connections={}".format(CONNECTIONS),)

    def check_held(self, what, connections, keep=lambda: None):
        """`keep` is called repeatedly during the test."""
        closed = self.closed("room")
        stop = threading.Event()

        def keep_them():
            while not stop.is_set():
                keep()
                stop.wait(0.01)

        keeper = threading.Thread(target=keep_them)
        keeper.start()
        try:
            started = time.monotonic()
            self.check_served()
            print("{}: a client was served after {:.2f} s".format(
                what, time.monotonic() - started), flush=True)
            # One connection was closed to make room; the others stay open.
            self.assertGreater(self.closed("room"), closed)
        finally:
            stop.set()
            keeper.join()
            for connection in connections:
                connection.close()
        self.report(what, self.growth())
        self.assertLess(self.growth(), MAX_GROWTH)

    def fill(self, connect):
        """Opens the maximum number of connections."""
        # Connections of earlier calls have ended; the daemon detects this with a delay.
        self.await_connections(0)
        connections = [connect() for _ in range(CONNECTIONS)]
        self.await_connections(CONNECTIONS)
        return connections


class HeldWithoutTls(Held, FloodTest):

    def test_silent_connections(self):
        self.check_held("silent connections", self.fill(
            lambda: http2.Connection(self.daemon.address, preface=False)))


class HeldWithTls(Held, FloodTest):
    WITH_TLS = True

    def test_connections_that_answer_pings(self):
        connections = self.fill(lambda: http2.Connection(self.daemon.address, tls=self.tls))

        def answer():
            for connection in connections:
                connection.read(0)

        self.check_held("TLS connections that answer", connections, answer)

    def test_silent_connections_that_come_again(self):
        # More than there is room for. Each comes again as soon as the daemon has closed it.
        stop = threading.Event()

        def hold():
            while not stop.is_set():
                try:
                    with http2.Connection(self.daemon.address, preface=False) as silent:
                        while not stop.is_set() and not silent.wait_closed(0.1):
                            pass
                except OSError:
                    pass

        self.await_connections(0)
        holders = [threading.Thread(target=hold) for _ in range(CONNECTIONS + 16)]
        for holder in holders:
            holder.start()
        try:
            self.await_connections(CONNECTIONS)
            served = sum(self.served() for _ in range(HONEST_CONNECTIONS))
        finally:
            stop.set()
            for holder in holders:
                holder.join()
        print("{} of {} new connections were served beside {} silent ones".format(
            served, HONEST_CONNECTIONS, len(holders)), flush=True)
        self.assertEqual(served, HONEST_CONNECTIONS)


class Handshakes:
    """Connections whose handshake does not end. Without a call they may otherwise stay open."""
    FLAGS = ("--max_unadmitted_idle_ms=3600000",)

    def check_closed(self, what, connections):
        started = time.monotonic()
        for connection in connections:
            self.assertTrue(connection.wait_closed(WAIT_S), what)
            connection.close()
        print("{}: closed after {:.1f} s".format(what, time.monotonic() - started), flush=True)
        self.check_served()


class HandshakesWithoutTls(Handshakes, FloodTest):

    def test_a_connection_without_a_preface_ends(self):
        self.check_closed("without a preface", [
            http2.Connection(self.daemon.address, preface=False) for _ in range(4)])


class HandshakesWithTls(Handshakes, FloodTest):
    WITH_TLS = True

    def test_a_connection_without_a_handshake_ends(self):
        self.check_closed("without a TLS handshake", [
            http2.Connection(self.daemon.address, preface=False) for _ in range(4)])

    def test_a_connection_without_a_preface_ends(self):
        self.check_closed("with TLS and without a preface", [
            http2.Connection(self.daemon.address, tls=self.tls, preface=False) for _ in range(4)])


if __name__ == "__main__":
    unittest_main.main()
