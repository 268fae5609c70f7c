// Device over the CUDA run time.
#include <map>

#include "ggml/sizes.h"
#include "gpu/device.h"
#include "gpu/launch.h"
#include "gpu/ops.h"

namespace ggml::GGML_GPU {

namespace {

constexpr int kLeastCompute = 75;  // Turing: what the kernels are compiled for

std::string describe(cudaError_t error) {
    return cudaGetErrorString(error);
}

class GpuDevice : public Device {
 public:
    GpuDevice(int index, DeviceInfo info) : index_(index), info_(std::move(info)) { enter(); }

    void enter() override { check(cudaSetDevice(index_), "selecting the device"); }
    const DeviceInfo& info() const override { return info_; }
    const DeviceOps& ops() const override { return GGML_GPU::ops(); }
    uint64_t free_bytes() const override {
        size_t free_bytes = 0, total = 0;
        check(cudaMemGetInfo(&free_bytes, &total), "asking for free device memory");
        return free_bytes;
    }
    uint64_t allocated_bytes() const override { return allocated_; }

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
        sizes_[memory] = taken;
        allocated_ += taken;
        return memory;
    }
    void release(void* memory) noexcept override {
        const auto found = sizes_.find(memory);
        if (found != sizes_.end()) {
            allocated_ -= found->second;
            sizes_.erase(found);
        }
        cudaFree(memory);
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
    void release_shared(void* memory) noexcept override { cudaFreeHost(memory); }

    DeviceStream* new_stream() override {
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a new stream");
        return reinterpret_cast<DeviceStream*>(stream);
    }
    void release(DeviceStream* stream) noexcept override {
        cudaStreamSynchronize(handle(stream));
        cudaStreamDestroy(handle(stream));
    }
    void copy_in(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle(stream)),
              "copying to the device");
    }
    void copy_out(DeviceStream* stream, void* to, const void* from, uint64_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle(stream)),
              "copying from the device");
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

    DeviceEvent* new_event() override {
        cudaEvent_t event = nullptr;
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a new event");
        return reinterpret_cast<DeviceEvent*>(event);
    }
    void release(DeviceEvent* event) noexcept override { cudaEventDestroy(handle(event)); }
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
        cudaGraphExecDestroy(of(graph)->exec);
        delete of(graph);
    }

 private:
    struct Graph {
        cudaGraphExec_t exec = nullptr;
        int nodes = 0;
    };
    static Graph* of(DeviceGraph* graph) { return reinterpret_cast<Graph*>(graph); }
    static cudaEvent_t handle(DeviceEvent* event) { return reinterpret_cast<cudaEvent_t>(event); }
    static cudaStream_t handle(DeviceStream* stream) { return GGML_GPU::handle(stream); }

    const int index_;
    DeviceInfo info_;
    uint64_t allocated_ = 0;
    std::map<void*, uint64_t> sizes_;
};

// What a device says of itself, under the id that it gets. Nothing where it does not answer.
bool ask(int index, const std::string& id, DeviceInfo& info) {
    cudaDeviceProp properties;
    size_t free_bytes = 0, total = 0;
    if (cudaSetDevice(index) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, index) != cudaSuccess ||
        cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    info = {id, properties.name, 10 * properties.major + properties.minor, total, free_bytes};
    return true;
}

std::string id_of(int index) {
    return kKind + std::to_string(index);
}

}  // namespace

std::vector<DeviceInfo> devices(std::string& note) {
    std::vector<DeviceInfo> found;
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess) {
        cudaGetLastError();
        note = "no CUDA device: " + describe(error);
        return found;
    }
    for (int i = 0; i < n; i++) {
        DeviceInfo info;
        if (ask(i, id_of(i), info)) found.push_back(std::move(info));
    }
    note = std::to_string(found.size()) + " CUDA device(s)";
    return found;
}

std::unique_ptr<Device> open_device(int index) {
    DeviceInfo info;
    int n = 0;
    check(cudaGetDeviceCount(&n), "looking for devices");
    if (index < 0 || index >= n || !ask(index, id_of(index), info)) {
        throw Error(Code::device, id_of(index) + " is not there");
    }
    if (info.compute < kLeastCompute) {
        throw Error(Code::device,
                    format("%s (%s) has compute capability %d.%d; %d.%d is the least",
                           info.id.c_str(), info.name.c_str(), info.compute / 10, info.compute % 10,
                           kLeastCompute / 10, kLeastCompute % 10));
    }
    return std::make_unique<GpuDevice>(index, std::move(info));
}

}  // namespace ggml::GGML_GPU
