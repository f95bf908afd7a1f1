/* Runs a kernel once on a case, in a program that a sanitizer watches: no judge is in this process, and nothing it says is read
   but the sanitizer's report. The case is a file of words: pointers (each: kind, bytes), symbols, scalars, then the inputs. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ABSENT, INPUT, RUBBISH, ZERO };
enum { MOST = 64, THREADS = 3, UNUSABLE = 3 };

void ws_entry(void *const *pointers, const int64_t *symbols, const float *scalars);

typedef void (*ws_body)(int64_t begin, int64_t end, void *context);

typedef struct {
    int64_t begin, end;
    ws_body body;
    void *context;
} ws_part;

static __thread int ws_inside;

/* Where no file can be read, options in the environment are not read either. */
#define WS_SEEN __attribute__((visibility("default")))
WS_SEEN const char *__asan_default_options(void);
WS_SEEN const char *__tsan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048"; }
const char *__tsan_default_options(void) { return "halt_on_error=1:exitcode=66:max_allocation_size_mb=2048"; }

static void *ws_work(void *of) {
    const ws_part *part = of;
    ws_inside = 1;
    part->body(part->begin, part->end, part->context);
    return NULL;
}

void ws_parallel(int64_t n, ws_body body, void *context) {
    if (n <= 0) return;
    if (n == 1 || ws_inside) {
        body(0, n, context);
        return;
    }
    ws_part parts[THREADS];
    pthread_t threads[THREADS];
    for (int64_t i = 0; i < THREADS; i++) {
        parts[i] = (ws_part){n * i / THREADS, n * (i + 1) / THREADS, body, context};
        if (pthread_create(&threads[i], NULL, ws_work, &parts[i]) != 0) exit(UNUSABLE);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void ws_read(void *to, size_t bytes, FILE *file) {
    if (fread(to, 1, bytes, file) != bytes) exit(UNUSABLE);
}

int main(int count, char **arguments) {
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL) exit(UNUSABLE);
    int64_t head[3], pointers[MOST][2], symbols[MOST];
    float scalars[MOST];
    void *memory[MOST] = {NULL};
    ws_read(head, sizeof head, file);
    for (int i = 0; i < 3; i++)
        if (head[i] < 0 || head[i] > MOST) exit(UNUSABLE);
    ws_read(pointers, (size_t)head[0] * sizeof *pointers, file);
    ws_read(symbols, (size_t)head[1] * sizeof *symbols, file);
    ws_read(scalars, (size_t)head[2] * sizeof *scalars, file);
    for (int64_t i = 0; i < head[0]; i++) {
        const size_t bytes = (size_t)pointers[i][1];
        if (pointers[i][0] == ABSENT) continue;
        /* As long as it is, so that what follows its last byte is nobody's. */
        if (posix_memalign(&memory[i], 64, bytes) != 0) exit(UNUSABLE);
        if (pointers[i][0] == INPUT) ws_read(memory[i], bytes, file);
        else memset(memory[i], pointers[i][0] == ZERO ? 0 : 0x7f, bytes);
    }
    fclose(file);
    ws_entry(memory, symbols, scalars);
    for (int64_t i = 0; i < head[0]; i++) free(memory[i]);
    return 0;
}
