#include "plan.h"

#include <algorithm>
#include <cmath>

#include "ggml/sizes.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "kv_cache.h"
#include "session.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr uint64_t kLine = 64;  // a weight that is packed or read starts at a cache line

void add(std::vector<PlanPart>& parts, Part part, int32_t layer, uint64_t bytes) {
    // From the end: a layer's weights stand together.
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->part != part || p->layer != layer) continue;
        p->bytes = ggml::size_sum(p->bytes, bytes);
        return;
    }
    parts.push_back({Tier::ram, part, layer, bytes});
}

}  // namespace

uint64_t total(const std::vector<PlanPart>& parts) {
    uint64_t sum = 0;
    for (const PlanPart& p : parts) sum = ggml::size_sum(sum, p.bytes);
    return sum;
}

WeightPlan plan_weights(std::vector<WeightSpec>& weights, bool use_mmap) {
    using Memory = Place::Memory;
    WeightPlan plan;
    uint64_t bundle = 0;  // where the one begins whose parts come along
    for (WeightSpec& w : weights) {
        const int32_t layer = int32_t(layer_of(w.name));
        const auto* neurons = std::get_if<NeuronPart>(&w.target);
        w.place.memory = neurons || w.strips() ? Memory::packed
                         : use_mmap            ? Memory::mapped
                                               : Memory::plain;
        if (w.place.memory == Memory::mapped) {
            add(plan.parts, w.part, layer, w.bytes());
            continue;
        }
        uint64_t& end = w.place.memory == Memory::packed ? plan.packed : plan.plain;
        const uint64_t begin = end;
        end = ggml::size_sum(begin, w.bytes());
        if (neurons && neurons->part == 0) bundle = begin;
        w.place.offset = neurons ? bundle : begin;
        // The parts of a bundle share its rows: only the last is followed by a gap.
        if (!neurons || neurons->part + 1 == neurons->to->rows.size()) {
            end = ggml::size_rounded_up(end, kLine);
        }
        add(plan.parts, w.part, layer, end - begin);
    }
    return plan;
}

pi_session_params resolve_session_params(const Config& config, pi_session_params p) {
    const auto bound = [](const char* name, int64_t value, int64_t lo, int64_t hi) {
        if (value >= lo && value <= hi) return;
        throw Error(Code::argument, format("%s must be between %lld and %lld, not %lld", name,
                                           (long long)lo, (long long)hi, (long long)value));
    };
    if (p.n_ctx == 0) p.n_ctx = int32_t(std::min<int64_t>(config.n_ctx, INT32_MAX));
    if (p.n_threads == 0) p.n_threads = ggml::default_threads();
    if (p.n_threads_batch == 0) p.n_threads_batch = p.n_threads;
    // Learned positions end with their table; rotating ones only get worse.
    bound("n_ctx", p.n_ctx, 1, config.n_rot ? INT32_MAX : config.n_ctx);
    bound("n_batch", p.n_batch, 1, 1 << 20);
    bound("n_ubatch", p.n_ubatch, 1, 1 << 20);
    bound("n_seq", p.n_seq, 1, 256);
    bound("n_threads", p.n_threads, 1, 512);
    bound("n_threads_batch", p.n_threads_batch, 1, 512);
    if (p.n_logits == 0) p.n_logits = p.n_batch;
    bound("n_logits", p.n_logits, 1, 1 << 20);
    p.n_ubatch = std::min(p.n_ubatch, p.n_batch);
    p.n_logits = std::min(p.n_logits, p.n_batch);
    bound("sparse", p.sparse, PI_SPARSE_AUTO, PI_SPARSE_PREDICTOR);
    bound("record", p.record, PI_RECORD_OFF, PI_RECORD_INPUTS);
    if (p.record && p.sparse != PI_SPARSE_OFF && p.sparse != PI_SPARSE_EXACT) {
        throw Error(Code::argument, "record needs sparse off or exact: what is masked never shows");
    }
    if (std::isinf(p.sparse_threshold)) {
        throw Error(Code::argument, "the sparse threshold must be finite");
    }
    for (uint32_t type : {p.type_k, p.type_v}) {
        const bool known = type == uint32_t(ggml::DType::F16) ||
                           type == uint32_t(ggml::DType::F32) ||
                           type == uint32_t(ggml::DType::Q8_0);
        if (!known) {
            throw Error(
                Code::argument,
                format("a KV cache of type %u is not supported; F32 (0), F16 (1) and Q8_0 (8) are",
                       type));
        }
        if (config.head_dim % ggml::info(ggml::DType(type)).block) {
            throw Error(Code::argument,
                        format("a Q8_0 KV cache needs heads of a multiple of 32, not %lld",
                               (long long)config.head_dim));
        }
    }
    if (p.type_k != p.type_v)
        throw Error(Code::argument, "keys and values of the KV cache must have one type");
    return p;
}

int64_t kept_width(const Config& config, const pi_session_params& params) {
    return params.embedding ? config.n_embd : config.n_vocab;
}

std::vector<PlanPart> session_parts(const Config& config, const pi_session_params& params) {
    std::vector<PlanPart> parts;
    const uint64_t kv = KvCache::bytes(config, params);
    // More than 64 bits are more for any share of them.
    const uint64_t layer = kv == ggml::kMostBytes ? kv : kv / uint64_t(config.n_layer);
    for (int32_t i = 0; i < config.n_layer; i++) parts.push_back({Tier::ram, Part::kv, i, layer});
    const int32_t threads = std::max(params.n_threads, params.n_threads_batch);
    const uint64_t scratch = ggml::size_sum(
        Scratch::bytes(config, params.n_ubatch, threads),
        ggml::size_product(params.n_logits, kept_width(config, params), sizeof(float)),
        Recorder::bytes(config, params), Audit::bytes(config, params));
    parts.push_back({Tier::ram, Part::scratch, -1, scratch});
    return parts;
}

Plan make_plan(const Model& model, const pi_session_params& asked) {
    const pi_session_params params = resolve_session_params(model.config, asked);
    Plan plan{model.plan.parts, model.budget->limit(), params.n_ctx};
    const std::vector<PlanPart> session = session_parts(model.config, params);
    plan.parts.insert(plan.parts.end(), session.begin(), session.end());
    return plan;
}

}  // namespace powerinfer
