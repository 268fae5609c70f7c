// What sessions ask of a device that has the last layers of a model.
#pragma once

#include <cstdint>

namespace powerinfer {

// Keys and values of the layers that a device has, in pages of the same classes and numbers, and
// their states, in the same slots (states.h). Runs are in the order of KvLayout (kv_layout.h),
// without gaps.
class DeviceKv {
 public:
    virtual ~DeviceKv() = default;
    virtual void copy_page(int64_t kind, int32_t from, int32_t to) = 0;
    // The first n positions of a page.
    virtual void read_page(int64_t kind, int32_t page, int64_t n, uint8_t* out) = 0;
    virtual void write_page(int64_t kind, int32_t page, int64_t n, const uint8_t* from) = 0;
    // The states of all its layers.
    virtual void read_state(int32_t slot, uint8_t* out) = 0;
    virtual void write_state(int32_t slot, const uint8_t* from) = 0;
};

}  // namespace powerinfer
