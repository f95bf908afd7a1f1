/* cross_entropy: losses[i] = log(sum_j exp(logits[i,j])) - logits[i,targets[i]], loss = their mean. */

/* What is added is the largest logit, the target's, and the logarithm; an error of the sum by a factor 1 + e moves its
   logarithm by e, hence the 1. */
WS_PASS(rows_of_logits) {
    const int64_t base = WS_ITEM * vocab;
    double top = -INFINITY;
    WS_EACH(j, vocab) {
        const double v = logits(base + j);
        if (v > top) top = v;
    }
    const double highest = ws_max(top);
    double sum = 0;
    WS_EACH(j, vocab) sum += exp(logits(base + j) - highest);
    const double spread = log(ws_sum(sum)), wanted = logits(base + (int64_t)targets(WS_ITEM));
    ws_put(losses, WS_ITEM, highest - wanted + spread, 1 + fabs(highest) + fabs(wanted) + fabs(spread));
}

WS_PASS(mean_of_losses) {
    double sum = 0, terms = 0;
    WS_EACH(i, batch) {
        sum += ws_get(losses, i);
        terms += ws_get_abs(losses, i);
    }
    ws_put(loss, WS_ITEM, ws_sum(sum) / (double)batch, ws_sum(terms) / (double)batch);
}
