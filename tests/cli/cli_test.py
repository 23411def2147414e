#!/usr/bin/env python3
"""residentctl against a real daemon: what it prints, its JSON, its exit status, its hints.

The last line is `N passed, N failed`.
"""

import http.client
import json
import math
import os
import pathlib
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import daemon as daemons  # noqa: E402

VECTORS = pathlib.Path(os.environ.get("FLUX_VECTORS") or "tests/flux/vectors.jsonl").resolve()

OK, FAILED, USAGE, UNREACHABLE, REFUSED, NOT_WRITTEN = range(6)

SQUARES = """        MOV   R1, R0
        MOVI  R0, 0
next:   MUL   R2, R1, R1
        ADD   R0, R0, R2
        LOOP  R1, next
        HALT
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class WithoutDaemon(unittest.TestCase):
    """What needs no server, and what is said when there is none."""

    def check(self, result, code):
        self.assertEqual(result.code, code, result)
        return result

    def ctl(self, *words, **options):
        return daemons.ctl(*words, server=None, **options)

    def test_help_lists_commands_and_exit_codes(self):
        out = self.check(self.ctl("help"), OK).out
        for word in ("status", "ops", "buffers", "run", "flux", "bench", "top", "admin", "version",
                     "health", "--server", "--json", "--timeout", "no server answered",
                     "could not be written"):
            self.assertIn(word, out)

    def test_state_check_and_repair(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "journal"
            self.check(self.ctl("state", "check", folder), REFUSED)  # No state folder.
            head = b"RSDJRNL1" + struct.pack("<I", 1)
            good = head + struct.pack("<I", crc32c(head))
            path.write_bytes(good)
            out = self.check(self.ctl("state", "check", folder), OK).out
            self.assertIn("journal: 16 bytes, 0 good records", out)
            self.assertIn("nothing is wrong", out)

            # A whole record that is no record of changes, behind one that is damaged.
            record = struct.pack("<III", 1, 1, crc32c(b"x"))
            record += struct.pack("<I", crc32c(record)) + b"x"
            path.write_bytes(good + b"?" * 40 + record)
            result = self.check(self.ctl("state", "check", folder), FAILED)
            self.assertIn("offset 16", result.out)
            self.assertIn(f"residentctl state repair {folder}", result.out)
            found = json.loads(self.check(self.ctl("state", "check", folder, "--json"), FAILED).out)
            self.assertFalse(found["starts"])

            out = self.check(self.ctl("state", "repair", folder), OK).out
            self.assertIn("kept the damaged journal as", out)
            # Nothing of it was good: a new journal.
            self.assertTrue(path.read_bytes().startswith(good))
            self.assertNotIn(record, path.read_bytes())
            self.check(self.ctl("state", "check", folder), OK)
        self.check(self.ctl("state"), USAGE)
        self.check(self.ctl("state", "shake", "x"), USAGE)
        self.check(self.ctl("state", "check"), USAGE)

    def test_help_of_each_command_names_it(self):
        for command in self.ctl("help", "--json").json["commands"]:
            name = command["name"]
            out = self.check(self.ctl("help", name), OK).out
            self.assertIn("Usage: residentctl " + name, out)
            for flag in command["flags"]:
                self.assertIn("--" + flag["name"], out)
            self.assertEqual(self.check(self.ctl(name, "--help"), OK).out, out)
            self.assertEqual(self.check(self.ctl("help", name, "--json"), OK).json["name"], name)

    def test_usage_errors_end_with_two_and_a_hint(self):
        for words, expected in (
            ((), "no command"),
            (("statsu",), "did you mean status?"),
            (("status", "--quick"), "has no flag --quick"),
            (("status", "--nonsense"), "unknown flag --nonsense"),
            (("status", "word"), "takes no words"),
            (("status", "--timeout=0s"), "--timeout"),
            (("health", "a", "b"), "at most one service"),
            (("run",), "run needs an operator"),
            (("run", "add", "x"), "is no argument"),
            (("run", "add", "x:2y=1"), "neither an element type nor a shape"),
            (("flux",), "flux needs an action"),
            (("flux", "fly", "x"), "flux cannot 'fly'"),
            (("flux", "asm"), "takes one FILE"),
            (("flux", "asm", "/nonexistent.flux"), "cannot read /nonexistent.flux"),
            (("buffers", "eat"), "buffers cannot 'eat'"),
            (("buffers", "free"), "wrong number of words"),
            (("buffers", "free", "one"), "'one' is no buffer"),
            (("buffers", "alloc", "2by3"), "is no shape"),
            (("buffers", "download", "1", "/nonexistent/x"), "cannot write /nonexistent/x"),
            (("buffers", "download", "1", "/"), "it is a folder"),
            (("ops", "eat", "it"), "ops cannot 'eat'"),
            (("ops", "list", "all"), "takes no words"),
            (("ops", "install"), "needs a NAME"),
            (("ops", "install", "swish"), "takes source files, --expr"),
            (("ops", "install", "swish", "a.cc", "--expr=x"), "takes source files, --expr"),
            (("ops", "install", "swish", "/nonexistent.cc"), "cannot read /nonexistent.cc"),
            (("ops", "install", "swish", "--expr=x", "--wait=never"), "--wait cannot be 'never'"),
            (("ops", "activate"), "takes one NAME"),
            (("ops", "activate", "swish", "newest"), "'newest' is no version"),
            (("ops", "activate", "swish", "--on_regression=cry"), "--on_regression"),
            (("ops", "activate", "swish", "--on_regression=rollback"), "warn or roll_back"),
            (("ops", "activate", "swish", "--max_error_rate=5"), "0% to 100%, or 0 to 1"),
            (("ops", "activate", "swish", "--max_latency_ratio=nan"), "--max_latency_ratio"),
            (("ops", "activate", "swish", "--max_latency_ratio=inf"), "--max_latency_ratio"),
            (("ops", "activate", "swish", "--max_error_rate=nan"), "0% to 100%, or 0 to 1"),
            (("ops", "promote", "swish", "--shadow=nan"), "a percentage is 0% to 100%"),
            (("ops", "rollback", "swish", "2"), "takes one NAME"),
            (("ops", "promote", "swish", "--shadow=120%"), "a percentage is 0% to 100%"),
            (("ops", "watch", "a", "b"), "at most one NAME"),
            (("flux", "run", "x", "--operator=y"), "in place of a FILE"),
            (("admin",), "admin needs an action"),
            (("admin", "park", "gpu"), "'gpu' is no device"),
            (("admin", "drain", "now"), "takes no words"),
            (("admin", "drain", "--drain_timeout=-1s"), "--drain_timeout"),
            (("admin", "drain", "--drain_timeout=inf"), "--drain_timeout"),
            (("top", "--interval=1ms"), "--interval"),
            (("top", "--interval=inf"), "--interval"),
            (("bench", "--batch=0"), "more than zero"),
            (("bench", "--seconds=nan"), "--seconds"),
            (("bench", "--seconds=inf"), "--seconds"),
            (("bench", "--seconds=-1"), "--seconds"),
            (("bench", "--out=/nonexistent/x"), "cannot write /nonexistent/x"),
            (("demo", "--out=/nonexistent/x"), "cannot write /nonexistent/x"),
            (("help", "nothing"), "there is no command"),
        ):
            with self.subTest(words=words):
                result = self.check(self.ctl(*words), USAGE)
                self.assertIn(expected, result.err)
                self.assertEqual(result.out, "")
                as_json = self.check(self.ctl(*words, "--json"), USAGE)
                self.assertIn("message", as_json.error)

    def test_no_server_is_three_and_says_how_to_start_one(self):
        address = "127.0.0.1:{}".format(free_port())
        for words in (("status",), ("health",), ("ops",), ("buffers",),
                      ("run", "add", "x=1", "y=1"),
                      ("bench", "--quick"), ("top", "--once"), ("admin", "park", "0"), ("demo",)):
            with self.subTest(words=words):
                result = self.check(daemons.ctl(*words, server=address), UNREACHABLE)
                self.assertIn("Connection refused", result.err)
                self.assertIn("hint: is residentd serving on " + address, result.err)
                self.assertIn("residentd serve", result.err)
        error = self.check(daemons.ctl("status", "--json", server=address), UNREACHABLE).error
        self.assertEqual(error["code"], "UNAVAILABLE")
        self.assertIn("residentd serve", error["hint"])

    def test_the_environment_names_the_server(self):
        address = "127.0.0.1:{}".format(free_port())
        result = self.check(self.ctl("status", env={"RESIDENTD_SERVER": address}), UNREACHABLE)
        self.assertIn(address, result.err)

    def test_version_does_not_need_a_server(self):
        address = "127.0.0.1:{}".format(free_port())
        result = self.check(daemons.ctl("version", server=address), OK)
        self.assertRegex(result.out, r"residentctl \d+\.\d+\.\d+")
        self.assertIn("not reached", result.out)
        self.assertIsNone(daemons.ctl("version", "--json", server=address).json["residentd"])

    def test_a_server_that_never_answers_ends_with_the_timeout(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = "127.0.0.1:{}".format(silent.getsockname()[1])
            result = daemons.ctl("status", "--timeout=300ms", server=address)
            self.assertIn(result.code, (UNREACHABLE, REFUSED), result)
            self.assertIn("hint:", result.err)

    def test_assembly_and_back_is_the_same(self):
        code = self.check(self.ctl("flux", "asm", "-", stdin=SQUARES), OK).out.strip()
        self.assertRegex(code, r"^([0-9a-f]{2})+$")
        text = self.check(self.ctl("flux", "disasm", "-", stdin=code), OK).out
        self.assertIn("LOOP", text)
        self.assertEqual(self.ctl("flux", "asm", "-", stdin=text).out.strip(), code)
        self.assertEqual(self.ctl("flux", "asm", "-", "--json", stdin=SQUARES).json,
                         {"bytecode": code, "bytes": len(code) // 2})
        self.assertIn("LOOP", self.ctl("flux", "disasm", "-", "--json", stdin=code).json["assembly"])

    def test_raw_bytecode_goes_through_files(self):
        with tempfile.TemporaryDirectory() as folder:
            raw = pathlib.Path(folder, "squares.bin")
            result = self.check(self.ctl("flux", "asm", "-", "--out", raw, stdin=SQUARES), OK)
            self.assertEqual(result.out, "")
            code = self.ctl("flux", "asm", "-", stdin=SQUARES).out.strip()
            self.assertEqual(raw.read_bytes().hex(), code)
            self.assertEqual(os.listdir(folder), ["squares.bin"])
            self.assertEqual(self.check(self.ctl("flux", "disasm", raw), OK).out,
                             self.ctl("flux", "disasm", "-", stdin=code).out)

    def test_a_bad_program_is_a_usage_error_with_its_place(self):
        result = self.check(self.ctl("flux", "asm", "-", stdin="MOVI R0, 1\nMOVI R16, 2\n"), USAGE)
        self.assertIn("line 2", result.err)
        self.assertIn("R16", result.err)

    def test_bad_vectors_are_a_usage_error_with_their_line(self):
        result = self.check(self.ctl("flux", "check", "-", stdin='{"name": "x"}\n'), USAGE)
        self.assertIn("line 1", result.err)


class WithDaemon(unittest.TestCase):
    """One daemon for all; no test here stops or parks it for good."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = daemons.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def ctl(self, *words, code=OK, **options):
        result = self.daemon.ctl(*words, **options)
        self.assertEqual(result.code, code, result)
        return result

    # --- status, ops, version, top ---

    def test_status(self):
        out = self.ctl("status").out
        self.assertIn(self.daemon.address, out)
        self.assertIn("DEVICE", out)
        self.assertRegex(out, r"metrics +http://127\.0\.0\.1:\d+/metrics")
        status = self.ctl("status", "--json").json
        self.assertEqual(status["pid"], self.daemon.process.pid)
        self.assertFalse(status["draining"])
        self.assertGreaterEqual(len(status["devices"]), 1)
        device = status["devices"][0]
        self.assertIn(device["state"], ("resident", "idle_parked"))
        self.assertIsInstance(device["completed_tasks"], int)
        self.assertGreater(device["ring"]["slots"], 0)

    def test_health(self):
        self.assertEqual(self.ctl("health").out, "SERVING\n")
        self.assertEqual(self.ctl("health", "--json").json, {"service": "", "status": "SERVING"})
        self.assertEqual(self.ctl("health", "resident.v1.Executor").out, "SERVING\n")
        result = self.ctl("health", "resident.v1.Nothing", "--json", code=REFUSED)
        self.assertEqual(result.error["code"], "NOT_FOUND")
        self.assertIn("resident.v1.Executor", result.error["message"])

    def test_the_metrics_address_of_status_answers(self):
        address = self.ctl("status", "--json").json["metrics_address"]
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertIn(b"resident", response.read())
        connection.close()

    def test_ops(self):
        out = self.ctl("ops").out
        for name in ("add", "copy", "sum_rows", "silu"):
            self.assertRegex(out, r"(?m)^{} ".format(name))
        names = [op["name"] for op in self.ctl("ops", "--json").json["operators"]]
        self.assertIn("scale", names)

    def test_ops_of_one_operator(self):
        out = self.ctl("ops", "add").out
        self.assertIn("out = x + alpha * y", out)
        self.assertRegex(out, r"alpha +scalar +f32")
        op = self.ctl("ops", "add", "--json").json
        self.assertEqual([p["name"] for p in op["parameters"]], ["x", "y", "out", "alpha"])
        self.assertEqual([p["kind"] for p in op["parameters"]],
                         ["input", "input", "output", "scalar"])

    def test_an_unknown_operator_is_refused_by_name(self):
        result = self.ctl("ops", "ad", code=REFUSED)
        self.assertIn("ad", result.err)
        self.assertEqual(self.ctl("ops", "ad", "--json", code=REFUSED).error["code"], "NOT_FOUND")
        self.ctl("run", "ad", "x=1", code=REFUSED)

    def test_version_of_both(self):
        versions = self.ctl("version", "--json").json
        self.assertRegex(versions["residentctl"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(versions["residentd"], versions["residentctl"])  # Of one build.
        self.assertIn("residentd   " + versions["residentd"], self.ctl("version").out)

    def test_top_once(self):
        out = self.ctl("top", "--once", "--interval=50ms").out
        self.assertIn("TASKS", out)
        self.assertRegex(out, r"\d/s")
        snapshot = json.loads(self.ctl("top", "--once", "--interval=50ms", "--json").out)
        self.assertGreater(snapshot["interval_s"], 0.04)
        self.assertEqual(len(snapshot["rates"]), len(snapshot["status"]["devices"]))

    def test_top_streams_lines_until_it_is_ended(self):
        top = subprocess.Popen(
            [str(daemons.RESIDENTCTL), "top", "--json", "--interval=20ms",
             "--server=" + self.daemon.address], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(3):
                self.assertIn("rates", json.loads(top.stdout.readline()))
        finally:
            top.send_signal(signal.SIGINT)
            top.communicate(timeout=30)

    def on_a_terminal(self, words, stream, until=None):
        """What residentctl writes to `stream` when that is a terminal; ends it once it has
        written what `until` matches, else waits for its end."""
        terminal, its = pty.openpty()
        other = "stderr" if stream == "stdout" else "stdout"
        process = subprocess.Popen(
            [str(daemons.RESIDENTCTL), *words, "--server=" + self.daemon.address],
            **{stream: its, other: subprocess.DEVNULL})
        os.close(its)
        said = b""
        try:
            while until is None or not re.search(until, said):
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # The other end was closed.
                    break
                if not piece:
                    break
                said += piece
        finally:
            if until is not None:
                process.send_signal(signal.SIGINT)
            process.wait(60)
            os.close(terminal)
        return said

    def test_top_redraws_on_a_terminal(self):
        clear = b"\x1b[H\x1b[2J"
        said = self.on_a_terminal(["top", "--interval=50ms"], "stdout",
                                  until=rb"(?s)Ctrl-C ends.*\x1b\[H\x1b\[2J.*Ctrl-C ends")
        self.assertTrue(said.startswith(clear), said)
        self.assertGreaterEqual(said.count(clear), 2, said)
        self.assertIn(b"TASKS", said.split(clear)[2])

    def test_a_progress_bar_is_drawn_on_a_terminal_and_erased(self):
        said = self.on_a_terminal(["bench", "--seconds=0.8"], "stderr")
        self.assertRegex(said, rb"lone Run, data on the device  \[[#.]{40}\] +\d+%")
        self.assertTrue(said.endswith(b"\r\x1b[K"), said[-200:])

    # --- run ---

    def test_run_fills_in_what_is_left_out(self):
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

    def test_run_takes_shapes_and_repetitions(self):
        result = self.ctl("run", "sum_rows", "x:2x3=1,2,3,4,5,6", "--json").json
        self.assertEqual(result["outputs"]["out"]["values"], [6, 15])
        self.assertEqual(self.ctl("run", "fill", "out:4=", "value=7",
                                  "--json").json["outputs"]["out"]["values"], [7, 7, 7, 7])
        long = self.ctl("run", "scale", "x=1*100", "s=3").out
        self.assertIn("... 84 more", long)
        self.assertNotIn("more", self.ctl("run", "scale", "x=1*100", "s=3", "--all").out)

    def test_run_reads_and_writes_files(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "x.f32"), pathlib.Path(folder, "out.f32")
            source.write_bytes(struct.pack("<4f", -1, 0, 1, 2))
            out = self.ctl("run", "relu", "x=@{}".format(source), "out=@{}".format(target)).out
            self.assertIn("written to", out)
            self.assertEqual(struct.unpack("<4f", target.read_bytes()), (0, 0, 1, 2))

    def test_run_errors_are_told_before_anything_is_sent(self):
        for words, expected in (
            (("add", "x=1,2"), "add needs y"),
            (("add", "x=1", "y=1", "z=1"), "no parameter 'z'"),
            (("add", "x=1", "x=2", "y=1"), "given twice"),
            (("add", "x=1,b", "y=1,2"), "'b' is no f32"),
            (("add", "x:3=1,2", "y=1,2"), "x has 2 elements"),
            (("add", "x=1", "y=1", "out=5"), "is an output"),
            (("add", "x=1", "y=1", "alpha=two"), "'two' is no value for alpha"),
            (("fill", "value=1"), "the shape of out is not known"),
            (("relu", "x=@/nonexistent"), "cannot read /nonexistent"),
        ):
            with self.subTest(words=words):
                self.assertIn(expected, self.ctl("run", *words, code=USAGE).err)

    def completed_tasks(self):
        return self.ctl("status", "--json").json["devices"][0]["completed_tasks"]

    def test_a_file_that_cannot_be_written_is_told_before_the_work(self):
        before = self.completed_tasks()
        result = self.ctl("run", "add", "x=1", "y=2", "out=@/nonexistent/x", code=USAGE)
        self.assertIn("cannot write /nonexistent/x", result.err)
        self.assertIn("Fix:", result.err)
        self.assertEqual(self.completed_tasks(), before)

    def test_what_could_not_be_written_is_printed_and_has_its_own_exit_status(self):
        # A disk that is full says so only when it is written to.
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
        self.ctl("run", "add", "x=1", "y=1", "--device=77", code=REFUSED)
        # And the next one is served.
        self.ctl("run", "add", "x=1", "y=1")

    # --- buffers ---

    def test_buffers_from_allocation_to_free(self):
        made = self.ctl("buffers", "alloc", "2x3", "--name=weights", "--json").json
        buffer = str(made["id"])
        self.assertEqual((made["dtype"], made["shape"], made["size_bytes"]), ("f32", [2, 3], 24))
        try:
            listed = self.ctl("buffers", "--json").json["buffers"]
            entry = [each for each in listed if each["id"] == made["id"]][0]
            self.assertTrue(entry["durable"])
            self.assertEqual(entry["name"], "weights")
            self.assertRegex(self.ctl("buffers", "list").out, r"2x3 +24 B +durable +weights")
            data = struct.pack("<6f", *range(6))
            with tempfile.TemporaryDirectory() as folder:
                source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
                source.write_bytes(data)
                self.ctl("buffers", "upload", buffer, source)
                self.ctl("buffers", "download", buffer, target)
                self.assertEqual(target.read_bytes(), data)
                source.write_bytes(data + b"more")
                self.ctl("buffers", "upload", buffer, source, code=REFUSED)
            sums = self.ctl("run", "sum_rows", "x=buffer:" + buffer, "out:2=", "--json").json
            self.assertEqual(sums["outputs"]["out"]["values"], [3, 12])
            self.ctl("buffers", "persist", buffer)
        finally:
            self.ctl("buffers", "free", buffer)
        self.ctl("buffers", "free", buffer, code=REFUSED)

    def test_download_says_where_it_cannot_write(self):
        buffer = str(self.ctl("buffers", "alloc", "4", "--json").json["id"])
        try:
            self.assertIn("cannot write /nonexistent/x", self.ctl(
                "buffers", "download", buffer, "/nonexistent/x", code=USAGE).err)
            self.assertIn("cannot write /dev/full", self.ctl(
                "buffers", "download", buffer, "/dev/full", code=NOT_WRITTEN).err)
            # Raw elements are no JSON.
            result = self.ctl("buffers", "download", buffer, "-", "--json", code=USAGE)
            self.assertEqual(result.out, "")
            self.assertIn("--json", result.error["message"])
            self.ctl("buffers", "upload", buffer, "-", stdin="sixteen letters.")
            self.assertEqual(self.ctl("buffers", "download", buffer, "-").out, "sixteen letters.")
        finally:
            self.ctl("buffers", "free", buffer)

    def test_a_buffer_that_is_not_there(self):
        for words in (("free", "987654"), ("persist", "987654"),
                      ("upload", "987654", "/dev/null"), ("upload", "987654", VECTORS),
                      ("download", "987654", "/dev/null")):
            result = self.ctl("buffers", *words, "--json", code=REFUSED)
            self.assertEqual(result.error["code"], "NOT_FOUND", result)

    # --- flux ---

    def test_flux_run(self):
        result = self.ctl("flux", "run", "-", "--initial=10", "--registers=0,1", stdin=SQUARES)
        self.assertRegex(result.out, r"(?m)^R0 +385$")
        self.assertRegex(result.out, r"error 0 .*, 33 cycles")
        as_json = self.ctl("flux", "run", "-", "--initial=10", "--json", stdin=SQUARES).json
        self.assertEqual(as_json["registers"]["R0"], 385)
        self.assertEqual(len(as_json["registers"]), 16)
        self.assertEqual((as_json["error"], as_json["cycles"]), (0, 33))

    def test_flux_run_of_a_program_that_fails(self):
        source = "MOVI R0, 7\nDIV R1, R0, R2\nHALT\n"
        result = self.ctl("flux", "run", "-", "--json", stdin=source, code=FAILED).json
        self.assertEqual((result["error"], result["cycles"]), (1, 2))
        self.assertEqual(result["registers"]["R0"], 7)
        self.assertIn("error 1", self.ctl("flux", "run", "-", stdin=source, code=FAILED).out)

    def test_flux_run_takes_hex_limits_and_unknown_opcodes(self):
        loop = "here: JMP here\n"
        result = self.ctl("flux", "run", "-", "--max_cycles=100", "--json", stdin=loop,
                          code=FAILED).json
        self.assertEqual((result["error"], result["cycles"]), (5, 100))
        result = self.ctl("flux", "run", "-", "--max_cycles=0", "--json", stdin=loop,
                          code=FAILED).json
        self.assertEqual((result["error"], result["cycles"]), (5, 0))
        self.assertEqual(self.ctl("flux", "run", "-", "--json", stdin="ff 00",
                                  code=FAILED).json["error"], 4)
        nop = self.ctl("flux", "run", "-", "--unknown_opcode=nop", "--json", stdin="ff 00").json
        self.assertEqual((nop["error"], nop["cycles"]), (0, 2))
        self.ctl("flux", "run", "-", "--unknown_opcode=maybe", stdin="00", code=USAGE)
        self.ctl("flux", "run", "-", "--registers=16", stdin="00", code=USAGE)
        self.ctl("flux", "run", "-", "--initial=1,x", stdin="00", code=USAGE)

    def test_flux_check_of_vectors_that_hold(self):
        vectors = [line for line in VECTORS.read_text().splitlines() if line.strip()]
        self.assertGreater(len(vectors), 50)
        # A limit of 0 is one, and not the default.
        self.assertTrue(any(json.loads(line).get("max_cycles") == 0 for line in vectors))
        text = "\n".join(vectors)
        out = self.ctl("flux", "check", "-", stdin=text).out
        self.assertEqual(out, "{} passed, 0 failed\n".format(len(vectors)))
        result = self.ctl("flux", "check", "-", "--json", stdin=text).json
        self.assertEqual(result, {"passed": len(vectors), "failed": 0, "failures": []})

    def test_flux_check_prints_each_difference(self):
        good = {"name": "good", "bytecode": "18002a00", "registers": [42], "error": 0, "cycles": 2}
        register = dict(good, name="register", registers=[41])
        error = dict(good, name="error", error=3)
        cycles = dict(good, name="cycles", cycles=9, max_cycles=5)
        vectors = "".join(json.dumps(v) + "\n" for v in (good, register, error, cycles))
        out = self.ctl("flux", "check", "-", stdin=vectors, code=FAILED).out
        lines = out.splitlines()
        self.assertEqual(lines[-1], "1 passed, 3 failed")
        self.assertEqual(len(lines), 4)
        for line, name, words in zip(lines, ("register", "error", "cycles"),
                                     (("R0", "42", "41"), ("error",), ("2", "9"))):
            self.assertIn(name, line)
            for word in words:
                self.assertIn(word, line)
        result = self.ctl("flux", "check", "-", "--json", stdin=vectors, code=FAILED).json
        self.assertEqual((result["passed"], result["failed"]), (1, 3))
        self.assertEqual([each["line"] for each in result["failures"]], [2, 3, 4])

    def test_flux_check_of_more_than_one_batch(self):
        good = {"name": "n", "bytecode": "18002a00", "registers": [42], "error": 0, "cycles": 2}
        vectors = (json.dumps(good) + "\n") * 20000
        out = self.ctl("flux", "check", "-", stdin=vectors).out
        self.assertEqual(out, "20000 passed, 0 failed\n")

    # --- bench, demo, admin ---

    def test_bench_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "bench.json")
            result = self.ctl("bench", "--quick", "--json", "--out", file).json
            self.assertEqual(result["wrong"], 0)
            for name in ("lone_run_device", "lone_run_message"):
                self.assertGreater(result[name]["echo"]["p50_us"], 0)
                self.assertGreater(result[name]["residentd"]["p99_us"], 0)
                self.assertTrue(math.isfinite(result[name]["p50_ratio"]))
            self.assertGreater(result["submit"]["tasks_per_second"], 0)
            self.assertGreater(result["flux"]["instructions_per_second"], 0)
            saved = json.loads(file.read_text())
            self.assertEqual(len(saved["raw"]["lone_run_device"]["echo_us"]),
                             saved["lone_run_device"]["echo"]["samples"])
            self.assertEqual(saved["setup"]["server"], self.daemon.address)

    def test_bench_prints_what_it_could_not_save(self):
        result = self.ctl("bench", "--quick", "--json", "--out=/dev/full", code=NOT_WRITTEN)
        self.assertEqual(result.json["wrong"], 0)
        self.assertIn("/dev/full", result.error["message"])

    def test_bench_for_people(self):
        out = self.ctl("bench", "--quick", "--streams=2").out
        for words in ("bare gRPC echo", "difference", "ratio", "tasks/s", "instructions/s",
                      "every result was checked and right"):
            self.assertIn(words, out)

    def test_demo(self):
        out = self.ctl("demo").out
        self.assertEqual(len(re.findall("all right", out)), 2)
        self.assertEqual(self.ctl("demo", "--json").json["wrong"], 0)

    def test_park_and_resume(self):
        self.assertIn("is parked", self.ctl("admin", "park", "0").out)
        try:
            self.assertEqual(self.ctl("status", "--json").json["devices"][0]["state"], "parked")
            # A task waits for the kernel, for as long as the caller does.
            started = self.ctl("run", "add", "x=1", "y=1", "--device=0", "--timeout=300ms",
                               code=REFUSED)
            self.assertIn("--timeout", started.err)
        finally:
            resumed = self.ctl("admin", "resume", "0", "--json").json
        self.assertEqual(resumed, {"device": 0, "state": "resident"})
        self.ctl("run", "add", "x=1", "y=1", "--device=0")

    def test_admin_of_a_device_that_is_not_there(self):
        self.assertEqual(self.ctl("admin", "park", "77", "--json", code=REFUSED).error["code"],
                         "NOT_FOUND")


class Draining(unittest.TestCase):
    """What a daemon that takes no more work says."""

    def test_drain(self):
        daemon = daemons.Daemon()
        try:
            self.assertEqual(daemon.ctl("run", "add", "x=1", "y=1").code, OK)
            drained = daemon.ctl("admin", "drain", "--drain_timeout=5s", "--json")
            self.assertEqual(drained.code, OK, drained)
            self.assertEqual(drained.json["remaining_tasks"], 0)
            refused = daemon.ctl("run", "add", "x=1", "y=1", "--json")
            self.assertEqual(refused.code, REFUSED, refused)
            self.assertEqual(refused.error["code"], "UNAVAILABLE")
            self.assertTrue(daemon.ctl("status", "--json").json["draining"])
            # It answers, but is no longer somebody to send work to.
            health = daemon.ctl("health", "--json")
            self.assertEqual(health.code, FAILED, health)
            self.assertEqual(health.json, {"service": "", "status": "NOT_SERVING"})
            self.assertEqual(daemon.ctl("health").out, "NOT_SERVING\n")
        finally:
            daemon.stop()


class WithLimits(unittest.TestCase):
    """Daemons with settings of their own."""

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
            # What the daemon refuses is no usage error: something was sent.
            refused = daemon.ctl("run", "test.count", "out:1x1x1x1x1x1x1x1x1=1", "--json")
            self.assertEqual(refused.code, REFUSED, refused)
            self.assertEqual(refused.error["code"], "INVALID_ARGUMENT")
            wrong = daemon.ctl("run", "test.count", "out=1,x")
            self.assertEqual(wrong.code, USAGE, wrong)
        finally:
            daemon.stop()

    def test_health_needs_no_token(self):
        with tempfile.TemporaryDirectory() as folder:
            policy = pathlib.Path(folder, "policy.json")
            policy.write_text('{"identities": {"ranking": {"roles": ["submit"]}}}')
            daemon = daemons.Daemon("--policy={}".format(policy))
            try:
                self.assertEqual(daemon.ctl("status").code, REFUSED)
                health = daemon.ctl("health")
                self.assertEqual((health.code, health.out), (OK, "SERVING\n"), health)
            finally:
                daemon.stop()


class Programs(unittest.TestCase):
    """What the README shows."""

    def test_the_example(self):
        daemon = daemons.Daemon()
        try:
            done = subprocess.run([str(daemons.EXAMPLE), daemon.address], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout.split()),
                             (0, ["3", "5", "7", "1", "4", "9", "16"]), done)
        finally:
            daemon.stop()
        done = subprocess.run([str(daemons.EXAMPLE), daemon.address], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("UNAVAILABLE", done.stderr)

    def demo(self, folder, **programs):
        environment = dict(os.environ, TMPDIR=folder, RESIDENTD=str(daemons.RESIDENTD),
                           RESIDENTCTL=str(daemons.RESIDENTCTL))
        environment.update(programs)
        devices = "--devices=" + os.environ.get("RESIDENT_TEST_DEVICES", "cpu")
        done = subprocess.run([str(daemons.DEMO), devices], capture_output=True, text=True,
                              env=environment, timeout=180)
        self.assertEqual(os.listdir(folder), [], "the demo left files behind")
        return done

    def test_the_demo(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.demo(folder)
        self.assertEqual(done.returncode, 0, done)
        for words in ("all right", "/metrics", "resident_tasks_total", "Summary", "Next"):
            self.assertIn(words, done.stdout)
        # The daemon is gone.
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/metrics", done.stdout)[1])
        with socket.socket() as probe:
            self.assertNotEqual(probe.connect_ex(("127.0.0.1", port)), 0)

    def test_a_demo_that_goes_wrong_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            unchecked = self.demo(folder, RESIDENTCTL="/bin/false")
            self.assertEqual(unchecked.returncode, 1, unchecked)
            self.assertIn("FAILED", unchecked.stderr)
            absent = self.demo(folder, RESIDENTD="/bin/false")
            self.assertEqual(absent.returncode, 1, absent)
            self.assertIn("ended at its start", absent.stderr)


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len({test.id() for test, _ in result.failures + result.errors})
    sys.stderr.flush()
    print("{} passed, {} failed".format(max(result.testsRun - failed, 0), failed))
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
