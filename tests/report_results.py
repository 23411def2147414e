#!/usr/bin/env python3
"""Counts the test cases of a run. Its last line is `N passed, N failed`.

  report_results.py bazel EVENTS.json --exit_code N
      Counts a `bazel test --build_event_json_file=EVENTS.json` run. The event file lists
      the outputs of each target of that run, so old logs are never read.
  report_results.py checks RESULTS.json
      Counts the checks of a tests/gpu/run: a list of {"name", "exit_code", "seconds", "xml",
      "log"}, with "not_run" (the reason) for a check that this machine cannot run.

Counting rules:
  * GoogleTest: each case of the XML report. A skipped or disabled case is listed and counts
    neither as passed nor as failed (with `--no_skips` it counts as failed).
  * Any other program: the counts in its last line, if that is `N passed, N failed`;
    otherwise the program is one case.
  * A check that was not run counts nothing. It has a row and a line.
  * A target that did not build, crashed, timed out, wrote no report, or whose exit code
    contradicts its report, counts as at least one failed case.

Exit status: 0 if at least one case passed and none failed, otherwise 1.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

LAST_LINE = re.compile(r"^(\d+) passed, (\d+) failed$")
# Of the log of a failed program, at most these last lines are printed.
LOG_LINES = 60


@dataclasses.dataclass
class Counts:
    """The counts of one or more test programs."""

    passed: int = 0
    failed: int = 0
    failures: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    # The ends of the logs of failed programs, by name.
    logs: dict = dataclasses.field(default_factory=dict)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.failures += other.failures
        self.skipped += other.skipped
        self.logs.update(other.logs)

    def fail(self, why):
        self.failed += 1
        self.failures.append(why)


def read_text(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return None


def googletest_cases(text, name):
    """Returns the counts of a GoogleTest XML report, or None if `text` is not one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    # Only GoogleTest reports give the status of each case. For programs that write no
    # report, Bazel writes one with a single case.
    cases = [case for case in root.iter("testcase") if case.get("status") in ("run", "notrun")]
    if root.get("tests") is None or len(cases) != len(list(root.iter("testcase"))):
        return None
    counts = Counts()
    for case in cases:
        title = "{}: {}.{}".format(name, case.get("classname"), case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            counts.fail(title)
        elif case.get("status") == "notrun" or case.find("skipped") is not None:
            counts.skipped.append(title)
        else:
            counts.passed += 1
    return counts


def last_line_counts(log):
    """Returns the counts in a program's last line, or None if it has none."""
    lines = [line.strip() for line in (log or "").splitlines() if line.strip()]
    match = LAST_LINE.match(lines[-1]) if lines else None
    return Counts(passed=int(match[1]), failed=int(match[2])) if match else None


def program_counts(name, ok, xml, log):
    """Returns the counts of one finished test program.

    Args:
      name: the name to use in messages.
      ok: whether it exited with status 0 within its time limit.
      xml: the text of its XML report, or None.
      log: the text that it printed, or None.
    """
    counts = googletest_cases(xml, name) if xml else None
    if counts is None:
        counts = last_line_counts(log)
        if counts is not None and counts.failed:
            counts.failures.append("{}: {} cases".format(name, counts.failed))
    if counts is None:
        counts = Counts(passed=1) if ok else Counts(failed=1, failures=[name])
    elif not ok and counts.failed == 0:
        counts.fail(name + ": crashed or timed out (its report shows no failed case)")
    elif ok and counts.failed == 0 and counts.passed == 0 and not counts.skipped:
        counts.fail(name + ": ran no test case")
    if counts.failed and log:
        counts.logs[name] = log.rstrip("\n").splitlines()[-LOG_LINES:]
    return counts


def uri_text(uri):
    parsed = urllib.parse.urlparse(uri)
    return read_text(urllib.request.url2pathname(parsed.path)) if parsed.scheme == "file" else None


def read_events(text):
    """Reads a build event file. Returns the expected tests, their results and the broken targets."""
    expected, results, broken, kinds = [], {}, [], {}
    for line in text.splitlines():
        if not line.strip():
            continue
        event = json.loads(line)
        key = event.get("id", {})
        if "targetConfigured" in key and "configured" in event:
            label = key["targetConfigured"]["label"]
            kinds[label] = event["configured"].get("targetKind", "")
            if "_test rule" in kinds[label]:
                expected.append(label)
        elif "testResult" in key and "testResult" in event:
            run = key["testResult"]
            which = (run.get("run", 1), run.get("shard", 1))
            attempts = results.setdefault(run["label"], {}).setdefault(which, [])
            attempts.append((run.get("attempt", 1), event["testResult"]))
        elif "targetCompleted" in key:
            label = key["targetCompleted"]["label"]
            if "aborted" in event or not event.get("completed", {}).get("success", False):
                broken.append(label)
        elif "aborted" in event and ("pattern" in key or "unconfiguredLabel" in key):
            what = key.get("pattern", {}).get("pattern") or key["unconfiguredLabel"]["label"]
            broken.append("{}: {}".format(what, event["aborted"].get("description", "not loaded")))
    return expected, results, broken


def bazel_counts(events, exit_code):
    """Returns the counts of a `bazel test` run."""
    expected, results, broken = read_events(events)
    total = Counts()
    for label in sorted(set(expected)):
        if label not in results:
            total.fail(label + ": did not build, or did not run")
            continue
        for which, attempts in sorted(results[label].items()):
            result = max(attempts, key=lambda attempt: attempt[0])[1]
            status = result.get("status", "NO_STATUS")
            outputs = {out.get("name"): out.get("uri", "") for out in result.get("testActionOutput", [])}
            name = label if which == (1, 1) else "{} (run {}, shard {})".format(label, *which)
            if status not in ("PASSED", "FAILED"):
                name += " [{}]".format(status)
            total.add(
                program_counts(
                    name,
                    status == "PASSED",
                    uri_text(outputs.get("test.xml", "")),
                    uri_text(outputs.get("test.log", "")),
                ))
    for label in sorted(set(broken)):
        if label not in expected and label not in results:
            total.fail(label + ": did not build")
    if exit_code != 0 and total.failed == 0:
        total.fail("bazel exited with {}".format(exit_code))
    return total


def checks_counts(checks, print_row=print):
    """Returns the counts of a list of checks, and prints a row for each."""
    total = Counts()
    print_row("{:<28} {:<8} {:>8} {:>8} {:>8} {:>8}".format(
        "check", "result", "seconds", "passed", "failed", "skipped"))
    for check in checks:
        if check.get("not_run"):
            check.update(passed=0, failed=0, skipped=0)
            print_row("{:<28} {:<8}".format(check["name"], "not run"))
            continue
        counts = program_counts(
            check["name"],
            check["exit_code"] == 0,
            read_text(check["xml"]) if check.get("xml") else None,
            read_text(check["log"]) if check.get("log") else None,
        )
        word = {124: "TIMEOUT", 127: "MISSING", 137: "TIMEOUT"}.get(check["exit_code"], "FAILED")
        check.update(passed=counts.passed, failed=counts.failed, skipped=len(counts.skipped))
        print_row("{:<28} {:<8} {:>8.1f} {:>8} {:>8} {:>8}".format(
            check["name"], word if counts.failed else "ok", check["seconds"], counts.passed,
            counts.failed, len(counts.skipped)))
        total.add(counts)
    return total


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["bazel", "checks"])
    parser.add_argument("file")
    parser.add_argument("--exit_code", type=int, default=0, help="the exit code of `bazel test`")
    parser.add_argument("--no_skips", action="store_true", help="count skipped cases as failed")
    parser.add_argument("--save", help="checks: write the list with its counts to this file, as JSON")
    options = parser.parse_args(argv)

    not_run = []
    text = read_text(options.file)
    if options.kind == "bazel":
        total = bazel_counts(text or "", options.exit_code)
        if text is None:
            total.fail("{}: no such file; bazel did not start".format(options.file))
    else:
        checks = json.loads(text)
        total = checks_counts(checks)
        not_run = ["{}: {}".format(c["name"], c["not_run"]) for c in checks if c.get("not_run")]
        if options.save:
            rows = [{k: v for k, v in c.items() if k not in ("xml", "log")} for c in checks]
            pathlib.Path(options.save).write_text(json.dumps(rows, indent=2) + "\n")
    if options.no_skips:
        for title in total.skipped:
            total.fail(title + " (skipped)")
        total.skipped = []

    if options.kind == "bazel":  # tests/gpu/run prints the ends of its logs when checks fail.
        for name, lines in total.logs.items():
            print("\n--- {}: the last {} lines of its log".format(name, len(lines)))
            print("\n".join(lines))
    for line in not_run:
        print("not run: " + line)
    for title in total.skipped:
        print("skipped: " + title)
    for title in total.failures:
        print("failed: " + title)
    print("{} passed, {} failed".format(total.passed, total.failed))
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
