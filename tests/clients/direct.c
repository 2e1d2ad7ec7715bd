/* mlx5's direct verbs, built against the system's infiniband/mlx5dv.h and libmlx5 alone.
 *   direct chain     a WAIT and an ENABLE written by hand, and a doorbell record; then no call at all
 *   direct raw       raw WQEs among requests that are built by ibv_wr_ calls
 *   direct refuse    what is refused, and with which error
 * Each prints `OK` at its end. */
#include "client.h"

#include <infiniband/mlx5dv.h>
#include <sched.h>

#define LIMIT 20.0
/* The kernel's numbers of the create flags, for which verbs.h has no names; and the opcodes. */
#define CROSS_CHANNEL (1 << 2)
#define MANAGED_SEND (1 << 3)
#define OPCODE_WAIT 0x0f
#define OPCODE_SEND_ENABLE 0x17

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint64_t words[8] __attribute__((aligned(64)));

/* The segment of a WAIT or ENABLE. */
struct order_seg {
	__be64 reserved;
	__be32 index;
	__be32 number;
};

struct queue {
	struct ibv_qp *qp;
	struct mlx5dv_qp dv;
	struct mlx5dv_cq cq;
	uint16_t next;
};

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	connect_rc(qp, qp->qp_num, 0, 0, own_gid(context), 14, 7);
}

static struct ibv_qp_init_attr_ex plain_attr(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
}

static struct queue make_queue(struct ibv_cq *cq, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = plain_attr(cq);
	struct queue queue = {.next = 0};
	struct mlx5dv_obj obj = {.qp = {.out = &queue.dv}, .cq = {.in = cq, .out = &queue.cq}};

	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = flags;
	queue.qp = ibv_create_qp_ex(context, &attr);
	CHECK(queue.qp, "ibv_create_qp_ex with flags %#x", flags);
	to_rts(queue.qp);
	obj.qp.in = queue.qp;
	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
	CHECK(queue.dv.sq.buf && queue.dv.sq.wqe_cnt >= 16 && queue.dv.sq.stride == 64, "the ring of %u blocks of %u",
	      queue.dv.sq.wqe_cnt, queue.dv.sq.stride);
	CHECK(queue.dv.dbrec && queue.dv.bf.reg && !queue.dv.comp_mask, "doorbell record and register");
	CHECK(!queue.cq.buf, "a completion queue in a layout of its own");
	return queue;
}

static void *next_block(struct queue *queue)
{
	void *block = (char *)queue->dv.sq.buf + 64 * (queue->next % queue->dv.sq.wqe_cnt);

	memset(block, 0, 64);
	return block;
}

static void put_order(struct queue *queue, uint8_t opcode, uint32_t index, uint32_t number)
{
	struct mlx5_wqe_ctrl_seg *ctrl = next_block(queue);
	struct order_seg *order = (void *)(ctrl + 1);

	mlx5dv_set_ctrl_seg(ctrl, queue->next++, opcode, 0, queue->qp->qp_num, 0, 2, 0, 0);
	order->index = htobe32(index);
	order->number = htobe32(number);
}

static void fill_write(void *wqe, struct ibv_qp *qp, uint16_t index, uint64_t *to, uint64_t *from)
{
	struct mlx5_wqe_ctrl_seg *ctrl = wqe;
	struct mlx5_wqe_raddr_seg *raddr = (void *)(ctrl + 1);
	struct mlx5_wqe_data_seg *data = (void *)(raddr + 1);

	mlx5dv_set_ctrl_seg(ctrl, index, MLX5_OPCODE_RDMA_WRITE, 0, qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	raddr->raddr = htobe64((uintptr_t)to);
	raddr->rkey = htobe32(mr->rkey);
	raddr->reserved = 0;
	mlx5dv_set_data_seg(data, 8, mr->lkey, (uintptr_t)from);
}

static void put_write(struct queue *queue, uint64_t *to, uint64_t *from)
{
	void *block = next_block(queue);

	fill_write(block, queue->qp, queue->next++, to, from);
}

/* As drivers do: the record, then the register. */
static void ring(struct queue *queue)
{
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&queue->dv.dbrec[MLX5_SND_DBR], htobe32(queue->next), __ATOMIC_RELEASE);
	*(volatile uint64_t *)queue->dv.bf.reg = 0;
}

static void spin_until(volatile uint64_t *word, uint64_t value)
{
	double end = seconds() + LIMIT;

	while (*word != value) {
		errno = ETIMEDOUT;
		CHECK(seconds() < end, "the word is %#llx, not %#llx", (unsigned long long)*word,
		      (unsigned long long)value);
		sched_yield();
	}
}

/* Words go 0 -> 1 by the first queue, 1 -> 2 by the managed one, 2 -> 3 by the first one again, many times. */
static void chain(void)
{
	struct ibv_cq *first_cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	struct ibv_cq *second_cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	struct queue first = make_queue(first_cq, CROSS_CHANNEL);
	struct queue second = make_queue(second_cq, CROSS_CHANNEL | MANAGED_SEND);
	struct ibv_wc wc;
	int polled = 0;

	/* Five blocks a turn go round a ring of 16. Polling a turn's completions makes room for the next ones. */
	for (uint32_t turn = 0; turn < 20; turn++) {
		words[0] = 0x100 + turn;
		put_write(&second, &words[2], &words[1]);
		ring(&second);
		put_write(&first, &words[1], &words[0]);
		put_order(&first, OPCODE_WAIT, 2 * turn, first.cq.cqn);
		put_order(&first, OPCODE_SEND_ENABLE, second.next, second.qp->qp_num);
		put_order(&first, OPCODE_WAIT, turn, second.cq.cqn);
		put_write(&first, &words[3], &words[2]);
		CHECK(words[3] != 0x100 + turn, "the chain went before its doorbell");
		ring(&first);
		/* No call of verbs from here to the result. */
		spin_until(&words[3], 0x100 + turn);
		for (int i = 0; i < 3; i++) {
			wc = wait_one(i < 2 ? first_cq : second_cq, LIMIT);
			CHECK(!wc.status, "turn %u: %s", turn, ibv_wc_status_str(wc.status));
			polled++;
		}
	}
	CHECK(polled == 60, "%d completions", polled);
	CHECK(!ibv_destroy_qp(first.qp) && !ibv_destroy_qp(second.qp), "ibv_destroy_qp");
	CHECK(!ibv_destroy_cq(first_cq) && !ibv_destroy_cq(second_cq), "ibv_destroy_cq");
}

static void raw(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = plain_attr(cq);
	struct mlx5dv_qp_init_attr own = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_RAW_WQE,
	};
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp_ex *direct;
	struct ibv_qp *qp;
	uint8_t wqe[64] = {0};

	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	qp = mlx5dv_create_qp(context, &attr, &own);
	CHECK(qp, "mlx5dv_create_qp");
	to_rts(qp);
	ex = ibv_qp_to_qp_ex(qp);
	direct = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	CHECK(direct && direct == mlx5dv_qp_ex_from_ibv_qp_ex(ex), "mlx5dv_qp_ex_from_ibv_qp_ex");
	fill_write(wqe, qp, 0xffff, &words[2], &words[1]);
	for (uint64_t turn = 0; turn < 40; turn++) {
		/* The raw one, whose index the library fills in, copies what the request before it wrote. */
		words[0] = 0x500 + turn;
		ibv_wr_start(ex);
		ex->wr_id = 2 * turn;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)&words[1]);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)&words[0], 8);
		ex->wr_id = 2 * turn + 1;
		mlx5dv_wr_raw_wqe(direct, wqe);
		if (turn % 4 == 3) {
			ibv_wr_abort(ex);
			continue;
		}
		CHECK(!ibv_wr_complete(ex), "ibv_wr_complete");
		for (uint64_t i = 0; i < 2; i++) {
			struct ibv_wc wc = wait_one(cq, LIMIT);

			CHECK(!wc.status && wc.wr_id == 2 * turn + i, "request %d: %s", (int)wc.wr_id,
			      ibv_wc_status_str(wc.status));
		}
		CHECK(words[2] == 0x500 + turn, "turn %d copied %#llx", (int)turn, (unsigned long long)words[2]);
	}
	/* All or none: the queue has room for 16, and 17 are asked for. */
	ibv_wr_start(ex);
	for (int i = 0; i < 17; i++)
		mlx5dv_wr_raw_wqe(direct, wqe);
	CHECK(ibv_wr_complete(ex) == ENOMEM, "17 raw WQEs in a queue of 16");
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "teardown");
}

static void refuse(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = plain_attr(cq);
	struct mlx5dv_qp_init_attr own = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST,
	};
	struct mlx5dv_context caps = {.comp_mask = ~0ull};
	struct mlx5dv_mkey_init_attr mkey = {.pd = pd, .max_entries = 4};
	struct mlx5dv_pd out = {0};
	struct mlx5dv_obj obj = {.pd = {.in = pd, .out = &out}};

	CHECK(!mlx5dv_query_device(context, &caps) && !caps.comp_mask, "mlx5dv_query_device");
	errno = 0;
	CHECK(!mlx5dv_create_qp(context, &attr, &own) && errno == EOPNOTSUPP, "a queue pair for memory keys");
	errno = 0;
	CHECK(!mlx5dv_create_mkey(&mkey) && errno == EOPNOTSUPP, "mlx5dv_create_mkey");
	errno = 0;
	CHECK(!mlx5dv_devx_umem_reg(context, words, sizeof(words), 0) && errno == EOPNOTSUPP, "mlx5dv_devx_umem_reg");
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == EOPNOTSUPP, "mlx5dv_init_obj of a domain");
	CHECK(!ibv_destroy_cq(cq), "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"chain", chain}, {"raw", raw}, {"refuse", refuse}};
	size_t at = 0;

	while (at < sizeof(parts) / sizeof(*parts) && (argc < 2 || strcmp(parts[at].name, argv[1])))
		at++;
	CHECK(at < sizeof(parts) / sizeof(*parts), "usage: direct chain|raw|refuse");
	context = open_first();
	CHECK(mlx5dv_is_supported(context->device), "no direct verbs");
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, words, sizeof(words), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr, "ibv_reg_mr");
	parts[at].run();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	printf("OK\n");
	return 0;
}
