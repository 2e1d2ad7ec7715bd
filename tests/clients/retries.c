/* One RC connection with retry counts of its own, to a peer that is not ready or not heard.
 *   retries target -p PORT -m MODE          MODE ready: a receive for each message; late: none until SIGUSR1 comes;
 *                                           never: none
 *   retries client -p PORT [-w] HOST        sends messages, or writes with -w, and prints how the first one that did
 *                                           not succeed ended, or that all did
 * -r N is the retry count, -n N the RNR retry count, -t N the timeout, -k N how many messages. What a failure is of is said
 * by the status; how often was tried, by the NIC's counters. */
#include "client.h"

#include <signal.h>

#define DEPTH 64
#define SIZE 64
/* A completion that takes longer will not come. */
#define PATIENCE 60

static int retry_count = 7, rnr_retry = 7, timeout = 14, messages = 8, writes;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static char memory[DEPTH * SIZE];

struct hello {
	uint32_t qpn, psn, rkey, unused;
	uint64_t addr;
	union ibv_gid gid;
};

static volatile sig_atomic_t is_told;

static void on_told(int signal)
{
	(void)signal;
	is_told = 1;
}

static void receive(struct ibv_qp *qp)
{
	for (int i = 0; i < messages; i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)&memory[i * SIZE], .length = SIZE, .lkey = mr->lkey};
		struct ibv_recv_wr *bad, wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1};

		CHECK(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
	}
}

static struct hello exchange(int fd, struct ibv_qp *qp)
{
	struct hello theirs, mine = {
		.qpn = qp->qp_num,
		.psn = qp->qp_num * 0x9e3779b1u & 0xffffff,
		.rkey = mr->rkey,
		.addr = (uintptr_t)memory,
		.gid = own_gid(context),
	};
	struct ibv_qp_attr attr = {.rnr_retry = rnr_retry};
	struct ibv_qp_init_attr init;

	CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine), "write to the peer");
	CHECK(recv(fd, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs), "read from the peer");
	connect_rnr(qp, theirs.qpn, theirs.psn, mine.psn, theirs.gid, timeout, retry_count, rnr_retry);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY, &init), "ibv_query_qp");
	CHECK(attr.retry_cnt == retry_count && attr.rnr_retry == rnr_retry, "retry counts %d and %d", attr.retry_cnt,
	      attr.rnr_retry);
	return theirs;
}

/* Whoever is here first waits for the other, so that nothing is sent to a queue pair that is not connected. */
static void meet(int fd)
{
	char byte = 1;

	CHECK(write(fd, &byte, 1) == 1 && recv(fd, &byte, 1, MSG_WAITALL) == 1, "meet the peer");
}

static void serve(int port, const char *mode)
{
	int fd = listen_once(port), late = !strcmp(mode, "late");
	struct ibv_qp *qp = make_rc(pd, cq, DEPTH);
	char byte;

	if (!strcmp(mode, "ready"))
		receive(qp);
	exchange(fd, qp);
	meet(fd);
	if (late) {
		sigset_t none;

		sigemptyset(&none);
		while (!is_told)
			sigsuspend(&none);
		receive(qp);
	}
	/* Until the client has seen the end of all that it has sent. */
	CHECK(recv(fd, &byte, 1, 0) == 1, "hear of the client's end");
	printf("served\n");
}

static void ask(int fd)
{
	struct ibv_qp *qp = make_rc(pd, cq, DEPTH);
	struct hello target = exchange(fd, qp);
	int status = IBV_WC_SUCCESS, done = 0;
	char byte = 1;

	meet(fd);
	for (int i = 0; i < messages; i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)&memory[i * SIZE], .length = SIZE, .lkey = mr->lkey};
		struct ibv_send_wr *bad, wr = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = writes ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = target.addr + i * SIZE, .rkey = target.rkey},
		};

		CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	}
	for (int i = 0; i < messages; i++) {
		struct ibv_wc wc = wait_one(cq, PATIENCE);

		if (wc.status == IBV_WC_SUCCESS)
			done++;
		else if (status == IBV_WC_SUCCESS)
			status = wc.status;
	}
	printf("done %d status %d\n", done, status);
	CHECK(write(fd, &byte, 1) == 1, "tell the target");
}

int main(int argc, char **argv)
{
	const char *usage = "usage: retries target -p PORT -m ready|late|never | client -p PORT [-w] HOST, with -r RETRIES "
			    "-n RNR_RETRIES -t TIMEOUT -k MESSAGES";
	const char *mode = "ready";
	int port = 0, option, target = argc > 1 && !strcmp(argv[1], "target");
	struct sigaction told = {.sa_handler = on_told};
	sigset_t usr1;

	errno = EINVAL;
	CHECK(target || (argc > 1 && !strcmp(argv[1], "client")), "%s", usage);
	optind = 2;
	while ((option = getopt(argc, argv, "p:m:r:n:t:k:w")) > 0) {
		switch (option) {
		case 'p': port = strtol(optarg, NULL, 0); break;
		case 'm': mode = optarg; break;
		case 'r': retry_count = strtol(optarg, NULL, 0); break;
		case 'n': rnr_retry = strtol(optarg, NULL, 0); break;
		case 't': timeout = strtol(optarg, NULL, 0); break;
		case 'k': messages = strtol(optarg, NULL, 0); break;
		case 'w': writes = 1; break;
		default: errno = EINVAL; die("%s", usage);
		}
	}
	errno = EINVAL;
	CHECK(port > 0 && messages > 0 && messages <= DEPTH && (target || optind < argc), "%s", usage);
	/* Before any thread is there: the signal waits until the target does. */
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	CHECK(!sigaction(SIGUSR1, &told, NULL) && !sigprocmask(SIG_BLOCK, &usr1, NULL), "SIGUSR1");
	context = open_named(NULL);
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	CHECK(mr && cq, "make what a connection needs");
	if (target)
		serve(port, mode);
	else
		ask(dial(argv[optind], port));
	return 0;
}
