#!/usr/bin/python3
"""Buffers, their views, and memory that is shared with the daemon."""

import gc
import json
import os
import pathlib
import struct
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

N = 1 << 16  # Elements of an array that goes through the arena.


class Buffers(support.PackageTest):

    def test_upload_numpy_and_write(self):
        values = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
        with self.rd.upload(values) as buffer:
            self.assertEqual((buffer.shape, buffer.dtype, buffer.nbytes), ((2, 3, 4), "f64", 192))
            np.testing.assert_array_equal(buffer.numpy(), values)
            buffer[1].write(np.ones(4))
            values[1] = 1
            np.testing.assert_array_equal(np.asarray(buffer), values)
            self.refused(residentd.InvalidArgument, "the array f32", buffer.write, np.ones(1, np.float32))
            self.refused(residentd.InvalidArgument, "does not broadcast", buffer.write, np.ones(7))
        self.refused(residentd.FailedPrecondition, "was freed", buffer.numpy)
        np.testing.assert_array_equal(self.rd.upload([1, 2]).numpy(), np.float32([1, 2]))
        self.assertEqual(self.rd.upload(values, "bf16").numpy().to_float32()[0, 1, 1], 5)

    def test_upload_refuses_values_that_the_dtype_cannot_represent(self):
        for dtype, values in (("i32", [1.5]), ("i32", np.int64([2**40])), ("u8", 300), ("u8", np.int8([-1])),
                              ("i64", residentd.bfloat16([0.5]))):
            self.refused(residentd.InvalidArgument, dtype + " cannot represent", self.rd.upload, values, dtype)
        for dtype in (None, "f32", "bf16", "i32"):
            for values in ([1j], 1j, [[1, None]], ["1"]):
                self.refused(residentd.InvalidArgument, "are not numbers", self.rd.upload, values, dtype)
        for dtype, values in (("u8", [0, 255.0]), ("i32", residentd.bfloat16([-3, 4])), ("f16", [0.1, 7]),
                              ("f64", np.float32([0.1, 2])), ("i64", [True, False])):
            storage = residentd.dtypes.find(dtype).storage
            wanted = np.array(list(values)).astype(storage)
            np.testing.assert_array_equal(self.rd.upload(values, dtype).numpy(), wanted)

    def test_write_refuses_values_that_the_dtype_cannot_represent(self):
        for dtype, values in (("i32", [1.5]), ("i32", [2**40]), ("i32", [float("nan")]), ("u8", [300]),
                              ("u8", -1), ("i64", np.uint64([2**63]))):
            with self.rd.upload([7], dtype) as buffer:
                self.refused(residentd.InvalidArgument, dtype + " cannot represent", buffer.write, values)
                self.assertEqual(buffer.numpy()[0], 7)
                buffer.write([2.0])
                self.assertEqual(buffer.numpy()[0], 2)
        for dtype in ("f32", "bf16", "i32"):
            with self.rd.upload([7], dtype) as buffer:
                self.refused(residentd.InvalidArgument, "complex128", buffer.write, np.complex128([1j]))
                self.refused(residentd.InvalidArgument, "object", buffer.write, [None])

    def test_the_bits_of_bfloat16_are_not_taken_as_numbers(self):
        x = residentd.bfloat16([[1.5, -2], [0.25, float("inf")]])
        exact = np.float32([[1.5, -2], [0.25, float("inf")]])
        with self.rd.upload(x) as buffer, self.rd.upload(x, "f32") as single:
            for dtype in (None, np.float32, np.float64):
                np.testing.assert_array_equal(np.asarray(buffer, dtype=dtype), exact)
            np.testing.assert_array_equal(single.numpy(), exact)
            self.refused(residentd.InvalidArgument, "the array bf16", single.write, x)
        with self.rd.upload([x[0], x[1]], "bf16") as buffer:
            np.testing.assert_array_equal(np.asarray(buffer), exact)

    def test_slices_are_views_as_in_numpy(self):
        values = np.arange(120, dtype=np.int32).reshape(4, 5, 6)
        with self.rd.upload(values) as buffer:
            for key in (1, -1, (slice(1, 3), 2), (Ellipsis, 0), (slice(None, None, -1), slice(1, None, 2)),
                        (None, 2, slice(4, 1, -2)), (3, 4, 5), (slice(0, 0),), (1, slice(2, 4))):
                np.testing.assert_array_equal(buffer[key].numpy(), values[key], err_msg=str(key))
            np.testing.assert_array_equal(buffer[1:3][:, 2].T.numpy(), values[1:3][:, 2].T)
            np.testing.assert_array_equal(buffer[1].reshape(3, -1).numpy(), values[1].reshape(3, 10))
            self.refused(residentd.InvalidArgument, "out of bounds", lambda: buffer[4])
            self.refused(residentd.InvalidArgument, "cannot be indexed", lambda: buffer[[0, 1]])
            for mask in (True, np.True_, (0, False)):
                self.refused(residentd.InvalidArgument, "cannot be indexed", lambda: buffer[mask])
            np.testing.assert_array_equal([row.numpy() for row in buffer[1:]], values[1:])
            self.refused(residentd.InvalidArgument, "not dense", buffer.T.reshape, 120)

    def test_tasks_read_and_write_views(self):
        add = self.rd.op("add")
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        with self.rd.upload(values) as x, self.rd.upload(np.zeros((5, 4), np.float32)) as out:
            self.assertIs(add(x[1], x[2, ::-1], out=out[3]).__class__, residentd.Buffer)
            np.testing.assert_array_equal(out.numpy()[3], values[1] + values[2, ::-1])
            np.testing.assert_array_equal(add(x.T, 1), values.T + 1)
            np.testing.assert_array_equal(add(x[1:, 2:], values[1:, 2:]), 2 * values[1:, 2:])
            add(x, values, out=out[:3])
            np.testing.assert_array_equal(out[:3].numpy(), 2 * values)
            self.refused(residentd.InvalidArgument, "accepts only dense tensors",
                         self.rd.op("sum_rows"), x.T)
            np.testing.assert_array_equal(
                self.rd.op("gemm")(x, np.eye(4, dtype="f"), out[:3], beta=1).numpy(), 3 * values)

    def test_one_element_of_a_buffer_is_a_tensor_without_dimensions(self):
        add, values = self.rd.op("add"), np.arange(6, dtype=np.float32).reshape(2, 3)
        with self.rd.upload(values) as x, self.rd.upload(np.zeros(4, np.float32)) as out:
            self.assertEqual(add(x[1, 2], 1).shape, ())
            self.assertEqual(add(x[1, 2], 1), 6)
            np.testing.assert_array_equal(add(x[0], x[1, 0]), values[0] + 3)
            add(x[1, 1], x[0, 2], out=out[1])
            np.testing.assert_array_equal(out.numpy(), [0, 6, 0, 0])
            # One for each task.
            np.testing.assert_array_equal(add.map(x[1], x[0, ::-1]), values[1] + values[0, ::-1])
            add.map(x[:, 1], x[0, 2], shared=("y",), out=out[::2])
            np.testing.assert_array_equal(out.numpy(), [3, 6, 6, 0])

    def test_map_over_rows_of_buffers(self):
        values = np.arange(40, dtype=np.float32).reshape(10, 4)
        add = self.rd.op("add")
        with self.rd.upload(values) as x, self.rd.empty((10, 4)) as out:
            np.testing.assert_array_equal(add.map(x, values), 2 * values)
            np.testing.assert_array_equal(add.map(x[::-2], values[:5]), values[::-2] + values[:5])
            np.testing.assert_array_equal(add.map(x[2:6], x[3], shared=("y",)), values[2:6] + values[3])
            add.map(x, x[1], shared=("y",), out=out)
            np.testing.assert_array_equal(out.numpy(), values + values[1])

    def test_buffers_are_freed_with_their_last_view(self):
        gc.collect()
        self.rd.op("add")([1], [1])  # Frees the garbage of other tests.
        before = self.count_buffers(self.rd)
        buffer = self.rd.empty(100)
        view = buffer[3:5]
        del buffer
        gc.collect()
        self.assertEqual(self.rd.empty(1).shape, (1,))  # Frees what is garbage, and is garbage itself.
        self.assertGreater(self.count_buffers(self.rd), before)
        view.write(np.zeros(2, np.float32))
        del view
        gc.collect()
        with self.rd.empty(1):
            self.assertEqual(self.count_buffers(self.rd), before + 1)
        self.assertEqual(self.count_buffers(self.rd), before)

    def test_durable_buffers_are_found_by_another_client(self):
        with self.connect() as other:
            other.upload(np.float32([4, 5]), durable=True, name="weights").persist()
        found = [buffer for buffer in self.rd.buffers() if buffer._memory.name == "weights"]
        np.testing.assert_array_equal(found[0].numpy(), [4, 5])
        found[0].free()
        self.assertFalse(any(b._memory.name == "weights" for b in self.rd.buffers()))

    def test_shapes_and_devices_that_are_none(self):
        for shape in (-1, (2, -1), (2.7,), 2.7, "ab", (1 << 63,), None, ((1, 2), 3)):
            for function in (self.rd.empty, self.rd.shared):
                self.refused(residentd.InvalidArgument, "is not a shape", function, shape)
        for device in (-1, "0", 0.5, 1 << 40, True):
            for function in (self.rd.empty, self.rd.upload, self.rd.shared):
                self.refused(residentd.InvalidArgument, "is not the index of a device", function, [1],
                             device=device)
        self.assertEqual(self.rd.empty(np.int64(3), device=np.int32(0)).shape, (3,))

    def test_a_full_device_is_an_error_with_a_correction(self):
        self.refused(residentd.ResourceExhausted, "", self.rd.empty, 1 << 40)


class Shared(support.PackageTest):
    """Shared memory under a name in /dev/shm."""

    def test_arrays_in_shared_memory_are_used_in_place(self):
        x, out = self.rd.shared((4, 1000), np.float32), self.rd.shared((4, 1000), "f32")
        np.testing.assert_array_equal(out, 0)
        x[:] = np.arange(1000)
        returned = self.rd.op("add")(x, x[:1], out=out)
        self.assertIs(returned, out)
        np.testing.assert_array_equal(out, 2 * x)
        self.rd.op("add")(x[1, ::-2], x[2, 1::2], out=out[3, :500])
        np.testing.assert_array_equal(out[3, :500], x[1, ::-2] + x[2, 1::2])
        columns = self.rd.op("add").map(x, 1, shared=("y",), out=out[:, ::-1])
        np.testing.assert_array_equal(columns, x + 1)
        np.testing.assert_array_equal(self.rd.op("sum_rows")(x[:, :10]), x[:, :10].sum(1))
        self.assertEqual(support.shared_objects(os.getpid()), [])

    def test_the_region_of_a_shared_array_ends_with_its_last_view(self):
        gc.collect()
        self.rd.op("add")([1], [1])  # Frees the garbage of other tests.
        before = self.count_buffers(self.rd)
        array = self.rd.shared((1000,), np.int64)
        view = array[500:]
        del array
        gc.collect()
        np.testing.assert_array_equal(self.rd.op("copy")(view), view)
        self.assertEqual(self.count_buffers(self.rd), before + 1)
        del view
        gc.collect()
        self.rd.op("add")([1], [1])
        self.assertEqual(self.count_buffers(self.rd), before)

    def test_large_arrays_go_through_the_arena(self):
        memory = self.rd._operations.memory
        x = np.random.default_rng(3).random((2, N), np.float32)
        out = self.rd.op("add")(x, x[:, ::-1])
        np.testing.assert_array_equal(out, x + x[:, ::-1])
        self.assertIsNotNone(memory.locate(out))  # It is a block, and is passed on in place.
        np.testing.assert_array_equal(self.rd.op("add")(out, out), 2 * out)
        given = np.empty_like(x)
        self.assertIs(self.rd.op("add")(x, x, out=given), given)
        np.testing.assert_array_equal(given, 2 * x)
        np.testing.assert_array_equal(self.rd.op("add").map(x, x[0], shared=("y",)), x + x[0])
        np.testing.assert_array_equal(self.rd.op("copy")(x, dtype="bf16").to_float32(),
                                      residentd.bfloat16(x).to_float32())
        np.testing.assert_array_equal(self.rd.op("add").submit(x, x).result(), 2 * x)

    def test_outputs_of_failed_tasks_are_zeros(self):
        table = np.ones((2, N), np.float32)
        self.rd.op("embedding")(np.int64([0, 1]), table)  # Leaves ones in the arena.
        gc.collect()
        with self.assertRaises(residentd.TaskFailed) as caught:
            self.rd.op("embedding").map(np.int64([[1], [7]]), table, shared=("table",))
        np.testing.assert_array_equal(caught.exception.result.value, [table[:1], 0 * table[:1]])

    def test_blocks_of_the_arena_are_used_again(self):
        x = np.ones(N, np.float32)
        add = self.rd.op("add")
        add(x, x)
        gc.collect()
        arena = self.rd._operations.memory._arena
        regions = len(arena)
        for _ in range(3 * (64 << 20) // x.nbytes // 3):
            add(x, x)
        self.assertEqual(len(arena), regions)
        kept = [add(x, i) for i in range(300)]  # More than one region.
        self.assertGreater(len(arena), regions)
        for i, out in enumerate(kept):
            self.assertTrue((out == 1 + i).all())

    def test_threads_do_not_share_blocks(self):
        wrong = []
        with self.connect() as rd:
            add = rd.op("add")

            def work(first):
                kept = []  # Pairs of a value and an array of it.
                for i in range(first, first + 40):
                    out = add(np.full(N, i, np.float32), 1)
                    kept = kept[-4:] + [(i + 1, out), (2 * i + 2, add(out, out))]
                    if not all((array == value).all() for value, array in kept):
                        wrong.append(i)

            threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_without_room_in_the_arena_arrays_are_sent_inline(self):
        with self.connect(arena_mib=1) as rd:
            x = np.ones((1 << 20), np.float32)
            np.testing.assert_array_equal(rd.op("add")(x, x), 2 * x)
            self.assertIsNone(rd._operations.memory.locate(rd.op("add")(x, x)))

    def test_memory_of_a_call_without_an_answer_is_not_used_again(self):
        with self.connect() as rd, self.connect() as admin:
            x = np.ones(N, np.float32)
            rd.op("add")(x, x)
            memory = rd._operations.memory
            region = memory._arena[0].region
            admin._connection._call("Admin.Park", support.message("ParkRequest")(device=0), None, "")
            try:
                stream = rd.stream()
                future = stream.submit(rd.op("add"), x, x)
                stream.cancel()
                self.assertIsInstance(future.exception(), residentd.Cancelled)
            finally:
                admin._connection._call("Admin.Resume", support.message("ResumeRequest")(device=0), None, "")
            self.assertEqual([each for each in memory._arena if each.region is region], [])
            np.testing.assert_array_equal(rd.op("add")(x, x), 2 * x)

    def test_a_result_outlives_its_client(self):
        with self.connect() as rd:
            out = rd.op("add")(np.ones(N, np.float32), 1)
        del rd
        gc.collect()
        self.assertTrue((out == 2).all())


class SharedByDescriptor(Shared):
    """Shared memory without a name, through the daemon's local socket."""

    @classmethod
    def setUpClass(cls):
        folder = support.temporary_folder(cls)
        cls.FLAGS = ("--local_address=" + str(folder / "local.sock"),)
        super().setUpClass()

    def test_the_local_socket_is_used(self):
        self.assertNotEqual(self.rd._connection.session()[1], "")


class Files(support.PackageTest):
    """Tensors that the daemon reads from its own files."""

    @classmethod
    def setUpClass(cls):
        cls.folder = support.temporary_folder(cls)
        cls.FLAGS = ("--load_dir=" + str(cls.folder),)
        super().setUpClass()

    def test_tensors_of_a_file_become_durable_buffers(self):
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        header = json.dumps({
            "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "ids": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]}}).encode()
        (self.folder / "model.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + values.tobytes() + np.int64([4, 5]).tobytes())
        loaded = self.rd.load_file("model.safetensors", prefix="m.")
        self.assertEqual(sorted(loaded), ["m.ids", "m.w"])
        np.testing.assert_array_equal(self.rd.op("add")(loaded["m.w"], 1), values + 1)
        np.testing.assert_array_equal(loaded["m.ids"].numpy(), [4, 5])
        for buffer in loaded.values():
            buffer.free()
        self.refused(residentd.NotFound, "none.safetensors", self.rd.load_file, "none.safetensors")


class NotShared(support.PackageTest):
    """A daemon that accepts no shared memory."""

    FLAGS = ("--allow_shared_memory=false",)

    def test_arrays_are_sent_inline(self):
        x = np.ones(N, np.float32)
        np.testing.assert_array_equal(self.rd.op("add")(x, x), 2 * x)
        self.assertFalse(self.rd._operations.memory.arena_enabled)
        self.refused(residentd.FailedPrecondition, "allow_shared_memory", self.rd.shared, 3)
        self.assertEqual(support.shared_objects(os.getpid()), [])


if __name__ == "__main__":
    support.unittest_main.main()
