/* ws_parallel for exported kernels: over the threads that PyTorch's own OpenMP has, so that nobody's threads wait for another's; where
   there is none, over threads of its own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif
#define EXPORT __attribute__((visibility("default")))
#define MOST 256
#define WATCH 2000 /* turns that an idle thread looks for work before it sleeps: some 50 us */

typedef void (*body_fn)(int64_t begin, int64_t end, void *context);
typedef void (*team_fn)(void (*run)(void *), void *job, unsigned threads, unsigned flags);

static team_fn team;
static int wanted = 1;
static __thread int inside;

struct job {
    body_fn body;
    void *context;
    int64_t n, parts;
    _Atomic int64_t next;
};

static void take(void *given) {
    struct job *job = given;
    inside++;
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (part >= job->parts) break;
        const int64_t size = job->n / job->parts, rest = job->n % job->parts;
        const int64_t begin = part * size + (part < rest ? part : rest);
        job->body(begin, begin + size + (part < rest), job->context);
    }
    inside--;
}

/* Threads of its own. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static struct job *current;
static _Atomic uint64_t generation;
static int started, busy;

static void *work(void *unused) {
    (void)unused;
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < WATCH && atomic_load_explicit(&generation, memory_order_acquire) == seen; i++) RELAX();
        pthread_mutex_lock(&lock);
        while (atomic_load(&generation) == seen) pthread_cond_wait(&begun, &lock);
        seen = atomic_load(&generation);
        struct job *job = current;
        if (job) busy++;
        pthread_mutex_unlock(&lock);
        if (!job) continue;
        take(job);
        pthread_mutex_lock(&lock);
        if (--busy == 0) pthread_cond_signal(&ended);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* A forked child has no thread but its own. */
static void forked(void) {
    started = 0;
    busy = 0;
    current = NULL;
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&turn, NULL);
}

static void start(int threads) {
    static int once;
    if (!once) {
        once = 1;
        pthread_atfork(NULL, NULL, forked);
    }
    while (started < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL)) break;
        pthread_detach(thread);
        started++;
    }
}

static void own(struct job *job, int threads) {
    /* Two callers at once: the second does its work alone. */
    if (pthread_mutex_trylock(&turn)) {
        take(job);
        return;
    }
    pthread_mutex_lock(&lock);
    start(threads);
    current = job;
    atomic_fetch_add(&generation, 1);
    pthread_cond_broadcast(&begun);
    pthread_mutex_unlock(&lock);
    take(job);
    pthread_mutex_lock(&lock);
    current = NULL;
    while (busy) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&turn);
}

/* With how many threads, and by whom: `fork_join` is GOMP_parallel, or NULL. */
EXPORT void ws_threads(int threads, void *fork_join) {
    wanted = threads < 1 ? 1 : threads > MOST ? MOST : threads;
    team = (team_fn)fork_join;
}

EXPORT void ws_parallel(int64_t n, body_fn body, void *context) {
    if (n <= 0) return;
    const int threads = n < wanted ? (int)n : wanted;
    if (threads == 1 || inside) {
        body(0, n, context);
        return;
    }
    struct job job = {.body = body, .context = context, .n = n, .parts = threads};
    if (team)
        team(take, &job, (unsigned)threads, 0);
    else
        own(&job, threads);
}
