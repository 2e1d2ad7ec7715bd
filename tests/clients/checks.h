/* Checks of a program that makes calls and says how many came out as wanted: each that does not is a line. */
#include <errno.h>
#include <stdio.h>

static int checks, failures;

#define CHECK(condition) \
	do { \
		checks++; \
		if (!(condition)) { \
			failures++; \
			printf("line %d: not %s (errno %d)\n", __LINE__, #condition, errno); \
		} \
	} while (0)
