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
    // Runs the function until it, or another that it handed over to, suspends or ends.
    void resume();
    // Called by the running function: returns from the latest resume().
    void suspend();
    // Called by the running function: suspends it and goes on with `next`, which was started. Much
    // faster than by way of resume(), whose callers' return addresses no processor predicts.
    void hand_over(Fiber& next);
    // Whether this build can.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    static constexpr bool kHandsOver = true;
#else
    static constexpr bool kHandsOver = false;
#endif

 private:
    struct Switch;  // what differs between processors and sanitizers
    static void enter(Fiber* self);
    void leave(Fiber* next);  // to its caller, if there is none

    Switch* switch_;
    void (*run_)(void*) = nullptr;
    void* argument_ = nullptr;
};

}  // namespace shim
