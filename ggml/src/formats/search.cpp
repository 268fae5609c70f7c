// Searches for scales and mins together: two unknowns per group.
#include "search.h"

#include <algorithm>

namespace ggml {

namespace {

// Weighted sums over a group or a block, and the best pair (scale, min) for them.
struct MinFit {
    float w = 0, q = 0, qq = 0, x = 0, xq = 0, xx = 0;
    float scale = 0, min = 0;

    void solve(bool positive) {
        const float det = w * qq - q * q;
        scale = min = 0;
        if (det > 0) {
            scale = (w * xq - x * q) / det;
            min = (q * xq - qq * x) / det;
        }
        if (!(det > 0) || (positive && min < 0)) {
            min = 0;
            scale = qq > 0 ? xq / qq : 0;
        }
    }
    double error() const {
        const double s = scale, m = min;
        return double(xx) - 2 * s * xq + 2 * m * x + s * s * qq - 2 * s * m * q + m * m * w;
    }
};

MinFit fit_min(const float* x, const float* w, int n, float low, float inverse, float top,
               bool positive) {
    float s[6][4] = {};
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) {
            const float v = x[i + j], q = nearest((v - low) * inverse, 0, top);
            const float wq = w[i + j] * q, wx = w[i + j] * v;
            s[0][j] += w[i + j];
            s[1][j] += wq;
            s[2][j] += wq * q;
            s[3][j] += wx;
            s[4][j] += wq * v;
            s[5][j] += wx * v;
        }
    }
    float t[6];
    for (int k = 0; k < 6; k++) t[k] = s[k][0] + s[k][1] + s[k][2] + s[k][3];
    MinFit fit{t[0], t[1], t[2], t[3], t[4], t[5]};
    fit.solve(positive);
    return fit;
}

}  // namespace

void search_group(const float* x, const float* w, int n, float top, bool positive, float* scale,
                  float* min) {
    float low = *std::min_element(x, x + n);
    const float high = *std::max_element(x, x + n);
    if (positive) low = std::min(0.0f, low);
    *scale = 0;
    *min = -low;
    if (!(high > low)) return;  // all values are equal (and not positive)
    double least = INFINITY;
    for (int trial = -10; trial <= 10; trial++) {
        const float inverse = (top + 0.1f * float(trial)) / (high - low);
        if (!(inverse > 0) || !std::isfinite(inverse)) continue;
        const MinFit fit = fit_min(x, w, n, low, inverse, top, positive);
        const double error = fit.error();
        if (error < least) least = error, *scale = fit.scale, *min = fit.min;
    }
}

namespace {

float error_at(const float* x, const float* w, int n, float scale, float min, float top) {
    const float inverse = scale > 0 ? 1 / scale : 0;
    float sum[4] = {};
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) {
            const float v = x[i + j] + min;
            const float e = v - scale * nearest(v * inverse, 0, top);
            sum[j] += w[i + j] * e * e;
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

float as_half(float v, f16_t* half) {
    *half = f32_to_f16(v);
    return f16_to_f32(*half);
}

// v / unit rounded to an integer in 0..levels.
float units(float v, float unit, float levels) {
    return unit > 0 ? nearest(v / unit, 0, levels) : 0.0f;
}

}  // namespace

void search_block_min(const float* x, const float* importance, int size, int levels, float top,
                      Codes& out) {
    const int groups = kQK / size;
    const float most = float(levels);
    float w[kQK], scale[kQK / 16], min[kQK / 16], d = 0, dmin = 0;
    out = Codes();
    if (extreme(x, kQK) == 0) return;
    error_weights(x, importance, size, groups, w);
    for (int g = 0; g < groups; g++) {
        search_group(x + g * size, w + g * size, size, top, true, &scale[g], &min[g]);
        d = std::max(d, scale[g] / most);
        dmin = std::max(dmin, min[g] / most);
    }
    float least = INFINITY;
    for (int pass = 0; pass < 3; pass++) {
        f16_t half, half_min;
        d = as_half(d, &half);
        dmin = as_half(dmin, &half_min);
        if (!std::isfinite(d) || !std::isfinite(dmin)) return;
        float total = 0;
        int choice[kQK / 16] = {}, choice_min[kQK / 16] = {};
        for (int g = 0; g < groups; g++) {
            const float middle = units(scale[g], d, most), middle_min = units(min[g], dmin, most);
            float lowest = INFINITY;
            for (int k = 0; k < 9; k++) {
                const float s = nearest(middle + float(k % 3 - 1), 0, most);
                const float m = nearest(middle_min + float(k / 3 - 1), 0, most);
                const float e = error_at(x + g * size, w + g * size, size, d * s, dmin * m, top);
                if (e < lowest) lowest = e, choice[g] = int(s), choice_min[g] = int(m);
            }
            total += lowest;
        }
        if (!(total < least)) return;
        least = total;
        out.d = half;
        out.dmin = half_min;
        // The best d and dmin for these codes: again two unknowns, over the whole block.
        double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
        for (int g = 0; g < groups; g++) {
            out.scale[g] = choice[g];
            out.min[g] = choice_min[g];
            const float s = d * float(choice[g]), m = dmin * float(choice_min[g]);
            for (int i = g * size; i < (g + 1) * size; i++) {
                const float q = nearest((x[i] + m) * (s > 0 ? 1 / s : 0), 0, top);
                out.q[i] = int8_t(q);
                const double a = double(choice[g]) * q, b = -double(choice_min[g]), wi = w[i];
                aa += wi * a * a, ab += wi * a * b, bb += wi * b * b;
                ax += wi * a * x[i], bx += wi * b * x[i];
            }
        }
        const double det = aa * bb - ab * ab;
        if (det > 1e-9 * aa * bb) {
            d = std::max(0.0f, float((ax * bb - bx * ab) / det));
            dmin = std::max(0.0f, float((bx * aa - ax * ab) / det));
        } else if (aa > 0) {
            d = std::max(0.0f, float(ax / aa));
        }
    }
}

}  // namespace ggml
