/* clock_gettime whose wall clock is an hour behind as soon as the file $STEPPED_BACK exists. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    const char *path = getenv("STEPPED_BACK");
    if (result == 0 && clock == CLOCK_REALTIME && path && access(path, F_OK) == 0)
        now->tv_sec -= 3600;
    return result;
}
