// The namespace of what is compiled for AVX-512, and again for AMX with its flags (see cpu/simd.h).
#pragma once

#ifdef __AMX_INT8__
#define GGML_ISA amx
#else
#define GGML_ISA avx512
#endif
