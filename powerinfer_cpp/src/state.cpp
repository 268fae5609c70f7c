// A sequence as bytes: a header that says what it belongs to, then keys and values of every layer
// and head, positions in order. For going on later in the same model; not a file format.
#include <cstring>
#include <type_traits>

#include "ggml/status.h"
#include "session.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

struct Header {
    char magic[8];
    uint64_t model;  // fingerprint of sizes and tensors
    uint64_t type;   // of the KV cache
    int64_t length;  // positions
};
static_assert(std::is_trivially_copyable_v<Header>);
constexpr char kMagic[8] = {'P', 'I', 's', 'e', 'q', '0', '1', '\n'};

// FNV-1a over what tells models of one shape apart without reading their weights.
uint64_t fingerprint(const Model& m) {
    uint64_t hash = 14695981039346656037ull;
    const auto mix = [&](const void* data, size_t n) {
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
    };
    const Config& c = m.config;
    for (int64_t v : {c.n_vocab, c.n_embd, c.n_layer, c.n_ff, c.n_head, c.n_head_kv, c.head_dim})
        mix(&v, sizeof(v));
    for (const ggml::TensorInfo& t : m.file.gguf.tensors()) {
        mix(t.name.data(), t.name.size());
        mix(&t.type, sizeof(t.type));
    }
    return hash;
}

// Calls f(bytes in the cache, n) for every run of positions, in the order of the state.
template <typename F>
void each_run(const Session& s, int32_t seq, int64_t length, const F& f) {
    const Config& c = s.model->config;
    for (int64_t layer = 0; layer < c.n_layer; layer++) {
        for (int which : {0, 1}) {
            for (int64_t head = 0; head < c.n_head_kv; head++) {
                f(s.kv.positions(layer, seq, which, head), size_t(length * s.kv.position_bytes()));
            }
        }
    }
}

uint64_t size_of(const Session& s, int64_t length) {
    const Config& c = s.model->config;
    return sizeof(Header) + uint64_t(c.n_layer * 2 * c.n_head_kv * length * s.kv.position_bytes());
}

void require_sequence(const Session& s, int32_t seq) {
    if (seq >= 0 && seq < s.kv.n_seq()) return;
    throw Error(Code::argument, format("sequence %d of a session with %d", seq, s.kv.n_seq()));
}

}  // namespace

uint64_t Session::state_size(int32_t seq) const {
    require_sequence(*this, seq);
    return size_of(*this, kv.length(seq));
}

void Session::save_state(int32_t seq, uint8_t* out) const {
    Header header{{}, fingerprint(*model), uint64_t(kv.type()), kv.length(seq)};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    std::memcpy(out, &header, sizeof(header));
    out += sizeof(header);
    each_run(*this, seq, header.length, [&](const uint8_t* run, size_t n) {
        std::memcpy(out, run, n);
        out += n;
    });
}

void Session::load_state(int32_t seq, const uint8_t* data, uint64_t size) {
    require_sequence(*this, seq);
    Header header;
    if (size < sizeof(header)) throw Error(Code::format, "the state is cut off");
    std::memcpy(&header, data, sizeof(header));
    if (std::memcmp(header.magic, kMagic, sizeof(kMagic)))
        throw Error(Code::format, "not a saved state");
    if (header.model != fingerprint(*model))
        throw Error(Code::format, "the state belongs to another model");
    if (header.type != uint64_t(kv.type()))
        throw Error(Code::format, "the state has another KV type");
    if (header.length < 0) throw Error(Code::format, "the state has a negative length");
    if (header.length > kv.n_ctx()) {
        throw Error(Code::context,
                    format("a state of %lld positions does not fit a context of %lld",
                           (long long)header.length, (long long)kv.n_ctx()));
    }
    if (size != size_of(*this, header.length))
        throw Error(Code::format, "the state has the wrong size");
    data += sizeof(header);
    each_run(*this, seq, header.length, [&](uint8_t* run, size_t n) {
        std::memcpy(run, data, n);
        data += n;
    });
    kv.set_length(seq, header.length);
}

}  // namespace powerinfer
