// GGUF v2 and v3 (specification: docs/gguf.md of the ggml repository), and PowerInfer's files,
// which differ in the magic PWRI. Everything is little endian.
//
//   magic u32, version u32, n_tensors u64, n_kv u64
//   n_kv times: key string, value type u32, value
//   n_tensors times: name string, n_dims u32, n_dims sizes u64 (fastest first), type u32,
//                    offset u64
//   zero padding to `general.alignment` (default 32), then the data section
//
//   offset: from the start of the data section
//   string: length u64, bytes
//   array: element type u32, length u64, elements; arrays do not nest
//
// The reader does not trust the file. It checks every length against the remaining bytes before it
// allocates anything, checks products for overflow, and requires tensor ranges to be aligned,
// disjoint and inside the file. Otherwise it throws Error(format). It throws Error(unsupported) for
// an unknown version or tensor type. Messages name the file and the key or tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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

// A name of a file, in quotes, for a message: only printable characters, and shortened if long.
std::string shown(std::string_view name);

// A value points into the file's bytes; accessors decode it.
class Value {
 public:
    ValueType type() const { return type_; }
    ValueType element_type() const { return element_; }  // of an array; else type()
    uint64_t count() const { return count_; }            // elements of an array; else 1

    // These describe the elements, so they work for scalars and arrays alike.
    bool is_array() const { return type_ == ValueType::array; }
    bool is_bool() const { return element_ == ValueType::boolean; }
    bool is_integer() const;  // any of the eight integer types, not bool
    bool is_number() const;   // any integer or float type
    bool is_string() const { return element_ == ValueType::string; }
    // Element i of an array; for a scalar i is 0. Throws Error(format) if the type does not fit or
    // i is out of range. The message does not name the key, so callers check first. Finding a
    // string takes up to 63 steps over its predecessors.
    int64_t integer(uint64_t i = 0) const;  // any integer type or bool; a u64 beyond i64 saturates
    double number(uint64_t i = 0) const;    // any integer or float type; may be NaN or infinite
    std::string_view string(uint64_t i = 0) const;  // any bytes, not necessarily UTF-8
    // Calls use(i, string) for all elements in order, each of which it finds at once.
    template <typename F>
    void each_string(const F& use) const {
        std::string_view next;
        for (uint64_t i = 0; i < count_; i++) {
            next = i == 0 ? string(0) : after(next);
            use(i, next);
        }
    }
    // The elements as they lie in the file, to be copied.
    std::string_view bytes() const;

 private:
    friend class GgufReader;
    friend class Gguf;
    static std::string_view after(std::string_view string);  // the next one in the file
    ValueType type_ = ValueType::u8, element_ = ValueType::u8;
    uint64_t count_ = 1;
    const uint8_t* data_ = nullptr;
    // If element_ is string: the start of every kStep-th string. A string_view for each one could
    // take more memory than the file, because an empty string has only eight bytes there.
    static constexpr uint64_t kStep = 64;
    std::vector<uint64_t> starts_;
};

struct TensorInfo {
    std::string name;
    DType type;
    int n_dims;       // 1..4
    int64_t ne[4];    // sizes, fastest first; 1 beyond n_dims; 0 only in PowerInfer's placements
    uint64_t offset;  // from the start of the file
    uint64_t bytes;
    int file;  // index of the part of a split file
};

// A value in place of a file's.
struct Override {
    using Of = std::variant<bool, int64_t, double, std::string>;
    std::string key;
    Of value;
};

// The parsed header of one file.
class Gguf {
 public:
    // Reads the header of a file into memory and keeps it. It is not mapped: if the file shrank
    // while open, accessing the mapping would kill the process.
    static Gguf read(const File& file);
    // Parses a whole file at data. data must outlive the Gguf, because keys, strings and values
    // point into it. `path` is used in messages.
    static Gguf parse(const uint8_t* data, uint64_t size, const std::string& path);

    const std::string& path() const { return path_; }
    bool pwri_magic() const { return pwri_; }
    uint32_t version() const { return version_; }

    const std::vector<std::pair<std::string_view, Value>>& values() const { return values_; }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const Value* find(std::string_view key) const;
    const TensorInfo* find_tensor(std::string_view name) const;

    // Typed reads. A missing key gives `missing`, or Error(format) in the overloads without it. A
    // value of the wrong type or outside [lo, hi] is Error(format) naming file and key.
    int64_t integer(std::string_view key, int64_t lo, int64_t hi) const;
    int64_t integer(std::string_view key, int64_t lo, int64_t hi, int64_t missing) const;
    double number(std::string_view key, double lo, double hi) const;  // finite
    double number(std::string_view key, double lo, double hi, double missing) const;
    bool boolean(std::string_view key, bool missing) const;
    std::string_view string(std::string_view key) const;
    std::string_view string(std::string_view key, std::string_view missing) const;

    // Puts a value in place of the file's, which must be of the same kind and no array, or adds it.
    // A number becomes a float, unless the file's value is a double. Throws Error(argument) naming
    // file and key, also for keys that say how the file is laid out.
    void override_value(const Override& given);
    // Has anybody looked for this key, an index of values()? What is never asked for has no effect.
    bool asked(size_t index) const { return asked_[index].load(std::memory_order_relaxed); }
    // A key that was added, and that find() was never asked for. "": there is none.
    std::string unasked() const;
    // Keys and values of all overrides as bytes, to tell models apart. "": there are none.
    std::string overridden() const;

    // Appends the tensors of another part of a split file; `file` is the part's index (split.no),
    // stored in TensorInfo::file. Throws Error(format) if a tensor name occurs twice, if a tensor
    // is empty, if split.no or split.count do not match, or if the number of tensors after the last
    // part differs from split.tensors.count.
    void append_tensors(const Gguf& part, int file);

 private:
    friend class GgufReader;
    struct Given;  // an override
    [[noreturn]] void fail_key(std::string_view key, const std::string& what) const;
    const Value& value(std::string_view key) const;
    std::string path_;
    std::shared_ptr<const std::vector<uint8_t>> bytes_;  // set by read()
    bool pwri_ = false;
    uint32_t version_ = 0;
    std::vector<std::pair<std::string_view, Value>> values_;
    mutable std::deque<std::atomic<bool>> asked_;  // of values_; a vector cannot hold atomics
    std::vector<TensorInfo> tensors_;
    // Trees, not hash tables: a file could choose names that all collide.
    std::map<std::string_view, size_t> value_index_;
    // added_: those that the file lacks; the last ones of values_.
    std::vector<std::shared_ptr<Given>> given_, added_;
    std::map<std::string, size_t, std::less<>> tensor_index_;
};

// Paths of all parts, in order, if `first` is part of a split file ("NAME-00001-of-00003.gguf",
// keys split.no and split.count); otherwise its own path only. Opens no file. Throws Error(format)
// if `first` is a later part (the message names the first one), or if name and keys disagree.
std::vector<std::string> split_paths(const Gguf& first);

// Writes GGUF v3. Add all values and tensors first, then write the tensor data in the same order.
// The file appears under its name with finish() (OutputFile). Throws Error(io) on write errors,
// including a full disk. Throws Error(argument) for calls in the wrong order and for anything that
// the reader would refuse (names, sizes, duplicates).
class GgufWriter {
 public:
    // alignment: of tensors in the file, a power of two; the key is written if it is not 32.
    explicit GgufWriter(const std::string& path, const char magic[4] = "GGUF",
                        uint32_t alignment = 32);

    void add_u32(std::string_view key, uint32_t value);
    void add_f32(std::string_view key, float value);
    void add_bool(std::string_view key, bool value);
    void add_string(std::string_view key, std::string_view value);
    void add_strings(std::string_view key, const std::vector<std::string>& values);
    void add_f32s(std::string_view key, const std::vector<float>& values);
    void add_i32s(std::string_view key, const std::vector<int32_t>& values);
    void add_value(std::string_view key, const Value& value);  // of another file
    void add_tensor(std::string_view name, DType type, const std::vector<int64_t>& ne);
    // Writes all bytes of the next tensor, in the order of add_tensor; or some of them, and then
    // the others.
    void write(const void* data, uint64_t bytes);
    void write_part(const void* data, uint64_t bytes);
    void finish();

 private:
    [[noreturn]] void fail(const std::string& what) const;  // Error(argument)
    uint64_t padding(uint64_t n) const;
    void pad(uint64_t written);
    void add(std::string_view key, ValueType type, const void* data, size_t n);
    void begin_array(std::string_view key, ValueType element, uint64_t count);
    void write_header();
    OutputFile file_;
    std::string kv_, infos_;
    char magic_[5];
    uint64_t alignment_;
    uint64_t n_kv_ = 0, data_bytes_ = 0;
    std::vector<uint64_t> sizes_;
    size_t next_ = 0;    // the tensor that is being written,
    uint64_t part_ = 0;  // and how much of it is
    std::set<std::string, std::less<>> keys_, names_;
    bool header_written_ = false;
};

}  // namespace ggml
