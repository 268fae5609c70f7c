#include "ggml/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ggml/status.h"

namespace ggml {

namespace {

using ull = unsigned long long;

// Fixed limits, in addition to the size of the file. A sparse file reads as gigabytes of zeros, and
// zeros parse as empty strings. Without limits a file that is small on disk could request any
// amount of memory.
constexpr uint64_t kMaxKeys = 1 << 16;     // public models have about fifty
constexpr uint64_t kMaxTensors = 1 << 18;  // public models have up to a few thousand
constexpr uint64_t kMaxStrings = 1 << 24;  // over all arrays; vocabularies have up to 300,000
constexpr uint64_t kMaxKey = 65535;        // bytes; the limit of the format
constexpr uint64_t kMaxName = 127;         // bytes; twice what other readers accept
constexpr int kMaxDims = 4;
constexpr uint64_t kMaxHeader = 1 << 28;  // bytes; public models have up to about 20 MB
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = 65536;

// The sizes of the smallest possible entries limit the counts. Value: key, type and one byte.
// Tensor: name of one byte, n_dims, one size, type, offset.
constexpr uint64_t kSmallestValue = 8 + 1 + 4 + 1, kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of a value; 0 for strings and arrays, which have no fixed size.
uint64_t size_of(ValueType type) {
    switch (type) {
        case ValueType::u8:
        case ValueType::i8:
        case ValueType::boolean:
            return 1;
        case ValueType::u16:
        case ValueType::i16:
            return 2;
        case ValueType::u32:
        case ValueType::i32:
        case ValueType::f32:
            return 4;
        case ValueType::u64:
        case ValueType::i64:
        case ValueType::f64:
            return 8;
        case ValueType::string:
        case ValueType::array:
            break;
    }
    return 0;
}

std::string type_text(const Value& v) {
    return (v.is_array() ? "array of " : "") + std::string(name(v.element_type()));
}

// A public tensor type that this engine does not support, for error messages.
struct PublicType {
    uint32_t id;
    const char *name, *what = "";
};
const PublicType* public_type(uint32_t id) {
    static constexpr PublicType types[] = {
        {9, "Q8_1"},
        {15, "Q8_K"},
        {25, "I16"},
        {27, "I64"},
        {28, "F64"},
        {36, "I2_S",
         ": only bitnet.cpp knows its layout; TQ2_0 and TQ1_0 hold the same weights (convert the "
         "checkpoint, then quantize)"},
        {41, "Q1_0"},
    };
    for (const PublicType& type : types) {
        if (type.id == id) return &type;
    }
    return nullptr;
}

template <typename T>
T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

}  // namespace

const char* name(ValueType type) {
    static const char* const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return uint32_t(type) < 13 ? names[uint32_t(type)] : "?";
}

std::string shown(std::string_view name) {
    std::string text = "\"";
    for (char c : name.substr(0, 80)) text += c >= ' ' && c <= '~' ? c : '?';
    return text + (name.size() > 80 ? "...\"" : "\"");
}

// ---- values ----------------------------------------------------------------------------------

bool Value::is_integer() const {
    return is_number() && element_ != ValueType::f32 && element_ != ValueType::f64;
}

bool Value::is_number() const {
    return element_ != ValueType::boolean && element_ != ValueType::string;
}

int64_t Value::integer(uint64_t i) const {
    if (i < count_ && data_) {
        const uint8_t* p = data_ + i * size_of(element_);
        switch (element_) {
            case ValueType::u8:
            case ValueType::boolean:
                return *p;
            case ValueType::i8:
                return load<int8_t>(p);
            case ValueType::u16:
                return load<uint16_t>(p);
            case ValueType::i16:
                return load<int16_t>(p);
            case ValueType::u32:
                return load<uint32_t>(p);
            case ValueType::i32:
                return load<int32_t>(p);
            case ValueType::i64:
                return load<int64_t>(p);
            case ValueType::u64:
                return int64_t(
                    std::min<uint64_t>(load<uint64_t>(p), std::numeric_limits<int64_t>::max()));
            default:
                break;
        }
    }
    throw Error(Code::format,
                format("no integer %llu in a value of type %s", ull(i), type_text(*this).c_str()));
}

double Value::number(uint64_t i) const {
    if (i < count_ && data_) {
        if (element_ == ValueType::f32) return double(load<float>(data_ + 4 * i));
        if (element_ == ValueType::f64) return load<double>(data_ + 8 * i);
        if (element_ == ValueType::u64) return double(load<uint64_t>(data_ + 8 * i));
        if (is_integer()) return double(integer(i));
    }
    throw Error(Code::format,
                format("no number %llu in a value of type %s", ull(i), type_text(*this).c_str()));
}

std::string_view Value::string(uint64_t i) const {
    if (i < count_ && i / kStep < starts_.size()) {
        const uint8_t* p = data_ + starts_[i / kStep];  // the reader has checked this range
        for (uint64_t k = 0; k < i % kStep; k++) p += 8 + load<uint64_t>(p);
        return {reinterpret_cast<const char*>(p + 8), size_t(load<uint64_t>(p))};
    }
    throw Error(Code::format,
                format("no string %llu in a value of type %s", ull(i), type_text(*this).c_str()));
}

std::string_view Value::after(std::string_view string) {
    const auto* p = reinterpret_cast<const uint8_t*>(string.data()) + string.size();
    return {reinterpret_cast<const char*>(p + 8), size_t(load<uint64_t>(p))};
}

std::string_view Value::bytes() const {
    const uint8_t* end = data_ + count_ * size_of(element_);
    if (is_string()) {
        end = data_;
        const uint64_t last = starts_.empty() ? 0 : (count_ - 1) / kStep * kStep;
        if (count_ > 0) end += starts_[last / kStep];
        for (uint64_t i = last; i < count_; i++) end += 8 + load<uint64_t>(end);
    }
    return {reinterpret_cast<const char*>(data_), size_t(end - data_)};
}

// ---- the reader ------------------------------------------------------------------------------

class GgufReader {
 public:
    // Thrown if the header needs more bytes than are there, at least up to `end`.
    struct More {
        uint64_t end;
    };

    // `there` bytes of a file of `size` bytes are at data. parse() throws More if it needs others.
    GgufReader(const uint8_t* data, uint64_t there, uint64_t size, const std::string& path)
        : data_(data), there_(there), size_(size) {
        gguf_.path_ = path;
    }

    Gguf parse() {
        read_header();
        for (uint64_t i = 0; i < n_values_; i++) read_pair(i);
        read_alignment();
        for (uint64_t i = 0; i < n_tensors_; i++) read_tensor(i);
        place_tensors();
        return std::move(gguf_);
    }

    // The end of the header, after parse().
    uint64_t end() const { return pos_; }

 private:
    // All reading goes through here: it returns n bytes or throws.
    const uint8_t* take(uint64_t n) {
        if (n > left()) fail("the file ends too early (size " + std::to_string(size_) + ")");
        if (n > there_ - pos_) {
            if (n > kMaxHeader - std::min(pos_, kMaxHeader))
                fail(format("the header goes on beyond %llu MiB", ull(kMaxHeader >> 20)));
            throw More{pos_ + n};
        }
        const uint8_t* p = data_ + pos_;
        pos_ += n;
        return p;
    }

    template <typename T>
    T take() {
        return load<T>(take(sizeof(T)));
    }

    std::string_view take_string() {
        const uint64_t n = take<uint64_t>();
        if (n > left())
            fail(format("a string of %llu bytes, but %llu bytes remain in the file", ull(n),
                        ull(left())));
        return {reinterpret_cast<const char*>(take(n)), size_t(n)};
    }

    uint64_t left() const { return size_ - pos_; }

    [[noreturn]] void fail(const std::string& what, Code code = Code::format) const {
        throw Error(code, gguf_.path_ + ": " + (where_.empty() ? "" : where_ + ": ") + what);
    }

    void read_header() {
        where_ = "header";
        const uint8_t* magic = take(4);
        gguf_.pwri_ = std::memcmp(magic, "PWRI", 4) == 0;
        if (!gguf_.pwri_ && std::memcmp(magic, "GGUF", 4) != 0) {
            where_.clear();
            fail(format("is not a GGUF file: it begins with the bytes %02x %02x %02x %02x",
                        magic[0], magic[1], magic[2], magic[3]));
        }
        gguf_.version_ = take<uint32_t>();
        if (gguf_.version_ != 2 && gguf_.version_ != 3) {
            const uint32_t swapped = __builtin_bswap32(gguf_.version_);
            if (swapped >= 1 && swapped <= 3)
                fail(format(
                         "GGUF version %u in big-endian order; big-endian files are not supported",
                         swapped),
                     Code::unsupported);
            fail(format("GGUF version %u is not supported (2 and 3 are)", gguf_.version_),
                 Code::unsupported);
        }
        n_tensors_ = take<uint64_t>();
        n_values_ = take<uint64_t>();
        const uint64_t max_values = std::min(kMaxKeys, left() / kSmallestValue);
        const uint64_t max_tensors = std::min(kMaxTensors, left() / kSmallestTensor);
        if (n_values_ > max_values)
            fail(format("%llu keys, but this file can hold %llu", ull(n_values_), ull(max_values)));
        if (n_tensors_ > max_tensors)
            fail(format("%llu tensors, but this file can hold %llu", ull(n_tensors_),
                        ull(max_tensors)));
    }

    ValueType take_type() {
        const uint32_t type = take<uint32_t>();
        if (type > uint32_t(ValueType::f64)) fail(format("unknown value type %u", type));
        return ValueType(type);
    }

    void read_pair(uint64_t i) {
        where_ = format("key number %llu", ull(i));
        const std::string_view key = take_string();
        if (key.empty() || key.size() > kMaxKey)
            fail(format("its name has %zu bytes, not 1 to %llu", key.size(), ull(kMaxKey)));
        where_ = "key " + shown(key);
        if (!gguf_.value_index_.emplace(key, gguf_.values_.size()).second) fail("occurs twice");
        Value value;
        value.type_ = value.element_ = take_type();
        if (value.type_ == ValueType::array) {
            value.element_ = take_type();
            value.count_ = take<uint64_t>();
            if (value.element_ == ValueType::array) fail("arrays of arrays are not supported");
        }
        if (value.element_ == ValueType::string) {
            read_strings(value);
        } else {
            read_numbers(value);
        }
        gguf_.values_.emplace_back(key, std::move(value));
        gguf_.asked_.emplace_back(false);
    }

    void read_strings(Value& value) {
        const uint64_t n = value.count_;
        if (n > left() / 8 || n > kMaxStrings - n_strings_)
            fail(format("%llu strings cannot lie in the %llu bytes that remain", ull(n),
                        ull(left())));
        n_strings_ += n;
        const uint64_t begin = pos_;
        value.data_ = data_ + begin;
        value.starts_.reserve((n + Value::kStep - 1) / Value::kStep);
        for (uint64_t i = 0; i < n; i++) {
            if (i % Value::kStep == 0) value.starts_.push_back(pos_ - begin);
            take_string();
        }
    }

    void read_numbers(Value& value) {
        const uint64_t n = value.count_, size = size_of(value.element_);
        if (n > left() / size)
            fail(format("%llu values of type %s cannot lie in the %llu bytes that remain", ull(n),
                        name(value.element_), ull(left())));
        value.data_ = take(n * size);
        if (value.element_ == ValueType::boolean)
            for (uint64_t i = 0; i < n; i++)
                if (value.data_[i] > 1)
                    fail(format("%u is not a truth value (0 or 1)", value.data_[i]));
    }

    void read_alignment() {
        const Value* value = gguf_.find("general.alignment");
        if (!value) return;
        where_ = "key \"general.alignment\"";
        if (value->type() != ValueType::u32) fail("has type " + type_text(*value) + ", not u32");
        alignment_ = uint64_t(value->integer());
        if (alignment_ < kMinAlignment || alignment_ > kMaxAlignment ||
            (alignment_ & (alignment_ - 1)))
            fail(format("%llu is not a power of two between %llu and %llu", ull(alignment_),
                        ull(kMinAlignment), ull(kMaxAlignment)));
    }

    // Leaves the offset as in the file, relative to the data section.
    void read_tensor(uint64_t i) {
        where_ = format("tensor number %llu", ull(i));
        TensorInfo t{};
        const std::string_view tensor = take_string();
        if (tensor.empty() || tensor.size() > kMaxName || tensor.find('\0') != tensor.npos)
            fail(format("its name must have 1 to %llu bytes, none of them 0", ull(kMaxName)));
        where_ = "tensor " + shown(tensor);
        t.name = std::string(tensor);
        if (!gguf_.tensor_index_.emplace(t.name, gguf_.tensors_.size()).second)
            fail("occurs twice");
        const uint32_t n_dims = take<uint32_t>();
        if (n_dims < 1 || n_dims > kMaxDims)
            fail(format("%u dimensions, not 1 to %d", n_dims, kMaxDims));
        t.n_dims = int(n_dims);
        // PowerInfer's placements list the neurons of a layer that are on the GPU. The list may be
        // empty.
        static constexpr char kPlacement[] = "generic.gpu_index";
        const Value* architecture = gguf_.find("general.architecture");
        const bool may_be_empty = architecture && !architecture->is_array() &&
                                  architecture->is_string() && architecture->string() == kPlacement;
        int64_t elements = 1;
        for (int d = 0; d < kMaxDims; d++) {
            const uint64_t size = d < t.n_dims ? take<uint64_t>() : 1;
            t.ne[d] = int64_t(size);
            if (size < (may_be_empty ? 0 : 1) ||
                size > uint64_t(std::numeric_limits<int64_t>::max()) ||
                __builtin_mul_overflow(elements, t.ne[d], &elements))
                fail(format("size %llu of dimension %d is out of range", ull(size), d));
        }
        const DTypeInfo& type = take_dtype();
        t.type = type.type;
        if (t.ne[0] % type.block != 0)
            fail(format("first size %lld is not a multiple of %lld, the block of %s",
                        static_cast<long long>(t.ne[0]), static_cast<long long>(type.block),
                        type.name));
        int64_t bytes;
        if (__builtin_mul_overflow(elements / type.block, type.bytes, &bytes))
            fail("its sizes multiply to more than any file holds");
        t.bytes = uint64_t(bytes);
        t.offset = take<uint64_t>();
        if (t.offset % alignment_ != 0)
            fail(format("offset %llu is not a multiple of the alignment %llu", ull(t.offset),
                        ull(alignment_)));
        gguf_.tensors_.push_back(std::move(t));
    }

    const DTypeInfo& take_dtype() {
        uint32_t id = take<uint32_t>();
        // PowerInfer's files use the ids that I8, I16 and I32 had in 2023.
        if (gguf_.pwri_ && id >= 16 && id <= 18) id += uint32_t(DType::I8) - 16;
        if (const DTypeInfo* type = find_dtype(id)) return *type;
        const PublicType* known = public_type(id);
        fail(known ? format("type %s (%u) is not supported%s", known->name, id, known->what)
                   : format("unknown type %u", id),
             Code::unsupported);
    }

    // Makes offsets relative to the file, and checks that tensors are inside it and do not overlap.
    void place_tensors() {
        where_.clear();
        if (gguf_.tensors_.empty()) return;  // without tensors the padding may be missing
        uint64_t begin;
        if (__builtin_add_overflow(pos_, alignment_ - 1, &begin)) fail("is too long");
        begin &= ~(alignment_ - 1);
        std::vector<std::pair<uint64_t, size_t>> order;
        order.reserve(gguf_.tensors_.size());
        for (TensorInfo& t : gguf_.tensors_) {
            where_ = "tensor " + shown(t.name);
            uint64_t offset;
            if (__builtin_add_overflow(begin, t.offset, &offset) || offset > size_ ||
                (t.bytes && offset == size_))
                fail(format("offset %llu lies outside the file (size %llu, data from %llu)",
                            ull(t.offset), ull(size_), ull(begin)));
            if (t.bytes > size_ - offset)
                fail(
                    format("%llu bytes at offset %llu end outside the file (size %llu, data "
                           "from %llu)",
                           ull(t.bytes), ull(t.offset), ull(size_), ull(begin)));
            t.offset = offset;
            // Empty tensors overlap nothing.
            if (t.bytes) order.emplace_back(offset, size_t(&t - gguf_.tensors_.data()));
        }
        std::sort(order.begin(), order.end());
        for (size_t i = 1; i < order.size(); i++) {
            const TensorInfo& a = gguf_.tensors_[order[i - 1].second];
            const TensorInfo& b = gguf_.tensors_[order[i].second];
            where_ = "tensor " + shown(b.name);
            if (b.offset - a.offset < a.bytes) fail("overlaps tensor " + shown(a.name));
        }
    }

    const uint8_t* data_;
    uint64_t there_, size_, pos_ = 0;
    uint64_t n_values_ = 0, n_tensors_ = 0, n_strings_ = 0, alignment_ = 32;
    std::string where_;  // what is being read, for messages
    Gguf gguf_;
};

Gguf Gguf::parse(const uint8_t* data, uint64_t size, const std::string& path) {
    return GgufReader(data, size, size, path).parse();
}

Gguf Gguf::read(const File& file) {
    auto bytes = std::make_shared<std::vector<uint8_t>>();
    // The size doubles each time, so all attempts together read and parse about twice the header.
    for (uint64_t end = 1 << 16;;) {
        const size_t there = bytes->size();
        bytes->resize(size_t(std::min(end, file.size())));
        if (bytes->size() > there) file.read(there, bytes->data() + there, bytes->size() - there);
        try {
            GgufReader reader(bytes->data(), bytes->size(), file.size(), file.path());
            Gguf gguf = reader.parse();
            if (reader.end() == bytes->size()) {
                gguf.bytes_ = std::move(bytes);
                return gguf;
            }
            end = reader.end();  // drop the bytes after the header
            bytes = std::make_shared<std::vector<uint8_t>>(bytes->begin(),
                                                           bytes->begin() + ptrdiff_t(end));
        } catch (const GgufReader::More& more) {
            end = std::max(more.end, 2 * end);
        }
    }
}

// ---- look-ups --------------------------------------------------------------------------------

void Gguf::fail_key(std::string_view key, const std::string& what) const {
    throw Error(Code::format, path_ + ": key " + shown(key) + " " + what);
}

const Value* Gguf::find(std::string_view key) const {
    const auto it = value_index_.find(key);
    if (it == value_index_.end()) return nullptr;
    asked_[it->second].store(true, std::memory_order_relaxed);
    return &values_[it->second].second;
}

const TensorInfo* Gguf::find_tensor(std::string_view name) const {
    const auto it = tensor_index_.find(name);
    return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const Value& Gguf::value(std::string_view key) const {
    if (const Value* v = find(key)) return *v;
    fail_key(key, "is missing");
}

int64_t Gguf::integer(std::string_view key, int64_t lo, int64_t hi) const {
    const Value& v = value(key);
    if (v.is_array() || !v.is_integer())
        fail_key(key, "has type " + type_text(v) + ", not an integer");
    const int64_t n = v.integer();
    if (n < lo || n > hi)
        fail_key(key, format("is %lld, outside %lld..%lld", static_cast<long long>(n),
                             static_cast<long long>(lo), static_cast<long long>(hi)));
    return n;
}

int64_t Gguf::integer(std::string_view key, int64_t lo, int64_t hi, int64_t missing) const {
    return find(key) ? integer(key, lo, hi) : missing;
}

double Gguf::number(std::string_view key, double lo, double hi) const {
    const Value& v = value(key);
    if (v.is_array() || !v.is_number())
        fail_key(key, "has type " + type_text(v) + ", not a number");
    const double x = v.number();
    if (!std::isfinite(x) || x < lo || x > hi)
        fail_key(key, format("is %g, outside %g..%g", x, lo, hi));
    return x;
}

double Gguf::number(std::string_view key, double lo, double hi, double missing) const {
    return find(key) ? number(key, lo, hi) : missing;
}

bool Gguf::boolean(std::string_view key, bool missing) const {
    const Value* v = find(key);
    if (!v) return missing;
    if (v->is_array() || !v->is_bool()) fail_key(key, "has type " + type_text(*v) + ", not bool");
    return v->integer() != 0;
}

std::string_view Gguf::string(std::string_view key) const {
    const Value& v = value(key);
    if (v.is_array() || !v.is_string()) fail_key(key, "has type " + type_text(v) + ", not string");
    return v.string();
}

std::string_view Gguf::string(std::string_view key, std::string_view missing) const {
    return find(key) ? string(key) : missing;
}

// ---- split files -----------------------------------------------------------------------------

void Gguf::append_tensors(const Gguf& part, int file) {
    const int64_t count = integer("split.count", 2, 999);
    part.integer("split.no", file, file);
    part.integer("split.count", count, count);
    if (tensors_.size() + part.tensors_.size() > kMaxTensors)
        throw Error(Code::format, part.path_ + ": too many tensors in all parts together");
    for (const TensorInfo& t : part.tensors_) {
        // A part that claims to be a placement may have empty tensors; a model may not.
        if (!t.bytes)
            throw Error(Code::format, part.path_ + ": tensor " + shown(t.name) + ": is empty");
        if (!tensor_index_.emplace(t.name, tensors_.size()).second)
            throw Error(Code::format, part.path_ + ": tensor " + shown(t.name) +
                                          ": occurs in an earlier part too");
        tensors_.push_back(t);
        tensors_.back().file = file;
    }
    const int64_t n = int64_t(tensors_.size());
    if (file == count - 1 && integer("split.tensors.count", 0, int64_t(kMaxTensors), n) != n)
        fail_key(
            "split.tensors.count",
            format("is %lld, but the parts hold %lld tensors",
                   static_cast<long long>(integer("split.tensors.count", 0, int64_t(kMaxTensors))),
                   static_cast<long long>(n)));
}

std::vector<std::string> split_paths(const Gguf& first) {
    const std::string& path = first.path();
    // Tools that merge parts leave the keys in the file, with a count of 0.
    const int count = int(first.integer("split.count", 0, 999, 0));
    const int no = int(first.integer("split.no", 0, std::max(0, count - 1), 0));
    if (count < 2) return {path};
    const auto ending = [count](int part) { return format("-%05d-of-%05d.gguf", part + 1, count); };
    const std::string own = ending(no);
    if (path.size() <= own.size() || path.compare(path.size() - own.size(), own.size(), own) != 0)
        throw Error(Code::format,
                    format("%s: is part %d of %d of a split file, so its name must end in %s",
                           path.c_str(), no + 1, count, own.c_str()));
    const std::string stem = path.substr(0, path.size() - own.size());
    if (no != 0)
        throw Error(Code::format,
                    format("%s: is part %d of %d of a split file; open the first part, %s%s",
                           path.c_str(), no + 1, count, stem.c_str(), ending(0).c_str()));
    std::vector<std::string> paths;
    for (int i = 0; i < count; i++) paths.push_back(stem + ending(i));
    return paths;
}

}  // namespace ggml
