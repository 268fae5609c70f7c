#include "plan/expert_plan.h"

#include <algorithm>

#include "ggml/reader.h"
#include "ggml/sizes.h"
#include "plan/expected_hits.h"
#include "plan/storage_plan.h"
#include "plan/stored_blocks.h"
#include "storage/cache/split_pools.h"

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

// The sessions that a plan divides memory for.
struct Sessions {
    const Model& m;
    pi_model_params params;
    pi_session_params one;
    int32_t most;  // rows of a chunk that were asked for; one.n_ubatch is what they get

    uint64_t bytes() const {
        return sessions_bytes(m, params, one, m.device_layers(), false, Tier::ram);
    }
};

// Room for so many blocks that are used in order as fit beside `fixed` bytes.
void fill_in_order(PageShape& shape, uint64_t fixed, uint64_t limit) {
    const std::vector<int32_t> order = shape.spread();
    const auto give = [&](size_t n) {  // the first n
        shape.set_share(0);
        for (size_t i = 0; i < n; i++) {
            const int32_t of_class = shape.class_of[size_t(shape.part_of(order[i]))];
            shape.classes[size_t(of_class)].slots++;
        }
    };
    size_t good = 0, bad = order.size() + 1;
    while (bad - good > 1) {
        const size_t middle = good + (bad - good) / 2;
        give(middle);
        (ggml::size_sum(fixed, shape.bytes()) <= limit ? good : bad) = middle;
    }
    give(good);
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

// Divides `limit` bytes, of which `fixed` are taken, among rows of chunks and blocks in order. Rows
// have what is left by the blocks that fit beside their share, and other blocks what is left by all
// the rows that were asked for. So more memory is never fewer blocks.
void divide_in_order(StoragePlan& plan, Sessions& sessions, uint64_t fixed, uint64_t limit) {
    PageShape& shape = plan.experts;
    int32_t& rows = sessions.one.n_ubatch;
    fill_in_order(shape, ggml::size_sum(fixed, sessions.bytes()),
                  limit - (limit - plan.least) / kRowsShare);
    while (rows < sessions.most) {
        const int32_t before = rows;
        rows = std::min(sessions.most, before + kLeastRows);
        const uint64_t taken = ggml::size_sum(fixed, sessions.bytes());
        if (ggml::size_sum(taken, shape.bytes()) <= limit) continue;
        rows = before;
        break;
    }
    if (rows == sessions.most) {
        fill_in_order(shape, ggml::size_sum(fixed, sessions.bytes()), limit);
    }
    plan.read_seconds = read_seconds_in_order(shape);
}

// More rows of a chunk, which reads the experts that it chooses once for all of them, as far as
// they take `spare` bytes.
void widen_chunks(Sessions& sessions, uint64_t spare) {
    const uint64_t narrow = sessions.bytes();
    Sessions wide = sessions;
    for (int32_t rows = wide.most; rows > sessions.one.n_ubatch;
         rows = std::max(kLeastRows, rows / 2)) {
        wide.one.n_ubatch = rows;
        if (wide.bytes() - narrow > spare) continue;
        sessions.one = wide.one;
        return;
    }
}

// Divides `limit` bytes, of which `fixed` are taken, among experts: the same share of the experts
// of every size, since a byte of each saves as much reading. Then says what is expected of them.
void divide_experts(StoragePlan& plan, const Model& m, uint64_t fixed, uint64_t limit) {
    PageShape& shape = plan.experts;
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
}

}  // namespace

std::string keeps_experts(const Model& m) {
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
        const int64_t block = w.of->first_block + w.block;
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
    if (!shape.in_order && !m.device) beside.n_ubatch = beside.n_batch;
    if (asked.beside) params.beside = &beside;
    plan.reader =
        ggml::size_product(uint64_t(files.size()), ggml::Reader::memory(expert_reader_options()));
    Sessions sessions{m, params, kept_session(m, params), 0};
    // A device's memory was divided for n_ubatch rows.
    const bool as_asked = shape.in_order || m.device;
    sessions.most = as_asked ? sessions.one.n_ubatch : sessions.one.n_batch;
    sessions.one.n_ubatch = std::min(kLeastRows, sessions.most);
    plan.sparse = sessions.one.sparse;
    uint64_t fixed = ggml::size_sum(total(m.plan.parts, Tier::ram), plan.reader);
    fixed = ggml::size_sum(fixed, rows_kept_bytes(m, params));
    const uint64_t least = ggml::size_sum(ggml::size_sum(fixed, shape.bytes()), sessions.bytes());
    plan.process = process_bytes(m, least);
    fixed = ggml::size_sum(fixed, plan.process);
    plan.least = ggml::size_sum(least, plan.process);
    const uint64_t limit = std::max(plan.least, m.budget->limit());
    if (shape.in_order) {
        divide_in_order(plan, sessions, fixed, limit);
    } else {
        widen_chunks(sessions, (limit - plan.least) / kRowsShare);
        divide_experts(plan, m, ggml::size_sum(fixed, sessions.bytes()), limit);
    }
    plan.n_ubatch = sessions.one.n_ubatch;
    return plan;
}

}  // namespace powerinfer
