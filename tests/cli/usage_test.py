#!/usr/bin/env python3
"""residentctl without a daemon: help, usage errors, a state folder, an unreachable server.

The last line is `N passed, N failed`.
"""

import json
import pathlib
import socket
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, USAGE, UNREACHABLE, REFUSED  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WithoutDaemon(daemons.CommandTest):
    """Commands that need no server, and errors if there is none."""

    def test_help_lists_commands_and_exit_codes(self):
        out = self.check(daemons.ctl("help"), OK).out
        for word in ("status", "ops", "buffers", "run", "flux", "bench", "top", "admin", "version",
                     "health", "--server", "--json", "--timeout", "no server answered",
                     "could not be written"):
            self.assertIn(word, out)

    def test_state_check_and_repair(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "state.db"
            self.check(daemons.ctl("state", "check", folder), REFUSED)  # No state folder.
            (pathlib.Path(folder) / "journal").write_bytes(b"RSDJRNL1")
            self.assertIn("older version", self.check(
                daemons.ctl("state", "check", folder), REFUSED).err)

            damaged = b"no database" * 1000
            path.write_bytes(damaged)
            result = self.check(daemons.ctl("state", "check", folder), FAILED)
            self.assertIn("file is not a database", result.out)
            self.assertIn(f"residentctl state repair {folder}", result.out)
            found = json.loads(self.check(daemons.ctl("state", "check", folder, "--json"), FAILED).out)
            self.assertFalse(found["starts"])
            self.assertEqual(path.read_bytes(), damaged)

            out = self.check(daemons.ctl("state", "repair", folder), OK).out
            self.assertIn("kept the damaged file as", out)
            self.assertTrue(path.read_bytes().startswith(b"SQLite format 3"))
            out = self.check(daemons.ctl("state", "check", folder), OK).out
            self.assertIn("database: 0 operators, 0 events, 0 durable buffers", out)
            self.assertIn("no problems found", out)
            self.check(daemons.ctl("state", "check", folder), OK)
        self.check(daemons.ctl("state"), USAGE)
        self.check(daemons.ctl("state", "shake", "x"), USAGE)
        self.check(daemons.ctl("state", "check"), USAGE)

    def test_help_of_each_command_names_it(self):
        for command in daemons.ctl("help", "--json").json["commands"]:
            name = command["name"]
            out = self.check(daemons.ctl("help", name), OK).out
            self.assertIn("Usage: residentctl " + name, out)
            for flag in command["flags"]:
                self.assertIn("--" + flag["name"], out)
            self.assertEqual(self.check(daemons.ctl(name, "--help"), OK).out, out)
            self.assertEqual(self.check(daemons.ctl("help", name, "--json"), OK).json["name"], name)
            for action in command.get("commands", []):
                self.assertIn(action["name"], out)
                text = self.check(daemons.ctl("help", name, action["name"]), OK).out
                self.assertIn("Usage: residentctl {} {}".format(name, action["name"]), text)
                for flag in action["flags"]:
                    self.assertIn("--" + flag["name"], text)
                    self.assertIn("--" + flag["name"], out)

    def test_usage_errors_end_with_two_and_a_hint(self):
        for words, expected in (
            ((), "residentctl needs a command"),
            (("statsu",), "did you mean status?"),
            (("status", "--quick"), "unknown flag --quick"),
            (("status", "--nonsense"), "unknown flag --nonsense"),
            (("status", "--quick"), "it is a flag of residentctl bench"),
            (("status", "word"), "takes no arguments"),
            (("status", "--timeout=0s"), "--timeout"),
            (("health", "a", "b"), "takes [SERVICE], but got 2 arguments"),
            (("run",), "residentctl run takes OPERATOR"),
            (("run", "add", "x"), "invalid argument 'x'"),
            (("run", "add", "x:2y=1"), "neither an element type nor a shape"),
            (("flux",), "residentctl flux needs a command"),
            (("flux", "fly", "x"), "residentctl flux: unknown command 'fly'"),
            (("flux", "asm"), "flux asm takes FILE"),
            (("flux", "run"), "takes a FILE, or --operator"),
            (("flux", "run", "x", "--unknown_opcode=skip"), "give error or nop"),
            (("flux", "asm", "/nonexistent.flux"), "cannot read /nonexistent.flux"),
            (("buffers", "eat"), "residentctl buffers: unknown command 'eat'"),
            (("buffers", "5", "free"), "residentctl buffers: unknown command '5'"),
            (("buffers", "free"), "takes ID..., but got 0 arguments"),
            (("buffers", "alloc", "2by3"), "invalid shape '2by3'"),
            (("buffers", "alloc", "2x3", "--dtype=f8"),
             "invalid value for --dtype: 'f8'. Fix: give f32"),
            (("buffers", "download", "1", "/nonexistent/x"), "cannot write /nonexistent/x"),
            (("buffers", "download", "1", "/"), "it is a folder"),
            (("ops", "eat", "it"), "residentctl ops: unknown command 'eat'"),
            (("ops", "list", "all"), "takes no arguments"),
            (("ops", "install"), "takes NAME [FILE]..."),
            (("ops", "install", "swish"), "takes source files, --expr"),
            (("ops", "install", "swish", "a.cc", "--expr=x"), "takes source files, --expr"),
            (("ops", "install", "swish", "/nonexistent.cc"), "cannot read /nonexistent.cc"),
            (("ops", "install", "swish", "--expr=x", "--wait=never"),
             "invalid value for --wait: 'never'"),
            (("ops", "activate"), "takes NAME [VERSION]"),
            (("ops", "activate", "swish", "newest"), "invalid version 'newest'"),
            (("ops", "activate", "swish", "--on_regression=cry"), "--on_regression"),
            (("ops", "activate", "swish", "--on_regression=rollback"), "off, warn or roll_back"),
            (("ops", "activate", "swish", "--max_error_rate=5"), "0% to 100%, or 0 to 1"),
            (("ops", "activate", "swish", "--max_latency_ratio=nan"), "--max_latency_ratio"),
            (("ops", "activate", "swish", "--max_latency_ratio=inf"), "--max_latency_ratio"),
            (("ops", "activate", "swish", "--max_error_rate=nan"), "0% to 100%, or 0 to 1"),
            (("ops", "promote", "swish", "--shadow=nan"), "a percentage is 0% to 100%"),
            (("ops", "rollback", "swish", "2"), "takes NAME, but got 2 arguments"),
            (("ops", "rollback", "swish", "--force"), "it is a flag of residentctl ops install"),
            (("ops", "promote", "swish", "--shadow=120%"), "a percentage is 0% to 100%"),
            (("ops", "watch", "a", "b"), "takes [NAME], but got 2 arguments"),
            (("flux", "run", "x", "--operator=y"), "in place of a FILE"),
            (("admin",), "residentctl admin needs a command"),
            (("admin", "park", "gpu"), "invalid device 'gpu'"),
            (("admin", "drain", "now"), "takes no arguments"),
            (("admin", "drain", "--drain_timeout=-1s"), "--drain_timeout"),
            (("admin", "drain", "--drain_timeout=inf"), "--drain_timeout"),
            (("top", "--interval=1ms"), "--interval"),
            (("top", "--interval=inf"), "--interval"),
            (("bench", "--batch=0"), "invalid value for --batch: '0'. Fix: give at least 1"),
            (("bench", "--streams=257"), "give 1 to 256"),
            (("bench", "--device=cpu"), "give an index as in the DEVICE column"),
            (("bench", "--seconds=nan"), "--seconds"),
            (("bench", "--seconds=inf"), "--seconds"),
            (("bench", "--seconds=-1"), "--seconds"),
            (("bench", "--out=/nonexistent/x"), "cannot write /nonexistent/x"),
            (("demo", "--out=/nonexistent/x"), "cannot write /nonexistent/x"),
            (("help", "nothing"), "unknown command 'nothing'"),
            (("completion", "powershell"), "Fix: one of bash zsh fish"),
        ):
            with self.subTest(words=words):
                result = self.check(daemons.ctl(*words), USAGE)
                self.assertIn(expected, result.err)
                self.assertEqual(result.out, "")
                as_json = self.check(daemons.ctl(*words, "--json"), USAGE)
                self.assertIn("message", as_json.error)

    def test_flags_of_a_command_may_precede_its_name(self):
        address = "127.0.0.1:{}".format(free_port())
        self.check(daemons.ctl("--interval", "1s", "top", "--once", server=address), UNREACHABLE)
        self.check(daemons.ctl("--server", "", "status"), USAGE)

    def test_no_server_is_exit_code_three_with_a_hint(self):
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
        result = self.check(daemons.ctl("status", env={"RESIDENTD_SERVER": address}), UNREACHABLE)
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


if __name__ == "__main__":
    unittest_main.main()
