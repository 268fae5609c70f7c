// Time and bytes per part of the model and operator in a forward pass. Off by default.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ggml {

struct Profile {
    struct Entry {
        const char* part;
        const char* op;
        int64_t calls;
        double seconds;
        uint64_t bytes;  // of weights and cache that were read
    };

    bool on = false;
    const char* part = "";  // the part that the next operators belong to; set by the forward pass
    std::vector<Entry> entries;

    void add(const char* op, double seconds, uint64_t bytes) {
        for (Entry& e : entries) {
            if (!std::strcmp(e.part, part) && !std::strcmp(e.op, op)) {
                e.calls++;
                e.seconds += seconds;
                e.bytes += bytes;
                return;
            }
        }
        entries.push_back({part, op, 1, seconds, bytes});
    }
};

// Times one operator call from here to the end of the scope.
class OpTimer {
 public:
    OpTimer(Profile& profile, const char* op) : profile_(profile), op_(op) {
        if (profile_.on) start_ = std::chrono::steady_clock::now();
    }
    ~OpTimer() {
        if (!profile_.on) return;
        const std::chrono::duration<double> d = std::chrono::steady_clock::now() - start_;
        profile_.add(op_, d.count(), bytes_);
    }
    // Adds bytes of weights or cache that the call reads.
    void read(uint64_t bytes) { bytes_ += bytes; }
    OpTimer(const OpTimer&) = delete;
    OpTimer& operator=(const OpTimer&) = delete;

 private:
    Profile& profile_;
    const char* op_;
    uint64_t bytes_ = 0;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace ggml
