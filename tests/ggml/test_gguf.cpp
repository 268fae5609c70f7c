// The GGUF reader: what it takes, and one rejects_ case per rule for hostile files.
#include <cstdlib>
#include <limits>
#include <new>

#include "check.h"
#include "crafted_gguf.h"

using namespace ggml;
using namespace crafted;

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
    const Gguf g = parsed(bytes);
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

// Which keys somebody looked for, also after a move, which models do.
void asked_keys() {
    Crafted file;
    file.values = {kv("a", ValueType::u8, "\1"), kv("b", ValueType::u8, "\2"),
                   kv("c", ValueType::u8, "\3")};
    const std::string bytes = file.bytes();
    Gguf read = parsed(bytes);
    CHECK(!read.asked(0) && !read.asked(1) && !read.asked(2));
    CHECK(read.find("b") && !read.find("d") && read.values()[2].second.integer() == 3);
    Gguf g;
    g = std::move(read);
    CHECK(!g.asked(0) && g.asked(1) && !g.asked(2));
    g.override_value({"d", int64_t(4)});
    CHECK(!g.asked(3) && g.unasked() == "d");
    CHECK_THROWS(format, g.integer("a", 5, 6));  // a bad value was asked for, too
    CHECK(g.asked(0) && g.integer("d", 0, 9) == 4 && g.asked(3) && g.unasked().empty());
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
    // I32 had this id in PowerInfer's files; elsewhere it is a format of blocks of 256.
    Crafted old = one({"blk.0.gpu_idx", {32}, 18, 0});
    CHECK_THROWS(format, parse(old.bytes()));
    old.magic = "PWRI";
    CHECK(message(old.bytes()) == "");
    CHECK(message(one({std::string(127, 'n')}).bytes()) == "");
}

// Tensors lie from the next multiple of the alignment on, wherever the header ends.
void alignments() {
    for (uint32_t a = 8; a <= 65536; a *= 2) {
        for (size_t more = 0; more < 2 * size_t(a); more += 1 + size_t(a) * 3 / 16) {
            Crafted file = with(kv("general.alignment", ValueType::u32, u32(a)));
            file.values.push_back(kv("fills", ValueType::string, str(std::string(more, 'f'))));
            file.alignment = a;
            file.tensors = {{"one", {2}, 0, 0}, {"two", {2}, 0, a}, {"four", {2}, 0, 3 * a}};
            const std::string header = file.bytes();
            std::string bytes = header + std::string(3 * a + 8, '.');
            bytes.replace(header.size(), 8, "the one.");
            bytes.replace(header.size() + a, 8, "the two.");
            bytes.replace(header.size() + 3 * a, 8, "the last");
            const ggml::Gguf gguf = parsed(bytes);
            const auto at = [&](const char* name) {
                return bytes.substr(gguf.find_tensor(name)->offset, 8);
            };
            CHECK(at("one") == "the one." && at("two") == "the two." && at("four") == "the last");
            file.tensors[1].offset = a + a / 2;
            CHECK_THROWS(format, parse(file.bytes() + std::string(3 * a + 8, '.')));
        }
    }
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
    for (uint32_t type : {4u, 5u, 9u, 25u, 31u, 99u, 0x7fffffffu, 0xffffffffu})
        CHECK_THROWS(unsupported, parse(one({"t", {256}, type}, 1024).bytes()));
    CHECK(message(one({"t", {256}, 9}).bytes()) ==
          "x.gguf: tensor \"t\": type Q8_1 (9) is not supported");
    CHECK(
        message(one({"t", {256}, 36}).bytes()) ==
        "x.gguf: tensor \"t\": type I2_S (36) is not supported: only bitnet.cpp knows its layout; "
        "TQ2_0 and TQ1_0 hold the same weights (convert the checkpoint, then quantize)");
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
        const Gguf g = parsed(bytes);
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

// An empty string takes eight bytes of a file, and a view of it took sixteen of memory.
void memory_of_strings() {
    constexpr uint64_t n = 1 << 22;
    const std::string bytes =
        with(kv("k", ValueType::array, array(8, n, std::string(n * 8, '\0')))).bytes();
    const uint64_t before = allocated;
    const Gguf gguf = parsed(bytes);
    CHECK(allocated - before < bytes.size() / 32);  // views took twice the file's size
    std::string texts;
    for (int i = 0; i < 200; i++) texts += str(std::to_string(i));
    const std::string some = with(kv("k", ValueType::array, array(8, 200, texts))).bytes();
    const Gguf few = parsed(some);
    for (int i = 199; i >= 0; i--) CHECK(few.find("k")->string(uint64_t(i)) == std::to_string(i));
    CHECK_THROWS(format, few.find("k")->string(200));
    CHECK_THROWS(format, few.find("k")->integer(0));
    CHECK_THROWS(format, few.find("k")->number(0));
}

}  // namespace

int main() {
    typed_reads();
    asked_keys();
    accepts();
    alignments();
    rejects_headers();
    rejects_values();
    rejects_tensors();
    empty_tensors_of_placements();
    memory_of_strings();
    return check::summary("test_gguf");
}
