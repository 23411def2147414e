#!/usr/bin/env python3
"""A vectorised environment: several worker processes, each with a small policy network, share one device.

In each step a worker sees another number of entities, each with the same number of features, and needs the action of
its policy on the host before it goes on:

    hidden = tanh(entities @ w1.T + b1)           # (entities, HIDDEN)
    action = argmax(max(hidden, 0) @ w2.T + b2)

The program runs the same steps in several ways, one after the other, checks that all of them choose the same actions,
and prints for each the latency of a step and the steps of all workers in a second:

    eager       torch in each worker: a CUDA context for each
    graphs      the same, with one CUDA graph in each worker: entities are padded to the largest number
    eager+mps, graphs+mps   the same under NVIDIA's Multi-Process Service, which the program starts and ends
    lanes       a local lane in each worker: no CUDA context, prepared calls on shared memory

    deploy/examples/environments.py --daemon=PATH/residentd          # All that the machine can run.
    deploy/examples/environments.py --address=127.0.0.1:50051 --ways=lanes

Without --address the program starts the daemon for the way `lanes` only, so that the others have the device for
themselves. Without a GPU `eager` uses the processor, and `graphs` and MPS are left out. Needs torch, NumPy and the
package residentd. Exit status: 0 only if every way chose the right actions.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

FEATURES, HIDDEN, ACTIONS = 16, 32, 4
LEAST_ENTITIES, MOST_ENTITIES = 4, 40
WARM_UP_STEPS = 100
# Actions whose scores are nearer to each other may differ between ways: sums have other orders.
SAME_SCORE = 1e-3
START_TIMEOUT_S = 300
WAYS = ("eager", "graphs", "eager+mps", "graphs+mps", "lanes")


def weights(worker):
    random = np.random.default_rng(worker)
    return [random.normal(0, scale, shape).astype(np.float32) for scale, shape in (
        (0.3, (HIDDEN, FEATURES)), (0.1, (HIDDEN,)), (0.3, (ACTIONS, HIDDEN)), (0.1, (ACTIONS,)))]


class Environment:
    """What a worker sees: in each step another number of entities. The action turns the next view."""

    def __init__(self, worker):
        self._random = np.random.default_rng(1000 + worker)
        self._turn = 0

    def view(self):
        entities = self._random.integers(LEAST_ENTITIES, MOST_ENTITIES + 1)
        features = self._random.normal(0, 1, (entities, FEATURES)).astype(np.float32)
        return np.roll(features, self._turn, axis=1)

    def step(self, action):
        self._turn = (self._turn + action) % FEATURES


def reference(features, w1, b1, w2, b2):
    """The scores of the actions, in float64."""
    hidden = np.tanh(features.astype(np.float64) @ w1.T + b1)
    return hidden.max(axis=0) @ w2.T + b2


# Policies: functions from features (an array of shape (entities, FEATURES)) to an action.


def eager_policy(worker, address, cuda):
    import torch

    device = "cuda" if cuda else "cpu"
    w1, b1, w2, b2 = (torch.from_numpy(each).to(device) for each in weights(worker))

    @torch.no_grad()
    def act(features):
        x = torch.from_numpy(features).to(device)
        hidden = torch.tanh(torch.nn.functional.linear(x, w1, b1))
        return int(torch.nn.functional.linear(hidden.amax(dim=0), w2, b2).argmax().item())

    return act, lambda: None


def graph_policy(worker, address, cuda):
    import torch

    w1, b1, w2, b2 = (torch.from_numpy(each).cuda() for each in weights(worker))
    x = torch.zeros((MOST_ENTITIES, FEATURES), device="cuda")
    count = torch.full((), MOST_ENTITIES, device="cuda")
    place = torch.arange(MOST_ENTITIES, device="cuda")[:, None]
    staged, staged_count = (torch.empty_like(each, device="cpu").pin_memory() for each in (x, count))

    def compute():
        hidden = torch.tanh(torch.nn.functional.linear(x, w1, b1))
        hidden = torch.where(place < count, hidden, -2.0)  # Below every tanh.
        return torch.nn.functional.linear(hidden.amax(dim=0), w2, b2).argmax()

    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        action = compute()

    def act(features):
        staged[:len(features)] = torch.from_numpy(features)
        staged_count.fill_(len(features))
        x.copy_(staged, non_blocking=True)
        count.copy_(staged_count, non_blocking=True)
        graph.replay()
        return int(action.item())

    return act, lambda: None


def lane_policy(worker, address, cuda):
    import residentd
    import residentd.torch as rt
    import torch

    rd = residentd.connect(address, client_name="environment {}".format(worker))
    lane = rt.attach(rd)

    def shared(values):
        made = rt.shared(tuple(values.shape), torch.float32)
        return made.copy_(torch.from_numpy(values))

    w1, b1, w2, b2 = map(shared, weights(worker))
    x, hidden = rt.shared((MOST_ENTITIES, FEATURES)), rt.shared((MOST_ENTITIES, HIDDEN))
    widest, scores, action = rt.shared((HIDDEN,)), rt.shared((ACTIONS,)), rt.shared((), torch.int64)
    view = x.numpy()
    calls = {}  # By number of entities: calls are prepared for their shapes.

    def prepare(entities):
        part = hidden[:entities]
        return (lane.prepare("gemv", x[:entities], w1, b1, out=part), lane.prepare("tanh", part, out=part),
                lane.prepare("max", part, axis=0, out=widest), second, best)

    second = lane.prepare("gemv", widest, w2, b2, out=scores)
    best = lane.prepare("argmax", scores, axis=0, out=action)

    def act(features):
        entities = len(features)
        view[:entities] = features
        if entities not in calls:
            calls[entities] = prepare(entities)
        first, squash, pool, last, choose = calls[entities]
        first()
        squash()
        pool()
        last()
        return int(choose.value())

    def close():
        lane.close()
        rd.close()

    return act, close


POLICIES = {"eager": eager_policy, "graphs": graph_policy, "lanes": lane_policy}


def work(worker, way, address, cuda, steps, barrier, results):
    """A worker process: its steps, as {latencies_us, wrong, entities}."""
    environment = Environment(worker)
    act, close = POLICIES[way.split("+")[0]](worker, address, cuda)
    own = weights(worker)
    wrong = entities = 0
    latencies = np.empty(steps)
    for step in range(-WARM_UP_STEPS, steps):
        if step == 0:
            barrier.wait(START_TIMEOUT_S)
            began = time.perf_counter()
        features = environment.view()
        start = time.perf_counter()
        action = act(features)
        latencies[max(step, 0)] = (time.perf_counter() - start) * 1e6
        scores = reference(features, *own)
        wrong += int(not 0 <= action < ACTIONS or scores.max() - scores[action] > SAME_SCORE)
        entities += len(features)
        environment.step(action)
    seconds = time.perf_counter() - began
    close()
    results.put({"latencies_us": latencies, "wrong": wrong, "entities": entities, "seconds": seconds})


def run_way(way, workers, steps, address, cuda):
    """The row of a way. RuntimeError if a worker failed."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(workers), context.Queue()
    processes = [context.Process(target=work, args=(worker, way, address, cuda, steps, barrier, results))
                 for worker in range(workers)]
    for process in processes:
        process.start()
    found = []
    while len(found) < workers:
        with contextlib.suppress(queue.Empty):
            found.append(results.get(timeout=1))
        failed = [process for process in processes if process.exitcode not in (None, 0)]
        if failed:
            for process in processes:
                process.kill()
            raise RuntimeError("a worker of '{}' ended with exit status {}".format(way, failed[0].exitcode))
    for process in processes:
        process.join()
    latencies = np.concatenate([each["latencies_us"] for each in found])
    worst = max(float(np.median(each["latencies_us"])) for each in found)
    return {"way": way, "p50_us": float(np.median(latencies)), "p99_us": float(np.percentile(latencies, 99)),
            "worst_p50_us": worst, "steps_per_s": workers * steps / max(each["seconds"] for each in found),
            "wrong": sum(each["wrong"] for each in found)}


@contextlib.contextmanager
def daemon(program, devices):
    """A daemon of this program's own; its address."""
    folder = tempfile.mkdtemp(prefix="environments-", dir="/tmp")
    ports = pathlib.Path(folder) / "ports"
    with open(pathlib.Path(folder) / "log", "wb") as log:
        process = subprocess.Popen([program, "serve", "--address=127.0.0.1:0", "--metrics_address=", "--port_file=" + str(ports),
                                    "--local_address={}/local".format(folder), *(["--devices=" + devices] if devices else [])],
                                   stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ports.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the daemon did not start:\n" + (pathlib.Path(folder) / "log").read_text())
            time.sleep(0.05)
        yield json.loads(ports.read_text())["address"]
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


@contextlib.contextmanager
def mps():
    """The Multi-Process Service, for processes that start within."""
    folder = tempfile.mkdtemp(prefix="mps-", dir="/tmp")
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: folder for name in names})
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--address", help="a daemon that is running, on this machine, with --local_address")
    parser.add_argument("--daemon", help="the program residentd, which is started for the way `lanes`")
    parser.add_argument("--devices", default="", help="--devices of that daemon, such as cpu")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000, help="of each worker, behind {} that do not count".format(WARM_UP_STEPS))
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each way")
    options = parser.parse_args(arguments)
    options.ways = options.ways.split(",")
    for way in options.ways:
        if way not in WAYS:
            parser.error("there is no way '{}'. Fix: use {}".format(way, ", ".join(WAYS)))
    if options.workers < 1 or options.steps < 1:
        parser.error("--workers and --steps are at least 1")
    if "lanes" in options.ways and not (options.address or options.daemon):
        parser.error("lanes need a daemon. Fix: pass --address or --daemon, or leave lanes out of --ways")
    return options


def has_gpu():
    """Without a CUDA context in this process."""
    program = "import torch; print(torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "True"


def main(arguments=None):
    options = parse(arguments)
    cuda = has_gpu()
    rows = []
    for way in options.ways:
        if not cuda and way not in ("eager", "lanes"):
            print("{}: left out, there is no GPU".format(way), flush=True)
            continue
        if way.endswith("+mps") and shutil.which("nvidia-cuda-mps-control") is None:
            print("{}: left out, there is no nvidia-cuda-mps-control".format(way), flush=True)
            continue
        with contextlib.ExitStack() as stack:
            address = options.address
            if way == "lanes" and not address:
                address = stack.enter_context(daemon(options.daemon, options.devices))
            if way.endswith("+mps"):
                stack.enter_context(mps())
            row = run_way(way, options.workers, options.steps, address, cuda)
        rows.append(row)
        print(json.dumps(row) if options.json else
              "{way:<12} step p50 {p50_us:9.1f} us (worst worker {worst_p50_us:9.1f}), p99 {p99_us:9.1f} us, "
              "{steps_per_s:10,.0f} steps/s, {wrong} wrong actions".format(**row), flush=True)
    return 1 if not rows or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
