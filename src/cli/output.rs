//! Where output goes: standard output or a file, how wide, in colour or not.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
};

use anyhow::Context;
use roce_sniff::report::Style;

use super::args::{OutputArgs, When};

/// The place results are written to.
pub struct Output {
    writer: Box<dyn Write + Send>,
    pub style: Style,
    /// Columns to fold to, if any.
    pub width: Option<usize>,
}

impl Output {
    /// Opens what the arguments say. Where standard output is taken for
    /// something else, standard error stands in for it.
    pub fn open(args: &OutputArgs, taken: bool) -> anyhow::Result<Self> {
        let terminal = args.output.is_none() && !taken && io::stdout().is_terminal();
        let writer: Box<dyn Write + Send> = match &args.output {
            Some(path) => Box::new(
                File::create(path).with_context(|| format!("{}: cannot write", path.display()))?,
            ),
            None if taken => Box::new(io::stderr()),
            None => Box::new(io::stdout()),
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = match args.color {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && !plain,
        };
        let measured = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let width = args
            .width
            .or_else(|| terminal.then(measured).flatten())
            .filter(|width| *width > 0);
        Ok(Self {
            writer,
            style: Style { color },
            width,
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// The reader of our output went away, as `head` does: no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
