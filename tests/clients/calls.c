/* Calls and answers on one connection for as long as is wanted: what is said twice, late, wrongly or not at all is noticed.
 *   calls -p PORT          answers
 *   calls -p PORT HOST     calls, until it gets SIGUSR1
 * Eight calls are under way at a time. Every eighth also adds one to a word of the answering side, and must find what all
 * before have added. Both print every hundredth call, and at their ends how many there were. At SIGUSR2 who gets it has
 * connections with himself, and at the next one they go: a crowd, by which his NIC is full. The caller's is the larger one. */
#include "client.h"

#include <signal.h>

#define DEPTH 8
#define BYTES 600
#define EVERY 8
#define STEP 100
#define LIMIT 30.0
#define LAST UINT64_MAX
#define CROWD 3
#define LARGER_CROWD 6
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

enum { RECEIVE = 1, SEND, ADD };

struct hello {
	uint32_t qpn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

/* A call or an answer: its number, and bytes that tell it from every other. */
struct message {
	uint64_t number;
	unsigned char bytes[BYTES];
};

static struct memory {
	uint64_t word, found[DEPTH];
	struct message out[DEPTH], in[DEPTH];
} memory;

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct hello mine, theirs;
static volatile sig_atomic_t wanted = 1, crowded;

static void stop(int number)
{
	(void)number;
	wanted = 0;
}

static void turn(int number)
{
	(void)number;
	crowded = !crowded;
}

/* The crowd comes or goes. */
static void crowd(struct ibv_pd *pd, union ibv_gid gid, int count)
{
	static struct ibv_qp *pairs[LARGER_CROWD][2];

	if (crowded == (pairs[0][0] != NULL))
		return;
	for (int i = 0; i < count; i++) {
		for (int end = 0; end < 2; end++) {
			if (pairs[i][end]) {
				CHECK(!ibv_destroy_qp(pairs[i][end]), "ibv_destroy_qp");
				pairs[i][end] = NULL;
			} else {
				pairs[i][end] = make_rc(pd, cq, 1);
			}
		}
		for (int end = 0; end < 2 && pairs[i][end]; end++)
			connect_rc(pairs[i][end], pairs[i][!end]->qp_num, 77, 77, gid, 14, 7);
	}
}

static unsigned char byte_of(uint64_t number, int answer, int i)
{
	return (unsigned char)(number * 31 + i * 7 + answer);
}

static void receive(uint64_t slot)
{
	struct ibv_sge sge = {(uintptr_t)&memory.in[slot], sizeof(struct message), mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)RECEIVE << 56 | slot, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void post(uint64_t id, enum ibv_wr_opcode opcode, void *data, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)data, len, mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	wr.wr.atomic.remote_addr = theirs.addr;
	wr.wr.atomic.rkey = theirs.rkey;
	wr.wr.atomic.compare_add = 1;
	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* Says the call or answer that is the nth of this side. */
static void say(uint64_t n, uint64_t number, int answer)
{
	struct message *message = &memory.out[n % DEPTH];

	message->number = number;
	for (int i = 0; i < BYTES; i++)
		message->bytes[i] = byte_of(number, answer, i);
	post((uint64_t)SEND << 56 | n, IBV_WR_SEND, message, sizeof(*message));
}

/* Takes the nth message of the other side; its number. */
static uint64_t heard(const struct ibv_wc *wc, uint64_t n, int answer)
{
	uint64_t slot = wc->wr_id & 0xff, number = memory.in[slot].number;

	CHECK(wc->byte_len == sizeof(struct message), "message %llu has %u bytes", (unsigned long long)n, wc->byte_len);
	CHECK(slot == n % DEPTH && (number == n || number == LAST), "message %llu is number %llu, in place %llu",
	      (unsigned long long)n, (unsigned long long)number, (unsigned long long)slot);
	for (int i = 0; i < BYTES; i++)
		CHECK(memory.in[slot].bytes[i] == byte_of(number, answer, i), "byte %d of message %llu", i,
		      (unsigned long long)n);
	memset(&memory.in[slot], 0, sizeof(struct message));
	receive(slot);
	if (n % STEP == 0) {
		printf("at %llu\n", (unsigned long long)n);
		fflush(stdout);
	}
	return number;
}

static struct ibv_wc completed(void)
{
	struct ibv_wc wc = wait_one(cq, LIMIT);

	CHECK(wc.status == IBV_WC_SUCCESS, "request %#llx ended with %s", (unsigned long long)wc.wr_id,
	      ibv_wc_status_str(wc.status));
	return wc;
}

/* The nth of its kind completes, no other. */
static void expect(const struct ibv_wc *wc, uint64_t n)
{
	uint64_t found = wc->wr_id & ~(UINT64_C(0xff) << 56);

	CHECK(found == n, "completion of %llu, not of %llu", (unsigned long long)found, (unsigned long long)n);
}

static void call(struct ibv_pd *pd, union ibv_gid gid)
{
	uint64_t said = 0, sent = 0, answered = 0, added = 0;
	int last = 0;

	while (!last || answered < said || sent < said) {
		crowd(pd, gid, LARGER_CROWD);
		/* A place is free once its call was sent, and answered. */
		while (!last && said < sent + DEPTH && said < answered + DEPTH) {
			last = !wanted;
			if (!last && said % EVERY == 0)
				post((uint64_t)ADD << 56 | said / EVERY, IBV_WR_ATOMIC_FETCH_AND_ADD,
				     &memory.found[said / EVERY % DEPTH], 8);
			say(said, last ? LAST : said, 0);
			said++;
		}
		struct ibv_wc wc = completed();

		switch (wc.wr_id >> 56) {
		case RECEIVE:
			heard(&wc, answered++, 1);
			break;
		case SEND:
			expect(&wc, sent++);
			break;
		default:
			expect(&wc, added);
			CHECK(memory.found[added % DEPTH] == added, "%llu had been added, not %llu",
			      (unsigned long long)memory.found[added % DEPTH], (unsigned long long)added);
			added++;
		}
	}
	printf("called %llu, added %llu\n", (unsigned long long)answered - 1, (unsigned long long)added);
}

static void serve(struct ibv_pd *pd, union ibv_gid gid)
{
	uint64_t heard_of = 0, said = 0, sent = 0;
	int last = 0;

	while (!last || sent < heard_of) {
		crowd(pd, gid, CROWD);
		struct ibv_wc wc = completed();

		if (wc.wr_id >> 56 == RECEIVE)
			last = heard(&wc, heard_of++, 0) == LAST;
		else
			expect(&wc, sent++);
		for (; said < heard_of && said < sent + DEPTH; said++)
			say(said, last && said + 1 == heard_of ? LAST : said, 1);
	}
	printf("answered %llu, added %llu\n", (unsigned long long)sent - 1, (unsigned long long)memory.word);
}

int main(int argc, char **argv)
{
	int caller = argc == 4, fd;
	struct ibv_context *context;
	struct ibv_pd *pd;

	if ((argc != 3 && !caller) || strcmp(argv[1], "-p")) {
		fprintf(stderr, "usage: calls -p PORT [HOST]\n");
		return 2;
	}
	CHECK(signal(SIGUSR1, stop) != SIG_ERR && signal(SIGUSR2, turn) != SIG_ERR, "signal");
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 8 * DEPTH, NULL, NULL, 0);
	CHECK(pd && cq, "a domain and a queue");
	mr = ibv_reg_mr(pd, &memory, sizeof(memory), ACCESS);
	CHECK(mr, "ibv_reg_mr");
	qp = make_rc(pd, cq, 4 * DEPTH);
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		receive(slot);
	fd = caller ? dial(argv[3], atoi(argv[2])) : listen_once(atoi(argv[2]));
	mine = (struct hello){qp->qp_num, mr->rkey, (uintptr_t)&memory.word, own_gid(context)};
	CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine), "tell the peer");
	CHECK(recv(fd, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs), "hear of the peer");
	connect_rc(qp, theirs.qpn, 77, 77, theirs.gid, 14, 7);
	CHECK(write(fd, "x", 1) == 1 && recv(fd, &mine, 1, MSG_WAITALL) == 1, "meet the peer");
	if (caller)
		call(pd, own_gid(context));
	else
		serve(pd, own_gid(context));
	/* Neither goes before the other has all. */
	CHECK(write(fd, "x", 1) == 1 && recv(fd, &mine, 1, MSG_WAITALL) == 1, "meet the peer");
	return 0;
}
