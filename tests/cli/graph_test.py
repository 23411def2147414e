#!/usr/bin/env python3
"""`residentctl graph`: graphs in files, on a real daemon.

The last line is `N passed, N failed`.
"""

import copy
import json
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402
from daemon import OK, FAILED, REFUSED, USAGE  # noqa: E402

FORMAT = pathlib.Path(os.environ.get("GRAPH_FORMAT") or "docs/graph_format.md").resolve()
# The example in the documentation.
EXAMPLE = json.loads(re.search(r"```json\n(.*?)```", FORMAT.read_text(), re.S).group(1))


def changed(change):
    graph = copy.deepcopy(EXAMPLE)
    change(graph)
    return json.dumps(graph)


class Files(daemons.CommandTest):
    """What is found without a daemon."""

    def test_file_that_is_not_json(self):
        result = self.check(daemons.ctl("graph", "validate", "-", stdin="{\"nodes\": [}"), USAGE)
        self.assertIn("GRAPH_E101", result.err)
        self.assertIn("Fix: ", result.err)

    def test_unknown_field_has_its_own_code(self):
        text = changed(lambda graph: graph["nodes"][0].update(opperator="add"))
        result = self.check(daemons.ctl("graph", "validate", "-", stdin=text), USAGE)
        self.assertIn("GRAPH_E108", result.err)
        self.assertIn("opperator", result.err)

    def test_unknown_enum_value(self):
        text = changed(lambda graph: graph["tensors"][0].update(kind="KIND_BUFFER"))
        self.check(daemons.ctl("graph", "validate", "-", stdin=text), USAGE)


class Graphs(daemons.DaemonTest):
    """Graphs on a daemon."""

    def validate(self, text, code):
        return self.ctl("graph", "validate", "-", stdin=text, code=code)

    def test_example_of_the_documentation_is_accepted(self):
        out = self.validate(json.dumps(EXAMPLE), OK).out
        self.assertIn("graph step accepted: 0 errors, 0 warnings; 3 nodes, 2 dependencies, "
                      "longest chain 3", out)

    def test_all_errors_of_a_graph_are_printed(self):
        def change(graph):
            graph["tensors"][3]["shape"][2]["size"] = 64
            graph["nodes"][2]["operator"] = "ad"

        out = self.validate(changed(change), FAILED).out
        self.assertRegex(out, r"error GRAPH_E203 node append tensor cache: .*rows 0 to 127.*Fix: ")
        self.assertRegex(out, r"error GRAPH_E104 node sum: .*did you mean 'add'")
        self.assertIn("refused", out)

    def test_report_as_json(self):
        text = changed(lambda graph: graph["nodes"].reverse())
        report = self.ctl("graph", "validate", "-", "--json", stdin=text, code=FAILED).json
        self.assertFalse(report["accepted"])
        self.assertIn("GRAPH_E401", [finding["code"] for finding in report["findings"]])
        for finding in report["findings"]:
            self.assertIn("Fix: ", finding["message"])

    def test_show_prints_the_derived_order(self):
        out = self.ctl("graph", "show", "-", stdin=json.dumps(EXAMPLE)).out
        self.assertRegex(out, r"(?m)^ +1 +append +kv_append\(kv, cache, pos\)$")
        self.assertRegex(out, r"(?m)^ +2 +attend +attention\(.*kv_len=pos \+ 1\) +append$")
        self.assertRegex(out, r"(?m)^ +3 +sum +add\(residual, attended, out\) +attend$")
        self.assertIn("loop of up to 128 steps", out)

    def test_show_as_dot(self):
        out = self.ctl("graph", "show", "-", "--dot", stdin=json.dumps(EXAMPLE)).out
        self.assertTrue(out.startswith('digraph "step" {'))
        self.assertIn("n0 -> n1;", out)
        self.assertIn("n1 -> n2;", out)

    def test_show_of_a_refused_graph_prints_its_findings(self):
        text = changed(lambda graph: graph["nodes"].clear())
        self.assertIn("GRAPH_E107", self.ctl("graph", "show", "-", stdin=text, code=FAILED).out)

    def test_installed_operator_can_be_called(self):
        self.ctl("ops", "install", "twice", "--expr", "x + x", "--wait=active")
        tensor = {"dtype": "DTYPE_F32", "shape": [{"size": 8}]}
        graph = {
            "format": 1,
            "tensors": [dict(tensor, name="a", kind="KIND_INPUT"),
                        dict(tensor, name="b", kind="KIND_OUTPUT")],
            "nodes": [{"operator": "twice",
                       "arguments": [{"tensor": {"name": "a"}}, {"tensor": {"name": "b"}}]}],
        }
        self.validate(json.dumps(graph), OK)
        graph["nodes"][0]["version"] = 9
        self.assertIn("GRAPH_E104", self.validate(json.dumps(graph), FAILED).out)

    def test_request_without_a_graph_is_served_as_an_empty_one(self):
        self.assertIn("GRAPH_E107", self.validate("{\"format\": 1}", FAILED).out)

    def test_file_larger_than_a_message(self):
        daemon = daemons.Daemon("--max_message_mib=1")
        self.addCleanup(daemon.stop)
        node = dict(EXAMPLE["nodes"][2], name="")
        text = changed(lambda graph: graph["nodes"].extend([node] * 40000))
        self.check(daemon.ctl("graph", "validate", "-", stdin=text), REFUSED)


if __name__ == "__main__":
    unittest_main.main()
