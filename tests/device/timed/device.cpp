#include "timed/device.h"

#include <cstdlib>
#include <cstring>
#include <map>

#include "cuda/device.h"
#include "ggml/device_ops.h"
#include "ggml/status.h"

namespace ggml::timed {

namespace {

// Larger allocations (weights, the cache) get addresses where there is no memory: nobody reads
// them. Scratch memory is smaller.
constexpr uint64_t kReal = 512 << 20;
constexpr uint64_t kNowhere = uint64_t(1) << 60;  // not an address on any machine

struct Event {
    Stream* stream = nullptr;
    uint64_t work = 0;
};

class TimedDevice : public Device {
 public:
    explicit TimedDevice(const std::string& id) : config_(Config::parse(id)) {
        info_ = {id, "no device: takes time, computes nothing", 0, uint64_t(config_.memory), "", 0,
                 0};
    }

    void enter() override {}
    const DeviceInfo& info() const override { return info_; }
    const DeviceOps& ops() const override { return timed::ops(); }
    uint64_t free_bytes() const override { return info_.total_bytes - allocated_; }
    uint64_t allocated_bytes() const override { return allocated_; }

    void* allocate(uint64_t bytes, const char* what) override {
        void* memory = nullptr;
        if (bytes <= free_bytes()) {
            memory = bytes > kReal ? reinterpret_cast<void*>(next_) : std::calloc(bytes + 1, 1);
        }
        if (!memory) {
            throw Error(Code::memory, format("%s: no memory for %s (%llu bytes)", info_.id.c_str(),
                                             what, (unsigned long long)bytes));
        }
        if (bytes > kReal) next_ += (bytes + 4095) / 4096 * 4096;
        sizes_[memory] = bytes;
        allocated_ += bytes;
        return memory;
    }
    void release(void* memory) noexcept override {
        if (!memory) return;
        const auto found = sizes_.find(memory);
        allocated_ -= found->second;
        sizes_.erase(found);
        if (is_real(memory)) std::free(memory);
    }
    void* allocate_shared(uint64_t bytes, const char* what) override {
        const uint64_t whole = (bytes + 63) / 64 * 64;
        void* memory = std::aligned_alloc(64, whole);
        if (!memory) throw Error(Code::memory, format("no memory for %s", what));
        std::memset(memory, 0, whole);
        return memory;
    }
    void release_shared(void* memory) noexcept override { std::free(memory); }
    bool pin(void*, uint64_t) override { return true; }
    void unpin(void*) noexcept override {}

    DeviceStream* new_stream() override {
        return reinterpret_cast<DeviceStream*>(new Stream(config_));
    }
    void release(DeviceStream* stream) noexcept override { delete &of(stream); }
    void copy_in(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        of(stream).put(1, [=](Timeline& t) {
            t.spend(1, 0);
            t.transfer(double(bytes));
            if (is_real(to)) std::memcpy(to, from, bytes);
        });
    }
    void copy_out(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        of(stream).put(1, [=](Timeline& t) {
            t.spend(1, 0);
            t.transfer(double(bytes));
            t.reach();
            if (is_real(from)) {
                std::memcpy(to, from, bytes);
            } else {
                std::memset(to, 0, bytes);
            }
        });
    }
    void copy(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        of(stream).put(1, [=](Timeline& t) {
            t.spend(1, 2 * double(bytes));
            if (is_real(to) && is_real(from)) std::memcpy(to, from, bytes);
        });
    }
    void zero(DeviceStream* stream, void* to, uint64_t bytes) override {
        of(stream).put(1, [=](Timeline& t) {
            t.spend(1, double(bytes));
            if (is_real(to)) std::memset(to, 0, bytes);
        });
    }
    void wait(DeviceStream* stream) override { of(stream).wait(of(stream).put_so_far()); }
    bool idle(DeviceStream* stream) override { return of(stream).done(of(stream).put_so_far()); }

    DeviceEvent* new_event() override { return reinterpret_cast<DeviceEvent*>(new Event); }
    void release(DeviceEvent* event) noexcept override { delete of_event(event); }
    void record(DeviceEvent* event, DeviceStream* stream) override {
        *of_event(event) = {&of(stream), of(stream).put_so_far()};
    }
    void wait(DeviceEvent* event) override {
        const Event& e = *of_event(event);
        if (e.stream) e.stream->wait(e.work);
    }
    void wait(DeviceStream* stream, DeviceEvent* event) override {
        const Event e = *of_event(event);
        if (e.stream) of(stream).put(0, [e](Timeline&) { e.stream->wait(e.work); });
    }

    void begin_capture(DeviceStream* stream) override { of(stream).begin_capture(); }
    DeviceGraph* end_capture(DeviceStream* stream) override {
        return reinterpret_cast<DeviceGraph*>(of(stream).end_capture().release());
    }
    int nodes(DeviceGraph* graph) const override { return of_graph(graph)->nodes; }
    void launch(DeviceGraph* graph, DeviceStream* stream) override {
        of(stream).launch(of_graph(graph));
    }
    void release(DeviceGraph* graph) noexcept override { delete of_graph(graph); }

 private:
    static bool is_real(const void* memory) {
        return reinterpret_cast<uint64_t>(memory) < kNowhere;
    }
    static Event* of_event(DeviceEvent* event) { return reinterpret_cast<Event*>(event); }
    static Graph* of_graph(DeviceGraph* graph) { return reinterpret_cast<Graph*>(graph); }

    const Config config_;
    DeviceInfo info_;
    uint64_t allocated_ = 0, next_ = kNowhere;
    std::map<void*, uint64_t> sizes_;
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& id) {
    return std::make_unique<TimedDevice>(id);
}

[[maybe_unused]] static const bool registered = register_device_kind("timed:", open_device);

}  // namespace ggml::timed
