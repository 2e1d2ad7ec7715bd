/* The calls of the vendor's experimental verbs, through adverb/verbs_exp.h, as programs with chains use them.
 *   exp task      a chain over two queue pairs, posted as a list of tasks, with relative counts
 *   exp count     an ENABLE counts work requests, of which some take two blocks
 *   exp recv      receives that an ENABLE lets messages have
 *   exp masked    masked atomics
 *   exp refuse    what is refused, and with which error
 * Each prints `OK` at its end. */
#include "client.h"

#include <infiniband/verbs_exp.h>

#define LIMIT 20.0
#define TURNS 50

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint64_t words[16] __attribute__((aligned(64)));

static struct ibv_cq *make_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_exp_cq_attr attr = {
		.comp_mask = IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS,
		.cq_cap_flags = IBV_EXP_CQ_IGNORE_OVERRUN,
	};

	CHECK(cq && !ibv_exp_modify_cq(cq, &attr, IBV_EXP_CQ_CAP_FLAGS), "a completion queue that goes on counting");
	return cq;
}

static struct ibv_qp *try_qp(struct ibv_cq *cq, uint32_t flags)
{
	struct ibv_exp_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 64, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.exp_create_flags = flags,
	};

	errno = 0;
	return ibv_exp_create_qp(context, &attr);
}

static void connect_to(struct ibv_qp *qp, uint32_t number)
{
	struct ibv_exp_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE |
				   IBV_EXP_ACCESS_REMOTE_READ | IBV_EXP_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(!ibv_exp_modify_qp(qp, &init,
				 IBV_EXP_QP_STATE | IBV_EXP_QP_PKEY_INDEX | IBV_EXP_QP_PORT | IBV_EXP_QP_ACCESS_FLAGS),
	      "modify to INIT");
	connect_rc(qp, number, 0, 0, own_gid(context), 14, 7);
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, uint32_t flags)
{
	struct ibv_qp *qp = try_qp(cq, flags);

	CHECK(qp, "ibv_exp_create_qp with flags %#x", flags);
	connect_to(qp, qp->qp_num);
	return qp;
}

static struct ibv_sge word(uint64_t *at)
{
	return (struct ibv_sge){.addr = (uintptr_t)at, .length = 8, .lkey = mr->lkey};
}

static struct ibv_exp_send_wr copy(uint64_t *to, struct ibv_sge *from, uint64_t wr_id)
{
	return (struct ibv_exp_send_wr){
		.wr_id = wr_id,
		.sg_list = from,
		.num_sge = 1,
		.exp_opcode = IBV_EXP_WR_RDMA_WRITE,
		.wr.rdma = {.remote_addr = (uintptr_t)to, .rkey = mr->rkey},
		.exp_send_flags = IBV_EXP_SEND_SIGNALED,
	};
}

static struct ibv_exp_send_wr wait_for(struct ibv_cq *cq, int32_t count, uint64_t flags)
{
	return (struct ibv_exp_send_wr){
		.exp_opcode = IBV_EXP_WR_CQE_WAIT,
		.task.cqe_wait = {.cq = cq, .cq_count = count},
		.exp_send_flags = flags,
	};
}

static struct ibv_exp_send_wr enable(enum ibv_exp_wr_opcode opcode, struct ibv_qp *qp, int32_t count, uint64_t flags)
{
	return (struct ibv_exp_send_wr){
		.exp_opcode = opcode,
		.task.wqe_enable = {.qp = qp, .wqe_count = count},
		.exp_send_flags = flags,
	};
}

static int post_one(struct ibv_qp *qp, struct ibv_exp_send_wr wr)
{
	struct ibv_exp_send_wr *bad = NULL;
	int error = ibv_exp_post_send(qp, &wr, &bad);

	CHECK(!error || (bad == &wr && errno == error), "the request that failed");
	return error;
}

static void spin_until(volatile uint64_t *at, uint64_t value, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double end = seconds() + LIMIT;

	while (*at != value) {
		CHECK(ibv_poll_cq(cq, 0, &wc) >= 0, "ibv_poll_cq");
		errno = ETIMEDOUT;
		CHECK(seconds() < end, "the word is %#llx, not %#llx", (unsigned long long)*at, (unsigned long long)value);
	}
}

/* Each turn a word goes 0 -> 1 by the controller, 1 -> 2 by the managed queue, 2 -> 3 by the controller. */
static void task(void)
{
	const uint32_t cross = IBV_EXP_QP_CREATE_CROSS_CHANNEL;
	struct ibv_cq *control_cq = make_cq(), *managed_cq = make_cq();
	struct ibv_qp *control = make_qp(control_cq, cross);
	struct ibv_qp *managed = make_qp(managed_cq, cross | IBV_EXP_QP_CREATE_MANAGED_SEND);
	struct ibv_sge from[3] = {word(&words[0]), word(&words[1]), word(&words[2])};

	for (uint64_t turn = 1; turn <= TURNS; turn++) {
		/* Of two completions of its own queue a turn, the controller waits for the first, then for both. */
		struct ibv_exp_send_wr middle = copy(&words[2], &from[1], 0);
		struct ibv_exp_send_wr list[] = {
			copy(&words[1], &from[0], 1),
			wait_for(control_cq, 1, 0),
			enable(IBV_EXP_WR_SEND_ENABLE, managed, 1, IBV_EXP_SEND_WAIT_EN_LAST),
			wait_for(managed_cq, 1, IBV_EXP_SEND_WAIT_EN_LAST),
			copy(&words[3], &from[2], 2),
			wait_for(control_cq, 2, IBV_EXP_SEND_WAIT_EN_LAST),
		};
		struct ibv_exp_task tasks[] = {
			{.task_type = IBV_EXP_TASK_SEND, .item = {.qp = managed, {.send_wr = &middle}}},
			{.task_type = IBV_EXP_TASK_SEND, .item = {.qp = control, {.send_wr = list}}},
		};
		struct ibv_exp_task *bad;

		for (size_t i = 0; i + 1 < sizeof(list) / sizeof(*list); i++)
			list[i].next = &list[i + 1];
		tasks[0].next = &tasks[1];
		words[0] = turn;
		CHECK(!ibv_exp_post_task(context, tasks, &bad), "ibv_exp_post_task in turn %d", (int)turn);
		spin_until(&words[3], turn, control_cq);
		/* What completed gives its place back. */
		for (struct ibv_wc wc; ibv_poll_cq(control_cq, 1, &wc) + ibv_poll_cq(managed_cq, 1, &wc) > 0;)
			CHECK(!wc.status, "turn %d: %s", (int)turn, ibv_wc_status_str(wc.status));
	}
	CHECK(!ibv_destroy_qp(control) && !ibv_destroy_qp(managed), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(control_cq) && !ibv_destroy_cq(managed_cq), "ibv_destroy_cq");
}

/* A READ into four places is a WQE of two blocks; an ENABLE of two requests lets it and one behind it go. */
static void count(void)
{
	const uint32_t cross = IBV_EXP_QP_CREATE_CROSS_CHANNEL;
	struct ibv_cq *control_cq = make_cq(), *cq = make_cq();
	struct ibv_qp *control = make_qp(control_cq, cross);
	struct ibv_qp *managed = make_qp(cq, cross | IBV_EXP_QP_CREATE_MANAGED_SEND);
	struct ibv_sge into[4] = {word(&words[4]), word(&words[5]), word(&words[6]), word(&words[7])}, from = word(&words[0]);
	struct ibv_exp_send_wr read = copy(&words[0], into, 1);
	struct ibv_wc wc;

	read.exp_opcode = IBV_EXP_WR_RDMA_READ;
	read.num_sge = 4;
	for (int i = 0; i < 4; i++)
		words[i] = 0x70 + i;
	CHECK(!post_one(managed, read) && !post_one(managed, copy(&words[8], &from, 2)), "two requests");
	CHECK(!post_one(managed, copy(&words[9], &from, 3)), "a third one");
	CHECK(post_one(control, enable(IBV_EXP_WR_SEND_ENABLE, managed, 4, 0)) == EINVAL, "four of three");
	CHECK(!post_one(control, enable(IBV_EXP_WR_SEND_ENABLE, managed, 2, IBV_EXP_SEND_WAIT_EN_LAST)), "two of three");
	CHECK(!post_one(control, wait_for(cq, 2, IBV_EXP_SEND_WAIT_EN_LAST)), "their completions");
	CHECK(!post_one(control, copy(&words[10], &from, 4)), "a request behind them");
	wc = wait_one(control_cq, LIMIT);
	CHECK(wc.wr_id == 4 && !wc.status, "the controller: %s", ibv_wc_status_str(wc.status));
	CHECK(words[4] == 0x70 && words[7] == 0x73 && words[8] == 0x70, "what was read and copied");
	CHECK(!words[9], "the third request went without an ENABLE");
	/* What is counted from has moved on; 0 means all. */
	CHECK(!post_one(control, enable(IBV_EXP_WR_SEND_ENABLE, managed, 0, IBV_EXP_SEND_WAIT_EN_LAST)), "all");
	for (uint64_t id = 1; id <= 3; id++) {
		wc = wait_one(cq, LIMIT);
		CHECK(wc.wr_id == id && !wc.status, "request %d: %s", (int)id, ibv_wc_status_str(wc.status));
	}
	CHECK(words[9] == 0x70, "the third request");
	CHECK(!ibv_destroy_qp(control) && !ibv_destroy_qp(managed), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(control_cq) && !ibv_destroy_cq(cq), "ibv_destroy_cq");
}

/* Two receives, of which one is enabled: the second message waits for the second ENABLE. */
static void recv_enable(void)
{
	const uint32_t cross = IBV_EXP_QP_CREATE_CROSS_CHANNEL;
	struct ibv_cq *cq = make_cq(), *recv_cq = make_cq();
	struct ibv_qp *control = make_qp(cq, cross);
	struct ibv_qp *target = try_qp(recv_cq, IBV_EXP_QP_CREATE_MANAGED_RECV), *sender = try_qp(cq, 0);
	struct ibv_sge from = word(&words[0]);

	CHECK(target && sender, "a managed receive queue");
	connect_to(target, sender->qp_num);
	connect_to(sender, target->qp_num);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge into = word(&words[4 + i]);
		struct ibv_recv_wr recv = {.wr_id = i, .sg_list = &into, .num_sge = 1};
		struct ibv_exp_task item = {.task_type = IBV_EXP_TASK_RECV, .item = {.qp = target, {.recv_wr = &recv}}}, *bad;

		CHECK(!ibv_exp_post_task(context, &item, &bad), "a receive");
	}
	words[0] = 0x99;
	for (int i = 0; i < 2; i++) {
		struct ibv_exp_send_wr send = copy(NULL, &from, 10 + i);
		struct ibv_wc wc;

		send.exp_opcode = IBV_EXP_WR_SEND;
		CHECK(!post_one(sender, send), "a SEND");
		CHECK(!ibv_poll_cq(recv_cq, 1, &wc), "a message took a receive that was not enabled");
		CHECK(!post_one(control, enable(IBV_EXP_WR_RECV_ENABLE, target, 1, IBV_EXP_SEND_WAIT_EN_LAST)), "RECV_ENABLE");
		wc = wait_one(recv_cq, LIMIT);
		CHECK(wc.wr_id == (uint64_t)i && !wc.status && words[4 + i] == 0x99, "receive %d: %s", i,
		      ibv_wc_status_str(wc.status));
		wc = wait_one(cq, LIMIT);
		CHECK(wc.wr_id == (uint64_t)(10 + i) && !wc.status, "SEND %d: %s", i, ibv_wc_status_str(wc.status));
	}
	CHECK(!ibv_destroy_qp(control) && !ibv_destroy_qp(target) && !ibv_destroy_qp(sender), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(recv_cq), "ibv_destroy_cq");
}

static void masked(void)
{
	struct ibv_cq *cq = make_cq();
	struct ibv_qp *qp = make_qp(cq, IBV_EXP_QP_CREATE_CROSS_CHANNEL);
	struct ibv_sge into = word(&words[1]);
	struct ibv_exp_send_wr wr = {
		.wr_id = 1,
		.sg_list = &into,
		.num_sge = 1,
		.exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP,
		.ext_op.masked_atomics = {.log_arg_sz = 3, .remote_addr = (uintptr_t)&words[0], .rkey = mr->rkey},
		.exp_send_flags = IBV_EXP_SEND_SIGNALED,
	};
	struct ibv_wc wc;

	/* Compares the low byte only, and changes the high one only. */
	wr.ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_val = 0x88;
	wr.ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_mask = 0xff;
	wr.ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_val = 0xaaaaaaaaaaaaaaaa;
	wr.ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_mask = 0xff00000000000000;
	words[0] = 0x1122334455667788;
	CHECK(!post_one(qp, wr), "a masked compare-and-swap");
	wc = wait_one(cq, LIMIT);
	CHECK(!wc.status && wc.wr_id == 1, "the swap: %s", ibv_wc_status_str(wc.status));
	CHECK(words[0] == 0xaa22334455667788 && words[1] == 0x1122334455667788, "the swap left %#llx",
	      (unsigned long long)words[0]);
	/* Two fields of 32 bits: the carry of the low one is lost. */
	memset(&wr.ext_op.masked_atomics.wr_data, 0, sizeof(wr.ext_op.masked_atomics.wr_data));
	wr.exp_opcode = IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD;
	wr.ext_op.masked_atomics.wr_data.inline_data.fetch_add.add_val = 0x00000001ffffffff;
	wr.ext_op.masked_atomics.wr_data.inline_data.fetch_add.field_boundary = 0x8000000080000000;
	words[0] = 0x0000000500000003;
	CHECK(!post_one(qp, wr), "a masked add");
	wc = wait_one(cq, LIMIT);
	CHECK(!wc.status && words[0] == 0x0000000600000002, "the add left %#llx", (unsigned long long)words[0]);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "teardown");
}

static void refuse(void)
{
	struct ibv_exp_device_attr device = {.comp_mask = IBV_EXP_DEVICE_ATTR_RESERVED - 1};
	struct ibv_cq *cq = make_cq();
	struct ibv_qp *plain = make_qp(cq, 0), *queue = make_qp(cq, IBV_EXP_QP_CREATE_CROSS_CHANNEL);
	struct ibv_sge from = word(&words[0]);
	struct ibv_exp_send_wr calc = copy(&words[1], &from, 1);
	struct ibv_exp_reg_mr_in in = {.pd = pd, .addr = words, .length = sizeof(words), .comp_mask = 1};
	struct ibv_exp_cq_attr attr = {.comp_mask = IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS};

	CHECK(!ibv_exp_query_device(context, &device), "ibv_exp_query_device");
	CHECK(device.exp_device_cap_flags & IBV_EXP_DEVICE_CROSS_CHANNEL && device.max_qp_wr > 0, "capabilities");
	CHECK(device.comp_mask & IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS, "which of them are there");
	CHECK(!try_qp(cq, IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY) && errno == EOPNOTSUPP, "replies the other way round");
	CHECK(!ibv_exp_reg_mr(&in) && errno == EOPNOTSUPP, "a region with extensions");
	CHECK(ibv_exp_modify_cq(cq, &attr, IBV_EXP_CQ_CAP_FLAGS) == EOPNOTSUPP, "overruns that count again");
	CHECK(post_one(plain, wait_for(cq, 1, 0)) == EINVAL, "a WAIT on a plain queue pair");
	CHECK(post_one(queue, wait_for(cq, 0, 0)) == EINVAL, "a WAIT for nothing");
	CHECK(post_one(queue, enable(IBV_EXP_WR_SEND_ENABLE, queue, 1, 0)) == EINVAL, "an ENABLE of an unmanaged one");
	CHECK(post_one(queue, enable(IBV_EXP_WR_RECV_ENABLE, queue, 1, 0)) == EINVAL, "an ENABLE of its receives");
	calc.exp_send_flags |= IBV_EXP_SEND_WITH_CALC;
	CHECK(post_one(queue, calc) == EOPNOTSUPP, "a calculation");
	CHECK(!ibv_destroy_qp(plain) && !ibv_destroy_qp(queue) && !ibv_destroy_cq(cq), "teardown");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"task", task}, {"count", count}, {"recv", recv_enable}, {"masked", masked}, {"refuse", refuse}};
	struct ibv_exp_reg_mr_in in = {.addr = words, .length = sizeof(words)};
	size_t at = 0;

	while (at < sizeof(parts) / sizeof(*parts) && (argc < 2 || strcmp(parts[at].name, argv[1])))
		at++;
	CHECK(at < sizeof(parts) / sizeof(*parts), "usage: exp task|count|recv|masked|refuse");
	context = open_first();
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	in.pd = pd;
	in.exp_access = IBV_EXP_ACCESS_LOCAL_WRITE | IBV_EXP_ACCESS_REMOTE_WRITE | IBV_EXP_ACCESS_REMOTE_READ |
			IBV_EXP_ACCESS_REMOTE_ATOMIC;
	mr = ibv_exp_reg_mr(&in);
	CHECK(mr, "ibv_exp_reg_mr");
	parts[at].run();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	printf("OK\n");
	return 0;
}
