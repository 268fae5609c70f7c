#include "work.h"

double Work::share(int64_t pi_neuron_counts::*count, int layer) const {
    double some = 0, all = 0;
    for (size_t i = 0; i < by_layer.size(); i++) {
        if (layer >= 0 && i != size_t(layer)) continue;
        some += double(by_layer[i].*count);
        all += double(by_layer[i].neurons);
    }
    return all > 0 ? some / all : 0;
}

int64_t Work::total(int64_t pi_neuron_counts::*count) const {
    int64_t sum = 0;
    for (const pi_neuron_counts& layer : by_layer) sum += layer.*count;
    return sum;
}

WorkSpan::WorkSpan(Work& total, const pi_session* session, const pi_model* model)
    : total_(total), session_(session), n_layer_(size_t(pi_model_n_layer(model))), begin_(now()) {
    total_.by_layer.resize(n_layer_);
}

WorkSpan::~WorkSpan() {
    const Work end = now();
    pi_work& sum = total_.sum;
    sum.rows += end.sum.rows - begin_.sum.rows;
    sum.attention += end.sum.attention - begin_.sum.attention;
    sum.predictor += end.sum.predictor - begin_.sum.predictor;
    sum.ffn += end.sum.ffn - begin_.sum.ffn;
    sum.head += end.sum.head - begin_.sum.head;
    sum.kv += end.sum.kv - begin_.sum.kv;
    sum.transferred += end.sum.transferred - begin_.sum.transferred;
    sum.device += end.sum.device - begin_.sum.device;
    sum.answers += end.sum.answers - begin_.sum.answers;
    sum.waited_for_device_ns += end.sum.waited_for_device_ns - begin_.sum.waited_for_device_ns;
    sum.waited_for_cpu_ns += end.sum.waited_for_cpu_ns - begin_.sum.waited_for_cpu_ns;
    sum.first_needed += end.sum.first_needed - begin_.sum.first_needed;
    sum.first_missed += end.sum.first_missed - begin_.sum.first_missed;
    sum.rest_needed += end.sum.rest_needed - begin_.sum.rest_needed;
    sum.rest_missed += end.sum.rest_missed - begin_.sum.rest_missed;
    sum.storage_reads += end.sum.storage_reads - begin_.sum.storage_reads;
    sum.storage_bytes += end.sum.storage_bytes - begin_.sum.storage_bytes;
    sum.waited_for_storage_ns += end.sum.waited_for_storage_ns - begin_.sum.waited_for_storage_ns;
    sum.storage_guessed += end.sum.storage_guessed - begin_.sum.storage_guessed;
    sum.storage_guessed_right += end.sum.storage_guessed_right - begin_.sum.storage_guessed_right;
    for (size_t i = 0; i < n_layer_; i++) {
        pi_neuron_counts& to = total_.by_layer[i];
        const pi_neuron_counts &a = begin_.by_layer[i], &b = end.by_layer[i];
        to.rows += b.rows - a.rows;
        to.neurons += b.neurons - a.neurons;
        to.predicted += b.predicted - a.predicted;
        to.computed += b.computed - a.computed;
        to.fired += b.fired - a.fired;
        to.audited += b.audited - a.audited;
        to.found += b.found - a.found;
        to.device_predicted += b.device_predicted - a.device_predicted;
        to.device_computed += b.device_computed - a.device_computed;
        to.device_fired += b.device_fired - a.device_fired;
        to.storage_computed += b.storage_computed - a.storage_computed;
        to.storage_needed += b.storage_needed - a.storage_needed;
        to.storage_missed += b.storage_missed - a.storage_missed;
        to.storage_bytes += b.storage_bytes - a.storage_bytes;
        to.storage_waited_ns += b.storage_waited_ns - a.storage_waited_ns;
        to.pairs += b.pairs - a.pairs;
        to.device_pairs += b.device_pairs - a.device_pairs;
        to.storage_pairs += b.storage_pairs - a.storage_pairs;
    }
}

Work WorkSpan::now() const {
    Work work;
    work.by_layer.resize(n_layer_, sized<pi_neuron_counts>());
    // These fail only without a session or layers.
    (void)pi_session_work(session_, &work.sum);
    (void)pi_session_neurons(session_, 0, int32_t(n_layer_), work.by_layer.data());
    return work;
}
