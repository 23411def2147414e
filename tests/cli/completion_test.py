#!/usr/bin/env python3
"""Shell completions and manual pages of residentctl and residentd.

The scripts are run by bash itself. Those for zsh and fish are only checked for their syntax, if
these shells are installed, and the manual pages by man, if it is installed. The last line is
`N passed, N failed`.
"""

import pathlib
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

# Completes the arguments as a terminal would: the last one is incomplete.
COMPLETE = """
source /dev/stdin
spec=$(complete -p "$1")
[[ $spec == *"-F _$1 $1" ]] || { echo "not completed: $spec" >&2; exit 1; }
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"_$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell, program=daemons.RESIDENTCTL):
    return subprocess.run([str(program), "completion", shell], check=True, capture_output=True,
                          text=True).stdout


def complete(*words, program=daemons.RESIDENTCTL):
    """Returns bash's completions of the last of the words after the program's name."""
    done = subprocess.run(["bash", "-uc", COMPLETE, "bash", program.name, *words],
                          input=script("bash", program), capture_output=True, text=True,
                          check=False)
    if done.returncode != 0 or done.stderr:
        raise AssertionError("{}: {}".format(words, done.stderr))
    return set(done.stdout.split())


class BashTest(unittest.TestCase):
    def test_commands(self):
        self.assertLessEqual({"status", "ops", "run", "help", "completion"}, complete(""))
        self.assertEqual(complete("sta"), {"status", "state"})
        self.assertEqual(complete("ops", "re"), {"remove"})
        self.assertEqual(complete("completion", ""), {"bash", "zsh", "fish"})
        # Expects a file, which bash itself completes.
        self.assertEqual(complete("flux", "asm", ""), set())

    def test_flags(self):
        self.assertEqual(complete("bench", "--q"), {"--quick"})
        self.assertEqual(complete("bench", "--ba"), {"--batch="})
        # Flags of one action and flags of every command are offered, those of another
        # action are not.
        self.assertEqual(complete("ops", "install", "swish", "--expr="), {"--expr="})
        self.assertEqual(complete("ops", "install", "--ser"), {"--server="})
        self.assertEqual(complete("ops", "list", "--expr"), set())

    def test_flags_before_the_command_do_not_hide_it(self):
        self.assertEqual(complete("--json", "--server", "=", "host:1", "ops", "inst"), {"install"})

    def test_values(self):
        install = ("ops", "install", "swish", "--wait")
        self.assertEqual(complete(*install, ""), {"validated", "loaded", "active"})
        # bash treats the equals sign as a separate word.
        self.assertEqual(complete(*install, "="), {"validated", "loaded", "active"})
        self.assertEqual(complete(*install, "=", "lo"), {"loaded"})

    def test_every_command_and_flag_is_completed(self):
        def check(at, command, inherited):
            flags = inherited | {"--" + flag["name"] for flag in command["flags"]}
            self.assertEqual({flag.rstrip("=") for flag in complete(*at, "--")},
                             flags | {"--help"}, at)
            below = command.get("commands", [])
            if below:
                self.assertEqual(complete(*at, ""), {entry["name"] for entry in below}, at)
            for entry in below:
                check((*at, entry["name"]), entry, flags)

        check((), daemons.ctl("help", "--json").json, set())

    def test_the_daemon(self):
        self.assertEqual(complete("ser", program=daemons.RESIDENTD), {"serve"})
        self.assertEqual(complete("serve", "--state", program=daemons.RESIDENTD), {"--state_dir="})


class OtherShellsTest(unittest.TestCase):
    def check_syntax(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(shell + " is not installed")
        for program in (daemons.RESIDENTCTL, daemons.RESIDENTD):
            done = subprocess.run([shell, "-n"], input=script(shell, program), capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_zsh(self):
        self.assertIn("#compdef residentctl", script("zsh"))
        self.check_syntax("zsh")

    def test_fish(self):
        self.assertIn("complete -c residentctl", script("fish"))
        self.check_syntax("fish")


class ManualTest(unittest.TestCase):
    def page(self, program):
        return subprocess.run([str(program), "manual"], check=True, capture_output=True,
                              text=True).stdout

    def test_every_command_and_flag_is_described(self):
        page = self.page(daemons.RESIDENTCTL).replace("\\-", "-")

        def check(at, command):
            for flag in command["flags"]:
                self.assertIn("\n.B --{}\n".format(flag["name"]), page)
            for entry in command.get("commands", []):
                path = "{} {}".format(at, entry["name"])
                self.assertIn("\n.SS {}\n".format(path), page)
                check(path, entry)

        check("residentctl", daemons.ctl("help", "--json").json)
        self.assertIn(".TH RESIDENTD 8\n", self.page(daemons.RESIDENTD))

    def test_lines_of_text_are_no_requests(self):
        for program in (daemons.RESIDENTCTL, daemons.RESIDENTD):
            for line in self.page(program).splitlines():
                if line.startswith((".", "'")):
                    self.assertRegex(line, r"^\.(TH|SH|SS|PP|TP|B|nf|fi)( |$)")

    def test_man_shows_them(self):
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        for program in (daemons.RESIDENTCTL, daemons.RESIDENTD):
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-"],
                                  input=self.page(program), capture_output=True, text=True,
                                  env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"}, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("{} - ".format(program.name), done.stdout)


if __name__ == "__main__":
    unittest_main.main()
