/* The ceilings' kernels. One file, several images: MODE chooses. Vectors are written out so that no compiler's mood
   decides how fast a processor is said to be. p[0]: inputs, p[1]: outputs, i[0]: bytes or turns. */
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

void ws_parallel(int64_t n, void (*body)(int64_t begin, int64_t end, void *context), void *context);

/* WIDTH: bytes of a vector. Twelve chains hide the latency of a multiply-add wherever it takes four or five cycles on two
   units. */
#define CHAINS 12

typedef float v32 __attribute__((vector_size(WIDTH)));
typedef int64_t vi __attribute__((vector_size(WIDTH)));

struct job { const char *x; char *y; int64_t n; int64_t threads; };

#if MODE == 0 /* nothing */
static void kernel(const struct job *job) { (void)job; }

#elif MODE == 1 /* read */
static void body(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    const vi *x = (const vi *)job->x;
    vi a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t at = begin; at < end; at++) {
        const vi *four = x + at * 4;
        a ^= four[0]; b ^= four[1]; c ^= four[2]; d ^= four[3];
    }
    a ^= b ^ c ^ d;
    /* Never stored, since nothing is at index -1; the compiler does not know. */
    if (begin < 0) *(vi *)job->y = a;
    __asm__ volatile("" : : "m"(a));
}
static void kernel(const struct job *job) { ws_parallel(job->n / (4 * WIDTH), body, (void *)job); }

#elif MODE == 2 /* write */
static void body(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    vi *y = (vi *)job->y;
    const vi value = {1};
    for (int64_t at = begin * 4; at < end * 4; at++) y[at] = value;
}
static void kernel(const struct job *job) { ws_parallel(job->n / (4 * WIDTH), body, (void *)job); }

#elif MODE == 5 /* write past the caches */
static void body(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    vi *y = (vi *)job->y;
    const vi value = {1};
    for (int64_t at = begin * 4; at < end * 4; at++) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(y + at), (__m512i)value);
#elif defined(__AVX__)
        _mm256_stream_si256((__m256i *)(y + at), (__m256i)value);
#elif defined(__x86_64__)
        _mm_stream_si128((__m128i *)(y + at), (__m128i)value);
#else
        y[at] = value;
#endif
    }
}
static void kernel(const struct job *job) { ws_parallel(job->n / (4 * WIDTH), body, (void *)job); }

#else /* arithmetic: MODE 3 fp32, 4 fp16, 6 bf16 */
#if MODE == 3
typedef v32 v;
#define STEP(s) s = s * m + a
#elif MODE == 4
#if !defined(__AVX512FP16__) && !defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#error no arithmetic in half precision
#endif
typedef _Float16 v __attribute__((vector_size(WIDTH)));
#define STEP(s) s = s * m + a
#else
#ifndef __AVX512BF16__
#error no arithmetic in bfloat16
#endif
typedef v32 v;
#define STEP(s) s = (v)_mm512_dpbf16_ps((__m512)s, (__m512bh)m, (__m512bh)a)
#endif

static void body(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    v s[CHAINS], m, a;
    /* From memory, so that nothing is folded: factors below one keep sums finite and away from subnormals. */
    m = *(const v *)job->x;
    a = *(const v *)(job->x + WIDTH);
    for (int chain = 0; chain < CHAINS; chain++) s[chain] = a;
    for (int64_t turn = 0; turn < job->n; turn++) {
#pragma GCC unroll 12
        for (int chain = 0; chain < CHAINS; chain++) STEP(s[chain]);
    }
    v all = s[0];
    for (int chain = 1; chain < CHAINS; chain++) all += s[chain];
    for (int64_t thread = begin; thread < end; thread++) *(v *)(job->y + thread * WIDTH) = all;
}
static void kernel(const struct job *job) { ws_parallel(job->threads, body, (void *)job); }
#endif

__attribute__((visibility("default"))) void ws_entry(void *const *p, const int64_t *i, const float *f) {
    const struct job job = {p[0], p[1], i[0], i[1]};
    (void)f;
    kernel(&job);
}
