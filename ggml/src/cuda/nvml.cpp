#include "cuda/nvml.h"

#include <cstdio>

#include "os/os.h"

namespace ggml::nvml {

namespace {

// The library's types and calls, in their first versions, which every driver has.
struct Memory {
    unsigned long long total, free, used;
};
using Handle = struct Opaque*;

// The driver brings the library; the toolkit has no part in it.
class Library {
 public:
    Library() : handle_(os::open_library("libnvidia-ml.so.1")) {
        if (!handle_) handle_ = os::open_library("nvml.dll");
        if (!handle_) return;
        int (*init)() = nullptr;
        find(init, "nvmlInit_v2");
        find(by_uuid, "nvmlDeviceGetHandleByUUID");
        find(memory, "nvmlDeviceGetMemoryInfo");
        find(version, "nvmlSystemGetDriverVersion");
        usable_ = init && by_uuid && memory && version && init() == 0;
    }
    bool usable() const { return usable_; }

    int (*by_uuid)(const char*, Handle*) = nullptr;
    int (*memory)(Handle, Memory*) = nullptr;
    int (*version)(char*, unsigned) = nullptr;

 private:
    template <typename F>
    void find(F& function, const char* name) {
        function = reinterpret_cast<F>(os::find_in(handle_, name));
    }

    void* handle_;  // until the process ends
    bool usable_ = false;
};

const Library& library() {
    static const Library one;
    return one;
}

}  // namespace

std::optional<uint64_t> used_bytes(const char* uuid) {
    if (!library().usable()) return std::nullopt;
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char digits[4];
        std::snprintf(digits, sizeof digits, "%02x", unsigned(uint8_t(uuid[i])));
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits;
    }
    Handle device = nullptr;
    Memory found = {};
    if (library().by_uuid(text.c_str(), &device) != 0) return std::nullopt;
    if (library().memory(device, &found) != 0) return std::nullopt;
    return found.used;
}

std::string driver_version() {
    char text[96] = "";
    if (!library().usable() || library().version(text, sizeof text) != 0) return "";
    return text;
}

}  // namespace ggml::nvml
