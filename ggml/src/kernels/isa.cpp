// Selects the instruction set, from what was compiled, and what the processor and the operating
// system support.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ggml/context.h"
#include "ggml/status.h"
#include "kernels/kernels.h"
#include "os/os.h"

#ifdef GGML_X86
#include <cpuid.h>
#endif
#if defined(GGML_ARM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(GGML_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ggml {

namespace cpu {

namespace {

bool has_generic() {
    return true;
}

#ifdef GGML_X86
// Does the operating system save these registers (XGETBV)? If not, instructions that use them
// fault.
bool saves(unsigned registers) {
    unsigned a, b, c, d;
    constexpr unsigned osxsave = 1u << 27;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave)) return false;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return (xcr0 & registers) == registers;
}

// AVX, and what its processors have as well: SSSE3 and SSE4.1. Sandy Bridge or later.
bool has_avx() {
    unsigned a, b, c, d;
    constexpr unsigned ssse3 = 1u << 9, sse41 = 1u << 19, avx = 1u << 28;
    constexpr unsigned all = ssse3 | sse41 | avx, xmm_ymm = 6;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & all) == all && saves(xmm_ymm);
}

bool has_avx2() {
    unsigned a, b, c, d;
    if (!has_avx() || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    constexpr unsigned fma = 1u << 12, f16c = 1u << 29, both = fma | f16c, avx2 = 1u << 5;
    return (c & both) == both && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & avx2);
}

// AVX-VNNI: Alder Lake (also N100) and Zen 5 or later. Without a subleaf 1 of leaf 7, it is zeros.
bool has_avxvnni() {
    unsigned a, b, c, d;
    constexpr unsigned avxvnni = 1u << 4;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avxvnni);
}

// AVX-512 F, DQ, BW, VL and VNNI: Cascade Lake and Zen 4 or later.
bool has_avx512() {
    unsigned a, b, c, d;
    constexpr unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    constexpr unsigned all = f | dq | bw | vl, xmm_ymm_zmm_masks = 0xe6;
    return has_avx2() && saves(xmm_ymm_zmm_masks) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (b & all) == all && (c & vnni);
}

bool has_vnni() {
    return has_avx512();
}

// The same with VBMI and GFNI: Ice Lake and Zen 4 or later.
bool has_vbmi() {
    unsigned a, b, c, d;
    constexpr unsigned vbmi = 1u << 1, gfni = 1u << 8, both = vbmi | gfni;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & both) == both;
}

#ifdef GGML_AMX
// AMX's tiles of 8-bit integers: Sapphire Rapids or later. Linux gives their registers to a process
// that asks for them.
bool has_amx() {
    unsigned a, b, c, d;
    constexpr unsigned tile = 1u << 24, int8 = 1u << 25, both = tile | int8, registers = 3u << 17;
    return has_vbmi() && saves(registers) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & both) == both && os::may_use_tiles();
}
#endif
#endif

#ifdef GGML_ARM
// NEON with sdot: Cortex-A55 and A75 or later, and every Apple M.
bool has_neon() {
#ifdef __linux__
    constexpr unsigned long dotprod = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & dotprod;
#elif defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

// NEON with smmla: Cortex-A510 and A710, Neoverse V1, Apple M2 or later.
bool has_neon_i8mm() {
#ifdef __linux__
    constexpr unsigned long i8mm = 1ul << 13;  // HWCAP2_I8MM
    return has_neon() && (getauxval(AT_HWCAP2) & i8mm);
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof(has);
    return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) && has;
#else
    return false;
#endif
}
#endif

// CPUID's name of the maker, in three registers.
bool is_amd() {
#ifdef GGML_X86
    unsigned a, name[3];
    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) &&
           !std::memcmp(name, "AuthenticAMD", sizeof(name));
#else
    return false;
#endif
}

// From CPUID's list of caches: leaf 4, at AMD 0x8000001d.
int64_t size_of_l1() {
#ifdef GGML_X86
    for (const unsigned leaf : {4u, 0x8000001du}) {
        unsigned a, b, c, d;
        for (unsigned i = 0; i < 8 && __get_cpuid_count(leaf, i, &a, &b, &c, &d) && (a & 31); i++) {
            const bool has_data = (a & 31) != 2, is_first = (a >> 5 & 7) == 1;
            if (!has_data || !is_first) continue;
            const int64_t ways = (b >> 22) + 1, parts = (b >> 12 & 1023) + 1, line = (b & 4095) + 1;
            return ways * parts * line * (int64_t(c) + 1);
        }
    }
#endif
    return 32 << 10;
}

struct Isa {
    const char* name;
    bool built;
    bool (*supported)();
};

// CMakeLists.txt defines GGML_BUILT_avx2 and the like as 1 or 0, for this file alone.
#define GGML_BUILT_generic 1
#define ISA(name) {#name, GGML_BUILT_##name, has_##name}

// Best first.
constexpr Isa kIsas[] = {
#ifdef GGML_AMX
    ISA(amx),
#endif
#ifdef GGML_X86
    ISA(vbmi),      ISA(avx512), ISA(vnni), ISA(avxvnni), ISA(avx2), ISA(avx),
#endif
#ifdef GGML_ARM
    ISA(neon_i8mm), ISA(neon),
#endif
    ISA(generic),
};
constexpr int kIsaCount = sizeof(kIsas) / sizeof(kIsas[0]);

// A kernel that was not compiled is not named.
#define IF_1(...) __VA_ARGS__
#define IF_0(...)
#define IF(built) IF_EXPANDED(built)
#define IF_EXPANDED(built) IF_##built

// Kernels of better instruction sets replace those of lesser ones.
Kernels build(int isa) {
    Kernels k{};
    k.isa = kIsas[isa].name;
    k.float_lanes = 1;
    for (int i = kIsaCount - 1; i >= isa; i--) {
        const char* const name = kIsas[i].name;
        if (kIsas[i].built && std::strcmp(name, "generic") != 0) {
            const bool wide = !std::strcmp(name, "avx512");
            k.float_lanes = std::max(k.float_lanes, wide ? 16 : 8);
        }
#define KERNEL(op, dtype, isa_, fn) \
    IF(GGML_BUILT_##isa_)           \
    (if (!std::strcmp(kIsas[i].name, #isa_)) k.op[int(DType::dtype)] = isa_::fn;)
#include "kernels/kernels.inc"
#undef KERNEL
    }
    return k;
}

}  // namespace

const bool fetches_ahead = !is_amd();
const int64_t l1_bytes = size_of_l1();

const Kernels* kernels_for(const char* isa) {
    static const auto* tables = [] {
        auto* all = new Kernels[kIsaCount];
        for (int i = 0; i < kIsaCount; i++) all[i] = build(i);
        return all;
    }();
    for (int i = 0; i < kIsaCount; i++) {
        const Isa& known = kIsas[i];
        if (!std::strcmp(known.name, isa) && known.built && known.supported()) return &tables[i];
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
        for (const Isa& isa : kIsas) {
            if (!std::strcmp(isa.name, forced)) {
                throw Error(Code::unsupported,
                            format(isa.built ? "GGML_ISA=%s: this machine cannot run it"
                                             : "GGML_ISA=%s: this build is without it (PI_ISA)",
                                   forced));
            }
            if (isa.built) known += (known.empty() ? "" : ", ") + std::string(isa.name);
        }
        throw Error(Code::unsupported,
                    format("GGML_ISA=%s: unknown; this build has %s", forced, known.c_str()));
    }
    for (const Isa& isa : kIsas) {
        if (const Kernels* k = kernels_for(isa.name)) return *k;
    }
    return *kernels_for("generic");
}

const char* isa_name(const cpu::Kernels& kernels) {
    return kernels.isa;
}

int float_lanes(const cpu::Kernels& kernels) {
    return kernels.float_lanes;
}

const char* isas_left_out() {
    static const std::string names = [] {
        std::string all;
        for (const cpu::Isa& isa : cpu::kIsas) {
            if (!isa.built) all += (all.empty() ? "" : ", ") + std::string(isa.name);
        }
        return all;
    }();
    return names.c_str();
}

}  // namespace ggml
