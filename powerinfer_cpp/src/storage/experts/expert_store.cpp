#include "storage/experts/expert_store.h"

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

ExpertStore::ExpertStore(std::vector<const ggml::File*> files,
                         std::vector<std::unique_ptr<ggml::Reader>> readers, const PageShape& shape,
                         std::vector<StoredPage> experts)
    : counts(size_t(shape.n_parts())),
      files_(std::move(files)),
      pages_(std::make_shared<ExpertPages>(shape, std::move(experts), align_of(readers),
                                           shape.in_order ? "block" : "expert")),
      reads_(*this, std::move(readers), {pages_}),
      full_(size_t(reads_.n_files())),
      resident_(size_t(StoreStatus::bytes(shape.n_blocks()))) {}

void ExpertStore::send() {
    ggml::Read read;
    int32_t file = 0;
    full_.assign(full_.size(), false);
    for (const bool guesses : {false, true}) {
        while (!reads_.failed() && pages_->next(read, file, guesses, full_)) {
            // What turns out to be wrong shall not keep the disk from what is needed then.
            if (guesses && reads_.owed() >= kGuessedReads) return;
            // A disk that is slower does not keep the others waiting.
            if (reads_.submit(file, &read, 1) == 0) {
                full_[size_t(file)] = true;
                continue;
            }
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

void ExpertStore::read_done(int32_t file, const ggml::ReadDone& done) {
    const int32_t expert = pages_->done(done.tag, done.error != 0);
    if (!done.error || expert < 0) return;
    reads_.fail(Code::io, file,
                done.error == ggml::kShortRead
                    ? "the file ends before the weights that it had when it was opened"
                    : format("reading %s %d failed: %s", shape().in_order ? "block" : "expert",
                             expert, std::strerror(done.error)));
}

// The file that brings what an expert lacks; -1: nothing of that has been sent yet.
int32_t ExpertStore::awaited(int32_t expert) const {
    const StoredPage& page = pages_->page(expert);
    for (size_t k = 0; k < page.size(); k++) {
        const int32_t file = page[k].file;
        if (!pages_->arrived(expert, k) && reads_.reader(file).owed() > 0) return file;
    }
    return -1;
}

void ExpertStore::look(StoreStatus& to) {
    to.first_slots = shape().slots(), to.first_used = used();
    to.resident = resident_.data();
    std::fill(resident_.begin(), resident_.end(), uint8_t(0));
    for (int32_t i = 0; i < int32_t(shape().n_blocks()); i++) {
        resident_[size_t(i / 8)] |= uint8_t(!absent(i) << i % 8);
    }
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
        // What has arrived is packed while the rest is on its way.
        counts_of(expert).waited_s += reads_.wait_until([&] { return pages_->complete(expert); },
                                                        [&] { return pages_->pack(context); },
                                                        [&] { return awaited(expert); });
        reads_.require();
        return pages_->matrices(context, expert);
    } catch (const Error& e) {
        reads_.fail(e.code(), pages_->page(expert)[0].file, e.what());
        reads_.require();
        throw;
    }
}

void ExpertStore::keep(int32_t expert, int64_t rows) noexcept {
    // Of blocks that are used in order none is worth more than another, at any time.
    pages_->keep(expert, shape().in_order ? 0 : rows);
    try {
        reads_.poll();
    } catch (...) {
        reads_.fail();
    }
}

void ExpertStore::begin(int64_t n_tokens) {
    if (reads_.unsettled()) reset();
    reads_.require();
    for (const ggml::File* file : files_) file->require_unchanged();
    pages_->drop_guesses();
    pages_->begin(int32_t(n_tokens));
    tokens_ += n_tokens;
    if (shape().in_order) read_ahead(0);
}

void ExpertStore::reset() {
    pages_->stop();
    if (reads_.settle()) pages_->forget();
}

}  // namespace powerinfer
