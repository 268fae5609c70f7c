// Sequences of models whose layers see a window of the last positions. Their pools hold windows,
// and what is behind them while there is room: a sequence has the same bits as in a session that
// keeps everything, and can be cut exactly where what a row sees is there. Everything else is
// refused and changes nothing.
#include <algorithm>
#include <functional>
#include <map>

#include "engine/sessions.h"
#include "session/state.h"

using namespace sessions;

namespace {

constexpr int32_t kContext = 640;  // ten pages

Description windowed(int64_t n_layer, std::vector<int32_t> slides, uint32_t window) {
    Shape shape;
    shape.n_layer = n_layer, shape.window = window;
    Description d = tiny::describe(shape);
    d.keys["llama.context_length"] = uint32_t(kContext);
    d.keys["llama.attention.sliding_window_pattern"] = std::move(slides);
    return d;
}

struct Kind {
    const char* name;
    Description description;
    uint32_t window;
};

std::vector<Kind> kinds() {
    Shape folding;
    folding.architecture = "lfm2", folding.taps = 3, folding.n_layer = 4, folding.n_head_kv = 2;
    folding.tied = true, folding.window = 40;
    Description states = tiny::describe(folding);
    states.keys["lfm2.context_length"] = uint32_t(kContext);
    return {{"in turn", windowed(3, {1, 0, 1}, 50), 50},
            {"in all layers", windowed(2, {1, 1}, 130), 130},
            {"of one position", windowed(2, {1, 0}, 1), 1},
            {"beyond a page's end", windowed(2, {0, 1}, 65), 65},
            {"with states", std::move(states), 40}};
}

pi_session_params params_of(int64_t n_kv_old, int32_t n_seq = 4, int32_t n_ubatch = 32) {
    pi_session_params params = session_params(1, n_ubatch);
    params.n_ctx = params.n_batch = kContext;
    params.n_seq = n_seq;
    params.n_kv_old = n_kv_old;
    return params;
}

int64_t matching(const Session& session, const Tokens& tokens, int32_t seq = 0) {
    return session.match(seq, tokens.data(), nullptr, int64_t(tokens.size()));
}

std::vector<uint8_t> saved(const Session& session, int32_t seq) {
    std::vector<uint8_t> bytes(size_t(state_size(session, seq)));
    save_state(session, seq, bytes.data());
    return bytes;
}

// The rows of one call: of several sequences, with checkpoints before some.
struct Rows {
    Tokens tokens;
    std::vector<int32_t> seqs;
    std::vector<char> checkpoints;

    void add(int32_t seq, const Tokens& text, int64_t checkpoint = -1) {
        for (size_t i = 0; i < text.size(); i++) {
            tokens.push_back(text[i]);
            seqs.push_back(seq);
            checkpoints.push_back(int64_t(i) == checkpoint);
        }
    }
    // The logits of all rows.
    Floats eval(Session& session) const {
        const std::vector<char> keep(tokens.size(), 1);
        pi_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.n = int32_t(tokens.size());
        batch.token = tokens.data(), batch.seq = seqs.data();
        batch.keep = reinterpret_cast<const bool*>(keep.data());
        batch.checkpoint = reinterpret_cast<const bool*>(checkpoints.data());
        session.eval(batch);
        Floats out;
        for (int32_t i = 0; i < batch.n; i++) append_logits(session, i, out);
        return out;
    }
};

// Cancels the nth question whether to stop; 0: none.
struct Canceller {
    int64_t after = 0;
    static bool stop(void* data) {
        auto& left = static_cast<Canceller*>(data)->after;
        return left > 0 && --left == 0;
    }
};

// Every page of every class has as many owners as there are sequences with it in their tables.
bool pages_add_up(const Sequences& s) {
    for (int64_t kind = 0; kind < s.kv().n_kinds(); kind++) {
        const PagePool& pool = s.kv().pool(kind);
        std::map<int32_t, int32_t> owners;
        for (int32_t seq = 0; seq < s.count(); seq++) {
            for (int64_t i = s.first_page(kind, seq); i < pages_of(s.length(seq)); i++) {
                owners[s.pages(kind, seq)[i]]++;
            }
        }
        for (const auto& [page, n] : owners) {
            if (pool.owners(page) - pool.hidden_owners(page) != n) return false;
        }
        const auto visible = int64_t(owners.size());
        if (pool.n_pages() - pool.n_free() != visible + pool.n_hidden()) return false;
    }
    return true;
}

// The same random steps in a session that keeps all positions and in one with pools of some size.
// What the second one does has the bits of the first; what it refuses changes nothing.
class Walk {
 public:
    Walk(const std::shared_ptr<const Model>& model, int64_t n_kv_old, uint32_t seed)
        : rng_(seed),
          all_(model, with(params_of(INT64_MAX), cancel_all_)),
          some_(model, with(params_of(n_kv_old), cancel_some_)) {}

    void step() {
        const auto seq = int32_t(rng_() % 4);
        switch (rng_() % 10) {
            case 0:
                return cut(seq);
            case 1:
                return copy(seq);
            case 2:
                return save(seq);
            case 3:
                return fail(seq);
            case 4:
                return draft(seq);
            default:
                return go_on(seq);
        }
    }
    void check() {
        for (int32_t s = 0; s < 4; s++) {
            CHECK(all_.length(s) == some_.length(s));
            CHECK(all_.length(s) == int64_t(texts_[s].size()));
        }
        CHECK(pages_add_up(all_.sequences()) && pages_add_up(some_.sequences()));
        CHECK(some_.sequences().find(0, some_.length(0)).has_value());
    }
    int64_t refused = 0, cuts = 0;

 private:
    static pi_session_params with(pi_session_params params, Canceller& cancel) {
        params.should_stop = Canceller::stop;
        params.should_stop_data = &cancel;
        return params;
    }
    int64_t below(int64_t n) { return n > 0 ? int64_t(rng_() % uint64_t(n)) : 0; }

    Tokens more(int32_t seq, int64_t most) {
        Tokens text = random_tokens(size_t(1 + below(most)), rng_());
        const int64_t room = kContext - int64_t(texts_[seq].size());
        if (int64_t(text.size()) > room) text.resize(size_t(room));
        return text;
    }
    void append(int32_t seq, const Tokens& text) {
        texts_[seq].insert(texts_[seq].end(), text.begin(), text.end());
    }
    void go_on(int32_t seq) {
        Rows rows;
        const Tokens first = more(seq, rng_() % 4 ? 40 : 250);
        rows.add(seq, first, rng_() % 3 ? -1 : below(int64_t(first.size())));
        const auto other = int32_t((seq + 1) % 4);
        const Tokens second = rng_() % 2 ? more(other, 20) : Tokens();
        rows.add(other, second);
        if (rows.tokens.empty()) return empty(seq);
        CHECK(same(rows.eval(all_), rows.eval(some_)));
        append(seq, first), append(other, second);
    }
    // Both can be cut there, or neither is. The session with all positions refuses because of
    // states alone.
    void cut(int32_t seq) {
        const int64_t length = all_.length(seq);
        const int64_t n = rng_() % 2 ? std::max<int64_t>(0, length - below(80)) : below(length + 1);
        Tokens before(texts_[seq].begin(), texts_[seq].begin() + n);
        const int64_t at = std::min(matching(all_, before, seq), matching(some_, before, seq));
        if (matching(some_, before, seq) < n) {
            refused++;
            const std::vector<uint8_t> was = saved(some_, seq);
            CHECK_THROWS(unsupported, some_.truncate(seq, n));
            CHECK(saved(some_, seq) == was);
            if (!some_.sequences().states()) CHECK(n < some_.sequences().first_cut(seq));
        } else {
            cuts += n > 0;
        }
        if (matching(some_, {before.begin(), before.begin() + at}, seq) < at ||
            matching(all_, {before.begin(), before.begin() + at}, seq) < at) {
            return empty(seq);
        }
        all_.truncate(seq, at), some_.truncate(seq, at);
        texts_[seq].resize(size_t(at));
    }
    void empty(int32_t seq) {
        all_.truncate(seq, 0), some_.truncate(seq, 0);
        texts_[seq].clear();
    }
    void copy(int32_t seq) {
        const auto to = int32_t(rng_() % 4);
        const int64_t n = std::max<int64_t>(0, all_.length(seq) - below(40));
        const Tokens before(texts_[seq].begin(), texts_[seq].begin() + n);
        if (matching(some_, before, seq) < n || matching(all_, before, seq) < n) return;
        all_.copy(seq, to, n), some_.copy(seq, to, n);
        texts_[to] = before;
    }
    // Out of either session into the other one's place.
    void save(int32_t seq) {
        const bool swapped = rng_() % 2;
        const std::vector<uint8_t> a = saved(all_, seq), b = saved(some_, seq);
        const auto to = int32_t(rng_() % 4);
        load_state(some_, to, swapped ? a.data() : b.data(), swapped ? a.size() : b.size());
        load_state(all_, to, a.data(), a.size());
        texts_[to] = texts_[seq];
    }
    // A call that is cancelled. If it is longer than a pass, the windows before it may be lost.
    void fail(int32_t seq) {
        Rows rows;
        const Tokens text = more(seq, rng_() % 2 ? 30 : 300);
        if (text.empty()) return;
        rows.add(seq, text);
        cancel_some_.after = 1 + below(6);
        const int64_t before = some_.length(seq);
        const int64_t passes = (int64_t(text.size()) + 31) / 32,
                      layers = some_.model->config.n_layer;
        if (cancel_some_.after > passes * layers) cancel_some_.after = 1;
        CHECK_THROWS(cancelled, rows.eval(some_));
        cancel_some_.after = 0;
        if (text.size() <= 32) CHECK(some_.length(seq) == before);
        if (some_.length(seq) == before) return;
        CHECK(some_.length(seq) < before);
        const Tokens left(texts_[seq].begin(), texts_[seq].begin() + some_.length(seq));
        if (matching(all_, left, seq) < int64_t(left.size())) return empty(seq);
        all_.truncate(seq, int64_t(left.size()));
        texts_[seq] = left;
    }
    // Rows that are taken back, as those that were guessed wrongly.
    void draft(int32_t seq) {
        const Tokens text = more(seq, 12);
        if (text.empty()) return;
        Rows rows;
        rows.add(seq, text);
        CHECK(same(rows.eval(all_), rows.eval(some_)));
        const auto right = int64_t(below(int64_t(text.size()) + 1));
        append(seq, {text.begin(), text.begin() + right});
        const auto n = int64_t(texts_[seq].size());
        all_.truncate(seq, n), some_.truncate(seq, n);
    }

    std::mt19937 rng_;
    Canceller cancel_all_, cancel_some_;
    Session all_, some_;
    Tokens texts_[4];
};

void test_walks(const Kind& kind) {
    const auto model = load(kind.description);
    for (const int64_t n_kv_old : {0, 64, 640, 2000}) {
        int64_t refused = 0, cuts = 0;
        for (uint32_t seed = 1; seed <= 3; seed++) {
            Walk walk(model, n_kv_old, seed);
            for (int i = 0; i < 120; i++) {
                walk.step();
                walk.check();
            }
            refused += walk.refused, cuts += walk.cuts;
        }
        // Nothing is tested if nothing is ever given up, or nothing kept.
        CHECK(cuts > 0 && (n_kv_old > 64 || kind.window == 1 || refused > 0));
    }
}

// Pools have what is said of them, and --swa-full's everything.
void test_pools() {
    const auto model = load(windowed(3, {1, 0, 1}, 50));
    const auto pages = [&](int64_t n_kv_old, int32_t n_seq, int32_t n_active, int32_t n_ubatch) {
        pi_session_params params = params_of(n_kv_old, n_seq, n_ubatch);
        params.n_active = n_active;
        const Session session(model, params);
        const std::vector<KvClass>& classes = session.sequences().kv().classes();
        CHECK(classes.size() == 2 && classes[0].layers == std::vector<int64_t>{1});
        CHECK((classes[1].window == 50 && classes[1].layers == std::vector<int64_t>{0, 2}));
        CHECK(classes[0].n_pages == 10 * n_seq);
        return classes[1].n_pages;
    };
    // 49 positions and 32, 64 or 1 new ones.
    CHECK(pages(0, 1, 1, 32) == 3 && pages(0, 1, 0, 64) == 3 && pages(0, 1, 0, 1) == 2);
    CHECK(pages(0, 5, 2, 32) == 6 && pages(0, 5, 0, 32) == 15);
    CHECK(pages(64, 1, 1, 32) == 4 && pages(65, 1, 1, 32) == 5);
    CHECK(pages(640, 1, 1, 32) == 10 && pages(INT64_MAX, 3, 1, 32) == 30);
    CHECK(pages(-1, 1, 1, 32) == 10);  // there is RAM for all
    CHECK_THROWS(argument, pages(-2, 1, 1, 32));
    CHECK(pages(0, 2, 3, 32) == 6);
    // Where the budget leaves less, a quarter of that.
    pi_model_params how = pi_model_default_params();
    tiny::write(windowed(3, {1, 0, 1}, 50), folder / "small.gguf");
    const std::string path = folder / "small.gguf";
    pi_session_params least = params_of(0, 8);
    how.ram_budget = UINT64_MAX;
    const uint64_t needed = total(make_plan(*Model::inspect(path, how), least).parts, Tier::ram);
    const int64_t page = 64 * 2 * 2 * 64 * 2;  // of two layers, keys and values of 64 in F16
    how.ram_budget = needed + uint64_t(4 * (5 * page + page / 2));
    least.n_kv_old = -1;
    const Plan plan = make_plan(*Model::inspect(path, how), least);
    const Session session(Model::load(path, how), least);
    CHECK(session.params.n_kv_old == 5 * 64);
    for (const PlanPart& part : plan.parts) {
        if (part.part == Part::kv_old) CHECK(int64_t(part.bytes) / page == 5);
    }
    CHECK(total(plan.parts, Tier::ram) <= how.ram_budget);
}

// What can no longer be had is refused by name, and a checkpoint is as good as what it was taken
// of.
void test_refusals() {
    const auto model = load(windowed(3, {1, 0, 1}, 50));
    const Tokens tokens = random_tokens(620, 1), other = random_tokens(200, 2);
    Session session(model, params_of(128, 2));
    Rows rows;
    rows.add(0, tokens, 100);
    rows.eval(session);
    CHECK(session.params.n_checkpoints == 8);
    CHECK(matching(session, tokens) == 620 &&
          matching(session, {tokens.begin(), tokens.begin() + 150}) == 100);
    const int64_t first = session.sequences().first_cut(0);
    CHECK(first > 150 && first <= 620);
    std::string said;
    try {
        session.truncate(0, 150);
    } catch (const Error& e) {
        said = e.what();
    }
    CHECK(said ==
          "sequence 0 cannot be continued from position 150: the model's layers see a window "
          "of positions, and that of this one was given up: it is there at position 100, and "
          "from " +
              std::to_string(first) + " on");
    session.copy(0, 1, 100);  // from the checkpoint
    Tokens joined(tokens.begin(), tokens.begin() + 100);
    joined.insert(joined.end(), other.begin(), other.end());
    Session whole(model, params_of(INT64_MAX, 2));
    const Floats expected = logits(whole, joined, 640);
    const Floats got = logits(session, other, 640, SIZE_MAX, 1);
    CHECK(same(got, {expected.begin() + 100 * tiny::kVocab, expected.end()}));
    const int64_t now = session.sequences().first_cut(0);
    CHECK(now > first);  // the other one has taken pages
    CHECK_THROWS(unsupported, session.truncate(0, now - 1));
    session.truncate(0, now);
    CHECK(session.length(0) == now);
}

// Sequences that rest lose their windows first, and only they.
void test_rest() {
    const auto model = load(windowed(3, {1, 0, 1}, 50));
    pi_session_params params = params_of(0, 4);
    params.n_active = 2, params.n_checkpoints = 0;
    Session session(model, params);
    const auto text = [&](int32_t seq, size_t n) {
        Rows rows;
        rows.add(seq, random_tokens(n, uint32_t(seq) + 1));
        return rows.eval(session);
    };
    const auto known = [&](int32_t seq) {
        return session.sequences().find(seq, session.length(seq)).has_value();
    };
    text(0, 200), text(1, 200);
    CHECK_THROWS(context, text(2, 10));
    CHECK(session.length(2) == 0 && known(0) && known(1));
    session.rest(0, true);
    text(2, 40), text(2, 160);  // passes that lie in three pages
    CHECK(!known(0) && known(1) && known(2));
    CHECK_THROWS(argument, text(0, 1));
    CHECK(matching(session, random_tokens(200, 1), 0) == 0);
    session.truncate(0, 0);
    CHECK_THROWS(context, text(0, 1));
    session.rest(1, true);
    text(0, 30);  // which leaves room for the others
    CHECK(known(0) && known(1) && known(2));
    session.rest(0, true);
    text(1, 30);  // a call ends the rest
    CHECK_THROWS(context, text(0, 1));
    const std::vector<uint8_t> bytes = saved(session, 2);
    CHECK_THROWS(context, load_state(session, 3, bytes.data(), bytes.size()));
    CHECK_THROWS(argument, session.rest(4, true));
    session.rest(2, true);
    load_state(session, 3, bytes.data(), bytes.size());
    CHECK(known(3) && known(1));
}

// A sequence that has lost its window goes on at its end if a checkpoint of another one is there.
void test_checkpoint_at_the_end() {
    const auto model = load(windowed(3, {1, 0, 1}, 50));
    const Tokens tokens = random_tokens(230, 1);
    const Floats expected = [&] {
        Session whole(model, params_of(INT64_MAX, 1));
        return logits(whole, tokens, 640);
    }();
    pi_session_params params = params_of(0, 4);
    params.n_active = 2;
    Session session(model, params);
    const auto text = [&](int32_t seq, const Tokens& ids, int64_t checkpoint = -1) {
        Rows rows;
        rows.add(seq, ids, checkpoint);
        return rows.eval(session);
    };
    text(0, {tokens.begin(), tokens.begin() + 200});
    session.rest(0, true);
    text(1, random_tokens(200, 2));
    text(2, random_tokens(40, 3)), text(2, random_tokens(160, 4));
    CHECK(!session.sequences().find(0, 200).has_value());
    session.truncate(1, 0), session.truncate(2, 0);
    text(1, {tokens.begin(), tokens.begin() + 210}, 200);
    CHECK(matching(session, {tokens.begin(), tokens.begin() + 200}) == 200);
    session.truncate(0, 200);  // which it has already
    const Floats got = text(0, {tokens.begin() + 200, tokens.end()});
    CHECK(same(got, {expected.begin() + 200 * tiny::kVocab, expected.end()}));
    CHECK(pages_add_up(session.sequences()));
}

// Parts of a sequence whose windows were given up, and those of another one that has them.
void test_parts() {
    const auto model = load(windowed(3, {1, 0, 1}, 50));
    const Tokens tokens = random_tokens(400, 1);
    for (const int64_t n_kv_old : {0, 64, 640}) {
        Session from(model, params_of(n_kv_old, 1)), to(model, params_of(64, 1));
        const Floats expected = [&] {
            Session whole(model, params_of(INT64_MAX, 1));
            return logits(whole, tokens, 640);
        }();
        eval(from, {tokens.begin(), tokens.begin() + 330});
        for (int64_t at = 0; at < 320; at += 64) {
            std::vector<uint8_t> bytes(part_size(from, 0, at, 64));
            save_part(from, 0, at, 64, bytes.data());
            load_part(to, 0, bytes.data(), bytes.size());
            // The window of 49 before the end is there, or the sequence waits for more.
            const bool kept = from.sequences().first_page(1, 0) * 64 <= at + 64 - 49;
            CHECK(to.sequences().find(0, at + 64).has_value() == kept);
            if (!kept) CHECK_THROWS(argument, eval(to, {1}));
        }
        // What came before the parts is still there.
        if (n_kv_old == 640) CHECK(to.sequences().first_page(1, 0) == 1);
        const Floats got = logits(to, {tokens.begin() + 320, tokens.end()}, 640);
        CHECK(same(got, {expected.begin() + 320 * tiny::kVocab, expected.end()}));
    }
}

}  // namespace

int main() {
    for (const Kind& kind : kinds()) test_walks(kind);
    test_pools();
    test_refusals();
    test_rest();
    test_checkpoint_at_the_end();
    test_parts();
    return check::summary("test_windows");
}
