/* A program of TCP, which knows nothing of RDMA: its server forks a child for each connection, which sends everything
 * back. `forking serve ADDRESS PORT COUNT` ends after that many connections; `forking ask ADDRESS PORT` makes one.
 * `forking web ADDRESS PORT FILE` forks nothing: it answers one request of HTTP with the file. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 100000
#define ROUNDS 20
/* The file ends with the connection. */
#define ANSWER "HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n"

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int send_all(int s, const char *bytes, size_t left)
{
	while (left > 0) {
		ssize_t sent = send(s, bytes, left, 0);

		if (sent <= 0)
			return -1;
		bytes += sent;
		left -= sent;
	}
	return 0;
}

static int serve_one(int s)
{
	static char bytes[BYTES];
	ssize_t got;

	while ((got = recv(s, bytes, sizeof bytes, 0)) > 0)
		if (send_all(s, bytes, got))
			return fail("send");
	if (got < 0)
		return fail("recv");
	return close(s) ? fail("close") : 0;
}

static int listens(struct sockaddr_in *at)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	    bind(listener, (struct sockaddr *)at, sizeof *at) || listen(listener, 8)) {
		perror("listen");
		exit(1);
	}
	return listener;
}

static int serve(struct sockaddr_in *at, int count)
{
	int status, failed = 0, listener = listens(at);

	for (int i = 0; i < count; i++) {
		int s = accept(listener, NULL, NULL);

		if (s < 0)
			return fail("accept");
		pid_t child = fork();
		if (child < 0)
			return fail("fork");
		if (child == 0)
			exit(serve_one(s));
		close(s);
	}
	while (wait(&status) > 0)
		failed |= status != 0;
	return failed;
}

static int web(struct sockaddr_in *at, const char *path)
{
	static char request[BYTES], bytes[BYTES];
	FILE *file = fopen(path, "r");
	int s = accept(listens(at), NULL, NULL), had = 0;

	if (s < 0 || !file)
		return fail("accept");
	while (!strstr(request, "\r\n\r\n")) {
		ssize_t got = recv(s, request + had, BYTES - 1 - had, 0);

		if (got <= 0)
			return fail("recv");
		had += got;
	}
	if (send_all(s, ANSWER, strlen(ANSWER)))
		return fail("send");
	for (size_t got; (got = fread(bytes, 1, BYTES, file)) > 0;)
		if (send_all(s, bytes, got))
			return fail("send");
	return close(s) ? fail("close") : 0;
}

static int ask(struct sockaddr_in *at)
{
	static char sent[BYTES], back[BYTES];
	int s = socket(AF_INET, SOCK_STREAM, 0);

	if (s < 0 || connect(s, (struct sockaddr *)at, sizeof *at))
		return fail("connect");
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BYTES; i++)
			sent[i] = (i + round) * 7 + i / 251;
		if (send_all(s, sent, BYTES))
			return fail("send");
		for (int had = 0; had < BYTES;) {
			ssize_t got = recv(s, back + had, BYTES - had, 0);

			if (got <= 0)
				return fail("recv");
			had += got;
		}
		if (memcmp(sent, back, BYTES)) {
			puts("other bytes came back");
			return 1;
		}
	}
	printf("%d bytes came back\n", BYTES * ROUNDS);
	return close(s) ? fail("close") : 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};

	if (argc < 4 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1)
		return 2;
	at.sin_port = htons(atoi(argv[3]));
	if (argc == 5 && !strcmp(argv[1], "web"))
		return web(&at, argv[4]);
	return argc == 5 && !strcmp(argv[1], "serve") ? serve(&at, atoi(argv[4])) : ask(&at);
}
