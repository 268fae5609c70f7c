// What NVIDIA's management library says of GPUs: it needs no context, so it can be asked before one
// takes memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ggml::nvml {

// Bytes in use on the GPU with this UUID (16 bytes), by all processes. Nothing where the library is
// missing or does not know the GPU (parts of one, MIG).
std::optional<uint64_t> used_bytes(const char* uuid);

// "580.65.06"; "" where the library is missing.
std::string driver_version();

}  // namespace ggml::nvml
