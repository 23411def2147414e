#!/usr/bin/env python3
"""Tests report_results.py: the counts for every way in which a run can end."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import report_results  # pylint: disable=wrong-import-position
import unittest_main  # pylint: disable=wrong-import-position

GOOGLETEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" disabled="1" errors="0" time="0.1" name="AllTests">
  <testsuite name="Ring" tests="4" failures="1" disabled="1" skipped="1" errors="0">
    <testcase name="Wraps" status="run" result="completed" classname="Ring" />
    <testcase name="Fills" status="run" result="completed" classname="Ring">
      <failure message="no" type=""><![CDATA[no]]></failure>
    </testcase>
    <testcase name="NeedsGpu" status="run" result="skipped" classname="Ring">
      <skipped message="no GPU"><![CDATA[no GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_Slow" status="notrun" result="suppressed" classname="Ring" />
  </testsuite>
</testsuites>
"""
ONE_PASSES = """<testsuites tests="1" failures="0" disabled="0" errors="0" name="AllTests">
  <testsuite name="Ring"><testcase name="Wraps" status="run" classname="Ring" /></testsuite>
</testsuites>"""
NO_CASES = '<testsuites tests="0" failures="0" disabled="0" errors="0" name="AllTests" />'
# The report that Bazel writes for a program that writes none.
BAZEL_REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="some/test" tests="1" failures="0" errors="0">
    <testcase name="some/test" status="run" duration="1" time="1"></testcase>
    <system-out>anything</system-out>
  </testsuite>
</testsuites>"""


class ProgramCounts(unittest.TestCase):

    def counts(self, ok, xml, log=""):
        counts = report_results.program_counts("//a:b", ok, xml, log)
        return counts.passed, counts.failed, len(counts.skipped)

    def test_googletest_cases_are_counted_one_by_one(self):
        self.assertEqual(self.counts(False, GOOGLETEST), (1, 1, 2))

    def test_crash_after_a_clean_report_is_a_failure(self):
        self.assertEqual(self.counts(False, ONE_PASSES), (1, 1, 0))

    def test_no_report_counts_as_one(self):
        self.assertEqual(self.counts(False, None), (0, 1, 0))
        self.assertEqual(self.counts(True, None), (1, 0, 0))

    def test_truncated_report_counts_as_failed(self):
        self.assertEqual(self.counts(False, GOOGLETEST[:300]), (0, 1, 0))

    def test_googletest_program_without_cases_is_a_failure(self):
        self.assertEqual(self.counts(True, NO_CASES), (0, 1, 0))

    def test_last_line_has_priority_over_bazels_report(self):
        self.assertEqual(self.counts(True, BAZEL_REPORT, "x\n7 passed, 0 failed\n\n"), (7, 0, 0))
        self.assertEqual(self.counts(False, BAZEL_REPORT, "7 passed, 2 failed"), (7, 2, 0))
        self.assertEqual(self.counts(False, BAZEL_REPORT, "7 passed, 0 failed"), (7, 1, 0))

    def test_last_line_without_cases_is_a_failure(self):
        self.assertEqual(self.counts(True, BAZEL_REPORT, "0 passed, 0 failed"), (0, 1, 0))

    def test_counts_are_read_only_from_the_last_line(self):
        self.assertEqual(self.counts(True, BAZEL_REPORT, "7 passed, 0 failed\nbye"), (1, 0, 0))

    def test_shell_test_without_a_line_is_one_case(self):
        self.assertEqual(self.counts(True, BAZEL_REPORT), (1, 0, 0))
        self.assertEqual(self.counts(False, BAZEL_REPORT), (0, 1, 0))


class BazelRuns(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.events = []

    def configure(self, label, kind="cc_test rule"):
        self.events.append({
            "id": {"targetConfigured": {"label": label}},
            "configured": {"targetKind": kind},
        })

    def complete(self, label, success):
        self.events.append({
            "id": {"targetCompleted": {"label": label}},
            "completed": {"success": True} if success else {},
        })

    def result(self, label, status, xml=None, attempt=1, shard=1, log=None):
        outputs = []
        if log is not None:
            path = pathlib.Path(self.folder.name) / "test{}.log".format(len(self.events))
            path.write_text(log)
            outputs.append({"name": "test.log", "uri": path.as_uri()})
        if xml is not None:
            path = pathlib.Path(self.folder.name) / "test{}.xml".format(len(self.events))
            path.write_text(xml)
            outputs.append({"name": "test.xml", "uri": path.as_uri()})
        self.events.append({
            "id": {"testResult": {"label": label, "run": 1, "shard": shard, "attempt": attempt}},
            "testResult": {"status": status, "testActionOutput": outputs},
        })

    def counts(self, exit_code=0):
        text = "\n".join(json.dumps(event) for event in self.events)
        counts = report_results.bazel_counts(text, exit_code)
        return counts.passed, counts.failed

    def test_counts_cases_of_all_targets_and_shards(self):
        self.configure("//a:t")
        self.configure("//b:t", "sh_test rule")
        self.configure("//b:lib", "cc_library rule")
        self.complete("//b:lib", True)
        self.result("//a:t", "FAILED", GOOGLETEST, shard=1)
        self.result("//a:t", "PASSED", ONE_PASSES, shard=2)
        self.result("//b:t", "PASSED", BAZEL_REPORT)
        self.assertEqual(self.counts(3), (3, 1))

    def test_test_that_does_not_build_fails(self):
        self.configure("//a:t")
        self.complete("//a:t", False)
        self.assertEqual(self.counts(1), (0, 1))

    def test_library_that_does_not_build_fails(self):
        self.configure("//a:lib", "cc_library rule")
        self.complete("//a:lib", False)
        self.configure("//a:t")
        self.result("//a:t", "PASSED", ONE_PASSES)
        self.assertEqual(self.counts(1), (1, 1))

    def test_last_attempt_of_a_flaky_test_counts(self):
        self.configure("//a:t")
        self.result("//a:t", "FAILED", GOOGLETEST, attempt=1)
        self.result("//a:t", "PASSED", ONE_PASSES, attempt=2)
        self.assertEqual(self.counts(), (1, 0))

    def test_timeout_fails(self):
        self.configure("//a:t")
        self.result("//a:t", "TIMEOUT", BAZEL_REPORT)
        self.assertEqual(self.counts(3), (0, 1))

    def test_report_of_another_run_is_ignored(self):
        self.configure("//a:t")
        self.result("//a:t", "PASSED", ONE_PASSES)
        self.complete("//b:stale", True)
        self.assertEqual(self.counts(), (1, 0))

    def test_failed_bazel_without_a_failed_test_is_a_failure(self):
        self.configure("//a:t")
        self.result("//a:t", "PASSED", ONE_PASSES)
        self.assertEqual(self.counts(37), (1, 1))

    def test_broken_build_file_fails(self):
        self.events.append({
            "id": {"pattern": {"pattern": ["//a/..."]}},
            "aborted": {"reason": "LOADING_FAILURE", "description": "syntax error"},
        })
        self.assertEqual(self.counts(), (0, 1))


    def test_the_end_of_the_log_of_a_failure_is_printed(self):
        for name, status, last in (("good", "PASSED", "2 passed, 0 failed"), ("bad", "FAILED", "1 passed, 1 failed")):
            self.configure("//a:" + name, "sh_test rule")
            log = "".join("{} line {}\n".format(name, i) for i in range(100)) + last + "\n"
            self.result("//a:" + name, status, log=log)
        events = pathlib.Path(self.folder.name) / "events.json"
        events.write_text("\n".join(json.dumps(event) for event in self.events))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(report_results.main(["bazel", str(events), "--exit_code", "3"]), 1)
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[-1], "3 passed, 1 failed")
        heading = lines.index("--- //a:bad: the last 60 lines of its log")
        self.assertEqual(lines[heading + 1:heading + 3], ["bad line 41", "bad line 42"])
        self.assertNotIn("good line 99", lines)


class CommandLine(unittest.TestCase):

    def run_main(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = report_results.main(list(arguments))
        return status, out.getvalue().splitlines()

    def test_missing_event_file_is_a_failure(self):
        status, lines = self.run_main("bazel", "/nonexistent", "--exit_code", "1")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 2 failed"))

    def test_nothing_run_is_a_failure(self):
        with tempfile.NamedTemporaryFile() as events:
            status, lines = self.run_main("bazel", events.name)
        self.assertEqual((status, lines[-1]), (1, "0 passed, 0 failed"))

    def test_checks_print_a_row_each_and_the_sum(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "a.xml").write_text(ONE_PASSES)
            (folder / "b.xml").write_text(GOOGLETEST)
            checks = [
                {"name": "a", "exit_code": 0, "seconds": 1, "xml": str(folder / "a.xml")},
                {"name": "b", "exit_code": 1, "seconds": 2.5, "xml": str(folder / "b.xml")},
                {"name": "gone", "exit_code": 127, "seconds": 0},
                {"name": "slow", "exit_code": 124, "seconds": 60},
            ]
            (folder / "in.json").write_text(json.dumps(checks))
            saved = folder / "out.json"
            status, lines = self.run_main("checks", str(folder / "in.json"), "--save", str(saved))
            self.assertEqual((status, lines[-1]), (1, "2 passed, 3 failed"))
            self.assertIn("MISSING", "\n".join(lines))
            self.assertIn("TIMEOUT", "\n".join(lines))
            self.assertIn("skipped: b: Ring.NeedsGpu", lines)
            self.assertEqual([check["passed"] for check in json.loads(saved.read_text())], [1, 1, 0, 0])

            status, lines = self.run_main("checks", str(folder / "in.json"), "--no_skips")
            self.assertEqual((status, lines[-1]), (1, "2 passed, 5 failed"))

    def test_a_check_that_was_not_run_is_listed_but_not_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "a.xml").write_text(ONE_PASSES)
            checks = [
                {"name": "a", "exit_code": 0, "seconds": 1, "xml": str(folder / "a.xml")},
                {"name": "pair", "exit_code": 0, "seconds": 0, "not_run": "needs 2 GPUs"},
            ]
            (folder / "in.json").write_text(json.dumps(checks))
            status, lines = self.run_main("checks", str(folder / "in.json"), "--no_skips")
            self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed"))
            self.assertIn("not run: pair: needs 2 GPUs", lines)

            (folder / "in.json").write_text(json.dumps(checks[1:]))
            self.assertEqual(self.run_main("checks", str(folder / "in.json"))[0], 1)


if __name__ == "__main__":
    unittest_main.main(verbosity=1)
