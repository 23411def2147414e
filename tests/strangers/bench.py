"""Measures the daemon with perf_analyzer, unmodified: see tests/strangers/run --bench.

    bench.py FILE

The model `add:batch` with 512 tasks of 16 elements in each request, in system shared memory, with one and
more requests at a time, beside `add` with one task in each request. The two alternate, so that both see
the same machine. Writes the figures to FILE, as JSON.
"""

import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "cli")]
import daemon as daemons  # noqa: E402

ELEMENTS, BATCH, REPETITIONS = 16, 512, 3
CONCURRENCIES = (1, 2, 4, 8)


def inferences_per_second(daemon, model, concurrency, *flags):
    """What perf_analyzer reports, with this many requests in flight."""
    report = pathlib.Path(daemon.folder) / "report.csv"
    # Any result is stable for the tool: the runs are repeated here, and their median is taken.
    command = [os.environ["PERF_ANALYZER"], "-m", model, "-u", daemon.address, "-i", "grpc", "--async",
               "--concurrency-range={}".format(concurrency), "--shape=x:{}".format(ELEMENTS),
               "--shape=y:{}".format(ELEMENTS), "--shared-memory=system",
               "--output-shared-memory-size={}".format(4 * ELEMENTS * BATCH),
               "--measurement-interval=1500", "--stability-percentage=999", "--max-trials=3",
               "-f", str(report), *flags]
    environment = dict(os.environ, LD_LIBRARY_PATH=os.environ["PERF_ANALYZER_LIBRARIES"])
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        sys.exit("perf_analyzer failed:\n" + done.stdout + done.stderr)
    with open(report, newline="") as file:
        (row,) = csv.DictReader(file)
    return float(row["Inferences/Second"])


def main():
    if not os.environ.get("PERF_ANALYZER"):
        sys.exit("perf_analyzer could not be downloaded")
    daemon = daemons.Daemon()
    figures = []
    try:
        for concurrency in CONCURRENCIES:
            lone, batched = [], []
            for _ in range(REPETITIONS):
                lone.append(inferences_per_second(daemon, "add", concurrency))
                batched.append(inferences_per_second(daemon, "add:batch", concurrency, "-b", str(BATCH)))
            value, baseline = statistics.median(batched), statistics.median(lone)
            figures.append({
                "what": "`add:batch`, {} tasks of {} elements, {} in flight".format(
                    BATCH, ELEMENTS, concurrency),
                "value": value, "unit": "inferences/s", "baseline": "`add`, one task in a request",
                "baseline_value": baseline, "ratio": value / baseline})
            print("{what}: {value:,.0f} inferences/s; {baseline}: {baseline_value:,.0f}; "
                  "ratio {ratio:.1f}".format(**figures[-1]), flush=True)
    finally:
        daemon.stop()
    pathlib.Path(sys.argv[1]).write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
