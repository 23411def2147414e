#!/usr/bin/env python3
"""The Python binding of libresident_ops, on the CPU."""

import array
import contextlib
import ctypes
import io
import os
import pathlib
import re
import sys
import threading
import unittest

sys.path.insert(0, "tests")
sys.path.insert(0, "library/python")
os.environ["RESIDENT_OPS_LIBRARY"] = str(pathlib.Path("library/libresident_ops.so").resolve())

import resident_ops  # noqa: E402
import unittest_main  # noqa: E402
from resident_ops import abi  # noqa: E402


def floats(*values):
    return array.array("f", values)


class BindingTest(unittest.TestCase):
    def setUp(self):
        self.ops = resident_ops.Operators()
        self.addCleanup(self.ops.close)

    def test_run(self):
        out = floats(0, 0, 0)
        self.ops.run("add", floats(1, 2, 3), floats(10, 20, 30), out, 2)
        self.assertEqual(list(out), [21, 42, 63])

    def test_default_of_a_trailing_scalar(self):
        out = floats(0, 0, 0)
        self.ops.run("add", floats(1, 2, 3), floats(10, 20, 30), out)
        self.assertEqual(list(out), [11, 22, 33])

    def test_shapes_strides_and_dtypes(self):
        values = array.array("h", range(12))  # Two bytes; "h" is no element type.
        with self.assertRaises(resident_ops.InvalidValue):
            self.ops.run("copy", values, floats(*range(12)))
        x = memoryview(floats(*range(12))).cast("B").cast("f", (3, 4))
        out = array.array("d", [0] * 4)
        address = ctypes.addressof((ctypes.c_float * 12).from_buffer(x.obj))
        column = resident_ops.Tensor(address + 4, "f32", (3,), (4,), owner=x)
        self.ops.run("copy", column, memoryview(out)[:3])
        self.assertEqual(list(out), [1, 5, 9, 0])
        self.ops.run("copy", memoryview(floats(1, 2, 3))[::-1], memoryview(out)[::1][:3])
        self.assertEqual(list(out), [3, 2, 1, 0])
        index = array.array("q", [0])
        self.ops.run("argmax", floats(1, 9, 3), resident_ops.Tensor(
            index.buffer_info()[0], "i64", (), owner=index), 1)
        self.assertEqual(index[0], 1)

    def test_what_is_no_tensor_is_named_with_its_argument(self):
        x, out = floats(1, 2, 3), floats(0, 0, 0)
        for wrong in ([1, 2, 3], None, "1,2,3", object(), {1: 2}):
            for arguments, where in (((wrong, x, out), "argument 1 'x' of add"),
                                     ((x, wrong, out), "argument 2 'y' of add"), ((x, x, wrong), "argument 3 'out' of add")):
                with self.assertRaises(resident_ops.InvalidValue) as caught:
                    self.ops.run("add", *arguments)
                self.assertIn(where + ": {} is not a tensor".format(type(wrong).__name__), str(caught.exception))
                self.assertIn("Fix: pass an array of NumPy or array, another object with the buffer protocol, a torch "
                              "tensor, or a Tensor", str(caught.exception))
        with self.assertRaisesRegex(resident_ops.InvalidValue, "argument 4 'alpha' of add is a scalar, and got array"):
            self.ops.run("add", x, x, out, x)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "the operator's name is bytes, not a text"):
            self.ops.run(b"add", x, x, out)

    def test_an_optional_tensor_is_left_out_with_none(self):
        out = floats(0, 0)
        x, w = memoryview(floats(1, 2)), memoryview(floats(1, 0, 0, 10)).cast("B").cast("f", (2, 2))
        self.ops.run("gemv", x, w, None, out)
        self.assertEqual(list(out), [1, 20])
        with self.assertRaisesRegex(resident_ops.InvalidValue, "argument 2 'w' of gemv: NoneType is not a tensor"):
            self.ops.run("gemv", x, None, None, out)

    def test_bfloat16(self):
        class Bits:
            """As an array of ml_dtypes.bfloat16: without the buffer protocol, and with a view of its bits."""

            dtype = "bfloat16"

            def __init__(self, bits):
                self.bits = bits

            def view(self, kind):
                assert kind == "uint16"
                return memoryview(self.bits)

        out = floats(0, 0)
        bits = array.array("H", [0x3F80, 0xC000])  # 1, -2.
        self.ops.run("copy", Bits(bits), out)
        self.assertEqual(list(out), [1, -2])
        self.ops.run("copy", resident_ops.Tensor(bits.buffer_info()[0], "bf16", (2,), owner=bits), out)
        self.assertEqual(list(out), [1, -2])
        with self.assertRaisesRegex(resident_ops.InvalidValue, "elements of format 'H'"):
            self.ops.run("copy", bits, out)

    def test_after_close_every_call_says_so(self):
        ops = resident_ops.Operators()
        ops.close()
        ops.close()
        x = floats(1)
        for call in (lambda: ops.run("add", x, x, x), ops.check, ops.result):
            with self.assertRaisesRegex(resident_ops.InvalidValue, "these Operators are closed. Fix: call them before"):
                call()

    def test_details_are_explained(self):
        out = floats(0)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "tanh is neither 0 nor 1 .detail 1.. Fix: give 0 or 1"):
            self.ops.run("gelu", floats(1), out, 2)

    def test_refusals_are_exceptions_with_the_reason(self):
        with self.assertRaisesRegex(resident_ops.InvalidValue, "'softmax'"):
            self.ops.run("softmx", floats(1), floats(1))
        x = floats(1, 2, 3)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "overlaps"):
            self.ops.run("softmax", x, x)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "read-only"):
            self.ops.run("copy_bytes", b"abc", b"xyz")
        with self.assertRaisesRegex(resident_ops.InvalidValue, "does not fit 64 bits"):
            self.ops.run("gelu", x, floats(0, 0, 0), 2**63)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "rank 9"):
            self.ops.run("relu", resident_ops.Tensor(0, "f32", (1,) * 9), x)

    def test_value_that_an_operator_refuses(self):
        with self.assertRaisesRegex(resident_ops.InvalidValue, "detail 1"):
            self.ops.run("gelu", floats(1), floats(0), 2)
        with self.assertRaisesRegex(resident_ops.InvalidValue, "detail 1"):
            self.ops.check()
        self.ops.check()

    def test_no_gpu(self):
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("there is a GPU")
        with self.assertRaises(resident_ops.NotAvailable):
            resident_ops.Operators(0)

    def test_result(self):
        self.ops.run("compare", floats(1, 2, 3), floats(1, 5, 6))
        self.assertEqual(int.from_bytes(self.ops.result()[:8], "little"), 2)

    def test_names_and_signatures(self):
        names = resident_ops.names()
        self.assertIn("softmax", names)
        for name in names:
            self.assertRegex(resident_ops.signature(name), r"^\w+: ")
        with self.assertRaises(resident_ops.InvalidValue):
            resident_ops.signature("no such operator")

    def test_the_page(self):
        page = pathlib.Path("docs/ops_library.md").read_text()
        code, text = re.search(r"```python\n(.*?)```\n```text\n(.*?)```", page, re.DOTALL).groups()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        self.assertEqual(printed.getvalue(), text)

    def test_the_last_error_belongs_to_the_thread(self):
        with self.assertRaises(resident_ops.InvalidValue):
            self.ops.run("softmx", floats(1), floats(1))
        library = abi.load(os.environ["RESIDENT_OPS_LIBRARY"])
        other = []
        thread = threading.Thread(target=lambda: other.append(library.resident_ops_last_error()))
        thread.start()
        thread.join()
        self.assertEqual(other, [b""])


if __name__ == "__main__":
    unittest_main.main()
