//! `messages`: every RDMA operation as it travelled, and how long they took.

use std::{
    io::{self, Write},
    num::NonZeroU64,
    str::FromStr,
};

use anyhow::{anyhow, bail};
use clap::Args;
use roce_sniff::{
    filter::{FlowFilter, OpClass},
    report::{
        CsvMessages, JsonMessages, MessagePrinter, MessagesReport, TableMessages, print_messages,
    },
    track::{Distribution, Listener, Message},
};

use super::{
    Outcome,
    analyse::{self, AnalyseArgs, Analysis, Followed, ROWS},
    args::Format,
    flows::layout,
    output::Output,
};

/// Places for the longest IPv4 address, where it is not known what will come.
const ADDRESS: usize = 15;
/// Kinds of operation that are messages.
const KINDS: [OpClass; 5] = [
    OpClass::Send,
    OpClass::Write,
    OpClass::Read,
    OpClass::Atomic,
    OpClass::Flush,
];

/// Arguments of `messages`.
#[derive(Debug, Args)]
pub struct MessagesArgs {
    #[command(flatten)]
    analyse: AnalyseArgs,

    /// Messages of this operation: send, write, read, atomic, flush
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        help_heading = ROWS
    )]
    op: Vec<String>,

    /// Print this many messages; all are followed and summed up
    #[arg(long, value_name = "N", help_heading = ROWS)]
    limit: Option<NonZeroU64>,
}

struct Messages<'a> {
    args: &'a AnalyseArgs,
    filter: FlowFilter,
    ops: Vec<OpClass>,
    /// Messages that may still be printed.
    left: u64,
    names: Vec<String>,
    /// Messages that ended before it was known how wide a table must be.
    early: Vec<Message>,
    printer: Option<Box<dyn MessagePrinter>>,
    text: Vec<u8>,
    /// Of all messages, and of those since the last report.
    all: Distribution,
    recent: Distribution,
}

impl Messages<'_> {
    fn table(&self) -> bool {
        self.args.output.format == Format::Table
    }

    /// The table, as wide as the first messages need it.
    fn open_table(&mut self, out: &Output) {
        let live = self.args.input.files.is_empty();
        let addresses = self
            .early
            .iter()
            .flat_map(|message| [message.key.src, message.key.dst]);
        let address = addresses.map(|address| address.to_string().len()).max();
        let address = address.unwrap_or(0).max(if live { ADDRESS } else { 0 });
        let start_ns = self.early.iter().map(|message| message.start_ns).min();
        let table = TableMessages::new(
            out.style,
            self.names.len(),
            address,
            start_ns.unwrap_or(0),
            out.width,
        );
        table.header(&mut self.text);
        for message in std::mem::take(&mut self.early) {
            table.message(&message, &mut self.text);
        }
        self.printer = Some(Box::new(table));
    }
}

impl Listener for Messages<'_> {
    fn message(&mut self, message: &Message) {
        let chosen = self.filter.matches(&message.key, message.src_qp)
            && (self.ops.is_empty() || self.ops.iter().any(|op| op.covers(message.operation.verb)));
        if !chosen {
            return;
        }
        if self.table() {
            self.all.add(message);
            if self.args.interval.is_some() {
                self.recent.add(message);
            }
        }
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        match &self.printer {
            Some(printer) => printer.message(message, &mut self.text),
            None => self.early.push(message.clone()),
        }
    }
}

impl Analysis for Messages<'_> {
    const ROWS: bool = true;

    fn begin(&mut self, names: &[String], out: &mut Output) -> io::Result<()> {
        self.names = names.to_vec();
        let inputs = names.to_vec();
        self.printer = match self.args.output.format {
            Format::Json => Some(Box::new(JsonMessages { inputs })),
            Format::Csv => Some(Box::new(CsvMessages { inputs })),
            Format::Table => None,
        };
        if let Some(printer) = &self.printer {
            printer.header(&mut self.text);
        }
        self.drain(out)
    }

    fn drain(&mut self, out: &mut Output) -> io::Result<()> {
        if self.printer.is_none() && !self.early.is_empty() {
            self.open_table(out);
        }
        if self.text.is_empty() {
            return Ok(());
        }
        let written = out.write_all(&self.text);
        self.text.clear();
        written
    }

    fn report(&mut self, followed: &Followed<'_>, out: &mut Output) -> io::Result<()> {
        if !self.table() || self.args.output.quiet {
            return Ok(());
        }
        let report = MessagesReport {
            capture: followed.capture,
            tracker: followed.tracker,
            filter: &self.filter,
            some_operations: !self.ops.is_empty(),
            distribution: match followed.interval {
                Some(_) => &self.recent,
                None => &self.all,
            },
            interval: followed.interval,
        };
        let layout = layout(self.args, out);
        print_messages(out, &report, layout)?;
        if followed.interval.is_some() {
            self.recent.clear();
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &MessagesArgs) -> anyhow::Result<Outcome> {
    let ops = args.op.iter().map(|word| {
        let op = OpClass::from_str(word).ok();
        op.filter(|op| KINDS.contains(op)).ok_or_else(|| {
            anyhow!("--op {word}: no message is of this kind: send, write, read, atomic, flush are")
        })
    });
    let ops = ops.collect::<anyhow::Result<_>>()?;
    let limit = args.limit;
    let args = &args.analyse;
    if args.interval.is_some() && args.output.format != Format::Table {
        bail!(
            "--interval goes with --format table: in JSON and CSV each message is a line when it ends"
        );
    }
    let mut messages = Messages {
        args,
        filter: args.rows.filter()?,
        ops,
        left: match (limit, args.interval) {
            // A row a message would bury the reports.
            (None, Some(_)) => 0,
            (limit, _) => limit.map_or(u64::MAX, NonZeroU64::get),
        },
        names: Vec::new(),
        early: Vec::new(),
        printer: None,
        text: Vec::new(),
        all: Distribution::default(),
        recent: Distribution::default(),
    };
    analyse::run(args, &mut messages)
}
