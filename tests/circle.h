// Which circle of tests a program runs in (tests/python/circles.py).
#pragma once

#include <cstdlib>
#include <cstring>

// Whether every combination of a test's axes runs: everywhere but in the quick circle. A program
// that is started by hand runs in full.
inline bool full_circle() {
    const char* const circle = std::getenv("PI_CIRCLE");
    return !circle || std::strcmp(circle, "test") != 0;
}

// Whether all of it runs, however long it takes: in the nightly circle, and by hand.
inline bool nightly_circle() {
    const char* const circle = std::getenv("PI_CIRCLE");
    return !circle || std::strcmp(circle, "nightly") == 0;
}
