// The devices that this build knows: CUDA's where it was built for them, and in test builds the CPU
// as a GPU, and a device that only takes time; these are opened by name and never listed.
#include "ggml/device.h"

#include "ggml/status.h"
#include "gpu/device.h"
#ifdef GGML_SIMT
#include "timed/device.h"
#endif

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

// The number behind `kind` in an id; 0 where there is none, -1 where the id is of another kind.
[[maybe_unused]] int index_of(const std::string& id, const std::string& kind) {
    if (id.compare(0, kind.size(), kind) != 0) return -1;
    int index = 0;
    for (size_t i = kind.size(); i < id.size(); i++) {
        if (id[i] < '0' || id[i] > '9' || index > 1000) return -1;
        index = 10 * index + (id[i] - '0');
    }
    return index;
}

}  // namespace

const std::vector<DeviceInfo>& devices() {
    return list().devices;
}

const char* device_note() {
    return list().note.c_str();
}

std::unique_ptr<Device> open_device(const std::string& id) {
#ifdef GGML_SIMT
    if (const int index = index_of(id, "simt"); index >= 0) return simt::open_device(index);
    if (id.rfind("timed:", 0) == 0) return timed::open_device(id);
#endif
#ifdef GGML_CUDA
    if (const int index = index_of(id, "cuda"); index >= 0) return cuda::open_device(index);
#endif
    throw Error(Code::device, "there is no device \"" + id + "\": " + device_note());
}

}  // namespace ggml
