// The namespace of what is compiled for AVX-512, and again for VBMI and AMX with their flags (see
// cpu/simd.h).
#pragma once

#if defined(__AMX_INT8__) || defined(__AMXINT8__)  // the latter: clang 14 and older
#define GGML_ISA amx
#elif defined(__AVX512VBMI__)
#define GGML_ISA vbmi
#else
#define GGML_ISA avx512
#endif
