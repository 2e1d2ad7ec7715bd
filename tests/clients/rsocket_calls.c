/* rsockets' calls in one process, to the number: addresses, options, ends, threads that wait on one socket, sockets and
 * pipes in one rpoll, datagrams, what is refused. Prints how many checks were made and how many failed. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

#define BYTES 3000000

#define FAILS(call, number) CHECK((long)(call) == -1 && errno == (number))

static struct sockaddr_in host;
static unsigned char sent[BYTES], got[BYTES];

static int option(int s, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	return rgetsockopt(s, level, name, &value, &length) ? -1 : value;
}

static void *write_all(void *socket)
{
	long left = BYTES;

	while (left > 0) {
		ssize_t n = rsend(*(int *)socket, sent + BYTES - left, left, 0);

		if (n <= 0)
			break;
		left -= n;
	}
	return (void *)left;
}

/* A connected pair, and its listener. */
static int pair(int listener, int *client)
{
	int one = 1;

	*client = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(*client >= 0);
	CHECK(rsetsockopt(*client, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one) == 0);
	CHECK(rfcntl(*client, F_SETFL, O_NONBLOCK) == 0);
	FAILS(rconnect(*client, (struct sockaddr *)&host, sizeof host), EINPROGRESS);
	int server = raccept(listener, NULL, NULL);
	CHECK(server >= 0);
	struct pollfd fd = {.fd = *client, .events = POLLOUT};
	CHECK(rpoll(&fd, 1, -1) == 1 && fd.revents == POLLOUT);
	CHECK(option(*client, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(rfcntl(*client, F_SETFL, 0) == 0 && !(rfcntl(*client, F_GETFL) & O_NONBLOCK));
	return server;
}

static void refusals(int s)
{
	char byte = 0;

	FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
	FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP);
	FAILS(rsocket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), EOPNOTSUPP);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	FAILS(rsend(s, &byte, 1, 0), ENOTCONN);
	FAILS(rrecv(s, &byte, 1, 0), ENOTCONN);
	FAILS(rshutdown(s, SHUT_RDWR), ENOTCONN);
	FAILS(raccept(s, NULL, NULL), EINVAL);
	FAILS(rbind(s, (struct sockaddr *)&host, 3), EINVAL);
	FAILS(rclose(12345), EBADF);
	FAILS(riomap(s, &byte, 1, PROT_WRITE, 0, 0), ENOTCONN);
	FAILS(option(s, SOL_SOCKET, SO_REUSEPORT), EOPNOTSUPP);
	socklen_t length = sizeof(struct sockaddr_in);
	struct sockaddr_in address;
	FAILS(rgetpeername(s, (struct sockaddr *)&address, &length), ENOTCONN);
}

static void ends(int listener)
{
	int client, server = pair(listener, &client);
	char text[8] = "";

	/* Half an end: the other half goes on. */
	CHECK(rsend(client, "abc", 3, 0) == 3);
	CHECK(rshutdown(client, SHUT_WR) == 0);
	FAILS(rsend(client, "d", 1, 0), EPIPE);
	CHECK(rrecv(server, text, sizeof text, MSG_PEEK) == 3);
	CHECK(rrecv(server, text, sizeof text, 0) == 3 && !memcmp(text, "abc", 3));
	CHECK(rrecv(server, text, sizeof text, 0) == 0);
	struct iovec parts[2] = {{"de", 2}, {"fgh", 3}};
	CHECK(rwritev(server, parts, 2) == 5);
	CHECK(rrecv(client, text, 5, MSG_WAITALL) == 5 && !memcmp(text, "defgh", 5));
	FAILS(rrecv(client, text, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rclose(server) == 0);
	struct pollfd fd = {.fd = client, .events = POLLIN};
	CHECK(rpoll(&fd, 1, -1) == 1 && fd.revents == (POLLIN | POLLHUP));
	CHECK(rrecv(client, text, 1, 0) == 0);
	CHECK(rclose(client) == 0);
	FAILS(rclose(client), EBADF);

	/* What was sent before the end is there after it. */
	server = pair(listener, &client);
	CHECK(rsend(client, "last", 4, 0) == 4);
	CHECK(rclose(client) == 0);
	CHECK(rrecv(server, text, 4, MSG_WAITALL) == 4 && !memcmp(text, "last", 4));
	CHECK(rrecv(server, text, 4, 0) == 0);
	FAILS(rsend(server, "x", 1, 0), EPIPE);
	CHECK(rclose(server) == 0);
}

/* One thread reads a socket while another writes it, on both ends. */
static void threads(int listener)
{
	int client, server = pair(listener, &client);
	pthread_t writers[2];
	long left;

	for (int i = 0; i < BYTES; i++)
		sent[i] = i * 7 + i / 251;
	CHECK(pthread_create(&writers[0], NULL, write_all, &client) == 0);
	CHECK(pthread_create(&writers[1], NULL, write_all, &server) == 0);
	for (int end = 0; end < 2; end++) {
		memset(got, 0, sizeof got);
		CHECK(rrecv(end ? client : server, got, BYTES, MSG_WAITALL) == BYTES);
		CHECK(!memcmp(got, sent, BYTES));
	}
	for (int i = 0; i < 2; i++) {
		CHECK(pthread_join(writers[i], (void **)&left) == 0);
		CHECK(left == 0);
	}
	CHECK(rclose(client) == 0 && rclose(server) == 0);
}

static void polls(int listener)
{
	int client, server = pair(listener, &client), pipes[2];
	char byte;

	CHECK(pipe(pipes) == 0);
	struct pollfd fds[3] = {
		{.fd = server, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}, {.fd = listener, .events = POLLIN}};
	CHECK(rpoll(fds, 3, 0) == 0);
	CHECK(rpoll(fds, 3, 20) == 0);
	CHECK(write(pipes[1], "p", 1) == 1);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[1].revents == POLLIN);
	CHECK(rwrite(client, "s", 1) == 1);
	CHECK(read(pipes[0], &byte, 1) == 1);
	CHECK(rpoll(fds, 3, -1) == 1 && fds[0].revents == POLLIN);
	fd_set readable, writable;
	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(server, &readable);
	FD_SET(pipes[0], &readable);
	FD_SET(client, &writable);
	int most = server > client ? server : client;
	CHECK(rselect((most > pipes[0] ? most : pipes[0]) + 1, &readable, &writable, NULL, NULL) == 2);
	CHECK(FD_ISSET(server, &readable) && !FD_ISSET(pipes[0], &readable) && FD_ISSET(client, &writable));
	CHECK(rread(server, &byte, 1) == 1 && byte == 's');
	CHECK(rclose(client) == 0 && rclose(server) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

static void mappings(int listener)
{
	int client, server = pair(listener, &client);
	static char room[64];
	char byte;

	FAILS(riowrite(client, "x", 1, 0, 0), EINVAL);
	CHECK(riomap(server, room, sizeof room, PROT_WRITE, 0, 1000) == 1000);
	FAILS(riomap(server, room, sizeof room, PROT_WRITE, 0, 2000), ENOBUFS);
	FAILS(riomap(server, room, sizeof room, PROT_NONE, 0, 0), EOPNOTSUPP);
	CHECK(rwrite(server, "m", 1) == 1 && rread(client, &byte, 1) == 1);
	CHECK(riowrite(client, "there", 5, 1010, 0) == 5);
	FAILS(riowrite(client, "x", 1, 1064, 0), EINVAL);
	CHECK(rwrite(client, "d", 1) == 1 && rread(server, &byte, 1) == 1);
	CHECK(!memcmp(room + 10, "there", 5));
	CHECK(riounmap(server, room, sizeof room) == 0);
	FAILS(riounmap(server, room, sizeof room), EINVAL);
	CHECK(rclose(client) == 0 && rclose(server) == 0);
}

/* A socket for datagrams at a port of its own, whose address is written into `at`. */
static int datagrams(struct sockaddr_in *at)
{
	socklen_t length = sizeof *at;
	int s = rsocket(AF_INET, SOCK_DGRAM, 0);

	*at = host;
	at->sin_port = 0;
	CHECK(s >= 0 && rbind(s, (struct sockaddr *)at, sizeof *at) == 0);
	CHECK(rgetsockname(s, (struct sockaddr *)at, &length) == 0 && length == sizeof *at && at->sin_port != 0);
	CHECK(at->sin_addr.s_addr == host.sin_addr.s_addr);
	return s;
}

/* What is refused of a datagram socket, and what is fixed when it has an address. */
static void refusals_of_datagrams(void)
{
	char byte = 0;
	int more = 1 << 20, s = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
	struct sockaddr_in address = host;
	socklen_t length = sizeof address;

	CHECK(s >= 0 && option(s, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
	CHECK(option(s, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP);
	FAILS(option(s, IPPROTO_TCP, TCP_NODELAY), EOPNOTSUPP);
	FAILS(rsend(s, &byte, 1, 0), EDESTADDRREQ);
	FAILS(rrecv(s, &byte, 1, 0), EINVAL);
	FAILS(rlisten(s, 1), EOPNOTSUPP);
	FAILS(raccept(s, NULL, NULL), EOPNOTSUPP);
	FAILS(rshutdown(s, SHUT_WR), EOPNOTSUPP);
	FAILS(rgetpeername(s, (struct sockaddr *)&address, &length), ENOTCONN);
	FAILS(riomap(s, &byte, 1, PROT_WRITE, 0, 0), ENOTCONN);
	CHECK(rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &more, sizeof more) == 0);
	address.sin_port = 0;
	CHECK(rbind(s, (struct sockaddr *)&address, sizeof address) == 0);
	FAILS(rbind(s, (struct sockaddr *)&address, sizeof address), EINVAL);
	FAILS(rsetsockopt(s, SOL_RDMA, RDMA_RQSIZE, &more, sizeof more), EINVAL);
	/* A port is one socket's. */
	length = sizeof address;
	CHECK(rgetsockname(s, (struct sockaddr *)&address, &length) == 0);
	int other = rsocket(AF_INET, SOCK_DGRAM, 0);
	FAILS(rbind(other, (struct sockaddr *)&address, sizeof address), EADDRINUSE);
	CHECK(rclose(other) == 0 && rclose(s) == 0);
	FAILS(rclose(s), EBADF);
}

/* Datagrams between three sockets, by every call, each whole or cut. */
static void datagrams_go(void)
{
	struct sockaddr_in at[3], from;
	socklen_t length = sizeof from;
	int s[3];
	char text[2048], long_one[2048];

	for (int i = 0; i < 3; i++)
		s[i] = datagrams(&at[i]);
	struct pollfd fd = {.fd = s[1], .events = POLLIN | POLLOUT};
	CHECK(rpoll(&fd, 1, 0) == 1 && fd.revents == POLLOUT);
	FAILS(rrecv(s[1], text, sizeof text, MSG_DONTWAIT), EAGAIN);
	fd.events = POLLIN;
	CHECK(rpoll(&fd, 1, 20) == 0);
	/* The first goes by UDP, and the next ones, when that was answered, to the queue pair. Both have borders. */
	for (int round = 0; round < 3; round++) {
		CHECK(rsendto(s[0], "abc", 3, 0, (struct sockaddr *)&at[1], sizeof at[1]) == 3);
		CHECK(rsendto(s[0], "", 0, 0, (struct sockaddr *)&at[1], sizeof at[1]) == 0);
		CHECK(rsendto(s[0], "defgh", 5, 0, (struct sockaddr *)&at[1], sizeof at[1]) == 5);
		CHECK(rpoll(&fd, 1, -1) == 1 && fd.revents == POLLIN);
		CHECK(rrecv(s[1], text, 2, MSG_PEEK | MSG_TRUNC) == 3 && !memcmp(text, "ab", 2));
		length = sizeof from;
		CHECK(rrecvfrom(s[1], text, sizeof text, 0, (struct sockaddr *)&from, &length) == 3);
		CHECK(!memcmp(text, "abc", 3) && length == sizeof from && from.sin_port == at[0].sin_port);
		CHECK(from.sin_family == AF_INET && from.sin_addr.s_addr == at[0].sin_addr.s_addr);
		CHECK(rrecv(s[1], text, sizeof text, 0) == 0);
		struct iovec parts[2] = {{text, 1}, {text + 10, 2}};
		struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = parts, .msg_iovlen = 2};
		CHECK(rrecvmsg(s[1], &message, 0) == 3 && message.msg_flags == MSG_TRUNC);
		CHECK(text[0] == 'd' && !memcmp(text + 10, "ef", 2) && from.sin_port == at[0].sin_port);
		FAILS(rrecv(s[1], text, 1, MSG_DONTWAIT), EAGAIN);
		/* Back, by its address. */
		message.msg_namelen = sizeof from;
		CHECK(rsendmsg(s[1], &message, 0) == 3);
		CHECK(rrecv(s[0], text, sizeof text, 0) == 3 && !memcmp(text, "def", 3));
	}
	/* A datagram is one packet, with its head. */
	memset(long_one, 'x', sizeof long_one);
	FAILS(rsendto(s[0], long_one, 2033, 0, (struct sockaddr *)&at[1], sizeof at[1]), EMSGSIZE);
	CHECK(rsendto(s[0], long_one, 2032, 0, (struct sockaddr *)&at[1], sizeof at[1]) == 2032);
	CHECK(rrecv(s[1], text, sizeof text, 0) == 2032 && !memcmp(text, long_one, 2032));

	/* Who is connected sends to one, hears one, and is told when nobody is there. */
	CHECK(rsendto(s[1], "known", 5, 0, (struct sockaddr *)&at[2], sizeof at[2]) == 5);
	CHECK(rrecv(s[2], text, sizeof text, 0) == 5);
	CHECK(rconnect(s[2], (struct sockaddr *)&at[0], sizeof at[0]) == 0);
	length = sizeof from;
	CHECK(rgetpeername(s[2], (struct sockaddr *)&from, &length) == 0 && from.sin_port == at[0].sin_port);
	for (int round = 0; round < 2; round++) {
		CHECK(rsend(s[2], "to0", 3, 0) == 3);
		length = sizeof from;
		CHECK(rrecvfrom(s[0], text, sizeof text, 0, (struct sockaddr *)&from, &length) == 3);
		CHECK(from.sin_port == at[2].sin_port);
		CHECK(rsendto(s[1], "from1", 5, 0, (struct sockaddr *)&at[2], sizeof at[2]) == 5);
		CHECK(rsendto(s[0], "from0", 5, 0, (struct sockaddr *)&at[2], sizeof at[2]) == 5);
		CHECK(rrecv(s[2], text, sizeof text, 0) == 5 && !memcmp(text, "from0", 5));
		FAILS(rrecv(s[2], text, sizeof text, MSG_DONTWAIT), EAGAIN);
	}
	CHECK(rclose(s[0]) == 0);
	struct sockaddr_in gone = at[0];
	int late = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(rconnect(late, (struct sockaddr *)&gone, sizeof gone) == 0 && rsend(late, "x", 1, 0) == 1);
	struct pollfd told = {.fd = late, .events = POLLIN};
	CHECK(rpoll(&told, 1, -1) == 1 && told.revents == POLLERR);
	CHECK(option(late, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
	CHECK(rclose(late) == 0 && rclose(s[1]) == 0 && rclose(s[2]) == 0);
}

/* A peer that was started again at its port is found again, within two seconds of silence. */
static void datagrams_find_who_came_back(void)
{
	struct sockaddr_in at, own;
	char text[8];
	int s = datagrams(&own), peer = datagrams(&at);

	for (int round = 0; round < 2; round++) {
		CHECK(rsendto(s, "old", 3, 0, (struct sockaddr *)&at, sizeof at) == 3);
		CHECK(rrecv(peer, text, sizeof text, 0) == 3);
	}
	CHECK(rclose(peer) == 0);
	peer = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(rbind(peer, (struct sockaddr *)&at, sizeof at) == 0);
	struct pollfd fd = {.fd = peer, .events = POLLIN};
	int sent = 0;
	do {
		sent++;
		CHECK(rsendto(s, "new", 3, 0, (struct sockaddr *)&at, sizeof at) == 3);
	} while (rpoll(&fd, 1, 50) == 0 && sent < 300);
	CHECK(sent > 1 && sent < 300 && rrecv(peer, text, sizeof text, MSG_DONTWAIT) == 3 && !memcmp(text, "new", 3));
	CHECK(rclose(peer) == 0 && rclose(s) == 0);
}

/* One thread waits for datagrams while another sends on the same socket. */
static void *echo(void *socket)
{
	struct sockaddr_in from;
	socklen_t length = sizeof from;
	char text[8];
	long count = 0;

	do {
		if (rrecvfrom(*(int *)socket, text, sizeof text, 0, (struct sockaddr *)&from, &length) != 4)
			break;
		count += rsendto(*(int *)socket, text, 4, 0, (struct sockaddr *)&from, length) == 4;
	} while (memcmp(text, "last", 4));
	return (void *)count;
}

static void datagram_threads(void)
{
	struct sockaddr_in at, own;
	char text[8];
	int server = datagrams(&at), client = datagrams(&own);
	pthread_t thread;
	long count;

	CHECK(pthread_create(&thread, NULL, echo, &server) == 0);
	for (int i = 0; i < 500; i++) {
		CHECK(rsendto(client, i < 499 ? "more" : "last", 4, 0, (struct sockaddr *)&at, sizeof at) == 4);
		CHECK(rrecv(client, text, sizeof text, 0) == 4);
	}
	CHECK(pthread_join(thread, (void **)&count) == 0 && count == 500);
	CHECK(rclose(client) == 0 && rclose(server) == 0);
}

/* A peer by hand, which has a queue pair and a socket of UDP: what goes over the wire, byte by byte, and what does not get
 * to the program, which is what nobody could have sent. */
struct hand {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	unsigned char bytes[4096];
};

static int hand_open(struct hand *h)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x01234567};
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};

	h->context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	h->pd = h->context ? ibv_alloc_pd(h->context) : NULL;
	h->cq = h->pd ? ibv_create_cq(h->context, 8, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr init = {.send_cq = h->cq, .recv_cq = h->cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	h->qp = h->cq ? ibv_create_qp(h->pd, &init) : NULL;
	if (!h->qp || ibv_modify_qp(h->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		return -1;
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(h->qp, &attr, IBV_QP_STATE))
		return -1;
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(h->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) || ibv_query_gid(h->context, 1, 0, &to.grh.dgid))
		return -1;
	h->ah = ibv_create_ah(h->pd, &to);
	h->mr = ibv_reg_mr(h->pd, h->bytes, sizeof h->bytes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge piece = {(uintptr_t)h->bytes + 2048, 2048, h->mr ? h->mr->lkey : 0};
	struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &piece, .num_sge = 1}, *bad;
	return h->ah && h->mr && ibv_post_recv(h->qp, &wr, &bad) == 0 ? 0 : -1;
}

static int hand_wait(struct hand *h, struct ibv_wc *wc)
{
	int got;

	while ((got = ibv_poll_cq(h->cq, 1, wc)) == 0)
		;
	return got == 1 && wc->status == IBV_WC_SUCCESS ? 0 : -1;
}

static int hand_send(struct hand *h, unsigned qpn, const void *bytes, unsigned length)
{
	struct ibv_sge piece = {(uintptr_t)h->bytes, length, h->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;

	memcpy(h->bytes, bytes, length);
	wr.wr.ud.ah = h->ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = 0x01234567;
	return ibv_post_send(h->qp, &wr, &bad) || hand_wait(h, &wc);
}

static void by_hand(void)
{
	struct sockaddr_in at, own = host, from;
	socklen_t length = sizeof own;
	struct hand hand;
	struct ibv_wc wc;
	unsigned char answer[64], *said = hand.bytes + 2048 + 40, head[64] = {0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0};
	int s = datagrams(&at), udp = socket(AF_INET, SOCK_DGRAM, 0);

	own.sin_port = 0;
	CHECK(hand_open(&hand) == 0);
	CHECK(bind(udp, (struct sockaddr *)&own, sizeof own) == 0);
	CHECK(getsockname(udp, (struct sockaddr *)&own, &length) == 0);
	/* What is no socket's is nobody's. */
	CHECK(sendto(udp, "other", 5, 0, (struct sockaddr *)&at, sizeof at) == 5);
	FAILS(rrecv(s, answer, sizeof answer, MSG_DONTWAIT), EAGAIN);
	/* By UDP: the tag, IP version 4, data, the length of all this, the queue pair, the address, and the datagram. */
	uint32_t qpn = htonl(hand.qp->qp_num);
	memcpy(head + 8, &qpn, 4);
	memcpy(head + 12, &own.sin_addr, 4);
	memcpy(head + 16, "first", 5);
	CHECK(sendto(udp, head, 21, 0, (struct sockaddr *)&at, sizeof at) == 21);
	length = sizeof from;
	CHECK(rrecvfrom(s, answer, sizeof answer, 0, (struct sockaddr *)&from, &length) == 5);
	CHECK(!memcmp(answer, "first", 5) && from.sin_port == own.sin_port);
	CHECK(recv(udp, answer, sizeof answer, 0) == 16 && !memcmp(answer, "\x55\x55\x55\x55\x04\x07\x10\x00\x00", 9));
	CHECK(!memcmp(answer + 12, &at.sin_addr, 4));
	memcpy(&qpn, answer + 8, 4);
	/* To the queue pair: IP version 4, the length of this, the port, the address; another's address is not believed. */
	unsigned char other[] = {4, 8, 0, 9, 10, 9, 9, 9, 'l', 'i', 'e'}, short_one[] = {4, 8, 0};
	unsigned char datagram[] = {4, 8, 0, 0, 0, 0, 0, 0, 't', 'r', 'u', 'e'};
	memcpy(datagram + 2, &own.sin_port, 2);
	memcpy(datagram + 4, &own.sin_addr, 4);
	CHECK(hand_send(&hand, ntohl(qpn), other, sizeof other) == 0);
	CHECK(hand_send(&hand, ntohl(qpn), short_one, sizeof short_one) == 0);
	CHECK(hand_send(&hand, ntohl(qpn), datagram, sizeof datagram) == 0);
	CHECK(rrecvfrom(s, answer, sizeof answer, 0, (struct sockaddr *)&from, &length) == 4);
	CHECK(!memcmp(answer, "true", 4) && from.sin_port == own.sin_port);
	/* And back. */
	CHECK(rsendto(s, "back", 4, 0, (struct sockaddr *)&from, length) == 4);
	CHECK(hand_wait(&hand, &wc) == 0 && wc.byte_len == 40 + 8 + 4 && said[0] == 4 && said[1] == 8);
	CHECK(!memcmp(said + 2, &at.sin_port, 2) && !memcmp(said + 4, &at.sin_addr, 4) && !memcmp(said + 8, "back", 4));
	CHECK(ibv_destroy_qp(hand.qp) == 0 && ibv_destroy_cq(hand.cq) == 0 && ibv_destroy_ah(hand.ah) == 0);
	CHECK(ibv_dereg_mr(hand.mr) == 0 && ibv_dealloc_pd(hand.pd) == 0 && ibv_close_device(hand.context) == 0);
	CHECK(close(udp) == 0 && rclose(s) == 0);
}

/* A child has none of its parent's sockets. It may close them, which changes nothing for the parent, and makes its own. */
static void children(void)
{
	struct sockaddr_in at, own;
	char text[8];
	int status, s = datagrams(&at);

	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		checks = failures = 0;
		FAILS(rsendto(s, "x", 1, 0, (struct sockaddr *)&at, sizeof at), ENODEV);
		struct pollfd fd = {.fd = s, .events = POLLIN};
		FAILS(rpoll(&fd, 1, 0), ENODEV);
		CHECK(rclose(s) == 0);
		int mine = datagrams(&own);
		for (int i = 0; i < 3; i++) {
			CHECK(rsendto(mine, "child", 5, 0, (struct sockaddr *)&at, sizeof at) == 5);
			CHECK(rrecv(mine, text, sizeof text, 0) == 5);
		}
		CHECK(rclose(mine) == 0);
		fflush(stdout);
		_exit(failures);
	}
	CHECK(child > 0);
	for (int i = 0; i < 3; i++) {
		socklen_t length = sizeof own;

		CHECK(rrecvfrom(s, text, sizeof text, 0, (struct sockaddr *)&own, &length) == 5);
		CHECK(rsendto(s, text, 5, 0, (struct sockaddr *)&own, length) == 5);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(rclose(s) == 0);
}

/* What new sockets of both kinds begin with. */
static int sizes(void)
{
	for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
		int s = rsocket(AF_INET, kind, 0);

		printf("send %d receive %d queues %d %d inline %d mappings %d\n", option(s, SOL_SOCKET, SO_SNDBUF),
		       option(s, SOL_SOCKET, SO_RCVBUF), option(s, SOL_RDMA, RDMA_SQSIZE), option(s, SOL_RDMA, RDMA_RQSIZE),
		       option(s, SOL_RDMA, RDMA_INLINE), option(s, SOL_RDMA, RDMA_IOMAPSIZE));
		if (rclose(s))
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int one = 1, half = 100000;
	socklen_t length = sizeof host;

	if (argc == 3 && !strcmp(argv[2], "sizes"))
		return sizes();
	if (argc != 2)
		return 2;
	/* Where one hangs, what failed before is known. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	host.sin_family = AF_INET;
	inet_pton(AF_INET, argv[1], &host.sin_addr);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0);
	refusals(listener);
	CHECK(rsetsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(rsetsockopt(listener, SOL_SOCKET, SO_RCVBUF, &half, sizeof half) == 0);
	CHECK(option(listener, SOL_SOCKET, SO_RCVBUF) == 2 * half);
	CHECK(option(listener, IPPROTO_TCP, TCP_MAXSEG) == 4096);
	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one) == 0);
	CHECK(rbind(listener, (struct sockaddr *)&host, sizeof host) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&host, &length) == 0 && host.sin_port != 0);
	CHECK(rlisten(listener, 4) == 0);
	CHECK(option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);
	ends(listener);
	threads(listener);
	polls(listener);
	mappings(listener);
	CHECK(rclose(listener) == 0);
	/* The discard port, where nobody listens. */
	host.sin_port = htons(9);
	int late = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rconnect(late, (struct sockaddr *)&host, sizeof host), ECONNREFUSED);
	CHECK(rclose(late) == 0);
	host.sin_port = 0;
	refusals_of_datagrams();
	datagrams_go();
	datagrams_find_who_came_back();
	datagram_threads();
	by_hand();
	children();
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
