/* powerinfer.h from C99: computing with sessions, alone and in threads. argv[1]: the default model.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "prompt.h"

static void test_refused_rows(const pi_model* m) {
    const int32_t n_vocab = pi_model_n_vocab(m);
    pi_session_params params = session_params(32, 1);
    params.n_batch = 16;
    params.n_logits = 2;
    params.n_seq = 2;
    pi_session* s = new_session(m, &params);
    CHECK(pi_session_n_ctx(s) == 32 && pi_session_n_batch(s) == 16);
    CHECK(pi_sequence_length(s, 0) == 0 && pi_sequence_length(s, 1) == 0);
    CHECK(pi_sequence_length(s, 2) == -1 && pi_sequence_length(s, -1) == -1);
    const float* logits = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 0, &logits)); /* nothing was computed yet */

    FAILS(PI_ERROR_ARGUMENT, pi_eval(NULL, tokens, NULL, NULL, 1));
    FAILS(PI_ERROR_ARGUMENT, pi_eval(s, NULL, NULL, NULL, 1));
    const int32_t bad_counts[] = {0, -1, 17, INT32_MAX, INT32_MIN};
    for (int k = 0; k < 5; k++) {
        FAILS(PI_ERROR_ARGUMENT, pi_eval(s, tokens, NULL, NULL, bad_counts[k]));
    }
    const int32_t bad_tokens[] = {-1, n_vocab, INT32_MAX, INT32_MIN};
    for (int k = 0; k < 4; k++) {
        int32_t some[3] = {tokens[0], tokens[1], tokens[2]};
        some[k % 3] = bad_tokens[k];
        FAILS(PI_ERROR_ARGUMENT, pi_eval(s, some, NULL, NULL, 3));
        CHECK(says("vocabulary"));
    }
    const int32_t bad_seqs[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (int k = 0; k < 4; k++) {
        const int32_t seq[3] = {0, 1, bad_seqs[k]};
        FAILS(PI_ERROR_ARGUMENT, pi_eval(s, tokens, seq, NULL, 3));
        CHECK(says("sequence"));
    }
    const bool three[4] = {true, false, true, true};
    FAILS(PI_ERROR_ARGUMENT, pi_eval(s, tokens, NULL, three, 4));
    CHECK(pi_sequence_length(s, 0) == 0 && pi_sequence_length(s, 1) == 0);

    /* Kept rows: by default the last one, otherwise those in `keep`. */
    OK(pi_eval(s, tokens, NULL, NULL, 4));
    OK(pi_logits(s, 3, &logits));
    CHECK(logits != UNTOUCHED && isfinite(logits[0]) && isfinite(logits[n_vocab - 1]));
    logits = UNTOUCHED;
    const int32_t not_kept[] = {0, 2, 4, -1, INT32_MAX};
    for (int k = 0; k < 5; k++) FAILS(PI_ERROR_ARGUMENT, pi_logits(s, not_kept[k], &logits));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 3, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(NULL, 3, &logits));
    OK(pi_eval(s, tokens + 4, NULL, three, 3));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 1, &logits));
    CHECK(logits == UNTOUCHED);
    OK(pi_logits(s, 0, &logits));
    OK(pi_logits(s, 2, &logits));
    const bool none[2] = {false, false};
    OK(pi_eval(s, tokens + 7, NULL, none, 2));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 1, &logits));
    CHECK(pi_sequence_length(s, 0) == 9);

    /* A context of 32 positions. A call that exceeds it leaves the sequence unchanged. */
    OK(pi_eval(s, tokens, NULL, NULL, 16));
    FAILS(PI_ERROR_CONTEXT, pi_eval(s, tokens, NULL, NULL, 8));
    int32_t seq[16];
    for (int i = 0; i < 16; i++) seq[i] = i >= 8;
    FAILS(PI_ERROR_CONTEXT, pi_eval(s, tokens, seq, NULL, 16));
    CHECK(pi_sequence_length(s, 0) == 25 && pi_sequence_length(s, 1) == 0);
    OK(pi_eval(s, tokens, NULL, NULL, 7));
    FAILS(PI_ERROR_CONTEXT, pi_eval(s, tokens, NULL, NULL, 1));
    CHECK(pi_sequence_length(s, 0) == 32);
    OK(pi_eval(s, tokens, seq + 8, NULL, 8)); /* another sequence has its own positions */
    CHECK(pi_sequence_length(s, 1) == 8);

    FAILS(PI_ERROR_ARGUMENT, pi_sequence_truncate(s, 0, -1));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_truncate(s, 0, 33));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_truncate(s, -1, 0));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_truncate(s, 2, 0));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_truncate(NULL, 0, 0));
    CHECK(pi_sequence_length(s, 0) == 32);
    OK(pi_sequence_truncate(s, 0, 32));
    OK(pi_sequence_truncate(s, 0, 5));
    CHECK(pi_sequence_length(s, 0) == 5 && pi_sequence_length(s, 1) == 8);
    OK(pi_sequence_truncate(s, 0, 0));
    OK(pi_eval(s, tokens, NULL, NULL, 1));
    pi_session_free(s);

    params = session_params(0, 0); /* 0: values of the model and the machine */
    params.n_batch = 8;
    params.n_ubatch = 512; /* cut to n_batch */
    s = new_session(m, &params);
    CHECK(pi_session_n_ctx(s) == pi_model_n_ctx(m) && pi_session_n_batch(s) == 8);
    pi_session_free(s);
}

/* The same rows computed in different ways have the same bits. */
static void test_bits(const pi_model* m, const float* expected) {
    const int32_t n_vocab = pi_model_n_vocab(m);
    const size_t row = (size_t)n_vocab;
    for (int32_t n_threads = 1; n_threads <= 4; n_threads += 3) {
        pi_session_params params = session_params(64, n_threads);
        params.n_ubatch = 7;
        params.n_threads_batch = n_threads == 1 ? 3 : 1;
        pi_session* s = new_session(m, &params);
        for (int32_t i = 0, n = 1; i < N_TOKENS; i += n, n = n % 9 + 1) {
            if (n > N_TOKENS - i) n = N_TOKENS - i;
            const float* logits = NULL;
            OK(pi_eval(s, tokens + i, NULL, NULL, n));
            OK(pi_logits(s, n - 1, &logits));
            CHECK(same(logits, expected + (size_t)(i + n - 1) * row, row));
        }
        /* Back to a common prefix, then another continuation. */
        const float* logits = NULL;
        OK(pi_sequence_truncate(s, 0, 11));
        OK(pi_eval(s, tokens + 20, NULL, NULL, 10)); /* another text */
        OK(pi_sequence_truncate(s, 0, 11));
        OK(pi_eval(s, tokens + 11, NULL, NULL, N_TOKENS - 11));
        OK(pi_logits(s, N_TOKENS - 12, &logits));
        CHECK(same(logits, expected + (size_t)(N_TOKENS - 1) * row, row));
        pi_session_free(s);
    }
}

static void keep_message(int32_t level, const char* message, void* data) {
    if (level == 2) snprintf(data, 200, "%s", message);
}

/* More threads than processors are said to be so many, and take no memory. */
static void test_threads_used(const pi_model* m) {
    const int32_t most = pi_threads_used(512);
    CHECK(pi_threads_used(0) == pi_default_threads() && pi_default_threads() <= most);
    CHECK(pi_threads_used(1) == 1 && pi_threads_used(most) == most && most <= 512);
    uint64_t bytes[2] = {0, 0};
    char said[2][200] = {"", ""}, numbers[80];
    for (int i = 0; i < 2 && most < 512; i++) {
        pi_session_params params = session_params(64, 1);
        params.n_threads_batch = most + i;
        params.log = keep_message;
        params.log_data = said[i];
        const uint64_t before = pi_model_reserved(m);
        pi_session* s = new_session(m, &params);
        bytes[i] = pi_model_reserved(m) - before;
        pi_session_free(s);
        pi_plan* plan = NULL;
        OK(pi_model_plan(m, &params, &plan));
        for (int32_t k = 0; k < pi_plan_n_parts(plan); k++) {
            pi_plan_part part = {.struct_size = sizeof part};
            OK(pi_plan_part_at(plan, k, &part));
            if (!strcmp(part.name, "scratch")) bytes[i] += part.n_bytes;
        }
        pi_plan_free(plan);
    }
    snprintf(numbers, sizeof numbers, "%d threads were asked for, %d are used", most + 1, most);
    CHECK(bytes[0] == bytes[1] && !said[0][0]);
    CHECK(most == 512 || !strncmp(said[1], numbers, strlen(numbers)));
}

/* Three sequences in the same calls: the text, the text two tokens later, and random tokens. */
static void test_sequences(const pi_model* m, const float* expected) {
    const size_t row = (size_t)pi_model_n_vocab(m);
    pi_session_params params = session_params(64, 2);
    params.n_seq = 3;
    pi_session* s = new_session(m, &params);
    for (int32_t i = 0; i < N_TOKENS; i++) {
        int32_t token[3], seq[3], n = 0;
        bool keep[3] = {true, true, true};
        token[n] = (tokens[i] * 7 + i) % (int32_t)row, seq[n++] = 1;
        token[n] = tokens[i], seq[n++] = 0;
        if (i >= 2) token[n] = tokens[i - 2], seq[n++] = 2;
        OK(pi_eval(s, token, seq, keep, n));
        const float* logits = NULL;
        OK(pi_logits(s, 1, &logits));
        CHECK(same(logits, expected + (size_t)i * row, row));
        if (i < 2) continue;
        OK(pi_logits(s, 2, &logits));
        CHECK(same(logits, expected + (size_t)(i - 2) * row, row));
    }
    CHECK(pi_sequence_length(s, 0) == N_TOKENS && pi_sequence_length(s, 2) == N_TOKENS - 2);
    pi_session_free(s);
}

struct stopper {
    int calls, stop_at;
};

static bool should_stop(void* data) {
    struct stopper* stopper = data;
    return ++stopper->calls == stopper->stop_at;
}

static void test_should_stop(const pi_model* m, const float* expected) {
    const size_t row = (size_t)pi_model_n_vocab(m);
    struct stopper stopper = {0, 0};
    pi_session_params params = session_params(64, 2);
    params.n_ubatch = 8;
    params.should_stop = should_stop;
    params.should_stop_data = &stopper;
    pi_session* s = new_session(m, &params);
    OK(pi_eval(s, tokens, NULL, NULL, 10));
    CHECK(stopper.calls > 1);
    const float* logits = UNTOUCHED;
    for (int stop = 1; stop <= 9; stop += 4) { /* in the first and in later pieces of 8 rows */
        stopper.calls = 0;
        stopper.stop_at = stop;
        FAILS(PI_ERROR_CANCELLED, pi_eval(s, tokens + 10, NULL, NULL, 30));
        CHECK(stopper.calls == stop && pi_sequence_length(s, 0) == 10);
        FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 29, &logits));
        CHECK(logits == UNTOUCHED);
    }
    stopper.stop_at = 0;
    OK(pi_eval(s, tokens + 10, NULL, NULL, 30));
    OK(pi_logits(s, 29, &logits));
    CHECK(same(logits, expected + 39 * row, row));
    pi_session_free(s);
}

/* A saved sequence continues in another session and another slot with the same bits. */
static void test_saved_sequence(const pi_model* m, const float* expected) {
    const size_t row = (size_t)pi_model_n_vocab(m);
    static const uint32_t types[] = {0 /* F32 */, 1 /* F16 */, 8 /* Q8_0 */};
    for (int t = 0; t < 3; t++) {
        const uint32_t type = types[t];
        pi_session_params params = session_params(64, 1);
        params.type_k = params.type_v = type;
        pi_session* a = new_session(m, &params);
        params.n_ctx = 41;
        params.n_seq = 2;
        pi_session* b = new_session(m, &params);
        unsigned char small[8];
        size_t n = 0, empty = 0, again = 77;
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 0, NULL, 0, &empty));
        OK(pi_eval(a, tokens, NULL, NULL, 30));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 0, small, sizeof(small), &n));
        CHECK(n > empty && empty > 0);
        unsigned char* state = malloc(n + 1);
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, -1, state, n, &again));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 1, state, n, &again));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(NULL, 0, state, n, &again));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 0, NULL, n, &again));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 0, state, n, NULL));
        CHECK(again == 77);
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(a, 0, state, n - 1, &again));
        state[n] = 0xAA;
        OK(pi_sequence_save(a, 0, state, n, &again));
        CHECK(again == n && state[n] == 0xAA);

        const float *logits = NULL, *other = NULL;
        const int32_t second[1] = {1};
        OK(pi_eval(b, tokens + 5, second, NULL, 1)); /* load replaces this */
        OK(pi_sequence_load(b, 1, state, n));
        CHECK(pi_sequence_length(b, 0) == 0 && pi_sequence_length(b, 1) == 30);
        for (int32_t i = 30; i < N_TOKENS; i++) {
            OK(pi_eval(a, tokens + i, NULL, NULL, 1));
            OK(pi_eval(b, tokens + i, second, NULL, 1));
            OK(pi_logits(a, 0, &logits));
            OK(pi_logits(b, 0, &other));
            CHECK(same(logits, other, row));
            if (type == 1) CHECK(same(logits, expected + (size_t)i * row, row));
        }

        /* Bytes that are not a state of this model are refused, and the sequence stays unchanged.
         */
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_load(b, -1, state, n));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_load(b, 2, state, n));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_load(b, 1, NULL, n));
        FAILS(PI_ERROR_ARGUMENT, pi_sequence_load(NULL, 1, state, n));
        const size_t lengths[] = {0, 1, empty - 1, empty, n - 1, n + 1};
        for (int k = 0; k < 6; k++) {
            FAILS(PI_ERROR_FORMAT, pi_sequence_load(b, 1, state, lengths[k]));
        }
        for (size_t at = 0; at < empty; at++) { /* every byte of the header is checked */
            state[at] ^= 0x80;
            CHECK(pi_sequence_load(b, 1, state, n) != PI_OK);
            state[at] ^= 0x80;
        }
        CHECK(pi_sequence_length(b, 1) == N_TOKENS);
        OK(pi_sequence_load(b, 1, state, n));
        params.n_ctx = 29;
        pi_session* c = new_session(m, &params);
        FAILS(PI_ERROR_CONTEXT, pi_sequence_load(c, 0, state, n));
        CHECK(pi_sequence_length(c, 0) == 0);
        pi_session_free(c);
        params.n_ctx = 64;
        params.type_k = params.type_v = type == 0;
        c = new_session(m, &params);
        FAILS(PI_ERROR_FORMAT, pi_sequence_load(c, 0, state, n));
        pi_session_free(c);
        free(state);
        pi_session_free(b);
        pi_session_free(a);
    }
}

static void test_embedding(const pi_model* m) {
    const int32_t n_embd = pi_model_n_embd(m);
    pi_session_params params = session_params(64, 2);
    pi_session* plain = new_session(m, &params);
    params.embedding = true;
    pi_session* s = new_session(m, &params);
    const float *at_once = NULL, *singly = NULL, *out = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(s, 0, &out));
    OK(pi_eval(s, tokens, NULL, NULL, 20));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 19, &out));
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(s, 0, &out));
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(s, 19, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(NULL, 19, &out));
    OK(pi_eval(plain, tokens, NULL, NULL, 20));
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(plain, 19, &out));
    CHECK(out == UNTOUCHED);
    OK(pi_embedding(s, 19, &at_once));
    float* kept = malloc((size_t)n_embd * sizeof(float));
    double size = 0;
    for (int32_t i = 0; i < n_embd; i++) size += (double)at_once[i] * at_once[i];
    CHECK(size > 0 && isfinite(size));
    memcpy(kept, at_once, (size_t)n_embd * sizeof(float));
    OK(pi_sequence_truncate(s, 0, 0));
    for (int i = 0; i < 20; i++) OK(pi_eval(s, tokens + i, NULL, NULL, 1));
    OK(pi_embedding(s, 0, &singly));
    CHECK(same(kept, singly, (size_t)n_embd));
    free(kept);
    pi_session_free(s);
    pi_session_free(plain);
}

/* ---- Threads ------------------------------------------------------------------------------ */

struct job {
    const pi_model* model;
    const float* expected;
    int number;
    int good;
};

/* One user of a shared model: tokenizes, computes, samples, makes an error. */
static void* use_model(void* data) {
    struct job* job = data;
    const size_t row = (size_t)pi_model_n_vocab(job->model);
    for (int round = 0; round < 3; round++) {
        const pi_session_params params = session_params(64, 1 + (job->number + round) % 2);
        pi_session* s = new_session(job->model, &params);
        pi_sampler* sampler = NULL;
        OK(pi_sampler_new(NULL, &sampler));
        int32_t ids[sizeof(prompt) + 2], token = -1;
        size_t n = 0;
        OK(pi_tokenize(job->model, prompt, sizeof(prompt) - 1, false, ids, sizeof(prompt) + 2, &n));
        const int32_t half = 10 + job->number;
        const float* logits = NULL;
        OK(pi_eval(s, tokens, NULL, NULL, half));
        FAILS(PI_ERROR_ARGUMENT, pi_eval(s, tokens, NULL, NULL, -1 - job->number));
        char number[32];
        snprintf(number, sizeof(number), "-%d rows", 1 + job->number);
        CHECK(says(number)); /* the message of this thread, not of another one */
        OK(pi_eval(s, tokens + half, NULL, NULL, N_TOKENS - half));
        OK(pi_logits(s, N_TOKENS - half - 1, &logits));
        OK(pi_sample(sampler, logits, (int32_t)row, &token));
        job->good += same(logits, job->expected + (N_TOKENS - 1) * row, row) && token >= 0;
        pi_sampler_free(sampler);
        pi_session_free(s);
    }
    return NULL;
}

static void test_threads(const pi_model* m, const float* expected) {
    struct job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){m, expected, i, 0};
        CHECK(!pthread_create(&threads[i], NULL, use_model, &jobs[i]));
    }
    for (int i = 0; i < 4; i++) {
        CHECK(!pthread_join(threads[i], NULL));
        CHECK(jobs[i].good == 3);
    }
}

static void test_session_outlives_model(const float* expected) {
    pi_model* m = open_model();
    const size_t row = (size_t)pi_model_n_vocab(m);
    const pi_session_params params = session_params(64, 2);
    pi_session *a = new_session(m, &params), *b = new_session(m, NULL);
    OK(pi_eval(a, tokens, NULL, NULL, 10));
    pi_model_free(m);
    pi_session_free(b);
    const float* logits = NULL;
    OK(pi_eval(a, tokens + 10, NULL, NULL, 30));
    OK(pi_logits(a, 29, &logits));
    CHECK(same(logits, expected + 39 * row, row));
    pi_session_free(a);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: test_capi_session MODEL\n");
        return 2;
    }
    model_path = argv[1];
    pi_model* m = open_model();
    make_tokens(m);
    float* expected = reference(m, 1);
    test_refused_rows(m);
    test_bits(m, expected);
    test_threads_used(m);
    test_sequences(m, expected);
    test_should_stop(m, expected);
    test_saved_sequence(m, expected);
    test_embedding(m);
    test_threads(m, expected);
    pi_model_free(m);
    test_session_outlives_model(expected);
    free(expected);
    return summary("test_capi_session");
}
