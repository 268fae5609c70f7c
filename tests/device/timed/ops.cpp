// The operators: each puts its kernels and the bytes of weights and cache that they read into the
// stream. What the CPU's half depends on is done: selection, publishing, waiting, counting.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "ggml/device_ops.h"
#include "ggml/status.h"
#include "timed/device.h"

namespace ggml::timed {

namespace {

// Kernels of the operators of cuda/ops/*.cu, where there is more than one.
constexpr int kAttention = 2, kSketch = 2, kFfn = 2, kRoute = 2, kFold = 2;
constexpr int kRounds = 16;                      // selections are drawn once and used in turn
constexpr int kChoices = 1024;                   // and so are the experts of a row
constexpr int kLevelBegin = 32, kLevelEnd = 64;  // columns of Config::level

// SplitMix64: the same draws in every run.
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// 0 to 1.
double uniform(uint64_t seed) {
    return double(mixed(seed) >> 11) / double(uint64_t(1) << 53);
}

double bytes_of(const DeviceRows& w) {
    return double(w.rows) * double(w.stride);
}

void put(DeviceStream* stream, int kernels, double bytes) {
    of(stream).put(kernels, [=](Timeline& t) { t.spend(kernels, bytes); });
}

void embed_rows(DeviceStream* stream, const DeviceRows& w, const int32_t*, int, int n, float*) {
    put(stream, 1, double(n) * double(w.stride));
}
void norm(DeviceStream* stream, const DeviceNorm&) {
    put(stream, 1, 0);
}
void quantise(DeviceStream* stream, const DeviceInput&) {
    put(stream, 1, 0);
}
void add(DeviceStream* stream, float*, const float*, int64_t) {
    put(stream, 1, 0);
}
void activation(DeviceStream* stream, Activation, const GateLimit&, const DeviceInput&,
                const float*) {
    put(stream, 1, 0);
}
void scale(DeviceStream* stream, float*, const float*, float, int64_t) {
    put(stream, 1, 0);
}
void softcap(DeviceStream* stream, float*, float, int64_t) {
    put(stream, 1, 0);
}
void xielu(DeviceStream* stream, const Xielu&, const DeviceInput&) {
    put(stream, 1, 0);
}
void gate_by(DeviceStream* stream, GateBy, const DeviceInput&, const DeviceGates&) {
    put(stream, 1, 0);
}
void weigh(DeviceStream* stream, float*, const float*, int, int) {
    put(stream, 1, 0);
}
void choose_all(DeviceStream* stream, const DeviceChoice&) {
    put(stream, 1, 0);
}
void matmul(DeviceStream* stream, const DeviceInput&, const DeviceProduct* products, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += bytes_of(products[i].w);
    put(stream, 1, bytes);
}
void rope_table(DeviceStream* stream, const double*, int, double, const int32_t*, int, float*) {
    put(stream, 1, 0);
}
void heads(DeviceStream* stream, const DeviceHeads&, const KvLayer&, const KvSlot*) {
    put(stream, 1, 0);
}
void grow(DeviceStream* stream, float*, int, int, const int32_t*, double, int64_t) {
    put(stream, 1, 0);
}
void attention(DeviceStream* stream, const KvLayer& kv, int, const AttentionScores&,
               const DeviceAttentionRow* rows, int n, const float*, const DeviceAttentionScratch&,
               const DeviceInput&) {
    const int64_t bytes = kv.key_bytes() + (kv.v ? kv.value_bytes() : 0);
    const auto position = double(kv.n_head_kv * bytes);
    of(stream).put(kAttention, [=](Timeline& t) {
        int64_t positions = 0;
        for (int i = 0; i < n; i++) positions += rows[i].end - rows[i].first;
        t.spend(kAttention, double(positions) * position);
    });
}
void sketch_scores(DeviceStream* stream, const DeviceSketch& w, const float*, int,
                   const DeviceSketchScratch&, float*) {
    put(stream, kSketch, double(w.rows) * w.cols / 8);
}

// ---- States -----------------------------------------------------------------------------------

// Every sequence reads a state and writes one.
void fold(DeviceStream* stream, int kernels, int64_t state, const DeviceSequences& sequences) {
    const int32_t* const count = sequences.count;
    of(stream).put(kernels, [=](Timeline& t) {
        t.spend(kernels, double(2 * *count * state) * double(sizeof(float)));
    });
}
void convolve(DeviceStream* stream, const Convolution& how, const DeviceSequences& sequences,
              const float*, int64_t, float*, int64_t) {
    fold(stream, 1, how.state(), sequences);
}
void mamba2_scan(DeviceStream* stream, const Mamba2Scan& how, const DeviceSequences& sequences,
                 const DeviceStateScratch&, const Heads&) {
    fold(stream, kFold, how.state(), sequences);
}
void delta_rule(DeviceStream* stream, const DeltaRule& how, const DeviceSequences& sequences,
                const DeviceStateScratch&, const Heads&) {
    fold(stream, kFold, how.state(), sequences);
}
void gated_norm(DeviceStream* stream, const GatedNorm&, const DeviceInput&, const float*) {
    put(stream, 1, 0);
}
void multiply(DeviceStream* stream, const DeviceInput&, const float*) {
    put(stream, 1, 0);
}
void copy_heads(DeviceStream* stream, const Heads&, int, int, int, const Heads&) {
    put(stream, 1, 0);
}
void keep_rows(DeviceStream* stream, const DeviceColumns&, int, float* const*, int64_t) {
    put(stream, 1, 0);
}

// ---- Selection ----------------------------------------------------------------------------------

struct Lists {
    std::vector<int32_t> hot, cold;
};

// The neurons of a layer that a token asks for. rate: of the layer, null for all neurons.
Lists draw(const float* rate, double proposed, const int32_t* slot, int n, uint64_t seed) {
    Lists lists;
    for (int i = 0; i < n; i++) {
        if (rate && uniform(seed ^ uint64_t(i)) >= proposed * rate[i]) continue;
        if (!slot || slot[i] >= 0) {
            lists.hot.push_back(i);
        } else {
            lists.cold.push_back(-1 - slot[i]);
        }
    }
    return lists;
}

void select(DeviceStream* stream, const float* score, float, const uint8_t*, const int32_t* slot,
            const DeviceLists& to) {
    Graph* graph = of(stream).recorded();
    if (!graph || to.rows != 1) {
        throw Error(Code::device, "a device that only takes time needs whole graphs of one row");
    }
    const int n = to.n;
    const int index = (*graph->selections)++;
    const std::shared_ptr<int> selections = graph->selections;
    const auto rounds = std::make_shared<std::vector<Lists>>();
    of(stream).put(1, [=](Timeline& t) {
        const Config& c = t.config();
        if (rounds->empty()) {
            const int64_t at = int64_t(c.rate.size()) - int64_t(*selections - index) * n;
            const float* rate = score && at >= 0 ? c.rate.data() + at : nullptr;
            for (uint64_t r = 0; r < kRounds; r++) {
                const uint64_t seed = mixed(r * 1024 + uint64_t(*selections - index)) << 20;
                rounds->push_back(draw(rate, c.proposed, slot, n, seed));
            }
        }
        const Lists& lists = (*rounds)[t.launches % kRounds];
        std::copy(lists.hot.begin(), lists.hot.end(), to.hot);
        std::copy(lists.cold.begin(), lists.cold.end(), to.cold);
        to.count[0] = int32_t(lists.hot.size());
        to.count[1] = int32_t(lists.cold.size());
        t.spend(1, 0);
    });
}

// ---- Both halves --------------------------------------------------------------------------------

// The stream goes on while the flag is on its way.
void release(const Timeline& t, const DeviceExchange& to) {
    Timeline seen = t;
    seen.wait_for(t.config().flag);
    seen.reach();
    __atomic_store_n(to.published, *to.epoch, __ATOMIC_RELEASE);
}

void await(Timeline& t, const DeviceExchange& from) {
    const uint32_t epoch = *from.epoch;
    for (;;) {
        const uint32_t answered = __atomic_load_n(from.answered, __ATOMIC_ACQUIRE);
        if (answered == epoch || answered == kReleased) break;
#ifdef GGML_X86
        __builtin_ia32_pause();
#endif
    }
    t.rest();
    t.wait_for(t.config().flag);
}

// +1 and -1, by a fixed pattern.
std::vector<float> pattern(int cols) {
    std::vector<float> x(static_cast<size_t>(cols));
    for (int i = 0; i < cols; i++) x[size_t(i)] = mixed(uint64_t(i)) & 1 ? 1.0f : -1.0f;
    return x;
}

void partial_ffn(DeviceStream* stream, const DeviceNeurons& w, const DeviceInput&,
                 const DeviceLists& lists, const DeviceFfnScratch& scratch) {
    const int32_t* const count = lists.count;
    const double gate = double(w.gate ? w.gate.stride : w.up.stride);
    const double rest = double((w.gate ? w.up.stride : 0) + w.down.stride);
    of(stream).put(kFfn, [=](Timeline& t) {
        const double n = *count, fired = double(int64_t(n * t.config().fired + 0.5));
        t.spend(kFfn, n * gate + fired * rest);
        if (!scratch.counts) return;
        scratch.counts[0] += uint64_t(n);
        for (int i : {1, 2}) scratch.counts[i] += uint64_t(fired);
    });
}

void merge(DeviceStream* stream, const DeviceSums&, const float*, const float*, float*) {
    put(stream, 1, 0);
}

void publish(DeviceStream* stream, const DeviceInput& input, const DeviceLists& lists,
             const DeviceExchange& to) {
    const int cols = input.cols;
    const auto x = std::make_shared<std::vector<float>>(pattern(cols));
    const auto started = std::make_shared<bool>(false);
    of(stream).put(1, [=](Timeline& t) {
        if (!*started) {
            *started = true;
            for (int i = 0; i < kLevelEnd && i < cols; i++) {
                (*x)[size_t(i)] = i < kLevelBegin ? 0 : float(t.config().level);
            }
        }
        const int32_t n = lists.count[1];
        double bytes = 0;
        if (n > 0) {
            bytes += double(cols) * sizeof(float);
            std::memcpy(to.x, x->data(), size_t(cols) * sizeof(float));
        }
        if (to.ids) {
            bytes += double(n) * sizeof(int32_t);
            std::memcpy(to.ids, lists.cold, size_t(n) * sizeof(int32_t));
        }
        *to.count = n;
        t.spend(1, 0);
        t.transfer(bytes);
        release(t, to);
    });
}

void merge_answer(DeviceStream* stream, const DeviceSums& here, const DeviceLists& lists,
                  const DeviceExchange& from, const float*, float*) {
    const int cols = here.cols;
    of(stream).put(1, [=](Timeline& t) {
        if (lists.count[1] == 0) return t.spend(1, 0);
        await(t, from);
        t.transfer(double(cols) * sizeof(float));
        t.spend(1, 0);
    });
}

// ---- Mixtures ----------------------------------------------------------------------------------

// How often each expert of a layer is chosen, as the law has it. Which ones are popular is drawn.
std::vector<double> popularity(int n, uint64_t layer, double skew) {
    std::vector<int> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
        return mixed(layer << 32 | uint64_t(a)) < mixed(layer << 32 | uint64_t(b));
    });
    std::vector<double> weight(order.size());
    for (int r = 0; r < n; r++) weight[size_t(order[size_t(r)])] = std::pow(1 + r, -skew);
    return weight;
}

// n_used experts, one after the other by their weights, none twice: those for which an event of
// this rate comes first. Ascending.
void choose(const std::vector<double>& weight, int n_used, uint64_t seed, int32_t* chosen) {
    std::vector<std::pair<double, int32_t>> first;
    for (size_t e = 0; e < weight.size(); e++) {
        first.emplace_back(-std::log(1 - uniform(seed ^ e)) / weight[e], int32_t(e));
    }
    std::partial_sort(first.begin(), first.begin() + n_used, first.end());
    for (int k = 0; k < n_used; k++) chosen[k] = first[size_t(k)].second;
    std::sort(chosen, chosen + n_used);
}

// Rows of one graph take the choices of its layer in turn. What is no graph has the first layer's.
void route(DeviceStream* stream, const Routing&, float*, const DeviceChoice& to) {
    Graph* graph = of(stream).recorded();
    const uint64_t layer = graph ? uint64_t(graph->routers++) : 0;
    const auto drawn = std::make_shared<std::vector<int32_t>>();
    of(stream).put(kRoute, [=](Timeline& t) {
        const int choices = graph ? kChoices : to.rows;
        if (drawn->empty()) {
            const auto weight = popularity(to.n_expert, layer, t.config().skew);
            drawn->resize(size_t(choices * to.n_used));
            for (int i = 0; i < choices; i++) {
                const uint64_t seed = mixed(layer * kChoices + uint64_t(i)) << 16;
                choose(weight, to.n_used, seed, drawn->data() + i * to.n_used);
            }
        }
        for (int row = 0; row < to.rows; row++) {
            const uint64_t i = (t.launches * uint64_t(to.rows) + uint64_t(row)) % uint64_t(choices);
            std::copy_n(drawn->begin() + int64_t(i) * to.n_used, to.n_used,
                        to.expert + row * to.n_used);
        }
        std::fill_n(to.weight, to.pairs(), 1 / float(to.n_used));
        t.spend(kRoute, 0);
    });
}

int cold_pairs(const DeviceChoice& choice, const DeviceFrames& frames) {
    return int(std::count_if(choice.expert, choice.expert + choice.pairs(),
                             [&](int32_t e) { return frames.frame[e] < 0; }));
}

// The bytes of the experts that are here, each once, whatever rows choose it.
void read_experts(DeviceStream* stream, const DeviceChoice& choice, const DeviceFrames& frames,
                  double bytes) {
    if (!frames.frame) return put(stream, 1, bytes);
    of(stream).put(1, [=](Timeline& t) {
        std::vector<int32_t> here;
        for (int i = 0; i < choice.pairs(); i++) {
            if (frames.frame[choice.expert[i]] >= 0) here.push_back(choice.expert[i]);
        }
        std::sort(here.begin(), here.end());
        const auto end = std::unique(here.begin(), here.end());
        t.spend(1, double(end - here.begin()) * bytes);
    });
}
void matmul_experts(DeviceStream* stream, const DeviceInput&, const DeviceChoice& choice,
                    const DeviceFrames& frames, const DeviceProduct* products, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += bytes_of(products[i].w);
    read_experts(stream, choice, frames, bytes);
}
void expert_values(DeviceStream* stream, Activation, float, const DeviceChoice&,
                   const DeviceFrames&, int, float*, const float*, unsigned long long*) {
    put(stream, 1, 0);
}
void add_experts(DeviceStream* stream, const DeviceRows& w, const float*,
                 const DeviceChoice& choice, const DeviceFrames& frames, const float*, float*) {
    read_experts(stream, choice, frames, bytes_of(w));
}

void publish_experts(DeviceStream* stream, const DeviceInput& input, const DeviceChoice& choice,
                     const DeviceFrames& frames, const DeviceExchange& to) {
    const int rows = input.rows, cols = input.cols;
    const auto x = std::make_shared<std::vector<float>>(pattern(cols));
    of(stream).put(1, [=](Timeline& t) {
        const int cold = cold_pairs(choice, frames);
        double bytes = double(choice.pairs()) * sizeof(int32_t);
        std::copy_n(choice.expert, choice.pairs(), to.ids);
        if (cold > 0) {
            bytes += double(rows) * cols * sizeof(float);
            for (int row = 0; row < rows; row++) {
                std::copy(x->begin(), x->end(), to.x + int64_t(row) * cols);
            }
        }
        *to.count = cold;
        t.spend(1, 0);
        t.transfer(bytes);
        release(t, to);
    });
}

void merge_experts(DeviceStream* stream, const DeviceChoice& choice, const DeviceFrames& frames,
                   const float*, const DeviceExchange& from, int cols, float*) {
    of(stream).put(1, [=](Timeline& t) {
        if (const int cold = cold_pairs(choice, frames); cold > 0) {
            await(t, from);
            t.transfer(double(cold) * cols * sizeof(float));
        }
        t.spend(1, 0);
    });
}

void unfold(DeviceStream* stream, const uint8_t*, const DeviceRows& to) {
    put(stream, 1, 2 * bytes_of(to));  // read and written
}

void unfold_neurons(DeviceStream* stream, const NeuronRows&, const DeviceRows& to) {
    put(stream, 1, 2 * bytes_of(to));
}

void flag_rounds(DeviceStream*, const DeviceExchange&, uint32_t) {
    throw Error(Code::unsupported, "a device that only takes time has no flags to measure");
}

}  // namespace

const DeviceOps& ops() {
    static const DeviceOps table = {
#define DEVICE_OP(name, ...) name,
#include "ggml/device_ops.inc"
#undef DEVICE_OP
    };
    return table;
}

}  // namespace ggml::timed
