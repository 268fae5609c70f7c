// Shared by the session tests: random models and tokens, and logits of all tokens.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ggml/check.h"
#include "session/session.h"
#include "tiny_model.h"

namespace sessions {

using namespace powerinfer;
using ggml::Code;
using ggml::DType;
using ggml::Error;
using tiny::Description;
using tiny::Shape;

using Floats = std::vector<float>;
using Tokens = std::vector<int32_t>;

inline const tiny::Folder folder;

inline std::shared_ptr<const Model> load(const std::string& path, bool use_mmap = true,
                                         int32_t n_threads = 1) {
    pi_model_params params = pi_model_default_params();
    params.use_mmap = use_mmap;
    params.n_threads = n_threads;
    return Model::load(path, params);
}

inline std::shared_ptr<const Model> load(const Description& d) {
    tiny::write(d, folder / "model.gguf");
    return load(folder / "model.gguf");
}

inline pi_session_params session_params(int32_t n_threads = 1, int32_t n_ubatch = 64) {
    pi_session_params params = pi_session_default_params();
    params.n_ctx = 96;
    params.n_batch = 96;
    params.n_ubatch = n_ubatch;
    params.n_threads = n_threads;
    return params;
}

inline Tokens random_tokens(size_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    Tokens tokens(n);
    for (int32_t& t : tokens) t = int32_t(rng() % tiny::kVocab);
    return tokens;
}

inline bool same(const Floats& a, const Floats& b) {
    return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

// The norm of the difference, as a share of the norm of b.
inline double distance(const Floats& a, const Floats& b) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) {
        difference += std::pow(double(a[i]) - b[i], 2);
        size += double(b[i]) * b[i];
    }
    return std::sqrt(difference / size);
}

// Optional arrays of a batch, one element per row, or null.
struct Said {
    const int32_t* seq = nullptr;
    const bool* keep = nullptr;
    const bool* generated = nullptr;
};

inline void eval(Session& session, const Tokens& tokens, const Said& said = {}) {
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = int32_t(tokens.size());
    batch.token = tokens.data();
    batch.seq = said.seq, batch.keep = said.keep, batch.generated = said.generated;
    session.eval(batch);
}

inline void append_logits(const Session& session, int32_t row, Floats& out) {
    const float* logits = session.result(row);
    out.insert(out.end(), logits, logits + session.model->config.n_vocab);
}

// Logits of tokens [begin, end) in one call, all of a prompt or all generated.
inline void append_rows(Session& session, const Tokens& tokens, size_t begin, size_t end,
                        bool is_generated, Floats& out) {
    const std::vector<char> keep(end - begin, 1), generated(end - begin, is_generated);
    eval(session, Tokens(tokens.begin() + ptrdiff_t(begin), tokens.begin() + ptrdiff_t(end)),
         {nullptr, reinterpret_cast<const bool*>(keep.data()),
          reinterpret_cast<const bool*>(generated.data())});
    for (size_t row = begin; row < end; row++) append_logits(session, int32_t(row - begin), out);
}

// Logits of all tokens, `at_once` per call; tokens from n_prompt on count as generated.
inline Floats logits(Session& session, const Tokens& tokens, size_t at_once = 96,
                     size_t n_prompt = SIZE_MAX, int32_t seq = 0) {
    Floats out;
    for (size_t i = 0; i < tokens.size(); i += at_once) {
        const size_t n = std::min(at_once, tokens.size() - i);
        const std::vector<char> keep(n, 1);
        const std::vector<int32_t> seqs(n, seq);
        std::vector<char> generated(n);
        for (size_t t = 0; t < n; t++) generated[t] = i + t >= n_prompt;
        const auto flags = [](const std::vector<char>& v) {
            return reinterpret_cast<const bool*>(v.data());
        };
        const auto at = tokens.begin() + ptrdiff_t(i);
        eval(session, Tokens(at, at + ptrdiff_t(n)), {seqs.data(), flags(keep), flags(generated)});
        for (size_t row = 0; row < n; row++) append_logits(session, int32_t(row), out);
    }
    return out;
}

inline Floats logits(std::shared_ptr<const Model> model, const Tokens& tokens,
                     const pi_session_params& params = session_params()) {
    Session session(std::move(model), params);
    return logits(session, tokens);
}

// The kinds of models that the tests use.
inline std::vector<Shape> shapes() {
    std::vector<Shape> all;
    const auto add = [&](auto change) {
        Shape s;
        change(s);
        all.push_back(s);
    };
    add([](Shape& s) { s.tied = true; });
    add([](Shape& s) {  // sizes that are no multiples of vector registers
        s.activation = "relu";
        s.n_embd = 52, s.n_ff = 75, s.head_dim = 10, s.n_head = 6, s.n_head_kv = 2;
        s.type = DType::F16;
    });
    add([](Shape& s) { s.biases = true, s.n_head_kv = 1, s.type = DType::BF16; });
    add([](Shape& s) {
        s.activation = "relu", s.head_dim = 24, s.tied = true, s.type = DType::Q8_0;
    });
    add([](Shape& s) { s.biases = true, s.n_head_kv = 2, s.head_dim = 32, s.type = DType::Q4_0; });
    add([](Shape& s) { s.architecture = "bamboo", s.n_head_kv = 2, s.type = DType::Q4_0; });
    add([](Shape& s) {  // latents, with rows that fill no strips
        s.architecture = "deepseek2", s.n_head_kv = 1, s.head_dim = 10, s.type = DType::F16;
        s.kv_rank = 13, s.n_rot = 6, s.v_dim = 9;
    });
    add([](Shape& s) {
        s.architecture = "deepseek2", s.n_head = 8, s.n_head_kv = 1, s.head_dim = 32;
        s.kv_rank = 64, s.q_rank = 32, s.n_rot = 32, s.v_dim = 28, s.type = DType::Q4_0;
    });
    for (DType type : {DType::F32, DType::Q8_0}) {
        add([&](Shape& s) { s.n_expert = 5, s.window = 30, s.type = type; });
    }
    for (DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
        add([&](Shape& s) {
            s.activation = "relu", s.down_t = true, s.type = type;
            s.biases = type == DType::Q8_0;
        });
    }
    return all;
}

// Loading must throw this code, with a message that contains all the words.
inline void refused(const Description& d, Code code, const std::vector<std::string>& words,
                    const pi_model_params& params = pi_model_default_params()) {
    const std::string path = folder / "refused.gguf";
    tiny::write(d, path);
    std::string seen = "was loaded";
    try {
        Model::load(path, params);
    } catch (const Error& e) {
        seen = e.code() == code ? "" : std::string("has the wrong code: ") + e.what();
        for (const std::string& word : words) {
            if (!std::strstr(e.what(), word.c_str())) seen = word + " is not in: " + e.what();
        }
    }
    check::report(seen.empty(), __FILE__, __LINE__, words.front() + ": " + seen);
}

}  // namespace sessions
