// Any bytes as text, through a SentencePiece-style and a byte-level vocabulary: the ids must be
// valid and give the text back, whatever the text is.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fuzz/vocabularies.h"

static std::string without_spaces(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c != ' ') out += c;
    }
    return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    const std::vector<powerinfer::Vocab>& all = fuzz::vocabularies();
    const powerinfer::Vocab& vocab = all[data[0] % all.size()];
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    for (bool special : {false, true}) {
        std::string back;
        for (int32_t id : vocab.tokenize(text, special)) {
            if (id < 0 || id >= vocab.size()) std::abort();
            back += vocab.text(id, true);
        }
        // A control token takes the place of its own text; and a SentencePiece-style vocabulary
        // puts a space at the beginning and after every user-defined token, as llama.cpp does.
        if (special) continue;
        const bool restored =
            vocab.add_space_prefix ? without_spaces(back) == without_spaces(text) : back == text;
        if (!restored) {
            std::fprintf(stderr, "text of %zu bytes came back as %zu\n", text.size(), back.size());
            std::abort();
        }
    }
    return 0;
}
