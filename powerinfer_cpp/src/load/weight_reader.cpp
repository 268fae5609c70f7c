#include "load/weight_reader.h"

#include <algorithm>

#include "ggml/sizes.h"

namespace powerinfer {

namespace {

// Half of the smallest second-level caches, so that a piece is still there when it has been read.
constexpr int64_t kReadPiece = 256 << 10;
// What a thread moves in one go, some huge pages of memory: where two threads begin in the same
// one, each fills a page with zeros, and one of these is thrown away. A small model has a share for
// every thread.
constexpr uint64_t kRun = 4 << 20, kLeastRun = 256 << 10, kRunsPerThread = 8;
// What is on its way from the disk beyond the runs that have begun: a disk that reads 7 GB/s needs
// less.
constexpr uint64_t kAhead = 16 << 20, kAsk = 4 << 20;
constexpr int64_t kBufferLine = 64;  // buffers of two threads share none

int64_t row_bytes(const WeightSpec& w) {
    return ggml::info(w.tensor->type).size(w.cols);
}
uint64_t all_bytes(const WeightSpec& w) {
    return uint64_t(w.rows * row_bytes(w));
}
const ggml::File& file_of(const ModelFile& file, const WeightSpec& w) {
    return *file.files[w.tensor->file];
}

// As many rows as `bytes` hold, a multiple of `step`.
int64_t rows_in(uint64_t bytes, const WeightSpec& w, int64_t step) {
    return std::max<int64_t>(1, int64_t(bytes) / (row_bytes(w) * step)) * step;
}

}  // namespace

WeightReader::WeightReader(const ModelFile& file, ggml::Threads& threads, Budget& budget,
                           const std::vector<const WeightSpec*>& order)
    : file_(file), threads_(threads), budget_(budget) {
    uint64_t begin = 0;
    for (const WeightSpec* w : order) {
        ranges_.push_back({w, begin});
        begin += all_bytes(*w);
    }
}

uint64_t WeightReader::begin_of(const WeightSpec& w) {
    while (current_ + 1 < ranges_.size() && ranges_[current_].weight != &w) current_++;
    return current_ < ranges_.size() ? ranges_[current_].begin : 0;
}

std::vector<WeightReader::Part> WeightReader::parts_of(const std::vector<WeightMove>& moves,
                                                       uint64_t run) {
    std::vector<Part> parts;
    for (const WeightMove& m : moves) {
        const WeightSpec& w = *m.weight;
        const uint64_t begin = m.mapped ? 0 : begin_of(w);
        const int64_t most = rows_in(run, w, m.step);
        for (int64_t first = 0; first < w.rows; first += most) {
            parts.push_back({&m, first, std::min(most, w.rows - first), begin});
        }
    }
    return parts;
}

void WeightReader::move(const std::vector<WeightMove>& moves,
                        const std::function<void(uint64_t)>& tell) {
    uint64_t total = 0;
    for (const WeightMove& m : moves) total += all_bytes(*m.weight);
    const uint64_t share = total / (kRunsPerThread * uint64_t(threads_.size())),
                   run = std::clamp(share, kLeastRun, kRun);
    const std::vector<Part> parts = parts_of(moves, run);
    const auto bytes = [&](size_t part) {
        return uint64_t(parts[part].n * row_bytes(*parts[part].move->weight));
    };
    // Small weights make a run together.
    std::vector<size_t> runs;
    uint64_t filled = run;
    for (size_t i = 0; i < parts.size(); i++) {
        if (filled + bytes(i) > run) {
            runs.push_back(i);
            filled = 0;
        }
        filled += bytes(i);
    }
    runs.push_back(parts.size());
    const Buffers buffers = buffers_for(moves);
    const uint64_t all = ggml::size_product(uint64_t(buffers.bytes), uint64_t(buffers.n));
    const Reservation reserved =
        budget_.reserve(file_.gguf.path() + ": reading the weights", std::min(all, room()));
    const ggml::Memory memory(all, "buffers");
    const int threads = threads_.active();
    threads_.limit(buffers.n);
    std::atomic<uint64_t> moved{0};
    threads_.run(int64_t(runs.size()) - 1, 1, [&](int64_t begin, int64_t end, int thread) {
        for (size_t i = runs[size_t(begin)]; i < runs[size_t(end)]; i++) {
            move(parts[i], buffers.bytes, memory.data() + thread * buffers.bytes);
            moved += bytes(i);
        }
        if (thread == 0) tell(moved);
    });
    threads_.limit(threads);
}

uint64_t WeightReader::room() const {
    return budget_.limit() - budget_.reserved();
}

WeightReader::Buffers WeightReader::buffers_for(const std::vector<WeightMove>& moves) const {
    const auto lines = [](int64_t bytes) {
        return (bytes + kBufferLine - 1) / kBufferLine * kBufferLine;
    };
    int64_t least = 0, most = 0;
    for (const WeightMove& m : moves) {
        if (m.mapped) continue;
        const WeightSpec& w = *m.weight;
        const auto of = [&](int64_t rows) { return lines(std::min(rows, w.rows) * row_bytes(w)); };
        least = std::max(least, of(m.step));
        most = std::max(most, of(rows_in(kReadPiece, w, m.step)));
    }
    const int n = threads_.size();
    const int64_t left = int64_t(std::min(room(), uint64_t(most) * uint64_t(n)));
    if (left >= n * least) return {n, std::min(most, left / n / kBufferLine * kBufferLine)};
    return {int(std::max<int64_t>(1, left / least)), least};
}

void WeightReader::move(const Part& part, int64_t buffer_bytes, uint8_t* buffer) {
    const WeightMove& m = *part.move;
    const WeightSpec& w = *m.weight;
    const int64_t row = row_bytes(w),
                  bytes = m.mapped ? kReadPiece : std::min(buffer_bytes, kReadPiece),
                  most = rows_in(uint64_t(bytes), w, m.step);
    for (int64_t done = 0; done < part.n; done += most) {
        const int64_t first = part.first + done, n = std::min(most, part.n - done);
        if (m.mapped) {
            m.take(first, n, m.mapped + first * row);
            continue;
        }
        ask_ahead(part.begin + uint64_t(first * row));
        file_of(file_, w).read(w.file_offset() + uint64_t(first * row), buffer, size_t(n * row));
        m.take(first, n, buffer);
    }
}

void WeightReader::read(const WeightSpec& w, int64_t first, int64_t n, uint8_t* to) {
    const int64_t row = row_bytes(w);
    const uint64_t begin = begin_of(w);
    threads_.run(n * row, kReadPiece, [&](int64_t at, int64_t end, int) {
        const uint64_t offset = uint64_t(first * row + at);
        ask_ahead(begin + offset);
        file_of(file_, w).read(w.file_offset() + offset, to + at, size_t(end - at));
    });
}

void WeightReader::ask_ahead(uint64_t reached) {
    if (reached + kAhead <= asked_) return;
    // One thread asks; the others have pieces to move.
    const std::unique_lock<std::mutex> lock(asking_, std::try_to_lock);
    if (!lock) return;
    while (reached + kAhead > asked_ && next_range_ < ranges_.size()) {
        const Range& range = ranges_[next_range_];
        const WeightSpec& w = *range.weight;
        const uint64_t done = asked_ - range.begin, left = all_bytes(w) - done,
                       n = std::min(left, kAsk);
        file_of(file_, w).will_read(w.file_offset() + done, n);
        asked_ += n;
        if (n == left) next_range_++;
    }
}

}  // namespace powerinfer
