// Small files with huge numbers: memory and time depend on the content of a file, not on its
// numbers. Special tokens are found as by trying every token at every place.
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <unordered_map>

#include "ggml/check.h"
#include "model/families/family.h"
#include "model/model.h"
#include "tiny_model.h"
#include "tokenizer/read_vocab.h"
#include "tokenizer/special_tokens.h"

using namespace powerinfer;
using ggml::DType;
using ggml::GgufWriter;

namespace {

const tiny::Folder folder;

// Of processor time: other work on the machine does not count.
double seconds(const std::function<void()>& work) {
    const std::clock_t begin = std::clock();
    work();
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
}

// The growth of this process's peak memory in MiB.
double growth(const std::function<void()>& work) {
    const auto peak = [] {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        return double(usage.ru_maxrss) / 1024;
    };
    const double before = peak();
    work();
    return peak() - before;
}

std::string message(const std::function<void()>& work) {
    try {
        work();
    } catch (const ggml::Error& e) {
        return e.what();
    }
    return "";
}

bool says(const std::function<void()>& work, const std::string& what) {
    return message(work).find(what) != std::string::npos;
}

void inspect(const tiny::Description& d) {
    const std::string path = folder / "model.gguf";
    tiny::write(d, path);
    Model::inspect(path, pi_model_default_params());
}

// The number of layers is limited by that of the tensors, so add tensors of one byte each.
void experts_without_tensors() {
    for (const auto& [n_layer, why] :
         {std::pair{60u, "ffn_up_exps.weight"}, {300u, "more than 262144 together"}}) {
        tiny::Description d = tiny::describe([] {
            tiny::Shape shape;
            shape.n_layer = 1, shape.n_expert = 2;
            return shape;
        }());
        for (uint32_t i = 1; i < n_layer; i++) {
            d.tensors.push_back({blk(i, "x"), DType::I8, {1}, {0}});
        }
        d.remove("blk.0.ffn_up_exps.weight");
        d.keys["llama.block_count"] = n_layer;
        d.keys["llama.expert_count"] = uint32_t(4096);
        // The list of weights contains only expert 0, which is then reported as missing.
        CHECK(growth([&] { CHECK(message([&] { inspect(d); }) != ""); }) < 64);
        if (n_layer == 300) CHECK(says([&] { inspect(d); }, why));
    }
}

void ranks() {
    tiny::Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.predictor_rank = 8;
    tiny::Description d = tiny::describe(shape);
    inspect(d);
    const int64_t rank = (1 << 16) + 1;
    d.tensor("blk.1.fc1.weight") = {"blk.1.fc1.weight", DType::I8, {1, rank}, {}};
    d.tensor("blk.1.fc1.weight").bytes.resize(size_t(rank));
    CHECK(says([&] { inspect(d); }, "\"blk.1.fc1.weight\" has rank 65537, beyond 65536"));
}

struct Loaded {
    std::string bytes;
    Vocab vocab;
};

Loaded load(const std::function<void(GgufWriter&)>& write) {
    const std::string path = folder / "vocabulary.gguf";
    GgufWriter writer(path);
    write(writer);
    writer.finish();
    Loaded loaded;
    std::ifstream file(path, std::ios::binary);
    loaded.bytes.assign(std::istreambuf_iterator<char>(file), {});
    const auto* data = reinterpret_cast<const uint8_t*>(loaded.bytes.data());
    loaded.vocab = read_vocab(ggml::Gguf::parse(data, loaded.bytes.size(), path));
    return loaded;
}

// Merges whose pairs would all fall into one bucket of a hash table that uses integers as their own
// hash.
void chosen_merges() {
    constexpr uint64_t n = 100000;
    std::unordered_map<uint64_t, int> table;
    table.reserve(n);
    const uint64_t buckets = table.bucket_count();
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < buckets; i++) texts.push_back(ggml::format("t%06d", int(i)));
    for (const bool chosen : {false, true}) {
        std::vector<std::string> merges;
        for (uint64_t left = 0; left < n; left++) {
            const uint64_t right = (buckets - (left << 32) % buckets) % buckets;
            merges.push_back(texts[left] + " " + texts[chosen ? right : left * 7919 % buckets]);
        }
        const double took = seconds([&] {
            load([&](GgufWriter& w) {
                w.add_string("tokenizer.ggml.model", "gpt2");
                w.add_strings("tokenizer.ggml.tokens", texts);
                w.add_strings("tokenizer.ggml.merges", merges);
            });
        });
        static double ordinary;
        if (!chosen) ordinary = took;
        std::printf("%s merges: %.2f s\n", chosen ? "chosen" : "ordinary", took);
        CHECK(!chosen || took < 5 * ordinary + 1);
    }
}

void too_many() {
    const auto strings = [](const char* key, const char* model) {
        return [=](GgufWriter& w) {
            w.add_string("tokenizer.ggml.model", model);
            if (std::string(key) != "tokenizer.ggml.tokens")
                w.add_strings("tokenizer.ggml.tokens", {"a"});
            w.add_strings(key, std::vector<std::string>((1 << 22) + 1));
        };
    };
    CHECK(says([&] { load(strings("tokenizer.ggml.tokens", "llama")); },
               "4194305 tokens, more than 4194304"));
    CHECK(says([&] { load(strings("tokenizer.ggml.merges", "gpt2")); },
               "4194305 elements, more than 4194304"));
    CHECK(says(
        [&] {
            load([](GgufWriter& w) {
                w.add_string("tokenizer.ggml.model", "gpt2");
                w.add_strings("tokenizer.ggml.tokens", {std::string((1 << 24) + 1, 'a')});
                w.add_i32s("tokenizer.ggml.token_type", {3});
                w.add_strings("tokenizer.ggml.merges", {});
            });
        },
        "special tokens of more than 16777216 bytes"));
}

// Tokens a...ab of 2,000 lengths in a text of a: no token matches anywhere.
void many_lengths() {
    std::vector<std::string> texts = {"<unk>", "a", "b"};
    std::vector<int32_t> types = {2, 1, 1};
    for (int k = 1; k <= 2000; k++) {
        texts.push_back(std::string(size_t(k), 'a') + "b");
        types.push_back(4);
    }
    const Loaded loaded = load([&](GgufWriter& w) {
        w.add_string("tokenizer.ggml.model", "llama");
        w.add_strings("tokenizer.ggml.tokens", texts);
        w.add_f32s("tokenizer.ggml.scores", std::vector<float>(texts.size(), -1));
        w.add_i32s("tokenizer.ggml.token_type", types);
    });
    for (const char* end : {"", "b"}) {
        double took[2];
        for (int i : {0, 1}) {
            const std::string text = std::string(size_t(100000) << i, 'a') + end;
            took[i] = seconds([&] {
                const std::vector<int32_t> ids = loaded.vocab.tokenize(text, false);
                CHECK(ids.back() == (*end ? 2002 : 1));
            });
        }
        std::printf("2,000 lengths: %.3f s, twice the text: %.3f s\n", took[0], took[1]);
        CHECK(took[1] < 4 * took[0] + 0.5 && took[1] < 5);
    }
}

using Tokens = std::vector<std::pair<std::string_view, int32_t>>;

// Brute force: the longest first, wherever they are, and of equally long ones the leftmost.
std::vector<int32_t> tried(const Tokens& tokens, std::string_view text) {
    std::vector<int32_t> at(text.size(), -1), found;
    std::vector<char> taken(text.size(), 0);
    for (size_t length = text.size(); length > 0; length--) {
        for (size_t i = 0; i + length <= text.size(); i++) {
            if (std::count(taken.begin() + ptrdiff_t(i), taken.begin() + ptrdiff_t(i + length), 1))
                continue;
            for (const auto& [t, id] : tokens) {
                if (t != text.substr(i, length)) continue;
                std::fill_n(taken.begin() + ptrdiff_t(i), length, 1);
                at[i] = id;
            }
        }
    }
    for (size_t i = 0; i < text.size(); i++) {
        if (at[i] >= 0) found.insert(found.end(), {int32_t(i), at[i]});
    }
    return found;
}

void same_as_trying() {
    std::mt19937 rng(1);
    const auto word = [&](size_t most, int letters) {
        std::string s(1 + rng() % most, 'a');
        for (char& c : s) c = char('a' + rng() % uint32_t(letters));
        return s;
    };
    for (int round = 0; round < 2000; round++) {
        const int letters = 1 + round % 3;
        std::vector<std::string> texts;
        for (uint32_t i = rng() % 12; i > 0; i--) texts.push_back(word(1 + round % 15, letters));
        std::sort(texts.begin(), texts.end());
        texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
        Tokens tokens;
        for (size_t i = 0; i < texts.size(); i++) tokens.emplace_back(texts[i], int32_t(i));
        std::shuffle(tokens.begin(), tokens.end(), rng);
        const std::string text = word(60, letters);
        std::vector<int32_t> found;
        for (const SpecialTokens::Found& f : SpecialTokens(tokens).find(text)) {
            found.insert(found.end(), {int32_t(f.begin), f.token});
            CHECK(texts[size_t(f.token)].size() == f.size);
        }
        CHECK(found == tried(tokens, text));
    }
}

}  // namespace

int main() {
    experts_without_tensors();
    ranks();
    same_as_trying();
    many_lengths();
    chosen_merges();
    too_many();
    return check::summary("hostile");
}
