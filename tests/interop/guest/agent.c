/* Runs shell commands in the lab's guest for whoever connects: the host's end is guest_shell.py.
 *
 * A connection carries one command: its text and a NUL. What the command prints goes back as it comes, then a NUL and
 * the exit status in decimal. The command ends when the connection does, so that nothing outlives a case that failed. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST_COMMAND 65536
#define SHELL "/bin/sh"

/* Reads up to the NUL that ends the command; returns whether it came. */
static int read_command(int peer, char *command)
{
	size_t have = 0;

	while (have < LONGEST_COMMAND) {
		ssize_t got = read(peer, command + have, LONGEST_COMMAND - have);

		if (got <= 0)
			return 0;
		have += (size_t)got;
		if (command[have - 1] == '\0')
			return 1;
	}
	return 0;
}

static void send_all(int peer, const char *bytes, size_t length)
{
	while (length > 0) {
		ssize_t sent = write(peer, bytes, length);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return;
		bytes += sent;
		length -= (size_t)sent;
	}
}

/* Starts the command in a session of its own, its output into the pipe. */
static pid_t start(const char *command, int output)
{
	pid_t child = fork();

	if (child != 0)
		return child;
	setsid();
	signal(SIGPIPE, SIG_DFL);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	for (int fd = STDERR_FILENO + 1; fd < 64; fd++)
		close(fd);
	execl(SHELL, "sh", "-c", command, (char *)NULL);
	_exit(127);
}

/* Passes the output on until the command has closed it, or until the peer has gone: then the command is killed. */
static void pass_output(int peer, int output, pid_t child)
{
	struct pollfd watched[2] = {{.fd = output, .events = POLLIN}, {.fd = peer, .events = POLLIN}};
	static char buffer[1 << 16];

	for (;;) {
		if (poll(watched, 2, -1) < 0)
			continue;
		if (watched[0].revents) {
			ssize_t got = read(output, buffer, sizeof(buffer));

			if (got <= 0)
				return;
			send_all(peer, buffer, (size_t)got);
		} else if (watched[1].revents) {
			kill(-child, SIGKILL);
			return;
		}
	}
}

static void serve(int peer)
{
	static char command[LONGEST_COMMAND];
	char trailer[16];
	int ends[2], status = 0, length;
	pid_t child;

	if (!read_command(peer, command) || pipe(ends))
		return;
	child = start(command, ends[1]);
	close(ends[1]);
	if (child < 0)
		return;
	pass_output(peer, ends[0], child);
	waitpid(child, &status, 0);
	status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	trailer[0] = '\0';
	length = snprintf(trailer + 1, sizeof(trailer) - 1, "%d", status);
	send_all(peer, trailer, (size_t)length + 1);
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0)};
	int one = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	signal(SIGPIPE, SIG_IGN);
	setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (door < 0 || bind(door, (struct sockaddr *)&here, sizeof(here)) || listen(door, 64)) {
		perror("agent");
		return 1;
	}
	for (;;) {
		int peer = accept(door, NULL, NULL);

		if (peer >= 0 && fork() == 0) {
			serve(peer);
			_exit(0);
		}
		if (peer >= 0)
			close(peer);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
