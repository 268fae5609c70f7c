// Tokenizing with a small vocabulary, and errors in vocabularies.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>

#include "base/utf8.h"
#include "ggml/check.h"
#include "tokenizer/read_vocab.h"

using namespace powerinfer;
using ggml::Gguf;
using ggml::GgufWriter;

namespace {

// A vocabulary together with the bytes that it points into.
struct Loaded {
    std::string bytes, path;
    Vocab vocab;
};

const std::string space = "\xE2\x96\x81";

struct Parts {
    std::string model = "llama";
    std::vector<std::string> texts;
    std::vector<float> scores;
    std::vector<int32_t> types;
    std::function<void(GgufWriter&)> more = [](GgufWriter&) {};

    int32_t add(const std::string& text, float score = 0, TokenType type = TokenType::normal) {
        texts.push_back(text);
        scores.push_back(score);
        types.push_back(int32_t(type));
        return int32_t(texts.size()) - 1;
    }
};

Loaded load(const Parts& parts, const std::function<void(GgufWriter&)>& write_instead = nullptr) {
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("test_tokenizer." + std::to_string(getpid()) + ".gguf");
    {
        GgufWriter writer(path.string());
        if (write_instead) {
            write_instead(writer);
        } else {
            writer.add_string("tokenizer.ggml.model", parts.model);
            writer.add_strings("tokenizer.ggml.tokens", parts.texts);
            writer.add_f32s("tokenizer.ggml.scores", parts.scores);
            writer.add_i32s("tokenizer.ggml.token_type", parts.types);
            parts.more(writer);
        }
        writer.finish();
    }
    Loaded loaded;
    std::ifstream file(path, std::ios::binary);
    loaded.bytes.assign(std::istreambuf_iterator<char>(file), {});
    loaded.path = path.string();
    std::filesystem::remove(path);
    const auto* data = reinterpret_cast<const uint8_t*>(loaded.bytes.data());
    const Gguf gguf = Gguf::parse(data, loaded.bytes.size(), loaded.path);
    loaded.vocab = read_vocab(gguf);
    return loaded;
}

std::string byte_text(int byte) {
    return ggml::format("<0x%02X>", unsigned(byte));
}

// unk, bos, eos, 256 bytes, then a few pieces.
Parts small() {
    Parts parts;
    parts.add("<unk>", 0, TokenType::unknown);
    parts.add("<s>", 0, TokenType::control);
    parts.add("</s>", 0, TokenType::control);
    for (int byte = 0; byte < 256; byte++) parts.add(byte_text(byte), 0, TokenType::byte);
    float score = 0;
    // Earlier tokens have better scores, as in SentencePiece's files.
    for (const char* text :
         {"ab", "bc", "abc", "aa", "a", "b", "c", "<", ">", "/", "s", "</", "s>"})
        parts.add(text, score--);
    parts.add(space, score--);
    parts.add(space + "a", score--);
    parts.add(space + space, score--);
    parts.add("\xC3\xA9", score--);  // é
    return parts;
}

std::string texts(const Vocab& vocab, const std::string& text, bool special = false) {
    std::string joined;
    for (const int32_t id : vocab.tokenize(text, special))
        joined += (joined.empty() ? "" : " ") + vocab.tokens[size_t(id)].text;
    return joined;
}

std::string restored(const Vocab& vocab, const std::string& text, bool special = false) {
    std::string joined;
    for (const int32_t id : vocab.tokenize(text, special)) joined += vocab.text(id, special);
    return joined;
}

void merging() {
    Parts parts = small();
    const Loaded loaded = load(parts);
    const Vocab& v = loaded.vocab;
    CHECK(v.tokenize("", false).empty());
    // "ab" scores best and is merged first. Then "bc" is no longer possible, but "ab" + "c" =
    // "abc".
    CHECK(texts(v, "abc") == space + " abc");
    CHECK(texts(v, "abbc") == space + " ab bc");
    // Of equal pairs the leftmost is merged first, even if an odd one is left over at the right.
    CHECK(texts(v, "baaaaa") == space + " b aa aa a");
    CHECK(texts(v, "a") == space + "a");
    CHECK(texts(v, "  a") == space + space + " " + space + "a");
    CHECK(texts(v, "\xC3\xA9") == space + " \xC3\xA9");
    CHECK(texts(v, "\n") == space + " <0x0A>");
    CHECK(texts(v, "\xF0\x9F\x98\x80") == space + " <0xF0> <0x9F> <0x98> <0x80>");
    CHECK(v.nl == v.byte_ids[10]);
    // Invalid UTF-8 does not affect its neighbours: "ab" is still merged.
    CHECK(texts(v,
                "\xE2"
                "ab") == space + " <0xE2> ab");
    CHECK(texts(v, "\xC3\xA9\xC3") == space + " \xC3\xA9 <0xC3>");
    // U+2581 in a text equals a space.
    CHECK(v.tokenize(space + "a", false) == v.tokenize(" a", false));
    std::string all;
    for (int i = 0; i < 256; i++) all += char(i);
    CHECK(restored(v, all + all) == " " + all + all);

    // Merging continues with the left neighbour, even if that was merged itself.
    for (const char* text : {"st", "uv", "stuv", "astuv", "t", "u", "v"}) parts.add(text, -100);
    CHECK(texts(load(parts).vocab, "bstuv") == space + " b stuv");
    CHECK(texts(load(parts).vocab, "bastuv") == space + " b astuv");

    parts.more = [](GgufWriter& w) { w.add_bool("tokenizer.ggml.add_space_prefix", false); };
    const Loaded plain = load(parts);
    CHECK(texts(plain.vocab, "abc") == "abc");
    CHECK(texts(plain.vocab, " abc") == space + " abc");
}

void special_tokens() {
    Parts parts = small();
    parts.add("<user>", 0, TokenType::user_defined);
    parts.add("<user>>", 0, TokenType::user_defined);
    parts.add(">!", 0, TokenType::user_defined);
    parts.add("?<u", 0, TokenType::user_defined);
    parts.add("  ", 0, TokenType::user_defined);
    const int32_t unused = parts.add("<unused>", 0, TokenType::unused);
    const Loaded loaded = load(parts);
    const Vocab& v = loaded.vocab;
    // The text of a control token is ordinary text, even if pieces with good scores could form it.
    CHECK(texts(v, "</s>") == space + " </ s>");
    CHECK(texts(v, "</s>", true) == "</s>");
    CHECK(texts(v, "<unk>", true) == "<unk>");
    // A space is added only at the start and after a special token.
    CHECK(texts(v, "<s>ab</s>ab", true) == "<s> " + space + " ab </s> " + space + " ab");
    CHECK(texts(v, "ab<s><s>", true) == space + " ab <s> <s>");
    CHECK(texts(v, "b<user>b") == space + " b <user> " + space + " b");
    CHECK(texts(v, "<user>>>") == "<user>> " + space + " >");  // the longest wins
    // A shorter token cannot overlap a longer one.
    CHECK(texts(v, "<user>!") == "<user> " + space + " <0x21>");
    CHECK(texts(v, "?<user>") == space + " <0x3F> <user>");
    // User-defined tokens are matched in the raw text, before spaces are replaced.
    CHECK(texts(v, "b  b") == space + " b    " + space + " b");
    CHECK(v.text(1, false).empty() && v.text(1, true) == "<s>");
    CHECK(v.text(0, false).empty() && v.text(0, true) == "<unk>");
    CHECK(v.text(unused, false) == "<unused>");
    CHECK(v.text(-1, true).empty() && v.text(v.size(), true).empty());
    CHECK(restored(v, "b<user>") == " b<user>");
}

void properties() {
    Parts parts = small();
    const int32_t turn = parts.add("<|im_end|>", 0, TokenType::control);
    const int32_t eot = parts.add("over", 0, TokenType::control);
    const int32_t piece = parts.add("<end_of_turn>");
    parts.more = [&](GgufWriter& w) { w.add_u32("tokenizer.ggml.eot_token_id", uint32_t(eot)); };
    Vocab v = load(parts).vocab;  // a moved vocabulary still finds its texts
    CHECK(v.bos == 1 && v.eos == 2 && v.unk == 0 && v.add_bos && !v.add_eos && v.add_space_prefix);
    CHECK(v.ends == (std::vector<int32_t>{2, turn, eot}));
    CHECK(v.is_end(2) && v.is_end(eot) && !v.is_end(piece) && !v.is_end(-1));
    CHECK(texts(v, "abc") == space + " abc");

    parts = small();
    parts.more = [](GgufWriter& w) {
        w.add_u32("tokenizer.ggml.bos_token_id", 260);
        w.add_u32("tokenizer.ggml.eos_token_id", 261);
        w.add_u32("tokenizer.ggml.unknown_token_id", 262);
        w.add_bool("tokenizer.ggml.add_bos_token", false);
        w.add_bool("tokenizer.ggml.add_eos_token", true);
    };
    v = load(parts).vocab;
    CHECK(v.bos == 260 && v.eos == 261 && v.unk == 262 && !v.add_bos && v.add_eos);
    CHECK(v.ends == (std::vector<int32_t>{2, 261}));  // </s> ends a text for any EOS

    // The vocabulary is too small for the default ids: no such tokens. Bytes without a token become
    // unk.
    Parts tiny;
    tiny.add("<unk>", 0, TokenType::unknown);
    v = load(tiny).vocab;
    CHECK(v.bos == -1 && v.eos == -1 && v.unk == 0 && !v.add_bos && v.ends.empty() && v.nl == -1);
    CHECK(v.tokenize("a", false) == (std::vector<int32_t>{0, 0, 0, 0}));

    // Without token types, byte tokens are recognised by their texts.
    const Parts untyped = small();
    v = load({}, [&](GgufWriter& w) {
            w.add_string("tokenizer.ggml.model", "llama");
            w.add_strings("tokenizer.ggml.tokens", untyped.texts);
            w.add_f32s("tokenizer.ggml.scores", untyped.scores);
        }).vocab;
    CHECK(restored(v, "a\n") == " a\n");
    CHECK(v.tokens[1].type == TokenType::normal);
}

std::string message(const Parts& parts) {
    try {
        load(parts);
    } catch (const ggml::Error& e) {
        return e.what();
    }
    return "";
}

void rejects() {
    Parts parts = small();
    parts.model = "gpt5";
    CHECK_THROWS(unsupported, load(parts));
    CHECK_THROWS(format, load({}, [](GgufWriter& w) { w.add_u32("tokenizer.ggml.model", 1); }));
    CHECK_THROWS(format, load({}, [](GgufWriter& w) { w.add_u32("x", 1); }));
    CHECK_THROWS(format, load(Parts()));  // empty

    // Arrays that are missing or of another type.
    const auto with = [](const std::function<void(GgufWriter&)>& rest) {
        load({}, [&](GgufWriter& w) {
            w.add_string("tokenizer.ggml.model", "llama");
            rest(w);
        });
    };
    const std::string tokens = "tokenizer.ggml.tokens", scores = "tokenizer.ggml.scores";
    const std::string types = "tokenizer.ggml.token_type";
    CHECK_THROWS(format, with([&](GgufWriter&) {}));
    CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_u32(tokens, 1); }));
    CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_string(tokens, "a"); }));
    CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_f32s(tokens, {1}); }));
    with([&](GgufWriter& w) { w.add_strings(tokens, {"a"}); });  // all scores are 0
    CHECK_THROWS(format, with([&](GgufWriter& w) {
                     w.add_strings(tokens, {"a"});
                     w.add_f32(scores, 1);
                 }));
    CHECK_THROWS(format, with([&](GgufWriter& w) {
                     w.add_strings(tokens, {"a"});
                     w.add_strings(scores, {"1"});
                 }));
    CHECK_THROWS(format, with([&](GgufWriter& w) {
                     w.add_strings(tokens, {"a"});
                     w.add_f32s(scores, {1});
                     w.add_f32s(types, {1});
                 }));

    // Arrays of different lengths. Elements beyond the tokens are left out.
    parts = small();
    parts.scores.pop_back();
    CHECK_THROWS(format, load(parts));
    parts = small();
    parts.types.pop_back();
    CHECK_THROWS(format, load(parts));
    parts = small();
    parts.scores.push_back(std::numeric_limits<float>::quiet_NaN());
    parts.types.push_back(99);
    const Loaded longer = load(parts);
    CHECK(longer.vocab.notes.size() == 2 && longer.vocab.size() == 276);
    parts = small();
    parts.scores[5] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THROWS(format, load(parts));
    for (const int32_t type : {-1, 7, INT32_MAX, INT32_MIN}) {
        parts = small();
        parts.types[5] = type;
        CHECK_THROWS(format, load(parts));
    }
    for (const char* text :
         {"<0x-1>", "<0xG0>", "<0x 1>", "<0x100>", "<0x1>", "", "0x41", "<0X41>"}) {
        parts = small();
        parts.add(text, 0, TokenType::byte);
        CHECK_THROWS(format, load(parts));
    }
    for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}) {
        parts = small();
        parts.add(text);
        CHECK_THROWS(format, load(parts));
        CHECK(message(parts).find("tokenizer.ggml.tokens") != std::string::npos);
        CHECK(message(parts).find(".gguf: ") != std::string::npos);
    }
    for (const char* key : {"bos", "eos", "unknown", "eot", "eom"})
        for (const uint32_t id : {276u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
            parts = small();
            const std::string name = std::string("tokenizer.ggml.") + key + "_token_id";
            parts.more = [&](GgufWriter& w) { w.add_u32(name, id); };
            const Loaded loaded = load(parts);  // as if the key were not there
            CHECK(loaded.vocab.bos == 1 && loaded.vocab.eos == 2 && loaded.vocab.unk == 0);
            CHECK(loaded.vocab.notes.size() == 1 && loaded.vocab.notes[0].level == 2);
            CHECK(loaded.vocab.notes[0].text.find(name) != std::string::npos);
            parts.more = [&](GgufWriter& w) { w.add_string(name, "1"); };
            CHECK_THROWS(format, load(parts));
        }
    const char* const ours = "powerinfer.tokenizer.ignore_merges";
    for (const char* key :
         {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
          "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces", ours}) {
        parts.more = [&](GgufWriter& w) { w.add_string(key, "yes"); };
        CHECK_THROWS(format, load(parts));
        CHECK(message(parts).find(key) != std::string::npos);
    }
    parts.more = [&](GgufWriter& w) { w.add_bool(ours, true); };
    CHECK_THROWS(unsupported, load(parts));  // only BPE of bytes obeys it
}

// A table of characters that replaces A by "bc" and, if it is not cut short, has a trie of 323
// units.
std::string charsmap() {
    std::vector<uint32_t> trie(323);
    trie[0] = 256 << 10;                                 // children at 256 ^ byte
    trie[256 ^ 'A'] = 'A' | 1 << 8 | (321 ^ 322) << 10;  // ends a sequence; its text's place at 322
    trie[322] = uint32_t(1) << 31 | 2;
    std::string table;
    const auto put = [&](uint32_t v) {
        for (int shift = 0; shift < 32; shift += 8) table += char(v >> shift);
    };
    put(uint32_t(trie.size() * 4));
    for (const uint32_t unit : trie) put(unit);
    return table + std::string("x\0bc\0", 5);
}

// An array of bytes, of which a GgufWriter has none: copied from another file.
ggml::Value bytes_value(const std::string& bytes) {
    static std::vector<std::unique_ptr<std::string>> files;
    std::string file = "GGUF";
    const auto put = [&](uint64_t v, int n) {
        for (int i = 0; i < n; i++) file += char(v >> 8 * i);
    };
    put(3, 4);  // version
    put(0, 8);  // tensors
    put(1, 8);  // keys
    put(1, 8);
    file += "x";
    put(uint64_t(ggml::ValueType::array), 4);
    put(uint64_t(ggml::ValueType::u8), 4);
    put(bytes.size(), 8);
    files.push_back(std::make_unique<std::string>(file + bytes));
    const std::string& kept = *files.back();
    const auto* data = reinterpret_cast<const uint8_t*>(kept.data());
    return *Gguf::parse(data, kept.size(), "bytes.gguf").find("x");
}

void unigram() {
    const char* const key = "tokenizer.ggml.precompiled_charsmap";
    Parts parts;
    parts.model = "t5";
    parts.add("<unk>", 0, TokenType::unknown);
    parts.add("</s>", 0, TokenType::control);
    parts.add("<tag>", 0, TokenType::user_defined);
    for (const char* text : {"a", "b", "c", space.c_str()}) parts.add(text, -3);
    parts.add("ab", -4);
    parts.add("bc", -3.5f);
    parts.add("abc", -8);
    const int32_t unused = parts.add("ca", 9, TokenType::unused);
    parts.more = [&](GgufWriter& w) { w.add_u32("tokenizer.ggml.unknown_token_id", 0); };
    Vocab v = load(parts).vocab;
    CHECK(v.bos == -1 && v.eos == 1 && v.unk == 0 && !v.add_bos && v.add_eos);
    CHECK(!v.add_space_prefix && v.nl == -1 && v.text(unused, false) == "ca");
    CHECK(texts(v, "abc") == "a bc");  // -6.5; ab c has -7, abc -8
    CHECK(texts(v, "abab") == "ab ab" && texts(v, "ca") == "c a");
    // One unknown token for characters in a row; a control token is no text.
    CHECK(texts(v, "a\xC3\xA9\xF0\x9F\x98\x80?b?") == "a <unk> b <unk>");
    CHECK(texts(v, "</s>a") == "<unk> a" && texts(v, "</s>a", true) == "</s> a");
    CHECK(texts(v, "a<tag>b") == "a <tag> b");
    CHECK(texts(v, " a  b ") == space + " a " + space + " " + space + " b " + space);
    CHECK(texts(v, "a\xFFz") == "a <unk>");
    CHECK(v.tokenize("", false).empty());

    parts.more = [&](GgufWriter& w) {
        w.add_u32("tokenizer.ggml.unknown_token_id", 0);
        w.add_bool("tokenizer.ggml.add_space_prefix", true);
        w.add_bool("tokenizer.ggml.remove_extra_whitespaces", true);
        w.add_value(key, bytes_value(charsmap()));
    };
    v = load(parts).vocab;
    CHECK(texts(v, "  a   b ") == space + " a " + space + " b");
    CHECK(texts(v, "   ").empty());
    CHECK(texts(v, "aAA") == space + " a bc bc");  // A is replaced by bc

    for (int byte = 0; byte < 256; byte++) parts.add(byte_text(byte), 0, TokenType::byte);
    v = load(parts).vocab;
    CHECK(texts(v, "\xC3\xA9?") == space + " <0xC3> <0xA9> <0x3F>");
    CHECK(texts(v, "\xFF") == space + " <0xEF> <0xBF> <0xBD>");

    const std::string whole = charsmap();
    const auto refused = [&](const std::string& table) {
        parts.more = [&](GgufWriter& w) { w.add_value(key, bytes_value(table)); };
        CHECK_THROWS(format, load(parts));
        CHECK(message(parts).find(key) != std::string::npos);
    };
    refused("abc");
    refused(whole.substr(0, 100));               // the trie is cut short
    refused(whole.substr(0, whole.size() - 1));  // the last text has no end
    refused(whole.substr(0, 4 + 323 * 4));       // no texts
    refused(whole + std::string("\xFF\0", 2));
    refused("\x03" + whole.substr(1));
    parts.more = [&](GgufWriter& w) { w.add_i32s(key, {1, 2}); };
    CHECK_THROWS(format, load(parts));
    parts.more = [&](GgufWriter& w) { w.add_value(key, bytes_value("")); };
    CHECK(texts(load(parts).vocab, "a") == "a");
}

void odd_vocabularies() {
    // Empty, repeated and infinite entries are unusual, but not contradictory.
    Parts parts = small();
    parts.add("");
    parts.add("", 0, TokenType::control);
    parts.add("ab", 5);
    parts.add("ca", std::numeric_limits<float>::infinity());
    parts.add("cb", -std::numeric_limits<float>::infinity());
    const Vocab v = load(parts).vocab;
    CHECK(texts(v, "cab", true) == space + " ca b");
    CHECK(texts(v, "cb") == space + " cb");
    CHECK(v.tokenize("ab", false).back() == 259);
    CHECK(texts(v, std::string(100000, 'b')).size() == space.size() + 200000);
}

void characters() {
    CHECK(is_utf8("") && is_utf8("a\xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80"));
    CHECK(is_utf8("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"));
    for (const char* bad : {"\x80", "\xC1\x81", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                            "\xF5\x80\x80\x80", "\xE2\x96", "\xF0\x9F\x98", "\xC3", "\xE2\x28\xA1"})
        CHECK(!is_utf8(bad));
}

}  // namespace

int main() {
    merging();
    special_tokens();
    properties();
    rejects();
    unigram();
    odd_vocabularies();
    characters();
    return check::summary("tokenizer");
}
