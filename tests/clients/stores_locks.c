/* The calls that a store with a table of locks in the adapter's memory makes, by the experimental verbs: a region from
 * address 0, all words locked, counted, released behind the data in one list; a queue pair to the own node, also with masks;
 * huge pages where the host has them.
 *   stores_locks S -p PORT [HOST]
 * Without a host it serves; S are seconds that the client's work takes at least. Each end prints `OK` at its end. */
#include "stores.h"

#include <infiniband/verbs_exp.h>
#include <sys/mman.h>

#define LOCKS 32768
#define BATCH 64

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
	return stores_main(argc, argv, locks);
}
