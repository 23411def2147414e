#!/usr/bin/python3
"""An input is used as it was written, or refused with a reason: lists, numbers, addresses, defaults and
files of the Python package (docs/architecture.md).

The last line is `N passed, N failed`.
"""

import asyncio
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import support
import residentd
import residentd.aio
from residentd.expression import trace

F, I = np.float32, np.int32
REFUSED = residentd.InvalidArgument
ADD_R0_R0_R1 = bytes([0x20, 0, 0, 1])


def fails(function, *args, **kwargs):
    """The error of a call, which must be one of the package with a correction."""
    try:
        result = function(*args, **kwargs)
    except residentd.Error as error:
        return error
    raise AssertionError("{!r} was accepted: {!r}".format((args, kwargs), result))


class Inputs(support.PackageTest):
    """With a daemon."""

    def check(self, *cases):
        """Each case: a function, its arguments, and the text of the refusal, or the value."""
        for number, (function, args, kwargs, expected) in enumerate(cases):
            with self.subTest(number=number, args=args, kwargs=kwargs):
                if not isinstance(expected, str):
                    np.testing.assert_array_equal(function(*args, **kwargs), expected)
                    continue
                error = fails(function, *args, **kwargs)
                self.assertIn(expected, str(error))
                self.assertTrue(error.fix, error)
                self.assertTrue(error.code, error)

    def publish(self, function, *values, **scalars):
        """The results of the function and of its operator."""
        self.rd.operators.publish(function, wait="active")
        try:
            made = self.rd.op(function.__name__)(*values, **scalars)
        finally:
            self.rd.operators.remove(function.__name__)
        np.testing.assert_allclose(made, function(*(value.copy() for value in values), **scalars), rtol=1e-6)
        return made

    def test_integers_of_lists(self):
        add, exact = self.rd.op("add"), 1 << 24
        x, big = F([1]), "the integer 16777217 is not a number of f32"
        self.check(
            (add, ([exact + 1], x), {}, big),
            (add, (x, [[exact + 1]]), {}, big),
            (add, ([0.5, exact + 1], F([1, 1])), {}, big),
            (add, ([-exact - 1], x), {}, "the integer -16777217"),
            (add, ([exact], x), {}, F([exact + 1]).astype(F) * 0 + F(exact) + F(1)),
            (add, ([exact + 2], x * 0), {}, F([exact + 2])),
            (add, (np.int32([exact + 1]), I([0])), {}, I([exact + 1])),
            (add, ([1e39], x), {}, "above the range of f32"),
            (add, ([math.inf], x), {}, F([math.inf])),
            (add, (np.float16([1]), [2049]), {}, "the integer 2049 is not a number of f16"),
            (add, (residentd.bfloat16([1]), [257]), {}, "the integer 257 is not a number of bf16"),
            (add, (x, x), {"alpha": (1 << 53) + 1}, "the integer 9007199254740993 is not a number of f64"),
            (add, (x, x), {"alpha": 1 << 53}, F([1 + 2.0**53])),
        )
        add(x, x, alpha=1.0)  # The template of calls with such a scalar.
        self.check((add, (x, x), {"alpha": (1 << 53) + 1}, "the integer 9007199254740993"))
        self.check(
            (lambda v: self.rd.upload(v).numpy(), ([exact + 1],), {}, big),
            (lambda v: self.rd.upload(v).numpy(), ([exact],), {}, F([exact])),
            (lambda v: self.rd.upload(v, "i32").numpy(), ([exact + 1],), {}, I([exact + 1])),
            (lambda v: self.rd.empty(1).write(v), ([exact + 1],), {}, big),
            (lambda: residentd.Example([exact + 1]).message(), (), {}, big),
            (lambda: residentd.Output(2.5), (), {}, "is not a shape"),
        )

    def test_integers_of_values_of_graphs(self):
        b = residentd.GraphBuilder("g", self.rd)
        b.output("y", b.call("neg", b.input("x", 2)))
        graph = b.build()
        run = lambda x: self.rd.graphs.run(graph, x=x).outputs["y"]  # noqa: E731
        self.check((run, ([1, (1 << 24) + 1],), {}, "the integer 16777217"), (run, ([1, 1 << 24],), {},
                                                                              F([-1, -(1 << 24)])))

    def test_bytes(self):
        flux = lambda code: self.rd.flux(code, [[1, 2]]).registers  # noqa: E731
        numbers, one = list(ADD_R0_R0_R1), [[3]]
        self.check(
            (flux, (numbers,), {}, "a list of 4 numbers is not FLUX bytecode\nFix: a program is bytes, or a sequence"),
            (flux, (tuple(numbers),), {}, "a list of 4 numbers"),
            (flux, (np.array(numbers, np.uint8),), {}, one),
            (flux, (np.array(numbers),), {}, "an array of int64 with 1 dimensions is not FLUX bytecode"),
            (flux, (np.array([numbers], np.uint8),), {}, "an array of uint8 with 2 dimensions"),
            (flux, ([ADD_R0_R0_R1],), {}, one),
            (flux, ([np.array(numbers, np.uint8)],), {}, one),
            (flux, (bytearray(ADD_R0_R0_R1),), {}, one),
            (flux, (memoryview(ADD_R0_R0_R1),), {}, one),
            (flux, ([ADD_R0_R0_R1, 4],), {}, "program 1 is int, not bytes"),
            (flux, ([memoryview(np.int32([4]))],), {}, "program 0 is memoryview, not bytes"),
            (flux, (["add"],), {}, "program 0 is str, not bytes"),
            (flux, ([],), {}, "the list has no programs"),
            (flux, (4,), {}, "int is not FLUX bytecode"),
            (flux, (None,), {}, "NoneType is not FLUX bytecode"),
        )
        install = self.rd.operators.install
        self.check(
            (install, ("f",), {"bytecode": 4}, "bytecode is int, not bytes"),
            (install, ("f",), {"bytecode": numbers}, "bytecode is list, not bytes"),
            (install, ("f",), {"bytecode": "20000001"}, "bytecode is str, not bytes"),
            (install, ("f",), {"source": "", "files": {"a.h": 3}}, "the file 'a.h' is int, not bytes"),
            (install, ("f",), {"source": b"x"}, "source is bytes, not a text"),
            (install, ("f",), {"expr": 3}, "expr is int, not a text"),
            (install, ("f",), {"expr": "x", "examples": [[1, 1]]}, "an example is list"),
        )
        self.assertEqual(self.rd.operators.list()[-1].name, self.rd.operators.list()[-1].name)
        self.assertNotIn("f", [each.name for each in self.rd.operators.list()])

    def test_addresses(self):
        port = int(self.daemon.address.rpartition(":")[2])
        for address in ("127.0.0.1:{}".format(port + 65536), "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:", ":50051",
                        "127.0.0.1:0", "127.0.0.1:65536", "::1:50051", "127.0.0.1:50051x", "http://h:50051",
                        "dns:///localhost:{}".format(port + 65536), "ipv4:127.0.0.1:{}".format(port + 65536), ""):
            for connect in (residentd.connect, residentd.aio.connect):
                error = fails(connect, address)
                self.assertIsInstance(error, REFUSED)
                self.assertIn("is not HOST:PORT\nFix: give a port from 1 to 65535", str(error))
        for address in (self.daemon.address, "dns:///" + self.daemon.address, "ipv4:" + self.daemon.address):
            residentd.connect(address).close()
        for name, value in (("address", None), ("address", 5), ("client_name", None), ("token_file", 3),
                            ("max_message_mib", "64"), ("max_message_mib", 0), ("arena_mib", -1),
                            ("max_message_mib", 1.5), ("timeout", "5")):
            self.assertIn(name + "=", str(fails(residentd.connect, **{name: value})))

    def test_devices_and_other_numbers(self):
        add, x = self.rd.op("add"), F([1])
        what = "is not the index of a device\nFix: use an index that rd.status() shows"
        flux = self.rd.flux
        self.check(*[(function, args, {"device": device}, what)
                     for device in (-1, "cpu", 1.0, True, 1 << 32)
                     for function, args in ((add, (x, x)), (add.map, (x, x)), (flux, (ADD_R0_R0_R1, [[1, 2]])),
                                            (self.rd.upload, (x,)))])
        self.check(
            (add, (x, x), {"timeout": "1"}, "is not a time"),
            (add, (x, x), {"shape": 1.5}, "is not a shape"),
            (add, (x, x), {"shape": -1}, "is not a shape"),
            (flux, (ADD_R0_R0_R1, [[1, 2]]), {"registers": (0.5,)}, "an argument is not accepted"),
            (flux, (ADD_R0_R0_R1, [[1, 2]]), {"max_cycles": -1}, "an argument is not accepted"),
            (flux, (ADD_R0_R0_R1, [[1, 2]]), {"count": "1"}, "an argument is not accepted"),
            (flux, (ADD_R0_R0_R1, [[1.5, 2]]), {}, "are not initial registers"),
            (self.rd.operators.install, ("f",), {"expr": "x", "task_time_ms": -1}, "an argument is not accepted"),
        )

    def test_the_timeout_of_an_install(self):
        from residentd.operators import install_steps
        for given, used in ((None, 300), (5, 5)):  # A validation may take 60 s.
            steps = install_steps("a", lambda name: None, expr="x", timeout=given)
            self.assertEqual(next(steps).timeout, used)

    def test_suggestions_compute_the_same(self):
        b = residentd.GraphBuilder("g", {"log": "x: in f32[N], out: out f32[N]", "silu": "x: in f32[N], out: out f32[N]"})
        x = b.input("x", 4)
        for name, suggested in (("lgo", True), ("log10", False), ("log2", False), ("sliu", True)):
            self.assertEqual("did you mean" in str(fails(b.call, name, x)), suggested, name)
        for name in ("log10", "log2", "selu", "std"):
            self.assertNotIn("did you mean", str(fails(self.rd.op, name)))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            missing, empty = os.path.join(folder, "none"), os.path.join(folder, "empty")
            pathlib.Path(empty).write_bytes(b"")
            for error in (fails(self.rd.operators.install, "f", object_file=missing),
                          fails(residentd.Graph.from_json, missing),
                          fails(residentd.connect, self.daemon.address, token_file=missing)):
                self.assertIsInstance(error, residentd.FileError)
                self.assertIsInstance(error, FileNotFoundError)
                self.assertIn("cannot read {}: No such file".format(missing), str(error))
            self.assertIsInstance(fails(residentd.Graph.from_json, folder), residentd.FileError)
            self.check((residentd.connect, (self.daemon.address,), {"token_file": empty}, "is empty"),
                       (residentd.Graph.from_json, ({"nodes": []},), {}, "dict is neither a text nor the path"))

    # Functions that are published.

    def test_names_of_parameters(self):
        def scaled(pi, r):
            return pi * r * r

        before = len(self.rd.operators.list())
        self.check((self.rd.operators.publish, (scaled,), {"wait": "active"},
                    "parameter 'pi' of scaled has the name of a constant of expressions\nFix: choose another name"))
        self.assertEqual(len(self.rd.operators.list()), before)
        for name in ("inf", "nan", "exp", "where", "out", "maximum", "é"):
            function = eval("lambda {0}: {0} * 2".format(name))
            self.assertIn("parameter '{}'".format(name), str(fails(trace, function)))

    def test_the_reserved_names_are_those_of_the_daemon(self):
        from residentd import expression
        for name in expression._CONSTANT_NAMES | expression._FUNCTION_NAMES:
            error = fails(self.rd.operators.install, "reserved", expr="{} -> 1".format(name))
            self.assertRegex(str(error), "'{}' is a (constant|function)".format(name))
        listed = str(fails(self.rd.operators.install, "reserved", expr="qqqqqq(x)"))
        for call in listed.partition("use one of: ")[2].split("), "):
            self.assertIn(call.partition("(")[0], expression._FUNCTION_NAMES)

    def test_defaults(self):
        x = F([1, 2])

        def shift(x, by=-1.0):
            return x + by

        def small(x, by=-1e-6, times=np.float32(2.5), less=np.int64(-3)):
            return (x + by) * times + less

        def unused(x, by=2.0):
            return x * 2

        np.testing.assert_array_equal(self.publish(shift, x), F([0, 1]))
        np.testing.assert_array_equal(self.publish(shift, x, by=3), F([4, 5]))
        self.publish(small, x)
        self.publish(unused, x)
        self.check(
            (trace, (lambda x, k=True: x * k,), {}, "the default of 'k' is not a number"),
            (trace, (lambda x, k=None: x,), {}, "the default of 'k' is not a number"),
            (trace, (lambda x, k=1j: x,), {}, "the default of 'k' is not a number"),
            (trace, (lambda x, k=(1 << 24) + 1: x * k,), {}, "the default of 'k' 16777217 is not a float32 number"),
            (trace, (lambda x, k=1e39: x * k,), {}, "the default of 'k' 1e+39 is not a float32 number"),
            (trace, (lambda x: x + ((1 << 24) + 1),), {}, "the constant 16777217 is not a float32 number"),
            (trace, (lambda x: x + 10**400,), {}, "is not a float32 number"),
        )
        self.assertEqual(trace(lambda x, k=-math.inf: x * k), "x -> (x * k) where k: scalar f32 = -inf")

    def test_the_order_of_parameters(self):
        def behind(x, y):
            return y - x

        def last(a, b, c, by=1.0):
            return c / b - a * by

        np.testing.assert_array_equal(self.publish(behind, F([1]), F([10])), F([9]))
        self.publish(last, F([1]), F([2]), F([3]))
        self.publish(last, F([1]), F([2]), F([3]), by=5.0)

    def test_assignments(self):
        def more(x):
            x += 1
            return x

        def alias(x):
            y = x
            x *= 2
            return y + x  # Both names are of one array.

        def number(x, by=1.0):
            old = by
            by += 1
            return x * by - old  # A number does not change.

        def into(x, y):
            z = x * 1
            np.add(z, y, out=z)
            z -= y * y
            return z

        for function in (more, number):
            self.publish(function, F([1, 2]))
        # The function itself changes its argument, which is why it gets a copy.
        self.publish(alias, F([1, 2]))
        self.publish(into, F([1, 2]), F([3, 4]))

    def test_a_value_is_computed_once(self):
        def iterated(x):
            for _ in range(28):
                x = x * x + 0.25
            return x

        def deep(x):
            for i in range(150):
                x = x + 0.5
            return x

        def powers(x, y):
            z = np.exp(x - y)
            return (z + 1)**4 + np.square(z) + np.where(z > 1, z, -z)

        self.publish(iterated, F([0.1, -0.5]))
        self.publish(deep, F([1, 2]))
        self.publish(powers, F([1, 2]), F([2, 1]))
        self.assertLess(len(trace(iterated)), 2000)
        self.assertEqual(trace(powers).count("exp("), 1)

        def large(x):
            for i in range(600):
                x = x * x
            return x

        self.assertIn("large has 600 operations, and an expression may have 512", str(fails(trace, large)))

    def test_what_a_published_function_cannot_do(self):
        self.check(
            (trace, (lambda x: x.clip(0, 1),), {}, "'.clip' of an array has no equivalent in an expression\nFix: write "
                                                   "numpy.clip(x, low, high)"),
            (trace, (lambda x: round(x),), {}, "write numpy.rint(x)"),
            (trace, (lambda x: math.exp(x),), {}, "use NumPy's function"),
            (trace, (lambda x: x[0],), {}, "x[...]"),
            (trace, (lambda x: x // 2,), {}, "write numpy.floor(x / y)"),
            (trace, (lambda x: np.log10(x),), {}, "write numpy.log(x) / 2.302585"),
            (trace, (lambda x: x.sum(),), {}, "use the operator for it"),
            (trace, (lambda x: max(x, 0),), {}, "numpy.maximum"),
            (trace, (lambda x: (x, x),), {}, "returns 2 values"),
            (trace, (lambda x: None,), {}, "returns nothing"),
            (trace, (lambda x: undefined,), {}, "NameError"),  # noqa: F821
            (trace, (lambda x: np.add(x, 1, where=True),), {}, "numpy.add with where="),
            (self.rd.operators.publish, (lambda x: x,), {}, "a lambda has no name"),
            (self.rd.operators.publish, (3,), {}, "publish() got int"),
        )
        self.assertFalse(hasattr(_Traced(trace).symbol, "shape"))
        self.assertIsInstance(fails(trace, lambda x: x.clip(0, 1)), residentd.NoAttribute)

    # Words.

    def test_words_are_those_of_the_package(self):
        for what, text in ((lambda: self.rd.op("ad"), "rd.operators.list()"),
                           (lambda: self.rd.op("qqqqqqqq"), "rd.operators.list()"),
                           (lambda: self.rd.op("add", version=9)(F([1]), F([1])), "leave version= out")):
            error = fails(what)
            self.assertIn(text, str(error))
            self.assertNotIn("Operators.", str(error))

    def test_details_are_explained(self):
        self.check(
            (self.rd.op("embedding"), (np.int64([99]), F([[1, 2]])), {}, "an index of `ids` is outside of the table"),
            (self.rd.op("sum"), (F([[1, 2]]),), {"axes": 2, "shape": (2,)}, "`out` has the wrong shape for these axes"),
            (self.rd.op("max"), (np.zeros((2, 0), F),), {"axis": 1}, "there are no elements to reduce"),
            (self.rd.op("rope_freqs"), (), {"base": 1, "shape": (2, 1)}, "rope_freqs"),
        )

    # Reductions as NumPy's.

    def test_reductions_take_axis_and_keepdims(self):
        x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(F)
        b = residentd.GraphBuilder("reductions", self.rd)
        given = b.input("x", x.shape)
        expected = {}
        for name in ("sum", "mean", "max", "min"):
            for axis in (None, 0, 1, -1, (0, 2), (-1, -2), (), np.int64(2)):
                for keepdims in (False, True):
                    wanted = getattr(np, name)(x, axis=axis, keepdims=keepdims)
                    made = self.rd.op(name)(x, axis=axis, keepdims=keepdims)
                    self.assertEqual(made.shape, np.shape(wanted))
                    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)
                    output = "{}.{}.{}".format(name, axis, keepdims)
                    if np.shape(wanted):
                        b.output(output, b.call(name, given, axis=axis, keepdims=keepdims))
                        expected[output] = wanted
        outputs = self.rd.graphs.run(b.build(), x=x).outputs
        for name, wanted in expected.items():
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        total = self.rd.op("sum")
        np.testing.assert_array_equal(self.rd.op("argmax")(x, axis=2), np.argmax(x, 2))
        np.testing.assert_allclose(total(x), x.sum(), rtol=1e-5)
        np.testing.assert_allclose(total.map(x, axis=-1), x.sum(-1), rtol=1e-5)
        np.testing.assert_allclose(total(x, axes=5), x.sum((0, 2)), rtol=1e-5)
        np.testing.assert_allclose(total(x.tolist(), axis=1), x.sum(1), rtol=1e-5)
        out = np.zeros((2, 3), F)
        self.assertIs(total(x, axis=2, out=out), out)
        self.check(
            (total, (x,), {"axis": 3}, "sum has no axis 3: x has 3 dimensions"),
            (total, (x,), {"axis": -4}, "sum has no axis -4"),
            (total, (x,), {"axis": (0, -3)}, "names an axis twice"),
            (total, (x,), {"axis": 1.5}, "axis=1.5 of sum is not an axis"),
            (total, (x,), {"axis": True}, "axis=True of sum is not an axis"),
            (total, (x,), {"axis": 1, "axes": 2}, "it is given with axis"),
            (total, (x,), {"axis": 1, "keepdims": 1}, "keepdims=1 of sum is not a truth value"),
            (total, (x,), {"axis": 2, "keepdims": True, "out": out}, "must be [2, 3, 1] for these axes"),
            (total, (x,), {"axis": 2, "keepdims": True, "shape": (2, 3)}, "shape= and keepdims="),
            (self.rd.op("add"), (x, x), {"axis": 1}, "add has no parameter 'axis'"),
            (b.call, ("sum", given), {"axis": 3}, "sum has no axis 3"),
        )
        self.assertIn("axis=None, *", str(total.__signature__).replace("keepdims=False", "*").replace("*, axis", "axis"))

    # Tensors of graphs.

    def test_arithmetic_of_graph_tensors(self):
        x, y = F([[1, -2, 3], [4, 5, -6]]), F([[1, 2, 2], [0.5, 4, 2]])
        w = np.random.default_rng(2).standard_normal((4, 3)).astype(F)
        b = residentd.GraphBuilder("arithmetic", self.rd)
        gx, gy, gw = b.input("x", x.shape), b.input("y", y.shape), b.input("w", w.shape)
        cases = {
            "add": lambda x, y, w: x + y, "sub": lambda x, y, w: 1 - x, "mul": lambda x, y, w: x * 2,
            "div": lambda x, y, w: x / y, "rdiv": lambda x, y, w: 1 / y, "neg": lambda x, y, w: -x,
            "abs": lambda x, y, w: abs(x), "pow": lambda x, y, w: y**2, "exp": lambda x, y, w: np.exp(x),
            "maximum": lambda x, y, w: np.maximum(x, 0), "numpy": lambda x, y, w: np.float32(2) * x,
            "matmul": lambda x, y, w: x @ w.T, "gemm": lambda x, y, w: x.T @ y,
        }
        for name, function in cases.items():
            b.output("o_" + name, function(gx, gy, gw))
        graph = b.build()
        outputs = self.rd.graphs.run(graph, x=x, y=y, w=w).outputs
        for name, function in cases.items():
            np.testing.assert_allclose(outputs["o_" + name], function(x, y, w), rtol=1e-5, atol=1e-6, err_msg=name)
        self.check(
            (lambda: gx == gy, (), {}, "and is compared"), (lambda: gx < 1, (), {}, "and is compared"),
            (lambda: bool(gx), (), {}, "is used as a truth value"), (lambda: gx in [gy], (), {}, "and is compared"),
            (lambda: gx + x, (), {}, "with a value of type ndarray"), (lambda: x + gx, (), {}, "of type ndarray"),
            (lambda: gx + None, (), {}, "of type NoneType"), (lambda: np.arctan(gx), (), {}, "numpy.arctan"),
            (lambda: np.sum(gx), (), {}, "b.call('sum', x, axis=0)"), (lambda: np.asarray(gx), (), {}, "no elements"),
            (lambda: gx @ gy, (), {}, "is not an operator"), (lambda: gx + ((1 << 24) + 1), (), {}, "16777217"),
            (lambda: gx.__iadd__(gy), (), {}, "write x = x + y in place of x += y"),
        )
        self.assertIn("<svg", graph._repr_svg_())
        self.assertIsNone(residentd.Graph.from_json(graph.to_json())._repr_svg_())
        with self.rd.graphs.load(graph) as loaded:
            self.assertIn("<svg", loaded._repr_svg_())

    # Clients.

    def test_a_client_of_asyncio_belongs_to_one_loop(self):
        rd = residentd.aio.connect(self.daemon.address)

        async def once():
            return await rd.op("add")(F([1]), F([2]))

        self.assertEqual(asyncio.run(once()), 3)
        for again in (once, rd.status, rd.buffers):
            async def call(again=again):
                return await again()

            with self.assertRaises(residentd.FailedPrecondition) as caught:
                asyncio.run(call())
            self.assertIn("belongs to another event loop", str(caught.exception))
            self.assertIn("in each asyncio.run()", caught.exception.fix)

    def test_names_and_texts(self):
        self.assertEqual(repr(self.rd), "<residentd client of {}>".format(self.daemon.address))
        self.assertIn("for asyncio", repr(residentd.aio.connect(self.daemon.address)))
        self.assertIn("GraphBuilder", dir(residentd))
        for name in ("FileError", "FileMissing", "NoAttribute", "InvalidArgument", "WrongType"):
            self.assertIn(name, residentd.__all__)
            self.assertTrue(issubclass(getattr(residentd, name), residentd.Error))

    def test_without_descriptors_the_import_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(residentd.__file__).parent
            if not source.is_dir():
                self.skipTest("the package is a wheel")
            copy = pathlib.Path(folder, "residentd")
            copy.mkdir()
            for file in source.glob("*.py"):
                copy.joinpath(file.name).write_bytes(file.read_bytes())
            done = subprocess.run([sys.executable, "-c", "import residentd"], cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("ImportError: residentd/descriptors.bin is missing", done.stderr)
            self.assertIn("make bundle", done.stderr)


class _Traced:
    """A symbol of a function that is being traced."""

    def __init__(self, tracer):
        def keep(x):
            self.symbol = x
            return x + 1

        tracer(keep)


if __name__ == "__main__":
    support.unittest_main.main()
