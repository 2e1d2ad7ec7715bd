/* Many connected RC queue pairs, over plain verbs: what they cost and how fast they go in turn.
 *
 *   qps rate QPS WRITES    64-byte RDMA WRITEs, one per queue pair in turn, at most 128 outstanding
 *   qps memory QPS         resident memory for each connected queue pair with one send and one receive
 *
 * The program forks before it touches verbs: the parent is the initiator, the child the target, which sleeps.
 * TARGET_ADVERB, where it is set, is what the child's environment has for ADVERB: another address, say. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 128, SIZE = 64, PSN = 100, WARM_QPS = 64 };

struct remote {
    uint32_t qpn, rkey;
    uint64_t addr;
    union ibv_gid gid;
};

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    int peer;
    char *buffer;
};

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void exchange(int fd, const void *mine, void *theirs, size_t len)
{
    check(write(fd, mine, len) == (ssize_t)len, "write to the other process");
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)theirs + got, len - got);
        check(n > 0, "read from the other process");
        got += (size_t)n;
    }
}

static void open_side(struct side *s, int peer, int depth)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list && list[0], "no RDMA device");
    s->peer = peer;
    s->context = ibv_open_device(list[0]);
    check(s->context != NULL, "ibv_open_device");
    struct ibv_port_attr port;
    check(ibv_query_port(s->context, 1, &port) == 0, "ibv_query_port");
    s->mtu = port.active_mtu;
    check(ibv_query_gid(s->context, 1, 0, &s->gid) == 0, "ibv_query_gid");
    s->pd = ibv_alloc_pd(s->context);
    s->cq = ibv_create_cq(s->context, depth, NULL, NULL, 0);
    s->buffer = aligned_alloc(4096, 4096);
    check(s->pd && s->cq && s->buffer, "allocation");
    memset(s->buffer, 1, 4096);
    s->mr = ibv_reg_mr(s->pd, s->buffer, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(s->mr != NULL, "ibv_reg_mr");
}

static struct ibv_qp *connect_qp(struct side *s, uint32_t sends, struct remote *far)
{
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = sends, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
    check(qp != NULL, "ibv_create_qp");
    struct remote near = {qp->qp_num, s->mr->rkey, (uintptr_t)s->buffer, s->gid};
    exchange(s->peer, &near, far, sizeof near);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    check(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = s->mtu, .dest_qp_num = far->qpn, .rq_psn = PSN,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = far->gid, .sgid_index = 0, .hop_limit = 64}},
    };
    check(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                             .sq_psn = PSN, .max_rd_atomic = 1};
    check(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
    return qp;
}

static void post(struct side *s, struct ibv_qp *qp, const struct remote *far, uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)s->buffer, SIZE, s->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = far->addr, .rkey = far->rkey}};
    struct ibv_send_wr *bad;
    check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
}

static int reap(struct side *s)
{
    struct ibv_wc wc[16];
    int n = ibv_poll_cq(s->cq, 16, wc);
    check(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
            exit(1);
        }
    }
    return n;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One write on each queue pair first, so that every one is warm; then `writes` of them, timed. */
static void rate(struct side *s, struct ibv_qp **qps, struct remote *far, long count, long writes)
{
    double begun = 0;
    for (int warm = 1; warm >= 0; warm--) {
        long total = warm ? count : writes, posted = 0, done = 0;
        begun = seconds();
        while (done < total) {
            while (posted < total && posted - done < WINDOW) {
                post(s, qps[posted % count], &far[posted % count], (uint64_t)posted);
                posted++;
            }
            done += reap(s);
        }
    }
    printf("{\"qps\": %ld, \"writes_m\": %.4f}\n", count, (double)writes / (seconds() - begun) / 1e6);
}

static long resident_bytes(void)
{
    long size = 0, resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    check(f && fscanf(f, "%ld %ld %ld", &size, &resident, &shared) == 3, "statm");
    fclose(f);
    return (resident - shared) * sysconf(_SC_PAGESIZE);
}

/* One write on each: memory that is only touched in use counts too. */
static void touch(struct side *s, struct ibv_qp **qps, const struct remote *far, long count)
{
    for (long i = 0; i < count; i++) {
        post(s, qps[i], &far[i], 0);
        while (reap(s) == 0)
            ;
    }
}

static void run(const char *mode, int peer, int initiator, long count, long writes)
{
    struct side s;
    int measures_memory = !strcmp(mode, "memory");
    uint32_t sends = measures_memory ? 1 : count == 1 ? WINDOW : 16;
    open_side(&s, peer, 4096);
    long warm = measures_memory ? WARM_QPS : 0;
    struct ibv_qp **qps = calloc((size_t)(count + warm), sizeof *qps);
    struct remote *far = calloc((size_t)(count + warm), sizeof *far);
    check(qps && far, "allocation");
    memset(qps, 1, (size_t)(count + warm) * sizeof *qps);
    memset(far, 1, (size_t)(count + warm) * sizeof *far);
    long before = 0;
    char word = 0;
    for (long i = 0; i < count + warm; i++) {
        if (i == warm && measures_memory) {
            /* Traffic first: rings and buffers that all queue pairs share are not what is asked. */
            exchange(peer, &word, &word, 1);
            if (initiator)
                touch(&s, qps, far, warm);
            before = resident_bytes();
        }
        qps[i] = connect_qp(&s, sends, &far[i]);
    }
    exchange(peer, &word, &word, 1);
    if (initiator && measures_memory) {
        touch(&s, qps + warm, far + warm, count);
        /* Asked for: one 64-byte WQE and one receive of one 16-byte SGE and its id. */
        printf("{\"qps\": %ld, \"bytes_per_qp\": %.0f, \"queue_bytes\": 96}\n", count,
               (double)(resident_bytes() - before) / (double)count);
    } else if (initiator) {
        rate(&s, qps, far, count, writes);
    }
    exchange(peer, &word, &word, 1);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: qps rate QPS WRITES | qps memory QPS\n");
        return 2;
    }
    long count = atol(argv[2]), writes = argc > 3 ? atol(argv[3]) : 100000;
    int pair[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        close(pair[0]);
        if (getenv("TARGET_ADVERB"))
            setenv("ADVERB", getenv("TARGET_ADVERB"), 1);
        run(argv[1], pair[1], 0, count, writes);
        return 0;
    }
    close(pair[1]);
    run(argv[1], pair[0], 1, count, writes);
    fflush(stdout);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
