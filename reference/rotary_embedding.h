/* rotary_embedding: a pair (a, b) of a row at position s becomes (a c - b t, a t + b c) with c = cos[s, j], t = sin[s, j].
   Pairs are elements (j, j + D/2), or (2j, 2j + 1) where interleaved. An item is a row, one head at one position. */

WS_PASS(rows_of_x) {
    const int64_t s = bshd ? WS_ITEM / H % S : WS_ITEM % S;
    const int64_t pairs = D / 2;
    WS_EACH(j, pairs) {
        const int64_t first = WS_ITEM * D + (interleaved ? 2 * j : j);
        const int64_t second = first + (interleaved ? 1 : pairs);
        const double a = x(first), b = x(second), c = cos(s * pairs + j), t = sin(s * pairs + j);
        ws_put(y, first, a * c - b * t, fabs(a * c) + fabs(b * t));
        ws_put(y, second, a * t + b * c, fabs(a * t) + fabs(b * c));
    }
}
