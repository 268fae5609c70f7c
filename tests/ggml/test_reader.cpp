// Asynchronous reads: both paths give the file's bytes, whatever is read into what; what the system
// refuses, and files that end early. Also for -fsanitize=thread.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "check.h"
#include "faulty_reader.h"
#include "ggml/reader.h"
#include "in_child.h"
#include "temporary.h"

using namespace ggml;
namespace fs = std::filesystem;

namespace {

fs::path folder;
std::vector<uint8_t> content;  // of the file
std::string path;
bool has_uring = false;

constexpr size_t kSize = (4 << 20) + 512 * 5 + 100;  // ends inside a block

ReaderOptions options(const std::string& io, bool direct = true, uint32_t align = 512) {
    ReaderOptions o;
    o.path = io;
    o.direct = direct;
    o.align = align;
    return o;
}

std::vector<std::string> paths() {
    return has_uring ? std::vector<std::string>{"threads", "uring"}
                     : std::vector<std::string>{"threads"};
}

Read one(uint64_t offset, uint8_t* to, uint32_t bytes, uint64_t tag = 0) {
    Read r;
    r.offset = offset;
    r.tag = tag;
    r.n_pieces = 1;
    r.pieces[0] = {to, bytes};
    return r;
}

// Waits for all that is in flight: tag -> error.
std::map<uint64_t, int32_t> all_done(Reader& reader, int most = 16) {
    std::map<uint64_t, int32_t> found;
    std::vector<ReadDone> some;
    some.resize(size_t(most));
    while (reader.in_flight() > 0) {
        const int before = reader.in_flight();
        const int n = reader.done(some.data(), most, 30);
        CHECK(n > 0 && n <= most && reader.in_flight() == before - n);
        if (n <= 0) break;
        for (int i = 0; i < n; i++) {
            CHECK(found.count(some[size_t(i)].tag) == 0);
            found[some[size_t(i)].tag] = some[size_t(i)].error;
        }
    }
    return found;
}

int32_t read_one(Reader& reader, const Read& read) {
    CHECK(reader.submit(&read, 1) == 1);
    return all_done(reader)[read.tag];
}

// Random reads into an arena, with gaps, of 1 to 16 pieces of which some are neighbours in memory.
// Each read has its own part of the arena, so that wrong places show.
bool same_bytes(Reader& reader, uint64_t seed, int n_reads, int most_at_once) {
    std::mt19937_64 random(seed);
    const uint64_t unit = reader.align();
    constexpr size_t kRoom = 17 * 4 * 4096;
    const Memory arena(size_t(n_reads) * kRoom, "a test");
    std::fill_n(arena.data(), arena.size(), uint8_t(0xEE));
    std::vector<uint8_t> expected(arena.data(), arena.data() + arena.size());
    std::vector<Read> reads;
    for (int i = 0; i < n_reads; i++) {
        Read r;
        r.tag = uint64_t(i) * 7 + 1;
        r.n_pieces = int32_t(1 + random() % kReadPieces);
        size_t to = size_t(i) * kRoom;
        for (int32_t p = 0; p < r.n_pieces; p++) {
            if (random() % 2) to += unit;  // else a neighbour of the one before
            const uint32_t bytes = uint32_t(unit * (1 + random() % 3));
            const bool gap = random() % 4 == 0;
            r.pieces[p] = {gap ? nullptr : arena.data() + to, bytes};
            if (!gap) to += bytes;
        }
        r.offset = random() % ((kSize - r.bytes()) / unit) * unit;
        uint64_t at = r.offset;
        for (int32_t p = 0; p < r.n_pieces; at += r.pieces[p++].bytes)
            if (r.pieces[p].to)
                std::memcpy(&expected[size_t(r.pieces[p].to - arena.data())], &content[at],
                            r.pieces[p].bytes);
        reads.push_back(r);
    }
    std::set<uint64_t> tags;
    bool sound = true;
    ReadDone some[32];
    for (size_t next = 0; next < reads.size() || reader.in_flight() > 0;) {
        const int n = int(std::min<size_t>(random() % 20, reads.size() - next));
        next += size_t(reader.submit(&reads[next], n));
        sound = sound && reader.in_flight() <= most_at_once;
        const int got = reader.done(some, int(1 + random() % 32), random() % 3 ? 0.01 : 0);
        for (int i = 0; i < got; i++)
            sound = sound && some[i].error == 0 && tags.insert(some[i].tag).second;
    }
    return sound && tags.size() == reads.size() &&
           std::memcmp(expected.data(), arena.data(), arena.size()) == 0;
}

void bytes() {
    for (const std::string& io : paths()) {
        for (bool direct : {true, false}) {
            for (uint32_t align : {512u, 4096u}) {
                for (int depth : {1, 7, 128}) {
                    ReaderOptions o = options(io, direct, align);
                    o.depth = depth;
                    const auto reader = open_reader(path, o);
                    CHECK(reader->name() == io && reader->align() == align);
                    CHECK(reader->size() == kSize && reader->path() == path);
                    CHECK(reader->direct() <= direct);
                    CHECK(reader->direct() == direct || !reader->note().empty());
                    CHECK(same_bytes(*reader, align + uint64_t(depth), 150, depth));
                }
            }
        }
    }
}

void depth() {
    const Memory memory(64 * 512, "a test");
    for (const std::string& io : paths()) {
        ReaderOptions o = options(io);
        o.depth = 5;
        const auto reader = open_reader(path, o);
        ReadDone some[64];
        CHECK(reader->done(some, 64, 100) == 0);  // at once: nothing is in flight
        std::vector<Read> reads;
        for (uint64_t i = 0; i < 64; i++)
            reads.push_back(one(512 * i, memory.data() + 512 * i, 512, i));
        CHECK(reader->submit(reads.data(), 64) == 5 && reader->in_flight() == 5);
        CHECK(reader->submit(reads.data(), 1) == 0 && reader->submit(reads.data(), 0) == 0);
        CHECK(reader->done(some, 0, 1) == 0);
        const int n = reader->done(some, 2, 30);
        CHECK(n >= 1 && n <= 2);
        CHECK(reader->submit(&reads[5], 59) == n);
        CHECK(int(all_done(*reader, 3).size()) == 5);
        // A reader with reads in flight waits for them when it ends.
        CHECK(reader->submit(reads.data(), 5) == 5);
    }
    CHECK(std::memcmp(memory.data(), content.data(), 5 * 512) == 0);
}

void refused() {
    const Memory memory(kReadGap + 4096, "a test");
    uint8_t* to = memory.data();
    for (const std::string& io : paths()) {
        const auto reader = open_reader(path, options(io));
        const auto refuses = [&](const Read& r) { CHECK_THROWS(argument, reader->submit(&r, 1)); };
        refuses(one(1, to, 512));
        refuses(one(0, to + 8, 512));
        refuses(one(0, to, 513));
        refuses(one(0, to, 0));
        refuses(one(0, nullptr, kReadGap + 512));
        refuses(one(UINT64_MAX - 511, to, 512));
        refuses(Read());
        Read many = one(0, to, 512);
        many.n_pieces = kReadPieces + 1;
        refuses(many);
        const Read pair[2] = {one(0, to, 512), one(1, to, 512)};
        CHECK_THROWS(argument, reader->submit(pair, 2));
        CHECK(reader->in_flight() == 0);  // none was taken
        CHECK(read_one(*reader, one(0, nullptr, kReadGap)) == 0);
        CHECK(read_one(*reader, one(512, to, 512)) == 0);
        CHECK(std::memcmp(to, &content[512], 512) == 0);
    }
    ReaderOptions bad;
    bad.align = 256;
    CHECK_THROWS(argument, open_reader(path, bad));
    bad.align = 1536;
    CHECK_THROWS(argument, open_reader(path, bad));
    bad = {};
    bad.depth = 0;
    CHECK_THROWS(argument, open_reader(path, bad));
    bad = {};
    bad.threads = 1000;
    CHECK_THROWS(argument, open_reader(path, bad));
    CHECK_THROWS(argument, open_reader(path, options("aio")));
    CHECK_THROWS(io, open_reader((folder / "missing").string()));
    CHECK_THROWS(io, open_reader(folder.string()));
    CHECK_THROWS(io, open_reader("/dev/null"));
}

void variable() {
    setenv("POWERINFER_IO", "threads", 1);
    CHECK(open_reader(path)->name() == std::string("threads"));
    CHECK(open_reader(path)->note().find("io_uring") == std::string::npos);  // as it was asked for
    setenv("POWERINFER_IO", "uring", 1);
    if (has_uring) CHECK(open_reader(path)->name() == std::string("uring"));
    CHECK(open_reader(path, options("threads"))->name() == std::string("threads"));
    setenv("POWERINFER_IO", "URING", 1);
    CHECK_THROWS(argument, open_reader(path));
    CHECK_THROWS(argument, Reader::memory({}));
    setenv("POWERINFER_IO", "", 1);
    CHECK(open_reader(path)->name() == std::string(has_uring ? "uring" : "threads"));
    unsetenv("POWERINFER_IO");
    setenv("ANDROID_ROOT", "/system", 1);
    CHECK(open_reader(path)->name() == std::string("threads"));
    unsetenv("ANDROID_ROOT");
}

// Files that are cut short while they are open, and memory that is not there.
void errors() {
    const Memory memory(16384, "a test");
    const std::string cut = (folder / "cut").string();
    for (const std::string& io : paths()) {
        for (bool direct : {true, false}) {
            fs::remove(cut);
            fs::copy_file(path, cut);
            const auto reader = open_reader(cut, options(io, direct));
            CHECK(read_one(*reader, one(100 * 512, memory.data(), 8192)) == 0);
            // The end, inside a block: a read of whole blocks may ask for more than there is.
            const uint64_t end = kSize / 512 * 512;
            CHECK(read_one(*reader, one(end - 512, memory.data(), 1024)) == 0);
            CHECK(read_one(*reader, one(end - 512, memory.data(), 4096)) == 0);
            CHECK(read_one(*reader, one(end + 512, memory.data(), 512)) == kShortRead);
            CHECK(read_one(*reader, one(uint64_t(1) << 40, memory.data(), 512)) == kShortRead);
            for (uint64_t size : {uint64_t(65536), uint64_t(65536 - 4096 + 100), uint64_t(0)}) {
                CHECK(truncate(cut.c_str(), off_t(size)) == 0);
                const int32_t before = read_one(*reader, one(0, memory.data(), 16384));
                CHECK(before == (size == 0 ? kShortRead : 0));
                CHECK(read_one(*reader, one(65536 - 8192, memory.data(), 16384)) == kShortRead);
                CHECK(read_one(*reader, one(65536, memory.data(), 512)) == kShortRead);
            }
            CHECK(fs::remove(cut));  // reads go on
            CHECK(read_one(*reader, one(0, memory.data(), 512)) == kShortRead);
        }
        void* nowhere = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const auto reader = open_reader(path, options(io));
        CHECK(read_one(*reader, one(0, static_cast<uint8_t*>(nowhere), 4096)) == EFAULT);
        CHECK(read_one(*reader, one(0, memory.data(), 4096)) == 0);
        munmap(nowhere, 8192);
    }
}

// Signals that interrupt system calls, every 100 microseconds.
void signals() {
    struct sigaction handler {
    }, old{};
    handler.sa_handler = [](int) {};  // without SA_RESTART
    sigaction(SIGALRM, &handler, &old);
    const itimerval often{{0, 100}, {0, 100}}, never{};
    for (const std::string& io : paths()) {
        setitimer(ITIMER_REAL, &often, nullptr);
        for (bool direct : {true, false})
            CHECK(same_bytes(*open_reader(path, options(io, direct)), 9, 300, 128));
        setitimer(ITIMER_REAL, &never, nullptr);
    }
    sigaction(SIGALRM, &old, nullptr);
}

#if !defined(__SANITIZE_THREAD__)  // see in_child.h
// From now on this process is refused a system call.
bool refuse(uint32_t call) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program{4, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

void without_uring() {
#if defined(__NR_io_uring_setup)
    for (uint32_t call : {uint32_t(__NR_io_uring_setup), uint32_t(__NR_io_uring_enter)}) {
        CHECK(in_child([&] {
            if (!refuse(call)) return true;  // no filters here: nothing is tested
            CHECK_THROWS(io, open_reader(path, options("uring")));
            const auto reader = open_reader(path);
            CHECK(reader->name() == std::string("threads"));
            CHECK(reader->note().find("no io_uring: Operation not permitted") != std::string::npos);
            return same_bytes(*reader, 3, 50, 128);
        }));
    }
#endif
}

// A child reads with the reader of its parent, whose reads go on.
void forks() {
    const Memory memory(64 * 4096, "a test");
    for (const std::string& io : paths()) {
        auto reader = open_reader(path, options(io));
        CHECK(same_bytes(*reader, 1, 20, 128));
        CHECK(in_child([&] {
            reader.reset();
            return true;
        }));
        std::vector<Read> reads;
        for (uint64_t i = 0; i < 64; i++)
            reads.push_back(one(4096 * i, memory.data() + 4096 * i, 4096, i));
        CHECK(reader->submit(reads.data(), 64) == 64);
        CHECK(in_child([&] {
            bool sound = reader->owed() == 0 && drain(*reader, 60);  // the parent gets them
            sound = sound && same_bytes(*reader, 2, 50, 128) && reader->in_flight() == 0;
            reader.reset();
            return sound;
        }));
        CHECK(all_done(*reader).size() == 64);
        CHECK(std::memcmp(memory.data(), content.data(), memory.size()) == 0);
    }
}

#endif

// ---- the reader with faults ---------------------------------------------------------------------

void drains() {
    const Memory memory(8 * 4096, "a test");
    for (const std::string& io : paths()) {
        const auto reader = open_reader(path, options(io));
        for (uint64_t i = 0; i < 8; i++) {
            const Read read = one(4096 * i, memory.data() + 4096 * i, 4096, i);
            CHECK(reader->submit(&read, 1) == 1);
        }
        CHECK(drain(*reader, 10) && reader->in_flight() == 0 && reader->owed() == 0);
        CHECK(!std::memcmp(memory.data(), content.data(), size_t(memory.size())));
    }
    faulty::Reader silent(path, {}, faulty::once(1, faulty::Fault::never));
    for (uint64_t i = 0; i < 2; i++) {
        const Read read = one(4096 * i, memory.data() + 4096 * i, 4096, i);
        CHECK(silent.submit(&read, 1) == 1);
    }
    CHECK(!drain(silent, 0.01) && silent.in_flight() == 1);
}

void faults() {
    CHECK(same_bytes(*std::make_unique<faulty::Reader>(path, faulty::Order()), 1, 300, 128));
    faulty::Order small;
    small.depth = 3;
    CHECK(same_bytes(*std::make_unique<faulty::Reader>(path, small), 2, 50, 3));

    // Orders of completion for a seed: the same for the same, others for others.
    const Memory memory(100 * 512, "a test");
    const auto order_of = [&](uint64_t seed, bool shuffled, const faulty::Choose& choose) {
        faulty::Order order;
        order.seed = seed;
        order.shuffled = shuffled;
        faulty::Reader reader(path, order, choose);
        for (uint64_t i = 0; i < 100; i++) {
            const Read r = one(i * 512, memory.data() + i * 512, 512, i);
            CHECK(reader.submit(&r, 1) == 1);
        }
        std::vector<uint64_t> tags;
        ReadDone some[4];
        for (int n; (n = reader.done(some, 4, 1e-3)) > 0;)
            for (int i = 0; i < n; i++)
                tags.push_back(some[i].tag << 8 | uint64_t(some[i].error & 255));
        return tags;
    };
    CHECK(order_of(1, true, nullptr) == order_of(1, true, nullptr));
    CHECK(order_of(1, true, nullptr) != order_of(2, true, nullptr));
    const auto ordered = order_of(1, false, nullptr);
    CHECK(std::is_sorted(ordered.begin(), ordered.end()));
    CHECK(order_of(1, false, faulty::once(0, faulty::Fault::late)).front() == 1 << 8);
    CHECK(order_of(1, false, faulty::once(0, faulty::Fault::late)).size() == 100);
    const auto errors = faulty::at_random(5, 0.2, {faulty::Fault::eio, faulty::Fault::cut});
    int eio = 0, cut = 0;
    for (uint64_t tag : order_of(1, true, errors)) {
        eio += (tag & 255) == EIO;
        cut += (tag & 255) == uint64_t(kShortRead & 255);
    }
    CHECK(eio > 5 && cut > 5 && eio + cut < 70);

    const auto differs = [&](faulty::Fault fault, int32_t error) {
        faulty::Reader reader(path, faulty::Order(), faulty::once(1, fault));
        CHECK(read_one(reader, one(0, memory.data(), 4096)) == 0);
        CHECK(std::memcmp(memory.data(), content.data(), 4096) == 0);
        CHECK(read_one(reader, one(0, memory.data(), 4096)) == error);
        CHECK(reader.faults() == 1 && reader.submitted() == 2);
        int bits = 0;
        for (size_t i = 0; i < 4096; i++)
            bits += __builtin_popcount(unsigned(memory.data()[i] ^ content[i]));
        return bits;
    };
    CHECK(differs(faulty::Fault::flipped, 0) == 1);
    CHECK(differs(faulty::Fault::cut, kShortRead) > 2048);
    differs(faulty::Fault::eio, EIO);
    faulty::Reader never(path, faulty::Order(), faulty::once(0, faulty::Fault::never));
    const Read r = one(0, memory.data(), 512);
    ReadDone result;
    CHECK(never.submit(&r, 1) == 1 && never.done(&result, 1, 0.01) == 0 && never.in_flight() == 1);
}

}  // namespace

int main() {
    const TemporaryFolder temporary("test_reader");
    folder = temporary.path();
    path = (folder / "file").string();
    std::mt19937_64 random(1);
    content.resize(kSize);
    for (uint8_t& byte : content) byte = uint8_t(random());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), std::streamsize(content.size()));
    unsetenv("POWERINFER_IO");
    const std::string best = open_reader(path)->name();
    has_uring = best == "uring";
    std::printf("io: %s %s\n", best.c_str(), open_reader(path)->note().c_str());

    bytes();
    depth();
    refused();
    variable();
    errors();
    signals();
#if !defined(__SANITIZE_THREAD__)
    without_uring();
    forks();
#endif
    drains();
    faults();
    return check::summary("test_reader");
}
