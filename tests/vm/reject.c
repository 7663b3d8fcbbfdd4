// Listens for one RDMA-CM connection and rejects it as a consumer does, with a word of why.
//   reject ADDRESS PORT
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int failed, const char *what) {
  if (!failed) return;
  perror(what);
  exit(1);
}

int main(int argc, char **argv) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  struct rdma_cm_id *listener;
  struct rdma_cm_event *event;
  const char why[] = "not today";
  check(argc != 3 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1, "usage: reject ADDRESS PORT");
  address.sin_port = htons(atoi(argv[2]));
  struct rdma_event_channel *channel = rdma_create_event_channel();
  check(!channel, "rdma_create_event_channel");
  check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
  check(rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
  check(rdma_listen(listener, 1), "rdma_listen");
  check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
  printf("%s, rejecting\n", rdma_event_str(event->event));
  check(event->event != RDMA_CM_EVENT_CONNECT_REQUEST, "not a connection request");
  check(rdma_reject(event->id, why, sizeof why - 1), "rdma_reject");
  check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
  return 0;
}
