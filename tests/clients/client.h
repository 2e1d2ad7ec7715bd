/* What the test clients share: opening the first device, an RC queue pair, its connection, waiting for a
 * completion. Written against infiniband/verbs.h alone, as any program of a user is. */
#ifndef ADVERB_TEST_CLIENT_H
#define ADVERB_TEST_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 1

/* For programs that are told. */
static int gid_index;
/* READs and atomics of a connection that may be under way. */
static int rd_atomic = 8;

static inline void die(const char *format, ...)
{
	va_list list;
	int error = errno;

	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, " (errno %d: %s)\n", error, strerror(error));
	exit(2);
}

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			die(__VA_ARGS__);                                                                              \
	} while (0)

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Opens the device of this name, or the first one if none is said. */
static inline struct ibv_context *open_named(const char *name)
{
	int count = 0, at = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context;

	while (list && name && at < count && strcmp(ibv_get_device_name(list[at]), name))
		at++;
	CHECK(list && at < count, "no RDMA device %s", name ? name : "");
	context = ibv_open_device(list[at]);
	CHECK(context, "ibv_open_device");
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_context *open_first(void)
{
	return open_named(NULL);
}

static inline struct ibv_qp *make_rc(struct ibv_pd *pd, struct ibv_cq *cq, int depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(qp, "ibv_create_qp");
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "modify to INIT");
	return qp;
}

/* Brings a queue pair from INIT to RTS towards the peer. A timeout of 10 is about 4 ms, of 14 about 67 ms. */
static inline void connect_rnr(struct ibv_qp *qp, uint32_t qpn, uint32_t psn_theirs, uint32_t psn_mine,
			       union ibv_gid gid, int timeout, int retries, int rnr_retries)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.rq_psn = psn_theirs,
		.max_dest_rd_atomic = rd_atomic,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1,
			    .port_num = PORT,
			    .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = psn_mine,
		.timeout = timeout,
		.retry_cnt = retries,
		.rnr_retry = rnr_retries,
		.max_rd_atomic = rd_atomic,
	};

	CHECK(!ibv_modify_qp(qp, &rtr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "modify to RTR");
	CHECK(!ibv_modify_qp(qp, &rts,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC),
	      "modify to RTS");
}

/* The same for whom a peer may let wait for receives as long as it likes. */
static inline void connect_rc(struct ibv_qp *qp, uint32_t qpn, uint32_t psn_theirs, uint32_t psn_mine,
			      union ibv_gid gid, int timeout, int retries)
{
	connect_rnr(qp, qpn, psn_theirs, psn_mine, gid, timeout, retries, 7);
}

static inline union ibv_gid own_gid(struct ibv_context *context)
{
	union ibv_gid gid;

	CHECK(!ibv_query_gid(context, PORT, gid_index, &gid), "ibv_query_gid");
	return gid;
}

/* Polls until one completion comes; gives up with an error after the seconds. */
static inline struct ibv_wc wait_one(struct ibv_cq *cq, double limit)
{
	struct ibv_wc wc;
	double end = seconds() + limit;

	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);

		CHECK(n >= 0, "ibv_poll_cq");
		if (n == 1)
			return wc;
		if (seconds() > end) {
			errno = ETIMEDOUT;
			die("no completion in %g s", limit);
		}
	}
}

/* TCP connections to tell peers what they must know: at one end, so many at one port, and at the other. */
static inline void listen_for(int port, int *peers, int count)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	addr.sin_addr.s_addr = htonl(INADDR_ANY);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&addr, sizeof(addr)) && !listen(fd, count), "listen on %d", port);
	for (int i = 0; i < count; i++) {
		peers[i] = accept(fd, NULL, NULL);
		CHECK(peers[i] >= 0, "accept");
	}
	close(fd);
}

static inline int listen_once(int port)
{
	int peer;

	listen_for(port, &peer, 1);
	return peer;
}

static inline int dial(const char *host, int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(inet_pton(AF_INET, host, &addr.sin_addr) == 1, "address %s", host);
	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&addr, sizeof(addr)), "connect to %s:%d", host, port);
	return fd;
}

#endif
