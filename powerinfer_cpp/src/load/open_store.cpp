#include "load/open_store.h"

#include <algorithm>
#include <array>
#include <limits>

#include "files/find_bundle.h"
#include "files/write_bundle.h"
#include "ggml/status.h"
#include "plan/expected_uses.h"
#include "plan/expert_plan.h"
#include "plan/stored_blocks.h"
#include "storage/cache/resident_file.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;

namespace {

// What loading may take to read the experts that an earlier session kept. From then on those that
// a token needs come first: a text of 50 tokens is finished before a cache of 7 GB has been filled
// from a disk of 1 GB/s.
constexpr double kFillSeconds = 2;

std::string resident_path(const Model& m) {
    return m.file.gguf.path() + ".resident";
}

ResidentOwner owner_of(const Model& m) {
    if (m.storage->experts) {
        const PageShape& shape = m.storage->experts;
        int32_t most = 0;
        for (const FeedForward* part : m.ffns) most = std::max(most, int32_t(part->n_expert()));
        return {source_hash(m.file), shape.n_parts(), most};
    }
    return {std::string(m.file.gguf.string("powerinfer.bundle.source_hash", "")),
            m.storage->shape.n_blocks, int32_t(largest_sizes(m.layers).n_ff)};
}

// A list of parts with the numbers of their neurons in the file, for save_resident(), and back.
std::vector<RankedPart> numbered_in_file(const NeuronStore& store, std::vector<RankedPart> parts) {
    for (RankedPart& p : parts) p.id = store.row_of(p.block, p.id);
    return parts;
}
std::vector<RankedPart> numbered_in_store(const NeuronStore& store,
                                          const std::vector<RankedPart>& parts) {
    std::vector<RankedPart> found;
    for (RankedPart p : parts) {
        p.id = store.find_row(p.block, p.id);
        if (p.id >= 0) found.push_back(p);
    }
    return found;
}

}  // namespace

bool is_bundled(const Model& m) {
    bool all = true;
    for_blocks(m,
               [&](const Ffn& f, const FeedForward&) { all = all && (f.stored || !f.neurons.n); });
    return all;
}

std::string bundle_of(const std::string& path, const pi_model_params& params) {
    const std::string found = find_bundle(path);
    if (!found.empty()) return found;
    if (!params.bundle) {
        throw Error(Code::memory,
                    path +
                        ": the model does not fit the RAM that may be used, and its bundled file, "
                        "from which it would run, may not be written");
    }
    const std::string target = bundle_target(path);
    pi_bundle_params how = pi_bundle_default_params();
    how.progress = params.progress;
    how.progress_data = params.progress_data;
    how.log = params.log;
    how.log_data = params.log_data;
    write_bundled(path, target, how);
    return target;
}

uint64_t bundle_to_write(const Model& model) {
    const std::string& path = model.file.gguf.path();
    return is_bundled(model) || !find_bundle(path).empty() ? 0 : bundled_size(path);
}

std::unique_ptr<NeuronStore> open_store(const Model& m, const pi_model_params& params,
                                        std::unique_ptr<ggml::Reader> reader) {
    std::vector<StoredNeurons> blocks;
    for_blocks(m, [&](const Ffn& f, const FeedForward& part) {
        blocks.push_back(f.stored);
        blocks.back().part = int32_t(part.index);
    });
    const auto first = std::find_if(blocks.begin(), blocks.end(),
                                    [](const StoredNeurons& block) { return bool(block); });
    const ggml::File& file = *m.file.files[size_t(first->file)];
    if (!reader) reader = ggml::open_reader(file.path(), reader_options(first->layout));
    std::unique_ptr<ExpertPages> predictors;
    if (m.storage->predictors) {
        predictors = std::make_unique<ExpertPages>(m.storage->predictors, stored_predictors(m),
                                                   reader->align(), "the predictor of block");
    }
    auto store = std::make_unique<NeuronStore>(std::move(reader), m.storage->shape, blocks,
                                               std::move(predictors));
    std::vector<std::array<uint32_t, 2>> checksums;
    const ExpectedUses expected(m, m.storage->sparse, m.storage->predicted);
    int32_t block = 0;
    bool profiled = false;
    for_blocks(m, [&](const Ffn& f, const FeedForward& part) {
        if (!f.neurons.n) {
            block++;
            return;
        }
        checksums.resize(size_t(f.neurons.n));
        m.file.files[size_t(f.stored.crc_file)]->read(f.stored.crc_offset, checksums.data(),
                                                      checksums.size() * sizeof(checksums[0]));
        const std::vector<int32_t> rows = stored_rows(m, f, part);
        for (size_t i = 0; i < rows.size(); i++) {
            std::copy_n(checksums[size_t(rows[i])].data(), 2, store->checksums(block) + 2 * i);
        }
        if (int32_t* to = store->rows_in_file(block)) std::copy(rows.begin(), rows.end(), to);
        if (expected.profiled(f)) {
            const BlockUses uses = expected.of(part, f, rows);
            store->residency().profile(block, uses.gate.data(), uses.up_down.data());
            profiled = true;
        }
        block++;
    });
    if (!profiled) {
        const std::vector<RankedPart> saved = load_resident(resident_path(m), owner_of(m));
        store->residency().profile(numbered_in_store(*store, saved));
    }
    store->adapt();
    store->fill([&](float fraction) {
        if (params.progress && !params.progress(fraction, params.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    });
    return store;
}

std::unique_ptr<ExpertStore> open_experts(const Model& m, const pi_model_params& params,
                                          std::vector<std::unique_ptr<ggml::Reader>> readers) {
    std::vector<int32_t> files;
    std::vector<StoredPage> experts = stored_experts(m, files);
    for (size_t i = readers.size(); i < files.size(); i++) {
        const int32_t file = files[i];
        readers.push_back(
            ggml::open_reader(m.file.files[size_t(file)]->path(), expert_reader_options()));
    }
    std::vector<const ggml::File*> opened;
    for (int32_t file : files) opened.push_back(m.file.files[size_t(file)].get());
    auto store = std::make_unique<ExpertStore>(std::move(opened), std::move(readers),
                                               m.storage->experts, std::move(experts));
    std::vector<int32_t> wanted;
    double seconds = kFillSeconds;
    if (store->shape().in_order) {
        seconds = std::numeric_limits<double>::infinity();
        wanted = store->shape().spread();
        wanted.resize(size_t(store->shape().slots()));
    } else if (const std::string path = resident_path(m); ggml::file_exists(path)) {
        wanted = store->wanted(load_resident(path, owner_of(m)));
    }
    if (wanted.empty()) return store;
    ggml::Context context(ggml::threads_used(params.n_threads));
    store->fill(context, wanted, seconds, [&](float fraction) {
        if (params.progress && !params.progress(fraction, params.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    });
    return store;
}

void save_store(const Model& m) {
    constexpr int64_t kEnough = 64;  // tokens that say what is needed
    bool profiled = false;
    for_blocks(m, [&](const Ffn& f, const FeedForward&) { profiled = profiled || f.rate; });
    const int64_t tokens = m.experts ? m.experts->tokens() : m.store->tokens();
    if (profiled || tokens < kEnough) return;
    try {
        save_resident(resident_path(m), owner_of(m),
                      m.experts ? m.experts->ranked()
                                : numbered_in_file(*m.store, m.store->residency().resident()));
    } catch (const std::exception&) {
        // Without it the next run begins with an empty cache.
    }
}

}  // namespace powerinfer
