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
