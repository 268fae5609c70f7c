#include "tokenizer/special_tokens.h"

#include <algorithm>

namespace powerinfer {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string_view, int32_t>> tokens) {
    if (tokens.empty()) return;
    std::sort(tokens.begin(), tokens.end());
    // A node is a range of sorted texts that begin with the same bytes.
    struct Range {
        size_t begin, end, depth;
        int32_t parent;
    };
    std::vector<Range> level{{0, tokens.size(), 0, -1}}, next;
    std::vector<int32_t> parents;
    nodes_.push_back({0, 0, -1, 0});
    parents.push_back(-1);
    for (int32_t node = 0; !level.empty(); level.swap(next)) {
        next.clear();
        for (Range& r : level) {
            if (tokens[r.begin].first.size() == r.depth) {  // the root has no text of its own
                nodes_[size_t(node)].match = int32_t(matches_.size());
                matches_.push_back({r.depth, tokens[r.begin++].second, -1, -1, 0});
            }
            nodes_[size_t(node)].children = int32_t(nodes_.size());
            while (r.begin < r.end) {
                const uint8_t byte = uint8_t(tokens[r.begin].first[r.depth]);
                size_t end = r.begin + 1;
                while (end < r.end && uint8_t(tokens[end].first[r.depth]) == byte) end++;
                next.push_back({r.begin, end, r.depth + 1, node});
                nodes_.push_back({0, 0, -1, byte});
                parents.push_back(node);
                r.begin = end;
            }
            node++;
        }
    }
    const int32_t n = int32_t(nodes_.size());
    nodes_.push_back({n, 0, -1, 0});  // end of the last node's children
    for (int32_t i = 1; i < n; i++) {
        Node& node = nodes_[size_t(i)];
        const int32_t parent = parents[size_t(i)];
        if (parent) node.fallback = step(nodes_[size_t(parent)].fallback, node.byte);
        const int32_t shorter = nodes_[size_t(node.fallback)].match;
        if (node.match < 0) {
            node.match = shorter;
        } else if (shorter >= 0) {
            // Skip pointers: a jump covers the two previous jumps if they are equally long. So any
            // size is reached in a logarithmic number of steps.
            Match& m = matches_[size_t(node.match)];
            const Match& s = matches_[size_t(shorter)];
            m.shorter = m.jump = shorter;
            m.depth = s.depth + 1;
            if (s.jump >= 0) {
                const Match& j = matches_[size_t(s.jump)];
                if (j.jump >= 0 && s.depth - j.depth == j.depth - matches_[size_t(j.jump)].depth)
                    m.jump = j.jump;
            }
        }
    }
}

int32_t SpecialTokens::child(int32_t node, uint8_t byte) const {
    const auto begin = nodes_.begin() + nodes_[size_t(node)].children,
               end = nodes_.begin() + nodes_[size_t(node) + 1].children;
    const auto at = std::lower_bound(begin, end, byte,
                                     [](const Node& n, uint8_t wanted) { return n.byte < wanted; });
    return at != end && at->byte == byte ? int32_t(at - nodes_.begin()) : -1;
}

int32_t SpecialTokens::step(int32_t node, uint8_t byte) const {
    for (;;) {
        const int32_t to = child(node, byte);
        if (to >= 0) return to;
        if (node == 0) return 0;
        node = nodes_[size_t(node)].fallback;
    }
}

// The longest of a match and its shorter matches that has at most `size` bytes.
int32_t SpecialTokens::at_most(int32_t match, size_t size) const {
    while (match >= 0 && matches_[size_t(match)].size > size) {
        const Match& m = matches_[size_t(match)];
        match = m.jump >= 0 && matches_[size_t(m.jump)].size > size ? m.jump : m.shorter;
    }
    return match;
}

std::vector<SpecialTokens::Found> SpecialTokens::find(std::string_view text) const {
    std::vector<Found> found;
    if (matches_.empty()) return found;
    // Candidates are the longest tokens at each end position. If a longer one has taken part of the
    // room, the candidate is replaced by a shorter one at the same end. It then has at most half
    // the size, because the one in its way is at least as long.
    struct Candidate {
        size_t size, end;
        int32_t match;
        bool operator<(const Candidate& other) const {
            return size != other.size ? size < other.size : end > other.end;
        }
    };
    std::vector<Candidate> candidates;
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); i++) {
        node = step(node, uint8_t(text[i]));
        const int32_t match = nodes_[size_t(node)].match;
        if (match >= 0) candidates.push_back({matches_[size_t(match)].size, i + 1, match});
    }
    if (candidates.empty()) return found;
    std::make_heap(candidates.begin(), candidates.end());
    std::vector<size_t> taken(text.size(), 0);  // end of the token that covers a byte; 0: none
    while (!candidates.empty()) {
        std::pop_heap(candidates.begin(), candidates.end());
        const Candidate c = candidates.back();
        candidates.pop_back();
        const size_t begin = c.end - c.size;
        // Tokens already taken are at least as long, so an overlapping one covers one of the two
        // ends.
        if (taken[c.end - 1]) continue;
        if (taken[begin]) {
            const int32_t match = at_most(c.match, c.end - taken[begin]);
            if (match < 0) continue;
            candidates.push_back({matches_[size_t(match)].size, c.end, match});
            std::push_heap(candidates.begin(), candidates.end());
            continue;
        }
        std::fill(taken.begin() + ptrdiff_t(begin), taken.begin() + ptrdiff_t(c.end), c.end);
        found.push_back({begin, c.size, matches_[size_t(c.match)].token});
    }
    std::sort(found.begin(), found.end(),
              [](const Found& a, const Found& b) { return a.begin < b.begin; });
    return found;
}

}  // namespace powerinfer
