/* The calls that stores on disaggregated memory make, in their order and with their odd arguments.
 *   stores chain S -p PORT [HOST]   entries chained by compare and swap: GID index 3, PSN 3185 everywhere, hop limit 1,
 *                                 eight queue pairs, four pieces and 256 bytes inline, datagrams through address
 *                                 handles whose GRH nobody has filled in
 *   stores locks S -p PORT [HOST]   a table of locks in the adapter's memory, by the experimental verbs: a region from
 *                                 address 0, all words locked, counted, released behind the data in one list; a queue
 *                                 pair to the own node, also with masks; huge pages where the host has them
 * Without a host it serves; S are seconds that the client's work takes at least. Each end prints `OK` at its end. */
#include "client.h"

#include <infiniband/verbs_exp.h>
#include <sys/mman.h>

#define LIMIT 20.0
#define INDEX 3
#define PSN 3185
#define QUEUES 8
#define ENTRY 1024
#define ENTRIES 200
#define LOCKS 32768
#define BATCH 64
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

/* --- chain --- */

static struct ibv_qp *make_ud(struct ibv_cq *ud_cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = ud_cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_UD,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = 0x11111111};

	CHECK(qp, "a UD queue pair");
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "UD to INIT");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "UD to RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = PSN};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "UD to RTS");
	return qp;
}

/* A datagram of one byte; it completes whoever may have it. */
static void send_ud(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, struct ibv_mr *mr, char *at, char byte)
{
	struct ibv_sge sge = {.addr = (uintptr_t)at, .length = 1, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = 900 + (unsigned char)byte,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = 0x11111111},
	};

	*at = byte;
	CHECK(!ibv_post_send(qp, &wr, &bad), "post a datagram");
	done(wr.wr_id);
}

/* A handle over a GRH that nobody has filled in: every byte of it is this one. */
static struct ibv_ah *unfilled(int byte, int index)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT};

	memset(&attr.grh, byte, sizeof(attr.grh));
	attr.grh.sgid_index = index;
	errno = 0;
	return ibv_create_ah(pd, &attr);
}

/* Handles over what happened to be in memory: refused, or of an address that nobody has. */
static void datagrams(struct ibv_qp *ud, const struct end *theirs, struct ibv_mr *mr, char *at)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = PORT,
		.grh = {.dgid = theirs->gid, .sgid_index = INDEX, .hop_limit = 1},
	};
	struct ibv_ah *ah;

	CHECK(!unfilled(0xaa, 0xaa) && errno == EINVAL, "a handle with GID index 0xaa");
	CHECK(!unfilled(0, 0) && errno == EINVAL, "a handle to GID ::");
	ah = unfilled(0x5a, INDEX);
	CHECK(ah, "a handle to an address that nobody has");
	send_ud(ud, ah, theirs->ud_qpn, mr, at, 'g');
	CHECK(!ibv_destroy_ah(ah), "destroy it");
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah, "a handle to the peer");
	send_ud(ud, ah, theirs->ud_qpn, mr, at, 'p');
	CHECK(!ibv_destroy_ah(ah), "destroy it");
}

static uint64_t remote_of(const struct end *theirs, int entry)
{
	return theirs->addr + (uint64_t)entry * ENTRY;
}

/* Writes an entry of four pieces: next, key, value, end. Small ones stand in the request. */
static void write_entry(struct ibv_qp *qp, const struct end *theirs, struct ibv_mr *mr, char *room, int entry)
{
	const int small = entry % 2, value = small ? 200 : ENTRY - 24;
	uint64_t *head = (uint64_t *)room, *end = (uint64_t *)(room + 2048);
	struct ibv_sge sges[4] = {
		{.addr = (uintptr_t)head, .length = 8, .lkey = mr->lkey},
		{.addr = (uintptr_t)(head + 1), .length = 8, .lkey = mr->lkey},
		{.addr = (uintptr_t)(room + 64), .length = value, .lkey = mr->lkey},
		{.addr = (uintptr_t)end, .length = 8, .lkey = mr->lkey},
	};
	struct ibv_send_wr *bad, wr = {
		.wr_id = entry,
		.sg_list = sges,
		.num_sge = 4,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | (small ? IBV_SEND_INLINE : 0),
		.wr.rdma = {.remote_addr = remote_of(theirs, entry), .rkey = theirs->rkey},
	};

	head[0] = 0;
	head[1] = *end = entry;
	memset(room + 64, entry, value);
	CHECK(!ibv_post_send(qp, &wr, &bad), "post entry %d", entry);
	if (small)
		memset(room, 0xee, ENTRY);
	done(entry);
}

static uint64_t one_word(struct ibv_qp *qp, const struct end *theirs, struct ibv_mr *mr, uint64_t *word, uint64_t addr,
			 enum ibv_wr_opcode opcode, uint64_t swap)
{
	struct ibv_sge sge = {.addr = (uintptr_t)word, .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = addr,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (opcode == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = theirs->rkey;
	} else {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.swap = swap;
		wr.wr.atomic.rkey = theirs->rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad), "post for a word");
	done(addr);
	return *word;
}

static void chain(int serves)
{
	const size_t len = (size_t)ENTRY * (ENTRIES + 8);
	char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, len, ALL);
	struct ibv_cq *ud_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qps[QUEUES], *ud;
	struct ibv_sge room;
	struct ibv_recv_wr *bad, recv = {.wr_id = 7, .sg_list = &room, .num_sge = 1};
	struct end mine = {0}, theirs;

	CHECK(memory != MAP_FAILED && mr && ud_cq, "memory");
	room = (struct ibv_sge){.addr = (uintptr_t)memory + (size_t)ENTRY * ENTRIES, .length = 64, .lkey = mr->lkey};
	ud = make_ud(ud_cq);
	CHECK(!ibv_query_gid(context, PORT, INDEX, &mine.gid), "GID %d", INDEX);
	mine.ud_qpn = ud->qp_num;
	mine.addr = (uintptr_t)memory;
	mine.rkey = mr->rkey;
	for (int i = 0; i < QUEUES; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = {.max_send_wr = 128, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 1,
				.max_inline_data = 256},
			.qp_type = IBV_QPT_RC,
		};

		qps[i] = ibv_create_qp(pd, &init);
		CHECK(qps[i] && init.cap.max_inline_data >= 256, "a queue pair with 256 bytes inline");
		to_init(qps[i]);
		mine.qpn[i] = qps[i]->qp_num;
	}
	for (int i = 0; serves && i < 4; i++)
		CHECK(!ibv_post_recv(ud, &recv, &bad), "post a receive");
	tell(&mine, sizeof(mine));
	hear(&theirs, sizeof(theirs));
	for (int i = 0; i < QUEUES; i++)
		to_rts(qps[i], theirs.qpn[i], theirs.gid, IBV_MTU_1024);
	meet();
	if (!serves) {
		uint64_t *word = (uint64_t *)(memory + 8192), at;
		int count = 0;

		for (int entry = 0; entry < ENTRIES; entry++) {
			struct ibv_qp *qp = qps[entry % QUEUES];

			write_entry(qp, &theirs, mr, memory, entry);
			if (!entry)
				continue;
			at = remote_of(&theirs, entry - 1);
			CHECK(!one_word(qp, &theirs, mr, word, at, IBV_WR_ATOMIC_CMP_AND_SWP, remote_of(&theirs, entry)),
			      "entry %d has a next one already", entry - 1);
			CHECK(one_word(qp, &theirs, mr, word, at, IBV_WR_ATOMIC_CMP_AND_SWP, 1) ==
				      remote_of(&theirs, entry),
			      "entry %d was chained", entry);
		}
		for (at = theirs.addr; at; at = one_word(qps[count % QUEUES], &theirs, mr, word, at, IBV_WR_RDMA_READ, 0))
			count++;
		CHECK(count == ENTRIES, "%d entries in the chain", count);
		begun = seconds();
		for (int entry = 1; entry < ENTRIES || seconds() < begun + least; entry++) {
			const int i = entry % (ENTRIES - 1);

			CHECK(one_word(qps[i % QUEUES], &theirs, mr, word, remote_of(&theirs, i), IBV_WR_ATOMIC_CMP_AND_SWP,
				       1) == remote_of(&theirs, i + 1),
			      "entry %d is chained", i);
		}
		datagrams(ud, &theirs, mr, memory);
		printf("%d entries chained\n", count);
	} else {
		struct ibv_wc wc = wait_one(ud_cq, LIMIT);
		const char *byte = memory + (size_t)ENTRY * ENTRIES + 40;

		CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 41 && *byte == 'p', "the datagram: %c", *byte);
	}
	meet();
	CHECK(!serves || !ibv_poll_cq(ud_cq, 1, &(struct ibv_wc){0}), "a datagram that was for nobody");
}

/* --- locks --- */

static struct ibv_exp_dm *table;

static struct ibv_mr *lock_table(void)
{
	struct ibv_exp_device_attr attrs;
	struct ibv_exp_alloc_dm_attr room = {.length = LOCKS * 8};
	struct ibv_exp_reg_mr_in in = {.pd = pd, .addr = 0, .length = LOCKS * 8, .exp_access = ALL};
	struct ibv_exp_memcpy_dm_attr copy = {.memcpy_dir = IBV_EXP_DM_CPY_TO_DEVICE, .length = LOCKS * 8};
	struct ibv_mr *mr;

	attrs.comp_mask = IBV_EXP_DEVICE_ATTR_UMR | IBV_EXP_DEVICE_ATTR_MAX_DM_SIZE;
	CHECK(!ibv_exp_query_device(context, &attrs), "query");
	CHECK(attrs.comp_mask == IBV_EXP_DEVICE_ATTR_MAX_DM_SIZE && attrs.max_dm_size == 4 << 20, "4 MiB on the adapter");
	table = ibv_exp_alloc_dm(context, &room);
	CHECK(table, "memory of the adapter");
	in.dm = table;
	in.comp_mask = IBV_EXP_REG_MR_DM;
	mr = ibv_exp_reg_mr(&in);
	CHECK(mr, "a region of it");
	copy.host_addr = calloc(LOCKS, 8);
	CHECK(copy.host_addr && !ibv_exp_memcpy_dm(table, &copy), "zero it");
	free(copy.host_addr);
	return mr;
}

static struct ibv_qp *lock_qp(void)
{
	struct ibv_exp_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.pd = pd,
		.comp_mask = IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS | IBV_EXP_QP_INIT_ATTR_PD | IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG,
		.max_atomic_arg = 32,
		.cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1,
			.max_inline_data = 64},
	};
	struct ibv_qp *qp = ibv_exp_create_qp(context, &init);

	CHECK(qp, "ibv_exp_create_qp");
	to_init(qp);
	return qp;
}

/* One atomic on each of some locks, in one list; what was there before stands in `words`. */
static void on_locks(struct ibv_qp *qp, uint32_t rkey, struct ibv_mr *mr, uint64_t *words, uint64_t lock, int count,
		     enum ibv_exp_wr_opcode opcode, uint64_t compare_add, uint64_t swap)
{
	struct ibv_exp_send_wr *bad, wrs[BATCH] = {0};
	struct ibv_sge sges[BATCH];

	for (int i = 0; i < count; i++) {
		struct ibv_exp_send_wr *wr = &wrs[i];

		sges[i] = (struct ibv_sge){.addr = (uintptr_t)(words + i), .length = 8, .lkey = mr->lkey};
		wr->wr_id = lock + i;
		wr->next = i + 1 < count ? wr + 1 : NULL;
		wr->sg_list = &sges[i];
		wr->num_sge = 1;
		wr->exp_opcode = opcode;
		wr->exp_send_flags = IBV_EXP_SEND_SIGNALED;
		if (opcode == IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP) {
			wr->exp_send_flags |= IBV_EXP_SEND_EXT_ATOMIC_INLINE;
			wr->ext_op.masked_atomics.log_arg_sz = 3;
			wr->ext_op.masked_atomics.remote_addr = (lock + i) * 8;
			wr->ext_op.masked_atomics.rkey = rkey;
			wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_val = compare_add;
			wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.compare_mask = 0xffff;
			wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_val = swap;
			wr->ext_op.masked_atomics.wr_data.inline_data.cmp_swap.swap_mask = 0xffff;
		} else {
			wr->wr.atomic.remote_addr = (lock + i) * 8;
			wr->wr.atomic.compare_add = compare_add;
			wr->wr.atomic.swap = swap;
			wr->wr.atomic.rkey = rkey;
		}
	}
	CHECK(!ibv_exp_post_send(qp, wrs, &bad), "post for locks from %lu on", (unsigned long)lock);
	for (int i = 0; i < count; i++)
		done(lock + i);
}

/* For each lock its data, and behind it on the same queue pair the release, all in one list. */
static void release(struct ibv_qp *qp, const struct end *theirs, struct ibv_mr *mr, uint64_t *data, uint64_t first)
{
	static uint64_t zero;
	struct ibv_sge sges[BATCH], empty = {.addr = (uintptr_t)&zero, .length = 8};
	struct ibv_send_wr *bad, wrs[2 * BATCH] = {0};

	for (int i = 0; i < BATCH; i++) {
		struct ibv_send_wr *write = &wrs[2 * i], *free = write + 1;
		const uint64_t lock = first + i;

		for (int n = 0; n < 4; n++)
			data[4 * i + n] = lock + 1;
		sges[i] = (struct ibv_sge){.addr = (uintptr_t)(data + 4 * i), .length = 32, .lkey = mr->lkey};
		*write = (struct ibv_send_wr){
			.next = free, .sg_list = &sges[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = {.remote_addr = theirs->addr + lock * 32, .rkey = theirs->rkey},
		};
		*free = (struct ibv_send_wr){
			.next = free + 1, .sg_list = &empty, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_INLINE, .wr.rdma = {.remote_addr = lock * 8, .rkey = theirs->lock_rkey},
		};
	}
	wrs[2 * BATCH - 1].next = NULL;
	wrs[2 * BATCH - 1].wr_id = first;
	wrs[2 * BATCH - 1].send_flags |= IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, wrs, &bad), "post data and releases");
	done(first);
}

/* All locks by one operation; all words were `before`. */
static void on_all(struct ibv_qp *qp, const struct end *theirs, struct ibv_mr *mr, uint64_t *words,
		   enum ibv_exp_wr_opcode opcode, uint64_t compare_add, uint64_t swap, uint64_t before, const char *what)
{
	for (uint64_t lock = 0; lock < LOCKS; lock += BATCH) {
		on_locks(qp, theirs->lock_rkey, mr, words, lock, BATCH, opcode, compare_add, swap);
		for (int i = 0; i < BATCH; i++)
			CHECK(words[i] == before, "lock %lu %s: %lx", (unsigned long)lock + i, what, (unsigned long)words[i]);
	}
}

static void lock_all(struct ibv_qp *qp, const struct end *theirs, struct ibv_mr *mr, uint64_t *words)
{
	const uint64_t tag = (7ull << 32) + 1;

	do {
		on_all(qp, theirs, mr, words, IBV_EXP_WR_ATOMIC_CMP_AND_SWP, 0, tag, 0, "was free");
		on_all(qp, theirs, mr, words, IBV_EXP_WR_ATOMIC_CMP_AND_SWP, 0, tag + 1, tag, "is held");
		on_all(qp, theirs, mr, words, IBV_EXP_WR_ATOMIC_FETCH_AND_ADD, 1, 0, tag, "before the addition");
		on_all(qp, theirs, mr, words, IBV_EXP_WR_ATOMIC_FETCH_AND_ADD, 0, 0, tag + 1, "after the addition");
		for (uint64_t lock = 0; lock < LOCKS; lock += BATCH)
			release(qp, theirs, mr, words + BATCH, lock);
	} while (seconds() < begun + least);
}

/* The own adapter's locks are reached through a queue pair, too. Masks go only there: of a peer nobody knows whether it has
 * masked atomics. */
static void own_lock(struct ibv_qp *own, uint32_t rkey, struct ibv_mr *mr, uint64_t *words)
{
	on_locks(own, rkey, mr, words, 9, 1, IBV_EXP_WR_ATOMIC_CMP_AND_SWP, 0, 77);
	CHECK(!*words, "the own lock is free");
	on_locks(own, rkey, mr, words, 9, 1, IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP, 77, 5);
	CHECK(*words == 77, "the own lock is held");
	on_locks(own, rkey, mr, words, 9, 1, IBV_EXP_WR_ATOMIC_FETCH_AND_ADD, 0, 0);
	CHECK(*words == 5, "the own lock was changed");
}

static void locks(int serves)
{
	const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *data = mmap(NULL, 2 << 20, prot, flags | MAP_HUGETLB, -1, 0);
	struct ibv_mr *mr, *lock_mr = lock_table();
	struct ibv_qp *qp = lock_qp(), *own = lock_qp();
	struct end mine = {0}, theirs;
	uint64_t *words;

	printf("%s pages\n", data == MAP_FAILED ? "ordinary" : "huge");
	if (data == MAP_FAILED)
		data = mmap(NULL, 2 << 20, prot, flags, -1, 0);
	words = (uint64_t *)data;
	mr = ibv_reg_mr(pd, data, 2 << 20, ALL);
	CHECK(mr, "register");
	CHECK(!ibv_query_gid(context, PORT, INDEX, &mine.gid), "GID %d", INDEX);
	mine.qpn[0] = qp->qp_num;
	mine.addr = (uintptr_t)data;
	mine.rkey = mr->rkey;
	mine.lock_rkey = lock_mr->rkey;
	tell(&mine, sizeof(mine));
	hear(&theirs, sizeof(theirs));
	to_rts(qp, theirs.qpn[0], theirs.gid, IBV_MTU_4096);
	to_rts(own, own->qp_num, mine.gid, IBV_MTU_4096);
	meet();
	if (!serves)
		lock_all(qp, &theirs, mr, words);
	meet();
	if (serves) {
		uint64_t *copy = malloc(LOCKS * 8);
		struct ibv_exp_memcpy_dm_attr from = {.memcpy_dir = IBV_EXP_DM_CPY_TO_HOST, .host_addr = copy,
						      .length = LOCKS * 8};

		CHECK(copy && !ibv_exp_memcpy_dm(table, &from), "read the table");
		for (int lock = 0; lock < LOCKS; lock++) {
			CHECK(!copy[lock], "lock %d was released", lock);
			for (int i = 0; i < 4; i++)
				CHECK(words[lock * 4 + i] == (uint64_t)lock + 1, "data of lock %d", lock);
		}
		free(copy);
		own_lock(own, mine.lock_rkey, mr, words);
		printf("%d locks taken and released\n", LOCKS);
	}
	errno = 0;
	CHECK(!ibv_exp_create_dct(context, &(struct ibv_exp_dct_init_attr){.pd = pd}) && errno == EOPNOTSUPP,
	      "no dynamically connected targets");
	CHECK(!ibv_dereg_mr(lock_mr) && !ibv_exp_free_dm(table), "give the table back");
}

int main(int argc, char **argv)
{
	int serves = argc == 5, port = argc >= 5 ? atoi(argv[4]) : 0;

	if ((argc != 5 && argc != 6) || strcmp(argv[3], "-p")) {
		fprintf(stderr, "usage: stores chain|locks SECONDS -p PORT [HOST]\n");
		return 2;
	}
	peer = serves ? listen_once(port) : dial(argv[5], port);
	least = atof(argv[2]);
	begun = seconds();
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	CHECK(pd && cq, "a domain and a completion queue");
	if (!strcmp(argv[1], "chain"))
		chain(serves);
	else
		locks(serves);
	printf("OK\n");
	return 0;
}
