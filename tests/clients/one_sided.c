/* WRITE, READ and FETCH_ADD on a target whose CPU is elsewhere.
 *   one_sided target sleep|spin -p PORT      waits in read(2), or computes, without one verbs call
 *   one_sided initiator -p PORT HOST
 * The target looks at its memory only after the initiator has said, over TCP, that it is done. */
#include "client.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>

#define BYTES 65536
#define ADDS 100

struct hello {
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static void exchange(int fd, const struct hello *mine, struct hello *theirs)
{
	CHECK(write(fd, mine, sizeof(*mine)) == sizeof(*mine), "write to the peer");
	CHECK(recv(fd, theirs, sizeof(*theirs), MSG_WAITALL) == sizeof(*theirs), "read from the peer");
}

static unsigned char expected(int i)
{
	return (unsigned char)(i * 131 + 17);
}

static void serve(int fd, int spin, char *memory)
{
	char done;

	if (spin) {
		/* Computes; looks at the socket only, and never at a verb. */
		volatile uint64_t sink = 0;

		while (recv(fd, &done, 1, MSG_DONTWAIT) != 1) {
			for (int i = 0; i < 100000; i++)
				sink += i;
		}
	} else {
		CHECK(recv(fd, &done, 1, MSG_WAITALL) == 1, "wait for the initiator");
	}
	for (int i = 8; i < BYTES; i++)
		CHECK((unsigned char)memory[i] == expected(i), "byte %d is wrong", i);
	CHECK(*(uint64_t *)memory == ADDS, "the counter is %llu", (unsigned long long)*(uint64_t *)memory);
	printf("target saw every byte and %d adds\n", ADDS);
}

static void transfer(struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode opcode, struct ibv_sge *sge,
		     uint64_t addr, uint32_t rkey)
{
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	wc = wait_one(cq, 20);
	CHECK(wc.status == IBV_WC_SUCCESS, "opcode %d completed with %s", opcode, ibv_wc_status_str(wc.status));
}

static void initiate(int fd, struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, char *memory,
		     const struct hello *peer)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = BYTES, .lkey = mr->lkey};
	struct ibv_sge eight = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};

	for (int i = 0; i < BYTES; i++)
		memory[i] = i < 8 ? 0 : (char)expected(i);
	transfer(qp, cq, IBV_WR_RDMA_WRITE, &sge, peer->addr, peer->rkey);
	memset(memory, 0, BYTES);
	transfer(qp, cq, IBV_WR_RDMA_READ, &sge, peer->addr, peer->rkey);
	for (int i = 8; i < BYTES; i++)
		CHECK((unsigned char)memory[i] == expected(i), "read byte %d is wrong", i);
	for (uint64_t i = 0; i < ADDS; i++) {
		transfer(qp, cq, IBV_WR_ATOMIC_FETCH_AND_ADD, &eight, peer->addr, peer->rkey);
		CHECK(*(uint64_t *)memory == i, "add %d returned another value", (int)i);
	}
	CHECK(write(fd, "d", 1) == 1, "tell the target");
	printf("initiator wrote, read and added\n");
}

int main(int argc, char **argv)
{
	int target = argc > 1 && !strcmp(argv[1], "target");
	int spin = target && argc > 2 && !strcmp(argv[2], "spin");
	int port = 0, option, fd;
	static char memory[BYTES] __attribute__((aligned(4096)));
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct hello mine, theirs;

	optind = target ? 3 : 2;
	while ((option = getopt(argc, argv, "p:")) == 'p')
		port = atoi(optarg);
	CHECK(port > 0 && (target || optind < argc), "usage: one_sided target sleep|spin -p PORT | initiator -p PORT HOST");
	CHECK(pd && cq, "alloc_pd or create_cq");
	mr = ibv_reg_mr(pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr, "ibv_reg_mr");
	qp = make_rc(pd, cq, 16);
	mine = (struct hello){.qpn = qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)memory, .gid = own_gid(context)};
	fd = target ? listen_once(port) : dial(argv[optind], port);
	exchange(fd, &mine, &theirs);
	connect_rc(qp, theirs.qpn, 0, 0, theirs.gid, 14, 7);
	/* A second exchange, so that nobody sends before both are ready. */
	exchange(fd, &mine, &theirs);
	if (target)
		serve(fd, spin, memory);
	else
		initiate(fd, qp, cq, mr, memory, &theirs);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "teardown");
	CHECK(!ibv_close_device(context), "ibv_close_device");
	return 0;
}
