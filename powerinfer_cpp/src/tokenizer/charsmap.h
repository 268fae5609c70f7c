// SentencePiece's table of character sequences and what replaces them ("precompiled charsmap").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace powerinfer {

// The table's bytes, little endian: the size of a trie u32; the trie, a double array of units u32
// (darts-clone); texts that each end with a 0 byte. The trie maps a sequence to the place of its
// text.
class Charsmap {
 public:
    Charsmap() = default;  // replaces nothing
    // Throws std::invalid_argument with the reason, if the bytes are not such a table.
    explicit Charsmap(std::string_view bytes);

    // The longest sequence at the start of a text (not empty) that is replaced, else its first
    // character; and what stands for it. U+FFFD for an invalid byte.
    struct Found {
        size_t size;  // bytes of the text
        std::string_view instead;
    };
    Found find(std::string_view text) const;

 private:
    std::vector<uint32_t> trie_;
    std::string texts_;
};

}  // namespace powerinfer
