/* fused_mlp: hidden = silu(x w_gate^T) * (x w_up^T), y = hidden w_down^T, silu(g) = g / (1 + exp(-g)).
   The harness computes the products `gate`, `up` and `y`; the passes named *_element compute single elements plainly,
   to check them against. */

WS_PASS(gate_element) {
    const int64_t row = WS_ITEM / H, column = WS_ITEM % H;
    double sum = 0, terms = 0;
    WS_EACH(k, D) {
        const double term = x(row * D + k) * w_gate(column * D + k);
        sum += term;
        terms += fabs(term);
    }
    ws_put(gate_element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}

WS_PASS(up_element) {
    const int64_t row = WS_ITEM / H, column = WS_ITEM % H;
    double sum = 0, terms = 0;
    WS_EACH(k, D) {
        const double term = x(row * D + k) * w_up(column * D + k);
        sum += term;
        terms += fabs(term);
    }
    ws_put(up_element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}

/* What gate and up are uncertain by reaches `hidden` through the derivatives of silu(g) u. These errors differ from one
   hidden value to the next, so y, a sum over H of them, feels 1 / sqrt(H) of their sum. So it is with what `hidden` loses near
   zero where it is stored: an underflow, four of them in half, where a kernel keeps a quarter of it so that it does not
   overflow. A term is weighed with 2^-24 B / 4, which is a little more than 2^-23. Far below zero a sigmoid in single precision
   is nothing, where g times it would still be a number: 2^-126 of it is lost. */
WS_PASS(activate) {
    const int64_t base = WS_ITEM * H;
    const double lost = 4 * WS_UNDERFLOW * 8388608;
    WS_EACH(j, H) {
        const double g = ws_get(gate, base + j), u = ws_get(up, base + j);
        const double sigmoid = 1 / (1 + exp(-g));
        const double silu = g * sigmoid, slope = sigmoid + silu * (1 - sigmoid);
        const double flushed = fabs(g * u) * 0x1p-103;
        const double inherited = fabs(slope * u) * ws_get_abs(gate, base + j) + fabs(silu) * ws_get_abs(up, base + j);
        ws_put(hidden, base + j, silu * u, fabs(silu * u) + (inherited + lost + flushed) / sqrt((double)H));
    }
}

WS_PASS(down_element) {
    const int64_t row = WS_ITEM / D, column = WS_ITEM % D;
    double sum = 0, terms = 0;
    WS_EACH(k, H) {
        const double weight = w_down(column * H + k);
        sum += ws_get(hidden, row * H + k) * weight;
        terms += ws_get_abs(hidden, row * H + k) * fabs(weight);
    }
    ws_put(down_element, WS_ITEM, ws_sum(sum), ws_sum(terms));
}
