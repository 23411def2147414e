/* The module residentd_lane._lane: functions of libresidentd_lane for residentd/lane.py, without
 * what a call through ctypes costs. Handles, words and completions are addresses, as integers;
 * results are the codes of the C functions.
 *
 * One file for CPython 3.10 and later (limited API). The library is opened by path, so that it is
 * the one that ctypes has opened.
 *
 * Thread safety: as the library. Waits of more than kHoldNs release the interpreter's lock. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/lane/residentd_lane.h"

enum {
  /* A lone call is shorter: to get the lock again may take milliseconds if other threads run. */
  kHoldNs = 10000,
  kFloat = 2, /* kDLFloat */
  kMaxRank = 8,
  kRecordBytes = 256, /* Of residentd/torch/lane.py, too. */
};

static struct {
  int64_t (*submit)(residentd_lane*, uint16_t, const uint64_t*, int, int);
  int (*await)(residentd_lane*, int64_t, int64_t, residentd_lane_completion*);
  int (*call)(residentd_lane*, uint16_t, const uint64_t*, int, int64_t, residentd_lane_completion*);
} library;

static PyObject* load(PyObject* module, PyObject* path) {
  (void)module;
  PyObject* const encoded = PyUnicode_EncodeFSDefault(path);
  const char* const name = encoded == NULL ? NULL : PyBytes_AsString(encoded);
  if (name == NULL) {
    Py_XDECREF(encoded);
    return NULL;
  }
  void* const opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  Py_DECREF(encoded);
  if (opened == NULL) {
    PyErr_SetString(PyExc_ImportError, dlerror());
    return NULL;
  }
  const struct {
    const char* name;
    void** to;
  } functions[] = {
      {"residentd_lane_submit", (void**)&library.submit},
      {"residentd_lane_await", (void**)&library.await},
      {"residentd_lane_call", (void**)&library.call},
  };
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    void* const function = dlsym(opened, functions[i].name);
    if (function == NULL) {
      PyErr_SetString(PyExc_ImportError, dlerror());
      return NULL;
    }
    *functions[i].to = function;
  }
  Py_RETURN_NONE;
}

/* Reads `count` integers; false with an exception. */
static bool read_integers(PyObject* const* arguments, Py_ssize_t given, int64_t* values,
                          int count) {
  if (library.submit == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "load() was not called");
    return false;
  }
  if (given != count) {
    PyErr_Format(PyExc_TypeError, "%d arguments are needed, and %zd were given", count, given);
    return false;
  }
  for (int i = 0; i < count; ++i) {
    values[i] = PyLong_AsLongLong(arguments[i]);
    if (values[i] == -1 && PyErr_Occurred() != NULL) return false;
  }
  return true;
}

static void* pointer_of(int64_t address) { return (void*)(intptr_t)address; }

/* Of the call's number, and of other arguments that are smaller than 64 bits; false with an
 * exception. */
static bool check_range(int64_t call, int64_t n, int64_t flags) {
  if (call >= 0 && call <= UINT16_MAX && n >= INT_MIN && n <= INT_MAX && flags >= INT_MIN &&
      flags <= INT_MAX)
    return true;
  PyErr_SetString(PyExc_OverflowError, "the number of the call has 16 bits, n and flags have 32");
  return false;
}

static PyObject* submit(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  int64_t v[5];
  if (!read_integers(arguments, given, v, 5) || !check_range(v[1], v[3], v[4])) return NULL;
  return PyLong_FromLongLong(
      library.submit(pointer_of(v[0]), (uint16_t)v[1], pointer_of(v[2]), (int)v[3], (int)v[4]));
}

static PyObject* submit_all(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  int64_t v[6];
  if (!read_integers(arguments, given, v, 6) || !check_range(v[1], v[4], v[5])) return NULL;
  const uint64_t* words = pointer_of(v[2]);
  int64_t submitted = 0;
  while (submitted < v[3]) {
    const int64_t sequence =
        library.submit(pointer_of(v[0]), (uint16_t)v[1], words, (int)v[4], (int)v[5]);
    if (sequence < 0) return PyLong_FromLongLong(submitted > 0 ? submitted : sequence);
    words += v[4];
    ++submitted;
  }
  return PyLong_FromLongLong(submitted);
}

/* Waits without the interpreter's lock for what did not end within kHoldNs. */
static int await_longer(residentd_lane* lane, int64_t sequence, int64_t timeout_ns,
                        residentd_lane_completion* completion) {
  int code;
  Py_BEGIN_ALLOW_THREADS;
  code =
      library.await(lane, sequence, timeout_ns < 0 ? timeout_ns : timeout_ns - kHoldNs, completion);
  Py_END_ALLOW_THREADS;
  return code;
}

static PyObject* wait_for(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  int64_t v[4];
  if (!read_integers(arguments, given, v, 4)) return NULL;
  residentd_lane* const lane = pointer_of(v[0]);
  residentd_lane_completion* const completion = pointer_of(v[3]);
  const bool longer = v[2] < 0 || v[2] > kHoldNs;
  int code = library.await(lane, v[1], longer ? kHoldNs : v[2], completion);
  if (code == RESIDENTD_LANE_TIMEOUT && longer) code = await_longer(lane, v[1], v[2], completion);
  return PyLong_FromLong(code);
}

static PyObject* call(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  int64_t v[6];
  if (!read_integers(arguments, given, v, 6) || !check_range(v[1], v[3], 0)) return NULL;
  residentd_lane* const lane = pointer_of(v[0]);
  residentd_lane_completion* const completion = pointer_of(v[5]);
  const uint64_t* const words = pointer_of(v[2]);
  const bool longer = v[4] < 0 || v[4] > kHoldNs;
  int code =
      library.call(lane, (uint16_t)v[1], words, (int)v[3], longer ? kHoldNs : v[4], completion);
  if (code == RESIDENTD_LANE_TIMEOUT && longer) {
    if (completion->sequence >= 0) {
      code = await_longer(lane, completion->sequence, v[4], completion);
    } else { /* All slots are in use. */
      Py_BEGIN_ALLOW_THREADS;
      code = library.call(lane, (uint16_t)v[1], words, (int)v[3], v[4] < 0 ? v[4] : v[4] - kHoldNs,
                          completion);
      Py_END_ALLOW_THREADS;
    }
  }
  return PyLong_FromLong(code);
}

/* Of DLPack 1.2 and later (dlpack.h). */
struct dl_tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct dl_exchange_api {
  uint32_t major, minor;
  void* previous;
  void* functions[3];
  int (*tensor_of)(void* object, struct dl_tensor* out); /* dltensor_from_py_object_no_sync */
};

static bool same_sizes(const int64_t* a, const int64_t* b, int32_t count) {
  if (a == NULL || b == NULL) return a == b;
  return memcmp(a, b, (size_t)count * sizeof(*a)) == 0;
}

static bool same_kind(const struct dl_tensor* a, const struct dl_tensor* b) {
  return a->device_type == b->device_type && a->device_id == b->device_id && a->ndim == b->ndim &&
         a->code == b->code && a->bits == b->bits && a->lanes == b->lanes &&
         same_sizes(a->shape, b->shape, a->ndim) && same_sizes(a->strides, b->strides, a->ndim);
}

/* The address of a tensor by its method data_ptr(); false with an exception. */
static bool call_data_ptr(PyObject* tensor, PyObject* name, uint64_t* address) {
  PyObject* const value = PyObject_CallMethodObjArgs(tensor, name, NULL);
  if (value == NULL) return false;
  *address = PyLong_AsUnsignedLongLong(value);
  Py_DECREF(value);
  return PyErr_Occurred() == NULL;
}

/* The kinds of a list's tensors: a hash table from kinds to the first tensor that has each one. */
struct kinds {
  struct dl_tensor* tensors; /* `count` */
  int64_t* table;            /* Of `slots`, a power of two: the index of a tensor, or -1. */
  Py_ssize_t slots;
};

static uint64_t hash_of(const struct dl_tensor* tensor) {
  uint64_t hash = (uint64_t)tensor->device_type << 40 ^ (uint64_t)tensor->code << 16 ^ tensor->bits;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    hash = (hash ^ (uint64_t)tensor->shape[i]) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 29 ^ (tensor->strides == NULL ? 1 : (uint64_t)tensor->strides[i])) *
           0xBF58476D1CE4E5B9u;
  }
  return hash ^ hash >> 32;
}

static int64_t kind_of(struct kinds* kinds, Py_ssize_t i) {
  Py_ssize_t slot = (Py_ssize_t)(hash_of(&kinds->tensors[i]) & (uint64_t)(kinds->slots - 1));
  for (; kinds->table[slot] >= 0; slot = (slot + 1) & (kinds->slots - 1)) {
    if (same_kind(&kinds->tensors[kinds->table[slot]], &kinds->tensors[i]))
      return kinds->table[slot];
  }
  kinds->table[slot] = i;
  return i;
}

/* The length of a dense vector of float32 on the device of `first`; otherwise 0. */
static int64_t length_of(const struct dl_tensor* first, const struct dl_tensor* tensor) {
  const bool vector = tensor->device_type == first->device_type && tensor->ndim == 1 &&
                      tensor->code == kFloat && tensor->bits == 32 && tensor->lanes == 1 &&
                      (tensor->strides == NULL || tensor->strides[0] == 1);
  return vector ? tensor->shape[0] : 0;
}

/* What addresses() returns. */
struct found {
  uint64_t* addresses;
  int64_t* kinds; /* Null: not wanted; as lengths. */
  int64_t* lengths;
};

/* The tensors are alive: the list or tuple has them. Returns how many are as the first one, or -1.
 */
static Py_ssize_t read_addresses(const struct dl_exchange_api* api, PyObject* tensors, bool is_list,
                                 Py_ssize_t count, const struct found* found, struct kinds* kinds) {
  uint64_t* const out = found->addresses;
  PyObject* const name = PyUnicode_InternFromString("data_ptr");
  if (name == NULL) return -1;
  struct dl_tensor first = {0}, tensor = {0};
  Py_ssize_t same = 0;
  for (Py_ssize_t i = 0; i < count && same >= 0; ++i) {
    /* A method in Python may change the list. */
    PyObject* const item = is_list ? PyList_GetItem(tensors, i) : PyTuple_GetItem(tensors, i);
    if (item == NULL) {
      same = -1;
    } else if (api == NULL) {
      Py_INCREF(item);
      if (!call_data_ptr(item, name, &out[i])) same = -1;
      Py_DECREF(item);
    } else if (api->tensor_of(item, &tensor) != 0) {
      same = -1;
    } else {
      if (i == 0) first = tensor;
      out[i] = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
      same += same_kind(&first, &tensor);
      if (kinds != NULL) {
        kinds->tensors[i] = tensor;
        found->kinds[i] = kind_of(kinds, i);
      }
      if (found->lengths != NULL) found->lengths[i] = length_of(&first, &tensor);
    }
  }
  Py_DECREF(name);
  return same;
}

/* The exchange API of a capsule; null with an exception. */
static const struct dl_exchange_api* exchange_api(PyObject* capsule) {
  const struct dl_exchange_api* const api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (api == NULL || api->major == 1) return api;
  PyErr_Format(PyExc_ValueError, "DLPack %u is not known", api->major);
  return NULL;
}

/* What a word of a prepared call may be: a tensor of one kind, in one piece of memory. Python
 * reserves kRecordBytes for each word. */
struct record {
  struct dl_tensor tensor; /* Its sizes are below; device_type 0: the word is not recorded. */
  int64_t sizes[2 * kMaxRank];
  uint64_t low, high; /* Of the memory. */
  uint64_t delta;     /* From an address to a place. */
  uint64_t reach;     /* Bytes of the tensor. */
  uint64_t* word;
};
_Static_assert(sizeof(struct record) <= kRecordBytes, "");

static PyObject* record(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  uint64_t v[6];
  if (given != 8) {
    PyErr_SetString(PyExc_TypeError, "8 arguments are needed");
    return NULL;
  }
  const struct dl_exchange_api* const api = exchange_api(arguments[0]);
  if (api == NULL) return NULL;
  for (int i = 0; i < 6; ++i) v[i] = PyLong_AsUnsignedLongLongMask(arguments[i + 2]);
  struct record* const to = (struct record*)(uintptr_t)v[0];
  struct dl_tensor tensor;
  if (PyErr_Occurred() != NULL || api->tensor_of(arguments[1], &tensor) != 0) return NULL;
  memset(to, 0, sizeof(*to));
  if (tensor.ndim > kMaxRank || tensor.strides == NULL) Py_RETURN_NONE;
  memcpy(to->sizes, tensor.shape, (size_t)tensor.ndim * sizeof(int64_t));
  memcpy(to->sizes + kMaxRank, tensor.strides, (size_t)tensor.ndim * sizeof(int64_t));
  to->tensor = tensor;
  to->tensor.shape = to->sizes;
  to->tensor.strides = to->sizes + kMaxRank;
  to->low = v[1], to->high = v[2], to->delta = v[3], to->reach = v[4];
  to->word = (uint64_t*)(uintptr_t)v[5];
  Py_RETURN_NONE;
}

static PyObject* put(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  if (given < 2 || given > 2 + RESIDENTD_LANE_MAX_WORDS) {
    PyErr_SetString(PyExc_TypeError, "an API, records and at most 7 tensors are needed");
    return NULL;
  }
  const struct dl_exchange_api* const api = exchange_api(arguments[0]);
  if (api == NULL) return NULL;
  const uint8_t* const records = PyLong_AsVoidPtr(arguments[1]);
  if (records == NULL) return NULL;
  uint64_t places[RESIDENTD_LANE_MAX_WORDS];
  for (Py_ssize_t i = 0; i < given - 2; ++i) {
    const struct record* const wanted = (const struct record*)(records + i * kRecordBytes);
    struct dl_tensor tensor;
    if (wanted->tensor.device_type == 0) Py_RETURN_FALSE;
    if (api->tensor_of(arguments[i + 2], &tensor) != 0) return NULL;
    const uint64_t address = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    if (!same_kind(&wanted->tensor, &tensor) || address < wanted->low ||
        address + wanted->reach > wanted->high) {
      Py_RETURN_FALSE;
    }
    places[i] = address + wanted->delta;
  }
  for (Py_ssize_t i = 0; i < given - 2; ++i) {
    *((const struct record*)(records + i * kRecordBytes))->word = places[i];
  }
  Py_RETURN_TRUE;
}

static PyObject* addresses(PyObject* module, PyObject* const* arguments, Py_ssize_t given) {
  (void)module;
  if (given != 3 && given != 5) {
    PyErr_SetString(PyExc_TypeError, "3 or 5 arguments are needed");
    return NULL;
  }
  const struct dl_exchange_api* api = NULL;
  if (arguments[0] != Py_None) {
    api = exchange_api(arguments[0]);
    if (api == NULL) return NULL;
  }
  const bool is_list = PyList_Check(arguments[1]);
  if (!is_list && !PyTuple_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "tensors is no list and no tuple");
    return NULL;
  }
  struct found found = {PyLong_AsVoidPtr(arguments[2]), NULL, NULL};
  if (given == 5) {
    found.kinds = PyLong_AsVoidPtr(arguments[3]);
    found.lengths = PyLong_AsVoidPtr(arguments[4]);
  }
  if (PyErr_Occurred() != NULL) return NULL;
  const Py_ssize_t count = is_list ? PyList_Size(arguments[1]) : PyTuple_Size(arguments[1]);
  struct kinds kinds = {NULL, NULL, 64};
  while (kinds.slots < 2 * count) kinds.slots *= 2;
  if (found.kinds != NULL && api != NULL) {
    kinds.tensors = malloc((size_t)(count + 1) * sizeof(*kinds.tensors));
    kinds.table = malloc((size_t)kinds.slots * sizeof(*kinds.table));
    if (kinds.tensors == NULL || kinds.table == NULL) {
      free(kinds.tensors);
      free(kinds.table);
      return PyErr_NoMemory();
    }
    memset(kinds.table, -1, (size_t)kinds.slots * sizeof(*kinds.table));
  }
  const Py_ssize_t same = read_addresses(api, arguments[1], is_list, count, &found,
                                         kinds.table == NULL ? NULL : &kinds);
  free(kinds.tensors);
  free(kinds.table);
  return same < 0 ? NULL : PyLong_FromSsize_t(same);
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"load", load, METH_O, "load(path): opens libresidentd_lane.so. ImportError."},
    {"submit", FAST(submit),
     "submit(lane, call, words, n, flags): residentd_lane_submit; `words` is the address."},
    {"submit_all", FAST(submit_all),
     "submit_all(lane, call, words, tasks, n, flags): submits a task for each n words, until one "
     "is "
     "not taken. Returns how many were submitted; if that is none, the code of the first."},
    {"wait", FAST(wait_for),
     "wait(lane, sequence, timeout_ns, completion): residentd_lane_await; `completion` is an "
     "address, "
     "or 0."},
    {"call", FAST(call),
     "call(lane, call, words, n, timeout_ns, completion): residentd_lane_call; `completion` is an "
     "address."},
    {"addresses", FAST(addresses),
     "addresses(api, tensors, out[, kinds, lengths]): writes the address of each tensor's first "
     "element to an array of uint64 at the address `out`. `api` is __dlpack_c_exchange_api__ of "
     "the "
     "tensors' class; returns how many have the first one's device, dtype, shape and strides. To "
     "an "
     "array of int64 at `kinds` it writes the index of the first tensor that has the same of these "
     "as each one; at `lengths` the length of each dense vector of float32 on the device of the "
     "first, and 0 for others. None: "
     "calls data_ptr(); writes only addresses, and returns 0."},
    {"record", FAST(record),
     "record(api, tensor, at, low, high, delta, reach, word): writes 256 bytes at `at`, by which "
     "put() recognizes tensors of the same device, dtype, shape and strides, of `reach` bytes, in "
     "the memory from low to high; `delta` makes a place of an address, for the uint64 at `word`."},
    {"put", FAST(put),
     "put(api, records, tensor...): writes the words of tensors that are as their records, which "
     "follow each other. False: one is not, and nothing was written."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_lane",
    "Functions of libresidentd_lane; residentd/lane.py uses them.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL};

PyMODINIT_FUNC PyInit__lane(void) { return PyModule_Create(&definition); }
