// Products of strips with several tokens (strips.h); vnni has the others.
#include "kernels/avx512/strip_formats.h"
#include "kernels/avx512/strips.h"

namespace ggml::cpu::avx512 {

const strip_fn strip__q8_0_q8 = strips<StripsQ8_0, vnni::strip__q8_0_q8>;
const strip_fn strip__q4_0_q8 = strips<StripsQ4_0, vnni::strip__q4_0_q8>;
const strip_fn strip__q4_1_q8 = strips<StripsQ4_1, vnni::strip__q4_1_q8>;
const strip_fn strip__q5_0_q8 = strips<StripsQ5_0, vnni::strip__q5_0_q8>;
const strip_fn strip__q5_1_q8 = strips<StripsQ5_1, vnni::strip__q5_1_q8>;
const strip_fn strip__iq4_nl_q8 = strips<StripsIQ4_NL, vnni::strip__iq4_nl_q8>;
const strip_fn strip__mxfp4_q8 = strips<StripsMXFP4, vnni::strip__mxfp4_q8>;
const strip_fn strip__nvfp4_q8 = strips<StripsNVFP4, vnni::strip__nvfp4_q8>;
const strip_fn strip__q2_k_q8 = strips<StripsQ2_K, vnni::strip__q2_k_q8>;
const strip_fn strip__q3_k_q8 = strips<StripsQ3_K, vnni::strip__q3_k_q8>;
const strip_fn strip__q4_k_q8 = strips<StripsQ4_K, vnni::strip__q4_k_q8>;
const strip_fn strip__q5_k_q8 = strips<StripsQ5_K, vnni::strip__q5_k_q8>;
const strip_fn strip__q6_k_q8 = strips<StripsQ6_K, vnni::strip__q6_k_q8>;
const strip_fn strip__iq4_xs_q8 = strips<StripsIQ4_XS, vnni::strip__iq4_xs_q8>;
const strip_fn strip__tq1_0_q8 = strips<StripsTQ1_0, vnni::strip__tq1_0_q8>;
const strip_fn strip__tq2_0_q8 = strips<StripsTQ2_0, vnni::strip__tq2_0_q8>;

}  // namespace ggml::cpu::avx512
