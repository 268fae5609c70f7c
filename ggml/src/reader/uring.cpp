// Reads through io_uring, by its three system calls: less work for the processor than threads.
#include "parts.h"

// Android kills a process that asks for io_uring, so there it is not even tried.
#if defined(__linux__) && !defined(__ANDROID__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/syscall.h>
#endif

#if defined(IORING_FEAT_EXT_ARG) && defined(__NR_io_uring_setup)

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "ggml/carver.h"
#include "ggml/status.h"
#include "ggml/threads.h"

namespace ggml {

namespace {

using Clock = std::chrono::steady_clock;

// What the kernel keeps for a read in flight: the request, its pieces, and the block layer's part.
// All of a ring and its 128 reads took 170 KB.
constexpr uint64_t kKernelBytes = 2 << 10;
// What a wait with a limit (5.11) and waiting for nothing to be lost (5.5) need.
constexpr uint32_t kFeatures =
    IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE | IORING_FEAT_EXT_ARG;

template <typename T>
T load(const T* p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

template <typename T>
void store(T* p, T value) {
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

struct Map {
    uint8_t* data = nullptr;
    size_t size = 0;

    bool map(int fd, size_t bytes, off_t what) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
        if (p == MAP_FAILED) return false;
        data = static_cast<uint8_t*>(p);
        size = bytes;
        return true;
    }
    ~Map() {
        if (data) munmap(data, size);
    }
    template <typename T>
    T* at(uint32_t offset) const {
        return reinterpret_cast<T*>(data + offset);
    }
};

// The two queues that this process shares with the kernel.
struct Ring {
    os::Owned fd;
    Map queues, entries;
    uint32_t *tail = nullptr, *done_head = nullptr, *done_tail = nullptr;
    uint32_t mask = 0, done_mask = 0;
    io_uring_sqe* sqes = nullptr;
    io_uring_cqe* cqes = nullptr;
    uint32_t unsent = 0;  // queued, but not taken by the kernel yet
    const unsigned made_in = process_generation();

    // Returns an errno; 0: it works. ENOSYS also if the kernel is too old.
    int open(int depth) {
        io_uring_params p{};
        p.flags = IORING_SETUP_CLAMP;
        fd = os::Owned(int(syscall(__NR_io_uring_setup, unsigned(depth), &p)));
        if (fd.get() == os::kNoHandle) return errno;
        if ((p.features & kFeatures) != kFeatures || p.sq_entries < unsigned(depth)) return ENOSYS;
        const size_t a = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
        const size_t b = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
        if (!queues.map(int(fd.get()), std::max(a, b), off_t(IORING_OFF_SQ_RING)) ||
            !entries.map(int(fd.get()), p.sq_entries * sizeof(io_uring_sqe),
                         off_t(IORING_OFF_SQES)))
            return errno;
        tail = queues.at<uint32_t>(p.sq_off.tail);
        mask = *queues.at<uint32_t>(p.sq_off.ring_mask);
        done_head = queues.at<uint32_t>(p.cq_off.head);
        done_tail = queues.at<uint32_t>(p.cq_off.tail);
        done_mask = *queues.at<uint32_t>(p.cq_off.ring_mask);
        cqes = queues.at<io_uring_cqe>(p.cq_off.cqes);
        sqes = entries.at<io_uring_sqe>(0);
        for (uint32_t i = 0; i < p.sq_entries; i++)
            queues.at<uint32_t>(p.sq_off.array)[i] = i;  // entry i always stands in place i
        return 0;
    }

    // There is room: the queue has as many entries as reads may be in flight.
    void queue(int file, const Transfer& t, uint64_t slot) {
        io_uring_sqe& e = sqes[*tail & mask];
        std::memset(&e, 0, sizeof e);
        const os::Part* parts = t.parts + t.first;  // laid out like iovec
        const bool one = t.end - t.first == 1;
        e.opcode = one ? IORING_OP_READ : IORING_OP_READV;
        e.fd = file;
        e.off = t.offset;
        e.addr = one ? reinterpret_cast<uint64_t>(parts->to) : reinterpret_cast<uint64_t>(parts);
        e.len = one ? uint32_t(parts->bytes) : uint32_t(t.end - t.first);
        e.user_data = slot;
        store(tail, *tail + 1);
        unsent++;
    }

    bool has_done() const { return *done_head != load(done_tail); }

    // Hands over what is unsent and, if wait_s > 0, waits for something to be done. What the kernel
    // does not take now stays unsent. Returns 0 or an errno.
    int enter(double wait_s) {
        __kernel_timespec limit{};
        io_uring_getevents_arg arg{};
        arg.ts = reinterpret_cast<uint64_t>(&limit);
        unsigned flags = 0;
        if (wait_s > 0) {
            flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
            limit.tv_sec = int64_t(wait_s);
            limit.tv_nsec = int64_t((wait_s - double(limit.tv_sec)) * 1e9);
        }
        const long sent = syscall(__NR_io_uring_enter, int(fd.get()), unsent, wait_s > 0 ? 1u : 0u,
                                  flags, wait_s > 0 ? &arg : nullptr, sizeof arg);
        if (sent < 0) return errno;
        unsent -= uint32_t(sent);
        return 0;
    }
};

struct Arrays {
    uint8_t* scratch;  // [kReadGap], of all reads: nobody looks at it; first, for its alignment
    Transfer* slots;   // [depth]
    int32_t* free;     // [depth], a stack of slots without a read

    Arrays(Carver& carver, int depth) {
        carver.take(scratch, {kReadGap});
        carver.take(slots, {depth});
        carver.take(free, {depth});
    }
};

class UringReader final : public Reader {
 public:
    UringReader(ReaderFacts facts, int depth)
        : Reader(std::move(facts)), depth_(depth), arrays_("reading", depth) {}

    ~UringReader() override {
        ReadDone some[16];
        while (in_flight_ > 0 && !is_copy()) done(some, 16, 1);
    }

    // An errno, or 0.
    int start() {
        auto ring = std::make_unique<Ring>();
        if (const int error = ring->open(depth_)) return error;
        ring_ = std::move(ring);
        in_flight_ = 0;
        for (int i = 0; i < depth_; i++) arrays_->free[i] = i;
        return 0;
    }

    // Reads the file's beginning: a filter may allow io_uring_setup alone.
    int prove(int fd) {
        file_ = fd;
        const Memory memory(facts_.align, "a probing read");
        Read read;
        read.n_pieces = 1;
        read.pieces[0] = {memory.data(), facts_.align};
        ReadDone result;
        if (submit(&read, 1) != 1 || ring_->unsent > 0) {
            in_flight_ = 0;
            return error_ ? error_ : EAGAIN;
        }
        while (done(&result, 1, 10) == 0) {
        }
        return std::max(0, result.error);  // a file of fewer bytes is short, and readable
    }

    void keep(os::Owned file) { owned_ = std::move(file); }

    int submit(const Read* reads, int n) override {
        if (is_copy()) restart();
        n = std::max(0, std::min(n, depth_ - in_flight_));
        for (int i = 0; i < n; i++) check(reads[i]);
        if (n == 0) return 0;
        for (int i = 0; i < n; i++) {
            const int32_t slot = arrays_->free[depth_ - ++in_flight_];
            arrays_->slots[slot].begin(reads[i], arrays_->scratch, facts_.size);
            ring_->queue(file_, arrays_->slots[slot], uint64_t(slot));
        }
        send(0);
        return n;
    }

    int owed() const override { return is_copy() ? 0 : in_flight_; }

    int done(ReadDone* out, int most, double wait_s) override {
        if (is_copy() || in_flight_ == 0 || most <= 0) return 0;
        if (ring_->unsent > 0) send(0);
        int n = take(out, most);
        if (n > 0 || !(wait_s > 0)) return n;
        wait_s = std::min(wait_s, 1e6);
        const Clock::time_point begin = Clock::now();
        for (double left = wait_s; n == 0 && left > 0;) {
            send(left);
            n = take(out, most);
            left = wait_s - std::chrono::duration<double>(Clock::now() - begin).count();
        }
        return n;
    }

 private:
    bool is_copy() const { return ring_->made_in != process_generation(); }

    void restart() {
        if (const int error = start())
            throw Error(Code::io,
                        facts_.path + ": cannot be read through io_uring: " + os::reason(error));
    }

    void send(double wait_s) {
        error_ = ring_->enter(wait_s);
        // ETIME is the end of a wait, EINTR a signal. With any other the kernel cannot take more
        // now; it can later. A moment's rest, for a caller that waits in a loop.
        if (wait_s > 0 && error_ != 0 && error_ != ETIME && error_ != EINTR)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
    }

    // Takes what is done from the ring. The rest of reads that were interrupted goes back to it.
    int take(ReadDone* out, int most) {
        const uint32_t unit = unit_of(facts_);
        bool again = false;
        int n = 0;
        while (n < most && ring_->has_done()) {
            const io_uring_cqe& c = ring_->cqes[*ring_->done_head & ring_->done_mask];
            const int32_t slot = int32_t(c.user_data);
            Transfer& t = arrays_->slots[slot];
            const bool over = t.over(c.res, unit);
            store(ring_->done_head, *ring_->done_head + 1);
            if (over) {
                out[n++] = {t.tag, t.error};
                arrays_->free[depth_ - in_flight_--] = slot;
            } else {
                ring_->queue(file_, t, uint64_t(slot));
                again = true;
            }
        }
        if (again) send(0);
        return n;
    }

    const int depth_;
    int file_ = -1, error_ = 0;
    os::Owned owned_;
    Carved<Arrays> arrays_;
    std::unique_ptr<Ring> ring_;
};

}  // namespace

std::unique_ptr<Reader> make_uring(os::Owned& file, const ReaderFacts& facts,
                                   const ReaderOptions& o, std::string& why) {
    ReaderFacts own = facts;
    own.name = "uring";
    auto reader = std::make_unique<UringReader>(std::move(own), o.depth);
    int error = reader->start();
    if (error == ENOSYS) {
        why = "the kernel is too old or has none";
        return nullptr;
    }
    if (error == 0) error = reader->prove(int(file.get()));
    if (error != 0) {
        why = os::reason(error);
        return nullptr;
    }
    reader->keep(std::move(file));
    return reader;
}

uint64_t uring_memory(const ReaderOptions& o) {
    const uint64_t entry = sizeof(io_uring_sqe) + sizeof(uint32_t) + 2 * sizeof(io_uring_cqe);
    // Entries are rounded up to a power of two; the queues have a head of less than a page.
    const uint64_t ring = size_rounded_up(2 * uint64_t(o.depth) * entry, 4096) + 3 * 4096;
    return carved_bytes<Arrays>(o.depth) + ring + uint64_t(o.depth) * kKernelBytes;
}

}  // namespace ggml

#else

namespace ggml {

std::unique_ptr<Reader> make_uring(os::Owned&, const ReaderFacts&, const ReaderOptions&,
                                   std::string& why) {
    why = "this build has none";
    return nullptr;
}

uint64_t uring_memory(const ReaderOptions&) {
    return 0;
}

}  // namespace ggml

#endif
