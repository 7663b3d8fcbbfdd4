// Makes RDMA traffic of exactly known kind between two devices of one machine, and prints what it did as JSON
// lines: both queue pairs first, then each operation as it completed.
//
// perftest chooses its own PSNs, never names a wrong key and posts its receives in time; the captures in
// fixtures/ need all of these otherwise. The responder is a process of its own, so that it can be killed.
//
//   traffic [--client DEV] [--server DEV] [--op NAME,...] [--size BYTES] [--count N] [--depth N] ...
//
//   --op        write, write-imm, send, send-imm, read, fetch-add, cmp-swap: taken in turn
//   --depth     operations outstanding at once; the first always goes alone
//   --mtu       path MTU in bytes
//   --client-psn, --server-psn   what each side's first packet is numbered
//   --rkey, --offset   the key to use in place of the right one; where in the server's memory to begin
//   --timeout, --retry, --rnr-retry, --rnr-timer   as ibv_modify_qp encodes them
//   --receives N, --late-ms T    the server posts only N receives, and once the first operation is complete one more
//               every T milliseconds
//   --gap-us    pause after each completion
//   --then COMMAND      run by the shell once the first operation is complete: a fault to begin here
//   --kill-after N      the server is killed once N operations are complete
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

enum { REGION = 1 << 20, ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
       IBV_ACCESS_REMOTE_ATOMIC };

static struct {
  const char *client, *server, *ops, *then;
  unsigned size, count, depth, mtu, client_psn, server_psn, timeout, retry, rnr_retry, rnr_timer;
  unsigned receives, late_ms, gap_us, kill_after;
  unsigned long rkey, offset;
  int wrong_key;
} opt = {.client = "rxe1", .server = "rxe0", .ops = "write", .size = 1000, .count = 10, .depth = 4, .mtu = 1024,
         .client_psn = 0x100000, .server_psn = 0x200000, .timeout = 14, .retry = 6, .rnr_retry = 7, .rnr_timer = 12,
         .receives = -1U};

// What one side tells the other, over a socket pair.
struct end {
  union ibv_gid gid;
  uint64_t va;
  uint32_t qpn, psn, rkey;
};

struct side {
  struct ibv_context *context;
  struct ibv_mr *mr;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  unsigned char *memory;
  int gid_index;
  struct end self, peer;
};

static const struct kind {
  const char *name;
  enum ibv_wr_opcode opcode;
  int takes_receive;
} kinds[] = {
    {"write", IBV_WR_RDMA_WRITE, 0},     {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM, 1},
    {"send", IBV_WR_SEND, 1},            {"send-imm", IBV_WR_SEND_WITH_IMM, 1},
    {"read", IBV_WR_RDMA_READ, 0},       {"fetch-add", IBV_WR_ATOMIC_FETCH_AND_ADD, 0},
    {"cmp-swap", IBV_WR_ATOMIC_CMP_AND_SWP, 0},
};

static const struct kind *plan[16];
static unsigned planned;

static void fail(const char *what) {
  fprintf(stderr, "traffic: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void check(int failed, const char *what) {
  if (failed) fail(what);
}

static void parse_ops(void) {
  char *text = strdup(opt.ops);
  for (char *name = strtok(text, ","); name; name = strtok(NULL, ",")) {
    const struct kind *found = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      if (!strcmp(name, kinds[i].name)) found = &kinds[i];
    errno = EINVAL;
    check(!found || planned == sizeof plan / sizeof *plan, name);
    plan[planned++] = found;
  }
  free(text);
}

static void parse(int argc, char **argv) {
  static const struct {
    const char *name;
    unsigned *number;
    const char **text;
  } known[] = {
      {"client", NULL, &opt.client},         {"server", NULL, &opt.server},
      {"op", NULL, &opt.ops},                {"then", NULL, &opt.then},
      {"size", &opt.size, NULL},             {"count", &opt.count, NULL},
      {"depth", &opt.depth, NULL},           {"mtu", &opt.mtu, NULL},
      {"client-psn", &opt.client_psn, NULL}, {"server-psn", &opt.server_psn, NULL},
      {"timeout", &opt.timeout, NULL},       {"retry", &opt.retry, NULL},
      {"rnr-retry", &opt.rnr_retry, NULL},   {"rnr-timer", &opt.rnr_timer, NULL},
      {"receives", &opt.receives, NULL},     {"late-ms", &opt.late_ms, NULL},
      {"gap-us", &opt.gap_us, NULL},         {"kill-after", &opt.kill_after, NULL},
      {"rkey", NULL, NULL},                  {"offset", NULL, NULL},
  };
  enum { KNOWN = sizeof known / sizeof *known, RKEY = KNOWN - 2 };
  struct option options[KNOWN + 1] = {{0}};
  for (int i = 0; i < KNOWN; i++) options[i] = (struct option){known[i].name, required_argument, NULL, 0};
  for (int index, c; (c = getopt_long(argc, argv, "", options, &index)) != -1;) {
    if (c) exit(2);
    if (known[index].number) *known[index].number = strtoul(optarg, NULL, 0);
    else if (known[index].text) *known[index].text = optarg;
    else if (index == RKEY) opt.rkey = strtoul(optarg, NULL, 0), opt.wrong_key = 1;
    else opt.offset = strtoul(optarg, NULL, 0);
  }
  parse_ops();
}

// The GID by which an IPv4 address speaks RoCE v2: the link-local one comes first and leads nowhere.
static int find_gid(struct ibv_context *context, union ibv_gid *gid) {
  for (int i = 0; i < 16; i++) {
    struct ibv_gid_entry entry;
    if (ibv_query_gid_ex(context, 1, i, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    if (entry.gid.global.subnet_prefix || entry.gid.raw[10] != 0xff) continue;
    *gid = entry.gid;
    return i;
  }
  errno = ENODEV;
  fail("no RoCE v2 GID of an IPv4 address");
  return -1;
}

static void open_side(struct side *side, const char *name, unsigned psn) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  for (struct ibv_device **d = list; list && *d; d++)
    if (!strcmp(ibv_get_device_name(*d), name)) side->context = ibv_open_device(*d);
  check(!side->context, name);
  side->gid_index = find_gid(side->context, &side->self.gid);
  check(posix_memalign((void **)&side->memory, 4096, REGION), "memory");
  for (size_t i = 0; i < REGION; i++) side->memory[i] = i * 7 + (i >> 8);
  struct ibv_pd *pd = ibv_alloc_pd(side->context);
  check(!pd, "ibv_alloc_pd");
  check(!(side->mr = ibv_reg_mr(pd, side->memory, REGION, ALL_ACCESS)), "ibv_reg_mr");
  check(!(side->cq = ibv_create_cq(side->context, opt.count + 16, NULL, NULL, 0)), "ibv_create_cq");
  struct ibv_qp_init_attr init = {
      .send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
      .cap = {.max_send_wr = opt.depth + 1, .max_recv_wr = opt.count + 1, .max_send_sge = 1, .max_recv_sge = 1}};
  check(!(side->qp = ibv_create_qp(pd, &init)), "ibv_create_qp");
  side->self.va = (uintptr_t)side->memory;
  side->self.qpn = side->qp->qp_num;
  side->self.psn = psn;
  side->self.rkey = side->mr->rkey;
}

static void connect_side(struct side *side, int wire) {
  check(write(wire, &side->self, sizeof side->self) != sizeof side->self, "tell the peer");
  check(read(wire, &side->peer, sizeof side->peer) != sizeof side->peer, "hear the peer");
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS};
  check(ibv_modify_qp(side->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
  enum ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && 128U << mtu < opt.mtu) mtu++;
  struct ibv_qp_attr rtr = {
      .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = side->peer.qpn, .rq_psn = side->peer.psn,
      .max_dest_rd_atomic = 8, .min_rnr_timer = opt.rnr_timer,
      .ah_attr = {.is_global = 1, .port_num = 1,
                  .grh = {.dgid = side->peer.gid, .sgid_index = side->gid_index, .hop_limit = 64}}};
  check(ibv_modify_qp(side->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
  struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = side->self.psn, .max_rd_atomic = 8,
                            .timeout = opt.timeout, .retry_cnt = opt.retry, .rnr_retry = opt.rnr_retry};
  check(ibv_modify_qp(side->qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                                          IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

static void post_receive(struct side *side) {
  struct ibv_sge sge = {.addr = side->self.va, .length = REGION, .lkey = side->mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  check(ibv_post_recv(side->qp, &wr, &bad), "ibv_post_recv");
}

// Posts receives as it was told to; everything else on this side the driver does. Ends when the client hangs up.
static void serve(int wire) {
  struct side side = {0};
  unsigned needed = 0, posted = 0;
  for (unsigned i = 0; i < opt.count; i++) needed += plan[i % planned]->takes_receive;
  open_side(&side, opt.server, opt.server_psn);
  connect_side(&side, wire);
  for (; posted < needed && posted < opt.receives; posted++) post_receive(&side);
  check(write(wire, "r", 1) != 1, "say ready");
  struct pollfd word = {.fd = wire, .events = POLLIN};
  for (int wait = -1, got;; ) {
    check((got = poll(&word, 1, posted < needed ? wait : -1)) < 0, "poll");
    char go;
    if (got && read(wire, &go, 1) != 1) break;
    if (got) wait = (int)opt.late_ms;
    else post_receive(&side), posted++;
  }
  exit(0);
}

static void print_end(const char *which, const struct end *end) {
  printf("{\"side\": \"%s\", \"qpn\": \"0x%04x\", \"psn\": \"0x%06x\", \"rkey\": \"0x%06x\", \"va\": \"0x%014lx\"}\n",
         which, end->qpn, end->psn, end->rkey, (unsigned long)end->va);
}

// The N-th operation, at its own place in the server's memory, printed as posted.
static void post(struct side *side, unsigned n) {
  const struct kind *kind = plan[n % planned];
  int atomic = kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || kind->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  unsigned size = atomic ? 8 : opt.size;
  uint64_t place = (uint64_t)n * ((size + 7) & ~7U) % (REGION - size - 7) & ~7ULL;
  uint64_t va = side->peer.va + opt.offset + place;
  uint32_t rkey = opt.wrong_key ? opt.rkey : side->peer.rkey;
  struct ibv_sge sge = {.addr = side->self.va, .length = size, .lkey = side->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = kind->opcode,
                           .imm_data = htobe32(0x1000 + n)}, *bad;
  if (atomic) {
    wr.wr.atomic.remote_addr = va;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = n + 1;
    wr.wr.atomic.swap = 0x5555000000000000 + n;
  } else {
    wr.wr.rdma.remote_addr = va;
    wr.wr.rdma.rkey = rkey;
  }
  printf("{\"posted\": %u, \"op\": \"%s\", \"size\": %u", n, kind->name, size);
  if (kind->opcode != IBV_WR_SEND && kind->opcode != IBV_WR_SEND_WITH_IMM)
    printf(", \"rkey\": \"0x%06x\", \"va\": \"0x%014lx\"", rkey, (unsigned long)va);
  printf("}\n");
  check(ibv_post_send(side->qp, &wr, &bad), "ibv_post_send");
}

static void request(int wire, pid_t server) {
  struct side side = {0};
  char ready;
  // The two processes' memory would else be at the same address, and a mix-up of the sides not be noticed.
  check(!malloc(3 * REGION), "malloc");
  open_side(&side, opt.client, opt.client_psn);
  connect_side(&side, wire);
  check(read(wire, &ready, 1) != 1, "wait for the server");
  print_end("server", &side.peer);
  print_end("client", &side.self);
  for (unsigned posted = 0, completed = 0; completed < opt.count;) {
    for (unsigned most = completed ? completed + opt.depth : 1; posted < opt.count && posted < most; posted++)
      post(&side, posted);
    struct ibv_wc wc;
    int got = ibv_poll_cq(side.cq, 1, &wc);
    check(got < 0, "ibv_poll_cq");
    if (!got) {
      // Two processors, emulated, and the driver's work is done on them too.
      usleep(50);
      continue;
    }
    printf("{\"completed\": %u, \"status\": %d, \"text\": \"%s\"}\n", (unsigned)wc.wr_id, wc.status,
           ibv_wc_status_str(wc.status));
    if (wc.status) break;
    completed++;
    if (completed == 1 && opt.then) check(system(opt.then), opt.then);
    if (completed == 1) check(write(wire, "g", 1) != 1, "let the server begin to be late");
    if (completed == opt.kill_after) check(kill(server, SIGKILL) || waitpid(server, NULL, 0) < 0, "kill");
    if (opt.gap_us) usleep(opt.gap_us);
  }
}

int main(int argc, char **argv) {
  int wires[2];
  parse(argc, argv);
  alarm(120);
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, wires), "socketpair");
  pid_t server = fork();
  check(server < 0, "fork");
  if (!server) {
    close(wires[0]);
    serve(wires[1]);
  }
  close(wires[1]);
  request(wires[0], server);
  // The last answer may be on its way, and a driver that loses its queue pair sends no more.
  usleep(100000);
  fflush(stdout);
  close(wires[0]);
  waitpid(server, NULL, 0);
  return 0;
}
