// The C API: reading from the disk.
#include <cmath>
#include <cstdio>

#include "api.h"
#include "measure.h"
#include "powerinfer.h"

using namespace powerinfer::api;

extern "C" {

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
