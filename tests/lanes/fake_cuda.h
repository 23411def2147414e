// What a test calls of fake_cuda.cc, by dlsym: streams, and how much memory is registered and
// allocated.
//
// Thread safety: as the driver's; a stream belongs to one thread at a time.
#ifndef RESIDENT_TESTS_LANES_FAKE_CUDA_H_
#define RESIDENT_TESTS_LANES_FAKE_CUDA_H_

extern "C" {
// A stream of a context, which is any address.
void* FakeCudaCreateStream(void* context);
// Waits until the stream has done everything.
void FakeCudaDestroyStream(void* stream);
void FakeCudaSynchronize(void* stream);
void FakeCudaSetCapturing(void* stream, int capturing);
// The stream calls `work` in its order: the "kernel".
void FakeCudaEnqueue(void* stream, void (*work)(void*), void* argument);
// Registered pieces of memory, and 1,000 for each context that was pushed and not popped.
int FakeCudaRegistrations();
// Memory of cuMemCreate, ranges of addresses, and mappings.
int FakeCudaAllocations();
// Of the calls that make these, and cuMemSetAccess, the call-th from now on fails. 0: none.
void FakeCudaFailAt(int call);
}

#endif  // RESIDENT_TESTS_LANES_FAKE_CUDA_H_
