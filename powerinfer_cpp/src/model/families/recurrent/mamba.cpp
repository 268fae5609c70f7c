// The tensors of Mamba-2 layers.
#include "ggml/recurrence.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

constexpr int64_t kWidest = 1 << 20;

// The sizes from the keys {arch}.ssm.*.
Mamba2 read_sizes(const ggml::Gguf& gguf, const Config& c) {
    const std::string prefix = c.architecture + ".ssm.";
    Mamba2 s;
    const int64_t inner = gguf.integer(prefix + "inner_size", 1, kWidest);
    s.n_head = gguf.integer(prefix + "time_step_rank", 1, inner);
    s.n_group = gguf.integer(prefix + "group_count", 1, s.n_head, 1);
    s.n_state = gguf.integer(prefix + "state_size", 1, kWidest);
    s.taps = gguf.integer(prefix + "conv_kernel", 2, ggml::kMostTaps);
    if (inner % s.n_head || s.n_head % s.n_group || s.n_state > kWidest / s.n_group) {
        throw ggml::Error(
            ggml::Code::format,
            ggml::format("%s: %sinner_size: %lld values in %lld heads and %lld "
                         "groups with states of %lld",
                         gguf.path().c_str(), prefix.c_str(), (long long)inner, (long long)s.n_head,
                         (long long)s.n_group, (long long)s.n_state));
    }
    s.head_dim = inner / s.n_head;
    return s;
}

}  // namespace

LayerPart& Weights::mamba2(int64_t i, const char* norm_name) {
    const int64_t n_embd = m.config.n_embd;
    LayerPart& part = add_part(i, norm_name, read_sizes(m.file.gguf, m.config));
    Mamba2& s = std::get<Mamba2>(part.op);
    const int64_t inner = s.inner(), channels = s.channels();
    const std::string in = blk(i, "ssm_in.weight");
    const std::vector<int64_t> shape{n_embd, inner + channels + s.n_head};
    rows(Part::attention, in, shape, 0, inner, Product{&s.z});
    rows(Part::attention, in, shape, inner, channels, Product{&s.ubc});
    rows(Part::attention, in, shape, inner + channels, s.n_head, Product{&s.dt});
    matrix(Part::attention, blk(i, "ssm_out.weight"), n_embd, inner, &s.out);
    rows(Part::attention, blk(i, "ssm_conv1d.weight"), {s.taps, channels}, 0, channels,
         Vector{&s.conv});
    optional(Part::attention, blk(i, "ssm_conv1d.bias"), channels, &s.conv_bias);
    vector(Part::attention, blk(i, "ssm_dt.bias"), s.n_head, &s.dt_bias);
    rows(Part::attention, blk(i, "ssm_a"), {1, s.n_head}, 0, s.n_head, Vector{&s.a});
    rows(Part::attention, blk(i, "ssm_d"), {1, s.n_head}, 0, s.n_head, Vector{&s.d});
    const ggml::TensorInfo* norm = m.file.gguf.find_tensor(blk(i, "ssm_norm.weight"));
    if (!norm) return part;
    s.norm_group = inner / s.n_group;
    rows(Part::norms, norm->name, {s.norm_group, s.n_group}, 0, s.n_group, Vector{&s.norm});
    return part;
}

}  // namespace powerinfer
