#include "storage/cache/resident_file.h"

#include <cmath>
#include <cstring>

#include "ggml/crc32c.h"
#include "ggml/file_io.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

struct Header {
    char magic[4] = {'P', 'I', 'R', 'S'};
    uint32_t version = 1;
    uint64_t owner = 0;
    int32_t n_blocks = 0, n = 0;
    uint64_t count = 0;
};
static_assert(sizeof(Header) == 32);

struct Record {
    uint32_t part;
    float worth;
};

Header header_of(const ResidentOwner& owner, size_t count) {
    Header header;
    header.owner = 0xcbf29ce484222325;
    for (const char c : owner.hash) header.owner = (header.owner ^ uint8_t(c)) * 0x100000001b3;
    header.n_blocks = owner.n_blocks;
    header.n = owner.n;
    header.count = count;
    return header;
}

}  // namespace

void save_resident(const std::string& path, const ResidentOwner& owner,
                   const std::vector<RankedPart>& parts) {
    const Header header = header_of(owner, parts.size());
    std::vector<Record> records;
    records.reserve(parts.size());
    for (const RankedPart& p : parts) {
        const auto part = uint32_t(int64_t(p.block) * owner.n + p.id);
        records.push_back({part * 2 + uint32_t(p.half), p.worth});
    }
    const size_t size = records.size() * sizeof(Record);
    const uint32_t crc = ggml::crc32c(records.data(), size, ggml::crc32c(&header, sizeof(header)));
    ggml::OutputFile file(path);
    file.write(&header, sizeof(header));
    file.write(records.data(), size);
    file.write(&crc, sizeof(crc));
    file.finish();
}

std::vector<RankedPart> load_resident(const std::string& path, const ResidentOwner& owner) {
    std::vector<RankedPart> parts;
    if (!ggml::file_exists(path)) return parts;
    try {
        const ggml::File file(path);
        Header header;
        uint32_t crc;
        if (file.size() < sizeof(header) + sizeof(crc)) return parts;
        file.read(0, &header, sizeof(header));
        const uint64_t size = file.size() - sizeof(header) - sizeof(crc);
        const Header expected = header_of(owner, size_t(size / sizeof(Record)));
        const uint64_t most = 2 * uint64_t(owner.n_blocks) * uint64_t(owner.n);
        if (size % sizeof(Record) || size / sizeof(Record) > most ||
            std::memcmp(&header, &expected, sizeof(header))) {
            return parts;
        }
        std::vector<Record> records(size_t(header.count));
        file.read(sizeof(header), records.data(), size_t(size));
        file.read(sizeof(header) + size, &crc, sizeof(crc));
        const uint32_t own = ggml::crc32c(&header, sizeof(header));
        if (crc != ggml::crc32c(records.data(), size_t(size), own)) return parts;
        for (const Record& r : records) {
            const uint32_t part = r.part / 2;
            if (part >= uint64_t(owner.n_blocks) * uint64_t(owner.n) || !std::isfinite(r.worth)) {
                return {};
            }
            parts.push_back({Half(r.part % 2), int32_t(part / uint32_t(owner.n)),
                             int32_t(part % uint32_t(owner.n)), r.worth});
        }
    } catch (const ggml::Error&) {
        return {};
    }
    return parts;
}

}  // namespace powerinfer
