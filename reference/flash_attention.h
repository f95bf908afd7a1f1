/* flash_attention: o[i] = sum_j p[i,j] v[j], p = softmax_j(scale q[i] . k[j]) over the keys that query i sees:
   all, or, where causal, j <= i + S_kv - S_q. A query that sees none gives zero. H / H_kv heads share a key and value head.
   The harness computes `scores` (q k^T of each head, not yet scaled) and `o`; the passes named *_element compute single
   elements plainly, to check them against. */

/* Where row i of a head begins, in q and o, or in k and v. */
#define Q_ROW(b, head, i) ((bshd ? ((b) * S_q + (i)) * H + (head) : ((b) * H + (head)) * S_q + (i)) * D)
#define KV_ROW(b, head, j) \
    ((bshd ? ((b) * S_kv + (j)) * H_kv + (head) / (H / H_kv) : ((b) * H_kv + (head) / (H / H_kv)) * S_kv + (j)) * D)

WS_PASS(score_element) {
    const int64_t j = WS_ITEM % S_kv, i = WS_ITEM / S_kv % S_q, z = WS_ITEM / S_kv / S_q;
    const int64_t q_at = Q_ROW(z / H, z % H, i), k_at = KV_ROW(z / H, z % H, j);
    double sum = 0, terms = 0;
    WS_EACH(d, D) {
        const double term = q(q_at + d) * k(k_at + d);
        sum += term;
        terms += fabs(term);
    }
    ws_put(score_element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}

/* An item is one query of one head. Scores are off by units of the terms they are summed from, which may cancel; weights
   feel that in full. */
WS_PASS(weigh) {
    const int64_t base = WS_ITEM * S_kv;
    int64_t keys = causal ? WS_ITEM % S_q + 1 + S_kv - S_q : S_kv;
    if (keys < 0) keys = 0;
    double top = -INFINITY, largest = 0;
    WS_EACH(j, keys) {
        const double score = ws_get(scores, base + j) * scale, terms = ws_get_abs(scores, base + j) * scale;
        if (score > top) top = score;
        if (terms > largest) largest = terms;
    }
    top = ws_max(top);
    largest = ws_max(largest);
    double sum = 0;
    WS_EACH(j, keys) sum += exp(ws_get(scores, base + j) * scale - top);
    const double share = 1 / ws_sum(sum);
    WS_EACH(j, S_kv) {
        const double p = j < keys ? exp(ws_get(scores, base + j) * scale - top) * share : 0;
        ws_put(weights, base + j, p, p * (1 + largest));
    }
}

WS_PASS(output_element) {
    const int64_t d = WS_ITEM % D, row = WS_ITEM / D;
    const int64_t head = bshd ? row % H : row / S_q % H, i = bshd ? row / H % S_q : row % S_q, b = row / H / S_q;
    const int64_t base = ((b * H + head) * S_q + i) * S_kv, v_at = KV_ROW(b, head, 0) + d;
    const int64_t v_step = bshd ? H_kv * D : D;
    int64_t keys = causal ? i + 1 + S_kv - S_q : S_kv;
    if (keys < 0) keys = 0;
    double sum = 0, terms = 0;
    WS_EACH(j, keys) {
        const double value = v(v_at + j * v_step);
        sum += ws_get(weights, base + j) * value;
        terms += ws_get_abs(weights, base + j) * fabs(value);
    }
    ws_put(output_element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}
