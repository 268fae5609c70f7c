// Recording as bits which neurons fired, in every mode, compared with the other recordings and with
// the counts; from RAM and from storage. Recording changes no result.
#include <algorithm>

#include "api/api.h"
#include "circle.h"
#include "stored_models.h"

namespace {

using namespace stored;

constexpr size_t kPrompt = 20, kAll = 33;

std::vector<Shape> kinds() {
    Shape plain, experts, matrices;
    plain.activation = "relu", plain.down_t = true, plain.predictor_rank = 32;
    plain.n_ff = 131, plain.n_layer = 3;  // not a multiple of 8
    experts = plain, experts.n_expert = 5, experts.n_ff = 64;
    matrices.n_ff = 100;
    return {plain, experts, matrices};
}

// The bits of all tokens, generated ones from kPrompt on, and the logits.
struct Recorded {
    std::vector<std::vector<uint8_t>> bits;
    Floats logits;
};

Recorded record(Session& session, const Tokens& tokens, size_t at_once) {
    Recorded out;
    const size_t size = size_t(session.record.bits_size());
    for (size_t i = 0; i < tokens.size(); i += at_once) {
        const size_t n = std::min(at_once, tokens.size() - i);
        const std::vector<char> keep(n, 1);
        std::vector<char> generated(n);
        for (size_t t = 0; t < n; t++) generated[t] = i + t >= kPrompt;
        eval(session, Tokens(tokens.begin() + ptrdiff_t(i), tokens.begin() + ptrdiff_t(i + n)),
             {nullptr, reinterpret_cast<const bool*>(keep.data()),
              reinterpret_cast<const bool*>(generated.data())});
        for (size_t t = 0; t < n; t++) {
            append_logits(session, int32_t(t), out.logits);
            if (const uint8_t* bits = session.record.bits(int64_t(t), 0)) {
                out.bits.emplace_back(bits, bits + size);
            }
        }
        CHECK(!session.record.bits(-1, 0) && !session.record.bits(int64_t(n), 0));
    }
    return out;
}

pi_session_params recording(int32_t record, int32_t sparse, int32_t n_ubatch, int32_t n_threads) {
    pi_session_params params = session_params(n_threads, n_ubatch);
    params.record = record;
    params.sparse = sparse;
    return params;
}

// What `flags` says of a row: [n_layer][n_blocks * n_ff], as bits.
template <typename F>
std::vector<uint8_t> packed(const Model& m, const F& flags) {
    std::vector<uint8_t> bits;
    for (const FeedForward* part : m.ffns) {
        const bool* const of_layer = flags(part->layer);
        for (int64_t b = 0; b < part->n_blocks(); b++) {
            for (int64_t i = 0; i < part->n_ff; i++) {
                if (i % 8 == 0) bits.push_back(0);
                bits.back() |= uint8_t(of_layer[b * part->n_ff + i] << i % 8);
            }
        }
    }
    return bits;
}

int64_t count(const std::vector<uint8_t>& bits, size_t begin, size_t end) {
    int64_t n = 0;
    for (size_t i = begin; i < end; i++) n += __builtin_popcount(bits[i]);
    return n;
}

// The same rows one by one: their flags, from a recording of another kind.
std::vector<std::vector<uint8_t>> one_by_one(const std::shared_ptr<const Model>& model,
                                             const Tokens& tokens, int32_t kind, int32_t sparse) {
    Session session(model, recording(kind, sparse, 1, 1));
    std::vector<std::vector<uint8_t>> all;
    for (size_t i = 0; i < tokens.size(); i++) {
        const bool generated = i >= kPrompt;
        eval(session, {tokens[i]}, {nullptr, nullptr, &generated});
        all.push_back(packed(*model, [&](int64_t layer) { return session.record.fired(layer); }));
    }
    return all;
}

void test_modes(const Shape& shape) {
    const auto model = load(tiny::describe(shape));
    const Config& c = model->config;
    const Tokens tokens = random_tokens(kAll, 2);
    for (const int32_t sparse :
         {PI_SPARSE_OFF, PI_SPARSE_EXACT, PI_SPARSE_AUTO, PI_SPARSE_PREDICTOR}) {
        if (sparse == PI_SPARSE_PREDICTOR && !c.has_predictors) continue;
        const bool masks = sparse == PI_SPARSE_AUTO || sparse == PI_SPARSE_PREDICTOR;
        if (masks && !c.neuron_aware) continue;
        Session silent(model, recording(PI_RECORD_OFF, sparse, 7, 1));
        const Floats logits = record(silent, tokens, 5).logits;
        const auto expected =
            one_by_one(model, tokens, masks ? PI_RECORD_NEEDS : PI_RECORD_FIRED, sparse);
        for (const int32_t n_ubatch : {1, 7, 64}) {
            for (const size_t at_once : {1, 5, 33}) {
                Session session(model,
                                recording(PI_RECORD_BITS, sparse, n_ubatch, 1 + n_ubatch % 4));
                const Recorded got = record(session, tokens, at_once);
                CHECK(same(got.logits, logits));
                CHECK(got.bits == expected);
                const size_t per_layer = got.bits[0].size() / size_t(c.n_layer);
                for (size_t layer = 0; c.neuron_aware && layer < size_t(c.n_layer); layer++) {
                    int64_t n = 0;
                    for (const auto& row : got.bits) {
                        n += count(row, layer * per_layer, (layer + 1) * per_layer);
                    }
                    CHECK(n > 0 && n == session.counts.neurons[layer].fired);
                }
            }
        }
    }
}

// Off and on again, between calls.
void test_switch() {
    const auto model = load(tiny::describe(kinds()[0]));
    const Tokens tokens = random_tokens(kAll, 3);
    for (const int32_t kind : {PI_RECORD_BITS, PI_RECORD_INPUTS, PI_RECORD_NEEDS}) {
        const int32_t sparse = kind == PI_RECORD_INPUTS ? PI_SPARSE_EXACT : PI_SPARSE_AUTO;
        Session session(model, recording(kind, sparse, 1, 1)),
            silent(model, recording(PI_RECORD_OFF, sparse, 1, 1));
        const Floats logits = record(silent, tokens, 4).logits;
        const auto known = [&] {
            const Recorder& r = session.record;
            const int n = bool(r.bits(0, 0)) + bool(r.fired(0)) + bool(r.input(0)) +
                          bool(r.proposed(0)) + bool(r.computed(0));
            return n;
        };
        const auto counted = [&] {
            uint64_t n = 0;
            for (int64_t i = 0; session.record.counts(0) && i < model->ffns[0]->n_ff; i++) {
                n += session.record.counts(0)[i];
            }
            return n;
        };
        CHECK(session.record.on() && known() == 0);
        const Recorded first = record(session, tokens, 4);
        const int all = known();
        const uint64_t seen = counted();
        CHECK(all == (kind == PI_RECORD_BITS ? 1 : kind == PI_RECORD_INPUTS ? 2 : 3));
        session.record.turn(false);
        CHECK(!session.record.on() && known() == 0);
        session.truncate(0, 0);
        CHECK(same(record(session, tokens, 4).logits, logits) && known() == 0);
        CHECK(counted() == seen);
        session.record.turn(true);
        CHECK(known() == 0);
        session.truncate(0, 0);
        const Recorded again = record(session, tokens, 4);
        CHECK(same(again.logits, logits) && again.bits == first.bits && known() == all);
        CHECK(counted() == 2 * seen);
    }
}

// A call that fails leaves nothing.
void test_failed_call() {
    const auto model = load(tiny::describe(kinds()[0]));
    pi_session_params params = recording(PI_RECORD_BITS, PI_SPARSE_AUTO, 8, 1);
    int calls = 0;
    params.should_stop = [](void* data) { return ++*static_cast<int*>(data) == 5; };
    params.should_stop_data = &calls;
    Session session(model, params);
    CHECK_THROWS(cancelled, eval(session, random_tokens(kAll, 4)));
    CHECK(!session.record.bits(0, 0));
}

// Storage has as many neurons of each layer as another call says, and RAM the others.
void check_tiers(const std::shared_ptr<const Model>& model) {
    const pi_model handle{model, {}};
    const Config& c = model->config;
    std::vector<uint8_t> tiers(size_t(model->ffns[0]->n_blocks() * model->ffns[0]->n_ff), 77);
    int64_t stored = 0;
    for (int32_t layer = 0; layer < int32_t(c.n_layer); layer++) {
        CHECK(pi_model_tiers(&handle, layer, tiers.data(), tiers.size()) == PI_OK);
        const int64_t n = std::count(tiers.begin(), tiers.end(), 0);
        CHECK(n == pi_model_layer_stored_neurons(&handle, layer));
        CHECK(n + std::count(tiers.begin(), tiers.end(), 1) == int64_t(tiers.size()));
        stored += n;
    }
    CHECK((stored > 0) == (model->store != nullptr));
}

// From storage, whatever is in memory: many rows, few rows and one.
void test_storage(bool experts) {
    Shape shape = wide();
    shape.predictor_rank = 32;
    if (experts) shape.n_expert = 4, shape.n_ff = 300;
    const std::string path = bundled(shape);
    const Tokens tokens = random_tokens(kAll, 6);
    for (const int32_t sparse : {PI_SPARSE_EXACT, PI_SPARSE_AUTO, PI_SPARSE_PREDICTOR}) {
        const pi_session_params params = recording(PI_RECORD_BITS, sparse, 16, 2);
        const auto in_ram = load(path);
        check_tiers(in_ram);
        Session whole(in_ram, params);
        const Recorded expected = record(whole, tokens, 33);
        const Bounds bounds = bounds_of(path, params);
        for (const uint64_t budget : {bounds.least, (bounds.least + bounds.all) / 2}) {
            const auto model = Model::load(path, model_params(budget, params));
            CHECK(model->store);
            check_tiers(model);
            for (const size_t at_once : {1, 3, 33}) {
                // In the quick circle: few rows in one budget, one and many in the other, in turns.
                const bool other = (budget == bounds.least) == (sparse == PI_SPARSE_AUTO);
                if (!full_circle() && other != (at_once == 3)) continue;
                Session session(model, params);
                const Recorded got = record(session, tokens, at_once);
                CHECK(same(got.logits, expected.logits) && got.bits == expected.bits);
            }
            check_tiers(model);
        }
    }
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
    for (const Shape& shape : kinds()) test_modes(shape);
    test_switch();
    test_failed_call();
    for (const bool experts : {false, true}) test_storage(experts);
    return check::summary("test_record");
}
