/* rmsnorm: y[i,j] = x[i,j] / sqrt(mean_j x[i,j]^2 + eps) * weight[j]. */

WS_PASS(rows_of_x) {
    const int64_t base = WS_ITEM * cols;
    double squares = 0;
    WS_EACH(j, cols) {
        const double v = x(base + j);
        squares += v * v;
    }
    const double scale = 1 / sqrt(ws_sum(squares) / (double)cols + eps);
    WS_EACH(j, cols) {
        const double v = x(base + j) * scale * weight(j);
        ws_put(y, base + j, v, fabs(v));
    }
}
