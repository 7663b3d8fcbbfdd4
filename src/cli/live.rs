//! `--iface`, `--tap`: the same commands on packets as they pass a network
//! device, or the Soft-RoCE driver.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, builder::RangedU64ValueParser};

use super::args::duration;

/// Where and how to capture.
// With files named, `requires` alone is not enough: clap asks for nothing that
// conflicts with what is there.
#[derive(Debug, Args)]
#[command(next_help_heading = "Live capture", group = ArgGroup::new("live").multiple(true))]
pub struct LiveArgs {
    /// Capture from this network device rather than read files; `any` is all
    #[arg(short, long, value_name = "IF", group = "live", conflicts_with_all = ["files", "merge"])]
    pub iface: Option<String>,

    /// Capture only what also matches this filter, as `host 10.0.0.1`
    /// (pcap-filter(7)); it holds for frames with and without VLAN tags, unless
    /// it says `vlan` itself
    #[arg(
        long,
        value_name = "EXPR",
        requires = "iface",
        conflicts_with = "files"
    )]
    pub bpf: Option<String>,

    /// Capture for this long, as 10s or 500ms
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "live", conflicts_with = "files")]
    pub duration: Option<Duration>,

    /// Capture this many frames
    #[arg(long, value_name = "N", requires = "live", conflicts_with = "files")]
    pub count: Option<NonZeroU64>,

    /// Write every captured frame to a pcapng file, whatever is shown; `-` is
    /// standard output, where nothing else is then printed
    #[arg(
        short = 'w',
        long,
        value_name = "FILE",
        requires = "live",
        conflicts_with = "files"
    )]
    pub save: Option<PathBuf>,

    /// Capture tunnels too (VXLAN, GENEVE, GRE, ERSPAN, IP in IP, MPLS), and
    /// look for RoCE inside
    #[arg(long, requires = "iface", conflicts_with = "files")]
    pub tunnels: bool,

    /// Take frames to other hosts too, as on a mirror port
    #[arg(long, requires = "iface", conflicts_with = "files")]
    pub promisc: bool,

    /// Bytes to keep of a frame
    #[arg(long, value_name = "BYTES", default_value_t = 9216, requires = "iface", conflicts_with = "files",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=262_144))]
    pub snaplen: u32,

    /// Size of the kernel's buffer in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "iface", conflicts_with = "files",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=2047))]
    pub buffer: u32,
}

fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("no time at all".into()),
        time => Ok(time),
    }
}

impl LiveArgs {
    /// Whether standard output carries the recording.
    pub fn takes_stdout(&self) -> bool {
        self.save
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
    }
}

#[cfg(all(feature = "live", unix))]
pub use capture::LiveCapture;

#[cfg(all(feature = "live", unix))]
mod capture {
    use std::{
        fs::File,
        io::{self, Write},
        net::IpAddr,
        time::{Duration, SystemTime, UNIX_EPOCH},
    };

    use super::{
        super::{complain, interrupt, tap::TapArgs},
        LiveArgs,
    };
    use anyhow::Context;
    #[cfg(all(feature = "tap", target_os = "linux"))]
    use roce_sniff::{
        rdma::sysfs::Sysfs,
        source::{
            LinkType,
            tap::{Beside, TapOptions, TapSource},
        },
    };
    use roce_sniff::{
        report::{Counted, Interface, Recorder, Widths},
        source::{
            Batch, InputStatistics, LiveOptions, LiveSource, PacketSource, SourceError, Stop,
            netdev,
        },
    };

    /// Places for the longest IPv4 address.
    const ADDRESS: usize = 15;
    /// Places for an operation: with more, a table of IPv4 packets would not fit
    /// 160 columns. Longer names push the rest of their row along.
    const OPERATION: usize = 24;

    /// A live capture, and the recording of it if there is one.
    pub struct LiveCapture {
        source: Box<dyn PacketSource>,
        place: Place,
        stop: Stop,
        recording: Option<Recording>,
    }

    /// What is known about a capture before its first packet.
    struct Place {
        /// Network device, where one is listened to.
        netdev: Option<String>,
        /// What is said to people who wait for packets.
        words: String,
        /// In the order of the inputs' numbers.
        interfaces: Vec<Interface>,
        started_ns: i64,
    }

    struct Recording {
        recorder: Recorder,
        file: String,
        /// Whether the user was told that the file is slow.
        told: bool,
        failed: Option<io::Error>,
    }

    impl LiveCapture {
        /// Begins to capture. The first SIGINT or SIGTERM ends the capture, a
        /// second one the program.
        pub fn open(args: &LiveArgs, tap: &TapArgs, port: u16) -> anyhow::Result<Self> {
            let stop = Stop::default();
            interrupt::sets(&stop.flag())?;
            let (source, place) = match &args.iface {
                Some(iface) if tap.tap => open_both(args, tap, iface, port, &stop)?,
                Some(iface) => {
                    let source = LiveSource::open(&options(args, iface, port), stop.clone())?;
                    let place = Place::netdev(&source, port);
                    (Box::new(source) as Box<dyn PacketSource>, place)
                }
                None => open_tap(args, tap, &stop)?,
            };
            // Only now, so that a capture that cannot begin spares an old file.
            let recording = match &args.save {
                Some(_) => Some(Recording::start(args, &place.interfaces)?),
                None => None,
            };
            Ok(Self {
                source,
                place,
                stop,
                recording,
            })
        }

        /// One line for people who wait for packets.
        pub fn announce(&self) {
            complain(&format!("{}; Ctrl-C ends", self.place.words));
        }

        /// Names of the inputs by number.
        pub fn names(&self) -> Vec<String> {
            let interfaces = self.place.interfaces.iter();
            interfaces.map(|interface| interface.name.clone()).collect()
        }

        /// Widths for the addresses that the device's own suggest.
        pub fn widths(&self) -> Widths {
            let device = self.place.netdev.as_ref();
            let device = device.and_then(|name| netdev(name).ok().flatten());
            let own = device.map_or_else(Vec::new, |device| device.addresses);
            // Every device has a link-local address, also one that only
            // mirrors what others send.
            let longest = if own.iter().any(IpAddr::is_ipv4) {
                None
            } else {
                let global =
                    |a: &&IpAddr| matches!(a, IpAddr::V6(v6) if !v6.is_unicast_link_local());
                own.iter().filter(global).map(|a| a.to_string().len()).max()
            };
            let address = longest.map_or(ADDRESS, |longest| longest.max(ADDRESS));
            Widths::expected(address, OPERATION, self.place.started_ns)
        }

        /// Ends the recording; returns what was counted.
        pub fn finish(self) -> anyhow::Result<Vec<InputStatistics>> {
            let mut statistics = self.source.statistics();
            if let Some(recording) = self.recording {
                recording.finish(&statistics, self.place.started_ns)?;
            }
            // The tap's last input is for devices that come later; mostly none.
            if statistics.len() > 1 {
                statistics.retain(|input| input.live.is_none_or(|live| live.received > 0));
            }
            Ok(statistics)
        }
    }

    fn options(args: &LiveArgs, iface: &str, port: u16) -> LiveOptions {
        LiveOptions {
            bpf: args.bpf.clone(),
            tunnels: args.tunnels,
            promisc: args.promisc,
            snaplen: args.snaplen,
            buffer: args.buffer << 20,
            duration: args.duration,
            count: args.count.map(u64::from),
            ..LiveOptions::new(iface, port)
        }
    }

    impl Place {
        fn netdev(source: &LiveSource, port: u16) -> Self {
            Self {
                netdev: Some(source.name().into()),
                words: format!(
                    "listening on {} for UDP port {port} and RoCEv1",
                    source.name()
                ),
                interfaces: vec![Interface {
                    name: source.name().into(),
                    link: source.link(),
                    snaplen: source.snaplen(),
                    filter: Some(source.filter().into()),
                }],
                started_ns: source.started_ns(),
            }
        }
    }

    type Opened = (Box<dyn PacketSource>, Place);

    #[cfg(all(feature = "tap", target_os = "linux"))]
    fn open_tap(args: &LiveArgs, tap: &TapArgs, stop: &Stop) -> anyhow::Result<Opened> {
        let options = TapOptions {
            duration: args.duration,
            count: args.count.map(u64::from),
            ..tap.options(&Sysfs::default())?
        };
        let source = TapSource::open(&options, stop.clone())?;
        let place = Place {
            netdev: None,
            words: format!("tapping in the kernel: {}", tapped(&options, 1)),
            interfaces: interfaces(&source),
            started_ns: source.started_ns(),
        };
        Ok((Box::new(source), place))
    }

    #[cfg(all(feature = "tap", target_os = "linux"))]
    fn open_both(
        args: &LiveArgs,
        tap: &TapArgs,
        iface: &str,
        port: u16,
        stop: &Stop,
    ) -> anyhow::Result<Opened> {
        let beside = TapOptions {
            duration: args.duration,
            ..tap.beside(iface, &Sysfs::default())?
        };
        let listening = LiveOptions {
            count: None,
            // Packets of both are held until none can be missing before them.
            timeout: Duration::from_millis(20),
            ..options(args, iface, port)
        };
        let live = LiveSource::open(&listening, stop.clone())?;
        let mut place = Place::netdev(&live, port);
        place.words = [
            &place.words,
            ", and tapping what is looped: ",
            &tapped(&beside, 2),
        ]
        .concat();
        let tap = TapSource::open(&beside, stop.clone())?;
        place.interfaces.extend(interfaces(&tap));
        let source = Beside::new(live, tap, stop.clone(), args.count.map(u64::from));
        Ok((Box::new(source), place))
    }

    #[cfg(all(feature = "tap", target_os = "linux"))]
    fn interfaces(tap: &TapSource) -> Vec<Interface> {
        let interface = |name: &str| Interface {
            name: name.into(),
            link: LinkType::RAW,
            snaplen: tap.snaplen(),
            filter: None,
        };
        tap.names().map(interface).collect()
    }

    /// The devices in words, with the numbers that their packets will have.
    #[cfg(all(feature = "tap", target_os = "linux"))]
    fn tapped(options: &TapOptions, first: usize) -> String {
        let devices: Vec<_> = (first..)
            .zip(&options.devices)
            .map(|(number, device)| format!("{} ({number}:…)", device.name))
            .collect();
        if devices.is_empty() {
            "Soft-RoCE devices to come".into()
        } else {
            devices.join(", ")
        }
    }

    #[cfg(not(all(feature = "tap", target_os = "linux")))]
    use super::super::tap::NO_TAP;

    #[cfg(not(all(feature = "tap", target_os = "linux")))]
    fn open_tap(_: &LiveArgs, _: &TapArgs, _: &Stop) -> anyhow::Result<Opened> {
        anyhow::bail!(NO_TAP)
    }

    #[cfg(not(all(feature = "tap", target_os = "linux")))]
    fn open_both(_: &LiveArgs, _: &TapArgs, _: &str, _: u16, _: &Stop) -> anyhow::Result<Opened> {
        anyhow::bail!(NO_TAP)
    }

    impl Recording {
        fn start(args: &LiveArgs, interfaces: &[Interface]) -> anyhow::Result<Self> {
            let path = args.save.as_deref().unwrap_or("-".as_ref());
            let (file, out): (String, Box<dyn Write + Send>) = if args.takes_stdout() {
                ("standard output".into(), Box::new(io::stdout()))
            } else {
                let file = path.display().to_string();
                let out = File::create(path).with_context(|| format!("{file}: cannot write"))?;
                (file, Box::new(out))
            };
            let recorder = Recorder::start(out, interfaces)
                .with_context(|| format!("{file}: cannot write"))?;
            Ok(Self {
                recorder,
                file,
                told: false,
                failed: None,
            })
        }

        /// Ends the file with what was counted on its interfaces.
        fn finish(self, statistics: &[InputStatistics], started_ns: i64) -> anyhow::Result<()> {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let counted: Vec<_> = statistics
                .iter()
                .map(|input| Counted {
                    start_ns: started_ns,
                    end_ns: now.as_ref().map_or(0, |now| now.as_nanos() as i64),
                    counters: input.live.unwrap_or_default(),
                    delivered: input.packets,
                })
                .collect();
            let result = match self.failed {
                Some(error) => Err(error),
                None => self.recorder.finish(&counted),
            };
            let recorded = result.with_context(|| format!("{}: cannot write", self.file))?;
            if recorded.stalled >= Duration::from_millis(100) {
                complain(&format!(
                    "{}: slower than the capture, which waited {:.1} s for it",
                    self.file,
                    recorded.stalled.as_secs_f64()
                ));
            }
            Ok(())
        }

        /// Takes a copy of a batch, for as long as it takes; false when the
        /// file can no longer be written.
        fn take(&mut self, batch: &Batch) -> bool {
            while self.failed.is_none() {
                match self.recorder.record(batch, Duration::from_secs(1)) {
                    Ok(true) => return true,
                    Ok(false) if self.told => {}
                    Ok(false) => {
                        self.told = true;
                        complain(&format!("{}: the capture waits for it", self.file));
                    }
                    Err(error) => self.failed = Some(error),
                }
            }
            false
        }
    }

    impl PacketSource for LiveCapture {
        fn next_batch(&mut self, batch: &mut Batch) -> Result<bool, SourceError> {
            let more = self.source.next_batch(batch)?;
            if let Some(recording) = &mut self.recording
                && !recording.take(batch)
            {
                self.stop.set();
            }
            Ok(more)
        }

        fn statistics(&self) -> Vec<InputStatistics> {
            self.source.statistics()
        }
    }
}
