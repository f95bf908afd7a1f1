/* softmax: y[i,j] = exp(x[i,j] - max_j x[i,j]) / sum_j exp(x[i,j] - max_j x[i,j]). A row with a NaN or plus infinity, or of
   minus infinities only, is NaN. */

/* The difference to the maximum is rounded in proportion to itself, and the exponential feels that in full. The sum has no
   negative terms: added one after the other in single precision, errors grow with it as in no sum of both signs, and 4 terms
   of its size allow for that. */
WS_PASS(rows_of_x) {
    const int64_t base = WS_ITEM * cols;
    double top = -INFINITY;
    WS_EACH(j, cols) {
        const double v = x(base + j);
        if (v > top) top = v;
    }
    top = ws_max(top);
    double sum = 0;
    WS_EACH(j, cols) sum += exp(x(base + j) - top);
    const double total = ws_sum(sum);
    WS_EACH(j, cols) {
        const double v = x(base + j);
        const double share = exp(v - top) / total;
        ws_put(y, base + j, share, share > 0 ? share * (4 + top - v) : 0);
    }
}
