// Placements: embedded in a model, in a sidecar, and in PowerInfer's file. Those of another model
// and damaged ones are refused or ignored.
#include <cstring>
#include <functional>

#include "base/sha256.h"
#include "files/placement_file.h"
#include "ggml/check.h"
#include "tiny_model.h"

using namespace powerinfer;
using ggml::Code;
using ggml::DType;
using ggml::Error;
using tiny::Description;

namespace {

const tiny::Folder folder;
constexpr int64_t kLayers = 2, kNeurons = 96, kExperts = 3;

std::string name(int64_t layer, const char* what, bool experts = false) {
    return "blk." + std::to_string(layer) + "." + what + (experts ? "_exps" : "");
}

tiny::Tensor tensor(const std::string& name, DType type, std::vector<int64_t> ne,
                    const void* data) {
    int64_t n = 1;
    for (int64_t size : ne) n *= size;
    const auto* bytes = static_cast<const uint8_t*>(data);
    return {name, type, std::move(ne), {bytes, bytes + ggml::info(type).size(n)}};
}

// A neuron-aware model with rates: neuron i of block b of layer l fires i + l + b in 1024.
Description model(bool experts) {
    tiny::Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.n_expert = experts ? kExperts : 0;
    Description d = tiny::describe(shape);
    for (tiny::Tensor& t : d.tensors) {
        const size_t down = t.name.find("ffn_down_exps");
        if (down == t.name.npos) continue;
        t.name.replace(down, 8, "ffn_down_t");
        std::swap(t.ne[0], t.ne[1]);
    }
    for (int64_t l = 0; l < kLayers; l++) {
        std::vector<float> rates;
        for (int64_t b = 0; b < (experts ? kExperts : 1); b++) {
            for (int64_t i = 0; i < kNeurons; i++) rates.push_back(float(i + l + b) / 1024);
        }
        std::vector<int64_t> ne{kNeurons};
        if (experts) ne.push_back(kExperts);
        d.tensors.push_back(tensor(name(l, "ffn_rate", experts), DType::F32, ne, rates.data()));
    }
    return d;
}

// Digest of the rates above, computed with Python's hashlib as in placement/statistics.py.
const char* statistics(bool experts) {
    return experts ? "acc4fc4b0a0d3ebf56ae70737cad6a5b382a5881521b4ee867b99f6c0f7a52fd"
                   : "65d6018c414187f68bb45cf9435b53303e9f1a1a32eb66dda3df0c6efbba53ac";
}

// The stored tier of a neuron: all three occur, in different places in each block.
uint8_t stored_tier(int64_t layer, int64_t block, int64_t i) {
    return uint8_t((i / 7 + layer + 2 * block) % 3);
}

void add_placement(Description& d, bool experts) {
    d.keys["powerinfer.placement.vram_budget"] = uint32_t(12345);
    d.keys["powerinfer.placement.device"] = std::string("cuda0");
    d.keys["powerinfer.placement.stats_hash"] = std::string(statistics(experts));
    for (int64_t l = 0; l < kLayers; l++) {
        std::vector<uint8_t> tiers;
        for (int64_t b = 0; b < (experts ? kExperts : 1); b++) {
            for (int64_t i = 0; i < kNeurons; i++) tiers.push_back(stored_tier(l, b, i));
        }
        std::vector<int64_t> ne{kNeurons};
        if (experts) ne.push_back(kExperts);
        d.tensors.push_back(tensor(name(l, "ffn_tier", experts), DType::I8, ne, tiers.data()));
    }
}

std::vector<std::string> lines;  // log of the last load()

std::shared_ptr<const Model> load(const std::string& path, bool use_gpu_index = true) {
    pi_model_params params = pi_model_default_params();
    params.use_gpu_index = use_gpu_index;
    lines.clear();
    params.log = [](int32_t, const char* message, void*) { lines.push_back(message); };
    return Model::load(path, params);
}

std::shared_ptr<const Model> load(const Description& d, const std::string& name) {
    tiny::write(d, folder / name);
    return load(folder / name);
}

void refused(const std::function<void()>& load, const std::vector<std::string>& words) {
    std::string seen = "was loaded";
    try {
        load();
    } catch (const Error& e) {
        seen = e.code() == Code::format ? "" : std::string("has the wrong code: ") + e.what();
        for (const std::string& word : words) {
            if (!std::strstr(e.what(), word.c_str())) seen = word + " is not in: " + e.what();
        }
    }
    check::report(seen.empty(), __FILE__, __LINE__, words.back() + ": " + seen);
}

void check_homes(const Placement& p, bool experts) {
    const Tier tiers[] = {Tier::storage, Tier::ram, Tier::gpu};
    CHECK(p.layers.size() == size_t(kLayers));
    int64_t n_gpu = 0;
    for (int64_t l = 0; l < kLayers; l++) {
        CHECK(p.layers[size_t(l)].size() == size_t(experts ? kExperts : 1));
        for (size_t b = 0; b < p.layers[size_t(l)].size(); b++) {
            const NeuronHomes& homes = p.layers[size_t(l)][b];
            CHECK(homes.tier.size() == size_t(kNeurons));
            std::vector<int32_t> ids;
            for (int64_t i = 0; i < kNeurons; i++) {
                const uint8_t tier = stored_tier(l, int64_t(b), i);
                CHECK(homes.tier[size_t(i)] == tiers[tier]);
                if (tier == 2) ids.push_back(int32_t(i));
            }
            CHECK(homes.ids(Tier::gpu) == ids && homes.count(Tier::gpu) == int64_t(ids.size()));
            n_gpu += int64_t(ids.size());
        }
    }
    CHECK(p.count(Tier::gpu) == n_gpu);
    CHECK(p.vram_budget == 12345 && p.ram_budget == 0 && p.device == "cuda0");
}

void test_sha256() {
    const auto hash = [](const std::string& text) {
        Sha256 whole, pieces;
        whole.add(text);
        for (char c : text) pieces.add(&c, 1);
        const std::string hex = whole.hex();
        CHECK(pieces.hex() == hex);
        return hex;
    };
    // The examples of FIPS 180-4.
    CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash(std::string(1000000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

void test_embedded(bool experts) {
    const Description plain = model(experts);
    const auto without = load(plain, "plain.gguf");
    CHECK(!without->placement && lines.empty());
    CHECK(statistics_hash(*without) == statistics(experts));
    Description good = plain;
    add_placement(good, experts);
    const auto with = load(good, "embedded.gguf");
    CHECK(with->placement && with->placement->path == folder / "embedded.gguf");
    check_homes(*with->placement, experts);
    // Tensors of a placement do not count as unused.
    CHECK(lines.size() == 1 && lines[0].find(folder / "embedded.gguf marks 3") == 0);
    CHECK(lines.size() == 1 &&
          lines[0].find("% for storage; all of them are kept") != lines[0].npos);

    const auto bad = [&](const std::function<void(Description&)>& spoil, const std::string& word) {
        Description d = good;
        spoil(d);
        refused([&] { load(d, "bad.gguf"); }, {"bad.gguf", word});
    };
    const std::string tier = name(1, "ffn_tier", experts), rate = name(0, "ffn_rate", experts);
    bad([&](Description& d) { d.tensor(tier).bytes[5] = 3; }, tier + "\" holds 3");
    bad([&](Description& d) { d.tensor(tier).bytes[5] = 255; }, tier + "\" holds -1");
    bad([&](Description& d) { d.remove(tier); }, tier + "\" is missing");
    bad([&](Description& d) { d.tensor(tier).ne.push_back(1); }, tier + "\" has shape");
    bad(
        [&](Description& d) {
            d.tensor(tier).ne[0] /= 2;
            d.tensor(tier).bytes.resize(d.tensor(tier).bytes.size() / 2);
        },
        tier + (experts ? "\" has shape [48, 3], expected [96, 3]"
                        : "\" has shape [48], expected [96]"));
    bad(
        [&](Description& d) {
            d.tensor(tier).type = DType::F32;
            d.tensor(tier).bytes.resize(d.tensor(tier).bytes.size() * 4);
        },
        tier + "\" has type F32");
    bad([&](Description& d) { d.tensor(rate).bytes[0]++; }, "solved for other statistics");
    bad([](Description& d) { d.keys["powerinfer.placement.stats_hash"] = uint32_t(1); },
        "stats_hash");
    bad([](Description& d) { d.keys.erase("powerinfer.placement.stats_hash"); }, "stats_hash");
    bad([](Description& d) { d.keys["powerinfer.placement.vram_budget"] = -1.0f; }, "vram_budget");
    bad([](Description& d) { d.keys["powerinfer.placement.device"] = true; }, "device");
    bad(
        [&](Description& d) {
            for (int64_t l = 0; l < kLayers; l++) d.remove(name(l, "ffn_rate", experts));
        },
        rate + "\" is missing");
}

void test_sidecar(bool experts) {
    const Description plain = model(experts);
    const std::string path = folder / "beside.gguf", sidecar = path + ".placement.gguf";
    tiny::write(plain, path);
    Description good;
    add_placement(good, experts);
    good.keys["general.architecture"] = std::string("powerinfer.placement");
    good.keys["powerinfer.placement.model_hash"] = model_hash(ModelFile::open(path));
    const auto write = [&](const Description& d) {
        tiny::write(d, sidecar, 0, d.tensors.size(), false, d.keys);
    };
    write(good);
    const auto with = load(path);
    CHECK(with->placement && with->placement->path == sidecar);
    check_homes(*with->placement, experts);
    CHECK(lines.size() == 1 && lines[0].find(sidecar + " marks") == 0);
    CHECK(load(path, false)->placement);  // the parameter affects only PowerInfer's file

    const auto bad = [&](const std::function<void(Description&)>& spoil, const std::string& word) {
        Description d = good;
        spoil(d);
        write(d);
        refused([&] { load(path); }, {sidecar, word});
    };
    const std::string tier = name(0, "ffn_tier", experts);
    bad([&](Description& d) { d.tensor(tier).bytes[0] = 3; }, tier + "\" holds 3");
    bad([&](Description& d) { d.tensor(tier).ne.push_back(1); }, tier + "\" has shape");
    bad([&](Description& d) { d.remove(tier); }, tier + "\" is missing");
    bad([](Description& d) { d.keys["general.architecture"] = std::string("llama"); },
        "holds no placement");
    std::FILE* file = std::fopen(sidecar.c_str(), "wb");
    std::fputs("garbage", file);
    std::fclose(file);
    refused([&] { load(path); }, {sidecar});

    // A sidecar for another model or other statistics is ignored with a message.
    const auto passed_over = [&](const std::string& word) {
        const auto loaded = load(path);
        CHECK(!loaded->placement && lines.size() == 1 && lines[0].find(sidecar) == 0);
        CHECK(lines[0].find(word) != std::string::npos);
    };
    for (const auto& [key, word] : {std::pair("model_hash", "placement of another model"),
                                    std::pair("stats_hash", "other statistics")}) {
        Description d = good;
        d.keys[std::string("powerinfer.placement.") + key] = std::string("00");
        write(d);
        passed_over(word);
    }
    // Other weights make another model, other statistics do not.
    Description other = plain;
    other.tensor("blk.1.attn_q.weight").bytes[0]++;
    tiny::write(other, path);
    write(good);
    passed_over("placement of another model");
    other = plain;
    other.tensor(name(0, "ffn_rate", experts)).bytes[0]++;
    tiny::write(other, path);
    passed_over("other statistics");

    // An embedded placement takes precedence.
    Description both = plain;
    add_placement(both, experts);
    tiny::write(both, path);
    CHECK(load(path)->placement->path == path);
    std::filesystem::remove(sidecar);
}

void test_gpu_index() {
    const std::string path = folder / "indexed.gguf", index = path + ".generated.gpuidx";
    tiny::write(model(false), path);
    const std::vector<std::vector<int32_t>> ids = {{0, 1, 5, 95}, {3, 4}};
    const auto write = [&](int32_t wrong) {
        Description d;
        for (int64_t l = 0; l < kLayers; l++) {
            std::vector<int32_t> flags(size_t(kNeurons), 0);
            for (int32_t id : ids[size_t(l)]) flags[size_t(id)] = 1 + wrong;
            const auto n = int64_t(ids[size_t(l)].size());
            d.tensors.push_back(tensor(name(l, "gpu_idx"), DType::I32, {kNeurons}, flags.data()));
            d.tensors.push_back(
                tensor(name(l, "gpu_bucket"), DType::I32, {n}, ids[size_t(l)].data()));
        }
        tiny::write(d, index, 0, d.tensors.size(), false,
                    {{"general.architecture", std::string("generic.gpu_index")},
                     {"split.vram_capacity", uint32_t(1000)}});
    };
    write(0);
    const auto with = load(path);
    CHECK(with->placement && with->placement->path == index && lines.size() == 1);
    for (int64_t l = 0; l < kLayers; l++) {
        const NeuronHomes& homes = with->placement->layers[size_t(l)][0];
        CHECK(homes.ids(Tier::gpu) == ids[size_t(l)]);
        CHECK(homes.count(Tier::ram) == kNeurons - int64_t(ids[size_t(l)].size()));
    }
    CHECK(lines[0] == index + " marks 3% of the neurons for a GPU; all of them are kept in RAM");
    CHECK(!load(path, false)->placement);
    write(1);
    refused([&] { load(path); }, {index, "blk.0.gpu_idx", "holds 2"});
    CHECK(!load(path, false)->placement);
}

}  // namespace

int main() {
    test_sha256();
    for (bool experts : {false, true}) {
        test_embedded(experts);
        test_sidecar(experts);
    }
    test_gpu_index();
    return check::summary("test_placement");
}
