/* rsockets' calls in one process, to the number: addresses, options, ends, threads that wait on one socket, sockets and
 * pipes in one rpoll, what is refused. Prints how many checks were made and how many failed. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

	FAILS(rsocket(AF_INET, SOCK_DGRAM, 0), EOPNOTSUPP);
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

int main(int argc, char **argv)
{
	int one = 1, half = 100000;
	socklen_t length = sizeof host;

	if (argc != 2)
		return 2;
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
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
