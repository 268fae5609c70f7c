// powerinfer.h: the C face of the engine. The one place where exceptions become status codes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "ggml/device.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "gpu_index.h"
#include "measure.h"
#include "model.h"
#include "plan.h"
#include "sampler.h"
#include "session.h"

using ggml::Code;
using ggml::Error;
using ggml::format;
using powerinfer::Model;

struct pi_gguf {
    const ggml::Gguf* gguf;
    const std::vector<std::unique_ptr<ggml::File>>* files;
    powerinfer::ModelFile own;  // empty when it is a model's
};

struct pi_model {
    std::shared_ptr<const Model> model;
    pi_gguf header;
};

struct pi_session {
    powerinfer::Session session;
};

struct pi_sampler {
    powerinfer::Sampler sampler;
};

struct pi_plan {
    powerinfer::Plan plan;
};

namespace {

// Fixed room, so that running out of memory can be reported without taking any.
thread_local char last_error[1024] = "";

pi_status fail(Code code, const char* message) {
    std::snprintf(last_error, sizeof(last_error), "%s", message);
    return pi_status(code);
}

// Runs the body of a call; what it throws becomes a status.
template <typename F>
pi_status guarded(F body) noexcept {
    try {
        body();
        return PI_OK;
    } catch (const Error& e) {
        return fail(e.code(), e.what());
    } catch (const std::bad_alloc&) {
        return fail(Code::memory, "out of memory");
    } catch (const std::exception& e) {
        return fail(Code::internal, e.what());
    }
}

void require(bool condition, const char* what) {
    if (!condition) throw Error(Code::argument, what);
}

// A copy of a caller's parameters; NULL stands for the defaults.
template <typename P>
P params_or(const P* params, P defaults) {
    if (!params) return defaults;
    require(params->struct_size == sizeof(P),
            "struct_size of the parameters is not this version's");
    return *params;
}

constexpr const char* kNoOut = "NULL where the result is to go";

const ggml::Value& value_at(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n) {
    require(g && i >= 0 && size_t(i) < g->gguf->values().size(), "no such key");
    const ggml::Value& v = g->gguf->values()[size_t(i)].second;
    require(first <= v.count() && n <= v.count() - first, "elements beyond the end of the value");
    return v;
}

const ggml::DTypeInfo& codec(uint32_t type, int64_t n, size_t size, bool buffers) {
    const ggml::DTypeInfo* t = ggml::find_dtype(type);
    require(t && t->is_float(), "not a floating-point or quantised type that this engine knows");
    require(n >= 0 && n % t->block == 0, "the number of elements is not a multiple of the block");
    require(uint64_t(n / t->block) <= size / uint64_t(t->bytes), "the buffer is too small");
    require(buffers || !n, "NULL where a buffer is expected");
    return *t;
}

// A layer's recording, which `find` gives or null where there is none.
template <typename T, typename F>
pi_status recorded(const pi_session* s, int32_t layer, const T** out, F find) noexcept {
    return guarded([&] {
        require(s && out && layer >= 0 && layer < s->session.model->config.n_layer,
                "no such layer");
        const T* found = find();
        require(found,
                "the session has not recorded this; its parameter `record` says what it does");
        *out = found;
    });
}

}  // namespace

extern "C" {

const char* pi_last_error(void) {
    return last_error;
}

const char* pi_version(void) {
    return PI_VERSION;
}

pi_status pi_isa(const char** isa) {
    return guarded([&] {
        require(isa, "isa must not be NULL");
        *isa = ggml::isa_name(ggml::select_kernels());
    });
}

int32_t pi_default_threads(void) {
    return ggml::default_threads();
}

uint64_t pi_available_memory(void) {
    return ggml::available_memory();
}

int32_t pi_n_devices(void) {
    return int32_t(ggml::devices().size());
}

const char* pi_device_name(int32_t device) {
    return device >= 0 && device < pi_n_devices() ? ggml::devices()[size_t(device)].name.c_str()
                                                  : nullptr;
}

const char* pi_device_note(void) {
    return ggml::device_note();
}

pi_status pi_measure_read(int32_t n_threads, uint64_t n_bytes, double* bytes_per_s) {
    return guarded([&] {
        require(bytes_per_s && n_bytes >= 64, "nothing to measure");
        *bytes_per_s = powerinfer::measure_read(n_threads, n_bytes);
    });
}

pi_status pi_measure_product(uint32_t type, int32_t n_threads, int32_t n_tokens, double* per_s) {
    return guarded([&] {
        require(per_s && n_tokens >= 1 && n_tokens <= 4096, "n_tokens must be from 1 to 4096");
        const ggml::DTypeInfo* t = ggml::find_dtype(type);
        require(t && t->is_float() && t->encode, "a type that cannot be encoded");
        *per_s = powerinfer::measure_product(*t, n_threads, n_tokens);
    });
}

// ---- GGUF files -------------------------------------------------------------------------------

pi_status pi_gguf_open(const char* path, pi_gguf** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        auto g = std::make_unique<pi_gguf>();
        g->own = powerinfer::ModelFile::open(path);
        g->gguf = &g->own.gguf;
        g->files = &g->own.files;
        *out = g.release();
    });
}

void pi_gguf_free(pi_gguf* gguf) {
    delete gguf;
}

uint32_t pi_gguf_version(const pi_gguf* g) {
    return g->gguf->version();
}

bool pi_gguf_is_pwri(const pi_gguf* g) {
    return g->gguf->pwri_magic();
}

int32_t pi_gguf_n_files(const pi_gguf* g) {
    return int32_t(g->files->size());
}

const char* pi_gguf_file(const pi_gguf* g, int32_t i) {
    return i >= 0 && i < pi_gguf_n_files(g) ? (*g->files)[size_t(i)]->path().c_str() : nullptr;
}

int64_t pi_gguf_n_values(const pi_gguf* g) {
    return int64_t(g->gguf->values().size());
}

pi_status pi_gguf_value(const pi_gguf* g, int64_t i, const char** key, size_t* key_length,
                        pi_value_type* type, pi_value_type* element_type, uint64_t* count) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, 0, 0);
        require(key && key_length && type && element_type && count, kNoOut);
        const std::string_view k = g->gguf->values()[size_t(i)].first;
        *key = k.data();
        *key_length = k.size();
        *type = pi_value_type(v.type());
        *element_type = pi_value_type(v.element_type());
        *count = v.count();
    });
}

pi_status pi_gguf_integers(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n, int64_t* out) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, first, n);
        require(v.is_integer() || v.is_bool(), "the value is not an integer");
        require(out || !n, kNoOut);
        for (uint64_t j = 0; j < n; j++) out[j] = v.integer(first + j);
    });
}

pi_status pi_gguf_numbers(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n, double* out) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, first, n);
        require(v.is_number(), "the value is not a number");
        require(out || !n, kNoOut);
        for (uint64_t j = 0; j < n; j++) out[j] = v.number(first + j);
    });
}

pi_status pi_gguf_string(const pi_gguf* g, int64_t i, uint64_t element, const char** out,
                         size_t* length) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, element, 1);
        require(v.is_string(), "the value is not a string");
        require(out && length, kNoOut);
        const std::string_view s = v.string(element);
        *out = s.data();
        *length = s.size();
    });
}

int64_t pi_gguf_n_tensors(const pi_gguf* g) {
    return int64_t(g->gguf->tensors().size());
}

pi_status pi_gguf_tensor(const pi_gguf* g, int64_t i, pi_tensor_info* out) {
    return guarded([&] {
        require(g && i >= 0 && i < pi_gguf_n_tensors(g), "no such tensor");
        require(out, kNoOut);
        const ggml::TensorInfo& t = g->gguf->tensors()[size_t(i)];
        *out = {t.name.c_str(),
                ggml::info(t.type).name,
                uint32_t(t.type),
                t.n_dims,
                {},
                t.offset,
                t.bytes,
                t.file};
        std::copy(t.ne, t.ne + 4, out->ne);
    });
}

pi_status pi_gpu_index_read(const char* path, int32_t n_layer, int64_t n_ff, int64_t* n_gpu) {
    return guarded([&] {
        require(path && n_gpu, "path and n_gpu must not be NULL");
        require(n_layer >= 1 && n_ff >= 1, "a model has layers and neurons");
        const auto found = powerinfer::read_gpu_index(path, n_layer, n_ff);
        std::copy(found.begin(), found.end(), n_gpu);
    });
}

// ---- Formats ----------------------------------------------------------------------------------

bool pi_type_by_name(const char* name, uint32_t* type, int64_t* block, int64_t* block_bytes) {
    const ggml::DTypeInfo* t = name ? ggml::find_dtype(std::string_view(name)) : nullptr;
    if (!t) return false;
    *type = uint32_t(t->type);
    *block = t->block;
    *block_bytes = t->bytes;
    return true;
}

pi_status pi_encode(uint32_t type, const float* src, int64_t n, void* dst, size_t dst_size) {
    return guarded([&] { codec(type, n, dst_size, src && dst).encode(src, dst, n); });
}

pi_status pi_decode(uint32_t type, const void* src, size_t src_size, float* dst, int64_t n) {
    return guarded([&] { codec(type, n, src_size, src && dst).decode(src, dst, n); });
}

namespace {

powerinfer::BundleLayout bundle_layout(const uint32_t* types, int32_t n_parts, int64_t cols,
                                       int64_t n, int32_t part, size_t stored, size_t bundles) {
    require(types && n_parts >= 1 && part >= 0 && part < n_parts, "no such part of a bundle");
    require(n >= 0 && cols >= 1 && cols <= 1 << 20, "the sizes of the rows are out of range");
    powerinfer::BundleLayout layout;
    layout.cols = cols;
    for (int32_t i = 0; i < n_parts; i++) {
        layout.parts.push_back(codec(types[i], cols, SIZE_MAX, true).type);
    }
    const int64_t row = ggml::info(layout.parts[size_t(part)]).size(cols);
    require(
        uint64_t(n) <= stored / uint64_t(row) && uint64_t(n) <= bundles / uint64_t(layout.stride()),
        "the buffer is too small");
    return layout;
}

}  // namespace

int32_t pi_bundle_version(void) {
    return int32_t(powerinfer::kBundleVersion);
}

pi_status pi_bundle_put(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                        int32_t part, const void* rows, size_t rows_size, void* bundles,
                        size_t bundles_size) {
    return guarded([&] {
        require((rows && bundles) || !n, "NULL where a buffer is expected");
        bundle_layout(types, n_parts, cols, n, part, rows_size, bundles_size)
            .put(size_t(part), static_cast<const uint8_t*>(rows), n,
                 static_cast<uint8_t*>(bundles));
    });
}

pi_status pi_bundle_take(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                         int32_t part, const void* bundles, size_t bundles_size, void* rows,
                         size_t rows_size) {
    return guarded([&] {
        require((rows && bundles) || !n, "NULL where a buffer is expected");
        bundle_layout(types, n_parts, cols, n, part, rows_size, bundles_size)
            .take(size_t(part), static_cast<const uint8_t*>(bundles), n,
                  static_cast<uint8_t*>(rows));
    });
}

// ---- Plans and models ---------------------------------------------------------------------------

pi_model_params pi_model_default_params(void) {
    pi_model_params p{};
    p.struct_size = sizeof(p);
    p.use_mmap = true;
    p.use_gpu_index = true;
    return p;
}

pi_session_params pi_session_default_params(void) {
    pi_session_params p{};
    p.struct_size = sizeof(p);
    p.n_ctx = 512;
    p.n_batch = 512;
    p.n_ubatch = 512;
    p.n_seq = 1;
    p.sparse_threshold = NAN;
    p.type_k = p.type_v = uint32_t(ggml::DType::F16);
    return p;
}

pi_status pi_plan_new(const char* path, const pi_model_params* model_params,
                      const pi_session_params* session, pi_plan** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        const pi_model_params m = params_or(model_params, pi_model_default_params());
        const pi_session_params s = params_or(session, pi_session_default_params());
        auto model = Model::inspect(path, false);
        model->ram_budget = m.ram_budget;
        *out = new pi_plan{powerinfer::make_plan(*model, s)};
    });
}

void pi_plan_free(pi_plan* plan) {
    delete plan;
}

int32_t pi_plan_n_parts(const pi_plan* plan) {
    return int32_t(plan->plan.parts.size());
}

pi_status pi_plan_part_at(const pi_plan* plan, int32_t i, pi_plan_part* out) {
    return guarded([&] {
        require(plan && i >= 0 && i < pi_plan_n_parts(plan), "no such part");
        require(out, kNoOut);
        *out = plan->plan.parts[size_t(i)];
    });
}

uint64_t pi_plan_budget(const pi_plan* plan) {
    return plan->plan.budget;
}

int32_t pi_plan_n_ctx(const pi_plan* plan) {
    return int32_t(plan->plan.n_ctx);
}

pi_status pi_model_open(const char* path, const pi_model_params* params, pi_model** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        const pi_model_params p = params_or(params, pi_model_default_params());
        require(p.n_threads >= 0 && p.n_threads <= 512, "n_threads must be between 0 and 512");
        auto handle = std::make_unique<pi_model>();
        handle->model = Model::load(path, p);
        handle->header.gguf = &handle->model->file.gguf;
        handle->header.files = &handle->model->file.files;
        *out = handle.release();
    });
}

void pi_model_free(pi_model* model) {
    delete model;
}

const char* pi_model_architecture(const pi_model* m) {
    return m->model->config.architecture.c_str();
}

const char* pi_model_activation(const pi_model* m) {
    return powerinfer::name(m->model->config.activation);
}

int32_t pi_model_n_vocab(const pi_model* m) {
    return int32_t(m->model->config.n_vocab);
}

int32_t pi_model_n_ctx(const pi_model* m) {
    return int32_t(m->model->config.n_ctx);
}

int32_t pi_model_n_embd(const pi_model* m) {
    return int32_t(m->model->config.n_embd);
}

int32_t pi_model_n_layer(const pi_model* m) {
    return int32_t(m->model->config.n_layer);
}

int32_t pi_model_n_ff(const pi_model* m) {
    return int32_t(m->model->config.n_ff);
}

int32_t pi_model_n_expert(const pi_model* m) {
    return int32_t(m->model->config.n_expert);
}

uint64_t pi_model_n_params(const pi_model* m) {
    uint64_t n = 0;
    for (const ggml::TensorInfo& t : m->model->file.gguf.tensors()) {
        n += uint64_t(t.ne[0]) * uint64_t(t.ne[1]) * uint64_t(t.ne[2]) * uint64_t(t.ne[3]);
    }
    for (const powerinfer::WeightSpec& w : m->model->weights) {  // bundles are tensors of bytes
        if (w.use != powerinfer::WeightSpec::Use::bundle) continue;
        const powerinfer::BundleLayout& layout = w.bundle->layout;
        n += uint64_t(w.rows) * uint64_t(layout.cols * int64_t(layout.parts.size()) - w.cols);
    }
    return n;
}

uint64_t pi_model_n_bytes(const pi_model* m) {
    uint64_t n = 0;
    for (const ggml::TensorInfo& t : m->model->file.gguf.tensors()) n += t.bytes;
    return n;
}

bool pi_model_has_predictors(const pi_model* m) {
    return m->model->config.predictor_rank > 0;
}

const pi_gguf* pi_model_gguf(const pi_model* m) {
    return &m->header;
}

// ---- Tokenizer ----------------------------------------------------------------------------------

int32_t pi_token_bos(const pi_model* m) {
    return m->model->vocab.bos;
}

int32_t pi_token_eos(const pi_model* m) {
    return m->model->vocab.eos;
}

int32_t pi_token_nl(const pi_model* m) {
    return m->model->vocab.nl;
}

bool pi_token_add_bos(const pi_model* m) {
    return m->model->vocab.add_bos;
}

bool pi_token_add_eos(const pi_model* m) {
    return m->model->vocab.add_eos;
}

bool pi_token_ends(const pi_model* m, int32_t token) {
    return m->model->vocab.is_end(token);
}

pi_status pi_tokenize(const pi_model* m, const char* text, size_t length, bool special,
                      int32_t* ids, size_t capacity, size_t* n) {
    return guarded([&] {
        require(m && n && (text || !length) && (ids || !capacity),
                "NULL where an array is expected");
        const std::vector<int32_t> found =
            m->model->vocab.tokenize(std::string_view(text, length), special);
        *n = found.size();
        require(found.size() <= capacity, "the array for the ids is too small");
        std::copy(found.begin(), found.end(), ids);
    });
}

pi_status pi_token_text(const pi_model* m, int32_t token, bool special, const char** text,
                        size_t* length) {
    return guarded([&] {
        require(m && token >= 0 && token < m->model->vocab.size(), "no such token");
        require(text && length, kNoOut);
        const std::string_view s = m->model->vocab.text(token, special);
        *text = s.data();
        *length = s.size();
    });
}

// ---- Sessions -----------------------------------------------------------------------------------

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

int32_t pi_session_n_ctx(const pi_session* s) {
    return s->session.params.n_ctx;
}

int32_t pi_session_n_batch(const pi_session* s) {
    return s->session.params.n_batch;
}

pi_status pi_eval(pi_session* s, const int32_t* token, const int32_t* seq, const bool* logits,
                  int32_t n) {
    return guarded([&] {
        require(s && token, "session and token must not be NULL");
        s->session.eval(token, seq, logits, n);
    });
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
        *out = s->session.result(i);
    });
}

int32_t pi_sequence_length(const pi_session* s, int32_t seq) {
    return seq >= 0 && seq < s->session.kv.n_seq() ? int32_t(s->session.kv.length(seq)) : -1;
}

pi_status pi_sequence_truncate(pi_session* s, int32_t seq, int32_t n) {
    return guarded([&] {
        require(s, "session must not be NULL");
        s->session.truncate(seq, n);
    });
}

pi_status pi_sequence_save(const pi_session* s, int32_t seq, void* buffer, size_t capacity,
                           size_t* n) {
    return guarded([&] {
        require(s && n && (buffer || !capacity), "NULL where bytes are expected");
        const uint64_t size = s->session.state_size(seq);
        *n = size_t(size);
        require(size <= capacity, "the buffer for the state is too small");
        s->session.save_state(seq, static_cast<uint8_t*>(buffer));
    });
}

pi_status pi_sequence_load(pi_session* s, int32_t seq, const void* buffer, size_t n) {
    return guarded([&] {
        require(s && buffer, "session and buffer must not be NULL");
        s->session.load_state(seq, static_cast<const uint8_t*>(buffer), n);
    });
}

pi_status pi_session_work(const pi_session* s, pi_work* out, pi_neuron_counts* neurons) {
    return guarded([&] {
        require(s && out, kNoOut);
        const powerinfer::Traffic t = powerinfer::traffic(s->session);
        *out = {s->session.row_counts.rows, t.attention, t.predictor, t.ffn, t.head, t.kv};
        for (const ggml::NeuronCounts& c : s->session.counts) {
            if (neurons) *neurons++ = {c.rows, c.proposed, c.computed, c.fired};
        }
    });
}

pi_status pi_firing_counts(const pi_session* s, int32_t layer, const uint64_t** out) {
    return recorded(s, layer, out, [&] { return s->session.record.counts(layer); });
}

pi_status pi_activations(const pi_session* s, int32_t layer, const bool** out) {
    return recorded(s, layer, out, [&] { return s->session.record.fired(layer); });
}

pi_status pi_ffn_inputs(const pi_session* s, int32_t layer, const float** out) {
    return recorded(s, layer, out, [&] { return s->session.record.input(layer); });
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
        require(out, kNoOut);
        const ggml::Profile::Entry& e = s->session.context.profile.entries[size_t(i)];
        *out = {e.part, e.op, e.calls, e.seconds, e.bytes};
    });
}

// ---- Sampling -----------------------------------------------------------------------------------

pi_sampler_params pi_sampler_default_params(void) {
    pi_sampler_params p{};
    p.struct_size = sizeof(p);
    p.temperature = 0.8f;
    p.top_k = 40;
    p.top_p = 0.95f;
    p.min_p = 0.05f;
    p.typical_p = 1.0f;
    p.repeat_penalty = 1.0f;
    p.repeat_last_n = 64;
    return p;
}

pi_status pi_sampler_new(const pi_sampler_params* params, pi_sampler** out) {
    return guarded([&] {
        require(out, "out must not be NULL");
        *out = new pi_sampler{powerinfer::Sampler(params_or(params, pi_sampler_default_params()))};
    });
}

void pi_sampler_free(pi_sampler* sampler) {
    delete sampler;
}

pi_status pi_sample(pi_sampler* sampler, const float* logits, int32_t n_vocab, int32_t* token) {
    return guarded([&] {
        require(sampler && logits && n_vocab > 0 && token, "NULL or nothing to sample from");
        *token = sampler->sampler.sample(logits, n_vocab);
    });
}

void pi_sampler_accept(pi_sampler* sampler, int32_t token) {
    sampler->sampler.accept(token);
}

void pi_sampler_reset(pi_sampler* sampler) {
    sampler->sampler.reset();
}

}  // extern "C"
