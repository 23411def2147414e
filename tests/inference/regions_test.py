#!/usr/bin/python3
"""Regions of shared memory of the Open Inference Protocol.

The last line is `N passed, N failed`.
"""

import os
import pathlib
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "cli")]
import grpc  # noqa: E402
import numpy  # noqa: E402

import daemon as daemons  # noqa: E402
import inference_client  # noqa: E402
import unittest_main  # noqa: E402
from inference_client import array, pb, request, set_parameter  # noqa: E402
from inference_test import F32, InferenceTest, eventually  # noqa: E402

COUNTER = iter(range(1 << 30))


class Memory:
    """A shared-memory object of this process; `array` is a view of it."""

    def __init__(self, size):
        self.key = "/residentd-test-{}-{}".format(os.getpid(), next(COUNTER))
        self.path = "/dev/shm" + self.key
        with open(self.path, "xb") as file:
            file.truncate(size)
        self.bytes = numpy.memmap(self.path, numpy.uint8, "r+")

    def array(self, shape, dtype=F32, offset=0):
        return numpy.ndarray(shape, dtype, self.bytes, offset)

    def close(self):
        os.unlink(self.path)


def put(tensor, region, size, offset=0):
    """Moves a tensor of a request into a region."""
    set_parameter(tensor.parameters, "shared_memory_region", region)
    set_parameter(tensor.parameters, "shared_memory_byte_size", size)
    if offset:
        set_parameter(tensor.parameters, "shared_memory_offset", offset)


def add_request(elements, region, output=None):
    """`add` of two inputs of one region, into another one."""
    message = pb.ModelInferRequest(model_name="add")
    for i, name in enumerate(("x", "y")):
        tensor = message.inputs.add(name=name, datatype="FP32", shape=[elements])
        put(tensor, region, 4 * elements, 4 * elements * i)
    if output:
        put(message.outputs.add(name="out"), output, 4 * elements)
    return message


class Regions(InferenceTest):
    def setUp(self):
        self.addCleanup(self.client.SystemSharedMemoryUnregister)

    def memory(self, size):
        memory = Memory(size)
        self.addCleanup(memory.close)
        return memory

    def register(self, name, memory, size, offset=0):
        self.client.SystemSharedMemoryRegister(name=name, key=memory.key, offset=offset,
                                               byte_size=size)

    def test_tensors_are_read_and_written_in_regions(self):
        memory, out = self.memory(8 << 10), self.memory(4 << 10)
        values = memory.array((2, 1024))
        values[:] = numpy.random.default_rng(1).standard_normal((2, 1024))
        self.register("in", memory, 8 << 10)
        self.register("out", out, 4 << 10)
        answer = self.client.ModelInfer(add_request(1024, "in", "out"))
        # Clients index the contents of every output, also of one in shared memory.
        self.assertEqual(list(answer.raw_output_contents), [b""])
        self.assertEqual(list(answer.outputs[0].shape), [1024])
        self.assertEqual(answer.outputs[0].parameters["shared_memory_region"].string_param, "out")
        numpy.testing.assert_array_equal(out.array(1024), values.sum(0))
        answer = self.client.ModelInfer(add_request(1024, "in"))
        numpy.testing.assert_array_equal(array(answer, "out"), values.sum(0))

    def test_batches_scalars_and_inout_parameters_in_regions(self):
        memory = self.memory(1 << 12)
        self.register("r", memory, (1 << 12) - 64, offset=64)
        x = memory.array((4, 2, 3), offset=64)
        x[:] = numpy.arange(24).reshape(4, 2, 3)
        message = pb.ModelInferRequest(model_name="sum_rows:batch")
        put(message.inputs.add(name="x", datatype="FP32", shape=[4, 2, 3]), "r", 96)
        put(message.outputs.add(name="out"), "r", 32, offset=128)
        self.assertEqual(list(self.client.ModelInfer(message).outputs[0].shape), [4, 2])
        numpy.testing.assert_array_equal(memory.array((4, 2), offset=192), x.sum(2))

        memory.array(1, numpy.float64, offset=64)[:] = 2.5
        message = pb.ModelInferRequest(model_name="fill")
        put(message.inputs.add(name="value", datatype="FP64", shape=[1]), "r", 8)
        put(message.outputs.add(name="out"), "r", 12, offset=256)
        set_parameter(message.parameters, "shape.out", "3")
        set_parameter(message.parameters, "dtype.out", "FP32")
        self.client.ModelInfer(message)
        numpy.testing.assert_array_equal(memory.array(3, offset=320), [2.5] * 3)

        matrices = memory.array((3, 2, 2), offset=64)
        matrices[:] = [[[1, 2], [3, 4]], [[1, 0], [0, 1]], [[5, 5], [5, 5]]]
        message = pb.ModelInferRequest(model_name="gemm")
        for i, name in enumerate("abc"):
            put(message.inputs.add(name=name, datatype="FP32", shape=[2, 2]), "r", 16, 16 * i)
        put(message.outputs.add(name="c"), "r", 16, 512)
        set_parameter(message.parameters, "beta", 1.0)
        self.client.ModelInfer(message)
        numpy.testing.assert_array_equal(memory.array((2, 2), offset=576), [[6, 7], [8, 9]])
        # The input is not changed.
        numpy.testing.assert_array_equal(matrices[2], [[5, 5], [5, 5]])

    def test_a_tensor_without_dimensions_is_not_the_whole_region(self):
        memory, out = self.memory(4096), self.memory(4096)
        memory.bytes[:] = 7
        out.bytes[:] = 9
        self.register("in", memory, 4096)
        self.register("out", out, 4096)
        for source in ("contents", "region"):
            with self.subTest(source):
                out.bytes[5] = 9
                message = pb.ModelInferRequest(model_name="copy")
                tensor = message.inputs.add(name="x", datatype="UINT8", shape=[])
                if source == "region":
                    put(tensor, "in", 1, 3)
                else:
                    message.raw_input_contents.append(b"\x07")
                put(message.outputs.add(name="out"), "out", 1, 5)
                answer = self.client.ModelInfer(message)
                self.assertEqual(list(answer.outputs[0].shape), [])
                self.assertEqual(out.bytes[5], 7)
                self.assertTrue((numpy.delete(out.bytes, 5) == 9).all())

    def test_tasks_without_dimensions_are_read_and_written_in_regions(self):
        memory, out = self.memory(512), self.memory(4096)
        values = memory.array((2, 64))
        values[:] = numpy.arange(128).reshape(2, 64)
        out.bytes[:] = 9
        self.register("in", memory, 512)
        self.register("out", out, 4096)
        message = add_request(64, "in", "out")
        message.model_name = "add:batch"
        answer = self.client.ModelInfer(message)
        self.assertEqual(list(answer.outputs[0].shape), [64])
        numpy.testing.assert_array_equal(out.array(64), values.sum(0))
        self.assertTrue((out.bytes[256:] == 9).all())

    def test_names_are_shared_and_unique(self):
        memory = self.memory(4096)
        self.register("a", memory, 4096)
        with self.refused(grpc.StatusCode.ALREADY_EXISTS, "'a'"):
            self.register("a", memory, 4096)
        with inference_client.Client(self.daemon.address) as other:
            self.assertEqual(list(other.SystemSharedMemoryStatus().regions), ["a"])
            region = other.SystemSharedMemoryStatus(name="a").regions["a"]
            self.assertEqual((region.key, region.offset, region.byte_size), (memory.key, 0, 4096))
            other.ModelInfer(add_request(8, "a"))
            other.SystemSharedMemoryUnregister(name="a")
        with self.refused(grpc.StatusCode.NOT_FOUND, "'a'"):
            self.client.SystemSharedMemoryStatus(name="a")
        with self.refused(grpc.StatusCode.NOT_FOUND, "'a'"):
            self.client.ModelInfer(add_request(8, "a"))
        self.register("a", memory, 4096)
        self.register("b", memory, 4096)
        self.client.SystemSharedMemoryUnregister()
        self.assertEqual(len(self.client.SystemSharedMemoryStatus().regions), 0)

    def test_what_is_not_a_region_is_refused(self):
        memory = self.memory(4096)
        with self.refused(grpc.StatusCode.NOT_FOUND, "no-such-object"):
            self.client.SystemSharedMemoryRegister(name="a", key="/no-such-object", byte_size=8)
        with self.invalid("4097"):
            self.register("a", memory, 4097)
        with self.invalid("0 bytes from offset 0"):
            self.register("a", memory, 0)
        with self.invalid("offset 18446744073709551615"):
            self.register("a", memory, 8, offset=(1 << 64) - 1)
        with self.invalid("has 0 bytes"):
            self.register("", memory, 8)
        with self.invalid("has 200 bytes"):
            self.register("n" * 200, memory, 8)
        self.assertEqual(len(self.client.SystemSharedMemoryStatus().regions), 0)

    def test_tensors_outside_of_their_region_are_refused(self):
        memory = self.memory(4096)
        self.register("r", memory, 64)
        with self.invalid("'y' of add", "exceed the region"):
            self.client.ModelInfer(add_request(16, "r"))
        message = add_request(4, "r", "r")
        put(message.outputs[0], "r", 12, 32)
        with self.invalid("'out' of add needs 16 bytes", "is 12"):
            self.client.ModelInfer(message)
        message = add_request(4, "r")
        put(message.inputs[0], "r", 12)
        with self.invalid("has 12 bytes", "require 16"):
            self.client.ModelInfer(message)
        message = request("fill", {"value": numpy.array([1.0])},
                          parameters={"shape.out": "{},2".format(1 << 60), "dtype.out": "FP64"})
        put(message.outputs.add(name="out"), "r", 64)
        with self.invalid("'out' of fill", "overflows"):
            self.client.ModelInfer(message)
        message = add_request(4, "r")
        put(message.inputs[0], "r", 16, 2)
        with self.invalid("multiple of its element size"):
            self.client.ModelInfer(message)
        message = add_request(4, "r")
        message.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
        with self.invalid("also has contents"):
            self.client.ModelInfer(message)

    def test_unregister_waits_for_requests_that_use_the_region(self):
        memory = self.memory(4096)
        self.register("slow", memory, 4096)
        message = pb.ModelInferRequest(model_name="test.spin:batch")
        tensor = message.inputs.add(name="ns", datatype="INT64", shape=[8, 1])
        tensor.contents.int64_contents.extend([50_000_000] * 8)
        put(message.outputs.add(name="out"), "slow", 32)
        set_parameter(message.parameters, "shape.out", "1")
        ended = []
        failures = []

        def infer():
            try:
                self.client.ModelInfer(message)
            except grpc.RpcError as error:
                failures.append(error)
            ended.append(True)

        thread = threading.Thread(target=infer)
        thread.start()
        with inference_client.Client(self.daemon.address) as other:
            # The request uses the region from its translation on.
            eventually(lambda: ended or self.running())
            other.SystemSharedMemoryUnregister(name="slow")
            # All tasks have written their output by now.
            numpy.testing.assert_array_equal(memory.array(8), numpy.ones(8))
        thread.join()
        self.assertEqual(failures, [])

    def running(self):
        device = self.ctl("status", "--json").json["devices"][0]
        return device["ring"]["in_flight"] or device["queued_tasks"]

    def test_a_region_survives_the_end_of_the_engine(self):
        memory, out = self.memory(64), self.memory(32)
        memory.array((2, 8))[:] = 3
        self.register("in", memory, 64)
        self.register("out", out, 32)
        pid = self.ctl("status", "--json").json["devices"][0]["engine_pid"]
        os.kill(int(pid), signal.SIGKILL)

        def served():
            try:
                self.client.ModelInfer(add_request(8, "in", "out"))
                return True
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
                return False

        eventually(lambda: self.ctl("status", "--json").json["devices"][0]["engine_pid"] != pid)
        eventually(served)
        numpy.testing.assert_array_equal(out.array(8), numpy.full(8, 6))

    def test_memory_that_is_truncated_does_not_harm_the_front_end(self):
        memory = self.memory(4096)
        self.register("r", memory, 4096)
        os.truncate(memory.path, 0)
        message = pb.ModelInferRequest(model_name="fill")
        put(message.inputs.add(name="value", datatype="FP64", shape=[1]), "r", 8)
        set_parameter(message.parameters, "shape.out", "3")
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "truncate"):
            self.client.ModelInfer(message)
        one = numpy.ones((1, 1), F32)
        message = request("gemm", {"a": one, "b": one, "c": one})
        put(message.outputs.add(name="c"), "r", 4)
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "truncate"):
            self.client.ModelInfer(message)
        self.assertEqual(os.path.getsize(memory.path), 0)
        self.assertTrue(self.client.ServerReady().ready)


class OneWorker(InferenceTest):
    FLAGS = ("--cpu_workers=1",)

    def test_requests_of_a_stream_are_admitted_in_order(self):
        memory = Memory(4)
        self.addCleanup(memory.close)
        self.client.SystemSharedMemoryRegister(name="r", key=memory.key, byte_size=4)
        for repeat in range(10):
            messages = []
            for i in range(100):
                messages.append(request("copy", {"x": numpy.array([i], F32)}, id=str(i)))
                put(messages[-1].outputs.add(name="out"), "r", 4)
            ids = [answer.infer_response.id
                   for answer in self.client.ModelStreamInfer(iter(messages))]
            self.assertEqual(sorted(ids, key=int), [str(i) for i in range(100)])
            # The only worker ran the last one last.
            self.assertEqual(memory.array(1)[0], 99, repeat)
        self.client.SystemSharedMemoryUnregister()


class SmallMessages(InferenceTest):
    FLAGS = ("--max_message_mib=1", "--max_batch_tasks=1000")

    def test_the_tasks_of_a_batch_are_limited(self):
        self.assertEqual(self.client.ModelConfig(name="copy:batch").config.max_batch_size, 1000)
        x = numpy.arange(1001, dtype=F32).reshape(1001, 1)
        with self.invalid("1001", "1000", "--max_batch_tasks"):
            self.client.infer("copy:batch", {"x": x})
        answer = self.client.infer("copy:batch", {"x": x[1:]})
        numpy.testing.assert_array_equal(array(answer, "out"), x[1:])

    def test_what_the_daemon_copies_from_a_region_is_limited(self):
        memory = Memory(2 << 20)
        self.addCleanup(memory.close)
        self.client.SystemSharedMemoryRegister(name="r", key=memory.key, byte_size=2 << 20)
        self.addCleanup(self.client.SystemSharedMemoryUnregister)
        message = pb.ModelInferRequest(model_name="gemm")
        for name in "ab":
            put(message.inputs.add(name=name, datatype="FP32", shape=[1, 1]), "r", 4)
        put(message.inputs.add(name="c", datatype="FP32", shape=[512, 1024]), "r", 2 << 20)
        with self.invalid("'c' of gemm has 2097152 bytes", "1048576", "--max_message_mib"):
            self.client.ModelInfer(message)
        # The runs are checked before their registers are copied.
        source = pathlib.Path(self.daemon.folder) / "halt.s"
        source.write_text("HALT\n")
        self.ctl("ops", "install", "halt", "--flux=" + str(source), "--wait=active")
        message = pb.ModelInferRequest(model_name="halt")
        put(message.inputs.add(name="registers", datatype="INT32", shape=[1 << 19, 1]), "r", 2 << 20)
        with self.invalid("524288", "1000", "--max_batch_tasks"):
            self.client.ModelInfer(message)


class LargeRegions(InferenceTest):
    FLAGS = ("--max_message_mib=1",)

    def test_tasks_without_dimensions_are_not_copied(self):
        """What the daemon copies has the limit of a message."""
        tasks = 300_000
        memory, out = Memory(8 * tasks), Memory(4 * tasks)
        for each, name in ((memory, "in"), (out, "out")):
            self.addCleanup(each.close)
            self.client.SystemSharedMemoryRegister(name=name, key=each.key, byte_size=each.bytes.size)
        self.addCleanup(self.client.SystemSharedMemoryUnregister)
        values = memory.array((2, tasks))
        values[:] = numpy.arange(2 * tasks).reshape(2, tasks)
        message = add_request(tasks, "in", "out")
        message.model_name = "add:batch"
        answer = self.client.ModelInfer(message)
        self.assertEqual(list(answer.outputs[0].shape), [tasks])
        numpy.testing.assert_array_equal(out.array(tasks), values.sum(0))
        # One task.
        message = pb.ModelInferRequest(model_name="add")
        for i, name in enumerate("xy"):
            put(message.inputs.add(name=name, datatype="FP32", shape=[]), "in", 4, 4 * (i + 7))
        put(message.outputs.add(name="out"), "out", 4, 8)
        self.assertEqual(list(self.client.ModelInfer(message).outputs[0].shape), [])
        self.assertEqual(out.array(3)[2], 15)
        put(message.inputs[0], "in", 4, 2)
        with self.invalid("multiple of its element size"):
            self.client.ModelInfer(message)


class IdleRegions(InferenceTest):
    FLAGS = ("--oip_region_idle=100ms",)

    def setUp(self):
        self.memory = Memory(64)
        self.addCleanup(self.memory.close)
        self.addCleanup(self.client.SystemSharedMemoryUnregister)

    def register(self, name):
        self.client.SystemSharedMemoryRegister(name=name, key=self.memory.key, byte_size=64)

    def regions(self):
        return set(self.client.SystemSharedMemoryStatus().regions)

    def test_a_region_that_is_not_used_ends(self):
        self.register("r")
        eventually(lambda: not self.regions())

    def start_request(self):
        """A request that waits for the device and uses the region r, which was registered for it."""
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                                pb.ModelInferRequest.SerializeToString,
                                                pb.ModelInferResponse.FromString)
        while True:
            self.register("r")
            call = infer.future(add_request(8, "r"), timeout=60)
            eventually(lambda: call.done() or self.queued_tasks())
            if not call.done():
                return call
            # The region had ended before the request was read.
            self.assertEqual(call.code(), grpc.StatusCode.NOT_FOUND, call.details())

    def queued_tasks(self):
        return self.ctl("status", "--json").json["devices"][0]["queued_tasks"]

    def test_a_region_that_a_request_uses_does_not_end(self):
        self.memory.array((2, 8))[:] = 3
        self.ctl("admin", "park", "0")
        try:
            call = self.start_request()
            # A region that was registered later ends before it.
            self.register("later")
            eventually(lambda: "later" not in self.regions())
            self.assertEqual(self.regions(), {"r"})
        finally:
            self.ctl("admin", "resume", "0")
        numpy.testing.assert_array_equal(array(call.result(), "out"), [6] * 8)
        eventually(lambda: not self.regions())


class Withdrawal(InferenceTest):
    """Requests that wait to be admitted, and calls that end before their tasks run."""

    FLAGS = ("--max_queued_tasks=1",)

    def setUp(self):
        self.ctl("admin", "park", "0")
        self.parked = True
        self.addCleanup(self.resume)

    def resume(self):
        if self.parked:
            self.parked = False
            self.ctl("admin", "resume", "0")

    def device(self):
        return self.ctl("status", "--json").json["devices"][0]

    def register(self):
        memory = Memory(64)
        self.addCleanup(memory.close)
        memory.array((2, 8))[:] = 3
        self.client.SystemSharedMemoryRegister(name="r", key=memory.key, byte_size=64)
        return memory

    def open_stream(self):
        """A stream whose first request fills the queue, so that the second one, which uses the region,
        waits to be admitted."""
        half_close = threading.Event()
        self.addCleanup(half_close.set)

        def requests():
            yield request("copy", {"x": numpy.ones(1, F32)}, id="first")
            second = add_request(8, "r")
            second.id = "second"
            yield second
            half_close.wait()

        stream = self.client.ModelStreamInfer(requests())
        eventually(lambda: self.device()["queued_tasks"])
        # The region is in use once the second request was read. Unregister then waits for it.
        eventually(self.is_in_use)
        return stream

    def is_in_use(self):
        try:
            self.client.SystemSharedMemoryUnregister(name="r", timeout=1)
        except grpc.RpcError as error:
            self.assertEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
            return True
        self.register()  # It came too early.
        return False

    def test_a_request_that_is_withdrawn_releases_its_region(self):
        for _ in range(5):
            self.register()
            stream = self.open_stream()
            self.assertEqual(int(self.device()["buffers"]), 1)
            stream.cancel()
            eventually(lambda: not int(self.device()["buffers"]))
            eventually(lambda: not self.device()["queued_tasks"])

    def test_a_request_that_waits_runs_with_a_region_that_was_unregistered(self):
        self.register()
        stream = self.open_stream()
        self.resume()
        answers = [next(stream), next(stream)]
        self.assertEqual([answer.error_message for answer in answers], ["", ""])
        # They come in the order in which the requests end.
        responses = {answer.infer_response.id: answer.infer_response for answer in answers}
        self.assertEqual(sorted(responses), ["first", "second"])
        numpy.testing.assert_array_equal(array(responses["second"], "out"), [6] * 8)
        eventually(lambda: not int(self.device()["buffers"]))
        stream.cancel()

    def test_a_full_queue_is_an_error(self):
        message = request("copy", {"x": numpy.ones(1, F32)})
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                                pb.ModelInferRequest.SerializeToString,
                                                pb.ModelInferResponse.FromString)
        first = infer.future(message, timeout=60)
        eventually(lambda: self.device()["queued_tasks"])
        with self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "1 tasks queued"):
            self.client.ModelInfer(message)
        self.resume()
        numpy.testing.assert_array_equal(array(first.result(), "out"), [1])

    def test_calls_that_end_before_their_tasks_run_are_in_the_statistics(self):
        infer = self.client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                                pb.ModelInferRequest.SerializeToString,
                                                pb.ModelInferResponse.FromString)

        def failed():
            (statistics,) = self.client.ModelStatistics(name="copy", version="1").model_stats
            return statistics.inference_stats.fail.count

        message = request("copy", {"x": numpy.ones(1, F32)})
        before = failed()
        call = infer.future(message, timeout=60)
        eventually(lambda: self.device()["queued_tasks"])
        call.cancel()
        eventually(lambda: failed() == before + 1)
        with self.assertRaises(grpc.RpcError) as caught:
            infer(message, timeout=2)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        eventually(lambda: failed() == before + 2)


class Shutdown(InferenceTest):
    """The end of a daemon whose timer for idle regions runs."""

    def stop(self, idle):
        daemon = daemons.Daemon("--oip_region_idle=" + idle)
        self.addCleanup(daemon.stop)
        memory = Memory(64)
        self.addCleanup(memory.close)
        with inference_client.Client(daemon.address) as client:
            for i in range(50):
                client.SystemSharedMemoryRegister(name=str(i), key=memory.key, byte_size=64)
        start = time.monotonic()
        self.assertEqual(daemon.stop(), 0)
        self.assertLess(time.monotonic() - start, 20)

    def test_the_timer_does_not_delay_the_end(self):
        self.stop("1h")

    def test_the_timer_may_end_regions_while_the_daemon_ends(self):
        for idle in ("10ms", "20ms", "30ms"):
            self.stop(idle)


class CudaRegionsOnTheCpu(InferenceTest):
    """CUDA shared memory without a GPU (with one: cuda_regions_test.py)."""

    def setUp(self):
        self.addCleanup(self.client.SystemSharedMemoryUnregister)

    def register_cuda(self, **fields):
        fields = {"name": "c", "raw_handle": bytes(64), "device_id": 0, "byte_size": 16, **fields}
        self.client.CudaSharedMemoryRegister(**fields)

    def register_system(self, name):
        memory = Memory(64)
        self.addCleanup(memory.close)
        self.client.SystemSharedMemoryRegister(name=name, key=memory.key, byte_size=64)

    def test_the_cpu_has_no_cuda_memory(self):
        with self.refused(grpc.StatusCode.UNIMPLEMENTED, "device 0", "cpu",
                          "SystemSharedMemoryRegister"):
            self.register_cuda()
        self.assertEqual(len(self.client.CudaSharedMemoryStatus().regions), 0)
        self.assertNotIn("cuda_shared_memory", self.client.ServerMetadata().extensions)
        # What was reserved for it was released.
        self.assertEqual(int(self.ctl("status", "--json").json["devices"][0]["buffers"]), 0)
        self.register_system("c")

    def test_what_is_not_a_region_is_refused(self):
        for size in (0, 63, 65):
            with self.invalid("raw_handle has {} bytes".format(size), "64"):
                self.register_cuda(raw_handle=bytes(size))
        for device in (-1, 1, 1 << 32, -(1 << 63)):
            with self.refused(grpc.StatusCode.NOT_FOUND, "no device {}.".format(device)):
                self.register_cuda(device_id=device)
        with self.invalid("0 bytes from offset 0"):
            self.register_cuda(byte_size=0)
        with self.invalid("{} bytes from offset 0".format((1 << 64) - 1)):
            self.register_cuda(byte_size=(1 << 64) - 1)
        with self.invalid("has 0 bytes"):
            self.register_cuda(name="")
        with self.invalid("has 200 bytes"):
            self.register_cuda(name="n" * 200)

    def test_both_kinds_share_their_names_and_nothing_else(self):
        self.register_system("c")
        with self.refused(grpc.StatusCode.ALREADY_EXISTS, "'c'"):
            self.register_cuda()
        self.assertEqual(len(self.client.CudaSharedMemoryStatus().regions), 0)
        with self.refused(grpc.StatusCode.NOT_FOUND, "'c'"):
            self.client.CudaSharedMemoryStatus(name="c")
        self.client.CudaSharedMemoryUnregister(name="c")
        self.client.CudaSharedMemoryUnregister(name="unknown")
        self.client.CudaSharedMemoryUnregister()
        self.assertEqual(list(self.client.SystemSharedMemoryStatus().regions), ["c"])


class NoRegions(InferenceTest):
    FLAGS = ("--allow_shared_memory=false",)

    def test_registration_follows_the_daemons_flag(self):
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "shared"):
            self.client.SystemSharedMemoryRegister(name="r", key="/x", byte_size=64)
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "shared"):
            self.client.CudaSharedMemoryRegister(name="r", raw_handle=bytes(64), byte_size=64)


class OtherMachines(InferenceTest):
    """A daemon that clients of other machines can reach."""

    FLAGS = ("--address=0.0.0.0:0", "--insecure_non_loopback")

    def test_neither_a_name_nor_a_handle_is_accepted(self):
        memory = Memory(64)
        self.addCleanup(memory.close)
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "other machines", "a name"):
            self.client.SystemSharedMemoryRegister(name="r", key=memory.key, byte_size=64)
        with self.refused(grpc.StatusCode.FAILED_PRECONDITION, "other machines", "a handle"):
            self.client.CudaSharedMemoryRegister(name="r", raw_handle=bytes(64), byte_size=64)


class Off(InferenceTest):
    FLAGS = ("--oip=false",)

    def test_the_service_is_not_registered(self):
        with self.assertRaises(grpc.RpcError) as caught:
            self.client.ServerLive()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    unittest_main.main()
