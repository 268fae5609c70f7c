// The experts of a mixture that runs from the file as it was downloaded: a cache of whole experts
// in RAM, and reads for those that are missing. An expert's matrices are packed when they arrive,
// so products have the bits that they have in memory. A dense model's blocks are read in the same
// way: there every row uses all of them, in their order (PageShape::in_order).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ggml/context.h"
#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "storage/expert_pages.h"
#include "storage/store_counts.h"

namespace powerinfer {

class ExpertStore {
 public:
    // files, readers: what `experts` refer to; files stay open as long as this. experts:
    // [shape.n_blocks()].
    ExpertStore(std::vector<const ggml::File*> files,
                std::vector<std::unique_ptr<ggml::Reader>> readers, const PageShape& shape,
                std::vector<StoredPage> experts);
    ~ExpertStore();

    // Announces n tokens, and asks for the first blocks that are used in order. Throws Error(io) if
    // reads of an earlier call are still in flight, or if a file has changed.
    void begin(int64_t n_tokens);
    // Asks for an expert that is not in memory. false: no frame is free until keep().
    bool request(int32_t expert);
    // Asks for the experts that a layer may choose, if reading early pays: `chosen` [used], the
    // best first, from the layer's first one on. Ends what was asked for in this way before.
    void guess(int32_t first, const int32_t* chosen, int32_t used);
    bool guesses() const { return guesses_; }  // false: never
    void set_guesses(bool on) { guesses_ = on; }
    // Waits for an expert, and gives its matrices in their order. They stay until keep(). Asks for
    // the next blocks that are used in order, as many as there is room for. Throws
    // Error(io | format) if a read failed or brought other bytes than before.
    const std::vector<ggml::Matrix>& matrices(ggml::Context& context, int32_t expert);
    // Ends its use by so many rows; 0: it was not used.
    void keep(int32_t expert, int64_t rows);
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
    const ggml::Reader& reader() const { return *readers_[0]; }
    int64_t tokens() const { return tokens_; }
    // A disk that does not answer for so many seconds has failed.
    double patience = 10;
    std::vector<StoreCounts> counts;  // of each feed-forward part
    std::mutex mutex;                 // held by a session while it computes

 private:
    struct Landing;

    const std::vector<ggml::Matrix>& load(ggml::Context& context, int32_t expert);
    StoreCounts& counts_of(int32_t expert) { return counts[size_t(shape().part_of(expert))]; }
    void read_ahead(int32_t first);
    void send();
    bool take(double wait_s);
    void fail(ggml::Code code, const ggml::Reader& reader, const std::string& what);
    const ggml::Reader& silent() const;
    int in_flight() const;

    const std::vector<const ggml::File*> files_;
    std::unique_ptr<ExpertPages> pages_;
    std::vector<std::unique_ptr<ggml::Reader>> readers_;
    std::unique_ptr<Landing> landing_;  // made early: at the end no memory may be left
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
    // The process (ggml::process_generation) that gets the reads which the pages wait for.
    unsigned reads_of_ = ggml::process_generation();
    std::string failure_;
    ggml::Code failure_code_ = ggml::Code::io;
};

}  // namespace powerinfer
