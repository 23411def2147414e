// The kernel that the baselines launch; it does the same work as one add task.
extern "C" __global__ void baseline_add(const float* x, const float* y, float* out, float alpha,
                                        long long n) {
  const long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * 4;
  if (i + 4 <= n) {
    const float4 a = *reinterpret_cast<const float4*>(x + i);
    const float4 b = *reinterpret_cast<const float4*>(y + i);
    *reinterpret_cast<float4*>(out + i) =
        make_float4(a.x + alpha * b.x, a.y + alpha * b.y, a.z + alpha * b.z, a.w + alpha * b.w);
  }
}

// The same, then sets a flag in mapped host memory.
extern "C" __global__ void baseline_add_flag(const float* x, const float* y, float* out,
                                             float alpha, long long n, unsigned* flag,
                                             unsigned value) {
  const long long i = threadIdx.x * 4;
  if (i + 4 <= n) {
    const float4 a = *reinterpret_cast<const float4*>(x + i);
    const float4 b = *reinterpret_cast<const float4*>(y + i);
    *reinterpret_cast<float4*>(out + i) =
        make_float4(a.x + alpha * b.x, a.y + alpha * b.y, a.z + alpha * b.z, a.w + alpha * b.w);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    *reinterpret_cast<volatile unsigned*>(flag) = value;
  }
}

// Reads `pieces` of 16 bytes. The store, which hardly ever happens, keeps the loads.
extern "C" __global__ void __launch_bounds__(512)
    baseline_read(const uint4* from, unsigned long long pieces, unsigned* result) {
  constexpr int kLoads = 8;
  const unsigned long long step = gridDim.x * (unsigned long long)blockDim.x;
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + (kLoads - 1) * step < pieces; i += kLoads * step) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) sum += loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
  }
  for (; i < pieces; i += step) sum += __ldcs(from + i).x;
  if (sum == 0x9e3779b9) *result = sum;
}
