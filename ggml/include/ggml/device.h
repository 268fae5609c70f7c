// Compute devices besides the CPU: which there are, and the memory, streams and graphs of one that
// is open. cuda/device.cu implements Device for CUDA. A program may link devices of other kinds,
// which register themselves (cuda/device.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace ggml {

struct DeviceInfo {
    std::string id;    // "cuda0": what open_device() takes
    std::string name;  // "NVIDIA ..."
    int compute;       // compute capability times 10: 86
    uint64_t total_bytes;
    std::string driver;     // its version; "" if that is not known
    int driver_cuda, cuda;  // CUDA versions times 1000 (13000): most that the driver can; ours
};

// The GPUs of this machine. Never throws; empty where there is none.
const std::vector<DeviceInfo>& devices();
// Why the list is as it is: "built without CUDA", "no CUDA device: <reason>", "1 CUDA device(s)".
const char* device_note();

constexpr uint64_t kDeviceGranule = 512;  // bytes

struct DeviceStream;  // work that a device does in order
struct DeviceEvent;
struct DeviceGraph;
struct DeviceOps;  // device_ops.h

// A card, which all have in common that have opened it. Whoever computes or allocates there locks
// it: a kernel that waits for the host can hold up other threads' calls to the driver for ever, and
// these can hold up the host that it waits for. What is released while it is locked goes back to
// the driver at the end of the lock: nobody waits in order to release, and a callback of the one
// who computes may.
class DeviceCard {
 public:
    static DeviceCard& of(const std::string& id);  // "cuda0"

    void lock();
    void unlock();
    // Does `work` now, with the lock, or before the lock ends that somebody has.
    void release(std::function<void()> work) noexcept;

 private:
    std::mutex mutex_;
    std::condition_variable unlocked_;
    bool locked_ = false;
    std::vector<std::function<void()>> waiting_;
};

// An open device. Every call may throw Error(device); what a kernel does wrong shows in a later
// call. Calls through one object come from one thread at a time, which has locked the card if they
// compute or allocate; but releases may come from any, beside them.
class Device {
 public:
    virtual ~Device() = default;

    // Makes it the device of the calling thread, which may then make other calls.
    virtual void enter() = 0;
    virtual const DeviceInfo& info() const = 0;
    virtual const DeviceOps& ops() const = 0;
    DeviceCard& card() const { return DeviceCard::of(info().id); }
    // Device memory that is free now, and bytes that allocations have taken through this object.
    virtual uint64_t free_bytes() const = 0;
    virtual uint64_t allocated_bytes() const = 0;
    // What the device's context takes there, with the kernels, which are all loaded: measured when
    // this process first opened the device. Where that is impossible, a guess on the high side.
    virtual uint64_t context_bytes() const { return 0; }
    // How long a kernel may wait for the host, in nanoseconds. Where the system ends kernels that
    // take too long, and all that the process has on the card with them, it is shorter than that.
    virtual uint64_t longest_wait_ns() const { return 60000000000; }

    // Memory is uninitialised, and a multiple of kDeviceGranule is taken. Throws Error(memory)
    // naming `what` and the size.
    virtual void* allocate(uint64_t bytes, const char* what) = 0;
    virtual void release(void* memory) noexcept = 0;
    // Host memory that kernels read and write in place (pinned and mapped): for flags, and for what
    // both sides exchange. Zeroed; the same address on both.
    virtual void* allocate_shared(uint64_t bytes, const char* what) = 0;
    virtual void release_shared(void* memory) noexcept = 0;

    // Fixes pages of host memory, so that copies from there neither wait for the system nor for the
    // caller. False if the system refuses: then copies are slower.
    virtual bool pin(void* memory, uint64_t bytes) = 0;
    virtual void unpin(void* memory) noexcept = 0;

    // Releasing a stream waits for its work: own it after the memory that its work uses, so that it
    // goes first.
    virtual DeviceStream* new_stream() = 0;
    virtual void release(DeviceStream*) noexcept = 0;
    virtual void copy_in(DeviceStream*, void* to, const void* from, uint64_t bytes) = 0;
    virtual void copy_out(DeviceStream*, void* to, const void* from, uint64_t bytes) = 0;
    virtual void copy(DeviceStream*, void* to, const void* from, uint64_t bytes) = 0;  // inside
    virtual void zero(DeviceStream*, void* to, uint64_t bytes) = 0;
    virtual void wait(DeviceStream*) = 0;  // for everything in the stream
    virtual bool idle(DeviceStream*) = 0;  // is everything in the stream done?
    // Work that the driver still keeps to itself goes to the device. Windows' collects launches, up
    // to a call that waits.
    virtual void flush(DeviceStream*) {}

    virtual DeviceEvent* new_event() = 0;
    virtual void release(DeviceEvent*) noexcept = 0;
    virtual void record(DeviceEvent*, DeviceStream*) = 0;
    virtual void wait(DeviceEvent*) = 0;                 // the host
    virtual void wait(DeviceStream*, DeviceEvent*) = 0;  // a stream

    // Between these, work for the stream is recorded and not done; the graph replays it.
    virtual void begin_capture(DeviceStream*) = 0;
    virtual DeviceGraph* end_capture(DeviceStream*) = 0;
    virtual int nodes(DeviceGraph*) const = 0;
    virtual void launch(DeviceGraph*, DeviceStream*) = 0;
    virtual void release(DeviceGraph*) noexcept = 0;
};

// Opens a device by its id. Throws Error(device): unknown, too old, or in a state that it cannot be
// used in.
std::unique_ptr<Device> open_device(const std::string& id);

// What a device owns, given back with its owner. `make` and the device's release() come in pairs.
template <typename T>
class Owned {
 public:
    Owned() = default;
    Owned(Device& device, T* value) : device_(&device), value_(value) {}
    ~Owned() { reset(); }
    Owned(Owned&& other) noexcept
        : device_(other.device_), value_(std::exchange(other.value_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(value_, other.value_);
        return *this;
    }
    T* get() const { return value_; }
    explicit operator bool() const { return value_ != nullptr; }
    void reset() noexcept {
        if (value_) device_->release(std::exchange(value_, nullptr));
    }

 private:
    Device* device_ = nullptr;
    T* value_ = nullptr;
};

// Host memory of the owner's that is pinned for as long as this; or nothing, where the system
// refuses. Goes before the memory.
class PinnedMemory {
 public:
    PinnedMemory() = default;
    PinnedMemory(Device& device, void* memory, uint64_t bytes)
        : device_(&device), memory_(bytes && device.pin(memory, bytes) ? memory : nullptr) {}
    ~PinnedMemory() {
        if (memory_) device_->unpin(memory_);
    }
    PinnedMemory(PinnedMemory&& other) noexcept
        : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(memory_, other.memory_);
        return *this;
    }
    explicit operator bool() const { return memory_ != nullptr; }

 private:
    Device* device_ = nullptr;
    void* memory_ = nullptr;
};

// Arrays of T on a device, and in host memory that both sides see.
template <typename T>
class DeviceArray {
 public:
    DeviceArray() = default;
    DeviceArray(Device& device, uint64_t n, const char* what)
        : memory_(device, device.allocate(n * sizeof(T), what)), size_(n) {}
    T* get() const { return static_cast<T*>(memory_.get()); }
    uint64_t size() const { return size_; }

 private:
    Owned<void> memory_;
    uint64_t size_ = 0;
};
template <typename T>
class SharedArray {
 public:
    SharedArray() = default;
    SharedArray(Device& device, uint64_t n, const char* what)
        : device_(&device), data_(static_cast<T*>(device.allocate_shared(n * sizeof(T), what))) {}
    ~SharedArray() {
        if (data_) device_->release_shared(data_);
    }
    SharedArray(SharedArray&& other) noexcept
        : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
    SharedArray& operator=(SharedArray&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        return *this;
    }
    T* get() const { return data_; }
    T& operator[](uint64_t i) const { return data_[i]; }

 private:
    Device* device_ = nullptr;
    T* data_ = nullptr;
};

}  // namespace ggml
