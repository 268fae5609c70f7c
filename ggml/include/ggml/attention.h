// Keys and values of a layer, and causal attention over them.
#pragma once

#include <vector>

#include "ggml/ops.h"

namespace ggml {

// Keys and values of one layer, in pages of kKvPage positions. A page has a run of keys and a run
// of values for each of n_head_kv heads: those of page p begin at k and v + p * page_stride.
//
// Keys lie so that a processor's lanes are positions: floats as [head_dim][kKvPage], blocks as
// kKvPage / 8 strips of eight positions (pack_strip). Values lie so that lanes are columns: floats
// as rows, one for each position: [kKvPage][v_head_dim], blocks as codes by fours of positions, and
// then scales (kernels/value_blocks.h). A device has rows of both. If v is null there are no values
// beside the keys: a value is the first v_head_dim values of its key, as in attention over latents.
constexpr int64_t kKvPage = 64;
constexpr int64_t kAttentionBlock = 256;  // positions whose sums are merged in order
struct KvLayer {
    DType type;  // F16, F32 or Q8_0
    int64_t n_head_kv, head_dim, v_head_dim;
    uint8_t *k, *v;
    int64_t page_stride;  // bytes

    // Bytes of one head, for one position and for one page.
    int64_t key_bytes() const { return info(type).size(head_dim); }
    int64_t value_bytes() const { return info(type).size(v_head_dim); }
    int64_t key_run() const { return kKvPage * key_bytes(); }
    int64_t value_run() const { return kKvPage * value_bytes(); }
};
// The place of a row's keys and values: position `at` of a page.
struct KvSlot {
    int32_t page;
    int32_t at;
};
// Stores the keys and values of n rows, [n, n_head_kv * head_dim] and [n, n_head_kv * v_head_dim].
// v may be null where the layer's is.
void store_kv(Context& context, const KvLayer& layer, const KvSlot* slots, int64_t n,
              const float* k, const float* v);

// Copies the first n positions of a run of keys to rows [n][head_dim] of the same type, and back.
void keys_to_rows(DType type, int64_t head_dim, const uint8_t* run, int64_t n, uint8_t* rows);
void rows_to_keys(DType type, int64_t head_dim, const uint8_t* rows, int64_t n, uint8_t* run);
// The same for values.
void values_to_rows(DType type, int64_t head_dim, const uint8_t* run, int64_t n, uint8_t* rows);
void rows_to_values(DType type, int64_t head_dim, const uint8_t* rows, int64_t n, uint8_t* run);
// Makes a run of values from the first v_head_dim values of the keys of a run.
void keys_to_values(DType type, int64_t head_dim, int64_t v_head_dim, const uint8_t* keys,
                    uint8_t* values);

// A row sees the positions [first, end) of its sequence; pages[i] holds the 64 positions from 64 i
// on.
struct AttentionRow {
    const int32_t* pages;
    int64_t first, end;
    int64_t at = 0;  // its own position, which distances are counted from (AttentionScores::bias)
};
// What becomes of the product of a query and a key before the softmax: it is multiplied by `scale`,
// and then, if softcap is not 0, becomes softcap * tanh(product / softcap). Sinks are scores of
// nothing: a head's one joins its softmax, so that the weights of its values sum to less than 1.
//
// A bias by distance is added to each product behind its scale, where there is no softcap: of head
// h and a position that is d behind the row, bias[h * (2 farthest + 1) + farthest + d]. Null: none.
struct AttentionScores {
    float scale;
    float softcap = 0;
    const float* sinks = nullptr;  // [n_head] or null
    const float* bias = nullptr;   // [n_head, 2 farthest + 1]
    int64_t farthest = 0;
};

// The softmax and the weighted values of some positions, for several queries: top[i] is the largest
// score of query i, sum[i] the sum of e^(score - top), values[i] [v_head_dim] that of the values
// with these weights.
struct AttentionSums {
    float* top;
    float* sum;
    float* values;
};

struct AttentionTile;  // adjacent queries that go over keys and values together

// The most that a layer of several has: heads, and values of a key, of a value and of all heads'
// results.
struct AttentionSizes {
    int64_t n_head, head_dim, v_head_dim, out_dim;
    int64_t value_run = 0;  // bytes, where values are those of keys
};
// Room for attention with `threads` threads, over up to max_rows rows that see up to n_positions
// positions.
struct AttentionScratch {
    AttentionScratch() = default;
    AttentionScratch(Carver& carver, int threads, int64_t max_rows, int64_t n_positions,
                     const AttentionSizes& most);

    // For one thread: the queries of a tile as floats and in 8 bits, their scores, their sums over
    // a block of positions and over all blocks, and values that keys hold.
    struct Thread {
        float *q, *scores;
        Q8Rows q8;
        AttentionSums block, all;
        uint8_t* values;
    };
    std::vector<Thread> threads;
    AttentionTile* tiles = nullptr;  // [max_tiles]
    int64_t max_tiles = 0;
    // For a few rows, whose blocks are computed in any order: sums of max_sums queries and blocks.
    AttentionSums blocks = {};
    int64_t max_sums = 0, max_values = 0;
};

// Attention of queries to cached keys and values, with grouped heads (GQA, arXiv 2305.13245).
// Adjacent rows of a sequence share the reading of keys and values; the bits of a row do not depend
// on what rows are beside it. q: [n_rows, n_head * head_dim]; out: [n_rows, n_head * v_head_dim].
void attention(Context& context, const KvLayer& layer, int64_t n_head, AttentionScores scores,
               const AttentionRow* rows, int64_t n_rows, const float* q,
               const AttentionScratch& scratch, float* out);

}  // namespace ggml
