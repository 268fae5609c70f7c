// SentencePiece BPE: starting with characters, merges the two neighbours that form the token with
// the best score, until no two neighbours form a token. Remaining pieces that are no tokens become
// byte tokens.

#include "tokenizer/spm.h"

#include <algorithm>
#include <cstddef>
#include <queue>

#include "base/utf8.h"

namespace powerinfer {
namespace {

// A piece of the text. A merge extends the left piece; the right one becomes empty.
struct Piece {
    size_t begin, size;
    ptrdiff_t previous, next;  // -1: none
};

// Two neighbours that form a token, with their state when they were found.
struct Pair {
    float score;
    ptrdiff_t left, right;
    size_t size;

    // priority_queue returns the largest: the highest score, and of equal ones the leftmost.
    bool operator<(const Pair& other) const {
        return score != other.score ? score < other.score : left > other.left;
    }
};

class Merger {
 public:
    Merger(const Vocab& vocab, std::string_view text) : vocab_(vocab), text_(text) {
        for (size_t i = 0; i < text.size();) {
            // An invalid byte is a piece by itself, so that its neighbours stay whole.
            const size_t size = std::max<size_t>(utf8_length(text.substr(i)), 1);
            const ptrdiff_t index = ptrdiff_t(pieces_.size());
            const bool last = i + size == text.size();
            pieces_.push_back({i, size, index - 1, last ? -1 : index + 1});
            i += size;
        }
    }

    void merge_all() {
        for (ptrdiff_t i = 1; i < ptrdiff_t(pieces_.size()); i++) consider(i - 1, i);
        while (!pairs_.empty()) {
            const Pair pair = pairs_.top();
            pairs_.pop();
            Piece& left = pieces_[pair.left];
            Piece& right = pieces_[pair.right];
            // Pieces only grow or vanish, so the sizes show whether this pair is still current.
            if (left.size == 0 || right.size == 0 || left.size + right.size != pair.size) continue;
            left.size = pair.size;
            left.next = right.next;
            right.size = 0;
            if (left.next >= 0) pieces_[left.next].previous = pair.left;
            consider(left.previous, pair.left);
            consider(pair.left, left.next);
        }
    }

    void append_ids(std::vector<int32_t>& ids) const {
        for (ptrdiff_t i = pieces_.empty() ? -1 : 0; i >= 0; i = pieces_[i].next) {
            const std::string_view piece = text_.substr(pieces_[i].begin, pieces_[i].size);
            const int32_t id = find(piece);
            if (id >= 0) {
                ids.push_back(id);
                continue;
            }
            for (const char c : piece) {
                const int32_t byte = vocab_.byte_ids[uint8_t(c)];
                const int32_t instead = byte >= 0 ? byte : vocab_.unk;
                if (instead >= 0) ids.push_back(instead);
            }
        }
    }

 private:
    // The token with this text. Control, unknown and byte tokens are not text: "</s>" in a prompt
    // must not end it, whatever pieces the vocabulary has.
    int32_t find(std::string_view piece) const {
        const int32_t id = vocab_.find(piece);
        if (id < 0) return -1;
        const TokenType type = vocab_.tokens[size_t(id)].type;
        const bool is_text =
            type != TokenType::control && type != TokenType::unknown && type != TokenType::byte;
        return is_text ? id : -1;
    }

    void consider(ptrdiff_t left, ptrdiff_t right) {
        if (left < 0 || right < 0) return;
        const size_t size = pieces_[left].size + pieces_[right].size;
        if (size > vocab_.longest) return;
        const int32_t id = find(text_.substr(pieces_[left].begin, size));
        if (id >= 0) pairs_.push({vocab_.tokens[id].score, left, right, size});
    }

    const Vocab& vocab_;
    const std::string_view text_;
    std::vector<Piece> pieces_;
    std::priority_queue<Pair> pairs_;
};

}  // namespace

void encode_spm(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids) {
    static const char space[] = "\xE2\x96\x81";  // U+2581 represents a space in token texts
    std::string escaped;
    // The text is at the start of the input or after a special token; llama.cpp adds a space in
    // both cases.
    if (vocab.add_space_prefix) escaped = space;
    for (const char c : text) {
        if (c == ' ') {
            escaped += space;
        } else {
            escaped += c;
        }
    }
    Merger merger(vocab, escaped);
    merger.merge_all();
    merger.append_ids(ids);
}

}  // namespace powerinfer
