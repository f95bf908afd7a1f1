/* flash_attention: o[i] = sum_j p[i,j] v[j], p = softmax_j(scale q[i] . k[j]) over the keys that query i sees:
   all, or, where causal, j <= i + S_kv - S_q. A query that sees none gives zero.
   An item is one query of one head; H / H_kv heads share a key and value head. */

WS_PASS(queries) {
    const int64_t i = WS_ITEM % S_q, head = WS_ITEM / S_q % H, b = WS_ITEM / S_q / H;
    const int64_t kv_head = head / (H / H_kv);
    const int64_t q_at = (bshd ? (b * S_q + i) * H + head : (b * H + head) * S_q + i) * D;
    const int64_t kv_at = (bshd ? b * S_kv * H_kv + kv_head : (b * H_kv + kv_head) * S_kv) * D;
    const int64_t kv_step = bshd ? H_kv * D : D;
    int64_t keys = causal ? i + 1 + S_kv - S_q : S_kv;
    if (keys < 0) keys = 0;

    double top = -INFINITY, largest = 0;
    WS_EACH(j, keys) {
        double score = 0;
        for (int64_t d = 0; d < D; d++) score += q(q_at + d) * k(kv_at + j * kv_step + d);
        score *= scale;
        if (score > top) top = score;
        if (fabs(score) > largest) largest = fabs(score);
    }
    top = ws_max(top);
    largest = ws_max(largest);

    /* 128 columns of the output at a time, in each lane's own sums. */
    for (int64_t d0 = 0; d0 < D; d0 += 128) {
        const int64_t width = D - d0 < 128 ? D - d0 : 128;
        double sums[128], terms[128], weights = 0;
        for (int64_t d = 0; d < width; d++) sums[d] = terms[d] = 0;
        WS_EACH(j, keys) {
            double score = 0;
            for (int64_t d = 0; d < D; d++) score += q(q_at + d) * k(kv_at + j * kv_step + d);
            const double p = exp(score * scale - top);
            weights += p;
            for (int64_t d = 0; d < width; d++) {
                const double term = p * v(kv_at + j * kv_step + d0 + d);
                sums[d] += term;
                terms[d] += fabs(term);
            }
        }
        weights = ws_sum(weights);
        for (int64_t d = 0; d < width; d++) {
            const double sum = ws_sum(sums[d]), absolute = ws_sum(terms[d]);
            /* An error of one unit in a score is an error of |score| units in its weight. */
            if (keys > 0) ws_put(o, q_at + d0 + d, sum / weights, absolute / weights * (1 + largest));
            else ws_put(o, q_at + d0 + d, 0, 0);
        }
    }
}
