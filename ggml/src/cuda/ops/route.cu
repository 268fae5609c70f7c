// The router of a mixture: which experts a row computes, and what they weigh. The sums that the CPU
// takes expert by expert are taken in the same order here, so the bits are the CPU's
// (ops/route.cpp).
#include <climits>

#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

namespace {

// The terms of all lanes, one after the other.
__device__ inline float sum_in_order(const float* terms, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += terms[i];
    return sum;
}

__device__ inline float softplus(float x) {
    return x > 20 ? x : float(log_f64(1 + exp_f64(double(x))));
}

// A row's experts in the lanes of a warp: lane l has expert l, then l + 32, .. `most` at most.
template <int most>
struct Experts {
    // The scores as weights p, and what experts are chosen by. Of no expert: NaN, which nothing
    // chooses.
    float p[most], choice[most];
    int n;
    float* terms;  // [most * kWarp]: shared memory

    __device__ static int at(int j) { return j * kWarp + int(threadIdx.x); }
    // To all lanes: `values` by expert.
    __device__ void share(const float (&values)[most]) const {
        __syncwarp();  // what was shared before has been read
        for (int j = 0; j < most; j++) terms[at(j)] = values[j];
        __syncwarp();
    }
    // Of the expert's lane, for all lanes.
    __device__ float of(const float (&values)[most], int expert) const {
        float value = 0;
        for (int j = 0; j < most; j++) {
            if (j == expert / kWarp) value = values[j];
        }
        return __shfl_sync(kAll, value, expert % kWarp);
    }

    // Reads the scores of a row and weighs them. False if one is no number.
    __device__ bool weigh(const Routing& how, const float* score) {
        const bool softmax = how.gating == Gating::softmax && how.mixer == 0;
        float top = -INFINITY;
        for (int e = int(threadIdx.x); softmax && e < n; e += kWarp) {
            top = score[e] > top ? score[e] : top;
        }
        top = warp_max(top);
        // In memory, since this is too much to be unrolled, and registers have no index.
        for (int e = int(threadIdx.x); e < n; e += kWarp) {
            float value = score[e];
            if (softmax) value = exp_f32(value - top);
            if (how.gating == Gating::sigmoid) value = sigmoid(value);
            if (how.gating == Gating::sqrt_softplus) value = sqrtf(softplus(value));
            terms[e] = value;
        }
        __syncwarp();
        const bool divide = softmax && (!how.normalise || how.choice_bias);
        const float sum = divide ? sum_in_order(terms, n) : 1.0f;
        bool numbers = true;
        for (int j = 0; j < most; j++) {
            p[j] = choice[j] = nanf("");
            if (at(j) >= n) continue;
            p[j] = divide ? terms[at(j)] / sum : terms[at(j)];
            choice[j] = p[j] + (how.choice_bias ? how.choice_bias[at(j)] : 0);
            numbers = numbers && choice[j] == choice[j] && p[j] == p[j];
        }
        return !__any_sync(kAll, !numbers);
    }

    // Leaves the experts of the best groups, of which there are up to 64.
    __device__ void leave_groups(const Routing& how) {
        const int groups = int(how.n_group), size = n / groups;
        share(choice);
        float of_group[2];
        for (int half = 0; half < 2; half++) {
            const int g = half * kWarp + int(threadIdx.x);
            float best = -INFINITY, second = -INFINITY;
            for (int e = g * size; g < groups && e < (g + 1) * size; e++) {
                const float lower = terms[e] < best ? terms[e] : best;
                second = second < lower ? lower : second;
                best = best < terms[e] ? terms[e] : best;
            }
            of_group[half] = how.by_two && size > 1 ? best + second : best;
        }
        int better[2] = {0, 0};  // groups that come before it
        for (int other = 0; other < groups; other++) {
            const float score =
                __shfl_sync(kAll, other < kWarp ? of_group[0] : of_group[1], other % kWarp);
            for (int half = 0; half < 2; half++) {
                const int g = half * kWarp + int(threadIdx.x);
                better[half] += score > of_group[half] || (score == of_group[half] && other < g);
            }
        }
        unsigned out[2];
        for (int half = 0; half < 2; half++) {
            out[half] = __ballot_sync(kAll, better[half] >= how.n_group_used);
        }
        for (int j = 0; j < most; j++) {
            const int g = at(j) / size;
            if (at(j) < n && (g < kWarp ? out[0] : out[1]) >> g % kWarp & 1) choice[j] = nanf("");
        }
    }

    // The expert with the largest choice, of equal ones the first; INT_MAX if none is left.
    __device__ int best(float& largest) const {
        int expert = INT_MAX;
        largest = -INFINITY;
        const auto take = [&](float value, int e) {
            if (value > largest || (value == largest && e < expert)) largest = value, expert = e;
        };
        for (int j = 0; j < most; j++) take(choice[j], at(j));
        for (int apart = kWarp / 2; apart > 0; apart /= 2) {
            const float value = __shfl_xor_sync(kAll, largest, apart);
            take(value, __shfl_xor_sync(kAll, expert, apart));
        }
        return expert;
    }

    // The weight of the expert with this choice, if the others count only near it.
    __device__ float mixer_weight(const Routing& how, float top) const {
        float near[most];
        for (int j = 0; j < most; j++) {
            const float r = choice[j], size = fabsf(r) < top ? top : fabsf(r);
            near[j] = (top - r) / size <= how.mixer ? exp_f32(r - top) : 0.0f;
        }
        share(near);
        return 1 / sum_in_order(terms, n);
    }
};

// One warp a row. A row that is alone lists its own pairs, whose experts ascend as they do.
template <int most>
__global__ void route_kernel(Routing how, const float* score, DeviceChoice to) {
    GGML_SHARED(float, terms, most* kWarp);
    const int lane = int(threadIdx.x), used = to.n_used;
    Experts<most> experts;
    experts.n = to.n_expert;
    experts.terms = terms;
    bool chosen = experts.weigh(how, score + int64_t(blockIdx.x) * to.n_expert);
    if (chosen && how.n_group > 1) experts.leave_groups(how);
    float sum = 0, first = 0;
    unsigned taken = 0;  // bit j: expert at(j)
    for (int k = 0; chosen && k < used; k++) {
        float top;
        const int best = experts.best(top);
        chosen = best != INT_MAX;
        if (!chosen) break;
        float weight = experts.of(experts.p, best);
        if (k == 0) first = weight;
        if (how.gating == Gating::of_chosen) {
            weight = exp_f32(weight - first);
        } else if (how.mixer > 0) {
            weight = experts.mixer_weight(how, top);
        }
        sum += weight;
        for (int j = 0; j < most; j++) {
            if (experts.at(j) != best) continue;
            experts.p[j] = weight;
            experts.choice[j] = nanf("");
            taken |= 1u << j;
        }
    }
    int32_t* expert = to.expert + int64_t(blockIdx.x) * used;
    float* weight = to.weight + int64_t(blockIdx.x) * used;
    const bool alone = to.rows == 1;
    for (int k = lane; alone && k < used; k += kWarp) to.pair[k] = k;
    if (alone && lane == 0) to.first[to.n_expert] = used;
    if (!chosen) {
        for (int k = lane; k < used; k += kWarp) {
            expert[k] = k;
            weight[k] = nanf("");
        }
        for (int e = lane; alone && e < to.n_expert; e += kWarp) {
            to.first[e] = e < used ? e : used;
        }
        return;
    }
    const bool to_one = how.mixer == 0 && (how.normalise || how.gating == Gating::of_chosen);
    for (int j = 0, before = 0; j < most; j++) {
        const bool mine = taken >> j & 1;
        const unsigned all = __ballot_sync(kAll, mine);
        const int k = before + __popc(all & ((1u << lane) - 1));  // chosen ones before it
        if (alone && experts.at(j) < to.n_expert) to.first[experts.at(j)] = k;
        if (mine) {
            float w = experts.p[j];
            if (to_one) w /= sum;
            w *= how.scale;
            if (how.expert_scale) w *= how.expert_scale[experts.at(j)];
            expert[k] = experts.at(j);
            weight[k] = w;
        }
        before += __popc(all);
    }
}

constexpr int kListWarps = 4;

// One warp an expert, which lists its pairs behind those of the experts before it.
__global__ void list_kernel(DeviceChoice c) {
    const int lane = int(threadIdx.x) % kWarp, pairs = c.rows * c.n_used;
    const int e = int(blockIdx.x) * kListWarps + int(threadIdx.x) / kWarp;
    if (e >= c.n_expert) return;  // the whole warp
    int at = 0;
    for (int i = lane; i < pairs; i += kWarp) at += c.expert[i] < e;
    for (int apart = kWarp / 2; apart > 0; apart /= 2) at += __shfl_xor_sync(kAll, at, apart);
    if (lane == 0) c.first[e] = at;
    if (lane == 0 && e == 0) c.first[c.n_expert] = pairs;
    for (int begin = 0; begin < pairs; begin += kWarp) {
        const int i = begin + lane;
        const bool mine = i < pairs && c.expert[i] == e;
        const unsigned all = __ballot_sync(kAll, mine);
        if (mine) c.pair[at + __popc(all & ((1u << lane) - 1))] = i;
        at += __popc(all);
    }
}

// A thread a pair.
__global__ void choose_all_kernel(DeviceChoice c) {
    const int i = int(blockIdx.x) * kListWarps * kWarp + int(threadIdx.x);
    if (i < c.rows * c.n_expert) {
        c.expert[i] = i % c.n_expert;
        c.pair[i] = i % c.rows * c.n_expert + i / c.rows;
    }
    if (i <= c.n_expert) c.first[i] = i * c.rows;
}

}  // namespace

void choose_all(DeviceStream* stream, const DeviceChoice& choice) {
    constexpr int kThreads = kListWarps * kWarp;
    const int n = choice.pairs() + 1;
    launch<choose_all_kernel>(stream, blocks_for(n, kThreads), kThreads, choice);
}

void route(DeviceStream* stream, const Routing& how, float* score, const DeviceChoice& choice) {
    constexpr int kSome = 4, kMost = kDeviceExperts / kWarp;  // experts of a lane
    const auto run = [&](auto chosen) {
        launch<decltype(chosen)::value>(stream, unsigned(choice.rows), kWarp, how, score, choice);
    };
    if (choice.n_expert > kDeviceExperts) {
        throw Error(Code::unsupported, "a device does not route to so many experts");
    }
    if (choice.n_expert <= kSome * kWarp) {
        run(Kernel<route_kernel<kSome>>());
    } else {
        run(Kernel<route_kernel<kMost>>());
    }
    if (choice.rows == 1) return;
    launch<list_kernel>(stream, blocks_for(choice.n_expert, kListWarps), kListWarps * kWarp,
                        choice);
}

}  // namespace ggml::GGML_GPU
