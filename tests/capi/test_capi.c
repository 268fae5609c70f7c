/* powerinfer.h from C99, except computing with sessions: what every function does and refuses, and
 * that a refusal sets a message and leaves the caller's variables unchanged. argv[1]: the default
 * model. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
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

/* ---- Files -------------------------------------------------------------------------------- */

static int64_t find_key(const pi_gguf* g, const char* wanted) {
    for (int64_t i = 0; i < pi_gguf_n_values(g); i++) {
        const char* key = NULL;
        size_t length = 0;
        pi_value_type type, element;
        uint64_t count = 0;
        OK(pi_gguf_value(g, i, &key, &length, &type, &element, &count));
        if (length == strlen(wanted) && !memcmp(key, wanted, length)) return i;
    }
    return -1;
}

/* Reads value i with each getter: the one of its type works; the others refuse and write nothing.
 */
static void test_value(const pi_gguf* g, int64_t i) {
    const char *key = NULL, *text = UNTOUCHED;
    size_t length = 0, text_length = 77;
    pi_value_type type = PI_U8, element = PI_U8;
    uint64_t count = 0;
    int64_t integer = 77;
    double number = 77;
    OK(pi_gguf_value(g, i, &key, &length, &type, &element, &count));
    CHECK(length > 0 && key && (type == PI_ARRAY || (type == element && count == 1)));
    if (count == 0) return;
    if (element == PI_STRING) {
        OK(pi_gguf_string(g, i, count - 1, &text, &text_length));
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_integers(g, i, 0, 1, &integer));
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_numbers(g, i, 0, 1, &number));
        CHECK(text != UNTOUCHED && integer == 77 && number == 77);
    } else {
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_string(g, i, 0, &text, &text_length));
        CHECK(text == UNTOUCHED && text_length == 77);
        if (element == PI_BOOL) {
            OK(pi_gguf_integers(g, i, count - 1, 1, &integer));
            CHECK(integer == 0 || integer == 1);
            FAILS(PI_ERROR_ARGUMENT, pi_gguf_numbers(g, i, 0, 1, &number));
        } else {
            OK(pi_gguf_numbers(g, i, count - 1, 1, &number));
            const bool whole = element != PI_F32 && element != PI_F64;
            CHECK((pi_gguf_integers(g, i, count - 1, 1, &integer) == PI_OK) == whole);
            CHECK(whole ? (double)integer == number : integer == 77);
        }
    }
    integer = 77, number = 77, text = UNTOUCHED;
    const uint64_t bad[][2] = {{count, 1}, {0, count + 1}, {UINT64_MAX, 1}, {1, UINT64_MAX}};
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_integers(g, i, bad[b][0], bad[b][1], &integer));
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_numbers(g, i, bad[b][0], bad[b][1], &number));
    }
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_string(g, i, count, &text, &text_length));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_integers(g, i, 0, 1, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_numbers(g, i, 0, 1, NULL));
    CHECK(integer == 77 && number == 77 && text == UNTOUCHED);
}

static void test_gguf(void) {
    pi_gguf* g = UNTOUCHED;
    FAILS(PI_ERROR_IO, pi_gguf_open("no/such/file.gguf", &g));
    CHECK(says("no/such/file.gguf"));
    FAILS(PI_ERROR_IO, pi_gguf_open("/", &g));
    FAILS(PI_ERROR_IO, pi_gguf_open("", &g));
    FAILS(PI_ERROR_FORMAT, pi_gguf_open(program_path, &g)); /* a file, but not GGUF */
    CHECK(says(program_path));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_open(NULL, &g));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_open(model_path, NULL));
    CHECK(g == UNTOUCHED);

    OK(pi_gguf_open(model_path, &g));
    CHECK(pi_gguf_version(g) == 2 || pi_gguf_version(g) == 3);
    CHECK(!pi_gguf_is_pwri(g) && pi_gguf_n_files(g) == 1);
    CHECK(!strcmp(pi_gguf_file(g, 0), model_path));
    CHECK(!pi_gguf_file(g, 1) && !pi_gguf_file(g, -1));
    const int64_t n = pi_gguf_n_values(g), n_tensors = pi_gguf_n_tensors(g);
    CHECK(n > 10 && n_tensors > 10);
    for (int64_t i = 0; i < n; i++) test_value(g, i);

    const char* text = NULL;
    size_t length = 0;
    OK(pi_gguf_string(g, find_key(g, "general.architecture"), 0, &text, &length));
    CHECK(length == 5 && !memcmp(text, "llama", 5));
    CHECK(find_key(g, "no.such.key") == -1);
    const int64_t bad[] = {-1, n, INT64_MAX, INT64_MIN};
    for (int k = 0; k < 4; k++) {
        pi_value_type type = PI_F64, element = PI_F64;
        uint64_t count = 77;
        int64_t integer = 77;
        text = UNTOUCHED;
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_value(g, bad[k], &text, &length, &type, &element, &count));
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_string(g, bad[k], 0, &text, &length));
        FAILS(PI_ERROR_ARGUMENT, pi_gguf_integers(g, bad[k], 0, 1, &integer));
        CHECK(text == UNTOUCHED && type == PI_F64 && count == 77 && integer == 77);
    }
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_value(g, 0, NULL, NULL, NULL, NULL, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_string(NULL, 0, 0, &text, &length));

    pi_tensor_info t;
    SIZED(t);
    for (int64_t i = 0; i < n_tensors; i++) {
        uint32_t type = 77;
        int64_t block = 0, block_bytes = 0;
        OK(pi_gguf_tensor(g, i, &t));
        CHECK(t.name[0] && t.n_dims >= 1 && t.n_dims <= 4 && t.file == 0 && t.offset > 0);
        CHECK(pi_type_by_name(t.type_name, &type, &block, &block_bytes) && type == t.type);
        const int64_t elements = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
        CHECK(t.n_bytes == (uint64_t)(elements / block * block_bytes));
    }
    memset(&t, 77, sizeof(t));
    const pi_tensor_info same = t;
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_tensor(g, -1, &t));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_tensor(g, n_tensors, &t));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_tensor(g, 0, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_gguf_tensor(NULL, 0, &t));
    CHECK(!memcmp(&t, &same, sizeof(t)));
    pi_gguf_free(g);
}

static void test_formats(void) {
    /* name, id, block, bytes, rounding error for a largest value of 1 */
    static const struct {
        const char* name;
        uint32_t type;
        int64_t block, bytes;
        float error;
    } known[] = {{"F32", 0, 1, 4, 0},
                 {"F16", 1, 1, 2, 1 / 2048.f},
                 {"BF16", 30, 1, 2, 1 / 256.f},
                 {"Q8_0", 8, 32, 34, 1 / 200.f},
                 {"q4_0", 2, 32, 18, 1 / 8.f + 1e-3f}};
    float x[64], y[64];
    unsigned char data[320];
    for (int i = 0; i < 64; i++) x[i] = (float)((i * 37) % 64 - 32) / 32;
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        uint32_t type = 77;
        int64_t block = 0, bytes = 0;
        CHECK(pi_type_by_name(known[k].name, &type, &block, &bytes));
        CHECK(type == known[k].type && block == known[k].block && bytes == known[k].bytes);
        const size_t size = (size_t)(64 / block * bytes);
        memset(data, 0xAA, sizeof(data));
        OK(pi_encode(type, x, 64, data, size));
        CHECK(data[size] == 0xAA);
        OK(pi_decode(type, data, size, y, 64));
        for (int i = 0; i < 64; i++) CHECK(fabsf(x[i] - y[i]) <= known[k].error);
        OK(pi_encode(type, x, 0, data, 0));
        OK(pi_decode(type, data, 0, y, 0));
        data[0] = 0xAA;
        y[0] = 77;
        const int64_t huge = INT64_MAX / 32 * 32 / 2; /* its size in bytes does not fit 64 bits */
        FAILS(PI_ERROR_ARGUMENT, pi_encode(type, x, huge, data, sizeof(data)));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(type, data, sizeof(data), y, huge));
        FAILS(PI_ERROR_ARGUMENT, pi_encode(type, x, 64, data, size - 1));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(type, data, size - 1, y, 64));
        FAILS(PI_ERROR_ARGUMENT, pi_encode(type, x, -block, data, size));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(type, data, size, y, -block));
        FAILS(PI_ERROR_ARGUMENT, pi_encode(type, NULL, 64, data, size));
        FAILS(PI_ERROR_ARGUMENT, pi_encode(type, x, 64, NULL, size));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(type, NULL, size, y, 64));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(type, data, size, NULL, 64));
        if (block > 1) FAILS(PI_ERROR_ARGUMENT, pi_encode(type, x, 33, data, sizeof(data)));
        if (block > 1) FAILS(PI_ERROR_ARGUMENT, pi_decode(type, data, sizeof(data), y, 33));
        CHECK(data[0] == 0xAA && y[0] == 77);
    }
    float weight[32], better = 0, before = 0;
    for (int i = 0; i < 32; i++) weight[i] = i % 4 ? 0.01f : 1;
    OK(pi_encode_weighted(2, x, 64, weight, 32, data, 36));
    OK(pi_decode(2, data, 36, y, 64));
    for (int i = 0; i < 64; i++) better += weight[i % 32] * (x[i] - y[i]) * (x[i] - y[i]);
    OK(pi_encode(2, x, 64, data, 36));
    OK(pi_decode(2, data, 36, y, 64));
    for (int i = 0; i < 64; i++) before += weight[i % 32] * (x[i] - y[i]) * (x[i] - y[i]);
    CHECK(better < before);
    OK(pi_encode_weighted(2, x, 0, weight, 32, data, 0));
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 64, NULL, 32, data, 36));
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 64, weight, 0, data, 36));
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 64, weight, 16, data, 36));
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 32, weight, 64, data, 36));
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 64, weight, 32, data, 35));
    weight[31] = -1;
    FAILS(PI_ERROR_ARGUMENT, pi_encode_weighted(2, x, 64, weight, 32, data, 36));
    const uint32_t bad[] = {999, UINT32_MAX, 26 /* I32 */};
    for (int k = 0; k < 3; k++) {
        FAILS(PI_ERROR_ARGUMENT, pi_encode(bad[k], x, 32, data, sizeof(data)));
        FAILS(PI_ERROR_ARGUMENT, pi_decode(bad[k], data, sizeof(data), y, 32));
    }
    uint32_t type = 77;
    int64_t block = 77, bytes = 77;
    CHECK(!pi_type_by_name("Q9_9", &type, &block, &bytes));
    CHECK(!pi_type_by_name("", &type, &block, &bytes));
    CHECK(!pi_type_by_name(NULL, &type, &block, &bytes));
    CHECK(type == 77 && block == 77 && bytes == 77);
}

/* The same in the layout of version 2, with an F32 down row. */
static void test_neurons(void) {
    const uint32_t types[] = {1, 8, 0};
    unsigned char f16[2][64], neurons[2][1024], back[2][64];
    uint32_t sums[4] = {0};
    for (int i = 0; i < 128; i++) f16[i / 64][i % 64] = (unsigned char)i;
    memset(neurons, 0, sizeof(neurons));
    pi_store_layout layout = {.struct_size = sizeof(layout)};
    OK(pi_store_layout_of(types, 3, 32, 512, &layout));
    CHECK(layout.stride == 1024 && layout.first == 512);
    CHECK(layout.offset[0] == 0 && layout.offset[1] == 512 && layout.offset[2] == 576);
    const size_t size = sizeof(neurons);
    OK(pi_store_put(types, 3, 32, 512, 2, 0, f16, sizeof(f16), neurons, size));
    CHECK(!memcmp(neurons[1], f16[1], 64) && neurons[1][64] == 0);
    OK(pi_store_take(types, 3, 32, 512, 2, 0, neurons, size, back, sizeof(back)));
    CHECK(!memcmp(back, f16, sizeof(f16)));
    OK(pi_store_checksums(types, 3, 32, 512, 2, neurons, size, sums, sizeof(sums)));
    CHECK(sums[0] != sums[2] && sums[1] == sums[3]);
    FAILS(PI_ERROR_ARGUMENT, pi_store_layout_of(types, 1, 32, 512, &layout));
    FAILS(PI_ERROR_ARGUMENT, pi_store_layout_of(types, 3, 33, 512, &layout));
    FAILS(PI_ERROR_ARGUMENT, pi_store_layout_of(types, 3, 32, 500, &layout));
    FAILS(PI_ERROR_ARGUMENT, pi_store_layout_of(NULL, 3, 32, 512, &layout));
    FAILS(PI_ERROR_ARGUMENT, pi_store_layout_of(types, 3, 32, 512, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_store_put(types, 3, 32, 512, 2, 3, f16, 128, neurons, size));
    FAILS(PI_ERROR_ARGUMENT, pi_store_put(types, 3, 32, 512, 2, -1, f16, 128, neurons, size));
    FAILS(PI_ERROR_ARGUMENT, pi_store_put(types, 3, 32, 512, 2, 0, f16, 127, neurons, size));
    FAILS(PI_ERROR_ARGUMENT, pi_store_put(types, 3, 32, 512, 2, 0, f16, 128, neurons, size - 1));
    FAILS(PI_ERROR_ARGUMENT, pi_store_take(types, 3, 32, 512, 2, 0, neurons, size, NULL, 128));
    FAILS(PI_ERROR_ARGUMENT, pi_store_checksums(types, 3, 32, 512, 2, neurons, size, sums, 15));
    FAILS(PI_ERROR_ARGUMENT, pi_store_checksums(types, 3, 32, 512, -1, neurons, size, sums, 16));
    size_t length = 77;
    char path[8];
    FAILS(PI_ERROR_IO, pi_bundle_file("no/such/file", "no/such/target", NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_file(model_path, NULL, NULL));
    FAILS(PI_ERROR_UNSUPPORTED, pi_bundle_check(model_path, NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_find_bundle(model_path, path, sizeof(path), NULL));
    FAILS(PI_ERROR_ARGUMENT, pi_find_bundle(NULL, path, sizeof(path), &length));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_target(model_path, path, sizeof(path), &length));
    CHECK(length > sizeof(path));
    pi_bundle_params params = pi_bundle_default_params();
    CHECK(params.struct_size == sizeof(params) && params.align == 512 && !params.progress);
    params.struct_size++;
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_file(model_path, "no/such/target", &params));
}

/* Two neurons with an F16 and a Q8_0 row each: the parts of a bundle are where the header says. */
static void test_bundles(void) {
    const uint32_t types[] = {1, 8};
    unsigned char f16[2][64], q8[2][34], bundles[2][64 + 34], back[2][34];
    for (int i = 0; i < 128; i++) f16[i / 64][i % 64] = (unsigned char)i;
    for (int i = 0; i < 68; i++) q8[i / 34][i % 34] = (unsigned char)(200 - i);
    CHECK(pi_bundle_version() >= 1);
    OK(pi_bundle_put(types, 2, 32, 2, 0, f16, sizeof(f16), bundles, sizeof(bundles)));
    OK(pi_bundle_put(types, 2, 32, 2, 1, q8, sizeof(q8), bundles, sizeof(bundles)));
    for (int i = 0; i < 2; i++) {
        CHECK(!memcmp(bundles[i], f16[i], 64) && !memcmp(bundles[i] + 64, q8[i], 34));
    }
    OK(pi_bundle_take(types, 2, 32, 2, 1, bundles, sizeof(bundles), back, sizeof(back)));
    CHECK(!memcmp(back, q8, sizeof(q8)));
    OK(pi_bundle_put(types, 2, 32, 0, 0, NULL, 0, NULL, 0));
    const size_t size = sizeof(bundles);
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, 2, 0, f16, 127, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, 2, 0, f16, 128, bundles, size - 1));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_take(types, 2, 32, 2, 1, bundles, size, back, 67));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, 2, 2, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, 2, -1, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 0, 32, 2, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(NULL, 2, 32, 2, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 33, 2, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 0, 2, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, -2, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, INT64_MAX, 0, f16, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(types, 2, 32, 2, 0, NULL, 128, bundles, size));
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_take(types, 2, 32, 2, 0, bundles, size, NULL, 128));
    const uint32_t integers[] = {24, 8};
    FAILS(PI_ERROR_ARGUMENT, pi_bundle_put(integers, 2, 32, 2, 1, q8, 68, bundles, size));
    test_neurons();
    int64_t n_gpu[1];
    FAILS(PI_ERROR_IO, pi_gpu_index_read("no/such/file", 1, 32, n_gpu));
    FAILS(PI_ERROR_FORMAT, pi_gpu_index_read(model_path, 1, 32, n_gpu));
    CHECK(says("generic.gpu_index"));
    FAILS(PI_ERROR_ARGUMENT, pi_gpu_index_read(model_path, 0, 32, n_gpu));
    FAILS(PI_ERROR_ARGUMENT, pi_gpu_index_read(NULL, 1, 32, n_gpu));
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
    for (int stop = 1; stop <= 5; stop += 2) {
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
    CHECK(p.ordered && p.calls > 2 && p.last == 1 && lines < 100);
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
    test_gguf();
    test_formats();
    test_bundles();
    test_model();
    pi_model* m = open_model();
    test_tokenizer(m);
    test_session_params(m);
    pi_model_free(m);
    return summary("test_capi");
}
