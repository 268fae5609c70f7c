// Reads weights from the model's files, a piece at a time, on all threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/budget.h"
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
    // order: the weights that will be read, in this order. The buffers come from what the budget
    // has left: where that is little they are small, and where it is nothing, since the weights
    // take it to the byte, one thread reads, no more than has to be moved at once.
    WeightReader(const ModelFile& file, ggml::Threads& threads, Budget& budget,
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
    uint64_t room() const;  // bytes that the budget has left
    struct Buffers {
        int n;  // threads that have one
        int64_t bytes;
    };
    Buffers buffers_for(const std::vector<WeightMove>& moves) const;
    void move(const Part& part, int64_t buffer_bytes, uint8_t* buffer);
    uint64_t begin_of(const WeightSpec& w);
    void ask_ahead(uint64_t reached);

    const ModelFile& file_;
    ggml::Threads& threads_;
    Budget& budget_;
    std::vector<Range> ranges_;
    size_t current_ = 0;  // of the ranges
    std::mutex asking_;
    size_t next_range_ = 0;           // which is asked for next
    std::atomic<uint64_t> asked_{0};  // bytes of `order`
};

}  // namespace powerinfer
