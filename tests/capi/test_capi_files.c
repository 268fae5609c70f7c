/* powerinfer.h from C99: files, formats and bundles. argv[1]: the default model. */
#include <math.h>

#include "capi.h"

static const char* program_path;

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

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: test_capi_files MODEL\n");
        return 2;
    }
    program_path = argv[0];
    model_path = argv[1];
    test_gguf();
    test_formats();
    test_bundles();
    return summary("test_capi_files");
}
