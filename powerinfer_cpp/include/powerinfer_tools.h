/* powerinfer_tools.h: what measures machines and disks, prepares files, and simulates the cache of
 * neurons. A part of powerinfer.h, which includes it; the rules at its top hold here, too. */
#ifndef POWERINFER_TOOLS_H
#define POWERINFER_TOOLS_H

#ifndef POWERINFER_H
#error "include powerinfer.h, which includes this file"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

/* ---- Measurements ------------------------------------------------------------------------- */

/* Measures this machine: bytes per second of reading n_bytes (at least 64) of memory; and
 * multiply-adds per second of a 2048 x 4096 matrix in a format times n_tokens tokens (1..4096).
 * n_threads: 1..512. Each takes about a second or less and allocates the memory that it reads. */
pi_status pi_measure_read(int32_t n_threads, uint64_t n_bytes, double* bytes_per_s);
pi_status pi_measure_product(uint32_t type, int32_t n_threads, int32_t n_tokens, double* per_s);

/* A device and how fast it is. CUDA versions are times 1000 (13000), compute capability times 10.
 */
typedef struct pi_device_report {
    size_t struct_size; /* sizeof(pi_device_report) */
    char name[256];
    char driver[64];        /* its version; "": not known */
    int32_t compute;        /* 86 */
    int32_t driver_cuda;    /* the newest CUDA that the driver can run */
    int32_t cuda;           /* that of this build */
    uint64_t total_bytes;   /* of its memory */
    uint64_t free_bytes;    /* after this process has opened it */
    uint64_t context_bytes; /* that opening it takes */
    double copy_per_s;      /* bytes that a copy inside reads and writes, a second */
    double in_per_s;        /* bytes a second from pinned host memory to the device */
    double out_per_s;       /* and back */
    double flag_s;          /* seconds of a flag to the host and its answer */
    double launch_s;        /* of a graph with one small kernel, from launch to end */
    double node_s;          /* of each further kernel of a graph */
} pi_device_report;
/* Measures the device of this id ("cuda0") in about a second: copies n_bytes (at least 4096), of
 * which it takes two times n_bytes on the device and n_bytes of RAM. PI_ERROR_DEVICE if there is no
 * such device, or it fails; PI_ERROR_MEMORY. */
pi_status pi_measure_device(const char* id, uint64_t n_bytes, pi_device_report* out);

/* A way of reading a file, to measure its disk. */
typedef struct pi_disk_params {
    size_t struct_size; /* sizeof(pi_disk_params) */
    uint32_t n_bytes;   /* of a read, a multiple of 512, at most 16 MiB; default 8192 */
    int32_t depth;      /* reads in flight, 1..1024; default 128 */
    bool in_order;      /* one after the other; default: at random places */
    uint64_t size;      /* only in so many bytes at the file's beginning; 0: in all of it */
    double seconds;     /* that it takes; default 0.5 */
    uint64_t seed;      /* of the places; default 1 */
} pi_disk_params;
/* How fast that is. */
typedef struct pi_disk_report {
    size_t struct_size;  /* sizeof(pi_disk_report) */
    char io[16];         /* "uring" or "threads"; the environment variable POWERINFER_IO selects */
    char note[240];      /* why not uring, or not direct; "" */
    bool direct;         /* past the system's cache of the file */
    uint32_t align;      /* bytes that direct reads are multiples of: 512 or 4096 */
    uint64_t file_bytes; /* of the whole file */
    uint64_t reads;
    double reads_per_s;
    double bytes_per_s;
    double cpu_s; /* seconds of the processor, for a read */
} pi_disk_report;
pi_disk_params pi_disk_default_params(void);
/* Reads the file, of which it takes depth * n_bytes of RAM. PI_ERROR_IO; PI_ERROR_ARGUMENT if the
 * file (or size) has less than 64 MiB, or POWERINFER_IO is unknown. */
pi_status pi_measure_disk(const char* path, const pi_disk_params* params, pi_disk_report* out);

/* ---- Bundles of neurons ------------------------------------------------------------------- */

/* Bundles: for each neuron, its rows of n_parts matrices side by side, as in memory and in bundled
 * files of version 1 (docs/formats.md). types [n_parts] are the formats of the rows, which have
 * cols weights each. put moves the n stored rows of one part to their places in the bundles; take
 * moves them back. Bundles of n neurons have the size of all their rows. The version is that of the
 * layout. */
int32_t pi_bundle_version(void);
pi_status pi_bundle_put(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                        int32_t part, const void* rows, size_t rows_size, void* bundles,
                        size_t bundles_size);
pi_status pi_bundle_take(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                         int32_t part, const void* bundles, size_t bundles_size, void* rows,
                         size_t rows_size);

/* The neurons of bundled files of version 2 (docs/formats.md). types [n_rows]: the formats of their
 * rows, gate (n_rows 3), up and down, of cols weights each; align: 512, 1024, 2048 or 4096. */
typedef struct pi_store_layout {
    size_t struct_size; /* sizeof(pi_store_layout) */
    int64_t stride;     /* bytes of a neuron */
    int64_t first;      /* those of its first range; the rest has stride - first */
    int64_t offset[3];  /* of each row */
} pi_store_layout;
pi_status pi_store_layout_of(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                             pi_store_layout* out);
/* As pi_bundle_put and _take: n stored rows of one kind to their places, and back. put leaves the
 * bytes between the rows as they are; files have zeros there. */
pi_status pi_store_put(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                       int64_t n, int32_t row, const void* rows, size_t rows_size, void* neurons,
                       size_t neurons_size);
pi_status pi_store_take(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                        int64_t n, int32_t row, const void* neurons, size_t neurons_size,
                        void* rows, size_t rows_size);
/* The CRC-32C of both ranges of n neurons into sums [n, 2], of which sums_size bytes are there. */
pi_status pi_store_checksums(const uint32_t* types, int32_t n_rows, int64_t cols, int64_t align,
                             int64_t n, const void* neurons, size_t neurons_size, uint32_t* sums,
                             size_t sums_size);

/* ---- Bundled files ------------------------------------------------------------------------ */

typedef struct pi_bundle_params {
    size_t struct_size;            /* sizeof(pi_bundle_params) */
    int32_t align;                 /* of a neuron's ranges: 512 (default), 1024, 2048 or 4096 */
    pi_progress_callback progress; /* or NULL */
    void* progress_data;
    pi_log_callback log; /* or NULL; gets the size before anything is written */
    void* log_data;
} pi_bundle_params;
pi_bundle_params pi_bundle_default_params(void);
/* Writes the model in `source` (any neuron-aware file) to `target` as a bundled file of version 2,
 * from which single neurons can be read. The file appears when it is complete, and is the same for
 * the same source. While another process writes it, this call waits, and is content if that is a
 * bundled file of the same model. PI_ERROR_UNSUPPORTED for a file that is not neuron-aware;
 * PI_ERROR_IO, also if the disk has too little room; PI_ERROR_CANCELLED. */
pi_status pi_bundle_file(const char* source, const char* target, const pi_bundle_params* params);
/* Reads a bundled file of version 2 and compares its checksums. PI_ERROR_FORMAT names a neuron that
 * is damaged; PI_ERROR_UNSUPPORTED for a file without checksums. params: only for its progress. */
pi_status pi_bundle_check(const char* path, const pi_bundle_params* params);
/* The bundled file that was written from the model at `model`, and the place of a new one: beside
 * the model as MODEL.bundle.gguf, or in the user's cache. *length gets the length of the path, 0 if
 * there is none. path [capacity] gets it with a NUL; if it is too small, the call returns
 * PI_ERROR_ARGUMENT and still sets *length. */
pi_status pi_find_bundle(const char* model, char* path, size_t capacity, size_t* length);
pi_status pi_bundle_target(const char* model, char* path, size_t capacity, size_t* length);

/* ---- The cache of neurons, simulated --------------------------------------------------------- */

/* Which neurons stay in memory when a model is larger than that: by the engine's own counts, or by
 * other policies to compare with. */
typedef enum pi_cache_policy {
    PI_CACHE_OWN = 0,
    PI_CACHE_LRU = 1,
    PI_CACHE_STATIC = 2, /* those with the highest rates, for ever */
    PI_CACHE_BELADY = 3  /* the optimum, which knows the future */
} pi_cache_policy;

/* A disk and what a token needs of it: a read of b bytes takes max(least_s, fixed_s + b * byte_s)
 * seconds. */
typedef struct pi_disk_cost {
    size_t struct_size; /* sizeof(pi_disk_cost) */
    double least_s, fixed_s, byte_s;
} pi_disk_cost;

/* Slots for first rows (gate, or up without a gate) and for the rest of neurons, such that they fit
 * n_bytes and reading the others takes the least time per token. first_rate and rest_rate [n]: how
 * often a token needs each neuron's. */
pi_status pi_split_cache(uint64_t n_bytes, uint64_t first_bytes, uint64_t rest_bytes, int64_t n,
                         const float* first_rate, const float* rest_rate, const pi_disk_cost* disk,
                         int64_t* first_slots, int64_t* rest_slots);

/* A trace: which neurons each token needs in each block (layer, or layer and expert), as bits
 * [n_tokens, n_blocks, (n_ff + 7) / 8]; bit i % 8 of byte i / 8 is neuron i. */
typedef struct pi_cache_trace {
    size_t struct_size; /* sizeof(pi_cache_trace) */
    int32_t n_tokens, n_blocks, n_ff;
    int32_t warm_up;         /* first tokens, which are not counted */
    const uint8_t* proposed; /* first rows; NULL: all neurons */
    const uint8_t* computed; /* the rest */
    /* Rates [n_blocks, n_ff] of a profile; or NULL. The cache begins with the highest ones. */
    const float *first_rate, *rest_rate;
    bool experts; /* for "neuron" read "expert": they are forgotten sooner */
} pi_cache_trace;

typedef struct pi_cache_counts {
    size_t struct_size; /* sizeof(pi_cache_counts) */
    int64_t first_needed, first_missed, rest_needed, rest_missed;
    int64_t reads; /* neurons of which something was missed: one read brings all of it */
} pi_cache_counts;

/* Replays a trace with this many slots. No more slots than neurons. */
pi_status pi_simulate_cache(const pi_cache_trace* trace, pi_cache_policy policy,
                            int64_t first_slots, int64_t rest_slots, uint64_t seed,
                            pi_cache_counts* out);

/* cdef: end */

#ifdef __cplusplus
}
#endif
#endif
