// What sessions do to a device beside one another, and over a long time.
#include <algorithm>

#include "forward/device_forward.h"
#include "gpu/splits.h"

using namespace splits;

namespace {

// Rows of more kinds than a session keeps graphs for: the ones that were used last stay, and a kind
// that is recorded again computes the same.
void test_many_graphs() {
    Shape shape;
    shape.n_layer = 1;
    const std::string path = folder / "many.gguf";
    tiny::write(tiny::describe(shape), path);
    pi_session_params params = session_params();
    const auto model = load_on(path, 1 << 30, params);
    Session session(model, params);
    const Tokens tokens = random_tokens(16, 3);
    const std::vector<char> yes(16, 1);
    const auto flags = [](const std::vector<char>& v) {
        return reinterpret_cast<const bool*>(v.data());
    };
    // The last row of `rows` generated ones, of which so many are kept.
    const auto last = [&](size_t rows, size_t kept) {
        std::vector<char> keep(rows, 0);
        std::fill(keep.end() - ptrdiff_t(kept), keep.end(), 1);
        session.truncate(0, 0);
        eval(session, Tokens(tokens.begin(), tokens.begin() + ptrdiff_t(rows)),
             {nullptr, flags(keep), flags(yes)});
        Floats out;
        append_logits(session, int32_t(rows) - 1, out);
        return out;
    };
    const DeviceForward& device = *session.device();
    const Floats first = last(2, 1), second = last(2, 2);
    CHECK(device.n_recorded() == 2);
    size_t kinds = 0;
    for (size_t rows = 1; rows <= 12; rows++) {
        for (size_t kept = 1; kept <= rows; kept++, kinds++) {
            last(rows, kept);
            if (kinds % 8 == 0) CHECK(same(last(2, 2), second));  // it is used again and again
        }
    }
    CHECK(kinds > DeviceForward::kMostRecorded);
    CHECK(device.n_recorded() == DeviceForward::kMostRecorded);
    CHECK(same(last(2, 1), first) && same(last(2, 2), second));
    CHECK(device.n_recorded() == DeviceForward::kMostRecorded);
}

}  // namespace

int main() {
    test_many_graphs();
    return check::summary("test_sessions");
}
