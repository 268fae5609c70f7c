#include "storage/store_counts.h"

#include <chrono>

namespace powerinfer {

void StoreCounts::add(const StoreCounts& begin, const StoreCounts& end) {
    for (int half = 0; half < 2; half++) {
        needed[half] += end.needed[half] - begin.needed[half];
        missed[half] += end.missed[half] - begin.missed[half];
    }
    reads += end.reads - begin.reads;
    bytes += end.bytes - begin.bytes;
    predictors += end.predictors - begin.predictors;
    guessed += end.guessed - begin.guessed;
    right += end.right - begin.right;
    admitted += end.admitted - begin.admitted;
    waited_s += end.waited_s - begin.waited_s;
}

double now_s() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

StoreCounts sum(const std::vector<StoreCounts>& parts) {
    StoreCounts all;
    for (const StoreCounts& part : parts) all.add({}, part);
    return all;
}

}  // namespace powerinfer
