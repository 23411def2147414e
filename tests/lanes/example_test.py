#!/usr/bin/python3
"""A C compiler builds docs/examples/lane_add.c, as C99 and as C++, with what a bundle installs, and the program
adds two vectors through a lane of a real daemon, started by `residentctl lane`. That command's errors. The figures
of `residentctl bench --lane` and of the demo."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tests/cli")
import daemon as daemons  # noqa: E402

LIBRARY = pathlib.Path("client/lane/libresidentd_lane.so").resolve()
INSTALL = pathlib.Path("library/install_headers.sh").resolve()
PAGE = pathlib.Path("docs/local_lane.md").resolve()
FLAGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")
TENSORS = ("x:1024=", "y:1024=", "out:1024=", "alpha=2")
EXPECTED = re.compile(r"out\[0\] = 20, out\[1023\] = 1043\nrefused: .*Fix: .*\n")


class LaneTest(daemons.CommandTest):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lane-", dir="/tmp"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.prefix = cls.folder / "prefix"
        (cls.prefix / "lib").mkdir(parents=True)
        shutil.copy(LIBRARY, cls.prefix / "lib")
        subprocess.run([INSTALL, cls.prefix], check=True)
        cls.source = cls.prefix / "docs" / "examples" / "lane_add.c"
        cls.daemon = daemons.Daemon("--local_address={}/local".format(cls.folder))
        cls.addClassCleanup(cls.daemon.stop)

    def compile(self, *compiler):
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "residentd_lane"], check=True,
                               capture_output=True, text=True,
                               env=dict(os.environ, PKG_CONFIG_PATH=str(self.prefix / "lib" / "pkgconfig"))).stdout
        program = self.folder / "lane_add"
        subprocess.run([*compiler, *FLAGS, self.source, "-o", program, *flags.split()], check=True)
        return program

    def lane(self, *words):
        return self.daemon.ctl("lane", *words)

    # The server's address must not come behind the program's own arguments.
    def run_program(self, *words):
        return daemons.ctl("--server=" + self.daemon.address, "lane", "add", *TENSORS, "--", *words)

    def test_c99(self):
        result = self.check(self.run_program(self.compile("cc", "-std=c99")), 0)
        self.assertRegex(result.out, EXPECTED)

    def test_cpp(self):
        result = self.check(self.run_program(self.compile("c++", "-x", "c++", "-std=c++11")), 0)
        self.assertRegex(result.out, EXPECTED)

    def test_the_page_has_the_same_example(self):
        page = re.search(r"```c\n(.*?)```", PAGE.read_text(), re.DOTALL)
        self.assertEqual(page.group(1), self.source.read_text())

    def test_the_library_exports_its_header_and_needs_only_libc(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
        exported = set(re.findall(r" T (\w+)$", symbols, re.MULTILINE))
        header = (self.prefix / "include" / "residentd_lane.h").read_text()
        declared = set(re.findall(r"^(?:const )?\w+\*? (residentd_lane_\w+)\(", header, re.MULTILINE))
        self.assertEqual(exported, declared)
        needed = subprocess.run(["objdump", "-p", LIBRARY], check=True, capture_output=True, text=True).stdout
        self.assertLessEqual(set(re.findall(r"NEEDED +(\S+)", needed)), {"libc.so.6", "ld-linux-x86-64.so.2"})

    def test_the_exit_status_is_that_of_the_program(self):
        self.check(self.run_program("sh", "-c", "exit 7"), 7)
        self.check(self.run_program("sh", "-c", "kill -KILL $$"), 128 + 9)

    def test_the_program_finds_the_lane_in_its_environment(self):
        result = self.check(self.run_program("env"), 0)
        self.assertIn("RESIDENTD_LANE_SOCKET={}/local\n".format(self.folder), result.out)
        self.assertRegex(result.out, r"RESIDENTD_LANE_TOKEN=[0-9a-f]{32}\n")
        self.assertRegex(result.out, r"RESIDENTD_LANE_MEMORY=\d+:4096,\d+:4096,\d+:4096\n")

    def test_initial_values(self):
        program = "import os; m = os.environ['RESIDENTD_LANE_MEMORY'].split(',')[0].split(':'); print(os.pread(int(m[0]), int(m[1]), 0))"
        result = daemons.ctl("--server=" + self.daemon.address, "lane", "add", "x=1,2", "y=3,4", "--", "/usr/bin/python3", "-c", program)
        self.check(result, 0)
        self.assertEqual(result.out, "b'\\x00\\x00\\x80?\\x00\\x00\\x00@'\n")

    def test_wrong_command_lines(self):
        for words, text in (
                (("add", "x:4=", "y:4="), "no program"),
                (("add", "x:4=", "z:4=", "true"), "no parameter 'z'"),
                (("add", "x:4=", "x:4=", "true"), "given twice"),
                (("add", "x:4=", "true"), "shape of 'y' is not known"),
                (("add", "x:4=1,2", "y:4=", "true"), "8 bytes of values"),
                (("add", "x:4=", "y:4=", "alpha=two", "true"), "invalid value 'two'"),
                (("add", "x=buffer:1", "y:4=", "true"), "cannot map"),
                (("add", "x:4=", "y:4=", "/nonexistent/program"), "cannot start /nonexistent/program")):
            result = self.check(self.lane(*words), daemons.USAGE)
            self.assertIn(text, result.err)

    def test_a_daemon_without_a_local_socket_says_so(self):
        other = daemons.Daemon()
        self.addCleanup(other.stop)
        for words in (("lane", "add", "x:4=", "y:4=", "true"), ("bench", "--lane", "--quick")):
            result = self.check(other.ctl(*words), daemons.REFUSED)
            self.assertIn("--local_address", result.err)
            self.assertEqual(result.out, "")

    def test_bench_and_demo_measure_a_lane(self):
        result = self.check(self.daemon.ctl("bench", "--lane", "--quick", "--json"), 0).json
        self.assertEqual(result["wrong"], 0)
        self.assertGreater(result["lane"]["lone"]["p50_us"], 0)
        self.assertGreater(result["lane"]["tasks_per_second"], 0)
        self.assertIn("Through a local lane: ", self.check(self.daemon.ctl("demo"), 0).out)


if __name__ == "__main__":
    unittest.main()
