// Predictors of experts that stay on the disk. The predictor of one expert is a page, which is read
// when a row chooses the expert. All pages have the same size, and lie in memory as they are
// computed with.
//
// A page is read into one of a few frames for pages in use. When it has been used it takes part in
// the cache, if it is worth a slot there (residency.h): then the two frames change their roles, and
// nothing is copied. It does no I/O: the store (store.h) sends the reads that it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ggml/context.h"
#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "ggml/tensor.h"
#include "storage/residency.h"
#include "storage/store_shape.h"

namespace powerinfer {

// A matrix of an expert's predictor: the whole of it, or a range of rows, of a tensor.
struct StoredMatrix {
    uint64_t offset = 0;  // in the file
    ggml::Matrix matrix;  // without data

    uint64_t bytes() const { return uint64_t(matrix.rows * matrix.row_bytes()); }  // in the file
    uint64_t room() const;  // bytes that it takes in a page
};

// The matrices of an expert: fc1 and fc2, or signs; empty if its layer has no predictors.
using StoredPredictor = std::vector<StoredMatrix>;

class PredictorPages {
 public:
    // blocks: [shape.n_blocks()]. align: of reads.
    PredictorPages(const PredictorShape& shape, std::vector<StoredPredictor> blocks,
                   uint32_t align);

    // n tokens begin.
    void begin(int32_t n) { residency_.begin(n); }
    // Asks for a block's page if it is not in memory. false: no frame is free now.
    bool request(int32_t block);
    bool requested(int32_t block) const { return where_[size_t(block)] >= 0; }
    // The next read to be sent, with a tag below 2^48, and that it was sent; false: there is none.
    bool next(ggml::Read& read) const;
    void sent(const ggml::Read& read);
    // The read with this tag is done. Returns the block.
    int32_t done(uint64_t tag);
    bool complete(int32_t block) const;
    // The matrices of a complete page, in their order. Packs them at first. Throws Error(format)
    // if the bytes are not those that were read before.
    const std::vector<ggml::Matrix>& matrices(ggml::Context& context, int32_t block);
    // After its use by some rows: the page stays if it is worth a slot.
    void keep(int32_t block, int64_t rows);
    // After an error: sends no more; and, when no reads are in flight, forgets what is in use.
    void stop();
    void forget();

    const PredictorShape& shape() const { return shape_; }

 private:
    struct Frame {
        int32_t block = -1;
        int32_t n = 0, n_sent = 0, n_done = 0;  // reads
        bool packed = false;
        int32_t slot = -1;  // -1: for pages in use
    };

    uint8_t* at(size_t frame) const { return memory_.data() + frame * shape_.page; }
    // Where the bytes of a matrix begin in their page when they have been read.
    uint64_t lead(const StoredMatrix& m) const { return m.offset % align_; }
    template <typename F>
    void for_matrices(int32_t block, const F& use) const;
    void pack(ggml::Context& context, const ggml::Matrix& m, uint8_t* data) const;
    size_t frame_of(int32_t block) const { return size_t(where_[size_t(block)]); }
    void release(size_t frame);

    const PredictorShape shape_;
    const std::vector<StoredPredictor> blocks_;
    const uint64_t align_;
    ggml::Memory memory_, tables_;
    Residency residency_;
    std::vector<Frame> frames_;
    std::vector<int32_t> where_;    // [blocks]: frame of its page, or -1
    std::vector<int32_t> at_slot_;  // [slots]: frame
    std::vector<int64_t> crc_;      // [blocks]: of the bytes that were read first; -1: not yet
    std::vector<ggml::Matrix> matrices_;
};

}  // namespace powerinfer
