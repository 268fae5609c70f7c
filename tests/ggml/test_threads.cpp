// The thread pool: every piece runs once, for all sizes; regions in quick succession; pools created
// and destroyed. Also for -fsanitize=thread: results are written without atomics wherever the pool
// guarantees that this is safe.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "ggml/threads.h"
#include "in_child.h"
#include "temporary.h"

using namespace ggml;

namespace {

// Runs one region over [0, n): is every index visited once, in pieces that start at multiples of
// grain, by existing threads? Plain integers, so that two threads on one piece would be a race.
bool complete(Threads& threads, int64_t n, int64_t grain) {
    std::vector<int> visits(size_t(n > 0 ? n : 0), 0);
    std::atomic<bool> sound{true};
    threads.run(n, grain, [&](int64_t begin, int64_t end, int thread) {
        if (begin < 0 || end > n || begin >= end || end - begin > grain || begin % grain != 0 ||
            thread < 0 || thread >= threads.active())
            sound = false;
        else
            for (int64_t i = begin; i < end; i++) visits[size_t(i)]++;
    });
    for (int v : visits)
        if (v != 1) return false;
    return sound;
}

void test_sizes() {
    // 17 and 64 are more threads than the cores of most machines that build this.
    for (int size : {1, 2, 3, 4, 7, 17, 64}) {
        Threads threads(size);
        CHECK(threads.size() == size);
        CHECK(threads.active() == size);
        for (int64_t n : {-1, 0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 4099}) {
            for (int64_t grain : {1, 2, 3, 16, 64, 5000}) CHECK(complete(threads, n, grain));
        }
    }
}

void test_bad_sizes() {
    for (int size : {0, -1, -1000000, 513, 1 << 30}) CHECK_THROWS(argument, Threads(size));
    const int n = default_threads();
    CHECK(n >= 1 && n <= 512);
    CHECK(complete(*std::make_unique<Threads>(n), 1000, 7));
}

#ifdef __linux__
// A made-up machine, as the kernel describes one.
class Machine {
 public:
    // allowed: the affinity mask, "0-3,8"; "": this process's own.
    explicit Machine(const std::string& allowed) {
        write("proc/thread-self/status", "Name:\tx\nCpus_allowed_list:\t" + allowed + "\n");
    }
    // Cores from processor `first` on, whose second processors, if any, begin at `second`.
    // capacity: 0 if the kernel does not tell it.
    void cores(int n, int first, int second, long capacity = 0) {
        for (int i = 0; i < n; i++) {
            const std::string a = std::to_string(first + i), b = std::to_string(second + i);
            for (const std::string& cpu : {a, b}) {
                if (cpu == b && second < 0) continue;
                const std::string folder = "sys/devices/system/cpu/cpu" + cpu;
                const std::string list = second < 0 ? a : a + "," + b;
                write(folder + "/topology/thread_siblings_list", list + "\n");
                if (capacity) write(folder + "/cpu_capacity", std::to_string(capacity) + "\n");
            }
        }
    }
    void write(const std::string& name, const std::string& text) {
        const auto path = root_.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    int threads() const { return default_threads(root_.path().string()); }
    int used(int n) const { return threads_used(n, root_.path().string()); }

 private:
    const TemporaryFolder root_{"test_threads"};
};

void test_defaults() {
    {
        Machine one("0-1");  // also a small virtual machine: its processors are one core
        one.cores(1, 0, 1);
        CHECK(one.threads() == 2 && one.used(0) == 2 && one.used(1) == 1 && one.used(9) == 2);
    }
    {
        Machine alone("0");
        alone.cores(1, 0, -1);
        CHECK(alone.threads() == 1 && alone.used(2) == 1);
    }
    {
        Machine laptop("0-15");
        laptop.cores(8, 0, 8);
        CHECK(laptop.threads() == 8 && laptop.used(0) == 8);
        CHECK(laptop.used(12) == 12 && laptop.used(17) == 16 && laptop.used(512) == 16);
    }
    {
        Machine hybrid("0-23");  // 8 large cores with two processors each, 8 small ones
        hybrid.cores(8, 0, 8);
        hybrid.cores(8, 16, -1);
        CHECK(hybrid.threads() == 16);
        hybrid.cores(8, 0, 8, 1024);
        hybrid.cores(8, 16, -1, 650);  // worth waiting for
        CHECK(hybrid.threads() == 16);
        hybrid.cores(8, 16, -1, 400);
        CHECK(hybrid.threads() == 8 && hybrid.used(100) == 24);
    }
    {
        Machine sockets("0-127");  // two with 32 cores each
        sockets.cores(64, 0, 64);
        CHECK(sockets.threads() == 64 && sockets.used(200) == 128);
    }
    {
        Machine part("0-3,8,10-11");  // of 8 cores: 0 with both processors, 1 to 3 with one, 2, 3
        part.cores(8, 0, 8);
        CHECK(part.threads() == 4 && part.used(100) == 7);
    }
    {
        Machine unknown("0-5");  // no word of cores
        CHECK(unknown.threads() == 6 && unknown.used(7) == 6);
    }
    CHECK(default_threads() <= threads_used(512));
    CHECK(threads_used(0) == default_threads() && threads_used(1) == 1);
}

// A container's affinity mask and the quota of its cgroup.
void test_quota() {
    Machine box("0-3,8-11");  // 4 cores of 8
    box.cores(8, 0, 8);
    box.write("proc/self/cgroup", "0::/box/inner\n");
    box.write("sys/fs/cgroup/box/inner/cpu.max", "max 100000\n");
    CHECK(box.threads() == 4 && box.used(100) == 8);
    box.write("sys/fs/cgroup/box/cpu.max", "600000 100000\n");
    CHECK(box.threads() == 4 && box.used(100) == 6);
    box.write("sys/fs/cgroup/box/inner/cpu.max", "250000 100000\n");
    CHECK(box.threads() == 3 && box.used(100) == 3);
    box.write("sys/fs/cgroup/box/inner/cpu.max", "50000 100000\n");
    CHECK(box.threads() == 1 && box.used(100) == 1);
    box.write("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/old\n");  // version 1
    box.write("sys/fs/cgroup/cpu/old/cpu.cfs_period_us", "50000\n");
    box.write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "-1\n");
    CHECK(box.threads() == 4 && box.used(100) == 8);
    box.write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "100000\n");
    CHECK(box.threads() == 2 && box.used(100) == 2);
}

// Cores of a phone: small ones would make the others wait.
void test_small_cores() {
    Machine phone("0-7");
    phone.cores(4, 0, -1, 300);
    phone.cores(3, 4, -1, 760);
    phone.cores(1, 7, -1, 1024);
    CHECK(phone.threads() == 4 && phone.used(8) == 8);
    phone.cores(3, 4, -1, 400);
    CHECK(phone.threads() == 1);
}
#endif

void test_limit() {
    Threads threads(5);
    for (int limit : {1, 2, 5, 3, 1, 4, 5}) {
        threads.limit(limit);
        CHECK(threads.active() == limit);
        CHECK(threads.size() == 5);
        for (int i = 0; i < 50; i++) CHECK(complete(threads, 97, 5));
    }
    threads.limit(0);
    CHECK(threads.active() == 1);
    threads.limit(1000);
    CHECK(threads.active() == 5);
    CHECK(complete(threads, 97, 5));
}

// A token has hundreds of regions, and each one reads the results of the one before.
void test_back_to_back(int size, int regions) {
    Threads threads(size);
    std::vector<int64_t> a(37, 1), b(37, 0);
    for (int i = 0; i < regions; i++) {
        threads.run(37, 4, [&](int64_t begin, int64_t end, int) {
            for (int64_t k = begin; k < end; k++)
                b[size_t(k)] = a[size_t(36 - k)] + (i % 3 == 0 ? 1 : 0);
        });
        std::swap(a, b);
    }
    const int64_t expected = 1 + (regions + 2) / 3;
    bool good = true;
    for (int64_t v : a) good &= v == expected;
    CHECK(good);
}

// The number of threads changes between regions, as between a prompt and the tokens after it.
void test_back_to_back_with_limits() {
    Threads threads(4);
    std::vector<int64_t> sum(16, 0);
    for (int i = 0; i < 4000; i++) {
        threads.limit(1 + i * 7 % 4);
        threads.run(16, 1, [&](int64_t begin, int64_t, int) { sum[size_t(begin)] += i; });
    }
    bool good = true;
    for (int64_t v : sum) good &= v == 4000 * 3999 / 2;
    CHECK(good);
}

void test_lifetimes() {
    for (int i = 0; i < 200; i++) {
        Threads unused(1 + i % 5);
        Threads threads(1 + i % 4);
        if (i % 3 == 0) continue;  // created and destroyed without a region
        CHECK(complete(threads, 50, 3));
    }
}

// Pools are independent: two callers with one pool each.
void test_two_pools() {
    std::atomic<int> good{0};
    const auto caller = [&](int size) {
        Threads threads(size);
        int complete_ones = 0;
        for (int i = 0; i < 500; i++) complete_ones += complete(threads, 101, 3);
        good += complete_ones;
    };
    std::thread other(caller, 3);
    caller(2);
    other.join();
    CHECK(good == 1000);
}

// One pool, used by several threads one after the other, like a session that is handed on.
void test_handed_on() {
    Threads threads(3);
    for (int i = 0; i < 20; i++) {
        bool good = false;
        std::thread([&] { good = complete(threads, 101, 3); }).join();
        CHECK(good);
    }
}

// Workers stop spinning after 0.3 ms and sleep; a region after a pause must wake them all.
// Each piece waits until all threads have one, so a sleeping thread would be noticed.
void test_wake_up() {
    constexpr int kSize = 3;
    Threads threads(kSize);
    for (int i = 0; i < 30; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(i % 3 == 0 ? 20 : 1));
        std::atomic<int> arrived{0};
        std::atomic<bool> late{false};
        std::vector<int> by(kSize, -1);
        threads.run(kSize, 1, [&](int64_t begin, int64_t, int thread) {
            by[size_t(begin)] = thread;
            arrived++;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (arrived < kSize && !late) {
                if (std::chrono::steady_clock::now() > limit) late = true;
                std::this_thread::yield();
            }
        });
        CHECK(!late);
        CHECK(by[0] + by[1] + by[2] == 0 + 1 + 2 && by[0] != by[1] && by[1] != by[2]);
    }
}

// Sleeping workers that a limited region does not need must wake for the next full one.
void test_wake_up_after_limit() {
    Threads threads(4);
    for (int i = 0; i < 20; i++) {
        threads.limit(2);
        for (int k = 0; k < 5; k++) CHECK(complete(threads, 40, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        threads.limit(4);
        CHECK(complete(threads, 40, 1));
    }
}

// An exception in a piece reaches the caller, from any thread, and the pool still works.
void test_exceptions() {
    for (int size : {1, 2, 5}) {
        Threads threads(size);
        for (int i = 0; i < 200; i++) {
            std::string seen;
            try {
                threads.run(64, 1, [&](int64_t begin, int64_t, int) {
                    if (begin == i % 64) throw std::runtime_error("piece " + std::to_string(begin));
                });
            } catch (const std::runtime_error& e) {
                seen = e.what();
            }
            CHECK(seen == "piece " + std::to_string(i % 64));
            CHECK(complete(threads, 97, 5));
        }
        // Every thread throws; one exception arrives.
        bool thrown = false;
        try {
            threads.run(64, 1, [](int64_t, int64_t, int) { throw std::bad_alloc(); });
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        CHECK(thrown && complete(threads, 97, 5));
        // The workers throw for certain, because each thread waits until all have a piece.
        thrown = size == 1;
        std::atomic<int> arrived{0};
        try {
            threads.run(size, 1, [&](int64_t, int64_t, int thread) {
                for (arrived++; arrived < size;) std::this_thread::yield();
                if (thread != 0) throw std::runtime_error("worker");
            });
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        CHECK(thrown && complete(threads, 97, 5));
    }
}

#if !defined(__SANITIZE_THREAD__) && !defined(_WIN32)  // see in_child.h
// Returns when all threads have had a piece.
void meet(Threads& threads, int size) {
    std::atomic<int> arrived{0};
    threads.run(size, 1, [&](int64_t, int64_t, int) {
        for (arrived++; arrived < size;) std::this_thread::yield();
    });
}

// A child of fork() has no workers: it must neither wait for them nor do without.
void test_fork() {
    for (int size : {1, 2, 5}) {
        auto threads = std::make_unique<Threads>(size);
        // A thread that is just beginning holds locks of the address sanitizer, which a child would
        // wait for.
        meet(*threads, size);
        for (int pause : {0, 0, 20}) {  // 20: the workers sleep
            CHECK(complete(*threads, 97, 5));
            std::this_thread::sleep_for(std::chrono::milliseconds(pause));
            CHECK(in_child([&] {
                threads.reset();
                return true;
            }));
            CHECK(in_child([&] {
                threads->limit(size);
                bool all = complete(*threads, 97, 5);
                meet(*threads, size);
                all &= in_child([&] {  // and once more
                    threads->limit(size);
                    const bool sound = complete(*threads, 97, 5);
                    threads.reset();
                    return sound;
                });
                threads.reset();
                return all;
            }));
        }
        CHECK(complete(*threads, 97, 5));
    }
}
#endif

}  // namespace

int main() {
    test_sizes();
    test_bad_sizes();
#ifdef __linux__
    test_defaults();
    test_quota();
    test_small_cores();
#endif
    test_limit();
    for (int size : {1, 2, 3, 4, 9}) test_back_to_back(size, size > 4 ? 1000 : 5000);
    test_back_to_back_with_limits();
    test_lifetimes();
    test_two_pools();
    test_handed_on();
    test_wake_up();
    test_wake_up_after_limit();
    test_exceptions();
#if !defined(__SANITIZE_THREAD__) && !defined(_WIN32)
    test_fork();
#endif
    return check::summary("test_threads");
}
