"""Matrix products for training: by libresident_ops.so on two threads if there is one, otherwise by
NumPy, whose distribution package often has the reference BLAS (5 to 10 times slower).

    with Products.open() as products:
        c = products.multiply(a, b)        # Two matrices, or two stacks of as many matrices.
"""

import concurrent.futures
import os
import pathlib
import sys

import numpy as np

THREADS = 2
# Multiplications below which a second thread costs more than it saves.
WORTH_A_THREAD = 1 << 19


class Products:
    """NumPy's products."""

    name = "NumPy"

    @staticmethod
    def open():
        """With the library that $RESIDENT_OPS_LIBRARY names, if it is set."""
        if not os.environ.get("RESIDENT_OPS_LIBRARY"):
            return Products()
        folder = pathlib.Path(__file__).resolve().parents[2] / "library" / "python"
        sys.path.insert(0, str(folder))
        import resident_ops
        return LibraryProducts(resident_ops)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def multiply(self, a, b):
        return np.matmul(a, b)


class LibraryProducts(Products):
    """Those of the operators gemm and gemm_batched. Each thread computes some of the rows, or of the
    matrices; the results do not depend on the division."""

    name = "libresident_ops"

    def __init__(self, library):
        self.handles = [library.Operators() for _ in range(THREADS)]
        self.threads = concurrent.futures.ThreadPoolExecutor(THREADS)

    def __exit__(self, *_):
        self.threads.shutdown()
        for handle in self.handles:
            handle.close()

    def multiply(self, a, b):
        stacked = a.ndim == 3
        c = np.empty(a.shape[:-1] + b.shape[-1:], a.dtype)
        parts = THREADS if c.size * a.shape[-1] >= WORTH_A_THREAD and len(a) >= THREADS else 1
        bounds = [len(a) * i // parts for i in range(parts + 1)]

        def part(i):
            rows = slice(bounds[i], bounds[i + 1])
            self.handles[i].run("gemm_batched" if stacked else "gemm", a[rows],
                                b[rows] if stacked else b, c[rows], 1.0, 0.0)

        if parts == 1:
            part(0)
        else:
            list(self.threads.map(part, range(parts)))
        return c
