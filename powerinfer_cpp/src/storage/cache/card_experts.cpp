#include "storage/cache/card_experts.h"

#include <algorithm>

#include "ggml/math.h"

namespace powerinfer {

namespace {

// As in Residency: counts are divided when the unit is larger, and averages become a slow decay.
constexpr double kLargestUnit = 1ull << 60;
constexpr double kLongestAverage = 1 << 20;
// The share of the average is fitted to the uses of this many blocks, in about 200 tokens.
constexpr int64_t kFitProbes = 512;
constexpr double kFitKeeps = 0.995, kFitPrior = 1;
constexpr double kLeastLong = 0.1, kMostLong = 0.95;
// What the last token used goes only for an expert that is worth so many more uses, besides the
// threshold: the next token is likely to use it again.
constexpr float kJustUsed = 1;

// Of equal worth: in no order of layers, or the first ones would have the bus for themselves.
uint32_t mixed(int32_t id) {
    return uint32_t(id) * 2654435761u;
}

}  // namespace

int64_t CardShape::frames() const {
    int64_t n = 0;
    for (const Class& c : classes) n += c.frames;
    return n;
}

CardExperts::CardExperts(ggml::Carver& carver, const CardShape& shape, const CardOptions& options)
    : shape_(shape), options_(options) {
    const size_t n_classes = shape.classes.size();
    const bool none = shape.before.empty() && shape.class_of.empty();
    if (shape.n_blocks() > INT32_MAX ||
        (!none && shape.before.size() != shape.class_of.size() + 1)) {
        throw ggml::Error(ggml::Code::internal, "a card's experts have no valid shape");
    }
    std::vector<int64_t> blocks(n_classes, 0);
    for (size_t part = 0; part < shape.class_of.size(); part++) {
        const int32_t c = shape.class_of[part];
        if (c >= int32_t(n_classes)) {
            throw ggml::Error(ggml::Code::internal, "experts of a class that is not there");
        }
        if (c >= 0) blocks[size_t(c)] += shape.before[part + 1] - shape.before[part];
    }
    first_frame_.push_back(0);
    for (size_t c = 0; c < n_classes; c++) {
        const CardShape::Class& of = shape.classes[c];
        if (of.frames < 0 || of.frames > blocks[c] || of.bytes == 0) {
            throw ggml::Error(ggml::Code::internal, "a card has more frames than experts");
        }
        first_frame_.push_back(first_frame_.back() + of.frames);
        decides_.push_back(options.policy == CardPolicy::follow && of.frames > 0 &&
                           of.frames < blocks[c]);
    }
    carver.take(blocks_, {shape.n_blocks()});
    carver.take(owners_, {shape.frames()});
    n_probes_ = options.policy == CardPolicy::follow ? std::min(shape.n_blocks(), kFitProbes) : 0;
    carver.take(probes_, {n_probes_});
    carver.take(missing_, {shape.n_blocks()});
    carver.take(resident_, {shape.frames()});
    if (blocks_) std::fill_n(blocks_, shape.n_blocks(), Block());
    if (owners_) std::fill_n(owners_, shape.frames(), -1);
    growth_ = ggml::exp_f64(0.693147180559945309 / double(options.half_life));
    differ_ = kFitPrior;
    agree_ = kFitPrior * double(options.long_run);
    horizon_ = float(1 / (1 - 1 / growth_));
    weigh();
}

void CardExperts::profile(const std::vector<float>& rate) {
    if (!rate.empty() && rate.size() != size_t(shape_.n_blocks())) {
        throw ggml::Error(ggml::Code::internal, "a profile of other experts");
    }
    drop();
    std::fill_n(owners_, shape_.frames(), -1);
    for (int64_t i = 0; i < shape_.n_blocks(); i++) {
        blocks_[i] = Block();
        if (!rate.empty()) blocks_[i].all = rate[size_t(i)] * options_.profile_tokens;
    }
    tokens_ = rate.empty() ? 0 : double(options_.profile_tokens);
    weigh();
    std::vector<int32_t> order, within(size_t(shape_.n_blocks()), 0);
    for (size_t c = 0; c < shape_.classes.size(); c++) {
        order.clear();
        for (size_t part = 0; part < shape_.class_of.size(); part++) {
            if (shape_.class_of[part] != int32_t(c)) continue;
            for (int64_t i = shape_.before[part]; i < shape_.before[part + 1]; i++) {
                within[size_t(i)] = int32_t(i - shape_.before[part]);
                order.push_back(int32_t(i));
            }
        }
        std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            if (blocks_[a].all != blocks_[b].all) return blocks_[a].all > blocks_[b].all;
            if (within[size_t(a)] != within[size_t(b)])
                return within[size_t(a)] < within[size_t(b)];
            return a < b;
        });
        for (int64_t f = 0; f < shape_.classes[c].frames; f++) {
            blocks_[order[size_t(f)]].frame = int32_t(f);
            owners_[first_frame_[c] + f] = order[size_t(f)];
        }
    }
}

void CardExperts::begin(int32_t n) {
    prompt_ = false;
    step_++;
    // Not saved for later: a burst of copies would be longer than the token that hides it. But a
    // budget of less than an expert grows until it is one.
    uint64_t page = 0;
    for (const CardShape::Class& c : shape_.classes) page = std::max(page, c.bytes);
    const double budget = options_.bytes_per_step;
    credit_ = std::min(credit_ + budget, std::max(budget, double(page)));
    pass(n, double(n));
}

void CardExperts::begin_prompt(int32_t n) {
    prompt_ = true;
    pass(n, double(std::min(n, options_.prompt_tokens)));
    begun_ = 0;  // many rows at once use what is used on average: nothing to learn for one token
}

// n rows that count as so many tokens, spread over them evenly.
void CardExperts::pass(int32_t n, double tokens) {
    if (begun_ > 0) fit();
    begun_ = tokens;
    const double passed = ggml::exp_f64(tokens * 0.693147180559945309 / double(options_.half_life));
    unit_ *= std::min(passed, kLargestUnit);
    rescale(tokens);
    probe();
    tokens_ += tokens;
    added_ = n > 1 && tokens > 0 ? unit_ * (1 - 1 / passed) / ((1 - 1 / growth_) * n) : unit_;
    if (tokens == 0) added_ = 0;
    counted_ = float(tokens / std::max(n, 1));
    weigh();
}

// Least squares: the share s with which recent + s * (average - recent) would have predicted best
// what the last tokens used.
void CardExperts::fit() {
    double agree = 0, differ = 0;
    for (int64_t i = 0; i < n_probes_; i++) {
        const Probe& p = probes_[i];
        const Block& b = blocks_[i * shape_.n_blocks() / n_probes_];
        const double used = double(b.all - p.all) / begun_;
        const double apart = double(p.average) - double(p.recent);
        agree += (used - double(p.recent)) * apart;
        differ += apart * apart;
    }
    agree_ = kFitKeeps * agree_ + agree;
    differ_ = kFitKeeps * differ_ + differ;
}

void CardExperts::probe() {
    const auto recent = float(1 / (double(horizon_) * unit_));
    const float average = tokens_ > 0 ? float(1 / tokens_) : 0;
    for (int64_t i = 0; i < n_probes_; i++) {
        const Block& b = blocks_[i * shape_.n_blocks() / n_probes_];
        probes_[i] = {b.recent * recent, b.all * average, b.all};
    }
}

void CardExperts::weigh() {
    const double fitted = std::clamp(agree_ / differ_, kLeastLong, kMostLong);
    const double share = tokens_ > 0 ? (options_.fit ? fitted : double(options_.long_run)) : 0;
    recent_ = float((1 - share) / unit_);
    average_ = tokens_ > 0 ? float(share * double(horizon_) / tokens_) : 0;
}

void CardExperts::rescale(double tokens) {
    float recent = 1, all = 1;
    while (unit_ >= kLargestUnit) {
        unit_ /= kLargestUnit;
        recent /= float(kLargestUnit);
    }
    while (tokens_ >= 1 && tokens_ + tokens >= kLongestAverage) {
        tokens_ /= 2;
        all /= 2;
    }
    if (recent == 1 && all == 1) return;
    for (int64_t i = 0; i < shape_.n_blocks(); i++) {
        // What is all but forgotten becomes 0 before it is slow to compute with.
        const float left = blocks_[i].recent * recent;
        blocks_[i].recent = left < 1e-30f ? 0 : left;
        blocks_[i].all *= all;
    }
}

void CardExperts::used(const int32_t* blocks, int64_t n, float rows) {
    if (options_.policy == CardPolicy::fixed) return;
    const float added = float(added_ * double(rows)), counted = counted_ * rows;
    for (int64_t i = 0; i < n; i++) {
        Block& b = blocks_[blocks[i]];
        b.recent += added;
        b.all += counted;
        if (!prompt_) b.step = step_;
    }
}

// The blocks of a class without a frame that are worth most, at most so many of them, by falling
// worth; their number.
int64_t CardExperts::rank_missing(int32_t of_class, int64_t most,
                                  const std::function<bool(int32_t)>& can) {
    int64_t n = 0;
    for (size_t part = 0; part < shape_.class_of.size(); part++) {
        if (shape_.class_of[part] != of_class) continue;
        for (int64_t i = shape_.before[part]; i < shape_.before[part + 1]; i++) {
            const float value = worth(blocks_[i]);
            // Nobody is worth less than nothing.
            if (blocks_[i].frame != -1 || value < options_.threshold) continue;
            if (can && !can(int32_t(i))) continue;
            missing_[n++] = {value, int32_t(i)};
        }
    }
    const int64_t found = std::min(n, most);
    std::partial_sort(missing_, missing_ + found, missing_ + n, [](Ranked a, Ranked b) {
        return a.worth != b.worth ? a.worth > b.worth : mixed(a.id) < mixed(b.id);
    });
    return found;
}

// The frames that are free, and then those that are worth least.
int64_t CardExperts::rank_frames(int32_t of_class, int64_t most) {
    const int64_t first = first_frame_[size_t(of_class)];
    int64_t n = 0;
    for (int64_t f = 0; f < shape_.classes[size_t(of_class)].frames; f++) {
        const int32_t owner = owners_[first + f];
        if (owner < 0) {
            resident_[n++] = {0, int32_t(f)};
        } else if (blocks_[owner].frame >= 0) {  // else its copy is on its way
            const bool just_used = blocks_[owner].step == step_;
            resident_[n++] = {worth(blocks_[owner]) + (just_used ? kJustUsed : 0), int32_t(f)};
        }
    }
    const int64_t found = std::min(n, most);
    const auto free = [&](Ranked a) { return owners_[first + a.id] < 0; };
    std::partial_sort(resident_, resident_ + found, resident_ + n, [&](Ranked a, Ranked b) {
        if (free(a) != free(b)) return free(a);
        return a.worth != b.worth ? a.worth < b.worth : mixed(a.id) < mixed(b.id);
    });
    return found;
}

void CardExperts::choose(std::vector<Move>& moves, int64_t most,
                         const std::function<bool(int32_t)>& can) {
    moves.clear();
    if (prompt_) return;
    pairs_.clear();
    for (int32_t c = 0; c < int32_t(shape_.classes.size()); c++) {
        const double bytes = double(shape_.classes[size_t(c)].bytes);
        const double room = std::min(credit_ / bytes, double(shape_.n_blocks()));
        if (!decides(c) || room < 1) continue;
        const int64_t missing = rank_missing(c, int64_t(room), can);
        const int64_t frames = rank_frames(c, missing);
        // The best one takes the worst frame, so the gains fall.
        for (int64_t i = 0; i < frames; i++) {
            const float gain = missing_[i].worth - resident_[i].worth;
            if (gain < options_.threshold) break;
            const int32_t evicted = owner(c, resident_[i].id);
            pairs_.push_back({gain / float(bytes), c, {missing_[i].id, resident_[i].id, evicted}});
        }
    }
    std::stable_sort(pairs_.begin(), pairs_.end(),
                     [](const Pair& a, const Pair& b) { return a.gain > b.gain; });
    for (const Pair& p : pairs_) {
        const double bytes = double(shape_.classes[size_t(p.of_class)].bytes);
        if (credit_ < bytes || int64_t(moves.size()) == most) break;
        credit_ -= bytes;
        moves.push_back(p.move);
        if (p.move.evicted >= 0) blocks_[p.move.evicted].frame = -1;
        blocks_[p.move.block].frame = -2 - p.move.frame;
        owners_[first_frame_[size_t(p.of_class)] + p.move.frame] = p.move.block;
        pending_++;
    }
}

void CardExperts::arrived(int32_t block) {
    Block& b = blocks_[block];
    if (b.frame > -2) throw ggml::Error(ggml::Code::internal, "an expert that was not on its way");
    b.frame = -2 - b.frame;
    pending_--;
}

void CardExperts::dropped(int32_t block) {
    Block& b = blocks_[block];
    if (b.frame == -1) throw ggml::Error(ggml::Code::internal, "an expert that has no frame");
    const bool pending = b.frame < -1;
    const auto part = std::upper_bound(shape_.before.begin(), shape_.before.end(), block);
    const int32_t c = shape_.class_of[size_t(part - shape_.before.begin()) - 1];
    owners_[first_frame_[size_t(c)] + (pending ? -2 - b.frame : b.frame)] = -1;
    b.frame = -1;
    pending_ -= pending;
}

void CardExperts::drop() {
    for (int64_t i = 0; pending_ > 0 && i < shape_.n_blocks(); i++) {
        if (blocks_[i].frame < -1) dropped(int32_t(i));
    }
}

}  // namespace powerinfer
