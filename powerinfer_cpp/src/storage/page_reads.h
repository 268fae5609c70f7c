// The reads of a store: its readers, what failed first, and how long a disk may be silent. Which
// reads there are, and where their bytes go, is the store's affair (store.h, expert_store.h).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ggml/reader.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "storage/store_counts.h"

namespace powerinfer {

class PageReads {
 public:
    class Policy {
     public:
        // Submits what is to be read, as much as the readers take.
        virtual void send() = 0;
        // A read of a file is done.
        virtual void read_done(int32_t file, const ggml::ReadDone& done) = 0;

     protected:
        ~Policy() = default;
    };
    // A file is a reader's number. targets: the memory that reads write to. If the disk is silent
    // at the end it may still write there later, so the readers and targets are kept for ever then.
    PageReads(Policy& policy, std::vector<std::unique_ptr<ggml::Reader>> readers,
              std::vector<std::shared_ptr<void>> targets);
    ~PageReads();
    PageReads(const PageReads&) = delete;
    PageReads& operator=(const PageReads&) = delete;

    const ggml::Reader& reader(int32_t file = 0) const { return *readers()[size_t(file)]; }
    int32_t n_files() const { return int32_t(readers().size()); }
    int submit(int32_t file, const ggml::Read* reads, int n) {
        return readers()[size_t(file)]->submit(reads, n);
    }
    int owed() const;  // reads in flight that this process gets

    // Takes finished reads, and submits more.
    void poll() {
        take(-1, 0);
        policy_.send();
    }
    // Until done(), or something has failed: does work(), which says whether there was any, and
    // where there is none waits for the reader that awaited() names (-1: whichever is the first to
    // owe something). Returns the seconds that it waited.
    template <typename Done, typename Work, typename Awaited>
    double wait_until(const Done& done, const Work& work, const Awaited& awaited) {
        double waited_s = 0;
        poll();
        while (!done() && !failed()) {
            if (work()) {
                poll();
                continue;
            }
            const double begin = now_s();
            wait(awaited());
            policy_.send();
            waited_s += now_s() - begin;
        }
        return waited_s;
    }

    // The first failure ends the call: nothing is sent after it.
    bool failed() const { return failure_ != nullptr; }
    void fail(ggml::Code code, int32_t file, const std::string& what);
    // The same of an exception that is being handled.
    void fail() noexcept {
        if (!failed()) failure_ = std::current_exception();
    }
    void require() const {  // throws it
        if (failed()) std::rethrow_exception(failure_);
    }
    // Has something failed, or is what was on its way at a fork the parent's?
    bool unsettled() const { return failed() || reads_of_ != ggml::process_generation(); }
    // After an error, when no more is to be sent: waits for reads in flight, and forgets the
    // failure. false: the disk is silent and may still write to the targets, so the next call
    // fails, too, or finds the reads done.
    bool settle();

    // A disk that does not answer for so many seconds has failed. Throttled disks were seen to
    // pause for 60 ms.
    double patience = 10;

 private:
    struct Landing;

    const std::vector<std::unique_ptr<ggml::Reader>>& readers() const;
    int32_t owing(int32_t file) const;
    bool take(int32_t file, double wait_s);
    bool take_some(int32_t file, double wait_s);
    void wait(int32_t file);

    Policy& policy_;
    std::unique_ptr<Landing> landing_;  // made early: at the end no memory may be left
    std::exception_ptr failure_;
    // The process (ggml::process_generation) that gets the reads in flight.
    unsigned reads_of_ = ggml::process_generation();
};

}  // namespace powerinfer
