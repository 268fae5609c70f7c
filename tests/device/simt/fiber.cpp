#include "simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace shim {

namespace {

// Kernels have small frames; sanitizers make them larger.
constexpr size_t kStack = 256 << 10;
// Where stacks begin differs between fibers: at the same place of their pages, all of them would
// share a few sets of the cache.
constexpr size_t kStagger = 448, kStaggers = 64;

#if defined(__x86_64__)

// Saves what a call must preserve on the current stack and its address at *from, and goes on where
// `to` was saved. glibc's swapcontext would also save the signal mask: two system calls a switch.
extern "C" void shim_switch(void** from, void* to);
asm(R"(
.text
.type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_switch, .-shim_switch
)");

using Place = void*;

void go(Place& from, Place& to) {
    shim_switch(&from, to);
}

#else

using Place = ucontext_t;

void go(Place& from, Place& to) {
    swapcontext(&from, &to);
}

#endif

}  // namespace

struct Fiber::Switch {
    uint8_t* memory = nullptr;  // a guard page, then the stack
    size_t bytes = 0, top = 0;  // top: where the stack begins
    Place caller, inside;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    void* caller_fake_stack = nullptr;
    const void* caller_stack = nullptr;
    size_t caller_bytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
    void* thread = nullptr;
    void* caller_thread = nullptr;
#endif
};

namespace {

#if defined(__x86_64__)
// The first frame of a fiber: shim_switch returns here with the fiber in rbx.
extern "C" void shim_enter();
asm(R"(
.text
.type shim_enter, @function
shim_enter:
    movq %rbx, %rdi
    callq *%r12
    ud2
.size shim_enter, .-shim_enter
)");
#endif

}  // namespace

Fiber::Fiber() : switch_(new Switch) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    static std::atomic<size_t> n_made{0};
    switch_->bytes = kStack + page;
    switch_->top = switch_->bytes - 64 - n_made++ % kStaggers * kStagger;
    void* memory = mmap(nullptr, switch_->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw std::bad_alloc();
    switch_->memory = static_cast<uint8_t*>(memory);
#if defined(__SANITIZE_THREAD__)
    switch_->thread = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(switch_->thread);
#endif
#if defined(__SANITIZE_ADDRESS__)
    // Functions on this stack may never have returned. Their marks would stay, also for whatever is
    // mapped at these addresses next.
    __asan_unpoison_memory_region(switch_->memory, switch_->bytes);
#endif
    munmap(switch_->memory, switch_->bytes);
    delete switch_;
}

// One place for all fibers to leave from and to come back to: the return addresses that the
// processor expects are then the right ones.
__attribute__((noinline)) void Fiber::leave(Fiber* next) {
    go(switch_->inside, next ? next->switch_->inside : switch_->caller);
}

void Fiber::hand_over([[maybe_unused]] Fiber& next) {
#if defined(__x86_64__)  // elsewhere a place cannot be copied
    next.switch_->caller = switch_->caller;
    leave(&next);
#endif
}

void Fiber::enter(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->switch_->caller_stack,
                                    &self->switch_->caller_bytes);
#endif
    self->run_(self->argument_);
    self->suspend();  // for good: start() makes the stack anew
}

void Fiber::start(void (*run)(void*), void* argument) {
    run_ = run;
    argument_ = argument;
    Switch& s = *switch_;
#if defined(__SANITIZE_ADDRESS__)
    // What a forgotten function left on the stack.
    __asan_unpoison_memory_region(s.memory, s.bytes);
#endif
#if defined(__x86_64__)
    // As shim_switch leaves a stack: six registers, then the address to return to.
    void** top = reinterpret_cast<void**>(s.memory + s.top);
    *--top = reinterpret_cast<void*>(&shim_enter);
    *--top = nullptr;                                 // rbp
    *--top = this;                                    // rbx
    *--top = reinterpret_cast<void*>(&Fiber::enter);  // r12
    *--top = nullptr;                                 // r13
    *--top = nullptr;                                 // r14
    *--top = nullptr;                                 // r15
    s.inside = top;
#else
    getcontext(&s.inside);
    s.inside.uc_stack.ss_sp = s.memory;
    s.inside.uc_stack.ss_size = s.top;
    s.inside.uc_link = nullptr;
    const auto both = uint64_t(reinterpret_cast<uintptr_t>(this));
    void (*halves)(unsigned, unsigned) = [](unsigned low, unsigned high) {
        Fiber::enter(reinterpret_cast<Fiber*>(uintptr_t(low) | uintptr_t(uint64_t(high) << 32)));
    };
    makecontext(&s.inside, reinterpret_cast<void (*)()>(halves), 2, unsigned(both),
                unsigned(both >> 32));
#endif
}

void Fiber::resume() {
    Switch& s = *switch_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&s.caller_fake_stack, s.memory, s.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    s.caller_thread = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s.thread, 0);
#endif
    go(s.caller, s.inside);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(s.caller_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
    [[maybe_unused]] Switch& s = *switch_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&s.fake_stack, s.caller_stack, s.caller_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(s.caller_thread, 0);
#endif
    // Under the thread sanitizer no function may begin in one fiber and end in another.
    if constexpr (kHandsOver) {
        leave(nullptr);
    } else {
        go(s.inside, s.caller);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(s.fake_stack, &s.caller_stack, &s.caller_bytes);
#endif
}

}  // namespace shim
