//! What a capture program tells Wireshark about itself: the sentences of the
//! extcap interface (extcap(4)).

use std::io::{self, Write};

/// Link type of the packets, by number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dlt<'a> {
    /// Number in the registry of the pcap formats.
    pub number: u16,
    /// Name there.
    pub name: &'a str,
    /// What people read.
    pub display: &'a str,
}

/// An option that Wireshark asks its user for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtcapOption<'a> {
    /// Argument that it becomes, as `--qp`.
    pub call: &'a str,
    /// Name.
    pub display: &'a str,
    /// Longer explanation.
    pub tooltip: &'a str,
    /// Kind of value: `string`, `integer`, `boolflag`…
    pub kind: &'a str,
    /// Further parts of the sentence, as `{range=1,9}{default=3}`.
    pub more: &'a str,
}

/// Lists capture interfaces: value on the command line, name for people.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_interfaces<'a>(
    out: &mut impl Write,
    interfaces: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> io::Result<()> {
    writeln!(
        out,
        "extcap {{version={}}}{{display=RoCE kernel tap}}",
        env!("CARGO_PKG_VERSION")
    )?;
    for (value, display) in interfaces {
        writeln!(out, "interface {{value={value}}}{{display={display}}}")?;
    }
    Ok(())
}

/// Names the link type of an interface.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_dlt(out: &mut impl Write, dlt: Dlt<'_>) -> io::Result<()> {
    let Dlt {
        number,
        name,
        display,
    } = dlt;
    writeln!(
        out,
        "dlt {{number={number}}}{{name={name}}}{{display={display}}}"
    )
}

/// Lists the options of an interface.
///
/// # Errors
/// What writing to `out` returns.
pub fn print_options(out: &mut impl Write, options: &[ExtcapOption<'_>]) -> io::Result<()> {
    for (number, option) in options.iter().enumerate() {
        let ExtcapOption {
            call,
            display,
            tooltip,
            kind,
            more,
        } = option;
        writeln!(
            out,
            "arg {{number={number}}}{{call={call}}}{{display={display}}}{{tooltip={tooltip}}}\
             {{type={kind}}}{more}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_as_wireshark_reads_them() {
        let mut out = Vec::new();
        print_interfaces(&mut out, [("roce-tap-rxe0", "RoCE kernel tap: rxe0")]).unwrap();
        print_dlt(
            &mut out,
            Dlt {
                number: 101,
                name: "RAW",
                display: "IP",
            },
        )
        .unwrap();
        let option = ExtcapOption {
            call: "--snaplen",
            display: "Bytes",
            tooltip: "Kept of a packet",
            kind: "integer",
            more: "{range=1,9}{default=3}",
        };
        print_options(&mut out, &[option]).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "extcap {{version={version}}}{{display=RoCE kernel tap}}\n\
             interface {{value=roce-tap-rxe0}}{{display=RoCE kernel tap: rxe0}}\n\
             dlt {{number=101}}{{name=RAW}}{{display=IP}}\n\
             arg {{number=0}}{{call=--snaplen}}{{display=Bytes}}{{tooltip=Kept of a packet}}\
             {{type=integer}}{{range=1,9}}{{default=3}}\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
