"""What the tests of several daemons share: daemons on addresses of the loopback interface, calls in the
background, and a DNS server."""

import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "inference")]
import grpc  # noqa: E402
from support import WAIT_S, daemons, residentd  # noqa: E402


def page(node, path):
    return urllib.request.urlopen("http://{}/{}".format(node.metrics_address, path),
                                  timeout=WAIT_S).read().decode()


def tasks_of(node):
    """Tasks that the node has run."""
    return sum(int(value) for value in
               re.findall(r"^resident_tasks_total\{.*\} (\d+)$", page(node, "metrics"), re.M))


class Load:
    """Threads that make calls, until the end of a with statement."""

    def __init__(self, *calls, threads=2):
        self.errors = []
        self.done = 0
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(call,)) for call in calls
                        for _ in range(threads)]

    def work(self, call):
        while not self.stop.is_set():
            error = None
            try:
                call()
            except (grpc.RpcError, residentd.Error, AssertionError) as failed:
                error = failed
            with self.lock:
                self.done += 1
                if error is not None:
                    self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


class FleetTest(unittest.TestCase):

    def node(self, *flags, **options):
        node = daemons.Daemon(*flags, **options)
        self.addCleanup(node.stop)
        if any(flag.startswith("--drain_notice") for flag in flags):
            self.addCleanup(node.process.kill)  # A notice that is still in progress would be waited for.
        return node

    def nodes(self, *flags, count=3):
        """Nodes at 127.0.0.11 and the addresses after it, on one port."""
        first = self.node("--address=127.0.0.11:0", *flags)
        return [first] + [self.node("--address=" + first.address.replace("0.11", "0.{}".format(11 + i)), *flags)
                          for i in range(1, count)]

    def wait_for(self, what, holds):
        deadline = time.monotonic() + WAIT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)


class Dns:
    """dnsmasq, which knows the addresses of nodes.test."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="residentd-dns-")
        self.hosts = pathlib.Path(self.folder.name) / "hosts"
        self.set_hosts(())
        deadline = time.monotonic() + WAIT_S
        while True:  # Somebody else may take the free port first.
            self.port = free_port()
            self.process = subprocess.Popen([
                shutil.which("dnsmasq", path=os.environ.get("PATH", "") + ":/usr/sbin"),
                "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
                "--local=/test/", "--listen-address=127.0.0.1", "--bind-interfaces", "--pid-file=",
                "--user=" + getpass.getuser(), "--port={}".format(self.port),
                "--addn-hosts={}".format(self.hosts)], stderr=subprocess.DEVNULL)
            try:
                self.wait_for(0)  # Before that a signal would end it.
                return self
            except RuntimeError:
                if self.process.poll() is None or time.monotonic() > deadline:
                    raise

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def set_hosts(self, addresses):
        self.hosts.write_text("".join(address + " nodes.test\n" for address in addresses))

    def set(self, *addresses):
        self.set_hosts(addresses)
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(len(addresses))

    def wait_for(self, addresses):
        deadline = time.monotonic() + WAIT_S
        while self.lookup() != addresses:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("dnsmasq does not answer")
            time.sleep(0.02)

    def lookup(self):
        """The number of addresses that the server answers; None: it does not answer."""
        query = b"\0\1\1\0\0\1\0\0\0\0\0\0\5nodes\4test\0\0\1\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.settimeout(1)
            try:
                udp.connect(("127.0.0.1", self.port))
                udp.send(query)
                return int.from_bytes(udp.recv(512)[6:8], "big")
            except OSError:
                return None


def free_port():
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        return tcp.getsockname()[1]


class Nginx:
    """nginx, as a proxy of gRPC. It sends calls with one value of the header resident-affinity to one node, as
    docs/operations.md describes, and others to any."""

    CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  map $http_resident_affinity $node_key {{
    "" $request_id;
    default $http_resident_affinity;
  }}
  upstream nodes {{
    hash $node_key consistent;
    {servers}
  }}
  server {{
    listen {address} http2;
    client_max_body_size 0;
    grpc_read_timeout 1d;
    grpc_send_timeout 1d;
    location / {{ grpc_pass grpc://nodes; }}
  }}
}}
"""

    def __init__(self, nodes):
        self.folder = tempfile.TemporaryDirectory(prefix="residentd-nginx-")
        program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
        deadline = time.monotonic() + WAIT_S
        while True:  # Somebody else may take the free port first.
            self.address = "127.0.0.1:{}".format(free_port())
            self.set_nodes(nodes)
            self.process = subprocess.Popen([program, "-c", self.folder.name + "/nginx.conf", "-e",
                                             self.folder.name + "/log"])
            while self.process.poll() is None and time.monotonic() < deadline:
                try:
                    socket.create_connection(self.address.split(":")).close()
                    return
                except OSError:
                    time.sleep(0.02)
            if time.monotonic() > deadline:
                raise RuntimeError("nginx does not answer: " +
                                   pathlib.Path(self.folder.name + "/log").read_text())

    def set_nodes(self, nodes):
        pathlib.Path(self.folder.name + "/nginx.conf").write_text(self.CONFIG.format(
            folder=self.folder.name, address=self.address,
            servers=" ".join("server {};".format(node.address) for node in nodes)))

    def reload(self, nodes):
        """New connections are sent to these nodes."""
        self.set_nodes(nodes)
        self.process.send_signal(signal.SIGHUP)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        self.folder.cleanup()
