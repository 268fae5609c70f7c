// How weights of values in blocks become integers, in attention on the CPU and on devices.
#pragma once

namespace ggml {

// Weights are multiplied as integers up to this, in two bytes of seven bits: instructions that
// multiply bytes add two products of seven and eight bits in 16 bits.
constexpr int kWeightBits = 7;
constexpr float kMostWeight = 16383;

}  // namespace ggml
