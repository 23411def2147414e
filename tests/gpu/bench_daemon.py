#!/usr/bin/env python3
"""Measures the whole daemon from outside: the time until it serves, its resources when idle, and
`residentctl bench` (with a plain gRPC echo as the baseline, in the same run).

  bench_daemon.py --out=FILE.json        (tests/gpu/run runs it)

The daemon's device is $RESIDENT_TEST_DEVICES. Prints a table; the file has the raw figures. Exit
status 1 if a result of the bench is wrong, never because of speed.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import daemon as daemons  # pylint: disable=wrong-import-position

STARTS = 5
IDLE_S = 20.0
PAUSES = 40  # Lone calls, each after 1 to 2 s.
# Number of processors for each side when they are separated: a thread that wakes on another
# processor each time has cold caches.
PINNED = 4


def memory_mib(pid):
    """Resident memory of a process: in total, and without shared memory (MiB).

    Only root can read the front end's smaps. For others, anonymous memory is reported as the
    memory that is not shared."""
    total = shared = 0
    try:
        lines = pathlib.Path("/proc/{}/smaps_rollup".format(pid)).read_text().splitlines()
    except PermissionError:
        status = pathlib.Path("/proc/{}/status".format(pid)).read_text().splitlines()
        kib = {line.split()[0]: int(line.split()[1]) for line in status if line.endswith(" kB")}
        return kib["VmRSS:"] / 1024, kib["RssAnon:"] / 1024
    for line in lines:
        words = line.split()
        if words[0] == "Rss:":
            total = int(words[1])
        elif words[0] in ("Shared_Clean:", "Shared_Dirty:"):
            shared += int(words[1])
    return total / 1024, (total - shared) / 1024


def cpu_seconds(pid):
    """Processor time of all threads, in nanoseconds: in clock ticks an idle process would be 0."""
    threads = pathlib.Path("/proc/{}/task".format(pid)).iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def bench(raw, daemon_processors, client_processors, *flags):
    """Runs `residentctl bench` with a new daemon; returns its figures without the samples, and
    its exit status. The processors that each may use; None for any."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, daemon_processors or everywhere)
    daemon = daemons.Daemon()
    try:
        os.sched_setaffinity(0, client_processors or everywhere)
        done = daemon.ctl("bench", "--out=" + str(raw), *flags)
    finally:
        os.sched_setaffinity(0, everywhere)
        daemon.stop()
    print(done.out + done.err, flush=True)
    figures = {}
    if raw.exists():
        figures = json.loads(raw.read_text())
        figures.pop("raw", None)
        raw.unlink()
    return figures, done.code


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--gtest_output", help="ignored: tests/gpu/run gives it to every check")
    out = parser.parse_args().out

    ready_s = []
    for _ in range(STARTS):
        started = time.monotonic()
        daemon = daemons.Daemon()
        ready_s.append(time.monotonic() - started)
        daemon.stop()

    # The device parks soon, so that the idle state is measured.
    daemon = daemons.Daemon("--park_after=200ms")
    try:
        engine_pid = daemon.ctl("status", "--json").json["devices"][0]["engine_pid"]
        time.sleep(1)
        before = cpu_seconds(daemon.process.pid) + cpu_seconds(engine_pid)
        time.sleep(IDLE_S)
        idle_cpu = (cpu_seconds(daemon.process.pid) + cpu_seconds(engine_pid) - before) / IDLE_S
        front, engine = memory_mib(daemon.process.pid), memory_mib(engine_pid)
    finally:
        daemon.stop()

    figures = {
        "serve_to_ready_s": {"median": statistics.median(ready_s), "all": ready_s},
        "idle_cpu_share_of_a_core": idle_cpu,
        "front_end_mib": {"resident": front[0], "private": front[1]},
        "engine_mib": {"resident": engine[0], "private": engine[1]},
    }
    print("serve to ready       {:8.3f} s  (median of {})".format(statistics.median(ready_s), STARTS))
    print("idle                 {:8.2f} % of a core".format(100 * idle_cpu))
    print("front end, resident  {:8.1f} MiB".format(front[0]))
    print("engine, resident     {:8.1f} MiB".format(engine[0]), flush=True)

    print("\nThe daemon, the client and the echo on any processor:")
    figures["bench"], code = bench(pathlib.Path(out + ".ctl"), None, None,
                                   "--pauses={}".format(PAUSES))
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) >= 2 * PINNED:
        print("The daemon on {0} processors; the client and the echo on {0} others:".format(PINNED))
        figures["bench_pinned"], pinned_code = bench(
            pathlib.Path(out + ".ctl"), processors[PINNED:2 * PINNED], processors[:PINNED])
        code = code or pinned_code
    pathlib.Path(out).write_text(json.dumps(figures, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
