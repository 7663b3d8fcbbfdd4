//! Tables that are whole before they are printed: columns as wide as their
//! cells, laid side by side as far as they fit, the rest below.

use super::{
    style::{Kind, Style},
    text::{grouped, width},
};

/// Places between two columns.
const GAP: usize = 2;
/// Stands for nothing, so that something stands out.
const NOTHING: &str = "·";

/// A cell: text and its look.
pub(super) struct Cell {
    text: String,
    kind: Kind,
}

impl Cell {
    /// Plain text.
    pub fn plain(text: impl Into<String>) -> Self {
        Self::kind(text, Kind::Plain)
    }

    /// Text with a look.
    pub fn kind(text: impl Into<String>, kind: Kind) -> Self {
        Self {
            text: text.into(),
            kind,
        }
    }

    /// A dot.
    pub fn nothing() -> Self {
        Self::kind(NOTHING, Kind::Quiet)
    }

    /// The text.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.text
    }

    fn is_nothing(&self) -> bool {
        self.text == NOTHING
    }

    /// Text, or a dot where there is none.
    pub fn or_nothing(text: Option<String>) -> Self {
        text.map_or_else(Self::nothing, Self::plain)
    }
}

/// A count of a row: title, look, how to get it.
pub(super) type Count<T> = (&'static str, Kind, fn(&T) -> u64);

/// A column: title and one cell a row.
pub(super) struct Column {
    title: &'static str,
    right: bool,
    cells: Vec<Cell>,
}

impl Column {
    /// A column with a cell for each of `rows`.
    pub fn new<T>(title: &'static str, right: bool, rows: &[T], cell: impl Fn(&T) -> Cell) -> Self {
        Self {
            title,
            right,
            cells: rows.iter().map(cell).collect(),
        }
    }

    /// A column of row numbers, from 1.
    pub fn numbers<T>(rows: &[T]) -> Self {
        let numbers = 1..=rows.len();
        Self {
            title: "#",
            right: true,
            cells: numbers
                .map(|n| Cell::kind(n.to_string(), Kind::Quiet))
                .collect(),
        }
    }

    /// A column of counts; `None` where there is nothing to count.
    pub fn counts<T>(
        title: &'static str,
        kind: Kind,
        rows: &[T],
        count: impl Fn(&T) -> u64,
    ) -> Option<Self> {
        let cell = |row: &T| match count(row) {
            0 => Cell::nothing(),
            count => Cell::kind(grouped(count), kind),
        };
        let any = rows.iter().any(|row| count(row) > 0);
        any.then(|| Self::new(title, true, rows, cell))
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(Cell::is_nothing)
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| width(cell.text.as_bytes()));
        cells.max().unwrap_or(0).max(width(self.title.as_bytes()))
    }
}

/// Appends a table, in panels of at most `wrap` places where there is a limit.
/// The first column begins every panel; columns of nothing are left out.
pub(super) fn print(out: &mut Vec<u8>, style: Style, columns: &[Column], wrap: Option<usize>) {
    let Some((first, rest)) = columns.split_first() else {
        return;
    };
    let rest = rest.iter().filter(|column| !column.is_empty());
    let mut rest = rest.peekable();
    loop {
        let mut panel = vec![first];
        let mut used = GAP + first.width();
        while let Some(column) = rest.next_if(|column| {
            let end = used + GAP + column.width();
            panel.len() == 1 || wrap.is_none_or(|wrap| end <= wrap)
        }) {
            used += GAP + column.width();
            panel.push(column);
        }
        out.push(b'\n');
        lines(out, style, &panel);
        if rest.peek().is_none() {
            return;
        }
    }
}

fn lines(out: &mut Vec<u8>, style: Style, columns: &[&Column]) {
    let widths: Vec<_> = columns.iter().map(|column| column.width()).collect();
    let rows = columns.first().map_or(0, |column| column.cells.len());
    for row in 0..=rows {
        // Padding is put in only where something follows.
        let mut pad = 0;
        for (column, wide) in columns.iter().zip(&widths) {
            let (text, kind) = match row.checked_sub(1).map(|row| &column.cells[row]) {
                None => (column.title, Kind::Heading),
                Some(cell) => (cell.text.as_str(), cell.kind),
            };
            let free = wide - width(text.as_bytes());
            let (before, behind) = if column.right { (free, 0) } else { (0, free) };
            pad += GAP + before;
            if !text.is_empty() {
                out.resize(out.len() + pad, b' ');
                style.paint(out, kind, text.as_bytes());
                pad = 0;
            }
            pad += behind;
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(wrap: Option<usize>) -> String {
        let rows = [("one", 1u32), ("two", 22), ("three", 0)];
        let number = |row: &(&str, u32)| match row.1 {
            0 => Cell::nothing(),
            n => Cell::plain(n.to_string()),
        };
        let columns = [
            Column::new("#", true, &rows, number),
            Column::new("name", false, &rows, |row| Cell::plain(row.0)),
            Column::new("value", true, &rows, number),
        ];
        let mut out = Vec::new();
        print(&mut out, Style { color: false }, &columns, wrap);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_stand_side_by_side_as_far_as_they_fit() {
        let whole =
            "\n   #  name   value\n   1  one        1\n  22  two       22\n   ·  three      ·\n";
        assert_eq!(table(None), whole);
        assert_eq!(table(Some(18)), whole);
        assert_eq!(
            table(Some(17)),
            "\n   #  name\n   1  one\n  22  two\n   ·  three\n\
             \n   #  value\n   1      1\n  22     22\n   ·      ·\n"
        );
        assert_eq!(
            table(Some(1)),
            table(Some(17)),
            "one column a panel at least"
        );
    }

    #[test]
    fn a_column_of_nothing_is_left_out() {
        let columns = [
            Column::numbers(&[(), ()]),
            Column::new("a", false, &[(), ()], |()| Cell::nothing()),
            Column::new("b", false, &[(), ()], |()| Cell::plain("x")),
        ];
        let mut out = Vec::new();
        print(&mut out, Style { color: false }, &columns, None);
        assert_eq!(out, b"\n  #  b\n  1  x\n  2  x\n");
    }

    #[test]
    fn only_cells_are_coloured() {
        let columns = [Column::new("a", false, &[()], |()| {
            Cell::kind("b", Kind::Bad)
        })];
        let mut out = Vec::new();
        print(&mut out, Style { color: true }, &columns, None);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("  \u{1b}["), "{text:?}");
        assert!(text.ends_with("b\u{1b}[0m\n"), "{text:?}");
    }
}
