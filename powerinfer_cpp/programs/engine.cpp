#include "engine.h"

#include <algorithm>
#include <limits>

#include "console/console.h"

namespace {

constexpr int32_t default_most_positions = 4096;  // of the context

}  // namespace

bool wants_gpu(const Options& options) {
    return options.use_gpu && options.device != "cpu" &&
           (pi_n_devices() > 0 || !options.device.empty());
}

int32_t trained_positions(Options& options) {
    Options on_cpu = options;
    on_cpu.device = "cpu";
    on_cpu.ram_budget = INT64_MAX;
    pi_session_params session = pi_session_default_params();
    session.n_ctx = 0;
    const ModelParams model = model_params(on_cpu, session);
    pi_plan* plan = nullptr;
    require(pi_plan_new(options.model.c_str(), &model.params, &session, &plan));
    return pi_plan_n_ctx(Plan(plan).get());
}

ModelParams model_params(Options& options, const pi_session_params& session) {
    ModelParams made{pi_model_default_params(), {}};
    for (const Override& given : options.overrides) {
        auto o = sized<pi_override>();
        o.key = given.key.c_str();
        o.type = given.type;
        o.integer = given.integer;
        o.number = given.number;
        o.string = given.text.c_str();
        made.overrides.push_back(o);
    }
    pi_model_params& params = made.params;
    params.overrides = made.overrides.data();
    params.n_overrides = int32_t(made.overrides.size());
    params.session = &session;
    if (wants_gpu(options))
        params.device = options.device.empty() ? "cuda0" : options.device.c_str();
    params.n_gpu_layers = options.n_gpu_layers;
    params.vram_budget = options.vram_budget;
    params.n_cpu_moe = options.n_cpu_moe;
    params.use_mmap = options.mmap;
    params.use_mlock = options.mlock;
    params.placement = options.placement;
    params.op_offload = options.op_offload;
    params.check_tensors = options.check_tensors;
    params.allow_unknown = options.allow_unknown;
    params.n_threads = options.n_threads;
    params.ram_budget = options.ram_budget;
    params.bundle = options.bundle;
    params.mmap_anyway = options.mmap_anyway;
    params.progress = print_progress;
    params.log = print_log;
    params.log_data = &options.verbosity;
    return made;
}

pi_session_params session_params(const Options& options, int32_t trained_for) {
    pi_session_params params = options.session;
    params.n_ctx = options.n_ctx > 0   ? options.n_ctx
                   : options.n_ctx < 0 ? std::min(trained_for, default_most_positions)
                                       : trained_for;
    // More rows than the context would only waste memory.
    params.n_batch = std::clamp(options.n_batch, 1, std::max(params.n_ctx, 1));
    params.n_ubatch = std::min(options.n_ubatch, params.n_batch);
    params.n_logits = 1;       // of the last row
    params.n_checkpoints = 1;  // for Ctrl-C
    if (options.swa_full) params.n_kv_old = std::numeric_limits<int64_t>::max();
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads_batch;
    params.type_k = options.type_k;
    params.type_v = options.type_v;
    params.sparse = options.sparse;
    params.sparse_threshold = options.sparse_threshold;
    params.lora_allow_predictor = options.lora_allow_predictor;
    params.should_stop = should_stop;
    params.log = print_log;
    params.log_data = const_cast<int32_t*>(&options.verbosity);  // print_log only reads it
    return params;
}

Sampler new_sampler(const Options& options, const pi_model* model) {
    pi_sampler_params params = options.sampler;
    if (options.samplers_given) params.samplers = options.samplers.c_str();
    std::vector<const char*> texts;
    std::vector<size_t> lengths;
    for (const std::string& text : options.dry_breakers) {
        texts.push_back(text.data());
        lengths.push_back(text.size());
    }
    Breakers breakers;
    if (params.dry_multiplier > 0) {
        pi_breakers* made = nullptr;
        require(pi_breakers_new(model, texts.data(), lengths.data(), int32_t(texts.size()), &made));
        breakers.reset(made);
        params.dry_sequence_breakers = made;
    }
    pi_sampler* sampler = nullptr;
    require(pi_sampler_new(&params, &sampler));
    return Sampler(sampler);
}

std::string isa() {
    const char* name;
    require(pi_isa(&name));
    return name;
}

std::vector<int32_t> tokenize(const pi_model* model, const std::string& text, bool special) {
    std::vector<int32_t> ids(text.size() + 2);
    size_t n = 0;
    pi_status status =
        pi_tokenize(model, text.data(), text.size(), special, ids.data(), ids.size(), &n);
    if (status == PI_ERROR_ARGUMENT && n > ids.size()) {
        ids.resize(n);
        status = pi_tokenize(model, text.data(), text.size(), special, ids.data(), ids.size(), &n);
    }
    require(status);
    ids.resize(n);
    return ids;
}

std::string_view token_text(const pi_model* model, int32_t token, bool special) {
    const char* text;
    size_t length;
    require(pi_token_text(model, token, special, &text, &length));
    return {text, length};
}
