// A state is a header; for each class of layers with a window (kv_layout.h) the first page that the
// sequence has of it, 8 bytes; a token per position; a bit per position for generated ones; keys
// and values in the order of KvPages::read, one class after the other, of windows those that the
// sequence still has; and what the layers have folded of all positions up to the last one, if the
// model has such layers and the session knows it there (Sequences::find).
#include "session/state.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "files/weights_name.h"
#include "ggml/crc32c.h"
#include "ggml/file_io.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

struct Header {
    char magic[8];
    uint64_t model;            // fingerprint
    uint32_t numerics;         // kNumerics
    uint32_t type;             // type id of the KV cache
    uint32_t rope;             // RopeTable::variant of the session
    uint32_t first;            // position of the first one; 0 in a whole state
    uint64_t numerics_key[2];  // of prompt rows and of generated rows
    int64_t length;            // positions that follow
};
static_assert(std::is_trivially_copyable_v<Header>);
constexpr char kMagic[8] = {'P', 'I', 's', 'e', 'q', '0', '5', '\n'};
// Version 01 did not store how positions were computed, 02 neither weights nor numerics. 03 told
// weights apart by samples. 04 had keys and values of all positions.
constexpr int64_t kVersionAt = 6;

// weights_name() of a model, found once.
std::string name_weights(const Model& m) {
    const std::lock_guard<std::mutex> lock(m.weights_name.mutex);
    std::string& name = m.weights_name.name;
    if (name.empty()) name = weights_name(m.file);
    return name;
}

// FNV-1a hash over sizes, weights, and what the caller changed of the header and of RoPE.
uint64_t fingerprint(const Session& s) {
    const Model& m = *s.model;
    uint64_t hash = 14695981039346656037ull;
    const auto mix = [&](const void* data, size_t n) {
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
    };
    const Config& c = m.config;
    // Those of other layers are among what names the weights.
    const auto* a = m.layers[0].find<Attention>();
    const auto* f = m.layers[0].find<FeedForward>();
    for (int64_t v : {c.n_vocab, c.n_embd, c.n_layer, f ? f->n_ff : 0, a ? a->n_head : 0,
                      a ? a->n_head_kv : 0, a ? a->head_dim : 0})
        mix(&v, sizeof(v));
    if (m.guesses()) mix("nextn", 5);  // it has keys and values of one layer more
    const std::string weights = name_weights(m);
    mix(weights.data(), weights.size());
    const std::string overridden = m.file.gguf.overridden();
    mix(overridden.data(), overridden.size());
    pi_session_params unscaled = pi_session_default_params();
    unscaled.n_ctx = s.params.n_ctx;
    const std::vector<RopeTable> own = rope_tables(m, unscaled);
    for (size_t i = 0; i < own.size(); i++) {
        const RopeTable& rope = s.ropes()[i];
        if (rope.frequency == own[i].frequency && rope.magnitude == own[i].magnitude) continue;
        mix(rope.frequency.data(), rope.frequency.size() * sizeof(double));
        mix(&rope.magnitude, sizeof(rope.magnitude));
    }
    return hash;
}

int32_t token_at(const uint8_t* tokens, int64_t i) {
    int32_t token;
    std::memcpy(&token, tokens + i * int64_t(sizeof(token)), sizeof(token));
    return token;
}

// Bytes for one bit per position.
int64_t flag_bytes(int64_t n) {
    return (n + 7) / 8;
}

// Positions [first, end) of a sequence, and where their pages begin in each class of layers: at the
// page of `first`, or later where what is behind a window was given up. At pages_of(end) or later:
// a class has none.
struct Extent {
    int64_t first = 0, end = 0;
    std::vector<int64_t> page;

    int64_t length() const { return end - first; }
    // Positions of a class.
    int64_t length(int64_t kind) const {
        return std::max<int64_t>(0, end - std::max(first, page[size_t(kind)] * kKvPage));
    }
};

Extent extent_of(const Sequences& s, int32_t seq, int64_t first, int64_t n) {
    Extent of{first, first + n, {}};
    for (int64_t kind = 0; kind < s.kv().n_kinds(); kind++) {
        const int64_t page = std::max(first / kKvPage, s.first_page(kind, seq));
        of.page.push_back(std::min(page, pages_of(of.end)));
    }
    return of;
}

// Bytes of the pages that say where the classes of windows begin.
uint64_t extent_bytes(const Session& s) {
    return uint64_t(s.sequences().kv().n_kinds() - 1) * sizeof(int64_t);
}

// Bytes before keys and values.
uint64_t size_before(const Session& s, int64_t length) {
    return sizeof(Header) + extent_bytes(s) + uint64_t(length) * sizeof(int32_t) +
           uint64_t(flag_bytes(length));
}

// Without what the layers have folded.
uint64_t size_of(const Session& s, const Extent& of) {
    uint64_t bytes = size_before(s, of.length());
    for (int64_t kind = 0; kind < s.sequences().kv().n_kinds(); kind++) {
        bytes += uint64_t(of.length(kind) * s.sequences().kv().position_bytes(kind));
    }
    return bytes;
}

// Bytes of what the layers have folded of all positions; 0: there are none.
uint64_t folded_bytes(const Session& s, int64_t end) {
    return end ? s.sequences().states().bytes() : 0;
}

// The slot with what they have folded of the first `end` positions of a sequence; or -1.
int32_t folded(const Session& s, int32_t seq, int64_t end) {
    const auto known = s.sequences().find(seq, end);
    return known && !known->rows ? known->slot : -1;
}

// Calls f(class, number of a page in the sequence, positions) for the pages of an extent, in order.
template <typename F>
void each_page(const Extent& of, const F& f) {
    for (size_t kind = 0; kind < of.page.size(); kind++) {
        for (int64_t i = of.page[kind]; i < pages_of(of.end); i++) {
            f(int64_t(kind), i, std::min(kKvPage, of.end - i * kKvPage));
        }
    }
}

// Throws Error(argument) unless the sequence has n positions from `first` on, where a page begins.
void check_part(const Session& s, int32_t seq, int64_t first, int64_t n) {
    const int64_t length = s.length(seq);  // throws if there is no such sequence
    if (first < 0 || first % kKvPage || n < 0 || n > length - first) {
        throw Error(Code::argument,
                    format("there is no part of %lld positions from %lld on in a sequence of %lld; "
                           "parts begin at multiples of %lld",
                           (long long)n, (long long)first, (long long)length, (long long)kKvPage));
    }
}

// Session::numerics_key of prompt rows and of generated rows among n positions; 0: there are none.
void numerics_keys(const Session& s, const uint8_t* flags, int64_t n, uint64_t key[2]) {
    key[0] = key[1] = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool generated = flags[i / 8] >> i % 8 & 1;
        key[generated] = s.numerics_key(generated);
    }
}

uint32_t rope_variant(const Session& s) {
    return RopeTable::variant(s.model->config, s.params);
}

struct Checked {
    Header header;
    Extent extent;
    uint64_t without = 0;  // bytes but for what the layers have folded
};

// first: the position with which it must begin.
Checked check(const Session& s, const uint8_t* data, uint64_t size, int64_t first) {
    Header header;
    if (size < sizeof(header)) throw Error(Code::format, "the state is cut off");
    std::memcpy(&header, data, sizeof(header));
    if (std::memcmp(header.magic, kMagic, kVersionAt))
        throw Error(Code::format, "not a saved state");
    if (std::memcmp(header.magic, kMagic, sizeof(kMagic)))
        throw Error(Code::format, "the state was saved by another version of the engine");
    if (header.numerics != uint32_t(kNumerics)) {
        throw Error(Code::format,
                    format("the state was computed with numerics %u, and this version has %d: it "
                           "rounds results differently",
                           header.numerics, kNumerics));
    }
    if (header.model != fingerprint(s))
        throw Error(
            Code::format,
            "the state belongs to another model, or to other overrides of its keys or RoPE, or "
            "to one opened with or without the layer that guesses tokens");
    if (header.type != uint32_t(s.sequences().kv().type()))
        throw Error(Code::format, "the state has another KV type");
    if (header.rope != rope_variant(s)) {
        throw Error(Code::format,
                    "the state was computed with another n_ctx, for which the model rotates heads "
                    "differently");
    }
    if (int64_t(header.first) != first) {
        throw Error(Code::format,
                    format("the state begins at position %lld, and position %lld comes next",
                           (long long)header.first, (long long)first));
    }
    if (header.length < 0) throw Error(Code::format, "the state has a negative length");
    if (header.length > s.sequences().n_ctx() - first) {
        throw Error(Code::context,
                    format("a state of %lld positions does not fit a context of %lld",
                           (long long)header.length, (long long)(s.sequences().n_ctx() - first)));
    }
    const uint64_t tokens_at = sizeof(header) + extent_bytes(s);
    if (size < tokens_at) throw Error(Code::format, "the state is cut off");
    Extent extent{first, first + header.length, {first / kKvPage}};
    for (int64_t kind = 1; kind < s.sequences().kv().n_kinds(); kind++) {
        int64_t page;
        std::memcpy(&page, data + sizeof(header) + size_t(kind - 1) * sizeof(page), sizeof(page));
        if (page < first / kKvPage || page > pages_of(extent.end))
            throw Error(Code::format, "the state has a window that begins outside of it");
        extent.page.push_back(page);
    }
    const uint64_t without = size_of(s, extent);
    if (size != without && size != without + folded_bytes(s, extent.end))
        throw Error(Code::format, "the state has the wrong size");
    for (int64_t i = 0; i < header.length; i++) {
        const int32_t token = token_at(data + tokens_at, i);
        if (token < 0 || token >= s.model->config.n_vocab)
            throw Error(Code::format, format("the state has a token %d, outside the vocabulary of "
                                             "%lld",
                                             token, (long long)s.model->config.n_vocab));
    }
    uint64_t key[2];
    numerics_keys(s, data + tokens_at + header.length * int64_t(sizeof(int32_t)), header.length,
                  key);
    if (key[0] != header.numerics_key[0] || key[1] != header.numerics_key[1]) {
        throw Error(Code::format,
                    "the state was computed in another mode (sparse, sparse_threshold, adapters)");
    }
    return {header, std::move(extent), without};
}

}  // namespace

uint64_t state_size(const Session& s, int32_t seq) {
    return part_size(s, seq, 0, s.length(seq));
}

uint64_t part_size(const Session& s, int32_t seq, int64_t first, int64_t n) {
    check_part(s, seq, first, n);
    return size_of(s, extent_of(s.sequences(), seq, first, n)) +
           (folded(s, seq, first + n) >= 0 ? folded_bytes(s, first + n) : 0);
}

namespace {

// Writes positions of a sequence piece by piece: room(n) says where the next n bytes go, until its
// next call.
template <typename Room>
void write_state(const Session& s, int32_t seq, int64_t first, int64_t length, const Room& room) {
    check_part(s, seq, first, length);
    const Sequences& sequences = s.sequences();
    const KvPages& kv = sequences.kv();
    const Extent extent = extent_of(sequences, seq, first, length);
    uint8_t* const out = room(size_before(s, length));
    uint8_t* const tokens = out + sizeof(Header) + extent_bytes(s);
    uint8_t* const flags = tokens + length * int64_t(sizeof(int32_t));
    if (extent_bytes(s)) std::memcpy(out + sizeof(Header), &extent.page[1], extent_bytes(s));
    std::fill_n(flags, flag_bytes(length), uint8_t(0));
    for (int64_t i = 0; i < length; i++) {
        const int32_t token = sequences.token(seq, first + i);
        std::memcpy(tokens + i * int64_t(sizeof(token)), &token, sizeof(token));
        flags[i / 8] |= uint8_t(sequences.generated(seq, first + i) << i % 8);
    }
    Header header{{},
                  fingerprint(s),
                  uint32_t(kNumerics),
                  uint32_t(kv.type()),
                  rope_variant(s),
                  uint32_t(first),
                  {},
                  length};
    numerics_keys(s, flags, length, header.numerics_key);
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    std::memcpy(out, &header, sizeof(header));
    each_page(extent, [&](int64_t kind, int64_t page, int64_t n) {
        kv.read(kind, sequences.pages(kind, seq)[page], n,
                room(uint64_t(n * kv.position_bytes(kind))));
    });
    if (const int32_t slot = folded(s, seq, first + length); slot >= 0) {
        sequences.states().read(slot, room(folded_bytes(s, first + length)));
    }
}

}  // namespace

void save_state(const Session& s, int32_t seq, uint8_t* out) {
    save_part(s, seq, 0, s.length(seq), out);
}

void save_part(const Session& s, int32_t seq, int64_t first, int64_t n, uint8_t* out) {
    write_state(s, seq, first, n, [&](uint64_t n_bytes) {
        uint8_t* const here = out;
        out += n_bytes;
        return here;
    });
}

void save_state_file(const Session& s, int32_t seq, const std::string& path) {
    const KvPages& kv = s.sequences().kv();
    uint64_t most = std::max(size_before(s, s.length(seq)), folded_bytes(s, s.length(seq)));
    for (int64_t kind = 0; kind < kv.n_kinds(); kind++) {
        most = std::max(most, uint64_t(kKvPage * kv.position_bytes(kind)));
    }
    const Reservation reserved = s.model->budget->reserve(path + ": a piece of the state", most);
    const ggml::Memory memory(most, "a piece of the state");
    ggml::OutputFile file(path);
    uint64_t filled = 0;
    uint32_t checksum = 0;
    const auto room = [&](uint64_t n) {
        file.write(memory.data(), filled);
        checksum = ggml::crc32c(memory.data(), filled, checksum);
        filled = n;
        return memory.data();
    };
    write_state(s, seq, 0, s.length(seq), room);
    room(0);
    file.write(&checksum, sizeof(checksum));
    file.finish();
}

namespace {

// Appends what check() has found good.
void append_state(Session& s, int32_t seq, const Checked& checked, const uint8_t* data,
                  uint64_t size) {
    const auto& [header, extent, without] = checked;
    const uint8_t* const tokens = data + sizeof(header) + extent_bytes(s);
    const uint8_t* const flags = tokens + header.length * int64_t(sizeof(int32_t));
    Sequences& sequences = s.sequences();
    const KvPages& kv = sequences.kv();
    for (int64_t i = 0; i < header.length; i++) {
        sequences.append(seq, token_at(tokens, i), flags[i / 8] >> i % 8 & 1,
                         [](int64_t, ggml::KvSlot) {});
        // A sequence has no pages before one that it lacks.
        for (int64_t kind = 1; kind < kv.n_kinds(); kind++) {
            const int64_t page = extent.page[size_t(kind)];
            if (page > extent.first / kKvPage) sequences.forget_before(seq, kind, page);
        }
    }
    const uint8_t* from = flags + flag_bytes(header.length);
    bool stated = false;
    try {
        each_page(extent, [&](int64_t kind, int64_t page, int64_t n) {
            // Of what is behind a window there may be no room for all.
            if (page >= sequences.first_page(kind, seq)) {
                kv.write(kind, sequences.pages(kind, seq)[page], n, from);
            }
            from += n * kv.position_bytes(kind);
        });
        stated = size > without;
        if (stated) sequences.states().write(sequences.new_state(seq), data + without);
    } catch (...) {  // a device that failed
        if (stated) sequences.forget_state(seq);
        sequences.truncate(seq, extent.first);
        throw;
    }
    if (size == without && sequences.states() && header.length) sequences.forget_state(seq);
}

// Ends the rest of a sequence that is loaded. Throws Error(context).
void wake(Session& s, int32_t seq) {
    std::vector<int64_t> added(size_t(s.params.n_seq), 0);
    added[size_t(seq)] = 1;
    s.sequences().wake(added.data());
}

}  // namespace

void load_state(Session& s, int32_t seq, const uint8_t* data, uint64_t size) {
    s.length(seq);  // throws if there is no such sequence
    const Checked checked = check(s, data, size, 0);
    Sequences& sequences = s.sequences();
    sequences.require_pages("the state", pages_of(checked.header.length), sequences.own_pages(seq));
    wake(s, seq);
    sequences.truncate(seq, 0);
    append_state(s, seq, checked, data, size);
}

void load_part(Session& s, int32_t seq, const uint8_t* data, uint64_t size) {
    const int64_t length = s.length(seq);
    const Checked checked = check(s, data, size, length);
    if (length % kKvPage) {
        throw Error(Code::argument,
                    format("a part cannot follow %lld positions: no multiple of %lld",
                           (long long)length, (long long)kKvPage));
    }
    s.sequences().require_pages("the part", pages_of(checked.header.length), 0);
    wake(s, seq);
    append_state(s, seq, checked, data, size);
}

void load_state_file(Session& s, int32_t seq, const std::string& path) {
    const ggml::File file(path);
    const ggml::Mapping bytes(file);
    uint32_t checksum;
    try {
        // Another kind of file is called that, and not damaged.
        if (bytes.size() < sizeof(Header) + sizeof(checksum) ||
            std::memcmp(bytes.data(), kMagic, kVersionAt)) {
            throw Error(Code::format, "not a saved state");
        }
        const uint64_t size = bytes.size() - sizeof(checksum);
        std::memcpy(&checksum, bytes.data() + size, sizeof(checksum));
        if (ggml::crc32c(bytes.data(), size) != checksum)
            throw Error(Code::format, "the state is damaged: it does not fit its checksum");
        load_state(s, seq, bytes.data(), size);
    } catch (const Error& e) {
        throw Error(e.code(), path + ": " + e.what());
    }
}

}  // namespace powerinfer
