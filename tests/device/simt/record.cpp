#include "simt/record.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

// Kernels are named by their distance from this function, which a symbol table has too.
extern "C" __attribute__((visibility("default"), used)) void shim_anchor() {}

namespace shim {

namespace {

constexpr unsigned kMost = 5;  // launches of a kernel

struct Launches {
    unsigned n = 0, recorded = 0;
    std::set<std::array<unsigned, 2>> shapes;  // grids
};

struct Memory {
    size_t bytes = 0;
    std::string seen;  // its bytes at the end of the latest recorded launch
};

class Recorder {
 public:
    explicit Recorder(const std::string& folder)
        : lines_(folder + "/launches.jsonl"), data_(folder + "/data.bin", std::ios::binary) {
        if (!lines_ || !data_) throw Failure("SHIM_RECORD: cannot write into " + folder);
    }

    void allocated(const void* memory, size_t bytes, bool host) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto* begin = static_cast<const char*>(memory);
        memory_[memory] = {bytes, std::string(begin, bytes)};
        lines_ << "{\"memory\": " << address(memory) << ", \"bytes\": " << bytes
               << ", \"host\": " << int(host) << "}" << std::endl;
    }
    void freed(const void* memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        memory_.erase(memory);
        lines_ << "{\"free\": " << address(memory) << "}" << std::endl;
        // What was written to it is of no interest to what lies there later.
        std::erase_if(written_, [&](const auto& one) { return !within(one.first); });
    }
    void wrote(const void* memory, size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (within(memory)) written_.emplace_back(memory, bytes);
    }

    bool before(const Launch& launch) {
        const std::lock_guard<std::mutex> lock(mutex_);
        Launches& so_far = launches_[launch.kernel];
        const std::array<unsigned, 2> shape = {launch.grid.x, launch.grid.y};
        const unsigned n = ++so_far.n;
        const bool power = (n & (n - 1)) == 0, known = so_far.shapes.count(shape) > 0;
        if (busy_ || so_far.recorded == kMost || (known && !power)) return false;
        busy_ = true;
        so_far.recorded++;
        launch_.str("");
        so_far.shapes.insert(shape);
        const auto anchor = address(reinterpret_cast<const void*>(&shim_anchor));
        launch_ << "{\"kernel\": " << static_cast<long long>(address(launch.kernel) - anchor);
        for (auto [name, of] : {std::pair("grid", launch.grid), std::pair("block", launch.block)}) {
            launch_ << ", \"" << name << "\": [" << of.x << ", " << of.y << ", " << of.z << "]";
        }
        launch_ << ", \"shared\": " << launch.shared << ", \"parameters\": [";
        const char* between = "";
        for (const std::string& parameter : launch.parameters) {
            launch_ << between << '"';
            for (char byte : parameter) {
                launch_ << "0123456789abcdef"[uint8_t(byte) / 16]
                        << "0123456789abcdef"[uint8_t(byte) % 16];
            }
            launch_ << '"';
            between = ", ";
        }
        launch_ << "], \"written\": [";
        between = "";
        for (const auto& [begin, bytes] : written_) {
            launch_ << between << "[" << address(begin) << ", " << bytes << "]";
            between = ", ";
        }
        written_.clear();
        launch_ << "], \"before\": ";
        changes();
        return true;
    }
    void after() {
        const std::lock_guard<std::mutex> lock(mutex_);
        launch_ << ", \"after\": ";
        changes();
        lines_ << launch_.str() << "}" << std::endl;
        data_.flush();
        busy_ = false;
    }

 private:
    static size_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
    bool within(const void* p) const {
        auto found = memory_.upper_bound(p);
        if (found == memory_.begin()) return false;
        --found;
        return address(p) < address(found->first) + found->second.bytes;
    }

    // The ranges that differ from what was seen last, as a list.
    void changes() {
        const char* between = "";
        launch_ << "[";
        for (auto& [begin, memory] : memory_) {
            const auto* now = static_cast<const char*>(begin);
            size_t first = 0, end = memory.bytes;
            while (first < end && now[first] == memory.seen[first]) first++;
            while (end > first && now[end - 1] == memory.seen[end - 1]) end--;
            if (first == end) continue;
            launch_ << between << "[" << address(begin) + first << ", " << stored_ << ", "
                    << end - first << "]";
            between = ", ";
            data_.write(now + first, std::streamsize(end - first));
            stored_ += end - first;
            std::memcpy(memory.seen.data() + first, now + first, end - first);
        }
        launch_ << "]";
    }

    std::mutex mutex_;
    std::ofstream lines_, data_;
    bool busy_ = false;          // a launch is being recorded; on another stream none is
    std::ostringstream launch_;  // its line; allocations meanwhile come before it
    size_t stored_ = 0;
    std::map<const void*, Memory> memory_;
    std::map<const void*, Launches> launches_;  // by kernel
    std::vector<std::pair<const void*, size_t>> written_;
};

Recorder* recorder() {
    static Recorder* const one = [] {
        const char* folder = std::getenv("SHIM_RECORD");
        return folder && *folder ? new Recorder(folder) : nullptr;
    }();
    return one;
}

}  // namespace

bool recording() {
    return recorder() != nullptr;
}
void note_allocation(const void* memory, size_t bytes, bool host) {
    if (recorder()) recorder()->allocated(memory, bytes, host);
}
void note_free(const void* memory) {
    if (recorder()) recorder()->freed(memory);
}
void note_write(const void* memory, size_t bytes) {
    if (recorder()) recorder()->wrote(memory, bytes);
}
bool record_before(const Launch& launch) {
    return recorder()->before(launch);
}
void record_after() {
    recorder()->after();
}

}  // namespace shim
