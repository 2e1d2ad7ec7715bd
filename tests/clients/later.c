/* The calls of rdma-core after v44, by prototypes written here, since the system's header has none; and the private
 * nodes of all versions, which device libraries ask for. Prints what it found, and fails on the first thing wrong. */
#define _GNU_SOURCE
#include "client.h"

#include <dlfcn.h>

struct ibv_buf;
struct ibv_mr_init_attr_v59 {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr_v59 *attr);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
void *ibv_create_comp_cntr(struct ibv_context *context, void *attr);
void *ibv_alloc_dmah(struct ibv_context *context, void *attr);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

#define BYTES 100000
#define PART 4096
#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define MASK_IOVA 1
#define MASK_ADDR 2
#define MASK_FD 4

static void refuses(int refused, int error, const char *what)
{
	if (!refused || errno != error)
		die("%s was not refused with errno %d", what, error);
}

/* A WRITE from one part of a buffer to another. */
static void write_across(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_buf *buf = NULL;
	char *start = ibv_alloc_buf(pd, BYTES, &buf);
	struct ibv_mr *mr, *named;
	struct ibv_qp *qp = make_rc(pd, cq, 4);
	struct ibv_mr_init_attr_v59 attr = {
		.length = PART, .access = REMOTE, .comp_mask = MASK_IOVA | MASK_ADDR, .iova = 0x4000, .addr = start + PART};
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				       .send_flags = IBV_SEND_SIGNALED};
	int i;

	CHECK(start && buf, "ibv_alloc_buf");
	refuses(!ibv_reg_buf_mr(other, buf, start, PART, REMOTE), EINVAL, "another domain");
	refuses(!ibv_reg_buf_mr(pd, buf, start + 1, BYTES, REMOTE), EINVAL, "more than the buffer");
	refuses(!ibv_reg_buf_mr(pd, buf, start - 1, PART, REMOTE), EINVAL, "before the buffer");
	refuses(!ibv_alloc_buf(pd, 0, &buf), EINVAL, "a buffer of nothing");
	refuses(ibv_export_buf_dmabuf_fd(buf) == -1, EOPNOTSUPP, "a descriptor of a buffer");
	mr = ibv_reg_buf_mr(pd, buf, start, PART, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr, "ibv_reg_buf_mr");
	named = ibv_reg_mr_ex(pd, &attr);
	CHECK(named, "ibv_reg_mr_ex");
	attr.comp_mask = MASK_FD;
	refuses(!ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP, "a region of a descriptor");
	for (i = 0; i < PART; i++)
		start[i] = i * 7;
	connect_rc(qp, qp->qp_num, 0, 0, own_gid(context), 14, 7);
	sge = (struct ibv_sge){.addr = (uintptr_t)start, .length = PART, .lkey = mr->lkey};
	wr.wr.rdma.remote_addr = 0x4000;
	wr.wr.rdma.rkey = named->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	CHECK(wait_one(cq, 5).status == IBV_WC_SUCCESS, "the WRITE");
	CHECK(!memcmp(start, start + PART, PART), "what was written");
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_dereg_mr(named), "destroying");
	CHECK(ibv_dealloc_pd(pd) == EBUSY, "a domain with a buffer must be busy");
	ibv_free_buf(buf);
	CHECK(!ibv_dealloc_pd(other), "ibv_dealloc_pd");
	printf("a buffer of %d bytes: written across\n", BYTES);
}

static int nodes(void)
{
	static const char *const all[] = {"25", "33", "34", "57", "59", "64", "65"};
	unsigned i;

	for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
		char node[32], driver[32];
		int (*command)(void);
		void (*registers)(const void *);
		const unsigned char *flag;

		snprintf(node, sizeof(node), "IBVERBS_PRIVATE_%s", all[i]);
		snprintf(driver, sizeof(driver), "verbs_register_driver_%s", all[i]);
		command = (int (*)(void))dlvsym(RTLD_DEFAULT, "ibv_cmd_alloc_pd", node);
		registers = (void (*)(const void *))dlvsym(RTLD_DEFAULT, driver, node);
		flag = dlvsym(RTLD_DEFAULT, "verbs_allow_disassociate_destroy", node);
		CHECK(command && registers && flag, "names of %s", node);
		refuses(command() == EOPNOTSUPP, EOPNOTSUPP, node);
		registers(NULL);
		CHECK(*flag == 0, "the flag of %s", node);
	}
	return i;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	const char *(*words)(int) = (const char *(*)(int))dlvsym(RTLD_DEFAULT, "ibv_wr_opcode_str", "IBVERBS_PRIVATE_65");
	uint64_t speed = 0;

	CHECK(pd && cq, "ibv_alloc_pd, ibv_create_cq");
	CHECK(!ibv_query_port_speed(context, PORT, &speed) && speed == 1000, "ibv_query_port_speed");
	refuses(ibv_query_port_speed(context, 2, &speed) != 0, EINVAL, "another port's speed");
	refuses(!ibv_create_comp_cntr(context, NULL), EOPNOTSUPP, "a completion counter");
	refuses(!ibv_alloc_dmah(context, NULL), EOPNOTSUPP, "a hint for DMA");
	CHECK(words && !strcmp(words(IBV_WR_SEND), "SEND"), "ibv_wr_opcode_str");
	write_across(context, pd, cq);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d private nodes answer\n", nodes());
	return 0;
}
