/* adverb/verbs_exp.h: the calls of the vendor's experimental verbs (ibv_exp_*) that programs with chains of work
 * requests, or with locks in memory of the adapter, use, as inline functions over adverb/xchannel.h. Source
 * compatibility only: names and the numbers of opcodes and flags are those that such programs know, structs and layouts
 * are of our own.
 *
 * Counts are as those programs expect them:
 *   - cq_count of a CQE_WAIT, and wqe_count of a SEND_ENABLE or RECV_ENABLE, are relative: to the completions of
 *     that queue, or the requests of that queue pair, that earlier ones have counted. What is counted from moves
 *     on at a request with IBV_EXP_SEND_WAIT_EN_LAST, by the largest count since the last such request.
 *   - wqe_count counts work requests; 0 means all that were posted. A count beyond what was posted is EINVAL.
 * Requests that order others are EINVAL on a queue pair without CROSS_CHANNEL; so is an ENABLE of a queue pair that
 * is not managed. What is not offered is EOPNOTSUPP: IBV_EXP_SEND_WITH_CALC, IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY, and
 * 0 as the wqe_count of a RECV_ENABLE. docs/xchannel.md says more.
 */
#ifndef ADVERB_VERBS_EXP_H
#define ADVERB_VERBS_EXP_H

#include <adverb/xchannel.h>
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- the device --- */

enum {
	IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS = 1 << 3,
	IBV_EXP_DEVICE_ATTR_RESERVED = 1 << 4,
	IBV_EXP_DEVICE_ATTR_UMR = 1 << 13,
};

#define IBV_EXP_DEVICE_ATTR_MAX_DM_SIZE (1ull << 41)

#define IBV_EXP_DEVICE_CROSS_CHANNEL (1ull << 60)

/* The plain attributes under the names that ibv_device_attr has, as far as programs with chains look at them. */
struct ibv_exp_device_attr {
	int max_qp;
	int max_qp_wr;
	int max_sge;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_qp_init_rd_atom;
	enum ibv_atomic_cap exp_atomic_cap;
	uint64_t comp_mask;
	uint64_t exp_device_cap_flags;
	uint64_t max_dm_size;
};

static inline int ibv_exp_query_device(struct ibv_context *context, struct ibv_exp_device_attr *attr)
{
	struct ibv_device_attr_ex all;
	struct ibv_device_attr plain;
	int error = ibv_query_device_ex(context, NULL, &all);

	if (error)
		return error;
	plain = all.orig_attr;
	attr->max_qp = plain.max_qp;
	attr->max_qp_wr = plain.max_qp_wr;
	attr->max_sge = plain.max_sge;
	attr->max_cq = plain.max_cq;
	attr->max_cqe = plain.max_cqe;
	attr->max_mr = plain.max_mr;
	attr->max_pd = plain.max_pd;
	attr->max_qp_rd_atom = plain.max_qp_rd_atom;
	attr->max_qp_init_rd_atom = plain.max_qp_init_rd_atom;
	attr->exp_atomic_cap = plain.atomic_cap;
	attr->max_dm_size = all.max_dm_size;
	attr->comp_mask &= IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS | IBV_EXP_DEVICE_ATTR_MAX_DM_SIZE;
	attr->exp_device_cap_flags = (uint64_t)plain.device_cap_flags | IBV_EXP_DEVICE_CROSS_CHANNEL;
	return 0;
}

/* --- memory --- */

enum {
	IBV_EXP_ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE,
	IBV_EXP_ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE,
	IBV_EXP_ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ,
	IBV_EXP_ACCESS_REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC,
	IBV_EXP_ACCESS_MW_BIND = IBV_ACCESS_MW_BIND,
};

/* Memory of the adapter. */
#define ibv_exp_dm ibv_dm

struct ibv_exp_alloc_dm_attr {
	size_t length;
	uint32_t log_align_req;
	uint32_t comp_mask;
};

static inline struct ibv_exp_dm *ibv_exp_alloc_dm(struct ibv_context *context, struct ibv_exp_alloc_dm_attr *attr)
{
	struct ibv_alloc_dm_attr plain;

	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	memset(&plain, 0, sizeof(plain));
	plain.length = attr->length;
	plain.log_align_req = attr->log_align_req;
	return ibv_alloc_dm(context, &plain);
}

static inline int ibv_exp_free_dm(struct ibv_exp_dm *dm)
{
	return ibv_free_dm(dm);
}

enum ibv_exp_dm_memcpy_dir {
	IBV_EXP_DM_CPY_TO_DEVICE,
	IBV_EXP_DM_CPY_TO_HOST,
};

struct ibv_exp_memcpy_dm_attr {
	enum ibv_exp_dm_memcpy_dir memcpy_dir;
	void *host_addr;
	uint64_t dm_offset;
	size_t length;
	uint32_t comp_mask;
};

static inline int ibv_exp_memcpy_dm(struct ibv_exp_dm *dm, struct ibv_exp_memcpy_dm_attr *attr)
{
	if (attr->comp_mask)
		return errno = EOPNOTSUPP;
	if (attr->memcpy_dir == IBV_EXP_DM_CPY_TO_DEVICE)
		return ibv_memcpy_to_dm(dm, attr->dm_offset, attr->host_addr, attr->length);
	return ibv_memcpy_from_dm(attr->host_addr, dm, attr->dm_offset, attr->length);
}

enum {
	IBV_EXP_REG_MR_DM = 1 << 1,
};

struct ibv_exp_reg_mr_in {
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint64_t exp_access;
	uint32_t create_flags;
	struct ibv_exp_dm *dm;
	uint32_t comp_mask;
};

/* A region of the adapter's memory begins at address 0, and so must `addr`: EINVAL otherwise. */
static inline struct ibv_mr *ibv_exp_reg_mr(struct ibv_exp_reg_mr_in *in)
{
	if (in->comp_mask & ~(uint32_t)IBV_EXP_REG_MR_DM || in->create_flags || in->exp_access > 0xffff) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(in->comp_mask & IBV_EXP_REG_MR_DM))
		return ibv_reg_mr(in->pd, in->addr, in->length, (int)in->exp_access);
	if (!in->dm || in->addr) {
		errno = EINVAL;
		return NULL;
	}
	return ibv_reg_dm_mr(in->pd, in->dm, 0, in->length, (unsigned int)in->exp_access | IBV_ACCESS_ZERO_BASED);
}

/* --- completion queues --- */

enum {
	IBV_EXP_CQ_MODERATION = 1 << 0,
	IBV_EXP_CQ_CAP_FLAGS = 1 << 1,
};

enum {
	IBV_EXP_CQ_IGNORE_OVERRUN = 1 << 0,
};

enum {
	IBV_EXP_CQ_ATTR_MODERATION = 1 << 0,
	IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS = 1 << 1,
};

struct ibv_exp_cq_attr {
	uint32_t comp_mask;
	struct {
		uint16_t cq_count;
		uint16_t cq_period;
	} moderation;
	uint32_t cq_cap_flags;
};

/* Ignoring overruns cannot be taken back: then, and for moderation, EOPNOTSUPP. */
static inline int ibv_exp_modify_cq(struct ibv_cq *cq, struct ibv_exp_cq_attr *attr, int attr_mask)
{
	if (attr_mask != IBV_EXP_CQ_CAP_FLAGS || attr->cq_cap_flags != IBV_EXP_CQ_IGNORE_OVERRUN)
		return errno = EOPNOTSUPP;
	return adverb_cq_ignore_overrun(cq);
}

/* --- queue pairs --- */

enum {
	IBV_EXP_QP_INIT_ATTR_PD = 1 << 0,
	IBV_EXP_QP_INIT_ATTR_XRCD = 1 << 1,
	IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
	IBV_EXP_QP_INIT_ATTR_INL_RECV = 1 << 3,
	IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG = 1 << 5,
};

enum {
	IBV_EXP_QP_CREATE_CROSS_CHANNEL = 1 << 2,
	IBV_EXP_QP_CREATE_MANAGED_SEND = 1 << 3,
	IBV_EXP_QP_CREATE_MANAGED_RECV = 1 << 4,
	IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW = 1 << 6,
	IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW = 1 << 7,
	IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY = 1 << 8,
};

struct ibv_exp_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
	uint32_t comp_mask;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	uint32_t exp_create_flags;
	uint32_t max_inl_recv;
	uint32_t max_atomic_arg; /* bytes; a masked compare and swap of a word has four of 8 */
};

static inline struct ibv_qp *ibv_exp_create_qp(struct ibv_context *context, struct ibv_exp_qp_init_attr *attr)
{
	const uint32_t known = IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_XRCD |
			       IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS | IBV_EXP_QP_INIT_ATTR_INL_RECV |
			       IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG;
	const int more = (attr->comp_mask & IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG) && attr->max_atomic_arg > 32;
	struct ibv_qp_init_attr_ex plain;
	struct ibv_qp *qp;

	if (attr->comp_mask & ~known || more) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	memset(&plain, 0, sizeof(plain));
	plain.qp_context = attr->qp_context;
	plain.send_cq = attr->send_cq;
	plain.recv_cq = attr->recv_cq;
	plain.srq = attr->srq;
	plain.cap = attr->cap;
	plain.qp_type = attr->qp_type;
	plain.sq_sig_all = attr->sq_sig_all;
	if (attr->comp_mask & IBV_EXP_QP_INIT_ATTR_PD) {
		plain.comp_mask |= IBV_QP_INIT_ATTR_PD;
		plain.pd = attr->pd;
	}
	if (attr->comp_mask & IBV_EXP_QP_INIT_ATTR_XRCD) {
		plain.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
		plain.xrcd = attr->xrcd;
	}
	if (attr->comp_mask & IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS) {
		plain.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
		plain.create_flags = attr->exp_create_flags;
	}
	qp = ibv_create_qp_ex(context, &plain);
	if (!qp)
		return NULL;
	attr->cap = plain.cap;
	/* No bytes of a message are put into its completion. */
	if (attr->comp_mask & IBV_EXP_QP_INIT_ATTR_INL_RECV)
		attr->max_inl_recv = 0;
	return qp;
}

enum {
	IBV_EXP_QP_STATE = IBV_QP_STATE,
	IBV_EXP_QP_CUR_STATE = IBV_QP_CUR_STATE,
	IBV_EXP_QP_ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS,
	IBV_EXP_QP_PKEY_INDEX = IBV_QP_PKEY_INDEX,
	IBV_EXP_QP_PORT = IBV_QP_PORT,
	IBV_EXP_QP_QKEY = IBV_QP_QKEY,
	IBV_EXP_QP_AV = IBV_QP_AV,
	IBV_EXP_QP_PATH_MTU = IBV_QP_PATH_MTU,
	IBV_EXP_QP_TIMEOUT = IBV_QP_TIMEOUT,
	IBV_EXP_QP_RETRY_CNT = IBV_QP_RETRY_CNT,
	IBV_EXP_QP_RNR_RETRY = IBV_QP_RNR_RETRY,
	IBV_EXP_QP_RQ_PSN = IBV_QP_RQ_PSN,
	IBV_EXP_QP_MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC,
	IBV_EXP_QP_MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER,
	IBV_EXP_QP_SQ_PSN = IBV_QP_SQ_PSN,
	IBV_EXP_QP_MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC,
	IBV_EXP_QP_CAP = IBV_QP_CAP,
	IBV_EXP_QP_DEST_QPN = IBV_QP_DEST_QPN,
};

struct ibv_exp_qp_attr {
	enum ibv_qp_state qp_state;
	enum ibv_qp_state cur_qp_state;
	enum ibv_mtu path_mtu;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr;
	uint16_t pkey_index;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint32_t comp_mask;
};

static inline int ibv_exp_modify_qp(struct ibv_qp *qp, struct ibv_exp_qp_attr *attr, uint64_t exp_attr_mask)
{
	struct ibv_qp_attr plain;

	if (attr->comp_mask || exp_attr_mask >> 31)
		return errno = EOPNOTSUPP;
	memset(&plain, 0, sizeof(plain));
	plain.qp_state = attr->qp_state;
	plain.cur_qp_state = attr->cur_qp_state;
	plain.path_mtu = attr->path_mtu;
	plain.qkey = attr->qkey;
	plain.rq_psn = attr->rq_psn;
	plain.sq_psn = attr->sq_psn;
	plain.dest_qp_num = attr->dest_qp_num;
	plain.qp_access_flags = attr->qp_access_flags;
	plain.cap = attr->cap;
	plain.ah_attr = attr->ah_attr;
	plain.pkey_index = attr->pkey_index;
	plain.max_rd_atomic = attr->max_rd_atomic;
	plain.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	plain.min_rnr_timer = attr->min_rnr_timer;
	plain.port_num = attr->port_num;
	plain.timeout = attr->timeout;
	plain.retry_cnt = attr->retry_cnt;
	plain.rnr_retry = attr->rnr_retry;
	return ibv_modify_qp(qp, &plain, (int)exp_attr_mask);
}

/* --- work requests --- */

enum ibv_exp_wr_opcode {
	IBV_EXP_WR_RDMA_WRITE = IBV_WR_RDMA_WRITE,
	IBV_EXP_WR_RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_EXP_WR_SEND = IBV_WR_SEND,
	IBV_EXP_WR_SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM,
	IBV_EXP_WR_RDMA_READ = IBV_WR_RDMA_READ,
	IBV_EXP_WR_ATOMIC_CMP_AND_SWP = IBV_WR_ATOMIC_CMP_AND_SWP,
	IBV_EXP_WR_ATOMIC_FETCH_AND_ADD = IBV_WR_ATOMIC_FETCH_AND_ADD,
	IBV_EXP_WR_SEND_ENABLE = 0x60,
	IBV_EXP_WR_RECV_ENABLE = 0x61,
	IBV_EXP_WR_CQE_WAIT = 0x62,
	IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP = 0x63,
	IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD = 0x64,
	IBV_EXP_WR_NOP = 0x65,
};

#define IBV_EXP_SEND_FENCE ((uint64_t)IBV_SEND_FENCE)
#define IBV_EXP_SEND_SIGNALED ((uint64_t)IBV_SEND_SIGNALED)
#define IBV_EXP_SEND_SOLICITED ((uint64_t)IBV_SEND_SOLICITED)
#define IBV_EXP_SEND_INLINE ((uint64_t)IBV_SEND_INLINE)
#define IBV_EXP_SEND_WITH_CALC (1ull << 33)
#define IBV_EXP_SEND_WAIT_EN_LAST (1ull << 34)
#define IBV_EXP_SEND_EXT_ATOMIC_INLINE (1ull << 35) /* arguments stand in the request, as they do anyway */

struct ibv_exp_send_wr {
	uint64_t wr_id;
	struct ibv_exp_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_exp_wr_opcode exp_opcode;
	union {
		uint32_t imm_data; /* network order */
		uint32_t invalidate_rkey;
	} ex;
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
	} wr;
	union {
		struct {
			struct ibv_cq *cq;
			int32_t cq_count;
		} cqe_wait;
		struct {
			struct ibv_qp *qp;
			int32_t wqe_count;
		} wqe_enable;
	} task;
	union {
		struct {
			uint32_t log_arg_sz; /* 3: arguments are 8 bytes */
			uint64_t remote_addr;
			uint32_t rkey;
			struct {
				struct {
					struct {
						uint64_t compare_mask;
						uint64_t compare_val;
						uint64_t swap_val;
						uint64_t swap_mask;
					} cmp_swap;
					struct {
						uint64_t add_val;
						uint64_t field_boundary;
					} fetch_add;
				} inline_data;
			} wr_data;
		} masked_atomics;
	} ext_op;
	uint64_t exp_send_flags;
	uint32_t comp_mask;
};

/* A count from which others are counted, and the largest of them since: one word of an object's own. */
static inline uint32_t adverb_exp_base(const uint64_t *word)
{
	return (uint32_t)*word;
}

/* Notes that something was counted up to `end`; the last such request of its group moves what is counted from. */
static inline void adverb_exp_counted(uint64_t *word, uint32_t end, uint64_t flags)
{
	uint32_t base = (uint32_t)*word, most = (uint32_t)(*word >> 32);

	if (end - base > most)
		most = end - base;
	*word = flags & IBV_EXP_SEND_WAIT_EN_LAST ? base + most : (uint64_t)most << 32 | base;
}

static inline void adverb_exp_put32(uint8_t *at, uint32_t value)
{
	value = htonl(value);
	memcpy(at, &value, 4);
}

static inline void adverb_exp_put64(uint8_t *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, 8);
}

/* Posts a WQE whose segments behind the control segment stand already. */
static inline int adverb_exp_post(struct ibv_qp *qp, uint8_t wqe[128], uint8_t opmod, uint8_t opcode, uint8_t segments,
				  const struct ibv_exp_send_wr *wr)
{
	const uint64_t flags = wr->exp_send_flags;

	wqe[0] = opmod;
	wqe[3] = opcode;
	adverb_exp_put32(wqe + 4, qp->qp_num << 8 | segments);
	wqe[11] = (flags & IBV_EXP_SEND_SIGNALED ? 0x08 : 0) | (flags & IBV_EXP_SEND_FENCE ? 0x80 : 0) |
		  (flags & IBV_EXP_SEND_SOLICITED ? 0x02 : 0);
	return adverb_post_wqe(qp, wqe, wr->wr_id);
}

static inline int adverb_exp_post_order(struct ibv_qp *qp, uint8_t opcode, uint32_t index, uint32_t number,
					const struct ibv_exp_send_wr *wr)
{
	uint8_t wqe[128] = {0};

	adverb_exp_put32(wqe + 24, index);
	adverb_exp_put32(wqe + 28, number);
	return adverb_exp_post(qp, wqe, 0, opcode, 2, wr);
}

static inline int adverb_exp_wait(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	struct ibv_cq *cq = wr->task.cqe_wait.cq;
	uint64_t *word = adverb_cq_words(cq);
	uint32_t end = adverb_exp_base(word) + wr->task.cqe_wait.cq_count;
	int error;

	if (wr->task.cqe_wait.cq_count <= 0)
		return EINVAL;
	error = adverb_exp_post_order(qp, 0x0f, end - 1, adverb_cq_number(cq), wr);
	if (!error)
		adverb_exp_counted(word, end, wr->exp_send_flags);
	return error;
}

/* Blocks that the next `count` requests from block `base` on take, of a queue that ends at `info->next`. */
static inline int adverb_exp_blocks(const struct adverb_sq_info *info, uint32_t base, int32_t count, uint32_t *end)
{
	*end = base;
	if (!count) {
		*end = info->next;
		return 0;
	}
	while (count-- > 0) {
		const uint8_t *block = (const uint8_t *)info->buf + 64ul * (*end & (info->blocks - 1));
		uint32_t segments = block[7] & 0x3f;

		if (*end == info->next)
			return EINVAL;
		*end += segments > 4 ? (segments + 3) / 4 : 1;
	}
	return 0;
}

static inline int adverb_exp_enable(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	struct ibv_qp *target = wr->task.wqe_enable.qp;
	uint64_t *word = adverb_qp_words(target);
	struct adverb_sq_info info;
	uint32_t end;
	int error;

	if (!(adverb_qp_flags(target) & IBV_EXP_QP_CREATE_MANAGED_SEND) || wr->task.wqe_enable.wqe_count < 0)
		return EINVAL;
	error = adverb_sq_info(target, &info);
	if (!error)
		error = adverb_exp_blocks(&info, adverb_exp_base(word), wr->task.wqe_enable.wqe_count, &end);
	if (!error)
		error = adverb_exp_post_order(qp, 0x17, end & 0xffff, target->qp_num, wr);
	if (!error)
		adverb_exp_counted(word, end, wr->exp_send_flags);
	return error;
}

static inline int adverb_exp_recv_enable(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	struct ibv_qp *target = wr->task.wqe_enable.qp;
	uint64_t *word = adverb_qp_words(target) + 1;
	uint32_t end = adverb_exp_base(word) + wr->task.wqe_enable.wqe_count;
	int error;

	if (!(adverb_qp_flags(target) & IBV_EXP_QP_CREATE_MANAGED_RECV) || wr->task.wqe_enable.wqe_count < 0)
		return EINVAL;
	if (!wr->task.wqe_enable.wqe_count)
		return EOPNOTSUPP;
	error = adverb_exp_post_order(qp, 0x16, end & 0xffff, target->qp_num, wr);
	if (!error)
		adverb_exp_counted(word, end, wr->exp_send_flags);
	return error;
}

static inline int adverb_exp_masked(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	int swaps = wr->exp_opcode == IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP;
	uint8_t wqe[128] = {0}, *at = wqe + 32;

	if (wr->ext_op.masked_atomics.log_arg_sz != 3 || wr->num_sge != 1)
		return EOPNOTSUPP;
	adverb_exp_put64(wqe + 16, wr->ext_op.masked_atomics.remote_addr);
	adverb_exp_put32(wqe + 24, wr->ext_op.masked_atomics.rkey);
	if (swaps) {
		adverb_exp_put64(at, wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_val);
		adverb_exp_put64(at + 8, wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_val);
		adverb_exp_put64(at + 16, wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_mask);
		adverb_exp_put64(at + 24, wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_mask);
		at += 32;
	} else {
		adverb_exp_put64(at, wr->ext_op.masked_atomics.wr_data.inline_data.fetch_add.add_val);
		adverb_exp_put64(at + 8, wr->ext_op.masked_atomics.wr_data.inline_data.fetch_add.field_boundary);
		at += 16;
	}
	adverb_exp_put32(at, wr->sg_list[0].length);
	adverb_exp_put32(at + 4, wr->sg_list[0].lkey);
	adverb_exp_put64(at + 8, wr->sg_list[0].addr);
	/* The modifier says that arguments are 8 bytes. */
	return adverb_exp_post(qp, wqe, 0x08 | (3 - 2), swaps ? 0x14 : 0x15, swaps ? 5 : 4, wr);
}

/* A request that plain verbs know. */
static inline int adverb_exp_plain(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	const uint64_t known = IBV_EXP_SEND_FENCE | IBV_EXP_SEND_SIGNALED | IBV_EXP_SEND_SOLICITED |
			       IBV_EXP_SEND_INLINE | IBV_EXP_SEND_WAIT_EN_LAST;
	struct ibv_send_wr plain, *bad;

	if (wr->exp_send_flags & ~known)
		return EOPNOTSUPP;
	memset(&plain, 0, sizeof(plain));
	plain.wr_id = wr->wr_id;
	plain.sg_list = wr->sg_list;
	plain.num_sge = wr->num_sge;
	plain.opcode = (enum ibv_wr_opcode)wr->exp_opcode;
	plain.send_flags = (unsigned int)(wr->exp_send_flags & ~IBV_EXP_SEND_WAIT_EN_LAST);
	plain.imm_data = wr->ex.imm_data;
	switch (wr->exp_opcode) {
	case IBV_EXP_WR_ATOMIC_CMP_AND_SWP:
	case IBV_EXP_WR_ATOMIC_FETCH_AND_ADD:
		plain.wr.atomic.remote_addr = wr->wr.atomic.remote_addr;
		plain.wr.atomic.compare_add = wr->wr.atomic.compare_add;
		plain.wr.atomic.swap = wr->wr.atomic.swap;
		plain.wr.atomic.rkey = wr->wr.atomic.rkey;
		break;
	case IBV_EXP_WR_RDMA_WRITE:
	case IBV_EXP_WR_RDMA_WRITE_WITH_IMM:
	case IBV_EXP_WR_RDMA_READ:
		plain.wr.rdma.remote_addr = wr->wr.rdma.remote_addr;
		plain.wr.rdma.rkey = wr->wr.rdma.rkey;
		break;
	case IBV_EXP_WR_SEND:
	case IBV_EXP_WR_SEND_WITH_IMM:
		break;
	default:
		return EOPNOTSUPP;
	}
	return ibv_post_send(qp, &plain, &bad);
}

static inline int adverb_exp_post_one(struct ibv_qp *qp, const struct ibv_exp_send_wr *wr)
{
	uint8_t nop[128] = {0};
	int orders = wr->exp_opcode >= IBV_EXP_WR_SEND_ENABLE && wr->exp_opcode <= IBV_EXP_WR_CQE_WAIT;

	if (wr->comp_mask)
		return EOPNOTSUPP;
	if (orders && !(adverb_qp_flags(qp) & IBV_EXP_QP_CREATE_CROSS_CHANNEL))
		return EINVAL;
	switch (wr->exp_opcode) {
	case IBV_EXP_WR_SEND_ENABLE:
		return adverb_exp_enable(qp, wr);
	case IBV_EXP_WR_RECV_ENABLE:
		return adverb_exp_recv_enable(qp, wr);
	case IBV_EXP_WR_CQE_WAIT:
		return adverb_exp_wait(qp, wr);
	case IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP:
	case IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD:
		return adverb_exp_masked(qp, wr);
	case IBV_EXP_WR_NOP:
		return adverb_exp_post(qp, nop, 0, 0x00, 1, wr);
	default:
		return adverb_exp_plain(qp, wr);
	}
}

/* Posts requests one after the other; stops at the first one that fails, and says which it was. */
static inline int ibv_exp_post_send(struct ibv_qp *qp, struct ibv_exp_send_wr *wr, struct ibv_exp_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		int error = adverb_exp_post_one(qp, wr);

		if (error) {
			*bad = wr;
			return errno = error;
		}
	}
	return 0;
}

enum ibv_exp_task_type {
	IBV_EXP_TASK_SEND = 0,
	IBV_EXP_TASK_RECV = 1,
};

struct ibv_exp_task {
	enum ibv_exp_task_type task_type;
	struct {
		struct ibv_qp *qp;
		union {
			struct ibv_exp_send_wr *send_wr;
			struct ibv_recv_wr *recv_wr;
		};
	} item;
	struct ibv_exp_task *next;
	uint32_t comp_mask;
};

/* Posts lists of several queue pairs one after the other; stops at the first list that fails. */
static inline int ibv_exp_post_task(struct ibv_context *context, struct ibv_exp_task *task, struct ibv_exp_task **bad)
{
	(void)context;
	for (; task; task = task->next) {
		struct ibv_exp_send_wr *bad_send;
		struct ibv_recv_wr *bad_recv;
		int error = EOPNOTSUPP;

		if (!task->comp_mask && task->task_type == IBV_EXP_TASK_SEND)
			error = ibv_exp_post_send(task->item.qp, task->item.send_wr, &bad_send);
		else if (!task->comp_mask && task->task_type == IBV_EXP_TASK_RECV)
			error = ibv_post_recv(task->item.qp, task->item.recv_wr, &bad_recv);
		if (error) {
			*bad = task;
			return errno = error;
		}
	}
	return 0;
}

/* --- dynamically connected targets: there are none; programs that name them compile, and are told so --- */

enum {
	IBV_EXP_DCT_STATE_ACTIVE,
	IBV_EXP_DCT_STATE_DRAINING,
	IBV_EXP_DCT_STATE_DRAINED,
};

struct ibv_exp_dct_init_attr {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint64_t dc_key;
	uint8_t port;
	uint32_t access_flags;
	uint8_t min_rnr_timer;
	uint8_t tclass;
	uint32_t flow_label;
	enum ibv_mtu mtu;
	uint8_t pkey_index;
	uint8_t gid_index;
	uint8_t hop_limit;
	uint32_t inline_size;
	uint32_t create_flags;
	uint32_t comp_mask;
};

struct ibv_exp_dct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t dct_num;
};

struct ibv_exp_dct_attr {
	uint64_t dc_key;
	uint8_t state;
	uint32_t comp_mask;
};

static inline struct ibv_exp_dct *ibv_exp_create_dct(struct ibv_context *context, struct ibv_exp_dct_init_attr *attr)
{
	(void)context;
	(void)attr;
	errno = EOPNOTSUPP;
	return NULL;
}

static inline int ibv_exp_query_dct(struct ibv_exp_dct *dct, struct ibv_exp_dct_attr *attr)
{
	(void)dct;
	(void)attr;
	return errno = EOPNOTSUPP;
}

static inline int ibv_exp_destroy_dct(struct ibv_exp_dct *dct)
{
	(void)dct;
	return errno = EOPNOTSUPP;
}

#ifdef __cplusplus
}
#endif

#endif
