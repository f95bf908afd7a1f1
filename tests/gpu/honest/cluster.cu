/*---
# why: a row is shared among the four blocks of a cluster, which read each other's shared memory
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_90+"]
[[launch]]
kernel = "rmsnorm"
grid = ["rows * 4"]
block = ["256"]
args = ["x", "weight", "y", "rows", "cols", "eps"]
cluster = ["4"]
---*/
constexpr unsigned BLOCKS = 4;

__device__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// The value at the same place in another block of the cluster.
__device__ float of_block(const float *here, unsigned block) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(here);
    unsigned there;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
}

// One cluster a row.
extern "C" __global__ void rmsnorm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {
    __shared__ float part[256];
    const long long row = blockIdx.x / BLOCKS, first = blockIdx.x % BLOCKS * 256 + threadIdx.x;
    const T *from = x + row * cols;
    T *to = y + row * cols;
    float sum = 0;
    for (long long j = first; j < cols; j += BLOCKS * 256) sum += ws_load(from[j]) * ws_load(from[j]);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    cluster_barrier();
    float squares = 0;
    for (unsigned block = 0; block < BLOCKS; block++) squares += of_block(part, block);
    // A block that has ended takes its shared memory with it.
    cluster_barrier();
    const float scale = 1 / sqrtf(squares / cols + eps);
    for (long long j = first; j < cols; j += BLOCKS * 256)
        to[j] = ws_store(ws_load(from[j]) * scale * ws_load(weight[j]));
}
