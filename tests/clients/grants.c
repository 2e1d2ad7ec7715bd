/* Memory that a server grants and takes back, connection by connection, as its client's standard input says.
 *   grants server -p PORT
 *   grants client -p PORT HOST
 * The client's words: connect; register; dereg R; write R; read R; send; call (the server sends); look R; narrow R (the server
 * registers it anew for READs only); widen R; window R (of type 1, bound to the region's second half: another region); window2 R
 * (of type 2); rebind R (of type 1, to the first quarter); unbind R; invalidate R; revoke R (the client's SEND invalidates);
 * free R (the window is deallocated); quit. Each is answered by a line. What fails ends its connection; the next `connect`
 * makes another. */
#include "client.h"

#define BYTES 4096
#define REGIONS 16
#define MARGIN 1024
#define MARK 0x5374615220000000

#define FOR_READS (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE)
#define FOR_ALL (FOR_READS | IBV_ACCESS_REMOTE_WRITE)

enum { CONNECT = 'c', REGISTER = 'r', DEREG = 'd', LOOK = 'l', CALL = 's', QUIT = 'q', ANEW = 'a', WINDOW = 'w', REBIND = 'b',
       INVALIDATE = 'i', FREE = 'f' };

struct word {
	uint32_t what, qpn, rkey, region, how;
	int32_t error;
	uint64_t addr;
	union ibv_gid gid;
	char said[64];
};

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *own;
	struct ibv_mr *regions[REGIONS];
	struct ibv_mw *windows[REGIONS];
	uint64_t starts[REGIONS];
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

/* What becomes of the send request that was posted last. */
static const char *outcome(struct side *s)
{
	struct ibv_wc wc;

	do {
		wc = wait_one(s->cq, 20);
		/* Receives complete too, and are flushed. */
	} while (wc.qp_num != s->qp->qp_num || wc.opcode == IBV_WC_RECV || wc.wr_id != 0 ||
		 (wc.status == IBV_WC_WR_FLUSH_ERR));
	return ibv_wc_status_str(wc.status);
}

static const char *post_one(struct side *s, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	if ((errno = ibv_post_send(s->qp, wr, &bad)))
		return strerror(errno);
	return outcome(s);
}

static const char *post(struct side *s, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = {.addr = (uintptr_t)s->memory + 64, .length = 8, .lkey = s->own->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode};

	if (opcode == IBV_WR_SEND_WITH_INV) {
		wr.invalidate_rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return post_one(s, &wr);
}

/* Waits until a receive says that it has invalidated a key. */
static void hear_of_end(struct side *s, uint32_t rkey)
{
	struct ibv_wc wc;

	do
		wc = wait_one(s->cq, 20);
	while (wc.opcode != IBV_WC_RECV || !(wc.wc_flags & IBV_WC_WITH_INV));
	CHECK(wc.invalidated_rkey == rkey, "%#x was invalidated, not %#x", wc.invalidated_rkey, rkey);
}

/* Binds a window to a part of a region, or takes it off. */
static const char *bind_to(struct side *s, unsigned window, struct ibv_mr *mr, uint64_t addr, uint64_t len)
{
	struct ibv_mw *mw = s->windows[window];
	struct ibv_mw_bind_info info = {.mr = mr, .addr = addr, .length = len,
					.mw_access_flags = len ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0};
	struct ibv_mw_bind how = {.bind_info = info, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
	const char *said;

	s->starts[window] = addr;
	if (mw->type == IBV_MW_TYPE_1) {
		if ((errno = ibv_bind_mw(s->qp, mw, &how)))
			return strerror(errno);
		return outcome(s);
	}
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = info;
	said = post_one(s, &wr);
	mw->rkey = wr.bind_mw.rkey;
	return said;
}

/* What the client asks for that is about a window: what became of it, in words. */
static const char *serve_window(struct side *s, const struct word *word, int *count)
{
	unsigned at = word->region;
	struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV};

	switch (word->what) {
	case WINDOW:
		s->windows[*count] = ibv_alloc_mw(s->pd, word->how == 2 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		CHECK(s->windows[*count], "ibv_alloc_mw");
		/* Later commands of it are about the region that it is bound to. */
		s->regions[*count] = s->regions[at];
		return bind_to(s, (*count)++, s->regions[at], (uintptr_t)s->regions[at]->addr + BYTES / 2, MARGIN);
	case REBIND:
		return bind_to(s, at, s->regions[at], (uintptr_t)s->regions[at]->addr, word->how ? MARGIN : 0);
	case INVALIDATE:
		if (word->how) {
			hear_of_end(s, s->windows[at]->rkey);
			return "success";
		}
		wr.invalidate_rkey = s->windows[at]->rkey;
		return post_one(s, &wr);
	default:
		errno = ibv_dealloc_mw(s->windows[at]);
		s->windows[at] = NULL;
		return errno ? strerror(errno) : "success";
	}
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
			struct ibv_mr *mr = ibv_reg_mr(s->pd, at, BYTES, FOR_ALL);

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
			if (!answer.error)
				s->regions[word.region] = NULL;
			break;
		case ANEW:
			answer.error = ibv_rereg_mr(s->regions[word.region], IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
						    word.how ? FOR_ALL : FOR_READS);
			break;
		case WINDOW:
		case REBIND:
		case INVALIDATE:
		case FREE:
			strncpy(answer.said, serve_window(s, &word, &count), sizeof(answer.said) - 1);
			if (word.what == WINDOW)
				answer.region = count - 1;
			if (s->windows[answer.region]) {
				answer.rkey = s->windows[answer.region]->rkey;
				answer.addr = s->starts[answer.region];
			}
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
		} else if (!strncmp(line, "narrow", 6) || !strncmp(line, "widen", 5)) {
			word.what = ANEW;
			word.how = line[0] == 'w';
			ask(s, &word);
			printf("registered %u anew: %s\n", region, word.error ? "an error" : "success");
		} else if (!strncmp(line, "window", 6)) {
			word.what = WINDOW;
			word.how = line[6] == '2' ? 2 : 1;
			ask(s, &word);
			CHECK(word.region < REGIONS, "too many regions");
			regions[word.region] = word;
			printf("window %u: %s\n", word.region, word.said);
		} else if (!strncmp(line, "rebind", 6) || !strncmp(line, "unbind", 6)) {
			word.what = REBIND;
			word.how = line[0] == 'r';
			ask(s, &word);
			/* A key that nobody has any more is tried all the same. */
			if (line[0] == 'r')
				regions[region] = word;
			printf("bound %u: %s\n", region, word.said);
		} else if (!strncmp(line, "revoke", 6)) {
			printf("sent: %s\n", post(s, IBV_WR_SEND_WITH_INV, 0, regions[region].rkey));
			word.what = INVALIDATE;
			word.how = 1;
			ask(s, &word);
		} else if (!strncmp(line, "invalidate", 10) || !strncmp(line, "free", 4)) {
			word.what = line[0] == 'f' ? FREE : INVALIDATE;
			ask(s, &word);
			printf("ended %u: %s\n", region, word.said);
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
