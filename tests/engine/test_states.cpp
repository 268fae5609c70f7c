// Sequences of models whose layers fold all positions into a state, which cannot be rewound. A
// sequence has the same bits however it came to its positions, and can be cut exactly where its
// state is known: everything else is refused and changes nothing.
#include <algorithm>
#include <functional>
#include <set>

#include "engine/sessions.h"
#include "session/state.h"

using namespace sessions;

namespace {

constexpr int64_t kAll = 150;  // positions: more than two pages

std::vector<Shape> shapes_with_states() {
    Shape plain;
    plain.architecture = "lfm2", plain.taps = 3, plain.n_layer = 4, plain.n_head_kv = 2;
    plain.tied = true;
    Shape packed = plain;
    packed.type = DType::Q8_0, packed.taps = 4, packed.n_layer = 3, packed.window = 30;
    Shape first = plain;  // only convolutions before the head
    first.taps = 2, first.n_layer = 5, first.n_embd = 52, first.n_ff = 75, first.type = DType::F16;
    first.head_dim = 13;
    return {plain, packed, first};
}

Shape predicted() {
    Shape s = shapes_with_states()[0];
    s.activation = "relu", s.down_t = true, s.predictor_rank = 32;
    return s;
}

std::shared_ptr<const Model> model_of(const Shape& shape) {
    Description d = tiny::describe(shape);
    d.keys["lfm2.context_length"] = uint32_t(256);
    return load(d);
}

pi_session_params params_of(int32_t n_seq = 3, int32_t n_ubatch = 64) {
    pi_session_params params = session_params(1, n_ubatch);
    params.n_ctx = params.n_batch = 256;
    params.n_seq = n_seq;
    return params;
}

Tokens part(const Tokens& tokens, int64_t begin, int64_t end) {
    return {tokens.begin() + begin, tokens.begin() + end};
}

Floats part(const Floats& logits, int64_t begin, int64_t end) {
    return {logits.begin() + begin * tiny::kVocab, logits.begin() + end * tiny::kVocab};
}

// Positions of a sequence that equal these tokens and can be continued.
int64_t matching(const Session& session, const Tokens& tokens, int32_t seq = 0) {
    return session.match(seq, tokens.data(), nullptr, int64_t(tokens.size()));
}

// Computes tokens of sequence 0 in one call, with checkpoints before some of them.
void eval_with(Session& session, const Tokens& tokens, const std::set<int64_t>& before,
               int32_t seq = 0) {
    const std::vector<int32_t> seqs(tokens.size(), seq);
    std::vector<char> flags(tokens.size());
    for (size_t i = 0; i < flags.size(); i++) flags[i] = before.count(int64_t(i)) > 0;
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = int32_t(tokens.size());
    batch.token = tokens.data(), batch.seq = seqs.data();
    batch.checkpoint = reinterpret_cast<const bool*>(flags.data());
    session.eval(batch);
}

Floats expected_of(const std::shared_ptr<const Model>& model, const Tokens& tokens,
                   const pi_session_params& params = params_of()) {
    Session session(model, params);
    return logits(session, tokens, 256);
}

// A sequence goes on with the bits that it has when it is computed at once.
bool goes_on(Session& session, const Tokens& tokens, const Floats& expected, int32_t seq = 0,
             size_t at_once = 5) {
    const int64_t n = session.length(seq), all = int64_t(tokens.size());
    const Floats got = logits(session, part(tokens, n, all), at_once, SIZE_MAX, seq);
    return same(got, part(expected, n, all));
}

std::vector<uint8_t> saved(const Session& session, int32_t seq) {
    std::vector<uint8_t> bytes(size_t(state_size(session, seq)));
    save_state(session, seq, bytes.data());
    return bytes;
}

// Any cut of a text into calls, any passes, any number of threads.
void test_cuts(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 1);
    const Floats expected = expected_of(model, tokens);
    for (const int32_t threads : {1, 3}) {
        for (const int32_t ubatch : {1, 7, 64, 256}) {
            pi_session_params params = params_of(3, ubatch);
            params.n_threads = threads;
            for (const size_t at_once : {1, 2, 7, 64, 256}) {
                if (ubatch > 7 && at_once < 7) continue;
                Session session(model, params);
                CHECK(same(logits(session, tokens, at_once, SIZE_MAX, 1), expected));
            }
        }
    }
}

// Rows of three texts in one call, in any order.
void test_interleaved(const Shape& shape) {
    const auto model = model_of(shape);
    std::vector<Tokens> texts;
    std::vector<Floats> expected;
    for (uint32_t s = 0; s < 3; s++) {
        texts.push_back(random_tokens(60, 10 + s));
        expected.push_back(expected_of(model, texts.back()));
    }
    std::mt19937 rng(3);
    for (const int32_t ubatch : {1, 5, 64}) {
        Session session(model, params_of(3, ubatch));
        std::vector<Floats> got(3);
        std::vector<size_t> at(3);
        while (at != std::vector<size_t>(3, 60)) {
            Tokens rows;
            std::vector<int32_t> seqs;
            for (size_t n = 1 + rng() % 30; n; n--) {
                const size_t s = rng() % 3;
                if (at[s] == 60) continue;
                rows.push_back(texts[s][at[s]++]);
                seqs.push_back(int32_t(s));
            }
            if (rows.empty()) continue;
            const std::vector<char> keep(rows.size(), 1);
            eval(session, rows, {seqs.data(), reinterpret_cast<const bool*>(keep.data()), nullptr});
            for (size_t i = 0; i < rows.size(); i++) {
                append_logits(session, int32_t(i), got[size_t(seqs[i])]);
            }
        }
        for (size_t s = 0; s < 3; s++) CHECK(same(got[s], expected[s]));
    }
}

// A text of a prompt that is too long to be kept row by row can be cut nowhere but at its ends.
void test_unknown_positions(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 2);
    const Floats expected = expected_of(model, tokens);
    Session session(model, params_of());
    eval(session, part(tokens, 0, 100));
    const std::vector<uint8_t> before = saved(session, 0);
    CHECK(matching(session, part(tokens, 0, 100)) == 100);
    CHECK(matching(session, tokens) == 100);
    CHECK(matching(session, part(tokens, 0, 99)) == 0);
    for (const int64_t n : {1, 64, 99}) {
        CHECK_THROWS(unsupported, session.truncate(0, n));
        CHECK_THROWS(unsupported, session.copy(0, 1, n));
    }
    CHECK_THROWS(argument, session.truncate(0, 101));
    CHECK_THROWS(argument, session.copy(0, 1, -1));
    CHECK(saved(session, 0) == before && session.length(1) == 0);
    session.truncate(0, 100);
    session.copy(0, 1, 100);
    session.copy(0, 2, 0);
    CHECK(goes_on(session, tokens, expected, 1, 50));
    CHECK(goes_on(session, tokens, expected, 0));
    // The copy's long last call cannot be cut, that of the original can.
    CHECK(matching(session, part(tokens, 0, 149), 1) == 0);
    CHECK(matching(session, part(tokens, 0, 147)) == 147);
    session.truncate(0, 0);
    CHECK(session.length(0) == 0 && goes_on(session, tokens, expected, 0, 256));
}

// Drafts: rows of the last call are rejected, so that the accepted ones are folded once more.
void test_drafts(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 4), wrong = random_tokens(kAll, 5);
    const Floats expected = expected_of(model, tokens);
    for (const int32_t ubatch : {1, 3, 64}) {
        for (const int64_t begin : {0, 1, 70}) {
            Session session(model, params_of(3, ubatch));
            if (begin) eval(session, part(tokens, 0, begin));
            std::mt19937 rng(6);
            while (session.length(0) < 140) {
                const int64_t at = session.length(0);
                const int64_t drafted = 1 + int64_t(rng() % kReplayedRows);
                const int64_t right = int64_t(rng() % uint32_t(drafted + 1));
                Tokens draft = part(tokens, at, std::min(kAll, at + drafted));
                for (size_t i = size_t(right); i < draft.size(); i++) {
                    draft[i] = (tokens[size_t(at) + i] + 1) % tiny::kVocab;
                }
                eval(session, draft);
                const int64_t n = std::min(at + right, session.length(0));
                CHECK(matching(session, tokens) == n);
                // Copies and cuts come to the same state.
                session.copy(0, 1, n);
                const int64_t middle = at + (n - at) / 2;
                if (n > at && rng() % 2) {
                    session.copy(0, 2, middle);
                    CHECK(goes_on(session, part(tokens, 0, middle + 3), expected, 2));
                }
                session.truncate(0, n);
                CHECK(saved(session, 0) == saved(session, 1));
                if (rng() % 2 && n > at) {  // and once more, to an earlier row
                    session.truncate(0, n - 1);
                    eval(session, {tokens[size_t(n - 1)]});
                }
                if (!right) eval(session, {tokens[size_t(at)]});
            }
            CHECK(goes_on(session, tokens, expected));
        }
    }
    // The position before the last call is known, too.
    Session session(model, params_of());
    eval(session, part(tokens, 0, 40));
    eval(session, part(wrong, 0, kReplayedRows));
    CHECK(matching(session, tokens) == 40);
    session.truncate(0, 40);
    CHECK(goes_on(session, tokens, expected));
    // More rows than are kept are no draft.
    session.truncate(0, 0);
    eval(session, part(tokens, 0, 40));
    eval(session, part(tokens, 40, 41 + kReplayedRows));
    CHECK_THROWS(unsupported, session.truncate(0, 42));
    CHECK_THROWS(unsupported, session.truncate(0, 40));
}

// Checkpoints within a call, at its beginning, where passes meet, and in another sequence.
void test_checkpoints(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 7), other = random_tokens(kAll, 8);
    const Floats expected = expected_of(model, tokens);
    for (const int32_t ubatch : {1, 7, 64, 256}) {
        for (const int64_t first : {0, 50}) {
            Session session(model, params_of(3, ubatch));
            if (first) eval(session, part(tokens, 0, first));
            std::set<int64_t> at;
            for (const int64_t n : {0, 1, 14, 64, 90}) at.insert(n);
            eval_with(session, part(tokens, first, kAll), at);
            for (const int64_t n : at) {
                CHECK(matching(session, part(tokens, 0, first + n)) == first + n);
                CHECK(n <= 1 || matching(session, part(tokens, 0, first + n - 1)) < first + n - 1);
            }
            // Their prefix is that of a text which goes on differently.
            Tokens joined = part(tokens, 0, first + 64);
            joined.insert(joined.end(), other.begin() + first + 64, other.end());
            const Floats of_joined = expected_of(model, joined);
            session.copy(0, 1, first + 64);
            CHECK(goes_on(session, joined, of_joined, 1));
            CHECK(matching(session, part(tokens, 0, first + 20), 1) == first + 14);
            session.truncate(0, first + 90);
            CHECK(goes_on(session, tokens, expected));
            session.truncate(0, first + 14);
            CHECK(goes_on(session, tokens, expected, 0, 100));
            session.truncate(1, first + 1);
            CHECK(goes_on(session, tokens, expected, 1, 1));
        }
    }
    // Rows of another sequence between: each has its own.
    Session session(model, params_of());
    Tokens rows;
    std::vector<int32_t> seqs;
    std::vector<char> flags;
    for (size_t i = 0; i < 40; i++) {
        for (const int32_t s : {0, 1}) {
            rows.push_back(s ? other[i] : tokens[i]);
            seqs.push_back(s);
            flags.push_back(i == (s ? 20 : 30));
        }
    }
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = int32_t(rows.size());
    batch.token = rows.data(), batch.seq = seqs.data();
    batch.checkpoint = reinterpret_cast<const bool*>(flags.data());
    session.eval(batch);
    CHECK(matching(session, part(tokens, 0, 39)) == 30);
    CHECK(matching(session, part(other, 0, 39), 1) == 20);
    session.truncate(0, 30), session.truncate(1, 20);
    CHECK(goes_on(session, tokens, expected));
    CHECK(goes_on(session, other, expected_of(model, other), 1));
}

// What is dropped: first what no sequence has, then where little would have to be computed again.
void test_worth() {
    const auto model = model_of(shapes_with_states()[0]);
    const Tokens tokens = random_tokens(kAll, 9), other = random_tokens(kAll, 10);
    pi_session_params params = params_of();
    params.n_checkpoints = 3;
    Session session(model, params);
    CHECK(session.params.n_checkpoints == 3);
    const auto kept = [&] {
        std::vector<int64_t> at = session.sequences().checkpoints();
        std::sort(at.begin(), at.end());
        return at;
    };
    using Positions = std::vector<int64_t>;
    eval_with(session, tokens, {100, 104, 120});
    CHECK((kept() == Positions{100, 104, 120}));
    eval_with(session, part(other, 0, 80), {60}, 1);
    CHECK((kept() == Positions{60, 100, 120}));  // 104 saves 4 positions
    session.truncate(1, 0);                      // no sequence has it any more
    CHECK((kept() == Positions{60, 100, 120}));
    session.truncate(0, 0);
    eval_with(session, tokens, {100, 110});      // 100 is there already
    CHECK((kept() == Positions{60, 100, 110}));  // of two without use the older one is dropped
    session.truncate(0, 110);
    CHECK(session.length(0) == 110);
    // Without checkpoints nothing is kept, and nothing goes wrong.
    params.n_checkpoints = 0;
    Session without(model, params);
    eval_with(without, tokens, {100});
    CHECK(without.sequences().checkpoints().empty());
    CHECK(matching(without, part(tokens, 0, 100)) == 0);
    params.n_checkpoints = 65;
    CHECK_THROWS(argument, Session(model, params));
    // Models without states have none.
    const auto plain = load(tiny::describe(Shape()));
    params = session_params();
    params.n_checkpoints = 5;
    Session attention(plain, params);
    CHECK(attention.params.n_checkpoints == 0);
    eval_with(attention, part(tokens, 0, 20), {10});
    attention.truncate(0, 7);
    CHECK(matching(attention, tokens) == 7);
}

// Checkpoints give up their pages when sequences need them, and never cost one a position.
void test_pages() {
    const auto model = model_of(shapes_with_states()[0]);
    pi_session_params params = params_of(2);
    params.n_ctx = 192, params.n_kv = 4 * kKvPage, params.n_checkpoints = 4;
    Session session(model, params);
    const Tokens a = random_tokens(192, 11), b = random_tokens(192, 12);
    const Floats of_a = expected_of(model, a);
    eval_with(session, part(a, 0, 190), {30, 70, 130, 140});
    CHECK(session.free_positions() == kKvPage);
    session.truncate(0, 0);
    CHECK(session.free_positions() == 4 * kKvPage);  // what checkpoints have counts as free
    // Each begins in the middle of a page that it then shares: there is room all the same.
    eval_with(session, part(a, 0, 192), {10, 20, 74, 150});
    eval(session, part(b, 0, 64), {std::vector<int32_t>(64, 1).data()});
    CHECK(session.free_positions() == 0);
    CHECK_THROWS(context, eval(session, {1}, {std::vector<int32_t>(1, 1).data()}));
    const int64_t n = matching(session, part(a, 0, 191));
    session.truncate(0, n);
    CHECK(goes_on(session, a, of_a));
    // Random texts, cuts and checkpoints in a pool that is too small: pages are never lost.
    std::mt19937 rng(13);
    std::vector<Tokens> held(2);
    session.truncate(0, 0), session.truncate(1, 0);
    for (int step = 0; step < 300; step++) {
        const int32_t s = int32_t(rng() % 2);
        Tokens& text = held[size_t(s)];
        const int64_t length = int64_t(text.size());
        const int64_t added = std::min<int64_t>(192 - length, 1 + int64_t(rng() % 60));
        if (added > 0 && rng() % 3) {
            const Tokens more = part(rng() % 2 ? a : b, length, length + added);
            const int64_t free = session.free_positions();
            const int64_t takes = pages_of(length + added) - pages_of(length);
            const std::set<int64_t> at = {int64_t(rng() % 60), int64_t(rng() % 60)};
            bool fits = true;
            try {
                eval_with(session, more, at, s);
            } catch (const Error& e) {
                CHECK(e.code() == Code::context);
                fits = false;
            }
            CHECK(fits || takes * kKvPage > free - kKvPage);
            if (fits) text.insert(text.end(), more.begin(), more.end());
        } else {
            const int64_t n =
                session.match(s, text.data(), nullptr, int64_t(rng() % uint32_t(length + 1)));
            session.truncate(s, n);
            text.resize(size_t(n));
        }
        CHECK(session.length(s) == int64_t(text.size()));
        CHECK(session.match(s, text.data(), nullptr, int64_t(text.size())) == int64_t(text.size()));
    }
    for (int32_t s = 0; s < 2; s++) {
        const Tokens& text = held[size_t(s)];
        if (text.empty() || text.size() == 192) continue;
        Session fresh(model, params);
        eval(fresh, text);
        CHECK(saved(session, s) == saved(fresh, 0));
    }
}

// A call that stops anywhere leaves the sequences as they were.
void test_stops(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 14);
    const Floats expected = expected_of(model, tokens);
    int left = 0;  // checks until the stop
    pi_session_params params = params_of(2, 32);
    params.should_stop = [](void* data) { return --*static_cast<int*>(data) == 0; };
    params.should_stop_data = &left;
    Session session(model, params);
    eval(session, part(tokens, 0, 40));
    eval(session, part(tokens, 0, 40), {std::vector<int32_t>(40, 1).data()});
    const std::vector<uint8_t> before = saved(session, 0);
    int stops = 0;
    for (;; stops++) {
        left = stops + 1;
        try {
            eval_with(session, part(tokens, 40, 140), {0, 30, 50});
            break;
        } catch (const Error& e) {
            CHECK(e.code() == Code::cancelled);
        }
        CHECK(session.length(0) == 40 && saved(session, 0) == before);
        CHECK(saved(session, 1) == before);
        CHECK(matching(session, part(tokens, 0, 140)) == 40);
        if (stops % 5 == 0) {
            session.copy(0, 1, 40);
            left = 0;
            CHECK(goes_on(session, part(tokens, 0, 60), expected, 1));
            session.copy(0, 1, 40);
        }
    }
    CHECK(stops >= int(3 * shape.n_layer));
    left = 0;
    CHECK(goes_on(session, tokens, expected) && goes_on(session, tokens, expected, 1));
}

// Saved states hold what the layers have folded; parts do where it is known.
void test_saved(const Shape& shape) {
    const auto model = model_of(shape);
    const Tokens tokens = random_tokens(kAll, 15);
    const Floats expected = expected_of(model, tokens);
    Session session(model, params_of());
    eval_with(session, part(tokens, 0, 140), {64, 100});
    const std::vector<uint8_t> whole = saved(session, 0);
    Session other(model, params_of());
    eval(other, random_tokens(30, 16));
    load_state(other, 0, whole.data(), whole.size());
    CHECK(saved(other, 0) == whole && matching(other, tokens) == 140);
    CHECK(matching(other, part(tokens, 0, 139)) == 0);
    CHECK(goes_on(other, tokens, expected));
    const std::string path = folder / "state";
    save_state_file(session, 0, path);
    load_state_file(other, 2, path);
    CHECK(saved(other, 2) == whole && goes_on(other, tokens, expected, 2));

    const auto saved_part = [&](int64_t first, int64_t n) {
        std::vector<uint8_t> bytes(size_t(part_size(session, 0, first, n)));
        save_part(session, 0, first, n, bytes.data());
        return bytes;
    };
    const auto load = [&](const std::vector<uint8_t>& bytes) {
        load_part(other, 1, bytes.data(), bytes.size());
    };
    // At position 64 there is a checkpoint, at 128 the state is not known.
    const auto begin = saved_part(0, 64), middle = saved_part(64, 64), end = saved_part(128, 12);
    const auto upto = saved_part(64, 36);  // to a checkpoint
    CHECK(begin.size() > middle.size());
    load(begin);
    CHECK(matching(other, tokens, 1) == 64);
    other.copy(1, 2, 64);
    CHECK(goes_on(other, tokens, expected, 2));
    load(middle);
    CHECK(other.length(1) == 128 && matching(other, tokens, 1) == 0);
    CHECK_THROWS(argument, eval(other, {1}, {std::vector<int32_t>(1, 1).data()}));
    CHECK_THROWS(unsupported, other.truncate(1, 64));
    CHECK(other.length(1) == 128);
    load(end);
    CHECK(saved(other, 1) == whole && goes_on(other, tokens, expected, 1));
    other.truncate(1, 0);
    load(begin), load(upto);
    CHECK(goes_on(other, tokens, expected, 1));
    // Bytes that are cut off, or too many, are no state.
    for (const size_t n : {whole.size() - 1, whole.size() - 4, begin.size()}) {
        CHECK_THROWS(format, load_state(other, 1, whole.data(), n));
    }
    CHECK(goes_on(other, tokens, expected, 1));
    std::vector<uint8_t> more = whole;
    more.push_back(0);
    CHECK_THROWS(format, load_state(other, 1, more.data(), more.size()));
}

// The plan is what a session takes, and states are a part of it.
void test_plan() {
    const Shape shape = shapes_with_states()[0];
    const auto model = model_of(shape);
    const uint64_t before = model->budget->reserved();
    for (const int32_t n_seq : {1, 4}) {
        pi_session_params params = params_of(n_seq);
        params.n_checkpoints = 2;
        const Plan plan = make_plan(*model, params);
        uint64_t states = 0;
        for (const PlanPart& p : plan.parts) states += p.part == Part::states ? p.bytes : 0;
        const int64_t slot = 2 * 2 * shape.n_embd;  // two layers of two columns
        CHECK(states >= uint64_t(2 * n_seq + 2) * uint64_t(slot) * sizeof(float));
        Session session(model, params);
        CHECK(model->budget->reserved() - before ==
              total(plan.parts, Tier::ram) - total(model->plan.parts, Tier::ram));
    }
    // As many checkpoints as a sixteenth of the budget has room for, but no more than eight.
    pi_session_params params = resolve_session_params(*model, params_of());
    CHECK(params.n_checkpoints == 8);
    for (const PlanPart& p : make_plan(*load(tiny::describe(Shape())), session_params()).parts) {
        CHECK(p.part != Part::states);
    }
}

// Adapters and other reasons to begin anew leave nothing behind. Masked rows stay apart.
void test_generated() {
    const auto model = model_of(predicted());
    const Tokens tokens = random_tokens(kAll, 17);
    pi_session_params params = params_of();
    params.sparse = PI_SPARSE_AUTO;
    Session session(model, params), whole(model, params);
    const Floats expected = logits(whole, tokens, 256, 100);
    logits(session, part(tokens, 0, 100), 64);
    CHECK(same(logits(session, part(tokens, 100, kAll), 7, 0), part(expected, 100, kAll)));
    // As a prompt the generated rows are other ones.
    CHECK(matching(session, tokens) == 0);
    session.truncate(0, 0);
    eval_with(session, part(tokens, 0, 100), {80});
    logits(session, part(tokens, 100, kAll), 7, 0);
    CHECK(matching(session, tokens) == 80);
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
    for (const Shape& shape : shapes_with_states()) {
        test_cuts(shape);
        test_interleaved(shape);
        test_unknown_positions(shape);
        test_drafts(shape);
        test_checkpoints(shape);
        test_stops(shape);
        test_saved(shape);
    }
    test_worth();
    test_pages();
    test_plan();
    test_generated();
    return check::summary("test_states");
}
