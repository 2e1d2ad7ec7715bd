/* A planted bug for memcheck: a program that frees memory which is still registered, and lets a WRITE land there. */
#include "client.h"

#define BYTES 4096

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *writer = make_rc(pd, cq, 4), *written = make_rc(pd, cq, 4);
	char *source = calloc(1, BYTES), *target = calloc(1, BYTES);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *from = ibv_reg_mr(pd, source, BYTES, access), *to = ibv_reg_mr(pd, target, BYTES, access);
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(from && to, "ibv_reg_mr");
	connect_rc(writer, written->qp_num, 0, 0, own_gid(context), 14, 7);
	connect_rc(written, writer->qp_num, 0, 0, own_gid(context), 14, 7);
	sge = (struct ibv_sge){.addr = (uintptr_t)source, .length = BYTES, .lkey = from->lkey};
	wr.wr.rdma.remote_addr = to->addr ? (uintptr_t)to->addr : 0;
	wr.wr.rdma.rkey = to->rkey;
	free(target);
	CHECK(!ibv_post_send(writer, &wr, &bad), "ibv_post_send");
	wc = wait_one(cq, 20);
	printf("completed with %s\n", ibv_wc_status_str(wc.status));
	return 0;
}
