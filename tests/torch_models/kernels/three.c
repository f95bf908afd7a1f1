/*---
op = "NAME"
dtypes = ["f32"]
arch = ["native"]
---*/

/* Three products of x (80 x 96) with the rows of as many weights (96 x 96), each with its bias. Eight sums, so that none is long. */

static void product(const T *x, const T *w, const T *bias, T *out) {
    for (int64_t i = 0; i < 80; i++)
        for (int64_t j = 0; j < 96; j++) {
            float sums[8] = {0};
            for (int64_t k = 0; k < 96; k++) sums[k % 8] += x[i * 96 + k] * w[j * 96 + k];
            out[i * 96 + j] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])) + bias[j];
        }
}

void NAME(const T *x0, const T *w0, const T *w1, const T *w2, const T *w3, const T *w4, const T *w5, T *out0, T *out1, T *out2) {
    product(x0, w0, w1, out0);
    product(x0, w2, w3, out1);
    product(x0, w4, w5, out2);
}
