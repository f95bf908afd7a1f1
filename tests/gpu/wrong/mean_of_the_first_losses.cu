/*---
# expect: reject
# why: the mean is of the first 4096 losses at the most
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[[launch]]
kernel = "rows_of_logits"
grid = ["batch"]
block = ["256"]
args = ["logits", "targets", "losses", "vocab"]
[[launch]]
kernel = "mean_of_losses"
grid = ["1"]
block = ["256"]
args = ["losses", "loss", "batch"]
---*/
// One block a row: its largest logit, the sum of its exponentials. Then one block for the mean.
extern "C" __global__ void rows_of_logits(const T *logits, const long long *targets, float *losses, long long vocab) {
    __shared__ float part[256];
    const T *row = logits + blockIdx.x * vocab;
    float top = -INFINITY;
    for (long long j = threadIdx.x; j < vocab; j += 256) top = fmaxf(top, ws_load(row[j]));
    part[threadIdx.x] = top;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    top = part[0];
    __syncthreads();
    float sum = 0;
    for (long long j = threadIdx.x; j < vocab; j += 256) sum += expf(ws_load(row[j]) - top);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = top - ws_load(row[targets[blockIdx.x]]) + logf(part[0]);
}

extern "C" __global__ void mean_of_losses(const float *losses, float *loss, long long batch) {
    __shared__ float part[256];
    const long long count = min(batch, 4096LL);
    float sum = 0;
    for (long long i = threadIdx.x; i < count; i += 256) sum += losses[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *loss = part[0] / count;
}
