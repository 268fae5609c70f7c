#include "tokenizer/unicode/normal_forms.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/utf8.h"

namespace powerinfer {

namespace {

#include "tokenizer/unicode/normal_forms.inc"

// The first code point that composition may change or join to the one before it.
constexpr uint32_t kFirst = 0x300;

// Syllables of Hangul are computed (The Unicode Standard, 3.12).
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kLead = 19, kVowel = 21, kTail = 28, kSyllable = kLead * kVowel * kTail;

// The row of a sorted table that begins with a number; or null.
template <size_t n, size_t columns>
const int32_t* find(const int32_t (&table)[n][columns], uint32_t point) {
    const auto* row = std::lower_bound(
        std::begin(table), std::end(table), point,
        [](const int32_t(&r)[columns], uint32_t value) { return uint32_t(r[0]) < value; });
    return row != std::end(table) && uint32_t((*row)[0]) == point ? *row : nullptr;
}

// 0: it is no mark, or one that stays where it is.
int32_t combining_class(uint32_t point) {
    if (point < kFirst) return 0;
    const auto* row = std::upper_bound(
        std::begin(kClasses), std::end(kClasses), point,
        [](uint32_t value, const int32_t(&r)[3]) { return value < uint32_t(r[0]); });
    if (row == std::begin(kClasses) || point > uint32_t(row[-1][1])) return 0;
    return row[-1][2];
}

void divide(uint32_t point, std::vector<uint32_t>& out) {
    if (point < 0xC0) {
        out.push_back(point);
        return;
    }
    if (const uint32_t i = point - kSyllables; i < kSyllable) {
        out.push_back(kLeads + i / (kVowel * kTail));
        out.push_back(kVowels + i % (kVowel * kTail) / kTail);
        if (i % kTail) out.push_back(kTails + i % kTail);
        return;
    }
    const int32_t* row = find(kPairs, point);
    if (!row) row = find(kOneWay, point);
    if (!row) {
        out.push_back(point);
        return;
    }
    divide(uint32_t(row[1]), out);  // at most three deep
    if (row[2]) divide(uint32_t(row[2]), out);
}

struct Joined {
    uint64_t pair;
    uint32_t point;
};

const std::vector<Joined>& joined() {
    static const std::vector<Joined> sorted = [] {
        std::vector<Joined> all;
        for (const auto& row : kPairs) {
            all.push_back({uint64_t(row[1]) << 32 | uint32_t(row[2]), uint32_t(row[0])});
        }
        std::sort(all.begin(), all.end(),
                  [](const Joined& a, const Joined& b) { return a.pair < b.pair; });
        return all;
    }();
    return sorted;
}

// The code point that two make; 0: none.
uint32_t join(uint32_t a, uint32_t b) {
    if (a - kLeads < kLead && b - kVowels < kVowel) {
        return kSyllables + ((a - kLeads) * kVowel + b - kVowels) * kTail;
    }
    const uint32_t i = a - kSyllables;
    if (i < kSyllable && i % kTail == 0 && b - kTails - 1 < kTail - 1) return a + b - kTails;
    const uint64_t pair = uint64_t(a) << 32 | b;
    const auto found =
        std::lower_bound(joined().begin(), joined().end(), pair,
                         [](const Joined& row, uint64_t value) { return row.pair < value; });
    return found != joined().end() && found->pair == pair ? found->point : 0;
}

// Joins what decompose() has divided.
void compose(std::vector<uint32_t>& points) {
    size_t n = 0, base = SIZE_MAX;
    int32_t before = 0;  // class of the last mark behind `base` that was kept; 0: none was
    for (const uint32_t point : points) {
        const int32_t of = combining_class(point);
        const bool adjacent = base != SIZE_MAX && base + 1 == n;
        if (base != SIZE_MAX && (adjacent || (before != 0 && before < of))) {
            if (const uint32_t whole = join(points[base], point)) {
                points[base] = whole;
                continue;
            }
        }
        if (of == 0) base = n;
        before = of;
        points[n++] = point;
    }
    points.resize(n);
}

}  // namespace

void decompose(std::vector<uint32_t>& points) {
    std::vector<uint32_t> out;
    out.reserve(points.size());
    for (const uint32_t point : points) divide(point, out);
    // Each run of marks by their class.
    for (auto at = out.begin(); at != out.end();) {
        const auto is_mark = [](uint32_t point) { return combining_class(point) != 0; };
        const auto begin = std::find_if(at, out.end(), is_mark);
        at = std::find_if_not(begin, out.end(), is_mark);
        if (at - begin > 1) {
            std::stable_sort(begin, at, [](uint32_t a, uint32_t b) {
                return combining_class(a) < combining_class(b);
            });
        }
    }
    points = std::move(out);
}

std::string composed(std::string_view text) {
    std::string out;
    std::vector<uint32_t> points;
    const auto flush = [&] {
        decompose(points);
        compose(points);
        for (const uint32_t point : points) append_utf8(point, out);
        points.clear();
    };
    bool changes = false;  // may some of `points` change?
    for (size_t at = 0, begin = 0;;) {
        const size_t n = utf8_length(text.substr(at));
        if (n) {
            points.push_back(utf8_point(text.substr(at), n));
            changes |= points.back() >= kFirst;
            at += n;
            continue;
        }
        if (changes) {
            flush();
        } else {
            out.append(text.substr(begin, at - begin));
            points.clear();
        }
        if (at == text.size()) return out;
        out += text[at++];
        begin = at;
        changes = false;
    }
}

}  // namespace powerinfer
