/* powerinfer.h: memory plans, reservations of callers, and structs of older and newer headers.
 * argv[1]: the default model. */
#include <stddef.h>

#include "capi.h"

static void test_plan(const pi_model* m) {
    pi_plan* plan = UNTOUCHED;
    pi_model_params model = pi_model_default_params();
    pi_session_params session = pi_session_default_params();
    FAILS(PI_ERROR_IO, pi_plan_new("no/such/file.gguf", NULL, NULL, &plan));
    FAILS(PI_ERROR_ARGUMENT, pi_plan_new(NULL, NULL, NULL, &plan));
    FAILS(PI_ERROR_ARGUMENT, pi_plan_new(model_path, NULL, NULL, NULL));
    model.struct_size++;
    FAILS(PI_ERROR_ARGUMENT, pi_plan_new(model_path, &model, NULL, &plan));
    CHECK(plan == UNTOUCHED);

    model = pi_model_default_params();
    uint64_t half = 0, all = 0;
    for (int32_t n_ctx = 0; n_ctx <= 512; n_ctx += 256) {
        uint64_t weights = 0, kv = 0, planned = 0;
        session.n_ctx = n_ctx;
        model.ram_budget = n_ctx ? 1000000 : 0; /* a plan reports, it does not refuse */
        OK(pi_plan_new(model_path, &model, &session, &plan));
        CHECK(pi_plan_n_ctx(plan) == (n_ctx ? n_ctx : pi_model_n_ctx(m)));
        CHECK(n_ctx ? pi_plan_budget(plan) == 1000000 : pi_plan_budget(plan) > 1000000);
        pi_plan_part part;
        SIZED(part);
        for (int32_t i = 0; i < pi_plan_n_parts(plan); i++) {
            OK(pi_plan_part_at(plan, i, &part));
            CHECK(!strcmp(part.tier, "ram") && part.n_bytes > 0);
            CHECK(part.layer >= -1 && part.layer < pi_model_n_layer(m));
            const bool is_kv = !strcmp(part.name, "kv");
            const bool of_session =
                is_kv || !strcmp(part.name, "scratch") || !strcmp(part.name, "results");
            if (is_kv) kv += part.n_bytes;
            if (!of_session) weights += part.n_bytes;
            planned += part.n_bytes;
        }
        /* Twice the pages; tables are aligned to cache lines. */
        CHECK(kv > 0 && (n_ctx < 512 || (kv <= 2 * half && kv + 1024 > 2 * half)));
        half = kv;
        if (n_ctx == 0) { /* all tensors, with the last strip of 8 rows filled up */
            CHECK(weights >= pi_model_n_bytes(m) && weights < pi_model_n_bytes(m) * 9 / 8);
            all = weights;
        } else { /* the least that it needs, with neurons on the disk */
            CHECK(weights < all && planned > 1000000);
            pi_model* none = UNTOUCHED;
            model.session = &session;
            FAILS(PI_ERROR_MEMORY, pi_model_open(model_path, &model, &none));
            char least[32];
            snprintf(least, sizeof(least), "at least %llu bytes", (unsigned long long)planned);
            CHECK(says(least) && none == UNTOUCHED);
            model.session = NULL;
        }
        part.name = UNTOUCHED;
        FAILS(PI_ERROR_ARGUMENT, pi_plan_part_at(plan, -1, &part));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_part_at(plan, pi_plan_n_parts(plan), &part));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_part_at(plan, 0, NULL));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_part_at(NULL, 0, &part));
        pi_expert_report experts = {sizeof(experts), 1, 1, 1, 1, 1};
        OK(pi_plan_experts(plan, &experts));
        CHECK(!experts.experts && !experts.device_room && !experts.device_has && !experts.copies);
        FAILS(PI_ERROR_ARGUMENT, pi_plan_experts(NULL, &experts));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_experts(plan, NULL));
        pi_device_plan there = {sizeof(there), 1, 1, true, UNTOUCHED, UNTOUCHED};
        OK(pi_plan_device(plan, &there));
        CHECK(there.n_layer > 1 && !there.layers && !there.head);
        CHECK(!*there.why_layer && !*there.why_head);
        FAILS(PI_ERROR_ARGUMENT, pi_plan_device(NULL, &there));
        FAILS(PI_ERROR_ARGUMENT, pi_plan_device(plan, NULL));
        CHECK(part.name == UNTOUCHED);
        pi_plan_free(plan);
        pi_model_params moved = model;
        moved.n_cpu_moe = -1;
        FAILS(PI_ERROR_ARGUMENT, pi_plan_new(model_path, &moved, &session, &plan));
        CHECK(says("n_cpu_moe"));
    }
}

/* Programs built for an older header have smaller structs; missing members get their defaults. */
static void test_older_and_newer_headers(const pi_model* m) {
    struct {
        size_t struct_size;
        bool vocab_only;
    } older = {0, true};
    older.struct_size = sizeof(older);
    pi_model* opened = NULL;
    OK(pi_model_open(model_path, (const pi_model_params*)&older, &opened));
    CHECK(pi_model_n_ff(opened) == 0); /* the vocabulary alone */
    pi_model_free(opened);
    pi_session_params params = session_params(128, 1);
    params.n_batch = 0; /* invalid; must not be read */
    params.struct_size = offsetof(pi_session_params, n_batch);
    pi_session* s = NULL;
    OK(pi_session_new(m, &params, &s));
    CHECK(pi_session_n_ctx(s) == 128 && pi_session_n_batch(s) == 512);
    params.struct_size = offsetof(pi_session_params, n_ubatch);
    pi_session* none = UNTOUCHED;
    FAILS(PI_ERROR_ARGUMENT, pi_session_new(m, &params, &none));
    CHECK(says("n_batch") && none == UNTOUCHED);
    pi_sampler_params sampling = pi_sampler_default_params();
    pi_sampler* sampler = NULL;
    sampling.struct_size = sizeof(size_t);
    OK(pi_sampler_new(&sampling, &sampler));
    pi_sampler_free(sampler);
    sampling.struct_size = sizeof(sampling) + 1;
    FAILS(PI_ERROR_ARGUMENT, pi_sampler_new(&sampling, &sampler));
    CHECK(says("newer"));

    /* Only as many bytes of a result are written as the caller's struct has. */
    pi_plan* plan = NULL;
    OK(pi_plan_new(model_path, NULL, NULL, &plan));
    OK(pi_eval(s, (const int32_t[]){1}, NULL, NULL, 1));
    union {
        size_t size;
        unsigned char bytes[512];
    } full, cut;
#define GROWS(type, call)                                                                        \
    for (size_t size = 0; size <= sizeof(type) + 8; size += 8) {                                 \
        type* out = (type*)&full;                                                                \
        out->struct_size = sizeof(type);                                                         \
        OK(call);                                                                                \
        memset(&cut, 77, sizeof(cut));                                                           \
        cut.size = size;                                                                         \
        out = (type*)&cut;                                                                       \
        if (size == 0 || size > sizeof(type)) {                                                  \
            FAILS(PI_ERROR_ARGUMENT, call);                                                      \
            CHECK(says("struct_size") && cut.bytes[sizeof(size_t)] == 77);                       \
            continue;                                                                            \
        }                                                                                        \
        OK(call);                                                                                \
        CHECK(cut.size == size && cut.bytes[size] == 77);                                        \
        if (size >= 16) CHECK(!memcmp(cut.bytes + 8, full.bytes + 8, 8)); /* no padding there */ \
    }
    GROWS(pi_tensor_info, pi_gguf_tensor(pi_model_gguf(m), 1, out))
    GROWS(pi_plan_part, pi_plan_part_at(plan, 1, out))
    GROWS(pi_work, pi_session_work(s, out))
    GROWS(pi_storage_plan, pi_plan_storage(plan, out))
    GROWS(pi_storage_report, pi_model_storage(m, out))
    GROWS(pi_device_plan, pi_plan_device(plan, out))
    GROWS(pi_expert_report, pi_plan_experts(plan, out))
    GROWS(pi_expert_report, pi_model_experts(m, out))
    GROWS(pi_neuron_counts, pi_session_neurons(s, 1, 1, out))
    pi_session_profile(s, true);
    OK(pi_eval(s, (const int32_t[]){1}, NULL, NULL, 1));
    GROWS(pi_op_time, pi_session_op_at(s, 1, out))
#undef GROWS
    pi_plan_free(plan);
    pi_session_free(s);
}

static void test_reservations(void) {
    pi_model_params params = pi_model_default_params();
    params.ram_budget = (uint64_t)1 << 30;
    pi_model* m = NULL;
    OK(pi_model_open(model_path, &params, &m));
    const uint64_t before = pi_model_reserved(m), left = params.ram_budget - before;
    CHECK(pi_model_budget(m) == params.ram_budget && before >= pi_model_n_bytes(m));
    pi_reservation *a = UNTOUCHED, *b = NULL;
    FAILS(PI_ERROR_MEMORY, pi_reserve(m, "my scores", left + 1, &a));
    CHECK(says("my scores would take") && says("are left of the 1024 MiB"));
    FAILS(PI_ERROR_MEMORY, pi_reserve(m, "my scores", UINT64_MAX, &a));
    FAILS(PI_ERROR_ARGUMENT, pi_reserve(NULL, "my scores", 1, &a));
    FAILS(PI_ERROR_ARGUMENT, pi_reserve(m, NULL, 1, &a));
    FAILS(PI_ERROR_ARGUMENT, pi_reserve(m, "my scores", 1, NULL));
    CHECK(a == UNTOUCHED && pi_model_reserved(m) == before);
    OK(pi_reserve(m, "my scores", left, &a));
    CHECK(pi_model_reserved(m) == params.ram_budget);
    OK(pi_reserve(m, "nothing", 0, &b));
    pi_session* s = UNTOUCHED;
    FAILS(PI_ERROR_MEMORY, pi_session_new(m, NULL, &s));
    pi_reservation_free(a);
    CHECK(pi_model_reserved(m) == before && s == UNTOUCHED);
    s = new_session(m, NULL);
    CHECK(pi_model_reserved(m) > before);
    pi_session_free(s);
    CHECK(pi_model_reserved(m) == before);
    pi_model_free(m); /* before its reservations */
    pi_reservation_free(b);
    pi_reservation_free(NULL);
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    model_path = argv[1];
    pi_model* m = open_model();
    test_plan(m);
    test_older_and_newer_headers(m);
    test_reservations();
    pi_model_free(m);
    return summary("test_capi_memory");
}
