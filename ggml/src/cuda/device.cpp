// The devices that this program knows: CUDA's where it was built for them, and kinds that it
// registers, whose devices are opened by name and never listed.
#include "ggml/device.h"

#include <map>

#include "cuda/device.h"
#include "ggml/status.h"

namespace ggml {

namespace {

struct List {
    std::vector<DeviceInfo> devices;
    std::string note = "built without CUDA";

    List() {
#ifdef GGML_CUDA
        devices = cuda::devices(note);
#endif
    }
};

const List& list() {
    static const List found;
    return found;
}

struct DeviceKind {
    std::string name;
    OpenDevice open;
};

// In a function, because kinds register themselves before main.
std::vector<DeviceKind>& device_kinds() {
    static std::vector<DeviceKind> registered;
    return registered;
}

}  // namespace

DeviceCard& DeviceCard::of(const std::string& id) {
    // Never destroyed: something may be released at the end of the program.
    static std::mutex& mutex = *new std::mutex;
    static auto& cards = *new std::map<std::string, DeviceCard>;
    const std::lock_guard<std::mutex> lock(mutex);
    return cards[id];
}

void DeviceCard::lock() {
    std::unique_lock<std::mutex> guard(mutex_);
    unlocked_.wait(guard, [this] { return !locked_; });
    locked_ = true;
}

void DeviceCard::unlock() {
    std::unique_lock<std::mutex> guard(mutex_);
    while (!waiting_.empty()) {
        std::vector<std::function<void()>> now;
        now.swap(waiting_);
        guard.unlock();
        for (const auto& work : now) work();
        guard.lock();
    }
    locked_ = false;
    guard.unlock();
    unlocked_.notify_one();
}

void DeviceCard::release(std::function<void()> work) noexcept {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (locked_) {
            try {
                waiting_.push_back(std::move(work));
            } catch (const std::bad_alloc&) {
                // It stays until the program ends.
            }
            return;
        }
        locked_ = true;
    }
    work();
    unlock();
}

const std::vector<DeviceInfo>& devices() {
    return list().devices;
}

const char* device_note() {
    return list().note.c_str();
}

int device_index(const std::string& digits) {
    int index = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9' || index > 1000) return -1;
        index = 10 * index + (c - '0');
    }
    return index;
}

bool register_device_kind(const char* kind, OpenDevice open) {
    device_kinds().push_back({kind, open});
    return true;
}

std::unique_ptr<Device> open_device(const std::string& id) {
    for (const DeviceKind& kind : device_kinds()) {
        if (id.rfind(kind.name, 0) != 0) continue;
        if (auto device = kind.open(id)) return device;
    }
#ifdef GGML_CUDA
    if (id.rfind("cuda", 0) == 0) {
        if (const int index = device_index(id.substr(4)); index >= 0) {
            return cuda::open_device(index);
        }
    }
#endif
    throw Error(Code::device, "there is no device \"" + id + "\": " + device_note());
}

}  // namespace ggml
