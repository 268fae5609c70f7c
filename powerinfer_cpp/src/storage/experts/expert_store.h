// The experts of a mixture that runs from the file as it was downloaded: a cache of whole experts
// in RAM, and reads for those that are missing. An expert's matrices are packed when they arrive,
// so products have the bits that they have in memory. A dense model's blocks are read in the same
// way: there every row uses all of them, in their order (PageShape::in_order).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ggml/context.h"
#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "storage/experts/expert_pages.h"
#include "storage/page_reads.h"
#include "storage/store_counts.h"
#include "storage/store_status.h"

namespace powerinfer {

class ExpertStore final : PageReads::Policy {
 public:
    // files, readers: what `experts` refer to; files stay open as long as this. experts:
    // [shape.n_blocks()].
    ExpertStore(std::vector<const ggml::File*> files,
                std::vector<std::unique_ptr<ggml::Reader>> readers, const PageShape& shape,
                std::vector<StoredPage> experts);

    // Announces n tokens, and asks for the first blocks that are used in order. Throws Error(io) if
    // reads of an earlier call are still in flight, or if a file has changed.
    void begin(int64_t n_tokens);
    // Asks for an expert that is not in memory. false: no frame is free until keep().
    bool request(int32_t expert);
    // Asks for the experts that a layer may choose, if reading early pays: `chosen` [used], the
    // best first, from the layer's first one on. Ends what was asked for in this way before. A
    // guess whose read fails before the expert is asked for is given up, and is no error: the
    // expert is read again when it is needed.
    void guess(int32_t first, const int32_t* chosen, int32_t used);
    bool guesses() const { return guesses_; }  // false: never
    void set_guesses(bool on) { guesses_ = on; }
    // Waits for an expert, and gives its matrices in their order: their data stays until keep(),
    // the vector until the next call. How many can be in use at once: expert_pages.h. Asks for the
    // next blocks that are used in order, as many as there is room for. Throws Error(io | format)
    // if a read failed or brought other bytes than before.
    const std::vector<ggml::Matrix>& matrices(ggml::Context& context, int32_t expert);
    // Ends its use by so many rows; 0: it was not used. What fails here ends the call at its next
    // use of the store.
    void keep(int32_t expert, int64_t rows) noexcept;
    // For errors: waits for reads in flight and forgets what was asked for.
    void reset();

    // The experts that are worth most by an earlier session's list, from the first on: as many as
    // the cache has room for.
    std::vector<int32_t> wanted(const std::vector<RankedPart>& saved) {
        pages_->profile(saved);
        return pages_->wanted();
    }
    // Fills an empty cache with these experts, in this order, for so many seconds at the most.
    // progress(fraction) may throw.
    template <typename F>
    void fill(ggml::Context& context, const std::vector<int32_t>& wanted, double seconds,
              const F& progress) {
        const double end = now_s() + seconds;
        size_t asked = 0;
        for (size_t i = 0; i < wanted.size(); i++) {
            const bool more = now_s() < end;
            if (!more && i == asked) break;
            while (more && asked < wanted.size() && request(wanted[asked])) asked++;
            load(context, wanted[i]);
            keep(wanted[i], 0);
            asked = std::max(asked, i + 1);
            progress(float(i + 1) / float(wanted.size()));
        }
        progress(1);
    }

    // Does it stay on the disk? Blocks that no row chooses may be in memory.
    bool has(int32_t expert) const { return !pages_->page(expert).empty(); }
    bool absent(int32_t expert) const { return has(expert) && !pages_->resident(expert); }
    int64_t used() const { return pages_->used(); }
    // For such a list.
    std::vector<RankedPart> ranked() const { return pages_->ranked(); }
    const PageShape& shape() const { return pages_->shape(); }
    const ggml::Reader& reader() const { return reads_.reader(); }
    int64_t tokens() const { return tokens_; }
    void set_patience(double seconds) { reads_.patience = seconds; }
    std::vector<StoreCounts> counts;  // of each feed-forward part
    // Locked by a session while it computes. A bit for each expert; set, too, if it has no page.
    StatusBoard status{[this](StoreStatus& s) { look(s); }};

 private:
    const std::vector<ggml::Matrix>& load(ggml::Context& context, int32_t expert);
    StoreCounts& counts_of(int32_t expert) { return counts[size_t(shape().part_of(expert))]; }
    void read_ahead(int32_t first);
    void send() override;
    void read_done(int32_t file, const ggml::ReadDone& done) override;
    int32_t awaited(int32_t expert) const;
    void look(StoreStatus& to);

    const std::vector<const ggml::File*> files_;
    std::shared_ptr<ExpertPages> pages_;  // shared with the reads
    PageReads reads_;
    std::vector<bool> full_;         // files that take no more reads, while send() works
    std::vector<uint8_t> resident_;  // of StoreStatus
    int64_t tokens_ = 0;
    // The experts that were not in memory when they were thought likely for a layer, by their rank
    // there, also those that were not asked for.
    struct Guess {
        int32_t expert = -1;
        bool chosen = false;
    };
    // By rank: how many were chosen of how many, with decay.
    struct Guessed {
        double chosen = 1, all = 1;
    };
    bool guesses_ = true;
    std::vector<Guess> guess_;
    std::vector<Guessed> guessed_;
};

}  // namespace powerinfer
