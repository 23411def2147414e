"""What the tests of task graphs share."""

import support
from support import residentd

import numpy as np


class GraphTest(support.PackageTest):

    def builder(self, name="graph"):
        return residentd.GraphBuilder(name, self.rd)

    def series(self, max_steps=8):
        """Each step adds pair[0] + k pair[1] to a total, which is also its record."""
        b = self.builder("series")
        pair, k = b.input("pair", (2, 2)), b.real("k", 0, max_steps)
        total = b.state("total", 2)
        now = b.call("add", total, b.call("add", pair[0], pair[1], alpha=k))
        b.call("copy", now, out=total)
        b.stream("sum", now)
        b.loop(max_steps, updates={k: k + 1})
        return b.build()

    def endless(self):
        """A graph whose run cannot end by itself while its records are not read."""
        b = self.builder("endless")
        b.stream("ones", b.call("relu", b.input("x", 2)))
        b.loop(1 << 20)
        return b.build()

    def scaled_twice(self):
        """A graph whose records are scaled(scaled(x)). Version 1 of the operator multiplies by 2, version 2,
        which is active, by 3. The records are large, so that the daemon is not far ahead of the client."""
        for expr in ("2 * x", "3 * x"):
            self.rd.operators.install("scaled", expr=expr, wait="active")
        self.addCleanup(self.rd.operators.remove, "scaled")
        b = self.builder("scaled twice")
        b.stream("y", b.call("scaled", b.call("scaled", b.input("x", 4096))))
        b.loop(1 << 16)
        return b.build()

    def check_versions(self, record):
        """Checks that the versions of a record of scaled_twice(), with 1 for x, are those that computed it."""
        product = 1
        for operator, version, tasks in record.versions:
            self.assertEqual(operator, "scaled")
            product *= (version + 1)**tasks
        self.assertEqual(product, record["y"][0])

    PAIR = np.float32([[1, 2], [10, 20]])

    def sums(self, first, count):
        """The records of series(): those of `count` steps from step `first` on."""
        steps = [self.PAIR[0] + k * self.PAIR[1] for k in range(first + count)]
        return np.cumsum(steps, axis=0)[first:]
