//! Where output goes: standard output or a file, how wide, in colour or not.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use roce_sniff::report::Style;

use super::{
    args::{OutputArgs, When},
    progress::stdout_is_file,
};

/// The place results are written to.
pub struct Output {
    writer: Box<dyn Write + Send>,
    name: String,
    pub style: Style,
    /// Columns to fold to, if any.
    pub width: Option<usize>,
    /// Whether this is a file on disk. What goes anywhere else may come out at
    /// the terminal, a pipe as a pager's or jq's output.
    pub to_file: bool,
}

impl Output {
    /// Opens the output; a file that is one of `inputs` is refused before it
    /// is overwritten. Where standard output is taken for something else,
    /// standard error stands in for it.
    pub fn open(args: &OutputArgs, inputs: &[PathBuf], taken: bool) -> anyhow::Result<Self> {
        let path = args
            .output
            .as_deref()
            .filter(|path| *path != Path::new("-"));
        let terminal = path.is_none() && !taken && io::stdout().is_terminal();
        let (writer, name, to_file): (Box<dyn Write + Send>, _, _) = match path {
            Some(path) => {
                if let Some(input) = inputs.iter().find(|input| same_file(input, path)) {
                    bail!(
                        "{}: is the input {} too, and would be overwritten",
                        path.display(),
                        input.display()
                    );
                }
                let file = File::create(path)
                    .with_context(|| format!("{}: cannot write", path.display()))?;
                let to_file = file.metadata().is_ok_and(|found| found.is_file());
                (Box::new(file), path.display().to_string(), to_file)
            }
            None if taken => (Box::new(io::stderr()), "standard error".into(), false),
            None => (
                Box::new(io::stdout()),
                "standard output".into(),
                stdout_is_file(),
            ),
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
            name,
            style: Style { color },
            width,
            to_file,
        })
    }
}

impl Output {
    /// Puts the name of the output in front of what the system said.
    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.name)))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes);
        self.named(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        self.named(flushed)
    }
}

/// Whether two names lead to one file, by whatever links.
fn same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) else {
            return false;
        };
        a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino())
    }
    #[cfg(not(unix))]
    {
        matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
    }
}

/// The reader of our output went away, as `head` does: no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
