/* What programs of rdma_cm see, to the number: both ends in one process, at the address given as argument. Each check
 * that fails is a line; the last line says how many were made. The numbers are those of Linux's rdma_cm over rxe. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"

#define EQUALS(found, wanted) \
	do { \
		long long f = (long long)(found), w = (long long)(wanted); \
		checks++; \
		if (f != w) { \
			failures++; \
			printf("line %d: %s is %lld, not %lld (errno %d)\n", __LINE__, #found, f, w, errno); \
		} \
	} while (0)
#define FAILS(call, error) \
	do { \
		errno = 0; \
		EQUALS(call, -1); \
		EQUALS(errno, error); \
	} while (0)

static struct rdma_event_channel *channel;
static const char *host;

static struct sockaddr_in address(const char *ip, unsigned port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};

	inet_pton(AF_INET, ip, &sin.sin_addr);
	return sin;
}

/* The next event of a channel, which must be of this kind; the program ends where none comes. */
static struct rdma_cm_event *expect(struct rdma_event_channel *from, enum rdma_cm_event_type kind, int line)
{
	struct pollfd poll_fd = {.fd = from->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&poll_fd, 1, 20000) != 1 || rdma_get_cm_event(from, &event)) {
		printf("line %d: no %s within 20 s\n", line, rdma_event_str(kind));
		exit(1);
	}
	checks++;
	if (event->event != kind) {
		printf("line %d: %s (%d), not %s\n", line, rdma_event_str(event->event), event->status,
		       rdma_event_str(kind));
		exit(1);
	}
	return event;
}
#define EXPECT(kind) expect(channel, RDMA_CM_EVENT_##kind, __LINE__)
#define PASS(kind) rdma_ack_cm_event(EXPECT(kind))

static struct rdma_cm_id *make(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	CHECK(rdma_create_id(channel, &id, NULL, ps) == 0);
	return id;
}

static struct rdma_cm_id *listener(enum rdma_port_space ps, struct sockaddr_in *at)
{
	struct rdma_cm_id *id = make(ps);

	*at = address(host, 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)at) == 0);
	CHECK(id->verbs != NULL && id->pd != NULL && id->pd->context == id->verbs);
	EQUALS(id->port_num, 1);
	CHECK(rdma_get_src_port(id) != 0);
	at->sin_port = rdma_get_src_port(id);
	CHECK(rdma_listen(id, 0) == 0);
	return id;
}

static void add_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
					.qp_type = type};

	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(id->qp != NULL && id->pd != NULL && id->send_cq != NULL && id->recv_cq_channel != NULL);
}

static struct ibv_qp_attr look(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	CHECK(ibv_query_qp(id->qp, &attr, 0, &init) == 0);
	return attr;
}

/* An identifier that is ready to connect to an address. */
static struct rdma_cm_id *caller(enum rdma_port_space ps, struct sockaddr_in *to, int with_qp)
{
	struct rdma_cm_id *id = make(ps);

	FAILS(rdma_resolve_route(id, 1000), EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 1000) == 0);
	PASS(ADDR_RESOLVED);
	CHECK(id->verbs != NULL);
	EQUALS(id->port_num, 1);
	if (with_qp)
		add_qp(id, ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC);
	FAILS(rdma_connect(id, NULL), EINVAL);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	PASS(ROUTE_RESOLVED);
	EQUALS(id->route.num_paths, 1);
	EQUALS(id->route.path_rec->packet_life_time, 18);
	EQUALS(id->route.path_rec->pkey, 0xffff);
	return id;
}

static void drop(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static int padded(const void *data, unsigned length, const char *text)
{
	const unsigned char *bytes = data;
	unsigned i;

	if (memcmp(bytes, text, strlen(text)))
		return 0;
	for (i = strlen(text); i < length; i++)
		if (bytes[i])
			return 0;
	return 1;
}

static void ports(void)
{
	struct sockaddr_in at, any = address("0.0.0.0", 0), foreign = address("192.0.2.1", 5000);
	struct rdma_cm_id *first = listener(RDMA_PS_TCP, &at), *second = make(RDMA_PS_TCP), *other = make(RDMA_PS_UDP);

	FAILS(rdma_bind_addr(second, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&at), EADDRINUSE);
	any.sin_port = at.sin_port;
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&any), EADDRNOTAVAIL);
	CHECK(rdma_bind_addr(other, (struct sockaddr *)&at) == 0);
	FAILS(rdma_bind_addr(other, (struct sockaddr *)&at), EINVAL);
	any.sin_port = 0;
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&any) == 0);
	CHECK(second->verbs == NULL);
	CHECK(rdma_get_src_port(second) != 0);
	drop(first);
	drop(second);
	drop(other);
	/* The port is free again. */
	first = make(RDMA_PS_TCP);
	CHECK(rdma_bind_addr(first, (struct sockaddr *)&at) == 0);
	drop(first);
}

static void connection(void)
{
	struct rdma_conn_param param = {.private_data = "ask", .private_data_len = 4, .responder_resources = 16,
					.initiator_depth = 8, .retry_count = 5, .rnr_retry_count = 10};
	struct rdma_event_channel *apart = rdma_create_event_channel();
	struct ibv_qp_attr ours, theirs;
	struct rdma_cm_event *event;
	struct sockaddr_in at;
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP, &at), *client = caller(RDMA_PS_TCP, &at, 1), *server;
	int mask;

	ours = look(client);
	EQUALS(ours.qp_state, IBV_QPS_INIT);
	EQUALS(ours.qp_access_flags, 0);
	param.private_data_len = 57;
	FAILS(rdma_connect(client, &param), EINVAL);
	param.private_data_len = 4;
	CHECK(rdma_connect(client, &param) == 0);
	event = EXPECT(CONNECT_REQUEST);
	server = event->id;
	CHECK(event->listen_id == listening && server != client && server->verbs == client->verbs);
	EQUALS(event->param.conn.private_data_len, 56);
	CHECK(padded(event->param.conn.private_data, 56, "ask"));
	EQUALS(event->param.conn.responder_resources, 8);
	EQUALS(event->param.conn.initiator_depth, 16);
	EQUALS(event->param.conn.retry_count, 5);
	EQUALS(event->param.conn.rnr_retry_count, 7);
	EQUALS(event->param.conn.qp_num, client->qp->qp_num);
	EQUALS(rdma_get_dst_port(server), rdma_get_src_port(client));
	EQUALS(rdma_get_src_port(server), at.sin_port);
	rdma_ack_cm_event(event);
	add_qp(server, IBV_QPT_RC);
	param = (struct rdma_conn_param){.private_data = "yes", .private_data_len = 4, .responder_resources = 4,
					 .initiator_depth = 2, .rnr_retry_count = 3};
	CHECK(rdma_accept(server, &param) == 0);
	/* The client's comes when it is got; the server's follows. */
	event = EXPECT(ESTABLISHED);
	CHECK(event->id == client);
	EQUALS(event->param.conn.private_data_len, 196);
	CHECK(padded(event->param.conn.private_data, 196, "yes"));
	EQUALS(event->param.conn.responder_resources, 2);
	EQUALS(event->param.conn.initiator_depth, 4);
	rdma_ack_cm_event(event);
	event = EXPECT(ESTABLISHED);
	CHECK(event->id == server);
	EQUALS(event->param.conn.private_data_len, 0);
	rdma_ack_cm_event(event);
	ours = look(client);
	theirs = look(server);
	EQUALS(ours.qp_state, IBV_QPS_RTS);
	EQUALS(theirs.qp_state, IBV_QPS_RTS);
	EQUALS(ours.qp_access_flags, 0xe);
	EQUALS(theirs.qp_access_flags, 0xe);
	EQUALS(ours.rq_psn, theirs.sq_psn);
	EQUALS(theirs.rq_psn, ours.sq_psn);
	EQUALS(ours.max_rd_atomic, 4);
	EQUALS(ours.max_dest_rd_atomic, 2);
	EQUALS(theirs.max_rd_atomic, 2);
	EQUALS(theirs.max_dest_rd_atomic, 4);
	EQUALS(ours.timeout, 19);
	EQUALS(ours.min_rnr_timer, 0);
	EQUALS(ours.retry_cnt, 5);
	EQUALS(theirs.retry_cnt, 5);
	EQUALS(ours.rnr_retry, 3);
	EQUALS(theirs.rnr_retry, 7);
	EQUALS(ours.ah_attr.grh.hop_limit, 64);
	ours.qp_state = IBV_QPS_RTR;
	CHECK(rdma_init_qp_attr(client, &ours, &mask) == 0);
	EQUALS(ours.dest_qp_num, server->qp->qp_num);
	/* Both sides are told once; ending again is nothing. */
	CHECK(rdma_disconnect(client) == 0);
	EQUALS(look(client).qp_state, IBV_QPS_ERR);
	event = EXPECT(DISCONNECTED);
	rdma_ack_cm_event(event);
	PASS(DISCONNECTED);
	CHECK(rdma_disconnect(server) == 0);
	CHECK(rdma_disconnect(client) == 0);
	/* Waiting events go along to another channel. */
	CHECK(rdma_migrate_id(server, apart) == 0);
	rdma_ack_cm_event(expect(apart, RDMA_CM_EVENT_TIMEWAIT_EXIT, __LINE__));
	event = EXPECT(TIMEWAIT_EXIT);
	CHECK(event->id == client);
	rdma_ack_cm_event(event);
	drop(server);
	drop(client);
	drop(listening);
	rdma_destroy_event_channel(apart);
}

static void refusals(void)
{
	struct rdma_conn_param param = {.private_data = calloc(1, 255)};
	struct pollfd waiting = {.events = POLLIN};
	struct sockaddr_in at, nobody;
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP, &at), *client, *server;
	struct rdma_cm_event *event;

	/* A port that was had, and is given back. */
	drop(listener(RDMA_PS_TCP, &nobody));
	client = caller(RDMA_PS_TCP, &nobody, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	event = EXPECT(REJECTED);
	EQUALS(event->status, 8);
	rdma_ack_cm_event(event);
	EQUALS(look(client).qp_state, IBV_QPS_ERR);
	drop(client);

	client = caller(RDMA_PS_TCP, &at, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	event = EXPECT(CONNECT_REQUEST);
	server = event->id;
	rdma_ack_cm_event(event);
	FAILS(rdma_reject(server, param.private_data, 149), EINVAL);
	CHECK(rdma_reject(server, "no", 3) == 0);
	event = EXPECT(REJECTED);
	EQUALS(event->status, 28);
	EQUALS(event->param.conn.private_data_len, 148);
	CHECK(padded(event->param.conn.private_data, 148, "no"));
	rdma_ack_cm_event(event);
	drop(server);
	drop(client);

	client = caller(RDMA_PS_TCP, &at, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	event = EXPECT(CONNECT_REQUEST);
	server = event->id;
	rdma_ack_cm_event(event);
	param.private_data_len = 197;
	FAILS(rdma_accept(server, &param), EINVAL);
	event = EXPECT(REJECTED);
	EQUALS(event->status, 28);
	rdma_ack_cm_event(event);
	drop(server);
	drop(client);

	/* The listener goes, and what it got and nobody took with it. */
	client = caller(RDMA_PS_TCP, &at, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	waiting.fd = channel->fd;
	CHECK(poll(&waiting, 1, 20000) == 1);
	rdma_destroy_id(listening);
	event = EXPECT(REJECTED);
	EQUALS(event->status, 28);
	rdma_ack_cm_event(event);
	drop(client);
}

/* A program that moves its own queue pair. */
static void by_hand(void)
{
	struct rdma_conn_param param = {.qp_num = 0x1234, .responder_resources = 1, .initiator_depth = 1};
	struct sockaddr_in at;
	struct rdma_cm_id *listening = listener(RDMA_PS_TCP, &at), *client = caller(RDMA_PS_TCP, &at, 0), *server;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct rdma_cm_event *event;
	int mask;

	FAILS(rdma_init_qp_attr(client, &attr, &mask), EINVAL);
	CHECK(rdma_connect(client, &param) == 0);
	event = EXPECT(CONNECT_REQUEST);
	EQUALS(event->param.conn.qp_num, 0x1234);
	server = event->id;
	rdma_ack_cm_event(event);
	param.qp_num = 0x4321;
	CHECK(rdma_accept(server, &param) == 0);
	event = EXPECT(CONNECT_RESPONSE);
	EQUALS(event->param.conn.qp_num, 0x4321);
	rdma_ack_cm_event(event);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(rdma_init_qp_attr(client, &attr, &mask) == 0);
	EQUALS(attr.dest_qp_num, 0x4321);
	CHECK(mask & IBV_QP_AV);
	CHECK(rdma_establish(client) == 0);
	event = EXPECT(ESTABLISHED);
	CHECK(event->id == server);
	rdma_ack_cm_event(event);
	drop(client);
	PASS(DISCONNECTED);
	drop(server);
	drop(listening);
}

static void datagrams(void)
{
	struct rdma_conn_param param = {.private_data = "ask", .private_data_len = 4};
	struct sockaddr_in at, nobody;
	struct rdma_cm_id *listening = listener(RDMA_PS_UDP, &at), *client = caller(RDMA_PS_UDP, &at, 1), *server;
	struct rdma_cm_event *event;
	struct ibv_ah *ah;

	EQUALS(look(client).qp_state, IBV_QPS_RTS);
	EQUALS(look(client).qkey, 0x01234567);
	CHECK(rdma_connect(client, &param) == 0);
	event = EXPECT(CONNECT_REQUEST);
	server = event->id;
	EQUALS(event->param.ud.private_data_len, 180);
	CHECK(padded(event->param.ud.private_data, 180, "ask"));
	rdma_ack_cm_event(event);
	add_qp(server, IBV_QPT_UD);
	param.private_data = "yes";
	CHECK(rdma_accept(server, &param) == 0);
	event = EXPECT(ESTABLISHED);
	CHECK(event->id == client);
	EQUALS(event->param.ud.private_data_len, 136);
	CHECK(padded(event->param.ud.private_data, 136, "yes"));
	EQUALS(event->param.ud.qp_num, server->qp->qp_num);
	EQUALS(event->param.ud.qkey, 0x01234567);
	EQUALS(event->param.ud.ah_attr.is_global, 1);
	ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
	CHECK(ah != NULL);
	ibv_destroy_ah(ah);
	rdma_ack_cm_event(event);
	drop(server);
	drop(client);

	client = caller(RDMA_PS_UDP, &at, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	event = EXPECT(CONNECT_REQUEST);
	server = event->id;
	rdma_ack_cm_event(event);
	CHECK(rdma_reject(server, "no", 3) == 0);
	event = EXPECT(UNREACHABLE);
	EQUALS(event->status, 2);
	rdma_ack_cm_event(event);
	drop(server);
	drop(client);
	drop(listening);

	drop(listener(RDMA_PS_UDP, &nobody));
	client = caller(RDMA_PS_UDP, &nobody, 1);
	CHECK(rdma_connect(client, NULL) == 0);
	event = EXPECT(UNREACHABLE);
	EQUALS(event->status, 1);
	rdma_ack_cm_event(event);
	drop(client);
}

static void groups(void)
{
	struct sockaddr_in group = address("239.1.1.1", 0), self = address(host, 0);
	struct rdma_cm_id *id = make(RDMA_PS_UDP);
	struct rdma_cm_event *event;
	char gid[INET6_ADDRSTRLEN];

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&self) == 0);
	add_qp(id, IBV_QPT_UD);
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&self, NULL), EINVAL);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &group) == 0);
	event = EXPECT(MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &group);
	EQUALS(event->param.ud.qp_num, 0xffffff);
	EQUALS(event->param.ud.qkey, 0x01234567);
	inet_ntop(AF_INET6, &event->param.ud.ah_attr.grh.dgid, gid, sizeof gid);
	CHECK(!strcmp(gid, "::ffff:239.1.1.1"));
	rdma_ack_cm_event(event);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	drop(id);
}

static void others(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_UDP}, *info;
	struct rdma_cm_id *id = make(RDMA_PS_TCP), *none;
	struct ibv_context **devices;
	struct rdma_cm_event *event;
	int count = 0, one = 1;
	uint8_t timeout = 32;

	FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
	FAILS(rdma_create_id(channel, &none, NULL, 0x1234), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), EINVAL);
	timeout = 14;
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one) == 0);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, sizeof one), ENOSYS);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	drop(id);
	devices = rdma_get_devices(&count);
	CHECK(devices != NULL && devices[0] != NULL && devices[1] == NULL);
	EQUALS(count, 1);
	rdma_free_devices(devices);
	CHECK(rdma_getaddrinfo(host, "7471", &hints, &info) == 0);
	EQUALS(info->ai_qp_type, IBV_QPT_UD);
	EQUALS(info->ai_dst_len, 0);
	EQUALS(((struct sockaddr_in *)info->ai_src_addr)->sin_port, htons(7471));
	rdma_freeaddrinfo(info);
	CHECK(rdma_getaddrinfo(host, NULL, NULL, &info) == 0);
	EQUALS(info->ai_port_space, RDMA_PS_TCP);
	EQUALS(info->ai_dst_len, sizeof(struct sockaddr_in));
	rdma_freeaddrinfo(info);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	host = argv[1];
	channel = rdma_create_event_channel();
	if (!channel) {
		perror("rdma_create_event_channel");
		return 1;
	}
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	ports();
	connection();
	refusals();
	by_hand();
	datagrams();
	groups();
	others();
	rdma_destroy_event_channel(channel);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
