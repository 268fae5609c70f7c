// Preloaded into a program, disturbs it at a chosen step, as disturbed.py does with Python: for
// tests of kills and full disks.
//
// A step is a system call about a file that is being written (*.part). Steps are counted from 0 and
// written to DISTURB_LOG as lines. When step DISTURB_STEP is due comes DISTURB_HARM:
//
// kill  SIGKILL
// torn  half of the bytes are written, then SIGKILL; other steps as above
// full  this call and all later ones of its kind fail: there is no space left
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char written[1024];  // by descriptor: is it of such a file?
static int steps, full;

static int is_written(int fd) {
    return fd >= 0 && fd < (int)sizeof(written) && written[fd];
}

static int is_part(const char* path) {
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".part");
}

// Whether the call fails. torn: SIGKILL is the caller's.
static int disturbed(const char* call, int* torn) {
    const char *log = getenv("DISTURB_LOG"), *harm = getenv("DISTURB_HARM");
    const char* at = getenv("DISTURB_STEP");
    if (!log || !harm || !at) return 0;
    FILE* file = fopen(log, "a");
    if (file) {
        fprintf(file, "%s\n", call);
        fclose(file);
    }
    const int now = steps++ == atoi(at);
    if (now && torn && !strcmp(harm, "torn")) {
        *torn = 1;
    } else if (now && strcmp(harm, "full")) {
        kill(getpid(), SIGKILL);
    }
    full = full || (now && !strcmp(harm, "full"));
    if (full) errno = ENOSPC;
    return full;
}

#define REAL(name) ((__typeof__(name)*)dlsym(RTLD_NEXT, #name))

static int opened(const char* path, int flags, mode_t mode) {
    if (is_part(path) && disturbed("open", NULL)) return -1;
    const int fd = REAL(open)(path, flags, mode);
    if (fd >= 0 && fd < (int)sizeof(written)) written[fd] = (char)is_part(path);
    return fd;
}

int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(path, flags, mode);
}

int ftruncate(int fd, off_t size) {
    if (is_written(fd) && disturbed("ftruncate", NULL)) return -1;
    return REAL(ftruncate)(fd, size);
}

ssize_t write(int fd, const void* data, size_t n) {
    int torn = 0;
    if (is_written(fd) && disturbed("write", &torn)) return -1;
    const ssize_t done = REAL(write)(fd, data, torn ? n / 2 : n);
    if (torn) kill(getpid(), SIGKILL);
    return done;
}

int fsync(int fd) {
    if (is_written(fd) && disturbed("fsync", NULL)) return -1;
    return REAL(fsync)(fd);
}

int rename(const char* from, const char* to) {
    if (!is_part(from)) return REAL(rename)(from, to);
    if (disturbed("rename", NULL)) return -1;
    const int done = REAL(rename)(from, to);
    if (done == 0) disturbed("renamed", NULL);
    return done;
}
