#!/usr/bin/env python3
"""Headers that gRPC processes itself, well-formed and malformed, on every kind of service, with and
without a credential: each call ends with a status, and the daemon keeps serving.

The last line is `N passed, N failed`.
"""

import hashlib
import json
import pathlib
import re
import sys
import tempfile
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

OK, UNAUTHENTICATED, UNIMPLEMENTED = 0, 16, 12

TOKEN = "a-token-of-the-tests"
BEARER = ("authorization", "Bearer " + TOKEN)

HEALTH = "/grpc.health.v1.Health/Check"
# One method of each service and of each kind of call.
METHODS = [
    HEALTH,
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/resident.v1.Admin/Status",
    "/resident.v1.Buffers/Upload",
    "/resident.v1.Executor/Run",
    "/resident.v1.Executor/Submit",
    "/resident.v1.Operators/Install",
    "/resident.v1.Operators/Watch",
    "/resident.v1.Sessions/Open",
    "/resident.v1.Executor/NoSuchMethod",
    "/",
    "no path",
]
OPEN_TO_ALL = {HEALTH, "/grpc.health.v1.Health/Watch"}

# Values with a meaning for some decoder: text, numbers, Base64, a protobuf, and arbitrary
# bytes.
VALUES = [
    "", "x", "0", "-1", "1S", "99999999S", "999999999999999999999", "1", "200", "trailers",
    "identity", "gzip", "gzip,deflate,identity", "http", "https", "AAAA", "AA==", "A", "%", "%zz",
    b"\x00", b"\xff\xfe", b"\x0a\x03abc", b"\x80" * 300, "y" * 4000
]

# Every header for which gRPC 1.51 has a separate type, headers that end in -bin, HTTP's
# headers, and invalid header names.
NAMES = [
    "te", "content-type", "content-encoding", "accept-encoding", "grpc-encoding",
    "grpc-accept-encoding", "grpc-internal-encoding-request", "grpc-timeout",
    "grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-status", "grpc-message", "host",
    "endpoint-load-metrics-bin", "grpc-server-stats-bin", "grpc-trace-bin", "grpc-tags-bin",
    "grpclb_client_stats", "lb-token", "lb-cost-bin", "x-envoy-peer-metadata", "user-agent",
    "authorization", "cookie", "x-any-bin", "x-any", "x-endpoint-load-metrics-bin", "connection",
    "transfer-encoding", "resident-session", "Upper-Case", "", "with space", "with\nline", b"\xff",
    ":scheme", ":method", ":authority", ":status", ":path", ":unknown"
]


def replace(path, text):
    """Replaces a file atomically; only its owner can read it."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.chmod(0o600)
    draft.rename(path)


def eventually(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Headers(unittest.TestCase):
    """A daemon with a policy, on the loopback interface."""

    tls = None
    scheme = "http"

    @classmethod
    def flags(cls, _folder):
        return []

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="residentd-headers-")
        cls.addClassCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        policy = folder / "policy"
        policy.write_text(json.dumps(
            {"identities": {"tester": {"roles": ["submit", "install", "admin"]}}}))
        cls.tokens = folder / "tokens"
        replace(cls.tokens, "tester " + hashlib.sha256(TOKEN.encode()).hexdigest() + "\n")
        cls.daemon = daemons.Daemon("--policy=" + str(policy), "--token_file=" + str(cls.tokens),
                                    *cls.flags(folder))
        cls.addClassCleanup(cls.daemon.stop)

    def connect(self):
        return http2.Connection(self.daemon.address, tls=self.tls)

    def assert_serves(self, what):
        """Checks that the daemon and its engine still run, and that access control works."""
        self.assertIsNone(self.daemon.process.poll(), what)
        with self.connect() as connection:
            self.assertEqual(connection.call(HEALTH).grpc_status, OK, what)
            status = connection.call("/resident.v1.Admin/Status", [BEARER])
            self.assertEqual(status.grpc_status, OK, what)
            self.assertEqual(
                connection.call("/resident.v1.Admin/Status").grpc_status, UNAUTHENTICATED, what)
        page = urllib.request.urlopen("http://" + self.daemon.metrics_address + "/metrics",
                                      timeout=30).read().decode()
        restarts = re.findall(r"^resident_engine_restarts_total\{.*\} (\d+)$", page, re.M)
        self.assertTrue(restarts, page)
        self.assertEqual(set(restarts), {"0"}, what)

    def send(self, cases):
        """Sends each case, (path, headers in front, headers behind), on a stream of one connection;
        after a case that ended the connection, on a new one. Returns (case, Result)s."""
        results = []
        connection = self.connect()
        try:
            for case in cases:
                result = self.send_one(connection, case)
                # The previous case may have ended the connection.
                if result.ended == http2.CLOSED:
                    connection.close()
                    connection = self.connect()
                    result = self.send_one(connection, case)
                results.append((case, result))
                self.assertIsNone(self.daemon.process.poll(), (case, result))
        finally:
            connection.close()
        return results

    def send_one(self, connection, case):
        path, front, behind = case
        stream = connection.new_stream()
        result = connection.results[stream]
        try:
            connection.send_headers(
                stream,
                list(front) + http2.request_headers(path, behind, scheme=self.scheme))
            connection.send_data(stream, http2.encode_message(b""), end_stream=True)
            # An admitted watch or session stays open after its first message.
            connection.read_until(lambda: result.ended != http2.OPEN or result.headers)
            if result.ended == http2.OPEN:
                connection.send_rst(stream)
        except http2.ConnectionClosed:
            pass
        if connection.closed and result.ended == http2.OPEN:
            result.ended = http2.CLOSED
        return result

    def assert_ended(self, results, credential):
        for case, result in results:
            path = case[0]
            info = (case, result)
            # Expect an answer, a reset of the stream, or the end of the connection if the
            # data was not HTTP/2; never silence.
            self.assertTrue(result.ended != http2.OPEN or result.headers, info)
            if credential or path in OPEN_TO_ALL:
                continue
            # A caller without a credential must not be served.
            self.assertNotEqual(result.grpc_status, OK, info)
            self.assertEqual(result.messages, [], info)

    def test_each_header_with_each_value_before_authentication(self):
        for name in NAMES:
            for path in (HEALTH, "/resident.v1.Executor/Run"):
                cases = [(path, [], [(name, value)]) for value in VALUES]
                self.assert_ended(self.send(cases), credential=False)
            self.assert_serves(name)

    def test_each_header_after_authentication(self):
        for name in NAMES:
            cases = [("/resident.v1.Admin/Status", [], [BEARER, (name, value)])
                     for value in VALUES]
            self.assert_ended(self.send(cases), credential=True)
        self.assert_serves("after authentication")

    def test_each_header_on_each_service(self):
        for credential in ([], [BEARER]):
            for path in METHODS:
                cases = [(path, front, credential + behind) for name in NAMES
                         for front, behind in (([], [(name, "x")]), ([(name, "x")], []),
                                               ([], [(name, "1"), (name, "2")]))]
                self.assert_ended(self.send(cases), credential=bool(credential))
            self.assert_serves(str(credential))

    def test_the_header_that_once_crashed_the_daemon_is_answered(self):
        for path, expected in ((HEALTH, OK), ("/resident.v1.Executor/Run", UNAUTHENTICATED),
                               ("/resident.v1.Executor/NoSuchMethod", UNIMPLEMENTED)):
            with self.connect() as connection:
                result = connection.call(path, [("grpclb_client_stats", "x")])
                self.assertEqual(result.grpc_status, expected, (path, result))
        self.assert_serves("grpclb_client_stats")

    def test_a_call_is_refused_before_its_message_is_read(self):
        """The call is refused although no byte of the message was sent."""
        with self.connect() as connection:
            for path in ("/resident.v1.Executor/Run", "/resident.v1.Admin/Status",
                         "/resident.v1.Operators/Watch"):
                stream = connection.new_stream()
                connection.send_headers(stream, http2.request_headers(path, scheme=self.scheme))
                self.assertEqual(connection.result(stream).grpc_status, UNAUTHENTICATED, path)

    def test_a_call_without_its_message_is_answered(self):
        with self.connect() as connection:
            for path in ("/resident.v1.Executor/Run", "/resident.v1.Admin/Status",
                         "/resident.v1.Operators/Watch", HEALTH):
                stream = connection.new_stream()
                connection.send_headers(
                    stream, http2.request_headers(path, [BEARER], scheme=self.scheme),
                    end_stream=True)
                result = connection.result(stream)
                self.assertEqual(result.grpc_status, 3, (path, result))  # INVALID_ARGUMENT
                self.assertIn("Fix:", result.grpc_message)
        self.assert_serves("calls without a message")

    def test_a_message_that_never_ends_ends_a_call_that_is_open_to_all(self):
        """The connection makes other calls at the same time, so that it is not idle."""
        with self.connect() as connection:
            stream = connection.new_stream()
            connection.send_headers(stream, http2.request_headers(HEALTH, scheme=self.scheme))
            connection.send_data(stream, b"\0" + (1 << 30).to_bytes(4, "big") + b"some bytes")
            result = connection.results[stream]
            deadline = time.monotonic() + 60
            while result.ended == http2.OPEN and time.monotonic() < deadline:
                self.assertEqual(connection.call(HEALTH).grpc_status, OK)
                connection.read_until(lambda: result.ended != http2.OPEN, 0.5)
            self.assertIn(result.ended, (http2.ANSWERED, http2.RESET), result)
            self.assertNotEqual(result.grpc_status, OK, result)
        self.assert_serves("a message that never ends")

    def test_a_call_whose_credential_is_revoked_before_its_message_is_refused(self):
        revoked = "a-token-that-is-revoked"
        bearer = ("authorization", "Bearer " + revoked)
        line = "tester " + hashlib.sha256(revoked.encode()).hexdigest() + "\n"
        before = self.tokens.read_text()
        replace(self.tokens, before + line)
        with self.connect() as connection:

            def status():
                return connection.call("/resident.v1.Admin/Status", [bearer]).grpc_status

            self.assertTrue(eventually(lambda: status() == OK))
            stream = connection.new_stream()
            connection.send_headers(
                stream, http2.request_headers("/resident.v1.Admin/Drain", [bearer],
                                              scheme=self.scheme))
            replace(self.tokens, before)
            self.assertTrue(eventually(lambda: status() == UNAUTHENTICATED))
            # Admission is checked again if the message comes more than 1 s after the daemon has
            # handled the headers, which may have been a short time ago.
            time.sleep(2.5)
            connection.send_message(stream, b"")
            self.assertEqual(connection.result(stream).grpc_status, UNAUTHENTICATED)
        self.assert_serves("a drain whose credential was revoked")

    def test_health_watches_without_a_credential_are_limited_per_address(self):
        """Beyond one for each connection, one address can use all watches but a reserve; the error
        names the limit, and ended watches free it."""
        watch = "/grpc.health.v1.Health/Watch"
        limit, reserve = 256, 32

        def watch_twice(**options):
            """Begins two watches over a new connection; returns the statuses with which they ended."""
            statuses = []
            with http2.Connection(self.daemon.address, tls=self.tls, **options) as further:
                for _ in range(2):
                    stream = further.new_stream()
                    further.send_headers(stream, http2.request_headers(watch, scheme=self.scheme))
                    further.send_message(stream, b"")
                    result = further.results[stream]
                    further.read_until(lambda r=result: r.headers)
                    statuses.append(result.grpc_status)
            return statuses

        with self.connect() as connection:
            streams = []
            for _ in range(1 + limit):
                stream = connection.new_stream()
                streams.append(stream)
                connection.send_headers(stream, http2.request_headers(watch, scheme=self.scheme))
                connection.send_message(stream, b"")
            results = [connection.results[stream] for stream in streams]
            connection.read_until(lambda: all(r.headers for r in results))
            refused = [r for r in results if r.grpc_status == 8]  # RESOURCE_EXHAUSTED
            self.assertEqual(len(refused), reserve)
            self.assertIn("Health.Watch", refused[0].grpc_message)
            # A further connection has one of its own, and no more.
            self.assertEqual(watch_twice(), [None, 8])
            # Another address can still have more than the connection's own.
            self.assertEqual(watch_twice(source="127.0.0.2"), [None, None])
            long_name = connection.call(HEALTH, message=b"\x0a\xac\x02" + b"n" * 300)
            self.assertEqual(long_name.grpc_status, 3, long_name)

        self.assertTrue(eventually(lambda: watch_twice() == [None, None]))


class HeadersOverTls(Headers):
    """The same over TLS, with clients that use a token."""

    scheme = "https"

    @classmethod
    def flags(cls, folder):
        server = certificates.Authority(folder).issue("server", "DNS:localhost,IP:127.0.0.1")
        pathlib.Path(server.key).chmod(0o600)
        cls.tls = http2.tls_context()
        return ["--tls_cert=" + server.certificate, "--tls_key=" + server.key]


class IdleConnections(unittest.TestCase):
    """A daemon with a policy and a short limit for unadmitted connections."""

    def test_an_open_health_watch_keeps_its_connection(self):
        with tempfile.TemporaryDirectory(prefix="residentd-idle-") as folder:
            policy = pathlib.Path(folder) / "policy"
            policy.write_text(json.dumps({"identities": {}}))
            daemon = daemons.Daemon("--policy=" + str(policy), "--max_unadmitted_idle_ms=3000")
            self.addCleanup(daemon.stop)
            with http2.Connection(daemon.address) as watching:
                stream = watching.new_stream()
                watching.send_headers(stream,
                                      http2.request_headers("/grpc.health.v1.Health/Watch"))
                watching.send_message(stream, b"")
                result = watching.results[stream]
                self.assertTrue(watching.read_until(lambda: result.messages), result)
                # Newer connections are closed as idle meanwhile.
                for _ in range(3):
                    with http2.Connection(daemon.address) as idle:
                        self.assertTrue(idle.wait_closed())
                watching.read(0)
                self.assertFalse(watching.closed)
                self.assertEqual(result.ended, http2.OPEN)
                watching.send_rst(stream)
                self.assertTrue(watching.wait_closed())


if __name__ == "__main__":
    unittest_main.main()