// GGUF files on disk: what is written and read again, cut off, split, or cannot be written.
#ifndef _WIN32
#include <sys/resource.h>
#endif

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "check.h"
#include "crafted_gguf.h"
#include "ggml/file_io.h"
#include "temporary.h"

using namespace ggml;
using namespace crafted;
namespace fs = std::filesystem;

namespace {

fs::path folder;

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

// Written and read again, also as parts of one model of which each has its own.
void alignments() {
    const auto write = [](const std::string& path, uint32_t a, int no) {
        GgufWriter w(path, "GGUF", a);
        w.add_u32("split.no", uint32_t(no));
        w.add_u32("split.count", 2);
        w.add_string("fills", std::string(size_t(37 * no), 'f'));
        const std::string first(20, char('a' + 2 * no)), second(4, char('b' + 2 * no));
        w.add_tensor(format("first%d", no), DType::I8, {20});
        w.add_tensor(format("second%d", no), DType::I8, {4});
        w.write(first.data(), 20);
        w.write(second.data(), 4);
        w.finish();
    };
    for (uint32_t a = 8; a <= 4096; a *= 2) {
        const uint32_t other = a == 32 ? 64 : 8 * 4096 / a;
        const std::string paths[] = {at("a-00001-of-00002.gguf"), at("a-00002-of-00002.gguf")};
        write(paths[0], a, 0);
        write(paths[1], other, 1);
        Opened one = open(paths[0]);
        const Opened two = open(paths[1]);
        one.gguf.append_tensors(two.gguf, 1);
        std::string found;
        for (const TensorInfo& t : one.gguf.tensors()) {
            CHECK(t.offset % (t.file ? other : a) == 0);
            const Mapping& data = t.file ? *two.mapping : *one.mapping;
            found.append(reinterpret_cast<const char*>(data.data() + t.offset), t.bytes);
        }
        CHECK(found == std::string(20, 'a') + "bbbb" + std::string(20, 'c') + "dddd");
        CHECK(one.mapping->size() % a == 0 && two.mapping->size() % other == 0);
    }
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
    Gguf gguf = parsed(first);
    CHECK_THROWS(format, gguf.append_tensors(parsed(second), 1));
    const std::string good = part(1, "generic.gpu_index", 1);
    gguf = parsed(first);
    gguf.append_tensors(parsed(good), 1);
    CHECK(gguf.tensors().size() == 2);
}

// ---- the writer's own rules ------------------------------------------------------------------

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

#ifndef _WIN32
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
#endif
}

}  // namespace

int main() {
    const TemporaryFolder temporary("test_gguf");
    folder = temporary.path();
    round_trip();
    alignments();
    headers_of_any_length();
    rejects_truncation();
    splits();
    empty_tensors_of_parts();
    writer_refuses();
    writer_fails_cleanly();
    return check::summary("test_gguf_files");
}
