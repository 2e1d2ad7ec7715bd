/* The rate of a queue pair's requests (ibv_modify_qp_rate_limit), on real clocks: never faster than was set.
 *   rate frames     WRITEs
 *   rate loop       NOPs, which send nothing
 *   rate refuse     capabilities, and what is refused
 * Each prints `OK` at its end. */
#include "chain.h"

#define LIMIT 20.0

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[8192];

static struct ibv_qp *own_queue(void)
{
	struct ibv_qp *qp = make_rc(pd, cq, 64);

	connect_rc(qp, qp->qp_num, 0, 0, own_gid(context), 14, 7);
	return qp;
}

static int set_rate(struct ibv_qp *qp, uint32_t kbps, uint32_t burst, uint16_t typical)
{
	struct ibv_qp_rate_limit_attr attr = {.rate_limit = kbps, .max_burst_sz = burst, .typical_pkt_sz = typical};

	return ibv_modify_qp_rate_limit(qp, &attr);
}

/* Seconds for so many WRITEs of a length. */
static double run(struct ibv_qp *qp, int count, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	double start = seconds();

	wr.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	wr.wr.rdma.rkey = mr->rkey;
	for (int posted = 0, done = 0; done < count;) {
		struct ibv_wc wc;

		while (posted < count && posted - done < 16) {
			CHECK(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
			posted++;
		}
		wc = wait_one(cq, LIMIT);
		CHECK(!wc.status, "a WRITE: %s", ibv_wc_status_str(wc.status));
		done++;
	}
	return seconds() - start;
}

/* `bytes` at `rate` bytes per second may not take less than this: bursts, and a clock that is read early. */
static double least(double bytes, double rate)
{
	return 0.8 * bytes / rate;
}

static void frames(void)
{
	struct ibv_qp *qp = own_queue();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	double limited, small, free_again;

	/* 8,000 kbit/s are a million bytes a second. */
	CHECK(!set_rate(qp, 8000, 0, 0), "ibv_modify_qp_rate_limit");
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init) && attr.rate_limit == 8000, "the rate that is told");
	limited = run(qp, 128, 4096);
	CHECK(limited >= least(128 * 4096, 1e6), "512 KiB in %g s at a million bytes a second", limited);
	/* What is smaller than a typical packet counts as one. */
	CHECK(!set_rate(qp, 8000, 0, 1000), "a typical packet");
	small = run(qp, 500, 8);
	CHECK(small >= least(500 * 1000, 1e6), "500 packets of 1000 bytes in %g s", small);
	CHECK(!set_rate(qp, 0, 0, 0), "no limit any more");
	free_again = run(qp, 128, 4096);
	CHECK(free_again < limited, "%g s without a limit, %g s with one", free_again, limited);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_RATE_LIMIT, &init) && !attr.rate_limit, "no rate that is told");
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

static void loop(void)
{
	struct ibv_qp *qp = own_queue();
	struct wqe nop = wqe_begin(qp, OP_NOP, SIGNALED);
	double start, limited;

	/* A request without a byte counts 64: a thousand of them in a second. */
	CHECK(!set_rate(qp, 512, 0, 0), "ibv_modify_qp_rate_limit");
	start = seconds();
	for (int posted = 0, done = 0; done < 400; done++) {
		struct ibv_wc wc;

		for (; posted < 400 && posted - done < 16; posted++)
			post_wqe(qp, &nop, posted);
		wc = wait_one(cq, LIMIT);
		CHECK(!wc.status && wc.wr_id == (uint64_t)done, "NOP %d: %s", done, ibv_wc_status_str(wc.status));
	}
	limited = seconds() - start;
	CHECK(limited >= least(400 * 64, 64000), "400 NOPs in %g s at 1000 a second", limited);
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

static void refuse(void)
{
	struct ibv_device_attr_ex caps;
	struct ibv_qp *qp = make_rc(pd, cq, 4);
	struct ibv_qp_rate_limit_attr unknown = {.rate_limit = 1000, .comp_mask = 1};
	struct ibv_qp_attr attr = {.rate_limit = 1000};

	CHECK(!ibv_query_device_ex(context, NULL, &caps), "ibv_query_device_ex");
	CHECK(caps.packet_pacing_caps.qp_rate_limit_min == 1 && caps.packet_pacing_caps.qp_rate_limit_max >= 100000000,
	      "rates from %u to %u", caps.packet_pacing_caps.qp_rate_limit_min, caps.packet_pacing_caps.qp_rate_limit_max);
	CHECK(caps.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC, "queue pairs that have rates");
	CHECK(set_rate(qp, 1000, 0, 0) == EINVAL && errno == EINVAL, "a rate in INIT");
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT) == EOPNOTSUPP, "a rate by ibv_modify_qp");
	connect_rc(qp, qp->qp_num, 0, 0, own_gid(context), 14, 7);
	CHECK(ibv_modify_qp_rate_limit(qp, &unknown) == EINVAL, "attributes that nobody knows");
	CHECK(set_rate(qp, 1000, 0, 60000) == EINVAL, "a typical packet beyond the largest MTU");
	CHECK(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"frames", frames}, {"loop", loop}, {"refuse", refuse}};
	size_t at = 0;

	while (at < sizeof(parts) / sizeof(*parts) && (argc < 2 || strcmp(parts[at].name, argv[1])))
		at++;
	CHECK(at < sizeof(parts) / sizeof(*parts), "usage: rate frames|loop|refuse");
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(pd && cq, "ibv_alloc_pd or ibv_create_cq");
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr, "ibv_reg_mr");
	parts[at].run();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	printf("OK\n");
	return 0;
}
