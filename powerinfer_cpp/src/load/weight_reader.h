// Reads weights from the model's files, a piece at a time, on all threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "ggml/threads.h"
#include "weights/model_file.h"
#include "weights/weight_spec.h"

namespace powerinfer {

// How the rows of a weight get to their place.
struct WeightMove {
    const WeightSpec* weight;
    int64_t step;  // pieces begin at multiples of so many rows
    // Takes n rows as they are stored, from row `first` on; several threads call it at once.
    std::function<void(int64_t first, int64_t n, const uint8_t* rows)> take;
    const uint8_t* mapped = nullptr;  // the rows, if they are in memory already
};

// Pieces are read, not mapped, each into a buffer of its thread that stays in the second-level
// cache until its rows have been moved on. So nothing of a file is in the process's memory, no
// thread waits for the page tables of the others, and a file that became shorter is an error, not a
// signal. The system is asked early for what is read next, across weights.
class WeightReader {
 public:
    // order: the weights that will be read, in this order.
    WeightReader(const ModelFile& file, ggml::Threads& threads,
                 const std::vector<const WeightSpec*>& order);

    // Calls all of `moves` for all rows. tell: called now and then, in the caller's thread, with
    // the bytes that were moved so far; it may throw.
    void move(const std::vector<WeightMove>& moves, const std::function<void(uint64_t)>& tell);

    // Reads rows [first, first + n).
    void read(const WeightSpec& w, int64_t first, int64_t n, uint8_t* to);

 private:
    struct Range {
        const WeightSpec* weight;
        uint64_t begin;  // in all bytes of `order`
    };
    // Rows of a weight that one thread moves.
    struct Part {
        const WeightMove* move;
        int64_t first, n;
        uint64_t begin;  // of the weight, in all bytes of `order`
    };
    std::vector<Part> parts_of(const std::vector<WeightMove>& moves, uint64_t run);
    void move(const Part& part, std::vector<uint8_t>& buffer);
    uint64_t begin_of(const WeightSpec& w);
    void ask_ahead(uint64_t reached);

    const ModelFile& file_;
    ggml::Threads& threads_;
    std::vector<Range> ranges_;
    size_t current_ = 0;                         // of the ranges
    std::vector<std::vector<uint8_t>> buffers_;  // of each thread
    std::mutex asking_;
    size_t next_range_ = 0;           // which is asked for next
    std::atomic<uint64_t> asked_{0};  // bytes of `order`
};

}  // namespace powerinfer
