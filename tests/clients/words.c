/* Words of one target that several clients change at once, for as long as they are told: none may count wrongly, whatever
 * happens between them.
 *   words target CLIENTS -p PORT            prints what the words are when all clients have gone
 *   words client SECONDS FILE -p PORT HOST  adds 1 to each second word, and counts the others up by compare and swap,
 *                                           until the time is over or SIGTERM comes
 * -w N is how many words there are, 2 if it is not said, -s PSN where queue pairs begin to count, -t their timeout, 14 if
 * it is not said.
 * A client whose queue pair fails goes on with a new one. What was under way then is in doubt: it prints how many changes
 * of each word it knows to have happened, and how many may have. FILE gets every value that a word had before such a
 * change, at once, for whoever looks for one that two changes have found. */
#include "client.h"

#include <poll.h>
#include <signal.h>

#define DEPTH 8
#define CLIENTS_MAX 64
#define WORDS_MAX 16
/* A connection whose queue pair fails more often than this is broken. */
#define LIVES_MAX 1000

enum { ADDED, SWAPPED, KINDS };
static const char *const NAMES[KINDS] = {"added", "swapped"};
/* More than a cache line apart, and not a multiple of a few words: they are on different carriers of a switch. */
#define STRIDE 9

static int words = KINDS, first_psn, timeout = 14;

struct hello {
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint64_t memory[512] __attribute__((aligned(4096)));

static volatile sig_atomic_t told_to_end;

static void on_term(int signal)
{
	(void)signal;
	told_to_end = 1;
}

static int is_over(double end)
{
	return told_to_end || seconds() >= end;
}

static struct hello hello_of(const struct ibv_qp *qp)
{
	return (struct hello){
		.qpn = qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)memory, .gid = own_gid(context)};
}

/* Makes a queue pair for each client that asks, until all have hung up. */
static void serve(int port, int clients)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), left = clients;
	struct pollfd fds[CLIENTS_MAX];
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	CHECK(cq && clients > 0 && clients <= CLIENTS_MAX, "1 to %d clients", CLIENTS_MAX);
	addr.sin_addr.s_addr = htonl(INADDR_ANY);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(listener >= 0 && !bind(listener, (struct sockaddr *)&addr, sizeof(addr)) && !listen(listener, clients),
	      "listen on %d", port);
	for (int i = 0; i < clients; i++) {
		fds[i] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
		CHECK(fds[i].fd >= 0, "accept");
	}
	while (left > 0) {
		CHECK(poll(fds, clients, -1) > 0, "poll");
		for (int i = 0; i < clients; i++) {
			struct hello mine, theirs;
			struct ibv_qp *qp;

			if (!fds[i].revents)
				continue;
			if (recv(fds[i].fd, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs)) {
				fds[i].fd = -1;
				left--;
				continue;
			}
			qp = make_rc(pd, cq, DEPTH);
			connect_rc(qp, theirs.qpn, first_psn, first_psn, theirs.gid, timeout, 7);
			mine = hello_of(qp);
			CHECK(write(fds[i].fd, &mine, sizeof(mine)) == sizeof(mine), "write to a client");
		}
	}
	for (int word = 0; word < words; word++)
		printf("%s%d %llu\n", NAMES[word % KINDS], word, (unsigned long long)memory[word * STRIDE]);
}

static struct ibv_qp *meet(int fd, struct ibv_cq *cq, struct hello *target)
{
	struct ibv_qp *qp = make_rc(pd, cq, DEPTH);
	struct hello mine = hello_of(qp);

	CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine), "write to the target");
	CHECK(recv(fd, target, sizeof(*target), MSG_WAITALL) == sizeof(*target), "read from the target");
	connect_rc(qp, target->qpn, first_psn, first_psn, target->gid, timeout, 7);
	return qp;
}

/* What a client knows. */
struct tally {
	FILE *found;
	uint64_t known[WORDS_MAX], doubt[WORDS_MAX], refused, lives;
	/* What the next compare and swap of a word expects. */
	uint64_t guess[WORDS_MAX];
	/* Changes posted, of this and earlier queue pairs. */
	unsigned posted;
};

static void post(struct ibv_qp *qp, const struct hello *target, int slot, int word, uint64_t guess)
{
	int kind = word % KINDS;
	struct ibv_sge sge = {.addr = (uintptr_t)&memory[slot * STRIDE], .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = slot,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = kind == ADDED ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = {.remote_addr = target->addr + 8 * word * STRIDE,
			      .rkey = target->rkey,
			      .compare_add = kind == ADDED ? 1 : guess,
			      .swap = guess + 1},
	};

	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* One queue pair's life: until the time is over, or until it fails. */
static void live(int fd, struct ibv_cq *cq, struct tally *tally, double end)
{
	struct hello target;
	struct ibv_qp *qp = meet(fd, cq, &target);
	uint64_t guesses[DEPTH] = {0};
	int word_of[DEPTH] = {0}, failed = 0, under_way = 0;

	tally->lives++;
	for (;;) {
		struct ibv_wc wc;
		uint64_t before;
		int word;

		while (!failed && under_way < DEPTH && !is_over(end)) {
			int slot = tally->posted % DEPTH;

			word = word_of[slot] = tally->posted++ % words;
			guesses[slot] = tally->guess[word];
			post(qp, &target, slot, word, guesses[slot]);
			under_way++;
		}
		if (under_way == 0)
			break;
		wc = wait_one(cq, 60);
		under_way--;
		word = word_of[wc.wr_id];
		if (wc.status != IBV_WC_SUCCESS) {
			failed = 1;
			tally->doubt[word]++;
			continue;
		}
		before = memory[wc.wr_id * STRIDE];
		if (word % KINDS == SWAPPED && before != guesses[wc.wr_id]) {
			tally->guess[word] = before;
			tally->refused++;
			continue;
		}
		if (word % KINDS == SWAPPED)
			tally->guess[word] = before + 1;
		tally->known[word]++;
		CHECK(fprintf(tally->found, "%s%d %llu\n", NAMES[word % KINDS], word, (unsigned long long)before) > 0,
		      "write a file");
	}
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

static void change(int fd, double limit, const char *path)
{
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	struct tally tally = {.found = fopen(path, "w")};
	double end = seconds() + limit;

	signal(SIGTERM, on_term);
	CHECK(cq && tally.found, "create a completion queue, or open %s", path);
	/* Who is killed has told what it knew. */
	setvbuf(tally.found, NULL, _IOLBF, 0);
	while (!is_over(end)) {
		CHECK(tally.lives < LIVES_MAX, "%d queue pairs have failed", LIVES_MAX);
		live(fd, cq, &tally, end);
	}
	CHECK(!fclose(tally.found), "write %s", path);
	for (int word = 0; word < words; word++)
		printf("%s%d %llu in doubt %llu\n", NAMES[word % KINDS], word, (unsigned long long)tally.known[word],
		       (unsigned long long)tally.doubt[word]);
	printf("refused %llu lives %llu\n", (unsigned long long)tally.refused, (unsigned long long)tally.lives);
}

int main(int argc, char **argv)
{
	int target = argc > 2 && !strcmp(argv[1], "target"), port = 0, option;
	const char *usage = "usage: words target CLIENTS -p PORT | client SECONDS FILE -p PORT HOST, "
			    "with -w WORDS -s PSN -t TIMEOUT";

	CHECK(target || (argc > 3 && !strcmp(argv[1], "client")), "%s", usage);
	optind = target ? 3 : 4;
	while ((option = getopt(argc, argv, "p:w:s:t:")) > 0) {
		CHECK(option != '?', "%s", usage);
		*(option == 'p' ? &port : option == 'w' ? &words : option == 's' ? &first_psn : &timeout) =
			strtol(optarg, NULL, 0);
	}
	CHECK(port > 0 && words > 0 && words <= WORDS_MAX && (target || optind < argc), "%s", usage);
	context = open_first();
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr, "ibv_reg_mr");
	if (target)
		serve(port, atoi(argv[2]));
	else
		change(dial(argv[optind], port), atof(argv[2]), argv[3]);
	return 0;
}
