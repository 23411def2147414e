#!/usr/bin/env python3
"""Times thousands of small tasks of the resident kernel (bench_resident --only=small) beside PyTorch,
in one run: 10,000 adds of 256 to 16,384 float32, and 1,000 sums over the last dimension of each of four
shapes. Every task has tensors of its own.

  bench_small_tasks.py --out=FILE.json        (tests/gpu/run runs it, beside the programs in dist/bin)

Needs torch with CUDA. A figure is the time from the first submission until all results are there,
divided by the number of tasks; the median of several rounds. The baselines run in a process of their own,
which ends before the kernel starts. bench_resident checks its results beside float64; exit status 1 if one
is wrong, never because of speed.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch_baselines

ADDS, SMALLEST, LARGEST, SUMS = 10000, 256, 16384, 1000
SHAPES = [(8, 256), (32, 128), (64, 512), (128, 1024)]
ROUNDS = 7


def name_of_adds():
    return "10,000 adds of {} to {} elements, a task".format(SMALLEST, LARGEST)


def name_of_sums(shape):
    return "1,000 sums over the last dimension of ({}, {}), a task".format(*shape)


def measure_baselines():
    """Returns [figure's name, baseline's name, nanoseconds of a task] for each baseline."""
    torch = torch_baselines.import_torch("bench_small_tasks")

    def nanoseconds(run, tasks):
        times = []
        for _ in range(ROUNDS + 2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e9 / tasks)
        return statistics.median(times[2:])

    sizes, size, left, kinds = [], LARGEST, ADDS, (LARGEST // SMALLEST).bit_length()
    while kinds:
        sizes += [size] * (left // kinds)
        left, size, kinds = left - left // kinds, size // 2, kinds - 1
    xs, ys = ([torch.randn(n, device="cuda") for n in sizes] for _ in range(2))
    outs = [torch.empty_like(x) for x in xs]

    def eager():
        for x, y, out in zip(xs, ys, outs):
            torch.add(x, y, alpha=1.5, out=out)

    def foreach():
        return torch._foreach_add(xs, ys, alpha=1.5)

    compiled_add = torch.compile(lambda x, y: x + 1.5 * y, dynamic=True)

    def compiled():
        for x, y in zip(xs, ys):
            compiled_add(x, y)

    eager()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    results = [[name_of_adds(), what, nanoseconds(run, ADDS)]
               for what, run in (("PyTorch eager", eager), ("torch._foreach_add", foreach),
                                 ("a CUDA graph of the same 10,000", graph.replay))]
    try:
        results.append([name_of_adds(), "torch.compile", nanoseconds(compiled, ADDS)])
    except Exception as error:  # It needs a compiler of the host, which a machine may lack.
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        print("torch.compile: not measured: " + reason, file=sys.stderr)
    for shape in SHAPES:
        tensors = torch.randn((SUMS,) + shape, device="cuda")
        sums = torch.empty((SUMS, shape[0]), device="cuda")

        def sum_eager():
            for i in range(SUMS):
                torch.sum(tensors[i], -1, out=sums[i])

        results.append([name_of_sums(shape), "PyTorch eager", nanoseconds(sum_eager, SUMS)])
    return {"baselines": results, "with": torch_baselines.versions(torch)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--baselines", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.baselines:
        print(json.dumps(measure_baselines()))
        return 0

    done = subprocess.run([sys.executable, __file__, "--baselines"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("bench_small_tasks: the process of the baselines ended with {}".format(done.returncode))
    baselines = json.loads(done.stdout.splitlines()[-1])
    program = pathlib.Path(__file__).absolute().parents[2] / "bin" / "bench_resident"
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run([program, "--only=small", "--out=" + file.name])
        if done.returncode != 0:
            return 1
        measured = json.loads(pathlib.Path(file.name).read_text())

    values = {each["what"]: each["value"] for each in measured["figures"]}
    figures = []
    for what, baseline, value in baselines["baselines"]:
        figures.append({"what": what, "value": values[what], "unit": "ns", "baseline": baseline,
                        "baseline_value": value, "ratio": values[what] / value})
        print("{:65} {:8,.1f} ns   {:32} {:8,.1f} ns   ratio {:.3f}".format(
            what, values[what], baseline, value, values[what] / value))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(
            {"device": measured["device"], "baselines": baselines["with"], "figures": figures},
            indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
