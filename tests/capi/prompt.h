/* A prompt and its logits, for the tests of the C API that compute. */
#ifndef CAPI_TEST_PROMPT_H
#define CAPI_TEST_PROMPT_H

#include "capi.h"

#define N_TOKENS 40

static const char prompt[] =
    "Once upon a time there was a little girl. She liked to play outside with her brown dog. ";
static int32_t tokens[N_TOKENS];

static inline void make_tokens(const pi_model* m) {
    int32_t ids[sizeof(prompt) + 2];
    size_t n = 0;
    OK(pi_tokenize(m, prompt, sizeof(prompt) - 1, false, ids, sizeof(prompt) + 2, &n));
    for (size_t i = 0; i < N_TOKENS; i++) tokens[i] = n ? ids[i % n] : 0;
    tokens[0] = pi_token_bos(m);
}

static inline bool same(const float* a, const float* b, size_t n) {
    return a && b && !memcmp(a, b, n * sizeof(float));
}

/* Appends the logits of rows [first, first + n) of the last pi_eval to out. */
static inline void copy_logits(const pi_session* s, int32_t n_vocab, int32_t n, float* out) {
    for (int32_t i = 0; i < n; i++) {
        const float* logits = NULL;
        OK(pi_logits(s, i, &logits));
        if (logits)
            memcpy(out + (size_t)i * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof(float));
    }
}

/* Logits [N_TOKENS, n_vocab] of the prompt, computed in one call by a separate session. */
static inline float* reference(const pi_model* m, int32_t n_threads) {
    const size_t n_vocab = (size_t)pi_model_n_vocab(m);
    float* out = calloc(N_TOKENS * n_vocab, sizeof(float));
    const pi_session_params params = session_params(64, n_threads);
    pi_session* s = new_session(m, &params);
    bool keep[N_TOKENS];
    memset(keep, 1, sizeof(keep));
    OK(pi_eval(s, tokens, NULL, keep, N_TOKENS));
    copy_logits(s, (int32_t)n_vocab, N_TOKENS, out);
    pi_session_free(s);
    return out;
}

#endif
