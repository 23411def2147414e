#!/usr/bin/env python3
"""The examples of docs/operator_reference.md, and `residentctl ops` as a manual, on a real daemon.

The last line is `N passed, N failed`.
"""

import pathlib
import shlex
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import daemon as daemons  # noqa: E402
import unittest_main  # noqa: E402

# Operators that a task in text form cannot call.
WITHOUT_EXAMPLE = {"compare", "flux.run"}


class Reference(daemons.DaemonTest):
    """The built-in operators as the daemon describes them."""

    def operators(self):
        return self.ctl("ops", "--json").json["operators"]

    def test_every_example_runs(self):
        for op in self.operators():
            with self.subTest(op["name"]):
                if op["name"] in WITHOUT_EXAMPLE:
                    self.assertEqual(op["example"], "")
                    continue
                result = self.ctl("run", op["name"], *shlex.split(op["example"]), "--json").json
                self.assertEqual(result["operator"], op["name"])
                self.assertTrue(result["outputs"])

    def test_every_operator_has_a_family_and_a_formula(self):
        for op in self.operators():
            with self.subTest(op["name"]):
                self.assertTrue(op["family"])
                self.assertTrue(op["summary"])

    def test_ops_lists_by_family(self):
        lines = self.ctl("ops").out.splitlines()
        names = [line.split()[0] for line in lines if line]
        self.assertLess(names.index("elementwise:"), names.index("add"))
        self.assertLess(names.index("add"), names.index("reduction:"))
        self.assertLess(names.index("reduction:"), names.index("sum_rows"))
        self.assertNotIn("installed:", names)
        self.ctl("ops", "install", "twice", "--expr=2 * x", "--wait=active")
        names = [line.split()[0] for line in self.ctl("ops").out.splitlines() if line]
        self.assertEqual(names[-2:], ["installed:", "twice"])

    def test_ops_show_is_a_manual_page(self):
        out = self.ctl("ops", "show", "gelu").out
        self.assertIn("gelu(x, out, tanh): out = x * P(X <= x)", out)
        self.assertIn("(detail 1)", out)
        self.assertIn("  residentctl run gelu x=-1,2\n", out)
        self.assertIn("family: elementwise", out)
        self.assertIn("about 6 S arithmetic operations\n", out)
        self.assertNotIn("arithmetic operations", self.ctl("ops", "show", "copy").out)


if __name__ == "__main__":
    unittest_main.main()
