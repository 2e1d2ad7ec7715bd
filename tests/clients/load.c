/* A machine with more to do than it can: `load CPU MEMORY DISK SWITCH FORK` starts so many tasks of each kind, says
 * `loaded`, and goes on until its standard input ends. Every task dies with it.
 *   cpu      computes
 *   memory   writes to one page after the other of 64 MB
 *   disk     writes a file of 16 MB in the working directory, again and again, and waits for the disk
 *   switch   two processes that hand each other a byte
 *   fork     starts processes that end at once
 * Each task has a session of its own: a kernel with `sched_autogroup_enabled` shares processors out between sessions, and
 * would give a program beside one session of twenty tasks as much as all the twenty.
 * At its end it prints how many rounds each kind made, so that a load that did nothing is noticed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition, what)                                                                                         \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			perror(what);                                                                                  \
			_exit(2);                                                                                      \
		}                                                                                                      \
	} while (0)

enum { CPU, MEMORY, DISK, SWITCH, FORK, KINDS };
static const char *const NAMES[KINDS] = {"cpu", "memory", "disk", "switch", "fork"};
#define MEMORY_LEN (64l << 20)
#define FILE_LEN (16l << 20)

/* Rounds of each kind, shared by all tasks. */
static volatile uint64_t *rounds;

static void count(int kind)
{
	__atomic_fetch_add(&rounds[kind], 1, __ATOMIC_RELAXED);
}

static void compute(void)
{
	volatile uint64_t x = 1;

	for (;;) {
		for (int i = 0; i < 1 << 20; i++)
			x = x * 6364136223846793005ull + 1442695040888963407ull;
		count(CPU);
	}
}

static void touch(void)
{
	char *bytes = mmap(NULL, MEMORY_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(bytes != MAP_FAILED, "mmap");
	for (;;) {
		for (long at = 0; at < MEMORY_LEN; at += 4096)
			bytes[at]++;
		madvise(bytes, MEMORY_LEN, MADV_DONTNEED);
		count(MEMORY);
	}
}

static void write_files(int number)
{
	static char block[1 << 20];
	char name[32];
	int file;

	snprintf(name, sizeof name, "load.%d", number);
	file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0, name);
	unlink(name);
	for (;;) {
		for (long at = 0; at < FILE_LEN; at += sizeof block)
			CHECK(pwrite(file, block, sizeof block, at) == sizeof block, "pwrite");
		CHECK(fsync(file) == 0, "fsync");
		count(DISK);
	}
}

static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
}

static void hand_over(void)
{
	int there[2], back[2];
	pid_t self = getpid();
	char byte = 0;

	CHECK(pipe(there) == 0 && pipe(back) == 0, "pipe");
	if (fork() == 0) {
		die_with(self);
		for (;;)
			if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
				_exit(1);
	}
	for (;;) {
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			_exit(1);
		count(SWITCH);
	}
}

static void start_processes(void)
{
	for (;;) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		CHECK(child > 0, "fork");
		waitpid(child, NULL, 0);
		count(FORK);
	}
}

int main(int argc, char **argv)
{
	pid_t self = getpid();
	ssize_t got;
	char byte;

	if (argc != KINDS + 1) {
		fprintf(stderr, "usage: load CPU MEMORY DISK SWITCH FORK\n");
		return 2;
	}
	rounds = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(rounds != MAP_FAILED, "mmap");
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < atoi(argv[1 + kind]); i++) {
			pid_t child = fork();

			CHECK(child >= 0, "fork");
			if (child > 0)
				continue;
			die_with(self);
			CHECK(setsid() > 0, "setsid");
			switch (kind) {
			case CPU:
				compute();
				break;
			case MEMORY:
				touch();
				break;
			case DISK:
				write_files(i);
				break;
			case SWITCH:
				hand_over();
				break;
			default:
				start_processes();
			}
		}
	puts("loaded");
	fflush(stdout);
	do
		got = read(0, &byte, 1);
	while (got > 0 || (got < 0 && errno == EINTR));
	for (int kind = 0; kind < KINDS; kind++)
		printf("%s %llu\n", NAMES[kind], (unsigned long long)rounds[kind]);
	fflush(stdout);
	return 0;
}
