// C API (powerinfer.h): sessions.
#include <cmath>

#include "api/api.h"
#include "session/session.h"
#include "session/state.h"

using namespace powerinfer::api;

struct pi_session {
    powerinfer::Session session;
};

namespace {

constexpr const char* kNoSession = "session must not be NULL";
constexpr const char* kNotRecorded =
    "the session does not record this (see its parameter `record`)";

// Gives a layer's recording. find(number of its feed-forward part) returns it, or null if there is
// none.
template <typename T, typename F>
pi_status recorded(const pi_session* s, int32_t layer, const T** out, F find) noexcept {
    return guarded([&] {
        require(s && out && layer >= 0 && layer < s->session.model->config.n_layer,
                "no such layer");
        const T* found = find(s->session.model->only_ffn(layer).index);
        require(found, kNotRecorded);
        *out = found;
    });
}

// Adds what a feed-forward part did.
void add_counts(const powerinfer::Session& session, size_t part, pi_neuron_counts& sum) {
    const ggml::NeuronCounts &all = session.counts.neurons[part],
                             &device = session.counts.on_device[part];
    const ggml::AuditCounts& audit = session.audit.part(int64_t(part));
    sum.rows += all.rows;
    sum.neurons += all.rows * session.model->ffns[part]->n_ff;
    sum.predicted += all.proposed;
    sum.computed += all.computed;
    sum.fired += all.fired;
    sum.audited += audit.fired;
    sum.found += audit.found;
    sum.device_predicted += device.proposed;
    sum.device_computed += device.computed;
    sum.device_fired += device.fired;
    sum.storage_computed += session.counts.from_disk[part];
    const powerinfer::StoreCounts& stored = session.counts.stored[part];
    sum.storage_needed += int64_t(stored.needed[0] + stored.needed[1]);
    sum.storage_missed += int64_t(stored.missed[0] + stored.missed[1]);
    sum.storage_bytes += int64_t(stored.bytes);
    sum.storage_waited_ns += int64_t(stored.waited_s * 1e9);
    const powerinfer::FeedForward& of = *session.model->ffns[part];
    if (!of.routed()) return;
    sum.pairs += all.rows;
    // Of experts that are matrices all neurons are computed.
    if (of.blocks[0].neurons.n) return;
    sum.device_pairs += device.computed / of.n_ff;
    sum.storage_pairs += session.counts.from_disk[part] / of.n_ff;
}

}  // namespace

extern "C" {

pi_session_params pi_session_default_params(void) {
    pi_session_params p{};
    p.struct_size = sizeof(p);
    p.n_ctx = 512;
    p.n_batch = 512;
    p.n_ubatch = 512;
    p.n_seq = 1;
    p.sparse_threshold = NAN;
    p.type_k = p.type_v = uint32_t(ggml::DType::F16);
    p.rope_scaling = PI_ROPE_FILE;
    p.n_checkpoints = -1;
    p.n_kv_old = -1;
    p.yarn_ext_factor = p.yarn_attn_factor = p.yarn_beta_fast = p.yarn_beta_slow = -1;
    return p;
}

pi_status pi_session_new(const pi_model* model, const pi_session_params* params, pi_session** out) {
    return guarded([&] {
        require(model && out, "model and out must not be NULL");
        require(!model->model->layers.empty(), "the model was opened for its vocabulary only");
        *out = new pi_session{{model->model, params_or(params, pi_session_default_params())}};
    });
}

void pi_session_free(pi_session* session) {
    delete session;
}

pi_status pi_adapter_open(const pi_model* model, const char* path, pi_adapter** out) {
    return guarded([&] {
        require(model && path && out, "model, path and out must not be NULL");
        require(!model->model->layers.empty(), "the model was opened for its vocabulary only");
        *out = new pi_adapter{std::make_shared<const powerinfer::Adapter>(model->model, path)};
    });
}

void pi_adapter_free(pi_adapter* adapter) {
    delete adapter;
}

pi_status pi_session_set_adapters(pi_session* s, const pi_adapter* const* adapters,
                                  const float* scales, int32_t n) {
    return guarded([&] {
        require(s && n >= 0 && (n == 0 || (adapters && scales)),
                "session, adapters and scales must not be NULL, n not negative");
        std::vector<powerinfer::ScaledAdapter> use;
        for (int32_t i = 0; i < n; i++) {
            require(adapters[i], "an adapter must not be NULL");
            use.push_back({adapters[i]->adapter, scales[i]});
        }
        s->session.set_adapters(std::move(use));
    });
}

int32_t pi_session_n_ctx(const pi_session* s) {
    return s->session.params.n_ctx;
}

int32_t pi_session_n_batch(const pi_session* s) {
    return s->session.params.n_batch;
}

int64_t pi_session_free_positions(const pi_session* s) {
    return s->session.free_positions();
}

pi_status pi_eval_batch(pi_session* s, const pi_batch* batch) {
    return guarded([&] {
        require(s && batch, "session and batch must not be NULL");
        const pi_batch rows = params_or(batch, pi_batch{});
        require(rows.token, "the tokens of the batch must not be NULL");
        s->session.eval(rows);
    });
}

pi_status pi_eval(pi_session* s, const int32_t* token, const int32_t* seq, const bool* keep,
                  int32_t n) {
    const pi_batch batch{sizeof(pi_batch), n, token, seq, keep, nullptr, nullptr, nullptr};
    return pi_eval_batch(s, &batch);
}

pi_status pi_logits(const pi_session* s, int32_t i, const float** out) {
    return guarded([&] {
        require(s && out, "session and out must not be NULL");
        require(!s->session.params.embedding, "the session keeps embeddings, not logits");
        *out = s->session.result(i);
    });
}

pi_status pi_embedding(const pi_session* s, int32_t i, const float** out) {
    return guarded([&] {
        require(s && out, "session and out must not be NULL");
        require(s->session.params.embedding, "the session keeps logits, not embeddings");
        require(!s->session.params.pooling, "the session pools: see pi_pooled");
        *out = s->session.result(i);
    });
}

pi_status pi_pooled(const pi_session* s, int32_t seq, const float** out) {
    return guarded([&] {
        require(s && out, "session and out must not be NULL");
        *out = s->session.pooled(seq);
    });
}

int32_t pi_session_pooled_width(const pi_session* s) {
    const pi_session_params& params = s->session.params;
    return params.pooling ? int32_t(powerinfer::PooledTexts::width(*s->session.model, params)) : 0;
}

pi_status pi_sample_rows(pi_session* s, pi_sampler* const* samplers, const int32_t* rows, int32_t n,
                         int32_t* tokens) {
    return guarded([&] {
        require(s && n >= 0 && (n == 0 || (samplers && rows && tokens)),
                "session, samplers, rows and tokens must not be NULL, n not negative");
        require(!s->session.params.embedding, "the session keeps embeddings, not logits");
        std::vector<powerinfer::Sampler*> use(static_cast<size_t>(n));
        for (int32_t i = 0; i < n; i++) {
            require(samplers[i], "a sampler must not be NULL");
            use[size_t(i)] = &samplers[i]->sampler;
        }
        s->session.sample(use.data(), rows, n, tokens);
    });
}

pi_status pi_guess(pi_session* s, int32_t seq, int32_t token, int32_t* guess, float* probability,
                   const float** logits) {
    return guarded([&] {
        require(s && guess && probability, "session, guess and probability must not be NULL");
        const powerinfer::Guess found = s->session.guess(seq, token);
        *guess = found.token;
        *probability = found.probability;
        if (logits) *logits = found.logits;
    });
}

int32_t pi_sequence_length(const pi_session* s, int32_t seq) {
    const bool there = seq >= 0 && seq < s->session.params.n_seq;
    return there ? int32_t(s->session.length(seq)) : -1;
}

pi_status pi_sequence_truncate(pi_session* s, int32_t seq, int32_t n) {
    return guarded([&] {
        require(s, kNoSession);
        s->session.truncate(seq, n);
    });
}

int32_t pi_sequence_first_cut(const pi_session* s, int32_t seq) {
    const bool there = seq >= 0 && seq < s->session.params.n_seq;
    return there ? int32_t(s->session.sequences().first_cut(seq)) : -1;
}

pi_status pi_sequence_rest(pi_session* s, int32_t seq, bool rests) {
    return guarded([&] {
        require(s, kNoSession);
        s->session.rest(seq, rests);
    });
}

pi_status pi_sequence_copy(pi_session* s, int32_t from, int32_t to, int32_t n) {
    return guarded([&] {
        require(s, kNoSession);
        s->session.copy(from, to, n);
    });
}

pi_status pi_sequence_match(const pi_session* s, int32_t seq, const int32_t* token,
                            const bool* generated, int32_t n, int32_t* same) {
    return guarded([&] {
        require(s, kNoSession);
        require(n >= 0 && (token || n == 0) && same,
                "tokens and same must not be NULL, n not negative");
        *same = int32_t(s->session.match(seq, token, generated, n));
    });
}

pi_status pi_sequence_save(const pi_session* s, int32_t seq, void* buffer, size_t capacity,
                           size_t* n) {
    return guarded([&] {
        require(s && n && (buffer || !capacity), "NULL where bytes are expected");
        const uint64_t size = powerinfer::state_size(s->session, seq);
        *n = size_t(size);
        require(size <= capacity, "the buffer for the state is too small");
        powerinfer::save_state(s->session, seq, static_cast<uint8_t*>(buffer));
    });
}

pi_status pi_sequence_load(pi_session* s, int32_t seq, const void* buffer, size_t n) {
    return guarded([&] {
        require(s && buffer, "session and buffer must not be NULL");
        powerinfer::load_state(s->session, seq, static_cast<const uint8_t*>(buffer), n);
    });
}

pi_status pi_sequence_save_part(const pi_session* s, int32_t seq, int32_t first, int32_t count,
                                void* buffer, size_t capacity, size_t* n) {
    return guarded([&] {
        require(s && n && (buffer || !capacity), "NULL where bytes are expected");
        const uint64_t size = powerinfer::part_size(s->session, seq, first, count);
        *n = size_t(size);
        require(size <= capacity, "the buffer for the part is too small");
        powerinfer::save_part(s->session, seq, first, count, static_cast<uint8_t*>(buffer));
    });
}

pi_status pi_sequence_load_part(pi_session* s, int32_t seq, const void* buffer, size_t n) {
    return guarded([&] {
        require(s && buffer, "session and buffer must not be NULL");
        powerinfer::load_part(s->session, seq, static_cast<const uint8_t*>(buffer), n);
    });
}

pi_status pi_sequence_save_file(const pi_session* s, int32_t seq, const char* path) {
    return guarded([&] {
        require(s && path, "session and path must not be NULL");
        powerinfer::save_state_file(s->session, seq, path);
    });
}

pi_status pi_sequence_load_file(pi_session* s, int32_t seq, const char* path) {
    return guarded([&] {
        require(s && path, "session and path must not be NULL");
        powerinfer::load_state_file(s->session, seq, path);
    });
}

pi_status pi_session_work(const pi_session* s, pi_work* out) {
    return guarded([&] {
        require(s, kNoSession);
        const powerinfer::Session& session = s->session;
        const powerinfer::Traffic t =
            powerinfer::traffic(*session.model, session.counts, session.params.embedding);
        const powerinfer::Traffic d =
            powerinfer::device_traffic(*session.model, session.counts, session.params.embedding);
        const powerinfer::Counts& c = session.counts;
        const powerinfer::StoreCounts stored = powerinfer::sum(c.stored);
        give(out, {0,
                   c.rows,
                   t.attention,
                   t.predictor,
                   t.ffn,
                   t.head,
                   t.kv,
                   c.transferred,
                   d.attention + d.predictor + d.ffn + d.head + d.kv,
                   uint64_t(c.answers),
                   c.waited_for_device,
                   c.waited_for_cpu,
                   stored.needed[0],
                   stored.missed[0],
                   stored.needed[1],
                   stored.missed[1],
                   stored.reads,
                   stored.bytes,
                   uint64_t(stored.waited_s * 1e9),
                   stored.guessed,
                   stored.right});
    });
}

pi_status pi_session_neurons(const pi_session* s, int32_t first, int32_t n, pi_neuron_counts* out) {
    return guarded([&] {
        require(s, kNoSession);
        require(first >= 0 && n >= 0 && first <= s->session.model->config.n_layer - n,
                "no such layer");
        require(out || n == 0, kNoOut);
        const size_t size = n ? known_size(*out) : 0;
        char* to = reinterpret_cast<char*>(out);
        for (int32_t i = first; i < first + n; i++, to += size) {
            pi_neuron_counts sum{};
            sum.struct_size = size;
            for (const powerinfer::LayerPart& part : s->session.model->layers[size_t(i)].parts) {
                const auto* f = std::get_if<powerinfer::FeedForward>(&part.op);
                if (f) add_counts(s->session, size_t(f->index), sum);
            }
            std::memcpy(to, &sum, size);
        }
    });
}

pi_status pi_firing_counts(const pi_session* s, int32_t layer, const uint64_t** out) {
    return recorded(s, layer, out, [&](int64_t part) { return s->session.record.counts(part); });
}

pi_status pi_activations(const pi_session* s, int32_t layer, const bool** out) {
    return recorded(s, layer, out, [&](int64_t part) { return s->session.record.fired(part); });
}

pi_status pi_ffn_inputs(const pi_session* s, int32_t layer, const float** out) {
    return recorded(s, layer, out, [&](int64_t part) { return s->session.record.input(part); });
}

pi_status pi_input_squares(const pi_session* s, int32_t layer, int32_t input, const double** sums,
                           const uint64_t** rows) {
    return guarded([&] {
        require(s && sums && rows && input >= PI_INPUT_ATTENTION && input <= PI_INPUT_HEAD,
                "no such input, or sums or rows is NULL");
        const powerinfer::Model& model = *s->session.model;
        require(layer >= 0 && layer < model.config.n_layer, "no such layer");
        const bool of_ffn = input == PI_INPUT_FFN || input == PI_INPUT_FFN_DOWN;
        const int64_t at = of_ffn                   ? model.only_ffn(layer).index
                           : input == PI_INPUT_HEAD ? 0
                                                    : layer;
        const double* const found = s->session.record.sums(input, at);
        require(found, kNotRecorded);
        *sums = found;
        *rows = s->session.record.summed_rows(input, at);
    });
}

pi_status pi_session_record(pi_session* s, bool on) {
    return guarded([&] {
        require(s, kNoSession);
        require(s->session.params.record != PI_RECORD_OFF,
                "the session records nothing (see its parameter `record`)");
        s->session.record.turn(on);
    });
}

pi_status pi_fired_bits(const pi_session* s, int32_t row, uint8_t* out, size_t capacity) {
    return guarded([&] {
        require(s && out, "session and out must not be NULL");
        const powerinfer::Recorder& record = s->session.record;
        const powerinfer::Model& model = *s->session.model;
        size_t needed = 0;
        const auto each = [&](const auto& use) {
            for (int64_t i = 0; i < model.config.n_layer; i++) {
                const powerinfer::FeedForward* const part = model.ffn_of(i);
                if (part) use(part->index);
            }
        };
        each([&](int64_t part) {
            require(record.bits(row, part),
                    "the session does not record bits, or not of such a row in the last call");
            needed += size_t(record.bits_of_part(part));
        });
        require(capacity >= needed, "the buffer for the bits is too small");
        each([&](int64_t part) {
            const auto size = size_t(record.bits_of_part(part));
            std::memcpy(out, record.bits(row, part), size);
            out += size;
        });
    });
}

pi_status pi_ffn_needs(const pi_session* s, int32_t layer, const bool** proposed,
                       const bool** computed) {
    const pi_status status = recorded(
        s, layer, proposed, [&](int64_t part) { return s->session.record.proposed(part); });
    if (status != PI_OK) return status;
    return recorded(s, layer, computed,
                    [&](int64_t part) { return s->session.record.computed(part); });
}

void pi_session_profile(pi_session* s, bool on) {
    if (on) s->session.context.profile.entries.clear();
    s->session.context.profile.on = on;
}

int32_t pi_session_n_ops(const pi_session* s) {
    return int32_t(s->session.context.profile.entries.size());
}

pi_status pi_session_op_at(const pi_session* s, int32_t i, pi_op_time* out) {
    return guarded([&] {
        require(s && i >= 0 && i < pi_session_n_ops(s), "no such operator");
        const ggml::Profile::Entry& e = s->session.context.profile.entries[size_t(i)];
        give(out, {0, e.part, e.op, e.calls, e.seconds, e.bytes});
    });
}

}  // extern "C"
