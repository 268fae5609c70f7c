// Experts that stay on the disk, whole or their predictors alone. What is kept of one expert is a
// page, which is read when a row chooses the expert, and lies in memory as it is computed with. A
// feed-forward block of a dense model is an expert that every row uses.
//
// Reads arrive in a landing. Its matrices are packed into a frame that is not in the cache, so a
// read that fails damages nothing. When the page has been used it takes part in the cache, if it is
// worth a slot there (residency.h): then its frame and that of the victim change their roles, and
// nothing is copied. Pages of different sizes (in K_M files half of the layers have larger down
// matrices) have frames and slots of their own.
//
// Any number of pages that are in the cache may be in use at once. Each page in use that is not in
// the cache takes one of PageShape::in_use frames. Pages that are packed ahead leave one of these
// free, so one such page is always possible, and a second one may find all frames taken.
//
// It does no I/O: a store (store.h, expert_store.h) sends the reads that it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ggml/context.h"
#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "ggml/tensor.h"
#include "storage/cache/residency.h"
#include "storage/experts/page_shape.h"

namespace powerinfer {

// A matrix of an expert: the whole of it, or a range of rows, of a tensor.
struct StoredMatrix {
    int32_t file = 0;     // of the readers of the store
    uint64_t offset = 0;  // in that file
    ggml::Matrix matrix;  // without data

    uint64_t bytes() const { return uint64_t(matrix.rows * matrix.row_bytes()); }
    uint64_t window() const;  // bytes that it takes in a landing, at most
    uint64_t room() const;    // bytes that it takes in a page
};

// The matrices of an expert: gate (if there is one), up and down; of a predictor fc1 and fc2, or
// signs. Empty if the layer has none.
using StoredPage = std::vector<StoredMatrix>;

// Enters the sizes of these pages, one for each block, into a shape whose parts are known: at most
// `most` classes.
void set_classes(PageShape& shape, const std::vector<StoredPage>& pages, int most);

class ExpertPages {
 public:
    // blocks: [shape.n_blocks()]. align: of reads. what: a page is called so in errors.
    ExpertPages(const PageShape& shape, std::vector<StoredPage> blocks, uint32_t align,
                const char* what);

    void begin(int32_t n);  // n tokens begin
    // Asks for a block's page if it is not in memory. false: no landing is free now.
    bool request(int32_t block);
    // The same for a page that may be needed, if so many landings stay free for others. It is read
    // when nothing else is to be read, and has to be requested before it is used.
    bool guess(int32_t block, int64_t free);
    // Was it asked for by guess() alone, and has its reading begun?
    bool guessed(int32_t block) const {
        const int32_t i = landing_[size_t(block)];
        return i >= 0 && landings_[size_t(i)].guess && landings_[size_t(i)].n_sent > 0;
    }
    // Gives up such pages.
    void drop_guesses();
    // Is it in memory, or on its way?
    bool requested(int32_t block) const {
        return frame_[size_t(block)] >= 0 || landing_[size_t(block)] >= 0;
    }
    // The next read to be sent, with a tag below 2^48, of which file, and that it was sent; false:
    // there is none. guesses: of pages that were only guessed, instead of the others.
    // full: files that take no more reads now.
    bool next(ggml::Read& read, int32_t& file, bool guesses = false,
              const std::vector<bool>& full = {}) const;
    void sent(const ggml::Read& read);
    int32_t block_of(uint64_t tag) const { return landings_[tag / kMatrices].block; }
    // The read with this tag is done. Returns the block; -1 if it was only guessed, or given up.
    // failed: such a guess is given up.
    int32_t done(uint64_t tag, bool failed);
    // Has all of a page arrived? And one of its matrices, of a page that is on its way?
    bool complete(int32_t block) const;
    bool arrived(int32_t block, size_t matrix) const {
        const auto& m = landings_[size_t(landing_[size_t(block)])].matrix[matrix];
        return m.n_done == m.n;
    }
    // Packs the matrices of a page that have arrived, if there is a frame; one is left for
    // matrices(). false: there was nothing to do.
    bool pack(ggml::Context& context);
    // The matrices of a complete page, in their order. Their data stays until as many calls of
    // keep(); the vector until the next call. Throws Error(format) if the bytes are not those that
    // were read before.
    const std::vector<ggml::Matrix>& matrices(ggml::Context& context, int32_t block);
    // After its use by some rows: the page stays if it is worth a slot. Does nothing for a page
    // that is not in use, as after forget().
    void keep(int32_t block, int64_t rows) noexcept;
    // After an error: sends no more; and, when no reads are in flight, forgets what has no slot.
    void stop();
    void forget();

    const PageShape& shape() const { return shape_; }
    const StoredPage& page(int32_t block) const { return blocks_[size_t(block)]; }
    bool resident(int32_t block) const {
        const int32_t i = frame_[size_t(block)];
        return i >= 0 && frames_[size_t(i)].slot >= 0;
    }
    int64_t used() const;  // slots that have a page
    // The worth of pages by what is expected of them, or by an earlier session's list; and that
    // list. A page is a RankedPart of its part: `id` is the expert.
    void profile(const std::vector<RankedPart>& pages);
    std::vector<RankedPart> ranked() const;
    // The blocks that an empty cache has room for and that are worth it, the most valuable first.
    std::vector<int32_t> wanted() const;

 private:
    static constexpr int kMatrices = 4;  // of a page, at most
    // A page on its way.
    struct Landing {
        int32_t block = -1;
        int32_t frame = -1;  // where it is packed; -1: not yet
        int32_t n_sent = 0;  // reads
        uint64_t turn = 0;   // reads are sent in the order of requests
        bool guess = false, dropped = false;
        struct {
            int32_t n = 0, n_done = 0;  // reads
            bool packed = false;
        } matrix[kMatrices];
        int32_t n = 0, n_packed = 0;  // matrices
        uint32_t crc = 0;
    };
    struct Frame {
        int32_t block = -1;
        int32_t slot = -1;  // in its class; -1: not in the cache
        int32_t uses = 0;   // that keep() has not ended
    };
    // Frames, slots and residency of pages of a size.
    struct Class {
        uint64_t begin = 0;            // of its frames in the memory
        int32_t first = 0;             // of its frames
        std::vector<int32_t> free;     // frames without a page and without a slot
        std::vector<int32_t> at_slot;  // [slots]: frame
        Residency residency;
    };

    int32_t part_of(int32_t block) const { return shape_.part_of(block); }
    int32_t class_of(int32_t block) const { return shape_.class_of[size_t(shape_.part_of(block))]; }
    uint8_t* at(int32_t block, int32_t frame) const {
        const Class& c = classes_[size_t(class_of(block))];
        const uint64_t page = shape_.classes[size_t(class_of(block))].page;
        return frames_memory_.data() + c.begin + uint64_t(frame - c.first) * page;
    }
    uint8_t* landing_at(size_t i) const { return landings_memory_.data() + i * shape_.landing; }
    // Where the bytes of a matrix begin in their window.
    uint64_t lead(const StoredMatrix& m) const { return m.offset % align_; }
    bool land(int32_t block, bool guess);
    void drop(Landing& landing);
    void free_dropped(Landing& landing);
    int32_t unsent(const Landing& landing, int32_t& number) const;
    int32_t n_reads(const Landing& landing) const;
    uint64_t reads_of(const StoredMatrix& m) const;
    uint64_t read_bytes(const StoredMatrix& m) const;
    void pack(ggml::Context& context, Landing& landing);
    uint32_t pack(ggml::Context& context, const ggml::Matrix& m, const uint8_t* from,
                  uint8_t* to) const;
    void take_frame(Landing& landing);
    void finish(Landing& landing);
    void release(int32_t block, int32_t frame);

    const PageShape shape_;
    const std::vector<StoredPage> blocks_;
    const uint64_t align_;
    const char* const what_;
    ggml::Memory frames_memory_, landings_memory_, tables_;
    std::vector<Class> classes_;
    std::vector<Frame> frames_;
    std::vector<Landing> landings_;
    uint64_t turn_ = 0;
    std::vector<int32_t> frame_, landing_;  // [blocks]: of its page, or -1
    std::vector<int64_t> crc_;  // [blocks]: of the bytes that were read first; -1: not yet
    std::vector<ggml::Matrix> matrices_;
};

}  // namespace powerinfer
