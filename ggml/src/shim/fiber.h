// A function that can be suspended anywhere: one thread of a block of the shim.
#pragma once

#include <cstddef>

namespace shim {

// A stack of its own, on which one function after the other runs. All fibers of a block run on one
// thread of the system, one at a time.
class Fiber {
 public:
    Fiber();
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // The next resume() calls run(argument), which must not throw. A function that was suspended
    // and never finished is forgotten: nothing on its stack is destroyed.
    void start(void (*run)(void*), void* argument);
    // Runs the function until it suspends or ends. True when it has ended.
    bool resume();
    // Called by the running function: returns from the latest resume().
    void suspend();

 private:
    struct Switch;  // what differs between processors and sanitizers
    static void enter(Fiber* self);

    Switch* switch_;
    void (*run_)(void*) = nullptr;
    void* argument_ = nullptr;
    bool done_ = true;
};

}  // namespace shim
