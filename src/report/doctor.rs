//! What the doctor found, for people.

use std::io::{self, Write};

use super::{
    style::{Kind, Style},
    text::plural,
};
use crate::doctor::{Examination, Finding, Status};

/// Column at which the words begin.
const INDENT: usize = 24;

/// Narrowest column of words; a terminal narrower than that folds by itself.
const WORDS_MIN: usize = 30;

/// Width where the output is no terminal.
const WIDTH: usize = 100;

/// How much is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// What does not work or may surprise.
    Quiet,
    /// Every finding, explanations of those that are not as they should be.
    Usual,
    /// Everything.
    Verbose,
}

/// Prints what was found, `width` places wide; commands are never folded, so
/// that they can be copied.
///
/// # Errors
/// What writing to `out` returns.
pub fn print(
    out: &mut impl Write,
    style: Style,
    examination: &Examination,
    verbosity: Verbosity,
    width: Option<usize>,
) -> io::Result<()> {
    let width = width.unwrap_or(WIDTH).clamp(INDENT + WORDS_MIN, WIDTH);
    let mut text = Vec::new();
    let mut last = "";
    let mut explained = None;
    for finding in &examination.checks {
        // Where packets go is told to whoever asks, good or bad.
        let asked = finding.id == "destination";
        if verbosity == Verbosity::Quiet && finding.status < Status::Warn && !asked {
            continue;
        }
        let title = if last == finding.title {
            ""
        } else {
            finding.title
        };
        last = finding.title;
        line(&mut text, style, finding, title, width);
        if verbosity == Verbosity::Verbose || finding.status > Status::Ok {
            // Two devices need no two explanations of the same.
            let detail = finding.detail.as_ref();
            let detail = detail.filter(|_| explained != Some((finding.id, detail)));
            explained = Some((finding.id, finding.detail.as_ref()));
            explain(&mut text, style, detail, finding.repair.as_ref(), width);
        }
    }
    if verbosity > Verbosity::Quiet {
        text.push(b'\n');
        total(&mut text, style, examination);
    }
    out.write_all(&text)
}

fn line(text: &mut Vec<u8>, style: Style, finding: &Finding, title: &str, width: usize) {
    let kind = match finding.status {
        Status::Ok => Kind::Response,
        Status::Note => Kind::Request,
        Status::Warn => Kind::Notice,
        Status::Fail => Kind::Bad,
    };
    text.extend_from_slice(b"  ");
    style.paint(
        text,
        kind,
        format!("{:<4}", finding.status.word()).as_bytes(),
    );
    text.extend_from_slice(b"  ");
    style.paint(text, Kind::Heading, format!("{title:<14}").as_bytes());
    text.extend_from_slice(b"  ");
    folded(text, style, Kind::Plain, &finding.summary, width - INDENT);
}

fn explain(
    text: &mut Vec<u8>,
    style: Style,
    detail: Option<&String>,
    repair: Option<&String>,
    width: usize,
) {
    if let Some(detail) = detail {
        indent(text);
        folded(text, style, Kind::Quiet, detail, width - INDENT);
    }
    if let Some(repair) = repair {
        indent(text);
        style.paint(text, Kind::Heading, format!("$ {repair}").as_bytes());
        text.push(b'\n');
    }
}

fn indent(text: &mut Vec<u8>) {
    text.extend_from_slice(&[b' '; INDENT]);
}

/// Appends words in lines of at most `width` places, all but the first behind
/// the indent.
fn folded(text: &mut Vec<u8>, style: Style, kind: Kind, words: &str, width: usize) {
    let mut line = String::new();
    let mut places = 0;
    let mut first = true;
    let mut flush = |text: &mut Vec<u8>, line: &str| {
        if !first {
            indent(text);
        }
        first = false;
        style.paint(text, kind, line.as_bytes());
        text.push(b'\n');
    };
    for word in words.split(' ') {
        let wide = word.chars().count();
        if places > 0 && places + 1 + wide > width {
            flush(text, &line);
            line.clear();
            places = 0;
        }
        if places > 0 {
            line.push(' ');
            places += 1;
        }
        line.push_str(word);
        places += wide;
    }
    flush(text, &line);
}

fn total(text: &mut Vec<u8>, style: Style, examination: &Examination) {
    let fails = examination.count(Status::Fail) as u64;
    let warns = examination.count(Status::Warn) as u64;
    let warnings = plural(warns, "warning", "warnings");
    let (kind, words) = match (fails, warns) {
        (0, 0) => (Kind::Response, "Nothing is wrong.".to_owned()),
        (0, _) => (Kind::Notice, format!("Nothing fails; {warnings}.")),
        (1, 0) => (Kind::Bad, "1 thing does not work.".to_owned()),
        (_, 0) => (Kind::Bad, format!("{fails} things do not work.")),
        (1, _) => (Kind::Bad, format!("1 thing does not work; {warnings}.")),
        _ => (
            Kind::Bad,
            format!("{fails} things do not work; {warnings}."),
        ),
    };
    style.paint(text, kind, words.as_bytes());
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(status: Status, summary: &str, detail: &str, repair: &str) -> Finding {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Finding {
            id: "x",
            title: "GID table",
            status,
            summary: summary.into(),
            detail: some(detail),
            repair: some(repair),
        }
    }

    fn printed(verbosity: Verbosity, width: usize) -> String {
        let examination = Examination {
            checks: vec![
                finding(Status::Ok, "as it should be", "because", ""),
                finding(
                    Status::Fail,
                    "no address at all, and so nothing that packets could be sent from",
                    "It is down.",
                    "sudo ip address add ADDRESS/24 dev a-long-name-of-a-device",
                ),
            ],
            ok: false,
        };
        let mut out = Vec::new();
        print(
            &mut out,
            Style::default(),
            &examination,
            verbosity,
            Some(width),
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn words_are_folded_and_commands_are_not() {
        assert_eq!(
            printed(Verbosity::Usual, 60),
            "  ok    GID table       as it should be\n  \
               fail                  no address at all, and so nothing\n                        \
                                     that packets could be sent from\n                        \
                                     It is down.\n                        \
                                     $ sudo ip address add ADDRESS/24 dev a-long-name-of-a-device\n\
             \n1 thing does not work.\n"
        );
    }

    #[test]
    fn more_or_less() {
        assert!(printed(Verbosity::Verbose, 80).contains("because"));
        let quiet = printed(Verbosity::Quiet, 80);
        assert!(
            quiet.starts_with("  fail  GID table       no address"),
            "{quiet}"
        );
        // Narrower than can be: the words keep some room.
        assert!(printed(Verbosity::Usual, 10).lines().count() < 12);
    }
}
