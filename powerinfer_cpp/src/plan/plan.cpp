#include "plan/plan.h"

#include <algorithm>
#include <cmath>

#include "device/device_model.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "memory/device_scratch.h"
#include "memory/pooled.h"
#include "memory/sequence.h"
#include "memory/workspace.h"
#include "model/rope.h"
#include "observe/recorder.h"
#include "storage/table_rows.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr int64_t kMostCheckpoints = 64, kUsualCheckpoints = 8;

// How many checkpoints a session has that does not say: no more than a sixteenth of the budget.
int32_t usual_checkpoints(const Model& model, const StateLayout& layout) {
    if (!layout) return int32_t(kUsualCheckpoints);  // they have pages while there is room
    uint64_t room = model.budget->limit() / 16 / layout.bytes();
    // Whichever layers a device gets: their memory is split before it is known.
    if (model.device) room = std::min(room, model.device->budget->limit() / 16 / layout.bytes());
    return int32_t(std::min(uint64_t(kUsualCheckpoints), room));
}

// The most positions of a session. Learned ones end with their table, and what an indexer chooses
// from is not computed. Others work beyond the trained context, only worse.
int64_t most_positions(const Config& c) {
    return c.learned_positions() ? c.n_ctx : c.n_indexed ? c.n_indexed : INT32_MAX;
}

// What readers of tables take that always stay on the disk.
uint64_t row_reader_bytes(const Model& m) {
    uint64_t bytes = 0;
    for (const WeightSpec& w : m.weights) {
        const auto* table = std::get_if<Table>(&w.target);
        if (!table || !table->on_disk) continue;
        const int64_t row = ggml::info(w.tensor->type).size(w.cols);
        bytes = ggml::size_sum(bytes, TableRows::memory(row));
    }
    return bytes;
}

// The memory of a session, if windows keep nothing that is behind them.
uint64_t least_bytes(const Model& model, pi_session_params params) {
    params.n_kv_old = 0;
    return total(session_parts(model, params, model.device_layers(), model.stores_neurons()),
                 Tier::ram);
}

// How many positions behind windows a session keeps that does not say: those that a quarter of the
// RAM takes which is left beside the model and the sessions that it was opened for. A model that
// runs from storage has better use for it.
int64_t usual_old(const Model& model, const pi_session_params& params) {
    const std::vector<KvClass> classes = kv_classes(model.layers);
    const KvLayout layout(model.layers, classes, ggml::DType(params.type_k), 0,
                          int64_t(model.layers.size()));
    int64_t page_bytes = 0;
    for (int64_t kind = 1; kind < layout.n_kinds(); kind++) page_bytes += layout.page_bytes(kind);
    if (page_bytes == 0 || model.storage) return 0;
    const auto n = uint64_t(model.n_sessions);
    const uint64_t needed = ggml::size_sum(total(model.plan.parts, Tier::ram),
                                           ggml::size_product(n, least_bytes(model, params)));
    const uint64_t limit = model.budget->limit();
    const uint64_t left = limit > needed ? (limit - needed) / 4 / n : 0;
    return std::min(params.n_kv, int64_t(left / uint64_t(page_bytes)) * kKvPage);
}

}  // namespace

pi_session_params resolve_session_params(const Model& model, pi_session_params p) {
    const Config& config = model.config;
    const auto bound = [](const char* name, int64_t value, int64_t lo, int64_t hi) {
        if (value >= lo && value <= hi) return;
        throw Error(Code::argument, format("%s must be between %lld and %lld, not %lld", name,
                                           (long long)lo, (long long)hi, (long long)value));
    };
    const int64_t most_ctx = most_positions(config);
    if (p.n_ctx == 0) p.n_ctx = int32_t(std::min<int64_t>(config.n_ctx, most_ctx));
    bound("n_threads", p.n_threads, 0, 512);
    bound("n_threads_batch", p.n_threads_batch, 0, 512);
    if (p.n_threads_batch == 0) p.n_threads_batch = p.n_threads;
    // More threads than processors are slower: 4 threads on 2 cores decoded 25% slower than 2.
    // Results do not depend on the number.
    p.n_threads = ggml::threads_used(p.n_threads);
    p.n_threads_batch = ggml::threads_used(p.n_threads_batch);
    if (config.n_indexed && p.n_ctx > config.n_indexed) {
        throw Error(Code::unsupported,
                    format("%s: n_ctx is %d, and rows of this model see all positions up to %lld "
                           "only: from there on they would see those that its indexer chooses, "
                           "which is not supported",
                           model.file.gguf.path().c_str(), p.n_ctx, (long long)config.n_indexed));
    }
    bound("n_ctx", p.n_ctx, 1, most_ctx);
    bound("n_batch", p.n_batch, 1, 1 << 20);
    bound("n_ubatch", p.n_ubatch, 1, 1 << 20);
    bound("n_seq", p.n_seq, 1, 256);
    if (p.n_logits == 0) p.n_logits = p.n_batch;
    bound("n_logits", p.n_logits, 1, 1 << 20);
    if (config.encoder) {
        // A text is computed in one pass. What layers keep meanwhile is as exact as the rest.
        p.n_ubatch = p.n_batch = std::max(p.n_ubatch, p.n_ctx);
        p.type_k = p.type_v = uint32_t(ggml::DType::F32);
    }
    if (p.pooling) {  // a call has whole texts
        p.n_batch = std::max(p.n_batch, p.n_ctx);
        if (StateLayout(model.layers)) p.n_seq = 1;
    }
    // The texts of a call, each with a page that it does not fill.
    if ((config.encoder || p.pooling) && p.n_kv == 0) {
        p.n_kv = (p.n_batch / kKvPage + p.n_seq) * kKvPage;
    }
    bound("n_kv", p.n_kv, 0, INT64_MAX);
    const int64_t all = p.n_seq * pages_of(p.n_ctx) * kKvPage;  // no sequence has to share
    p.n_kv = p.n_kv ? std::min(p.n_kv, all) : all;
    bound("n_active", p.n_active, 0, INT32_MAX);
    p.n_active = p.n_active ? std::min(p.n_active, p.n_seq) : p.n_seq;
    bound("n_kv_old", p.n_kv_old, -1, INT64_MAX);
    p.n_kv_old = std::min(p.n_kv_old, p.n_kv);
    // A device's memory is split before it is known what is left of it.
    if (p.n_kv_old < 0 && model.device) p.n_kv_old = p.n_kv;
    bound("n_checkpoints", p.n_checkpoints, -1, kMostCheckpoints);
    const StateLayout layout(model.layers);
    const bool windows = kv_classes(model.layers).size() > 1;
    if (!layout && !windows) p.n_checkpoints = 0;
    if (p.n_checkpoints < 0) p.n_checkpoints = usual_checkpoints(model, layout);
    p.n_ubatch = std::min(p.n_ubatch, p.n_batch);
    p.n_logits = std::min(p.n_logits, p.n_batch);
    bound("sparse", p.sparse, PI_SPARSE_AUTO, PI_SPARSE_PREDICTOR);
    bound("record", p.record, PI_RECORD_OFF, PI_RECORD_SQUARES);
    bound("pooling", p.pooling, PI_POOLING_NONE, PI_POOLING_RANK);
    if (p.pooling && !p.embedding) {
        throw Error(Code::argument, "pooling needs a session with embedding");
    }
    if (p.pooling == PI_POOLING_RANK && model.ranker.empty()) {
        throw Error(Code::unsupported,
                    model.file.gguf.path() + ": the model does not rank texts (cls.output)");
    }
    check_rope(config, p);
    if (p.record == PI_RECORD_NEEDS) {
        if (!config.neuron_aware || p.n_ubatch != 1) {
            throw Error(Code::argument,
                        "recording which neurons tokens need takes a file with neuron rows "
                        "(ffn_down_t), and n_ubatch 1");
        }
    } else if (p.record && p.record != PI_RECORD_BITS && p.sparse != PI_SPARSE_OFF &&
               p.sparse != PI_SPARSE_EXACT) {
        throw Error(Code::argument,
                    "record needs sparse off or exact: masked neurons are not computed");
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
        for (const Layer& layer : model.layers) {
            const auto* a = layer.find<Attention>();
            if (!a) continue;
            for (int64_t width : {a->head_dim, a->v_head_dim}) {
                if (width % ggml::info(ggml::DType(type)).block == 0) continue;
                throw Error(Code::argument,
                            format("a Q8_0 KV cache needs heads of a multiple of 32, not %lld",
                                   (long long)width));
            }
        }
    }
    if (p.type_k != p.type_v)
        throw Error(Code::argument, "keys and values of the KV cache must have one type");
    return p;
}

pi_session_params kept_session(const Model& model, const pi_model_params& params) {
    if (params.session) return resolve_session_params(model, *params.session);
    pi_session_params session = pi_session_default_params();
    session.n_ctx = int32_t(std::min<int64_t>(session.n_ctx, most_positions(model.config)));
    return resolve_session_params(model, session);
}

pi_session_params session_params_for(const Model& model, const pi_session_params& asked) {
    pi_session_params params = resolve_session_params(model, asked);
    const bool whole = model.storage && model.storage->experts && !model.storage->experts.in_order;
    if (whole && !model.device) {
        // An expert is read once for all rows that are computed at once.
        params.n_ubatch = std::min(params.n_batch, model.storage->n_ubatch);
    } else if (model.storage) {
        params.n_ubatch = std::min(params.n_ubatch, model.storage->n_ubatch);
    }
    if (params.n_kv_old < 0) params.n_kv_old = usual_old(model, params);
    return params;
}

int64_t kept_width(const Config& config, const pi_session_params& params) {
    return params.embedding ? config.n_embd : config.n_vocab;
}

int64_t kept_rows(const pi_session_params& params) {
    return params.pooling ? params.n_ubatch : params.n_logits;
}

uint64_t scratch_bytes(const Model& m, const pi_session_params& p, bool stored) {
    return ggml::carved_bytes<Workspace>(m, p, std::max(p.n_threads, p.n_threads_batch), stored);
}

std::vector<PlanPart> session_parts(const Model& m, const pi_session_params& p, int64_t n_device,
                                    bool stored) {
    const int64_t n_ram = int64_t(m.layers.size()) - n_device;
    ggml::Carver results;
    float* room;
    results.take(room, {kept_rows(p), kept_width(m.config, p)});
    if (p.pooling) PooledTexts(results, m, p);
    pi_session_params without = p;
    without.n_kv_old = 0;
    const uint64_t kv = ggml::carved_bytes<Sequences>(m.layers, without, n_ram);
    const uint64_t kv_old = ggml::carved_bytes<Sequences>(m.layers, p, n_ram) - kv;
    std::vector<PlanPart> parts{{Tier::ram, Part::kv, -1, kv},
                                {Tier::ram, Part::scratch, -1, scratch_bytes(m, p, stored)},
                                {Tier::ram, Part::results, -1, results.bytes()}};
    if (kv_old) parts.push_back({Tier::ram, Part::kv_old, -1, kv_old});
    if (const uint64_t rows = row_reader_bytes(m)) {
        parts.push_back({Tier::ram, Part::staging, -1, rows});
    }
    const int64_t end = m.config.n_layer, begin = end - n_device;
    const uint64_t states = ggml::carved_bytes<States>(m.layers, p, begin, end);
    if (states) parts.push_back({Tier::ram, Part::states, -1, states});
    if (p.record)
        parts.push_back({Tier::ram, Part::record, -1, ggml::carved_bytes<Recorder>(m, p)});
    if (n_device) {
        parts.push_back(
            {Tier::ram, Part::exchange, -1, ggml::carved_bytes<DeviceShared>(m, p, n_device)});
        parts.push_back({Tier::gpu, Part::kv, -1,
                         device_array_bytes(device_kv_layout(m, p, n_device).bytes())});
        parts.push_back({Tier::gpu, Part::scratch, -1,
                         device_array_bytes(device_scratch_bytes(m, p, n_device))});
        const uint64_t there = ggml::carved_bytes<StateSlots>(device_state_layout(m, n_device), p);
        if (there) parts.push_back({Tier::gpu, Part::states, -1, device_array_bytes(there)});
    }
    return parts;
}

uint64_t sessions_bytes(const Model& model, const pi_model_params& params,
                        const pi_session_params& session, int64_t n_device, bool stored,
                        Tier tier) {
    const auto bytes = [&](const pi_session_params& one) {
        return total(session_parts(model, one, n_device, stored), tier);
    };
    const uint64_t alike =
        ggml::size_product(uint64_t(std::max(params.n_sessions, 1)), bytes(session));
    if (!params.beside) return alike;
    pi_session_params other = resolve_session_params(model, *params.beside);
    other.n_ubatch = std::min(other.n_ubatch, session.n_ubatch);
    return ggml::size_sum(alike, bytes(other));
}

Plan make_plan(const Model& model, const pi_session_params& asked) {
    const pi_session_params params = session_params_for(model, asked);
    Plan plan;
    plan.parts = model.plan.parts;
    plan.budget = model.budget->limit();
    plan.n_ctx = params.n_ctx;
    plan.n_layer = model.config.n_layer;
    plan.device_layers = model.device_layers();
    plan.left = model.left_to_cpu;
    if (model.device) {
        plan.device_head = model.device->split.head;
        plan.left = model.device->split.left;
        plan.vram_budget = model.device->budget->limit();
        plan.device_experts = model.device->frames.card.frames();
    }
    plan.experts = model.n_experts();
    const std::vector<PlanPart> session =
        session_parts(model, params, model.device_layers(), model.stores_neurons());
    plan.parts.insert(plan.parts.end(), session.begin(), session.end());
    if (model.storage && model.storage->experts) {
        plan.cached = model.storage->experts.cached();
        plan.stored = model.storage->experts.missing();
    } else if (model.storage) {
        const StoreShape& shape = model.storage->shape;
        plan.cached = shape.slot_bytes(shape.gate_slots, shape.up_down_slots);
        const int64_t all = shape.residency().parts();
        plan.stored = shape.slot_bytes(all, all) - plan.cached;
    }
    if (model.storage) {
        plan.read_seconds = model.storage->read_seconds;
        plan.hits = model.storage->hits;
        plan.token_seconds = model.storage->token_seconds;
        plan.twice = model.storage->twice;
    }
    return plan;
}

}  // namespace powerinfer
