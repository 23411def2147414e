#!/usr/bin/env python3
"""Writes the script that tests an image inside one of its containers.

buildah inspect --type image NAME | container_script.py > SCRIPT

The script starts the image's entry point, waits until the image's own health check succeeds, runs a
task, and ends the daemon with the image's stop signal, which must result in exit status 0. An image
that serves other machines by default is refused.
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
test -n "$(ls -A /var/lib/residentd)"
trap - EXIT
kill -{stop} $daemon
wait $daemon
"""


def main():
    config = json.load(sys.stdin)["Docker"]["config"]
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
                        healthy=shlex.join(health[1:])), end="")


main()
