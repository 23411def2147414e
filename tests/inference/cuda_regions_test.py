#!/usr/bin/python3
"""CUDA shared memory of the Open Inference Protocol: this process, which has a CUDA context of its
own, shares memory with the engine of a daemon. It needs a GPU (tests/gpu/run).

The last line is `N passed, N failed`.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402

import cuda_memory  # noqa: E402
import daemon as daemons  # noqa: E402
import inference_client  # noqa: E402
import unittest_main  # noqa: E402
from inference_client import array, pb, request, set_parameter  # noqa: E402
from inference_test import F32, InferenceTest, eventually  # noqa: E402
from regions_test import add_request, put  # noqa: E402

MIB = 1 << 20
SANDBOX = "RESIDENTD_ENGINE_SANDBOX"


def register(client, name, memory, size=None, **fields):
    fields = {"raw_handle": memory.handle(), "device_id": 0, **fields}
    client.CudaSharedMemoryRegister(name=name, byte_size=memory.size if size is None else size,
                                    **fields)


def opened_files(pid):
    """What the process has mapped of /dev/shm."""
    maps = pathlib.Path("/proc/{}/maps".format(pid)).read_text()
    return sorted({line.split(None, 5)[5] for line in maps.splitlines() if "/dev/shm/" in line})


def try_sandboxes(memory):
    """Registers the memory at daemons whose engines are confined differently, and describes the
    results: which layer refuses what the driver needs, and which files it maps."""
    lines = []
    for mode in ("off", "calls", "files", "report"):
        os.environ[SANDBOX] = mode
        try:
            daemon = daemons.Daemon()
            try:
                with inference_client.Client(daemon.address) as client:
                    register(client, "r", memory)
                engine = daemon.ctl("status", "--json").json["devices"][0]["engine_pid"]
                result = "registered; mapped: {}".format(opened_files(engine))
            except grpc.RpcError as error:
                result = error.details()
            refused = [line for line in daemon.log.read_text(errors="replace").splitlines()
                       if "refused system call" in line]
            daemon.stop()
            lines.append("{}={}: {}".format(SANDBOX, mode, "; ".join([result, *refused])))
        finally:
            del os.environ[SANDBOX]
    return "\n".join(lines)


class CudaRegions(InferenceTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.random = numpy.random.default_rng(1)
        # Fail once, with all that is known, if an engine cannot open a handle at all.
        with cuda_memory.Memory(2 * MIB) as memory:
            try:
                register(cls.client, "first", memory)
            except grpc.RpcError as error:
                raise RuntimeError("no handle can be registered: {}\n{}".format(
                    error.details(), try_sandboxes(memory))) from None
            cls.client.CudaSharedMemoryUnregister(name="first")

    def setUp(self):
        self.memories = []
        self.addCleanup(self.park)  # The next test may get memory at the same addresses.
        self.addCleanup(self.close_memories)
        self.addCleanup(self.client.CudaSharedMemoryUnregister)

    def close_memories(self):
        for memory in self.memories:
            memory.close()

    def memory(self, size):
        """Memory that is freed after the regions were unregistered."""
        self.memories.append(cuda_memory.Memory(size))
        return self.memories[-1]

    def park(self):
        self.ctl("admin", "park", "0")
        self.ctl("admin", "resume", "0")

    def device(self):
        return self.ctl("status", "--json").json["devices"][0]

    def floats(self, *shape):
        return self.random.standard_normal(shape).astype(F32)

    def check_add(self, name="in", memory=None, out=None, elements=1 << 20):
        """Infers with both inputs and the output in regions, and compares with float64."""
        values = self.floats(2, elements)
        memory.write(values)
        out.fill(0xff)
        answer = self.client.ModelInfer(add_request(elements, name, "out"))
        self.assertEqual(list(answer.raw_output_contents), [b""])
        self.assertEqual(answer.outputs[0].parameters["shared_memory_region"].string_param, "out")
        numpy.testing.assert_allclose(out.read(elements), values.astype(numpy.float64).sum(0),
                                      rtol=1e-6, atol=1e-6)

    def test_the_extension_is_listed(self):
        self.assertIn("cuda_shared_memory", self.client.ServerMetadata().extensions)

    def test_tensors_are_read_and_written_in_place(self):
        memory, out = self.memory(8 * MIB), self.memory(8 * MIB)
        register(self.client, "in", memory)
        register(self.client, "out", out)
        region = self.client.CudaSharedMemoryStatus(name="in").regions["in"]
        self.assertEqual((region.name, region.device_id, region.byte_size), ("in", 0, 8 * MIB))
        self.assertEqual(len(self.client.CudaSharedMemoryStatus().regions), 2)
        self.assertEqual(len(self.client.SystemSharedMemoryStatus().regions), 0)
        for _ in range(3):
            self.check_add("in", memory, out)
        # Nothing was written behind the output.
        self.assertTrue((out.read(4 * MIB, numpy.uint8, offset=4 * MIB) == 0xff).all())

    def test_parts_of_a_region_in_batches(self):
        tasks, rows, columns = 64, 128, 257
        memory = self.memory(16 * MIB)
        register(self.client, "r", memory)
        x = self.floats(tasks, rows, columns)
        memory.write(x, offset=4096)
        message = pb.ModelInferRequest(model_name="sum_rows:batch")
        put(message.inputs.add(name="x", datatype="FP32", shape=x.shape), "r", x.nbytes, 4096)
        start, size = 12 * MIB + 512, 4 * tasks * rows
        put(message.outputs.add(name="out"), "r", size, start)
        answer = self.client.ModelInfer(message)
        self.assertEqual(list(answer.outputs[0].shape), [tasks, rows])
        wanted = x.astype(numpy.float64).sum(2)
        # The error of a sum of n rounded values is below n * 2^-24 of the sum of their sizes.
        limit = columns * 2.0**-24 * numpy.abs(x.astype(numpy.float64)).sum(2)
        got = memory.read((tasks, rows), offset=start)
        self.assertTrue((numpy.abs(got - wanted) <= limit).all(), numpy.abs(got - wanted).max())
        for guard in (start - 512, start + size):
            self.assertTrue((memory.read(512, numpy.uint8, offset=guard) == 0xff).all(), guard)

    def test_one_side_may_be_in_the_message(self):
        memory = self.memory(2 * MIB)
        register(self.client, "r", memory)
        values = self.floats(2, 1000)
        wanted = values.astype(numpy.float64).sum(0)
        memory.write(values)
        message = add_request(1000, "r")
        numpy.testing.assert_allclose(array(self.client.ModelInfer(message), "out"), wanted,
                                      rtol=1e-6, atol=1e-6)
        message = request("add", {"x": values[0], "y": values[1]})
        put(message.outputs.add(name="out"), "r", 4000, MIB)
        self.client.ModelInfer(message)
        numpy.testing.assert_allclose(memory.read(1000, offset=MIB), wanted, rtol=1e-6, atol=1e-6)

    def test_tensors_without_dimensions(self):
        memory, out = self.memory(2 * MIB), self.memory(2 * MIB)
        register(self.client, "in", memory)
        register(self.client, "out", out)
        values = self.floats(2, 1000)
        memory.write(values)
        message = add_request(1000, "in", "out")
        message.model_name = "add:batch"  # One element for each task.
        answer = self.client.ModelInfer(message)
        self.assertEqual(list(answer.outputs[0].shape), [1000])
        numpy.testing.assert_array_equal(out.read(1000), values.sum(0))
        message = pb.ModelInferRequest(model_name="add")
        for i, name in enumerate("xy"):
            put(message.inputs.add(name=name, datatype="FP32", shape=[]), "in", 4, 4 * (i + 3))
        put(message.outputs.add(name="out"), "out", 4, 8)
        self.assertEqual(list(self.client.ModelInfer(message).outputs[0].shape), [])
        self.assertEqual(out.read(3)[2], values[0, 3] + values[0, 4])

    def test_what_is_not_a_region_is_refused(self):
        memory = self.memory(4 * MIB)
        pid = self.device()["engine_pid"]
        with self.invalid("8388608 bytes", "were requested"):
            register(self.client, "r", memory, size=8 * MIB)
        with self.invalid("63 bytes"):
            register(self.client, "r", memory, raw_handle=memory.handle()[:63])
        with self.invalid("cannot be opened"):
            register(self.client, "r", memory, raw_handle=bytes(64))
        with self.refused(grpc.StatusCode.NOT_FOUND, "no device 77"):
            register(self.client, "r", memory, device_id=77)
        with self.refused(grpc.StatusCode.NOT_FOUND, "no device -1"):
            register(self.client, "r", memory, device_id=-1)
        register(self.client, "r", memory)
        with self.refused(grpc.StatusCode.ALREADY_EXISTS, "'r'"):
            register(self.client, "r", memory)
        with self.invalid("'y' of add", "exceed the region"):
            self.client.ModelInfer(add_request(MIB, "r"))
        # Only tasks have access to the memory.
        message = pb.ModelInferRequest(model_name="fill")
        put(message.inputs.add(name="value", datatype="FP64", shape=[1]), "r", 8)
        set_parameter(message.parameters, "shape.out", "3")
        with self.invalid("'value' of fill", "CUDA shared memory"):
            self.client.ModelInfer(message)
        one = numpy.ones((1, 1), F32)
        message = request("gemm", {"a": one, "b": one, "c": one})
        put(message.outputs.add(name="c"), "r", 4)
        with self.invalid("'c' of gemm", "CUDA shared memory"):
            self.client.ModelInfer(message)
        self.assertEqual(self.device()["engine_pid"], pid)

    def test_one_handle_under_two_names(self):
        memory, out = self.memory(8 * MIB), self.memory(4 * MIB)
        register(self.client, "in", memory)
        register(self.client, "again", memory)
        register(self.client, "out", out)
        self.check_add("in", memory, out)
        self.client.CudaSharedMemoryUnregister(name="in")
        self.check_add("again", memory, out)
        # Its closing waits for a park, and it is opened again before that.
        self.client.CudaSharedMemoryUnregister(name="again")
        register(self.client, "in", memory)
        self.check_add("in", memory, out)
        self.park()
        self.check_add("in", memory, out)

    def test_small_allocations(self):
        """Several are in one block of 2 MiB, which the driver shares."""
        memories = [self.memory(4096) for _ in range(5)]
        for i, memory in enumerate(memories):
            register(self.client, "small{}".format(i), memory)
        for i, memory in enumerate(memories):
            memory.write(numpy.full((2, 16), i + 1, F32))
        for i in range(len(memories)):
            answer = self.client.ModelInfer(add_request(16, "small{}".format(i)))
            numpy.testing.assert_array_equal(array(answer, "out"), numpy.full(16, 2 * i + 2, F32))

    def test_altered_handles_disturb_nobody(self):
        memory, out = self.memory(4 * MIB), self.memory(4 * MIB)
        register(self.client, "in", memory)
        register(self.client, "out", out)
        pid = self.device()["engine_pid"]
        for i in range(128):
            handle = bytearray(memory.handle())
            for byte in self.random.integers(0, len(handle), 1 if i < 64 else 8):
                handle[byte] ^= int(self.random.integers(1, 256))
            with self.subTest(handle=handle.hex()):
                # Some bytes mean nothing: then it is the same memory.
                try:
                    register(self.client, "altered", memory, raw_handle=bytes(handle))
                    self.client.CudaSharedMemoryUnregister(name="altered")
                except grpc.RpcError as error:
                    self.assertIn(error.code(), (grpc.StatusCode.INVALID_ARGUMENT,
                                                 grpc.StatusCode.FAILED_PRECONDITION,
                                                 grpc.StatusCode.RESOURCE_EXHAUSTED),
                                  error.details())
        self.check_add("in", memory, out, elements=1000)
        self.assertEqual(self.device()["engine_pid"], pid)

    def test_memory_at_the_address_of_freed_memory(self):
        """Memory that waits for a park to be closed is never taken for that which replaced it."""
        out = self.memory(4 * MIB)
        register(self.client, "out", out)
        for _ in range(4):
            memory = self.memory(8 * MIB)
            try:
                register(self.client, "in", memory)
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.FAILED_PRECONDITION, error.details())
                self.assertIn("until the kernel is parked", error.details())
                self.park()
                register(self.client, "in", memory)
            self.check_add("in", memory, out)
            self.client.CudaSharedMemoryUnregister(name="in")
            memory.close()

    def test_handles_that_wait_for_a_park_have_a_limit(self):
        out = self.memory(4 * MIB)
        register(self.client, "out", out)
        self.park()
        memories = [self.memory(2 * MIB) for _ in range(65)]
        for memory in memories[:64]:
            register(self.client, "in", memory)
            self.client.CudaSharedMemoryUnregister(name="in")
        with self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "park"):
            register(self.client, "in", memories[64])
        self.park()
        register(self.client, "in", memories[64])
        self.check_add("in", memories[64], out, elements=1000)

    def test_unregister_waits_for_requests_and_not_for_the_kernel(self):
        memory = self.memory(2 * MIB)
        register(self.client, "slow", memory)
        message = pb.ModelInferRequest(model_name="test.spin:batch")
        tensor = message.inputs.add(name="ns", datatype="INT64", shape=[8, 1])
        tensor.contents.int64_contents.extend([500_000_000] * 8)
        put(message.outputs.add(name="out"), "slow", 32)
        set_parameter(message.parameters, "shape.out", "1")
        ended, failures = [], []

        def infer():
            try:
                self.client.ModelInfer(message)
            except grpc.RpcError as error:
                failures.append(error)
            ended.append(True)

        thread = threading.Thread(target=infer)
        thread.start()
        eventually(lambda: ended or self.device()["ring"]["in_flight"])
        self.assertEqual(ended, [], "the request ended before Unregister could wait for it")
        self.client.CudaSharedMemoryUnregister(name="slow")
        self.assertEqual(self.device()["state"], "resident")
        # All tasks have written their output by now.
        numpy.testing.assert_array_equal(memory.read(8), numpy.ones(8))
        thread.join()
        self.assertEqual(failures, [])

    def test_memory_is_freed_while_the_kernel_is_resident_and_released_by_a_park(self):
        size = 512 * MIB
        out = self.memory(4 * MIB)
        register(self.client, "out", out)
        memory, other = self.memory(size), self.memory(8 * MIB)
        register(self.client, "in", memory)
        self.check_add("in", memory, out)
        parks = int(self.device()["parks"])
        self.client.CudaSharedMemoryUnregister(name="in")
        memory.close()
        register(self.client, "in", other)
        self.check_add("in", other, out)
        self.assertEqual(self.device()["state"], "resident")
        self.assertEqual(int(self.device()["parks"]), parks)
        before = cuda_memory.free_bytes()
        self.ctl("admin", "park", "0")
        # The memory lives until the engine has closed its handle.
        eventually(lambda: cuda_memory.free_bytes() - before >= size)
        self.ctl("admin", "resume", "0")
        self.check_add("in", other, out)

    def test_a_process_that_is_killed_does_not_disturb_the_daemon(self):
        memory, out = self.memory(8 * MIB), self.memory(4 * MIB)
        register(self.client, "in", memory)
        register(self.client, "out", out)
        pid = self.device()["engine_pid"]
        elements = MIB
        child = subprocess.Popen([sys.executable, str(HERE / "cuda_memory.py"), str(8 * MIB), "2.5"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stdin.close)
        try:
            handle = bytes.fromhex(child.stdout.readline().strip())
            self.assertEqual(len(handle), 64, "the child process did not share memory")
            self.client.CudaSharedMemoryRegister(name="child", raw_handle=handle, device_id=0,
                                                 byte_size=8 * MIB)
            answer = self.client.ModelInfer(add_request(elements, "child"))
            numpy.testing.assert_array_equal(array(answer, "out"), numpy.full(elements, 5, F32))
        finally:
            child.kill()
            child.wait()
        # The engine keeps the memory.
        answer = self.client.ModelInfer(add_request(elements, "child"))
        numpy.testing.assert_array_equal(array(answer, "out"), numpy.full(elements, 5, F32))
        self.check_add("in", memory, out)
        self.client.CudaSharedMemoryUnregister(name="child")
        self.park()
        self.check_add("in", memory, out)
        self.assertEqual(self.device()["engine_pid"], pid)
        # The handle died with its process.
        with self.invalid("cannot be opened"):
            self.client.CudaSharedMemoryRegister(name="child", raw_handle=handle, device_id=0,
                                                 byte_size=8 * MIB)
        self.check_add("in", memory, out)
        self.assertEqual(self.device()["engine_pid"], pid)

    def test_a_region_survives_the_end_of_the_engine(self):
        memory, out = self.memory(8 * MIB), self.memory(4 * MIB)
        register(self.client, "in", memory)
        register(self.client, "out", out)
        self.check_add("in", memory, out)
        pid = self.device()["engine_pid"]
        os.kill(int(pid), signal.SIGKILL)
        eventually(lambda: self.device()["engine_pid"] not in (pid, "0", 0))

        def served():
            try:
                self.client.ModelInfer(add_request(8, "in", "out"))
                return True
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error.details())
                return False

        eventually(served)
        self.check_add("in", memory, out)
        self.assertNotEqual(self.device()["engine_pid"], pid)


class TwoGpus(InferenceTest):
    """With $RESIDENT_TEST_DEVICES=0,1."""

    def test_memory_of_another_gpu(self):
        """It is read and written through the link between the GPUs, or refused if there is none."""
        self.addCleanup(self.client.CudaSharedMemoryUnregister)
        x = numpy.ones(8, F32)
        with cuda_memory.Memory(8 * MIB) as memory:
            for device_id in (1, 0):
                memory.write(numpy.full((2, 8), 3 + device_id, F32))
                try:
                    register(self.client, "r", memory, device_id=device_id)
                except grpc.RpcError as error:
                    self.assertEqual(device_id, 1, error.details())
                    self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
                    self.assertIn("cannot be opened", error.details())
                    continue
                answer = self.client.ModelInfer(add_request(8, "r"))
                numpy.testing.assert_array_equal(array(answer, "out"),
                                                 numpy.full(8, 6 + 2 * device_id, F32))
                self.client.CudaSharedMemoryUnregister(name="r")
            # A task runs on one device.
            values = numpy.ones((2, 8), F32)
            memory.write(values)
            register(self.client, "here", memory)
            try:
                register(self.client, "there", memory, device_id=1)
            except grpc.RpcError as error:
                self.assertIn("cannot be opened", error.details())
            else:
                with self.invalid("'there' on device 1", "'here' on device 0"):
                    self.client.ModelInfer(add_request(8, "here", "there"))
            numpy.testing.assert_array_equal(
                array(self.client.ModelInfer(add_request(8, "here")), "out"), values.sum(0))
            # The engines go on.
            numpy.testing.assert_array_equal(
                array(self.client.infer("add", {"x": x, "y": x}), "out"), x + x)


if __name__ == "__main__":
    unittest_main.main()
