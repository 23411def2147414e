#!/usr/bin/python3
"""Calls of operators: what is accepted, what is returned, and what is refused before it is sent."""

import ctypes
import inspect
import os
import pathlib
import pydoc
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402
from residentd import cuda_array, descriptors  # noqa: E402

sys.path.insert(0, str(support.HERE.parent / "inference"))  # Memory of a GPU.

import numpy as np  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402

X, Y = np.float32([1, 2, 3]), np.float32([10, 20, 30])


def fields(data):
    """The fields of a serialized message that have a length: number and bytes."""
    at = 0
    while at < len(data):
        number, at = data[at] >> 3, at + 1
        size = shift = 0
        while True:
            size |= (data[at] & 0x7f) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        yield number, data[at:at + size]
        at += size


def forget_json_names(messages):
    for each in messages:
        for field in each.field:
            field.ClearField("json_name")
        forget_json_names(each.nested_type)


class PretendedDriver:
    """Functions of the CUDA driver, for which memory of this process is that of a device.

    pool: whether the memory belongs to no context. fails: the function that returns an error.
    """

    def __init__(self, pool=False, fails=None):
        self.calls, self.pool, self.fails = [], pool, fails

    def __getattr__(self, name):
        def function(*args):
            self.calls.append((name, args))
            if name == self.fails:
                return 700
            if name == "cuPointerGetAttribute":
                args[0]._obj.value = None if args[1] == 1 and self.pool else 5
            if name == "cuMemcpyDtoH_v2":
                ctypes.memmove(args[0], args[1].value, args[2].value)
            return 0

        return function


class OnGpu:
    """An array of another package whose memory is a device's."""

    def __init__(self, array, **entries):
        self.keep = array
        interface = dict(array.__array_interface__, version=3, **entries)
        self.__cuda_array_interface__ = interface

    def __array__(self, *args, **kwargs):
        raise TypeError("no implicit copy")


class Calls(support.PackageTest):

    def test_numpy_in_and_out(self):
        out = self.rd.op("add")(X, Y, alpha=2)
        self.assertEqual(out.dtype, np.float32)
        np.testing.assert_array_equal(out, X + 2 * Y)
        out[0] = 5  # The result is the caller's own.

    def test_the_result_names_version_device_and_time(self):
        result = self.rd.op("add").run(X, Y)
        np.testing.assert_array_equal(result.outputs.out, X + Y)
        self.assertEqual((result.version, result.device), (1, 0))
        self.assertGreater(result.device_ns, 0)

    def test_several_outputs_are_a_named_tuple(self):
        weights, indices = found = self.rd.op("softmax_topk")(np.float32([[1, 5, 3]]), shape=(1, 2))
        self.assertEqual(found._fields, ("weights", "indices"))
        np.testing.assert_array_equal(indices, [[1, 2]])
        self.assertEqual(weights.shape, (1, 2))

    def test_lists_and_numbers_take_the_dtype_of_the_arrays(self):
        add = self.rd.op("add")
        self.assertEqual(add([1, 2], [3, 4]).dtype, np.float32)
        self.assertEqual(add(np.float64([1, 2]), 3).dtype, np.float64)
        self.assertEqual(add(np.int32([1, 2]), 3).dtype, np.int32)
        np.testing.assert_array_equal(add(np.int32([1, 2]), [3.5, 1]), [4.5, 3])

    def test_dtypes_of_outputs_are_the_widest_or_chosen(self):
        add = self.rd.op("add")
        self.assertEqual(add(X, Y.astype(np.float16)).dtype, np.float32)
        self.assertEqual(add(np.int32(X), Y.astype(np.float16)).dtype, np.float16)
        self.assertEqual(add(residentd.bfloat16(X), Y.astype(np.float16)).dtype, np.float32)
        self.assertEqual(add(X, Y, dtype="f16").dtype, np.float16)
        self.assertEqual(add(X, Y, dtype={"out": np.float64}).dtype, np.float64)
        copied = self.rd.op("copy")(X, dtype="bf16")
        self.assertIsInstance(copied, residentd.BFloat16Array)
        np.testing.assert_array_equal(copied.to_float32(), X)
        self.refused(residentd.InvalidArgument, "'out' of add: it cannot be u8", add, X, Y, dtype="u8")

    def test_bfloat16_in_and_out(self):
        x = residentd.bfloat16([1.0, 2.5, float("inf"), 1.00390625])
        np.testing.assert_array_equal(x.to_float32(), np.float32([1, 2.5, np.inf, 1]))
        out = self.rd.op("add")(x, x)
        np.testing.assert_array_equal(out.to_float32(), np.float32([2, 5, np.inf, 2]))
        with self.assertRaises(TypeError):
            x + x

    def test_what_has_elements_is_an_array(self):
        class Array:
            def __array__(self, dtype=None, copy=None):
                return X

        class Dlpack:
            def __dlpack__(self, **options):
                return X.__dlpack__(**options)

            def __dlpack_device__(self):
                return X.__dlpack_device__()

        add = self.rd.op("add")
        np.testing.assert_array_equal(add(Array(), Y), X + Y)
        if hasattr(np, "from_dlpack"):
            np.testing.assert_array_equal(add(Dlpack(), Y), X + Y)
        self.refused(residentd.InvalidArgument, "str is not an array", add, "text", Y)

    def pretend_driver(self, **options):
        driver = PretendedDriver(**options)
        self.addCleanup(setattr, cuda_array, "_driver", cuda_array._driver)
        cuda_array._driver = driver
        return driver

    def test_arrays_in_gpu_memory_are_copied(self):
        add = self.rd.op("add")
        every = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for pool in (False, True):
            self.pretend_driver(pool=pool)
            for x in (X, every, every.T, every[::-1, 1:, ::-2], every[:, 1], np.broadcast_to(X, (4, 3)),
                      np.float32(3), np.empty((0, 3), np.float32), every.astype(np.float16), every.astype("i4")):
                with self.subTest(shape=np.shape(x), pool=pool):
                    out = add(OnGpu(np.asarray(x)), 1)
                    self.assertEqual((out.dtype, out.shape), (x.dtype, np.shape(x)))
                    np.testing.assert_array_equal(out, x + np.asarray(1, x.dtype))
        np.testing.assert_array_equal(add.map(OnGpu(every), OnGpu(X[:1]), shared=("y",)), every + 1)
        np.testing.assert_array_equal(self.rd.upload(OnGpu(every.T)).numpy(), every.T)

    def test_a_copy_from_gpu_memory_waits_for_the_arrays_stream(self):
        # Older versions of the interface do not name a stream; None: there is nothing to wait for.
        for stream, called, argument in (({"stream": 77}, "cuStreamSynchronize", 77), ({}, "cuCtxSynchronize", None),
                                         ({"stream": None}, None, None)):
            driver = self.pretend_driver()
            self.rd.op("add")(OnGpu(X, **stream), Y)
            waits = [(name, args[0].value if args else None) for name, args in driver.calls
                     if "Synchronize" in name]
            self.assertEqual(waits, [(called, argument)] if called else [])
            names = [name for name, _ in driver.calls]
            if called:
                self.assertLess(names.index(called), names.index("cuMemcpyDtoH_v2"))
            # The thread's context is the same as before.
            self.assertEqual(names.count("cuCtxPushCurrent_v2"), names.count("cuCtxPopCurrent_v2"))

    def test_arrays_in_gpu_memory_that_cannot_be_copied(self):
        add = self.rd.op("add")
        for function in ("cuPointerGetAttribute", "cuCtxPushCurrent_v2", "cuMemcpyDtoH_v2"):
            driver = self.pretend_driver(fails=function)
            self.refused(residentd.InvalidArgument, function + " returned error 700", add, OnGpu(X), Y)
            names = [name for name, _ in driver.calls]
            self.assertEqual("cuCtxPopCurrent_v2" in names, function == "cuMemcpyDtoH_v2")
        self.refused(residentd.WrongType, "mask", add, OnGpu(X, mask=X), Y)
        self.pretend_driver()
        self.refused(residentd.InvalidArgument, "it is written, and OnGpu cannot be", add, X, Y, out=OnGpu(X))

    @unittest.skipUnless(os.environ.get("RESIDENT_TEST_ENGINE") == "cuda", "needs a GPU")
    def test_arrays_in_memory_of_a_real_gpu(self):
        import cuda_memory
        every = np.arange(24, dtype=np.float32).reshape(4, 6)
        with cuda_memory.Memory(every.nbytes) as memory:
            memory.write(every)
            for x in (every, every.T, every[1:, ::-2]):
                device = OnGpu(x)
                offset = x.__array_interface__["data"][0] - every.__array_interface__["data"][0]
                device.__cuda_array_interface__["data"] = (memory.address.value + offset, False)
                np.testing.assert_array_equal(self.rd.op("add")(device, 1), x + 1)
                self.assertEqual(memory.read(every.shape).tolist(), every.tolist())

    def test_torch_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        np.testing.assert_array_equal(self.rd.op("add")(x, Y), X + Y)
        half = self.rd.op("add")(x.to(torch.bfloat16), x.to(torch.bfloat16))
        np.testing.assert_array_equal(half.to_float32(), 2 * X)

    def test_bfloat16_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        out = self.rd.op("add")(X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.bfloat16)[::-1])
        np.testing.assert_array_equal(out.to_float32(), [4, 4, 4])

    def test_outputs_are_written_to_the_array_that_is_passed(self):
        out = np.zeros((2, 3), np.float32)
        returned = self.rd.op("add")(X, Y, out=out[1])
        np.testing.assert_array_equal(out, [[0, 0, 0], X + Y])
        self.assertTrue(np.shares_memory(returned, out))
        reversed_columns = np.zeros(6, np.float32)
        self.rd.op("add")(X, Y, out=reversed_columns[::-2])
        np.testing.assert_array_equal(reversed_columns[::-2], X + Y)

    def test_an_inout_is_updated_and_returned(self):
        c = np.full((2, 2), 5, np.float32)
        gemm = self.rd.op("gemm")
        out = gemm(np.eye(2, dtype="f"), np.ones((2, 2), "f"), c, beta=1)
        self.assertIs(out, c)
        np.testing.assert_array_equal(c, np.full((2, 2), 6))
        np.testing.assert_array_equal(gemm(np.eye(2, dtype="f"), np.ones((2, 2), "f")), np.ones((2, 2)))
        c.flags.writeable = False
        self.refused(residentd.InvalidArgument, "it is written", gemm, np.eye(2, dtype="f"),
                     np.ones((2, 2), "f"), c)

    def test_none_is_an_optional_tensor_that_is_absent(self):
        x, w = np.float32([[1, 2, 3]]), np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(self.rd.op("gemv")(x, w, None), [[6, 6]])
        self.refused(residentd.InvalidArgument, "'w' of gemv: it is missing", self.rd.op("gemv"), x, None,
                     None)

    def test_strided_views_of_arrays(self):
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for view in (x.T, x[:, ::-1], x[::2, 1:, ::3], np.broadcast_to(x[0, 0], (5, 4))):
            np.testing.assert_array_equal(self.rd.op("add")(view, view), 2 * view)
        np.testing.assert_array_equal(self.rd.op("sum_rows")(x[0].T), x[0].T.sum(1))

    def test_tensors_without_dimensions_and_without_elements(self):
        add = self.rd.op("add")
        self.assertEqual(add(np.float32(1), np.float32(2)).shape, ())
        self.assertEqual(add(np.empty((0, 3), np.float32), X).shape, (0, 3))

    def test_what_does_not_match_is_refused_before_it_is_sent(self):
        add = self.rd.op("add")
        wrong = residentd.InvalidArgument
        before = self.rd.status().devices[0].completed_tasks
        error = self.refused(wrong, "argument 2 'y' of add: shape [2] does not broadcast", add, X, Y[:2])
        self.assertEqual((error.reason, error.operator, error.code),
                         ("SHAPE_MISMATCH", "add", "INVALID_ARGUMENT"))
        self.assertIsInstance(error, ValueError)
        self.refused(wrong, "residentd has no dtype complex64", add, np.complex64([1]), Y)
        self.refused(wrong, "it is f64, and must be f32", self.rd.op("sum_rows"), np.ones((2, 3)))
        self.refused(wrong, "'alpha' of add: 'two' is not a number", add, X, Y, alpha="two")
        self.refused(wrong, "it is a scalar, not an array of shape [2]", add, X, Y, alpha=[1, 2])
        self.refused(wrong, "add has no parameter 'beta'", add, X, Y, beta=1)
        self.refused(wrong, "'x' of add is given twice", add, X, Y, x=X)
        self.refused(wrong, "'y' of add: it is missing", add, X)
        self.refused(wrong, "takes 2 tensors by position, not 3", add, X, Y, 1.0)
        self.refused(wrong, "does not follow from the inputs", self.rd.op("softmax_topk"), X[None])
        self.refused(wrong, "does not match C = 3", self.rd.op("rmsnorm"), X, Y[:2])
        self.refused(wrong, "is not an integer", self.rd.op("sum"), X, axes=1.5, shape=())
        self.assertEqual(self.rd.status().devices[0].completed_tasks, before)

    def test_masked_arrays_are_refused(self):
        masked = np.ma.masked_array(X, [False, True, False])
        add = self.rd.op("add")
        for use in (lambda: add(masked, Y), lambda: add(X, Y, out=masked), lambda: add([masked], Y),
                    lambda: add(X, Y, alpha=masked[1]), lambda: add.submit(X, masked),
                    lambda: add.map(masked, Y), lambda: self.rd.upload(masked),
                    lambda: self.rd.flux(bytes([0]), masked.astype(np.int32)),
                    lambda: residentd.bfloat16(masked), lambda: add(np.ma.masked_array(X), Y)):
            self.assertIsInstance(self.refused(residentd.WrongType, "the mask of a masked array", use),
                                  TypeError)
        np.testing.assert_array_equal(add(masked.filled(0), Y), [11, 20, 33])
        np.testing.assert_array_equal(add(masked.data, Y), X + Y)

    def test_times_that_are_none(self):
        add = self.rd.op("add")
        for time in ("5", float("nan"), float("inf"), 0, -1, True, [1]):
            for use in (lambda: add(X, Y, timeout=time), lambda: add.map(X, Y, timeout=time),
                        lambda: add.submit(X, Y, timeout=time),
                        lambda: self.rd.flux(bytes([0]), [[1]], timeout=time)):
                self.refused(residentd.InvalidArgument, "timeout={!r} is not a time".format(time), use)

    def test_a_call_that_is_repeated_has_the_same_results(self):
        """The second call with the same shapes takes the fast way."""
        add, lone = self.rd.op("add"), self.rd._operations.lone
        rng = np.random.default_rng(1)
        for shape, dtype in (((3,), "f4"), ((2, 3), "f8"), ((), "f4"), ((0, 2), "f4"), ((200, 3), "f4")):
            for kwargs in ({}, {"alpha": 2}, {"alpha": -0.5}):
                for turn in range(3):
                    x, y = (rng.random(shape).astype(dtype) for _ in range(2))
                    scale = kwargs.get("alpha", 1)
                    self.assertTrue(turn == 0 or lone("add", 0, (x, y), kwargs))
                    out = add(x, y, **kwargs)
                    np.testing.assert_allclose(out, x + np.asarray(scale, dtype) * y, rtol=1e-6)
                    self.assertEqual((out.dtype, out.shape), (x.dtype, shape))
                    out[...] = 1  # The caller's own.
                    result = add.run(x, y, **kwargs)
                    self.assertEqual((result.outputs.out.shape, result.version), (shape, 1))
        self.assertIsNone(lone("add", 0, (X, [1, 2, 3]), {}))
        self.assertIsNone(lone("add", 0, (X, Y), {"alpha": 10**400}))
        self.refused(residentd.InvalidArgument, "'alpha' of add", add, X, Y, alpha=10**400)
        np.testing.assert_array_equal(add(x=X, y=Y), X + Y)
        np.testing.assert_array_equal(add(y=X, x=Y, alpha=float("2")), Y + 2 * X)
        np.testing.assert_array_equal(add(y=Y, x=X, alpha=float("2")), X + 2 * Y)
        np.testing.assert_array_equal(add(X[::-1], Y), X[::-1] + Y)
        np.testing.assert_array_equal(np.isnan(add(X, Y, alpha=float("nan"))), [True] * 3)
        for _ in range(3):
            with self.assertRaises(residentd.TaskFailed):
                self.rd.op("sum")(X, axes=2, shape=(3,))
            weights, indices = self.rd.op("softmax_topk")(np.float32([[1, 5, 3]]), shape=(1, 2))
            np.testing.assert_array_equal(indices, [[1, 2]])
            a, b = self.rd.op("rmsnorm_residual")(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), X)
            np.testing.assert_array_equal(b.shape, (2, 3))

    def test_an_unknown_operator_names_the_most_similar(self):
        error = self.refused(residentd.NotFound, "did you mean 'add'?", self.rd.op, "ad")
        self.assertIsInstance(error, LookupError)

    def test_refusals_of_the_daemon_have_a_reason_for_programs(self):
        batch = descriptors.message("Batch")()
        batch.tasks.operator, batch.tasks.count = "add", 1
        for array in (X, Y[:2]):
            batch.tasks.arguments.add(inline={"dtype": 1, "shape": array.shape,
                                              "data": array.tobytes()})
        batch.tasks.arguments.add(returned={"dtype": 1, "shape": X.shape})
        with self.assertRaises(residentd.InvalidArgument) as caught:
            self.rd._connection._call("Executor.Run", descriptors.message("RunRequest")(batch=batch),
                                      None, "add")
        error = caught.exception
        self.assertEqual((error.reason, error.details["argument"], error.details["got"]),
                         ("SHAPE_MISMATCH", "y", "[2]"))

    def test_a_task_that_fails(self):
        with self.assertRaises(residentd.TaskFailed) as caught:
            self.rd.op("sum")(X, axes=2, shape=(3,))
        error = caught.exception
        self.assertEqual([(e.index, e.status) for e in error.errors], [(0, "INVALID_ARGUMENT")])
        self.assertFalse(error.may_have_run)
        self.assertEqual(error.operator, "sum")

    def test_help_and_signature(self):
        add = self.rd.op("add")
        self.assertEqual(list(inspect.signature(add).parameters),
                         ["x", "y", "alpha", "out", "shape", "dtype", "device", "timeout",
                          "retry", "require_isolation"])
        self.assertEqual(inspect.signature(add).parameters["alpha"].default, 1.0)
        self.assertIn("out = x + alpha * y", pydoc.render_doc(add, renderer=pydoc.plaintext))
        self.assertTrue(add.signature.startswith("x: in strided f32|f16|bf16"))
        self.assertIsInstance(add, residentd.Operator)

    def test_a_pinned_version(self):
        self.assertEqual(self.rd.op("add", version=1).run(X, Y).version, 1)
        self.refused(residentd.NotFound, "version 7", self.rd.op("add", version=7), X, Y)

    def test_map_has_one_task_for_each_row(self):
        rng = np.random.default_rng(1)
        x, y = rng.random((50, 7), np.float32), rng.random((50, 7), np.float32)
        add = self.rd.op("add")
        np.testing.assert_array_equal(add.map(x, y), x + y)
        np.testing.assert_array_equal(add.map(x, y[3], shared=("y",)), x + y[3])
        scales = np.arange(50)
        np.testing.assert_allclose(add.map(x, x, alpha=scales), x + scales[:, None].astype("f") * x, rtol=1e-6)
        np.testing.assert_array_equal(self.rd.op("sum").map(x, axes=1, shape=()), self.rows(x))
        self.refused(residentd.InvalidArgument, "tensors for 49 tasks, 'x' for 50", add.map, x, y[1:])
        self.refused(residentd.InvalidArgument, "3 values for 50 tasks", add.map, x, y, alpha=[1, 2, 3])
        self.refused(residentd.InvalidArgument, "shared names 'z'", add.map, x, y, shared=("z",))

    def rows(self, x):
        return np.array([self.rd.op("sum")(row, axes=1, shape=()) for row in x])

    def test_map_names_the_tasks_that_failed(self):
        table = np.arange(6, dtype=np.float32).reshape(3, 2)
        ids = np.int64([[0], [9], [2]])
        with self.assertRaises(residentd.TaskFailed) as caught:
            self.rd.op("embedding").map(ids, table, shared=("table",))
        self.assertEqual([e.index for e in caught.exception.errors], [1])
        self.assertIn("1 of 3 tasks failed; task 1", str(caught.exception))
        np.testing.assert_array_equal(caught.exception.result.value, [[[0, 1]], [[0, 0]], [[4, 5]]])

    def test_flux(self):
        result = self.rd.flux(b"\x20\x00\x00\x01", [[1, 2], [3, 4]])
        np.testing.assert_array_equal(result.registers, [[3], [7]])
        np.testing.assert_array_equal(result.errors, [0, 0])
        result = self.rd.flux([b"\x18\x00\x05", b"\x18\x01\x07"], registers=(0, 1))
        np.testing.assert_array_equal(result.registers, [[5, 0], [0, 7]])

    def test_a_message_over_the_limit_is_an_error_with_a_correction(self):
        with self.connect(shared_memory="off", max_message_mib=1) as rd:
            large = np.ones(1 << 18, np.float32)
            self.refused(residentd.ResourceExhausted, "larger than max", rd.op("add"), large, large)

    def test_the_descriptors_are_those_of_the_daemon(self):
        ask = self.rd._connection._channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.SERIALIZED).file
        served = [file for file in files if file.service]
        self.assertEqual(len(served), 7)
        for file in served:
            # ServerReflectionRequest.file_by_filename; in the answer, file_descriptor_response (4) has
            # the file (1).
            request = b"\x1a" + bytes([len(file.name)]) + file.name.encode()
            answer = dict(fields(next(ask(iter([request])))))
            found = [descriptor_pb2.FileDescriptorProto.FromString(data)
                     for number, data in fields(answer[4]) if number == 1]
            forget_json_names(file.message_type)  # Only protoc writes them.
            self.assertEqual([other for other in found if other.name == file.name], [file])

    def test_status_is_a_table(self):
        text = str(self.rd.status())
        self.assertIn("DEVICE", text)
        self.assertIn("residentd Python client", text)


class WithoutSharedMemory(Calls):
    """The same with arrays inline."""

    OPTIONS = {"shared_memory": "off"}


if __name__ == "__main__":
    support.unittest_main.main()
