// Reads by threads that wait for the disk: works everywhere.
#include "ggml/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "ggml/carver.h"
#include "ggml/status.h"
#include "parts.h"

namespace ggml {

namespace {

// Stacks of 8 MiB, the default, may get huge pages, 2 MiB a thread.
constexpr size_t kStack = 256 << 10;
// What a thread that only reads takes of its stack and in the kernel: 30 KB were measured.
constexpr uint64_t kThreadBytes = 40 << 10;

struct Arrays {
    uint8_t* scratch;    // [threads, kReadGap]; first, for its alignment
    Read* queue;         // [depth], a ring
    ReadDone* finished;  // [depth], a ring

    Arrays(Carver& carver, int threads, int depth) {
        carver.take(scratch, {threads, kReadGap});
        carver.take(queue, {depth});
        carver.take(finished, {depth});
    }
};

int threads_of(const ReaderOptions& o) {
    return std::min(o.threads, o.depth);
}

// The threads of one process, and what they share with the caller. A child of fork() abandons its
// copy: destroying it would wait for threads that are not there.
struct Team final : Abandoned {
    Arrays arrays;
    os::Handle file;
    int depth;
    uint32_t unit;
    uint64_t file_size;

    std::mutex mutex;
    std::condition_variable work, finish;
    int idle = 0;  // threads that wait for work
    bool waiting = false, stop = false;
    uint64_t queued = 0, taken = 0, done = 0, returned = 0;  // reads so far

    const unsigned made_in = process_generation();
    int n_threads = 0;
    os::Thread* threads[256];
    std::atomic<int> numbers{0};

    Team(const Arrays& arrays, os::Handle file, int depth, uint32_t unit, uint64_t file_size)
        : arrays(arrays), file(file), depth(depth), unit(unit), file_size(file_size) {}

    void run(uint8_t* scratch) {
        std::unique_lock<std::mutex> lock(mutex);
        for (bool wake = false;;) {
            if (wake && taken == queued) {
                finish.notify_one();
                wake = false;
            }
            while (taken == queued && !stop) {
                idle++;
                work.wait(lock);
                idle--;
            }
            if (taken == queued) return;
            Transfer t;
            t.begin(arrays.queue[taken++ % uint64_t(depth)], scratch, file_size);
            lock.unlock();
            // Without the lock, for which the caller would wait at once.
            if (wake) finish.notify_one();
            while (!t.over(os::read_at(file, t.offset, t.parts + t.first, t.end - t.first), unit)) {
            }
            lock.lock();
            arrays.finished[done++ % uint64_t(depth)] = {t.tag, t.error};
            wake = std::exchange(waiting, false);
        }
    }

    void start(int n) {
        int error = 0;
        while (error == 0 && n_threads < n) {
            error = os::start(
                [](void* self) {
                    Team& team = *static_cast<Team*>(self);
                    team.run(team.arrays.scratch + ptrdiff_t(kReadGap) * team.numbers++);
                },
                this, kStack, threads[n_threads]);
            if (error == 0) n_threads++;
        }
        if (error != 0 && n_threads == 0)  // fewer than wanted will do
            throw Error(Code::memory, "the system refused a thread to read with");
    }

    ~Team() override {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;  // threads first finish what is queued
        }
        work.notify_all();
        for (int i = 0; i < n_threads; i++) os::join(threads[i]);
    }

    static std::unique_ptr<Team> made(const Arrays& arrays, os::Handle file, int depth,
                                      uint32_t unit, uint64_t file_size, int n) {
        auto team = std::make_unique<Team>(arrays, file, depth, unit, file_size);
        team->start(n);
        return team;
    }
};

class ThreadsReader final : public Reader {
 public:
    ThreadsReader(os::Owned file, ReaderFacts facts, const ReaderOptions& o)
        : Reader(std::move(facts)),
          file_(std::move(file)),
          depth_(o.depth),
          n_threads_(threads_of(o)),
          arrays_("reading", n_threads_, depth_) {
        team_ = make();
    }

    ~ThreadsReader() override {
        if (is_copy()) abandon(std::move(team_));
    }

    int submit(const Read* reads, int n) override {
        if (is_copy()) {
            abandon(std::exchange(team_, make()));
            in_flight_ = 0;
        }
        n = std::max(0, std::min(n, depth_ - in_flight_));
        for (int i = 0; i < n; i++) check(reads[i]);
        if (n == 0) return 0;
        Team& t = *team_;
        int idle;
        {
            std::lock_guard<std::mutex> lock(t.mutex);
            for (int i = 0; i < n; i++) {
                t.arrays.queue[t.queued++ % uint64_t(depth_)] = reads[i];
            }
            idle = t.idle;
        }
        for (int i = std::min(n, idle); i > 0; i--) t.work.notify_one();
        in_flight_ += n;
        return n;
    }

    int owed() const override { return is_copy() ? 0 : in_flight_; }

    int done(ReadDone* out, int most, double wait_s) override {
        if (is_copy() || in_flight_ == 0 || most <= 0) return 0;
        Team& t = *team_;
        std::unique_lock<std::mutex> lock(t.mutex);
        if (t.done == t.returned && wait_s > 0) {
            const auto until = std::chrono::steady_clock::now() +
                               std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                   std::chrono::duration<double>(std::min(wait_s, 1e6)));
            t.waiting = true;
            while (t.done == t.returned) {
                t.waiting = true;
                if (t.finish.wait_until(lock, until) == std::cv_status::timeout) break;
            }
            t.waiting = false;
        }
        const int n = int(std::min<uint64_t>(uint64_t(most), t.done - t.returned));
        for (int i = 0; i < n; i++) out[i] = t.arrays.finished[t.returned++ % uint64_t(depth_)];
        in_flight_ -= n;
        return n;
    }

 private:
    bool is_copy() const { return team_ && team_->made_in != process_generation(); }
    std::unique_ptr<Team> make() {
        return Team::made(*arrays_, file_.get(), depth_, unit_of(facts_), facts_.size, n_threads_);
    }

    os::Owned file_;
    const int depth_, n_threads_;
    Carved<Arrays> arrays_;
    std::unique_ptr<Team> team_;  // destroyed before what it uses
};

}  // namespace

std::unique_ptr<Reader> make_threads(os::Owned file, ReaderFacts facts, const ReaderOptions& o) {
    facts.name = "threads";
    return std::make_unique<ThreadsReader>(std::move(file), std::move(facts), o);
}

uint64_t threads_memory(const ReaderOptions& o) {
    return carved_bytes<Arrays>(threads_of(o), o.depth) + sizeof(Team) +
           uint64_t(threads_of(o)) * kThreadBytes;
}

}  // namespace ggml
