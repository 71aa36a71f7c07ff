/* Answers of the C library as a fault asks for them, in the programs that are started with it
 * (LD_PRELOAD): a clock that is set, and a file system without locks.
 *
 * $ANSWERS_CLOCK is a file of 8 bytes: by so many seconds the clock has been set. It is mapped, so that
 * a clock is also set in programs that run. Clocks that only count on (CLOCK_MONOTONIC) stay right.
 * Below the folders of $ANSWERS_NO_LOCKS ("/a:/b") flock fails with ENOLCK.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ANSWERS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shift = found;
    close(file);
}

static long now_by(void) { return shift ? *shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *found) {
    int rc = syscall(SYS_clock_gettime, clock, found);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += now_by();
    return rc;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    int rc = syscall(SYS_gettimeofday, found, zone);
    if (rc == 0 && found) found->tv_sec += now_by();
    return rc;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}

static int is_below(const char *path, const char *folders) {
    while (folders && *folders) {
        size_t size = strcspn(folders, ":");
        if (size && strncmp(path, folders, size) == 0) return 1;
        folders += size + (folders[size] == ':');
    }
    return 0;
}

int flock(int file, int how) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size > 0) {
        path[size] = 0;
        if (is_below(path, getenv("ANSWERS_NO_LOCKS"))) {
            errno = ENOLCK;
            return -1;
        }
    }
    return syscall(SYS_flock, file, how);
}
