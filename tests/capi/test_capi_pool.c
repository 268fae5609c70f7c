/* powerinfer.h: a pool of keys and values that many sequences share. argv[1]: the default model. */
#include "capi.h"

enum { N_CTX = 256, MOST = 512 };

static int32_t tokens[MOST];

/* Appends n positions to a sequence. */
static pi_status append(pi_session* s, int32_t seq, int32_t n) {
    int32_t seqs[MOST];
    for (int32_t i = 0; i < n; i++) seqs[i] = seq;
    return pi_eval(s, tokens + pi_sequence_length(s, seq), seqs, NULL, n);
}

/* Is the content of a sequence the first n tokens? */
static bool holds(const pi_session* s, int32_t seq, int32_t n) {
    int32_t same = -1;
    OK(pi_sequence_match(s, seq, tokens, NULL, n, &same));
    return same == n && pi_sequence_length(s, seq) == n;
}

static uint64_t kv_bytes(const pi_session_params* params) {
    pi_plan* plan = UNTOUCHED;
    OK(pi_plan_new(model_path, NULL, params, &plan));
    uint64_t bytes = 0;
    pi_plan_part part;
    SIZED(part);
    for (int32_t i = 0; i < pi_plan_n_parts(plan); i++) {
        OK(pi_plan_part_at(plan, i, &part));
        if (!strcmp(part.name, "kv")) bytes += part.n_bytes;
    }
    pi_plan_free(plan);
    return bytes;
}

/* 256 sequences over four pages. */
static void test_full_pool(const pi_model* m) {
    pi_session_params params = session_params(N_CTX, 1);
    const uint64_t alone = kv_bytes(&params);
    params.n_seq = 256;
    CHECK(kv_bytes(&params) > 255 * alone);
    params.n_kv = 4 * 64 - 5;                     /* rounded up to pages */
    CHECK(kv_bytes(&params) < alone + 256 * 100); /* and a table for each sequence */
    pi_session* s = new_session(m, &params);
    CHECK(pi_session_free_positions(s) == 256);
    OK(append(s, 0, 100));
    CHECK(pi_session_free_positions(s) == 128);
    for (int32_t i = 1; i < 256; i++) OK(pi_sequence_copy(s, 0, i, 100));
    CHECK(pi_session_free_positions(s) == 128);

    /* Each that continues copies the second page. */
    OK(append(s, 255, 20));
    CHECK(pi_session_free_positions(s) == 64 && holds(s, 255, 120));
    const int32_t both[] = {3, 4};
    FAILS(PI_ERROR_CONTEXT, pi_eval(s, tokens + 100, both, NULL, 2));
    CHECK(says("n_kv") && says("128 positions") && says("64 of its 256"));
    CHECK(holds(s, 3, 100) && holds(s, 4, 100) && pi_session_free_positions(s) == 64);
    OK(append(s, 255, 8)); /* fills its page */
    CHECK(pi_session_free_positions(s) == 64);
    FAILS(PI_ERROR_CONTEXT, append(s, 255, 65));
    CHECK(says("n_kv") && holds(s, 255, 128));
    OK(append(s, 255, 64));
    CHECK(pi_session_free_positions(s) == 0 && holds(s, 255, 192));
    FAILS(PI_ERROR_CONTEXT, append(s, 255, 1));
    FAILS(PI_ERROR_CONTEXT, append(s, 7, 1));
    FAILS(PI_ERROR_CONTEXT, append(s, 255, 65)); /* both are too small */
    CHECK(says("a context of 256") && !says("n_kv"));

    /* Pages come back with their last owner. */
    for (int32_t i = 0; i < 255; i++) {
        CHECK(pi_session_free_positions(s) == 0);
        OK(pi_sequence_truncate(s, i, 64));
    }
    CHECK(pi_session_free_positions(s) == 64);
    OK(pi_sequence_truncate(s, 255, 0));
    CHECK(pi_session_free_positions(s) == 192 && holds(s, 9, 64));
    pi_session_free(s);

    /* The whole pool for the last two owners of a page: one of them keeps it. */
    params = session_params(64, 1);
    params.n_seq = 2;
    for (params.n_kv = 0; params.n_kv <= 1000; params.n_kv += 500) { /* more than all: all */
        s = new_session(m, &params);
        CHECK(pi_session_free_positions(s) == 128);
        OK(append(s, 0, 10));
        OK(pi_sequence_copy(s, 0, 1, 9));
        const int32_t seqs[] = {0, 1}, rows[] = {tokens[10], tokens[9]};
        OK(pi_eval(s, rows, seqs, NULL, 2));
        CHECK(pi_session_free_positions(s) == 0 && holds(s, 0, 11) && holds(s, 1, 10));
        pi_session_free(s);
    }
}

/* A state takes pages, too: free ones, and those that its sequence has for itself. */
static void test_loading(const pi_model* m) {
    pi_session_params params = session_params(N_CTX, 1);
    params.n_seq = 3, params.n_kv = 192;
    pi_session* s = new_session(m, &params);
    OK(append(s, 0, 100));
    size_t n = 0;
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_save(s, 0, NULL, 0, &n));
    void* state = malloc(n);
    OK(pi_sequence_save(s, 0, state, n, &n));
    OK(append(s, 1, 5));
    FAILS(PI_ERROR_CONTEXT, pi_sequence_load(s, 1, state, n));
    CHECK(says("n_kv") && holds(s, 0, 100) && holds(s, 1, 5));
    OK(pi_sequence_load(s, 0, state, n)); /* in place of its own pages */
    CHECK(holds(s, 0, 100) && pi_session_free_positions(s) == 0);
    OK(pi_sequence_copy(s, 0, 2, 100));
    FAILS(PI_ERROR_CONTEXT, pi_sequence_load(s, 2, state, n)); /* these are not its own */
    OK(pi_sequence_truncate(s, 0, 0));
    OK(pi_sequence_load(s, 2, state, n));
    CHECK(holds(s, 2, 100) && holds(s, 1, 5));
    /* A part takes no pages of its sequence's own. */
    size_t size = 0;
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_save_part(s, 2, 0, 64, NULL, 0, &size));
    CHECK(size > 0 && size < n);
    OK(pi_sequence_save_part(s, 2, 0, 64, state, n, &size));
    FAILS(PI_ERROR_CONTEXT, pi_sequence_load_part(s, 0, state, size));
    CHECK(says("n_kv") && holds(s, 0, 0) && holds(s, 2, 100));
    OK(pi_sequence_truncate(s, 1, 0));
    OK(pi_sequence_load_part(s, 0, state, size));
    CHECK(holds(s, 0, 64));
    FAILS(PI_ERROR_FORMAT, pi_sequence_load_part(s, 0, state, size));
    CHECK(says("position 64 comes next"));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_save_part(s, 2, 1, 2, state, n, &size));
    CHECK(says("multiples of 64"));
    free(state);
    pi_session_free(s);
}

/* The same logits as with room for everything. */
static void test_results(const pi_model* m) {
    pi_session_params params = session_params(N_CTX, 2);
    params.n_seq = 8;
    pi_session* roomy = new_session(m, &params);
    params.n_kv = 5 * 64;
    pi_session* tight = new_session(m, &params);
    const size_t size = sizeof(float) * (size_t)pi_model_n_vocab(m);
    pi_session* both[] = {roomy, tight};
    for (int32_t round = 0; round < 40; round++) {
        const int32_t seq = round * 5 % 8, from = round * 3 % 8;
        for (int32_t j = 0; j < 8 && pi_session_free_positions(tight) < 192; j++) {
            if (j == from) continue;
            OK(pi_sequence_truncate(roomy, j, 0));
            OK(pi_sequence_truncate(tight, j, 0));
        }
        const int32_t length = pi_sequence_length(roomy, from);
        const float* logits[2];
        for (int i = 0; i < 2; i++) {
            OK(pi_sequence_copy(both[i], from, seq, length % 90));
            OK(append(both[i], seq, 7 + round % 30));
            OK(pi_logits(both[i], 6 + round % 30, &logits[i]));
        }
        CHECK(!memcmp(logits[0], logits[1], size));
    }
    pi_session_free(roomy);
    pi_session_free(tight);
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    model_path = argv[1];
    for (int32_t i = 0; i < MOST; i++) tokens[i] = 3 + i * 37 % 1000;
    pi_model* m = open_model();
    test_full_pool(m);
    test_loading(m);
    test_results(m);
    pi_model_free(m);
    return summary("test_capi_pool");
}
