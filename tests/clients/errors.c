/* Provokes one error completion and prints its status and the queue pair: `errors retry|access|length`.
 *   retry   a WRITE to a queue pair number that nobody has
 *   access  a WRITE with a key that nobody gave out
 *   length  a WRITE past the end of the peer's region
 * Exits 0 when the completion has the status that the InfiniBand specification gives the mistake. */
#include "client.h"

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	static char memory[8192] __attribute__((aligned(4096)));
	struct ibv_mr *mr;
	struct ibv_qp *a, *b;
	union ibv_gid gid = own_gid(context);
	struct ibv_sge sge = {.length = 64};
	struct ibv_send_wr wr = {.wr_id = 0xadbe, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	enum ibv_wc_status wanted = IBV_WC_REM_ACCESS_ERR;
	struct ibv_wc wc;
	int timeout = 14, retries = 7;
	uint32_t nobody;

	CHECK(pd && cq, "alloc_pd or create_cq");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr, "ibv_reg_mr");
	a = make_rc(pd, cq, 4);
	b = make_rc(pd, cq, 4);
	/* A number of this very process, whose owner is gone by the time of the WRITE. */
	nobody = b->qp_num;
	if (!strcmp(mode, "retry")) {
		CHECK(!ibv_destroy_qp(b), "ibv_destroy_qp");
		b = NULL;
		wanted = IBV_WC_RETRY_EXC_ERR;
		timeout = 10;
		retries = 3;
	}
	connect_rc(a, nobody, 7, 5, gid, timeout, retries);
	if (b)
		connect_rc(b, a->qp_num, 5, 7, gid, timeout, retries);
	sge.addr = (uintptr_t)memory;
	sge.lkey = mr->lkey;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	wr.wr.rdma.rkey = mr->rkey;
	if (!strcmp(mode, "access"))
		wr.wr.rdma.rkey ^= 0x00ffff00;
	else if (!strcmp(mode, "length"))
		wr.wr.rdma.remote_addr = (uintptr_t)memory + sizeof(memory) - 32;
	else
		CHECK(!strcmp(mode, "retry"), "usage: errors retry|access|length");
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(a, &wr, &bad), "ibv_post_send");
	wc = wait_one(cq, 10);
	printf("status %d (%s) wr_id %#llx qp_num %#x\n", wc.status, ibv_wc_status_str(wc.status),
	       (unsigned long long)wc.wr_id, wc.qp_num);
	CHECK(wc.status == wanted && wc.wr_id == 0xadbe && wc.qp_num == a->qp_num, "wanted status %d", wanted);
	CHECK(!ibv_destroy_qp(a) && (!b || !ibv_destroy_qp(b)), "ibv_destroy_qp");
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "teardown");
	CHECK(!ibv_close_device(context), "ibv_close_device");
	return 0;
}
