"""Memory of a GPU that belongs to this process, through the driver's C functions (libcuda.so.1).

    with Memory(4096) as memory:
        memory.write(numpy.ones(1024, numpy.float32))
        client.CudaSharedMemoryRegister(name="r", raw_handle=memory.handle(), byte_size=4096)

Used from one thread. As a program it allocates memory, fills it with a float, prints the handle in
hexadecimal digits, and waits for the end of its input:

    cuda_memory.py BYTES VALUE
"""

import ctypes
import sys

import numpy

HANDLE_BYTES = 64


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * HANDLE_BYTES)]


def _load():
    """The driver, with a context of GPU 0 of $CUDA_VISIBLE_DEVICES on this thread."""
    driver = ctypes.CDLL("libcuda.so.1")
    address, size, pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    for name, arguments in {
            "cuInit": [ctypes.c_uint],
            "cuDeviceGet": [pointer, ctypes.c_int],
            "cuDevicePrimaryCtxRetain": [pointer, ctypes.c_int],
            "cuCtxSetCurrent": [pointer],
            "cuMemAlloc_v2": [pointer, size],
            "cuMemFree_v2": [address],
            "cuMemGetInfo_v2": [pointer, pointer],
            "cuMemcpyHtoD_v2": [address, pointer, size],
            "cuMemcpyDtoH_v2": [pointer, address, size],
            "cuIpcGetMemHandle": [pointer, address],
    }.items():
        getattr(driver, name).argtypes = arguments
    return driver


def _call(name, *arguments):
    result = getattr(_driver, name)(*arguments)
    if result != 0:
        text = ctypes.c_char_p()
        _driver.cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError("{} of the test's process: error {} ({})".format(
            name, result, (text.value or b"unknown").decode()))


_driver = None


def _open():
    global _driver
    if _driver is not None:
        return
    _driver = _load()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(device), 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)


def free_bytes():
    """Bytes of the GPU that no process uses."""
    _open()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


class Memory:
    def __init__(self, size):
        _open()
        self.size = size
        self.address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(self.address), size)
        self.fill(0xff)  # NaNs.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def handle(self):
        handle = Handle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        return bytes(handle.bytes)

    def write(self, array, offset=0):
        array = numpy.ascontiguousarray(array)
        assert offset + array.nbytes <= self.size
        _call("cuMemcpyHtoD_v2", self.address.value + offset, array.ctypes.data, array.nbytes)
        # The copy of memory that is not pinned returns when it has been staged. Another process, which
        # knows nothing of this context's order, may read the bytes only when they have arrived.
        _call("cuCtxSynchronize")

    def read(self, shape, dtype=numpy.float32, offset=0):
        array = numpy.empty(shape, dtype)
        assert offset + array.nbytes <= self.size
        _call("cuMemcpyDtoH_v2", array.ctypes.data, self.address.value + offset, array.nbytes)
        return array

    def fill(self, byte):
        self.write(numpy.full(self.size, byte, numpy.uint8))

    def close(self):
        if self.address.value:
            _call("cuMemFree_v2", self.address)
            self.address.value = 0


def main():
    size, value = int(sys.argv[1]), float(sys.argv[2])
    memory = Memory(size)
    memory.write(numpy.full(size // 4, value, numpy.float32))
    print(memory.handle().hex(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
