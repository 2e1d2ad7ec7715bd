/* Memory that a server grants and takes back, connection by connection, as its client's standard input says.
 *   grants server -p PORT
 *   grants client -p PORT HOST
 * The client's words: connect; register; dereg R; write R; read R; send; call (the server sends); look R; quit. Each is
 * answered by a line. What fails ends its connection; the next `connect` makes another. */
#include "client.h"

#define BYTES 4096
#define REGIONS 8
#define MARK 0x5374615220000000

enum { CONNECT = 'c', REGISTER = 'r', DEREG = 'd', LOOK = 'l', CALL = 's', QUIT = 'q' };

struct word {
	uint32_t what, qpn, rkey, region;
	int32_t error;
	uint64_t addr;
	union ibv_gid gid;
};

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *own;
	struct ibv_mr *regions[REGIONS];
	char *memory;
	int fd;
};

static void tell(int fd, const struct word *word)
{
	CHECK(write(fd, word, sizeof(*word)) == sizeof(*word), "write to the peer");
}

static int hear(int fd, struct word *word)
{
	ssize_t n = recv(fd, word, sizeof(*word), MSG_WAITALL);

	CHECK(n == 0 || n == sizeof(*word), "read from the peer");
	return n != 0;
}

/* A queue pair with receives, towards the one that the peer names. */
static struct word begin(struct side *s)
{
	if (s->qp)
		CHECK(!ibv_destroy_qp(s->qp), "ibv_destroy_qp");
	s->qp = make_rc(s->pd, s->cq, 16);
	for (int i = 0; i < 8; i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)s->memory, .length = 64, .lkey = s->own->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

		CHECK(!ibv_post_recv(s->qp, &wr, &bad), "ibv_post_recv");
	}
	return (struct word){.what = CONNECT, .qpn = s->qp->qp_num, .gid = own_gid(s->context)};
}

static const char *post(struct side *s, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = {.addr = (uintptr_t)s->memory + 64, .length = 8, .lkey = s->own->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(s->qp, &wr, &bad), "ibv_post_send");
	do {
		wc = wait_one(s->cq, 20);
		/* Receives complete too, and are flushed. */
	} while (wc.qp_num != s->qp->qp_num || wc.opcode == IBV_WC_RECV || wc.wr_id != wr.wr_id ||
		 (wc.status == IBV_WC_WR_FLUSH_ERR));
	return ibv_wc_status_str(wc.status);
}

static void serve(struct side *s)
{
	struct word word, answer;
	int count = 0;

	while (hear(s->fd, &word) && word.what != QUIT) {
		answer = (struct word){.what = word.what, .region = word.region};
		switch (word.what) {
		case CONNECT:
			answer = begin(s);
			connect_rc(s->qp, word.qpn, 0, 0, word.gid, 14, 7);
			break;
		case REGISTER: {
			char *at = s->memory + (1 + count % (REGIONS - 1)) * BYTES;
			struct ibv_mr *mr = ibv_reg_mr(s->pd, at, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							       IBV_ACCESS_REMOTE_READ);

			if (!mr) {
				answer.error = errno;
				break;
			}
			CHECK(count < REGIONS, "too many regions");
			memset(at, 0, BYTES);
			s->regions[count] = mr;
			answer.region = count++;
			answer.addr = (uintptr_t)at;
			answer.rkey = mr->rkey;
			break;
		}
		case DEREG:
			answer.error = ibv_dereg_mr(s->regions[word.region]);
			s->regions[word.region] = NULL;
			break;
		case LOOK:
			memcpy(&answer.addr, s->memory + (1 + word.region % (REGIONS - 1)) * BYTES, 8);
			break;
		case CALL:
			answer.error = strcmp(post(s, IBV_WR_SEND, 0, 0), "success");
			break;
		}
		tell(s->fd, &answer);
	}
}

static void ask(struct side *s, struct word *word)
{
	tell(s->fd, word);
	CHECK(hear(s->fd, word), "the server has gone");
}

static void drive(struct side *s)
{
	struct word regions[REGIONS] = {0};
	char line[64];
	uint64_t value = 0;

	while (fgets(line, sizeof(line), stdin)) {
		unsigned region = 0;
		struct word word = {0};

		sscanf(line, "%*s %u", &region);
		CHECK(region < REGIONS, "no such region");
		word.region = region;
		if (!strncmp(line, "connect", 7)) {
			word = begin(s);
			ask(s, &word);
			connect_rc(s->qp, word.qpn, 0, 0, word.gid, 14, 7);
			printf("connected\n");
		} else if (!strncmp(line, "register", 8)) {
			word.what = REGISTER;
			ask(s, &word);
			if (!word.error)
				regions[word.region] = word;
			printf(word.error ? "not registered: %s\n" : "registered\n", strerror(word.error));
		} else if (!strncmp(line, "dereg", 5)) {
			word.what = DEREG;
			ask(s, &word);
			printf("deregistered %u: %s\n", region, word.error ? strerror(word.error) : "success");
		} else if (!strncmp(line, "write", 5)) {
			/* A word that is found again in a capture. */
			uint64_t marked = MARK + ++value;

			memcpy(s->memory + 64, &marked, 8);
			printf("wrote %u to %u: %s\n", (unsigned)value, region,
			       post(s, IBV_WR_RDMA_WRITE, regions[region].addr, regions[region].rkey));
		} else if (!strncmp(line, "read", 4)) {
			printf("read %u: %s\n", region,
			       post(s, IBV_WR_RDMA_READ, regions[region].addr, regions[region].rkey));
		} else if (!strncmp(line, "send", 4)) {
			printf("sent: %s\n", post(s, IBV_WR_SEND, 0, 0));
		} else if (!strncmp(line, "call", 4)) {
			word.what = CALL;
			ask(s, &word);
			printf("called: %s\n", word.error ? "an error" : "success");
		} else if (!strncmp(line, "look", 4)) {
			word.what = LOOK;
			ask(s, &word);
			printf("region %u holds %u\n", region, (unsigned)(word.addr ? word.addr - MARK : 0));
		} else {
			break;
		}
		fflush(stdout);
	}
	tell(s->fd, &(struct word){.what = QUIT});
}

int main(int argc, char **argv)
{
	int server = argc > 1 && !strcmp(argv[1], "server");
	static char memory[REGIONS * BYTES] __attribute__((aligned(4096)));
	struct side s = {.context = open_first(), .memory = memory};
	int port = 0, option;

	optind = 2;
	while ((option = getopt(argc, argv, "p:")) == 'p')
		port = atoi(optarg);
	CHECK(port > 0 && (server || optind < argc), "usage: grants server -p PORT | client -p PORT HOST");
	s.pd = ibv_alloc_pd(s.context);
	s.cq = ibv_create_cq(s.context, 256, NULL, NULL, 0);
	CHECK(s.pd && s.cq, "alloc_pd or create_cq");
	s.own = ibv_reg_mr(s.pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(s.own, "ibv_reg_mr");
	/* A child that outlives it, and holds all that it had opened. */
	if (server && getenv("GRANTS_CHILD") && fork() == 0) {
		pause();
		_exit(0);
	}
	s.fd = server ? listen_once(port) : dial(argv[optind], port);
	if (server)
		serve(&s);
	else
		drive(&s);
	/* What is left is closed with the device. */
	CHECK(!ibv_close_device(s.context), "ibv_close_device");
	return 0;
}
