// Checks in a child of fork(). The thread sanitizer ends a child that starts threads, and Windows
// has no fork().
#pragma once

#if !defined(__SANITIZE_THREAD__) && !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ggml/check.h"

// Is `body` true in a child of fork()? A child that hangs is killed after a while.
template <typename F>
bool in_child(const F& body) {
    // A thread that is just beginning holds locks of the address sanitizer.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(body() && check::failures == 0 ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
#endif
