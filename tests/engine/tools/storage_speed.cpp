// Measures a model whose neurons or experts stay on the disk: decodes a file of token ids as
// generated tokens, and prints one line of JSON.
//
//   storage_speed --model F --tokens IDS [--budget MiB] [--warm 200] [--n 100] [--prompt 0]
//                 [--ctx 256] [--sparse 0] [--threads 0] [--without bundles,cache,overlap]
//                 [--disk MB]
//
// --budget 0: what is free. --prompt: so many of the ids first, in one call, which is measured
// alone, and measured again, when all memory has been touched ("again_"). --without: see
// ablation.h (not of experts); cache: nothing stays in memory. --disk: experts come from a disk of
// so many 10^6 bytes a second that brings nothing (delayed.h), for mixtures that make_mixture.py
// wrote. "hits": the share of the needed
// parts of neurons, or experts, that memory had. Of experts "guessed": those that were read early,
// and "guessed_right": those of them that the token chose; they are no hits. "logits": a hash of
// the logits of all tokens, which no budget changes. "token": for each token [ms, reads, MB, ms of
// waiting for the disk, hits].
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "ablation.h"
#include "delayed.h"
#include "ggml/status.h"
#include "gpu/tools/arguments.h"
#include "load/open_store.h"
#include "session/session.h"
#include "storage/neurons/store.h"

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

// Opens the store of experts anew, with a disk of a stated speed.
void delay(const Model& model, const pi_model_params& params, double mb) {
    std::vector<std::unique_ptr<ggml::Reader>> readers;
    readers.push_back(std::make_unique<delayed::Reader>(model.experts->reader(), mb * 1e6));
    const_cast<Model&>(model).experts = open_experts(model, params, std::move(readers));
}

// What a call took.
struct Took {
    double seconds;
    StoreCounts counts;
};

Took eval(Session& session, const std::vector<int32_t>& ids, bool generated) {
    const StoreCounts before = sum(session.counts.stored);
    const std::unique_ptr<bool[]> flags(new bool[ids.size()]);
    std::fill_n(flags.get(), ids.size(), generated);
    const pi_batch batch{sizeof(batch), int32_t(ids.size()), ids.data(), nullptr,
                         nullptr,       flags.get()};
    const double begin = seconds();
    session.eval(batch);
    Took took{seconds() - begin, {}};
    took.counts.add(before, sum(session.counts.stored));
    return took;
}

double hits(const StoreCounts& c) {
    const uint64_t needed = c.needed[0] + c.needed[1], missed = c.missed[0] + c.missed[1];
    return needed ? 1 - double(missed) / double(needed) : 1;
}

// How the model runs from storage.
void print_store(const Model& model) {
    if (!model.storage) return;
    const NeuronStore* const store = model.store.get();
    const ggml::Reader& reader = store ? store->reader() : model.experts->reader();
    std::printf(", \"io\": \"%s\", \"direct\": %s, \"n_ubatch\": %d", reader.name(),
                reader.direct() ? "true" : "false", model.storage->n_ubatch);
    if (store) {
        std::printf(", \"cache_mb\": %.1f, \"neurons\": %lld",
                    double(store->shape().cache_sectors * StoreShape::kSector) * 1e-6,
                    (long long)store->blocks().parts());
        return;
    }
    const PageShape& shape = model.experts->shape();
    double bytes = 0;
    for (const PageShape::Class& c : shape.classes) bytes += double(c.slots) * double(c.page);
    std::printf(", \"cache_mb\": %.1f, \"experts\": %lld, \"slots\": %lld", bytes * 1e-6,
                (long long)shape.n_blocks(), (long long)shape.slots());
}

void print_counts(const StoreCounts& sum, double n, bool experts) {
    std::printf(", \"reads\": %.1f, \"mb\": %.3f, \"waited_ms\": %.2f, \"hits\": %.4f",
                double(sum.reads) / n, double(sum.bytes) * 1e-6 / n, sum.waited_s * 1e3 / n,
                hits(sum));
    const auto needs = [&](const char* name, int half) {
        std::printf(", \"%s_needed\": %.1f, \"%s_missed\": %.1f", name,
                    double(sum.needed[half]) / n, name, double(sum.missed[half]) / n);
    };
    if (experts) {
        needs("experts", 0);
        std::printf(", \"guessed\": %.1f, \"guessed_right\": %.1f", double(sum.guessed) / n,
                    double(sum.right) / n);
    } else {
        needs("first", 0);
        needs("rest", 1);
    }
}

void run(tools::Arguments args) {
    const std::string path = args.text("model", ""), list = args.text("tokens", "");
    const auto n_prompt = size_t(args.whole("prompt", 0)), warm = size_t(args.whole("warm", 200)),
               n = size_t(std::max<int64_t>(1, args.whole("n", 100)));
    const double budget = args.number("budget", 0);
    const auto n_ctx = int32_t(args.whole("ctx", 256)), sparse = int32_t(args.whole("sparse", 0)),
               n_threads = int32_t(args.whole("threads", 0));
    const std::string without = args.text("without", "");
    const double disk = args.number("disk", 0);
    args.no_more();
    std::vector<int32_t> ids;
    std::ifstream file(list);
    for (int32_t id; file >> id;) ids.push_back(id);
    if (ids.size() < n_prompt || ids.empty()) throw std::runtime_error(list + " has too few ids");

    pi_session_params how = pi_session_default_params();
    how.n_ctx = std::max(n_ctx, int32_t(n_prompt));
    how.n_batch = std::max(512, int32_t(n_prompt));
    how.n_ubatch = 512;
    how.n_logits = 1;
    how.sparse = sparse;
    how.n_threads = n_threads;
    pi_model_params params = pi_model_default_params();
    params.ram_budget = uint64_t(budget * (1 << 20));
    params.session = &how;
    double begin = seconds();
    const auto model = Model::load(path, params);
    if (!without.empty() && model->store) ablate(*model, params, without);
    if (disk > 0 && model->experts) delay(*model, params, disk);
    const double loaded = seconds() - begin;
    Session session(model, how);
    std::printf("{\"load_s\": %.2f", loaded);
    print_store(*model);
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
    StoreCounts counts;
    std::vector<double> ms;
    for (const Took& t : tokens) {
        counts.add({}, t.counts);
        ms.push_back(t.seconds * 1e3);
    }
    std::sort(ms.begin(), ms.end());
    const auto per = [&](double value) { return value / double(n); };
    std::printf(", \"tokens_per_s\": %.3f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"cpu_ms\": %.2f",
                double(n) / all, ms[n / 2], ms[n * 99 / 100],
                per(processor_seconds() - processor) * 1e3);
    print_counts(counts, double(n), bool(model->experts));
    std::printf(", \"logits\": \"%016llx\", \"token\": [", (unsigned long long)bits);
    for (size_t i = 0; i < tokens.size(); i++) {
        const Took& t = tokens[i];
        std::printf("%s[%.2f, %llu, %.3f, %.2f, %.4f]", i ? ", " : "", t.seconds * 1e3,
                    (unsigned long long)t.counts.reads, double(t.counts.bytes) * 1e-6,
                    t.counts.waited_s * 1e3, hits(t.counts));
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
