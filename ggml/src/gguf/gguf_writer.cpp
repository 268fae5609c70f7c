#include <cstring>
#include <limits>

#include "ggml/gguf.h"
#include "ggml/status.h"

namespace ggml {

namespace {

constexpr uint32_t kAlignment = 32;  // the default of the format, so no key is needed

template <typename T>
void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& bytes, std::string_view s) {
    append(bytes, uint64_t(s.size()));
    bytes.append(s);
}

}  // namespace

GgufWriter::GgufWriter(const std::string& path, const char magic[4], uint32_t alignment)
    : file_(path), alignment_(alignment) {
    std::memcpy(magic_, magic, 4);
    magic_[4] = 0;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) fail("an alignment is a power of 2");
}

uint64_t GgufWriter::padding(uint64_t n) const {
    return (alignment_ - n % alignment_) % alignment_;
}

void GgufWriter::fail(const std::string& what) const {
    throw Error(Code::argument, file_.path() + ": " + what);
}

// ---- values and tensor infos, kept until the counts are known ---------------------------------

void GgufWriter::add(std::string_view key, ValueType type, const void* data, size_t n) {
    if (header_written_) fail("a key after the first tensor data");
    if (key.empty() || key.size() > 65535) fail("a key must have 1 to 65535 bytes");
    if (key == "general.alignment") fail("general.alignment is given to the constructor");
    if (!keys_.emplace(key).second) fail("key " + std::string(key) + " twice");
    append_string(kv_, key);
    append(kv_, uint32_t(type));
    if (n > 0) kv_.append(static_cast<const char*>(data), n);
    n_kv_++;
}

void GgufWriter::begin_array(std::string_view key, ValueType element, uint64_t count) {
    add(key, ValueType::array, nullptr, 0);
    append(kv_, uint32_t(element));
    append(kv_, count);
}

void GgufWriter::add_u32(std::string_view key, uint32_t value) {
    add(key, ValueType::u32, &value, 4);
}

void GgufWriter::add_f32(std::string_view key, float value) {
    add(key, ValueType::f32, &value, 4);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
    const uint8_t byte = value;
    add(key, ValueType::boolean, &byte, 1);
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
    add(key, ValueType::string, nullptr, 0);
    append_string(kv_, value);
}

void GgufWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, ValueType::string, values.size());
    for (const std::string& s : values) append_string(kv_, s);
}

void GgufWriter::add_f32s(std::string_view key, const std::vector<float>& values) {
    begin_array(key, ValueType::f32, values.size());
    for (float x : values) append(kv_, x);
}

void GgufWriter::add_i32s(std::string_view key, const std::vector<int32_t>& values) {
    begin_array(key, ValueType::i32, values.size());
    for (int32_t x : values) append(kv_, x);
}

void GgufWriter::add_value(std::string_view key, const Value& value) {
    if (value.is_array()) {
        begin_array(key, value.element_type(), value.count());
    } else {
        add(key, value.type(), nullptr, 0);
    }
    kv_.append(value.bytes());
}

void GgufWriter::add_tensor(std::string_view name, DType type, const std::vector<int64_t>& ne) {
    const std::string label = "tensor " + std::string(name) + ": ";
    const DTypeInfo& dtype = info(type);
    if (header_written_) fail(label + "added after the first tensor data");
    if (name.empty() || name.size() > 127 || name.find('\0') != name.npos)
        fail(label + "a name must have 1 to 127 bytes, none of them 0");
    if (ne.empty() || ne.size() > 4) fail(label + "must have 1 to 4 dimensions");
    int64_t elements = 1, bytes = 0;
    for (int64_t n : ne)
        if (n < 1 || __builtin_mul_overflow(elements, n, &elements))
            fail(label + "sizes out of range");
    if (ne[0] % dtype.block != 0)
        fail(label + "first size is not a multiple of the block of " + dtype.name);
    if (__builtin_mul_overflow(elements / dtype.block, dtype.bytes, &bytes) ||
        uint64_t(bytes) > uint64_t(std::numeric_limits<int64_t>::max()) - alignment_ - data_bytes_)
        fail(label + "too large");
    if (!names_.emplace(name).second) fail(label + "added twice");
    append_string(infos_, name);
    append(infos_, uint32_t(ne.size()));
    for (int64_t n : ne) append(infos_, uint64_t(n));
    append(infos_, uint32_t(type));
    append(infos_, data_bytes_);
    sizes_.push_back(uint64_t(bytes));
    data_bytes_ += uint64_t(bytes) + padding(uint64_t(bytes));
}

// ---- bytes to the file -----------------------------------------------------------------------

void GgufWriter::pad(uint64_t written) {
    const std::string zeros(size_t(padding(written)), '\0');
    file_.write(zeros.data(), zeros.size());
}

void GgufWriter::write_header() {
    if (alignment_ != kAlignment) {
        append_string(kv_, "general.alignment");
        append(kv_, uint32_t(ValueType::u32));
        append(kv_, uint32_t(alignment_));
        n_kv_++;
    }
    std::string head(magic_, 4);
    append(head, uint32_t(3));
    append(head, uint64_t(sizes_.size()));
    append(head, n_kv_);
    file_.write(head.data(), head.size());
    file_.write(kv_.data(), kv_.size());
    file_.write(infos_.data(), infos_.size());
    pad(file_.size());
    header_written_ = true;
}

void GgufWriter::write(const void* data, uint64_t bytes) {
    if (part_ > 0 || (next_ < sizes_.size() && bytes != sizes_[next_]))
        fail(format("tensor number %zu has %llu bytes, not %llu", next_,
                    static_cast<unsigned long long>(next_ < sizes_.size() ? sizes_[next_] : 0),
                    static_cast<unsigned long long>(bytes)));
    write_part(data, bytes);
}

void GgufWriter::write_part(const void* data, uint64_t bytes) {
    if (!file_.is_open()) fail("the file is finished, or was given up");
    if (next_ >= sizes_.size()) fail("more tensor data than tensors");
    if (bytes > sizes_[next_] - part_) fail(format("tensor number %zu has less data", next_));
    if (!header_written_) write_header();
    file_.write(data, bytes);
    part_ += bytes;
    if (part_ < sizes_[next_]) return;
    pad(part_);  // the last one too: some readers read the data section in whole units
    part_ = 0;
    next_++;
}

void GgufWriter::finish() {
    if (!file_.is_open()) fail("the file is finished, or was given up");
    if (next_ != sizes_.size()) fail("finish() before all tensors were written");
    if (!header_written_) write_header();
    file_.finish();
}

}  // namespace ggml
