/* An MPI program that checks every byte it moves: ping-pong between the first two ranks, a put and an accumulate into the
 * next rank's window, and an all-to-all over all ranks. Prints one line at the end. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BIG (1 << 20)
#define WORDS 1024

static int rank, ranks;

static void check(int fine, const char *what)
{
	if (!fine) {
		fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static unsigned char byte_of(int from, int round, size_t at)
{
	return (unsigned char)(from * 31 + round * 7 + at);
}

static long ping_pong(void)
{
	unsigned char *memory = malloc(BIG);
	long moved = 0;

	for (int size = 8, round = 0; size <= BIG; size *= 16, round++) {
		for (int turn = 0; turn < 2 && rank < 2; turn++) {
			if (turn == rank) {
				for (int i = 0; i < size; i++)
					memory[i] = byte_of(rank, round, i);
				MPI_Send(memory, size, MPI_BYTE, 1 - rank, round, MPI_COMM_WORLD);
				moved += size;
			} else {
				MPI_Recv(memory, size, MPI_BYTE, 1 - rank, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				for (int i = 0; i < size; i++)
					check(memory[i] == byte_of(1 - rank, round, i), "a byte of the ping-pong");
			}
		}
	}
	free(memory);
	return moved;
}

static long one_sided(void)
{
	long *window, own[WORDS];
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
	MPI_Win win;

	MPI_Win_allocate(2 * WORDS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	for (int i = 0; i < WORDS; i++) {
		window[i] = -1;
		window[WORDS + i] = 5;
		own[i] = rank * 1000000L + i;
	}
	MPI_Win_fence(0, win);
	MPI_Put(own, WORDS, MPI_LONG, next, 0, WORDS, MPI_LONG, win);
	for (int target = 0; target < ranks; target++)
		MPI_Accumulate(own, WORDS, MPI_LONG, target, WORDS, WORDS, MPI_LONG, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < WORDS; i++) {
		long sum = 5 + (long)ranks * (ranks - 1) / 2 * 1000000L + (long)ranks * i;

		check(window[i] == last * 1000000L + i, "a word that was put");
		check(window[WORDS + i] == sum, "a word that was accumulated");
	}
	MPI_Win_fence(0, win);
	MPI_Win_free(&win);
	return (1L + ranks) * WORDS * sizeof(long);
}

static long all_to_all(void)
{
	int *out = malloc(sizeof(int) * WORDS * ranks), *in = malloc(sizeof(int) * WORDS * ranks);

	for (int to = 0; to < ranks; to++)
		for (int i = 0; i < WORDS; i++)
			out[to * WORDS + i] = rank * 1000003 + to * 1009 + i;
	MPI_Alltoall(out, WORDS, MPI_INT, in, WORDS, MPI_INT, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		for (int i = 0; i < WORDS; i++)
			check(in[from * WORDS + i] == from * 1000003 + rank * 1009 + i, "a word of the all-to-all");
	free(out);
	free(in);
	return (long)sizeof(int) * WORDS * ranks;
}

int main(int argc, char **argv)
{
	long moved, all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	check(ranks >= 2, "the number of ranks");
	moved = ping_pong() + one_sided() + all_to_all();
	MPI_Reduce(&moved, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks moved %ld bytes, all right\n", ranks, all);
	MPI_Finalize();
	return 0;
}
