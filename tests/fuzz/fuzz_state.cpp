// Any bytes as a saved sequence: they must end in a sequence that goes on, or in an Error that
// leaves the session as it was. Either way the other sequences, on whose pages it lay, do not see
// it.
//
// The first byte chooses the session and what the header holds, so that the fuzzer need not guess
// what a state belongs to; the second one is the number of positions where the header is made here.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/tiny_model.h"
#include "ggml/status.h"
#include "sampler/sampler.h"
#include "session/session.h"
#include "session/state.h"

namespace {

using namespace powerinfer;
using Bytes = std::vector<uint8_t>;

constexpr int32_t kContext = 70;  // a page of 64 positions, and some of a second one
constexpr int32_t kPositions = 67, kPrompt = 60;  // of the text that the session knows
enum Sequence : int32_t { kLoaded, kShared, kKept, kSequences };
constexpr size_t kHeader = 56, kLengthAt = 48, kKeysAt = 32;

#define REQUIRE(condition)                                                   \
    do {                                                                     \
        if (condition) break;                                                \
        std::fprintf(stderr, "%s:%d: " #condition "\n", __FILE__, __LINE__); \
        std::abort();                                                        \
    } while (0)

Bytes saved(const Session& session, int32_t seq) {
    Bytes bytes(size_t(state_size(session, seq)));
    save_state(session, seq, bytes.data());
    return bytes;
}

void eval(Session& session, int32_t seq, int32_t token, bool generated) {
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = 1;
    batch.token = &token, batch.seq = &seq, batch.generated = &generated;
    session.eval(batch);
}

std::vector<float> next(Session& session, int32_t seq) {
    eval(session, seq, 5, true);
    const float* logits = session.result(0);
    return {logits, logits + session.model->config.n_vocab};
}

// A session whose last sequence holds a text with generated tokens.
struct Subject {
    Subject(std::shared_ptr<const Model> model, const pi_session_params& params)
        : session(std::move(model), params) {
        for (int32_t i = 0; i < kPositions; i++) eval(session, kKept, i, i >= kPrompt);
        session.copy(kKept, kShared, kPositions);
        state = saved(session, kKept);
        logits = next(session, kShared);
    }
    Session session;
    Bytes state;
    std::vector<float> logits;
};

const std::vector<std::unique_ptr<Subject>>& subjects() {
    static const std::vector<std::unique_ptr<Subject>> all = [] {
        const tiny::Folder folder;
        tiny::Shape shape;
        shape.n_embd = 16, shape.n_ff = 32, shape.n_layer = 1;
        shape.n_head = 2, shape.n_head_kv = 1, shape.head_dim = 8;
        shape.activation = "relu", shape.down_t = true, shape.predictor_rank = 4;
        pi_model_params how = pi_model_default_params();
        how.n_threads = 1;
        const auto load = [&](const char* name) {
            tiny::write(tiny::describe(shape), folder / name);
            return Model::load(folder / name, how);
        };
        const auto plain = load("plain.gguf");
        shape.architecture = "lfm2", shape.taps = 3, shape.n_layer = 2;
        const auto folding = load("folding.gguf");
        std::vector<std::unique_ptr<Subject>> made;
        const auto add = [&](const auto& model, ggml::DType type, pi_sparse sparse) {
            pi_session_params params = pi_session_default_params();
            params.n_ctx = kContext, params.n_seq = kSequences, params.n_threads = 1;
            params.type_k = params.type_v = uint32_t(type);
            params.sparse = sparse;
            made.push_back(std::make_unique<Subject>(model, params));
        };
        add(plain, ggml::DType::F16, PI_SPARSE_AUTO);
        add(plain, ggml::DType::F32, PI_SPARSE_EXACT);
        add(folding, ggml::DType::F16, PI_SPARSE_AUTO);
        shape.architecture = "llama", shape.taps = 0, shape.window = 30;
        tiny::Description sliding = tiny::describe(shape);
        sliding.keys["llama.attention.sliding_window_pattern"] = std::vector<int32_t>{1, 0};
        tiny::write(sliding, folder / "sliding.gguf");
        add(Model::load(folder / "sliding.gguf", how), ggml::DType::F16, PI_SPARSE_AUTO);
        return made;
    }();
    return all;
}

// Where the tokens of a state begin: behind the first pages of classes with a window.
size_t tokens_at(const Session& session) {
    return kHeader + size_t(session.sequences().kv().n_kinds() - 1) * sizeof(int64_t);
}

// A state of n positions with which nothing is wrong: tokens, flags, keys, values and what layers
// have folded are the bytes given, and zeros behind them. Layers with a window have all positions,
// or those from a page on.
Bytes framed(const Subject& s, int64_t n, int64_t page, const uint8_t* data, size_t size) {
    const KvPages& kv = s.session.sequences().kv();
    const size_t begin = tokens_at(s.session), flags = begin + size_t(n) * sizeof(int32_t);
    const size_t folded = n ? size_t(s.session.sequences().states().bytes()) : 0;
    page = std::min(page, pages_of(n));
    size_t length = flags + size_t(n + 7) / 8 + folded;
    for (int64_t kind = 0; kind < kv.n_kinds(); kind++) {
        const int64_t here = std::max<int64_t>(0, n - (kind ? page * kKvPage : 0));
        length += size_t(here * kv.position_bytes(kind));
    }
    Bytes bytes(length);
    std::copy_n(s.state.begin(), kKeysAt, bytes.begin());
    for (size_t at = kHeader; at < begin; at += sizeof(page)) {
        std::memcpy(&bytes[at], &page, sizeof(page));
    }
    std::copy_n(data, std::min(size, length - begin), bytes.begin() + ptrdiff_t(begin));
    uint64_t keys[2] = {};
    for (int64_t i = 0; i < n; i++) {
        uint8_t* at = &bytes[begin + size_t(i) * sizeof(uint32_t)];
        uint32_t token;
        std::memcpy(&token, at, sizeof(token));
        token %= uint32_t(s.session.model->config.n_vocab);
        std::memcpy(at, &token, sizeof(token));
        const bool generated = bytes[flags + size_t(i / 8)] >> i % 8 & 1;
        keys[generated] = s.session.numerics_key(generated);
    }
    std::memcpy(&bytes[kKeysAt], keys, sizeof(keys));
    std::memcpy(&bytes[kLengthAt], &n, sizeof(n));
    return bytes;
}

// What saving must give after loading: the same, without the bits behind the last position's.
Bytes canonical(const Session& session, Bytes bytes, int64_t n) {
    const size_t flags = tokens_at(session) + size_t(n) * sizeof(int32_t);
    if (n % 8) bytes[flags + size_t(n / 8)] &= (1 << n % 8) - 1;
    return bytes;
}

bool load(Session& session, const Bytes& bytes) {
    try {
        load_state(session, kLoaded, bytes.data(), bytes.size());
        return true;
    } catch (const ggml::Error& e) {
        REQUIRE(e.code() == ggml::Code::format || e.code() == ggml::Code::context);
        return false;
    }
}

void go_on(Session& session, const Bytes& bytes) {
    const int64_t n = session.length(kLoaded);
    REQUIRE(saved(session, kLoaded) == canonical(session, bytes, n));
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = session.sequences().token(kLoaded, i);
        REQUIRE(token >= 0 && token < session.model->config.n_vocab);
    }
    const bool goes_on = session.sequences().find(kLoaded, n).has_value();
    if (n == kContext || !goes_on) return;
    const std::vector<float> logits = next(session, kLoaded);
    REQUIRE(session.length(kLoaded) == n + 1);
    try {  // keys and values may be any, and give what cannot be drawn from
        const int32_t n_vocab = int32_t(logits.size());
        const int32_t token = Sampler(pi_sampler_default_params()).sample(logits.data(), n_vocab);
        REQUIRE(token >= 0 && token < n_vocab);
    } catch (const ggml::Error& e) {
        REQUIRE(e.code() == ggml::Code::argument);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    const uint8_t choice = data[0], count = data[1];
    data += 2, size -= 2;
    Subject& s = *subjects()[choice & 16 ? 3 : choice & 8 ? 2 : choice % 2];
    Session& session = s.session;
    session.copy(kKept, kShared, kPositions);
    session.copy(kKept, kLoaded, kPositions);

    Bytes bytes(data, data + size);
    if (choice & 2) {
        bytes = framed(s, count % (kContext + 1), count / 128, data, size);
    } else if (choice & 4) {  // what the state belongs to is right; the rest is not checked
        std::copy_n(s.state.begin(), std::min<size_t>(size, kKeysAt), bytes.begin());
    }
    const bool loaded = load(session, bytes);
    REQUIRE(loaded || !(choice & 2));
    if (loaded) {
        go_on(session, bytes);
    } else {
        REQUIRE(saved(session, kLoaded) == s.state);
        REQUIRE(next(session, kLoaded) == s.logits);
    }
    REQUIRE(saved(session, kShared) == s.state && saved(session, kKept) == s.state);
    REQUIRE(next(session, kShared) == s.logits);
    session.truncate(kLoaded, 0);
    return 0;
}
