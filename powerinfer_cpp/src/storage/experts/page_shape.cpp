#include "storage/experts/page_shape.h"

#include <algorithm>
#include <cmath>

#include "ggml/carver.h"
#include "ggml/sizes.h"

namespace powerinfer {

int32_t PageShape::part_of(int64_t block) const {
    return int32_t(std::upper_bound(before.begin(), before.end(), block) - before.begin()) - 1;
}

int64_t PageShape::blocks_of(int32_t of_class) const {
    int64_t n = 0;
    for (size_t part = 0; part < class_of.size(); part++) {
        if (class_of[part] == of_class) n += before[part + 1] - before[part];
    }
    return n;
}

int64_t PageShape::slots() const {
    int64_t n = 0;
    for (const Class& c : classes) n += c.slots;
    return n;
}

uint64_t PageShape::cached() const {
    uint64_t bytes = 0;
    for (const Class& c : classes) bytes += uint64_t(c.slots) * c.page;
    return bytes;
}

uint64_t PageShape::missing() const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < classes.size(); i++) {
        bytes += uint64_t(blocks_of(int32_t(i)) - classes[i].slots) * classes[i].page;
    }
    return bytes;
}

std::vector<int32_t> PageShape::spread() const {
    std::vector<int32_t> paged, order;
    for (int32_t block = 0; block < int32_t(n_blocks()); block++) {
        if (class_of[size_t(part_of(block))] >= 0) paged.push_back(block);
    }
    // Halves, quarters and so on: places whose bits count up in reverse.
    int bits = 0;
    while ((size_t(1) << bits) < paged.size()) bits++;
    for (size_t i = 0; i < size_t(1) << bits; i++) {
        size_t place = 0;
        for (int bit = 0; bit < bits; bit++) place |= ((i >> bit) & 1) << (bits - 1 - bit);
        if (place < paged.size()) order.push_back(paged[place]);
    }
    return order;
}

void PageShape::set_share(double share) {
    for (size_t i = 0; i < classes.size(); i++) {
        classes[i].slots = int64_t(std::floor(share * double(blocks_of(int32_t(i)))));
    }
}

ResidencyShape PageShape::residency(int32_t of_class) const {
    ResidencyShape shape;
    shape.n_blocks = n_parts();
    shape.gate_slots = classes[size_t(of_class)].slots;
    shape.before.push_back(0);
    for (size_t part = 0; part < class_of.size(); part++) {
        const int64_t n = class_of[part] == of_class ? before[part + 1] - before[part] : 0;
        shape.before.push_back(shape.before.back() + n);
        shape.n = std::max(shape.n, int32_t(n));
    }
    return shape;
}

uint64_t PageShape::bytes() const {
    if (!*this) return 0;
    uint64_t all = ggml::size_product(uint64_t(landings), landing);
    for (size_t i = 0; i < classes.size(); i++) {
        const Class& c = classes[i];
        all = ggml::size_sum(all, ggml::size_product(uint64_t(c.slots + in_use), c.page));
        all = ggml::size_sum(all, ggml::carved_bytes<Residency>(residency(int32_t(i))));
    }
    const uint64_t tables = ggml::size_product(uint64_t(n_blocks()), kTables);
    return ggml::size_sum(all, tables);
}

}  // namespace powerinfer
