// What a device that only takes time stands for. The id is "timed:" and a list of key=value, each
// key once; keys are the members' names, units are seconds and bytes.
#pragma once

#include <string>
#include <vector>

namespace ggml::timed {

struct Config {
    double memory = 24e9;  // bytes that may be allocated
    double bandwidth = 0;  // bytes per second at which kernels read weights and cache; 0: no time
    double link = 0;       // bytes per second between host and device; 0: no time
    double node = 0;       // a kernel, besides its bytes
    double launch = 0;     // of a graph
    double flag = 0;       // a flag's way from one side to the other
    double proposed = 1;   // neurons that a predictor asks for, per firing
    double fired = 1;      // share of these that fire
    double level = 0;      // what stands in columns 32 to 63 of an FFN's input
    double skew = 0.5;     // experts: that of rank r is chosen in proportion to 1 / (1 + r)^skew
    std::string rates;     // file of float32 [layers][neurons]: how often each neuron fires
    std::vector<float> rate;  // its contents

    // Throws Error(device) naming what is wrong, and the errors of reading the file.
    static Config parse(const std::string& id);
};

}  // namespace ggml::timed
