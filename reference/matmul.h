/* matmul: c[i,j] = sum_k a[i,k] b[k,j] + bias[j], for each of `batch` matrices; b is stored as [N,K] where trans_b.
   The harness computes `product`; `element` computes one of its elements plainly, to check it against. */

WS_PASS(element) {
    const int64_t column = WS_ITEM % N;
    const int64_t row = WS_ITEM / N; /* over all batches */
    const int64_t matrix = (row / M) * K * N;
    double sum = 0, terms = 0;
    WS_EACH(k, K) {
        const double left = a(row * K + k);
        const double right = b(matrix + (trans_b ? column * K + k : k * N + column));
        sum += left * right;
        terms += fabs(left * right);
    }
    ws_put(element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}

WS_PASS(add_bias) {
    const int64_t base = WS_ITEM * N;
    WS_EACH(j, N) {
        const double add = has_bias ? bias(j) : 0;
        ws_put(c, base + j, ws_get(product, base + j) + add, ws_get_abs(product, base + j) + fabs(add));
    }
}
