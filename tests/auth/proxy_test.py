#!/usr/bin/env python3
"""The real daemon behind the real nginx, with the configuration of deploy/nginx.

The last line is `N passed, N failed`.
"""

import hashlib
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import certificates  # noqa: E402
import daemon as daemons  # noqa: E402
import http2  # noqa: E402
import unittest_main  # noqa: E402

CONFIGURATION = HERE.parents[1] / "deploy/nginx/residentd.conf"
STATUS = "/resident.v1.Admin/Status"
OK, UNAUTHENTICATED = 0, 16
WAIT_S = 30
MIB = 1 << 20
FLOOD_BYTES = 64 * MIB
# How much the daemon and nginx may grow while a peer floods the proxy. nginx stores the
# headers within its limits (32 KiB for each connection), and does not pass them to the
# daemon.
MAX_GROWTH = 16 * MIB
TRANSFER_BYTES = 8 * MIB

POLICY = """{"identities": {"tester": {"roles": ["submit", "install", "admin"]}}}"""

MAIN = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  include {folder}/residentd.conf;
}}
"""


def replace_once(text, old, new):
    if text.count(old) != 1:
        raise AssertionError("{} occurs {} times in {}".format(old, text.count(old),
                                                                CONFIGURATION))
    return text.replace(old, new)


def find_nginx():
    # Debian's path of nginx is not in every user's $PATH.
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        raise FileNotFoundError("nginx is not installed. Fix: run deploy/setup-debian.sh")
    return found


class Proxy:
    """nginx on a free port of the loopback interface, in front of `address`."""

    def __init__(self, address, server):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="residentd-proxy-"))
        (self.folder / "nginx.conf").write_text(MAIN.format(folder=self.folder))
        # Another program may take the port in between: in that case, retry with another port.
        for _ in range(5):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            self.address = "localhost:{}".format(port)
            text = CONFIGURATION.read_text()
            for old, new in (
                    ("listen 50443 ssl http2;", "listen 127.0.0.1:{} ssl http2;".format(port)),
                    ("server 127.0.0.1:50051;", "server {};".format(address)),
                    ("ssl_certificate /etc/residentd/tls/server.pem;",
                     "ssl_certificate {};".format(server.certificate)),
                    ("ssl_certificate_key /etc/residentd/tls/server.key;",
                     "ssl_certificate_key {};".format(server.key))):
                text = replace_once(text, old, new)
            (self.folder / "residentd.conf").write_text(text)
            with open(self.folder / "log", "wb") as log:
                self.process = subprocess.Popen(
                    [find_nginx(), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"),
                     "-e", str(self.folder / "error.log")], stdout=log, stderr=log)
            if self.wait_ready(port):
                return
        text = (self.folder / "log").read_text(errors="replace")
        self.stop()
        raise RuntimeError("nginx did not start:\n" + text)

    def wait_ready(self, port):
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)
                continue
            return self.process.poll() is None
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class ProxyTest(daemons.CommandTest):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="residentd-proxy-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.ca = certificates.Authority(cls.folder)
        server = cls.ca.issue("server", "DNS:localhost,IP:127.0.0.1")
        cls.token_file = cls.folder / "token"
        cls.token_file.write_text("secret\n")
        (cls.folder / "tokens").write_text(
            "tester " + hashlib.sha256(b"secret").hexdigest() + "\n")
        (cls.folder / "policy.json").write_text(POLICY)
        cls.daemon = daemons.Daemon("--policy=" + str(cls.folder / "policy.json"),
                                    "--token_file=" + str(cls.folder / "tokens"))
        cls.addClassCleanup(cls.daemon.stop)
        cls.proxy = Proxy(cls.daemon.address, server)
        cls.addClassCleanup(cls.proxy.stop)
        cls.authorization = ("authorization",
                             "Bearer " + cls.token_file.read_text().strip())

    def ctl(self, *words, code=daemons.OK):
        return self.check(
            daemons.ctl(*words, "--tls_ca=" + self.ca.certificate,
                        "--token_file=" + str(self.token_file), server=self.proxy.address), code)

    def connect(self):
        return http2.Connection(self.proxy.address, tls=http2.tls_context(self.ca.certificate))

    def resident_bytes(self):
        return {"residentd": http2.resident_bytes(self.daemon.process.pid),
                "nginx": http2.resident_bytes(self.proxy.process.pid)}

    def cpu_seconds(self):
        return {"residentd": http2.cpu_seconds(self.daemon.process.pid),
                "nginx": http2.cpu_seconds(self.proxy.process.pid)}

    def check_growth(self, before, what):
        after = self.resident_bytes()
        for name, started_with in before.items():
            growth = after[name] - started_with
            print("{}: {} grew by {:.1f} MiB".format(what, name, growth / MIB), flush=True)
            self.assertLess(growth, MAX_GROWTH, "{}: {}".format(what, name))

    def check_served(self):
        self.assertIn("4 6", self.ctl("run", "add", "x=1,2", "y=3,4").out)

    def test_commands_with_a_token(self):
        self.assertEqual(len(self.ctl("status", "--json").json["devices"]), 1)
        self.check_served()
        self.ctl("health")

    def test_calls_without_a_token_are_refused_by_the_daemon(self):
        with self.connect() as connection:
            result = connection.call(STATUS)
            self.assertEqual(result.grpc_status, UNAUTHENTICATED, result)
            result = connection.call(STATUS, [self.authorization])
            self.assertEqual(result.grpc_status, OK, result)

    def test_an_upload_and_a_download_larger_than_any_buffer_of_the_proxy(self):
        sent, received = self.folder / "sent", self.folder / "received"
        sent.write_bytes(os.urandom(TRANSFER_BYTES))
        buffer = self.ctl("buffers", "alloc", "--json", "{}".format(TRANSFER_BYTES // 4)).json
        number = str(buffer["id"])
        self.ctl("buffers", "upload", number, sent)
        self.ctl("buffers", "download", number, received)
        self.assertTrue(sent.read_bytes() == received.read_bytes(), "the contents differ")
        self.ctl("buffers", "free", number)

    def test_streams_of_batches(self):
        self.ctl("bench", "--quick", "--json")

    def test_endless_headers_end_at_the_proxy(self):
        self.check_served()
        before, cpu = self.resident_bytes(), self.cpu_seconds()
        for what, headers in (("without a token", []), ("with a token", [self.authorization])):
            with self.connect() as connection:
                stream = connection.new_stream()
                sent = self.flood(connection, stream, headers)
            print("endless headers {}: cut after {:.1f} MiB".format(what, sent / MIB))
            self.assertLess(sent, FLOOD_BYTES, what)
            self.check_growth(before, "endless headers " + what)
        after = self.cpu_seconds()
        for name, started_with in cpu.items():
            print("endless headers: {} used {:.2f} s of processor time".format(
                name, after[name] - started_with))
        self.check_served()

    def flood(self, connection, stream, headers):
        """Sends CONTINUATION frames until the connection is closed, or FLOOD_BYTES were sent.
        Returns the number of bytes sent."""
        sent = 0
        piece = http2.encode_headers([("x-{}".format(i), "y" * 1000) for i in range(15)])
        try:
            connection.send_headers(stream, http2.request_headers(STATUS, headers, scheme="https"),
                                    end_headers=False)
            while sent < FLOOD_BYTES and not connection.closed:
                connection.send_continuation(stream, piece)
                sent += len(piece)
                connection.read(0)
        except (http2.ConnectionClosed, ssl.SSLError, OSError):
            pass
        return sent

    def test_headers_over_the_limit_are_refused(self):
        before = self.resident_bytes()
        for what, more in (("one long value", [("x", "y" * 20000)]),
                           ("many values", [("x-{}".format(i), "y" * 1000) for i in range(60)])):
            with self.connect() as connection:
                stream = connection.new_stream()
                connection.send_long_headers(
                    stream,
                    http2.request_headers(STATUS, [self.authorization] + more, scheme="https"))
                result = connection.result(stream)
                self.assertIsNone(result.grpc_status, (what, result))
                self.assertEqual(result.ended, http2.CLOSED, (what, result))
        self.check_growth(before, "headers over the limit")
        self.check_served()


if __name__ == "__main__":
    unittest_main.main()
