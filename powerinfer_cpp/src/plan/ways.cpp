#include "plan/ways.h"

#include <algorithm>

#include "ggml/file_io.h"
#include "ggml/sizes.h"

namespace powerinfer {

namespace {

using ggml::DType;

// What saves less than this share is not worth mentioning.
constexpr double kHelps = 0.03;
constexpr int32_t kFewRows = 16;

class Finder {
 public:
    Finder(const Model& m, const pi_model_params& params, const pi_session_params& session)
        : m_(m),
          largest_(largest_sizes(m.layers)),
          session_(session),
          n_sessions_(uint64_t(std::max(params.n_sessions, 1))) {
        if (params.beside) {
            beside_ = total(session_parts(m, session_params_for(m, *params.beside),
                                          m.device_layers(), stored()),
                            Tier::ram);
        }
        if (m.storage) session_.n_ubatch = std::min(session_.n_ubatch, kFewRows);
        sessions_ = sessions(session_, stored());
        needed_ = stored() ? m.storage->least
                           : ggml::size_sum(total(m.plan.parts, Tier::ram), sessions_ + beside_);
        limit_ = m.budget->limit();
    }

    std::vector<Way> find() {
        if (needed_ <= limit_) return {};
        // The KV cache is as large as the context, and rows are as many as a call takes: the order
        // is that of what a user misses least.
        halved("n_ubatch", session_.n_ubatch, kFewRows,
               [](pi_session_params& p, int64_t n) { p.n_ubatch = int32_t(n); });
        if (session_.n_logits > 1) {
            try_value("n_logits", 1,
                      [](pi_session_params& p, int64_t n) { p.n_logits = int32_t(n); });
        }
        halved("n_batch", session_.n_batch, kFewRows, [](pi_session_params& p, int64_t n) {
            p.n_batch = int32_t(n);
            p.n_ubatch = std::min(p.n_ubatch, p.n_batch);
            p.n_logits = std::min(p.n_logits, p.n_batch);
        });
        if (session_.type_k != uint32_t(DType::Q8_0) && takes_q8_kv()) {
            try_value("type_k", int64_t(DType::Q8_0),
                      [](pi_session_params& p, int64_t t) { p.type_k = p.type_v = uint32_t(t); });
        }
        if (session_.n_kv_old > 0) {
            try_value("n_kv_old", 0, [](pi_session_params& p, int64_t n) { p.n_kv_old = n; });
        }
        if (session_.n_checkpoints > 0) {
            try_value("n_checkpoints", 0,
                      [](pi_session_params& p, int64_t n) { p.n_checkpoints = int32_t(n); });
        }
        if (session_.n_seq > 1) {
            halved("n_kv", session_.n_kv, session_.n_ctx,
                   [](pi_session_params& p, int64_t n) { p.n_kv = n; });
        }
        halved("n_ctx", session_.n_ctx, 128, [](pi_session_params& p, int64_t n) {
            p.n_ctx = int32_t(n);
            p.n_kv = std::min(p.n_kv, p.n_seq * ((n + 63) / 64 * 64));
        });
        // Of a model that skips neurons, or experts, the disk has to bring only a part.
        const bool sparse = relu_family(m_.config.activation) || largest_.n_expert > 0;
        if (sparse) to_storage();
        to_smaller_type();
        if (!sparse) to_storage();
        std::vector<Way> suffice;
        std::copy_if(found_.begin(), found_.end(), std::back_inserter(suffice),
                     [&](const Way& way) { return way.bytes <= limit_; });
        const bool alone = !suffice.empty();
        std::vector<Way>& ways = alone ? suffice : found_;
        if (m_.budget->given() && ggml::available_memory() > needed_) {
            ways.push_back({"ram_budget", int64_t(needed_), needed_});
        }
        if (m_.anyway && !stored() && (!alone || m_.anyway->least <= limit_)) {
            const uint64_t read = m_.anyway->experts.missing();
            ways.push_back({"mmap_anyway", int64_t(read), m_.anyway->least});
        }
        return ways;
    }

 private:
    bool stored() const { return m_.storage.has_value(); }
    bool stores_neurons() const { return m_.stores_neurons(); }

    uint64_t sessions(const pi_session_params& session, bool on_disk) const {
        const std::vector<PlanPart> parts = session_parts(m_, session, m_.device_layers(), on_disk);
        return ggml::size_product(n_sessions_, total(parts, Tier::ram));
    }

    void add(const char* what, int64_t value, uint64_t bytes) {
        if (double(bytes) < (1 - kHelps) * double(needed_)) found_.push_back({what, value, bytes});
    }

    template <typename F>
    uint64_t with(int64_t value, const F& set) const {
        pi_session_params changed = session_;
        set(changed, value);
        return needed_ - sessions_ + sessions(changed, stored());
    }

    template <typename F>
    void try_value(const char* what, int64_t value, const F& set) {
        add(what, value, with(value, set));
    }

    // The first of `value` / 2, / 4 and so on that suffices; or the least.
    template <typename F>
    void halved(const char* what, int64_t value, int64_t least, const F& set) {
        if (value <= least) return;
        do {
            value = std::max(least, value / 2);
        } while (value > least && with(value, set) > limit_);
        try_value(what, value, set);
    }

    // Are heads whole blocks?
    bool takes_q8_kv() const {
        return std::all_of(m_.layers.begin(), m_.layers.end(), [](const Layer& layer) {
            const auto* a = layer.find<Attention>();
            return !a || (a->head_dim % 32 == 0 && a->v_head_dim % 32 == 0);
        });
    }

    // Neurons that leave RAM for the disk.
    void to_storage() {
        if (stored() || m_.config.neuron_aware || m_.device) return;
        uint64_t rows = 0;
        for (const WeightSpec& w : m_.weights) {
            const bool of_ffn = w.part == Part::ffn && w.is<Product>();
            if (of_ffn || w.stays_on_disk(OnDisk::neurons)) rows += w.bytes(w.location.rows);
        }
        const auto blocks = uint64_t(m_.n_blocks());
        pi_session_params session = session_;
        session.n_ubatch = std::min(session.n_ubatch, kFewRows);
        // The area where reads arrive, and tables of the parts of neurons (store.h).
        const uint64_t staging = rows / blocks / 8;
        const uint64_t tables = (blocks * 24 + 300) * uint64_t(largest_.n_ff) + (2 << 20);
        const uint64_t fixed = needed_ - sessions_ - std::min(needed_ - sessions_, rows);
        const uint64_t least = fixed + staging + tables + sessions(session, true);
        add("convert", 0, least + least / 32);  // and what the process takes
    }

    // The largest type that makes the weights fit.
    void to_smaller_type() {
        uint64_t now = 0, weights = 0, quantised = 0;
        for (const WeightSpec& w : m_.weights) {
            if (w.is<Vector>() || w.is<Signs>() || w.location.memory == Location::Memory::disk)
                continue;
            now += w.bytes(w.location.rows);
            if (ggml::info(w.tensor->type).is_quantised()) quantised += w.bytes(w.location.rows);
            weights +=
                uint64_t(w.location.rows) * uint64_t(w.is<Product>() || w.is<Table>() ? w.cols : 0);
        }
        if (!weights || stored()) return;
        const DType types[] = {DType::Q8_0, DType::Q6_K, DType::Q5_K,
                               DType::Q4_K, DType::Q3_K, DType::Q2_K};
        for (const DType type : types) {
            const ggml::DTypeInfo& of = ggml::info(type);
            const uint64_t then = weights / uint64_t(of.block) * uint64_t(of.bytes);
            if (double(then) > 0.95 * double(now)) continue;
            const uint64_t bytes = needed_ - now + then;
            if (bytes > limit_ && type != DType::Q2_K) continue;
            add(quantised > now / 2 ? "requantize" : "quantize", int64_t(type), bytes);
            return;
        }
    }

    const Model& m_;
    const LargestSizes largest_;
    pi_session_params session_;
    const uint64_t n_sessions_;
    uint64_t sessions_ = 0, beside_ = 0, needed_ = 0, limit_ = 0;
    std::vector<Way> found_;
};

}  // namespace

std::vector<Way> find_ways(const Model& model, const pi_model_params& params,
                           const pi_session_params& session) {
    return Finder(model, params, session).find();
}

}  // namespace powerinfer
