#!/usr/bin/env python3
"""`residentctl run` against a real daemon.

The last line is `N passed, N failed`.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, USAGE, REFUSED, NOT_WRITTEN  # noqa: E402


class Run(daemons.DaemonTest):
    """Tasks with inline data."""

    def test_run_fills_in_omitted_arguments(self):
        out = self.ctl("run", "add", "x=1,2,3", "y=10,20,30").out
        self.assertRegex(out, r"out +f32 +3 +11 22 33")
        self.assertRegex(out, r"add version 1 on device \d+")

    def test_run_with_a_scalar_and_json(self):
        result = self.ctl("run", "add", "y=10,20,30", "alpha=2", "x=1,2,3", "--json").json
        self.assertEqual(result["operator"], "add")
        self.assertEqual(result["version"], 1)
        self.assertEqual(result["outputs"]["out"],
                         {"dtype": "f32", "shape": [3], "values": [21, 42, 63]})

    def test_run_keeps_nan_and_infinity(self):
        values = self.ctl("run", "div", "x=1,-1,0", "y=0,0,0",
                          "--json").json["outputs"]["out"]["values"]
        self.assertEqual(values, ["Infinity", "-Infinity", "NaN"])
        self.assertRegex(self.ctl("run", "div", "x=1,-1,0", "y=0,0,0").out, r"inf -inf nan")

    def test_run_accepts_shapes_and_repetitions(self):
        result = self.ctl("run", "sum_rows", "x:2x3=1,2,3,4,5,6", "--json").json
        self.assertEqual(result["outputs"]["out"]["values"], [6, 15])
        self.assertEqual(self.ctl("run", "fill", "out:4=", "value=7",
                                  "--json").json["outputs"]["out"]["values"], [7, 7, 7, 7])
        long = self.ctl("run", "scale", "x=1*100", "s=3").out
        self.assertIn("... 84 more", long)
        self.assertNotIn("more", self.ctl("run", "scale", "x=1*100", "s=3", "--all").out)

    def test_shapes_and_element_types_of_outputs_follow_from_the_inputs(self):
        for words, expected in (
            (("add", "x=1,2,3", "y:2x1=10,20"),
             {"dtype": "f32", "shape": [2, 3], "values": [11, 12, 13, 21, 22, 23]}),
            (("gemv", "x:2x1=1,2", "w:3x1=1,10,100", "bias=0,0,0"),
             {"dtype": "f32", "shape": [2, 3], "values": [1, 10, 100, 2, 20, 200]}),
            (("add", "x:f16=1,2", "y:f16=3,4"), {"dtype": "f16", "shape": [2], "values": [4, 6]}),
            (("add", "x:i32=1,2", "y:f16=3,4"), {"dtype": "f16", "shape": [2], "values": [4, 6]}),
            (("add", "x:f16=1,2", "y:f16=3,4", "out:f32="), {"dtype": "f32", "shape": [2], "values": [4, 6]}),
            (("argmax", "x:2x3=1,5,3,9,1,1", "axes=2", "out:2="),
             {"dtype": "i64", "shape": [2], "values": [1, 0]}),
        ):
            with self.subTest(words=words):
                out, = self.ctl("run", *words, "--json").json["outputs"].values()
                self.assertEqual(out, expected)
        # The shape of a buffer is not known to the command.
        buffer = self.ctl("buffers", "alloc", "2x3", "--name=rows", "--json").json["id"]
        try:
            out = self.ctl("run", "fill", "out=buffer:{}".format(buffer), "value=2", "--json")
            out = self.ctl("run", "sum_rows", "x=buffer:{}".format(buffer), "--json").json["outputs"]["out"]
            self.assertEqual(out, {"dtype": "f32", "shape": [2], "values": [6, 6]})
        finally:
            self.ctl("buffers", "free", str(buffer))

    def test_run_reads_and_writes_files(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "x.f32"), pathlib.Path(folder, "out.f32")
            source.write_bytes(struct.pack("<4f", -1, 0, 1, 2))
            out = self.ctl("run", "relu", "x=@{}".format(source), "out=@{}".format(target)).out
            self.assertIn("written to", out)
            self.assertEqual(struct.unpack("<4f", target.read_bytes()), (0, 0, 1, 2))

    def test_run_errors_are_reported_before_anything_is_sent(self):
        for words, expected in (
            (("add", "x=1,2"), "add needs y"),
            (("add", "x=1", "y=1", "z=1"), "no parameter 'z'"),
            (("add", "x=1", "x=2", "y=1"), "given twice"),
            (("add", "x=1,b", "y=1,2"), "'b' is not a valid f32"),
            (("add", "x:3=1,2", "y=1,2"), "x has 2 elements"),
            (("add", "x=1", "y=1", "out=5"), "is an output"),
            (("add", "x=1", "y=1", "alpha=two"), "invalid value 'two' for alpha"),
            (("fill", "value=1"), "the shape of out is not known"),
            (("relu", "x=@/nonexistent"), "cannot read /nonexistent"),
        ):
            with self.subTest(words=words):
                self.assertIn(expected, self.ctl("run", *words, code=USAGE).err)

    def completed_tasks(self):
        return self.ctl("status", "--json").json["devices"][0]["completed_tasks"]

    def test_a_file_that_cannot_be_written_is_reported_before_the_work(self):
        before = self.completed_tasks()
        result = self.ctl("run", "add", "x=1", "y=2", "out=@/nonexistent/x", code=USAGE)
        self.assertIn("cannot write /nonexistent/x", result.err)
        self.assertIn("Fix:", result.err)
        self.assertEqual(self.completed_tasks(), before)

    def test_results_that_could_not_be_written_are_printed_with_a_separate_exit_status(self):
        # A full disk is only detected when it is written to.
        result = self.ctl("run", "add", "x=1,2", "y=2,2", "out=@/dev/full", code=NOT_WRITTEN)
        self.assertRegex(result.out, r"out +f32 +2 +3 4")
        self.assertIn("cannot write /dev/full", result.err)
        result = self.ctl("run", "add", "x=1,2", "y=2,2", "out=@/dev/full", "--json",
                          code=NOT_WRITTEN)
        self.assertEqual(result.json["outputs"]["out"]["values"], [3, 4])
        self.assertIn("/dev/full", result.error["message"])

    def test_a_stdout_that_is_full(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(daemons.RESIDENTCTL), "ops", "--server", self.daemon.address],
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, NOT_WRITTEN, done)
        self.assertIn("cannot write to stdout", done.stderr)

    def test_run_refused_by_the_server(self):
        result = self.ctl("run", "add", "x=1,2,3", "y=1,2", code=REFUSED)
        self.assertIn("Fix:", result.err)
        self.ctl("run", "add", "x=buffer:999999", "y=1", "out:1=", code=REFUSED)
        self.ctl("run", "add", "x=1", "y=1", "--op_version=77", code=REFUSED)
        several = self.ctl("run", "add", "x=1", "y=1", "--op_version=1", "--op_label=a", code=REFUSED)
        self.assertIn("give only one of --op_version, --op_hash and --op_label", several.err)
        self.ctl("run", "add", "x=1", "y=1", "--device=77", code=REFUSED)
        # The next task is served.
        self.ctl("run", "add", "x=1", "y=1")


class RunWithSettings(unittest.TestCase):
    """Daemons with other settings."""

    def test_a_message_over_the_limit_names_its_flag(self):
        daemon = daemons.Daemon("--max_message_mib=1")
        try:
            result = daemon.ctl("run", "add", "x=1*300000", "y=1*300000")
            self.assertEqual(result.code, REFUSED, result)
            self.assertIn("--max_message_mib", result.err)
            self.assertNotIn("see what is in use", result.err)
            self.assertEqual(daemon.ctl("run", "add", "x=1", "y=1").code, OK)
        finally:
            daemon.stop()

    def test_run_in_place(self):
        daemon = daemons.Daemon("--test_operators")
        try:
            done = daemon.ctl("run", "test.count", "out=41,5", "--json")
            self.assertEqual(done.code, OK, done)
            self.assertEqual(done.json["outputs"]["out"]["values"], [42, 5])
            # An error of the daemon is not a usage error: something was sent.
            refused = daemon.ctl("run", "test.count", "out:1x1x1x1x1x1x1x1x1=1", "--json")
            self.assertEqual(refused.code, REFUSED, refused)
            self.assertEqual(refused.error["code"], "INVALID_ARGUMENT")
            wrong = daemon.ctl("run", "test.count", "out=1,x")
            self.assertEqual(wrong.code, USAGE, wrong)
        finally:
            daemon.stop()


if __name__ == "__main__":
    unittest_main.main()
