#!/usr/bin/python3
"""Installed operators that hang: each is stopped alone, the engine stays, and another client's tasks
are not affected.

RESIDENT_STOP_ROUNDS: tasks of each kind (default 3). Kinds that need warps are of a GPU only.
"""

import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

ROUNDS = int(os.environ.get("RESIDENT_STOP_ROUNDS", "3"))
ON_GPU = os.environ.get("RESIDENT_TEST_ENGINE") == "cuda"
LIMIT_MS = 20
SIGNATURE = "x: in f32[*S], out: out f32[*S]"
# The operator copies x; where x[0] is 1, it hangs first. The examples do not.
SOURCE = """
#include "kernels/sdk/operator.h"
using namespace resident;
RESIDENT_OPERATOR({name})(Block& block, const Args& args) {{
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  volatile float* const memory = out.data();
  (void)memory;
  if (x[0] == 1.0f) {{
    {hang}
  }}
  block.for_each(block.share(x.size()), [&](i64 i) {{ out[i] = x[i]; }});
}}
"""
HANGS = {
    "endless": "while (true) memory[0] = memory[0] + 1.0f;",
    "poll": "while (memory[1] != 7.0f) {}",
    "spends": "for (u32 i = 0;; ++i) for (u32 j = 0; j < 4090; ++j) memory[0] = static_cast<float>(i ^ j);",
}
GPU_HANGS = {
    "barriers": "while (true) block.barrier();",
    "missed_barrier": """
    if (block.thread() < 32) while (memory[1] != 7.0f) {}
    block.barrier();
""",
    "missed_by_lanes": """
    if (block.thread() % 32 == 3) while (memory[1] != 7.0f) {}
    block.barrier();
""",
    "missed_by_lanes_that_returned": """
    if (block.thread() % 2 == 0) return;
    block.barrier();
""",
    "shuffle": """
#if defined(__CUDA_ARCH__)
      if (block.thread() % 32 != 3) memory[2] = __shfl_xor_sync(0xffffffffu, x[0], 1);
      else while (memory[1] != 7.0f) {}
#endif
""",
    "two_sites": """
#if defined(__CUDA_ARCH__)
      if (block.thread() % 2 == 0) memory[2] = __shfl_xor_sync(0xffffffffu, x[0], 1);
      else memory[3] = __shfl_down_sync(0xffffffffu, x[0], 2);
#endif
""",
}
TRAP = """
#if defined(__CUDA_ARCH__)
    __trap();
#endif
"""


class Stops(support.PackageTest):
    def pid(self):
        return self.rd.status().message.devices[0].engine_pid

    def install(self, kind, hang, isolation="", level="stoppable"):
        name = "hang_" + kind
        calm = np.float32([0, 2, 3, 4])
        self.rd.operators.install(
            name, source=SOURCE.format(name=name, hang=hang), signature=SIGNATURE, wait="active",
            examples=[residentd.Example(calm, calm)], task_time_ms=LIMIT_MS, isolation=isolation)
        # Without a request: it is the default.
        self.assertEqual(list(self.rd.operators.describe(name).isolation.values()), [level])
        return self.rd.op(name)

    def test_each_hang_ends_alone(self):
        kinds = dict(HANGS, **(GPU_HANGS if ON_GPU else {}))
        operators = {kind: self.install(kind, hang) for kind, hang in kinds.items()}
        pid = self.pid()
        stop = threading.Event()
        wrong = []
        others = [0]

        def add():
            with self.connect() as other:
                x = np.arange(1000, dtype=np.float32)
                double = other.op("add")
                while not stop.is_set():
                    if not np.array_equal(double(x, x), 2 * x):
                        wrong.append("a wrong sum")
                    others[0] += 1

        thread = threading.Thread(target=add)
        thread.start()
        try:
            calm = np.float32([0, 5, 6, 7])
            hangs = np.float32([1, 0, 0, 0])
            for kind, operator in operators.items():
                for _ in range(ROUNDS):
                    with self.assertRaises(residentd.Error, msg=kind) as caught:
                        operator(hangs)
                    self.assertEqual(caught.exception.code, "ABORTED", kind)
                    self.assertRegex(str(caught.exception), "ran longer than|waited at different",
                                     kind)
                np.testing.assert_array_equal(operator(calm), calm, kind)
                self.assertEqual(self.pid(), pid, kind)
                print("{}: {} tasks stopped".format(kind, ROUNDS), flush=True)
        finally:
            stop.set()
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(others[0], 0)
        self.assertEqual(self.pid(), pid)

    @support.unittest.skipUnless(ON_GPU, "on a CPU every version can be stopped")
    def test_an_operator_that_does_not_pass_is_trusted(self):
        calm = np.float32([0, 2])
        with self.assertRaises(residentd.InvalidArgument) as caught:
            self.install("trap", TRAP, isolation="stoppable")
        self.assertIn("rule C1", str(caught.exception))
        operator = self.install("trap", TRAP, level="trusted")
        np.testing.assert_array_equal(operator(calm), calm)

    def test_a_deadline_ends_a_hang(self):
        operator = self.install("late", HANGS["endless"])
        pid = self.pid()
        with self.assertRaises(residentd.DeadlineExceeded):
            operator(np.float32([1, 0]), timeout=0.01)
        np.testing.assert_array_equal(operator(np.float32([2, 3])), np.float32([2, 3]))
        self.assertEqual(self.pid(), pid)


if __name__ == "__main__":
    support.unittest_main.main()
