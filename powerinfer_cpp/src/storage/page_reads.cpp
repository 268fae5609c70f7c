#include "storage/page_reads.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr unsigned kNobody = ~0u;  // no process (ggml::process_generation)

}  // namespace

// What reads of a disk that does not answer may still write to.
struct PageReads::Landing : ggml::Abandoned {
    std::vector<std::shared_ptr<void>> targets;
    std::vector<std::unique_ptr<ggml::Reader>> readers;  // these end first
};

PageReads::PageReads(Policy& policy, std::vector<std::unique_ptr<ggml::Reader>> readers,
                     std::vector<std::shared_ptr<void>> targets)
    : policy_(policy), landing_(std::make_unique<Landing>()) {
    landing_->targets = std::move(targets);
    landing_->readers = std::move(readers);
}

PageReads::~PageReads() {
    bool done = true;
    for (const auto& reader : readers()) done = ggml::drain(*reader, patience) && done;
    if (!done) ggml::abandon(std::move(landing_));
}

const std::vector<std::unique_ptr<ggml::Reader>>& PageReads::readers() const {
    return landing_->readers;
}

int PageReads::owed() const {
    int n = 0;
    for (const auto& reader : readers()) n += reader->owed();
    return n;
}

void PageReads::fail(Code code, int32_t file, const std::string& what) {
    if (failed()) return;
    failure_ = std::make_exception_ptr(Error(code, reader(file).path() + ": " + what));
}

// The file, if its reader owes something; or else the first one whose reader does.
int32_t PageReads::owing(int32_t file) const {
    if (file >= 0 && reader(file).owed() > 0) return file;
    for (int32_t other = 0; other < n_files(); other++) {
        if (reader(other).owed() > 0) return other;
    }
    return 0;
}

bool PageReads::take_some(int32_t file, double wait_s) {
    constexpr int kAtOnce = 64;
    ggml::ReadDone done[kAtOnce];
    const int n = readers()[size_t(file)]->done(done, kAtOnce, wait_s);
    for (int i = 0; i < n; i++) policy_.read_done(file, done[i]);
    return n > 0;
}

// Takes finished reads of all files. Waits for those of this one, unless others brought something:
// they may lie on a disk that is slower, or silent. false: there were none.
bool PageReads::take(int32_t file, double wait_s) {
    bool any = false;
    for (int32_t other = 0; other < n_files(); other++) {
        if (other != file && reader(other).owed() > 0) any = take_some(other, 0) || any;
    }
    return (file >= 0 && take_some(file, any ? 0 : wait_s)) || any;
}

void PageReads::wait(int32_t file) {
    file = owing(file);
    if (take(file, patience)) return;
    fail(Code::io, file, format("the disk has not answered for %.0f s", patience));
}

bool PageReads::settle() {
    reads_of_ = kNobody;  // until all of this is done
    failure_ = nullptr;
    while (owed() > 0) {
        const int32_t file = owing(-1);
        if (take(file, patience)) continue;
        failure_ = nullptr;
        fail(Code::io, file, "the disk does not answer");
        return false;
    }
    failure_ = nullptr;
    reads_of_ = ggml::process_generation();
    return true;
}

}  // namespace powerinfer
