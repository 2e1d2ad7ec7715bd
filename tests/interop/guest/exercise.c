/* Every verbs operation once or often, between two processes, with all that both of them saw printed.
 *
 *   exercise --port P [options]               the server: memory that is read, written and added to; receives
 *   exercise --port P --to HOST [options]     the client: does --ops in their order
 *
 * Both get the same --service, --ops, --size, --count. The client prints a line for each completion, the server one for
 * each receive and what its memory holds at the end; the last line is OK if all ended well. The suite knows what must
 * stand there. With --lossy, for services that repeat nothing, fewer receives than expected are no failure.
 * Operations: send sendimm sendinv sendlong write writeimm wbadkey read rbadkey cas faa. */
#include "client.h"

#include <getopt.h>

/* The memory's parts: what is sent or written, what is received or read, what is read from, the atomics' word. */
#define MEMORY (4u << 20)
#define SOURCE 0
#define LANDING (MEMORY / 4)
#define WORD (MEMORY / 2)
#define READABLE (MEMORY / 4 * 3)
#define SLOTS 8
#define SLOT (MEMORY / 4 / SLOTS)
#define GRH_BYTES 40
#define QKEY 0x22222222
#define DEPTH 128
/* Seconds: longer than a guest that is emulated takes to deal with what has arrived. */
#define SILENCE 1.0
#define WORD_AT_FIRST 0x0123456789abcdefull
#define WORD_SWAPPED 0x5a5a5a5aa5a5a5a5ull
#define WORD_ADDEND 0x100

static struct {
	const char *host, *ops;
	enum ibv_qp_type service;
	int port, gid_index, timeout, retries, rnr_retries, rnr_timer, count, queued, lossy, receive_after_ms;
	unsigned size, psn;
	enum ibv_mtu mtu;
	double patience;
} options = {.ops = "send",
	     .service = IBV_QPT_RC,
	     .gid_index = 0,
	     .timeout = 14,
	     .retries = 7,
	     .rnr_retries = 7,
	     .rnr_timer = 12,
	     .count = 1,
	     .size = 64,
	     .psn = 0xffffffff,
	     .mtu = IBV_MTU_1024,
	     .patience = 20};

/* What each side tells the other before they connect, over TCP. */
struct card {
	uint32_t qpn, psn, rkey, unused;
	uint64_t memory;
	union ibv_gid gid;
};

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	unsigned char *memory;
	struct card mine, theirs;
};

static unsigned char pattern(int of_server, size_t i)
{
	return (unsigned char)(of_server ? 31 * i + 5 : 3 * i + 1);
}

/* Bytes of the part that differ from what a side's memory holds at `from` when it starts. */
static unsigned wrong_bytes(const unsigned char *got, int of_server, size_t from, size_t length)
{
	unsigned wrong = 0;

	for (size_t i = 0; i < length; i++)
		wrong += got[i] != pattern(of_server, from + i);
	return wrong;
}

static int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	double end = seconds() + options.patience;
	int got;

	while ((got = ibv_poll_cq(cq, 1, wc)) == 0)
		if (seconds() > end)
			return 0;
	CHECK(got > 0, "ibv_poll_cq");
	return 1;
}

/* -- set-up ---------------------------------------------------------------------------------------------------- */

static void open_side(struct side *side)
{
	struct ibv_context *context = open_first();
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = options.service,
	};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC;

	side->pd = ibv_alloc_pd(context);
	side->cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(side->pd && side->cq, "ibv_alloc_pd or ibv_create_cq");
	CHECK(!posix_memalign((void **)&side->memory, 4096, MEMORY), "memory");
	for (size_t i = 0; i < MEMORY; i++)
		side->memory[i] = pattern(!options.host, i);
	if (!options.host)
		*(uint64_t *)(side->memory + WORD) = WORD_AT_FIRST;
	side->mr = ibv_reg_mr(side->pd, side->memory, MEMORY, access);
	CHECK(side->mr, "ibv_reg_mr");
	init.send_cq = init.recv_cq = side->cq;
	side->qp = ibv_create_qp(side->pd, &init);
	CHECK(side->qp, "ibv_create_qp");
	side->mine = (struct card){.qpn = side->qp->qp_num,
				   .psn = options.psn != 0xffffffff ? options.psn : options.host ? 0x300 : 0x700,
				   .rkey = side->mr->rkey,
				   .memory = (uintptr_t)side->memory};
	CHECK(!ibv_query_gid(context, PORT, options.gid_index, &side->mine.gid), "ibv_query_gid");
}

static int reach_peer(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(options.port)};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), peer;

	if (options.host) {
		CHECK(inet_pton(AF_INET, options.host, &addr.sin_addr) == 1, "address %s", options.host);
		CHECK(!connect(fd, (struct sockaddr *)&addr, sizeof(addr)), "connect to %s", options.host);
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(!bind(fd, (struct sockaddr *)&addr, sizeof(addr)) && !listen(fd, 1), "listen on %d", options.port);
	peer = accept(fd, NULL, NULL);
	CHECK(peer >= 0, "accept");
	close(fd);
	return peer;
}

static void say(int peer, const void *what, size_t length)
{
	CHECK(write(peer, what, length) == (ssize_t)length, "tell the peer");
}

static void hear(int peer, void *what, size_t length)
{
	CHECK(recv(peer, what, length, MSG_WAITALL) == (ssize_t)length, "hear from the peer");
}

static struct ibv_ah_attr way_to(const struct card *card)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = PORT,
		.grh = {.dgid = card->gid, .sgid_index = options.gid_index, .hop_limit = 64},
	};
}

static void connect_side(struct side *side)
{
	int rc = options.service == IBV_QPT_RC, ud = options.service == IBV_QPT_UD;
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
				  .path_mtu = options.mtu,
				  .dest_qp_num = side->theirs.qpn,
				  .rq_psn = side->theirs.psn,
				  .max_dest_rd_atomic = 16,
				  .min_rnr_timer = options.rnr_timer,
				  .ah_attr = way_to(&side->theirs)};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .sq_psn = side->mine.psn,
				  .timeout = options.timeout,
				  .retry_cnt = options.retries,
				  .rnr_retry = options.rnr_retries,
				  .max_rd_atomic = 16};
	int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	int to_rtr = IBV_QP_STATE, to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;

	init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (rc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
	if (!ud)
		to_rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc) {
		to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		to_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	CHECK(!ibv_modify_qp(side->qp, &init, to_init), "modify to INIT");
	CHECK(!ibv_modify_qp(side->qp, &rtr, to_rtr), "modify to RTR");
	CHECK(!ibv_modify_qp(side->qp, &rts, to_rts), "modify to RTS");
	if (ud) {
		side->ah = ibv_create_ah(side->pd, &rtr.ah_attr);
		CHECK(side->ah, "ibv_create_ah");
	}
}

/* -- the server -------------------------------------------------------------------------------------------------- */

/* How many of the list's operations take a receive from the server. */
static int receives_taken(void)
{
	char *list = strdup(options.ops), *at = list, *op;
	int taken = 0;

	while ((op = strsep(&at, ",")))
		if (!strncmp(op, "send", 4) || !strcmp(op, "writeimm"))
			taken += options.count;
	free(list);
	return taken;
}

static void post_receives(struct side *side, int count)
{
	unsigned room = strstr(options.ops, "sendlong") ? options.size / 2 : options.size + GRH_BYTES;

	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)side->memory + LANDING + (i % SLOTS) * SLOT,
				      .length = room,
				      .lkey = side->mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

		CHECK(!ibv_post_recv(side->qp, &wr, &bad), "ibv_post_recv");
	}
}

/* Prints one receive; returns whether it was good. */
static int told_receive(const struct side *side, const struct ibv_wc *wc)
{
	size_t skipped = options.service == IBV_QPT_UD ? GRH_BYTES : 0;
	const unsigned char *landed = side->memory + LANDING + (wc->wr_id % SLOTS) * SLOT + skipped;
	unsigned wrong = 0, immediate = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0;

	if (wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV)
		wrong = wrong_bytes(landed, 0, SOURCE, wc->byte_len - skipped);
	printf("received %d: status %d opcode %d length %u immediate %08x wrong %u (%s)\n", (int)wc->wr_id, wc->status,
	       wc->opcode, wc->byte_len, immediate, wrong, ibv_wc_status_str(wc->status));
	return wc->status == IBV_WC_SUCCESS && wrong == 0;
}

/* Whether the client has said that its last operation has completed; the word stays to be heard. */
static int client_is_done(int peer)
{
	char word;

	return recv(peer, &word, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

/* The next receive, or 0 when no more are to be expected: nothing has come for SILENCE since the client was done. */
static int poll_lossy(struct side *side, int peer, struct ibv_wc *wc)
{
	double end = seconds() + options.patience, silent = 0;
	int got;

	while ((got = ibv_poll_cq(side->cq, 1, wc)) == 0) {
		double now = seconds();

		if (silent == 0 && client_is_done(peer))
			silent = now;
		if (now > end || (silent > 0 && now - silent > SILENCE))
			return 0;
	}
	CHECK(got > 0, "ibv_poll_cq");
	return 1;
}

static int serve(struct side *side, int peer)
{
	int good = 1, expected = receives_taken();
	char word = 'g';
	struct ibv_wc wc;

	if (!options.receive_after_ms)
		post_receives(side, expected);
	say(peer, &word, 1);
	if (options.receive_after_ms) {
		usleep(options.receive_after_ms * 1000);
		post_receives(side, expected);
	}
	for (int i = 0; i < expected; i++) {
		if (options.lossy ? !poll_lossy(side, peer, &wc) : !poll_one(side->cq, &wc)) {
			if (options.lossy)
				break;
			printf("received %d: nothing in %g s\n", i, options.patience);
			good = 0;
			break;
		}
		good &= told_receive(side, &wc);
	}
	/* The client says when its last operation has completed. */
	hear(peer, &word, 1);
	printf("word %016llx first bytes %02x %02x %02x %02x\n",
	       (unsigned long long)*(volatile uint64_t *)(side->memory + WORD), side->memory[0], side->memory[1],
	       side->memory[2], side->memory[3]);
	return good;
}

/* -- the client -------------------------------------------------------------------------------------------------- */

/* Fills in what an operation of this name asks; the i-th of its kind. */
static void describe(const struct side *side, const char *op, int i, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	uint64_t there = side->theirs.memory;
	uint32_t rkey = side->theirs.rkey;

	if (options.service == IBV_QPT_UD) {
		wr->wr.ud.ah = side->ah;
		wr->wr.ud.remote_qpn = side->theirs.qpn;
		wr->wr.ud.remote_qkey = QKEY;
	} else if (!strcmp(op, "cas") || !strcmp(op, "faa")) {
		int cas = op[0] == 'c';

		wr->opcode = cas ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = there + WORD;
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.compare_add = cas ? WORD_AT_FIRST : WORD_ADDEND;
		wr->wr.atomic.swap = cas ? WORD_SWAPPED : 0;
		sge->addr += WORD;
		sge->length = 8;
		return;
	} else {
		wr->wr.rdma.remote_addr = there;
		wr->wr.rdma.rkey = strstr(op, "badkey") ? rkey ^ 0x5a : rkey;
	}
	if (!strcmp(op, "send") || !strcmp(op, "sendlong")) {
		wr->opcode = IBV_WR_SEND;
	} else if (!strcmp(op, "sendimm")) {
		wr->opcode = IBV_WR_SEND_WITH_IMM;
		wr->imm_data = htonl(0x51000000 + i);
	} else if (!strcmp(op, "sendinv")) {
		wr->opcode = IBV_WR_SEND_WITH_INV;
		wr->invalidate_rkey = rkey;
	} else if (!strcmp(op, "write") || !strcmp(op, "wbadkey")) {
		wr->opcode = IBV_WR_RDMA_WRITE;
	} else if (!strcmp(op, "writeimm")) {
		wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr->imm_data = htonl(0x52000000 + i);
	} else if (!strcmp(op, "read") || !strcmp(op, "rbadkey")) {
		wr->opcode = IBV_WR_RDMA_READ;
		wr->wr.rdma.remote_addr += READABLE;
		sge->addr += LANDING;
	} else {
		errno = EINVAL;
		die("no operation is called %s", op);
	}
}

/* Prints one completion; returns whether it was good. */
static int told_completion(const struct side *side, const char *op, const struct ibv_wc *wc)
{
	unsigned wrong = 0;
	unsigned long long before = 0;

	if (wc->status == IBV_WC_SUCCESS && !strcmp(op, "read"))
		wrong = wrong_bytes(side->memory + LANDING, 1, READABLE, options.size);
	if (wc->status == IBV_WC_SUCCESS && (!strcmp(op, "cas") || !strcmp(op, "faa")))
		before = *(volatile uint64_t *)(side->memory + WORD);
	printf("%s: status %d before %016llx wrong %u vendor %x (%s)\n", op, wc->status, before, wrong, wc->vendor_err,
	       ibv_wc_status_str(wc->status));
	return wc->status == IBV_WC_SUCCESS && wrong == 0;
}

static int operate(struct side *side, int peer)
{
	int good = 1, under_way = 0;
	char word, *at = strdup(options.ops), *op;
	struct ibv_wc wc;

	hear(peer, &word, 1);
	while (good && (op = strsep(&at, ",")))
		for (int i = 0; good && i < options.count; i++) {
			struct ibv_sge sge = {.addr = (uintptr_t)side->memory + SOURCE,
					      .length = options.size,
					      .lkey = side->mr->lkey};
			struct ibv_send_wr wr = {.wr_id = i,
						 .sg_list = &sge,
						 .num_sge = 1,
						 .send_flags = IBV_SEND_SIGNALED},
					   *bad;

			describe(side, op, i, &wr, &sge);
			CHECK(!ibv_post_send(side->qp, &wr, &bad), "ibv_post_send of %s", op);
			if (options.queued) {
				under_way++;
			} else if (poll_one(side->cq, &wc)) {
				good &= told_completion(side, op, &wc);
			} else {
				printf("%s: no completion in %g s\n", op, options.patience);
				good = 0;
			}
		}
	for (; under_way > 0; under_way--) {
		if (!poll_one(side->cq, &wc)) {
			printf("%d completions are missing\n", under_way);
			good = 0;
			break;
		}
		if (wc.status != IBV_WC_SUCCESS) {
			printf("queued %d: status %d (%s)\n", (int)wc.wr_id, wc.status, ibv_wc_status_str(wc.status));
			good = 0;
		}
	}
	word = 'd';
	say(peer, &word, 1);
	return good;
}

/* -- options ------------------------------------------------------------------------------------------------------ */

static enum ibv_mtu mtu_of(int bytes)
{
	for (int code = IBV_MTU_256; code <= IBV_MTU_4096; code++)
		if (128 << code == bytes)
			return code;
	errno = EINVAL;
	die("no path MTU is %d", bytes);
	return IBV_MTU_1024;
}

static void read_options(int argc, char **argv)
{
	static const struct option known[] = {
		{"port", 1, 0, 'p'},	{"to", 1, 0, 'c'},	    {"service", 1, 0, 'v'},	{"ops", 1, 0, 'o'},
		{"lossy", 0, 0, 'L'},
		{"size", 1, 0, 's'},	{"count", 1, 0, 'n'},	    {"queued", 0, 0, 'q'},	{"mtu", 1, 0, 'm'},
		{"psn", 1, 0, 'P'},	{"gid-index", 1, 0, 'g'},   {"timeout", 1, 0, 'T'},	{"retries", 1, 0, 'R'},
		{"patience", 1, 0, 'w'}, {"rnr-retries", 1, 0, 'N'}, {"receive-after", 1, 0, 'd'}, {0, 0, 0, 0},
	};
	int got;

	while ((got = getopt_long(argc, argv, "", known, NULL)) != -1) {
		long number = optarg ? strtol(optarg, NULL, 0) : 0;

		switch (got) {
		case 'p': options.port = number; break;
		case 'c': options.host = optarg; break;
		case 'o': options.ops = optarg; break;
		case 's': options.size = number; break;
		case 'n': options.count = number; break;
		case 'L': options.lossy = 1; break;
		case 'q': options.queued = 1; break;
		case 'm': options.mtu = mtu_of(number); break;
		case 'P': options.psn = number; break;
		case 'g': options.gid_index = number; break;
		case 'T': options.timeout = number; break;
		case 'R': options.retries = number; break;
		case 'N': options.rnr_retries = number; break;
		case 'd': options.receive_after_ms = number; break;
		case 'w': options.patience = number; break;
		case 'v':
			options.service = !strcmp(optarg, "uc") ? IBV_QPT_UC : !strcmp(optarg, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
			break;
		default: exit(2);
		}
	}
	errno = EINVAL;
	CHECK(options.port > 0 && options.size <= MEMORY / 4, "--port is needed, and a size of at most %u", MEMORY / 4);
}

int main(int argc, char **argv)
{
	struct side side = {0};
	int peer, good;

	read_options(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_side(&side);
	peer = reach_peer();
	say(peer, &side.mine, sizeof(side.mine));
	hear(peer, &side.theirs, sizeof(side.theirs));
	connect_side(&side);
	good = options.host ? operate(&side, peer) : serve(&side, peer);
	CHECK(!ibv_destroy_qp(side.qp), "ibv_destroy_qp");
	printf("%s\n", good ? "OK" : "FAILED");
	return !good;
}
