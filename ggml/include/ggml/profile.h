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

    // The index of an operator's entry in the current part, a new one if there is none.
    size_t entry_of(const char* op) {
        size_t i = 0;
        while (i < entries.size() &&
               (std::strcmp(entries[i].part, part) || std::strcmp(entries[i].op, op)))
            i++;
        if (i == entries.size()) entries.push_back({part, op, 0, 0, 0});
        return i;
    }
};

// Times one operator call from here to the end of the scope, which takes no memory.
class OpTimer {
 public:
    OpTimer(Profile& profile, const char* op) : profile_(profile), on_(profile.on) {
        if (!on_) return;
        entry_ = profile_.entry_of(op);
        start_ = std::chrono::steady_clock::now();
    }
    ~OpTimer() {
        if (!on_) return;
        const std::chrono::duration<double> d = std::chrono::steady_clock::now() - start_;
        Profile::Entry& e = profile_.entries[entry_];
        e.calls++;
        e.seconds += d.count();
        e.bytes += bytes_;
    }
    // Adds bytes of weights or cache that the call reads.
    void read(uint64_t bytes) { bytes_ += bytes; }
    OpTimer(const OpTimer&) = delete;
    OpTimer& operator=(const OpTimer&) = delete;

 private:
    Profile& profile_;
    const bool on_;
    size_t entry_ = 0;
    uint64_t bytes_ = 0;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace ggml
