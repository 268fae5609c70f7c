/* powerinfer.h from C99: what a session measures and records. argv[1]: the default model. */
#include <math.h>

#include "prompt.h"

static void test_profile(const pi_model* m, const float* expected) {
    const size_t row = (size_t)pi_model_n_vocab(m);
    const pi_session_params params = session_params(64, 2);
    pi_session* s = new_session(m, &params);
    OK(pi_eval(s, tokens, NULL, NULL, 10));
    CHECK(pi_session_n_ops(s) == 0);
    for (int round = 0; round < 2; round++) { /* restarts each time */
        uint64_t weights = 0;
        double seconds = 0;
        pi_work before, after;
        SIZED(before), SIZED(after);
        OK(pi_session_work(s, &before));
        pi_session_profile(s, true);
        OK(pi_eval(s, tokens + 10 + round, NULL, NULL, 1));
        pi_session_profile(s, false);
        OK(pi_session_work(s, &after));
        CHECK(after.rows == before.rows + 1 && after.kv > before.kv);
        FAILS(PI_ERROR_ARGUMENT, pi_session_work(s, NULL));
        FAILS(PI_ERROR_ARGUMENT, pi_session_work(NULL, &after));
        pi_neuron_counts counts;
        SIZED(counts);
        for (int32_t i = 0; i < pi_model_n_layer(m); i++) {
            OK(pi_session_neurons(s, i, 1, &counts));
            CHECK(counts.rows == after.rows && counts.fired <= counts.computed);
            CHECK(counts.computed <= counts.predicted);
        }
        FAILS(PI_ERROR_ARGUMENT, pi_session_neurons(s, -1, 1, &counts));
        FAILS(PI_ERROR_ARGUMENT, pi_session_neurons(s, pi_model_n_layer(m), 1, &counts));
        FAILS(PI_ERROR_ARGUMENT, pi_session_neurons(s, 0, 1, NULL));
        FAILS(PI_ERROR_ARGUMENT, pi_session_neurons(NULL, 0, 1, &counts));
        OK(pi_sequence_truncate(s, 0, 11 + round));
        CHECK(pi_session_n_ops(s) > 3);
        pi_op_time op;
        SIZED(op);
        for (int32_t i = 0; i < pi_session_n_ops(s); i++) {
            OK(pi_session_op_at(s, i, &op));
            CHECK(op.part[0] && op.op[0] && op.calls > 0 && op.calls < 1000 && op.seconds >= 0);
            if (!strcmp(op.op, "matmul") && strcmp(op.part, "ffn")) weights += op.n_bytes;
            seconds += op.seconds;
        }
        CHECK(seconds > 0 && seconds < 60);
        /* Two counts of the bytes read by products outside the FFN. Only the second includes norms.
         */
        const uint64_t read = after.attention - before.attention + after.predictor -
                              before.predictor + after.head - before.head;
        CHECK(weights > read - read / 50 && weights <= read);
        op.calls = 77;
        FAILS(PI_ERROR_ARGUMENT, pi_session_op_at(s, -1, &op));
        FAILS(PI_ERROR_ARGUMENT, pi_session_op_at(s, pi_session_n_ops(s), &op));
        FAILS(PI_ERROR_ARGUMENT, pi_session_op_at(s, 0, NULL));
        FAILS(PI_ERROR_ARGUMENT, pi_session_op_at(NULL, 0, &op));
        CHECK(op.calls == 77);
    }
    const int32_t n_ops = pi_session_n_ops(s);
    const float* logits = NULL;
    OK(pi_eval(s, tokens + 12, NULL, NULL, 1)); /* not measured; measuring did not change results */
    OK(pi_logits(s, 0, &logits));
    CHECK(same(logits, expected + 12 * row, row) && pi_session_n_ops(s) == n_ops);
    pi_session_free(s);
}

static void test_recording(const pi_model* m, const float* expected) {
    const size_t n_vocab = (size_t)pi_model_n_vocab(m), n_ff = (size_t)pi_model_n_ff(m);
    const int32_t n_embd = pi_model_n_embd(m);
    CHECK(pi_model_n_expert(m) == 0);
    pi_session_params params = session_params(64, 1);
    params.record = PI_RECORD_INPUTS;
    params.sparse = PI_SPARSE_AUTO;
    pi_session* s = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &s)); /* the default mode masks rows */
    params.sparse = PI_SPARSE_EXACT;
    s = new_session(m, &params);
    const uint64_t* counts = NULL;
    const bool* fired = UNTOUCHED;
    const float* inputs = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_activations(s, 0, &fired)); /* nothing computed yet */
    uint64_t seen[2] = {0, 0};
    for (int32_t i = 0; i < N_TOKENS; i += 8) {
        OK(pi_eval(s, tokens + i, NULL, NULL, 8));
        const float* logits = NULL;
        OK(pi_logits(s, 7, &logits));
        CHECK(same(logits, expected + (size_t)(i + 7) * n_vocab, n_vocab)); /* as without it */
        OK(pi_activations(s, 1, &fired));
        OK(pi_ffn_inputs(s, 1, &inputs));
        for (size_t row = 0; row < 8; row++) {
            for (size_t n = 0; n < 2; n++) seen[n] += fired[row * n_ff + n];
            CHECK(isfinite(inputs[row * (size_t)n_embd]));
        }
    }
    OK(pi_firing_counts(s, 1, &counts));
    CHECK(counts[0] == seen[0] && counts[1] == seen[1] && counts[0] <= N_TOKENS);
    FAILS(PI_ERROR_ARGUMENT, pi_firing_counts(s, -1, &counts));
    FAILS(PI_ERROR_ARGUMENT, pi_firing_counts(s, pi_model_n_layer(m), &counts));
    pi_session_free(s);
    params.record = PI_RECORD_COUNTS;
    s = new_session(m, &params);
    OK(pi_eval(s, tokens, NULL, NULL, 8));
    OK(pi_firing_counts(s, 0, &counts));
    FAILS(PI_ERROR_ARGUMENT, pi_activations(s, 0, &fired));
    FAILS(PI_ERROR_ARGUMENT, pi_ffn_inputs(s, 0, &inputs));
    pi_session_free(s);
    params.record = PI_RECORD_NEEDS; /* takes n_ubatch 1 */
    s = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &s));
    params.record = PI_RECORD_SQUARES;
    s = new_session(m, &params);
    OK(pi_eval(s, tokens, NULL, NULL, 8));
    const double* sums = NULL;
    const uint64_t* rows = NULL;
    for (int32_t input = PI_INPUT_ATTENTION; input <= PI_INPUT_HEAD; input++) {
        if (input == PI_INPUT_FFN_DOWN) continue; /* neuron rows have none */
        OK(pi_input_squares(s, 1, input, &sums, &rows));
        CHECK(rows[0] == 8 && sums[0] > 0 && isfinite(sums[0]));
    }
    FAILS(PI_ERROR_ARGUMENT, pi_input_squares(s, -1, PI_INPUT_FFN, &sums, &rows));
    FAILS(PI_ERROR_ARGUMENT, pi_input_squares(s, 0, PI_INPUT_HEAD + 1, &sums, &rows));
    FAILS(PI_ERROR_ARGUMENT, pi_input_squares(s, 0, -1, &sums, &rows));
    FAILS(PI_ERROR_ARGUMENT, pi_input_squares(s, 0, PI_INPUT_FFN, NULL, &rows));
    FAILS(PI_ERROR_ARGUMENT, pi_input_squares(s, 0, PI_INPUT_FFN, &sums, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_firing_counts(s, 0, &counts));
    pi_session_free(s);
    params.record = 7;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &s));
}

/* Bits under predictors, which a server switches off while nobody watches; and tiers. */
static void test_bits_of_rows(const pi_model* m) {
    const int32_t n_layer = pi_model_n_layer(m), n_ff = pi_model_n_ff(m);
    const size_t per_layer = (size_t)(n_ff + 7) / 8, size = (size_t)n_layer * per_layer;
    pi_session_params params = session_params(64, 2);
    pi_session* silent = new_session(m, &params);
    params.record = PI_RECORD_BITS;
    pi_session* s = new_session(m, &params);
    bool generated[8];
    for (int i = 0; i < 8; i++) generated[i] = i >= 5;
    const pi_batch batch = {sizeof(batch), 8, tokens, NULL, NULL, generated, NULL, NULL};
    uint8_t* bits = malloc(size + 1);
    bits[0] = bits[size] = 77;
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 0, bits, size)); /* nothing computed yet */
    OK(pi_eval_batch(s, &batch));
    OK(pi_eval_batch(silent, &batch));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(silent, 0, bits, size));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, -1, bits, size));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 8, bits, size));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 0, bits, size - 1));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 0, NULL, size));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(NULL, 0, bits, size));
    CHECK(bits[0] == 77);
    int64_t seen = 0, fired = 0;
    for (int32_t row = 0; row < 8; row++) {
        OK(pi_fired_bits(s, row, bits, size + 1));
        for (size_t i = 0; i < size * 8; i++) seen += bits[i / 8] >> i % 8 & 1;
    }
    CHECK(bits[size] == 77);
    for (int32_t i = 0; i < n_layer; i++) {
        pi_neuron_counts counts;
        SIZED(counts);
        OK(pi_session_neurons(s, i, 1, &counts));
        fired += counts.fired;
    }
    CHECK(seen == fired && seen > 0);
    const bool* flags = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_activations(s, 0, &flags)); /* another kind */
    OK(pi_session_record(s, false));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 0, bits, size));
    OK(pi_eval_batch(s, &batch));
    FAILS(PI_ERROR_ARGUMENT, pi_fired_bits(s, 0, bits, size));
    OK(pi_session_record(s, true));
    OK(pi_eval_batch(s, &batch));
    OK(pi_fired_bits(s, 7, bits, size));
    FAILS(PI_ERROR_ARGUMENT, pi_session_record(silent, true));
    FAILS(PI_ERROR_ARGUMENT, pi_session_record(NULL, true));
    pi_session_free(s);
    pi_session_free(silent);
    free(bits);

    uint8_t* tiers = calloc((size_t)n_ff, 1);
    FAILS(PI_ERROR_ARGUMENT, pi_model_tiers(m, 0, tiers, (size_t)n_ff - 1));
    FAILS(PI_ERROR_ARGUMENT, pi_model_tiers(m, -1, tiers, (size_t)n_ff));
    FAILS(PI_ERROR_ARGUMENT, pi_model_tiers(m, n_layer, tiers, (size_t)n_ff));
    FAILS(PI_ERROR_ARGUMENT, pi_model_tiers(m, 0, NULL, (size_t)n_ff));
    FAILS(PI_ERROR_ARGUMENT, pi_model_tiers(NULL, 0, tiers, (size_t)n_ff));
    CHECK(tiers[0] == 0);
    OK(pi_model_tiers(m, 0, tiers, (size_t)n_ff));
    for (int32_t i = 0; i < n_ff; i++) CHECK(tiers[i] == 1);
    free(tiers);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: test_capi_record MODEL\n");
        return 2;
    }
    model_path = argv[1];
    pi_model* m = open_model();
    make_tokens(m);
    float* expected = reference(m, 1);
    test_profile(m, expected);
    test_recording(m, expected);
    test_bits_of_rows(m);
    free(expected);
    pi_model_free(m);
    return summary("test_capi_record");
}
