/* powerinfer.h from C99: the process, devices, models, their tokenizer, and the parameters of
 * sessions. What every function does and refuses, here and in the other tests of the C API, and
 * that a refusal sets a message and leaves the caller's variables unchanged. argv[1]: the default
 * model.
 */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>

#include "capi.h"

static const char* program_path;

/* ---- The process -------------------------------------------------------------------------- */

static void* error_of_a_new_thread(void* out) {
    pi_gguf* gguf = NULL;
    CHECK(!strcmp(pi_last_error(), ""));
    FAILS(PI_ERROR_IO, pi_gguf_open("only this thread fails here", &gguf));
    CHECK(says("only this thread"));
    *(bool*)out = true;
    return NULL;
}

static void test_process(void) {
    CHECK(!strcmp(pi_last_error(), ""));
    const char* isa = NULL;
    OK(pi_isa(&isa));
    CHECK(isa && isa[0]);
    FAILS(PI_ERROR_ARGUMENT, pi_isa(NULL));
    const char* before = getenv("GGML_ISA");
    char* saved = before ? strdup(before) : NULL;
    setenv("GGML_ISA", "no-such-isa", 1);
    isa = UNTOUCHED;
    FAILS(PI_ERROR_UNSUPPORTED, pi_isa(&isa));
    CHECK(isa == UNTOUCHED && says("no-such-isa"));
    saved ? setenv("GGML_ISA", saved, 1) : unsetenv("GGML_ISA");
    free(saved);

    CHECK(pi_version()[0] >= '0' && pi_version()[0] <= '9' && strchr(pi_version(), '.'));
    CHECK(pi_default_threads() >= 1 && pi_default_threads() <= 512);
    CHECK(pi_available_memory() > 0 && pi_peak_memory() > 1 << 20);
    const int32_t n = pi_n_devices();
    CHECK(n >= 0 && pi_device_note() && (n > 0 || pi_device_note()[0]));
    for (int32_t i = 0; i < n; i++) CHECK(pi_device_name(i) && pi_device_name(i)[0]);
    CHECK(!pi_device_name(-1) && !pi_device_name(n) && !pi_device_name(INT32_MAX));

    pthread_t thread;
    bool done = false;
    CHECK(!pthread_create(&thread, NULL, error_of_a_new_thread, &done));
    CHECK(!pthread_join(thread, NULL) && done);
    CHECK(says("no-such-isa"));
}

static void test_disk(void) {
    pi_disk_params p = pi_disk_default_params();
    pi_disk_report r;
    CHECK(p.struct_size == sizeof(p) && p.n_bytes == 8192 && p.depth == 128 && !p.in_order);
    memset(&r, 77, sizeof(r));
    SIZED(r);
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(NULL, &p, &r));
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(model_path, &p, NULL));
    FAILS(PI_ERROR_IO, pi_measure_disk("no such file", &p, &r));
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(model_path, NULL, &r)); /* it is too small */
    CHECK(says(model_path) && says("64 MiB"));
    p.n_bytes = 1000;
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(model_path, &p, &r));
    p = pi_disk_default_params();
    p.depth = 0;
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(model_path, &p, &r));
    p = pi_disk_default_params();
    p.seconds = 0;
    FAILS(PI_ERROR_ARGUMENT, pi_measure_disk(model_path, &p, &r));
    CHECK(r.io[0] == 77 && r.reads == 0x4d4d4d4d4d4d4d4d);
}

static void test_devices(void) {
    pi_device_report r;
    memset(&r, 77, sizeof(r));
    SIZED(r);
    FAILS(PI_ERROR_DEVICE, pi_measure_device("opencl0", 4096, &r));
    CHECK(says("there is no device \"opencl0\""));
    FAILS(PI_ERROR_ARGUMENT, pi_measure_device(NULL, 4096, &r));
    FAILS(PI_ERROR_ARGUMENT, pi_measure_device("simt", 4096, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_measure_device("simt", 4095, &r));
    CHECK(r.name[0] == 77 && r.compute == 0x4d4d4d4d);
    if (pi_measure_device("simt", 4096, &r) == PI_ERROR_DEVICE) return; /* not in every build */
    CHECK(!strcmp(r.name, "CPU as a GPU") && r.compute == 75 && r.cuda == r.driver_cuda);
    CHECK(r.total_bytes >= r.free_bytes && r.free_bytes > 0);
    CHECK(r.copy_per_s > 0 && r.in_per_s > 0 && r.out_per_s > 0);
    CHECK(r.flag_s > 0 && r.launch_s > 0 && r.node_s >= 0);
    /* An older caller, who knows the name only. */
    memset(&r, 77, sizeof(r));
    r.struct_size = offsetof(pi_device_report, driver);
    OK(pi_measure_device("simt", 4096, &r));
    CHECK(!strcmp(r.name, "CPU as a GPU") && r.driver[0] == 77);
    r.struct_size = sizeof(r) + 8;
    FAILS(PI_ERROR_ARGUMENT, pi_measure_device("simt", 4096, &r));
}

static void test_defaults(void) {
    const pi_model_params m = pi_model_default_params();
    CHECK(m.struct_size == sizeof(m) && !m.vocab_only && m.use_mmap && !m.use_mlock);
    CHECK(!m.check_tensors && !m.n_threads && !m.ram_budget && !m.progress && !m.log);
    const pi_session_params s = pi_session_default_params();
    CHECK(s.struct_size == sizeof(s) && s.n_ctx == 512 && s.n_batch == 512 && s.n_ubatch == 512);
    CHECK(s.n_seq == 1 && !s.n_logits && !s.n_threads && !s.n_threads_batch && !s.should_stop);
    CHECK(s.type_k == 1 && s.type_v == 1 && !s.embedding);
    const pi_sampler_params p = pi_sampler_default_params();
    CHECK(p.struct_size == sizeof(p) && p.temperature == 0.8f && p.top_k == 40);
    CHECK(p.top_p == 0.95f && p.min_p == 0.05f && p.typical_p == 1 && p.repeat_penalty == 1);
    CHECK(p.frequency_penalty == 0 && p.presence_penalty == 0 && p.repeat_last_n == 64);
    pi_gguf_free(NULL);
    pi_plan_free(NULL);
    pi_model_free(NULL);
    pi_session_free(NULL);
    pi_sampler_free(NULL);
}

/* ---- Models ------------------------------------------------------------------------------- */

struct progress {
    int calls, stop_at;
    float last;
    bool ordered;
};

static bool on_progress(float fraction, void* data) {
    struct progress* p = data;
    p->ordered = p->ordered && fraction >= p->last && fraction <= 1;
    p->last = fraction;
    return ++p->calls != p->stop_at;
}

static void on_log(int32_t level, const char* message, void* data) {
    CHECK(level >= 1 && level <= 4 && message[0] && !strchr(message, '\n'));
    ++*(int*)data;
}

static void test_model(void) {
    pi_model* m = UNTOUCHED;
    pi_model_params params = pi_model_default_params();
    FAILS(PI_ERROR_IO, pi_model_open("no/such/file.gguf", NULL, &m));
    CHECK(says("no/such/file.gguf"));
    FAILS(PI_ERROR_FORMAT, pi_model_open(program_path, &params, &m));
    FAILS(PI_ERROR_ARGUMENT, pi_model_open(NULL, NULL, &m));
    FAILS(PI_ERROR_ARGUMENT, pi_model_open(model_path, NULL, NULL));
    const size_t sizes[] = {0, 1, sizeof(size_t) - 1, sizeof(params) + 1, SIZE_MAX};
    for (int k = 0; k < 5; k++) {
        params.struct_size = sizes[k];
        FAILS(PI_ERROR_ARGUMENT, pi_model_open(model_path, &params, &m));
        CHECK(says("struct_size"));
    }
    params = pi_model_default_params();
    for (int k = 0; k < 3; k++) {
        params.n_threads = k == 0 ? -1 : k == 1 ? 513 : INT32_MIN;
        FAILS(PI_ERROR_ARGUMENT, pi_model_open(model_path, &params, &m));
        CHECK(says("n_threads"));
    }
    params = pi_model_default_params();
    params.ram_budget = 1;
    FAILS(PI_ERROR_MEMORY, pi_model_open(model_path, &params, &m));
    CHECK(says("MiB"));

    params = pi_model_default_params();
    struct progress p = {0, 0, 0, true};
    params.progress = on_progress;
    params.progress_data = &p;
    /* One thread calls after each of its pieces. Of two, the caller's may get none of them: then
     * only the calls for the beginning and the end are certain. */
    for (int stop = 1; stop <= 5; stop++) {
        params.n_threads = stop <= 2 ? 2 : 1;
        p.calls = 0, p.last = 0, p.stop_at = stop;
        FAILS(PI_ERROR_CANCELLED, pi_model_open(model_path, &params, &m));
        CHECK(p.calls == stop);
    }
    CHECK(m == UNTOUCHED);

    p.calls = 0, p.last = 0, p.stop_at = 0;
    int lines = 0;
    params.log = on_log;
    params.log_data = &lines;
    params.use_mmap = false;
    params.check_tensors = true;
    params.n_threads = 2;
    OK(pi_model_open(model_path, &params, &m));
    CHECK(p.ordered && p.calls >= 2 && p.last == 1 && lines < 100);
    CHECK(!strcmp(pi_model_architecture(m), "llama") && pi_model_activation(m)[0]);
    CHECK(pi_model_n_vocab(m) > 258 && pi_model_n_ctx(m) > 0 && pi_model_n_embd(m) > 0);
    CHECK(pi_model_n_layer(m) > 0 && pi_model_n_ff(m) > 0);
    const pi_gguf* g = pi_model_gguf(m);
    uint64_t n_bytes = 0, n_params = 0;
    for (int64_t i = 0; i < pi_gguf_n_tensors(g); i++) {
        pi_tensor_info t;
        SIZED(t);
        OK(pi_gguf_tensor(g, i, &t));
        n_bytes += t.n_bytes;
        n_params += (uint64_t)(t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]);
    }
    CHECK(pi_model_n_bytes(m) == n_bytes && pi_model_n_params(m) == n_params);
    int64_t value = 0;
    OK(pi_gguf_integers(g, find_key(g, "llama.embedding_length"), 0, 1, &value));
    CHECK(value == pi_model_n_embd(m));
    CHECK(pi_gguf_n_files(g) == 1 && !strcmp(pi_gguf_file(g, 0), model_path));
    pi_model_free(m);

    /* mlock may be forbidden to this user; then the message says so. */
    params = pi_model_default_params();
    params.use_mlock = true;
    m = NULL;
    const pi_status locked = pi_model_open(model_path, &params, &m);
    CHECK(locked == PI_OK ? m != NULL : locked == PI_ERROR_MEMORY && !m && says("RAM"));
    pi_model_free(m);

    params = pi_model_default_params();
    params.vocab_only = true;
    OK(pi_model_open(model_path, &params, &m));
    CHECK(pi_model_n_vocab(m) > 258 && pi_token_bos(m) >= 0);
    pi_session* s = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, NULL, &s));
    CHECK(s == UNTOUCHED);
    pi_model_free(m);
}

static void test_tokenizer(const pi_model* m) {
    static const char* const texts[] = {"Once upon a time", "", " ", "a\nb", "\xff\xfe",
                                        "Zo\xc3\xab <0x41>"};
    const int32_t n_vocab = pi_model_n_vocab(m);
    int32_t ids[64];
    size_t n = 77, length = 0;
    const char* text = NULL;
    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        char joined[256] = "";
        const size_t size = strlen(texts[k]);
        OK(pi_tokenize(m, texts[k], size, false, ids, 64, &n));
        CHECK(n <= size + 2);
        for (size_t i = 0; i < n; i++) {
            CHECK(ids[i] >= 0 && ids[i] < n_vocab && !pi_token_ends(m, ids[i]));
            OK(pi_token_text(m, ids[i], false, &text, &length));
            strncat(joined, text, length);
        }
        CHECK(n == 0 ? size == 0 : joined[0] == ' ' && !strcmp(joined + 1, texts[k]));
        if (n == 0) continue;
        size_t needed = 0;
        ids[0] = 77;
        FAILS(PI_ERROR_ARGUMENT, pi_tokenize(m, texts[k], size, false, ids, n - 1, &needed));
        CHECK(needed == n && ids[0] == 77);
        needed = 0;
        FAILS(PI_ERROR_ARGUMENT, pi_tokenize(m, texts[k], size, false, NULL, 0, &needed));
        CHECK(needed == n);
    }
    OK(pi_tokenize(m, "a\0b", 3, false, ids, 64, &n)); /* a byte like any other */
    CHECK(n >= 3);
    OK(pi_tokenize(m, NULL, 0, false, NULL, 0, &n));
    CHECK(n == 0);
    n = 77;
    FAILS(PI_ERROR_ARGUMENT, pi_tokenize(m, NULL, 3, false, ids, 64, &n));
    FAILS(PI_ERROR_ARGUMENT, pi_tokenize(m, "abc", 3, false, NULL, 64, &n));
    FAILS(PI_ERROR_ARGUMENT, pi_tokenize(NULL, "abc", 3, false, ids, 64, &n));
    FAILS(PI_ERROR_ARGUMENT, pi_tokenize(m, "abc", 3, false, ids, 64, NULL));
    CHECK(n == 77);

    const int32_t bos = pi_token_bos(m), eos = pi_token_eos(m), nl = pi_token_nl(m);
    CHECK(bos >= 0 && bos < n_vocab && eos >= 0 && eos < n_vocab && nl >= 0 && nl < n_vocab);
    CHECK(pi_token_add_bos(m) && !pi_token_add_eos(m));
    CHECK(pi_token_ends(m, eos) && !pi_token_ends(m, nl));
    CHECK(!pi_token_ends(m, -1) && !pi_token_ends(m, n_vocab));
    OK(pi_token_text(m, nl, false, &text, &length));
    CHECK(length == 1 && text[0] == '\n');
    OK(pi_token_text(m, eos, false, &text, &length));
    CHECK(length == 0);
    OK(pi_token_text(m, eos, true, &text, &length));
    CHECK(length > 0 && length < 32);
    char copy[32];
    memcpy(copy, text, length);
    OK(pi_tokenize(m, copy, length, true, ids, 64, &n));
    CHECK(n == 1 && ids[0] == eos);
    OK(pi_tokenize(m, copy, length, false, ids, 64, &n));
    CHECK(n > 1);
    text = UNTOUCHED, length = 77;
    FAILS(PI_ERROR_ARGUMENT, pi_token_text(m, -1, true, &text, &length));
    FAILS(PI_ERROR_ARGUMENT, pi_token_text(m, n_vocab, true, &text, &length));
    FAILS(PI_ERROR_ARGUMENT, pi_token_text(NULL, 0, true, &text, &length));
    FAILS(PI_ERROR_ARGUMENT, pi_token_text(m, 0, true, NULL, NULL));
    CHECK(text == UNTOUCHED && length == 77);
}

/* ---- Plans and session parameters --------------------------------------------------------- */

/* Each parameter out of its range: plans and sessions refuse it and name it. */
static void test_session_params(const pi_model* m) {
    pi_session_params p[24];
    const char* names[24];
    int n = 0;
#define BAD(field, value) \
    (p[n] = pi_session_default_params(), p[n].field = (value), names[n++] = #field)
    BAD(n_ctx, -1);
    BAD(n_ctx, INT32_MIN);
    BAD(n_batch, 0);
    BAD(n_batch, -1);
    BAD(n_batch, INT32_MAX);
    BAD(n_ubatch, 0);
    BAD(n_ubatch, -5);
    BAD(n_ubatch, INT32_MAX);
    BAD(n_logits, -1);
    BAD(n_logits, INT32_MAX);
    BAD(n_seq, 0);
    BAD(n_seq, -1);
    BAD(n_seq, 257);
    BAD(n_kv, -1);
    BAD(n_kv, INT64_MIN);
    BAD(n_threads, -1);
    BAD(n_threads, 513);
    BAD(n_threads_batch, -1);
    BAD(n_threads_batch, 513);
    BAD(struct_size, 0);
    BAD(struct_size, sizeof(p[0]) + 8);
#undef BAD
    pi_session* session = UNTOUCHED;
    pi_plan* plan = UNTOUCHED;
    for (int i = 0; i < n; i++) {
        FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &p[i], &session));
        CHECK(says(names[i]));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_new(model_path, NULL, &p[i], &plan));
        CHECK(says(names[i]));
    }
    p[0] = pi_session_default_params();
    p[0].type_k = p[0].type_v = 2; /* Q4_0 */
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &p[0], &session));
    p[0].type_k = 0, p[0].type_v = 1;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &p[0], &session));
    p[0] = session_params(INT32_MAX, 1);
    p[0].n_seq = 256;
    FAILS(PI_ERROR_MEMORY, pi_session_new(m, &p[0], &session));
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(NULL, NULL, &session));
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, NULL, NULL));
    CHECK(session == UNTOUCHED && plan == UNTOUCHED);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: test_capi MODEL\n");
        return 2;
    }
    program_path = argv[0];
    model_path = argv[1];
    test_process();
    test_disk();
    test_devices();
    test_defaults();
    test_model();
    pi_model* m = open_model();
    test_tokenizer(m);
    test_session_params(m);
    pi_model_free(m);
    return summary("test_capi");
}
