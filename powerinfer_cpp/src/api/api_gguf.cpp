// C API (powerinfer.h): GGUF files and formats of tensors.
#include <algorithm>
#include <cmath>
#include <vector>

#include "api/api.h"
#include "files/gpu_index.h"

using namespace powerinfer::api;

namespace {

const ggml::Value& value_at(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n) {
    require(g && i >= 0 && size_t(i) < g->gguf->values().size(), "no such key");
    const ggml::Value& v = g->gguf->values()[size_t(i)].second;
    require(first <= v.count() && n <= v.count() - first, "elements beyond the end of the value");
    return v;
}

const ggml::DTypeInfo& codec(uint32_t type, int64_t n, size_t size, bool buffers) {
    const ggml::DTypeInfo* t = ggml::find_dtype(type);
    require(t && t->is_float(), "not a floating-point or quantised type that this engine knows");
    require(n >= 0 && n % t->block == 0, "the number of elements is not a multiple of the block");
    require(uint64_t(n / t->block) <= size / uint64_t(t->bytes), "the buffer is too small");
    require(buffers || !n, "NULL where a buffer is expected");
    return *t;
}

const ggml::DTypeInfo& encoder(uint32_t type, int64_t n, size_t size, bool buffers) {
    const ggml::DTypeInfo& t = codec(type, n, size, buffers);
    if (!t.encode) {
        throw ggml::Error(ggml::Code::unsupported,
                          ggml::format("%s can be read, but not written: this engine has no "
                                       "search for its codes",
                                       t.name));
    }
    return t;
}

// Refuses a block whose largest value is lost, because its scale is beyond a half: encoders write
// infinity or, where they search, something small. What was infinite or NaN before stays so in
// formats without blocks; blocks cannot hold it.
void require_range(const ggml::DTypeInfo& t, const float* src, const void* dst, int64_t n) {
    if (t.type == ggml::DType::F32) return;
    constexpr float kHalf = 65504;  // every format can store values up to the largest half
    std::vector<float> back(size_t(t.block));
    for (int64_t b = 0; b < n; b += t.block) {
        const float* const x = src + b;
        float most = 0, zero = 0;
        for (int64_t i = 0; i < t.block; i++) {
            most = std::max(most, std::fabs(x[i]));
            zero += x[i] * 0;
        }
        if (zero != 0 || std::isnan(zero)) {
            require(!t.is_quantised(), "values that are not finite cannot be written in blocks");
            continue;
        }
        if (most <= kHalf) continue;
        const auto by_size = [](float v, float w) { return std::fabs(v) < std::fabs(w); };
        const auto at = std::max_element(x, x + t.block, by_size) - x;
        t.decode(static_cast<const uint8_t*>(dst) + t.size(b), back.data(), t.block);
        const float kept = back[size_t(at)] / x[at];
        if (kept >= 0.5f && kept <= 2) continue;
        throw ggml::Error(
            ggml::Code::argument,
            ggml::format("a value of %g is beyond the range of %s", double(x[at]), t.name));
    }
}

}  // namespace

extern "C" {

// ---- GGUF files -------------------------------------------------------------------------------

pi_status pi_gguf_open(const char* path, pi_gguf** out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        auto g = std::make_unique<pi_gguf>();
        g->own = powerinfer::ModelFile::open(path);
        g->gguf = &g->own.gguf;
        g->files = &g->own.files;
        *out = g.release();
    });
}

void pi_gguf_free(pi_gguf* gguf) {
    delete gguf;
}

uint32_t pi_gguf_version(const pi_gguf* g) {
    return g->gguf->version();
}

bool pi_gguf_is_pwri(const pi_gguf* g) {
    return g->gguf->pwri_magic();
}

int32_t pi_gguf_n_files(const pi_gguf* g) {
    return int32_t(g->files->size());
}

const char* pi_gguf_file(const pi_gguf* g, int32_t i) {
    return i >= 0 && i < pi_gguf_n_files(g) ? (*g->files)[size_t(i)]->path().c_str() : nullptr;
}

int64_t pi_gguf_n_values(const pi_gguf* g) {
    return int64_t(g->gguf->values().size());
}

pi_status pi_gguf_value(const pi_gguf* g, int64_t i, const char** key, size_t* key_length,
                        pi_value_type* type, pi_value_type* element_type, uint64_t* count) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, 0, 0);
        require(key && key_length && type && element_type && count, kNoOut);
        const std::string_view k = g->gguf->values()[size_t(i)].first;
        *key = k.data();
        *key_length = k.size();
        *type = pi_value_type(v.type());
        *element_type = pi_value_type(v.element_type());
        *count = v.count();
    });
}

pi_status pi_gguf_integers(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n, int64_t* out) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, first, n);
        require(v.is_integer() || v.is_bool(), "the value is not an integer");
        require(out || !n, kNoOut);
        for (uint64_t j = 0; j < n; j++) out[j] = v.integer(first + j);
    });
}

pi_status pi_gguf_numbers(const pi_gguf* g, int64_t i, uint64_t first, uint64_t n, double* out) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, first, n);
        require(v.is_number(), "the value is not a number");
        require(out || !n, kNoOut);
        for (uint64_t j = 0; j < n; j++) out[j] = v.number(first + j);
    });
}

pi_status pi_gguf_string(const pi_gguf* g, int64_t i, uint64_t element, const char** out,
                         size_t* length) {
    return guarded([&] {
        const ggml::Value& v = value_at(g, i, element, 1);
        require(v.is_string(), "the value is not a string");
        require(out && length, kNoOut);
        const std::string_view s = v.string(element);
        *out = s.data();
        *length = s.size();
    });
}

int64_t pi_gguf_n_tensors(const pi_gguf* g) {
    return int64_t(g->gguf->tensors().size());
}

pi_status pi_gguf_tensor(const pi_gguf* g, int64_t i, pi_tensor_info* out) {
    return guarded([&] {
        require(g && i >= 0 && i < pi_gguf_n_tensors(g), "no such tensor");
        const ggml::TensorInfo& t = g->gguf->tensors()[size_t(i)];
        give(out, {0,
                   t.name.c_str(),
                   ggml::info(t.type).name,
                   uint32_t(t.type),
                   t.n_dims,
                   {t.ne[0], t.ne[1], t.ne[2], t.ne[3]},
                   t.offset,
                   t.bytes,
                   t.file});
    });
}

pi_status pi_gpu_index_read(const char* path, int32_t n_layer, int64_t n_ff, int64_t* n_gpu) {
    return guarded([&] {
        require(path && n_gpu, "path and n_gpu must not be NULL");
        require(n_layer >= 1 && n_ff >= 1, "n_layer and n_ff must be at least 1");
        const std::vector<int64_t> sizes(size_t(n_layer), n_ff);
        for (const auto& ids : powerinfer::read_gpu_index(path, sizes)) {
            *n_gpu++ = int64_t(ids.size());
        }
    });
}

// ---- Formats ----------------------------------------------------------------------------------

bool pi_type_by_name(const char* name, uint32_t* type, int64_t* block, int64_t* block_bytes) {
    return guarded_or(false, [&] {
        const ggml::DTypeInfo* t = name ? ggml::find_dtype(std::string_view(name)) : nullptr;
        if (!t) return false;
        *type = uint32_t(t->type);
        *block = t->block;
        *block_bytes = t->bytes;
        return true;
    });
}

pi_status pi_encode(uint32_t type, const float* src, int64_t n, void* dst, size_t dst_size) {
    return guarded([&] {
        const ggml::DTypeInfo& t = encoder(type, n, dst_size, src && dst);
        t.encode(src, dst, n);
        require_range(t, src, dst, n);
    });
}

pi_status pi_encode_weighted(uint32_t type, const float* src, int64_t n, const float* importance,
                             int64_t row, void* dst, size_t dst_size) {
    return guarded([&] {
        const ggml::DTypeInfo& t = encoder(type, n, dst_size, src && dst && importance);
        require(row > 0 && row % t.block == 0 && n % row == 0,
                "row must be a multiple of the block that divides n");
        for (int64_t i = 0; i < row && n; i++) {
            require(std::isfinite(importance[i]) && importance[i] >= 0,
                    "importance must be finite and not negative");
        }
        for (int64_t i = 0; t.encode_weighted && i < n; i += row) {
            t.encode_weighted(src + i, importance, static_cast<uint8_t*>(dst) + t.size(i), row);
        }
        if (!t.encode_weighted) t.encode(src, dst, n);
        require_range(t, src, dst, n);
    });
}

pi_status pi_decode(uint32_t type, const void* src, size_t src_size, float* dst, int64_t n) {
    return guarded([&] { codec(type, n, src_size, src && dst).decode(src, dst, n); });
}

}  // extern "C"
