//! Arguments that several commands share.

use std::{
    net::IpAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use roce_sniff::{
    Options,
    filter::{Filter, OpClass, PsnRange, parse_number},
    frame::{FrameOptions, ROCE_PORT},
    source::{Chain, InputFile, Merge, PacketSource},
    wire::types::QpNumber,
};

/// Captures to read.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// Capture files: pcap or pcapng, plain, gzip or zstd; `-` is standard
    /// input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Read several files as one, packets in the order of their timestamps
    #[arg(long)]
    pub merge: bool,

    /// UDP destination port that carries RoCEv2
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT)]
    pub port: u16,

    /// Threads that decode; by default one a core
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

impl InputArgs {
    /// The files as one source; each is opened when its turn comes.
    pub fn source(&self, batch_bytes: usize) -> anyhow::Result<Box<dyn PacketSource>> {
        if self.files.is_empty() {
            bail!(
                "no capture named: give FILE…, - for standard input, --iface IF or --tap (see --help)"
            );
        }
        let stdin = |file: &&PathBuf| file.as_path() == Path::new("-");
        if self.files.iter().filter(stdin).count() > 1 {
            bail!("standard input (-) can be read only once");
        }
        let mut inputs = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let index = u16::try_from(index).context("too many files at once")?;
            inputs.push(InputFile::new(file.clone(), index, batch_bytes));
        }
        Ok(if self.merge && inputs.len() > 1 {
            Box::new(Merge::new(inputs))
        } else {
            Box::new(Chain::new(inputs))
        })
    }

    /// Names of the inputs as the user gave them.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|f| f.display().to_string()).collect()
    }

    pub fn options(&self) -> Options {
        Options {
            frame: FrameOptions { port: self.port },
            verify_icrc: true,
        }
    }

    pub fn threads(&self) -> NonZeroUsize {
        self.threads
            .or_else(|| std::thread::available_parallelism().ok())
            .unwrap_or(NonZeroUsize::MIN)
    }
}

/// Which packets to show.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters (all must hold; within one option, any)")]
pub struct FilterArgs {
    /// To (or, in datagrams, from) this queue pair, decimal or 0x…
    #[arg(long, value_name = "QPN", value_delimiter = ',', value_parser = qp_number)]
    pub qp: Vec<QpNumber>,

    /// Operation: send, write, read, ack, atomic, flush, cnp, unknown
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub op: Vec<String>,

    /// From or to this address
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub host: Vec<IpAddr>,

    /// Packet sequence numbers A to B; the range may wrap
    #[arg(long, value_name = "A..B")]
    pub psn: Option<PsnRange>,

    /// Negative acknowledgements only: NAK and RNR NAK
    #[arg(long)]
    pub nak: bool,

    /// Connection management messages only
    #[arg(long)]
    pub cm: bool,
}

pub fn qp_number(text: &str) -> Result<QpNumber, String> {
    parse_number(text, QpNumber::BITS).map(QpNumber::new)
}

impl FilterArgs {
    pub fn filter(&self) -> anyhow::Result<Filter> {
        let op = |word: &String| {
            OpClass::from_str(word).map_err(|reason| anyhow::anyhow!("--op {word}: {reason}"))
        };
        Ok(Filter {
            qps: self.qp.clone(),
            ops: self.op.iter().map(op).collect::<Result<_, _>>()?,
            hosts: self.host.clone(),
            psn: self.psn,
            nak: self.nak,
            cm: self.cm,
        })
    }
}

/// A time on the command line, as `10s`, `500ms` or `1m 30s`; a bare number is
/// seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let time: Option<SignedDuration> = match text.trim().parse::<u32>() {
        Ok(seconds) => Some(SignedDuration::from_secs(seconds.into())),
        Err(_) => text.trim().parse().ok(),
    };
    time.and_then(|time| Duration::try_from(time).ok())
        .ok_or_else(|| "not a time such as 10s, 500ms or 2m".into())
}

/// How the result is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// A table for people; JSON or CSV for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,

    /// Write to a file rather than to standard output (`-`)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Colours and bold type; by default on terminals
    #[arg(long, value_enum, default_value_t)]
    pub color: When,

    /// Fold tables to this many columns; by default the terminal's width
    #[arg(long, value_name = "COLUMNS")]
    pub width: Option<usize>,

    /// Leave out the summary: rows, findings or lists of packets only
    #[arg(short, long)]
    pub quiet: bool,
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Table
    #[default]
    Table,
    /// JSON: of packets and messages one object a line, else one document
    Json,
    /// CSV with a header line
    Csv,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum When {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(ms("10s"), Ok(10_000));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("1m 30s"), Ok(90_000));
        assert_eq!(ms("2 hours"), Ok(7_200_000));
        assert_eq!(ms("7"), Ok(7_000));
        assert_eq!(ms("0s"), Ok(0));
        for bad in ["", "ten", "-1s", "10 apples", "-5"] {
            assert!(ms(bad).is_err(), "{bad}");
        }
    }
}
