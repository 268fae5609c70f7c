// Streams, events, graphs and memory of the shim.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "simt/cuda_runtime.h"
#include "simt/record.h"

namespace {

using Work = std::function<void()>;

constexpr size_t kMemory = size_t(64) << 30;
constexpr int kRuntime = 13000;
constexpr size_t kGranule = 512;  // of allocations, as on hardware

// The one device.
struct Device {
    std::mutex mutex;
    size_t total = kMemory, used = 0, most = 0;
    std::map<void*, size_t> allocations;
    size_t context = 0;
    bool has_context = false, context_known = true, watchdog = false;
    int compute = 75, driver = kRuntime, built = 75;
    std::set<const void*> loaded;
    int unloaded_launches = 0, releases_outside = 0;
    int fail_after = -1;
    std::string failure;
    cudaError_t last = cudaSuccess;

    // With the context; the caller has the mutex.
    size_t in_use() const { return used + (has_context ? context : 0); }
    size_t left() const { return total - std::min(in_use(), total); }
    bool failed() {
        const std::lock_guard<std::mutex> lock(mutex);
        return !failure.empty();
    }
    // Is it this call's turn to fail?
    bool turn() {
        if (fail_after < 0) return false;
        return fail_after-- == 0;
    }
};

Device& device() {
    static Device one;
    return one;
}

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        const std::lock_guard<std::mutex> lock(device().mutex);
        device().last = error;
    }
    return error;
}

// What every call that may fail begins with.
cudaError_t begin() {
    Device& d = device();
    const std::lock_guard<std::mutex> lock(d.mutex);
    if (!d.failure.empty() || d.turn()) return d.last = cudaErrorLaunchFailure;
    return cudaSuccess;
}

}  // namespace

struct CUgraph_st {
    std::vector<Work> works;
};
struct CUgraphExec_st {
    std::vector<Work> works;
};

// Work is done in order by a thread of its own.
struct CUstream_st {
    CUstream_st() : thread([this] { run(); }) {}
    ~CUstream_st() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            ending = true;
        }
        changed.notify_all();
        thread.join();
    }

    void put(Work work) {
        if (graph) {
            graph->works.push_back(std::move(work));
            return;
        }
        {
            const std::lock_guard<std::mutex> lock(mutex);
            queue.push_back(std::move(work));
        }
        changed.notify_all();
    }
    void drain() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return queue.empty() && !busy; });
    }
    bool idle() {
        const std::lock_guard<std::mutex> lock(mutex);
        return queue.empty() && !busy;
    }

    std::unique_ptr<CUgraph_st> graph;  // that is being captured

 private:
    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return ending || !queue.empty(); });
            if (queue.empty()) return;
            const Work work = std::move(queue.front());
            queue.pop_front();
            busy = true;
            lock.unlock();
            // After a failure nothing runs any more, but what waits for the stream goes on.
            if (!device().failed()) {
                try {
                    work();
                } catch (const shim::Failure& failure) {
                    const std::lock_guard<std::mutex> at_device(device().mutex);
                    device().failure = failure.what();
                }
            }
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool busy = false, ending = false;
    std::thread thread;  // last: it uses the others
};

struct CUevent_st {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;

    void reach(uint64_t n) {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            if (n > reached) reached = n;
        }
        changed.notify_all();
    }
    void wait_for(uint64_t n) {
        std::unique_lock<std::mutex> lock(mutex);
        // A stream that failed reaches no event.
        while (reached < n && !device().failed()) {
            changed.wait_for(lock, std::chrono::milliseconds(10));
        }
    }
};

namespace shim {

cudaError_t launch(const cudaLaunchConfig_t& config, const void* address,
                   std::vector<std::string> parameters, std::function<void()> kernel) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    {
        const std::lock_guard<std::mutex> lock(device().mutex);
        device().unloaded_launches += device().loaded.count(address) == 0;
    }
    if (!config.stream) return result(cudaErrorInvalidValue);  // the default stream is not used
    const Extent grid{config.gridDim.x, config.gridDim.y, config.gridDim.z};
    const Extent block{config.blockDim.x, config.blockDim.y, config.blockDim.z};
    const bool empty = !grid.count() || !block.count();
    if (empty || block.count() > kMaxThreads) return result(cudaErrorInvalidConfiguration);
    const Launch launch{address, grid, block, config.dynamicSmemBytes, std::move(parameters)};
    config.stream->put([=] {
        const bool recorded = recording() && record_before(launch);
        run(grid, block, kernel);
        if (recorded) record_after();
    });
    return cudaSuccess;
}

void set_memory(size_t bytes) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().total = bytes;
    device().most = device().used;
}

void set_context(size_t bytes, bool known) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().context = bytes;
    device().context_known = known;
    device().has_context = false;
}

std::optional<uint64_t> used() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    if (!device().context_known) return std::nullopt;
    return device().in_use();
}

void set_watchdog(bool on) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().watchdog = on;
}

void set_card(int compute, int driver, int built) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().compute = compute;
    device().driver = driver;
    device().built = built;
}

int unloaded_launches() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    return device().unloaded_launches;
}

int releases_outside() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    return device().releases_outside;
}

size_t allocated() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    return device().used;
}

size_t most_allocated() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    return device().most;
}

void fail_after(int n) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().fail_after = n;
}

std::string failure() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    return device().failure;
}

void clear_failure() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().failure.clear();
    device().last = cudaSuccess;
}

}  // namespace shim

void __nanosleep(unsigned nanoseconds) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorInsufficientDriver:
            return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorNoKernelImageForDevice:
            return "no kernel image is available for execution on the device";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorLaunchFailure:
            break;
    }
    // NVIDIA's text is "unspecified launch failure"; here the reason is known.
    static thread_local std::string text;
    text = shim::failure();
    return text.empty() ? "unspecified launch failure" : text.c_str();
}

cudaError_t cudaGetLastError() {
    const std::lock_guard<std::mutex> lock(device().mutex);
    const cudaError_t last = device().last;
    if (device().failure.empty()) device().last = cudaSuccess;
    return last;
}

cudaError_t cudaDriverGetVersion(int* version) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    *version = device().driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = kRuntime;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* n) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    *n = 0;
    if (device().driver < kRuntime) return device().last = cudaErrorInsufficientDriver;
    *n = device().total > 0;
    return *n ? cudaSuccess : cudaErrorNoDevice;
}

namespace {

thread_local bool entered = false;

void note_release() {
    if (entered) return;
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().releases_outside++;
}

}  // namespace

cudaError_t cudaSetDevice(int index) {
    if (index != 0) return result(cudaErrorInvalidDevice);
    entered = true;
    const std::lock_guard<std::mutex> lock(device().mutex);
    device().has_context = true;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
    attributes->sharedSizeBytes = 0;
    const std::lock_guard<std::mutex> lock(device().mutex);
    if (device().compute < device().built) return device().last = cudaErrorNoKernelImageForDevice;
    device().loaded.insert(kernel);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
    if (index != 0) return result(cudaErrorInvalidDevice);
    *properties = {};
    std::strcpy(properties->name, "CPU as a GPU");
    properties->totalGlobalMem = device().total;
    properties->major = device().compute / 10;
    properties->minor = device().compute % 10;
    properties->multiProcessorCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    *value = device().watchdog;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    const std::lock_guard<std::mutex> lock(device().mutex);
    *total_bytes = device().total;
    *free_bytes = device().left();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
    *memory = nullptr;
    Device& d = device();
    const std::lock_guard<std::mutex> lock(d.mutex);
    if (!d.failure.empty()) return d.last = cudaErrorLaunchFailure;
    const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
    if (d.turn() || size > d.left()) {
        return d.last = cudaErrorMemoryAllocation;
    }
    // Exactly `bytes` for the address sanitizer; aligned as CUDA promises.
    if (posix_memalign(memory, 256, bytes) != 0) return d.last = cudaErrorMemoryAllocation;
    std::memset(*memory, 0xa5, bytes);
    d.allocations[*memory] = size;
    d.used += size;
    d.most = std::max(d.most, d.used);
    shim::note_allocation(*memory, bytes, false);
    return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
    if (!memory) return cudaSuccess;
    note_release();
    Device& d = device();
    const std::lock_guard<std::mutex> lock(d.mutex);
    const auto found = d.allocations.find(memory);
    if (found == d.allocations.end()) return d.last = cudaErrorInvalidValue;
    d.used -= found->second;
    d.allocations.erase(found);
    shim::note_free(memory);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
    *memory = nullptr;
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    if (posix_memalign(memory, 4096, bytes) != 0) return result(cudaErrorMemoryAllocation);
    std::memset(*memory, 0xa5, bytes);
    shim::note_allocation(*memory, bytes, true);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
    note_release();
    shim::note_free(memory);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) {
    return begin();
}

cudaError_t cudaHostUnregister(void*) {
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** to, void* host, unsigned) {
    *to = host;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    stream->put([=] {
        std::memcpy(to, from, bytes);
        shim::note_write(to, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    stream->put([=] {
        std::memset(to, byte, bytes);
        shim::note_write(to, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    *stream = new CUstream_st;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    note_release();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    stream->drain();
    return device().failed() ? result(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (device().failed()) return result(cudaErrorLaunchFailure);
    return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    uint64_t n = 0;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        n = event->recorded;
    }
    stream->put([=] { event->wait_for(n); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    *event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    note_release();
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    uint64_t n = 0;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        n = ++event->recorded;
    }
    stream->put([=] { event->reach(n); });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (device().failed()) return result(cudaErrorLaunchFailure);
    const std::lock_guard<std::mutex> lock(event->mutex);
    return event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    uint64_t n = 0;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        n = event->recorded;
    }
    event->wait_for(n);
    return device().failed() ? result(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stream->graph) return result(cudaErrorInvalidValue);
    stream->graph = std::make_unique<CUgraph_st>();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    if (!stream->graph) return result(cudaErrorInvalidValue);
    *graph = stream->graph.release();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, size_t* n) {
    *n = graph->works.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    *exec = new CUgraphExec_st{graph->works};
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    note_release();
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    const cudaError_t error = begin();
    if (error != cudaSuccess) return error;
    for (const Work& work : exec->works) stream->put(work);
    return cudaSuccess;
}
