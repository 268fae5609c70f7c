// SHA-256 (FIPS 180-4), for the hashes in placements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace powerinfer {

class Sha256 {
 public:
    void add(const void* data, size_t n);
    void add(const std::string& text) { add(text.data(), text.size()); }
    // 64 hexadecimal digits of all added bytes. The object cannot be used afterwards.
    std::string hex();

 private:
    void compress(const uint8_t* block);
    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block_[64];  // its first n_ % 64 bytes are pending
    uint64_t n_ = 0;
};

}  // namespace powerinfer
