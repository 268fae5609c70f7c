// The GGUF reader and writer: what they agree on, and one rejects_ case per rule for hostile files.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>

#include "check.h"
#include "ggml/file_io.h"
#include "ggml/gguf.h"

using namespace ggml;
namespace fs = std::filesystem;

namespace {

uint64_t allocated = 0;  // bytes, by everything in this program

}  // namespace

void* operator new(size_t n) {
    allocated += n;
    if (void* p = std::malloc(n)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, size_t) noexcept {
    std::free(p);
}

namespace {

fs::path folder;
constexpr uint64_t kMax = UINT64_MAX;

// ---- crafted files: every field can be anything ----------------------------------------------

template <typename T>
std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
std::string u16(uint16_t v) {
    return raw(v);
}
std::string u32(uint32_t v) {
    return raw(v);
}
std::string u64(uint64_t v) {
    return raw(v);
}
std::string str(const std::string& s) {
    return u64(s.size()) + s;
}
std::string kv(const std::string& key, ValueType type, const std::string& value) {
    return str(key) + u32(uint32_t(type)) + value;
}
std::string array(uint32_t element, uint64_t count, const std::string& elements) {
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
void parse(const std::string& bytes) {
    std::vector<uint8_t> copy(bytes.begin(), bytes.end());
    copy.shrink_to_fit();
    Gguf::parse(copy.data(), copy.size(), "x.gguf");
}

std::string message(const std::string& bytes) {
    try {
        parse(bytes);
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

Crafted one(Tensor tensor, uint64_t data = 128) {
    Crafted file;
    file.tensors = {std::move(tensor)};
    file.data = data;
    return file;
}

Crafted with(const std::string& value) {
    Crafted file;
    file.values = {value};
    return file;
}

// ---- files on disk ---------------------------------------------------------------------------

struct Opened {
    std::unique_ptr<File> file;
    std::unique_ptr<Mapping> mapping;
    Gguf gguf;  // of the mapping
};

Opened open(const std::string& path) {
    auto file = std::make_unique<File>(path);
    auto mapping = std::make_unique<Mapping>(*file);
    Gguf gguf = Gguf::parse(mapping->data(), mapping->size(), path);
    CHECK(Gguf::read(*file).tensors().size() == gguf.tensors().size());
    return {std::move(file), std::move(mapping), std::move(gguf)};
}

std::string at(const std::string& name) {
    return (folder / name).string();
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

void write_sample(const std::string& path, const char* magic = "GGUF") {
    GgufWriter w(path, magic);
    w.add_string("general.architecture", "llama");
    w.add_u32("llama.block_count", 7);
    w.add_f32("eps", 1e-5f);
    w.add_bool("yes", true);
    w.add_bool("no", false);
    w.add_string("empty", "");
    w.add_strings("tokens", {"a", "", std::string("\0b", 2), "\xe2\x96\x81"});
    w.add_strings("none", {});
    w.add_f32s("scores", {0.5f, -1});
    w.add_i32s("types", {-1, 2, INT32_MIN});
    w.add_tensor("a", DType::F32, {3, 2});
    w.add_tensor("b.weight", DType::Q4_0, {64, 1, 2, 1});
    w.add_tensor("c", DType::I8, {32});
    const float a[6] = {1, 2, 3, 4, 5, 6};
    w.write(a, sizeof(a));
    const std::string b(72, 'b'), c(32, 'c');
    w.write(b.data(), 72);
    CHECK(!fs::exists(path) && fs::exists(path + ".part"));
    w.write(c.data(), 32);
    w.finish();
    CHECK(fs::exists(path) && !fs::exists(path + ".part"));
}

void round_trip() {
    for (const char* magic : {"GGUF", "PWRI"}) {
        const std::string path = at("sample.gguf");
        fs::remove(path);
        write_sample(path, magic);
        const Opened file = open(path);
        const Gguf& g = file.gguf;
        CHECK(g.path() == path && g.version() == 3);
        CHECK(g.pwri_magic() == (std::strcmp(magic, "PWRI") == 0));
        CHECK(g.values().size() == 10 && g.values()[1].first == "llama.block_count");
        CHECK(g.string("general.architecture") == "llama" && g.string("empty") == "");
        CHECK(g.integer("llama.block_count", 1, 10) == 7);
        CHECK(g.number("eps", 0, 1) == double(1e-5f) && g.number("llama.block_count", 0, 7) == 7);
        CHECK(g.boolean("yes", false) && !g.boolean("no", true));
        const Value& tokens = *g.find("tokens");
        CHECK(tokens.is_array() && tokens.is_string() && tokens.count() == 4);
        CHECK(tokens.string(0) == "a" && tokens.string(1).empty() && tokens.string(2).size() == 2);
        CHECK(g.find("none")->count() == 0);
        CHECK(g.find("scores")->number(1) == -1 && g.find("types")->integer(2) == INT32_MIN);
        CHECK(g.tensors().size() == 3 && g.find_tensor("d") == nullptr);
        const TensorInfo& a = *g.find_tensor("a");
        CHECK(a.type == DType::F32 && a.n_dims == 2 && a.ne[0] == 3 && a.ne[1] == 2 &&
              a.ne[3] == 1);
        CHECK(a.bytes == 24 && a.offset % 32 == 0 && a.file == 0);
        float last;
        std::memcpy(&last, file.mapping->data() + a.offset + 20, 4);
        CHECK(last == 6);
        const TensorInfo& b = *g.find_tensor("b.weight");
        CHECK(b.n_dims == 4 && b.ne[0] == 64 && b.ne[2] == 2 && b.bytes == 72);
        CHECK(file.mapping->data()[b.offset] == 'b' && file.mapping->data()[b.offset + 71] == 'b');
        CHECK(file.mapping->data()[b.offset + 72] == 0);
    }
}

void typed_reads() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Crafted file;
    file.values = {
        kv("u8", ValueType::u8, "\xff"),
        kv("i8", ValueType::i8, "\xff"),
        kv("u16", ValueType::u16, u16(65535)),
        kv("i16", ValueType::i16, u16(65535)),
        kv("u32", ValueType::u32, u32(4294967295u)),
        kv("i32", ValueType::i32, u32(4294967295u)),
        kv("u64", ValueType::u64, u64(kMax)),
        kv("i64", ValueType::i64, u64(kMax)),
        kv("f32", ValueType::f32, raw(1.5f)),
        kv("f64", ValueType::f64, raw(-2.5)),
        kv("nan", ValueType::f64, raw(nan)),
        kv("inf", ValueType::f32, raw(std::numeric_limits<float>::infinity())),
        kv("bool", ValueType::boolean, "\1"),
        kv("string", ValueType::string, str("s")),
        kv("array", ValueType::array, array(4, 2, u32(1) + u32(2))),
    };
    const std::string bytes = file.bytes();
    const Gguf g =
        Gguf::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "x.gguf");
    const int64_t lo = INT64_MIN, hi = INT64_MAX;
    CHECK(g.integer("u8", lo, hi) == 255 && g.integer("i8", lo, hi) == -1);
    CHECK(g.integer("u16", lo, hi) == 65535 && g.integer("i16", lo, hi) == -1);
    CHECK(g.integer("u32", lo, hi) == 4294967295 && g.integer("i32", lo, hi) == -1);
    CHECK(g.integer("u64", lo, hi) == hi && g.integer("i64", lo, hi) == -1);
    CHECK(g.number("f32", -9, 9) == 1.5 && g.number("f64", -9, 9) == -2.5 &&
          g.number("u64", 0, 1e30) > 1.8e19);
    CHECK(g.integer("absent", 0, 1, 5) == 5 && g.number("absent", 0, 1, 0.5) == 0.5);
    CHECK(g.string("absent", "d") == "d" && g.boolean("absent", true));
    CHECK(g.string("string", "d") == "s" && g.boolean("bool", false));
    for (const char* key : {"absent", "f32", "bool", "string", "array"})
        CHECK_THROWS(format, g.integer(key, lo, hi));
    for (const char* key : {"absent", "nan", "inf", "bool", "string", "array"})
        CHECK_THROWS(format, g.number(key, -1e300, 1e300));
    for (const char* key : {"absent", "u8", "array"}) CHECK_THROWS(format, g.string(key));
    for (const char* key : {"u8", "string", "array"}) CHECK_THROWS(format, g.boolean(key, true));
    CHECK_THROWS(format, g.string("u8", "d"));
    CHECK_THROWS(format, g.integer("f32", lo, hi, 0));
    CHECK_THROWS(format, g.integer("u8", 0, 254));
    CHECK_THROWS(format, g.integer("i8", 0, 254));
    CHECK_THROWS(format, g.number("f32", 2, 3));
    CHECK_THROWS(format, g.find("array")->integer(2));
    CHECK_THROWS(format, g.find("array")->string());
    CHECK_THROWS(format, g.find("string")->integer());
    CHECK_THROWS(format, g.find("bool")->number());
    CHECK(g.find("bool")->integer() == 1 && !g.find("bool")->is_integer() &&
          !g.find("bool")->is_number());
    try {
        g.integer("u8", 0, 10);
    } catch (const Error& e) {
        CHECK(std::string(e.what()) == "x.gguf: key \"u8\" is 255, outside 0..10");
    }
}

void accepts() {
    Crafted v2 = one({});
    v2.version = 2;
    CHECK(message(v2.bytes()) == "");
    CHECK(message(Crafted().bytes()) == "");
    CHECK(message(with(kv("k", ValueType::u8, "x")).bytes().substr(0, 38)) ==
          "");  // no tensors: no padding
    Crafted two = one({"a", {40}, 24, 64}, 128);
    two.tensors.push_back({"b", {64}, 24, 0});
    CHECK(message(two.bytes()) == "");  // any order
    CHECK(message(two.bytes().substr(0, two.bytes().size() - 24)) ==
          "");  // the last padding may be missing
    Crafted wide = one({"t", {32}, 0, 4096}, 8192);
    wide.alignment = 4096;
    wide.values = {kv("general.alignment", ValueType::u32, u32(4096))};
    CHECK(message(wide.bytes()) == "");
    Crafted old = one({"blk.0.gpu_idx", {32}, 18, 0});  // I32 had this id in PowerInfer's files
    CHECK_THROWS(unsupported, parse(old.bytes()));
    old.magic = "PWRI";
    CHECK(message(old.bytes()) == "");
    CHECK(message(one({std::string(127, 'n')}).bytes()) == "");
}

// ---- one case per rule -----------------------------------------------------------------------

void rejects_headers() {
    Crafted file;
    file.magic = "GGML";
    CHECK_THROWS(format, parse(file.bytes()));
    CHECK_THROWS(format, parse(""));
    for (uint32_t version : {0u, 1u, 4u, 0xffffffffu, 0x03000000u, 0x02000000u}) {
        file = Crafted();
        file.version = version;
        CHECK_THROWS(unsupported, parse(file.bytes()));
    }
    file.version = 0x03000000;
    CHECK(message(file.bytes()).find("big-endian files are not supported") != std::string::npos);
    for (int64_t n : {int64_t(4), int64_t(1) << 40, int64_t(1) << 61, INT64_MAX}) {
        file = one({});
        file.n_tensors = n;
        CHECK_THROWS(format, parse(file.bytes()));
        file = with(kv("k", ValueType::u8, "x"));
        file.n_values = n;
        CHECK_THROWS(format, parse(file.bytes()));
    }
    // Larger than any model, though the bytes would be there: entries of zeros from a hole in a
    // file.
    Crafted zeros = Crafted();
    zeros.n_values = (1 << 16) + 1;
    CHECK_THROWS(format, parse(zeros.bytes() + std::string(14 * ((1 << 16) + 1), '\0')));
}

void rejects_values() {
    const auto k = [](ValueType type, const std::string& value) {
        return with(kv("k", type, value)).bytes();
    };
    const auto a = [&](uint32_t element, uint64_t count, const std::string& elements) {
        return k(ValueType::array, array(element, count, elements));
    };
    CHECK_THROWS(format, parse(with(kv("", ValueType::u8, "x")).bytes()));
    CHECK_THROWS(format, parse(with(kv(std::string(65536, 'k'), ValueType::u8, "x")).bytes()));
    for (uint64_t n : {uint64_t(1) << 31, uint64_t(1) << 62, kMax - 7, kMax}) {
        CHECK_THROWS(format, parse(with(u64(n) + "k" + u32(0) + "xxxxxxxx").bytes()));
        CHECK_THROWS(format, parse(k(ValueType::string, u64(n) + "text")));
        for (uint32_t element : {0u, 4u, 7u, 8u, 12u})
            CHECK_THROWS(format, parse(a(element, n, "12345678")));
    }
    for (uint32_t type : {13u, 99u, 0xffffffffu}) {
        CHECK_THROWS(format, parse(k(ValueType(type), "12345678")));
        CHECK_THROWS(format, parse(a(type, 1, "12345678")));
    }
    CHECK_THROWS(format, parse(a(9, 1, array(0, 1, "x"))));
    CHECK_THROWS(format, parse(k(ValueType::boolean, "\2")));
    CHECK_THROWS(format, parse(a(7, 3, std::string("\0\1\xff", 3))));
    CHECK_THROWS(format, parse(a(8, 2, str("a") + u64(100))));
    Crafted twice = with(kv("k", ValueType::u8, "x"));
    twice.values.push_back(kv("k", ValueType::u32, u32(1)));
    CHECK_THROWS(format, parse(twice.bytes()));
    for (uint32_t n : {0u, 1u, 4u, 33u, 48u, 131072u, 0x80000000u, 0xffffffffu})
        CHECK_THROWS(format, parse(with(kv("general.alignment", ValueType::u32, u32(n))).bytes()));
    CHECK_THROWS(format, parse(with(kv("general.alignment", ValueType::u64, u64(32))).bytes()));
    CHECK(message(with(kv("a\x1b[2Jb\n", ValueType::boolean, "\2")).bytes()) ==
          "x.gguf: key \"a?[2Jb?\": 2 is not a truth value (0 or 1)");
}

void rejects_tensors() {
    CHECK_THROWS(format, parse(one({""}).bytes()));
    CHECK_THROWS(format, parse(one({std::string(128, 'n')}).bytes()));
    CHECK_THROWS(format, parse(one({std::string("a\0b", 3)}).bytes()));
    Crafted twice = one({"a"}, 1024);
    twice.tensors.push_back({"a", {32}, 0, 128});
    CHECK_THROWS(format, parse(twice.bytes()));
    for (int64_t n : {int64_t(0), int64_t(5), int64_t(1) << 16, int64_t(UINT32_MAX)})
        CHECK_THROWS(format, parse(one({"t", {32, 1, 1, 1, 1}, 0, 0, n}, 65536).bytes()));
    for (uint64_t n :
         {uint64_t(0), uint64_t(33), uint64_t(1) << 31, uint64_t(1) << 63, kMax, kMax - 31})
        CHECK_THROWS(format, parse(one({"t", {n}}).bytes()));
    for (uint32_t q : {2u, 8u})
        for (uint64_t n : {1u, 31u, 33u})
            CHECK_THROWS(format, parse(one({"t", {n, 32}, q}, 65536).bytes()));
    const uint64_t big = uint64_t(1) << 32;
    CHECK_THROWS(format, parse(one({"t", {big, big}}).bytes()));
    CHECK_THROWS(format,
                 parse(one({"t", {big, big / 2 - 1}}).bytes()));  // elements fit, bytes do not
    CHECK_THROWS(format, parse(one({"t", {kMax - 255, kMax}}).bytes()));
    CHECK_THROWS(format, parse(one({"t", {1, 1, 1, kMax / 4 + 2}}).bytes()));
    for (uint32_t type : {4u, 5u, 9u, 16u, 21u, 25u, 31u, 99u, 0x7fffffffu, 0xffffffffu})
        CHECK_THROWS(unsupported, parse(one({"t", {256}, type}, 1024).bytes()));
    CHECK(message(one({"t", {256}, 16}).bytes()) ==
          "x.gguf: tensor \"t\": type IQ2_XXS (16) is not supported");
    CHECK(message(one({"t", {256}, 99}).bytes()) == "x.gguf: tensor \"t\": unknown type 99");
    for (uint64_t offset : {uint64_t(1), uint64_t(16), uint64_t(32), uint64_t(1) << 40,
                            uint64_t(1) << 63, kMax - 31, kMax})
        CHECK_THROWS(format, parse(one({"t", {32}, 0, offset}).bytes()));
    CHECK(message(one({"t", {32}, 0, 12352}).bytes()) ==
          "x.gguf: tensor \"t\": offset 12352 lies outside the file (size 192, data from 64)");
    CHECK_THROWS(format, parse(one({"t", {33}}).bytes()));
    Crafted overlap = one({"a", {64}, 24, 32}, 128);
    overlap.tensors.push_back({"b", {33}, 24, 0});
    CHECK(message(overlap.bytes()) == "x.gguf: tensor \"a\": overlaps tensor \"b\"");
    overlap.tensors[1] = {"b", {64}, 24, 32};
    CHECK_THROWS(format, parse(overlap.bytes()));
}

// PowerInfer's placements may list no neuron; their empty tensors lie anywhere up to the end.
void empty_tensors_of_placements() {
    Crafted file = with(kv("general.architecture", ValueType::string, str("generic.gpu_index")));
    const auto empty = [](uint64_t offset) { return Tensor{"empty", {0}, 26, offset}; };
    file.tensors = {{"full", {32}, 26, 0}, empty(128)};
    file.data = 128;
    for (uint64_t offset : {0, 32, 128}) {
        file.tensors[1] = empty(offset);
        const std::string bytes = file.bytes();
        const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
        const Gguf g = Gguf::parse(data, bytes.size(), "x");
        CHECK(g.find_tensor("empty")->bytes == 0 && g.find_tensor("empty")->ne[0] == 0);
        CHECK(g.find_tensor("full")->bytes == 128);
    }
    for (uint64_t offset : {uint64_t(160), kMax / 32 * 32, kMax - 31}) {
        file.tensors[1] = empty(offset);
        CHECK_THROWS(format, parse(file.bytes()));
    }
    file.tensors[1] = empty(0);
    file.values = {kv("general.architecture", ValueType::string, str("llama"))};
    CHECK_THROWS(format, parse(file.bytes()));
    file.values = {kv("general.architecture", ValueType::u32, u32(7))};
    CHECK_THROWS(format, parse(file.bytes()));
    file.values.clear();
    CHECK_THROWS(format, parse(file.bytes()));
}

// Read bit by bit: values and names that end where a read does, beside it, and far behind it.
void headers_of_any_length() {
    constexpr uint64_t kFirst = 1 << 16;  // bytes of the first read
    for (uint64_t length : {uint64_t(1), kFirst - 200, kFirst, 5 * kFirst}) {
        for (uint64_t more = 0; more < 160; more += length == 1 ? 160 : 7) {
            Crafted crafted = with(kv("long", ValueType::string, str(std::string(length, 'x'))));
            crafted.values.push_back(kv("fills", ValueType::string, str(std::string(more, 'y'))));
            crafted.values.push_back(kv("last", ValueType::u32, u32(7)));
            crafted.tensors = {{"t", {32}, 0, 0}};
            crafted.data = 128;
            const std::string path = at("long.gguf");
            std::ofstream(path, std::ios::binary) << crafted.bytes();
            const File file(path);
            const Gguf gguf = Gguf::read(file);
            std::filesystem::resize_file(path, 0);  // it holds what it has read
            CHECK(gguf.string("long").size() == length && gguf.integer("last", 0, 9) == 7);
            CHECK(gguf.string("fills") == std::string(more, 'y'));
            CHECK(gguf.find_tensor("t")->bytes == 128);
            CHECK_THROWS(io, Gguf::read(file));
        }
    }
    // A hole in a file is not kept as a header.
    Crafted crafted = with(kv("hole", ValueType::u8, ""));
    crafted.values[0] = str("hole") + u32(9) + u32(0) + u64(uint64_t(1) << 32);
    const std::string path = at("hole.gguf");
    std::ofstream(path, std::ios::binary) << crafted.bytes();
    std::filesystem::resize_file(path, uint64_t(1) << 33);
    const File file(path);
    CHECK_THROWS(format, Gguf::read(file));
}

void rejects_truncation() {
    const std::string bytes = read_file(at("sample.gguf"));
    CHECK(message(bytes) == "");
    int refused = 0;
    for (size_t n = 0; n < bytes.size(); n++) {
        try {
            parse(bytes.substr(0, n));
        } catch (const Error& e) {
            refused += e.code() == Code::format;
        }
    }
    CHECK(refused == int(bytes.size()));
    // Any single damaged byte: an Error or a good file, nothing else.
    for (size_t i = 0; i < bytes.size(); i++)
        for (int byte : {0, 1, 0x7f, 0x80, 0xff}) {
            std::string damaged = bytes;
            damaged[i] = char(byte);
            message(damaged);
        }
}

// ---- split files -----------------------------------------------------------------------------

std::string part(int no, int count, int total, const std::string& tensor) {
    Crafted file = one({tensor});
    file.values = {kv("split.no", ValueType::u16, u16(uint16_t(no))),
                   kv("split.count", ValueType::u16, u16(uint16_t(count))),
                   kv("split.tensors.count", ValueType::i32, u32(uint32_t(total)))};
    return file.bytes();
}

std::string put(const std::string& name, const std::string& bytes) {
    std::ofstream(at(name), std::ios::binary) << bytes;
    return at(name);
}

void splits() {
    std::vector<std::string> names;
    for (int i = 0; i < 3; i++)
        names.push_back(put("m-0000" + std::to_string(i + 1) + "-of-00003.gguf",
                            part(i, 3, 3, "t" + std::to_string(i))));
    Opened first = open(names[0]);
    const Opened second = open(names[1]), third = open(names[2]);
    CHECK(split_paths(first.gguf) == names);
    CHECK_THROWS(format, split_paths(second.gguf));
    try {
        split_paths(second.gguf);
    } catch (const Error& e) {
        CHECK(std::strstr(
            e.what(),
            ("is part 2 of 3 of a split file; open the first part, " + names[0]).c_str()));
    }
    CHECK_THROWS(format, first.gguf.append_tensors(third.gguf, 1));  // a renamed part
    first.gguf.append_tensors(second.gguf, 1);
    first.gguf.append_tensors(third.gguf, 2);
    CHECK(first.gguf.tensors().size() == 3 && first.gguf.find_tensor("t2")->file == 2);
    CHECK(first.gguf.find_tensor("t0")->file == 0);

    Opened again = open(names[0]);
    const Opened same = open(put("same.gguf", part(1, 3, 3, "t0")));
    CHECK_THROWS(format, again.gguf.append_tensors(same.gguf, 1));  // a tensor in two parts
    Opened pair = open(put("p-00001-of-00002.gguf", part(0, 2, 7, "a")));
    const Opened end = open(put("p-00002-of-00002.gguf", part(1, 2, 7, "b")));
    CHECK_THROWS(format, pair.gguf.append_tensors(end.gguf, 1));  // 2 tensors, not 7

    const std::string plain = put("plain.gguf", one({}).bytes());
    CHECK(split_paths(open(plain).gguf) == std::vector<std::string>{plain});
    const std::string joined =
        put("joined.gguf", part(0, 0, 1, "t"));  // as tools leave it that join parts
    CHECK(split_paths(open(joined).gguf) == std::vector<std::string>{joined});
    CHECK_THROWS(format, split_paths(open(put("m-00001-of-00004.gguf", part(0, 3, 3, "t"))).gguf));
    CHECK_THROWS(format, split_paths(open(put("renamed.gguf", part(0, 3, 3, "t"))).gguf));
    CHECK_THROWS(format,
                 split_paths(open(put("m-00001-of-01000.gguf", part(0, 1000, 3, "t"))).gguf));
    CHECK_THROWS(format, split_paths(open(put("m-00004-of-00003.gguf", part(3, 3, 3, "t"))).gguf));
    Crafted typed = with(kv("split.count", ValueType::f32, raw(2.0f)));
    CHECK_THROWS(format, split_paths(open(put("typed.gguf", typed.bytes())).gguf));
}

// ---- the writer's own rules ------------------------------------------------------------------

// A part may say that it is a placement, whose tensors may be empty. A model's rows are divided by.
void empty_tensors_of_parts() {
    const auto part = [](int no, const std::string& architecture, uint64_t rows) {
        Crafted file = one({ggml::format("t%d", no), {4, rows}});
        file.values = {kv("split.no", ValueType::u16, u16(uint16_t(no))),
                       kv("split.count", ValueType::u16, u16(2)),
                       kv("general.architecture", ValueType::string, str(architecture))};
        return file.bytes();
    };
    const std::string first = part(0, "llama", 2), second = part(1, "generic.gpu_index", 0);
    const auto parsed = [](const std::string& bytes) {
        return Gguf::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "x.gguf");
    };
    Gguf gguf = parsed(first);
    CHECK_THROWS(format, gguf.append_tensors(parsed(second), 1));
    const std::string good = part(1, "generic.gpu_index", 1);
    gguf = parsed(first);
    gguf.append_tensors(parsed(good), 1);
    CHECK(gguf.tensors().size() == 2);
}

// An empty string takes eight bytes of a file, and a view of it took sixteen of memory.
void memory_of_strings() {
    constexpr uint64_t n = 1 << 22;
    const std::string bytes =
        with(kv("k", ValueType::array, array(8, n, std::string(n * 8, '\0')))).bytes();
    const uint64_t before = allocated;
    const Gguf gguf =
        Gguf::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "x.gguf");
    CHECK(allocated - before < bytes.size() / 32);  // views took twice the file's size
    std::string texts;
    for (int i = 0; i < 200; i++) texts += str(std::to_string(i));
    const std::string some = with(kv("k", ValueType::array, array(8, 200, texts))).bytes();
    const Gguf few =
        Gguf::parse(reinterpret_cast<const uint8_t*>(some.data()), some.size(), "x.gguf");
    for (int i = 199; i >= 0; i--) CHECK(few.find("k")->string(uint64_t(i)) == std::to_string(i));
    CHECK_THROWS(format, few.find("k")->string(200));
    CHECK_THROWS(format, few.find("k")->integer(0));
    CHECK_THROWS(format, few.find("k")->number(0));
}

void writer_refuses() {
    const std::string path = at("refused.gguf");
    {
        GgufWriter w(path);
        w.add_u32("k", 1);
        CHECK_THROWS(argument, w.add_bool("k", true));
        CHECK_THROWS(argument, w.add_bool("", true));
        CHECK_THROWS(argument, w.add_u32("general.alignment", 64));
        w.add_tensor("t", DType::Q8_0, {32});
        CHECK_THROWS(argument, w.add_tensor("t", DType::F32, {32}));
        CHECK_THROWS(argument, w.add_tensor("", DType::F32, {32}));
        CHECK_THROWS(argument, w.add_tensor(std::string(128, 'n'), DType::F32, {32}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::F32, {}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::F32, {1, 1, 1, 1, 1}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::F32, {0}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::Q8_0, {33}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::F32, {int64_t(1) << 40, int64_t(1) << 40}));
        CHECK_THROWS(argument, w.add_tensor("u", DType::F32, {int64_t(1) << 61}));
        const std::string bytes(34, 'x');
        CHECK_THROWS(argument, w.finish());
        CHECK_THROWS(argument, w.write(bytes.data(), 33));
        w.write(bytes.data(), 34);
        CHECK_THROWS(argument, w.write(bytes.data(), 34));
        CHECK_THROWS(argument, w.add_u32("late", 1));
        CHECK_THROWS(argument, w.add_tensor("late", DType::F32, {1}));
    }
    CHECK(!fs::exists(path) && !fs::exists(path + ".part"));  // never finished: nothing stays
    GgufWriter w(path);
    w.finish();
    CHECK_THROWS(argument, w.finish());
    CHECK_THROWS(argument, w.write("", 0));
    CHECK(message(read_file(path)) == "");
}

void writer_fails_cleanly() {
    CHECK_THROWS(io, GgufWriter(at("no/such/folder/x.gguf")));
    CHECK_THROWS(io, GgufWriter("/dev/null/x.gguf"));
    // The name is taken by a directory: found at the end, and the part goes away.
    fs::create_directory(at("taken.gguf"));
    GgufWriter taken(at("taken.gguf"));
    CHECK_THROWS(io, taken.finish());
    CHECK(!fs::exists(at("taken.gguf.part")));

    // A limit on file sizes stands for a full disk. An older file under the name stays as it was.
    const std::string path = put("full.gguf", "older");
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{}, limit{};
    getrlimit(RLIMIT_FSIZE, &old);
    limit.rlim_cur = 65536, limit.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    {
        const std::string bytes(1 << 20, 'x');
        GgufWriter w(path);
        w.add_tensor("t", DType::I8, {1 << 20});
        CHECK_THROWS(io, w.write(bytes.data(), bytes.size()));
        CHECK(!fs::exists(path + ".part"));
        CHECK_THROWS(argument, w.finish());
        GgufWriter header(path);  // small writes fail only when the buffer goes out
        header.add_string("k", std::string(65535, 'x'));
        CHECK_THROWS(io, header.finish());
    }
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(read_file(path) == "older" && !fs::exists(path + ".part"));
}

}  // namespace

int main() {
    std::string name = (fs::temp_directory_path() / "test_gguf.XXXXXX").string();
    if (!mkdtemp(&name[0])) return 1;
    folder = name;
    round_trip();
    typed_reads();
    accepts();
    rejects_headers();
    rejects_values();
    rejects_tensors();
    empty_tensors_of_placements();
    headers_of_any_length();
    rejects_truncation();
    splits();
    empty_tensors_of_parts();
    memory_of_strings();
    writer_refuses();
    writer_fails_cleanly();
    fs::remove_all(folder);
    return check::summary("test_gguf");
}
