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

    PAIR = np.float32([[1, 2], [10, 20]])

    def sums(self, first, count):
        """The records of series(): those of `count` steps from step `first` on."""
        steps = [self.PAIR[0] + k * self.PAIR[1] for k in range(first + count)]
        return np.cumsum(steps, axis=0)[first:]
