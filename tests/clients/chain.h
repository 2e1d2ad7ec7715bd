/* What the test clients for chains of work requests share: WQEs written by hand in the mlx5 layout, cross-channel
 * queue pairs, and two processes that tell each other where they are. */
#ifndef ADVERB_TEST_CHAIN_H
#define ADVERB_TEST_CHAIN_H

#include "client.h"

#include <adverb/xchannel.h>

#define OP_NOP 0x00
#define OP_WRITE 0x08
#define OP_WRITE_IMM 0x09
#define OP_WAIT 0x0f
#define OP_READ 0x10
#define OP_CAS 0x11
#define OP_ADD 0x12
#define OP_RECV_ENABLE 0x16
#define OP_SEND_ENABLE 0x17

#define SIGNALED 0x08
#define FENCE 0x80

static inline void put16(void *at, uint16_t value)
{
	value = htons(value);
	memcpy(at, &value, 2);
}

static inline void put32(void *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, 4);
}

static inline void put64(void *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, 8);
}

/* A work queue element while it is built. */
struct wqe {
	uint8_t bytes[256];
};

static inline struct wqe wqe_begin(struct ibv_qp *qp, uint8_t op, uint8_t flags)
{
	struct wqe wqe = {{0}};

	wqe.bytes[3] = op;
	put32(wqe.bytes + 4, qp->qp_num << 8 | 1);
	wqe.bytes[11] = flags;
	return wqe;
}

/* The next segment. */
static inline uint8_t *wqe_add(struct wqe *wqe)
{
	return wqe->bytes + 16 * wqe->bytes[7]++;
}

static inline void wqe_raddr(struct wqe *wqe, uint64_t addr, uint32_t rkey)
{
	uint8_t *at = wqe_add(wqe);

	put64(at, addr);
	put32(at + 8, rkey);
}

static inline void wqe_atomic(struct wqe *wqe, uint64_t swap_add, uint64_t compare)
{
	uint8_t *at = wqe_add(wqe);

	put64(at, swap_add);
	put64(at + 8, compare);
}

static inline void wqe_data(struct wqe *wqe, uint32_t length, uint32_t lkey, uint64_t addr)
{
	uint8_t *at = wqe_add(wqe);

	put32(at, length);
	put32(at + 4, lkey);
	put64(at + 8, addr);
}

static inline struct wqe wqe_order(struct ibv_qp *qp, uint8_t op, uint32_t index, uint32_t number)
{
	struct wqe wqe = wqe_begin(qp, op, 0);
	uint8_t *at = wqe_add(&wqe);

	put32(at + 8, index);
	put32(at + 12, number);
	return wqe;
}

static inline void post_wqe(struct ibv_qp *qp, const struct wqe *wqe, uint64_t wr_id)
{
	CHECK(!adverb_post_wqe(qp, wqe->bytes, wr_id), "adverb_post_wqe of opcode %#x", wqe->bytes[3]);
}

/* The first 8 bytes of a WQE, as an atomic sees them on this machine. */
static inline uint64_t control_word(const struct wqe *wqe)
{
	uint64_t word;

	memcpy(&word, wqe->bytes, 8);
	return word;
}

static inline struct ibv_qp *make_cross(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *send_cq,
					struct ibv_cq *recv_cq, int depth, uint32_t flags)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 4},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.create_flags = flags,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(qp, "ibv_create_qp_ex with flags %#x", flags);
	CHECK(adverb_qp_flags(qp) == flags, "adverb_qp_flags");
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "modify to INIT");
	return qp;
}

/* A completion queue that nobody needs to poll. */
static inline struct ibv_cq *make_counter(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);

	CHECK(cq, "ibv_create_cq_ex");
	return ibv_cq_ex_to_cq(cq);
}

/* A queue pair connected to itself, whose READs, WRITEs and atomics work on the memory of its own process. */
static inline void connect_to_itself(struct ibv_qp *qp)
{
	connect_rc(qp, qp->qp_num, 0, 0, own_gid(qp->context), 14, 7);
}

static inline struct ibv_mr *reg_all(struct ibv_pd *pd, void *addr, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, addr, length,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					       IBV_ACCESS_REMOTE_ATOMIC);

	CHECK(mr, "ibv_reg_mr");
	return mr;
}

/* Waits until a word in memory has a value: what no completion tells. */
static inline void wait_word(volatile uint64_t *word, uint64_t value, struct ibv_cq *cq, double limit)
{
	struct ibv_wc wc;
	double end = seconds() + limit;

	while (*word != value) {
		CHECK(ibv_poll_cq(cq, 0, &wc) >= 0, "ibv_poll_cq");
		errno = ETIMEDOUT;
		CHECK(seconds() < end, "the word is %llu, not %llu, after %g s", (unsigned long long)*word,
		      (unsigned long long)value, limit);
	}
}

/* How a peer is found. */
struct hello {
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static inline void exchange(int fd, const struct hello *mine, struct hello *theirs)
{
	CHECK(write(fd, mine, sizeof(*mine)) == sizeof(*mine), "write to the peer");
	CHECK(recv(fd, theirs, sizeof(*theirs), MSG_WAITALL) == sizeof(*theirs), "read from the peer");
}

#endif
