// Calls that end in the middle of reads: in a child of fork(), which gets none of its parent's, and
// where the disk's reader itself fails.
#include "faulty_reader.h"
#include "in_child.h"
#include "stored_models.h"

namespace {

using namespace stored;

std::string written(const Shape& shape) {
    const std::string path = folder / "interrupted.gguf";
    std::remove((path + ".resident").c_str());
    tiny::write(tiny::describe(shape), path);
    return path;
}

// A model of which the least that is possible is in memory.
std::shared_ptr<const Model> with_least(const std::string& path, const pi_session_params& session) {
    pi_model_params params = model_params(bounds_of(path, session).least, session);
    params.mmap_anyway = true;
    return Model::load(path, params);
}

#if !defined(__SANITIZE_THREAD__)
// Blocks that are used in order are asked for early. A child asks again.
void test_blocks_of_a_parent() {
    Shape shape;
    shape.type = DType::Q4_0, shape.n_embd = 128, shape.n_ff = 1024, shape.n_layer = 12;
    const pi_session_params session = session_params(1, 48);
    const std::string path = written(shape);
    const Floats expected = answer(load(path), session, kFew);
    for (const std::string& io : ways()) {
        setenv("POWERINFER_IO", io.c_str(), 1);
        const auto model = with_least(path, session);
        CHECK(same(expected, answer(model, session, kFew)));
        model->experts->begin(1);
        CHECK(model->experts->reader().owed() > 0);
        for (int child = 0; child < 2; child++) {
            CHECK(in_child([&] { return same(expected, answer(model, session, kFew)); }));
        }
        CHECK(same(expected, answer(model, session, kFew)));
    }
    unsetenv("POWERINFER_IO");
}

// Nor does a child keep room for experts that its parent had guessed.
void test_guesses_of_a_parent() {
    Shape shape;
    shape.type = DType::Q8_0, shape.n_embd = 128, shape.n_ff = 256, shape.n_layer = 3;
    shape.n_expert = 24;
    const pi_session_params session = session_params(1, 48);
    const auto model = with_least(written(shape), session);
    ExpertStore& store = *model->experts;
    const auto room = [&] {
        int32_t n = 0;
        while (n < shape.n_expert && store.request(n)) n++;
        return n;
    };
    CHECK(in_child([&] {
        store.begin(1);
        return room() == store.shape().landings;
    }));
    store.begin(1);
    for (int32_t expert = 0; expert < 4; expert++) store.guess(0, &expert, 1);
    CHECK(store.reader().owed() > 0);
    CHECK(in_child([&] {
        store.begin(1);
        return room() == store.shape().landings;
    }));
    store.reset();
    CHECK(room() == store.shape().landings);
    store.reset();
}
#endif

// Where even the end of a failed call fails, its rows are gone all the same.
void test_a_broken_reader() {
    const pi_session_params params = session_params(1, 48);
    const std::string path = bundled(wide());
    bool broken = false;
    faulty::Order order;
    order.broken = &broken;
    const auto model = with_reader(path, model_params(bounds_of(path, params).least, params),
                                   std::make_unique<faulty::Reader>(path, order));
    const Tokens tokens = random_tokens(30, 5), first(tokens.begin(), tokens.begin() + 20),
                 rest(tokens.begin() + 20, tokens.end());
    const Floats expected = logits(load(path), tokens, params);
    Session session(model, params);
    Floats found = logits(session, first);
    const int64_t free = session.free_positions();
    for (int call = 0; call < 3; call++) {
        broken = true;
        CHECK_THROWS(internal, eval(session, rest));
        CHECK(session.length(0) == 20 && session.free_positions() == free);
        broken = false;
    }
    const Floats last = logits(session, rest);
    found.insert(found.end(), last.begin(), last.end());
    CHECK(same(found, expected));
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
#if !defined(__SANITIZE_THREAD__)
    test_blocks_of_a_parent();
    test_guesses_of_a_parent();
#endif
    test_a_broken_reader();
    return check::summary("test_interrupted");
}
