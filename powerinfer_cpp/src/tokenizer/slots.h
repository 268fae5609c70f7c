// A hash table of numbers, for keys that lie elsewhere. Eight bytes an entry and no memory of its
// own for each: a vocabulary of 262,000 texts in std::unordered_map took half of the time to load a
// small model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace powerinfer {

class Slots {
 public:
    // Makes it empty, with room for so many entries.
    explicit Slots(size_t n = 0) {
        size_t size = 2;
        while (size < 2 * n) size *= 2;
        slots_.resize(size);
    }

    // The entry with this hash for which same(entry) is true; -1: none.
    template <typename Same>
    int32_t find(size_t hash, const Same& same) const {
        for (size_t i = hash & mask(); slots_[i].entry >= 0; i = (i + 1) & mask()) {
            if (slots_[i].tag == tag(hash) && same(slots_[i].entry)) return slots_[i].entry;
        }
        return -1;
    }

    // Adds an entry, at least 0, whose key is not there yet. Not more than there is room for.
    void add(size_t hash, int32_t entry) {
        size_t i = hash & mask();
        while (slots_[i].entry >= 0) i = (i + 1) & mask();
        slots_[i] = {tag(hash), entry};
    }

 private:
    struct Slot {
        uint32_t tag = 0;
        int32_t entry = -1;  // free
    };
    static uint32_t tag(size_t hash) { return uint32_t(uint64_t(hash) >> 32); }
    size_t mask() const { return slots_.size() - 1; }
    std::vector<Slot> slots_;  // a power of two, at least half of them free
};

}  // namespace powerinfer
