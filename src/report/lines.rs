//! Lines of words before, between and behind tables.

use std::io::Write;

use super::{
    style::{Kind, Style},
    text::plural,
};

/// Places of the name in front of a line.
const NAME: usize = 9;

/// A line that says one thing; on a terminal folded to its width.
pub(super) fn line(
    text: &mut Vec<u8>,
    style: Style,
    name: &str,
    value: &str,
    width: Option<usize>,
) {
    style.paint(text, Kind::Heading, format!("{name:<NAME$}").as_bytes());
    let at = name.chars().count().max(NAME);
    wrap(text, value, at, NAME + 1, unfolded(width));
}

/// A sentence of its own under a table; folded as [`line`].
pub(super) fn remark(text: &mut Vec<u8>, sentence: &str, width: Option<usize>) {
    text.push(b' ');
    wrap(text, sentence, 1, 4, unfolded(width));
}

/// Where lines are cut apart by programs, they are not folded.
fn unfolded(width: Option<usize>) -> Option<usize> {
    width.or(Some(usize::MAX))
}

/// Says how many rows were left out.
pub(super) fn more(text: &mut Vec<u8>, left: usize, one: &str, many: &str) {
    if left > 0 {
        let left = plural(left as u64, one, many);
        let _ = writeln!(text, "  … and {left} (--all)");
    }
}

/// What begins with the empty line that parts a table from what is before it,
/// where nothing is.
pub(super) fn at_the_top(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\n").unwrap_or(text)
}

/// Appends a sentence, folded at spaces to `width`; `at` places are taken on
/// the first line, later ones are indented.
pub(super) fn wrap(
    text: &mut Vec<u8>,
    sentence: &str,
    mut at: usize,
    indent: usize,
    width: Option<usize>,
) {
    // Piped output is folded too, to what reads well.
    let width = width.unwrap_or(100).max(40);
    // Not at spaces that hold a number together.
    for word in sentence.split_ascii_whitespace() {
        let len = word.chars().count();
        if at + 1 + len > width && at > indent {
            text.push(b'\n');
            text.resize(text.len() + indent, b' ');
            at = indent;
        } else {
            text.push(b' ');
            at += 1;
        }
        text.extend_from_slice(word.as_bytes());
        at += len;
    }
    text.push(b'\n');
}
