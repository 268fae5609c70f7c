// Which instruction set runs: decided once, by what the processor and the system offer.
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/kernels.h"
#include "ggml/context.h"
#include "ggml/status.h"

#ifdef GGML_X86
#include <cpuid.h>
#endif

namespace ggml {

namespace cpu {

namespace {

bool has_generic() {
    return true;
}

#ifdef GGML_X86
// The processor knows AVX2, FMA and F16C, and the system saves the wide registers (XGETBV): without
// the second the first instruction would fault.
bool has_avx2() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) return false;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    constexpr unsigned xmm_ymm = 6;
    if ((xcr0 & xmm_ymm) != xmm_ymm) return false;
    constexpr unsigned avx2 = 1u << 5;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & avx2);
}
#endif

struct Isa {
    const char* name;
    bool (*supported)();
};

// Best first.
constexpr Isa kIsas[] = {
#ifdef GGML_X86
    {"avx2", has_avx2},
#endif
    {"generic", has_generic},
};
constexpr int kIsaCount = sizeof(kIsas) / sizeof(kIsas[0]);

Kernels build(const char* isa) {
    Kernels k{};
    k.isa = isa;
    // Rows of this instruction set replace the generic ones.
    for (const char* wanted : {"generic", isa}) {
#define KERNEL(op, dtype, isa_, fn) \
    if (!std::strcmp(wanted, #isa_)) k.op[int(DType::dtype)] = isa_::fn;
#include "cpu/kernels.inc"
#undef KERNEL
    }
    return k;
}

}  // namespace

const Kernels* kernels_for(const char* isa) {
    static const auto* tables = [] {
        auto* all = new Kernels[kIsaCount];
        for (int i = 0; i < kIsaCount; i++) all[i] = build(kIsas[i].name);
        return all;
    }();
    for (int i = 0; i < kIsaCount; i++) {
        if (!std::strcmp(kIsas[i].name, isa) && kIsas[i].supported()) return &tables[i];
    }
    return nullptr;
}

const char* const* isa_names(int* n) {
    static const char* names[kIsaCount];
    for (int i = 0; i < kIsaCount; i++) names[i] = kIsas[i].name;
    *n = kIsaCount;
    return names;
}

}  // namespace cpu

const cpu::Kernels& select_kernels() {
    using namespace cpu;
    if (const char* forced = std::getenv("GGML_ISA"); forced && *forced) {
        if (const Kernels* k = kernels_for(forced)) return *k;
        std::string known;
        bool exists = false;
        for (const Isa& isa : kIsas) {
            exists |= !std::strcmp(isa.name, forced);
            known += (known.empty() ? "" : ", ") + std::string(isa.name);
        }
        throw Error(Code::unsupported,
                    exists
                        ? format("GGML_ISA=%s: this machine cannot run it", forced)
                        : format("GGML_ISA=%s: unknown; this build has %s", forced, known.c_str()));
    }
    for (const Isa& isa : kIsas) {
        if (const Kernels* k = kernels_for(isa.name)) return *k;
    }
    return *kernels_for("generic");
}

const char* isa_name(const cpu::Kernels& kernels) {
    return kernels.isa;
}

}  // namespace ggml
