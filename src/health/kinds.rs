//! The kinds of findings: one row each.

use super::{
    Case, Draft, Finding, FlowCase, Severity, congestion, limits, loss, packets, refused, waiting,
};
use Severity::{Error, Info, Warning};

/// A kind of finding.
#[derive(Debug)]
pub struct Kind {
    /// Its name, stable.
    pub id: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// How bad it usually is.
    pub severity: Severity,
    /// What it means, and what it takes to be reported.
    pub about: &'static str,
    /// What to do about it.
    pub hint: &'static str,
    pub(super) look: Look,
}

/// How a kind is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Look {
    /// In every flow that something happened to.
    Flows(fn(&Case<'_>, &FlowCase<'_>) -> Option<Draft>),
    /// In the capture as a whole.
    Whole(fn(&Case<'_>) -> Vec<Draft>),
}

impl Kind {
    /// The kind of this name.
    #[must_use]
    pub fn named(id: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.id == id)
    }

    pub(super) fn finding(&self, draft: Draft) -> Finding {
        Finding {
            id: self.id,
            severity: draft.severity.unwrap_or(self.severity),
            subject: draft.subject,
            summary: draft.summary,
            evidence: draft.evidence,
            hint: draft.hint.unwrap_or_else(|| self.hint.into()),
            cost_ns: draft.cost_ns,
        }
    }
}

macro_rules! kinds {
    ($($id:literal $title:literal $severity:ident $how:ident($look:path)
        about $about:literal hint $hint:literal)*) => {
        /// All kinds; of equal findings the one that stands first here comes
        /// first.
        pub static KINDS: &[Kind] = &[$(Kind {
            id: $id,
            title: $title,
            severity: $severity,
            about: $about,
            hint: $hint,
            look: Look::$how($look),
        }),*];
    };
}

kinds! {
    // Operations failed, or connections.
    "peer-vanished" "The peer no longer answers" Error Flows(waiting::peer_vanished)
        about "One request was sent again --retries times or more because time was up, and nothing \
               came back up to the end of the capture."
        hint "See whether the other host, its process and its port were alive then, and whether \
              its answers may have taken a way past the capture."

    "remote-access-error" "Memory access refused" Error Flows(refused::remote_access)
        about "The responder refused a request with a remote access error NAK: unknown rkey, \
               address outside the region, or no right to read, write or do atomics. The queue \
               pair is in error from then on."
        hint "Compare address, length and rkey with what the responder registered: a key that is \
              no longer valid, a region that is too short, or access flags that do not allow it."

    "invalid-request" "Invalid request refused" Error Flows(refused::invalid_request)
        about "The responder refused a request with an invalid request NAK (or one of an \
               unassigned code): an operation its queue pair does not allow, too many READs and \
               atomics at once, a SEND longer than the receive, or packets that contradict each \
               other."
        hint "Compare the queue pairs' settings on both ends: access flags, max_dest_rd_atomic, \
              path MTU, and the size of posted receives."

    "remote-operational-error" "The responder failed" Error Flows(refused::remote_operation)
        about "The responder could not carry out a request (remote operational error NAK): \
               something is wrong at its end, not with the request."
        hint "Look at the responder: kernel log, device errors, memory given back while it was in \
              use."

    "rkey-scan" "Many keys tried" Error Whole(refused::rkey_scan)
        about "One host had --scan or more distinct rkeys refused by another: somebody guesses \
               keys, or works with keys of another run."
        hint "See which program on the source sends these. If it is none of yours, keep UDP port \
              4791 from that host away."

    "cm-rejected" "Connection rejected" Error Whole(refused::cm_rejected)
        about "The communication manager answered a request for a connection with REJ."
        hint "Ask the log of the rejecting side."

    // Something is slower than it need be.
    "packet-loss" "Requests lost" Warning Flows(loss::requests)
        about "Requests were lost in the network: the responder sent sequence error NAKs, or a \
               hole in the sequence was filled by packets sent again. A requester goes back to \
               the lost packet and sends all that followed again, so one loss costs many packets."
        hint "Look for discards on the switches and adapters in between (ethtool -S, pause and \
              priority counters): RoCE wants a lossless class, with PFC or ECN set up on every hop."

    "read-response-loss" "READ responses lost" Warning Flows(loss::responses)
        about "READ responses were lost: a hole in them was filled by responses sent again, for \
               which the requester had to ask. Where they were lost past the capture, a READ \
               asked for again shows the first one lost, and the number is the least there were."
        hint "As with packet-loss, in the direction from the responder to the requester."

    "timeout" "Retransmission by timeout" Warning Flows(waiting::timeout)
        about "Packets were sent again with no NAK to ask for it: the requester waited for its \
               whole timeout in vain. What was lost is the last request of a burst, or its answer."
        hint "Look for loss as with packet-loss. A smaller local ACK timeout of the queue pair \
              makes each loss cheaper."

    "rnr" "Receiver not ready" Warning Flows(waiting::receiver_not_ready)
        about "The responder had no receive posted when a SEND or a WRITE with immediate came \
               (RNR NAK), and the requester had to wait. An error where it gave up."
        hint "Post more receives earlier on the receiving side, or use a shared receive queue; \
              min_rnr_timer there sets how long each wait is."

    "stall" "Silence while requests wait" Warning Flows(waiting::stall)
        about "Nothing passed for --stall or longer while a request waited for its answer, and \
               neither a retransmission nor an RNR NAK explains it."
        hint "See what the responder and the network did then: PFC pause, a busy host, a capture \
              with a hole in it."

    "congestion" "Senders told to slow down" Info Whole(congestion::notified)
        about "Congestion notification packets told a sender to slow down; a warning from \
               --cnp-rate a second on. Where there are 32 packets of data before the first and \
               after it, it says what the sender made of that: payload over the time in which the \
               connection was not silent for 10 ms, up to the first CNP, and from there to the \
               last one, or else to the end."
        hint "See where the queues build up: packets are marked there. Many senders to one \
              receiver, or a link slower than the adapters, are usual causes."

    "ce-without-cnp" "Congestion marks ignored" Warning Flows(congestion::unanswered)
        about "Switches marked packets (CE), the other direction is in the capture, and no CNP \
               came back: the sender never learns that it should slow down."
        hint "Switch congestion notification (DCQCN, RoCE ECN) on at the receiver; Soft-RoCE has \
              none."

    "duplicates" "Packets duplicated by the network" Warning Flows(packets::duplicates)
        about "The same packet came twice and nothing had asked for it again: the network made \
               copies that reached the responder."
        hint "Look for a loop, a bond or a bridge that sends out of two ports, or a tunnel that \
              copies."

    "reordering" "Packets out of order" Info Flows(loss::reordering)
        about "Requests or READ responses overtook each other, which nothing had asked for. A \
               warning where the responder took late packets for lost ones: then they, and all \
               that followed them, were sent again for nothing."
        hint "Look for a path that splits a flow over several links: per-packet load balancing, a \
              bond in round-robin mode. The UDP source port is there to keep a flow on one link."

    "icrc-invalid" "Packets corrupted" Warning Whole(packets::icrc)
        about "Some packets of a flow have a wrong invariant CRC and others a right one: they were \
               corrupted on the way, and every receiver throws them away."
        hint "Look for CRC and symbol errors on the cables and ports in between, then at the \
              memory of what stores and forwards."

    "ip-fragments" "IP fragments" Warning Whole(packets::fragments)
        about "RoCE packets were cut into IP fragments: adapters do not put them together."
        hint "The path MTU of the queue pairs, plus about 100 bytes, must fit the MTU of every \
              hop: 4200 for 4096, 1500 for 1024."

    "odd-mtu" "Packets that are not of the path MTU" Warning Flows(packets::odd_mtu)
        about "Packets in the middle of a message have another size than the path MTU that other \
               packets of the connection show. Responders refuse such requests."
        hint "This is a fault of the sender's adapter or driver, or of what rewrote the capture."

    "malformed" "Malformed packets" Warning Whole(packets::malformed)
        about "Lengths contradict the opcode, a header contradicts itself, or a WRITE, all packets \
               of which are in the capture, carries other bytes than its RETH names."
        hint "Look at them with packets -v -x. Corruption shows in the ICRC too; without that it \
              is the sender."

    "out-of-place" "Packets out of place" Warning Flows(packets::out_of_place)
        about "The order of First, Middle, Last and Only is broken although no packet is missing."
        hint "This is a fault of the sender, or of a capture whose packets were put in another \
              order."

    "qp-scan" "Many queue pairs tried" Warning Whole(refused::qp_scan)
        about "One host sent a few requests each to --scan or more queue pairs of another, which \
               answered others and none of these."
        hint "See which program on the source sends these: one that guesses, or one that goes on \
              with queue pairs that are no more."

    // Harmless, or a limit of the capture.
    "ack-loss" "ACKs lost without harm" Info Flows(loss::acks)
        about "Requests that asked for an ACK of their own, and usually get one on this flow, were \
               covered by a later one: theirs was lost. Nothing had to be sent again."
        hint "Harmless as it is; where ACKs are lost, requests may be, too."

    "sent-again" "Sent again for an unknown reason" Info Flows(loss::unexplained)
        about "Requests were sent again, and neither a NAK nor a silence in the capture says why: \
               the answers are not in it, or went past it."
        hint "Capture both directions at the requester's end. What was lost cannot be told from \
              this."

    "mixed-dscp" "Several DSCPs in one flow" Info Flows(packets::dscp)
        about "Packets of one flow carry different DSCPs, so that switches treat them differently."
        hint "Let all traffic of a queue pair use one traffic class, or it may be reordered and \
              miss the lossless class."

    "mixed-priority" "Several VLAN priorities in one flow" Info Flows(packets::priority)
        about "Packets of one flow carry different priorities in their VLAN tags, so that switches \
               put them into different queues."
        hint "Let all traffic of a queue pair use one priority, or it may be reordered and miss \
              the lossless one."

    "mtu-differs" "Path MTU differs by direction" Info Flows(packets::mtu_differs)
        about "The packets of one direction of a connection are of another path MTU than those of \
               the other."
        hint "Allowed, and mostly a mistake: set the same path MTU on both ends."

    "icrc-rewritten" "Packets rewritten on the way" Info Flows(packets::rewritten)
        about "Every ICRC of a flow is wrong: addresses or the IP identification were rewritten \
               (NAT, an anonymiser). Corruption does not hit every packet."
        hint "If the capture was not anonymised afterwards, receivers throw all of it away: RoCE \
              cannot pass address translation."

    "cnp-without-ce" "CNPs without marks" Info Whole(congestion::unmarked)
        about "A sender was told to slow down, and none of its packets carries a congestion mark \
               where the capture was taken."
        hint "The marks are put on between here and the receiver: congestion is there."

    "capture-loss" "The capture missed packets" Info Whole(limits::capture_loss)
        about "The responder acknowledged requests that are not in the capture and were not sent \
               again: the capture lost them, the network did not."
        hint "Capture less of each packet (--snaplen), with a larger buffer, or on a faster \
              machine. Counts of this capture are lower bounds."

    "capture-drops" "The capturing program dropped packets" Info Whole(limits::drops)
        about "The program or kernel that captured says itself that it dropped packets."
        hint "Capture with a larger buffer, a smaller snap length or a narrower filter. Whatever \
              is found missing may have been dropped here."

    "one-way-capture" "One direction only" Info Whole(limits::one_way)
        about "One host's requests are in the capture and not one of the answers, or answers and \
               none of the requests."
        hint "Capture where both directions pass, or mirror both. Loss and latency cannot be told \
              from one."

    "truncated" "Packets cut short" Info Whole(limits::truncated)
        about "The capture kept too little of packets to check their ICRC."
        hint "Capture whole packets (tcpdump -s 0) where corruption is suspected."

    "mirror-duplicates" "Packets captured twice" Info Whole(packets::mirror_duplicates)
        about "Copies byte for byte, shortly one after the other, that nobody answered: the mirror \
               port or several capture points made them, not the network."
        hint "Mirror one direction of each port, or take out one of the capture points."

    "qp-reused" "A queue pair number used again" Info Flows(limits::reused)
        about "A new connection took over a queue pair number of an earlier one; both are told \
               apart."
        hint "Nothing to do."

    "unfinished" "Messages not complete" Info Whole(limits::unfinished)
        about "Messages lack packets or their answer: they were under way when the capture began \
               or ended, or the capture missed some."
        hint "Their latencies are not known; nothing else follows from it."

    "flows-evicted" "More flows than are kept" Info Whole(limits::evicted)
        about "There were more flows at once than are kept, and those that were quiet longest were \
               forgotten."
        hint "Keep more with --max-flows, or look at a part of the capture: findings about the \
              forgotten flows may be missing."
}
