#!/usr/bin/env python3
"""`residentctl ops` against a real daemon: install, validate, activate, break, roll back.

The last line is `N passed, N failed`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, USAGE, REFUSED  # noqa: E402

SOURCE = """// signature: x: in f32[*S], out: out f32[*S]
// summary: x times {factor}
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR({name})(resident::Block& block, const resident::Args& args) {{
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) {{ out[i] = {factor} * x[i]; }});
}}
"""


class OpsTest(daemons.DaemonTest):
    """All tests share one daemon; each test uses its own operators."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="residentctl-ops-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        super().setUpClass()

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def source(self, name, factor):
        return self.file(name + ".cc", SOURCE.format(name=name, factor=factor))

    def show(self, name):
        return self.ctl("ops", "show", name, "--json").json

    def run_once(self, name):
        return self.ctl("run", name, "x=1,2,3").out

    def test_install_break_and_roll_back(self):
        out = self.ctl("ops", "install", "scaled", self.source("scaled", 2), "--wait=active").out
        for state in ("submitted", "compiled", "inspected", "validated", "loaded", "active"):
            self.assertRegex(out, r"(?m)^{} +[\d.]+ [nµm]?s".format(state))
        self.assertIn("scaled version 1 serves", out)
        self.assertIn("2 4 6", self.run_once("scaled"))

        broken = self.file("broken.cc", SOURCE.format(name="scaled", factor="2 +* y"))
        result = self.ctl("ops", "install", "scaled", broken, code=REFUSED)
        self.assertRegex(result.err, r"broken\.cc[:(]8")  # The user's own file and line.
        self.assertIn("2 +* y", result.err)
        self.assertIn("2 4 6", self.run_once("scaled"))

        out = self.ctl("ops", "install", "scaled", self.source("scaled", 3)).out
        self.assertIn("scaled version 2 is loaded", out)
        self.assertIn("2 4 6", self.run_once("scaled"))
        self.assertIn("version 2 serves in place of version 1",
                      self.ctl("ops", "activate", "scaled").out)
        self.assertIn("3 6 9", self.run_once("scaled"))
        self.assertIn("version 1 serves again", self.ctl("ops", "rollback", "scaled").out)
        self.assertIn("2 4 6", self.run_once("scaled"))

        shown = self.ctl("ops", "show", "scaled").out
        self.assertIn("x times 2", shown)
        self.assertRegex(shown, r"(?m)^ +1 +active +source ")
        self.assertRegex(self.ctl("ops").out, r"(?m)^scaled +\(x, out\) +1 +2 ")
        self.assertIn("is removed", self.ctl("ops", "remove", "scaled").out)
        self.assertEqual(self.ctl("ops", "show", "scaled", "--json", code=REFUSED).error["code"],
                         "NOT_FOUND")

    def test_expressions_with_examples(self):
        example = self.file("twice.json", json.dumps(
            {"inputs": {"x": [[1, 2], [3, 4]]}, "outputs": {"out": [[2, 4], [6, 8]]}}))
        self.ctl("ops", "install", "twice", "--expr=2 * x", "--example=" + example, "--wait=active")
        self.assertIn("2 4 6", self.run_once("twice"))
        wrong = self.file("wrong.json", json.dumps(
            {"inputs": {"x": [1]}, "outputs": {"out": [3]}}))
        result = self.ctl("ops", "install", "twice", "--expr=2 * x + 0", "--example=" + wrong,
                          code=REFUSED)
        self.assertIn("example 1", result.err)
        result = self.ctl("ops", "install", "twice", "--expr=2 * ", code=REFUSED)
        self.assertIn("residentctl: ", result.err)
        self.assertEqual(self.show("twice")["active_version"], 1)

    def test_programs(self):
        program = self.file("square.s", "MUL R0, R0, R0\nHALT\n")
        self.ctl("ops", "install", "square", "--flux", program, "--wait=active")
        self.assertEqual(self.show("square")["versions"][0]["kind"], "bytecode")
        out = self.ctl("flux", "run", "--operator=square", "--initial=7", "--registers=0").out
        self.assertIn("R0  49", out)
        self.assertIn("square version 1", out)
        result = self.ctl("run", "square", "x=1", code=USAGE)
        self.assertIn("residentctl flux run --operator=square", result.err)

    def test_json_is_one_document_per_state(self):
        result = self.ctl("ops", "install", "lines", self.source("lines", 2), "--json")
        states = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual([state["state"] for state in states],
                         ["submitted", "compiled", "inspected", "validated", "loaded"])
        self.assertEqual(states[-1]["version"], 1)
        done = self.ctl("ops", "activate", "lines", "1", "--json").json
        self.assertEqual((done["version"], done["previous_version"]), (1, 0))
        self.assertEqual(self.show("lines")["revision"], done["revision"])

    def test_a_stale_revision_is_refused(self):
        self.ctl("ops", "install", "stale", self.source("stale", 2), "--wait=active",
                 "--revision=0")
        error = self.ctl("ops", "install", "stale", self.source("stale", 3), "--revision=0",
                         "--json", code=REFUSED).error
        self.assertEqual(error["code"], "ABORTED")
        error = self.ctl("ops", "remove", "stale", "--revision=1", "--json", code=REFUSED).error
        self.assertEqual(error["code"], "ABORTED")
        revision = self.show("stale")["revision"]
        self.ctl("ops", "remove", "stale", "--revision={}".format(revision))

    def test_isolation(self):
        for flag, level in (("stoppable", "stoppable"), ("trusted", "trusted"), ("default", "stoppable")):
            name = "isolated_" + flag
            out = self.ctl("ops", "install", name, self.source(name, 2), "--isolation=" + flag).out
            self.assertIn("isolation " + level, out)
            out = self.ctl("ops", "explain", name).out
            self.assertIn("{} version 1 (loaded): {}\n".format(name, level), out)
            version = self.show(name)["versions"][0]
            self.assertEqual(version["isolation"], level)
        error = self.ctl("ops", "install", "confined", self.source("confined", 2), "--isolation=confined",
                         "--json", code=REFUSED).error
        self.assertEqual(error["code"], "UNIMPLEMENTED")
        self.assertIn("add version 1 (active): built in\n", self.ctl("ops", "explain", "add").out)

    def test_validated_keeps_nothing(self):
        out = self.ctl("ops", "install", "tried", self.source("tried", 2), "--wait=validated").out
        self.assertIn("nothing was kept", out)
        self.ctl("ops", "show", "tried", code=REFUSED)

    def test_built_in_operators_cannot_be_changed(self):
        for words in (("activate", "add"), ("rollback", "add"), ("remove", "add"),
                      ("promote", "add", "--traffic=10%")):
            error = self.ctl("ops", *words, "--json", code=REFUSED).error
            self.assertEqual(error["code"], "FAILED_PRECONDITION", words)
        error = self.ctl("ops", "install", "add", "--expr=x + y", "--json", code=REFUSED).error
        self.assertEqual(error["code"], "ALREADY_EXISTS")

    def test_trials(self):
        self.ctl("ops", "install", "tested", self.source("tested", 2), "--wait=active")
        self.ctl("ops", "install", "tested", self.source("tested", 3))
        out = self.ctl("ops", "promote", "tested", "--shadow=5%", "--traffic=10%", "--bake=10m",
                       "--on_regression=roll_back", "--max_error_rate=0.02",
                       "--max_mismatch_rate=1%").out
        self.assertIn("serves 10 % of the batches and shadows 5 %", out)
        self.assertIn("on trial: version 2", self.ctl("ops", "show", "tested").out)
        served = [self.ctl("run", "tested", "x=1", "--json").json["version"] for _ in range(20)]
        self.assertEqual(served.count(2), 2)
        self.assertIn("has ended", self.ctl("ops", "promote", "tested").out)
        self.assertNotIn("on trial", self.ctl("ops", "show", "tested").out)

    def test_watch_and_audit_have_the_same_events(self):
        self.ctl("ops", "install", "watched", self.source("watched", 2), "--wait=active")
        installed = self.ctl("ops", "audit", "watched", "--json").json["events"]
        self.assertEqual([event["kind"] for event in installed], ["activated", "installed"])
        self.assertEqual(installed[0]["actor"], "anonymous")
        self.assertRegex(installed[1]["content_hash"], "^[0-9a-f]{64}$")
        first = installed[1]["revision"]
        command = [str(daemons.RESIDENTCTL), "ops", "watch", "watched", "--json", "--count=3",
                   "--after={}".format(first - 1), "--server=" + self.daemon.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            self.ctl("ops", "remove", "watched")
            seen = [json.loads(line) for line in watch.stdout]
            self.assertEqual(watch.wait(), OK)
        self.assertEqual([event["kind"] for event in seen], ["installed", "activated", "removed"])
        audit = self.ctl("ops", "audit", "watched", "--json").json["events"]
        self.assertEqual(audit, list(reversed(seen)))
        text = self.ctl("ops", "audit", "watched").out
        self.assertRegex(text, r"(?m)^ +\d+ +[-\d]+ [:\d]+ +removed +watched version 1 +anonymous")


if __name__ == "__main__":
    unittest_main.main()
