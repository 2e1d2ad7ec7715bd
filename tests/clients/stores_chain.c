/* The calls that a store of chained entries makes, in their order and with their odd arguments: GID index 3, PSN 3185
 * everywhere, hop limit 1, eight queue pairs, four pieces and 256 bytes inline, datagrams through address handles whose GRH
 * nobody has filled in. Plain verbs, so that it runs on any device.
 *   stores_chain S -p PORT [HOST]
 * Without a host it serves; S are seconds that the client's work takes at least. Each end prints `OK` at its end. */
#include "stores.h"

#include <poll.h>
#include <sys/mman.h>

#define ENTRY 1024
#define ENTRIES 200
/* Receives for datagrams, and bytes of each one's room behind the entries; a GRH stands before the datagram. */
#define RECEIVES 4
#define ROOM 64
#define GRH 40

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

/* A handle over a GRH that nobody has filled in: every byte of it is this one. What becomes of it is printed. */
static struct ibv_ah *unfilled(int byte, int index)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT};
	struct ibv_ah *ah;

	memset(&attr.grh, byte, sizeof(attr.grh));
	attr.grh.sgid_index = index;
	errno = 0;
	ah = ibv_create_ah(pd, &attr);
	printf("a GRH of bytes %#x, index %#x: %s\n", byte, index, ah ? "a handle" : strerror(errno));
	return ah;
}

/* Handles over what happened to be in memory: refused, or of an address that nobody has. */
static void datagrams(struct ibv_qp *ud, const struct end *theirs, struct ibv_mr *mr, char *at)
{
	const int of[3][2] = {{0xaa, 0xaa}, {0, 0}, {0x5a, INDEX}};
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = PORT,
		.grh = {.dgid = theirs->gid, .sgid_index = INDEX, .hop_limit = 1},
	};
	struct ibv_ah *ah;

	for (int i = 0; i < 3; i++) {
		ah = unfilled(of[i][0], of[i][1]);
		if (!ah)
			continue;
		send_ud(ud, ah, theirs->ud_qpn, mr, at, 'g');
		CHECK(!ibv_destroy_ah(ah), "destroy it");
	}
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah, "a handle to the peer");
	/* A datagram may be lost: until the peer says that it has one. */
	struct pollfd said = {.fd = peer, .events = POLLIN};
	const double until = seconds() + LIMIT;

	do {
		CHECK(seconds() < until, "the peer has no datagram");
		send_ud(ud, ah, theirs->ud_qpn, mr, at, 'p');
	} while (poll(&said, 1, 200) == 0);
	CHECK(!ibv_destroy_ah(ah), "destroy it");
}

/* What a receive has is the datagram that was for this end. */
static void expect_own(const struct ibv_wc *wc, const char *rooms)
{
	const char byte = rooms[wc->wr_id * ROOM + GRH];

	CHECK(wc->status == IBV_WC_SUCCESS && wc->byte_len == GRH + 1 && byte == 'p', "the datagram: %c", byte);
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
	char *rooms = memory + (size_t)ENTRY * ENTRIES;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, len, ALL);
	struct ibv_cq *ud_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qps[QUEUES], *ud;
	struct end mine = {0}, theirs;

	CHECK(memory != MAP_FAILED && mr && ud_cq, "memory");
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
	for (int i = 0; serves && i < RECEIVES; i++) {
		struct ibv_sge room = {.addr = (uintptr_t)rooms + i * ROOM, .length = ROOM, .lkey = mr->lkey};
		struct ibv_recv_wr *bad, recv = {.wr_id = i, .sg_list = &room, .num_sge = 1};

		CHECK(!ibv_post_recv(ud, &recv, &bad), "post a receive");
	}
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

		expect_own(&wc, rooms);
	}
	meet();
	/* It may have come twice, and no other one. */
	for (struct ibv_wc wc; serves && ibv_poll_cq(ud_cq, 1, &wc);)
		expect_own(&wc, rooms);
}

int main(int argc, char **argv)
{
	return stores_main(argc, argv, chain);
}
