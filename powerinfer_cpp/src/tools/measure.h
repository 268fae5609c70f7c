// Measures the machine, for `powerinfer doctor` and as a reference for benchmarks.
#pragma once

#include <cstdint>
#include <string>

#include "ggml/device.h"
#include "ggml/dtype.h"

namespace powerinfer {

// Bytes per second of reading n_bytes of memory.
double measure_read(int n_threads, uint64_t n_bytes);

// Multiply-adds per second of a 2048 x 4096 matrix times n_tokens tokens.
double measure_product(const ggml::DTypeInfo& type, int n_threads, int64_t n_tokens);

// A device, and how fast it is.
struct DeviceReport {
    ggml::DeviceInfo info;
    uint64_t free_bytes = 0, context_bytes = 0;
    double copy_per_s = 0;               // bytes that a copy inside reads and writes
    double in_per_s = 0, out_per_s = 0;  // bytes from and to pinned host memory
    double flag_s = 0;                   // a flag to the host and the answer back
    double launch_s = 0;                 // a graph of one small kernel, until it is done
    double node_s = 0;                   // each further kernel of a graph
};
// Copies n_bytes, of which it takes two on the device and one in RAM. Throws Error(device, memory).
DeviceReport measure_device(const std::string& id, uint64_t n_bytes);

// A way of reading a file.
struct DiskLoad {
    uint32_t bytes = 8192;  // of a read, a multiple of 512
    int depth = 128;        // reads in flight
    bool in_order = false;  // one after the other, else at random places
    uint64_t size = 0;      // only in so many bytes at the file's beginning; 0: in all of it
    double seconds = 0.5;
    uint64_t seed = 1;
};
// How fast that is.
struct DiskReport {
    std::string io, note;  // ggml::Reader's name and note
    bool direct = false;
    uint32_t align = 0;
    uint64_t file_bytes = 0, reads = 0;
    double reads_per_s = 0, bytes_per_s = 0;
    double cpu_s = 0;  // of the processor, for a read
};
// Takes depth * bytes of memory. Throws Error(io), and Error(argument) below 64 MiB of file.
DiskReport measure_disk(const std::string& path, const DiskLoad& load);

}  // namespace powerinfer
