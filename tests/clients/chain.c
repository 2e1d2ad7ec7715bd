/* Chains of work requests through adverb/xchannel.h, within one process.
 *   chain order     WAIT and ENABLE between two queue pairs
 *   chain if        a conditional: compare-and-swap turns a NOP into a WRITE, for each of 48 bits
 *   chain stale     a change after the fetch is lost in an unmanaged queue, and seen in a managed one
 *   chain count     a completion queue that nobody polls goes on counting
 *   chain refuse    what is refused, and with which error
 *   chain endless   chains that never end: others go on, and they can be ended; one still runs at the exit
 * Each prints `OK` at its end. */
#include "chain.h"

#define LIMIT 20.0

static struct ibv_context *context;
static struct ibv_pd *pd;

/* What the chains work on. */
static struct {
	uint64_t one, two, out, hole;
	uint64_t address;
} words __attribute__((aligned(64)));
static struct ibv_mr *words_mr;

static struct wqe write_word(struct ibv_qp *qp, uint64_t *to, const uint64_t *from, uint8_t flags)
{
	struct wqe wqe = wqe_begin(qp, OP_WRITE, flags);

	wqe_raddr(&wqe, (uintptr_t)to, words_mr->rkey);
	wqe_data(&wqe, 8, words_mr->lkey, (uintptr_t)from);
	return wqe;
}

static struct ibv_qp *own_queue(struct ibv_cq *cq, int depth, uint32_t flags)
{
	struct ibv_qp *qp = make_cross(context, pd, cq, cq, depth, flags);

	connect_to_itself(qp);
	return qp;
}

static struct adverb_sq_info queue_of(struct ibv_qp *qp)
{
	struct adverb_sq_info info;

	CHECK(!adverb_sq_info(qp, &info), "adverb_sq_info");
	CHECK(info.buf && info.blocks >= 4 && !(info.blocks & (info.blocks - 1)), "the ring has %u blocks", info.blocks);
	return info;
}

/* A word goes from one queue's WRITE through the other's, which waits for it, and back. */
static void order(void)
{
	struct ibv_cq *first_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_cq *second_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *first = own_queue(first_cq, 16, ADVERB_QP_CREATE_CROSS_CHANNEL);
	struct ibv_qp *second = own_queue(second_cq, 16, ADVERB_QP_CREATE_CROSS_CHANNEL | ADVERB_QP_CREATE_MANAGED_SEND);
	struct wqe wqe;
	struct ibv_wc wc;

	words.one = 0x1111;
	/* Posted first, and all the same executed last. */
	wqe = write_word(second, &words.out, &words.two, SIGNALED);
	post_wqe(second, &wqe, 7);
	CHECK(!ibv_poll_cq(second_cq, 1, &wc), "a managed queue went without an ENABLE");
	wqe = write_word(first, &words.two, &words.one, SIGNALED);
	post_wqe(first, &wqe, 1);
	CHECK(!adverb_post_wait(first, first_cq, 0), "adverb_post_wait");
	CHECK(!adverb_post_enable(first, second, 1), "adverb_post_enable");
	/* What comes behind the WAIT for the other queue sees what it did. */
	CHECK(!adverb_post_wait(first, second_cq, 0), "adverb_post_wait");
	wqe = write_word(first, &words.hole, &words.out, SIGNALED);
	post_wqe(first, &wqe, 2);
	wc = wait_one(first_cq, LIMIT);
	CHECK(wc.wr_id == 1 && !wc.status, "the first WRITE: %s", ibv_wc_status_str(wc.status));
	wc = wait_one(first_cq, LIMIT);
	CHECK(wc.wr_id == 2 && !wc.status, "the last WRITE: %s", ibv_wc_status_str(wc.status));
	wc = wait_one(second_cq, LIMIT);
	CHECK(wc.wr_id == 7 && !wc.status, "the managed WRITE: %s", ibv_wc_status_str(wc.status));
	CHECK(words.out == 0x1111 && words.hole == 0x1111, "the word did not go round");
	CHECK(!ibv_destroy_qp(first) && !ibv_destroy_qp(second), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(first_cq) && !ibv_destroy_cq(second_cq), "ibv_destroy_cq");
}

/* The operand: all of the first 8 bytes of a WQE but its opcode and its segment count. */
static uint64_t with_operand(uint64_t control, const uint8_t key[6])
{
	uint8_t bytes[8];

	memcpy(bytes, &control, 8);
	memcpy(bytes, key, 3);
	memcpy(bytes + 4, key + 3, 3);
	memcpy(&control, bytes, 8);
	return control;
}

/* Posts `if (x == y) out = one`. `turn` counts the runs. */
static void conditional(struct ibv_qp *worker, struct ibv_cq *worker_cq, struct ibv_qp *reply, struct ibv_mr *code,
			const uint8_t x[6], const uint8_t y[6], uint32_t turn)
{
	struct adverb_sq_info sq = queue_of(reply);
	uint8_t *block = (uint8_t *)sq.buf + 64 * (sq.next % sq.blocks);
	struct wqe action = write_word(reply, &words.out, &words.one, SIGNALED);
	struct wqe cas = wqe_begin(worker, OP_CAS, SIGNALED);
	uint64_t done = control_word(&action), idle;
	struct wqe nop = action;

	nop.bytes[3] = OP_NOP;
	idle = control_word(&nop);
	memcpy(block, nop.bytes, 64);
	idle = with_operand(idle, x);
	memcpy(block, &idle, 8);
	CHECK(!adverb_ring(reply, sq.next + 1), "adverb_ring");
	wqe_raddr(&cas, (uintptr_t)block, code->rkey);
	wqe_atomic(&cas, done, with_operand(idle, y));
	wqe_data(&cas, 8, words_mr->lkey, (uintptr_t)&words.hole);
	words.out = 0;
	words.one = 0x2222 + turn;
	post_wqe(worker, &cas, turn);
	CHECK(!adverb_post_wait(worker, worker_cq, turn), "adverb_post_wait");
	CHECK(!adverb_post_enable(worker, reply, sq.next + 1), "adverb_post_enable");
}

static void branch(void)
{
	struct ibv_cq *worker_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_cq *reply_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *worker = own_queue(worker_cq, 16, ADVERB_QP_CREATE_CROSS_CHANNEL);
	struct ibv_qp *reply = own_queue(reply_cq, 4, ADVERB_QP_CREATE_CROSS_CHANNEL | ADVERB_QP_CREATE_MANAGED_SEND);
	struct adverb_sq_info sq = queue_of(reply);
	struct ibv_mr *code = reg_all(pd, sq.buf, 64ul * sq.blocks);
	uint8_t x[6] = {0x31, 0x41, 0x59, 0x26, 0x53, 0x58}, y[6];

	/* Turn 0 compares equal values; each other turn, values that differ in one bit. */
	for (uint32_t turn = 0; turn <= 48; turn++) {
		struct ibv_wc wc;
		uint64_t want = turn ? 0 : 0x2222;

		memcpy(y, x, 6);
		if (turn)
			y[(turn - 1) / 8] ^= 1 << (turn - 1) % 8;
		conditional(worker, worker_cq, reply, code, x, y, turn);
		wc = wait_one(worker_cq, LIMIT);
		CHECK(wc.opcode == IBV_WC_COMP_SWAP && !wc.status, "the CAS: %s", ibv_wc_status_str(wc.status));
		wc = wait_one(reply_cq, LIMIT);
		CHECK(!wc.status, "the conditional of turn %u: %s", turn, ibv_wc_status_str(wc.status));
		CHECK(words.out == want, "turn %u wrote %#llx", turn, (unsigned long long)words.out);
	}
	CHECK(!ibv_dereg_mr(code) && !ibv_destroy_qp(worker) && !ibv_destroy_qp(reply), "teardown");
	CHECK(!ibv_destroy_cq(worker_cq) && !ibv_destroy_cq(reply_cq), "ibv_destroy_cq");
}

/* A WRITE changes the source address of the WRITE behind it, in the same queue, and a WAIT stands between them. */
static uint64_t changed(int managed)
{
	uint32_t flags = ADVERB_QP_CREATE_CROSS_CHANNEL | (managed ? ADVERB_QP_CREATE_MANAGED_SEND : 0);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_cq *starter_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *queue = own_queue(cq, 16, flags);
	struct ibv_qp *starter = own_queue(starter_cq, 16, ADVERB_QP_CREATE_CROSS_CHANNEL);
	struct adverb_sq_info sq = queue_of(queue);
	struct ibv_mr *code = reg_all(pd, sq.buf, 64ul * sq.blocks);
	/* All of it is written by hand and then shown at once: what a doorbell of four blocks stands for. */
	uint8_t *ring = sq.buf;
	struct wqe change = wqe_begin(queue, OP_WRITE, SIGNALED), wqe;
	uint64_t result;

	words.one = 0xaaaa;
	words.two = 0xbbbb;
	words.out = 0;
	put64(&words.address, (uintptr_t)&words.two);
	/* The address is the last half of the data segment of block 3. */
	wqe_raddr(&change, (uintptr_t)ring + 3 * 64 + 40, code->rkey);
	wqe_data(&change, 8, words_mr->lkey, (uintptr_t)&words.address);
	memcpy(ring, change.bytes, 64);
	wqe = wqe_order(queue, OP_WAIT, 0, adverb_cq_number(cq));
	memcpy(ring + 64, wqe.bytes, 64);
	/* A managed queue enables itself; an unmanaged one may not be enabled. */
	wqe = managed ? wqe_order(queue, OP_SEND_ENABLE, 4, queue->qp_num) : wqe_begin(queue, OP_NOP, 0);
	memcpy(ring + 128, wqe.bytes, 64);
	wqe = write_word(queue, &words.out, &words.one, SIGNALED);
	memcpy(ring + 192, wqe.bytes, 64);
	CHECK(!adverb_ring(queue, 4), "adverb_ring");
	if (managed)
		CHECK(!adverb_post_enable(starter, queue, 3), "adverb_post_enable");
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = wait_one(cq, LIMIT);

		CHECK(!wc.status, "WRITE %d: %s", i, ibv_wc_status_str(wc.status));
	}
	result = words.out;
	CHECK(!ibv_dereg_mr(code) && !ibv_destroy_qp(queue) && !ibv_destroy_qp(starter), "teardown");
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(starter_cq), "ibv_destroy_cq");
	return result;
}

static void stale(void)
{
	CHECK(changed(0) == 0xaaaa, "an unmanaged queue saw a change that came after its fetch");
	CHECK(changed(1) == 0xbbbb, "a managed queue did not see a change that came before its ENABLE");
}

static void count(void)
{
	struct ibv_cq *cq = make_counter(context), *other = ibv_create_cq(context, 16, NULL, NULL, 0);
	/* Requests make room when their completions give way, so there are more of them. */
	struct ibv_qp *queue = own_queue(cq, 64, ADVERB_QP_CREATE_CROSS_CHANNEL);
	struct ibv_qp *waiter = own_queue(other, 16, ADVERB_QP_CREATE_CROSS_CHANNEL);
	struct wqe wqe = write_word(queue, &words.two, &words.one, SIGNALED);
	struct wqe last = write_word(waiter, &words.out, &words.one, SIGNALED);
	const uint64_t many = 1000;
	uint64_t produced = 0;
	struct ibv_wc wc;

	/* The waiter goes when the thousandth completion has come, of a queue with room for 16. */
	words.one = 0xcccc;
	words.out = 0;
	CHECK(!adverb_post_wait(waiter, cq, many - 1), "adverb_post_wait");
	post_wqe(waiter, &last, 5);
	for (uint64_t posted = 0; posted < many;) {
		int error;

		CHECK(!words.out, "the WAIT ended after %llu", (unsigned long long)produced);
		error = adverb_post_wqe(queue, wqe.bytes, posted);
		CHECK(!error || error == ENOMEM, "adverb_post_wqe");
		posted += !error;
		CHECK(!adverb_cq_produced(cq, &produced) && produced <= posted, "adverb_cq_produced");
	}
	wc = wait_one(other, LIMIT);
	CHECK(wc.wr_id == 5 && !wc.status && words.out == 0xcccc, "the waiter: %s", ibv_wc_status_str(wc.status));
	CHECK(!adverb_cq_produced(cq, &produced) && produced == many, "%llu were counted", (unsigned long long)produced);
	/* A poll gives the newest ones that there is room for. */
	wc = wait_one(cq, LIMIT);
	CHECK(wc.wr_id == many - (uint64_t)cq->cqe, "the oldest left is number %llu", (unsigned long long)wc.wr_id);
	CHECK(!ibv_destroy_qp(queue) && !ibv_destroy_qp(waiter), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other), "ibv_destroy_cq");
}

static int create_errno(uint32_t flags, enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.create_flags = flags,
	};

	errno = 0;
	CHECK(!ibv_create_qp_ex(context, &init), "flags %#x are taken", flags);
	return errno;
}

static void refuse(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_pd *other_pd = ibv_alloc_pd(context);
	const uint32_t cross = ADVERB_QP_CREATE_CROSS_CHANNEL, managed = cross | ADVERB_QP_CREATE_MANAGED_SEND;
	struct ibv_qp *plain = make_rc(pd, cq, 4), *queue = own_queue(cq, 4, cross);
	struct ibv_qp *foreign = make_cross(context, other_pd, cq, cq, 4, managed);
	struct wqe wqe = write_word(queue, &words.out, &words.one, SIGNALED), bad = wqe;
	struct ibv_wc wc;

	CHECK(create_errno(ADVERB_QP_CREATE_MANAGED_SEND, IBV_QPT_RC, cq) == EINVAL, "managed without cross-channel");
	CHECK(create_errno(cross, IBV_QPT_UD, cq) == EOPNOTSUPP, "a cross-channel datagram queue pair");
	CHECK(create_errno(1 << 8, IBV_QPT_RC, cq) == EOPNOTSUPP, "an unknown flag");
	CHECK(adverb_qp_flags(plain) == 0, "a plain queue pair has flags");
	CHECK(adverb_post_wait(plain, cq, 0) == EINVAL && errno == EINVAL, "WAIT on a plain queue pair");
	CHECK(adverb_post_enable(plain, queue, 1) == EINVAL, "ENABLE on a plain queue pair");
	CHECK(adverb_post_enable(queue, queue, 1) == EINVAL, "ENABLE of an unmanaged queue pair");
	CHECK(adverb_post_enable(queue, foreign, 1) == EINVAL, "ENABLE into another domain");
	CHECK(adverb_post_wqe(plain, wqe.bytes, 0) == EINVAL, "a WQE posted in INIT");
	bad.bytes[7] = 0;
	CHECK(adverb_post_wqe(queue, bad.bytes, 0) == EINVAL, "a WQE without segments");
	CHECK(adverb_ring(queue, 1000) == ENOMEM, "a doorbell beyond the ring");
	CHECK(!adverb_qp_words(queue)[0] && !adverb_qp_words(queue)[1], "words of a queue pair");
	adverb_cq_words(cq)[1] = 5;
	CHECK(adverb_cq_words(cq)[1] == 5, "words of a completion queue");
	/* What a program writes by hand is found out when it is executed. */
	bad = wqe_order(queue, OP_SEND_ENABLE, 1, foreign->qp_num);
	post_wqe(queue, &bad, 3);
	wc = wait_one(cq, LIMIT);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_LOC_QP_OP_ERR, "a forged ENABLE: %s", ibv_wc_status_str(wc.status));
	CHECK(!ibv_destroy_qp(plain) && !ibv_destroy_qp(queue) && !ibv_destroy_qp(foreign), "ibv_destroy_qp");
	CHECK(!ibv_dealloc_pd(other_pd) && !ibv_destroy_cq(cq), "teardown");
}

/* A queue that goes round for ever: ENABLEs of itself, each a quarter of the circle of 2^16 blocks further, and
 * between them what is given. */
static struct ibv_qp *round_and_round(struct ibv_cq *cq, struct ibv_qp *starter, int writes)
{
	const uint32_t flags = ADVERB_QP_CREATE_CROSS_CHANNEL | ADVERB_QP_CREATE_MANAGED_SEND;
	struct ibv_qp *qp = own_queue(cq, 8, flags);
	struct adverb_sq_info sq = queue_of(qp);
	struct wqe wqe;

	for (uint32_t at = 0; at < sq.blocks; at++) {
		if (at % (sq.blocks / 4))
			wqe = writes ? write_word(qp, &words.out, &words.one, 0) : wqe_begin(qp, OP_NOP, 0);
		else
			wqe = wqe_order(qp, OP_SEND_ENABLE, (at / (sq.blocks / 4) + 1) << 14, qp->qp_num);
		/* A NOP has its control segment alone. */
		if (!wqe.bytes[7])
			wqe.bytes[7] = 1;
		memcpy((uint8_t *)sq.buf + 64 * at, wqe.bytes, 64);
	}
	CHECK(!adverb_ring(qp, sq.blocks), "adverb_ring");
	CHECK(!adverb_post_enable(starter, qp, 1), "adverb_post_enable");
	return qp;
}

static void endless(void)
{
	const uint32_t cross = ADVERB_QP_CREATE_CROSS_CHANNEL;
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0), *counter = make_counter(context);
	struct ibv_qp *starter = own_queue(cq, 16, cross), *other = own_queue(cq, 16, cross);
	struct ibv_qp *loops[3];
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct wqe wqe;
	struct ibv_wc wc;

	for (int n = 0; n < 3; n++)
		loops[n] = round_and_round(counter, starter, n == 1);
	/* Others go on beside them, one request after the other. */
	for (int n = 0; n < 1000; n++) {
		words.two = n;
		wqe = write_word(other, &words.hole, &words.two, SIGNALED);
		post_wqe(other, &wqe, n);
		wc = wait_one(cq, LIMIT);
		CHECK(!wc.status && wc.wr_id == (uint64_t)n && words.hole == (uint64_t)n, "a WRITE beside endless chains: %s",
		      ibv_wc_status_str(wc.status));
	}
	/* They end when they are told to. */
	CHECK(!ibv_modify_qp(loops[0], &attr, IBV_QP_STATE), "modify to ERR");
	CHECK(!ibv_destroy_qp(loops[0]) && !ibv_destroy_qp(loops[1]), "ibv_destroy_qp");
	/* The third one goes on until the process has ended. */
	printf("OK\n");
	exit(0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"order", order}, {"if", branch}, {"stale", stale}, {"count", count}, {"refuse", refuse},
		     {"endless", endless}};
	size_t at = 0;

	while (at < sizeof(parts) / sizeof(*parts) && (argc < 2 || strcmp(parts[at].name, argv[1])))
		at++;
	CHECK(at < sizeof(parts) / sizeof(*parts), "usage: chain order|if|stale|count|refuse|endless");
	context = open_first();
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	words_mr = reg_all(pd, &words, sizeof(words));
	parts[at].run();
	CHECK(!ibv_dereg_mr(words_mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	printf("OK\n");
	return 0;
}
