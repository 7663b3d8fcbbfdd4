//! Rows whose cells stand at fixed columns, written as they come.
//!
//! Where a terminal is too narrow for all of them, the later cells flow onto a
//! second line, the same ones in every row.

use std::cell::Cell;

use super::{
    style::{Kind, Style},
    text::width,
};

/// Places between two columns.
pub(super) const GAP: usize = 2;
/// Places kept for the flags, which come last and have no fixed width.
const FLAGS: usize = 12;

/// Title, width, and whether it is right-aligned.
pub(super) type Spec = (&'static str, usize, bool);

/// The columns of a table, and where each stands.
pub(super) struct Grid {
    style: Style,
    columns: Vec<Column>,
    /// Places of the first column; lines that continue a row begin behind it.
    indent: usize,
    /// Width of the terminal, if it is one.
    wrap: Option<usize>,
}

#[derive(Clone, Copy)]
struct Column {
    title: &'static str,
    width: usize,
    right: bool,
    /// Begins a new line.
    breaks: bool,
    start: usize,
}

impl Grid {
    /// Columns side by side, `wrap` places wide at most.
    pub fn new(style: Style, wrap: Option<usize>, specs: &[Spec]) -> Self {
        let indent = specs.first().map_or(0, |(_, width, _)| width + GAP);
        let (last, mut at) = (specs.len().saturating_sub(1), 0);
        let columns = specs.iter().enumerate().map(|(i, &(title, width, right))| {
            let end = at + width + if i == last { GAP + FLAGS } else { 0 };
            let breaks = i > 0 && wrap.is_some_and(|wrap| end > wrap) && at > indent;
            if breaks {
                at = indent;
            }
            let start = at;
            at += width + GAP;
            Column {
                title,
                width,
                right,
                breaks,
                start,
            }
        });
        Self {
            style,
            columns: columns.collect(),
            indent,
            wrap,
        }
    }

    /// Places in front of lines that continue a row.
    pub const fn indent(&self) -> usize {
        self.indent
    }

    /// Writes the titles.
    pub fn header(&self, out: &mut Vec<u8>) {
        let mut row = self.row(out);
        for (i, column) in self.columns.iter().enumerate() {
            row.cell(i, Kind::Heading, |out| {
                out.extend_from_slice(column.title.as_bytes());
            });
        }
        row.tail(Kind::Heading, |out| out.extend_from_slice(b"flags"));
        row.end();
    }

    /// Begins a row.
    pub fn row<'t, 'o>(&'t self, out: &'o mut Vec<u8>) -> Row<'t, 'o> {
        Row {
            grid: self,
            out,
            at: 0,
        }
    }
}

thread_local! {
    static WORDS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A row being written.
pub(super) struct Row<'t, 'o> {
    grid: &'t Grid,
    out: &'o mut Vec<u8>,
    /// Places written on the current line.
    at: usize,
}

impl Row<'_, '_> {
    /// Writes a cell; those before it have been written.
    pub fn cell(&mut self, index: usize, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        let column = self.grid.columns[index];
        if column.breaks {
            self.out.push(b'\n');
            self.at = 0;
        }
        self.place(
            column.start,
            kind,
            column.right.then_some(column.width),
            write,
        );
    }

    /// Writes text that begins at a place of the line, or right-aligned in
    /// `right` places from there.
    fn place(
        &mut self,
        start: usize,
        kind: Kind,
        right: Option<usize>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let line = self.out.len();
        // Text that outgrew its column pushes the next one along.
        let mut pad = start
            .saturating_sub(self.at)
            .max(if self.at > 0 { GAP } else { 0 });
        let color = self.grid.style.color && kind != Kind::Plain;
        if color {
            self.grid.style.begin(self.out, kind);
        }
        let text = self.out.len();
        write(self.out);
        let written = width(&self.out[text..]);
        if written == 0 {
            self.out.truncate(line);
            return;
        }
        if color {
            Style::end(self.out);
        }
        pad += right.map_or(0, |width| width.saturating_sub(written));
        let indent = self.grid.indent;
        let breaks = self.at > indent
            && self
                .grid
                .wrap
                .is_some_and(|wrap| self.at + pad + written > wrap);
        if breaks {
            pad = indent;
            self.at = 0;
        }
        // The padding goes in front, now that its length is known.
        let end = self.out.len();
        let gap = pad + usize::from(breaks);
        self.out.resize(end + gap, b' ');
        self.out.copy_within(line..end, line + gap);
        self.out[line..line + gap].fill(b' ');
        if breaks {
            self.out[line] = b'\n';
        }
        self.at += pad + written;
    }

    /// Writes what comes behind the last column and has no fixed width.
    fn tail(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        let last = self.grid.columns.last();
        let start = last.map_or(0, |last| last.start + last.width + GAP);
        self.place(start, kind, None, write);
    }

    /// Writes the flags; their look is known only once all are.
    pub fn flags(&mut self, write: impl FnOnce(&mut Flags<'_>)) {
        // The words wait in a buffer that is used again.
        let mut words = WORDS.take();
        words.clear();
        let mut flags = Flags {
            words: &mut words,
            kind: Kind::Quiet,
        };
        write(&mut flags);
        let kind = flags.kind;
        if !words.is_empty() {
            self.tail(kind, |out| out.extend_from_slice(&words));
        }
        WORDS.set(words);
    }

    /// Ends the row.
    pub fn end(self) {
        self.out.push(b'\n');
    }
}

/// The words for what is special about a row, as they are put together.
pub(super) struct Flags<'o> {
    words: &'o mut Vec<u8>,
    kind: Kind,
}

impl Flags<'_> {
    /// Appends a word where `is` holds. All look as the gravest of them does.
    pub fn word(&mut self, is: bool, text: &str, severity: Kind) {
        if is {
            self.more(severity, |out| out.extend_from_slice(text.as_bytes()));
        }
    }

    /// Appends words.
    pub fn more(&mut self, severity: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.words.is_empty() {
            self.words.push(b' ');
        }
        write(self.words);
        if severity == Kind::Bad || self.kind == Kind::Quiet {
            self.kind = severity;
        }
    }
}
