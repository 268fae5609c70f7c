// WordPiece: what becomes of a text before it is divided, how words are, and errors in keys of a
// file. tests/python/test_wordpiece.py compares ids with the package tokenizers.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "ggml/check.h"
#include "tokenizer/read_vocab.h"

using namespace powerinfer;
using ggml::Gguf;
using ggml::GgufWriter;
using Write = std::function<void(GgufWriter&)>;

namespace {

struct Loaded {
    std::string bytes;
    Vocab vocab;
};

Loaded load(const Write& write) {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("test_wordpiece." + std::to_string(getpid()) + ".gguf"))
                                 .string();
    {
        GgufWriter writer(path);
        writer.add_string("tokenizer.ggml.model", "bert");
        write(writer);
        writer.finish();
    }
    Loaded loaded;
    std::ifstream file(path, std::ios::binary);
    loaded.bytes.assign(std::istreambuf_iterator<char>(file), {});
    std::filesystem::remove(path);
    const auto* data = reinterpret_cast<const uint8_t*>(loaded.bytes.data());
    loaded.vocab = read_vocab(Gguf::parse(data, loaded.bytes.size(), path));
    return loaded;
}

const std::string kBegin = "\u2581";

// Pieces as a GGUF has them: those that begin a word, then those that continue one.
const std::vector<std::string> kWords = {"a",      "b", "c", "un",     "unable",
                                         "e",      "i", "-", "\u4E2D", "\u00E9",
                                         "\u03C3", "[", "]", "sep",    "$"};
const std::vector<std::string> kRest = {"a", "b", "able", "ab", "\u00E9", "\u0307", "\u2581x", "c"};
enum : int32_t { PAD, UNK, CLS, SEP, FIRST };

Loaded vocabulary(const Write& more = nullptr, bool unk = true) {
    return load([&](GgufWriter& w) {
        std::vector<std::string> texts = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
        for (const std::string& word : kWords) texts.push_back(kBegin + word);
        for (const std::string& piece : kRest) texts.push_back(piece);
        std::vector<int32_t> types(texts.size(), 1);
        std::fill_n(types.begin(), FIRST, 3);
        w.add_strings("tokenizer.ggml.tokens", texts);
        w.add_i32s("tokenizer.ggml.token_type", types);
        if (unk) w.add_u32("tokenizer.ggml.unknown_token_id", UNK);
        w.add_u32("tokenizer.ggml.bos_token_id", CLS);
        w.add_u32("tokenizer.ggml.eos_token_id", SEP);
        if (more) more(w);
    });
}

// Pieces joined by "|"; those within a word begin with "##".
std::string pieces(const Vocab& v, const std::string& text, bool special = false) {
    std::string out;
    for (const int32_t id : v.tokenize(text, special)) {
        std::string piece = v.tokens[size_t(id)].text;
        if (id >= FIRST) {
            const bool begins = size_t(id) < FIRST + kWords.size();
            piece = begins ? piece.substr(kBegin.size()) : "##" + piece;
        }
        out += (out.empty() ? "" : "|") + piece;
    }
    return out;
}

void words() {
    const Loaded loaded = vocabulary();
    const Vocab& v = loaded.vocab;
    CHECK(v.bos == CLS && v.eos == SEP && v.unk == UNK && v.add_bos && v.add_eos);
    CHECK(pieces(v, "") == "" && pieces(v, " \t\r\n") == "");
    CHECK(pieces(v, "a b") == "a|b" && pieces(v, "ab") == "a|##b");
    CHECK(pieces(v, "unable") == "unable" && pieces(v, "unablea") == "unable|##a");
    // The longest piece first, and no way back: ##able, but not ##abl.
    CHECK(pieces(v, "aable") == "a|##able" && pieces(v, "aabl") == "[UNK]");
    // One piece that is missing makes the whole word unknown, and no other one.
    CHECK(pieces(v, "abz ab") == "[UNK]|a|##b" && pieces(v, "z") == "[UNK]");
    CHECK(pieces(v, "a-b") == "a|-|b" && pieces(v, "--") == "-|-" && pieces(v, "a$b") == "a|$|b");
    CHECK(pieces(v, "a!b") == "a|[UNK]|b");
}

void a_hundred_characters() {
    const Loaded loaded = vocabulary();
    const auto repeated = [](const std::string& text, size_t n) {
        std::string out;
        for (size_t i = 0; i < n; i++) out += text;
        return out;
    };
    const Vocab& v = loaded.vocab;
    CHECK(v.tokenize(repeated("a", 100), false).size() == 100);
    CHECK(pieces(v, repeated("a", 101)) == "[UNK]");
    CHECK(pieces(v, repeated("a", 101) + "-a") == "[UNK]|-|a");
    // Characters, and not bytes; those that are left when accents are gone.
    const Loaded kept = vocabulary(
        [](GgufWriter& w) { w.add_bool("tokenizer.ggml.normalizer.strip_accents", false); });
    CHECK(kept.vocab.tokenize(repeated("\u00E9", 100), false).size() == 100);
    CHECK(pieces(kept.vocab, repeated("\u00E9", 101)) == "[UNK]");
    CHECK(v.tokenize(repeated("a\u0301", 100), false).size() == 100);
}

// What is dropped and what divides.
void cleaning() {
    const Loaded loaded = vocabulary();
    const Vocab& v = loaded.vocab;
    for (const char* space : {" ", "\t", "\n", "\r", "\u00A0", "\u1680", "\u2000", "\u200A",
                              "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
        CHECK(pieces(v, std::string("a") + space + "b") == "a|b");
    }
    for (const std::string& gone :
         {std::string(1, '\0'),      std::string("\x01"),      std::string("\x0B"),
          std::string("\x0C"),       std::string("\x1F"),      std::string("\x7F"),
          std::string("\u0085"),     std::string("\u00AD"),    std::string("\u0600"),
          std::string("\u180E"),     std::string("\u200B"),    std::string("\u200D"),
          std::string("\u202E"),     std::string("\uFEFF"),    std::string("\uFFFD"),
          std::string("\uE000"),     std::string("\xFF"),      std::string("\xC3"),
          std::string("\U000E0001"), std::string("\U0010FFFD")}) {
        CHECK(pieces(v, "a" + gone + "b") == "a|##b");
        CHECK(pieces(v, gone) == "");
    }
    // Newer ones, and what is not assigned, are characters like others.
    for (const char* kept : {"\u0890", "\U000110CD", "\u0378", "\U0001FFFF"}) {
        CHECK(pieces(v, std::string("a") + kept) == "[UNK]");
    }
}

void ideographs() {
    const Loaded loaded = vocabulary();
    const auto apart = [](const Vocab& v, const char* c) {
        const std::string found = pieces(v, std::string("a") + c + "b");
        return found == std::string("a|") + (c == std::string("\u4E2D") ? c : "[UNK]") + "|b";
    };
    for (const char* c : {"\u4E2D", "\u3400", "\u4DBF", "\u4E00", "\u9FFF", "\uF900", "\uFAFF",
                          "\U00020000", "\U0002A6DF", "\U0002A700", "\U0002B81F", "\U0002B920",
                          "\U0002CEAF", "\U0002F800", "\U0002FA1F"}) {
        CHECK(apart(loaded.vocab, c));
    }
    // No ideographs, and those between U+2B820 and U+2B91F, which the package takes for letters.
    for (const char* c : {"\u3042", "\uAC00", "\u33FF", "\u4DC0", "\U0002A6E0", "\U0002B820",
                          "\U0002B91F", "\U0002CEB0", "\U0002FA20"}) {
        CHECK(pieces(loaded.vocab, std::string("a") + c + "b") == "[UNK]");
    }
    const Loaded joined = vocabulary(
        [](GgufWriter& w) { w.add_bool("powerinfer.tokenizer.split_ideographs", false); });
    CHECK(pieces(joined.vocab, "a\u4E2Db") == "[UNK]");
    CHECK(pieces(joined.vocab, "\u4E2D") == "\u4E2D");
}

void cases() {
    const Loaded usual = vocabulary();
    CHECK(pieces(usual.vocab, "UNABLE \u00C9 e\u0301 \u00E9") == "unable|e|e|e");
    // I with a dot becomes two characters, of which an accent vanishes; sigma has one form.
    CHECK(pieces(usual.vocab, "\u0130") == "i" && pieces(usual.vocab, "\u03A3") == "\u03C3");
    // Newer marks stay.
    CHECK(pieces(usual.vocab, "a\u0898") == "[UNK]");

    const auto with = [](const char* name, bool value) {
        return vocabulary([=](GgufWriter& w) {
            w.add_bool(std::string("tokenizer.ggml.normalizer.") + name, value);
        });
    };
    const Loaded accents = with("strip_accents", false);
    CHECK(pieces(accents.vocab, "\u00C9a \u00E9\u00E9") == "\u00E9|##a|\u00E9|##\u00E9");
    CHECK(pieces(accents.vocab, "\u0130") == "i|##\u0307");
    CHECK(pieces(accents.vocab, "e\u0301") == "[UNK]");  // nothing is composed
    const Loaded cased = with("lowercase", false);       // accents stay with it
    CHECK(pieces(cased.vocab, "a A \u00E9") == "a|[UNK]|\u00E9");
    const Loaded both = vocabulary([](GgufWriter& w) {
        w.add_bool("tokenizer.ggml.normalizer.lowercase", false);
        w.add_bool("tokenizer.ggml.normalizer.strip_accents", true);
    });
    CHECK(pieces(both.vocab, "a A \u00E9") == "a|[UNK]|e");
}

void special_tokens() {
    const Loaded loaded = vocabulary();
    const Vocab& v = loaded.vocab;
    CHECK(pieces(v, "a[SEP]b", true) == "a|[SEP]|b" && pieces(v, "a [SEP]", true) == "a|[SEP]");
    CHECK(pieces(v, "[sep]", true) == "[|sep|]" && pieces(v, "[SEP]", false) == "[|sep|]");
    CHECK(pieces(v, "[CLS][PAD]", true) == "[CLS]|[PAD]");
}

// U+2581 in a text is a character: it neither begins a word nor finds pieces that have it.
void the_mark_of_words() {
    const Loaded loaded = vocabulary();
    CHECK(pieces(loaded.vocab, "\u2581a") == "[UNK]" &&
          pieces(loaded.vocab, "a\u2581b") == "[UNK]");
    CHECK(pieces(loaded.vocab, "a\u2581x") == "[UNK]" && pieces(loaded.vocab, "\u2581") == "[UNK]");
}

void rejects() {
    const std::string key = "tokenizer.ggml.";
    // 100 is BERT's, which this vocabulary does not have.
    CHECK_THROWS(format, vocabulary(nullptr, false));
    const auto with = [](const Write& more) { return vocabulary(more); };
    CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_u32(key + "normalizer.lowercase", 1); }));
    CHECK_THROWS(format, with([&](GgufWriter& w) {
                     w.add_string(key + "normalizer.strip_accents", "true");
                 }));
    CHECK_THROWS(format, with([&](GgufWriter& w) {
                     w.add_string("powerinfer.tokenizer.split_ideographs", "yes");
                 }));
    CHECK_THROWS(format, with([&](GgufWriter& w) { w.add_f32s(key + "scores", {0}); }));
    CHECK_THROWS(unsupported, with([&](GgufWriter& w) {
                     w.add_string("powerinfer.tokenizer.normalizer", "nfd");
                 }));
    // llama.cpp names BERT's tokens by keys of their own.
    const Loaded loaded = load([&](GgufWriter& w) {
        w.add_strings(key + "tokens", {"\u2581a", "[UNK]", "[CLS]", "[SEP]"});
        w.add_u32(key + "unknown_token_id", 1);
        w.add_u32(key + "cls_token_id", 2);
        w.add_u32(key + "seperator_token_id", 3);
    });
    CHECK(loaded.vocab.bos == 2 && loaded.vocab.eos == 3);
    CHECK(loaded.vocab.tokenize("a z", false) == (std::vector<int32_t>{0, 1}));
}

}  // namespace

int main() {
    words();
    a_hundred_characters();
    cleaning();
    ideographs();
    cases();
    special_tokens();
    the_mark_of_words();
    rejects();
    return check::summary("test_wordpiece");
}
