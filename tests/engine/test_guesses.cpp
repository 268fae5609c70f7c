// The layer that guesses tokens (multi-token prediction): a guess has the same bits however a
// sequence came to its positions, and changes nothing.
#include "engine/sessions.h"
#include "session/state.h"

using namespace sessions;

namespace {

constexpr int64_t kLayers = 3, kAll = 150;

// Attention with gates in all layers, and one behind them that guesses.
Description described() {
    Shape s;
    s.n_layer = kLayers + 1, s.n_head_kv = 2;
    Description d = tiny::describe(s), renamed;
    for (const auto& [key, value] : d.keys) {
        renamed.keys[key.rfind("llama.", 0) ? key : "qwen35." + key.substr(6)] = value;
    }
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    const auto add = [&](const std::string& name, std::vector<int64_t> ne, float mean) {
        const bool vector = ne.size() == 1;
        std::vector<float> values(size_t(vector ? ne[0] : ne[0] * ne[1]));
        const float scale = vector ? 0.2f : 1.5f / std::sqrt(float(ne[0]));
        for (float& v : values) v = mean + scale * normal(rng);
        renamed.tensors.push_back({name, DType::F32, ne, ggml::random_blocks(DType::F32, values)});
    };
    for (tiny::Tensor& t : d.tensors) {
        const size_t norm = t.name.find("ffn_norm");
        if (norm != t.name.npos) t.name.replace(norm, 8, "post_attention_norm");
        if (t.name.find("attn_q.") == t.name.npos) renamed.tensors.push_back(t);
    }
    for (int64_t i = 0; i <= kLayers; i++) {
        const std::string blk = "blk." + std::to_string(i) + ".";
        add(blk + "attn_q.weight", {s.n_embd, 2 * s.n_head * s.head_dim}, 0);
        add(blk + "attn_q_norm.weight", {s.head_dim}, 1);
        add(blk + "attn_k_norm.weight", {s.head_dim}, 1);
    }
    const std::string nextn = "blk." + std::to_string(kLayers) + ".nextn.";
    add(nextn + "eh_proj.weight", {2 * s.n_embd, s.n_embd}, 0);
    add(nextn + "enorm.weight", {s.n_embd}, 1);
    add(nextn + "hnorm.weight", {s.n_embd}, 1);
    renamed.keys["general.architecture"] = "qwen35";
    renamed.keys["qwen35.context_length"] = uint32_t(256);
    renamed.keys["qwen35.nextn_predict_layers"] = uint32_t(1);
    renamed.keys["qwen35.full_attention_interval"] = uint32_t(1);
    for (const char* key : {"conv_kernel", "group_count", "time_step_rank", "state_size"}) {
        renamed.keys[std::string("qwen35.ssm.") + key] = uint32_t(2);
    }
    renamed.keys["qwen35.ssm.inner_size"] = uint32_t(4);
    return renamed;
}

std::shared_ptr<const Model> guessing(bool nextn = true) {
    const tiny::Folder folder;
    const std::string path = folder / "m.gguf";
    tiny::write(described(), path);
    pi_model_params params = pi_model_default_params();
    params.use_mmap = false;
    params.nextn = nextn;
    return Model::load(path, params);
}

pi_session_params params_of(int32_t n_ubatch = 64) {
    pi_session_params params = session_params(1, n_ubatch);
    params.n_ctx = params.n_batch = 256;
    params.n_seq = 3;
    return params;
}

Floats guessed(Session& session, int32_t token, int32_t seq = 0) {
    const Guess found = session.guess(seq, token);
    Floats logits(found.logits, found.logits + tiny::kVocab);
    CHECK(found.token == std::max_element(logits.begin(), logits.end()) - logits.begin());
    CHECK(found.probability > 0 && found.probability <= 1);
    return logits;
}

Tokens part(const Tokens& tokens, int64_t begin, int64_t end) {
    return {tokens.begin() + begin, tokens.begin() + end};
}

// What is guessed behind `token` after the first n tokens, computed at once.
Floats expected_of(const std::shared_ptr<const Model>& model, const Tokens& tokens, int64_t n,
                   int32_t token) {
    Session session(model, params_of(256));
    eval(session, part(tokens, 0, n));
    return guessed(session, token);
}

void test_cuts(const std::shared_ptr<const Model>& model) {
    const Tokens tokens = random_tokens(kAll, 1);
    const Floats plain = logits(guessing(false), tokens, params_of());
    for (const int64_t n : {int64_t(1), int64_t(64), int64_t(65), kAll - 1}) {
        const Floats expected = expected_of(model, tokens, n, tokens[size_t(n)]);
        for (const int32_t threads : {1, 3}) {
            for (const int32_t at_once : {1, 7, 64}) {
                pi_session_params params = params_of(at_once == 7 ? 3 : 64);
                params.n_threads = threads;
                Session session(model, params);
                const Floats before = logits(session, part(tokens, 0, n), size_t(at_once));
                const int64_t free = session.free_positions();
                CHECK(same(guessed(session, tokens[size_t(n)]), expected));
                CHECK(session.length(0) == n && session.free_positions() == free);
                // The text is the one of the model without the layer.
                const Floats rest = logits(session, part(tokens, n, kAll), size_t(at_once));
                Floats all = before;
                all.insert(all.end(), rest.begin(), rest.end());
                CHECK(same(all, plain));
            }
        }
    }
}

// Rejected drafts, checkpoints, copies and saved states bring what a guess needs with them.
void test_ways(const std::shared_ptr<const Model>& model) {
    const Tokens tokens = random_tokens(kAll, 2);
    Session session(model, params_of());
    eval(session, part(tokens, 0, 100));
    const Tokens draft = part(tokens, 100, 112);
    for (int64_t kept = 12; kept >= 0; kept--) {
        if (kept == 12) eval(session, draft);
        session.truncate(0, 100 + kept);
        session.copy(0, 1, 100 + kept);
        const Floats expected = expected_of(model, tokens, 100 + kept, 9);
        CHECK(same(guessed(session, 9), expected) && same(guessed(session, 9, 1), expected));
        std::vector<uint8_t> bytes(size_t(state_size(session, 1)));
        save_state(session, 1, bytes.data());
        load_state(session, 2, bytes.data(), bytes.size());
        CHECK(same(guessed(session, 9, 2), expected));
    }
}

void test_refused(const std::shared_ptr<const Model>& model) {
    pi_session_params params = params_of();
    params.n_kv = 128, params.n_seq = 2;
    Session session(model, params);
    const auto refused_with = [](Session& s, int32_t seq, int32_t token, Code code) {
        try {
            s.guess(seq, token);
        } catch (const Error& e) {
            return e.code() == code;
        }
        return false;
    };
    CHECK(refused_with(session, 0, 1, Code::argument));  // it has no row yet
    eval(session, random_tokens(128, 3));
    CHECK(refused_with(session, 0, tiny::kVocab, Code::argument));
    CHECK(refused_with(session, 2, 1, Code::argument));
    CHECK(refused_with(session, 0, 1, Code::context));  // no page is free
    CHECK(session.length(0) == 128);
    Session without(guessing(false), params_of());
    eval(without, random_tokens(3, 3));
    CHECK(refused_with(without, 0, 1, Code::unsupported));
}

}  // namespace

int main() {
    unsetenv("GGML_ISA");
    const auto model = guessing();
    CHECK(model->guesses() && !guessing(false)->guesses());
    test_cuts(model);
    test_ways(model);
    test_refused(model);
    return check::summary("test_guesses");
}
