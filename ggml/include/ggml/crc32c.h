// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds bytes that a disk changed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ggml {

// The checksum of n bytes; of a longer run of bytes if `crc` is that of those before them.
uint32_t crc32c(const void* data, size_t n, uint32_t crc = 0);

// What crc32c() runs: with the processor's instruction where it has one, else with tables.
const char* crc32c_method();
// The tables' version, for tests.
uint32_t crc32c_by_table(const void* data, size_t n, uint32_t crc = 0);

}  // namespace ggml
