// Mixtures of experts over a device, RAM and the disk, against the CPU alone: any budgets, whatever
// the device has of them when a row comes, while experts move.
#include <algorithm>

#include "circle.h"
#include "device/expert_frames.h"
#include "forward/device_forward.h"
#include "gpu/splits.h"

using namespace splits;

namespace {

constexpr uint64_t kNoLimit = uint64_t(1) << 40;

std::string written(const Shape& shape, const char* name = "mixture.gguf") {
    const std::string path = folder / name;
    tiny::write(tiny::describe(shape), path);
    return path;
}

// A prompt in two calls, and generated tokens, one by one and several at once.
Floats answer(Session& session, uint32_t seed = 3) {
    session.truncate(0, 0);
    const Tokens tokens = random_tokens(20, seed);
    Floats out;
    const auto rows = [&](size_t begin, size_t end, bool generated) {
        append_rows(session, tokens, begin, end, generated, out);
    };
    rows(0, 7, false);
    rows(7, 9, false);
    for (size_t i = 9; i < 16; i++) rows(i, i + 1, true);
    rows(16, 20, true);
    return out;
}

// What was planned is what is there; every use of an expert was counted.
void check_counts(const Session& session, int64_t rows = 20) {
    const Model& m = *session.model;
    const Plan plan = make_plan(m, session.params);
    const ggml::Device& device = *m.device->device;
    CHECK(device.allocated_bytes() + device.context_bytes() == total(plan.parts, Tier::gpu));
    for (const FeedForward* part : m.ffns) {
        const ggml::NeuronCounts& all = session.counts.neurons[size_t(part->index)];
        CHECK(all.rows == rows * part->n_used && all.computed == all.rows * part->n_ff);
        const ggml::NeuronCounts& there = session.counts.on_device[size_t(part->index)];
        CHECK(there.rows <= all.rows && there.computed == there.rows * part->n_ff);
    }
}

// At three budgets: the least, one that splits the experts, and everything.
void test_bits(DType type) {
    const std::string path = written(mixture(type));
    pi_session_params params = session_params();
    // Heads of a multiple of 32 values have keys and values in blocks.
    const bool blocks = info(type).block == 256;
    params.type_k = params.type_v = uint32_t(blocks ? DType::Q8_0 : DType::F16);
    Floats expected;
    {
        Session cpu(load(path), params);
        expected = answer(cpu);
    }
    const Range range = budgets(path, params);
    for (double share : {0.0, 0.55, 1.0}) {
        const uint64_t budget = range.least + uint64_t(share * double(range.most - range.least));
        const auto model = load_on(path, budget, params);
        CHECK(model->device_layers() > 0);
        const ExpertFrames& experts = *model->device->experts;
        const int64_t n = experts.n_here();
        CHECK(share < 1 || n == model->n_blocks());
        auto session = std::make_unique<Session>(model, params);
        const Floats got = answer(*session);
        const double apart = distance(got, expected);
        if (!same(got, expected))
            std::fprintf(stderr, "%s %g: %g\n", info(type).name, share, apart);
        CHECK(apart < 2e-2);
        check_counts(*session);
        // The same once more, with other experts there; step by step, and with other threads.
        CHECK(same(answer(*session), got));
        CHECK(same(answer(*session), got));
        session.reset();  // the budget is for one
        pi_session_params other = params;
        other.stepwise = true;
        other.n_threads = other.n_threads_batch = 3;
        Session stepwise(model, other);
        answer(stepwise, 11);
        CHECK(same(answer(stepwise), got));
    }
}

// Experts in neuron rows, with and without neurons that do not fire: the CPU's bits, and its
// counts.
Shape in_rows(DType type, const char* activation = "relu") {
    Shape s = mixture(type);
    s.down_t = true, s.activation = activation;
    if (info(type).block > 1) s.n_embd = 256, s.head_dim = 64;
    return s;
}

void test_rows(const Shape& shape, int32_t sparse = PI_SPARSE_AUTO) {
    const std::string path = written(shape);
    pi_session_params params = session_params();
    params.sparse = sparse;
    const Tokens prompt = random_tokens(60, 8);
    Floats expected, prompted;
    std::vector<ggml::NeuronCounts> counts;
    {
        Session cpu(load(path), params);
        expected = answer(cpu);
        counts = cpu.counts.neurons;
        cpu.truncate(0, 0);
        prompted = logits(cpu, prompt);
    }
    const Range range = budgets(path, params);
    const FrameShape frames = Model::inspect(path, on_device(1 << 30, params))->device->frames;
    const uint64_t room = 2 * kVisitors * frames.largest_frame() + 4096;
    for (double share : {0.0, 0.55, 1.0}) {
        const uint64_t budget = range.least + uint64_t(share * double(range.most - range.least));
        for (bool visits : {false, true}) {
            const auto model = load_on(path, visits ? budget + room : budget, params, -1, visits);
            CHECK(model->device_layers() > 0);
            CHECK(share < 1 || model->device->experts->n_here() == model->n_blocks());
            for (int32_t threads : {1, 3}) {
                pi_session_params other = params;
                other.stepwise = threads == 3;
                other.n_threads = other.n_threads_batch = threads;
                Session session(model, other);
                const Floats got = answer(session);
                int64_t rows = 0, on_device = 0;
                if (!same(got, expected)) {
                    std::fprintf(stderr, "%s %s %g %d: %g\n", info(shape.type).name,
                                 shape.activation.c_str(), share, visits, distance(got, expected));
                }
                CHECK(same(got, expected));
                for (size_t i = 0; i < counts.size(); i++) {
                    const ggml::NeuronCounts &all = session.counts.neurons[i],
                                             &there = session.counts.on_device[i];
                    CHECK(all.rows == counts[i].rows && all.proposed == counts[i].proposed &&
                          all.computed == counts[i].computed && all.fired == counts[i].fired);
                    CHECK(there.rows <= all.rows && there.proposed == there.rows * shape.n_ff);
                    rows += all.rows;
                    on_device += there.rows;
                }
                CHECK(share == 1 ? on_device == rows : on_device < rows);
                CHECK(share == 0 || on_device > rows / 4);
                session.truncate(0, 0);
                CHECK(same(logits(session, prompt), prompted));
                CHECK(same(answer(session), expected));
            }
        }
    }
}

// Neurons that stay on the disk are the CPU's: then the device has the other parts of the layers.
void test_rows_on_disk() {
    Shape shape = in_rows(DType::F16);
    shape.n_ff = 512;
    const std::string path = written(shape);
    const pi_session_params params = session_params();
    Floats expected;
    {
        Session cpu(load(path), params);
        expected = answer(cpu);
    }
    const Range range = budgets(path, params);
    pi_model_params how = on_device(range.most, params);
    how.ram_budget = 1;
    const auto tight = Model::inspect(path, how);
    CHECK(tight->storage && !tight->storage->experts && tight->device);
    if (!tight->storage) return;
    how.ram_budget = tight->storage->least;
    const auto model = Model::load(path, how);
    CHECK(model->storage && model->device_layers() == shape.n_layer);
    CHECK(model->device->frames.card.frames() == 0);
    Session session(model, params);
    for (int i = 0; i < 2; i++) CHECK(same(answer(session), expected));
    const Plan plan = make_plan(*model, params);
    const ggml::Device& device = *model->device->device;
    CHECK(device.allocated_bytes() + device.context_bytes() == total(plan.parts, Tier::gpu));
}

// Long prompts bring the experts to the device that it lacks, short ones do not: the same bits.
void test_visits(DType type) {
    const std::string path = written(mixture(type));
    const pi_session_params params = session_params();
    const Tokens tokens = random_tokens(90, 8);
    Floats expected;
    {
        Session cpu(load(path), params);
        expected = logits(cpu, tokens);
    }
    pi_model_params how = on_device(0, params);
    how.op_offload = true;
    how.vram_budget = 1 << 30;
    const uint64_t most = total(make_plan(*Model::inspect(path, how), params).parts, Tier::gpu);
    for (double missing : {0.2, 0.9}) {
        const uint64_t frames = Model::inspect(path, how)->device->frames.frames_bytes();
        how.vram_budget = most - uint64_t(missing * double(frames));
        const auto model = Model::load(path, how);
        CHECK(model->device->experts->can_visit());
        CHECK(model->device->experts->n_here() < model->n_blocks());
        for (size_t at_once : {90, 33, 7}) {
            Session session(model, params);
            CHECK(same(logits(session, tokens, at_once), expected));
            const ggml::NeuronCounts &all_of = session.counts.neurons[1],
                                     &there = session.counts.on_device[1];
            CHECK((there.rows == all_of.rows) == (at_once > 7));
        }
        how.vram_budget = 1 << 30;
    }
}

// One frame less than there are experts: the last one comes, in the place of any other.
void test_one_missing() {
    const std::string path = written(mixture(DType::F16));
    const pi_session_params params = session_params();
    const auto all = load_on(path, 1 << 28, params);
    const uint64_t most = total(make_plan(*all, params).parts, Tier::gpu);
    const auto model = load_on(path, most - 600, params);
    CHECK(model->device->frames.card.frames() == model->n_blocks() - 1);
    Session session(model, params), cpu(load(path), params);
    for (uint32_t seed = 0; seed < 4; seed++) {
        CHECK(same(answer(session, seed), answer(cpu, seed)));
    }
    CHECK(model->device->experts->copies() > 0);
}

// Steps of several rows, as of several texts or of guesses, move experts as single rows do.
void test_rows_by_pairs() {
    const std::string path = written(mixture(DType::F16));
    const pi_session_params params = session_params();
    const Range range = budgets(path, params);
    const auto model = load_on(path, (range.least + range.most) / 2, params);
    Session session(model, params), cpu(load(path), params);
    const Tokens tokens = random_tokens(40, 6);
    Floats got, expected;
    for (size_t i = 0; i < tokens.size(); i += 2) {
        append_rows(session, tokens, i, i + 2, true, got);
        append_rows(cpu, tokens, i, i + 2, true, expected);
    }
    CHECK(same(got, expected));
    CHECK(model->device->experts->copies() > 0);
}

// Experts in a format that the device has no products for stay with the CPU, in all layers or one:
// attention of their layers is on the device.
void test_other_formats() {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal(0, 0.05f);
    for (const char* of : {"blk.", "blk.1."}) {
        const Shape shape = mixture(DType::Q4_K);
        Description d = tiny::describe(shape);
        for (tiny::Tensor& t : d.tensors) {
            if (t.name.find("_exps.") == t.name.npos || t.name.find(of) != 0) continue;
            t.type = DType::IQ2_XXS;
            Floats values(size_t(t.ne[0] * t.ne[1] * t.ne[2]));
            for (float& v : values) v = normal(rng);
            t.bytes = ggml::random_blocks(t.type, values);
        }
        const std::string path = folder / "other.gguf";
        tiny::write(d, path);
        const pi_session_params params = session_params();
        Floats expected;
        {
            Session cpu(load(path), params);
            expected = answer(cpu);
            cpu.truncate(0, 0);
            const Floats all = logits(cpu, random_tokens(60, 8));
            expected.insert(expected.end(), all.begin(), all.end());
        }
        const auto model = load_on(path, 1 << 28, params, -1, true);
        CHECK(model->device && model->device_layers() == shape.n_layer);
        Session session(model, params);
        Floats got = answer(session);
        session.truncate(0, 0);
        const Floats all = logits(session, random_tokens(60, 8));
        got.insert(got.end(), all.begin(), all.end());
        CHECK(same(got, expected));
        CHECK(session.counts.on_device[1].rows == 0);
    }
}

// RAM and VRAM of a model whose experts are on three tiers.
struct Budgets {
    Budgets(const std::string& path, const pi_session_params& session, double hot) {
        const Range range = budgets(path, session);
        params = on_device(range.least + uint64_t(hot * double(range.most - range.least)), session);
        params.ram_budget = kNoLimit;
        for (const PlanPart& p : make_plan(*Model::inspect(path, params), session).parts)
            all += p.tier == Tier::ram ? p.bytes : 0;
        params.ram_budget = 1;
        const auto model = Model::inspect(path, params);
        CHECK(model->storage && model->storage->experts);
        if (model->storage) least = model->storage->least;
    }
    pi_model_params params;
    uint64_t all = 0, least = 0;  // bytes of RAM
};

// The same bits with the disk as the third tier; also when it fails in the midst of a token.
void test_disk(DType type) {
    Shape shape = mixture(type);
    shape.n_expert = 32, shape.n_ff = 512;
    const std::string path = written(shape);
    pi_session_params params = session_params(2, 20);
    params.n_batch = 20;
    Floats expected;
    {
        Session cpu(load(path), params);
        expected = answer(cpu);
    }
    for (double hot : {0.1, 0.6}) {
        Budgets b(path, params, hot);
        CHECK(b.least > 0 && b.least < b.all);
        for (double part : {0.0, 0.6}) {
            b.params.ram_budget = b.least + uint64_t(part * double(b.all - 1 - b.least));
            const auto model = Model::load(path, b.params);
            CHECK(model->experts && model->device && model->device->experts);
            if (!model->experts || !model->device) continue;
            Session session(model, params);
            const Floats got = answer(session);
            CHECK(same(got, expected));
            for (int i = 0; i < 3; i++) CHECK(same(answer(session), expected));
            check_counts(session, 4 * 20);
            const Plan plan = make_plan(*model, params);
            CHECK(total(plan.parts, Tier::ram) <= b.params.ram_budget);
            CHECK(total(plan.parts, Tier::gpu) <= b.params.vram_budget);
        }
        b.params.ram_budget = b.least - 1;
        CHECK_THROWS(memory, Model::load(path, b.params));
    }
}

}  // namespace

// With the arguments "only bits": one type, without the disk.
int main(int argc, char** argv) {
    if (argc > 1 && std::string(argv[1]) == "rows") {
        for (DType type : {DType::F16, DType::Q4_0, DType::Q8_0}) test_rows(in_rows(type));
        test_rows(in_rows(DType::F16, "silu"));
        test_rows_on_disk();
        return check::summary("test_mixture");
    }
    if (argc > 1) {
        test_bits(DType::Q4_K);
        return check::summary("test_mixture");
    }
    // In the quick circle types with one kind of sum each.
    for (DType type : {DType::F16, DType::Q4_K, DType::MXFP4, DType::F32, DType::Q8_0, DType::Q4_0,
                       DType::Q6_K, DType::NVFP4}) {
        if (!full_circle() && type == DType::F32) break;
        test_bits(type);
    }
    for (DType type :
         {DType::F16, DType::Q4_0, DType::Q8_0, DType::F32, DType::MXFP4, DType::NVFP4}) {
        if (!full_circle() && type == DType::F32) break;
        test_rows(in_rows(type));
    }
    test_rows(in_rows(DType::F16, "silu"));
    test_rows_on_disk();
    test_other_formats();
    test_one_missing();
    test_rows_by_pairs();
    test_visits(DType::Q4_0);
    if (full_circle()) test_visits(DType::F16);
    test_disk(DType::Q4_0);
    if (full_circle()) test_disk(DType::F16);
    return check::summary("test_mixture");
}
