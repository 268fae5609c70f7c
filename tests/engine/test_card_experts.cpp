// Which experts a card holds: where they begin, the life of a copy, budgets, thresholds, and
// invariants under random calls.
#include <algorithm>
#include <random>
#include <set>

#include "ggml/check.h"
#include "storage/cache/card_experts.h"

using namespace powerinfer;

namespace {

using Card = ggml::Carved<CardExperts>;
using Moves = std::vector<CardExperts::Move>;

// Parts of 4, 8 and 4 experts, one without pages, and classes of two sizes.
CardShape mixed_shape() {
    CardShape shape;
    shape.before = {0, 4, 12, 15, 19};
    shape.class_of = {0, 1, -1, 0};
    shape.classes = {{100, 3}, {150, 5}};
    return shape;
}

// Layers with the same number of experts.
CardShape plain_shape(int32_t layers, int32_t experts, int64_t frames) {
    CardShape shape;
    for (int32_t i = 0; i <= layers; i++) shape.before.push_back(int64_t(i) * experts);
    shape.class_of.assign(size_t(layers), 0);
    shape.classes = {{100, frames}};
    return shape;
}

CardOptions following(double bytes_per_step, float threshold = 0.5f) {
    CardOptions options;
    options.half_life = 8;
    options.long_run = 0;
    options.fit = false;
    options.threshold = threshold;
    options.bytes_per_step = bytes_per_step;
    return options;
}

Card make(const CardShape& shape, const CardOptions& options) {
    return Card("a card's experts", shape, options);
}

std::vector<int32_t> resident(CardExperts& card) {
    std::vector<int32_t> found;
    for (int32_t i = 0; i < int32_t(card.shape().n_blocks()); i++) {
        if (card.frame(i) >= 0) found.push_back(i);
    }
    return found;
}

Moves token(CardExperts& card, const std::vector<int32_t>& blocks) {
    Moves moves;
    card.begin(1);
    card.used(blocks.data(), int64_t(blocks.size()));
    card.choose(moves);
    return moves;
}

void test_beginning() {
    Card card = make(mixed_shape(), following(0));
    CHECK(resident(*card).empty() && card->owner(0, 0) == -1);
    // Nothing is known: the first experts of each part of a class, by turns.
    card->profile({});
    CHECK((resident(*card) == std::vector<int32_t>{0, 1, 4, 5, 6, 7, 8, 15}));
    CHECK(card->frame(0) == 0 && card->frame(15) == 1 && card->frame(1) == 2);
    CHECK(card->owner(0, 2) == 1 && card->owner(1, 0) == 4);
    std::vector<float> rate(19, 0);
    rate[3] = 0.5f;
    rate[17] = 0.75f;
    rate[11] = rate[10] = 0.25f;
    rate[13] = 1;  // of a part without pages
    card->profile(rate);
    CHECK((resident(*card) == std::vector<int32_t>{0, 3, 4, 5, 6, 10, 11, 17}));
    CHECK(card->frame(17) == 0 && card->frame(3) == 1 && card->frame(13) == -1);
    CHECK(std::abs(card->rate(17) - 0.75f * card->options().long_run) < 1e-6f);
    CHECK_THROWS(internal, (card->profile({1, 2}), 0));

    CardShape bad = mixed_shape();
    bad.classes[0].frames = 9;
    CHECK_THROWS(internal, make(bad, {}));
    bad = mixed_shape();
    bad.class_of[0] = 2;
    CHECK_THROWS(internal, make(bad, {}));
    bad = mixed_shape();
    bad.before.pop_back();
    CHECK_THROWS(internal, make(bad, {}));
    Card none = make({}, {});  // of a model without experts
    none->profile({});
    CHECK(token(*none, {}).empty());
}

void test_life_of_a_copy() {
    Card card = make(plain_shape(2, 4, 2), following(200));
    card->profile({});  // 0 and 4
    Moves moves = token(*card, {1, 6});
    CHECK(moves.size() == 2 && card->pending() == 2);
    for (const CardExperts::Move& m : moves) {
        // Gone at once, and there when the copy has ended.
        CHECK(m.block == 1 || m.block == 6);
        CHECK(m.evicted == 0 || m.evicted == 4);
        CHECK(card->frame(m.evicted) == -1 && card->frame(m.block) == -1);
        CHECK(card->owner(0, m.frame) == m.block);
    }
    CHECK(token(*card, {2, 2, 2}).empty());  // frames that copies fill are no victims
    card->arrived(moves[0].block);
    CHECK(card->frame(moves[0].block) == moves[0].frame && card->pending() == 1);
    CHECK_THROWS(internal, (card->arrived(moves[0].block), 0));
    CHECK_THROWS(internal, (card->dropped(moves[0].evicted), 0));
    // A copy that failed leaves its frame free, and a free frame is filled first.
    card->drop();
    CHECK(card->pending() == 0 && resident(*card).size() == 1);
    CHECK(card->owner(0, moves[1].frame) == -1);
    const Moves again = token(*card, {3});
    CHECK(!again.empty() && again[0].frame == moves[1].frame && again[0].evicted == -1);
}

void test_what_pays() {
    // An expert that is used once is not worth a copy if two uses are asked for.
    Card card = make(plain_shape(1, 4, 1), following(100, 1.5f));
    card->profile({});
    CHECK(token(*card, {2}).empty());
    const Moves moves = token(*card, {2});
    CHECK(moves.size() == 1 && moves[0].block == 2 && moves[0].evicted == 0);
    card->arrived(2);
    // What the last token used stays, unless the other one is worth clearly more.
    for (int i = 0; i < 3; i++) CHECK(token(*card, {1, 2}).empty());
    Card rival = make(plain_shape(1, 4, 1), following(100, 0.1f));
    rival->profile({});
    CHECK(token(*rival, {0}).empty() && token(*rival, {1}).empty());
    // Worth 1.92 and 1.84.
    CHECK(token(*rival, {0, 1}).empty());
    CHECK(token(*rival, {1}).size() == 1);
}

void test_budget() {
    // A quarter of an expert per token.
    Card card = make(plain_shape(1, 16, 4), following(25));
    card->profile({});
    int copies = 0;
    for (int32_t i = 0; i < 40; i++) {
        for (const CardExperts::Move& m : token(*card, {4 + i % 12, 4 + (i + 1) % 12})) {
            card->arrived(m.block);
            copies++;
        }
    }
    CHECK(copies >= 9 && copies <= 10);
    // A budget is not saved: after tokens that needed no copies there is one for two experts.
    card->set_bytes_per_step(250);
    for (int i = 0; i < 50; i++) token(*card, {});
    CHECK(token(*card, {8, 9, 10, 11}).size() == 2);
    card->set_bytes_per_step(0);
    card->drop();
    for (int i = 0; i < 3; i++) CHECK(token(*card, {8, 9, 10, 11}).empty());
    // Of two classes the one that saves more per byte comes first.
    Card sizes = make(mixed_shape(), following(150));
    sizes->profile({});
    Moves moves = token(*sizes, {2, 9, 9});
    CHECK(moves.size() == 1 && moves[0].block == 9 && moves[0].frame < 5);
    CHECK(std::abs(sizes->rate(9) - 2 * sizes->rate(2)) < 1e-6f);
}

void test_prompts() {
    Card card = make(plain_shape(1, 8, 2), following(800));
    card->profile({});
    for (int i = 0; i < 20; i++) token(*card, {0, 1});
    const float before = card->rate(0);
    // 512 rows, all of which use 6: worth 4 tokens, and nothing is copied for them.
    card->begin_prompt(512);
    const int32_t six = 6;
    card->used(&six, 1, 512);
    Moves moves;
    card->choose(moves);
    CHECK(moves.empty());
    CHECK(std::abs(card->rate(0) - before * 0.7071f) < 1e-3f);
    CHECK(card->rate(6) < 0.3f && card->rate(6) > 0.2f);
    CHECK(token(*card, {0, 1}).empty());
    // Several sequences in a step count as spread over as many tokens.
    Card rows = make(plain_shape(1, 8, 2), following(800));
    for (int i = 0; i < 50; i++) {
        rows->begin(4);
        rows->used(&six, 1, 2);
    }
    CHECK(std::abs(rows->rate(6) - 0.5f) < 1e-3f);
}

void test_fixed() {
    CardOptions options = following(800);
    options.policy = CardPolicy::fixed;
    Card card = make(plain_shape(2, 4, 3), options);
    card->profile({});
    const std::vector<int32_t> first = resident(*card);
    for (int i = 0; i < 20; i++) CHECK(token(*card, {3, 7}).empty());
    CHECK(resident(*card) == first);
    // With room for all there is nothing to move.
    Card all = make(plain_shape(2, 4, 8), following(800));
    all->profile({});
    CHECK(resident(*all).size() == 8 && token(*all, {3, 7}).empty());
}

// It follows what tokens use, and keeps to the average where that is told to count.
void test_follows() {
    for (const float long_run : {0.0f, 1.0f}) {
        CardOptions options = following(200);
        options.long_run = long_run;
        Card card = make(plain_shape(1, 16, 4), options);
        std::vector<float> rate(16, 0);
        for (size_t i = 0; i < 4; i++) rate[i] = 0.9f;
        card->profile(rate);
        for (int i = 0; i < 30; i++) {
            for (const CardExperts::Move& m : token(*card, {8, 9, 10, 11})) card->arrived(m.block);
        }
        const int32_t first = long_run > 0 ? 0 : 8;
        CHECK((resident(*card) == std::vector<int32_t>{first, first + 1, first + 2, first + 3}));
    }
}

// The fit finds out what says most about the next token: the average where tokens do not depend on
// those before them, so that nothing moves; else the last ones.
void test_fit() {
    for (const bool local : {false, true}) {
        CardOptions options;
        options.bytes_per_step = 1600;
        Card card = make(plain_shape(1, 64, 16), options);
        std::mt19937 random(3);
        std::vector<float> rate(64, local ? 0.125f : 0.05f);
        for (size_t i = 0; i < 16 && !local; i++) rate[i] = 0.35f;
        card->profile(rate);
        int64_t copies = 0, hits = 0;
        std::vector<int32_t> ids;
        for (int t = 0; t < 2000; t++) {
            ids.clear();
            for (int32_t i = 0; i < 64; i++) {
                const float now = local ? (i / 16 == t / 100 % 4 ? 0.5f : 0) : rate[size_t(i)];
                if (float(random() % 1000) < 1000 * now) ids.push_back(i);
            }
            for (int32_t id : ids) hits += t >= 1000 && card->frame(id) >= 0;
            for (const CardExperts::Move& m : token(*card, ids)) {
                card->arrived(m.block);
                copies += t >= 1000;
            }
        }
        if (local) {
            CHECK(hits > 6700 && copies >= 160 && copies < 300);
        } else {
            CHECK(hits > 5200 && copies < 20);
        }
    }
}

// Counts stay finite where units and averages are divided, and frames agree with their owners.
void test_random_calls() {
    const CardShape shape = mixed_shape();
    const auto blocks = int32_t(shape.n_blocks());
    std::mt19937 random(1);
    CardOptions options = following(170, 0.2f);
    options.half_life = 3;
    options.long_run = 0.3f;
    Card card = make(shape, options);
    card->profile({});
    std::vector<int32_t> coming;
    Moves moves;
    for (int step = 0; step < 20000; step++) {
        const auto n = int32_t(1 + random() % 3);
        if (random() % 50 == 0) {
            card->begin_prompt(int32_t(random() % 3000));
        } else {
            card->begin(n);
        }
        for (int i = 0; i < 4; i++) {
            const auto id = int32_t(random() % uint32_t(blocks));
            card->used(&id, 1, float(1 + random() % uint32_t(n)));
        }
        card->choose(moves);
        uint64_t bytes = 0;
        for (const CardExperts::Move& m : moves) {
            coming.push_back(m.block);
            bytes += m.block < 4 || m.block >= 15 ? 100 : 150;
            CHECK(m.block < 12 || m.block >= 15);
        }
        CHECK(bytes <= 320);
        while (!coming.empty() && random() % 3) {
            random() % 8 ? card->arrived(coming.back()) : card->dropped(coming.back());
            coming.pop_back();
        }
        if (random() % 100 == 0) {
            card->drop();
            coming.clear();
        }
        CHECK(card->pending() == int64_t(coming.size()));
        std::set<int32_t> seen;
        int64_t there = 0;
        for (int32_t c = 0; c < 2; c++) {
            for (int64_t f = 0; f < shape.classes[size_t(c)].frames; f++) {
                const int32_t owner = card->owner(c, f);
                if (owner < 0) continue;
                CHECK(seen.insert(owner).second);
                const bool pending = std::count(coming.begin(), coming.end(), owner) > 0;
                CHECK(card->frame(owner) == (pending ? -1 : int32_t(f)));
                there += !pending;
            }
        }
        CHECK(there == int64_t(resident(*card).size()));
        for (int32_t i = 0; i < blocks; i++) CHECK(card->rate(i) >= 0 && card->rate(i) < 10);
    }
    // Averages of millions of tokens, and a pause that leaves nothing of the counts.
    for (int i = 0; i < 3000; i++) {
        card->begin(1000);
        const int32_t two = 2;
        card->used(&two, 1, 500);
    }
    CHECK(std::abs(card->rate(2) - 0.5f) < 0.05f);
}

}  // namespace

int main() {
    test_beginning();
    test_life_of_a_copy();
    test_what_pays();
    test_budget();
    test_prompts();
    test_fixed();
    test_follows();
    test_fit();
    test_random_calls();
    return check::summary("test_card_experts");
}
