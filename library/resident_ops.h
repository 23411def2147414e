/* libresident_ops: the operators of residentd as a plain library, without a daemon.
 *
 * One call runs one operator: on a GPU it is one launch on the caller's stream, on the CPU it runs
 * on the calling thread. All operators of docs/operator_reference.md are there. docs/ops_library.md
 * describes the library; this header is its only interface, and the Python binding is generated
 * from it (tools/ops_binding).
 *
 *   resident_ops* ops;
 *   if (resident_ops_create(0, 0, &ops) != RESIDENT_OPS_OK) puts(resident_ops_last_error());
 *   const int64_t shape[] = {rows, columns};
 *   resident_ops_argument arguments[] = {
 *       resident_ops_dense(x, RESIDENT_OPS_F32, 2, shape),
 *       resident_ops_dense(out, RESIDENT_OPS_F32, 2, shape),
 *   };
 *   resident_ops_run(ops, "softmax", arguments, 2, stream);
 *   cudaStreamSynchronize(stream);
 *   resident_ops_outcome outcome;
 *   if (resident_ops_status(ops, &outcome) != RESIDENT_OPS_OK) puts(resident_ops_last_error());
 *
 * Why one entry with the operator's name, and not a function for each operator: the operators'
 * typed signatures exist as data (resident_ops_signature), and every call is checked against them
 * with the code that also checks the daemon's requests. A function for each operator would repeat
 * about 70 parameter lists, and each of them would need the same descriptions of strided tensors.
 *
 * What a call refuses, with RESIDENT_OPS_INVALID_VALUE and a message, before it launches: an
 * unknown operator; null pointers; negative sizes; ranks above RESIDENT_OPS_MAX_RANK; dtypes, ranks
 * and shapes that do not match the signature; addresses that are not aligned to the elements;
 * elements of a written tensor that overlap each other; a written tensor that overlaps another
 * argument. There is one exception: an operator of the family "elementwise" accepts an output that
 * is exactly one of its inputs (same address, dtype, shape and strides). Two views of one buffer do
 * not overlap if their elements lie side by side, such as two groups of columns. It cannot check
 * whether memory at an address exists: a wrong address faults as in any kernel.
 *
 * Memory: a handle has all the device memory that its calls need (512 KiB for each block). A call
 * allocates no device memory; to check the arguments it may use the host's heap.
 *
 * Threads and streams: a handle is for one thread at a time. Its launches share scratch memory, so
 * that they must not overlap in time: use it with one stream, or order the streams with events.
 * Different handles are independent.
 *
 * Without the NVIDIA driver, without a GPU, or in a build without CUDA, every function exists;
 * resident_ops_create returns RESIDENT_OPS_NOT_AVAILABLE for a GPU and works for the CPU. */
#ifndef RESIDENT_LIBRARY_RESIDENT_OPS_H_
#define RESIDENT_LIBRARY_RESIDENT_OPS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented when this interface changes in an incompatible way. */
#define RESIDENT_OPS_VERSION 1

/* What functions return. resident_ops_last_error() has the reason of all but the first. */
#define RESIDENT_OPS_OK 0
/* No CUDA on this machine or in this build, no such GPU, or no code for it. */
#define RESIDENT_OPS_NOT_AVAILABLE (-1)
#define RESIDENT_OPS_INVALID_VALUE (-2)
/* The launch failed, or an earlier error of the CUDA context was found. */
#define RESIDENT_OPS_LAUNCH_FAILED (-3)
#define RESIDENT_OPS_OUT_OF_MEMORY (-4)

/* Types of elements. */
#define RESIDENT_OPS_F32 1
#define RESIDENT_OPS_F16 2
#define RESIDENT_OPS_BF16 3
#define RESIDENT_OPS_F64 4
#define RESIDENT_OPS_I32 5
#define RESIDENT_OPS_I64 6
#define RESIDENT_OPS_U8 7
#define RESIDENT_OPS_I8 8
#define RESIDENT_OPS_U32 9

/* Kinds of arguments: a tensor, a scalar of a floating-point type, a scalar of an integer type. */
#define RESIDENT_OPS_TENSOR 1
#define RESIDENT_OPS_REAL 2
#define RESIDENT_OPS_INTEGER 3

/* The device of resident_ops_create that is the CPU. */
#define RESIDENT_OPS_CPU (-1)
#define RESIDENT_OPS_MAX_RANK 8
#define RESIDENT_OPS_MAX_ARGUMENTS 14
#define RESIDENT_OPS_RESULT_BYTES 32

/* The operators on one device, and the memory that they need there. */
typedef struct resident_ops resident_ops;

/* An argument of an operator, in the order of its signature. */
typedef struct resident_ops_argument {
  /* RESIDENT_OPS_TENSOR, RESIDENT_OPS_REAL or RESIDENT_OPS_INTEGER. */
  int32_t kind;
  /* For a tensor. Sizes and strides are in elements, outermost dimension first; `rank` of them
   * are used. `data` is the address of the element with all indices 0: on the device of the handle.
   * It may be null if the tensor has no elements. Inputs are not written. */
  int32_t dtype;
  int32_t rank;
  int32_t reserved; /* 0 */
  void* data;
  int64_t shape[RESIDENT_OPS_MAX_RANK];
  int64_t strides[RESIDENT_OPS_MAX_RANK];
  /* For a scalar: RESIDENT_OPS_REAL uses the first, RESIDENT_OPS_INTEGER the second. The value must
   * fit the type that the signature names. */
  double real;
  int64_t integer;
} resident_ops_argument;

/* How the calls of a handle ended on the device. */
typedef struct resident_ops_outcome {
  /* RESIDENT_OPS_OK, or what the first call that failed would have returned. */
  int32_t code;
  /* The detail of docs/operator_reference.md if an operator refused a value. */
  uint32_t detail;
  /* The call that failed: the first one of the handle that was not refused is 1. 0: none. */
  uint64_t call;
} resident_ops_outcome;

/* Returns RESIDENT_OPS_VERSION of the library, which must equal that of the header. */
int32_t resident_ops_version(void);

/* Makes a handle for a GPU (its number as in CUDA), or for RESIDENT_OPS_CPU. A GPU's handle uses
 * the primary context, which is that of the CUDA runtime, raises its limit of the stack of a thread
 * to 2 KiB, and loads the code. max_blocks: the most blocks of a launch, each of which has 512 KiB
 * of device memory; 0: as many as the GPU runs at the same time. Fewer blocks leave room for other
 * kernels. */
int32_t resident_ops_create(int32_t device, uint32_t max_blocks, resident_ops** handle);

/* Frees a handle; null is ignored. No call of it may be running on the device. */
int32_t resident_ops_destroy(resident_ops* handle);

/* Runs one operator. `stream`: a cudaStream_t or CUstream of the handle's device; null: its default
 * stream. For the CPU it must be null. Trailing scalars that have a default may be omitted.
 *
 * On a GPU it returns when the operator is launched; a value that only the operator itself can
 * refuse, such as an index out of range, is found by resident_ops_status. On the CPU it returns
 * when the operator has ended, and such a value is also returned here. */
int32_t resident_ops_run(resident_ops* handle, const char* name,
                         const resident_ops_argument* arguments, size_t count, void* stream);

/* Reads and clears how the calls since the last status ended, and returns `code`. Call it when the
 * stream is synchronized. `outcome` may be null. */
int32_t resident_ops_status(resident_ops* handle, resident_ops_outcome* outcome);

/* Copies the value of the last call of an operator that has no output tensor ("compare": the number
 * of elements that differ, as a 64-bit integer) to RESIDENT_OPS_RESULT_BYTES bytes at `result`.
 * Call it when the stream is synchronized. */
int32_t resident_ops_result(resident_ops* handle, void* result);

/* The reason of the last error of the calling thread; "": none. It is valid until the thread's next
 * call of this library. */
const char* resident_ops_last_error(void);

/* The number of operators; the name of each, and its signature (docs/operator_reference.md). Null:
 * there is no such operator. */
size_t resident_ops_count(void);
const char* resident_ops_name(size_t index);
const char* resident_ops_signature(const char* name);

/* Arguments. A dense tensor: row-major, without gaps. A rank that is not in 0 to
 * RESIDENT_OPS_MAX_RANK, or a null shape, gives an argument that resident_ops_run refuses. */
static inline resident_ops_argument resident_ops_dense(void* data, int32_t dtype, int32_t rank,
                                                       const int64_t* shape) {
  resident_ops_argument argument;
  int64_t stride = 1;
  int32_t d = rank;
  memset(&argument, 0, sizeof(argument));
  argument.kind = RESIDENT_OPS_TENSOR;
  argument.dtype = dtype;
  argument.rank = rank;
  argument.data = data;
  if (rank < 0 || rank > RESIDENT_OPS_MAX_RANK || (rank > 0 && shape == NULL)) {
    argument.rank = -1;
    return argument;
  }
  while (d-- > 0) {
    argument.shape[d] = shape[d];
    argument.strides[d] = stride;
    /* A product that overflows is refused by resident_ops_run, which sees the shape. */
    stride = (int64_t)((uint64_t)stride * (uint64_t)(shape[d] > 1 ? shape[d] : 1));
  }
  return argument;
}

static inline resident_ops_argument resident_ops_real(double value) {
  resident_ops_argument argument;
  memset(&argument, 0, sizeof(argument));
  argument.kind = RESIDENT_OPS_REAL;
  argument.real = value;
  return argument;
}

static inline resident_ops_argument resident_ops_integer(int64_t value) {
  resident_ops_argument argument;
  memset(&argument, 0, sizeof(argument));
  argument.kind = RESIDENT_OPS_INTEGER;
  argument.integer = value;
  return argument;
}

#ifdef __cplusplus
}
#endif

#endif /* RESIDENT_LIBRARY_RESIDENT_OPS_H_ */
