#!/usr/bin/env python3
"""Writes the figures of the JSON files in this folder into the tables of the documents.

  docs/benchmarks/update.py [FOLDER]     FOLDER contains the JSON files of tests/gpu/run;
                                         they are copied into this folder first
  docs/benchmarks/update.py --check      changes nothing; exit status 1 if a table is out of date

A table is between `<!-- figures: NAME -->` and `<!-- end -->`.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCUMENTS = ["README.md", "docs/benchmarks/README.md", "docs/benchmarks/experiments.md",
             "docs/life_of_a_task.md", "docs/local_lane.md"]
KERNEL, DAEMON, DAEMON_CPU = "bench_resident.json", "bench_daemon.json", "bench_daemon_cpu.json"
GENERATION, OPERATORS, SOAK = "bench_generation.json", "bench_operators.json", "swap_soak.json"
FLUX_CPU, RECOVERY = "flux_cpu.json", "bench_recovery.json"
STOPS, STOPPABLE = "bench_stops_h200.json", "bench_stoppable_h200.json"
NATIVE, NATIVE_CPU = "bench_native.json", "bench_native_cpu.json"
NATIVE_CORE = "flux_native_cpu.json"
LIBRARY, LIBRARY_CPU = "bench_library.json", "library_cpu.json"
SMALL_TASKS = "bench_small_tasks.json"
LANES = "bench_lane_h200.json"
MODELS, ONNX = "bench_models_h200.json", "bench_onnx_h200.json"
LINEAR, ENCODER = "bench_linear_h200.json", "bench_encoder_h200.json"
GRAPHS, GRAPHS_BESIDE = "bench_graphs.json", "bench_graphs_beside.json"
GRAPHS_CPU, LOADED_CPU = "graphs_cpu.json", "graphs_loaded_cpu.json"
PYTHON_CPU, INFERENCE_CPU = "python_cpu.json", "inference_cpu.json"
PERF_ANALYZER, PERF_ANALYZER_CPU = "perf_analyzer.json", "perf_analyzer_cpu.json"
GRAPH_PROMPT_CPU, GRAPH_SOAK = "graph_prompt_cpu.json", "graph_soak.json"
GRAPH_SOAK_ATTACKS = "graph_soak_attacks.json"
# In place of a table whose benchmark has not run yet.
NOT_MEASURED = "Not measured yet."
# The kernel with blocks of fewer threads.
SMALLER = ["bench_resident_128.json", "bench_resident_64.json"]


def without_raw(value):
    """Removes single samples: they are many and contain little information."""
    if isinstance(value, dict):
        return {k: without_raw(v) for k, v in value.items() if k != "raw"}
    return [without_raw(v) for v in value] if isinstance(value, list) else value


def load(name):
    return json.loads((HERE / name).read_text())


def number(value):
    """Formats a value with three digits."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return "{:,.{}f}".format(value, digits)


def quantity(value, unit):
    if unit == "us":
        return number(value) + " µs"
    if unit == "ns":
        return number(value) + " ns"
    if unit in ("ms", "s", "MiB"):
        return number(value) + " " + unit
    if unit == "bytes/s":
        return "{:,.0f} GB/s".format(value / 1e9)
    unit = unit.replace("instr/s", "instructions/s")
    for scale, letter in ((1e12, "T "), (1e9, "G "), (1e6, "M "), (1e3, "k ")):
        if value >= scale:
            return number(value / scale) + " " + letter + unit
    return number(value) + " " + unit


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def figure(what):
    """Returns the kernel's figure of that name, and its baselines by name."""
    found = [f for f in load(KERNEL)["figures"] if f["what"] == what]
    if not found:
        sys.exit("update: {} has no figure '{}'".format(KERNEL, what))
    return found[0], {f["baseline"]: f for f in found if "baseline" in f}


def comparison(what, baseline=None):
    """Returns value, baseline's value and ratio as text."""
    ours, baselines = figure(what)
    if baseline is None:
        return quantity(ours["value"], ours["unit"]), "", ""
    other = baselines[baseline]
    return (quantity(ours["value"], ours["unit"]),
            "{}: {}".format(baseline, quantity(other["baseline_value"], ours["unit"])),
            "{:.2f}".format(other["ratio"]))


LONE = "lone add of 1,024, round trip, p50"
BURST = "burst of 64 adds, first submit to last done, p50"
SUSTAINED = "sustained adds of 1,024, distinct buffers"
WIDE = "wide add of 256 Mi, chunks of 32768"


def figures(name, of=None):
    """A row for each figure of the file, or only of those with a name in `of`."""
    rows = []
    for f in load(name)["figures"]:
        if of is not None and f["what"] not in of:
            continue
        baseline = "baseline" in f
        rows.append([
            f["what"], quantity(f["value"], f["unit"]), f["baseline"] if baseline else "",
            quantity(f["baseline_value"], f["unit"]) if baseline else "",
            "{:.{}f}".format(f["ratio"], 2 if f["ratio"] >= 0.02 else 4) if baseline else ""
        ])
    return table(["what", "residentd", "baseline", "its figure", "ratio"], rows)


def kernel():
    return figures(KERNEL)


def blocks():
    """One column for each number of threads in a block."""
    head, columns = ["what"], []
    for name in [KERNEL] + SMALLER:
        data = load(name)
        shape = re.search(r"(\d+) blocks of (\d+) \+ 32 threads", data["detail"])
        head.append("{1} threads, {0} blocks".format(*shape.groups()))
        columns.append({f["what"]: quantity(f["value"], f["unit"]) for f in data["figures"]})
    rows = [LONE, BURST, SUSTAINED, WIDE, "FLUX, one program over 1 Mi inputs",
            "FLUX, 1 Mi different programs"]
    return table(head, [[what] + [column[what] for column in columns] for what in rows])


def lanes():
    return figures(LANES)


def models():
    return figures(MODELS)


def onnx_models():
    return figures(ONNX)


def linear():
    return figures(LINEAR)


def encoder():
    return figures(ENCODER)


def lanes_short():
    return figures(LANES, [
        "lone add of 1,024 through a lane, p50", "chain of dependent adds, each",
        "adds of 64 through a lane, one by one, joined",
        "adds of 64 through a lane, ranges by stride",
        "8 processes, a lane each, lone adds: in all", "gRPC Run with 64 open lanes, p50",
        "lone add after a pause of 2 ms, p50", "daemon with 65 asleep lanes"
    ])


def generation():
    return figures(GENERATION)


def recovery():
    return figures(RECOVERY)


def stops():
    return figures(STOPS)


def stoppable():
    return figures(STOPPABLE)


def operators():
    return figures(OPERATORS)


def soak():
    summary = load(SOAK)
    rows = [["generations", "{:,}".format(summary["generations"])],
            ["the daemon before", summary["before"]], ["the daemon after", summary["after"]]]
    rows += [[what, "{:,}".format(count)] for what, count in summary["counts"].items()]
    return table(["what", "count"], rows + [["violations", str(summary["violations"])]])


def flux_cpu():
    rows = [[f["name"], quantity(f["instr/s"], "instr/s"), quantity(f["reference/s"], "instr/s"),
             "{:.2f}".format(f["x_reference"])] for f in load(FLUX_CPU)["figures"]]
    return table(["FLUX on one core", "residentd", "reference interpreter", "ratio"], rows)


def native():
    return figures(NATIVE)


def native_core():
    rows = [[f["name"], quantity(f["instr/s"], "instr/s"), quantity(f["interpreter/s"], "instr/s"),
             "{:.2f}".format(f["x_interpreter"])] for f in load(NATIVE_CORE)["figures"]]
    return table(["native code on one core", "residentd", "interpreter", "ratio"], rows)


def native_cpu():
    return figures(NATIVE_CPU)


def library():
    return figures(LIBRARY)


def library_cpu():
    return figures(LIBRARY_CPU)


def small_tasks():
    return figures(SMALL_TASKS)


def graphs_cpu():
    return figures(GRAPHS_CPU)


def graphs_loaded():
    return figures(LOADED_CPU)


def python_cpu():
    return figures(PYTHON_CPU)


def inference_cpu():
    return figures(INFERENCE_CPU)


def graph_prompt():
    return figures(GRAPH_PROMPT_CPU)


def perf_analyzer():
    return figures(PERF_ANALYZER)


def perf_analyzer_cpu():
    return figures(PERF_ANALYZER_CPU)


def graph_soak():
    data = load(GRAPH_SOAK)
    counts = data["counts"]
    names = ["runs: complete", "steps", "small tasks", "activations", "rollbacks", "sessions forked",
             "engines killed", "runs: cancelled", "runs: late"]
    rows = [[name, "{:,}".format(counts[name])] for name in names]
    rows += [["daemon's memory before and after", data["before"] + "; " + data["after"]],
             ["violations", str(data["violations"])]]
    return table(["what", "number"], rows)


def graph_soak_attacks():
    runs = load(GRAPH_SOAK_ATTACKS)["runs"]
    names = ["runs: complete", "steps", "small tasks", "engines killed"]
    rows = [[name, *("{:,}".format(run["counts"][name]) for run in runs)] for name in names]
    rows += [["slowest lone task", *("{:,} ms".format(run["slowest lone task, ms"]) for run in runs)],
             ["daemon's memory before and after", *(run["before"] + "; " + run["after"] for run in runs)],
             ["seconds until then", *("{:.1f}".format(run["seconds until then"]) for run in runs)],
             ["violations", *(str(run["violations"]) for run in runs)]]
    return table(["what", "first", "second"], rows)


def graphs():
    return figures(GRAPHS) if (HERE / GRAPHS).exists() else NOT_MEASURED


def graphs_beside():
    return figures(GRAPHS_BESIDE)


def graph_trace():
    """Where the time of a traced step goes: the operators with the longest time on the path."""
    if not (HERE / GRAPHS).exists():
        return NOT_MEASURED
    rows = []
    for what, trace in load(GRAPHS)["traces"].items():
        for row in trace["operators"][:10]:
            rows.append([
                what, "`{}`".format(row["operator"]), "{} of {}".format(row["path_nodes"], row["nodes"]),
                quantity(row["path_us"], "us"), quantity(row["critical_us"], "us"),
                quantity(row["longest_us"], "us"),
                "{:.0f} %".format(100 * row["wait_us"] / max(row["wait_us"] + row["work_us"], 1e-9))
            ])
    return table(["step", "operator", "nodes on the path", "time on the path", "of all its nodes",
                  "busiest block", "waiting"], rows)


def copy(folder, name):
    """Copies a benchmark's JSON, without single samples and without the machine's folders."""
    data = json.loads((folder / name).read_text())
    if name in (DAEMON, DAEMON_CPU):
        data = without_raw(data)
    keys = {FLUX_CPU: ("name", "iterations", "instr/s", "reference/s", "x_reference"),
            NATIVE_CORE: ("name", "iterations", "instr/s", "interpreter/s", "x_interpreter", "compile_ms")}
    if name in keys:
        data = {"figures": [{key: run[key] for key in keys[name]} for run in data["benchmarks"]]}
    (HERE / name).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def find_figure(name, what):
    found = [f for f in load(name)["figures"] if f["what"] == what]
    if not found:
        sys.exit("update: {} has no figure '{}'".format(name, what))
    return found[0]


def daemon_rows(name):
    data = load(name)
    bench = data["bench"]

    def us(summary, key):
        return quantity(summary[key], "us")

    rows = [
        ["`serve` to ready, median of {}".format(len(data["serve_to_ready_s"]["all"])),
         "{:.3f} s".format(data["serve_to_ready_s"]["median"])],
        ["processor time when idle (front end and engine)",
         "{:.2f} % of a core".format(100 * data["idle_cpu_share_of_a_core"])],
        ["resident memory, front end, idle",
         "{:.1f} MiB".format(data["front_end_mib"]["resident"])],
        ["resident memory, engine, idle", "{:.1f} MiB".format(data["engine_mib"]["resident"])],
    ]
    for key, what in (("lone_run_device", "data in device buffers"),
                      ("lone_run_message", "data in the message")):
        run = bench[key]
        rows.append(["`Run`, one `add` of 1,024, {}: p50, p99".format(what),
                     us(run["residentd"], "p50_us") + ", " + us(run["residentd"], "p99_us")])
        rows.append(["the same call to a bare gRPC echo: p50, p99",
                     us(run["echo"], "p50_us") + ", " + us(run["echo"], "p99_us")])
    if "lone_run_paused" in bench:
        run = bench["lone_run_paused"]
        for side, what in (("residentd", "`Run` as above, data in device buffers, after a pause of 1 "
                            "to 2 s: p50, p99"),
                           ("echo", "the same call to a bare gRPC echo: p50, p99")):
            rows.append([what, us(run[side], "p50_us") + ", " + us(run[side], "p99_us")])
    if "bench_pinned" in data:
        run = data["bench_pinned"]["lone_run_device"]
        for side, what in (("residentd", "`Run` as above, data in device buffers, the daemon and "
                            "the client on 4 processors each: p50, p99"),
                           ("echo", "the same call to a bare gRPC echo: p50, p99")):
            rows.append([what, us(run[side], "p50_us") + ", " + us(run[side], "p99_us")])
    for name, how in (("submit_single", "one by one"), ("submit", "as ranges"),
                      ("submit_large", "as ranges")):
        submit = bench[name]
        rows += [
            ["`Submit`, batches of {:,} adds of {}, {} client, {} batches in flight: {}".format(
                submit["batch"], submit["elements"], submit["clients"], submit["in_flight"], how),
             quantity(submit["tasks_per_second"], "tasks/s")],
            *([["the same messages to a bare gRPC echo",
                quantity(submit["echo_tasks_per_second"], "tasks/s")]]
              if "echo_tasks_per_second" in submit else []),
            ["a batch of these, from sending to its answer: p50, p99",
             "{:.2f} ms, {:.2f} ms".format(submit["batch_latency"]["p50_us"] / 1e3,
                                           submit["batch_latency"]["p99_us"] / 1e3)],
        ]
    flux = bench["flux"]
    rows += [
        ["FLUX through gRPC, one program over {:,} inputs a batch".format(flux["runs_in_batch"]),
         "{}, {}".format(quantity(flux["instructions_per_second"], "instr/s"),
                         quantity(flux["runs_per_second"], "runs/s"))],
    ]
    return rows


def daemon():
    return table(["what", "figure"], daemon_rows(DAEMON))


def daemon_cpu():
    return table(["what", "figure"], daemon_rows(DAEMON_CPU))


def run_p50(side):
    return quantity(load(DAEMON)["bench"]["lone_run_device"][side]["p50_us"], "us")


def decode_step():
    """The same cells as comparison()."""
    # The second one is that of results which were written before the name was changed.
    baselines = ("CUDA graph of the same operators, programmatic launch", "CUDA graph, programmatic launch")
    step, = (f for f in load(GRAPHS)["figures"]
             if f["what"] == "decode step, 160 keys" and f.get("baseline") in baselines)
    return (quantity(step["value"], step["unit"]),
            "CUDA graph that launches the same operators one after the other, with programmatic "
            "dependent launch: " + quantity(step["baseline_value"], step["unit"]),
            "{:.2f}".format(step["ratio"]))


def short():
    submit = load(DAEMON)["bench"]["submit"]
    killed = find_figure(RECOVERY, "gap between answers around a kill, p50")
    rows = [
        ["lone task, ring round trip, p50", *comparison(LONE, "graph of one node")],
        ["sustained small tasks", *comparison(SUSTAINED, "graph of 1,000 independent")],
        ["task graph: a decode step, 1 billion parameters", *decode_step()],
        ["gRPC `Submit`, batches of 1,024 tasks, one client",
         quantity(submit["tasks_per_second"], "tasks/s"),
         "the same messages to a bare gRPC echo: " + quantity(submit["echo_tasks_per_second"], "tasks/s"),
         "{:.2f}".format(submit["tasks_per_second"] / submit["echo_tasks_per_second"])],
        ["the engine is killed: gap between a client's answers, p50",
         quantity(killed["value"], "ms"),
         "without a spare engine: " + quantity(killed["baseline_value"], "ms"),
         "{:.2f}".format(killed["ratio"])],
    ]
    return table(["what", "residentd", "baseline in the same run", "ratio"], rows)


def life():
    sustained = figure(SUSTAINED)[0]["value"]
    single = load(DAEMON)["bench"]["submit_single"]
    submitted = single["tasks_per_second"]
    rows = [
        ["the ring's round trip, measured on the host: lone `add` of 1,024, p50", "6 to 11",
         comparison(LONE)[0]],
        ["the part on the device, from taking the task to its completion", "8 to 10",
         comparison("lone add of 1,024, on the device, p50")[0]],
        ["publishing a task, host side", "6", comparison("host: publish a task")[0]],
        ["consuming a completion, host side", "11", comparison("host: consume a completion")[0]],
        ["a task among many: the ring at its highest rate", "6 to 11",
         "{} ({})".format(quantity(1e9 / sustained, "ns"), quantity(sustained, "tasks/s"))],
        ["a task among many: through gRPC, batches of {} of {} elements, one by one".format(
            single["batch"], single["elements"]), "1 to 13",
         "{} ({})".format(quantity(1e9 / submitted, "ns"), quantity(submitted, "tasks/s"))],
        ["a lone task through gRPC `Run`, p50", "1 to 13", run_p50("residentd")],
        ["the same call to a bare gRPC echo, p50", "", run_p50("echo")],
    ]
    return table(["what", "steps", "cost"], rows)


TABLES = {"kernel": kernel, "blocks": blocks, "daemon": daemon, "daemon_cpu": daemon_cpu,
          "short": short, "life": life, "generation": generation, "recovery": recovery,
          "stops": stops, "stoppable": stoppable,
          "operators": operators, "soak": soak, "flux_cpu": flux_cpu,
          "native": native, "native_cpu": native_cpu,
          "native_core": native_core, "library": library, "library_cpu": library_cpu,
          "small_tasks": small_tasks, "lanes": lanes, "lanes_short": lanes_short,
          "models": models, "onnx_models": onnx_models, "linear": linear, "encoder": encoder,
          "graphs": graphs, "graphs_beside": graphs_beside,
          "graph_trace": graph_trace, "graphs_cpu": graphs_cpu,
          "graphs_loaded": graphs_loaded, "graph_prompt": graph_prompt,
          "python_cpu": python_cpu, "inference_cpu": inference_cpu,
          "perf_analyzer": perf_analyzer, "perf_analyzer_cpu": perf_analyzer_cpu,
          "graph_soak": graph_soak, "graph_soak_attacks": graph_soak_attacks}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        folder = pathlib.Path(sys.argv[1])
        known = (KERNEL, *SMALLER, DAEMON, DAEMON_CPU, FLUX_CPU, RECOVERY, LIBRARY, LIBRARY_CPU,
                 SMALL_TASKS, NATIVE, NATIVE_CPU, NATIVE_CORE, GENERATION, OPERATORS, SOAK, GRAPHS,
                 GRAPHS_BESIDE, GRAPHS_CPU, LOADED_CPU, GRAPH_PROMPT_CPU, GRAPH_SOAK, PYTHON_CPU, INFERENCE_CPU,
                 PERF_ANALYZER, PERF_ANALYZER_CPU)
        found = [name for name in known if (folder / name).exists()]
        if not found:
            sys.exit("update: no benchmark's JSON in " + sys.argv[1])
        for name in found:
            copy(folder, name)
    stale = []
    for document in DOCUMENTS:
        path = ROOT / document
        old = path.read_text()
        new = re.sub(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)",
                     lambda m: m[1] + TABLES[m[2]]() + "\n" + m[3], old, flags=re.DOTALL)
        if new != old:
            stale.append(document)
            if not check:
                path.write_text(new)
    print("out of date: " + ", ".join(stale) if check and stale else
          "updated: " + ", ".join(stale) if stale else "all tables are up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
