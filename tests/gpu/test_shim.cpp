// The executor of kernels on the CPU: what CUDA promises holds, in every order of threads, and what
// it forbids is an error that names the place.
#include <atomic>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "ggml/check.h"

namespace {

constexpr unsigned kAll = 0xffffffff;

// Runs a kernel; what failed, "" where nothing did.
template <typename Kernel>
std::string run(unsigned blocks, unsigned threads, const Kernel& kernel) {
    try {
        shim::run({blocks, 1, 1}, {threads, 1, 1}, kernel);
    } catch (const shim::Failure& failure) {
        return failure.what();
    }
    return "";
}

bool contains(const std::string& text, const char* part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "\"%s\" lacks \"%s\"\n", text.c_str(), part);
    return false;
}

void test_warps() {
    std::vector<int> out(64);
    const auto test = [&](const auto& kernel, const auto& expected) {
        std::fill(out.begin(), out.end(), -1);
        CHECK(run(1, 64, [&] { out[threadIdx.x] = kernel(int(threadIdx.x)); }) == "");
        for (int i = 0; i < 64; i++) CHECK(out[size_t(i)] == expected(i));
    };
    test([](int i) { return __shfl_sync(kAll, i, 3); }, [](int i) { return i / 32 * 32 + 3; });
    // Sub-warps of eight: a lane's number counts within its own.
    test([](int i) { return __shfl_sync(kAll, i, 2, 8); }, [](int i) { return i / 8 * 8 + 2; });
    test([](int i) { return __shfl_xor_sync(kAll, i, 5); }, [](int i) { return i ^ 5; });
    test([](int i) { return __shfl_down_sync(kAll, i, 3u); },
         [](int i) { return i % 32 + 3 < 32 ? i + 3 : i; });
    test([](int i) { return __shfl_up_sync(kAll, i, 3u, 16); },
         [](int i) { return i % 16 >= 3 ? i - 3 : i; });
    test([](int i) { return int(__ballot_sync(kAll, i % 3 == 0) >> (i % 32) & 1); },
         [](int i) { return i % 3 == 0; });
    test([](int i) { return __any_sync(kAll, i == 40); }, [](int i) { return i >= 32; });
    test([](int i) { return int(__shfl_xor_sync(kAll, int64_t(i) << 33, 1) >> 33); },
         [](int i) { return i ^ 1; });
    test([](int i) { return __dp4a(int(0x80ff017fu), int(0x02030405u), i); },
         [](int i) { return i + 127 * 5 + 4 - 3 - 256; });
    test([](int) { return int(__byte_perm(0x33221100, 0x77665544, 0x7250)); },
         [](int) { return 0x77225500; });
    // A mask of some lanes, while the others do something else.
    test(
        [](int i) {
            const bool even = i % 2 == 0;
            return even ? __shfl_sync(0x55555555, i, 4) : __shfl_sync(0xaaaaaaaa, i, 5);
        },
        [](int i) { return i / 32 * 32 + 4 + i % 2; });
    // Loops whose number of turns differs between warps, and lanes that have ended.
    test(
        [](int i) {
            int sum = 0;
            for (int k = 0; k <= i / 32; k++) sum += __shfl_sync(kAll, i, 0);
            return sum;
        },
        [](int i) { return i < 32 ? 0 : 64; });
    CHECK(run(1, 64, [&] {
              if (threadIdx.x % 32 >= 20) return;
              out[threadIdx.x] = __shfl_sync(kAll, int(threadIdx.x), 7);
          }) == "");
    CHECK(out[0] == 7 && out[51] == 39);
}

void test_blocks() {
    std::vector<int> out(3 * 96);
    // Every thread reads what another warp wrote; threads that have ended count as arrived.
    CHECK(run(3, 100, [&] {
              int* shared = static_cast<int*>(shim::shared_memory(96 * 4, shim::Place::current()));
              if (threadIdx.x >= 96) return;
              shared[threadIdx.x] = int(threadIdx.x);
              __syncthreads();
              out[blockIdx.x * 96 + threadIdx.x] = shared[95 - threadIdx.x];
          }) == "");
    for (size_t i = 0; i < out.size(); i++) CHECK(out[i] == int(95 - i % 96));
    CHECK(run(1, 96, [&] { out[threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0); }) == "");
    CHECK(out[0] == 32 && out[95] == 32);
    CHECK(run(1, 96, [&] { out[threadIdx.x] = __syncthreads_or(threadIdx.x == 90); }) == "");
    CHECK(out[0] == 1);
}

// The same without the barrier must be seen in at least one order, or orders are good for nothing.
int wrong_without_barrier() {
    std::vector<int> out(96);
    CHECK(run(1, 96, [&] {
              int* shared = static_cast<int*>(shim::shared_memory(96 * 4, shim::Place::current()));
              shared[threadIdx.x] = int(threadIdx.x);
              out[threadIdx.x] = shared[95 - threadIdx.x];
          }) == "");
    int wrong = 0;
    for (size_t i = 0; i < out.size(); i++) wrong += out[i] != int(95 - i);
    return wrong;
}

void test_misuse() {
    const auto two = [] {
        if (threadIdx.x < 16) {
            __shfl_sync(kAll, 1, 0);
        } else {
            __ballot_sync(kAll, 1);
        }
    };
    CHECK(contains(run(1, 32, two), "lanes of a warp are at different collectives"));
    CHECK(contains(run(1, 32, two), "test_shim.cpp:"));
    CHECK(contains(run(1, 32, [] { __shfl_sync(0xffff0000, 1, 0); }), "its own mask leaves out"));
    CHECK(contains(run(1, 32,
                       [] {
                           if (threadIdx.x < 16) __shfl_sync(0xffff, 1, 20);
                       }),
                   "reads lane 20, which takes no part"));
    CHECK(contains(run(1, 32,
                       [] {
                           if (threadIdx.x != 5) __shfl_sync(kAll, 1, 5);
                       }),
                   "reads lane 5, which takes no part"));
    const std::string apart = run(1, 64, [] {
        if (threadIdx.x < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    });
    CHECK(contains(apart, "different barriers"));
    // A lane waits for its warp, which waits for the block.
    const std::string hang = run(1, 64, [] {
        if (threadIdx.x == 3) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    });
    CHECK(contains(hang, "for ever: "));
    CHECK(contains(hang, "thread 3 at test_shim.cpp:"));
    CHECK(contains(run(1, 1, [] { shim::shared_memory(50000, shim::Place::current()); }),
                   "shared memory"));
    CHECK(contains(run(1, 2000, [] {}), "2000 threads"));
    CHECK(contains(run(1, 8, [] { throw std::runtime_error("own"); }), "own"));
    CHECK(run(1, 64, [] { __syncthreads(); }) == "");  // a failure leaves nothing behind
}

void increment(int* x, int n) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i]++;
}

void wait_for(const unsigned* flag) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) __nanosleep(1000);
}

void diverge(int) {
    if (threadIdx.x == 0)
        __syncwarp();
    else
        __ballot_sync(kAll, 1);
}

cudaError_t launch(cudaStream_t stream, auto* kernel, unsigned blocks, unsigned threads,
                   auto... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

void test_runtime() {
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices) == cudaSuccess && devices == 1);
    shim::set_memory(1 << 20);
    void *a = nullptr, *b = nullptr;
    CHECK(cudaMalloc(&a, 4000) == cudaSuccess && shim::allocated() == 4096);
    CHECK(cudaMalloc(&b, 1 << 20) == cudaErrorMemoryAllocation && !b);
    size_t free_bytes = 0, total = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
    CHECK(free_bytes == total - 4096 && shim::most_allocated() == 4096);
    shim::fail_after(1);
    CHECK(cudaMalloc(&b, 512) == cudaSuccess && cudaFree(b) == cudaSuccess);
    CHECK(cudaMalloc(&b, 512) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);

    cudaStream_t stream = nullptr, other = nullptr;
    cudaEvent_t event = nullptr;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    int* x = static_cast<int*>(a);
    std::vector<int> host(1000, 5);
    CHECK(cudaMemcpyAsync(x, host.data(), 4000, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(launch(stream, increment, 4, 256, x, 1000) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
    CHECK(launch(other, increment, 4, 256, x, 1000) == cudaSuccess);
    CHECK(cudaMemcpyAsync(host.data(), x, 4000, cudaMemcpyDeviceToHost, other) == cudaSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess && host[0] == 7 && host[999] == 7);

    // A graph: recorded once, not run; then launched as often as one likes.
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(launch(stream, increment, 4, 256, x, 1000) == cudaSuccess);
    CHECK(launch(stream, increment, 4, 256, x, 1000) == cudaSuccess);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess && nodes == 2);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && x[500] == 13);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);

    // A kernel waits for the host, which goes on meanwhile.
    unsigned flag = 0;
    CHECK(launch(stream, wait_for, 1, 1, static_cast<const unsigned*>(&flag)) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    __atomic_store_n(&flag, 1u, __ATOMIC_RELEASE);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);

    // A grid or block that cannot be: an error of that launch only.
    CHECK(launch(stream, increment, 0, 32, x, 1) == cudaErrorInvalidConfiguration);
    CHECK(launch(stream, increment, 1, 0, x, 1) == cudaErrorInvalidConfiguration);
    CHECK(launch(stream, increment, 1, 1025, x, 1) == cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(launch(stream, increment, 1, 32, x, 1) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);

    // A kernel that does wrong: every later call fails, none hangs.
    CHECK(launch(stream, diverge, 1, 32, 0) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK(contains(cudaGetErrorString(cudaErrorLaunchFailure), "different collectives"));
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaErrorLaunchFailure);
    CHECK(launch(stream, increment, 1, 32, x, 1) == cudaErrorLaunchFailure);
    CHECK(cudaMalloc(&b, 512) == cudaErrorLaunchFailure);
    shim::clear_failure();
    CHECK(launch(stream, increment, 1, 32, x, 1) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && x[0] == 15);

    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess && cudaStreamDestroy(other) == cudaSuccess);
    CHECK(cudaFree(a) == cudaSuccess && shim::allocated() == 0);
    CHECK(cudaFree(&flag) == cudaErrorInvalidValue);
    shim::set_memory(0);
    CHECK(cudaGetDeviceCount(&devices) == cudaErrorNoDevice && devices == 0);
}

}  // namespace

int main() {
    int seen = 0;
    for (shim::Order order : shim::kOrders) {
        shim::set_order(order);
        test_warps();
        test_blocks();
        test_misuse();
        seen += wrong_without_barrier() > 0;
    }
    CHECK(seen > 0);
    test_runtime();
    return check::summary("test_shim");
}
