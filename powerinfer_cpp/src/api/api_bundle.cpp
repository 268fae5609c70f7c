// C API (powerinfer.h): bundles of neuron rows, and bundled files.
#include <algorithm>
#include <string>

#include "api/api.h"
#include "files/find_bundle.h"
#include "files/write_bundle.h"

using namespace powerinfer::api;

namespace {

// Row types that files may have, of rows of this many weights.
std::vector<ggml::DType> row_types(const uint32_t* types, int32_t n, int64_t cols) {
    require(cols >= 1 && cols <= 1 << 20, "the sizes of the rows are out of range");
    std::vector<ggml::DType> found;
    for (int32_t i = 0; i < n; i++) {
        const ggml::DTypeInfo* t = ggml::find_dtype(types[i]);
        require(t && t->is_float(),
                "not a floating-point or quantised type that this engine knows");
        require(cols % t->block == 0, "the number of elements is not a multiple of the block");
        found.push_back(t->type);
    }
    return found;
}

// Do n rows fit into a buffer?
void require_room(int64_t n, int64_t row, size_t size) {
    require(n >= 0, "the sizes of the rows are out of range");
    require(uint64_t(n) <= size / uint64_t(row), "the buffer is too small");
}

powerinfer::BundleLayout bundle_layout(const uint32_t* types, int32_t n_parts, int64_t cols,
                                       int64_t n, int32_t part, size_t stored, size_t bundles) {
    require(types && n_parts >= 1 && part >= 0 && part < n_parts, "no such part of a bundle");
    const powerinfer::BundleLayout layout{row_types(types, n_parts, cols), cols};
    require_room(n, ggml::info(layout.parts[size_t(part)]).size(cols), stored);
    require_room(n, layout.stride(), bundles);
    return layout;
}

powerinfer::StoreLayout store_layout(const uint32_t* types, int32_t n_rows, int64_t cols,
                                     int64_t align, int64_t n, size_t neurons) {
    require(types && (n_rows == 2 || n_rows == 3), "a neuron has two or three rows");
    require(powerinfer::StoreLayout::valid_align(align), "align must be 512, 1024, 2048 or 4096");
    const auto layout = powerinfer::StoreLayout::of(row_types(types, n_rows, cols), cols, align);
    require_room(n, layout.stride, neurons);
    return layout;
}

void require_row(const powerinfer::StoreLayout& layout, int32_t row, int64_t n, size_t size) {
    require(row >= 0 && size_t(row) < layout.rows.size(), "no such row of a neuron");
    require_room(n, layout.rows[size_t(row)].bytes, size);
}

// Gives the caller a path.
void give_path(const std::string& found, char* path, size_t capacity, size_t* length) {
    *length = found.size();
    if (found.empty()) return;
    require(found.size() < capacity, "the buffer for the path is too small");
    std::copy(found.c_str(), found.c_str() + found.size() + 1, path);
}

}  // namespace

extern "C" {

int32_t pi_bundle_version(void) {
    return int32_t(powerinfer::kMemoryVersion);
}

pi_status pi_bundle_put(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                        int32_t part, const void* rows, size_t rows_size, void* bundles,
                        size_t bundles_size) {
    return guarded([&] {
        require((rows && bundles) || !n, "NULL where a buffer is expected");
        bundle_layout(types, n_parts, cols, n, part, rows_size, bundles_size)
            .put(size_t(part), static_cast<const uint8_t*>(rows), n,
                 static_cast<uint8_t*>(bundles));
    });
}

pi_status pi_bundle_take(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                         int32_t part, const void* bundles, size_t bundles_size, void* rows,
                         size_t rows_size) {
    return guarded([&] {
        require((rows && bundles) || !n, "NULL where a buffer is expected");
        bundle_layout(types, n_parts, cols, n, part, rows_size, bundles_size)
            .take(size_t(part), static_cast<const uint8_t*>(bundles), n,
                  static_cast<uint8_t*>(rows));
    });
}

pi_status pi_store_layout_of(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                             pi_store_layout* out) {
    return guarded([&] {
        const powerinfer::StoreLayout l = store_layout(types, n_rows, cols, align, 0, 0);
        pi_store_layout result{sizeof(result), l.stride, l.gate_range.bytes, {}};
        for (size_t i = 0; i < l.rows.size(); i++) result.offset[i] = l.rows[i].offset;
        give(out, result);
    });
}

pi_status pi_store_put(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                       int64_t n, int32_t row, const void* rows, size_t rows_size, void* neurons,
                       size_t neurons_size) {
    return guarded([&] {
        require((rows && neurons) || !n, "NULL where a buffer is expected");
        const auto layout = store_layout(types, n_rows, cols, align, n, neurons_size);
        require_row(layout, row, n, rows_size);
        layout.put(size_t(row), static_cast<const uint8_t*>(rows), n,
                   static_cast<uint8_t*>(neurons));
    });
}

pi_status pi_store_take(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                        int64_t n, int32_t row, const void* neurons, size_t neurons_size,
                        void* rows, size_t rows_size) {
    return guarded([&] {
        require((rows && neurons) || !n, "NULL where a buffer is expected");
        const auto layout = store_layout(types, n_rows, cols, align, n, neurons_size);
        require_row(layout, row, n, rows_size);
        layout.take(size_t(row), static_cast<const uint8_t*>(neurons), n,
                    static_cast<uint8_t*>(rows));
    });
}

pi_status pi_store_checksums(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                             int64_t n, const void* neurons, size_t neurons_size, uint32_t* sums,
                             size_t sums_size) {
    return guarded([&] {
        require((neurons && sums) || !n, "NULL where a buffer is expected");
        const auto layout = store_layout(types, n_rows, cols, align, n, neurons_size);
        require_room(n, 2 * sizeof(uint32_t), sums_size);
        const auto* bytes = static_cast<const uint8_t*>(neurons);
        for (int64_t i = 0; i < n; i++) {
            const auto both = layout.checksums(bytes + i * layout.stride);
            std::copy(both.begin(), both.end(), sums + 2 * i);
        }
    });
}

pi_bundle_params pi_bundle_default_params(void) {
    pi_bundle_params p{};
    p.struct_size = sizeof(p);
    p.align = int32_t(powerinfer::kStoreAlign);
    return p;
}

pi_status pi_bundle_file(const char* source, const char* target, const pi_bundle_params* params) {
    return guarded([&] {
        require(source && target, "source and target must not be NULL");
        powerinfer::write_bundled(source, target, params_or(params, pi_bundle_default_params()));
    });
}

pi_status pi_bundle_check(const char* path, const pi_bundle_params* params) {
    return guarded([&] {
        require(path, "path must not be NULL");
        powerinfer::check_bundled(path, params_or(params, pi_bundle_default_params()));
    });
}

pi_status pi_find_bundle(const char* model, char* path, size_t capacity, size_t* length) {
    return guarded([&] {
        require(model && length && (path || !capacity), "NULL where a path is expected");
        give_path(powerinfer::find_bundle(model), path, capacity, length);
    });
}

pi_status pi_bundle_target(const char* model, char* path, size_t capacity, size_t* length) {
    return guarded([&] {
        require(model && length && (path || !capacity), "NULL where a path is expected");
        give_path(powerinfer::bundle_target(model), path, capacity, length);
    });
}

}  // extern "C"
