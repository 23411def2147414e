#!/usr/bin/python3
"""Measures the Python package beside its baselines, in one run:

    bazel build -c opt //server:residentd //client/python:wheel
    RESIDENTD=bazel-bin/server/residentd tests/python/bench.py [--json FILE]

  lone call     `add` of two vectors of 8, beside three bare calls of grpcio, bytes in, bytes out: the
                request of the same task to an echo server of grpcio, to the health service of the same
                daemon, and the same task to Executor.Run. The first two ratios have the daemon's work on
                the task in them, and the first one has an interpreted server; the third one is what the
                package adds. The four alternate, so that all see the same machine.
  map           1,024 tasks of `add` in a batch, beside the same tasks as lone calls and as submits
  shared memory `add` of two arrays of 16 MiB: arrays of Client.shared, through the arena, and inline
  killed client from kill -9 of a client with buffers, shared memory and batches under way until the daemon
                has none of it and /dev/shm no object, beside the same for a client that calls close()

Figures are medians; the ratio to the baseline is what can be compared between machines.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import grpc  # noqa: E402
import numpy as np  # noqa: E402

LONE_CALLS, TASKS, REPETITIONS = 3000, 1024, 15
LARGE = (4, 1 << 20)  # float32: 16 MiB.
ENDS = 10  # Clients that are killed, and clients that close.


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median(function, repetitions=REPETITIONS):
    function()
    return statistics.median(seconds(function) for _ in range(repetitions))


def figure(what, value, unit, baseline, baseline_value):
    return {"what": what, "value": value, "unit": unit, "baseline": baseline,
            "baseline_value": baseline_value, "ratio": value / baseline_value}


class EchoServer:
    """A process with a server of grpcio that answers each call with its request, on loopback.

    address: host:port. The process ends with the with block.
    """

    SOURCE = """
import concurrent.futures, sys, grpc
class Echo(grpc.GenericRpcHandler):
    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), [Echo()])
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, "-c", self.SOURCE], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.address = "127.0.0.1:" + self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_):
        self._process.communicate()


def lone_call(rd, address):
    x, add = np.ones(8, np.float32), rd.op("add")
    prepared = rd._drive(rd._operations.prepare("add", 0, (x, x), {}))
    request = support.message("RunRequest")(batch=prepared.batch).SerializeToString()
    with EchoServer() as server, grpc.insecure_channel(server.address) as echoes, \
            grpc.insecure_channel(address) as channel:
        echo = echoes.unary_unary("/bench.Echo/Echo")
        bare = channel.unary_unary("/grpc.health.v1.Health/Check")
        run = channel.unary_unary("/resident.v1.Executor/Run")
        if echo(request) != request:
            raise SystemExit("the echo server did not return the request")
        forms = [("echo server of grpcio", lambda: echo(request)),
                 ("health service of the daemon, with grpcio", lambda: bare(b"")),
                 ("the same task as bytes, with grpcio", lambda: run(request)),
                 ("", lambda: add(x, x))]
        times = [[] for _ in forms]
        for _ in range(LONE_CALLS):
            for (_, form), of_form in zip(forms, times):
                of_form.append(seconds(form))
    *baselines, call = (1e6 * statistics.median(of_form[LONE_CALLS // 10:]) for of_form in times)
    what = "lone call of `add`, 8 elements, p50"
    figures = [figure(what, call, "us", name, base) for (name, _), base in zip(forms, baselines)]
    print("lone call of add {:.1f} us".format(call))
    for each in figures:
        print("  {:<42} {:8.1f} us   ratio {:.2f}".format(each["baseline"], each["baseline_value"],
                                                          each["ratio"]))
    return figures


def many_tasks(rd):
    x, add = np.ones((TASKS, 8), np.float32), rd.op("add")

    def submits():
        for future in [add.submit(row, row) for row in x]:
            future.result()

    mapped = TASKS / median(lambda: add.map(x, x))
    submitted = TASKS / median(submits, 3)
    alone = TASKS / median(lambda: [add(row, row) for row in x], 3)
    print("map of {:,}   {:10,.0f} tasks/s   submit {:8,.0f} tasks/s   lone calls {:8,.0f} tasks/s   "
          "ratio map / lone {:.0f}".format(TASKS, mapped, submitted, alone, mapped / alone))
    return [figure("`map` of {:,} tasks".format(TASKS), mapped, "tasks/s", "lone calls", alone),
            figure("`submit` of {:,} tasks".format(TASKS), submitted, "tasks/s", "lone calls", alone)]


def shared_memory(rd, inline):
    array = np.random.default_rng(1).random(LARGE, np.float32)
    x, y, out = (rd.shared(LARGE) for _ in range(3))
    x[:] = y[:] = array
    in_place = median(lambda: rd.op("add")(x, y, out=out))
    arena = median(lambda: rd.op("add")(array, array))
    through_grpc = median(lambda: inline.op("add")(array, array), 5)
    np.testing.assert_array_equal(out, inline.op("add")(array, array))
    print("2 x 16 MiB in, 16 MiB out:   in place {:.2f} ms   arena {:.2f} ms   inline {:.1f} ms   "
          "ratio inline / in place {:.0f}, inline / arena {:.1f}".format(
              in_place * 1e3, arena * 1e3, through_grpc * 1e3, through_grpc / in_place,
              through_grpc / arena))
    what = "`add` of two arrays of 16 MiB, "
    return [figure(what + "arrays of Client.shared", in_place * 1e3, "ms", "inline", through_grpc * 1e3),
            figure(what + "through the arena", arena * 1e3, "ms", "inline", through_grpc * 1e3)]


class OtherClient:
    """A client in a process of its own, with a buffer, shared memory, and batches under way."""

    SOURCE = """
import sys
sys.path[:0] = {path!r}
import numpy as np, residentd
rd = residentd.connect({address!r}, client_name="other")
add, shared, buffer = rd.op("add"), rd.shared((1 << 20,)), rd.upload(np.ones(1 << 20))
large = add(np.ones(1 << 20, np.float32), 1)
futures = [add.submit(large, large) for _ in range(16)]
print("ready", flush=True)
sys.stdin.readline()
rd.close()
print("closed", flush=True)
"""

    def __init__(self, address):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SOURCE.format(path=sys.path, address=address)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the other client did not start")

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def end_of_clients(rd, address):
    def nothing_left(client):
        status = rd.status()
        return not (support.shared_objects(client.process.pid) or
                    sum(device.buffers for device in status.devices) or
                    [each for each in status.clients if each.name == "other"])

    # What this client has in the arena is a buffer of the device: a new client has none.
    times = {"kill": [], "close": []}
    for _ in range(ENDS):
        for end, of_end in times.items():
            client = OtherClient(address)
            start = time.perf_counter()
            getattr(client, end)()
            while not nothing_left(client):
                if time.perf_counter() - start > 60:
                    raise SystemExit("a client that ended by {} left something".format(end))
            of_end.append(time.perf_counter() - start)
            client.process.communicate()
    killed, closed = (1e3 * statistics.median(times[end]) for end in ("kill", "close"))
    print("end of a client:   kill -9 {:.1f} ms (longest of {}: {:.1f} ms, limit 2,000 ms)   close() {:.1f} "
          "ms   ratio {:.2f}".format(killed, ENDS, 1e3 * max(times["kill"]), closed, killed / closed))
    return [figure("`kill -9` of a client until nothing of it is left", killed, "ms", "close()", closed)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also writes the figures to this file")
    options = parser.parse_args()
    daemon = support.daemons.Daemon()
    try:
        with residentd.connect(daemon.address) as rd, residentd.connect(
                daemon.address, shared_memory="off") as inline:
            device = rd.status().devices[0]
            print("Python {}, grpcio {}, numpy {}; device: {}".format(
                sys.version.split()[0], grpc.__version__, np.__version__, device.name))
            figures = lone_call(rd, daemon.address) + many_tasks(rd) + shared_memory(rd, inline)
        with residentd.connect(daemon.address, shared_memory="off") as rd:
            figures += end_of_clients(rd, daemon.address)
            versions = {"device": device.name, "python": sys.version.split()[0],
                        "grpcio": grpc.__version__, "numpy": np.__version__}
    finally:
        daemon.stop()
    if options.json:
        pathlib.Path(options.json).write_text(
            json.dumps(dict(versions, figures=figures), indent=1) + "\n")


if __name__ == "__main__":
    main()
