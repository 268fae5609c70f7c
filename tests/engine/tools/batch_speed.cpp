// Measures several sequences that are decoded together: each takes the ids of a file from a place
// of its own, as generated tokens. Prints one line of JSON for each number of sequences.
//
//   batch_speed --model F --tokens IDS [--rows 1,2,4,8,16,32] [--n 32] [--warm 4] [--sparse 0]
//               [--threads 0]
//
// "logits": a hash of the logits of sequence 0, which the others do not change.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "ggml/status.h"
#include "gpu/tools/arguments.h"
#include "load.h"
#include "session.h"

namespace {

using namespace powerinfer;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

void measure(const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids, int rows,
             int warm, int n, int32_t sparse, int32_t n_threads) {
    pi_session_params how = pi_session_default_params();
    how.n_ctx = warm + n;
    how.n_seq = rows;
    how.n_batch = how.n_ubatch = std::max(rows, 1);
    how.n_logits = rows;
    how.sparse = sparse;
    how.n_threads = n_threads;
    Session session(model, how);
    std::vector<int32_t> token(size_t(rows), 0), seq(size_t(rows), 0);
    const std::vector<char> yes(size_t(rows), 1);
    double begin = 0;
    uint64_t bits = 0xcbf29ce484222325;  // FNV-1a
    for (int i = 0; i < warm + n; i++) {
        if (i == warm) begin = seconds();
        for (int r = 0; r < rows; r++) {
            // Texts of a topic each: the file changes its topic every 200 tokens.
            token[size_t(r)] = ids[size_t(r * 200 + i) % ids.size()];
            seq[size_t(r)] = r;
        }
        const auto* const all = reinterpret_cast<const bool*>(yes.data());
        session.eval({sizeof(pi_batch), rows, token.data(), seq.data(), all, all});
        for (int64_t k = 0; k < model->config.n_vocab; k++) {
            uint32_t word;
            std::memcpy(&word, session.result(0) + k, sizeof(word));
            bits = (bits ^ word) * 0x100000001b3;
        }
    }
    const double took = seconds() - begin;
    std::printf(
        "{\"rows\": %d, \"tokens_per_s\": %.2f, \"step_ms\": %.2f, \"logits\": \"%016llx\"}\n",
        rows, rows * n / took, took / n * 1e3, (unsigned long long)bits);
    std::fflush(stdout);
}

void run(tools::Arguments args) {
    const std::string path = args.text("model", ""), list = args.text("tokens", "");
    const std::string rows = args.text("rows", "1,2,4,8,16,32");
    const auto n = int(args.whole("n", 32)), warm = int(args.whole("warm", 4));
    const auto sparse = int32_t(args.whole("sparse", 0)),
               n_threads = int32_t(args.whole("threads", 0));
    args.no_more();
    std::vector<int32_t> ids;
    std::ifstream file(list);
    for (int32_t id; file >> id;) ids.push_back(id);
    if (ids.empty()) throw std::runtime_error(list + " has no ids");
    const auto model = Model::load(path, pi_model_default_params());
    std::istringstream numbers(rows);
    for (std::string number; std::getline(numbers, number, ',');) {
        measure(model, ids, std::stoi(number), warm, n, sparse, n_threads);
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(tools::Arguments(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "batch_speed: %s\n", error.what());
        return 1;
    }
    return 0;
}
