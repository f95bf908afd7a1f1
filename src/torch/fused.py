"""Far elements of each row, found on a GPU in one launch; what `measure.py` does with tensors takes some thirty passes over them."""

KINDS = {"torch.float16": 0, "torch.bfloat16": 1, "torch.float32": 2, "torch.float64": 3}

# Of a row: errors, values, along, misplaced, outside, lost, strayed, the largest finite element, the worst and its place.
FOUND = 10

# Threads of a row, and rows of a block: of short, longer and the longest rows.
SIZES = ((32, 8), (256, 1), (1024, 1))

# Rows of one launch, so that what it finds stays small beside the results.
ROWS_AT_ONCE = 1 << 20

FUSED = r'''
extern "C" __global__ void __launch_bounds__(1024) measure(const void *y_all, const double *r_all, const double *form, double *found_all) {
    const int kind = (int)form[0];
    const long long row = (long long)form[1], rows = (long long)form[2], first = (long long)form[3];
    const double u = form[4], largest = form[5], underflow = form[6], limit = form[7];
    const bool limited = form[8] != 0.0;
    const double lost_share = form[9], nothing = form[10];
    const int each_row = blockDim.x, lane = threadIdx.x;
    const long long number = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    const bool mine = number < rows;
    const long long begin = (first + (mine ? number : 0)) * row;

    // A sum over the threads of a row.
    __shared__ double shared[8][32];
    const auto total = [&](double one) {
        for (int step = 16; step; step /= 2) one += __shfl_xor_sync(~0u, one, step);
        if (each_row == 32) return one;
        __syncthreads();
        if (lane % 32 == 0) shared[threadIdx.y][lane / 32] = one;
        __syncthreads();
        one = 0.0;
        for (int warp = 0; warp < each_row / 32; warp++) one += shared[threadIdx.y][warp];
        return one;
    };
    const auto most = [&](double one) {
        for (int step = 16; step; step /= 2) one = fmax(one, __shfl_xor_sync(~0u, one, step));
        if (each_row == 32) return one;
        __syncthreads();
        if (lane % 32 == 0) shared[threadIdx.y][lane / 32] = one;
        __syncthreads();
        one = 0.0;
        for (int warp = 0; warp < each_row / 32; warp++) one = fmax(one, shared[threadIdx.y][warp]);
        return one;
    };

    // 0 alike, 1 misplaced, 2 off by d from b.
    double a;
    const auto element = [&](long long i, double &d, double &b) {
        if (kind == 2) a = ((const float *)y_all)[begin + i];
        else if (kind == 3) a = ((const double *)y_all)[begin + i];
        else {
            const unsigned short word = ((const unsigned short *)y_all)[begin + i];
            float single;
            if (kind == 1) single = __uint_as_float((unsigned)word << 16);
            else asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(word));
            a = single;
        }
        b = r_all[begin + i];
        const double size = fabs(b);
        const bool undefined = isnan(b), beyond = size > 1.001 * largest;
        if (!undefined && !beyond && isfinite(a)) {
            d = a - b;
            d = copysign(fmax(fabs(d) - underflow, 0.0), d);
            return 2;
        }
        d = b = 0.0;
        const bool overflowed = isinf(a) && signbit(a) == signbit(r_all[begin + i]);
        return (undefined && isnan(a)) || (overflowed && !undefined && size >= 0.999 * largest) ? 0 : 1;
    };

    double errors = 0.0, values = 0.0, along = 0.0, finite = 0.0, misplaced = 0.0;
    for (long long i = lane; mine && i < row; i += each_row) {
        double d, b;
        const int what = element(i, d, b);
        errors += d * d, values += b * b, along += d * b;
        finite += what == 2, misplaced += what == 1;
    }
    errors = total(errors), values = total(values), along = total(along), finite = total(finite), misplaced = total(misplaced);
    const double rms = finite > 0.0 ? sqrt(values / finite) : 0.0;
    // What a double is in the type of 16 bits, by way of single precision.
    const auto nearest = [&](double one) {
        const float single = (float)one;
        if (kind == 1) {
            const unsigned word = __float_as_uint(single);
            return (double)__uint_as_float((word + 0x7fffu + (word >> 16 & 1u)) & 0xffff0000u);
        }
        unsigned short word;
        float back;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(word) : "f"(single));
        asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(word));
        return (double)back;
    };
    double outside = 0.0, lost = 0.0, strayed = 0.0, largest_each = 0.0, worst = -1.0, place = 0.0;
    for (long long i = lane; mine && i < row; i += each_row) {
        double d, b;
        const int what = element(i, d, b);
        const double each = d == 0.0 ? 0.0 : fabs(d) / (fabs(b) + rms);
        lost += fabs(d) > lost_share * fabs(b) && fabs(b) > nothing * rms;
        if (kind < 2) strayed += what == 2 && a != nearest(b);
        if (isfinite(each)) largest_each = fmax(largest_each, each);
        outside += limited && (what == 1 || (what == 2 && !(each / u <= limit)));
        const double shown = what == 1 ? 1.0 / 0.0 : each;
        if (shown > worst) worst = shown, place = (double)i;
    }
    outside = total(outside), lost = total(lost), strayed = total(strayed), largest_each = most(largest_each);
    const double worst_of_all = most(fmax(worst, 0.0));
    // The first place of the worst: the largest of what is left of the row behind it.
    const double left = most(worst == worst_of_all ? (double)row - place : 0.0);
    if (mine && lane == 0) {
        double *found = found_all + number * 10;
        found[0] = errors, found[1] = values, found[2] = along, found[3] = misplaced;
        found[4] = outside, found[5] = lost, found[6] = strayed;
        found[7] = largest_each, found[8] = worst_of_all, found[9] = (double)row - left;
    }
}
'''

_fused = None


def fused():
    """The kernel; none where this PyTorch has no means to compile and start it, and tensors do it all."""
    global _fused
    if _fused is None:
        try:
            _fused = torch.cuda._compile_kernel(FUSED, "measure")
            one = torch.zeros(1, dtype=torch.float64, device=DEVICE)
            for threads in SIZES:
                _fused(block=(*threads, 1), args=[one, one, torch.zeros(11, dtype=torch.float64, device=DEVICE), one])
        except Exception:
            _fused = False
    return _fused


def rows_found(y, r, form, limit):
    """What is found of every row, a tensor of [rows, FOUND] in parts; none where it cannot be found so."""
    if r.device.type != "cuda" or r.numel() == 0 or str(y.dtype) not in KINDS or not fused():
        return None
    row = form["row"]
    rows, parts = r.numel() // row, []
    y, r = y.contiguous(), r.contiguous()
    threads = SIZES[0 if row <= 2048 else 1 if row <= 1 << 16 else 2]
    for first in range(0, rows, ROWS_AT_ONCE):
        some = min(ROWS_AT_ONCE, rows - first)
        bounds = [form["u"], form["largest"], form["underflow"], limit or 0.0, float(limit is not None), LOST, NOTHING]
        numbers = [KINDS[str(y.dtype)], row, some, first, *bounds]
        numbers = torch.tensor(numbers, dtype=torch.float64).to(r.device)
        found = torch.empty(some, FOUND, dtype=torch.float64, device=r.device)
        fused()(grid=(-(-some // threads[1]), 1, 1), block=(*threads, 1), args=[y, r, numbers, found])
        parts.append(found)
    return parts
