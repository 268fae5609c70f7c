// Products of strips with several tokens (strips.h); vnni has the others.
#include "kernels/avx512/strip_formats.h"
#include "kernels/avx512/strips.h"

namespace ggml::cpu::avx512 {

#define STRIP(Format, name) \
    const strip_fn strip__##name##_q8 = strips<Strips##Format, vnni::strip__##name##_q8>;
STRIP(Q8_0, q8_0)
STRIP(Q4_0, q4_0)
STRIP(Q4_1, q4_1)
STRIP(Q5_0, q5_0)
STRIP(Q5_1, q5_1)
STRIP(IQ4_NL, iq4_nl)
STRIP(MXFP4, mxfp4)
STRIP(Q2_K, q2_k)
STRIP(Q3_K, q3_k)
STRIP(Q4_K, q4_k)
STRIP(Q5_K, q5_k)
STRIP(Q6_K, q6_k)
STRIP(IQ4_XS, iq4_xs)
STRIP(TQ1_0, tq1_0)
STRIP(TQ2_0, tq2_0)

}  // namespace ggml::cpu::avx512
