/* powerinfer.h: run language models from GGUF files. C99.
 *
 * Every call that can fail returns a pi_status; PI_OK is 0, and any other value leaves a message in
 * pi_last_error(), kept per thread until that thread's next failing call. Nothing is printed, the
 * process is never ended, and out-parameters are written only on PI_OK.
 *
 * Structs begin with their struct_size, which the caller sets (for parameters, the functions that
 * give defaults do). New members come at the end and make it grow: parameters of a program built
 * for an older header get the defaults of what they lack, and of a result as many bytes are written
 * as it has. A struct larger than this version's is refused.
 *
 * Lifetimes: what pi_X_open or pi_X_new gives, pi_X_free takes back (NULL is fine). A session keeps
 * its model alive. Strings and arrays that a getter returns belong to the handle and live as long
 * as it does, unless the comment says otherwise.
 *
 * Threads: a model may be shared by any number of threads. A session or sampler serves one call at
 * a time; different sessions are independent.
 *
 * Processes: a child of fork() may go on with models, sessions and samplers, and free them; it
 * starts threads of its own where a session needs some, in its next pi_eval_batch. That holds where
 * no call was under way in another thread at the fork.
 *
 * Files: headers are read, weights are mapped unless use_mmap is false. A mapped file that becomes
 * shorter takes the process with it when a page that is gone is touched (SIGBUS), as does a disk
 * that fails: replace the file of an open model by renaming another over it, or read it with
 * use_mmap false, after which nothing depends on the file.
 */
#ifndef POWERINFER_H
#define POWERINFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Everything between the two marks is plain C without preprocessor lines: Python's binding reads
 * it. */
/* cdef: begin */

typedef enum pi_status {
    PI_OK = 0,
    PI_ERROR_ARGUMENT = 1,    /* a value of the caller is out of range */
    PI_ERROR_IO = 2,          /* a file cannot be opened, read or written */
    PI_ERROR_FORMAT = 3,      /* a file contradicts its format */
    PI_ERROR_UNSUPPORTED = 4, /* the file is sound, but this engine cannot run it */
    PI_ERROR_MEMORY = 5,      /* more memory needed than is there or allowed */
    PI_ERROR_CONTEXT = 6,     /* more positions than the context has */
    PI_ERROR_DEVICE = 7,      /* a device failed or is not there */
    PI_ERROR_CANCELLED = 8,   /* a callback asked to stop */
    PI_ERROR_INTERNAL = 9     /* a bug; please report */
} pi_status;

/* Message of this thread's last failing call; "" if there was none. */
const char* pi_last_error(void);

/* "0.1.0" */
const char* pi_version(void);
/* Instruction set that the kernels use ("avx2", "generic"), after cpuid and the variable GGML_ISA.
 */
pi_status pi_isa(const char** isa);
/* Threads that a session starts unless told otherwise: affinity mask and CPU quota. */
int32_t pi_default_threads(void);
/* Bytes of RAM that are free to this process: the least of system, cgroups and RLIMIT_AS. */
uint64_t pi_available_memory(void);
/* Compute devices besides the CPU, and why there is none ("built without CUDA"). */
int32_t pi_n_devices(void);
const char* pi_device_name(int32_t device); /* NULL out of range */
const char* pi_device_note(void);

/* What this machine can do: bytes per second of a plain read of n_bytes of memory, and
 * multiply-adds per second of a 2048 x 4096 product of a format with n_tokens tokens. Each takes
 * under a second and the memory that it is about. */
pi_status pi_measure_read(int32_t n_threads, uint64_t n_bytes, double* bytes_per_s);
pi_status pi_measure_product(uint32_t type, int32_t n_threads, int32_t n_tokens, double* per_s);

/* ---- GGUF files: header only, no weights are read ---------------------------------------- */

typedef struct pi_gguf pi_gguf;

typedef enum pi_value_type { /* ids of the format */
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
    int64_t ne[4];   /* sizes, fastest first; 1 beyond n_dims */
    uint64_t offset; /* from the start of its file */
    uint64_t n_bytes;
    int32_t file; /* index among the parts of a split file */
} pi_tensor_info;

/* Opens and checks a file and, if it is the first of a split set, all its parts. */
pi_status pi_gguf_open(const char* path, pi_gguf** out);
void pi_gguf_free(pi_gguf* gguf);
uint32_t pi_gguf_version(const pi_gguf* gguf);
bool pi_gguf_is_pwri(const pi_gguf* gguf); /* PowerInfer's magic instead of GGUF's */
int32_t pi_gguf_n_files(const pi_gguf* gguf);
const char* pi_gguf_file(const pi_gguf* gguf, int32_t i); /* path of part i */

int64_t pi_gguf_n_values(const pi_gguf* gguf);
/* Key i (not NUL-terminated when it holds a NUL, hence the length), its type, for arrays the
 * element type and length. */
pi_status pi_gguf_value(const pi_gguf* gguf, int64_t i, const char** key, size_t* key_length,
                        pi_value_type* type, pi_value_type* element_type, uint64_t* count);
/* Elements of value i as int64 (integers, booleans), as double (any number), as bytes (strings).
 * first + n must be at most count. Strings are not NUL-terminated. */
pi_status pi_gguf_integers(const pi_gguf* gguf, int64_t i, uint64_t first, uint64_t n,
                           int64_t* out);
pi_status pi_gguf_numbers(const pi_gguf* gguf, int64_t i, uint64_t first, uint64_t n, double* out);
pi_status pi_gguf_string(const pi_gguf* gguf, int64_t i, uint64_t element, const char** out,
                         size_t* length);

int64_t pi_gguf_n_tensors(const pi_gguf* gguf);
pi_status pi_gguf_tensor(const pi_gguf* gguf, int64_t i, pi_tensor_info* out);

/* Reads and checks a placement of PowerInfer's (MODEL.generated.gpuidx) for a model of these sizes:
 * n_gpu[i] gets how many neurons of layer i it marks for the GPU. */
pi_status pi_gpu_index_read(const char* path, int32_t n_layer, int64_t n_ff, int64_t* n_gpu);

/* ---- Formats ------------------------------------------------------------------------------ */

/* GGUF type id, elements per block and bytes per block of a format by name ("Q4_0"); false if
 * unknown. */
bool pi_type_by_name(const char* name, uint32_t* type, int64_t* block, int64_t* block_bytes);
/* Converts n elements (a multiple of the block) between float and a format; dst_size guards dst. */
pi_status pi_encode(uint32_t type, const float* src, int64_t n, void* dst, size_t dst_size);
pi_status pi_decode(uint32_t type, const void* src, size_t src_size, float* dst, int64_t n);

/* Bundles: rows of neurons side by side, as they lie in memory and in bundled files. types: of the
 * n_parts rows of a neuron, cols weights each. put moves n stored rows of one part to their places,
 * take brings them back; a bundle of n neurons has the size of their rows. The version counts the
 * layouts that there have been. */
int32_t pi_bundle_version(void);
pi_status pi_bundle_put(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                        int32_t part, const void* rows, size_t rows_size, void* bundles,
                        size_t bundles_size);
pi_status pi_bundle_take(const uint32_t* types, int32_t n_parts, int64_t cols, int64_t n,
                         int32_t part, const void* bundles, size_t bundles_size, void* rows,
                         size_t rows_size);

/* ---- Models ------------------------------------------------------------------------------- */

typedef struct pi_model pi_model;

/* Called while a model loads; false cancels with PI_ERROR_CANCELLED. */
typedef bool (*pi_progress_callback)(float fraction, void* data);
/* level: 1 error, 2 warning, 3 information, 4 detail. message has no newline. */
typedef void (*pi_log_callback)(int32_t level, const char* message, void* data);

typedef struct pi_model_params {
    size_t struct_size;  /* sizeof(pi_model_params) */
    bool vocab_only;     /* tokenizer and header, no weights */
    bool use_mmap;       /* false: read weights into memory (see Files, above) */
    bool use_mlock;      /* keep weights in RAM */
    bool check_tensors;  /* refuse weights that are NaN or infinite */
    bool use_gpu_index;  /* read PATH.generated.gpuidx, PowerInfer's placement, if there */
    int32_t n_threads;   /* for repacking; 0: pi_default_threads() */
    uint64_t ram_budget; /* bytes for everything together; 0: what is free */
    pi_progress_callback progress; /* or NULL */
    void* progress_data;
    pi_log_callback log; /* or NULL */
    void* log_data;
} pi_model_params;

/* Which neurons are computed. In files without neuron rows (ffn_down_t) every one, always. */
typedef enum pi_sparse {
    PI_SPARSE_AUTO = 0,     /* rows of generated tokens (pi_batch) by predictor, those of prompts
                             * as exact; layers with a recall below 0.7 in the file as exact, too */
    PI_SPARSE_OFF = 1,      /* every neuron counts */
    PI_SPARSE_EXACT = 2,    /* the same result from the neurons whose activation is not zero */
    PI_SPARSE_PREDICTOR = 3 /* every row by predictor; refused without one */
} pi_sparse;

/* What a session keeps of its feed-forward blocks; each kind keeps what the ones before it do.
 * Needs sparse off or exact: what a predictor masks is never known. */
typedef enum pi_record {
    PI_RECORD_OFF = 0,
    PI_RECORD_COUNTS = 1, /* how often each neuron fired since the session began */
    PI_RECORD_FIRED = 2,  /* which neurons fired, for every row of the last call */
    PI_RECORD_INPUTS = 3  /* the input of each layer's predictor, likewise */
} pi_record;

typedef struct pi_session_params {
    size_t struct_size;      /* sizeof(pi_session_params) */
    int32_t n_ctx;           /* positions per sequence; 0: the model's */
    int32_t n_batch;         /* rows that one pi_eval_batch may take, 1.. */
    int32_t n_ubatch;        /* rows computed at once, 1..n_batch (larger is cut to n_batch) */
    int32_t n_logits;        /* rows of one call whose logits can be kept; 0: n_batch */
    int32_t n_seq;           /* sequences, each with n_ctx positions, 1..256 */
    int32_t n_threads;       /* for one row; 0: pi_default_threads() */
    int32_t n_threads_batch; /* for several rows; 0: n_threads */
    uint32_t type_k,
        type_v;     /* GGUF type ids of the KV cache, the same: F16 (1), F32 (0), Q8_0 (8) */
    int32_t sparse; /* a pi_sparse */
    float sparse_threshold; /* predictor score below which a neuron is skipped; NaN: the file's */
    int32_t record;         /* a pi_record */
    bool embedding;         /* kept rows give their embedding instead of logits */
    /* Asked now and then during pi_eval_batch; true ends it with PI_ERROR_CANCELLED. Or NULL. */
    bool (*should_stop)(void* data);
    void* should_stop_data;
    pi_log_callback log; /* or NULL; called by pi_session_new and pi_eval_batch */
    void* log_data;
} pi_session_params;

/* Defaults: mmap, use_gpu_index, n_ctx 512, n_batch 512, n_ubatch 512, n_seq 1, KV in F16, the rest
 * 0. */
pi_model_params pi_model_default_params(void);
pi_session_params pi_session_default_params(void);

/* What a model and a session with these parameters would take, computed from the header alone. */
typedef struct pi_plan pi_plan;
typedef struct pi_plan_part {
    size_t struct_size; /* sizeof(pi_plan_part) */
    const char* tier;   /* "ram" */
    const char* name;   /* "attention", "ffn", "embedding", "head", "norms", "predictor", "kv",
                         * "scratch", "results", "record" */
    int32_t layer;      /* -1: of none */
    uint64_t n_bytes;
} pi_plan_part;
pi_status pi_plan_new(const char* path, const pi_model_params* model,
                      const pi_session_params* session, pi_plan** out);
void pi_plan_free(pi_plan* plan);
int32_t pi_plan_n_parts(const pi_plan* plan);
pi_status pi_plan_part_at(const pi_plan* plan, int32_t i, pi_plan_part* out);
uint64_t pi_plan_budget(const pi_plan* plan); /* bytes that may be used */
int32_t pi_plan_n_ctx(const pi_plan* plan);   /* positions that were planned for */

/* Loads a model: a GGUF or PWRI file, or the first part of a split one. Refuses before loading when
 * the weights alone exceed the budget. */
pi_status pi_model_open(const char* path, const pi_model_params* params, pi_model** out);
void pi_model_free(pi_model* model);
/* Memory is taken from one budget: by the model, by its sessions, and by what callers reserve for
 * buffers of their own, which are refused where the rest is too little and give back what they took
 * when they are freed. The budget: that of pi_model_params or, without one, what was free when the
 * model was opened. A reservation may outlive its model; `what` begins the message of a refusal. */
typedef struct pi_reservation pi_reservation;
uint64_t pi_model_budget(const pi_model* model);
uint64_t pi_model_reserved(const pi_model* model);
pi_status pi_reserve(const pi_model* model, const char* what, uint64_t n_bytes,
                     pi_reservation** out);
void pi_reservation_free(pi_reservation* reservation);
const char* pi_model_architecture(const pi_model* model); /* "llama" */
const char* pi_model_activation(const pi_model* model);   /* "relu", "silu", ... of the FFN */
int32_t pi_model_n_vocab(const pi_model* model);
int32_t pi_model_n_ctx(const pi_model* model); /* positions the model was trained for */
int32_t pi_model_n_embd(const pi_model* model);
int32_t pi_model_n_layer(const pi_model* model);
int32_t pi_model_n_ff(const pi_model* model);        /* neurons of a layer, or of one expert */
int32_t pi_model_n_expert(const pi_model* model);    /* experts of a layer; 0: one block for all */
uint64_t pi_model_n_params(const pi_model* model);   /* weights in the file */
uint64_t pi_model_n_bytes(const pi_model* model);    /* their bytes */
bool pi_model_has_predictors(const pi_model* model); /* in one layer at least */
/* The file's header; owned by the model. */
const pi_gguf* pi_model_gguf(const pi_model* model);

/* ---- Tokenizer ---------------------------------------------------------------------------- */

int32_t pi_token_bos(const pi_model* model); /* -1: none */
int32_t pi_token_eos(const pi_model* model);
int32_t pi_token_nl(const pi_model* model);
bool pi_token_add_bos(const pi_model* model); /* does the file want BOS before a prompt */
bool pi_token_add_eos(const pi_model* model);
bool pi_token_ends(const pi_model* model,
                   int32_t token); /* EOS and every other end of generation */
/* Text to ids. text need not be UTF-8: other bytes become byte tokens. special: texts of control
 * tokens in `text` become those tokens. Adds no BOS or EOS. *n gets the count; with more than
 * capacity, PI_ERROR_ARGUMENT and *n the count that is needed: call again with room for *n. Most
 * texts have fewer tokens than bytes, but none of them must: a space that SentencePiece puts first
 * can take three. */
pi_status pi_tokenize(const pi_model* model, const char* text, size_t length, bool special,
                      int32_t* ids, size_t capacity, size_t* n);
/* The bytes a token stands for: a leading space included, control tokens "" unless special. */
pi_status pi_token_text(const pi_model* model, int32_t token, bool special, const char** text,
                        size_t* length);

/* ---- Sessions ----------------------------------------------------------------------------- */

typedef struct pi_session pi_session;

/* Refuses when what the session takes (KV, scratch, results, recordings) exceeds what is left of
 * the model's budget. */
pi_status pi_session_new(const pi_model* model, const pi_session_params* params, pi_session** out);
void pi_session_free(pi_session* session);
int32_t pi_session_n_ctx(const pi_session* session);
int32_t pi_session_n_batch(const pi_session* session);

/* Rows to compute. Row i: token[i] at the next free position of sequence seq[i]; rows of one
 * sequence come in order. */
typedef struct pi_batch {
    size_t struct_size;   /* sizeof(pi_batch) */
    int32_t n;            /* rows, 1..n_batch */
    const int32_t* token; /* [n] */
    const int32_t* seq;   /* [n], or NULL: all of sequence 0 */
    const bool* keep;     /* [n]: keep the row's logits, of n_logits rows at most; or NULL: the last
                           * row's */
    const bool* generated; /* [n]: the token was generated, so that under PI_SPARSE_AUTO predictors
                            * mask its row; or NULL: none was, all are of a prompt */
} pi_batch;
/* Computes rows. On an error no row counts. A row's logits follow from the model, the session's
 * parameters, the tokens before it in its sequence and which of these were generated. They have the
 * same bits for any number of threads, any way to cut rows into calls, and beside any other
 * sequence. */
pi_status pi_eval_batch(pi_session* session, const pi_batch* batch);
/* The same for n rows of a prompt: a batch with `generated` NULL. */
pi_status pi_eval(pi_session* session, const int32_t* token, const int32_t* seq, const bool* keep,
                  int32_t n);
/* Logits [n_vocab] of row i of the last call, which must have kept them; valid until the next.
 */
pi_status pi_logits(const pi_session* session, int32_t i, const float** out);
/* Embedding [n_embd] of row i: the output norm of its last hidden state. Only in sessions with
 * `embedding`, where pi_logits has nothing to give; same lifetime as logits. */
pi_status pi_embedding(const pi_session* session, int32_t i, const float** out);
/* Positions that a sequence holds, and forgetting all from n on (0 <= n <= length). */
int32_t pi_sequence_length(const pi_session* session, int32_t seq); /* -1: no such sequence */
pi_status pi_sequence_truncate(pi_session* session, int32_t seq, int32_t n);
/* Makes sequence `to` the first n positions of sequence `from` (0 <= n <= its length). Both share
 * the memory of their keys and values until one of them goes on. */
pi_status pi_sequence_copy(pi_session* session, int32_t from, int32_t to, int32_t n);
/* *same gets how many leading positions of a sequence hold what these n rows would give, computed
 * from its beginning: the same tokens, and masked by predictors where these would be. generated:
 * [n], or NULL for a prompt. Who wants the n rows cuts the sequence there and computes the rest. */
pi_status pi_sequence_match(const pi_session* session, int32_t seq, const int32_t* token,
                            const bool* generated, int32_t n, int32_t* same);

/* A sequence as bytes: its tokens, how each was computed, and its keys and values, to go on later
 * in this or another session of the same model and KV type. pi_sequence_save writes *n bytes, or
 * says with PI_ERROR_ARGUMENT and *n how many it needs. pi_sequence_load replaces what the sequence
 * held; bytes that do not fit this model, that another version of the engine wrote, or whose
 * positions this session would compute in another way, are PI_ERROR_FORMAT, a state longer than the
 * context PI_ERROR_CONTEXT. */
pi_status pi_sequence_save(const pi_session* session, int32_t seq, void* buffer, size_t capacity,
                           size_t* n);
pi_status pi_sequence_load(pi_session* session, int32_t seq, const void* buffer, size_t n);

/* Neurons of a layer, summed over rows: of n_ff per row, in mixtures per row and chosen expert. */
typedef struct pi_neuron_counts {
    size_t struct_size; /* sizeof(pi_neuron_counts) */
    int64_t rows;       /* in mixtures each as often as it has chosen experts */
    int64_t predicted;  /* proposed: the gate row (up, where there is no gate) was computed; without
                         * a predictor every neuron */
    int64_t computed;   /* of them those that went on: up and down (down, where there is no gate) */
    int64_t fired;      /* of them those that sent something else than zero down */
    /* Of the segments that audits looked at, 1/32 of one layer's neurons for each generated token
     * that a predictor masked: neurons that fire, and those of them that were proposed. */
    int64_t audited, found;
} pi_neuron_counts;

/* What a session has done since it began; the difference between two moments is what the rows
 * between them cost. Bytes of weights and cache are those that each row would have read alone: rows
 * of one call share what they have in common. */
typedef struct pi_work {
    size_t struct_size; /* sizeof(pi_work) */
    int64_t rows;
    uint64_t attention; /* with the norms */
    uint64_t predictor;
    uint64_t ffn; /* of what was predicted and computed; with the routers */
    uint64_t head;
    uint64_t kv;
} pi_work;
pi_status pi_session_work(const pi_session* session, pi_work* out);
/* Of the layers first, first + 1, ...: out [n]; struct_size of out[0] is that of all elements. */
pi_status pi_session_neurons(const pi_session* session, int32_t first, int32_t n,
                             pi_neuron_counts* out);

/* Recordings of a layer; PI_ERROR_ARGUMENT where the session's `record` does not keep them. A
 * neuron fires when what it sends down is not zero, in mixtures only for rows that chose its
 * expert. pi_firing_counts: [max(1, n_expert), n_ff] over all rows of the session; a call that
 * failed may have counted some of its rows. pi_activations and pi_ffn_inputs: of the last call's
 * rows and valid until the next, [rows, max(1, n_expert), n_ff] and [rows, n_embd]. The input is
 * the one that the file says its predictors see: the residual stream or its norm. */
pi_status pi_firing_counts(const pi_session* session, int32_t layer, const uint64_t** out);
pi_status pi_activations(const pi_session* session, int32_t layer, const bool** out);
pi_status pi_ffn_inputs(const pi_session* session, int32_t layer, const float** out);

/* Time per operator, measured between profile(true) and profile(false); profile(true) starts anew.
 */
typedef struct pi_op_time {
    size_t struct_size; /* sizeof(pi_op_time) */
    const char* part;   /* "attention", "ffn", "head", "embedding" */
    const char* op;     /* "matmul", "attention", "rms_norm", ... */
    int64_t calls;
    double seconds;
    uint64_t n_bytes; /* weights and cache that the calls read */
} pi_op_time;
void pi_session_profile(pi_session* session, bool on);
int32_t pi_session_n_ops(const pi_session* session);
pi_status pi_session_op_at(const pi_session* session, int32_t i, pi_op_time* out);

/* ---- Sampling ----------------------------------------------------------------------------- */

typedef struct pi_sampler pi_sampler;

typedef struct pi_sampler_params { /* llama.cpp's names, defaults and order */
    size_t struct_size;            /* sizeof(pi_sampler_params) */
    uint64_t seed;
    float temperature;       /* 0.8; <= 0: greedy */
    int32_t top_k;           /* 40; <= 0: all */
    float top_p;             /* 0.95; 1: off */
    float min_p;             /* 0.05; 0: off */
    float typical_p;         /* 1: off */
    float repeat_penalty;    /* 1: off */
    float frequency_penalty; /* 0: off */
    float presence_penalty;  /* 0: off */
    int32_t repeat_last_n;   /* 64 tokens looked back on; 0: none; -1: all */
} pi_sampler_params;

pi_sampler_params pi_sampler_default_params(void);
pi_status pi_sampler_new(const pi_sampler_params* params, pi_sampler** out);
void pi_sampler_free(pi_sampler* sampler);
/* Penalties, top-k, typical, top-p, min-p, temperature, draw, in this order. Does not change
 * logits. */
pi_status pi_sample(pi_sampler* sampler, const float* logits, int32_t n_vocab, int32_t* token);
/* Tells the sampler of a token of the prompt or one that was chosen, for the penalties. */
void pi_sampler_accept(pi_sampler* sampler, int32_t token);
/* Forgets accepted tokens; the random state goes on. */
void pi_sampler_reset(pi_sampler* sampler);
/* Begins the random numbers anew, as a sampler made with this seed; accepted tokens stay. */
void pi_sampler_seed(pi_sampler* sampler, uint64_t seed);

/* cdef: end */

#ifdef __cplusplus
}
#endif
#endif
