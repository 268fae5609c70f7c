#include "plan/expert_plan.h"

#include <algorithm>

#include "ggml/reader.h"
#include "ggml/sizes.h"
#include "plan/expected_hits.h"
#include "plan/storage_plan.h"
#include "plan/stored_blocks.h"
#include "storage/split_pools.h"

namespace powerinfer {

namespace {

constexpr uint64_t kRowsShare = 16;  // of the budget: what more rows of a chunk may take
constexpr int kShares = 1 << 16;     // steps of the share of experts that memory has

// Frames for experts that are computed with or packed before they are needed.
constexpr int64_t kInUse = 4;
// Sizes of experts: two in files where half of the layers have a larger down matrix.
constexpr int kClasses = 4;

// Blocks that are used in order: one is packed, and another one is on its way. Their reads are so
// long that a reader takes them all at once, since nobody sends more while a layer is computed.
constexpr int64_t kLandings = 2;
constexpr uint64_t kReads = 16, kReadUnit = 4096;
static_assert(kLandings * (kReads + 3) < kPageReads);

bool on_disk(const WeightSpec& w) {
    return w.location.memory == Location::Memory::disk && w.block >= 0;
}

// Landings for the experts of two rows: while those of one are computed, others are on their way.
PageShape pages_of(const Model& m, const std::vector<StoredPage>& experts) {
    PageShape shape;
    shape.in_order = std::none_of(m.weights.begin(), m.weights.end(),
                                  [](const WeightSpec& w) { return on_disk(w) && w.chosen; });
    for (const FeedForward* part : m.ffns) {
        shape.before.push_back(part->first_block);
        shape.landings = std::max(shape.landings, int64_t(2 * part->n_used));
    }
    shape.before.push_back(m.n_blocks());
    shape.in_use = kInUse;
    set_classes(shape, experts, kClasses);
    if (shape.in_order) {
        shape.in_use = 1;
        shape.landings = kLandings;
        shape.read = std::max(shape.read, ggml::size_rounded_up(shape.landing / kReads, kReadUnit));
    }
    return shape;
}

// The largest share of the experts for which this holds; 0 if it holds for none.
template <typename F>
double largest_share(const F& holds) {
    int good = 0, bad = kShares + 1;
    while (bad - good > 1) {
        const int middle = (good + bad) / 2;
        (holds(double(middle) / kShares) ? good : bad) = middle;
    }
    return double(good) / kShares;
}

// Room for so many blocks that are used in order as fit beside `fixed` bytes.
void fill_in_order(PageShape& shape, uint64_t fixed, uint64_t limit) {
    shape.set_share(0);
    for (int32_t block : shape.spread()) {
        const int32_t of_class = shape.class_of[size_t(shape.part_of(block))];
        int64_t& slots = shape.classes[size_t(of_class)].slots;
        slots++;
        if (ggml::size_sum(fixed, shape.bytes()) <= limit) continue;
        slots--;
        break;
    }
}

// What kDisk needs for the others.
double read_seconds_in_order(const PageShape& shape) {
    double seconds = 0;
    for (size_t i = 0; i < shape.classes.size(); i++) {
        const PageShape::Class& c = shape.classes[i];
        seconds += double(shape.blocks_of(int32_t(i)) - c.slots) * kDisk.joined(double(c.page));
    }
    return seconds;
}

}  // namespace

std::string keeps_experts(const Model& m) {
    if (m.device) return "a device has some layers";
    const bool any = std::any_of(m.weights.begin(), m.weights.end(),
                                 [](const WeightSpec& w) { return w.chosen; });
    return any ? "" : "the file has no experts";
}

std::string keeps_blocks(const Model& m) {
    if (m.device) return "a device has some layers; it needs device cpu";
    const bool any = std::any_of(m.weights.begin(), m.weights.end(),
                                 [](const WeightSpec& w) { return w.block >= 0; });
    return any ? "" : "the file has no feed-forward matrices";
}

std::vector<StoredPage> stored_experts(const Model& m, std::vector<int32_t>& files) {
    std::vector<StoredPage> experts(size_t(m.n_blocks()));
    for (const WeightSpec& w : m.weights) {
        if (!on_disk(w)) continue;
        auto file = std::find(files.begin(), files.end(), w.tensor->file);
        if (file == files.end()) file = files.insert(files.end(), w.tensor->file);
        const int64_t block = m.only_ffn(layer_of(w.name)).first_block + w.block;
        const auto layout = w.strips() ? ggml::Layout::strips : ggml::Layout::rows;
        experts[size_t(block)].push_back({int32_t(file - files.begin()),
                                          w.file_offset(),
                                          {w.tensor->type, layout, w.rows, w.cols, nullptr}});
    }
    return experts;
}

StoragePlan plan_experts(const Model& m, const pi_model_params& asked) {
    StoragePlan plan;
    std::vector<int32_t> files;
    PageShape& shape = plan.experts = pages_of(m, stored_experts(m, files));
    // Sessions of mixtures compute whole batches at once if memory allows: see
    // session_params_for().
    pi_model_params params = asked;
    pi_session_params beside = asked.beside ? *asked.beside : pi_session_default_params();
    if (!shape.in_order) beside.n_ubatch = beside.n_batch;
    if (asked.beside) params.beside = &beside;
    plan.reader =
        ggml::size_product(uint64_t(files.size()), ggml::Reader::memory(expert_reader_options()));
    pi_session_params session = kept_session(m, params);
    const auto sessions = [&] { return sessions_bytes(m, params, session, 0, false, Tier::ram); };
    const int32_t most = shape.in_order ? session.n_ubatch : session.n_batch;
    session.n_ubatch = std::min(kLeastRows, most);
    uint64_t fixed = ggml::size_sum(total(m.plan.parts, Tier::ram), plan.reader);
    fixed = ggml::size_sum(fixed, rows_kept_bytes(m, params));
    const uint64_t least = ggml::size_sum(ggml::size_sum(fixed, shape.bytes()), sessions());
    plan.process = process_bytes(m, least);
    fixed = ggml::size_sum(fixed, plan.process);
    plan.least = ggml::size_sum(least, plan.process);
    const uint64_t limit = std::max(plan.least, m.budget->limit());
    plan.sparse = session.sparse;
    if (shape.in_order) {
        // Rows have what is left by the blocks that fit beside their share, and other blocks what
        // is left by all the rows that were asked for. So more memory is never fewer blocks.
        fill_in_order(shape, ggml::size_sum(fixed, sessions()),
                      limit - (limit - plan.least) / kRowsShare);
        const auto bytes = [&] {
            return ggml::size_sum(ggml::size_sum(fixed, sessions()), shape.bytes());
        };
        while (session.n_ubatch < most) {
            const int32_t before = session.n_ubatch;
            session.n_ubatch = std::min(most, before + kLeastRows);
            if (bytes() <= limit) continue;
            session.n_ubatch = before;
            break;
        }
        if (session.n_ubatch == most) {
            fill_in_order(shape, ggml::size_sum(fixed, sessions()), limit);
        }
        plan.n_ubatch = session.n_ubatch;
        plan.read_seconds = read_seconds_in_order(shape);
        return plan;
    }
    // A chunk of more rows reads the experts that it chooses once for all of them.
    for (int32_t rows = most; rows > session.n_ubatch; rows = std::max(kLeastRows, rows / 2)) {
        pi_session_params wide = session;
        wide.n_ubatch = rows;
        const uint64_t bytes = sessions_bytes(m, params, wide, 0, false, Tier::ram);
        if (bytes - sessions() > (limit - plan.least) / kRowsShare) continue;
        session = wide;
        break;
    }
    plan.n_ubatch = session.n_ubatch;
    fixed = ggml::size_sum(fixed, sessions());
    // The same share of the experts of every size, since a byte of each saves as much reading.
    const double share = largest_share([&](double tried) {
        shape.set_share(tried);
        return ggml::size_sum(fixed, shape.bytes()) <= limit;
    });
    shape.set_share(share);
    plan.read_seconds = expected_read_seconds(m, shape);
    plan.hits = expected_hits(share);
    plan.token_seconds = memory_seconds(m) + plan.read_seconds;
    PageShape larger = shape;
    const double twice = largest_share([&](double tried) {
        larger.set_share(tried);
        return 2 * (memory_seconds(m) + expected_read_seconds(m, larger)) > plan.token_seconds;
    });
    larger.set_share(std::min(1.0, twice + 1.0 / kShares));
    if (twice < 1) plan.twice = ggml::size_sum(fixed, larger.bytes());
    return plan;
}

}  // namespace powerinfer
