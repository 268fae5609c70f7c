// What every operator call needs: the threads that do it, the kernels they run, and where to note
// the time.
#pragma once

#include "ggml/profile.h"
#include "ggml/threads.h"

namespace ggml {

namespace cpu {
struct Kernels;
}

// The kernels for this machine: the best instruction set that cpuid and xgetbv allow, or the one
// that the variable GGML_ISA names. Throws Error(unsupported) when that one is unknown or cannot
// run here.
const cpu::Kernels& select_kernels();
const char* isa_name(const cpu::Kernels& kernels);

struct Context {
    explicit Context(int n_threads) : threads(n_threads), kernels(select_kernels()) {}
    Threads threads;
    const cpu::Kernels& kernels;
    Profile profile;
};

}  // namespace ggml
