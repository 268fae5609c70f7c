// Replays the experts that the tokens of a text chose, with a card that holds some of them. Reads
// lines from the standard input and answers each with a line: seconds of the mean token's experts,
// hits as a share of the uses, copies per token.
//
//   card_replay TRACE LAYERS EXPERTS USED PROFILE WARM BYTES RAM SHARE COPY VRAM MEETING
//   static FRAMES | first FRAMES | lru FRAMES
//   follow FRAMES KNOWN COPIES [HALF_LIFE THRESHOLD [LONG_RUN]]
//
// TRACE: a byte for each choice, [tokens, layers, used]. The first PROFILE tokens are another text,
// from which the rates of `static` are (and of `follow`, if KNOWN is 1), and the next WARM are not
// counted. An expert has BYTES. The CPU computes a miss at SHARE of RAM's bytes a second, the card
// a hit at VRAM's, both at the same time; where both have work, they meet. Copies to the card go at
// COPY's speed beside a token; they slow the CPU down as if it read their bytes, too, in all layers
// alike. COPIES: at most so many per token. The other options of `follow` are CardExperts' own; a
// share of the average that is given is not fitted.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "storage/cache/card_experts.h"

namespace {

using namespace powerinfer;
using Moves = std::vector<CardExperts::Move>;

struct Text {
    int32_t layers, experts, used;
    int64_t profile, warm;
    double bytes, ram, share, copy, vram, meeting;
    std::vector<uint8_t> chosen = {};

    int64_t blocks() const { return int64_t(layers) * experts; }
    int64_t tokens() const { return int64_t(chosen.size()) / (int64_t(layers) * used); }
    // The blocks of a token's layer.
    void read(int64_t token, int32_t layer, std::vector<int32_t>& out) const {
        const uint8_t* ids = chosen.data() + (token * layers + layer) * used;
        out.clear();
        for (int32_t i = 0; i < used; i++) out.push_back(layer * experts + ids[i]);
    }
    // Uses per token of each block in the other text.
    std::vector<float> rates() const {
        std::vector<float> rates(size_t(blocks()), 0);
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < profile; t++) {
            for (int32_t layer = 0; layer < layers; layer++) {
                read(t, layer, ids);
                for (int32_t id : ids) rates[size_t(id)] += 1 / float(profile);
            }
        }
        return rates;
    }
};

// What is on the card.
class Held {
 public:
    virtual ~Held() = default;
    virtual void begin() = 0;
    virtual bool has(int32_t block) const = 0;
    virtual void used(const std::vector<int32_t>& blocks) = 0;
    virtual int64_t end() = 0;  // of a token: the copies that run beside the next one
};

class Chosen : public Held {
 public:
    Chosen(const CardShape& shape, const CardOptions& options, const std::vector<float>& rates)
        : card_("a card's experts", shape, options) {
        card_->profile(rates);
    }
    void begin() override {
        for (const CardExperts::Move& m : moves_) arrived_.push_back(m.block);
        card_->begin(1);
    }
    bool has(int32_t block) const override { return card().frame(block) >= 0; }
    void used(const std::vector<int32_t>& blocks) override {
        card_->used(blocks.data(), int64_t(blocks.size()));
    }
    int64_t end() override {
        // Copies run beside a token and are there at its end.
        for (int32_t block : arrived_) card_->arrived(block);
        arrived_.clear();
        card_->choose(moves_);
        return int64_t(moves_.size());
    }

 private:
    const CardExperts& card() const { return *const_cast<ggml::Carved<CardExperts>&>(card_); }
    ggml::Carved<CardExperts> card_;
    Moves moves_;
    std::vector<int32_t> arrived_;
};

// Every miss replaces what was used longest ago.
class Lru : public Held {
 public:
    Lru(int64_t blocks, int64_t frames, const std::vector<float>& rates)
        : at_(size_t(blocks), 0), held_(size_t(blocks), false), frames_(frames) {
        std::vector<int32_t> order(size_t(blocks), 0);
        for (size_t i = 0; i < order.size(); i++) order[i] = int32_t(i);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return rates[size_t(a)] > rates[size_t(b)]; });
        for (int64_t i = 0; i < frames; i++) held_[size_t(order[size_t(i)])] = true;
    }
    void begin() override {
        time_++;
        for (int32_t block : coming_) held_[size_t(block)] = true;
        coming_.clear();
    }
    bool has(int32_t block) const override { return held_[size_t(block)]; }
    void used(const std::vector<int32_t>& blocks) override {
        for (int32_t block : blocks) {
            at_[size_t(block)] = time_;
            if (!has(block)) coming_.push_back(block);
        }
    }
    int64_t end() override {
        std::vector<int32_t> order;
        for (size_t i = 0; i < held_.size(); i++) {
            if (held_[i]) order.push_back(int32_t(i));
        }
        coming_.resize(std::min(coming_.size(), size_t(frames_)));
        const size_t n = coming_.size() + order.size() - size_t(frames_);
        std::partial_sort(
            order.begin(), order.begin() + std::ptrdiff_t(n), order.end(),
            [&](int32_t a, int32_t b) {
                return at_[size_t(a)] != at_[size_t(b)] ? at_[size_t(a)] < at_[size_t(b)] : a < b;
            });
        for (size_t i = 0; i < n; i++) held_[size_t(order[i])] = false;
        return int64_t(coming_.size());
    }

 private:
    std::vector<int64_t> at_;
    std::vector<bool> held_;
    int64_t frames_, time_ = 0;
    std::vector<int32_t> coming_;
};

void replay(const Text& text, Held& held) {
    double seconds = 0;
    int64_t hits = 0, uses = 0, copies = 0, counted = 0, coming = 0;
    std::vector<int32_t> ids;
    for (int64_t t = text.profile; t < text.tokens(); t++) {
        const bool counts = t >= text.profile + text.warm;
        const double copied = double(coming) * text.bytes;
        double token = 0;
        held.begin();
        for (int32_t layer = 0; layer < text.layers; layer++) {
            text.read(t, layer, ids);
            const auto hit =
                std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return held.has(id); });
            const auto missed = std::ptrdiff_t(ids.size()) - hit;
            double cpu = double(missed) * text.bytes / (text.ram * text.share);
            if (missed) cpu += copied / text.ram / text.layers;
            token += std::max(cpu, double(hit) * text.bytes / text.vram);
            if (hit && missed) token += text.meeting;
            if (counts) hits += hit;
            held.used(ids);
        }
        if (counts) {
            seconds += std::max(token, copied / text.copy);
            uses += int64_t(text.layers) * text.used;
            copies += coming;
            counted++;
        }
        coming = held.end();
    }
    std::printf("%.9f %.6f %.4f\n", seconds / double(counted), double(hits) / double(uses),
                double(copies) / double(counted));
    std::fflush(stdout);
}

int run(int argc, char** argv) {
    if (argc != 13) return std::fprintf(stderr, "see card_replay.cpp\n"), 2;
    const auto number = [&](int i) { return std::atof(argv[i]); };
    Text text{std::atoi(argv[2]),  std::atoi(argv[3]), std::atoi(argv[4]), std::atoll(argv[5]),
              std::atoll(argv[6]), number(7),          number(8),          number(9),
              number(10),          number(11),         number(12)};
    std::ifstream file(argv[1], std::ios::binary);
    text.chosen.assign(std::istreambuf_iterator<char>(file), {});
    const std::vector<float> rates = text.rates();
    CardShape shape;
    for (int32_t i = 0; i <= text.layers; i++) shape.before.push_back(int64_t(i) * text.experts);
    shape.class_of.assign(size_t(text.layers), 0);
    std::string line, policy;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        int64_t frames = 0;
        int known = 0;
        bool understood = true;
        double copies = 0;
        CardOptions options;
        words >> policy >> frames;
        shape.classes = {{uint64_t(text.bytes), frames}};
        if (policy == "lru") {
            Lru lru(text.blocks(), frames, rates);
            replay(text, lru);
            continue;
        }
        if (policy == "follow") {
            words >> known >> copies;
            options.bytes_per_step = copies * text.bytes;
            understood = bool(words);
            if (float half_life, threshold; words >> half_life >> threshold) {
                options.half_life = half_life;
                options.threshold = threshold;
            }
            if (float long_run; words >> long_run) {
                options.long_run = long_run;
                options.fit = false;
            }
        } else {
            known = policy == "static";
            understood = known || policy == "first";
            options.policy = CardPolicy::fixed;
        }
        if (!understood) return std::fprintf(stderr, "not understood: %s\n", line.c_str()), 2;
        Chosen chosen(shape, options, known ? rates : std::vector<float>());
        replay(text, chosen);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "card_replay: %s\n", e.what());
        return 1;
    }
}
