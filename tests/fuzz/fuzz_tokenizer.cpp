// Any bytes as text, through SentencePiece-style and byte-level vocabularies: the ids must be valid
// and give the text back, whatever the text is; WordPiece's must be valid, and no more than bytes.
// And as the trie of a table of characters.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/utf8.h"
#include "fuzz/vocabularies.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/unicode/normal_forms.h"

// Without spaces and U+2581, which stands for a space in SentencePiece's pieces: written in a text,
// it comes back as one.
static std::string without_spaces(std::string_view text) {
    static constexpr std::string_view kSpace = "\xE2\x96\x81";
    std::string out;
    while (!text.empty()) {
        const size_t n = text.substr(0, kSpace.size()) == kSpace ? kSpace.size() : 1;
        if (n == 1 && text[0] != ' ') out += text[0];
        text.remove_prefix(n);
    }
    return out;
}

static void replace_by_trie(std::string_view data) {
    const size_t n = data.size() / 4 * 4;
    std::string table;
    for (int shift = 0; shift < 32; shift += 8) table += char(n >> shift);
    table += data.substr(0, n);
    table += std::string("x\0yz\0", 5);
    const powerinfer::Charsmap map(table);
    for (std::string_view text = data; !text.empty();) {
        const powerinfer::Charsmap::Found found = map.find(text);
        if (found.size == 0 || found.size > text.size()) std::abort();
        text.remove_prefix(found.size);
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    const std::vector<powerinfer::Vocab>& all = fuzz::vocabularies();
    const powerinfer::Vocab& vocab = all[data[0] % all.size()];
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    replace_by_trie(text);
    for (bool special : {false, true}) {
        std::string back;
        const std::vector<int32_t> ids = vocab.tokenize(text, special);
        if (vocab.wordpiece && ids.size() > text.size()) std::abort();
        for (int32_t id : ids) {
            if (id < 0 || id >= vocab.size()) std::abort();
            back += vocab.text(id, true);
        }
        // A control token takes the place of its own text; and a SentencePiece-style vocabulary
        // puts a space at the beginning and after every user-defined token, as llama.cpp does.
        if (special || vocab.wordpiece) continue;
        // Invalid bytes become U+FFFD there.
        if (vocab.unigram && !powerinfer::is_utf8(text)) continue;
        // And some vocabularies put a text into NFC.
        const std::string want(vocab.composes ? powerinfer::composed(text) : text);
        const bool restored =
            vocab.add_space_prefix ? without_spaces(back) == without_spaces(want) : back == want;
        if (!restored) {
            std::fprintf(stderr, "text of %zu bytes came back as %zu\n", text.size(), back.size());
            std::abort();
        }
    }
    return 0;
}
