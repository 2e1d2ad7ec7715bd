/* Several threads post on one queue pair and poll one completion queue: `threads [COUNT] [OPS]`.
 * Each thread adds to a shared remote counter, so the sum says that every operation ran exactly once, and each
 * operation's old value is returned to exactly one of them. */
#include "client.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define DEPTH 64

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint64_t *counter, *slots;
static int thread_count, per_thread;
static atomic_int posted, completed, in_flight;
static unsigned char *seen;

/* Takes completions of any thread; notes each old value. */
static void drain(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(cq, 8, wc);

	CHECK(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS, "completion: %s", ibv_wc_status_str(wc[i].status));
		CHECK(wc[i].wr_id < (uint64_t)thread_count * per_thread, "wr_id %llu", (unsigned long long)wc[i].wr_id);
		__atomic_fetch_add(&seen[slots[wc[i].wr_id]], 1, __ATOMIC_RELAXED);
		atomic_fetch_sub(&in_flight, 1);
		atomic_fetch_add(&completed, 1);
	}
}

static void *worker(void *argument)
{
	int index = (int)(intptr_t)argument;

	for (int i = 0; i < per_thread; i++) {
		uint64_t id = (uint64_t)index * per_thread + i;
		struct ibv_sge sge = {.addr = (uintptr_t)&slots[id], .length = 8, .lkey = mr->lkey};
		struct ibv_send_wr wr = {.wr_id = id,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
					 .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr *bad;
		int error;

		while (atomic_fetch_add(&in_flight, 1) >= DEPTH) {
			atomic_fetch_sub(&in_flight, 1);
			drain();
			sched_yield();
		}
		wr.wr.atomic.remote_addr = (uintptr_t)counter;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
		error = ibv_post_send(qp, &wr, &bad);
		CHECK(!error, "ibv_post_send returned %d", error);
		atomic_fetch_add(&posted, 1);
		drain();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	union ibv_gid gid = own_gid(context);
	struct ibv_qp *target;
	pthread_t *threads;
	int total;
	double end;
	size_t bytes;

	thread_count = argc > 1 ? atoi(argv[1]) : 4;
	per_thread = argc > 2 ? atoi(argv[2]) : 5000;
	CHECK(thread_count > 0 && per_thread > 0, "usage: threads [COUNT] [OPS]");
	total = thread_count * per_thread;
	bytes = (total + 1) * sizeof(uint64_t);
	counter = calloc(1, bytes);
	slots = counter + 1;
	seen = calloc(1, total);
	threads = calloc(thread_count, sizeof(*threads));
	cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	CHECK(pd && cq && counter && seen && threads, "set-up");
	mr = ibv_reg_mr(pd, counter, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr, "ibv_reg_mr");
	qp = make_rc(pd, cq, DEPTH);
	target = make_rc(pd, cq, 4);
	connect_rc(qp, target->qp_num, 1, 1, gid, 14, 7);
	connect_rc(target, qp->qp_num, 1, 1, gid, 14, 7);
	for (int i = 0; i < thread_count; i++)
		CHECK(!pthread_create(&threads[i], NULL, worker, (void *)(intptr_t)i), "pthread_create");
	for (int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	for (end = seconds() + 20; atomic_load(&completed) < total; drain())
		CHECK(seconds() < end, "%d of %d completed", atomic_load(&completed), total);
	CHECK(*counter == (uint64_t)total, "the counter is %llu, not %d", (unsigned long long)*counter, total);
	for (int i = 0; i < total; i++)
		CHECK(seen[i] == 1, "old value %d was returned %d times", i, seen[i]);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(target) && !ibv_dereg_mr(mr), "teardown");
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "teardown");
	printf("%d threads, %d operations, each exactly once\n", thread_count, total);
	return 0;
}
