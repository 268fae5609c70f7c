/* Sessions that pool, with a model that writes texts: what rows of a sequence become, who may ask
 * for it when, and callers with older structs. tests/python/test_vector_api.py has an encoder. */
#include <stddef.h>

#include "capi.h"

enum { N = 70, N_CTX = 80 }; /* more than a page of 64 positions */

static int32_t tokens[N];

static pi_session_params pooling(int32_t kind) {
    pi_session_params params = session_params(N_CTX, 2);
    params.embedding = true;
    params.pooling = kind;
    params.n_seq = 3;
    return params;
}

static pi_batch rows(int32_t n, const int32_t* seq) {
    pi_batch batch = {sizeof batch, n, tokens, seq, NULL, NULL, NULL, NULL};
    return batch;
}

static void clear(pi_session* s) {
    for (int32_t i = 0; i < 3; i++) OK(pi_sequence_truncate(s, i, 0));
}

/* The rows of one text, each with its embedding. */
static float* embeddings(const pi_model* m, int32_t n, int32_t width) {
    pi_session_params params = pooling(PI_POOLING_NONE);
    params.n_logits = 0;
    pi_session* s = new_session(m, &params);
    bool keep[N];
    for (int32_t i = 0; i < N; i++) keep[i] = true;
    pi_batch batch = rows(n, NULL);
    batch.keep = keep;
    OK(pi_eval_batch(s, &batch));
    float* found = malloc(sizeof(float) * (size_t)(n * width));
    for (int32_t i = 0; i < n; i++) {
        const float* row = NULL;
        OK(pi_embedding(s, i, &row));
        memcpy(found + (size_t)i * (size_t)width, row, sizeof(float) * (size_t)width);
    }
    const float* out = UNTOUCHED;
    CHECK(pi_session_pooled_width(s) == 0);
    FAILS(PI_ERROR_ARGUMENT, pi_pooled(s, 0, &out));
    CHECK(out == UNTOUCHED);
    pi_session_free(s);
    return found;
}

static void test_kinds(const pi_model* m) {
    const int32_t width = pi_model_n_embd(m);
    float* all = embeddings(m, N, width);
    float* mean = calloc((size_t)width, sizeof(float));
    for (int32_t i = 0; i < N; i++) {
        for (int32_t c = 0; c < width; c++) mean[c] += all[i * width + c];
    }
    for (int32_t c = 0; c < width; c++) mean[c] /= (float)N;
    const float* const want[] = {mean, all, all + (N - 1) * width};
    const int32_t kinds[] = {PI_POOLING_MEAN, PI_POOLING_FIRST, PI_POOLING_LAST};
    for (int k = 0; k < 3; k++) {
        pi_session_params params = pooling(kinds[k]);
        pi_session* s = new_session(m, &params);
        CHECK(pi_session_pooled_width(s) == width && pi_session_n_batch(s) >= N_CTX);
        const float* out = UNTOUCHED;
        FAILS(PI_ERROR_ARGUMENT, pi_pooled(s, 0, &out)); /* before the first call */
        pi_batch batch = rows(N, NULL);
        OK(pi_eval_batch(s, &batch));
        OK(pi_pooled(s, 0, &out));
        CHECK(!memcmp(out, want[k], sizeof(float) * (size_t)width));
        clear(s);
        /* Among others. */
        int32_t seq[N];
        for (int32_t i = 0; i < N; i++) seq[i] = i < 20 ? 2 : i < 21 ? 0 : 1;
        batch = rows(N, seq);
        OK(pi_eval_batch(s, &batch));
        const float *first = NULL, *second = NULL;
        OK(pi_pooled(s, 2, &first));
        OK(pi_pooled(s, 0, &second));
        CHECK(memcmp(first, second, sizeof(float) * (size_t)width) != 0);
        float* among = malloc(sizeof(float) * (size_t)width);
        memcpy(among, first, sizeof(float) * (size_t)width);
        clear(s);
        batch = rows(20, NULL);
        OK(pi_eval_batch(s, &batch));
        OK(pi_pooled(s, 0, &out));
        CHECK(!memcmp(out, among, sizeof(float) * (size_t)width));
        free(among);
        pi_session_free(s);
    }
    free(mean);
    free(all);
}

static void test_errors(const pi_model* m) {
    pi_session_params params = pooling(PI_POOLING_MEAN);
    pi_session* s = new_session(m, &params);
    pi_batch batch = rows(5, NULL);
    OK(pi_eval_batch(s, &batch));
    const float* out = UNTOUCHED;
    for (int32_t seq = -1; seq < 5; seq++) {
        if (seq != 0) FAILS(PI_ERROR_ARGUMENT, pi_pooled(s, seq, &out));
    }
    FAILS(PI_ERROR_ARGUMENT, pi_pooled(NULL, 0, &out));
    FAILS(PI_ERROR_ARGUMENT, pi_pooled(s, 0, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_embedding(s, 0, &out));
    CHECK(says("pi_pooled"));
    FAILS(PI_ERROR_ARGUMENT, pi_logits(s, 0, &out));
    CHECK(out == UNTOUCHED);

    /* Types of tokens: this model has one. */
    int32_t types[] = {0, 0, 0, 0, 0};
    batch.type = types;
    OK(pi_eval_batch(s, &batch));
    const int32_t wrong[] = {1, -1, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        types[3] = wrong[i];
        FAILS(PI_ERROR_ARGUMENT, pi_eval_batch(s, &batch));
        CHECK(says("token type"));
    }
    CHECK(pi_sequence_length(s, 0) == 10);
    /* A caller whose pi_batch ends before them. */
    batch.struct_size = offsetof(pi_batch, type);
    OK(pi_eval_batch(s, &batch));
    CHECK(pi_sequence_length(s, 0) == 15);
    pi_session_free(s);

    pi_session* none = UNTOUCHED;
    const int32_t kinds[] = {-1, 5, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        params = pooling(kinds[i]);
        FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &none));
        CHECK(says("pooling"));
    }
    params = pooling(PI_POOLING_RANK);
    FAILS(PI_ERROR_UNSUPPORTED, pi_session_new(m, &params, &none));
    CHECK(says("cls.output"));
    params = pooling(PI_POOLING_MEAN);
    params.embedding = false;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &none));
    CHECK(none == UNTOUCHED);
    /* A caller whose pi_session_params end before pooling has none. */
    params = pooling(PI_POOLING_MEAN);
    params.struct_size = offsetof(pi_session_params, pooling);
    s = new_session(m, &params);
    CHECK(pi_session_pooled_width(s) == 0);
    pi_session_free(s);
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    model_path = argv[1];
    for (int32_t i = 0; i < N; i++) tokens[i] = 3 + i * 37 % 1000;
    pi_model* m = open_model();
    CHECK(!pi_model_is_encoder(m) && !pi_model_ranks(m));
    test_kinds(m);
    test_errors(m);
    pi_model_free(m);
    return summary("test_capi_pooled");
}
