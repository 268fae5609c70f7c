// Measures several sequences that are decoded together: each takes the ids of a file from a place
// of its own, as generated tokens. Prints one line of JSON for each number of sequences.
//
//   batch_speed --model F --tokens IDS [--rows 1,2,4,8,16,32] [--n 32] [--warm 4] [--sparse 0]
//               [--threads 0] [--prompt 0] [--apart 0]
//
// "logits": a hash of the logits of sequence 0, which the others do not change. --prompt: so many
// rows of a prompt in every step, or with --apart 1 in a call of their own after it. "cpu_ms": of a
// step, of the processor, which other work beside it changes least. "ffn_ms": in the operators of
// neurons.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "ggml/status.h"
#include "gpu/tools/arguments.h"
#include "load/load.h"
#include "session/session.h"

namespace {

using namespace powerinfer;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

void measure(const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids, int rows,
             int warm, int n, int32_t sparse, int32_t n_threads, int prompt, bool apart) {
    pi_session_params how = pi_session_default_params();
    how.n_ctx = std::max(warm + n, prompt);
    how.n_seq = rows + 1;  // the last one has the prompt
    how.n_batch = how.n_ubatch = rows + prompt;
    how.n_logits = std::max(rows, 1);
    how.sparse = sparse;
    how.n_threads = n_threads;
    Session session(model, how);
    const size_t all_rows = size_t(rows + prompt);
    std::vector<int32_t> token(all_rows, 0), seq(all_rows, rows);
    std::vector<char> decoded(all_rows, 0);
    std::fill_n(decoded.begin(), rows, 1);
    const auto* const flags = reinterpret_cast<const bool*>(decoded.data());
    double begin = 0;
    std::clock_t cpu = 0;
    uint64_t bits = 0xcbf29ce484222325;  // FNV-1a
    for (int i = 0; i < warm + n; i++) {
        if (i == warm) {
            begin = seconds();
            cpu = std::clock();
            session.context.profile.entries.clear();
            session.context.profile.on = true;
        }
        for (int r = 0; r < rows; r++) {
            // Texts of a topic each: the file changes its topic every 200 tokens.
            token[size_t(r)] = ids[size_t(r * 200 + i) % ids.size()];
            seq[size_t(r)] = r;
        }
        for (int t = 0; t < prompt; t++) {
            token[size_t(rows + t)] = ids[size_t(7 * i + t) % ids.size()];
        }
        session.truncate(rows, 0);
        const int first = apart ? rows : rows + prompt;
        session.eval({sizeof(pi_batch), first, token.data(), seq.data(), flags, flags});
        for (int64_t k = 0; k < model->config.n_vocab; k++) {
            uint32_t word;
            std::memcpy(&word, session.result(0) + k, sizeof(word));
            bits = (bits ^ word) * 0x100000001b3;
        }
        if (!apart || prompt == 0) continue;
        session.eval({sizeof(pi_batch), prompt, token.data() + rows, seq.data() + rows,
                      flags + rows, flags + rows});
    }
    const double took = seconds() - begin, of_cpu = double(std::clock() - cpu) / CLOCKS_PER_SEC;
    double in_ffn = 0;
    for (const ggml::Profile::Entry& e : session.context.profile.entries) {
        const bool of_neurons = std::strstr(e.op, "rows_ffn") || std::strstr(e.op, "partial_ffn");
        if (of_neurons) in_ffn += e.seconds;
    }
    std::printf(
        "{\"rows\": %d, \"prompt\": %d, \"tokens_per_s\": %.2f, \"step_ms\": %.2f, "
        "\"cpu_ms\": %.2f, \"ffn_ms\": %.2f, \"logits\": \"%016llx\"}\n",
        rows, prompt, rows * n / took, took / n * 1e3, of_cpu / n * 1e3, in_ffn / n * 1e3,
        (unsigned long long)bits);
    std::fflush(stdout);
}

void run(tools::Arguments args) {
    const std::string path = args.text("model", ""), list = args.text("tokens", "");
    const std::string rows = args.text("rows", "1,2,4,8,16,32");
    const auto n = int(args.whole("n", 32)), warm = int(args.whole("warm", 4));
    const auto sparse = int32_t(args.whole("sparse", 0)),
               n_threads = int32_t(args.whole("threads", 0));
    const auto prompt = int(args.whole("prompt", 0));
    const bool apart = args.whole("apart", 0) != 0;
    args.no_more();
    std::vector<int32_t> ids;
    std::ifstream file(list);
    for (int32_t id; file >> id;) ids.push_back(id);
    if (ids.empty()) throw std::runtime_error(list + " has no ids");
    const auto model = Model::load(path, pi_model_default_params());
    std::istringstream numbers(rows);
    for (std::string number; std::getline(numbers, number, ',');) {
        measure(model, ids, std::stoi(number), warm, n, sparse, n_threads, prompt, apart);
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
