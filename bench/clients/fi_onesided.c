/* libfabric's one-sided operations over its tcp provider, between two processes on loopback.
 *
 *   fi_onesided read|fadd|write SIZE COUNT DEPTH     prints p50 latency and throughput as JSON
 *
 * It stops after COUNT operations or a second. The parent initiates; the child spins on progress, which this provider
 * needs on the target. */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REGION = 4 << 20, NAME = 64, DEPTH_MAX = 256, LIMIT_US = 1000000 };

struct remote {
    char name[NAME];
    uint64_t key, addr;
};

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *mr;
    char *buffer;
    fi_addr_t to;
    struct remote far;
    struct fi_context contexts[DEPTH_MAX];
};

static void check(long code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "fi_onesided: %s: %s\n", what, fi_strerror((int)-code));
        exit(1);
    }
}

static void open_side(struct side *s, int peer, uint64_t requested_key)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_RMA | FI_ATOMIC | FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
    check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &s->info), "fi_getinfo");
    check(fi_fabric(s->info->fabric_attr, &s->fabric, NULL), "fi_fabric");
    check(fi_domain(s->fabric, s->info, &s->domain, NULL), "fi_domain");
    struct fi_cq_attr cq = {.size = 4096, .format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    check(fi_cq_open(s->domain, &cq, &s->cq, NULL), "fi_cq_open");
    check(fi_av_open(s->domain, &av, &s->av, NULL), "fi_av_open");
    check(fi_endpoint(s->domain, s->info, &s->ep, NULL), "fi_endpoint");
    check(fi_ep_bind(s->ep, &s->av->fid, 0), "bind av");
    check(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV), "bind cq");
    check(fi_enable(s->ep), "fi_enable");
    s->buffer = aligned_alloc(4096, REGION);
    memset(s->buffer, 1, REGION);
    check(fi_mr_reg(s->domain, s->buffer, REGION, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
                    requested_key, 0, &s->mr, NULL), "fi_mr_reg");
    struct remote near = {.key = fi_mr_key(s->mr)};
    if (s->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        near.addr = (uintptr_t)s->buffer;
    size_t len = NAME;
    check(fi_getname(&s->ep->fid, near.name, &len), "fi_getname");
    check(write(peer, &near, sizeof near) == sizeof near ? 0 : -FI_EIO, "exchange");
    check(read(peer, &s->far, sizeof s->far) == sizeof s->far ? 0 : -FI_EIO, "exchange");
    check(fi_av_insert(s->av, s->far.name, 1, &s->to, 0, NULL) == 1 ? 0 : -FI_EIO, "fi_av_insert");
}

static long post(struct side *s, const char *op, size_t size, struct fi_context *context)
{
    void *desc = fi_mr_desc(s->mr);
    if (!strcmp(op, "read"))
        return fi_read(s->ep, s->buffer, size, desc, s->to, s->far.addr, s->far.key, context);
    if (!strcmp(op, "write"))
        return fi_write(s->ep, s->buffer, size, desc, s->to, s->far.addr, s->far.key, context);
    return fi_fetch_atomic(s->ep, s->buffer, 1, desc, s->buffer + 64, desc, s->to, s->far.addr, s->far.key,
                           FI_UINT64, FI_SUM, context);
}

static long reap(struct side *s)
{
    struct fi_cq_entry entries[16];
    long n = fi_cq_read(s->cq, entries, 16);
    if (n == -FI_EAGAIN)
        return 0;
    check(n, "fi_cq_read");
    return n;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void initiate(struct side *s, const char *op, size_t size, long count, long depth)
{
    double *samples = calloc((size_t)count, sizeof *samples), begun = 0;
    for (int warm = 1; warm >= 0; warm--) {
        long total = warm ? 100 : count, posted = 0, done = 0;
        begun = now_us();
        while (done < total) {
            double before = now_us();
            if (!warm && before - begun > LIMIT_US && total > posted)
                total = count = posted;
            while (posted < total && posted - done < depth) {
                long code = post(s, op, size, &s->contexts[posted % DEPTH_MAX]);
                if (code == -FI_EAGAIN)
                    break;
                check(code, op);
                posted++;
            }
            long n = reap(s);
            while (depth == 1 && posted > done && n == 0)
                n = reap(s);
            if (depth == 1)
                samples[done] = now_us() - before;
            done += n;
        }
    }
    double took = now_us() - begun;
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    printf("{\"p50_us\": %.3f, \"rate_m\": %.4f, \"gbps\": %.3f}\n", depth == 1 ? samples[count / 2] : 0,
           (double)count / took, (double)count * (double)size * 8 / took / 1e3);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: fi_onesided read|fadd|write SIZE COUNT DEPTH\n");
        return 2;
    }
    size_t size = (size_t)atol(argv[2]);
    long count = atol(argv[3]), depth = atol(argv[4]);
    if (size > REGION || depth > DEPTH_MAX)
        return 2;
    int pair[2];
    static struct side s;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        open_side(&s, pair[1], 2);
        char byte;
        close(pair[0]);
        while (recv(pair[1], &byte, 1, MSG_DONTWAIT) < 0) /* the parent's end closes when it is done */
            for (int i = 0; i < 1000; i++)
                reap(&s);
        return 0;
    }
    close(pair[1]);
    open_side(&s, pair[0], 1);
    initiate(&s, argv[1], size, count, depth);
    close(pair[0]);
    waitpid(child, NULL, 0);
    return 0;
}
