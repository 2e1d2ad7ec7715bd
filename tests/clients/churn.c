/* Makes and destroys one kind of object many times: `churn KIND COUNT`; the process must not grow.
 * Prints `KIND COUNT before-kB after-kB`; exits 1 when the resident set grew by more than the allowance. */
#include "client.h"

#include <fcntl.h>

#define ALLOWANCE_KB 1024

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096] __attribute__((aligned(4096)));

static long resident_kb(void)
{
	long total = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%ld %ld", &total, &resident) == 2, "/proc/self/statm");
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void one_context(void)
{
	CHECK(!ibv_close_device(open_first()), "ibv_close_device");
}

static void one_pd(void)
{
	struct ibv_pd *made = ibv_alloc_pd(context);

	CHECK(made && !ibv_dealloc_pd(made), "pd");
}

static void one_mr(void)
{
	struct ibv_mr *made = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);

	CHECK(made && !ibv_dereg_mr(made), "mr");
}

static void one_mw(void)
{
	struct ibv_mw *made = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	CHECK(made && !ibv_dealloc_mw(made), "mw");
}

static void one_channel(void)
{
	struct ibv_comp_channel *made = ibv_create_comp_channel(context);

	CHECK(made && !ibv_destroy_comp_channel(made), "channel");
}

static void one_cq(void)
{
	struct ibv_cq *made = ibv_create_cq(context, 64, NULL, NULL, 0);

	CHECK(made && !ibv_destroy_cq(made), "cq");
}

static void one_srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *made = ibv_create_srq(pd, &init);

	CHECK(made && !ibv_destroy_srq(made), "srq");
}

static void one_ah(void)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT, .grh = {.hop_limit = 64}};
	struct ibv_ah *made;

	attr.grh.dgid = own_gid(context);
	made = ibv_create_ah(pd, &attr);
	CHECK(made && !ibv_destroy_ah(made), "ah");
}

static void one_xrcd(void)
{
	struct ibv_xrcd_init_attr init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = -1,
					  .oflags = O_CREAT};
	struct ibv_xrcd *made = ibv_open_xrcd(context, &init);

	CHECK(made && !ibv_close_xrcd(made), "xrcd");
}

static void one_qp(void)
{
	CHECK(!ibv_destroy_qp(make_rc(pd, cq, 16)), "qp");
}

/* A connected pair that has moved data: what a long-lived server's clients leave behind. */
static void one_connection(void)
{
	union ibv_gid gid = own_gid(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *a = make_rc(pd, cq, 4), *b = make_rc(pd, cq, 4);
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	CHECK(mr, "ibv_reg_mr");
	connect_rc(a, b->qp_num, 1, 1, gid, 14, 7);
	connect_rc(b, a->qp_num, 1, 1, gid, 14, 7);
	sge.lkey = mr->lkey;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(a, &wr, &bad), "ibv_post_send");
	CHECK(wait_one(cq, 10).status == IBV_WC_SUCCESS, "the write failed");
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(mr), "teardown");
}

static const struct {
	const char *name;
	void (*once)(void);
} kinds[] = {
	{"context", one_context}, {"pd", one_pd},   {"mr", one_mr}, {"mw", one_mw},	{"channel", one_channel},
	{"cq", one_cq},		  {"srq", one_srq}, {"ah", one_ah}, {"xrcd", one_xrcd}, {"qp", one_qp},
	{"connection", one_connection},
};

int main(int argc, char **argv)
{
	void (*once)(void) = NULL;
	long count = argc > 2 ? atol(argv[2]) : 0, before, after;

	for (size_t i = 0; argc > 1 && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(argv[1], kinds[i].name))
			once = kinds[i].once;
	CHECK(once && count > 0, "usage: churn KIND COUNT");
	if (once != one_context) {
		context = open_first();
		pd = ibv_alloc_pd(context);
		cq = ibv_create_cq(context, 64, NULL, NULL, 0);
		CHECK(pd && cq, "set-up");
	}
	/* The first half fills pools and tables; the second must need nothing more. */
	for (long i = 0; i < count / 2; i++)
		once();
	before = resident_kb();
	for (long i = count / 2; i < count; i++)
		once();
	after = resident_kb();
	printf("%s %ld %ld kB %ld kB\n", argv[1], count, before, after);
	if (once != one_context)
		CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	return after - before > ALLOWANCE_KB;
}
