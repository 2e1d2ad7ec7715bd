/* Who of several listeners of rdma_cm answers for an address and a port.
 *
 *	reach serve PORT LISTENER..	listens; says what became of each listener, then "ready"; answers whoever asks
 *	reach ask PORT LISTENER..	asks one after the other; says who answered, or how it was refused
 *
 * A LISTENER is SPACE,ADDRESS or SPACE,ADDRESS,only: a port space (tcp, udp, ib) and an address, `only` for the
 * address's family alone. An answer has the listener's words, the address it was asked at and the one it was asked
 * from. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 20000

static struct rdma_event_channel *channel;

struct place {
	const char *words;
	enum rdma_port_space space;
	int only;
	struct sockaddr_storage at;
};

static void stop(const char *what)
{
	perror(what);
	exit(1);
}

static struct place place(const char *words, unsigned port)
{
	struct place made = {.words = words};
	struct sockaddr_in *v4 = (struct sockaddr_in *)&made.at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&made.at;
	char space[8], address[64], only[8] = "";

	if (sscanf(words, "%7[^,],%63[^,],%7s", space, address, only) < 2)
		stop(words);
	made.space = !strcmp(space, "udp") ? RDMA_PS_UDP : !strcmp(space, "ib") ? RDMA_PS_IB : RDMA_PS_TCP;
	made.only = !strcmp(only, "only");
	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	} else {
		stop(words);
	}
	return made;
}

static const char *text(struct sockaddr *address, char *room)
{
	void *bytes = &((struct sockaddr_in *)address)->sin_addr;

	if (address->sa_family == AF_INET6)
		bytes = &((struct sockaddr_in6 *)address)->sin6_addr;
	return inet_ntop(address->sa_family, bytes, room, INET6_ADDRSTRLEN) ? room : "no address";
}

static void add_qp(struct rdma_cm_id *id, enum rdma_port_space space)
{
	struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
					.qp_type = space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC};

	if (rdma_create_qp(id, NULL, &init))
		stop("rdma_create_qp");
}

static void drop(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		stop("rdma_destroy_id");
}

static void listen_at(struct place *place)
{
	struct rdma_cm_id *id;
	const char *call = NULL;

	if (rdma_create_id(channel, &id, place, place->space))
		stop("rdma_create_id");
	if (place->only && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &place->only, sizeof place->only))
		stop("rdma_set_option");
	if (rdma_bind_addr(id, (struct sockaddr *)&place->at))
		call = "bind";
	else if (rdma_listen(id, 0))
		call = "listen";
	if (call)
		printf("%s cannot %s: %s\n", place->words, call, strerrorname_np(errno));
	else
		printf("%s listens\n", place->words);
}

static void answer(struct rdma_cm_event *event)
{
	struct place *place = event->listen_id->context;
	struct rdma_cm_id *id = event->id;
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};
	char words[128], at[INET6_ADDRSTRLEN], from[INET6_ADDRSTRLEN];

	snprintf(words, sizeof words, "%s at %s from %s", place->words, text(rdma_get_local_addr(id), at),
		 text(rdma_get_peer_addr(id), from));
	param.private_data = words;
	param.private_data_len = strlen(words) + 1;
	add_qp(id, place->space);
	if (rdma_accept(id, &param))
		stop("rdma_accept");
}

static int serve(void)
{
	struct rdma_cm_event *event;

	while (rdma_get_cm_event(channel, &event) == 0) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type kind = event->event;

		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST)
			answer(event);
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_DISCONNECTED)
			drop(id);
	}
	stop("rdma_get_cm_event");
	return 1;
}

/* Waits for an event of this kind; another one is said. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type kind, const char *words)
{
	struct pollfd waiting = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&waiting, 1, PATIENCE_MS) != 1 || rdma_get_cm_event(channel, &event))
		stop(rdma_event_str(kind));
	if (event->event == kind)
		return event;
	printf("%s: %s %d\n", words, rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	return NULL;
}

static int pass(enum rdma_cm_event_type kind, const char *words)
{
	struct rdma_cm_event *event = expect(kind, words);

	return event && !rdma_ack_cm_event(event);
}

static void ask(struct place *place)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
					.rnr_retry_count = 7};
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, place->space) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&place->at, PATIENCE_MS))
		stop(place->words);
	if (!pass(RDMA_CM_EVENT_ADDR_RESOLVED, place->words))
		return drop(id);
	add_qp(id, place->space);
	if (rdma_resolve_route(id, PATIENCE_MS))
		stop("rdma_resolve_route");
	if (!pass(RDMA_CM_EVENT_ROUTE_RESOLVED, place->words))
		return drop(id);
	if (rdma_connect(id, &param))
		stop("rdma_connect");
	event = expect(RDMA_CM_EVENT_ESTABLISHED, place->words);
	if (event) {
		const void *words = event->param.conn.private_data;

		if (place->space == RDMA_PS_UDP)
			words = event->param.ud.private_data;
		printf("%s: %s\n", place->words, (const char *)words);
		rdma_ack_cm_event(event);
		if (place->space != RDMA_PS_UDP && (rdma_disconnect(id) || !pass(RDMA_CM_EVENT_DISCONNECTED, place->words)))
			stop("rdma_disconnect");
	}
	drop(id);
}

int main(int argc, char **argv)
{
	static struct place places[8];
	int i, serves = argc > 1 && !strcmp(argv[1], "serve");

	if (argc < 4 || argc > 3 + 8 || !(serves || !strcmp(argv[1], "ask")))
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	channel = rdma_create_event_channel();
	if (!channel)
		stop("rdma_create_event_channel");
	for (i = 3; i < argc; i++) {
		places[i - 3] = place(argv[i], atoi(argv[2]));
		if (serves)
			listen_at(&places[i - 3]);
		else
			ask(&places[i - 3]);
	}
	if (!serves)
		return 0;
	puts("ready");
	return serve();
}
