// GGUF v2 and v3, and PowerInfer's files (the same bytes behind the magic PWRI); little endian.
//
//   magic u32, version u32, n_tensors u64, n_kv u64
//   n_kv times: key string, value type u32, value
//   n_tensors times: name string, n_dims u32, n_dims sizes u64 (fastest first), type u32, offset
//   u64 zero padding to `general.alignment` (32), then the data section; offsets count from its
//   start string: length u64, bytes. array: element type u32, length u64, elements; arrays do not
//   nest
//
// The reader treats the file as hostile: every length is held against the bytes that remain before
// anything is allocated, products are checked, and tensor ranges must lie inside the file, aligned
// and disjoint. It throws Error(format), or Error(unsupported) for a version or tensor type it does
// not know, naming file and key or tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ggml/dtype.h"
#include "ggml/file_io.h"

namespace ggml {

enum class ValueType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};
const char* name(ValueType type);

// A value stays in the file's bytes; accessors decode it.
class Value {
 public:
    ValueType type() const { return type_; }
    ValueType element_type() const { return element_; }  // of an array; else type()
    uint64_t count() const { return count_; }            // elements of an array; else 1

    // These look at the elements, so they hold for a scalar and for an array alike.
    bool is_array() const { return type_ == ValueType::array; }
    bool is_bool() const { return element_ == ValueType::boolean; }
    bool is_integer() const;  // any of the eight integer types, not bool
    bool is_number() const;   // any integer or float type
    bool is_string() const { return element_ == ValueType::string; }
    // Element i of an array, or the scalar itself with i = 0. A type that does not fit or i beyond
    // count() is Error(format), without the name of the key: callers look first. A string is found
    // by walking over up to 63 others.
    int64_t integer(uint64_t i = 0) const;  // any integer type or bool; a u64 beyond i64 saturates
    double number(uint64_t i = 0) const;    // any integer or float type; may be NaN or infinite
    std::string_view string(uint64_t i = 0) const;  // any bytes, not checked to be UTF-8

 private:
    friend class GgufReader;
    ValueType type_ = ValueType::u8, element_ = ValueType::u8;
    uint64_t count_ = 1;
    const uint8_t* data_ = nullptr;
    // When element_ is string: where every kStep-th one begins. A view of each would take more
    // memory than the file has bytes, since an empty string has eight of them.
    static constexpr uint64_t kStep = 64;
    std::vector<uint64_t> starts_;
};

struct TensorInfo {
    std::string name;
    DType type;
    int n_dims;       // 1..4
    int64_t ne[4];    // sizes, fastest first, 1 beyond n_dims; 0 in PowerInfer's placements alone
    uint64_t offset;  // from the start of the file
    uint64_t bytes;
    int file;  // which of the split files
};

// The parsed header of one file.
class Gguf {
 public:
    // Reads as much of a file as its header takes, and keeps that. Not from a mapping: a file that
    // shrinks while it is open must not take the process with it.
    static Gguf read(const File& file);
    // Parses a whole file that lies at data, which must outlive the Gguf: keys, strings and values
    // point into it. `path` is for messages.
    static Gguf parse(const uint8_t* data, uint64_t size, const std::string& path);

    const std::string& path() const { return path_; }
    bool pwri_magic() const { return pwri_; }
    uint32_t version() const { return version_; }

    const std::vector<std::pair<std::string_view, Value>>& values() const { return values_; }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const Value* find(std::string_view key) const;
    const TensorInfo* find_tensor(std::string_view name) const;

    // Typed reads. Missing keys give the default, or Error(format) where there is none; a value of
    // the wrong type or outside [lo, hi] is Error(format) naming file and key.
    int64_t integer(std::string_view key, int64_t lo, int64_t hi) const;
    int64_t integer(std::string_view key, int64_t lo, int64_t hi, int64_t missing) const;
    double number(std::string_view key, double lo, double hi) const;  // finite
    double number(std::string_view key, double lo, double hi, double missing) const;
    bool boolean(std::string_view key, bool missing) const;
    std::string_view string(std::string_view key) const;
    std::string_view string(std::string_view key, std::string_view missing) const;

    // Appends the tensors of another part of a split file (its part number, from 1, goes to
    // TensorInfo::file). Error(format) where a name occurs twice, where a tensor is empty, where
    // the part says that it is another one (split.no, split.count), or where after the last part
    // the number of tensors is not split.tensors.count.
    void append_tensors(const Gguf& part, int file);

 private:
    friend class GgufReader;
    [[noreturn]] void fail_key(std::string_view key, const std::string& what) const;
    const Value& value(std::string_view key) const;
    std::string path_;
    std::shared_ptr<const std::vector<uint8_t>> bytes_;  // of read()
    bool pwri_ = false;
    uint32_t version_ = 0;
    std::vector<std::pair<std::string_view, Value>> values_;
    std::vector<TensorInfo> tensors_;
    // Trees: with a hash table a file could choose names that all collide.
    std::map<std::string_view, size_t> value_index_;
    std::map<std::string, size_t, std::less<>> tensor_index_;
};

// Paths of all parts, in order, when `first` is part of a split file ("NAME-00001-of-00003.gguf",
// keys split.no and split.count); otherwise just its own path. The caller opens them.
// Error(format) when it is a later part, naming the first one, or when name and keys disagree.
std::vector<std::string> split_paths(const Gguf& first);

// Writes GGUF v3. Add values and tensor infos first, then tensor data in the same order.
// The file appears under `path` only when finish() has succeeded; before that it is `path`.part,
// which the destructor removes. Throws Error(io), a full disk included, and Error(argument) for
// calls out of order and for what the reader would refuse: names, sizes, duplicates.
class GgufWriter {
 public:
    explicit GgufWriter(const std::string& path, const char magic[4] = "GGUF");
    ~GgufWriter();
    GgufWriter(const GgufWriter&) = delete;
    GgufWriter& operator=(const GgufWriter&) = delete;

    void add_u32(std::string_view key, uint32_t value);
    void add_f32(std::string_view key, float value);
    void add_bool(std::string_view key, bool value);
    void add_string(std::string_view key, std::string_view value);
    void add_strings(std::string_view key, const std::vector<std::string>& values);
    void add_f32s(std::string_view key, const std::vector<float>& values);
    void add_i32s(std::string_view key, const std::vector<int32_t>& values);
    void add_tensor(std::string_view name, DType type, const std::vector<int64_t>& ne);
    // All bytes of the next tensor in the order of add_tensor.
    void write(const void* data, uint64_t bytes);
    void finish();

 private:
    [[noreturn]] void fail(const std::string& what) const;  // Error(argument)
    void abandon();
    void put(const void* data, size_t n);
    void pad(uint64_t written);
    void add(std::string_view key, ValueType type, const void* data, size_t n);
    void begin_array(std::string_view key, ValueType element, uint64_t count);
    void write_header();
    std::string path_, part_, kv_, infos_;
    char magic_[5];
    uint64_t n_kv_ = 0, data_bytes_ = 0, next_ = 0;
    std::vector<uint64_t> sizes_;
    std::set<std::string, std::less<>> keys_, names_;
    bool header_written_ = false;
    std::FILE* file_ = nullptr;
};

}  // namespace ggml
