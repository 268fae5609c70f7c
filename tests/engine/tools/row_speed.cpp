// Measures reads of single rows of a table that stays on the disk (TableRows): rows at random, as
// n-grams choose them. Prints one line of JSON: microseconds of a call, and bytes of a row.
//
//   row_speed --model F [--tensor per_layer_token_embd.weight] [--rows 16] [--n 2000] [--direct 1]
//
// --rows: of a call; a token of Qwen3.8 Flash Next needs 16, a prompt of 512 tokens 8,192.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>

#include "ggml/status.h"
#include "gpu/tools/arguments.h"
#include "storage/table_rows.h"
#include "weights/model_file.h"

namespace {

using namespace powerinfer;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

void run(tools::Arguments args) {
    const std::string path = args.text("model", ""),
                      name = args.text("tensor", "per_layer_token_embd.weight");
    const auto rows = size_t(args.whole("rows", 16)), n = size_t(args.whole("n", 2000));
    const bool direct = args.whole("direct", 1) != 0;
    args.no_more();
    const ModelFile model = ModelFile::open(path);
    const ggml::TensorInfo* const t = model.gguf.find_tensor(name);
    if (!t) throw std::runtime_error(path + " has no tensor " + name);
    const ggml::File& file = *model.files[size_t(t->file)];
    const ggml::Matrix table{t->type, ggml::Layout::rows, t->ne[1], t->ne[0], nullptr};
    auto opened = ggml::open_reader(file.path(), TableRows::options(direct));
    const std::string how = opened->name();
    const bool is_direct = opened->direct();
    TableRows reader(file, std::move(opened), t->offset, table);
    std::mt19937_64 random(1);
    std::vector<int64_t> ids(rows);
    std::vector<float> y(rows * size_t(table.cols));
    std::vector<double> took;
    for (size_t i = 0; i < n; i++) {
        for (int64_t& id : ids) id = int64_t(random() % uint64_t(table.rows));
        const double begin = seconds();
        reader.ask(ids.data(), int64_t(rows), y.data());
        reader.wait();
        took.push_back((seconds() - begin) * 1e6);
    }
    std::sort(took.begin(), took.end());
    const auto at = [&](double share) { return took[size_t(share * double(n - 1))]; };
    std::printf(
        "{\"io\": \"%s\", \"direct\": %s, \"rows\": %zu, \"row_bytes\": %lld, \"mean_us\": %.1f, "
        "\"p50_us\": %.1f, \"p99_us\": %.1f}\n",
        how.c_str(), is_direct ? "true" : "false", rows, (long long)table.row_bytes(),
        std::accumulate(took.begin(), took.end(), 0.0) / double(n), at(0.5), at(0.99));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run({argc, argv});
    } catch (const std::exception& e) {
        std::fprintf(stderr, "row_speed: %s\n", e.what());
        return 1;
    }
}
