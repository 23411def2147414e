#!/usr/bin/env python3
"""`residentctl flux`: the assembler, and programs and test vectors on a real daemon.

The last line is `N passed, N failed`.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, USAGE  # noqa: E402

VECTORS = pathlib.Path(os.environ.get("FLUX_VECTORS") or "tests/flux/vectors.jsonl").resolve()

SQUARES = """        MOV   R1, R0
        MOVI  R0, 0
next:   MUL   R2, R1, R1
        ADD   R0, R0, R2
        LOOP  R1, next
        HALT
"""


class Assembler(daemons.CommandTest):
    """Commands that need no daemon."""

    def test_assembly_and_back_is_the_same(self):
        code = self.check(daemons.ctl("flux", "asm", "-", stdin=SQUARES), OK).out.strip()
        self.assertRegex(code, r"^([0-9a-f]{2})+$")
        text = self.check(daemons.ctl("flux", "disasm", "-", stdin=code), OK).out
        self.assertIn("LOOP", text)
        self.assertEqual(daemons.ctl("flux", "asm", "-", stdin=text).out.strip(), code)
        self.assertEqual(daemons.ctl("flux", "asm", "-", "--json", stdin=SQUARES).json,
                         {"bytecode": code, "bytes": len(code) // 2})
        self.assertIn("LOOP", daemons.ctl("flux", "disasm", "-", "--json", stdin=code).json["assembly"])

    def test_raw_bytecode_in_files(self):
        with tempfile.TemporaryDirectory() as folder:
            raw = pathlib.Path(folder, "squares.bin")
            result = self.check(daemons.ctl("flux", "asm", "-", "--out", raw, stdin=SQUARES), OK)
            self.assertEqual(result.out, "")
            code = daemons.ctl("flux", "asm", "-", stdin=SQUARES).out.strip()
            self.assertEqual(raw.read_bytes().hex(), code)
            self.assertEqual(os.listdir(folder), ["squares.bin"])
            self.assertEqual(self.check(daemons.ctl("flux", "disasm", raw), OK).out,
                             daemons.ctl("flux", "disasm", "-", stdin=code).out)

    def test_a_bad_program_is_a_usage_error_with_its_position(self):
        result = self.check(daemons.ctl("flux", "asm", "-", stdin="MOVI R0, 1\nMOVI R16, 2\n"), USAGE)
        self.assertIn("line 2", result.err)
        self.assertIn("R16", result.err)

    def test_bad_vectors_are_a_usage_error_with_their_line(self):
        result = self.check(daemons.ctl("flux", "check", "-", stdin='{"name": "x"}\n'), USAGE)
        self.assertIn("line 1", result.err)


class Programs(daemons.DaemonTest):
    """Programs and test vectors on a daemon."""

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

    def test_native_code_of_an_installed_program(self):
        with tempfile.NamedTemporaryFile("w", suffix=".s") as program:
            program.write(SQUARES)
            program.flush()
            install = ["ops", "install", "squares", "--flux=" + program.name, "--wait=active"]
            self.assertIn("native code serves", self.ctl(*install, "--native=wait").out)
            self.assertIn("version 1 native: serving", self.ctl("ops", "show", "squares").out)
            run = ["flux", "run", "--operator=squares", "--initial=10", "--registers=0"]
            self.assertRegex(self.ctl(*run).out, r"(?m)^R0 +385$")
            self.ctl(*install, "--native=off")
            self.assertIn("version 2 native: off", self.ctl("ops", "show", "squares").out)
            self.assertRegex(self.ctl(*run).out, r"(?m)^R0 +385$")
        self.ctl("ops", "remove", "squares")

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

    def test_flux_check_of_correct_vectors(self):
        vectors = [line for line in VECTORS.read_text().splitlines() if line.strip()]
        self.assertGreater(len(vectors), 50)
        # A limit of 0 is a limit, not the default.
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


if __name__ == "__main__":
    unittest_main.main()
