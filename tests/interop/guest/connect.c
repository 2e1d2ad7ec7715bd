/* One connection by rdma_cm, or one question for a datagram service, with all that this side is told of it printed.
 *
 *   connect --port P --serve ADDRESS [options]    the server: answers one request
 *   connect --port P --to ADDRESS [options]       the client
 *
 * Nothing is printed that differs from run to run: no address, number or key of this run's. So two ends over one NIC
 * can be compared with two over another; the suite says what may differ. Times go to lines that begin with "after".
 *
 *   --datagrams        port space UDP
 *   --data TEXT        private data of the request, the answer, or the refusal
 *   --resources N,M    READs and atomics that this side answers and sends at once
 *   --reject           the server refuses; --abandon: it destroys the request without a word
 *   --wait N           the server takes its time before it answers: N seconds
 *   --sends N          messages that this side sends as soon as it may, each of 64 bytes; --receives N: those that come
 *   --posts N          receives that this side posts, of 64; --rnr N: how often its peer may send again what found none
 *   --until FILE       this side goes on from there when the file is there, and sends --late N messages first
 *   --leave            this side ends the connection, when it has all messages; --exit: it ends without a word;
 *                      --kill: so that it cannot say any
 *   --timewait         waits for the last event, too */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 64
#define MESSAGE 64
#define GRH_BYTES 40
#define RESOLVE_MS 5000

static struct {
	const char *serve, *to, *port, *data, *until;
	int datagrams, reject, abandon, wait, leave, exit, kill, timewait, sends, receives, late;
	int responder, initiator, rnr, posts;
} options = {.responder = 4, .initiator = 2, .rnr = 5, .posts = DEPTH};

static struct rdma_event_channel *channel;
static struct rdma_cm_event *current;
static double begun;
static unsigned char memory[DEPTH][GRH_BYTES + MESSAGE], outgoing[DEPTH][MESSAGE];
static struct ibv_mr *region, *source;

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static void expect(int good, const char *what)
{
	if (!good) {
		printf("failed: %s (errno %d)\n", what, errno);
		exit(1);
	}
}

/* Private data: how long its room is, and what stands there up to the zeroes behind it. */
static void print_data(const void *data, unsigned length)
{
	const unsigned char *bytes = data;
	unsigned used = length;

	while (used > 0 && bytes[used - 1] == 0)
		used--;
	printf(" data %u/%u ", used, length);
	for (unsigned i = 0; i < used; i++)
		printf("%02x", bytes[i]);
}

static void print_event(void)
{
	int is_request = current->event == RDMA_CM_EVENT_CONNECT_REQUEST;

	printf("%s %d", rdma_event_str(current->event) + strlen("RDMA_CM_EVENT_"), current->status);
	if (current->event < RDMA_CM_EVENT_CONNECT_REQUEST || current->event > RDMA_CM_EVENT_ESTABLISHED) {
		printf("\n");
		return;
	}
	if (options.datagrams) {
		const struct rdma_ud_param *ud = &current->param.ud;

		print_data(ud->private_data, ud->private_data_len);
		if (current->event == RDMA_CM_EVENT_ESTABLISHED)
			printf(" qkey %#x qpn %d global %d hop %d class %d port %d", ud->qkey, ud->qp_num != 0,
			       ud->ah_attr.is_global, ud->ah_attr.grh.hop_limit, ud->ah_attr.grh.traffic_class,
			       ud->ah_attr.port_num);
	} else {
		const struct rdma_conn_param *conn = &current->param.conn;

		print_data(conn->private_data, conn->private_data_len);
		if (is_request || (options.to && current->event == RDMA_CM_EVENT_ESTABLISHED))
			printf(" responder %u initiator %u flow %u rnr %u srq %u qpn %d", conn->responder_resources,
			       conn->initiator_depth, conn->flow_control, conn->rnr_retry_count, conn->srq, conn->qp_num != 0);
		if (is_request)
			printf(" retry %u", conn->retry_count);
	}
	printf("\n");
}

/* Waits for the next event and prints it; returns what it is. */
static enum rdma_cm_event_type next(void)
{
	if (current)
		rdma_ack_cm_event(current);
	expect(rdma_get_cm_event(channel, &current) == 0, "rdma_get_cm_event");
	print_event();
	fprintf(stderr, "after %.3f s: %s\n", seconds() - begun, rdma_event_str(current->event));
	fflush(stdout);
	return current->event;
}

static struct sockaddr *address(const char *host)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;

	expect(getaddrinfo(host, options.port, &hints, &found) == 0, "an address");
	return found->ai_addr;
}

static void post_receives(struct rdma_cm_id *id)
{
	region = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	source = ibv_reg_mr(id->pd, outgoing, sizeof outgoing, 0);
	expect(region && source, "ibv_reg_mr");
	for (int i = 0; i < options.posts; i++) {
		struct ibv_sge sge = {(uintptr_t)memory[i], sizeof memory[i], region->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

		expect(ibv_post_recv(id->qp, &wr, &bad) == 0, "ibv_post_recv");
	}
}

static void add_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = options.datagrams ? IBV_QPT_UD : IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	expect(rdma_create_qp(id, NULL, &init) == 0, "rdma_create_qp");
	post_receives(id);
}

static void print_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int all = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_AV |
		  IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ACCESS_FLAGS;

	memset(&attr, 0, sizeof attr);
	expect(ibv_query_qp(id->qp, &attr, all, &init) == 0, "ibv_query_qp");
	printf("queue pair: state %d mtu %d timeout %u retry %u rnr %u min rnr %u sends %u answers %u access %#x ",
	       attr.qp_state, attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer,
	       attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.qp_access_flags);
	printf("global %u hop %u class %u\n", attr.ah_attr.is_global, attr.ah_attr.grh.hop_limit,
	       attr.ah_attr.grh.traffic_class);
}

static unsigned char pattern(int message, int at)
{
	return (unsigned char)(message * 7 + at * 3 + 1);
}

/* To a datagram service if there is an address handle. */
static void send_messages(struct rdma_cm_id *id, int count, struct ibv_ah *ah)
{
	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = {(uintptr_t)outgoing[i], MESSAGE, source->lkey};
		struct ibv_send_wr wr = {.wr_id = DEPTH, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

		if (ah) {
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = current->param.ud.qp_num;
			wr.wr.ud.remote_qkey = current->param.ud.qkey;
		}
		for (int at = 0; at < MESSAGE; at++)
			outgoing[i][at] = pattern(i, at);
		expect(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
	}
}

/* Waits for the completions of all that was sent and is to come, and checks what came. */
static void wait_messages(struct rdma_cm_id *id)
{
	int sent = 0, received = 0, wrong = 0, head = options.datagrams ? GRH_BYTES : 0;

	while (sent < options.sends || received < options.receives) {
		struct ibv_wc wc;

		if (ibv_poll_cq(id->recv_cq, 1, &wc) < 1 && ibv_poll_cq(id->send_cq, 1, &wc) < 1) {
			usleep(200);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS) {
			printf("completion: status %d\n", wc.status);
			exit(1);
		}
		if (wc.wr_id == DEPTH) {
			sent++;
			continue;
		}
		for (int at = 0; at < MESSAGE; at++)
			wrong += memory[wc.wr_id][head + at] != pattern(received, at);
		received++;
	}
	printf("messages: %d sent, %d received, %d bytes wrong\n", sent, received, wrong);
	fflush(stdout);
}

/* Waits for what comes of late messages: where the peer has gone, a failure. */
static void wait_late(struct rdma_cm_id *id)
{
	for (int done = 0; done < options.late;) {
		struct ibv_wc wc;

		if (ibv_poll_cq(id->send_cq, 1, &wc) < 1) {
			usleep(200);
			continue;
		}
		printf("late message: status %d\n", wc.status);
		done++;
	}
	fflush(stdout);
}

/* What a side does when it has its messages: waits for word to go on, and dies if it is to. */
static void go_on(struct rdma_cm_id *id, struct ibv_ah *ah)
{
	while (options.until && access(options.until, F_OK) != 0)
		usleep(2000);
	send_messages(id, options.late, ah);
	wait_late(id);
	if (options.kill)
		raise(SIGKILL);
}

static struct rdma_conn_param parameters(void)
{
	return (struct rdma_conn_param){
		.private_data = options.data,
		.private_data_len = options.data ? (uint8_t)strlen(options.data) : 0,
		.responder_resources = (uint8_t)options.responder,
		.initiator_depth = (uint8_t)options.initiator,
		.flow_control = 1,
		.retry_count = 6,
		.rnr_retry_count = (uint8_t)options.rnr,
	};
}

/* From the first event of a connection that is up to its last. */
static void live(struct rdma_cm_id *id)
{
	print_queue_pair(id);
	send_messages(id, options.sends, NULL);
	wait_messages(id);
	go_on(id, NULL);
	if (options.exit)
		exit(0);
	if (options.leave)
		expect(rdma_disconnect(id) == 0, "rdma_disconnect");
	if (next() == RDMA_CM_EVENT_DISCONNECTED) {
		if (!options.leave)
			expect(rdma_disconnect(id) == 0, "rdma_disconnect of what has ended");
		if (options.timewait)
			next();
	}
}

static void serve(void)
{
	struct rdma_cm_id *listener, *id;
	struct rdma_conn_param answer = parameters();

	expect(rdma_create_id(channel, &listener, NULL, options.datagrams ? RDMA_PS_UDP : RDMA_PS_TCP) == 0, "rdma_create_id");
	expect(rdma_bind_addr(listener, address(options.serve)) == 0, "rdma_bind_addr");
	expect(rdma_listen(listener, 8) == 0, "rdma_listen");
	if (next() != RDMA_CM_EVENT_CONNECT_REQUEST)
		exit(1);
	id = current->id;
	begun = seconds();
	sleep((unsigned)options.wait);
	if (options.reject) {
		expect(rdma_reject(id, options.data, options.data ? (uint8_t)strlen(options.data) : 0) == 0, "rdma_reject");
		return;
	}
	if (options.abandon) {
		rdma_ack_cm_event(current);
		current = NULL;
		expect(rdma_destroy_id(id) == 0, "rdma_destroy_id");
		return;
	}
	add_queue_pair(id);
	expect(rdma_accept(id, &answer) == 0, "rdma_accept");
	if (options.datagrams) {
		wait_messages(id);
		return go_on(id, NULL);
	}
	if (next() == RDMA_CM_EVENT_ESTABLISHED)
		live(id);
}

static void send_datagrams(struct rdma_cm_id *id)
{
	struct ibv_ah *ah = ibv_create_ah(id->pd, &current->param.ud.ah_attr);

	expect(ah != NULL, "ibv_create_ah");
	send_messages(id, options.sends, ah);
	wait_messages(id);
	go_on(id, ah);
}

static void ask(void)
{
	struct rdma_conn_param request = parameters();
	struct rdma_cm_id *id;

	expect(rdma_create_id(channel, &id, NULL, options.datagrams ? RDMA_PS_UDP : RDMA_PS_TCP) == 0, "rdma_create_id");
	expect(rdma_resolve_addr(id, NULL, address(options.to), RESOLVE_MS) == 0, "rdma_resolve_addr");
	if (next() != RDMA_CM_EVENT_ADDR_RESOLVED)
		return;
	expect(rdma_resolve_route(id, RESOLVE_MS) == 0, "rdma_resolve_route");
	if (next() != RDMA_CM_EVENT_ROUTE_RESOLVED)
		return;
	add_queue_pair(id);
	begun = seconds();
	expect(rdma_connect(id, &request) == 0, "rdma_connect");
	if (next() != RDMA_CM_EVENT_ESTABLISHED)
		return;
	if (options.datagrams)
		send_datagrams(id);
	else
		live(id);
}

static void read_options(int argc, char **argv)
{
	static const struct option known[] = {
		{"serve", 1, NULL, 's'},      {"to", 1, NULL, 't'},	  {"port", 1, NULL, 'p'},
		{"data", 1, NULL, 'd'},	      {"resources", 1, NULL, 'r'}, {"sends", 1, NULL, 'n'},
		{"receives", 1, NULL, 'm'},   {"datagrams", 0, &options.datagrams, 1}, {"reject", 0, &options.reject, 1},
		{"abandon", 0, &options.abandon, 1}, {"wait", 1, NULL, 'w'}, {"leave", 0, &options.leave, 1},
		{"exit", 0, &options.exit, 1}, {"timewait", 0, &options.timewait, 1}, {"kill", 0, &options.kill, 1},
		{"until", 1, NULL, 'u'},      {"late", 1, NULL, 'l'},	  {"rnr", 1, NULL, 'k'},
		{"posts", 1, NULL, 'o'},      {NULL, 0, NULL, 0},
	};

	for (int which; (which = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (which) {
		case 0: break;
		case 's': options.serve = optarg; break;
		case 't': options.to = optarg; break;
		case 'p': options.port = optarg; break;
		case 'd': options.data = optarg; break;
		case 'u': options.until = optarg; break;
		case 'l': options.late = atoi(optarg); break;
		case 'w': options.wait = atoi(optarg); break;
		case 'n': options.sends = atoi(optarg); break;
		case 'm': options.receives = atoi(optarg); break;
		case 'k': options.rnr = atoi(optarg); break;
		case 'o': options.posts = atoi(optarg); break;
		case 'r': expect(sscanf(optarg, "%d,%d", &options.responder, &options.initiator) == 2, "--resources N,M"); break;
		default: exit(2);
		}
	}
	expect(options.port && !options.serve != !options.to && options.sends <= DEPTH && options.receives <= DEPTH &&
		       options.late <= DEPTH && options.posts >= 0 && options.posts <= DEPTH,
	       "--port, --serve or --to");
}

int main(int argc, char **argv)
{
	read_options(argc, argv);
	begun = seconds();
	channel = rdma_create_event_channel();
	expect(channel != NULL, "rdma_create_event_channel");
	if (options.serve)
		serve();
	else
		ask();
	printf("end\n");
	return 0;
}
