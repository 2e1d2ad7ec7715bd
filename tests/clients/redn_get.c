/* A client of `adverb redn serve` in plain verbs: it sets up by lines of text, and gets by messages of 28 bytes.
 *   redn_get [-g INDEX] HOST PORT ADDRESS KEY..    prints KEY VALUE, or KEY -
 * ADDRESS is that of the own NIC, INDEX that address's among its GIDs (0).
 * docs/redn.md describes the exchange, the message, buckets and records. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 8
#define REPLY 4096
#define PSN 0x123456
#define TRIES 8
#define LIMIT_S 10

struct told {
	char gid[64];
	unsigned qpn, psn;
	uint64_t index, buckets, seed;
};

static struct {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
	unsigned long asked;
} me;

static void die(const char *why)
{
	fprintf(stderr, "redn_get: %s\n", why);
	exit(1);
}

static void make_queue_pair(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!context)
		die("no device");
	me.pd = ibv_alloc_pd(context);
	me.cq = ibv_create_cq(context, 8 * SLOTS, NULL, NULL, 0);
	me.buffer = aligned_alloc(4096, SLOTS * REPLY);
	me.mr = ibv_reg_mr(me.pd, me.buffer, SLOTS * REPLY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { SLOTS, SLOTS, 1, 1, 28 },
	};
	me.qp = ibv_create_qp(me.pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (!me.mr || !me.qp || ibv_modify_qp(me.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("no queue pair");
}

/* One line there, one line back. The connection stays open: it is what the hull knows this client by. */
static struct told set_up(const char *host, const char *port, const char *own)
{
	struct addrinfo *at, hints = { .ai_socktype = SOCK_STREAM };
	char line[1024] = "";
	struct told told = { .qpn = 0 };

	if (getaddrinfo(host, port, &hints, &at))
		die("no such host");
	int fd = socket(at->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, at->ai_addr, at->ai_addrlen))
		die("nobody listens there");
	FILE *f = fdopen(fd, "r+");
	fprintf(f, "connect version=1 gid=%s qpn=%u psn=%u buffer=%p rkey=%u slots=%d reply=%d\n", own, me.qp->qp_num, PSN,
		(void *)me.buffer, me.mr->rkey, SLOTS, REPLY);
	fflush(f);
	if (!fgets(line, sizeof line, f) || strncmp(line, "connected ", 10))
		die(line);
	for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
		char *value = strchr(word, '=');
		if (!value)
			continue;
		*value++ = 0;
		uint64_t number = strtoull(value, NULL, 0);
		if (!strcmp(word, "gid"))
			snprintf(told.gid, sizeof told.gid, "%s", value);
		else if (!strcmp(word, "qpn"))
			told.qpn = number;
		else if (!strcmp(word, "psn"))
			told.psn = number;
		else if (!strcmp(word, "index"))
			told.index = number;
		else if (!strcmp(word, "buckets"))
			told.buckets = number;
		else if (!strcmp(word, "seed"))
			told.seed = number;
	}
	return told;
}

static void connect_to(const struct told *told, uint8_t gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = told->qpn,
		.rq_psn = told->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index } },
	};
	uint8_t *gid = attr.ah_attr.grh.dgid.raw;

	if (inet_pton(AF_INET, told->gid, gid + 12) == 1)
		gid[10] = gid[11] = 0xff;
	else if (inet_pton(AF_INET6, told->gid, gid) != 1)
		die("an address that is none");
	if (ibv_modify_qp(me.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = PSN, .max_rd_atomic = 1,
	};
	if (ibv_modify_qp(me.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

/* FNV-1a and the finalizer of MurmurHash3. */
static uint64_t hash_of(uint64_t seed, const char *key)
{
	uint64_t hash = seed ^ 0xcbf29ce484222325;

	for (; *key; key++)
		hash = (hash ^ (uint8_t)*key) * 0x00000100000001b3;
	hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccd;
	hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
	return hash ^ hash >> 33;
}

/* The finalizer of SplitMix64. */
static uint64_t mixed(uint64_t number)
{
	number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
	number = (number ^ number >> 27) * 0x94d049bb133111eb;
	return number ^ number >> 31;
}

static uint32_t crc32(const uint8_t *bytes, size_t len)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < len; i++) {
		crc ^= i >= 8 && i < 12 ? 0 : bytes[i]; /* its own field counts as zeros */
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

/* Sends a message; returns the reply's bytes and their number. */
static const uint8_t *ask(const uint8_t message[28], uint32_t *len)
{
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_sge piece = { .addr = (uintptr_t)message, .length = 28 };
	struct ibv_send_wr send = {
		.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
	}, *bad_send;
	time_t end = time(NULL) + LIMIT_S;

	if (ibv_post_recv(me.qp, &receive, &bad_receive) || ibv_post_send(me.qp, &send, &bad_send))
		die("posting");
	for (;;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(me.cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS))
			die(n < 0 ? "polling" : ibv_wc_status_str(wc.status));
		if (n && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			*len = wc.byte_len;
			return (uint8_t *)me.buffer + me.asked++ % SLOTS * REPLY;
		}
		if (time(NULL) > end)
			die("no reply");
	}
}

static void get(const struct told *told, const char *key)
{
	uint64_t hash = hash_of(told->seed, key), first = hash & (told->buckets - 1);
	uint64_t second = (first + 1 + mixed(hash) % (told->buckets - 1)) & (told->buckets - 1);
	uint64_t fingerprint = mixed(hash ^ 0x9e3779b97f4a7c15) >> 16, at[2] = { first, second };
	uint8_t message[28];
	int missed = 0;

	fingerprint += !fingerprint;
	for (int i = 0; i < 6; i++)
		message[i] = message[6 + i] = fingerprint >> 8 * i;
	for (int try = 0; try < TRIES && missed < 2; try++) {
		uint32_t len, keylen, valuelen, crc;
		/* What is missed in one order of the buckets may have been moved: the other order finds it. */
		for (int i = 0; i < 2; i++) {
			uint64_t bucket = told->index + 16 * at[i ^ (try & 1)];
			for (int byte = 0; byte < 8; byte++)
				message[12 + 8 * i + byte] = bucket >> (56 - 8 * byte);
		}
		const uint8_t *reply = ask(message, &len);
		if (len < 64) {
			missed++;
			continue;
		}
		memcpy(&crc, reply + 8, 4);
		keylen = reply[12] | reply[13] << 8;
		memcpy(&valuelen, reply + 16, 4);
		if (len > REPLY || crc != crc32(reply, len) || memcmp(reply, reply + len - 8, 8) || keylen != strlen(key) ||
		    memcmp(reply + 32, key, keylen) || valuelen < 8) {
			missed = 0; /* torn, or another key's */
			continue;
		}
		/* Flags and end, then the client's bytes. */
		printf("%s %.*s\n", key, (int)valuelen - 8, reply + 32 + keylen + 8);
		return;
	}
	printf("%s %s\n", key, missed < 2 ? "?" : "-");
}

int main(int argc, char **argv)
{
	int gid_index = 0;

	if (argc > 2 && !strcmp(argv[1], "-g")) {
		gid_index = atoi(argv[2]);
		argc -= 2;
		argv += 2;
	}
	if (argc < 5)
		die("redn_get [-g INDEX] HOST PORT ADDRESS KEY..");
	make_queue_pair();
	struct told told = set_up(argv[1], argv[2], argv[3]);
	connect_to(&told, gid_index);
	for (int i = 4; i < argc; i++)
		get(&told, argv[i]);
	return 0;
}
