/* Calls and answers on one connection for as long as is wanted: what is said twice, late, wrongly or not at all is noticed.
 *   calls -p PORT          answers
 *   calls -n N -p PORT     answers N callers, each on a connection of its own; one that fails is said, and the others go on
 *   calls -p PORT HOST     calls, until it gets SIGUSR1
 * Eight calls are under way at a time. Every eighth also adds one to a word of the answering side, and must find what all
 * before have added. Both print every hundredth call, and at their ends how many there were. At SIGHUP either
 * asks its peers for a sign of life, by an atomic that adds nothing. At SIGUSR2 who gets it has
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
#define SIDES 8
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

enum { RECEIVE = 1, SEND, ADD, SIGN };

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

struct memory {
	uint64_t word, found[DEPTH];
	struct message out[DEPTH], in[DEPTH];
};

/* A connection: whose it is, and how far it has come. */
struct side {
	int fd, last, failed;
	struct ibv_qp *qp;
	struct hello theirs;
	struct memory *memory;
	uint64_t heard_of, said, sent;
};

static struct memory memories[SIDES];
static struct side sides[SIDES];
static int count = 1;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static volatile sig_atomic_t wanted = 1, crowded, asked;

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

static void ask(int number)
{
	(void)number;
	asked = 1;
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

static void receive(struct side *s, uint64_t slot)
{
	struct ibv_sge sge = {(uintptr_t)&s->memory->in[slot], sizeof(struct message), mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)RECEIVE << 56 | slot, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(s->qp, &wr, &bad), "ibv_post_recv");
}

static void post(struct side *s, uint64_t id, enum ibv_wr_opcode opcode, void *data, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)data, len, mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	wr.wr.atomic.remote_addr = s->theirs.addr;
	wr.wr.atomic.rkey = s->theirs.rkey;
	wr.wr.atomic.compare_add = id >> 56 == ADD;
	CHECK(!ibv_post_send(s->qp, &wr, &bad), "ibv_post_send");
}

/* Says the call or answer that is the nth of this side. */
static void say(struct side *s, uint64_t n, uint64_t number, int answer)
{
	struct message *message = &s->memory->out[n % DEPTH];

	message->number = number;
	for (int i = 0; i < BYTES; i++)
		message->bytes[i] = byte_of(number, answer, i);
	post(s, (uint64_t)SEND << 56 | n, IBV_WR_SEND, message, sizeof(*message));
}

/* Takes the nth message of the other side; its number. */
static uint64_t heard(struct side *s, const struct ibv_wc *wc, uint64_t n, int answer)
{
	uint64_t slot = wc->wr_id & 0xff, number = s->memory->in[slot].number;

	CHECK(wc->byte_len == sizeof(struct message), "message %llu has %u bytes", (unsigned long long)n, wc->byte_len);
	CHECK(slot == n % DEPTH && (number == n || number == LAST), "message %llu is number %llu, in place %llu",
	      (unsigned long long)n, (unsigned long long)number, (unsigned long long)slot);
	for (int i = 0; i < BYTES; i++)
		CHECK(s->memory->in[slot].bytes[i] == byte_of(number, answer, i), "byte %d of message %llu", i,
		      (unsigned long long)n);
	memset(&s->memory->in[slot], 0, sizeof(struct message));
	receive(s, slot);
	if (n % STEP == 0) {
		if (count > 1)
			printf("connection %d ", (int)(s - sides));
		printf("at %llu\n", (unsigned long long)n);
		fflush(stdout);
	}
	return number;
}

static void ask_all(void);

static struct ibv_wc completed(void)
{
	double end = seconds() + LIMIT;
	struct ibv_wc wc;
	int found = 0;

	while (!found) {
		if (asked)
			ask_all();
		found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0, "ibv_poll_cq");
		CHECK(found || seconds() < end, "no completion in %g s", LIMIT);
	}
	CHECK(count > 1 || wc.status == IBV_WC_SUCCESS, "request %#llx ended with %s", (unsigned long long)wc.wr_id,
	      ibv_wc_status_str(wc.status));
	return wc;
}

/* The nth of its kind completes, no other. */
static void expect(const struct ibv_wc *wc, uint64_t n)
{
	uint64_t found = wc->wr_id & ~(UINT64_C(0xff) << 56);

	CHECK(found == n, "completion of %llu, not of %llu", (unsigned long long)found, (unsigned long long)n);
}

static void call(struct side *s, struct ibv_pd *pd, union ibv_gid gid)
{
	uint64_t said = 0, sent = 0, answered = 0, added = 0;
	int last = 0;

	while (!last || answered < said || sent < said) {
		crowd(pd, gid, LARGER_CROWD);
		/* A place is free once its call was sent, and answered. */
		while (!last && said < sent + DEPTH && said < answered + DEPTH) {
			last = !wanted;
			if (!last && said % EVERY == 0)
				post(s, (uint64_t)ADD << 56 | said / EVERY, IBV_WR_ATOMIC_FETCH_AND_ADD,
				     &s->memory->found[said / EVERY % DEPTH], 8);
			say(s, said, last ? LAST : said, 0);
			said++;
		}
		struct ibv_wc wc = completed();

		switch (wc.wr_id >> 56) {
		case RECEIVE:
			heard(s, &wc, answered++, 1);
			break;
		case SEND:
			expect(&wc, sent++);
			break;
		case SIGN:
			break;
		default:
			expect(&wc, added);
			CHECK(s->memory->found[added % DEPTH] == added, "%llu had been added, not %llu",
			      (unsigned long long)s->memory->found[added % DEPTH], (unsigned long long)added);
			added++;
		}
	}
	printf("called %llu, added %llu\n", (unsigned long long)answered - 1, (unsigned long long)added);
}

/* The connection of a completion. */
static struct side *side_of(const struct ibv_wc *wc)
{
	for (int i = 0; i < count; i++)
		if (sides[i].qp->qp_num == wc->qp_num)
			return &sides[i];
	die("a completion of queue pair %#x, which nobody has", wc->qp_num);
	return NULL;
}

/* Whether a connection has something to come. */
static int goes_on(const struct side *s)
{
	return !s->failed && (!s->last || s->sent < s->heard_of);
}

static int is_any_left(void)
{
	for (int i = 0; i < count; i++)
		if (goes_on(&sides[i]))
			return 1;
	return 0;
}

static void ask_all(void)
{
	asked = 0;
	for (int i = 0; i < count; i++)
		if (goes_on(&sides[i]))
			post(&sides[i], (uint64_t)SIGN << 56, IBV_WR_ATOMIC_FETCH_AND_ADD, &sides[i].memory->found[0], 8);
}

static void serve(struct ibv_pd *pd, union ibv_gid gid)
{
	while (is_any_left()) {
		crowd(pd, gid, CROWD);
		struct ibv_wc wc = completed();
		struct side *s = side_of(&wc);

		if (wc.status != IBV_WC_SUCCESS) {
			if (!s->failed)
				printf("connection %d ended with %s\n", (int)(s - sides), ibv_wc_status_str(wc.status));
			fflush(stdout);
			s->failed = 1;
			continue;
		}
		if (wc.wr_id >> 56 == SIGN)
			continue;
		if (wc.wr_id >> 56 == RECEIVE)
			s->last = heard(s, &wc, s->heard_of++, 0) == LAST;
		else
			expect(&wc, s->sent++);
		for (; s->said < s->heard_of && s->said < s->sent + DEPTH; s->said++)
			say(s, s->said, s->last && s->said + 1 == s->heard_of ? LAST : s->said, 1);
	}
	for (int i = 0; i < count; i++) {
		if (count > 1)
			printf("connection %d ", i);
		printf("answered %llu, added %llu\n", (unsigned long long)sides[i].sent - 1,
		       (unsigned long long)sides[i].memory->word);
	}
}

/* Has a connection with whoever is at the other end of a socket. */
static void begin(struct side *s, int fd, struct ibv_pd *pd, union ibv_gid gid)
{
	struct hello mine;
	char word;

	s->fd = fd;
	s->memory = &memories[s - sides];
	s->qp = make_rc(pd, cq, 4 * DEPTH);
	for (uint64_t slot = 0; slot < DEPTH; slot++)
		receive(s, slot);
	mine = (struct hello){s->qp->qp_num, mr->rkey, (uintptr_t)&s->memory->word, gid};
	CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine), "tell the peer");
	CHECK(recv(fd, &s->theirs, sizeof(s->theirs), MSG_WAITALL) == sizeof(s->theirs), "hear of the peer");
	if (count > 1)
		printf("connection %d is of %d.%d.%d.%d\n", (int)(s - sides), s->theirs.gid.raw[12], s->theirs.gid.raw[13],
		       s->theirs.gid.raw[14], s->theirs.gid.raw[15]);
	connect_rc(s->qp, s->theirs.qpn, 77, 77, s->theirs.gid, 14, 7);
	CHECK(write(fd, "x", 1) == 1 && recv(fd, &word, 1, MSG_WAITALL) == 1, "meet the peer");
}

int main(int argc, char **argv)
{
	int port = 0, option, fds[SIDES];
	struct ibv_context *context;
	struct ibv_pd *pd;
	char word;

	while ((option = getopt(argc, argv, "n:p:")) != -1) {
		if (option == 'n')
			count = atoi(optarg);
		else if (option == 'p')
			port = atoi(optarg);
	}
	if (port <= 0 || count < 1 || count > SIDES || argc > optind + 1 || (argc > optind && count > 1)) {
		fprintf(stderr, "usage: calls [-n N] -p PORT [HOST]\n");
		return 2;
	}
	CHECK(signal(SIGUSR1, stop) != SIG_ERR && signal(SIGUSR2, turn) != SIG_ERR &&
		      signal(SIGHUP, ask) != SIG_ERR,
	      "signal");
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 8 * DEPTH * SIDES, NULL, NULL, 0);
	CHECK(pd && cq, "a domain and a queue");
	mr = ibv_reg_mr(pd, memories, sizeof(memories), ACCESS);
	CHECK(mr, "ibv_reg_mr");
	if (argc > optind)
		fds[0] = dial(argv[optind], port);
	else
		listen_for(port, fds, count);
	for (int i = 0; i < count; i++)
		begin(&sides[i], fds[i], pd, own_gid(context));
	if (argc > optind)
		call(&sides[0], pd, own_gid(context));
	else
		serve(pd, own_gid(context));
	/* Neither goes before the other has all. */
	for (int i = 0; i < count; i++)
		CHECK(sides[i].failed || (write(sides[i].fd, "x", 1) == 1 && recv(sides[i].fd, &word, 1, MSG_WAITALL) == 1),
		      "meet the peer");
	return 0;
}
