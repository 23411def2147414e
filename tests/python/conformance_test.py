#!/usr/bin/python3
"""Every built-in operator through the package, beside NumPy in float64: the cases of
tests/conformance/numpy_test.py, whose tensors are arrays of NumPy, and again views of buffers, of any
strides, offset and dtype. It fails if an operator of the catalog is in none of the cases.

$RESIDENT_SEED repeats a run. The last line is `N passed, N failed`.
"""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).absolute().parent))
import support  # noqa: E402
from support import residentd  # noqa: E402

import numpy as np  # noqa: E402

CASES = support.HERE.parent / "conformance" / "numpy_test.py"
spec = importlib.util.spec_from_file_location("conformance_cases", CASES)
cases = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = cases
spec.loader.exec_module(cases)
daemon_client = cases.daemon_client


class ArrayClient:
    """daemon_client.Client, with the package and arrays: a Tensor's buffer is an array of this process."""

    CALLED = set()

    def __init__(self, address):
        self.client = residentd.connect(address)
        self.operators = {}

    def __exit__(self, *_):
        self.client.close()

    _download = staticmethod(lambda tensor: tensor.buffer)
    tensor, output, read = (getattr(daemon_client.Client, name) for name in ("tensor", "output", "read"))

    def _upload(self, data, dtype, shape):
        return data.copy()

    def free(self, *tensors):
        pass

    def argument(self, tensor):
        """What is passed to the operator."""
        dtype = residentd.dtypes.find(tensor.dtype)
        strides = [stride * dtype.size for stride in tensor.strides]
        # Without elements, the offset may be beyond the buffer.
        start = tensor.buffer[tensor.offset:] if 0 not in tensor.shape else tensor.buffer
        return residentd.dtypes.from_storage(
            np.lib.stride_tricks.as_strided(start, tensor.shape, strides), dtype)

    def ended(self, tensor, argument):
        """Called after the task."""

    def _operator(self, name):
        if name not in self.operators:
            self.operators[name] = self.client.op(name), self.client.operators.describe(name).message.parameters
        return self.operators[name]

    def run(self, operator, *arguments):
        function, parameters = self._operator(operator)
        kind = type(parameters[0])
        inputs, named, passed = [], {}, []
        for parameter, value in zip(parameters, arguments):
            if parameter.kind == kind.KIND_SCALAR:
                named[parameter.name] = value
                continue
            passed.append((value, self.argument(value)))
            if parameter.kind == kind.KIND_OUTPUT:
                named[parameter.name] = passed[-1][1]
            else:
                inputs.append(passed[-1][1])
        try:
            result = function.run(*inputs, **named)
        except residentd.TaskFailed as error:
            raise daemon_client.Failed(str(error)) from None
        for value, argument in passed:
            self.ended(value, argument)
        self.CALLED.add(operator)
        return result.device_ns / 1e9


class BufferClient(ArrayClient):
    """The same with views of buffers."""

    CALLED = set()

    def argument(self, tensor):
        dtype = residentd.dtypes.find(tensor.dtype)
        whole = self.client.upload(residentd.dtypes.from_storage(tensor.buffer, dtype))
        return whole._view(tensor.shape, tensor.strides, tensor.offset)

    def ended(self, tensor, argument):
        size = (tensor.buffer.size,)
        tensor.buffer[:] = argument._view(size, (1,), 0).numpy().view(np.ndarray)


def with_client(test_class, client):

    class Made(test_class):

        @classmethod
        def setUpClass(cls):
            cases.RecordingClient, cases.CALLED = client, client.CALLED
            super().setUpClass()

    Made.__name__ = Made.__qualname__ = "{}With{}".format(
        test_class.__name__, {ArrayClient: "Arrays", BufferClient: "Buffers"}[client])
    Made.__module__ = __name__
    return Made


for each in [value for value in vars(cases).values()
             if isinstance(value, type) and issubclass(value, cases.Conformance)]:
    for made in (with_client(each, ArrayClient), with_client(each, BufferClient)):
        globals()[made.__name__] = made
del each, made


if __name__ == "__main__":
    support.unittest_main.main()
