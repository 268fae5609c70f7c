// C API (powerinfer.h): the cache of neurons, simulated.
#include <cmath>

#include "api/api.h"
#include "storage/cache/simulate_cache.h"
#include "storage/cache/split_pools.h"

using namespace powerinfer::api;

extern "C" {

pi_status pi_split_cache(uint64_t n_bytes, uint64_t first_bytes, uint64_t rest_bytes, int64_t n,
                         const float* first_rate, const float* rest_rate, const pi_disk_cost* disk,
                         int64_t* first_slots, int64_t* rest_slots) {
    return guarded([&] {
        require(first_rate && rest_rate && disk && first_slots && rest_slots,
                "rates, disk and results must not be NULL");
        require(n > 0 && n <= INT32_MAX && first_bytes && rest_bytes, "no neurons, or no bytes");
        const pi_disk_cost cost = params_or(disk, pi_disk_cost{});
        require(cost.least_s >= 0 && cost.fixed_s >= 0 && cost.byte_s >= 0 &&
                    std::isfinite(cost.least_s + cost.fixed_s + cost.byte_s),
                "the costs of a disk must be finite and not negative");
        const powerinfer::PoolSlots slots =
            powerinfer::split_pools(n_bytes, {first_bytes, rest_bytes}, first_rate, rest_rate, n,
                                    {cost.least_s, cost.fixed_s, cost.byte_s});
        *first_slots = slots.gate;
        *rest_slots = slots.up_down;
    });
}

pi_status pi_simulate_cache(const pi_cache_trace* trace, pi_cache_policy policy,
                            int64_t first_slots, int64_t rest_slots, uint64_t seed,
                            pi_cache_counts* out) {
    return guarded([&] {
        require(trace && out, "trace and out must not be NULL");
        const pi_cache_trace t = params_or(trace, pi_cache_trace{});
        require(t.n_tokens >= 0 && t.n_blocks > 0 && t.n_ff > 0 && t.computed,
                "the trace has no neurons");
        const powerinfer::ResidencyShape shape{t.n_blocks, t.n_ff, first_slots, rest_slots};
        require(shape.parts() <= INT32_MAX && int64_t(t.n_tokens) * t.n_blocks < INT32_MAX,
                "the trace is too large");
        require(first_slots >= 0 && first_slots <= shape.parts() && rest_slots >= 0 &&
                    rest_slots <= shape.parts(),
                "slots must be from 0 to the number of neurons");
        require(policy >= PI_CACHE_OWN && policy <= PI_CACHE_BELADY, "no such policy");
        powerinfer::ResidencyOptions options;
        options.seed = seed;
        if (t.experts) options.half_life = powerinfer::kExpertHalfLife;
        const powerinfer::CacheCounts found = powerinfer::simulate_cache(
            shape, options, powerinfer::CachePolicy(policy), {t.n_tokens, t.proposed, t.computed},
            {t.first_rate, t.rest_rate, t.warm_up});
        give(out,
             {0, found.needed[0], found.missed[0], found.needed[1], found.missed[1], found.reads});
    });
}

}  // extern "C"
