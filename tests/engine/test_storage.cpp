// Models whose neurons stay on the disk: the same bits as in memory, for any budget, order of
// arrival and number of threads.
#include <cstdlib>

#include "circle.h"
#include "faulty_reader.h"
#include "stored_models.h"

namespace {

using namespace stored;

// A model in several modes, with four budgets each. In the quick circle a budget is met in one mode
// of the model, in another one of the next model.
void test_shape(const Shape& shape, const std::vector<int32_t>& modes, size_t number) {
    const std::string path = bundled(shape);
    for (size_t m = 0; m < modes.size(); m++) {
        std::remove((path + ".resident").c_str());
        pi_session_params session = session_params(1, 32);
        session.sparse = modes[m];
        const Floats expected = answer(load(path), session);
        if (m == 0 || full_circle()) {
            CHECK(same(expected, answer(load(folder / "model.gguf"), session)));
        }
        pi_session_params planned = session;
        planned.n_threads = planned.n_threads_batch = 4;
        const Bounds bounds = bounds_of(path, planned);
        CHECK(bounds.least < bounds.all);
        const uint64_t between = bounds.all - bounds.least;
        const uint64_t budgets[] = {bounds.least, bounds.least + between / 4,
                                    bounds.least + between * 3 / 4, bounds.all - 1};
        for (size_t i = 0; i < std::size(budgets); i++) {
            if (!full_circle() && (i + number) % modes.size() != m) continue;
            const uint64_t budget = budgets[i];
            session.n_threads = session.n_threads_batch = int32_t(i) + 1;
            const auto model = Model::load(path, model_params(budget, planned));
            CHECK(model->storage && model->store);
            if (!model->store) continue;
            CHECK(same(expected, answer(model, session)));
            CHECK(sum(model->store->counts).reads > 0);
            for (const StoreCounts& of_layer : model->store->counts) {
                CHECK(of_layer.needed[0] > 0 && (i > 0 || of_layer.bytes > 0));
            }
            CHECK(model->budget->limit() == budget && model->budget->reserved() <= budget);
        }
        const auto model = Model::load(path, model_params(bounds.all, planned));
        CHECK(!model->storage && !model->store);
    }
}

// A prompt that has far more rows than a micro-batch reads a neuron once, since the cache lends it
// memory; and its answer is the same.
void test_lending() {
    Shape shape = wide();
    shape.n_layer = 24;
    const std::string path = bundled(shape);
    for (const int32_t sparse : {PI_SPARSE_EXACT, PI_SPARSE_OFF}) {
        pi_session_params session = session_params(2, 8);
        session.sparse = sparse;
        session.n_batch = 120, session.n_ctx = 128;
        const Bounds bounds = bounds_of(path, session);
        const Tokens tokens = random_tokens(120, 5);
        const auto last = [&](Session& computing) {
            Floats out;
            eval(computing, tokens, {});
            append_logits(computing, 119, out);
            eval(computing, {tokens[0]}, {});
            append_logits(computing, 0, out);
            return out;
        };
        Session whole(load(path), session);
        const auto model = Model::load(
            path, model_params(bounds.least + (bounds.all - bounds.least) * 3 / 4, session));
        Session computing(model, session);
        const NeuronStore& store = *model->store;
        const StoreShape& shape_of = store.shape();
        const int64_t all = int64_t(shape_of.n_blocks) * shape_of.n;
        const uint64_t filled = sum(store.counts).bytes;
        eval(computing, tokens, {});
        const uint64_t read = sum(store.counts).bytes - filled;
        CHECK(double(read) < 1.1 * double(shape_of.slot_bytes(all, all)));
        computing.truncate(0, 0);
        CHECK(same(last(whole), last(computing)));
        const ResidencyShape& now = model->store->residency().shape();
        CHECK(shape_of.slot_bytes(now.gate_slots, now.up_down_slots) >
              uint64_t(0.95 * double(shape_of.cache_sectors * StoreShape::kSector)));
    }
}

// Audits find the same whatever is in memory, and however many rows come together.
void test_audits() {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 16);
    session.sparse = PI_SPARSE_PREDICTOR;
    const Bounds bounds = bounds_of(path, session);
    const auto audited = [&](uint64_t budget, size_t at_once) {
        Session computing(Model::load(path, model_params(budget, session)), session);
        const Tokens tokens = random_tokens(48, 3);
        const std::vector<char> generated(at_once, 1);
        for (auto i = tokens.begin(); i < tokens.end(); i += ptrdiff_t(at_once)) {
            eval(computing, Tokens(i, i + ptrdiff_t(at_once)),
                 {nullptr, nullptr, reinterpret_cast<const bool*>(generated.data())});
        }
        std::vector<int64_t> found;
        for (int64_t layer = 0; layer < shape.n_layer; layer++) {
            found.push_back(computing.audit.part(layer).fired);
            found.push_back(computing.audit.part(layer).found);
        }
        return found;
    };
    const std::vector<int64_t> expected = audited(bounds.least, 1);
    for (int64_t layer = 0; layer < shape.n_layer; layer++) {
        CHECK(expected[size_t(2 * layer)] > expected[size_t(2 * layer + 1)]);
        CHECK(expected[size_t(2 * layer + 1)] > 0);
    }
    const uint64_t more = bounds.least + (bounds.all - bounds.least) * 3 / 4;
    CHECK(audited(more, 1) == expected);
    CHECK(audited(more, 4) == expected);
    CHECK(audited(bounds.least, 12) == expected);
}

// Many tokens one by one, while the cache changes and the staging area is full at times: the same
// logits and counts.
void test_many_tokens(float threshold) {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 64);
    session.sparse = PI_SPARSE_PREDICTOR;
    session.sparse_threshold = threshold;
    const auto answered = [&](std::shared_ptr<const Model> model) {
        Session computing(std::move(model), session);
        Floats out;
        const bool generated = true;
        const Tokens tokens = random_tokens(check::kSanitized ? 60 : 120, 3);
        for (size_t i = 0; i < tokens.size(); i++) {
            if (i % 40 == 0) computing.truncate(0, 0);
            eval(computing, {tokens[i]}, {nullptr, nullptr, &generated});
            append_logits(computing, 0, out);
        }
        for (const ggml::NeuronCounts& of : computing.counts.neurons) {
            for (int64_t n : {of.rows, of.proposed, of.computed, of.fired}) out.push_back(float(n));
        }
        return out;
    };
    const Floats expected = answered(load(path));
    const Bounds bounds = bounds_of(path, session);
    for (const uint64_t eighth : {1, 3, 6}) {
        if (!full_circle() && (eighth == 3) == (threshold > 0)) continue;
        const uint64_t budget = bounds.least + (bounds.all - bounds.least) * eighth / 8;
        CHECK(same(expected, answered(Model::load(path, model_params(budget, session)))));
        std::remove((path + ".resident").c_str());
    }
}

// Without a profile the next run begins with what was needed, unless its file is damaged.
void test_resident() {
    Shape shape = wide();
    shape.predictor_rank = 32;
    const std::string path = bundled(shape), saved = path + ".resident";
    const pi_session_params session = session_params(2, 48);
    const Bounds bounds = bounds_of(path, session);
    const pi_model_params params =
        model_params(bounds.least + (bounds.all - bounds.least) / 2, session);
    const auto missed = [&] {
        const auto model = Model::load(path, params);
        Session computing(model, session);
        const Tokens tokens = random_tokens(90, 3);
        const bool generated = true;
        for (size_t i = 0; i < 10; i++)
            eval(computing, {tokens[i]}, {nullptr, nullptr, &generated});
        const StoreCounts c = sum(model->store->counts);
        const double share = double(c.missed[0] + c.missed[1]) / double(c.needed[0] + c.needed[1]);
        for (size_t i = 10; i < 90; i++) {
            eval(computing, {tokens[i]}, {nullptr, nullptr, &generated});
        }
        return share;
    };
    const double at_first = missed();
    CHECK(std::filesystem::exists(saved));
    CHECK(missed() < 0.9 * at_first);
    const auto size = std::filesystem::file_size(saved);
    std::filesystem::resize_file(saved, size - 9);
    CHECK(missed() == at_first);
    std::remove(saved.c_str());
    {
        pi_model_params silent = params;
        silent.bundle = false;
        const auto model = Model::load(path, silent);
        answer(model, session);
    }
    CHECK(!std::filesystem::exists(saved));
}

// Predictors of experts are read when a row chooses these, and stay as far as there is room.
void test_predictors(const Shape& shape) {
    const std::string path = bundled(shape);
    pi_session_params session = session_params(2, 32);
    session.sparse = PI_SPARSE_PREDICTOR;
    const Bounds bounds = bounds_of(path, session);
    const auto blocks = uint64_t(shape.n_layer * shape.n_expert);
    uint64_t before = UINT64_MAX;
    for (const uint64_t budget :
         {bounds.least, bounds.least + (bounds.all - bounds.least) / 4, bounds.all - 1}) {
        const auto model = Model::load(path, model_params(budget, session));
        const auto slots = uint64_t(model->storage->predictors.slots());
        // Between these, pages get room as far as a byte of them saves more than one of neurons.
        if (budget == bounds.least) CHECK(slots == 0);
        answer(model, session);
        const uint64_t n = sum(model->store->counts).predictors;
        CHECK(n >= blocks && (n < before || slots == 0));
        CHECK(slots < blocks || n == blocks);
        before = n;
    }
}

// Any order of arrival gives the same bits.
void test_orders(const Shape& shape, uint64_t n) {
    const std::string path = bundled(shape);
    const pi_session_params planned = session_params(3, 48);
    pi_session_params session = planned;
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, planned);
    for (uint64_t seed = 0; seed < n; seed++) {
        faulty::Order order;
        order.seed = seed;
        order.most = int(seed % 9) + 1;
        order.depth = int(seed % 7) * 20 + 1;
        const uint64_t budget = bounds.least + (bounds.all - bounds.least) * (seed % 10) / 10;
        const pi_model_params params = model_params(budget, planned);
        const auto late = faulty::at_random(seed, 0.1, {faulty::Fault::late});
        session.n_threads = int32_t(seed % 3) + 1;
        const auto model =
            with_reader(path, params, std::make_unique<faulty::Reader>(path, order, late));
        CHECK(same(expected, answer(model, session, kFew)));
    }
}

// Sessions that are opened later share what is left: one that does not fit is refused with a
// sentence, and does the others no harm.
void test_later_sessions() {
    const std::string path = bundled(wide());
    const pi_session_params session = session_params(2, 48);
    const Floats expected = answer(load(path), session, kFew);
    const Bounds bounds = bounds_of(path, session);
    const auto model =
        Model::load(path, model_params(bounds.least + (bounds.all - bounds.least) / 2, session));
    Session first(model, session);
    const uint64_t reserved = model->budget->reserved();
    for (int i = 0; i < 3; i++) {
        pi_session_params larger = session;
        larger.n_ctx += i;
        std::string said;
        try {
            Session(model, larger);
        } catch (const Error& e) {
            CHECK(e.code() == Code::memory);
            said = e.what();
        }
        CHECK(said.find("a context of") == 0 && said.find("would take") != said.npos);
        CHECK(model->budget->reserved() == reserved);
    }
    eval(first, random_tokens(8, 3));
}

// The least budget is named, and one byte less is refused; without a bundled file one is written,
// unless that is forbidden.
void test_budgets() {
    tiny::write(tiny::describe(wide()), folder / "model.gguf");
    const std::string path = folder / "model.gguf", bundle = path + ".bundle.gguf";
    const pi_session_params session = session_params(1, 48);
    const Bounds bounds = bounds_of(path, session);
    CHECK(!std::filesystem::exists(bundle));
    const auto error_of = [&](pi_model_params params) -> std::string {
        try {
            Model::load(path, params);
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    };
    const std::string said = error_of(model_params(bounds.least - 1, session));
    CHECK(std::strstr(said.c_str(), std::to_string(bounds.least).c_str()));
    pi_model_params without = model_params(bounds.least, session);
    without.bundle = false;
    CHECK(std::strstr(error_of(without).c_str(), "may not be written"));
    CHECK(!std::filesystem::exists(bundle));
    // Writing, weights and cache have one progress.
    std::vector<float> fractions;
    pi_model_params first = model_params(bounds.least + (bounds.all - bounds.least) / 2, session);
    first.progress_data = &fractions;
    first.progress = [](float fraction, void* data) {
        static_cast<std::vector<float>*>(data)->push_back(fraction);
        return true;
    };
    CHECK(error_of(first).empty());
    CHECK(std::filesystem::exists(bundle));
    CHECK(std::is_sorted(fractions.begin(), fractions.end()));
    CHECK(fractions.size() > 6 && fractions.back() == 1);
    CHECK(error_of(model_params(bounds.least, session)).empty());
    CHECK(error_of(without).empty());
}

}  // namespace

int main() {
    std::vector<Shape> all;
    for (DType type : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0}) {
        Shape shape = wide();
        shape.type = type;
        shape.biases = type == DType::Q8_0;
        all.push_back(shape);
    }
    all[1].activation = "silu";        // every neuron contributes
    for (int64_t n_expert : {0, 5}) {  // the same, in tiles while it is in memory
        all.push_back(wide());
        all.back().type = n_expert ? DType::Q4_0 : DType::Q8_0, all.back().activation = "silu";
        all.back().n_expert = n_expert, all.back().n_ff = n_expert ? 704 : 1504;
    }
    all.push_back(wide());
    all.back().n_expert = 5, all.back().n_ff = 700;
    all.push_back(wide());
    all.back().predictor_rank = 32;
    Shape mixture = wide();
    mixture.predictor_rank = 96, mixture.n_expert = 5, mixture.n_ff = 700;
    for (DType type : {DType::Q4_0, DType::F16}) {  // packed, and not
        all.push_back(mixture);
        all.back().type = type;
    }
    for (const bool sketch :
         {false, true}) {  // routed before attention, without predictors or with
        all.push_back(mixture);
        all.back().architecture = "smallthinker";
        all.back().predictor_rank = 0, all.back().sketch = sketch;
    }
    for (size_t i = 0; i < all.size(); i++) {
        if (check::kSanitized && all[i].type == DType::F16) continue;  // as F32, and slow
        std::vector<int32_t> modes = {PI_SPARSE_AUTO};                 // exact without predictors
        if (all[i].predictor_rank || all[i].sketch) {
            modes.push_back(PI_SPARSE_PREDICTOR);
            if (!check::kSanitized) modes.push_back(PI_SPARSE_EXACT);
        }
        test_shape(all[i], modes, i);
    }
    test_lending();
    test_audits();
    test_many_tokens(1);  // proposes 8%: lanes hold what one or two rows miss
    if (!check::kSanitized) test_many_tokens(0);  // proposes half: parts of a row
    test_resident();
    Shape narrow = wide();
    narrow.n_ff = 1000, narrow.n_layer = 2;
    // 63: each of seven depths with each number of reads that come at once.
    test_orders(narrow, check::kSanitized ? 40 : full_circle() ? 200 : 63);
    mixture.n_layer = 2, mixture.n_ff = 400;
    test_orders(mixture, check::kSanitized || !full_circle() ? 20 : 60);
    test_predictors(mixture);
    test_later_sessions();
    test_budgets();
    return check::summary("test_storage");
}
