// A byte goes back and forth over two pipes between two processes: two wakeups and two to four switches a round.
//   pingpong ROUNDS CPU CPU    prints nanoseconds of CPU time a round trip, both processes together
// CPU time, not wall time: on one CPU the two are the same when the machine is idle, and others' work doesn't count.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		_exit(2);
}

static void step(int in, int out)
{
	char byte = 0;

	if (read(in, &byte, 1) != 1 || write(out, &byte, 1) != 1)
		_exit(2);
}

static double used(const struct rusage *usage)
{
	return usage->ru_utime.tv_sec + usage->ru_stime.tv_sec + (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	int there[2], back[2], rounds, i, status;
	struct rusage own, child;
	char byte = 0;

	if (argc != 4 || pipe(there) || pipe(back))
		return 2;
	rounds = atoi(argv[1]);
	if (fork() == 0) {
		pin(atoi(argv[3]));
		for (i = 0; i < rounds; i++)
			step(there[0], back[1]);
		_exit(0);
	}
	pin(atoi(argv[2]));
	for (i = 0; i < rounds; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			return 2;
	if (wait(&status) < 0 || status || getrusage(RUSAGE_SELF, &own) || getrusage(RUSAGE_CHILDREN, &child))
		return 2;
	printf("%.1f\n", (used(&own) + used(&child)) * 1e9 / rounds);
	return 0;
}
