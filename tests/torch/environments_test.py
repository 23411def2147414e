#!/usr/bin/env python3
"""deploy/examples/environments.py in small: its ways choose the same actions."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import torch  # noqa: E402
import torch_support  # noqa: E402
from torch_support import support, unittest_main  # noqa: E402

PROGRAM = pathlib.Path(__file__).absolute().parent.parent.parent / "deploy" / "examples" / "environments.py"
TIMEOUT_S = 300


class EnvironmentsTest(torch_support.TorchTest):

    def run_program(self, *words):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
            [str(support.package_path()), os.environ.get("PYTHONPATH", "")]))
        return subprocess.run([sys.executable, str(PROGRAM), "--workers=2", "--steps=40", *words], capture_output=True,
                              text=True, env=environment, timeout=TIMEOUT_S)

    def test_every_way_chooses_the_same_actions(self):
        done = self.run_program("--address=" + self.daemon.address, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        wanted = {"eager", "graphs", "lanes"} if torch.cuda.is_available() else {"eager", "lanes"}
        self.assertLessEqual(wanted, {row["way"] for row in rows})
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
            self.assertGreater(row["steps_per_s"], 0)

    def test_it_starts_a_daemon_of_its_own(self):
        devices = os.environ.get("RESIDENT_TEST_DEVICES", "cpu")
        done = self.run_program("--daemon=" + str(support.daemons.RESIDENTD), "--devices=" + devices, "--ways=lanes")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^lanes +step p50 .* 0 wrong actions\n$")

    def test_wrong_options_are_refused(self):
        for words, text in ((("--ways=fast",), "there is no way 'fast'. Fix: use eager"), ((), "lanes need a daemon. Fix: pass"),
                            (("--workers=0", "--ways=eager"), "at least 1")):
            done = self.run_program(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest_main.main()
