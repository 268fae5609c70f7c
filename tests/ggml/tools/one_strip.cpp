// Calls a kernel of strips: one_strip TYPE COLUMNS ROWS TOKENS CALLS. scripts/arm_counts.py counts
// the instructions.
#include <cstdlib>
#include <vector>

#include "ggml/context.h"
#include "kernels/kernels.h"

using namespace ggml;

int main(int argc, char** argv) {
    const DTypeInfo* type = argc == 6 ? find_dtype(argv[1]) : nullptr;
    if (!type) return 2;
    const int64_t cols = std::atoi(argv[2]), rows = std::atoi(argv[3]), tokens = std::atoi(argv[4]);
    const cpu::strip_fn strips = select_kernels().strip[int(type->type)];
    if (!strips || cols % type->block || rows % kStrip) return 2;
    const std::vector<uint8_t> w(size_t(type->size(rows * cols)));
    const size_t n = size_t(tokens * cols);
    std::vector<int8_t> q(n);
    std::vector<float> d(n / kQ), ds(n / kQ), y(size_t(tokens * rows));
    std::vector<int32_t> s8(n / kQ);
    std::vector<int16_t> s16(n / kQ * 2);
    const Q8Rows x{cols, q.data(), d.data(), s8.data(), ds.data(), s16.data()};
    for (int i = 0; i < std::atoi(argv[5]); i++) {
        strips(w.data(), rows / kStrip, x, 0, tokens, y.data(), rows);
    }
    return 0;
}
