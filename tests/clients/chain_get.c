/* A hash table whose gets are answered by work requests alone: the offload of RedN's figure 9, over
 * adverb/xchannel.h.
 *   chain_get server -p PORT         loads the chains, then waits in read(2)
 *   chain_get client -p PORT HOST    asks with a SEND of 14 bytes each: key, then the bucket's address
 * The server's program never looks at a request: its receive puts the key and the address into WQEs, a READ fetches
 * the bucket into the reply's WQE, a compare-and-swap turns the reply from a NOP into a WRITE with immediate if the
 * key is the bucket's, and a queue of WAITs and ENABLEs keeps them in order. */
#include "chain.h"

#define LIMIT 20.0
#define GETS 16
#define BUCKETS 8
#define VALUE 64

struct bucket {
	uint8_t key[6];
	uint8_t pointer[8]; /* big-endian, as WQEs have it */
	uint8_t length[4];
	uint8_t pad[14];
};

static struct {
	struct bucket table[BUCKETS];
	char values[BUCKETS][VALUE];
	uint64_t old;
} data __attribute__((aligned(64)));

/* The first key is all that operand bytes can be; the others are odd and even. */
static void key_of(int bucket, uint8_t key[6])
{
	for (int i = 0; i < 6; i++)
		key[i] = bucket ? bucket * 37 + i * 11 : 0xff;
}

static void fill_table(void)
{
	for (int i = 0; i < BUCKETS; i++) {
		key_of(i, data.table[i].key);
		put64(data.table[i].pointer, (uintptr_t)data.values[i]);
		put32(data.table[i].length, VALUE - i);
		snprintf(data.values[i], VALUE, "the value of bucket number %d", i);
	}
}

/* The queues of a server, and the regions over their rings. */
struct server {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *recv_cq, *worker_cq, *order_cq, *reply_cq;
	struct ibv_qp *client, *worker, *order;
	struct adverb_sq_info replies, works;
	struct ibv_mr *mr, *reply_code, *worker_code;
};

static void make_queues(struct server *s)
{
	const uint32_t cross = ADVERB_QP_CREATE_CROSS_CHANNEL, managed = cross | ADVERB_QP_CREATE_MANAGED_SEND;

	s->context = open_first();
	s->pd = ibv_alloc_pd(s->context);
	s->recv_cq = make_counter(s->context);
	s->worker_cq = make_counter(s->context);
	s->order_cq = make_counter(s->context);
	s->reply_cq = make_counter(s->context);
	s->client = make_cross(s->context, s->pd, s->reply_cq, s->recv_cq, GETS, managed);
	s->worker = make_cross(s->context, s->pd, s->worker_cq, s->worker_cq, 4 * GETS, managed);
	s->order = make_cross(s->context, s->pd, s->order_cq, s->order_cq, 4 * GETS, cross);
	connect_to_itself(s->worker);
	connect_to_itself(s->order);
	CHECK(!adverb_sq_info(s->client, &s->replies) && !adverb_sq_info(s->worker, &s->works), "adverb_sq_info");
	s->mr = reg_all(s->pd, &data, sizeof(data));
	s->reply_code = reg_all(s->pd, s->replies.buf, 64ul * s->replies.blocks);
	s->worker_code = reg_all(s->pd, s->works.buf, 64ul * s->works.blocks);
}

/* One chain: what the get number `get` runs through. Each takes a block of replies and three of the worker. */
static void load(struct server *s, uint32_t get, const struct hello *peer)
{
	uintptr_t reply = (uintptr_t)s->replies.buf + 64 * get, work = (uintptr_t)s->works.buf + 64 * 3 * get;
	struct wqe answer = wqe_begin(s->client, OP_WRITE_IMM, SIGNALED), idle;
	struct wqe read = wqe_begin(s->worker, OP_READ, 0), cas = wqe_begin(s->worker, OP_CAS, SIGNALED | FENCE);
	struct ibv_sge into[3] = {
		{.addr = work + 128 + 41, .length = 3, .lkey = s->worker_code->lkey}, /* the CAS's compare, k5 k4 k3 */
		{.addr = work + 128 + 45, .length = 3, .lkey = s->worker_code->lkey}, /* and k2 k1 k0 */
		{.addr = work + 16, .length = 8, .lkey = s->worker_code->lkey},       /* the READ's remote address */
	};
	struct ibv_recv_wr recv = {.wr_id = get, .sg_list = into, .num_sge = 3}, *bad;
	struct wqe wqe;

	put32(answer.bytes + 12, get);
	wqe_raddr(&answer, peer->addr + get * VALUE, peer->rkey);
	wqe_data(&answer, 0, s->mr->lkey, 0);
	put16(answer.bytes + 1, get);
	idle = answer;
	idle.bytes[3] = OP_NOP;
	memcpy((void *)reply, idle.bytes, 64);

	wqe_raddr(&read, 0, s->mr->rkey);
	wqe_data(&read, 3, s->reply_code->lkey, reply);	     /* the operand's first half */
	wqe_data(&read, 3, s->reply_code->lkey, reply + 4);  /* and its second */
	wqe_data(&read, 8, s->reply_code->lkey, reply + 40); /* where the value is */
	wqe_data(&read, 4, s->reply_code->lkey, reply + 32); /* and how long */
	memcpy((void *)work, read.bytes, 128);

	wqe_raddr(&cas, reply, s->reply_code->rkey);
	wqe_atomic(&cas, control_word(&answer), control_word(&idle));
	wqe_data(&cas, 8, s->mr->lkey, (uintptr_t)&data.old);
	memcpy((void *)(work + 128), cas.bytes, 64);

	CHECK(!ibv_post_recv(s->client, &recv, &bad), "ibv_post_recv");
	wqe = wqe_order(s->order, OP_WAIT, get, adverb_cq_number(s->recv_cq));
	post_wqe(s->order, &wqe, 0);
	CHECK(!adverb_post_enable(s->order, s->worker, 3 * (get + 1)), "adverb_post_enable");
	CHECK(!adverb_post_wait(s->order, s->worker_cq, get), "adverb_post_wait");
	CHECK(!adverb_post_enable(s->order, s->client, get + 1), "adverb_post_enable");
}

static void serve(int port)
{
	struct server s;
	struct hello mine, theirs;
	uint64_t produced;
	char done;
	int fd;

	make_queues(&s);
	fill_table();
	mine = (struct hello){.qpn = s.client->qp_num, .addr = (uintptr_t)data.table, .gid = own_gid(s.context)};
	fd = listen_once(port);
	exchange(fd, &mine, &theirs);
	connect_rc(s.client, theirs.qpn, 0, 0, theirs.gid, 14, 7);
	for (uint32_t get = 0; get < GETS; get++)
		load(&s, get, &theirs);
	CHECK(!adverb_ring(s.client, GETS) && !adverb_ring(s.worker, 3 * GETS), "adverb_ring");
	exchange(fd, &mine, &theirs);
	/* From here on no call of this library until the client is done. */
	CHECK(recv(fd, &done, 1, MSG_WAITALL) == 1, "wait for the client");
	CHECK(!adverb_cq_produced(s.recv_cq, &produced) && produced == GETS, "%d receives", (int)produced);
	CHECK(!adverb_cq_produced(s.worker_cq, &produced) && produced == GETS, "%d compared", (int)produced);
	CHECK(!adverb_cq_produced(s.order_cq, &produced) && !produced, "an order failed");
	printf("server answered\n");
}

static void ask(const char *host, int port)
{
	static char values[GETS][VALUE];
	static uint8_t request[14];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *send_cq = ibv_create_cq(context, GETS, NULL, NULL, 0);
	struct ibv_cq *cq = ibv_create_cq(context, GETS, NULL, NULL, 0);
	struct ibv_qp *qp = make_cross(context, pd, send_cq, cq, GETS, 0);
	struct ibv_mr *mr = reg_all(pd, values, sizeof(values));
	struct ibv_mr *request_mr = reg_all(pd, request, sizeof(request));
	struct hello mine = {.qpn = qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)values}, theirs;
	int fd = dial(host, port), hits = 0;

	mine.gid = own_gid(context);
	exchange(fd, &mine, &theirs);
	connect_rc(qp, theirs.qpn, 0, 0, theirs.gid, 14, 7);
	for (int get = 0; get < GETS; get++) {
		struct ibv_recv_wr recv = {.wr_id = get}, *bad;

		CHECK(!ibv_post_recv(qp, &recv, &bad), "ibv_post_recv");
	}
	exchange(fd, &mine, &theirs);
	/* Every third get asks a bucket for a key that another one has: a miss, which nothing answers. */
	for (int get = 0; get < GETS; get++) {
		int bucket = get % BUCKETS, miss = get % 3 == 1;
		struct ibv_sge sge = {.addr = (uintptr_t)request, .length = sizeof(request), .lkey = request_mr->lkey};
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		};
		struct ibv_send_wr *bad;
		struct ibv_wc wc;
		uint8_t key[6];

		key_of(miss ? bucket + 1 : bucket, key);
		for (int i = 0; i < 6; i++)
			request[i] = key[5 - i];
		put64(request + 6, theirs.addr + bucket * sizeof(struct bucket));
		CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
		wc = wait_one(send_cq, LIMIT);
		CHECK(!wc.status, "SEND %d: %s", get, ibv_wc_status_str(wc.status));
		if (miss)
			continue;
		wc = wait_one(cq, LIMIT);
		CHECK(!wc.status && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM, "get %d: %s", get, ibv_wc_status_str(wc.status));
		CHECK(ntohl(wc.imm_data) == (uint32_t)get && wc.byte_len == (uint32_t)(VALUE - bucket),
		      "get %d: answer %u of %u bytes", get, ntohl(wc.imm_data), wc.byte_len);
		CHECK(!strncmp(values[get], "the value of bucket number ", 27) && atoi(values[get] + 27) == bucket,
		      "get %d: %s", get, values[get]);
		hits++;
	}
	for (int get = 1; get < GETS; get += 3)
		CHECK(!values[get][0], "get %d was a miss, and was answered", get);
	CHECK(write(fd, "d", 1) == 1, "tell the server");
	printf("client got %d values, missed %d\n", hits, GETS - hits);
}

int main(int argc, char **argv)
{
	int server = argc > 1 && !strcmp(argv[1], "server"), port = 0, option;

	optind = 2;
	while ((option = getopt(argc, argv, "p:")) == 'p')
		port = atoi(optarg);
	CHECK(port > 0 && (server || optind < argc), "usage: chain_get server -p PORT | client -p PORT HOST");
	if (server)
		serve(port);
	else
		ask(argv[optind], port);
	return 0;
}
