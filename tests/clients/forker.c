/* fork with RDMA: `forker parent|child`.
 *   parent  the parent has a connected pair and forks; the child does no verbs and exits; the parent's traffic
 *           goes on, and no write of the child's reaches its memory
 *   child   the parent opens the device, makes objects, and forks; the child opens it too, gets a NIC of its own, to
 *           which its parent's objects are unknown, and both move data at once; so does a child of the child */
#include "client.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define BYTES 8192

static void move_data(struct ibv_qp *a, struct ibv_cq *cq, struct ibv_mr *mr, char *memory, int round)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 4096, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_wc wc;

	memset(memory, round, 4096);
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(a, &wr, &bad), "ibv_post_send");
	wc = wait_one(cq, 10);
	CHECK(wc.status == IBV_WC_SUCCESS, "round %d: %s", round, ibv_wc_status_str(wc.status));
	for (int i = 4096; i < BYTES; i++)
		CHECK(memory[i] == (char)round, "round %d: byte %d is wrong", round, i);
}

/* One device, one connected pair in one process, some rounds of data; forks in the middle when asked. */
static void session(int fork_inside)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	struct ibv_qp *a, *b;
	union ibv_gid gid = own_gid(context);

	CHECK(pd && cq && memory != MAP_FAILED, "alloc_pd, create_cq or mmap");
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr, "ibv_reg_mr");
	a = make_rc(pd, cq, 4);
	b = make_rc(pd, cq, 4);
	connect_rc(a, b->qp_num, 1, 1, gid, 14, 7);
	connect_rc(b, a->qp_num, 1, 1, gid, 14, 7);
	for (int round = 1; round <= 40; round++) {
		move_data(a, cq, mr, memory, round);
		if (fork_inside && round % 10 == 0) {
			pid_t pid = fork();
			int status;

			CHECK(pid >= 0, "fork");
			if (pid == 0) {
				/* The registered pages may or may not be mapped here, so the child keeps off them. */
				char *own = malloc(1 << 20);

				memset(own, 0xee, 1 << 20);
				free(own);
				_exit(0);
			}
			/* Traffic with the child alive, too. */
			move_data(a, cq, mr, memory, round + 100);
			CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x", status);
		}
	}
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(mr), "teardown");
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	munmap(memory, BYTES);
}

/* A process with objects forks, so many times in a row; each child opens the device afresh. */
static void generations(int left)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	char *memory = malloc(BYTES);
	struct ibv_mr *mr = pd && memory ? ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_qp *qp;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_wc wc;
	pid_t pid = -1;
	int status;

	CHECK(pd && cq && mr, "objects before the fork");
	qp = make_rc(pd, cq, 4);
	if (left > 0) {
		fflush(stdout);
		pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			generations(left - 1);
			/* The parent's objects: this NIC knows none of them, whatever its own objects are called. */
			CHECK(ibv_poll_cq(cq, 1, &wc) < 0, "the parent's queue was polled");
			CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "the parent's queue pair was changed");
			CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq), "the parent's objects");
			CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context),
			      "the parent's context");
			session(0);
			printf("child %d moved data\n", left);
			fflush(stdout);
			/* Not by exit, which would end what the parent's handlers have. */
			_exit(0);
		}
	}
	session(0);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq), "own objects");
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "own context");
	free(memory);
	if (pid > 0)
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %#x", status);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int error = ibv_fork_init();

	CHECK(!error, "ibv_fork_init returned %d", error);
	if (!strcmp(mode, "parent")) {
		session(1);
	} else if (!strcmp(mode, "child")) {
		generations(2);
	} else {
		die("usage: forker parent|child");
	}
	printf("parent moved data\n");
	return 0;
}
