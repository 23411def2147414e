#!/usr/bin/env python3
"""Tests the tests' HTTP/2 client with examples of the RFCs and with a real daemon.

The last line is `N passed, N failed`.
"""

import pathlib
import ssl
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import certificates  # noqa: E402
import daemon as daemons  # noqa: E402
import http2  # noqa: E402
import unittest_main  # noqa: E402

STATUS = "/resident.v1.Admin/Status"
OK, UNAUTHENTICATED, UNIMPLEMENTED = 0, 16, 12


class Hpack(unittest.TestCase):
    """RFC 7541, appendix C."""

    def test_integers(self):
        self.assertEqual(http2.encode_integer(10, 5), b"\x0a")
        self.assertEqual(http2.encode_integer(1337, 5), b"\x1f\x9a\x0a")

    def test_encoded_literals_are_decoded(self):
        headers = [(b"custom-key", b"custom-header"), (b"\x00\xff", bytes(range(256)) * 3)]
        self.assertEqual(http2.HeaderDecoder().decode(http2.encode_headers(headers)), headers)

    def test_responses_with_huffman_and_a_table_of_256_bytes(self):
        decoder = http2.HeaderDecoder(256)
        date = (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")
        location = (b"location", b"https://www.example.com")
        private = (b"cache-control", b"private")
        self.assertEqual(decoder.decode(bytes.fromhex(
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c7"
            "8f0b97c8e9ae82ae43d3")), [(b":status", b"302"), private, date, location])
        self.assertEqual(decoder.decode(bytes.fromhex("4883640effc1c0bf")),
                         [(b":status", b"307"), private, date, location])
        self.assertEqual(decoder.decode(bytes.fromhex(
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335"
            "dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007")),
            [(b":status", b"200"), private, (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"), location,
             (b"content-encoding", b"gzip"),
             (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")])
        self.assertEqual(len(decoder.table), 3)

    def test_truncated_blocks_are_refused(self):
        for block in (b"\x40", b"\x40\x05abc", b"\xff", b"\xc0"):
            with self.assertRaises(http2.BadBytes):
                http2.HeaderDecoder().decode(block)


class WithoutTls(unittest.TestCase):
    """A daemon that requires no credential."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()
        cls.addClassCleanup(cls.daemon.stop)

    def test_a_call_and_another_one_on_the_same_connection(self):
        with http2.Connection(self.daemon.address) as connection:
            for _ in range(2):
                result = connection.call(STATUS)
                self.assertEqual((result.ended, result.http_status, result.grpc_status),
                                 (http2.ANSWERED, 200, OK), result)
                self.assertEqual(len(result.messages), 1)
                self.assertIn(b"cpu", result.messages[0])

    def test_the_status_of_a_call_that_fails(self):
        result = http2.call(self.daemon.address, "/resident.v1.Admin/NoSuchMethod")
        self.assertEqual(result.grpc_status, UNIMPLEMENTED, result)

    def test_long_headers_in_several_frames(self):
        with http2.Connection(self.daemon.address) as connection:
            stream = connection.new_stream()
            connection.send_long_headers(stream, http2.request_headers(STATUS, [("x", "y" * 6000)]),
                                         frame_bytes=1000)
            connection.send_message(stream, b"")
            self.assertEqual(connection.result(stream).grpc_status, OK)

    def test_pings_are_answered(self):
        with http2.Connection(self.daemon.address) as connection:
            connection.send_ping()
            self.assertTrue(connection.read_until(lambda: connection.pongs == 1))

    def test_a_broken_preface_closes_the_connection(self):
        with http2.Connection(self.daemon.address, preface=False) as connection:
            connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
            self.assertTrue(connection.wait_closed())

    def test_a_stream_without_an_end_stays_open(self):
        with http2.Connection(self.daemon.address) as connection:
            stream = connection.new_stream()
            connection.send_headers(stream, http2.request_headers(STATUS), end_headers=False)
            self.assertEqual(connection.result(stream, 0.2).ended, http2.OPEN)


class WithTls(unittest.TestCase):
    """A daemon that requires client certificates."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="residentd-http2-")
        cls.addClassCleanup(folder.cleanup)
        cls.ca = certificates.Authority(folder.name)
        server = cls.ca.issue("server", "DNS:localhost,IP:127.0.0.1")
        cls.client = cls.ca.issue("client")
        cls.daemon = daemons.Daemon("--tls_cert=" + server.certificate, "--tls_key=" + server.key,
                                    "--tls_client_ca=" + cls.ca.certificate)
        cls.addClassCleanup(cls.daemon.stop)

    def test_with_a_certificate(self):
        tls = http2.tls_context(self.ca.certificate, *self.client)
        result = http2.call(self.daemon.address, STATUS, tls=tls)
        self.assertEqual(result.grpc_status, OK, result)

    def test_without_a_certificate_no_call_is_served(self):
        try:
            result = http2.call(self.daemon.address, STATUS,
                                tls=http2.tls_context(self.ca.certificate))
        except (ssl.SSLError, ConnectionError, http2.ConnectionClosed):
            return
        self.assertEqual(result.ended, http2.CLOSED, result)


if __name__ == "__main__":
    unittest_main.main()
