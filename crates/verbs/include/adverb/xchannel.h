/* adverb/xchannel.h: queues whose work requests order each other, and work requests that are memory.
 *
 * A cross-channel queue pair's send queue may hold a WAIT, which holds the queue up until a completion queue has
 * got a certain completion, and an ENABLE, which lets a managed queue go as far as it says. A managed send queue is
 * filled by ibv_post_send() as any other, but nothing of it is fetched until an ENABLE covers it. A send queue's
 * work queue elements (WQEs, blocks of 64 bytes in the mlx5 layout) stand in memory that a program, or a verb, may
 * change: register it with ibv_reg_mr().
 *
 * These calls are in adverb's libibverbs.so.1 under the symbol version ADVERB_1.0. Calls that return an int return
 * 0 or an error number, which errno has too. docs/xchannel.md says more.
 */
#ifndef ADVERB_XCHANNEL_H
#define ADVERB_XCHANNEL_H

#include <infiniband/verbs.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags for ibv_qp_init_attr_ex.create_flags (with IBV_QP_INIT_ATTR_CREATE_FLAGS), of RC and UC queue pairs. */
enum adverb_qp_create_flags {
	ADVERB_QP_CREATE_CROSS_CHANNEL = 1 << 2, /* may hold WAIT and ENABLE; its WQEs are fetched ahead */
	ADVERB_QP_CREATE_MANAGED_SEND = 1 << 3,	 /* its send queue waits for ENABLE; needs CROSS_CHANNEL */
	ADVERB_QP_CREATE_MANAGED_RECV = 1 << 4,	 /* its receive queue waits for a receive ENABLE */
	/* Full queues can be posted to: the oldest requests are replaced. */
	ADVERB_QP_CREATE_IGNORE_SQ_OVERFLOW = 1 << 6, /* needs CROSS_CHANNEL */
	ADVERB_QP_CREATE_IGNORE_RQ_OVERFLOW = 1 << 7,
};

/* Posts a WAIT: qp goes no further until cq has got the completion with this index. The first one that a queue ever
 * gets has index 0; indices count modulo 2^24. EINVAL unless qp is a cross-channel queue pair. */
int adverb_post_wait(struct ibv_qp *qp, struct ibv_cq *cq, uint32_t index);

/* Posts an ENABLE: the managed send queue of target may be fetched up to this block, which is not included. Blocks
 * count modulo 2^16 from the queue pair's reset on. EINVAL unless qp is a cross-channel queue pair and target a
 * managed one of the same protection domain. */
int adverb_post_enable(struct ibv_qp *qp, struct ibv_qp *target, uint32_t index);

/* Posts an ENABLE of a receive queue: messages to the managed target may take receives up to this one, which is not
 * included. Receives count modulo 2^16 from the queue pair's reset on. EINVAL as for adverb_post_enable(). */
int adverb_post_recv_enable(struct ibv_qp *qp, struct ibv_qp *target, uint32_t index);

/* Posts a WQE that the program has built, as many 16-byte segments as its control segment says. The block's index is
 * filled in, all else is taken as it is. wr_id is what its completion, if it asks for one, will say. EINVAL for
 * one that is empty, or larger than a request of this queue pair may be unless adverb_sq_info() was called before;
 * EOPNOTSUPP on a datagram queue pair. */
int adverb_post_wqe(struct ibv_qp *qp, const void *wqe, uint64_t wr_id);

struct adverb_sq_info {
	void *buf;	 /* the first block */
	uint32_t blocks; /* how many there are, a power of two */
	uint32_t next;	 /* where the next request goes: counts on for ever, so block `next % blocks` */
};

/* Where a send queue's WQEs are. From the first call on, blocks are used one after the other, round and round; call
 * it before the first post if requests that were posted earlier are to be found. */
int adverb_sq_info(struct ibv_qp *qp, struct adverb_sq_info *info);

/* Rings the doorbell of a send queue whose blocks before `next` were written by hand. ENOMEM if that is more than
 * the queue holds. */
int adverb_ring(struct ibv_qp *qp, uint32_t next);

/* The number by which a WAIT WQE names a completion queue. An ENABLE names a queue pair by its qp_num. */
uint32_t adverb_cq_number(struct ibv_cq *cq);

/* Completions that cq has got in all: what WAITs compare their index with. */
int adverb_cq_produced(struct ibv_cq *cq, uint64_t *count);

/* When cq is full, the oldest completion gives way, so that a queue which nobody polls goes on counting. The same as
 * IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN of ibv_create_cq_ex(); it cannot be undone. */
int adverb_cq_ignore_overrun(struct ibv_cq *cq);

/* The create flags of a queue pair, 0 for one that ibv_create_qp() made. */
uint32_t adverb_qp_flags(struct ibv_qp *qp);

/* Two words of the program's own, 0 at first, that live as long as the object. */
uint64_t *adverb_qp_words(struct ibv_qp *qp);
uint64_t *adverb_cq_words(struct ibv_cq *cq);

#ifdef __cplusplus
}
#endif

#endif
