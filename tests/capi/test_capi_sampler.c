/* powerinfer.h from C99: sampling. argv[1]: the default model. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "capi.h"

static pi_sampler* new_sampler(const pi_sampler_params* params) {
    pi_sampler* sampler = NULL;
    OK(pi_sampler_new(params, &sampler));
    return sampler;
}

static int32_t sample(pi_sampler* sampler, const float* logits, int32_t n) {
    int32_t token = -1;
    OK(pi_sample(sampler, logits, n, &token));
    CHECK(token >= 0 && token < n);
    return token;
}

static void test_bad_sampler_params(void) {
    pi_sampler_params p[24];
    const char* names[24];
    int n = 0;
#define BAD(field, value) \
    (p[n] = pi_sampler_default_params(), p[n].field = (value), names[n++] = #field)
    BAD(struct_size, 0);
    BAD(struct_size, sizeof(p[0]) + 1);
    BAD(temperature, NAN);
    BAD(temperature, INFINITY);
    BAD(top_p, -0.1f);
    BAD(top_p, 1.1f);
    BAD(top_p, NAN);
    BAD(min_p, -0.1f);
    BAD(min_p, 1.5f);
    BAD(min_p, NAN);
    BAD(typical_p, -1.0f);
    BAD(typical_p, 2.0f);
    BAD(typical_p, NAN);
    BAD(repeat_penalty, 0.0f);
    BAD(repeat_penalty, -1.0f);
    BAD(repeat_penalty, INFINITY);
    BAD(frequency_penalty, NAN);
    BAD(frequency_penalty, -INFINITY);
    BAD(presence_penalty, NAN);
    BAD(repeat_last_n, -2);
    BAD(repeat_last_n, INT32_MIN);
#undef BAD
    pi_sampler* sampler = UNTOUCHED;
    for (int i = 0; i < n; i++) {
        FAILS(PI_ERROR_ARGUMENT, pi_sampler_new(&p[i], &sampler));
        CHECK(says(names[i]));
    }
    FAILS(PI_ERROR_ARGUMENT, pi_sampler_new(NULL, NULL));
    CHECK(sampler == UNTOUCHED);
}

static void test_sampler(void) {
    const float logits[4] = {1, 3, 2, -1}, start[4] = {1, 3, 2, -1};
    const float nothing[2] = {-INFINITY, NAN}, odd[3] = {NAN, -5, -INFINITY};
    pi_sampler_params params = pi_sampler_default_params();
    int32_t token = 77;

    params.temperature = 0;
    pi_sampler* s = new_sampler(&params);
    CHECK(sample(s, logits, 4) == 1);
    CHECK(sample(s, odd, 3) == 1); /* NaN and -inf are never chosen */
    FAILS(PI_ERROR_ARGUMENT, pi_sample(s, nothing, 2, &token));
    FAILS(PI_ERROR_ARGUMENT, pi_sample(s, NULL, 4, &token));
    FAILS(PI_ERROR_ARGUMENT, pi_sample(s, logits, 0, &token));
    FAILS(PI_ERROR_ARGUMENT, pi_sample(s, logits, -1, &token));
    FAILS(PI_ERROR_ARGUMENT, pi_sample(NULL, logits, 4, &token));
    FAILS(PI_ERROR_ARGUMENT, pi_sample(s, logits, 4, NULL));
    CHECK(token == 77);
    pi_sampler_free(s);

    /* Accepted tokens are penalised until reset() or until they leave the window. */
    params.presence_penalty = 10;
    params.repeat_last_n = 2;
    s = new_sampler(&params);
    CHECK(sample(s, logits, 4) == 1);
    const int32_t first[] = {1};
    CHECK(pi_sampler_accept_all(s, first, 1) == PI_OK &&
          pi_sampler_accept_all(s, NULL, 0) == PI_OK);
    FAILS(PI_ERROR_ARGUMENT, pi_sampler_accept_all(s, NULL, 1));
    CHECK(sample(s, logits, 4) == 2);
    pi_sampler_accept(s, 2);
    CHECK(sample(s, logits, 4) == 0);
    pi_sampler_accept(s, 0);
    CHECK(sample(s, logits, 4) == 1);
    pi_sampler_reset(s);
    pi_sampler_accept(s, -5); /* invalid ids do no harm */
    pi_sampler_accept(s, INT32_MAX);
    CHECK(sample(s, logits, 4) == 1);
    pi_sampler_free(s);

    /* Each filter leaves one candidate: always the best. */
    for (int k = 0; k < 3; k++) {
        params = pi_sampler_default_params();
        if (k == 0) params.top_k = 1;
        if (k == 1) params.top_p = 0.01f;
        if (k == 2) params.min_p = 1;
        s = new_sampler(&params);
        for (int i = 0; i < 50; i++) CHECK(sample(s, logits, 4) == 1);
        pi_sampler_free(s);
    }

    /* Draws follow the softmax: token 1 to token 2 is e to 1. With 20000 draws the binomial has a
     * standard deviation of 0.0031. The seed is fixed, so the test is deterministic. */
    params = pi_sampler_default_params();
    params.temperature = 1, params.top_k = 2, params.top_p = 1, params.min_p = 0;
    params.seed = 5;
    s = new_sampler(&params);
    int best = 0;
    for (int i = 0; i < 20000; i++) best += sample(s, logits, 4) == 1;
    CHECK(fabs(best / 20000.0 - 1 / (1 + exp(-1))) < 0.012);
    pi_sampler_free(s);

    /* The same seed gives the same draws, another one differs, and reset() does not restart the
     * draws. */
    int32_t draws[3][64];
    params.top_k = 0;
    for (uint64_t k = 0; k < 3; k++) {
        params.seed = k == 2 ? 12 : 11;
        s = new_sampler(&params);
        for (int i = 0; i < 64; i++) {
            if (k == 1 && i == 30) pi_sampler_reset(s);
            draws[k][i] = sample(s, logits, 4);
        }
        pi_sampler_free(s);
    }
    CHECK(!memcmp(draws[0], draws[1], sizeof(draws[0])));
    CHECK(memcmp(draws[0], draws[2], sizeof(draws[0])));

    /* Setting a seed later gives the draws of a sampler created with it; accepted tokens stay. */
    s = new_sampler(&params);
    sample(s, logits, 4);
    pi_sampler_seed(s, 11);
    for (int i = 0; i < 64; i++) CHECK(sample(s, logits, 4) == draws[0][i]);
    pi_sampler_free(s);
    params.temperature = 0, params.presence_penalty = 10;
    s = new_sampler(&params);
    pi_sampler_accept(s, 1);
    pi_sampler_seed(s, 11);
    CHECK(sample(s, logits, 4) == 2);
    pi_sampler_free(s);
    CHECK(!memcmp(logits, start, sizeof(logits)));
}

enum { N_ROWS = 40, N_KEPT = 30 };

/* Rows of a session: the tokens that pi_sample chooses for each. */
static void test_rows(void) {
    pi_model* m = open_model();
    const int32_t n_vocab = pi_model_n_vocab(m);
    for (int32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
        pi_session_params params = session_params(64, n_threads);
        pi_session* s = new_session(m, &params);
        int32_t prompt[N_ROWS], rows[N_KEPT], tokens[N_KEPT];
        bool keep[N_ROWS];
        for (int32_t i = 0; i < N_ROWS; i++) prompt[i] = 3 + i * 37 % 1000, keep[i] = i % 4 != 0;
        OK(pi_eval(s, prompt, NULL, keep, N_ROWS));
        pi_sampler *together[N_KEPT], *alone[N_KEPT];
        for (int32_t i = 0; i < N_KEPT; i++) {
            rows[i] = (N_KEPT - 1 - i) / 3 * 4 + (N_KEPT - 1 - i) % 3 + 1;
            pi_sampler_params p = pi_sampler_default_params();
            p.seed = (uint64_t)i;
            if (i % 3 == 0) p.top_k = 0;
            if (i % 5 == 0) p.temperature = 0;
            if (i % 7 == 0) p.presence_penalty = 2;
            together[i] = new_sampler(&p), alone[i] = new_sampler(&p);
        }
        for (int round = 0; round < 5; round++) {
            OK(pi_sample_rows(s, together, rows, N_KEPT, tokens));
            for (int32_t i = 0; i < N_KEPT; i++) {
                const float* logits = NULL;
                OK(pi_logits(s, rows[i], &logits));
                CHECK(tokens[i] == sample(alone[i], logits, n_vocab));
                pi_sampler_accept(together[i], tokens[i]);
                pi_sampler_accept(alone[i], tokens[i]);
            }
            /* What is refused leaves samplers and tokens as they are. */
            int32_t bad[] = {rows[0], 4}, untouched[] = {77, 78};
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, together, bad, 2, untouched));
            CHECK(says("row 4 was not kept"));
            float* logits = NULL;
            OK(pi_logits(s, rows[1], (const float**)&logits));
            float* copy = malloc(sizeof(float) * (size_t)n_vocab);
            memcpy(copy, logits, sizeof(float) * (size_t)n_vocab);
            for (int32_t i = 0; i < n_vocab; i++) logits[i] = NAN;
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, together, rows, N_KEPT, untouched));
            char row[32];
            snprintf(row, sizeof(row), "row %d: no token can", (int)rows[1]);
            CHECK(says(row));
            memcpy(logits, copy, sizeof(float) * (size_t)n_vocab);
            free(copy);
            pi_sampler* twice[] = {together[2], together[2]};
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, twice, rows, 2, untouched));
            CHECK(says("two rows"));
            twice[1] = NULL;
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, twice, rows, 2, untouched));
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(NULL, together, rows, 2, untouched));
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, NULL, rows, 2, untouched));
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, together, NULL, 2, untouched));
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, together, rows, 2, NULL));
            FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, together, rows, -1, untouched));
            OK(pi_sample_rows(s, NULL, NULL, 0, NULL));
            CHECK(untouched[0] == 77 && untouched[1] == 78);
        }
        for (int32_t i = 0; i < N_KEPT; i++) {
            pi_sampler_free(together[i]);
            pi_sampler_free(alone[i]);
        }
        pi_session_free(s);
    }
    pi_session_params params = session_params(64, 1);
    params.embedding = true;
    pi_session* s = new_session(m, &params);
    OK(pi_eval(s, (const int32_t[]){1}, NULL, NULL, 1));
    int32_t token = 77, row = 0;
    pi_sampler* sampler = new_sampler(NULL);
    FAILS(PI_ERROR_ARGUMENT, pi_sample_rows(s, &sampler, &row, 1, &token));
    CHECK(says("embeddings") && token == 77);
    pi_sampler_free(sampler);
    pi_session_free(s);
    pi_model_free(m);
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    model_path = argv[1];
    test_bad_sampler_params();
    test_sampler();
    test_rows();
    return summary("test_capi_sampler");
}
