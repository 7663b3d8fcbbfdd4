//! `--iface IF --write`: a writer drives RDMA operations while a listener
//! watches the netdev; the two are held against each other.

use std::{
    fs::File,
    io::Write as _,
    net::Ipv6Addr,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use roce_sniff::{
    Options,
    bypass::{
        Control, CounterDelta, DriverKind, Evidence, Listening, Matcher, Seen, Tapped, Verdict,
        judge,
    },
    decode,
    frame::FrameOptions,
    host::Host,
    lab::SetupRxe,
    rdma::{
        ledger::{Ledger, Op},
        sysfs::{Counters, Device, Family, GidWish, Sysfs, choose_gid},
        verbs::{Plan, Remote, Session, Target},
    },
    report::{Counted, Interface, PcapngWriter, WriteDocument, print_write, print_write_plan},
    source::{
        Heard, LinkType, Listener, LiveCounters, LiveOptions, OwnedPacket, PacketPath, RawPacket,
        TapHeard,
    },
    track::Record,
};

#[cfg(feature = "tap")]
use roce_sniff::source::tap::TapListener;

use super::{
    Outcome,
    args::{Format, duration},
    complain, device, interrupt,
    output::Output,
    packets::PacketsArgs,
};

/// Options of `packets` that mean something of their own in a write run.
pub const OPTIONS: [(&str, &str); 3] = [
    (
        "count",
        "Capture this many frames; with --write post this many operations (10)",
    ),
    (
        "op",
        "Operation: send, write, read, ack, atomic, flush, cnp, unknown; with --write the one to \
         drive: write, write-imm, send, read, fetch-add, cmp-swap",
    ),
    (
        "cm",
        "Connection management messages only; with --write connect through the RDMA connection \
         manager",
    ),
];

/// Arguments of a write run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Write run (--write; needs --iface)")]
pub struct WriteArgs {
    /// Drive RDMA operations and tell what of them crossed the netdev
    #[arg(long, requires = "iface", conflicts_with_all = [
        "limit", "verbose", "hex", "qp", "host", "psn", "nak", "bpf", "duration", "promisc", "tunnels",
    ])]
    pub write: bool,

    /// RDMA device; by default the one on the netdev
    #[arg(long, value_name = "DEVICE", requires = "write")]
    dev: Option<String>,

    /// Write to a queue pair on this second RDMA device of this machine
    #[arg(long, value_name = "DEVICE", requires = "write")]
    peer_dev: Option<String>,

    /// Write to `roce-sniff responder` on another host; port 14791 by default
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        requires = "write",
        conflicts_with = "peer_dev"
    )]
    peer: Option<String>,

    /// Bytes of each operation (atomics: always 8)
    #[arg(long, value_name = "BYTES", default_value_t = 64, requires = "write")]
    size: u32,

    /// Operations in flight at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "write")]
    depth: u32,

    /// Time between operations, as 10ms
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s", requires = "write")]
    interval: Duration,

    /// Path MTU in bytes; by default the port's
    #[arg(long, value_name = "BYTES", requires = "write")]
    mtu: Option<u32>,

    /// Index of the source GID; by default the RoCE v2 one of the netdev's
    /// address
    #[arg(long, value_name = "N", requires = "write")]
    gid_index: Option<u8>,

    /// Address family of the source GID
    #[arg(long, value_name = "4|6", value_parser = family, requires = "write")]
    gid_family: Option<Family>,

    /// Give up when no operation completes for this long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s", requires = "write")]
    timeout: Duration,

    /// Send no control frame; silence of the listener then proves nothing
    #[arg(long, requires = "write")]
    no_control: bool,

    /// Set up Soft-RoCE on the netdev first, and remove it afterwards
    #[arg(long, requires = "write", conflicts_with = "dev")]
    setup_rxe: bool,

    /// Exit with status 1 unless this is the verdict: never-sent,
    /// loopback-bypassed, on-the-wire, partly-captured, failed, inconclusive
    #[arg(long, value_name = "VERDICT", value_parser = verdict, requires = "write")]
    expect: Option<Verdict>,
}

fn family(text: &str) -> Result<Family, String> {
    match text {
        "4" => Ok(Family::V4),
        "6" => Ok(Family::V6),
        _ => Err("not 4 or 6".into()),
    }
}

fn verdict(text: &str) -> Result<Verdict, String> {
    let all = [
        Verdict::NeverSent,
        Verdict::LoopbackBypassed,
        Verdict::OnTheWire,
        Verdict::PartlyCaptured,
        Verdict::Failed,
        Verdict::Inconclusive,
    ];
    all.into_iter()
        .find(|verdict| verdict.word() == text)
        .ok_or_else(|| {
            let words: Vec<_> = all.iter().map(|verdict| verdict.word()).collect();
            format!("not one of {}", words.join(", "))
        })
}

/// Runs the writer and prints what became of its operations.
pub fn run(args: &WriteArgs, packets: &PacketsArgs) -> anyhow::Result<Outcome> {
    let output = &packets.output;
    if packets.live.takes_stdout() {
        bail!("-w -: with --write standard output carries the report; name a file");
    }
    let iface = packets
        .live
        .iface
        .as_deref()
        .context("--write needs --iface")?;
    if output.format == Format::Csv {
        bail!("--write prints a table or --format json");
    }
    let sysfs = Sysfs::default();
    if sysfs.netdev(iface).is_none() {
        bail!(
            "{iface}: no such netdev; there are: {}",
            sysfs.netdevs().join(", ")
        );
    }
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::sets(&stop)?;
    // Removed when the run ends, however it ends.
    let _setup = if args.setup_rxe {
        Some(SetupRxe::new(Host::default(), iface)?)
    } else {
        None
    };
    let run = Run::new(args, packets, iface, &sysfs)?;
    let mut out = Output::open(output, &[], false)?;
    let table = output.format == Format::Table;

    let tap = tap(packets, &sysfs)?;
    // The listener first, and proven, so that its silence means something.
    let mut listener = Listener::start(iface, packets.input.port, !args.no_control)?;
    listener.prove(PROOF);
    let (ledger, before) = match Session::prepare(&run.plan) {
        Ok(mut session) => {
            if table {
                let plan = &run.plan;
                print_write_plan(&mut out, session.endpoint(), plan.op, plan.count, plan.size)?;
                out.flush()?;
            }
            let before = run.counters(&sysfs);
            (session.run(&stop), before)
        }
        // A queue pair that cannot be connected never sends: that is a verdict.
        // Everything before is a reason not to run.
        Err(error) if error.step.connects() => (error.ledger(&run.plan), run.counters(&sysfs)),
        Err(error) => return Err(error.into()),
    };
    let after = run.counters(&sysfs);
    let tapped = tap.map(TapListener::finish);
    let heard = listener.finish(PROOF);
    let saved = packets
        .live
        .save
        .as_deref()
        .map(|path| save(path, &heard, tapped.as_ref(), packets));
    let evidence = run.evidence(ledger, &before, &after, heard, tapped.as_ref());
    let judgement = judge(&evidence);
    if table {
        let (style, width) = (out.style, out.width);
        print_write(&mut out, style, &evidence, &judgement, width)?;
    } else {
        // At once: thousands of operations would be as many writes a field.
        let mut text = serde_json::to_vec_pretty(&WriteDocument::new(&evidence, &judgement))?;
        text.push(b'\n');
        out.write_all(&text)?;
    }
    out.flush()?;
    // Said last, so that a full disk does not cost the verdict.
    saved.transpose()?;
    Ok(match args.expect {
        Some(expected) if expected != judgement.verdict => {
            let (expected, found) = (expected.word(), judgement.verdict.word());
            complain(&format!("expected {expected}, and the verdict is {found}"));
            Outcome::NotAsExpected
        }
        _ => Outcome::Done,
    })
}

/// The tap, where it is asked for.
#[cfg(feature = "tap")]
fn tap(packets: &PacketsArgs, sysfs: &Sysfs) -> anyhow::Result<Option<TapListener>> {
    if !packets.tap.tap {
        return Ok(None);
    }
    let options = packets.tap.options(sysfs)?;
    Ok(Some(TapListener::start(&options)?))
}

#[cfg(not(feature = "tap"))]
fn tap(packets: &PacketsArgs, _: &Sysfs) -> anyhow::Result<Option<TapListener>> {
    anyhow::ensure!(!packets.tap.tap, super::tap::NO_TAP);
    Ok(None)
}

/// Stands for what cannot be.
#[cfg(not(feature = "tap"))]
enum TapListener {}

#[cfg(not(feature = "tap"))]
impl TapListener {
    fn finish(self) -> TapHeard {
        match self {}
    }
}

/// Writes what the listener heard, control frames left out, and what was
/// tapped.
fn save(
    path: &Path,
    heard: &Heard,
    tapped: Option<&TapHeard>,
    args: &PacketsArgs,
) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let port = args.input.port;
        let mut interfaces = vec![Interface {
            name: heard.netdev.clone(),
            link: heard.packets.first().map_or(LinkType::ETHERNET, |p| p.link),
            snaplen: LiveOptions::SNAPLEN,
            filter: Some(format!("udp dst port {port} (roce-sniff --write)")),
        }];
        let taps = tapped.iter().flat_map(|tapped| &tapped.names);
        interfaces.extend(taps.map(|name| Interface {
            name: name.clone(),
            link: LinkType::RAW,
            snaplen: args.tap.tap_snaplen,
            filter: None,
        }));
        let mut file = PcapngWriter::new(File::create(path)?, &interfaces)?;
        let tapped_packets = tapped.iter().flat_map(|tapped| &tapped.packets);
        let mut packets: Vec<_> = heard.packets.iter().map(OwnedPacket::raw).collect();
        packets.extend(tapped_packets.map(|packet| RawPacket {
            input: packet.input + 1,
            ..packet.raw()
        }));
        packets.sort_by_key(|packet| packet.ts_ns);
        for packet in &packets {
            file.packet(packet)?;
        }
        let mut counted = vec![LiveCounters {
            received: heard.received,
            dropped: heard.kernel_dropped,
            ..LiveCounters::default()
        }];
        let taps = tapped.iter().flat_map(|tapped| &tapped.counters);
        counted.extend(taps.map(|tap| LiveCounters {
            received: tap.seen.saturating_sub(tap.filtered),
            dropped: tap.lost,
            ..LiveCounters::default()
        }));
        for (number, counters) in (0..).zip(counted) {
            let delivered = packets.iter().filter(|p| u32::from(p.input) == number);
            let counted = Counted {
                counters,
                delivered: delivered.count() as u64,
                ..Counted::default()
            };
            file.statistics(number, &counted)?;
        }
        Ok(())
    };
    write().with_context(|| format!("{}: cannot write", path.display()))
}

/// How long a control frame may take to be heard.
const PROOF: Duration = Duration::from_secs(2);

/// What a run needs to know besides its plan.
struct Run {
    plan: Plan,
    device: Device,
    /// Device and port whose counters are read besides the writer's.
    peer: Option<(String, u8)>,
    /// Addresses of the writer's own device.
    own: Vec<Ipv6Addr>,
    decode: Options,
}

impl Run {
    fn new(
        args: &WriteArgs,
        packets: &PacketsArgs,
        iface: &str,
        sysfs: &Sysfs,
    ) -> anyhow::Result<Self> {
        let (device, port) = match &args.dev {
            Some(name) => device::named(name, sysfs)?,
            None => device::on_netdev(iface, sysfs, ", or for this run only with --setup-rxe")?,
        };
        let wish = GidWish {
            index: args.gid_index,
            family: args.gid_family,
        };
        let table = device.port(port).context("the port has vanished")?;
        // With --dev the device may well be on another netdev than the one
        // listened on.
        let netdev = args.dev.is_none().then_some(iface);
        let gid = choose_gid(table, netdev, wish).with_context(|| device.name.clone())?;
        let (target, peer) = target(args, packets.filter.cm, &device.name, sysfs)?;
        let own = table.gids.iter().map(|gid| gid.gid).collect();
        let mut plan = Plan::new(&device.name, port, gid.index, gid.gid);
        plan.netdev = gid.netdev.clone().or_else(|| table.netdev.clone());
        plan.mtu = args.mtu;
        plan.op = operation(&packets.filter.op)?;
        plan.count = packets
            .live
            .count
            .map_or(Ok(10), |count| u32::try_from(count.get()))
            .context("--count is too large")?;
        plan.size = args.size;
        plan.depth = args.depth.max(1);
        plan.interval = args.interval;
        plan.timeout = args.timeout;
        plan.target = target;
        Ok(Self {
            plan,
            device,
            peer,
            own,
            decode: Options {
                frame: FrameOptions {
                    port: packets.input.port,
                },
                // What is matched is matched by its headers.
                verify_icrc: false,
            },
        })
    }

    /// Counters of the devices of the run, settled: drivers cache them.
    fn counters(&self, sysfs: &Sysfs) -> Vec<(String, Option<Counters>)> {
        let writer = (self.plan.device.clone(), self.plan.port);
        let devices = std::iter::once(writer).chain(self.peer.clone());
        devices
            .map(|(device, port)| {
                let counters = sysfs.settled_counters(&device, port);
                (device, counters)
            })
            .collect()
    }

    fn evidence(
        &self,
        ledger: Ledger,
        before: &[(String, Option<Counters>)],
        after: &[(String, Option<Counters>)],
        heard: Heard,
        tapped: Option<&TapHeard>,
    ) -> Evidence {
        let counters = before.iter().zip(after);
        let counters = counters
            .filter_map(|((device, before), (_, after))| {
                let (before, after) = (before.as_ref()?, after.as_ref()?);
                let delta = |then: Option<u64>, now: Option<u64>| Some(now? as i64 - then? as i64);
                Some(CounterDelta {
                    device: device.clone(),
                    sent: delta(before.sent(), after.sent()),
                    received: delta(before.received(), after.received()),
                    changed: after.since(before),
                })
            })
            .collect();
        let (seen, _, _) = self.seen(&ledger, &heard.packets);
        let tap = tapped.map(|tapped| self.tapped(&ledger, tapped));
        Evidence {
            counters,
            listening: Some(Listening {
                netdev: heard.netdev,
                packets: heard.roce_packets,
                kernel_dropped: heard.kernel_dropped,
                control: (heard.control_sent > 0).then_some(Control {
                    sent: heard.control_sent,
                    seen: heard.control_seen,
                }),
                complete: heard.complete,
                trouble: heard.trouble,
                seen,
            }),
            tap,
            driver: match &self.device.driver {
                _ if self.device.is_rxe() => DriverKind::SoftRoce,
                Some(_) => DriverKind::Hardware,
                None => DriverKind::Unknown,
            },
            own_address: ledger
                .endpoint
                .as_ref()
                .is_some_and(|endpoint| self.own.contains(&endpoint.dest_gid)),
            ledger,
        }
    }

    /// What of the ledger is among the packets; how many of those were
    /// looped, and how many RoCE packets there are in all.
    fn seen(&self, ledger: &Ledger, packets: &[OwnedPacket]) -> (Seen, u64, u64) {
        let mut matcher = Matcher::new(ledger);
        let (mut looped, mut all) = (0, 0);
        for packet in packets {
            let raw = packet.raw();
            if let Ok(packet) = decode(&raw, &self.decode) {
                all += 1;
                let ours = matcher.packet(&Record::new(&raw, &packet));
                looped += u64::from(ours && raw.path == Some(PacketPath::Looped));
            }
        }
        (matcher.finish(), looped, all)
    }

    fn tapped(&self, ledger: &Ledger, tapped: &TapHeard) -> Tapped {
        let (seen, looped, packets) = self.seen(ledger, &tapped.packets);
        Tapped {
            packets,
            lost: tapped.lost(),
            looped,
            seen,
        }
    }
}

/// The operation to drive; `--op` filters by kind where nothing is driven.
fn operation(words: &[String]) -> anyhow::Result<Op> {
    let names = Op::ALL.map(|(word, _)| word).join(", ");
    match words {
        [] => Ok(Op::Write),
        [word] => Op::ALL
            .iter()
            .find(|(name, _)| name == word)
            .map(|(_, op)| *op)
            .with_context(|| format!("--op {word}: with --write one of {names}")),
        _ => bail!("--op: with --write a single one of {names}"),
    }
}

/// Where the operations go, and whose counters to read besides.
fn target(
    args: &WriteArgs,
    cm: bool,
    writer: &str,
    sysfs: &Sysfs,
) -> anyhow::Result<(Target, Option<(String, u8)>)> {
    if let Some(name) = &args.peer_dev {
        let (device, port) = device::named(name, sysfs)?;
        let table = device.port(port).context("the port has vanished")?;
        let wish = GidWish {
            index: None,
            family: args.gid_family,
        };
        let gid = choose_gid(table, None, wish).with_context(|| name.clone())?;
        let target = Target::Local {
            device: device.name.clone(),
            port,
            gid_index: gid.index,
            gid: gid.gid,
            netdev: gid.netdev.clone(),
        };
        let other = device.name != writer;
        return Ok((target, other.then_some((device.name, port))));
    }
    if let Some(host) = &args.peer {
        return Ok((
            Target::Remote(Remote {
                address: host.clone(),
                cm,
            }),
            None,
        ));
    }
    Ok((Target::Itself, None))
}
