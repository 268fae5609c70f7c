// C API (powerinfer_tools.h): measuring the machine, its devices and disks.
#include <cmath>
#include <cstdio>

#include "api/api.h"
#include "tools/measure.h"

using namespace powerinfer::api;

extern "C" {

pi_status pi_measure_read(int32_t n_threads, uint64_t n_bytes, double* bytes_per_s) {
    return guarded([&] {
        require(bytes_per_s && n_bytes >= 64, "nothing to measure");
        *bytes_per_s = powerinfer::measure_read(n_threads, n_bytes);
    });
}

pi_status pi_measure_product(uint32_t type, int32_t n_threads, int32_t n_tokens, double* per_s) {
    return guarded([&] {
        require(per_s && n_tokens >= 1 && n_tokens <= 4096, "n_tokens must be from 1 to 4096");
        const ggml::DTypeInfo* t = ggml::find_dtype(type);
        require(t && t->is_float(), "a type without products");
        *per_s = powerinfer::measure_product(*t, n_threads, n_tokens);
    });
}

pi_status pi_measure_device(const char* id, uint64_t n_bytes, pi_device_report* out) {
    return guarded([&] {
        require(id && out, "id and out must not be NULL");
        require(n_bytes >= 4096, "n_bytes must be at least 4096");
        const powerinfer::DeviceReport found = powerinfer::measure_device(id, n_bytes);
        pi_device_report r{};
        std::snprintf(r.name, sizeof r.name, "%s", found.info.name.c_str());
        std::snprintf(r.driver, sizeof r.driver, "%s", found.info.driver.c_str());
        r.compute = found.info.compute;
        r.driver_cuda = found.info.driver_cuda;
        r.cuda = found.info.cuda;
        r.total_bytes = found.info.total_bytes;
        r.free_bytes = found.free_bytes;
        r.context_bytes = found.context_bytes;
        r.copy_per_s = found.copy_per_s;
        r.in_per_s = found.in_per_s;
        r.out_per_s = found.out_per_s;
        r.flag_s = found.flag_s;
        r.launch_s = found.launch_s;
        r.node_s = found.node_s;
        give(out, r);
    });
}

pi_disk_params pi_disk_default_params(void) {
    const powerinfer::DiskLoad load;
    return {sizeof(pi_disk_params), load.bytes, load.depth, load.in_order, load.size,
            load.seconds,           load.seed};
}

pi_status pi_measure_disk(const char* path, const pi_disk_params* params, pi_disk_report* out) {
    return guarded([&] {
        require(path && out, "path and out must not be NULL");
        const pi_disk_params p = params_or(params, pi_disk_default_params());
        require(p.n_bytes >= 512 && p.n_bytes <= 1 << 24 && p.n_bytes % 512 == 0,
                "n_bytes must be a multiple of 512, at most 16 MiB");
        require(p.depth >= 1 && p.depth <= 1024, "depth must be from 1 to 1024");
        require(std::isfinite(p.seconds) && p.seconds > 0, "seconds must be above 0");
        const powerinfer::DiskReport found = powerinfer::measure_disk(
            path, {p.n_bytes, p.depth, p.in_order, p.size, p.seconds, p.seed});
        pi_disk_report r{};
        std::snprintf(r.io, sizeof r.io, "%s", found.io.c_str());
        std::snprintf(r.note, sizeof r.note, "%s", found.note.c_str());
        r.direct = found.direct;
        r.align = found.align;
        r.file_bytes = found.file_bytes;
        r.reads = found.reads;
        r.reads_per_s = found.reads_per_s;
        r.bytes_per_s = found.bytes_per_s;
        r.cpu_s = found.cpu_s;
        give(out, r);
    });
}

}  // extern "C"
