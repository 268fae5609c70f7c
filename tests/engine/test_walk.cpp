// The walk over a layer's parts: which steps it calls, in which order, and on which rows.
#include <cstdio>
#include <string>

#include "forward/walk.h"
#include "ggml/check.h"

using namespace powerinfer;

namespace {

// Writes down what it is told. Rows have names: the stream x, and two rooms for results.
struct Told {
    using Rows = const char*;
    std::string log;

    void say(const std::string& what) { log += (log.empty() ? "" : ", ") + what; }
    void begin(const LayerPart&) {}
    void read(const LayerPart& part) {
        say(part.mix ? "read mixed" : part.norm ? "read norm" : "read");
    }
    Rows stream() { return "x"; }
    Rows room(bool waits) { return waits ? "b" : "a"; }
    void route(const Router&, const FeedForward& experts, size_t) {
        say("route to " + std::to_string(experts.n_ff));
    }
    void feed(const FeedForward& f, Rows y, const FeedForward* beside, Rows y_beside) {
        say(y + (" = ffn " + std::to_string(f.n_ff)));
        if (beside) say(y_beside + (" = ffn " + std::to_string(beside->n_ff)) + " beside");
    }
    void compute(const Attention&, Rows y) { say(y + std::string(" = attention")); }
    void compute(const LayerEmbedding&, Rows y) { say(y + std::string(" = embedding")); }
    template <typename T>
    void compute(const T&, Rows y) {
        say(y + std::string(" = state"));
    }
    void norm(Rows y, const NormWeights&) { say(std::string("norm ") + y); }
    void scale(Rows y, float) { say(std::string("scale ") + y); }
    void scale_stream(const float*) { scale(stream(), 0); }
    void add(Rows to, Rows y) { say(std::string(to) + " += " + y); }
};

LayerPart part_with(decltype(LayerPart::op) op, bool normed = true) {
    LayerPart part;
    part.op = std::move(op);
    if (normed) part.norm.emplace();
    return part;
}

LayerPart ffn(int64_t n_ff, int64_t n_used = 0, bool neurons = false) {
    FeedForward f;
    f.n_ff = n_ff;
    f.n_used = n_used;
    f.blocks.resize(n_used ? 8 : 1);
    if (neurons) f.blocks[0].neurons.n = n_ff;
    return part_with(std::move(f));
}

LayerPart as_before(LayerPart part) {
    part.norm.reset();
    part.input = LayerPart::Input::as_before;
    return part;
}

LayerPart waiting(LayerPart part) {
    part.add = LayerPart::Add::with_next;
    return part;
}

std::string walked(const Layer& layer) {
    Told told;
    walk(layer, told);
    return told.log;
}

void check(const Layer& layer, const std::string& expected) {
    const std::string log = walked(layer);
    CHECK(log == expected);
    if (log != expected) {
        std::fprintf(stderr, "got  %s\nwant %s\n", log.c_str(), expected.c_str());
    }
}

void test_one_after_the_other() {
    Layer layer;
    layer.parts.push_back(part_with(Attention()));
    LayerPart last = ffn(64);
    last.post_norm.emplace();
    last.scale = 0.5f;
    layer.parts.push_back(last);
    const float scale = 2;
    layer.scale = &scale;
    check(layer,
          "read norm, a = attention, x += a, read norm, a = ffn 64, norm a, scale a, x += a, "
          "scale x");
}

// As in BERT, the stream has a norm behind each part; and as in Jina's model of code, what
// attention gives has one together with the stream before that.
void test_norms_of_the_stream() {
    Layer layer;
    layer.parts.push_back(part_with(Attention(), false));
    layer.parts.push_back(ffn(64));
    layer.parts.back().norm.reset();
    for (LayerPart& part : layer.parts) part.stream_norm.emplace();
    check(layer, "read, a = attention, x += a, norm x, read, a = ffn 64, x += a, norm x");
    layer.parts[0].post_norm.emplace();
    layer.parts[0].norms_sum = true;
    check(layer,
          "read, a = attention, a += x, norm a, x += a, norm x, read, a = ffn 64, x += a, norm x");
}

// Both are added to the stream, in their order; with a norm of their sum, that.
void test_side_by_side() {
    Layer layer;
    layer.parts.push_back(waiting(part_with(Attention())));
    layer.parts.push_back(as_before(ffn(64)));
    check(layer, "read norm, a = attention, b = ffn 64, x += a, x += b");
    layer.parts.back().sum_norm.emplace();
    check(layer, "read norm, a = attention, b = ffn 64, a += b, norm a, x += a");
    // Three of them: the first two wait together.
    layer.parts.pop_back();
    layer.parts.push_back(waiting(as_before(part_with(Mamba2()))));
    layer.parts.push_back(ffn(64));
    check(layer,
          "read norm, a = attention, b = state, a += b, read norm, b = ffn 64, x += a, "
          "x += b");
}

// Experts and the block beside them are computed together, if both are matrices and the experts'
// result waits for that of the block.
void test_mixtures() {
    Layer layer;
    layer.parts.push_back(part_with(Router()));
    layer.parts.push_back(waiting(as_before(ffn(32, 2))));
    layer.parts.push_back(as_before(ffn(96)));
    check(layer, "read norm, route to 32, a = ffn 32, b = ffn 96 beside, x += a, x += b");
    layer.parts[1].add = LayerPart::Add::now;
    check(layer, "read norm, route to 32, a = ffn 32, x += a, a = ffn 96, x += a");
    layer.parts[1] = waiting(as_before(ffn(32, 2, true)));
    check(layer, "read norm, route to 32, a = ffn 32, b = ffn 96, x += a, x += b");
    // Not in whole blocks of 32 values; and a block that reads the stream.
    layer.parts[1] = waiting(as_before(ffn(40, 2)));
    check(layer, "read norm, route to 40, a = ffn 40, b = ffn 96, x += a, x += b");
    layer.parts[1] = waiting(as_before(ffn(32, 2)));
    layer.parts[2] = ffn(96);
    check(layer, "read norm, route to 32, a = ffn 32, read norm, b = ffn 96, x += a, x += b");
    // A router long before its experts; and one without any.
    layer.parts.clear();
    layer.parts.push_back(part_with(Router(), false));
    layer.parts.push_back(part_with(Attention()));
    layer.parts.push_back(ffn(32, 2));
    check(layer,
          "read, route to 32, read norm, a = attention, x += a, read norm, a = ffn 32, "
          "x += a");
    layer.parts.pop_back();
    CHECK_THROWS(internal, walked(layer));
}

}  // namespace

int main() {
    test_one_after_the_other();
    test_norms_of_the_stream();
    test_side_by_side();
    test_mixtures();
    return check::summary("test_walk");
}
