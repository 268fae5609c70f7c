#include "plan/storage_plan.h"

#include <algorithm>
#include <limits>

#include "ggml/sizes.h"
#include "ggml/status.h"
#include "plan/expected_uses.h"
#include "plan/stored_blocks.h"
#include "storage/cache/split_pools.h"
#include "storage/neurons/store.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr double kMiB = 1 << 20;
// The share of the budget that more rows may take if the cache has no memory to lend.
constexpr uint64_t kSessionShare = 48;

uint64_t session_bytes(const Model& m, const pi_model_params& params,
                       const pi_session_params& session, bool stored) {
    return sessions_bytes(m, params, session, m.device_layers(), stored, Tier::ram);
}

// A block's layout in its bundled file, or in the one that is to be written.
StoreLayout layout_of(const Ffn& f) {
    if (f.stored) return f.stored.layout;
    std::vector<ggml::DType> types = f.gates.layout.parts;
    types.insert(types.end(), f.bundle.layout.parts.begin(), f.bundle.layout.parts.end());
    return StoreLayout::of(types, f.bundle.layout.cols, kStoreAlign);
}

// What reading is expected to take, and for which slots and pages of predictors (shape of the
// cache).
class Division {
 public:
    Division(const Model& m, int32_t sparse, bool predicted, const StoreShape& none,
             const PageShape& pages);
    // Divides so much memory for a cache with its tables, and for pages, so that a token reads for
    // the least time. More memory never makes it more.
    void divide(uint64_t left, StoreShape& shape, PageShape& pages, double& seconds) const;
    // Does a cache with so much memory lend so many bytes?
    bool lends(uint64_t left, uint64_t bytes) const;

 private:
    PoolSlots slots_in(uint64_t left, StoreShape& shape) const;

    StoreShape none_;
    CacheSteps steps_;
    // Of a page that is read, by the share of tokens that need it: sums over the pages in falling
    // order, from none to all.
    std::vector<double> page_seconds_;
};

// Pages for predictors, with room for those of a row's experts and none in the cache.
PageShape predictor_pages(const Model& m) {
    PageShape shape;
    for (const FeedForward* part : m.ffns) {
        shape.before.push_back(part->first_block);
        shape.landings = std::max(shape.landings, int64_t(part->n_used));
    }
    shape.before.push_back(m.n_blocks());
    shape.in_use = 1;
    set_classes(shape, stored_predictors(m), 1);
    return shape;
}

Division::Division(const Model& m, int32_t sparse, bool predicted, const StoreShape& none,
                   const PageShape& pages)
    : none_(none),
      steps_({uint64_t(none.gate_sectors * StoreShape::kSector),
              uint64_t(none.up_down_sectors * StoreShape::kSector)},
             kDisk) {
    constexpr int64_t kEntries = 1 << 16;  // neurons that stand for all
    const ExpectedUses expected(m, sparse, predicted);
    const int64_t parts = std::max<int64_t>(1, none.residency().parts());
    const int64_t step = (parts + kEntries - 1) / kEntries;
    double gate = 0, up_down = 0, chosen = 0;
    std::vector<double> of_pages;
    for_blocks(m, [&](const Ffn& f, const FeedForward& part) {
        const std::vector<int32_t> rows = stored_rows(m, f, part);
        if (rows.empty()) return;
        std::vector<int32_t> some;
        for (size_t i = size_t(step / 2) % rows.size(); i < rows.size(); i += size_t(step)) {
            some.push_back(rows[i]);
        }
        const BlockUses uses = expected.of(part, f, some);
        const double each = double(rows.size()) / double(some.size());
        steps_.add(uses.gate.data(), uses.up_down.data(), int64_t(some.size()), each, uses.chosen);
        for (size_t i = 0; i < some.size(); i++) {
            gate += double(uses.gate[i]) * each;
            up_down += double(uses.up_down[i]) * each;
        }
        chosen += uses.chosen * double(rows.size());
        if (pages && predicted && pages.class_of[size_t(part.index)] >= 0) {
            of_pages.push_back(uses.chosen * kDisk.joined(double(pages.classes[0].page)));
        }
    });
    steps_.sort();
    none_.gate_rate = float(gate / double(parts));
    none_.up_down_rate = float(up_down / double(parts));
    none_.chosen = float(chosen / double(parts));
    std::sort(of_pages.begin(), of_pages.end());
    page_seconds_.assign(1, 0);
    for (double s : of_pages) page_seconds_.push_back(page_seconds_.back() + s);
    std::reverse(page_seconds_.begin(), page_seconds_.end());
}

// The largest cache that fits with its tables.
PoolSlots Division::slots_in(uint64_t left, StoreShape& shape) const {
    const int64_t parts = none_.residency().parts();
    const auto fits = [&](const StoreShape& s) {
        const uint64_t slots = uint64_t(s.cache_sectors) * StoreShape::kSector;
        return ggml::size_sum(slots, ggml::carved_bytes<NeuronStore::Tables>(s)) <= left;
    };
    // All neurons, which have slots for ever; or those that `sectors` take.
    const auto shaped = [&](int64_t sectors, const PoolSlots& slots) {
        StoreShape s = none_;
        s.gate_slots = std::min(slots.gate, parts),
        s.up_down_slots = std::min(slots.up_down, parts);
        s.adapts = s.gate_slots + s.up_down_slots > 0 && s.gate_slots + s.up_down_slots < 2 * parts;
        const int64_t taken = s.gate_slots * s.gate_sectors + s.up_down_slots * s.up_down_sectors;
        s.cache_sectors = s.adapts ? sectors : taken;
        return s;
    };
    shape = shaped(0, {parts, parts});
    if (fits(shape)) return {parts, parts};
    const int64_t all = shape.cache_sectors;
    int64_t good = 0, bad = std::min(all, int64_t(left / StoreShape::kSector) + 1);
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        const PoolSlots slots = steps_.split(uint64_t(middle) * StoreShape::kSector);
        (fits(shaped(middle, slots)) ? good : bad) = middle;
    }
    const PoolSlots slots = steps_.split(uint64_t(good) * StoreShape::kSector);
    shape = shaped(good, slots);
    return slots;
}

bool Division::lends(uint64_t left, uint64_t bytes) const {
    StoreShape most = none_;
    most.adapts = true;
    most.cache_sectors = int64_t(left / StoreShape::kSector);
    const uint64_t tables = ggml::carved_bytes<NeuronStore::Tables>(most);
    most.cache_sectors -= std::min(most.cache_sectors, int64_t(tables / StoreShape::kSector));
    return most.lendable() >= bytes;
}

void Division::divide(uint64_t left, StoreShape& shape, PageShape& pages, double& seconds) const {
    // Numbers of pages that do not depend on the memory: what is possible with less is with more.
    constexpr int64_t kTried = 64;
    const auto n_pages = int64_t(page_seconds_.size()) - 1;
    const int64_t step = std::max<int64_t>(1, (n_pages + kTried - 1) / kTried);
    PageShape tried = pages;
    tried.set_share(0);
    const uint64_t none = tried.bytes();
    const uint64_t least_tables = ggml::carved_bytes<NeuronStore::Tables>(none_);
    seconds = std::numeric_limits<double>::infinity();
    for (int64_t n = 0;; n = std::min(n + step, n_pages)) {
        if (n) tried.classes[0].slots = n;
        const uint64_t more = tried.bytes() - none;
        if (n && ggml::size_sum(more, least_tables) > left) break;
        StoreShape found;
        const double takes = slots_in(left - more, found).seconds + page_seconds_[size_t(n)];
        if (takes < seconds) {
            seconds = takes;
            shape = found;
            pages = tried;
        }
        if (n == n_pages) break;
    }
}

}  // namespace

uint64_t rows_kept_bytes(const Model& m, const pi_model_params& params) {
    return uint64_t(std::max(params.n_rows_kept, 0)) * uint64_t(m.config.n_vocab) * sizeof(float);
}

// Little beside a large model, and less beside a small one.
uint64_t process_bytes(const Model& m, uint64_t planned) {
    return m.budget->given() ? std::min<uint64_t>(32 << 20, planned / 32) : 0;
}

uint64_t all_in_ram(const Model& m, const pi_model_params& params) {
    const uint64_t sessions = session_bytes(m, params, kept_session(m, params), false);
    return ggml::size_sum(total(m.plan.parts, Tier::ram), sessions);
}

std::string keeps_to_ram(const Model& m) {
    if (!m.config.neuron_aware) return "the file has no neuron rows (ffn_down_t)";
    std::string why = "the device has all neurons";
    for_blocks(m, [&](const Ffn& f, const FeedForward& part) {
        if (!stored_rows(m, f, part).empty()) why.clear();
    });
    int32_t file = -1;
    for_blocks(m, [&](const Ffn& f, const FeedForward&) {
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
    if (plan.experts) {
        return {{Tier::ram, Part::cache, -1, plan.experts.bytes()},
                {Tier::ram, Part::staging, -1, plan.reader},
                {Tier::ram, Part::process, -1, plan.process}};
    }
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
    bool equal = true;  // blocks
    for_blocks(m, [&](const Ffn& f, const FeedForward& part) {
        // Of matrices, which stay in memory, there are none.
        const auto n = f.neurons.n ? int64_t(stored_rows(m, f, part).size()) : 0;
        equal = equal && (shape.n_blocks == 0 || n == shape.n);
        shape.n_blocks++;
        shape.n = std::max(shape.n, int32_t(n));
        before.push_back(before.back() + n);
        if (!f.neurons.n) return;
        layout = layout_of(f);
        shape.gate_sectors =
            std::max(shape.gate_sectors, layout.gate_range.bytes / StoreShape::kSector);
        shape.up_down_sectors =
            std::max(shape.up_down_sectors, layout.up_down_range.bytes / StoreShape::kSector);
    });
    if (m.device || !equal) shape.before = before;
    shape.lanes = shape.least_lane();
    plan.reader = ggml::Reader::memory(reader_options(layout));
    PageShape& predictors = plan.predictors = predictor_pages(m);

    const auto table_bytes = [&] { return ggml::carved_bytes<NeuronStore::Tables>(shape); };
    uint64_t fixed = total(m.plan.parts, Tier::ram);
    const uint64_t least_tables = table_bytes();
    for (uint64_t bytes : {plan.reader, uint64_t(StoreShape::kLanes * shape.lanes), least_tables,
                           predictors.bytes()}) {
        fixed = ggml::size_sum(fixed, bytes);
    }
    pi_session_params session = kept_session(m, params);
    const auto sessions = [&] { return session_bytes(m, params, session, true); };
    const int32_t asked = session.n_ubatch;
    session.n_ubatch = std::min(kLeastRows, asked);
    const uint64_t least_sessions = sessions();
    plan.process = process_bytes(m, ggml::size_sum(fixed, least_sessions));
    fixed = ggml::size_sum(fixed, plan.process);
    plan.least = ggml::size_sum(fixed, least_sessions);
    const uint64_t limit = std::max(plan.least, m.budget->limit());
    // Their weights are not read yet.
    plan.sparse = session.sparse;
    plan.predicted = m.config.has_predictors &&
                     (session.sparse == PI_SPARSE_AUTO || session.sparse == PI_SPARSE_PREDICTOR);
    const uint64_t kept = rows_kept_bytes(m, params);
    // What the cache may take, with its tables, beside sessions of so many rows at a time.
    const StoreShape none = shape;
    const Division division(m, session.sparse, plan.predicted, none, predictors);
    const auto divide = [&](uint64_t within) {
        const uint64_t room = within - ggml::size_sum(fixed, sessions()) + least_tables;
        division.divide(room - std::min(room, kept), shape, predictors, plan.read_seconds);
    };
    divide(limit);
    // Prompts borrow memory of the cache for more rows at a time. Sessions get more rows where that
    // costs no read, because the cache is complete; or where it is too small to lend any: those
    // that take a small share of the budget.
    const auto fewer = [](int32_t rows) { return std::max(kLeastRows, rows / 2); };
    const int32_t least_rows = session.n_ubatch;
    const uint64_t beyond = limit - plan.least;
    if (beyond > 0 && plan.read_seconds == 0) {
        for (session.n_ubatch = asked; session.n_ubatch > least_rows;
             session.n_ubatch = fewer(session.n_ubatch)) {
            if (ggml::size_sum(fixed, sessions()) > limit) continue;
            divide(limit);
            if (plan.read_seconds == 0) break;
        }
        divide(limit);
    } else if (m.device ||
               !division.lends(beyond, scratch_bytes(m, session, true) + limit / kSessionShare)) {
        // From which budget on so many rows are worth their memory. Below that the cache takes no
        // more than it can have there: so it never gets smaller.
        uint64_t within = limit;
        for (session.n_ubatch = asked; session.n_ubatch > least_rows;
             session.n_ubatch = fewer(session.n_ubatch)) {
            const uint64_t more = sessions() - least_sessions;
            const uint64_t from =
                ggml::size_sum(plan.least, ggml::size_product(kSessionShare, more));
            if (from <= limit) break;
            within = std::min(within, from - more);
        }
        within = std::min(limit, ggml::size_sum(within, sessions() - least_sessions));
        divide(within);
    }
    plan.n_ubatch = session.n_ubatch;
    plan.tables = table_bytes();
    return plan;
}

void require_least(const Model& m) {
    const uint64_t least = m.storage->least, limit = m.budget->limit();
    if (least <= limit) return;
    throw Error(Code::memory,
                format("%s: with the %s on the disk it needs at least %llu bytes (%.1f MiB) "
                       "of RAM, and %.1f MiB may be used",
                       m.file.gguf.path().c_str(),
                       !m.storage->experts           ? "neurons"
                       : m.storage->experts.in_order ? "blocks"
                                                     : "experts",
                       (unsigned long long)least, double(least) / kMiB, double(limit) / kMiB));
}

}  // namespace powerinfer
