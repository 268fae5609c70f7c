// GGUF files of which every field can be anything, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ggml/gguf.h"

namespace crafted {

using ggml::ValueType;

constexpr uint64_t kMax = UINT64_MAX;

template <typename T>
std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline std::string u16(uint16_t v) {
    return raw(v);
}
inline std::string u32(uint32_t v) {
    return raw(v);
}
inline std::string u64(uint64_t v) {
    return raw(v);
}
inline std::string str(const std::string& s) {
    return u64(s.size()) + s;
}
inline std::string kv(const std::string& key, ValueType type, const std::string& value) {
    return str(key) + u32(uint32_t(type)) + value;
}
inline std::string array(uint32_t element, uint64_t count, const std::string& elements) {
    return u32(element) + u64(count) + elements;
}

struct Tensor {
    std::string name = "t";
    std::vector<uint64_t> ne = {32};
    uint32_t type = 0;
    uint64_t offset = 0;
    int64_t n_dims = -1;  // -1: as many as ne has
};

struct Crafted {
    std::string magic = "GGUF";
    uint32_t version = 3;
    std::vector<std::string> values;
    std::vector<Tensor> tensors;
    uint64_t data = 0;  // bytes of the data section
    int64_t n_values = -1, n_tensors = -1;
    uint64_t alignment = 32;

    std::string bytes() const {
        std::string s = magic + u32(version);
        s += u64(n_tensors < 0 ? tensors.size() : uint64_t(n_tensors));
        s += u64(n_values < 0 ? values.size() : uint64_t(n_values));
        for (const std::string& value : values) s += value;
        for (const Tensor& t : tensors) {
            s += str(t.name) + u32(uint32_t(t.n_dims < 0 ? int64_t(t.ne.size()) : t.n_dims));
            for (uint64_t n : t.ne) s += u64(n);
            s += u32(t.type) + u64(t.offset);
        }
        s.append((alignment - s.size() % alignment) % alignment, '\0');
        return s + std::string(data, 'x');
    }
};

// Parses a copy of exactly this size, so that the address sanitizer sees a read beyond the end.
inline void parse(const std::string& bytes) {
    std::vector<uint8_t> copy(bytes.begin(), bytes.end());
    copy.shrink_to_fit();
    ggml::Gguf::parse(copy.data(), copy.size(), "x.gguf");
}

// What the bytes hold; they must outlive it.
inline ggml::Gguf parsed(const std::string& bytes) {
    return ggml::Gguf::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
                             "x.gguf");
}

// What is wrong with a file, "" for a good one.
inline std::string message(const std::string& bytes) {
    try {
        parse(bytes);
    } catch (const ggml::Error& e) {
        return e.what();
    }
    return "";
}

inline Crafted one(Tensor tensor, uint64_t data = 128) {
    Crafted file;
    file.tensors = {std::move(tensor)};
    file.data = data;
    return file;
}

inline Crafted with(const std::string& value) {
    Crafted file;
    file.values = {value};
    return file;
}

}  // namespace crafted
