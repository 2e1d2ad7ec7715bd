/* How fast connections are set up and torn down, by rdma_cm and by TCP.
 *
 *    connections rdma|tcp serve ADDRESS PORT
 *    connections rdma|tcp connect ADDRESS PORT COUNT DEPTH [STAGE]
 *
 * The server accepts for ever, on one thread; it listens by TCP when it can be asked. The client has DEPTH connections
 * under way at once, ends each as soon as it is up, and waits until the server has ended it too. It prints the rate of
 * whole lives, and how long setting up took: of rdma_cm from creating the identifier, with addresses and routes
 * resolved and a queue pair made; of TCP from creating the socket.
 *
 * With a STAGE, of rdma_cm only, the client kills itself when DEPTH connections have come to it: `asked`, `answered`
 * (before it looks at any answer), `up`, `left`, `ended`. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 64
#define RESOLVE_MS 2000

static struct sockaddr_in server_at;
static unsigned count, depth, begun, ended, timed;
static double *began_us, *took_us;
static const char *last_stage = "";

static void stop(const char *what)
{
	perror(what);
	exit(1);
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(double began)
{
	double seconds = (now_us() - began) / 1e6;

	qsort(took_us, timed, sizeof *took_us, by_value);
	printf("{\"connections\": %u, \"krate\": %.3f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", ended,
		   ended / seconds / 1e3, took_us[timed / 2], took_us[timed * 99ul / 100]);
}

static void is_up(unsigned which)
{
	took_us[timed++] = now_us() - began_us[which];
}

/* -- TCP ------------------------------------------------------------------------------------------------------- */

static int tcp_listen(void)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&server_at, sizeof server_at) || listen(fd, SOMAXCONN))
		stop("listen");
	return fd;
}

static void watch(int epoll, int fd, unsigned events, unsigned which)
{
	struct epoll_event event = {.events = events, .data.u64 = (uint64_t)which << 32 | (unsigned)fd};

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) && (errno != EEXIST || epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event)))
		stop("epoll_ctl");
}

static void tcp_serve(void)
{
	int epoll = epoll_create1(0), listener = tcp_listen(), found, i, fd;
	struct epoll_event events[EVENTS];
	char byte;

	watch(epoll, listener, EPOLLIN, 0);
	while ((found = epoll_wait(epoll, events, EVENTS, -1)) > 0) {
		for (i = 0; i < found; i++) {
			fd = (int)(uint32_t)events[i].data.u64;
			if (fd != listener) {
				if (read(fd, &byte, 1) == 0)
					close(fd);
				continue;
			}
			while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
				watch(epoll, fd, EPOLLIN, 0);
		}
	}
}

static void tcp_begin(int epoll)
{
	int fd;

	began_us[begun] = now_us();
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (fd < 0 || (connect(fd, (struct sockaddr *)&server_at, sizeof server_at) && errno != EINPROGRESS))
		stop("connect");
	watch(epoll, fd, EPOLLOUT, begun++);
}

static void tcp_connect(void)
{
	int epoll = epoll_create1(0), found, i, fd;
	struct epoll_event events[EVENTS];
	char byte;

	while (begun < depth)
		tcp_begin(epoll);
	while (ended < count) {
		found = epoll_wait(epoll, events, EVENTS, -1);
		for (i = 0; i < found; i++) {
			fd = (int)(uint32_t)events[i].data.u64;
			if (events[i].events & EPOLLOUT) {
				is_up(events[i].data.u64 >> 32);
				if (shutdown(fd, SHUT_WR))
					stop("shutdown");
				watch(epoll, fd, EPOLLIN, 0);
				continue;
			}
			if (read(fd, &byte, 1) != 0)
				stop("read");
			close(fd);
			ended++;
			if (begun < count)
				tcp_begin(epoll);
		}
	}
}

/* -- rdma_cm --------------------------------------------------------------------------------------------------- */

static struct rdma_event_channel *channel;

static void add_qp(struct rdma_cm_id *id)
{
	static struct ibv_cq *completions;
	struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
					.qp_type = IBV_QPT_RC};

	if (!completions)
		completions = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	init.send_cq = init.recv_cq = completions;
	if (rdma_create_qp(id, NULL, &init))
		stop("rdma_create_qp");
}

static void drop(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		stop("rdma_destroy_id");
}

static void rdma_serve(void)
{
	struct rdma_conn_param param = {.rnr_retry_count = 7};
	struct rdma_cm_id *listener, *id;
	enum rdma_cm_event_type kind;
	struct rdma_cm_event *event;

	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
		rdma_bind_addr(listener, (struct sockaddr *)&server_at) || rdma_listen(listener, 0))
		stop("rdma_listen");
	tcp_listen();
	while (rdma_get_cm_event(channel, &event) == 0) {
		id = event->id;
		kind = event->event;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			add_qp(id);
			/* Refused if the client has given up meanwhile. */
			if (rdma_accept(id, &param))
				drop(id);
		} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			drop(id);
		} else if (kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE) {
			drop(id);
		}
	}
}

/* A connection has come to a stage. */
static void reach(const char *stage)
{
	static unsigned came;

	if (!strcmp(stage, last_stage) && ++came == depth)
		raise(SIGKILL);
}

static void await_answer(void)
{
	struct pollfd answers = {.fd = channel->fd, .events = POLLIN};

	if (!strcmp(last_stage, "answered") && poll(&answers, 1, -1) < 0)
		stop("poll");
}

static void rdma_begin(void)
{
	struct rdma_cm_id *id;

	began_us[begun] = now_us();
	if (rdma_create_id(channel, &id, (void *)(uintptr_t)begun++, RDMA_PS_TCP) ||
		rdma_resolve_addr(id, NULL, (struct sockaddr *)&server_at, RESOLVE_MS))
		stop("rdma_resolve_addr");
}

static void rdma_connect_all(void)
{
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	enum rdma_cm_event_type kind;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int status;

	while (begun < depth)
		rdma_begin();
	while (ended < count) {
		if (rdma_get_cm_event(channel, &event))
			stop("rdma_get_cm_event");
		id = event->id;
		kind = event->event;
		status = event->status;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_ADDR_RESOLVED) {
			if (rdma_resolve_route(id, RESOLVE_MS))
				stop("rdma_resolve_route");
		} else if (kind == RDMA_CM_EVENT_ROUTE_RESOLVED) {
			add_qp(id);
			if (rdma_connect(id, &param))
				stop("rdma_connect");
			reach("asked");
			await_answer();
			reach("answered");
		} else if (kind == RDMA_CM_EVENT_ESTABLISHED) {
			is_up((uintptr_t)id->context);
			reach("up");
			if (rdma_disconnect(id))
				stop("rdma_disconnect");
			reach("left");
		} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
			reach("ended");
			drop(id);
			ended++;
			if (begun < count)
				rdma_begin();
		} else if (kind != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
			fprintf(stderr, "connection %u: %s, status %d\n", ended, rdma_event_str(kind), status);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	int tcp = argc > 1 && !strcmp(argv[1], "tcp"), serves = argc > 2 && !strcmp(argv[2], "serve");
	double began;

	if (argc != (serves ? 5 : 7) && (serves || argc != 8))
		return 2;
	if (argc == 8)
		last_stage = argv[7];
	server_at.sin_family = AF_INET;
	server_at.sin_port = htons(atoi(argv[4]));
	if (inet_pton(AF_INET, argv[3], &server_at.sin_addr) != 1)
		return 2;
	if (!tcp && !(channel = rdma_create_event_channel()))
		stop("rdma_create_event_channel");
	if (serves) {
		tcp ? tcp_serve() : rdma_serve();
		return 1;
	}
	count = atoi(argv[5]);
	depth = atoi(argv[6]);
	if (!depth || depth > count)
		return 2;
	began_us = calloc(count, sizeof *began_us);
	took_us = calloc(count, sizeof *took_us);
	began = now_us();
	tcp ? tcp_connect() : rdma_connect_all();
	report(began);
	return 0;
}
