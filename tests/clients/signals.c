/* A program that waits for a signal as servers do: it makes a queue pair, then blocks SIGUSR2 in the threads that it has,
 * and takes it by sigwait. A thread of the library's that took the signal would end the process. */

#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 1000

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = context ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &attributes) : NULL;
    if (!qp) {
        fprintf(stderr, "no device, or none of its objects\n");
        return 1;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) {
        perror("sigprocmask");
        return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        int taken = 0, status;
        if (kill(getpid(), SIGUSR2) || (status = sigwait(&set, &taken)) != 0 || taken != SIGUSR2) {
            fprintf(stderr, "round %d: signal %d\n", round, taken);
            return 1;
        }
    }
    printf("%d signals, all taken here\n", ROUNDS);
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context)) {
        perror("closing");
        return 1;
    }
    ibv_free_device_list(devices);
    return 0;
}
