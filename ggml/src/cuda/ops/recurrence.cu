// Operators that fold the rows of a sequence into a state, position by position, in the CPU's order
// (kernels/lanes): every value of a state has its own operations, and sums over the rows of a state
// are serial for each of its columns. So a lane has a column.
#include "cuda/ops.h"
#include "cuda/ops/lanes.h"
#include "cuda/ops/quantise.h"

namespace ggml::GGML_GPU {

namespace {

constexpr float kLeastScale = 0x1p-20f;  // kernels/recurrence.h

__device__ inline float* values(const Heads& of, int row, int head) {
    return of.x + row * of.row + head * of.head;
}

// ---- convolution ------------------------------------------------------------------------------
constexpr int kChannels = 128;  // of a block, one a thread
constexpr int kAhead = 8;       // rows that are loaded together

// A thread has a channel, so y may be x, and the new state the old one. taps: 0: any number.
template <int known>
__global__ void convolve_kernel(Convolution p, DeviceSequences s, const float* x, int64_t x_row,
                                float* y, int64_t y_row) {
    constexpr int most = known ? known : int(kMostTaps);
    if (int(blockIdx.y) >= *s.count) return;
    const DeviceSequence seq = s.of[blockIdx.y];
    const int channel = int(blockIdx.x) * kChannels + int(threadIdx.x);
    if (channel >= p.channels) return;
    const int taps = known ? known : int(p.taps), past = taps - 1;
    float weight[most], columns[most];  // of the last rows, the oldest first
    GGML_UNROLL
    for (int j = 0; j < most; j++) {
        weight[j] = j < taps ? p.weight[channel * taps + j] : 0;
        const int64_t at = s.at + j * p.channels + channel;
        columns[j] = j < past && seq.before ? seq.before[at] : 0;
    }
    const float bias = p.bias ? p.bias[channel] : 0;
    for (int t = 0; t < seq.n; t += kAhead) {
        const int n = seq.n - t < kAhead ? seq.n - t : kAhead;
        float some[kAhead];
        int row[kAhead];
        GGML_UNROLL
        for (int i = 0; i < kAhead; i++) {
            row[i] = s.rows[seq.first + t + (i < n ? i : 0)];
            some[i] = x[row[i] * x_row + channel];
        }
        GGML_UNROLL
        for (int i = 0; i < kAhead; i++) {
            if (i >= n) break;
            float sum = bias;
            GGML_UNROLL
            for (int j = 0; j < most; j++) {
                if (j < taps) sum += weight[j] * (j < past ? columns[j] : some[i]);
            }
            GGML_UNROLL
            for (int j = 0; j + 1 < most; j++) {
                columns[j] = j + 1 < past ? columns[j + 1] : some[i];
            }
            y[row[i] * y_row + channel] = p.silu ? silu(sum) : sum;
        }
    }
    GGML_UNROLL
    for (int j = 0; j < most; j++) {
        if (j < past) seq.after[s.at + j * p.channels + channel] = columns[j];
    }
}

// ---- steps of states --------------------------------------------------------------------------

// The decays of a head in the rows of a sequence, by a warp, and the scale after them. That is
// written here: blocks of the same head read it when it is too late, if the new state is the old
// one. factor(row, dt) is what multiplies what is added.
template <typename F>
__device__ inline void find_decays(const DeviceSequences& s, const DeviceSequence& seq,
                                   int64_t scale_at, const Heads& of, int head, int n_head,
                                   float bias, float a, DeviceDecay* decays, const F& factor) {
    const int lane = int(threadIdx.x);
    float scale = seq.before ? seq.before[scale_at] : 1;
    for (int t = 0; t < seq.n; t += kWarp) {
        const int n = seq.n - t < kWarp ? seq.n - t : kWarp;
        const int row = s.rows[seq.first + t + (lane < n ? lane : 0)];
        const float v = *values(of, row, head);
        const auto dt = float(softplus_f64(double(v) + double(bias)));
        const float decay = exp_f32(a * dt);
        DeviceDecay mine = {factor(row, dt), 0, 0};
        for (int i = 0; i < n; i++) {
            scale *= __shfl_sync(kAll, decay, i);
            if (i == lane) mine.decayed = scale;
            if (!(scale >= kLeastScale && scale <= 1)) scale = 1;  // or NaN
            if (i == lane) mine.scale = scale;
        }
        if (lane < n) decays[int64_t(row) * n_head + head] = mine;
    }
    if (lane == 0) seq.after[scale_at] = scale;
}

// Is what is stored multiplied by the decayed scale, which then is 1? NaN is not the same.
__device__ inline bool folded(const DeviceDecay& step) {
    return !(step.decayed == step.scale);
}

// ---- Mamba-2 ----------------------------------------------------------------------------------

// One warp a head and sequence.
__global__ void scan_steps_kernel(Mamba2Scan p, DeviceSequences s, DeviceStateScratch scratch) {
    if (int(blockIdx.y) >= *s.count) return;
    const int head = int(blockIdx.x), n_head = int(p.n_head);
    const int64_t at = s.at + p.n_head * p.head_dim * p.n_state + head;
    find_decays(s, s.of[blockIdx.y], at, p.dt, head, n_head, p.dt_bias[head], p.a[head],
                scratch.decays, [](int, float dt) { return dt; });
}

constexpr int kScanRows = 16;  // of a state that a warp has in registers
constexpr int kScanWarps = int(kDeviceScanRows) / kScanRows;

// A block has 32 columns of a head's state, and a warp of it some rows of them. The warps are
// stages of a pipeline: a position goes from one to the next, with the sums so far.
__global__ void __launch_bounds__(kScanWarps* kWarp)
    scan_kernel(Mamba2Scan p, DeviceSequences s, const DeviceDecay* decays, Heads y) {
    GGML_SHARED(float, factors, kScanWarps* kWarp);    // of B, then of C, for the warp's rows
    GGML_SHARED(float, sums, 2 * kScanWarps * kWarp);  // of even positions and of odd ones
    if (int(blockIdx.z) >= *s.count) return;
    const DeviceSequence seq = s.of[blockIdx.z];
    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
    const int warps = int(blockDim.x) / kWarp, head = int(blockIdx.y);
    const int n_state = int(p.n_state), cols = int(p.head_dim);
    const int group = int(head / (p.n_head / p.n_group));
    const int first = warp * kScanRows, col = int(blockIdx.x) * kWarp + lane;
    const int n = n_state - first < kScanRows ? n_state - first : kScanRows;
    const bool inside = col < cols;
    // state_at() of recurrence.h, row after row.
    const int block = col - col % int(kScanColumns), rest = cols - block;
    const int width = rest < int(kScanColumns) ? rest : int(kScanColumns);
    const int64_t at =
        s.at + (int64_t(head) * cols + block) * n_state + first * width + col - block;
    float state[kScanRows];
    for (int r = 0; r < kScanRows; r++) {
        state[r] = seq.before && inside && r < n ? seq.before[at + r * width] : 0;
    }
    const float d = p.d[head];
    // What a position brings is loaded a stage ahead.
    int row = 0;
    float factor = 0, value = 0;
    DeviceDecay step = {};
    const auto load = [&](int t) {
        row = s.rows[seq.first + t];
        step = decays[row * p.n_head + head];
        const float* const of_b = values(p.b, row, group);
        const float* const of_c = values(p.c, row, group);
        const int r = lane % kScanRows;
        factor = r < n ? (lane < kScanRows ? of_b : of_c)[first + r] : 0;
        value = inside ? values(p.x, row, head)[col] : 0;
    };
    load(0);
    float* const b = factors + warp * kWarp;
    const float* const c = b + kScanRows;
    for (int stage = 0; stage < seq.n + warps - 1; stage++) {
        const int t = stage - warp;
        if (t >= 0 && t < seq.n) {
            b[lane] = factor;
            __syncwarp();
            const DeviceDecay now = step;
            const float x = value, added = now.factor / now.scale * x;
            float* const out = values(y, row, head) + col;
            if (t + 1 < seq.n) load(t + 1);
            if (folded(now)) {
                for (int r = 0; r < kScanRows; r++) state[r] *= now.decayed;
            }
            // From the warp before, in the stage before.
            float sum = warp > 0 ? sums[(t % 2 * kScanWarps + warp - 1) * kWarp + lane] : 0;
            for (int r = 0; r < kScanRows; r++) {
                if (r >= n) break;
                state[r] = fmaf(b[r], added, state[r]);
                sum = fmaf(c[r], state[r], sum);
            }
            sums[(t % 2 * kScanWarps + warp) * kWarp + lane] = sum;
            if (warp == warps - 1 && inside) *out = now.scale * sum + d * x;
        }
        __syncthreads();
    }
    for (int r = 0; r < kScanRows; r++) {
        if (r < n && inside) seq.after[at + r * width] = state[r];
    }
}

// ---- the gated delta rule ---------------------------------------------------------------------

// Divides q and k of a head by their lengths, and multiplies them, by a warp: q . k. The order is
// that of divide_by_length() in ops/recurrence.cpp, and of dot() in kernels/lanes/recurrence.h.
__device__ inline float unit_keys(float* q, float* k, int n, float eps, float q_factor,
                                  float k_factor) {
    const int lane = int(threadIdx.x), of = lane % kLanes;
    const float* const mine = lane < kLanes ? q : k;
    float squares = 0;
    for (int i = of; i < n; i += kLanes) squares += mine[i] * mine[i];
    double of_q = 0, of_k = 0;
    for (int l = 0; l < kLanes; l++) {
        of_q += double(__shfl_sync(kAll, squares, l));
        of_k += double(__shfl_sync(kAll, squares, kLanes + l));
    }
    const auto q_scale = float(1.0 / sqrt(of_q / double(n) + double(eps)));
    const auto k_scale = float(1.0 / sqrt(of_k / double(n) + double(eps)));
    float products = 0;
    for (int i = of; lane < kLanes && i < n; i += kLanes) {
        q[i] = q[i] * q_scale * q_factor;
        k[i] = k[i] * k_scale * k_factor;
        products += q[i] * k[i];
    }
    float total = 0;
    for (int l = 0; l < kLanes; l++) total += __shfl_sync(kAll, products, l);
    return total;
}

// The decays of the rows of a head's state, by a warp, and the step: there is no scale.
__device__ inline void decay_by_row(const DeltaRule& p, int row, int head,
                                    const DeviceStateScratch& scratch) {
    const int n = int(p.head_dim);
    const int64_t at = int64_t(row) * p.n_v_head + head;
    const float* const alpha = values(p.alpha, row, head);
    const float* const bias = p.dt_bias + int64_t(head) * n;
    const float a = fabsf(p.a[head]), bound = p.lower_bound;
    for (int r = int(threadIdx.x); r < n; r += kWarp) {
        const double x = double(alpha[r]) + double(bias[r]);
        scratch.row_decays[at * n + r] =
            bound < 0 ? bounded_row_decay(x, a, bound) : row_decay(x, a);
    }
    if (threadIdx.x == 0)
        scratch.decays[at] = {p.beta_scale * sigmoid(*values(p.beta, row, head)), 1, 1};
}

// One warp a head. Blocks of rows (y below n_rows) have q and k, and decays of rows of states;
// those behind them the decays of sequences.
__global__ void delta_steps_kernel(DeltaRule p, DeviceSequences s, float eps, float q_factor,
                                   float k_factor, DeviceStateScratch scratch) {
    const int head = int(blockIdx.x), row = int(blockIdx.y);
    if (row < s.n_rows) {
        if (p.by_row) decay_by_row(p, row, head, scratch);
        if (head >= p.n_k_head) return;
        const float product = unit_keys(values(p.q, row, head), values(p.k, row, head),
                                        int(p.head_dim), eps, q_factor, k_factor);
        if (threadIdx.x == 0) scratch.products[row * p.n_k_head + head] = product;
        return;
    }
    if (row - s.n_rows >= *s.count) return;
    const int64_t at = s.at + p.n_v_head * p.head_dim * p.v_head_dim + head;
    if (p.by_row) {
        if (threadIdx.x == 0) s.of[row - s.n_rows].after[at] = 1;
        return;
    }
    find_decays(s, s.of[row - s.n_rows], at, p.alpha, head, int(p.n_v_head), p.dt_bias[head],
                p.a[head], scratch.decays, [&](int at_row, float) {
                    return p.beta_scale * sigmoid(*values(p.beta, at_row, head));
                });
}

constexpr int kDeltaThreads = 128;
constexpr int kDeltaWarps = kDeltaThreads / kWarp;

// A block has a block of columns of a head's state in shared memory. Its first warp reads the state
// for a position, and all of them change it. most: rows of a state; by_row: they decay on their
// own.
template <int most, bool by_row>
__global__ void delta_kernel(DeltaRule p, DeviceSequences s, DeviceStateScratch scratch, Heads y) {
    constexpr int kOf = by_row ? 3 : 2;  // what a position brings: q, k and decays
    GGML_SHARED(float, state, most* kDeltaColumns);
    GGML_SHARED(float, keys, 2 * kOf * most);  // of this position and of the next one
    GGML_SHARED(float, change, kDeltaColumns);
    if (int(blockIdx.z) >= *s.count) return;
    const DeviceSequence seq = s.of[blockIdx.z];
    const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int head = int(blockIdx.y), n_row = int(p.head_dim), cols = int(p.v_head_dim);
    const int of_k = int(p.tiled ? head % p.n_k_head : head / (p.n_v_head / p.n_k_head));
    const int first = int(blockIdx.x) * int(kDeltaColumns);
    const int width = cols - first < int(kDeltaColumns) ? cols - first : int(kDeltaColumns);
    const bool inside = lane < width;
    const int64_t at = s.at + (int64_t(head) * cols + first) * n_row + lane;
    // A thread has the same values of the state whenever all warps read or change it.
    const auto each_row = [&](const auto& f) {
        for (int r = warp; inside && r < n_row; r += kDeltaWarps) f(r, state[r * width + lane]);
    };
    each_row([&](int r, float& v) { v = seq.before ? seq.before[at + r * width] : 0; });
    constexpr int kEach = most / kDeltaThreads;  // values of q, and of k, that a thread brings
    float q[kEach], k[kEach], decay[kEach];
    const auto load = [&](int t) {
        const int row = s.rows[seq.first + t];
        const float* decays = nullptr;
        if (by_row) decays = scratch.row_decays + (row * p.n_v_head + head) * n_row;
        for (int i = 0; i < kEach; i++) {
            const int r = i * kDeltaThreads + thread;
            q[i] = r < n_row ? values(p.q, row, of_k)[r] : 0;
            k[i] = r < n_row ? values(p.k, row, of_k)[r] : 0;
            if (by_row) decay[i] = r < n_row ? decays[r] : 0;
        }
    };
    load(0);
    for (int t = 0; t < seq.n; t++) {
        float* const q_now = keys + t % 2 * kOf * most;
        float* const k_now = q_now + most;
        float* const decays_now = k_now + most;  // by_row
        for (int i = 0; i < kEach; i++) {
            q_now[i * kDeltaThreads + thread] = q[i];
            k_now[i * kDeltaThreads + thread] = k[i];
            if (by_row) decays_now[i * kDeltaThreads + thread] = decay[i];
        }
        __syncthreads();
        if (t + 1 < seq.n) load(t + 1);
        const int row = s.rows[seq.first + t];
        const DeviceDecay step = scratch.decays[row * p.n_v_head + head];
        if (warp == 0 && inside) {
            const float v = values(p.v, row, head)[first + lane];
            float seen = 0, sum = 0;
            for (int r = 0; r < n_row; r++) {
                float here = state[r * width + lane];
                if (by_row) here *= decays_now[r];
                seen = fmaf(k_now[r], here, seen);
                sum = fmaf(q_now[r], here, sum);
            }
            const float delta = step.factor * fmaf(-step.decayed, seen, v);
            const float product = scratch.products[row * p.n_k_head + of_k];
            values(y, row, head)[first + lane] = fmaf(product, delta, step.decayed * sum);
            change[lane] = 1 / step.scale * delta;
        }
        __syncthreads();
        const float delta = inside ? change[lane] : 0;
        each_row([&](int r, float& v) {
            if (by_row) {
                v *= decays_now[r];
            } else if (folded(step)) {
                v *= step.decayed;
            }
            v = fmaf(k_now[r], delta, v);
        });
    }
    each_row([&](int r, float& v) { seq.after[at + r * width] = v; });
}

// ---- behind the states ------------------------------------------------------------------------

// One block a group of a row. A thread reads the values that it has written itself. whole: groups
// are whole groups of 32 values.
__global__ void gated_norm_kernel(GatedNorm p, DeviceInput x, const float* z, bool whole) {
    GGML_SHARED(float, stage, kStageBytes / sizeof(float));
    GGML_SHARED(double, shared, 1);
    const int n = int(p.group), group = int(blockIdx.x);
    const int64_t first = int64_t(blockIdx.y) * x.cols + group * n;
    const float* const weight = p.weight ? p.weight + group % p.n_weights * n : nullptr;
    const auto gate = [&](int i) { return p.sigmoid ? sigmoid(z[first + i]) : silu(z[first + i]); };
    float scale = 1;
    if (p.weight) {
        double squares = lanes_sum(n, stage, [&](int i) {
            float& v = x.x[first + i];
            if (p.gate_first) v *= gate(i);
            return v * v;
        });
        if (threadIdx.x == 0) squares = 1.0 / sqrt(squares / double(n) + double(p.eps));
        scale = float(from_first(squares, shared));
    }
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
        float v = x.x[first + i];
        if (weight) v = v * scale * weight[i];
        if (!weight || !p.gate_first) v *= gate(i);
        x.x[first + i] = v;
        if (whole) quantise_group(x, first + i, v);
    }
}

__global__ void multiply_kernel(DeviceInput x, const float* y) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= int64_t(x.rows) * x.cols) return;
    const float v = x.x[i] * y[i];
    x.x[i] = v;
    if (x.q) quantise_group(x, i, v);  // whole warps, since rows are whole groups of 32
}

__global__ void copy_heads_kernel(Heads from, int width, Heads to) {
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    const int head = int(blockIdx.y), row = int(blockIdx.z);
    if (i < width) values(to, row, head)[i] = values(from, row, head)[i];
}

__global__ void keep_rows_kernel(DeviceColumns p, float* const* kept, int64_t at) {
    const int64_t row = blockIdx.y;
    float* const to = kept[row];
    if (!to) return;
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    int first = 0;
    for (int c = 0; c < kDeviceColumns; c++) {
        const int from = i - first, width = p.width[c];
        if (from >= 0 && from < width) to[at + i] = p.x[c][row * width + from];
        first += width;
    }
}

}  // namespace

void convolve(DeviceStream* stream, const Convolution& how, const DeviceSequences& sequences,
              const float* x, int64_t x_row, float* y, int64_t y_row) {
    const dim3 grid(blocks_for(how.channels, kChannels), unsigned(sequences.most));
    const auto with = [&](auto kernel) {
        launch<decltype(kernel)::value>(stream, grid, kChannels, how, sequences, x, x_row, y,
                                        y_row);
    };
    if (how.taps == 4) return with(Kernel<convolve_kernel<4>>());
    if (how.taps == 3) return with(Kernel<convolve_kernel<3>>());
    with(Kernel<convolve_kernel<0>>());
}

void mamba2_scan(DeviceStream* stream, const Mamba2Scan& how, const DeviceSequences& sequences,
                 const DeviceStateScratch& scratch, const Heads& y) {
    const unsigned heads = unsigned(how.n_head), most = unsigned(sequences.most);
    launch<scan_steps_kernel>(stream, dim3(heads, most), kWarp, how, sequences, scratch);
    launch<scan_kernel>(stream, dim3(blocks_for(how.head_dim, kWarp), heads, most),
                        kWarp * blocks_for(how.n_state, kScanRows), how, sequences, scratch.decays,
                        y);
}

void delta_rule(DeviceStream* stream, const DeltaRule& how, const DeviceSequences& sequences,
                const DeviceStateScratch& scratch, const Heads& y) {
    const unsigned heads = unsigned(how.n_v_head), most = unsigned(sequences.most);
    // As in ops/recurrence.cpp.
    const auto size = double(how.head_dim);
    const auto root = float(sqrt(size));
    launch<delta_steps_kernel>(stream, dim3(heads, unsigned(sequences.n_rows) + most), kWarp, how,
                               sequences, float(double(how.eps) / size),
                               float(1 / (sqrt(size) * double(root))),
                               float(1 / (sqrt(size) * double(1.0f))), scratch);
    const dim3 grid(blocks_for(how.v_head_dim, kDeltaColumns), heads, most);
    const auto with = [&](auto kernel) {
        launch<decltype(kernel)::value>(stream, grid, kDeltaThreads, how, sequences, scratch, y);
    };
    constexpr int few = int(kDeviceDeltaRows) / 2, all = int(kDeviceDeltaRows);
    if (how.by_row) {
        if (how.head_dim <= few) return with(Kernel<delta_kernel<few, true>>());
        return with(Kernel<delta_kernel<all, true>>());
    }
    if (how.head_dim <= few) return with(Kernel<delta_kernel<few, false>>());
    with(Kernel<delta_kernel<all, false>>());
}

void gated_norm(DeviceStream* stream, const GatedNorm& how, const DeviceInput& x, const float* z) {
    const bool whole = x.q && how.group % kQ == 0;
    launch<gated_norm_kernel>(stream, dim3(unsigned(how.n_group), unsigned(x.rows)), kThreads, how,
                              x, z, whole);
    if (x.q && !whole) quantise(stream, x);
}

void multiply(DeviceStream* stream, const DeviceInput& x, const float* y) {
    launch<multiply_kernel>(stream, blocks_for(int64_t(x.rows) * x.cols, kThreads), kThreads, x, y);
}

void copy_heads(DeviceStream* stream, const Heads& from, int n, int n_head, int width,
                const Heads& to) {
    const dim3 grid(blocks_for(width, kThreads), unsigned(n_head), unsigned(n));
    launch<copy_heads_kernel>(stream, grid, kThreads, from, width, to);
}

void keep_rows(DeviceStream* stream, const DeviceColumns& columns, int n, float* const* kept,
               int64_t at) {
    int width = 0;
    for (const int of : columns.width) width += of;
    launch<keep_rows_kernel>(stream, dim3(blocks_for(width, kThreads), unsigned(n)), kThreads,
                             columns, kept, at);
}

}  // namespace ggml::GGML_GPU
