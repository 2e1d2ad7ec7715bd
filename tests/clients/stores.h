/* What programs with the calls of stores on disaggregated memory share: how two ends meet, and their queue pairs. GID index 3
 * and PSN 3185 are written into them. */
#ifndef STORES_H
#define STORES_H

#include "client.h"

#define LIMIT 20.0
#define INDEX 3
#define PSN 3185
#define QUEUES 8
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* What each end tells the other. */
struct end {
	union ibv_gid gid;
	uint32_t qpn[QUEUES], ud_qpn;
	uint64_t addr;
	uint32_t rkey, lock_rkey;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static int peer;
static double least, begun;

static void tell(const void *data, size_t len)
{
	CHECK(write(peer, data, len) == (ssize_t)len, "tell the peer");
}

static void hear(void *data, size_t len)
{
	CHECK(recv(peer, data, len, MSG_WAITALL) == (ssize_t)len, "hear of the peer");
}

/* Both ends are here. */
static void meet(void)
{
	char word = 'x';

	tell(&word, 1);
	hear(&word, 1);
}

static struct ibv_wc done(uint64_t wr_id)
{
	struct ibv_wc wc = wait_one(cq, LIMIT);

	CHECK(wc.status == IBV_WC_SUCCESS, "request %lu: %s", (unsigned long)wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.wr_id == wr_id, "completion of %lu, not of %lu", (unsigned long)wc.wr_id, (unsigned long)wr_id);
	return wc;
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = ALL};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
}

static void to_rts(struct ibv_qp *qp, uint32_t qpn, union ibv_gid gid, enum ibv_mtu mtu)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = qpn,
		.rq_psn = PSN,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = gid, .sgid_index = INDEX, .hop_limit = 1}},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = PSN,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 16,
	};

	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "RTR with GID index %d", INDEX);
	CHECK(!ibv_modify_qp(qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC),
	      "RTS");
}

/* The ends meet and each has its work; `S -p PORT [HOST]` are the words of both programs. */
static int stores_main(int argc, char **argv, void (*work)(int serves))
{
	int serves = argc == 4, port = argc >= 4 ? atoi(argv[3]) : 0;

	if ((argc != 4 && argc != 5) || strcmp(argv[2], "-p")) {
		fprintf(stderr, "usage: %s SECONDS -p PORT [HOST]\n", argv[0]);
		return 2;
	}
	peer = serves ? listen_once(port) : dial(argv[4], port);
	least = atof(argv[1]);
	begun = seconds();
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	CHECK(pd && cq, "a domain and a completion queue");
	work(serves);
	printf("OK\n");
	return 0;
}

#endif
