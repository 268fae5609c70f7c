// NFD and NFC: what is divided, in which order marks come, what is joined and what is not.
// tests/python/test_wordpiece.py compares them with the package tokenizers.
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "ggml/check.h"
#include "tokenizer/unicode/normal_forms.h"

using namespace powerinfer;

namespace {

using Points = std::vector<uint32_t>;

Points divided(Points points) {
    decompose(points);
    return points;
}

std::string text(const Points& points) {
    std::string out;
    for (const uint32_t point : points) append_utf8(point, out);
    return out;
}

Points joined(const Points& points) {
    const std::string out = composed(text(points));
    Points found;
    for (size_t i = 0; i < out.size();) {
        const size_t n = utf8_length(std::string_view(out).substr(i));
        found.push_back(utf8_point(std::string_view(out).substr(i), n));
        i += n;
    }
    return found;
}

void dividing() {
    CHECK(divided({}).empty() && divided({'a', 0xBF, 0x4E00}) == (Points{'a', 0xBF, 0x4E00}));
    CHECK(divided({0xC0}) == (Points{'A', 0x300}));
    CHECK(divided({0x1E08}) == (Points{'C', 0x327, 0x301}));           // two steps
    CHECK(divided({0x1F82}) == (Points{0x3B1, 0x313, 0x300, 0x345}));  // three
    CHECK(divided({0x212B}) == (Points{'A', 0x30A}));                  // one of another one
    CHECK(divided({0x2126}) == Points{0x3A9});
    CHECK(divided({0xFB1D}) == (Points{0x5D9, 0x5B4}));
    CHECK(divided({0x1D15E}) == (Points{0x1D157, 0x1D165}));
    CHECK(divided({0xFB01}) == Points{0xFB01});  // a ligature: of NFKD alone
    CHECK(divided({0x2F800}) == Points{0x4E3D});
}

// The Unicode Standard, 3.12.
void hangul() {
    CHECK(divided({0xAC00}) == (Points{0x1100, 0x1161}));
    CHECK(divided({0xAC01}) == (Points{0x1100, 0x1161, 0x11A8}));
    CHECK(divided({0xD7A3}) == (Points{0x1112, 0x1175, 0x11C2}));
    CHECK(divided({0xD7A4}) == Points{0xD7A4} && divided({0xABFF}) == Points{0xABFF});
    CHECK(joined({0x1100, 0x1161}) == Points{0xAC00});
    CHECK(joined({0x1112, 0x1175, 0x11C2}) == Points{0xD7A3});
    CHECK(joined({0xAC00, 0x11A8}) == Points{0xAC01});
    // No tail, behind a syllable that has one, and letters at the ends of their ranges.
    CHECK(joined({0xAC00, 0x11A7}) == (Points{0xAC00, 0x11A7}));
    CHECK(joined({0xAC01, 0x11A8}) == (Points{0xAC01, 0x11A8}));
    CHECK(joined({0xAC00, 0x11C3}) == (Points{0xAC00, 0x11C3}));
    CHECK(joined({0x1113, 0x1161}) == (Points{0x1113, 0x1161}));
    CHECK(joined({0x1100, 0x1176}) == (Points{0x1100, 0x1176}));
    CHECK(joined({0x1161, 0x11A8}) == (Points{0x1161, 0x11A8}));
    for (uint32_t syllable = 0xAC00; syllable < 0xD7A4; syllable += 7) {
        CHECK(joined(divided({syllable})) == Points{syllable});
    }
}

// Marks behind a letter are ordered by class; those of one class stay in their order.
void order() {
    CHECK(divided({'a', 0x301, 0x323}) == (Points{'a', 0x323, 0x301}));
    CHECK(divided({'a', 0x301, 0x300}) == (Points{'a', 0x301, 0x300}));
    CHECK(divided({0x345, 0x315, 0x301, 0x323}) == (Points{0x323, 0x301, 0x315, 0x345}));
    CHECK(divided({'a', 0x301, 'b', 0x323}) == (Points{'a', 0x301, 'b', 0x323}));
    CHECK(divided({0x1EAD}) == (Points{'a', 0x323, 0x302}));
    CHECK(divided({0xE2, 0x323}) == (Points{'a', 0x323, 0x302}));  // of a letter with a mark
    // U+034F has no class: marks on both sides stay there.
    CHECK(divided({'a', 0x301, 0x34F, 0x323}) == (Points{'a', 0x301, 0x34F, 0x323}));
}

void joining() {
    CHECK(joined({'e', 0x301}) == Points{0xE9} && joined({0xE9}) == Points{0xE9});
    CHECK(joined({'a', 0x302, 0x323}) == Points{0x1EAD});
    CHECK(joined({0x1E69}) == Points{0x1E69} && joined({'s', 0x307, 0x323}) == Points{0x1E69});
    CHECK(joined({0x212B}) == Points{0xC5} && joined({0x2126}) == Points{0x3A9});
    // A mark of the same class in between is in the way, one of a lower class is not.
    CHECK(joined({'a', 0x323, 0x301}) == (Points{0x1EA1, 0x301}));
    CHECK(joined({'q', 0x323, 0x301}) == (Points{'q', 0x323, 0x301}));
    CHECK(joined({'a', 0x5B4, 0x301}) == (Points{0xE1, 0x5B4}));
    CHECK(joined({'e', 0x31B, 0x301}) == (Points{0xE9, 0x31B}));
    CHECK(joined({'a', 0x300, 0x301}) == (Points{0xE0, 0x301}));
    // A letter is in the way of marks behind it.
    CHECK(joined({'a', 'b', 0x301}) == (Points{'a', 'b', 0x301}));
    CHECK(joined({0x301, 'a'}) == (Points{0x301, 'a'}));
    CHECK(joined({'a', 0x34F, 0x301}) == (Points{'a', 0x34F, 0x301}));
    // Two letters that are one.
    CHECK(joined({0x9C7, 0x9BE}) == Points{0x9CB} && joined({0x11131, 0x11127}) == Points{0x1112E});
    CHECK(joined({0x9C7, 0x9BC, 0x9BE}) == (Points{0x9C7, 0x9BC, 0x9BE}));
    // Exclusions of composition: they are divided, and stay so.
    CHECK(joined({0x958}) == (Points{0x915, 0x93C}) && joined({0xFB1D}) == (Points{0x5D9, 0x5B4}));
    CHECK(joined({0x2ADC}) == (Points{0x2ADD, 0x338}) && joined({0x344}) == (Points{0x308, 0x301}));
    CHECK(joined({0x1D15E}) == (Points{0x1D157, 0x1D165}));
    CHECK(joined({0x2000}) == Points{0x2002} && joined({0x340}) == Points{0x300});
}

// Bytes that are no text stay, and divide what is around them.
void not_utf8() {
    CHECK(composed("") == "" && composed("plain, old") == "plain, old");
    CHECK(composed("\xFF") == "\xFF" && composed("e\xCC\x81\xFF") == "\xC3\xA9\xFF");
    CHECK(composed("\xFF\xCC\x81") == "\xFF\xCC\x81");
    CHECK(composed("e\xCC\x81\xED\xA0\x80"
                   "e\xCC\x81\xE2") == "\xC3\xA9\xED\xA0\x80\xC3\xA9\xE2");
    CHECK(composed("e\xFF\xCC\x81") == "e\xFF\xCC\x81");
    const std::string zero = std::string("a\0e\xCC\x81", 5);
    CHECK(composed(zero) == std::string("a\0\xC3\xA9", 4));
}

// NFC of NFC, and of NFD, is NFC.
void stable() {
    std::mt19937 rng(1);
    const std::pair<uint32_t, uint32_t> ranges[] = {
        {0x20, 0x24F},  {0x300, 0x36F},   {0x370, 0x3FF},   {0x591, 0x5EA},
        {0x900, 0xDDF}, {0x1100, 0x11C3}, {0x1E00, 0x1FFF}, {0xAC00, 0xAC40}};
    for (int i = 0; i < 3000; i++) {
        Points points;
        for (size_t n = rng() % 9; n > 0; n--) {
            const auto& [first, last] = ranges[rng() % std::size(ranges)];
            points.push_back(first + uint32_t(rng() % (last - first + 1)));
        }
        const Points whole = joined(points), parts = divided(points);
        CHECK(joined(whole) == whole && joined(parts) == whole && divided(whole) == parts);
        CHECK(divided(parts) == parts);
    }
}

}  // namespace

int main() {
    dividing();
    hangul();
    order();
    joining();
    not_utf8();
    stable();
    return check::summary("test_normal_forms");
}
