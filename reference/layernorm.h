/* layernorm: y[i,j] = (x[i,j] - mean_j x[i,j]) / sqrt(variance_j x[i,j] + eps) * weight[j] + bias[j]; the variance is the mean
   square deviation, by dim and not by dim - 1. */

/* Deviations are differences of x and mean: they are off by units of these, however small they are. The mean is a sum, off by
   units of its terms where they cancel. Far from zero they have one sign: added one after the other in single precision,
   errors grow with it as in no sum of both signs, and 3 terms more of its size allow for that. */
WS_PASS(rows_of_x) {
    const int64_t base = WS_ITEM * dim;
    double sum = 0, sizes = 0;
    WS_EACH(j, dim) {
        sum += x(base + j);
        sizes += fabs(x(base + j));
    }
    const double mean = ws_sum(sum) / (double)dim, size = ws_sum(sizes) / (double)dim;
    double squares = 0;
    WS_EACH(j, dim) {
        const double deviation = x(base + j) - mean;
        squares += deviation * deviation;
    }
    const double scale = 1 / sqrt(ws_sum(squares) / (double)dim + eps);
    WS_EACH(j, dim) {
        const double v = x(base + j), w = weight(j) * scale;
        ws_put(y, base + j, (v - mean) * w + bias(j), (fabs(v) + size + 3 * fabs(mean)) * fabs(w) + fabs(bias(j)));
    }
}
