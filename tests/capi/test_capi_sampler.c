/* powerinfer.h from C99: sampling. */
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
    pi_sampler_accept(s, 1);
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

int main(void) {
    test_bad_sampler_params();
    test_sampler();
    return summary("test_capi_sampler");
}
