#include "storage/expert_store.h"

#include <algorithm>
#include <cstring>

#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

// Reads in flight beside which guessed experts are read.
constexpr int kGuessedReads = 16;
// A wrong guess keeps the disk from other reads as long as a right one saves.
constexpr double kLeastRight = 0.5, kForgets = 0.99;

// Of all reads: the parts of a model may lie on several disks.
uint32_t align_of(const std::vector<std::unique_ptr<ggml::Reader>>& readers) {
    uint32_t align = 1;
    for (const auto& reader : readers) align = std::max(align, reader->align());
    return align;
}

}  // namespace

// What reads of a disk that does not answer may still write to.
struct ExpertStore::Landing : ggml::Abandoned {
    std::unique_ptr<ExpertPages> pages;
    std::vector<std::unique_ptr<ggml::Reader>> readers;
};

ExpertStore::ExpertStore(std::vector<const ggml::File*> files,
                         std::vector<std::unique_ptr<ggml::Reader>> readers, const PageShape& shape,
                         std::vector<StoredPage> experts)
    : counts(size_t(shape.n_parts())),
      files_(std::move(files)),
      pages_(std::make_unique<ExpertPages>(shape, std::move(experts), align_of(readers),
                                           shape.in_order ? "block" : "expert")),
      readers_(std::move(readers)),
      landing_(std::make_unique<Landing>()) {}

ExpertStore::~ExpertStore() {
    bool done = true;
    for (const auto& reader : readers_) done = ggml::drain(*reader, patience) && done;
    if (done) return;
    landing_->pages = std::move(pages_);
    landing_->readers = std::move(readers_);
    ggml::abandon(std::move(landing_));
}

int ExpertStore::in_flight() const {
    int n = 0;
    for (const auto& reader : readers_) n += reader->owed();
    return n;
}

// The one that take() waits for.
const ggml::Reader& ExpertStore::silent() const {
    for (const auto& reader : readers_) {
        if (reader->owed() > 0) return *reader;
    }
    return *readers_[0];
}

void ExpertStore::fail(Code code, const ggml::Reader& reader, const std::string& what) {
    if (!failure_.empty()) return;
    failure_code_ = code;
    failure_ = reader.path() + ": " + what;
}

void ExpertStore::send() {
    ggml::Read read;
    int32_t file = 0;
    for (const bool guesses : {false, true}) {
        while (failure_.empty() && pages_->next(read, file, guesses)) {
            // What turns out to be wrong shall not keep the disk from what is needed then.
            if (guesses && in_flight() >= kGuessedReads) return;
            if (readers_[size_t(file)]->submit(&read, 1) == 0) return;
            const int32_t expert = pages_->block_of(read.tag);
            StoreCounts& done = counts_of(expert);
            const bool begun = pages_->guessed(expert);
            pages_->sent(read);
            done.guessed += !begun && pages_->guessed(expert);
            done.reads++;
            done.bytes += read.bytes();
        }
    }
}

// Takes finished reads, and waits for some of the first file that has any; false: there were none.
bool ExpertStore::take(double wait_s) {
    constexpr int kAtOnce = 64;
    ggml::ReadDone done[kAtOnce];
    bool any = false;
    for (const auto& reader : readers_) {
        if (reader->owed() == 0) continue;
        const int n = reader->done(done, kAtOnce, any ? 0 : wait_s);
        for (int i = 0; i < n; i++) {
            const int32_t expert = pages_->done(done[i].tag);
            if (!done[i].error) continue;
            fail(Code::io, *reader,
                 done[i].error == ggml::kShortRead
                     ? "the file ends before the weights that it had when it was opened"
                     : format("reading %s %d failed: %s", shape().in_order ? "block" : "expert",
                              expert, std::strerror(done[i].error)));
        }
        any = any || n > 0;
    }
    return any;
}

bool ExpertStore::request(int32_t expert) {
    for (Guess& guess : guess_) guess.chosen = guess.chosen || guess.expert == expert;
    counts_of(expert).right += pages_->guessed(expert);
    const bool before = pages_->requested(expert);
    if (!pages_->request(expert)) return false;
    if (!before) send();
    return true;
}

void ExpertStore::guess(int32_t first, const int32_t* chosen, int32_t used) {
    pages_->drop_guesses();
    for (size_t rank = 0; rank < guess_.size(); rank++) {
        if (guess_[rank].expert < 0) continue;
        Guessed& known = guessed_[rank];
        known.chosen = known.chosen * kForgets + guess_[rank].chosen;
        known.all = known.all * kForgets + 1;
    }
    guess_.assign(size_t(used), {});
    if (guessed_.size() < guess_.size()) guessed_.resize(guess_.size());
    bool room = true;
    for (size_t rank = 0; rank < guess_.size(); rank++) {
        const int32_t expert = first + chosen[rank];
        if (pages_->requested(expert)) continue;
        guess_[rank].expert = expert;
        const Guessed& known = guessed_[rank];
        const bool pays = known.chosen > kLeastRight * known.all;
        if (!pays || !room) continue;
        room = pages_->guess(expert, used);
    }
    send();
}

const std::vector<ggml::Matrix>& ExpertStore::matrices(ggml::Context& context, int32_t expert) {
    StoreCounts& done = counts_of(expert);
    done.needed[0]++;
    if (!pages_->resident(expert)) done.missed[0]++;
    const std::vector<ggml::Matrix>& there = load(context, expert);
    if (shape().in_order) read_ahead(expert + 1);
    return there;
}

// Asks for the blocks from `first` on that memory lacks, as many as there is room for.
void ExpertStore::read_ahead(int32_t first) {
    for (auto block = first; block < int32_t(shape().n_blocks()); block++) {
        if (has(block) && !pages_->request(block)) break;
    }
    send();
}

const std::vector<ggml::Matrix>& ExpertStore::load(ggml::Context& context, int32_t expert) {
    if (!request(expert)) throw Error(Code::internal, "all landings for experts are in use");
    try {
        take(0);
        send();
        while (!pages_->complete(expert) && failure_.empty()) {
            // What has arrived is packed while the rest is on its way.
            if (pages_->pack(context)) {
                take(0);
            } else {
                const double begin = now_s();
                if (!take(patience)) {
                    fail(Code::io, silent(),
                         format("the disk has not answered for %.0f s", patience));
                }
                counts_of(expert).waited_s += now_s() - begin;
            }
            send();
        }
        if (failure_.empty()) return pages_->matrices(context, expert);
    } catch (const Error& e) {
        fail(e.code(), *readers_[size_t(pages_->page(expert)[0].file)], e.what());
    }
    throw Error(failure_code_, failure_);
}

void ExpertStore::keep(int32_t expert, int64_t rows) {
    // Of blocks that are used in order none is worth more than another, at any time.
    pages_->keep(expert, shape().in_order ? 0 : rows);
    take(0);
    send();
}

void ExpertStore::begin(int64_t n_tokens) {
    // What was on its way at a fork is the parent's, and is read again here.
    if (!failure_.empty() || reads_of_ != ggml::process_generation()) reset();
    if (!failure_.empty()) throw Error(failure_code_, failure_);
    for (const ggml::File* file : files_) file->require_unchanged();
    pages_->drop_guesses();
    pages_->begin(int32_t(n_tokens));
    tokens_ += n_tokens;
    if (shape().in_order) read_ahead(0);
}

void ExpertStore::reset() {
    reads_of_ = kNobody;  // until all of this is done
    failure_.clear();
    pages_->stop();
    while (in_flight() > 0) {
        if (take(patience)) continue;
        // The disk may still write to frames: the next call fails, too, or finds the reads done.
        failure_.clear();
        fail(Code::io, silent(), "the disk does not answer");
        return;
    }
    failure_.clear();
    pages_->forget();
    reads_of_ = ggml::process_generation();
}

}  // namespace powerinfer
