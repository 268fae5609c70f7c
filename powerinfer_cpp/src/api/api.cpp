// C API (powerinfer.h): errors, the machine, plans, models and vocabularies.
#include "api/api.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ggml/device.h"
#include "ggml/threads.h"
#include "load/open_store.h"
#include "plan/plan.h"
#include "plan/ways.h"
#include "session/state.h"

using namespace powerinfer::api;

struct pi_plan {
    powerinfer::Plan plan;
};

struct pi_reservation {
    powerinfer::Reservation reservation;
};

namespace {

// Fixed size, so that running out of memory can be reported without allocating.
thread_local char last_error[1024] = "";

constexpr const char* kNoLayers = "n_cpu_moe must not be negative";

// The overrides, checked and with all members, where the parameters point to them.
std::vector<pi_override> take_overrides(pi_model_params& p) {
    require(p.n_overrides >= 0 && (p.overrides || !p.n_overrides), "there must be n_overrides");
    std::vector<pi_override> all;
    const size_t size = p.n_overrides ? known_size(*p.overrides) : 0;
    const char* at = reinterpret_cast<const char*>(p.overrides);
    for (int32_t i = 0; i < p.n_overrides; i++, at += size) {
        pi_override o{};
        std::memcpy(&o, at, size);
        require(o.key, "an override has no key");
        require(o.type == PI_I64 || o.type == PI_F64 || o.type == PI_BOOL || o.type == PI_STRING,
                "an override must be of type PI_I64, PI_F64, PI_BOOL or PI_STRING");
        require(o.type != PI_STRING || o.string, "an override of type PI_STRING has no string");
        all.push_back(o);
    }
    p.overrides = all.data();
    return all;
}

// The feed-forward part of a layer, if there is one.
const powerinfer::FeedForward* ffn_of(const pi_model* m, int32_t layer) {
    if (layer < 0 || size_t(layer) >= m->model->layers.size()) return nullptr;
    return m->model->ffn_of(layer);
}

// What get(model, layer) says of every layer; -1 if they differ.
int32_t of_equal_layers(const pi_model* m, int32_t (*get)(const pi_model*, int32_t)) {
    const int32_t first = get(m, 0);
    for (int32_t i = 1; i < pi_model_n_layer(m); i++) {
        if (get(m, i) != first) return -1;
    }
    return first;
}

// The sessions that a model's parameters name, with all members; they point to them.
struct Sessions {
    pi_session_params session = pi_session_default_params(), beside = session;

    // other: in place of one that is not named; or null.
    Sessions(pi_model_params& p, const pi_session_params* other) {
        if (other) session = *other;
        if (p.session) session = params_or(p.session, pi_session_default_params());
        if (p.session || other) p.session = &session;
        if (!p.beside) return;
        beside = params_or(p.beside, beside);
        p.beside = &beside;
    }
    Sessions(const Sessions&) = delete;
    Sessions& operator=(const Sessions&) = delete;
};

}  // namespace

pi_status powerinfer::api::fail(ggml::Code code, const char* message) noexcept {
    std::snprintf(last_error, sizeof(last_error), "%s", message);
    return pi_status(code);
}

extern "C" {

const char* pi_last_error(void) {
    return last_error;
}

const char* pi_version(void) {
    return PI_VERSION;
}

int32_t pi_numerics(void) {
    return powerinfer::kNumerics;
}

pi_status pi_isa(const char** isa) {
    return guarded([&] {
        require(isa, "isa must not be NULL");
        *isa = ggml::isa_name(ggml::select_kernels());
    });
}

const char* pi_isas_left_out(void) {
    return guarded_or("", [] { return ggml::isas_left_out(); });
}

int32_t pi_default_threads(void) {
    return guarded_or(1, [] { return int32_t(ggml::default_threads()); });
}

int32_t pi_threads_used(int32_t n) {
    return guarded_or(1, [&] { return int32_t(ggml::threads_used(n)); });
}

uint64_t pi_available_memory(void) {
    return guarded_or(uint64_t(0), [] { return uint64_t(ggml::available_memory()); });
}

uint64_t pi_peak_memory(void) {
    return guarded_or(uint64_t(0), [] { return uint64_t(ggml::peak_memory()); });
}

int32_t pi_n_devices(void) {
    return guarded_or(0, [] { return int32_t(ggml::devices().size()); });
}

const char* pi_device_name(int32_t device) {
    if (device < 0 || device >= pi_n_devices()) return nullptr;
    return ggml::devices()[size_t(device)].name.c_str();
}

const char* pi_device_note(void) {
    return guarded_or("", [] { return ggml::device_note(); });
}

// ---- Plans and models ---------------------------------------------------------------------------

pi_model_params pi_model_default_params(void) {
    pi_model_params p{};
    p.struct_size = sizeof(p);
    p.use_mmap = true;
    p.use_gpu_index = true;
    p.n_gpu_layers = -1;
    p.op_offload = true;
    p.bundle = true;
    return p;
}

pi_status pi_plan_new(const char* path, const pi_model_params* model_params,
                      const pi_session_params* session, pi_plan** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        pi_model_params m = params_or(model_params, pi_model_default_params());
        const pi_session_params s = params_or(session, pi_session_default_params());
        const std::vector<pi_override> overrides = take_overrides(m);
        require(m.n_cpu_moe >= 0, kNoLayers);
        m.vocab_only = false;  // a plan is about weights
        const Sessions named(m, &s);
        const auto model = powerinfer::Model::inspect(path, m);
        auto plan = std::make_unique<pi_plan>(pi_plan{powerinfer::make_plan(*model, s)});
        if (model->stores_neurons()) plan->plan.to_write = powerinfer::bundle_to_write(*model);
        plan->plan.ways =
            powerinfer::find_ways(*model, m, powerinfer::session_params_for(*model, s));
        *out = plan.release();
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
        const powerinfer::PlanPart& p = plan->plan.parts[size_t(i)];
        give(out, {0, powerinfer::name(p.tier), powerinfer::name(p.part), p.layer, p.bytes});
    });
}

uint64_t pi_plan_budget(const pi_plan* plan) {
    return plan->plan.budget;
}

uint64_t pi_plan_vram_budget(const pi_plan* plan) {
    return plan->plan.vram_budget;
}

int32_t pi_plan_n_ctx(const pi_plan* plan) {
    return int32_t(plan->plan.n_ctx);
}

pi_status pi_plan_storage(const pi_plan* plan, pi_storage_plan* out) {
    return guarded([&] {
        require(plan, "plan must not be NULL");
        give(out,
             {0, plan->plan.cached, plan->plan.stored, plan->plan.to_write, plan->plan.read_seconds,
              plan->plan.hits, plan->plan.token_seconds, plan->plan.twice});
    });
}

pi_status pi_plan_device(const pi_plan* plan, pi_device_plan* out) {
    return guarded([&] {
        require(plan, "plan must not be NULL");
        const powerinfer::Plan& p = plan->plan;
        give(out, {0, int32_t(p.n_layer), int32_t(p.device_layers), p.device_head,
                   p.left.layer.c_str(), p.left.head.c_str()});
    });
}

pi_status pi_plan_experts(const pi_plan* plan, pi_expert_report* out) {
    return guarded([&] {
        require(plan, "plan must not be NULL");
        give(out, {0, plan->plan.experts, plan->plan.device_experts, 0, 0, 0});
    });
}

int32_t pi_plan_n_ways(const pi_plan* plan) {
    return int32_t(plan->plan.ways.size());
}

pi_status pi_plan_way(const pi_plan* plan, int32_t i, pi_way* out) {
    return guarded([&] {
        require(plan && i >= 0 && i < pi_plan_n_ways(plan), "no such way");
        const powerinfer::Way& way = plan->plan.ways[size_t(i)];
        give(out, {0, way.what, way.value, way.bytes});
    });
}

pi_status pi_model_open(const char* path, const pi_model_params* params, pi_model** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        pi_model_params p = params_or(params, pi_model_default_params());
        const Sessions named(p, nullptr);
        const std::vector<pi_override> overrides = take_overrides(p);
        require(p.n_threads >= 0 && p.n_threads <= 512, "n_threads must be between 0 and 512");
        require(p.placement >= PI_PLACEMENT_FILE && p.placement <= PI_PLACEMENT_NONE,
                "placement must be a pi_placement");
        require(p.n_cpu_moe >= 0, kNoLayers);
        auto handle = std::make_unique<pi_model>();
        handle->model = powerinfer::Model::load(path, p);
        handle->header.gguf = &handle->model->file.gguf;
        handle->header.files = &handle->model->file.files;
        *out = handle.release();
    });
}

void pi_model_free(pi_model* model) {
    delete model;
}

pi_status pi_model_plan(const pi_model* model, const pi_session_params* session, pi_plan** out) {
    return guarded([&] {
        require(model && out, "model and out must not be NULL");
        const pi_session_params s = params_or(session, pi_session_default_params());
        *out = new pi_plan{powerinfer::make_plan(*model->model, s)};
    });
}

uint64_t pi_model_budget(const pi_model* m) {
    return m->model->budget->limit();
}

uint64_t pi_model_reserved(const pi_model* m) {
    return guarded_or(uint64_t(0), [&] { return m->model->budget->reserved(); });
}

pi_status pi_reserve(const pi_model* m, const char* what, uint64_t n_bytes, pi_reservation** out) {
    return guarded([&] {
        require(m && what && out, "model, what and out must not be NULL");
        auto r = std::make_unique<pi_reservation>();
        r->reservation = m->model->budget->reserve(what, n_bytes);
        *out = r.release();
    });
}

void pi_reservation_free(pi_reservation* reservation) {
    delete reservation;
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
    return of_equal_layers(m, pi_model_layer_n_ff);
}

int32_t pi_model_n_expert(const pi_model* m) {
    return of_equal_layers(m, pi_model_layer_n_expert);
}

int32_t pi_model_layer_n_ff(const pi_model* m, int32_t layer) {
    const powerinfer::FeedForward* f = ffn_of(m, layer);
    return f ? int32_t(f->n_ff) : 0;
}

int32_t pi_model_layer_n_expert(const pi_model* m, int32_t layer) {
    const powerinfer::FeedForward* f = ffn_of(m, layer);
    return f ? int32_t(f->n_expert()) : 0;
}

int32_t pi_model_layer_width(const pi_model* m, int32_t layer) {
    const powerinfer::FeedForward* f = ffn_of(m, layer);
    return f ? int32_t(f->columns(m->model->config.n_embd)) : 0;
}

uint64_t pi_model_n_params(const pi_model* m) {
    uint64_t n = 0;
    for (const ggml::TensorInfo& t : m->model->file.gguf.tensors()) {
        n += uint64_t(t.ne[0]) * uint64_t(t.ne[1]) * uint64_t(t.ne[2]) * uint64_t(t.ne[3]);
    }
    // Bundles are tensors of bytes, and those of version 2 have two checksums a neuron.
    for (const powerinfer::WeightSpec& w : m->model->weights) {
        if (!w.is<powerinfer::WholeBundle>() && !w.is<powerinfer::StoredBundle>()) continue;
        int64_t weights = w.is<powerinfer::StoredBundle>() ? -2 : 0;
        for (const powerinfer::DeviceMatrix& part : w.device_matrices()) weights += part.cols;
        n += uint64_t(w.rows) * uint64_t(weights - w.cols);
    }
    return n;
}

uint64_t pi_model_n_bytes(const pi_model* m) {
    uint64_t n = 0;
    for (const ggml::TensorInfo& t : m->model->file.gguf.tensors()) n += t.bytes;
    return n;
}

bool pi_model_has_predictors(const pi_model* m) {
    return m->model->config.has_predictors;
}

bool pi_model_has_states(const pi_model* m) {
    const auto& layers = m->model->layers;
    return std::any_of(layers.begin(), layers.end(), [](const powerinfer::Layer& layer) {
        return powerinfer::state_sizes(layer).state > 0;
    });
}

bool pi_model_has_windows(const pi_model* m) {
    return powerinfer::kv_classes(m->model->layers).size() > 1;
}

bool pi_model_guesses(const pi_model* m) {
    return m->model->guesses();
}

bool pi_model_is_encoder(const pi_model* m) {
    return m->model->config.encoder;
}

bool pi_model_ranks(const pi_model* m) {
    return !m->model->ranker.empty();
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

}  // extern "C"
