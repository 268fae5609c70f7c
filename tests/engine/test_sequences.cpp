// The caller says which rows were generated. Results have the same bits for every way to compute
// the same rows, and nothing is reused that was computed differently. The predictors of these
// models are mostly wrong, so a row masked or unmasked by mistake changes the result.
#include <algorithm>
#include <functional>
#include <map>

#include "engine/sessions.h"
#include "session/state.h"

using namespace sessions;

namespace {

constexpr int64_t kPrompt = 70, kAll = 85;  // both beyond a page of 64

std::vector<Shape> predicted_shapes() {
    Shape plain, experts, window;
    plain.activation = "relu", plain.down_t = true, plain.predictor_rank = 32;
    experts = plain, experts.n_expert = 5, experts.n_ff = 64;
    window = plain, window.architecture = "llama", window.window = 30, window.type = DType::Q8_0;
    window.n_ff = 128, window.n_layer = 3;
    Shape latents = plain;
    latents.architecture = "deepseek2", latents.n_head_kv = 1, latents.head_dim = 32;
    latents.kv_rank = 64, latents.n_rot = 32, latents.v_dim = 20;
    return {plain, experts, window, latents};
}

pi_session_params with_mode(pi_sparse mode, DType kv = DType::F16) {
    pi_session_params params = session_params();
    params.sparse = mode;
    params.type_k = params.type_v = uint32_t(kv);
    params.n_seq = 3;
    return params;
}

// Rows in calls of any size, in any sequence, beside any other, with any number of threads.
void test_generated_rows(const Shape& shape, DType kv) {
    if (shape.head_dim % ggml::info(kv).block) return;
    const auto model = load(tiny::describe(shape));
    const Tokens tokens = random_tokens(kAll, 2);
    pi_session_params params = with_mode(PI_SPARSE_AUTO, kv);
    const Floats expected = [&] {
        Session session(model, params);
        return logits(session, tokens, 96, kPrompt);
    }();
    const Floats dense = [&] {
        Session session(model, params);
        return logits(session, tokens);
    }();
    const size_t prompt = size_t(kPrompt) * tiny::kVocab;
    CHECK(std::equal(dense.begin(), dense.begin() + ptrdiff_t(prompt), expected.begin()));
    CHECK(!std::equal(dense.begin() + ptrdiff_t(prompt), dense.end(),
                      expected.begin() + ptrdiff_t(prompt)));
    for (int32_t threads : {1, 3}) {
        for (int32_t ubatch : {1, 7, 64}) {
            params.n_threads = threads, params.n_ubatch = ubatch;
            for (size_t at_once : {1, 2, 5, 96}) {
                Session session(model, params);
                // A single row of a prompt in a call is still of a prompt.
                CHECK(same(logits(session, tokens, at_once, kPrompt), expected));
                CHECK(same(logits(session, tokens, at_once, SIZE_MAX, 2), dense));
                session.truncate(0, 3);
                CHECK(same(
                    logits(session, Tokens(tokens.begin() + 3, tokens.end()), at_once, kPrompt - 3),
                    Floats(expected.begin() + 3 * tiny::kVocab, expected.end())));
            }
        }
    }
    // In the other modes it makes no difference.
    for (pi_sparse mode : {PI_SPARSE_OFF, PI_SPARSE_EXACT, PI_SPARSE_PREDICTOR}) {
        Session a(model, with_mode(mode, kv)), b(model, with_mode(mode, kv));
        CHECK(same(logits(a, tokens, 96, kPrompt), logits(b, tokens, 1)));
    }
}

// Generated rows of one sequence between rows of prompts: many, and few enough to take turns.
void test_mixed_rows(const Shape& shape) {
    const auto model = load(tiny::describe(shape));
    const pi_session_params params = with_mode(PI_SPARSE_AUTO);
    const Tokens tokens = random_tokens(48, 12);
    for (const size_t n : {2, 12}) {
        Session mixed(model, params), alone(model, params);
        Tokens rows;
        std::vector<int32_t> seqs;
        std::vector<char> generated;
        const auto append = [&](int32_t seq, size_t begin, size_t end) {
            rows.insert(rows.end(), tokens.begin() + ptrdiff_t(begin),
                        tokens.begin() + ptrdiff_t(end));
            seqs.insert(seqs.end(), end - begin, seq);
            generated.insert(generated.end(), end - begin, seq == 0);
        };
        append(1, 0, n);
        append(0, 0, 2);
        append(2, 0, n);
        append(0, 2, 4);
        append(1, n, n + 1);
        const std::vector<char> keep(rows.size(), 1);
        eval(mixed, rows,
             {seqs.data(), reinterpret_cast<const bool*>(keep.data()),
              reinterpret_cast<const bool*>(generated.data())});
        Floats of[3];
        for (size_t i = 0; i < rows.size(); i++) append_logits(mixed, int32_t(i), of[seqs[i]]);
        const auto expected = [&](int32_t seq, size_t count) {
            return logits(alone, Tokens(tokens.begin(), tokens.begin() + ptrdiff_t(count)), 96,
                          seq == 0 ? 0 : SIZE_MAX, seq);
        };
        CHECK(same(of[0], expected(0, 4)));
        CHECK(same(of[1], expected(1, n + 1)) && same(of[2], expected(2, n)));
    }
}

// The number of positions of `tokens` (generated from n_prompt on) that a sequence already holds.
int64_t matching(const Session& session, const Tokens& tokens, int64_t n_prompt, int32_t seq = 0) {
    std::vector<char> generated(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++) generated[i] = int64_t(i) >= n_prompt;
    return session.match(seq, tokens.data(), reinterpret_cast<const bool*>(generated.data()),
                         int64_t(tokens.size()));
}

void test_match() {
    const auto model = load(tiny::describe(predicted_shapes()[0]));
    Tokens tokens = random_tokens(kAll, 4);
    Session masking(model, with_mode(PI_SPARSE_AUTO)), exact(model, with_mode(PI_SPARSE_EXACT));
    logits(masking, tokens, 9, kPrompt);
    logits(exact, tokens, 9, kPrompt);
    // With the same flags all positions match. As a prompt, only the prompt matches if the mode
    // depends on it.
    CHECK(matching(masking, tokens, kPrompt) == kAll);
    CHECK(matching(masking, tokens, kAll) == kPrompt);
    CHECK(matching(masking, tokens, kPrompt - 5) == kPrompt - 5);
    CHECK(matching(exact, tokens, kAll) == kAll);
    CHECK(masking.match(0, tokens.data(), nullptr, 10) == 10);
    CHECK(masking.match(0, tokens.data(), nullptr, 0) == 0);
    CHECK(matching(masking, tokens, kPrompt, 1) == 0);
    tokens[66] = (tokens[66] + 1) % tiny::kVocab;
    CHECK(matching(masking, tokens, kPrompt) == 66);
    CHECK_THROWS(argument, masking.match(3, tokens.data(), nullptr, 1));
}

// Sequences that share pages and continue differently, compared with sequences computed alone.
void test_copy(const Shape& shape) {
    const auto model = load(tiny::describe(shape));
    const Tokens a = random_tokens(kAll, 5), b = random_tokens(96, 6);
    const auto alone = [&](const Tokens& tokens, size_t n_prompt) {
        Session session(model, with_mode(PI_SPARSE_AUTO));
        return logits(session, tokens, 96, n_prompt);
    };
    for (const int64_t n : {0, 1, 63, 64, 65, 70, 85}) {
        Session session(model, with_mode(PI_SPARSE_AUTO));
        logits(session, a, 96, kPrompt);
        session.copy(0, 1, n);
        CHECK(session.length(1) == n && session.length(0) == kAll);
        CHECK(matching(session, a, kPrompt, 1) == n);
        Tokens joined(a.begin(), a.begin() + ptrdiff_t(n));
        joined.insert(joined.end(), b.begin() + ptrdiff_t(n), b.begin() + 90);
        // The copy continues, then the original, then a copy of the copy over sequence 0.
        const Floats expected = alone(joined, size_t(kPrompt));
        const Tokens rest(joined.begin() + ptrdiff_t(n), joined.end());
        const Floats got = logits(session, rest, 4, size_t(std::max<int64_t>(0, kPrompt - n)), 1);
        CHECK(same(got, Floats(expected.begin() + ptrdiff_t(n) * tiny::kVocab, expected.end())));
        Tokens longer = a;
        longer.insert(longer.end(), b.begin(), b.begin() + 7);
        const Floats on = alone(longer, size_t(kPrompt));
        CHECK(same(logits(session, Tokens(b.begin(), b.begin() + 7), 1, 0),
                   Floats(on.begin() + kAll * tiny::kVocab, on.end())));
        session.copy(1, 0, 66 < n ? 66 : n);
        session.truncate(1, 0);
        CHECK(matching(session, a, kPrompt) == std::min<int64_t>(n, 66));
        session.copy(0, 0, session.length(0) / 2);  // onto itself: truncates
        session.truncate(0, 0);
        CHECK(same(logits(session, joined, 5, kPrompt), expected));
    }
    Session session(model, with_mode(PI_SPARSE_AUTO));
    eval(session, a);
    CHECK_THROWS(argument, session.copy(0, 1, kAll + 1));
    CHECK_THROWS(argument, session.copy(0, 3, 1));
    CHECK_THROWS(argument, session.copy(-1, 0, 0));
    CHECK_THROWS(argument, session.copy(0, 1, -1));
}

// The pages that n sequences have, each with the number of those that have it.
std::map<int32_t, int64_t> owned(const Session& session) {
    std::map<int32_t, int64_t> owners;
    const Sequences& all = session.sequences();
    for (int32_t s = 0; s < all.count(); s++) {
        for (int64_t i = 0; i < pages_of(all.length(s)); i++) owners[all.pages(0, s)[i]]++;
    }
    return owners;
}

// Pages that appending rows to these sequences takes, counted by their pages.
int64_t needed(const Session& session, const std::vector<int32_t>& seqs) {
    std::map<int32_t, int64_t> rows, continued;
    for (int32_t s : seqs) rows[s]++;
    int64_t n = 0;
    for (const auto& [s, added] : rows) {
        const int64_t length = session.length(s);
        n += pages_of(length + added) - pages_of(length);
        if (length % kKvPage) continued[session.sequences().pages(0, s)[length / kKvPage]]++;
    }
    const auto owners = owned(session);
    for (const auto& [page, by] : continued) n += std::min(by, owners.at(page) - 1);
    return n;
}

// Random copies and texts, in a pool of some pages. It runs out when it must: never if it has three
// pages per sequence (0: as many).
void test_pages_come_back(int64_t n_pages) {
    const auto model = load(tiny::describe(predicted_shapes()[0]));
    pi_session_params params = with_mode(PI_SPARSE_AUTO);
    params.n_seq = 4, params.n_ctx = 130;
    params.n_kv = n_pages * kKvPage;
    Session session(model, params);
    if (n_pages == 0) n_pages = 12;
    CHECK(session.free_positions() == n_pages * kKvPage);
    std::vector<Tokens> held(4);
    std::mt19937 rng(1);
    int refused = 0;
    for (int step = 0; step < 400; step++) {
        const int32_t from = int32_t(rng() % 4), to = int32_t(rng() % 4);
        Tokens& seq = held[size_t(from)];
        const size_t cut = rng() % (seq.size() + 1);
        switch (rng() % 3) {
            case 0: {  // all sequences continue, or one does
                Tokens more;
                std::vector<int32_t> seqs;
                for (int32_t s = 0; s < 4; s++) {
                    const size_t n = s == from || step % 2 ? rng() % 24 : 0;
                    if (held[size_t(s)].size() + n > 130) continue;
                    const Tokens here = random_tokens(n, uint32_t(step + s));
                    more.insert(more.end(), here.begin(), here.end());
                    seqs.insert(seqs.end(), n, s);
                }
                if (more.empty()) break;
                const int64_t free = session.free_positions(), takes = needed(session, seqs);
                if (takes * kKvPage > free) {
                    refused++;
                    CHECK_THROWS(context, eval(session, more, {seqs.data()}));
                    CHECK(session.free_positions() == free);
                    break;
                }
                eval(session, more, {seqs.data()});
                CHECK(session.free_positions() == free - takes * kKvPage);
                for (size_t i = 0; i < more.size(); i++) {
                    held[size_t(seqs[i])].push_back(more[i]);
                }
                break;
            }
            case 1:
                session.copy(from, to, int64_t(cut));
                held[size_t(to)] = Tokens(seq.begin(), seq.begin() + ptrdiff_t(cut));
                break;
            default:
                session.truncate(from, int64_t(cut));
                seq.resize(cut);
        }
        const auto owners = owned(session);
        CHECK(session.free_positions() == (n_pages - int64_t(owners.size())) * kKvPage);
        CHECK(owners.empty() || (owners.begin()->first >= 0 && owners.rbegin()->first < n_pages));
    }
    CHECK((refused > 0) == (n_pages < 12));
    for (int32_t s = 0; s < 4; s++) {
        const Tokens& seq = held[size_t(s)];
        CHECK(session.length(s) == int64_t(seq.size()));
        CHECK(session.match(s, seq.data(), nullptr, int64_t(seq.size())) == int64_t(seq.size()));
        Session fresh(model, params);
        const std::vector<int32_t> where = {s};
        if (seq.empty() || seq.size() == 130 || n_pages < 12) continue;
        eval(fresh, seq);
        Floats a, b;
        eval(session, {7}, {where.data()});
        eval(fresh, {7});
        append_logits(session, 0, a);
        append_logits(fresh, 0, b);
        CHECK(same(a, b));
    }
}

std::vector<uint8_t> saved(const Session& session, int32_t seq) {
    std::vector<uint8_t> bytes(size_t(state_size(session, seq)));
    save_state(session, seq, bytes.data());
    return bytes;
}

std::vector<uint8_t> saved_part(const Session& session, int32_t seq, int64_t first, int64_t n) {
    std::vector<uint8_t> bytes(size_t(part_size(session, seq, first, n)));
    save_part(session, seq, first, n, bytes.data());
    return bytes;
}

// A sequence in parts: put together it is what the whole state gives, and goes on with its bits.
void test_parts(const Shape& shape) {
    const auto model = load(tiny::describe(shape));
    const Tokens tokens = random_tokens(kAll, 7);
    Session whole(model, with_mode(PI_SPARSE_AUTO)), other(model, with_mode(PI_SPARSE_AUTO));
    const Floats expected = logits(whole, tokens, 96, kPrompt);
    Session session(model, with_mode(PI_SPARSE_AUTO));
    const int64_t n = 77;
    logits(session, Tokens(tokens.begin(), tokens.begin() + n), 96, kPrompt, 1);
    const auto begin = saved_part(session, 1, 0, 64), end = saved_part(session, 1, 64, n - 64);
    CHECK(saved_part(session, 1, 0, n) == saved(session, 1));
    CHECK(saved_part(session, 1, 64, 0).size() > 0);

    // Shared pages stay what they are.
    load_part(other, 0, begin.data(), begin.size());
    other.copy(0, 2, 64);
    load_part(other, 2, end.data(), end.size());
    CHECK(other.length(0) == 64 && saved(other, 2) == saved(session, 1));
    CHECK(same(logits(other, Tokens(tokens.begin() + n, tokens.end()), 3, 0, 2),
               Floats(expected.begin() + n * tiny::kVocab, expected.end())));

    // A part belongs where it was, and is no whole state.
    const std::vector<uint8_t> before = saved(other, 0);
    CHECK_THROWS(format, load_part(other, 0, begin.data(), begin.size()));
    CHECK_THROWS(format, load_part(other, 1, end.data(), end.size()));
    CHECK_THROWS(format, load_state(other, 0, end.data(), end.size()));
    CHECK_THROWS(format, load_part(other, 0, end.data(), end.size() - 1));
    std::vector<uint8_t> damaged = end;
    damaged[40] ^= 1;  // a numerics key
    CHECK_THROWS(format, load_part(other, 0, damaged.data(), damaged.size()));
    CHECK(saved(other, 0) == before && other.length(1) == 0);
    CHECK_THROWS(argument, part_size(session, 1, 32, 8));  // no page begins there
    CHECK_THROWS(argument, part_size(session, 1, 64, n - 63));
    CHECK_THROWS(argument, part_size(session, 1, -64, 64));
    CHECK_THROWS(argument, part_size(session, 1, 0, -1));
    CHECK_THROWS(argument, part_size(session, 99, 0, 0));
    // Behind a page that is not full nothing can be appended.
    logits(other, {1}, 1, 0, 0);
    std::vector<uint8_t> off = end;
    const uint32_t first = 65;
    std::memcpy(&off[28], &first, sizeof(first));
    CHECK_THROWS(argument, load_part(other, 0, off.data(), off.size()));
}

void test_state(const Shape& shape) {
    const auto model = load(tiny::describe(shape));
    const Tokens tokens = random_tokens(kAll, 7);
    Session whole(model, with_mode(PI_SPARSE_AUTO)), other(model, with_mode(PI_SPARSE_AUTO));
    const Floats expected = logits(whole, tokens, 96, kPrompt);
    Session session(model, with_mode(PI_SPARSE_AUTO));
    const int64_t n = 77;  // seven generated ones with it
    logits(session, Tokens(tokens.begin(), tokens.begin() + n), 96, kPrompt, 1);
    std::vector<uint8_t> state = saved(session, 1);
    logits(other, random_tokens(50, 8), 7, 3, 2);
    load_state(other, 2, state.data(), state.size());
    CHECK(matching(other, tokens, kPrompt, 2) == n && saved(other, 2) == state);
    CHECK(same(logits(other, Tokens(tokens.begin() + n, tokens.end()), 3, 0, 2),
               Floats(expected.begin() + n * tiny::kVocab, expected.end())));

    // A state is refused in modes that would compute it differently, and accepted in others.
    const auto refused = [&](pi_session_params params, const char* word) {
        Session session(model, params);
        try {
            load_state(session, 0, state.data(), state.size());
            return false;
        } catch (const Error& e) {
            return e.code() == Code::format && std::strstr(e.what(), word) != nullptr;
        }
    };
    pi_session_params threshold = with_mode(PI_SPARSE_AUTO);
    threshold.sparse_threshold = 0.25f;
    for (const auto& params :
         {with_mode(PI_SPARSE_EXACT), with_mode(PI_SPARSE_PREDICTOR), threshold}) {
        CHECK(refused(params, "another mode"));
    }
    state = saved(whole, 0);
    std::vector<uint8_t> old = state;
    old[6] = '1';
    std::swap(state, old);
    CHECK(refused(with_mode(PI_SPARSE_AUTO), "another version"));
    std::swap(state, old);
    old = state;
    old[16]++;  // behind magic and fingerprint
    std::swap(state, old);
    CHECK(refused(with_mode(PI_SPARSE_AUTO), "rounds results differently"));
    std::swap(state, old);
    for (const int32_t token : {-1, tiny::kVocab, INT32_MAX}) {
        std::vector<uint8_t> changed = state;
        std::memcpy(&changed[56 + 4 * 76], &token, sizeof(token));  // the header has 56 bytes
        std::swap(state, changed);
        CHECK(refused(with_mode(PI_SPARSE_AUTO), "outside the vocabulary"));
        std::swap(state, changed);
    }
    // Exact and off are the same; auto equals them until a token is generated.
    Session exact(model, with_mode(PI_SPARSE_EXACT));
    logits(exact, tokens);
    state = saved(exact, 0);
    for (pi_sparse mode : {PI_SPARSE_OFF, PI_SPARSE_AUTO}) CHECK(!refused(with_mode(mode), ""));
    CHECK(refused(with_mode(PI_SPARSE_PREDICTOR), "another mode"));
    exact.truncate(0, 0);
    logits(exact, tokens, 96, kPrompt);
    state = saved(exact, 0);
    CHECK(!refused(with_mode(PI_SPARSE_OFF), ""));
    CHECK(refused(with_mode(PI_SPARSE_AUTO), "another mode"));
}

// A failed call leaves the sequence unchanged, including labels.
void test_failed_call() {
    const auto model = load(tiny::describe(predicted_shapes()[0]));
    pi_session_params params = with_mode(PI_SPARSE_AUTO);
    int calls = 0;
    params.should_stop = [](void* data) { return ++*static_cast<int*>(data) == 5; };
    params.should_stop_data = &calls;
    params.n_ubatch = 32;
    Session session(model, params);
    const Tokens tokens = random_tokens(kAll, 9);
    CHECK_THROWS(cancelled, eval(session, tokens));
    CHECK(session.length(0) == 0);
    params.should_stop = nullptr;
    Session fresh(model, params);
    CHECK(same(logits(session, tokens, 96, kPrompt), logits(fresh, tokens, 96, kPrompt)));
}

// A context longer than in training gives one warning, when the session begins.
void test_long_context() {
    const auto model = load(tiny::describe(predicted_shapes()[0]));
    std::vector<std::string> lines;
    pi_session_params params = with_mode(PI_SPARSE_OFF);
    params.log = [](int32_t level, const char* message, void* data) {
        CHECK(level == 2);
        static_cast<std::vector<std::string>*>(data)->push_back(message);
    };
    params.log_data = &lines;
    for (int32_t n_ctx : {0, 1, 128, 129}) {
        params.n_ctx = n_ctx;
        Session session(model, params);
        CHECK(lines.size() == size_t(n_ctx == 129));
    }
    CHECK(lines[0].find("129 positions goes beyond the 128 of its training") != std::string::npos);
}

// Predictors that miss neurons are reported once, with no other effect.
void test_audit() {
    std::vector<std::string> lines;
    const auto listening = [&](pi_sparse mode) {
        pi_session_params params = with_mode(mode);
        params.n_ctx = 2000;
        params.log = [](int32_t level, const char* message, void* data) {
            CHECK(level == 2);
            static_cast<std::vector<std::string>*>(data)->push_back(message);
        };
        params.log_data = &lines;
        return params;
    };
    const Shape shape = predicted_shapes()[0];
    Description d = tiny::describe(shape);
    d.keys[shape.architecture + ".context_length"] = uint32_t(2000);
    const auto model = load(d);
    const Tokens tokens = random_tokens(96, 10);
    for (pi_sparse mode : {PI_SPARSE_AUTO, PI_SPARSE_PREDICTOR}) {
        lines.clear();
        Session session(model, listening(mode));
        for (int i = 0; i < 15; i++) logits(session, tokens, 96, 0);
        CHECK(lines.size() == 1 && lines[0].find("--sparse exact") != std::string::npos);
        const auto& seen = session.audit;
        int64_t fired = 0, found = 0;
        for (int64_t i = 0; i < 2; i++) fired += seen.part(i).fired, found += seen.part(i).found;
        // In a random layer half the neurons fire, and a random predictor finds half of these.
        const double n_audited = 15 * 96 * 96 / 32.0;
        CHECK(std::fabs(double(fired) / n_audited - 0.5) < 0.1);
        CHECK(std::fabs(double(found) / double(fired) - 0.5) < 0.15);
    }
    // The counts do not depend on the sizes of the calls.
    Session one(model, listening(PI_SPARSE_AUTO)), many(model, listening(PI_SPARSE_AUTO));
    logits(one, tokens, 1, 5);
    logits(many, tokens, 96, 5);
    for (int64_t i = 0; i < 2; i++) {
        CHECK(one.audit.part(i).fired == many.audit.part(i).fired && one.audit.part(i).fired);
        CHECK(one.audit.part(i).found == many.audit.part(i).found);
    }
    // Prompts and models without predictors are not audited.
    lines.clear();
    Session prompts(model, listening(PI_SPARSE_AUTO)), exact(model, listening(PI_SPARSE_EXACT));
    for (int i = 0; i < 15; i++) logits(prompts, tokens);
    for (int i = 0; i < 15; i++) logits(exact, tokens, 96, 0);
    CHECK(lines.empty() && prompts.audit.part(0).fired == 0 && exact.audit.part(0).fired == 0);

    // Under `auto` a layer with a low recall in the file is computed exactly.
    Description poor = d;
    poor.keys["powerinfer.predictor.recall"] = 0.69f;
    const auto modest = load(poor);
    Session masked(model, with_mode(PI_SPARSE_AUTO)), unmasked(modest, with_mode(PI_SPARSE_AUTO));
    Session dense(model, with_mode(PI_SPARSE_EXACT)), asked(modest, with_mode(PI_SPARSE_PREDICTOR));
    const Floats full = logits(dense, tokens, 96, 0);
    CHECK(!same(logits(masked, tokens, 96, 0), full));
    CHECK(same(logits(unmasked, tokens, 96, 0), full));
    CHECK(!same(logits(asked, tokens, 96, 0), full));
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
    for (const Shape& shape : predicted_shapes()) {
        for (DType kv : {DType::F16, DType::F32, DType::Q8_0}) test_generated_rows(shape, kv);
        test_mixed_rows(shape);
        test_copy(shape);
        test_state(shape);
        test_parts(shape);
    }
    test_match();
    for (const int64_t n_pages : {0, 12, 5, 2}) test_pages_come_back(n_pages);
    test_failed_call();
    test_long_context();
    test_audit();
    return check::summary("test_sequences");
}
