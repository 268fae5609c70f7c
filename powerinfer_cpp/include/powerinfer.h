/* powerinfer.h: runs language models from GGUF files. C99.
 *
 * Errors: every call that can fail returns a pi_status. PI_OK is 0. After any other value
 * pi_last_error() has a message. The library never prints and never ends the process.
 * Out-parameters are written only on PI_OK, unless the comment says otherwise.
 *
 * Structs: the first member is struct_size. The caller sets it; functions that return default
 * parameters do so too. Newer versions add members at the end. If a program was built for an older
 * header, parameters that it lacks get their defaults, and results are cut to the size that it
 * knows. A struct larger than this version's is refused (PI_ERROR_ARGUMENT).
 *
 * Lifetimes: free what pi_X_open or pi_X_new returned with pi_X_free (NULL is allowed). A session
 * keeps its model alive. Strings and arrays that a getter returns belong to the handle and live as
 * long as it, unless the comment says otherwise.
 *
 * Threads: any number of threads may share a model. A session or a sampler serves one call at a
 * time. Different sessions are independent.
 *
 * Processes: a child of fork() may use and free the models, sessions and samplers of its parent. A
 * session starts its own threads in the child with its next pi_eval_batch. This requires that no
 * call was running in another thread at the fork.
 *
 * Files: headers are read; weights are memory-mapped unless use_mmap is false. If a mapped file
 * gets shorter, or its disk fails, the process is killed (SIGBUS) when it touches a lost page. So
 * replace the file of an open model by renaming another file over it, or open it with use_mmap
 * false; then nothing depends on the file after loading. */
#ifndef POWERINFER_H
#define POWERINFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Python's binding reads the text between the two cdef marks: plain C without preprocessor lines.
 */
/* cdef: begin */

typedef enum pi_status {
    PI_OK = 0,
    PI_ERROR_ARGUMENT = 1,    /* an argument is invalid */
    PI_ERROR_IO = 2,          /* a file cannot be opened, read or written */
    PI_ERROR_FORMAT = 3,      /* a file violates its format */
    PI_ERROR_UNSUPPORTED = 4, /* the file is valid, but this engine cannot run it */
    PI_ERROR_MEMORY = 5,      /* more memory needed than available or allowed */
    PI_ERROR_CONTEXT = 6,     /* more positions than the context has */
    PI_ERROR_DEVICE = 7,      /* a device failed or does not exist */
    PI_ERROR_CANCELLED = 8,   /* a callback asked to stop */
    PI_ERROR_INTERNAL = 9     /* a bug; please report */
} pi_status;

/* Message of this thread's last failed call, at most 1023 bytes; "" if there was none. Valid until
 * the thread's next failed call. */
const char* pi_last_error(void);

/* Version of the library: "0.1.0". */
const char* pi_version(void);
/* A number that is raised by every version in which the rounding of any result changes. Saved
 * sequences (pi_sequence_save) of another number are refused. */
int32_t pi_numerics(void);
/* Instruction set of the kernels: "amx", "vbmi", "avx512", "vnni", "avxvnni", "avx2" or "avx" on
 * x86, "neon_i8mm" or "neon" on ARM, or "generic". The environment variable GGML_ISA selects one;
 * PI_ERROR_UNSUPPORTED if that cannot run here. */
pi_status pi_isa(const char** isa);
/* Instruction sets that this build lacks, because it was made for the processor of one machine:
 * "amx, avx", for example; "" if it has all. */
const char* pi_isas_left_out(void);
/* Default number of threads, 1..512: the physical cores of the affinity mask, without a phone's
 * small ones, limited by the CPU quota; but two of two processors, which may seem one core. */
int32_t pi_default_threads(void);
/* How many threads compute where n_threads of the parameters below asks for n: at most as many as
 * processors that the process may use at a time; 0: pi_default_threads(). */
int32_t pi_threads_used(int32_t n);
/* Bytes of RAM available to this process: the minimum over the system, its cgroups and RLIMIT_AS.
 */
uint64_t pi_available_memory(void);
/* The most RAM that this process has had, in bytes; 0 if unknown. */
uint64_t pi_peak_memory(void);
/* Compute devices other than the CPU. The note says how many there are, or why there is none
 * ("built without CUDA"). */
int32_t pi_n_devices(void);
const char* pi_device_name(int32_t device); /* NULL if out of range */
const char* pi_device_note(void);

/* ---- GGUF files: header only, no weights are read ---------------------------------------- */

typedef struct pi_gguf pi_gguf;

/* Value types, with the ids of the format. */
typedef enum pi_value_type {
    PI_U8 = 0,
    PI_I8 = 1,
    PI_U16 = 2,
    PI_I16 = 3,
    PI_U32 = 4,
    PI_I32 = 5,
    PI_F32 = 6,
    PI_BOOL = 7,
    PI_STRING = 8,
    PI_ARRAY = 9,
    PI_U64 = 10,
    PI_I64 = 11,
    PI_F64 = 12
} pi_value_type;

/* A tensor as the file describes it. */
typedef struct pi_tensor_info {
    size_t struct_size;    /* sizeof(pi_tensor_info) */
    const char* name;      /* NUL-terminated */
    const char* type_name; /* "Q4_0" */
    uint32_t type;         /* GGUF type id */
    int32_t n_dims;
    int64_t ne[4];   /* sizes, fastest-changing first; 1 beyond n_dims */
    uint64_t offset; /* from the start of its file */
    uint64_t n_bytes;
    int32_t file; /* index of the part of a split file */
} pi_tensor_info;

/* Opens and checks a file; if it is the first part of a split model, all parts. PI_ERROR_IO,
 * PI_ERROR_FORMAT, PI_ERROR_UNSUPPORTED. */
pi_status pi_gguf_open(const char* path, pi_gguf** out);
void pi_gguf_free(pi_gguf* gguf);
uint32_t pi_gguf_version(const pi_gguf* gguf);
bool pi_gguf_is_pwri(const pi_gguf* gguf); /* has PowerInfer's magic, not GGUF's */
int32_t pi_gguf_n_files(const pi_gguf* gguf);
const char* pi_gguf_file(const pi_gguf* gguf, int32_t i); /* path of part i; NULL if out of range */

int64_t pi_gguf_n_values(const pi_gguf* gguf);
/* Key i, its length and type. The key is not NUL-terminated. For arrays, element_type and count;
 * otherwise element_type = type and count = 1. */
pi_status pi_gguf_value(const pi_gguf* gguf, int64_t i, const char** key, size_t* key_length,
                        pi_value_type* type, pi_value_type* element_type, uint64_t* count);
/* Elements [first, first + n) of value i as int64 (integers and booleans; a u64 above INT64_MAX
 * becomes that) or as double (any number), or one element as bytes (strings, not NUL-terminated).
 * PI_ERROR_ARGUMENT for another type or elements beyond count. */
pi_status pi_gguf_integers(const pi_gguf* gguf, int64_t i, uint64_t first, uint64_t n,
                           int64_t* out);
pi_status pi_gguf_numbers(const pi_gguf* gguf, int64_t i, uint64_t first, uint64_t n, double* out);
pi_status pi_gguf_string(const pi_gguf* gguf, int64_t i, uint64_t element, const char** out,
                         size_t* length);

int64_t pi_gguf_n_tensors(const pi_gguf* gguf);
pi_status pi_gguf_tensor(const pi_gguf* gguf, int64_t i, pi_tensor_info* out);

/* Reads and checks a placement of PowerInfer (MODEL.generated.gpuidx) for a model with these sizes.
 * n_gpu [n_layer] gets the number of neurons of each layer that it assigns to the GPU. */
pi_status pi_gpu_index_read(const char* path, int32_t n_layer, int64_t n_ff, int64_t* n_gpu);

/* ---- Formats ------------------------------------------------------------------------------ */

/* GGUF type id, elements per block and bytes per block of a format given by name ("Q4_0", in any
 * case). Returns false for an unknown name. */
bool pi_type_by_name(const char* name, uint32_t* type, int64_t* block, int64_t* block_bytes);
/* Converts n elements (a multiple of the block) from float to a format or back. src_size and
 * dst_size are the sizes of the buffers in bytes; PI_ERROR_ARGUMENT if one is too small, if a
 * finite value is beyond the format's range (a block's scale is a half), or if a block would have
 * to hold an infinity or NaN. */
pi_status pi_encode(uint32_t type, const float* src, int64_t n, void* dst, size_t dst_size);
pi_status pi_decode(uint32_t type, const void* src, size_t src_size, float* dst, int64_t n);
/* pi_encode for rows of `row` elements (a multiple of the block that divides n), so that the sum of
 * importance[column] times squared error gets small. importance: [row], finite and not negative,
 * for example from an importance matrix. F32, F16, BF16 and Q8_0 are written as by pi_encode. */
pi_status pi_encode_weighted(uint32_t type, const float* src, int64_t n, const float* importance,
                             int64_t row, void* dst, size_t dst_size);

/* ---- Models ------------------------------------------------------------------------------- */

typedef struct pi_model pi_model;

/* Called while a model loads, with a fraction from 0 to 1. Returning false cancels the call, which
 * then returns PI_ERROR_CANCELLED. */
typedef bool (*pi_progress_callback)(float fraction, void* data);
/* level: 1 error, 2 warning, 3 information, 4 detail. message has no newline. */
typedef void (*pi_log_callback)(int32_t level, const char* message, void* data);

typedef struct pi_session_params pi_session_params;

/* How a device gets its neurons. */
typedef enum pi_placement {
    PI_PLACEMENT_FILE = 0,  /* those that the model's placement marks (if it was solved for this
                             * budget, or does not say for which), then by firing rate */
    PI_PLACEMENT_RATES = 1, /* by firing rate: no placement is read */
    PI_PLACEMENT_NONE = 2   /* none, so the CPU computes all of them; no placement is read */
} pi_placement;

/* A value in place of the file's, or of one that it lacks. */
typedef struct pi_override {
    size_t struct_size; /* sizeof(pi_override) */
    const char* key;    /* "llama.context_length" */
    int32_t type;       /* the member that counts: PI_I64, PI_F64, PI_BOOL (integer) or PI_STRING */
    int64_t integer;
    double number;
    const char* string;
} pi_override;

typedef struct pi_model_params {
    size_t struct_size;  /* sizeof(pi_model_params) */
    bool vocab_only;     /* load the tokenizer and the header only */
    bool use_mmap;       /* false: read weights into memory (see Files above) */
    bool use_mlock;      /* keep weights in RAM */
    bool check_tensors;  /* refuse weights that are NaN or infinite */
    bool use_gpu_index;  /* read PowerInfer's placement PATH.generated.gpuidx if it exists */
    int32_t n_threads;   /* for loading, 0..512: pi_threads_used() of it */
    uint64_t ram_budget; /* bytes for model and sessions together; 0: what is free */
    pi_progress_callback progress; /* or NULL */
    void* progress_data;
    pi_log_callback log; /* or NULL */
    void* log_data;
    const char* device;   /* "cuda0": that GPU computes, too; NULL or "cpu": none does */
    int32_t n_gpu_layers; /* at most this many of the last layers on the device, the head counting
                           * as one more; negative: what fits */
    uint64_t vram_budget; /* bytes there for model and session together; 0: what is free */
    const pi_session_params* session; /* which session the device keeps room for; NULL: defaults */
    int32_t placement;                /* a pi_placement */
    int32_t n_sessions;               /* how many of them at the same time; 0: one */
    /* The device computes all neurons of prompts: those that RAM holds are sent to it piece by
     * piece. For this at most 32 MiB there and in RAM are part of the plan, or 1/8 of what is left
     * for neurons. Of mixtures, the experts of long prompts, through room for four of them. False:
     * the CPU computes them, as it does for generated tokens. */
    bool op_offload;
    /* A model with neuron rows that does not fit the RAM that may be used runs from a bundled file
     * (pi_bundle_file). True: that is written if there is none yet, which takes as much of the disk
     * as the model; and, of every model that runs from storage, a list of what was in memory when
     * it is closed, with which the next one begins. */
    bool bundle;
    /* Rows of logits that the caller will keep in memory of its own (pi_reserve): the cache of such
     * a model leaves room for them, as far as it can. */
    int32_t n_rows_kept;
    /* Values in place of those of the file's header, before it is read. An integer for any integer
     * type, a number for a float. PI_ERROR_ARGUMENT for another type than the file's, for a key
     * that neither the file has nor the model reads, and for keys of the file's layout. */
    const pi_override* overrides; /* [n_overrides], or NULL; struct_size is that of the first */
    int32_t n_overrides;
    /* Keys and tensors that the engine does not know, and that change results: true runs the model
     * without them, with a warning; false: PI_ERROR_UNSUPPORTED naming one. */
    bool allow_unknown;
    /* Another session, of another kind, that there is room for beside those like `session`: one for
     * logits beside one for embeddings. NULL: none. */
    const pi_session_params* beside;
    /* True: a model that does not fit the RAM that may be used, has no neuron rows and is no
     * mixture runs all the same, with some of its feed-forward blocks in its file: every token
     * reads them, which is slow, as a warning says. Results are the same. False: it is refused. */
    bool mmap_anyway;
    /* Loads the layer that guesses the token after the next one, too (multi-token prediction: key
     * nextn_predict_layers), for pi_guess. PI_ERROR_UNSUPPORTED if the file has none that is known.
     * It is left out, with a warning, of a model that runs from storage or on a device: see
     * pi_model_guesses. */
    bool nextn;
    /* Of mixtures on a device: the experts of the first so many layers stay with the CPU, whatever
     * there is room for, as llama.cpp's option means it; but they come to the device for prompts,
     * with op_offload. The rest of these layers may be on the device. INT32_MAX: of all layers. */
    int32_t n_cpu_moe;
} pi_model_params;

/* How RoPE is scaled, with the ids of llama.cpp. */
typedef enum pi_rope_scaling {
    PI_ROPE_FILE = -1, /* as the file says */
    PI_ROPE_NONE = 0,
    PI_ROPE_LINEAR = 1,
    PI_ROPE_YARN = 2
} pi_rope_scaling;

/* Which neurons are computed. Files without neuron rows (ffn_down_t) always compute all of them. */
typedef enum pi_sparse {
    PI_SPARSE_AUTO = 0,     /* generated tokens (see pi_batch): what the predictor proposes, and
                             * neurons with a firing rate of 0.5 or more. As off: prompts, layers
                             * without a predictor, and layers with a recall below 0.7 in the file
                             */
    PI_SPARSE_OFF = 1,      /* all neurons contribute */
    PI_SPARSE_EXACT = 2,    /* skips neurons with a zero activation. The result is that of off; only
                             * for activations other than ReLU with a powerinfer.ffn.threshold
                             * (CATS) smaller values count as zero too */
    PI_SPARSE_PREDICTOR = 3 /* all rows by predictor; refused for files without one */
} pi_sparse;

/* What a session records of its feed-forward blocks. Each kind up to inputs includes the ones
 * before it, and takes sparse off or exact: of neurons that a predictor masks nobody knows whether
 * they fire. */
typedef enum pi_record {
    PI_RECORD_OFF = 0,
    PI_RECORD_COUNTS = 1, /* how often each neuron fired in the session */
    PI_RECORD_FIRED = 2,  /* which neurons fired, for every row of the last call */
    PI_RECORD_INPUTS = 3, /* the input of each layer's predictor, for the same rows */
    PI_RECORD_NEEDS = 4,  /* of the others only counts and fired; and which neurons were proposed
                           * and computed, for the last row. For any `sparse`, with n_ubatch 1 and
                           * a file with neuron rows */
    PI_RECORD_BITS = 5,   /* of the others none; which of the neurons that were computed fired, for
                           * every row of the last call. For any `sparse` */
    PI_RECORD_SQUARES = 6 /* of the others none; sums of the squared inputs of matrices over all
                           * rows of the session, for sparse off or exact: an importance matrix */
} pi_record;

/* The products of a layer that share an input. */
typedef enum pi_input {
    PI_INPUT_ATTENTION = 0,        /* of queries, keys and values: [n_embd]; or of the matrices in
                                    * the place of these, in layers with a state */
    PI_INPUT_ATTENTION_OUTPUT = 1, /* [n_head * head_dim]; or of the matrix in that place */
    PI_INPUT_FFN = 2,              /* of gate and up: [n_embd] per expert; or as wide as
                                    * what experts read, if that is narrower */
    PI_INPUT_FFN_DOWN = 3,         /* [n_ff] per expert; of matrices, not of neuron rows */
    PI_INPUT_HEAD = 4              /* [n_embd], of the model; also of rows without logits */
} pi_input;

/* How the rows of a text become one result (pi_pooled), with the ids of llama.cpp. */
typedef enum pi_pooling {
    PI_POOLING_NONE = 0, /* each row has its own (pi_embedding) */
    PI_POOLING_MEAN = 1,
    PI_POOLING_FIRST = 2, /* of the rows */
    PI_POOLING_LAST = 3,
    PI_POOLING_RANK = 4 /* scores by the file's own pooling and head (cls.output) */
} pi_pooling;

struct pi_session_params {
    size_t struct_size;      /* sizeof(pi_session_params) */
    int32_t n_ctx;           /* positions per sequence; 0: those of the model */
    int32_t n_batch;         /* rows that one pi_eval_batch may take, 1..2^20 */
    int32_t n_ubatch;        /* rows computed at once, 1..n_batch (larger: n_batch) */
    int32_t n_logits;        /* rows per call whose results can be kept; 0: n_batch */
    int32_t n_seq;           /* sequences, each with up to n_ctx positions, 1..256 */
    int32_t n_threads;       /* for calls with one row, 0..512: pi_threads_used() of it */
    int32_t n_threads_batch; /* for calls with several rows; 0: n_threads */
    uint32_t type_k;         /* GGUF type id of the KV cache: F32 (0), F16 (1) or Q8_0 (8) */
    uint32_t type_v;         /* the same as type_k */
    int32_t sparse;          /* a pi_sparse */
    float sparse_threshold;  /* predictor score below which a neuron is skipped; NaN: the file's */
    int32_t record;          /* a pi_record */
    bool embedding;          /* keep embeddings of rows instead of logits */
    /* Called before each layer in pi_eval_batch; true ends the call with PI_ERROR_CANCELLED. Or
     * NULL. */
    bool (*should_stop)(void* data);
    void* should_stop_data;
    pi_log_callback log; /* or NULL; called in pi_session_new and pi_eval_batch */
    void* log_data;
    bool stepwise; /* on a device: waits at each layer that CPU and device share, instead of one
                    * graph per row. The same results, for debuggers and profilers */
    /* Positions of all sequences together, in pages of 64; 0, or more than n_seq * n_ctx: that.
     * Sequences share a pool of pages, so that many of them need no room for n_ctx positions each.
     */
    int64_t n_kv;
    /* Predictors are used even with adapters that change layers, for which they were not made.
     * False: `auto` computes such tokens as `exact`, after a warning, and `predictor` refuses
     * adapters. */
    bool lora_allow_predictor;
    /* RoPE in place of what the file says, for longer contexts than in training; as in llama.cpp.
     * PI_ERROR_ARGUMENT for models without RoPE. */
    int32_t rope_scaling;   /* a pi_rope_scaling */
    float rope_freq_base;   /* above 1, or 0: the file's */
    float rope_freq_scale;  /* factor of frequencies, 1e-6..1e6: 0.5 for twice the context; 0: the
                             * file's */
    int32_t yarn_orig_ctx;  /* positions in training; 0: the file's */
    float yarn_ext_factor;  /* 0..1: how far frequencies that turn often stay as they are; negative:
                             * 1 with YaRN, otherwise 0 */
    float yarn_attn_factor; /* of the attention's magnitude; negative: the file's */
    float yarn_beta_fast;   /* turns in training from which a frequency stays; negative: the
                             * file's */
    float yarn_beta_slow;   /* turns up to which it is scaled; negative: the file's */
    /* Positions of sequences from which they can be continued, if the model has states or windows
     * (see pi_sequence_truncate), 0..64; negative: 8, or what a sixteenth of the budget has room
     * for. */
    int32_t n_checkpoints;
    /* Sequences that are continued in turn; 0, or more than n_seq: n_seq. Layers with a window have
     * room for the windows of so many; the others must be empty or rest (pi_sequence_rest). Of use
     * only for models with windows (pi_model_has_windows). */
    int32_t n_active;
    /* Positions behind windows of all sequences together that layers with a window keep, to cut
     * sequences there. They are the first to go when pages are wanted. n_kv or more: all of them;
     * negative: what a quarter of the RAM takes that the budget leaves beside the model and its
     * sessions, and none if the model runs from storage. */
    int64_t n_kv_old;
    /* What becomes of the rows of a sequence in a call of a session with `embedding`: a
     * pi_pooling. Other than 0: a call takes whole texts, so that n_batch is at least n_ctx, and
     * n_kv is by default what those of one call need; a model with states has one sequence. */
    int32_t pooling;
};

/* Defaults: use_mmap, use_gpu_index, op_offload and bundle true; n_ctx, n_batch and n_ubatch 512,
 * n_seq 1, type_k and type_v F16, sparse_threshold NaN, n_gpu_layers, n_checkpoints, n_kv_old,
 * rope_scaling and yarn_* (but not yarn_orig_ctx) -1; everything else 0. */
pi_model_params pi_model_default_params(void);
pi_session_params pi_session_default_params(void);

/* The memory that a model and a session with these parameters would take, computed from the header
 * alone. A plan above the budget of RAM is no error. If the model's parameters name no session that
 * a device keeps room for, it is this one. */
typedef struct pi_plan pi_plan;
typedef struct pi_plan_part {
    size_t struct_size; /* sizeof(pi_plan_part) */
    const char* tier;   /* "ram", "gpu" */
    const char* name;   /* "attention", "ffn", "embedding", "head", "norms", "predictor", "kv",
                         * "kv_old" (n_kv_old), "states", "scratch", "results", "record",
                         * "exchange", "context", "cache", "staging", "tables", "process",
                         * "experts" (room for some on a device) */
    int32_t layer;      /* -1: not of one layer */
    uint64_t n_bytes;
} pi_plan_part;
pi_status pi_plan_new(const char* path, const pi_model_params* model,
                      const pi_session_params* session, pi_plan** out);
void pi_plan_free(pi_plan* plan);
int32_t pi_plan_n_parts(const pi_plan* plan);
pi_status pi_plan_part_at(const pi_plan* plan, int32_t i, pi_plan_part* out);
uint64_t pi_plan_budget(const pi_plan* plan); /* bytes of RAM that model and session may take */
uint64_t pi_plan_vram_budget(const pi_plan* plan); /* the same on the device; 0: none */
int32_t pi_plan_n_ctx(const pi_plan* plan);        /* positions per sequence in the plan */
/* Neurons, whole experts, or feed-forward blocks with mmap_anyway, that stay on the disk, because
 * the model does not fit the RAM. */
typedef struct pi_storage_plan {
    size_t struct_size; /* sizeof(pi_storage_plan) */
    uint64_t cached;    /* bytes of neurons that memory has room for: the plan's part "cache" */
    uint64_t stored;    /* bytes of the others; 0 with cached 0: RAM (and a device) has all */
    uint64_t to_write;  /* of the bundled file that opening would write first; 0: there is one */
    /* Seconds that reading is expected to take for a generated token, on a disk of 12.5 us a read
     * and 0.98 ns a byte, by the model's profile (docs/storage.md); 0 if RAM has all. A larger
     * budget never makes it more. */
    double read_seconds;
    /* Of whole experts, else 0: the share of those chosen that memory is expected to have, by what
     * others measured; seconds that a generated token takes with its reads, if memory reads 30
     * GB/s; and the budget with which it takes half of that, 0: none does. */
    double hits;
    double token_seconds;
    uint64_t twice;
} pi_storage_plan;
pi_status pi_plan_storage(const pi_plan* plan, pi_storage_plan* out);
/* What a device has of a plan's model: its last layers, and perhaps the head. */
typedef struct pi_device_plan {
    size_t struct_size; /* sizeof(pi_device_plan) */
    int32_t n_layer;    /* of the model */
    int32_t layers;     /* those that the device has; 0 without a device */
    bool head;          /* is the head there, too? */
    /* Why the layer before these is not there, and why the head is not: an operator that no device
     * has, the budget, n_gpu_layers. "": it is, no device was asked for or, of the head, no layer
     * is there. They live as long as the plan. */
    const char* why_layer;
    const char* why_head;
} pi_device_plan;
pi_status pi_plan_device(const pi_plan* plan, pi_device_plan* out);
/* Experts of a mixture on a device. Which of them are there follows the text; the CPU computes the
 * others. */
typedef struct pi_expert_report {
    size_t struct_size;    /* sizeof(pi_expert_report) */
    int64_t experts;       /* of all layers */
    int64_t device_room;   /* a device has room for so many of them; 0 without one */
    int64_t device_has;    /* of an open model: so many are there at this moment */
    uint64_t copies;       /* experts that were copied there since the model was opened, */
    uint64_t copied_bytes; /* and their bytes; not those at first, nor those for prompts alone */
} pi_expert_report;
pi_status pi_plan_experts(const pi_plan* plan, pi_expert_report* out);
/* What would make a plan of pi_plan_new fit the budget of RAM that it exceeds: the ways that
 * suffice alone or, if none does, those that help. None for a plan that fits. */
typedef struct pi_way {
    size_t struct_size; /* sizeof(pi_way) */
    /* A member of pi_session_params, for `value` in place of the plan's ("n_ubatch", "n_logits",
     * "n_batch", "type_k" and "type_v", "n_kv_old", "n_checkpoints", "n_kv", "n_ctx");
     * "ram_budget": of pi_model_params; "convert": the file with neuron rows, which can stay on the
     * disk; "quantize", or "requantize" if it is quantised already: the file in the type with the
     * id `value`; last "mmap_anyway": of pi_model_params, with which each token reads `value` bytes
     */
    const char* what;
    int64_t value;
    uint64_t n_bytes; /* of RAM that model and sessions need then; estimated for other files */
} pi_way;
int32_t pi_plan_n_ways(const pi_plan* plan);
pi_status pi_plan_way(const pi_plan* plan, int32_t i, pi_way* out);

/* Loads a model from a GGUF or PWRI file, or from the first part of a split one. PI_ERROR_MEMORY
 * before loading if the weights alone exceed the budget. Otherwise PI_ERROR_IO, PI_ERROR_FORMAT,
 * PI_ERROR_UNSUPPORTED (messages name file and tensor or key), PI_ERROR_CANCELLED. */
pi_status pi_model_open(const char* path, const pi_model_params* params, pi_model** out);
void pi_model_free(pi_model* model);
/* The plan of an open model and a session with these parameters. */
pi_status pi_model_plan(const pi_model* model, const pi_session_params* session, pi_plan** out);
/* Neurons, over all layers and experts, whose rows a device has, of mixtures at this moment; and
 * bytes that the model and its sessions take there, with the context of this process. */
int64_t pi_model_device_neurons(const pi_model* model);
int64_t pi_model_layer_device_neurons(const pi_model* model, int32_t layer); /* of one layer */
uint64_t pi_model_device_bytes(const pi_model* model);
/* How a model runs whose neurons or experts stay on the disk. The first part of a neuron is its
 * gate row (up without a gate), the rest its other rows. If whole experts or blocks are read, the
 * numbers of first parts, here and in pi_work, are of these, and those of the rest 0. */
typedef struct pi_storage_report {
    size_t struct_size;              /* sizeof(pi_storage_report) */
    bool stored;                     /* does it? Otherwise all of this is 0 or "" */
    bool direct;                     /* reads go past the system's cache of files */
    char io[16];                     /* "uring" or "threads" */
    char note[240];                  /* why not uring, or not direct; "" */
    const char* path;                /* the file that is read; owned by the model */
    int64_t first_slots, rest_slots; /* room for parts in memory */
    int64_t first_used, rest_used;   /* of that, by now */
    uint64_t arena_bytes;            /* all slots, and the area where reads arrive */
    bool experts;                    /* whole experts are read, not parts of neurons */
    bool blocks;                     /* the same of feed-forward blocks (mmap_anyway) */
} pi_storage_report;
/* These do not wait for sessions that compute, and their callbacks may call them. While a session
 * computes they tell what was so when its call began, or up to a second earlier. */
pi_status pi_model_storage(const pi_model* model, pi_storage_report* out);
/* The experts of a mixture, at this moment; of other models all is 0. */
pi_status pi_model_experts(const pi_model* model, pi_expert_report* out);
/* Neurons of a layer of which memory lacks a part, at this moment; 0 if RAM or a device has all. */
int64_t pi_model_layer_stored_neurons(const pi_model* model, int32_t layer);
/* The tier of each neuron of a layer, at this moment: 0 if memory lacks a part of it, 1 for RAM, 2
 * for a device. out [max(1, n_expert), n_ff], of which capacity bytes are there. */
pi_status pi_model_tiers(const pi_model* model, int32_t layer, uint8_t* out, size_t capacity);
/* The memory budget of a model: ram_budget of pi_model_params, or what was free when the model was
 * opened. The model, its sessions, and reservations of callers for their own buffers take from it
 * and give back when freed. PI_ERROR_MEMORY if too little is left; the message begins with `what`.
 * A reservation may outlive its model. */
typedef struct pi_reservation pi_reservation;
uint64_t pi_model_budget(const pi_model* model);
uint64_t pi_model_reserved(const pi_model* model);
pi_status pi_reserve(const pi_model* model, const char* what, uint64_t n_bytes,
                     pi_reservation** out);
void pi_reservation_free(pi_reservation* reservation);
const char* pi_model_architecture(const pi_model* model); /* "llama" */
const char* pi_model_activation(const pi_model* model);   /* of the FFN: "relu", "silu", ... */
int32_t pi_model_n_vocab(const pi_model* model);
int32_t pi_model_n_ctx(const pi_model* model); /* positions that it was trained with */
int32_t pi_model_n_embd(const pi_model* model);
int32_t pi_model_n_layer(const pi_model* model);
/* Neurons of a layer, or of one expert; experts of a layer, 0 without experts. -1 if layers differ
 * in it: then see those of each layer, which are 0 where a layer has no feed-forward block. */
int32_t pi_model_n_ff(const pi_model* model);
int32_t pi_model_n_expert(const pi_model* model);
int32_t pi_model_layer_n_ff(const pi_model* model, int32_t layer);
int32_t pi_model_layer_n_expert(const pi_model* model, int32_t layer);
/* Values of a row that a layer's block or experts read: n_embd, or less if the experts are narrower
 * than the model (latent experts); 0 where a layer has no feed-forward block. */
int32_t pi_model_layer_width(const pi_model* model, int32_t layer);
uint64_t pi_model_n_params(const pi_model* model);   /* weights in the file */
uint64_t pi_model_n_bytes(const pi_model* model);    /* their bytes */
bool pi_model_has_predictors(const pi_model* model); /* in at least one layer */
/* Do layers fold all positions of a sequence into a state, as in Mamba-2, gated delta nets and
 * short convolutions? Then sequences can be cut to few positions: see pi_sequence_truncate. */
bool pi_model_has_states(const pi_model* model);
/* Do layers see a window of the last positions only, as in Gemma 3 and gpt-oss? Then their keys and
 * values take less memory than those of all positions, and sequences may not be cut everywhere: see
 * n_kv_old of pi_session_params and pi_sequence_truncate. */
bool pi_model_has_windows(const pi_model* model);
/* Was the layer loaded that guesses tokens (nextn of pi_model_params)? */
bool pi_model_guesses(const pi_model* model);
/* Does a row see those behind it, too, so that the model gives vectors or scores of texts and no
 * tokens? Then sessions need `embedding`. A call computes whole texts: what it has computed of a
 * sequence is gone when it ends. n_batch and n_ubatch are at least n_ctx, and keys and values, of
 * one layer at a time, are F32. */
bool pi_model_is_encoder(const pi_model* model);
/* Does it give scores (PI_POOLING_RANK)? */
bool pi_model_ranks(const pi_model* model);
/* The file's header; owned by the model. */
const pi_gguf* pi_model_gguf(const pi_model* model);

/* ---- Tokenizer ---------------------------------------------------------------------------- */

int32_t pi_token_bos(const pi_model* model); /* -1: none */
int32_t pi_token_eos(const pi_model* model);
int32_t pi_token_nl(const pi_model* model);
bool pi_token_add_bos(const pi_model* model); /* does a prompt begin with BOS */
bool pi_token_add_eos(const pi_model* model);
/* Does this token end a generation: EOS, EOT, EOM or another end of turn? */
bool pi_token_ends(const pi_model* model, int32_t token);
/* Converts text to token ids. text need not be UTF-8: invalid bytes become byte tokens. special:
 * the texts of control tokens in `text` become those tokens. Adds no BOS or EOS. *n gets the number
 * of tokens. If that is more than capacity, the call returns PI_ERROR_ARGUMENT and still sets *n:
 * call again with room for *n ids. There can be more tokens than bytes: the space that
 * SentencePiece adds at the start can take three. */
pi_status pi_tokenize(const pi_model* model, const char* text, size_t length, bool special,
                      int32_t* ids, size_t capacity, size_t* n);
/* The bytes of a token's text, including a leading space. Control tokens give "" unless `special`.
 */
pi_status pi_token_text(const pi_model* model, int32_t token, bool special, const char** text,
                        size_t* length);

/* ---- Sessions ----------------------------------------------------------------------------- */

typedef struct pi_session pi_session;

/* PI_ERROR_MEMORY if the session (KV cache, scratch, results, recordings) needs more than what is
 * left of the model's budget. PI_ERROR_ARGUMENT for parameters out of range. */
pi_status pi_session_new(const pi_model* model, const pi_session_params* params, pi_session** out);
void pi_session_free(pi_session* session);
int32_t pi_session_n_ctx(const pi_session* session);
int32_t pi_session_n_batch(const pi_session* session);
/* Positions in free pages of 64 of the pool (n_kv of pi_session_params). A sequence takes a page
 * when it gets longer than a multiple of 64 positions, or continues in a page that it shares with
 * others. */
int64_t pi_session_free_positions(const pi_session* session);

/* Rows to compute. Row i is token[i] at the next free position of sequence seq[i]. Rows of one
 * sequence are in the order of their positions. */
typedef struct pi_batch {
    size_t struct_size;     /* sizeof(pi_batch) */
    int32_t n;              /* rows, 1..n_batch */
    const int32_t* token;   /* [n] */
    const int32_t* seq;     /* [n], or NULL: all of sequence 0 */
    const bool* keep;       /* [n]: keep the results of the row, for at most n_logits rows; or NULL:
                             * keep those of the last row */
    const bool* generated;  /* [n]: the token was generated, so predictors mask its row under
                             * PI_SPARSE_AUTO; or NULL: all rows are of a prompt */
    const bool* checkpoint; /* [n]: keep a checkpoint of the row's sequence before the row; or NULL:
                             * none. Only for models with states or windows (pi_model_has_states,
                             * pi_model_has_windows) */
    const int32_t* type;    /* [n]: token types (segments), which BERT's relatives tell the texts of
                             * a pair by; or NULL: 0 */
} pi_batch;
/* Computes rows. After an error the sequences are as before the call; but where layers have windows
 * and no room for what is behind them, a sequence that the call made longer by more than n_ubatch
 * may be at its last checkpoint then, or empty. PI_ERROR_CONTEXT, before anything is computed, if a
 * sequence would get longer than n_ctx, the pool has too few free pages for the rows, or more than
 * n_active sequences do not rest; the message says which. The logits of a row depend only on the
 * model, the session's parameters, the tokens up to it in its sequence and which of them were
 * generated. Their bits are the same for any number of threads, any split of the rows into calls,
 * and any other sequences. */
pi_status pi_eval_batch(pi_session* session, const pi_batch* batch);
/* The same for n rows of a prompt: a batch with `generated` NULL. */
pi_status pi_eval(pi_session* session, const int32_t* token, const int32_t* seq, const bool* keep,
                  int32_t n);
/* Logits [n_vocab] of row i of the last call, which must have kept them. Valid until the next call.
 */
pi_status pi_logits(const pi_session* session, int32_t i, const float** out);
/* Embedding [n_embd] of row i: its last hidden state after the output norm. Only in sessions with
 * `embedding`, which have no logits. Valid as long as logits. */
pi_status pi_embedding(const pi_session* session, int32_t i, const float** out);
/* The result of a sequence's rows in the last call, of a session that pools: a vector behind the
 * file's dense layers, whose length is not 1, or scores. It has pi_session_pooled_width() floats
 * and is valid until the next call. Its bits depend on the tokens of the sequence alone. */
pi_status pi_pooled(const pi_session* session, int32_t seq, const float** out);
int32_t pi_session_pooled_width(const pi_session* session); /* 0: it does not pool */
/* Guesses what follows `token`, which is to come next in a sequence of at least one position:
 * *guess is the most likely token by the model's layer for that, *probability is what it gives it.
 * logits: gets [n_vocab] of the guess, valid until the next call; or NULL. Changes no sequence, and
 * the results of the last call stay. PI_ERROR_UNSUPPORTED without such a layer (pi_model_guesses),
 * PI_ERROR_CONTEXT if the sequence has no room for the token. Nothing of it is recorded. */
pi_status pi_guess(pi_session* session, int32_t seq, int32_t token, int32_t* guess,
                   float* probability, const float** logits);
int32_t pi_sequence_length(const pi_session* session, int32_t seq); /* -1: no such sequence */
/* Drops the positions of a sequence from n on (0 <= n <= its length).
 *
 * If the model has states (pi_model_has_states), a sequence can only be cut where its state is
 * known: at 0, at its end; in the rows of its last call and before them, if these were at most 16;
 * and at the checkpoints that pi_batch asked for. The session keeps n_checkpoints of these
 * (pi_session_params) and drops those that save the least work. Elsewhere this returns
 * PI_ERROR_UNSUPPORTED and changes nothing. After a failed call positions before its end may no
 * longer be known, except for checkpoints.
 *
 * If it has windows (pi_model_has_windows), a sequence can be cut where the window before n is
 * there: everywhere while the layers have room for all positions (n_kv_old of pi_session_params);
 * else from some position on, in its last call of at most n_ubatch rows, and at checkpoints. The
 * message says from where on. */
pi_status pi_sequence_truncate(pi_session* session, int32_t seq, int32_t n);
/* The least position above 0 from which on a sequence can be cut everywhere: 1, unless the model
 * has windows that were given up, or states; with these its end, or one more if that is not known.
 * -1: no such sequence. */
int32_t pi_sequence_first_cut(const pi_session* session, int32_t seq);
/* Says that a sequence is not continued for now, or that it is. What its windows hold may be given
 * up while it rests, if pages are wanted (n_active of pi_session_params); then it can be cut to
 * checkpoints and to 0 only. A call that continues it ends its rest, and so does emptying it. */
pi_status pi_sequence_rest(pi_session* session, int32_t seq, bool rests);
/* Replaces sequence `to` by the first n positions of sequence `from` (0 <= n <= its length). Both
 * share the memory of keys and values until one of them continues. With states, as above. */
pi_status pi_sequence_copy(pi_session* session, int32_t from, int32_t to, int32_t n);
/* *same gets the number of leading positions of a sequence that equal what these n rows would give
 * in an empty sequence: the same tokens, and masked by predictors in the same places. generated:
 * [n], or NULL for a prompt. To compute the n rows, truncate the sequence to *same and evaluate the
 * rest. With states it is the largest such number that it can be cut to: whoever needs the result
 * of the last row asks for the n - 1 rows before it. */
pi_status pi_sequence_match(const pi_session* session, int32_t seq, const int32_t* token,
                            const bool* generated, int32_t n, int32_t* same);

/* Adapters: low-rank changes of a model's weights (LoRA), from a GGUF file in llama.cpp's format.
 * An adapter keeps its model alive, and takes memory from its budget. PI_ERROR_IO; PI_ERROR_FORMAT:
 * the file is damaged, is no adapter, or belongs to another model; PI_ERROR_UNSUPPORTED: it changes
 * weights that adapters cannot change here; PI_ERROR_MEMORY. Messages name file and tensor or key.
 */
typedef struct pi_adapter pi_adapter;
pi_status pi_adapter_open(const pi_model* model, const char* path, pi_adapter** out);
void pi_adapter_free(pi_adapter* adapter); /* sessions that use it keep what they need */
/* The n adapters, and their scales, with which a session computes from now on; n 0: none. A scale
 * of 0 is as no adapter. If this changes something, all sequences become empty, since they were
 * computed otherwise, and results are no longer kept. PI_ERROR_ARGUMENT: an adapter of another
 * model, a scale that is not finite, or predictors are asked for (see lora_allow_predictor);
 * PI_ERROR_UNSUPPORTED: the model uses a device or runs from storage; PI_ERROR_MEMORY. After an
 * error nothing has changed. */
pi_status pi_session_set_adapters(pi_session* session, const pi_adapter* const* adapters,
                                  const float* scales, int32_t n);

/* A sequence as bytes: its tokens, how each was computed, its keys and values, and its state if the
 * model has states. Of layers with a window it has what the sequence still has. It can be continued
 * later, in this or another session of the same model and KV type. pi_sequence_save
 * writes *n bytes; if capacity is too small, it returns PI_ERROR_ARGUMENT and sets *n to the size
 * needed. pi_sequence_load replaces the content of the sequence. PI_ERROR_FORMAT: the bytes are of
 * another model, KV type or engine version, were rounded differently (pi_numerics), or this session
 * would compute the positions differently. The first of these calls for a model reads its file, up
 * to 4 GiB of it, to tell it from others by its weights: PI_ERROR_IO. PI_ERROR_CONTEXT: the state
 * is longer than n_ctx, or than what is free of the pool with the pages that the sequence has for
 * itself. After an error it is as before, unless a device failed. */
pi_status pi_sequence_save(const pi_session* session, int32_t seq, void* buffer, size_t capacity,
                           size_t* n);
pi_status pi_sequence_load(pi_session* session, int32_t seq, const void* buffer, size_t n);
/* A part of a sequence, count positions from `first` on, a multiple of 64, as bytes; and appending
 * such a part to a sequence that ends where the part begins, to write or read a long sequence
 * between other calls. If the model has states, a part has that of its end where it is known (see
 * pi_sequence_truncate); behind a part without one the sequence cannot be continued, but by another
 * part. The same goes for windows: a part has those of its positions that the sequence still has.
 * Statuses are those above; also PI_ERROR_ARGUMENT if the sequence has no such positions,
 * PI_ERROR_FORMAT if the part belongs behind another number of them. */
pi_status pi_sequence_save_part(const pi_session* session, int32_t seq, int32_t first,
                                int32_t count, void* buffer, size_t capacity, size_t* n);
pi_status pi_sequence_load_part(pi_session* session, int32_t seq, const void* buffer, size_t n);
/* The same with a file, which has a checksum. It appears under its name when it is complete. Errors
 * name it; also PI_ERROR_IO, and PI_ERROR_FORMAT if its bytes were changed. */
pi_status pi_sequence_save_file(const pi_session* session, int32_t seq, const char* path);
pi_status pi_sequence_load_file(pi_session* session, int32_t seq, const char* path);

/* Numbers of neurons of a layer, summed over rows: n_ff per row, in mixtures n_ff per row and
 * chosen expert. */
typedef struct pi_neuron_counts {
    size_t struct_size; /* sizeof(pi_neuron_counts) */
    int64_t rows;       /* in mixtures each row counts once per chosen expert */
    int64_t predicted;  /* neurons whose gate row (up row, without a gate) was computed: those that
                         * the predictor proposed; all neurons without one */
    int64_t computed;   /* those of them with a nonzero activation: up and down rows are needed */
    int64_t fired;      /* those of them whose product with up is not zero either */
    /* An audit computes 1/32 of one layer's neurons without the predictor, for each generated token
     * that a predictor masked. audited: neurons that fired; found: those that were proposed. */
    int64_t audited, found;
    /* Of predicted, computed and fired: those that a device computed. */
    int64_t device_predicted, device_computed, device_fired;
    int64_t storage_computed; /* of computed: those of which the disk had to bring a part, or all */
    /* If neurons or experts stay on the disk: parts of neurons, first and rest together, or experts
     * that rows needed; those of them that were not in memory; bytes that the disk brought, also
     * in vain; and the time in which there was nothing left to compute (see pi_work). */
    int64_t storage_needed, storage_missed, storage_bytes, storage_waited_ns;
    /* Of the blocks and experts that computed the rows, also experts that every row computes: what
     * predicted, computed and fired are shares of. */
    int64_t neurons;
    /* Pairs of a row and an expert that it chose; those of them that a device computed, and those
     * whose expert the disk had to bring. 0 in layers without experts, device_pairs also where
     * experts are neuron rows, storage_pairs where parts of neurons are read. */
    int64_t pairs, device_pairs, storage_pairs;
} pi_neuron_counts;

/* Work of a session since it began. The difference between two moments is the cost of the rows
 * between them. Bytes of weights and cache are counted as if each row had been computed alone,
 * although rows of one call share reads. */
typedef struct pi_work {
    size_t struct_size; /* sizeof(pi_work) */
    int64_t rows;
    uint64_t attention; /* including the norms */
    uint64_t predictor;
    uint64_t ffn; /* of the neurons that were computed; including routers */
    uint64_t head;
    uint64_t kv;                   /* including states */
    uint64_t transferred;          /* to and from a device while computing */
    uint64_t device;               /* of the five sums of reads above: what a device read */
    uint64_t answers;              /* halves of layers that the CPU computed for a device */
    uint64_t waited_for_device_ns; /* the CPU, for a device to give it its half of a layer */
    uint64_t waited_for_cpu_ns;    /* a device, for the CPU's half */
    /* If neurons or experts stay on the disk: parts of neurons, or experts (see pi_storage_report),
     * that rows needed, and those of them that were not in memory. Of many rows together only parts
     * of neurons that fired count, and an expert counts once. */
    uint64_t first_needed, first_missed, rest_needed, rest_missed;
    uint64_t storage_reads;         /* from the disk */
    uint64_t storage_bytes;         /* that they brought */
    uint64_t waited_for_storage_ns; /* with nothing left to compute */
    /* Experts whose reading began before a row had chosen them, and those that one then chose. They
     * were not in memory, so these are among first_missed. */
    uint64_t storage_guessed, storage_guessed_right;
} pi_work;
pi_status pi_session_work(const pi_session* session, pi_work* out);
/* Counts of the layers [first, first + n) into out [n]. struct_size of out[0] is the size of every
 * element. */
pi_status pi_session_neurons(const pi_session* session, int32_t first, int32_t n,
                             pi_neuron_counts* out);

/* Recordings of a layer, whose n_ff and n_expert are meant; PI_ERROR_ARGUMENT if `record` does not
 * include them, PI_ERROR_UNSUPPORTED if the layer has no feed-forward block. A neuron fires if the
 * value that multiplies its down row is not zero; in mixtures only for rows that chose its expert.
 * pi_firing_counts: [max(1, n_expert), n_ff] over all rows of the session, possibly including rows
 * of failed calls. pi_activations [rows, max(1, n_expert), n_ff] and pi_ffn_inputs [rows, width]:
 * for the rows of the last call, valid until the next one. The input is what the file says its
 * predictors see: the residual stream, whose width is n_embd, or its norm, of which experts may
 * read a narrower row (pi_model_layer_width). */
pi_status pi_firing_counts(const pi_session* session, int32_t layer, const uint64_t** out);
pi_status pi_activations(const pi_session* session, int32_t layer, const bool** out);
pi_status pi_ffn_inputs(const pi_session* session, int32_t layer, const float** out);
/* With PI_RECORD_SQUARES: for each column of an input (a pi_input) the sum of its squares,
 * [experts, width], and how many rows these are, [experts], over all rows of the session, possibly
 * including rows of failed calls. experts: max(1, n_expert) in feed-forward blocks, else 1. The
 * layer does not matter for PI_INPUT_HEAD. */
pi_status pi_input_squares(const pi_session* session, int32_t layer, int32_t input,
                           const double** sums, const uint64_t** rows);
/* Ends and resumes recording. It begins with the session. While it is off, it takes no time, and
 * there is nothing of the last call. PI_ERROR_ARGUMENT if `record` is off. */
pi_status pi_session_record(pi_session* session, bool on);
/* With PI_RECORD_BITS: the neurons that the model computed for a row of the last call, less those
 * whose product with up was 0: for each layer bits [max(1, n_expert), (n_ff + 7) / 8], where bit
 * i % 8 of byte i / 8 is neuron i. PI_ERROR_ARGUMENT if capacity is less than these bytes. */
pi_status pi_fired_bits(const pi_session* session, int32_t row, uint8_t* out, size_t capacity);
/* For the last row of the last call, with PI_RECORD_NEEDS: which neurons' first rows were needed
 * (gate, or up without a gate) and which neurons' other rows, [max(1, n_expert), n_ff] each. */
pi_status pi_ffn_needs(const pi_session* session, int32_t layer, const bool** proposed,
                       const bool** computed);

/* Time per operator between profile(true) and profile(false). profile(true) resets the times. */
typedef struct pi_op_time {
    size_t struct_size; /* sizeof(pi_op_time) */
    const char* part;   /* "attention", "ffn", "head", "embedding" */
    const char* op;     /* "matmul", "attention", "rms_norm", ... */
    int64_t calls;
    double seconds;
    uint64_t n_bytes; /* bytes of weights and cache that the calls read */
} pi_op_time;
void pi_session_profile(pi_session* session, bool on);
int32_t pi_session_n_ops(const pi_session* session);
pi_status pi_session_op_at(const pi_session* session, int32_t i, pi_op_time* out);

/* ---- Sampling ----------------------------------------------------------------------------- */

typedef struct pi_sampler pi_sampler;

/* Texts at which the repetitions end that the sampler "dry" looks for, as tokens of a model. Each
 * has at least one byte, of which 40 count; n is 0..256. A text counts where a token contains it,
 * or where tokens make it up. Samplers keep what they need of it, so it can be freed before them.
 */
typedef struct pi_breakers pi_breakers;
pi_status pi_breakers_new(const pi_model* model, const char* const* texts, const size_t* lengths,
                          int32_t n, pi_breakers** out);
void pi_breakers_free(pi_breakers* breakers);

/* Names, defaults and order of llama.cpp. */
typedef struct pi_sampler_params {
    size_t struct_size; /* sizeof(pi_sampler_params) */
    uint64_t seed;
    float temperature;       /* default 0.8; <= 0: greedy */
    int32_t top_k;           /* default 40; <= 0: all tokens */
    float top_p;             /* 0..1, default 0.95; 1: off */
    float min_p;             /* 0..1, default 0.05; 0: off */
    float typical_p;         /* 0..1, default 1: off */
    float repeat_penalty;    /* above 0, default 1: off */
    float frequency_penalty; /* default 0: off */
    float presence_penalty;  /* default 0: off */
    int32_t repeat_last_n;   /* tokens that penalties look at, default 64; 0: none; -1: all */
    float top_n_sigma;       /* keep logits within so many standard deviations of the best; default
                              * -1, <= 0: off */
    float xtc_probability; /* 0..1, default 0: off; how often to exclude top choices: of the tokens
                            * that have at least the threshold, all but the least likely */
    float xtc_threshold;   /* 0..1, default 0.1; above 0.5: off */
    float dynatemp_range;  /* default 0: off; temperature +- range, by the entropy */
    float dynatemp_exponent; /* 0 or more, default 1 */
    int32_t mirostat_mode;   /* default 0: off; 1 or 2: versions of mirostat, with penalties and
                              * temperature, in place of the other filters (arXiv 2007.14966) */
    float mirostat_tau;      /* target surprise in bits, 0 or more, default 5 */
    float mirostat_eta;      /* learning rate, 0 or more, default 0.1 */
    /* DRY: tokens that would continue a repetition of the allowed length L or a longer one, of n
     * tokens, lose multiplier * base^(n - L). */
    float dry_multiplier;                     /* 0 or more, default 0: off */
    float dry_base;                           /* default 1.75; below 1: off */
    int32_t dry_allowed_length;               /* 0 or more, default 2 */
    int32_t dry_penalty_last_n;               /* tokens that it looks at; default -1: all; 0: off */
    const pi_breakers* dry_sequence_breakers; /* where repetitions end; NULL: nowhere */
    /* Names of the samplers that are applied before the draw, in their order, with semicolons
     * between. Default NULL: "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature".
     * Without "temperature" that is 1. With mirostat only "penalties" and "dry" count. Each may
     * stand there twice. */
    const char* samplers;
} pi_sampler_params;

pi_sampler_params pi_sampler_default_params(void);
pi_status pi_sampler_new(const pi_sampler_params* params, pi_sampler** out);
void pi_sampler_free(pi_sampler* sampler);
/* Chooses a token. Does not change logits [n_vocab]. NaN and -inf are never chosen;
 * PI_ERROR_ARGUMENT if there is nothing else. */
pi_status pi_sample(pi_sampler* sampler, const float* logits, int32_t n_vocab, int32_t* token);
/* The same for n rows of the last call, whose logits must have been kept, by all threads of the
 * session: tokens[i] is what samplers[i] chooses for rows[i]. No sampler may be given twice.
 * PI_ERROR_ARGUMENT names the row; then no sampler has drawn. */
pi_status pi_sample_rows(pi_session* session, pi_sampler* const* samplers, const int32_t* rows,
                         int32_t n, int32_t* tokens);
/* Adds a token, of the prompt or a chosen one, to those that penalties look at. PI_ERROR_MEMORY. */
pi_status pi_sampler_accept(pi_sampler* sampler, int32_t token);
/* The same for n tokens, in their order. Those before one that fails have been added. */
pi_status pi_sampler_accept_all(pi_sampler* sampler, const int32_t* tokens, size_t n);
/* Forgets accepted tokens, and what mirostat learned. The random state continues. */
pi_status pi_sampler_reset(pi_sampler* sampler);
/* Seconds of one thread that pi_sample_rows has taken for it so far. */
double pi_sampler_seconds(const pi_sampler* sampler);
/* Restarts the random numbers from a seed, as in a new sampler. Accepted tokens stay. */
pi_status pi_sampler_seed(pi_sampler* sampler, uint64_t seed);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#include "powerinfer_tools.h"
#endif
