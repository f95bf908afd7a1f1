/* reduce: y[i] = sum_j x[i,j]. */

WS_PASS(rows_of_x) {
    const int64_t base = WS_ITEM * cols;
    double sum = 0, terms = 0;
    WS_EACH(j, cols) {
        const double v = x(base + j);
        sum += v;
        terms += fabs(v);
    }
    ws_put(y, WS_ITEM, ws_sum(sum), ws_sum(terms));
}
