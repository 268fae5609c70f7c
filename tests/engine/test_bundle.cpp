// Bundled files of version 2: the layout, what the engine finds in them, and where new ones go.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "files/find_bundle.h"
#include "files/write_bundle.h"
#include "ggml/check.h"
#include "ggml/crc32c.h"
#include "load/load.h"
#include "tiny_model.h"
#include "weights/neuron_layout.h"

using namespace powerinfer;
using ggml::DType;
using ggml::Error;
namespace fs = std::filesystem;

namespace {

const tiny::Folder folder;

void layouts() {
    struct Want {
        std::vector<DType> types;
        int64_t cols, align;
        std::vector<int64_t> offsets;
        int64_t stride;
    };
    const DType q4 = DType::Q4_0, q8 = DType::Q8_0, f16 = DType::F16, f32 = DType::F32;
    const Want all[] = {
        {{q4, q4, q4}, 4096, 512, {0, 2560, 4864}, 7168},  // 7B
        {{q4, q4, q4}, 5120, 512, {0, 3072, 5952}, 9216},  // 13B
        {{q4, q4, q4}, 4096, 4096, {0, 4096, 6400}, 12288},
        {{q4, q4}, 4096, 512, {0, 2560}, 5120},  // no gate: up and down apart
        {{f16, f16, f16}, 4096, 512, {0, 8192, 16384}, 24576},
        {{q8, q8, q8}, 288, 512, {0, 512, 832}, 1536},   // rows of 306 bytes
        {{q4, f32, q8}, 32, 512, {0, 512, 640}, 1024},   // mixed
        {{f32, f32, f32}, 3, 512, {0, 512, 576}, 1024},  // odd width
        {{f16, f16}, 1, 1024, {0, 1024}, 2048},
        {{DType::Q6_K, DType::Q4_K, DType::Q6_K}, 4096, 512, {0, 3584, 5888}, 9728},
    };
    for (const Want& want : all) {
        const StoreLayout l = StoreLayout::of(want.types, want.cols, want.align);
        CHECK(l.stride == want.stride && l.rows.size() == want.offsets.size());
        int64_t end = 0;
        for (size_t i = 0; i < l.rows.size(); i++) {
            CHECK(l.rows[i].offset == want.offsets[i] && l.rows[i].type == want.types[i]);
            CHECK(l.rows[i].offset >= end && l.rows[i].offset % 64 == 0);
            end = l.rows[i].offset + l.rows[i].bytes;
        }
        CHECK(end <= l.stride && l.stride - end < want.align);
        CHECK(l.gate_range.offset == 0 && l.gate_range.end() == l.up_down_range.offset &&
              l.up_down_range.end() == l.stride);
        CHECK(l.gate_range.bytes % want.align == 0 && l.up_down_range.bytes % want.align == 0);
        CHECK(l.gated() == (want.types.size() == 3));
        CHECK(l.up().offset == l.rows[l.gated()].offset && l.down().offset == l.rows.back().offset);
    }
    for (int64_t align : {512, 1024, 2048, 4096}) CHECK(StoreLayout::valid_align(align));
    for (int64_t align : {-512, 0, 1, 256, 513, 1536, 8192})
        CHECK(!StoreLayout::valid_align(align));
}

tiny::Shape shape_of(DType type, int64_t n_expert = 0) {
    tiny::Shape s;
    s.type = type, s.n_embd = 256, s.n_ff = 40, s.head_dim = 64, s.down_t = true;
    s.activation = "relu", s.n_expert = n_expert, s.biases = !n_expert;
    return s;
}

std::string write(const tiny::Shape& shape, const std::string& name) {
    const std::string path = folder / name;
    tiny::write(tiny::describe(shape), path);
    return path;
}

std::string bundled(const std::string& source, const std::string& name, int32_t align = 512) {
    pi_bundle_params params = pi_bundle_default_params();
    params.align = align;
    write_bundled(source, folder / name, params);
    return folder / name;
}

bool same_rows(const ggml::NeuronRows& a, const ggml::NeuronRows& b, int64_t n, int64_t cols) {
    const int64_t bytes = ggml::info(a.type).size(cols);
    bool same = a.type == b.type && a.folded == b.folded && a.stride == b.stride;
    for (int64_t i = 0; same && i < n; i++) {
        same = !std::memcmp(a.data + i * a.stride, b.data + i * b.stride, size_t(bytes));
    }
    return same;
}

// What a bundled file gives is what its source gives; and single neurons are where Ffn says.
void same_models(const std::string& source, const std::string& target) {
    pi_model_params params = pi_model_default_params();
    for (bool use_mmap : {true, false}) {
        params.use_mmap = use_mmap;
        const auto a = Model::load(source, params), b = Model::load(target, params);
        CHECK(a->plan.packed == b->plan.packed);
        const int64_t cols = a->config.n_embd, n = a->ffns[0]->n_ff;
        for (size_t l = 0; l < a->layers.size(); l++) {
            const std::vector<Ffn>&one = a->ffns[l]->blocks, &other = b->ffns[l]->blocks;
            CHECK(one.size() == other.size());
            for (size_t e = 0; e < one.size(); e++) {
                const ggml::Neurons &x = one[e].neurons, &y = other[e].neurons;
                CHECK(same_rows(x.gate, y.gate, n, cols) && same_rows(x.up, y.up, n, cols) &&
                      same_rows(x.down, y.down, n, cols));
                const StoredNeurons& stored = other[e].stored;
                CHECK(!one[e].stored && stored);
                std::vector<uint8_t> neuron(size_t(stored.layout.stride));
                for (int64_t i : {int64_t(0), n - 1}) {
                    b->file.files[size_t(stored.file)]->read(stored.offset_of(i), neuron.data(),
                                                             neuron.size());
                    const auto& up = stored.layout.up();
                    CHECK(!std::memcmp(&neuron[size_t(up.offset)], y.up.data + i * y.up.stride,
                                       size_t(up.bytes)));
                    uint32_t sums[2];
                    b->file.files[size_t(stored.crc_file)]->read(
                        stored.crc_offset + 8 * uint64_t(i), sums, sizeof(sums));
                    const auto have = stored.layout.checksums(neuron.data());
                    CHECK(have[0] == sums[0] && have[1] == sums[1]);
                    CHECK(stored.offset_of(i) % uint64_t(stored.layout.align) == 0);
                }
            }
        }
    }
}

void formats() {
    for (DType type : {DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q5_1, DType::Q8_0,
                       DType::Q4_K}) {
        const std::string source = write(shape_of(type), "plain.gguf");
        same_models(source, bundled(source, "bundled.gguf"));
    }
    for (int64_t experts : {2, 3}) {
        const std::string source = write(shape_of(DType::Q8_0, experts), "experts.gguf");
        same_models(source, bundled(source, "bundled.gguf", 4096));
    }
    check_bundled(folder / "bundled.gguf", pi_bundle_default_params());
}

// A split file becomes one; PowerInfer's files name the activation that their magic stood for.
void other_files() {
    tiny::Shape shape = shape_of(DType::Q8_0);
    shape.predictor_rank = 32;
    const tiny::Description d = tiny::describe(shape);
    const size_t half = d.tensors.size() / 2;
    for (int i = 0; i < 2; i++) {
        const std::map<std::string, tiny::Key> keys = {
            {"split.no", uint32_t(i)},
            {"split.count", uint32_t(2)},
            {"split.tensors.count", uint32_t(d.tensors.size())}};
        tiny::write(d, folder / ("s-0000" + std::to_string(i + 1) + "-of-00002.gguf"), i ? half : 0,
                    i ? d.tensors.size() : half, i == 0, keys);
    }
    const std::string whole = write(shape, "whole.gguf");
    const std::string split = folder / "s-00001-of-00002.gguf";
    same_models(split, bundled(split, "joined.gguf"));
    same_models(whole, folder / "joined.gguf");
    CHECK(!ModelFile::open(folder / "joined.gguf").gguf.find("split.count"));

    shape.activation = "";
    const std::string pwri = folder / "pwri.gguf";
    tiny::write(tiny::describe(shape), pwri, "PWRI");
    same_models(pwri, bundled(pwri, "from_pwri.gguf"));
    const ggml::Gguf gguf = ModelFile::open(folder / "from_pwri.gguf").gguf;
    CHECK(!gguf.pwri_magic() && gguf.string("powerinfer.ffn.activation") == "relu");
}

void refused() {
    tiny::Shape shape = shape_of(DType::F16);
    shape.down_t = false;
    const std::string dense = write(shape, "dense.gguf");
    CHECK_THROWS(unsupported, bundled(dense, "x.gguf"));
    const std::string source = write(shape_of(DType::Q8_0), "plain.gguf");
    CHECK_THROWS(argument, bundled(source, "plain.gguf"));
    CHECK_THROWS(argument, bundled(source, "x.gguf", 0));
    CHECK_THROWS(unsupported, check_bundled(source, pi_bundle_default_params()));
    pi_bundle_params params = pi_bundle_default_params();
    int calls = 0;
    params.progress_data = &calls;
    params.progress = [](float, void* data) { return ++*static_cast<int*>(data) < 5; };
    CHECK_THROWS(cancelled, write_bundled(source, folder / "x.gguf", params));
    CHECK(calls == 5 && !fs::exists(folder / "x.gguf") && !fs::exists(folder / "x.gguf.part"));
}

// Bundled files that contradict themselves.
void hostile() {
    const std::string source = write(shape_of(DType::Q8_0), "plain.gguf");
    const std::string good = bundled(source, "good.gguf");
    std::ifstream in(good, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    const auto opened = [&](const std::string& from, const std::string& to) {
        std::string bad = bytes;
        const size_t at = bad.find(from);
        CHECK(at != bad.npos && from.size() == to.size());
        bad.replace(at, to.size(), to);
        std::ofstream(folder / "bad.gguf", std::ios::binary) << bad;
        return Model::inspect(folder / "bad.gguf", pi_model_default_params());
    };
    const auto key = [](const std::string& name, uint32_t value) {
        const uint32_t words[2] = {4, value};  // u32
        return name + std::string(reinterpret_cast<const char*>(words), 8);
    };
    const std::string version = "powerinfer.bundle.version", align = "powerinfer.bundle.align";
    CHECK(opened(version, version) != nullptr);
    CHECK_THROWS(unsupported, opened(key(version, 2), key(version, 3)));
    CHECK_THROWS(format, opened(key(version, 2), key(version, 1)));
    for (uint32_t n : {0u, 1u, 513u, 1024u, 4096u, 8192u, UINT32_MAX}) {
        CHECK_THROWS(format, opened(key(align, 512), key(align, n)));
    }
    CHECK_THROWS(format, opened(version, "powerinfer.bundle.varsion"));
    CHECK_THROWS(format, opened(align, "powerinfer.bundle.elign"));
    CHECK_THROWS(format, opened("powerinfer.bundle.down_type", "powerinfer.bundle.dawn_type"));
    CHECK_THROWS(format, opened("blk.0.ffn_bundle_crc", "blk.0.ffn_bundle_crd"));
    CHECK_THROWS(format, opened("Q8_0", "Q9_9"));
}

// Tensors whose sizes, types or places are not those of the bundles.
void hostile_tensors() {
    const std::string good = bundled(write(shape_of(DType::Q8_0), "plain.gguf"), "good.gguf");
    std::ifstream in(good, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    // Of a tensor with two dimensions, bytes behind its name; after u32 n_dims.
    enum Field { kSize0 = 4, kSize1 = 12, kType = 20, kOffset = 24 };
    const auto with = [&](const std::string& name, Field field, uint64_t value) {
        std::string bad = bytes, key(8, 0);
        key[0] = char(name.size());
        const size_t at = bad.find(key + name);
        CHECK(at != bad.npos);
        std::memcpy(&bad[at + 8 + name.size() + field], &value, field == kType ? 4 : 8);
        std::ofstream(folder / "bad.gguf", std::ios::binary) << bad;
        return Model::inspect(folder / "bad.gguf", pi_model_default_params());
    };
    const auto model = Model::inspect(good, pi_model_default_params());
    const ggml::TensorInfo& rows = *model->file.gguf.find_tensor("blk.1.ffn_bundle");
    const ggml::TensorInfo& sums = *model->file.gguf.find_tensor("blk.1.ffn_bundle_crc");
    const std::string rows_name(rows.name), sums_name(sums.name);
    const auto stride = uint64_t(rows.ne[0]), n = uint64_t(rows.ne[1]);
    CHECK(with(rows_name, kSize0, stride) && with(sums_name, kSize0, 2));
    for (uint64_t bad : {uint64_t(0), uint64_t(1), uint64_t(512), stride - 512, stride - 1,
                         stride + 1, stride + 512, uint64_t(1) << 62, UINT64_MAX}) {
        CHECK_THROWS(format, with(rows_name, kSize0, bad));
    }
    for (uint64_t bad : {uint64_t(0), uint64_t(1), uint64_t(3), uint64_t(1) << 62, UINT64_MAX}) {
        CHECK_THROWS(format, with(sums_name, kSize0, bad));
    }
    for (const std::string& name : {rows_name, sums_name}) {
        for (uint64_t bad : {uint64_t(0), n - 1, n + 1, uint64_t(1) << 40, UINT64_MAX}) {
            CHECK_THROWS(format, with(name, kSize1, bad));
        }
        const auto own = uint64_t(name == rows_name ? DType::I8 : DType::I32);
        const auto other = uint64_t(name == rows_name ? DType::I32 : DType::I8);
        CHECK(with(name, kType, own));
        CHECK_THROWS(unsupported, with(name, kType, UINT32_MAX));
        for (uint64_t bad : {other, uint64_t(DType::F32)}) {
            CHECK_THROWS(format, with(name, kType, bad));
        }
        for (uint64_t bad :
             {uint64_t(1), uint64_t(512), uint64_t(bytes.size() + 4095) / 4096 * 4096,
              uint64_t(1) << 62, UINT64_MAX - 4095}) {
            CHECK_THROWS(format, with(name, kOffset, bad));
        }
    }
}

void found() {
    const std::string cache = folder / "cache";
    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
    const std::string model = write(shape_of(DType::Q8_0), "model.gguf");
    CHECK(find_bundle(model).empty());
    const std::string target = bundle_target(model);
    CHECK(target == model + ".bundle.gguf" && !fs::exists(cache));
    write_bundled(model, target, pi_bundle_default_params());
    CHECK(find_bundle(model) == target);
    const std::string hash = source_hash(ModelFile::open(model));
    CHECK(hash.size() == 64);
    fs::create_directories(cache + "/powerinfer_cpp");
    const std::string cached = cache + "/powerinfer_cpp/" + hash + ".bundle.gguf";
    fs::rename(target, cached);
    CHECK(find_bundle(model) == cached);
    fs::resize_file(cached, 100);
    CHECK(find_bundle(model).empty());
    CHECK_THROWS(io, find_bundle(folder / "none.gguf"));
}

}  // namespace

int main() {
    layouts();
    formats();
    other_files();
    refused();
    hostile();
    hostile_tensors();
    found();
    return check::summary("bundle");
}
