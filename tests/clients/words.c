/* Words of one target that several clients change at once, for as long as they are told: none may count wrongly, whatever
 * happens between them.
 *   words target CLIENTS -p PORT            prints what the words are when all clients have gone
 *   words client SECONDS FILE -p PORT HOST  adds 1 to each second word, and counts the others up by compare and swap,
 *                                           until the time is over or SIGTERM comes
 *   words locker SECONDS -p PORT HOST       takes the target's lock by compare and swap, reads the number that it guards,
 *                                           writes one more and lets go of the lock, again and again as long
 * -w N is how many words there are, 2 if it is not said, -o N how many atomics a client has under way, 8 if it is not said,
 * -s PSN where queue pairs begin to count, -t their timeout, 14 if it is not said; -d DEVICE and -x GID are which; -a has
 * the target grant atomics and READs only.
 * A client whose queue pair fails goes on with a new one. What was under way then is in doubt: it prints how many changes
 * of each word it knows to have happened, and how many may have. FILE gets every value that a word had before such a
 * change, at once, for whoever looks for one that two changes have found. */
#include "client.h"

#include <poll.h>
#include <signal.h>

#define DEPTH_MAX 16
#define CLIENTS_MAX 64
#define WORDS_MAX 16
/* A connection whose queue pair fails more often than this is broken. */
#define LIVES_MAX 1000

enum { ADDED, SWAPPED, KINDS };
static const char *const NAMES[KINDS] = {"added", "swapped"};
/* More than a cache line apart, and not a multiple of a few words: they are on different carriers of a switch. */
#define STRIDE 9
/* Behind the words: the lock, 0 while nobody has it, and the number that it guards. */
#define LOCK (WORDS_MAX * STRIDE)
#define GUARDED (LOCK + STRIDE)
/* A completion that takes longer will not come. */
#define PATIENCE 60

static int words = KINDS, first_psn = -1, timeout = 14;
static int access_granted = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			    IBV_ACCESS_REMOTE_ATOMIC;

struct hello {
	uint32_t qpn, psn, rkey, unused;
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
	/* Those of one process differ, as those that are drawn do. */
	uint32_t psn = first_psn >= 0 ? (uint32_t)first_psn : qp->qp_num * 0x9e3779b1u & 0xffffff;

	return (struct hello){.qpn = qp->qp_num,
			      .psn = psn,
			      .rkey = mr->rkey,
			      .addr = (uintptr_t)memory,
			      .gid = own_gid(context)};
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
			qp = make_rc(pd, cq, DEPTH_MAX);
			mine = hello_of(qp);
			connect_rc(qp, theirs.qpn, theirs.psn, mine.psn, theirs.gid, timeout, 7);
			CHECK(write(fds[i].fd, &mine, sizeof(mine)) == sizeof(mine), "write to a client");
		}
	}
	for (int word = 0; word < words; word++)
		printf("%s%d %llu\n", NAMES[word % KINDS], word, (unsigned long long)memory[word * STRIDE]);
	printf("guarded %llu lock %llx\n", (unsigned long long)memory[GUARDED], (unsigned long long)memory[LOCK]);
}

static struct ibv_qp *meet(int fd, struct ibv_cq *cq, struct hello *target)
{
	struct ibv_qp *qp = make_rc(pd, cq, DEPTH_MAX);
	struct hello mine = hello_of(qp);

	CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine), "write to the target");
	CHECK(recv(fd, target, sizeof(*target), MSG_WAITALL) == sizeof(*target), "read from the target");
	connect_rc(qp, target->qpn, target->psn, mine.psn, target->gid, timeout, 7);
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
	uint64_t guesses[DEPTH_MAX] = {0};
	int word_of[DEPTH_MAX] = {0}, failed = 0, under_way = 0;

	tally->lives++;
	for (;;) {
		struct ibv_wc wc;
		uint64_t before;
		int word;

		while (!failed && under_way < rd_atomic && !is_over(end)) {
			int slot = tally->posted % rd_atomic;

			word = word_of[slot] = tally->posted++ % words;
			guesses[slot] = tally->guess[word];
			post(qp, &target, slot, word, guesses[slot]);
			under_way++;
		}
		if (under_way == 0)
			break;
		wc = wait_one(cq, PATIENCE);
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
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH_MAX, NULL, NULL, 0);
	struct tally tally = {.found = fopen(path, "w")};
	double end = seconds() + limit;

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

/* -- the lock ---------------------------------------------------------------------------------------------------- */

/* Asks for something of the target's word, whose bytes or whose value before end in memory[GUARDED]. */
static void ask(struct ibv_qp *qp, const struct hello *target, struct ibv_send_wr wr, int word)
{
	struct ibv_sge sge = {.addr = (uintptr_t)&memory[GUARDED], .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad;
	uint64_t addr = target->addr + 8 * word;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = target->rkey;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = target->rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

static uint64_t answered(struct ibv_cq *cq)
{
	struct ibv_wc wc = wait_one(cq, PATIENCE);

	CHECK(wc.status == IBV_WC_SUCCESS, "the lock: %s", ibv_wc_status_str(wc.status));
	return memory[GUARDED];
}

/* Moves the lock from one value to another; returns what it was. */
static uint64_t swap_lock(struct ibv_qp *qp, struct ibv_cq *cq, const struct hello *target, uint64_t from, uint64_t to)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .wr.atomic = {.compare_add = from, .swap = to}};

	ask(qp, target, wr, LOCK);
	return answered(cq);
}

/* If two had the lock at once, one of their numbers would be lost, or one would find the other's name in the lock. */
static void lock(int fd, double limit)
{
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH_MAX, NULL, NULL, 0);
	struct ibv_send_wr fetch = {.opcode = IBV_WR_RDMA_READ}, store = {.opcode = IBV_WR_RDMA_WRITE};
	unsigned long long held = 0, busy = 0;
	double end = seconds() + limit;
	struct hello target;
	struct ibv_qp *qp;
	uint64_t name, owner;

	CHECK(cq, "ibv_create_cq");
	qp = meet(fd, cq, &target);
	name = (uint64_t)target.qpn << 32 | qp->qp_num;
	while (!is_over(end)) {
		owner = swap_lock(qp, cq, &target, 0, name);
		if (owner != 0) {
			busy++;
			continue;
		}
		ask(qp, &target, fetch, GUARDED);
		memory[GUARDED] = answered(cq) + 1;
		ask(qp, &target, store, GUARDED);
		answered(cq);
		owner = swap_lock(qp, cq, &target, name, 0);
		CHECK(owner == name, "the lock of %llx was %llx's", (unsigned long long)name, (unsigned long long)owner);
		held++;
	}
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	printf("held %llu busy %llu\n", held, busy);
}

static void read_options(int argc, char **argv, const char *usage, int *port, const char **device)
{
	int option;

	while ((option = getopt(argc, argv, "p:w:s:t:o:x:d:a")) > 0) {
		switch (option) {
		case 'p': *port = strtol(optarg, NULL, 0); break;
		case 'w': words = strtol(optarg, NULL, 0); break;
		case 's': first_psn = strtol(optarg, NULL, 0); break;
		case 't': timeout = strtol(optarg, NULL, 0); break;
		case 'o': rd_atomic = strtol(optarg, NULL, 0); break;
		case 'x': gid_index = strtol(optarg, NULL, 0); break;
		case 'd': *device = optarg; break;
		case 'a': access_granted &= ~IBV_ACCESS_REMOTE_WRITE; break;
		default: errno = EINVAL; die("%s", usage);
		}
	}
	errno = EINVAL;
	CHECK(*port > 0 && words > 0 && words <= WORDS_MAX && rd_atomic > 0 && rd_atomic <= DEPTH_MAX, "%s", usage);
}

int main(int argc, char **argv)
{
	const char *usage = "usage: words target CLIENTS -p PORT | client SECONDS FILE -p PORT HOST | "
			    "locker SECONDS -p PORT HOST, with -w WORDS -o UNDER_WAY -s PSN -t TIMEOUT -d DEVICE -x GID -a";
	const char *what = argc > 2 ? argv[1] : "", *device = NULL;
	int port = 0, target = !strcmp(what, "target"), locker = !strcmp(what, "locker");

	errno = EINVAL;
	CHECK(target || locker || (argc > 3 && !strcmp(what, "client")), "%s", usage);
	optind = target || locker ? 3 : 4;
	read_options(argc, argv, usage, &port, &device);
	CHECK(target || optind < argc, "%s", usage);
	context = open_named(device);
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), access_granted);
	CHECK(mr, "ibv_reg_mr");
	signal(SIGTERM, target ? SIG_DFL : on_term);
	if (target)
		serve(port, atoi(argv[2]));
	else if (locker)
		lock(dial(argv[optind], port), atof(argv[2]));
	else
		change(dial(argv[optind], port), atof(argv[2]), argv[3]);
	return 0;
}
