#include "storage.h"

#include <algorithm>

#include "audit.h"
#include "bundle_file.h"
#include "find_bundle.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "split_pools.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr double kMiB = 1 << 20;
// A disk until it is measured: the random reads of an NVMe disk behind virtio.
constexpr DiskCost kDisk{0, 12.5e-6, 0.98e-9};
// Of as many proposed neurons one fires, where nothing is known about a predictor.
constexpr float kProposed = 2;
// Rows of a micro-batch that sessions get at least, and the share of the budget that more may take.
constexpr int32_t kLeastRows = 16;
constexpr uint64_t kSessionShare = 24;
constexpr int kDepth = 256;  // reads in flight

pi_session_params session_of(const Model& m, const pi_model_params& params) {
    if (params.session) return resolve_session_params(m.config, *params.session);
    pi_session_params session = pi_session_default_params();
    // Learned positions may be fewer.
    if (m.config.n_rot == 0)
        session.n_ctx = int32_t(std::min<int64_t>(session.n_ctx, m.config.n_ctx));
    return resolve_session_params(m.config, session);
}

uint64_t session_bytes(const Model& m, const pi_model_params& params,
                       const pi_session_params& session, bool stored) {
    const uint64_t one =
        total(session_parts(m.config, session, m.device_layers(), stored), Tier::ram);
    return ggml::size_product(uint64_t(std::max(params.n_sessions, 1)), one);
}

// What the process takes besides all that is planned: code, stacks, vocabulary.
constexpr uint64_t kProcess = 32 << 20, kProcessShare = 32;

uint64_t process_bytes(const Model& m, uint64_t budget) {
    return m.budget->given() ? std::min(kProcess, budget / kProcessShare) : 0;
}

// The least budget that has so many bytes beside what the process takes of it.
uint64_t with_process(const Model& m, uint64_t bytes) {
    if (!m.budget->given()) return bytes;
    return ggml::size_sum(bytes, std::min(kProcess, (bytes - 1) / (kProcessShare - 1)));
}

ggml::ReaderOptions reader_options(const StoreLayout& layout) {
    ggml::ReaderOptions options;
    options.align = uint32_t(layout.align);
    options.depth = kDepth;
    return options;
}

template <typename F>
void for_blocks(const Model& m, const F& use) {
    for (const Layer& l : m.layers) {
        if (l.experts.empty()) use(l.ffn);
        for (const Ffn& e : l.experts) use(e);
    }
}

// A block's layout in its bundled file, or in the one that is to be written.
StoreLayout layout_of(const Ffn& f) {
    if (f.stored) return f.stored.layout;
    std::vector<ggml::DType> types = f.gates.layout.parts;
    types.insert(types.end(), f.bundle.layout.parts.begin(), f.bundle.layout.parts.end());
    return StoreLayout::of(types, f.bundle.layout.cols, kStoreAlign);
}

float first_rate(const Ffn& f, bool predicted, int64_t i) {
    if (!predicted) return 1;
    return f.rate ? std::min(1.0f, kProposed * f.rate[i]) : 0;
}

// The slots that fit these bytes.
PoolSlots slots_in(const StoreShape& shape, bool predicted, uint64_t bytes) {
    const int64_t n = int64_t(shape.n_blocks) * shape.n;
    const PartBytes part{uint64_t(shape.first_sectors * StoreShape::kSector),
                         uint64_t(shape.rest_sectors * StoreShape::kSector)};
    if (!predicted) {
        const PoolSlots exact = exact_pools(bytes, part, n);
        if (exact.first) return exact;
    }
    // The profile's rates are weights, which are not read yet.
    return split_pools(bytes, part, predicted ? 0.2 : 1.0, 0.1, n, kDisk);
}

}  // namespace

uint64_t all_in_ram(const Model& m, const pi_model_params& params) {
    const uint64_t sessions = session_bytes(m, params, session_of(m, params), false);
    return ggml::size_sum(total(m.plan.parts, Tier::ram), sessions);
}

std::string keeps_to_ram(const Model& m) {
    if (!m.config.neuron_aware) return "the file has no neuron rows (ffn_down_t)";
    if (m.device) return "this version does not combine a device with storage";
    std::string why;
    int32_t file = -1;
    for_blocks(m, [&](const Ffn& f) {
        if (!f.neurons.n) why = "some layers have no neuron rows";
        if (!f.stored) return;
        if (file >= 0 && f.stored.file != file) why = "its bundles are in several files";
        file = f.stored.file;
    });
    return why;
}

std::vector<PlanPart> storage_parts(const StoragePlan& plan) {
    const StoreShape& s = plan.shape;
    const uint64_t staging = uint64_t(StoreShape::kLanes * s.lanes);
    return {{Tier::ram, Part::cache, -1, s.arena_bytes() - staging},
            {Tier::ram, Part::staging, -1, staging + plan.reader},
            {Tier::ram, Part::tables, -1, plan.tables},
            {Tier::ram, Part::process, -1, plan.process}};
}

StoragePlan plan_storage(const Model& m, const pi_model_params& params) {
    StoragePlan plan;
    StoreShape& shape = plan.shape;
    StoreLayout layout;
    for_blocks(m, [&](const Ffn& f) {
        layout = layout_of(f);
        shape.n_blocks++;
        shape.n = int32_t(f.neurons.n);
        shape.first_sectors =
            std::max(shape.first_sectors, layout.first.bytes / StoreShape::kSector);
        shape.rest_sectors = std::max(shape.rest_sectors, layout.rest.bytes / StoreShape::kSector);
    });
    shape.lanes = shape.least_lane();
    plan.reader = ggml::Reader::memory(reader_options(layout));

    const int64_t all = int64_t(shape.n_blocks) * shape.n;
    const auto tables = [&](int64_t first, int64_t rest) {
        StoreShape of = shape;
        of.first_slots = first;
        of.rest_slots = rest;
        return ggml::carved_bytes<NeuronStore::Tables>(of);
    };
    uint64_t fixed = total(m.plan.parts, Tier::ram);
    for (uint64_t bytes : {plan.reader, uint64_t(StoreShape::kLanes * shape.lanes), tables(0, 0)}) {
        fixed = ggml::size_sum(fixed, bytes);
    }
    pi_session_params session = session_of(m, params);
    const auto sessions = [&] { return session_bytes(m, params, session, true); };
    const int32_t asked = session.n_ubatch;
    session.n_ubatch = std::min(kLeastRows, asked);
    plan.least = with_process(m, ggml::size_sum(fixed, sessions()));
    const uint64_t limit = std::max(plan.least, m.budget->limit());
    plan.process = process_bytes(m, limit);
    fixed = ggml::size_sum(fixed, plan.process);
    // Sessions with as many rows at a time as take a small share of the budget.
    session.n_ubatch = asked;
    while (session.n_ubatch > kLeastRows &&
           (sessions() > limit / kSessionShare || ggml::size_sum(fixed, sessions()) > limit)) {
        session.n_ubatch = std::max(kLeastRows, session.n_ubatch / 2);
    }
    plan.n_ubatch = session.n_ubatch;
    plan.predicted = is_predicted(m, session.sparse);
    // The tables depend on the slots that fit beside them.
    const uint64_t left = limit - ggml::size_sum(fixed, sessions()) + tables(0, 0);
    const auto try_with = [&](uint64_t table_bytes) {
        if (left <= table_bytes) return;
        const PoolSlots slots = slots_in(shape, plan.predicted, left - table_bytes);
        if (tables(slots.first, slots.rest) > table_bytes) return;
        shape.first_slots = slots.first;
        shape.rest_slots = slots.rest;
    };
    try_with(tables(all - 1, all - 1));
    try_with(tables(shape.first_slots, shape.rest_slots));
    plan.tables = tables(shape.first_slots, shape.rest_slots);
    return plan;
}

void require_least(const Model& m) {
    const uint64_t least = m.storage->least, limit = m.budget->limit();
    if (least <= limit) return;
    throw Error(Code::memory,
                format("%s: with the neurons on the disk it needs at least %llu bytes (%.1f MiB) "
                       "of RAM, and %.1f MiB may be used",
                       m.file.gguf.path().c_str(), (unsigned long long)least, double(least) / kMiB,
                       double(limit) / kMiB));
}

bool is_bundled(const Model& m) {
    bool all = true;
    for_blocks(m, [&](const Ffn& f) { all = all && f.stored; });
    return all;
}

std::string bundle_of(const std::string& path, const pi_model_params& params) {
    const std::string found = find_bundle(path);
    if (!found.empty()) return found;
    if (!params.bundle) {
        throw Error(Code::memory,
                    path +
                        ": the model does not fit the RAM that may be used, and its bundled file, "
                        "from which it would run, may not be written");
    }
    const std::string target = bundle_target(path);
    pi_bundle_params how = pi_bundle_default_params();
    how.progress = params.progress;
    how.progress_data = params.progress_data;
    how.log = params.log;
    how.log_data = params.log_data;
    write_bundled(path, target, how);
    return target;
}

std::unique_ptr<NeuronStore> open_store(const Model& m, const pi_model_params& params,
                                        std::unique_ptr<ggml::Reader> reader) {
    std::vector<StoredNeurons> blocks;
    for_blocks(m, [&](const Ffn& f) { blocks.push_back(f.stored); });
    const ggml::File& file = *m.file.files[size_t(blocks[0].file)];
    if (!reader) reader = ggml::open_reader(file.path(), reader_options(blocks[0].layout));
    auto store = std::make_unique<NeuronStore>(std::move(reader), m.storage->shape, blocks);
    const int64_t n = m.storage->shape.n;
    std::vector<float> first(static_cast<size_t>(n));
    int32_t block = 0;
    for_blocks(m, [&](const Ffn& f) {
        m.file.files[size_t(f.stored.crc_file)]->read(f.stored.crc_offset, store->checksums(block),
                                                      size_t(n) * 2 * sizeof(uint32_t));
        for (int64_t i = 0; i < n; i++) {
            first[size_t(i)] = first_rate(f, m.storage->predicted, i);
        }
        if (f.rate) store->residency().profile(block, first.data(), f.rate);
        block++;
    });
    store->fill([&](float fraction) {
        if (params.progress && !params.progress(fraction, params.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    });
    return store;
}

}  // namespace powerinfer
