// Byte-level BPE: the pieces of every rule, and errors in its keys of a file.
// tests/python/test_bpe.py compares ids with other programs.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "ggml/check.h"
#include "tokenizer/bpe.h"
#include "tokenizer/read_vocab.h"

using namespace powerinfer;
using ggml::Gguf;
using ggml::GgufWriter;
using Write = std::function<void(GgufWriter&)>;

namespace {

std::string pieces(const char* rule, const std::string& text) {
    std::string joined;
    size_t begin = 0;
    for (const size_t end : find_pretokenizer(rule)->split(text)) {
        joined += (joined.empty() ? "" : "|") + text.substr(begin, end - begin);
        begin = end;
    }
    CHECK(begin == text.size());
    return joined;
}

void splitting() {
    CHECK(find_pretokenizer("gpt-2")->split("").empty());
    CHECK(pieces("gpt-2", "it's IT'S  12345 a") == "it|'s| IT|'|S| | 12345| a");
    CHECK(pieces("gpt-2", "a  \n") == "a|  \n");
    CHECK(pieces("gpt-2", "a \n b") == "a| \n| b");
    CHECK(pieces("gpt-2", "a\nb") == "a|\n|b");
    CHECK(pieces("llama-bpe", "it's IT'LL  12345(a") == "it|'s| IT|'LL| | |123|45|(a");
    CHECK(pieces("llama-bpe", "!\n\n  \n  x'") == "!\n\n|  \n| | x|'");
    CHECK(pieces("qwen2", "12 a") == "1|2| a");
    CHECK(pieces("starcoder", "a 12") == "a| |1|2");
    CHECK(pieces("falcon", "a 1234") == "a| |123|4");
    CHECK(pieces("falcon", "`a") == "`|a" && pieces("default", "``a") == "``|a");
    CHECK(pieces("deepseek-llm", "a b\r\n 12  ") == "a| b|\r|\n| |12|  ");
    CHECK(pieces("deepseek-coder", "(a) 12") == "(|a|)| |1|2");
    // An invalid UTF-8 byte is a symbol and does not join letters.
    CHECK(pieces("gpt-2", "a\xE2z") == "a|\xE2|z");
    CHECK(pieces("gpt-2", "a\xC3") == "a|\xC3");
    for (const char* name : {"", " ", "gpt", "gpt-2 ", " gpt-2", "gpt-2 phi-2", "Qwen2"})
        CHECK(!find_pretokenizer(name));

    CHECK(char_kind('a') == CharKind::lower && char_kind('_') == CharKind::punctuation);
    CHECK(char_kind('+') == CharKind::symbol && char_kind(0) == CharKind::other);
    CHECK(char_kind(0x85) == CharKind::space && char_kind(0x3000) == CharKind::space);
    CHECK(char_kind(0x661) == CharKind::digit && char_kind(0x301) == CharKind::mark);
    CHECK(char_kind(0x4E00) == CharKind::letter && char_kind(0x9FFF) == CharKind::letter);
    for (const uint32_t point : {0xD800u, 0x10FFFFu, 0x110000u, UINT32_MAX})
        CHECK(char_kind(point) == CharKind::other);
}

void byte_alphabet() {
    CHECK(decode_bpe_text("") == "" && decode_bpe_text("ab") == "ab");
    CHECK(decode_bpe_text("\u0120a\u010A") == " a\n");
    CHECK(decode_bpe_text("\u00C3\u00A9") == "\u00E9");  // characters of two bytes
    CHECK(decode_bpe_text("\u0100\u0143") == std::string("\0\xAD", 2));
    // U+0144 and the space are not in the alphabet; texts with them are kept.
    for (const char* text : {"\u0144", " a", "a\u4E00", "\U0001F600", "\u00AD", "\u0120 "})
        CHECK(decode_bpe_text(text) == text);
}

struct Loaded {
    std::string bytes, path;
    Vocab vocab;
};

Loaded load(const Write& write) {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("test_bpe." + std::to_string(getpid()) + ".gguf");
    {
        GgufWriter writer(path.string());
        writer.add_string("tokenizer.ggml.model", "gpt2");
        write(writer);
        writer.finish();
    }
    Loaded loaded;
    std::ifstream file(path, std::ios::binary);
    loaded.bytes.assign(std::istreambuf_iterator<char>(file), {});
    loaded.path = path.string();
    std::filesystem::remove(path);
    const auto* data = reinterpret_cast<const uint8_t*>(loaded.bytes.data());
    loaded.vocab = read_vocab(Gguf::parse(data, loaded.bytes.size(), loaded.path));
    return loaded;
}

const std::string key = "tokenizer.ggml.";
const std::vector<std::string> texts = {"a", "b", "c", "ab", "abc", "\u0120", "<|end|>", "\u010A"};

Loaded load(const std::vector<std::string>& merges, const Write& more = nullptr) {
    return load([&](GgufWriter& w) {
        w.add_strings(key + "tokens", texts);
        w.add_i32s(key + "token_type", {1, 1, 1, 1, 1, 1, 3, 1});
        w.add_strings(key + "merges", merges);
        if (more) more(w);
    });
}

using Ids = std::vector<int32_t>;

void merging() {
    Loaded loaded = load({"a b", "ab c"});
    const Vocab& v = loaded.vocab;
    CHECK(v.tokenize("abc", false) == Ids{4} && v.tokenize("abab", false) == (Ids{3, 3}));
    CHECK(v.tokenize("a b", false) == (Ids{0, 5, 1}));
    CHECK(v.tokenize("<|end|>ab", true) == (Ids{6, 3}));
    // Bytes without a token disappear if there is no unknown token, as in llama.cpp.
    CHECK(v.tokenize("<|end|>ab", false) == Ids{3});
    CHECK(v.nl == 7 && v.bos == -1 && v.eos == -1 && v.unk == -1 && !v.add_bos);
}

void odd_merges() {
    // The first of equal merges counts; malformed merges are ignored, as in llama.cpp.
    const std::vector<std::string> odd = {
        "",      " ",   "a",    "a ",   " a",   "b c",           "a b", "b c", "\xFF \xFE",
        "x y z", "q r", "a  b", "ab c", "ab c", "\u4E00 \u4E00", "c c", "cc c"};
    const Loaded loaded = load(odd);
    const Vocab& v = loaded.vocab;
    CHECK(v.tokenize("abc", false) == (Ids{0, 1, 2}));  // "bc" is merged first and becomes "b" "c"
    CHECK(v.tokenize("ab", false) == Ids{3});
    CHECK(v.tokenize("cccc", false) == (Ids{2, 2, 2, 2}));
    CHECK(load(std::vector<std::string>{}).vocab.tokenize("ab", false) == (Ids{0, 1}));
    // Merges do not form control tokens.
    const Loaded control = load({"< |", "<| e", "<|e n", "<|en d", "<|end |", "<|end| >"});
    CHECK(control.vocab.tokenize("<|end|>", false).empty());
    const Loaded unknown = load({"a b"}, [](GgufWriter& w) {
        w.add_u32(key + "unknown_token_id", 2);
        w.add_string(key + "pre", "");
    });
    CHECK(unknown.vocab.tokenize("xab", false) == (Ids{2, 3}));
}

void rejects() {
    const auto with_merges = [](const Write& more) {
        load([&](GgufWriter& w) {
            w.add_strings(key + "tokens", texts);
            more(w);
        });
    };
    CHECK_THROWS(format, with_merges([](GgufWriter&) {}));
    CHECK_THROWS(format, with_merges([](GgufWriter& w) { w.add_string(key + "merges", "a b"); }));
    CHECK_THROWS(format, with_merges([](GgufWriter& w) { w.add_i32s(key + "merges", {1}); }));
    CHECK_THROWS(format, with_merges([](GgufWriter& w) { w.add_u32(key + "merges", 1); }));
    CHECK_THROWS(format, load([](GgufWriter& w) { w.add_strings(key + "merges", {"a b"}); }));

    const auto with = [](const Write& more) { load({"a b"}, more); };
    with([](GgufWriter& w) { w.add_f32s(key + "scores", std::vector<float>(8, 0)); });
    CHECK_THROWS(format, with([](GgufWriter& w) { w.add_f32s(key + "scores", {0}); }));
    CHECK_THROWS(format, with([](GgufWriter& w) { w.add_u32(key + "pre", 1); }));
    CHECK_THROWS(unsupported, with([](GgufWriter& w) { w.add_string(key + "pre", "gpt-9"); }));
    for (const char* id : {"bos", "eos", "unknown", "eot", "eom"}) {
        const std::string name = key + id + "_token_id";
        for (const uint32_t none : {8u, UINT32_MAX}) {  // as if the key were not there
            const Loaded loaded = load({"a b"}, [&](GgufWriter& w) { w.add_u32(name, none); });
            CHECK(loaded.vocab.notes.size() == 1 && loaded.vocab.bos == -1);
            CHECK(loaded.vocab.notes[0].text.find(name) != std::string::npos);
        }
        CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_string(name, "1"); }));
        with([&](GgufWriter& w) { w.add_u32(name, 7); });
    }
    CHECK_THROWS(format, with([](GgufWriter& w) { w.add_string(key + "add_bos_token", "yes"); }));
}

void defaults() {
    const auto many = [](const char* pre) {
        return load([&](GgufWriter& w) {
            w.add_strings(key + "tokens", std::vector<std::string>(12, "a"));
            w.add_strings(key + "merges", {});
            w.add_string(key + "pre", pre);
        });
    };
    // Defaults of llama.cpp: 11 for both, which is right for Falcon. Llama 3 adds BOS, GLM has
    // none.
    const Loaded gpt2 = many("gpt-2"), llama = many("llama3"), glm = many("glm4");
    CHECK(gpt2.vocab.bos == 11 && gpt2.vocab.eos == 11 && !gpt2.vocab.add_bos);
    CHECK(llama.vocab.add_bos && llama.vocab.bos == 11);
    CHECK(glm.vocab.bos == -1 && glm.vocab.eos == 11 && !glm.vocab.add_bos);
    CHECK(gpt2.vocab.tokenize("a", false) == Ids{0});  // the first of equal texts
}

}  // namespace

int main() {
    splitting();
    byte_alphabet();
    merging();
    odd_merges();
    rejects();
    defaults();
    return check::summary("bpe");
}
