/* pi_eval_batch, pi_sequence_match and pi_sequence_copy with a model that has predictors: the
 * caller's `generated` flags decide how rows are computed. */
#include "capi.h"

enum { N = 80, N_PROMPT = 70 }; /* more than a page of 64 positions */

static int32_t tokens[N];
static bool generated[N];

/* Logits of the last row of a sequence after all tokens, `at_once` rows per call. */
static float* last_logits(pi_session* s, int32_t seq, int32_t at_once, bool as_prompt,
                          int32_t n_vocab) {
    int32_t seqs[N];
    for (int32_t i = 0; i < N; i++) seqs[i] = seq;
    OK(pi_sequence_truncate(s, seq, 0));
    int32_t rows = 0;
    for (int32_t i = 0; i < N; i += rows) {
        rows = i + at_once < N ? at_once : N - i;
        pi_batch batch = {sizeof batch, rows, tokens + i,
                          seqs,         NULL, as_prompt ? NULL : generated + i,
                          NULL,         NULL};
        OK(pi_eval_batch(s, &batch));
    }
    const float* logits = NULL;
    OK(pi_logits(s, rows - 1, &logits));
    float* copy = malloc(sizeof(float) * (size_t)n_vocab);
    memcpy(copy, logits, sizeof(float) * (size_t)n_vocab);
    return copy;
}

static int32_t match(pi_session* s, int32_t seq, const bool* flags) {
    int32_t same = -1;
    OK(pi_sequence_match(s, seq, tokens, flags, N, &same));
    return same;
}

static void test_rows(const pi_model* m) {
    pi_session_params params = session_params(128, 2);
    params.n_seq = 3;
    pi_session* s = new_session(m, &params);
    const int32_t n_vocab = pi_model_n_vocab(m);
    const size_t size = sizeof(float) * (size_t)n_vocab;
    float* masked = last_logits(s, 0, N, false, n_vocab);
    float* prompt = last_logits(s, 1, N, true, n_vocab);
    CHECK(memcmp(masked, prompt, size) != 0); /* they differ only in the flag */
    const int32_t cuts[] = {1, 7};
    for (int k = 0; k < 2; k++) {
        float* again = last_logits(s, 2, cuts[k], false, n_vocab);
        CHECK(!memcmp(again, masked, size));
        free(again);
        again = last_logits(s, 2, cuts[k], true, n_vocab); /* alone, still of a prompt */
        CHECK(!memcmp(again, prompt, size));
        free(again);
    }
    CHECK(match(s, 0, generated) == N && match(s, 0, NULL) == N_PROMPT);
    CHECK(match(s, 1, NULL) == N && match(s, 1, generated) == N_PROMPT);

    /* A copy continues as the original would; the original stays unchanged. */
    OK(pi_sequence_copy(s, 0, 2, N - 5));
    CHECK(pi_sequence_length(s, 2) == N - 5 && match(s, 2, generated) == N - 5);
    const int32_t seqs[] = {2, 2, 2, 2, 2};
    pi_batch rest = {sizeof rest, 5, tokens + N - 5, seqs, NULL, generated + N - 5, NULL, NULL};
    OK(pi_eval_batch(s, &rest));
    const float* logits = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 3, &logits)); /* only the last row was kept */
    CHECK(logits == UNTOUCHED);
    OK(pi_logits(s, 4, &logits));
    CHECK(!memcmp(logits, masked, size));
    CHECK(match(s, 0, generated) == N && match(s, 2, generated) == N);

    int32_t same = 77;
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_copy(s, 0, 1, N + 1));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_copy(s, 3, 1, 0));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_copy(NULL, 0, 1, 0));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_match(s, 3, tokens, NULL, N, &same));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_match(s, 0, NULL, NULL, N, &same));
    FAILS(PI_ERROR_ARGUMENT, pi_sequence_match(s, 0, tokens, NULL, -1, &same));
    CHECK(same == 77 && match(s, 0, generated) == N);
    rest.token = NULL;
    FAILS(PI_ERROR_ARGUMENT, pi_eval_batch(s, &rest));
    rest.token = tokens;
    rest.struct_size = 0;
    FAILS(PI_ERROR_ARGUMENT, pi_eval_batch(s, &rest));
    FAILS(PI_ERROR_ARGUMENT, pi_eval_batch(s, NULL));
    free(masked);
    free(prompt);
    pi_session_free(s);
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    model_path = argv[1];
    for (int32_t i = 0; i < N; i++) {
        tokens[i] = 3 + i * 37 % 1000;
        generated[i] = i >= N_PROMPT;
    }
    pi_model* m = open_model();
    CHECK(pi_model_has_predictors(m));
    test_rows(m);
    pi_model_free(m);
    return summary("test_capi_batch");
}
