#include "storage.h"

#include <algorithm>
#include <array>

#include "bundle_file.h"
#include "find_bundle.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "resident_file.h"
#include "split_pools.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr double kMiB = 1 << 20;
// Of as many proposed neurons one fires, where nothing is known about a predictor.
constexpr float kProposed = 2;
// Rows of a micro-batch that sessions get at least, and the share of the budget that more rows may
// take if the cache has no memory to lend.
constexpr int32_t kLeastRows = 16;
constexpr uint64_t kSessionShare = 48;
constexpr int kDepth = 256;  // reads in flight

uint64_t session_bytes(const Model& m, const pi_model_params& params,
                       const pi_session_params& session, bool stored) {
    const uint64_t one =
        total(session_parts(m.config, session, m.device_layers(), stored), Tier::ram);
    return ggml::size_product(uint64_t(std::max(params.n_sessions, 1)), one);
}

// What callers want to keep of results.
uint64_t rows_kept_bytes(const Model& m, const pi_model_params& params) {
    return uint64_t(std::max(params.n_rows_kept, 0)) * uint64_t(m.config.n_vocab) * sizeof(float);
}

// What the process takes besides all that is planned: code, stacks, vocabulary. Little beside a
// large model, and less beside a small one.
uint64_t process_bytes(const Model& m, uint64_t planned) {
    return m.budget->given() ? std::min<uint64_t>(32 << 20, planned / 32) : 0;
}

ggml::ReaderOptions reader_options(const StoreLayout& layout) {
    ggml::ReaderOptions options;
    options.align = uint32_t(layout.align);
    options.depth = kDepth;
    return options;
}

// use(block, layer).
template <typename F>
void for_blocks(const Model& m, const F& use) {
    for (size_t i = 0; i < m.layers.size(); i++) {
        const Layer& l = m.layers[i];
        if (l.experts.empty()) use(l.ffn, int64_t(i));
        for (const Ffn& e : l.experts) use(e, int64_t(i));
    }
}

// The neurons of a block that the device does not have, ascending: those that the store has.
std::vector<int32_t> stored_rows(const Model& m, const Ffn& f, int64_t layer) {
    std::vector<int32_t> rows;
    const bool shared = m.device && m.device->share.has(layer);
    if (shared && !m.device->share.splits(layer)) return rows;
    for (int32_t i = 0; i < int32_t(f.neurons.n); i++) {
        if (!shared || m.device->share.slot[size_t(layer)][size_t(i)] < 0) rows.push_back(i);
    }
    return rows;
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

// The slots that fit these bytes: all first parts where there is no predictor, and rests; else both
// parts of neurons, until it is known how often each is needed.
void share_out(StoreShape& shape, bool predicted, uint64_t bytes) {
    const int64_t n = shape.residency().parts();
    const int64_t sectors = int64_t(bytes / StoreShape::kSector);
    const PartBytes part{uint64_t(shape.first_sectors * StoreShape::kSector),
                         uint64_t(shape.rest_sectors * StoreShape::kSector)};
    PoolSlots slots;
    if (!predicted) slots = exact_pools(bytes, part, n);
    shape.adapts = !slots.first;
    if (shape.adapts) {
        slots.first = std::min(n, sectors / (shape.first_sectors + shape.rest_sectors));
        slots.rest = slots.first;
        shape.adapts = slots.first > 0;  // less than a neuron is no cache
    }
    shape.first_slots = slots.first;
    shape.rest_slots = slots.rest;
    shape.cache_sectors = shape.adapts
                              ? sectors
                              : slots.first * shape.first_sectors + slots.rest * shape.rest_sectors;
}

// Where the file has the predictors of experts.
std::vector<StoredPredictor> stored_predictors(const Model& m) {
    const Config& c = m.config;
    std::vector<StoredPredictor> blocks(size_t(c.n_layer * c.n_expert));
    for (const WeightSpec& w : m.weights) {
        if (!w.by_expert()) continue;
        const int64_t block = layer_of(w.name) * c.n_expert + w.row0 / w.rows;
        const auto layout = w.strips() ? ggml::Layout::strips : ggml::Layout::rows;
        blocks[size_t(block)].push_back(
            {w.file_offset(), {w.tensor->type, layout, w.rows, w.cols, nullptr}});
    }
    return blocks;
}

// Pages for predictors, with room for those of a row's experts and none in the cache.
PredictorShape predictor_pages(const Model& m) {
    PredictorShape shape;
    for (const StoredPredictor& block : stored_predictors(m)) {
        uint64_t page = 0;
        for (const StoredMatrix& matrix : block) page = ggml::size_sum(page, matrix.room());
        shape.page = std::max(shape.page, page);
    }
    if (!shape) return shape;
    shape.n_layer = int32_t(m.config.n_layer);
    shape.n_expert = int32_t(m.config.n_expert);
    shape.in_use = m.config.n_expert_used;
    return shape;
}

// Bytes of a cache of all neurons, with its tables.
uint64_t all_neurons(StoreShape shape) {
    shape.first_slots = shape.rest_slots = int64_t(shape.n_blocks) * shape.n;
    return ggml::size_sum(shape.slot_bytes(shape.first_slots, shape.rest_slots),
                          ggml::carved_bytes<NeuronStore::Tables>(shape));
}

// How many pages are kept if so much is left for them and for neurons. A page is read for each
// token that chooses its expert, but in long reads; of neurons only those that fire are read, but
// one by one. On a disk of 50,000 reads and 1 GB a second a third is within a tenth of the best
// share for most budgets, densities and popularities (docs/storage.md).
int64_t pages_to_keep(const PredictorShape& shape, uint64_t left, uint64_t neurons) {
    constexpr uint64_t kShare = 3;
    const uint64_t spare = left - std::min(left, neurons);
    // A slot's entries in the tables are far below a hundredth of it.
    const uint64_t each = shape.page + shape.page / 100 + 64;
    return std::min<int64_t>(shape.n_blocks(), int64_t(std::max(left / kShare, spare) / each));
}

std::string resident_path(const Model& m) {
    return m.file.gguf.path() + ".resident";
}

ResidentOwner owner_of(const Model& m) {
    return {std::string(m.file.gguf.string("powerinfer.bundle.source_hash", "")),
            m.storage->shape.n_blocks, int32_t(m.config.n_ff)};
}

// A list of parts with the numbers of their neurons in the file, for save_resident(), and back.
std::vector<RankedPart> numbered_in_file(const NeuronStore& store, std::vector<RankedPart> parts) {
    for (RankedPart& p : parts) p.id = store.row_of(p.block, p.id);
    return parts;
}
std::vector<RankedPart> numbered_in_store(const NeuronStore& store,
                                          const std::vector<RankedPart>& parts) {
    std::vector<RankedPart> found;
    for (RankedPart p : parts) {
        p.id = store.find_row(p.block, p.id);
        if (p.id >= 0) found.push_back(p);
    }
    return found;
}

}  // namespace

uint64_t all_in_ram(const Model& m, const pi_model_params& params) {
    const uint64_t sessions = session_bytes(m, params, kept_session(m.config, params), false);
    return ggml::size_sum(total(m.plan.parts, Tier::ram), sessions);
}

std::string keeps_to_ram(const Model& m) {
    if (!m.config.neuron_aware) return "the file has no neuron rows (ffn_down_t)";
    std::string why = "the device has all neurons";
    for_blocks(m, [&](const Ffn& f, int64_t layer) {
        if (m.device_neurons(layer) < f.neurons.n) why.clear();
    });
    int32_t file = -1;
    for_blocks(m, [&](const Ffn& f, int64_t) {
        if (!f.neurons.n) why = "some layers have no neuron rows";
        if (!f.stored) return;
        if (file >= 0 && f.stored.file != file) why = "its bundles are in several files";
        file = f.stored.file;
    });
    for (const WeightSpec& w : m.weights) {
        if (file >= 0 && w.by_expert() && w.tensor->file != file) {
            why = "its bundles and predictors are in several files";
        }
    }
    return why;
}

std::vector<PlanPart> storage_parts(const StoragePlan& plan) {
    const StoreShape& s = plan.shape;
    const uint64_t staging = uint64_t(StoreShape::kLanes * s.lanes);
    return {{Tier::ram, Part::predictor, -1, plan.predictors.bytes()},
            {Tier::ram, Part::cache, -1, s.arena_bytes() - staging},
            {Tier::ram, Part::staging, -1, staging + plan.reader},
            {Tier::ram, Part::tables, -1, plan.tables},
            {Tier::ram, Part::process, -1, plan.process}};
}

StoragePlan plan_storage(const Model& m, const pi_model_params& params) {
    StoragePlan plan;
    StoreShape& shape = plan.shape;
    StoreLayout layout;
    std::vector<int64_t> before{0};
    for_blocks(m, [&](const Ffn& f, int64_t layer) {
        layout = layout_of(f);
        const int64_t n = f.neurons.n - m.device_neurons(layer);
        shape.n_blocks++;
        shape.n = std::max(shape.n, int32_t(n));
        before.push_back(before.back() + n);
        shape.first_sectors =
            std::max(shape.first_sectors, layout.first.bytes / StoreShape::kSector);
        shape.rest_sectors = std::max(shape.rest_sectors, layout.rest.bytes / StoreShape::kSector);
    });
    if (m.device) shape.before = before;
    shape.lanes = shape.least_lane();
    plan.reader = ggml::Reader::memory(reader_options(layout));
    PredictorShape& predictors = plan.predictors = predictor_pages(m);

    const auto table_bytes = [&] { return ggml::carved_bytes<NeuronStore::Tables>(shape); };
    uint64_t fixed = total(m.plan.parts, Tier::ram);
    const uint64_t least_tables = table_bytes();
    for (uint64_t bytes : {plan.reader, uint64_t(StoreShape::kLanes * shape.lanes), least_tables,
                           predictors.bytes()}) {
        fixed = ggml::size_sum(fixed, bytes);
    }
    pi_session_params session = kept_session(m.config, params);
    const auto sessions = [&] { return session_bytes(m, params, session, true); };
    const int32_t asked = session.n_ubatch;
    session.n_ubatch = std::min(kLeastRows, asked);
    const uint64_t least_sessions = sessions();
    plan.process = process_bytes(m, ggml::size_sum(fixed, least_sessions));
    fixed = ggml::size_sum(fixed, plan.process);
    plan.least = ggml::size_sum(fixed, least_sessions);
    const uint64_t limit = std::max(plan.least, m.budget->limit());
    // Their weights are not read yet.
    plan.predicted = m.config.has_predictors &&
                     (session.sparse == PI_SPARSE_AUTO || session.sparse == PI_SPARSE_PREDICTOR);
    const uint64_t kept = rows_kept_bytes(m, params);
    // The most pages and slots that fit, with their tables, beside the sessions.
    const StoreShape none = shape;
    const auto divide = [&] {
        const uint64_t room = limit - ggml::size_sum(fixed, sessions()) + least_tables;
        uint64_t left = room - std::min(room, kept);
        predictors.slots = 0;
        if (plan.predicted && predictors) {
            const uint64_t least_pages = predictors.bytes();
            predictors.slots = pages_to_keep(predictors, left, all_neurons(none));
            left -= predictors.bytes() - least_pages;
        }
        StoreShape best = none;
        uint64_t fits = 0, too_much = left + 1;
        while (too_much - fits > StoreShape::kSector) {
            const uint64_t middle = fits + (too_much - fits) / 2;
            share_out(shape, plan.predicted, middle);
            const bool good = ggml::size_sum(middle, table_bytes()) <= left;
            (good ? fits : too_much) = middle;
            if (good) best = shape;
        }
        return best;
    };
    shape = divide();
    // Prompts borrow memory of the cache for more rows at a time. Where it is too small to lend
    // any, sessions get as many rows as take a small share of the budget.
    const uint64_t least_scratch = scratch_bytes(m.config, session, true);
    const uint64_t share = limit / kSessionShare;
    const uint64_t lendable = m.device ? 0 : shape.lendable();
    if (asked > session.n_ubatch && lendable < least_scratch + share) {
        session.n_ubatch = asked;
        const uint64_t more = ggml::size_sum(least_sessions, share);
        while (session.n_ubatch > kLeastRows &&
               (sessions() > more || ggml::size_sum(fixed, sessions()) > limit)) {
            session.n_ubatch = std::max(kLeastRows, session.n_ubatch / 2);
        }
        shape = divide();
    }
    plan.n_ubatch = session.n_ubatch;
    plan.tables = table_bytes();
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
    for_blocks(m, [&](const Ffn& f, int64_t) { all = all && f.stored; });
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

uint64_t bundle_to_write(const Model& model) {
    const std::string& path = model.file.gguf.path();
    return is_bundled(model) || !find_bundle(path).empty() ? 0 : bundled_size(path);
}

std::unique_ptr<NeuronStore> open_store(const Model& m, const pi_model_params& params,
                                        std::unique_ptr<ggml::Reader> reader) {
    std::vector<StoredNeurons> blocks;
    for_blocks(m, [&](const Ffn& f, int64_t) { blocks.push_back(f.stored); });
    const ggml::File& file = *m.file.files[size_t(blocks[0].file)];
    if (!reader) reader = ggml::open_reader(file.path(), reader_options(blocks[0].layout));
    std::unique_ptr<PredictorPages> predictors;
    if (m.storage->predictors) {
        predictors = std::make_unique<PredictorPages>(m.storage->predictors, stored_predictors(m),
                                                      reader->align());
    }
    auto store = std::make_unique<NeuronStore>(std::move(reader), m.storage->shape, blocks,
                                               std::move(predictors));
    std::vector<std::array<uint32_t, 2>> checksums(size_t(m.config.n_ff));
    std::vector<float> first(checksums.size()), rest(checksums.size());
    int32_t block = 0;
    bool profiled = false;
    for_blocks(m, [&](const Ffn& f, int64_t layer) {
        m.file.files[size_t(f.stored.crc_file)]->read(f.stored.crc_offset, checksums.data(),
                                                      checksums.size() * sizeof(checksums[0]));
        const std::vector<int32_t> rows = stored_rows(m, f, layer);
        for (size_t i = 0; i < rows.size(); i++) {
            const auto row = size_t(rows[i]);
            std::copy_n(checksums[row].data(), 2, store->checksums(block) + 2 * i);
            first[i] = first_rate(f, m.storage->predicted, rows[i]);
            rest[i] = f.rate ? f.rate[row] : 0;
        }
        if (int32_t* to = store->rows_in_file(block)) std::copy(rows.begin(), rows.end(), to);
        if (f.rate) store->residency().profile(block, first.data(), rest.data());
        profiled = profiled || f.rate;
        block++;
    });
    if (!profiled) {
        const std::vector<RankedPart> saved = load_resident(resident_path(m), owner_of(m));
        store->residency().profile(numbered_in_store(*store, saved));
    }
    store->adapt();
    store->fill([&](float fraction) {
        if (params.progress && !params.progress(fraction, params.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    });
    return store;
}

void save_store(const Model& m) {
    constexpr int64_t kEnough = 64;  // tokens that say what is needed
    bool profiled = false;
    for_blocks(m, [&](const Ffn& f, int64_t) { profiled = profiled || f.rate; });
    if (profiled || m.store->tokens() < kEnough) return;
    try {
        save_resident(resident_path(m), owner_of(m),
                      numbered_in_file(*m.store, m.store->residency().resident()));
    } catch (const std::exception&) {
        // Without it the next run begins with an empty cache.
    }
}

}  // namespace powerinfer
