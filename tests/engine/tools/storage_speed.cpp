// Measures a model whose neurons stay on the disk: decodes a file of token ids as generated tokens,
// and prints one line of JSON.
//
//   storage_speed --model F --tokens IDS [--budget MiB] [--warm 200] [--n 100] [--prompt 0]
//                 [--ctx 256] [--sparse 0] [--threads 0] [--without bundles,cache,overlap]
//
// --budget 0: what is free. --prompt: so many of the ids first, in one call, which is measured
// alone, and measured again, when all memory has been touched ("again_"). --without: see
// ablation.h; cache: nothing stays in memory. "logits": a hash of the logits of all tokens, which
// no budget changes. "token": for each token [ms, reads, MB, ms of waiting for the disk].
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "ablation.h"
#include "ggml/status.h"
#include "gpu/tools/arguments.h"
#include "load/open_store.h"
#include "session/session.h"
#include "storage/store.h"

namespace {

using namespace powerinfer;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

double processor_seconds() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Opens the store of a model anew, without some of what it does.
void ablate(const Model& model, const pi_model_params& params, const std::string& without) {
    const auto has = [&](const char* part) { return without.find(part) != std::string::npos; };
    Model& m = const_cast<Model&>(model);
    m.store.reset();
    StoreShape& shape = m.storage->shape;
    if (has("cache")) {
        shape.adapts = false;
        shape.gate_slots = shape.up_down_slots = shape.cache_sectors = 0;
    }
    const Ffn& f = m.ffns[0]->blocks[0];
    ggml::ReaderOptions options;
    options.align = uint32_t(f.stored.layout.align);
    options.depth = 256;
    const std::string& path = m.file.files[size_t(f.stored.file)]->path();
    m.store = open_store(
        m, params,
        std::make_unique<ablation::Reader>(ggml::open_reader(path, options),
                                           ablation::Without{has("bundles"), has("overlap")},
                                           uint32_t(shape.gate_sectors * StoreShape::kSector)));
}

// What a call took.
struct Took {
    double seconds;
    StoreCounts counts;
};

Took eval(Session& session, const std::vector<int32_t>& ids, bool generated) {
    const NeuronStore* store = session.model->store.get();
    const StoreCounts before = store ? store->counts : StoreCounts{};
    const std::unique_ptr<bool[]> flags(new bool[ids.size()]);
    std::fill_n(flags.get(), ids.size(), generated);
    const pi_batch batch{sizeof(batch), int32_t(ids.size()), ids.data(), nullptr,
                         nullptr,       flags.get()};
    const double begin = seconds();
    session.eval(batch);
    Took took{seconds() - begin, {}};
    if (store) took.counts.add(before, store->counts);
    return took;
}

void run(tools::Arguments args) {
    const std::string path = args.text("model", ""), list = args.text("tokens", "");
    const auto n_prompt = size_t(args.whole("prompt", 0)), warm = size_t(args.whole("warm", 200)),
               n = size_t(std::max<int64_t>(1, args.whole("n", 100)));
    const double budget = args.number("budget", 0);
    const auto n_ctx = int32_t(args.whole("ctx", 256)), sparse = int32_t(args.whole("sparse", 0)),
               n_threads = int32_t(args.whole("threads", 0));
    const std::string without = args.text("without", "");
    args.no_more();
    std::vector<int32_t> ids;
    std::ifstream file(list);
    for (int32_t id; file >> id;) ids.push_back(id);
    if (ids.size() < n_prompt || ids.empty()) throw std::runtime_error(list + " has too few ids");

    pi_session_params how = pi_session_default_params();
    how.n_ctx = std::max(n_ctx, int32_t(n_prompt));
    how.n_batch = how.n_ubatch = 512;
    how.n_logits = 1;
    how.sparse = sparse;
    how.n_threads = n_threads;
    pi_model_params params = pi_model_default_params();
    params.ram_budget = uint64_t(budget * (1 << 20));
    params.session = &how;
    double begin = seconds();
    const auto model = Model::load(path, params);
    if (!without.empty() && model->store) ablate(*model, params, without);
    const double loaded = seconds() - begin;
    Session session(model, how);
    std::printf("{\"load_s\": %.2f", loaded);
    if (NeuronStore* const store = model->store.get()) {
        const ResidencyShape& shape = store->residency().shape();
        std::printf(", \"io\": \"%s\", \"direct\": %s, \"cache_mb\": %.1f, \"n_ubatch\": %d",
                    store->reader().name(), store->reader().direct() ? "true" : "false",
                    double(store->shape().cache_sectors * StoreShape::kSector) * 1e-6,
                    model->storage->n_ubatch);
        std::printf(", \"neurons\": %lld", (long long)shape.parts());
    }
    for (const char* name : {"prompt", "again"}) {
        if (!n_prompt) break;
        session.truncate(0, 0);
        const Took took =
            eval(session, {ids.begin(), ids.begin() + std::ptrdiff_t(n_prompt)}, false);
        std::printf(", \"%s_s\": %.4f, \"%s_reads\": %llu, \"%s_mb\": %.1f, \"%s_waited_s\": %.3f",
                    name, took.seconds, name, (unsigned long long)took.counts.reads, name,
                    double(took.counts.bytes) * 1e-6, name, took.counts.waited_s);
    }
    std::vector<Took> tokens;
    double processor = 0;
    uint64_t bits = 0xcbf29ce484222325;  // FNV-1a of all logits
    for (size_t i = 0; i < warm + n; i++) {
        if (session.length(0) >= how.n_ctx) session.truncate(0, 0);
        if (i == warm) {
            begin = seconds();
            processor = processor_seconds();
        }
        const Took took = eval(session, {ids[(n_prompt + i) % ids.size()]}, true);
        if (i >= warm) tokens.push_back(took);
        for (int64_t k = 0; k < model->config.n_vocab; k++) {
            uint32_t word;
            std::memcpy(&word, session.result(0) + k, sizeof(word));
            bits = (bits ^ word) * 0x100000001b3;
        }
    }
    const double all = seconds() - begin;
    StoreCounts sum;
    std::vector<double> ms;
    for (const Took& t : tokens) {
        sum.add({}, t.counts);
        ms.push_back(t.seconds * 1e3);
    }
    std::sort(ms.begin(), ms.end());
    const auto per = [&](double value) { return value / double(n); };
    std::printf(", \"tokens_per_s\": %.3f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"cpu_ms\": %.2f",
                double(n) / all, ms[n / 2], ms[n * 99 / 100],
                per(processor_seconds() - processor) * 1e3);
    std::printf(", \"reads\": %.1f, \"mb\": %.3f, \"waited_ms\": %.2f", per(double(sum.reads)),
                per(double(sum.bytes)) * 1e-6, per(sum.waited_s) * 1e3);
    std::printf(", \"logits\": \"%016llx\"", (unsigned long long)bits);
    for (int half = 0; half < 2; half++) {
        const char* name = half ? "rest" : "first";
        std::printf(", \"%s_needed\": %.1f, \"%s_missed\": %.1f", name,
                    per(double(sum.needed[half])), name, per(double(sum.missed[half])));
    }
    std::printf(", \"token\": [");
    for (size_t i = 0; i < tokens.size(); i++) {
        const Took& t = tokens[i];
        std::printf("%s[%.2f, %llu, %.3f, %.2f]", i ? ", " : "", t.seconds * 1e3,
                    (unsigned long long)t.counts.reads, double(t.counts.bytes) * 1e-6,
                    t.counts.waited_s * 1e3);
    }
    std::printf("]}\n");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(tools::Arguments(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "storage_speed: %s\n", error.what());
        return 1;
    }
}
