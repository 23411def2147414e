#!/usr/bin/env python3
"""Writes the script that tests an image inside one of its containers.

buildah inspect --type image NAME | container_script.py [--oci] [--compiler] > SCRIPT

The script starts the image's entry point, waits until the image's own health check succeeds, runs a
task, installs an operator (which must be refused unless the image has a compiler: --compiler), and ends
the daemon with the image's stop signal, which must result in exit status 0. An image that serves other
machines by default is refused. --oci: images of this format have no health check.
"""

import ipaddress
import json
import shlex
import sys

SCRIPT = """set -eu
test "$(id -u):$(id -g)" = {user}
{start} &
daemon=$!
trap 'kill -KILL $daemon' EXIT
rounds=0
until {healthy}; do
  kill -0 $daemon
  rounds=$((rounds + 1))
  test $rounds -lt 300
  sleep 0.2
done
residentctl run add x=1,2,3 y=10,20,30 >/tmp/sum
cat /tmp/sum
grep -q 33 /tmp/sum
{install}
test -n "$(ls -A /var/lib/residentd)"
trap - EXIT
kill -{stop} $daemon
wait $daemon
"""


INSTALL = """residentctl ops install twice --expr '2 * x' --wait=active
residentctl run twice x=21 >/tmp/twice
grep -q 42 /tmp/twice"""
NO_COMPILER = """if residentctl ops install twice --expr '2 * x' 2>/tmp/refused; then exit 1; fi
grep -q 'compiler' /tmp/refused"""


def main():
    image = json.load(sys.stdin)
    if "--oci" in sys.argv:
        config = image["OCIv1"]["config"]
        health = ["CMD", "residentctl", "health", "--timeout=2s"]
    else:
        config = image["Docker"]["config"]
        health = config["Healthcheck"]["Test"]
    if health[0] != "CMD":
        sys.exit("the image's health check is not a command: {}".format(health))
    if config["User"].startswith(("0", "root")) or not config["User"]:
        sys.exit("the image's user is root")
    start = config["Entrypoint"] + (config.get("Cmd") or [])
    for flag in ("--address=", "--metrics_address="):
        addresses = [word[len(flag):] for word in start if word.startswith(flag)]
        host = addresses[-1].rpartition(":")[0].strip("[]") if addresses else "127.0.0.1"
        if not ipaddress.ip_address(host).is_loopback:
            sys.exit("the image listens on {}{} by default".format(flag, addresses[-1]))
    print(SCRIPT.format(user=config["User"], stop=config["StopSignal"].replace("SIG", ""),
                        start=shlex.join(start),
                        install=INSTALL if "--compiler" in sys.argv else NO_COMPILER,
                        healthy=shlex.join(health[1:])), end="")


main()
