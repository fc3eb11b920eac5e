/* A wall clock that a test steps: LD_PRELOADed, it adds the nanoseconds of the file KOORD_CLOCK_OFFSET (a signed 64-bit
 * integer, mapped) to CLOCK_REALTIME, as if an administrator or NTP stepped the machine's clock. Other clocks, and the
 * kernel's own time stamps, stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL

static const volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_offset(void)
{
	const char *path = getenv("KOORD_CLOCK_OFFSET");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *mapped = MAP_FAILED;

	real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	if (fd >= 0) {
		mapped = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (mapped != MAP_FAILED)
		offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int status = real_clock_gettime(clock, now);

	if (status == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		int64_t total = now->tv_sec * NS_PER_S + now->tv_nsec + *offset;

		now->tv_sec = total / NS_PER_S;
		now->tv_nsec = total % NS_PER_S;
	}
	return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &precise))
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *result)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now))
		return (time_t)-1;
	if (result)
		*result = now.tv_sec;
	return now.tv_sec;
}
