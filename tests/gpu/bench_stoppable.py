#!/usr/bin/env python3
"""Times stoppable operators of a daemon on a GPU beside the same operators as the compiler makes them.

  bench_stoppable.py --out=FILE.json [--scale=N]        (tests/gpu/run runs it)

  --scale   divides the sizes, for a trial on a small machine

Needs numpy, grpcio and protobuf. The daemon's device is $RESIDENT_TEST_DEVICES. Each operator is installed
twice, with --isolation=trusted and stoppable, and their tasks take turns, so that both see the same clock. A
figure is the median of the time on the device, which the daemon returns with each result; small cases are
tasks of one block. Exit status 1 if the outputs differ in any bit, never because of speed.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[1] / "python"))
EXAMPLES = pathlib.Path(__file__).absolute().parents[2] / "docs" / "examples"
MAX_RUNS, MIN_RUNS, SECONDS = 200, 11, 1.0  # Of one case, for both together.
LEVELS = ("trusted", "stoppable")
MIB = 1 << 20

# A loop of one multiplication and addition, which is the worst case, and one of eight.
HORNER = """#include "resident/operator.h"
RESIDENT_OPERATOR({name})(resident::Block& block, const resident::Args& args) {{
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const int terms = args.scalar<int>(2);
  block.for_each(block.share(x.size()), [&](resident::i64 i) {{
    float sum = 1;
#pragma unroll {unroll}
    for (int term = 0; term < terms; ++term) sum = sum * x[i] + 0.5f;
    out[i] = sum;
  }});
}}
"""
SIGNATURE = "x: in f32[*S], out: out f32[*S], terms: scalar i32"


def example(name):
    """The options of an install of one of docs/examples, with the notes in its comments."""
    text = (EXAMPLES / (name + ".cc")).read_text()
    notes, key = {}, ""
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        word, separator, value = line[2:].strip().partition(": ")
        if separator and word in ("signature", "split", "summary"):
            key = word
            notes[key] = value
        elif key == "signature":
            notes[key] += " " + line[2:].strip()
    return dict(notes, source=text)


def cases(rd, np, scale):
    """(name, options of install, arguments, shape of the output)."""
    def normal(*shape):
        return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)

    large, rows = 64 * MIB // scale, max(64 * MIB // scale // 4096, 1)
    for name, unroll in (("horner1", 1), ("horner8", 8)):
        source = dict(source=HORNER.format(name=name, unroll=unroll), signature=SIGNATURE, split="out 4096")
        yield name, source, [normal(large)], {"terms": 64}, (large,)
        yield name + " small", source, [normal(1024)], {"terms": 64}, (1024,)
    for size in (large, 1024):
        small = " small" if size == 1024 else ""
        yield "plus" + small, {"expr": "x + y"}, [normal(size), normal(size)], {}, (size,)
        yield "swish" + small, {"expr": "x * sigmoid(x)"}, [normal(size)], {}, (size,)
    for shape in ((rows, 4096), (1, 1024)):
        small = " small" if shape[0] == 1 else ""
        yield "softmax_rows" + small, example("softmax_rows"), [normal(*shape)], {}, shape
        yield ("normalize_rows" + small, example("normalize_rows"),
               [normal(*shape), normal(shape[1]), normal(shape[1])], {}, shape)


def measure(rd, np, name, options, arguments, scalars, shape):
    """The medians of both levels in seconds, and whether all bits are equal."""
    word = name.split()[0].replace(".", "_")
    inputs = [rd.upload(array) for array in arguments]
    runs, outputs = [], []
    for level in LEVELS:
        rd.operators.install(word, isolation=level, label=level, wait="active" if level == LEVELS[0] else "loaded",
                             **options)
        out = rd.empty(shape, "f32")
        outputs.append(out)
        operator = rd.op(word, label=level)
        runs.append(lambda operator=operator, out=out: operator.run(*inputs, out=out, **scalars).device_ns)
    times = ([], [])
    deadline = time.monotonic() + SECONDS
    while len(times[0]) < MIN_RUNS or (len(times[0]) < MAX_RUNS and time.monotonic() < deadline):
        for run, into in zip(runs, times):
            into.append(run())
    trusted, stoppable = (out.numpy().view(np.uint32) for out in outputs)
    rd.operators.remove(word)
    return [statistics.median(each) / 1e9 for each in times], bool((trusted == stoppable).all())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--scale", type=int, default=1)
    options = parser.parse_args()

    import numpy
    import support
    daemon = support.daemons.Daemon()
    figures, wrong = [], []
    try:
        # Tensors are in buffers: shared memory is not needed.
        with support.residentd.connect(daemon.address, shared_memory="off") as rd:
            device = rd.status().devices[0]
            print("device: {}".format(device.name))
            for case in cases(rd, numpy, options.scale):
                (trusted, stoppable), same = measure(rd, numpy, *case)
                figures.append({"what": case[0], "value": stoppable * 1e6, "unit": "us", "baseline": "trusted",
                                "baseline_value": trusted * 1e6, "ratio": stoppable / trusted})
                print("{:24} trusted {:10,.2f} us  stoppable {:10,.2f} us  {:+6.1f} %  {:+6.2f} us{}".format(
                    case[0], trusted * 1e6, stoppable * 1e6, 100 * (stoppable / trusted - 1),
                    1e6 * (stoppable - trusted), "" if same else "  WRONG: other bits"), flush=True)
                if not same:
                    wrong.append(case[0])
    finally:
        daemon.stop()
    if options.out:
        pathlib.Path(options.out).write_text(
            json.dumps({"device": device.name, "figures": figures}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
