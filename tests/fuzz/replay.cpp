// Runs a fuzz target without a fuzzer: over every file of the corpus folder that it is given, each
// also cut short and with single bytes changed, in a fixed order. Findings of the real fuzzer go
// into the corpus and stay tested where there is no clang.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    std::mt19937 rng(1);
    int runs = 0;
    const auto run = [&](const std::string& input) {
        // A copy of exactly this size, so that the sanitizer sees a read past its end.
        const std::vector<uint8_t> bytes(input.begin(), input.end());
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        runs++;
    };
    run("");
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::string input{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
        run(input);
        for (int i = 0; i < 200 && !input.empty(); i++) {
            run(input.substr(0, rng() % input.size()));
            std::string changed = input;
            changed[rng() % changed.size()] = char(rng());
            run(changed);
        }
    }
    std::printf("%d inputs\n", runs);
    return runs > 200 ? 0 : 1;
}
