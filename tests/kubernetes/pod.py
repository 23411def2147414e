"""Runs the daemon as in a pod, until it has served its clients. Called in namespaces of its own.

  pod.py FOLDER CONTAINER     FOLDER has the volumes and the clients' certificates; CONTAINER is the
                              container of the pod, as JSON

Prints what the daemon printed. The exit status is 0 if it became ready, served those whom the policy
names, refused others, and ended without an error.
"""

import fcntl
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

WAIT_S = 45
folder, container = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def mount_volumes(volumes):
    """Over the machine's own folders, which get further ones."""
    paths = {each["name"]: pathlib.Path(each["mountPath"]) for each in volumes}
    for parent in {path.parent for path in paths.values()}:
        more = folder / "more" / parent.name
        for path in paths.values():
            if path.parent == parent:
                (more / path.name).mkdir(parents=True)
        mount("-t", "overlay", "overlay", "-o", "lowerdir={}:{}".format(more, parent), parent)
    for each in volumes:
        mount("--bind", folder / each["name"], each["mountPath"])
        if each.get("readOnly"):
            mount("-o", "remount,bind,ro", each["mountPath"])


def residentctl(identity, *arguments):
    certificates = folder / "certificates"
    flags = ["--server=127.0.0.1:50051", "--tls_ca={}".format(certificates / "ca.crt"),
             "--tls_server_name=residentd.residentd"]
    if identity:
        flags += ["--tls_cert={}".format(certificates / (identity + ".crt")),
                  "--tls_key={}".format(certificates / (identity + ".key"))]
    return subprocess.run([os.environ["RESIDENTCTL"], *flags, *arguments], timeout=WAIT_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def check(what, holds):
    if not holds:
        print("FAILED", what)
        daemon.kill()
        sys.exit(1)


# The loopback interface of the new network.
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
mount_volumes([each for each in container["volumeMounts"] if each["mountPath"] != "/tmp"])

daemon = subprocess.Popen([os.environ["RESIDENTD"], "serve", *container["args"]])
deadline = time.monotonic() + WAIT_S
ready = False
while not ready and daemon.poll() is None and time.monotonic() < deadline:
    try:
        ready = urllib.request.urlopen("http://127.0.0.1:9464/readyz", timeout=5).read() == b"ok\n"
    except (urllib.error.URLError, OSError):
        time.sleep(0.05)
check("it becomes ready", ready)
sum_of_two = residentctl("client", "run", "add", "x=1", "y=2")
check("it serves a client: {}".format(sum_of_two.stdout.decode()),
      sum_of_two.returncode == 0 and b"3" in sum_of_two.stdout)
if any(flag.startswith("--operators_dir=") for flag in container["args"]):
    swish = residentctl("client", "run", "example.swish", "x=0")
    check("it serves the set of operators: {}".format(swish.stdout.decode()), swish.returncode == 0)
    status = residentctl("admin", "status")
    check("its set is applied: {}".format(status.stdout.decode()), b"example@1, applied" in status.stdout)
parked = residentctl("client", "admin", "park", "0")
check("a client may not park: {}".format(parked.stdout.decode()),
      parked.returncode != 0 and b"does not have the role 'admin'" in parked.stdout)
parked = residentctl("admin", "admin", "park", "0")
check("an administrator may park: {}".format(parked.stdout.decode()), parked.returncode == 0)
check("nobody connects without a certificate", residentctl(None, "status").returncode != 0)
daemon.send_signal(signal.SIGTERM)
check("it ends without an error", daemon.wait(WAIT_S) == 0)
