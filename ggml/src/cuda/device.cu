// Device over the CUDA run time.
#include <map>
#include <mutex>

#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "ggml/sizes.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kLeastCompute = 75;  // Turing: what the kernels are compiled for
// What a context takes where it cannot be measured: drivers are known to need 0.3 to 0.6 GB.
constexpr uint64_t kUnknownContext = 512 << 20;
// By what it grows later, as the driver loads kernels and graphs: 5 to 7 MiB on an H100.
constexpr uint64_t kContextGrows = 8 << 20;
// A kernel's wait on a card that also shows pictures: Windows ends kernels after 2 s.
constexpr uint64_t kWatchedWait = 1500000000;

std::string describe(cudaError_t error) {
    return cudaGetErrorString(error);
}

std::string compute_text(int compute) {
    return std::to_string(compute / 10) + "." + std::to_string(compute % 10);
}
std::string cuda_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class GpuDevice : public Device {
 public:
    // Makes the context, and loads and uses all that a later call could load: a kernel's first use
    // can wait for ever behind a graph that waits for the host.
    GpuDevice(int index, DeviceInfo info)
        : index_(index), info_(std::move(info)), card_(DeviceCard::of(info_.id)) {
        enter();
        load_kernels();
        use_everything();
        int watched = 0;
        check(cudaDeviceGetAttribute(&watched, cudaDevAttrKernelExecTimeout, index),
              "asking for the limit of a kernel's time");
        if (watched) longest_wait_ns_ = kWatchedWait;
    }

    void enter() override { check(cudaSetDevice(index_), "selecting the device"); }
    const DeviceInfo& info() const override { return info_; }
    const DeviceOps& ops() const override { return GGML_GPU::ops(); }
    uint64_t free_bytes() const override {
        size_t free_bytes = 0, total = 0;
        check(cudaMemGetInfo(&free_bytes, &total), "asking for free device memory");
        return free_bytes;
    }
    uint64_t allocated_bytes() const override {
        const std::lock_guard<std::mutex> lock(sizes_mutex_);
        return allocated_;
    }
    uint64_t context_bytes() const override { return context_; }
    uint64_t longest_wait_ns() const override { return longest_wait_ns_; }
    void set_context_bytes(uint64_t bytes) { context_ = bytes; }

    void* allocate(uint64_t bytes, const char* what) override {
        void* memory = nullptr;
        const cudaError_t error = cudaMalloc(&memory, bytes);
        if (error != cudaSuccess) {
            cudaGetLastError();  // it is not the next call's
            throw Error(
                error == cudaErrorMemoryAllocation ? Code::memory : Code::device,
                format("%s: %llu bytes for %s: %s", info_.id.c_str(),
                       static_cast<unsigned long long>(bytes), what, describe(error).c_str()));
        }
        const uint64_t taken = size_rounded_up(bytes, kDeviceGranule);
        const std::lock_guard<std::mutex> lock(sizes_mutex_);
        sizes_[memory] = taken;
        allocated_ += taken;
        return memory;
    }
    void release(void* memory) noexcept override {
        {
            const std::lock_guard<std::mutex> lock(sizes_mutex_);
            const auto found = sizes_.find(memory);
            if (found != sizes_.end()) {
                allocated_ -= found->second;
                sizes_.erase(found);
            }
        }
        release_here([memory] { cudaFree(memory); });
    }

    void* allocate_shared(uint64_t bytes, const char* what) override {
        void *memory = nullptr, *here = nullptr;
        cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped);
        if (error == cudaSuccess) error = cudaHostGetDevicePointer(&here, memory, 0);
        if (error != cudaSuccess || here != memory) {
            cudaGetLastError();
            if (memory) cudaFreeHost(memory);
            const std::string why = error == cudaSuccess
                                        ? "the device sees host memory at other addresses"
                                        : describe(error);
            throw Error(Code::memory,
                        format("%s: %llu bytes of pinned memory for %s: %s", info_.id.c_str(),
                               static_cast<unsigned long long>(bytes), what, why.c_str()));
        }
        std::memset(memory, 0, bytes);
        return memory;
    }
    void release_shared(void* memory) noexcept override {
        release_here([memory] { cudaFreeHost(memory); });
    }

    bool pin(void* memory, uint64_t bytes) override {
        const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
        if (error != cudaSuccess) cudaGetLastError();
        return error == cudaSuccess;
    }
    void unpin(void* memory) noexcept override {
        // At once, since the memory goes now.
        cudaSetDevice(index_);
        cudaHostUnregister(memory);
    }

    DeviceStream* new_stream() override {
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a new stream");
        return reinterpret_cast<DeviceStream*>(stream);
    }
    void release(DeviceStream* stream) noexcept override {
        release_here([stream] {
            cudaStreamSynchronize(handle(stream));
            cudaStreamDestroy(handle(stream));
        });
    }
    void copy_in(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle(stream)),
              "copying to the device");
    }
    void copy_out(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle(stream)),
              "copying from the device");
    }
    void copy(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle(stream)),
              "copying inside the device");
    }
    void zero(DeviceStream* stream, void* to, uint64_t bytes) override {
        check(cudaMemsetAsync(to, 0, bytes, handle(stream)), "clearing device memory");
    }
    void wait(DeviceStream* stream) override {
        check(cudaStreamSynchronize(handle(stream)), "waiting for the device");
    }
    bool idle(DeviceStream* stream) override {
        const cudaError_t error = cudaStreamQuery(handle(stream));
        if (error != cudaErrorNotReady) check(error, "asking the device");
        return error == cudaSuccess;
    }

#ifdef _WIN32
    void flush(DeviceStream* stream) override { idle(stream); }
#endif

    DeviceEvent* new_event() override {
        cudaEvent_t event = nullptr;
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a new event");
        return reinterpret_cast<DeviceEvent*>(event);
    }
    void release(DeviceEvent* event) noexcept override {
        release_here([event] { cudaEventDestroy(handle(event)); });
    }
    void record(DeviceEvent* event, DeviceStream* stream) override {
        check(cudaEventRecord(handle(event), handle(stream)), "recording an event");
    }
    void wait(DeviceEvent* event) override {
        check(cudaEventSynchronize(handle(event)), "waiting for the device");
    }
    void wait(DeviceStream* stream, DeviceEvent* event) override {
        check(cudaStreamWaitEvent(handle(stream), handle(event), 0), "waiting for an event");
    }

    void begin_capture(DeviceStream* stream) override {
        check(cudaStreamBeginCapture(handle(stream), cudaStreamCaptureModeThreadLocal),
              "capturing a graph");
    }
    DeviceGraph* end_capture(DeviceStream* stream) override {
        auto graph = std::make_unique<Graph>();
        cudaGraph_t recorded = nullptr;
        check(cudaStreamEndCapture(handle(stream), &recorded), "capturing a graph");
        size_t n = 0;
        cudaError_t error = cudaGraphGetNodes(recorded, nullptr, &n);
        if (error == cudaSuccess) error = cudaGraphInstantiate(&graph->exec, recorded, 0);
        cudaGraphDestroy(recorded);
        check(error, "building a graph");
        graph->nodes = int(n);
        return reinterpret_cast<DeviceGraph*>(graph.release());
    }
    int nodes(DeviceGraph* graph) const override { return of(graph)->nodes; }
    void launch(DeviceGraph* graph, DeviceStream* stream) override {
        check(cudaGraphLaunch(of(graph)->exec, handle(stream)), "launching a graph");
    }
    void release(DeviceGraph* graph) noexcept override {
        release_here([graph] {
            cudaGraphExecDestroy(of(graph)->exec);
            delete of(graph);
        });
    }

 private:
    // A release may come from any thread, and one that has entered no device would make a context
    // on the first one, and release there.
    template <typename F>
    void release_here(const F& work) noexcept {
        card_.release([index = index_, work] {
            cudaSetDevice(index);
            work();
        });
    }
    void load_kernels() {
        for (const void* kernel : kernels()) {
            cudaFuncAttributes attributes;
            const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
            if (error == cudaErrorNoKernelImageForDevice) {
                cudaGetLastError();
                throw Error(Code::device,
                            format("%s (%s) has compute capability %s, for which this build has no "
                                   "kernels: build with -DCMAKE_CUDA_ARCHITECTURES=%d",
                                   info_.id.c_str(), info_.name.c_str(),
                                   compute_text(info_.compute).c_str(), info_.compute));
            }
            check(error, "loading a kernel");
        }
    }
    void use_everything() {
        constexpr uint64_t kBytes = 4096;
        const DeviceArray<uint8_t> here(*this, 2 * kBytes, "a first use");
        const SharedArray<uint8_t> host(*this, kBytes, "a first use");
        const Owned<DeviceStream> stream(*this, new_stream());
        DeviceStream* const s = stream.get();
        zero(s, here.get(), 2 * kBytes);
        copy_in(s, here.get(), host.get(), kBytes);
        copy(s, here.get() + kBytes, here.get(), kBytes);
        copy_out(s, host.get(), here.get(), kBytes);
        begin_capture(s);
        zero(s, here.get(), kBytes);
        const Owned<DeviceGraph> graph(*this, end_capture(s));
        launch(graph.get(), s);
        wait(s);
    }

    struct Graph {
        cudaGraphExec_t exec = nullptr;
        int nodes = 0;
    };
    static Graph* of(DeviceGraph* graph) { return reinterpret_cast<Graph*>(graph); }
    static cudaEvent_t handle(DeviceEvent* event) { return reinterpret_cast<cudaEvent_t>(event); }
    static cudaStream_t handle(DeviceStream* stream) { return GGML_GPU::handle(stream); }

    const int index_;
    DeviceInfo info_;
    DeviceCard& card_;
    uint64_t context_ = 0, longest_wait_ns_ = Device::longest_wait_ns();
    mutable std::mutex sizes_mutex_;  // of what follows
    uint64_t allocated_ = 0;
    std::map<void*, uint64_t> sizes_;
};

std::string id_of(int index) {
    return kKind + std::to_string(index);
}

// Why there are no devices: cudaGetDeviceCount's error in words that say what to do.
std::string why_none(cudaError_t error) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        return "no NVIDIA driver is installed";
    }
    if (error == cudaErrorInsufficientDriver && cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        return "the NVIDIA driver is for CUDA " + cuda_text(driver) + ", and this build needs " +
               cuda_text(runtime) + ": update the driver, or build with an older nvcc";
    }
    return describe(error);
}

// What a device says of itself, without making a context there. Throws Error(device).
cudaDeviceProp ask(int index, DeviceInfo& info) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), id_of(index).c_str());
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "asking for the driver");
    check(cudaRuntimeGetVersion(&runtime), "asking for the run time");
    info = {id_of(index),
            properties.name,
            10 * properties.major + properties.minor,
            properties.totalGlobalMem,
            driver_version(),
            driver,
            runtime};
    return properties;
}

// What the context of a device took when it was first opened: later it is there already.
uint64_t largest_context(int index, uint64_t now) {
    static std::mutex mutex;
    static std::map<int, uint64_t> found;
    const std::lock_guard<std::mutex> lock(mutex);
    uint64_t& largest = found[index];
    return largest = now > largest ? now : largest;
}

}  // namespace

const DeviceOps& ops() {
    static const DeviceOps table = {
#define DEVICE_OP(name, ...) name,
#include "ggml/device_ops.inc"
#undef DEVICE_OP
    };
    return table;
}

std::vector<DeviceInfo> devices(std::string& note) {
    std::vector<DeviceInfo> found;
    int n = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&n); error != cudaSuccess) {
        note = "no CUDA device: " + why_none(error);
        return found;
    }
    for (int i = 0; i < n; i++) {
        try {
            DeviceInfo info;
            ask(i, info);
            found.push_back(std::move(info));
        } catch (const Error&) {
            cudaGetLastError();  // it does not answer
        }
    }
    note = std::to_string(found.size()) + " CUDA device(s)";
    return found;
}

std::unique_ptr<Device> open_device(int index) {
    int n = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&n); error != cudaSuccess) {
        throw Error(Code::device, id_of(index) + ": " + why_none(error));
    }
    if (index < 0 || index >= n) {
        throw Error(Code::device,
                    format("%s is not there: %d device(s) found", id_of(index).c_str(), n));
    }
    DeviceInfo info;
    const cudaDeviceProp properties = ask(index, info);
    if (info.compute < kLeastCompute) {
        throw Error(Code::device,
                    format("%s (%s) has compute capability %s; %s is the least", info.id.c_str(),
                           info.name.c_str(), compute_text(info.compute).c_str(),
                           compute_text(kLeastCompute).c_str()));
    }
    const std::optional<uint64_t> before = used_bytes(properties);
    std::unique_ptr<GpuDevice> device;
    {
        const std::lock_guard<DeviceCard> lock(DeviceCard::of(info.id));
        device = std::make_unique<GpuDevice>(index, std::move(info));
    }
    const std::optional<uint64_t> after = used_bytes(properties);
    uint64_t context = kUnknownContext;
    if (before && after) context = *after > *before ? *after - *before + kContextGrows : 0;
    device->set_context_bytes(largest_context(index, context));
    return device;
}

}  // namespace ggml::GGML_GPU
