// CRC-32C: the examples of RFC 3720, both ways of computing it, and pieces that are added up.
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "ggml/crc32c.h"

using namespace ggml;

namespace {

void of_the_rfc() {  // appendix B.4, and the check value of the catalogue of CRCs
    uint8_t up[32], down[32], command[48] = {};
    for (int i = 0; i < 32; i++) up[i] = uint8_t(i), down[i] = uint8_t(31 - i);
    const uint8_t zeros[32] = {};
    uint8_t ones[32];
    std::memset(ones, 255, sizeof(ones));
    command[0] = 1, command[1] = 0xc0;  // an iSCSI command PDU
    command[16] = 0x14, command[22] = 4, command[27] = 0x14, command[31] = 0x18;
    command[32] = 0x28, command[40] = 2;
    for (const auto crc : {crc32c, crc32c_by_table}) {
        CHECK(crc(zeros, 32, 0) == 0x8a9136aa);
        CHECK(crc(ones, 32, 0) == 0x62a8ab43);
        CHECK(crc(up, 32, 0) == 0x46dd794e);
        CHECK(crc(down, 32, 0) == 0x113fdb5c);
        CHECK(crc(command, 48, 0) == 0xd9963a56);
        CHECK(crc("123456789", 9, 0) == 0xe3069283);
        CHECK(crc(nullptr, 0, 0) == 0 && crc(nullptr, 0, 7) == 7);
    }
}

void sizes_and_places() {
    std::mt19937 rng(1);
    std::vector<uint8_t> bytes(4000);
    for (uint8_t& b : bytes) b = uint8_t(rng());
    for (size_t n = 0; n < 3000; n += n < 40 ? 1 : 61) {
        for (size_t at : {0, 1, 7}) {
            const uint32_t want = crc32c_by_table(bytes.data() + at, n);
            CHECK(crc32c(bytes.data() + at, n) == want);
            const size_t cut = n / 3;
            const uint32_t head = crc32c(bytes.data() + at, cut);
            CHECK(crc32c(bytes.data() + at + cut, n - cut, head) == want);
        }
    }
}

void speed() {
    std::vector<uint8_t> bytes(7168, 5);
    for (const auto crc : {crc32c, crc32c_by_table}) {
        constexpr int n = 2000;
        uint32_t sum = 0;
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < n; i++) sum += crc(bytes.data(), bytes.size(), sum);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        std::printf("%s: %.2f us for 7,168 bytes (%x)\n", crc == crc32c ? crc32c_method() : "table",
                    1e6 * took.count() / n, sum);
    }
}

}  // namespace

int main() {
    of_the_rfc();
    sizes_and_places();
    speed();
    return check::summary("crc32c");
}
