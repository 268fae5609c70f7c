// C API (powerinfer.h): sampling a row of logits.
#include "api/api.h"

using namespace powerinfer::api;

struct pi_breakers {
    std::shared_ptr<const powerinfer::Breakers> breakers;
};

namespace {

constexpr const char* kNoSampler = "sampler must not be NULL";

}  // namespace

extern "C" {

pi_sampler_params pi_sampler_default_params(void) {
    pi_sampler_params p{};
    p.struct_size = sizeof(p);
    p.temperature = 0.8f;
    p.top_k = 40;
    p.top_p = 0.95f;
    p.min_p = 0.05f;
    p.typical_p = 1.0f;
    p.repeat_penalty = 1.0f;
    p.repeat_last_n = 64;
    p.top_n_sigma = -1.0f;
    p.xtc_threshold = 0.1f;
    p.dynatemp_exponent = 1.0f;
    p.mirostat_tau = 5.0f;
    p.mirostat_eta = 0.1f;
    p.dry_base = 1.75f;
    p.dry_allowed_length = 2;
    p.dry_penalty_last_n = -1;
    return p;
}

pi_status pi_breakers_new(const pi_model* m, const char* const* texts, const size_t* lengths,
                          int32_t n, pi_breakers** out) {
    return guarded([&] {
        require(m && n >= 0 && (n == 0 || (texts && lengths)) && out,
                "model, texts, lengths and out must not be NULL, n not negative");
        std::vector<std::string_view> found;
        for (int32_t i = 0; i < n; i++) {
            require(texts[i], "a text must not be NULL");
            found.emplace_back(texts[i], lengths[i]);
        }
        *out = new pi_breakers{
            std::make_shared<const powerinfer::Breakers>(m->model->shared_vocab, found)};
    });
}

void pi_breakers_free(pi_breakers* breakers) {
    delete breakers;
}

pi_status pi_sampler_new(const pi_sampler_params* params, pi_sampler** out) {
    return guarded([&] {
        require(out, "out must not be NULL");
        const pi_sampler_params p = params_or(params, pi_sampler_default_params());
        const pi_breakers* breakers = p.dry_sequence_breakers;
        *out = new pi_sampler{powerinfer::Sampler(p, breakers ? breakers->breakers : nullptr)};
    });
}

void pi_sampler_free(pi_sampler* sampler) {
    delete sampler;
}

pi_status pi_sample(pi_sampler* sampler, const float* logits, int32_t n_vocab, int32_t* token) {
    return guarded([&] {
        require(sampler && logits && n_vocab > 0 && token,
                "sampler, logits and token must not be NULL, n_vocab must be positive");
        *token = sampler->sampler.sample(logits, n_vocab);
    });
}

pi_status pi_sampler_accept(pi_sampler* sampler, int32_t token) {
    return guarded([&] {
        require(sampler, kNoSampler);
        sampler->sampler.accept(token);
    });
}

pi_status pi_sampler_accept_all(pi_sampler* sampler, const int32_t* tokens, size_t n) {
    return guarded([&] {
        require(sampler && (n == 0 || tokens), "sampler and tokens must not be NULL");
        for (size_t i = 0; i < n; i++) sampler->sampler.accept(tokens[i]);
    });
}

pi_status pi_sampler_reset(pi_sampler* sampler) {
    return guarded([&] {
        require(sampler, kNoSampler);
        sampler->sampler.reset();
    });
}

double pi_sampler_seconds(const pi_sampler* sampler) {
    return sampler ? sampler->sampler.seconds : 0;
}

pi_status pi_sampler_seed(pi_sampler* sampler, uint64_t seed) {
    return guarded([&] {
        require(sampler, kNoSampler);
        sampler->sampler.seed(seed);
    });
}

}  // extern "C"
