// What every operator call needs: threads, kernels, and a profile for timings.
#pragma once

#include "ggml/profile.h"
#include "ggml/threads.h"

namespace ggml {

namespace cpu {
struct Kernels;
}

// The kernels for this machine: those of the best instruction set that cpuid and xgetbv report, or
// of the one named by the environment variable GGML_ISA. Throws Error(unsupported) if GGML_ISA is
// unknown or cannot run here.
const cpu::Kernels& select_kernels();
const char* isa_name(const cpu::Kernels& kernels);
// Sums side by side of a row of floats in these kernels (matmul), which are added by halves at the
// end: 8 or 16, and 1 in generic.
int float_lanes(const cpu::Kernels& kernels);
// Instruction sets of this kind of processor that the build is without, separated by ", "; "" if it
// has all (CMake's PI_ISA).
const char* isas_left_out();

struct Context {
    explicit Context(int n_threads) : threads(n_threads), kernels(select_kernels()) {}
    Threads threads;
    const cpu::Kernels& kernels;
    Profile profile;
};

}  // namespace ggml
