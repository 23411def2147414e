#!/usr/bin/python3
"""Versions that clients name by their contents or their label, on real daemons whose version numbers differ.

The last line is `N passed, N failed`.
"""

import asyncio
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "inference")]
import grpc  # noqa: E402
import inference_client  # noqa: E402
import numpy  # noqa: E402
from support import WAIT_S, daemons, residentd, unittest_main  # noqa: E402
import residentd.aio  # noqa: E402

X = numpy.float32([1, 2, 3])
SWITCHES = 20
# Calls that are made in the meantime, at least.
CALLS = int(os.environ.get("RESIDENT_FLEET_CALLS", "2000"))
POISON = 12345.0
SOURCE = """#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(times)(resident::Block& block, const resident::Args& args) {{
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) {{
    {twist}
    out[i] = {factor} * x[i];
  }});
}}
"""
# It stores to a bad address if it finds the poison.
FAULT = "if (x[i] == 12345.0f) *reinterpret_cast<volatile float*>(16) = 1;"
PROGRAM = "MOVI R0, {}\nHALT\n"


class VersionsTest(unittest.TestCase):
    def node(self, *flags):
        node = daemons.Daemon(*flags)
        self.addCleanup(node.stop)
        rd = residentd.connect(node.address)
        self.addCleanup(rd.close)
        return node, rd

    def install(self, rd, factor, label="", wait="active"):
        """Installs a version of `times`; returns its content hash."""
        installed = rd.operators.install("times", expr="x * {}".format(factor), label=label, wait=wait)
        return self.hash_of(rd, installed.version)

    def hash_of(self, rd, version):
        found = [each.content_hash for each in rd.operators.describe("times").message.versions
                 if each.version == version]
        self.assertRegex(found[0], "^[0-9a-f]{64}$")
        return found[0]

    def two_nodes(self):
        """Two nodes with equal contents: version 7 of the one, version 2 of the other."""
        (a, rd_a), (b, rd_b) = self.node(), self.node()
        for factor in (3, 4, 3, 4, 3, 4):
            self.install(rd_a, factor)
        self.install(rd_b, 5)
        digests = {self.install(rd, 7, label="2026-11-27.1") for rd in (rd_a, rd_b)}
        self.assertEqual([rd.operators.describe("times").active_version for rd in (rd_a, rd_b)], [7, 2])
        self.assertEqual(len(digests), 1)
        return (a, rd_a), (b, rd_b), digests.pop()

    def refused(self, kind, texts, function, *args):
        with self.assertRaises(kind) as caught:
            function(*args)
        for text in texts + ("\nFix: ",):
            self.assertIn(text, str(caught.exception))

    def test_one_name_means_the_same_on_nodes_with_other_version_numbers(self):
        *nodes, digest = self.two_nodes()
        for (node, rd), number in zip(nodes, (7, 2)):
            # Another version serves.
            self.install(rd, 8)
            numpy.testing.assert_array_equal(rd.op("times")(X), 8 * X)
            for named in ({"content_hash": digest}, {"content_hash": digest[:12]},
                          {"label": "2026-11-27.1"}, {"version": number}):
                operator = rd.op("times", **named)
                for _ in range(2):  # The second call is made of the first one's parts.
                    result = operator.run(X)
                    numpy.testing.assert_array_equal(result.value, 7 * X)
                    self.assertEqual(result.version, number)
                    self.assertEqual(result.content_hash, "" if "version" in named else digest)
                numpy.testing.assert_array_equal(operator.map(numpy.stack([X, X])), 7 * numpy.stack([X, X]))
                numpy.testing.assert_array_equal(operator.submit(X).result(WAIT_S), 7 * X)
            self.assertEqual(rd.op("times").run(X).content_hash, "")
            for flag, value in (("--op_hash", digest), ("--op_label", "2026-11-27.1")):
                ran = node.ctl("run", "times", "x=1,2,3", flag + "=" + value, "--json").json
                self.assertEqual(ran["outputs"]["out"]["values"], [7, 14, 21])
                self.assertEqual((ran["version"], ran["content_hash"]), (number, digest))
            with inference_client.Client(node.address) as inference:
                for version in ("sha256:" + digest, "sha256:" + digest[:12], "@2026-11-27.1"):
                    request = inference_client.request("times", {"x": X})
                    request.model_version = version
                    answer = inference.ModelInfer(request)
                    self.assertEqual(answer.raw_output_contents[0], (7 * X).tobytes())
                    self.assertEqual(answer.model_version, str(number))
                    self.assertEqual(answer.parameters["content_hash"].string_param, digest)
                    self.assertTrue(inference.ModelReady(name="times", version=version).ready)
                self.assertFalse(inference.ModelReady(name="times", version="@other").ready)
                for version in ("sha256:abc", "sha256:" + digest.upper(), "@", "@a b", "x"):
                    with self.assertRaises(grpc.RpcError) as invalid:
                        inference.ModelReady(name="times", version=version)
                    self.assertEqual(invalid.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

            async def awaited():
                async with residentd.aio.connect(node.address) as client:
                    return await client.op("times", content_hash=digest)(X)

            numpy.testing.assert_array_equal(asyncio.run(awaited()), 7 * X)

    def test_a_program_has_a_hash_and_a_label_too(self):
        node, rd = self.node()
        folder = pathlib.Path(tempfile.mkdtemp(dir=node.folder))
        for value in (1, 2):
            (folder / "rule.s").write_text(PROGRAM.format(value))
            done = node.ctl("ops", "install", "rule", "--flux=" + str(folder / "rule.s"),
                            "--label=value-{}".format(value), "--native=off", "--wait=active")
            self.assertEqual(done.code, daemons.OK, done)
        for value in (1, 2):
            ran = node.ctl("flux", "run", "--operator=rule", "--op_label=value-{}".format(value),
                           "--registers=0", "--json").json
            self.assertEqual(ran["registers"], {"R0": value})
            digest = [each.content_hash for each in rd.operators.describe("rule").message.versions
                      if each.label == "value-{}".format(value)][0]
            ran = node.ctl("flux", "run", "--operator=rule", "--op_hash=" + digest, "--registers=0",
                           "--json").json
            self.assertEqual((ran["registers"], ran["version"]), ({"R0": value}, value))

    def test_each_pinned_call_has_its_version_while_others_are_switched(self):
        *nodes, digest = self.two_nodes()
        stop = threading.Event()
        calls = [0] * 4
        errors = []

        def work(index, call):
            while not stop.is_set():
                try:
                    call()
                except BaseException as error:  # Also a failed assertion.
                    errors.append(error)
                    return
                calls[index] += 1

        def check(result):
            numpy.testing.assert_array_equal(result.value, 7 * X)
            self.assertEqual(result.content_hash, digest)

        kinds = []
        for _, rd in nodes:
            by_hash, by_label = rd.op("times", content_hash=digest), rd.op("times", label="2026-11-27.1")
            kinds.append(lambda op=by_hash: check(op.run(X)))
            kinds.append(lambda op=by_label: numpy.testing.assert_array_equal(
                op.submit(X).result(WAIT_S), 7 * X))
        threads = [threading.Thread(target=work, args=each) for each in enumerate(kinds)]
        for thread in threads:
            thread.start()

        def further_calls(count):
            """Waits until each thread has made so many more calls."""
            wanted = [done + count for done in calls]
            deadline = time.monotonic() + WAIT_S
            while any(done < needed for done, needed in zip(calls, wanted)) and not errors:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)

        try:
            switches = 0
            while switches < SWITCHES or (sum(calls) < CALLS and not errors):
                for _, rd in nodes:
                    # The pinned version serves, then it is the previous one, then it serves again.
                    self.install(rd, 3 + switches % 4, wait="loaded")
                    rd.operators.activate("times")
                    further_calls(5)
                    rd.operators.rollback("times")
                    further_calls(5)
                switches += 2
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(errors, [])
        self.assertGreaterEqual(sum(calls), CALLS)
        print("{} switches on each node, {} pinned calls".format(switches, sum(calls)))

    def test_a_version_that_is_not_in_the_kernel_is_not_found(self):
        _, rd = self.node()
        first = self.install(rd, 3, label="first")
        self.install(rd, 4, label="second")
        numpy.testing.assert_array_equal(rd.op("times", content_hash=first)(X), 3 * X)
        self.install(rd, 5)
        texts = ("operator 'times'", first, "version 2 (previous, label 'second')", "version 3 (active)")
        self.refused(residentd.NotFound, texts, rd.op("times", content_hash=first), X)
        self.refused(residentd.NotFound, ("label 'first'",) + texts[2:], rd.op("times", label="first"), X)
        numpy.testing.assert_array_equal(rd.op("times", label="second")(X), 4 * X)
        # The label goes to another version.
        self.install(rd, 6, label="second")
        numpy.testing.assert_array_equal(rd.op("times", label="second")(X), 6 * X)
        self.assertEqual(rd.operators.describe("times").labels, {"second": 4})
        for digits in (first[:11], first + "0", first.upper(), "x" * 12):
            self.refused(residentd.InvalidArgument, ("is not a content hash",),
                         rd.op("times", content_hash=digits), X)
        self.refused(residentd.InvalidArgument, ("in several ways",),
                     lambda: rd.op("times", 1, label="second"))
        self.refused(residentd.NotFound, ("version 1 (active)",), rd.op("add", label="second"), X, X)

    def test_a_quarantined_version_is_a_failed_precondition(self):
        _, rd = self.node()
        options = {"signature": "x: in f32[*S], out: out f32[*S]", "wait": "active"}
        rd.operators.install("times", source=SOURCE.format(factor=3, twist=""), label="good", **options)
        bad = rd.operators.install("times", source=SOURCE.format(factor=9, twist=FAULT), label="bad",
                                   **options)
        digest = self.hash_of(rd, bad.version)
        faulty = rd.op("times", content_hash=digest)
        numpy.testing.assert_array_equal(faulty(X), 9 * X)
        with self.assertRaises(residentd.TaskFailed):
            faulty(numpy.float32([POISON]))
        deadline = time.monotonic() + WAIT_S
        while rd.operators.describe("times").versions[bad.version] != "quarantined":
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        for named in ({"content_hash": digest}, {"label": "bad"}):
            self.refused(residentd.FailedPrecondition, ("is quarantined",), rd.op("times", **named), X)
        # Also while the engine is being replaced: the call is sent again then.
        numpy.testing.assert_array_equal(rd.op("times", label="good")(X, retry=True), 3 * X)

    def test_a_content_hash_and_a_label_are_no_permission(self):
        with tempfile.TemporaryDirectory(prefix="residentd-versions-") as folder:
            policy = pathlib.Path(folder) / "policy"
            for permitted in (["add"], ["add", "times"]):
                policy.write_text(json.dumps({"identities": {"anonymous": {
                    "roles": ["submit", "install", "admin"], "operators": {"submit": permitted}}}}))
                policy.chmod(0o600)
                _, rd = self.node("--policy={}".format(policy))
                digest = self.install(rd, 3, label="stable")
                for named in ({"content_hash": digest}, {"label": "stable"}):
                    times = rd.op("times", **named)
                    if "times" in permitted:
                        numpy.testing.assert_array_equal(times(X), 3 * X)
                    else:
                        self.refused(residentd.PermissionDenied, ("times",), times, X)

    def test_a_restart_keeps_the_nodes_id_and_the_labels(self):
        with tempfile.TemporaryDirectory(prefix="residentd-versions-") as folder:
            flags = ("--state_dir=" + folder + "/state", "--node_name=node-1.example")
            node, rd = self.node(*flags)
            self.install(rd, 3, label="old")
            self.install(rd, 4, label="new")
            before = rd.status()
            self.assertRegex(before.node_id, "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-"
                             "[0-9a-f]{12}$")
            self.assertEqual(before.node_name, "node-1.example")
            self.assertIn("node-1.example, " + before.node_id, node.ctl("status").out)
            audit = node.ctl("ops", "audit", "--json").json
            self.assertEqual((audit["node_id"], audit["node_name"]), (before.node_id, before.node_name))
            rd.close()
            node.stop()
            node, rd = self.node(*flags)
            self.assertEqual(node.ctl("status", "--json").json["node_id"], before.node_id)
            for label, factor in (("old", 3), ("new", 4)):
                numpy.testing.assert_array_equal(rd.op("times", label=label)(X), factor * X)
        others = [self.node()[1].status() for _ in range(2)]
        self.assertEqual(len({before.node_id, others[0].node_id, others[1].node_id}), 3)
        self.assertEqual({other.node_name for other in others}, {os.uname().nodename})

    def test_summaries_of_nodes_on_which_the_same_versions_serve_are_equal(self):
        *nodes, digest = self.two_nodes()
        summaries = [node.ctl("ops", "summary", "--json").json for node, _ in nodes]
        self.assertEqual(summaries[0]["digest"], summaries[1]["digest"])
        for summary in summaries:
            (times,) = summary["operators"]
            self.assertEqual(times["name"], "times")
            active = times["versions"][0]
            self.assertEqual((active["content_hash"], active["state"], active["label"]),
                             (digest, "active", "2026-11-27.1"))
        nodes[0][1].operators.rollback("times")
        changed = nodes[0][0].ctl("ops", "summary", "--json").json
        self.assertNotEqual(changed["digest"], summaries[1]["digest"])
        self.assertIn(digest[:12], nodes[0][0].ctl("ops", "summary").out)


if __name__ == "__main__":
    unittest_main.main()
