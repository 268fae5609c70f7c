// Small vocabularies of every tokenizer family, made in memory once.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "ggml/gguf.h"
#include "tokenizer/read_vocab.h"

namespace fuzz {

inline std::string utf8(uint32_t c) {
    if (c < 0x80) return std::string(1, char(c));
    return {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
}

// GPT-2's stand-in for a byte: printable Latin-1 stands for itself, the others for U+0100 and up.
inline std::vector<std::string> byte_letters() {
    std::vector<std::string> letters;
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
        const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        letters.push_back(utf8(printable ? b : next++));
    }
    return letters;
}

inline powerinfer::Vocab make(const char* model, const char* pre, bool prefixed = false) {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("fuzz_vocabulary." + std::to_string(getpid()) + ".gguf"))
                                 .string();
    std::vector<std::string> texts{"<unk>", "<s>", "</s>", "<|user|>", "<tool>"};
    std::vector<int32_t> types{2, 3, 3, 3, 4};
    std::vector<std::string> merges;
    const bool unigram = std::string(model) == "t5", wordpiece = std::string(model) == "bert";
    if (wordpiece) {
        for (const char* piece :
             {"a", "the", "un", ".", "\xE4\xB8\xAD", "\xC3\xA9", "\xE2\x96\x81"}) {
            texts.push_back(std::string("\xE2\x96\x81") + piece);
            types.push_back(1);
        }
        for (const char* piece : {"a", "b", "ab", "able", "\xC3\xA9", "\xCC\x87"}) {
            texts.push_back(piece);
            types.push_back(1);
        }
    } else if (unigram || std::string(model) == "llama") {
        for (int b = 0; b < 256; b++) {
            char name[8];
            std::snprintf(name, sizeof(name), "<0x%02X>", unsigned(b));
            texts.push_back(name);
            types.push_back(6);
        }
        for (const char* piece :
             {"\xE2\x96\x81", "a", "b", "e", "h", "t", "th", "the", "\xE2\x96\x81the", "ab",
              "\xC3\xA9", "\xE2\x96\x81\xE2\x96\x81"}) {
            texts.push_back(piece);
            types.push_back(1);
        }
    } else {
        const std::vector<std::string> letters = byte_letters();
        for (const std::string& l : letters) {
            texts.push_back(l);
            types.push_back(1);
        }
        const std::pair<std::string, std::string> pairs[] = {
            {"t", "h"}, {"th", "e"}, {letters[32], "the"}, {letters[10], letters[10]}, {"1", "2"}};
        for (const auto& [a, b] : pairs) {
            merges.push_back(a + " " + b);
            texts.push_back(a + b);
            types.push_back(1);
        }
    }
    std::vector<float> scores;
    for (size_t i = 0; i < texts.size(); i++) scores.push_back(-float(i));
    {
        ggml::GgufWriter w(path);
        w.add_string("tokenizer.ggml.model", model);
        if (pre) w.add_string("tokenizer.ggml.pre", pre);
        w.add_strings("tokenizer.ggml.tokens", texts);
        w.add_f32s("tokenizer.ggml.scores", scores);
        w.add_i32s("tokenizer.ggml.token_type", types);
        if (unigram || wordpiece) w.add_u32("tokenizer.ggml.unknown_token_id", 0);
        if (unigram || prefixed) w.add_bool("tokenizer.ggml.add_space_prefix", true);
        if (!merges.empty()) w.add_strings("tokenizer.ggml.merges", merges);
        w.finish();
    }
    std::ifstream file(path, std::ios::binary);
    static std::vector<std::unique_ptr<std::string>> keep;  // vocabularies may point into the bytes
    keep.push_back(std::make_unique<std::string>(std::istreambuf_iterator<char>(file),
                                                 std::istreambuf_iterator<char>()));
    std::filesystem::remove(path);
    const std::string& bytes = *keep.back();
    return powerinfer::read_vocab(ggml::Gguf::parse(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                    bytes.size(), "fuzz.gguf"));
}

inline const std::vector<powerinfer::Vocab>& vocabularies() {
    static const std::vector<powerinfer::Vocab> all = [] {
        std::vector<powerinfer::Vocab> v;
        v.push_back(make("llama", nullptr));
        for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "falcon", "deepseek-llm",
                                "deepseek-coder", "starcoder", "refact", "mpt", "phi-2"}) {
            v.push_back(make("gpt2", pre));
        }
        v.push_back(make("t5", nullptr));
        v.push_back(make("gpt2", "qwen2", true));
        v.push_back(make("bert", nullptr));
        return v;
    }();
    return all;
}

}  // namespace fuzz
