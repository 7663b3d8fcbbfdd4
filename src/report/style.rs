//! Colours, or none.

use std::io::Write;

use anstyle::{AnsiColor, Effects};

/// Whether to colour, and how each kind of thing looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Escape sequences are written only when set.
    pub color: bool,
}

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Heading,
    Quiet,
    Request,
    Response,
    Notice,
    Bad,
}

impl Style {
    fn ansi(kind: Kind) -> anstyle::Style {
        let color = |color: AnsiColor| anstyle::Style::new().fg_color(Some(color.into()));
        match kind {
            Kind::Plain => anstyle::Style::new(),
            Kind::Heading => anstyle::Style::new().effects(Effects::BOLD),
            Kind::Quiet => anstyle::Style::new().effects(Effects::DIMMED),
            Kind::Request => color(AnsiColor::Cyan),
            Kind::Response => color(AnsiColor::Green),
            Kind::Notice => color(AnsiColor::Yellow),
            Kind::Bad => color(AnsiColor::Red).effects(Effects::BOLD),
        }
    }

    /// Appends `text` in the style of `kind`.
    pub(super) fn paint(self, out: &mut Vec<u8>, kind: Kind, text: &[u8]) {
        if !self.color || kind == Kind::Plain {
            out.extend_from_slice(text);
            return;
        }
        self.begin(out, kind);
        out.extend_from_slice(text);
        Self::end(out);
    }

    /// Appends the escape sequence that begins a kind of text.
    pub(super) fn begin(self, out: &mut Vec<u8>, kind: Kind) {
        if self.color {
            let _ = write!(out, "{}", Self::ansi(kind));
        }
    }

    /// Appends the escape sequence that ends any kind of text.
    pub(super) fn end(out: &mut Vec<u8>) {
        let _ = write!(out, "{}", anstyle::Reset);
    }
}
