/* Shared by the tests of the C API. */
#ifndef CAPI_TEST_H
#define CAPI_TEST_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "powerinfer.h"

static int checks, failures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void report(bool good, const char* file, int line, const char* what) {
    pthread_mutex_lock(&lock);
    checks++;
    if (!good) {
        failures++;
        fprintf(stderr, "%s:%d: %s (last error: %s)\n", file, line, what, pi_last_error());
    }
    pthread_mutex_unlock(&lock);
}
#define CHECK(condition) report((condition), __FILE__, __LINE__, "CHECK(" #condition ") failed")
#define OK(call) report((call) == PI_OK, __FILE__, __LINE__, #call " failed")
#define FAILS(status, call)                                              \
    report((call) == (status) && pi_last_error()[0], __FILE__, __LINE__, \
           #call " must fail with " #status)

/* The value of out-parameters before a call that must not write them. */
static char untouched_place;
#define UNTOUCHED ((void*)&untouched_place)

/* Sets struct_size of a struct that a call fills. */
#define SIZED(s) ((s).struct_size = sizeof(s))

static const char* model_path;

static inline bool says(const char* word) {
    return strstr(pi_last_error(), word) != NULL;
}

static inline pi_model* open_model(void) {
    pi_model* model = NULL;
    OK(pi_model_open(model_path, NULL, &model));
    return model;
}

static inline pi_session_params session_params(int32_t n_ctx, int32_t n_threads) {
    pi_session_params params = pi_session_default_params();
    params.n_ctx = n_ctx;
    params.n_threads = n_threads;
    return params;
}

static inline pi_session* new_session(const pi_model* model, const pi_session_params* params) {
    pi_session* session = NULL;
    OK(pi_session_new(model, params, &session));
    return session;
}

/* The number of a key; -1 if the file lacks it. */
static inline int64_t find_key(const pi_gguf* g, const char* wanted) {
    for (int64_t i = 0; i < pi_gguf_n_values(g); i++) {
        const char* key = NULL;
        size_t length = 0;
        pi_value_type type, element;
        uint64_t count = 0;
        OK(pi_gguf_value(g, i, &key, &length, &type, &element, &count));
        if (length == strlen(wanted) && !memcmp(key, wanted, length)) return i;
    }
    return -1;
}

static inline int summary(const char* name) {
    printf("%s: %d checks, %d failed\n", name, checks, failures);
    return failures == 0 && checks > 0 ? 0 : 1;
}

#endif
