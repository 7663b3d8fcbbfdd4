// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
//
// Copies every packet that the Soft-RoCE driver receives into a ring buffer,
// whether it came over a netdev or round the driver's own loop: both pass
// rxe_rcv() (drivers/infiniband/sw/rxe/rxe_recv.c).
//
// Loaded by mod.rs beside it, which sets the constants and reads the maps.
// The layout of struct record and struct counts is known there too.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

// The declarations that libbpf's headers take from vmlinux.h are few enough
// to stand here: names and types only, the running kernel's BTF has the places.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net_device {
	int ifindex;
};
struct sk_buff {
	struct net_device *dev;
	unsigned int len;
	unsigned int data_len;
	__u16 transport_header;
	__u16 network_header;
	__u16 mac_header;
	unsigned char *head;
	unsigned char *data;
};
#pragma clang attribute pop

// What a record is.
#define LOOPED 1 // never had a link-layer header: it crossed no netdev
#define PAGED 2 // part of it lies in pages, which are not read

struct record {
	__u64 ktime_ns; // CLOCK_MONOTONIC
	__u32 len; // from the IP header to the end
	__u32 caplen; // bytes that follow
	__u32 ifindex; // of the netdev under the RDMA device
	__u16 cpu;
	__u16 flags;
	__u8 bytes[];
};

// Packets of one netdev on one CPU. What was handed on is the rest.
struct counts {
	__u64 seen;
	__u64 filtered;
	__u64 lost;
	__u64 looped;
};

// Set before loading; the verifier leaves out what is not asked for.
const volatile __u32 snaplen = 4224;
const volatile __u32 only_ifindex = 0; // 0: every one
const volatile __u32 only_qp = ~0U; // ~0: every one
const volatile __u32 only_looped = 0;
const volatile __u32 wake_at = 1 << 20; // bytes in the ring that wake the reader

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

// Key of the counts where no netdev is known or the map is full.
#define NO_NETDEV 0

static __always_inline struct counts *counts_of(__u32 ifindex)
{
	struct counts *counts = bpf_map_lookup_elem(&counters, &ifindex);
	if (counts)
		return counts;
	struct counts none = {};
	bpf_map_update_elem(&counters, &ifindex, &none, BPF_NOEXIST);
	counts = bpf_map_lookup_elem(&counters, &ifindex);
	if (counts)
		return counts;
	__u32 other = NO_NETDEV; // put there by the loader
	return bpf_map_lookup_elem(&counters, &other);
}

// A packet on its way into the ring.
struct packet {
	const unsigned char *start;
	__u32 len;
	__u32 take;
	__u32 ifindex;
	__u16 flags;
};

// The ring takes only sizes known beforehand, so there are a few: for an ACK,
// for a small message, and for a full packet of each path MTU. That wastes
// some of the ring, and saves a second copy of every byte, which
// bpf_ringbuf_output() from a buffer a CPU would cost; nor is there a buffer
// that a nested interrupt could overwrite.
#define RECORD(SIZE) \
static __always_inline int record_##SIZE(const struct packet *p, __u64 wake) \
{ \
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r) + SIZE, 0); \
	if (!r) \
		return -1; \
	/* The verifier follows bounds of whole registers, and the compiler must \
	   not know that this one has been checked already. */ \
	__u64 take = p->take; \
	asm volatile("" : "+r"(take)); \
	if (take > SIZE) \
		take = SIZE; \
	r->ktime_ns = bpf_ktime_get_ns(); \
	r->len = p->len; \
	r->ifindex = p->ifindex; \
	r->cpu = bpf_get_smp_processor_id(); \
	r->flags = p->flags; \
	r->caplen = bpf_probe_read_kernel(r->bytes, take, p->start) ? 0 : take; \
	bpf_ringbuf_submit(r, wake); \
	return 0; \
}
RECORD(88)
RECORD(216)
RECORD(600)
RECORD(1128)
RECORD(2152)
RECORD(4224)

SEC("kprobe/rxe_rcv")
int tap(struct pt_regs *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)PT_REGS_PARM1(ctx);
	struct packet p = {};

	struct net_device *dev = BPF_CORE_READ(skb, dev);
	if (dev)
		p.ifindex = BPF_CORE_READ(dev, ifindex);
	struct counts *counts = counts_of(p.ifindex);
	if (!counts)
		return 0; // cannot be: the loader put one there
	counts->seen++;

	// (u16)~0 stands for "not set" (skb_mac_header_was_set).
	if (BPF_CORE_READ(skb, mac_header) == (__u16)~0) {
		p.flags |= LOOPED;
		counts->looped++;
	}
	if ((only_ifindex && p.ifindex != only_ifindex) ||
	    (only_looped && !(p.flags & LOOPED))) {
		counts->filtered++;
		return 0;
	}
	const unsigned char *head = BPF_CORE_READ(skb, head);
	if (only_qp != ~0U) {
		__be32 word = 0; // reserved byte and destination QP of the BTH
		__u16 udp = BPF_CORE_READ(skb, transport_header);
		bpf_probe_read_kernel(&word, sizeof(word), head + udp + 8 + 4);
		if ((bpf_ntohl(word) & 0xffffff) != only_qp) {
			counts->filtered++;
			return 0;
		}
	}

	// skb->data has moved past headers, how many depends on the version.
	p.start = head + BPF_CORE_READ(skb, network_header);
	__u32 pulled = BPF_CORE_READ(skb, data) - p.start;
	__u32 paged = BPF_CORE_READ(skb, data_len);
	p.len = pulled + BPF_CORE_READ(skb, len);
	p.take = p.len;
	// The driver linearises what a netdev hands it, before this place; pages
	// have no address that all kernels would agree on.
	if (paged && paged <= p.take) {
		p.flags |= PAGED;
		p.take -= paged;
	}
	if (p.take > snaplen)
		p.take = snaplen;

	// The reader looks often enough by itself; waking it a packet would cost
	// more than the copy.
	__u64 wake = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= wake_at ?
		BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	int lost;
	if (p.take <= 88)
		lost = record_88(&p, wake);
	else if (p.take <= 216)
		lost = record_216(&p, wake);
	else if (p.take <= 600)
		lost = record_600(&p, wake);
	else if (p.take <= 1128)
		lost = record_1128(&p, wake);
	else if (p.take <= 2152)
		lost = record_2152(&p, wake);
	else
		lost = record_4224(&p, wake);
	if (lost)
		counts->lost++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
